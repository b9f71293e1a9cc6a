"""What is done to a tile of logits, in `chunked` (chunked.py) and in `fused` (fused.py) alike.

    product_      tile = h W^T + b                        [R, C]: some tokens, some columns
    Shaping       z = softcap(scale * tile) / temperature
    read          log_z, entropy and z_y of each token    one pass over the tile
    gradient      tile <- d loss / d tile, in place       another
    collect_      dH += tile W,  dW += tile^T h

The logits themselves are never kept: log_z and entropy, two numbers a token, are enough to turn a
tile that is there once more into

    d loss / d z_v = d_logp (1[v = y] - p_v) - d_entropy p_v (log p_v + entropy)

Products are left to the BLAS library. The two passes are what a Backend is: torch's stand here,
Triton's in kernels.py.

Left out on purpose: skipping small gradients (their sum over the vocabulary would no longer be 0),
rounding logits to bfloat16 (it moves a log-prob by up to 0.07), second derivatives.
Milakov and Gimelshein 2018, arXiv:1805.02867 (softmax in one pass); Wijmans et al. 2024,
arXiv:2411.09009 (a loss from tiles of logits).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
STRIPS = 16
"""torch passes over a tile in so many strips of rows: a work copy is of one strip."""
FAR = -1e4
"""A log-prob whose exp is 0 in every dtype, but finite: a logit of -inf, of a token that a bias
shuts out, then has probability 0 and counts for nothing, where 0 * inf would be NaN."""

Holds = Literal["nothing", "products", "logits", "probabilities"]
"""What the memory of a tile holds; "nothing" is anything at all."""
Piece = tuple[slice, Tensor]
"""Some columns of a tile and what stands there, [R, c]."""


# ---- from hidden state to logit ------------------------------------------------------------


@dataclass(frozen=True)
class Shaping:
    """Scale, softcap and temperature, in this order, make a logit of h W^T + b.

    softcap(x) = c tanh(x / c) keeps logits within +-c (Gemma 2, arXiv:2408.00118, section 2).
    """

    scale: float
    softcap: float | None
    temperature: float | Tensor  # a tensor is [N, 1]

    def __post_init__(self) -> None:
        if self.softcap is not None and not self.softcap > 0:
            raise ValueError(f"logit_softcap must be above 0, or None, not {self.softcap}")

    def full(self, product: Tensor) -> Tensor:
        """[N, V] -> [N, V], for autograd to differentiate."""
        logits = product if self.scale == 1.0 else product * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits if is_one(self.temperature) else logits / self.temperature

    def tile_(self, product: Tensor) -> Tensor:
        """The same for a tile [R, C] of its rows, in place and in as few passes as it takes."""
        if self.inner is not None:
            product.mul_(self.inner).tanh_()
        factor = self.outer()
        return product if is_one(factor) else product.mul_(factor)

    @property
    def inner(self) -> float | None:
        """What a product is multiplied by before tanh; None: no softcap."""
        return None if self.softcap is None else self.scale / self.softcap

    def outer(self) -> float | Tensor:
        """What the product, or its tanh, is multiplied by then; a number or [N, 1]."""
        return (self.scale if self.softcap is None else self.softcap) / self.temperature

    def at(self, rows: slice) -> "Shaping":
        """That of these rows alone."""
        if not isinstance(self.temperature, Tensor):
            return self
        return replace(self, temperature=self.temperature[rows])

    def slope(self) -> float | Tensor:
        """d logit / d product where no softcap bends it; a number or [N, 1]."""
        return self.scale / self.temperature

    def bend(self, logits: Tensor) -> Tensor | None:
        """What a softcap leaves of that slope, 1 - tanh^2, [R, C]."""
        if self.softcap is None:
            return None
        tanh = logits * (self.temperature / self.softcap)
        return tanh.square_().neg_().add_(1.0)


def as_column(temperature: float | Tensor, size: int, dtype: torch.dtype) -> float | Tensor:
    """A number, or [N, 1] in the logits' dtype, to divide [N, V] by."""
    if not isinstance(temperature, Tensor):
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, not {temperature}")
        return float(temperature)
    if temperature.numel() != 1 and [*temperature.shape] != [size]:
        raise ValueError(f"temperature has shape {[*temperature.shape]} where [{size}] fits")
    return temperature.detach().to(dtype).reshape(-1).expand(size)[:, None]


def is_one(value: float | Tensor) -> bool:
    """Whether multiplying by it can be left out. A tensor is not looked into."""
    return not isinstance(value, Tensor) and value == 1.0


# ---- what a backend is ----------------------------------------------------------------------


class Backend(NamedTuple):
    """The two passes over a tile [R, C], whose first column is token `first` of the vocabulary."""

    read: Callable[..., Holds]
    """(tile of products, targets [R], shaping, first, scores, with_entropy, leave): adds these
    columns to the scores, in place. Returns what the tile holds then: what the caller asked it to
    `leave` for `gradient`, or the products still."""
    gradient: Callable[..., tuple[list[Piece], Tensor | None]]
    """(tile, holds, token gradients, first, dtype): d loss / d product in the tile's own memory.
    Returns (pieces, factor): pieces are float32, float64 or dtype, the operands' of the products
    to come; factor [R, 1] is still to be multiplied, None: nothing."""


@dataclass(frozen=True)
class Scores:
    """What the columns seen so far say of each token, [N]."""

    log_z: Tensor
    entropy: Tensor
    chosen: Tensor
    """The target's logit; 0 until it is seen."""

    @classmethod
    def unseen(cls, size: int, like: Tensor) -> "Scores":
        """Of no column yet, in like's dtype."""
        zeros = like.new_zeros(2, size)
        # the log of 0, but finite, because 0 * inf is NaN
        return cls(like.new_full((size,), torch.finfo(like.dtype).min), *zeros)

    def at(self, rows: slice) -> "Scores":
        """Views of these rows."""
        return Scores(self.log_z[rows], self.entropy[rows], self.chosen[rows])

    def add_(self, log_z: Tensor, entropy: Tensor | None) -> None:
        """Another part of the vocabulary, [N], as if it were all of it.

        Parts with probabilities w_k and entropies H_k have together the entropy
        sum_k w_k (H_k - log w_k) (Shannon 1948, section 6).
        """
        both = torch.logaddexp(self.log_z, log_z)
        if entropy is not None:
            seen, new = self.log_z - both, log_z - both  # log w_k
            self.entropy.copy_(seen.exp() * (self.entropy - seen) + new.exp() * (entropy - new))
        self.log_z.copy_(both)


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
    by_logp: Tensor | None  # None where no loss uses the entropy: that saves a copy of the strip

    @classmethod
    def of(
        cls,
        shaping: Shaping,
        targets: Tensor,
        log_z: Tensor,
        entropy: Tensor,
        d_logp: Tensor | None,
        d_entropy: Tensor | None,
    ) -> "TokenGradient":
        """From the gradients of logp and entropy, [N] or None, and the slope of the logits."""
        log_z, entropy = log_z[:, None], entropy[:, None]
        chosen = torch.zeros_like(log_z) if d_logp is None else d_logp[:, None] * shaping.slope()
        if d_entropy is None:
            return cls(shaping, targets, log_z, chosen, -chosen, None)
        by_logp = -d_entropy[:, None] * shaping.slope()
        return cls(shaping, targets, log_z, chosen, by_logp * entropy - chosen, by_logp)

    def in_units(self, dtype: torch.dtype) -> tuple["TokenGradient", Tensor | None]:
        """(these gradients divided by a unit, the unit) for operands of float16; else no unit.

        Its smallest number, 6e-8, is above a probability over the number of tokens in a step. The
        unit is a power of two, so that dividing by it rounds nothing.
        """
        if dtype != torch.float16 or not len(self.targets):
            return self, None
        columns = {name: getattr(self, name) for name in ("chosen", "base", "by_logp")}
        columns = {name: x for name, x in columns.items() if x is not None}
        largest = torch.stack([x.abs().amax() for x in columns.values()]).amax()
        # the tile's largest entry, at most 2.4 times the columns', then stays below 2^15
        unit = largest.clamp(min=2.0**-100).log2().ceil().sub(13).exp2()
        return replace(self, **{name: x / unit for name, x in columns.items()}), unit

    def at(self, rows: slice) -> "TokenGradient":
        """Those of these rows alone."""
        names = ("targets", "log_z", "chosen", "base", "by_logp")
        columns = {name: getattr(self, name) for name in names}
        columns = {name: x if x is None else x[rows] for name, x in columns.items()}
        return replace(self, shaping=self.shaping.at(rows), **columns)


# ---- the two passes in torch ----------------------------------------------------------------


def read_(
    tile: Tensor,
    targets: Tensor,
    shaping: Shaping,
    first: int,
    scores: Scores,
    with_entropy: bool,
    leave: Holds,
) -> Holds:
    """See Backend.read. In strips, so that what is made beside the tile stays small."""
    height = max(len(tile) // STRIPS, 1)
    keeps_logits = leave == "logits"
    spare = tile.new_empty(keeps_logits + with_entropy, height, tile.shape[1])
    largest, total, weighted, chosen = tile.new_zeros(4, len(tile), 1)
    place, inside = locate(targets, first, tile.shape[1])
    for rows in blocks(len(tile), height):
        logits = shaping.at(rows).tile_(tile[rows])
        shifted = spare[0, : len(logits)] if keeps_logits else logits
        weights = spare[-1, : len(logits)] if with_entropy else shifted
        torch.gather(logits, 1, place[rows], out=chosen[rows])
        # taken off, so that exp cannot overflow, and an offset leaves no trace in the entropy
        torch.amax(logits, 1, keepdim=True, out=largest[rows])
        largest[rows].clamp_(min=torch.finfo(tile.dtype).min)  # a row of nothing but -inf
        torch.sub(logits, largest[rows], out=shifted)
        torch.exp(shifted, out=weights)
        torch.sum(weights, 1, keepdim=True, out=total[rows])
        total[rows].clamp_(min=1.0)  # which it is, but in such a row
        if with_entropy:
            shifted.clamp_(min=FAR).mul_(weights)
            torch.sum(shifted, 1, keepdim=True, out=weighted[rows])
        if leave == "probabilities":
            torch.div(weights, total[rows], out=logits)
    scores.chosen.add_(torch.where(inside, chosen, 0.0).squeeze(1))
    log_total = total.log()
    entropy = (log_total - weighted / total).squeeze(1) if with_entropy else None
    scores.add_((largest + log_total).squeeze(1), entropy)
    return leave


def gradient_(
    tile: Tensor, holds: Holds, token: TokenGradient, first: int, dtype: torch.dtype
) -> tuple[list[Piece], Tensor | None]:
    """See Backend.gradient. From the probabilities of a whole vocabulary it takes no pass at all:
    1 is taken from one number in each row, and the factor is left to the products."""
    whole = [(slice(0, tile.shape[1]), tile)]
    if holds == "probabilities":
        tile.scatter_add_(1, token.targets[:, None], tile.new_full((len(tile), 1), -1.0))
        if dtype not in HALF:
            return whole, token.base
        tile.mul_(token.base)  # before it is rounded
        return whole, None
    place, inside = locate(token.targets, first, tile.shape[1])
    at_target = torch.where(inside, token.chosen, 0.0)
    for rows in blocks(len(tile), max(len(tile) // STRIPS, 1)):
        strip, shaping = tile[rows], token.shaping.at(rows)
        logits = shaping.tile_(strip) if holds == "products" else strip
        bend = shaping.bend(logits)
        logp = logits.sub_(token.log_z[rows])
        if token.by_logp is None:
            grad = logp.exp_().mul_(token.base[rows])
        else:
            p = logp.exp()
            factor = logp.clamp_(min=FAR).mul_(token.by_logp[rows]).add_(token.base[rows])
            grad = factor.mul_(p)
        grad.scatter_add_(1, place[rows], at_target[rows])
        if bend is not None:
            grad.mul_(bend)
    return whole, None


def locate(targets: Tensor, first: int, width: int) -> tuple[Tensor, Tensor]:
    """The targets' columns in this part of the vocabulary, and whether they lie there, [R, 1]."""
    place = targets[:, None] - first
    return place.clamp(0, width - 1), (place >= 0) & (place < width)


TORCH = Backend(read_, gradient_)


# ---- products -------------------------------------------------------------------------------


def product_(tile: Tensor, lefts: list[Tensor], rights: list[Tensor], room: int) -> Tensor:
    """The sum of all left @ right^T, [R, k] and [C, k], put into the tile [R, C].

    room: how many numbers may be copied at a time, see `multiply`.
    """
    for i, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        copied = 0  # for each column: the row of `right` that is widened, or what is added
        if left.dtype in HALF:
            copied = left.shape[1] if widens(left, left.dtype) else i * len(tile)
        for cols in blocks(len(right), room // copied if copied else len(right)):
            multiply(left, right[cols].T, left.dtype, into=tile[:, cols], add=i > 0)
    return tile


def collect_(
    pieces: list[Piece],
    lefts: list[Tensor],
    rights: list[Tensor],
    d_lefts: list[Tensor | None],
    d_rights: list[Tensor | None],
    room: int,
    factor: Tensor | None = None,
    unit: Tensor | None = None,
) -> None:
    """Add what a tile's gradient says about each operand, [R, k] and [C, k], to those that want it.

    factor [R, 1], unit: what the pieces are still to be multiplied by. With either, what d_lefts
    held before is multiplied too: give zeros.
    """
    rounded = pieces[0][1].dtype in HALF
    for left, right, d_left, d_right in zip(lefts, rights, d_lefts, d_rights, strict=True):
        # beside a rounded piece even the bias' column of ones, which rounds to itself
        dtype, k = pieces[0][1].dtype if rounded else left.dtype, left.shape[1]
        half, wider = dtype in HALF, widens(left, dtype)
        copied = len(left) if half and rounded == wider else 0  # for each column of a piece
        if d_left is not None:
            for cols, piece in cut(pieces, room, copied + k * wider):
                multiply(piece, right[cols], dtype, into=d_left)
            scale = factor if unit is None else unit
            if scale is not None:
                d_left.mul_(scale)
        if d_right is not None:
            rows = left if factor is None else left * factor
            made = half and (unit is not None or not wider)  # a result that is then added
            for cols, piece in cut(pieces, room, copied + k * made):
                if unit is None:
                    multiply(piece.T, rows, dtype, into=d_right[cols])
                else:
                    d_right[cols].addcmul_(multiply(piece.T, rows, dtype), unit)


def cut(pieces: list[Piece], room: int, copied: int) -> Iterator[Piece]:
    """The pieces, in parts of so many columns that what is copied for them has room."""
    for cols, piece in pieces:
        width = piece.shape[1]
        for part in blocks(width, room // copied if copied else width):
            yield slice(cols.start + part.start, cols.start + part.stop), piece[:, part]


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
    if widens(left, dtype):
        left, right = left.to(torch.float32), right.to(torch.float32)
    elif dtype in HALF:
        left, right = left.to(dtype), right.to(dtype)
        if into is not None and not add:
            return torch.mm(left, right, out_dtype=torch.float32, out=into)
        result = torch.mm(left, right, out_dtype=torch.float32)
        return result if into is None else into.add_(result)
    return left @ right if into is None else into.addmm_(left, right, beta=int(add))


def widens(operand: Tensor, dtype: torch.dtype) -> bool:
    """Whether half precision must be widened here to be multiplied with float32 sums."""
    return dtype in HALF and not (operand.is_cuda and torch.version.hip is None)


def sum_dtype(operands: torch.dtype) -> torch.dtype:
    """What products, logits and log-probs are computed in."""
    return torch.float64 if operands == torch.float64 else torch.float32


def blocks(total: int, step: int) -> Iterator[slice]:
    """Slices that cut 0..total into pieces of `step`, at least 1; the last may be shorter."""
    step = max(step, 1)
    return (slice(start, min(start + step, total)) for start in range(0, total, step))
