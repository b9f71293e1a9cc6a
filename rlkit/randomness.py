"""The state of the random generators that dropout and reward functions may draw from.

As text, for JSON. Sampling noise and the order of prompts need none: both are keyed by the seed and
the step.
"""

import base64
import random
import sys
from typing import Any

import torch


def state() -> dict[str, Any]:
    """Of this process: Python, torch on the CPU and on the GPU in use, NumPy where it is loaded."""
    found = {"python": random.getstate(), "torch": packed(torch.get_rng_state())}
    if torch.cuda.is_available():
        found["cuda"] = packed(torch.cuda.get_rng_state())
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        found["numpy"] = [kind, keys.tolist(), *rest]
    return found


def restore(saved: dict[str, Any]) -> None:
    """Puts them back; what the state does not hold, or this machine does not have, stays."""
    version, keys, gauss = saved["python"]
    random.setstate((version, tuple(keys), gauss))
    torch.set_rng_state(unpacked(saved["torch"]))
    if "cuda" in saved and torch.cuda.is_available():
        torch.cuda.set_rng_state(unpacked(saved["cuda"]))
    if "numpy" in saved and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(saved["numpy"]))


def packed(bits: torch.Tensor) -> str:
    """[n] uint8 -> text."""
    return base64.b64encode(bytes(bits.tolist())).decode()


def unpacked(text: str) -> torch.Tensor:
    """Text -> [n] uint8."""
    return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)
