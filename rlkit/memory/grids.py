"""Plans that ship with rlkit, so that a flip of one switch of the Memory Lab answers at once.

    python -m rlkit.memory.grids              # makes what is missing
    python -m rlkit.memory.grids --again      # makes all anew
    python -m rlkit.memory.grids qwen small   # of these bases alone

For each base: every position of every switch with the others as they stood (one factor at a time;
tiles where the head has some), and for the first all of head x LoRA x checkpointing, the way that
the lesson goes. One file of
JSON a base in data/plans, with the versions that it was made with.
"""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from rlkit.memory import cache, lab
from rlkit.memory.lab import BASES, SWITCHES, Base, Choices
from rlkit.memory.picture import Picture, picture_of
from rlkit.memory.planner import Plan, Planner
from rlkit.paths import data_path

LESSON = {"head": ("full", "chunked", "fused"), "lora": (0, 16), "checkpointing": (False, True)}
"""Switches of the first base whose every combination ships."""


def grid(base: Base) -> list[Choices]:
    """What ships of a base: itself first, one switch changed, the lesson's; no doubles."""
    found = [base.choices]
    for key in SWITCHES:
        found += [base.choices | {key: value} for value, _ in base.options_of(key)]
    heads = ("chunked", "fused") if base.key == "qwen" else ("fused",)
    for head, (tile, _) in product(heads, base.options_of("tile")):
        found.append(base.choices | {"head": head, "tile": tile})
    if base.key == "qwen":
        ways = product(*LESSON.values())
        found += [base.choices | dict(zip(LESSON, way, strict=True)) for way in ways]
    unique = {name_of(base, c): c for c in found if not lab.why_not(base, c)}
    return list(unique.values())


def name_of(base: Base, choices: Choices) -> str:
    """Of choices, by what differs from their base: "head=chunked lora=16"; "base" for itself."""
    keys = lab.changed(base.choices, choices)
    if choices["head"] == "full" and "tile" in keys:
        keys.remove("tile")  # there are none
    return " ".join(f"{key}={choices[key]}" for key in keys) or "base"


def path(base: Base) -> Path:
    """The file of a base's plans."""
    return data_path("plans", f"{base.key}.json")


@lru_cache(maxsize=len(BASES))
def shelf(key: str) -> dict[str, Any]:
    """{"versions", "plans": {name: picture}} of a base; empty if the file is missing."""
    try:
        return json.loads(path(BASES[key]).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"versions": {}, "plans": {}}


def shipped(base: Base, choices: Choices) -> Picture | None:
    """The picture of these choices if it ships."""
    kept = shelf(base.key)
    found = kept["plans"].get(name_of(base, choices))
    if found is None:
        return None
    where = f"fake tensors, torch {kept['versions'].get('torch', '')}: shipped with rlkit"
    return Picture.from_dict(found, choices, where)


def planned(found: Plan, choices: Choices, where: str) -> Picture:
    """A fresh plan as a picture."""
    return picture_of(
        found.timeline,
        found.at_peak,
        choices,
        source="planned",
        where=where,
        seconds=found.seconds,
        weights=found.weights,
    )


def make(base: Base, again: bool = False) -> None:
    """Plans what is missing and writes it after each plan, so that it may be interrupted."""
    kept: dict[str, Any] = {"versions": cache.versions(), "plans": {}}
    before = {} if again else shelf(base.key)["plans"]
    wanted = grid(base)
    with Planner() as planner:
        for number, choices in enumerate(wanted, 1):
            name = name_of(base, choices)
            start = time.perf_counter()
            if name in before:
                kept["plans"][name] = before[name]
                continue
            found = planner.plan(lab.setting(base, choices))
            kept["plans"][name] = planned(found, choices, "").to_dict()
            seconds = time.perf_counter() - start
            print(f"{base.key} {number} of {len(wanted)}: {name}, {seconds:.1f} s", flush=True)
            if not again:
                write(base, before | kept["plans"], kept["versions"])
    write(base, kept["plans"], kept["versions"])


def write(base: Base, plans: dict[str, Any], versions: dict[str, str]) -> None:
    """One plan a line, in the order of the grid."""
    names = [name for name in map(lambda c: name_of(base, c), grid(base)) if name in plans]
    lines = [f"{json.dumps(n)}:{json.dumps(plans[n], separators=(',', ':'))}" for n in names]
    text = f'{{"versions":{json.dumps(versions)},\n"plans":{{\n' + ",\n".join(lines) + "\n}}\n"
    target = path(base)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_suffix(".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(target)


def main(argv: Sequence[str]) -> int:
    """Makes the grids of the bases that are named, or of all."""
    asked: Iterable[str] = [a for a in argv if not a.startswith("-")] or BASES
    for key in asked:
        if key not in BASES:
            print(f"no base {key!r}; the bases are {', '.join(BASES)}", file=sys.stderr)
            return 2
        make(BASES[key], again="--again" in argv)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
