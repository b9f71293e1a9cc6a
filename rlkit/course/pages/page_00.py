"""Page 00, start: the trainer before its run, and the run after it."""

from typing import Any

from rlkit.course.pages.section import Section
from rlkit.widgets import keep

TRAINER = ("rlkit.GRPOConfig", "rlkit.GRPOTrainer", "rlkit.tasks.load_task")


def begin(model: Any = "adder") -> dict[str, Any]:
    """Before the run: the task, the five questions, a trainer."""
    import rlkit
    from rlkit.tasks import load_task

    task = load_task("sums")
    trainer = rlkit.GRPOTrainer(
        model=model,
        reward_funcs=task.reward,
        args=rlkit.GRPOConfig.preset(
            "tiny", eval_steps=5, output_dir="runs/page00", disable_tqdm=True
        ),
        train_dataset=task.train,
        eval_dataset=task.eval,
    )
    return {"task": task, "questions": task.eval[:5], "trainer": trainer}


def rejoin() -> dict[str, Any]:
    """After the run: also the trained model and the run."""
    folder = keep.last_run("page00")
    if folder is None:
        return {}
    state = begin(folder)
    run = keep.restore(state["trainer"], folder, score=state["task"].reward)
    return state | {"questions": run.questions, "run": run}


SECTIONS: dict[str, Section] = {
    "0.1": Section(TRAINER),
    "0.2": Section(("rlkit.widgets.live.LiveRun",), ("task", "questions", "trainer"), begin),
    "0.3": Section(("rlkit.course.ladder",), ("task", "questions", "trainer", "run"), rejoin),
}
