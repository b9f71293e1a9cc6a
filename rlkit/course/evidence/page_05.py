"""Page 05: what a temperature left out, EOS taken for padding, and exp for expm1 do."""

from rlkit.course.evidence.effect import Effect, Evidence


def measure(seed: int) -> dict[str, float]:
    """Shares: tokens outside of the clip, answers whose end is trained, estimates below 0."""
    import torch

    from rlkit.course.pages.page_05 import answers_at

    numbers = {}
    for temperature in (0.5, 1.5):
        student, rollout = answers_at(temperature, seed)
        with torch.no_grad():
            z = student.logits(rollout)
        chosen = rollout.completion_ids[..., None]
        for name, scored_at in (("1", 1.0), ("the same", temperature)):
            logp = [(z / t).log_softmax(-1).gather(-1, chosen) for t in (scored_at, temperature)]
            ratio = (logp[0] - logp[1]).squeeze(-1)[rollout.mask].exp()
            outside = ((ratio < 0.8) | (ratio > 1.2)).float().mean().item()
            numbers[f"outside, drawn at {temperature}, scored at {name}"] = outside
    eos, ids = student.tokenizer.eos_token_id, rollout.completion_ids
    ends = (rollout.mask & (ids == eos)).any(1).float().mean().item()
    by_value = (ids != eos) & rollout.mask
    numbers |= {"ends trained, first EOS": ends}
    numbers["tokens kept, first EOS"] = 1.0
    numbers["tokens kept, ids != pad"] = (by_value.sum() / rollout.mask.sum()).item()
    noise = torch.Generator().manual_seed(seed)
    x = 1e-3 * (torch.rand(4000, generator=noise) - 0.5)
    numbers["negative, exp"] = (torch.exp(-x) - 1 + x < 0).float().mean().item()
    numbers["negative, expm1"] = (torch.expm1(-x) + x < -1e-11).float().mean().item()
    return numbers


EVIDENCE = Evidence(
    says="a temperature left out, EOS taken for padding and exp for expm1 each spoil a number",
    measure=measure,
    effects=(
        Effect("outside, drawn at 0.5, scored at 1", "outside, drawn at 0.5, scored at the same"),
        Effect("outside, drawn at 1.5, scored at 1", "outside, drawn at 1.5, scored at the same"),
        Effect("tokens kept, first EOS", "tokens kept, ids != pad", at_least=0.1),
        Effect("negative, exp", "negative, expm1", at_least=0.05),
    ),
)
