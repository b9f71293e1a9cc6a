"""What an exercise is: the solution, the library's function, small cases, known wrong answers.

A known wrong answer is kept as the code that gives it. What a learner's function returned is
compared with what that code returns, so that the mistake can be called by its name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """One call. args: without gradients, cloned before use. about: a few words for the learner."""

    about: str
    args: tuple[Any, ...]
    atol: float | None = None
    """None: 1e-5 for float32, 1e-9 for float64. Besides it a share of the size, as large."""


@dataclass(frozen=True)
class Wrong:
    """A known mistake. says: what it is; asks: the question that leads out of it."""

    name: str
    says: str
    asks: str
    functions: Sequence[Callable] = ()
    """Each gives this wrong answer in its own way."""
    probe: Callable[[Callable], bool] | None = None
    """Whether a function that matches none of them makes this mistake all the same."""


@dataclass(frozen=True)
class Memory:
    """A bound of the bytes that are alive at once, beyond the arguments."""

    case: Case
    bytes: int
    wrong: Wrong


@dataclass(frozen=True)
class Exercise:
    """One exercise; `solution` bears the name that the learner's function has in the notebook."""

    name: str
    page: str
    solution: Callable
    library: Callable
    cases: Sequence[Case]
    wrongs: Sequence[Wrong]
    hints: tuple[str, str, str]
    outputs: tuple[str, ...]
    twins: Sequence[Callable] = ()
    """Functions of rlkit that are the answer: calling one is not writing it."""
    gradient: int | None = None
    """Which argument's gradient is compared too."""
    trim: Callable[..., Outputs] = field(default=lambda outputs, *args: outputs)
    """Sets to NaN what may hold anything: trim(outputs, *args)."""
    shown: Callable[..., dict[str, Tensor]] | None = None
    """Rows for the report, made of the arguments; None: the arguments themselves."""
    column: str = "t"
    """What a column is called in the report."""
    memory: Memory | None = None
    plain: bool = False
    """The answer is True or False, not a tensor."""

    @property
    def function(self) -> str:
        """The name of the function in the notebook."""
        return self.solution.__name__

    @property
    def all_outputs(self) -> tuple[str, ...]:
        """Names of what is compared."""
        return self.outputs if self.gradient is None else (*self.outputs, "gradient")


def fresh(args: Sequence[Any], gradient: int | None = None) -> list[Any]:
    """Copies of the arguments, so that no call can spoil another's."""
    copies = [a.clone() if isinstance(a, Tensor) else a for a in args]
    if gradient is not None:
        copies[gradient].requires_grad_()
    return copies


def evaluate(exercise: Exercise, function: Callable, case: Case) -> Outputs:
    """What a function of ours (right or wrong) gives for a case, its gradient last."""
    args = fresh(case.args, exercise.gradient)
    outputs = function(*args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    if exercise.plain:
        outputs = tuple(torch.tensor(bool(x)) for x in outputs)
    if exercise.gradient is not None:
        (gradient,) = torch.autograd.grad(outputs[0].sum(), args[exercise.gradient])
        outputs = (*outputs, gradient)
    return exercise.trim(tuple(x.detach() for x in outputs), *case.args)


def close(left: Outputs, right: Outputs, tolerance: float, relative: float) -> bool:
    """Whether all outputs agree, NaN with NaN."""
    return all(
        a.shape == b.shape
        and torch.allclose(a.double(), b.double(), relative, tolerance, equal_nan=True)
        for a, b in zip(left, right, strict=True)
    )


def tolerances(case: Case, expected: Outputs) -> tuple[float, float]:
    """(absolute, relative): what rounding may do to a right answer."""
    rounding = 1e-5 if torch.float32 in {x.dtype for x in expected} else 1e-9
    return rounding if case.atol is None else case.atol, rounding


def agrees(case: Case, got: Outputs, expected: Outputs) -> bool:
    """Whether an answer is right."""
    return close(got, expected, *tolerances(case, expected))


def resembles(got: Outputs, wrong: Outputs) -> bool:
    """Whether an answer is a known wrong one, however it was rounded."""
    return close(got, wrong, 1e-5, 1e-3)
