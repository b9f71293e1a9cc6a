"""What this machine can do: `rlkit doctor`.

One line first: which presets it trains, where, in which dtype. Then what was found, what is
missing, and the command that gets it. Nothing here fails for the lack of anything, and nothing
that is missing is imported: versions come from the packages' metadata.

Left out on purpose: measurements. `rlkit bench` measures; this only looks.
"""

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from rlkit.paths import PACKAGE, data_path

GB = 1e9
PRESETS = {  # name -> (GB it needs, where); the GPU presets need a GPU of that size
    "tiny": (1.0, "main memory"),
    "cpu-real": (4.0, "main memory"),
    "t4": (14.0, "GPU memory"),
    "h100": (70.0, "GPU memory"),
}
NOTEBOOKS = ("jupyterlab", "ipywidgets", "anywidget", "plotly")
OPTIONAL = {"peft": "LoRA", "trl": "the comparison with TRL", "datasets": "datasets of the hub"}


@dataclass(frozen=True)
class Check:
    """One line of the report: what was looked at, what was found, how to get what is missing."""

    name: str
    found: str
    ok: bool = True
    remedy: str = ""


@dataclass(frozen=True)
class Gpu:
    """The first CUDA or ROCm device. memory in bytes; bf16 without emulation."""

    name: str
    memory: int
    capability: str
    bf16: bool


def report() -> list[Check]:
    """Every check, in the order in which it is printed."""
    checks = [check_python(), check_torch(), check_triton(), check_gpu(), check_memory()]
    checks += [Check("cores", str(cores())), check_disk(), Check("dtype", dtype_to_use())]
    checks += [*check_presets(), check_model(), check_notebooks()]
    return checks + [check_package(name, use) for name, use in OPTIONAL.items()]


def verdict() -> str:
    """The line that comes first, such as "ready: trains tiny on this CPU (2 cores, float32)"."""
    if torch() is None:
        return f"not ready: PyTorch is missing; {check_torch().remedy}"
    if not check_model().ok:
        return f"not ready: the built-in model is missing; {check_model().remedy}"
    names = [check.name.split()[1] for check in check_presets() if check.ok]
    if not names:
        return f"not ready: the tiny preset needs {PRESETS['tiny'][0]:.0f} GB of free memory"
    card = gpu()
    where = f"on {card.name} ({dtype_to_use()})" if card else f"on this CPU ({cores()} cores, "
    return f"ready: trains {', '.join(names)} {where}" + ("" if card else "float32)")


def main() -> int:
    """Print the verdict, then the report. Always 0: a lack is a finding, not a failure."""
    print(verdict())
    for check in report():
        print(f"  {'!' if check.remedy else ' '} {check.name:<16} {check.found}")
        if check.remedy:
            print(f"    {'':<16} {check.remedy}")
    return 0


# -- what is there ------------------------------------------------------------------------------


def check_python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check("Python", f"{found} ({sys.executable})")


def check_torch() -> Check:
    """PyTorch and its build; a CPU build beside an NVIDIA driver is a find worth a remedy."""
    module = torch()
    if module is None:
        return Check("PyTorch", "missing", False, install("torch"))
    build = module.version.cuda or getattr(module.version, "hip", None)
    found = f"{module.__version__} ({f'CUDA or ROCm {build}' if build else 'CPU build'})"
    if not build and shutil.which("nvidia-smi"):
        index = (
            "" if sys.platform == "linux" else " --index-url https://download.pytorch.org/whl/cu130"
        )
        again = f"pip install --force-reinstall torch{index}"
        return Check("PyTorch", f"{found}, though there is an NVIDIA driver", False, again)
    return Check("PyTorch", found)


def check_triton() -> Check:
    """Triton, which the kernels of notebook 09 are written in."""
    found = installed("triton")
    if found:
        return Check("Triton", found)
    if sys.platform == "linux":
        return Check("Triton", "missing", False, f"for the kernels: {install('triton')}")
    return Check("Triton", "none: it has no wheels for this system; the torch path does the same")


def check_gpu() -> Check:
    """Name, memory, compute capability and native bf16 of the first GPU."""
    card = gpu()
    if card:
        bf16 = "bf16" if card.bf16 else "no native bf16"
        found = f"{card.name}, {card.memory / GB:.0f} GB, capability {card.capability}, {bf16}"
        return Check("GPU", found)
    if torch() is not None and torch().backends.mps.is_available():
        return Check("GPU", "Apple's, which rlkit does not use: it trains on the CPU")
    return Check("GPU", "none: everything runs on the CPU, smaller and slower, the same otherwise")


def check_memory() -> Check:
    free, total = memory()
    if not total:
        return Check("memory", "unknown on this system")
    return Check("memory", f"{free / GB:.1f} GB free of {total / GB:.1f} GB")


def check_disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free / GB
    remedy = "" if free > 1 else "checkpoints may not fit: free some space"
    return Check("disk", f"{free:.1f} GB free here", free > 1, remedy)


def check_presets() -> list[Check]:
    """Which presets fit the memory that is free, or the GPU; unknown memory counts as enough."""
    card, (free, total) = gpu(), memory()
    have = {
        "main memory": free if total else float("inf"),
        "GPU memory": card.memory if card else 0,
    }
    return [
        Check(f"preset {name}", f"{word(have[place] >= need * GB)} (needs {need:g} GB of {place})",
              have[place] >= need * GB)
        for name, (need, place) in PRESETS.items()
    ]  # fmt: skip


def check_model() -> Check:
    """The built-in model and where it lies."""
    try:
        weights = data_path("adder", "model.safetensors")
    except FileNotFoundError as error:
        return Check("built-in model", "missing", False, str(error))
    if weights.exists():
        return Check("built-in model", str(weights.parent))
    make = "make it again: python -m rlkit.tasks.arithmetic pretrain"
    return Check("built-in model", f"no {weights}", False, make)


def check_notebooks() -> Check:
    missing = [name for name in NOTEBOOKS if not installed(name)]
    if missing:
        remedy = install("rlkit-lab[notebooks]")
        return Check("notebooks", f"missing: {', '.join(missing)}", False, remedy)
    return Check("notebooks", f"JupyterLab {installed('jupyterlab')} and its widgets")


def check_package(name: str, use: str) -> Check:
    found = installed(name)
    if found:
        return Check(name, found)
    return Check(name, "missing", False, f"for {use}: {install(name)}")


# -- how it is found ----------------------------------------------------------------------------


@cache
def torch() -> ModuleType | None:
    """The torch module, or None where it is missing or broken."""
    try:
        import torch
    except (ImportError, OSError):
        return None
    return torch


def gpu() -> Gpu | None:
    """The first CUDA or ROCm device that torch can use."""
    module = torch()
    if module is None or not module.cuda.is_available():
        return None
    properties = module.cuda.get_device_properties(0)
    capability = f"{properties.major}.{properties.minor}"
    # plain is_bf16_supported() counts emulation, and so says yes to a T4
    bf16 = module.cuda.is_bf16_supported(including_emulation=False)
    return Gpu(properties.name, properties.total_memory, capability, bf16)


def dtype_to_use() -> str:
    """The dtype that training computes in; the weights stay float32."""
    card = gpu()
    if not card:
        return "float32"
    return "bfloat16 autocast" if card.bf16 else "float16 autocast with loss scaling"


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> tuple[int, int]:
    """(free, total) bytes of main memory, within a container's limit; zeros if unknown."""
    try:
        import psutil
    except ImportError:
        return memory_by_sysconf()
    now = psutil.virtual_memory()
    limit = container_limit()
    return min(now.available, limit or now.available), min(now.total, limit or now.total)


def memory_by_sysconf() -> tuple[int, int]:
    """The same without psutil, where the system has sysconf (not on Windows)."""
    names = getattr(os, "sysconf_names", {})
    if not {"SC_AVPHYS_PAGES", "SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(names):
        return 0, 0
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def container_limit() -> int:
    """Bytes that a Linux control group allows; 0 without a limit."""
    path = Path("/sys/fs/cgroup/memory.max")
    text = path.read_text().strip() if path.exists() else ""
    return int(text) if text.isdigit() else 0


def installed(package: str) -> str:
    """The version of an installed package, or an empty string; nothing is imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def install(package: str) -> str:
    """The command that gets `package`: a checkout has its own."""
    if (PACKAGE.parent / "start.py").exists() and package.startswith("rlkit-lab"):
        return "python start.py setup"
    return f'pip install "{package}"'


def word(fits: bool) -> str:
    return "fits" if fits else "does not fit"


if __name__ == "__main__":
    raise SystemExit(main())
