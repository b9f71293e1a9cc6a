"""The Triton kernels: against torch's passes over the same tile, and as ptxas sees them.

Without a GPU they run in Triton's interpreter (conftest.py). Panels and blocks are made small here,
so that a few columns fill several of them.
"""

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from ways import largest_error, random_inputs, scores

from rlkit.head import Head, passes, token_logps
from rlkit.tiles import TORCH, Scores, Shaping, TokenGradient

pytest.importorskip("triton")

from rlkit import kernels  # noqa: E402  it needs triton
from rlkit.kernels import TRITON  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = (torch.bfloat16, torch.float16)
TESTS = Path(__file__).parent


def make_small(patch):
    """A panel of two blocks of eight columns, and four rows to merge at a time."""
    patch.setattr(kernels, "PANEL", 16)
    patch.setattr(kernels, "ROWS", 4)
    patch.setattr(kernels, "blocking", lambda C: dict(BLOCK=8, num_warps=1))


@pytest.fixture
def small(monkeypatch):
    make_small(monkeypatch)


def normal(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def random_targets(R, C):
    return torch.randint(C, (R,), generator=torch.Generator().manual_seed(R + C)).to(DEVICE)


def read(backend, tile, targets, shaping, first=0, with_entropy=True, earlier=None):
    """log_z, target logit and entropy after a tile of products."""
    unseen = Scores.unseen(len(tile), tile)
    seen = unseen if earlier is None else Scores(*(x.clone() for x in earlier))
    backend.read(tile.clone(), targets, shaping, first, seen, with_entropy, "nothing")
    return [seen.log_z, seen.chosen, seen.entropy]


def gradient(backend, tile, targets, shaping, d_logp, d_entropy, dtype, first=0, unit=False):
    """d loss / d tile, [R, C], made in another copy of the tile."""
    log_z, _, entropy = read(TORCH, tile, targets, shaping, first)
    token = TokenGradient.of(shaping, targets, log_z, entropy, d_logp, d_entropy)
    token = token.in_units(dtype)[0] if unit else token
    pieces, factor = backend.gradient(tile.clone(), "products", token, first, dtype)
    assert factor is None and pieces[0][0].start == 0 and pieces[-1][0].stop == tile.shape[1]
    return torch.cat([piece for _, piece in pieces], 1)


# ---- against torch -------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    R=st.integers(1, 5),
    C=st.integers(1, 50),
    first=st.sampled_from([0, 3, 16]),
    softcap=st.sampled_from([None, 1.5]),
    scale=st.sampled_from([1.0, 0.3]),
    temperature=st.sampled_from([1.0, 0.6, "one", "each"]),
    with_entropy=st.booleans(),
    seen_before=st.booleans(),
    seed=st.integers(0, 99),
)
def test_passes_equal_torchs(
    R, C, first, softcap, scale, temperature, with_entropy, seen_before, seed
):
    """On any part of a vocabulary, with or without others before it; targets may lie elsewhere."""
    tile, targets = normal(R, C, seed=seed), random_targets(R, C + first + 3)
    if temperature == "one":
        temperature = torch.tensor([[0.7]], dtype=torch.float64, device=DEVICE).expand(R, 1)
    if temperature == "each":
        temperature = torch.linspace(0.5, 2, R, dtype=torch.float64, device=DEVICE)[:, None]
    shaping = Shaping(scale, softcap, temperature)
    earlier = normal(3, R, seed=seed + 1) if seen_before else None
    d_logp, d_entropy = normal(2, R, seed=seed + 2)
    told = tile, targets, shaping, first, with_entropy, earlier
    upstream = d_logp, d_entropy if with_entropy else None, torch.float64, first
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        found = read(TRITON, *told), [gradient(TRITON, tile, targets, shaping, *upstream)]
    wanted = read(TORCH, *told), [gradient(TORCH, tile, targets, shaping, *upstream)]
    assert largest_error(found[0], wanted[0]) < 1e-12
    assert largest_error(found[1], wanted[1]) < 1e-12


@pytest.mark.parametrize("softcap", [None, 30.0])
def test_long_rows_in_float32(softcap):
    """Two real panels and a tail, logits like a model's; the error is float64's opinion."""
    R, C = 2, 2 * kernels.PANEL + 77
    tile, targets = 4 * normal(R, C), torch.tensor([C - 1, kernels.PANEL], device=DEVICE)
    shaping, (d_logp, d_entropy) = Shaping(1.0, softcap, 1.0), normal(2, R)
    upstream = targets, shaping, d_logp, d_entropy, torch.float64
    exact = read(TORCH, tile, targets, shaping), gradient(TORCH, tile, *upstream)
    upstream = targets, shaping, d_logp.float(), d_entropy.float(), torch.float32
    single = tile.float()
    assert largest_error(read(TRITON, single, targets, shaping), exact[0]) < 1e-5
    found = gradient(TRITON, single, *upstream)
    assert largest_error([found], [exact[1]]) < 5e-6


@pytest.mark.parametrize("R", [0, 1, 5])
def test_number_of_rows(R, small):
    tile, targets, shaping = normal(R, 20), random_targets(R, 20), Shaping(1.0, None, 1.0)
    upstream = targets, shaping, normal(R), None, torch.float64
    for found, wanted in zip(
        (*read(TRITON, tile, targets, shaping), gradient(TRITON, tile, *upstream)),
        (*read(TORCH, tile, targets, shaping), gradient(TORCH, tile, *upstream)),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_what_lies_beside_the_tile_is_not_touched(small):
    """Rows further apart than they are wide; the targets of some lie outside."""
    R, C, stride = 3, 37, 64
    memory = torch.full((R + 2, stride), 7.0, device=DEVICE)
    tile = memory[1:-1, :C]
    tile.copy_(normal(R, C, dtype=torch.float32))
    before, shaping = memory.clone(), Shaping(1.0, None, 1.0)
    targets = torch.tensor([0, C - 1, C + 5], device=DEVICE)
    seen = Scores.unseen(R, tile)
    assert TRITON.read(tile, targets, shaping, 0, seen, True, "logits") == "products"
    assert torch.equal(memory, before)  # one read, no write
    assert seen.chosen[-1] == 0
    for dtype in (torch.float32, *HALF):
        tile.copy_(before[1:-1, :C])
        one = torch.ones(R, device=DEVICE)
        token = TokenGradient.of(shaping, targets, seen.log_z, seen.entropy, one, one)
        pieces, _ = TRITON.gradient(tile, "products", token, 0, dtype)
        outside = torch.ones_like(memory, dtype=torch.bool)
        outside[1:-1, :C] = False
        assert torch.equal(memory[outside], before[outside])
        start, end = (x.data_ptr() for x in (memory[1], memory[-1]))
        assert all(piece.dtype == dtype for _, piece in pieces)
        assert all(start <= piece.data_ptr() < end for _, piece in pieces)  # no copy


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("softcap, with_entropy", [(None, False), (None, True), (1.5, True)])
def test_half_precision_is_written_over_its_own_tile(dtype, softcap, with_entropy, small):
    """Through blocks and panels, so that what is still to be read must not be written over."""
    R, C = 3, 75
    tile = normal(R, C, dtype=torch.float32)
    shaping, (d_logp, d_entropy) = Shaping(0.8, softcap, 0.9), normal(2, R, dtype=torch.float32)
    d_logp /= 1e6  # below float16's smallest number, if it were not for the unit
    d_entropy /= 1e6
    upstream = random_targets(R, C), shaping, d_logp, d_entropy if with_entropy else None, dtype
    found = gradient(TRITON, tile, *upstream, unit=True)
    wanted = gradient(TORCH, tile, *upstream, unit=True)
    assert found.dtype == dtype and wanted.dtype == torch.float32
    error = (found.float() - wanted).abs()
    assert (error <= torch.finfo(dtype).eps / 2 * wanted.abs() * 1.001 + 1e-7).all()
    assert wanted.abs().max() > (1.0 if dtype == torch.float16 else 0.0)


def test_a_panel_of_nothing_but_minus_infinity_counts_for_nothing(small):
    """A model's padded vocabulary, masked by its bias."""
    R, C = 2, 70
    tile, targets = normal(R, C), torch.tensor([3, 40], device=DEVICE)
    shaping = Shaping(1.0, None, 1.0)
    wanted = read(TORCH, tile[:, 16:48], targets - 16, shaping)
    tile[:, :16] = tile[:, 48:] = -torch.inf
    targets[0] = 20
    found = read(TRITON, tile, targets, shaping)
    assert largest_error(found[::2], wanted[::2]) < 1e-12
    assert found[1][0] == tile[0, 20]


def test_not_a_number_is_not_hidden(small):
    tile, targets = normal(2, 70), torch.tensor([3, 40], device=DEVICE)
    tile[1, 66] = torch.nan
    log_z, _, entropy = read(TRITON, tile, targets, Shaping(1.0, None, 1.0))
    assert log_z.isnan().tolist() == entropy.isnan().tolist() == [False, True]


def test_results_repeat_exactly_and_do_not_depend_on_the_other_rows(small):
    tile, targets = normal(7, 61, dtype=torch.float32), random_targets(7, 61)
    first, second = (read(TRITON, tile, targets, Shaping(1.0, None, 1.0)) for _ in range(2))
    alone = read(TRITON, tile[5:6], targets[5:6], Shaping(1.0, None, 1.0))
    for a, b, c in zip(first, second, alone, strict=True):
        assert torch.equal(a, b) and torch.equal(a[5:6], c)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offsets_past_two_to_the_31(dtype, monkeypatch, small):
    """Row 2 starts there. Without a GPU memory is promised, never filled: a few pages are used."""
    R, C, stride = 3, 20, 2**30 + 16
    size = 2**31 + 2 * stride + C  # as much again before the tile: an offset that wraps ends there
    if DEVICE == "cuda":
        memory = torch.empty(size, device=DEVICE)
    else:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        try:
            mapped = mmap.mmap(-1, 4 * size, flags=flags)
        except OSError as error:
            pytest.skip(f"no address space: {error}")
        memory = torch.frombuffer(mapped, dtype=torch.float32)
        # which would copy all of it onto itself
        executor = sys.modules["triton.runtime.interpreter"].GridExecutor
        monkeypatch.setattr(executor, "_restore_args_dev", lambda *args: None)
    tile = memory.as_strided((R, C), (stride, 1), 2**31)
    values, targets = normal(R, C, dtype=torch.float32), random_targets(R, C)
    tile.copy_(values)
    shaping, one = Shaping(1.0, None, 1.0), torch.ones(R, device=DEVICE)
    seen = Scores.unseen(R, values)
    TRITON.read(tile, targets, shaping, 0, seen, True, "nothing")
    wanted = read(TORCH, values, targets, shaping)
    assert largest_error([seen.log_z, seen.chosen, seen.entropy], wanted) < 1e-5
    token = TokenGradient.of(shaping, targets, seen.log_z, seen.entropy, one, None)
    pieces, _ = TRITON.gradient(tile, "products", token, 0, dtype)
    found = torch.cat([piece.clone() for _, piece in pieces], 1)
    wanted = gradient(TORCH, values, targets, shaping, one, None, torch.float32)
    assert (found - wanted).abs().max() < (1e-6 if dtype == torch.float32 else 5e-3)


@pytest.mark.skipif(DEVICE != "cuda", reason="the interpreter runs rows one by one")
def test_more_rows_than_another_grid_axis_takes():
    tile, targets = normal(70_001, 8, dtype=torch.float32), random_targets(70_001, 8)
    shaping, one = Shaping(1.0, None, 1.0), torch.ones(70_001, device=DEVICE)
    found, wanted = (read(b, tile, targets, shaping) for b in (TRITON, TORCH))
    assert largest_error(found, wanted) < 1e-5
    found, wanted = (
        gradient(b, tile, targets, shaping, one, None, torch.float32) for b in (TRITON, TORCH)
    )
    assert largest_error([found], [wanted]) < 1e-6


@pytest.mark.skipif(DEVICE != "cuda", reason="only a GPU can be waited for")
@pytest.mark.parametrize("mode", ["chunked", "fused"])
def test_nothing_waits_for_the_gpu(mode):
    from rlkit.objectives import GRPO

    def step():
        loss, _ = head(
            hidden, targets, objective=GRPO(entropy_coef=0.1), index=index, mask=mask,
            advantages=advantages, row_lengths=(8,) * 4, live=32,
        )  # fmt: skip
        loss.backward()

    head = Head(torch.nn.Parameter(normal(500, 16, dtype=torch.bfloat16)), mode=mode)
    head.tile_bytes = 40_000
    hidden = normal(32, 16, dtype=torch.bfloat16).requires_grad_()
    targets, index = random_targets(32, 500), torch.arange(32, device=DEVICE)
    mask, advantages = torch.ones(4, 8, device=DEVICE), normal(4, dtype=torch.float32)
    step()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# ---- who takes them ------------------------------------------------------------------------


def test_auto_takes_triton_on_a_gpu_and_torch_elsewhere(monkeypatch):
    on_gpu, on_cpu = SimpleNamespace(is_cuda=True), torch.zeros(1)
    assert passes("auto", on_gpu) is TRITON
    assert passes("auto", on_cpu) is passes("torch", on_gpu) is TORCH
    with FakeTensorMode():
        assert passes("auto", torch.zeros(1)) is TORCH
    monkeypatch.setitem(sys.modules, "triton", None)
    assert passes("auto", on_gpu) is TORCH


def test_triton_without_a_gpu_or_an_interpreter_is_refused(monkeypatch):
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    inputs, targets, *_ = random_inputs(2, 5, 3)
    with pytest.raises(ValueError, match="backend='triton' needs tensors on a GPU, not on 'cpu'"):
        token_logps(targets=targets, **inputs, backend="triton")


def test_a_missing_triton_is_named_with_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    inputs, targets, *_ = random_inputs(2, 5, 3)
    with pytest.raises(ImportError, match="backend='triton' needs the package 'triton': pip"):
        token_logps(targets=targets, **inputs, backend="triton")


def test_full_logits_are_torchs_alone():
    weight = torch.nn.Parameter(torch.zeros(5, 3))
    with pytest.raises(ValueError, match="backend='triton' is unknown"):
        Head(weight, mode="full", backend="triton")
    inputs, targets, *_ = random_inputs(2, 5, 3)
    wanted = scores(inputs, targets, mode="full")
    # all logits would fit, but asked for Triton, "auto" leaves `full` alone
    for mode in ("auto", "chunked"):
        found = scores(inputs, targets, mode=mode, backend="triton")
        assert largest_error(found, wanted) < 1e-12
    assert "backend=triton" in repr(Head(weight, backend="triton"))


# ---- compiled for GPUs that are not here -----------------------------------------------------


@pytest.fixture(scope="module")
def binaries(tmp_path_factory):
    """What offline.py says of every kernel as the launchers call it."""
    folder = tmp_path_factory.mktemp("kernels")
    known = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    known |= dict(TRITON_CACHE_DIR=str(folder / "cache"), PYTHONPATH=str(TESTS.parent))
    told = [sys.executable, TESTS / "offline.py", folder]
    run = subprocess.run(told, env=known, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


KERNELS = {"read_panel", "merge_panels", "differentiate_panel"}


@pytest.mark.slow
@pytest.mark.parametrize("arch", [75, 80, 86, 89, 90, 100, 120, "gfx942"])
def test_every_kernel_compiles_for(arch, binaries):
    assert {b["kernel"] for b in binaries if b["arch"] == arch} == KERNELS


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
def test_nothing_spills(arch, binaries):
    """In every dtype, flag and width that a launcher can ask for."""
    found = [b for b in binaries if b["arch"] == arch]
    assert len(found) > 60
    for binary in found:
        assert binary["stack"] == binary["local"] == 0, binary
        assert binary["shared"] <= 1024, binary  # so that it does not limit the programs at work


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
def test_registers_leave_room_for_many_warps(arch, binaries):
    """Of 65,536 in a multiprocessor: in float32, with 64 for each thread, four programs of 8
    warps are at work at a time and hide each other's waiting."""
    found = [b["reg"] for b in binaries if b["arch"] == arch and not b["double"]]
    assert found and max(found) <= 64


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
def test_threads_wait_for_each_other_before_they_write_over_the_tile(arch, binaries):
    """The interpreter, which runs a program in one piece, cannot show that they must."""
    found = [b for b in binaries if b["arch"] == arch and b["kernel"] == "differentiate_panel"]
    assert {b["halved"] for b in found} == {True, False}
    for binary in found:
        assert binary["waits"] == binary["halved"], binary
