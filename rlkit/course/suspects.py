"""Page 06: a training step cut into six parts, and six suspects, each with one part wrong.

Every wrong part is a mistake from public training code. Most of them move no learning curve of the
task `sums`; a probe, a tiny input whose outcome is known, finds each at once.

    parts = suspect("C")                  # whose step is it, and which part of it is wrong?
    train_step = Training(student, parts)
    row = train_step(k)                   # {"reward": ...}
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from rlkit.course.student import Student
from rlkit.rollout import Rollout, eos_mask

BETA, EPSILON, EPOCHS = 0.05, 0.2, 2
PROMPTS, GENERATIONS = 16, 8


# --- the parts, as they should be


def count(completion_ids: Tensor, eos_id: int) -> Tensor:
    """[B, T] -> [B, T] bool: the tokens up to and with the first EOS."""
    return eos_mask(completion_ids, torch.tensor([eos_id]))[0]


def place(prompt_mask: Tensor, mask: Tensor) -> Tensor:
    """[B, P], [B, T] -> [B, P + T] bool: the tokens of the whole row that are in the loss."""
    return torch.cat([torch.zeros_like(prompt_mask), mask], 1)


def old(now: Tensor, last: Tensor) -> Tensor:
    """What the ratio divides by, [B, T]: by the weights of now, or those of the last step."""
    return now


def baseline(rewards: Tensor, num_generations: int) -> Tensor:
    """[B] -> [B]: for each completion the mean reward of the others of its prompt."""
    groups = rewards.view(-1, num_generations)
    others = groups.sum(1, keepdim=True) - groups
    return (others / (num_generations - 1)).flatten()


def spread(rewards: Tensor, num_generations: int) -> Tensor:
    """[B] -> [B]: for each completion the standard deviation of its group."""
    groups = rewards.view(-1, num_generations)
    return groups.std(1, keepdim=True).expand_as(groups).flatten()


def penalty(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """[N], [N] -> [N]: the estimate of the KL divergence that the loss adds, k3."""
    x = logp_ref - logp
    return torch.expm1(x) - x


# --- the same, each with a mistake


def count_without_end(completion_ids: Tensor, eos_id: int) -> Tensor:
    """EOS is masked together with the padding."""
    return completion_ids != eos_id


def place_with_prompt(prompt_mask: Tensor, mask: Tensor) -> Tensor:
    """The prompt's own tokens are in the loss."""
    return torch.cat([prompt_mask, mask], 1)


def old_of_last_step(now: Tensor, last: Tensor) -> Tensor:
    """Log-probs that were kept too long."""
    return last


def baseline_with_own(rewards: Tensor, num_generations: int) -> Tensor:
    """The completion's own reward is in its baseline."""
    groups = rewards.view(-1, num_generations)
    return groups.mean(1, keepdim=True).expand_as(groups).flatten()


def spread_of_batch(rewards: Tensor, num_generations: int) -> Tensor:
    """The standard deviation is of all prompts together."""
    return rewards.std().expand_as(rewards)


def penalty_turned(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """Away from the reference."""
    return -penalty(logp, logp_ref)


# --- who is who


@dataclass(frozen=True)
class Parts:
    """What a training step is made of; each field's function says what it does."""

    count: Callable = count
    place: Callable = place
    old: Callable = old
    baseline: Callable = baseline
    spread: Callable = spread
    penalty: Callable = penalty


NAMES = tuple(f.name for f in fields(Parts))
MISTAKES = dict(
    count=count_without_end,
    place=place_with_prompt,
    old=old_of_last_step,
    baseline=baseline_with_own,
    spread=spread_of_batch,
    penalty=penalty_turned,
)
SUSPECTS = dict(A="spread", B="place", C="baseline", D="penalty", E="count", F="old")


def suspect(letter: str) -> Parts:
    """The parts of suspect A, B, C, D, E or F: one of them is wrong."""
    if letter not in SUSPECTS:
        raise ValueError(f"there is no suspect {letter!r}; there are {', '.join(SUSPECTS)}")
    part = SUSPECTS[letter]
    return replace(Parts(), **{part: MISTAKES[part]})


# --- the step that they make


class Training:
    """A step of training made of parts: call it with the step's number."""

    def __init__(self, student: Student, parts: Parts, learning_rate: float = 3e-4) -> None:
        self.student, self.parts = student, parts
        self.reference = deepcopy(student.policy).requires_grad_(False)
        self.last = deepcopy(student.policy).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(student.model.parameters(), learning_rate, fused=True)

    def __call__(self, k: int) -> dict[str, float]:
        """Sample, judge, update EPOCHS times; returns the mean reward of the samples."""
        rollout = self.student.sample(k, PROMPTS, GENERATIONS)
        counted, advantages = self.judge(rollout)
        with torch.no_grad():
            logp_ref = row_logps(self.reference, rollout)
            now, last = (row_logps(p, rollout) for p in (self.student.policy, self.last))
        logp_old = self.parts.old(now, last)
        self.last.load_state_dict(self.student.policy.state_dict())
        for _ in range(EPOCHS):
            logp = row_logps(self.student.policy, rollout)
            loss = self.loss(logp, logp_old, logp_ref, advantages, counted)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return {"reward": rollout.rewards.mean().item()}

    def judge(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Which tokens count, [B, P + T - 1] (the first of a row has no log-prob), and [B]."""
        parts, eos_id = self.parts, self.student.tokenizer.eos_token_id
        mask = parts.count(rollout.completion_ids, eos_id) & rollout.mask
        counted = parts.place(rollout.prompt_mask, mask)[:, 1:]
        centred = rollout.rewards - parts.baseline(rollout.rewards, GENERATIONS)
        return counted, centred / (parts.spread(rollout.rewards, GENERATIONS) + 1e-4)

    def loss(
        self, logp: Tensor, logp_old: Tensor, logp_ref: Tensor, advantages: Tensor, counted: Tensor
    ) -> Tensor:
        """The clipped objective and the penalty, a mean over the tokens that count."""
        ratio = (logp - logp_old).exp()
        clipped = ratio.clamp(1 - EPSILON, 1 + EPSILON)
        gain = torch.min(ratio * advantages[:, None], clipped * advantages[:, None])
        return (BETA * self.parts.penalty(logp, logp_ref) - gain)[counted].mean()


def row_logps(policy: torch.nn.Module, rollout: Rollout) -> Tensor:
    """[B, P + T - 1]: the log-prob of each token of the rows but their first."""
    ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], 1)
    seen = torch.cat([rollout.prompt_mask, rollout.mask], 1)
    positions = (seen.cumsum(1) - 1).clamp(min=0)
    hidden = policy.backbone(ids[:, :-1], seen[:, :-1], positions[:, :-1])
    logits = policy.head(hidden)  # [B, P + T - 1, V]
    return logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
