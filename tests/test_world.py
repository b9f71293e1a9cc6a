"""Who does what among several ranks, asked of each in one process."""

import os

import pytest
import ranks
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlkit import failure
from rlkit.distributed import World, join, rows_of, units


def test_one_process_makes_no_group():
    import torch.distributed as dist

    assert join(60) == World() and not dist.is_initialized()
    assert World().main and World().any(True) and not World().any(False)


@given(
    live=st.lists(st.booleans(), max_size=40),
    size=st.integers(1, 7),
    ranks=st.integers(1, 5),
    group=st.integers(1, 5),
)
def test_rows_are_dealt_out_whole(live, size, ranks, group):
    rows = torch.tensor([i for i, on in enumerate(live) if on], dtype=torch.int64)
    dealt = [World(rank, ranks).deal(rows, size, group) for rank in range(ranks)]
    assert [i for parts in dealt for part in parts for i in part.tolist()] == rows.tolist()
    assert len({len(parts) for parts in dealt}) == 1
    assert all(len(part) <= size for parts in dealt for part in parts)
    owners = [{int(i) // group for part in parts for i in part} for parts in dealt]
    assert sum(map(len, owners)) == len(set().union(*owners))
    counts = [sum(map(len, parts)) for parts in dealt]
    assert max(counts) - min(counts) < 2 * group


@given(count=st.integers(0, 50), ranks=st.integers(1, 9))
def test_shares_are_all_there_is(count, ranks):
    shares = [World(rank, ranks).share(range(count)) for rank in range(ranks)]
    assert [i for share in shares for i in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert World(1, ranks).over(count).size == (ranks if count >= ranks else 1)


def test_a_micro_batch_of_nothing_has_a_row_and_no_token():
    batch = ranks.random_batch()
    nothing = rows_of(batch, torch.arange(0))
    assert len(nothing) == 1 and len(nothing.index) == 0 and not nothing.mask.any()
    assert len(rows_of(batch, torch.tensor([1, 3]))) == 2 and batch.mask.any()


def test_a_plain_model_has_no_units():
    assert units(torch.nn.Linear(2, 2)) == []


def test_errors_of_the_network_are_said_in_words():
    gone = "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"
    assert "killed, or out of memory" in failure.sentence(RuntimeError(gone))
    late = "Timed out waiting 5000ms for recv operation to complete"
    assert failure.sentence(RuntimeError(late)).startswith("waited 5 s (ddp_timeout)")
    nccl = "Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=9)"
    assert failure.sentence(RuntimeError(nccl)).startswith("waited 0.009 s (ddp_timeout)")
    assert failure.sentence(ValueError("plain")) == "plain" and "RANK" not in os.environ


@pytest.mark.parametrize("speaks", [True, False])
def test_what_all_ranks_would_print_is_printed_by_the_first(speaks, monkeypatch, capsys):
    monkeypatch.setattr(failure, "in_a_job", lambda: True)
    monkeypatch.setattr(failure, "first_to_fail", lambda: speaks)
    with pytest.raises(SystemExit), failure.one_voice():
        print("usage")
        raise SystemExit(2)
    assert capsys.readouterr().err == ("usage\n" if speaks else "")
    monkeypatch.setenv("RANK", "3")
    failure.report(ValueError("no such answer"))
    said = capsys.readouterr().err
    assert said == ("rlkit: rank 3: no such answer\n" if speaks else "")


def test_one_process_speaks_for_itself(capsys):
    with failure.one_voice():
        print("usage")
    failure.report(ValueError("no such answer"))
    assert capsys.readouterr() == ("usage\n", "rlkit: no such answer\n")
