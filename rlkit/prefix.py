"""Prompts that are read once for several completions: who stands where in a shared row.

    row        [ prompt        | completion 1  | completion 2  | ... | padding ]
    positions    0, 1, .. p-1    p, p+1, ..      p, p+1, ..            0
    segments     0, 0, .. 0      1, 1, ..        2, 2, ..              -1

A token sees the prompt (segment 0) and its own segment, up to itself. So each completion is scored
as if it stood alone behind its prompt, and the G completions of a prompt cost one prompt instead of
G. The first token of each is predicted by the prompt's last state; the last token of each predicts
nothing and is left out.

What a shared row costs is attention: every token is compared with every place of its row, also with
the other completions, which the mask then hides. So rows are as long as makes the whole cheapest
(`cost`): a prompt may have several, each with some of its completions, or one for each, and then
rows stay separate. Everything here runs on the host while a micro-batch is made; the step only uses
what comes out.

Left out on purpose: kernels that skip the hidden blocks, rows of several prompts.
"""

from collections.abc import Callable, Iterator
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
    group = Completions(
        numbered(prompt_ids[alive], prompt_mask[alive]),
        prompt_mask.sum(1)[alive].tolist(),
        (lengths[alive] - 1).tolist(),
    )
    if len(set(group.prompt)) == len(alive):
        return None
    best = cheapest(group, cost)
    separate = cost(len(mask), prompt_mask.size(1) + mask.size(1) - 1)
    if not always and cost(best.count, best.width) >= separate:
        return None
    shared = fill(best, group, prompt_ids[alive], completion_ids[alive])
    return SharedRows(*(x.to(device) for x in shared))


def numbered(prompt_ids: Tensor, prompt_mask: Tensor) -> list[int]:
    """[n, P] -> n numbers, the same for the same prompt: 0 for the first, and so on."""
    numbers: dict[tuple[int, ...], int] = {}
    texts = torch.where(prompt_mask, prompt_ids, -1).tolist()
    return [numbers.setdefault(tuple(text), len(numbers)) for text in texts]


class Completions(NamedTuple):
    """n completions, by what decides where they fit."""

    prompt: list[int]
    """The number of its prompt."""
    prompt_length: list[int]
    """Tokens of its prompt."""
    fed: list[int]
    """Tokens that predict another: all but the last."""


class Plan(NamedTuple):
    """Where each of n completions goes."""

    count: int
    """Rows."""
    width: int
    """Tokens of the longest."""
    row: list[int]
    rank: list[int]
    """Its place among the completions of its row, from 0."""
    start: list[int]
    """The place of its first token."""


def cheapest(group: Completions, cost: Callable[[int, int], float]) -> Plan:
    """The rows to share, from one for each prompt to ever shorter ones.

    Shorter rows repeat more prompts and hide less; the search ends where the first outweighs.
    """
    best = None
    for room in widths(group):
        plan = arrange(group, room)
        if plan.count == len(group.fed):
            break
        if best is not None and cost(plan.count, plan.width) >= cost(best.count, best.width):
            break
        best = plan
    return best


def widths(group: Completions) -> Iterator[int]:
    """Row lengths to try, in which the longest text fits as one row, two, three, four, six, ...

    Whatever fits nowhere in k rows of length p + (sum of all + (k - 1) largest) / k has found each
    filled too far for the sum (Graham 1966).
    """
    fed: dict[int, list[int]] = {}
    for prompt, tokens in zip(group.prompt, group.fed, strict=True):
        fed.setdefault(prompt, []).append(tokens)
    lengths = dict(zip(group.prompt, group.prompt_length, strict=True))
    longest = max(fed, key=lambda prompt: lengths[prompt] + sum(fed[prompt]))
    total, largest, parts = sum(fed[longest]), max(fed[longest]), 1
    while parts <= len(fed[longest]):
        yield lengths[longest] + -(-(total + (parts - 1) * largest) // parts)
        parts += max(parts // 2, 1)


def arrange(group: Completions, room: int) -> Plan:
    """Rows of one prompt and as many completions as fit: the longest first, each where it fits.

    First fit, decreasing (Johnson 1973): completions of different lengths fill rows evenly.
    """
    row, rank, start = ([0] * len(group.fed) for _ in range(3))
    used: list[int] = []  # tokens of each row
    held: list[int] = []  # completions of each row
    rows_of: dict[int, list[int]] = {}  # of each prompt
    for i in sorted(range(len(row)), key=lambda i: -group.fed[i]):
        rows = rows_of.setdefault(group.prompt[i], [])
        r = next((r for r in rows if used[r] + group.fed[i] <= room), len(used))
        if r == len(used):
            rows.append(r), used.append(group.prompt_length[i]), held.append(0)
        row[i], rank[i], start[i] = r, held[r], used[r]
        used[r] += group.fed[i]
        held[r] += 1
    return Plan(len(used), max(used), row, rank, start)


def fill(plan: Plan, group: Completions, prompt_ids: Tensor, completion_ids: Tensor) -> SharedRows:
    """The tokens of n completions, [n, P] and [n, T], in their rows."""
    shape = plan.count, plan.width
    ids, positions, segments = (torch.full((plan.count * plan.width,), x) for x in (0, 0, -1))
    row, rank, start, length, fed = map(torch.tensor, (*plan[2:], *group[1:]))
    begin = row * plan.width  # [n], the flat place where its row begins

    first = (rank == 0).nonzero().squeeze(1)  # [R], a completion of each row
    of, t = counted(length[first])
    of = first[of]
    at = begin[of] + t
    ids[at], positions[at], segments[at] = prompt_ids[of, t - length[of]], t, 0

    of, t = counted(fed)
    at = begin[of] + start[of] + t
    ids[at], positions[at], segments[at] = completion_ids[of, t], length[of] + t, rank[of] + 1

    of, t = counted(fed + 1)
    # the first is predicted by the prompt's end
    left = torch.where(t > 0, start[of] + t, length[of]) - 1
    return SharedRows(
        ids.view(shape), positions.view(shape), segments.view(shape), begin[of] + left
    )


def counted(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """[n] -> (owner, place), [sum of sizes]: 2, 1 gives 0, 0, 1 and 0, 1, 0."""
    owner = torch.arange(len(sizes)).repeat_interleave(sizes)
    return owner, torch.arange(len(owner)) - (sizes.cumsum(0) - sizes)[owner]
