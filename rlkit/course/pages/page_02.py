"""Page 02, RLOO: sections, and what its cells define, for a kernel that lost it."""

from typing import Any

from rlkit.course.pages.section import Section


def make_step(student: Any) -> Any:
    """Section 2.4: k -> {"reward": mean reward}, one training step."""
    import torch

    from rlkit.advantages import leave_one_out
    from rlkit.course.exercises.sequence_loss import rloo_loss

    parameters = list(student.model.parameters())
    adam = torch.optim.AdamW(parameters, 3e-4, weight_decay=0.0)

    def step(k: int) -> dict[str, float]:
        rollout = student.sample(k, prompts=32, num_generations=8)
        advantages = leave_one_out(rollout.rewards, 8)
        every = student.logits(rollout).log_softmax(-1)
        logp = every.gather(-1, rollout.completion_ids[..., None]).squeeze(-1)
        adam.zero_grad()
        rloo_loss(logp, advantages, rollout.mask).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()
        return {"reward": rollout.rewards.mean().item()}

    return step


def begin() -> dict[str, Any]:
    """Section 2.1: the four rewards."""
    import torch

    return {"rewards": torch.tensor([1.0, 0.0, 0.0, 0.5])}


def rejoin() -> dict[str, Any]:
    """Section 2.5: the step, and the run that was kept in runs/page02."""
    from rlkit.course.student import Loop, Student
    from rlkit.widgets import keep

    names: dict[str, Any] = {"make_step": make_step}
    folder = keep.last_run("page02")
    if folder is None:
        return names
    student = Student(folder)
    loop = Loop(make_step(student), student, steps=30, eval_rows=200, output_dir="runs/page02")
    return names | {"run": keep.restore(loop, folder, student.task.reward)}


SECTIONS: dict[str, Section] = {
    "2.1": Section(
        ("torch", "rlkit.widgets.baseline.BaselineExplorer"), exercises=("leave_one_out",)
    ),
    "2.2": Section(
        ("rlkit.course.student.Student", "rlkit.widgets.baseline.slopes"), ("rewards",), begin
    ),
    "2.3": Section((), exercises=("sequence_loss",)),
    "2.4": Section(
        ("rlkit.course.student.Loop", "rlkit.widgets.live.LiveRun"),
    ),
    "2.5": Section(
        (
            "inspect",
            "rlkit.RLOO",
            "rlkit.RLOOTrainer",
            "rlkit.advantages",
            "rlkit.bench.actions",
            "rlkit.course.evidence",
            "rlkit.course.ladder",
        ),
        ("make_step", "run"),
        rejoin,
    ),
}
