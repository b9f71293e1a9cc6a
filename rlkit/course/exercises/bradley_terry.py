"""Page 10: the loss of preference pairs, by Bradley and Terry's model."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rlkit import reward_model
from rlkit.course.exercises.exercise import Case, Exercise, Wrong


def preference_loss(chosen, rejected, margin):
    """chosen, rejected, margin [P], a number each pair -> mean loss"""
    gap = chosen - rejected - margin
    return -torch.nn.functional.logsigmoid(gap).mean()


def library(chosen: Tensor, rejected: Tensor, margin: Tensor) -> Tensor:
    """rlkit's, without centring."""
    return reward_model.preference_loss(chosen, rejected, margin)


# --- wrong answers


def turned(chosen, rejected, margin) -> Tensor:
    return preference_loss(rejected, chosen, margin)


def turned_whole(chosen, rejected, margin) -> Tensor:
    return preference_loss(rejected, chosen, -margin)


def no_minus(chosen, rejected, margin) -> Tensor:
    return -preference_loss(chosen, rejected, margin)


def probability(chosen, rejected, margin) -> Tensor:
    return -torch.sigmoid(chosen - rejected - margin).mean()


def other_probability(chosen, rejected, margin) -> Tensor:
    return 1 + probability(chosen, rejected, margin)


def margin_added(chosen, rejected, margin) -> Tensor:
    return preference_loss(chosen, rejected, -margin)


def no_margin(chosen, rejected, margin) -> Tensor:
    return preference_loss(chosen, rejected, torch.zeros_like(margin))


def margin_outside(chosen, rejected, margin) -> Tensor:
    return no_margin(chosen, rejected, margin) + margin.mean()


def over_both(chosen, rejected, margin) -> Tensor:
    return preference_loss(chosen, rejected, margin) / 2


def summed(chosen, rejected, margin) -> Tensor:
    return preference_loss(chosen, rejected, margin) * len(chosen)


def log_of_mean(chosen, rejected, margin) -> Tensor:
    return -torch.sigmoid(chosen - rejected - margin).mean().log()


def log_of_sigmoid(chosen, rejected, margin) -> Tensor:
    return -torch.sigmoid(chosen - rejected - margin).log().mean()


def softplus_by_hand(chosen, rejected, margin) -> Tensor:
    return torch.log(1 + torch.exp(rejected + margin - chosen)).mean()


def each_alone(chosen, rejected, margin) -> Tensor:
    return -(logsigmoid(chosen - margin) + logsigmoid(-rejected)).mean()


WRONGS = [
    Wrong(
        "sign flipped",
        "The two sides have changed places: this teaches that the rejected answer is better.",
        "sigmoid of what is near 1 where the pair is in order?",
        [turned, turned_whole],
    ),
    Wrong(
        "minus", "The sign is turned.", "Optimisers minimise, and a log is negative.", [no_minus]
    ),
    Wrong(
        "no log",
        "This is a probability, not its log.",
        "A pair that is badly out of order: how large is its gradient without the log?",
        [probability, other_probability],
    ),
    Wrong(
        "margin added",
        "The margin has the wrong sign: it forgives.",
        "With a margin of 1, must the gap be larger or smaller for the same loss?",
        [margin_added],
    ),
    Wrong(
        "margin outside",
        "The margin moves no gradient: it is missing inside the sigmoid.",
        "The gap has to exceed the margin. What goes into the sigmoid then?",
        [no_margin, margin_outside],
    ),
    Wrong(
        "both rows",
        "You divide by twice the number of pairs.",
        "There are as many losses as pairs, not as answers.",
        [over_both],
    ),
    Wrong("summed", "This is a sum over pairs, not their mean.", "Divide by P.", [summed]),
    Wrong(
        "log of the mean",
        "The mean is taken before the log.",
        "Each pair is an observation of its own: log first, then the mean.",
        [log_of_mean],
    ),
    Wrong(
        "log of 0",
        "Right on paper, but a pair far out of order gives inf, or no gradient.",
        "sigmoid(-200) is 0 in float32, and exp(200) is inf. torch.nn.functional.logsigmoid takes "
        "both steps in one.",
        [log_of_sigmoid, softplus_by_hand],
    ),
    Wrong(
        "each alone",
        "Each answer is judged by itself.",
        "Add 10 to all scores: the loss of a *pair* must not move. What does it depend on?",
        [each_alone],
    ),
]


def case(about: str, chosen: list, rejected: list, margin: list, dtype: torch.dtype) -> Case:
    return Case(about, tuple(torch.tensor(x, dtype=dtype) for x in (chosen, rejected, margin)))


EXERCISE = Exercise(
    name="bradley_terry",
    page="10",
    solution=preference_loss,
    library=library,
    twins=[reward_model.preference_loss],
    cases=[
        case(
            "three pairs, no margin", [2.0, 0.5, -1.0], [0.5, 1.25, -1.0], [0.0] * 3, torch.float64
        ),
        case("margins", [1.0, -0.25], [0.0, 0.5], [0.5, 1.5], torch.float64),
        case(
            "a pair far out of order",
            [1.0, -100.0, 0.3],
            [0.5, 100.0, 0.1],
            [0, 0, 0.25],
            torch.float32,
        ),  # fmt: skip
    ],
    wrongs=WRONGS,
    hints=(
        "The chance that the chosen one wins is sigmoid(chosen - rejected - margin).",
        "The loss of a pair is minus the log of that chance; return the mean over pairs.",
        "-torch.nn.functional.logsigmoid(gap).mean(): log and sigmoid in one, so that nothing "
        "overflows.",
    ),
    outputs=("loss",),
    gradient=0,
    column="pair",
)
