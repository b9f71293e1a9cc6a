"""What learners write for online_softmax."""

MUTATES = "logits"

ONLINE = """
m = torch.full_like(logits[:, 0], -1e30)
s = torch.zeros_like(m)
for at in range(0, logits.shape[1], block):
    z = logits[:, at : at + block]
    {pad}
    new = torch.maximum(m, z.max(1).values)
    {update}
    m = new
return {chosen} - m - s.log()
"""
UPDATE = "s = s * (m - new).exp() + (z - new[:, None]).exp().sum(1)"
CHOSEN = "logits.gather(1, targets[:, None])[:, 0]"

RIGHT = {
    "loop": """
        out = []
        V = logits.shape[1]
        for row, y in zip(logits, targets.tolist()):
            m, s = row[0], torch.zeros((), dtype=logits.dtype)
            for at in range(0, V, block):
                z = row[at : at + block]
                new = torch.max(m, z.max())
                s = s * torch.exp(m - new) + torch.exp(z - new).sum()
                m = new
            out.append(row[y] - m - torch.log(s))
        return torch.stack(out)
    """,
    "logaddexp": """
        log_z = torch.full_like(logits[:, 0], -torch.inf)
        for at in range(0, logits.shape[1], block):
            log_z = torch.logaddexp(log_z, logits[:, at : at + block].logsumexp(1))
        return logits.gather(1, targets[:, None])[:, 0] - log_z
    """,
    "padded": """
        V = logits.shape[1]
        m = logits.new_full((len(logits), 1), -float("inf"))
        s = torch.zeros_like(m)
        for at in range(0, V, block):
            z = logits.new_full((len(logits), block), -float("inf"))
            z[:, : min(block, V - at)] = logits[:, at : at + block]
            new = torch.maximum(m, z.max(1, keepdim=True).values)
            s = s * (m - new).exp() + (z - new).exp().sum(1, keepdim=True)
            m = new
        return (logits.gather(1, targets[:, None]) - m - s.log()).squeeze(1)
    """,
}

WRONG = [
    ("no rescaling", ONLINE.format(
        pad="", chosen=CHOSEN, update="s = s + (z - new[:, None]).exp().sum(1)")),
    ("exp(new - old)", ONLINE.format(
        pad="if at == 0:\n        m = z.max(1).values", chosen=CHOSEN,
        update=UPDATE.replace("m - new", "new - m"))),
    ("other=0", ONLINE.format(
        pad="z = torch.nn.functional.pad(z, (0, block - z.shape[1]))", chosen=CHOSEN,
        update=UPDATE)),
    ("target in the first tile", ONLINE.format(
        pad="", update=UPDATE,
        chosen="logits[torch.arange(len(targets)), targets.clamp(max=block - 1)]")),
    ("no maximum", """
        s = 0.0
        for at in range(0, logits.shape[1], block):
            s = s + logits[:, at : at + block].exp().sum(1)
        return logits.gather(1, targets[:, None])[:, 0] - s.log()
    """),
    ("all at once", "return torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]"),
]  # fmt: skip
