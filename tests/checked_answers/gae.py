"""What learners write for gae."""

MUTATES = "values"

GAE = """
T = values.shape[1]
V = {values}
out = torch.zeros_like(values)
last = 0.0
for t in {order}:
    after = V[:, t + 1] if t + 1 < T else 0.0
    delta = {reward} + gamma * after - V[:, t]
    out[:, t] = last = delta + {decay} * last
return out, out + V
"""
GAE_RIGHT = dict(
    values="values * mask", order="reversed(range(T))", reward="rewards[:, t]", decay="gamma * lam"
)

RIGHT = {
    "loop": """
        m = mask.to(values.dtype)
        V = values * m
        out = torch.zeros_like(V)
        last = 0.0
        for t in range(V.shape[1] - 1, -1, -1):
            after = V[:, t + 1] if t + 1 < V.shape[1] else 0.0
            delta = (rewards[:, t] + gamma * after - V[:, t]) * m[:, t]
            out[:, t] = last = delta + gamma * lam * last
        return out, out + V
    """,
    "sum of deltas": """
        V = values.masked_fill(~mask, 0.0)
        after = torch.cat([V[:, 1:], torch.zeros_like(V[:, :1])], 1)
        deltas = rewards + gamma * after - V
        T = V.shape[1]
        columns = []
        for t in range(T):
            columns.append(sum((gamma * lam) ** k * deltas[:, t + k] for k in range(T - t)))
        advantages = torch.stack(columns, 1)
        return advantages, advantages + V
    """,
    "row by row": """
        advantages = torch.zeros_like(values)
        for b in range(len(values)):
            n = int(mask[b].sum())
            a = v = 0.0
            for t in reversed(range(n)):
                a = rewards[b, t] + gamma * v - values[b, t] + gamma * lam * a
                v = values[b, t]
                advantages[b, t] = a
        return advantages, advantages + values
    """,
}

WRONG = [
    ("reward in the last column", GAE.format(**GAE_RIGHT | dict(
        reward="(rewards.sum(1) if t == T - 1 else 0.0)"))),
    ("padding leaks", GAE.format(**GAE_RIGHT | dict(values="values"))),
    ("forward loop", GAE.format(**GAE_RIGHT | dict(order="range(T)"))),
    ("one discount", GAE.format(**GAE_RIGHT | dict(decay="gamma"))),
    ("one discount", GAE.format(**GAE_RIGHT | dict(decay="lam"))),
    ("no value subtracted", GAE.format(**GAE_RIGHT).replace(" - V[:, t]", "")),
    ("returns", GAE.format(**GAE_RIGHT).replace("out + V", "out + rewards")),
]  # fmt: skip
