"""Where the bytes go: measured while a model trains, or planned without a GPU.

meter.py      live bytes by category, on a CPU, a GPU, or fake tensors
launcher.py   ranks that train and tell their bytes: several processes, started from a notebook
planner.py    the same for any model and any number of ranks, with nothing allocated
cards.py      graphics cards, and what they leave to tensors
shapes.py     the shapes of models that need no download
"""

from importlib import import_module
from typing import Any

WHERE = {
    "Meter": "meter",
    "holding": "marks",
    "phase": "marks",
    "CATEGORIES": "timeline",
    "MEANING": "timeline",
    "Moment": "timeline",
    "Timeline": "timeline",
    "Plan": "planner",
    "Planner": "planner",
    "largest_batch": "planner",
    "plan": "planner",
    "setting_of": "planner",
    "shared_planner": "planner",
    "DTYPES": "settings",
    "OPTIMIZERS": "settings",
    "Setting": "settings",
    "Ranks": "launcher",
    "SHIPPED": "shapes",
    "CARDS": "cards",
    "RESERVE": "cards",
    "card_bytes": "cards",
    "memory_bytes": "cards",
    "readable": "cards",
}
"""Public name -> its module, imported when the name is asked for: half of them need no torch."""

__all__ = list(WHERE)


def __getattr__(name: str) -> Any:
    if name not in WHERE:
        raise AttributeError(f"module 'rlkit.memory' has no attribute {name!r}")
    return getattr(import_module(f"rlkit.memory.{WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *WHERE])
