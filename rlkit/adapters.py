"""LoRA by PEFT: adapters on any layer and on the output head, their reference, their merging.

    W' = W + scaling * B A        A [r, H], B [V, r] trained, W [V, H] frozen

PEFT's layers stay in place, with their names, so that a folder of adapters is PEFT's own. On the
output head rlkit's Head takes the place of the linear layer *inside* them, and W' is never made:

    logits = h W^T + u B^T        u = scaling * dropout(h) A^T, [N, r]

The reference of a run with fresh adapters is the model with its adapters off. Adapters that were
trained before have a frozen twin each, so that one copy of W is enough.
Left out on purpose: variants of LoRA on the head (DoRA and others), which do not split this way.
LoRA: Hu et al. 2021, arXiv:2106.09685; rsLoRA's scaling: Kalajdzievski 2023, arXiv:2312.03732.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from rlkit.head import Head
from rlkit.optional import require

REFERENCE = "-reference"
"""Ends the name of an adapter's frozen twin."""

CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq")
"""Values of init_lora_weights that take from W what they put into B A."""


def causal_lm(model: nn.Module) -> nn.Module:
    """The transformers model inside a PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def add_adapters(model: nn.Module, peft_config: Any) -> nn.Module:
    """The model with fresh adapters (LoRA by `peft_config`); its own weights are frozen.

    Raises ValueError for adapters that rlkit's forward would pass by, ImportError without peft.
    """
    peft = require("peft", "peft_config")
    if hasattr(model, "get_base_model"):
        raise ValueError(
            "the model has adapters already: train them on without peft_config (--lora-rank 0), or "
            "merge them first (rlkit merge)"
        )
    if getattr(peft_config, "is_prompt_learning", False):
        raise ValueError(
            f"peft_config={type(peft_config).__name__} adds virtual tokens, which rlkit's forward "
            "would pass by; use LoraConfig"
        )
    take_head_out(model)  # an earlier Policy's, which PEFT would not know
    wrapped = peft.get_peft_model(model, peft_config)
    check_head(wrapped)
    return wrapped


# ---- on the output head ---------------------------------------------------------------------


def put_head_in(model: nn.Module, **options: Any) -> None:
    """Puts a Head around the output head's Parameters, inside the adapters if it has some.

    options: for the Head. Raises ValueError for output heads that it cannot stand for.
    """
    check_head(model)
    _replace_linears(model, lambda x: Head.from_linear(x, **options) if type(x) is not Head else x)


def take_head_out(model: nn.Module) -> None:
    """Undoes put_head_in: plain linear layers with the same Parameters."""
    _replace_linears(model, lambda x: _as_linear(x) if isinstance(x, Head) else x)


def _as_linear(head: Head) -> nn.Linear:
    vocabulary, width = head.weight.shape
    linear = nn.Linear(width, vocabulary, head.bias is not None, device="meta")
    linear.weight, linear.bias = head.weight, head.bias
    return linear


def _replace_linears(model: nn.Module, change: Any) -> None:
    """Changes the layer, or the layers, that hold the output head's weight."""
    lm = causal_lm(model)
    layer = lm.get_output_embeddings()
    if hasattr(layer, "lora_A"):
        layer.base_layer = change(layer.base_layer)
    elif hasattr(layer, "modules_to_save"):
        layer.original_module = change(layer.original_module)
        for name, own in layer.modules_to_save.items():
            layer.modules_to_save[name] = change(own)
    else:
        lm.set_output_embeddings(change(layer))


def heads(model: nn.Module) -> list[Head]:
    """All Heads of a model: more than one where an adapter trains a copy of lm_head."""
    layer = causal_lm(model).get_output_embeddings()
    return [module for module in layer.modules() if isinstance(module, Head)]


def active_head(model: nn.Module) -> Head:
    """The Head whose weight makes the logits now."""
    layer = causal_lm(model).get_output_embeddings()
    if not hasattr(layer, "modules_to_save"):
        return getattr(layer, "base_layer", layer)
    names = [] if layer.disable_adapters else layer.active_adapters
    # as PEFT: the first one counts, and one without a copy of lm_head is none
    return layer.modules_to_save[names[0]] if names else layer.original_module


def low_rank(model: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor] | None:
    """What LoRA adds to the logits of hidden [N, H], as (u [N, r], B [V, r]); None: nothing.

    Several active adapters are one of the sum of their ranks.
    """
    layer = causal_lm(model).get_output_embeddings()
    if not hasattr(layer, "lora_A") or layer.disable_adapters:
        return None
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    if not names:
        return None
    lefts = []
    for name in names:
        down = layer.lora_A[name]
        x = layer.lora_dropout[name](hidden.to(down.weight.dtype))
        lefts.append(layer.scaling[name] * down(x))
    rights = [layer.lora_B[name].weight for name in names]
    return (torch.cat(lefts, 1), torch.cat(rights, 1)) if names[1:] else (lefts[0], rights[0])


def check_head(model: nn.Module) -> None:
    """Raises ValueError for output heads and adapters on them that rlkit's Head cannot stand for.

    Good are a plain nn.Linear, LoRA on one, and modules_to_save with lm_head.
    """
    layer = causal_lm(model).get_output_embeddings()
    kind = type(layer)
    if kind in (nn.Linear, Head):
        return
    remedy = "leave lm_head out of target_modules and modules_to_save"
    if not hasattr(layer, "active_adapters"):
        raise ValueError(
            f"the output head is a {kind.__name__} where rlkit's head takes the place of a plain "
            "nn.Linear; load the model without quantization"
        )
    configs = model.peft_config.values() if hasattr(model, "peft_config") else []
    if any(getattr(config, "ensure_weight_tying", False) for config in configs):
        raise ValueError(
            "ensure_weight_tying=True shares the adapter of the embeddings with the output head, "
            f"which rlkit's head does not know; set it to False, or {remedy}"
        )
    lora = require("peft.tuners.lora", "the model's adapters")
    if kind is not lora.Linear and kind is not require("peft.utils", "LoRA").ModulesToSaveWrapper:
        raise ValueError(
            f"the adapter on the output head is a {kind.__module__}.{kind.__name__}; rlkit's head "
            f"knows plain LoRA there: {remedy}"
        )
    if getattr(layer, "lora_variant", None) or any(getattr(layer, "lora_bias", {}).values()):
        raise ValueError(
            "the adapter on the output head is a variant of LoRA (DoRA, lora_bias or another), and "
            f"rlkit's head knows plain LoRA there: {remedy}"
        )
    if getattr(layer, "merged", False):
        raise ValueError("the adapters are merged into the model; call its unmerge_adapter() first")


# ---- the reference --------------------------------------------------------------------------


def check_trains(model: nn.Module) -> None:
    """Raises ValueError where the adapters that a model came with are frozen."""
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(
            "the model's adapters are frozen; load them with is_trainable=True, as load_model does"
        )


def keep_reference(model: nn.Module) -> None:
    """Makes `as_reference` mean the model as it is now: a frozen copy of the adapters alone.

    Where there is none (fresh adapters) it means the model with its adapters off.
    Raises ValueError for adapters that PEFT cannot have twice.
    """
    peft = require("peft", "adapters")
    names = list(model.active_adapters)
    for name in names:
        config = copy.deepcopy(model.peft_config[name])
        check_bias(config)
        if hasattr(config, "init_lora_weights"):
            config.init_lora_weights = False  # some ways to start change the base
        twin = name + REFERENCE
        if twin in model.peft_config:  # an earlier run's
            model.delete_adapter(twin)
        with torch.random.fork_rng(devices=[]):
            model.add_adapter(twin, config)
        state = peft.get_peft_model_state_dict(
            model, adapter_name=name, save_embedding_layers=False
        )
        peft.set_peft_model_state_dict(model, state, adapter_name=twin)
    model.base_model.set_adapter(names)


def check_bias(peft_config: Any) -> None:
    """Raises ValueError where adapters train the model's own biases, which none can switch off."""
    if getattr(peft_config, "bias", "none") != "none":
        raise ValueError(
            f"bias={peft_config.bias!r} trains biases of the model itself, so that no reference "
            "is left to measure the KL divergence from; use bias='none', or beta=0"
        )


def changes_base(peft_config: Any) -> bool:
    """Whether fresh adapters start by changing the model, which is then no longer itself."""
    return str(getattr(peft_config, "init_lora_weights", "")).startswith(CHANGE_THE_BASE)


@contextmanager
def as_reference(model: nn.Module) -> Iterator[None]:
    """Inside, the model is what it was before this run. What trains stays what trains."""
    twins = [name for name in model.peft_config if name.endswith(REFERENCE)]
    names = list(model.active_adapters)
    # PEFT lets the adapters in use train, and freezes the others; DDP, which looks at its first
    # forward pass which weights train, would sum the gradients of the wrong ones
    trains = [(p, p.requires_grad) for p in model.parameters()]
    try:
        with nullcontext() if twins else model.disable_adapter():
            if twins:
                model.base_model.set_adapter(twins)
            restore(trains)
            yield
    finally:
        if twins:
            model.base_model.set_adapter(names)
        restore(trains)


def restore(trains: list[tuple[nn.Parameter, bool]]) -> None:
    """Sets which parameters train."""
    for parameter, wanted in trains:
        parameter.requires_grad_(wanted)


# ---- files ----------------------------------------------------------------------------------


def save_adapters(model: nn.Module, folder: Any, weights: Any = None) -> None:
    """The adapters as PEFT's own folder, without their references."""
    names = [name for name in model.peft_config if not name.endswith(REFERENCE)]
    # PEFT would add the frozen weight of an adapted lm_head, which belongs to the model
    adapted = hasattr(causal_lm(model).get_output_embeddings(), "lora_A")
    options = {"save_embedding_layers": False} if adapted else {}
    model.save_pretrained(folder, state_dict=weights, selected_adapters=names, **options)


def merge_adapters(model: nn.Module) -> nn.Module:
    """The plain transformers model that computes the same: its weights are W + scaling * B A.

    model: with adapters (PEFT), which are used up. Tied embeddings come apart if one is adapted.
    Raises ValueError if there are no adapters.
    """
    if not hasattr(model, "merge_and_unload"):
        raise ValueError("the model has no adapters to merge: it is a plain one already")
    take_head_out(model)
    lm = causal_lm(model)
    ends = lm.get_output_embeddings(), lm.get_input_embeddings()
    out, embedding = (getattr(end, "base_layer", end) for end in ends)
    if any(hasattr(end, "base_layer") for end in ends) and out.weight is embedding.weight:
        # the sum would reach the other one as well
        out.weight = nn.Parameter(out.weight.detach().clone(), out.weight.requires_grad)
        lm.config.tie_word_embeddings = False
    return model.merge_and_unload()
