"""Which bytes are alive, storage by storage.

A tensor's bytes belong to its storage, which views share. A weak reference to each storage says
when it is gone, at that moment and without asking anybody.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rlkit.memory.timeline import Kind


class Entry(weakref.ref):
    """A storage that is alive: its size, and which kind of bytes it counts as."""

    __slots__ = ("key", "kind", "nbytes")
    key: int
    kind: int
    nbytes: int


class Ledger:
    """Live bytes of one type of device, by kind."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.fake_mode: Any = None
        """Whose fake tensors are counted, in the place of real ones; None: real ones."""
        self.kinds: list[Kind] = []
        self.amounts: list[int] = []
        self.total = 0
        self.changed = False
        self._numbers: dict[Kind, int] = {}
        self._entries: dict[int, Entry] = {}

    def number(self, kind: Kind) -> int:
        """The place of a kind in `amounts`."""
        found = self._numbers.get(kind)
        if found is None:
            found = self._numbers[kind] = len(self.kinds)
            self.kinds.append(kind)
            self.amounts.append(0)
        return found

    def entry(self, tensor: Tensor) -> Entry | None:
        """Of the tensor's storage, if it is known."""
        return self._entries.get(tensor.untyped_storage()._cdata)

    def kind_of(self, tensor: Tensor) -> Kind | None:
        """What the tensor's bytes count as, if they are known."""
        entry = self.entry(tensor)
        return None if entry is None else self.kinds[entry.kind]

    def known(self, key: int) -> Entry | None:
        """Of the storage with this key."""
        return self._entries.get(key)

    def add(self, tensor: Tensor, kind: int) -> Entry | None:
        """Counts a storage that is not known yet. None: it has no bytes on this device."""
        if not self.counts(tensor):
            return None
        storage = tensor.untyped_storage()
        entry = Entry(storage, self._forget)
        entry.key, entry.kind = storage._cdata, kind
        entry.nbytes = nbytes = storage.nbytes()
        self._entries[entry.key] = entry
        self.amounts[kind] += nbytes
        self.total += nbytes
        self.changed = True
        return entry

    def counts(self, tensor: Tensor) -> bool:
        """Whether a plain tensor has bytes on this device."""
        mode = getattr(tensor, "fake_mode", None)
        if mode is not self.fake_mode:
            return False
        if mode is None:
            return tensor.device.type == self.device
        # its `device` would dispatch an operation to say where it is
        return not mode.in_kernel_invocation and tensor.fake_device.type == self.device

    def resize(self, entry: Entry, nbytes: int) -> None:
        """The storage has grown, shrunk, or been freed without going away."""
        change = nbytes - entry.nbytes
        entry.nbytes = nbytes
        self.amounts[entry.kind] += change
        self.total += change
        self.changed = True

    def move(self, entry: Entry, kind: int) -> None:
        """The same bytes count as something else from now on."""
        if entry.kind != kind:
            self.amounts[entry.kind] -= entry.nbytes
            self.amounts[kind] += entry.nbytes
            entry.kind = kind
            self.changed = True

    def mark(self, tensor: Tensor, kind: Kind) -> None:
        """Counts a tensor, known or not, as this kind."""
        for part in parts(tensor):
            entry = self.entry(part)
            if entry is None:
                self.add(part, self.number(kind))
            else:
                self.move(entry, self.number(kind))

    def close(self) -> None:
        """Stops following storages."""
        self._entries.clear()

    def _forget(self, entry: Entry) -> None:
        # the key may belong to a new storage already, which then has an entry of its own
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
            self.resize(entry, 0)


def parts(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors that hold the bytes: a sharded one has its local part inside."""
    if is_traceable_wrapper_subclass(tensor):
        inside = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        for part in inside:
            if isinstance(part, Tensor):
                yield from parts(part)
    elif tensor.layout == torch.strided:
        yield tensor


def alive(*types: type) -> tuple[list[Any], ...]:
    """For each type, the objects of it that Python's garbage collector knows."""
    found: tuple[list[Any], ...] = tuple([] for _ in types)
    for x in gc.get_objects():
        for wanted, some in zip(types, found, strict=True):
            if issubclass(type(x), wanted):
                some.append(x)
    return found


_RESIZED: list[Callable[[Any, int], None]] = []
"""Who wants to know of every UntypedStorage.resize_, as (storage, bytes)."""
_resize = torch.UntypedStorage.resize_


def on_resize(told: Callable[[Any, int], None]) -> None:
    """FSDP frees gathered weights by resizing their storage, which no dispatch mode sees."""
    _RESIZED.append(told)
    torch.UntypedStorage.resize_ = _resize_and_tell


def off_resize(told: Callable[[Any, int], None]) -> None:
    """Ends on_resize."""
    _RESIZED.remove(told)
    if not _RESIZED:
        torch.UntypedStorage.resize_ = _resize


def _resize_and_tell(storage: torch.UntypedStorage, size: int) -> Any:
    result = _resize(storage, size)
    for told in list(_RESIZED):
        told(storage, size)
    return result
