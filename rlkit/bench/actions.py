"""One action a completion, or one action a token? Compared on equal terms.

    rlkit bench actions [--seeds 1 2 3] [--out data/bench/actions.csv]

The same adder, prompts, samples and rewards (task "steps"). Where the reward stands on the last
token, nothing is discounted and the baseline is the same, both are one estimator: the return of
every token is the reward. They part where each token gets what it alone can have:

- a return of its own: a KL term inside the reward charges a token only with what comes after it;
- a baseline of its own: a value model (data/critic) expects something of each half-written answer;
- a ratio of its own: a batch that is used again is clipped token by token, or as a whole.

And in what they divide by: the batch's tokens scale a gradient, each completion's own turn it.

Measured: the angle of each gradient to that of whole completions on the same samples; its variance
over batches, beside the square of its mean; what is clipped, and the accuracy, when each batch is
used four times.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlkit.advantages import gae, leave_one_out, sequence_rewards, token_rewards
from rlkit.config import at_least
from rlkit.objectives import clipped_surrogate, kl_divergence
from rlkit.paths import data_path
from rlkit.rollout import Rollout

RECORD = "bench/actions.csv"
TASK, GROUP = "steps", 8
PROMPTS, FEW_PROMPTS = 32, 8
"""Of a batch that trains, and of one whose gradient is looked at."""
WARM_UP = 6
"""Updates before anything is measured, so that the policy has left its reference."""
BETA, LAM, EPSILON = 0.05, 0.95, 0.2
ROLLOUTS, REUSE, LEARNING_RATE = 10, 4, 1e-4
WHOLE, SAME, TOKENS, LENGTH, RETURN, CRITIC, GAE = (
    "completion",
    "token, same baseline",
    "token, over all tokens",
    "token, over own length",
    "token, own KL",
    "token, critic",
    "token, critic, lam 0.95",
)
SEQUENCE, TOKEN = "ratio of completions", "ratio of tokens"


@dataclass(frozen=True)
class Flags:
    """One action a completion against one action a token: same samples, same rewards."""

    seeds: tuple[int, ...] = (1, 2, 3)
    """Everything is measured once for each."""
    batches: int = 24
    """Batches of 64 completions, over which a gradient's variance is taken."""
    out: Path | None = None
    """Record the numbers in this file; None: print alone."""

    def __post_init__(self) -> None:
        at_least(self, "batches", 2)
        if not self.seeds:
            raise ValueError("seeds is empty; give at least one")


def main(argv: list[str]) -> int:
    """Prints a table of means and ranges over the seeds."""
    import tyro

    flags = tyro.cli(Flags, args=argv, prog="rlkit bench actions")
    rows = []
    for seed in flags.seeds:
        start = time.perf_counter()
        rows.append(measure(seed, flags.batches))
        print(f"seed {seed} took {time.perf_counter() - start:.0f} s", flush=True)
    print("\n" + table(rows))
    if flags.out is not None:
        write(flags.out, flags.seeds, rows)
    return 0


def measure(seed: int, batches: int) -> dict[str, float]:
    """Everything, by name."""
    return gradients(seed, batches) | reused(seed, "sequence") | reused(seed, "token")


# --- gradients


def advantages(rollout: Rollout, kl: Tensor, values: Tensor) -> dict[str, Tensor]:
    """Estimator -> advantages [B, T] of the same rollout.

    kl [B, T]: k1 of each token. values [B, T]: what the critic expects before it.
    """
    mask, rewards = rollout.mask, rollout.rewards
    alone = leave_one_out(rewards, GROUP)
    baseline = (rewards - alone)[:, None].expand(mask.shape)  # of the siblings
    at_the_end = token_rewards(rewards, None, mask, 0.0)
    charged = sequence_rewards(rewards, kl, mask, BETA)
    siblings = charged - leave_one_out(charged, GROUP)
    found = {
        WHOLE: alone[:, None].expand(mask.shape),
        SAME: gae(at_the_end, baseline, mask, 1.0, 1.0)[0],
        TOKENS: (alone * len(mask) / mask.sum())[:, None].expand(mask.shape),
        LENGTH: (alone / mask.sum(1))[:, None].expand(mask.shape),
        CRITIC: gae(at_the_end, values, mask, 1.0, 1.0)[0],
        GAE: gae(at_the_end, values, mask, 1.0, LAM)[0],
        f"{WHOLE}, KL": leave_one_out(charged, GROUP)[:, None].expand(mask.shape),
        RETURN: gae(
            token_rewards(rewards, kl, mask, BETA),
            siblings[:, None].expand(mask.shape),
            mask,
            1.0,
            1.0,
        )[0],
    }
    return {name: x * mask for name, x in found.items()}


def gradients(seed: int, batches: int) -> dict[str, float]:
    """Cosine to the gradient of whole completions, and variance over squared mean, by estimator."""
    from rlkit.policy import Policy, load_model
    from rlkit.tasks.critic import load_critic

    student = trained(seed)
    critic, reference = load_critic(), Policy(load_model("adder"))
    drawn: dict[str, list[Tensor]] = {}
    for k in range(WARM_UP, WARM_UP + batches):
        rollout = student.sample(k, prompts=FEW_PROMPTS, num_generations=GROUP)
        with torch.no_grad():
            logp_ref = reference(rollout, entropy=False)[0]
            values = critic(rollout)
        logp = student.policy(rollout, entropy=False)[0]
        kl = kl_divergence(logp.detach(), logp_ref, "k1")
        for name, own in advantages(rollout, kl, values).items():
            drawn.setdefault(name, []).append(gradient(student.policy, logp, own, rollout.mask))
    stacked = {name: torch.stack(parts) for name, parts in drawn.items()}
    found = {}
    for name, parts in stacked.items():
        base = stacked[f"{WHOLE}, KL" if name == RETURN else WHOLE]
        found[f"cosine, {name}"] = sum(map(cosine, parts, base)) / len(parts)
        found[f"variance, {name}"] = noise(parts)
    return found


def cosine(one: Tensor, other: Tensor) -> float:
    """Of the angle between two gradients; in float64, for they are long."""
    one, other = one.double(), other.double()
    return (one @ other / (one.norm() * other.norm()).clamp(min=1e-30)).item()


def noise(parts: Tensor) -> float:
    """Variance of one batch's gradient over the square of the mean gradient; parts [K, weights].

    The square of the mean of K is too large by a K-th of the variance, which is taken off.
    """
    mean = parts.mean(0)
    variance = (parts - mean).square().sum() / (len(parts) - 1)
    return (variance / (mean.square().sum() - variance / len(parts)).clamp(min=1e-12)).item()


def gradient(policy: Any, logp: Tensor, own: Tensor, mask: Tensor) -> Tensor:
    """Of -mean over completions of sum_t A_t logp_t, flat."""
    weights = list(policy.parameters())
    loss = -(own * logp * mask).sum() / len(mask)
    grads = torch.autograd.grad(loss, weights, retain_graph=True)
    return torch.cat([g.flatten() for g in grads])


def trained(seed: int) -> Any:
    """The adder after some updates of RLOO."""
    from rlkit.course.student import Student

    student = Student(task=TASK, seed=seed)
    learn(student, range(WARM_UP), 1, "sequence")
    return student


# --- a batch used again


def reused(seed: int, level: str) -> dict[str, float]:
    """Share of tokens that the clip silences, and accuracy, with the ratio of this level."""
    from rlkit.course.student import Student

    student = Student(task=TASK, seed=seed)
    silenced = learn(student, range(ROLLOUTS), REUSE, level)
    name = {"sequence": SEQUENCE, "token": TOKEN}[level]
    # the first use of a batch clips nothing
    later = [share for i, share in enumerate(silenced) if i % REUSE]
    return {
        f"silenced, {name}": sum(later) / len(later),
        f"accuracy, {name}": student.evaluate(greedy=False, rows=400)["accuracy"],
    }


def learn(student: Any, steps: Sequence[int], reuse: int, level: str) -> list[float]:
    """Updates by the clipped surrogate. Returns the share of tokens without gradient in each.

    Loss of both levels: the sum over a completion's tokens, the mean over completions; where no
    ratio has moved yet the gradients are the same.
    """
    optimizer = torch.optim.AdamW(student.model.parameters(), LEARNING_RATE, weight_decay=0.0)
    silenced = []
    for k in steps:
        rollout = student.sample(k, prompts=PROMPTS, num_generations=GROUP)
        own = leave_one_out(rollout.rewards, GROUP)[:, None]
        with torch.no_grad():
            old = student.policy(rollout, entropy=False)[0]
        for _ in range(reuse):
            logp = student.policy(rollout, entropy=False)[0]
            loss, share = surrogate(logp, old, own, rollout.mask, level)
            silenced.append(share)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(student.model.parameters(), 1.0)
            optimizer.step()
    return silenced


def surrogate(
    logp: Tensor, old: Tensor, own: Tensor, mask: Tensor, level: str
) -> tuple[Tensor, float]:
    """(loss, share of the tokens with an advantage whose gradient the clip takes)."""
    change = (logp - old) * mask
    if level == "sequence":
        change = change.sum(1, keepdim=True)
    ratio = change.exp()
    losses = clipped_surrogate(ratio, own, EPSILON)  # [B, 1] or [B, T]
    loss = losses.sum() if level == "sequence" else (losses * mask).sum()
    clipped = ((ratio < 1 - EPSILON) & (own < 0)) | ((ratio > 1 + EPSILON) & (own > 0))
    counts = mask & (own != 0)
    share = (clipped & counts).sum() / counts.sum().clamp(min=1)
    return loss / len(mask), share.item()


# --- what is printed and kept


def table(rows: Sequence[dict[str, float]]) -> str:
    """Mean over the seeds and, behind it, the range."""
    lines = [f"{'':40} {'mean':>10} {'least':>10} {'most':>10}"]
    for name in rows[0]:
        values = [row[name] for row in rows]
        cells = (sum(values) / len(values), min(values), max(values))
        lines.append(f"{name:40} " + " ".join(f"{x:10.4g}" for x in cells))
    return "\n".join(lines)


def write(path: Path, seeds: Sequence[int], rows: Sequence[dict[str, float]]) -> None:
    """One line a seed, in the form of a page's evidence."""
    from rlkit.course.evidence import commands

    commands.write(path, {name: [row[name] for row in rows] for name in rows[0]}, seeds)


def load(path: Path | None = None) -> dict[str, list[float]]:
    """What was recorded last: name -> one value a seed."""
    from rlkit.course import evidence

    return evidence.read(path or data_path(RECORD))


def picture(kept: dict[str, list[float]] | None = None) -> Any:
    """A matplotlib Figure: noise of each gradient beside the whole completion's, and what is cut.

    kept: of `load`. A dot a seed. Raises ImportError where matplotlib is missing.
    """
    from rlkit.widgets.explorer import INK, paper, titled

    kept = load() if kept is None else kept
    fig, (noisy, cut) = paper(1.5, 1, height=2.9)
    names = {
        "same baseline": (SAME, WHOLE),
        "KL: what follows": (RETURN, f"{WHOLE}, KL"),
        "critic, lam 1": (CRITIC, WHOLE),
        "critic, lam 0.95": (GAE, WHOLE),
        "over own length": (LENGTH, WHOLE),
    }
    shares = {
        label: [a / b for a, b in zip(*(kept[f"variance, {n}"] for n in pair), strict=True)]
        for label, pair in names.items()
    }
    dots(noisy, shares, "{:.2f}", "noise of the gradient / of whole completions")
    noisy.axvline(1, color=INK, linewidth=1, linestyle=":")
    fig.get_layout_engine().set(w_pad=0.3)  # inches: means stand right of the left panel
    silenced = {n: [100 * x for x in kept[f"silenced, {n}"]] for n in (SEQUENCE, TOKEN)}
    dots(cut, silenced, "{:.1f} %", "tokens silenced by the clip, %")
    return titled(fig, "Per token: a critic takes noise away, and the clip cuts far less")


def dots(ax: Any, values: dict[str, list[float]], form: str, title: str) -> None:
    """A line for each name, a dot for each seed, the mean at the right end."""
    from rlkit.widgets.explorer import INK

    for i, numbers in enumerate(values.values()):
        ax.plot(numbers, [i] * len(numbers), "o", color=INK, alpha=0.7)
        mean = form.format(sum(numbers) / len(numbers))
        ax.text(1.01, i, mean, transform=ax.get_yaxis_transform(), va="center", fontsize=9)
    ax.set_yticks(range(len(values)), list(values), fontsize=9)
    ax.set_ylim(len(values) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.set_xlabel(title, fontsize=9)
