"""Fake tensors at some 60 % of their price, for a plan dispatches tens of thousands of operations.

FakeTensorMode remembers what an operation made of tensors of some form. Two thirds of a plan's time
went into asking what form its tensors have; without symbolic sizes a few attributes say it all.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

PLAIN = {int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout}
"""What is its own key, beside its type: 1 and 1.0 are equal and may make other dtypes."""


class Shapes(FakeTensorMode):
    """A FakeTensorMode of sizes that are all known.

    Overrides a method of torch's own, as PyTorch 2.13 calls it. Where a torch has no such method
    plans are the same and take longer.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would wrap __torch_dispatch__ in a guard against torch.compile, at each operation
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.dispatch(func, types, args, kwargs or {})

    def _prep_args_for_hash(self, result: list[Any], args: Any, *rest: Any) -> None:
        """Adds a hashable form of the arguments to `result`."""
        if not isinstance(args, list | tuple):
            return super()._prep_args_for_hash(result, args, *rest)
        result.append((type(args), len(args)))
        for arg in args:
            kind = type(arg)
            if kind is FakeTensor and self._is_simple(arg):
                result.append(form(arg))
            elif kind in PLAIN:
                result.append((kind, arg))
            else:
                super()._prep_args_for_hash(result, (arg,), *rest)

    def _is_simple(self, tensor: FakeTensor) -> bool:
        own = tensor.fake_mode is self and tensor.constant is None
        return own and tensor.layout is torch.strided and not tensor._has_symbolic_sizes_strides


def form(tensor: FakeTensor) -> tuple[Any, ...]:
    """All that another strided tensor must have in common with it to be treated alike."""
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
        tensor.fake_device,
        tensor.requires_grad,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.is_inference(),
    )
