"""Plans many settings in two processes, and says how much longer it takes."""

import queue
import sys
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from rlkit.claims.settings import Job
from rlkit.memory.planner import Plan, Planner, largest_batch, setting_of

PROCESSES = 2


class Answer(NamedTuple):
    """What a job found."""

    plan: Plan | None
    """None: not even the smallest batch fits, or the job failed."""
    batch: int | None = None
    """The largest that fits, of a search."""
    error: str = ""
    """Why nothing was found."""


def answers(
    jobs: Iterable[Job],
    *,
    use_cache: bool = True,
    say: Callable[[str], None] | None = None,
    make: Callable[[], Planner] | None = None,
) -> dict[Hashable, Answer]:
    """Answers by the jobs' keys. A job that fails says so in its answer, and stops no other.

    say: told, now and then, how far it is. make: makes a planner.
    Whatever ends this early (Ctrl-C) ends its processes too.
    """
    todo = sorted(jobs, key=lambda job: -job.cost)  # so that no long one starts last
    make = make or (lambda: Planner(use_cache=use_cache))
    planners = [make() for _ in range(min(PROCESSES, len(todo)))]
    free: queue.SimpleQueue[Planner] = queue.SimpleQueue()
    for planner in planners:
        free.put(planner)
    pool, progress = ThreadPoolExecutor(PROCESSES), Progress(todo, say or (lambda text: None))
    try:
        futures = {pool.submit(answer, job, free): job for job in todo}
        left = set(futures)
        while left:
            done, left = wait(left, timeout=1.0, return_when="FIRST_COMPLETED")
            progress.add(futures[future] for future in done)
        return {job.key: future.result() for future, job in futures.items()}
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for planner in planners:
            planner.kill()
        raise
    finally:
        pool.shutdown()
        for planner in planners:
            planner.close()


def answer(job: Job, free: "queue.SimpleQueue[Planner]") -> Answer:
    """One job, by whichever planner is free."""
    planner = free.get()
    try:
        return run(job, planner)
    except Exception as error:
        return Answer(None, error=str(error) or type(error).__name__)
    finally:
        free.put(planner)


def run(job: Job, planner: Planner) -> Answer:
    """One job. Raises what a planner raises."""
    if job.memory is None:
        return Answer(planner.plan(setting_of(job.model, job.algorithm, **job.settings)))
    asked: dict[str, Any] = dict(memory=job.memory, planner=planner) | job.settings
    batch, found = largest_batch(job.model, job.algorithm, **asked)
    return Answer(found, batch)


class Progress:
    """How much of the work is done, by what each job costs."""

    def __init__(self, jobs: Iterable[Job], say: Callable[[str], None]) -> None:
        self.whole = sum(job.cost for job in jobs)
        self.say, self.done, self.start = say, 0.0, time.monotonic()

    def add(self, finished: Iterable[Job]) -> None:
        """Counts jobs, and says where it is."""
        self.done += sum(job.cost for job in finished)
        self.say(self.text(time.monotonic() - self.start))

    def text(self, seconds: float) -> str:
        """After so many seconds."""
        share = self.done / self.whole
        left = f"about {clock(seconds / share - seconds)} left" if share > 0.02 else "starting"
        return f"planning: {share:.0%} after {clock(seconds)}, {left}"


def clock(seconds: float) -> str:
    """1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class Line:
    """Writes progress to stderr: over itself on a terminal, else a line each half minute."""

    def __init__(self) -> None:
        self.over, self.last = sys.stderr.isatty(), 0.0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if self.over:
            sys.stderr.write(f"\r{text:60}")
        elif now - self.last >= 30:
            sys.stderr.write(f"{text}\n")
            self.last = now
        sys.stderr.flush()

    def end(self) -> None:
        """Clears the line."""
        if self.over:
            sys.stderr.write(f"\r{'':60}\r")
