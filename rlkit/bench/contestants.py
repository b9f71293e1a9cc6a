"""Who takes part in `rlkit bench head`, and in what: one GRPO loss, everyone's own head.

A contestant is given hidden states, a weight and a batch, and leaves its gradients in both. Each
peer runs as its own defaults run it, with the GRPO loss that all share: TRL's head, torch's and
cut-cross-entropy's give log-probs, and the loss is ours on top; Liger's has the loss inside.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlkit.doctor import installed
from rlkit.head import MODES, Head, policy_loss
from rlkit.objectives import GRPO, Totals
from rlkit.optional import require
from rlkit.parts import order_tokens

SPREAD = 3.0
"""Standard deviation of the logits; targets are drawn from their softmax, as in a rollout."""

NEAR = 0.1
"""logp_old is within this of logp: no ratio is near the clip, where rounding would be a jump."""


@dataclass(frozen=True)
class Exact:
    """What full logits give in float64, kept in float32 where it is large."""

    logp: Tensor  # [N]
    loss: Tensor
    d_hidden: Tensor  # [N, H]
    d_weight: Tensor | None  # [V, H]; None if frozen


@dataclass(frozen=True)
class Problem:
    """N tokens in B completions of T tokens each, ordered as the trainers order them."""

    hidden: Tensor  # [N, H], a leaf
    weight: nn.Parameter  # [V, H]
    targets: Tensor  # [N]
    batch: dict[str, Tensor]  # index [N], mask, logp_old [B, T], advantages [B]
    known: dict[str, Any]  # row_lengths, live
    entropy: bool  # whether the mean entropy is reported too
    exact: Exact | None = None

    def clear(self) -> None:
        """Drop the gradients."""
        self.hidden.grad = self.weight.grad = None


def completion_length(tokens: int) -> int:
    """T, at most 256: Liger's head takes completion by completion. At least four of them.

    Raises ValueError with the nearest number of tokens that can be cut so.
    """
    length = min(256, tokens // 4)
    if length < 1 or tokens % length:
        unit = 256 if tokens >= 1024 else 4
        fits = max(round(tokens / unit), 1) * unit
        raise ValueError(f"tokens={tokens} must be a multiple of {unit}; use {fits}")
    return length


def make_weight(
    V: int, H: int, dtype: torch.dtype, device: torch.device, train: bool
) -> nn.Parameter:
    """[V, H], so that logits of normal hidden states have SPREAD."""
    torch.manual_seed(0)
    weight = torch.randn(V, H, device=device).mul_(SPREAD / H**0.5)
    return nn.Parameter(weight.to(dtype), requires_grad=train)


def make_problem(weight: nn.Parameter, tokens: int, *, entropy: bool, half: bool) -> Problem:
    """Hidden states and a batch; with `half`, every other completion has advantage 0.

    The targets and logp_old are placeholders, good enough to count memory; `solved` draws them.
    """
    V, H = weight.shape
    T = completion_length(tokens)
    B, device = tokens // T, weight.device
    torch.manual_seed(1)
    hidden = torch.randn(tokens, H, device=device).to(weight.dtype).requires_grad_()
    targets = torch.randint(V, (tokens,), device=device)
    advantages = torch.randn(B)
    if half:
        advantages[::2] = 0.0
    mask = torch.ones(B, T, dtype=torch.bool)
    order = order_tokens(mask, advantages, GRPO())
    batch = dict(index=order.index, mask=mask, advantages=advantages)
    batch["logp_old"] = torch.full((B, T), -10.0)
    batch = {name: x.to(device) for name, x in batch.items()}
    known = dict(row_lengths=order.row_lengths, live=order.live)
    return Problem(hidden, weight, targets, batch, known, entropy)


def solved(problem: Problem) -> Problem:
    """The problem with targets drawn from the model and what full logits give, in float64.

    A completion at a time, by plain autograd: independent of every contestant.
    """
    index, mask, advantages = (problem.batch[k] for k in ("index", "mask", "advantages"))
    B, T = mask.shape
    hidden, weight = (x.detach().double() for x in (problem.hidden, problem.weight))
    hidden.requires_grad_()
    weight.requires_grad_(problem.weight.requires_grad)
    targets, logp_old = torch.empty_like(problem.targets), problem.batch["logp_old"].clone()
    logps, losses = [], []
    torch.manual_seed(2)
    for start in range(0, B * T, T):
        tokens, row = slice(start, start + T), index[start : start + 1] // T
        log_probs = (hidden[tokens] @ weight.T).log_softmax(-1)  # [T, V]
        targets[tokens] = log_probs.detach().exp().multinomial(1).squeeze(1)
        logp = log_probs.gather(1, targets[tokens, None]).T  # [1, T]
        before = logp.detach() + NEAR * (2 * torch.rand_like(logp) - 1)
        logp_old[row] = before.to(logp_old.dtype)
        share = dict(totals=Totals(tokens=B * T, sequences=B))
        loss, _ = GRPO()(logp, logp_old[row].double(), advantages[row], mask[row], **share)
        loss.backward()
        logps.append(logp.detach().squeeze(0))
        losses.append(loss.detach())
    d_weight = None if weight.grad is None else weight.grad.float()
    exact = Exact(torch.cat(logps), torch.stack(losses).sum(), hidden.grad.float(), d_weight)
    batch = problem.batch | dict(logp_old=logp_old)
    return replace(problem, targets=targets, batch=batch, exact=exact)


# ---- who takes part ------------------------------------------------------------------------


@dataclass(frozen=True)
class Contestant:
    """`run` leaves gradients in hidden and weight; returns the loss, None if it has none."""

    key: str
    name: str
    run: Callable[[Problem, GRPO], Tensor | None]


def trains(loss: Callable[[Problem, GRPO], Tensor]) -> Callable[[Problem, GRPO], Tensor]:
    """Forward, then backward."""

    def run(problem: Problem, objective: GRPO) -> Tensor:
        out = loss(problem, objective)
        out.backward()
        return out.detach()

    return run


def products(trains_weight: bool) -> Contestant:
    """The products that no head can do without, each into new memory, as torch runs them."""

    def run(problem: Problem, objective: GRPO) -> None:
        hidden, weight = problem.hidden.detach(), problem.weight.detach()
        logits = hidden @ weight.T
        logits @ weight
        if trains_weight:
            logits.T @ hidden

    return Contestant("products", f"{'three' if trains_weight else 'two'} bare products", run)


def ours(device: torch.device) -> tuple[list[Contestant], list[str]]:
    """Every mode on every backend that runs here, the preferred one first; and remarks.

    A mode's preferred backend has the mode's name as its key.
    """
    found, left_out = [], set()
    for mode, backends in MODES.items():
        here = [backend for backend in backends if runs_here(backend, device)]
        left_out |= set(backends) - set(here)
        for backend in here:
            key = mode if backend == here[0] else f"{mode} {backend}"
            run = trains(head_loss(mode, backend))
            found.append(Contestant(key, f"rlkit {mode}, {backend}", run))
    return found, [f"not measured: rlkit's {name} backend needs a GPU" for name in left_out]


def runs_here(backend: str, device: torch.device) -> bool:
    """Triton's interpreter, on a CPU, tells nothing about time."""
    return backend != "triton" or (device.type == "cuda" and find_spec("triton") is not None)


def head_loss(mode: str, backend: str) -> Callable[[Problem, GRPO], Tensor]:
    """The Head as a policy uses it."""

    def loss(problem: Problem, objective: GRPO) -> Tensor:
        head = Head(problem.weight, mode=mode, backend=backend)
        told = problem.batch | problem.known | dict(entropy=problem.entropy)
        return head(problem.hidden, problem.targets, objective=objective, **told)[0]

    return loss


def trl(device: torch.device) -> list[Contestant]:
    """The head that TRL's GRPOTrainer puts into its model, at its own tile and a smaller one."""
    require("trl", "TRL's head")
    try:
        from trl.kernels import ChunkedLogProbFunction
        from trl.trainer import utils
    except ImportError as error:
        raise ImportError(
            f"TRL {installed('trl')} has no fused head: pip install -U trl"
        ) from error

    def with_tile(columns: int) -> Callable[[Problem, GRPO], Tensor]:
        def loss(problem: Problem, objective: GRPO) -> Tensor:
            outputs = ("log_probs", "entropy") if problem.entropy else ("log_probs",)
            logp, entropy, *_ = ChunkedLogProbFunction.apply(
                problem.hidden, problem.weight, None, problem.targets, 1.0, columns, None, 1.0,
                outputs,
            )  # fmt: skip
            return policy_loss(objective, logp, entropy, **problem.batch)[0]

        return trains(loss)

    own = utils._CHUNKED_LOGPROB_CHUNK_SIZE
    name = f"TRL {installed('trl')}"
    return [
        Contestant("trl", f"{name}, {own:,} columns", with_tile(own)),
        Contestant("trl 8192", f"{name}, 8,192 columns", with_tile(8192)),
    ]


def liger(device: torch.device) -> list[Contestant]:
    """Liger's GRPO loss, which holds a GRPO formula of its own."""
    require("liger_kernel", "Liger's head")
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    compiled = any(map(shutil.which, ("c++", "g++", "clang++")))  # its default, where it can
    module = LigerFusedLinearGRPOLoss(beta=0.0, use_ref_model=False, compiled=compiled)

    def loss(problem: Problem, objective: GRPO) -> Tensor:
        mask = problem.batch["mask"]
        hidden = problem.hidden.view(*mask.shape, -1)  # [B, T, H]
        batch = problem.targets.view(mask.shape), mask.float(), problem.batch["advantages"]
        logp_old = problem.batch["logp_old"]
        return module(hidden, problem.weight, *batch, old_per_token_logps=logp_old)[0]

    name = f"Liger {installed('liger_kernel')}" + ("" if compiled else ", not compiled")
    return [Contestant("liger", name, trains(loss))]


def torch_own(device: torch.device) -> list[Contestant]:
    """torch.nn.functional.linear_cross_entropy, its loss of single tokens."""
    if not hasattr(F, "linear_cross_entropy"):
        raise ImportError("torch's linear_cross_entropy needs torch 2.13: pip install -U torch")
    options = nn.LinearCrossEntropyOptions()

    def loss(problem: Problem, objective: GRPO) -> Tensor:
        told = dict(reduction="none", options=options)
        logp = -F.linear_cross_entropy(problem.hidden, problem.weight, problem.targets, **told)
        return policy_loss(objective, logp.float(), None, **problem.batch)[0]

    return [Contestant("torch", f"torch {torch.__version__.split('+')[0]}", trains(loss))]


def cce(device: torch.device) -> list[Contestant]:
    """Apple's cut-cross-entropy, which skips small gradients by default."""
    if device.type != "cuda":
        raise ImportError("cut-cross-entropy needs a GPU (and pip install cut-cross-entropy)")
    linear_cross_entropy = require("cut_cross_entropy", "cut-cross-entropy").linear_cross_entropy

    def loss(problem: Problem, objective: GRPO) -> Tensor:
        tensors = problem.hidden, problem.weight, problem.targets
        logp = -linear_cross_entropy(*tensors, reduction="none")
        return policy_loss(objective, logp.float(), None, **problem.batch)[0]

    name = f"cut-cross-entropy {installed('cut_cross_entropy')}"
    return [Contestant("cce", name, trains(loss))]


PEERS: dict[str, Callable[[torch.device], list[Contestant]]] = {
    "trl": trl,
    "liger": liger,
    "torch": torch_own,
    "cce": cce,
}
"""Name -> its contestants; raises ImportError with how to get it."""


# ---- whether it is right -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Listening(GRPO):
    """GRPO that remembers the log-probs it was given, tile after tile."""

    heard: list[Tensor] = field(default_factory=list)

    def __call__(self, logp: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.heard.append(logp.detach().flatten())
        return super().__call__(logp, *args, **kwargs)


@dataclass(frozen=True)
class Errors:
    """Largest differences from `Exact`; logp is None of a head that only tells its loss."""

    logp: float | None
    loss: float
    gradient: float
    """Of the largest entry, the worse of d_hidden and d_weight."""

    def within(self, bound: "Errors") -> bool:
        """Whether none exceeds its bound. NaN does."""
        return (
            (self.logp is None or self.logp <= bound.logp)
            and self.loss <= bound.loss
            and self.gradient <= bound.gradient
        )


TOLERANCES = {
    torch.float32: Errors(1e-4, 1e-5, 1e-4),
    torch.bfloat16: Errors(0.25, 0.02, 0.1),
    torch.float16: Errors(0.05, 0.005, 0.1),
}
"""Beyond these an answer is wrong, and its time and memory are not worth telling."""


def errors(contestant: Contestant, problem: Problem) -> Errors:
    """Of one run; the gradients it leaves are dropped."""
    objective, exact = Listening(), problem.exact
    loss = contestant.run(problem, objective)
    gaps = [gap(problem.hidden.grad, exact.d_hidden)]
    if exact.d_weight is not None:
        gaps.append(gap(problem.weight.grad, exact.d_weight))
    problem.clear()
    logp = None
    # the order of the tokens is everyone's own where some of them are dead
    if objective.heard and problem.known["live"] == len(exact.logp):
        logp = float((torch.cat(objective.heard) - exact.logp).abs().max())
    return Errors(
        logp, float((loss - exact.loss).abs()), float(torch.tensor(gaps).max())
    )  # max keeps a NaN


def gap(grad: Tensor, exact: Tensor) -> float:
    """Largest difference, as a share of the largest entry."""
    return float((grad.float() - exact).abs().max() / exact.abs().max())
