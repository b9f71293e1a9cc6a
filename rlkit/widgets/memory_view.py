"""What the Memory Lab says: title, status, legend, cards, tables. Functions that only read it."""

import math
import time
from typing import TYPE_CHECKING, Any

from rlkit.memory import lab as switches
from rlkit.memory.cards import CARDS, RESERVE, GiB, MiB, card_bytes, readable
from rlkit.memory.lab import BASES, SWITCHES
from rlkit.memory.picture import PHASES, Picture
from rlkit.widgets.categories import CATEGORIES, look
from rlkit.widgets.story import UNANSWERED, in_foreground

if TYPE_CHECKING:
    from rlkit.widgets.memory import MemoryLab

STACK = [name for name in CATEGORIES if name != "unattributed"]
USUAL_SECONDS = 12.0
"""A plan that nothing is known about."""
CARD_NAMES = {
    "t4": "T4",
    "l4": "L4",
    "a10": "A10",
    "a100-40": "A100, 40 GB",
    "a100-80": "A100, 80 GB",
    "h100": "H100",
    "h200": "H200",
    "b200": "B200",
    "rtx3090": "RTX 3090",
    "rtx4090": "RTX 4090",
    "rtx5090": "RTX 5090",
}


def view(lab: "MemoryLab") -> dict[str, Any]:
    """Everything the page shows but the two pictures themselves."""
    return {
        "state": lab.state,
        "title": title(lab),
        "source": lab.source,
        "sources": [["planned", "Planned"], ["measured", "Measured, live"]],
        "badge": badge(lab),
        "status": status(lab),
        "error": lab.error,
        "base": lab.base.key,
        "bases": [[b.key, b.title, b.about] for b in BASES.values()],
        "switches": controls(lab),
        "stack": STACK,
        "legend": legend(lab),
        "bands": [[phase, share] for phase, (share, _) in PHASES.items()],
        "top": lab.top / GiB,
        "unit": unit(lab.top),
        "peak": mark(lab.picture),
        "ghost": mark(lab.ghost),
        "ghost_words": "" if lab.ghost is None else before_words(lab),
        "cause": cause(lab.picture),
        "card": lab.card,
        "cards": cards(lab),
        "reserve": readable(RESERVE),
        "guess": lab.guess,
        "guessed": None if lab.guessed is None else lab.guessed[0],
        "guess_words": guess_words(lab),
        "progress": progress(lab),
        "table": table(lab),
        "presses": lab.presses,
        "unanswered": UNANSWERED,
        "can_stop": lab.state == "training",
        "foreground": in_foreground(),
        "wide": lab.base.choices != lab.wanted,
    }


def unit(top: float) -> list[Any]:
    """[name, how many of it are a GiB, digits]"""
    return ["GiB", 1, 2] if top >= GiB else ["MiB", 1024, 0]


def amount(size: float, top: float, sign: bool = False) -> str:
    """Bytes in the unit of the axis."""
    name, share, digits = unit(top)
    return f"{size / GiB * share:{'+' if sign else ''},.{digits}f} {name}"


def axis_top(lab: "MemoryLab") -> int:
    """The end of the y axis, in bytes: it stays where it is while what is shown fills it well."""
    shown = [p.peak for p in (lab.picture, lab.ghost) if p is not None]
    if lab.guessed is not None and lab.guessed[0] * GiB < 3 * max(shown):
        shown.append(int(lab.guessed[0] * GiB))
    most = max(shown) * 1.1
    if lab.top and lab.top * 0.4 <= most <= lab.top:
        return lab.top
    room = card_bytes(lab.card)
    if most < room * 1.06 < most * 1.7:
        most = room * 1.06
    return nice(most)


def nice(size: float) -> int:
    """The next round number of MiB or GiB: 1, 1.5, 2, 3, 4, 5, 6, 8, 10 times a power of 10."""
    whole = GiB if size >= GiB else MiB
    power = 10.0 ** math.floor(math.log10(size / whole))
    ends = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    return int(next(e for e in ends if e * power * whole >= size - 1) * power * whole)


def title(lab: "MemoryLab") -> str:
    """The finding: the peak, and what the last flip did to it."""
    now, before = lab.picture, lab.ghost
    if now is None:
        return f"{lab.base.title}: being planned" if lab.source == "planned" else "Building a run"
    name = f"{now.choices['model']}, {SWITCHES['algorithm'].shown(now.choices['algorithm'])}"
    peak = amount(now.peak, lab.top)
    if before is None:
        return f"{name}: {peak} at the peak"
    gap = now.peak - before.peak
    if now.choices == before.choices:
        share = max(abs(gap) / before.peak, 0.001)
        return f"{name}: {now.source} {peak}, as {before.source} within {share:.1%}"
    if abs(gap) < 0.002 * before.peak:
        return f"{name}: {peak} at the peak, as before"
    way = "less" if gap < 0 else "more"
    return f"{name}: {peak} at the peak, {amount(abs(gap), lab.top)} {way} than before"


def badge(lab: "MemoryLab") -> str:
    """Where the bytes come from."""
    if lab.picture is None:
        return ""
    return f"{lab.picture.source.upper()}: {lab.picture.where}"


def before_words(lab: "MemoryLab") -> str:
    """What the ghost is, and what changed since."""
    now, before = lab.picture, lab.ghost
    if now is None:
        return ""
    changes = switches.told(before.choices, now.choices)
    return changes or f"the same switches, {before.source}"


def status(lab: "MemoryLab") -> str:
    """What goes on, in one line."""
    if lab.error:
        return lab.error
    if lab.state == "planning":
        return "planning this setting; the picture of the last one stays until it is there"
    if lab.source == "measured":
        return run_status(lab)
    if lab.ghost is None:
        return f"{lab.base.about}. Flip a switch."
    return before_words(lab)


def run_status(lab: "MemoryLab") -> str:
    """Of the run: step, seconds, reward; or how to begin one."""
    if not lab.row:
        return "building the model" if lab.state == "training" else "press Start: it trains here"
    words = f"step {lab.row['step']}, {lab.row['seconds']:.2f} s"
    ghost = lab.ghost
    if ghost is not None and ghost.source == "measured":
        words += f" (before: {ghost.seconds:.2f} s)"
    words += f", mean reward {lab.row['reward']:.2f}"
    if lab.state != "training":
        return f"stopped after {words}"
    return words + ("; switching at the next step" if lab.wanted != lab.picture.choices else "")


def progress(lab: "MemoryLab") -> dict[str, float] | None:
    """Seconds since a plan began, and how long such a plan took before."""
    if lab.state != "planning":
        return None
    usual = lab.picture.seconds if lab.picture is not None else USUAL_SECONDS
    return {"seconds": time.monotonic() - lab.since, "usual": max(usual, 2.0)}


def controls(lab: "MemoryLab") -> list[dict[str, Any]]:
    """Each switch: where it stands, and why a position cannot be taken."""
    found = []
    for key, switch in SWITCHES.items():
        options = []
        for value, words in lab.base.options_of(key):
            why = lab.why_not(lab.wanted | {key: value}) if value != lab.wanted[key] else ""
            options.append({"value": value, "label": words, "why": why})
        if lab.wanted[key] not in [o["value"] for o in options]:  # set from a cell
            options.append({"value": lab.wanted[key], "label": str(lab.wanted[key]), "why": ""})
        found.append(
            {"key": key, "label": switch.label, "group": switch.group, "help": switch.help}
            | {"value": lab.wanted[key], "options": options}
        )
    return found


def legend(lab: "MemoryLab") -> list[dict[str, Any]]:
    """Each category: its look, its bytes at the peak now and before."""
    now = {} if lab.picture is None else lab.picture.at_peak.by_category
    old = {} if lab.ghost is None else lab.ghost.at_peak.by_category
    found = []
    for name in reversed(STACK):  # as they lie in the chart
        a, b = now.get(name, 0), old.get(name, 0)
        row = {"key": name, "now": part(a, lab.top), "before": "", "change": ""}
        if lab.ghost is not None:
            small = part(a - b, lab.top, sign=True)[0] in "<–"
            row |= {"before": part(b, lab.top)}
            row |= {"change": "" if small else part(a - b, lab.top, sign=True)}
        found.append(vars(look(name)) | row | {"some": bool(a or b)})
    return found


def part(size: float, top: float, sign: bool = False) -> str:
    """A number of the legend, without its unit; a dash for nothing."""
    _, share, digits = unit(top)
    if not size:
        return "–"
    value = size / GiB * share
    if abs(value) < 10**-digits / 2:
        return f"< {10**-digits:.{digits}f}"
    return f"{value:{'+' if sign else ''},.{digits}f}".replace("-", "−")


def mark(picture: Picture | None) -> dict[str, Any] | None:
    """A peak in the chart."""
    if picture is None:
        return None
    return {"x": picture.x[picture.top], "y": picture.peak / GiB, "source": picture.source}


def cause(picture: Picture | None) -> list[list[str]]:
    """What made the peak: [[what, value], ...]."""
    if picture is None:
        return []
    at = picture.at_peak
    place = at.module or "outside of any model"
    return [["phase", at.phase], ["operation", at.op], ["module", place], ["line", at.line]]


def cards(lab: "MemoryLab") -> list[dict[str, Any]]:
    """Each card: what it leaves to tensors, and whether the step fits."""
    found = []
    for key in sorted(CARDS, key=card_bytes):
        room = card_bytes(key)
        row = {"key": key, "label": CARD_NAMES.get(key, key), "room": room / GiB}
        words, fits, share = "", None, 0.0
        if lab.picture is not None:
            free = room - lab.picture.peak
            fits, share = free >= 0, lab.picture.peak / room
            words = "fits" if fits else "does not fit"
            row["rest"] = f"{abs(free) / GiB:.1f} {'free' if fits else 'short'}"
        found.append(row | {"fits": fits, "words": words, "share": min(share, 1.0)})
    return found


def checked_guess(guess: Any) -> float | None:
    """A guess in GiB. Raises ValueError, in words, for what is none."""
    if guess is None or guess == "":
        return None
    try:
        number = float(guess)
    except (TypeError, ValueError):
        raise ValueError(f"a guess is a number of GiB, for example 8.5; it is {guess!r}") from None
    if not 0 < number < 1e6:
        raise ValueError(f"a guess is a number of GiB above 0; it is {guess!r}")
    return number


def guess_words(lab: "MemoryLab") -> str:
    """The guess beside what came, or what to do with it."""
    if lab.guessed is not None:
        guess, peak = lab.guessed
        off = (guess * GiB - peak) / peak
        way = "too high" if off > 0 else "too low"
        near = "to the percent" if abs(off) < 0.01 else f"{abs(off):.0%} {way}"
        return f"you guessed {amount(guess * GiB, lab.top)}, it is {amount(peak, lab.top)}: {near}"
    if lab.guess is not None:
        return f"your guess for the next flip: {amount(lab.guess * GiB, lab.top)}"
    return ""


def table(lab: "MemoryLab") -> dict[str, Any]:
    """Bytes by category at the highest sample of each phase, for reading aloud."""
    if lab.picture is None:
        return {"caption": "", "columns": [], "rows": []}
    found = lab.picture.by_phase()
    name = unit(lab.top)[0]
    rows = [["all", *(part(sum(found[p].values()), lab.top) for p in found)]]
    for key in STACK:
        if key in lab.picture.series:
            rows.append([look(key).label, *(part(found[p].get(key, 0), lab.top) for p in found)])
    caption = f"{name} at the highest moment of each phase ({lab.picture.source})"
    return {"caption": caption, "columns": ["", *found], "rows": rows}


def sentence(error: BaseException) -> str:
    """An error in words."""
    text = str(error).strip() or type(error).__name__
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
