"""How the tokens of a batch are cut into tiles: decided on the host, before the step.

A step that asked the device how many tokens to take would wait for it, and could not be planned
with fake tensors. So the order of the tokens, and the lengths of the rows, are counted while the
batch is made, and travel with it as plain numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlkit.objectives import Objective
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
