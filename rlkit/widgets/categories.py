"""Names, colours and hatchings of the categories of bytes, the same in every chart of the project.

A colour says which family a category is of: weights are blue, what training keeps beside them is
orange and brown, what grows with the batch is green, red, purple and yellow. In a family lightness
and hatching differ, so that no two look alike without colour vision. One set serves light and dark
pages: no colour is near white or near black. Charts put numbers beside the colours all the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from rlkit.memory.timeline import CATEGORIES, MEANING, in_order

HATCHINGS = ("", "/", "\\", ".", "-", "x")
"""None, rising lines, falling lines, dots, level lines, crossed lines; as matplotlib writes them.
They are drawn in the page's background colour over the category's own."""


@dataclass(frozen=True)
class Look:
    """How a category is shown."""

    key: str
    """As `Meter` and `plan` name it."""
    label: str
    """For a legend: at most two words."""
    colour: str
    """#rrggbb"""
    hatch: str = ""
    """One of HATCHINGS."""
    meaning: str = ""
    """A line for a tooltip."""


def _look(key: str, label: str, colour: str, hatch: str = "") -> Look:
    return Look(key, label, colour, hatch, MEANING[key])


LOOKS: Mapping[str, Look] = {
    look.key: look
    for look in (
        _look("param", "weights", "#2a6fb0"),
        _look("reference", "reference", "#2a6fb0", "/"),
        _look("value", "value model", "#79b4e3"),
        _look("reward", "reward model", "#79b4e3", "\\"),
        _look("all_gather", "gathered weights", "#a9cfee", "."),
        _look("cast", "half-precision copies", "#79b4e3", "-"),
        _look("grad", "gradients", "#f0a13a"),
        _look("optimizer", "optimiser", "#96591b", "/"),
        _look("activation", "activations", "#1f9d78"),
        _look("logits", "logits", "#d6403a", "\\"),
        _look("kv_cache", "keys and values", "#a678c9", "."),
        _look("temporary", "temporary", "#d9c93f", "-"),
        _look("unattributed", "unattributed", "#b0b0b0", "x"),
        _look("other", "other", "#666666", "x"),
    )
}
"""Category -> its look, in the order in which a chart stacks them."""


def look(category: str) -> Look:
    """Of a category; one that nobody knows is shown as "other" is, under its own name."""
    if category in LOOKS:
        return LOOKS[category]
    return Look(category, category, LOOKS["other"].colour, LOOKS["other"].hatch, category)


def table(categories: Iterable[str] = CATEGORIES) -> list[dict[str, str]]:
    """For JavaScript: [{key, label, colour, hatch, meaning}], as they are stacked."""
    return [asdict(look(category)) for category in in_order(categories)]
