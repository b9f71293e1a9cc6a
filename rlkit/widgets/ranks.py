"""Several ranks at work, live: each one's bytes by category, side by side on one axis.

    run = LiveRanks(Ranks("adder", fsdp=2, head="full"), beside=alone, guess=40)
    run                # Start, Stop, the picture
    run.result()       # in the next cell: the history, or a sentence that says what to wait for
    run.figure()       # the same picture, for pages that no kernel stands behind

The conventions are those of live.py: buttons only store a wish, a thread redraws at most five times
a second, Colab and nbval work in the cell itself (RLKIT_FOREGROUND, RLKIT_FAST).
Left out on purpose: the ranks themselves, which are rlkit.memory.Ranks and know of no page.
"""

import threading
import time
import weakref
from bisect import bisect_right
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rlkit.memory.launcher import Ranks, RanksNotReady
from rlkit.memory.timeline import CATEGORIES, in_order
from rlkit.optional import require
from rlkit.widgets import story
from rlkit.widgets.categories import look, table
from rlkit.widgets.page import script

REDRAW_SECONDS = 0.2
POINTS = 240
"""Most samples drawn of each rank."""
MB = 1e6
STEPS = (1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0)
"""Where an axis may end, times a power of ten."""
ALONE = "one rank alone"
HINT = "Point at the picture to read its numbers. The thin line below is the mean reward."


class LiveRanks:
    """Ranks with Start, Stop and a picture.

    ranks: not started yet, or ended. beside: ranks that have ended, whose rank 0 is drawn to the
    left, on the same axis. guess: MB at a rank's highest moment, drawn as a dashed line.
    """

    def __init__(
        self, ranks: Ranks, beside: Ranks | None = None, guess: float | None = None
    ) -> None:
        self.ranks, self.beside = ranks, beside
        self.guess = None if guess is None else float(guess)
        self.presses = 0
        self._top, self._widget, self._painting = 0.0, None, threading.Lock()

    # --- what a learner calls

    def start(self, block: bool | None = None) -> "LiveRanks":
        """Starts the ranks and returns; block=True, or a page that needs it: when they have ended.

        Raises RanksNotReady if they fail while the cell waits.
        """
        if self.ranks.state != "running":
            self.ranks.start()
            threading.Thread(
                target=follow, args=(weakref.ref(self), self.ranks), name="rlkit-paint", daemon=True
            ).start()
        if story.in_foreground() if block is None else block:
            self.wait()
            if self.ranks.state == "failed":
                self.ranks.result()
        return self

    def stop(self) -> None:
        """Ends the ranks after the step they are in."""
        self.ranks.stop()
        self._redraw()

    def wait(self) -> "LiveRanks":
        """Until all ranks have ended; an interrupt ends them."""
        try:
            self.ranks.wait()
        except KeyboardInterrupt:
            self.ranks.stop().wait()
        return self

    def result(self) -> list[dict[str, float]]:
        """As Ranks.result; where a page works in its cells, idle ranks start here."""
        if self.ranks.state == "idle" and story.in_foreground():
            self.start()
        return self.ranks.result()

    def figure(self) -> Any:
        """The picture as a matplotlib Figure on white."""
        from rlkit.widgets.ranks_static import figure

        return figure(self)

    # --- what is drawn

    @property
    def title(self) -> str:
        """The finding so far, in one line."""
        try:
            peaks = [moment.bytes / MB for moment in self.ranks.at_peak()]
        except RanksNotReady:
            begun = any(len(timeline) for timeline in self.ranks.samples)
            return "The first step is under way" if begun else "No bytes yet"
        if len(peaks) == 1:
            return f"One rank holds {peaks[0]:.1f} MB at its highest moment"
        found = f"Each of {len(peaks)} ranks holds {max(peaks):.1f} MB at its highest moment"
        if self.beside is None:
            return found
        other = "one alone" if self.beside.size == 1 else "before"
        return f"{found}, {other} {self.beside.at_peak()[0].bytes / MB:.1f} MB"

    def panels(self) -> list[tuple[str, Ranks, int]]:
        """(name, ranks, number of the rank), from left to right."""
        size, found = self.ranks.size, []
        if self.beside is not None:
            found.append((ALONE if self.beside.size == 1 else "before, rank 0", self.beside, 0))
        if size == 1:
            return [*found, (ALONE, self.ranks, 0)]
        return found + [(f"rank {i} of {size}", self.ranks, i) for i in range(size)]

    def top(self) -> float:
        """The end of the axis in bytes; it grows and never shrinks."""
        wanted = [MB, (self.guess or 0) * MB]
        for _, ranks, _ in self.panels():
            wanted += [max(t.total) for t in ranks.samples if len(t)]
            wanted += [end.at_peak.bytes for steps in ranks.steps for end in steps]
        self._top = max(self._top, rounded_up(1.05 * max(wanted)))
        return self._top

    def lines(self) -> list[dict[str, Any]]:
        """Dashed lines across each panel."""
        if self.guess is None:
            return []
        return [{"bytes": self.guess * MB, "name": f"your guess {self.guess:g}"}]

    def table(self) -> dict[str, Any]:
        """MB by category at the highest moment of each rank's last step."""
        moments = []
        for _, ranks, number in self.panels():
            steps = ranks.steps[number] if number < len(ranks.steps) else []
            moments.append(steps[-1].at_peak if steps else None)
        names = in_order({c for m in moments if m for c in m.by_category})
        rows = [
            {"look": vars(look(c)), "meaning": look(c).meaning}
            | {"cells": [look(c).label, *(shown(m and m.by_category.get(c, 0)) for m in moments)]}
            for c in reversed(names)
            if any(m and m.by_category.get(c, 0) >= 0.05 * MB for m in moments)
        ]
        total = ["together", *(shown(m and m.bytes) for m in moments)]
        rows.append({"look": None, "meaning": "all of them", "cells": total})
        columns = ["MB", *(name.removesuffix(f" of {self.ranks.size}") for name in self.names())]
        caption = "At the highest moment of the last step"
        return {"caption": caption, "columns": columns, "rows": rows}

    def names(self) -> list[str]:
        """Of the panels, short."""
        return [name.removesuffix(" rank alone") for name, _, _ in self.panels()]

    def view(self) -> dict[str, Any]:
        """Everything the page shows but the samples."""
        state, top = self.ranks.state, self.top()
        return {
            "state": state,
            "title": self.title,
            "status": f"press Start: {self.ranks.status}" if state == "idle" else self.ranks.status,
            "unit": "MB",
            "xlabel": "step",
            "top": top,
            "ticks": [f"{top * i / 4 / MB:g}" for i in range(5)],
            "panels": [
                {"name": name, "steps": total_steps(ranks), "rewards": rewards(ranks)}
                for name, ranks, _ in self.panels()
            ],
            "lines": self.lines(),
            "looks": table(),
            "phases": PHASES,
            "table": self.table(),
            "hint": HINT,
            "buttons": not story.in_foreground(),
            "presses": self.presses,
            "unanswered": story.UNANSWERED,
            "can_start": state != "running",
            "can_stop": state == "running",
        }

    def rows(self) -> bytes:
        """[n, 3 + categories] float32: panel, step, phase, bytes of each category."""
        found = []
        for i, (_, ranks, number) in enumerate(self.panels()):
            for step, phase, amounts in placed(ranks, number):
                found.append((i, step, phase_number(phase), *amounts))
        width = 3 + len(CATEGORIES)
        return np.asarray(found, dtype="<f4").reshape(-1, width).tobytes()

    # --- the page

    def _redraw(self) -> None:
        if self._widget is None:
            return
        with self._painting, self._widget.hold_sync():
            self._widget.view, self._widget.rows = self.view(), self.rows()

    def _press(self, button: str) -> None:
        self.presses += 1  # tells the page that its press has arrived
        {"start": self.start, "stop": self.stop}.get(button, lambda: None)()
        self._redraw()

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if story.in_foreground():
            if self.ranks.state == "idle":
                self.start()
            display(self.figure())
            return
        if self._widget is None:
            me = weakref.ref(self)  # so that ranks end when they are forgotten, page or no page
            self._widget = widget_class()()
            self._widget.on_msg(lambda _, message, __: pressed(me(), message))
        self._redraw()
        display({"text/plain": repr(self), **self._widget._repr_mimebundle_()[0]}, raw=True)

    def __repr__(self) -> str:
        return f"{self.title}; {self.ranks.status}"


def pressed(run: LiveRanks | None, message: dict[str, Any]) -> None:
    """A button of the page."""
    if run is not None:
        run._press(message.get("press", ""))


def follow(run: "weakref.ref[LiveRanks]", ranks: Ranks) -> None:
    """Redraws while the ranks run, as long as somebody still has the run."""
    ended = False
    while not ended:
        ended = ranks.state != "running"
        if (shown_run := run()) is None:
            return
        shown_run._redraw()
        del shown_run
        time.sleep(REDRAW_SECONDS)


@cache
def widget_class() -> type:
    """The anywidget class. Raises ImportError, with the way to get it, where it is missing."""
    anywidget = require("anywidget", "the live picture of ranks")
    import traitlets

    folder = Path(__file__).parent

    class RanksPicture(anywidget.AnyWidget):
        _esm = script("ranks.js")
        _css = (folder / "curve.css").read_text() + (folder / "ranks.css").read_text()
        view = traitlets.Dict().tag(sync=True)
        rows = traitlets.Bytes().tag(sync=True)

    return RanksPicture


PHASES = ["generate", "score", "forward", "backward", "step", "other"]


def phase_number(phase: str) -> int:
    """Its place in PHASES."""
    return PHASES.index(phase) if phase in PHASES else len(PHASES) - 1


def total_steps(ranks: Ranks) -> int:
    """Over all settings."""
    return ranks.max_steps * len(ranks.settings)


def rewards(ranks: Ranks) -> list[tuple[int, float]]:
    """(steps done, mean reward)"""
    return [(i + 1, row["reward"]) for i, row in enumerate(ranks.history)]


def placed(ranks: Ranks, number: int) -> list[tuple[float, str, tuple[int, ...]]]:
    """A rank's samples: (step, phase, bytes by category); 2.5 is the middle of the third step.

    The step under way takes at least the room that the one before it took, so that what is drawn
    stays where it is until the step ends.
    """
    if number >= len(ranks.samples):
        return []
    timeline, ends = ranks.samples[number].thinned(POINTS), ranks.steps[number]
    if not len(timeline):
        return []
    bounds = [timeline.seconds[0], *(end.seconds for end in ends)]
    last = bounds[-1] - bounds[-2] if len(bounds) > 1 else 1.0
    bounds.append(bounds[-1] + max(last, timeline.seconds[-1] - bounds[-1], 1e-6))
    return [
        (min(fraction(bounds, seconds), total_steps(ranks)), phase, amounts)
        for seconds, phase, _, amounts in timeline.rows
    ]


def fraction(bounds: list[float], seconds: float) -> float:
    """Where a time lies between the ends of steps."""
    i = min(max(bisect_right(bounds, seconds) - 1, 0), len(bounds) - 2)
    span = max(bounds[i + 1] - bounds[i], 1e-9)
    return i + min(max((seconds - bounds[i]) / span, 0.0), 1.0)


def rounded_up(x: float) -> float:
    """The next end of an axis."""
    power = 10.0 ** np.floor(np.log10(x))
    return float(next(s for s in STEPS if s * power >= x - 1e-9) * power)


def shown(amount: int | None) -> str:
    """Bytes in MB."""
    return "" if amount is None else f"{amount / MB:.1f}"


def columns(ranks: Ranks, number: int) -> tuple[list[float], dict[str, list[float]]]:
    """For a static picture: [n] steps, and category -> [n] MB of those that ever count."""
    rows = placed(ranks, number)
    stacked = {c: [row[2][k] / MB for row in rows] for k, c in enumerate(CATEGORIES)}
    return [row[0] for row in rows], {c: v for c, v in stacked.items() if max(v, default=0) > 0.02}
