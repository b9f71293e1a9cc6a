"""The curve of a live run as a static picture, for pages that no kernel stands behind."""

from typing import TYPE_CHECKING, Any

from rlkit.optional import require
from rlkit.widgets import story

if TYPE_CHECKING:
    from rlkit.widgets.live import LiveRun

BLUE, ORANGE, INK = "#0072b2", "#b34a00", "#222222"  # the live curve's colours on a light page


def figure(run: "LiveRun") -> Any:
    """A matplotlib Figure on white (readable on a dark page too), with the finding as its title.

    Raises ImportError, with the way to get it, where matplotlib is missing.
    """
    require("matplotlib", "a static picture of the curve")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(7.6, 3.8), dpi=110, facecolor="white", layout="constrained")
    names = {line["key"]: story.named(line) for line in story.legend(run)}
    above = {"lw": 2.2, "marker": "o", "zorder": 3, "clip_on": False}
    ax.plot(*columns(run.accuracy), color=BLUE, label=names["accuracy"], **above)
    ax.plot(*columns(run.reward), color=ORANGE, lw=1.1, label=names["reward"])
    if run.guess is not None:
        ax.axhline(run.guess, color=INK, lw=1.3, ls=(0, (5, 4)), label=names["guess"])
    dress(ax, run)
    plt.close(fig)  # a cell shows it once, as its value
    return fig


def columns(series: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """[(x, y), ...] -> (xs, ys)"""
    return [x for x, _ in series], [y for _, y in series]


def dress(ax: Any, run: "LiveRun") -> None:
    """Title, axes with units, legend below the axes where no line runs."""
    words = story.view(run)
    ax.set_title(words["title"], loc="left", fontsize=12, fontweight="bold", color=INK)
    ax.set(xlim=(0, run.steps), ylim=run.ylim, xlabel=words["xlabel"], ylabel=words["ylabel"])
    ax.grid(axis="y", color=INK, alpha=0.14)
    ax.spines[["top", "right", "left"]].set_visible(False)
    handles, labels = ax.get_legend_handles_labels()
    ax.figure.legend(
        handles, labels, loc="outside lower left", ncols=len(labels), frameon=False, fontsize=9.5
    )
