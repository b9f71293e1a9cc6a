"""Page 05, details: sections, and rollouts of the adder at a temperature."""

from typing import Any

from rlkit.course.pages.section import Section


def answers_at(temperature: float, seed: int = 0, prompts: int = 64) -> tuple[Any, Any]:
    """(student, rollout): answers of the adder, four to a sum, drawn at a temperature."""
    from rlkit.course.student import Student
    from rlkit.rollout import generate
    from rlkit.sampling import Sampler

    student = Student(seed=seed)
    picked = student._train.pick(0, prompts, seed)
    student.policy.eval()
    rollout = generate(
        student.policy,
        *student._train.batch(picked, student.policy.device),
        Sampler(seed=seed, step=0, temperature=temperature),
        num_generations=4,
        max_completion_length=student.task.max_completion_length,
        eos_ids=[student.tokenizer.eos_token_id],
        pad_id=student.tokenizer.pad_token_id,
    )
    return student, rollout


SECTIONS: dict[str, Section] = {
    "5.1": Section(
        (
            "torch",
            "rlkit.GRPO",
            "rlkit.widgets.explorer.paper",
            "rlkit.widgets.explorer.titled",
            "rlkit.widgets.normaliser.NormaliserExplorer",
        ),
        exercises=("k3",),
    ),
    "5.2": Section(("rlkit.kl_divergence", "rlkit.widgets.kl.KLExplorer")),
    "5.3": Section(("rlkit.course.pages.page_05.answers_at",)),
    "5.4": Section(("rlkit.group_relative",)),
    "5.5": Section(("rlkit.course.pages.page_05.answers_at",)),
}
