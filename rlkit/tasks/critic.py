"""Make the value model of data/critic/: what half an answer of the adder is worth.

    loss = 1/2 mean_t (V(prompt, answer_<t) - r)^2        over answer and EOS, r the reward

The answers are the adder's own, drawn anew for every update; the reward is 1 or 0. So V(text)
becomes the chance that the adder, going on from this text, ends right: it starts at the adder's
accuracy and falls where a wrong digit appears. With gamma = lam = 1 and no KL term this is PPO's
value loss without its clip, on a policy that stands still.

The critic inside a short PPO run has no time for that: to see a wrong digit it must learn to add.

Bit for bit the same on the same machine: one thread, fixed seeds.

    python -m rlkit.tasks.critic          makes data/critic/ again (minutes)
"""

import argparse
import copy
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlkit.objectives import value_loss
from rlkit.paths import data_path
from rlkit.policy import Policy, ValueModel, load_model, load_tokenizer
from rlkit.prompts import encode, pad_left
from rlkit.rollout import Rollout, generate
from rlkit.sampling import Sampler
from rlkit.tasks import Task, arithmetic
from rlkit.tasks.cards import critic_card

SEED = 11
UPDATES = 750
BATCH = {"sums": 192, "steps": 64}  # completions of an update
WARM_UP = 30  # updates
PROBE_EVERY = 50
DRAW = {"sums": arithmetic.draw_sums, "steps": arithmetic.draw_steps}
MUON_LR, ADAM_LR = 4e-3, 1e-3

Say = Callable[[str], None]


def load_critic() -> ValueModel:
    """The value model of data/critic/: critic(rollout) gives values [B, T]."""
    from safetensors.torch import load_file

    critic = ValueModel(load_model("adder"))
    critic.load_state_dict(load_file(data_path("critic", "model.safetensors")))
    return critic.requires_grad_(False).eval()


# ---- completions of the adder, with their rewards


@dataclass
class Adder:
    """The policy that the critic judges, and everything to draw from it."""

    policy: Policy = field(default_factory=lambda: Policy(load_model("adder")).eval())
    tokenizer: Any = field(default_factory=lambda: load_tokenizer("adder"))

    def answer(
        self, task: Task, rows: list[dict[str, str]], sampler: Sampler, samples: int = 1
    ) -> Rollout:
        """`samples` completions of each row's prompt, scored: a Rollout ready for a model."""
        ids = [encode(row["prompt"], self.tokenizer) for row in rows]
        rollout = generate(
            self.policy,
            *pad_left(ids, self.tokenizer.pad_token_id, "cpu"),
            sampler,
            num_generations=samples,
            max_completion_length=task.max_completion_length,
            eos_ids=[self.tokenizer.eos_token_id],
            pad_id=self.tokenizer.pad_token_id,
        )
        asked = [row for row in rows for _ in range(samples)]
        rewards = task.reward(
            [row["prompt"] for row in asked],
            self.texts(rollout),
            answer=[row["answer"] for row in asked],
        )
        return rollout.replace(rewards=torch.tensor(rewards)).rows(slice(None))

    def texts(self, rollout: Rollout) -> list[str]:
        """The completions as text, without EOS."""
        ids = [i[m] for i, m in zip(rollout.completion_ids, rollout.mask, strict=True)]
        return self.tokenizer.batch_decode(ids, skip_special_tokens=True)


def fresh_rows(
    name: str, count: int, unseen: arithmetic.HeldOut, rng: random.Random
) -> list[dict[str, str]]:
    """Random prompts of a task, none of them held out."""
    rows: list[dict[str, str]] = []
    while len(rows) < count:
        numbers = DRAW[name](rng)
        prompt = arithmetic.prompt_of(numbers)
        if unseen.allows(prompt):
            rows.append({"prompt": prompt, "answer": str(sum(numbers))})
    return rows


# ---- training


def make_optimizers(critic: ValueModel) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the rest."""
    named = dict(critic.named_parameters())
    matrices = [name for name, p in named.items() if p.ndim == 2 and "layers" in name]
    rest = [p for name, p in named.items() if name not in matrices]
    optimizers = [
        torch.optim.Muon([named[name] for name in matrices], lr=MUON_LR, weight_decay=0.0),
        torch.optim.AdamW(rest, lr=ADAM_LR, weight_decay=0.0),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


@dataclass
class Training:
    """A critic in training, with all that decides its next update."""

    adder: Adder = field(default_factory=Adder)
    rng: random.Random = field(default_factory=lambda: random.Random(SEED))
    updates: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(SEED)
        self.critic = ValueModel(copy.deepcopy(self.adder.policy.model)).float()
        self.optimizers = make_optimizers(self.critic)
        self.unseen = arithmetic.held_out()
        self.tasks = {name: arithmetic.load(name) for name in BATCH}

    def update(self) -> float:
        """One optimizer step on fresh completions of every task; returns the loss, summed."""
        loss = sum(self.loss(name) for name in BATCH)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.critic.parameters(), 1.0)
        share = min(1.0, (self.updates + 1) / WARM_UP) * (1 - self.updates / UPDATES)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * share
            optimizer.step()
            optimizer.zero_grad()
        self.updates += 1
        return loss.item()

    def loss(self, name: str) -> Tensor:
        """The loss on new completions of a task."""
        rows = fresh_rows(name, BATCH[name], self.unseen, self.rng)
        rollout = self.adder.answer(self.tasks[name], rows, Sampler(SEED, self.updates))
        values = self.critic(rollout)
        returns = rollout.rewards[:, None].expand_as(values)
        return value_loss(values, values.detach(), returns, rollout.mask, clip=None)


# ---- measuring


@torch.no_grad()
def measure(critic: torch.nn.Module, adder: Adder, task: Task, count: int) -> dict[str, float]:
    """What the critic says on held-out prompts, one sampled completion each.

    Returns mean values: "prompt" (before the first token), "right" and "wrong" (after the
    first token, where it is right or not), "accuracy" (mean reward), "error" and "base_error" (mean
    squared error before the last token, of the critic and of the mean reward).
    """
    rows = task.eval[:count]
    rollout = adder.answer(task, rows, Sampler(SEED + 1))
    values = critic(rollout)
    firsts = [encode(right_text(row), adder.tokenizer)[0] for row in rows]
    right = rollout.completion_ids[:, 0] == torch.tensor(firsts)
    last = values.gather(1, rollout.mask.sum(1, keepdim=True) - 1).squeeze(1)
    rewards = rollout.rewards
    return {
        "accuracy": rewards.mean().item(),
        "prompt": values[:, 0].mean().item(),
        "right": values[right, 1].mean().item(),
        "wrong": values[~right, 1].mean().item(),
        "error": (last - rewards).square().mean().item(),
        "base_error": rewards.var(correction=0).item(),
    }


def right_text(row: dict[str, str]) -> str:
    """The right completion of a row, worked out."""
    return arithmetic.worked(arithmetic.numbers_of(row["prompt"]))


def make(out: Path) -> None:
    """Train the critic and write its folder: weights, configuration, data card."""
    torch.set_num_threads(1)
    began = time.perf_counter()

    def say(line: str) -> None:
        print(f"{time.perf_counter() - began:4.0f} s  {line}", flush=True)

    run, losses = Training(), 0.0
    while run.updates < UPDATES:
        losses += run.update()
        if run.updates % PROBE_EVERY == 0:
            probe(run, losses / PROBE_EVERY, say)
            losses = 0.0
    found = {
        name: measure(run.critic, run.adder, task, arithmetic.EVAL_SIZE)
        for name, task in run.tasks.items()
    }
    write(run, found, out)
    say(f"written: {out}")


def probe(run: Training, loss: float, say: Say) -> None:
    """Measure on held-out prompts, and say it in one line a task."""
    say(f"update {run.updates}  loss {loss:.4f}")
    for name, task in run.tasks.items():
        found = measure(run.critic, run.adder, task, 200)
        say(f"  {name:5}  " + "  ".join(f"{key} {value:.2f}" for key, value in found.items()))


def write(run: Training, found: dict[str, dict[str, float]], out: Path) -> None:
    """The folder, readable by everyone."""
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    save_file(run.critic.state_dict(), out / "model.safetensors", metadata={"format": "pt"})
    run.critic.model.config.save_pretrained(out)
    card = critic_card(found, sum(p.numel() for p in run.critic.parameters()), UPDATES, BATCH)
    (out / "README.md").write_text(card, encoding="utf-8", newline="\n")
    for path in out.iterdir():
        path.chmod(0o644)


def main() -> None:
    """python -m rlkit.tasks.critic."""
    parser = argparse.ArgumentParser(prog="python -m rlkit.tasks.critic", description=__doc__)
    parser.add_argument("--out", type=Path, default=data_path("critic"))
    make(parser.parse_args().out)


if __name__ == "__main__":
    main()
