"""Running a learner's function where it cannot hold up the notebook, spoil it, or cheat unseen.

It runs in a thread of its own (a subprocess would not see the notebook's variables), and the cell
waits for it only so long. Then the thread is sent an exception, again and again, until it ends;
that reaches loops in Python on every system. What waits inside C (a lock, a long sleep) or catches
everything around a long inner loop may not end: such a thread is left behind, as a daemon, and the
learner is told.
"""

import ctypes
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OutOfTime(Exception):
    """The call did not return in time. left_behind: and could not be stopped either."""

    def __init__(self, seconds: float, left_behind: bool) -> None:
        super().__init__(seconds)
        self.seconds, self.left_behind = seconds, left_behind


class Stop(BaseException):
    """Sent into a thread to end it; no `except Exception` catches it."""


def within(seconds: float, call: Callable[[], Any], patience: float = 1.0) -> Any:
    """What call() returns or raises, from a thread of its own.

    Raises OutOfTime after so many seconds, and up to `patience` more to end the thread.
    """
    box: dict[str, Any] = {}

    def work() -> None:
        try:
            box["result"] = call()
        except BaseException as error:  # also exit() and what Stop interrupts
            box["error"] = error

    thread = threading.Thread(target=work, daemon=True, name="exercise")
    thread.start()
    try:
        wait(thread, seconds)
    finally:  # a press of Interrupt ends the thread too
        late = thread.is_alive()
        if late:
            stop(thread, patience)
    if late:
        raise OutOfTime(seconds, thread.is_alive())
    if "error" in box:
        raise box["error"]
    return box["result"]


def wait(thread: threading.Thread, seconds: float) -> None:
    """Wait in short naps: on Windows a long one would not notice Interrupt."""
    end = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < end:
        thread.join(0.05)


def stop(thread: threading.Thread, patience: float) -> None:
    """Send Stop until the thread has ended: a bare `except:` may catch it a few times."""
    end = time.monotonic() + patience
    while thread.is_alive() and time.monotonic() < end:
        ident = ctypes.c_ulong(thread.ident)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Stop))
        thread.join(0.002)


def watched(function: Callable, args: Sequence[Any], twins: Sequence[Callable]) -> tuple[Any, bool]:
    """(what the function returns, whether it called one of the twins on its way)."""
    codes = {twin.__code__ for twin in twins}
    called = []

    def notice(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code in codes:
            called.append(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(notice)
    try:
        result = function(*args)
    finally:
        sys.setprofile(before)
    return result, bool(called)


class Bytes(TorchDispatchMode):
    """Counts the bytes that are alive at once in this thread, beyond those of `args`."""

    def __init__(self, args: Sequence[Any]) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self.known = {a.untyped_storage()._cdata for a in args if isinstance(a, Tensor)}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # else torch imports its compiler at the first operation, which takes seconds of a check
        return False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.meet(leaf.untyped_storage())
        return result

    def meet(self, storage: Any) -> None:
        """Count a storage once, for as long as it lives (also where only autograd holds it)."""
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self.forget, key, size)

    def forget(self, key: int, size: int) -> None:
        """A storage was freed."""
        self.known.discard(key)
        self.live -= size


def peak_bytes(function: Callable, args: Sequence[Any]) -> int:
    """The most bytes that function(*args) holds at once beyond its arguments."""
    with Bytes(args) as counted:
        function(*args)
    return counted.peak
