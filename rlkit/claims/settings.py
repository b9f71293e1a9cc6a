"""What is planned for each claim: the settings of the sources, as they were.

Chunked loss: "Liger GRPO meets TRL", 2025. RLOO: "Putting RL back in RLHF with RLOO", 2024, and
TRL's scripts for TL;DR. What the sources leave open is said where it is chosen.
"""

from dataclasses import dataclass, field
from typing import Any

GSM8K = dict(
    prompt_length=512,
    max_completion_length=256,
    num_generations=8,
    share_prefix=False,
)
"""Prompts to 512 and completions to 256 tokens, G = 8; each completion reads its prompt itself."""

BATCHES = (1, 2, 4, 8, 16, 32, 64)
"""Per-device batches, doubling from 1."""

REGIMES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "float32": (dict(dtype="float32"), BATCHES),
    "bf16": (dict(dtype="bf16"), BATCHES),
    "pure_bf16": (dict(dtype="pure_bf16"), (8, 64)),
    "bf16, checkpointing": (dict(dtype="bf16", gradient_checkpointing=True), (8, 64)),
}
"""Name -> what is set, and the batches. The source says fp32 and bf16: whether its bf16 was
autocast or of the weights too, and whether activations were recomputed, it leaves open."""

HEADS = {"full": "full", "chunked": "auto"}
"""All logits at once, or rlkit's tiles of 64 MiB."""

QWEN = ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B")
CARD = "h100"
SHARED = GSM8K | dict(dtype="bf16", frozen_dtype="bf16", lora_rank=16, fsdp=8)
"""LoRA and FSDP; the source names neither the rank nor the number of GPUs."""

TLDR = dict(
    per_device_train_batch_size=16,
    prompt_length=512,
    max_completion_length=53,
    num_iterations=4,
    dtype="bf16",
    head="full",
    share_prefix=False,
    fsdp=8,
)
"""TL;DR: prompts to 512 and responses of 53 tokens, 16 a GPU on 8 GPUs, 4 update epochs."""

PYTHIA = {"Pythia-1B": False, "Pythia-2.8B": True, "Pythia-6.9B": True}
"""Model -> FSDP2 frees gathered layers: False stands for ZeRO-2, True for ZeRO-3."""

LORA = dict(lora_rank=16, frozen_dtype="bf16")
SIDES: dict[str, dict[str, dict[str, Any]]] = {
    "four models against three": {
        "ppo": dict(reward_model=True),
        "rloo": dict(reward_model=True),
    },
    "four against three, checkpointing": {
        "ppo": dict(reward_model=True, gradient_checkpointing=True),
        "rloo": dict(reward_model=True, gradient_checkpointing=True),
    },
    "LoRA and a rule reward": {
        "ppo": LORA | dict(value_model="shared"),
        "rloo": LORA,
    },
    "LoRA and a rule reward, critic not shared": {"ppo": LORA},
}
"""Comparison -> what each side sets beside TLDR. The first is the source's; the last shares its
RLOO with the one before."""

COMPARED = {
    "four models against three": tuple(PYTHIA),
    "four against three, checkpointing": ("Pythia-6.9B",),
    "LoRA and a rule reward": ("Pythia-1B", "Pythia-6.9B"),
    "LoRA and a rule reward, critic not shared": ("Pythia-1B", "Pythia-6.9B"),
}
"""Comparison -> its models."""


@dataclass(frozen=True)
class Job:
    """One plan, or the search for the largest batch that fits a card."""

    key: tuple[Any, ...]
    """By which its answer is found."""
    model: str
    algorithm: str
    settings: dict[str, Any] = field(hash=False)
    memory: str | None = None
    """A card: search for the largest batch; None: plan."""
    cost: float = 1.0
    """About how long it takes, in plans of Qwen3-0.6B."""


def batch_of(size: int) -> dict[str, int]:
    """A per-device batch, with as many micro-batches as make a whole group of completions."""
    group = GSM8K["num_generations"]
    return dict(per_device_train_batch_size=size, gradient_accumulation_steps=max(group // size, 1))


def memory_jobs() -> list[Job]:
    """Full logits against tiles, batch by batch."""
    return [
        Job(
            ("memory", regime, size, side),
            "Qwen3-0.6B",
            "grpo",
            GSM8K | asked | batch_of(size) | dict(head=head),
            cost=1.5 if size < GSM8K["num_generations"] else 1.0,
        )
        for regime, (asked, sizes) in REGIMES.items()
        for size in sizes
        for side, head in HEADS.items()
    ]


def batch_jobs() -> list[Job]:
    """The largest batch on one card, full logits against tiles, by model size."""
    return [
        Job(("batch", model, side), model, "grpo", SHARED | dict(head=head), CARD, cost=8.0)
        for model in QWEN
        for side, head in HEADS.items()
    ]


def rloo_jobs() -> list[Job]:
    """PPO against RLOO, by model size."""
    jobs = []
    for comparison, models in COMPARED.items():
        for model in models:
            for algorithm, asked in SIDES[comparison].items():
                settings = TLDR | dict(reshard_after_forward=PYTHIA[model]) | asked
                cost = (2.0 if model == "Pythia-1B" else 3.5) * (2 if "value_model" in asked else 1)
                key = ("rloo", comparison, model, algorithm)
                jobs.append(Job(key, model, algorithm, settings, cost=cost))
    return jobs
