"""The head: `chunked` against `full`, memory, dtypes, and lm_head's place.

Tiles in these tests are a few elements, so that they divide neither tokens nor vocabulary.
"""

import pytest
import torch
from dispatch import Operations
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from ways import MODES, double, largest_error, leaf, random_inputs, run, scores, training_call
from ways import way as way  # a fixture

from rlkit.head import Head, token_logps
from rlkit.objectives import GRPO


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- chunked is full -----------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    N=st.integers(0, 9),
    V=st.integers(1, 23),
    H=st.integers(1, 5),
    elements=st.integers(1, 120),
    bias=st.booleans(),
    rank=st.sampled_from([0, 0, 1, 3]),
    softcap=st.sampled_from([None, None, 1.5]),
    scale=st.sampled_from([1.0, 0.3]),
    temperature=st.sampled_from([1.0, 0.6, "each"]),
    use=st.sampled_from(["logp", "entropy", "both"]),
    seed=st.integers(0, 99),
)
def test_chunked_equals_full(N, V, H, elements, bias, rank, softcap, scale, temperature, use, seed):
    inputs, targets, d_logp, d_entropy = random_inputs(N, V, H, seed=seed, bias=bias, rank=rank)
    if temperature == "each":
        temperature = torch.linspace(0.5, 2.0, N, dtype=torch.float64)
    options = dict(temperature=temperature, logit_softcap=softcap, logit_scale=scale)
    options["entropy"] = use != "logp"
    upstream = (
        torch.zeros_like(d_logp) if use == "entropy" else d_logp,
        None if use == "logp" else d_entropy,
    )
    full = run(inputs, targets, *upstream, mode="full", **options)
    tiled = run(inputs, targets, *upstream, mode="chunked", tile_bytes=8 * elements, **options)
    assert [x.shape for x in tiled] == [x.shape for x in full]
    if N:
        assert largest_error(tiled, full) < 1e-11


def test_chunked_in_float32_is_as_close_as_full():
    inputs, targets, d_logp, d_entropy = random_inputs(33, 1001, 48, bias=True)
    inputs["weight"] /= 7
    exact = run(inputs, targets, d_logp, d_entropy, mode="full")
    single = {key: value.float() for key, value in inputs.items()}
    found = run(single, targets, d_logp, d_entropy, mode="chunked", tile_bytes=10_000)
    assert largest_error(found, exact) < 1e-5


@pytest.mark.parametrize("softcap, scale", [(None, 1.0), (2.0, 0.7)])
def test_gradcheck(softcap, scale):
    inputs, targets, *_ = random_inputs(3, 11, 4, bias=True, rank=2)
    hidden, weight, bias, u, B = (leaf(value) for value in inputs.values())

    def call(hidden, weight, bias, u, B):
        return token_logps(
            hidden, weight, targets, bias=bias, low_rank=(u, B), temperature=0.8,
            logit_softcap=softcap, logit_scale=scale, tile_bytes=200,
        )  # fmt: skip

    assert torch.autograd.gradcheck(call, (hidden, weight, bias, u, B))


@pytest.mark.skipif(
    not hasattr(torch.nn.functional, "linear_cross_entropy"), reason="torch before 2.13"
)
@pytest.mark.parametrize("mode", MODES)
def test_agrees_with_torchs_own_linear_cross_entropy(mode):
    inputs, targets, d_logp, _ = random_inputs(20, 61, 8)
    leaves = [leaf(value) for value in inputs.values()]
    logp = -torch.nn.functional.linear_cross_entropy(*leaves, targets, reduction="none")
    (logp * d_logp).sum().backward()
    wanted = [logp.detach(), *(x.grad for x in leaves)]
    found = run(inputs, targets, d_logp, mode=mode, entropy=False, tile_bytes=900)
    assert largest_error(found, wanted) < 1e-12


def test_an_offset_common_to_all_logits_changes_nothing(way):
    inputs, targets, d_logp, d_entropy = random_inputs(6, 29, 5, bias=True)
    plain = run(inputs, targets, d_logp, d_entropy, **way, tile_bytes=300)
    for offset in (-1e4, 1e4):
        moved = inputs | {"bias": inputs["bias"] + offset}
        found = run(moved, targets, d_logp, d_entropy, **way, tile_bytes=300)
        assert largest_error(found, plain) < 1e-9
        single = {key: value.float() for key, value in moved.items()}
        found = run(single, targets, d_logp, d_entropy, **way, tile_bytes=300)
        assert largest_error(found, plain) < 0.05  # float32 has steps of 0.001 at 10,000


def test_a_temperature_per_token_is_each_token_with_its_own(way):
    inputs, targets, d_logp, d_entropy = random_inputs(4, 13, 3)
    temperature = leaf([0.5, 1.0, 1.7, 3.0])
    options = dict(**way, logit_softcap=2.0, tile_bytes=150)
    found = run(inputs, targets, d_logp, d_entropy, temperature=temperature, **options)
    for i, one in enumerate(temperature.tolist()):
        single = inputs | {"hidden": inputs["hidden"][i : i + 1]}
        upstream = d_logp[i : i + 1], d_entropy[i : i + 1]
        logp, entropy, d_hidden, _ = run(
            single, targets[i : i + 1], *upstream, temperature=one, **options
        )
        wanted = [logp[0], entropy[0], d_hidden[0]]
        assert largest_error([x[i] for x in found[:3]], wanted) < 1e-12
    assert temperature.grad is None
    whole = scores(inputs, targets, temperature=torch.tensor([0.7]), **way)
    number = scores(inputs, targets, temperature=0.7, **way)
    assert largest_error(whole, number) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64], ids=str)
def test_a_temperature_of_any_dtype_is_that_of_the_logits(dtype, way):
    inputs, targets, d_logp, d_entropy = random_inputs(4, 13, 3, torch.float32)
    upstream, options = (d_logp, d_entropy), dict(**way, tile_bytes=150)
    temperature = torch.tensor([1, 2, 1, 3])
    wanted = run(inputs, targets, *upstream, temperature=temperature.float(), **options)
    found = run(inputs, targets, *upstream, temperature=temperature.to(dtype), **options)
    assert [x.dtype for x in found] == [x.dtype for x in wanted]
    assert largest_error(found, wanted) == 0
    tenths = (temperature / 3).to(torch.float16)  # no number of theirs is exact
    wanted = run(inputs, targets, *upstream, temperature=tenths.float(), **options)
    found = run(inputs, targets, *upstream, temperature=tenths, **options)
    assert largest_error(found, wanted) == 0


def test_a_token_that_a_bias_shuts_out_counts_for_nothing(way):
    """As if the vocabulary were without it, also where it fills whole tiles."""
    inputs, targets, d_logp, d_entropy = random_inputs(4, 40, 3, bias=True)
    inputs["bias"][9:] = -torch.inf
    few = inputs | {key: inputs[key][:9] for key in ("weight", "bias")}
    for upstream in ((d_logp, d_entropy), (d_logp,)):
        found = run(inputs, targets % 9, *upstream, **way, tile_bytes=500)
        wanted = run(few, targets % 9, *upstream, mode="full")
        assert not found[-2][9:].any() and not found[-1][9:].any()
        found[-2:] = (x[:9] for x in found[-2:])
        assert largest_error(found, wanted) < 1e-12


def test_targets_may_lie_apart(way):
    inputs, targets, d_logp, _ = random_inputs(6, 13, 3)
    wanted = run(inputs, targets, d_logp, **way, tile_bytes=300)
    column = torch.stack([targets, targets + 1], 1)[:, 0]
    assert largest_error(run(inputs, column, d_logp, **way, tile_bytes=300), wanted) == 0


def test_no_tokens_give_empty_results_with_a_graph(way):
    inputs, targets, d_logp, d_entropy = random_inputs(0, 7, 3, bias=True, rank=2)
    logp, entropy, d_hidden, d_weight, d_bias, d_u, d_B = run(
        inputs, targets, d_logp, d_entropy, **way, logit_softcap=2.0
    )
    assert logp.shape == entropy.shape == (0,)
    assert d_hidden.shape == (0, 3) and d_u.shape == (0, 2)
    assert not d_weight.any() and not d_bias.any() and not d_B.any()


def test_entropy_can_be_left_out(way):
    inputs, targets, *_ = random_inputs(3, 7, 2)
    assert scores(inputs, targets, **way, entropy=False)[1] is None


# ---- dtypes and autocast -------------------------------------------------------------------


def test_a_bfloat16_weight_gradient_is_summed_in_float32():
    """Over 4,096 tokens: within the rounding of the result, 1 part in 256."""
    inputs, targets, d_logp, d_entropy = random_inputs(4096, 64, 8, torch.bfloat16)
    wide = {key: value.double() for key, value in inputs.items()}
    exact = run(wide, targets, d_logp, d_entropy, mode="full")
    found = run(inputs, targets, d_logp, d_entropy, tile_bytes=20_000)
    *_, d_hidden, d_weight = found
    assert d_hidden.dtype == d_weight.dtype == torch.bfloat16
    for mine, wanted in zip(found[2:], exact[2:], strict=True):
        assert ((mine.double() - wanted).abs() <= wanted.abs() / 256 + 1e-4).all()


def test_half_precision_gradients_agree_with_float64(way):
    """Triton's gradients of a tile are rounded as its products need them, torch's here are not."""
    for dtype in (torch.bfloat16, torch.float16):
        inputs, targets, d_logp, d_entropy = random_inputs(12, 40, 8, dtype, bias=True, rank=2)
        wide = {key: value.double() for key, value in inputs.items()}
        exact = run(wide, targets, d_logp, d_entropy, mode="full")
        found = run(inputs, targets, d_logp, d_entropy, **way, tile_bytes=900)
        assert largest_error(found[:2], exact[:2]) < 1e-4
        rounding = torch.finfo(dtype).eps if way.get("backend") == "triton" else 0.0
        for mine, wanted in zip(found[2:], exact[2:], strict=True):
            assert mine.dtype == dtype
            bound = wanted.abs() / 100 + 2e-3 + rounding * wanted.abs().max()
            assert ((mine.double() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward after"])
@pytest.mark.parametrize("mode", MODES)
def test_autocast_rounds_operands_and_nothing_else(mode, inside):
    inputs, targets, d_logp, d_entropy = random_inputs(12, 40, 8, torch.float32, bias=True)
    hidden, weight, bias = (leaf(value, torch.float32) for value in inputs.values())
    with torch.autocast("cpu", torch.bfloat16):
        out = token_logps(hidden, weight, targets, bias=bias, mode=mode, tile_bytes=900)
        loss = (out[0] * d_logp).sum() + (out[1] * d_entropy).sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    grads = hidden.grad, weight.grad, bias.grad
    assert {x.dtype for x in (*out, *grads)} == {torch.float32}
    rounded = {
        key: value.bfloat16().double() if key != "bias" else value.double()
        for key, value in inputs.items()
    }
    exact = run(rounded, targets, d_logp, d_entropy, mode="full")
    assert largest_error(out, exact[:2]) < 1e-5
    for mine, wanted in zip(grads, exact[2:], strict=True):
        assert ((mine.double() - wanted).abs() <= wanted.abs() / 100 + 1e-2).all()


# ---- what it costs -------------------------------------------------------------------------


def test_an_entropy_that_no_loss_uses_costs_nothing_in_the_backward_pass():
    inputs, targets, *_ = random_inputs(16, 50, 4)
    done = []
    for entropy in (True, False):
        logp, _ = token_logps(leaf(inputs["hidden"]), inputs["weight"], targets, entropy=entropy)
        loss = logp.sum()
        with Operations() as operations:
            loss.backward()
        done.append([name for name in operations.names if name != "aten.detach.default"])
    assert done[0] == done[1] and len(done[0]) > 5


@pytest.mark.parametrize(
    "mode, train, products",
    [
        ("full", ("hidden", "weight"), 3),
        ("full", ("hidden",), 2),
        ("full", ("weight",), 2),
        ("chunked", ("hidden", "weight"), 4),
        ("chunked", ("hidden",), 3),
        ("chunked", ("weight",), 3),
    ],
)
@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_number_of_matrix_products(mode, train, products, entropy, dtype):
    N, V, H = 24, 100, 16
    with Operations() as operations:
        training_call(N, V, H, mode, train, entropy, dtype, tile_bytes=3000)()
    assert operations.multiplications == products * N * V * H


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_runs_on_fake_tensors_so_it_reads_nothing_back(mode):
    with FakeTensorMode():
        for dtype in (torch.float32, torch.bfloat16):
            hidden = torch.empty(100, 64, dtype=dtype, requires_grad=True)
            weight = torch.empty(1000, 64, dtype=dtype, requires_grad=True)
            bias = torch.empty(1000, dtype=dtype, requires_grad=True)
            targets, temperature = torch.empty(100, dtype=torch.int64), torch.ones(100)
            logp, entropy = token_logps(
                hidden, weight, targets, bias=bias, temperature=temperature,
                logit_softcap=30.0, mode=mode, tile_bytes=2**16,
            )  # fmt: skip
            (logp.sum() + entropy.sum()).backward()
            assert logp.shape == (100,) and weight.grad.shape == (1000, 64)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cuda_gives_the_same_results(way, dtype):
    inputs, targets, d_logp, d_entropy = random_inputs(200, 1000, 64, dtype, bias=True, rank=4)
    exact = run({k: v.double() for k, v in inputs.items()}, targets, d_logp, d_entropy, mode="full")
    on_card = {key: value.cuda() for key, value in inputs.items()}
    upstream = d_logp.cuda(), d_entropy.cuda()
    found = run(on_card, targets.cuda(), *upstream, tile_bytes=2**17, **way)
    assert largest_error(found[:2], exact[:2]) < 1e-4
    for mine, wanted in zip(found[2:], exact[2:], strict=True):
        scale = wanted.abs().max()
        assert ((mine.double() - wanted).abs() / scale).max() < (
            1e-5 if dtype == torch.float32 else 2e-2
        )


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(hidden=torch.zeros(2, 3, 4)), r"hidden \[2, 3, 4\] must be \[N, H\]"),
        (dict(weight=torch.zeros(5, 3)), r"weight has shape \[5, 3\] where \[5, 4\] fits"),
        (dict(targets=torch.zeros(3).long()), r"targets has shape \[3\] where \[2\] fits"),
        (dict(bias=torch.zeros(4)), r"bias has shape \[4\] where \[5\] fits"),
        (dict(low_rank=(torch.zeros(2, 1), torch.zeros(5, 2))), r"low_rank\[1\] has shape"),
        (dict(temperature=0.0), "temperature must be above 0, not 0.0"),
        (dict(temperature=-1), "temperature must be above 0, not -1"),
        (dict(logit_softcap=0.0), "logit_softcap must be above 0, or None, not 0.0"),
        (dict(temperature=torch.ones(3)), r"temperature has shape \[3\] where \[2\] fits"),
        (dict(mode="chunk"), "did you mean 'chunked'"),
        (dict(backend="torhc"), "did you mean 'torch'"),
    ],
)
def test_bad_input_is_named(change, message):
    good = dict(hidden=torch.zeros(2, 4), weight=torch.zeros(5, 4), targets=torch.zeros(2).long())
    with pytest.raises(ValueError, match=message):
        token_logps(**(good | change))


# ---- in lm_head's place --------------------------------------------------------------------


def test_head_without_targets_is_the_linear_layer():
    linear = torch.nn.Linear(4, 7)
    head = Head.from_linear(linear, logit_softcap=1.0, logit_scale=0.1)
    hidden = torch.randn(2, 3, 4)
    assert torch.equal(head(hidden), linear(hidden))
    assert head.weight is linear.weight and head.bias is linear.bias
    assert list(head.state_dict()) == list(linear.state_dict())
    assert list(Head(linear.weight).state_dict()) == ["weight"]


def test_head_with_targets_is_token_logps():
    inputs, targets, *_ = random_inputs(5, 9, 4, bias=True)
    parameters = (torch.nn.Parameter(inputs[key]) for key in ("weight", "bias"))
    head = Head(*parameters, mode="full", logit_softcap=2.0, logit_scale=0.5)
    found = head(inputs["hidden"], targets, temperature=0.8)
    options = dict(logit_softcap=2.0, logit_scale=0.5, temperature=0.8)
    assert largest_error(found, token_logps(targets=targets, **inputs, **options)) < 1e-12
    assert head(inputs["hidden"], targets, entropy=False)[1] is None


def test_auto_is_full_only_where_all_logits_fit():
    weight = torch.nn.Parameter(torch.randn(10, 4))
    head = Head(weight, tile_bytes=400)  # of 10 tokens
    for N, name in ((10, "NegBackward0"), (11, "ChunkedLogpsBackward")):
        _, entropy = head(torch.randn(N, 4), torch.zeros(N).long())
        assert entropy.grad_fn.name() == name


@pytest.mark.parametrize("mode", MODES)
def test_head_with_an_objective_scatters_into_rows(mode):
    """The loss is that of [B, T] logits; a row with no valid token takes part with nothing."""
    B, T, V, H = 3, 4, 11, 5
    inputs, targets, *_ = random_inputs(B * T, V, H)
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    advantages, hidden = double([1.0, -2.0, 0.5]), leaf(inputs["hidden"])
    objective = GRPO(loss_type="grpo", entropy_coef=0.1)
    log_probs = (hidden @ inputs["weight"].T).log_softmax(-1)
    logp = log_probs.gather(1, targets[:, None]).view(B, T)
    entropy = -(log_probs.exp() * log_probs).sum(-1).view(B, T)
    wanted, _ = objective(logp, None, advantages, mask, entropy=entropy)
    (d_wanted,) = torch.autograd.grad(wanted, hidden)

    index = mask.flatten().nonzero().squeeze(1)
    head = Head(torch.nn.Parameter(inputs["weight"]), mode=mode, tile_bytes=200)
    batch = dict(index=index, mask=mask, advantages=advantages)
    loss, sums = head(hidden[index], targets[index], objective=objective, entropy=False, **batch)
    (d_found,) = torch.autograd.grad(loss, hidden)
    assert largest_error([loss.detach(), d_found], [wanted.detach(), d_wanted]) < 1e-12
    assert sums["entropy"][1] == 6  # needed by the bonus, so computed though not asked for


@pytest.mark.parametrize("mode", MODES)
def test_head_with_no_valid_token_has_loss_0_and_gradients_0(mode):
    head = Head(torch.nn.Parameter(torch.randn(7, 3)), mode=mode)
    mask, index = torch.zeros(2, 5), torch.zeros(0, dtype=torch.int64)
    loss, _ = head(
        torch.zeros(0, 3),
        index,
        objective=GRPO(),
        index=index,
        mask=mask,
        advantages=torch.ones(2),
    )
    loss.backward()
    assert loss.item() == 0 and not head.weight.grad.any()


def test_head_takes_its_place_in_a_model_with_tied_weights(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = dict(vocab_size=30, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
    heads = dict(num_attention_heads=2, num_key_value_heads=1, head_dim=8)
    config = transformers.Qwen3Config(**sizes, **heads, tie_word_embeddings=True)
    model = transformers.Qwen3ForCausalLM(config).eval()
    ids = torch.arange(6)[None]
    logits, names = model(ids).logits, list(model.state_dict())
    model.lm_head = Head.from_linear(model.lm_head, mode="chunked")
    assert torch.equal(model(ids).logits, logits)
    assert list(model.state_dict()) == names
    assert model.lm_head.weight is model.model.embed_tokens.weight

    hidden = model.model(ids).last_hidden_state[0, :-1]
    logp, _ = model.lm_head(hidden, ids[0, 1:])
    wanted = logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1)
    torch.testing.assert_close(logp, wanted)
    model.save_pretrained(tmp_path)
    loaded = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(ids).logits, logits)


def test_head_refuses_what_it_does_not_know():
    weight = torch.nn.Parameter(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="mode='fulll'"):
        Head(weight, mode="fulll")
    with pytest.raises(TypeError, match="without an objective there is no use for temprature"):
        Head(weight)(torch.zeros(4, 2), torch.zeros(4).long(), temprature=0.7)
    with pytest.raises(TypeError):
        Head(torch.zeros(3, 2))  # a tensor that would be missing from state_dict
