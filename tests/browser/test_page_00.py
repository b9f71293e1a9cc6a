"""Page 00 as a learner meets it: Run All, a guess, Start, the curve, and the rest of the page."""

import os
import shutil
import time
from pathlib import Path

import pytest

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
    assert page.is_light()
    page.shot("page_00_mid_light")
    assert page.overflowing() == []
    assert "your guess 0.80" in page.words("legend")
    finish(page, clock)
    page.shot("page_00_end_light")
    page.menu("Settings", "Theme", "JupyterLab Dark")
    page.page.wait_for_timeout(500)
    assert not page.is_light()
    page.shot("page_00_end_dark")
    rest_of_page(page)
    clock.mark("end of the page")
    page.page.locator('.jp-Cell:has-text("->")').last.scroll_into_view_if_needed()
    page.page.screenshot(path=SHOTS / "page_00_after.png")
    page.menu("Kernel", "Restart Kernel and Clear Outputs of All Cells…")
    page.page.locator(".jp-Dialog button", has_text="Restart").click()
    page.page.wait_for_selector('.jp-OutputArea-output:has-text("gradient")', state="detached")
    rest_of_page(page)
    clock.mark("end of the page after a restart of the kernel")
    assert page.page.get_by_text("taken up").count() == 1
    print(clock)


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
    page.page.wait_for_selector(".jp-RenderedImage img")


class Clock:
    """Seconds since the page was open, by event."""

    def __init__(self):
        self.began, self.marks = time.monotonic(), []

    def mark(self, event):
        self.marks.append((time.monotonic() - self.began, event))

    def __str__(self):
        return "\n".join(f"{seconds:6.1f} s  {event}" for seconds, event in self.marks)
