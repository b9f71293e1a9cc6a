"""Page 04: which share of the groups is dead."""

import torch
from torch import Tensor

from rlkit.course.exercises.exercise import Case, Exercise, Wrong


def dead_share(rewards, num_generations):
    """rewards [B], prompt by prompt -> the share of dead groups"""
    groups = rewards.view(-1, num_generations)  # [P, G]
    return (groups == groups[:, :1]).all(1).float().mean()


# --- wrong answers


def all_wrong(rewards: Tensor, num_generations: int) -> Tensor:
    return (rewards.view(-1, num_generations) == 0).all(1).float().mean()


def all_right(rewards: Tensor, num_generations: int) -> Tensor:
    return (rewards.view(-1, num_generations) == 1).all(1).float().mean()


def all_wrong_or_right(rewards: Tensor, num_generations: int) -> Tensor:
    return all_wrong(rewards, num_generations) + all_right(rewards, num_generations)


def by_columns(rewards: Tensor, num_generations: int) -> Tensor:
    return dead_share(rewards.view(num_generations, -1).T.flatten(), num_generations)


def living(rewards: Tensor, num_generations: int) -> Tensor:
    return 1 - dead_share(rewards, num_generations)


def counted(rewards: Tensor, num_generations: int) -> Tensor:
    return dead_share(rewards, num_generations) * (len(rewards) // num_generations)


def answers_counted(rewards: Tensor, num_generations: int) -> Tensor:
    return dead_share(rewards, num_generations) * len(rewards)


def answers_at_the_mean(rewards: Tensor, num_generations: int) -> Tensor:
    groups = rewards.view(-1, num_generations)
    return (groups == groups.mean(1, keepdim=True)).float().mean()


WRONGS = [
    Wrong(
        "only failures",
        "You count the groups in which every answer is wrong.",
        "Does a group of right answers alone teach anything?",
        [all_wrong],
    ),
    Wrong(
        "only successes",
        "You count the groups in which every answer is right.",
        "Does a group of wrong answers alone teach anything?",
        [all_right],
    ),
    Wrong(
        "only 0 and 1",
        "You count groups of zeros and groups of ones.",
        "Rewards may be halves. When is no answer better than another?",
        [all_wrong_or_right],
    ),
    Wrong(
        "grouped by columns",
        "You compare completions of different prompts.",
        "The batch goes prompt by prompt: as [P, G], rows are prompts.",
        [by_columns],
    ),
    Wrong(
        "living",
        "This is the share of groups that do teach.",
        "The dead ones are those without any difference.",
        [living],
    ),
    Wrong(
        "a number, no share",
        "You return a number, not a share.",
        "Of how many groups? Take the mean.",
        [counted, answers_counted],
    ),
    Wrong(
        "answers at the mean",
        "You count single answers that equal their group's mean.",
        "A group is dead if all of its answers are alike.",
        [answers_at_the_mean],
    ),
]


def case(about: str, rewards: list[float], num_generations: int, dtype: torch.dtype) -> Case:
    return Case(about, (torch.tensor(rewards, dtype=dtype), num_generations))


EXERCISE = Exercise(
    name="dead_share",
    page="04",
    solution=dead_share,
    library=dead_share,
    cases=[
        case(
            "6 prompts, 3 completions each",
            [1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1],
            3,
            torch.float32,
        ),
        case("3 prompts, 2 completions each", [0, 1, 1, 1, 0, 0], 2, torch.float32),
        case("halves", [0.5] * 3 + [0, 0.5, 1, 1, 1, 1, 0, 0, 0.5], 3, torch.float64),
        case("tenths", [0.9] * 3 + [0.7] * 3 + [0.9, 0.7, 0.9], 3, torch.float32),
    ],
    wrongs=WRONGS,
    hints=(
        "Make a row of each prompt: rewards.view(-1, num_generations).",
        "A group is dead if every reward in it equals the first: groups == groups[:, :1].",
        "all(1) tells it for each group; .float().mean() is the share.",
    ),
    outputs=("share",),
    column="r",
)
