"""The clip, GAE and loss-weight explorers: their numbers, and what they refuse."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlkit.advantages import gae, group_relative
from rlkit.rollout import Rollout
from rlkit.widgets.clip import RATIOS, ClipExplorer
from rlkit.widgets.gae import END, GAEExplorer, Strip, strips
from rlkit.widgets.weight import WeightExplorer, loudness

# ---- clip


@pytest.mark.parametrize(
    ("start", "gain", "gradient"),
    [
        ({"ratio": 1.0}, 1.0, -1.0),
        ({"ratio": 1.5}, 1.2, 0.0),  # far enough
        ({"ratio": 0.5}, 0.5, -0.5),  # the way back
        ({"ratio": 1.5, "epsilon_high": 0.6}, 1.5, -1.5),
        ({"ratio": 1.5, "advantage": -1.0}, -1.5, 1.5),  # the way back
        ({"ratio": 0.5, "advantage": -1.0}, -0.8, 0.0),
        ({"ratio": 2.5, "advantage": -1.0, "two_sided": True}, -2.0, 0.0),
        ({"ratio": 2.5, "advantage": -1.0}, -2.5, 2.5),
    ],
)
def test_clip_by_hand(start, gain, gradient):
    found = ClipExplorer(**start).numbers()
    assert found["gain"] == pytest.approx(gain)
    assert found["loss"] == pytest.approx(-gain)
    assert found["gradient"] == pytest.approx(gradient)
    assert found["gain"] == pytest.approx(min(found["free"], found["near"]))


@given(
    st.floats(0.01, 2.99),
    st.floats(-1.5, 1.5).filter(lambda a: abs(a) > 0.01),
    st.floats(0.05, 0.6),
    st.floats(0.05, 1.0),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_shades_are_where_the_gradient_is_0(ratio, advantage, epsilon, epsilon_high, two_sided):
    start = {"advantage": advantage, "epsilon": epsilon, "epsilon_high": epsilon_high}
    # delta is meant for far ratios: beyond the clip
    explorer = ClipExplorer(ratio=ratio, two_sided=two_sided, delta=2.5, **start)
    edges = [edge for pair in explorer.silent() for edge in pair]
    if min(abs(ratio - edge) for edge in edges) < 1e-6:
        return
    inside = any(low < ratio < high for low, high in explorer.silent())
    assert (explorer.numbers()["gradient"] == 0) == inside


def test_clip_has_finite_numbers_at_every_end():
    for ratio in RATIOS:
        for advantage in (-1.5, 0.0, 1.5):
            found = ClipExplorer(ratio=ratio, advantage=advantage).numbers()
            assert all(map(math.isfinite, found.values()))


# ---- GAE

WRONG = Strip("27+58=", ["8", "4", END], 0.0, [0.6, 0.7, 0.1], baseline=0.5)


def test_gae_by_hand():
    found = GAEExplorer([WRONG], lam=0.0).numbers()
    assert found["at"] == 1 and found["fall"] == pytest.approx(0.6)
    assert [found[k] for k in ("first", "advantage", "last")] == pytest.approx([0.1, -0.6, -0.1])
    found = GAEExplorer([WRONG], lam=1.0).numbers()
    assert [found[k] for k in ("first", "advantage", "last")] == pytest.approx([-0.6, -0.7, -0.1])


def test_the_price_of_kl_is_in_the_advantages():
    row = Strip("1+9=", ["1", END], 1.0, [0.5, 0.5], kl=[0.5, 1.0])
    plain, priced = (GAEExplorer([row], lam=0.0, beta=beta).advantages() for beta in (0.0, 0.1))
    torch.testing.assert_close(plain - priced, torch.tensor([0.05, 0.1]))


def test_colours_and_sliders_are_those_of_what_is_given():
    names = {control.name for control in GAEExplorer([WRONG]).controls}
    assert names == {"gamma", "lam", "colour"}
    row = Strip("1+9=", ["1", END], 1.0, [0.5, 0.5], kl=[0.5, 1.0], ratio=[1.0, 2.0])
    explorer = GAEExplorer([row, row])
    assert {control.name for control in explorer.controls} >= {"beta", "completion"}
    explorer.set(colour="ratio", completion=2)
    with pytest.raises(ValueError, match="entropy"):
        explorer.set(colour="entropy")
    with pytest.raises(ValueError, match="no completion"):
        GAEExplorer([])


def test_strips_are_rows_of_a_rollout():
    from rlkit.policy import load_tokenizer

    tokenizer = load_tokenizer("adder")
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    one, nine, plus, equals = tokenizer.convert_tokens_to_ids(list("19+="))
    rollout = Rollout(
        prompt_ids=torch.tensor([[pad, one, plus, nine, equals], [nine, one, plus, nine, equals]]),
        prompt_mask=torch.tensor([[False, True, True, True, True], [True] * 5]),
        completion_ids=torch.tensor([[one, eos, pad], [one, nine, eos]]),
        mask=torch.tensor([[True, True, False], [True, True, True]]),
        finished=torch.tensor([True, True]),
        rewards=torch.tensor([0.0, 1.0]),
    )
    values = torch.tensor([[0.5, 0.25, 9.0], [0.5, 0.75, 0.875]])
    baseline = torch.tensor([1.0, 0.0])
    short, long = strips(rollout, tokenizer, values, [0, 1], baseline=baseline, entropy=values)
    assert short == Strip("1+9=", ["1", END], 0.0, [0.5, 0.25], 1.0, entropy=[0.5, 0.25])
    assert long.prompt == "91+9=" and long.tokens == ["1", "9", END]
    rewards = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    expected, _ = gae(rewards, values, rollout.mask, 0.9, 0.8)
    explorer = GAEExplorer([short, long], gamma=0.9, lam=0.8)
    for i, length in enumerate((2, 3)):
        explorer.set(completion=i + 1)
        torch.testing.assert_close(explorer.advantages(), expected[i, :length])


# ---- loss weight


@pytest.mark.parametrize(("p", "G"), [(0.03, 8), (0.5, 8), (0.3, 2), (0.9, 16)])
def test_loudness_is_what_drawn_groups_give(p, G):
    noise = torch.Generator().manual_seed(G)
    rewards = (torch.rand(40_000, G, generator=noise) < p).double()
    dead = (rewards.std(1) == 0).double().mean().item()
    for way, exact in zip(("none", "group"), loudness(p, G), strict=False):
        drawn = group_relative(rewards.flatten(), G, way, eps=1e-9).clamp(min=0).mean().item()
        assert drawn == pytest.approx(exact, rel=0.03)
    assert dead == pytest.approx(loudness(p, G)[2], abs=0.01)


def test_the_std_makes_hard_and_mastered_prompts_louder():
    for p in (0.03, 0.97):
        found = WeightExplorer(p=p, G=8).numbers()
        assert found["share_divided"] > 1.2 * found["share"]
    assert WeightExplorer(p=0.5).numbers()["share"] == 1.0


# ---- all


@pytest.mark.parametrize("explorer", [ClipExplorer(), GAEExplorer([WRONG]), WeightExplorer()])
def test_the_twin_says_what_the_numbers_say(explorer):
    title = explorer.static().get_suptitle()
    assert any(f"{abs(x):.2f}" in title for x in explorer.numbers().values())
