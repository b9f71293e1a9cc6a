"""Page 11: what a rank holds of a weight and of its logits, alone and as one of two."""

from rlkit.course.evidence.effect import Effect, Evidence


def measure(seed: int) -> dict[str, float]:
    """Shares of what one rank alone holds at its highest moment, on the page's model and sizes."""
    from rlkit.course.pages.page_11 import SIZES, wide_model
    from rlkit.memory import Ranks

    found = []
    for ranks in (1, 2):
        sizes = SIZES | {"max_steps": 2}
        run = Ranks(wide_model(), fsdp=ranks, head="full", seed=seed, **sizes).start().wait()
        run.result()
        found.append(run.at_peak()[-1].by_category)
    alone, shared = found
    return {
        name: shared[category] / alone[category]
        for name, category in (
            ("weights", "param"),
            ("optimiser", "optimizer"),
            ("activations", "activation"),
            ("logits", "logits"),
        )
    }


EVIDENCE = Evidence(
    says="two ranks halve the weights and what the optimiser keeps, not the activations and logits",
    measure=measure,
    effects=(
        Effect("logits", "weights", at_least=0.45),
        Effect("activations", "weights", at_least=0.45),
        Effect("logits", "optimiser", at_least=0.45),
    ),
)
