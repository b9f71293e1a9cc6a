"""Page 06: a probe for each part of a training step: a tiny input whose outcome is known.

A probe takes the function that does one part (rlkit.course.suspects says what each does) and
returns True if it does it rightly. It costs a millisecond, where a run costs minutes and tells
nothing: most mistakes here move no learning curve of the task `sums`.
"""

from collections.abc import Callable

import torch

from rlkit.course.suspects import NAMES, Parts

END = 9  # also the padding, as with many tokenizers


def probe_count(count: Callable) -> bool:
    """One completion that ends early, and one that was cut off."""
    ids = torch.tensor([[5, 6, END, END], [5, 6, 7, 8]])
    wanted = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    return torch.equal(count(ids, END), wanted)


def probe_place(place: Callable) -> bool:
    """A prompt of two tokens after one of padding, a completion of one token and one of three."""
    prompt_mask = torch.tensor([[False, True, True], [False, True, True]])
    mask = torch.tensor([[True, False, False], [True, True, True]])
    placed = place(prompt_mask, mask)
    return torch.equal(placed[:, 3:], mask) and not placed[:, :3].any()


def probe_old(old: Callable) -> bool:
    """Before the first update of a step every ratio is 1."""
    now, last = torch.tensor([[-0.1, -2.0]]), torch.tensor([[-0.3, -1.5]])
    return torch.equal(now - old(now, last), torch.zeros(1, 2))


def probe_baseline(baseline: Callable) -> bool:
    """Raise one reward: its own baseline stays, its siblings' move, other prompts' stay."""
    before = torch.tensor([1.0, 0.0, 0.5, 0.25, 3.0, 2.0])
    after = before + torch.tensor([3.0, 0, 0, 0, 0, 0])
    moved = baseline(after, 3) - baseline(before, 3)
    return torch.allclose(moved, torch.tensor([0, 1.5, 1.5, 0, 0, 0]))


def probe_spread(spread: Callable) -> bool:
    """A group of equal rewards has none, and one group's rewards leave the other's alone."""
    dead, alive = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 0.5])
    found = spread(torch.cat([dead, alive]), 3)
    louder = spread(torch.cat([10 * alive, alive]), 3)
    return not found[:3].any() and torch.allclose(louder[3:], found[3:])


def probe_penalty(penalty: Callable) -> bool:
    """Nothing where both models agree; more than nothing on either side."""
    x = torch.tensor([-0.7, 0.0, 0.7])
    found = penalty(x, torch.zeros(3))
    return bool(found[1] == 0 and found[0] > 0 and found[2] > 0)


PROBES = {name: globals()[f"probe_{name}"] for name in NAMES}


def examine(parts: Parts, probes: dict[str, Callable] = PROBES) -> dict[str, bool]:
    """Each part's name, and whether its probe is content with it."""
    return {name: bool(probe(getattr(parts, name))) for name, probe in probes.items()}
