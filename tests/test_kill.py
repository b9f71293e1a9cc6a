"""SIGKILL at any moment: the run goes on from its last checkpoint and ends with the same bits.

The moments are drawn with a seed. Of those of a single process half are drawn by the clock and half
among the times that it touches a checkpoint which it writes or drops.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
import ranks
import torch

from rlkit import checkpoint
from rlkit.distributed import World

pytestmark = pytest.mark.slow
KILLS = 20
KILLS_OF_TWO = int(os.environ.get("RLKIT_KILLS", 8))
"""Twenty take one and a half to three minutes on two cores."""

WAYS = ["grpo:beta", "ppo", "rloo:lora"]


class Server:
    """A process that forks runs (tests/killable.py)."""

    def __init__(self, log):
        self.token = uuid.uuid4().hex
        where = dict(OMP_NUM_THREADS="1", RLKIT_TEST_TOKEN=self.token, WORLD_SIZE="1")
        program = Path(ranks.__file__).with_name("killable.py")
        self.process = subprocess.Popen(
            [sys.executable, str(program)],
            env=os.environ | where,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )
        assert self.hear() == {"ready": True}

    def tell(self, **job):
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def close(self):
        """Also in the middle of a job, whose ranks then end with it."""
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(40)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("server") / "log")
    yield made
    made.close()
    assert left_over(made.token) == []


def left_over(token):
    """Processes that descend from a server."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if token.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


def run_one(server, folder, way, result, delay=None, event=None):
    """A run of one process, killed or not; returns its exit code and how long it took."""
    server.tell(ranks=1, folder=str(folder), way=way, result=str(result), event=event)
    (pid,) = server.hear()["pids"]
    if delay is not None:
        time.sleep(delay)
        kill(pid)
    return server.hear()


def kill(pid):
    """Also one that has ended already: the server must be heard in any case."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def same(result, straight):
    (weights, history), (expected, before) = (torch.load(f) for f in (result, straight))
    assert weights.keys() == expected.keys() and history == before
    return all(torch.equal(weights[name], expected[name]) for name in expected)


def check_checkpoints(folder):
    """Whatever bears a checkpoint's name is whole; returns whether one was being written."""
    for path in checkpoint.checkpoints(folder):
        checkpoint.check_files(path, checkpoint.read_state(path)["files"], World())
    return any(p.name.startswith(".checkpoint") for p in folder.glob(".*"))


def test_twenty_kills_of_a_single_process(server, tmp_path):
    straight, draw, cut = {}, random.Random(1), 0
    for way in WAYS:
        result = tmp_path / f"{way}.straight"
        run_one(server, tmp_path / f"{way}-straight", way, result)  # its first fork is slower
        ended = run_one(server, tmp_path / f"{way}-again", way, result)
        events = int(Path(f"{result}.events").read_text())
        straight[way] = result, ended["seconds"], events
        assert ended["code"] == 0 and events > 20
    for kill in range(KILLS):
        way = WAYS[kill % len(WAYS)]
        expected, seconds, events = straight[way]
        moment = dict(delay=draw.uniform(0, seconds))
        if kill % 2:
            moment = dict(event=draw.randrange(events))
        folder, result = tmp_path / str(kill), tmp_path / f"{kill}.result"
        while run_one(server, folder, way, result, **moment)["code"] != -signal.SIGKILL:
            assert "delay" in moment  # it ended sooner than it did before: once more, sooner
            moment["delay"] *= 0.7
            shutil.rmtree(folder)
        if folder.exists():
            cut += check_checkpoints(folder)
        assert run_one(server, folder, way, result)["code"] == 0
        assert same(result, expected), (kill, moment)
        assert not check_checkpoints(folder) and len(checkpoint.checkpoints(folder)) == 2
    print(f"{KILLS} killed, {cut} of them while a checkpoint was written or dropped")
    assert cut >= KILLS // 4


def run_two(server, folder, way, result, draw=None, seconds=0.0, restarts=1):
    """A job of two ranks under torchrun's agent, one of them killed; what the agent says."""
    job = dict(folder=str(folder), way=way, result=str(result))
    server.tell(ranks=2, restarts=restarts, **job)
    if draw is not None:
        notes, end = [Path(f"{result}.pid.0.{r}") for r in range(2)], time.monotonic() + 30
        while not all(note.exists() and note.read_text() for note in notes):
            assert time.monotonic() < end
            time.sleep(0.01)
        victim = draw.choice(notes)
        time.sleep(draw.uniform(0, seconds))
        # one that is over waits for an event of the agent's, which would then wait for it for ever
        if not Path(f"{victim}.over").exists():
            kill(int(victim.read_text()))
    return server.hear()


def test_kills_of_one_rank_of_two(server, tmp_path):
    straight, draw, restarted = {}, random.Random(2), 0
    for way in WAYS:
        result = tmp_path / f"{way}.straight"
        ended = run_two(server, tmp_path / f"{way}-straight", way, result)
        assert ended["code"] == 0, Path(f"{result}.out").read_text()
        begun = Path(f"{result}.pid.0.0").stat().st_mtime
        straight[way] = result, result.stat().st_mtime - begun
    for kill in range(KILLS_OF_TWO):
        way = WAYS[kill % len(WAYS)]
        expected, seconds = straight[way]
        folder, result = tmp_path / str(kill), tmp_path / f"{kill}.result"
        ended = run_two(server, folder, way, result, draw, seconds)
        spoken = Path(f"{result}.out").read_text()
        assert ended["code"] == 0 and "Traceback" not in spoken, spoken
        assert spoken.count("rlkit: rank") <= 1
        restarted += Path(f"{result}.pid.1.0").exists()
        assert same(result, expected)
        assert not check_checkpoints(folder) and len(checkpoint.checkpoints(folder)) == 2
    print(f"{restarted} of {KILLS_OF_TWO} jobs began again")
    assert restarted >= KILLS_OF_TWO // 2  # the others were over before they were killed


def test_a_killed_rank_ends_the_job_within_seconds(server, tmp_path):
    ended = run_two(
        server, tmp_path / "run", "grpo:beta", tmp_path / "r", random.Random(3), 0.3, restarts=0
    )
    assert ended["code"] == 1 and ended["seconds"] < 15
