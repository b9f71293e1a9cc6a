"""Page 02: RLOO's loss, where a whole completion is one action."""

import torch
from torch import Tensor

from rlkit.course.exercises.exercise import Exercise, Wrong
from rlkit.course.exercises.reinforce import CASES


def rloo_loss(logp, advantages, mask):
    """logp [B, T], advantages [B], mask [B, T] -> a number to minimise"""
    return -(advantages * torch.where(mask, logp, 0.0).sum(1)).mean()


# --- wrong answers


def upwards(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return -rloo_loss(logp, advantages, mask)


def with_padding(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return -(advantages * logp.sum(1)).mean()


def per_token(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return -(advantages[:, None] * logp * mask).sum() / mask.sum()


def mean_of_means(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return -(advantages * (logp * mask).sum(1) / mask.sum(1)).mean()


def over_width(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return -(advantages * (logp * mask).mean(1)).mean()


def summed(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return -(advantages * (logp * mask).sum(1)).sum()


def unweighed(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return -(advantages.mean() * (logp * mask).sum(1)).mean()


def last_token(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    last = (mask.sum(1, keepdim=True) - 1).clamp(min=0)
    return -(advantages * logp.gather(1, last).squeeze(1)).mean()


WRONGS = [
    Wrong(
        "sign",
        "Your loss falls where good answers become rarer.",
        "Optimisers go down: which sign makes an answer with A > 0 likelier?",
        [upwards],
    ),
    Wrong(
        "padding counts",
        "What stands after an answer's end is part of its log-prob.",
        "Which tokens did the model choose? The mask knows.",
        [with_padding],
    ),
    Wrong(
        "per token",
        "Your loss counts tokens, as page 01's did.",
        "How many actions are in the batch? By that many the sum is divided.",
        [per_token],
    ),
    Wrong(
        "mean over an answer's tokens",
        "You take the mean of an answer's log-probs.",
        "The log-prob of a text is the sum over its tokens: what would dividing by the length do "
        "to the blame of a long wrong answer?",
        [mean_of_means, over_width],
    ),
    Wrong(
        "not divided",
        "This is the sum over all answers.",
        "A batch of twice the size should not make a step of twice the length: take the mean.",
        [summed],
    ),
    Wrong(
        "one advantage for all",
        "Every answer has the same advantage.",
        "advantages[i] belongs to row i: multiply before the mean, not after.",
        [unweighed],
    ),
    Wrong(
        "last token alone",
        "Only the last token of each answer is in your loss.",
        "The whole answer is the action: sum over all its tokens.",
        [last_token],
    ),
]


EXERCISE = Exercise(
    name="sequence_loss",
    page="02",
    solution=rloo_loss,
    library=rloo_loss,
    cases=CASES,
    wrongs=WRONGS,
    hints=(
        "First one number for each answer: (logp * mask).sum(1) is [B].",
        "Times the advantages, which are [B] too.",
        "The mean over answers, and a minus before it.",
    ),
    outputs=("loss",),
    gradient=0,
)
