"""One training step of rlkit under fake tensors: the real code, on shapes alone.

    build on the meta device -> fake tensors in place -> shard -> generate, score, update

Nothing is allocated and nothing is computed, but every operation is dispatched, and a Meter counts
what each would have taken. The trainer, its models, heads, losses and optimiser and FSDP2 are the
real ones. Written anew is only what would look at numbers: no completion ends (so the longest
cache is built at once, and the first and the last token are drawn), and the rows of a batch are
known by their place.

Loops whose rounds all allocate the same are cut short: two micro-batches of an accumulation, three
tiles of a head.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

import rlkit
from rlkit.distributed import World, gathered, release
from rlkit.memory.fake import Shapes
from rlkit.memory.marks import holding, phase
from rlkit.memory.settings import Setting
from rlkit.objectives import Totals
from rlkit.optim import Optimizer
from rlkit.optional import require
from rlkit.policy import ValueModel
from rlkit.prefix import SharedRows
from rlkit.rollout import Rollout
from rlkit.sampling import Sampler

ROUNDS = 2
"""Micro-batches that are run: the second finds gradients there already."""


class PlannedStep:
    """A trainer of fake weights, and the step that it takes."""

    def __init__(self, setting: Setting) -> None:
        """Raises ValueError for a model that rlkit cannot train."""
        self.setting, self.args = setting, setting.train_config()
        self.mode = Shapes()
        self.world = World(0, setting.fsdp, torch.device("cpu"))
        self.trainer = self._build()
        self.models = {
            name.removesuffix("_model"): model
            for name, model in vars(self.trainer).items()
            if isinstance(model, nn.Module)
        }
        self.weights = {name: count(model) for name, model in self.models.items()}
        for model in self.models.values():
            self._make_fake(model)
        if setting.fsdp > 1:
            for model in self.models.values():
                self.world.place(model, self.args)
        trained = self.trainer.trained_modules()
        self.trainer.optimizer = Optimizer(trained, self.args, 1, self.world)
        self.trainer.optimizer.adamw = other_optimizer(
            setting.optimizer, self.trainer.optimizer.adamw
        )
        self.trainer.on_rollout = self.on_rollout
        self.micro_batches = [self._on_host(i) for i in range(self._rounds())]

    # --- building

    def _build(self) -> Any:
        """The trainer and its models on the meta device: shapes without storage."""
        setting = self.setting
        trainer_class = getattr(rlkit, f"{setting.algorithm.upper()}Trainer")
        # not by __init__, which wants a tokenizer, prompts and weights that it can compare
        trainer = trainer_class.__new__(trainer_class)
        trainer.args, trainer.world = self.args, self.world
        trainer.objective = self.args.objective()
        trainer.build(model_of(setting.config), adapters(setting.lora_rank))
        if setting.reward_model:
            reward = ValueModel(model_of(setting.config), trainer.policy.amp_dtype)
            trainer.reward_model = reward.requires_grad_(False).eval()
        return trainer

    def _make_fake(self, model: nn.Module) -> None:
        """Replaces weights and buffers by fake ones of their shapes; tied ones stay tied."""
        made: dict[int, nn.Parameter] = {}
        for part in model.modules():
            for name, p in part._parameters.items():
                if p is not None:
                    if id(p) not in made:
                        fake = self.empty(p, self._dtype(p))
                        made[id(p)] = nn.Parameter(fake, p.requires_grad)
                    part._parameters[name] = made[id(p)]
            for name, b in part._buffers.items():
                if b is not None:
                    part._buffers[name] = self.empty(b, b.dtype)

    def _dtype(self, weight: nn.Parameter) -> torch.dtype:
        small = self.setting.frozen_dtype == "bf16" and not weight.requires_grad
        return torch.bfloat16 if small or self.setting.dtype == "pure_bf16" else weight.dtype

    def empty(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        """A fake tensor of this shape."""
        with self.mode:
            return torch.empty(like.shape, dtype=dtype, device="cpu")

    def fake(self, value: Any) -> Any:
        """A fake tensor like a real one; anything else unchanged."""
        return self.mode.from_tensor(value) if isinstance(value, Tensor) else value

    # --- rows, known on the host

    def _rounds(self) -> int:
        return min(self.args.gradient_accumulation_steps, ROUNDS)

    def _on_host(self, number: int) -> Rollout:
        """What the host knows of a micro-batch, as fake tensors: index, lengths, shared rows."""
        setting, size = self.setting, self.args.per_device_train_batch_size
        rows = torch.arange(number * size, (number + 1) * size)
        prompts = (rows // self.args.num_generations)[:, None].expand(-1, setting.prompt_length)
        answers = torch.zeros(size, setting.max_completion_length, dtype=torch.int64)
        part = Rollout(
            prompt_ids=prompts,
            prompt_mask=torch.ones_like(prompts, dtype=torch.bool),
            completion_ids=answers,
            mask=torch.ones_like(answers, dtype=torch.bool),
            finished=torch.ones(size, dtype=torch.bool),
        ).rows(slice(0, size))
        shared = self.trainer.policy.share(part).shared
        return part.replace(
            index=self.fake(part.index),
            shared=None if shared is None else SharedRows(*map(self.fake, shared)),
        )

    def micro_batch(self, number: int, rollout: Rollout) -> Rollout:
        """The rows of a micro-batch. As in `Rollout.rows`, tensors are copied."""
        size, known = self.args.per_device_train_batch_size, self.micro_batches[number]
        rows = torch.arange(number * size, (number + 1) * size)
        picked = of_rows(rollout, rows)
        return Rollout(
            **picked, index=known.index, row_lengths=known.row_lengths, shared=known.shared
        )

    # --- the step, inside self.mode

    def warm_up(self) -> None:
        """An update without gradients: the optimiser's state is there from now on."""
        self.trainer.optimizer.step([], self.trainer.loss)

    def step(self) -> None:
        """Generate, score, update."""
        with phase("generate"):
            rollout = self.generate()
        with phase("score"):
            rollout.rewards = torch.zeros(len(rollout))
            if self.setting.reward_model:
                self.on_rollout(self.trainer.reward_model, rollout)
            self.trainer.judge(rollout)
        self.update(rollout)

    def generate(self) -> Rollout:
        """All tensors of a rollout, and the first and the last token drawn on this rank."""
        setting, args, policy = self.setting, self.args, self.trainer.policy
        rank_rows = args.generation_batch_size
        drawn = min(args.max_generation_batch or rank_rows, rank_rows)
        policy.eval()
        with gathered(policy, args.reshard_after_forward):
            self.draw(max(drawn // args.num_generations, 1))
        rows = rank_rows * self.world.size
        prompts = torch.zeros(rows, setting.prompt_length, dtype=torch.int64)
        answers = torch.zeros(rows, setting.max_completion_length, dtype=torch.int64)
        return Rollout(
            prompt_ids=prompts,
            prompt_mask=torch.ones_like(prompts, dtype=torch.bool),
            completion_ids=answers,
            mask=torch.ones_like(answers, dtype=torch.bool),
            finished=torch.ones(rows, dtype=torch.bool),
            logp_sampled=torch.zeros_like(answers, dtype=torch.float32),
        )

    @torch.no_grad()
    def draw(self, prompts: int) -> None:
        """As `rlkit.rollout.generate`, without the tokens between."""
        setting, policy, group = self.setting, self.trainer.policy, self.args.num_generations
        sampler = Sampler(temperature=self.args.temperature)
        size, length = prompts * group, setting.max_completion_length
        rows = torch.arange(size)
        completion = torch.zeros(size, length, dtype=torch.int64)
        logp = torch.zeros(size, length)
        ids = torch.zeros(prompts, setting.prompt_length, dtype=torch.int64)
        seen = torch.ones_like(ids, dtype=torch.bool)
        cache = policy.new_cache()
        logits = policy.decode(ids, seen, seen.cumsum(1) - 1, cache)
        cache.batch_repeat_interleave(group)
        logits = logits.repeat_interleave(group, 0)
        seen = seen.repeat_interleave(group, 0)
        for t in sorted({0, length - 1}):
            if t > 0:
                lengthen(cache, setting.prompt_length + t - 1)
                seen = torch.ones(size, setting.prompt_length + t, dtype=torch.bool)
                places = seen.sum(1, keepdim=True) - 1
                logits = policy.decode(completion[:, t - 1 : t], seen, places, cache)
            tokens, token_logp = sampler.draw(logits, rows, t)
            completion[rows, t], logp[rows, t] = tokens, token_logp

    @torch.no_grad()
    def on_rollout(self, score: Callable[[Rollout], Tensor], rollout: Rollout) -> Tensor:
        """As `Trainer.on_rollout`."""
        whole, size = torch.zeros(rollout.mask.shape), self.args.per_device_train_batch_size
        for number in range(len(self.micro_batches)):
            rows = torch.arange(number * size, (number + 1) * size)
            whole[rows] = score(self.micro_batch(number, rollout))
        for model in self.models.values():
            release(model)
        return self.world.sum(whole)

    def update(self, rollout: Rollout) -> None:
        """One optimiser step, as in `Trainer.update`."""
        trainer, args = self.trainer, self.args
        trainer.policy.train()
        rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
        rows = torch.arange(rows * self.world.size)
        batch = Rollout(**of_rows(rollout, rows))
        totals = Totals.of(batch.mask)
        micro = [self.micro_batch(i, batch) for i in range(len(self.micro_batches))]
        trainer.optimizer.step(micro, lambda m: trainer.loss(m, totals))


def of_rows(rollout: Rollout, rows: Tensor) -> dict[str, Tensor]:
    """Copies of some rows of every tensor in a rollout."""
    values = {f.name: getattr(rollout, f.name) for f in fields(rollout)}
    return {name: x[rows] for name, x in values.items() if isinstance(x, Tensor)}


def lengthen(cache: Any, size: int) -> None:
    """Gives a cache of keys and values this many tokens."""
    with holding("kv_cache"):
        for layer in cache.layers:
            batch, heads, _, width = layer.keys.shape
            layer.keys = layer.keys.new_empty(batch, heads, size, width)
            layer.values = layer.values.new_empty(batch, heads, size, layer.values.shape[3])


def model_of(config: dict[str, Any]) -> nn.Module:
    """A causal language model of this shape on the meta device, in float32.

    Raises ValueError for a kind of model that transformers does not have.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {k: v for k, v in config.items() if k not in ("model_type", "dtype", "torch_dtype")}
    try:
        shape = AutoConfig.for_model(config["model_type"], **values)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    except (KeyError, ValueError) as error:
        kind = config["model_type"]
        raise ValueError(
            f"model_type={kind!r} is no causal language model that transformers can build"
        ) from error


def adapters(rank: int | None) -> Any:
    """A LoraConfig on every linear layer but the head, or None."""
    if rank is None:
        return None
    peft = require("peft", "lora_rank")
    return peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def other_optimizer(name: str, adamw: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """An optimiser of the same weights as rlkit's AdamW, by name."""
    if name == "adamw":
        return adamw
    weights = [p for group in adamw.param_groups for p in group["params"]]
    return SGD(weights, lr=1e-3, momentum=0.9 if name == "momentum" else 0.0, foreach=False)


class SGD(torch.optim.SGD):
    """Gradient descent that cannot be told of an overflow, as rlkit's Optimizer tells AdamW."""

    found_inf = property(lambda self: None, lambda self, value: None)


def count(model: nn.Module) -> dict[str, int]:
    """How many weights a model has, and how many of them train."""
    weights = list(model.parameters())
    trained = sum(p.numel() for p in weights if p.requires_grad)
    return {"total": sum(p.numel() for p in weights), "trained": trained}
