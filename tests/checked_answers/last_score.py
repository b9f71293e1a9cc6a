"""What learners write for the score at the last token."""

MUTATES = "scores"

RIGHT = {
    "loop": """
        found = []
        for row, valid in zip(scores, mask):
            found.append(row[valid][-1])
        return torch.stack(found)
    """,
    "turned round": """
        last = mask.shape[1] - 1 - mask.flip(1).long().argmax(1)
        return scores.gather(1, last[:, None]).squeeze(1)
    """,
    "cumulative": """
        last = mask.cumsum(1).argmax(1)
        return scores[torch.arange(len(scores)), last]
    """,
}

WRONG = [
    ("last column", "return scores[:, -1]"),
    ("right padding only", "return scores[torch.arange(len(scores)), mask.sum(1) - 1]"),
    ("right padding only", "return scores.gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)"),
    ("first token", "return scores[torch.arange(len(scores)), mask.long().argmax(1)]"),
    ("one early", """
        last = mask.cumsum(1).argmax(1)
        return scores[torch.arange(len(scores)), last - 1]
    """),
    ("mean", "return torch.where(mask, scores, 0.0).sum(1) / mask.sum(1)"),
    ("mean", "return torch.where(mask, scores, 0.0).sum(1)"),
]  # fmt: skip
