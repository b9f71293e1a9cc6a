"""Evidence: when a gap counts, and the command that measures it."""

import math
import sys
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlkit import cli
from rlkit.course import evidence
from rlkit.course.evidence import commands
from rlkit.course.evidence.effect import Effect, Evidence
from rlkit.paths import data_path

# --- when a gap counts


@pytest.mark.parametrize(
    ("high", "low", "shown"),
    [
        ([0.9, 0.95, 0.93], [0.5, 0.5, 0.5], True),
        ([0.9, 0.95, 0.93], [0.29, 0.17, 0.47], True),
        ([0.6, 0.9, 0.9], [0.5, 0.5, 0.5], False),  # a gap of 0.3, a spread of 0.3
        ([0.9, 0.9, 0.9], [0.2, 0.9, 0.3], False),  # of either side
        ([0.5, 0.5, 0.5], [0.9, 0.9, 0.9], False),  # the wrong way round
        ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5], False),  # nothing exceeds nothing
        ([0.5, math.nan, 0.9], [0.1, 0.1, 0.1], False),
        ([0.5, 0.6, 0.9], [0.1, 0.1, math.nan], False),
        ([math.inf, 0.5, 0.5], [0.1, 0.1, 0.1], False),
    ],
)
def test_a_gap_counts_if_it_exceeds_the_wider_range(high, low, shown):
    assert Effect("high", "low").shown({"high": high, "low": low}) is shown


def test_a_fixed_number_has_no_range_and_a_gap_may_have_to_reach_one():
    numbers = {"x": [1.2, 1.3, 1.4]}
    assert Effect("x", 1.0).shown(numbers) and not Effect("x", 1.2).shown(numbers)
    assert Effect("x", 1.0, at_least=0.3).shown(numbers)
    assert not Effect("x", 1.0, at_least=0.31).shown(numbers)


values = st.lists(st.floats(-10, 10), min_size=2, max_size=5)


@given(values, values, st.floats(-5, 5), st.floats(0.1, 10))
def test_neither_shift_nor_unit_decides(high, low, shift, unit):
    def moved(xs):
        return [unit * x + shift for x in xs]

    effect = Effect("high", "low")
    before, after = {"high": high, "low": low}, {"high": moved(high), "low": moved(low)}
    assert effect.gap(after) == pytest.approx(unit * effect.gap(before), abs=1e-9)
    assert effect.spread(after) == pytest.approx(unit * effect.spread(before), abs=1e-9)


@given(values, values)
def test_an_effect_and_its_opposite_are_never_both_shown(high, low):
    numbers = {"a": high, "b": low}
    assert not (Effect("a", "b").shown(numbers) and Effect("b", "a").shown(numbers))


# --- the command, on made-up pages


def page(monkeypatch, number, measure, *effects):
    """A page with evidence of its own."""
    module = ModuleType(f"rlkit.course.evidence.page_{number}")
    module.EVIDENCE = Evidence("the moon is round", measure, effects)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    known = [*evidence.numbers_of_pages(), number]
    monkeypatch.setattr(evidence, "numbers_of_pages", lambda: known)


def run(*argv):
    return cli.main(["evidence", *argv])


def better(seed):
    return {"with": 0.9 + seed / 100, "without": 0.5}


def test_a_page_that_shows_its_effect_writes_what_it_measured(monkeypatch, tmp_path, capsys):
    page(monkeypatch, "98", better, Effect("with", "without"))
    assert run("98", "--out", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "page 98: the moon is round" in out
    assert "with over without: gap 0.42, spread 0.02: shown" in out
    assert evidence.load("98", tmp_path) == {"with": [0.91, 0.92, 0.93], "without": [0.5] * 3}
    file = evidence.path("98", tmp_path)
    assert file.read_text() == "seed,with,without\n1,0.91,0.5\n2,0.92,0.5\n3,0.93,0.5\n"
    assert list(tmp_path.iterdir()) == [file]


def test_a_page_that_does_not_fails_and_leaves_the_numbers_alone(monkeypatch, tmp_path, capsys):
    page(monkeypatch, "98", better, Effect("with", "without"))
    run("98", "--out", str(tmp_path))
    before = evidence.path("98", tmp_path).read_text()
    page(monkeypatch, "98", lambda seed: {"with": 0.5 + seed / 10, "without": 0.6},
         Effect("with", "without"))  # fmt: skip
    capsys.readouterr()
    assert run("98", "--out", str(tmp_path)) == 1
    out, err = capsys.readouterr()
    assert "gap 0.1, spread 0.2: NOT shown" in out and "stays as it was" in out
    assert "not shown: the effect of page 98" in err
    assert evidence.path("98", tmp_path).read_text() == before


def test_one_effect_of_two_is_not_enough(monkeypatch, tmp_path):
    page(monkeypatch, "98", better, Effect("with", "without"), Effect("without", "with"))
    assert run("98", "--out", str(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_page_is_one_sentence_and_nothing_is_measured(monkeypatch, tmp_path, capsys):
    page(monkeypatch, "98", lambda seed: 1 / 0, Effect("with", "without"))
    assert run("98", "77", "--out", str(tmp_path)) == 2
    assert "there is no evidence for page '77'; there is for 00" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        (lambda seed: {f"x{seed}": 1.0}, "seed 2 measured ['x2'], not ['x1']"),
        (lambda seed: {"with": 1.0}, "measured ['with'] and needs ['without']"),
    ],
)
def test_numbers_that_do_not_fit_are_one_sentence(measure, words, monkeypatch, tmp_path, capsys):
    page(monkeypatch, "98", measure, Effect("with", "without"))
    assert run("98", "--out", str(tmp_path)) == 2
    assert words in capsys.readouterr().err


def test_a_page_must_name_an_effect(monkeypatch, tmp_path, capsys):
    page(monkeypatch, "98", better)
    assert run("98", "--out", str(tmp_path)) == 2
    assert "names no effect" in capsys.readouterr().err


def test_one_seed_has_no_spread(capsys):
    assert run("00", "--seeds", "1") == 2
    assert "have no spread; give at least two" in capsys.readouterr().err


def test_numbers_that_were_never_measured_say_how(tmp_path):
    with pytest.raises(FileNotFoundError, match="`rlkit evidence 98` measures it"):
        evidence.load("98", tmp_path)


# --- the pages that there are


@pytest.mark.parametrize("number", evidence.numbers_of_pages())
def test_committed_evidence_shows_its_effects(number):
    numbers, claim = evidence.load(number), evidence.find(number)
    assert {len(values) for values in numbers.values()} == {len(commands.SEEDS)}
    for effect in claim.effects:
        assert effect.shown(numbers), commands.verdict(effect, numbers)


def test_no_numbers_lie_there_that_no_page_measures():
    files = {path.stem for path in data_path("evidence").iterdir()}
    assert files == {f"page_{number}" for number in evidence.numbers_of_pages()}
