"""Two static pictures of sharding: what ranks exchange, and what more ranks do not shrink.

sharding.exchange(parts, gradients)     # all-gather and reduce-scatter, on your own numbers
sharding.scaling(rows)                  # peak per rank against the number of ranks
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rlkit.memory.timeline import in_order
from rlkit.optional import require
from rlkit.widgets.categories import look
from rlkit.widgets.static import INK

FILLS = ("#cfe3f5", "#fbe0bd", "#d3ecdf", "#e9d9f2")
"""Of the parts of each rank, pale, so that the numbers on them are read."""
GIB = 2**30
LARGE = 0.02
"""A category is named if it is more than this share of the highest bar."""


def exchange(parts: Sequence[Tensor], gradients: Sequence[Tensor]) -> Any:
    """parts: of each rank, [rows / N, columns], its part of a weight. gradients: of each rank,
    [rows, columns], of the whole weight on its own data. Returns a matplotlib Figure."""
    require("matplotlib", "a picture of sharding")
    import matplotlib.pyplot as plt
    import torch

    size, (high, wide) = len(parts), gradients[0].shape
    fig, axes = plt.subplots(1, 2, figsize=(9.6, 1.0 + 1.55 * size), dpi=110, facecolor="white")
    whole, summed = torch.cat(list(parts)), torch.stack(list(gradients)).sum(0)
    step = high // size
    for rank in range(size):
        top = -rank * (high + 1.2)
        own = slice(rank * step, (rank + 1) * step)
        for ax, before, after, first, last in (
            (axes[0], parts[rank], whole, own.start, 0),
            (axes[1], gradients[rank], summed[own], 0, own.start),
        ):
            ax.text(-0.4, top - high / 2, f"rank {rank}", ha="right", va="center", color=INK)
            matrix(ax, 0, top - (own.start if len(before) < high else 0), before, first, step)
            arrow = {"arrowstyle": "-|>", "color": INK}
            ends = (wide + 1.5, top - high / 2), (wide + 0.3, top - high / 2)
            ax.annotate("", *ends, arrowprops=arrow)
            offset = own.start if len(after) < high else 0
            matrix(ax, wide + 1.8, top - offset, after, last, step)
    titles = ("all-gather: parts become a whole", "reduce-scatter: sums become parts")
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
        ax.set(xlim=(-2, 2 * wide + 2.2), ylim=(-size * (high + 1.2) + 0.9, 0.3))
        ax.set_aspect("equal")
        ax.axis("off")
    fig.tight_layout()
    plt.close(fig)
    return fig


def matrix(ax: Any, left: float, top: float, values: Tensor, first: int, step: int) -> None:
    """A grid of numbers; a row's fill says whose part it is. first: its row in the whole."""
    from matplotlib.patches import Rectangle

    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            fill = FILLS[(first + i) // step % len(FILLS)]
            place = left + j, top - i - 1
            ax.add_patch(Rectangle(place, 1, 1, facecolor=fill, edgecolor=INK, lw=0.8))
            words = f"{value:.1f}".replace("-", "\N{MINUS SIGN}")
            ax.text(place[0] + 0.5, place[1] + 0.5, words, ha="center", va="center", fontsize=9)


def scaling(rows: Sequence[dict[str, Any]]) -> Any:
    """rows: {"ranks", "head", "peak", bytes of each category}, in the order of ranks.

    Returns a matplotlib Figure: one panel a head, bars stacked by category, GiB on them.
    """
    require("matplotlib", "a picture of plans")
    import matplotlib.pyplot as plt

    heads = list(dict.fromkeys(row["head"] for row in rows))
    fig, axes = plt.subplots(
        1,
        len(heads),
        figsize=(9.6, 4.2),
        dpi=110,
        facecolor="white",
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    most = max(row["peak"] for row in rows)
    known = in_order(set(rows[0]) - {"ranks", "head", "peak"})
    large = [c for c in known if any(row[c] > LARGE * most for row in rows)]
    for ax, head in zip(axes[0], heads, strict=True):
        bars(ax, [row for row in rows if row["head"] == head], large)
        ax.set_title(f"{head} head", loc="left", fontsize=10, color=INK)
    axes[0][0].set_ylabel("GiB at the peak of each rank")
    fig.suptitle(finding(rows), x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    handles, labels = axes[0][0].get_legend_handles_labels()
    fig.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False, fontsize=9)
    plt.close(fig)
    return fig


def bars(ax: Any, rows: Sequence[dict[str, Any]], large: Sequence[str]) -> None:
    """One bar for each number of ranks."""
    places, floor = range(len(rows)), [0.0] * len(rows)
    others = [r["peak"] - sum(r[c] for c in large) for r in rows]
    stacked = [(look(c), [r[c] for r in rows]) for c in large] + [(look("other"), others)]
    for shown, amounts in stacked:
        heights = [x / GIB for x in amounts]
        style = {"color": shown.colour, "hatch": 2 * shown.hatch, "edgecolor": "white", "lw": 0.5}
        name = "all else" if shown.key == "other" else shown.label
        ax.bar(places, heights, bottom=floor, label=name, **style)
        floor = [a + b for a, b in zip(floor, heights, strict=True)]
    for place, height in zip(places, floor, strict=True):
        ax.annotate(
            f"{height:.1f}", (place, height), (0, 2), textcoords="offset points", ha="center"
        )
    ax.set_xticks(places, [str(row["ranks"]) for row in rows])
    ax.set_xlabel("ranks")
    ax.grid(axis="y", color=INK, alpha=0.14)
    ax.spines[["top", "right"]].set_visible(False)


def finding(rows: Sequence[dict[str, Any]]) -> str:
    """What the picture shows, in a line."""
    parts = []
    for head in dict.fromkeys(row["head"] for row in rows):
        mine = [row for row in rows if row["head"] == head]
        first, last = mine[0], mine[-1]
        parts.append(f"{head} head {first['peak'] / GIB:.1f} to {last['peak'] / GIB:.1f} GiB")
    ranks = sorted({row["ranks"] for row in rows})
    return f"From {ranks[0]} rank to {ranks[-1]}: {', '.join(parts)}"
