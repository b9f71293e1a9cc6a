"""From notebooks/source/NN_name.py (py:percent) to the two notebooks a page has:

    notebooks/NN_name.ipynb             the exercises: without solutions, without outputs
                                        (but for cells whose output is checked)
    notebooks/solutions/NN_name.ipynb   solved and executed, figures as static images

Building writes everything but outputs from the source alone, and carries outputs over from the
files that are there; --execute makes them anew. So a build of an unchanged source changes nothing.
"""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from rlkit.course import contents, execute, rules
from rlkit.course.colab import setup_cell
from rlkit.course.copies import NOTEBOOKS
from rlkit.optional import require

BEGIN, END = "# SOLUTION", "# END SOLUTION"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def build(number: str | None = None, run: bool = False, folder: Path = NOTEBOOKS) -> list[str]:
    """Write the pages (or the one with that number); returns what is wrong with them, in words.

    run: execute the solution first; otherwise outputs are carried over.
    """
    wrong = []
    for source in sources(number, folder):
        pages = make(source, folder)
        if run:
            execute.run(pages["solution"], source.stem)
            carry(pages["solution"], pages["exercise"], checked_only=True)
        for name, path in paths(source, folder).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dumps(pages[name]), encoding="utf-8")
        wrong += rules.broken(source.stem, pages)
    readme = folder / "README.md"
    readme.write_text(with_contents(readme, folder), encoding="utf-8")
    return wrong


def check(number: str | None = None, folder: Path = NOTEBOOKS) -> list[str]:
    """What a build would change, and what is wrong with the pages; [] if nothing is."""
    wrong = []
    for source in sources(number, folder):
        pages = make(source, folder)
        for name, path in paths(source, folder).items():
            if not path.exists() or path.read_text(encoding="utf-8") != dumps(pages[name]):
                wrong.append(f"{path.name}, the {name}: differs from its source; build it again")
        wrong += rules.broken(source.stem, pages)
    readme = folder / "README.md"
    if readme.read_text(encoding="utf-8") != with_contents(readme, folder):
        wrong.append("README.md: its contents differ from the pages; build again")
    return wrong


def sources(number: str | None, folder: Path) -> list[Path]:
    """The sources of all pages, or of one. Raises ValueError for a number that has none."""
    pattern = "[0-9][0-9]_*.py" if number is None else f"{number.zfill(2)}_*.py"
    found = sorted((folder / "source").glob(pattern))
    if not found:
        raise ValueError(f"no source {pattern} in {folder / 'source'}")
    return found


def paths(source: Path, folder: Path) -> dict[str, Path]:
    """Where the two notebooks of a source lie."""
    name = f"{source.stem}.ipynb"
    return {"exercise": folder / name, "solution": folder / "solutions" / name}


def make(source: Path, folder: Path) -> dict[str, Any]:
    """Both notebooks of a source, with the outputs of the files that are there."""
    import nbformat

    pages = {"exercise": exercise(read(source)), "solution": solution(read(source))}
    for name, path in paths(source, folder).items():
        if path.exists():
            old = nbformat.read(path, as_version=4)
            carry(old, pages[name], checked_only=name == "exercise")
    return pages


def read(source: Path) -> Any:
    """A source as a notebook, with the set-up cell as its second cell and lasting cell ids."""
    import nbformat

    jupytext = require("jupytext", "building notebooks")
    notebook = jupytext.read(source, fmt="py:percent")
    setup = nbformat.v4.new_code_cell(setup_cell())
    setup.metadata = {"tags": ["setup"], "jupyter": {"source_hidden": True}}
    notebook.cells.insert(1, setup)
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    name_cells(notebook.cells)
    return notebook


def name_cells(cells: list[Any]) -> None:
    """An id that depends on a cell's content alone, so that an insertion renames no other."""
    seen: Counter[str] = Counter()
    for cell in cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:10]
        seen[digest] += 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def exercise(notebook: Any) -> Any:
    """The learner's notebook: solutions taken out, and cells that only a solution has."""
    notebook.cells = [cell for cell in notebook.cells if "solution" not in tags(cell)]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = without_solution(cell.source)
    return notebook


def solution(notebook: Any) -> Any:
    """The solved notebook: only the markers are taken out."""
    for cell in notebook.cells:
        lines = cell.source.split("\n")
        cell.source = "\n".join(line for line in lines if line.strip() not in (BEGIN, END))
    return notebook


def without_solution(code: str) -> str:
    """Cut what stands between the markers; inside a function `...` takes its place.

    Raises ValueError if the markers do not pair.
    """
    kept, inside = [], False
    for line in code.split("\n"):
        if line.strip() in (BEGIN, END):
            if inside == (line.strip() == BEGIN):
                raise ValueError(f"{BEGIN} and {END} do not pair in the cell:\n{code}")
            inside = not inside
            if inside and line.startswith(" "):
                kept.append(line.replace(BEGIN, "...  # your code"))
        elif not inside:
            kept.append(line)
    if inside:
        raise ValueError(f"{END} is missing in the cell:\n{code}")
    return "\n".join(kept)


def carry(old: Any, new: Any, checked_only: bool = False) -> None:
    """Take over the outputs of code cells that are still the same (all, or only checked ones)."""
    outputs = {cell.id: cell for cell in old.cells if cell.cell_type == "code"}
    for cell in new.cells:
        if cell.cell_type == "code" and cell.id in outputs:
            if not checked_only or is_checked(cell):
                cell.outputs = outputs[cell.id].outputs
                cell.execution_count = outputs[cell.id].execution_count
    if not checked_only and "rlkit" in old.metadata:
        new.metadata["rlkit"] = old.metadata["rlkit"]


def is_checked(cell: Any) -> bool:
    """Whether nbval compares the cell's output with the stored one."""
    return "# NBVAL_CHECK_OUTPUT" in cell.source


def tags(cell: Any) -> list[str]:
    """A cell's tags."""
    return cell.metadata.get("tags", [])


def dumps(notebook: Any) -> str:
    """A notebook as the text of its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def with_contents(path: Path, folder: Path) -> str:
    """README.md with all that is made from the pages. Raises ValueError for one without a card."""
    pages = []
    for source in sources(None, folder):
        try:
            pages.append(contents.page(source.stem, make(source, folder)["solution"]))
        except ValueError as error:
            raise ValueError(f"{source.name}: {error}") from error
    return contents.written_into(path.read_text(encoding="utf-8"), pages)
