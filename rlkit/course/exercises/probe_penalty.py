"""Page 06: a probe for penalties that pull the wrong way."""

from collections.abc import Callable

import torch
from torch import Tensor

from rlkit.course import probes, suspects
from rlkit.course.exercises.exercise import Case, Exercise, Wrong


def probe_penalty(penalty):
    """Is penalty(logp, logp_ref) [N] 0 where they agree, else above 0?"""
    x = torch.tensor([-0.7, 0.0, 0.7])
    found = penalty(x, torch.zeros(3))
    return bool(found[1] == 0 and found[0] > 0 and found[2] > 0)


# --- what is to be probed


def by_exp(logp: Tensor, logp_ref: Tensor) -> Tensor:
    x = logp_ref - logp
    return x.exp() - 1 - x


def squared(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """k2: another penalty that is as it should be."""
    return (logp - logp_ref) ** 2 / 2


def difference(logp: Tensor, logp_ref: Tensor) -> Tensor:
    return logp - logp_ref


def without_one(logp: Tensor, logp_ref: Tensor) -> Tensor:
    x = logp_ref - logp
    return x.exp() - x


def upper_side(logp: Tensor, logp_ref: Tensor) -> Tensor:
    return (logp - logp_ref).clamp(min=0) ** 2


def lower_side(logp: Tensor, logp_ref: Tensor) -> Tensor:
    return (logp - logp_ref).clamp(max=0) ** 2


# --- wrong answers: probes that let something through


def always(penalty: Callable) -> bool:
    return True


def never(penalty: Callable) -> bool:
    return False


def turned(penalty: Callable) -> bool:
    return not probe_penalty(penalty)


def equal_models(penalty: Callable) -> bool:
    """Where both models agree, plus and minus agree too."""
    x = torch.tensor([-0.7, -0.2])
    return bool((penalty(x, x) == 0).all())


def above(penalty: Callable) -> bool:
    found = penalty(torch.tensor([0.0, 0.7]), torch.zeros(2))
    return bool(found[0] == 0 and found[1] > 0)


def below(penalty: Callable) -> bool:
    found = penalty(torch.tensor([0.0, -0.7]), torch.zeros(2))
    return bool(found[0] == 0 and found[1] > 0)


def no_zero(penalty: Callable) -> bool:
    found = penalty(torch.tensor([-0.7, 0.7]), torch.zeros(2))
    return bool((found > 0).all())


WRONGS = [
    Wrong(
        "always content",
        "Your probe is content with everything.",
        "Which input makes the two signs differ?",
        [always],
    ),
    Wrong(
        "never content",
        "Your probe is content with nothing, not even with k3 itself.",
        "What does a right penalty give for your input? Work it out by hand.",
        [never],
    ),
    Wrong(
        "turned",
        "Your probe says True where something is wrong.",
        "True is to mean: this penalty is as it should be.",
        [turned],
    ),
    Wrong(
        "equal models",
        "Your probe only looks where both models agree; there minus 0 is 0.",
        "Let the two models differ, on both sides.",
        [equal_models],
    ),
    Wrong(
        "one side",
        "Your probe looks on one side only.",
        "Try a token that the reference likes more, and one that it likes less.",
        [above, below],
    ),
    Wrong(
        "no zero",
        "Your probe never looks where both models agree.",
        "What should a penalty be at distance 0?",
        [no_zero],
    ),
]

EXERCISE = Exercise(
    name="probe_penalty",
    page="06",
    solution=probe_penalty,
    library=probes.probe_penalty,
    twins=[probes.probe_penalty],
    cases=[
        Case("k3, as it should be", (suspects.penalty,)),
        Case("k3 with its sign turned", (suspects.penalty_turned,)),
        Case("k3 by exp - 1", (by_exp,)),
        Case("half the square, k2: as it should be", (squared,)),
        Case("the plain difference, k1: below 0 on one side", (difference,)),
        Case("the -1 forgotten: not 0 where both agree", (without_one,)),
        Case("nothing at all on one side", (upper_side,)),
        Case("nothing at all on the other side", (lower_side,)),
    ],
    wrongs=WRONGS,
    hints=(
        "Three tokens: one that both models like alike, one on either side.",
        "logp = -0.7, 0 and 0.7, with logp_ref = 0.",
        "The middle one must give exactly 0, the outer ones more than 0.",
    ),
    outputs=("the probe's answer",),
    plain=True,
)
