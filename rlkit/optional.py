"""Packages that rlkit can do without until a call needs them."""

from importlib import import_module
from types import ModuleType

INSTALL = {
    "ipywidgets": 'pip install "rlkit-lab[notebooks]"',
    "anywidget": 'pip install "rlkit-lab[notebooks]"',
    "plotly": 'pip install "rlkit-lab[notebooks]"',
    "triton": "pip install triton (Linux only: it has no wheels for macOS and Windows)",
}


def require(package: str, purpose: str) -> ModuleType:
    """The imported package, or one sentence that says what needs it and how to get it.

    Raises ImportError, with the command that installs the package.
    """
    try:
        return import_module(package)
    except ImportError as error:
        how = INSTALL.get(package, f"pip install {package}")
        raise ImportError(f"{purpose} needs the package {package!r}: {how}") from error
