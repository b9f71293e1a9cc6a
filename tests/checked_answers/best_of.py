"""What learners write for the best of n."""

MUTATES = "scores"

RIGHT = {
    "loop": """
        total, count = 0.0, 0
        for s, r in zip(scores, right):
            for at in range(0, len(s), n):
                total = total + r[at : at + n][s[at : at + n].argmax()]
                count += 1
        return total / count
    """,
    "three dimensions": """
        P, N = scores.shape
        best = scores.view(P, N // n, n).argmax(2, keepdim=True)
        return right.view(P, N // n, n).gather(2, best).mean()
    """,
    "sorted": """
        order = scores.reshape(-1, n).sort(1, descending=True).indices
        return right.reshape(-1, n)[torch.arange(len(order)), order[:, 0]].mean()
    """,
}

WRONG = [
    ("the best of right", "return right.view(-1, n).amax(1).mean()"),
    ("columns", """
        best = scores.view(n, -1).argmax(0, keepdim=True)
        return right.view(n, -1).gather(0, best).mean()
    """),
    ("worst", """
        picked = scores.view(-1, n).argmin(1)
        return right.view(-1, n).gather(1, picked[:, None]).mean()
    """),
    ("all N", "return right.gather(1, scores.argmax(1, keepdim=True)).mean()"),
    ("first n only", """
        return right.gather(1, scores[:, :n].argmax(1, keepdim=True)).mean()
    """),
    ("scores", "return scores.view(-1, n).amax(1).mean()"),
    ("no choice", "return right.mean()"),
]  # fmt: skip
