"""The benches measure what they say, and hold their bars."""

import csv

import pytest

from rlkit.bench import train


@pytest.mark.slow
def test_a_step_takes_less_of_the_time_than_the_bar(tmp_path, capsys):
    pytest.importorskip("trl")
    out = tmp_path / "times.csv"
    code = train.main(["--steps", "6", "--seeds", "1", "--out", str(out)])
    shown = capsys.readouterr().out
    assert code == 0, shown
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 and "rewards differ, by seed" in shown
    assert all(0 < float(r[k]) <= 1 for r in rows for k in ("rlkit_reward", "trl_reward"))


def test_a_slower_step_fails_the_bench():
    row = {"trl_seconds": 1.0, "rlkit_reward": 0.5, "trl_reward": 0.4, "seed": 1}
    rows = [row | {"rlkit_seconds": s} for s in (0.3, 0.6, 2.0)]
    assert train.ratio(rows) == pytest.approx(0.6) and train.ratio(rows) > train.BAR
    assert train.gaps(rows + [r | {"seed": 2, "trl_reward": 0.5} for r in rows]) == pytest.approx(
        [0.1, 0.0]
    )
