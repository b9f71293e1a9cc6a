"""What a plan is asked: one frozen dataclass, checked when it is made.

Names are those of the training configs where they mean the same; sizes count completions. A plan
assumes the worst of them: every prompt has prompt_length tokens, every completion runs to
max_completion_length, and every row teaches.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from rlkit.config import TrainConfig, unknown

ALGORITHMS = ("grpo", "rloo", "ppo")
DTYPES = {
    "float32": "float32 weights and products",
    "bf16": "float32 weights, products in bfloat16 by autocast",
    "fp16": "float32 weights, products in float16 by autocast, loss scaling",
    "pure_bf16": "weights, gradients and optimiser state in bfloat16; AdamW's small steps are lost",
}
"""Precision regime -> what it means."""
OPTIMIZERS = {
    "adamw": "two numbers a weight",
    "momentum": "one number a weight (gradient descent with momentum)",
    "sgd": "none",
}
"""Optimiser -> the state that it keeps. rlkit trains with adamw; the others are for comparison."""
FROZEN = ("float32", "bf16")
MOST_RANKS = 64
ANSWER = "plan: "
"""Begins each line in which a planning process answers; the others are chatter of libraries."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A training step to be planned."""

    config: dict[str, Any]
    """The model's config.json."""
    name: str
    """The model's name, for tables."""
    algorithm: str = "grpo"
    """grpo, rloo or ppo."""
    per_device_train_batch_size: int = 8
    """Completions in one forward and backward."""
    gradient_accumulation_steps: int = 1
    """Micro-batches of one optimiser step."""
    num_generations: int | None = None
    """Completions of each prompt, G; None: the algorithm's default."""
    num_iterations: int | None = None
    """How often the updates go over each rollout; None: the algorithm's default."""
    prompt_length: int = 512
    """Tokens of every prompt."""
    max_completion_length: int = 512
    """Tokens of every completion."""
    max_generation_batch: int | None = None
    """Completions drawn at once; None: the whole rollout of a rank."""
    head: str = "auto"
    """full, chunked, fused or auto."""
    tile_bytes: int | None = None
    """Memory for one tile of logits; None: 64 MiB."""
    share_prefix: bool | str = "auto"
    """Read a prompt once for several of its completions."""
    lora_rank: int | None = None
    """Rank of LoRA adapters on every linear layer but the head; None: all weights train."""
    fsdp: int = 1
    """Ranks that share the weights (FSDP2); 1: none."""
    reshard_after_forward: bool = True
    """FSDP2 frees gathered layers after their forward pass."""
    dtype: str = "bf16"
    """Precision regime: float32, bf16, fp16 or pure_bf16."""
    frozen_dtype: str = "float32"
    """In which frozen weights lie, a LoRA base or a reference: float32 or bf16."""
    optimizer: str = "adamw"
    """adamw, momentum or sgd."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass."""
    beta: float | None = None
    """Weight of the KL divergence; None: the algorithm's default. 0 needs no reference model."""
    value_model: str = "separate"
    """PPO's critic: separate, reward (a copy of the reward model) or shared."""
    reward_model: bool = False
    """Hold a reward model of the policy's shape, frozen, with a score head."""
    device: str = "cuda"
    """Whose code paths are planned: cuda or cpu."""

    def __post_init__(self) -> None:
        for field, known in (
            ("algorithm", ALGORITHMS),
            ("dtype", DTYPES),
            ("frozen_dtype", FROZEN),
            ("optimizer", OPTIMIZERS),
            ("device", ("cuda", "cpu")),
        ):
            if getattr(self, field) not in known:
                raise ValueError(unknown(field, getattr(self, field), known))
        for field in ("prompt_length", "max_completion_length", "fsdp"):
            whole_number(self, field, 1)
        if self.lora_rank is not None:
            whole_number(self, "lora_rank", 1)
        if self.fsdp > MOST_RANKS:
            raise ValueError(f"fsdp={self.fsdp} is more than the {MOST_RANKS} ranks of a plan")
        self.check_context()
        self.train_config()

    def check_context(self) -> None:
        """Raises ValueError where prompt and completion exceed the model's context."""
        text = self.config.get("text_config") or self.config
        room = text.get("max_position_embeddings") or text.get("n_positions")
        wanted = self.prompt_length + self.max_completion_length
        if room is not None and wanted > room:
            raise ValueError(
                f"prompt_length={self.prompt_length} and max_completion_length="
                f"{self.max_completion_length} make {wanted} tokens, but the context of "
                f"{self.name} holds {room}"
            )

    def train_config(self) -> TrainConfig:
        """The config of a trainer that would do this. Raises ValueError as that one does."""
        import rlkit

        config_class = getattr(rlkit, f"{self.algorithm.upper()}Config")
        fields = {f.name for f in dataclasses.fields(config_class)}
        ours = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        ours = {k: v for k, v in ours.items() if k in fields and v is not None}
        if ours.get("value_model") == "reward":
            ours["value_model"] = "separate"  # of the same shape, and a plan has no weights to copy
        return config_class(bf16=self.dtype == "bf16", fp16=self.dtype == "fp16", **ours)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


def whole_number(setting: Setting, field: str, low: int) -> None:
    """Raises ValueError unless a field is a whole number of at least `low`."""
    value = getattr(setting, field)
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"{field}={value!r} must be a whole number of at least {low}")
