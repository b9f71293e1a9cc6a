"""RLOO: judge each completion by the others of its prompt.

    A_i = r_i - mean_{j != i} r_j
    loss = -mean_i min(rho_i A_i, clip(rho_i, 1 - eps, 1 + eps) A_i)
    rho_i = exp(sum_t (logp_it - logp_old_it))          the whole completion is one action

Against GRPO (`diff rloo.py grpo.py`): the baseline leaves the sample itself out, nothing is divided
by a standard deviation, the ratio is of whole completions, and the KL divergence from the
reference is part of the reward, where it is not differentiated.
Ahmadian et al. 2024, arXiv:2402.14740.

    rlkit train rloo --preset tiny
"""

from dataclasses import dataclass
from typing import ClassVar

from rlkit.advantages import leave_one_out, sequence_rewards
from rlkit.config import TrainConfig
from rlkit.objectives import RLOO, kl_divergence
from rlkit.rollout import Rollout
from rlkit.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class RLOOConfig(TrainConfig):
    """Settings of RLOO."""

    num_generations: int = 2
    """Completions of each prompt, G; each is judged by the G - 1 others."""
    beta: float = 0.05
    """Weight of the KL divergence from the reference model, inside the reward."""

    name: ClassVar[str] = "rloo"

    def objective(self) -> RLOO:
        """What is minimised."""
        return RLOO(epsilon=self.epsilon, epsilon_high=self.epsilon_high)


class RLOOTrainer(Trainer):
    """Holds a policy, and a reference if beta is not 0."""

    config_class = RLOOConfig

    def judge(self, rollout: Rollout) -> None:
        """Advantages [B] of whole completions."""
        args, rewards = self.args, rollout.rewards
        if args.beta or args.updates_per_step > 1:
            rollout.logp_old = self.logp(rollout)
        if args.beta:
            rollout.logp_ref = self.logp_reference(rollout)
            kl = kl_divergence(rollout.logp_old, rollout.logp_ref, "k1")
            rewards = sequence_rewards(rewards, kl, rollout.mask, args.beta)
        rollout.advantages = leave_one_out(rewards, args.num_generations)
