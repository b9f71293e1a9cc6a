"""What an objective is given: log-probs with harmless padding, and the counts to divide by.

Padding may hold anything. It is replaced by 0 *before* any exp, not multiplied by 0 after it:
inf * 0 is NaN, and so is its gradient. Nothing here reads a tensor back.

Left out on purpose: any formula of an algorithm (objectives.py).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlkit.config import unknown

MAX_LOG_RATIO = 20.0
"""Ratios stop growing at e^20: further up float32 gives inf, and inf * 0 in the backward pass of a
clipped ratio is NaN. Long completions get there when their log-ratios are summed."""


@dataclass(frozen=True)
class Totals:
    """What the whole optimiser step holds: all micro-batches, all ranks, counted after masking."""

    tokens: float | Tensor
    """Valid tokens."""
    sequences: float | Tensor
    """Completions, also those whose every token is masked."""

    @classmethod
    def of(cls, mask: Tensor) -> "Totals":
        """The counts of one batch. mask: [B, T]."""
        return cls(tokens=mask.bool().sum(), sequences=mask.size(0))

    def at_least_one(self) -> "Totals":
        """Counts to divide by: an empty step has loss 0, not NaN."""
        tokens, sequences = (
            x.clamp(min=1) if isinstance(x, Tensor) else max(x, 1)
            for x in (self.tokens, self.sequences)
        )
        return Totals(tokens, sequences)


@dataclass(frozen=True)
class Batch:
    """The inputs of an objective: [B, T] unless said otherwise, 0 wherever mask is."""

    logp: Tensor
    logp_old: Tensor
    logp_ref: Tensor | None
    logp_sampled: Tensor
    advantages: Tensor
    entropy: Tensor | None
    correction: Tensor
    """[B, T] or [B, 1] importance weights, 1 on padding."""
    mask: Tensor
    """0 or 1, in logp's dtype."""
    kept: Tensor
    """mask without the tokens below the entropy threshold: those that carry the policy loss."""
    lengths: Tensor
    """[B, 1] valid tokens of the whole row, at least 1."""
    totals: Totals
    """Of the whole step, at least 1."""


def clean(
    logp: Tensor,
    logp_old: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    *,
    logp_ref: Tensor | None = None,
    entropy: Tensor | None = None,
    entropy_threshold: Tensor | float | None = None,
    top_entropy_quantile: float = 1.0,
    totals: Totals | None = None,
    lengths: Tensor | None = None,
    logp_sampled: Tensor | None = None,
    importance_weights: Tensor | None = None,
) -> Batch:
    """The arguments of an objective (see `Objective.__call__`) as a Batch.

    Raises ValueError for shapes that do not fit.
    """
    check_shapes(logp, advantages, mask)
    valid = mask.bool()
    logp = on_valid(logp, valid)
    logp_old = logp.detach() if logp_old is None else on_valid(logp_old, valid)
    entropy = on_valid(entropy, valid)
    lengths = valid.sum(1) if lengths is None else lengths
    return Batch(
        logp=logp,
        logp_old=logp_old,
        logp_ref=on_valid(logp_ref, valid),
        logp_sampled=logp_old if logp_sampled is None else on_valid(logp_sampled, valid),
        advantages=on_valid(
            advantages if advantages.dim() == 2 else advantages.unsqueeze(1), valid
        ),
        entropy=entropy,
        correction=correction_on(valid, importance_weights, logp),
        mask=valid.to(logp.dtype),
        kept=kept_tokens(entropy, valid, top_entropy_quantile, entropy_threshold).to(logp.dtype),
        lengths=lengths.clamp(min=1).unsqueeze(1).to(logp.dtype),
        totals=(Totals.of(valid) if totals is None else totals).at_least_one(),
    )


def on_valid(x: Tensor | None, valid: Tensor) -> Tensor | None:
    """x, 0 on padding: its gradient there is exactly 0, whatever x held."""
    return None if x is None else torch.where(valid, x, 0.0)


def correction_on(valid: Tensor, weights: Tensor | None, like: Tensor) -> Tensor:
    """Importance weights, 1 on padding; [1, 1] if there are none."""
    if weights is None:
        return like.new_ones(1, 1)
    by_row = weights.size(1) == 1
    covered = valid.any(1, keepdim=True) if by_row else valid
    return torch.where(covered, weights, 1.0)


def kept_tokens(
    entropy: Tensor | None, valid: Tensor, share: float, threshold: Tensor | float | None
) -> Tensor:
    """The `share` of the valid tokens whose entropy is highest, [B, T] bool. Without gradient."""
    if share == 1:
        return valid
    if threshold is None:
        threshold = entropy_quantile(entropy.detach(), valid, 1 - share)
    return valid & (entropy.detach() >= threshold)


def entropy_quantile(entropy: Tensor, mask: Tensor, quantile: float) -> Tensor:
    """The entropy below which a share `quantile` of the valid tokens lies, by linear interpolation.

    entropy, mask: all tokens of the step, in any one shape. Pass 1 - top_entropy_quantile.
    Returns a number (0-d), without reading the mask back; NaN if no token is valid.
    """
    mask = mask.bool()
    ordered = torch.where(mask, entropy, torch.inf).flatten().sort().values  # padding last
    place = quantile * (mask.sum() - 1).clamp(min=0).to(entropy.dtype)
    below, above = (
        ordered.index_select(0, end.long().view(1)).squeeze(0)
        for end in (place.floor(), place.ceil())
    )
    return torch.lerp(below, above, place - place.floor())


def sampler_correction(
    logp_old: Tensor,
    logp_sampled: Tensor,
    mask: Tensor,
    *,
    level: str = "token",
    low: float | None = None,
    high: float | None = 3.0,
    drop: bool = False,
) -> Tensor:
    """Importance weights for a sampler that computes other log-probs than the trainer does.

    logp_old (by the trainer), logp_sampled, mask: [B, T]; a NaN of the sampler counts as agreement.
    level: "token", or "sequence" for the product along a row.
    Weights outside [low, high] are set to the bound, or with drop to 0.
    Returns [B, T], or [B, 1] at sequence level: pass it as importance_weights.
    Raises ValueError for an unknown level. Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy RL training".
    """
    if level not in ("token", "sequence"):
        raise ValueError(unknown("level", level, ("token", "sequence")))
    gap = torch.where(mask.bool(), logp_old - logp_sampled, 0.0).nan_to_num(nan=0.0)
    weights = bounded_exp(gap if level == "token" else gap.sum(1, keepdim=True))
    bounded = weights.clamp(-math.inf if low is None else low, math.inf if high is None else high)
    return torch.where(weights == bounded, weights, 0.0) if drop else bounded


def near_policy(batch: Batch, threshold: float) -> Tensor:
    """1 for rows to learn from, 0 for bad ones too far from their sampler. [B, T]."""
    gap = ((batch.logp_sampled - batch.logp.detach()) * batch.mask).sum(1, keepdim=True)
    return ((batch.advantages >= 0) | (gap / batch.lengths <= threshold)).to(batch.mask.dtype)


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """exp, constant beyond MAX_LOG_RATIO."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def mean_of(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(sum, count) of x over what weight counts, without gradient."""
    return (x.detach() * weight).sum(), weight.sum()


def check_shapes(logp: Tensor, advantages: Tensor, mask: Tensor) -> None:
    """Raises ValueError: broadcasting would turn a wrong shape into a wrong loss."""
    if logp.dim() != 2 or mask.shape != logp.shape:
        raise ValueError(f"logp {list(logp.shape)} and mask {list(mask.shape)} must be [B, T]")
    if advantages.shape not in (logp.shape, logp.shape[:1]):
        raise ValueError(
            f"advantages {list(advantages.shape)} must be [B] or [B, T] = {list(logp.shape)}"
        )
