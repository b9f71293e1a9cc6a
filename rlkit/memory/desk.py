"""Plans that can be dropped: a process that plans, ended when its answer is no longer wanted.

    desk = Desk()
    desk.start()                                  # soon; imports torch while nobody waits
    found = desk.plan(setting)                    # blocks; raises Dropped after drop()
    desk.drop()                                   # from another thread

`Planner` serves whoever needs every answer. Here a newer question makes the older one worthless,
and a plan cannot be asked to stop: its process is killed and another one started.
The process ends with close(), with the interpreter, and when its input closes.
"""

import json
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rlkit.memory import cache
from rlkit.memory.planner import ERRORS, PROGRAM, Plan, environment
from rlkit.memory.settings import ANSWER, Setting


class Dropped(Exception):
    """Nobody waits for this answer any more."""


class Desk:
    """One process that plans, one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._complaints: Any = None
        self._dropped = False
        self._closed = False
        self._busy = False
        weakref.finalize(self, _end, self.__dict__)  # at the latest with the interpreter

    def start(self) -> None:
        """Starts the process if there is none; its imports go on while others do something."""
        with self._lock:
            self._running()

    def drop(self) -> None:
        """Whoever waits for a plan gets Dropped."""
        with self._lock:
            if self._busy:
                self._dropped = True
                self._process.kill()  # whoever waits for it sees its end, and clears away

    def close(self) -> None:
        """Ends the process for good."""
        self._closed = True
        self.drop()
        with self._lock:
            if not self._busy:
                _end(self.__dict__)

    @property
    def pid(self) -> int | None:
        """Of the process, if one runs."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def plan(self, setting: Setting, wanted: Callable[[], bool] = lambda: True) -> Plan:
        """From the disk, or made now. wanted: asked once more before the question goes out.

        Raises ValueError for what cannot be planned, Dropped after drop(), RuntimeError if the
        process dies.
        """
        name = cache.key(setting.to_dict())
        found = cache.load(name)
        if found is not None:
            with suppress(KeyError, TypeError, ValueError):
                return Plan.of(setting, found)
        found = self._ask(setting, wanted)
        if "error" in found:
            raise ERRORS.get(found["kind"], RuntimeError)(found["error"])
        cache.keep(name, found)
        return Plan.of(setting, found)

    def _ask(self, setting: Setting, wanted: Callable[[], bool]) -> dict[str, Any]:
        line = None
        with self._lock:
            if self._closed or not wanted():
                raise Dropped
            self._dropped = False
            process, complaints = self._running(), self._complaints
            self._busy = True
        try:
            with suppress(OSError, ValueError):  # killed while it was asked
                process.stdin.write(json.dumps(setting.to_dict()) + "\n")
                process.stdin.flush()
                line = next((x for x in process.stdout if x.startswith(ANSWER)), None)
        finally:
            with self._lock:
                self._busy = False
                if line is None:
                    dropped = self._dropped
                    said = "" if dropped else last_words(process, complaints)
                    _end(self.__dict__)
        if line is None:
            if dropped:
                raise Dropped
            raise RuntimeError(f"the process that plans has died: {said}")
        return json.loads(line.removeprefix(ANSWER))

    def _running(self) -> subprocess.Popen:
        if self._closed:
            raise Dropped
        if self._process is None or self._process.poll() is not None:
            _end(self.__dict__)
            self._complaints = tempfile.TemporaryFile("w+", encoding="utf-8")
            self._process = subprocess.Popen(
                [sys.executable, *PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                text=True,
                encoding="utf-8",
                env=environment(),
            )
        return self._process


def last_words(process: subprocess.Popen, complaints: Any) -> str:
    """What a process that has died said at the end."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    try:
        complaints.seek(0)
        return " ".join(complaints.read().strip().splitlines()[-3:]) or "it said nothing"
    except (OSError, ValueError):
        return "it said nothing"


def _end(state: dict[str, Any]) -> None:
    """Kills the process of a desk with these attributes, and waits for its end."""
    process, state["_process"] = state.get("_process"), None
    if process is not None:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, state.get("_complaints")):
            with suppress(OSError, ValueError):
                pipe.close()
