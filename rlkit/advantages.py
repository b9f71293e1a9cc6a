"""From rewards to advantages: what each algorithm compares a completion with.

    RLOO    A_i = r_i - mean_{j != i} r_j                     the other completions of its prompt
    GRPO    A_i = (r_i - mean_j r_j) / (std_j r_j + eps)      all completions of its prompt
    PPO     A_t = sum_k (gamma lam)^k delta_{t+k}             what a value model expected
            delta_t = r_t + gamma V_{t+1} - V_t

Rewards are [B], prompt by prompt: rows k*G .. k*G+G-1 share a prompt, G = num_generations. A reward
of NaN means that nothing scored the row: it gets 0 and no one is compared with it. On [B, T],
padding may hold anything and changes nothing. No function here has gradients or reads a tensor
back.

Left out on purpose: Monte Carlo rollouts from the middle of a completion, discounting in RLOO and
GRPO (the whole completion is one action).
Leave-one-out: Ahmadian et al. 2024, arXiv:2402.14740. Group-relative: Shao et al. 2024,
arXiv:2402.03300. GAE: Schulman et al. 2016, arXiv:1506.02438.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlkit.config import unknown


def leave_one_out(rewards: Tensor, num_generations: int) -> Tensor:
    """Advantage of each completion over the mean of its siblings, as RLOO uses it.

    The baseline of a sample does not contain its own reward, so the gradient stays unbiased. With
    all G scored it equals G / (G - 1) times the distance from the group's mean.
    rewards: [B]. Returns [B]; each fully scored group sums to 0, a group of equals is exactly 0.
    With G = 1 there are no siblings and every advantage is 0 (evaluation); trainers refuse it.
    Raises ValueError if G does not divide B. Ahmadian et al. 2024, section 3.1.
    """
    groups, scored = above_lowest(rewards, num_generations)  # [P, G]
    siblings = scored.sum(1, keepdim=True) - 1  # [P, 1]
    baseline = (groups.sum(1, keepdim=True) - groups) / siblings.clamp(min=1)
    # a lone scored row is the lowest of its group: 0 less a baseline of 0
    return torch.where(scored, groups - baseline, 0.0).flatten()


def group_relative(
    rewards: Tensor,
    num_generations: int,
    scale_rewards: str = "group",
    eps: float = 1e-4,
    *,
    stats: "Moments | None" = None,
) -> Tensor:
    """Advantage of each completion over the mean of its group, in units of its spread (GRPO).

    rewards: [B]. Returns [B]; a group whose rewards are all equal is exactly 0.
    scale_rewards: "group" divides by the group's standard deviation (ddof=1) + eps, "batch" by that
        of all scored rewards, "none" by nothing (Dr. GRPO, arXiv:2503.20783).
    stats: for "batch", the moments of the rewards of all ranks; None: of these rewards.
    Raises ValueError if G does not divide B, or for an unknown scale_rewards.
    Shao et al. 2024, section 4.1.2.
    """
    if scale_rewards not in SCALES:
        raise ValueError(unknown("scale_rewards", scale_rewards, SCALES))
    groups, scored = above_lowest(rewards, num_generations)  # [P, G]
    centred = groups - moments(groups, scored, dim=1).mean
    centred = torch.where(scored, centred, 0.0)
    scale = SCALES[scale_rewards](into_groups(rewards, num_generations), stats, eps)
    return (centred / scale).flatten()


def group_scale(groups: Tensor, stats: "Moments | None", eps: float) -> Tensor:
    """[P, G] rewards -> [P, 1], each group's standard deviation + eps."""
    return moments(groups, ~groups.isnan(), dim=1).std() + eps


def batch_scale(groups: Tensor, stats: "Moments | None", eps: float) -> Tensor:
    """[P, G] rewards -> one number, the standard deviation over all groups + eps."""
    stats = moments(groups, ~groups.isnan()) if stats is None else stats
    return stats.std() + eps


def no_scale(groups: Tensor, stats: "Moments | None", eps: float) -> float:
    """Advantages stay in the reward's units."""
    return 1.0


SCALES: dict[str, Callable] = {"group": group_scale, "batch": batch_scale, "none": no_scale}
"""What group_relative divides by, under the names of scale_rewards."""


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation, and the returns that a value model is trained towards.

    rewards, values, mask: [B, T]; values[b, t] judges the text before token t. After the last valid
    token the value is 0; masked positions in between are stepped over.
    gamma discounts later rewards; lam trusts the value model (0) or what then happened (1).
    Returns (advantages, returns), [B, T], 0 where mask is. Schulman et al. 2016, equation 16.
    """
    mask = mask.bool()
    advantages = torch.zeros_like(values)  # [B, T]
    next_value = next_advantage = torch.zeros_like(values[:, 0])  # [B]
    for t in reversed(range(values.size(1))):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        next_advantage = torch.where(mask[:, t], advantage, next_advantage)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        advantages[:, t] = torch.where(mask[:, t], advantage, 0.0)
    return advantages, torch.where(mask, advantages + values, 0.0)


def sequence_rewards(rewards: Tensor, kl: Tensor, mask: Tensor, beta: float) -> Tensor:
    """RLOO's reward of a whole completion: r - beta * sum_t kl_t.

    rewards: [B]. kl, mask: [B, T], kl = kl_divergence(logp_old, logp_ref, "k1"). Returns [B]; NaN
    stays NaN. Ahmadian et al. 2024, section 2.
    """
    return rewards - beta * torch.where(mask.bool(), kl, 0.0).sum(1)


def token_rewards(
    rewards: Tensor,
    kl: Tensor | None,
    mask: Tensor,
    beta: float = 0.0,
    *,
    finished: Tensor | None = None,
    missing_eos_penalty: float = 0.0,
) -> Tensor:
    """PPO's reward of each token: -beta * kl_t, and the completion's on its last valid token.

    rewards: [B]. kl, mask: [B, T], kl = kl_divergence(logp_old, logp_ref, "k1" or "k3"), None: 0.
    finished: [B] bool; completions without an EOS lose missing_eos_penalty, in reward units.
    Returns [B, T], 0 where mask is, whose rows sum to the reward minus the KL. A fully masked row
    gets nothing: mask the rows that nothing scored (NaN). Ziegler et al. 2019, arXiv:1909.08593,
    equation 2. (TRL's PPO put the reward one place later, on the first padding token.)
    """
    mask = mask.bool()
    if finished is not None:
        rewards = rewards - missing_eos_penalty * (~finished).to(rewards.dtype)
    valid_from_here = mask.flip(1).cumsum(1).flip(1)  # [B, T] 1 on the last valid token
    last = mask & (valid_from_here == 1)
    score = torch.where(last, rewards.unsqueeze(1), 0.0)
    return score if kl is None else score - beta * torch.where(mask, kl, 0.0)


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations: what `whiten` must know, and ranks can merge."""

    count: Tensor
    mean: Tensor
    squares: Tensor

    def var(self) -> Tensor:
        """The sample variance (ddof=1); 0 for a single value."""
        return self.squares / (self.count - 1).clamp(min=1)

    def std(self) -> Tensor:
        """The sample standard deviation."""
        return self.var().sqrt()


def moments(x: Tensor, mask: Tensor, dim: int | None = None) -> Moments:
    """Moments of x where mask is on, in two passes: of everything, or along dim (which stays as 1).

    One pass (E[x^2] - E[x]^2) loses every digit in float32 when the mean is large.
    """
    mask, keep = mask.bool(), dim is not None
    count = mask.sum(dim, keepdim=keep)
    mean = torch.where(mask, x, 0.0).sum(dim, keepdim=keep) / count.clamp(min=1)
    squares = torch.where(mask, x - mean, 0.0).square().sum(dim, keepdim=keep)
    return Moments(count, mean, squares)


def merge_moments(parts: Sequence[Moments]) -> Moments:
    """Moments of all parts together, as if their values stood in one tensor.

    parts: one of each rank or micro-batch. Chan, Golub and LeVeque 1979, equation 2.1.
    """
    count, mean, squares = (torch.stack(column) for column in zip(*parts, strict=True))
    all_count = count.sum()
    all_mean = (count * mean).sum() / all_count.clamp(min=1)
    return Moments(all_count, all_mean, (squares + count * (mean - all_mean).square()).sum())


def whiten(
    x: Tensor,
    mask: Tensor,
    stats: Moments | None = None,
    *,
    shift_mean: bool = True,
    eps: float = 1e-8,
) -> Tensor:
    """x with mean 0 and variance 1 (ddof=1) over the valid tokens.

    x, mask: [B, T]. stats: `moments` of the whole batch where x is a part of it, merged over ranks
    by `merge_moments`; None: those of x. shift_mean=False keeps the mean (for rewards).
    Returns [B, T], 0 where mask is. A single valid token gives 0, not NaN.
    """
    stats = moments(x, mask) if stats is None else stats
    scaled = (x - stats.mean) / (stats.var() + eps).sqrt()
    return torch.where(mask.bool(), scaled if shift_mean else scaled + stats.mean, 0.0)


def above_lowest(rewards: Tensor, num_generations: int) -> tuple[Tensor, Tensor]:
    """Rewards measured from the lowest of their group, [P, G], and which of them were scored.

    No advantage changes by it, but equal rewards become exact zeros, and stay so: a mean of seven
    0.7 in float32 is not 0.7, and dividing what is left by eps would make a signal of it.
    Unscored rows are 0.
    """
    groups = into_groups(rewards, num_generations)
    scored = ~groups.isnan()
    lowest = torch.where(scored, groups, torch.inf).amin(1, keepdim=True)
    return torch.where(scored, groups - lowest, 0.0), scored


def into_groups(rewards: Tensor, num_generations: int) -> Tensor:
    """[B] -> [P, G], or a sentence that says which number to change."""
    batch = rewards.numel()
    if num_generations < 1:
        raise ValueError(f"num_generations={num_generations} must be at least 1")
    if batch % num_generations:
        fits = max(batch - batch % num_generations, num_generations)
        raise ValueError(
            f"a batch of {batch} is not a multiple of num_generations={num_generations}; use {fits}"
        )
    return rewards.view(-1, num_generations)
