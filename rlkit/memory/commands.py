"""The command line of plans.

rlkit plan --model Qwen3-0.6B --algorithm grpo --head fused --fits t4
rlkit plan --model Qwen3-0.6B --compare head=full head=fused head=fused,lora=16
rlkit plan --model Pythia-6.9B --algorithm ppo --reward-model --fsdp 8 --json
"""

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rlkit.memory.cards import CARDS, RESERVE, card_bytes, memory_bytes, readable
from rlkit.memory.planner import Plan, largest_batch, plan, shared_planner
from rlkit.memory.settings import DTYPES
from rlkit.memory.timeline import in_order

SHORT = {
    "batch": "per_device_train_batch_size",
    "group": "num_generations",
    "accumulate": "gradient_accumulation_steps",
    "prompt": "prompt_length",
    "completion": "max_completion_length",
    "lora": "lora_rank",
    "checkpointing": "gradient_checkpointing",
    "reshard": "reshard_after_forward",
}
"""Short name -> the field of a Setting that it means."""


def main(argv: Sequence[str]) -> int:
    """Prints a plan. Returns 1 if --fits was asked and it does not."""
    asked = parse(argv)
    room = None if asked.fits is None else memory_bytes(asked.fits)
    if asked.largest_batch and room is None:
        raise ValueError("largest_batch needs fits: say which card, --fits t4")
    shared_planner().start()
    settings = settings_of(asked)
    columns = [changes(text) for text in asked.compare] or [{}]
    plans = [plan(**settings | column) for column in columns]
    report: dict[str, Any] = {"plans": [p.to_dict() for p in plans]}
    lines = [table(plans, asked.compare)]
    fits = True
    if room is not None:
        fits = all(p.fits(room) for p in plans)
        report |= {"memory": room, "fits": [p.fits(room) for p in plans]}
        lines += [verdict(p, asked.fits, room) for p in plans]
    if asked.largest_batch:
        found = [largest_batch(memory=room, **settings | column)[0] for column in columns]
        report["largest_batch"] = found
        lines += [f"largest batch that fits: {', '.join(map(str, found))}"]
    print(json.dumps(report) if asked.json else "\n".join(lines))
    return 0 if fits else 1


def parse(argv: Sequence[str]) -> Any:
    """The flags."""
    import tyro

    arg = tyro.conf.arg

    @dataclass(frozen=True)
    class Flags:
        """Plans the memory of one training step, without a GPU and with nothing allocated."""

        model: str = "Qwen3-0.6B"
        """A shipped shape, a built-in model, a folder with a config.json or a hub id."""
        algorithm: Literal["grpo", "rloo", "ppo"] = "grpo"
        """Whose step."""
        per_device_train_batch_size: Annotated[int, arg(aliases=["--batch"])] = 8
        """Completions in one forward and backward."""
        num_generations: Annotated[int | None, arg(aliases=["--group"])] = None
        """Completions of each prompt; None: the algorithm's default."""
        gradient_accumulation_steps: Annotated[int, arg(aliases=["--accumulate"])] = 1
        """Micro-batches of one optimiser step."""
        prompt_length: Annotated[int, arg(aliases=["--prompt"])] = 512
        """Tokens of every prompt."""
        max_completion_length: Annotated[int, arg(aliases=["--completion"])] = 512
        """Tokens of every completion."""
        head: Literal["auto", "full", "chunked", "fused"] = "auto"
        """How logits become a loss."""
        tile_bytes: int | None = None
        """Memory for one tile of logits; None: 64 MiB."""
        lora: Annotated[int | None, arg(aliases=["--lora-rank"])] = None
        """Rank of LoRA adapters on every linear layer but the head; None: all weights train."""
        fsdp: int = 1
        """Ranks that share the weights, up to 64."""
        reshard_after_forward: Annotated[bool, arg(aliases=["--reshard"])] = True
        """FSDP2 frees gathered layers after their forward pass."""
        dtype: Literal["float32", "bf16", "fp16", "pure_bf16"] = "bf16"
        """Precision regime; bf16 and fp16 keep float32 weights."""
        frozen_dtype: Literal["float32", "bf16"] = "float32"
        """In which frozen weights lie."""
        optimizer: Literal["adamw", "momentum", "sgd"] = "adamw"
        """Whose state is held; rlkit trains with adamw."""
        gradient_checkpointing: Annotated[bool, arg(aliases=["--checkpointing"])] = False
        """Recompute activations in the backward pass."""
        beta: float | None = None
        """Weight of the KL divergence; 0 needs no reference; None: the algorithm's default."""
        value_model: Literal["separate", "shared"] = "separate"
        """PPO's critic."""
        reward_model: bool = False
        """Hold a reward model of the policy's shape."""
        device: Literal["cuda", "cpu"] = "cuda"
        """Whose code paths are planned."""
        compare: tuple[str, ...] = ()
        """Several settings side by side, each as changes: head=full head=fused,lora=16."""
        fits: str | None = None
        """A card (t4, a100-40, h100, ...) or memory (24GiB) to hold the plan against."""
        largest_batch: bool = False
        """Also find the largest batch that fits."""
        json: bool = False
        """Print JSON, with the timeline."""

    return tyro.cli(Flags, args=list(argv), prog="rlkit plan")


def settings_of(asked: Any) -> dict[str, Any]:
    """The arguments of plan() that the flags mean."""
    own = ("compare", "fits", "largest_batch", "json")
    return {SHORT.get(k, k): v for k, v in vars(asked).items() if k not in own}


def changes(text: str) -> dict[str, Any]:
    """ "head=fused,lora=16" -> {"head": "fused", "lora_rank": 16}.

    Raises ValueError for what is not a list of names and values.
    """
    found = {}
    for part in text.split(","):
        name, equals, value = (x.strip() for x in part.partition("="))
        if not equals or not name or not value:
            raise ValueError(f"compare={text!r}: {part!r} must read name=value, as in head=full")
        name = name.lstrip("-").replace("-", "_")
        found[SHORT.get(name, name)] = literal(value)
    return found


def literal(value: str) -> Any:
    """A number, true, false or none; else the text itself."""
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return words[value.lower()]
    try:
        number = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    return number if isinstance(number, int | float) else value


def table(plans: list[Plan], names: Sequence[str]) -> str:
    """Plans side by side, by category."""
    first = plans[0]
    rows = [["", *names]] if names else []
    for category in in_order(c for p in plans for c in p.at_peak.by_category):
        found = [p.at_peak.by_category.get(category, 0) for p in plans]
        rows.append([category, *map(readable, found)])
    rows.append(["peak", *(readable(p.peak) for p in plans)])
    if names:
        rows.append(["against the first", *(f"{p.peak / first.peak - 1:+.0%}" for p in plans)])
    rows.append(["in", *(p.at_peak.phase for p in plans)])
    for phase in ("generate", "score", "forward", "backward", "step"):
        found = [p.peak_by_phase.get(phase, 0) for p in plans]
        if any(found):
            rows.append([f"most in {phase}", *map(readable, found)])
    rows.append(["smallest card", *(smallest_card(p) for p in plans)])
    return "\n".join([heading(first), *([] if names else [cause(first)]), "", aligned(rows)])


def aligned(rows: list[list[str]]) -> str:
    """Rows as text: names to the left, numbers to the right of their columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        numbers = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *numbers]).rstrip())
    return "\n".join(lines)


def heading(p: Plan) -> str:
    """What was planned, in a sentence."""
    s, args = p.setting, p.setting.train_config()
    count = p.weights["policy"]
    lines = [
        f"planned, not measured: {s.algorithm} on {s.name}, {count['total']:,} weights, "
        f"{count['trained']:,} of them train",
        f"{s.per_device_train_batch_size} completions ({args.num_generations} of each prompt) of "
        f"{s.prompt_length} + {s.max_completion_length} tokens, "
        f"gradient_accumulation_steps={args.gradient_accumulation_steps}",
        f"{s.dtype}: {DTYPES[s.dtype]}; {s.optimizer}; head {s.head}",
    ]
    if others := [name for name in p.weights if name != "policy"]:
        lines.append("beside the policy: " + ", ".join(f"{name} model" for name in others))
    if s.fsdp > 1:
        lines.append(f"on each of {s.fsdp} FSDP ranks")
    return "\n".join(lines)


def cause(p: Plan) -> str:
    """Where the peak is."""
    at = p.at_peak
    return f"peak in {at.phase}: {at.op} in {at.module or 'no module'}, {at.line}"


def smallest_card(p: Plan) -> str:
    """The card of least memory that it fits."""
    fitting = [name for name in CARDS if p.fits(card_bytes(name))]
    return min(fitting, key=CARDS.__getitem__, default="none")


def verdict(p: Plan, memory: str, room: int) -> str:
    """Whether it fits, in a sentence."""
    left = room - p.peak
    reserve = f" after {readable(RESERVE)} of reserve" if memory.lower() in CARDS else ""
    where = f"{memory} ({readable(room)} for tensors{reserve})"
    if left >= 0:
        return f"fits {where}: yes, {readable(left)} to spare"
    return f"fits {where}: no, {readable(-left)} too much"
