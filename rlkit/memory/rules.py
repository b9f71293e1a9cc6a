"""What freshly allocated bytes are for, from where they were made."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlkit.memory.ledger import Ledger, parts
from rlkit.memory.places import Place

aten = torch.ops.aten
TORCH = str(Path(torch.__file__).parent)
OURS = str(Path(__file__).parent)
COLLECTIVE = frozenset(("c10d", "_c10d_functional", "fsdp"))
"""Namespaces of operations that move weights between ranks."""

plain_parts = parts


def category(
    func: Any,
    args: Any,
    tensor: Tensor,
    ledger: Ledger,
    place: Place,
    phase: str,
    vocabularies: set[int],
) -> str:
    """Of a new storage: the output `tensor` of an operation."""
    source = first_kind(args, ledger)
    if func is aten._to_copy.default and source in ("param", "all_gather"):
        return "cast"
    if phase == "step":
        return "optimizer" if func is aten.zeros_like.default else "temporary"
    if phase == "backward":
        if func is aten.embedding_dense_backward.default or source == "grad":
            return "grad"
    if phase == "generate" and is_cache(func, args, tensor, source, place):
        return "kv_cache"
    if place.head is not None:
        is_weight = tensor.shape == place.head and tensor.dtype in (torch.float32, torch.float64)
        return "grad" if is_weight else "logits"
    if tensor.dim() > 1 and tensor.shape[-1] in vocabularies:
        return "logits"
    return "temporary"


def first_kind(args: Any, ledger: Ledger) -> str:
    """The category of an operation's first argument; empty if it is no tensor we know."""
    first = args[0] if args else None
    if isinstance(first, list | tuple) and first:
        first = first[0]
    if not isinstance(first, Tensor):
        return ""
    entry = ledger.entry(first)
    return "" if entry is None else ledger.kinds[entry.kind].category


def is_cache(func: Any, args: Any, tensor: Tensor, source: str, place: Place) -> bool:
    """Whether these are the keys or values of the text so far, [B, heads, S, d].

    They grow by being joined along S, and outside of the model are repeated or picked by row.
    """
    if func is aten.cat.default:
        dim = args[1] if len(args) > 1 else 0
        return tensor.dim() == 4 and dim in (-2, 2)
    return source == "kv_cache" and not place.path


def wrapped(types: Any) -> bool:
    """Whether a type of tensor has plain tensors inside (a sharded one)."""
    return any(hasattr(t, "__tensor_flatten__") for t in types)


def gathered(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors into which an operation puts weights of all ranks."""
    name = str(func)
    if "allgather" in name or "all_gather_into" in name:
        yield from tensors_in(args[0])
    elif "split_with_sizes_copy" in name:
        yield from tensors_in((kwargs or {}).get("out"))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Of an argument that is a tensor or nested lists of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for x in value:
            yield from tensors_in(x)


def caller() -> str:
    """file:line function of the innermost frame outside of torch and of the meter."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((TORCH, OURS, "<")):
            return f"{short(code.co_filename)}:{frame.f_lineno} {code.co_name}"
        frame = frame.f_back
    return ""


def short(path: str) -> str:
    """The end of a path, from the package on."""
    parts = Path(path).parts
    for mark in ("site-packages", "dist-packages"):
        if mark in parts:
            return "/".join(parts[parts.index(mark) + 1 :])
    return "/".join(parts[-2:])
