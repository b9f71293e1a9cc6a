"""Log-probs and entropies from logits that exist only tile by tile.

Forward, for each part of the vocabulary: make its logits, add their sum of exponentials to the
running log_z and their entropy to the running entropy, forget them. log_z and entropy, two numbers
a token, are all that the backward pass needs to make each tile again and turn it into

    d loss / d z_v = d_logp (1[v = y] - p_v) - d_entropy p_v (log p_v + entropy)

in place. That is four matrix products (logits twice, dW, d_hidden) where full logits need three.

Left out on purpose: skipping small gradients (their sum over the vocabulary would no longer be 0),
rounding logits to bfloat16 (it moves a log-prob by up to 0.07), second derivatives.
Milakov and Gimelshein 2018, arXiv:1805.02867 (softmax in one pass); Wijmans et al. 2024,
arXiv:2411.09009 (a loss from tiles of logits).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isqrt

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

HALF = (torch.bfloat16, torch.float16)


# ---- from hidden state to logit ------------------------------------------------------------


@dataclass(frozen=True)
class Shaping:
    """Scale, softcap and temperature, in this order, make a logit of h W^T + b.

    softcap(x) = c tanh(x / c) keeps logits within +-c (Gemma 2, arXiv:2408.00118, section 2).
    """

    scale: float
    softcap: float | None
    temperature: float | Tensor  # a tensor is [N, 1]

    def full(self, product: Tensor) -> Tensor:
        """[N, V] -> [N, V], for autograd to differentiate."""
        logits = product if self.scale == 1.0 else product * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits if is_one(self.temperature) else logits / self.temperature

    def tile_(self, product: Tensor, rows: slice) -> Tensor:
        """The same for a tile [R, C] of these rows, in place and in as few passes as it takes."""
        factor = self.scale
        if self.softcap is not None:
            product.mul_(self.scale / self.softcap).tanh_()
            factor = self.softcap
        factor = factor / of_rows(self.temperature, rows)
        return product if is_one(factor) else product.mul_(factor)

    def at(self, rows: slice) -> "Shaping":
        """That of these rows alone."""
        return replace(self, temperature=of_rows(self.temperature, rows))

    def slope(self) -> float | Tensor:
        """d logit / d product where no softcap bends it; a number or [N, 1]."""
        return self.scale / self.temperature

    def bend(self, logits: Tensor, rows: slice) -> Tensor | None:
        """What a softcap leaves of that slope, 1 - tanh^2, [R, C]."""
        if self.softcap is None:
            return None
        tanh = logits * (of_rows(self.temperature, rows) / self.softcap)
        return tanh.square_().neg_().add_(1.0)


def as_column(temperature: float | Tensor, size: int) -> float | Tensor:
    """A number, or [N, 1], to divide [N, V] by."""
    if not isinstance(temperature, Tensor):
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, not {temperature}")
        return float(temperature)
    if temperature.numel() != 1 and [*temperature.shape] != [size]:
        raise ValueError(f"temperature has shape {[*temperature.shape]} where [{size}] fits")
    return temperature.detach().reshape(-1).expand(size)[:, None]


def is_one(value: float | Tensor) -> bool:
    """Whether multiplying by it can be left out. A tensor is not looked into."""
    return not isinstance(value, Tensor) and value == 1.0


def of_rows(value: float | Tensor, rows: slice) -> float | Tensor:
    """The rows' part of a per-token column; a number holds for all."""
    return value[rows] if isinstance(value, Tensor) else value


def multiply(
    left: Tensor,
    right: Tensor,
    dtype: torch.dtype,
    into: Tensor | None = None,
    add: bool = True,
) -> Tensor:
    """left @ right from operands of dtype with float32 (float64) sums.

    into: what it is added to, or with add=False what it replaces, whatever that held.

    CUDA multiplies half precision as it is, and a float32 operand (a tile of gradients) is
    rounded for it. Elsewhere operands are widened: no other product there has float32 sums.
    """
    if dtype in HALF and left.is_cuda and torch.version.hip is None:
        result = torch.mm(left.to(dtype), right.to(dtype), out_dtype=torch.float32)
        if into is None:
            return result
        return into.add_(result) if add else into.copy_(result)
    left, right = left.to(sum_dtype(dtype)), right.to(sum_dtype(dtype))
    return left @ right if into is None else into.addmm_(left, right, beta=int(add))


def sum_dtype(operands: torch.dtype) -> torch.dtype:
    """What products, logits and log-probs are computed in."""
    return torch.float64 if operands == torch.float64 else torch.float32


# ---- logits tile by tile --------------------------------------------------------------------


def chunked_logps(
    lefts: list[Tensor],
    rights: list[Tensor],
    bias: Tensor | None,
    shaping: Shaping,
    targets: Tensor,
    entropy: bool,
    tile_bytes: int,
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
    return ChunkedLogps.apply(shaping, entropy, tile_bytes, targets, *lefts, *rights)


class ChunkedLogps(torch.autograd.Function):
    """Logits are the sum of products left @ right^T: hidden and weight, u and B, ones and bias."""

    @staticmethod
    def forward(ctx, shaping, with_entropy, tile_bytes, targets, *sides: Tensor):
        lefts, rights = halves(sides)
        N, V, wide = len(targets), len(rights[0]), sum_dtype(lefts[0].dtype)
        # nothing seen yet: the log of 0, but finite, because 0 * inf is NaN
        log_z = lefts[0].new_full((N,), torch.finfo(wide).min, dtype=wide)
        entropy, chosen = torch.zeros_like(log_z), torch.zeros_like(log_z)
        height, width = tile_shape(N, V, tile_bytes // wide.itemsize // (1 + with_entropy))
        for cols in blocks(V, width):
            columns = take(lefts, rights, cols)
            for rows in blocks(N, height):
                tile = logits_tile(lefts, columns, shaping, rows)  # [R, C]
                place, inside = locate(targets[rows], cols)
                chosen[rows] += torch.where(inside, tile.gather(1, place), 0.0).squeeze(1)
                merge_(log_z[rows], entropy[rows], *log_z_and_entropy_(tile, with_entropy))
                del tile  # or it would live on while the next one is made
        ctx.shaping, ctx.tile_bytes = shaping, tile_bytes
        ctx.set_materialize_grads(False)  # an entropy in no loss then has gradient None, not 0
        ctx.save_for_backward(targets, log_z, entropy, *sides)
        return chosen - log_z, entropy if with_entropy else None

    @staticmethod
    @once_differentiable
    def backward(ctx, d_logp: Tensor | None, d_entropy: Tensor | None):
        targets, log_z, entropy, *sides = ctx.saved_tensors
        token = TokenGradient.of(ctx.shaping, targets, log_z, entropy, d_logp, d_entropy)
        with torch.autocast(targets.device.type, enabled=False):
            grads = backward_by_tiles(token, ctx.tile_bytes, sides, ctx.needs_input_grad[4:])
        return None, None, None, None, *grads


def backward_by_tiles(token: "TokenGradient", tile_bytes: int, sides, needed) -> list:
    """The gradient of each side that needs one, in its own dtype.

    The vocabulary is the outer loop: a slice of dW collects all N tokens in float32 and is then
    written once, so that a bfloat16 dW needs no float32 [V, H] beside it. What is float32 for the
    whole time is d_hidden, [N, H].
    """
    lefts, rights = halves(sides)
    N, V, wide = len(lefts[0]), len(rights[0]), token.log_z.dtype
    copies = token.copies(lefts[0].dtype)
    height, width = tile_shape(N, V, tile_bytes // wide.itemsize // copies)
    need_left, need_right = halves(needed)
    d_lefts = [
        torch.zeros_like(x, dtype=wide) if n else None
        for x, n in zip(lefts, need_left, strict=True)
    ]
    d_rights = [torch.empty_like(x) if n else None for x, n in zip(rights, need_right, strict=True)]
    for cols in blocks(V, width):
        columns = take(lefts, rights, cols)
        sums = [None if d is None else zeros_for(d[cols], wide) for d in d_rights]  # [C, k]
        for rows in blocks(N, height):
            tile = logits_tile(lefts, columns, token.shaping, rows)  # [R, C]
            tile = token.gradient_(tile, rows, cols)
            for left, right, d_left, d_right in zip(lefts, columns, d_lefts, sums, strict=True):
                if d_left is not None:
                    multiply(tile, right, left.dtype, into=d_left[rows])
                if d_right is not None:
                    multiply(tile.T, left[rows], left.dtype, into=d_right)
            del tile
        for d_right, total in zip(d_rights, sums, strict=True):
            if d_right is not None and d_right.dtype != wide:
                d_right[cols] = total
    d_lefts = [d if d is None else d.to(x.dtype) for d, x in zip(d_lefts, lefts, strict=True)]
    return d_lefts + d_rights


@dataclass(frozen=True)
class TokenGradient:
    """What turns a tile of logits into its gradient; the last four are [N, 1].

    d product_v = p_v (base + by_logp log p_v) + 1[v = y] chosen, bent by a softcap
    """

    shaping: Shaping
    targets: Tensor  # [N]
    log_z: Tensor
    chosen: Tensor
    base: Tensor
    by_logp: Tensor | None  # None where no loss uses the entropy: that saves a copy of the tile

    @classmethod
    def of(cls, shaping, targets, log_z, entropy, d_logp, d_entropy) -> "TokenGradient":
        """From the gradients of logp and entropy, [N] or None, and the slope of the logits."""
        log_z, entropy = log_z[:, None], entropy[:, None]
        chosen = torch.zeros_like(log_z) if d_logp is None else d_logp[:, None] * shaping.slope()
        if d_entropy is None:
            return cls(shaping, targets, log_z, chosen, -chosen, None)
        by_logp = -d_entropy[:, None] * shaping.slope()
        return cls(shaping, targets, log_z, chosen, by_logp * entropy - chosen, by_logp)

    def copies(self, dtype: torch.dtype) -> int:
        """How many arrays of a tile's size are alive at once (half precision: the rounded one)."""
        return 1 + (self.by_logp is not None) + (self.shaping.softcap is not None) + (dtype in HALF)

    def gradient_(self, tile: Tensor, rows: slice, cols: slice) -> Tensor:
        """Logits [R, C] -> d loss / d product, in place."""
        bend = self.shaping.bend(tile, rows)
        logp = tile.sub_(self.log_z[rows])
        if self.by_logp is None:
            grad = logp.exp_().mul_(self.base[rows])
        else:
            p = logp.exp()
            grad = logp.mul_(self.by_logp[rows]).add_(self.base[rows]).mul_(p)
        place, inside = locate(self.targets[rows], cols)
        grad.scatter_add_(1, place, torch.where(inside, self.chosen[rows], 0.0))
        return grad if bend is None else grad.mul_(bend)


def zeros_for(part: Tensor, wide: torch.dtype) -> Tensor:
    """Zeros to sum this part of dW in: the part itself, or a wider copy to round from later."""
    return part.zero_() if part.dtype == wide else torch.zeros_like(part, dtype=wide)


def log_z_and_entropy_(tile: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
    """Of each row, [R], as if the tile were the whole vocabulary. The tile is used up.

    Logits are taken from the row's largest, so that exp cannot overflow, and an offset that all
    logits share leaves no trace in the entropy.
    """
    largest = tile.amax(1, keepdim=True)
    tile.sub_(largest)
    weights = tile.exp() if with_entropy else tile.exp_()
    total = weights.sum(1)
    log_total = total.log()
    log_z = largest.squeeze(1) + log_total
    return log_z, log_total - weights.mul_(tile).sum(1) / total if with_entropy else None


def merge_(log_z: Tensor, entropy: Tensor, log_z_new: Tensor, entropy_new: Tensor | None) -> None:
    """Add a part of the vocabulary to the parts seen so far, in place, all [R].

    Parts with probabilities w_k and entropies H_k have together the entropy
    sum_k w_k (H_k - log w_k) (Shannon 1948, section 6).
    """
    both = torch.logaddexp(log_z, log_z_new)
    if entropy_new is not None:
        seen, new = log_z - both, log_z_new - both  # log w_k
        entropy.copy_(seen.exp() * (entropy - seen) + new.exp() * (entropy_new - new))
    log_z.copy_(both)


def tile_shape(N: int, V: int, elements: int) -> tuple[int, int]:
    """(rows, columns) of at most so many elements (at least one), as square as N and V allow.

    What else a step over a tile holds is (rows + columns) * H: smallest in a square.
    """
    elements = max(elements, 1)
    rows = max(min(N, isqrt(elements)), 1)
    cols = min(V, elements // rows)
    return max(min(N, elements // cols), 1), cols


def blocks(total: int, step: int) -> Iterator[slice]:
    """Slices that cut 0..total into pieces of `step`; the last may be shorter."""
    return (slice(start, min(start + step, total)) for start in range(0, total, step))


def halves(sides) -> tuple[list, list]:
    """The left sides, then the right ones."""
    return list(sides[: len(sides) // 2]), list(sides[len(sides) // 2 :])


def take(lefts: list[Tensor], rights: list[Tensor], cols: slice) -> list[Tensor]:
    """This part of the vocabulary, [C, k] each, in the dtype of what it is multiplied with."""
    return [right[cols].to(left.dtype) for left, right in zip(lefts, rights, strict=True)]


def logits_tile(
    lefts: list[Tensor], columns: list[Tensor], shaping: Shaping, rows: slice
) -> Tensor:
    """Logits of these tokens over a part of the vocabulary, [R, C]."""
    tile = None
    for left, right in zip(lefts, columns, strict=True):
        tile = multiply(left[rows], right.T, left.dtype, into=tile)
    return shaping.tile_(tile, rows)


def locate(targets: Tensor, cols: slice) -> tuple[Tensor, Tensor]:
    """The targets' columns in this part of the vocabulary, and whether they lie there, [R, 1]."""
    place, width = targets[:, None] - cols.start, cols.stop - cols.start
    return place.clamp(0, width - 1), (place >= 0) & (place < width)
