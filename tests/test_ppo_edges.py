"""PPO where texts are awkward: no EOS, EOS that is padding, one token, scores all equal."""

import math

import models
import pytest
import torch
from models import scorer

from rlkit import PPOConfig, PPOTrainer
from rlkit.objectives import kl_divergence

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in (1, 12, 345) for b in (7, 89)]
"""Prompts of several lengths, so that the shorter ones are padded."""


def make(reward=None, pad=models.PAD, **changes):
    sizes = dict(
        per_device_train_batch_size=16,
        num_iterations=1,
        max_completion_length=6,
        learning_rate=3e-3,
        max_steps=2,
        beta=0.0,
        gamma=1.0,
        lam=1.0,
        whiten_advantages=False,
        weight_decay=0.0,
        value_model="reward",
        disable_tqdm=True,
        seed=1,
    )
    return PPOTrainer(
        models.model(),
        scorer() if reward is None else reward,
        PPOConfig(**(sizes | changes)),
        ROWS,
        processing_class=models.tokenizer(pad),
    )


def judged(trainer):
    picked = trainer.prompts.pick(0, 16, 1)
    rollout = trainer.generate(picked, 0)
    trainer.score(rollout, trainer.prompts, picked, 0)
    trainer.judge(rollout)
    return rollout


def last_of(rollout):
    """The place of each row's last valid token, found one row at a time."""
    return [max(t for t, valid in enumerate(row) if valid) for row in rollout.mask.tolist()]


def weights(module):
    return [p.detach().clone() for p in module.parameters()]


@pytest.mark.parametrize("pad", [models.PAD, models.EOS], ids=["pad", "EOS is pad"])
def test_the_reward_stands_on_the_last_token_and_no_eos_costs_its_penalty(pad):
    """With gamma = lam = 1 and no KL every return is the reward, and A_t = R - V_t."""
    plain, fined = judged(make(pad=pad)), judged(make(pad=pad, missing_eos_penalty=0.7))
    assert plain.finished.any() and not plain.finished.all()
    assert torch.equal(plain.mask, fined.mask)
    for i, last in enumerate(last_of(plain)):
        ended = plain.completion_ids[i, last] == 1
        assert bool(plain.finished[i]) == bool(ended)
        for rollout, fine in ((plain, 0.0), (fined, 0.0 if ended else 0.7)):
            expected = rollout.rewards[i] - fine
            returns = rollout.returns[i, : last + 1]
            torch.testing.assert_close(returns, expected.expand(last + 1), atol=1e-5, rtol=0)
            found = rollout.advantages[i, : last + 1] + rollout.values[i, : last + 1]
            torch.testing.assert_close(found, returns, atol=1e-5, rtol=0)
            assert not rollout.advantages[i, last + 1 :].any()


def test_padding_that_is_eos_changes_nothing():
    settings = dict(beta=0.1, lam=0.9, whiten_advantages=True, missing_eos_penalty=0.5)
    pad, eos = (make(pad=p, num_iterations=2, **settings) for p in (models.PAD, models.EOS))
    rollouts = [judged(run) for run in (pad, eos)]
    # the tokens behind a completion's end differ, so this compares something
    assert not torch.equal(*(r.completion_ids for r in rollouts))
    for name in ("rewards", "values", "advantages", "returns"):
        torch.testing.assert_close(*(getattr(r, name) for r in rollouts), atol=1e-5, rtol=0)
    for run in (pad, eos):
        run.train()
    torch.testing.assert_close(*(weights(run.policy) for run in (pad, eos)), atol=1e-5, rtol=0)


def test_the_micro_batch_changes_no_advantage():
    settings = dict(beta=0.1, lam=0.9, whiten_advantages=True, whiten_rewards=True)
    few = dict(per_device_train_batch_size=1, gradient_accumulation_steps=16)
    whole, parts = judged(make(**settings)), judged(make(**settings, **few))
    for name in ("rewards", "values", "advantages", "returns"):
        pair = getattr(whole, name), getattr(parts, name)
        torch.testing.assert_close(*pair, atol=1e-5, rtol=0)


@pytest.mark.parametrize("whiten", [False, True])
def test_equal_scores_that_the_critic_expects_leave_the_policy_alone(whiten):
    flat = scorer()
    flat.score.weight.data.zero_()  # the value model is a copy: everything is as expected
    run = make(flat, whiten_advantages=whiten, whiten_rewards=whiten)
    before = weights(run.policy)
    assert not judged(run).advantages.any()
    for row in run.train():
        assert row["reward_std"] == 0 and math.isfinite(row["loss"])
    assert all(map(torch.equal, before, weights(run.policy)))


def test_equal_scores_that_the_critic_does_not_expect_teach_it_and_stay_finite():
    settings = dict(value_model="separate", whiten_advantages=True, whiten_rewards=True)
    run = make(lambda completions, **kwargs: [1.0] * len(completions), **settings)
    before = weights(run.value_model)
    assert judged(run).advantages.isfinite().all()
    assert all(math.isfinite(row["loss"]) for row in run.train())
    assert not all(map(torch.equal, before, weights(run.value_model)))


@pytest.mark.parametrize("length", [1, 2])
def test_completions_that_were_all_cut_off_are_fined_alike_and_train(length):
    run = make(max_completion_length=length, missing_eos_penalty=1.0, whiten_advantages=True)
    run.eos_ids = [-1]  # nothing ends
    rollout = judged(run)
    assert not rollout.finished.any() and rollout.mask.all()
    expected = (rollout.rewards - 1.0)[:, None].expand(16, length)
    torch.testing.assert_close(rollout.returns, expected, atol=1e-5, rtol=0)
    for row in run.train():
        assert math.isfinite(row["loss"]) and row["truncated"] == 1.0


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_what_a_token_costs_is_charged_to_it_and_those_before(estimator):
    """R_t = r - beta * sum of kl from t on, worked out with plain loops."""
    run = make(beta=0.3, kl_estimator=estimator)
    with torch.no_grad():
        for p in run.policy.parameters():
            p.mul_(1.05)  # away from the reference
    rollout = judged(run)
    kl = kl_divergence(rollout.logp_old, rollout.logp_ref, estimator).tolist()
    for i, last in enumerate(last_of(rollout)):
        for t in range(last + 1):
            expected = float(rollout.rewards[i]) - 0.3 * sum(kl[i][t : last + 1])
            assert float(rollout.returns[i, t]) == pytest.approx(expected, abs=1e-4)
