"""Whether each page's effect is there: three seeds, the gap beside the spread.

    rlkit evidence 01                # measures, prints, writes data/evidence/page_01.csv
    evidence.load("01")["shifted"]   # in a page: one value a seed

One file a page, page_NN.py, holds its EVIDENCE; effect.py says when an effect counts as shown.
"""

import csv
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from rlkit.course.evidence.effect import Effect, Evidence, Numbers
from rlkit.paths import data_path

__all__ = ["Effect", "Evidence", "Numbers", "find", "load", "numbers_of_pages", "path"]


def numbers_of_pages() -> list[str]:
    """The pages that have evidence: ["00", "01", ...]."""
    return sorted(m.name[5:] for m in iter_modules(__path__) if m.name.startswith("page_"))


def find(page: str) -> Evidence:
    """The evidence of a page; "0" and "00" name the same. Raises ValueError where there is none."""
    known = numbers_of_pages()
    if page.zfill(2) not in known:
        raise ValueError(f"there is no evidence for page {page!r}; there is for {', '.join(known)}")
    return import_module(f"{__name__}.page_{page.zfill(2)}").EVIDENCE


def path(page: str, folder: Path | None = None) -> Path:
    """Where a page's numbers lie."""
    folder = data_path("evidence") if folder is None else folder
    return folder / f"page_{page.zfill(2)}.csv"


def load(page: str, folder: Path | None = None) -> Numbers:
    """The numbers of a page that were measured last, by name, one a seed.

    Raises FileNotFoundError, with the command that measures them, where there are none.
    """
    file = path(page, folder)
    if not file.exists():
        raise FileNotFoundError(f"{file} is missing; `rlkit evidence {page}` measures it")
    return read(file)


def read(file: Path) -> Numbers:
    """A file with a row a seed, as `commands.write` writes it, by name."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    names = [name for name in rows[0] if name != "seed"]
    return {name: [float(row[name]) for row in rows] for name in names}
