"""Page 04: dead groups early and late in GRPO's run; how much louder the std makes a prompt."""

from typing import Any

from rlkit.course.evidence.effect import Effect, Evidence

STEPS, PROMPTS, GROUP, UPDATES = 40, 32, 8, 2


def trained(seed: int) -> tuple[list[float], float]:
    """The page's loop: (share of dead groups of each step, greedy accuracy at the end)."""
    import torch

    from rlkit.advantages import group_relative
    from rlkit.course.student import Student
    from rlkit.objectives import clipped_surrogate

    student, dead = Student(seed=seed), []
    optimizer = torch.optim.AdamW(student.model.parameters(), 3e-4, weight_decay=0.0)
    for k in range(STEPS):
        rollout = student.sample(k, PROMPTS, GROUP)
        mask, advantages = rollout.mask, group_relative(rollout.rewards, GROUP)[:, None]
        logp_old = student.policy(rollout, entropy=False)[0].detach()
        for _ in range(UPDATES):
            ratio = (student.policy(rollout, entropy=False)[0] - logp_old).exp()
            losses = clipped_surrogate(ratio, advantages)
            optimizer.zero_grad()
            ((losses * mask).sum() / mask.sum()).backward()
            torch.nn.utils.clip_grad_norm_(student.model.parameters(), 1.0)
            optimizer.step()
        groups = rollout.rewards.view(-1, GROUP)
        dead.append((groups.std(1) == 0).float().mean().item())
    return dead, student.evaluate()["accuracy"]


def louder(p: float, noise: Any) -> float:
    """Drawn groups of chance p: the push of right answers with the std, over that without."""
    import torch

    from rlkit.advantages import group_relative

    rewards = (torch.rand(20_000, GROUP, generator=noise) < p).float().flatten()
    with_std, without = (group_relative(rewards, GROUP, way) for way in ("group", "none"))
    return (with_std.clamp(min=0).sum() / without.clamp(min=0).sum()).item()


def measure(seed: int) -> dict[str, float]:
    """One run, and drawn groups of two chances."""
    import torch

    dead, accuracy = trained(seed)
    noise = torch.Generator().manual_seed(seed)
    return {
        "dead early": sum(dead[:5]) / 5,
        "dead late": sum(dead[-5:]) / 5,
        "accuracy": accuracy,
        "louder at p = 0.03": louder(0.03, noise),
        "louder at p = 0.5": louder(0.5, noise),
    }


EVIDENCE = Evidence(
    says="GRPO's groups die while it learns, and the std makes hard prompts louder",
    measure=measure,
    effects=(
        Effect("dead late", "dead early", at_least=0.2),
        Effect("louder at p = 0.03", "louder at p = 0.5", at_least=0.3),
        Effect("accuracy", 0.8),
    ),
)
