"""The models an algorithm holds: policy, reference, value model.

    Policy      a causal language model whose lm_head is rlkit's Head; the module that trains
    reference   the same model before training: a frozen copy, or the policy with its adapters off
    ValueModel  a copy of the backbone with one number a token on top (PPO's critic)

The head runs inside `forward`, on the N valid completion tokens alone: hidden states of prompts and
padding never meet the vocabulary. One explicit attention mask serves sampling, scoring and
training, so that a plan under fake tensors takes the same branches as the real step.
Left out on purpose: encoder-decoders, vision, mixture-of-experts losses.
"""

import copy
import inspect
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlkit.adapters import (
    active_head,
    as_reference,
    causal_lm,
    heads,
    low_rank,
    put_head_in,
    save_adapters,
)
from rlkit.head import Head, into_rows, project
from rlkit.logits import check_logits, logit_transform
from rlkit.optional import require
from rlkit.paths import data_path
from rlkit.prefix import allowed, multiplications, share_rows
from rlkit.rollout import Rollout

BUILT_IN = {"adder": ("adder",)}
"""Model names that rlkit ships -> their folder under data/."""


def model_folder(name: str | Path) -> str:
    """A folder to load from, or the hub id unchanged.

    Raises FileNotFoundError for what is neither a built-in name, a folder nor a possible hub id.
    """
    if str(name) in BUILT_IN:
        return str(data_path(*BUILT_IN[str(name)]))
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    parts = str(name).split("/")
    if path.is_absolute() or len(parts) != 2 or parts[0] in ("", ".", "..", "~"):
        known = ", ".join(sorted(BUILT_IN))
        raise FileNotFoundError(
            f"model={str(name)!r}: there is no such folder; give a folder that holds config.json, "
            f"a hub id like 'Qwen/Qwen3-0.6B', or a built-in name ({known})"
        )
    return str(name)


def load_model(name: str | Path, **kwargs: Any) -> nn.Module:
    """A causal language model in float32, from a built-in name, a folder or a hub id.

    A folder of adapters is loaded on the model that it names, ready to be trained on.
    Safetensors only, and no code from the model's folder is run.
    Raises FileNotFoundError with one sentence if there is no such model.
    """
    from transformers import AutoModelForCausalLM

    folder = model_folder(name)
    if (Path(folder) / "adapter_config.json").is_file():
        peft = require("peft", f"the adapters in {folder}")
        base = peft.PeftConfig.from_pretrained(folder).base_model_name_or_path
        return peft.PeftModel.from_pretrained(load_model(base), folder, is_trainable=True)
    options = {"dtype": torch.float32, "use_safetensors": True} | kwargs
    model = load_pretrained(AutoModelForCausalLM, name, options)
    if str(name) in BUILT_IN:
        # adapters will remember this name, and find the model wherever rlkit is installed
        model.name_or_path = model.config._name_or_path = str(name)
    return model


def load_tokenizer(name: str | Path) -> Any:
    """The tokenizer that belongs to `load_model(name)`."""
    from transformers import AutoTokenizer

    return load_pretrained(AutoTokenizer, name, {})


def load_pretrained(auto: Any, name: str | Path, options: dict[str, Any]) -> Any:
    """What one of transformers' Auto classes makes of a built-in name, a folder or a hub id.

    Raises FileNotFoundError with one sentence if there is no such thing.
    """
    folder = model_folder(name)
    try:
        return auto.from_pretrained(folder, trust_remote_code=False, **options)
    except (OSError, ValueError) as error:
        if Path(folder).is_dir():
            what = f"the folder {folder} does not hold a complete model"
        else:
            what = "it is not a folder here, and the Hugging Face hub did not give it"
        first = str(error).strip().splitlines()[0]
        raise FileNotFoundError(f"model={str(name)!r}: {what} ({first})") from error


class Backbone:
    """Calls the transformer below the head with explicit masks and positions.

    Raises ValueError for attention patterns that one explicit mask cannot express.
    """

    def __init__(self, model: nn.Module) -> None:
        self.module = causal_lm(model).base_model
        self.config = causal_lm(model).config.get_text_config()
        # transformers 5.20 renamed the argument
        names = inspect.signature(self.module.forward).parameters
        attention = str(self.config._attn_implementation)
        if attention not in ("sdpa", "eager") and "flash" not in attention:
            raise ValueError(
                f"attention {attention!r} takes no explicit mask; load the model with "
                "attn_implementation='sdpa'"
            )
        if "position_ids" not in names:
            raise ValueError(
                f"{type(self.module).__name__} takes no position_ids, without which padded prompts "
                "would be read wrongly; rlkit cannot train it"
            )
        self.cache_name = "cache" if "cache" in names else "past_key_values"
        embedding = self.module.get_input_embeddings().weight
        self.weights = sum(p.numel() for p in self.module.parameters()) - embedding.numel()
        self.layers = set(getattr(self.config, "layer_types", None) or ())
        if unknown := self.layers - {"full_attention", "sliding_attention"}:
            raise ValueError(
                f"layers of type {sorted(unknown)} are not supported; "
                "rlkit trains models of full and sliding-window attention"
            )

    def __call__(
        self,
        ids: Tensor,
        key_mask: Tensor,
        positions: Tensor,
        cache: Any = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """ids, positions: [B, S]; key_mask: [B, past + S] bool. Returns hidden [B, S, H].

        segments: [B, S], of rows that share a prompt (see `SharedRows`).
        """
        kwargs = {self.cache_name: cache, "use_cache": cache is not None}
        masks = self.attention_mask(key_mask, ids.size(1), segments)
        out = self.module(input_ids=ids, attention_mask=masks, position_ids=positions, **kwargs)
        return out.last_hidden_state

    def attention_mask(
        self, key_mask: Tensor, queries: int, segments: Tensor | None = None
    ) -> Tensor | dict[str, Tensor]:
        """One mask [B, 1, queries, keys], or one for each kind of layer."""
        if "flash" in str(self.config._attn_implementation):
            return key_mask
        if segments is not None:  # the prompt and its own completion
            own = segments[:, None, :] == segments[:, :, None]
            seen = own | (segments == 0)[:, None, :]  # [B, queries, keys]
        else:
            seen = key_mask[:, None, :]
        window = getattr(self.config, "sliding_window", None)
        if "sliding_attention" in self.layers:
            return {
                kind: self._mask(seen, queries, window if kind.startswith("slid") else None)
                for kind in self.layers
            }
        uses_window = window is not None and not self.layers
        return self._mask(seen, queries, window if uses_window else None)

    def _mask(self, seen: Tensor, queries: int, window: int | None) -> Tensor:
        keys = torch.arange(seen.size(2), device=seen.device)
        query = keys[-queries:, None]  # [queries, 1]
        allowed = keys <= query
        if window is not None:
            allowed = allowed & (keys > query - window)
        # a padding query sees itself, since the softmax of nothing is NaN
        mask = (allowed & seen) | (keys == query)  # [B, queries, keys]
        mask = mask[:, None]
        if self.config._attn_implementation == "sdpa":
            return mask
        lowest = torch.finfo(torch.float32).min
        return torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, lowest)


class Policy(nn.Module):
    """A causal language model that scores, samples and computes its own loss.

    The root unit of a sharded run: everything that needs the weights happens inside `forward`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        head: str = "auto",
        tile_bytes: int | None = None,
        temperature: float = 1.0,
        amp_dtype: torch.dtype | None = None,
        with_values: bool = False,
        share_prefix: bool | str = "auto",
    ) -> None:
        """model: from `load_model`, perhaps with adapters. with_values: value head on the trunk.

        Raises ValueError for share_prefix=True on a model that reads shared rows wrongly.
        """
        super().__init__()
        self.model = model
        lm = causal_lm(model)
        check_logits(lm, "its log-probs would be wrong, so it cannot be trained")
        put_head_in(model, **logit_transform(lm.config.get_text_config()))
        for each in heads(model):
            each.mode, each.tile_bytes = head, tile_bytes
        self.backbone = Backbone(model)
        self.share_prefix = allowed(share_prefix, self.backbone)
        self.temperature = temperature
        self.amp_dtype = amp_dtype
        self.value_head = value_head(self.head.weight) if with_values else None

    @property
    def head(self) -> Head:
        """The module in lm_head's place, or inside the adapters that are there."""
        return active_head(self.model)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device

    def forward(
        self,
        rollout: Rollout,
        objective: Any = None,
        totals: Any = None,
        *,
        entropy: bool = True,
        entropy_threshold: Tensor | None = None,
    ) -> tuple[Any, ...]:
        """Scores a micro-batch, or computes its share of the loss.

        rollout: a micro-batch made by `Rollout.rows`, B rows and T completion tokens.
        Without objective returns (logp, entropy), both [B, T] float32, 0 on padding; with one
        (loss, sums). A policy with a value head appends values [B, T].
        """
        with autocast(self.device, self.amp_dtype):
            hidden = completion_states(self.backbone, rollout)  # [N, H]
            targets = rollout.completion_ids.flatten()[rollout.index]  # [N]
            head = {"temperature": self.temperature, "low_rank": low_rank(self.model, hidden)}
            if objective is None:
                scores = self.head(hidden, targets, entropy=entropy, **head)
                out = tuple(None if x is None else on_tokens(x, rollout) for x in scores)
            else:
                out = self.head(
                    hidden,
                    targets,
                    objective=objective,
                    entropy=entropy or objective.needs_entropy,
                    entropy_threshold=entropy_threshold,
                    index=rollout.index,
                    row_lengths=rollout.row_lengths,
                    mask=rollout.mask,
                    advantages=rollout.advantages,
                    logp_old=rollout.logp_old,
                    logp_ref=rollout.logp_ref,
                    totals=totals,
                    **head,
                )
            if self.value_head is not None:
                out = (*out, on_tokens(self.value_head(hidden).float().squeeze(1), rollout))
        return out

    def share(self, micro_batch: Rollout) -> Rollout:
        """The micro-batch with its plan of shared rows, if share_prefix has any.

        micro_batch: from `Rollout.rows`. On the host: call it before the step, not inside it.
        """
        if not self.share_prefix:
            return micro_batch
        batch = micro_batch
        shared = share_rows(
            batch.prompt_ids,
            batch.prompt_mask,
            batch.completion_ids,
            batch.mask,
            cost=partial(multiplications, self.backbone),
            always=self.share_prefix != "auto",
        )
        return batch.replace(shared=shared)

    def new_cache(self) -> Any:
        """An empty key-value cache for `decode`."""
        from transformers import DynamicCache

        # without the model's config: sliding layers too keep every key, the mask does the sliding
        return DynamicCache()

    def decode(self, ids: Tensor, key_mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """Logits of the next token, [B, V] float32; appends to the cache."""
        with autocast(self.device, self.amp_dtype):
            hidden = self.backbone(ids, key_mask, positions, cache)[:, -1]  # [B, H]
            added = low_rank(self.model, hidden)
        # the product that training takes too: half-precision operands, sums in float32
        hidden = hidden.to(self.amp_dtype or hidden.dtype)
        logits = project(hidden, self.head.weight.to(hidden.dtype)).float()
        if added is not None:
            logits = logits + project(added[0].to(hidden.dtype), added[1]).float()
        if self.head.bias is not None:
            logits = logits + self.head.bias
        logits = logits * self.head.logit_scale
        if (cap := self.head.logit_softcap) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def as_reference(self) -> AbstractContextManager[None]:
        """Inside, a policy with adapters is its own reference: the model as it was before."""
        return as_reference(self.model)

    def save(self, folder: str | Path, tokenizer: Any = None, weights: Any = None) -> None:
        """A plain Hugging Face folder (an adapter folder if the policy has adapters).

        weights: the model's state dict, where its own parameters hold only a part of each.
        """
        if hasattr(self.model, "disable_adapter"):
            save_adapters(self.model, folder, weights)
        else:
            self.model.save_pretrained(folder, state_dict=weights)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)


class ValueModel(nn.Module):
    """PPO's critic as a model of its own: values[b, t] judges the text before token t."""

    def __init__(self, model: nn.Module, amp_dtype: torch.dtype | None = None) -> None:
        """model: a causal language model, or a reward model whose score head is where the value
        head starts. It becomes this one's own (pass a copy)."""
        super().__init__()
        lm = causal_lm(model)
        score = getattr(lm, "score", None)
        self.model = lm.base_model
        self.value_head = value_head((score or lm.get_output_embeddings()).weight)
        if score is not None:
            self.value_head.weight = nn.Parameter(score.weight.detach().clone())
        self.backbone = Backbone(model)
        self.amp_dtype = amp_dtype

    def forward(self, rollout: Rollout) -> Tensor:
        """rollout: a micro-batch made by `Rollout.rows`. Returns values [B, T], 0 on padding."""
        with autocast(self.value_head.weight.device, self.amp_dtype):
            hidden = completion_states(self.backbone, rollout)
            return on_tokens(self.value_head(hidden).float().squeeze(1), rollout)


def completion_states(backbone: Backbone, rollout: Rollout) -> Tensor:
    """Hidden states from which each valid completion token was drawn, [N, H].

    The state that predicts token t sits one place to its left, so the last token is never fed.
    """
    if (shared := rollout.shared) is not None:
        ids, positions, segments, states = shared
        hidden = backbone(ids, segments >= 0, positions, segments=segments)  # [R, S, H]
        return hidden.flatten(0, 1).index_select(0, states)
    ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], 1)[:, :-1]
    key_mask = torch.cat([rollout.prompt_mask, rollout.mask], 1)[:, :-1]
    positions = (key_mask.cumsum(1) - 1).clamp(min=0)
    hidden = backbone(ids, key_mask, positions)[:, rollout.prompt_ids.size(1) - 1 :]  # [B, T, H]
    return hidden.flatten(0, 1).index_select(0, rollout.index)


def on_tokens(x: Tensor, rollout: Rollout) -> Tensor:
    """[N] of the valid tokens -> [B, T], 0 elsewhere."""
    # a copy, for what FSDP2's units return should be no view
    return into_rows(x, rollout.index, rollout.mask.shape).clone()


def value_head(weight: Tensor) -> nn.Linear:
    """hidden -> one number, starting at 0: the first advantages are then the rewards themselves."""
    linear = nn.Linear(weight.size(1), 1, device=weight.device)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def widen(model: nn.Module) -> None:
    """Makes weights that train float32: in half precision most of AdamW's small steps round away.

    The frozen base under adapters stays as small as it came.
    """
    if not hasattr(model, "disable_adapter"):
        model.float()
        return
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def frozen_copy(model: nn.Module) -> nn.Module:
    """The model as it is now, without gradients: the reference of a full fine-tuning run."""
    return copy.deepcopy(model).requires_grad_(False).eval()


def checkpoint_activations(model: nn.Module, frozen_base: bool) -> None:
    """Recompute activations in the backward pass. frozen_base: only adapters train.

    Raises ValueError if the model cannot.
    """
    if not model.supports_gradient_checkpointing:
        raise ValueError(f"gradient_checkpointing=True: {type(model).__name__} does not support it")
    # transformers 5.20 renamed it
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
    if frozen_base:
        # the first checkpointed layer must have an input that carries gradients
        model.enable_input_require_grads()


def autocast(device: torch.device, dtype: torch.dtype | None) -> Any:
    """Mixed precision for float32 weights; nothing at all if dtype is None."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)
