"""The set-up cell that every page begins with: on Google Colab it installs rlkit, else nothing."""

REPOSITORY = ""
"""The one place for the address of the published repository, "https://...". While it is empty the
cell asks for it: a notebook must not install from an address that nobody vouches for."""

KEPT = "torch numpy ipython ipykernel ipywidgets"
"""What Colab's runtime rests on: the installation may not replace it."""

CELL = """\
# Set-up for Google Colab: fetches rlkit, once. It does nothing elsewhere.
import importlib.metadata, importlib.util, os, sys

REPOSITORY = "{repository}"  # the address of the repository this is from
if "COLAB_RELEASE_TAG" in os.environ:
    if not importlib.util.find_spec("rlkit") and not REPOSITORY:
        sys.exit("write the address of rlkit's repository into REPOSITORY")
    if not importlib.util.find_spec("rlkit"):
        with open("/tmp/keep.txt", "w") as file:
            for name in "{kept}".split():
                version = importlib.metadata.version(name)
                print(name, version, sep="==", file=file)
        %pip install -q -c /tmp/keep.txt "rlkit-lab @ git+$REPOSITORY"
        importlib.invalidate_caches()
    if not importlib.util.find_spec("rlkit"):
        sys.exit(f"rlkit could not be fetched from {{REPOSITORY}}: see above")
"""


def setup_cell(repository: str = REPOSITORY) -> str:
    """The source of the cell, for a repository's address."""
    return CELL.format(repository=repository, kept=KEPT).rstrip()
