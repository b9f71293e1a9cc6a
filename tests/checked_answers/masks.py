"""What learners write for masks."""

MUTATES = "completion_ids"

RIGHT = {
    "loop": """
        mask = torch.zeros(completion_ids.shape, dtype=torch.bool)
        finished = torch.zeros(len(completion_ids), dtype=torch.bool)
        for b, row in enumerate(completion_ids.tolist()):
            for t, token in enumerate(row):
                mask[b, t] = True
                if token in eos_ids.tolist():
                    finished[b] = True
                    break
        return mask, finished
    """,
    "position of the first": """
        is_eos = (completion_ids[:, :, None] == eos_ids).any(-1)
        T = completion_ids.shape[1]
        finished = is_eos.any(1)
        first = torch.where(finished, is_eos.float().argmax(1), T)
        return torch.arange(T) <= first[:, None], finished
    """,
    "shifted": """
        is_eos = torch.isin(completion_ids, eos_ids)
        before = torch.cat([torch.zeros_like(is_eos[:, :1]), is_eos[:, :-1]], 1)
        return before.long().cummax(1).values == 0, is_eos.sum(1) > 0
    """,
}

WRONG = [
    ("EOS dropped", """
        ended = torch.isin(completion_ids, eos_ids).cumsum(1) > 0
        return ~ended, ended.any(1)
    """),
    # two mistakes: the first that shows is named
    ("EOS dropped", """
        ended = (completion_ids == eos_ids[0]).cumsum(1) > 0
        return ~ended, ended.any(1)
    """),
    ("not pad", """
        is_eos = torch.isin(completion_ids, eos_ids)
        return torch.logical_not(is_eos), is_eos.any(1)
    """),
    ("shifted by one", """
        is_eos = torch.isin(completion_ids, eos_ids)
        before = is_eos.cumsum(1) - is_eos.long()
        mask = torch.ones_like(is_eos)
        mask[:, 1:] = (before == 0)[:, :-1]
        return mask, is_eos.any(1)
    """),
    ("no EOS", """
        is_eos = torch.isin(completion_ids, eos_ids)
        end = is_eos.int().argmax(1)
        return torch.arange(is_eos.shape[1])[None] <= end[:, None], is_eos.any(1)
    """),
    ("last EOS", """
        is_eos = torch.isin(completion_ids, eos_ids)
        T = is_eos.shape[1]
        last = torch.where(is_eos, torch.arange(T), -1).max(1).values
        last = torch.where(last < 0, T, last)
        return torch.arange(T) <= last[:, None], is_eos.any(1)
    """),
    ("finished", """
        is_eos = torch.isin(completion_ids, eos_ids)
        return is_eos.cumsum(1) - is_eos.long() == 0, is_eos[:, -1]
    """),
]  # fmt: skip
