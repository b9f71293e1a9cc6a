"""What learners write for group_relative."""

MUTATES = "rewards"

GROUPS = "g = rewards.view(-1, num_generations)\n"

RIGHT = {
    "loop": """
        out = torch.zeros_like(rewards)
        for start in range(0, len(rewards), num_generations):
            group = rewards[start : start + num_generations]
            out[start : start + num_generations] = (group - group.mean()) / (group.std() + eps)
        return out
    """,
    "by hand": """
        g = rewards.reshape(-1, num_generations)
        centred = g - g.sum(1, keepdim=True) / num_generations
        variance = (centred**2).sum(1, keepdim=True) / (num_generations - 1)
        return (centred / (variance.sqrt() + eps)).reshape(-1)
    """,
    "broadcast": """
        g = rewards.unflatten(0, (-1, num_generations))
        return ((g - g.mean(-1)[:, None]) / (g.std(-1)[:, None] + eps)).flatten()
    """,
}

WRONG = [
    ("divided by G", GROUPS + """
std = g.std(1, keepdim=True, unbiased=False)
return ((g - g.mean(1, keepdim=True)) / (std + eps)).flatten()
"""),
    ("std over the batch", GROUPS + """
return ((g - g.mean(1, keepdim=True)) / (g.std() + eps)).flatten()
"""),
    ("mean left in", GROUPS + "return (g / (g.std(1, keepdim=True) + eps)).flatten()"),
    ("eps forgotten", GROUPS + """
return ((g - g.mean(1, keepdim=True)) / g.std(1, keepdim=True)).flatten()
"""),
    ("eps elsewhere", GROUPS + """
return ((g - g.mean(1, keepdim=True)) / (g.var(1, keepdim=True) + eps).sqrt()).flatten()
"""),
    ("grouped by columns", """
        g = rewards.view(num_generations, -1)
        return ((g - g.mean(0)) / (g.std(0) + eps)).flatten()
    """),
    ("variance", GROUPS + """
return ((g - g.mean(1, keepdim=True)) / (g.var(1, keepdim=True) + eps)).flatten()
"""),
    ("whole batch", "return (rewards - rewards.mean()) / (rewards.std() + eps)"),
    ("baseline of the others", GROUPS + """
others = (g.sum(1, keepdim=True) - g) / (num_generations - 1)
return ((g - others) / (g.std(1, keepdim=True) + eps)).flatten()
"""),
    ("not divided", GROUPS + "return (g - g.mean(1, keepdim=True)).flatten()"),
    ("sign", GROUPS + """
return ((g.mean(1, keepdim=True) - g) / (g.std(1, keepdim=True) + eps)).flatten()
"""),
]  # fmt: skip
