"""Page 09's kernel is right, and the page names what is wrong with a learner's."""

import pytest
import torch

pytest.importorskip("triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from rlkit.course import own_kernel  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def zeros_beyond(logits, targets, log_z, logp, V, row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    largest = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for at in range(0, V, BLOCK):
        cols = at + tl.arange(0, BLOCK)
        z = tl.load(logits + cols, mask=cols < V, other=0.0)
        larger = tl.maximum(largest, tl.max(z, 0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(z - larger), 0)
        largest = larger
    tl.store(log_z + row, largest + tl.log(total))
    tl.store(logp + row, tl.load(logits + tl.load(targets + row)) - largest - tl.log(total))


@triton.jit
def old_units(logits, targets, log_z, logp, V, row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    largest = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for at in range(0, V, BLOCK):
        cols = at + tl.arange(0, BLOCK)
        z = tl.load(logits + cols, mask=cols < V, other=-float("inf"))
        largest = tl.maximum(largest, tl.max(z, 0))
        total += tl.sum(tl.exp(z - largest), 0)
    tl.store(log_z + row, largest + tl.log(total))
    tl.store(logp + row, tl.load(logits + tl.load(targets + row)) - largest - tl.log(total))


@triton.jit
def wrong_target(logits, targets, log_z, logp, V, row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    largest = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for at in range(0, V, BLOCK):
        cols = at + tl.arange(0, BLOCK)
        z = tl.load(logits + cols, mask=cols < V, other=-float("inf"))
        larger = tl.maximum(largest, tl.max(z, 0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(z - larger), 0)
        largest = larger
    tl.store(log_z + row, largest + tl.log(total))
    tl.store(logp + row, tl.load(logits) - largest - tl.log(total))


@triton.jit
def untouched(logits, targets, log_z, logp, V, row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.full((), 0.0, tl.float32)
    for at in range(0, V, BLOCK):
        cols = at + tl.arange(0, BLOCK)  # noqa: F841
        ...
    tl.store(log_z + row, tl.log(total))
    tl.store(logp + row, tl.log(total))


def test_ours_is_right(capsys):
    assert own_kernel.judge(own_kernel.logp_kernel, DEVICE) is own_kernel.logp_kernel
    assert "right, in 4 cases" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (zeros_beyond, "padding weighs something"),
        (old_units, "new units"),
        (wrong_target, "log_z is right, logp is"),
        (untouched, "V = 6 in blocks of 2: log_z is [-inf, -inf]"),
        (lambda: None, "Error"),
    ],
)
def test_a_wrong_kernel_is_named_and_replaced(kernel, words, capsys):
    assert own_kernel.judge(kernel, DEVICE) is own_kernel.logp_kernel
    said = capsys.readouterr().out
    assert words in said and "Until it is right" in said


@pytest.mark.parametrize(("says", "wrong"), own_kernel.WRONG.items())
def test_each_known_mistake_shows_in_some_case(says, wrong):
    cases = own_kernel.cases()
    assert any(
        not torch.allclose(wrong(logits, block), logits.logsumexp(1), atol=1e-5)
        for _, logits, _, block in cases
    )
