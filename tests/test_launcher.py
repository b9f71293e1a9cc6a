"""Measured ranks: what they tell, and that none of them outlives its reason, however it ends."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlkit.memory import Ranks, processes
from rlkit.memory.launcher import RanksNotReady

TROUBLE = str(Path(__file__).with_name("rank_in_trouble.py"))
SMALL = dict(per_device_train_batch_size=8, num_generations=4, max_completion_length=6)
posix = pytest.mark.skipif(os.name != "posix", reason="signals")


def alive(pid):
    """Whether a process still runs; one that ended and that nobody has waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition, seconds=60.0):
    """Waits for something to become true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


def all_end(pids, seconds=8.0):
    until(lambda: not any(map(alive, pids)), seconds)


@pytest.fixture
def ranks_of():
    """Ranks(...) that end with the test, with all of their processes."""
    made = []

    def make(**changes):
        made.append(Ranks(**(SMALL | dict(model="adder", max_steps=500) | changes)))
        return made[-1]

    yield make
    for each in made:
        each._job.abandon()
        each.wait(20)
        all_end(each.pids)


# --- in words, without a process


def test_it_says_what_cannot_be_trained():
    with pytest.raises(ValueError, match="optimizer='sgd' can be planned; ranks use adamw"):
        Ranks("adder", optimizer="sgd")
    with pytest.raises(ValueError, match="num_generations=3"):
        Ranks("adder", per_device_train_batch_size=8, num_generations=3)
    with pytest.raises(ValueError, match="then=.* cannot change fsdp"):
        Ranks("adder", then=({"fsdp": 4},))
    with pytest.raises(ValueError, match="did you mean 'head'"):
        Ranks("adder", heed="full")


def test_ranks_that_were_never_started_have_nothing():
    ranks = Ranks("adder", **SMALL)
    assert (ranks.state, ranks.status, ranks.samples, ranks.history) == (
        "idle",
        "not started",
        [],
        [],
    )
    with pytest.raises(RanksNotReady, match="not started: press Start"):
        ranks.result()
    assert ranks.stop().wait(1) is ranks


def test_modules_import_where_only_python_is(tmp_path):
    code = (
        "import sys\n"
        "for name in ('fcntl', 'resource', 'pwd', 'grp', 'termios', 'torch', 'anywidget'):\n"
        "    sys.modules[name] = None\n"
        "import rlkit.memory.launcher, rlkit.memory.processes, rlkit.memory.rank\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_rank_without_a_job_leaves():
    done = subprocess.run(
        [sys.executable, *processes.PROGRAM],
        stdin=subprocess.DEVNULL,
        timeout=60,
        capture_output=True,
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_what_libraries_print_is_kept_out_of_the_lines(tmp_path):
    code = (
        "from rlkit.memory.rank import Voice\n"
        "voice = Voice()\n"
        "print('chatter', flush=True)\n"
        "voice.say(place='here')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert [json.loads(line)["place"] for line in done.stdout.splitlines()] == ["here"]
    assert "chatter" in done.stderr


def test_a_failure_is_explained_by_who_knows_most(monkeypatch):
    job = processes.Job(Ranks("adder", **SMALL).settings, dict(ddp_timeout=5, max_steps=3), False)
    dead = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit('no room')"])
    live = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    dead.wait()
    import io

    first = processes.Rank(0, live, io.BytesIO(), failure={"error": "lost rank 1", "lost": True})
    second = processes.Rank(1, dead, io.BytesIO(b"Traceback\nno room\n"))
    job.ranks = [first, second]
    try:
        now = time.perf_counter()
        assert job._signs(now)[0][1:] == ("failed", "rank 1 ended with exit code 1: no room")
        second.failure = {"error": "a number is not finite", "lost": False}
        assert job._signs(now)[0][1:] == ("failed", "rank 1: a number is not finite")
        first.failure = second.failure = None
        second.process = live
        assert job._signs(now) == []
        assert "rank 0 has said nothing for 5 s" in job._signs(now + 6)[0][2]
    finally:
        live.kill()
        live.communicate()


# --- the numbers


def wide():
    """A model whose logits are larger than its weights."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=4096,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
        max_position_embeddings=64,
    )


@pytest.mark.slow
def test_two_ranks_halve_the_weights_and_not_the_logits_as_planned(ranks_of):
    sizes = dict(model=wide(), max_steps=2, prompt_length=12, head="full", share_prefix=False)
    one, two = (
        ranks_of(fsdp=n, **sizes, then=({"head": "fused", "tile_bytes": 2**16},)) for n in (1, 2)
    )
    for ranks in (one, two):
        ranks.start().wait(200)
        assert (ranks.state, ranks.error) == ("done", None)
        steps = [(row["part"], row["step"]) for row in ranks.result()]
        assert steps == [(0, 1), (0, 2), (1, 1), (1, 2)]
        assert len(ranks.losses) == len(ranks.rewards) == 4
        for part in (0, 1):
            for moment in ranks.at_peak(part):
                # 0.05 was asked
                assert ranks.plan(part).peak == pytest.approx(moment.bytes, rel=0.02)
    assert len(two.at_peak()) == len(two.samples) == 2
    alone, *together = (r.steps[k][1].by_phase for r, k in ((one, 0), (two, 0), (two, 1)))
    for mine in together:
        for category in ("param", "grad", "optimizer"):
            assert mine["step"][category] == pytest.approx(alone["step"][category] / 2, rel=0.03)
        for category in ("logits", "activation"):
            assert mine["forward"][category] == pytest.approx(alone["forward"][category], rel=0.02)
    for timeline in two.samples:
        columns = zip(*timeline.by_category.values(), strict=True)
        assert timeline.total == [sum(row) for row in columns] and max(timeline.total) > 0
        assert timeline.seconds == sorted(timeline.seconds)
    full, fused = (two.steps[1][i].by_phase["forward"]["logits"] for i in (1, 3))
    assert fused < full / 4
    assert two.rewards[:2] == two.rewards[2:], "the memory went down and the training is the same"


@pytest.mark.slow
def test_the_built_in_model_learns_its_sums(ranks_of):
    ranks = ranks_of(max_steps=2, per_device_train_batch_size=64).start().wait(200)
    assert (ranks.state, ranks.error) == ("done", None)
    assert 0.1 < ranks.rewards[0] < 0.9 and ranks.losses[0] != ranks.losses[1]


# --- ends


@pytest.mark.slow
def test_stop_in_the_middle_and_a_port_that_is_taken(ranks_of, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        ranks = ranks_of().start()
        assert ranks.start() is ranks and len(ranks.pids) <= 2  # a second press starts nothing
        with pytest.raises(RanksNotReady, match="2 ranks: .*: wait or press Stop"):
            ranks.result()
        until(lambda: len(ranks.history) >= 2)
        with pytest.raises(RanksNotReady, match=r"step \d+ of 500: wait or press Stop"):
            ranks.result()
        ranks.stop().wait(30)
    assert ranks.state == "stopped" and f"step {len(ranks.history)} of 500" in ranks.status
    assert ranks.result() == ranks.history
    lengths = {len(steps) for steps in ranks.steps}
    assert len(lengths) == 1, "both ranks ended after the same step"
    all_end(ranks.pids)


@pytest.mark.slow
@posix
def test_stop_before_the_first_step_and_a_rank_killed_after_it(ranks_of):
    ranks = ranks_of().start()
    pids = until(lambda: len(ranks.pids) == 2 and ranks.pids)
    ranks.stop().wait(10)
    assert ranks.state == "stopped" and ranks.history == []
    all_end(pids)
    ranks.start()
    until(lambda: ranks.history)
    os.kill(ranks.pids[1], signal.SIGKILL)
    ranks.wait(20)
    assert ranks.state == "failed" and ranks.error.startswith(
        "rank 1 was killed by SIGKILL in 'step"
    )
    with pytest.raises(RanksNotReady, match="the ranks failed: rank 1 was killed"):
        ranks.result()
    all_end(ranks.pids)


@pytest.mark.slow
@posix
def test_a_rank_that_hangs_is_named(ranks_of):
    ranks = ranks_of().start()
    until(lambda: len(ranks.history) >= 1)
    ranks._job.options["ddp_timeout"] = 4
    os.kill(ranks.pids[1], signal.SIGSTOP)
    ranks.wait(30)
    assert ranks.state == "failed" and "rank 1 has said nothing for 4 s" in ranks.error
    assert "last seen in 'step" in ranks.error
    all_end(ranks.pids)


@pytest.mark.slow
def test_a_rank_that_raises_is_named(ranks_of, monkeypatch):
    monkeypatch.setattr(processes, "PROGRAM", (TROUBLE, "raises"))
    ranks = ranks_of().start().wait(120)
    assert (ranks.state, ranks.error) == ("failed", "rank 1: the dog ate the second step")
    all_end(ranks.pids)


@pytest.mark.slow
def test_what_every_rank_raises_is_told_once(ranks_of, tmp_path):
    ranks = ranks_of(lora_rank=4, learning_rate=float("inf"))
    ranks.start().wait(120)
    assert ranks.state == "failed" and "learning_rate=inf" in ranks.error, ranks.error


MOMENTS = ["starts", "imports torch", "builds the model", "step"]
"""Of a rank, in this order."""

PARENT = """
import gc, os, sys, time
from rlkit.memory import Ranks, processes
if len(sys.argv) > 1:
    processes.PROGRAM = tuple(sys.argv[1:])
ranks = Ranks("adder", max_steps=500, per_device_train_batch_size=8, num_generations=4)
ranks.start()
while True:
    print(ranks.pids, ranks.status, flush=True)
    if len(ranks.pids) == 2 and os.path.exists({end!r}):
        {last}
    time.sleep(0.05)
"""


@pytest.fixture
def parent_of(tmp_path):
    """parent_of(last words) -> a process with two ranks, and a file whose existence it heeds."""
    made = []

    def make(last="pass", program=()):
        end = tmp_path / "end"
        process = subprocess.Popen(
            [sys.executable, "-c", PARENT.format(end=str(end), last=last), *program],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        made.append(process)
        return process, end

    yield make
    for process in made:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def when(process, words):
    """The ranks' pids as soon as the parent says so."""
    for line in process.stdout:
        pids, _, status = line.partition("]")
        if "," in pids and any(word in status for word in words):
            return json.loads(pids + "]")
        assert "finished" not in status, f"the ranks were over before any of {words} was seen"
    raise AssertionError("the parent ended")


@pytest.mark.slow
@posix
@pytest.mark.parametrize("moment", MOMENTS)
def test_sigkill_of_the_parent(parent_of, moment):
    process, _ = parent_of()
    # on a busy machine the parent may look too late for a moment, but not for all that follow
    pids = when(process, MOMENTS[MOMENTS.index(moment) :])
    process.kill()
    all_end(pids)


@pytest.mark.slow
@posix
def test_sigkill_of_the_parent_during_the_rendezvous(parent_of):
    process, _ = parent_of()
    pids = when(process, ["rank 1 imports torch"])
    os.kill(pids[1], signal.SIGSTOP)
    assert when(process, ["rank 0 waits for the others"]) == pids
    process.kill()
    all_end(pids[:1])
    if sys.platform == "linux":
        all_end(pids)  # the stopped one, too
    else:
        os.kill(pids[1], signal.SIGCONT)
        all_end(pids)


@pytest.mark.slow
@posix
@pytest.mark.parametrize("moment", ["imports torch", "step 2"])
def test_sigkill_of_the_parent_where_the_kernel_does_not_help(parent_of, moment):
    process, _ = parent_of(program=[TROUBLE, "no_prctl"])
    pids = when(process, [moment])
    process.kill()
    all_end(pids, 20)


@pytest.mark.slow
@posix
@pytest.mark.parametrize(
    "last", ["sys.exit()", "os._exit(0)", "del ranks; gc.collect(); time.sleep(60)", "1 / 0"]
)
def test_the_parent_leaves_or_forgets(parent_of, last):
    process, end = parent_of(last)
    pids = when(process, ["starts", "imports torch"])
    end.touch()
    all_end(pids)
    if "sleep" in last:
        assert process.poll() is None
    else:
        process.wait(10)


@pytest.mark.slow
@posix
def test_an_interrupt_ends_the_ranks_and_says_so(parent_of):
    process, _ = parent_of("signal.signal")
    pids = when(process, ["imports torch"])
    for pid in pids:  # as JupyterLab does: to all of the kernel's process group
        os.kill(pid, signal.SIGINT)
    all_end(pids)
    assert when(process, ["interrupted"]) == pids


def test_forgotten_ranks_hold_no_thread():
    ranks = Ranks("adder", **SMALL)
    job = ranks._job
    del ranks
    gc.collect()
    assert job.state == "idle" and not job.thread.is_alive()
