"""nbval, strict where it is silent.

By itself nbval lets pass: a bad %magic (an error status without an error output), a cell marked
raises-exception that raises nothing, a checked cell with nothing stored to check, and anything
that a library writes to stderr. And it waits for the cell's whole timeout when a kernel has died.
What each cell printed, and what its kernel's process has used so far, goes to cells.jsonl.
Test runs copy this file beside the notebooks that they run (see test_notebooks.py).
"""

import json
import os
import time
from pathlib import Path
from queue import Empty

import pytest

nbval = pytest.importorskip("nbval")

from nbval.kernel import RunningKernel  # noqa: E402
from nbval.plugin import IPyNbCell  # noqa: E402


def await_reply(self, msg_id, timeout=None):
    """RunningKernel.await_reply that notices a dead kernel, and keeps the reply for later."""
    end = time.monotonic() + (timeout or 600)
    while time.monotonic() < end:
        try:
            message = self.get_message(stream="shell", timeout=1)
        except Empty:
            if not self.is_alive():
                raise RuntimeError("the kernel died (out of memory?)") from None
            continue
        if message["parent_header"].get("msg_id") == msg_id:
            self.last_reply = message["content"]
            return
    raise Empty


RunningKernel.await_reply = await_reply


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """What nbval found, then what it does not look for."""
    try:
        result = yield
    finally:
        if isinstance(item, IPyNbCell):
            note(item)
    if isinstance(item, IPyNbCell):
        fault = unseen(item)
        if fault:
            item.raise_cell_error(fault)
    return result


def unseen(item):
    """What is wrong with a cell that nbval has passed; None if nothing is."""
    outputs = item.test_outputs or []
    raised = any(output.output_type == "error" for output in outputs)
    reply = getattr(item.parent.kernel, "last_reply", {})
    if item.options["check_exception"]:
        return None if raised else "marked raises-exception, but nothing was raised"
    if reply.get("status") == "error" and not raised:
        return f"failed without a traceback: {reply.get('ename')}: {reply.get('evalue')}"
    if item.options["check"] and "NBVAL_CHECK_OUTPUT" in item.cell.source and not item.cell.outputs:
        return "a checked cell, but no output is stored to check against"
    noise = [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    return f"wrote to stderr: {noise[0][:200]!r}" if noise else None


def note(item):
    """One line of cells.jsonl: the cell, its printed text, and its kernel."""
    outputs = item.test_outputs or []
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    pid = getattr(item.parent.kernel.km.provisioner, "pid", None)
    line = {"cell": item.cell_num, "id": item.cell.get("id"), "text": text, "pid": pid}
    with open("cells.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(line | used(pid)) + "\n")


def used(pid):
    """{"bytes": the most memory a process has held, "seconds": of CPU time}; {} but on Linux."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    except (OSError, IndexError):
        return {}
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    # user and system time, its own and that of the processes it has waited for
    return {"bytes": peak, "seconds": sum(map(int, times)) / os.sysconf("SC_CLK_TCK")}
