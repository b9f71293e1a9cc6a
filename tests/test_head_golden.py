"""The head on reference values, and on what went wrong in other heads: every mode and backend.

Tiles in these tests are a few elements, so that they divide neither tokens nor vocabulary.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from ways import LOSS_WAYS, double, largest_error, moved, random_inputs, run, scores
from ways import way as way  # a fixture

from rlkit.head import Head
from rlkit.objectives import GRPO, Totals
from rlkit.parts import order_tokens

GOLDEN = json.loads((Path(__file__).parent / "golden" / "losses.json").read_text())
LINEAR = GOLDEN["linear_logprob"]
TILES = (8, 60, 100, 2**20)  # bytes: one element, odd shapes, all at once


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- reference values ----------------------------------------------------------------------


@pytest.mark.parametrize("tile_bytes", TILES)
@pytest.mark.parametrize("name", LINEAR["cases"])
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_golden_values_and_gradients(name, way, tile_bytes, dtype, bound):
    case = LINEAR["cases"][name]
    names = ["hidden", "weight", *(["bias"] if case["use_bias"] else [])]
    found = run(
        {key: double(LINEAR[key]).to(dtype) for key in names},
        torch.tensor(LINEAR["targets"]),
        double(LINEAR["d_logp"]),
        double(LINEAR["d_entropy"]) if "entropy_grad" in name else None,
        temperature=case["temperature"],
        logit_softcap=case["softcap"],
        logit_scale=case["logit_scale"],
        **way,
        tile_bytes=tile_bytes,
    )
    wanted = [case[key] for key in ("logps", "entropy", *(f"d_{key}" for key in names))]
    assert largest_error(found, map(double, wanted)) < bound
    assert found[0].dtype == found[1].dtype == dtype


@pytest.mark.parametrize("way", LOSS_WAYS)
@pytest.mark.parametrize("name", GOLDEN["e2e_linear_grpo"]["cases"])
def test_golden_head_and_loss_together(name, way):
    golden, way = GOLDEN["e2e_linear_grpo"], LOSS_WAYS[way]
    case, mask = golden["cases"][name], torch.tensor(golden["mask"])
    settings = dict(case["config"])
    totals = Totals(tokens=settings.pop("num_items_in_batch"), sequences=2)
    if settings["loss_type"] == "bnpo":  # the mean of this batch
        totals = Totals(tokens=int(mask.sum()), sequences=2)
    objective, advantages = GRPO(**settings), double(golden["advantages"])
    order = order_tokens(mask, advantages, objective)
    values = {key: double(LINEAR[key]) for key in ("hidden", "weight", "bias")}
    values |= dict(mask=mask, advantages=advantages, targets=torch.tensor(LINEAR["targets"]))
    values |= dict(logp_old=double(golden["old_logps"]), logp_ref=double(golden["ref_logps"]))
    told = moved(values | order._asdict(), way.get("backend"))
    hidden, targets, index = told.pop("hidden"), told.pop("targets"), told["index"]
    weight, bias = (torch.nn.Parameter(told.pop(key)) for key in ("weight", "bias"))
    tokens = int(max(mask.sum(1))) if objective.needs_sequences else 2
    head = Head(weight, bias, tile_bytes=tokens * len(weight) * 8, **way)
    hidden.requires_grad_()
    loss, _ = head(
        hidden[index], targets[index], objective=objective, temperature=0.9, totals=totals, **told
    )
    assert (loss.grad_fn.name() == "GradientsReadyBackward") == (way["mode"] == "fused")
    loss.backward()
    found = [x.cpu() for x in (loss.detach(), hidden.grad, weight.grad, bias.grad)]
    wanted = [case[key] for key in ("loss", "d_hidden", "d_weight", "d_bias")]
    assert largest_error(found, map(double, wanted)) < 1e-9


# ---- faults that users met elsewhere -------------------------------------------------------


def expected(name):
    return GOLDEN["issue_cases"][name]["expected"]


def test_temperature_divides_the_logits(way):
    inputs = {"hidden": double([[1, 0]]), "weight": torch.eye(2).double()}  # h W^T is h
    one = torch.ones(1, dtype=torch.float64)
    logp, _, d_hidden, _ = run(inputs, torch.tensor([0]), one, temperature=0.5, **way)
    wanted = expected("N11_temperature")
    assert logp.item() == pytest.approx(wanted["logp"], abs=1e-12)
    assert d_hidden[0].tolist() == pytest.approx(wanted["dlogp_dlogits"], abs=1e-12)


@pytest.mark.parametrize("tile_bytes", TILES)
def test_each_token_has_its_own_upstream_gradient(tile_bytes, way):
    inputs = {"hidden": double(LINEAR["hidden"]), "weight": double(LINEAR["weight"])}
    targets, d_logp = torch.tensor(LINEAR["targets"]), double(LINEAR["d_logp"])
    *_, d_weight = run(inputs, targets, d_logp, tile_bytes=tile_bytes, **way)
    wanted = double(expected("N29_per_token_upstream")["d_weight"])
    assert largest_error([d_weight], [wanted]) < 1e-12


@pytest.mark.parametrize("tile_bytes", TILES)
def test_entropy_has_a_gradient(tile_bytes, way):
    inputs = {"hidden": double(LINEAR["hidden"]), "weight": double(LINEAR["weight"])}
    targets = torch.tensor(LINEAR["targets"])
    upstream = double(LINEAR["d_logp"]), double(LINEAR["d_entropy"])
    _, _, d_hidden, _ = run(inputs, targets, *upstream, tile_bytes=tile_bytes, **way)
    wanted = double(expected("N30_entropy_grad")["d_hidden"])
    assert largest_error([d_hidden], [wanted]) < 1e-12


def test_gradient_of_a_sure_target_does_not_cancel(way):
    wanted = expected("N32_target_cancellation")["value"]
    hidden = torch.tensor([[math.log(0.999), math.log(0.001)]])
    inputs = {"hidden": hidden, "weight": torch.eye(2)}
    *_, d_hidden, _ = run(inputs, torch.tensor([0]), torch.ones(1), **way)
    assert d_hidden[0, 0].item() == pytest.approx(wanted, rel=2e-4)


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_logit_gradients_sum_to_zero_over_the_vocabulary(way, dtype, bound):
    # the bias' gradient is the logits', summed over tokens; flat logits are filtering's worst case
    V = 8192
    for scale in (0.0, 1.0):
        inputs, targets, d_logp, d_entropy = random_inputs(1, V, 8, dtype, bias=True)
        inputs["weight"] *= scale
        inputs["bias"] *= scale
        *_, d_bias = run(inputs, targets, d_logp, d_entropy, **way, tile_bytes=40_000)
        assert abs(d_bias.sum().item()) < bound * (abs(d_logp) + abs(d_entropy)).item() * 10
        assert (d_bias != 0).all()


def test_log_probs_of_half_precision_are_float32_and_repeat_exactly(way):
    inputs, targets, *_ = random_inputs(9, 50, 16, torch.bfloat16)
    first, second = (scores(inputs, targets, **way)[0] for _ in range(2))
    assert first.dtype == torch.float32
    assert ((first - second).exp() == 1).all()


@pytest.mark.parametrize("tile_bytes", TILES)
def test_low_rank_is_lora_on_the_head(way, tile_bytes):
    hidden, weight = double([[1, 2]]), double([[0.1, 0.2], [0.3, -0.1], [0, 0.5]])
    u = 2 * hidden @ double([[0.5, -0.5]]).T  # scaling 2
    inputs = dict(hidden=hidden, weight=weight, u=u, B=double([[1], [0], [-1]]))
    logp, _ = scores(inputs, torch.tensor([0]), tile_bytes=tile_bytes, **way)
    assert logp.item() == pytest.approx(expected("N38_lora_on_head")["logp"], abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_not_rounded(way, dtype):
    """Logits of standard deviation 4, target the largest: rounding them costs 0.04."""
    N, V, H = 8 if way.get("backend") == "triton" else 64, 8192, 64  # the interpreter is slow
    inputs, *_ = random_inputs(N, V, H)
    inputs["weight"] *= 4 / math.sqrt(H)
    inputs = {key: value.to(dtype) for key, value in inputs.items()}
    logits = inputs["hidden"].double() @ inputs["weight"].double().T
    targets = logits.argmax(1)
    wanted = logits.log_softmax(1).amax(1)
    logp, _ = scores(inputs, targets, **way, tile_bytes=100_000)
    assert (logp - wanted).abs().max() < 1e-4
    rounded = logits.to(dtype).double().log_softmax(1).amax(1)
    if dtype == torch.bfloat16:  # the test tells the two apart
        assert (rounded - wanted).abs().max() > 1e-2
