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
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, NoReturn

LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process")
"""What gloo and NCCL say when a rank that they talk to is gone."""

TIMED_OUT = re.compile(r"(?:Timed out waiting |Timeout\(ms\)=)(\d+)")
"""The same, and for how many milliseconds, where a rank does not answer."""


def in_a_job() -> bool:
    """Whether torchrun, or something like it, started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1


def restarts() -> int:
    """How often torchrun has started this job again (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def report(error: BaseException | str) -> None:
    """Prints the sentence of an error, from the first rank that fails alone."""
    if not in_a_job():
        print(f"rlkit: {error}", file=sys.stderr)
        return
    if threading.current_thread() is threading.main_thread():
        # torchrun ends the others when the first is gone; this takes a moment and then leaves too
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    strangers = "EADDRINUSE" in str(error)  # what answers at that port is no store of ours
    if not strangers and not first_to_fail():
        note_to_all("spoken").wait()
        return
    text = f"rlkit: rank {os.environ['RANK']}: {sentence(error)}"
    print(text, file=sys.stderr)
    sys.stderr.flush()
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        # in the form that torchrun reads; without a call stack it shows the message
        told = {"message": {"message": text, "extraInfo": {"timestamp": str(int(time.time()))}}}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(told, file)
    if not strangers:
        note_to_all("spoken").write()


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
            f"waited {int(waited[1]) / 1000:g} s (ddp_timeout) for {silent_rank()}, which hangs or "
            "is slow; look at what it did last, or raise ddp_timeout"
        )
    if any(sign in text for sign in LOST):
        return f"lost {silent_rank()}, which ended without a word: killed, or out of memory"
    if "EADDRINUSE" in text:
        port = os.environ.get("MASTER_PORT")
        return f"port {port} is in use; give torchrun another --master-port, or --standalone"
    return text


# --- notes in the store where the ranks met


@cache
def store() -> Any:
    """The store, or None where it cannot be reached."""
    import torch.distributed as dist

    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=5))
    except (KeyError, RuntimeError):  # the rank that held it is gone
        return None


@dataclass(frozen=True)
class Note:
    """A text under a name, of this attempt of the job. Nothing depends on it but a message."""

    key: str

    def write(self, text: str = "") -> None:
        """Best effort."""
        with suppress(RuntimeError):
            if store() is not None:
                store().set(self.key, text)

    def read(self) -> str | None:
        """None if it is not there."""
        with suppress(RuntimeError):
            if store() is not None and store().check([self.key]):
                return store().get(self.key).decode()
        return None

    def wait(self, seconds: float = 3.0) -> None:
        """Until it is there, or so long."""
        with suppress(RuntimeError):
            if store() is not None:
                store().wait([self.key], timedelta(seconds=seconds))


def note_to_all(name: str) -> Note:
    """Of which there is one."""
    return Note(f"rlkit/{restarts()}/{name}")


def note_of(rank: int | str, name: str) -> Note:
    """Of which every rank has its own."""
    return note_to_all(f"{name}/{rank}")


def mark(place: str) -> None:
    """Notes what this rank is about to do, for those who may wait for it in vain."""
    if in_a_job():
        note_of(os.environ["RANK"], "at").write(place)


def first_to_fail() -> bool:
    """Claims the right to speak; True for the first rank of this attempt that asks."""
    note_of(os.environ["RANK"], "failed").write()
    try:
        return store() is None or store().add(note_to_all("claimed").key, 1) == 1
    except RuntimeError:  # better twice than never
        return True


def silent_rank(seconds: float = 2.0) -> str:
    """The rank that has not failed as this one has, and what it was about to do.

    All who wait for it, or lose it, fail at about the same time.
    """
    size, end = int(os.environ.get("WORLD_SIZE", 1)), time.monotonic() + seconds
    while True:
        ranks = [r for r in range(size) if note_of(r, "failed").read() is None]
        if len(ranks) <= 1 or time.monotonic() > end:
            break
        time.sleep(0.05)
    if not 0 < len(ranks) < size:
        return "another rank"
    named = [f"rank {r} (last seen in {note_of(r, 'at').read() or 'its start'})" for r in ranks]
    return " or ".join(named)


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
