"""Will it fit? The bytes of a training step, known before there is a GPU to run it on.

    plan("Qwen3-0.6B", "grpo", per_device_train_batch_size=8, head="fused").peak
    largest_batch("Qwen3-0.6B", "grpo", memory="t4", lora_rank=16)

A plan runs rlkit's real step, with fake tensors, in a process of its own (step.py, worker.py): any
model, any number of ranks up to 64, nothing allocated. What it does not see: the CUDA context,
workspaces of cuBLAS, what the allocator rounds up and cannot reuse. `cards.RESERVE` stands for
those when a plan is held against a card.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, fields, replace
from math import gcd
from typing import Any, Self

from rlkit.config import unknown
from rlkit.memory import cache
from rlkit.memory.cards import memory_bytes, readable
from rlkit.memory.settings import ANSWER, Setting
from rlkit.memory.shapes import shape_of
from rlkit.memory.timeline import Moment, Timeline
from rlkit.paths import PACKAGE

PROGRAM = ("-m", "rlkit.memory.worker")
ERRORS = {"ValueError": ValueError, "TypeError": TypeError, "ImportError": ImportError}


@dataclass(frozen=True)
class Plan:
    """What a training step would hold."""

    setting: Setting
    """What was asked."""
    peak: int
    """The most bytes at once, on each rank."""
    at_peak: Moment
    """The peak by category and model, and what causes it."""
    peak_by_phase: dict[str, int]
    """Phase -> the most bytes in it; "other" is what lies there between two steps."""
    weights: dict[str, dict[str, int]]
    """Model -> {"total", "trained"}: how many weights it has, over all ranks."""
    timeline: Timeline
    """One step, some hundred samples; its seconds are the plan's own, not the step's."""
    seconds: float
    """How long the plan took when it was made."""

    def fits(self, memory: int | float | str) -> bool:
        """Whether the step fits a card ("t4"), or memory free for tensors ("24GiB", bytes)."""
        return self.peak <= memory_bytes(memory)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return own | {
            "setting": self.setting.to_dict(),
            "at_peak": vars(self.at_peak),
            "timeline": self.timeline.to_dict(),
        }

    @classmethod
    def of(cls, setting: Setting, found: dict[str, Any]) -> Self:
        """From what a worker answered."""
        made = {"at_peak": Moment(**found["at_peak"])}
        made |= {"timeline": Timeline.from_dict(found["timeline"])}
        return cls(setting=setting, **(found | made))


def plan(
    model: Any, algorithm: str = "grpo", *, planner: "Planner | None" = None, **settings: Any
) -> Plan:
    """Plans one training step.

    model: a shipped shape ("Qwen3-0.6B"), a built-in model, a folder with a config.json, a hub id,
        or a model or config object.
    algorithm: "grpo", "rloo" or "ppo". settings: the fields of `Setting`.
    planner: a process to ask; None: the one that this process shares.
    Raises ValueError, in one sentence, for what cannot be planned.
    """
    return (planner or shared_planner()).plan(setting_of(model, algorithm, **settings))


def setting_of(model: Any, algorithm: str = "grpo", **settings: Any) -> Setting:
    """What plan() asks for. Raises ValueError for an unknown model or field."""
    name, config = shape_of(model)
    known = {f.name for f in fields(Setting)} - {"name", "config"}
    for field in settings:
        if field not in known:
            raise ValueError(unknown("setting", field, known))
    return Setting(config=config, name=name, algorithm=algorithm, **settings)


def largest_batch(
    model: Any,
    algorithm: str = "grpo",
    *,
    memory: int | float | str,
    most: int = 4096,
    planner: "Planner | None" = None,
    **settings: Any,
) -> tuple[int, Plan | None]:
    """The largest per_device_train_batch_size that fits, and its plan; (0, None): none does.

    memory: a card ("h100"), "24GiB" or bytes. most: where the search ends.
    Batches are multiples of num_generations (of a rollout's share of it where gradients
    accumulate). Found by bisection, with a straight line through what is known as the first guess.
    Raises ValueError if memory is less than the models' weights alone.
    """
    planner = planner or shared_planner()
    settings.pop("per_device_train_batch_size", None)
    room = memory_bytes(memory)
    step = batch_step(setting_of(model, algorithm, **settings))
    first = setting_of(model, algorithm, per_device_train_batch_size=step, **settings)
    return Search(planner, first, room, step, most // step).run()


def batch_step(setting: Setting) -> int:
    """The smallest batch of which whole groups can be made."""
    args = setting.train_config()
    return args.num_generations // gcd(args.num_generations, args.micro_batches)


class Search:
    """Bisection over the number of steps in a batch."""

    def __init__(self, planner: "Planner", first: Setting, room: int, step: int, most: int) -> None:
        self.planner, self.first, self.room, self.step = planner, first, room, step
        self.most, self.peaks, self.growth = most, {}, 0

    def at(self, number: int) -> Plan:
        """The plan of a batch of so many steps."""
        setting = replace(self.first, per_device_train_batch_size=number * self.step)
        found = self.planner.plan(setting)
        self.peaks[number] = found.peak
        return found

    def run(self) -> tuple[int, Plan | None]:
        """(largest batch that fits, its plan)."""
        best = self.at(1)
        by_category = best.at_peak.by_category
        self.growth = sum(v for k, v in by_category.items() if k in GROWS)
        weights = sum(v for k, v in by_category.items() if k in WEIGHTS)
        if weights > self.room:
            raise ValueError(
                f"memory={readable(self.room)} is less than the weights of {self.first.name} "
                f"alone, {readable(weights)}; use a smaller model, more ranks (fsdp) or a larger "
                "card"
            )
        if best.peak > self.room:
            return 0, None
        low, high, poor = 1, self.most + 1, 0  # low fits, high does not
        while high - low > 1:
            # guesses that leave more than half of what was to be searched are not trusted for long
            number = (low + high) // 2 if poor > 2 else self.guess(low)
            number, before = min(max(number, low + 1), high - 1), high - low
            found = self.at(number)
            if found.peak <= self.room:
                low, best = number, found
            else:
                high = number
            poor = 0 if poor > 2 or high - low <= before / 2 else poor + 1
        return low * self.step, best

    def guess(self, low: int) -> int:
        """Where a straight line through the two nearest plans meets the memory.

        From one plan alone: as if just what belongs to rows grew with them.
        """
        if len(self.peaks) < 2:
            return 1 + (self.room - self.peaks[1]) // self.growth if self.growth else 2
        a, b = sorted(self.peaks, key=lambda n: abs(self.peaks[n] - self.room))[:2]
        slope = (self.peaks[b] - self.peaks[a]) / (b - a)
        return low + 1 if slope <= 0 else int(a + (self.room - self.peaks[a]) / slope)


WEIGHTS = ("param", "reference", "value", "reward")
GROWS = ("activation", "logits", "kv_cache", "temporary", "other")
"""Categories of which each further row takes its share."""


class Planner:
    """A process that plans, kept between plans: starting it takes longer than asking it."""

    def __init__(self, use_cache: bool = True) -> None:
        """use_cache: read and keep plans on disk."""
        self.use_cache = use_cache
        self._process: subprocess.Popen | None = None
        self._complaints: Any = None
        self._lock = threading.Lock()
        self._killed = False

    def start(self) -> None:
        """Starts the process, which then loads torch while its asker does."""
        with self._lock:
            self._running()

    def plan(self, setting: Setting) -> Plan:
        """From the disk, or made now. Raises ValueError for what cannot be planned."""
        name = cache.key(setting.to_dict())
        found = cache.load(name) if self.use_cache else None
        if found is not None:
            try:
                return Plan.of(setting, found)
            except (KeyError, TypeError, ValueError):
                pass  # another's file, or half of one: plan anew
        found = self.ask(setting)
        if self.use_cache:
            cache.keep(name, found)
        return Plan.of(setting, found)

    def ask(self, setting: Setting) -> dict[str, Any]:
        """What the process answers. Raises RuntimeError if it dies."""
        with self._lock:
            process = self._running()
            try:
                process.stdin.write(json.dumps(setting.to_dict()) + "\n")
                process.stdin.flush()
                line = next((x for x in process.stdout if x.startswith(ANSWER)), None)
            except BrokenPipeError:
                line = None
            except BaseException:
                self._end()  # an answer that nobody waited for would be taken for the next one
                raise
            if line is None:
                complaints = self._said()
                self._end()
                raise RuntimeError(f"the process that plans has died: {complaints}")
        found = json.loads(line.removeprefix(ANSWER))
        if "error" in found:
            raise ERRORS.get(found["kind"], RuntimeError)(found["error"])
        return found

    def kill(self) -> None:
        """Ends the process at once and for good, also while another thread waits for its answer.

        What that thread asked, and whatever is asked from now on, raises RuntimeError.
        """
        self._killed, process = True, self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _running(self) -> subprocess.Popen:
        if self._killed:
            raise RuntimeError("this planner was killed; make another")
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._complaints = tempfile.TemporaryFile("w+")
            self._process = subprocess.Popen(
                [sys.executable, *PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                text=True,
                encoding="utf-8",
                env=environment(),
            )
            if self._killed:  # meanwhile
                self._process.kill()
        return self._process

    def _said(self) -> str:
        self._process.wait(timeout=30)
        self._complaints.seek(0)
        return " ".join(self._complaints.read().strip().splitlines()[-3:])

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._complaints.close()
        self._process = None


def environment() -> dict[str, str]:
    """Of the process that plans: no GPU, one thread, and rlkit where it is imported from here."""
    paths = [str(PACKAGE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths))),
        "PYTHONWARNINGS": "ignore",
        "TRANSFORMERS_VERBOSITY": "error",
        "RANK": "0",
        "WORLD_SIZE": "1",
    }


_shared: Planner | None = None


def shared_planner() -> Planner:
    """The planner of this process; its own ends with it."""
    global _shared
    if _shared is None:
        _shared = Planner()
        atexit.register(_shared.close)
    return _shared
