"""What each section of each page needs; one file a page, page_NN.py, which holds its SECTIONS.

from rlkit.course import pages
pages.find("2.3")                # imports page_02 alone
pages.SECTIONS                   # {"0.1": Section, ...} of all pages
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from rlkit.course.pages.section import Section

__all__ = ["Section", "every", "exercises", "find", "numbers", "page"]


def numbers() -> list[str]:
    """The pages that there are: ["00", "01", ...]."""
    return sorted(m.name[5:] for m in iter_modules(__path__) if m.name.startswith("page_"))


def page(number: str) -> dict[str, Section]:
    """The sections of a page, in order. Raises ValueError for a page that there is not."""
    if number not in numbers():
        raise ValueError(f"there is no page {number!r}; the pages are {', '.join(numbers())}")
    return import_module(f"{__name__}.page_{number}").SECTIONS


def find(name: str) -> Section:
    """A section by its name, "2.3". Raises ValueError, with the sections there are."""
    known = page(number_of(name)) if number_of(name) in numbers() else every()
    if name not in known:
        raise ValueError(f"there is no section {name!r}; the sections are {', '.join(known)}")
    return known[name]


def exercises(name: str) -> list[str]:
    """The exercises of a section and of those before it on its page; ValueError as in `find`."""
    find(name)
    sections = page(number_of(name))
    before = list(sections)[: list(sections).index(name) + 1]
    return list(dict.fromkeys(e for other in before for e in sections[other].exercises))


def poses_exercises(name: str) -> bool:
    """Whether any section of this section's page names an exercise."""
    return any(needs.exercises for needs in page(number_of(name)).values())


def number_of(section: str) -> str:
    """The page of a section: "2.3" -> "02"."""
    return section.partition(".")[0].zfill(2)


def every() -> dict[str, Section]:
    """The sections of all pages, in order."""
    return {name: needs for number in numbers() for name, needs in page(number).items()}


def __getattr__(name: str) -> Any:
    if name == "SECTIONS":
        return every()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
