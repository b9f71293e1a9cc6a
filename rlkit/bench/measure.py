"""Seconds and bytes of a call, as fairly as one process can tell them.

Times are interleaved: each round runs every contestant once, beginning with another one, so that a
busy machine slows all alike; whoever is far slower than most is spared all rounds but one. Memory
is counted in a run of its own, which nobody times: on a CPU by the allocator's own events, which
also see what lives only inside an operation.
"""

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

SLOW = 5
"""Whoever takes so many times the median contestant's time is timed in one round alone."""

Call = Callable[[], object]


def interleaved(
    calls: list[Call],
    after: list[Call],
    repeats: int,
    device: torch.device,
    say: Callable[[str], None],
) -> list[list[float]]:
    """Seconds of each call, one number a round; a first round warms up and is not counted.

    after: run after each call, outside its time. say: told of every round.
    """
    found: list[list[float]] = [[] for _ in calls]
    slow: set[int] = set()
    for turn in range(repeats + 1):
        start = time.perf_counter()
        taken = {}
        for place in range(len(calls)):
            i = (place + turn) % len(calls)
            if turn < 2 or i not in slow:
                taken[i] = seconds(calls[i], device)
                after[i]()
        for i, value in taken.items() if turn else ():
            found[i].append(value)
        if turn < 2:
            slow = {i for i, value in taken.items() if value > SLOW * median(taken.values())}
        name = f"round {turn} of {repeats}" if turn else "warm-up round"
        say(f"{name}: {time.perf_counter() - start:.1f} s")
    return found


def seconds(call: Call, device: torch.device) -> float:
    """Of one call; on CUDA between two events in its stream, until the device is done."""
    if device.type != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start.record()
    call()
    stop.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(stop) / 1000


def peak_bytes(call: Call, device: torch.device) -> int:
    """The most that was allocated at once during a call, beyond what was before it."""
    if device.type != "cuda":
        return peak_of_events(call)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def peak_of_events(call: Call) -> int:
    """The same on a CPU."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it tells stderr of every start and stop
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        call()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


def machine(device: torch.device) -> str:
    """The name of the GPU or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
