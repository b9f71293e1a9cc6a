"""The live curve as a widget: a canvas of ours, 10 kB of JavaScript, which loads nothing else.

    widget = curve_widget(on_press)         on_press("start") or ("stop"), from any thread
    show(widget, view, accuracy, reward)    one message to the page

Left out on purpose: any decision. The page draws `view` and two series, and reports presses.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rlkit.optional import require
from rlkit.widgets.page import script

MAX_POINTS = 500

Point = tuple[float, float]


@cache
def _widget_class() -> type:
    anywidget = require("anywidget", "the live curve")
    import traitlets

    folder = Path(__file__).parent

    class Curve(anywidget.AnyWidget):
        _esm = script("curve.js")
        _css = (folder / "curve.css").read_text()
        view = traitlets.Dict().tag(sync=True)
        accuracy = traitlets.Bytes().tag(sync=True)
        reward = traitlets.Bytes().tag(sync=True)

    return Curve


def curve_widget(on_press: Callable[[str], Any]) -> Any:
    """A new widget (an anywidget.AnyWidget) that calls on_press with the name of a button.

    Raises ImportError, with the way to get it, where anywidget is missing.
    """
    widget = _widget_class()()
    widget.on_msg(lambda _, message, __: on_press(message.get("press", "")))
    return widget


def show(
    widget: Any, view: dict[str, Any], accuracy: Sequence[Point], reward: Sequence[Point]
) -> None:
    """Send the words and both series in one message; a series is thinned to MAX_POINTS."""
    with widget.hold_sync():
        widget.view = view
        widget.accuracy = pack(accuracy)
        widget.reward = pack(reward)


def pack(series: Sequence[Point]) -> bytes:
    """[(x, y), ...] -> x0 y0 x1 y1 ... as little-endian float32, at most MAX_POINTS points."""
    return np.asarray(thin(series), dtype="<f4").tobytes()


def thin(series: Sequence[Point], most: int = MAX_POINTS) -> list[Point]:
    """At most `most` of the points, evenly spaced, the first and the last among them."""
    if len(series) <= most:
        return list(series)
    return [series[i] for i in np.linspace(0, len(series) - 1, most).round().astype(int)]
