"""One action a completion against one a token: where they are the same, and where they part."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlkit.bench import actions
from rlkit.bench.actions import CRITIC, GAE, GROUP, LENGTH, RETURN, SAME, TOKENS, WHOLE
from rlkit.course.student import Student
from rlkit.objectives import PPO, RLOO
from rlkit.rollout import Rollout


def made(seed, rows=GROUP, width=6):
    """A rollout of which only mask and rewards count, with kl and values [B, T]."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    mask = torch.arange(width) < lengths[:, None]
    rewards = torch.randint(2, (rows,), generator=generator).float()
    kl, values = (torch.randn(rows, width, generator=generator) for _ in range(2))
    ids = torch.zeros(rows, 1, dtype=torch.long)
    rollout = Rollout(
        prompt_ids=ids,
        prompt_mask=ids.bool(),
        completion_ids=mask.long(),
        mask=mask,
        finished=torch.ones(rows).bool(),
        rewards=rewards,
    )
    return rollout, kl, values


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_with_one_baseline_and_a_reward_at_the_end_every_token_gets_the_completion_s(seed):
    rollout, kl, values = made(seed)
    found = actions.advantages(rollout, kl, values)
    torch.testing.assert_close(found[SAME], found[WHOLE])
    # what tells: a KL of its own, a critic of its own, and the lengths
    torch.testing.assert_close(found[RETURN][:, 0], found[f"{WHOLE}, KL"][:, 0])
    for i, length in enumerate(rollout.mask.sum(1).tolist()):
        before = kl[i, :length].cumsum(0) - kl[i, :length]
        expected = found[f"{WHOLE}, KL"][i, :length] + actions.BETA * before
        torch.testing.assert_close(found[RETURN][i, :length], expected, atol=1e-5, rtol=0)
        expected = rollout.rewards[i] - values[i, :length]
        torch.testing.assert_close(found[CRITIC][i, :length], expected, atol=1e-5, rtol=0)
        assert float(found[GAE][i, length - 1]) == pytest.approx(float(expected[-1]), abs=1e-5)
        torch.testing.assert_close(found[LENGTH][i] * length, found[WHOLE][i])
    tokens = found[TOKENS] * rollout.mask.sum() / len(rollout.mask)
    torch.testing.assert_close(tokens, found[WHOLE])
    assert not any(x[~rollout.mask].any() for x in found.values())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["sequence", "token"]))
def test_both_surrogates_are_the_library_s(seed, level):
    """RLOO's loss, and PPO's times tokens over completions; also the share that the clip takes."""
    rollout, change, _ = made(seed, rows=5)
    mask, own = rollout.mask, torch.linspace(-1, 1, 5)[:, None]
    old = torch.full(mask.shape, -1.0)
    logp = (old + 0.3 * change).requires_grad_()
    loss, share = actions.surrogate(logp, old, own, mask, level)
    objective, scale = (RLOO(), 1.0) if level == "sequence" else (PPO(), mask.sum() / len(mask))
    theirs, sums = objective(logp, old, own.squeeze(1), mask)
    torch.testing.assert_close(loss, theirs * scale)
    (mine,) = torch.autograd.grad(loss, logp, retain_graph=True)
    (other,) = torch.autograd.grad(theirs * scale, logp)
    torch.testing.assert_close(mine, other)
    counted = mask & (own != 0)
    silent = counted & (mine == 0)
    assert share == pytest.approx(float(silent.sum() / counted.sum()))


def test_before_a_ratio_moves_both_gradients_are_one():
    student = Student(task=actions.TASK, seed=3)
    rollout = student.sample(0, prompts=2, num_generations=GROUP)
    own = torch.linspace(-1, 1, 2 * GROUP)[:, None]
    found = []
    for level in ("sequence", "token"):
        logp = student.policy(rollout, entropy=False)[0]
        loss, share = actions.surrogate(logp, logp.detach(), own, rollout.mask, level)
        assert share == 0.0
        grads = torch.autograd.grad(loss, list(student.policy.parameters()))
        found.append(torch.cat([g.flatten() for g in grads]))
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-4)
    assert actions.cosine(*found) == pytest.approx(1.0, abs=1e-6)


def test_noise_of_known_numbers():
    torch.manual_seed(0)
    mean, spread = 3.0, 2.0
    parts = mean + spread * torch.randn(4000, 10, dtype=torch.float64)
    assert actions.noise(parts) == pytest.approx(spread**2 / mean**2, rel=0.05)
    assert actions.noise(torch.ones(3, 4)) == 0.0


def test_what_is_recorded_is_read_back_and_the_table_has_every_number(tmp_path):
    rows = [{"a": 1.0, "b": 0.25}, {"a": 3.0, "b": 0.5}]
    path = tmp_path / "new" / "numbers.csv"
    actions.write(path, (1, 2), rows)
    assert actions.load(path) == {"a": [1.0, 3.0], "b": [0.25, 0.5]}
    lines = actions.table(rows).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["a", "b"]
    assert lines[1].split()[1:] == ["2", "1", "3"]


@pytest.mark.parametrize("changes", [dict(batches=1), dict(seeds=())])
def test_flags_that_measure_nothing_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        actions.Flags(**changes)


def test_the_shipped_numbers_say_what_the_pages_say():
    kept = actions.load()
    for name in (SAME, TOKENS):
        assert min(kept[f"cosine, {name}"]) > 0.9999
    for name in (CRITIC, GAE, LENGTH):
        assert max(kept[f"cosine, {name}"]) < 0.99
    base = kept[f"variance, {WHOLE}"]
    critic = kept[f"variance, {CRITIC}"]
    assert all(a < b for a, b in zip(critic, base, strict=True))
    whole, token = (kept[f"silenced, {n}"] for n in (actions.SEQUENCE, actions.TOKEN))
    assert min(whole) > 5 * max(token)


@pytest.mark.slow
def test_a_measurement_has_every_number(monkeypatch):
    monkeypatch.setattr(actions, "WARM_UP", 1)
    found = actions.gradients(1, 2)
    assert found.keys() < actions.load().keys()
    assert found[f"cosine, {SAME}"] == pytest.approx(1.0, abs=1e-5)
