"""The Memory Lab's chart without a page: matplotlib, on white, same axis, same colours."""

from typing import TYPE_CHECKING, Any

from rlkit.memory import lab as switches
from rlkit.memory.cards import GiB, card_bytes
from rlkit.memory.picture import PHASES, Picture
from rlkit.optional import require
from rlkit.widgets import memory_view as words
from rlkit.widgets.categories import look
from rlkit.widgets.static import INK

if TYPE_CHECKING:
    from rlkit.widgets.memory import MemoryLab


def figure(lab: "MemoryLab") -> Any:
    """Stacked bytes over one step, the ghost before it, the cards; the finding as title.

    Raises ImportError, with the way to get it, where matplotlib is missing.
    """
    require("matplotlib", "a static picture of the Memory Lab")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(9.2, 4.4), dpi=110, facecolor="white", layout="constrained")
    name, share, _ = words.unit(lab.top)
    scale = share / GiB
    stack(ax, lab, scale)
    if lab.ghost is not None:
        before(ax, lab, scale)
    lines(ax, lab, scale)
    ax.set(xlim=(0, 1), ylim=(0, lab.top * scale), ylabel=f"live bytes, {name}")
    phases(ax)
    fig.suptitle(words.title(lab), x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    ax.set_title(subtitle(lab), loc="left", fontsize=9, color=INK)
    ax.spines[["top", "right"]].set_visible(False)
    handles, labels = ax.get_legend_handles_labels()
    place = {"loc": "outside right center", "fontsize": 8.5, "frameon": False}
    fig.legend(handles[::-1], labels[::-1], handleheight=1.3, **place)
    plt.close(fig)  # a cell shows it once, as its value
    return fig


def subtitle(lab: "MemoryLab") -> str:
    """The source, what changed, the guess, and whether it fits."""
    parts = [words.badge(lab)]
    if lab.ghost is not None:
        parts.append(words.before_words(lab))
    if lab.guessed is not None:
        parts.append(words.guess_words(lab))
    at = lab.picture.at_peak
    parts.append(f"peak: {at.op} in {at.module or 'no model'}, {at.line}")
    return "\n".join(parts)


def stack(ax: Any, lab: "MemoryLab", scale: float) -> None:
    """The areas, with their bytes at the peak in the legend."""
    picture = lab.picture
    at = picture.at_peak.by_category
    for name, area in zip(
        picture.series,
        ax.stackplot(
            picture.x,
            [[v * scale for v in values] for values in picture.series.values()],
            lw=0.4,
            edgecolor="white",
        ),
        strict=True,
    ):
        area.set_facecolor(look(name).colour)
        area.set_hatch(2 * look(name).hatch)
        if scale * max(picture.series[name]) > 0.002 * scale * picture.peak:
            area.set_label(f"{look(name).label}  {words.part(at.get(name, 0), lab.top)}")
    x, peak = picture.x[picture.top], picture.peak * scale
    ax.plot([x], [peak], "o", color=INK, ms=5, zorder=5, clip_on=False)


def before(ax: Any, lab: "MemoryLab", scale: float) -> None:
    """The outline of what was shown before."""
    ghost = lab.ghost
    label = f"before  {words.part(ghost.peak, lab.top)}"
    total = [v * scale for v in ghost.total]
    ax.plot(ghost.x, total, color=INK, lw=1.3, ls=(0, (4, 3)), label=label, zorder=4)


def lines(ax: Any, lab: "MemoryLab", scale: float) -> None:
    """The chosen card, and the guess."""
    room = card_bytes(lab.card) * scale
    fits = "fits" if lab.picture.peak * scale <= room else "does not fit"
    text = f"{words.CARD_NAMES[lab.card]}: {fits}"
    if room <= lab.top * scale:
        ax.axhline(room, color=INK, lw=1.6)
        ax.text(0.995, room, text, ha="right", va="bottom", fontsize=9, color=INK)
    else:
        ax.text(0.995, lab.top * scale, f"{text} (above)", ha="right", va="top", fontsize=9)
    if lab.guessed is not None and lab.guessed[0] * GiB <= lab.top:
        guess = lab.guessed[0] * GiB * scale
        ax.axhline(guess, color=INK, lw=1.2, ls=":")
        ax.text(0.005, guess, "your guess", ha="left", va="bottom", fontsize=9, color=INK)


def phases(ax: Any) -> None:
    """The phases at their places."""
    left, middles = 0.0, []
    for i, (share, _) in enumerate(PHASES.values()):
        if i % 2:
            ax.axvspan(left, left + share, color=INK, alpha=0.05, lw=0, zorder=0)
        middles.append(left + share / 2)
        left += share
    ax.set_xticks(middles, list(PHASES))
    ax.tick_params(axis="x", length=0)


def bars(trail: list[Picture]) -> Any:
    """The peaks of some pictures by category, one bar each; below it what was changed.

    Raises ValueError if there are none.
    """
    require("matplotlib", "a static picture of the Memory Lab")
    import matplotlib.pyplot as plt

    if not trail:
        raise ValueError("nothing was shown yet: flip a switch first")
    most = max(picture.peak for picture in trail)
    name, share, digits = words.unit(most)
    size = (3.2 + 1.5 * len(trail), 4.2)
    fig, ax = plt.subplots(figsize=size, dpi=110, facecolor="white", layout="constrained")
    drawn: dict[str, Any] = {}
    for i, picture in enumerate(trail):
        drawn |= bar(ax, i, picture, share / GiB, 0.035 * most)
        peak = picture.peak * share / GiB
        ax.text(i, peak, f"{peak:.{max(digits - 1, 0)}f}", ha="center", va="bottom", weight="bold")
    ax.set_xticks(range(len(trail)), named(trail), fontsize=9)
    ax.set_ylabel(f"bytes at the peak, {name}")
    ax.spines[["top", "right"]].set_visible(False)
    ax.margins(y=0.08)
    ways = " → ".join(f"{p.peak * share / GiB:.{max(digits - 1, 0)}f}" for p in trail)
    fig.suptitle(f"{ways} {name}", x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    order = [look(key) for key in reversed(words.STACK) if key in drawn]
    handles = [drawn[each.key] for each in order]
    place = {"loc": "outside right center", "fontsize": 8.5, "frameon": False}
    fig.legend(handles, [each.label for each in order], **place)
    plt.close(fig)  # a cell shows it once, as its value
    return fig


def bar(ax: Any, x: float, picture: Picture, scale: float, least: float) -> dict[str, Any]:
    """One stacked bar, with numbers in what is larger than `least` bytes."""
    floor, drawn = 0.0, {}
    for key, size in picture.at_peak.by_category.items():
        high = size * scale
        (drawn[key],) = ax.bar(
            [x],
            [high],
            0.62,
            floor,
            color=look(key).colour,
            hatch=2 * look(key).hatch,
            edgecolor="white",
            lw=0.5,
        )
        if size > least:
            middle = floor + high / 2
            box = {"facecolor": "white", "alpha": 0.85, "pad": 1, "lw": 0}
            text = words.part(size, picture.peak if scale * GiB > 1 else GiB)
            ax.text(x, middle, text, ha="center", va="center", fontsize=8.5, bbox=box)
        floor += high
    return drawn


def named(trail: list[Picture]) -> list[str]:
    """What was changed for each, one change a line; the first is the model."""
    first = trail[0].choices["model"]
    found = [f"{first},\nhead {trail[0].choices['head']}"]
    for old, new in zip(trail, trail[1:], strict=False):
        told = switches.told(old.choices, new.choices).replace(", ", "\n")
        found.append(told or new.source)
    return found
