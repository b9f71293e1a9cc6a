"""Reward models: one number for a prompt with its completion, learned from preference pairs.

    P(chosen is preferred) = sigmoid(s_chosen - s_rejected)                Bradley and Terry 1952
    loss = -mean log sigmoid(s_chosen - s_rejected - margin) + c mean (s_chosen + s_rejected)^2

The model is transformers' own AutoModelForSequenceClassification with one label: a language model's
trunk and a linear score. The score is read at the last valid token, which the mask tells.
(transformers looks for the last token that is not padding, and misses the EOS where both are one.)
Scores are float32 and do not depend on the padding or on what else is in the batch.

Left out on purpose: encoders with a pooler, scores of single steps, several processes in training.
Ouyang et al. 2022, arXiv:2203.02155; margin: Touvron et al. 2023, arXiv:2307.09288, section 3.2.2;
centring (c): Eisenstein et al. 2023, arXiv:2312.09244, equation 2.

    trainer = RewardModelTrainer("adder", RewardConfig(), load_preferences("train"))
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlkit.config import at_least, unknown
from rlkit.optim import Optimizer
from rlkit.policy import Backbone, autocast, causal_lm, load_pretrained, load_tokenizer
from rlkit.prompts import check_tokenizer, encode, pad_left, shuffled


class RewardModel(nn.Module):
    """A sequence classification model with one label, as the function [B, S] -> [B] that it is."""

    def __init__(self, model: nn.Module, amp_dtype: torch.dtype | None = None) -> None:
        """Raises TypeError for a model without a score head of one label."""
        super().__init__()
        check_head(model)
        self.model, self.amp_dtype = model, amp_dtype
        self.backbone = Backbone(model)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return causal_lm(self.model).score.weight.device

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Scores [B] float32 of ids [B, S], padded on either side; mask [B, S] bool.

        A row without a single valid token gets a number that means nothing.
        """
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        with autocast(self.device, self.amp_dtype):
            hidden = self.backbone(ids, mask, positions)  # [B, S, H]
        rows = torch.arange(len(ids), device=ids.device)
        last = hidden[rows, last_valid(mask)].float()  # [B, H]
        return F.linear(last, causal_lm(self.model).score.weight.float()).squeeze(1)


def check_head(model: nn.Module) -> None:
    """Raises TypeError unless the model ends in a linear `score` of one label."""
    kind, head = type(model).__name__, getattr(causal_lm(model), "score", None)
    if not isinstance(head, nn.Linear):
        raise TypeError(
            f"a {kind} gives no score; give a decoder of AutoModelForSequenceClassification with "
            "num_labels=1"
        )
    if head.out_features != 1:
        raise TypeError(f"a {kind} with {head.out_features} labels is no reward model; it needs 1")


def last_valid(mask: Tensor) -> Tensor:
    """[B, S] bool -> [B], the place of each row's last True."""
    return mask.size(1) - 1 - mask.flip(1).long().argmax(1)


def load_reward_model(name: str | Path, seed: int | None = None) -> nn.Module:
    """A reward model in float32 from a folder or hub id (safetensors only).

    seed: of a fresh score head on what is only a language model; None: that is refused, for a
    random head would be a reward of nothing.
    Raises FileNotFoundError if there is no such model, ValueError if it has no score head.
    """
    from transformers import AutoModelForSequenceClassification

    options = {"dtype": torch.float32, "use_safetensors": True, "output_loading_info": True}
    if seed is not None:
        options["num_labels"] = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed or 0)
        model, info = load_pretrained(AutoModelForSequenceClassification, name, options)
    if seed is None and any("score" in key for key in info["missing_keys"]):
        raise ValueError(
            f"{str(name)!r} is a language model without a score head; train it on preference pairs "
            "first (RewardModelTrainer)"
        )
    return model


# --- the loss


def preference_loss(
    chosen: Tensor,
    rejected: Tensor,
    margin: Tensor | None = None,
    center_rewards_coefficient: float | None = None,
) -> Tensor:
    """Mean loss of pairs with scores chosen, rejected: [B].

    margin: [B], by how much more a pair must be told apart than not at all; None: 0.
    center_rewards_coefficient: c above, which keeps scores near 0; they are only differences else.
    """
    gap = chosen - rejected if margin is None else chosen - rejected - margin
    loss = -F.logsigmoid(gap).mean()
    if center_rewards_coefficient:
        loss = loss + center_rewards_coefficient * (chosen + rejected).square().mean()
    return loss


# --- training


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """Settings of reward model training; names are TRL's where they mean the same."""

    output_dir: str | None = None
    """Folder for the trained model; None: none is written."""
    seed: int = 42
    """Keys the order of the pairs and a fresh score head."""
    num_train_epochs: int = 3
    """Passes over the pairs."""
    max_steps: int = -1
    """Optimiser steps; -1: as many as num_train_epochs takes."""
    per_device_train_batch_size: int = 8
    """Pairs in one forward and backward."""
    gradient_accumulation_steps: int = 1
    """Such batches in one optimiser step."""
    per_device_eval_batch_size: int = 256
    """Pairs scored at once in evaluation."""
    max_length: int | None = 1024
    """Tokens of a prompt with its completion, after which it is cut off; None: never."""
    center_rewards_coefficient: float | None = None
    """Weight of the squared sum of a pair's scores, which keeps them near 0."""
    learning_rate: float = 1e-4
    """Peak learning rate of AdamW."""
    adam_beta1: float = 0.9
    """Decay of AdamW's mean of gradients."""
    adam_beta2: float = 0.999
    """Decay of AdamW's mean of squared gradients."""
    adam_epsilon: float = 1e-8
    """Added to AdamW's denominator."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay, on matrices only."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm; 0: never."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "linear"
    """What the learning rate does after the warm-up: stay, or fall to 0."""
    warmup_steps: int = 0
    """Steps in which the learning rate rises from 0."""
    bf16: bool = False
    """Autocast to bfloat16; weights stay float32."""

    fp16: ClassVar[bool] = False
    updates_per_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for field in WHOLE:
            at_least(self, field, 1)
        for field in ("learning_rate", "max_grad_norm", "weight_decay", "adam_epsilon"):
            at_least(self, field, 0, whole=False)
        at_least(self, "warmup_steps", 0)
        at_least(self, "max_steps", -1)
        if self.max_length is not None:
            at_least(self, "max_length", 1)
        if self.center_rewards_coefficient is not None:
            at_least(self, "center_rewards_coefficient", 0, whole=False)
        known = ("constant", "linear", "cosine")
        if self.lr_scheduler_type not in known:
            raise ValueError(unknown("lr_scheduler_type", self.lr_scheduler_type, known))


WHOLE = (
    "num_train_epochs",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "per_device_eval_batch_size",
)


@dataclass(frozen=True)
class Pairs:
    """Preference pairs as token ids."""

    chosen: list[list[int]]
    rejected: list[list[int]]
    margin: list[float] | None

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(
        self, rows: Sequence[int], pad_id: int, device: torch.device
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """ids, mask [2 * rows, S]: all chosen ones, then all rejected ones; margin [rows]."""
        texts = [side[i] for side in (self.chosen, self.rejected) for i in rows]
        margin = None
        if self.margin is not None:
            margin = torch.tensor([self.margin[i] for i in rows], device=device)
        return *pad_left(texts, pad_id, device), margin


class RewardModelTrainer:
    """Trains a reward model on pairs of which one is preferred."""

    def __init__(
        self,
        model: str | Path | nn.Module,
        args: RewardConfig,
        train_dataset: Sequence[dict[str, Any]],
        eval_dataset: Sequence[dict[str, Any]] | None = None,
        processing_class: Any = None,
    ) -> None:
        """model: a built-in name, a folder or hub id of a language or reward model, or a reward
            model with its tokenizer in processing_class.
        train_dataset, eval_dataset: rows with `chosen` and `rejected`, texts or messages, and
            perhaps a `prompt` before both and a `margin`.
        Raises ValueError, TypeError or FileNotFoundError, in one sentence, before any work starts.
        """
        if not isinstance(args, RewardConfig):
            kind = type(args).__name__
            raise TypeError(f"args is of type {kind}; RewardModelTrainer needs a RewardConfig")
        self.args = args
        if isinstance(model, nn.Module):
            if processing_class is None:
                raise ValueError("processing_class is missing: a model object needs its tokenizer")
        else:
            processing_class = processing_class or load_tokenizer(model)
            model = load_reward_model(model, args.seed)
        self.tokenizer = processing_class
        check_tokenizer(self.tokenizer, model.config.get_text_config().vocab_size)
        if model.config.pad_token_id is None:
            model.config.pad_token_id = self.tokenizer.pad_token_id  # transformers' forward asks
        self.train_pairs = self.read(train_dataset, "train_dataset")
        self.eval_pairs = None if eval_dataset is None else self.read(eval_dataset, "eval_dataset")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        amp_dtype = torch.bfloat16 if args.bf16 else None
        self.reward_model = RewardModel(model.float().to(device), amp_dtype)
        self.steps = args.max_steps if args.max_steps >= 0 else self._epochs()
        self.optimizer = Optimizer([self.reward_model], args, self.steps)
        self.history: list[dict[str, float]] = []

    @property
    def model(self) -> nn.Module:
        """The transformers model, for `reward_funcs`."""
        return self.reward_model.model

    def _epochs(self) -> int:
        return -(-len(self.train_pairs) // self._pairs_per_step) * self.args.num_train_epochs

    @property
    def _pairs_per_step(self) -> int:
        return self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps

    def read(self, dataset: Sequence[dict[str, Any]], field: str) -> Pairs:
        """Token ids of every pair. Raises ValueError for a row that teaches nothing."""
        if not len(dataset):
            raise ValueError(f"{field} is empty; give it rows with 'chosen' and 'rejected'")
        sides: dict[str, list[list[int]]] = {"chosen": [], "rejected": []}
        rows = [dataset[i] for i in range(len(dataset))]
        for i, row in enumerate(rows):
            for name, ids in sides.items():
                if name not in row:
                    raise ValueError(f"row {i} of {field} has no {name!r}; rename a column to it")
                tokens = tokens_of(row.get("prompt", ""), row[name], self.tokenizer)
                ids.append(tokens[: self.args.max_length])
            check_pair(sides["chosen"][-1], sides["rejected"][-1], i, field, self.args.max_length)
        margins = [float(row["margin"]) for row in rows] if "margin" in rows[0] else None
        return Pairs(**sides, margin=margins)

    def scores(self, pairs: Pairs, rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Scores of the chosen and of the rejected, [rows] each, and their margins."""
        pad, device = self.tokenizer.pad_token_id, self.reward_model.device
        ids, mask, margin = pairs.batch(rows, pad, device)
        return *self.reward_model(ids, mask).chunk(2), margin

    def train(self) -> list[dict[str, float]]:
        """All steps; returns `history`: loss, accuracy and mean gap of each step's own pairs."""
        self.reward_model.eval()  # without dropout, as in TRL
        while len(self.history) < self.steps:
            self.history.append(self.step(len(self.history)))
        if self.args.output_dir is not None:
            self.save(self.args.output_dir)
        return self.history

    def step(self, step: int) -> dict[str, float]:
        """One optimiser step. Raises FloatingPointError, the weights untouched, if not finite."""
        start, size = time.perf_counter(), self.args.per_device_train_batch_size
        rows = self.pick(step)
        micro = [rows[i : i + size] for i in range(0, len(rows), size)]
        result = self.optimizer.step(micro, lambda part: self.loss(part, len(rows)))
        if not bool(result["finite"]):
            raise FloatingPointError(
                f"step {step + 1}: the loss or its gradient is not finite; lower learning_rate="
                f"{self.args.learning_rate}"
            )
        means = {name: float(x / n) for name, (x, n) in result["sums"].items()}
        return {
            "step": step + 1,
            "loss": float(result["loss"]),
            **means,
            "grad_norm": float(result["grad_norm"]),
            "lr": result["lr"],
            "seconds": time.perf_counter() - start,
        }

    def pick(self, step: int) -> list[int]:
        """The pairs of one step; the last of an epoch may be fewer."""
        size = self._pairs_per_step
        epoch, part = divmod(step, -(-len(self.train_pairs) // size))
        order = shuffled(len(self.train_pairs), epoch, self.args.seed)
        return order[part * size : (part + 1) * size]

    def loss(self, rows: list[int], total: int) -> tuple[Tensor, dict]:
        """A micro-batch's share of the loss of `total` pairs, and its sums for the log."""
        chosen, rejected, margin = self.scores(self.train_pairs, rows)
        coefficient = self.args.center_rewards_coefficient
        loss = preference_loss(chosen, rejected, margin, coefficient) * len(rows) / total
        gap, count = (chosen - rejected).detach(), torch.tensor(len(rows))
        return loss, {"accuracy": ((gap > 0).sum(), count), "gap": (gap.sum(), count)}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Over eval_dataset: `accuracy`, the share of pairs in order (a tie is not), and `loss`."""
        if self.eval_pairs is None:
            raise ValueError("eval_dataset is missing: there is nothing to evaluate on")
        self.reward_model.eval()
        size, every = self.args.per_device_eval_batch_size, range(len(self.eval_pairs))
        parts = [self.scores(self.eval_pairs, every[i : i + size]) for i in every[::size]]
        chosen, rejected = (torch.cat(side) for side in list(zip(*parts, strict=True))[:2])
        return {
            "accuracy": float((chosen > rejected).float().mean()),
            "loss": float(preference_loss(chosen, rejected)),
        }

    def save(self, folder: str | Path) -> None:
        """A Hugging Face folder that AutoModelForSequenceClassification loads."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def tokens_of(prompt: Any, completion: Any, tokenizer: Any, ended: bool = True) -> list[int]:
    """Token ids of a prompt and its completion, texts or messages, with the EOS if it has ended."""
    if isinstance(completion, str):
        ids = encode(prompt, tokenizer) if prompt else []
        ids = ids + tokenizer(completion, add_special_tokens=False)["input_ids"]
    else:
        messages = [*(prompt or []), *completion]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if ended and ids[-1:] != [tokenizer.eos_token_id]:
        ids = [*ids, tokenizer.eos_token_id]
    return ids


def check_pair(
    chosen: list[int], rejected: list[int], row: int, field: str, max_length: int | None
) -> None:
    """Raises ValueError if the two are the same tokens."""
    if chosen != rejected:
        return
    if len(chosen) == max_length:
        raise ValueError(
            f"row {row} of {field}: chosen and rejected are the same after max_length={max_length} "
            "cut them off; raise max_length or drop the row"
        )
    raise ValueError(f"row {row} of {field}: chosen and rejected are the same; drop the row")
