"""A dataset of prompts: checked and tokenised once, then handed out in a keyed order."""

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from torch import Tensor


class Prompts:
    """Rows in TRL's form: a column `prompt` (text, or a list of messages) and any others.

    Which prompts a step sees is a pure function of (seed, step), so a resumed run needs no state.
    """

    def __init__(
        self,
        dataset: Sequence[dict[str, Any]],
        tokenizer: Any,
        *,
        field: str,
        context_length: int | None = None,
        max_completion_length: int = 0,
    ) -> None:
        """dataset: a list of dicts, or a datasets.Dataset. field: its name in error messages.

        Raises ValueError for an empty dataset, a missing prompt column and a prompt that leaves
        the completion no room in context_length tokens.
        """
        self.rows = read_rows(dataset, field)
        self.pad_id = tokenizer.pad_token_id
        self.ids = [encode(row["prompt"], tokenizer) for row in self.rows]
        longest = max(range(len(self.ids)), key=lambda i: len(self.ids[i]))
        length = len(self.ids[longest])
        if context_length is not None and length + max_completion_length > context_length:
            raise ValueError(
                f"prompt {longest} of {field} has {length} tokens and max_completion_length="
                f"{max_completion_length}, but the model's context holds {context_length}; "
                "drop long prompts or lower max_completion_length"
            )
        if empty := [i for i, ids in enumerate(self.ids) if not ids]:
            raise ValueError(f"prompt {empty[0]} of {field} has no tokens; drop it")

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, step: int, count: int, seed: int) -> list[int]:
        """The rows of one step: `count` in a row from shuffled passes over the dataset."""
        epoch, start = divmod(step * count, len(self))
        return list(islice(self._shuffled(epoch, seed), start, start + count))

    def _shuffled(self, epoch: int, seed: int) -> Iterator[int]:
        while True:
            yield from shuffled(len(self), epoch, seed)
            epoch += 1

    def batch(self, indices: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """prompt_ids, prompt_mask: [len(indices), P], padded on the left."""
        return pad_left([self.ids[i] for i in indices], self.pad_id, device)

    def columns(self, indices: Sequence[int]) -> dict[str, list[Any]]:
        """Every column but the prompt, for the reward functions."""
        names = [name for name in self.rows[0] if name != "prompt"]
        return {name: [self.rows[i][name] for i in indices] for name in names}


def read_rows(dataset: Sequence[dict[str, Any]], field: str) -> list[dict[str, Any]]:
    """The rows as dicts, all with the same columns and a prompt of text or messages."""
    if not hasattr(dataset, "__len__") or isinstance(dataset, dict | str):
        kind = type(dataset).__name__
        raise ValueError(f"{field} is of type {kind}; give a list of dicts or a datasets.Dataset")
    if not len(dataset):
        raise ValueError(f"{field} is empty; give it at least one row with a 'prompt'")
    rows = [dict(dataset[i]) for i in range(len(dataset))]
    if "prompt" not in rows[0]:
        columns = ", ".join(map(repr, rows[0]))
        raise ValueError(f"{field} has no column 'prompt' (it has {columns}); rename one")
    for i, row in enumerate(rows):
        if missing := rows[0].keys() - row.keys():
            raise ValueError(f"row {i} of {field} lacks {sorted(missing)}, which row 0 has")
        if not isinstance(row["prompt"], str | list):
            kind = type(row["prompt"]).__name__
            raise ValueError(f"prompt {i} of {field} is of type {kind}; give text or messages")
    return rows


@lru_cache(maxsize=4)
def shuffled(size: int, epoch: int, seed: int) -> list[int]:
    """0 .. size-1 in the order of one pass over the dataset; the last few are remembered."""
    order = list(range(size))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order


def encode(prompt: str | list[dict[str, str]], tokenizer: Any) -> list[int]:
    """Token ids of a text as it is, or of messages through the tokenizer's chat template."""
    if isinstance(prompt, str):
        return tokenizer(prompt, add_special_tokens=True)["input_ids"]
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def pad_left(sequences: list[list[int]], pad_id: int, device: Any) -> tuple[Tensor, Tensor]:
    """ids [B, P] int64 and mask [B, P] bool, the text flush right where the completion begins."""
    width = max(map(len, sequences))
    ids = torch.tensor([[pad_id] * (width - len(s)) + s for s in sequences], device=device)
    lengths = torch.tensor([len(s) for s in sequences], device=device)
    mask = torch.arange(width, device=device) >= width - lengths[:, None]
    return ids, mask


def check_tokenizer(tokenizer: Any, vocab_size: int) -> None:
    """A tokenizer that fits the model; one without a padding token pads with EOS from now on.

    Masks are found by the first EOS, so padding that looks like EOS does no harm.
    Raises ValueError if there is no EOS, if the model knows fewer tokens than the tokenizer, or
    far more.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError(
            "the tokenizer (processing_class) has no EOS token, so no completion could end; "
            "set tokenizer.eos_token"
        )
    if len(tokenizer) > vocab_size:
        raise ValueError(
            f"the tokenizer (processing_class) has {len(tokenizer)} tokens but the model only "
            f"{vocab_size}; load both from the same place"
        )
    if vocab_size > 1.25 * len(tokenizer) + 128:  # more than any model is padded by
        raise ValueError(
            f"the model has {vocab_size} tokens but the tokenizer (processing_class) only "
            f"{len(tokenizer)}; load both from the same place"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token


def eos_ids(tokenizer: Any, model: torch.nn.Module) -> list[int]:
    """Every token that ends a completion: the tokenizer's, and those of the generation config."""
    config = getattr(model, "generation_config", None)
    more = getattr(config, "eos_token_id", None)
    more = [] if more is None else [more] if isinstance(more, int) else list(more)
    return sorted({tokenizer.eos_token_id, *more})
