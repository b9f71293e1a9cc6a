"""Page 09's kernel, one way to write it, and what tries the learner's.

    log_z[row] = log sum_v exp z_v,   logp[row] = z_y - log_z[row]       one program a row

The kernel walks through its row once, BLOCK columns at a time, with a running maximum and sum.
Import it only where triton is; TRITON_INTERPRET=1 must be set before for tensors on a CPU.
Left out, and in rlkit/kernels.py: several programs a row, entropy, softcap, the gradient.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def logp_kernel(logits, targets, log_z, logp, V, row_stride, BLOCK: tl.constexpr):
    """logits [N, V], targets [N] -> log_z [N], logp [N]; one program a row."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    largest = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for at in range(0, V, BLOCK):
        cols = at + tl.arange(0, BLOCK)
        z = tl.load(logits + cols, mask=cols < V, other=-float("inf"))
        larger = tl.maximum(largest, tl.max(z, 0))
        total = total * tl.exp(largest - larger)
        total += tl.sum(tl.exp(z - larger), 0)
        largest = larger
    chosen = tl.load(logits + tl.load(targets + row))
    tl.store(log_z + row, largest + tl.log(total))
    tl.store(logp + row, chosen - largest - tl.log(total))


def launch(kernel: Any, logits: Tensor, targets: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """(log_z [N], logp [N]) by a kernel with the arguments of logp_kernel."""
    N, V = logits.shape
    log_z, logp = logits.new_empty(2, N)
    kernel[(N,)](logits, targets, log_z, logp, V, logits.stride(0), BLOCK=block)
    return log_z, logp


# --- the learner's kernel


Rescale = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(sum so far, old maximum, new maximum) -> the sum in new units."""


def walk(logits: Tensor, block: int, rescale: Rescale, other: float = -torch.inf) -> Tensor:
    """log_z [N] by the same walk in torch, with a mistake in it."""
    padding = -logits.shape[1] % block
    logits = torch.nn.functional.pad(logits, (0, padding), value=other)
    largest = torch.full_like(logits[:, 0], -torch.inf)
    total = torch.zeros_like(largest)
    for z in logits.split(block, 1):
        larger = torch.maximum(largest, z.amax(1))
        total = rescale(total, largest, larger) + (z - larger[:, None]).exp().sum(1)
        largest = larger
    return largest + total.log()


def rightly(total: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """What belongs there."""
    return total * (old - new).exp()


WRONG: dict[str, Callable[[Tensor, int], Tensor]] = {
    "padding weighs something: exp(0) is 1. What does `other` give beyond the edge?": lambda z, b: (
        walk(z, b, rightly, other=0.0)
    ),
    "the old sum counts in exp(old maximum): what turns it into the new units?": lambda z, b: walk(
        z, b, lambda total, old, new: total
    ),
    "only the last block is in the sum: add to what was there": lambda z, b: z[
        :, (z.shape[1] - 1) // b * b :
    ].logsumexp(1),
    "only the first block is in the sum: does the loop go on to V?": lambda z, b: z[
        :, :b
    ].logsumexp(1),
    "this is the running maximum alone: the log of the sum is missing": lambda z, b: z.amax(1),
}
"""A known mistake, in words that lead out of it -> the log_z that it gives."""


def cases() -> list[tuple[str, Tensor, Tensor, int]]:
    """(about, logits, targets, block)"""
    noise = torch.Generator().manual_seed(0)
    rising = torch.tensor([[-3.0, -1.5, -2.0, -2.5, -1.0, -0.5, -4.0]] * 2)
    rising[1] = rising[1].flip(0)
    long = 3 * torch.randn(3, 300, generator=noise)
    return [
        ("V = 6 in blocks of 2", rising[:, :6].contiguous(), torch.tensor([0, 4]), 2),
        ("V = 7 in blocks of 4", rising, torch.tensor([5, 1]), 4),
        ("V = 300 in blocks of 128", long, torch.tensor([0, 299, 130]), 128),
        ("large logits", 90 + long[:, :9].contiguous(), torch.tensor([8, 0, 3]), 4),
    ]


def judge(kernel: Any, device: str = "cpu") -> Any:
    """Try a kernel on small cases and print what was found; returns it if right, else ours."""
    for about, logits, targets, block in cases():
        expected = logits.logsumexp(1)
        chosen = logits.gather(1, targets[:, None]).squeeze(1)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the interpreter's, of numbers that are no numbers
                got = launch(kernel, logits.to(device), targets.to(device), block)
        except Exception as error:
            return refused(f"{about}: {type(error).__name__}: {str(error).splitlines()[0]}")
        log_z, logp = (x.cpu() for x in got)
        if not torch.allclose(log_z, expected, atol=1e-5):
            says = next((w for w, f in WRONG.items() if alike(log_z, f(logits, block))), "")
            told = f"log_z is {numbers(log_z)} where {numbers(expected)} is right"
            return refused(f"{about}: {told}" + (f"\n{says}" if says else ""))
        if not torch.allclose(logp, chosen - expected, atol=1e-5):
            told = f"logp is {numbers(logp)} where {numbers(chosen - expected)} is right"
            return refused(f"{about}: log_z is right, {told}")
    print(f"your kernel: right, in {len(cases())} cases. Yours is used from here on.")
    return kernel


def alike(got: Tensor, wrong: Tensor) -> bool:
    """Whether an answer is a known wrong one."""
    return torch.allclose(got, wrong, atol=1e-4, rtol=1e-4)


def numbers(values: Tensor) -> str:
    """Two digits each."""
    return "[" + ", ".join(f"{x:.2f}" for x in values.tolist()) + "]"


def refused(words: str) -> Any:
    """Prints them; the kernel above is used instead."""
    print(f"{words}\nUntil it is right, rlkit/course/own_kernel.py's logp_kernel is used.")
    return logp_kernel
