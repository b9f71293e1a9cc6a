"""Where in the model an operation runs, forward and backward.

Forward: a stack of the modules whose `forward` has begun. Backward: autograd numbers its nodes in
the order in which they were made, so the number of a node tells in whose forward it was made.
"""

import weakref
from bisect import bisect_right
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

MANY = 200_000
"""Entries and exits of modules that are remembered: some hundred forward passes."""


class Place(NamedTuple):
    """A module, and what it says about bytes that are allocated in it."""

    model: str = ""
    path: str = ""
    head: torch.Size | None = None
    """In a head: the shape of its weight, [V, H]."""


NOWHERE = Place()


class Places:
    """The module that is running now."""

    def __init__(self, meter: Any) -> None:
        """meter: told of a model that it has not met (`learn`)."""
        self.meter = meter
        self.stack: list[Place] = []
        self.with_grad = True
        """Whether the outermost forward was begun to be differentiated."""
        self._known: dict[int, tuple[weakref.ref, Place]] = {}
        self._numbers: list[int] = []
        self._places: list[Place] = []
        self._handles: list[Any] = []
        self._names: set[str] = set()
        self.vocabularies: set[int] = set()
        """V of each model, where it is large enough to be told from other sizes."""

    def now(self) -> Place:
        """Of the operation that is running."""
        if self.stack:
            return self.stack[-1]
        if torch._C._current_graph_task_id() != -1:
            node = torch._C._current_autograd_node()
            if node is not None:
                return self.made(node._sequence_nr())
        return NOWHERE

    def made(self, number: int) -> Place:
        """In whose forward the node of this number was made."""
        at = bisect_right(self._numbers, number) - 1
        # the counter's largest number: the node that adds into a weight's gradient
        return NOWHERE if at < 0 or number >= 2**63 else self._places[at]

    def learn(self, name: str, root: nn.Module) -> None:
        """The modules of a model, by their paths."""
        self._names.add(name)
        if vocabulary := vocabulary_of(root):
            self.vocabularies.add(vocabulary)
        heads = heads_of(root)
        for path, module in root.named_modules():
            full = f"{name}.{path}" if path else name
            head = next((shape for at, shape in heads.items() if at in (path, parent(path))), None)
            self._remember(module, Place(name, full, head))

    def watch(self) -> None:
        """Follows every module's forward from now on."""
        self.stack.clear()
        self._numbers.clear()
        self._places.clear()
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def unwatch(self) -> None:
        """Ends watch."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _remember(self, module: nn.Module, place: Place) -> None:
        self._known[id(module)] = (weakref.ref(module), place)

    def _place(self, module: nn.Module) -> Place:
        reference, place = self._known.get(id(module), (None, NOWHERE))
        if reference is not None and reference() is module:
            return place
        if self.stack:
            above = self.stack[-1]
            place = above._replace(path=f"{above.path}.{type(module).__name__}")
            self._remember(module, place)
            # put into the model since: its weights are not known yet
            self.meter.watch_parameters(list(module.parameters()), above.model)
            return place
        name = base = type(module).__name__
        count = 1
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self.meter.learn(name, module)
        return self._known[id(module)][1]

    def _enter(self, module: nn.Module, args: Any) -> None:
        if self.meter.here():
            if not self.stack:
                self.with_grad = torch.is_grad_enabled()
            self.stack.append(self._place(module))
            self._note()

    def _leave(self, module: nn.Module, args: Any, out: Any) -> None:
        if self.stack and self.meter.here():
            self.stack.pop()
            self._note()

    def _note(self) -> None:
        self._numbers.append(torch.autograd._get_sequence_nr())
        self._places.append(self.stack[-1] if self.stack else NOWHERE)
        if len(self._numbers) > MANY:
            del self._numbers[: MANY // 2], self._places[: MANY // 2]


def parent(path: str) -> str:
    """The path of the module above."""
    return path.rpartition(".")[0]


def heads_of(root: nn.Module) -> dict[str, torch.Size]:
    """Paths of the output heads in a model -> shape [V, H] of their weights."""
    found = {}
    for module in root.modules():
        get = getattr(module, "get_output_embeddings", None)
        head = get() if callable(get) else None
        if isinstance(getattr(head, "weight", None), Tensor):
            found |= {p: head.weight.shape for p, m in root.named_modules() if m is head}
    return found


def vocabulary_of(root: nn.Module) -> int:
    """V, if a model says it and it cannot be mistaken for another size; else 0."""
    for module in root.modules():
        config = getattr(module, "config", None)
        size = getattr(config, "vocab_size", None)
        if isinstance(size, int):
            return size if size >= 1024 else 0
    return 0
