"""Compile every kernel as its launcher would, for GPUs that this machine does not have.

    python tests/offline.py FOLDER            prints one line of JSON for each binary

Run without TRITON_INTERPRET. The launchers run on CPU tensors against a driver that names a GPU and
launches nothing, so that types, alignments, flags and warps are those of real calls.
"""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from rlkit import kernels
from rlkit.tiles import Scores, Shaping, TokenGradient

CUDA = (75, 80, 86, 89, 90, 100, 120)
CHECKED = (80, 90)  # in every combination; the others in one of each kind
KERNELS = ("read_panel", "merge_panels", "differentiate_panel")


class Driver:
    """A GPU that can be compiled for."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return hash(self.target.arch)

    def get_current_stream(self, device: int) -> int:
        return 0


class CompileOnly:
    """A kernel whose launch compiles it and notes the result."""

    def __init__(self, kernel: triton.JITFunction, built: dict) -> None:
        self.kernel, self.built = kernel, built

    def __getitem__(self, grid):
        def launch(*args, **options):
            binary = self.kernel.run(*args, grid=grid, warmup=True, **options)
            self.built[binary.hash] = binary

        return launch


def calls(all_of_them: bool):
    """Arguments of the launchers: every dtype and flag; long and short rows, aligned and not, and
    one row, for Triton takes the number 1 for a constant."""
    single, half = torch.float32, (torch.bfloat16, torch.float16)
    dtypes, shapes = [(single, x) for x in (single, *half)], [(32, 40_960)]
    if all_of_them:
        dtypes += [(torch.float64, torch.float64)]
        shapes += [(32, 40_961), (32, 511), (1, 40_960), (1, 1)]
    for (wide, dtype), shape, softcap, entropy in itertools.product(
        dtypes, shapes, (None, 30.0), (False, True)
    ):
        plain = (softcap is None) != entropy and dtype not in half  # all flags, or none
        alike = plain if shape[0] == 1 else all_of_them or (softcap is None) != entropy
        if alike and (wide == single or shape == shapes[0]):
            yield wide, dtype, softcap, entropy, *shape


def build(target: GPUTarget, all_of_them: bool) -> list:
    """Compiled kernels, each once."""
    driver.set_active(Driver(target))
    built = {}
    originals = {name: getattr(kernels, name) for name in KERNELS}
    for name, kernel in originals.items():
        setattr(kernels, name, CompileOnly(kernel, built))
    for wide, dtype, softcap, entropy, R, C in calls(all_of_them):
        tile, targets = torch.empty(R, C, dtype=wide), torch.zeros(R, dtype=torch.int64)
        per_row = torch.ones(R, 1) if entropy else 1.0
        shaping, scores = Shaping(1.0, softcap, per_row), Scores.unseen(R, tile)
        kernels.read(tile, targets, shaping, 16, scores, entropy, "nothing")
        column = torch.zeros(R, dtype=wide)
        told = targets, scores.log_z, scores.entropy, column, column if entropy else None
        kernels.gradient(tile, "products", TokenGradient.of(shaping, *told), 16, dtype)
    for name, kernel in originals.items():
        setattr(kernels, name, kernel)
    return list(built.values())


def resources(binary, folder: Path) -> dict:
    """Registers and bytes of stack, local and shared memory, as the cubin says; and from the PTX
    whether there is a barrier between the loads of a tile and the stores."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    path = folder / f"{binary.hash}.cubin"
    path.write_bytes(binary.asm["cubin"])
    told = [tool, "--dump-resource-usage", path]
    text = subprocess.run(told, capture_output=True, text=True, check=True).stdout
    used = {k.lower(): int(v) for k, v in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    ptx = binary.asm["ptx"]
    kinds = "".join(re.findall(r"ld\.global|bar\.sync|st\.global", ptx))
    return used | dict(
        shared=binary.metadata.shared,
        double=".f64" in ptx,
        halved="cvt.rn.bf16" in ptx or "cvt.rn.f16" in ptx,
        waits=bool(re.fullmatch(r"(ld\.global)+bar\.sync(st\.global)+", kinds)),
    )


def main(folder: Path) -> None:
    """One line for each target and binary."""
    for arch in CUDA:
        for binary in build(GPUTarget("cuda", arch, 32), arch in CHECKED):
            known = dict(arch=arch, kernel=binary.metadata.name)
            used = resources(binary, folder) if arch in CHECKED else {}
            print(json.dumps(known | used), flush=True)
    for binary in build(GPUTarget("hip", "gfx942", 64), False):
        spills = re.findall(r"\.[sv]gpr_spill_count:\s+(\d+)", binary.asm["amdgcn"])
        known = dict(arch="gfx942", kernel=binary.metadata.name)
        print(json.dumps(known | {"spills": sum(map(int, spills))}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
