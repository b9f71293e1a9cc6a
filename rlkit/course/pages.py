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


def begin_00(model: Any = "adder") -> dict[str, Any]:
    """Page 00 before its run: the task, the five questions, a trainer."""
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


def rejoin_00() -> dict[str, Any]:
    """Page 00 after its run: also the trained model and the run."""
    folder = keep.last_run("page00")
    if folder is None:
        return {}
    state = begin_00(folder)
    run = keep.restore(state["trainer"], folder, score=state["task"].reward)
    return state | {"questions": run.questions, "run": run}


SECTIONS: dict[str, Section] = {
    "0.1": Section(TRAINER),
    "0.2": Section(("rlkit.widgets.live.LiveRun",), ("task", "questions", "trainer"), begin_00),
    "0.3": Section((), ("task", "questions", "trainer", "run"), rejoin_00),
}
