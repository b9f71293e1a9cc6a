"""The contents page: timetables and the instructor's sheet."""

import re

import pytest

nbformat = pytest.importorskip("nbformat")

from rlkit.course import contents, rules  # noqa: E402

CARD = """# {number} A page

**After this page you can** do it.

| time | where | memory |
|---|---|---|
| {minutes} min, half of it computing | here | 1 GB |
"""


def page(number, minutes, *cells, seconds=None):
    """A page of which a card and some cells are known."""
    text = CARD.format(number=number, minutes=minutes)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text), *cells])
    notebook.metadata["rlkit"] = {"seconds": seconds or {}}
    return contents.page(f"{number}_page", notebook)


def text(source):
    return nbformat.v4.new_markdown_cell(source)


def code(source, exercise=None):
    metadata = {} if exercise is None else {"exercise": exercise}
    return nbformat.v4.new_code_cell(source, metadata=metadata)


SECTION = 'from rlkit.course import here\n\nhere("{}")'
LEAVE_ONE_OUT = (
    text("## Exercise 2.1  Leave one out\n*8 minutes, two dots of three.* Write it."),
    code("@check.leave_one_out", "leave_one_out"),
)


def test_a_page_is_read_section_by_section():
    cells = [
        text("## 2.1 Four answers"),
        code(SECTION.format("2.1")),
        *LEAVE_ONE_OUT,
        text("## 2.2 Does it matter?\nText."),
        code(SECTION.format("2.2")),
    ]
    found = page("02", 35, *cells, seconds={"2.1": 5, "2.2": 40})
    assert (found.stem, found.minutes) == ("02_page", 35)
    assert [(p.name, p.title, p.seconds) for p in found.parts] == [
        ("2.1", "Four answers", 5),
        ("2.2", "Does it matter?", 40),
    ]
    assert [[e.number for e in part.exercises] for part in found.parts] == [["2.1"], []]
    sheet = contents.sheet([found])
    assert "| **02 A page** | **45 s** | **8 min** | |" in sheet
    assert "| 2.2 Does it matter? | 40 s |  |  |" in sheet
    assert "2.1 Leave one out: 8 min, two dots" in sheet
    assert "2.1: Your baseline contains the sample's own reward. The sum" in sheet


def times(rows):
    """(from, to, what) in minutes."""
    found = re.findall(r"\| (\d+):(\d\d) \| (\d+):(\d\d) \| (.+) \|", "\n".join(rows))
    return [(int(a) * 60 + int(b), int(c) * 60 + int(d), what) for a, b, c, d, what in found]


def test_a_timetable_has_no_gaps_and_a_break_before_75_minutes_are_over():
    items = [(f"page {i}", minutes) for i, minutes in enumerate((10, 30, 35, 60, 40, 20, 70))]
    rows = times(contents.timetable(items))
    assert rows[0][0] == 9 * 60
    assert all(a[1] == b[0] for a, b in zip(rows, rows[1:], strict=False))
    assert [row for row in rows if row[2] != "break"] == [
        (a, a + minutes, name)
        for (a, _, what), (name, minutes) in zip(
            [row for row in rows if row[2] != "break"], items, strict=True
        )
    ]
    worked = 0
    for start, end, what in rows:
        worked = 0 if what == "break" else worked + end - start
        assert worked <= contents.BREAK_AFTER


def test_lunch_comes_once_after_noon_and_what_does_not_fit_is_named():
    items = [(f"page {i}", 60) for i in range(9)]
    rows = contents.timetable(items, lunch=True, end=17 * 60)
    lunches = [row for row in times(rows) if row[2] == "lunch"]
    assert len(lunches) == 1 and 12 * 60 <= lunches[0][0] <= 13 * 60
    assert max(end for _, end, _ in times(rows)) <= 17 * 60
    shown = {what for _, _, what in times(rows)}
    late = re.findall(r"page \d", rows[-1])
    assert late and rows[-1].startswith("At home")
    assert shown - {"lunch", "break"} | set(late) == {name for name, _ in items}


def test_half_a_day_takes_its_pages_in_order_and_half_of_page_03():
    pages = [page(n, 35) for n in ("00", "01", "03", "05", "07")]
    rows = [row for row in times(contents.half_day(pages).split("\n")) if row[2] != "break"]
    assert [what for _, _, what in rows] == [
        "00 A page",
        "01 A page",
        "03 A page, part a",
        "07 A page",
    ]
    assert rows[2][1] - rows[2][0] == 20


def test_a_card_may_say_how_long_its_part_a_takes():
    found = page("03", 80)
    assert contents.minutes_of_part_a(found) == 40
    found.card["time"] = "80 min (part a 30), 60 s of it computing"
    assert contents.minutes_of_part_a(found) == 30


def test_everything_between_the_marks_is_made_anew_and_nothing_else():
    before = f"# Mine\n\n{contents.MARKS[0]}\nold\n{contents.MARKS[1]}\n\nMine too\n"
    once = contents.written_into(before, [page("02", 35)])
    assert once.startswith("# Mine\n\n") and once.endswith(f"{contents.MARKS[1]}\n\nMine too\n")
    assert "old" not in once and "[02 A page](02_page.ipynb) | do it | 35 min, half" in once
    assert contents.written_into(once, [page("02", 35)]) == once


@pytest.mark.parametrize("time", ["soon", "half an hour", "min 5", ""])
def test_a_card_says_its_minutes_first(time):
    with pytest.raises(ValueError, match="it begins with `35 min`"):
        rules.minutes(time)
