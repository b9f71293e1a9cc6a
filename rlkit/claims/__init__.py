"""The claims that rlkit lets anyone test, about memory and speed: what is claimed, found, and why.

    rlkit claims                              all of them, into data/claims.csv
    rlkit claims --only rloo-memory           one of them, the others stay as they were
    rlkit claims --show                       what was found last time, without computing anything

Each is planned under its source's own setting (settings.py), or measured on this CPU (measure.py),
and judged (findings.py) without a hand in between. The claim about speed is judged by what a bench
recorded (speed.py). Claims about learning are not tested here. Notebooks read `load()`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from rlkit.paths import data_path

FILE = "claims.csv"


def load(path: Path | None = None) -> list[Any]:
    """What was found: a list of Result, each a claim and its finding with its cases.

    path: None: data/claims.csv. Raises ValueError for another kind of file.
    """
    from rlkit.claims.table import read

    return read(path or data_path(FILE))


def main(argv: Sequence[str]) -> int:
    """Tests claims. Returns 1 if something could not be computed, whatever the verdicts."""
    from rlkit.claims import table
    from rlkit.claims.findings import FAILED

    asked = parse(argv)
    out = asked.out or data_path(FILE)
    tested = load(out) if asked.show else examine(chosen(asked.only), fresh=asked.fresh)
    failed = any(one.finding.verdict == FAILED for one in tested)
    print(json.dumps([asdict(c) | asdict(f) for c, f in tested]) if asked.json else told(tested))
    if not asked.show and not failed:
        # claims that were not asked for stay as they were
        before = [] if asked.only is None or not out.is_file() else load(out)
        tested = merged(before, tested)
        table.write(out, tested)
    if asked.readme is not None and not failed:
        table.put_into(asked.readme, tested)
    return int(failed)


def parse(argv: Sequence[str]) -> Any:
    """The flags."""
    import tyro

    from rlkit.claims.tested import NAMES

    @dataclass(frozen=True)
    class Flags:
        """Tests the claims about memory and speed: claim, setting, finding, verdict and why."""

        only: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar=" ".join(NAMES))] = None
        """Which claims; None: all."""
        out: Path | None = None
        """The file to write; None: data/claims.csv. Nothing is written if anything failed."""
        fresh: bool = False
        """Plan everything anew, whatever plans lie on the disk."""
        show: bool = False
        """Compute nothing: print what the file says."""
        readme: Path | None = None
        """Also put the findings between the marks in this file."""
        json: bool = False
        """Print JSON."""

    return tyro.cli(Flags, args=list(argv), prog="rlkit claims")


def chosen(only: Sequence[str] | None) -> Sequence[str]:
    """The names asked for. Raises ValueError for an unknown one."""
    from rlkit.claims.tested import NAMES
    from rlkit.config import unknown

    for name in only or ():
        if name not in NAMES:
            raise ValueError(unknown("only", name, NAMES))
    return NAMES if only is None else only


def examine(names: Sequence[str], fresh: bool = False) -> list[Any]:
    """Tests claims by name, with progress on stderr."""
    from rlkit.claims.run import Line, answers
    from rlkit.claims.tested import compute

    line = Line()
    try:
        return compute(names, lambda jobs: answers(jobs, use_cache=not fresh, say=line))
    finally:
        line.end()


def told(tested: Sequence[Any]) -> str:
    """For people, with the verdicts once more at the end."""
    from rlkit.claims.table import text

    verdicts = [f"{claim.name:18} {finding.verdict}" for claim, finding in tested]
    return "\n".join([text(tested), "", *verdicts])


def merged(before: Sequence[Any], now: Sequence[Any]) -> list[Any]:
    """Both, the newer of each, in the order of the claims."""
    from rlkit.claims.tested import NAMES

    found = {one.claim.name: one for one in [*before, *now]}
    return [found[name] for name in NAMES if name in found]
