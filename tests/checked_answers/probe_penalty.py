"""What learners write for probe_penalty."""

MUTATES = None

RIGHT = {
    "loop": """
        for d in (-1.0, -0.3, 0.3, 1.0):
            far = penalty(torch.tensor([d - 2.0]), torch.tensor([-2.0]))
            if not far.item() > 0:
                return False
        return penalty(torch.tensor([-2.0]), torch.tensor([-2.0])).item() == 0
    """,
    "a tensor": """
        apart = torch.linspace(-1, 1, 5)
        found = penalty(apart - 1, torch.full((5,), -1.0))
        return ((found > 0) == (apart != 0)).all()
    """,
}

WRONG = [
    ("always content", "return len(penalty(torch.zeros(3), torch.ones(3))) == 3"),
    ("never content", "return bool((penalty(torch.zeros(3), torch.zeros(3)) > 0).all())"),
    ("equal models", """
        x = torch.log(torch.tensor([0.1, 0.5]))
        return torch.equal(penalty(x, x), torch.zeros(2))
    """),
    ("one side", """
        same, far = penalty(torch.tensor([-1.0, -1.5]), torch.tensor([-1.0, -1.0]))
        return bool(same == 0) and bool(far > 0)
    """),
    ("no zero", """
        far = penalty(torch.tensor([-0.5, -1.5]), torch.tensor([-1.0, -1.0]))
        return bool((far > 0).all())
    """),
    ("turned", """
        far = penalty(torch.tensor([-0.5, -1.0, -1.5]), torch.full((3,), -1.0))
        return not bool(far[0] > 0 and far[1] == 0 and far[2] > 0)
    """),
]  # fmt: skip
