"""Page 10: a reward model's number for a text, whatever the padding side."""

import torch
from torch import Tensor

from rlkit import reward_model
from rlkit.course.exercises.exercise import Case, Exercise, Wrong


def last_score(scores, mask):
    """scores [B, S], mask [B, S] (True: a token, False: padding)
    -> score of each row's last token [B]"""
    places = torch.arange(mask.shape[1])
    last = torch.where(mask, places, -1).max(1).values
    return scores[torch.arange(len(scores)), last]


def library(scores: Tensor, mask: Tensor) -> Tensor:
    """Read where rlkit reads it."""
    return scores[torch.arange(len(scores)), reward_model.last_valid(mask)]


# --- wrong answers


def last_column(scores, mask) -> Tensor:
    return scores[:, -1]


def counted(scores, mask) -> Tensor:
    return scores[torch.arange(len(scores)), mask.sum(1) - 1]


def counted_too_far(scores, mask) -> Tensor:
    return scores[torch.arange(len(scores)), mask.sum(1).clamp(max=mask.shape[1] - 1)]


def first_token(scores, mask) -> Tensor:
    return scores[torch.arange(len(scores)), mask.long().argmax(1)]


def before_last(scores, mask) -> Tensor:
    last = reward_model.last_valid(mask)
    return scores[torch.arange(len(scores)), last - 1]


def before_padding(scores, mask) -> Tensor:
    """The place before the first padding; without padding that is the last column."""
    return scores[torch.arange(len(scores)), mask.long().argmin(1) - 1]


def mean(scores, mask) -> Tensor:
    return torch.where(mask, scores, 0.0).sum(1) / mask.sum(1)


def total(scores, mask) -> Tensor:
    return torch.where(mask, scores, 0.0).sum(1)


def largest(scores, mask) -> Tensor:
    return torch.where(mask, scores, -torch.inf).max(1).values


WRONGS = [
    Wrong(
        "last column",
        "This is the last column.",
        "With padding on the right that column holds padding. What does the mask say?",
        [last_column],
    ),
    Wrong(
        "right padding only",
        "This counts tokens, which finds the last one only where padding is on the right.",
        "Prompts are padded on the left. Which is the largest place where the mask is True?",
        [counted, counted_too_far, before_padding],
    ),
    Wrong(
        "first token",
        "This is the first token of each row.",
        "argmax finds the first True; turn the mask round, or look for the largest place.",
        [first_token],
    ),
    Wrong(
        "one early",
        "This is the token before the last.",
        "The EOS is a token too: only there the model has seen that the answer is over.",
        [before_last],
    ),
    Wrong(
        "mean",
        "You combine the scores of all tokens.",
        "Only the last token has seen the whole text. Read the score there alone.",
        [mean, total, largest],
    ),
]


def case(about: str, scores: list, mask: list, dtype: torch.dtype = torch.float32) -> Case:
    return Case(about, (torch.tensor(scores, dtype=dtype), torch.tensor(mask, dtype=torch.bool)))


EXERCISE = Exercise(
    name="last_score",
    page="10",
    solution=last_score,
    library=library,
    twins=[reward_model.last_valid],
    cases=[
        case(
            "padding on the right",
            [[0.5, 2.0, -1.0, 7.0], [1.0, 0.25, 8.0, 9.0], [0.1, 0.2, 0.4, -0.3]],
            [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]],
        ),
        case(
            "padding on the left",
            [[7.0, 0.5, 2.0, -1.0], [8.0, 9.0, 1.0, 0.25]],
            [[0, 1, 1, 1], [0, 0, 1, 1]],
            torch.float64,
        ),
        case(
            "padding on both sides, as a prompt with its answer has it",
            [[float("nan"), 3.0, 0.5, 1.5, float("inf")], [0.0, 2.0, -0.5, 6.0, 5.0]],
            [[0, 1, 1, 1, 0], [1, 1, 1, 0, 0]],
        ),
    ],
    wrongs=WRONGS,
    hints=(
        "places = torch.arange(mask.shape[1]) numbers the columns.",
        "torch.where(mask, places, -1) keeps the places of tokens; its maximum over a row is the "
        "last of them.",
        "scores[torch.arange(len(scores)), last] takes one number of each row.",
    ),
    outputs=("score",),
    column="s",
)
