"""Page 03: a batch used eight times, clipped or not; the critic's value after the first digit."""

from rlkit.course.evidence.effect import Effect, Evidence

ROLLOUTS, REUSE, LEARNING_RATE = 8, 8, 3e-4


def reused(seed: int, epsilon: float | None) -> float:
    """Greedy accuracy after the page's loop: eight updates on each of eight rollouts."""
    import torch

    from rlkit.advantages import leave_one_out
    from rlkit.course.student import Student
    from rlkit.objectives import clipped_surrogate

    student = Student(seed=seed)
    optimizer = torch.optim.AdamW(student.model.parameters(), LEARNING_RATE, weight_decay=0.0)
    for k in range(ROLLOUTS):
        rollout = student.sample(k, prompts=32, num_generations=8)
        mask, advantages = rollout.mask, leave_one_out(rollout.rewards, 8)[:, None]
        logp_old = student.policy(rollout, entropy=False)[0].detach()
        for _ in range(REUSE):
            ratio = (student.policy(rollout, entropy=False)[0] - logp_old).exp()
            if epsilon is None:
                losses = -ratio * advantages
            else:
                losses = clipped_surrogate(ratio, advantages, epsilon)
            optimizer.zero_grad()
            ((losses * mask).sum() / mask.sum()).backward()
            torch.nn.utils.clip_grad_norm_(student.model.parameters(), 1.0)
            optimizer.step()
    return student.evaluate()["accuracy"]


def measure(seed: int) -> dict[str, float]:
    """Both loops, and the shipped critic on fresh answers of the adder."""
    import torch

    from rlkit.sampling import Sampler
    from rlkit.tasks import critic, load_task

    found = {"clipped": reused(seed, 0.2), "not clipped": reused(seed, None)}
    adder, model, task = critic.Adder(), critic.load_critic(), load_task("sums")
    rows = task.eval[:300]
    rollout = adder.answer(task, rows, Sampler(seed=seed))
    with torch.no_grad():
        values = model(rollout)
    firsts = torch.tensor([critic.encode(row["answer"], adder.tokenizer)[0] for row in rows])
    right = rollout.completion_ids[:, 0] == firsts
    return found | {
        "value after a right digit": values[right, 1].mean().item(),
        "value after a wrong digit": values[~right, 1].mean().item(),
    }


EVIDENCE = Evidence(
    says="a batch can be used eight times if the ratio is clipped, and a critic sees a wrong digit",
    measure=measure,
    effects=(
        Effect("clipped", "not clipped", at_least=0.1),
        Effect("value after a right digit", "value after a wrong digit", at_least=0.3),
    ),
)
