"""Does it learn? Every algorithm, task and seed of the tiny preset, one run after the other:

    rlkit bench learning [--algorithms grpo rloo ppo] [--tasks sums steps] [--seeds 1 2 3]

Each run writes its curve to data/curves/<algorithm>_<task>_seed<seed>.csv and prints accuracy
before and after, and the wall time of training. The bars: `sums` from 40-65 % to at least 90 %
greedy in under 90 s, `steps` from 30-50 % sampled by at least 20 points in under 5 minutes.
"""

import csv
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

KEPT = (
    "step",
    "reward",
    "accuracy",
    "kl",
    "entropy",
    "dead_groups",
    "completion_length",
    "seconds",
)
"""Columns of a committed curve, beside those MEASURED."""

MEASURED = ("greedy", "sampled")
"""Held-out accuracy, before the run (step 0) and after it (the last step)."""


@dataclass(frozen=True)
class Flags:
    """Trains every algorithm on every task and seed, and checks the bars."""

    algorithms: tuple[Literal["grpo", "rloo", "ppo"], ...] = ("grpo", "rloo", "ppo")
    """Which algorithms."""
    tasks: tuple[Literal["sums", "steps"], ...] = ("sums", "steps")
    """Which tasks."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Which seeds."""
    out: Path | None = None
    """Folder of the curves; None: data/curves."""


def main(argv: list[str]) -> int:
    """Returns 1 if a run misses its bar."""
    import tyro

    from rlkit import data_path

    flags = tyro.cli(Flags, args=argv, prog="rlkit bench learning")
    folder = flags.out or data_path("curves")
    folder.mkdir(parents=True, exist_ok=True)
    missed = 0
    print("algorithm task  seed   greedy before after   sampled before after   train s")
    for task in flags.tasks:
        for algorithm in flags.algorithms:
            for seed in flags.seeds:
                missed += not one(algorithm, task, seed, folder)
    print("every run reaches its bar" if not missed else f"{missed} run(s) miss their bar")
    return int(bool(missed))


def one(algorithm: str, task: str, seed: int, folder: Path) -> bool:
    """One run: prints its line, writes its curve, says whether it reaches its bar."""
    from rlkit.cli import Run, algorithms, make_trainer

    trainer_class, config_class = algorithms()[algorithm]
    args = config_class.preset("tiny", task, seed=seed, disable_tqdm=True)
    trainer = make_trainer(trainer_class, Run(task=task), args)
    before = accuracies(trainer)
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    after = accuracies(trainer)
    write_curve(trainer, before, after, folder / f"{algorithm}_{task}_seed{seed}.csv")
    good = reached(task, before, after, seconds)
    print(
        f"{algorithm:9} {task:5} {seed:4}   {before[0]:13.3f} {after[0]:5.3f}   "
        f"{before[1]:14.3f} {after[1]:5.3f}   {seconds:7.1f}{'' if good else '   missed'}",
        flush=True,
    )
    return good


def accuracies(trainer: Any) -> tuple[float, float]:
    """Greedy and sampled, on held-out prompts."""
    return tuple(trainer.evaluate(greedy=g)["accuracy"] for g in (True, False))


def reached(
    task: str, before: tuple[float, float], after: tuple[float, float], seconds: float
) -> bool:
    """The bars of the module's first lines."""
    if task == "sums":
        return 0.40 <= before[0] <= 0.65 and after[0] >= 0.90 and seconds < 90
    return 0.30 <= before[1] <= 0.50 and after[1] - before[1] >= 0.20 and seconds < 300


def write_curve(
    trainer: Any, before: tuple[float, float], after: tuple[float, float], path: Path
) -> None:
    """The curve, with its starting point as step 0."""
    rows = [{"step": 0}, *({k: r[k] for k in KEPT if k in r} for r in trainer.history)]
    rows[0] |= dict(zip(MEASURED, before, strict=True)) | {"accuracy": before[0]}
    rows[-1] |= dict(zip(MEASURED, after, strict=True))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*KEPT, *MEASURED], restval="")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
