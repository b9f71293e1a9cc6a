"""The objective's side of a fused loss: which tokens go together, and what it is told of them.

How the tokens of a batch are cut into tiles is decided on the host, before the step. A step that
asked the device how many tokens to take would wait for it, and could not be planned with fake
tensors. So the order of the tokens, and the lengths of the rows, are counted while the batch is
made, and travel with it as plain numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlkit.batch import check_shapes
from rlkit.head import into_rows
from rlkit.objectives import Objective, Totals
from rlkit.tiles import blocks


class TokenOrder(NamedTuple):
    """The valid tokens of a batch, those that can have a gradient first."""

    index: Tensor
    """[N] int64, their places in the B * T positions of the mask."""
    live: int
    """How many can have a gradient."""
    row_lengths: tuple[int, ...]
    """Valid tokens of each row."""


def order_tokens(mask: Tensor, advantages: Tensor, objective: Objective) -> TokenOrder:
    """index, live and row_lengths for `fused_policy_loss`. Reads its arguments: call it before.

    mask: [B, T], advantages: [B] or [B, T], best on the CPU. A token of advantage 0 has no gradient
    unless there is a KL or an entropy term. Where rows must be whole they keep their order, and
    what counts is the last row that is not all 0: put such rows last.
    """
    valid = mask.bool()
    acting = valid & ((advantages if advantages.dim() == 2 else advantages[:, None]) != 0)
    if objective.beta or objective.entropy_coef:
        acting = valid
    lengths = tuple(valid.sum(1).tolist())
    if objective.needs_sequences:
        rows = acting.any(1).nonzero()
        live = sum(lengths[: int(rows.max()) + 1]) if len(rows) else 0
        return TokenOrder(places(valid), live, lengths)
    first, last = places(acting), places(valid & ~acting)
    return TokenOrder(torch.cat([first, last]), len(first), lengths)


def places(mask: Tensor) -> Tensor:
    """Where mask is true in its flattened positions, ascending."""
    return mask.flatten().nonzero().squeeze(1)


class Part(NamedTuple):
    """What goes through one tile."""

    tokens: slice
    rows: slice | None
    """The rows that these tokens fill; None: tokens cut anywhere."""
    learns: bool
    """Whether they can have a gradient."""


def cut(
    objective: Objective,
    B: int,
    N: int,
    height: int,
    entropy_threshold: Tensor | float | None,
    row_lengths: Sequence[int] | None,
    live: int | None,
) -> list[Part] | None:
    """Tiles of at most `height` tokens; None where something must be whole and is larger."""
    if live is not None and not 0 <= live <= N:
        raise ValueError(f"live={live} must count some of the {N} tokens")
    if live is None or objective.beta or objective.entropy_coef:
        live = N  # every token has a gradient, whatever was promised
    by_quantile = objective.top_entropy_quantile < 1 and entropy_threshold is None
    one_piece = by_quantile or (objective.needs_sequences and row_lengths is None)
    if N <= height and (one_piece or live in (0, N)):
        return [Part(slice(0, N), slice(0, B), live > 0)]
    if one_piece:
        return None
    if objective.needs_sequences:
        if len(row_lengths) != B or sum(row_lengths) != N:
            raise ValueError(
                f"row_lengths={list(row_lengths)} must count the {N} tokens of {B} rows"
            )
        return whole_rows(row_lengths, height, live)
    spans = [(0, live), (live, N)]
    return [
        Part(slice(start + at.start, start + at.stop), None, start < live)
        for start, stop in spans
        for at in blocks(stop - start, even_height(stop - start, height))
    ]


def even_height(size: int, height: int) -> int:
    """As few tiles as height allows, all about equal."""
    return -(-size // max(-(-size // height), 1)) or 1


def whole_rows(row_lengths: Sequence[int], height: int, live: int) -> list[Part] | None:
    """As many rows to a tile as fit, none of them cut."""
    if max(row_lengths) > height:
        return None
    parts, first, start, stop = [], 0, 0, 0
    for row, length in enumerate(row_lengths):
        if stop + length - start > height or (start < live <= stop and length):
            parts.append(Part(slice(start, stop), slice(first, row), start < live))
            first, start = row, stop
        stop += length
    return [*parts, Part(slice(start, stop), slice(first, len(row_lengths)), start < live)]


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


def check_batch(index: Tensor, size: int, per_row: dict[str, Tensor | None]) -> None:
    """Raise ValueError, naming the argument, where gathering by index would hide a wrong shape."""
    mask = per_row["mask"]
    check_shapes(mask, per_row["advantages"], mask)
    rows, width = mask.shape
    for name, tensor, shapes in (
        ("index", index, ([size],)),
        ("lengths", per_row["lengths"], ([rows],)),
        ("importance_weights", per_row["importance_weights"], ([rows, width], [rows, 1])),
        *((f"logp_{k}", per_row[f"logp_{k}"], ([rows, width],)) for k in ("old", "ref", "sampled")),
    ):
        if tensor is not None and [*tensor.shape] not in shapes:
            raise ValueError(f"{name} has shape {[*tensor.shape]} where {shapes[0]} fits")
