"""The picture of ranks at work without a page: matplotlib, on white."""

from typing import TYPE_CHECKING, Any

from rlkit.optional import require
from rlkit.widgets.categories import look
from rlkit.widgets.ranks import MB, columns, rewards, total_steps
from rlkit.widgets.static import INK

if TYPE_CHECKING:
    from rlkit.widgets.ranks import LiveRanks


def figure(run: "LiveRanks") -> Any:
    """Bytes of each rank stacked by category on one axis, the reward below, numbers at the side.

    Raises ImportError, with the way to get it, where matplotlib is missing.
    """
    require("matplotlib", "a static picture of ranks")
    import matplotlib.pyplot as plt

    panels = run.panels()
    fig, axes = plt.subplots(
        2,
        len(panels),
        figsize=(2.4 + 2.9 * len(panels), 4.4),
        dpi=110,
        facecolor="white",
        layout="constrained",
        sharex="col",
        sharey="row",
        squeeze=False,
        height_ratios=(4, 1),
    )
    found = {}
    for (name, ranks, number), upper, lower in zip(panels, *axes, strict=True):
        found |= stack(upper, ranks, number)
        upper.set_title(name, loc="left", fontsize=10, color=INK)
        steps, values = zip(*rewards(ranks), strict=True) if rewards(ranks) else ((), ())
        lower.plot(steps, values, color=INK, lw=1.4)
        dress(run, upper, lower, total_steps(ranks))
    axes[0][0].set_ylabel("MB")
    axes[1][0].set_ylabel("reward")
    fig.suptitle(run.title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    legend(fig, run, found)
    plt.close(fig)  # a cell shows it once, as its value
    return fig


def stack(ax: Any, ranks: Any, number: int) -> dict[str, Any]:
    """The areas of one rank; returns them by category."""
    steps, stacked = columns(ranks, number)
    drawn = {"step": "post", "lw": 0.4, "edgecolor": "white"}
    areas = ax.stackplot(steps, list(stacked.values()), **drawn) if steps else []
    for category, area in zip(stacked, areas, strict=True):
        area.set_facecolor(look(category).colour)
        area.set_hatch(2 * look(category).hatch)
    return dict(zip(stacked, areas, strict=True))


def dress(run: "LiveRanks", upper: Any, lower: Any, steps: int) -> None:
    """Axes that are the same in every panel."""
    for line in run.lines():
        upper.axhline(line["bytes"] / MB, color=INK, lw=1.3, ls=(0, (5, 4)))
        place = (steps, line["bytes"] / MB)
        upper.annotate(line["name"], place, (0, 3), textcoords="offset points", ha="right")
    upper.set(xlim=(0, steps), ylim=(0, run.top() / MB))
    lower.set(ylim=(0, 1.05), xlabel="step")
    lower.xaxis.get_major_locator().set_params(integer=True)
    for ax in (upper, lower):
        ax.grid(axis="y", color=INK, alpha=0.14)
        ax.spines[["top", "right"]].set_visible(False)


def legend(fig: Any, run: "LiveRanks", areas: dict[str, Any]) -> None:
    """Names with the numbers of the last step, stacked as the areas are."""
    rows = run.table()["rows"][:-1]
    shown = [row for row in rows if row["look"]["key"] in areas]
    labels = [f"{row['cells'][0]}\n{'  '.join(row['cells'][1:])} MB" for row in shown]
    handles = [areas[row["look"]["key"]] for row in shown]
    fig.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8.5)
