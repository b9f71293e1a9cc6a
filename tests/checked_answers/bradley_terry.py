"""What learners write for the loss of preference pairs."""

MUTATES = "margin"

RIGHT = {
    "loop": """
        total = 0.0
        for c, r, m in zip(chosen, rejected, margin):
            total = total + torch.nn.functional.softplus(-(c - r - m))
        return total / len(chosen)
    """,
    "softmax": """
        both = torch.stack([chosen - margin, rejected])
        return -both.log_softmax(0)[0].mean()
    """,
    "cross entropy": """
        both = torch.stack([chosen - margin, rejected], 1)
        first = torch.zeros(len(chosen), dtype=torch.long)
        return torch.nn.functional.cross_entropy(both, first)
    """,
}

WRONG = [
    ("sign flipped", """
        gap = rejected - chosen - margin
        return -torch.nn.functional.logsigmoid(gap).mean()
    """),
    ("sign flipped", "return torch.nn.functional.softplus(chosen - rejected - margin).mean()"),
    ("minus", "return torch.nn.functional.logsigmoid(chosen - rejected - margin).mean()"),
    ("no log", "return -(chosen - rejected - margin).sigmoid().mean()"),
    ("no log", "return (1 - (chosen - rejected - margin).sigmoid()).mean()"),
    ("margin added", """
        return -torch.nn.functional.logsigmoid(chosen - rejected + margin).mean()
    """),
    ("margin outside", "return -torch.nn.functional.logsigmoid(chosen - rejected).mean()"),
    ("both rows", """
        losses = torch.nn.functional.softplus(rejected + margin - chosen)
        return losses.sum() / torch.cat([chosen, rejected]).numel()
    """),
    ("summed", "return torch.nn.functional.softplus(rejected + margin - chosen).sum()"),
    ("log of the mean", "return -(chosen - rejected - margin).sigmoid().mean().log()"),
    ("log of 0", "return -(chosen - rejected - margin).sigmoid().log().mean()"),
    ("log of 0", "return (1 + (rejected + margin - chosen).exp()).log().mean()"),
    ("each alone", """
        F = torch.nn.functional
        return (F.softplus(margin - chosen) + F.softplus(rejected)).mean()
    """),
]  # fmt: skip
