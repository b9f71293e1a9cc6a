"""The script of a widget: page.js, which all share, and its own files."""

from pathlib import Path

FOLDER = Path(__file__).parent


def script(*names: str) -> str:
    """page.js and these files of this folder, as one module: anywidget takes no second file."""
    return "\n".join((FOLDER / name).read_text("utf-8") for name in ("page.js", *names))
