"""The policy loss with its gradients made in the forward pass: each logit is computed once.

    z        = logits of a tile of tokens over the whole vocabulary     product 1
    loss     = objective(logp, entropy) of these tokens, differentiated on them alone
    z       <- d loss / d z, in place
    dH       = (d loss / d z) W                                          product 2
    dW      += (d loss / d z)^T h                                        product 3

`chunked` (tiles.py) must make each tile again in the backward pass, because only then does it know
the gradient that comes from above. But a loss is one number: what comes from above is one factor,
and everything below it can be computed at once and multiplied later. That takes the objective into
the tile, and with it what it looks at. A loss of single tokens can be cut anywhere, given the
counts of the whole; one of whole completions (RLOO, GSPO) is cut between them.

Tokens that the loss does not move (advantage 0) need product 1 alone. Which they are is decided on
the host before the step (`order_tokens`), which puts them last. Tokens that the clip silences are
known only once their tile is there, and asking how many they are would make the host wait for the
device in every tile: they take part, with zeros.

Left out on purpose: second derivatives, a second backward pass through the same loss.
Gradients in the forward pass: Hsu et al. 2024, arXiv:2410.10989 (Liger), for cross-entropy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlkit.batch import check_shapes as check_rows
from rlkit.head import (
    TILE_BYTES,
    check_shapes,
    into_rows,
    operand_dtype,
    policy_loss,
    token_logps,
)
from rlkit.objectives import Objective, Sums, Totals
from rlkit.parts import Part, cut
from rlkit.parts import order_tokens as order_tokens  # goes with fused_policy_loss
from rlkit.tiles import HALF, Shaping, TokenGradient, as_column, blocks, multiply, sum_dtype

STRIPS = 16
"""A tile is read and turned into its gradient in so many strips of rows; a copy is of one strip."""


def fused_policy_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    objective: Objective,
    *,
    advantages: Tensor,
    mask: Tensor,
    index: Tensor,
    logp_old: Tensor | None = None,
    logp_ref: Tensor | None = None,
    logp_sampled: Tensor | None = None,
    importance_weights: Tensor | None = None,
    entropy_threshold: Tensor | float | None = None,
    totals: Totals | None = None,
    lengths: Tensor | None = None,
    row_lengths: Sequence[int] | None = None,
    live: int | None = None,
    entropy: bool = True,
    tile_bytes: int | None = None,
    **head: Any,
) -> tuple[Tensor, Sums]:
    """(loss, sums) of the objective, as `policy_loss` after `token_logps` gives them.

    hidden [N, H], weight [V, H], targets [N], tile_bytes and **head (bias, low_rank, temperature,
        logit_softcap, logit_scale): see token_logps. A tile may take tile_bytes, its work copies an
        eighth of that besides.
    index: [N] int64, where token n lies in the B * T positions of mask [B, T].
    advantages .. lengths: as the objective takes them, of all B rows.
    row_lengths, live: known to the host, from `order_tokens`. row_lengths, valid tokens of each
        row, lets an objective that needs whole rows be cut between them (index then ascends).
        Only the first `live` tokens can have a gradient; None: all N.
    entropy: also report the mean entropy where the objective does not need it.
    Falls back to `chunked`, same result, for parts of the batch that must be whole and exceed a
    tile: a row of an objective that needs_sequences (all rows, without row_lengths), or all tokens
    of an entropy quantile without entropy_threshold.
    Raises ValueError for shapes that do not fit, RuntimeError for a second backward pass.
    """
    per_row = dict(
        logp_old=logp_old, logp_ref=logp_ref, logp_sampled=logp_sampled, advantages=advantages,
        importance_weights=importance_weights, lengths=lengths, mask=mask,
    )  # fmt: skip
    shared = dict(entropy_threshold=entropy_threshold, totals=totals)
    check_shapes(hidden, weight, targets, head.get("bias"), head.get("low_rank"))
    check_batch(index, len(hidden), per_row)
    tile_bytes = TILE_BYTES if tile_bytes is None else tile_bytes
    height = max(tile_bytes // sum_dtype(hidden.dtype).itemsize // len(weight), 1)  # tokens
    entropy = entropy or objective.needs_entropy
    parts = cut(objective, len(mask), len(hidden), height, entropy_threshold, row_lengths, live)
    if parts is None:
        head |= dict(entropy=entropy, tile_bytes=tile_bytes)
        scores = token_logps(hidden, weight, targets, **head)
        return policy_loss(objective, *scores, index=index, **per_row, **shared)
    dtype = operand_dtype(hidden)
    with torch.autocast(hidden.device.type, enabled=False):
        tiles = Tiles.of(hidden, weight, targets, dtype, height, **head)
        by_token = any(part.rows is None for part in parts)
        batch = TokenBatch.of(objective, index, per_row, shared, by_token)
        return tiled_loss(tiles, batch, parts, entropy)


def check_batch(index: Tensor, size: int, per_row: dict[str, Tensor | None]) -> None:
    """Raise ValueError, naming the argument, where gathering by index would hide a wrong shape."""
    mask = per_row["mask"]
    check_rows(mask, per_row["advantages"], mask)
    rows, width = mask.shape
    for name, tensor, shapes in (
        ("index", index, ([size],)),
        ("lengths", per_row["lengths"], ([rows],)),
        ("importance_weights", per_row["importance_weights"], ([rows, width], [rows, 1])),
        *((f"logp_{k}", per_row[f"logp_{k}"], ([rows, width],)) for k in ("old", "ref", "sampled")),
    ):
        if tensor is not None and [*tensor.shape] not in shapes:
            raise ValueError(f"{name} has shape {[*tensor.shape]} where {shapes[0]} fits")


# ---- the objective's side of a tile ---------------------------------------------------------


@dataclass(frozen=True)
class TokenBatch:
    """What the objective is told beside the scores, for all rows or token by token."""

    objective: Objective
    index: Tensor  # [N]
    per_row: dict[str, Tensor | None]  # first dimension B
    shared: dict[str, Any]
    per_token: dict[str, Tensor | None]  # [N, 1], lengths [N]; empty if not asked for

    @classmethod
    def of(cls, objective, index, per_row, shared, by_token: bool) -> "TokenBatch":
        """Fills in the counts of the whole, which parts could not know."""
        valid = per_row["mask"].bool()
        if per_row["lengths"] is None:
            per_row = per_row | {"lengths": valid.sum(1)}
        if shared["totals"] is None:
            shared = shared | {"totals": Totals.of(valid)}
        per_token = {}
        if by_token:
            # every token a row of its own, with its row's number where a row has one
            advantages = per_row["advantages"]
            column = advantages if advantages.dim() == 2 else advantages[:, None]
            as_rows = per_row | {"advantages": column}
            row = index // valid.shape[1]
            for name, x in as_rows.items():
                if x is None or x.dim() == 1:
                    per_token[name] = x if x is None else x.index_select(0, row)
                else:
                    flat = x.expand_as(valid).reshape(-1)
                    per_token[name] = flat.index_select(0, index)[:, None]
        return cls(objective, index, per_row, shared, per_token)

    def score(self, part: Part, logp: Tensor, entropy: Tensor | None) -> tuple:
        """(loss, sums, d_logp, d_entropy) of the part's tokens, [n] each; None: no gradient.

        The objective's own formula, differentiated on these tokens' scores alone.
        """
        with torch.set_grad_enabled(part.learns):
            logp = logp.detach().requires_grad_(part.learns)
            wanted = [logp]
            if entropy is not None:
                with_bonus = part.learns and self.objective.entropy_coef != 0
                entropy = entropy.detach().requires_grad_(with_bonus)
                wanted += [entropy] if with_bonus else []
            loss, sums = self.objective(**self.arguments(part, logp, entropy))
            if not part.learns:
                return loss, sums, None, None
            grads = torch.autograd.grad(loss, wanted, allow_unused=True)
        return loss.detach(), sums, grads[0], grads[1] if len(grads) > 1 else None

    def arguments(self, part: Part, logp: Tensor, entropy: Tensor | None) -> dict[str, Any]:
        """Of the objective, for this part alone."""
        if part.rows is None:
            chosen, source = part.tokens, self.per_token
            logp, entropy = (None if x is None else x[:, None] for x in (logp, entropy))
        else:
            chosen, source = part.rows, self.per_row
            shape = self.per_row["mask"][chosen].shape
            index = self.index[part.tokens] - chosen.start * shape[1]
            logp, entropy = (
                None if x is None else into_rows(x, index, shape) for x in (logp, entropy)
            )
        told = {name: None if x is None else x[chosen] for name, x in source.items()}
        return told | self.shared | dict(logp=logp, entropy=entropy)


# ---- the head's side of a tile --------------------------------------------------------------


@dataclass
class Tiles:
    """The head's operands, one tile of logits, and the gradients that grow tile by tile.

    Logits are the sum of products left @ right^T: hidden and weight, u and B, ones and bias.
    """

    lefts: list[Tensor]  # [N, k]
    rights: list[Tensor]  # [V, k]
    leaves: list[Tensor | None]  # the arguments behind lefts, then rights
    shaping: Shaping
    targets: Tensor
    buffer: Tensor  # [tokens of a tile, V]

    @classmethod
    def of(
        cls,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        dtype: torch.dtype,
        height: int,
        *,
        bias: Tensor | None = None,
        low_rank: tuple[Tensor, Tensor] | None = None,
        temperature: float | Tensor = 1.0,
        logit_softcap: float | None = None,
        logit_scale: float = 1.0,
    ) -> "Tiles":
        """Operands in dtype: under autocast one copy of the weight in half precision."""
        N, V, wide = len(hidden), len(weight), sum_dtype(dtype)
        u, rank_rows = low_rank or (None, None)
        lefts = [x.detach().to(dtype) for x in (hidden, u) if x is not None]
        rights = [x.detach().to(dtype) for x in (weight, rank_rows) if x is not None]
        leaves = [hidden, weight] if u is None else [hidden, u, weight, rank_rows]
        if bias is not None:  # a product with a column of ones, too small to round
            lefts.append(lefts[0].new_ones(N, 1, dtype=wide))
            rights.append(bias.detach().to(wide)[:, None])
            leaves = [*leaves[: len(leaves) // 2], None, *leaves[len(leaves) // 2 :], bias]
        shaping = Shaping(logit_scale, logit_softcap, as_column(temperature, N))
        buffer = lefts[0].new_empty(min(N, height), V, dtype=wide)
        return cls(lefts, rights, leaves, shaping, targets, buffer)

    def zero_grads(self) -> list[Tensor | None]:
        """Of each operand, in float32 (float64) whatever it is held in; None if frozen."""
        wide, sides = self.buffer.dtype, self.lefts + self.rights
        return [
            torch.zeros_like(side, dtype=wide) if leaf is not None and leaf.requires_grad else None
            for leaf, side in zip(self.leaves, sides, strict=True)
        ]

    def columns(self, dtype: torch.dtype, copied: int) -> Iterator[slice]:
        """The vocabulary, in parts whose copies, so many numbers a column, are an eighth of a tile.

        Only products of half precision copy: see `multiply`.
        """
        width = self.buffer.numel() // 8 // max(copied, 1) if dtype in HALF else len(self.rights[0])
        return blocks(len(self.rights[0]), max(width, 1))

    def copied(self, right: Tensor) -> int:
        """CUDA copies a column of the tile, to round it; elsewhere the weight's row is widened."""
        return len(self.buffer) if right.is_cuda else right.shape[1]

    def product(self, tokens: slice) -> Tensor:
        """h W^T + b of these tokens, in the buffer, [n, V]."""
        tile = self.buffer[: tokens.stop - tokens.start]
        for i, (left, right) in enumerate(zip(self.lefts, self.rights, strict=True)):
            for cols in self.columns(left.dtype, self.copied(right)):
                into = tile[:, cols]
                multiply(left[tokens], right[cols].T, left.dtype, into=into, add=i > 0)
        return tile

    def collect_(self, grads: list, tile: Tensor, tokens: slice, factor, unit) -> None:
        """Add what a tile of gradients [n, V], times factor or unit, says about each operand."""
        size = len(self.lefts)
        for left, right, d_left, d_right in zip(
            self.lefts, self.rights, grads[:size], grads[size:], strict=True
        ):
            dtype = left.dtype
            if d_left is not None:
                into = d_left[tokens]
                for cols in self.columns(dtype, self.copied(right)):
                    multiply(tile[:, cols], right[cols], dtype, into=into)
                scale = factor if unit is None else unit
                if scale is not None:
                    into.mul_(scale)
            if d_right is not None:
                rows = left[tokens] if factor is None else left[tokens] * factor
                for cols in self.columns(dtype, len(self.buffer) + right.shape[1]):
                    if unit is None:
                        multiply(tile[:, cols].T, rows, dtype, into=d_right[cols])
                    else:
                        d_right[cols].addcmul_(multiply(tile[:, cols].T, rows, dtype), unit)


def read_(
    tile: Tensor, targets: Tensor, shaping: Shaping, with_entropy: bool, to_probabilities: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """logp, log_z and entropy [n] of products [n, V], which become logits or probabilities."""
    logp, log_z, entropy = tile.new_empty(3, len(tile))
    height = max(len(tile) // STRIPS, 1)
    spare = [tile.new_empty(height, tile.shape[1]) for _ in range(2 - to_probabilities)]
    for rows in blocks(len(tile), height):
        logits = shaping.tile_(tile[rows], rows)
        weights, *shifted = (x[: len(logits)] for x in spare)
        shifted = shifted[0] if shifted else logits
        largest = logits.amax(1, keepdim=True)  # taken off, so that exp cannot overflow
        torch.sub(logits, largest, out=shifted)
        chosen = shifted.gather(1, targets[rows, None]).squeeze(1)
        total = torch.exp(shifted, out=weights).sum(1)
        log_total = total.log()
        logp[rows] = chosen - log_total
        log_z[rows] = largest.squeeze(1) + log_total
        if with_entropy:
            entropy[rows] = log_total - shifted.mul_(weights).sum(1) / total
        if to_probabilities:
            torch.div(weights, total[:, None], out=logits)
    return logp, log_z, entropy


def gradient_(
    tile: Tensor, token: TokenGradient, dtype: torch.dtype, from_probabilities: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Turn probabilities or logits [n, V] into d loss / d product, in place.

    Returns (factor [n, 1], unit), what that is still to be multiplied by; None: nothing.
    The factor saves a pass over the tile. float16 takes a unit, a power of two, for its smallest
    number, 6e-8, is above a probability over the number of tokens in a step.
    """
    unit = None
    if dtype == torch.float16:
        columns = [x for x in (token.chosen, token.base, token.by_logp) if x is not None]
        largest = torch.stack([x.abs().amax() for x in columns]).amax()
        # the tile's largest entry, at most 2.4 times the columns', then stays below 2^15
        unit = largest.clamp(min=2.0**-100).log2().ceil().sub(13).exp2()
        scaled = (
            None if x is None else x / unit for x in (token.chosen, token.base, token.by_logp)
        )
        token = replace(token, **dict(zip(("chosen", "base", "by_logp"), scaled, strict=True)))
    if from_probabilities:
        tile.scatter_add_(1, token.targets[:, None], tile.new_full((len(tile), 1), -1.0))
        if dtype not in HALF:
            return token.base, unit
        tile.mul_(token.base)  # before it is rounded
        return None, unit
    for rows in blocks(len(tile), max(len(tile) // STRIPS, 1)):
        token.gradient_(tile[rows], rows, slice(0, tile.shape[1]))
    return None, unit


# ---- both sides together --------------------------------------------------------------------


def tiled_loss(
    tiles: Tiles, batch: TokenBatch, parts: list[Part], with_entropy: bool
) -> tuple[Tensor, Sums]:
    """(loss, sums), the loss with its gradients ready if any is wanted."""
    training = torch.is_grad_enabled() and any(
        leaf is not None and leaf.requires_grad for leaf in tiles.leaves
    )
    with torch.no_grad():
        grads = tiles.zero_grads() if training else None
        losses, sums = [], {}
        for part in parts:
            part = part._replace(learns=part.learns and training)
            loss, shares = tile_loss(tiles, batch, part, with_entropy, grads)
            losses.append(loss)
            for name, (total, count) in shares.items():
                before = sums.get(name, (0, 0))
                sums[name] = before[0] + total, before[1] + count
        loss = torch.stack(losses).sum()
    if training:
        loss = GradientsReady.apply(loss, grads, *tiles.leaves)
    return loss, sums


def tile_loss(
    tiles: Tiles, batch: TokenBatch, part: Part, with_entropy: bool, grads: list | None
) -> tuple[Tensor, Sums]:
    """(loss, sums) of one part, whose gradients are added to grads."""
    tokens, dtype = part.tokens, tiles.lefts[0].dtype
    targets, shaping = tiles.targets[tokens], tiles.shaping.at(tokens)
    # logits are needed once more only where a gradient is not linear in probabilities
    simple = part.learns and shaping.softcap is None and not batch.objective.entropy_coef
    tile = tiles.product(tokens)
    logp, log_z, entropy = read_(tile, targets, shaping, with_entropy, simple)
    loss, sums, d_logp, d_entropy = batch.score(part, logp, entropy if with_entropy else None)
    if part.learns:
        token = TokenGradient.of(shaping, targets, log_z, entropy, d_logp, d_entropy)
        tiles.collect_(grads, tile, tokens, *gradient_(tile, token, dtype, simple))
    return loss, sums


class GradientsReady(torch.autograd.Function):
    """A loss whose gradients are known: the backward pass multiplies them by what it is given."""

    @staticmethod
    def forward(ctx, loss: Tensor, grads: list, *leaves: Tensor | None) -> Tensor:
        shapes = [None if x is None else (x.shape, x.dtype) for x in leaves]
        ctx.grads, ctx.shapes = grads, shapes
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor):
        grads, ctx.grads = ctx.grads, None
        if grads is None:
            raise RuntimeError(
                "the gradients of a fused loss were given away in its first backward pass; "
                "mode='chunked' allows a second"
            )
        # in place, and no name keeps them, so that autograd takes them over without a copy
        return (
            None,
            None,
            *(
                None if grad is None else grad.mul_(upstream).to(like[1]).view(like[0])
                for grad, like in zip(grads, ctx.shapes, strict=True)
            ),
        )
