"""The pages that train, as a learner meets them: Run All, Start where a run is asked for, a reload
while it goes, Stop, and on to the end; then a restart of the kernel, and its last section alone.
"""

import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LIMIT = 1_000_000  # bytes of a notebook's file, with all that it shows
ASKS = "not started: press Start above"
LAST = "check.progress()"
FAILED = '.jp-OutputArea-output:has-text("Error")'
PAGES = {  # page -> (runs that it asks for, where one rejoins after the last of them)
    "01_policy_gradient": (3, "1.7"),
    "02_rloo": (1, "2.5"),
    "03_ppo": (3, "3.8"),
    "04_grpo": (1, "4.5"),
}


@pytest.mark.parametrize("name", PAGES)
def test_run_all_reload_restart_and_rejoin(name, lab, notebook):
    runs, section = PAGES[name]
    shutil.copy(NOTEBOOKS / f"{name}.ipynb", lab[1])
    page = notebook(f"{name}.ipynb")
    page.run_all()
    for k in range(runs):
        train_what_it_asks_for(page, reload=k == 0)
    ended(page)
    page.restart()
    page.page.wait_for_selector(".rlkit-run", state="detached")
    here = page.page.locator(".jp-CodeCell", has_text=f'here("{section}")')
    here.locator(".jp-InputPrompt").click()
    page.menu("Run", "Run Selected Cell and All Below")
    ended(page)
    page.menu("File", "Save Notebook")
    page.page.wait_for_timeout(800)
    assert (lab[1] / f"{name}.ipynb").stat().st_size < LIMIT


def train_what_it_asks_for(page, reload):
    """Start the run that the page waits for, stop it after two points, and go on below."""
    asking = page.page.locator(".jp-CodeCell", has_text=ASKS).first
    asking.wait_for(timeout=90000)
    idle = page.page.locator(".rlkit-run[data-state=idle]").first
    idle.locator(".rlkit-button", has_text="Start").click()
    running = page.page.locator(".rlkit-run[data-state=running]").first
    running.wait_for(timeout=30000)
    if reload:
        page.reload_during_the_run()
    page.page.wait_for_function(
        """() => [...document.querySelectorAll(".rlkit-run")].every(
             e => e.dataset.state != "running" || +e.dataset.accuracyPoints >= 2)""",
        timeout=60000,
    )
    if running.count():  # a slow browser may come after the end of the run
        running.locator(".rlkit-button", has_text="Stop").click()
        page.page.wait_for_selector(".rlkit-run[data-state=running]", state="detached")
    asking.locator(".jp-InputPrompt").click()
    page.menu("Run", "Run Selected Cell and All Below")


def ended(page):
    """The last cell has told the learner's progress, and no cell stopped on the way."""
    page.page.locator(".jp-CodeCell", has_text=LAST).last.locator(
        ".jp-OutputArea-output"
    ).first.wait_for(timeout=120000)
    assert page.page.locator(FAILED).all_inner_texts() == []
    assert page.page.get_by_text(ASKS).count() == 0
