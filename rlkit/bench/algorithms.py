"""PPO, RLOO and GRPO side by side: memory by category, time by phase, reward by time and samples.

    rlkit bench algorithms [--steps 10] [--samples 512] [--beta 0.5] [--out FILE]

Everyone trains the same model on the same prompts and samples, one update a rollout unless its name
says otherwise, and is judged by the same reward model (data/reward). Right answers are counted
beside it and earn nothing. Steps are taken in turn, so that a busy machine slows all alike; times
are medians. Memory is the peak of one step, counted by a Meter while no other contestant is there.

"RLOO is 2-3 times as fast as PPO" is taken apart, each part by one change alone: how often PPO goes
over a rollout, the value model, and what a larger micro-batch (which fewer models leave room for)
brings by itself. What four model copies cost against three stands below it, measured at two sizes
beside their plans (copies.py).
"""

import gc
import json
import math
import os
import platform
import time
from dataclasses import asdict, dataclass
from datetime import date
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rlkit.bench import copies
from rlkit.config import at_least

MICRO_BATCHES = 4
"""Of a rollout, for all but the contestant with the larger batch."""
GROUP = 4
PHASES = ("generate", "score", "update")
PPO4, PPO1, SHARED = "PPO, 4 epochs", "PPO, 1 epoch", "PPO, 1 epoch, shared trunk"
RLOO, RLOO4, WIDE = "RLOO", "RLOO, 4 epochs", "RLOO, 4 times the micro-batch"
GRPO, RULE = "GRPO", "GRPO, a rule as reward"
CONTESTANTS: dict[str, tuple[str, dict[str, Any]]] = {
    PPO4: ("ppo", dict(value_model="reward", num_iterations=4)),
    PPO1: ("ppo", dict(value_model="reward", num_iterations=1)),
    SHARED: ("ppo", dict(value_model="shared", num_iterations=1)),
    RLOO4: ("rloo", dict(num_iterations=4)),
    RLOO: ("rloo", {}),
    WIDE: ("rloo", dict(gradient_accumulation_steps=1)),
    GRPO: ("grpo", {}),
    RULE: ("grpo", dict(beta=0.0)),
}
"""Name -> algorithm and the settings that are its own."""


@dataclass(frozen=True)
class Flags:
    """PPO, RLOO and GRPO on the same model, prompts and samples."""

    steps: int = 10
    """Steps of each; the first one warms up and is not timed."""
    samples: int = 512
    """Completions of a step, a multiple of 16."""
    beta: float = 0.5
    """Weight of the KL divergence from the reference, in units of the reward model's score."""
    seed: int = 1
    """Of prompts and samples."""
    threads: int = 1
    """CPU threads of torch."""
    copies: bool = True
    """Also four models against three at two sizes, in about a minute and 4 GB of memory."""
    out: Path | None = None
    """Record everything in this file, as JSON; `rlkit claims` reads data/bench/algorithms.json."""

    def __post_init__(self) -> None:
        for field, low in (("steps", 2), ("samples", 16), ("threads", 1)):
            at_least(self, field, low)
        if self.samples % (MICRO_BATCHES * GROUP):
            raise ValueError(f"samples={self.samples} is not a multiple of {MICRO_BATCHES * GROUP}")


@dataclass(frozen=True)
class Found:
    """What one contestant took, and what it brought."""

    peak: int
    """Bytes."""
    categories: dict[str, int]
    """Of that peak."""
    models: int
    """That it holds."""
    rows: list[dict[str, Any]]
    """Its history."""

    def seconds(self, phase: str = "") -> float:
        """Median of a phase, or of whole steps."""
        return median(row[f"seconds_{phase}" if phase else "seconds"] for row in self.rows[1:])

    def right_after(self, seconds: float = math.inf) -> float:
        """Share of right answers, the mean of the last 3 steps that had begun by then."""
        starts = accumulate((row["seconds"] for row in self.rows), initial=0.0)
        begun = [row for row, start in zip(self.rows, starts, strict=False) if start < seconds]
        return fmean(row.get("reward/sums_reward", row["reward"]) for row in begun[-3:])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "models": self.models,
            "peak": self.peak,
            "categories": self.categories,
            "seconds": {"step": self.seconds()} | {name: self.seconds(name) for name in PHASES},
            "learned": [row["reward"] for row in self.rows],
            "right": [row.get("reward/sums_reward", row["reward"]) for row in self.rows],
        }


def main(argv: list[str]) -> int:
    """Prints the tables and what they say about the claim."""
    import tyro

    flags = tyro.cli(Flags, args=argv, prog="rlkit bench algorithms")
    start = time.perf_counter()
    found = measure(flags)
    seconds = time.perf_counter() - start
    sides = copies.compare(flags.threads) if flags.copies else {}
    print(f"{flags.steps} steps of {flags.samples} samples each, in {seconds:.0f} s\n")
    tables = [time_table(found), memory_table(found), reward_table(found, flags), verdict(found)]
    print("\n\n".join([*tables, copies.table(sides)] if sides else tables))
    if flags.out is not None:
        record(flags.out, flags, found, sides)
    return 0


def record(path: Path, flags: Flags, found: dict[str, Found], sides: dict[str, Any]) -> None:
    """Writes all of it, with the machine and the day."""
    import torch

    values = {
        "machine": f"{processor()}, {flags.threads} thread, PyTorch {torch.__version__}",
        "date": date.today().isoformat(),
        "flags": {k: v for k, v in asdict(flags).items() if k not in ("out", "copies")},
        "contestants": {name: each.to_dict() for name, each in found.items()},
        "copies": copies.to_dict(sides),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1) + "\n", "utf-8")


def processor() -> str:
    """Its name, and how many cores."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text("utf-8").splitlines()
        named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        name = named[0] if named else name
    return f"{name}, {os.cpu_count()} cores"


def trainer(name: str, flags: Flags) -> Any:
    """A contestant before its first step."""
    from rlkit.cli import algorithms
    from rlkit.paths import data_path
    from rlkit.tasks import load_task

    task, (algorithm, own) = load_task("sums"), CONTESTANTS[name]
    trainer_class, config_class = algorithms()[algorithm]
    settings = dict(
        num_generations=GROUP,
        gradient_accumulation_steps=MICRO_BATCHES,
        steps_per_generation=None,
        num_iterations=1,
        max_steps=flags.steps,
        beta=flags.beta,
        seed=flags.seed,
        num_threads=flags.threads,
        eval_steps=None,
        disable_tqdm=True,
    )
    settings |= own
    size = flags.samples // settings["gradient_accumulation_steps"]
    settings |= dict(per_device_train_batch_size=size)
    rewards: Any = [task.reward, data_path("reward")]
    if name == RULE:
        rewards = task.reward
    else:
        settings["reward_weights"] = (0.0, 1.0)  # right answers are counted and earn nothing
    args = config_class.preset("tiny", "sums", **settings)
    return trainer_class("adder", rewards, args, task.train)


def measure(flags: Flags) -> dict[str, Found]:
    """Memory of each by itself, then steps of all in turn."""
    memory = {name: memory_of(name, flags) for name in CONTESTANTS}
    trainers = {name: trainer(name, flags) for name in CONTESTANTS}
    for step in range(flags.steps):
        order = list(trainers)
        first = step % len(order)
        for name in order[first:] + order[:first]:
            trainers[name].history.append(trainers[name].step(step))
    return {name: Found(*memory[name], each.history) for name, each in trainers.items()}


def memory_of(name: str, flags: Flags) -> tuple[int, dict[str, int], int]:
    """Peak bytes of a step, their categories, and the number of models that are held."""
    from rlkit import Meter

    one = trainer(name, flags)
    one.step(0)  # the optimiser's state is there from now on
    with Meter(one) as meter:
        one.step(1)
    peak, categories, models = meter.peak, meter.at_peak.by_category, len(one.held())
    del one, meter
    gc.collect()
    return peak, categories, models


# --- what is printed


def time_table(found: dict[str, Found]) -> str:
    """Seconds of a step by phase."""
    lines = [f"{'seconds of a step':32} {'models':>6} {'all':>7} " + heads(PHASES)]
    for name, each in found.items():
        cells = " ".join(f"{each.seconds(phase):10.3f}" for phase in PHASES)
        lines.append(f"{name:32} {each.models:6} {each.seconds():7.3f} {cells}")
    return "\n".join(lines)


def heads(names: Any) -> str:
    """Names over columns of ten."""
    return " ".join(f"{name:>10}" for name in names)


def memory_table(found: dict[str, Found]) -> str:
    """MiB at the peak of a step, by category."""
    names = list(dict.fromkeys(n for each in found.values() for n in each.categories))
    names = [n for n in names if any(each.categories.get(n, 0) >= 2**16 for each in found.values())]
    lines = [f"{'MiB at the peak, measured':32} {'all':>7} " + heads(n[:10] for n in names)]
    for name, each in found.items():
        cells = " ".join(f"{each.categories.get(n, 0) / 2**20:10.1f}" for n in names)
        lines.append(f"{name:32} {each.peak / 2**20:7.1f} {cells}")
    return "\n".join(lines)


def reward_table(found: dict[str, Found], flags: Flags) -> str:
    """The learned reward and the share of right answers, first and last steps, and their price."""
    columns = ("samples", "seconds", "learned", "right")
    lines = [f"{'mean of the last 3 steps':32} " + heads(columns)]
    for name, each in found.items():
        right, last = each.right_after(), each.rows[-3:]
        learned = fmean(row["reward"] for row in last) if name != RULE else None
        shown = "         -" if learned is None else f"{learned:10.2f}"
        seconds = sum(row["seconds"] for row in each.rows)
        samples = flags.samples * len(each.rows)
        lines.append(f"{name:32} {samples:10} {seconds:10.1f} {shown} {right:10.3f}")
    return "\n".join(lines)


def verdict(found: dict[str, Found]) -> str:
    """The claim's factor, and the factors that it is made of."""

    def times(slow: str, fast: str, phase: str = "") -> str:
        return f"{found[slow].seconds(phase) / found[fast].seconds(phase):.2f}"

    saved = 1 - found[RLOO].peak / found[PPO1].peak
    spent = sum(row["seconds"] for row in found[RLOO].rows)
    ends = {name: found[name].right_after() for name in (PPO4, RLOO)}
    return "\n".join(
        [
            f"A step of PPO takes {times(PPO4, RLOO)} times as long as one of RLOO, of which",
            f"  {times(PPO4, PPO1)}  its 4 epochs over a rollout (4 updates against one),",
            f"  {times(PPO1, SHARED)}  a value model of its own instead of a head on the trunk,",
            f"  {times(SHARED, RLOO)}  the rest: values, GAE, and rows that RLOO can drop.",
            f"Like with like: {times(PPO4, RLOO4)} times with 4 epochs each, "
            f"{times(PPO1, RLOO)} times with one each.",
            f"Fewer models: with one epoch each, RLOO's peak is {saved:.0%} lower than PPO's.",
            f"A larger batch: in PPO's bytes RLOO's micro-batch may be {room(found):.2f} times as "
            "large.",
            f"4 times as large it makes RLOO {times(RLOO, WIDE)} times as fast, by itself.",
            f"After as many samples PPO answers {ends[PPO4]:.0%} right and RLOO {ends[RLOO]:.0%}; "
            f"after as many seconds ({spent:.1f})",
            f"PPO {found[PPO4].right_after(spent):.0%}: its epochs buy learning for time.",
            "The factors depend on model, lengths and machine. Generation takes all of them the",
            "same time, and the longer it takes, the smaller is every factor.",
        ]
    )


def room(found: dict[str, Found]) -> float:
    """By how much RLOO's micro-batch may grow until it takes PPO's bytes, as bytes grow with it."""
    each = (found[WIDE].peak - found[RLOO].peak) / (MICRO_BATCHES - 1)
    return 1 + (found[PPO1].peak - found[RLOO].peak) / each
