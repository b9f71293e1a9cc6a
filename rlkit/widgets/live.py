"""A training run that moves while you watch: it trains in a worker thread, the cell returns.

    run = LiveRun(trainer, guess=0.8, questions=rows, score=task.reward)
    run                # Start, Stop, the curve, a few completions
    run.result()       # in the next cell: the history, or a sentence that says what to wait for
    run.figure()       # the same curve as a static picture

The trainer needs args.max_steps, args.output_dir (None, or the folder that keeps the run),
history, callbacks, train(), stop(), evaluate() and complete(); nothing here knows what it trains.
Callbacks of buttons only store a wish; the trainer reads it once a step. On Colab, where a
background thread cannot reach the page, the cell that shows the run also does the work.
RLKIT_FOREGROUND=1 does the same elsewhere; RLKIT_FAST=1 also ends the run after three steps.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlkit.widgets import keep, story
from rlkit.widgets.curve import Point, curve_widget, show

REDRAW_SECONDS = 0.2
FAST_STEPS = 3

_lock = threading.Lock()
_active: "LiveRun | None" = None


class RunNotReady(Exception):
    """There is no result yet. In a notebook only its sentence is shown, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass(frozen=True)
class Moment:
    """The questions answered after some step; marks are "right", "wrong" or "" (not scored)."""

    step: int
    answers: list[str]
    marks: list[str]


class LiveRun:
    """Training with a live curve, one at a time.

    trainer: anything with the members named above; each history row has "step" and "reward", and
        "accuracy" where the trainer evaluated.
    guess: a number on the y axis, drawn as a dashed line; None draws nothing.
    questions: rows {"prompt": ..., "answer": ...} that are answered again at each evaluation.
    score: a reward function in TRL's form; 1.0 marks an answer "right", anything else "wrong".
    ylim: the fixed ends of the y axis.
    notes: the trainer's warnings, in words, the first of each kind.
    state is "idle", "running", "done", "stopped" or "failed"; error holds what went wrong.
    """

    def __init__(
        self,
        trainer: Any,
        guess: float | None = None,
        questions: Sequence[dict[str, str]] = (),
        score: Callable[..., list[float]] | None = None,
        ylim: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        self.trainer, self.guess, self.ylim = trainer, checked_guess(guess), ylim
        self.questions, self.score = list(questions), score
        self.steps = int(trainer.args.max_steps)
        self.state, self.error = "idle", None
        self.accuracy: list[Point] = [
            (row["step"], row["accuracy"]) for row in self.rows if row.get("accuracy") is not None
        ]
        self.moments: list[Moment] = []
        self.notes: dict[str, str] = {}
        self.seconds = 0.0
        self.notice = ""
        self.presses = 0
        self._stop, self._painting = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._widget: Any = None
        self._ended = False
        self._drawn = 0.0

    # --- what a learner calls

    def start(self, block: bool | None = None) -> "LiveRun":
        """Train: in a worker thread, or here if block is True (None: wherever this page needs).

        A stopped run goes on from its step. With block=True an error is raised again here. A
        second run beside another does not start; its status line says why.
        """
        if not self._claim():
            return self
        if story.in_foreground() if block is None else block:
            self._work()
            if self.error:
                raise self.error
            return self
        self._thread = threading.Thread(target=self._work, name="rlkit-run", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask the run (or the one that it waits for) to end after its current step."""
        run = _active if self.notice else self
        self.notice = ""
        if run is not None and run.state == "running":
            run._stop.set()
            run.trainer.stop()
        self._redraw(now=True)

    def result(self) -> list[dict[str, Any]]:
        """The history, one row a step.

        Raises RunNotReady, a sentence without a traceback, while the run is idle, under way or
        failed. Where runs work in the foreground, an idle run starts here.
        """
        if self.state == "idle" and story.in_foreground():
            self.start()
        if self.state not in ("done", "stopped"):
            raise RunNotReady(story.not_ready(self)) from self.error
        return self.rows

    def figure(self) -> Any:
        """The curve so far as a matplotlib Figure, readable without the kernel."""
        from rlkit.widgets.static import figure

        return figure(self)

    def wait(self, timeout: float | None = None) -> "LiveRun":
        """Block until the worker thread ends, or for `timeout` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The trainer's history, one row a step."""
        return self.trainer.history

    @property
    def reward(self) -> list[Point]:
        """(step, mean reward) of each step's sampled answers."""
        return [(row["step"], row["reward"]) for row in self.rows]

    @property
    def can_start(self) -> bool:
        """Whether Start would do something: never begun, or stopped before the last step."""
        return self.state == "idle" or (self.state == "stopped" and self.step < self.steps)

    @property
    def stopping(self) -> bool:
        """Whether Stop was pressed and the current step is its last."""
        return self._stop.is_set()

    @property
    def step(self) -> int:
        """The last finished step; 0 before the first."""
        return self.rows[-1]["step"] if self.rows else 0

    # --- the work

    def _claim(self) -> bool:
        """Take the one place for a running run; False, with a notice, if that cannot be."""
        global _active
        self.notice = ""
        with _lock:
            other = _active
            if self.can_start and other is None:
                _active, self.state = self, "running"
                self._stop.clear()
                return True
        if self.can_start:
            self.notice = story.other_runs(other)
        self._redraw(now=True)
        return False

    def _work(self) -> None:
        global _active
        self._began = time.monotonic() - self.seconds
        self.trainer.callbacks.append(self._record)
        try:
            self._train()
            self.state = "stopped" if self.step < self.steps else "done"
        except KeyboardInterrupt:
            self.state = "stopped"
        except BaseException as error:
            self.error, self.state = error, "failed"
        finally:
            self.trainer.callbacks.remove(self._record)
            self._tick()
            with _lock:
                _active = None
            self._redraw(now=True)

    def _train(self) -> None:
        self._redraw(now=True)
        self._measure_unless_known()
        self._ended = False
        keep.forget(self)
        if not self._stop.is_set():
            with suppress(KeyboardInterrupt):  # the foreground's way to press Stop
                self.trainer.train()
                self._ended = True
        self._measure_unless_known()
        if self._ended:  # then the trainer has written its weights, too
            keep.save(self)

    def _measure_unless_known(self) -> None:
        """The ends of a curve are measured, whether or not the trainer evaluates there."""
        if not self.accuracy or self.accuracy[-1][0] != self.step:
            self._measure(self.step, self.trainer.evaluate()["accuracy"])

    def _measure(self, step: int, accuracy: float) -> None:
        """A point of the accuracy curve, and the questions answered at the same moment."""
        if self.questions:
            prompts = [row["prompt"] for row in self.questions]
            answers = self.trainer.complete(prompts, greedy=True)
            self.moments.append(Moment(step, answers, self._marks(answers)))
        self.accuracy.append((step, float(accuracy)))
        self._tick()
        self._redraw()

    def _marks(self, answers: list[str]) -> list[str]:
        if self.score is None:
            return [""] * len(answers)
        columns = {key: [row[key] for row in self.questions] for key in self.questions[0]}
        prompts = columns.pop("prompt")
        scores = self.score(prompts=prompts, completions=answers, **columns)
        return ["right" if score == 1.0 else "wrong" for score in scores]

    def _tick(self) -> None:
        self.seconds = time.monotonic() - self._began

    def _record(self, row: dict[str, Any]) -> None:
        """Called by the trainer, in the thread that trains, after each step."""
        self._tick()
        for warning in row.get("warnings", ()):
            self.notes.setdefault(warning.split(":")[0], f"step {row['step']}: {warning}")
        if row.get("accuracy") is not None:
            self._measure(row["step"], row["accuracy"])
        if story.is_set("RLKIT_FAST") and len(self.rows) >= FAST_STEPS:
            self._stop.set()
        if self._stop.is_set():  # a press before train() began counts too
            self.trainer.stop()
        self._redraw()

    # --- the page

    def _redraw(self, now: bool = False) -> None:
        """Send the state to the page: at most 5 times a second, or now where the state changed."""
        if self._widget is None:
            return
        with self._painting:  # a press and a step may come at the same moment
            if now or time.monotonic() - self._drawn >= REDRAW_SECONDS:
                self._drawn = time.monotonic()
                show(self._widget, story.view(self), self.accuracy, self.reward)

    def _press(self, button: str) -> None:
        self.presses += 1  # tells the page that its press has arrived
        {"start": self.start, "stop": self.stop}.get(button, lambda: None)()

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self._widget is None:
            self._widget = curve_widget(self._press)
        self._redraw(now=True)
        bundle = {"text/plain": repr(self), **self._widget._repr_mimebundle_()[0]}
        handle = display(bundle, raw=True, display_id=True)
        if story.in_foreground():
            self.start()
            if not story.is_set("COLAB_RELEASE_TAG"):  # there the widget itself has moved
                handle.update(story.static_bundle(self, bundle), raw=True)

    def __repr__(self) -> str:
        return story.title(self)


def checked_guess(guess: float | None) -> float | None:
    """The guess as a float; raises TypeError with a sentence if it is no number."""
    if guess is None:
        return None
    try:
        return float(guess)
    except (TypeError, ValueError):
        raise TypeError(f"guess is a number or None, for example 0.8; it is {guess!r}") from None
