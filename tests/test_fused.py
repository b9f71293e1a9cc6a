"""Gradients in the forward pass: `fused` against `full`, what it costs, what it refuses.

Tiles in these tests are a few tokens, so that they cut sequences.
"""

import pytest
import torch
from dispatch import Operations
from torch._subclasses.fake_tensor import FakeTensorMode
from ways import moved

import rlkit.fused
import rlkit.tiles
from rlkit.fused import fused_policy_loss, order_tokens
from rlkit.head import Head, policy_loss, token_logps
from rlkit.objectives import GRPO, PPO, RLOO, Totals, entropy_quantile
from rlkit.tiles import multiply

LENGTHS = (5, 2, 0, 6, 1, 4)
B, T, V, H = len(LENGTHS), 6, 23, 5
N = sum(LENGTHS)
TRAINED = ("hidden", "weight", "bias", "u", "rank_rows")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tile(tokens, dtype=torch.float64):
    return tokens * V * dtype.itemsize


def inputs(dtype=torch.float64, seed=0):
    """(what the head is given, what the objective is told), of six rows, one of them empty."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    shapes = dict(hidden=(N, H), weight=(V, H), bias=(V,), u=(N, 2), rank_rows=(V, 2))
    head = {name: normal(*shape) for name, shape in shapes.items()}
    head["targets"] = torch.randint(V, (N,), generator=generator)
    mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    index = mask.flatten().nonzero().squeeze(1)
    with torch.no_grad():
        scores = score(head, "full")
    near = torch.zeros(B * T, dtype=scores[0].dtype).index_copy(0, index, scores[0]).view(B, T)
    batch = dict(mask=mask, index=index, advantages=normal(B))
    batch["logp_old"] = near + 0.3 * normal(B, T)
    batch["logp_ref"] = near + 0.3 * normal(B, T)
    return head, batch


def score(head, mode, **options):
    low_rank = (head["u"], head["rank_rows"]) if "u" in head else None
    return token_logps(
        head["hidden"], head["weight"], head["targets"], bias=head.get("bias"), low_rank=low_rank,
        mode=mode, **options,
    )  # fmt: skip


def loss_of(head, batch, objective, fused, tile_bytes=None, known=None, **options):
    """(loss, sums), in one of two ways."""
    if not fused:
        return policy_loss(objective, *score(head, "full", **options), **batch)
    named = dict(options, bias=head.get("bias"), tile_bytes=tile_bytes)
    if "u" in head:
        named["low_rank"] = head["u"], head["rank_rows"]
    fixed = head["hidden"], head["weight"], head["targets"], objective
    return fused_policy_loss(*fixed, **batch, **(known or {}), **named)


def results(head, batch, objective, *args, train=TRAINED, upstream=1.0, **options):
    """The loss, what it reports and the gradients, by name."""
    head, batch, options = (moved(x, options.get("backend")) for x in (head, batch, options))
    leaves = {k: head[k].clone().requires_grad_() for k in train if k in head}
    loss, sums = loss_of(head | leaves, batch, objective, *args, **options)
    (loss * upstream).backward()
    found = {"loss": loss.detach()} | {name: leaf.grad for name, leaf in leaves.items()}
    found |= {name: torch.stack([*pair]) for name, pair in sums.items()}
    return {name: value.cpu() for name, value in found.items()}


def assert_same(found, wanted, bound):
    assert list(found) == list(wanted)
    for name in found:
        error = (found[name].double() - wanted[name].double()).abs().max().item()
        assert error <= bound * max(1.0, wanted[name].abs().max().item()), (name, error)


@pytest.fixture
def no_fallback(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("fell back to chunked")

    monkeypatch.setattr(rlkit.fused, "token_logps", refuse)


@pytest.fixture
def falls_back(monkeypatch):
    """A list that gets an entry for each fallback."""
    calls, inner = [], rlkit.fused.token_logps
    monkeypatch.setattr(
        rlkit.fused, "token_logps", lambda *a, **k: calls.append(k) or inner(*a, **k)
    )
    return calls


# ---- fused is full -------------------------------------------------------------------------


OPTIONS = (
    dict(),
    dict(temperature=0.7),
    dict(temperature="each"),
    dict(logit_softcap=1.5, logit_scale=0.6, temperature="each"),
    dict(entropy=False),
)


@pytest.mark.parametrize("old", [True, False], ids=["off policy", "on policy"])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.3])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("objective", [PPO, RLOO, GRPO])
def test_head_options_and_the_entropy_bonus(objective, options, entropy_coef, old, no_fallback):
    head, batch = inputs(seed=1)
    if options.get("temperature") == "each":
        options = options | {"temperature": torch.linspace(0.5, 2.0, N, dtype=torch.float64)}
    objective = objective(entropy_coef=entropy_coef)
    if entropy_coef:
        options = options | {"entropy": True}
    batch["logp_old"] = batch["logp_old"] if old else None
    wanted = results(head, batch, objective, False, **options)
    found = results(head, batch, objective, True, tile(7), {"row_lengths": LENGTHS}, **options)
    assert_same(found, wanted, 1e-12)


@pytest.mark.parametrize("train", [TRAINED, ("hidden", "u", "rank_rows")], ids=["all", "frozen"])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.3])
@pytest.mark.parametrize("options", OPTIONS[:-1], ids=str)
def test_head_options_in_triton(options, entropy_coef, train, no_fallback):
    head, batch = inputs(seed=1)
    if options.get("temperature") == "each":
        options = options | {"temperature": torch.linspace(0.5, 2.0, N, dtype=torch.float64)}
    objective = GRPO(entropy_coef=entropy_coef)
    wanted = results(head, batch, objective, False, train=train, **options)
    options = options | {"backend": "triton", "train": train}
    found = results(head, batch, objective, True, tile(7), **options)
    assert_same(found, wanted, 1e-12)


@pytest.mark.parametrize("objective", [GRPO(), RLOO(), GRPO(loss_type="vespo"), GRPO(beta=0.1)])
def test_everything_else_that_an_objective_is_told(objective, no_fallback):
    head, batch = inputs(seed=2)
    generator = torch.Generator().manual_seed(0)
    for weights in (torch.rand(B, T, generator=generator), torch.rand(B, 1, generator=generator)):
        batch |= dict(importance_weights=weights, totals=Totals(tokens=40, sequences=9))
        batch["logp_sampled"] = batch["logp_old"] - 0.1
        wanted = results(head, batch, objective, False)
        known = {"row_lengths": LENGTHS}
        assert_same(results(head, batch, objective, True, tile(6), known), wanted, 1e-12)


@pytest.mark.parametrize("objective", [PPO(), RLOO(), GRPO(loss_type="grpo")])
def test_advantages_of_single_tokens(objective, no_fallback):
    head, batch = inputs(seed=3)
    batch["advantages"] = torch.randn(B, T, dtype=torch.float64)
    batch["advantages"][~batch["mask"]] = torch.nan
    wanted = results(head, batch, objective, False)
    known = {"row_lengths": LENGTHS}
    assert_same(results(head, batch, objective, True, tile(6), known), wanted, 1e-12)


@pytest.mark.parametrize("entropy_coef", [0.0, 0.2])
def test_an_entropy_quantile_over_several_tiles(entropy_coef, falls_back):
    head, batch = inputs(seed=4)
    objective = GRPO(top_entropy_quantile=0.4, entropy_coef=entropy_coef)
    wanted = results(head, batch, objective, False)
    entropy = score(head, "full")[1]
    threshold = entropy_quantile(entropy, torch.ones_like(entropy), 0.6)
    told = batch | {"entropy_threshold": threshold}
    assert_same(results(head, told, objective, True, tile(4)), wanted, 1e-12)
    assert not falls_back
    assert_same(results(head, batch, objective, True, tile(N)), wanted, 1e-12)
    assert not falls_back  # all tokens in one tile
    assert_same(results(head, batch, objective, True, tile(4)), wanted, 1e-12)
    assert len(falls_back) == 1


# ---- tokens without a gradient -------------------------------------------------------------


def ordered(head, batch, objective):
    """The same inputs with their tokens in order_tokens' order, and what the host knows of it."""
    order = order_tokens(batch["mask"], batch["advantages"], objective)
    place = torch.full((B * T,), -1).index_copy(0, batch["index"], torch.arange(N))
    moved = place[order.index]
    head = head | {key: head[key][moved] for key in ("hidden", "u", "targets")}
    known = dict(row_lengths=order.row_lengths, live=order.live)
    return head, batch | {"index": order.index}, known


@pytest.mark.parametrize("tokens", [6, 8, N])
@pytest.mark.parametrize(
    "objective, live",
    [
        (PPO(), 7),
        (RLOO(), 7),
        (GRPO(), 7),
        (GRPO(loss_type="vespo"), 7),
        (PPO(entropy_coef=0.3), N),
        (RLOO(entropy_coef=0.3), N),
        (GRPO(entropy_coef=0.3), N),
        (GRPO(beta=0.1), N),
    ],
    ids=str,
)
def test_dead_rows(objective, live, tokens, no_fallback):
    head, batch = inputs(seed=5)
    batch["advantages"] = torch.tensor([0.5, -1.0, 0, 0, 0, 0], dtype=torch.float64)
    head, batch, known = ordered(head, batch, objective)
    assert known["live"] == live
    wanted = results(head, batch, objective, False)
    # a promise of zeros that a KL or an entropy bonus breaks is not believed
    for told in (live, 7):
        known["live"] = told
        assert_same(results(head, batch, objective, True, tile(tokens), known), wanted, 1e-12)


def test_order_of_tokens():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    dead_first = torch.tensor([0.0, 2.0, -1.0])
    index, live, lengths = order_tokens(mask, dead_first, GRPO())
    assert index.tolist() == [3, 6, 7, 8, 0, 1] and live == 4 and lengths == (2, 1, 3)
    index, live, _ = order_tokens(mask, dead_first, RLOO())
    assert index.tolist() == [0, 1, 3, 6, 7, 8] and live == 6
    assert order_tokens(mask, torch.tensor([0.0, 2.0, 0.0]), RLOO()).live == 3
    assert order_tokens(mask, torch.zeros(3), RLOO()).live == 0
    by_token = torch.tensor([[1.0, 0, torch.nan], [0, 0, 0], [0, 0, 1]])
    index, live, _ = order_tokens(mask, by_token, PPO())
    assert index.tolist() == [0, 8, 1, 3, 6, 7] and live == 2


@pytest.mark.parametrize("live", [0, 7, N])
@pytest.mark.parametrize(
    "train, extra", [(("hidden", "weight"), 2), (("hidden",), 1), (("weight",), 1), ((), 0)]
)
def test_number_of_matrix_products(train, extra, live):
    head, batch = inputs(seed=6)
    head = {k: v for k, v in head.items() if k not in ("bias", "u", "rank_rows")}
    for key in train:
        head[key].requires_grad_()
    with Operations() as operations:
        loss, _ = loss_of(head, batch, GRPO(), True, tile(5), {"live": live})
        in_forward = operations.multiplications
        if train:
            loss.backward()
    assert operations.multiplications == in_forward == (N + extra * live) * V * H


@pytest.mark.parametrize("tokens, live", [(6, 7), (9, 7), (N, 7), (N, 0)])
def test_dead_rows_at_the_end_cost_one_product(tokens, live):
    head, batch = inputs(seed=6)
    head = {k: head[k] for k in ("hidden", "weight", "targets")}
    head["hidden"].requires_grad_()
    known = {"live": live, "row_lengths": LENGTHS}
    with Operations() as operations:
        loss_of(head, batch, RLOO(), True, tile(tokens), known)
    assert operations.multiplications == (N + live) * V * H


# ---- in autograd's hands -------------------------------------------------------------------


@pytest.mark.parametrize("upstream", [1.0, -3.7, 0.0, 65536.0])
def test_any_upstream_gradient(upstream):
    head, batch = inputs()
    wanted = results(head, batch, GRPO(), False, upstream=upstream)
    found = results(head, batch, GRPO(), True, tile(4), upstream=upstream)
    assert_same(found, wanted, 1e-12)


@pytest.mark.parametrize("fused", [True, False])
def test_accumulation_and_hidden_states_used_elsewhere_too(fused):
    """The same answer either way; `full` is the one that is known to be right."""
    trunk = torch.eye(H, dtype=torch.float64).requires_grad_()
    head, batch = inputs()
    weight = head["weight"].requires_grad_()
    for scale in (0.5, 2.0):
        hidden = head["hidden"] @ trunk
        loss, _ = loss_of(head | {"hidden": hidden}, batch, GRPO(), fused, tile(4))
        (loss * scale + hidden.square().sum() + weight.sum()).backward()
    expected = torch.autograd.grad(
        2.5 * loss_of(head | {"hidden": head["hidden"] @ trunk}, batch, GRPO(), False)[0]
        + 2 * (head["hidden"] @ trunk).square().sum()
        + 2 * weight.sum(),
        (trunk, weight),
    )
    for found, wanted in zip((trunk.grad, weight.grad), expected, strict=True):
        assert (found - wanted).abs().max() < 1e-12


@pytest.mark.parametrize("train", [("hidden",), ("u", "rank_rows"), ("bias",), ("weight",)])
def test_what_is_frozen_gets_no_gradient_and_the_rest_the_same(train):
    head, batch = inputs()
    found = results(head, batch, GRPO(), True, tile(4), train=train)
    wanted = results(head, batch, GRPO(), False, train=train)
    assert_same(found, wanted, 1e-12)


def test_no_gradient_work_without_gradients():
    head, batch = inputs()
    wanted, sums = loss_of(head, batch, GRPO(), False)
    head["hidden"].requires_grad_()
    with torch.no_grad(), Operations() as operations:
        loss, found = loss_of(head, batch, GRPO(), True, tile(4))
    assert not loss.requires_grad
    assert operations.multiplications == N * V * (H + 2 + 1)
    assert (loss - wanted).abs() < 1e-12
    assert_same(
        {k: torch.stack([*v]) for k, v in found.items()},
        {k: torch.stack([*v]) for k, v in sums.items()},
        1e-12,
    )


def test_sums_and_advantages_carry_no_gradient():
    head, batch = inputs()
    head["hidden"].requires_grad_()
    batch["advantages"].requires_grad_()
    loss, sums = loss_of(head, batch, GRPO(), True, tile(4))
    loss.backward()
    assert batch["advantages"].grad is None
    assert not any(x.requires_grad for pair in sums.values() for x in pair)


def test_a_second_backward_pass_is_refused():
    head, batch = inputs()
    head["hidden"].requires_grad_()
    loss, _ = loss_of(head, batch, GRPO(), True, tile(4))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="mode='chunked' allows a second"):
        loss.backward()


@pytest.mark.parametrize("objective", [GRPO(), RLOO(), GRPO(top_entropy_quantile=0.5)])
def test_no_valid_token(objective):
    head, batch = inputs()
    head = {k: v[:0] if k in ("hidden", "u", "targets") else v for k, v in head.items()}
    batch |= dict(mask=torch.zeros(B, T), index=torch.zeros(0, dtype=torch.int64))
    if objective.top_entropy_quantile < 1:
        batch["entropy_threshold"] = 0.5
    found = results(head, batch, objective, True, tile(4), {"row_lengths": (0,) * B})
    assert found["loss"] == 0
    assert not any(found[name].any() for name in TRAINED)


# ---- what falls back -----------------------------------------------------------------------


@pytest.mark.parametrize("known", [{"row_lengths": LENGTHS}, {}], ids=["lengths known", "not"])
def test_a_whole_row_larger_than_a_tile_is_chunked(known, falls_back):
    head, batch = inputs()
    wanted = results(head, batch, RLOO(), False)
    assert_same(results(head, batch, RLOO(), True, tile(5), known), wanted, 1e-12)
    assert len(falls_back) == 1
    assert_same(results(head, batch, RLOO(), True, tile(N), known), wanted, 1e-12)
    assert len(falls_back) == 1
    assert_same(results(head, batch, RLOO(), True, tile(6), known), wanted, 1e-12)
    assert len(falls_back) == (1 if known else 2)


# ---- dtypes --------------------------------------------------------------------------------


def rounding_multiply(left, right, dtype, into=None, add=True):
    """As on CUDA: both operands in dtype."""
    return multiply(left.to(dtype), right.to(dtype), dtype, into, add)


@pytest.mark.parametrize("on_cuda", [True, False], ids=["operands rounded", "widened"])
@pytest.mark.parametrize("entropy_coef, softcap", [(0.0, None), (0.01, None), (0.0, 3.0)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype, entropy_coef, softcap, on_cuda, monkeypatch):
    """A share of 460,800 tokens: each coefficient is under float16's smallest number times 40."""
    if on_cuda:
        monkeypatch.setattr(rlkit.tiles, "multiply", rounding_multiply)
    head, batch = inputs(dtype)
    batch["advantages"] = batch["advantages"].float()
    batch["totals"] = Totals(tokens=460_800.0, sequences=1800.0)
    objective, options = GRPO(entropy_coef=entropy_coef), dict(logit_softcap=softcap)
    scale = 2.0**16 if dtype == torch.float16 else 1.0  # loss scaling, as a trainer does it
    found = results(head, batch, objective, True, tile(4), upstream=scale, **options)
    exact = {k: v.double() if v.is_floating_point() else v for k, v in head.items()}
    wanted = results(exact, batch, objective, False, upstream=scale, **options)
    assert abs(found["loss"] - wanted["loss"]) < 1e-5 * 1e-3
    assert found["loss"].dtype == torch.float32
    eps = torch.finfo(dtype).eps
    for name in TRAINED:
        assert found[name].dtype == dtype
        error = (found[name].double() - wanted[name]).abs().max() / wanted[name].abs().max()
        assert error < 3 * eps, name


@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward after"])
def test_autocast_rounds_operands_and_nothing_else(inside):
    head, batch = inputs(torch.float32)
    leaves = {k: head[k].requires_grad_() for k in TRAINED}
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = loss_of(head, batch, GRPO(), True, tile(4, torch.float32))
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    rounded = {
        k: v.detach().bfloat16().double() if k in TRAINED and k != "bias" else v.detach()
        for k, v in head.items()
    }
    rounded["bias"] = head["bias"].detach().double()
    wanted = results(rounded, batch, GRPO(), False)
    assert abs(loss - wanted["loss"]) < 1e-5
    for name, leaf in leaves.items():
        assert leaf.grad.dtype == torch.float32
        assert (leaf.grad - wanted[name]).abs().max() < 1e-2 * wanted[name].abs().max()


# ---- what it costs -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "objective", [GRPO(beta=0.1), RLOO(), GRPO(top_entropy_quantile=0.5, entropy_coef=0.1)]
)
def test_runs_on_fake_tensors_so_it_reads_nothing_back(objective, dtype):
    with FakeTensorMode():
        hidden = torch.empty(100, 64, dtype=dtype, requires_grad=True)
        weight = torch.empty(1000, 64, dtype=dtype, requires_grad=True)
        rows = torch.empty(10, 12)
        loss, sums = fused_policy_loss(
            hidden, weight, torch.empty(100, dtype=torch.int64), objective,
            bias=torch.empty(1000, dtype=dtype, requires_grad=True), temperature=torch.ones(100),
            index=torch.empty(100, dtype=torch.int64), mask=torch.empty(10, 12, dtype=torch.bool),
            advantages=torch.empty(10), logp_old=rows, logp_ref=rows,
            entropy_threshold=torch.empty(()), row_lengths=[10] * 10, tile_bytes=25 * 4000,
        )  # fmt: skip
        assert loss.grad_fn.name() == "GradientsReadyBackward"
        loss.backward()
        assert weight.grad.shape == (1000, 64) and weight.grad.dtype == dtype


# ---- in lm_head's place, and bad input -----------------------------------------------------


def head_loss(mode, dtype=torch.float32, tile_bytes=400, frozen=False, **more):
    head, batch = inputs(dtype)
    batch["advantages"] = batch["advantages"].float()
    module = Head(torch.nn.Parameter(head["weight"]), mode=mode, tile_bytes=tile_bytes)
    module.requires_grad_(not frozen)
    hidden = head["hidden"].requires_grad_()
    batch |= more
    return module(hidden, head["targets"], objective=GRPO(), **batch)[0]


def test_what_auto_takes_with_an_objective():
    fused = "GradientsReadyBackward"
    assert head_loss("auto").grad_fn.name() == fused
    assert head_loss("auto", tile_bytes=2**20).grad_fn.name() != fused  # all logits fit: full
    assert head_loss("auto", torch.bfloat16).grad_fn.name() != fused
    assert head_loss("auto", torch.bfloat16, frozen=True).grad_fn.name() == fused
    assert head_loss("fused", torch.bfloat16).grad_fn.name() == fused
    with torch.autocast("cpu", torch.bfloat16):
        assert head_loss("auto").grad_fn.name() != fused
    losses = [head_loss(mode) for mode in ("full", "chunked", "fused", "auto")]
    assert max(losses) - min(losses) < 1e-6 * max(losses)
    known = dict(row_lengths=LENGTHS, live=N)
    losses = [head_loss(mode, **known) for mode in ("full", "chunked", "fused")]
    assert max(losses) - min(losses) < 1e-6 * max(losses)


def test_fused_without_an_objective_is_chunked():
    head, _ = inputs()
    module = Head(torch.nn.Parameter(head["weight"]), mode="fused", tile_bytes=tile(4))
    logp, entropy = module(head["hidden"], head["targets"])
    assert logp.grad_fn.name() == entropy.grad_fn.name() == "ChunkedLogpsBackward"


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(index=torch.zeros(2).long()), rf"index has shape \[2\] where \[{N}\] fits"),
        (dict(advantages=torch.zeros(B + 1)), rf"advantages \[{B + 1}\] must be"),
        (dict(logp_old=torch.zeros(B)), rf"logp_old has shape \[{B}\] where \[{B}, {T}\] fits"),
        (dict(lengths=torch.zeros(B, 1)), rf"lengths has shape \[{B}, 1\]"),
        (dict(importance_weights=torch.zeros(B)), "importance_weights has shape"),
        (dict(live=N + 1), f"live={N + 1} must count"),
        (dict(row_lengths=(1, 2)), rf"must count the {N} tokens of {B} rows"),
        (dict(backend="tritn"), "did you mean 'triton'"),
        (dict(logp_ref=None), "needs logp_ref"),
    ],
)
def test_bad_input_is_named(change, message):
    head, batch = inputs()
    objective = GRPO(beta=0.1, importance_sampling_level="sequence")
    known = {"row_lengths": LENGTHS} | change
    batch |= {name: known.pop(name) for name in change if name not in ("row_lengths", "live")}
    with pytest.raises(ValueError, match=message):
        loss_of(head, batch, objective, True, tile(6), known)
