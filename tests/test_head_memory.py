"""What the head holds while it works: gradients, and one tile.

Peaks are counted from the allocator's own events, which see what operations make inside themselves.
"""

import pytest
import torch
from dispatch import allocations
from ways import leaf, random_inputs, run, training_call

from rlkit.head import Head, token_logps
from rlkit.objectives import GRPO, RLOO
from rlkit.parts import order_tokens

pytestmark = pytest.mark.slow  # all together


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- log-probs for any loss


@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_chunked_memory_is_gradients_and_one_tile_budget(entropy, softcap):
    V, H, tile = 4096, 32, 2**18
    options = dict(entropy=entropy, logit_softcap=softcap, tile_bytes=tile)
    peaks = {N: allocations(training_call(N, V, H, **options)) for N in (256, 1024)}
    for N, (peak, largest) in peaks.items():
        per_token = 64 * N  # vectors: log_z, entropy, coefficients
        assert peak < 4 * V * H + 4 * N * H + 1.1 * tile + per_token
        assert largest <= 4 * V * H < 4 * N * V
    grown = peaks[1024][0] - peaks[256][0]
    assert grown <= 768 * (4 * H + 64)  # O(N H), where logits would add 12 MiB
    full_peak, _ = allocations(training_call(256, V, H, mode="full", entropy=entropy))
    assert full_peak > 2 * 4 * 256 * V  # the instrument sees logits where there are some


@pytest.mark.parametrize("entropy", [True, False])
def test_forward_alone_holds_one_tile_budget(entropy):
    inputs, targets, *_ = random_inputs(256, 4096, 8, torch.float32)
    tile, options = 2**18, dict(entropy=entropy, targets=targets)
    peak, _ = allocations(lambda: token_logps(**inputs, **options, tile_bytes=tile))
    assert tile / 2 < peak < 1.2 * tile


def test_a_frozen_weight_allocates_no_gradient():
    N, V, H, tile = 64, 8192, 64, 2**16
    _, largest = allocations(training_call(N, V, H, train=("hidden",), tile_bytes=tile))
    assert largest <= tile < 4 * V * H
    inputs, targets, d_logp, d_entropy = random_inputs(N, V, H)
    hidden = leaf(inputs["hidden"])
    logp, entropy = token_logps(hidden, inputs["weight"], targets, tile_bytes=tile)
    ((logp * d_logp).sum() + (entropy * d_entropy).sum()).backward()
    _, _, d_hidden, _ = run(inputs, targets, d_logp, d_entropy, tile_bytes=tile)
    assert torch.equal(hidden.grad, d_hidden)


def test_a_bfloat16_weight_needs_no_float32_copy():
    N, V, H, tile = 64, 8192, 64, 2**16
    inputs, targets, *_ = random_inputs(N, V, H, torch.bfloat16)
    inputs = {key: value.requires_grad_() for key, value in inputs.items()}

    def call():
        token_logps(targets=targets, **inputs, tile_bytes=tile)[0].sum().backward()

    peak, largest = allocations(call)
    assert largest == 2 * V * H  # the gradient itself
    assert peak < 2 * V * H + 2.7 * tile


# ---- a loss


def training_step(N, V, H, mode="fused", frozen=False, objective=None, dtype=None, **options):
    """Forward and backward of a loss of N tokens in full rows."""
    torch.manual_seed(0)
    hidden = torch.randn(N, H).to(dtype).requires_grad_()
    weight = torch.nn.Parameter((torch.randn(V, H) / H**0.5).to(dtype), requires_grad=not frozen)
    head, width = Head(weight, mode=mode, **options), 64
    rows, targets = N // width, torch.randint(V, (N,))
    batch = dict(mask=torch.ones(rows, width, dtype=torch.bool), advantages=torch.randn(rows))
    objective = objective or GRPO()
    batch |= order_tokens(batch["mask"], batch["advantages"], objective)._asdict()
    batch["logp_old"] = torch.full((rows, width), -11.0)

    def call():
        hidden.grad = weight.grad = None
        head(hidden, targets, objective=objective, **batch)[0].backward()

    return call


@pytest.mark.parametrize("softcap, entropy_coef", [(None, 0.0), (5.0, 0.0), (5.0, 0.1)])
def test_fused_memory_is_gradients_and_a_tile(softcap, entropy_coef):
    V, H, tile_bytes = 4096, 32, 2**20
    options = dict(tile_bytes=tile_bytes, logit_softcap=softcap)
    options["objective"] = GRPO(entropy_coef=entropy_coef)
    peaks = {N: allocations(training_step(N, V, H, **options)) for N in (256, 1024)}
    for N, (peak, largest) in peaks.items():
        assert peak < 4 * V * H + 4 * N * H + 1.25 * tile_bytes + 512 * N
        assert largest <= tile_bytes
    assert peaks[1024][0] - peaks[256][0] <= 768 * (4 * H + 256)  # logits would add 12 MiB
    # the instrument works
    assert allocations(training_step(256, V, H, mode="full"))[0] > 2 * 4 * 256 * V


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_weight_allocates_no_gradient_and_no_copy(dtype):
    N, V, H, tile_bytes = 128, 8192, 64, 2**20
    options = dict(frozen=True, dtype=dtype, tile_bytes=tile_bytes)
    peak, largest = allocations(training_step(N, V, H, **options))
    assert peak < 4 * N * H + 1.25 * tile_bytes + 512 * N < 4 * V * H
    assert largest <= tile_bytes


@pytest.mark.parametrize("mode, objective", [("fused", RLOO()), ("chunked", GRPO())])
def test_memory_at_the_size_of_the_bar(mode, objective):
    V, H, N = 65_536, 512, 1024
    peak, _ = allocations(training_step(N, V, H, mode, objective=objective))
    floor = 4 * V * H + 4 * N * H + 2**26
    assert peak < 1.25 * floor


@pytest.mark.parametrize("mode", ["fused", "chunked"])
def test_memory_beyond_gradients_is_flat_in_the_number_of_tokens(mode):
    V, H, tile_bytes = 4096, 16, 2**22  # 256 tokens
    beyond = []
    for N in (512, 2048, 8192):
        peak, _ = allocations(training_step(N, V, H, mode, tile_bytes=tile_bytes))
        beyond.append(peak - 4 * V * H - 4 * N * H)
    assert beyond[0] > tile_bytes / 2
    assert max(beyond) < 1.1 * beyond[0]  # logits would make it 16 times as much


@pytest.mark.skipif(torch.cuda.is_available(), reason="the events are a CPU's")
@pytest.mark.parametrize("mode", ["fused", "chunked"])
def test_triton_holds_a_tile_and_nothing_beside_it(mode):
    pytest.importorskip("triton")
    N, V, H, tile_bytes = 128, 512, 8, 2**16
    options = dict(backend="triton", tile_bytes=tile_bytes)
    peak, largest = allocations(training_step(N, V, H, mode, **options))
    assert largest <= tile_bytes
    assert peak < 4 * V * H + 4 * N * H + tile_bytes + 160 * N
