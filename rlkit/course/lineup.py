"""Page 06's picture: where seven trainings ended, beside what six probes say of each suspect."""

from typing import Any

from rlkit.course.evidence import Numbers
from rlkit.optional import require

INK, BLUE, ORANGE, PALE = "#222222", "#0072b2", "#b34a00", "#8a8a8a"


def lineup(ends: Numbers, table: dict[str, dict[str, bool]]) -> Any:
    """A matplotlib Figure on white. Raises ImportError where matplotlib is missing.

    ends: {"accuracy right": one a seed, "accuracy A": ..., ...}
    table: suspect -> part -> whether the part's probe is content.
    """
    require("matplotlib", "the line-up")
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(
        1, 2, figsize=(8.6, 3.6), dpi=110, facecolor="white", layout="constrained",
        width_ratios=(1, 1.35), sharey=True,
    )  # fmt: skip
    draw_ends(left, ends, list(table))
    draw_probes(right, table)
    plt.close(fig)  # a cell shows it once, as its value
    return fig


def draw_ends(ax: Any, ends: Numbers, suspects: list[str]) -> None:
    """A dot a run; the band is the range of the right step's runs."""
    right = ends["accuracy right"]
    ax.axvspan(min(right), max(right), color=PALE, alpha=0.25, lw=0)
    lower = 0
    for row, who in enumerate(["right", *suspects]):
        runs = ends[f"accuracy {who}"]
        as_high = sum(runs) / len(runs) >= min(right)
        lower += not as_high
        marker, colour = ("o", BLUE) if as_high else ("D", ORANGE)
        ax.plot(runs, [row] * len(runs), marker, color=colour, ms=6, mfc="white", mew=1.6)
    silent = len(suspects) - lower
    ax.set_title(f"Curves: {silent} of {len(suspects)} end as high as right", **title())
    ax.set(
        xlabel="greedy accuracy after training, three runs each", ylim=(len(suspects) + 0.6, -0.6)
    )
    ax.set_yticks(range(len(suspects) + 1), ["right", *suspects])
    tidy(ax)


def draw_probes(ax: Any, table: dict[str, dict[str, bool]]) -> None:
    """A cell an answer: a small dot for content, a box with the word for not."""
    names = list(next(iter(table.values())))
    for row, answers in enumerate(table.values(), 1):
        for column, name in enumerate(names):
            if answers[name]:
                ax.plot(column, row, ".", color=PALE, ms=5)
            else:
                box = {"boxstyle": "round,pad=0.3", "fc": "white", "ec": ORANGE, "lw": 1.6}
                ax.text(
                    column, row, "wrong", color=ORANGE, ha="center", va="center", fontsize=9,
                    fontweight="bold", bbox=box,
                )  # fmt: skip
    found = sum(not all(answers.values()) for answers in table.values())
    ax.set_title(f"Probes: {found} of {len(table)} found", **title())
    ax.set(xlim=(-0.6, len(names) - 0.4), xlabel="probe")
    ax.set_xticks(range(len(names)), names)
    tidy(ax)


def title() -> dict[str, Any]:
    """How a title is set."""
    return {"loc": "left", "fontsize": 11, "fontweight": "bold", "color": INK}


def tidy(ax: Any) -> None:
    """No frame, no ticks but the labels."""
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(length=0, axis="y")
