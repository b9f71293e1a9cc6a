"""Page 01: REINFORCE's loss, minus the weighted log-probs over the tokens that count."""

import torch
from torch import Tensor

from rlkit.course.exercises.exercise import Case, Exercise, Wrong


def reinforce(logp, weights, mask):
    """logp [B, T], weights [B], mask [B, T] -> a number to minimise"""
    counted = torch.where(mask, weights[:, None] * logp, 0.0)
    return -counted.sum() / mask.sum()


# --- wrong answers


def upwards(logp: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    return -reinforce(logp, weights, mask)


def with_padding(logp: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    return -(weights[:, None] * logp).sum() / mask.sum()


def mean_of_all(logp: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    return -(weights[:, None] * logp).mean()


def over_all_places(logp: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    return -(weights[:, None] * logp * mask).mean()


def summed(logp: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    return -(weights[:, None] * logp * mask).sum()


def by_answers(logp: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    return -(weights * (logp * mask).sum(1)).mean()


def mean_of_means(logp: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    return -(weights * (logp * mask).sum(1) / mask.sum(1)).mean()


def probabilities(logp: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    return -(weights[:, None] * logp.exp() * mask).sum() / mask.sum()


def all_paid_alike(logp: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    return -(weights.sum() * logp * mask).sum() / mask.sum()


WRONGS = [
    Wrong(
        "sign",
        "Your loss falls where good answers become rarer.",
        "Optimisers go down: which sign makes a paid answer likelier?",
        [upwards],
    ),
    Wrong(
        "padding counts",
        "What stands after an answer's end is counted.",
        "Where the mask is off nothing was chosen: what has it to do in the sum?",
        [with_padding, mean_of_all],
    ),
    Wrong(
        "divided by all places",
        "The sum is divided by all places of the batch, padding and all.",
        "How many tokens count? The mask knows.",
        [over_all_places],
    ),
    Wrong(
        "not divided",
        "This is the sum over all tokens.",
        "A batch of twice the size should not make a step of twice the length: divide it.",
        [summed],
    ),
    Wrong(
        "per answer",
        "Your loss is a mean over answers.",
        "Here every token weighs the same, whichever answer it stands in (page 02 does it your "
        "way): by what do you divide then?",
        [by_answers, mean_of_means],
    ),
    Wrong(
        "probabilities",
        "You weigh probabilities, not log-probs.",
        "The gradient of p is p times that of log p: rare answers would hardly move.",
        [probabilities],
    ),
    Wrong(
        "one weight for all",
        "Every answer has the same weight.",
        "weights[i] belongs to row i: as [B, 1] it goes along the row.",
        [all_paid_alike],
    ),
]


def case(about: str, logp: list, weights: list, lengths: list, dtype: torch.dtype) -> Case:
    rows = torch.tensor(logp, dtype=dtype)
    mask = torch.arange(rows.shape[1]) < torch.tensor(lengths)[:, None]
    return Case(about, (rows, torch.tensor(weights, dtype=dtype), mask))


CASES = [
    case(
        "answers of 2 and 3 tokens",
        [[-0.5, -1.25, -4.0], [-0.25, -2.0, -0.75]],
        [1.0, -0.5],
        [2, 3],
        torch.float32,
    ),
    case(
        "answers of 1, 4 and 2 tokens",
        [[-0.5, -9.0, -9.0, -3.0], [-1.0, -0.5, -0.25, -2.0], [-1.5, -0.75, -5.0, -7.0]],
        [2.0, 1.0, -1.0],
        [1, 4, 2],
        torch.float64,
    ),
]
"""Of a loss of log-probs [B, T] with a number for each answer; page 02's has the same."""

EXERCISE = Exercise(
    name="reinforce",
    page="01",
    solution=reinforce,
    library=reinforce,
    cases=CASES,
    wrongs=WRONGS,
    hints=(
        "A row's weight counts for each of its tokens: weights[:, None] * logp is [B, T].",
        "Times the mask, summed over everything, and a minus before it.",
        "Divide by mask.sum(), the number of tokens that count.",
    ),
    outputs=("loss",),
    gradient=0,
)
