"""The picture of ranks at work: what it says and where it draws, without a process or a page."""

import gc
import itertools
import weakref

import numpy as np
import pytest

from rlkit.memory import CATEGORIES, Moment, Ranks
from rlkit.memory.processes import Rank, StepEnd
from rlkit.memory.timeline import Recorder
from rlkit.widgets import categories, ranks, sharding
from rlkit.widgets.ranks import LiveRanks

MB = 10**6
SMALL = dict(per_device_train_batch_size=8, num_generations=4)


def played(size=2, steps=2, scale=1, max_steps=3, state="done"):
    """Ranks that have taken so many steps of a second each, with five samples in each."""
    made = Ranks("adder", fsdp=size, max_steps=max_steps, **SMALL)
    made._job.state = state
    for number in range(size):
        rank = Rank(number, None, None, samples=Recorder(100))
        for k, i in itertools.product(range(steps), range(5)):
            amounts = {"param": 10 * MB * scale, "logits": 7 * MB * i}
            row = tuple(amounts.get(category, 0) for category in CATEGORIES)
            phase = "forward" if i else "generate"
            rank.samples.add((5 + k + i / 5, phase, sum(row), row))
        for k in range(steps):
            shown = {"param": 10 * MB * scale, "logits": 28 * MB}
            moment = Moment(sum(shown.values()), shown, {}, "forward", "", "", "")
            row = {"step": k + 1, "reward": 0.5, "loss": 0.0}
            rank.steps.append(StepEnd(0, k + 1, 6.0 + k, row, moment, {"forward": shown}))
        made._job.ranks.append(rank)
    return made


def test_the_title_is_the_finding():
    assert LiveRanks(Ranks("adder", **SMALL)).title == "No bytes yet"
    begun = played(1, state="running")
    begun._job.ranks[0].steps.clear()
    assert LiveRanks(begun).title == "The first step is under way"
    assert LiveRanks(played(1)).title == "One rank holds 38.0 MB at its highest moment"
    both = LiveRanks(played(), beside=played(1, scale=2))
    assert both.title == "Each of 2 ranks holds 38.0 MB at its highest moment, one alone 48.0 MB"
    assert LiveRanks(played(), beside=played()).title.endswith(", before 38.0 MB")


def test_samples_lie_in_their_step_and_a_step_under_way_does_not_jump():
    steps = [row[0] for row in ranks.placed(played(), 0)]
    assert steps == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1, 1.2, 1.4, 1.6, 1.8])
    under_way = played(steps=2)
    del under_way._job.ranks[0].steps[1]
    assert [row[0] for row in ranks.placed(under_way, 0)] == pytest.approx(steps)
    assert ranks.placed(Ranks("adder", **SMALL), 0) == []


def test_the_page_gets_every_sample_with_all_categories():
    run = LiveRanks(played(), beside=played(1, scale=2), guess=20)
    rows = np.frombuffer(run.rows(), "<f4").reshape(-1, 3 + len(CATEGORIES))
    assert set(rows[:, 0]) == {0, 1, 2} and len(rows) == 30
    view = run.view()
    assert [look["key"] for look in view["looks"]] == list(CATEGORIES)
    assert [p["name"] for p in view["panels"]] == ["one rank alone", "rank 0 of 2", "rank 1 of 2"]
    assert view["lines"] == [{"bytes": 20 * MB, "name": "your guess 20"}]
    cells = [row["cells"] for row in view["table"]["rows"]]
    assert cells == [
        ["logits", "28.0", "28.0", "28.0"],
        ["weights", "20.0", "10.0", "10.0"],
        ["together", "48.0", "38.0", "38.0"],
    ]


def test_the_axis_grows_and_never_shrinks():
    run = LiveRanks(played())
    assert run.top() == 40 * MB
    run.ranks = played(scale=5)
    assert run.top() == 100 * MB
    run.ranks = played()
    assert run.top() == 100 * MB
    assert [ranks.rounded_up(x) for x in (1, 1.01, 7e6, 9.9e6, 10e6)] == [1, 1.2, 8e6, 1e7, 1e7]


def test_buttons_and_states():
    idle = LiveRanks(Ranks("adder", **SMALL)).view()
    assert (idle["can_start"], idle["can_stop"], idle["status"]) == (
        True,
        False,
        "press Start: not started",
    )
    busy = LiveRanks(played(state="running")).view()
    assert (busy["can_start"], busy["can_stop"]) == (False, True)
    assert busy["status"] == "step 3 of 3"


def test_the_static_twin_shows_the_same_numbers():
    pytest.importorskip("matplotlib")
    run = LiveRanks(played(), beside=played(1, scale=2), guess=20)
    fig = run.figure()
    words = [text.get_text() for text in fig.findobj(lambda x: hasattr(x, "get_text"))]
    assert run.title in words and "your guess 20" in words
    assert "logits\n28.0  28.0  28.0 MB" in words and "weights\n20.0  10.0  10.0 MB" in words
    assert len({ax.get_ylim() for ax in fig.axes[:3]}) == 1, "one axis for all"


def test_where_a_page_works_in_its_cells_it_shows_the_twin(monkeypatch, capsys):
    pytest.importorskip("IPython")
    monkeypatch.setenv("RLKIT_FAST", "1")
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda x, **_: shown.append(type(x).__name__))
    LiveRanks(played())._ipython_display_()
    assert shown == ["Figure"]


def test_a_forgotten_picture_lets_go_of_its_ranks():
    pytest.importorskip("anywidget")
    run = LiveRanks(played())
    run._ipython_display_()
    gone = weakref.ref(run.ranks)
    del run
    gc.collect()
    assert gone() is None


# --- the categories' looks, and the pictures of sharding

SIMULATED = {  # Machado et al. 2009, severity 1, on linear RGB
    "no colour blindness": np.eye(3),
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def lab(colour, matrix):
    """CIE L*a*b* of #rrggbb as somebody sees it."""
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(matrix) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ seen / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", SIMULATED)
def test_no_two_categories_look_alike(eyes):
    assert tuple(categories.LOOKS) == CATEGORIES
    for a, b in itertools.combinations(categories.LOOKS.values(), 2):
        if a.hatch == b.hatch:
            apart = np.linalg.norm(lab(a.colour, SIMULATED[eyes]) - lab(b.colour, SIMULATED[eyes]))
            assert apart > 15, (a.key, b.key, apart)


def test_categories_stand_out_on_light_and_dark_pages():
    for look in categories.LOOKS.values():
        assert 35 < lab(look.colour, np.eye(3))[0] < 85
        assert look.hatch in categories.HATCHINGS and look.meaning
    assert categories.look("new").label == "new"


def test_the_pictures_of_sharding_hold_the_numbers():
    pytest.importorskip("matplotlib")
    import torch

    weight = torch.arange(8.0).view(4, 2)
    fig = sharding.exchange(weight.chunk(2), [weight, 10 * weight])
    words = [text.get_text() for text in fig.findobj(lambda x: hasattr(x, "get_text"))]
    assert words.count("77.0") == 1 and words.count("7.0") == 3 + 1
    rows = [
        {"ranks": n, "head": head, "peak": 2**30 * (9 // n + 1), "param": 2**30 * (9 // n)}
        | {"logits": 2**30}
        for head in ("full", "fused")
        for n in (1, 3)
    ]
    assert sharding.finding(rows) == (
        "From 1 rank to 3: full head 10.0 to 4.0 GiB, fused head 10.0 to 4.0 GiB"
    )
    assert sharding.scaling(rows).axes[0].get_ylabel() == "GiB at the peak of each rank"
