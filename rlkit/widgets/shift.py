"""The shift explorer: what a constant added to every reward does to the steps of three answers.

    ShiftExplorer(rewards=[1.0, 0.0, 0.0], logits=[1.0, 2.0, 0.0])

A step draws `count` answers and averages (r + shift - baseline) (one-hot - p): REINFORCE for a
model whose weights are three logits. Gradients of a softmax sum to 0, so they lie in a plane:
across, the first answer against the two others; up, the second against the third. The baseline is
the expected reward. The draws are the same for all settings; a dot's area counts the steps that
fell on it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlkit.widgets.explorer import (
    COLOURS,
    INK,
    Choice,
    Explorer,
    Slider,
    Toggle,
    floats,
    paper,
    titled,
)

STEPS, COUNTS = 400, (8, 16, 64)
ACROSS = np.array([[2, -1, -1], [0, 1, -1]]) / np.sqrt([[6], [2]])  # [2, 3]
HIGH = 2.0


class ShiftExplorer(Explorer):
    """rewards, logits: of three answers. Raises ValueError for other numbers of them."""

    script = "shift.js"

    def __init__(
        self,
        rewards: Sequence[float],
        logits: Sequence[float],
        names: Sequence[str] = ("85", "86", "58"),
        **start: Any,
    ) -> None:
        if not len(rewards) == len(logits) == len(names) == 3:
            raise ValueError(f"three answers, please; these are {len(rewards)} rewards")
        p = np.exp(np.asarray(logits, dtype=np.float64))
        p = p / p.sum()
        rewards = np.asarray(rewards, dtype=np.float64)
        exact = p * (rewards - p @ rewards)
        if not np.abs(exact).max() > 1e-12:
            raise ValueError("all rewards are equal: there is no gradient to find")
        self._draws = np.random.default_rng(0).choice(3, size=(STEPS, COUNTS[-1]), p=p)
        data = {"p": p.tolist(), "rewards": rewards.tolist(), "exact": exact.tolist()}
        data |= {"names": list(names), "draws": floats(self._draws), "most": COUNTS[-1]}
        controls = [
            Slider("shift", "added to every one", 0, 5, 0.25),
            Choice("count", "answers a step", tuple(map(str, COUNTS))),
            Toggle("baseline", "less the expected reward"),
        ]
        super().__init__(controls, data, **({"count": "16"} | start))

    def steps(self) -> np.ndarray:
        """[STEPS, 2]: each step as a point of the plane."""
        values = self.values
        p, rewards = np.array(self.data["p"]), np.array(self.data["rewards"]) + values["shift"]
        weights = rewards - (p @ rewards if values["baseline"] else 0.0)
        of = (weights[:, None] * (np.eye(3) - p)) @ ACROSS.T  # [3, 2]
        return of[self._draws[:, : int(values["count"])]].mean(1)

    def numbers(self) -> dict[str, float]:
        """The steps' centre; how far one is off, in lengths of the gradient; the share astray."""
        steps, exact = self.steps(), ACROSS @ np.array(self.data["exact"])
        width = np.sqrt(((steps - exact) ** 2).sum(1).mean())
        x, y = steps.mean(0)
        ratio, astray = width / np.linalg.norm(exact), (steps @ exact < 0).mean()
        numbers = {"centre x": x, "centre y": y, "ratio": ratio, "astray": astray}
        return {name: float(value) for name, value in numbers.items()}

    def static(self) -> Any:
        """The cloud as it is, and with 4 added, without the baseline and with it."""
        fig, axes = paper(1, 1, 1, width=11, height=3.6)
        now = self.values
        settings = [now, now | {"shift": 4.0, "baseline": False}]
        for ax, values in zip(axes, [*settings, settings[1] | {"baseline": True}], strict=True):
            one = ShiftExplorer(self.data["rewards"], np.log(self.data["p"]), **values)
            cloud(ax, one, f"{values['shift']:g} added{', baseline' * values['baseline']}")
        return titled(fig, "A constant added to every reward keeps the centre and widens the steps")


def cloud(ax: Any, explorer: ShiftExplorer, name: str) -> None:
    """One setting: steps, their centre, the exact gradient."""
    steps, numbers = explorer.steps(), explorer.numbers()
    exact = ACROSS @ np.array(explorer.data["exact"])
    points, times = np.unique(steps.round(9), axis=0, return_counts=True)
    ax.scatter(*points.T, s=3 + 4 * times, alpha=0.5, color=COLOURS["blue"], lw=0)
    ax.plot(*exact, "o", ms=13, mfc="none", mew=2, color=COLOURS["orange"])
    ax.plot(numbers["centre x"], numbers["centre y"], "+", ms=11, mew=2, color=INK)
    first, second, third = explorer.data["names"]
    ax.set(xlim=(-1.4 * HIGH, 1.4 * HIGH), ylim=(-HIGH, HIGH), aspect="equal")
    ax.set(xlabel=f"more of {first}", ylabel=f"more of {second}, less of {third}")
    ax.set_title(f"{name}: off by {numbers['ratio']:.1f} lengths", loc="left", fontsize=10)
