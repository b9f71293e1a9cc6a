"""Bytes over time: what a meter writes down, and what a chart reads.

A row is (seconds, phase, total, bytes of every kind). A run of an hour makes millions of
rows, so neighbours are merged once there are too many: of each bunch the highest stays, and the
peak with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

TOTAL = itemgetter(2)

CATEGORIES = (
    "param",
    "reference",
    "value",
    "reward",
    "all_gather",
    "cast",
    "grad",
    "optimizer",
    "activation",
    "logits",
    "kv_cache",
    "temporary",
    "unattributed",
    "other",
)
"""In the order in which a chart stacks them, the lasting ones at the bottom."""

MEANING = {
    "param": "weights of the policy",
    "reference": "weights of the reference model",
    "value": "weights of the value model",
    "reward": "weights of the reward model",
    "all_gather": "weights gathered from other ranks",
    "cast": "half-precision copies of weights, made by autocast",
    "grad": "gradients of weights",
    "optimizer": "the optimiser's state",
    "activation": "kept for the backward pass",
    "logits": "all that the head holds",
    "kv_cache": "keys and values of the text so far, while generating",
    "temporary": "soon to be freed",
    "unattributed": "allocated by the device, seen by no tensor: workspaces and rounding",
    "other": "tensors from before, or of no model",
}
"""Category -> what it holds, for legends."""


class Kind(NamedTuple):
    """What some bytes are, and whose."""

    category: str
    model: str
    """Name of the model that they belong to; empty if none is known."""

    @property
    def shown(self) -> str:
        """The category of a chart, where weights of other models stand apart."""
        own_line = self.category == "param" and self.model in ("reference", "value", "reward")
        return self.model if own_line else self.category


@dataclass(frozen=True)
class Moment:
    """One sample, and what caused it."""

    bytes: int
    """All of them."""
    by_category: dict[str, int]
    """Adds up to `bytes`."""
    by_model: dict[str, int]
    """The same bytes by the model they belong to."""
    phase: str
    op: str
    """The operation that had just allocated, as aten names it."""
    module: str
    """Path of the module in whose forward, or in whose backward, it ran."""
    line: str
    """file:line function, the innermost one outside of torch."""


@dataclass
class Timeline:
    """Live bytes, sample by sample; rows are in the order of time."""

    kinds: list[Kind] = field(default_factory=list)
    """What the numbers of a row's last field count. Older rows may have fewer: the rest is 0."""
    rows: list[tuple[float, str, int, tuple[int, ...]]] = field(default_factory=list)
    """(seconds since the start, phase, total, bytes by kind)."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def seconds(self) -> list[float]:
        """[n] since the meter was entered."""
        return [row[0] for row in self.rows]

    @property
    def phases(self) -> list[str]:
        """[n] the phase of each sample."""
        return [row[1] for row in self.rows]

    @property
    def total(self) -> list[int]:
        """[n] live bytes."""
        return [row[2] for row in self.rows]

    @property
    def by_category(self) -> dict[str, list[int]]:
        """Category -> [n] bytes. At every sample they add up to the total."""
        return self._grouped([kind.shown for kind in self.kinds])

    @property
    def by_model(self) -> dict[str, list[int]]:
        """Model -> [n] bytes. At every sample they add up to the total."""
        return self._grouped([kind.model for kind in self.kinds])

    def bands(self) -> list[tuple[str, int, int]]:
        """(phase, first sample, last sample), one for each stretch of a phase."""
        found: list[tuple[str, int, int]] = []
        for i, phase in enumerate(self.phases):
            if found and found[-1][0] == phase:
                found[-1] = (phase, found[-1][1], i)
            else:
                found.append((phase, i, i))
        return found

    def peaks(self) -> dict[str, int]:
        """Phase -> the most bytes in it."""
        found: dict[str, int] = {}
        for _, phase, total, _ in self.rows:
            found[phase] = max(found.get(phase, 0), total)
        return found

    def thinned(self, most: int) -> "Timeline":
        """At most so many samples, the peak among them: of each bunch the highest."""
        size = -(-len(self.rows) // max(most, 1))
        return Timeline(list(self.kinds), merged(self.rows, size) if size > 1 else list(self.rows))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kinds": [list(kind) for kind in self.kinds],
            "rows": [[round(s, 6), phase, total, list(b)] for s, phase, total, b in self.rows],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Timeline":
        """What to_dict wrote."""
        rows = [(s, phase, total, tuple(b)) for s, phase, total, b in values["rows"]]
        return cls([Kind(*kind) for kind in values["kinds"]], rows)

    def _grouped(self, names: Sequence[str]) -> dict[str, list[int]]:
        found = {name: [0] * len(self.rows) for name in in_order(names)}
        for i, row in enumerate(self.rows):
            for name, amount in zip(names, row[3], strict=False):
                found[name][i] += amount
        return found


def in_order(names: Iterable[str]) -> list[str]:
    """Each name once, categories as a chart stacks them, others as they came."""
    unique = list(dict.fromkeys(names))
    rank = {name: i for i, name in enumerate(CATEGORIES)}
    return sorted(unique, key=lambda name: rank.get(name, len(rank)))


def merged(rows: list[tuple], size: int) -> list[tuple]:
    """Of each `size` neighbours in one phase the one with the highest total."""
    found = []
    for _, stretch in groupby(rows, key=lambda row: row[1]):
        part = list(stretch)
        found += [max(part[i : i + size], key=TOTAL) for i in range(0, len(part), size)]
    return found


def grouped(kinds: Sequence[Kind], amounts: Sequence[int], by: str) -> dict[str, int]:
    """Amounts by "category" or "model", those that are not 0."""
    found: dict[str, int] = {}
    for kind, amount in zip(kinds, amounts, strict=False):
        if amount:
            name = kind.shown if by == "category" else kind.model
            found[name] = found.get(name, 0) + amount
    return {name: found[name] for name in in_order(found)}


class Recorder:
    """Writes rows, and merges neighbours when there are more than `most`."""

    def __init__(self, most: int) -> None:
        self.most, self.rows, self.size = max(most, 2), [], 1
        self.bunch: list[tuple] = []

    def add(self, row: tuple) -> None:
        """row: as in Timeline.rows."""
        bunch = self.bunch
        if bunch and (len(bunch) >= self.size or bunch[0][1] != row[1]):
            self.rows.append(max(bunch, key=TOTAL))
            bunch.clear()
            if len(self.rows) >= self.most:
                self._thin()
        bunch.append(row)

    def _thin(self) -> None:
        self.size *= 2
        self.rows = merged(self.rows, 2)
        if len(self.rows) > 0.9 * self.most:  # phases too short to keep them all
            pairs = (self.rows[i : i + 2] for i in range(0, len(self.rows), 2))
            self.rows = [max(pair, key=TOTAL) for pair in pairs]

    def all(self) -> list[tuple]:
        """Every row so far. May be called from another thread."""
        rows, bunch = list(self.rows), list(self.bunch)
        return [*rows, max(bunch, key=TOTAL)] if bunch else rows
