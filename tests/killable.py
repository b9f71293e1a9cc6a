"""Runs to be killed by tests/test_kill.py, forked from a process that has imported everything.

Importing torch takes seconds, a run of this size half of one. A fork is a process of its own: what
SIGKILL does to it, it would do to any. Reads one job a line and answers with lines, all JSON.
"""

import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path

import peft  # noqa: F401
import ranks
import torch
import torch.distributed.checkpoint
import transformers  # noqa: F401

from rlkit import distributed, failure
from rlkit.cli import EXPECTED


def train(job):
    """A run that goes on from its newest checkpoint, and tells how it ended."""
    algorithm, *words = job["way"].split(":")
    trainer = ranks.resumable(
        algorithm, job["folder"], *words, save_steps=1, max_steps=6, save_total_limit=2
    )
    trainer.train(resume_from_checkpoint=True if job["ranks"] == 1 else None)
    if trainer.world.main or job["ranks"] > 1:
        result = ranks.weights(trainer), ranks.timeless(trainer.history)
        if trainer.world.main:
            torch.save(result, job["result"])


def die_at(event, folder):
    """Kills this process before it touches a checkpoint that comes or goes for the n-th time.

    Returns a function that says how often it has.
    """
    count, hidden = 0, f"{folder}/.checkpoint"

    def hook(name, arguments):
        nonlocal count
        paths = [str(a) for a in arguments if isinstance(a, str | Path)]
        if name in ("open", "os.rename") and any(p.startswith(hidden) for p in paths):
            if count == event:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    sys.addaudithook(hook)
    return lambda: count


def one(job):
    """Forks a run of one process; answers with its pid, then with its exit code."""
    begun, pid = time.monotonic(), os.fork()
    if pid == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            count = die_at(job.get("event"), job["folder"])
            train(job)
            Path(job["result"] + ".events").write_text(str(count()))
            code = 0
        finally:
            os._exit(code)
    answer(pids=[pid])
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    answer(code=code, seconds=time.monotonic() - begun)


def rank(job):
    """What torchrun runs on each rank."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the agent's own came with the fork
    begun = Path(job["result"] + f".pid.{failure.restarts()}.{os.environ['RANK']}")
    begun.write_text(str(os.getpid()))
    spoken = os.open(job["result"] + ".out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(spoken, 1), os.dup2(spoken, 2)
    torch.set_num_threads(1)
    try:
        train(job)
    except EXPECTED as error:
        failure.report(error)
        failure.leave_at_once(2)
    distributed.leave()
    Path(f"{begun}.over").touch()  # and return: the agent waits for that


def many(job):
    """Runs several ranks under torchrun's agent, which forks them; answers how the job ended."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=job["ranks"],
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=job["restarts"],
        start_method="fork",
    )
    begun = time.monotonic()
    try:
        elastic_launch(config, rank)(job)
        code = 0
    except torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
        code = 1
    answer(code=code, seconds=time.monotonic() - begun)


def answer(**facts):
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    answer(ready=True)
    for line in sys.stdin:
        job = json.loads(line)
        (one if job["ranks"] == 1 else many)(job)
