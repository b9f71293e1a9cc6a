"""Running a solution notebook, and keeping of its outputs what a page without a kernel can show."""

import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from rlkit.course.rules import code_digest
from rlkit.optional import require

MOST_SECONDS, MOST_BYTES = 90, 2 * 2**30
WIDGET = "application/vnd.jupyter.widget-view+json"
PEAK = "__import__('resource').getrusage(0).ru_maxrss * 1024"  # Linux counts KiB


def run(notebook: Any, name: str, timeout: int = 600) -> None:
    """Execute in place, in an empty folder, live runs in the foreground; prints time and memory.

    Raises nbclient's CellExecutionError if a cell fails.
    """
    nbclient = require("nbclient", "executing notebooks")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook,
            timeout=timeout,
            store_widget_state=False,
            record_timing=False,
            resources={"metadata": {"path": folder}},
        )
        with client.setup_kernel(env=os.environ | {"RLKIT_FOREGROUND": "1"}):
            spent = execute_all(client)
            peak, processor = peak_bytes(client), clock(client)
    clean(notebook)
    notebook.metadata["rlkit"] = {"code": code_digest(notebook), "seconds": spent}
    report(name, time.monotonic() - began, processor, peak)


def execute_all(client: Any) -> dict[str, int]:
    """Run every cell; the kernel's seconds by section, in steps of five, for the timing sheet."""
    spent: dict[str, float] = {}
    section, before = None, clock(client)
    for index, cell in enumerate(client.nb.cells):
        if opened := re.search(r'^here\("(.+)"\)', cell.source, re.M):
            section = opened[1]
        client.execute_cell(cell, index)
        now = clock(client)
        if section is not None:
            spent[section] = spent.get(section, 0.0) + now - before
        before = now
    return {name: 5 * round(seconds / 5) for name, seconds in spent.items()}


def clock(client: Any) -> float:
    """Seconds of processor time of the kernel and of the processes it has waited for.

    They depend little on what else the machine does. Where there is no /proc: of the clock.
    """
    try:
        pid = client.km.provisioner.pid
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError):
        return time.monotonic()


def peak_bytes(client: Any) -> int:
    """The most memory that the kernel's process has held, asked in a cell of its own."""
    import nbformat

    cells = client.nb.cells
    cells.append(nbformat.v4.new_code_cell(PEAK))
    client.execute_cell(cells[-1], len(cells) - 1)
    return int(cells.pop().outputs[0]["data"]["text/plain"])


def clean(notebook: Any) -> None:
    """Drop what only a live kernel can show, and what changes from run to run without meaning."""
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
            output.get("transient", {}).clear()


def report(name: str, seconds: float, processor: float, peak: int) -> None:
    """One line, and a second if a limit of the course is passed.

    On a busy machine the processor's seconds say more than the clock's: the fewer count.
    """
    spent = min(seconds, processor)
    print(f"{name}: {spent:.0f} s ({seconds:.0f} s by the clock), {peak / 2**30:.2f} GiB")
    if spent > MOST_SECONDS or peak > MOST_BYTES:
        print(f"{name}: over the limit of {MOST_SECONDS} s or {MOST_BYTES / 2**30:.0f} GiB")
