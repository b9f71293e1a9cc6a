"""What each section of each page needs: names to import, and how to take up the last run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlkit.widgets import keep


@dataclass(frozen=True)
class Section:
    """imports: dotted names; state: names of the notebook that earlier sections made.

    rejoin() returns that state from the last run's folder, or {} if there is none.
    """

    imports: tuple[str, ...]
    state: tuple[str, ...] = ()
    rejoin: Callable[[], dict[str, Any]] = dict


TRAINER = ("rlkit.GRPOConfig", "rlkit.GRPOTrainer", "rlkit.tasks.load_task")


def rejoin_00() -> dict[str, Any]:
    """Page 00 after its run: the task, the five questions, the trained model, the run."""
    import rlkit
    from rlkit.tasks import load_task

    folder = keep.last_run("page00")
    if folder is None:
        return {}
    task = load_task("sums")
    trainer = rlkit.GRPOTrainer(
        model=folder,
        reward_funcs=task.reward,
        args=rlkit.GRPOConfig.preset("tiny", output_dir="runs/page00"),
        train_dataset=task.train,
        eval_dataset=task.eval,
    )
    run = keep.restore(trainer, folder, score=task.reward)
    return {"task": task, "questions": run.questions, "trainer": trainer, "run": run}


SECTIONS: dict[str, Section] = {
    "0.1": Section(TRAINER),
    "0.2": Section(("rlkit.widgets.live.LiveRun",)),
    "0.3": Section((), ("task", "questions", "trainer", "run"), rejoin_00),
}
