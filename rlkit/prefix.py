"""Prompts that are read once for several completions: who stands where in a shared row.

    row        [ prompt        | completion 1  | completion 2  | ... | padding ]
    positions    0, 1, .. p-1    p, p+1, ..      p, p+1, ..            0
    segments     0, 0, .. 0      1, 1, ..        2, 2, ..              -1

A token sees the prompt (segment 0) and its own segment, up to itself. So each completion is scored
as if it stood alone behind its prompt, and the G completions of a prompt cost one prompt instead of
G. The first token of each is predicted by the prompt's last state; the last token of each predicts
nothing and is left out.

What a shared row costs is attention: every token is compared with every place of its row, also with
the other completions, which the mask then hides. So a row holds as many completions as make the
whole cheapest (`cost`), perhaps only some of those of its prompt, perhaps one: then rows stay
separate. Everything here runs on the host while a micro-batch is made; the step only uses it.

Left out on purpose: kernels that skip the hidden blocks, rows of several prompts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


def allowed(share_prefix: bool | str, backbone: Any) -> bool | str:
    """The setting for a model (its `Backbone`): "auto" becomes False where its attention forbids.

    Raises ValueError for True there, with the reason and the remedy.
    """
    config, reason = backbone.config, None
    attention = str(config._attn_implementation)
    if "flash" in attention:
        reason = (
            f"attention {attention!r} takes no explicit mask; load the model with "
            "attn_implementation='sdpa'"
        )
    elif "sliding_attention" in backbone.layers or (
        getattr(config, "sliding_window", None) and not backbone.layers
    ):
        reason = (
            f"{type(backbone.module).__name__} has sliding-window attention, which would take the "
            "other completions of a row for text; use a model of full attention"
        )
    if reason and share_prefix not in ("auto", False):
        raise ValueError(f"share_prefix={share_prefix}: {reason}, or share_prefix='auto'")
    return False if reason else share_prefix


def multiplications(backbone: Any, rows: int, width: int) -> int:
    """Of a forward pass over [rows, width]: a token meets each weight, and its row twice a layer.

    By this count rows are chosen. It says about what the clock says. G completions to a row against
    one to a row, time of a training step on one CPU thread in float32 (and the count):

        prompt + completion tokens        7+5, G=16    100+20, G=8  100+512, G=8  512+256, G=8
        the adder, 128 wide               0.37 (0.45)  0.30 (0.32)  3.2 (3.4)     0.87 (0.97)
        Qwen3 of 2 layers, 256 wide       0.37 (0.42)  0.28 (0.29)  2.3 (2.3)     0.70 (0.74)
        Qwen3 of 1 layer, 1024 wide       0.45 (0.41)  0.28 (0.27)  1.7 (1.5)     0.58 (0.58)

    At 100+512 tokens any sharing is slower; at 512+256, 4 to a row take 0.72, 0.63 and 0.57.
    Not measured on a GPU.
    """
    config = backbone.config
    heads = config.num_attention_heads
    size = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    return rows * width * (backbone.weights + 2 * width * size * config.num_hidden_layers)


class SharedRows(NamedTuple):
    """R rows of S tokens, each a prompt and some of its completions."""

    ids: Tensor
    """[R, S] int64, the tokens; 0 on padding."""
    positions: Tensor
    """[R, S] int64, distance from the beginning of the text."""
    segments: Tensor
    """[R, S] int64: 0 prompt, 1, 2, .. completions, -1 padding."""
    states: Tensor
    """[N] int64: flat places in [R * S] of the states that predict the valid tokens, in order."""


def share_rows(
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    completion_ids: Tensor,
    mask: Tensor,
    cost: Callable[[int, int], float],
    *,
    always: bool = False,
) -> SharedRows | None:
    """The cheapest rows for a micro-batch (see Rollout's fields), on its device.

    cost: (rows, tokens of each) -> price of running the model on them.
    always: share wherever a prompt repeats, whatever it costs.
    Returns None where no prompt repeats, or separate rows are cheaper. A completion whose every
    token is masked is left out.
    """
    device = mask.device
    prompt_ids, prompt_mask, completion_ids, mask = (
        x.cpu() for x in (prompt_ids, prompt_mask, completion_ids, mask)
    )
    lengths = mask.sum(1)
    alive = lengths.nonzero().squeeze(1)  # completions that have a token to score
    prompts = numbered(prompt_ids[alive], prompt_mask[alive])
    largest = int(prompts.bincount().max()) if len(alive) else 1
    if largest == 1:
        return None
    group = Completions(prompts, prompt_mask.sum(1)[alive], lengths[alive] - 1)
    sizes = [largest]
    while sizes[-1] > 2:
        sizes.append(-(-sizes[-1] // 2))
    best = min((arrange(group, n) for n in sizes), key=lambda rows: cost(rows.count, rows.width))
    separate = cost(len(mask), prompt_mask.size(1) + mask.size(1) - 1)
    if not always and cost(best.count, best.width) >= separate:
        return None
    shared = fill(best, group, prompt_ids[alive], completion_ids[alive])
    return SharedRows(*(x.to(device) for x in shared))


def numbered(prompt_ids: Tensor, prompt_mask: Tensor) -> Tensor:
    """[n, P] -> [n], the same number for the same prompt: 0 for the first, and so on."""
    numbers: dict[tuple[int, ...], int] = {}
    texts = torch.where(prompt_mask, prompt_ids, -1).tolist()
    return torch.tensor([numbers.setdefault(tuple(text), len(numbers)) for text in texts])


class Completions(NamedTuple):
    """n completions, by what decides where they fit."""

    prompt: Tensor
    """[n] number of its prompt."""
    prompt_length: Tensor
    """[n] tokens of its prompt."""
    fed: Tensor
    """[n] tokens that predict another: all but the last."""


class Rows(NamedTuple):
    """Where each of n completions goes."""

    count: int
    width: int
    row: Tensor
    """[n]"""
    rank: Tensor
    """[n] place among the completions of its row, from 0."""
    start: Tensor
    """[n] place of its first token."""


def arrange(group: Completions, per_row: int) -> Rows:
    """At most per_row completions to a row, all of one prompt."""
    order = group.prompt.argsort(stable=True)
    counts = group.prompt.bincount()
    among = torch.arange(len(order)) - (counts.cumsum(0) - counts)[group.prompt[order]]
    part = group.prompt[order] * len(order) + among // per_row
    row, sizes = part.unique_consecutive(return_inverse=True, return_counts=True)[1:]
    fed = group.fed[order].cumsum(0)
    before = fed - group.fed[order]  # tokens of all completions that stand before this one
    first = sizes.cumsum(0) - sizes  # [rows], the first completion of each
    start = group.prompt_length[order] + before - before[first][row]
    width = int((start + group.fed[order]).max())
    back = order.argsort()
    return Rows(len(sizes), width, row[back], (among % per_row)[back], start[back])


def fill(rows: Rows, group: Completions, prompt_ids: Tensor, completion_ids: Tensor) -> SharedRows:
    """The tokens of n completions, [n, P] and [n, T], in their rows."""
    ids, positions, segments = (
        torch.full((rows.count * rows.width,), x) for x in (0, 0, -1)
    )  # [R * S]
    begin = rows.row * rows.width  # [n], the flat place where its row begins
    lead = torch.empty(rows.count, dtype=torch.int64)
    lead[rows.row] = torch.arange(len(begin))  # [R], one completion of each row
    padding = prompt_ids.size(1) - group.prompt_length

    of, t = counted(group.prompt_length[lead])
    of = lead[of]
    at = begin[of] + t
    ids[at], positions[at], segments[at] = prompt_ids[of, padding[of] + t], t, 0

    of, t = counted(group.fed)
    at = (begin + rows.start)[of] + t
    ids[at], positions[at] = completion_ids[of, t], group.prompt_length[of] + t
    segments[at] = rows.rank[of] + 1

    of, t = counted(group.fed + 1)
    left = torch.where(t > 0, rows.start[of] + t, group.prompt_length[of]) - 1
    shape = rows.count, rows.width
    return SharedRows(
        ids.view(shape), positions.view(shape), segments.view(shape), begin[of] + left
    )


def counted(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """[n] -> (owner, place), [sum of sizes]: 2, 1 gives 0, 0, 1 and 0, 1, 0."""
    owner = torch.arange(len(sizes)).repeat_interleave(sizes)
    return owner, torch.arange(len(owner)) - (sizes.cumsum(0) - sizes)[owner]
