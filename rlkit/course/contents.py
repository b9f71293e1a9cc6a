"""notebooks/README.md: contents, timetables and the instructor's sheet, made from the pages.

Nothing in it is typed twice: titles, times and memory come from the pages' cards, minutes of
exercises from their announcements, seconds of computing from the last execution, and what learners
trip over from the mistakes that the checks know. Times are of pages that exist.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any

from rlkit.course import posed, rules
from rlkit.course.exercises import EXERCISES

MARKS = ("<!-- contents -->", "<!-- end of contents -->")
HALF_DAY = ("00", "01", "02", "03a", "04", "07")
START, LUNCH, END = 9 * 60, 12 * 60, 17 * 60  # minutes of the day
BREAK_AFTER, BREAK, LUNCH_BREAK = 75, 15, 60


@dataclass
class Part:
    """A section of a page: seconds of computing when it was last executed, and its exercises."""

    name: str
    title: str
    seconds: int | None
    exercises: list[posed.Posed] = field(default_factory=list)


@dataclass
class Page:
    """What the contents say of a page."""

    stem: str
    card: dict[str, str]
    parts: list[Part]

    @property
    def minutes(self) -> int:
        """The learner's time, from the card."""
        return rules.minutes(self.card["time"])


def page(stem: str, solution: Any) -> Page:
    """A page from its solved notebook."""
    seconds = solution.metadata.get("rlkit", {}).get("seconds", {})
    known = {each.name: each for each in posed.posed(solution)}
    parts: list[Part] = []
    headings: list[str] = []
    for cell in solution.cells:
        if cell.cell_type == "markdown":
            headings += re.findall(r"^## (.+)$", cell.source, re.M)
        for name in re.findall(r'^here\("(.+)"\)', cell.source, re.M):
            title = headings[-1] if headings else ""
            parts.append(Part(name, title.removeprefix(name).strip(), seconds.get(name)))
        if cell.metadata.get("exercise") in known and parts:
            parts[-1].exercises.append(known[cell.metadata["exercise"]])
    return Page(stem, rules.card(solution.cells[0].source), parts)


def written_into(text: str, pages: list[Page]) -> str:
    """README's text with everything between the marks made anew."""
    begin, end = (text.index(mark) for mark in MARKS)
    parts = [table(pages), half_day(pages), full_day(pages), sheet(pages)]
    return text[:begin] + "\n\n".join([MARKS[0], *filter(None, parts), text[end:]])


def table(pages: list[Page]) -> str:
    """One line a page."""
    rows = ["| page | after it you can | time | memory |", "|---|---|---|---|"]
    for each in pages:
        link = f"[{each.card['title']}]({each.stem}.ipynb)"
        goal = each.card["goal"].rstrip(".")
        rows.append(f"| {link} | {goal} | {each.card['time']} | {each.card['memory']} |")
    return "\n".join(rows)


# --- timetables


def half_day(pages: list[Page]) -> str:
    """The short course: the first half of page 03 alone."""
    by_number = {each.stem[:2]: each for each in pages}
    items = []
    for name in HALF_DAY:
        if (each := by_number.get(name[:2])) is not None:
            part = name.endswith("a")
            minutes = minutes_of_part_a(each) if part else each.minutes
            items.append((title(each) + (", part a" if part else ""), minutes))
    return "\n".join(["## Half a day", "", *timetable(items)])


def minutes_of_part_a(each: Page) -> int:
    """What the card says, "80 min (part a 30)", or else half of the page."""
    said = re.search(r"part a (\d+)", each.card["time"])
    return int(said[1]) if said else 5 * math.ceil(each.minutes / 10)


def full_day(pages: list[Page]) -> str:
    """Every page in order; those that no longer fit before the end are named below."""
    rows = timetable([(title(each), each.minutes) for each in pages], lunch=True, end=END)
    return "\n".join(["## A full day", "", *rows])


def title(each: Page) -> str:
    """A page's number and title."""
    return each.card["title"]


def timetable(items: list[tuple[str, int]], lunch: bool = False, end: int = 24 * 60) -> list[str]:
    """Rows of a table (clock, page, minutes) with breaks between pages, from 9:00.

    A break comes where the next page would make it more than 75 minutes without one; lunch comes
    at the first change of pages after 12:00. What would last beyond `end` is named below.
    """
    rows, late = ["| from | to | page |", "|---|---|---|"], []
    now, worked, eaten = START, 0, not lunch
    for name, minutes in items:
        pause = 0
        if not eaten and now >= LUNCH:
            pause, what, eaten = LUNCH_BREAK, "lunch", True
        elif worked and worked + minutes > BREAK_AFTER:
            pause, what = BREAK, "break"
        if late or now + pause + minutes > end:
            late.append(name)
            continue
        if pause:
            rows.append(f"| {clock(now)} | {clock(now + pause)} | {what} |")
            now, worked = now + pause, 0
        rows.append(f"| {clock(now)} | {clock(now + minutes)} | {name} |")
        now, worked = now + minutes, worked + minutes
    return rows + (["", f"At home, or on a second day: {'; '.join(late)}."] if late else [])


def clock(minutes: int) -> str:
    """Minutes of the day as 9:05."""
    return f"{minutes // 60}:{minutes % 60:02d}"


# --- the instructor's sheet


def sheet(pages: list[Page]) -> str:
    """Computing and exercises section by section, and what learners trip over."""
    rows = [
        "## The instructor's sheet",
        "",
        "Computing is what the solved page took, in seconds of the processor. What learners get "
        "stuck on is what the check says of their first answers; it knows more mistakes than two.",
        "",
        "| section | computing | exercises | where learners get stuck |",
        "|---|---|---|---|",
    ]
    for each in pages:
        rows.append(f"| **{title(each)}** | {spent(each)} | {practised(each)} | |")
        rows += [row(part) for part in each.parts]
    return "\n".join(rows)


def spent(each: Page) -> str:
    """Seconds of computing of a whole page."""
    known = [part.seconds for part in each.parts if part.seconds is not None]
    return f"**{sum(known)} s**" if known else ""


def practised(each: Page) -> str:
    """Minutes of exercises of a whole page."""
    minutes = sum(e.minutes for part in each.parts for e in part.exercises)
    return f"**{minutes} min**" if minutes else ""


def row(part: Part) -> str:
    """One section."""
    seconds = "" if not part.seconds else f"{part.seconds} s"
    exercises = [f"{e.number} {e.title}: {e.minutes} min, {e.dots}" for e in part.exercises]
    stuck = [mistakes(e) for e in part.exercises if e.name in EXERCISES]
    cells = [f"{part.name} {part.title}", seconds, "<br>".join(exercises), "<br>".join(stuck)]
    return f"| {' | '.join(cells)} |"


def mistakes(exercise: posed.Posed, most: int = 2) -> str:
    """What the check says of the first known wrong answers to an exercise."""
    says = (wrong.says for wrong in EXERCISES[exercise.name].wrongs[:most])
    return f"{exercise.number}: {' '.join(says)}"
