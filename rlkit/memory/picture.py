"""One training step as a chart shows it: bytes by category, on an axis that is always the same.

The phases of a step lie one after the other at fixed places (PHASES), whatever they take, so that
two pictures can be laid over each other. In a phase one sample follows the other, evenly. Of
samples that fall together the highest stays: no peak is lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from rlkit.memory.cards import readable
from rlkit.memory.timeline import Moment, Timeline, in_order, merged

PHASES: dict[str, tuple[float, int]] = {
    "generate": (0.20, 36),
    "score": (0.14, 28),
    "forward": (0.28, 48),
    "backward": (0.28, 48),
    "step": (0.10, 20),
}
"""Phase -> (its share of the axis, the most samples in it)."""
UNITS = 8000
"""A kept picture resolves the peak to one part in this many."""


@dataclass(frozen=True)
class Picture:
    """A step, measured or planned."""

    choices: dict[str, Any]
    """How the switches stood."""
    source: str
    """"planned" or "measured"."""
    where: str
    """On what it was measured, or how it was planned."""
    peak: int
    """The most bytes at once."""
    at_peak: Moment
    """The peak by category, and what causes it."""
    counts: dict[str, int]
    """Phase -> its number of samples."""
    series: dict[str, list[int]]
    """Category -> [n] bytes; phases one after the other."""
    seconds: float
    """Of the measured step, or of the planning."""
    weights: dict[str, dict[str, int]]
    """Model -> {"total", "trained"} weights, where it is known."""

    @property
    def total(self) -> list[int]:
        """[n] bytes."""
        return [sum(column) for column in zip(*self.series.values(), strict=True)]

    @property
    def x(self) -> list[float]:
        """[n] place of each sample on the axis, 0 to 1."""
        found, left = [], 0.0
        for phase, (width, _) in PHASES.items():
            n = self.counts.get(phase, 0)
            found += [left + width * (i + 0.5) / n for i in range(n)]
            left += width
        return found

    @property
    def top(self) -> int:
        """Index of the peak."""
        total = self.total
        return total.index(max(total))

    def by_phase(self) -> dict[str, dict[str, int]]:
        """Phase -> bytes by category at its highest sample."""
        found, start, total = {}, 0, self.total
        for phase in PHASES:
            n = self.counts.get(phase, 0)
            if n:
                at = max(range(start, start + n), key=total.__getitem__)
                found[phase] = {name: values[at] for name, values in self.series.items()}
            start += n
        return found

    def to_dict(self) -> dict[str, Any]:
        """For JSON: whole numbers of a unit, each as the step from the one before."""
        unit = max(self.peak // UNITS, 1)
        return {
            "peak": self.peak,
            "at_peak": vars(self.at_peak),
            "seconds": round(self.seconds, 1),
            "weights": self.weights,
            "unit": unit,
            "counts": self.counts,
            "series": {
                name: steps([round(v / unit) for v in values])
                for name, values in self.series.items()
            },
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], choices: dict[str, Any], where: str) -> Self:
        """What to_dict wrote, of a plan."""
        return cls(
            choices=choices,
            source="planned",
            where=where,
            peak=values["peak"],
            at_peak=Moment(**values["at_peak"]),
            counts=values["counts"],
            series={name: sums(s, values["unit"]) for name, s in values["series"].items()},
            seconds=values["seconds"],
            weights=values["weights"],
        )


def by_hand(picture: Picture, mine: dict[str, float | None]) -> str:
    """A table of someone's own bytes by category beside the most that the picture holds of each.

    Raises ValueError for a category that the picture does not have.
    """
    lines = [f"{'':10} {'yours':>10} {'held':>10}"]
    for name, own in mine.items():
        if name not in picture.series:
            raise ValueError(f"there is no {name!r} here; there are {', '.join(picture.series)}")
        held = max(picture.series[name])
        yours = "" if own is None else readable(own)
        lines.append(f"{name:10} {yours:>10} {readable(held):>10}  {verdict(own, held)}")
    return "\n".join(lines)


def verdict(own: float | None, held: float) -> str:
    """What to say about a number beside what is held."""
    if own is None:
        return "not typed yet"
    if own <= 0:
        return "more than nothing"
    if abs(own / held - 1) < 0.05:
        return "right"
    for factor, words in ((4, "numbers, not bytes?"), (2**20, "MiB, not bytes?")):
        if abs(own * factor / held - 1) < 0.05:
            return words
    return f"held {held / own:.1f} times that"


def picture_of(
    timeline: Timeline,
    at_peak: Moment,
    choices: dict[str, Any],
    *,
    source: str,
    where: str,
    seconds: float,
    weights: dict[str, dict[str, int]] | None = None,
) -> Picture:
    """A picture of one step's timeline."""
    rows, counts = in_phases(timeline.rows)
    found = Timeline(timeline.kinds, rows).by_category
    series = {name: found[name] for name in in_order(found) if any(found[name])}
    return Picture(
        choices=choices,
        source=source,
        where=where,
        peak=at_peak.bytes,
        at_peak=at_peak,
        counts=counts,
        series=series,
        seconds=seconds,
        weights=weights or {},
    )


def in_phases(rows: Sequence[tuple]) -> tuple[list[tuple], dict[str, int]]:
    """Rows in the order of PHASES, thinned, and how many each phase has.

    What lies between two phases belongs to the one before it. A fused head's gradients are made
    inside the forward pass: so what comes before its last sample belongs to it.
    """
    last_forward = max((i for i, row in enumerate(rows) if row[1] == "forward"), default=-1)
    parts: dict[str, list[tuple]] = {phase: [] for phase in PHASES}
    phase = "generate"
    for i, row in enumerate(rows):
        if row[1] in PHASES:
            inside = row[1] == "backward" and i < last_forward
            phase = "forward" if inside else row[1]
        parts[phase].append((*row[:1], phase, *row[2:]))
    found = {}
    for name, part in parts.items():
        size = -(-len(part) // PHASES[name][1])
        found[name] = merged(part, size) if size > 1 else part
    counts = {name: len(part) for name, part in found.items()}
    return [row for part in found.values() for row in part], counts


def steps(values: Sequence[int]) -> list[int]:
    """[5, 7, 7] -> [5, 2, 0]"""
    return [b - a for a, b in zip([0, *values], values, strict=False)]


def sums(changes: Sequence[int], unit: int) -> list[int]:
    """The reverse of steps, in bytes."""
    found, now = [], 0
    for change in changes:
        now += change
        found.append(now * unit)
    return found
