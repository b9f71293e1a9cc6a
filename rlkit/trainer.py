"""One loop for every algorithm:

    generate -> score -> advantages -> updates -> log

What makes PPO, RLOO and GRPO themselves stands in ppo.py, rloo.py and grpo.py: their config, their
advantages, their objective and the models they hold. Everything here is theirs in common.
"""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rlkit import health, prompts
from rlkit.adapters import add_adapters, changes_base, check_bias, check_trains, keep_reference
from rlkit.checkpoint import (
    claim_folder,
    export,
    load_checkpoint,
    resume_point,
    save_checkpoint,
)
from rlkit.config import TrainConfig
from rlkit.distributed import (
    checksum,
    fingerprint,
    gathered,
    join,
    release,
    rows_of,
    whole_weights,
)
from rlkit.failure import mark
from rlkit.logs import Log, describe, kl_of, summarise
from rlkit.memory.marks import phase
from rlkit.objectives import Totals
from rlkit.optim import Optimizer
from rlkit.policy import (
    Policy,
    causal_lm,
    checkpoint_activations,
    frozen_copy,
    load_model,
    load_tokenizer,
    widen,
)
from rlkit.prompts import Prompts
from rlkit.rewards import Rewards, RewardSource, as_list, combine, with_models
from rlkit.rollout import Rollout, concatenate, generate
from rlkit.sampling import Sampler


class Trainer(ABC):
    """The loop. Subclasses say what they hold (`build`), how they judge (`judge`) and what they
    minimise (`objective`, `loss`)."""

    config_class: ClassVar[type[TrainConfig]]

    def __init__(
        self,
        model: str | Path | nn.Module,
        reward_funcs: RewardSource | list[RewardSource],
        args: TrainConfig,
        train_dataset: Sequence[dict[str, Any]],
        eval_dataset: Sequence[dict[str, Any]] | None = None,
        processing_class: Any = None,
        peft_config: Any = None,
        reward_processing_classes: Any = None,
    ) -> None:
        """model: a built-in name ("adder"), a folder, a hub id or a causal language model.

        reward_funcs: one or several functions in TRL's form, reward models (sequence classification
        with one label), or their folders or hub ids. reward_processing_classes: tokenizers of these
        models, where they are not what comes with them. train_dataset, eval_dataset: rows with a
        `prompt`. processing_class: the tokenizer, needed with a model object. peft_config: a
        LoraConfig; the reference is then the policy with its adapters off. That of a model which
        comes with adapters is a frozen copy of these.
        Raises ValueError, TypeError or FileNotFoundError, in one sentence, before any work starts.
        """
        if not isinstance(args, self.config_class):
            wanted, got = self.config_class.__name__, type(args).__name__
            raise TypeError(f"args is of type {got}; {type(self).__name__} needs a {wanted}")
        self.args, self.world = args, join(args.ddp_timeout)
        sources = as_list(reward_funcs)
        combine(torch.zeros(1, len(sources)), args.reward_weights)
        self.objective = args.objective()
        if args.num_threads:
            torch.set_num_threads(args.num_threads)
        model, self.tokenizer = self._load(model, processing_class)
        self.eos_ids = prompts.eos_ids(self.tokenizer, model)
        self._take_rewards(sources, reward_processing_classes)
        room = {
            "context_length": getattr(_config(model), "max_position_embeddings", None),
            "max_completion_length": args.max_completion_length,
        }
        self.prompts = Prompts(train_dataset, self.tokenizer, field="train_dataset", **room)
        self.eval_prompts = None
        if eval_dataset is not None:
            self.eval_prompts = Prompts(eval_dataset, self.tokenizer, field="eval_dataset", **room)
        self.build(model, peft_config)
        self.world.agree(fingerprint(args, self.prompts.ids, self.held()))
        parameters = [p for m in self.held() for p in m.parameters()]
        self.frozen = checksum([p for p in parameters if not p.requires_grad])
        for held in self.held():
            self.world.place(held, args)
        updates = args.max_steps * args.updates_per_step
        self.optimizer = Optimizer(self.trained_modules(), args, updates, self.world)
        self.history: list[dict[str, Any]] = []
        self.callbacks: list[Callable[[dict[str, Any]], None]] = []
        self.meter: AbstractContextManager | None = None
        """An rlkit.Meter to count bytes with: `train` enters it, in the thread that it runs in."""
        self._stop = False
        self._overflows = 0

    # --- what the algorithm holds

    def _load(self, model: Any, tokenizer: Any) -> tuple[nn.Module, Any]:
        if isinstance(model, nn.Module):
            if tokenizer is None:
                raise ValueError("processing_class is missing: a model object needs its tokenizer")
        else:
            tokenizer = tokenizer or load_tokenizer(model)
            model = load_model(model)
        prompts.check_tokenizer(tokenizer, _config(model).vocab_size)
        return model, tokenizer

    def _take_rewards(self, sources: list[RewardSource], tokenizers: Any) -> None:
        """Makes self.rewards, and reward_model (reward_2_model, ...) of the models among them."""
        args, dtype = self.args, self._amp_dtype()
        size = args.per_device_train_batch_size
        funcs = with_models(sources, tokenizers, self.tokenizer, self.eos_ids, size, dtype)
        self.rewards = Rewards(funcs, args.reward_weights, self.tokenizer)
        for i, func in enumerate(self.rewards.model_funcs, 1):
            setattr(self, "reward_model" if i == 1 else f"reward_{i}_model", func.model)

    def build(self, model: nn.Module, peft_config: Any) -> None:
        """Makes self.policy, and self.reference if the KL divergence counts."""
        args = self.args
        self.reference: Policy | None = None
        if peft_config is None:
            widen(model)
        adapted = hasattr(model, "disable_adapter")
        if adapted:
            check_trains(model)
        elif args.beta and peft_config is None:
            self.reference = Policy(frozen_copy(model), **self.policy_options())
        if peft_config is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(args.seed)
                model = add_adapters(model, peft_config)
            widen(model)
            if args.beta:
                check_bias(peft_config)
        if args.beta and (adapted or changes_base(peft_config)):
            # adapters that the model came with are part of what it was before this run
            keep_reference(model)
        if args.gradient_checkpointing:
            checkpoint_activations(causal_lm(model), hasattr(model, "disable_adapter"))
        self.policy = Policy(model, **self.policy_options())

    def policy_options(self) -> dict[str, Any]:
        """Settings of every policy and reference of this run."""
        args = self.args
        return {
            "head": args.head,
            "tile_bytes": args.tile_bytes,
            "temperature": args.temperature,
            "amp_dtype": self._amp_dtype(),
            "share_prefix": args.share_prefix,
        }

    def _amp_dtype(self) -> torch.dtype | None:
        return torch.bfloat16 if self.args.bf16 else torch.float16 if self.args.fp16 else None

    def trained_modules(self) -> list[nn.Module]:
        """What the optimiser sees."""
        return [self.policy]

    def held(self) -> list[nn.Module]:
        """Every model: what trains, and what it is compared with."""
        return [m for m in vars(self).values() if isinstance(m, nn.Module)]

    # --- the loop

    def train(
        self, resume_from_checkpoint: str | Path | bool | None = None
    ) -> list[dict[str, Any]]:
        """Runs max_steps steps, or until `stop()`. Returns `history`.

        resume_from_checkpoint: a checkpoint, a folder of them, whose newest one is taken, or True:
            the newest one in output_dir, or the start if there is none.
        Raises FloatingPointError on a loss or gradient that is not finite; the weights are then
        those before that update. Raises ValueError if output_dir cannot be written, or holds
        checkpoints of another run; OSError if a checkpoint cannot be written.
        """
        self._begin(resume_from_checkpoint)
        with self.meter or nullcontext(), Log(self.args, self.history, self.world.main) as log:
            for step in range(len(self.history), self.args.max_steps):
                row = self.step(step)
                self.history.append(row)
                log.write(row, self.rewards.shown)
                for callback in self.callbacks:
                    callback(row)
                every = self.args.save_steps
                if every and row["step"] % every == 0:
                    mark(f"step {row['step']}, writing a checkpoint")
                    save_checkpoint(self, row["step"])
                if self.world.any(self._stop):
                    # cleared here and not at the start, so that no wish is lost that came early
                    self._stop = False
                    break
        if self.args.output_dir is not None:
            self.save(self.args.output_dir)
        return self.history

    def _begin(self, asked: str | Path | bool | None) -> None:
        """Claims output_dir, and loads the checkpoint to go on from, if there is one."""
        point, folder = None, self.args.output_dir
        with self.world.together():
            if self.world.main:
                # a trainer that trains on has no need of what it left behind
                if asked is not None or not self.history:
                    point = resume_point(asked, folder)
                claim_folder(folder, resumes=bool(point or self.history))
        point = self.world.gather(point)[0]  # one rank chooses for all
        if point is not None:
            load_checkpoint(self, point)

    def save(self, folder: str) -> None:
        """The policy as a Hugging Face folder. Every rank takes part, one writes."""
        weights = whole_weights(self.policy)
        with self.world.together():
            if self.world.main:
                export(self, folder, weights)

    def stop(self) -> None:
        """Asks `train` to end after the step it is in. From any thread, on any rank."""
        self._stop = True

    def step(self, step: int) -> dict[str, Any]:
        """One pass: generate, score, advantages, updates. Returns the row for `history`."""
        start = time.perf_counter()
        count = self.args.generation_batch_size // self.args.num_generations
        picked = self.prompts.pick(step, count * self.world.size, self.args.seed)
        mark(f"step {step + 1}, generating")
        rollout = self.generate(picked, step)
        generated = time.perf_counter()
        mark(f"step {step + 1}, scoring")
        extra = self.score(rollout, self.prompts, picked, step)
        row = (
            {"step": step + 1}
            | describe(rollout, self.args.num_generations, self.rewards.names)
            | extra
        )
        if self.args.mask_truncated_completions:
            rollout.mask = rollout.mask & rollout.finished[:, None]
        mark(f"step {step + 1}, computing advantages")
        self.judge(rollout)
        scored = time.perf_counter()
        mark(f"step {step + 1}, updating")
        row |= self.update(rollout, step) | kl_of(rollout)
        row |= {
            "seconds": time.perf_counter() - start,
            "seconds_generate": generated - start,
            "seconds_score": scored - generated,
            "seconds_update": time.perf_counter() - scored,
        }
        mark(f"step {step + 1}, logging")
        if self._due(step):
            row["accuracy"] = self.evaluate()["accuracy"]
        row["warnings"] = health.check(row, self.history)
        return row

    def _due(self, step: int) -> bool:
        every = self.args.eval_steps
        if self.eval_prompts is None or not every:
            return False
        return (step + 1) % every == 0 or step + 1 == self.args.max_steps

    def generate(self, picked: list[int], step: int) -> Rollout:
        """num_generations completions of each picked prompt."""
        args = self.args
        sampler = Sampler(
            seed=args.seed,
            step=step,
            temperature=args.temperature,
            top_k=args.top_k,
            top_p=args.top_p,
        )
        size = args.max_generation_batch or args.generation_batch_size
        at_once = max(size // args.num_generations, 1)
        return self._complete(self.prompts, picked, sampler, args.num_generations, at_once)

    def _complete(
        self, prompts: Prompts, picked: list[int], sampler: Sampler, group: int, at_once: int
    ) -> Rollout:
        world, pad_id = self.world.over(len(picked)), self.tokenizer.pad_token_id
        mine, parts = world.share(range(len(picked))), []
        self.policy.eval()
        with phase("generate"), gathered(self.policy, self.args.reshard_after_forward):
            for first in mine[::at_once]:
                some = range(first, min(first + at_once, mine.stop))
                ids, mask = prompts.batch([picked[i] for i in some], self.policy.device)
                parts.append(
                    generate(
                        self.policy,
                        ids,
                        mask,
                        sampler,
                        num_generations=group,
                        max_completion_length=self.args.max_completion_length,
                        eos_ids=self.eos_ids,
                        pad_id=pad_id,
                        rows=torch.arange(some.start * group, some.stop * group),
                    )
                )
        return world.gather_rollout(concatenate(parts, pad_id), pad_id)

    def score(
        self, rollout: Rollout, prompts: Prompts, picked: list[int], step: int
    ) -> dict[str, float]:
        """Fills in the rewards; returns what reward functions logged by `log_metric`."""
        state = SimpleNamespace(global_step=step, max_steps=self.args.max_steps)
        return self.rewards.fill_in(rollout, prompts, picked, self.world, state)

    @abstractmethod
    def judge(self, rollout: Rollout) -> None:
        """Fills in logp_old, logp_ref and advantages, as the algorithm wants them."""

    # --- log-probs outside the update

    @torch.no_grad()
    def on_rollout(self, score: Callable[[Rollout], Tensor], rollout: Rollout) -> Tensor:
        """A function of micro-batches -> [b, t], over the whole rollout: [B, T]."""
        whole = torch.zeros(rollout.mask.shape, device=rollout.mask.device)
        for rows in self._deal(torch.arange(len(rollout))):
            part = score(self.policy.share(rows_of(rollout, rows)))
            whole[rows, : part.size(1)] = part[: len(rows)]
        for model in self.held():
            release(model)
        return self.world.sum(whole)

    def logp(self, rollout: Rollout) -> Tensor:
        """Log-probs [B, T] of the policy as it is now."""
        return self.on_rollout(lambda part: self.policy(part, entropy=False)[0], rollout)

    def logp_reference(self, rollout: Rollout) -> Tensor:
        """Log-probs [B, T] of the reference model."""
        if self.reference is not None:
            return self.on_rollout(lambda part: self.reference(part, entropy=False)[0], rollout)
        with self.policy.as_reference():
            return self.logp(rollout)

    # --- the update

    def update(self, rollout: Rollout, step: int) -> dict[str, Any]:
        """All optimiser steps that this rollout is used for; returns their log entries."""
        args = self.args
        self.policy.train()
        size = args.per_device_train_batch_size * args.gradient_accumulation_steps
        size *= self.world.size
        results, dropped = [], 0
        for rows in self._batches(len(rollout), size, step):
            batch, totals = rollout.rows(rows), Totals.of(rollout.mask[rows])
            keep = self.rows_that_teach(batch)
            dropped += len(batch) - len(keep)
            threshold = self.entropy_threshold(batch)
            micro = [self.policy.share(rows_of(batch, part)) for part in self._deal(keep)]
            results.append(
                self.optimizer.step(
                    micro, lambda m, totals=totals, t=threshold: self.loss(m, totals, t)
                )
            )
            self._check_finite(results[-1], batch, step, len(results))
            if self.used_up(results[-1]):
                break
        return summarise(results) | {"dropped_rows": dropped, "updates": len(results)}

    def used_up(self, result: dict[str, Any]) -> bool:
        """Whether this rollout is not worth another update."""
        return False

    def _batches(self, count: int, size: int, step: int) -> Iterator[Tensor]:
        """The rows of each optimiser step."""
        for iteration in range(self.args.num_iterations):
            yield from self._order(count, step, iteration).split(size)

    def _deal(self, rows: Tensor) -> list[Tensor]:
        args = self.args
        return self.world.deal(rows, args.per_device_train_batch_size, args.num_generations)

    def _order(self, size: int, step: int, iteration: int) -> Tensor:
        if self.args.updates_per_step == self.args.num_iterations:
            return torch.arange(size)  # one update sees all rows, in any order
        order = list(range(size))
        random.Random(f"{self.args.seed} {step} {iteration}").shuffle(order)
        return torch.tensor(order)

    def rows_that_teach(self, batch: Rollout) -> Tensor:
        """Rows with a coefficient that is not 0: the others would cost time and change nothing."""
        teaches = (batch.advantages != 0) & batch.mask.any(1)
        return teaches.cpu().nonzero().squeeze(1)

    def entropy_threshold(self, batch: Rollout) -> Tensor | None:
        """The entropy above which tokens count; None unless the objective masks by entropy."""
        return None

    def loss(
        self, micro_batch: Rollout, totals: Totals, threshold: Tensor | None = None
    ) -> tuple[Tensor, dict]:
        """A micro-batch's share of the loss, and its sums for the log."""
        return self.policy(micro_batch, self.objective, totals, entropy_threshold=threshold)

    def _check_finite(self, result: dict[str, Any], batch: Rollout, step: int, k: int) -> None:
        self._overflows = 0 if bool(result["finite"]) else self._overflows + 1
        if self._overflows < (10 if self.args.fp16 else 1):
            return
        folder = self.args.output_dir
        path = health.save_batch(batch, folder, step + 1) if self.world.main else None
        path = self.world.gather(path)[0]
        raise FloatingPointError(health.not_finite(result, self.args.fp16, step + 1, k, path))

    # --- using the model

    def evaluate(self, greedy: bool = True) -> dict[str, float]:
        """Completes eval_dataset; `accuracy` is the mean of the first reward function.

        greedy: the likeliest token each time; False draws one completion a prompt at temperature.
        """
        if self.eval_prompts is None:
            raise ValueError("eval_dataset is missing: there is nothing to evaluate on")
        rollout = self._answer(self.eval_prompts, greedy)
        shown = self.rewards.shown
        self.score(rollout, self.eval_prompts, list(range(len(self.eval_prompts))), 0)
        self.rewards.shown = shown
        means = rollout.rewards_per_func.nanmean(0).tolist()
        return {"accuracy": means[0]} | dict(zip(self.rewards.names, means, strict=True))

    def _answer(self, prompts: Prompts, greedy: bool) -> Rollout:
        args, everyone = self.args, list(range(len(prompts)))
        sampler = Sampler(seed=args.seed, temperature=args.temperature, greedy=greedy)
        return self._complete(prompts, everyone, sampler, 1, args.per_device_eval_batch_size)

    def complete(self, prompts: list[Any], greedy: bool = True) -> list[str]:
        """The model's answers to some prompts, as text."""
        rows = Prompts([{"prompt": p} for p in prompts], self.tokenizer, field="prompts")
        rollout = self._answer(rows, greedy)
        ids = [i[m] for i, m in zip(rollout.completion_ids, rollout.mask, strict=True)]
        return self.tokenizer.batch_decode(ids, skip_special_tokens=True)


def _config(model: nn.Module) -> Any:
    return causal_lm(model).config.get_text_config()
