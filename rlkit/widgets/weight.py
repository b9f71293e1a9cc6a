"""The loss-weight explorer: what dividing by the standard deviation does to hard prompts.

    WeightExplorer(p=0.03)             sliders: p, the chance of a right answer, and G

Loudness is what a prompt contributes: the sum of its positive advantages over G, on the mean over
all that can be drawn. With rewards 0 and 1, k of G right:

    reward - mean              k (G - k) / G^2
    divided by std (ddof=1)    sqrt(k (G - k) (G - 1) / G^3)

A group with k = 0 or k = G is dead: it contributes nothing, whatever it is divided by.
"""

from math import comb, sqrt
from typing import Any, ClassVar

from rlkit.widgets.explorer import COLOURS, INK, Explorer, Slider, paper, titled


def loudness(p: float, G: int) -> tuple[float, float, float]:
    """(plain, divided by the std, chance of a dead group) of a prompt, exact."""
    plain = divided = dead = 0.0
    for k in range(G + 1):
        chance = comb(G, k) * p**k * (1 - p) ** (G - k)
        plain += chance * k * (G - k) / G**2
        divided += chance * sqrt(k * (G - k) * (G - 1) / G**3)
        dead += chance if k in (0, G) else 0.0
    return plain, divided, dead


class WeightExplorer(Explorer):
    """Two sliders; loudness over p with and without the std, and the share of dead groups."""

    script: ClassVar[str] = "weight.js"

    def __init__(self, **start: Any) -> None:
        """start: p or G; ValueError for a value that is out of range."""
        controls = [
            Slider("p", "p", 0.01, 0.99, 0.01),
            Slider("G", "answers G", 2, 64, 1, 0),
        ]
        super().__init__(controls, **({"p": 0.03, "G": 8} | start))

    def numbers(self) -> dict[str, float]:
        """Loudness at p, plain and divided; both beside those at p = 0.5; the dead share."""
        G = int(self.values["G"])
        plain, divided, dead = loudness(self.values["p"], G)
        middle, middle_divided, _ = loudness(0.5, G)
        shares = {"share": plain / middle, "share_divided": divided / middle_divided}
        return {"plain": plain, "divided": divided, "dead": dead} | shares

    def static(self) -> Any:
        """The three curves, with this p and p = 0.5 marked."""
        fig, (ax,) = paper(1)
        p, G = self.values["p"], int(self.values["G"])
        ps = [0.01 + 0.005 * i for i in range(197)]
        styles = [
            ("reward - mean", COLOURS["blue"], "--", "o"),
            ("(reward - mean) / std", COLOURS["orange"], "-", "s"),
            ("share of dead groups", COLOURS["purple"], ":", "^"),
        ]
        for i, (label, colour, dash, marker) in enumerate(styles):
            ax.plot(ps, [loudness(x, G)[i] for x in ps], dash, color=colour, label=label, lw=2)
            for x in (p, 0.5):
                y = loudness(x, G)[i]
                ax.plot([x], [y], marker, color=colour, ms=7)
                ax.annotate(f"{y:.2f}", (x, y), (7, 5), textcoords="offset points", fontsize=9)
        ax.axvline(p, color=INK, lw=0.8, alpha=0.5)
        ax.set(xlim=(0, 1), ylim=(0, 1), ylabel="loudness, or share")
        ax.set_xlabel(f"p, the chance that an answer to this prompt is right (G = {G})")
        ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))
        found = self.numbers()
        says = f"Beside p = 0.50, a prompt with p = {p:.2f} counts {found['share']:.2f}"
        return titled(fig, f"{says}; divided by the std {found['share_divided']:.2f}")
