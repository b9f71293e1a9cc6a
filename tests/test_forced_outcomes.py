"""Runs whose end is known beforehand: one good sample rises, equal rewards move nothing.

That a learned reward ruins what was right where no KL divergence holds is in test_preferences.py,
and that PPO's policy stays where its critic expects equal scores in test_ppo_edges.py.
"""

import pytest
import torch
from test_trainer import ALL, TRAINERS, make, weights

SETTINGS = dict(learning_rate=1e-3, max_steps=1, weight_decay=0.0, beta=0.0)
WITHOUT_CRITIC = pytest.mark.parametrize("name", [n for n in TRAINERS if n != "ppo"])


def of_rows(trainer, rollout):
    """The log-prob of each whole completion, [B]."""
    return (trainer.logp(rollout) * rollout.mask).sum(1)


@ALL
@pytest.mark.parametrize("good", [0, 6, 15])
def test_one_good_sample_rises(name, good):
    def one(completions, **kwargs):
        return [float(i == good) for i in range(len(completions))]

    more = dict(whiten_advantages=True) if name == "ppo" else {}
    trainer = make(name, reward=one, **SETTINGS, **more)
    rollout = trainer.generate(trainer.prompts.pick(0, 4, trainer.args.seed), 0)
    before = of_rows(trainer, rollout)
    row = trainer.train()[-1]
    moved = of_rows(trainer, rollout) - before
    assert row["reward"] == pytest.approx(1 / 16)
    assert moved[good] > 0.02
    assert moved[good] > moved[good // 4 * 4 : good // 4 * 4 + 4].mean() + 0.02


@WITHOUT_CRITIC
@pytest.mark.parametrize("reward", [0.0, 1.0, -3.7])
def test_equal_rewards_move_nothing(name, reward):
    def alike(completions, **kwargs):
        return [reward] * len(completions)

    trainer = make(name, reward=alike, **SETTINGS | {"max_steps": 3})
    before = weights(trainer)
    for row in trainer.train():
        assert row["reward_std"] == 0 and row["dead_groups"] == 1
    assert all(map(torch.equal, before, weights(trainer)))
