"""Page 02: two baselines for one gradient, with two answers a group; and RLOO's own run."""

from rlkit.course.evidence.effect import Effect, Evidence

STEPS, PROMPTS, G, LEARNING_RATE = 30, 32, 8, 3e-4


def pool(seed: int) -> tuple:
    """512 answers to one sum that the model solves about half the time: rewards and slopes."""
    import torch

    from rlkit.course.student import Student
    from rlkit.widgets.baseline import slopes

    student = Student(seed=seed)
    steps = ((k, student.sample(k, 1, 64).rewards.mean().item()) for k in range(50))
    k = next(k for k, share in steps if 0.35 < share < 0.65)
    rollout = student.sample(k, prompts=1, num_generations=512)

    def logp() -> torch.Tensor:
        token_logp = student.policy(rollout, entropy=False)[0]
        return (token_logp * rollout.mask).sum(1)

    return rollout.rewards, slopes(list(student.model.parameters()), logp, rollout.rewards)


def trained(seed: int) -> tuple[float, float]:
    """Greedy accuracy before and after the page's loop."""
    import torch

    from rlkit.advantages import leave_one_out
    from rlkit.course.student import Student

    student = Student(seed=seed)
    before = student.evaluate()["accuracy"]
    optimizer = torch.optim.AdamW(student.model.parameters(), LEARNING_RATE, weight_decay=0.0)
    for k in range(STEPS):
        rollout = student.sample(k, PROMPTS, G)
        advantages = leave_one_out(rollout.rewards, G)
        logp = student.policy(rollout, entropy=False)[0]
        loss = -(advantages * (logp * rollout.mask).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.model.parameters(), 1.0)
        optimizer.step()
    return before, student.evaluate()["accuracy"]


def measure(seed: int) -> dict[str, float]:
    """Centres and widths with two answers a group, with 4 added for the last; the run's ends."""
    from rlkit.widgets.baseline import BaselineExplorer

    explorer = BaselineExplorer([1.0, 0.0], pool=pool(seed))
    two = explorer.measured(2)
    many = explorer.measured(16)
    shifted = explorer.set(shift=4.0).measured(2)
    before, after = trained(seed)
    return {
        "centre, leave-one-out": two["loo"]["centre"],
        "centre, plain mean": two["mean"]["centre"],
        "width, leave-one-out": two["loo"]["width"],
        "width, plain mean": two["mean"]["width"],
        "width / centre, G = 2": two["loo"]["ratio"],
        "width / centre, G = 16": many["loo"]["ratio"],
        "width / centre at plus 4": shifted["loo"]["ratio"],
        "width / centre at plus 4, no baseline": shifted["none"]["ratio"],
        "before": before,
        "after": after,
    }


EVIDENCE = Evidence(
    says="leave-one-out is centred right, the plain mean on half; 4 more per reward ruins neither",
    measure=measure,
    effects=(
        Effect("centre, leave-one-out", "centre, plain mean", at_least=0.4),
        Effect("width, leave-one-out", "width, plain mean"),
        Effect("width / centre, G = 2", "width / centre, G = 16"),
        Effect("width / centre at plus 4, no baseline", "width / centre at plus 4", at_least=0.5),
        Effect("after", "before", at_least=0.1),
    ),
)
