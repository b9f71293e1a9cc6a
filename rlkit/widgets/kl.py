"""The KL explorer: three estimates of one divergence, word by word.

    KLExplorer(q)          sliders move two logits of p away from the reference q

    x = log p - log q      k1 = x      k2 = x^2 / 2      k3 = e^-x - 1 + x

Each word is drawn as often as p says. k1 and k3 are right on average, k1 spreads more.
Schulman 2020, http://joschu.net/blog/kl-approx.html
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlkit.widgets.explorer import COLOURS, INK, Explorer, Slider, paper, titled

STYLES = {"k1": ("blue", "o"), "k2": ("green", "s"), "k3": ("orange", "^")}


class KLExplorer(Explorer):
    """q: the reference's probabilities of some words, at least two."""

    script = "kl.js"

    def __init__(self, q: Sequence[float] = (0.4, 0.3, 0.2, 0.1), **start: Any) -> None:
        q = np.asarray(q, dtype=np.float64)
        if len(q) < 2 or not (q > 0).all():
            raise ValueError("q needs two or more probabilities above 0")
        controls = [
            Slider("first", "logit of word 0", -3, 3, 0.1),
            Slider("last", f"logit of word {len(q) - 1}", -3, 3, 0.1),
        ]
        start = {"first": 0.5, "last": -0.5} | start
        super().__init__(controls, {"q": (q / q.sum()).tolist()}, **start)

    @property
    def p(self) -> np.ndarray:
        """The policy that the sliders make of q."""
        weights = np.array(self.data["q"])
        weights[0] *= np.exp(self.values["first"])
        weights[-1] *= np.exp(self.values["last"])
        return weights / weights.sum()

    def estimates(self) -> dict[str, np.ndarray]:
        """Each word's, by name."""
        x = np.log(self.p / np.array(self.data["q"]))
        return {"k1": x, "k2": x**2 / 2, "k3": np.expm1(-x) + x}

    def numbers(self) -> dict[str, float]:
        """The divergence, and mean and spread of each estimate."""
        p, found = self.p, {}
        for name, k in self.estimates().items():
            mean = float(p @ k)
            found |= {name: mean, f"{name} spread": float(np.sqrt(p @ (k - mean) ** 2))}
        return {"divergence": found["k1"]} | found

    def static(self) -> Any:
        """Both policies, and the estimates word by word."""
        fig, (left, right) = paper(1, 1.4)
        words, q = np.arange(len(self.p)), np.array(self.data["q"])
        left.bar(words - 0.2, q, 0.38, color="#bbbbbb", label="q, the reference")
        left.bar(words + 0.2, self.p, 0.38, color=COLOURS["blue"], label="p")
        left.set(xlabel="word", ylabel="probability", xticks=words)
        left.legend(frameon=False)
        numbers = self.numbers()
        for name, k in self.estimates().items():
            colour, marker = STYLES[name]
            told = f"{name}: {numbers[name]:.3f} ± {numbers[f'{name} spread']:.3f}"
            right.plot(words, k, marker, color=COLOURS[colour], label=told)
        right.axhline(numbers["divergence"], color=INK, ls="--", lw=1)
        right.set(xlabel="word that was drawn", ylabel="estimate", xticks=words)
        right.legend(frameon=False)
        return titled(fig, title(numbers))


def title(numbers: dict[str, float]) -> str:
    """The finding."""
    off = numbers["k2"] - numbers["divergence"]
    ahead = f"Divergence {numbers['divergence']:.3f}: k1 spreads by {numbers['k1 spread']:.3f}"
    return f"{ahead}, k3 by {numbers['k3 spread']:.3f}; k2 is off by {off:+.3f}"
