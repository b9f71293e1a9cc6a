"""The exercises of a page: where they stand in its source, and the rules that they keep to.

    # %% [markdown]
    # ## Exercise 2.1  Leave one out
    # *8 minutes, two dots of three.* Write it for any number of prompts at once.

    # %% exercise="leave_one_out"
    @check.leave_one_out
    def leave_one_out(rewards, num_generations):
        # SOLUTION
        ...
        # END SOLUTION

The number after `Exercise` is the page's and counts from 1; one dot is easy, three are hard.
An exercise whose answer is no function but numbers stands in a cell with exercise="numbers": the
learner's numbers between the markers' place, and after it a line that compares them with the truth.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

HEADING = re.compile(r"^#+ Exercise (?P<number>\d+\.\d+) +(?P<title>.+)$", re.M)
EFFORT = re.compile(
    r"^\*(?P<minutes>\d+) minutes?, (?P<dots>one dot|two dots|three dots) of three\.\*", re.M
)


NUMBERS = "numbers"


@dataclass(frozen=True)
class Posed:
    """An exercise as its page announces it; name is that of its check."""

    name: str
    number: str
    title: str
    minutes: int
    dots: str


def posed(notebook: Any) -> list[Posed]:
    """The exercises of a page whose announcement is whole."""
    found = []
    for above, cell in exercise_cells(notebook):
        heading, effort = HEADING.search(above), EFFORT.search(above)
        if heading and effort:
            words = heading.groupdict() | effort.groupdict()
            minutes = int(words.pop("minutes"))
            found.append(Posed(cell.metadata["exercise"], minutes=minutes, **words))
    return found


def exercise_cells(notebook: Any) -> Iterator[tuple[str, Any]]:
    """(the markdown above it, or "", the cell) of each exercise."""
    above = ""
    for cell in notebook.cells:
        if "exercise" in cell.metadata:
            yield above, cell
        above = cell.source if cell.cell_type == "markdown" else ""


def broken(name: str, pages: dict[str, Any]) -> list[str]:
    """Every rule about exercises that a page breaks: both notebooks -> lines."""
    found = [*announced(name, pages["solution"]), *strays(pages["solution"])]
    shipped = {cell.id: cell.source for _, cell in exercise_cells(pages["exercise"])}
    for _, cell in exercise_cells(pages["solution"]):
        found += faults(cell, shipped.get(cell.id))
    return found


def faults(cell: Any, shipped: str | None) -> list[str]:
    """What is wrong with one exercise's cell, solved; shipped: the same cell for the learner."""
    from rlkit.course.exercises import EXERCISES

    name = cell.metadata["exercise"]
    if name == NUMBERS:
        return (
            []
            if looks_at_numbers(cell, shipped)
            else [
                "an exercise in numbers needs a solution between markers and a line after it that "
                "compares"
            ]
        )
    if name not in EXERCISES:
        return [f"there is no exercise {name!r}; there are {', '.join(EXERCISES)}"]
    found = []
    function = EXERCISES[name].function
    if (name, function) not in decorated(cell.source):
        found.append(f"the exercise {name!r} has no `@check.{name}` above `def {function}`")
    if shipped == cell.source:
        found.append(f"the exercise {name!r} has no solution between markers")
    printed = "".join(o.get("text", "") for o in cell.get("outputs", []))
    if cell.get("outputs") and f"{name}: right" not in printed:
        found.append(f"the solution of {name!r} does not pass its check")
    return found


def looks_at_numbers(cell: Any, shipped: str | None) -> bool:
    """Whether a cell has a solution, and ends with more than an assignment."""
    try:
        last = ast.parse(cell.source).body[-1]
    except (SyntaxError, IndexError):
        return False
    return shipped != cell.source and isinstance(last, ast.Expr | ast.Assert | ast.For | ast.If)


def announced(name: str, notebook: Any) -> list[str]:
    """Heading, time and difficulty above each exercise, numbered in order; no heading alone."""
    found, numbers = [], []
    for above, cell in exercise_cells(notebook):
        what = f"the exercise {cell.metadata['exercise']!r}"
        headings = HEADING.findall(above)
        numbers += [number for number, _ in headings]
        if len(headings) != 1:
            found.append(f"{what} has no `## Exercise 2.1  Title` in the text right above it")
        if len(EFFORT.findall(above)) != 1:
            found.append(f"{what} has no line `*8 minutes, two dots of three.*` above it")
    wanted = [f"{int(name[:2])}.{i + 1}" for i in range(len(numbers))]
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    if numbers != wanted:
        found.append(f"its exercises are numbered {numbers}, not {wanted}")
    if len(HEADING.findall(text)) != len(numbers):
        found.append('an exercise is announced, but no cell with exercise="..." comes next')
    return found


def strays(notebook: Any) -> list[str]:
    """Checks of exercises outside an exercise's cell."""
    cells = [c for c in notebook.cells if c.cell_type == "code" and "exercise" not in c.metadata]
    names = {name for cell in cells for name, _ in decorated(cell.source)}
    return [f"`@check.{name}` outside of a cell with exercise={name!r}" for name in sorted(names)]


def decorated(source: str) -> list[tuple[str, str]]:
    """(check's name, function's name) for each function under a `@check.name` in a cell."""
    try:
        tree = ast.parse(re.sub(r"^(\s*)%.*$", r"\1pass", source, flags=re.M))
    except SyntaxError:  # the rule about syntax speaks of it
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = []
    for function in functions:
        for node in function.decorator_list:
            node = node.func if isinstance(node, ast.Call) else node
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "check":
                found.append((node.attr, function.name))
    return found
