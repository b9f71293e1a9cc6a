"""The ladder: one chart for the whole course, to which every page adds the run of its algorithm.

    ladder.add("REINFORCE", run)        # a finished LiveRun, or its history
    ladder.figure()                     # all lines so far; what is still to come dashed and grey

Lines are kept in runs/ladder.json beside the notebooks, so that a page sees what the pages before
it trained. Algorithms that the learner has not run yet are drawn as the library ran them
(data/curves, the mean of three seeds).
"""

import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlkit.course import store
from rlkit.optional import require
from rlkit.paths import data_path

FILE = store.FOLDER / "ladder.json"
REFERENCES = {"REINFORCE": "reinforce", "RLOO": "rloo", "PPO": "ppo", "GRPO": "grpo"}
"""Line -> the algorithm whose curves in data/curves stand for it; those without files have none."""

INK, PALE = "#222222", "#8a8a8a"
COLOURS = ("#0072b2", "#b34a00", "#007d5c", "#8b3f80", "#5c4a00", "#333333", "#a3123f")
MARKERS = "osD^vPX*"  # with as many colours less one, a pair comes again only after 56 lines
APART = 0.055  # of the axis' height: the least distance between two labels

EARLY = 0.8  # of the axis' width: a line that ends before it is labelled inside the axes

Points = list[tuple[float, float]]
_unwritten: dict[str, Any] = {}


def add(name: str, history: Any) -> None:
    """Put a run on the ladder, in the place of an earlier one of that name.

    history: a LiveRun, or its rows with "step" and "accuracy" (greedy; rows without are left out),
        or, where no row has one, "reward" (the mean of the step's samples).
    Raises ValueError if there are fewer than two points: a line needs them.
    """
    measure, points = curve(history)
    if len(points) < 2:
        raise ValueError(f"{name} has {len(points)} measured points, and a line needs two")
    lines = load()
    lines.pop(name, None)  # the newest line is the last
    lines[name] = {"measure": measure, "points": points, "place": next_place(lines)}
    try:
        store.save(FILE, lines)
        _unwritten.clear()
    except OSError:  # then it lasts as long as the kernel
        _unwritten.update(lines)


def curve(history: Any) -> tuple[str, Points]:
    """(what was measured, its points) of a run or of its rows."""
    if not isinstance(history, Sequence):
        if len(history.accuracy) >= 2:  # a LiveRun, which measures before the first step too
            return "greedy accuracy", [(float(x), float(y)) for x, y in history.accuracy]
        history = history.rows
    for key, measure in (("accuracy", "greedy accuracy"), ("reward", "mean reward")):
        rows = [row for row in history if row.get(key) is not None]
        if rows:
            return measure, [(float(row["step"]), float(row[key])) for row in rows]
    return "greedy accuracy", []


def load() -> dict[str, dict[str, Any]]:
    """The learner's lines, in the order they were added; what cannot be read is left out."""
    kept = {k: v for k, v in (store.load(FILE) | _unwritten).items() if is_line(v)}
    return dict(sorted(kept.items(), key=lambda item: item[1]["place"]))


def is_line(kept: Any) -> bool:
    """Whether something read from the file can be drawn."""
    if not isinstance(kept, dict) or not isinstance(kept.get("place"), int):
        return False
    points = kept.get("points")
    return isinstance(points, list) and all(
        isinstance(p, list | tuple) and len(p) == 2 and all(isinstance(x, int | float) for x in p)
        for p in points
    )


def next_place(lines: dict[str, dict[str, Any]]) -> int:
    """The number of a line that is added now."""
    return 1 + max((line["place"] for line in lines.values()), default=0)


def references() -> dict[str, Points]:
    """The library's runs: greedy accuracy by step, the mean over the seeds that are there."""
    found = {}
    for name, algorithm in REFERENCES.items():
        by_step = defaultdict(list)
        files = sorted(data_path("curves").glob(f"{algorithm}_sums_seed*.csv"))
        for path in files:
            for step, accuracy in accuracies(path):
                by_step[step].append(accuracy)
        points = [(step, sum(ys) / len(ys)) for step, ys in sorted(by_step.items())]
        if points:
            found[name] = points
    return found


def accuracies(path: Path) -> Points:
    """(step, greedy accuracy) of a curve's file, where it was measured."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["accuracy"]]
    return [(float(row["step"]), float(row["accuracy"])) for row in rows]


# --- the picture


def figure() -> Any:
    """The chart as a matplotlib Figure on white, readable without colours and without a kernel.

    Raises ImportError, with the way to get it, where matplotlib is missing.
    """
    require("matplotlib", "the ladder chart")
    import matplotlib.pyplot as plt

    mine = load()
    others = {name: points for name, points in references().items() if name not in mine}
    fig, ax = plt.subplots(figsize=(7.6, 4.2), dpi=110, facecolor="white", layout="constrained")
    ends = [draw_reference(ax, name, points) for name, points in others.items()]
    ends += [draw_own(ax, index, *item) for index, item in enumerate(mine.items())]
    dress(ax, title(mine))
    write_labels(ax, ends)
    plt.close(fig)  # a cell shows it once, as its value
    return fig


def title(mine: dict[str, dict[str, Any]]) -> str:
    """The finding: what the newest line reached."""
    if not mine:
        return "Nothing on the ladder yet: these are the library's runs"
    name, line = list(mine.items())[-1]
    first, last = line["points"][0][1], line["points"][-1][1]
    return f"{name}: {line['measure']} {first:.2f} to {last:.2f}"


def draw_own(ax: Any, index: int, name: str, line: dict[str, Any]) -> tuple[Any, ...]:
    """A line of the learner's; returns what its label needs: x, y, text, colour."""
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    xs, ys = zip(*line["points"], strict=True)
    ax.plot(xs, ys, color=colour, marker=marker, lw=2, ms=5, mfc="white", mew=1.5, zorder=3)
    note = "" if line["measure"] == "greedy accuracy" else f" ({line['measure']})"
    return xs[-1], ys[-1], f"{name} {ys[-1]:.2f}{note}", colour


def draw_reference(ax: Any, name: str, points: Points) -> tuple[Any, ...]:
    """A run of the library's, light and dashed."""
    xs, ys = zip(*points, strict=True)
    ax.plot(xs, ys, color=PALE, lw=1.1, ls=(0, (4, 3)), zorder=2)
    return xs[-1], ys[-1], f"{name} {ys[-1]:.2f}, library", PALE


def dress(ax: Any, text: str) -> None:
    """Title, axes with units, a quiet grid."""
    ax.set_title(text, loc="left", fontsize=12, fontweight="bold", color=INK)
    ax.set(xlabel="training step", ylabel="share of answers that are right")
    low = min(min(line.get_ydata()) for line in ax.lines) if ax.lines else 0.0
    ax.set_ylim(min(0.4, low) - 0.05, 1.03)
    ax.set_xlim(0, None)
    ax.grid(axis="y", color=INK, alpha=0.14)
    ax.spines[["top", "right", "left"]].set_visible(False)


def write_labels(ax: Any, ends: list[tuple[Any, ...]]) -> None:
    """Each line's name right of the axes at the height of its end, pushed apart.

    A run that ended early has its name below its end, where the lines leave room.
    """
    right, (low, high) = ax.get_xlim()[1], ax.get_ylim()
    least = APART * (high - low)
    early = [end for end in ends if end[0] < EARLY * right]
    for i, end in enumerate(early):
        write_label(ax, *end, at=(end[0], low + 0.5 * (high - low) - i * least), centre=True)
    late = sorted((end for end in ends if end not in early), key=lambda end: end[1])
    heights = spread([end[1] for end in late], least, high)
    for end, height in zip(late, heights, strict=True):
        write_label(ax, *end, at=(right * 1.03, height), centre=False)


def write_label(
    ax: Any, x: float, y: float, text: str, colour: str, at: tuple[float, float], centre: bool
) -> None:
    """A name at some place, with a thin leader to the line's end."""
    anchor = (0.5, 1) if centre else (0, 0.5)
    arrow = {"arrowstyle": "-", "color": colour, "lw": 0.9, "ls": ":", "relpos": anchor}
    ax.annotate(
        text,
        (x, y),
        at,
        color=INK if colour == PALE else colour,
        fontsize=9,
        ha="center" if centre else "left",
        va="center",
        arrowprops=arrow,
        annotation_clip=False,
    )


def spread(heights: list[float], least: float, top: float) -> list[float]:
    """Ascending heights, moved as little as it takes to be `least` apart and under `top`."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + least) if placed else height)
    for i in range(len(placed) - 1, -1, -1):
        limit = top if i == len(placed) - 1 else placed[i + 1] - least
        placed[i] = min(placed[i], limit)
    return placed
