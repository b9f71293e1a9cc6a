"""Page 11: a linear layer with a low-rank update beside it (LoRA).

y = x W^T + (alpha / r) (x A^T) B^T        Hu et al. 2021, arXiv:2106.09685, section 4.1
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from rlkit.course.exercises.exercise import Case, Exercise, Memory, Wrong


def low_rank(inputs, weight, down, up, alpha):
    """inputs [N, in], weight [out, in], down [r, in], up [out, r]
    -> [N, out]"""
    r = len(down)
    return inputs @ weight.T + alpha / r * (inputs @ down.T @ up.T)


def library(inputs: Tensor, weight: Tensor, down: Tensor, up: Tensor, alpha: float) -> Tensor:
    """What PEFT's LoRA layer computes."""
    return F.linear(inputs, weight) + F.linear(F.linear(inputs, down), up) * (alpha / down.size(0))


# --- wrong answers


def scaled(x, weight, down, up, scale) -> Tensor:
    return x @ weight.T + scale * (x @ down.T @ up.T)


def no_scale(x, weight, down, up, alpha) -> Tensor:
    return scaled(x, weight, down, up, 1.0)


def alpha_alone(x, weight, down, up, alpha) -> Tensor:
    return scaled(x, weight, down, up, alpha)


def upside_down(x, weight, down, up, alpha) -> Tensor:
    return scaled(x, weight, down, up, len(down) / alpha)


def by_inputs(x, weight, down, up, alpha) -> Tensor:
    return scaled(x, weight, down, up, alpha / down.size(1))


def by_outputs(x, weight, down, up, alpha) -> Tensor:
    return scaled(x, weight, down, up, alpha / len(up))


def update_alone(x, weight, down, up, alpha) -> Tensor:
    return low_rank(x, torch.zeros_like(weight), down, up, alpha)


def update_alone_unscaled(x, weight, down, up, alpha) -> Tensor:
    return x @ down.T @ up.T


def base_alone(x, weight, down, up, alpha) -> Tensor:
    return x @ weight.T


def base_scaled(x, weight, down, up, alpha) -> Tensor:
    return alpha / len(down) * (x @ weight.T + x @ down.T @ up.T)


def taken_away(x, weight, down, up, alpha) -> Tensor:
    return scaled(x, weight, down, up, -alpha / len(down))


def whole_matrix(x, weight, down, up, alpha) -> Tensor:
    return x @ (weight + alpha / len(down) * (up @ down)).T


WRONGS = [
    Wrong(
        "no scale",
        "The update is not scaled: alpha changes nothing.",
        "The rank r may double without the update doubling: what must its product be divided by?",
        [no_scale],
    ),
    Wrong(
        "alpha alone",
        "The update is multiplied by alpha alone.",
        "Twice the rank sums twice as many products. Which division keeps the size?",
        [alpha_alone],
    ),
    Wrong(
        "upside down",
        "The scale stands upside down: r / alpha.",
        "A larger alpha should make the update larger.",
        [upside_down],
    ),
    Wrong(
        "another size",
        "The scale divides by a width of the layer, not by the rank.",
        "How many rows has down? The rank is what the two thin matrices share.",
        [by_inputs, by_outputs],
    ),
    Wrong(
        "base left out",
        "This is the update alone.",
        "A fresh adapter has up = 0. What should the layer give then?",
        [update_alone, update_alone_unscaled],
    ),
    Wrong(
        "update left out",
        "This is the frozen layer alone.",
        "Send the inputs through down, then through up, and add that.",
        [base_alone],
    ),
    Wrong(
        "base scaled",
        "The scale also stretches the frozen layer.",
        "With up = 0 the layer must be what it was, whatever alpha is.",
        [base_scaled],
    ),
    Wrong(
        "sign",
        "The update is subtracted.",
        "The optimiser finds the sign by itself; add.",
        [taken_away],
    ),
]


def case(about: str, sizes: tuple[int, ...], alpha: float, dtype: torch.dtype) -> Case:
    N, wide, out, r = sizes
    noise = torch.Generator().manual_seed(sum(sizes))
    shapes = ((N, wide), (out, wide), (r, wide), (out, r))
    tensors = [torch.randn(*shape, generator=noise).to(dtype) for shape in shapes]
    return Case(about, (*tensors, alpha))


EXERCISE = Exercise(
    name="low_rank",
    page="11",
    solution=low_rank,
    library=library,
    cases=[
        case("3 inputs, 5 outputs, rank 2", (2, 3, 5, 2), 3.0, torch.float32),
        case("6 inputs, 4 outputs, rank 3", (3, 6, 4, 3), 1.0, torch.float64),
        case("4 inputs, 3 outputs, rank 1", (1, 4, 3, 1), 8.0, torch.float32),
    ],
    wrongs=WRONGS,
    hints=(
        "Two ways lead from x to the output: through weight, and through down and then up.",
        "inputs @ down.T is [N, r]; times up.T it is [N, out], as inputs @ weight.T is.",
        "The rank r is len(down). Multiply the second way by alpha / r and add it to the first.",
    ),
    outputs=("y",),
    column="y",
    memory=Memory(
        case("256 inputs, 256 outputs, rank 2", (2, 256, 256, 2), 4.0, torch.float32),
        bytes=256 * 256 * 4 // 2,  # half a weight; the solution holds a few rows
        wrong=Wrong(
            "makes the matrix",
            "But it makes a matrix as large as the weight.",
            "What is inputs @ (up @ down).T in another order, with the inputs first?",
            [whole_matrix],
        ),
    ),
)
