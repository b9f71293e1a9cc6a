"""PPO, RLOO and GRPO side by side: who holds what, and that the factors are factors."""

import re

import pytest

from rlkit.bench import algorithms
from rlkit.bench.algorithms import (
    CONTESTANTS,
    GRPO,
    PPO1,
    PPO4,
    RLOO,
    RLOO4,
    RULE,
    SHARED,
    WIDE,
    Found,
)

SECONDS = {
    PPO4: 6.0,
    PPO1: 3.0,
    SHARED: 2.5,
    RLOO4: 4.0,
    RLOO: 2.0,
    WIDE: 1.0,
    GRPO: 2.0,
    RULE: 1.0,
}


def made(seconds, peak):
    row = dict(seconds=seconds, seconds_generate=0.1, seconds_score=0.2, seconds_update=0.3)
    row |= {"reward": 0.5, "reward/sums_reward": 0.25}
    warm_up = dict(row, seconds=99.0)
    return Found(peak, {"param": peak // 2, "grad": peak // 4, "temporary": 1}, 3, [warm_up, row])


PEAKS = {WIDE: 7 * 2**20} | {name: 2**22 for name in CONTESTANTS if "PPO" in name}
FOUND = {name: made(SECONDS[name], PEAKS.get(name, 2**21)) for name in CONTESTANTS}


def test_the_factors_multiply_to_the_whole():
    text = algorithms.verdict(FOUND)
    numbers = map(float, re.findall(r"\b\d\.\d\d\b", text))
    whole, epochs, critic, rest, fours, ones, room, wide = numbers
    assert whole == 3.0 and wide == 2.0  # the step that warms up is not counted
    assert epochs * critic * rest == pytest.approx(whole, abs=0.02)
    assert (fours, ones) == (1.5, 1.5) and "50% lower" in text
    # 2 MiB, 5 more with three more micro-batches at once: 2 MiB of room are 1.2 of them
    assert room == pytest.approx(2.2)


def test_tables_show_every_contestant_and_leave_out_what_is_nothing():
    memory = algorithms.memory_table(FOUND)
    assert "grad" in memory and "temporary" not in memory
    flags = algorithms.Flags(steps=2, samples=32)
    tables = [algorithms.time_table(FOUND), memory, algorithms.reward_table(FOUND, flags)]
    for table in tables:
        lines = table.splitlines()
        assert len({len(line) for line in lines}) == 1
        assert [line[:32].strip() for line in lines[1:]] == list(CONTESTANTS)


@pytest.mark.parametrize("changes", [dict(samples=40), dict(steps=1), dict(threads=0)])
def test_sizes_that_do_not_fit_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        algorithms.Flags(**changes)


@pytest.mark.slow
def test_who_holds_how_many_models_and_bytes():
    found = algorithms.measure(algorithms.Flags(steps=2, samples=32))
    models = {name: each.models for name, each in found.items()}
    assert models == {PPO4: 4, PPO1: 4, SHARED: 3, RLOO4: 3, RLOO: 3, WIDE: 3, GRPO: 3, RULE: 1}
    for name, each in found.items():
        held = {"reference": name != RULE, "reward": name != RULE, "value": models[name] == 4}
        assert {k: each.categories.get(k, 0) > 2**20 for k in held} == held
    assert found[RLOO].peak < 0.7 * found[PPO1].peak
    assert found[RULE].peak < found[GRPO].peak
    # the same prompts and the same noise: the first rollouts are one
    first = {name: each.rows[0] for name, each in found.items()}
    assert len({row.get("reward/sums_reward", row["reward"]) for row in first.values()}) == 1
    assert (
        first[PPO4]["updates"] == first[RLOO4]["updates"] == 4
        and first[RLOO]["updates"] == first[PPO1]["updates"] == 1
    )
