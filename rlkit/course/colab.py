"""The set-up cell that every page begins with: on Google Colab it installs rlkit, else nothing.

The address of the repository is one setting: Repository, under project.urls in pyproject.toml.
"""

import tomllib

from rlkit.paths import PACKAGE

KEPT = "torch numpy ipython ipykernel ipywidgets"
"""What Colab's runtime rests on: the installation may not replace it."""

CELL = """\
# Set-up for Google Colab: fetches rlkit, once. It does nothing elsewhere.
import importlib.metadata, importlib.util, os, sys

REPOSITORY = "{repository}"
if "COLAB_RELEASE_TAG" in os.environ:
    if importlib.util.find_spec("rlkit") is None:
        with open("/tmp/keep.txt", "w") as file:
            for name in "{kept}".split():
                version = importlib.metadata.version(name)
                print(name, version, sep="==", file=file)
        %pip install -q -c /tmp/keep.txt "rlkit-lab @ git+$REPOSITORY"
        importlib.invalidate_caches()
    if importlib.util.find_spec("rlkit") is None:
        sys.exit(f"rlkit could not be fetched from {{REPOSITORY}}: see above")
"""


def repository() -> str:
    """The address of the repository, from pyproject.toml."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    return project["project"]["urls"]["Repository"]


def setup_cell() -> str:
    """The source of the cell."""
    return CELL.format(repository=repository(), kept=KEPT).rstrip()
