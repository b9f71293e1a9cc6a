"""The processes of measured ranks: one thread starts them, hears them and ends them.

Left out on purpose: any notion of what the ranks are for. launcher.py is the part that is called.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from rlkit.memory.planner import environment
from rlkit.memory.settings import Setting
from rlkit.memory.timeline import CATEGORIES, Moment, Recorder

PROGRAM = ("-m", "rlkit.memory.rank")
SAMPLES = 1_200
"""Most rows kept of each rank; beyond that neighbours are merged."""
LOOK_SECONDS = 0.05
GRACE_SECONDS = 20.0
"""How long ranks may take to end their step after stop()."""
REASON_SECONDS = 3.0
"""How long to wait for the reason of a failure after its first sign."""


@dataclass(frozen=True)
class StepEnd:
    """A finished step of a rank."""

    part: int
    """Which of the settings, from 0."""
    step: int
    """From 1, in its part."""
    seconds: float
    """When it ended, since start()."""
    row: dict[str, float]
    """The trainer's log of it."""
    at_peak: Moment
    """The most bytes in it, by category."""
    by_phase: dict[str, dict[str, int]]
    """Phase -> the bytes by category at its highest moment."""


@dataclass
class Rank:
    """What this process knows of one rank."""

    number: int
    process: subprocess.Popen
    complaints: Any
    place: str = "starts"
    heard: float = field(default_factory=time.perf_counter)
    part: int = 0
    done: bool = False
    failure: dict[str, Any] | None = None
    samples: Recorder = field(default_factory=lambda: Recorder(SAMPLES))
    steps: list[StepEnd] = field(default_factory=list)

    def hear(self, message: dict[str, Any], start: float) -> None:
        """One line of it."""
        self.heard = time.perf_counter()
        seconds = message["at"] - start
        self.place = message.get("place", self.place)
        self.part = message.get("part", self.part)
        if "bytes" in message:
            amounts = message["bytes"]
            row = tuple(amounts.get(category, 0) for category in CATEGORIES)
            self.samples.add((seconds, message["phase"], sum(amounts.values()), row))
        if "step" in message:
            row, peak = message["step"], Moment(**message["peak"])
            end = StepEnd(self.part, row["step"], seconds, row, peak, message["phases"])
            self.steps.append(end)
            self.place = f"step {row['step'] + 1}"
        if "error" in message:
            self.failure = message
        self.done = self.done or bool(message.get("done"))

    def words(self) -> str | None:
        """Why it has ended without a word of its own; None: it has not."""
        code = self.process.poll()
        if code in (None, 0) or self.failure:
            return None
        if code < 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name} in {self.place!r}"
        self.complaints.seek(0)
        said = self.complaints.read().decode(errors="replace").strip().splitlines()[-1:]
        return f"ended with exit code {code}: {' '.join(said) or 'without a word'}"


class Job:
    """The ranks of one run, and the thread that starts, hears and ends them.

    Linux kills a process with the *thread* that started it, so this one lives as long as they do.
    It knows nothing of the Ranks that asked for it, which may be forgotten.
    """

    def __init__(self, settings: list[Setting], options: dict[str, Any], made_up: bool) -> None:
        self.settings, self.options, self.made_up = settings, options, made_up
        self.state, self.error, self.ranks = "idle", None, []
        self.seconds_at_end: float | None = None
        self.begun = time.perf_counter()
        self.stopping, self.abandoned = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._work, name="rlkit-ranks", daemon=True)

    def start(self) -> None:
        """Returns at once."""
        self.state, self.begun = "running", time.perf_counter()
        self.thread.start()

    def stop(self) -> None:
        """A wish."""
        self.stopping.set()

    def abandon(self) -> None:
        """Kills all, now: nobody waits for a result. Takes no lock: it may be called anywhere."""
        self.abandoned.set()
        for rank in list(self.ranks):
            with suppress(OSError):
                rank.process.kill()

    def join(self, timeout: float | None) -> None:
        """Until the thread has ended."""
        if self.thread.ident is not None:
            self.thread.join(timeout)

    @property
    def seconds(self) -> float:
        """Since the start; 0 before it."""
        if self.state == "idle":
            return 0.0
        return self.seconds_at_end or time.perf_counter() - self.begun

    def status(self) -> str:
        """In words."""
        size, steps = self.settings[0].fsdp, min((len(r.steps) for r in self.ranks), default=0)
        total = self.options["max_steps"] * len(self.settings)
        why = f" ({self.error})" if self.error else ""
        ending = ", stopping after this one" if self.stopping.is_set() else ""
        places = [f"rank {rank.number} {rank.place}" for rank in self.ranks]
        training = f"step {min(steps + 1, total)} of {total}{ending}"
        starting = f"{ranks_of(size)}: {', '.join(places) or 'starting'}"
        return {
            "idle": "not started",
            "running": training if self._training() else starting,
            "done": f"finished: {steps} steps on {ranks_of(size)} in {self.seconds:.0f} s",
            "stopped": f"stopped after step {steps} of {total}{why}",
            "failed": str(self.error),
        }[self.state]

    def _training(self) -> bool:
        begun = [r for r in self.ranks if r.steps or r.place.startswith("step")]
        return bool(begun) and len(begun) == self.settings[0].fsdp

    # --- the thread

    def _work(self) -> None:
        try:
            self._launch()
            self._watch()
        except Exception as error:  # what this thread cannot do is told as what a rank cannot
            self._finish("failed", f"the ranks could not be started: {error}")
        finally:
            for rank in self.ranks:
                end(rank)
            self.store = None

    def _launch(self) -> None:
        from torch.distributed import TCPStore

        patience = timedelta(seconds=self.options["ddp_timeout"])
        # port 0: the system picks one and this process holds it from then on, so that none is taken
        self.store = TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=patience
        )
        for number in range(self.settings[0].fsdp):
            if self.abandoned.is_set() or self.stopping.is_set():
                return
            self._launch_one(number)

    def _launch_one(self, number: int) -> None:
        complaints = tempfile.TemporaryFile()
        process = subprocess.Popen(
            [sys.executable, *PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=self._environment(number),
        )
        rank = Rank(number, process, complaints)
        self.ranks.append(rank)
        threading.Thread(target=self._listen, args=(rank,), daemon=True).start()
        parts = [setting.to_dict() for setting in self.settings]
        write(process, parts=parts, options=self.options, made_up=self.made_up)

    def _environment(self, number: int) -> dict[str, str]:
        setting = self.settings[0]
        found = environment() | {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": str(setting.fsdp),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # that is, this process holds the store
            "TORCHELASTIC_RESTART_COUNT": "0",
            "OMP_NUM_THREADS": str(self.options["num_threads"]),
        }
        if setting.device == "cuda":
            found.pop("CUDA_VISIBLE_DEVICES")
            if "CUDA_VISIBLE_DEVICES" in os.environ:
                found["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
        if name := loopback():
            found.setdefault("GLOO_SOCKET_IFNAME", name)
        return found

    def _listen(self, rank: Rank) -> None:
        with suppress(OSError, ValueError):  # the pipe is closed under it when the rank is ended
            for line in rank.process.stdout:
                rank.hear(json.loads(line), self.begun)

    def _watch(self) -> None:
        """Until all are done, one has failed, or somebody wants an end."""
        told, trouble = None, None
        while not self.abandoned.is_set():
            now = time.perf_counter()
            if len(self.ranks) == self.settings[0].fsdp and all(r.done for r in self.ranks):
                early = len(self.ranks[0].steps) < self.options["max_steps"] * len(self.settings)
                return self._finish("stopped" if early else "done")
            if self.stopping.is_set() and told is None:
                told = now
                if not self._training():
                    break
                for rank in self.ranks:
                    write(rank.process, stop=True)
            if told is not None and now - told > GRACE_SECONDS:
                break
            signs = self._signs(now)
            if signs and told is not None:
                break  # it would have ended anyway
            trouble = trouble or (now if signs else None)
            if signs and (signs[0][0] == 0 or now - trouble > REASON_SECONDS):
                return self._finish(*signs[0][1:])
            time.sleep(LOOK_SECONDS)
        return self._finish("stopped")

    def _signs(self, now: float) -> list[tuple[int, str, str]]:
        """(how little it explains, state, words), the best explanation first."""
        found = []
        for rank in self.ranks:
            name = f"rank {rank.number}"
            if rank.failure:
                order = 2 if rank.failure["lost"] else 0
                found.append((order, "failed", f"{name}: {rank.failure['error']}"))
            elif rank.process.poll() == -signal.SIGINT:
                found.append((0, "stopped", "interrupted"))
            elif words := rank.words():
                # a line of its own may still lie in the pipe
                found.append((1 if rank.process.returncode > 0 else 0, "failed", f"{name} {words}"))
            elif not rank.done and now - rank.heard > self.options["ddp_timeout"]:
                seconds = f"{self.options['ddp_timeout']:g} s"
                words = f"has said nothing for {seconds} (ddp_timeout), last seen in {rank.place!r}"
                found.append((0, "failed", f"{name} {words}: it hangs"))
        return sorted(found)

    def _finish(self, state: str, error: str | None = None) -> None:
        for rank in self.ranks:
            end(rank, kill=state != "done")
        self.seconds_at_end, self.error = time.perf_counter() - self.begun, error
        self.state = state  # last: whoever reads it finds all of the above


def write(process: subprocess.Popen, **message: Any) -> None:
    """A line to a rank, which may be gone."""
    with suppress(OSError, ValueError):
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()


def end(rank: Rank, kill: bool = True) -> None:
    """Ends a rank and waits for it. kill: now; else it may leave by itself first."""
    with suppress(OSError, ValueError):
        rank.process.stdin.close()
    if not kill:
        with suppress(subprocess.TimeoutExpired):
            rank.process.wait(timeout=5)
    rank.process.kill()
    rank.process.wait()
    if not rank.complaints.closed:
        rank.complaints.close()


def ranks_of(size: int) -> str:
    """ "1 rank", "2 ranks"."""
    return f"{size} rank{'s' if size > 1 else ''}"


def loopback() -> str | None:
    """The name of the network interface that never leaves this machine."""
    names = [name for _, name in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else []
    return next((name for name in ("lo", "lo0") if name in names), None)
