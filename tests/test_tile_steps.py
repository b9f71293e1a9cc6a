"""The tile stepper's frames: right numbers at every step, and bytes that a meter finds too."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlkit.widgets.tile_steps import MODES, Work, block_frames, frames
from rlkit.widgets.tiles import BlockStepper, TileStepper


def work(N=4, V=6, H=2, seed=0):
    noise = torch.Generator().manual_seed(seed)
    hidden, weight = (torch.randn(n, H, generator=noise) for n in (N, V))
    return Work.of(hidden, weight, torch.randint(V, (N,), generator=noise))


def by_autograd(work):
    sides = [x.clone().requires_grad_() for x in (work.hidden, work.weight)]
    logp = (sides[0] @ sides[1].T).log_softmax(-1)
    loss = -logp.gather(1, work.targets[:, None]).mean()
    return torch.autograd.grad(loss, sides)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(2, 8), st.integers(1, 48), st.integers(0, 99))
def test_every_mode_ends_with_the_gradients_of_autograd(N, V, budget, seed):
    given = work(N, V, seed=seed)
    d_hidden, d_weight = by_autograd(given)
    logp = given.logp.gather(1, given.targets[:, None]).squeeze(1)
    for mode in MODES:
        last = frames(given, mode, budget)[-1]
        assert torch.tensor(last.d_hidden).view(N, -1) == pytest.approx(d_hidden, abs=2e-5)
        assert torch.tensor(last.d_weight).view(V, -1) == pytest.approx(d_weight, abs=2e-5)
        assert last.held.keys() - {"scores"} == {"d hidden", "d weight"}
        if mode in ("again", "fused"):
            z, m, s = (torch.tensor(x) for x in (last.chosen, last.largest, last.total))
            assert z - m - s.log() == pytest.approx(logp, abs=1e-5)


def test_the_most_bytes_of_each_mode():
    given = work(8, 10)
    most = {m: max(f.bytes for f in frames(given, m, 10)) for m in MODES}
    gradients = 4 * (8 + 10) * 2
    assert most["full"] == 3 * 4 * 8 * 10
    # the last forward tile: its logits beside everybody's log-probs
    assert most["at the end"] >= 4 * 8 * 10 + 4 * 10
    assert most["fused"] == gradients + 4 * 10 + 4 * 3
    assert most["again"] == gradients + 4 * 9 + 4 * 3 * 8


def test_only_one_tile_is_held_where_tiles_are_not_kept():
    given = work(6, 8)
    for mode in ("again", "fused"):
        for frame in frames(given, mode, 16):
            assert len(frame.kinds.replace(" ", "")) <= 16
    kept = [f for f in frames(given, "at the end", 16) if f.forward][-1]
    assert kept.kinds == "p" * 48


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 5), st.integers(0, 99))
def test_rows_read_by_blocks(N, V, block, seed):
    noise = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(N, V, generator=noise)
    targets = torch.randint(V, (N,), generator=noise)
    last = block_frames(logits, targets, block, -torch.inf)[-1]
    z, m, s = (torch.tensor(x) for x in (last.chosen, last.largest, last.total))
    expected = logits.log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    assert z - m - s.log() == pytest.approx(expected, abs=1e-4)


def test_padding_with_zeros_weighs_something():
    logits, targets = torch.full((1, 3), -2.0), torch.tensor([0])
    right = block_frames(logits, targets, 2, -torch.inf)[-1]
    wrong = block_frames(logits, targets, 2, 0.0)[-1]
    assert right.largest == [-2.0] and right.total == pytest.approx([3.0])
    assert wrong.largest == [0.0] and wrong.total[0] > 1


def test_a_stepper_says_what_is_too_large_and_stays_within_a_run():
    with pytest.raises(ValueError, match="at most 80"):
        TileStepper(torch.zeros(20, 2), torch.zeros(8, 2), torch.zeros(20, dtype=torch.int64))
    given = work()
    explorer = TileStepper(given.hidden, given.weight, given.targets, mode="full")
    explorer.set(step=18)
    assert explorer.numbers() == {"bytes": 80.0, "most": 288.0}
    assert explorer.static().axes


def test_a_block_stepper_shows_the_edge():
    explorer = BlockStepper(torch.zeros(1, 3), torch.tensor([2]), block=2, step=3)
    assert explorer.data["cells"]["z"] == [[0.0, 0.0, 0.0, None]]
    assert "1 beyond the edge" in explorer.seen[-1].says
    assert explorer.static().axes
