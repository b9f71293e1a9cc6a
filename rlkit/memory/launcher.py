"""Measured ranks: N processes that train one model under FSDP2, watched from a notebook.

    with Ranks("adder", fsdp=2, head="full", max_steps=10) as ranks:
        ranks.wait()
    ranks.history                    # a row a step: loss, reward, seconds
    ranks.samples[1].by_category     # rank 1's live bytes over time
    ranks.plan().peak                # what a plan of the same setting says

Each rank is a program of its own (rank.py), never a fork, which trains with rlkit's own trainer and
counts its own bytes. They talk by gloo on a CPU, by NCCL where there are enough GPUs, and meet in a
store that this process holds, at a port that the system picked. Sizes are of each rank, so that N
ranks train on N times the batch.

No rank outlives its reason: all end with stop(), with this object, with this process however it
ends (their input closes; on Linux the kernel kills them, too), on an interrupt, and with any one of
them. A rank that has not been heard of for ddp_timeout seconds is named and all are ended.
"""

import math
import weakref
from typing import Any, Self

from rlkit.memory.planner import Plan, setting_of, shared_planner
from rlkit.memory.processes import Job, StepEnd
from rlkit.memory.settings import Setting
from rlkit.memory.timeline import CATEGORIES, Kind, Moment, Timeline

SIZES = {"prompt_length": 8, "max_completion_length": 8}
"""Of steps that a CPU takes in a second or two."""
ONLY = {"optimizer": "adamw", "frozen_dtype": "float32", "reward_model": False}
"""Fields that plans can vary and trainers cannot."""
KINDS = [Kind(category, "") for category in CATEGORIES]


class RanksNotReady(RuntimeError):
    """There is no result yet. In a notebook only its sentence is shown, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Ranks:
    """Some processes that train together. `state` is "idle", "running", "done", "stopped" or
    "failed"; `error` says what went wrong, in one sentence that names the rank."""

    def __init__(
        self,
        model: Any = "adder",
        algorithm: str = "grpo",
        *,
        fsdp: int = 2,
        max_steps: int = 8,
        learning_rate: float = 3e-4,
        seed: int = 42,
        ddp_timeout: float = 60.0,
        made_up: bool | None = None,
        then: tuple[dict[str, Any], ...] = (),
        device: str | None = None,
        dtype: str = "float32",
        **settings: Any,
    ) -> None:
        """model, algorithm, settings: as for `plan`. fsdp: how many ranks.

        ddp_timeout: seconds of silence after which a rank counts as hanging.
        made_up: weights and task are invented, and no completion ends; None: unless the model is
            built in, which then trains on its sums. then: changes of the settings, each trained for
            max_steps by the same processes after the first. device: "cuda" or "cpu"; None: GPUs
            where each rank can have one.
        Raises ValueError for settings that no trainer can be given.
        """
        from rlkit.policy import BUILT_IN

        fixed = dict(fsdp=fsdp, device=device or best_device(fsdp), dtype=dtype)
        self.settings = [
            checked(setting_of(model, algorithm, **(SIZES | fixed | settings | changes)))
            for changes in ({}, *then)
        ]
        if any(setting.fsdp != fsdp for setting in self.settings):
            raise ValueError("then=... cannot change fsdp: the processes are the same")
        made_up = self.settings[0].name not in BUILT_IN if made_up is None else made_up
        self.size, self.max_steps = fsdp, max_steps
        options = dict(max_steps=max_steps, learning_rate=learning_rate, seed=seed)
        options |= dict(ddp_timeout=max(math.ceil(ddp_timeout), 1), lr_scheduler_type="constant")
        options["num_threads"] = 1  # for models of this size two are slower, on a busy machine much
        self._job: Job = Job(self.settings, options, made_up)

    # --- what a learner calls

    def start(self) -> Self:
        """Starts all ranks and returns at once. A run that has ended starts anew."""
        if self.state != "running":
            self._job = Job(self._job.settings, self._job.options, self._job.made_up)
            # so that ranks end with this object, or with the interpreter
            weakref.finalize(self, self._job.abandon)
            self._job.start()
        return self

    def stop(self) -> Self:
        """Ends all ranks after the step they are in, or at once if none has begun."""
        self._job.stop()
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Blocks until all ranks have ended, or for `timeout` seconds."""
        self._job.join(timeout)
        return self

    def result(self) -> list[dict[str, float]]:
        """The history. Raises RanksNotReady, a sentence, while idle, running or failed."""
        if self.state not in ("done", "stopped"):
            then = "then run this cell again"
            words = {
                "idle": f"not started: press Start above, {then}",
                "running": f"{self.status}: wait or press Stop, {then}",
                "failed": f"the ranks failed: {self.error}",
            }
            raise RanksNotReady(words[self.state])
        return self.history

    def plan(self, part: int = 0) -> Plan:
        """The plan of the same setting. part: which of the settings."""
        return shared_planner().plan(self.settings[part])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: Any) -> None:
        self._job.abandon()
        self.wait()

    # --- what it found

    @property
    def state(self) -> str:
        """idle, running, done, stopped or failed."""
        return self._job.state

    @property
    def error(self) -> str | None:
        """Which rank failed, and why; None: none has."""
        return self._job.error

    @property
    def pids(self) -> list[int]:
        """Of the ranks that have been started."""
        return [rank.process.pid for rank in self._job.ranks]

    @property
    def samples(self) -> list[Timeline]:
        """Each rank's live bytes; seconds since start()."""
        return [Timeline(KINDS, rank.samples.all()) for rank in self._job.ranks]

    @property
    def steps(self) -> list[list[StepEnd]]:
        """Each rank's finished steps."""
        return [list(rank.steps) for rank in self._job.ranks]

    @property
    def history(self) -> list[dict[str, float]]:
        """A row a step, the same on every rank: part, loss, reward, seconds and more."""
        steps = self.steps[0] if self._job.ranks else []
        return [{"part": end.part} | end.row for end in steps]

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [row["loss"] for row in self.history]

    @property
    def rewards(self) -> list[float]:
        """The mean reward of each step."""
        return [row["reward"] for row in self.history]

    @property
    def seconds(self) -> float:
        """Since start(), or from start() to the end."""
        return self._job.seconds

    @property
    def status(self) -> str:
        """Where the ranks are, in one line."""
        return self._job.status()

    def at_peak(self, part: int = -1) -> list[Moment]:
        """Each rank's highest moment in the last step of a part; -1: the last part so far.

        Raises RanksNotReady where no step of it has ended.
        """
        found = []
        for steps in self.steps or [[]]:
            number = steps[-1].part if steps and part == -1 else part
            ends = [end for end in steps if end.part == number]
            if not ends:
                raise RanksNotReady(f"no step has ended yet; {self.status}")
            found.append(ends[-1].at_peak)
        return found


def checked(setting: Setting) -> Setting:
    """Raises ValueError for what can be planned, but not trained."""
    for name, only in ONLY.items():
        if getattr(setting, name) != only:
            raise ValueError(f"{name}={getattr(setting, name)!r} can be planned; ranks use {only}")
    if setting.dtype == "pure_bf16":
        raise ValueError("dtype='pure_bf16' can be planned; ranks train weights in float32")
    return setting


def best_device(ranks: int) -> str:
    """ "cuda" if every rank can have a GPU of its own."""
    import torch

    return "cuda" if torch.cuda.device_count() >= ranks else "cpu"
