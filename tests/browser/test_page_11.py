"""Page 11's live ranks in a real JupyterLab: they move, Stop ends them, and so does a restart."""

import os
import re
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest
from test_launcher import all_end, until

pytestmark = [pytest.mark.browser, pytest.mark.slow]

RANKS = """\
from rlkit.course.pages.page_11 import SIZES, wide_model
from rlkit.memory import Ranks
from rlkit.widgets.ranks import LiveRanks

ranks = Ranks(wide_model(), fsdp=2, head="full", **(SIZES | {"max_steps": 14}))
run = LiveRanks(ranks, guess=60)
run"""


@pytest.fixture
def page(lab, notebook):
    """The page's ranks in a notebook of their own, with more steps than anybody waits for."""
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(source) for source in (RANKS, "run.result()")]
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(made, lab[1] / "ranks.ipynb")
    page = notebook("ranks.ipynb")
    page.run_all()
    page.widget.wait_for(timeout=120000)
    return page


@pytest.fixture
def new_ranks(lab):
    """new_ranks() -> pids of the ranks that this JupyterLab's kernels have started."""
    mark = f"JUPYTER_CONFIG_DIR={lab[2].parent}".encode()

    def find():
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                is_rank = b"rlkit.memory.rank" in (folder / "cmdline").read_bytes().split(b"\0")
                if is_rank and mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    return find


def numbers(page):
    """Live bytes of each rank, as the page has them."""
    return [int(x) for x in (page.data("bytes") or "").split()]


def start(page):
    page.press("Start")
    page.until("state", lambda state: state == "running")
    page.until("bytes", lambda b: all(int(x) for x in b.split()), seconds=120)


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="reads /proc")
def test_bytes_move_and_stop_ends_the_processes(page, new_ranks):
    assert page.page.get_by_text("not started: press Start above").count() == 1
    page.shot("page_11_idle")
    page.press("Start")
    page.page.wait_for_selector('.rlkit-status:has-text("rank 1 ")', timeout=30000)
    page.page.wait_for_timeout(2000)
    page.until("bytes", lambda b: all(int(x) for x in b.split()), seconds=120)
    seen = set()
    for _ in range(300):
        seen |= {tuple(numbers(page))}
        if all(len({s[i] for s in seen}) > 3 for i in (0, 1)):
            break
        page.page.wait_for_timeout(200)
    assert all(len({s[i] for s in seen}) > 3 for i in (0, 1)), "the bytes of both ranks move"
    page.page.wait_for_selector('.rlkit-status:has-text("step 3 of 14")', timeout=120000)
    assert re.match(r"Each of 2 ranks holds [\d.]+ MB", page.words("title"))
    for name in ("logits", "activations", "optimiser", "weights", "together"):
        assert name in page.words("table")
    assert page.overflowing() == []
    page.shot("page_11_light")
    page.widget.locator("canvas").first.hover(position={"x": 75, "y": 150})
    page.page.wait_for_selector('.rlkit-read:has-text(" MB = ")', timeout=5000)
    page.menu("Settings", "Theme", "JupyterLab Dark")
    page.page.wait_for_timeout(800)
    page.shot("page_11_dark")
    pids = new_ranks()
    assert len(pids) == 2
    page.press("Stop")
    page.until("state", lambda state: state == "stopped", seconds=40)
    assert "stopped after step" in page.words("status")
    all_end(pids)


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="reads /proc")
def test_a_reload_brings_the_picture_back_and_a_restart_leaves_no_process(page, new_ranks):
    start(page)
    pids = new_ranks()
    assert len(pids) == 2
    page.menu("File", "Save Notebook")
    page.page.wait_for_timeout(800)
    page.page.reload(wait_until="domcontentloaded")
    page.widget.wait_for(timeout=60000)
    page.until("points", lambda n: n is not None and int(n) > 0, seconds=60)
    seen = page.data("points")
    page.until("points", lambda n: n != seen, seconds=60)
    assert sorted(new_ranks()) == sorted(pids), "the same processes go on"
    page.shot("page_11_reloaded")
    page.menu("Kernel", "Restart Kernel…")
    page.page.locator(".jp-Dialog button", has_text="Restart").click()
    all_end(pids, 20)
    until(lambda: new_ranks() == [], 20)
