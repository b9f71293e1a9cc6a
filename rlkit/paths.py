"""Where the data folder lies: in a checkout, an editable install and an installed wheel."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def data_path(*parts: str) -> Path:
    """The data folder, or a path inside it: data_path("adder", "config.json").

    A wheel carries the folder as rlkit/data; in a checkout it lies beside the package. The path
    need not exist (commands that write data use it too).
    Raises FileNotFoundError if there is no data folder at all.
    """
    for folder in (PACKAGE / "data", PACKAGE.parent / "data"):
        if folder.is_dir():
            return folder.joinpath(*parts)
    raise FileNotFoundError(
        f"rlkit's data folder is missing beside {PACKAGE}: install the package again, or work in "
        "a full checkout"
    )
