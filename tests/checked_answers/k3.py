"""What learners write for k3."""

MUTATES = "logp"

RIGHT = {
    "loop": """
        y = logp_ref - logp
        return (torch.expm1(y) - y).masked_fill(~mask, 0.0)
    """,
    "double": """
        y = (logp_ref - logp).double()
        estimate = (y.exp() - 1 - y).to(logp.dtype)
        return torch.where(mask, estimate, torch.zeros_like(estimate))
    """,
    "cleaned first": """
        x = torch.where(mask, logp - logp_ref, 0.0)
        return (torch.expm1(-x) + x) * mask
    """,
}

WRONG = [
    ("reversed", """
        y = logp - logp_ref
        return torch.where(mask, torch.expm1(y) - y, 0.0)
    """),
    ("no -1", """
        x = logp - logp_ref
        return torch.where(mask, (-x).exp() + x, 0.0)
    """),
    ("expm1", """
        y = logp_ref - logp
        return torch.where(mask, y.exp() - y - 1, 0.0)
    """),
    ("padding", """
        y = logp_ref - logp
        return mask * (torch.expm1(y) - y)
    """),
    ("padding", "y = logp_ref - logp\nreturn torch.expm1(y) - y"),
    ("padding", "y = logp_ref - logp\nreturn mask * (y.exp() - 1 - y)"),
    ("k1", "return torch.where(mask, logp - logp_ref, 0.0)"),
]  # fmt: skip
