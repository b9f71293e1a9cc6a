"""What all three algorithms are told: one frozen dataclass, checked when it is made.

Field names and defaults are TRL's where they mean the same, so that a TRL config carries over by
changing the import. Sizes count completions, not prompts:

    per_device_train_batch_size * gradient_accumulation_steps    one optimiser step
    per_device_train_batch_size * steps_per_generation           one rollout

A *step* of rlkit (`max_steps`, `logging_steps`, a row of `history`) is one pass of the loop:
generate, score, advantages, updates, log. It holds num_iterations * steps_per_generation /
gradient_accumulation_steps optimiser steps: one, unless you reuse a batch as PPO does.
"""

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ABC):
    """Settings that PPO, RLOO and GRPO share."""

    # --- the run
    output_dir: str | None = None
    """Folder for log.csv, the trained model and checkpoints. None: the command line writes to
    runs/<algorithm>-<task>-<seed>, a trainer in Python writes nothing."""
    seed: int = 42
    """Keys the sampling noise, the order of the prompts and the initial adapters."""
    max_steps: int = 100
    """Passes of the loop: generate, score, advantages, updates, log."""
    num_threads: int | None = None
    """CPU threads of torch; None leaves them alone. For a tiny model one is the fastest."""

    # --- sizes, all in completions
    per_device_train_batch_size: int = 8
    """Completions in one forward and backward."""
    gradient_accumulation_steps: int = 1
    """Micro-batches of one optimiser step."""
    steps_per_generation: int | None = None
    """Micro-batches of one rollout; None: gradient_accumulation_steps, so one update a rollout."""
    num_iterations: int = 1
    """How often the updates go over each rollout (mu in the GRPO paper, PPO's epochs)."""
    num_generations: int = 8
    """Completions of each prompt, G."""

    # --- generation
    max_completion_length: int = 512
    """Tokens after which a completion is cut off."""
    temperature: float = 1.0
    """Of sampling, and of the log-probs that are trained: the policy is the one that sampled."""
    top_k: int = 0
    """Draw among the k likeliest tokens; 0: among all. Log-probs stay those of all tokens."""
    top_p: float = 1.0
    """Draw among the likeliest tokens of this total probability. Log-probs stay those of all."""
    max_generation_batch: int | None = None
    """Completions drawn at once; None: the whole rollout. Changes memory, and no completion."""
    mask_truncated_completions: bool = False
    """Leave completions without an EOS out of the loss (DAPO's overlong filtering)."""

    # --- reward
    reward_weights: tuple[float, ...] | None = None
    """Weight of each reward function; None: all 1."""
    beta: float = 0.0
    """Weight of the KL divergence from the reference model; 0 needs no reference."""
    epsilon: float = 0.2
    """Clip of the probability ratio, below 1."""
    epsilon_high: float | None = None
    """Clip above 1; None: the same as epsilon."""

    # --- optimiser
    learning_rate: float = 1e-6
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

    # --- memory
    head: Literal["auto", "full", "chunked", "fused"] = "auto"
    """How logits become a loss: all at once; tile by tile, each made again in the backward pass;
    tile by tile with its gradient at once; auto: what fits tile_bytes, then what is fastest."""
    tile_bytes: int | None = None
    """Memory for one tile of logits; None: 64 MiB."""
    share_prefix: bool | Literal["auto"] = "auto"
    """Read a prompt once for several of its completions when they are scored and trained on; auto:
    where that takes fewer multiplications, and the model's attention allows it."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    bf16: bool = False
    """Autocast to bfloat16; weights that train stay float32."""
    fp16: bool = False
    """Autocast to float16 with loss scaling, for cards without bfloat16."""

    # --- several processes, which torchrun starts; sizes above are of each
    distributed: Literal["fsdp", "ddp"] = "fsdp"
    """fsdp: each rank holds a part of every weight. ddp: each holds all, for models that fit."""
    reshard_after_forward: bool = True
    """fsdp: free a layer's weights after its forward pass and gather them again for the backward
    pass; False: keep them in between, faster and larger."""
    ddp_timeout: int = 1800
    """Seconds after which a rank that waits for the others gives up."""

    # --- evaluation and logging
    eval_steps: int | None = None
    """Greedy accuracy on eval_dataset every so many steps; None: only when you ask."""
    per_device_eval_batch_size: int = 256
    """Completions generated at once in evaluation."""
    save_steps: int | None = None
    """A checkpoint in output_dir every so many steps; None: none."""
    save_total_limit: int = 2
    """How many checkpoints are kept, the newest ones."""
    logging_steps: int = 1
    """Steps between two rows of log.csv and of the progress line."""
    disable_tqdm: bool = False
    """No progress bar and no printed warnings; `history` and log.csv hold them all the same."""
    num_completions_to_print: int = 0
    """Completions shown with each log line."""

    name: ClassVar[str] = "train"
    group_of_one: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self)
        self.objective()  # whose settings are checked where they are used

    @abstractmethod
    def objective(self) -> Any:
        """What is minimised: an objective of rlkit.objectives with these settings."""

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one rollout, on one device."""
        return self.steps_per_generation or self.gradient_accumulation_steps

    @property
    def generation_batch_size(self) -> int:
        """Completions of one rollout, on one device."""
        return self.per_device_train_batch_size * self.micro_batches

    @property
    def updates_per_step(self) -> int:
        """Optimiser steps that one rollout is used for."""
        per_iteration = self.micro_batches // self.gradient_accumulation_steps
        return per_iteration * self.num_iterations

    @classmethod
    def preset(cls, name: str, task: str = "sums", **overrides: Any) -> Self:
        """A tested setting: tiny, cpu-real, t4 or h100, with any field changed.

        task: "sums", "steps" or "gsm8k", which some presets treat differently.
        Raises ValueError for an unknown name, TypeError for an unknown field.
        """
        if name not in PRESETS:
            raise ValueError(unknown("preset", name, PRESETS))
        settings = dict(PRESETS[name])
        for key in ((name, task), (name, task, cls.name)):
            settings |= ADJUSTED.get(key, {})
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in settings.items() if k in known} | overrides)


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": dict(
        max_steps=60,
        num_threads=1,
        per_device_train_batch_size=512,
        num_generations=8,
        max_completion_length=8,
        beta=0.0,
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        warmup_steps=3,
        eval_steps=5,
    ),
    "cpu-real": dict(
        max_steps=5,
        num_threads=1,
        beta=0.0,
        gradient_checkpointing=True,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_generations=4,
        max_completion_length=96,
        learning_rate=1e-6,
        per_device_eval_batch_size=16,
    ),
    "t4": dict(
        max_steps=100,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=16,
        num_generations=8,
        max_completion_length=256,
        learning_rate=1e-5,
        fp16=True,
        gradient_checkpointing=True,
        per_device_eval_batch_size=32,
    ),
    "h100": dict(
        max_steps=60,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=48,
        num_generations=8,
        max_completion_length=512,
        learning_rate=2e-6,
        bf16=True,
        per_device_eval_batch_size=256,
    ),
}
"""Settings by preset, for every algorithm that has the field."""

# strict answers count; lenient ones are only logged; where no answer is strict at first, the form
# of one is worth something
STRICT, STRICT_AND_FORM = (1.0, 0.0, 0.0), (1.0, 0.0, 0.5)
TINY_PPO = dict(
    num_generations=1, num_iterations=2, per_device_train_batch_size=256, steps_per_generation=2
)
ADJUSTED: dict[tuple[str, ...], dict[str, Any]] = {
    ("cpu-real", "gsm8k"): dict(reward_weights=STRICT_AND_FORM),
    ("t4", "gsm8k"): dict(reward_weights=STRICT),
    ("h100", "gsm8k"): dict(reward_weights=STRICT),
    ("tiny", "steps"): dict(max_completion_length=40, max_steps=40),
    ("tiny", "sums", "ppo"): TINY_PPO | dict(max_steps=20),
    ("tiny", "steps", "ppo"): TINY_PPO | dict(max_steps=15),
}
"""What a task, or an algorithm on a task, sets otherwise; the later key wins."""


def unknown(field: str, value: Any, known: Iterable[str]) -> str:
    """The sentence for a value outside a list, with the nearest one in it."""
    known = sorted(map(str, known))
    near = difflib.get_close_matches(str(value), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{field}={value!r} is unknown; {hint}Choose one of: {', '.join(known)}"


def check(args: TrainConfig) -> None:
    """Raises ValueError with one sentence that names the field, its value and the remedy."""
    for field in (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_iterations",
        "num_generations",
        "max_completion_length",
        "per_device_eval_batch_size",
        "logging_steps",
        "save_total_limit",
        "ddp_timeout",
    ):
        at_least(args, field, 1)
    for field in ("max_steps", "warmup_steps", "top_k", "num_completions_to_print", "seed"):
        at_least(args, field, 0)
    for field in POSITIVE_OR_NONE:
        if getattr(args, field) is not None:
            at_least(args, field, 1)
    for field in NOT_NEGATIVE:
        if getattr(args, field) is not None:
            at_least(args, field, 0, whole=False)
    at_least(args, "temperature", 0, whole=False)
    if args.temperature == 0:
        raise ValueError(
            f"temperature={args.temperature} must be above 0; 1.0 samples from the model as it is "
            "(evaluation is greedy without it)"
        )
    if not 0 < args.top_p <= 1:
        raise ValueError(f"top_p={args.top_p} must lie in (0, 1]; 1.0 keeps every token")
    for field, known in (
        ("lr_scheduler_type", ("constant", "linear", "cosine")),
        ("head", ("auto", "full", "chunked", "fused")),
        ("distributed", ("fsdp", "ddp")),
        ("share_prefix", ("auto", True, False)),
    ):
        if getattr(args, field) not in known:
            raise ValueError(unknown(field, getattr(args, field), known))
    if args.save_steps and args.output_dir is None:
        raise ValueError(f"save_steps={args.save_steps} needs output_dir, the folder to save in")
    if args.bf16 and args.fp16:
        raise ValueError(
            "bf16=True and fp16=True exclude each other; keep bf16 where the GPU has it"
        )
    check_sizes(args)


POSITIVE_OR_NONE = (
    "steps_per_generation",
    "num_threads",
    "max_generation_batch",
    "tile_bytes",
    "eval_steps",
    "save_steps",
)
NOT_NEGATIVE = (
    "learning_rate",
    "beta",
    "epsilon",
    "epsilon_high",
    "max_grad_norm",
    "weight_decay",
    "adam_epsilon",
)


def at_least(args: TrainConfig, field: str, low: float, whole: bool = True) -> None:
    """A field that must be a finite number >= low; whole: an integer."""
    value = getattr(args, field)
    good = isinstance(value, int | float) and not isinstance(value, bool) and value >= low
    if not good or not math.isfinite(value):
        raise ValueError(f"{field}={value!r} must be a number of at least {low}")
    if whole and not isinstance(value, int):
        raise ValueError(f"{field}={value!r} must be a whole number")


def check_sizes(args: TrainConfig) -> None:
    """Groups, micro-batches and rollouts must divide into each other."""
    per_update, per_rollout = args.gradient_accumulation_steps, args.micro_batches
    if per_rollout % per_update:
        fits = per_update * (per_rollout // per_update + 1)
        raise ValueError(
            f"steps_per_generation={per_rollout} is not a multiple of "
            f"gradient_accumulation_steps={per_update}; use {fits}"
        )
    if args.num_generations < 2 and not args.group_of_one:
        raise ValueError(
            f"num_generations={args.num_generations}: {args.name} compares each completion with "
            "the others of its prompt; use at least 2"
        )
    batch, group = args.generation_batch_size, args.num_generations
    if batch % group:
        fits = max(batch - batch % group, group)
        raise ValueError(
            f"a rollout of {batch} completions (per_device_train_batch_size="
            f"{args.per_device_train_batch_size} x {per_rollout} micro-batches) is not a "
            f"multiple of num_generations={group}; use {fits}"
        )
