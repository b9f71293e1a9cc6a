"""What the GPU itself says: its allocator, and the driver."""

from importlib import import_module
from typing import Any, NamedTuple

import torch

from rlkit.memory.ledger import Ledger
from rlkit.memory.timeline import Kind

EVERY = 0.02
"""Seconds between two looks at the whole device, which the driver answers slowly."""

MANY = 20_000
"""Readings that are kept."""


class Reading(NamedTuple):
    """One look at a GPU, in bytes."""

    seconds: float
    allocated: int
    """In tensors, as the allocator rounds them."""
    reserved: int
    """Held by the allocator."""
    used: int
    """On the whole device, by every process."""


class Probe:
    """Reads the current CUDA device."""

    def __init__(self) -> None:
        self.device = torch.cuda.current_device()
        self.readings: list[Reading] = []
        self._nvml = nvml(self.device)

    def allocated(self) -> tuple[int, int]:
        """(allocated, reserved) of the allocator."""
        stats = torch.cuda.memory_stats_as_nested_dict(self.device)
        kinds = ("allocated_bytes", "reserved_bytes")
        return tuple(stats[kind]["all"]["current"] for kind in kinds)

    def used(self) -> int:
        """Bytes of the whole device that are taken."""
        if self._nvml is None:
            free, total = torch.cuda.mem_get_info(self.device)
            return total - free
        module, handle = self._nvml
        return module.nvmlDeviceGetMemoryInfo(handle).used

    def settle(self, ledger: Ledger, seconds: float) -> None:
        """Makes the ledger's total the allocator's, by what no tensor accounts for."""
        allocated, reserved = self.allocated()
        kind = ledger.number(Kind("unattributed", ""))
        rest = allocated - (ledger.total - ledger.amounts[kind])
        ledger.total += rest - ledger.amounts[kind]
        ledger.amounts[kind] = rest
        if not self.readings or seconds - self.readings[-1].seconds >= EVERY:
            self.readings.append(Reading(seconds, allocated, reserved, self.used()))
            if len(self.readings) > MANY:
                del self.readings[: MANY // 2 : 2]  # the older half, every other one


def probe(device: str) -> Probe | None:
    """Of a real GPU; None on a CPU, whose allocator keeps no count."""
    return Probe() if device == "cuda" and torch.cuda.is_available() else None


def nvml(index: int) -> tuple[Any, Any] | None:
    """(the driver's library, its handle of a CUDA device); None without nvidia-ml-py.

    By the device's UUID: CUDA and the driver may count devices differently.
    """
    try:
        library = import_module("pynvml")
        library.nvmlInit()
        name = str(torch.cuda.get_device_properties(index).uuid)
        name = name if name.startswith("GPU-") else f"GPU-{name}"
        return library, library.nvmlDeviceGetHandleByUUID(name)
    except Exception:  # no package, no driver, or one that hides its devices
        return None
