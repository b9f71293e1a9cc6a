"""Ways through the head that must all give the same numbers, and what they are tried on."""

import pytest
import torch

from rlkit.head import token_logps

MODES = ("full", "chunked")  # in torch
WAYS = {
    "full": dict(mode="full"),
    "chunked": dict(mode="chunked", backend="torch"),
    "triton": dict(mode="chunked", backend="triton"),
}
"""Name -> arguments of token_logps and Head."""
LOSS_WAYS = WAYS | {
    "fused": dict(mode="fused", backend="torch"),
    "fused triton": dict(mode="fused", backend="triton"),
}
"""Those of Head with an objective."""


@pytest.fixture(params=WAYS)
def way(request) -> dict:
    """Each of WAYS in turn."""
    return WAYS[request.param]


def moved(values, backend: str | None):
    """Tensors, or dicts of tensors and other things, to where the backend works.

    Triton takes a GPU if there is one, else its interpreter (conftest.py).
    """
    if isinstance(values, dict):
        return {key: moved(value, backend) for key, value in values.items()}
    elsewhere = backend == "triton" and torch.cuda.is_available()
    return values.cuda() if elsewhere and isinstance(values, torch.Tensor) else values


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def leaf(values, dtype=torch.float64):
    return torch.as_tensor(values, dtype=dtype).clone().requires_grad_()


def largest_error(found, wanted):
    """NaN if anything is: then it is below no bound."""
    errors = [(f.double() - w.double()).abs().max() for f, w in zip(found, wanted, strict=True)]
    return torch.stack(errors).max().item()


def run(inputs, targets, d_logp, d_entropy=None, **options):
    """logp, entropy and the gradients of `inputs`, a dict of hidden, weight, bias, u, B."""
    backend = options.get("backend")
    leaves = {k: v.detach().clone().requires_grad_() for k, v in moved(inputs, backend).items()}
    targets, d_logp, d_entropy = (moved(x, backend) for x in (targets, d_logp, d_entropy))
    options, named = moved(options, backend), dict(leaves)
    if "u" in named:
        options["low_rank"] = named.pop("u"), named.pop("B")
    logp, entropy = token_logps(targets=targets, **named, **options)
    loss = (logp * d_logp).sum()
    loss = loss if d_entropy is None else loss + (entropy * d_entropy).sum()
    loss.backward()
    found = [logp.detach()] + ([] if entropy is None else [entropy.detach()])
    return [x.cpu() for x in found + [leaf.grad for leaf in leaves.values()]]


def scores(inputs, targets, **options):
    """token_logps on the backend's device; results on the CPU."""
    backend = options.get("backend")
    named, targets, options = (moved(x, backend) for x in (dict(inputs), targets, options))
    if "u" in named:
        options["low_rank"] = named.pop("u"), named.pop("B")
    return [x if x is None else x.cpu() for x in token_logps(targets=targets, **named, **options)]


def random_inputs(N, V, H, dtype=torch.float64, seed=0, bias=False, rank=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    inputs = {"hidden": normal(N, H), "weight": normal(V, H)}
    if bias:
        inputs["bias"] = normal(V)
    if rank:
        inputs |= {"u": normal(N, rank), "B": normal(V, rank)}
    targets = torch.randint(V, (N,), generator=generator)
    return inputs, targets, normal(N).double(), normal(N).double()


def training_call(
    N,
    V,
    H,
    mode="chunked",
    train=("hidden", "weight"),
    entropy=True,
    dtype=torch.float32,
    **options,
):
    inputs, targets, d_logp, d_entropy = random_inputs(N, V, H, dtype)
    for key in train:
        inputs[key].requires_grad_()
    d_logp, d_entropy = d_logp.float(), d_entropy.float()

    def call():
        out = token_logps(targets=targets, **inputs, mode=mode, entropy=entropy, **options)
        loss = (out[0] * d_logp).sum()
        (loss + (out[1] * d_entropy).sum() if entropy else loss).backward()

    return call
