"""What learners write for dead_share."""

MUTATES = "rewards"

RIGHT = {
    "loop": """
        dead, groups = 0, 0
        for start in range(0, len(rewards), num_generations):
            group = rewards[start : start + num_generations].tolist()
            groups += 1
            dead += len(set(group)) == 1
        return torch.tensor(dead / groups)
    """,
    "extremes": """
        groups = rewards.reshape(-1, num_generations)
        return (groups.amax(1) == groups.amin(1)).float().mean()
    """,
    "nearly": """
        groups = rewards.view(-1, num_generations)
        return (groups.std(1) < 1e-6).float().mean()
    """,
}

WRONG = [
    ("only failures", """
        groups = rewards.view(-1, num_generations)
        return (groups.sum(1) == 0).float().mean()
    """),
    ("only successes", """
        groups = rewards.view(-1, num_generations)
        return (groups.sum(1) == num_generations).float().mean()
    """),
    ("only 0 and 1", """
        right = rewards.view(-1, num_generations).sum(1)
        return ((right == 0) | (right == num_generations)).float().mean()
    """),
    ("living", """
        groups = rewards.view(-1, num_generations)
        return (groups.amax(1) > groups.amin(1)).float().mean()
    """),
    ("a number, no share", """
        groups = rewards.view(-1, num_generations)
        return (groups.amax(1) == groups.amin(1)).float().sum()
    """),
]  # fmt: skip
