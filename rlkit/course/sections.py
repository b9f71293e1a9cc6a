"""here("0.2"): everything a section of a page needs, so that a restarted kernel rejoins anywhere.

One call imports the names of the section into the notebook, quiets what is not the lesson
(progress bars of downloads, warnings about settings), lets Colab show our widgets, and prints one
line: the section, the device, its threads, the names.
A section after an exercise binds its function: the learner's, if it was right once, else the
library's. A section after a training run also takes up that run again if the kernel has lost it:
history, answers and weights lie in the folder that the run wrote. Names that the notebook has are
kept.
"""

import os
import sys
import warnings
from importlib import import_module
from typing import Any

from rlkit.course import pages


def here(section: str, names: dict[str, Any] | None = None) -> None:
    """Set up `section`, for example "0.2", in the notebook (or in `names`).

    Raises ValueError, with the sections there are, for an unknown one.
    """
    needs = pages.find(section)
    names = sys._getframe(1).f_globals if names is None else names
    quiet()
    allow_widgets()
    names.update(earlier(section))
    brought = bring(section, needs)
    names.update(brought)
    print(f"section {section} | {device()} | {imported(brought)}")
    answers_so_far(section, names)
    if any(name not in names for name in needs.state):
        take_up(names, needs)


def bring(section: str, needs: pages.Section) -> dict[str, Any]:
    """What a section imports, by the names that it gets; `check` too on a page with exercises."""
    wanted = list(needs.imports)
    if pages.poses_exercises(section):
        wanted.append("rlkit.course.checks.check")
    return dict(bound(text) for text in wanted)


def earlier(section: str) -> dict[str, Any]:
    """What the sections before this one import: after a restart nobody runs them again."""
    found: dict[str, Any] = {}
    for name, needs in pages.page(pages.number_of(section)).items():
        if name == section:
            break
        found |= bring(name, needs)
    return found


def bound(text: str) -> tuple[str, Any]:
    """("F", module) of "torch.nn.functional as F"; without `as`, by the last part of its name."""
    dotted, _, alias = text.partition(" as ")
    module, _, attribute = dotted.rpartition(".")
    if module and hasattr(import_module(module), attribute):
        found = getattr(import_module(module), attribute)
    else:
        found = import_module(dotted)
    return alias or dotted.rpartition(".")[2], found


def answers_so_far(section: str, names: dict[str, Any]) -> None:
    """Bind the exercises' functions where the notebook lacks them: the learner's, or ours."""
    exercises = pages.exercises(section)
    if exercises:
        from rlkit.course.checks import check

        check.names(*exercises, into=names)


def take_up(names: dict[str, Any], needs: pages.Section) -> None:
    """Put the last run's names where the notebook lacks them, and say so."""
    missing = {k: v for k, v in needs.rejoin().items() if k not in names}
    names.update(missing)
    if missing:
        print(f"taken up: {', '.join(missing)}")
    else:
        print("no finished run was found: run the sections above first")


def quiet() -> None:
    """No progress bars of downloads and no advice from libraries among the cells."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)


def allow_widgets() -> None:
    """Colab shows widgets that are not its own only when asked to."""
    if "COLAB_RELEASE_TAG" in os.environ:
        import_module("google.colab").output.enable_custom_widget_manager()


def imported(brought: dict[str, Any]) -> str:
    """The names that this section adds."""
    return f"imported: {', '.join(brought)}" if brought else "nothing new to import"


def device() -> str:
    """What computes: the graphics card, or the CPU with its threads."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"
