"""The exercises of the course, in the order of its pages; one file each, which holds EXERCISE."""

from importlib import import_module
from pkgutil import iter_modules

from rlkit.course.exercises.exercise import Exercise

TOOLS = {"exercise", "judge", "limits", "progress", "report"}
"""The files of this folder that are no exercises."""


def discover() -> dict[str, Exercise]:
    """Every exercise by its name: page by page, and by name on a page."""
    files = (m.name for m in iter_modules(__path__) if m.name not in TOOLS)
    found = [import_module(f"{__name__}.{name}").EXERCISE for name in files]
    return {e.name: e for e in sorted(found, key=lambda e: (e.page, e.name))}


EXERCISES = discover()
