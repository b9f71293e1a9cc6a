"""What a run leaves behind and shows: log.csv, a progress bar, warnings in words."""

import csv
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from tqdm.auto import tqdm

from rlkit.advantages import above_lowest, moments
from rlkit.config import TrainConfig
from rlkit.optim import add_sums
from rlkit.rollout import Rollout

GLANCE = ("reward", "kl", "accuracy")
"""What the progress bar shows, the last known value of each."""

COLUMNS_LAST = ("accuracy", "warnings")
"""Columns that come and go; always there, so that the file keeps one header."""


class Log:
    """Writes each logged step to output_dir/log.csv and to the progress bar."""

    def __init__(self, args: TrainConfig, history: list[dict[str, Any]], main: bool = True) -> None:
        """history: steps that an earlier part of this run has already taken.

        main: False for a rank that leaves writing and showing to another.
        """
        self.args, self.start, self.main = args, len(history), main
        self.shows = main and not args.disable_tqdm
        self.done = [row for row in history if row["step"] % args.logging_steps == 0]
        self.told: set[str] = set()
        self.latest: dict[str, float] = {}

    def __enter__(self) -> Self:
        args = self.args
        self.bar = tqdm(
            total=args.max_steps,
            initial=self.start,
            desc=args.name,
            unit="step",
            disable=not self.shows,
            dynamic_ncols=True,
        )
        self.path = None
        if args.output_dir is not None and self.main:
            self.path = Path(args.output_dir) / "log.csv"
            self.header = write_csv(self.path, self.done)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.bar.close()

    def write(self, row: dict[str, Any], completions: list[dict[str, Any]]) -> None:
        """One step: a CSV row, the bar, new warnings and some completions."""
        for warning in row.get("warnings", ()):
            kind = warning.split(":")[0]
            if kind not in self.told and self.shows:
                self.told.add(kind)
                self.bar.write(f"step {row['step']}: {warning}")
        due = row["step"] % self.args.logging_steps == 0
        if due:
            self.done.append(row)
            if self.path is not None:
                self.header = append_csv(self.path, self.done, self.header)
            for shown in completions[: self.args.num_completions_to_print if self.main else 0]:
                self.bar.write("{reward:6.2f}  {prompt!r} -> {completion!r}".format_map(shown))
            self.latest |= {k: row[k] for k in GLANCE if row.get(k) is not None}
            text = ", ".join(f"{name} {value:.3f}" for name, value in self.latest.items())
            self.bar.set_postfix_str(text, refresh=False)
        self.bar.update()


def columns(rows: list[dict[str, Any]]) -> list[str]:
    """Column names in the order of first use, the optional ones last."""
    names = dict.fromkeys(name for row in rows for name in row if name not in COLUMNS_LAST)
    return [*names, *COLUMNS_LAST]


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row as CSV cells."""
    cells = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
    return cells | {"warnings": " | ".join(row.get("warnings", ()))}


def write_csv(path: Path, rows: list[dict[str, Any]]) -> list[str]:
    """All rows, under the columns that any of them has; returns these, none for no rows."""
    header = columns(rows) if rows else []
    with path.open("w", newline="", encoding="utf-8") as file:
        if header:
            writer = csv.DictWriter(file, header, restval="")
            writer.writeheader()
            writer.writerows(map(flat, rows))
    return header


def append_csv(path: Path, rows: list[dict[str, Any]], header: list[str]) -> list[str]:
    """Adds the last row under the header that the file has; a new column rewrites the file."""
    if not rows[-1].keys() <= set(header):
        return write_csv(path, rows)
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.DictWriter(file, header, restval="").writerow(flat(rows[-1]))
    return header


def describe(rollout: Rollout, num_generations: int, names: list[str]) -> dict[str, float]:
    """What a rollout says about itself: rewards, lengths, groups that agree with themselves.

    names: of the reward functions; their means are told apart where there are several.
    """
    rewards = rollout.rewards
    scored = ~rewards.isnan()
    # from the lowest, or equal rewards like 0.7 would seem to differ in float32
    lowest = rewards[scored].min() if bool(scored.any()) else rewards.new_zeros(())
    row = {
        "reward": float(rewards.nanmean()),
        "reward_std": float(moments(rewards - lowest, scored).std()),
    }
    if len(names) > 1:
        row |= dict(zip(names, rollout.rewards_per_func.nanmean(0).tolist(), strict=True))
    if num_generations > 1:
        spread, _ = above_lowest(rewards, num_generations)  # [P, G], 0 where nothing scored
        row["dead_groups"] = float((spread == 0).all(1).float().mean())
    return row | {
        "completion_length": float(rollout.mask.sum(1).float().mean()),
        "truncated": float((~rollout.finished).float().mean()),
    }


def average(rows: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each entry over the rows that have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {n: fmean(row[n] for row in rows if n in row) for n in names}


@torch.no_grad()
def kl_of(rollout: Rollout) -> dict[str, float]:
    """Mean log-ratio to the reference a token (k1), where the algorithm scored both."""
    if rollout.logp_ref is None or rollout.logp_old is None:
        return {}
    kl = torch.where(rollout.mask, rollout.logp_old - rollout.logp_ref, 0.0)
    return {"kl": float(kl.sum() / rollout.mask.sum().clamp(min=1))}


def summarise(results: list[dict[str, Any]]) -> dict[str, float]:
    """Means over the optimiser steps of one pass; the only place where the update is read back.

    Entropy, ratio and clip counts are those of rows that were trained on, not of dropped ones.
    """
    sums: dict[str, tuple[Tensor, Tensor]] = {}
    for result in results:
        add_sums(sums, result["sums"])
    row = {name: float(value / count.clamp(min=1)) for name, (value, count) in sums.items()}
    row["lr"] = results[-1]["lr"]
    for name in ("loss", "grad_norm"):
        row[name] = sum(float(r[name]) for r in results) / len(results)
    row["overflows"] = sum(not bool(r["finite"]) for r in results)
    return row
