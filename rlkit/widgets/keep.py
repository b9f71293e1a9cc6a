"""A live run on disk, so that a restarted kernel can show it and go on from it.

The trainer writes its weights into args.output_dir when it ends; save() adds run.json beside
them: history, accuracy, answers, guess.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlkit.widgets.live import LiveRun

FILE = "run.json"


def save(run: "LiveRun") -> None:
    """Write run.json into the trainer's output_dir; nothing if it has none."""
    folder = run.trainer.args.output_dir
    if folder is None:
        return
    kept = {
        "history": run.rows,
        "accuracy": run.accuracy,
        "moments": [asdict(moment) for moment in run.moments],
        "questions": run.questions,
        "guess": run.guess,
        "notes": run.notes,
        "seconds": run.seconds,
    }
    path = Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(kept), encoding="utf-8")
    part.replace(path)


def forget(run: "LiveRun") -> None:
    """Remove what an earlier run kept there: its numbers would stand beside other weights."""
    if run.trainer.args.output_dir is not None:
        (Path(run.trainer.args.output_dir) / FILE).unlink(missing_ok=True)


def last_run(name: str) -> Path | None:
    """The folder runs/<name> under the working directory, if a whole run was kept in it."""
    folder = Path("runs") / name
    whole = all((folder / file).exists() for file in (FILE, "config.json"))
    return folder if whole else None


def restore(trainer: Any, folder: Path, score: Callable[..., list[float]] | None) -> "LiveRun":
    """The run that was saved in `folder`, on a trainer that holds the weights from there."""
    from rlkit.widgets.live import LiveRun, Moment

    kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
    trainer.history[:] = kept["history"]
    run = LiveRun(trainer, kept["guess"], kept["questions"], score)
    run.accuracy = [tuple(point) for point in kept["accuracy"]]
    run.moments = [Moment(**moment) for moment in kept["moments"]]
    run.seconds, run.notes = kept["seconds"], kept["notes"]
    run.state = "done" if run.step >= run.steps else "stopped"
    return run
