"""The explorers without a page: their numbers, what they refuse, what a notebook gets to see.

A new explorer is one more line in MAKERS.
"""

import base64
import json

import numpy as np
import pytest
import torch
from parabola import Parabola

from rlkit.advantages import leave_one_out
from rlkit.widgets import explorer as base
from rlkit.widgets.baseline import DRAWS, KINDS, SIZES, BaselineExplorer, slopes
from rlkit.widgets.beta import BetaExplorer
from rlkit.widgets.explorer import Slider, floats, widget_class
from rlkit.widgets.kl import KLExplorer
from rlkit.widgets.normaliser import NormaliserExplorer
from rlkit.widgets.shift import ShiftExplorer
from rlkit.widgets.tiles import BlockStepper, TileStepper


def pool(shift=0.0):
    """512 answers, 40 % of them right, with slopes that follow the reward."""
    noise = np.random.default_rng(1).normal(size=512)
    right = (np.arange(512) % 5 < 2).astype(float)
    return right + shift, 3 * right + noise


MAKERS = {
    "parabola": Parabola,
    "baseline": lambda: BaselineExplorer([1.0, 0.0, 0.0, 0.5], pool=pool(), guess=0.4),
    "baseline group": lambda: BaselineExplorer([1.0, 0.0, 0.0, 0.5]),
    "shift": lambda: ShiftExplorer([1.0, 0.0, 0.0], [1.0, 2.0, 0.0]),
    "kl": KLExplorer,
    "normaliser": NormaliserExplorer,
    "beta": lambda: BetaExplorer(beta="0"),
    "tiles": lambda: TileStepper(torch.eye(4), torch.ones(6, 4), torch.arange(4), step=7),
    "blocks": lambda: BlockStepper(torch.eye(2, 7), torch.tensor([5, 0]), block=4),
}


@pytest.fixture(params=MAKERS, ids=str)
def explorer(request):
    return MAKERS[request.param]()


# --- what all share


def test_the_static_twin_is_on_white_and_named_by_its_finding(explorer):
    pytest.importorskip("matplotlib")
    fig = explorer.static()
    assert fig.get_facecolor() == (1, 1, 1, 1)
    assert len(fig.get_suptitle()) > 10
    labels = [text for ax in fig.axes for text in (ax.get_xlabel(), ax.get_ylabel())]
    assert any(labels)


def test_a_first_value_and_a_moved_one_are_inside_or_refused_in_words(explorer):
    slider = next(c for c in explorer.controls if isinstance(c, Slider))
    assert explorer.set(**{slider.name: slider.high}).values[slider.name] == slider.high
    with pytest.raises(ValueError, match="outside of the slider's range"):
        explorer.set(**{slider.name: slider.high + 1})
    with pytest.raises(ValueError, match="there is no control 'slop'"):
        explorer.set(slop=1)
    assert explorer.values[slider.name] == slider.high


def test_moving_a_slider_moves_the_numbers(explorer):
    slider = next(c for c in explorer.controls if isinstance(c, Slider))
    first = explorer.set(**{slider.name: slider.low}).numbers()
    assert explorer.set(**{slider.name: slider.high}).numbers() != first


def test_the_page_asks_nothing_from_outside(explorer):
    pytest.importorskip("anywidget")
    script = widget_class(explorer.script)._esm
    assert "http" not in str(script) and "import " not in str(script)


def test_what_the_page_gets_is_json_and_bytes(explorer):
    rest = {k: v for k, v in explorer.data.items() if not isinstance(v, bytes)}
    assert json.loads(json.dumps(rest)) == rest


def test_values_of_the_widget_are_the_explorers(explorer):
    pytest.importorskip("anywidget")
    slider = next(c for c in explorer.controls if isinstance(c, Slider))
    explorer.widget.values = explorer.values | {slider.name: slider.high}
    assert explorer.values[slider.name] == slider.high
    explorer.set(**{slider.name: slider.low})
    assert explorer.widget.values[slider.name] == slider.low


def test_a_change_in_the_page_is_answered_by_python():
    pytest.importorskip("anywidget")

    class Answering(Parabola):
        def changed(self):
            self.data = self.data | {"power": self.values["slope"] * 10}

    answering = Answering()
    answering.widget.values = answering.values | {"slope": 2.0}
    assert answering.widget.data["power"] == 20.0


def test_a_choice_outside_its_words_is_refused():
    with pytest.raises(ValueError, match="way='left' is not one of up, down"):
        Parabola(way="left")


@pytest.mark.parametrize("name", ["RLKIT_FAST", "RLKIT_FOREGROUND"])
def test_where_no_page_answers_a_cell_shows_the_picture(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    bundle = shown(Parabola(), monkeypatch)
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == "Parabola: end 2, first 0.25"
    assert not any("widget" in kind for kind in bundle)


def test_without_anywidget_a_cell_shows_the_picture(monkeypatch):
    monkeypatch.setattr(base, "find_spec", lambda name: None)
    for name in ("RLKIT_FAST", "RLKIT_FOREGROUND"):
        monkeypatch.delenv(name, raising=False)
    assert "image/png" in shown(Parabola(), monkeypatch)


def test_elsewhere_it_shows_the_widget(monkeypatch):
    pytest.importorskip("anywidget")
    for name in ("RLKIT_FAST", "RLKIT_FOREGROUND"):
        monkeypatch.delenv(name, raising=False)
    assert "application/vnd.jupyter.widget-view+json" in shown(Parabola(), monkeypatch)


def shown(explorer, monkeypatch):
    """The bundle that a cell with this explorer as its value displays."""
    display = pytest.importorskip("IPython.display")
    seen = []
    monkeypatch.setattr(display, "display", lambda bundle, raw: seen.append(bundle))
    explorer._ipython_display_()
    return seen[0]


def test_floats_are_little_endian_row_by_row():
    assert floats(torch.tensor([[1.0, 2.0], [3.0, 4.0]])) == np.arange(1, 5, dtype="<f4").tobytes()


# --- the baseline explorer


def test_baselines_and_advantages_are_leave_one_outs():
    rewards = [1.0, 0.0, 0.25, 0.5]
    numbers = BaselineExplorer(rewards, shift=3.0).numbers()
    expected = leave_one_out(torch.tensor(rewards) + 3, 4)
    found = [numbers[f"advantage {i}"] for i in range(4)]
    assert found == pytest.approx(expected.tolist(), abs=1e-6)
    assert numbers["baseline 0"] == pytest.approx(3.25)


def test_the_plain_mean_is_leave_one_out_made_shorter():
    explorer = BaselineExplorer([1.0, 0.0], pool=pool(), shift=2.0)
    for size in SIZES:
        loo, mean = (explorer.estimates(size, kind) for kind in ("loo", "mean"))
        assert mean == pytest.approx(loo * (size - 1) / size, abs=1e-9)


def test_unbiased_ones_are_centred_on_the_truth_and_a_shift_widens_only_no_baseline():
    explorer = BaselineExplorer([1.0, 0.0], pool=pool())
    plain = {size: explorer.measured(size) for size in SIZES}
    explorer.set(shift=4.0)
    for size in SIZES:
        shifted = explorer.measured(size)
        for kind in ("none", "loo"):
            error = shifted[kind]["width"] / DRAWS**0.5
            assert abs(shifted[kind]["centre"] - 1) < 4 * error
        assert shifted["loo"] == pytest.approx(plain[size]["loo"], abs=1e-9)
        assert shifted["none"]["width"] > 2 * plain[size]["none"]["width"]


def test_the_pools_own_shift_changes_nothing():
    a, b = (BaselineExplorer([1.0, 0.0], pool=pool(shift)) for shift in (0.0, 7.0))
    for kind in set(KINDS) - {"none"}:
        assert a.measured(4)[kind] == pytest.approx(b.measured(4)[kind], abs=1e-4)


def test_it_refuses_a_pool_without_a_gradient_and_odd_groups():
    with pytest.raises(ValueError, match="are all its rewards equal"):
        BaselineExplorer([1.0, 0.0], pool=(np.ones(8), np.arange(8.0)))
    with pytest.raises(ValueError, match="one reward and one slope"):
        BaselineExplorer([1.0, 0.0], pool=(np.ones(8), np.arange(9.0)))
    with pytest.raises(ValueError, match="a group of 2 to 6"):
        BaselineExplorer([1.0])


def test_slopes_are_the_projected_gradients_and_leave_the_weights_alone():
    torch.manual_seed(0)
    weight = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    features = torch.randn(6, 3, dtype=torch.float64)
    chosen, rewards = torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([1.0, 0, 0, 1, 0, 0])

    def logp():
        return (features @ weight).log_softmax(-1).gather(1, chosen[:, None]).squeeze(1)

    each = [torch.autograd.grad(logp()[i], weight)[0] for i in range(6)]
    centred = (rewards - rewards.mean()).double()
    direction = sum(a * g for a, g in zip(centred, each, strict=True)) / 6
    expected = torch.stack([(g * direction).sum() / direction.norm() for g in each])
    before = weight.detach().clone()
    assert torch.allclose(slopes([weight], logp, rewards), expected, atol=1e-6)
    assert torch.equal(weight, before)


# --- the shift explorer


def test_a_shift_widens_the_steps_and_a_baseline_takes_it_back():
    explorer = ShiftExplorer([1.0, 0.0, 0.0], [1.0, 2.0, 0.0])
    alone = explorer.numbers()["ratio"]
    far = explorer.set(shift=4.0).numbers()["ratio"]
    back = explorer.set(baseline=True).numbers()["ratio"]
    assert far > 3 * alone and back < 1.1 * alone
    assert back == pytest.approx(explorer.set(shift=0.0).numbers()["ratio"])


def test_steps_average_to_the_exact_gradient():
    explorer = ShiftExplorer([1.0, 0.0, 0.0], [1.0, 2.0, 0.0], shift=1.0, count="64")
    logits = torch.tensor([1.0, 2.0, 0.0], requires_grad=True)
    (exact,) = torch.autograd.grad(logits.softmax(0)[0], logits)
    across = torch.tensor([2.0, -1.0, -1.0]) / 6**0.5
    numbers = explorer.numbers()
    assert numbers["centre x"] == pytest.approx(float(across @ exact), abs=0.03)


def test_it_refuses_equal_rewards():
    with pytest.raises(ValueError, match="no gradient to find"):
        ShiftExplorer([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])


# --- the beta explorer


def trainings():
    """Two looks of two seeds, whose every number tells where it comes from."""
    return [
        {"algorithm": a, "beta": beta, "seed": seed, "step": step,
         "learned": i + beta + step, "right": 0.1 * seed, "kl": step / 2, "short": 0.0}
        for i, a in enumerate(("rloo", "ppo"))
        for beta in (0.0, 0.5)
        for seed in (1, 2)
        for step in (0, 4)
    ]  # fmt: skip


BEST = [{"n": n, "seed": s, "right": n / 10, "learned": 0.0} for n in (1, 2) for s in (1, 2)]


def test_it_shows_the_mean_over_the_seeds_of_what_was_chosen():
    explorer = BetaExplorer(trainings(), BEST, algorithm="PPO", beta="0.5", done=100)
    expected = {"learned": 5.5, "right": 0.15, "kl": 2.0, "short": 0.0}
    assert explorer.numbers() == pytest.approx(expected) and explorer.step == 4
    assert explorer.set(algorithm="RLOO", done=0).numbers()["learned"] == pytest.approx(0.5)
    assert explorer.data["best"][1] == pytest.approx([2, np.log(2) - 0.5, 0.2])


def test_trainings_that_are_missing_or_shorter_are_refused():
    with pytest.raises(ValueError, match="do not make one picture"):
        BetaExplorer(trainings()[:-1], BEST)
    with pytest.raises(ValueError, match="do not make one picture"):
        BetaExplorer(trainings()[2:], BEST)
