"""An explorer with every kind of control, to test what all explorers share."""

from pathlib import Path
from typing import Any

from rlkit.widgets.explorer import (
    COLOURS,
    Choice,
    Explorer,
    Slider,
    Toggle,
    floats,
    paper,
    titled,
)


class Parabola(Explorer):
    script = str(Path(__file__).with_suffix(".js"))

    def __init__(self, power: float = 2.0, words: str = "a note", **start: Any) -> None:
        controls = [
            Slider("slope", "slope", -2, 2, 0.5, buttons=True),
            Choice("way", "direction", ("up", "down")),
            Toggle("lift", "one higher"),
        ]
        data = {"power": power, "words": words, "points": floats([0.25, 4.0])}
        super().__init__(controls, data, **({"slope": 1.0} | start))
        self.calls = 0

    def changed(self) -> None:
        self.calls += 1

    def numbers(self) -> dict[str, float]:
        sign = 1 if self.values["way"] == "up" else -1
        end = sign * self.values["slope"] * self.data["power"] + self.values["lift"]
        return {"end": end, "first": 0.25}

    def static(self) -> Any:
        fig, (ax,) = paper(1)
        end = self.numbers()["end"]
        ax.plot([0, 2], [0, end], color=COLOURS["blue"], label=f"ends at {end:.2f}")
        ax.set(xlabel="x", ylabel="y")
        ax.legend()
        return titled(fig, f"it ends at {end:.2f}")
