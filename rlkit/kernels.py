"""The two passes over a tile of logits as Triton kernels, and nothing else.

    read        log_z, entropy and target logit of each token    the tile is read once
    gradient    tile <- d loss / d tile, in place                the tile is read and written once

A tile [R, C] holds the float32 products h W^T + b; scale, softcap and temperature are applied in
registers. torch's passes over the same tile read and write it several times each, and at 0.6 MB of
logits a token that is what a head's time goes to, beside the products, which stay with cuBLAS.

How the grid fills a GPU. A row may be long and rows few: 110 rows of 151,936 columns make a tile
of 64 MiB, on an H100 of 132 multiprocessors. So each row is cut into panels of 32,768 columns, one
program each (there: 550), which walks through its panel block by block. The panels of a row are
put together by a second, small kernel, in a fixed order: without atomics results repeat exactly.

Products of half precision take their gradients in half precision, and `gradient` writes them so,
into the memory of the tile itself: the numbers of a panel into the panel's first half. A block is
half as wide when it is written as when it was read, so what a program writes lies left of what it
has yet to read. Only the first block overlaps with itself, and threads are not in step: a barrier
stands between the loads of a block and its stores.

Two block sizes, chosen by the width of the tile, instead of autotuning: its trial runs would
turn the tile into its gradient several times over, and cost the first step a second.
Online softmax: Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlkit.tiles import HALF, Backend, Holds, Piece, Scores, Shaping, TokenGradient

PANEL = 32_768
"""Columns that one program walks through."""
ROWS = 128
"""Rows of which one program merges the panels."""

LOWEST = tl.constexpr(torch.finfo(torch.float32).min)
"""Below every logit, but finite, because inf - inf is NaN."""


# ---- kernels --------------------------------------------------------------------------------


@triton.jit
def decay(x):
    """e^(-2 |x|), from which tanh and its slope are made without overflow.

    Not by libdevice, which the interpreter lacks. The error of tanh is that of a number near 1.
    """
    return tl.exp(-2 * tl.abs(x))


@triton.jit
def to_logits(product, outer, INNER: tl.constexpr):
    """Scale, softcap and temperature; INNER None: no softcap."""
    z = product
    if INNER is not None:
        x = product * INNER
        e = decay(x)
        z = tl.where(x < 0, e - 1, 1 - e) / (1 + e)
    return z * outer


@triton.jit
def read_panel(
    tile,
    row_stride,
    C,
    targets,
    first,
    outer,
    outer_stride,
    scores,
    R,
    INNER: tl.constexpr,
    ENTROPY: tl.constexpr,
    PANEL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """scores [3, panels, R]: log_z, entropy and target logit of one panel of one row.

    With m the largest logit so far, total = sum e^(z - m) and weighted = sum e^(z - m) (z - m);
    a larger m gives both a new unit.
    """
    panels = tl.cdiv(C, PANEL)
    row = (tl.program_id(0) // panels).to(tl.int64)  # row * row_stride may pass 2^31
    panel = tl.program_id(0) % panels
    tile += row * row_stride
    start = panel * PANEL
    stop = tl.minimum(start + PANEL, C)
    outer = tl.load(outer + row * outer_stride)
    total = tl.zeros((), tile.dtype.element_ty)
    weighted = total
    largest = total + LOWEST
    for at in range(start, stop, BLOCK):
        cols = at + tl.arange(0, BLOCK)
        z = to_logits(tl.load(tile + cols, mask=cols < stop, other=0.0), outer, INNER)
        z = tl.where(cols < stop, z, -float("inf"))  # padding weighs nothing
        larger = tl.maximum(largest, tl.max(z, 0))
        e = tl.exp(z - larger)
        shrink = tl.exp(largest - larger)
        if ENTROPY:
            weighted = shrink * (weighted + total * (largest - larger))
            weighted += tl.sum(e * tl.where(e > 0, z - larger, 0.0), 0)
        total = shrink * total + tl.sum(e, 0)
        largest = larger
    total = tl.where(total == 0, 1.0, total)  # nothing but -inf: as if the panel were not there
    target = tl.load(targets + row) - first
    here = (target >= start) & (target < stop)  # if not, the logit of 0 is 0
    chosen = to_logits(tl.load(tile + target, mask=here, other=0.0), outer, INNER)
    scores += panel * R + row
    tl.store(scores, largest + tl.log(total))
    if ENTROPY:
        tl.store(scores + panels * R, tl.log(total) - weighted / total)
    tl.store(scores + 2 * panels * R, chosen)


@triton.jit
def merge_panels(
    scores, panels, R, log_z, entropy, chosen, ENTROPY: tl.constexpr, ROWS: tl.constexpr
):
    """Add the panels of ROWS rows, one after the other, to what these rows had before.

    Parts with probabilities w_k and entropies H_k have together the entropy
    sum_k w_k (H_k - log w_k).
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    rows = row < R
    z = tl.load(log_z + row, mask=rows, other=0.0)
    y = tl.load(chosen + row, mask=rows, other=0.0)
    if ENTROPY:
        H = tl.load(entropy + row, mask=rows, other=0.0)
    for panel in range(panels):
        at = scores + panel * R + row
        z_new = tl.load(at, mask=rows, other=0.0)
        larger = tl.maximum(z, z_new)
        both = larger + tl.log(tl.exp(z - larger) + tl.exp(z_new - larger))
        if ENTROPY:
            H_new = tl.load(at + panels * R, mask=rows, other=0.0)
            H = tl.exp(z - both) * (H - z + both) + tl.exp(z_new - both) * (H_new - z_new + both)
        y += tl.load(at + 2 * panels * R, mask=rows, other=0.0)
        z = both
    tl.store(log_z + row, z, mask=rows)
    tl.store(chosen + row, y, mask=rows)
    if ENTROPY:
        tl.store(entropy + row, H, mask=rows)


@triton.jit
def differentiate_panel(
    tile,
    grad,
    row_stride,
    C,
    targets,
    first,
    outer,
    outer_stride,
    log_z,
    chosen,
    base,
    by_logp,
    INNER: tl.constexpr,
    PANEL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """grad <- (p (base + by_logp log p) + 1[v = y] chosen) bend, of one panel of one row.

    grad: the memory of the tile, as float32 or as half precision. by_logp None: no entropy.
    """
    HALVED: tl.constexpr = tile.dtype != grad.dtype
    panels = tl.cdiv(C, PANEL)
    row = (tl.program_id(0) // panels).to(tl.int64)
    start = tl.program_id(0) % panels * PANEL
    stop = tl.minimum(start + PANEL, C)
    tile += row * row_stride
    if HALVED:
        grad += row * row_stride * 2 + start  # + cols: the panel's first half
    else:
        grad += row * row_stride
    outer = tl.load(outer + row * outer_stride)
    log_z = tl.load(log_z + row)
    chosen = tl.load(chosen + row)
    base = tl.load(base + row)
    if by_logp is not None:
        by_logp = tl.load(by_logp + row)
    target = tl.load(targets + row) - first
    for at in range(start, stop, BLOCK):
        cols = at + tl.arange(0, BLOCK)
        product = tl.load(tile + cols, mask=cols < stop, other=0.0)
        logp = to_logits(product, outer, INNER) - log_z
        p = tl.exp(logp)
        if by_logp is None:
            value = p * base
        else:
            value = p * (base + by_logp * tl.where(p == 0, 0.0, logp))  # 0 * inf would be NaN
        value += tl.where(cols == target, chosen, 0.0)
        if INNER is not None:
            e = decay(product * INNER)
            value *= 4 * e / ((1 + e) * (1 + e))  # 1 - tanh^2
        if HALVED:
            tl.debug_barrier()  # all threads have read what some are about to write over
        tl.store(grad + cols, value.to(grad.dtype.element_ty), mask=cols < stop)


INTERPRETED = not isinstance(read_panel, triton.JITFunction)
"""Whether TRITON_INTERPRET=1 was set when this module was imported: then CPU tensors will do."""


# ---- launchers: see tiles.Backend -----------------------------------------------------------


def read(
    tile: Tensor,
    targets: Tensor,
    shaping: Shaping,
    first: int,
    scores: Scores,
    with_entropy: bool,
    leave: Holds,
) -> Holds:
    """Adds the tile's columns to the scores. The tile keeps its products, whatever it may leave."""
    R, C = tile.shape
    if R:
        panels = triton.cdiv(C, PANEL)
        by_panel = tile.new_empty(3, panels, R)
        launch(
            read_panel, R * panels, tile, tile.stride(0), C, targets.contiguous(), first,
            *outer(shaping, tile), by_panel, R, INNER=shaping.inner, ENTROPY=with_entropy,
            PANEL=PANEL, **blocking(C),
        )  # fmt: skip
        launch(
            merge_panels, triton.cdiv(R, ROWS), by_panel, panels, R, scores.log_z, scores.entropy,
            scores.chosen, ENTROPY=with_entropy, ROWS=ROWS,
        )  # fmt: skip
    return "products"


def gradient(
    tile: Tensor, holds: Holds, token: TokenGradient, first: int, dtype: torch.dtype
) -> tuple[list[Piece], None]:
    """The gradient, rounded to dtype where that is what the products take."""
    R, C = tile.shape
    halved = dtype in HALF and torch.version.hip is None  # see tiles.multiply
    grad = tile.view(dtype) if halved else tile  # the same memory, [R, 2 C] if halved
    if R:
        columns = (token.log_z, token.chosen, token.base, token.by_logp)
        launch(
            differentiate_panel, R * triton.cdiv(C, PANEL), tile, grad, tile.stride(0), C,
            token.targets.contiguous(), first, *outer(token.shaping, tile),
            *(x if x is None else x.contiguous() for x in columns),
            INNER=token.shaping.inner, PANEL=PANEL, **blocking(C),
        )  # fmt: skip
    if not halved:
        return [(slice(0, C), tile)], None
    panels = [slice(start, min(start + PANEL, C)) for start in range(0, C, PANEL)]
    return [(at, grad[:, 2 * at.start : at.start + at.stop]) for at in panels], None


def launch(kernel, programs: int, *args, **options) -> None:
    """All programs on the grid's first axis, the only one that takes more than 65,535."""
    with torch.cuda.device_of(args[0]):  # Triton's own choice is the current device
        kernel[(programs,)](*args, **options)


def blocking(C: int) -> dict[str, int]:
    """Block size and warps for C columns: 16 numbers a thread, or 8 where a row is short."""
    return dict(BLOCK=4096, num_warps=8) if C > 1024 else dict(BLOCK=1024, num_warps=4)


def outer(shaping: Shaping, tile: Tensor) -> tuple[Tensor, int]:
    """Shaping.outer, as a tensor of one number or of one a row, and how far to step in it."""
    factor = shaping.outer()
    if not isinstance(factor, Tensor):
        return tile.new_full((1,), factor), 0
    return factor.to(tile.dtype).contiguous(), 1


TRITON = Backend(read, gradient)
