"""Plans that were made before, on disk, by their arguments and all that could change them.

The key covers the setting, the versions of torch, transformers and peft, and rlkit's own source, so
that a plan is never older than the code that it describes.
"""

import hashlib
import json
import os
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rlkit.paths import PACKAGE

PLANNED_WITH = ("torch", "transformers", "peft")


def folder() -> Path:
    """Where plans are kept: $RLKIT_CACHE, or rlkit's place among the user's caches."""
    if given := os.environ.get("RLKIT_CACHE"):
        return Path(given) / "plans"
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
    else:
        base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rlkit" / "plans"


def key(setting: dict[str, Any]) -> str:
    """Of a setting, under the present versions."""
    text = json.dumps([setting, versions(), source()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def load(name: str) -> dict[str, Any] | None:
    """What was kept under a key; None if nothing readable was."""
    try:
        return json.loads((folder() / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def keep(name: str, found: dict[str, Any]) -> None:
    """Keeps a plan if the disk lets it. Written beside and renamed: never half a file."""
    path = folder() / f"{name}.json"
    beside = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(found), encoding="utf-8")
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink()


def versions() -> dict[str, str]:
    """Of the packages that decide what a step allocates."""
    found = {}
    for name in PLANNED_WITH:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


@lru_cache(maxsize=1)
def source() -> str:
    """A digest of rlkit's own code."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
