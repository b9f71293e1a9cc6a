"""GRPO: judge each completion by its group, in units of the group's spread.

    A_i = (r_i - mean_j r_j) / (std_j r_j + 1e-4)
    loss = -mean_t min(rho_t A_i, clip(rho_t, 1 - eps, 1 + eps) A_i) + beta KL_t
    rho_t = exp(logp_t - logp_old_t)                    every token is an action

Against RLOO (`diff rloo.py grpo.py`): the mean contains the sample itself, the standard deviation
makes a hard prompt as loud as an easy one, the ratio is of single tokens, and the KL divergence
from the reference is part of the loss, where it is differentiated.
Shao et al. 2024, arXiv:2402.03300; loss types in rlkit.objectives.

    rlkit train grpo --preset tiny
"""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rlkit.advantages import SCALES, group_relative
from rlkit.config import TrainConfig, unknown
from rlkit.objectives import GRPO, entropy_quantile
from rlkit.rollout import Rollout
from rlkit.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(TrainConfig):
    """Settings of GRPO and its relatives."""

    loss_type: str = "dapo"
    """How token losses are clipped and averaged: grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo or
    vespo."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Whose standard deviation the advantages are divided by."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """The ratio is of single tokens, or of whole completions (GSPO)."""
    delta: float | None = None
    """Upper bound of the ratio where the advantage is negative; None: none."""
    use_bias_correction_kl: bool = True
    """Multiply the KL estimate by the ratio, so that its gradient is that of the true KL."""
    top_entropy_quantile: float = 1.0
    """Train only on this share of tokens, the most uncertain ones; 1: on all."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus."""
    sapo_temperature_pos: float = 1.0
    """Sharpness of SAPO's soft gate where the advantage is positive."""
    sapo_temperature_neg: float = 1.05
    """Sharpness of SAPO's soft gate elsewhere."""
    vespo_k_pos: float = 2.0
    """Power in VESPO's weight where the advantage is positive."""
    vespo_lambda_pos: float = 3.0
    """Decay in VESPO's weight where the advantage is positive."""
    vespo_k_neg: float = 3.0
    """Power in VESPO's weight elsewhere."""
    vespo_lambda_neg: float = 2.0
    """Decay in VESPO's weight elsewhere."""

    name: ClassVar[str] = "grpo"

    def objective(self) -> GRPO:
        """What is minimised."""
        shared = {f.name for f in fields(GRPO)} & {f.name for f in fields(self)}
        return GRPO(**{name: getattr(self, name) for name in shared})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale_rewards not in SCALES:
            raise ValueError(unknown("scale_rewards", self.scale_rewards, SCALES))


class GRPOTrainer(Trainer):
    """Holds a policy, and a reference if beta is not 0."""

    config_class = GRPOConfig

    def judge(self, rollout: Rollout) -> None:
        """Advantages [B] of whole completions."""
        args = self.args
        if args.updates_per_step > 1:
            rollout.logp_old = self.logp(rollout)
        if args.beta:
            rollout.logp_ref = self.logp_reference(rollout)
        rollout.advantages = group_relative(
            rollout.rewards, args.num_generations, args.scale_rewards
        )

    def rows_that_teach(self, batch: Rollout) -> Tensor:
        """With a KL term or an entropy bonus in the loss every row teaches something."""
        if self.args.beta or self.args.entropy_coef:
            return torch.arange(len(batch))
        return super().rows_that_teach(batch)

    def entropy_threshold(self, batch: Rollout) -> Tensor | None:
        """The quantile over all valid tokens of the step, found in a pass of its own."""
        if self.args.top_entropy_quantile >= 1.0:
            return None
        entropy = self.on_rollout(lambda part: self.policy(part)[1], batch)
        return entropy_quantile(entropy, batch.mask, 1 - self.args.top_entropy_quantile)
