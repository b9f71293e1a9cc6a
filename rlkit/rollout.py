"""Prompts -> completions -> rewards: what a training step learns from.

A completion ends with its first EOS, which counts (who else would teach the model to stop?);
everything after it is padding and `mask` is False there. A completion that never ends is truncated:
its mask is all True and `finished` is False.

Each prompt is read once: its keys and values are then repeated for its G completions. Rows that
have ended leave the batch while the others go on.
Left out on purpose: paged caches, continuous batching, any server.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from rlkit.prefix import SharedRows
from rlkit.sampling import Sampler


@dataclass
class Rollout:
    """B completions, prompt by prompt: rows k*G .. k*G+G-1 share a prompt. P prompt tokens.

    Prompts are padded on the left, completions on the right.
    """

    prompt_ids: Tensor
    """[B, P] int64."""
    prompt_mask: Tensor
    """[B, P] bool: False on padding."""
    completion_ids: Tensor
    """[B, T] int64."""
    mask: Tensor
    """[B, T] bool: True up to and including the first EOS."""
    finished: Tensor
    """[B] bool: the completion has an EOS."""
    rewards: Tensor | None = None
    """[B] float32; NaN: nothing scored this row."""
    rewards_per_func: Tensor | None = None
    """[B, number of reward functions] float32, before the weights."""
    logp_sampled: Tensor | None = None
    """[B, T] log-probs noted while sampling: same temperature, untruncated distribution."""
    logp_old: Tensor | None = None
    """[B, T] log-probs by the training forward, before this rollout's first update."""
    logp_ref: Tensor | None = None
    """[B, T] log-probs by the reference model."""
    values: Tensor | None = None
    """[B, T] predictions of the value model, before this rollout's first update."""
    advantages: Tensor | None = None
    """[B], or [B, T] for PPO."""
    returns: Tensor | None = None
    """[B, T] what the value model is trained towards."""
    index: Tensor | None = None
    """[N] int64: flat positions in [B * T] of the valid tokens, made on the host (see `rows`)."""
    row_lengths: tuple[int, ...] | None = None
    """Valid tokens of each row, on the host too: where a head may cut between completions."""
    shared: SharedRows | None = None
    """How completions of one prompt are read in one row; None: each in its own (see `prefix`)."""

    def __len__(self) -> int:
        return self.prompt_ids.size(0)

    def rows(self, rows: Tensor | slice) -> "Rollout":
        """Some of the rows, as a micro-batch: trimmed to its longest row, with its index list.

        Reads sizes back from the device: call it before the training step, not inside it.
        """
        picked = {
            f.name: value[rows]
            for f in fields(self)
            if f.name not in ("index", "row_lengths", "shared")
            and (value := getattr(self, f.name)) is not None
        }
        mask = picked["mask"]
        length = max(int(mask.any(0).sum()), 1)
        padding = int((~picked["prompt_mask"]).all(0).sum()) if len(mask) else 0
        for name, value in picked.items():
            if name.startswith("prompt"):
                picked[name] = value[:, padding:]
            elif value.dim() == 2 and name != "rewards_per_func":
                picked[name] = value[:, :length]
        index = picked["mask"].flatten().nonzero().squeeze(1)
        return Rollout(**picked, index=index, row_lengths=tuple(picked["mask"].sum(1).tolist()))

    def replace(self, **changes: Any) -> "Rollout":
        """A copy with some fields changed."""
        return replace(self, **changes)


def eos_mask(completion_ids: Tensor, eos_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Which tokens count, found by the *first* EOS.

    `ids != pad` would be wrong wherever pad and EOS are one token: it drops the EOS that ends the
    completion. completion_ids: [B, T]; eos_ids: [E]. Returns mask [B, T] bool, finished [B] bool.
    """
    is_eos = torch.isin(completion_ids, eos_ids)
    ended_before = is_eos.cumsum(1) - is_eos.long()  # EOS tokens strictly before this one
    return ended_before == 0, is_eos.any(1)


@torch.no_grad()
def generate(
    policy: torch.nn.Module,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    sampler: Sampler,
    *,
    num_generations: int,
    max_completion_length: int,
    eos_ids: Sequence[int],
    pad_id: int,
    rows: Tensor | None = None,
) -> Rollout:
    """Draws num_generations completions of each prompt.

    policy: has `decode(ids, mask, positions, cache) -> logits [B, V]` and `new_cache()`.
    prompt_ids, prompt_mask: [prompts, P], padded on the left.
    rows: [prompts * num_generations] global rows that key the noise (default: 0, 1, 2, ...).
    Returns a Rollout of prompts * num_generations rows, without rewards.
    """
    device, size = prompt_ids.device, prompt_ids.size(0) * num_generations
    rows = torch.arange(size, device=device) if rows is None else rows.to(device)
    eos = torch.tensor(list(eos_ids), device=device)
    completion = torch.full((size, max_completion_length), pad_id, device=device)
    logp = torch.zeros(size, max_completion_length, device=device)

    cache = policy.new_cache()
    positions = (prompt_mask.cumsum(1) - 1).clamp(min=0)
    logits = policy.decode(prompt_ids, prompt_mask, positions, cache)  # [prompts, V]
    cache.batch_repeat_interleave(num_generations)
    logits = logits.repeat_interleave(num_generations, 0)
    seen = prompt_mask.repeat_interleave(num_generations, 0)  # [live, P + t]
    length = seen.sum(1, keepdim=True)  # [live, 1]
    live = torch.arange(size, device=device)
    for t in range(max_completion_length):
        tokens, token_logp = sampler.draw(logits, rows[live], t)
        completion[live, t], logp[live, t] = tokens, token_logp
        going = ~torch.isin(tokens, eos)
        keep = going.nonzero().squeeze(1)
        if t + 1 == max_completion_length or not len(keep):
            break
        if len(keep) < len(live):
            cache.batch_select_indices(keep)
            live, seen, length, tokens = live[keep], seen[keep], length[keep], tokens[keep]
        seen = torch.cat([seen, seen.new_ones(len(live), 1)], 1)
        logits = policy.decode(tokens[:, None], seen, length + t, cache)

    mask, finished = eos_mask(completion, eos)
    used = int(mask.any(0).sum())
    return Rollout(
        prompt_ids=prompt_ids.repeat_interleave(num_generations, 0),
        prompt_mask=prompt_mask.repeat_interleave(num_generations, 0),
        completion_ids=completion[:, :used],
        mask=mask[:, :used],
        finished=finished,
        logp_sampled=logp[:, :used],
    )


def concatenate(parts: Sequence[Rollout], pad_id: int) -> Rollout:
    """Rollouts of different lengths as one: prompts padded left, completions right."""
    if len(parts) == 1:
        return parts[0]
    width = max(p.prompt_ids.size(1) for p in parts)
    length = max(p.completion_ids.size(1) for p in parts)
    filled = {"prompt_ids": pad_id, "prompt_mask": False, "completion_ids": pad_id, "mask": False}
    out = {}
    for f in fields(Rollout):
        values = [getattr(p, f.name) for p in parts]
        if values[0] is None:
            continue
        if values[0].dim() == 2:
            missing = (width if f.name.startswith("prompt") else length, filled.get(f.name, 0.0))
            left = f.name.startswith("prompt")
            values = [padded(v, *missing, left=left) for v in values]
        out[f.name] = torch.cat(values)
    return Rollout(**out)


def padded(x: Tensor, width: int, value: float, left: bool) -> Tensor:
    """[B, W] -> [B, width]."""
    more = width - x.size(1)
    return torch.nn.functional.pad(x, (more, 0) if left else (0, more), value=value)
