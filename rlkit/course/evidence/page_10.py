"""Page 10: PPO and RLOO on a learned reward, held near the reference and not; best of n."""

from collections.abc import Sequence
from typing import Any

from rlkit.course.evidence.effect import Effect, Evidence

HELD = 0.5
"""The beta of those that are held near the reference; free ones have 0."""
NAMES = {"rloo": "RLOO", "ppo": "PPO"}


def measure(seed: int) -> dict[str, float]:
    """Four trainings and one choice among 64 answers; some minutes."""
    from rlkit.course.judged import HeldOut, best_of_rows, load_judge, run

    held_out = HeldOut(load_judge(), seed=seed)
    rows = [
        {"algorithm": algorithm, "beta": beta, "seed": seed} | row
        for algorithm in NAMES
        for beta in (0.0, HELD)
        for row in run(algorithm, beta, seed, held_out)
    ]
    return summary(seed, rows, best_of_rows(seed, held_out))


def summary(
    seed: int, rows: Sequence[dict[str, Any]], best: Sequence[dict[str, Any]]
) -> dict[str, float]:
    """The numbers of one seed, from what `judged.curves` and `judged.best_of_curves` hold.

    Accuracy is greedy, but for what is called sampled.
    """
    found = {}
    for algorithm, name in NAMES.items():
        free, held = (
            [r for r in rows if (r["algorithm"], r["beta"], r["seed"]) == (algorithm, beta, seed)]
            for beta in (0.0, HELD)
        )
        found |= {
            f"{name} before": free[0]["greedy"],
            f"{name} free, best on the way": max(row["greedy"] for row in free),
            f"{name} free, end": free[-1]["greedy"],
            f"{name} free, paid before": free[0]["learned"],
            f"{name} free, paid at the end": free[-1]["learned"],
            f"{name} free, nats": free[-1]["kl"],
            f"{name} held": held[-1]["greedy"],
            f"{name} held, sampled": held[-1]["right"],
            f"{name} held, nats": held[-1]["kl"],
        }
    for n in (8, 64):
        (row,) = (row for row in best if (row["seed"], row["n"]) == (seed, n))
        found |= {f"best of {n}, right": row["right"], f"best of {n}, paid": row["learned"]}
    return found


def effects() -> list[Effect]:
    """Of both algorithms, and of choosing."""
    found = [
        Effect("best of 64, paid", "best of 8, paid"),
        Effect("best of 8, right", "best of 64, right", at_least=0.05),
    ]
    for name in NAMES.values():
        found += [
            Effect(f"{name} held", 0.85),
            Effect(f"{name} held", f"{name} before", at_least=0.3),
            Effect(f"{name} free, paid at the end", f"{name} free, paid before", at_least=1.0),
            Effect(f"{name} free, best on the way", f"{name} free, end", at_least=0.3),
        ]
    return found


EVIDENCE = Evidence(
    says="a learned reward teaches sums near the reference, and misleads where nothing holds",
    measure=measure,
    effects=tuple(effects()),
)
