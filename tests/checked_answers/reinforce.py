"""What learners write for reinforce."""

MUTATES = "weights"

RIGHT = {
    "loop": """
        total, tokens = 0.0, 0
        for i in range(len(weights)):
            for t in range(logp.shape[1]):
                if mask[i, t]:
                    total = total - weights[i] * logp[i, t]
                    tokens += 1
        return total / tokens
    """,
    "picked": """
        weighted = weights[:, None] * logp
        return -weighted[mask].mean()
    """,
    "by rows": """
        per_row = torch.where(mask, logp, 0.0).sum(1)
        return -(weights @ per_row) / mask.sum()
    """,
}

WRONG = [
    ("sign", "return (weights[:, None] * logp * mask).sum() / mask.sum()"),
    ("padding counts", "return -(weights.view(-1, 1) * logp).sum() / mask.sum()"),
    ("padding counts", "return (-weights[:, None] * logp).mean()"),
    ("divided by all places", "return -(weights[:, None] * logp * mask).sum() / logp.numel()"),
    ("not divided", "return -(logp * mask).sum(1) @ weights"),
    ("per answer", "return -((logp * mask).sum(1) * weights).sum() / len(weights)"),
    ("probabilities", "return -(weights[:, None] * logp.exp())[mask].mean()"),
]
