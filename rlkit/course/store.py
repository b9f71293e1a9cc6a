"""Small JSON files that a learner's pages share, in runs/ beside the notebooks."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path("runs")


def load(path: Path) -> dict[str, Any]:
    """What a file holds; what cannot be read counts for nothing."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a file whole or not at all. Raises OSError where nothing can be written."""
    part = path.with_suffix(".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    part.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(path)
