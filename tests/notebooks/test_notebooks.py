"""Every notebook runs under nbval as it is committed; and the strict rules do bite."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("nbval")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
SOLUTIONS = sorted((ROOT / "notebooks" / "solutions").glob("[0-9][0-9]_*.ipynb"))


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
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_exercises_run_as_shipped(path, tmp_path):
    shutil.copy(path, tmp_path)
    status, report = nbval(tmp_path, RLKIT_FAST="1")
    assert status == 0, report[-6000:]


@pytest.mark.slow
@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_solutions_run_whole_and_their_claims_hold(path, tmp_path):
    shutil.copy(path, tmp_path)
    status, report = nbval(tmp_path, RLKIT_FOREGROUND="1")
    assert status == 0, report[-6000:]


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


def test_the_strict_rules_bite(tmp_path):
    write(tmp_path, "good", GOOD)
    write(tmp_path, "bad", [bad for bad, _ in BAD])
    _, report = nbval(tmp_path)
    assert f"{len(BAD)} failed, {len(GOOD)} passed" in report, report
    for index, (_, words) in enumerate(BAD):
        assert f"FAILED bad.ipynb::Cell {index}" in report, report
        assert words in report, report


def write(folder, name, cells):
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, folder / f"{name}.ipynb")
