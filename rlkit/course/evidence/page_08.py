"""Page 08: which chunked loss saves bytes, and what a small tile costs in time."""

from collections.abc import Callable
from typing import Any

from rlkit.course.evidence.effect import Effect, Evidence

N, V, H, CHUNK = 256, 16_384, 128, 16
MIB = 2**20


def measure(seed: int) -> dict[str, float]:
    """MiB held at most and when the backward pass begins, KiB for each further token, time."""
    import torch

    noise = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, H, generator=noise).requires_grad_()
    weight = (torch.randn(V, H, generator=noise) / H**0.5).requires_grad_()
    targets = torch.randint(V, (N,), generator=noise)
    numbers = {}
    for name, way in ways().items():
        for tensor in (hidden, weight):
            tensor.grad = None
        most, kept = held(way, hidden, weight, targets)
        half = hidden[: N // 2].detach().requires_grad_()
        weight.grad = None
        less, _ = held(way, half, weight, targets[: N // 2])
        numbers |= {f"MiB {name}": most, f"MiB kept {name}": kept}
        numbers[f"KiB a token {name}"] = (most - less) * 1024 / (N - N // 2)
    numbers["kept, share of full's"] = numbers["MiB kept at_the_end"] / numbers["MiB kept full"]
    return numbers | slowness(hidden.detach(), weight.detach(), targets)


def ways() -> dict[str, Callable]:
    """The page's, by name; each leaves its gradients with the tensors."""
    from torch.utils.checkpoint import checkpoint

    from rlkit.course.exercises.chunked import chunked_loss

    def share(h: Any, weight: Any, y: Any, total: int) -> Any:
        return -(h @ weight.T).log_softmax(-1).gather(1, y[:, None]).sum() / total

    def full(hidden: Any, weight: Any, targets: Any) -> None:
        share(hidden, weight, targets, len(hidden)).backward()

    def at_the_end(hidden: Any, weight: Any, targets: Any) -> None:
        chunks = zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True)
        sum(share(h, weight, y, len(hidden)) for h, y in chunks).backward()

    def again(hidden: Any, weight: Any, targets: Any) -> None:
        chunks = zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True)
        parts = [
            checkpoint(share, h, weight, y, len(hidden), use_reentrant=False) for h, y in chunks
        ]
        sum(parts).backward()

    def by_hand(hidden: Any, weight: Any, targets: Any) -> None:
        sides = hidden.detach(), weight.detach()
        _, hidden.grad, weight.grad = chunked_loss(*sides, targets, CHUNK)

    return dict(full=full, at_the_end=at_the_end, again=again, by_hand=by_hand)


def held(way: Callable, *args: Any) -> tuple[float, float]:
    """(MiB at most, MiB when the backward pass begins)."""
    from rlkit.course.pages.page_08 import measured

    _, meter, before = measured(way, *args)
    line = meter.timeline
    turn = line.phases.index("backward") - 1 if "backward" in line.phases else len(line) - 1
    return (meter.peak - before) / MIB, (line.total[turn] - before) / MIB


def slowness(hidden: Any, weight: Any, targets: Any) -> dict[str, float]:
    """Time with tiles of 2 tokens, in units of the time with tiles of 32; the best of 3 turns."""
    import time

    from rlkit.course.exercises.chunked import chunked_loss

    found: dict[int, list[float]] = {2: [], 32: []}
    for _ in range(3):
        for chunk, seconds in found.items():
            began = time.perf_counter()
            chunked_loss(hidden, weight, targets, chunk)
            seconds.append(time.perf_counter() - began)
    return {"time, tiles of 2 over 32": min(found[2]) / min(found[32])}


EVIDENCE = Evidence(
    says="chunking keeps all logits until they are forgotten or turned into gradients at once",
    measure=measure,
    effects=(
        Effect("kept, share of full's", 0.95),
        Effect("KiB a token at_the_end", "KiB a token by_hand", at_least=V * 4 / 1024 / 2),
        Effect("KiB a token at_the_end", "KiB a token again", at_least=V * 4 / 1024 / 2),
        Effect("MiB full", "MiB by_hand"),
        Effect("time, tiles of 2 over 32", 1.0, at_least=0.3),
    ),
)
