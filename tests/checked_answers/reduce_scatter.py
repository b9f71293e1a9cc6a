"""What learners write for reduce_scatter."""

MUTATES = "gradients"

RIGHT = {
    "loop": """
        each = gradients.shape[1] // len(gradients)
        kept = torch.zeros(each, dtype=gradients.dtype)
        for g in gradients:
            kept += g[rank * each : (rank + 1) * each]
        return kept
    """,
    "part before sum": """
        parts = [g.chunk(len(gradients))[rank] for g in gradients]
        return torch.stack(parts).sum(0)
    """,
    "einsum": """
        n, count = gradients.shape
        return torch.einsum("np->p", gradients)[rank * count // n : (rank + 1) * count // n]
    """,
}

WRONG = [
    ("averaged", "return gradients.mean(0).chunk(len(gradients))[rank]"),
    ("not summed", "return gradients[rank].chunk(len(gradients))[rank]"),
    ("others alone", """
        parts = [g.chunk(len(gradients))[rank] for g in gradients]
        return sum(parts) - parts[rank]
    """),
    ("another part", "return gradients.sum(0).chunk(len(gradients))[0]"),
    ("every Nth", "return gradients.sum(0)[rank :: len(gradients)]"),
]  # fmt: skip
