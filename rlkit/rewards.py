"""Rewards of completions: functions and reward models, in TRL's form, in any mix.

    reward(prompts, completions, completion_ids=..., <dataset columns>, **kwargs) -> [number | None]

None says "I do not score this row". What a function returns is checked before anything learns from
it: one wrong reward in silence costs more than a stop. A reward model is a function too
(`ModelReward`): it scores in batches, without gradient, each rank its own rows.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlkit.distributed import World, release, units
from rlkit.logs import average
from rlkit.policy import causal_lm, load_tokenizer
from rlkit.prompts import Prompts, encode, pad_left
from rlkit.reward_model import RewardModel, load_reward_model, tokens_of
from rlkit.rollout import Rollout

FLOAT32_MAX = torch.finfo(torch.float32).max
RewardFunc = Callable[..., Sequence[float | None]]
RewardSource = RewardFunc | nn.Module | str | Path


class Rewards:
    """The reward functions of a run with their weights, and how a rollout meets them."""

    def __init__(
        self, funcs: Sequence[RewardFunc], weights: Sequence[float] | None, tokenizer: Any
    ) -> None:
        """tokenizer: the policy's, that turns completions into text."""
        self.funcs, self.weights, self.tokenizer = list(funcs), weights, tokenizer
        self.names = [f"reward/{name}" for name in func_names(self.funcs)]
        self.shown: list[dict[str, Any]] = []
        """The first completions that were scored last, with prompt and reward."""

    @property
    def model_funcs(self) -> list["ModelReward"]:
        """The reward models among them."""
        return [func for func in self.funcs if isinstance(func, ModelReward)]

    def fill_in(
        self,
        rollout: Rollout,
        prompts: Prompts,
        picked: list[int],
        world: World,
        state: SimpleNamespace,
    ) -> dict[str, float]:
        """Fills in the rollout's rewards; returns what functions logged by `log_metric`.

        picked: the prompt of each group of rows. state: what functions get as trainer_state.
        """
        world, group = world.over(len(picked)), len(rollout) // len(picked)
        mine = world.share(range(len(picked) * group))  # a part of whole groups
        rows = [picked[i // group] for i in mine]
        own = slice(mine.start, mine.stop)
        completions_and_masks = zip(rollout.completion_ids[own], rollout.mask[own], strict=True)
        ids = [tokens[mask].tolist() for tokens, mask in completions_and_masks]
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        questions = [prompts.rows[i]["prompt"] for i in rows]
        completions: list[Any] = texts
        if not isinstance(questions[0], str):
            completions = [[{"role": "assistant", "content": text}] for text in texts]
        logged: dict[str, float] = {}
        rewards = score(
            self.funcs,
            questions,
            completions,
            ids,
            prompts.columns(rows),
            trainer_state=state,
            log_metric=logged.__setitem__,
            log_extra=lambda name, values: None,
        )
        rewards = torch.cat(world.gather(rewards))
        total = combine(rewards, self.weights)
        shown = list(zip(questions, texts, total.tolist(), strict=False))[: 4 * group]
        self.shown = [{"prompt": q, "completion": c, "reward": r} for q, c, r in shown]
        device = rollout.mask.device
        rollout.rewards, rollout.rewards_per_func = total.to(device), rewards.to(device)
        return average(world.gather(logged))


# --- reward models


class ModelReward:
    """A reward model as a reward function."""

    def __init__(
        self,
        model: RewardModel,
        name: str,
        tokenizer: Any,
        policy_tokenizer: Any,
        eos_ids: Sequence[int],
        batch_size: int,
    ) -> None:
        """tokenizer: the model's. Where it is the policy's, completions are scored as the tokens
        that they are; else as text, with the model's EOS where the completion ends in one of the
        policy's (eos_ids). batch_size: completions scored at once.

        Raises ValueError if the tokenizer has more tokens than the model knows.
        """
        config = causal_lm(model.model).config.get_text_config()
        if len(tokenizer) > config.vocab_size:
            raise ValueError(
                f"reward model {name!r} knows {config.vocab_size} tokens but its tokenizer has "
                f"{len(tokenizer)}; give its own in reward_processing_classes"
            )
        self.__name__, self.model, self.batch_size = name, model, batch_size
        self.same_tokens = tokenizer.get_vocab() == policy_tokenizer.get_vocab()
        # the policy's own reads a prompt as the policy did, chat template and all
        self.tokenizer = policy_tokenizer if self.same_tokens else tokenizer
        self.eos_ids = frozenset(eos_ids)
        self.room = getattr(config, "max_position_embeddings", None)

    def read(self, prompt: Any, completion: Any, ids: list[int]) -> list[int]:
        """The tokens that the model sees."""
        if self.same_tokens:
            tokens = encode(prompt, self.tokenizer) + ids
        else:
            ended = bool(ids) and ids[-1] in self.eos_ids
            tokens = tokens_of(prompt, completion, self.tokenizer, ended)
        if self.room is not None and len(tokens) > self.room:
            raise ValueError(
                f"a completion makes {len(tokens)} tokens with its prompt, but the context of this "
                f"reward model holds {self.room}; lower max_completion_length"
            )
        return tokens

    @torch.no_grad()
    def __call__(
        self, prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **_: Any
    ) -> list[float]:
        """One float32 score a completion."""
        rows = list(map(self.read, prompts, completions, completion_ids))
        size, pad, device = self.batch_size, self.tokenizer.pad_token_id, self.model.device
        pad, found = pad or 0, []
        for i in range(self.batches(len(rows))):
            # a rank without rows takes part, for the others need its weights
            some = rows[i * size : (i + 1) * size]
            scores = self.model(*pad_left(some or [[pad]], pad, device))
            found += scores[: len(some)].tolist()
        release(self.model)
        return found

    def batches(self, rows: int) -> int:
        """How many, as many on every rank that holds a part of the weights."""
        count = -(-rows // self.batch_size)
        if not units(self.model):
            return count
        most = torch.tensor(count, device=self.model.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return int(most)


def with_models(
    sources: Sequence[RewardSource],
    tokenizers: Any,
    policy_tokenizer: Any,
    eos_ids: Sequence[int],
    batch_size: int,
    amp_dtype: torch.dtype | None,
) -> list[RewardFunc]:
    """Reward functions, with each model, folder or hub id among them made one; models are frozen.

    tokenizers: one for each source, or one for all, or None: a folder's or hub id's own, and the
        policy's for a model object. None for a function.
    Raises ValueError, TypeError or FileNotFoundError in one sentence.
    """
    if not isinstance(tokenizers, list | tuple):
        tokenizers = [tokenizers] * len(sources)
    if len(tokenizers) != len(sources):
        raise ValueError(
            f"reward_processing_classes has {len(tokenizers)} entries for {len(sources)} reward "
            "functions; give one for each (None for a function)"
        )
    funcs: list[RewardFunc] = []
    for source, tokenizer in zip(sources, tokenizers, strict=True):
        if isinstance(source, str | Path):
            try:
                source, tokenizer = (
                    load_reward_model(source),
                    tokenizer or load_tokenizer(source),
                )
            except (FileNotFoundError, ValueError) as error:
                raise type(error)(f"reward_funcs: {error}") from error
        if not isinstance(source, nn.Module):
            funcs.append(source)
            continue
        name = str(getattr(source.config, "_name_or_path", "")).rstrip("/").split("/")[-1]
        model = RewardModel(source, amp_dtype).requires_grad_(False).eval()
        name, tokenizer = name or type(source).__name__, tokenizer or policy_tokenizer
        funcs.append(ModelReward(model, name, tokenizer, policy_tokenizer, eos_ids, batch_size))
    return funcs


# --- functions


def as_list(reward_funcs: RewardSource | Sequence[RewardSource]) -> list[RewardSource]:
    """One reward or several -> a list. Raises TypeError for what can be no reward."""
    funcs = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    if not funcs:
        raise TypeError("reward_funcs is empty; give at least one function or reward model")
    for func in funcs:
        if isinstance(func, nn.Module) and not hasattr(func, "config"):
            kind = type(func).__name__
            raise TypeError(
                f"reward_funcs holds a {kind}; give a reward model of "
                "AutoModelForSequenceClassification, or a function that scores with yours"
            )
        if not callable(func) and not isinstance(func, str | Path):
            raise TypeError(f"reward_funcs holds {func!r}, which is neither function nor model")
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
