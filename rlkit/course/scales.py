"""PPO and RLOO on the scales, in a process of their own: page 10's bytes and seconds.

A meter counts every tensor of its process. In a notebook that holds other models their bytes would
be counted too, so the contestants of `rlkit bench algorithms` are weighed elsewhere.

    weigh()["RLOO"].peak, weigh()["RLOO"].seconds("update")
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from rlkit.bench import algorithms
from rlkit.bench.algorithms import PPO1, PPO4, RLOO, Found

SAMPLES, STEPS = 128, 3
"""Completions of a step; steps of each contestant, of which the first is not timed."""


def weigh(say: Callable[[str], Any] = print) -> dict[str, Found]:
    """What PPO with four epochs and with one, and RLOO, took.

    say: is told what is being done. Memory is that of one update at a time, which epochs do not
    change, so PPO with four has the bytes of PPO with one.
    Raises RuntimeError, with what the process said last, if it fails.
    """
    command = [sys.executable, "-m", "rlkit.course.scales"]
    found: dict[str, Found] = {}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            for line in process.stdout:
                told = json.loads(line)
                if "doing" in told:
                    say(told["doing"])
                else:
                    name = told.pop("name")
                    found[name] = Found(**told)
            process.wait()
        finally:
            process.kill()  # a stopped cell leaves nothing behind
            process.stdout.close()
            process.wait()
        errors.seek(0)
        said = errors.read().strip().splitlines()
    if process.returncode:
        raise RuntimeError(f"weighing ended with {process.returncode}: {said[-1] if said else ''}")
    return found


def measured() -> Iterator[dict[str, Any]]:
    """What is being done, in words, then what each contestant took."""
    flags = algorithms.Flags(steps=STEPS, samples=SAMPLES)
    memory = {}
    for name in (PPO1, RLOO):
        yield {"doing": f"weighing {name}"}
        memory[name] = algorithms.memory_of(name, flags)
    memory[PPO4] = memory[PPO1]
    yield {"doing": "timing, step by step in turn"}
    trainers = {name: algorithms.trainer(name, flags) for name in (PPO4, PPO1, RLOO)}
    for step in range(STEPS):
        for one in trainers.values():
            one.history.append(one.step(step))
    for name, one in trainers.items():
        yield {"name": name} | asdict(Found(*memory[name], one.history))


if __name__ == "__main__":
    for line in measured():
        print(json.dumps(line), flush=True)
