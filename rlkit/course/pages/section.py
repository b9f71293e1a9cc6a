"""What a section of a page needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Section:
    """imports: names to bring in, each "torch", "rlkit.GRPOConfig" or "torch.nn.functional as F".

    state: names of the notebook that earlier sections made.
    rejoin() returns that state from the last run's folder (or makes it), or {} if it cannot.
    exercises: those that this section poses or uses; `here` binds their functions, and those of
    the sections before it: the learner's right answer, or the library's function.
    """

    imports: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    rejoin: Callable[[], dict[str, Any]] = dict
    exercises: tuple[str, ...] = ()
