"""What can be chosen in the Memory Lab: switches, their positions, and three places to begin.

    choices = BASES["qwen"].choices | {"head": "chunked"}
    setting(BASES["qwen"], choices)        what a plan is asked

A *choice* is a plain value by the name of its switch; a *setting* is what the planner takes.
Left out on purpose: accumulation and repeated updates. One micro-batch, one update, so that the
phases of a step come one after the other.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from rlkit.memory.settings import Setting
from rlkit.memory.shapes import shape_of

MiB = 2**20

Choices = dict[str, Any]

PLAIN, WIDE, WIDER = 8192, 32768, 65536
SMALL: dict[str, Any] = dict(
    model_type="qwen3",
    vocab_size=WIDE,
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    tie_word_embeddings=True,
    max_position_embeddings=512,
)
"""A model that trains on a laptop, with a vocabulary as wide for its size as a real one's."""
VOCABULARIES = {f"small, V = {v:,}": v for v in (PLAIN, WIDE, WIDER)}
SMALL_NAME = f"small, V = {WIDE:,}"


@dataclass(frozen=True)
class Switch:
    """One thing that can be changed."""

    key: str
    """As in `Choices`."""
    label: str
    group: str
    """Heading that it stands under."""
    help: str
    """One line for whoever points at it."""
    options: tuple[tuple[Any, str], ...]
    """(value, what the button says)."""

    def shown(self, value: Any) -> str:
        """What the button of a value says."""
        return dict(self.options).get(value, str(value))


ON_OFF = ((False, "off"), (True, "on"))


def numbers(*values: int) -> tuple[tuple[int, str], ...]:
    """Options that say their number."""
    return tuple((v, f"{v:,}") for v in values)


def names(*values: str) -> tuple[tuple[str, str], ...]:
    """Options that say their value."""
    return tuple((v, v) for v in values)


SWITCHES: dict[str, Switch] = {
    each.key: each
    for each in (
        Switch(
            "algorithm",
            "Algorithm",
            "Algorithm and models",
            "PPO trains a value model beside the policy; RLOO and GRPO compare siblings instead.",
            (("grpo", "GRPO"), ("rloo", "RLOO"), ("ppo", "PPO")),
        ),
        Switch(
            "model",
            "Model",
            "Algorithm and models",
            "Whose shape: layers, width, vocabulary. A plan needs no weights.",
            (),
        ),
        Switch(
            "reference",
            "Reference",
            "Algorithm and models",
            "A KL penalty needs the model as it was: a frozen copy, or with LoRA the adapters off.",
            ON_OFF,
        ),
        Switch(
            "reward_model",
            "Reward model",
            "Algorithm and models",
            "A frozen model of the policy's size that scores answers; a rule needs none.",
            ON_OFF,
        ),
        Switch(
            "head",
            "Head",
            "Output head",
            "full keeps all logits; chunked makes them twice, tile by tile; fused takes the "
            "gradient of a tile at once.",
            names("full", "chunked", "fused"),
        ),
        Switch(
            "tile",
            "Tile, MiB",
            "Output head",
            "Memory for one tile of logits where the head is chunked or fused.",
            numbers(4, 16, 64, 256),
        ),
        Switch(
            "lora",
            "LoRA rank",
            "What trains",
            "Adapters on every linear layer: only they have gradients and optimiser state.",
            ((0, "off"), *numbers(8, 16, 64)),
        ),
        Switch(
            "optimizer",
            "Optimiser",
            "What trains",
            "AdamW keeps two numbers a weight, momentum one, plain SGD none.",
            (("adamw", "AdamW"), ("momentum", "momentum"), ("sgd", "SGD")),
        ),
        Switch(
            "dtype",
            "Precision",
            "What trains",
            "bf16 and fp16 keep float32 weights and compute in half; pure bf16 keeps half of all, "
            "and loses small steps.",
            (
                ("float32", "float32"),
                ("bf16", "bf16"),
                ("fp16", "fp16"),
                ("pure_bf16", "pure bf16"),
            ),
        ),
        Switch(
            "checkpointing",
            "Checkpointing",
            "Time for memory",
            "Forget activations in the forward pass and compute them again in the backward pass.",
            ON_OFF,
        ),
        Switch(
            "fsdp",
            "FSDP ranks",
            "Time for memory",
            "Each rank holds a share of weights, gradients and optimiser state, and gathers a "
            "layer when it is needed.",
            ((1, "1"), (2, "2"), (8, "8"), (64, "64")),
        ),
        Switch(
            "batch",
            "Batch",
            "Sizes",
            "Completions in one forward and backward pass, on each rank.",
            numbers(1, 2, 4, 8, 16, 32),
        ),
        Switch(
            "group",
            "Group, G",
            "Sizes",
            "Completions of one prompt. It must divide the batch.",
            numbers(1, 2, 4, 8),
        ),
        Switch("prompt", "Prompt", "Sizes", "Tokens of each prompt.", ()),
        Switch(
            "completion",
            "Completion",
            "Sizes",
            "Tokens of each completion. Logits are made for these.",
            (),
        ),
    )
}


@dataclass(frozen=True)
class Base:
    """A place to begin."""

    key: str
    title: str
    about: str
    choices: Choices
    options: dict[str, tuple[tuple[Any, str], ...]] = field(default_factory=dict)
    """Positions that differ from the switches' own."""
    device: str = "cuda"
    """Whose code paths are planned."""

    def options_of(self, key: str) -> tuple[tuple[Any, str], ...]:
        """Positions of a switch, here."""
        return self.options.get(key, SWITCHES[key].options)


START: Choices = dict(
    algorithm="grpo",
    reference=False,
    reward_model=False,
    head="full",
    tile=64,
    lora=0,
    optimizer="adamw",
    dtype="bf16",
    checkpointing=False,
    fsdp=1,
)
REAL = names(
    "SmolLM2-135M",
    "SmolLM2-360M",
    "Qwen2.5-0.5B",
    "Qwen3-0.6B",
    "Qwen3-1.7B",
    "Qwen3-4B",
    "Qwen3-8B",
    "Gemma-3-1B",
    "Llama-3.2-1B",
    "Pythia-1B",
    "Pythia-2.8B",
    "Pythia-6.9B",
)
BASES: dict[str, Base] = {
    each.key: each
    for each in (
        Base(
            "qwen",
            "Qwen3-0.6B, GRPO",
            "two completions of 1,024 tokens, all in bfloat16: logits and activations weigh most",
            START
            | dict(model="Qwen3-0.6B", dtype="pure_bf16", batch=2, group=2)
            | dict(prompt=16, completion=1008),
            {
                "model": REAL,
                "group": numbers(2, 4, 8),
                "prompt": numbers(16, 256, 512),
                "completion": numbers(256, 512, 1008, 2032),
            },
        ),
        Base(
            "pythia",
            "Pythia-1B, PPO",
            "the sizes of the RLOO paper's summaries: four models at once, short answers",
            START
            | dict(model="Pythia-1B", algorithm="ppo", reference=True, reward_model=True)
            | dict(batch=16, group=4, prompt=512, completion=53),
            {
                "model": names(
                    "SmolLM2-135M",
                    "SmolLM2-360M",
                    "Qwen2.5-0.5B",
                    "Qwen3-0.6B",
                    "Pythia-1B",
                    "Pythia-2.8B",
                    "Pythia-6.9B",
                ),
                "tile": numbers(16, 64),
                "lora": ((0, "off"), *numbers(16)),
                "fsdp": ((1, "1"), (8, "8")),
                "batch": numbers(8, 16, 32),
                "group": numbers(1, 4, 8),
                "prompt": numbers(256, 512),
                "completion": numbers(53, 128),
            },
        ),
        Base(
            "small",
            "a small model, live",
            "2 layers, 128 wide, a vocabulary of 32,768: this one can train right here",
            START
            | dict(model=SMALL_NAME, dtype="float32", batch=8, group=4)
            | dict(prompt=16, completion=32),
            {
                "model": names(*VOCABULARIES),
                "lora": ((0, "off"), *numbers(4, 8, 16)),
                "batch": numbers(4, 8, 16),
                "group": numbers(2, 4, 8),
                "prompt": numbers(16, 32),
                "completion": numbers(16, 32, 64),
            },
            device="cpu",
        ),
    )
}


@lru_cache(maxsize=64)
def shape(model: str) -> tuple[str, dict[str, Any]]:
    """(name, config) of a model of the lab. Raises ValueError for an unknown one."""
    if model in VOCABULARIES:
        return model, SMALL | {"vocab_size": VOCABULARIES[model]}
    return shape_of(model)


def setting(base: Base, choices: Choices) -> Setting:
    """What a plan is asked. Raises ValueError, in one sentence, for what does not go together."""
    name, config = shape(choices["model"])
    return Setting(
        config=config,
        name=name,
        algorithm=choices["algorithm"],
        per_device_train_batch_size=choices["batch"],
        num_generations=choices["group"],
        num_iterations=1,
        prompt_length=choices["prompt"],
        max_completion_length=choices["completion"],
        head=choices["head"],
        tile_bytes=choices["tile"] * MiB,
        lora_rank=choices["lora"] or None,
        fsdp=choices["fsdp"],
        dtype=choices["dtype"],
        optimizer=choices["optimizer"],
        gradient_checkpointing=choices["checkpointing"],
        beta=0.05 if choices["reference"] else 0.0,
        reward_model=choices["reward_model"],
        device=base.device,
    )


def why_not(base: Base, choices: Choices) -> str:
    """ "" if these choices go together, else the sentence that says why not."""
    try:
        setting(base, choices)
    except ValueError as error:
        return str(error)
    return ""


def checked(base: Base, changes: Choices) -> Choices:
    """Changes that name switches and values of their kind.

    Raises ValueError for an unknown switch, with the known ones, and for a value of another kind.
    """
    from rlkit.config import unknown

    for key, value in changes.items():
        if key not in SWITCHES:
            raise ValueError(unknown("switch", key, SWITCHES))
        usual = base.choices[key]
        if type(value) is not type(usual):
            raise ValueError(f"{key}={value!r} is not like {usual!r}, where it stood at first")
    return changes


def changed(before: Choices, after: Choices) -> list[str]:
    """The switches that stand differently."""
    return [key for key in SWITCHES if before.get(key) != after.get(key)]


def told(before: Choices, after: Choices) -> str:
    """In words: "head full → chunked, LoRA rank off → 16"."""
    found = []
    for key in changed(before, after):
        switch = SWITCHES[key]
        old, new = switch.shown(before.get(key)), switch.shown(after.get(key))
        found.append(f"{switch.label} {old} → {new}")
    return ", ".join(found)
