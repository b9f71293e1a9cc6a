"""Page 03: generalised advantage estimation on completions of uneven length."""

import torch
from torch import Tensor

from rlkit import advantages
from rlkit.course.exercises.exercise import Case, Exercise, Outputs, Wrong


def gae(rewards, values, mask, gamma=1.0, lam=0.95):
    """rewards, values, mask [B, T] -> advantages, returns [B, T]"""
    values = torch.where(mask, values, 0.0)  # after the end V is 0
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantages[:, t] = delta + gamma * lam * next_advantage
        next_value, next_advantage = values[:, t], advantages[:, t]
    return advantages, advantages + values


# --- wrong answers


def backwards(rewards: Tensor, values: Tensor, gamma: float, decay: float) -> Outputs:
    """The recursion without any mask; what stands in `values` counts."""
    out, last = torch.zeros_like(values), torch.zeros_like(values[:, 0])
    after = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
    deltas = rewards + gamma * after - values
    for t in reversed(range(values.shape[1])):
        out[:, t] = last = deltas[:, t] + decay * last
    return out, out + values


def cleaned(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0.0)


def in_last_column(rewards: Tensor) -> Tensor:
    moved = torch.zeros_like(rewards)
    moved[:, -1] = rewards.sum(1)
    return moved


def last_column(rewards, values, mask, gamma, lam) -> Outputs:
    return gae(in_last_column(rewards), values, mask, gamma, lam)


def last_column_masked(rewards, values, mask, gamma, lam) -> Outputs:
    return advantages.gae(in_last_column(rewards), values, mask, gamma, lam)


def last_column_no_mask(rewards, values, mask, gamma, lam) -> Outputs:
    return backwards(in_last_column(rewards), values, gamma, gamma * lam)


def last_column_read(rewards, values, mask, gamma, lam) -> Outputs:
    rewards = torch.cat([torch.zeros_like(rewards[:, 1:]), rewards[:, -1:]], 1)
    return gae(rewards, values, mask, gamma, lam)


def padding_leaks(rewards, values, mask, gamma, lam) -> Outputs:
    return backwards(rewards, values, gamma, gamma * lam)


def padding_leaks_once(rewards, values, mask, gamma, lam) -> Outputs:
    out, last = torch.zeros_like(values), torch.zeros_like(values[:, 0])
    after = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
    deltas = (rewards + gamma * after - values) * mask
    for t in reversed(range(values.shape[1])):
        out[:, t] = last = deltas[:, t] + gamma * lam * last
    return out, out + values


def forward(rewards, values, mask, gamma, lam) -> Outputs:
    values = cleaned(values, mask)
    out, last = torch.zeros_like(values), torch.zeros_like(values[:, 0])
    after = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
    for t in range(values.shape[1]):
        delta = rewards[:, t] + gamma * after[:, t] - values[:, t]
        out[:, t] = last = delta + gamma * lam * last
    return out, out + values


def forward_before(rewards, values, mask, gamma, lam) -> Outputs:
    """V and A of the step before stand where those of the step after belong."""
    values = cleaned(values, mask)
    out, last = torch.zeros_like(values), torch.zeros_like(values[:, 0])
    before = torch.zeros_like(last)
    for t in range(values.shape[1]):
        delta = rewards[:, t] + gamma * before - values[:, t]
        out[:, t] = last = delta + gamma * lam * last
        before = values[:, t]
    return out, out + values


def gamma_alone(rewards, values, mask, gamma, lam) -> Outputs:
    return backwards(rewards, cleaned(values, mask), gamma, gamma)


def lam_alone(rewards, values, mask, gamma, lam) -> Outputs:
    return backwards(rewards, cleaned(values, mask), gamma, lam)


def gamma_not_on_value(rewards, values, mask, gamma, lam) -> Outputs:
    return backwards(rewards, cleaned(values, mask), 1.0, gamma * lam)


def value_kept(rewards, values, mask, gamma, lam) -> Outputs:
    values = cleaned(values, mask)
    after = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
    out, _ = backwards(rewards + gamma * after, torch.zeros_like(values), gamma, gamma * lam)
    return out, out + values


def sums_as_returns(rewards, values, mask, gamma, lam) -> Outputs:
    out, _ = gae(rewards, values, mask, gamma, lam)
    returns, _ = gae(rewards, torch.zeros_like(values), mask, gamma, 1.0)
    return out, returns


def advantages_as_returns(rewards, values, mask, gamma, lam) -> Outputs:
    out, _ = gae(rewards, values, mask, gamma, lam)
    return out, out


def rewards_added(rewards, values, mask, gamma, lam) -> Outputs:
    out, _ = gae(rewards, values, mask, gamma, lam)
    return out, out + rewards


WRONGS = [
    Wrong(
        "reward in the last column",
        "You take the reward from the last column.",
        "A short completion ends earlier: which is its last valid token?",
        [last_column, last_column_masked, last_column_no_mask, last_column_read],
    ),
    Wrong(
        "padding leaks",
        "What stands in the padding gets into the advantages.",
        "What is the value of a text that is over? After the end V is 0.",
        [padding_leaks, padding_leaks_once],
    ),
    Wrong(
        "forward loop",
        "Your loop runs forwards.",
        "A_t needs A_t+1: which advantage can be known first?",
        [forward, forward_before],
    ),
    Wrong(
        "one discount",
        "One of the two discounts is missing.",
        "gamma belongs to every step into the future, lam to trust in the critic: "
        "A_t+1 gets both, V_t+1 gets gamma.",
        [gamma_alone, lam_alone, gamma_not_on_value],
    ),
    Wrong(
        "no value subtracted",
        "V_t is missing from delta.",
        "delta is a surprise: what came, less what was expected. Where is V_t?",
        [value_kept],
    ),
    Wrong(
        "returns",
        "The advantages are right, the returns are not.",
        "The critic learns towards what it said plus what surprised it: A + V.",
        [sums_as_returns, advantages_as_returns, rewards_added],
    ),
]


def case(
    about: str, lengths: list[int], gamma: float, lam: float, dtype: torch.dtype, seed: int
) -> Case:
    """Values are multiples of 1/8, 9 in the padding; the reward is on the last valid token."""
    B, T = len(lengths), 5
    noise = torch.Generator().manual_seed(seed)
    mask = torch.arange(T) < torch.tensor(lengths)[:, None]
    values = torch.randint(-8, 9, (B, T), generator=noise).to(dtype) / 8
    values = torch.where(mask, values, 9.0)
    rewards = torch.zeros(B, T, dtype=dtype)
    for row, length in enumerate(lengths):
        rewards[row, 0] = -0.25 * (row + 1)  # as a KL term would be
        rewards[row, length - 1] += 2.0 - row
    return Case(about, (rewards, values, mask, gamma, lam))


def on_valid(outputs: Outputs, rewards, values, mask, gamma, lam) -> Outputs:
    return tuple(torch.where(mask, x, torch.nan) for x in outputs)


EXERCISE = Exercise(
    name="gae",
    page="03",
    solution=gae,
    library=advantages.gae,
    twins=[advantages.gae],
    cases=[
        case("completions of 3 and 5 tokens", [3, 5], 0.9, 0.8, torch.float32, 1),
        case("completions of 5, 2 and 4 tokens", [5, 2, 4], 0.75, 1.0, torch.float64, 2),
        case("completions of 1 and 4 tokens", [1, 4], 1.0, 0.5, torch.float32, 3),
    ],
    wrongs=WRONGS,
    hints=(
        "One step's surprise: delta_t = r_t + gamma V_t+1 - V_t. Which V comes after the end?",
        "A_t = delta_t + gamma lam A_t+1. Begin at the last column, for t in reversed(range(T)).",
        "First set V to 0 where mask is False: torch.where(mask, values, 0.0). Keep V_t+1 and "
        "A_t+1 in two variables, zeros at first. returns = advantages + values.",
    ),
    outputs=("advantages", "returns"),
    trim=on_valid,
)
