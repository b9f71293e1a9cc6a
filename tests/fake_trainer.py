"""A trainer that learns nothing and takes no time: what LiveRun needs, and no more."""

import math
import threading
import time
from types import SimpleNamespace
from typing import Any


class FakeTrainer:
    """`steps` steps of `seconds` each, evaluated every `eval_steps`; fails after step `fail_at`."""

    def __init__(self, steps=40, seconds=0.01, eval_steps=5, fail_at=None, answer="85"):
        self.args = SimpleNamespace(max_steps=steps, output_dir=None)
        self.seconds, self.eval_steps, self.fail_at, self.answer = (
            seconds,
            eval_steps,
            fail_at,
            answer,
        )
        self.history: list[dict[str, Any]] = []
        self.callbacks = []
        self.threads: set[str] = set()
        self._stop = threading.Event()

    def skill(self) -> float:
        return 0.95 - 0.4 * math.exp(-3 * len(self.history) / self.args.max_steps)

    def train(self):
        self._stop.clear()
        for step in range(len(self.history), self.args.max_steps):
            self.threads.add(threading.current_thread().name)
            time.sleep(self.seconds)
            if step == self.fail_at:
                raise ValueError("a reward is not a number <b>")
            row = {"step": step + 1, "reward": self.skill() - 0.1}
            self.history.append(row)
            if (step + 1) % self.eval_steps == 0:
                row["accuracy"] = self.skill()
            for callback in list(self.callbacks):
                callback(row)
            if self._stop.is_set():
                break
        return self.history

    def stop(self):
        self._stop.set()

    def evaluate(self):
        return {"accuracy": self.skill()}

    def complete(self, prompts, greedy=True):
        return [self.answer for _ in prompts]
