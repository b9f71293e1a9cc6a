"""Calling reward functions, in TRL's form:

    reward(prompts, completions, completion_ids=..., <dataset columns>, **kwargs) -> [number | None]

None says "I do not score this row". What a function returns is checked before anything learns from
it: one wrong reward in silence costs more than a stop.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

FLOAT32_MAX = torch.finfo(torch.float32).max
RewardFunc = Callable[..., Sequence[float | None]]


def as_list(reward_funcs: RewardFunc | Sequence[RewardFunc]) -> list[RewardFunc]:
    """One function or several -> a list. Raises TypeError for anything that cannot be called."""
    funcs = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    if not funcs:
        raise TypeError("reward_funcs is empty; give at least one function")
    for func in funcs:
        if isinstance(func, torch.nn.Module):
            kind = type(func).__name__
            raise TypeError(f"reward_funcs holds a {kind}; give a function that scores with it")
        if not callable(func):
            raise TypeError(f"reward_funcs holds {func!r}, which is not a function")
    return funcs


def func_names(funcs: Sequence[RewardFunc]) -> list[str]:
    """The names under which they are logged; a name that comes again gets a number."""
    names = [func_name(func) for func in funcs]
    seen = [names[: i + 1].count(name) for i, name in enumerate(names)]
    return [n if count == 1 else f"{n}_{count}" for n, count in zip(names, seen, strict=True)]


def func_name(func: RewardFunc) -> str:
    """The name under which a reward function is logged."""
    return getattr(func, "__name__", type(func).__name__)


def score(
    funcs: Sequence[RewardFunc],
    prompts: list[Any],
    completions: list[Any],
    completion_ids: list[list[int]],
    columns: dict[str, list[Any]],
    **context: Any,
) -> Tensor:
    """Rewards [B, number of functions] float32; NaN where a function returned None.

    columns: the dataset's other columns, one value a completion. context: passed on as they are.
    Raises ValueError for a wrong count or type, NaN or inf; RuntimeError if a function raises.
    """
    rewards = []
    for func in funcs:
        name = func_name(func)
        ours = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids}
        try:
            values = func(**columns | context | ours)
        except Exception as error:
            raise RuntimeError(
                f"reward function {name!r} raised {type(error).__name__}: {error}"
            ) from error
        rewards.append(checked(name, values, len(completions)))
    return torch.tensor(rewards, dtype=torch.float32).T


def checked(name: str, values: Any, count: int) -> list[float]:
    """What a reward function returned, as floats; None becomes NaN."""
    if isinstance(values, Tensor):
        values = values.tolist()
    if values is None or isinstance(values, str | dict) or not hasattr(values, "__len__"):
        raise ValueError(
            f"reward function {name!r} returned {values!r}; it must return a list with one number "
            f"for each of the {count} completions (None for a row that it does not score)"
        )
    if len(values) != count:
        raise ValueError(
            f"reward function {name!r} returned {len(values)} values for {count} completions; "
            "return one for each"
        )
    return [number(name, i, value) for i, value in enumerate(values)]


def number(name: str, row: int, value: Any) -> float:
    """One reward as a float; None becomes NaN, NaN and inf are refused."""
    if value is None:
        return math.nan
    try:
        if isinstance(value, str):
            raise TypeError
        result = float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"reward function {name!r} returned {value!r} for completion {row}; it must be a number"
        ) from None
    if not abs(result) <= FLOAT32_MAX:
        raise ValueError(
            f"reward function {name!r} returned {result} for completion {row}; return a finite "
            "number, or None to leave the row out"
        )
    return result


def combine(rewards_per_func: Tensor, weights: Sequence[float] | None) -> Tensor:
    """Weighted sum [B] over the functions that scored a row; NaN where none did."""
    if weights is None:
        weights = [1.0] * rewards_per_func.size(1)
    if len(weights) != rewards_per_func.size(1):
        raise ValueError(
            f"reward_weights has {len(weights)} values for {rewards_per_func.size(1)} reward "
            "functions; give one for each"
        )
    total = (rewards_per_func * torch.tensor(weights)).nansum(1)
    return total.masked_fill(rewards_per_func.isnan().all(1), torch.nan)
