"""What learners write for token_rewards."""

MUTATES = "kl"

RIGHT = {
    "loop": """
        out = torch.zeros_like(kl)
        for i in range(len(rewards)):
            length = int(mask[i].sum())
            for t in range(length):
                out[i, t] = -beta * kl[i, t]
            out[i, length - 1] += rewards[i]
        return out
    """,
    "where": """
        places = torch.arange(kl.shape[1])
        last = places == mask.sum(1, keepdim=True) - 1
        return torch.where(last, rewards[:, None], 0.0) - beta * kl * mask
    """,
    "scatter": """
        out = (-beta * kl).masked_fill(~mask, 0.0)
        last = mask.sum(1, keepdim=True) - 1
        return out.scatter_add(1, last, rewards[:, None])
    """,
}

WRONG = [
    ("reward in the wrong place", """
        out = -beta * kl * mask
        out[:, -1] = out[:, -1] + rewards
        return out
    """),
    ("reward on every token", "return (rewards[:, None] - beta * kl) * mask"),
    ("padding is charged", """
        out = -beta * kl
        out[torch.arange(len(out)), mask.sum(1) - 1] += rewards
        return out
    """),
    ("sign", """
        out = beta * kl * mask
        out[torch.arange(len(out)), mask.sum(1) - 1] += rewards
        return out
    """),
    ("price of the last token lost", """
        out = -beta * kl * mask
        out[torch.arange(len(out)), mask.sum(1) - 1] = rewards
        return out
    """),
    ("all of the price at the end", """
        out = torch.zeros_like(kl)
        whole = rewards - beta * (kl * mask).sum(1)
        out[torch.arange(len(out)), mask.sum(1) - 1] = whole
        return out
    """),
    ("beta", """
        out = -kl * mask
        out[torch.arange(len(out)), mask.sum(1) - 1] += rewards
        return out
    """),
]  # fmt: skip
