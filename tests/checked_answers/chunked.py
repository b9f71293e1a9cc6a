"""What learners write for chunked."""

MUTATES = "weight"

CHUNKED = """
N, loss, dh, dw = len(hidden), 0.0, [], torch.zeros_like(weight)
for at in range(0, N, chunk):
    h, y = hidden[at : at + chunk], targets[at : at + chunk]
    p = torch.softmax(h @ weight.T / {inside}, -1)
    rows = torch.arange(len(y))
    loss = loss - {share} * p[rows, y].log().sum()
    p[rows, y] -= 1
    p = p * {share} / {outside}
    dh.append(p @ weight)
    dw {add} p.T @ h
return loss, torch.cat(dh), dw
"""
CHUNKED_RIGHT = dict(inside="temperature", outside="temperature", share="1 / N", add="+=")

RIGHT = {
    "loop": """
        N = len(hidden)
        total = torch.zeros((), dtype=hidden.dtype)
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight)
        for at in range(0, N, chunk):
            rows = slice(at, at + chunk)
            h = hidden[rows].detach().requires_grad_()
            w = weight.detach().requires_grad_()
            logits = h @ w.T / temperature
            loss = torch.nn.functional.cross_entropy(logits, targets[rows], reduction="sum") / N
            dh, dw = torch.autograd.grad(loss, [h, w])
            total += loss.detach()
            d_hidden[rows] = dh
            d_weight += dw
        return total, d_hidden, d_weight
    """,
    "backward": """
        w = weight.detach().clone().requires_grad_()
        h = hidden.detach().clone().requires_grad_()
        loss = 0.0
        for some, y in zip(h.split(chunk), targets.split(chunk)):
            logp = torch.log_softmax(some @ w.T / temperature, -1)
            part = -logp[torch.arange(len(y)), y].sum() / len(hidden)
            part.backward()
            loss = loss + part.detach()
        return loss, h.grad, w.grad
    """,
}

WRONG = [
    ("mean of means", """
        w = weight.detach().clone().requires_grad_()
        h = hidden.detach().clone().requires_grad_()
        parts, count = 0.0, -(-len(h) // chunk)
        for some, y in zip(h.split(chunk), targets.split(chunk)):
            logits = some @ w.T / temperature
            part = torch.nn.functional.cross_entropy(logits, y) / count
            part.backward()
            parts = parts + part.detach()
        return parts, h.grad, w.grad
    """),
    ("one backward at the end", """
        w = weight.detach().clone().requires_grad_()
        h = hidden.detach().clone().requires_grad_()
        losses = []
        for some, y in zip(h.split(chunk), targets.split(chunk)):
            logits = some @ w.T / temperature
            losses.append(torch.nn.functional.cross_entropy(logits, y, reduction="sum"))
        loss = torch.stack(losses).sum() / len(hidden)
        loss.backward()
        return loss.detach(), h.grad, w.grad
    """),
    ("d_weight overwritten", CHUNKED.format(**CHUNKED_RIGHT | dict(add="="))),
    ("temperature once", CHUNKED.format(**CHUNKED_RIGHT | dict(outside="1"))),
    ("temperature once", CHUNKED.format(**CHUNKED_RIGHT | dict(
        inside="(temperature if at == 0 else 1)", outside="(temperature if at == 0 else 1)"))),
    ("summed", CHUNKED.format(**CHUNKED_RIGHT | dict(share="1"))),
]  # fmt: skip
