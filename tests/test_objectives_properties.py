"""What holds of the objectives whatever the numbers: padding, shares, limits, bad input.

The reference values are in test_objectives.py.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from rlkit.objectives import (
    GRPO,
    LOSS_TYPES,
    PPO,
    RLOO,
    Totals,
    clipped_surrogate,
    entropy_quantile,
    kl_divergence,
    sampler_correction,
    value_loss,
)

SETTINGS = settings(max_examples=40, deadline=None)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def mean(sums, name):
    total, count = sums[name]
    return (total / count.clamp(min=1)).item()


VARIANTS = {
    "ppo": PPO(entropy_coef=0.01),
    "rloo": RLOO(entropy_coef=0.01),
    "top_entropy": GRPO(top_entropy_quantile=0.5, entropy_coef=0.01, beta=0.1),
    "off_policy": GRPO(off_policy_mask_threshold=0.0, beta=0.1),
} | {
    f"{kind}/{level}": GRPO(
        loss_type=kind,
        importance_sampling_level=level,
        beta=0.1,
        epsilon_high=1.3 if kind == "cispo" else None,
        max_completion_length=8,
    )
    for kind in LOSS_TYPES
    for level in ("token", "sequence")
}
BY_TOKEN = {name: o for name, o in VARIANTS.items() if not o.needs_sequences}


def random_batch(seed, batch=5, length=6, dtype=torch.float64):
    """Arguments of an objective with ragged rows; one row is all padding."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, length + 1, (batch,), generator=g)
    lengths[torch.randint(batch, (1,), generator=g)] = 0

    def noise(scale):
        return scale * torch.randn(batch, length, generator=g, dtype=dtype)

    logp = -noise(1.0).abs()
    return {
        "logp": logp,
        "logp_old": logp + noise(0.3),
        "advantages": noise(1.0)[:, 0],
        "mask": torch.arange(length) < lengths.unsqueeze(1),
        "logp_ref": logp + noise(0.5),
        "entropy": noise(1.0).abs(),
    }


def loss_and_gradients(objective, args, **more):
    """Loss, d loss / d logp, d loss / d entropy and sums."""
    args = args | {k: args[k].clone().requires_grad_() for k in ("logp", "entropy")}
    loss, sums = objective(**args, **more)
    loss.backward()
    entropy = args["entropy"].grad
    return loss.detach(), args["logp"].grad, 0.0 if entropy is None else entropy, sums


@pytest.mark.parametrize("name", VARIANTS)
@SETTINGS
@given(seed=st.integers(0, 2**31), garbage=st.sampled_from([math.inf, -math.inf, math.nan, 1e30]))
def test_padding_may_hold_anything(name, seed, garbage):
    objective, args = VARIANTS[name], random_batch(seed)
    args["importance_weights"] = args["entropy"].exp()
    padding = ~args["mask"]
    dirty = {k: v if k in ("mask", "advantages") else v.clone() for k, v in args.items()}
    for key in ("logp", "logp_old", "logp_ref", "entropy", "importance_weights"):
        dirty[key][padding] = garbage
    dirty["advantages"] = args["advantages"].unsqueeze(1).repeat(1, 6)
    dirty["advantages"][padding] = garbage
    clean_run, dirty_run = (loss_and_gradients(objective, a) for a in (args, dirty))
    assert torch.equal(clean_run[0], dirty_run[0])
    assert torch.equal(clean_run[1], dirty_run[1])
    assert (dirty_run[1][padding] == 0).all()
    for key, pair in clean_run[3].items():
        assert torch.equal(torch.stack(pair), torch.stack(dirty_run[3][key])), key


@pytest.mark.parametrize("name", VARIANTS)
@SETTINGS
@given(seed=st.integers(0, 2**31), cut=st.integers(1, 4))
def test_shares_of_rows_add_up(name, seed, cut):
    objective, args = VARIANTS[name], random_batch(seed)
    threshold = entropy_quantile(args["entropy"], args["mask"], 1 - objective.top_entropy_quantile)
    more = {"totals": Totals.of(args["mask"]), "entropy_threshold": threshold}
    loss, gradient, by_entropy, sums = loss_and_gradients(objective, args)
    parts = [{k: v[rows] for k, v in args.items()} for rows in (slice(cut), slice(cut, None))]
    shares = [loss_and_gradients(objective, part, **more) for part in parts]
    close(shares[0][0] + shares[1][0], loss)
    close(torch.cat([share[1] for share in shares]), gradient)
    if objective.entropy_coef:
        close(torch.cat([share[2] for share in shares]), by_entropy)
    for key, pair in sums.items():
        both = torch.stack(shares[0][3][key]) + torch.stack(shares[1][3][key])
        close(both, torch.stack(pair))


@pytest.mark.parametrize("name", BY_TOKEN)
@SETTINGS
@given(seed=st.integers(0, 2**31), cut=st.integers(1, 29))
def test_shares_of_tokens_add_up_where_rows_may_be_cut(name, seed, cut):
    """Tokens in any order, each a row by itself, with its advantage and its row's length."""
    objective, args = BY_TOKEN[name], random_batch(seed)
    threshold = entropy_quantile(args["entropy"], args["mask"], 1 - objective.top_entropy_quantile)
    more = {"totals": Totals.of(args["mask"]), "entropy_threshold": threshold}
    loss, gradient, *_ = loss_and_gradients(objective, args)
    flat = args | {"advantages": args["advantages"].unsqueeze(1).expand(5, 6)}
    flat["lengths"] = args["mask"].sum(1, keepdim=True).expand(5, 6)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(seed))
    flat = {k: v.reshape(30, 1)[order] for k, v in flat.items()}
    flat["lengths"] = flat["lengths"].squeeze(1)
    parts = [{k: v[rows] for k, v in flat.items()} for rows in (slice(cut), slice(cut, None))]
    shares = [loss_and_gradients(objective, part, **more) for part in parts]
    close(shares[0][0] + shares[1][0], loss)
    close(torch.cat([share[1] for share in shares])[order.argsort()].view(5, 6), gradient)


@pytest.mark.parametrize("name", [n for n, o in VARIANTS.items() if o.needs_sequences])
def test_where_rows_must_be_whole_cutting_them_changes_the_loss(name):
    objective, errors = VARIANTS[name], []
    for seed in range(5):
        args = random_batch(seed)
        totals, lengths = Totals.of(args["mask"]), args["mask"].sum(1)
        halves = [
            {k: v if k == "advantages" else v[:, columns] for k, v in args.items()}
            for columns in (slice(3), slice(3, None))
        ]
        cut = sum(objective(**half, totals=totals, lengths=lengths)[0] for half in halves)
        errors.append((cut - objective(**args)[0]).abs().item())
    assert max(errors) > 1e-3


def test_which_objectives_need_what():
    whole = [kind for kind in LOSS_TYPES if VARIANTS[f"{kind}/token"].needs_sequences]
    assert whole == ["vespo"] and RLOO().needs_sequences and not PPO().needs_sequences
    assert all(VARIANTS[f"{kind}/sequence"].needs_sequences for kind in LOSS_TYPES)
    assert GRPO(off_policy_mask_threshold=0.1).needs_sequences
    assert not GRPO().needs_entropy and not PPO().needs_entropy and not RLOO().needs_entropy
    assert GRPO(entropy_coef=0.1).needs_entropy and PPO(entropy_coef=0.1).needs_entropy
    assert GRPO(top_entropy_quantile=0.2).needs_entropy


@SETTINGS
@given(seed=st.integers(0, 2**31))
def test_ppo_is_dapo_and_on_policy_all_three_are_reinforce(seed):
    args = random_batch(seed)
    close(PPO()(**args)[0], GRPO(loss_type="dapo")(**args)[0])
    args["logp_old"] = None
    totals = Totals.of(args["mask"])
    weight = args["mask"] * args["advantages"].unsqueeze(1)
    for objective, count in (
        (PPO(), totals.tokens),
        (GRPO(), totals.tokens),
        (RLOO(), totals.sequences),
    ):
        close(loss_and_gradients(objective, args)[1], -weight / count)


@SETTINGS
@given(seed=st.integers(0, 2**31))
def test_with_rows_of_one_token_every_level_is_the_same(seed):
    args = random_batch(seed, length=1)
    losses = [
        objective(**args)[0]
        for objective in (
            RLOO(),
            GRPO(loss_type="grpo"),
            GRPO(loss_type="grpo", importance_sampling_level="sequence"),
            GRPO(loss_type="luspo"),
        )
    ]
    for loss in losses[1:]:
        close(loss, losses[0])


@SETTINGS
@given(x=st.floats(-30, 30), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_k3_is_never_negative(x, dtype):
    zero = torch.zeros(1, dtype=dtype)
    assert kl_divergence(zero + x, zero, "k3").item() >= 0


def test_k3_near_zero_keeps_its_digits():
    x = torch.tensor([1e-4])
    assert (torch.exp(-x) - 1 + x).item() < 0  # without expm1, in float32
    assert kl_divergence(x, torch.zeros(1), "k3").item() == pytest.approx(5e-9, rel=1e-2)


def test_the_estimators_agree_with_the_divergence_they_estimate():
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)).double() * 0.05
    policy, reference = logits.log_softmax(1)
    true = (policy.exp() * (policy - reference)).sum()
    for name in ("k1", "k3"):  # unbiased
        close((policy.exp() * kl_divergence(policy, reference, name)).sum(), true)
    k2 = (policy.exp() * kl_divergence(policy, reference, "k2")).sum()
    assert k2.item() == pytest.approx(true.item(), rel=0.05)


@pytest.mark.parametrize("advantage, clipped", [(1.0, [0, 1]), (0.0, [0, 0]), (-1.0, [1, 0])])
def test_the_clip_is_counted_where_it_ends_a_gradient(advantage, clipped):
    ratio = tensor([[0.5, 1.5, 1.0, 9.9]])
    mask = torch.tensor([[1, 1, 1, 0]])
    _, sums = PPO()(ratio.log(), torch.zeros(1, 4), tensor([advantage]), mask)
    low, high = (mean(sums, f"clip_ratio/{side}") * 3 for side in ("low", "high"))
    assert [low, high] == pytest.approx(clipped)
    assert mean(sums, "clip_ratio") * 3 == pytest.approx(sum(clipped))
    assert mean(sums, "ratio") == pytest.approx(1.0)


def test_vespo_bounds_each_token_before_it_sums_them():
    log_ratio = tensor([[-100.0, 20.0]])  # -20 + 20 once bounded: as if on policy
    _, sums = GRPO(loss_type="vespo")(log_ratio, torch.zeros(1, 2), tensor([1.0]), torch.ones(1, 2))
    assert mean(sums, "phi") == pytest.approx(1.0)


@pytest.mark.parametrize(
    "ratio, advantage, gradient",
    [(1.5, 1.0, 0.0), (1.5, -1.0, 1.5), (0.5, 1.0, -0.5), (0.5, -1.0, 0.0), (1.0, 2.0, -2.0)],
)
def test_the_clip_ends_going_further_and_never_the_way_back(ratio, advantage, gradient):
    logp = torch.zeros(1, 1).requires_grad_()
    loss, _ = PPO()(logp, logp.detach() - math.log(ratio), tensor([advantage]), torch.ones(1, 1))
    loss.backward()
    assert logp.grad.item() == pytest.approx(gradient, rel=1e-5)
    r = tensor(ratio).requires_grad_()
    clipped_surrogate(r, tensor(advantage)).backward()
    assert r.grad.item() * ratio == pytest.approx(gradient)


def test_a_ratio_beyond_float32_stops_at_the_clip():
    logp = torch.zeros(1, 2000).requires_grad_()
    loss, sums = RLOO()(logp, logp.detach() - 0.1, torch.ones(1), torch.ones(1, 2000))
    loss.backward()
    assert loss.item() == pytest.approx(-1.2) and logp.grad.abs().max() == 0
    assert mean(sums, "ratio") == pytest.approx(math.exp(20), rel=1e-3)


def test_the_entropy_bonus_acts_on_the_kept_tokens_as_in_trl():
    args = random_batch(3, batch=40, length=50)
    objective = GRPO(top_entropy_quantile=0.2, entropy_coef=1.0)
    policy = GRPO(top_entropy_quantile=0.2)(**args)[0]
    kept = args["entropy"] >= entropy_quantile(args["entropy"], args["mask"], 0.8)
    expected = args["entropy"][kept & args["mask"]].mean()
    bonus = policy - objective(**args)[0]
    # TRL counts the kept tokens, we know their share: equal but for rounding to whole tokens
    assert bonus.item() == pytest.approx(expected.item(), rel=1 / (0.2 * int(args["mask"].sum())))


def test_tokens_at_the_entropy_threshold_are_kept():
    args = random_batch(0) | {"entropy": torch.ones(5, 6)}
    close(GRPO(top_entropy_quantile=0.2)(**args)[0], GRPO()(**args)[0])


@SETTINGS
@given(seed=st.integers(0, 2**31))
def test_weights_of_a_row_act_like_the_same_weight_on_each_token(seed):
    args = random_batch(seed)
    by_row = args["entropy"][:, :1] + 0.5
    by_row[~args["mask"].any(1)] = math.nan  # a row that is all padding
    for objective in (PPO(), RLOO(), GRPO(beta=0.1), GRPO(loss_type="sapo")):
        loss, _ = objective(**args, importance_weights=by_row)
        close(loss, objective(**args, importance_weights=by_row.expand(5, 6))[0])
        scaled = args | {"advantages": args["advantages"] * by_row.nan_to_num().squeeze(1)}
        close(loss, objective(**scaled)[0])


@SETTINGS
@given(
    values=st.lists(st.floats(0, 5), min_size=1, max_size=40),
    quantile=st.floats(0, 1),
    padding=st.integers(0, 5),
)
def test_the_entropy_quantile_is_torchs_over_valid_tokens(values, quantile, padding):
    entropy, mask = tensor([values + [9.0] * padding]), [[1] * len(values) + [0] * padding]
    found = entropy_quantile(entropy, torch.tensor(mask), quantile)
    close(found, torch.quantile(tensor(values), quantile))


@SETTINGS
@given(seed=st.integers(0, 2**31), cut=st.integers(1, 4), clip=st.sampled_from([None, 0.2]))
def test_value_loss_adds_up_and_ignores_padding(seed, cut, clip):
    args = random_batch(seed)
    columns = [args[key] for key in ("logp", "logp_old", "logp_ref")]
    whole = value_loss(*columns, args["mask"], clip=clip)
    totals = Totals.of(args["mask"])
    dirty = [torch.where(args["mask"], x, math.nan) for x in columns]
    shares = [
        value_loss(*(x[rows] for x in dirty), args["mask"][rows], clip=clip, totals=totals)
        for rows in (slice(cut), slice(cut, None))
    ]
    close(shares[0] + shares[1], whole)


def test_value_loss_of_a_fully_masked_batch_has_a_graph():
    values = torch.full((2, 3), math.inf).requires_grad_()
    loss = value_loss(values, values.detach(), values.detach(), torch.zeros(2, 3))
    loss.backward()
    assert loss.item() == 0 and values.grad.abs().max() == 0


@pytest.mark.parametrize("name", VARIANTS)
def test_totals_may_be_tensors_and_the_dtype_is_kept(name):
    args = random_batch(1, dtype=torch.float32)
    tokens, sequences = int(args["mask"].sum()), len(args["mask"])
    loss, sums = VARIANTS[name](**args, totals=Totals(tokens, sequences))
    as_tensors = Totals(torch.tensor(tokens), torch.tensor(sequences, dtype=torch.float64))
    assert loss.dtype == torch.float32 and loss.dim() == 0
    torch.testing.assert_close(VARIANTS[name](**args, totals=as_tensors)[0], loss)
    assert all(x.dim() == 0 and not x.requires_grad for pair in sums.values() for x in pair)


@pytest.mark.parametrize("name", VARIANTS)
def test_nothing_is_read_back_under_fake_tensors(name):
    real = random_batch(1, dtype=torch.float32)
    with FakeTensorMode() as mode:
        args = {k: mode.from_tensor(v) for k, v in real.items()}
        args["logp"].requires_grad_()
        weights = sampler_correction(args["logp_old"], args["logp_ref"], args["mask"])
        threshold = entropy_quantile(args["entropy"], args["mask"], 0.5)
        totals = Totals.of(args["mask"])
        loss, _ = VARIANTS[name](
            **args, totals=totals, entropy_threshold=threshold, importance_weights=weights
        )
        loss = loss + value_loss(args["logp"], args["logp_old"], args["logp_ref"], args["mask"])
        loss.backward()
        assert args["logp"].grad.shape == real["logp"].shape


# --- bad input


@pytest.mark.parametrize(
    "settings_, words",
    [
        ({"loss_type": "drgrpo"}, "did you mean 'dr_grpo'"),
        ({"importance_sampling_level": "sequences"}, "did you mean 'sequence'"),
        ({"kl_estimator": "kl3"}, "did you mean 'k3'"),
        ({"loss_type": "dr_grpo"}, "max_completion_length"),
        ({"loss_type": "cispo"}, "epsilon_high"),
        ({"top_entropy_quantile": 0.0}, "top_entropy_quantile"),
    ],
)
def test_settings_that_cannot_work_are_named(settings_, words):
    with pytest.raises(ValueError, match=words):
        GRPO(**settings_)


@pytest.mark.parametrize(
    "objective, changes, words",
    [
        (GRPO(beta=0.1), {"logp_ref": None}, "logp_ref"),
        (PPO(entropy_coef=0.1), {"entropy": None}, "entropy"),
        (GRPO(top_entropy_quantile=0.5), {"entropy": None}, "entropy"),
        (GRPO(), {"mask": torch.ones(5, 1)}, "mask"),
        (GRPO(), {"advantages": torch.ones(6)}, "advantages"),
        (GRPO(), {"advantages": torch.ones(5, 1)}, "advantages"),
    ],
)
def test_inputs_that_are_missing_or_do_not_fit_are_named(objective, changes, words):
    with pytest.raises(ValueError, match=words):
        objective(**random_batch(0) | changes)


def test_unknown_names_elsewhere():
    zero = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="did you mean 'k3'"):
        kl_divergence(zero, zero, "k33")
    with pytest.raises(ValueError, match="did you mean 'token'"):
        sampler_correction(zero, zero, zero, level="tokens")
