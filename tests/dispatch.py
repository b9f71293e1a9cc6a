"""What the head asks of torch, seen from below."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class Operations(TorchDispatchMode):
    """Names of all operations, and the multiplications in matrix products."""

    def __init__(self):
        super().__init__()
        self.names, self.multiplications = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        if function.overloadpacket in (aten.mm, aten.addmm, aten.addmm_):
            left, right = args[-2:]
            self.multiplications += left.shape[0] * left.shape[1] * right.shape[1]
        return function(*args, **(kwargs or {}))


def allocations(call):
    """(peak, largest) bytes that `call` allocated, by the allocator's own events."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        call()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    alive = peak = 0
    for size in sizes:
        alive += size
        peak = max(peak, alive)
    return peak, max(sizes)
