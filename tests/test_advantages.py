"""Advantages against reference values, and what holds of them whatever the rewards.

How a case of tests/golden/losses.json becomes a call: null is a reward that nothing scored (NaN).
Several reward functions are weighed and summed first, or (GDPO) each made group-relative first.
TRL's PPO puts the score on the first padding token, one place after ours: give `token_rewards` and
`gae` a mask that is one token longer (`padding_mask_p1`) and the same functions reproduce it.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from rlkit.advantages import (
    SCALES,
    gae,
    group_relative,
    into_groups,
    leave_one_out,
    merge_moments,
    moments,
    sequence_rewards,
    token_rewards,
    whiten,
)
from rlkit.objectives import kl_divergence

GOLDEN = json.loads((Path(__file__).parent / "golden" / "losses.json").read_text())
ISSUES, PPO = GOLDEN["issue_cases"], GOLDEN["ppo"]
DTYPES = {torch.float64: 1e-9, torch.float32: 1e-5}
SETTINGS = settings(max_examples=60, deadline=None)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tensor(values, dtype=torch.float64):
    """null -> NaN, at any depth."""
    if isinstance(values, list) and values and isinstance(values[0], list):
        return torch.stack([tensor(row, dtype) for row in values])
    return torch.tensor([math.nan if v is None else v for v in values], dtype=dtype)


def close(found, expected, dtype=torch.float64):
    expected = expected if isinstance(expected, torch.Tensor) else tensor(expected, dtype)
    torch.testing.assert_close(found, expected, rtol=DTYPES[dtype], atol=DTYPES[dtype])


# --- every golden case

by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@by_dtype
@pytest.mark.parametrize("name", [n for n in GOLDEN["grpo_advantages"] if n != "note"])
def test_group_relative_matches_trl(name, dtype):
    case = GOLDEN["grpo_advantages"][name]
    per_func, size = tensor(case["rewards_per_func"], dtype), case["num_generations"]
    weights = torch.tensor(case.get("w", [1.0]), dtype=dtype)
    if case.get("agg") == "normalize_then_sum":  # GDPO: each function alone, then all as one group
        each = torch.stack([group_relative(column, size) for column in per_func.T], 1)
        found = group_relative(each @ weights, len(each))
    else:
        found = group_relative(per_func @ weights, size, case.get("scale", "group"))
    close(found, case["advantages"], dtype)


@by_dtype
@pytest.mark.parametrize("name", [n for n in GOLDEN["rloo_advantages"] if n != "note"])
def test_leave_one_out_matches_trl(name, dtype):
    case, given = GOLDEN["rloo_advantages"][name], GOLDEN["inputs"]
    rewards = tensor(case["rewards"], dtype)
    rewards = rewards.clamp(*case["clip"]) if "clip" in case else rewards
    kl = kl_divergence(tensor(given["old_logps"], dtype), tensor(given["ref_logps"], dtype), "k1")
    rewards = sequence_rewards(rewards, kl, torch.tensor(given["mask"]), case["beta"])
    scored = ~rewards.isnan()
    close(rewards[scored], tensor(case["rewards_after_kl"], dtype)[scored], dtype)
    advantages = leave_one_out(rewards, case["num_generations"])
    if case.get("norm"):  # TRL's normalize_advantages: the batch as one group
        advantages = group_relative(advantages, len(advantages))
    close(advantages, case["advantages"], dtype)


@by_dtype
@pytest.mark.parametrize("name", GOLDEN["gae_masked"]["cases"])
def test_gae_matches_the_textbook(name, dtype):
    golden = GOLDEN["gae_masked"]
    gamma, lam = (float(part.lstrip("gaml")) for part in name.split("_"))
    rewards, values, mask = (tensor(golden[key], dtype) for key in ("rewards", "values", "mask"))
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    close(advantages, golden["cases"][name]["advantages"], dtype)
    close(returns, golden["cases"][name]["returns"], dtype)
    close(whiten(advantages, mask), golden["cases"][name]["whitened"], dtype)


@by_dtype
@pytest.mark.parametrize("name", PPO["cases"])
def test_ppo_rewards_and_gae_match_trl(name, dtype):
    case, given = PPO["cases"][name], PPO["inputs"]
    config = PPO["defaults"] | case["overrides"]
    mask, longer = (tensor(case[key]) == 0 for key in ("padding_mask", "padding_mask_p1"))
    responses = torch.tensor(given["responses"])
    kl = kl_divergence(
        tensor(given["logprobs"], dtype),
        tensor(given["ref_logprobs"], dtype),
        config["kl_estimator"],
    )
    close(torch.where(mask, kl, 0.0), case["kl"], dtype)
    rewards = token_rewards(
        tensor(given["scores"], dtype),
        torch.where(mask, kl, 0.0),
        longer,
        config["kl_coef"],
        finished=(responses == given["eos_id"]).any(1),
        missing_eos_penalty=config["missing_eos_penalty"] or 0.0,
    )
    if config["whiten_rewards"]:
        rewards = whiten(rewards, longer, shift_mean=False)
    close(rewards, case["rewards"], dtype)
    values = tensor(given["values"], dtype)
    advantages, returns = gae(rewards, values, longer, config["gamma"], config["lam"])
    close(advantages, case["gae_raw"], dtype)
    close(returns, case["returns"], dtype)
    close(whiten(advantages, mask), case["advantages"], dtype)


# --- reported faults, by number (N24, N26 and N42 are the golden cases above)


def test_n26_the_index_of_the_score_is_the_case_above():
    assert ISSUES["N26_ppo_reward_index"]["expected"] == PPO["cases"]["defaults"]["rewards"]


@by_dtype
@pytest.mark.parametrize("size", [2, 4, 7, 8])
@pytest.mark.parametrize("reward", [0.1, 0.35, 0.7, 1.0, -3.3])
def test_n07_equal_rewards_are_exactly_zero(dtype, size, reward):
    rewards = torch.full((size,), reward, dtype=dtype)
    assert leave_one_out(rewards, size).abs().max() == 0
    for scale in SCALES:
        assert group_relative(rewards, size, scale).abs().max() == 0


def test_n07_the_spread_of_nearly_equal_rewards_is_found_in_two_passes():
    x = torch.full((8,), 1000.1)
    one_pass = (x.square().mean() - x.mean().square()).abs().sqrt()
    assert one_pass > 1e-2 and moments(x, torch.ones(8)).std() < 1e-3


@pytest.mark.parametrize("scale", ISSUES["N08_scale_swap"]["expected"])
def test_n08_group_and_batch_are_not_swapped(scale):
    rewards = tensor(GOLDEN["grpo_advantages"]["group"]["rewards_per_func"]).flatten()
    close(group_relative(rewards, 4, scale), ISSUES["N08_scale_swap"]["expected"][scale])


def test_n09_one_generation_has_no_advantage():
    one = torch.tensor([0.7, -1.0])
    assert torch.equal(leave_one_out(one, 1), torch.zeros(2))
    for scale in SCALES:
        assert torch.equal(group_relative(one, 1, scale), torch.zeros(2))
    assert torch.equal(group_relative(one[:1], 1, "batch"), torch.zeros(1))


def test_n25_leave_one_out_is_the_distance_from_the_mean_times_g_over_g_minus_1():
    rewards = tensor([1.0, 0, 0, 1])
    close(leave_one_out(rewards, 4), ISSUES["N25_rloo_identity"]["expected"])


# --- properties of groups


@st.composite
def reward_batches(draw, unscored=False):
    """([P * G] rewards, G), rewards as people write them: a few levels, or real numbers."""
    size, prompts = draw(st.integers(2, 6)), draw(st.integers(1, 4))
    one = st.sampled_from([0.0, 1.0, -1.0, 0.5]) | st.floats(-10, 10)
    one = one | st.just(math.nan) if unscored else one
    n = size * prompts
    return tensor(draw(st.lists(one, min_size=n, max_size=n))), size


def every_advantage(rewards, size):
    yield leave_one_out(rewards, size)
    for scale in SCALES:
        yield group_relative(rewards, size, scale)


@SETTINGS
@given(reward_batches())
def test_leave_one_out_by_hand(batch):
    rewards, size = batch
    found = leave_one_out(rewards, size)
    for i, reward in enumerate(rewards):
        first = i - i % size
        others = [rewards[j] for j in range(first, first + size) if j != i]
        assert found[i].item() == pytest.approx(
            (reward - sum(others) / (size - 1)).item(), abs=1e-9
        )
    centred = rewards.view(-1, size) - rewards.view(-1, size).mean(1, keepdim=True)
    close(found, size / (size - 1) * centred.flatten())


@SETTINGS
@given(reward_batches(unscored=True), st.floats(-5, 5))
def test_groups_sum_to_zero_and_a_shift_changes_nothing(batch, shift):
    rewards, size = batch
    shifted = zip(
        every_advantage(rewards, size), every_advantage(rewards + shift, size), strict=True
    )
    for advantages, again in shifted:
        assert not advantages.isnan().any()
        # a spread near 1e-4 amplifies rounding by 1e4
        torch.testing.assert_close(again, advantages, rtol=1e-6, atol=1e-6)
        assert advantages.view(-1, size).sum(1).abs().max() < 1e-6
        assert (advantages[rewards.isnan()] == 0).all()


@SETTINGS
@given(reward_batches(), st.data())
def test_the_baseline_does_not_contain_the_own_reward(batch, data):
    rewards, size = batch
    i = data.draw(st.integers(0, len(rewards) - 1))
    changed = rewards.clone()
    changed[i] += 3.0
    before, after = leave_one_out(rewards, size), leave_one_out(changed, size)
    close(after[i] - before[i], torch.tensor(3.0).double())  # the plain mean would give 3 (G-1)/G
    others = [j for j in range(len(rewards)) if j // size != i // size]
    assert torch.equal(after[others], before[others])


@SETTINGS
@given(reward_batches(unscored=True), st.randoms(use_true_random=False))
def test_the_order_within_a_group_does_not_matter(batch, random):
    rewards, size = batch
    order = []
    for first in range(0, len(rewards), size):
        group = list(range(first, first + size))
        random.shuffle(group)
        order += group
    pairs = zip(every_advantage(rewards, size), every_advantage(rewards[order], size), strict=True)
    for advantages, permuted in pairs:
        torch.testing.assert_close(permuted, advantages[order], rtol=1e-6, atol=1e-6)


@SETTINGS
@given(reward_batches(unscored=True))
def test_unscored_rows_are_no_ones_sibling(batch):
    rewards, size = batch
    scored = rewards[:size][~rewards[:size].isnan()]
    if len(scored) > 0:
        alone = leave_one_out(scored, len(scored))
        close(leave_one_out(rewards, size)[:size][~rewards[:size].isnan()], alone)


@SETTINGS
@given(reward_batches())
def test_grpo_divides_by_the_spread(batch):
    rewards, size = batch
    groups = rewards.view(-1, size)
    centred = groups - groups.mean(1, keepdim=True)
    expected = {
        "group": centred / (groups.std(1, keepdim=True) + 1e-4),
        "batch": centred / (rewards.std() + 1e-4),
        "none": centred,
    }
    for scale, advantages in expected.items():
        found = group_relative(rewards, size, scale)
        torch.testing.assert_close(found, advantages.flatten(), rtol=1e-6, atol=1e-6)


def test_two_ranks_share_the_spread_of_the_batch():
    rewards = tensor(GOLDEN["grpo_advantages"]["batch"]["rewards_per_func"]).flatten()
    whole = group_relative(rewards, 4, "batch")
    ranks = rewards.view(2, 4)
    stats = merge_moments([moments(r, ~r.isnan()) for r in ranks])
    close(torch.cat([group_relative(r, 4, "batch", stats=stats) for r in ranks]), whole)


# --- properties of tokens


def ragged(seed, batch=4, length=7):
    """rewards, values [B, T] and a mask with rows of 0 to T tokens."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(length + 1, (batch,), generator=g)
    mask = torch.arange(length) < lengths.unsqueeze(1)
    rewards, values = torch.randn(2, batch, length, generator=g, dtype=torch.float64)
    return rewards, values, mask


seeds = st.integers(0, 2**31)


@SETTINGS
@given(seeds, st.floats(0, 1))
def test_lambda_one_is_the_discounted_return_less_the_value(seed, gamma):
    rewards, values, mask = ragged(seed)
    advantages, returns = gae(rewards, values, mask, gamma, 1.0)
    for b, t in mask.nonzero().tolist():
        later = rewards[b, t:][mask[b, t:]]
        total = sum(gamma**k * r for k, r in enumerate(later.tolist()))
        assert returns[b, t].item() == pytest.approx(total, abs=1e-9)
        assert advantages[b, t].item() == pytest.approx(total - values[b, t].item(), abs=1e-9)


@SETTINGS
@given(seeds, st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_sum_of_discounted_deltas(seed, gamma, lam):
    rewards, values, mask = ragged(seed)
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    after_end = torch.where(mask, values, 0.0)
    next_values = torch.cat([after_end[:, 1:], torch.zeros(4, 1)], 1)
    deltas = torch.where(mask, rewards + gamma * next_values - values, 0.0)
    powers = (gamma * lam) ** torch.arange(7.0, dtype=torch.float64)
    for t in range(7):
        expected = torch.where(mask[:, t], (deltas[:, t:] * powers[: 7 - t]).sum(1), 0.0)
        close(advantages[:, t], expected)
    close(returns, torch.where(mask, advantages + values, 0.0))


@SETTINGS
@given(seeds, st.sampled_from([math.inf, -math.inf, math.nan, 1e30]))
def test_padding_may_hold_anything(seed, garbage):
    rewards, values, mask = ragged(seed)
    scores = rewards[:, 0]
    mask[0, 2] = False  # a hole as well as an end
    dirty_rewards, dirty_values = (torch.where(mask, x, garbage) for x in (rewards, values))
    clean = [*gae(rewards, values, mask), whiten(values, mask)]
    dirty = [*gae(dirty_rewards, dirty_values, mask), whiten(dirty_values, mask)]
    clean += [f(scores, values, mask, 0.1) for f in (sequence_rewards, token_rewards)]
    dirty += [f(scores, dirty_values, mask, 0.1) for f in (sequence_rewards, token_rewards)]
    for a, b in zip(clean, dirty, strict=True):
        assert torch.equal(a, b)
    for x in clean[:3] + clean[4:]:
        assert (x[~mask] == 0).all()


def test_gae_steps_over_a_hole_in_the_mask():
    rewards, values, _ = ragged(0, batch=1)
    mask = torch.tensor([[1, 1, 0, 0, 1, 1, 0]]).bool()
    holed, _ = gae(rewards, values, mask)
    dense, _ = gae(rewards[mask][None], values[mask][None], torch.ones(1, 4))
    close(holed[mask], dense[0])


@SETTINGS
@given(seeds, st.floats(0, 1))
def test_token_rewards_sum_to_the_sequence_reward(seed, beta):
    scores, kl, mask = ragged(seed)
    scores = scores[:, 0]
    by_token = token_rewards(scores, kl, mask, beta)
    filled = mask.any(1)
    close(by_token.sum(1)[filled], sequence_rewards(scores, kl, mask, beta)[filled])
    assert (by_token[~filled] == 0).all()


def test_the_reward_stands_on_the_last_valid_token():
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]])
    rewards = torch.tensor([1.0, 2.0, math.nan, 3.0])
    finished = torch.tensor([False, True, True, True])
    found = token_rewards(rewards, None, mask, finished=finished, missing_eos_penalty=0.5)
    assert found.tolist() == [[0, 0, 0.5, 0], [2, 0, 0, 0], [0, 0, 0, 0], [0, 0, 3, 0]]


@SETTINGS
@given(seeds, st.floats(-1e4, 1e4), st.floats(0.1, 100))
def test_whitened_tokens_have_mean_0_and_variance_1(seed, shift, scale):
    _, values, mask = ragged(seed)
    mask[0, :3] = True
    found = whiten(values * scale + shift, mask)[mask]
    assert found.mean().item() == pytest.approx(0, abs=1e-6)
    assert found.var().item() == pytest.approx(1, abs=1e-3)
    kept = whiten(values * scale + shift, mask, shift_mean=False)[mask]
    assert kept.mean().item() == pytest.approx((values * scale + shift)[mask].mean().item())


@SETTINGS
@given(seeds, st.integers(1, 3))
def test_ranks_whiten_as_one(seed, cut):
    _, values, mask = ragged(seed)
    rows = (slice(cut), slice(cut, None))
    stats = merge_moments([moments(values[r], mask[r]) for r in rows])
    parts = torch.cat([whiten(values[r], mask[r], stats) for r in rows])
    close(parts, whiten(values, mask))


def test_moments_keep_float32_digits_that_one_pass_loses():
    x = 1e4 + torch.randn(2, 500, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 500)
    true = x.double().var()
    one_pass = (x.square().mean() - x.mean().square()) * 1000 / 999
    merged = merge_moments([moments(row, m) for row, m in zip(x, mask, strict=True)])
    assert merged.var().item() == pytest.approx(true.item(), rel=1e-4)
    assert abs(one_pass.item() / true.item() - 1) > 0.1


def test_whitening_one_token_or_none_gives_zero():
    x = torch.tensor([[3.0, math.nan]])
    assert torch.equal(whiten(x, torch.tensor([[1, 0]])), torch.zeros(1, 2))
    assert torch.equal(whiten(x, torch.tensor([[0, 0]])), torch.zeros(1, 2))


def test_nothing_is_read_back_under_fake_tensors():
    with FakeTensorMode():
        x, mask, scores = torch.randn(4, 6), torch.ones(4, 6), torch.randn(4)
        by_token = token_rewards(scores, x, mask, 0.1, finished=scores > 0)
        advantages, _ = gae(by_token, x, mask)
        assert whiten(advantages, mask).shape == (4, 6)
        for found in every_advantage(sequence_rewards(scores, x, mask, 0.1), 2):
            assert found.shape == (4,)


# --- bad input


@pytest.mark.parametrize("size, words", [(4, "=4; use 4"), (7, "=7; use 7"), (0, "=0 must be")])
def test_a_group_size_that_does_not_divide_is_named(size, words):
    with pytest.raises(ValueError, match=f"num_generations{words}"):
        into_groups(torch.zeros(6), size)


def test_an_unknown_scale_is_named_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'group'"):
        group_relative(torch.zeros(4), 2, "groups")
