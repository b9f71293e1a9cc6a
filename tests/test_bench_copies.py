"""Four models against three, and the speed that the bench records for the claims."""

import json

import pytest

from rlkit import claims
from rlkit.bench import algorithms, copies
from rlkit.bench.algorithms import CONTESTANTS, PPO1, PPO4, RLOO, RLOO4, SHARED, WIDE, Found
from rlkit.bench.copies import BIG, SIDES, SMALL, Side
from rlkit.claims import speed
from rlkit.claims.findings import HOLDS, NOT
from rlkit.paths import data_path

SIX = dict(ppo=Side(4, 300, 306, {"param": 100}), rloo=Side(3, 200, 200, {"param": 100}))


def test_the_table_tells_what_is_saved_and_how_far_off_a_plan_is():
    text = copies.table({SMALL: SIX})
    assert "RLOO saves 33% for the built-in model (measured)" in text
    assert "2.00%" in text and "0.00%" in text
    for name in ("Pythia-1B", "Pythia-2.8B", "Pythia-6.9B"):
        assert f" for {name}" in text


def test_without_tested_claims_the_table_stands_alone(monkeypatch):
    monkeypatch.setattr(claims, "load", lambda: [])
    assert "Pythia" not in copies.table({SMALL: SIX})


def models_and_bytes(size):
    sides = copies.compare(1, (size,))[size]
    assert {name: each.models for name, each in sides.items()} == {"ppo": 4, "rloo": 3}
    assert [n for n in copies.MODELS[1:] if sides["ppo"].categories.get(n)] == [
        "reference",
        "value",
        "reward",
    ]
    assert sides["rloo"].categories.get("value", 0) == 0
    for each in sides.values():
        assert abs(each.error) < 0.03
    return copies.saved(sides)


@pytest.mark.slow
def test_the_built_in_model_takes_what_was_planned():
    assert 0.4 < models_and_bytes(SMALL) < 0.5


@pytest.mark.slow
def test_a_model_of_100_million_weights_takes_what_was_planned():
    # weights alone: 10 copies (4 models, 2 gradients, 4 moments) against 6
    assert 0.25 < models_and_bytes(BIG) < 0.4


# ---- the claim -------------------------------------------------------------------------------


def record(**seconds):
    names = {"ppo4": PPO4, "ppo1": PPO1, "shared": SHARED, "rloo": RLOO, "rloo4": RLOO4}
    names["wide"] = WIDE
    took = {
        names[k]: {"seconds": dict(step=v, update=v - 1, generate=1.0)} for k, v in seconds.items()
    }
    return {"machine": "a machine", "contestants": took}


@pytest.mark.parametrize(("slowest", "verdict"), [(6.0, HOLDS), (5.9, HOLDS), (5.0, NOT)])
def test_twice_as_fast_is_what_was_claimed(slowest, verdict):
    found = speed.rloo_speed(
        record(ppo4=slowest, rloo4=3.0, ppo1=4.0, shared=3.5, rloo=2.5, wide=2.0)
    )
    assert found.verdict == verdict
    whole, _, once, uneven, epochs, critic, rest, wide = (case.value for case in found.cases)
    assert whole == slowest / 3 and once == 1.6
    assert uneven == pytest.approx(epochs * critic * rest)
    assert wide == 1.25
    assert [case.of_source for case in found.cases] == [True] + [False] * 7
    assert "a machine" in found.why


def test_what_the_bench_writes_the_claim_reads(tmp_path):
    row = dict(seconds=3.0, seconds_generate=1.0, seconds_score=0.5, seconds_update=1.5, reward=0.5)
    found = {name: Found(1, {"param": 1}, 1, [row, row]) for name in CONTESTANTS}
    path = tmp_path / "new" / "record.json"
    algorithms.record(path, algorithms.Flags(), found, {SMALL: SIX})
    written = speed.recorded(path)
    assert written["copies"][SMALL]["ppo"]["planned"] == 306
    assert speed.rloo_speed(written).cases[0].value == 1.0


def test_the_shipped_record_is_whole():
    shipped = json.loads(data_path(speed.RECORD).read_text("utf-8"))
    assert list(shipped["contestants"]) == list(CONTESTANTS)
    assert {size: set(sides) for size, sides in shipped["copies"].items()} == {
        size: set(SIDES) for size in (SMALL, BIG)
    }
    for sides in shipped["copies"].values():
        for each in sides.values():
            assert each["planned"] == pytest.approx(each["measured"], rel=0.03)
    (finding,) = (one.finding for one in claims.load() if one.claim.name == "rloo-speed")
    found = speed.rloo_speed(shipped)
    assert finding.verdict == found.verdict and finding.found == found.found
