"""PPO: judge each token by what a value model expected.

    delta_t = r_t + gamma V_{t+1} - V_t,    A_t = sum_k (gamma lam)^k delta_{t+k}
    loss = -mean_t min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps) A_t) + vf_coef * value loss
    rho_t = exp(logp_t - logp_old_t)                    every token is an action

Against RLOO and GRPO: a second model learns to predict the reward from half a completion, so one
completion a prompt is enough and credit goes to single tokens; it costs that model's memory and
time. The reward stands on the last token, the KL divergence from the reference on every token.
Schulman et al. 2017, arXiv:1707.06347; for language models Ziegler et al. 2019, arXiv:1909.08593.

    rlkit train ppo --preset tiny
"""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from rlkit.advantages import gae, token_rewards, whiten
from rlkit.config import TrainConfig, at_least, unknown
from rlkit.objectives import PPO, Totals, kl_divergence, value_loss
from rlkit.policy import ValueModel, causal_lm, checkpoint_activations
from rlkit.rollout import Rollout
from rlkit.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class PPOConfig(TrainConfig):
    """Settings of PPO."""

    num_generations: int = 1
    """Completions of each prompt; PPO needs no siblings."""
    num_iterations: int = 4
    """How often the updates go over each rollout (PPO's epochs)."""
    beta: float = 0.05
    """Weight of the KL divergence from the reference model, inside the reward of each token."""
    kl_estimator: Literal["k1", "k3"] = "k1"
    """Estimator of that divergence: the plain log-ratio, or the one that is never negative."""
    gamma: float = 1.0
    """Discount of later rewards."""
    lam: float = 0.95
    """Between the value model's word (0) and what then happened (1)."""
    value_model: Literal["separate", "reward", "shared"] = "separate"
    """separate: a model of its own, a copy of the policy with a head that starts at 0. reward: a
    copy of the (first) reward model with its head. shared: a head on the policy's trunk."""
    vf_coef: float = 0.1
    """Weight of the value loss."""
    cliprange_value: float | None = 0.2
    """How far a value may move from its old one before its loss is clipped; None: any way."""
    whiten_rewards: bool = False
    """Divide the token rewards by their standard deviation."""
    whiten_advantages: bool = True
    """Give the advantages of a rollout mean 0 and variance 1."""
    missing_eos_penalty: float = 0.0
    """Taken from the reward of a completion that does not end."""
    target_kl: float | None = None
    """Nats a token from the policy that drew the rollout (k3), above which no further update uses
    this rollout; None: all do. 0.02 is a usual value."""

    name: ClassVar[str] = "ppo"
    group_of_one: ClassVar[bool] = True

    def objective(self) -> PPO:
        """What is minimised, beside the value loss."""
        return PPO(epsilon=self.epsilon, epsilon_high=self.epsilon_high)

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("gamma", "lam", "vf_coef", "missing_eos_penalty"):
            at_least(self, field, 0, whole=False)
        if self.target_kl is not None:
            at_least(self, "target_kl", 0, whole=False)
        for field, known in (
            ("value_model", ("separate", "reward", "shared")),
            ("kl_estimator", ("k1", "k3")),
        ):
            if getattr(self, field) not in known:
                raise ValueError(unknown(field, getattr(self, field), known))


class PPOTrainer(Trainer):
    """Holds a policy, a value model, and a reference if beta is not 0: with a reward model four."""

    config_class = PPOConfig

    def build(self, model: nn.Module, peft_config: Any) -> None:
        """Makes the value model before adapters freeze what it copies."""
        self.value_model = None
        if self.args.value_model != "shared":
            trunk = copy.deepcopy(self.judge_of(causal_lm(model))).requires_grad_(True).float()
            if self.args.gradient_checkpointing:
                checkpoint_activations(trunk, frozen_base=False)
            self.value_model = ValueModel(trunk, self.policy_options()["amp_dtype"])
        super().build(model, peft_config)

    def judge_of(self, model: nn.Module) -> nn.Module:
        """What the value model is a copy of: the policy's model, or the first reward model."""
        if self.args.value_model == "separate":
            return model
        for func in self.rewards.model_funcs:
            if not func.same_tokens:
                raise ValueError(
                    f"value_model='reward': reward model {func.__name__!r} has a tokenizer of its "
                    "own, so it cannot read the policy's tokens; use 'separate'"
                )
            return causal_lm(func.model.model)
        raise ValueError(
            "value_model='reward' needs a reward model in reward_funcs; use 'separate' without one"
        )

    def policy_options(self) -> dict[str, Any]:
        """With a value head on the trunk if the value model is shared."""
        return super().policy_options() | {"with_values": self.args.value_model == "shared"}

    def trained_modules(self) -> list[nn.Module]:
        """The policy, and the value model if it is one of its own."""
        return [self.policy] if self.value_model is None else [self.policy, self.value_model]

    def judge(self, rollout: Rollout) -> None:
        """Advantages and returns [B, T] of single tokens."""
        args, kl = self.args, None
        # a row that nothing scored says nothing about its tokens either
        rollout.mask = rollout.mask & ~rollout.rewards.isnan()[:, None]
        if args.beta or args.updates_per_step > 1:
            rollout.logp_old = self.logp(rollout)
        if args.beta:
            rollout.logp_ref = self.logp_reference(rollout)
            kl = kl_divergence(rollout.logp_old, rollout.logp_ref, args.kl_estimator)
        rewards = token_rewards(
            rollout.rewards,
            kl,
            rollout.mask,
            args.beta,
            finished=rollout.finished,
            missing_eos_penalty=args.missing_eos_penalty,
        )
        if args.whiten_rewards:
            rewards = whiten(rewards, rollout.mask, shift_mean=False)
        rollout.values = self.on_rollout(self.values, rollout)
        advantages, rollout.returns = gae(
            rewards, rollout.values, rollout.mask, args.gamma, args.lam
        )
        rollout.advantages = advantages
        if args.whiten_advantages:
            rollout.advantages = whiten(advantages, rollout.mask)

    def values(self, micro_batch: Rollout) -> Tensor:
        """Values [B, T] of the value model as it is now."""
        if self.value_model is not None:
            return self.value_model(micro_batch)
        return self.policy(micro_batch, entropy=False)[-1]

    def used_up(self, result: dict[str, Any]) -> bool:
        """Whether the policy has moved target_kl away from the one that drew the rollout."""
        if self.args.target_kl is None:
            return False
        total, count = result["sums"]["kl_old"]
        return float(total / count.clamp(min=1)) > self.args.target_kl

    def rows_that_teach(self, batch: Rollout) -> Tensor:
        """Every row: the value model learns from good and bad alike."""
        return torch.arange(len(batch))

    def loss(
        self, micro_batch: Rollout, totals: Totals, threshold: Tensor | None = None
    ) -> tuple[Tensor, dict]:
        """Policy loss + vf_coef * value loss."""
        args, batch = self.args, micro_batch
        loss, sums, *values = self.policy(batch, self.objective, totals)
        predicted = values[0] if values else self.value_model(batch)
        extra = value_loss(
            predicted,
            batch.values,
            batch.returns,
            batch.mask,
            clip=args.cliprange_value,
            totals=totals,
        )
        sums["value_loss"] = (extra.detach() * totals.tokens, batch.mask.sum())
        return loss + args.vf_coef * extra, sums
