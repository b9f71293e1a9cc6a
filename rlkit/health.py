"""Warnings, in words, of the ways in which a run dies in silence.

Reinforcement learning rarely crashes. It goes on, and learns nothing: every group agrees with
itself, every answer is cut off, the reward never moves. Each check below names one such death and
what to change. `kind: sentence`, so that a log can tell each kind once.
"""

import tempfile
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from rlkit.rollout import Rollout

WINDOW = 5
"""Steps over which a symptom must last."""


def check(row: dict[str, Any], history: list[dict[str, Any]]) -> list[str]:
    """Warnings for a step, given the steps before it."""
    rows = [*history[-(WINDOW - 1) :], row]
    found = [truncated(rows), constant_reward(rows), dead_groups(rows), kl(rows), overflow(rows)]
    return [f for f in [*found, format_only(row, history)] if f]


def mean(rows: list[dict[str, Any]], name: str) -> float | None:
    """Mean of a column over full windows; None before, and where it is not logged."""
    values = [r[name] for r in rows if r.get(name) is not None]
    return fmean(values) if len(values) == WINDOW else None


def truncated(rows: list[dict[str, Any]]) -> str | None:
    """Completions without an EOS."""
    share = mean(rows, "truncated")
    if share is None or share < 0.5:
        return None
    if share == 1.0:
        return (
            "no EOS: not one completion ended by itself; check the tokenizer's EOS and chat "
            "template, or raise max_completion_length"
        )
    return (
        f"truncated: {share:.0%} of the completions are cut off before their answer; raise "
        "max_completion_length"
    )


def constant_reward(rows: list[dict[str, Any]]) -> str | None:
    """All completions of a step earn the same."""
    spread = mean(rows, "reward_std")
    if spread is None or spread > 0.0:
        return None
    return (
        f"constant reward: every completion earns {rows[-1]['reward']:g}, so there is nothing to "
        "prefer; look at some completions and at what the reward function does with them"
    )


def dead_groups(rows: list[dict[str, Any]]) -> str | None:
    """Groups whose completions all earn the same: their advantages are 0."""
    share = mean(rows, "dead_groups")
    if share is None or share < 0.8 or constant_reward(rows):
        return None
    return (
        f"dead groups: in {share:.0%} of the groups all completions earn the same, so they teach "
        "nothing; if the reward is near its best you are done, else take prompts of mixed "
        "difficulty or a larger num_generations"
    )


def kl(rows: list[dict[str, Any]]) -> str | None:
    """The policy runs away from its reference."""
    value = mean(rows, "kl")
    if value is None or value < 1.0:
        return None
    return (
        f"KL: the policy is {value:.1f} nats a token away from its reference; lower learning_rate "
        "or raise beta"
    )


def overflow(rows: list[dict[str, Any]]) -> str | None:
    """Steps skipped by fp16 loss scaling."""
    count = rows[-1].get("overflows", 0)
    return f"overflow: {count} fp16 step(s) skipped, loss scale halved" if count else None


def format_only(row: dict[str, Any], history: list[dict[str, Any]]) -> str | None:
    """A second reward function climbs while the first, the one that counts, stands still."""
    names = [name for name in row if name.startswith("reward/")]
    rows = [*history, row]
    if len(names) < 2 or len(rows) < 4 * WINDOW:
        return None
    gain = {n: mean(rows[-WINDOW:], n) - mean(rows[:WINDOW], n) for n in names}
    best = max(names[1:], key=gain.get)
    if gain[names[0]] > 0.05 or gain[best] < 0.2:
        return None
    return (
        f"format without accuracy: {best} rose by {gain[best]:.2f} while {names[0]} stands still; "
        "the model learns the form of an answer, not the answer"
    )


def not_finite(result: dict[str, Any], fp16: bool, step: int, k: int, path: Path) -> str:
    """The sentence that ends a run whose loss or gradient is not finite."""
    cause = "ten overflows in a row" if fp16 else "the loss or a gradient"
    return (
        f"step {step}, update {k}: {cause} is not finite (loss {float(result['loss'])}, gradient "
        f"norm {float(result['grad_norm'])}); the weights are those before this update, the batch "
        f"is in {path}"
    )


def save_batch(batch: Rollout, folder: str | None, step: int) -> Path:
    """Writes a batch that broke the run as safetensors; returns the file."""
    from safetensors.torch import save_file

    target = Path(folder or tempfile.mkdtemp(prefix="rlkit-"))
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"not_finite_step_{step}.safetensors"
    tensors = {f.name: getattr(batch, f.name) for f in fields(batch)}
    save_file({k: v.contiguous() for k, v in tensors.items() if isinstance(v, Tensor)}, path)
    return path
