"""How a job of several ranks ends when one of them fails: with one sentence.

A rank that stops takes the others along, for they wait for it and lose it. Each of them would then
report an error of its own, of which only the first says what happened. So a rank that fails claims
the right to speak, in the store where the ranks met, before it leaves; the others go quietly.
torchrun ends whoever is left, and repeats the sentence in its summary.
"""

import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from typing import NoReturn

LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process")
"""What gloo and NCCL say when a rank that they talk to is gone."""

TIMED_OUT = re.compile(r"(?:Timed out waiting |Timeout\(ms\)=)(\d+)")
"""The same, and for how many milliseconds, where a rank does not answer."""


def in_a_job() -> bool:
    """Whether torchrun, or something like it, started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1


def report(error: BaseException | str) -> None:
    """Prints the sentence of an error, from the first rank that fails alone."""
    if not in_a_job():
        print(f"rlkit: {error}", file=sys.stderr)
        return
    if not first_to_fail():
        return
    text = f"rlkit: rank {os.environ['RANK']}: {sentence(error)}"
    print(text, file=sys.stderr)
    sys.stderr.flush()
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        # in the form that torchrun reads; without a call stack it shows the message
        told = {"message": {"message": text, "extraInfo": {"timestamp": str(int(time.time()))}}}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(told, file)


def leave_at_once(code: int) -> NoReturn:
    """Exits. A rank does without the interpreter's teardown, in which gloo's threads may abort."""
    if in_a_job():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def sentence(error: BaseException | str) -> str:
    """An error of the network in words; any other as it is."""
    text = str(error)
    if waited := TIMED_OUT.search(text):
        return (
            f"waited {int(waited[1]) / 1000:g} s (ddp_timeout) for another rank, which hangs or is "
            "slow; look at what it did last, or raise ddp_timeout"
        )
    if any(sign in text for sign in LOST):
        return "lost another rank, which ended without a word: killed, or out of memory"
    return text


def first_to_fail() -> bool:
    """Claims the right to speak; True for the first rank of this attempt that asks."""
    import torch.distributed as dist

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=5))
        return store.add(f"rlkit/failed/{attempt}", 1) == 1
    except RuntimeError:  # the rank that held the store is gone: better twice than never
        return True


@contextmanager
def one_voice() -> Iterator[None]:
    """Where all ranks would print the same and exit, as for a wrong flag, one of them prints."""
    if not in_a_job():
        yield
        return
    text = io.StringIO()
    try:
        with redirect_stdout(text), redirect_stderr(text):
            yield
    except SystemExit:
        if first_to_fail():
            sys.stderr.write(text.getvalue())
        raise
