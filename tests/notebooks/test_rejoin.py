"""A restarted kernel rejoins anywhere: each section runs on what `here` alone brings back.

Every page as shipped, in one kernel that forgets all names before each `here`. Runs, answers and
ladder of the sections before lie in the folder, as they do for whoever comes back the next day.
"""

import re
from pathlib import Path

import nbformat
import pytest

nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9][0-9]_*.ipynb"))
HERE = re.compile(r'^here\("([\d.]+)"\)', re.M)
FORGET = "%reset -f"


def forgetful(notebook):
    """The notebook, with a cell that forgets everything before each section."""
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "code" and HERE.search(cell.source):
            cells.append(nbformat.v4.new_code_cell(FORGET))
        cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata)


def troubles(notebook):
    """(section, error, first line of the cell) of every cell that stopped."""
    section, found = "", []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            opened = HERE.search(cell.source)
            section = opened.group(1) if opened else section
            lines = cell.source.splitlines()
            errors = [o for o in cell.outputs if o.output_type == "error"]
            found += [(section, f"{o.ename}: {o.evalue}", lines[0]) for o in errors]
    return found


def run(notebook, folder, monkeypatch):
    monkeypatch.setenv("RLKIT_FAST", "1")
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOKS[0].parents[1]))
    where = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(notebook, timeout=300, allow_errors=True, resources=where)
    client.execute()
    return notebook


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_section_can_be_the_first(path, tmp_path, monkeypatch):
    notebook = forgetful(nbformat.read(path, as_version=4))
    assert sum(cell.source == FORGET for cell in notebook.cells) >= 1
    assert troubles(run(notebook, tmp_path, monkeypatch)) == []


@pytest.mark.slow
def test_what_here_does_not_bring_back_is_noticed(tmp_path, monkeypatch):
    section = 'from rlkit.course import here\n\nhere("2.2")'
    cells = [nbformat.v4.new_code_cell(text) for text in ("lost = 1", section, "lost")]
    notebook = run(forgetful(nbformat.v4.new_notebook(cells=cells)), tmp_path, monkeypatch)
    assert [(s, e.split(":")[0]) for s, e, _ in troubles(notebook)] == [("2.2", "NameError")]
