"""Page 06: which suspect trained, and how to take that run up again."""

from typing import Any

from rlkit.course.pages.section import Section

SUSPECT, STEPS = "C", 40


def begin(model: Any = "adder") -> dict[str, Any]:
    """Before the run: the student and the loop of the suspect that the page trains."""
    from rlkit.course.student import Loop, Student
    from rlkit.course.suspects import Training, suspect

    student = Student(model)
    training = Training(student, suspect(SUSPECT))
    loop = Loop(training, student, STEPS, eval_steps=10, output_dir="runs/page06")
    return {"student": student, "loop": loop}


def rejoin() -> dict[str, Any]:
    """After the run: the same, and the run itself."""
    from rlkit.widgets import keep

    folder = keep.last_run("page06")
    if folder is None:
        return {}
    state = begin(folder)
    run = keep.restore(state["loop"], folder, score=state["student"].task.reward)
    return state | {"run": run}


def curves() -> dict[str, Any]:
    """Section 6.3's: the accuracies of all suspects."""
    from rlkit.course import evidence

    return {"ends": evidence.load("06")}


def probe_ends(count: Any) -> bool:
    """Section 6.4's: does count(ids, 9) count up to and with the first end?"""
    import torch

    ids = torch.tensor([[5, 6, 9, 9], [5, 6, 7, 8]])
    wanted = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    return torch.equal(count(ids, 9).int(), wanted.int())


PROBES = tuple(f"rlkit.course.probes.probe_{name}" for name in ("count", "place", "old", "spread"))

SECTIONS = {
    "6.1": Section(
        ("torch", "rlkit.course.suspects.Parts", "rlkit.course.suspects.NAMES"),
    ),
    "6.2": Section(
        (
            "rlkit.course.student.Student",
            "rlkit.course.student.Loop",
            "rlkit.course.suspects.Training",
            "rlkit.course.suspects.suspect",
            "rlkit.widgets.live.LiveRun",
        ),
    ),
    "6.3": Section(("rlkit.course.evidence",), ("loop", "run"), rejoin),
    "6.4": Section((), exercises=("probe_baseline", "probe_penalty")),
    "6.5": Section(
        (*PROBES, "rlkit.course.suspects.SUSPECTS", "rlkit.course.suspects.MISTAKES"),
        ("ends", "probe_ends"),
        lambda: curves() | {"probe_ends": probe_ends},
    ),
    "6.6": Section(
        (
            "rlkit.rollout.eos_mask",
            "rlkit.advantages.leave_one_out",
            "rlkit.advantages.group_relative",
            "rlkit.objectives.kl_divergence",
        ),
        ("probe_ends",),
        lambda: {"probe_ends": probe_ends},
    ),
}
