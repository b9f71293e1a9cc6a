"""Page 01: REINFORCE with 4 added to every reward, without a baseline and with one."""

from rlkit.course.evidence.effect import Effect, Evidence

STEPS, ANSWERS, LEARNING_RATE = 30, 256, 1e-3


def trained(seed: int, shift: float, baseline: bool) -> float:
    """Greedy accuracy after the page's loop: one answer each to 256 sums a step."""
    import torch

    from rlkit.course.student import Student

    student = Student(seed=seed)
    optimizer = torch.optim.AdamW(student.model.parameters(), LEARNING_RATE, weight_decay=0.0)
    for k in range(STEPS):
        rollout = student.sample(k, prompts=ANSWERS, num_generations=1)
        weights = rollout.rewards + shift
        if baseline:
            weights = weights - weights.mean()
        logp = student.policy(rollout, entropy=False)[0]
        loss = -(weights[:, None] * logp * rollout.mask).sum() / rollout.mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.model.parameters(), 1.0)
        optimizer.step()
    return student.evaluate()["accuracy"]


def measure(seed: int) -> dict[str, float]:
    """Three runs from the same model: plain rewards, 4 added, 4 added with a baseline."""
    from rlkit.course.student import Student

    return {
        "before": Student(seed=seed).evaluate()["accuracy"],
        "plain": trained(seed, 0.0, baseline=False),
        "plus 4": trained(seed, 4.0, baseline=False),
        "plus 4, baseline": trained(seed, 4.0, baseline=True),
    }


EVIDENCE = Evidence(
    says="4 added to every reward ruins the run without a baseline, and not the one with it",
    measure=measure,
    effects=(
        Effect("plain", "before", at_least=0.1),
        Effect("plus 4, baseline", "plus 4", at_least=0.5),
        Effect("before", "plus 4", at_least=0.1),
    ),
)
