"""Live bytes by category while a model trains: on a CPU, on a GPU, under fake tensors.

    with Meter(model) as meter:
        train()
    meter.peak, meter.at_peak.line, meter.timeline.by_category

A meter sees every operation as it is dispatched, and every storage that one makes, until the
storage is freed. What a storage is for is known from where it was made: the phase, the module, the
operation; and from what happens to it: saved for the backward pass, put into a gradient, gathered
from other ranks. It follows the thread that entered it, and the backward passes started there.

On a CPU the total is what the allocator says after each operation; memory that an operation takes
and gives back inside itself is not seen. On CUDA the rest up to the allocator's own number is the
category "unattributed". A meter keeps nothing alive. It costs some 15 to 20 microseconds an
operation, half of them torch's own way into Python: the steps of the smallest models take half as
long again, and the larger the tensors, the less there is to notice.
Left out on purpose: sparse tensors, tensors that only C++ knew before the meter was entered.
"""

import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from rlkit.memory import rules
from rlkit.memory.device import Probe, probe
from rlkit.memory.ledger import Entry, Ledger, alive, off_resize, on_resize
from rlkit.memory.marks import set_meter
from rlkit.memory.places import Place, Places
from rlkit.memory.timeline import Kind, Moment, Recorder, Timeline, grouped

DEVICE = torch.ops.prim.device.default


class Meter(TorchDispatchMode):
    """A context manager that counts live bytes; read it during or after."""

    def __init__(
        self,
        source: Any = None,
        *,
        device: str | None = None,
        samples: int = 20_000,
    ) -> None:
        """source: whose models to tell apart: an nn.Module, a dict of them by name, or an object
            that holds some (a trainer: policy, reference, value_model). None: all weights count
            as "param", and modules bear the name of their class.
        device: "cuda" or "cpu"; None: the GPU if there is one. Other tensors are not counted.
        samples: most rows of the timeline; beyond it neighbours are merged.
        """
        super().__init__()
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.samples = samples
        # weakly, for whoever keeps a meter for its numbers need not keep the models too
        self._models = {name: weakref.ref(m) for name, m in models_of(source).items()}
        self.ledger, self.places = Ledger(self.device), Places(self)
        self.probe: Probe | None = probe(self.device)
        self._marked: list[str] = []
        self._held: list[str] = []
        self._handles: list[Any] = []
        self._watched: set[int] = set()
        self._stepping = False
        self.clear()

    # --- what it found

    @property
    def timeline(self) -> Timeline:
        """All samples since the meter was entered, or `clear`ed."""
        return Timeline(list(self.ledger.kinds), self._recorder.all())

    @property
    def total(self) -> int:
        """Live bytes now."""
        return self.ledger.total

    @property
    def live(self) -> dict[str, int]:
        """Live bytes now, by category; they add up to the total."""
        return grouped(list(self.ledger.kinds), self.ledger.amounts, "category")

    @property
    def peak(self) -> int:
        """The most bytes that were alive at once."""
        return self._peak[2]

    @property
    def at_peak(self) -> Moment:
        """The peak by category and model, and what caused it."""
        _, phase, total, amounts, op, (module, line) = self._peak
        kinds = list(self.ledger.kinds)
        return Moment(
            total,
            grouped(kinds, amounts, "category"),
            grouped(kinds, amounts, "model"),
            phase,
            op,
            module,
            line,
        )

    def clear(self) -> None:
        """Forgets the samples and the peak; what is alive stays counted."""
        self.start = time.perf_counter()
        self._recorder = Recorder(self.samples)
        self._last_phase = "other"
        now = (0.0, "other", self.ledger.total, tuple(self.ledger.amounts))
        self._peak = (*now, "", ("", ""))
        self._recorder.add(now)

    # --- on and off

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        self.ledger, self.places = Ledger(self.device), Places(self)
        self.ledger.fake_mode = active_fake_mode()
        self._take_stock()
        self._outer = set_meter(self)
        on_resize(self._resized)
        self.places.watch()
        self._handles += [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        self._saving = torch.autograd.graph.saved_tensors_hooks(self._save, unchanged)
        self._saving.__enter__()
        super().__enter__()
        self.clear()
        return self

    def __exit__(self, *error: Any) -> None:
        self._sample("", ("", ""))
        super().__exit__(*error)
        self._saving.__exit__(*error)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._watched.clear()
        self.places.unwatch()
        off_resize(self._resized)
        set_meter(self._outer)
        self.ledger.close()

    def here(self) -> bool:
        """Whether the caller runs in what this meter follows."""
        if threading.get_ident() == self._thread:
            return True
        # backward passes on a GPU run in a thread of their own, which takes the modes along
        return self in torch.utils._python_dispatch._get_current_dispatch_mode_stack()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Inside, samples bear this phase."""
        self._marked.append(name)
        try:
            yield
        finally:
            self._marked.pop()
            self._last_phase = "other"

    @contextmanager
    def holding(self, category: str) -> Iterator[None]:
        """Inside, what is allocated is of this category."""
        self._held.append(category)
        try:
            yield
        finally:
            self._held.pop()

    # --- what is there before anything happens

    def _take_stock(self) -> None:
        """Counts every tensor that Python knows."""
        models = {name: found for name, get in self._models.items() if (found := get())}
        for name, module in models.items():
            self.learn(name, module)
        tensors, modules, optimizers = alive(Tensor, nn.Module, torch.optim.Optimizer)
        if not models:
            for module in modules:
                self._mark_all(module._buffers.values(), Kind("param", ""))
            self.watch_parameters([t for t in tensors if isinstance(t, nn.Parameter)], "")
        for optimizer in optimizers:
            self._mark_state(optimizer)
        for tensor in tensors:
            self._note(tensor)

    def learn(self, name: str, module: nn.Module) -> None:
        """A model by name: what its weights are, and where its modules lie."""
        self.places.learn(name, module)
        self.watch_parameters(list(module.parameters()), name)
        self._mark_all(module.buffers(), Kind("param", name))

    def watch_parameters(self, parameters: list[nn.Parameter], model: str) -> None:
        """Counts weights, and their gradients from now on. A weight belongs to the first model."""
        for p in parameters:
            if id(p) in self._watched:
                continue
            self._watched.add(id(p))
            self.ledger.mark(p, Kind("param", model))
            if p.grad is not None:
                self.ledger.mark(p.grad, Kind("grad", model))
            if p.requires_grad:
                self._handles.append(p.register_post_accumulate_grad_hook(self._mark_grad))

    def _note(self, tensor: Tensor) -> None:
        for part in rules.plain_parts(tensor):
            if self.ledger.entry(part) is None:
                self.ledger.add(part, self.ledger.number(Kind("other", "")))

    def _mark_all(self, tensors: Any, kind: Kind) -> None:
        for tensor in tensors:
            if tensor is not None:
                self.ledger.mark(tensor, kind)

    # --- what happens

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would wrap __torch_dispatch__ in a guard against torch.compile, at each operation
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and rules.wrapped(types):
            return NotImplemented  # a sharded tensor first takes its operation apart
        if func is DEVICE and type(args[0]) is FakeTensor:
            out = args[0].fake_device  # C++ asks for it more often than it calls operations
        else:
            out = func(*args, **kwargs) if kwargs else func(*args)
        if isinstance(out, Tensor):
            self._see(func, args, out)
        elif isinstance(out, list | tuple):
            for leaf in rules.tensors_in(out):
                self._see(func, args, leaf)
        if func.namespace in rules.COLLECTIVE:
            for tensor in rules.gathered(func, args, kwargs):
                self.ledger.mark(tensor, Kind("all_gather", self.places.now().model))
        if self.ledger.changed:
            self._sample(func)
        return out

    def _see(self, func: Any, args: Any, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        entry = self.ledger.known(storage._cdata)
        if entry is None:
            place = self.places.now()
            category = self._held[-1] if self._held else self._category(func, args, tensor, place)
            self.ledger.add(tensor, self.ledger.number(Kind(category, place.model)))
        elif entry.nbytes != (nbytes := storage.nbytes()):
            self.ledger.resize(entry, nbytes)

    def _category(self, func: Any, args: Any, tensor: Tensor, place: Place) -> str:
        phase, vocabularies = self._phase(), self.places.vocabularies
        return rules.category(func, args, tensor, self.ledger, place, phase, vocabularies)

    def _phase(self) -> str:
        if self._stepping:
            now = "step"
        elif torch._C._current_graph_task_id() != -1:
            now = "backward"
        elif self._marked:
            return self._marked[-1]
        elif self.places.stack:
            now = "forward" if self.places.with_grad else "score"
        elif self._last_phase == "backward":
            now = "step"  # clipping
        else:
            return self._last_phase  # between modules: the loss belongs to the forward pass
        self._last_phase = now
        return now

    def _sample(self, func: Any, cause: tuple[str, str] | None = None) -> None:
        ledger = self.ledger
        seconds = time.perf_counter() - self.start
        if self.probe is not None:
            self.probe.settle(ledger, seconds)
        row = (seconds, self._phase(), ledger.total, tuple(ledger.amounts))
        self._recorder.add(row)
        if ledger.total > self._peak[2]:
            cause = cause or (self.places.now().path, rules.caller())
            self._peak = (*row, str(func), cause)
        ledger.changed = False

    def _save(self, tensor: Tensor) -> Tensor:
        """The backward pass will need it."""
        entry = self.ledger.entry(tensor)
        if entry is not None:
            category, model = self.ledger.kinds[entry.kind]
            if category == "temporary":
                self.ledger.move(entry, self.ledger.number(Kind("activation", model)))
        # an output saved as it is would hold the node that holds it
        return tensor if tensor.is_leaf else detached(tensor)

    def _mark_grad(self, parameter: Tensor) -> None:
        if parameter.grad is not None and self.here():
            owner = self.ledger.kind_of(next(rules.plain_parts(parameter)))
            model = owner.model if owner else ""
            self.ledger.mark(parameter.grad, Kind("grad", model))

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.here():
            self._stepping = True
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._mark_grad(parameter)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.here():
            self._stepping = False
            self._mark_state(optimizer)

    def _mark_state(self, optimizer: Any) -> None:
        for parameter, state in optimizer.state.items():
            owner = self.ledger.kind_of(next(rules.plain_parts(parameter)))
            kind = Kind("optimizer", owner.model if owner else "")
            self._mark_all((x for x in state.values() if isinstance(x, Tensor)), kind)

    def _resized(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        entry: Entry | None = self.ledger.known(storage._cdata)
        if entry is not None:
            self.ledger.resize(entry, nbytes)


def unchanged(tensor: Tensor) -> Tensor:
    """What was saved comes back as it is."""
    return tensor


def detached(tensor: Tensor) -> Tensor:
    """The same storage without a graph; where the tensor is real, unseen by the modes."""
    if type(tensor) is not Tensor:
        return tensor.detach()
    with torch._C._DisableTorchDispatch():
        return tensor.detach()


def models_of(source: Any) -> dict[str, nn.Module]:
    """The models of a module, a dict of them, or an object that holds some, by name.

    Raises TypeError for anything else.
    """
    if source is None:
        return {}
    if isinstance(source, nn.Module):
        return {"policy": source}
    values = source if isinstance(source, Mapping) else getattr(source, "__dict__", {})
    found = {str(k).removesuffix("_model"): v for k, v in values.items() if is_module(v)}
    if not found:
        kind = type(source).__name__
        raise TypeError(f"source is a {kind} that holds no model; give a module or a dict of them")
    return found


def is_module(value: Any) -> bool:
    """Whether it is a model."""
    return isinstance(value, nn.Module)
