"""Page 03: PPO's reward of each token, a price for leaving the reference and the answer's own."""

import torch
from torch import Tensor

from rlkit import advantages
from rlkit.course.exercises.exercise import Case, Exercise, Outputs, Wrong


def token_rewards(rewards, kl, mask, beta):
    """rewards [B], kl and mask [B, T] -> [B, T]"""
    out = torch.where(mask, -beta * kl, 0.0)
    last = mask.sum(1) - 1  # the last valid token
    out[torch.arange(len(out)), last] += rewards
    return out


# --- wrong answers


def price(kl: Tensor, mask: Tensor, beta: float) -> Tensor:
    return torch.where(mask, -beta * kl, 0.0)


def placed(rewards: Tensor, mask: Tensor) -> Tensor:
    """The rewards on the last valid tokens, [B, T]."""
    out = torch.zeros(mask.shape, dtype=rewards.dtype)
    out[torch.arange(len(out)), mask.sum(1) - 1] = rewards
    return out


def in_last_column(rewards, kl, mask, beta) -> Tensor:
    out = price(kl, mask, beta)
    out[:, -1] += rewards
    return out


def one_too_far(rewards, kl, mask, beta) -> Tensor:
    out = price(kl, mask, beta)
    at = mask.sum(1).clamp(max=mask.shape[1] - 1)
    out[torch.arange(len(out)), at] += rewards
    return out


def on_every_token(rewards, kl, mask, beta) -> Tensor:
    return price(kl, mask, beta) + rewards[:, None] * mask


def in_padding_too(rewards, kl, mask, beta) -> Tensor:
    return price(kl, mask, beta) + rewards[:, None]


def on_the_first(rewards, kl, mask, beta) -> Tensor:
    out = price(kl, mask, beta)
    out[:, 0] += rewards
    return out


def padding_is_charged(rewards, kl, mask, beta) -> Tensor:
    return placed(rewards, mask) - beta * kl


def paid_for_leaving(rewards, kl, mask, beta) -> Tensor:
    return placed(rewards, mask) - price(kl, mask, beta)


def price_replaced(rewards, kl, mask, beta) -> Tensor:
    reward = placed(rewards, mask)
    at_the_end = torch.zeros_like(mask)
    at_the_end[torch.arange(len(mask)), mask.sum(1) - 1] = True
    return torch.where(at_the_end, reward, price(kl, mask, beta))


def price_at_the_end(rewards, kl, mask, beta) -> Tensor:
    return placed(rewards + price(kl, mask, beta).sum(1), mask)


def no_beta(rewards, kl, mask, beta) -> Tensor:
    return placed(rewards, mask) + price(kl, mask, 1.0)


WRONGS = [
    Wrong(
        "reward in the wrong place",
        "The answer's reward is not on its last token.",
        "A short answer ends earlier than the batch is wide: which is its last valid token?",
        [in_last_column, one_too_far, on_the_first],
    ),
    Wrong(
        "reward on every token",
        "Every token gets the whole reward.",
        "It is paid once, when the answer is done: GAE carries it to the tokens before.",
        [on_every_token, in_padding_too],
    ),
    Wrong(
        "padding is charged",
        "What stands after the end pays for its KL.",
        "Nobody chose the padding: where the mask is off the reward is 0.",
        [padding_is_charged],
    ),
    Wrong(
        "sign",
        "Leaving the reference is rewarded.",
        "A token that became likelier than for the reference has kl > 0: should it gain by that?",
        [paid_for_leaving],
    ),
    Wrong(
        "price of the last token lost",
        "On the last token the reward stands instead of the price.",
        "That token has left the reference too: add the reward to what is there.",
        [price_replaced],
    ),
    Wrong(
        "all of the price at the end",
        "The whole answer's price is charged at its end: that is RLOO's way.",
        "Here each token pays for itself: the price of token t stands at place t.",
        [price_at_the_end],
    ),
    Wrong(
        "beta",
        "beta is missing.",
        "How much of the reward is one nat of KL worth?",
        [no_beta],
    ),
]


def case(about: str, lengths: list[int], beta: float, dtype: torch.dtype, seed: int) -> Case:
    """KL in eighths of both signs, 9 in the padding."""
    B, T = len(lengths), 4
    noise = torch.Generator().manual_seed(seed)
    mask = torch.arange(T) < torch.tensor(lengths)[:, None]
    kl = (torch.randint(1, 9, (B, T), generator=noise) / 8).to(dtype)
    kl[:, 0] *= -1
    rewards = torch.tensor([1.0, 0.5, 2.0][:B], dtype=dtype)
    return Case(about, (rewards, torch.where(mask, kl, 9.0), mask, beta))


def shown(rewards, kl, mask, beta) -> dict[str, Tensor]:
    return {"kl": kl, "mask": mask}


def in_the_library(rewards: Tensor, kl: Tensor, mask: Tensor, beta: float) -> Outputs:
    """rlkit's, which also knows a penalty for answers without an end."""
    return advantages.token_rewards(rewards, kl, mask, beta)


EXERCISE = Exercise(
    name="token_rewards",
    page="03",
    solution=token_rewards,
    library=in_the_library,
    twins=[advantages.token_rewards],
    cases=[
        case("answers of 2 and 4 tokens", [2, 4], 0.5, torch.float32, 1),
        case("answers of 3, 1 and 4 tokens", [3, 1, 4], 0.25, torch.float64, 2),
    ],
    wrongs=WRONGS,
    hints=(
        "Begin with the price: -beta * kl, and 0 where the mask is off.",
        "mask.sum(1) - 1 is the place of each answer's last token.",
        "out[torch.arange(len(out)), last] += rewards adds one number to each row.",
    ),
    outputs=("rewards",),
    shown=shown,
)
