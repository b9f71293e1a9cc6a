"""A learner's copies of the notebooks, under work/, so that an update never meets their edits."""

import shutil
from itertools import count
from pathlib import Path

from rlkit.paths import PACKAGE

NOTEBOOKS = PACKAGE.parent / "notebooks"


def pages() -> list[Path]:
    """The exercise notebooks of this checkout, in order.

    Raises FileNotFoundError, with the way on, where there are none.
    """
    found = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    if not found:
        raise FileNotFoundError(
            f"no notebooks in {NOTEBOOKS}: they come with the repository, not with the package; "
            "clone it and run this there"
        )
    return found


def page(number: str) -> Path:
    """The notebook with that number: "0", "00" and "00_start" name the same one.

    Raises ValueError, with the numbers there are, for any other.
    """
    wanted = number.split("_")[0].zfill(2)
    for path in pages():
        if path.name.startswith(f"{wanted}_"):
            return path
    known = ", ".join(path.name[:2] for path in pages())
    raise ValueError(f"there is no page {number!r}; the pages are {known}")


def work(folder: Path | None = None) -> Path:
    """Copy every page that `folder` (default: ./work) lacks; returns the copy of the first page.

    A file that is there stays as it is.
    """
    folder = Path("work") if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    for path in pages():
        if not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)
    return (folder / pages()[0].name).resolve()


def reset(number: str, folder: Path | None = None) -> tuple[Path | None, Path]:
    """A fresh copy of one page; the learner's own is renamed, never overwritten.

    Returns where the learner's copy is kept (None if there was none) and the fresh one.
    """
    folder = Path("work") if folder is None else folder
    fresh = folder / page(number).name
    kept = None
    if fresh.exists():
        kept = free_name(fresh)
        fresh.rename(kept)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(page(number), fresh)
    return kept, fresh


def free_name(path: Path) -> Path:
    """00_start.ipynb -> 00_start.mine-1.ipynb, or the first number that is free."""
    names = (path.with_name(f"{path.stem}.mine-{n}.ipynb") for n in count(1))
    return next(name for name in names if not name.exists())
