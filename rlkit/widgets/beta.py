"""The beta explorer: what a reward model pays, what is right, and how far the policy went.

    BetaExplorer()              choose algorithm and beta; the slider goes through the training

Nothing is computed here: it shows trainings that were measured (rlkit.course.judged), three seeds
each, on held-out prompts. Dashed, beside them: the untrained policy, whose best of n answers the
reward model picks, at the most nats that this can be away, log n - (n - 1) / n.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlkit.widgets.explorer import COLOURS, Choice, Explorer, Slider, floats, paper, titled

KEYS = ("learned", "right", "kl", "short")
ALGORITHMS = {"RLOO": "rloo", "PPO": "ppo"}
LEARNED, NATS = (-0.5, 2.0), (0.0, 11.0)
"""Ends of the axes. Nats are drawn by their root, as Gao et al. do: most happens near 0."""
TICKS = (0, 0.25, 1, 2, 4, 7, 10)


class BetaExplorer(Explorer):
    """algorithm: RLOO or PPO; beta: as text; done: per cent of the training."""

    script = "beta.js"

    def __init__(
        self,
        rows: Sequence[dict[str, Any]] | None = None,
        best: Sequence[dict[str, Any]] | None = None,
        **start: Any,
    ) -> None:
        """rows, best: as `judged.curves` and `judged.best_of_curves` give them; None: those.

        Raises ValueError where trainings differ in length, or some are missing.
        """
        from rlkit.course import judged

        rows = judged.curves() if rows is None else rows
        best = judged.best_of_curves() if best is None else best
        betas = sorted({row["beta"] for row in rows})
        self._runs = stacked(rows, betas)  # [algorithm, beta, seed, look, key]
        steps = [max(r["step"] for r in rows if r["algorithm"] == a) for a in ALGORITHMS.values()]
        data = {"betas": betas, "steps": steps, "shape": list(self._runs.shape)}
        data |= {"runs": floats(self._runs), "best": points(best, judged.kl_bound)}
        looks = self._runs.shape[3] - 1
        controls = [
            Choice("algorithm", "algorithm", tuple(ALGORITHMS)),
            Choice("beta", "beta", tuple(f"{beta:g}" for beta in betas)),
            Slider("done", "training done", 0, 100, 100 / looks, 0, " %"),
        ]
        super().__init__(controls, data, **({"done": 100} | start))

    @property
    def at(self) -> tuple[int, int, int]:
        """Places of algorithm, beta and look in the measured numbers."""
        values, looks = self.values, self._runs.shape[3] - 1
        betas = [f"{beta:g}" for beta in self.data["betas"]]
        look = round(values["done"] / 100 * looks)
        return list(ALGORITHMS).index(values["algorithm"]), betas.index(values["beta"]), look

    def numbers(self) -> dict[str, float]:
        """Means over the seeds at this moment."""
        algorithm, beta, look = self.at
        means = self._runs[algorithm, beta, :, look].mean(0)
        return dict(zip(KEYS, map(float, means), strict=True))

    def static(self) -> Any:
        """The same three pictures."""
        fig, axes = paper(1, 1, 1.3, width=11, height=3.7)
        algorithm, beta, look = self.at
        steps = np.linspace(0, self.data["steps"][algorithm], self._runs.shape[3])
        for ax, key, name in zip(axes, (0, 1), NAMES, strict=False):
            for seed in self._runs[algorithm, beta]:
                ax.plot(steps, seed[:, key], color=COLOURS[name[1]], lw=0.8, alpha=0.5)
            means = self._runs[algorithm, beta, :, :, key].mean(0)
            ax.plot(steps, means, color=COLOURS[name[1]], lw=2.4)
            ax.plot(steps[look], means[look], name[2], color=COLOURS[name[1]], ms=8)
            ax.set(xlabel="training step", ylabel=name[0], ylim=((0, 1) if key else LEARNED))
            ax.text(steps[look], means[look], f" {means[look]:.2f}", va="bottom", ha="right")
        self._against_nats(axes[2])
        return titled(fig, title(self.values, self.numbers(), self.step))

    @property
    def step(self) -> int:
        """Of the training, at this moment."""
        algorithm, _, look = self.at
        return round(self.data["steps"][algorithm] * look / (self._runs.shape[3] - 1))

    def _against_nats(self, ax: Any) -> None:
        """Share of right answers against KL, all beta; best of n dashed."""
        algorithm, chosen, look = self.at
        paths = self._runs[algorithm, :, :, : look + 1].mean(1)  # [beta, look, key]
        xs, ys = np.sqrt(paths[..., 2].clip(0)), paths[..., 1]
        ax.plot(xs[:, -1], ys[:, -1], "-s", color="#777777", lw=1, ms=4)
        ax.plot(xs[chosen], ys[chosen], color=COLOURS["orange"], lw=2.4)
        ax.plot(xs[chosen, -1], ys[chosen, -1], "s", color=COLOURS["orange"], ms=8, zorder=3)
        top = int(ys[:, -1].argmax())
        for i, beta in enumerate(self.data["betas"]):
            side = int(np.sign(i - top))  # labels of smaller beta stand on the right of the arc
            ax.annotate(
                f"{beta:g}",
                (xs[i, -1], ys[i, -1]),
                xytext=(-7 * side, -3 if side else 8),
                textcoords="offset points",
                ha=("left", "center", "right")[side + 1],
                weight="bold" if i == chosen else "normal",
            )
        n, nats, right = zip(*self.data["best"], strict=True)
        ax.plot(np.sqrt(nats), right, "--^", ms=4, color=COLOURS["green"])
        ax.text(np.sqrt(nats[-1]), right[-1], f"  best of {n[-1]}", color=COLOURS["green"])
        ax.set_xticks(np.sqrt(TICKS), [f"{nats:g}" for nats in TICKS])
        ax.set(xlim=np.sqrt(NATS), ylim=(0, 1))
        ax.set_xlabel("KL from the policy before, nats an answer (root scale)")
        ax.set_title("share right; numbers: beta; dashed: best of n", loc="left", fontsize=9.5)


NAMES = (
    ("learned reward", "blue", "o"),
    ("share of right answers", "orange", "s"),
)


def stacked(rows: Sequence[dict[str, Any]], betas: Sequence[float]) -> np.ndarray:
    """[algorithm, beta, seed, look, key]. Raises ValueError if that leaves holes."""
    seeds = sorted({row["seed"] for row in rows})
    found = [
        [[run_of(rows, a, beta, seed) for seed in seeds] for beta in betas]
        for a in ALGORITHMS.values()
    ]
    lengths = {len(run) for one in found for several in one for run in several}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"trainings of {sorted(lengths)} looks do not make one picture")
    return np.array(found, dtype=np.float32)


def run_of(
    rows: Sequence[dict[str, Any]], algorithm: str, beta: float, seed: float
) -> list[list[float]]:
    """The looks of one training."""
    wanted = (algorithm, beta, seed)
    return [
        [row[key] for key in KEYS]
        for row in rows
        if (row["algorithm"], row["beta"], row["seed"]) == wanted
    ]


def points(best: Sequence[dict[str, Any]], bound: Any) -> list[list[float]]:
    """[n, nats at most, share right], means over the seeds."""
    sizes = sorted({int(row["n"]) for row in best})
    right = {n: [row["right"] for row in best if row["n"] == n] for n in sizes}
    return [[n, bound(n), sum(right[n]) / len(right[n])] for n in sizes]


def title(values: dict[str, Any], numbers: dict[str, float], step: int) -> str:
    """The finding."""
    ahead = f"{values['algorithm']}, beta {values['beta']}, step {step}: the judge pays"
    right = f"{100 * numbers['right']:.0f} of 100 are right"
    return f"{ahead} {numbers['learned']:.2f}; {right}; {numbers['kl']:.1f} nats away"
