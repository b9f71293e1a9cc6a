"""What a training step tells a meter, if one is on: where it is, and what it is about to hold.

    with phase("generate"):
        ...

Forward, backward and the optimiser's step need no mark: a meter sees them. Marks cost a dictionary
look-up where no meter is on in this thread, so that a trainer can always make them.
"""

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_here = threading.local()
_NOTHING = nullcontext()


def meter_here() -> Any:
    """The meter that is on in this thread, or None."""
    return getattr(_here, "meter", None)


def set_meter(meter: Any) -> Any:
    """Makes a meter this thread's; returns the one that was."""
    before = meter_here()
    _here.meter = meter
    return before


def phase(name: str) -> AbstractContextManager:
    """Inside, bytes belong to this phase: "generate" or "score"."""
    meter = meter_here()
    return _NOTHING if meter is None else meter.phase(name)


def holding(category: str) -> AbstractContextManager:
    """Inside, what is allocated is of this category ("logits"), whatever it looks like."""
    meter = meter_here()
    return _NOTHING if meter is None else meter.holding(category)
