"""Tasks: data sets with a reward, both in TRL's form, so that they carry over to TRL unchanged."""

from collections.abc import Callable
from dataclasses import dataclass, field

ARITHMETIC = ("sums", "steps")


@dataclass(frozen=True)
class Task:
    """A data set with its reward.

    train, eval: rows {"prompt": "27+58=", "answer": "85"}, with no prompt in common.
    reward(prompts, completions, answer, **kwargs): one float a row, 1.0 or 0.0.
    max_completion_length, prompt_length: in tokens, room for every right completion (EOS counted)
        and for every prompt.
    """

    name: str
    train: list[dict[str, str]] = field(repr=False)
    eval: list[dict[str, str]] = field(repr=False)
    reward: Callable[..., list[float]] = field(repr=False)
    max_completion_length: int
    prompt_length: int


def load_task(name: str) -> Task:
    """The task of that name, read from the data folder.

    Raises ValueError, with the names there are, for any other name.
    """
    if name not in ARITHMETIC:
        known = " and ".join(map(repr, ARITHMETIC))
        raise ValueError(f"there is no task {name!r}: the built-in tasks are {known}")
    from rlkit.tasks import arithmetic

    return arithmetic.load(name)
