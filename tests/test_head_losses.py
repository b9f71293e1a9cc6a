"""Every loss through every way of the head: one answer, that of full logits in float64.

The reference is plain autograd on [N, V] logits, with nothing of the head in it. Positions that the
mask leaves out hold NaN on purpose. Tiles are a few tokens, so that they cut sequences.
"""

import pytest
import torch
from ways import LOSS_WAYS, moved

import rlkit.tiles
from rlkit.head import Head
from rlkit.objectives import GRPO, LOSS_TYPES, RLOO, Totals, entropy_quantile
from rlkit.parts import order_tokens
from rlkit.tiles import multiply

pytestmark = pytest.mark.slow  # all together

B, T, V, H = 5, 6, 19, 4
FULL = torch.ones(B, T, dtype=torch.bool)
RAGGED = torch.arange(T) < torch.tensor([4, 1, 6, 3, 5])[:, None]
HOLES = torch.tensor([1, 1, 0, 1, 0, 1, 1, 1, 0, 1, 1]).bool().repeat(3)[: B * T].view(B, T)
ONE_EMPTY = RAGGED & (torch.arange(B) != 2)[:, None]
MASKS = dict(full=FULL, ragged=RAGGED, holes=HOLES, one_empty=ONE_EMPTY, all_empty=~FULL)
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.02, torch.float16: 0.002}
"""Of a gradient's error over the largest gradient: of half precision, two roundings."""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def problem(mask, dtype, seed=0):
    """(hidden [N, H], weight, bias, targets) in dtype, and what the objective is told."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    N = int(mask.sum())
    head = [x.to(dtype) for x in (normal(N, H), normal(V, H), normal(V))]
    head.append(torch.randint(V, (N,), generator=generator))
    index = mask.flatten().nonzero().squeeze(1)
    logp, _ = reference_scores(*(x.double() for x in head[:3]), head[3])
    near = in_rows(logp, index, mask, torch.nan)
    batch = dict(mask=mask, advantages=normal(B))
    batch |= {name: near + 0.3 * normal(B, T) for name in ("logp_old", "logp_ref")}
    return head, batch


def reference_scores(hidden, weight, bias, targets):
    log_probs = (hidden @ weight.T + bias).log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs.gather(1, targets[:, None]).squeeze(1), entropy


def in_rows(values, index, mask, elsewhere=0.0):
    flat = values.new_full((mask.numel(),), elsewhere)
    return flat.index_copy(0, index, values).view(mask.shape)


def reference(head, batch, objective):
    """The loss, and the gradients of hidden, weight and bias, all float64."""
    leaves = [x.double().clone().requires_grad_() for x in head[:3]]
    index = batch["mask"].flatten().nonzero().squeeze(1)
    scores = [in_rows(x, index, batch["mask"]) for x in reference_scores(*leaves, head[3])]
    loss, _ = objective(scores[0], entropy=scores[1], **batch)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def result(head, batch, objective, way, tokens, upstream=1.0):
    """The same from a Head whose tiles hold so many tokens, in the inputs' own dtype."""
    hidden, weight, bias, targets = (moved(x.clone(), way.get("backend")) for x in head)
    order = order_tokens(batch["mask"], batch["advantages"], objective)
    place = torch.full((batch["mask"].numel(),), -1)
    place[batch["mask"].flatten()] = torch.arange(len(hidden))
    moved_to = moved(place[order.index], way.get("backend"))
    told = moved(batch | order._asdict(), way.get("backend"))
    itemsize = 8 if hidden.dtype == torch.float64 else 4
    module = Head(torch.nn.Parameter(weight), torch.nn.Parameter(bias), **way)
    module.tile_bytes = tokens * len(weight) * itemsize
    hidden.requires_grad_()
    loss, _ = module(hidden[moved_to], targets[moved_to], objective=objective, **told)
    assert (loss.grad_fn.name() == "GradientsReadyBackward") == (way["mode"] == "fused")
    (loss * upstream).backward()
    found = loss.detach(), hidden.grad, module.weight.grad, module.bias.grad
    assert all(x.dtype == y.dtype for x, y in zip(found[1:], head, strict=False))
    loss, *grads = (x.cpu().double() for x in found)
    return [loss, *(grad / upstream for grad in grads)]


def assert_same(found, wanted, bound, note=None):
    (loss, *grads), (true_loss, *true_grads) = found, wanted
    # log-probs are float32 or float64, whatever the operands
    assert abs(loss - true_loss) <= min(bound, 1e-4) * max(1.0, abs(true_loss)), note
    for grad, true in zip(grads, true_grads, strict=True):
        if true.numel():
            scale = true.abs().max().item()
            scale = max(scale, 1.0) if bound < 1e-4 else scale
            assert (grad - true).abs().max().item() <= bound * scale, note


def make(loss_type, **options):
    extra = dict(dr_grpo={"max_completion_length": T}, cispo={"epsilon_high": 1.3})
    return GRPO(loss_type=loss_type, **extra.get(loss_type, {}), **options)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_loss_and_mask(loss_type, level, beta, dtype):
    objective = make(loss_type, beta=beta, importance_sampling_level=level)
    for name, mask in MASKS.items():
        head, batch = problem(mask, dtype)
        wanted = reference(head, batch, objective)
        for way in ("chunked", "fused"):
            for tokens in (6, 40) if objective.needs_sequences else (1, 4):
                found = result(head, batch, objective, LOSS_WAYS[way], tokens)
                assert_same(found, wanted, BOUNDS[dtype], (way, name, tokens))


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("way", ["triton", "fused triton"])
@pytest.mark.parametrize(
    "objective",
    [GRPO(beta=0.1), GRPO(importance_sampling_level="sequence"), RLOO(entropy_coef=0.3)],
    ids=["tokens", "sequences", "entropy"],
)
def test_triton_gives_the_same(objective, way, dtype):
    for name in ("ragged", "one_empty", "all_empty"):
        head, batch = problem(MASKS[name], dtype)
        wanted = reference(head, batch, objective)
        found = result(head, batch, objective, LOSS_WAYS[way], 6)
        assert_same(found, wanted, BOUNDS[dtype], name)


@pytest.mark.parametrize("way", LOSS_WAYS)
def test_an_entropy_bonus_moves_rows_without_advantage(way):
    objective = GRPO(entropy_coef=0.3)
    head, batch = problem(RAGGED, torch.float64)
    batch["advantages"][1:4] = 0
    wanted = reference(head, batch, objective)
    assert (wanted[1].abs().amax(1) > 0).all()
    assert_same(result(head, batch, objective, LOSS_WAYS[way], 4), wanted, 1e-12, way)


@pytest.mark.parametrize("way", LOSS_WAYS)
def test_the_quantile_of_the_whole_step_over_several_tiles(way):
    objective = GRPO(top_entropy_quantile=0.4, entropy_coef=0.2)
    head, batch = problem(RAGGED, torch.float64)
    wanted = reference(head, batch, objective)
    _, entropy = reference_scores(*head)
    batch["entropy_threshold"] = entropy_quantile(entropy, torch.ones_like(entropy), 0.6)
    assert_same(result(head, batch, objective, LOSS_WAYS[way], 4), wanted, 1e-12, way)


# ---- half precision where numbers are small --------------------------------------------------


def rounding_multiply(left, right, dtype, into=None, add=True):
    """As on CUDA: both operands in dtype."""
    return multiply(left.to(dtype), right.to(dtype), dtype, into, add)


@pytest.mark.parametrize("way", ["chunked", "fused"])
def test_float16_with_a_hundred_thousand_tokens(way, monkeypatch):
    monkeypatch.setattr(rlkit.tiles, "multiply", rounding_multiply)
    rows, width, size = 1000, 100, 64
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator).half()
        for shape in ((rows * width, H), (size, H), (size,))
    )
    targets = torch.randint(size, (rows * width,), generator=generator)
    head = [hidden, weight, bias, targets]
    batch = dict(mask=torch.ones(rows, width, dtype=torch.bool))
    batch |= dict(advantages=torch.randn(rows, generator=generator), logp_old=None)
    wanted = reference(head, batch, GRPO())
    found = result(head, batch, GRPO(), LOSS_WAYS[way], 8000, upstream=2.0**16)
    assert_same(found, wanted, BOUNDS[torch.float16], way)
    for grad, true in zip(found[1:], wanted[1:], strict=True):
        assert (grad - true).abs().max() < 2e-3 * true.abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("way", [way for way in LOSS_WAYS if way != "full"])
def test_gradients_below_float16s_smallest_number(way, dtype, monkeypatch):
    """Of tokens among half a million, under autocast: a logit's gradient is 2e-9, those of all that
    were not chosen add up to as much as the target's."""
    monkeypatch.setattr(rlkit.tiles, "multiply", rounding_multiply)
    head, batch = problem(RAGGED, dtype)
    generator = torch.Generator().manual_seed(1)
    head[1] = (torch.randn(1024, H, generator=generator) / 4 + 1).to(dtype)
    head[2] = torch.zeros(1024, dtype=dtype)
    head[3] = torch.randint(1024, head[3].shape, generator=generator)
    batch |= dict(logp_old=None, logp_ref=None, totals=Totals(tokens=460_800.0, sequences=1800.0))
    wanted, single = reference(head, batch, GRPO()), [x.float() for x in head[:3]]
    with torch.autocast("cuda" if torch.cuda.is_available() else "cpu", dtype):
        found = result([*single, head[3]], batch, GRPO(), LOSS_WAYS[way], 4)
    assert abs(found[0] - wanted[0]) < 1e-6
    # the hidden states that `chunked` is given are of half precision, and their gradients too
    ours = 1 if LOSS_WAYS[way]["mode"] == "fused" else 2
    for grad, true in zip(found[ours:], wanted[ours:], strict=True):
        assert (grad - true).abs().max() < 3 * torch.finfo(dtype).eps * true.abs().max()
