"""Tasks: data sets with a reward, both in TRL's form, so that they carry over to TRL unchanged."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ARITHMETIC = ("sums", "steps")


@dataclass(frozen=True)
class Task:
    """A data set with its reward.

    train, eval: rows {"prompt": "27+58=", "answer": "85"}, with no prompt in common; a prompt is a
        text, or a list of messages.
    reward(prompts, completions, answer, **kwargs): one float a row, 1.0 or 0.0.
    max_completion_length, prompt_length: in tokens, room for every right completion (EOS counted)
        and for every prompt.
    """

    name: str
    train: list[dict[str, Any]] = field(repr=False)
    eval: list[dict[str, Any]] = field(repr=False)
    reward: Callable[..., list[float]] = field(repr=False)
    max_completion_length: int
    prompt_length: int


def load_task(name: str, tokenizer: Any = None) -> Task:
    """The task of that name: "sums" and "steps" are built in, "gsm8k" is read from disk or the hub.

    tokenizer: the model's; gsm8k's prompts are messages if its chat template fits, else text.
    Raises ValueError, with the names there are, for any other name.
    """
    if name == "gsm8k":
        from rlkit.tasks import gsm8k

        return gsm8k.load(chat=tokenizer is not None and gsm8k.answers_chat(tokenizer))
    if name not in ARITHMETIC:
        known = " and ".join(map(repr, ARITHMETIC))
        raise ValueError(
            f"there is no task {name!r}: the built-in tasks are {known}, and there is 'gsm8k'"
        )
    from rlkit.tasks import arithmetic

    return arithmetic.load(name)
