"""What learners write for probe_baseline."""

MUTATES = None

RIGHT = {
    "loop": """
        rewards = torch.tensor([0.2, 0.9, 0.4, 0.0, 5.0, 1.0, 2.0, 8.0])
        found = baseline(rewards, 4)
        for i in range(8):
            start = i // 4 * 4
            others = [rewards[j] for j in range(start, start + 4) if j != i]
            if abs(found[i] - sum(others) / 3) > 1e-5:
                return False
        return True
    """,
    "a tensor": """
        rewards = torch.tensor([1.0, 0.0, 4.0, 2.0])
        wanted = torch.tensor([0.0, 1.0, 2.0, 4.0])
        return torch.isclose(baseline(rewards, 2), wanted).all()
    """,
}

WRONG = [
    ("always content", "baseline(torch.ones(4), 2)\nreturn True"),
    ("never content", """
        rewards = torch.tensor([1.0, 0.0, 4.0, 2.0])
        return torch.equal(baseline(rewards, 2), rewards)
    """),
    ("equal rewards", "return torch.equal(baseline(torch.ones(6), 2), torch.ones(6))"),
    ("one prompt", """
        rewards = torch.tensor([1.0, 0.0, 5.0, 2.0])
        wanted = (8.0 - rewards) / 3
        return torch.allclose(baseline(rewards, 4), wanted)
    """),
    ("only its own", """
        low = torch.tensor([0.0, 1.0, 4.0, 2.0])
        high = torch.tensor([9.0, 1.0, 4.0, 2.0])
        return bool(baseline(low, 2)[0] == baseline(high, 2)[0])
    """),
    ("wants the own reward", """
        rewards = torch.tensor([1.0, 0.0, 4.0, 2.0])
        return torch.allclose(baseline(rewards, 2), torch.tensor([0.5, 0.5, 3.0, 3.0]))
    """),
    ("turned", """
        rewards = torch.tensor([1.0, 0.0, 4.0, 2.0])
        return not torch.allclose(baseline(rewards, 2), torch.tensor([0.0, 1.0, 2.0, 4.0]))
    """),
]  # fmt: skip
