"""The objectives against reference values (test_objectives_properties.py has none).

How a case of tests/golden/losses.json becomes a call: `new_logps` is logp; `use_old: false` is
logp_old=None; TRL's accumulation settings become Totals (`totals_of`): what TRL divides by is the
number of tokens or completions of one optimiser step.
`clip_ratio/low_min` and `high_max` are extremes over completions, which sums cannot carry.
"""

import json
import math
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from rlkit.objectives import (
    GRPO,
    KL_ESTIMATORS,
    PPO,
    RLOO,
    Totals,
    entropy_quantile,
    kl_divergence,
    sampler_correction,
    value_loss,
)

GOLDEN = json.loads((Path(__file__).parent / "golden" / "losses.json").read_text())
CASES, DEFAULTS, ISSUES = GOLDEN["grpo"], GOLDEN["grpo_config_defaults"], GOLDEN["issue_cases"]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}

METRICS = {
    "clip_ratio/low_mean": "clip_ratio/low",
    "clip_ratio/high_mean": "clip_ratio/high",
    "clip_ratio/region_mean": "clip_ratio",
    "cispo_clip_ratio": "clip_ratio",
    "vespo/phi_seq_mean": "phi",
    "kl": "kl",
    "entropy": "entropy",
}

HERE = "N01 N02 N03 N05 N10 N13 N14 N15 N16 N17 N18 N19 N22 N23 N27".split()
ELSEWHERE = {
    "advantages": "N07 N08 N09 N24 N25 N26 N42".split(),
    "head": "N11 N29 N30 N31 N32 N34 N35 N37 N38 N41 N47".split(),
    "rollout and sampling": "N39 N48".split(),
    "distributed": ["N43"],
}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def inputs(dtype=torch.float64, **changes):
    """The shared inputs as arguments of an objective, logp and entropy as leaves."""
    given = GOLDEN["inputs"] | changes
    return {
        "logp": tensor(given["new_logps"], dtype).requires_grad_(),
        "logp_old": tensor(given["old_logps"], dtype),
        "advantages": tensor(given["advantages"], dtype),
        "mask": torch.tensor(given["mask"]).bool(),
        "logp_ref": tensor(given["ref_logps"], dtype),
        "entropy": tensor(given["entropies"], dtype).requires_grad_(),
    }


def objective_of(config):
    names = {f.name for f in fields(GRPO)}
    return GRPO(**{k: v for k, v in (DEFAULTS | config).items() if k in names})


def totals_of(config, mask):
    """What one optimiser step holds, in TRL's terms."""
    c = DEFAULTS | config
    tokens = int(mask.sum()) * c["grad_accum"]
    if c["loss_type"] in ("dapo", "cispo", "vespo"):
        # num_items_in_batch counts a whole generation batch on all processes
        share = c["grad_accum"] / (c["num_processes"] * c["steps_per_generation"])
        tokens = c["num_items_in_batch"] * share
    return Totals(tokens=tokens, sequences=len(mask) * c["grad_accum"])


def run(config, dtype=torch.float64, with_totals=True, **changes):
    """Loss, sums and the inputs with their gradients, for a golden config."""
    config = DEFAULTS | config
    args = inputs(dtype, **changes)
    if not config["use_old"]:
        args["logp_old"] = None
    if config["use_vllm_ratio"] is not None:
        args["importance_weights"] = tensor(config["use_vllm_ratio"], dtype)
    if with_totals:
        args["totals"] = totals_of(config, args["mask"])
    loss, sums = objective_of(config)(**args)
    loss.backward()
    return loss, sums, args


def mean(sums, name):
    total, count = sums[name]
    return (total / count.clamp(min=1)).item()


def close(found, expected, dtype=torch.float64):
    expected = torch.as_tensor(expected, dtype=dtype)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found.detach(), expected, rtol=tolerance, atol=tolerance)


# --- every golden case


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_grpo_matches_trl(name, dtype):
    case = CASES[name]
    loss, sums, args = run(case["config"], dtype)
    close(loss, case["loss"], dtype)
    close(args["logp"].grad, case["d_loss_d_new_logps"], dtype)
    if "d_loss_d_entropies" in case:
        close(args["entropy"].grad, case["d_loss_d_entropies"], dtype)
    for theirs, ours in METRICS.items():
        if theirs in case["metrics"]:
            # theirs pass through float32
            assert mean(sums, ours) == pytest.approx(case["metrics"][theirs], abs=1e-6), theirs


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if "accum" not in n])
def test_without_totals_the_batch_is_the_whole_step(name):
    loss, _, _ = run(CASES[name]["config"], with_totals=False)
    close(loss, CASES[name]["loss"])


@pytest.mark.parametrize("name", [n for n in CASES if "entropy_coef" in n])
def test_the_policy_loss_is_what_the_entropy_bonus_was_taken_from(name):
    case = CASES[name]
    plain = {k: v for k, v in case["config"].items() if k not in ("entropy_coef", "grad_accum")}
    close(run(plain)[0], case["metrics"]["policy_loss"])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", GOLDEN["grpo_edge"])
def test_grpo_at_the_edges(name, dtype):
    case = GOLDEN["grpo_edge"][name]
    config = case.get("config", {})
    if "eval_mode" in name:  # evaluation is neither accumulated nor split
        config = config | {"grad_accum": 1, "steps_per_generation": 1}
    changes = {k: case[k] for k in ("mask", "advantages") if k in case}
    if "all_rows_masked" in name:
        changes["mask"] = [[0] * 5] * 4
    loss, sums, args = run(config, dtype, **changes)
    close(loss, case["loss"], dtype)
    if "all_rows_masked" in name:
        assert loss.item() == 0 and args["logp"].grad.abs().max() == 0
        assert all(mean(sums, key) == 0 for key in sums)
    elif "d_loss_d_new_logps" in case:
        close(args["logp"].grad, case["d_loss_d_new_logps"], dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", GOLDEN["rloo"])
def test_rloo_matches_trl(name, dtype):
    case = GOLDEN["rloo"][name]
    args = inputs(dtype)
    if case["kw"].get("old") == "NEW":
        args["logp_old"] = None
    loss, sums = RLOO(epsilon_high=case["kw"].get("eps_hi"))(**args)
    loss.backward()
    close(loss, case["loss"], dtype)
    close(args["logp"].grad, case["d_loss_d_new_logps"], dtype)
    assert mean(sums, "ratio") == pytest.approx(sum(case["sequence_ratio"]) / 4, rel=1e-5)
    for theirs, ours in METRICS.items():
        if theirs in case["metrics"]:
            assert mean(sums, ours) == pytest.approx(case["metrics"][theirs], abs=1e-6)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", GOLDEN["ppo"]["cases"])
def test_ppo_matches_trl(name, dtype):
    """The losses. TRL's value model sees one place more than its policy, see test_advantages."""
    case, given = GOLDEN["ppo"]["cases"][name], GOLDEN["ppo"]["inputs"]
    config = GOLDEN["ppo"]["defaults"] | case["overrides"]
    logp = tensor(given["new_logprobs"], dtype).requires_grad_()
    values = tensor(given["vpred"], dtype).requires_grad_()
    policy_mask = tensor(case["padding_mask"]) == 0
    policy_loss, sums = PPO(epsilon=config["cliprange"])(
        logp, tensor(given["logprobs"], dtype), tensor(case["advantages"], dtype), policy_mask
    )
    critic_loss = value_loss(
        values,
        tensor(case["values"], dtype),
        tensor(case["returns"], dtype),
        tensor(case["padding_mask_p1"]) == 0,
        clip=config["cliprange_value"],
    )
    (policy_loss + config["vf_coef"] * critic_loss).backward()
    close(policy_loss, case["pg_loss"], dtype)
    close(critic_loss, case["vf_loss"], dtype)
    close(logp.grad, case["d_loss_d_new_logprobs"], dtype)
    # where a value has moved by the clip exactly, rounding decides which gradient it has
    moved = (values.detach() - tensor(case["values"], dtype)).abs()
    smooth = (moved - config["cliprange_value"]).abs() > (1e-6 if dtype == torch.float32 else 0)
    close(values.grad * smooth, tensor(case["d_loss_d_vpred"], dtype) * smooth, dtype)
    ratio = tensor(case["ratio"])[policy_mask].mean().item()
    assert mean(sums, "ratio") == pytest.approx(ratio, rel=1e-5)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_kl_estimators(name, dtype):
    golden = GOLDEN["kl_estimators"]
    logp = tensor(golden["log_pi_minus_log_ref"], dtype).requires_grad_()
    kl = kl_divergence(logp, torch.zeros_like(logp), name)
    kl.sum().backward()
    close(kl, golden[name], dtype)
    close(logp.grad, golden[f"d_{name}"], dtype)


def test_bias_corrected_k3_has_the_gradient_of_the_true_kl():
    golden = GOLDEN["kl_estimators"]
    logp = tensor([golden["log_pi_minus_log_ref"]]).requires_grad_()
    zero = torch.zeros_like(logp)
    # with one token a completion and beta 1 the loss is the sum of the token's KL
    objective = GRPO(loss_type="luspo", beta=1.0)
    loss, _ = objective(logp, None, torch.zeros(1), torch.ones_like(logp), logp_ref=zero)
    loss.backward()
    close(logp.grad[0], golden["d_bias_corrected_k3_onpolicy"])


@pytest.mark.parametrize("name", GOLDEN["vllm_is_ratio"])
def test_sampler_correction(name):
    mode, low, high = name.split("/")
    level, action = mode.split("_")
    bounds = [None if v.endswith("None") else float(v[4:]) for v in (low, high)]
    given = GOLDEN["inputs"]
    weights = sampler_correction(
        tensor(given["old_logps"]),
        tensor(given["sampling_logps"]),
        torch.tensor(given["mask"]),
        level=level,
        low=bounds[0],
        high=bounds[1],
        drop=action == "mask",
    )
    close(weights, GOLDEN["vllm_is_ratio"][name])


# --- reported faults, by number


def test_every_reported_fault_has_a_place():
    known = {name.split("_")[0] for name in ISSUES}
    assert known == set(HERE).union(*ELSEWHERE.values())


def single(objective, ratio, advantage, logp=-1.0, **kwargs):
    """Loss and gradient of one token with a given ratio."""
    logp = tensor([[logp]]).requires_grad_()
    old = logp.detach() - math.log(ratio)
    loss, _ = objective(logp, old, tensor([advantage]), torch.ones(1, 1), **kwargs)
    loss.backward()
    return loss.item(), logp.grad.item()


@pytest.mark.parametrize("loss_type", ISSUES["N01_normalisation"]["expected"])
def test_n01_each_loss_type_divides_by_its_own_count(loss_type):
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    objective = GRPO(loss_type=loss_type, max_completion_length=4)
    loss, _ = objective(torch.zeros(2, 3).double(), None, tensor([1.0, -2.0]), mask)
    assert loss.item() == pytest.approx(ISSUES["N01_normalisation"]["expected"][loss_type])


@pytest.mark.parametrize("loss_type", [*ISSUES["N02_grad_accum"]["expected"], "bnpo"])
def test_n02_four_micro_batches_are_one_batch(loss_type):
    objective = objective_of({"loss_type": loss_type})
    whole = inputs()
    objective(**whole)[0].backward()
    totals = Totals.of(whole["mask"])
    loss, gradient = 0.0, []
    for row in range(4):
        part = {k: v.detach()[row : row + 1] for k, v in whole.items()}
        part["logp"].requires_grad_()
        share, _ = objective(**part, totals=totals)
        share.backward()
        loss, gradient = loss + share, [*gradient, part["logp"].grad]
    # with totals bnpo is dapo: TRL's, without, is not invariant
    key = "dapo" if loss_type == "bnpo" else loss_type
    close(loss, ISSUES["N02_grad_accum"]["expected"][key])
    close(torch.cat(gradient), whole["logp"].grad)


def test_n02_bnpo_without_totals_is_the_mean_of_each_micro_batch():
    objective, whole = objective_of({"loss_type": "bnpo"}), inputs()
    rows = [{k: v.detach()[i : i + 1] for k, v in whole.items()} for i in range(4)]
    loss = sum(objective(**row)[0] for row in rows) / 4
    close(loss, ISSUES["N02_grad_accum"]["wrong_value_if_bugged"]["bnpo_sum_of_micro"])


@pytest.mark.parametrize("name", list(ISSUES["N03_steps_per_generation"]["expected"]))
def test_n03_the_shares_of_one_update_have_trls_scale(name):
    spg, accumulate, tokens = (json.loads(part.split("=")[1]) for part in name.split(",", 2))
    expected = ISSUES["N03_steps_per_generation"]["expected"][name]
    # TRL divides by the generation batch's tokens, scaled to one accumulation window
    totals = Totals(tokens=sum(tokens) * accumulate / spg, sequences=accumulate)
    shares = [
        GRPO()(torch.zeros(1, n), None, -torch.ones(1), torch.ones(1, n), totals=totals)[0].item()
        for n in tokens
    ]
    if accumulate > spg:  # one update sees the generation batch several times
        assert sum(shares) * accumulate / spg == pytest.approx(expected)
    else:
        windows = [sum(shares[i : i + accumulate]) for i in range(0, spg, accumulate)]
        assert windows == pytest.approx(expected)


def test_n05_luspo_sums_valid_tokens_only():
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    logp = torch.zeros(2, 4).double().requires_grad_()
    old = torch.where(mask == 1, 0.0, -4.0).double()
    loss, _ = GRPO(loss_type="luspo")(logp, old, tensor([-1.0, -1.0]), mask)
    loss.backward()
    close(loss, ISSUES["N05_luspo_padding"]["expected"]["loss"])
    close(logp.grad, ISSUES["N05_luspo_padding"]["expected"]["grad"])


def test_n10_the_entropy_threshold_ignores_padding():
    expected = ISSUES["N10_entropy_quantile"]["expected"]
    entropy, mask = tensor([[1.0, 2, 3, 4, 0, 0, 0, 0]]), torch.tensor([[1] * 4 + [0] * 4])
    threshold = entropy_quantile(entropy, mask, 0.5)
    assert threshold.item() == expected["threshold"]
    for passed in (None, threshold, 2.5):
        logp = torch.zeros(1, 8).double().requires_grad_()
        loss, _ = GRPO(top_entropy_quantile=0.5)(
            logp, None, tensor([-1.0]), mask, entropy=entropy, entropy_threshold=passed
        )
        loss.backward()
        close(loss, expected["loss"])
        close(logp.grad, expected["grad"])


def test_n13_cispo_bounds_the_weight_itself():
    loss, gradient = single(
        GRPO(loss_type="cispo", epsilon_high=1.3), ratio=3, advantage=2.0, logp=math.log(0.6)
    )
    assert loss == pytest.approx(ISSUES["N13_cispo"]["expected"]["loss"])
    assert gradient == pytest.approx(-2.6)


@pytest.mark.parametrize("name", ISSUES["N14_sapo"]["expected"])
def test_n14_sapo_has_slope_one_on_policy(name):
    advantage, ratio = (float(part.split("=")[1]) for part in name.split(","))
    loss, gradient = single(GRPO(loss_type="sapo"), ratio, advantage)
    expected = ISSUES["N14_sapo"]["expected"][name]
    assert loss == pytest.approx(expected["loss"])
    assert gradient == pytest.approx(expected["grad"])


@pytest.mark.parametrize("delta", [None, 4.0])
def test_n15_delta_bounds_what_the_clip_does_not(delta):
    loss, gradient = single(GRPO(delta=delta), ratio=10, advantage=-1.0)
    expected = ISSUES["N15_delta"]["expected"][str(delta)]
    assert (loss, gradient) == pytest.approx((expected["loss"], expected["grad"]))


@pytest.mark.parametrize("name", ISSUES["N17_off_policy_mask"]["expected"])
def test_n17_the_off_policy_mask_looks_at_the_sampler(name):
    source, threshold = name.split("/thr")
    args = inputs()
    if source == "sampler":
        args["logp_sampled"] = tensor(GOLDEN["inputs"]["sampling_logps"])
    loss, _ = GRPO(off_policy_mask_threshold=float(threshold))(**args)
    close(loss, ISSUES["N17_off_policy_mask"]["expected"][name])


def test_n18_a_token_that_the_sampler_could_not_score_has_weight_one():
    ones = torch.ones(1, 3)
    weights = sampler_correction(ones, tensor([[1.0, math.nan, 0.0]]), ones)
    close(weights, [[1.0, 1.0, math.e]])


def test_n27_half_the_squared_error():
    zero, mask = torch.zeros(2, 3), torch.ones(2, 3)
    loss = value_loss(zero + 2, zero, zero, mask, clip=None)
    assert loss.item() == ISSUES["N27_value_loss_half"]["expected"]
