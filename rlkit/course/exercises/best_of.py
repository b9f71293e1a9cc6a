"""Page 10: the judge picks one of n answers; how many of its picks are right."""

import torch
from torch import Tensor

from rlkit.course.exercises.exercise import Case, Exercise, Wrong
from rlkit.course.judged import share_right


def best_of(scores, right, n):
    """scores, right [P, N] of N answers to each prompt, n divides N
    -> share of right ones among the best-scored of each n in a row"""
    picked = scores.view(-1, n).argmax(1)
    return right.view(-1, n).gather(1, picked[:, None]).mean()


# --- wrong answers


def oracle(scores, right, n) -> Tensor:
    return right.view(-1, n).max(1).values.mean()


def by_columns(scores, right, n) -> Tensor:
    picked = scores.view(n, -1).argmax(0)
    return right.view(n, -1).gather(0, picked[None]).mean()


def worst(scores, right, n) -> Tensor:
    return best_of(-scores, right, n)


def of_all(scores, right, n) -> Tensor:
    return best_of(scores, right, scores.shape[1])


def of_the_first(scores, right, n) -> Tensor:
    return best_of(scores[:, :n].reshape(-1, n), right[:, :n].reshape(-1, n), n)


def the_scores(scores, right, n) -> Tensor:
    return scores.view(-1, n).max(1).values.mean()


def all_answers(scores, right, n) -> Tensor:
    return right.mean()


WRONGS = [
    Wrong(
        "the best of right",
        "You look at the truth when you pick: this is how often any of n is right.",
        "The judge sees scores alone. Which answer does it take?",
        [oracle],
    ),
    Wrong(
        "columns",
        "Answers to different prompts compete.",
        "A row holds the answers to one prompt. Which reshape keeps n neighbours together?",
        [by_columns],
    ),
    Wrong("worst", "This picks the answer with the lowest score.", "argmax, not argmin?", [worst]),
    Wrong(
        "all N",
        "The judge has seen all N answers, not n of them.",
        "With n = 1 there is nothing to choose from. What must come out then?",
        [of_all],
    ),
    Wrong(
        "first n only",
        "You use n answers of each prompt and drop the others.",
        "N answers hold N / n groups of n. All of them give a steadier number.",
        [of_the_first],
    ),
    Wrong(
        "scores",
        "This is what the judge thinks of its picks.",
        "Take `right` at the place where the score is highest.",
        [the_scores],
    ),
    Wrong(
        "no choice",
        "This is the share of right ones among all answers.",
        "Nothing was chosen yet: one of each n remains.",
        [all_answers],
    ),
]

SCORES = [[1.0, -1.0, 0.25, 1.25, 0.75, 0.0], [-0.5, 1.5, -0.25, -0.75, 1.75, 0.5]]
RIGHT = [[1.0, 1.0, 1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]]


def case(about: str, scores: list, right: list, n: int, dtype: torch.dtype) -> Case:
    return Case(about, (torch.tensor(scores, dtype=dtype), torch.tensor(right, dtype=dtype), n))


EXERCISE = Exercise(
    name="best_of",
    page="10",
    solution=best_of,
    library=share_right,
    twins=[share_right],
    cases=[
        case("the best of 3", SCORES, RIGHT, 3, torch.float64),
        case("the best of 2", SCORES, RIGHT, 2, torch.float32),
        case("the best of 1", [[0.5, 0.1, 0.3, 0.2]], [[0.0, 1.0, 1.0, 1.0]], 1, torch.float32),
        case("the best of 4", [[0.5, 0.1, 0.3, 0.7]], [[0.0, 1.0, 0.0, 0.0]], 4, torch.float64),
    ],
    wrongs=WRONGS,
    hints=(
        "scores.view(-1, n) has a row for each n answers of one prompt.",
        "argmax(1) says which answer of each row the judge takes.",
        "right.view(-1, n).gather(1, picked[:, None]) reads whether it is right; then the mean.",
    ),
    outputs=("share",),
)
