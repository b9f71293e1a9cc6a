"""Page 03: PPO's clipped loss of each token, and its gradient."""

import torch
from torch import Tensor

from rlkit import objectives
from rlkit.course.exercises.exercise import Case, Exercise, Wrong


def clipped_loss(logp, logp_old, advantages, epsilon=0.2):
    """logp, logp_old, advantages [B, T] -> loss of each token [B, T]"""
    ratio = (logp - logp_old).exp()
    near = ratio.clamp(1 - epsilon, 1 + epsilon)
    return -torch.min(ratio * advantages, near * advantages)


def library(logp: Tensor, logp_old: Tensor, advantages: Tensor, epsilon: float = 0.2) -> Tensor:
    """rlkit's clipped surrogate of the ratio exp(logp - logp_old)."""
    return objectives.clipped_surrogate((logp - logp_old).exp(), advantages, epsilon)


# --- wrong answers


def both(logp, logp_old, advantages, epsilon) -> tuple[Tensor, Tensor]:
    ratio = (logp - logp_old).exp()
    return ratio * advantages, ratio.clamp(1 - epsilon, 1 + epsilon) * advantages


def optimist(logp, logp_old, advantages, epsilon) -> Tensor:
    return -torch.max(*both(logp, logp_old, advantages, epsilon))


def clip_alone(logp, logp_old, advantages, epsilon) -> Tensor:
    return -both(logp, logp_old, advantages, epsilon)[1]


def no_clip(logp, logp_old, advantages, epsilon) -> Tensor:
    return -both(logp, logp_old, advantages, epsilon)[0]


def old_over_new(logp, logp_old, advantages, epsilon) -> Tensor:
    return clipped_loss(logp_old, logp, advantages, epsilon)


def maximised(logp, logp_old, advantages, epsilon) -> Tensor:
    return -clipped_loss(logp, logp_old, advantages, epsilon)


def min_of_losses(logp, logp_old, advantages, epsilon) -> Tensor:
    free, near = both(logp, logp_old, advantages, epsilon)
    return torch.min(-free, -near)


def no_exp(logp, logp_old, advantages, epsilon) -> Tensor:
    ratio = logp - logp_old
    near = ratio.clamp(1 - epsilon, 1 + epsilon)
    return -torch.min(ratio * advantages, near * advantages)


def quotient_of_logs(logp, logp_old, advantages, epsilon) -> Tensor:
    ratio = logp / logp_old
    near = ratio.clamp(1 - epsilon, 1 + epsilon)
    return -torch.min(ratio * advantages, near * advantages)


WRONGS = [
    Wrong(
        "max for min",
        "You take the larger of the two gains.",
        "A pessimist takes the smaller gain, which is the larger loss. Is min taken before or "
        "after the minus sign?",
        [optimist, min_of_losses],
    ),
    Wrong(
        "no min",
        "The clipped term alone decides.",
        "ratio 1.5, A = -1: the policy went the wrong way. Should the clip silence that?",
        [clip_alone],
    ),
    Wrong(
        "old over new",
        "Your ratio is the old probability over the new one.",
        "Which of the two should grow when logp grows?",
        [old_over_new],
    ),
    Wrong(
        "sign",
        "Every sign is turned.",
        "Optimisers minimise: what must stand before a gain to make it a loss?",
        [maximised],
    ),
    Wrong(
        "no clip",
        "Nothing is clipped.",
        "What should happen to the gain once the ratio is beyond 1 + epsilon?",
        [no_clip],
    ),
    Wrong(
        "ratio of log-probs",
        "Your ratio is not one of probabilities.",
        "A quotient of probabilities is the exp of which difference?",
        [no_exp, quotient_of_logs],
    ),
]

RATIOS = [[1.5, 0.5, 1.1, 0.7], [1.4, 0.6, 0.95, 2.0]]
ADVANTAGES = [[1.0, 2.0, -1.0, -0.5], [-1.0, -2.0, 0.5, 3.0]]


def case(ratios: list, advantages: list, epsilon: float, dtype: torch.dtype) -> Case:
    ratios = torch.tensor(ratios, dtype=dtype)
    logp_old = torch.linspace(-1.5, -0.75, ratios.numel()).to(dtype).view_as(ratios)
    args = (logp_old + ratios.log(), logp_old, torch.tensor(advantages, dtype=dtype), epsilon)
    return Case(f"{len(ratios)} completions of {ratios.shape[1]} tokens", args)


def shown(logp, logp_old, advantages, epsilon) -> dict[str, Tensor]:
    return {"new / old": (logp - logp_old).exp(), "advantages": advantages}


EXERCISE = Exercise(
    name="clip",
    page="03",
    solution=clipped_loss,
    library=library,
    twins=[objectives.clipped_surrogate],
    cases=[
        case(RATIOS, ADVANTAGES, 0.2, torch.float32),
        case([[1.05, 0.85, 1.3]], [[2.0, -1.5, -0.25]], 0.1, torch.float64),
    ],
    wrongs=WRONGS,
    hints=(
        "The ratio of two probabilities is exp(logp - logp_old).",
        "There are two gains: ratio * A, and the ratio clamped to 1 - epsilon ... 1 + epsilon, "
        "times A.",
        "Take torch.min of the two gains, then turn the sign: a loss is minimised.",
    ),
    outputs=("loss",),
    gradient=0,
    shown=shown,
)
