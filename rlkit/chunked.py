"""Log-probs and entropies from logits that exist only tile by tile, for any loss on top.

Forward, for each part of the vocabulary: make its logits, add their sum of exponentials to the
running log_z and their entropy to the running entropy, forget them. The backward pass makes each
tile again, turns it into its gradient (tiles.py) and multiplies it with both operands. That is four
matrix products (logits twice, dW, dH) where full logits need three.
"""

from collections.abc import Iterator
from math import isqrt

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlkit.tiles import (
    STRIPS,
    Backend,
    Scores,
    Shaping,
    TokenGradient,
    blocks,
    collect_,
    product_,
    sum_dtype,
)


def chunked_logps(
    lefts: list[Tensor],
    rights: list[Tensor],
    bias: Tensor | None,
    shaping: Shaping,
    targets: Tensor,
    entropy: bool,
    tile_bytes: int,
    backend: Backend,
) -> tuple[Tensor, Tensor | None]:
    """Tile by tile, forward and backward: the numbers of `full` without an [N, V].

    Beyond the gradients themselves a training step holds one tile budget. Where a gradient of the
    weight exists already (the embedding's of a tied weight, an earlier micro-batch's), autograd
    adds the new [V, H] to it, so that there are two for a moment.
    """
    if bias is not None:  # a bias is a product with a column of ones, too small to round
        ones = lefts[0].new_ones(len(targets), 1, dtype=sum_dtype(lefts[0].dtype))
        lefts = [*lefts, ones]
        rights = [*rights, bias[:, None]]
    return ChunkedLogps.apply(shaping, entropy, tile_bytes, backend, targets, *lefts, *rights)


class ChunkedLogps(torch.autograd.Function):
    """Logits are the sum of products left @ right^T: hidden and weight, u and B, ones and bias."""

    @staticmethod
    def forward(ctx, shaping, with_entropy, tile_bytes, backend, targets, *sides: Tensor):
        lefts, rights = halves(sides)
        grid = Grid(lefts, rights, tile_bytes)
        scores = Scores.unseen(len(targets), grid.buffer)
        for cols in grid.cols():
            columns = take(lefts, rights, cols)
            for rows in grid.rows():
                tile = grid.product(rows, lefts, columns)  # [R, C]
                told = targets[rows], shaping.at(rows), cols.start, scores.at(rows)
                backend.read(tile, *told, with_entropy, "nothing")
        ctx.shaping, ctx.tile_bytes, ctx.backend = shaping, tile_bytes, backend
        ctx.set_materialize_grads(False)  # an entropy in no loss then has gradient None, not 0
        ctx.save_for_backward(targets, scores.log_z, scores.entropy, *sides)
        return scores.chosen - scores.log_z, scores.entropy if with_entropy else None

    @staticmethod
    @once_differentiable
    def backward(ctx, d_logp: Tensor | None, d_entropy: Tensor | None):
        targets, log_z, entropy, *sides = ctx.saved_tensors
        token = TokenGradient.of(ctx.shaping, targets, log_z, entropy, d_logp, d_entropy)
        with torch.autocast(targets.device.type, enabled=False):
            grid = Grid(*halves(sides), ctx.tile_bytes)
            grads = backward_by_tiles(token, grid, ctx.backend, sides, ctx.needs_input_grad[5:])
        return None, None, None, None, None, *grads


class Grid:
    """How [N, V] logits are cut into tiles, and the memory that all of them share in turn."""

    def __init__(self, lefts: list[Tensor], rights: list[Tensor], tile_bytes: int) -> None:
        self.N, self.V, wide = len(lefts[0]), len(rights[0]), sum_dtype(lefts[0].dtype)
        # two strips beside the tile, or as much for what products copy, are in the budget too
        elements = tile_bytes // wide.itemsize * STRIPS // (STRIPS + 2)
        self.height, self.width = tile_shape(self.N, self.V, elements)
        self.buffer = lefts[0].new_empty(self.height * self.width, dtype=wide)
        self.room = len(self.buffer) * 2 // STRIPS

    def cols(self) -> Iterator[slice]:
        """Parts of the vocabulary, the outer loop."""
        return blocks(self.V, self.width)

    def rows(self) -> Iterator[slice]:
        """Parts of the tokens."""
        return blocks(self.N, self.height)

    def product(self, rows: slice, lefts: list[Tensor], columns: list[Tensor]) -> Tensor:
        """h W^T + b of these tokens over a part of the vocabulary, [R, C]."""
        R, C = rows.stop - rows.start, len(columns[0])
        tile = self.buffer[: R * C].view(R, C)
        return product_(tile, [x[rows] for x in lefts], columns, self.room)


def backward_by_tiles(
    token: TokenGradient, grid: Grid, backend: Backend, sides, needed
) -> list[Tensor | None]:
    """The gradient of each side that needs one, in its own dtype.

    The vocabulary is the outer loop: a slice of dW collects all N tokens in float32 and is then
    written once, so that a bfloat16 dW needs no float32 [V, H] beside it. What is float32 for the
    whole time is dH, [N, H].
    """
    lefts, rights = halves(sides)
    wide = token.log_z.dtype
    token, unit = token.in_units(lefts[0].dtype)
    need_left, need_right = halves(needed)
    d_lefts = [
        torch.zeros_like(x, dtype=wide) if n else None
        for x, n in zip(lefts, need_left, strict=True)
    ]
    d_rights = [torch.empty_like(x) if n else None for x, n in zip(rights, need_right, strict=True)]
    for cols in grid.cols():
        parts = [None if d is None else d[cols] for d in d_rights]  # [C, k]
        add_columns_(token, grid, backend, cols, lefts, rights, d_lefts, parts, unit)
    d_lefts = [
        None if d is None else scaled_(d, unit).to(x.dtype)
        for d, x in zip(d_lefts, lefts, strict=True)
    ]
    return d_lefts + d_rights


def add_columns_(
    token: TokenGradient, grid: Grid, backend: Backend, cols, lefts, rights, d_lefts, parts, unit
) -> None:
    """What a part of the vocabulary says about all tokens and about itself."""
    columns, wide = take(lefts, rights, cols), token.log_z.dtype
    sums = [None if part is None else zeros_for(part, wide) for part in parts]
    for rows in grid.rows():
        tile = grid.product(rows, lefts, columns)
        dtype = lefts[0].dtype
        pieces, _ = backend.gradient(tile, "products", token.at(rows), cols.start, dtype)
        grads = [None if d is None else d[rows] for d in d_lefts]
        collect_(pieces, [x[rows] for x in lefts], columns, grads, sums, grid.room)
    for part, total in zip(parts, sums, strict=True):
        if part is not None and scaled_(total, unit) is not part:
            part.copy_(total)


def zeros_for(part: Tensor, wide: torch.dtype) -> Tensor:
    """Zeros to sum this part of dW in: the part itself, or a wider copy to round from later."""
    return part.zero_() if part.dtype == wide else torch.zeros_like(part, dtype=wide)


def scaled_(total: Tensor, unit: Tensor | None) -> Tensor:
    """In the end all gradients are in units of 1 again."""
    return total if unit is None else total.mul_(unit)


def tile_shape(N: int, V: int, elements: int) -> tuple[int, int]:
    """(rows, columns) of at most so many elements (at least one), as square as N and V allow.

    What else a step over a tile holds is (rows + columns) * H: smallest in a square.
    """
    elements = max(elements, 1)
    rows = max(min(N, isqrt(elements)), 1)
    cols = min(V, elements // rows)
    if 16 < cols < V:
        cols -= cols % 16  # rows that start where vector loads may
    return max(min(N, elements // cols), 1), cols


def halves(sides) -> tuple[list, list]:
    """The left sides, then the right ones."""
    return list(sides[: len(sides) // 2]), list(sides[len(sides) // 2 :])


def take(lefts: list[Tensor], rights: list[Tensor], cols: slice) -> list[Tensor]:
    """This part of the vocabulary, [C, k] each, in the dtype of what it is multiplied with."""
    return [right[cols].to(left.dtype) for left, right in zip(lefts, rights, strict=True)]
