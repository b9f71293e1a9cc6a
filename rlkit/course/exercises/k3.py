"""Page 05: the k3 estimate of the KL divergence, exact where the policies are near."""

import torch
from torch import Tensor

from rlkit import objectives
from rlkit.course.exercises.exercise import Case, Exercise, Wrong


def k3(logp, logp_ref, mask):
    """logp, logp_ref, mask [B, T] -> estimate of each token [B, T]"""
    x = logp - logp_ref
    return torch.where(mask, torch.expm1(-x) + x, 0.0)


def library(logp: Tensor, logp_ref: Tensor, mask: Tensor) -> Tensor:
    """rlkit's k3, 0 where mask is."""
    return torch.where(mask, objectives.kl_divergence(logp, logp_ref, "k3"), 0.0)


# --- wrong answers


def reversed_(logp, logp_ref, mask) -> Tensor:
    return k3(logp_ref, logp, mask)


def no_minus_one(logp, logp_ref, mask) -> Tensor:
    x = logp - logp_ref
    return torch.where(mask, torch.exp(-x) + x, 0.0)


def no_expm1(logp, logp_ref, mask) -> Tensor:
    x = logp - logp_ref
    return torch.where(mask, torch.exp(-x) - 1 + x, 0.0)


def padding_counts(logp, logp_ref, mask) -> Tensor:
    x = logp - logp_ref
    return torch.expm1(-x) + x


def padding_times_zero(logp, logp_ref, mask) -> Tensor:
    x = logp - logp_ref
    return (torch.expm1(-x) + x) * mask


def x_alone(logp, logp_ref, mask) -> Tensor:
    return torch.where(mask, logp - logp_ref, 0.0)


def half_square(logp, logp_ref, mask) -> Tensor:
    return torch.where(mask, 0.5 * (logp - logp_ref).square(), 0.0)


def no_x(logp, logp_ref, mask) -> Tensor:
    return torch.where(mask, torch.expm1(logp_ref - logp), 0.0)


def x_with_other_sign(logp, logp_ref, mask) -> Tensor:
    x = logp - logp_ref
    return torch.where(mask, torch.expm1(-x) - x, 0.0)


def turned(logp, logp_ref, mask) -> Tensor:
    return -k3(logp, logp_ref, mask)


WRONGS = [
    Wrong(
        "reversed",
        "logp and logp_ref have changed places.",
        "This is never negative either. Which of the two drew the tokens? Compare x = 0.7 "
        "with x = -0.7.",
        [reversed_],
    ),
    Wrong(
        "no -1",
        "The -1 is missing.",
        "What should the estimate be where both policies agree, x = 0?",
        [no_minus_one],
    ),
    Wrong(
        "expm1",
        "Right on paper, but float32 loses it: exp(-x) is rounded near 1 before 1 is taken off.",
        "torch.expm1(y) is exp(y) - 1 without that rounding.",
        [no_expm1],
    ),
    Wrong(
        "padding",
        "The padding is not 0.",
        "It may hold anything, inf too, and 0 * inf is NaN: choose, with torch.where.",
        [padding_times_zero, padding_counts],
    ),
    Wrong(
        "k1",
        "This is k1, the log-ratio alone.",
        "It is right on average but of either sign. What does k3 add to it?",
        [x_alone],
    ),
    Wrong("k2", "This is k2, half a square.", "k3 is e^-x - 1 + x.", [half_square]),
    Wrong(
        "x",
        "One of the three terms is wrong: x itself.",
        "e^-x - 1 is about -x for a small x. What must be added so that little is left?",
        [no_x, x_with_other_sign],
    ),
    Wrong("sign", "Every sign is turned.", "Can a divergence be negative?", [turned]),
]


def case(about: str, x: list, mask: list, dtype: torch.dtype, atol=None, padding=5.0) -> Case:
    """logp_ref = logp - x; in the padding logp is `padding`."""
    x, mask = torch.tensor(x, dtype=dtype), torch.tensor(mask, dtype=torch.bool)
    logp = torch.linspace(-0.5, -1.25, x.numel()).to(dtype).view_as(x)
    return Case(about, (torch.where(mask, logp, padding), logp - x, mask), atol)


def shown(logp, logp_ref, mask) -> dict[str, Tensor]:
    return {"x": logp - logp_ref, "mask": mask}


SHORT = [[1, 1, 1, 1], [1, 1, 0, 0]]

EXERCISE = Exercise(
    name="k3",
    page="05",
    solution=k3,
    library=library,
    twins=[objectives.kl_divergence, objectives.k3],
    cases=[
        case("float64", [[0.7, -0.7, 0.2, -1.5], [1.0, 0.0, 0.3, 0.3]], SHORT, torch.float64),
        case(
            "inf in the padding", [[0.7, -0.7, 0.25]], [[1, 1, 0]], torch.float32, None, torch.inf
        ),
        case(
            "float32, policies that are near",
            [[1e-4, -1e-4, 3e-4]],
            [[1, 1, 1]],
            torch.float32,
            5e-11,
        ),
    ],
    wrongs=WRONGS,
    hints=(
        "With x = logp - logp_ref, the estimate of a token is e^-x - 1 + x.",
        "For x near 0 the terms nearly cancel: let torch.expm1 do the e^-x - 1.",
        "torch.where(mask, estimate, 0.0) keeps whatever is in the padding out.",
    ),
    outputs=("kl",),
    shown=shown,
)
