"""Stacked bars of bytes by category, as a static picture: what several runs hold at their peaks.

memory_bars({"RLOO": {"param": 2_400_000, ...}, ...}, "RLOO is smaller", "measured, the adder")
"""

from collections.abc import Mapping
from typing import Any

from rlkit.memory.timeline import in_order
from rlkit.widgets.categories import look
from rlkit.widgets.explorer import paper, titled

MiB = 2**20
LEAST, SEEN = 0.03, 0.004
"""Of the highest bar: what is smaller than the first gets no number, than the second no name."""


def memory_bars(bars: Mapping[str, Mapping[str, int]], finding: str, source: str) -> Any:
    """A matplotlib Figure on white.

    bars: name -> category -> bytes. finding: the title. source: whether they were measured or
    planned, and of what.
    Raises ImportError where matplotlib is missing, ValueError without bars.
    """
    if not bars:
        raise ValueError("there are no bars to draw")
    totals = [sum(each.values()) / MiB for each in bars.values()]
    fig, (ax,) = paper(1, height=4.2)
    drawn: dict[str, Any] = {}
    for x, each in enumerate(bars.values()):
        drawn |= stack(ax, x, each, max(totals))
        ax.text(x, totals[x], f"{totals[x]:.1f}", ha="center", va="bottom", weight="bold")
    ax.set_xticks(range(len(bars)), list(bars))
    ax.set(ylabel="bytes at the peak, MiB", ylim=(0, 1.1 * max(totals)))
    ax.set_title(source, loc="left", fontsize=9.5)
    order = in_order(drawn)[::-1]
    place = {"loc": "outside right center", "fontsize": 8.5, "frameon": False}
    fig.legend([drawn[key] for key in order], [look(key).label for key in order], **place)
    return titled(fig, finding)


def stack(ax: Any, x: float, sizes: Mapping[str, int], most: float) -> dict[str, Any]:
    """One bar beside others of at most `most` MiB; its parts that can be seen, by category."""
    floor, drawn = 0.0, {}
    for key in in_order(sizes):
        high, style = sizes[key] / MiB, look(key)
        fill = dict(color=style.colour, hatch=2 * style.hatch, edgecolor="white", lw=0.5)
        (part,) = ax.bar([x], [high], 0.62, floor, **fill)
        if high > SEEN * most:
            drawn[key] = part
        if high > LEAST * most:
            box = {"facecolor": "white", "alpha": 0.85, "pad": 1, "lw": 0}
            place = dict(ha="center", va="center", fontsize=8.5, bbox=box)
            ax.text(x, floor + high / 2, f"{high:.1f}", **place)
        floor += high
    return drawn
