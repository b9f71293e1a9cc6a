"""What is to be said of a learner's function: right, not started, or what is wrong with it."""

import dis
import inspect
import linecache
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlkit.course.exercises.exercise import (
    Case,
    Exercise,
    Outputs,
    Wrong,
    agrees,
    evaluate,
    fresh,
    resembles,
)
from rlkit.course.exercises.limits import OutOfTime, Stop, peak_bytes, watched, within

IDLE = {
    "RESUME", "LOAD_CONST", "LOAD_SMALL_INT", "RETURN_VALUE", "RETURN_CONST", "NOP", "POP_TOP",
    "CACHE", "EXTENDED_ARG",
}  # fmt: skip


class Trouble(Exception):
    """A call that gave no answer to compare, in one sentence. advice: a second one, or ''."""

    def __init__(self, says: str, advice: str = "") -> None:
        super().__init__(says)
        self.says, self.advice = says, advice


class NotStarted(Exception):
    """The body is still empty."""


@dataclass
class Outcome:
    """What one case gave: an answer, or trouble."""

    case: Case
    expected: Outputs
    got: Outputs | None = None
    trouble: Trouble | None = None

    @property
    def right(self) -> bool:
        """Whether the answer is the expected one."""
        return self.got is not None and agrees(self.case, self.got, self.expected)


@dataclass
class Verdict:
    """kind: "right", "untouched", "numbers" (of the right form, but wrong) or "broken"."""

    kind: str
    says: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    mistake: str | None = None
    """The name of the known mistake."""


def judge(function: Callable, exercise: Exercise, seconds: float) -> Verdict:
    """Run all cases in a thread of their own, within so many seconds together."""
    if is_untouched(function):
        return Verdict("untouched")
    try:
        return within(seconds, lambda: examine(function, exercise))
    except NotStarted:
        return Verdict("untouched")
    except OutOfTime as error:
        return Verdict("broken", out_of_time(error), mistake="never returns")


def out_of_time(error: OutOfTime) -> list[str]:
    """What to say of a function that was stopped."""
    says = [
        f"It had not returned after {error.seconds:g} s and was stopped.",
        "Look for a loop whose condition never changes.",
    ]
    if error.left_behind:
        says.append("It could not be stopped and runs on: restart the kernel to end it.")
    return says


def examine(function: Callable, exercise: Exercise) -> Verdict:
    """All cases, then the memory, then the name of the mistake."""
    try:
        check_signature(function, exercise)
    except Trouble as trouble:
        return Verdict("broken", [trouble.says])
    last = [] if exercise.memory is None else [exercise.memory.case]
    outcomes = [outcome(function, exercise, case) for case in [*exercise.cases, *last]]
    failed = next((o for o in outcomes if not o.right), None)
    if failed is None:
        return within_memory(function, exercise)
    if failed.trouble is not None:
        says = [line for line in (failed.trouble.says, failed.trouble.advice) if line]
        return Verdict("broken", says, failed)
    wrong = known(function, exercise, outcomes, failed)
    if wrong is None:
        return Verdict("numbers", [], failed)
    return Verdict("numbers", [wrong.says, wrong.asks], failed, wrong.name)


def within_memory(function: Callable, exercise: Exercise) -> Verdict:
    """Right numbers are not all where the exercise is about bytes."""
    memory = exercise.memory
    if memory is None:
        return Verdict("right")
    try:
        peak = peak_bytes(function, fresh(memory.case.args))
    except Exception as error:  # it was right on the same numbers a moment ago
        return Verdict("broken", [in_one_line(error, function).says])
    if peak <= memory.bytes:
        return Verdict("right")
    count = f"It held {peak / 1024:.0f} KiB at once; {memory.bytes / 1024:.0f} KiB are enough"
    says = [f"The numbers are right. {count} ({memory.case.about}).", memory.wrong.says]
    return Verdict("numbers", [*says, memory.wrong.asks], mistake=memory.wrong.name)


# --- one call


def outcome(function: Callable, exercise: Exercise, case: Case) -> Outcome:
    """Call the function on copies, and look at the form of what comes back."""
    found = Outcome(case, evaluate(exercise, exercise.library, case))
    try:
        found.got = answer(function, exercise, case, found.expected)
    except Trouble as trouble:
        found.trouble = trouble
    return found


def answer(function: Callable, exercise: Exercise, case: Case, expected: Outputs) -> Outputs:
    """The learner's answer, of the right form. Raises Trouble, NotStarted."""
    args = fresh(case.args, exercise.gradient)
    result = call(function, exercise, args)
    for name, now, before in zip(names(exercise), args, case.args, strict=True):
        if isinstance(before, Tensor) and not same(now, before):
            raise Trouble(f"Your function changed its argument {name}.", "Work on a copy: .clone()")
    outputs = as_outputs(result, exercise)
    for name, got, want in zip(exercise.outputs, outputs, expected, strict=False):
        check_form(name, got, want)
    if exercise.gradient is not None:
        outputs = (*outputs, gradient(outputs[0], args[exercise.gradient], exercise))
    return exercise.trim(tuple(x.detach() for x in outputs), *case.args)


def call(function: Callable, exercise: Exercise, args: list[Any]) -> Any:
    """Call it; every exception becomes a sentence with the learner's own line."""
    try:
        twins = [*exercise.twins, exercise.solution, exercise.library]
        result, copied = watched(function, args, twins)
    except Stop:
        raise
    except BaseException as error:  # exit() too
        if isinstance(error, NotImplementedError) and raised_by(error, function):
            raise NotStarted from error
        raise in_one_line(error, function) from error
    if copied:
        raise Trouble("It calls rlkit's own function for this.", "Write it with torch alone.")
    if result is Ellipsis:
        raise NotStarted
    return result


def check_signature(function: Callable, exercise: Exercise) -> None:
    """Whether it can be called with the arguments of the exercise."""
    try:
        inspect.signature(function).bind(*names(exercise))
    except (TypeError, ValueError) as error:
        raise Trouble(f"It should take ({', '.join(names(exercise))}): {error}.") from error


def names(exercise: Exercise) -> list[str]:
    """The arguments' names."""
    return list(inspect.signature(exercise.solution).parameters)


def as_outputs(result: Any, exercise: Exercise) -> Outputs:
    """A tuple with as many tensors as there should be."""
    wanted = exercise.outputs
    form = "a tensor" if len(wanted) == 1 else f"({', '.join(wanted)})"
    if result is None:
        raise Trouble("It returned None.", "Is the `return` missing?")
    outputs = (result,) if len(wanted) == 1 else result
    if not isinstance(outputs, tuple) or len(outputs) != len(wanted):
        raise Trouble(f"It returned {described(result)}; expected was {form}.")
    if exercise.plain:
        return tuple(as_truth(name, x) for name, x in zip(wanted, outputs, strict=True))
    for name, x in zip(wanted, outputs, strict=True):
        if not isinstance(x, Tensor):
            raise Trouble(f"{name} is {described(x)}; expected was a tensor.")
    return outputs


def as_truth(name: str, x: Any) -> Tensor:
    """True or False, also as a tensor of one element, as a tensor."""
    if isinstance(x, Tensor) and x.numel() == 1 and x.dtype == torch.bool:
        x = bool(x)
    if not isinstance(x, bool):
        advice = "`all()` of a tensor makes one of many." if isinstance(x, Tensor) else ""
        raise Trouble(f"{name} is {described(x)}; expected was True or False.", advice)
    return torch.tensor(x)


def described(x: Any) -> str:
    """What something is: "a list", "a tuple of 3", "a tensor"."""
    if isinstance(x, tuple):
        return f"a tuple of {len(x)}"
    name = type(x).__name__.lower()
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def check_form(name: str, got: Tensor, want: Tensor) -> None:
    """Shape and dtype."""
    if got.shape != want.shape:
        shapes = f"{list(got.shape)}; expected was {list(want.shape)}"
        raise Trouble(f"{name} has the shape {shapes}.", "Follow the shapes line by line.")
    if got.dtype != want.dtype:
        kinds = (str(x.dtype).removeprefix("torch.") for x in (got, want))
        says = "{} is {}; expected was {}.".format(name, *kinds)
        advice = "A comparison gives bool." if want.dtype == torch.bool else KEEP_DTYPE
        raise Trouble(says, advice)


KEEP_DTYPE = "New tensors take the dtype of an old one by zeros_like, new_zeros, dtype=x.dtype."


def gradient(output: Tensor, source: Tensor, exercise: Exercise) -> Tensor:
    """d sum(output) / d source. Raises Trouble if none arrives."""
    name = names(exercise)[exercise.gradient]
    lost = Trouble(
        f"No gradient arrives at {name}.", "Does a detach(), item() or new tensor cut it?"
    )
    if not output.requires_grad:
        raise lost
    (found,) = torch.autograd.grad(output.sum(), source, allow_unused=True)
    if found is None:
        raise lost
    return found


def same(now: Tensor, before: Tensor) -> bool:
    """Whether a tensor is untouched, bit by bit, NaN included."""
    now = now.detach()
    if now.shape != before.shape or now.dtype != before.dtype:
        return False
    return bool(((now == before) | (now.isnan() & before.isnan())).all())


def in_one_line(error: BaseException, function: Callable) -> Trouble:
    """The error and the last line of the learner's that led to it."""
    first = (str(error).strip().splitlines() or [""])[0]
    if "leaf Variable that requires grad" in first:  # torch's words for a changed argument
        return Trouble("Your function changed its argument.", "Work on a copy: .clone()")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    file = file_of(function)
    lines = [n for f, n in traceback.walk_tb(error.__traceback__) if f.f_code.co_filename == file]
    if not lines:
        return Trouble(f"It raised {text}")
    code = linecache.getline(file, lines[-1]).strip()
    return Trouble(f"Line {lines[-1]} of your cell raised {text}", f"    {code}" if code else "")


def file_of(function: Callable) -> str | None:
    """The file, or the notebook's cell, that a function was written in."""
    return getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", None)


def raised_by(error: BaseException, function: Callable) -> bool:
    """Whether a `raise` of the learner's own raised it, and nothing that it called."""
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    code = last.tb_frame.f_code
    own_raise = code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return own_raise and code.co_filename == file_of(function)


def is_untouched(function: Callable) -> bool:
    """Whether the body does nothing at all: `...`, `pass`, a docstring, `return None`."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        return False
    idle = {step.opname for step in dis.get_instructions(code)} <= IDLE
    return idle and all(c in (None, ...) or isinstance(c, str) for c in code.co_consts)


# --- the name of a mistake


def known(
    function: Callable, exercise: Exercise, outcomes: list[Outcome], failed: Outcome
) -> Wrong | None:
    """The mistake that explains every answer; else the first wrong one; else by a probe."""
    answered = [o for o in outcomes if o.got is not None]
    for explained in (answered, [failed]):
        for wrong in exercise.wrongs:
            if any(explains(w, exercise, explained) for w in wrong.functions):
                return wrong
    return next((w for w in exercise.wrongs if w.probe and shows(w.probe, function)), None)


def explains(wrong: Callable, exercise: Exercise, outcomes: list[Outcome]) -> bool:
    """Whether a known wrong function gives these answers."""
    try:
        return all(resembles(o.got, evaluate(exercise, wrong, o.case)) for o in outcomes)
    except (RuntimeError, ValueError, IndexError):  # it does not even run on this case
        return False


def shows(probe: Callable[[Callable], bool], function: Callable) -> bool:
    """Whether a probe finds its mistake; a function that fails under it shows nothing."""
    try:
        return bool(probe(function))
    except Stop:
        raise
    except Exception:
        return False
