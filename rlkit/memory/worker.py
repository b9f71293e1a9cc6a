"""The process that plans: `python -m rlkit.memory.worker` reads settings, writes what it found.

One line of JSON in, one line out, until the input ends. A process of its own, because a plan would
be heard in the one that asks: torch's modes and default dtypes, a process group of ranks that do
not exist, and half a gigabyte.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from rlkit import chunked, parts, tiles
from rlkit.memory.meter import Meter
from rlkit.memory.settings import ANSWER, Setting
from rlkit.memory.step import PlannedStep

SAMPLES = 400
"""Rows of a plan's timeline."""


def run(setting: Setting) -> dict[str, Any]:
    """Plans one step. Returns what a `Plan` is made of."""
    start = time.perf_counter()
    with ranks(setting.fsdp), few_rounds(), code_paths(setting.device):
        planned = PlannedStep(setting)
        with planned.mode, Meter(planned.models, device="cpu") as meter:
            planned.warm_up()  # sharded weights also ask for the shape of each result, by running
            meter.clear()  # it on whole fake tensors, once: not a part of the step
            planned.step()
        found = meter.timeline
    return {
        "peak": meter.peak,
        "at_peak": vars(meter.at_peak),
        "peak_by_phase": found.peaks(),
        "weights": planned.weights,
        "timeline": found.thinned(SAMPLES).to_dict(),
        "seconds": time.perf_counter() - start,
    }


@contextmanager
def ranks(size: int) -> Iterator[None]:
    """A process group in which this process is rank 0 and the others do not exist."""
    if size == 1:
        yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute with another value, for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def few_rounds() -> Iterator[None]:
    """The loops over tiles take three rounds: all allocate the same, and the last may be less."""
    every = tiles.blocks

    def blocks(total: int, step: int) -> Iterator[slice]:
        rounds = list(every(total, step))
        return iter(rounds if len(rounds) <= 3 else [*rounds[:2], rounds[-1]])

    with ExitStack() as stack:
        for module in (tiles, chunked, parts):
            stack.enter_context(replaced(module, "blocks", blocks))
        yield


@contextmanager
def code_paths(device: str) -> Iterator[None]:
    """rlkit's branches for a device: on CUDA products of half precision need no wider operands."""
    if device == "cpu":
        yield
        return
    with replaced(tiles, "widens", lambda operand, dtype: False):
        yield


def main() -> None:
    """Answers settings until the input ends."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        try:
            answer = run(Setting(**json.loads(line)))
        except (ValueError, TypeError, ImportError) as error:
            answer = {"error": str(error), "kind": type(error).__name__}
        print(ANSWER + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
