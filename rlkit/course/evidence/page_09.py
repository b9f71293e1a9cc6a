"""Page 09: one pass is exact and holds one block; padding must weigh nothing."""

from rlkit.course.evidence.effect import Effect, Evidence

N, V, BLOCK = 32, 10_000, 1024


def measure(seed: int) -> dict[str, float]:
    """MiB held, digits that are right, and what a 0 beyond the edge does to log_z."""
    import torch

    from rlkit.course.exercises.online_softmax import load, online_logp
    from rlkit.course.pages.page_08 import measured
    from rlkit.course.pages.page_09 import textbook

    noise = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(N, V, generator=noise) - 12
    targets = torch.randint(V, (N,), generator=noise)
    exact = textbook(logits.double(), targets)
    numbers = {}
    for name, way in (("textbook", textbook), ("one pass", online_logp)):
        logp, meter, before = measured(way, logits, targets, BLOCK)
        numbers[f"MiB {name}"] = (meter.peak - before) / 2**20
        numbers[f"digits {name}"] = -(logp - exact).abs().max().log10().item()
    log_z = logits.double().logsumexp(1)
    for name, other in (("-inf", -torch.inf), ("0", 0.0)):
        blocks = [load(logits.double(), at, BLOCK, other) for at in range(0, V, BLOCK)]
        off = torch.cat(blocks, 1).logsumexp(1) - log_z
        numbers[f"log_z too large, {name} beyond the edge"] = off.mean().item()
    return numbers


EVIDENCE = Evidence(
    says="a softmax in one pass holds one block, is exact, and only padding of -inf weighs nothing",
    measure=measure,
    effects=(
        Effect("MiB textbook", "MiB one pass", at_least=0.5),
        Effect("digits one pass", 4.5),
        Effect("log_z too large, 0 beyond the edge", "log_z too large, -inf beyond the edge"),
    ),
)
