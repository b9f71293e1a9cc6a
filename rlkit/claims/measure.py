"""What is measured, on this CPU, in seconds: bytes of a head, copies of a model, equal results."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import rlkit
from rlkit.head import Head, token_logps
from rlkit.memory import Meter
from rlkit.objectives import GRPO, Totals
from rlkit.rollout import Rollout

V, H, B, T = 32_768, 64, 4, 256
"""A vocabulary so wide that logits outweigh all else: B completions of T tokens have 128 MiB."""

ALL_LOGITS = B * T * V * 4
CHUNK = 64
TILE_BYTES = 8 * 2**20
SMALL_TILE = 2**12
"""So small that the built-in model's logits are cut too."""

Loss = Callable[[nn.Parameter, Tensor, dict[str, Tensor]], Tensor]


def objective_of(name: str) -> Loss:
    """(weight, hidden, batch) -> loss, by a head of rlkit."""

    def loss(weight: nn.Parameter, hidden: Tensor, batch: dict[str, Tensor]) -> Tensor:
        head = Head(weight, mode=name, tile_bytes=TILE_BYTES)
        told = {k: batch[k] for k in ("advantages", "mask", "logp_old")}
        index = torch.arange(B * T)
        return head(hidden, batch["targets"], objective=GRPO(), index=index, entropy=False, **told)[
            0
        ]

    return loss


def one_backward(weight: nn.Parameter, hidden: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Chunk by chunk, the losses summed: autograd keeps every chunk's logits to the end."""
    totals, losses = Totals(tokens=B * T, sequences=B), []
    for start in range(0, B * T, CHUNK):
        part, row = slice(start, start + CHUNK), start // T
        targets = batch["targets"][part]
        logp, _ = token_logps(hidden[part], weight, targets, entropy=False, mode="full")
        old = batch["logp_old"].view(1, -1)[:, part]
        told = batch["advantages"][row : row + 1], torch.ones(1, CHUNK, dtype=torch.bool)
        losses.append(GRPO()(logp[None], old, *told, totals=totals)[0])
    return torch.stack(losses).sum()


WAYS: dict[str, Loss] = {
    "all logits at once": objective_of("full"),
    "chunks, one backward at the end": one_backward,
    "chunks, gradients in the forward": objective_of("fused"),
    "chunks, made again in the backward": objective_of("chunked"),
}
"""Ways to one GRPO loss and its gradients."""


def head_peaks() -> dict[str, int]:
    """Way -> the most bytes beyond its inputs, forward and backward.

    Raises ArithmeticError if two ways differ in the loss or in a gradient.
    """
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(V, H) * 0.3)
    hidden = torch.randn(B * T, H, requires_grad=True)
    batch = dict(
        targets=torch.randint(V, (B * T,)),
        advantages=torch.tensor([1.0, -1.0, 0.5, -0.5]),
        mask=torch.ones(B, T, dtype=torch.bool),
        logp_old=torch.full((B, T), -10.0),
    )
    peaks, results = {}, []
    for name, way in WAYS.items():
        with Meter(device="cpu") as meter:
            before = meter.total
            loss = way(weight, hidden, batch)
            loss.backward()
        peaks[name] = meter.peak - before
        results.append((loss.detach(), hidden.grad, weight.grad))
        hidden.grad = weight.grad = None
    for name, found in zip(WAYS, results, strict=True):
        if max(map(difference, found, results[0])) > 1e-4:
            raise ArithmeticError(f"{name}: not the loss and gradients of all logits at once")
    return peaks


def difference(x: Tensor, exact: Tensor) -> float:
    """Largest, as a share of the largest entry."""
    return float((x - exact).abs().max() / exact.abs().max().clamp(min=1e-30))


# ---- on the built-in model -------------------------------------------------------------------


def adder(lora_rank: int | None = None, **changes: Any) -> Any:
    """A GRPOTrainer of the built-in model on sums."""
    from transformers.utils import logging

    from rlkit.memory.step import adapters

    logging.disable_progress_bar()
    task = rlkit.load_task("sums")
    sizes = dict(per_device_train_batch_size=64, max_steps=1, disable_tqdm=True)
    return rlkit.GRPOTrainer(
        model="adder",
        reward_funcs=task.reward,
        args=rlkit.GRPOConfig.preset("tiny", **(sizes | dict(num_threads=None) | changes)),
        train_dataset=task.train,
        peft_config=adapters(lora_rank),
    )


def rollout_of(trainer: Any) -> Rollout:
    """64 sampled completions with made-up rewards, no two of a group alike, and their advantages.

    logp_old is not quite logp, so that some ratios are clipped.
    """
    rollout = trainer.generate(trainer.prompts.pick(0, 8, trainer.args.seed), 0)
    rollout.rewards = torch.arange(len(rollout)).float().sqrt()
    trainer.judge(rollout)
    torch.manual_seed(0)
    rollout.logp_old = trainer.logp(rollout) + 0.3 * torch.randn(rollout.mask.shape)
    return rollout


def head_differences() -> dict[str, tuple[float, float]]:
    """Head -> (loss, gradient): how far each is from full logits', gradients as a share.

    The gradient is that of all weights of the built-in model.
    """
    trainer = adder()
    rollout = rollout_of(trainer)
    batch, totals = rollout.rows(torch.arange(len(rollout))), Totals.of(rollout.mask)
    found = {}
    for mode in ("full", "chunked", "fused"):
        trainer.policy.head.mode, trainer.policy.head.tile_bytes = mode, SMALL_TILE
        trainer.policy.zero_grad()
        loss, _ = trainer.loss(batch, totals)
        loss.backward()
        grads = [p.grad for p in trainer.policy.parameters() if p.grad is not None]
        found[mode] = loss.detach(), torch.cat([g.flatten() for g in grads])
    loss, gradient = found["full"]
    return {
        mode: (float((own - loss).abs()), difference(grad, gradient))
        for mode, (own, grad) in found.items()
        if mode != "full"
    }


def copies() -> dict[str, tuple[float, float]]:
    """Way to train -> (copies of the model that are reference alone, largest error).

    Counted with a Meter while a trainer with a KL term exists. The error is that of the
    reference's log-probs after training moved something, against the model's before.
    """
    base = adder(beta=0.04)
    rollout = rollout_of(base)
    one_model = sum(p.numel() * p.element_size() for p in base.policy.parameters())
    before = base.logp(rollout)
    found = {}
    for name, trainer in (("all weights", base), ("LoRA", adder(lora_rank=16, beta=0.04))):
        with Meter(trainer, device="cpu") as meter:
            reference = meter.live.get("reference", 0)
        move(trainer)
        error = float((trainer.logp_reference(rollout) - before).abs().max())
        found[name] = reference / one_model, error
    return found


@torch.no_grad()
def move(trainer: Any) -> None:
    """Changes what trains, as training would."""
    for p in trainer.policy.parameters():
        if p.requires_grad:
            p.add_(0.01)
