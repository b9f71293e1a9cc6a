"""The health panel: each silent death is named, and a healthy run hears nothing."""

import pytest

from rlkit import health

HEALTHY = {
    "step": 1,
    "reward": 0.5,
    "reward_std": 0.5,
    "truncated": 0.1,
    "dead_groups": 0.3,
    "kl": 0.05,
    "overflows": 0,
}


def warnings_after(steps, **sick):
    """Warnings at the last of `steps` equal steps."""
    rows = [HEALTHY | sick | {"step": i} for i in range(steps)]
    return health.check(rows[-1], rows[:-1])


def test_a_healthy_run_hears_nothing():
    assert warnings_after(50) == []


@pytest.mark.parametrize(
    ("sick", "says"),
    [
        (dict(truncated=0.8), "truncated: 80% .*raise max_completion_length"),
        (dict(truncated=1.0), "no EOS: .*chat template"),
        (dict(reward_std=0.0, dead_groups=1.0), "constant reward: every completion earns 0.5"),
        (dict(dead_groups=0.9), "dead groups: in 90%.*num_generations"),
        (dict(kl=3.0), "KL: the policy is 3.0 nats .*lower learning_rate"),
    ],
)
def test_each_death_is_named_once_it_lasts(sick, says):
    import re

    assert warnings_after(health.WINDOW - 1, **sick) == []
    found = warnings_after(health.WINDOW, **sick)
    assert len(found) == 1 and re.search(says, found[0]), found


@pytest.mark.parametrize("reward", [0.7, 1.0, -3.3])
def test_equal_rewards_have_no_spread_in_float32(reward):
    import torch

    from rlkit.logs import describe
    from rlkit.rollout import Rollout

    rewards = torch.full((8,), reward)
    rewards[5] = torch.nan
    mask = torch.ones(8, 2).bool()
    rollout = Rollout(mask.long(), mask, mask.long(), mask, mask[:, 0], rewards=rewards)
    row = describe(rollout, 4, ["reward"])
    assert row["reward_std"] == 0.0 and row["dead_groups"] == 1.0


def test_an_overflow_is_told_at_once():
    assert "overflow: 1 fp16" in warnings_after(1, overflows=1)[0]


def test_format_without_accuracy():
    def row(i, right, form):
        return HEALTHY | {"step": i, "reward/right": right, "reward/form": form}

    rows = [row(i, 0.1, i / 20) for i in range(20)]
    assert "format without accuracy: reward/form rose" in health.check(rows[-1], rows[:-1])[0]
    rows = [row(i, i / 20, i / 20) for i in range(20)]
    assert health.check(rows[-1], rows[:-1]) == []
    rows = [row(i, 0.1, 0.2) for i in range(20)]
    assert health.check(rows[-1], rows[:-1]) == []
