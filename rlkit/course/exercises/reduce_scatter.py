"""Page 11: from a gradient on every rank to each rank's part of their sum (FSDP).

Rajbhandari et al. 2019, arXiv:1910.02054 (ZeRO); Zhao et al. 2023, arXiv:2304.11277 (FSDP).
"""

import torch
from torch import Tensor

from rlkit.course.exercises.exercise import Case, Exercise, Wrong


def reduce_scatter(gradients, rank):
    """gradients [N, P]: of each of N ranks, of the same P weights
    -> [P / N]: what this rank keeps of their sum"""
    return gradients.sum(0).chunk(len(gradients))[rank]


def library(gradients: Tensor, rank: int) -> Tensor:
    """The same, by a view."""
    return gradients.sum(0).view(len(gradients), -1)[rank]


# --- wrong answers


def averaged(gradients: Tensor, rank: int) -> Tensor:
    return library(gradients, rank) / len(gradients)


def own_gradient(gradients: Tensor, rank: int) -> Tensor:
    return gradients[rank].chunk(len(gradients))[rank]


def first_part(gradients: Tensor, rank: int) -> Tensor:
    return library(gradients, 0)


def next_part(gradients: Tensor, rank: int) -> Tensor:
    return library(gradients, (rank + 1) % len(gradients))


def every_nth(gradients: Tensor, rank: int) -> Tensor:
    return gradients.sum(0)[rank :: len(gradients)]


def others_alone(gradients: Tensor, rank: int) -> Tensor:
    return library(gradients, rank) - own_gradient(gradients, rank)


WRONGS = [
    Wrong(
        "averaged",
        "This is the mean over ranks.",
        "Each rank's loss is already its share of the whole batch's. What do shares do?",
        [averaged],
    ),
    Wrong(
        "not summed",
        "Each rank keeps a part of its own gradient.",
        "The other ranks' data also have something to say about these weights.",
        [own_gradient],
    ),
    Wrong(
        "others alone",
        "The rank's own gradient is missing from the sum.",
        "Its own data count as much as those of the others.",
        [others_alone],
    ),
    Wrong(
        "another part",
        "This is the part of another rank.",
        "Rank k holds the k-th block of the weights, counted from 0.",
        [first_part, next_part],
    ),
    Wrong(
        "every Nth",
        "Rank k keeps every N-th number.",
        "The weights were cut into blocks of neighbours: chunk, not a stride.",
        [every_nth],
    ),
]


def case(about: str, shape: tuple[int, int], rank: int, dtype: torch.dtype) -> Case:
    noise = torch.Generator().manual_seed(sum(shape))
    return Case(about, (torch.randn(shape, generator=noise).to(dtype), rank))


EXERCISE = Exercise(
    name="reduce_scatter",
    page="11",
    solution=reduce_scatter,
    library=library,
    cases=[
        case("2 ranks, 4 weights, rank 1", (2, 4), 1, torch.float32),
        case("3 ranks, 6 weights, rank 1", (3, 6), 1, torch.float64),
        case("2 ranks, 6 weights, rank 0", (2, 6), 0, torch.float32),
        case("1 rank, 3 weights", (1, 3), 0, torch.float32),
    ],
    wrongs=WRONGS,
    hints=(
        "Two steps: add up what the ranks say, then cut the sum.",
        "gradients.sum(0) is the sum [P].",
        "chunk(N) cuts it into N blocks; rank k keeps the k-th.",
    ),
    outputs=("kept",),
    column="g",
)
