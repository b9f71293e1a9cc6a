"""What a page claims, and when it counts as shown.

A page measures named numbers once for each seed. An effect says that one of them lies above
another (or above a fixed number). With x over the seeds for the higher and y for the lower,

    gap    = mean(x) - mean(y)
    spread = max( max(x) - min(x),  max(y) - min(y) )

and the effect is shown if gap > spread: what separates the two is more than what chance, by way of
the seed, does to either. The whole range is asked for and not a standard deviation, which three
seeds do not know; a fixed number has no range. A gap with the wrong sign, or of NaN, shows nothing.
What this does not tell: how often other seeds would agree. Three are few; the numbers are printed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Numbers = dict[str, list[float]]
"""Name -> one value a seed."""


@dataclass(frozen=True)
class Effect:
    """`high` lies above `low`: names of measured numbers; low may be a fixed number.

    at_least: what the gap has to reach besides exceeding the spread.
    """

    high: str
    low: str | float
    at_least: float = 0.0

    def gap(self, numbers: Numbers) -> float:
        """mean(high) - mean(low)."""
        return mean(numbers[self.high]) - mean(self._low(numbers))

    def spread(self, numbers: Numbers) -> float:
        """The wider of the two ranges over the seeds."""
        sides = (numbers[self.high], self._low(numbers))
        return max(max(side) - min(side) for side in sides)

    def shown(self, numbers: Numbers) -> bool:
        """Whether the gap exceeds the spread and reaches at_least; False where NaN is met."""
        gap = self.gap(numbers)
        return gap > self.spread(numbers) and gap >= self.at_least

    def _low(self, numbers: Numbers) -> list[float]:
        return numbers[self.low] if isinstance(self.low, str) else [float(self.low)]

    @property
    def names(self) -> list[str]:
        """The measured numbers that it needs."""
        return [name for name in (self.high, self.low) if isinstance(name, str)]


@dataclass(frozen=True)
class Evidence:
    """A page's claim in a sentence, how one seed is measured, and what has to come of it."""

    says: str
    measure: Callable[[int], dict[str, float]]
    effects: Sequence[Effect]


def mean(values: Sequence[float]) -> float:
    """The mean."""
    return sum(values) / len(values)
