"""The Memory Lab: flip a switch, and see where every byte of a training step goes.

    lab = MemoryLab("qwen")
    lab                                     # switches, the chart, the cards
    lab.flip(head="chunked", guess=8.5)     # from a cell: waits, and returns a static picture
    lab.measure()                           # the small model trains for some steps, here

Two sources, always named. *Planned*: rlkit's real step under fake tensors; what ships answers at
once, the rest is planned by a process of its own while the last picture stays as a ghost, and a
newer flip drops the older question. *Measured*: a small model trains in a worker thread, and a flip
takes effect at its next step.
On Colab, where a background thread cannot reach the page, the call that flips does the work
(RLKIT_FOREGROUND=1: the same elsewhere).
"""

import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rlkit.config import unknown
from rlkit.memory import grids, lab
from rlkit.memory.cards import CARDS, GiB
from rlkit.memory.desk import Desk, Dropped
from rlkit.memory.lab import BASES, Choices
from rlkit.memory.picture import Picture
from rlkit.memory.small import Training, not_here
from rlkit.optional import require
from rlkit.widgets import memory_view, story
from rlkit.widgets.page import script

REDRAW_SECONDS = 0.2
SHORT_RUN = 3
"""Steps of a run in the foreground."""


class MemoryLab:
    """The switches and what they do; one planning process and one training run at most.

    state: "ready", "planning" or "training". picture: what is shown; ghost: what was shown before
    it. error: the last sentence about something that did not work, or "".
    """

    def __init__(self, base: str = "qwen", *, card: str = "t4", **changes: Any) -> None:
        """base: "qwen", "pythia" or "small". card: to hold against. changes: switches to move.

        Raises ValueError, in one sentence, for an unknown base, card or switch.
        """
        self.presses, self.guess, self.card = 0, None, ""
        self.seen_by: list[Callable[[], None]] = []
        """Called after every change of the picture."""
        self._lock, self._painting = threading.RLock(), threading.Lock()
        self._desk = Desk()
        self._widget: Any = None
        self._planner: threading.Thread | None = None
        self._trainer: threading.Thread | None = None
        self._stop = threading.Event()
        """Of the present run; a run that lost it shows nothing more."""
        self._drawn = 0.0
        self.hold_against(card)
        self.begin(base)
        if changes:
            self.flip(**changes)

    # --- what a learner calls

    def begin(self, base: str) -> "MemoryLab":
        """Goes to a base, its switches as they stand there at first.

        Raises ValueError for an unknown one.
        """
        if base not in BASES:
            raise ValueError(unknown("base", base, BASES))
        self.stop()
        self._stop = threading.Event()
        self.base = BASES[base]
        self.source, self.error, self.top = "planned", "", 0
        self.wanted: Choices = dict(self.base.choices)
        self.picture: Picture | None = None
        self.ghost: Picture | None = None
        self.trail: list[Picture] = []
        """What was shown since, one of each setting and source."""
        self.row: dict[str, Any] = {}
        self.guessed: tuple[float, int] | None = None
        self.since = 0.0
        self.state = "ready"
        self._answer()
        return self

    def flip(self, guess: float | None = None, **changes: Any) -> Any:
        """Moves switches, waits for the picture, and returns it as a matplotlib Figure.

        guess: the peak that you expect, in GiB; drawn and compared. changes: switches by name,
        head="chunked".
        Raises ValueError, in one sentence, for what does not go together.
        """
        wanted = self.wanted | lab.checked(self.base, changes)
        if sentence := self.why_not(wanted):
            raise ValueError(sentence)
        if guess is not None:
            self.guess = memory_view.checked_guess(guess)
        self._want(wanted)
        self.wait()
        if self.error:
            raise ValueError(self.error)
        return self.figure()

    def measure(self, steps: int = SHORT_RUN, guess: float | None = None, **changes: Any) -> Any:
        """Trains the small model for some steps, in this call; returns the picture as a Figure.

        Raises ValueError for choices that cannot be trained here.
        """
        if self.base.key != "small":
            self.begin("small")
        self.stop()
        self.join()
        self.wanted = self.wanted | lab.checked(self.base, changes)
        if sentence := not_here(self.base, self.wanted):
            raise ValueError(sentence)
        if guess is not None:
            self.guess = memory_view.checked_guess(guess)
        self.source, self._stop = "measured", threading.Event()
        self._train(self._stop, steps)
        if self.error:
            raise ValueError(self.error)
        return self.figure()

    def start(self) -> "MemoryLab":
        """Trains the small model in a worker thread, until stop()."""
        with self._lock:
            if self._training:
                return self
            if self.base.key != "small":
                self.begin("small")
            self.source, self.error, self.state = "measured", "", "training"
            self._stop = threading.Event()
            if story.in_foreground():
                self._train(self._stop, SHORT_RUN)
                return self
            self._trainer = threading.Thread(
                target=self._train, args=(self._stop,), name="rlkit-lab-run", daemon=True
            )
            self._trainer.start()
        self._redraw(now=True)
        return self

    def stop(self) -> None:
        """Ends the run after the step it is in."""
        self._stop.set()

    def close(self) -> None:
        """Ends the run and the process that plans."""
        self.stop()
        with self._lock:
            self.state = "ready"  # nobody waits for a plan any more
        self._desk.close()

    def hold_against(self, card: str) -> "MemoryLab":
        """Chooses the card whose line is drawn thick. Raises ValueError for an unknown one."""
        if card not in CARDS:
            raise ValueError(unknown("device", card, CARDS))
        self.card = card
        return self

    def join(self, timeout: float | None = None) -> "MemoryLab":
        """Blocks until the run has ended, or for `timeout` seconds."""
        if self._trainer is not None:
            self._trainer.join(timeout)
        return self

    def wait(self, timeout: float | None = None) -> "MemoryLab":
        """Blocks until no plan is awaited, or for `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.state == "planning" and (end is None or time.monotonic() < end):
            time.sleep(0.02)
        return self

    def figure(self) -> Any:
        """What is shown, as a matplotlib Figure on white."""
        from rlkit.widgets.memory_static import figure

        return figure(self)

    def bars(self) -> Any:
        """The peaks of all that was shown since begin(), as a matplotlib Figure on white."""
        from rlkit.widgets.memory_static import bars

        return bars(self.trail)

    def why_not(self, choices: Choices) -> str:
        """ "" if the present source can show these choices, else why not."""
        if self.source == "measured":
            return not_here(self.base, choices)
        return lab.why_not(self.base, choices)

    # --- planned

    def _want(self, choices: Choices) -> None:
        """The switches stand like this from now on."""
        with self._lock:
            self.wanted, self.error = dict(choices), ""
            if self.source == "measured" and self._training:
                self._redraw(now=True)  # the run sees them at its next step
            elif self.source == "measured":
                self.start()
            else:
                self._answer()

    def _answer(self) -> None:
        """Shows the plan of what is wanted: at once if it ships, else soon."""
        with self._lock:
            found = grids.shipped(self.base, self.wanted)
            self._desk.drop()
            if found is not None:
                self.state = "ready"
                self._show(found)
                return
            self.state, self.since = "planning", time.monotonic()
            if story.in_foreground():
                self._plan()
            elif self._planner is None or not self._planner.is_alive():
                self._planner = threading.Thread(
                    target=self._plan, name="rlkit-lab-plan", daemon=True
                )
                self._planner.start()
        self._redraw(now=True)

    def _plan(self) -> None:
        """Plans what is wanted until it is there."""
        while True:
            with self._lock:
                if self.state != "planning":
                    self._planner = None
                    return
                base, choices = self.base, self.wanted
            try:
                found = self._planned(base, choices)
                sentence = ""
            except Dropped:
                continue
            except Exception as error:
                found, sentence = None, memory_view.sentence(error)
            with self._lock:
                if choices is not self.wanted or self.state != "planning":
                    continue
                self.state, self.error = "ready", sentence
                if found is None:
                    self._redraw(now=True)
                else:
                    self._show(found)

    def _planned(self, base: lab.Base, choices: Choices) -> Picture:
        found = self._desk.plan(
            lab.setting(base, choices), lambda: choices is self.wanted and self.state == "planning"
        )
        where = f"fake tensors, planned on this machine in {found.seconds:.0f} s"
        return grids.planned(found, choices, where)

    # --- measured

    @property
    def _training(self) -> bool:
        thread = self._trainer
        return thread is not None and thread.is_alive() and not self._stop.is_set()

    def _train(self, stop: threading.Event, steps: int | None = None) -> None:
        """Trains until `stop`, or for some steps; the switches are read before each."""
        self.state, self.error = "training", ""
        self._redraw(now=True)
        try:
            training = Training(self.base, self.wanted)
            while not stop.is_set() and (steps is None or training.taken < steps):
                self._steps(training, stop, steps)
        except Exception as error:
            self.error = memory_view.sentence(error)
        if stop is self._stop:  # else another base or run has begun meanwhile
            self.state = "ready"
        self._redraw(now=True)

    def _steps(self, training: Training, stop: threading.Event, steps: int | None) -> None:
        """Steps with the switches as they stand."""
        choices = self.wanted
        training.change(choices)
        with training.meter() as meter:
            while self.wanted is choices and not stop.is_set() and training.taken != steps:
                picture, row = training.step(meter)
                if stop is self._stop and self.source == "measured":
                    self.row = row
                    self._show(picture)

    # --- the page

    def _show(self, picture: Picture) -> None:
        """Another picture; the one before stays as a ghost if it stood for something else."""
        old = self.picture
        same = old is not None and (old.source, old.choices) == (picture.source, picture.choices)
        with self._lock:
            if old is not None and not same:
                self.ghost = old
                self.guessed = None
            if self.guess is not None and not same and old is not None:
                self.guessed, self.guess = (self.guess, picture.peak), None
            if same:
                self.trail[-1:] = [picture]
            else:
                self.trail.append(picture)
            self.picture = picture
            self.top = memory_view.axis_top(self)
        for told in self.seen_by:
            told()
        self._redraw(now=not same)

    def _redraw(self, now: bool = False) -> None:
        """Sends all to the page: at most 5 times a second, or now if something else is shown."""
        if self._widget is None:
            return
        with self._painting:
            if now or time.monotonic() - self._drawn >= REDRAW_SECONDS:
                self._drawn = time.monotonic()
                send(self, self._widget)

    def _press(self, message: dict[str, Any]) -> None:
        """What the page says; any thread."""
        self.presses += 1  # tells the page that it was heard
        try:
            self._obey(message)
        except Exception as error:
            self.error = memory_view.sentence(error)
        self._redraw(now=True)

    def _obey(self, message: dict[str, Any]) -> None:
        for name, value in message.items():
            if name == "flip":
                wanted = self.wanted | lab.checked(self.base, value)
                if sentence := self.why_not(wanted):
                    self.error = sentence
                else:
                    self._want(wanted)
            elif name == "guess":
                self.guess = memory_view.checked_guess(value)
            elif name in ("base", "source", "card", "button"):
                getattr(self, f"_press_{name}")(value)

    def _press_base(self, base: str) -> None:
        self.begin(base)

    def _press_card(self, card: str) -> None:
        self.hold_against(card)

    def _press_source(self, source: str) -> None:
        if source == "measured":
            self.start()
            return
        self.stop()
        self.source, self.error = "planned", ""
        self._answer()

    def _press_button(self, button: str) -> None:
        if button == "reset":
            self._want(dict(self.base.choices))
        elif button == "start":
            self.start()
        elif button == "stop":
            self.stop()

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self._widget is None:
            self._widget = widget_class()()
            self._widget.on_msg(lambda _, message, __: self._press(message))
        if not story.in_foreground():
            self._desk.start()  # imports while the page is read
        self._redraw(now=True)
        bundle = {"text/plain": repr(self), **self._widget._repr_mimebundle_()[0]}
        if story.in_foreground() and not story.is_set("COLAB_RELEASE_TAG"):
            bundle = story.static_bundle(self, bundle)
        display(bundle, raw=True)

    def __repr__(self) -> str:
        return memory_view.title(self)


@cache
def widget_class() -> type:
    """The widget. Raises ImportError, with the way to get it, where anywidget is missing."""
    anywidget = require("anywidget", "the Memory Lab")
    import traitlets

    folder = Path(__file__).parent

    class MemoryWidget(anywidget.AnyWidget):
        _esm = script("memory.js")
        _css = (folder / "memory.css").read_text("utf-8")
        view = traitlets.Dict().tag(sync=True)
        now = traitlets.Bytes().tag(sync=True)
        before = traitlets.Bytes().tag(sync=True)

    return MemoryWidget


def send(shown: MemoryLab, widget: Any) -> None:
    """Words and both pictures in one message; bytes that are the same are not sent again."""
    view = memory_view.view(shown)
    with widget.hold_sync():
        widget.view = view
        widget.now = packed(shown.picture, view["stack"])
        widget.before = packed(shown.ghost, None)


def packed(picture: Picture | None, stack: list[str] | None) -> bytes:
    """x, then a row for each category of `stack` (None: one row, the total), in GiB as float32."""
    if picture is None:
        return b""
    if stack is None:
        rows = [picture.total]
    else:
        empty = [0] * len(picture.total)
        rows = [picture.series.get(name, empty) for name in stack]
    table = np.concatenate([[picture.x], np.asarray(rows) / GiB])
    return np.asarray(table, dtype="<f4").tobytes()
