"""Page 09, the softmax in one pass: what its sections need."""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlkit.course.pages.section import Section

WITHOUT = "Triton is not here (it runs on Linux, and on Colab): read on"


def begin() -> dict[str, Any]:
    """Names of sections 9.1 and 9.2: a row of seven words, and a wide batch of logits."""
    import torch

    noise = torch.Generator().manual_seed(1)
    return {
        "z": torch.tensor([1.0, 2.0, 0.5, 4.0, 3.0, 1.5, 0.0]),
        "logits": 3 * torch.randn(64, 32_768, generator=noise),
        "targets": torch.randint(32_768, (64,), generator=noise),
        "textbook": textbook,
    }


def textbook(logits: Any, targets: Any, block: Any = None) -> Any:
    """All log-probs, then those of the targets."""
    return logits.log_softmax(1).gather(1, targets[:, None]).squeeze(1)


def with_kernel() -> dict[str, Any]:
    """Names of section 9.3: whether Triton is here, and the kernel that was written, if right."""
    import torch

    on_gpu = torch.cuda.is_available()
    os.environ.setdefault("TRITON_INTERPRET", "0" if on_gpu else "1")
    names = begin() | {"HAVE_TRITON": find_spec("triton") is not None, "WITHOUT": WITHOUT}
    names["device"] = "cuda" if on_gpu else "cpu"
    names["some"] = names["logits"][:16, :5000].contiguous()
    if names["HAVE_TRITON"]:
        own_kernel = import_module("rlkit.course.own_kernel")
        kernel = own_kernel.logp_kernel
        if Path("my_kernel.py").exists():
            sys.path.insert(0, "")
            kernel = own_kernel.judge(import_module("my_kernel").logp_kernel, names["device"])
        names |= {"own_kernel": own_kernel, "kernel": kernel}
    return names


KERNEL = ("HAVE_TRITON", "WITHOUT", "device")

SECTIONS: dict[str, Section] = {
    "9.1": Section(
        ("math", "torch", "rlkit.widgets.tiles.BlockStepper"), exercises=("online_softmax",)
    ),
    "9.2": Section(
        (
            "rlkit.widgets.explorer.paper",
            "rlkit.widgets.explorer.titled",
            "rlkit.course.pages.page_08.measured",
        ),
        ("z",),
        begin,
    ),
    "9.3": Section(
        ("importlib", "os", "sys", "importlib.util.find_spec", "rlkit.course.evidence"),
        ("z", "logits", "targets", "textbook"),
        begin,
    ),
    "9.4": Section(("subprocess",), KERNEL, with_kernel),
    "9.5": Section(
        ("rlkit.tiles.Scores", "rlkit.tiles.Shaping", "rlkit.tiles.TokenGradient"),
        (*KERNEL, "targets", "some"),
        with_kernel,
    ),
}
