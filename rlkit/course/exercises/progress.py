"""How far a learner is: one word for each exercise, in runs/progress.json under the notebook.

It survives a restart of the kernel, belongs to no account, and git ignores it as it does all of
runs/. Where nothing can be written it lasts as long as the kernel.
"""

from rlkit.course import store

FILE = store.FOLDER / "progress.json"

NOT_STARTED, TRYING, SEEN = "not started", "trying", "trying, solution seen"
RIGHT, WITH_SOLUTION = "right", "solved with the solution"
STATES = (NOT_STARTED, TRYING, SEEN, RIGHT, WITH_SOLUTION)

AFTER = {
    "tried": {NOT_STARTED: TRYING},
    "seen": {NOT_STARTED: SEEN, TRYING: SEEN},
    "right": {NOT_STARTED: RIGHT, TRYING: RIGHT, SEEN: WITH_SOLUTION},
}
"""What happened -> state before -> state after; states that are not here stay."""

_unwritten: dict[str, str] = {}


def load() -> dict[str, str]:
    """State by exercise; what cannot be read counts for nothing."""
    kept = store.load(FILE)
    kept = {str(k): v for k, v in kept.items() if v in STATES}
    return kept | _unwritten


def record(name: str, event: str) -> None:
    """Note that an exercise was "tried", its solution "seen", or that it is "right"."""
    states = load()
    before = states.get(name, NOT_STARTED)
    states[name] = AFTER[event].get(before, before)
    try:
        store.save(FILE, states)
        _unwritten.clear()
    except OSError:  # a read-only folder, a full disk
        _unwritten.update(states)
