"""From hidden states to the log-prob of each chosen token, with and without all the logits.

    z       = softcap(scale * (h W^T + b)) / temperature       [N, V], the logits
    log_z   = log sum_v exp z_v                                [N]
    logp    = z_y - log_z                                      [N], y: the token that was chosen
    entropy = -sum_v p_v log p_v,  p = exp(z - log_z)          [N]

A model of 151,936 tokens has 594 KiB of float32 logits for each token it scores. The textbook way
(`full`) keeps them and their log-softmax until the backward pass, for the sake of two numbers a
token. `chunked` (chunked.py) never holds more than a tile of them and gives the same result.
`fused` (fused.py) takes the objective along and makes each logit once instead of twice.

    model.lm_head = Head.from_linear(model.lm_head)
    logp, entropy = model.lm_head(hidden, targets)
"""

from collections.abc import Callable, Sequence
from functools import reduce
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable

from rlkit.chunked import chunked_logps
from rlkit.config import unknown
from rlkit.optional import require
from rlkit.tiles import FAR, HALF, TORCH, Backend, Shaping, as_column, multiply, sum_dtype

TILE_BYTES = 64 * 2**20

MODES: dict[str, tuple[str, ...]] = {
    "full": ("torch",),
    "chunked": ("triton", "torch"),
    "fused": ("triton", "torch"),
}
"""Mode -> its backends, the preferred first."""


def token_logps(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    low_rank: tuple[Tensor, Tensor] | None = None,
    temperature: float | Tensor = 1.0,
    logit_softcap: float | None = None,
    logit_scale: float = 1.0,
    entropy: bool = True,
    mode: str = "chunked",
    backend: str = "auto",
    tile_bytes: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of each target and entropy of each distribution; both carry gradients.

    hidden: [N, H], one row a valid token (leave out masked ones before). N may be 0.
    weight: [V, H], bias: [V], used in hidden's dtype; their gradients come in their own, and a
        frozen one has none allocated. A bias of -inf shuts a token out: its probability is 0.
    targets: [N] int64 in 0..V-1. Their values are not checked: one out of range is undefined.
    low_rank: (u [N, r], B [V, r]) adds u B^T to h W^T. LoRA has u = scaling * hidden A^T.
    temperature: a number above 0, or a tensor of one element or [N]; it gets no gradient.
    mode: "full", "chunked", or "auto", which is full where all logits fit in tile_bytes.
    backend: "torch", "triton", or "auto": Triton on a GPU where it is installed, else torch.
        CPU tensors take Triton only in its interpreter, for tests. `full` is torch's alone.
    tile_bytes: what a tile of logits and its work copies may take; 64 MiB if None.
    Returns logp [N] and entropy [N] (None with entropy=False): float64 for float64, else float32,
    for sums are float32 even where the operands are bfloat16 or float16. Under autocast the
    operands take autocast's dtype, as in nn.Linear, but the logits are not rounded to it.
    Raises ValueError for shapes that do not fit, a temperature or softcap not above 0, an unknown
    mode and a backend that cannot do it here; ImportError for Triton where there is none.
    """
    check_shapes(hidden, weight, targets, bias, low_rank)
    dtype = operand_dtype(hidden)
    lefts, rights = [hidden.to(dtype)], [weight]
    if low_rank is not None:
        lefts, rights = [*lefts, low_rank[0].to(dtype)], [*rights, low_rank[1]]
    temperature = as_column(temperature, len(hidden), sum_dtype(dtype))
    shaping = Shaping(logit_scale, logit_softcap, temperature)
    tile_bytes = TILE_BYTES if tile_bytes is None else tile_bytes
    mode = choose(mode, backend, len(hidden) * len(weight) * 4, tile_bytes)
    operands = lefts, rights, bias, shaping, targets, entropy
    with torch.autocast(hidden.device.type, enabled=False):
        if mode == "full":
            return full_logps(*operands)
        return chunked_logps(*operands, tile_bytes, passes(backend, hidden))


def choose(mode: str, backend: str, full_bytes: int, tile_bytes: int) -> str:
    """The mode that is meant. "auto" looks at sizes and at the backend alone, never at data.

    Raises ValueError for an unknown mode, and a backend that the mode does not have.
    """
    if mode == "auto":
        fits = full_bytes <= tile_bytes and backend in ("auto", *MODES["full"])
        mode = "full" if fits else "chunked"
    if mode not in ("full", "chunked"):
        raise ValueError(unknown("mode", mode, ["auto", "full", "chunked"]))
    check_backend(mode, backend)
    return mode


def check_backend(mode: str, backend: str) -> None:
    """Raise ValueError where the mode does not have this backend."""
    if backend not in ("auto", *MODES[mode]):
        raise ValueError(unknown("backend", backend, ["auto", *MODES[mode]]))


def passes(backend: str, hidden: Tensor) -> Backend:
    """What passes over the tiles of these hidden states, the same in `chunked` and `fused`."""
    check_backend("fused", backend)
    on_gpu = hidden.is_cuda  # ROCm's too
    if backend == "auto":
        # fake tensors have no memory that a kernel could work on
        real = on_gpu and not isinstance(hidden, FakeTensor)
        backend = "triton" if real and find_spec("triton") else "torch"
    if backend == "torch":
        return TORCH
    require("triton", "backend='triton'")
    from rlkit import kernels

    if not (on_gpu or kernels.INTERPRETED):
        raise ValueError(
            f"backend='triton' needs tensors on a GPU, not on {hidden.device.type!r}: use "
            "backend='auto', or set TRITON_INTERPRET=1 before Python starts"
        )
    return kernels.TRITON


def check_shapes(hidden, weight, targets, bias, low_rank) -> None:
    """Raise ValueError, naming the argument, its shape and the one that fits."""
    if hidden.ndim != 2 or weight.ndim != 2:
        raise ValueError(
            f"hidden {[*hidden.shape]} must be [N, H], the valid tokens one below the other, and "
            f"weight {[*weight.shape]} must be [V, H]"
        )
    u, rank_rows = low_rank or (None, None)
    size, vocabulary = len(hidden), len(weight)
    rank = 0 if u is None else u.shape[-1]
    for name, tensor, shape in (
        ("weight", weight, [vocabulary, hidden.shape[1]]),
        ("targets", targets, [size]),
        ("bias", bias, [vocabulary]),
        ("low_rank[0]", u, [size, rank]),
        ("low_rank[1]", rank_rows, [vocabulary, rank]),
    ):
        if tensor is not None and [*tensor.shape] != shape:
            raise ValueError(f"{name} has shape {[*tensor.shape]} where {shape} fits")


def operand_dtype(hidden: Tensor) -> torch.dtype:
    """What both sides of the products are converted to: hidden's dtype, or autocast's if on."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return hidden.dtype


# ---- full: the textbook --------------------------------------------------------------------


def full_logps(
    lefts: list[Tensor],
    rights: list[Tensor],
    bias: Tensor | None,
    shaping: Shaping,
    targets: Tensor,
    entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    """All logits at once, in plain autograd: the oracle, and what memory is compared with."""
    # no name holds the logits, so that they are freed once their log-softmax is there
    log_probs = finite_(shaping.full(products(lefts, rights, bias)), entropy).log_softmax(-1)
    logp = log_probs.gather(1, targets[:, None]).squeeze(1)
    return logp, -(log_probs.exp() * log_probs).sum(-1) if entropy else None


def finite_(logits: Tensor, entropy: bool) -> Tensor:
    """For an entropy -inf becomes a number far below any logit, because 0 * inf is NaN.

    Autograd need not know: the gradient of such a logit is 0 either way.
    """
    if entropy:
        with torch.no_grad():
            logits.clamp_(min=1e5 * FAR)
    return logits


def products(lefts: list[Tensor], rights: list[Tensor], bias: Tensor | None) -> Tensor:
    """The sum of all left @ right^T, and the bias, [N, V]."""
    total = reduce(torch.add, map(project, lefts, rights))
    return total if bias is None else total + bias.to(total.dtype)


def project(left: Tensor, right: Tensor) -> Tensor:
    """left [N, k], right [V, k] -> left @ right^T, [N, V], with float32 sums."""
    right = right.to(left.dtype)
    return WideProduct.apply(left, right) if left.dtype in HALF else left @ right.T


class WideProduct(torch.autograd.Function):
    """left @ right^T of half-precision operands, [N, V] in float32, gradients in their dtype.

    Plain autograd would round the product, or keep float32 copies of both operands.
    """

    @staticmethod
    def forward(ctx, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return multiply(left, right.T, left.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        needs_left, needs_right = ctx.needs_input_grad
        dtype = left.dtype
        with torch.autocast(grad.device.type, enabled=False):
            d_left = multiply(grad, right, dtype).to(dtype) if needs_left else None
            d_right = multiply(grad.T, left, dtype).to(dtype) if needs_right else None
        return d_left, d_right


# ---- in lm_head's place --------------------------------------------------------------------


class Head(nn.Module):
    """A linear layer that, given targets, returns their log-probs instead of all logits.

    It holds `weight` [V, H] and `bias` [V] under nn.Linear's names, so checkpoints fit and a tied
    weight stays tied. The log-probs are computed inside `forward` because FSDP and DDP prepare a
    module's weight, and collect its gradient, around that call: never read the weight outside it.
    """

    def __init__(
        self,
        weight: nn.Parameter,
        bias: nn.Parameter | None = None,
        *,
        mode: str = "auto",
        backend: str = "auto",
        tile_bytes: int | None = None,
        logit_softcap: float | None = None,
        logit_scale: float = 1.0,
    ) -> None:
        """Shares the parameters given; the rest is token_logps' and applies to every call.

        mode: one more, "fused", is for calls with an objective, "chunked" for the others.
            "auto" is with an objective "full" where all logits fit in a tile, else "fused"; but
            "chunked" where the weight trains and products are of half precision.
        """
        super().__init__()
        if mode not in ("auto", *MODES):  # an error here, not in the first step
            raise ValueError(unknown("mode", mode, ["auto", *MODES]))
        check_backend("fused" if mode == "auto" else mode, backend)
        self.register_parameter("weight", weight)
        self.register_parameter("bias", bias)
        self.mode, self.backend, self.tile_bytes = mode, backend, tile_bytes
        self.logit_softcap, self.logit_scale = logit_softcap, logit_scale

    @classmethod
    def from_linear(cls, linear: nn.Linear, **options) -> "Head":
        """A head around the very Parameters of an nn.Linear; options as for Head."""
        return cls(linear.weight, linear.bias, **options)

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor | None = None,
        *,
        objective: Callable | None = None,
        low_rank: tuple[Tensor, Tensor] | None = None,
        temperature: float | Tensor = 1.0,
        entropy: bool = True,
        row_lengths: Sequence[int] | None = None,
        live: int | None = None,
        **batch,
    ):
        """Logits, log-probs or a loss, by what is given.

        hidden alone, [..., H]: the logits [..., V] of the nn.Linear it replaces, without scale and
            softcap, which a transformers model applies itself to what its lm_head returns.
        targets [N] with hidden [N, H]: (logp [N], entropy [N] or None), as token_logps, where
            low_rank and temperature are explained.
        objective as well: (loss, sums), from policy_loss, which says what `batch` holds.
            row_lengths, live: for `fused`, see fused_policy_loss; other modes have no use for them.
        """
        if objective is None and batch:
            raise TypeError(f"without an objective there is no use for {', '.join(batch)}")
        if targets is None:
            return F.linear(hidden, self.weight, self.bias)
        options = dict(
            bias=self.bias,
            low_rank=low_rank,
            temperature=temperature,
            logit_softcap=self.logit_softcap,
            logit_scale=self.logit_scale,
            entropy=entropy or (objective is not None and objective.needs_entropy),
            tile_bytes=self.tile_bytes,
            backend=self.backend,
        )
        mode = self.mode if objective is None else self.loss_mode(hidden)
        if objective is not None and mode == "fused":
            from rlkit.fused import fused_policy_loss  # which is built on this module

            known = dict(row_lengths=row_lengths, live=live)
            return fused_policy_loss(
                hidden, self.weight, targets, objective, **batch, **known, **options
            )
        mode = "chunked" if mode == "fused" else mode
        logp, entropy = token_logps(hidden, self.weight, targets, mode=mode, **options)
        if objective is None:
            return logp, entropy
        return policy_loss(objective, logp, entropy, **batch)

    def loss_mode(self, hidden: Tensor) -> str:
        """What "auto" means with an objective, by sizes and dtypes alone.

        Gradients in the forward pass sum dW tile after tile in float32. With a weight in half
        precision that is twice its size, which `chunked` never holds; under autocast each tile
        adds to all of dW, which takes longer than the fast product that it saves.
        """
        if self.mode != "auto":
            return self.mode
        tile_bytes = TILE_BYTES if self.tile_bytes is None else self.tile_bytes
        full_bytes = len(hidden) * len(self.weight) * 4
        if choose("auto", self.backend, full_bytes, tile_bytes) == "full":
            return "full"
        half = operand_dtype(hidden) in HALF
        return "chunked" if half and self.weight.requires_grad else "fused"

    def extra_repr(self) -> str:
        vocabulary, width = self.weight.shape
        ways = f"mode={self.mode}, backend={self.backend}"
        return f"{width} -> {vocabulary}, bias={self.bias is not None}, {ways}"


def policy_loss(
    objective: Callable,
    logp: Tensor,
    entropy: Tensor | None,
    *,
    index: Tensor,
    mask: Tensor,
    advantages: Tensor,
    logp_old: Tensor | None = None,
    **batch,
) -> tuple[Tensor, dict]:
    """Put the valid tokens back in their rows and ask the objective for (loss, sums).

    logp, entropy: [N]. index: [N] int64, where token n lies in the B * T positions of mask [B, T].
    The rest goes to the objective as it is (logp_ref, totals, ...); positions that no token fills
    hold 0.
    """
    logp = into_rows(logp, index, mask.shape)
    entropy = None if entropy is None else into_rows(entropy, index, mask.shape)
    return objective(logp, logp_old, advantages, mask, entropy=entropy, **batch)


def into_rows(values: Tensor, index: Tensor, shape: torch.Size) -> Tensor:
    """[N] -> [B, T], differentiably."""
    return values.new_zeros(shape.numel()).index_copy(0, index, values).view(shape)
