"""What a live run says about itself: its title (the finding so far), status, legend and table.

Plain functions of a LiveRun that only read it, so that the words are tested without a page.
"""

import os
from base64 import b64encode
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlkit.widgets.live import LiveRun

MAX_LETTERS = 80  # of a completion in the table
UNANSWERED = (
    "The kernel has not answered this press. Either another cell keeps it busy, or JupyterLab lost "
    "its way when the page was reloaded: then call start() or stop() on the run in a new cell."
)


def in_foreground() -> bool:
    """Whether a run has to do its work in the cell that shows it, and so without buttons."""
    return any(is_set(name) for name in ("COLAB_RELEASE_TAG", "RLKIT_FOREGROUND", "RLKIT_FAST"))


def is_set(name: str) -> bool:
    """Whether an environment variable says yes: anything but "" and "0"."""
    return os.environ.get(name, "0") not in ("", "0")


def view(run: "LiveRun") -> dict[str, Any]:
    """Everything the page shows but the two series."""
    return {
        "state": run.state,
        "title": title(run),
        "status": status(run),
        "steps": run.steps,
        "ylim": list(run.ylim),
        "xlabel": "training step",
        "ylabel": "share of answers that are right",
        "guess": run.guess,
        "legend": legend(run),
        "table": table(run),
        "notes": list(run.notes.values()),
        "buttons": not in_foreground(),
        "presses": run.presses,
        "unanswered": UNANSWERED,
        "can_start": run.can_start,
        "can_stop": bool(run.notice) or (run.state == "running" and not run.stopping),
    }


def title(run: "LiveRun") -> str:
    """The finding so far, in one line."""
    if not run.accuracy:
        return "Not trained yet" if run.state == "idle" else "Measuring the untrained model"
    first, last = run.accuracy[0][1], run.accuracy[-1][1]
    if len(run.accuracy) == 1:
        return f"Greedy accuracy {first:.2f} before training"
    return f"Greedy accuracy {last:.2f} after {run.seconds:.0f} s, {first:.2f} before"


def status(run: "LiveRun") -> str:
    """Where the run is, in one line."""
    if run.notice:
        return run.notice
    if run.state == "idle":
        return f"press Start: {run.steps} steps"
    if run.state == "failed":
        return f"failed at step {run.step + 1}: {sentence(run.error)}"
    if run.state == "stopped":
        return f"stopped after step {run.step} of {run.steps}; Start goes on from here"
    if run.state == "done":
        return f"finished: {run.step} steps in {run.seconds:.0f} s"
    ending = "stopping after this step" if run.stopping else time_left(run)
    hint = "; the cell's own stop button ends the run" if in_foreground() else ""
    return f"step {run.step} of {run.steps}, {ending}{hint}"


def time_left(run: "LiveRun") -> str:
    """From the pace of the whole run, evaluations included."""
    if run.step < 2:
        return "timing the first steps"
    left = run.seconds / run.step * (run.steps - run.step)
    return f"about {left:.0f} s left" if left < 90 else f"about {left / 60:.0f} min left"


def sentence(error: BaseException | None) -> str:
    """The error's name and words."""
    return f"{type(error).__name__}: {error}"


def not_ready(run: "LiveRun") -> str:
    """Why there is no result, and what to do."""
    then = "then run this cell again"
    if run.state == "idle":
        return f"not started: press Start above, {then}"
    if run.state == "failed":
        return f"the run {status(run)}\n`raise run.error` shows where it happened"
    return f"step {run.step} of {run.steps}: wait or press Stop, {then}"


def other_runs(other: "LiveRun") -> str:
    """Why a second run does not start."""
    return (
        f"another run is at step {other.step} of {other.steps}: wait for it, or press Stop here "
        "to end it, then press Start again"
    )


def legend(run: "LiveRun") -> list[dict[str, Any]]:
    """Name and newest value of each line, in the order they are drawn over each other."""
    lines = [
        ("accuracy", "greedy accuracy", run.accuracy[-1][1] if run.accuracy else None),
        ("reward", "reward of sampled answers", run.reward[-1][1] if run.rows else None),
    ]
    if run.guess is not None:
        lines.append(("guess", "your guess", run.guess))
    return [
        {"key": key, "name": name, "value": None if value is None else f"{value:.2f}"}
        for key, name, value in lines
    ]


def table(run: "LiveRun") -> dict[str, Any]:
    """Each question with its first and its newest answer."""
    moments = run.moments[:1] + run.moments[1:][-1:]
    headings = ["question"] + [f"step {moment.step}" for moment in moments]
    rows = [
        [{"text": clipped(question["prompt"]), "mark": ""}]
        + [{"text": clipped(m.answers[i]), "mark": m.marks[i]} for m in moments]
        for i, question in enumerate(run.questions)
    ]
    return {"caption": "Greedy answers", "columns": headings, "rows": rows}


def clipped(text: str) -> str:
    """One line of at most MAX_LETTERS characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_LETTERS else line[: MAX_LETTERS - 1] + "…"


def static_bundle(run: "LiveRun", bundle: dict[str, Any]) -> dict[str, Any]:
    """The display of a run that has ended: the widget, and its picture for where there is none."""
    png = BytesIO()
    run.figure().savefig(png, format="png", bbox_inches="tight")
    return bundle | {"text/plain": repr(run), "image/png": b64encode(png.getvalue()).decode()}


def named(line: dict[str, Any]) -> str:
    """A legend line as one string: "greedy accuracy 0.86"."""
    return line["name"] if line["value"] is None else f"{line['name']} {line['value']}"
