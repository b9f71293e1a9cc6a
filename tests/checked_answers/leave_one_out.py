"""What learners write for leave_one_out."""

MUTATES = "rewards"

GROUPS = "g = rewards.view(-1, num_generations)\n"

RIGHT = {
    "loop": """
        out = torch.zeros_like(rewards)
        for i in range(len(rewards)):
            start = i // num_generations * num_generations
            others = [
                rewards[j] for j in range(start, start + num_generations) if j != i
            ]
            out[i] = rewards[i] - sum(others) / len(others)
        return out
    """,
    "from the mean": """
        groups = rewards.reshape(-1, num_generations)
        centred = groups - groups.mean(1, keepdim=True)
        return (centred * num_generations / (num_generations - 1)).reshape(-1)
    """,
    "matrix": """
        G = num_generations
        others = (1 - torch.eye(G, dtype=rewards.dtype)) / (G - 1)
        return rewards - (rewards.view(-1, G) @ others).flatten()
    """,
}

WRONG = [
    ("own reward inside", GROUPS + "return (g - g.mean(1, keepdim=True)).flatten()"),
    ("divided by G", GROUPS + """
others = g.sum(1)[:, None] - g
return rewards - others.flatten() / num_generations
"""),
    ("grouped by columns", """
        g = rewards.view(num_generations, -1)
        return (g - (g.sum(0, keepdim=True) - g) / (num_generations - 1)).flatten()
    """),
    ("baseline returned", GROUPS + """
return ((g.sum(1, keepdim=True) - g) / (num_generations - 1)).flatten()
"""),
    ("whole batch", "return rewards - (rewards.sum() - rewards) / (rewards.numel() - 1)"),
    ("sign", GROUPS + """
return ((g.sum(1, keepdim=True) - g) / (num_generations - 1) - g).flatten()
"""),
    ("divided by the spread", GROUPS + """
return ((g - g.mean(1, keepdim=True)) / g.std(1, keepdim=True)).flatten()
"""),
]  # fmt: skip
