"""The model that a page trains with its own code: it draws, answers and is measured; you update it.

    student = Student()                                   # the adder, on the task "sums"
    rollout = student.sample(k, prompts=64, num_generations=8)      # with rewards, [512]
    logits = student.logits(rollout)                      # [B, T, V], with a graph
    run = LiveRun(Loop(step, student, steps=60), guess)   # step(k) -> {"reward": ...}

Drawing and decoding are rlkit's (page 01 builds them); log-probs, advantages, loss and update are
the page's own. Like the library's trainers it works on one thread: the model is tiny.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rlkit.policy import Policy, load_model, load_tokenizer
from rlkit.prompts import Prompts
from rlkit.rollout import Rollout, generate
from rlkit.sampling import Sampler
from rlkit.tasks import load_task

Row = dict[str, Any]


class Student:
    """A model, its tokenizer and a task. policy: rlkit's Policy; model: the module inside it."""

    def __init__(self, model: str | Path = "adder", task: str = "sums", seed: int = 0) -> None:
        """model: a built-in name or a folder. seed: of the prompts' order and of all draws."""
        torch.set_num_threads(1)
        self.task, self.seed = load_task(task), seed
        self.policy = Policy(load_model(model))
        self.model = self.policy.model
        self.tokenizer = load_tokenizer(model)
        self._train = Prompts(self.task.train, self.tokenizer, field="train")
        self._eval = Prompts(self.task.eval, self.tokenizer, field="eval")

    def sample(self, step: int, prompts: int, num_generations: int) -> Rollout:
        """The completions of step `step`, prompt by prompt, with rewards [B] of 0 and 1."""
        picked = self._train.pick(step, prompts, self.seed)
        sampler = Sampler(seed=self.seed, step=step)
        rollout = self._draw(self._train, picked, sampler, num_generations)
        rewards = self._reward(rollout, self._train, picked, num_generations)
        return rollout.replace(rewards=torch.tensor(rewards)).rows(slice(None))

    def logits(self, rollout: Rollout) -> Tensor:
        """[B, T, V]: the scores that each completion token was drawn from; with a graph."""
        ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], 1)[:, :-1]
        seen = torch.cat([rollout.prompt_mask, rollout.mask], 1)[:, :-1]
        positions = (seen.cumsum(1) - 1).clamp(min=0)
        hidden = self.policy.backbone(ids, seen, positions)  # [B, P + T - 1, H]
        return self.policy.head(hidden[:, rollout.prompt_ids.size(1) - 1 :])

    def evaluate(self, greedy: bool = True, rows: int | None = None) -> dict[str, float]:
        """{"accuracy": share of the held-out prompts (or the first `rows`) that come out right}."""
        picked = list(range(len(self._eval)))[:rows]
        rollout = self._draw(self._eval, picked, Sampler(seed=self.seed, greedy=greedy))
        rewards = self._reward(rollout, self._eval, picked)
        return {"accuracy": sum(rewards) / len(rewards)}

    def complete(self, prompts: list[str], greedy: bool = True) -> list[str]:
        """Answers to some prompts, as text."""
        rows = Prompts([{"prompt": p} for p in prompts], self.tokenizer, field="prompts")
        sampler = Sampler(seed=self.seed, greedy=greedy)
        return self.texts(self._draw(rows, list(range(len(prompts))), sampler))

    def texts(self, rollout: Rollout) -> list[str]:
        """The completions as text, without EOS."""
        ids = [i[m] for i, m in zip(rollout.completion_ids, rollout.mask, strict=True)]
        return self.tokenizer.batch_decode(ids, skip_special_tokens=True)

    def _draw(self, data: Prompts, picked: list[int], sampler: Sampler, group: int = 1) -> Rollout:
        self.policy.eval()
        return generate(
            self.policy,
            *data.batch(picked, self.policy.device),
            sampler,
            num_generations=group,
            max_completion_length=self.task.max_completion_length,
            eos_ids=[self.tokenizer.eos_token_id],
            pad_id=self.tokenizer.pad_token_id,
        )

    def _reward(
        self, rollout: Rollout, data: Prompts, picked: list[int], group: int = 1
    ) -> list[float]:
        rows = [data.rows[i] for i in picked for _ in range(group)]
        asked, answers = ([row[key] for row in rows] for key in ("prompt", "answer"))
        return self.task.reward(asked, self.texts(rollout), answer=answers)


class Loop:
    """A page's own training step, in the form that LiveRun runs.

    step(k): trains once (k counts from 0) and returns a row with "reward", a float, and whatever
        else is worth a curve.
    eval_steps: how often the greedy accuracy is measured; eval_rows: on how many prompts.
    output_dir: keeps the weights when the run ends, for `here` to take up; None keeps nothing.
    """

    def __init__(
        self,
        step: Callable[[int], Row],
        student: Student,
        steps: int = 60,
        eval_steps: int = 5,
        eval_rows: int | None = None,
        output_dir: str | None = None,
    ) -> None:
        self.step, self.student = step, student
        self.eval_steps, self.eval_rows = eval_steps, eval_rows
        self.args = SimpleNamespace(max_steps=steps, output_dir=output_dir)
        self.history: list[Row] = []
        self.callbacks: list[Callable[[Row], None]] = []
        self._stop = False

    def train(self) -> list[Row]:
        """Go on from the last row of history to the last step, or until stop()."""
        for k in range(len(self.history), self.args.max_steps):
            row = {"step": k + 1} | self.step(k)
            self.history.append(row)
            if (k + 1) % self.eval_steps == 0:
                row |= self.evaluate()
            for callback in list(self.callbacks):
                callback(row)
            if self._stop:
                break
        self._stop = False  # cleared here, so that no wish is lost that came early
        if self.args.output_dir is not None:
            self.student.policy.save(self.args.output_dir, self.student.tokenizer)
        return self.history

    def stop(self) -> None:
        """End after the step that is under way; from any thread."""
        self._stop = True

    def evaluate(self) -> dict[str, float]:
        """The student's greedy accuracy."""
        return self.student.evaluate(rows=self.eval_rows)

    def complete(self, prompts: list[str], greedy: bool = True) -> list[str]:
        """The student's answers."""
        return self.student.complete(prompts, greedy)
