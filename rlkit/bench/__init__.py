"""Measurements that anyone can repeat:

rlkit bench train       one training step, side by side with TRL's
rlkit bench head        the loss head beside TRL's, Liger's and torch's: time, memory, exactness
rlkit bench algorithms  PPO, RLOO and GRPO side by side: memory, time by phase, reward
rlkit bench actions     one action a completion against one a token, on the same samples
rlkit bench learning    every algorithm, task and seed of the tiny preset, into data/curves
"""

from collections.abc import Sequence
from importlib import import_module

BENCHES = ("train", "head", "algorithms", "actions", "learning")


def main(argv: Sequence[str]) -> int | None:
    """Runs one of the benches; returns its exit code."""
    from rlkit.config import unknown

    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    if argv[0] not in BENCHES:
        raise ValueError(unknown("bench", argv[0], BENCHES))
    return import_module(f"rlkit.bench.{argv[0]}").main(list(argv[1:]))
