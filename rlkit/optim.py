"""One optimiser step that never reads a number back from the device.

    micro-batches -> forward, backward -> unscale, clip -> AdamW, unless something is not finite

Whether to step is decided on the device: AdamW's fused kernel takes a flag `found_inf` and leaves
weights and moments alone where it is 1. So the same code runs under fake tensors, the GPU never
waits for the host, and a NaN never reaches the weights.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlkit.config import TrainConfig
from rlkit.distributed import World, sum_gradients


class Optimizer:
    """AdamW with clipping, warm-up and decay, and loss scaling where the config says fp16."""

    def __init__(
        self,
        modules: Iterable[nn.Module],
        args: TrainConfig,
        updates: int,
        world: World | None = None,
    ) -> None:
        """modules: what trains. updates: optimiser steps of the whole run, for the schedule.

        world: the ranks that train together; None: this process alone.
        """
        self.args, self.updates, self.count = args, updates, 0
        self.modules, self.world = list(modules), World() if world is None else world
        self.parameters = [p for m in self.modules for p in m.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError("the model has no weight that trains; unfreeze some or add adapters")
        matrices = [p for p in self.parameters if p.dim() > 1]
        others = [p for p in self.parameters if p.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": args.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            [g for g in groups if g["params"]],
            lr=args.learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
            fused=True,
        )
        device = self.parameters[0].device.type
        self.scaler = torch.amp.GradScaler(device, enabled=args.fp16)

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return self.args.learning_rate * schedule(self.args, self.count, self.updates)

    def step(
        self, micro_batches: Sequence[Any], loss: Callable[[Any], tuple[Tensor, dict]]
    ) -> dict[str, Any]:
        """Accumulates the gradients of all micro-batches and steps once.

        micro_batches: of this rank; the others have as many.
        loss: micro-batch -> (loss, sums), the loss already a share of the whole step's.
        Returns 0-d tensors `loss`, `grad_norm`, `finite`, `sums` added up by name, and `lr`. No
        micro-batches (every row dropped): the gradient is 0 and AdamW steps by its momentum.
        """
        # a step that was interrupted may have left gradients behind
        self.adamw.zero_grad()
        lr = self.learning_rate
        for group in self.adamw.param_groups:
            group["lr"] = lr
        total = torch.zeros((), device=self.parameters[0].device)
        self.scaler.scale(total)  # it must have scaled something, even if every row was dropped
        sums: dict[str, tuple[Tensor, Tensor]] = {}
        for i, micro_batch in enumerate(micro_batches):
            sum_gradients(self.modules, now=i + 1 == len(micro_batches))
            share, micro_sums = loss(micro_batch)
            self.scaler.scale(share).backward()
            total = total + share.detach()
            add_sums(sums, micro_sums)
        total, sums = self.world.sum(total), self.world.sum_up(sums)
        norm = self.clip()
        finite = torch.isfinite(norm + total)
        if self.args.fp16:
            self.scaler.step(self.adamw)
            self.scaler.update()
        else:
            self.adamw.found_inf = (~finite).float()
            self.adamw.step()
        self.adamw.zero_grad()
        self.count += 1
        return {"loss": total, "grad_norm": norm, "finite": finite, "sums": sums, "lr": lr}

    def clip(self) -> Tensor:
        """Unscales the gradients and scales them down to max_grad_norm; returns their norm."""
        for p in self.parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        if self.args.fp16:
            self.scaler.unscale_(self.adamw)
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters])
        if hasattr(norm, "full_tensor"):
            norm = norm.full_tensor()  # of the parts on all ranks
        if self.args.max_grad_norm > 0:
            nn.utils.clip_grads_with_norm_(self.parameters, self.args.max_grad_norm, norm)
        return norm


def schedule(args: TrainConfig, count: int, updates: int) -> float:
    """Share of the peak learning rate at optimiser step `count` of `updates`."""
    warmup = args.warmup_steps * args.updates_per_step
    if count < warmup:
        return (count + 1) / warmup
    progress = (count - warmup) / max(updates - warmup, 1)
    if args.lr_scheduler_type == "linear":
        return max(0.0, 1.0 - progress)
    if args.lr_scheduler_type == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))
    return 1.0


def add_sums(into: dict, more: dict) -> None:
    """Adds {name: (sum, count)} into another of the same form."""
    for name, (value, count) in more.items():
        old_value, old_count = into.get(name, (0.0, 0.0))
        into[name] = (old_value + value, old_count + count)
