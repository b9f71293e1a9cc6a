"""The live curve in a real JupyterLab, over a trainer that learns nothing and takes no time."""

import nbformat
import pytest

pytestmark = pytest.mark.browser

SETUP = """\
from fake_trainer import FakeTrainer
from rlkit.widgets.live import LiveRun

questions = [dict(prompt=f"{n}7+58=", answer=str(n * 10 + 65)) for n in range(5)]

def score(prompts, completions, answer, **kwargs):
    return [float(c == a) for c, a in zip(completions, answer)]

def run_of(**settings):
    return LiveRun(FakeTrainer(**settings), 0.8, questions=questions, score=score)
"""


@pytest.fixture
def page_of(lab, notebook):
    """cells -> the open notebook that holds them, run once."""

    def make(name, *cells, **size):
        made = nbformat.v4.new_notebook()
        made.cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, *cells)]
        made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(made, lab[1] / f"{name}.ipynb")
        page = notebook(f"{name}.ipynb", **size)
        page.run_all()
        page.widget.wait_for(timeout=30000)
        return page

    return make


def test_it_moves_stops_goes_on_and_comes_back_after_a_reload(page_of):
    # two minutes of steps, so that it still runs when a slow browser has reloaded
    page = page_of("moves", "run = run_of(steps=480, seconds=0.25)\nrun", "run.result()")
    message = "not started: press Start above, then run this cell again"
    page.page.wait_for_selector(f'.jp-OutputArea-output:has-text("{message}")', timeout=10000)
    assert "Traceback" not in page.page.locator(".jp-Notebook").inner_text()
    page.press("Start")
    page.until("points", lambda n: int(n) > 12)
    page.press("Stop")
    page.until("state", lambda state: state == "stopped")
    assert "stopped after step" in page.words("status")
    page.press("Start")
    page.until("state", lambda state: state == "running")
    page.menu("File", "Save Notebook")
    page.page.wait_for_timeout(800)
    page.page.reload(wait_until="domcontentloaded")
    page.widget.wait_for(timeout=60000)
    page.until("points", lambda n: n is not None)
    seen = int(page.data("points"))
    page.until("points", lambda n: int(n) > seen + 5)
    page.press("Stop")
    page.until("state", lambda state: state == "stopped")


def test_an_error_is_shown_in_words_as_text(page_of):
    page = page_of("fails", "run = run_of(steps=9, fail_at=3)\nrun")
    page.press("Start")
    page.until("state", lambda state: state == "failed")
    assert page.words("status") == "failed at step 4: ValueError: a reward is not a number <b>"


def test_completions_are_text_and_fit_in_a_narrow_page_in_the_dark(page_of):
    hostile = "<img src=x onerror=document.title='broken_in'>" + "9" * 200
    page = page_of(
        "hostile", f"run = run_of(steps=40, answer={hostile!r})\nrun", width=820, height=1100
    )
    page.menu("Settings", "Theme", "JupyterLab Dark")
    page.press("Start")
    page.until("state", lambda state: state == "done")
    assert page.page.title() != "broken_in"
    assert page.widget.locator("img").count() == 0
    assert "<img src=x" in page.words("table")
    assert page.overflowing() == []
    page.shot("narrow_dark")


def test_a_second_run_waits_and_its_stop_ends_the_first(page_of):
    page = page_of("two", "first = run_of(steps=480, seconds=0.25)\nfirst", "run_of(steps=5)")
    page.page.wait_for_function("document.querySelectorAll('.rlkit-run').length == 2")
    page.page.locator(".rlkit-button", has_text="Start").first.click()
    page.page.wait_for_selector(".rlkit-run[data-state=running]")
    page.press("Start")
    page.page.wait_for_selector('.rlkit-status:has-text("another run is at step")')
    assert page.overflowing() == []
    page.press("Stop")
    page.page.wait_for_selector(".rlkit-run[data-state=stopped]")
    page.press("Start")
    page.until("state", lambda state: state == "done")


def test_a_press_that_the_kernel_does_not_answer_says_so(page_of):
    lose = "run._widget._handle_custom_msg = lambda *message: None"
    page = page_of("deaf", "run = run_of(steps=5)\nrun", lose)
    page.page.wait_for_timeout(1000)
    page.press("Start")
    page.page.wait_for_selector('.rlkit-status:has-text("has not answered this press")')
    assert page.overflowing() == []
    page.shot("unanswered")
