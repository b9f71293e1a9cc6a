"""What `rlkit bench head` prints: a table at most 100 columns wide, and the bars we hold.

Everything here is a pure function of what was measured.
"""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

MIB = 2**20

FLAT = 1.1
"""The most that a peak beyond inputs and gradients may grow with the number of tokens."""


class Found(NamedTuple):
    """What was measured of one contestant; None where it was not."""

    name: str
    seconds: float | None = None
    peak: int | None = None
    """Bytes beyond the inputs."""
    errors: Any = None
    wrong: bool = False


class Bar(NamedTuple):
    """A promise, and what was found; None: not measured."""

    text: str
    found: float | None
    limit: float
    sign: str = "<="

    @property
    def holds(self) -> bool | None:
        """None where nothing was measured."""
        compare = {"<=": operator.le, "<": operator.lt}[self.sign]
        return None if self.found is None else compare(self.found, self.limit)


# ---- the bars ------------------------------------------------------------------------------


def bars(found: dict[str, Found], floor: int) -> list[Bar]:
    """The bars of one N. found: by the contestants' keys. floor: bytes.

    Where TRL's time counts it is the faster of its two tiles.
    """
    seconds = {key: one.seconds for key, one in found.items()}
    peaks = {key: one.peak for key, one in found.items()} | {"floor": floor}
    both = [seconds.get(key) for key in ("trl", "trl 8192")]
    seconds["fastest trl"] = None if None in both else min(both)

    def peak(key: str, other: str, limit: float, text: str, sign: str = "<=") -> Bar:
        return Bar(f"peak of {key} / {text}", share(peaks, key, other), limit, sign)

    def time(key: str, other: str, limit: float, text: str = "") -> Bar:
        return Bar(f"time of {key} / {text or other}", share(seconds, key, other), limit)

    return [
        *(peak(key, "floor", 1.25, "floor") for key in ("fused", "chunked")),
        *(peak(k, "trl 8192", 1.0, "TRL's, 8,192 columns", "<") for k in ("fused", "chunked")),
        *(peak(k, "trl", 0.4, "TRL's, own tile") for k in ("fused", "chunked")),
        time("fused", "products", 1.2, "bare products"),
        time("fused", "full", 1.0),
        time("fused", "fastest trl", 0.6, "TRL's faster"),
        time("fused", "liger", 0.75, "Liger's"),
        time("fused half", "full half", 0.8),
        time("chunked", "full", 1.4),
        time("chunked", "fastest trl", 0.8, "TRL's faster"),
    ]


def flat_bars(beyond: dict[str, dict[int, int]], sizes: Sequence[int]) -> list[Bar]:
    """The bars of several N. beyond: key -> N -> bytes beyond inputs and gradients."""
    return [
        Bar(f"peak of {key}, largest / smallest over N", growth(beyond.get(key, {}), sizes), FLAT)
        for key in ("fused", "chunked")
    ]


def share(values: dict[str, float | None], key: str, other: str) -> float | None:
    """One as a share of the other, None if either is missing."""
    one, two = values.get(key), values.get(other)
    return None if one is None or two is None else one / two


def growth(peaks: dict[int, int], sizes: Sequence[int]) -> float | None:
    """Largest over smallest, None unless all sizes were measured."""
    return max(peaks.values()) / min(peaks.values()) if set(peaks) == set(sizes) else None


# ---- the tables ----------------------------------------------------------------------------

HEADINGS = (
    f"{'':32}{'time':>10}{'/':>7}{'/ bare':>8}{'peak':>10}{'/':>7}   largest error of",
    f"{'':32}{'ms':>10}{'full':>7}{'prod.':>8}{'MiB':>10}{'floor':>7}"
    f"{'logp':>9}{'loss':>8}{'grad':>8}",
)


def table(found: dict[str, Found], floor: int) -> str:
    """A line for each contestant, those with half of the tokens at advantage 0 last."""
    halves = {key for key in found if key.endswith(" half")}
    lines = [*HEADINGS, *(row(found, key, "full", floor) for key in found if key not in halves)]
    if halves:
        lines.append("half of the tokens at advantage 0")
        lines += [row(found, key, "full half", floor) for key in found if key in halves]
    return "\n".join(lines)


def row(found: dict[str, Found], key: str, full: str, floor: int) -> str:
    """One line: beside full logits, beside the bare products, beside the floor."""
    one = found[key]
    times = {name: other.seconds for name, other in found.items()}
    errors = one.errors and (one.errors.logp, one.errors.loss, one.errors.gradient)
    logp, loss, gradient = errors or (None, None, None)
    peak = None if one.peak is None else one.peak / MIB
    time = None if one.seconds is None else 1000 * one.seconds
    return (
        f"{one.name:32}"
        + (f"{'wrong':>10}" if one.wrong else number(time, 10, ",.1f"))
        + number(share(times, key, full), 7, ".2f")
        + number(share(times, key, "products"), 8, ".2f")
        + number(peak, 10, ",.1f")
        + number(None if one.peak is None else one.peak / floor, 7, ".2f")
        + number(logp, 9, ".0e")
        + number(loss, 8, ".0e")
        + number(gradient, 8, ".0e")
    )


def footnote(floor: int, gradients: int, bound: Any) -> str:
    """What the columns mean."""
    return (
        f"time: median of the rounds; one round, of whoever is far slower than most.\n"
        f"peak: beyond the inputs. floor: gradients {gradients / MIB:,.1f} + tile "
        f"{(floor - gradients) / MIB:,.1f} = {floor / MIB:,.1f} MiB.\n"
        f"errors: against full logits in float64, of gradients as a share of the largest entry;\n"
        f"more than {bound.logp:g}, {bound.loss:g} or {bound.gradient:g} is wrong and is not timed."
    )


def flat_table(beyond: dict[str, dict[int, int]], sizes: Sequence[int]) -> str:
    """A line for each contestant. beyond: name -> N -> bytes beyond inputs and gradients."""
    heading = "".join(f"{f'N={size:,}':>13}" for size in sizes)
    lines = [f"{'MiB beyond inputs and gradients':32}{heading}{'growth':>9}"]
    for name, peaks in beyond.items():
        cells = [number(peaks[n] / MIB if n in peaks else None, 13, ",.1f") for n in sizes]
        lines.append(f"{name:32}{''.join(cells)}{number(growth(peaks, sizes), 9, '.2f')}")
    return "\n".join(lines)


def bar_lines(bars: Sequence[Bar]) -> str:
    """A line for each bar."""
    verdicts = {True: "yes", False: "NO", None: "not measured"}
    lines = [f"{'bars':46}{'found':>8}    bar    holds"]
    for bar in bars:
        found, limit = number(bar.found, 8, ".3f"), f"{bar.sign:>2} {bar.limit:4.2f}"
        lines.append(f"{bar.text:46}{found}  {limit}  {verdicts[bar.holds]}")
    return "\n".join(lines)


def number(value: float | None, width: int, form: str) -> str:
    """A column, with a dash for what was not measured."""
    return f"{'-':>{width}}" if value is None else f"{value:{width}{form}}"
