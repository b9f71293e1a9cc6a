"""Page 02: the advantage of each completion over the mean of its siblings (RLOO)."""

import torch
from torch import Tensor

from rlkit import advantages
from rlkit.course.exercises.exercise import Case, Exercise, Wrong


def leave_one_out(rewards, num_generations):
    """rewards [B], prompt by prompt -> advantages [B]"""
    groups = rewards.view(-1, num_generations)  # [P, G]
    others = groups.sum(1, keepdim=True) - groups
    return (groups - others / (num_generations - 1)).flatten()


# --- wrong answers


def own_inside(rewards: Tensor, num_generations: int) -> Tensor:
    groups = rewards.view(-1, num_generations)
    return (groups - groups.mean(1, keepdim=True)).flatten()


def divided_by_all(rewards: Tensor, num_generations: int) -> Tensor:
    groups = rewards.view(-1, num_generations)
    return (groups - (groups.sum(1, keepdim=True) - groups) / num_generations).flatten()


def by_columns(rewards: Tensor, num_generations: int) -> Tensor:
    groups = rewards.view(num_generations, -1)
    return (groups - (groups.sum(0) - groups) / (num_generations - 1)).flatten()


def across_prompts(rewards: Tensor, num_generations: int) -> Tensor:
    groups = rewards.view(-1, num_generations)
    return (groups - (groups.sum(0) - groups) / (len(groups) - 1)).flatten()


def across_prompts_by_siblings(rewards: Tensor, num_generations: int) -> Tensor:
    groups = rewards.view(-1, num_generations)
    return (groups - (groups.sum(0) - groups) / (num_generations - 1)).flatten()


def whole_batch(rewards: Tensor, num_generations: int) -> Tensor:
    return rewards - (rewards.sum() - rewards) / (len(rewards) - 1)


def baseline(rewards: Tensor, num_generations: int) -> Tensor:
    groups = rewards.view(-1, num_generations)
    return ((groups.sum(1, keepdim=True) - groups) / (num_generations - 1)).flatten()


def turned(rewards: Tensor, num_generations: int) -> Tensor:
    return -leave_one_out(rewards, num_generations)


def in_spreads(rewards: Tensor, num_generations: int) -> Tensor:
    return advantages.group_relative(rewards, num_generations)


def baseline_moves(function) -> bool:
    """Raise r0 by 1: does its baseline, reward less advantage, take a part of that?"""
    before = torch.tensor([1.0, 0.0, 0.25, 0.5, 3.0, 2.0, 5.0, 1.5])
    after = before + torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0])
    was, now = (float(r[0] - function(r.clone(), 4)[0]) for r in (before, after))
    return 0.01 < now - was < 0.99


WRONGS = [
    Wrong(
        "own reward inside",
        "Your baseline contains the sample's own reward.",
        "Change r0: the baseline of r0 must not move.",
        [own_inside],
        baseline_moves,
    ),
    Wrong(
        "divided by G",
        "The sum of the others is divided by G.",
        "How many others are there?",
        [divided_by_all],
    ),
    Wrong(
        "grouped by columns",
        "You compare completions of different prompts.",
        "The batch goes prompt by prompt: as [P, G], rows are prompts.",
        [by_columns, across_prompts, across_prompts_by_siblings],
    ),
    Wrong(
        "whole batch",
        "Your baseline is a mean over the whole batch.",
        "Which rewards answer the same prompt as r0?",
        [whole_batch],
    ),
    Wrong(
        "baseline returned",
        "This is the baseline itself.",
        "An advantage is what a reward has beyond it: subtract it.",
        [baseline],
    ),
    Wrong(
        "sign",
        "Every sign is turned.",
        "Should an answer better than its siblings get more than 0, or less?",
        [turned],
    ),
    Wrong(
        "divided by the spread",
        "Your advantages are in units of the group's spread: that is GRPO.",
        "RLOO keeps the units of the reward: leave out the division.",
        [in_spreads],
    ),
]

UNEVEN = [1.0, 0.0, 0.25, 0.5, 3.0, 2.0, 5.0, 1.5]


def case(rewards: list[float], num_generations: int, dtype: torch.dtype) -> Case:
    prompts = len(rewards) // num_generations
    about = f"{prompts} prompt{'s'[: prompts > 1]}, {num_generations} completions each"
    return Case(about, (torch.tensor(rewards, dtype=dtype), num_generations))


EXERCISE = Exercise(
    name="leave_one_out",
    page="02",
    solution=leave_one_out,
    library=advantages.leave_one_out,
    twins=[advantages.leave_one_out],
    cases=[
        case(UNEVEN, 4, torch.float32),
        case([0.5, 2.0, 1.0, 4.0, 0.0, 3.0], 2, torch.float64),
        case([2.0, 0.0, 7.0], 3, torch.float32),
        case([0.0, 0.0, 1.0, 0.0, 0.5, 1.0], 3, torch.float64),
    ],
    wrongs=WRONGS,
    hints=(
        "Make a row of each prompt: rewards.view(-1, num_generations).",
        "The others of a sample sum to the row's sum less the sample's own reward.",
        "There are num_generations - 1 others. Reward less their mean, then flatten().",
    ),
    outputs=("advantages",),
    column="r",
)
