"""Is RLOO 2-3 times as fast as PPO? Judged by what `rlkit bench algorithms --out` recorded.

Times are not measured anew with every claim: they differ from run to run and from machine to
machine, and the record says whose they are.
"""

import json
from pathlib import Path
from typing import Any

from rlkit.bench.algorithms import PPO1, PPO4, RLOO, RLOO4, SHARED, WIDE
from rlkit.claims.findings import Case, Finding, of_cases
from rlkit.paths import data_path

RECORD = "bench/algorithms.json"
LEAST = 2.0


def recorded(path: Path | None = None) -> dict[str, Any]:
    """What the bench recorded. Raises OSError or ValueError if there is no such record."""
    return json.loads((path or data_path(RECORD)).read_text("utf-8"))


def rloo_speed(record: dict[str, Any]) -> Finding:
    """ "2-3 times": holds if a step of PPO, as the source sets it, takes at least twice as long."""
    took = {name: each["seconds"] for name, each in record["contestants"].items()}

    def of(name: str, slow: str, fast: str, phase: str = "step", of_source: bool = False) -> Case:
        return case(name, of_source, took[slow][phase], took[fast][phase])

    cases = [
        of("a step, 4 epochs each", PPO4, RLOO4, of_source=True),
        of("its update alone", PPO4, RLOO4, "update"),
        of("a step, 1 epoch each", PPO1, RLOO),
        of("a step, 4 epochs against 1", PPO4, RLOO),
        of("4 epochs against 1 of PPO", PPO4, PPO1),
        of("own critic against shared trunk", PPO1, SHARED),
        of("PPO with shared trunk against RLOO", SHARED, RLOO),
        of("RLOO with 4 times the micro-batch", RLOO, WIDE),
    ]
    whole, update, once, uneven, epochs, critic, rest, wide = (one.value for one in cases)
    generate = took[RLOO4]["generate"] / took[RLOO4]["step"]
    return Finding(
        of_cases(cases),
        f"A step of PPO takes {whole:.1f} times as long as one of RLOO where both go over a "
        f"rollout 4 times (the update alone {update:.1f}), {once:.1f} times where both do once, "
        f"and {uneven:.1f} times where PPO does 4 times and RLOO once. A micro-batch 4 times as "
        f"large makes RLOO {wide:.1f} times as fast by itself.",
        f"Of those {uneven:.1f}, {epochs:.1f} are PPO's epochs, {critic:.1f} its critic and "
        f"{rest:.1f} the rest: most of it is a setting. Scoring by reference and reward model and "
        f"generation ({generate:.0%} of RLOO's step here) cost both much the same; the longer they "
        "take, the smaller is every factor. What a larger batch brings by filling a GPU, one CPU "
        f"thread does not show. Measured on {record['machine']}.",
        cases,
    )


def case(name: str, of_source: bool, slow: float, fast: float) -> Case:
    """Seconds of two contestants."""
    ratio = slow / fast
    return Case(name, of_source, "seconds", slow, fast, ratio, round(ratio, 1) >= LEAST)
