"""Every notebook runs under nbval: as shipped, solved, and with wrong answers filled in.

And the strict rules do bite. A notebook may take 90 s and 2 GiB. Seconds are those of the clock or
of the CPU, whichever are fewer: on a busy machine the clock says little, on a quiet one it is what
the learner waits.
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("nbval")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

from checked_answers import WRONG  # noqa: E402

from rlkit.course.exercises import EXERCISES  # noqa: E402
from rlkit.course.posed import NUMBERS, exercise_cells  # noqa: E402

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
SOLUTIONS = sorted((ROOT / "notebooks" / "solutions").glob("[0-9][0-9]_*.ipynb"))
POSING = [path for path in NOTEBOOKS if '"exercise"' in path.read_text(encoding="utf-8")]
MOST_SECONDS, MOST_BYTES = 90, 2 * 2**30
UNSOLVED = "    ...  # your code"


def nbval(folder, **environment):
    """Run every notebook in `folder`; returns (exit status, report)."""
    shutil.copy(HERE / "conftest.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    flags = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=300", "-rA", "--tb=short"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, str(folder)],
        env=os.environ | environment | {"PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=580,  # a kernel ends with the process that started it
    )
    return done.returncode, done.stdout + done.stderr


def cells_of(folder):
    """What the last run noted of each cell: text, id, and what its kernel had used."""
    lines = (folder / "cells.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def runs(folder, **environment):
    """Run the one notebook in `folder`: it passes, within its limits, and leaves no kernel."""
    began = time.monotonic()
    status, report = nbval(folder, **environment)
    clock = time.monotonic() - began
    assert status == 0, report[-6000:]
    cells = cells_of(folder)
    seconds = min(clock, max(cell.get("seconds", clock) for cell in cells))
    peak = max(cell.get("bytes", 0) for cell in cells)
    print(f"{seconds:.0f} s ({clock:.0f} s by the clock), {peak / 2**30:.2f} GiB")
    assert seconds < MOST_SECONDS and peak < MOST_BYTES
    assert not any(is_alive(cell["pid"]) for cell in cells)
    return cells


def is_alive(pid):
    """Whether a process runs (also as a zombie that nobody has waited for)."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "path",
    [NOTEBOOKS[0], *(pytest.param(path, marks=pytest.mark.slow) for path in NOTEBOOKS[1:])],
    ids=lambda path: path.stem,
)
def test_exercises_run_as_shipped(path, tmp_path):
    shutil.copy(path, tmp_path)
    runs(tmp_path, RLKIT_FAST="1")


@pytest.mark.slow
@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_solutions_run_whole_and_their_claims_hold(path, tmp_path):
    shutil.copy(path, tmp_path)
    cells = runs(tmp_path, RLKIT_FOREGROUND="1")
    notebook = nbformat.read(path, as_version=4)
    for name, text in exercises_in(notebook, cells):
        assert text.startswith(f"{name}: right"), text


@pytest.mark.slow
@pytest.mark.parametrize("path", POSING, ids=lambda path: path.stem)
def test_wrong_answers_are_named_and_stop_nothing(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    mistakes = fill_in(notebook)
    nbformat.write(notebook, tmp_path / path.name)
    cells = runs(tmp_path, RLKIT_FAST="1")
    for name, text in exercises_in(notebook, cells):
        wrong = mistakes[name]
        assert text.startswith(f"{name}: not right yet"), text
        assert " ".join(wrong.says.split()) in " ".join(text.split()), text


def fill_in(notebook):
    """Put the first wrong answer of the table into each exercise; returns the mistakes by name."""
    mistakes = {}
    for cell in checked_cells(notebook):
        name = cell.metadata["exercise"]
        mistake, body = WRONG[name][0]
        assert cell.source.count(UNSOLVED) == 1, f"the exercise {name} has no place for an answer"
        code = textwrap.indent(textwrap.dedent(body).strip(), "    ")
        cell.source = cell.source.replace(UNSOLVED, code)
        exercise = EXERCISES[name]
        known = [*exercise.wrongs, *([exercise.memory.wrong] if exercise.memory else [])]
        mistakes[name] = next(wrong for wrong in known if wrong.name == mistake)
    return mistakes


def exercises_in(notebook, cells):
    """(name, printed text) of each exercise's cell in a run."""
    texts = {cell["id"]: cell["text"] for cell in cells}
    return [(c.metadata["exercise"], texts[c.id]) for c in checked_cells(notebook)]


def checked_cells(notebook):
    """The cells of exercises that have a check; those in numbers look at their answers alone."""
    return [c for _, c in exercise_cells(notebook) if c.metadata["exercise"] != NUMBERS]


# --- the rules bite


def cell(source, tags=(), output=None):
    made = nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)} if tags else {})
    if output is not None:
        made.execution_count = 1
        made.outputs = [nbformat.v4.new_output("stream", name="stdout", text=output)]
    return made


CHECKED = "# NBVAL_CHECK_OUTPUT\nprint(6 * 7)"
GOOD = [
    cell(CHECKED, output="42\n"),
    cell("1 / 0", tags=["raises-exception"]),
    cell("print('anything')", output="else\n"),
]
BAD = [
    (cell(CHECKED, output="41\n"), "mismatch"),
    (cell(CHECKED), "no output is stored"),
    (cell("%no_such_magic"), "failed without a traceback"),
    (cell("1 + 1", tags=["raises-exception"]), "nothing was raised"),
    (cell("1 / 0"), "ZeroDivisionError"),
    (cell("import sys; print('careful', file=sys.stderr)"), "wrote to stderr"),
    (cell("import os; os.kill(os.getpid(), 9)"), "the kernel died"),
]


@pytest.mark.slow
def test_the_strict_rules_bite(tmp_path):
    write(tmp_path, "good", GOOD)
    write(tmp_path, "bad", [bad for bad, _ in BAD])
    _, report = nbval(tmp_path)
    assert f"{len(BAD)} failed, {len(GOOD)} passed" in report, report
    for index, (_, words) in enumerate(BAD):
        assert f"FAILED bad.ipynb::Cell {index}" in report, report
        assert words in report, report


@pytest.mark.slow
def test_an_exercise_is_filled_in_with_a_wrong_answer_and_its_mistake_is_named(tmp_path):
    source = """
from rlkit.course.checks import check
import torch

@check.leave_one_out
def leave_one_out(rewards, num_generations):
    ...  # your code
"""
    shipped = cell(source.strip())
    shipped.metadata["exercise"] = "leave_one_out"
    write(tmp_path, "page", [shipped, cell("assert leave_one_out.stands_in")])
    notebook = nbformat.read(tmp_path / "page.ipynb", as_version=4)
    wrong = fill_in(notebook)["leave_one_out"]
    nbformat.write(notebook, tmp_path / "page.ipynb")
    ((name, text),) = exercises_in(notebook, runs(tmp_path))
    assert name == "leave_one_out" and text.startswith("leave_one_out: not right yet")
    assert wrong.says in text


@pytest.mark.slow
def test_the_limits_bite(tmp_path, monkeypatch):
    write(tmp_path, "large", [cell("x = bytearray(600 * 2**20)")])
    monkeypatch.setitem(globals(), "MOST_BYTES", 512 * 2**20)
    with pytest.raises(AssertionError):
        runs(tmp_path)
    assert max(c["bytes"] for c in cells_of(tmp_path)) > 600 * 2**20


def write(folder, name, cells):
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, folder / f"{name}.ipynb")
