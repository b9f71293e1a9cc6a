"""What learners write for low_rank."""

MUTATES = "inputs"

RIGHT = {
    "loop": """
        r = len(down)
        y = inputs @ weight.T
        for i in range(r):
            along = inputs @ down[i]  # [N]
            y = y + alpha / r * along[:, None] * up[:, i]
        return y
    """,
    "einsum": """
        base = torch.einsum("ni,oi->no", inputs, weight)
        thin = torch.einsum("ni,ri->nr", inputs, down)
        return base + torch.einsum("nr,or->no", thin, up) * (alpha / down.shape[0])
    """,
    "functional": """
        import torch.nn.functional as F
        scale = alpha / up.size(1)
        return F.linear(inputs, weight) + F.linear(F.linear(inputs, down * scale), up)
    """,
}

WRONG = [
    ("no scale", "return inputs @ weight.T + inputs @ down.T @ up.T"),
    ("alpha alone", "return inputs @ weight.T + alpha * (inputs @ down.T @ up.T)"),
    ("upside down", "return inputs @ weight.T + (inputs @ down.T @ up.T) * down.size(0) / alpha"),
    ("another size", "return inputs @ weight.T + (inputs @ down.T @ up.T) * alpha / down.size(1)"),
    ("another size", "return inputs @ weight.T + (inputs @ down.T @ up.T) * alpha / len(weight)"),
    ("base left out", "return alpha / len(down) * (inputs @ down.T @ up.T)"),
    ("update left out", "return inputs @ weight.T"),
    ("base scaled", "return alpha / len(down) * (inputs @ weight.T + inputs @ down.T @ up.T)"),
    ("sign", "return inputs @ weight.T - alpha / len(down) * (inputs @ down.T) @ up.T"),
    ("makes the matrix", "return inputs @ (weight + alpha / len(down) * up @ down).T"),
]
