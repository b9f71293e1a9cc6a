"""The base of the explorers: sliders above a canvas, the arithmetic in the page, a static twin.

An explorer is one Python class and one JavaScript file beside it, about 60 lines together:

    class Parabola(Explorer):
        script = "parabola.js"

        def __init__(self, power: int = 2) -> None:
            controls = [Slider("slope", "slope", -2, 2, 0.1), Toggle("log", "logarithmic", False)]
            super().__init__(controls, data={"power": power}, slope=1.0)

        def numbers(self) -> dict[str, float]:            # what the page computes too, as `numbers`
            return {"end": self.values["slope"] * 2 ** self.data["power"]}

        def static(self) -> Any:                          # the same picture by matplotlib, on white
            fig, (ax,) = paper(1)
            ax.plot(...)
            return titled(fig, f"it ends at {self.numbers()['end']:.2f}")

    // parabola.js. No import, no export: explorer.js is appended and brings the rest.
    const explorer = {
      height: (width, data) => (width < 700 ? 420 : 300), // of the canvas, in CSS pixels
      compute(values, data) {                             // plain arithmetic, at every input
        const end = values.slope * 2 ** data.power;
        return { title: `it ends at ${fixed(end)}`, numbers: { end }, notes: ["..."],
                 table: { columns: ["x", "y"], rows: [["2", fixed(end)]] } };
      },
      draw(stage, result, values, data) {                 // stage: width, height, ink, pointer,
        const plot = stage.plot({ left: 44, top: 40, width: stage.width - 60, height: 200,
          x: [0, 2], y: [-8, 8], xlabel: "x", ylabel: "y" });
        plot.line([[0, 0], [2, result.numbers.end]], stage.blue);
        plot.marks([[2, result.numbers.end]], stage.orange, { shape: "square" });
        stage.text("words", 4, 10, { bold: true });       // also stage.line, rect, mark, diverging
      },
      click(x, y, result, values) { return { slope: 0 }; },     // optional: what a click changes
    };

- Compute in JavaScript: the kernel may be busy training and answers late. What must be computed in
  Python (models, large arrays) is sent once as `data`; arrays go as `floats(array)` and are read by
  `floats(data.name)`. If Python must answer a slider, override `changed` and set self.data.
- `title` is the finding, in words with its number. Beside each colour there is a number, a shape or
  a dash. Colours: stage.blue, orange, green, purple here; COLOURS for the twin.
- `numbers` is what the tests compare: page against Python, before and after a slider has moved.
- Fixed axes do not jump. Reserve room for the longest words.
- Add the explorer to the lists in tests/test_explorers.py and browser/test_explorers_live.py.

A cell whose value is an explorer shows it. Where no page answers (RLKIT_FAST, RLKIT_FOREGROUND, or
anywidget missing) it shows the static twin.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlkit.optional import require
from rlkit.widgets import page
from rlkit.widgets.story import is_set

FOLDER = Path(__file__).parent
COLOURS = {"blue": "#0072b2", "orange": "#b34a00", "green": "#00785a", "purple": "#8a3c78"}
INK = "#222222"


@dataclass(frozen=True)
class Slider:
    """A number from low to high. digits: shown after the point; buttons: also one back, one on."""

    name: str
    label: str
    low: float
    high: float
    step: float
    digits: int = 2
    unit: str = ""
    buttons: bool = False
    kind: str = "slider"

    @property
    def default(self) -> float:
        """The low end."""
        return self.low


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    name: str
    label: str
    options: tuple[str, ...]
    kind: str = "choice"

    @property
    def default(self) -> str:
        """The first."""
        return self.options[0]


@dataclass(frozen=True)
class Toggle:
    """On or off."""

    name: str
    label: str
    default: bool = False
    kind: str = "toggle"


Control = Slider | Choice | Toggle


class Explorer:
    """A canvas with controls; subclasses name `script` and define `numbers` and `static`.

    controls: what can be moved; data: JSON and float32 bytes (`floats`) for the page; start: the
    first value of any control, by name. Raises ValueError for a start that is out of range or that
    no control has.
    """

    script: ClassVar[str]

    def __init__(
        self, controls: Sequence[Control], data: dict[str, Any] | None = None, **start: Any
    ) -> None:
        self.controls = list(controls)
        self._values = {control.name: control.default for control in self.controls}
        self._data = dict(data or {})
        self._widget: Any = None
        self.set(**start)

    # --- what a subclass says

    def numbers(self) -> dict[str, float]:
        """What the picture says, as numbers by name: the same as `numbers` in the page."""
        raise NotImplementedError

    def static(self) -> Any:
        """The picture of the present values as a matplotlib Figure on white."""
        raise NotImplementedError

    def changed(self) -> None:
        """Called after a control has moved in the page; sets self.data if Python must answer."""

    # --- what it holds

    @property
    def values(self) -> dict[str, Any]:
        """The value of each control now, by name."""
        return dict(self._values if self._widget is None else self._widget.values)

    @property
    def data(self) -> dict[str, Any]:
        """What the page computes from, beside the values."""
        return self._data

    @data.setter
    def data(self, data: dict[str, Any]) -> None:
        self._data = dict(data)
        if self._widget is not None:
            self._widget.data = self._data

    def set(self, **values: Any) -> "Explorer":
        """Move controls from Python. Raises ValueError, in words, for what no control can be."""
        known = {control.name: control for control in self.controls}
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"there is no control {name!r}; there are {', '.join(known)}")
            refuse(known[name], value)
        self._values = self.values | values
        if self._widget is not None:
            self._widget.values = self._values
        return self

    # --- the page

    @property
    def widget(self) -> Any:
        """The anywidget of this explorer, made at the first use."""
        if self._widget is None:
            controls = [asdict(control) for control in self.controls]
            made = widget_class(self.script)(
                values=self._values, data=self._data, controls=controls
            )
            made.observe(lambda _: self.changed(), "values")
            self._widget = made
        return self._widget

    def _ipython_display_(self) -> None:
        from IPython.display import display

        alone = is_set("RLKIT_FAST") or is_set("RLKIT_FOREGROUND")
        if alone or find_spec("anywidget") is None:
            display({"text/plain": repr(self), "image/png": png(self.static())}, raw=True)
        else:
            display({"text/plain": repr(self), **self.widget._repr_mimebundle_()[0]}, raw=True)

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {value:.4g}" for name, value in self.numbers().items())
        return f"{type(self).__name__}: {told}"


def refuse(control: Control, value: Any) -> None:
    """Raise ValueError if a control cannot take a value."""
    if isinstance(control, Slider) and not control.low <= value <= control.high:
        ends = f"{control.low} to {control.high}"
        raise ValueError(f"{control.name}={value} is outside of the slider's range, {ends}")
    if isinstance(control, Choice) and value not in control.options:
        known = ", ".join(control.options)
        raise ValueError(f"{control.name}={value!r} is not one of {known}")


@cache
def widget_class(script: str) -> type:
    """The widget of an explorer: its own JavaScript, then what all share.

    Raises ImportError, with the way to get it, where anywidget is missing.
    """
    anywidget = require("anywidget", "an explorer")
    import traitlets

    class ExplorerWidget(anywidget.AnyWidget):
        _esm = page.script(script, "explorer.js")
        _css = (FOLDER / "explorer.css").read_text("utf-8")
        values = traitlets.Dict().tag(sync=True)
        data = traitlets.Dict().tag(sync=True)
        controls = traitlets.List().tag(sync=True)

    return ExplorerWidget


def floats(array: Any) -> bytes:
    """An array or a tensor as little-endian float32 bytes, row by row."""
    return np.ascontiguousarray(array, dtype="<f4").tobytes()


# --- the static twin


def paper(*widths: float, height: float = 3.6, width: float = 9.6) -> tuple[Any, list[Any]]:
    """A white matplotlib Figure with one axes for each relative width, without frames.

    width, height: inches. Raises ImportError, with the way to get it, where matplotlib is missing.
    """
    require("matplotlib", "a static picture")
    import matplotlib.pyplot as plt

    ratios = {"width_ratios": widths}
    fig, axes = plt.subplots(
        1,
        len(widths),
        figsize=(width, height),
        dpi=110,
        facecolor="white",
        layout="constrained",
        squeeze=False,
        gridspec_kw=ratios,
    )
    for ax in axes[0]:
        ax.spines[["top", "right"]].set_visible(False)
    plt.close(fig)  # a cell shows it once, as its value
    return fig, list(axes[0])


def titled(fig: Any, title: str) -> Any:
    """The figure with its finding above it, on the left."""
    fig.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    return fig


def png(fig: Any) -> str:
    """A figure as the base64 text of a PNG file."""
    out = BytesIO()
    fig.savefig(out, format="png", bbox_inches="tight")
    return b64encode(out.getvalue()).decode()
