"""rlkit: learn, hands on, how language models are trained by reinforcement learning.

from rlkit import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, PPOConfig, PPOTrainer
"""

from importlib import import_module
from typing import Any

WHERE = {
    "GRPOConfig": "rlkit.grpo",
    "GRPOTrainer": "rlkit.grpo",
    "RLOOConfig": "rlkit.rloo",
    "RLOOTrainer": "rlkit.rloo",
    "PPOConfig": "rlkit.ppo",
    "PPOTrainer": "rlkit.ppo",
    "RewardConfig": "rlkit.reward_model",
    "RewardModelTrainer": "rlkit.reward_model",
    "Rollout": "rlkit.rollout",
    "Totals": "rlkit.objectives",
    "GRPO": "rlkit.objectives",
    "RLOO": "rlkit.objectives",
    "PPO": "rlkit.objectives",
    "kl_divergence": "rlkit.objectives",
    "value_loss": "rlkit.objectives",
    "leave_one_out": "rlkit.advantages",
    "group_relative": "rlkit.advantages",
    "gae": "rlkit.advantages",
    "whiten": "rlkit.advantages",
    "token_logps": "rlkit.head",
    "fused_policy_loss": "rlkit.fused",
    "Head": "rlkit.head",
    "Policy": "rlkit.policy",
    "Meter": "rlkit.memory.meter",
    "plan": "rlkit.memory.planner",
    "largest_batch": "rlkit.memory.planner",
    "load_model": "rlkit.policy",
    "load_tokenizer": "rlkit.policy",
    "load_task": "rlkit.tasks",
    "data_path": "rlkit.paths",
}
"""Public name -> the module that holds it; each is imported when it is first asked for."""

__all__ = list(WHERE)


def __getattr__(name: str) -> Any:
    if name not in WHERE:
        raise AttributeError(f"module 'rlkit' has no attribute {name!r}")
    return getattr(import_module(WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *WHERE])
