"""What learners write for clip."""

MUTATES = "advantages"

RIGHT = {
    "loop": """
        ratio = torch.exp(logp - logp_old)
        near = ratio.clamp(1 - epsilon, 1 + epsilon)
        return torch.max(-ratio * advantages, -near * advantages)
    """,
    "by sign": """
        ratio = torch.exp(logp) / torch.exp(logp_old)
        good = torch.minimum(ratio, torch.ones_like(ratio) + epsilon)
        bad = torch.maximum(ratio, torch.ones_like(ratio) - epsilon)
        return -advantages * torch.where(advantages > 0, good, bad)
    """,
}

WRONG = [
    ("max for min", """
        r = (logp - logp_old).exp()
        return -torch.max(r * advantages, r.clamp(1 - epsilon, 1 + epsilon) * advantages)
    """),
    ("no min", """
        r = (logp - logp_old).exp()
        return -torch.clamp(r, 1 - epsilon, 1 + epsilon) * advantages
    """),
    ("old over new", """
        r = torch.exp(logp_old - logp)
        return -torch.min(r * advantages, r.clamp(1 - epsilon, 1 + epsilon) * advantages)
    """),
    ("sign", """
        r = torch.exp(logp - logp_old)
        return torch.min(r * advantages, r.clamp(1 - epsilon, 1 + epsilon) * advantages)
    """),
    ("no clip", "return -torch.exp(logp - logp_old) * advantages"),
    ("ratio of log-probs", """
        r = logp - logp_old
        return -torch.min(r * advantages, r.clamp(1 - epsilon, 1 + epsilon) * advantages)
    """),
]  # fmt: skip
