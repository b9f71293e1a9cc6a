"""Page 00 as a learner meets it: Run All, a guess, Start, a reload, the curve, the rest, a restart.

And an answer to an exercise, which a restart of the kernel does not lose.
"""

import inspect
import os
import shutil
import textwrap
import time
from pathlib import Path

import nbformat
import pytest
from checked_answers import RIGHT

from rlkit.course import pages
from rlkit.course.exercises import EXERCISES

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PAGE, SHOTS = ROOT / "notebooks" / "00_start.ipynb", ROOT / "shots"
WHOLE = os.environ.get("RLKIT_WHOLE") == "1"  # wait for the run's own end, which takes a minute


def test_the_first_two_minutes(lab, notebook):
    shutil.copy(PAGE, lab[1])
    page = notebook(PAGE.name)
    clock = Clock()
    page.write("guess = None", "guess = 0.8")
    page.run_all()
    page.page.wait_for_selector('.jp-OutputArea-output:has-text("91+43=")', timeout=60000)
    clock.mark("first answers")
    page.page.wait_for_selector(':text("not started: press Start above")', timeout=30000)
    page.shot("page_00_idle")
    page.press("Start")
    clock.mark("Start")
    page.until("accuracyPoints", lambda n: int(n) >= 1)
    clock.mark("first point of the curve")
    page.until("accuracyPoints", lambda n: int(n) >= 3, seconds=60)
    seen = int(page.data("points"))
    page.until("points", lambda n: int(n) > seen, seconds=30)
    clock.mark(page.words("title"))
    page.reload_during_the_run()
    clock.mark("the run goes on after a reload of the page")
    assert page.is_light()
    page.shot("page_00_mid_light")
    assert page.overflowing() == []
    assert "your guess 0.80" in page.words("legend")
    finish(page, clock)
    page.shot("page_00_end_light")
    page.menu("Settings", "Theme", "JupyterLab Dark")
    page.page.wait_for_function("document.body.dataset.jpThemeLight == 'false'")
    page.shot("page_00_end_dark")
    rest_of_page(page)
    clock.mark("end of the page")
    page.page.locator('.jp-Cell:has-text("->")').last.scroll_into_view_if_needed()
    page.page.screenshot(path=SHOTS / "page_00_after.png")
    page.restart()
    page.page.wait_for_selector('.jp-OutputArea-output:has-text("gradient")', state="detached")
    rest_of_page(page)
    clock.mark("end of the page after a restart of the kernel")
    assert page.page.get_by_text("taken up").count() == 1
    print(clock)


def test_an_answer_outlives_the_kernel(lab, notebook):
    section, name = next((s, n.exercises[0]) for s, n in pages.SECTIONS.items() if n.exercises)
    exercise = EXERCISES[name]
    head = f"def {exercise.function}{inspect.signature(exercise.solution)}:\n"
    answer = textwrap.indent(textwrap.dedent(RIGHT[name]["loop"]).strip(), "    ")
    cells = [
        f'import torch\nfrom rlkit.course import here\n\nhere("{section}")',
        f"@check.{name}\n{head}{answer}",
        f"print('whose:', check.label({exercise.function}))",
    ]
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(made, lab[1] / "answer.ipynb")
    page = notebook("answer.ipynb")
    page.run_all()
    says(page, f"{name}: right")
    says(page, f"whose: your {exercise.function}")
    page.restart()
    page.page.wait_for_selector('.jp-OutputArea-output:has-text("whose")', state="detached")
    page.page.locator('.jp-CodeCell:has-text("import torch") .jp-InputPrompt').first.click()
    page.menu("Run", "Run Selected Cell")
    says(page, f"taken up: your {exercise.function}")
    page.page.locator('.jp-CodeCell:has-text("whose") .jp-InputPrompt').last.click()
    page.menu("Run", "Run Selected Cell")
    says(page, f"whose: your {exercise.function}")


def says(page, words):
    """Wait until a cell's output holds some words."""
    page.page.wait_for_selector(f'.jp-OutputArea-output:has-text("{words}")', timeout=60000)


def finish(page, clock):
    if WHOLE:
        words = page.widget.locator(".rlkit-title")
        page.page.wait_for_function(
            "e => +e.textContent.match(/accuracy ([\\d.]+)/)[1] >= 0.9",
            arg=words.element_handle(),
            timeout=200_000,
        )
        clock.mark(page.words("title"))
        page.until("state", lambda state: state == "done", seconds=200)
    elif page.data("state") == "running":  # a slow browser may come after the end of the run
        page.press("Stop")
        page.until("state", lambda state: state == "stopped", seconds=30)
        assert "Start goes on from here" in page.words("status")
    clock.mark(page.words("title"))


def rest_of_page(page):
    """Run what follows the run: the same sums again, the picture, the question."""
    page.page.locator('.jp-Cell:has-text("run.result()") .jp-InputPrompt').last.click()
    page.menu("Run", "Run Selected Cell and All Below")
    page.page.wait_for_selector('.jp-OutputArea-output:has-text("gradient")', timeout=60000)
    page.page.wait_for_function("document.querySelectorAll('.jp-RenderedImage img').length >= 2")


class Clock:
    """Seconds since the page was open, by event."""

    def __init__(self):
        self.began, self.marks = time.monotonic(), []

    def mark(self, event):
        self.marks.append((time.monotonic() - self.began, event))

    def __str__(self):
        return "\n".join(f"{seconds:6.1f} s  {event}" for seconds, event in self.marks)
