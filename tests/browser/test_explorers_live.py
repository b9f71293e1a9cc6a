"""Every explorer in a real JupyterLab: it moves within 300 ms, stays in place, reads in both
themes, and shows the same numbers as Python. A new explorer is one more line in CASES."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.browser

SHOTS = Path(__file__).parents[2] / "shots"
WITHIN = 300  # milliseconds from the input to the drawn picture


@dataclass(frozen=True)
class Case:
    """code: makes `explorer`; slider: the one that is moved; moves: the values it is given."""

    name: str
    code: str
    slider: str
    moves: tuple[float, ...]


TILES = """
import torch
from rlkit.widgets.tiles import BlockStepper, TileStepper
H = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]]
W = [[1.0, 0.0], [0.0, 1.0], [0.5, -0.5], [-1.0, 1.0], [0.0, -1.0], [1.0, 1.0]]
Z = [[-1.0, 2.0, 0.5, 1.0, 3.0, 0.0, 1.5], [1.0, -2.0, 0.0, 0.5, -1.0, 0.5, 0.0]]
y = torch.tensor([5, 3, 0, 1])
explorer = """

BASELINE = """
import numpy as np
from rlkit.widgets.baseline import BaselineExplorer
noise = np.random.default_rng(1).normal(size=512)
right = (np.arange(512) % 5 < 2).astype(float)
explorer = BaselineExplorer([1.0, 0.0, 0.0, 0.5]"""
SHIFT = """
from rlkit.widgets.shift import ShiftExplorer
explorer = ShiftExplorer([1.0, 0.0, 0.0], [1.0, 2.0, 0.0])"""
POOL = ", pool=(right, 3 * right + noise), guess=0.4)"

STRIPS = """
from rlkit.widgets.gae import GAEExplorer, Strip
numbers = dict(ratio=[1.1, 0.6, 1.0], entropy=[0.4, 1.1, 0.0], kl=[0.1, -0.5, 0.02])
rows = [Strip("27+58=", ["8", "4", "∎"], 0.0, [0.6, 0.7, 0.1], 0.5, **numbers)]
steps = list("35+4+9=39+9=48") + ["∎"]
line = [(i / 15) ** 2 for i in range(15)]
numbers = dict(ratio=[1.0] * 15, entropy=line, kl=line)
rows.append(Strip("27+8+4+9=", steps, 1.0, line[::-1], 0.25, **numbers))
explorer = GAEExplorer(rows, beta=0.1)"""

PARABOLA = "from parabola import Parabola\nexplorer = Parabola()"
CLIP = "from rlkit.widgets.clip import ClipExplorer\nexplorer = ClipExplorer()"
BACK, LONG = "(advantage=-1.0, two_sided=True)", "completion=2, colour='entropy'"
NORMALISER = """
from rlkit.widgets.normaliser import NormaliserExplorer
explorer = NormaliserExplorer()"""
BETA = "from rlkit.widgets.beta import BetaExplorer\nexplorer = BetaExplorer(beta='0')"
WEIGHT = "from rlkit.widgets.weight import WeightExplorer\nexplorer = WeightExplorer()"

CASES = [
    Case("baseline", BASELINE + POOL, "shift", (1.5, 4)),
    Case("baseline group", BASELINE + ")", "r0", (0, 0.5)),
    Case("shift", SHIFT, "shift", (4, 1.25)),
    Case("parabola", PARABOLA, "slope", (-2, 1.5)),
    Case("tiles", TILES + "TileStepper(torch.tensor(H), torch.tensor(W), y)", "step", (5, 11)),
    Case("blocks", TILES + "BlockStepper(torch.tensor(Z), y[:2], block=4)", "step", (3, 5)),
    Case(
        "kl", "from rlkit.widgets.kl import KLExplorer\nexplorer = KLExplorer()", "first", (-2, 2)
    ),
    Case("normaliser", NORMALISER, "wrong", (3, 12)),
    Case("clip", CLIP, "ratio", (0.7, 1.3)),
    Case("clip two-sided", CLIP.replace("()", BACK), "ratio", (1.8, 2.6)),
    Case("gae", STRIPS, "lam", (0.0, 0.5)),
    Case("gae long", STRIPS.replace("beta=0.1", LONG), "gamma", (0.5, 0.9)),
    Case("weight", WEIGHT, "p", (0.5, 0.9)),
    Case("beta", BETA, "done", (20, 60)),
]

MOVE = """([name, value]) => new Promise((done) => {
  const root = document.querySelector(".rlkit-explorer");
  const input = root.querySelector(`input[data-name="${name}"]`);
  const canvas = root.querySelector("canvas");
  const [before, high] = [canvas.toDataURL(), root.getBoundingClientRect().height];
  const began = performance.now();
  new MutationObserver((_, observer) => {
    const ms = performance.now() - began;
    observer.disconnect();
    done({ ms, changed: canvas.toDataURL() !== before,
      jump: Math.abs(root.getBoundingClientRect().height - high) });
  }).observe(root, { attributes: true, attributeFilter: ["data-values"] });
  input.value = value;
  input.dispatchEvent(new Event("input", { bubbles: true }));
})"""

OVERFLOWING = """root => [...root.querySelectorAll("*")].filter(e => e.clientWidth && (
    e.scrollWidth > e.clientWidth + 1
    || e.getBoundingClientRect().right > root.getBoundingClientRect().right + 1
  )).map(e => `${e.tagName}.${e.className} ${e.scrollWidth} > ${e.clientWidth}`)"""


class Driven:
    """An explorer in an open notebook."""

    def __init__(self, notebook):
        self.notebook, self.page = notebook, notebook.page
        self.root = self.page.locator(".rlkit-explorer").first
        self.page.wait_for_selector(".rlkit-explorer[data-drawn]", timeout=60000)
        self.page.wait_for_timeout(200)

    def data(self, key):
        return json.loads(self.root.evaluate(f"e => e.dataset.{key}"))

    def move(self, name, value):
        """Set a slider and wait for the picture: {ms, changed, jump}."""
        return self.page.evaluate(MOVE, [name, value])

    def shot(self, name):
        self.root.scroll_into_view_if_needed()
        self.notebook.page.screenshot(path=SHOTS / f"{name}.png")


@pytest.fixture
def driven(lab, notebook):
    """(name, code) -> the explorer that code calls `explorer`, shown in an open notebook."""

    def make(name, code, *more, **size):
        made = nbformat.v4.new_notebook()
        cells = (code + "\nexplorer", *more)
        made.cells = [nbformat.v4.new_code_cell(source) for source in cells]
        made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(made, lab[1] / f"{name}.ipynb")
        page = notebook(f"{name}.ipynb", **size)
        page.menu("Run", "Run Selected Cell")
        return Driven(page)

    return make


def in_python(code):
    """The explorer of the same code, in this process."""
    names = {}
    exec(code, names)
    return names["explorer"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_moves_at_once_and_says_what_python_says(case, driven):
    shown, twin = driven(case.name, case.code), in_python(case.code)
    for value in case.moves:
        moved = shown.move(case.slider, value)
        assert moved["changed"], f"{case.slider}={value} drew the same picture"
        assert moved["ms"] < WITHIN
        assert moved["jump"] < 1, "the page below the explorer jumps"
        expected = twin.set(**{case.slider: value}).numbers()
        assert shown.data("numbers") == pytest.approx(expected, rel=1e-4, abs=1e-5, nan_ok=True)
    by_keyboard(shown, case.slider)
    in_both_themes(shown, case.name)


def by_keyboard(shown, slider):
    """The arrow keys move the slider that has the focus."""
    before = shown.data("values")[slider]
    shown.root.locator(f'input[data-name="{slider}"]').focus()
    shown.page.keyboard.press("ArrowLeft")
    shown.page.wait_for_timeout(300)
    assert shown.data("values")[slider] < before


def in_both_themes(shown, name):
    """Nothing is cut off, wide or narrow; pictures of all for human eyes."""
    for theme in ("light", "dark"):
        if theme == "dark":
            shown.notebook.menu("Settings", "Theme", "JupyterLab Dark")
            shown.page.wait_for_timeout(600)
        assert shown.notebook.is_light() == (theme == "light")
        for width in (1400, 860):
            shown.page.set_viewport_size({"width": width, "height": 1000})
            shown.page.wait_for_timeout(300)
            assert shown.root.evaluate(OVERFLOWING) == [], (theme, width)
            shown.shot(f"explorer_{name}_{theme}_{width}")


def test_every_kind_of_control_reaches_the_page_and_python(driven):
    code = PARABOLA.replace("Parabola()", "Parabola(words='<img src=x>')")
    shown = driven("controls", code, "print('values', explorer.values, explorer.calls > 0)")
    shown.root.locator("input[type=radio][value=down]").check()
    shown.root.locator("input[type=checkbox]").check()
    shown.root.locator(".rlkit-step").last.click()
    shown.page.wait_for_timeout(300)
    assert shown.data("numbers") == {"end": -2.0, "first": 0.25}
    assert "<img src=x>" in shown.root.inner_text()
    assert shown.root.locator("img").count() == 0
    shown.page.locator(".jp-CodeCell .jp-InputPrompt").last.click()
    shown.notebook.menu("Run", "Run Selected Cell")
    words = re.compile(r"values \{'slope': 1.5, .*\} True")
    shown.page.locator(".jp-OutputArea-output", has_text=words).wait_for(timeout=10000)
    shown.root.locator("canvas").click()
    shown.page.wait_for_timeout(200)
    assert shown.data("values")["slope"] == 0


def test_python_moves_the_page(driven):
    shown = driven("from_python", PARABOLA, "explorer.set(slope=-1.0, way='down')")
    shown.notebook.menu("Run", "Run Selected Cell")
    shown.page.wait_for_function(
        "JSON.parse(document.querySelector('.rlkit-explorer').dataset.values).slope == -1"
    )
    assert shown.data("numbers")["end"] == 2.0
    assert shown.root.locator("input[type=range]").input_value() == "-1"
    assert shown.root.locator("input[value=down]").is_checked()
