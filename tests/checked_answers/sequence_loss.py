"""What learners write for sequence_loss."""

MUTATES = "advantages"

RIGHT = {
    "loop": """
        total = 0.0
        for i in range(len(advantages)):
            whole = sum(logp[i, t] for t in range(logp.shape[1]) if mask[i, t])
            total = total - advantages[i] * whole
        return total / len(advantages)
    """,
    "product": """
        whole = logp.masked_fill(~mask, 0.0).sum(1)
        return -(whole @ advantages) / len(whole)
    """,
    "token by token": """
        every = advantages[:, None] * logp * mask
        return -every.sum() / len(logp)
    """,
}

WRONG = [
    ("sign", "return (advantages * (logp * mask).sum(1)).mean()"),
    ("padding counts", "return -(advantages * logp.sum(-1)).mean()"),
    ("per token", "return -(advantages[:, None] * logp)[mask].mean()"),
    ("mean over an answer's tokens", """
        whole = (logp * mask).sum(1) / mask.sum(1)
        return -(advantages * whole).mean()
    """),
    ("not divided", "return -(advantages @ (logp * mask).sum(1))"),
    ("one advantage for all", "return -(logp * mask).sum(1).mean() * advantages.mean()"),
]  # fmt: skip
