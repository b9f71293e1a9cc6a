"""Checks of exercises that name the mistake.

    @check.leave_one_out
    def leave_one_out(rewards, num_generations):
        ...

The check runs small cases, prints what was expected and what came, names the mistake if it is a
known one, and gives one more hint each time. The decorated name then holds the learner's function
if it is right; if not, the library's, which says so: its name is "library's leave_one_out".
With keep=True a wrong function stays too, to see what comes of it.

A check never raises and never hangs: exercises/limits.py says how.
"""

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from rlkit.course import answers
from rlkit.course.exercises import EXERCISES, progress, report
from rlkit.course.exercises.exercise import Exercise
from rlkit.course.exercises.judge import Verdict, judge


class Check:
    """`check`: a decorator for each exercise, and what belongs to all of them."""

    def __init__(self, seconds: float = 10.0) -> None:
        """seconds: what all cases of one check may take together."""
        self.seconds = seconds
        self._failures: dict[str, int] = {}
        self._last: str | None = None

    def __getattr__(self, name: str) -> "Decorator":
        if name not in EXERCISES:
            raise AttributeError(f"there is no exercise {name!r}; there are {known()}")
        return Decorator(self, EXERCISES[name])

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *EXERCISES]

    def solution(self, name: str | None = None) -> None:
        """Print one way to write an exercise; by default the one that was checked last."""
        name = self._last if name is None else name
        if name not in EXERCISES:
            print(f'Which exercise? There are {known()}: check.solution("...")')
            return
        progress.record(name, "seen")
        print(inspect.getsource(EXERCISES[name].solution).rstrip())

    def progress(self) -> None:
        """Print how far each exercise is."""
        states = progress.load()
        rows = [
            (e.name, e.page, states.get(e.name, progress.NOT_STARTED)) for e in EXERCISES.values()
        ]
        print("\n".join(report.progress_table(rows)))

    def names(self, *exercises: str, into: dict[str, Any] | None = None) -> None:
        """Bind the functions of exercises where the notebook lacks them.

        To the learner's, if it was right once (before the kernel was restarted, or on another
        page), else to the library's: so a cell that does not even parse stops none of the others.
        into: the notebook's names; None: the caller's. Raises ValueError for an unknown exercise.
        """
        into = sys._getframe(1).f_globals if into is None else into
        for name in exercises:
            if name not in EXERCISES:
                raise ValueError(f"there is no exercise {name!r}; there are {known()}")
            if EXERCISES[name].function not in into:
                into[EXERCISES[name].function] = self._so_far(EXERCISES[name], into)

    def _so_far(self, exercise: Exercise, into: dict[str, Any]) -> Callable:
        """The kept answer if it is still right, else the library's function."""
        try:
            function = answers.take(exercise.name, exercise.function, into)
            if function is not None and self._verdict(exercise, function).kind != "right":
                raise answers.NotTaken(
                    f"your {exercise.function} does not pass by itself: run its cell again"
                )
        except answers.NotTaken as reason:
            print(f"{reason}; until then the library's is used")
            return stand_in(exercise)
        if function is None:
            return stand_in(exercise)
        print(f"taken up: your {exercise.function}")
        return labelled(function, f"your {exercise.function}")

    def label(self, function: Callable) -> str:
        """Whose function it is, for the legend of a chart."""
        return getattr(function, "label", getattr(function, "__name__", "a function"))

    def judged(self, exercise: Exercise, function: Any, keep: bool) -> Callable:
        """Check, print, and return what the name is to hold."""
        self._last = exercise.name
        if not callable(function) or is_library(function, exercise):
            print(f"{exercise.name}: nothing of yours to check")
            print("Run the cell that defines your function, with the check above it.")
            return stand_in(exercise)
        verdict = self._verdict(exercise, function)
        out = self._told(exercise, verdict)
        kept = keep and verdict.kind == "numbers"
        if verdict.kind != "right":
            whose = "Yours is used, wrong as it is." if kept else replaced(exercise)
            out += [*([""] if len(out) > 1 else []), whose]
        print("\n".join(out))
        if verdict.kind == "right":
            answers.keep(exercise.name, function)
            return labelled(function, f"your {exercise.function}")
        wrong = f"your {exercise.function}, not right yet"
        return labelled(function, wrong) if kept else stand_in(exercise)

    def _verdict(self, exercise: Exercise, function: Callable) -> Verdict:
        try:
            return judge(function, exercise, self.seconds)
        except Exception as error:  # a mistake of ours must not stop a notebook
            says = f"The check itself failed: {type(error).__name__}: {error}"
            return Verdict("broken", [says])

    def _told(self, exercise: Exercise, verdict: Verdict) -> list[str]:
        """The lines of a verdict; counts failures and notes the progress."""
        name = exercise.name
        if verdict.kind == "untouched":
            return [f"{name}: not started"]
        if verdict.kind == "right":
            self._failures.pop(name, None)
            progress.record(name, "right")
            cases = len(exercise.cases) + (exercise.memory is not None)
            return [f"{name}: right, in {cases} cases. Yours is used from here on."]
        self._failures[name] = self._failures.get(name, 0) + 1
        progress.record(name, "tried")
        return report.lines(verdict, exercise, self._failures[name])


class Decorator:
    """`check.leave_one_out`, with or without (keep=True)."""

    def __init__(self, check: Check, exercise: Exercise) -> None:
        self._check, self._exercise = check, exercise
        self.__doc__ = f"Check `{exercise.function}`, page {exercise.page}."

    def __call__(self, function: Any = None, *, keep: bool = False) -> Any:
        if function is None:
            return lambda function: self(function, keep=keep)
        return self._check.judged(self._exercise, function, keep)

    def __repr__(self) -> str:
        return f"@check.{self._exercise.name}: write it above your function"


def known() -> str:
    """The names of all exercises."""
    return ", ".join(EXERCISES)


def replaced(exercise: Exercise) -> str:
    """What stands in."""
    return f"Until it is right, the library's {exercise.function} is used."


def stand_in(exercise: Exercise) -> Callable:
    """The library's function under a name that says so."""

    @wraps(exercise.library)
    def library(*args: Any, **kwargs: Any) -> Any:
        return exercise.library(*args, **kwargs)

    library.__name__ = library.label = f"library's {exercise.function}"
    library.stands_in = True
    return library


def is_library(function: Callable, exercise: Exercise) -> bool:
    """Whether a function is not the learner's at all."""
    ours = (exercise.library, exercise.solution, *exercise.twins)
    return getattr(function, "stands_in", False) or function in ours


def labelled(function: Callable, label: str) -> Callable:
    """The function itself, with a label for charts if it can bear one."""
    try:
        function.label = label
    except AttributeError:  # a method, say: its own name must do
        pass
    return function


check = Check()
