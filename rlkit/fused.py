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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlkit.head import (
    TILE_BYTES,
    check_shapes,
    operand_dtype,
    passes,
    policy_loss,
    token_logps,
)
from rlkit.objectives import Objective, Sums, Totals
from rlkit.parts import Part, TokenBatch, check_batch, cut
from rlkit.parts import order_tokens as order_tokens  # goes with fused_policy_loss
from rlkit.tiles import (
    STRIPS,
    Backend,
    Piece,
    Scores,
    Shaping,
    TokenGradient,
    as_column,
    collect_,
    product_,
    sum_dtype,
)


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
    backend: str = "auto",
    **head: Any,
) -> tuple[Tensor, Sums]:
    """(loss, sums) of the objective, as `policy_loss` after `token_logps` gives them.

    hidden [N, H], weight [V, H], targets [N], tile_bytes, backend and **head (bias, low_rank,
        temperature, logit_softcap, logit_scale): see token_logps. A tile may take tile_bytes, its
        work copies an eighth of that besides.
    index: [N] int64, where token n lies in the B * T positions of mask [B, T].
    advantages .. lengths: as the objective takes them, of all B rows.
    row_lengths, live: known to the host, from `order_tokens`. row_lengths, valid tokens of each
        row, lets an objective that needs whole rows be cut between them (index then ascends).
        Only the first `live` tokens can have a gradient; None: all N.
    entropy: also report the mean entropy where the objective does not need it.
    Falls back to `chunked`, same result, for parts of the batch that must be whole and exceed a
    tile: a row of an objective that needs_sequences (all rows, without row_lengths), or all tokens
    of an entropy quantile without entropy_threshold.
    Raises ValueError for shapes and backends that do not fit, RuntimeError for a second backward.
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
        head |= dict(entropy=entropy, tile_bytes=tile_bytes, backend=backend)
        scores = token_logps(hidden, weight, targets, **head)
        return policy_loss(objective, *scores, index=index, **per_row, **shared)
    dtype = operand_dtype(hidden)
    with torch.autocast(hidden.device.type, enabled=False):
        tiles = Tiles.of(hidden, weight, targets, dtype, height, **head)
        by_token = any(part.rows is None for part in parts)
        batch = TokenBatch.of(objective, index, per_row, shared, by_token)
        return tiled_loss(tiles, batch, parts, entropy, passes(backend, hidden))


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
        shaping = Shaping(logit_scale, logit_softcap, as_column(temperature, N, wide))
        buffer = lefts[0].new_empty(min(N, height), V, dtype=wide)
        return cls(lefts, rights, leaves, shaping, targets, buffer)

    def zero_grads(self) -> list[Tensor | None]:
        """Of each operand, in float32 (float64) whatever it is held in; None if frozen."""
        wide, sides = self.buffer.dtype, self.lefts + self.rights
        return [
            torch.zeros_like(side, dtype=wide) if leaf is not None and leaf.requires_grad else None
            for leaf, side in zip(self.leaves, sides, strict=True)
        ]

    @property
    def room(self) -> int:
        """Numbers that products may copy at a time: as many as a backend's two strips hold."""
        return self.buffer.numel() * 2 // STRIPS

    def product(self, tokens: slice) -> Tensor:
        """h W^T + b of these tokens, in the buffer, [n, V]."""
        tile = self.buffer[: tokens.stop - tokens.start]
        return product_(tile, [left[tokens] for left in self.lefts], self.rights, self.room)

    def collect_(
        self,
        grads: list[Tensor | None],
        pieces: list[Piece],
        tokens: slice,
        factor: Tensor | None,
        unit: Tensor | None,
    ) -> None:
        """Add what a tile of gradients, times factor or unit, says about each operand."""
        size = len(self.lefts)
        lefts = [left[tokens] for left in self.lefts]
        d_lefts = [None if d is None else d[tokens] for d in grads[:size]]
        collect_(pieces, lefts, self.rights, d_lefts, grads[size:], self.room, factor, unit)


# ---- both sides together --------------------------------------------------------------------


def tiled_loss(
    tiles: Tiles, batch: TokenBatch, parts: list[Part], with_entropy: bool, backend: Backend
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
            loss, shares = tile_loss(tiles, batch, part, with_entropy, grads, backend)
            losses.append(loss)
            for name, (total, count) in shares.items():
                before = sums.get(name, (0, 0))
                sums[name] = before[0] + total, before[1] + count
        loss = torch.stack(losses).sum()
    if training:
        loss = GradientsReady.apply(loss, grads, *tiles.leaves)
    return loss, sums


def tile_loss(
    tiles: Tiles,
    batch: TokenBatch,
    part: Part,
    with_entropy: bool,
    grads: list[Tensor | None] | None,
    backend: Backend,
) -> tuple[Tensor, Sums]:
    """(loss, sums) of one part, whose gradients are added to grads."""
    tokens, dtype = part.tokens, tiles.lefts[0].dtype
    targets, shaping = tiles.targets[tokens], tiles.shaping.at(tokens)
    # logits are needed once more only where a gradient is not linear in probabilities
    simple = shaping.softcap is None and not batch.objective.entropy_coef
    leave = "nothing" if not part.learns else "probabilities" if simple else "logits"
    tile = tiles.product(tokens)
    scores = Scores.unseen(len(tile), tile)
    holds = backend.read(tile, targets, shaping, 0, scores, with_entropy, leave)
    logp, entropy = scores.chosen - scores.log_z, scores.entropy
    loss, sums, d_logp, d_entropy = batch.score(part, logp, entropy if with_entropy else None)
    if part.learns:
        told = shaping, targets, scores.log_z, entropy, d_logp, d_entropy
        token, unit = TokenGradient.of(*told).in_units(dtype)
        pieces, factor = backend.gradient(tile, holds, token, 0, dtype)
        tiles.collect_(grads, pieces, tokens, factor, unit)
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
