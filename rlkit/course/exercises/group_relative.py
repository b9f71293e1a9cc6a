"""Page 04: the advantage of each completion over its group, in units of the group's spread."""

import torch
from torch import Tensor

from rlkit import advantages
from rlkit.course.exercises.exercise import Case, Exercise, Wrong


def group_relative(rewards, num_generations, eps=1e-4):
    """rewards [B], prompt by prompt -> advantages [B]"""
    groups = rewards.view(-1, num_generations)  # [P, G]
    mean = groups.mean(1, keepdim=True)
    std = groups.std(1, keepdim=True)
    return ((groups - mean) / (std + eps)).flatten()


def library(rewards: Tensor, num_generations: int, eps: float = 1e-4) -> Tensor:
    """rlkit's group_relative with the group's standard deviation."""
    return advantages.group_relative(rewards, num_generations, "group", eps)


# --- wrong answers


def parts(rewards: Tensor, num_generations: int, dim: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Groups, their means and standard deviations."""
    groups = rewards.view(-1, num_generations) if dim else rewards.view(num_generations, -1)
    return groups, groups.mean(dim, keepdim=True), groups.std(dim, keepdim=True)


def divided_by_all(rewards: Tensor, num_generations: int, eps: float) -> Tensor:
    groups, mean, _ = parts(rewards, num_generations)
    return ((groups - mean) / (groups.std(1, keepdim=True, correction=0) + eps)).flatten()


def spread_of_batch(rewards: Tensor, num_generations: int, eps: float) -> Tensor:
    groups, mean, _ = parts(rewards, num_generations)
    return ((groups - mean) / (rewards.std() + eps)).flatten()


def all_of_batch(rewards: Tensor, num_generations: int, eps: float) -> Tensor:
    return (rewards - rewards.mean()) / (rewards.std() + eps)


def mean_left_in(rewards: Tensor, num_generations: int, eps: float) -> Tensor:
    groups, _, std = parts(rewards, num_generations)
    return (groups / (std + eps)).flatten()


def no_eps(rewards: Tensor, num_generations: int, eps: float) -> Tensor:
    groups, mean, std = parts(rewards, num_generations)
    return ((groups - mean) / std).flatten()


def eps_under_root(rewards: Tensor, num_generations: int, eps: float) -> Tensor:
    groups, mean, std = parts(rewards, num_generations)
    return ((groups - mean) / (std.square() + eps).sqrt()).flatten()


def eps_as_floor(rewards: Tensor, num_generations: int, eps: float) -> Tensor:
    groups, mean, std = parts(rewards, num_generations)
    return ((groups - mean) / std.clamp(min=eps)).flatten()


def by_columns(rewards: Tensor, num_generations: int, eps: float) -> Tensor:
    groups, mean, std = parts(rewards, num_generations, 0)
    return ((groups - mean) / (std + eps)).flatten()


def across_prompts(rewards: Tensor, num_generations: int, eps: float) -> Tensor:
    groups = rewards.view(-1, num_generations)
    mean, std = groups.mean(0, keepdim=True), groups.std(0, keepdim=True)
    return ((groups - mean) / (std + eps)).flatten()


def by_variance(rewards: Tensor, num_generations: int, eps: float) -> Tensor:
    groups, mean, std = parts(rewards, num_generations)
    return ((groups - mean) / (std.square() + eps)).flatten()


def by_others(rewards: Tensor, num_generations: int, eps: float) -> Tensor:
    std = parts(rewards, num_generations)[2].expand(-1, num_generations).flatten()
    return advantages.leave_one_out(rewards, num_generations) / (std + eps)


def not_divided(rewards: Tensor, num_generations: int, eps: float) -> Tensor:
    groups, mean, _ = parts(rewards, num_generations)
    return (groups - mean).flatten()


def turned(rewards: Tensor, num_generations: int, eps: float) -> Tensor:
    return -group_relative(rewards, num_generations, eps)


WRONGS = [
    Wrong(
        "divided by G",
        "Your standard deviation divides the squares by G.",
        "The mean is measured on the same G rewards: which number below G is left to divide by?",
        [divided_by_all],
    ),
    Wrong(
        "std over the batch",
        "One standard deviation of the whole batch divides all groups.",
        "A hard prompt has its own spread: std along which dimension of [P, G]?",
        [spread_of_batch],
    ),
    Wrong(
        "whole batch",
        "Mean and spread are those of the whole batch.",
        "Which rewards answer the same prompt as r0?",
        [all_of_batch],
    ),
    Wrong(
        "mean left in",
        "The group's mean is still inside.",
        "If all rewards were 5 higher, should the advantages change?",
        [mean_left_in],
    ),
    Wrong(
        "eps forgotten",
        "eps is missing.",
        "What is 0 / 0, where all rewards of a group are equal?",
        [no_eps],
    ),
    Wrong(
        "eps elsewhere",
        "eps does not stand where it belongs.",
        "It is added to the standard deviation: neither under its root nor as its least value.",
        [eps_under_root, eps_as_floor],
    ),
    Wrong(
        "grouped by columns",
        "You compare completions of different prompts.",
        "The batch goes prompt by prompt: as [P, G], rows are prompts.",
        [by_columns, across_prompts],
    ),
    Wrong(
        "variance",
        "You divide by the variance.",
        "Which of the two has the units of a reward?",
        [by_variance],
    ),
    Wrong(
        "baseline of the others",
        "Your baseline leaves the sample out, as RLOO's does.",
        "GRPO takes the mean of the whole group, the sample included.",
        [by_others],
    ),
    Wrong(
        "not divided",
        "Nothing is divided by the spread.",
        "In which units does GRPO measure the distance from the mean?",
        [not_divided],
    ),
    Wrong(
        "sign",
        "Every sign is turned.",
        "Should an answer better than its group get more than 0, or less?",
        [turned],
    ),
]

UNEVEN = [1.0, 0.0, 0.25, 0.5, 3.0, 2.0, 5.0, 1.5]


def case(rewards: list[float], num_generations: int, eps: float, dtype: torch.dtype) -> Case:
    prompts = len(rewards) // num_generations
    about = f"{prompts} prompts, {num_generations} completions each, eps {eps}"
    return Case(about, (torch.tensor(rewards, dtype=dtype), num_generations, eps))


EXERCISE = Exercise(
    name="group_relative",
    page="04",
    solution=group_relative,
    library=library,
    twins=[advantages.group_relative],
    cases=[
        case(UNEVEN, 4, 1e-4, torch.float32),
        case([0.5, 2.0, 1.0, 4.0, 0.0, 3.0], 2, 0.25, torch.float64),
        case([0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0, 2.0], 3, 1e-4, torch.float64),
    ],
    wrongs=WRONGS,
    hints=(
        "Make a row of each prompt: rewards.view(-1, num_generations).",
        "mean and std go along a row; keepdim=True keeps [P, 1], which fits [P, G].",
        "Reward less the row's mean, over the row's std plus eps, then flatten(). torch's std "
        "divides by G - 1 unless told otherwise.",
    ),
    outputs=("advantages",),
    column="r",
)
