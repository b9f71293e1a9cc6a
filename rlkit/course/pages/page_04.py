"""Page 04, GRPO: RLOO's siblings, PPO's clip, and the standard deviation of a group."""

from typing import Any

from rlkit.course.pages.page_03 import logp_of, mean_over
from rlkit.course.pages.section import Section

TOOLS = (
    "torch",
    "rlkit.course.ladder",
    "rlkit.course.evidence",
    "rlkit.course.student.Loop",
    "rlkit.course.student.Student",
    "rlkit.widgets.live.LiveRun",
    "rlkit.widgets.explorer.paper",
    "rlkit.widgets.explorer.titled",
)
MAP = ("inspect", "rlkit.objectives", "rlkit.GRPOConfig", "rlkit.GRPOTrainer", "rlkit.RLOOTrainer")


def three_prompts() -> dict[str, Any]:
    """Section 4.1's rewards, [3, 4]: a hard prompt, an easy one and a mastered one."""
    import torch

    return {"rewards": torch.tensor([[0, 0, 0, 1.0], [1, 1, 0, 1], [1, 1, 1, 1]])}


def rejoin() -> dict[str, Any]:
    """After the run; without it where none was kept. Section 4.4's answers are drawn again."""
    from rlkit.course.student import Loop, Student
    from rlkit.widgets import keep

    student = Student(seed=3)
    rollout = student.sample(0, prompts=64, num_generations=8)
    made = {"student": student, "rollout": rollout, "guess": None}
    made |= {"logp_of": logp_of, "mean_over": mean_over}
    folder = keep.last_run("page04")
    if folder is None:
        return made
    pupil = Student(folder)
    loop = Loop(lambda k: {}, pupil, steps=40, output_dir=str(folder))
    run = keep.restore(loop, folder, score=pupil.task.reward)
    return made | {"pupil": pupil, "run": run}


SECTIONS = {
    "4.1": Section(TOOLS, exercises=("leave_one_out",)),
    "4.2": Section((), ("rewards",), three_prompts, exercises=("group_relative",)),
    "4.3": Section(("rlkit.widgets.weight.WeightExplorer",), ("rewards",), three_prompts),
    "4.4": Section((), exercises=("clip", "dead_share")),
    "4.5": Section((), ("pupil", "run", "guess"), rejoin),
    "4.6": Section(MAP, ("student", "rollout", "logp_of", "mean_over", "pupil"), rejoin),
}
