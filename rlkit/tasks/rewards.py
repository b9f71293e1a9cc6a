"""Reward functions that are not tied to a task, in TRL's form."""

from collections.abc import Callable
from typing import Any


def soft_overlong_punishment(
    max_completion_len: int, soft_punish_cache: int
) -> Callable[..., list[float]]:
    """A reward function that warns a completion before it is cut off.

    0 up to max_completion_len - soft_punish_cache tokens, then falling linearly to -1 at
    max_completion_len and beyond. Yu et al. 2025 (DAPO), arXiv:2503.14476, equation 13; TRL's
    get_soft_overlong_punishment under the same argument names.
    """
    free = max_completion_len - soft_punish_cache

    def soft_overlong_punishment(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        """TRL's form: one number a completion, from its length in tokens."""
        return [punishment(len(ids)) for ids in completion_ids]

    def punishment(length: int) -> float:
        if length <= free:
            return 0.0
        if length > max_completion_len:
            return -1.0
        return (free - length) / soft_punish_cache

    return soft_overlong_punishment
