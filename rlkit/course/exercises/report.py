"""A verdict as a few lines of plain text, at most 76 columns wide."""

import textwrap

import torch
from torch import Tensor

from rlkit.course.exercises.exercise import Exercise, tolerances
from rlkit.course.exercises.judge import Outcome, Verdict, names

WIDTH, CELL = 76, 8


def lines(verdict: Verdict, exercise: Exercise, failures: int) -> list[str]:
    """What is printed of a wrong answer: table, mistake, hints so far."""
    out = [f"{exercise.name}: not right yet"]
    if verdict.kind == "numbers" and verdict.outcome is not None:
        out += ["", *comparison(verdict.outcome, exercise)]
    if verdict.kind == "broken" and verdict.outcome is not None:
        out += ["", verdict.outcome.case.about]
    says = verdict.says or ["The check does not know this mistake. Where do the two rows part?"]
    out += ["", *(line for text in says for line in wrap(text))]
    out += ["", *(line for text in hints(exercise, failures) for line in wrap(text))]
    return out


def hints(exercise: Exercise, failures: int) -> list[str]:
    """One more with each failure; then the offer of the solution."""
    shown = exercise.hints[:failures]
    out = [f"Hint {i + 1} of {len(exercise.hints)}: {text}" for i, text in enumerate(shown)]
    if failures > len(exercise.hints):
        out.append(f'check.solution("{exercise.name}") shows one way to write it.')
    return out


def wrap(text: str) -> list[str]:
    """A sentence in lines; what begins with a space (code) stays one line, cut."""
    if text.startswith(" "):
        return [text[:WIDTH]]
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


def comparison(outcome: Outcome, exercise: Exercise) -> list[str]:
    """The first row that differs: what went in, what was expected, what came."""
    case, (name, want, got, wrong) = outcome.case, first_wrong(outcome, exercise)
    row, rows = None, inputs(exercise, case.args)
    if want.dim() > 1:
        row = int(wrong.any(1).nonzero()[0])
        rows = {k: x[row] for k, x in rows.items() if x.shape == want.shape}
        want, got = want[row], got[row]
    rows = {k: written(x) for k, x in rows.items() if x.shape == want.shape and x.dim()}
    free = want.isnan().flatten().tolist()  # may hold anything
    came = ["-" if f else text for f, text in zip(free, written(got), strict=True)]
    asked = ["-" if f else text for f, text in zip(free, written(want), strict=True)]
    where = "" if row is None else f", row {row}"
    head = [f"{case.about}{where}", *numbers(exercise, case.args)]
    if want.dim() == 1 and row is None:
        head += rows_behind(exercise, case.args, len(want), int(wrong.nonzero()[0]))
    head.append("")
    rows |= {f"{name}:": [], "  expected": asked, "  yours": came}
    return head + table(rows, exercise.column if want.dim() else None)


def first_wrong(outcome: Outcome, exercise: Exercise) -> tuple[str, Tensor, Tensor, Tensor]:
    """(name, expected, what came, where they differ) of the first output that is wrong."""
    rounding = tolerances(outcome.case, outcome.expected)
    pairs = zip(exercise.all_outputs, outcome.expected, outcome.got, strict=True)
    found = ((name, want, got, differs(want, got, *rounding)) for name, want, got in pairs)
    return next(four for four in found if four[3].any())


def inputs(exercise: Exercise, args: tuple) -> dict[str, Tensor]:
    """The rows that are shown above the answers."""
    if exercise.shown is not None:
        return exercise.shown(*args)
    return {k: x for k, x in zip(names(exercise), args, strict=True) if isinstance(x, Tensor)}


def numbers(exercise: Exercise, args: tuple) -> list[str]:
    """The arguments that are plain numbers, as one line `name=value`, or none."""
    pairs = zip(names(exercise), args, strict=True)
    plain = {k: a for k, a in pairs if not isinstance(a, Tensor) and not callable(a)}
    return [", ".join(f"{k}={a:g}" for k, a in plain.items())] if plain else []


def rows_behind(exercise: Exercise, args: tuple, size: int, row: int) -> list[str]:
    """For one answer a row: the row of each table [size, ...] that the first wrong one is of."""
    tables = {k: x for k, x in inputs(exercise, args).items() if x.dim() == 2 and len(x) == size}
    return [f"{k}, row {row}: {' '.join(written(x[row]))}"[:WIDTH] for k, x in tables.items()]


def differs(want: Tensor, got: Tensor, absolute: float, relative: float) -> Tensor:
    """Where two tensors differ by more than rounding."""
    want, got = want.double(), got.double()
    return ~torch.isclose(got, want, relative, absolute, equal_nan=True)


def table(rows: dict[str, list[str]], column: str | None) -> list[str]:
    """Rows of cells under numbered columns, as many as fit; a row of none is a heading."""
    label = max(len(name) for name in rows) + 1
    cell = max(CELL, *(len(text) + 2 for cells in rows.values() for text in cells))
    most = (WIDTH - label) // cell
    if column is not None:
        count = max(len(cells) for cells in rows.values())
        rows = {"": [f"{column}{i}" for i in range(count)]} | rows
    return [
        (name.ljust(label) + "".join(text.rjust(cell) for text in cells[:most])).rstrip()
        for name, cells in rows.items()
    ]


def written(x: Tensor) -> list[str]:
    """A row of numbers as text: three decimals, or two digits and a power where they are tiny."""
    if x.dtype == torch.bool and not x.dim():
        return [str(bool(x))]
    x = x.flatten()
    if not x.is_floating_point():
        return [str(int(v)) for v in x]
    finite = x[x.isfinite()].abs()
    tiny = bool(len(finite)) and 0 < float(finite.max()) < 1e-3
    texts = (f"{v:.1e}" if tiny and v else f"{v:.3f}" for v in x.double().tolist())
    return ["0.000" if text == "-0.000" else text for text in texts]


def progress_table(rows: list[tuple[str, str, str]]) -> list[str]:
    """(exercise, page, state) -> lines."""
    return [f"{name:<17}page {page}   {state}" for name, page, state in rows]
