"""Is RLOO 2-3 times as fast as PPO? Judged by what `rlkit bench algorithms --out` recorded.

Times are not measured anew with every claim: they differ from run to run and from machine to
machine, and the record says whose they are.
"""

import json
from pathlib import Path
from typing import Any

from rlkit.bench.algorithms import PPO1, PPO4, RLOO, SHARED, WIDE
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
    whole = case("a step, 4 epochs a rollout in PPO", True, took[PPO4]["step"], took[RLOO]["step"])
    cases = [
        whole,
        case("the update alone", False, took[PPO4]["update"], took[RLOO]["update"]),
        case("4 epochs against 1 of PPO", False, took[PPO4]["step"], took[PPO1]["step"]),
        case("own critic against shared trunk", False, took[PPO1]["step"], took[SHARED]["step"]),
        case("PPO, 1 epoch, shared trunk", False, took[SHARED]["step"], took[RLOO]["step"]),
        case("RLOO with 4 times the micro-batch", False, took[RLOO]["step"], took[WIDE]["step"]),
    ]
    _, update, epochs, critic, rest, wide = (one.value for one in cases)
    generate = took[RLOO]["generate"] / took[RLOO]["step"]
    return Finding(
        of_cases(cases),
        f"A step of PPO takes {whole.value:.1f} times as long as one of RLOO ({epochs:.1f} its 4 "
        f"epochs, {critic:.1f} its critic, {rest:.1f} the rest), the update alone {update:.1f} "
        f"times. A micro-batch 4 times as large makes RLOO {wide:.1f} times as fast by itself.",
        f"The factor is mostly one of settings: going over a rollout once, PPO takes "
        f"{took[PPO1]['step'] / took[RLOO]['step']:.1f} times as long. Generation costs both the "
        f"same and is {generate:.0%} of RLOO's step here; the longer it takes, the smaller is "
        f"every factor. Measured on {record['machine']}.",
        cases,
    )


def case(name: str, of_source: bool, slow: float, fast: float) -> Case:
    """Seconds of two contestants."""
    ratio = slow / fast
    return Case(name, of_source, "seconds", slow, fast, ratio, round(ratio, 1) >= LEAST)
