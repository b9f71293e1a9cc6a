"""A rank of rlkit that meets with trouble on purpose: what tests of the launcher run in its place.

rank_in_trouble.py raises       rank 1 raises in its second step
rank_in_trouble.py no_prctl     nobody tells the kernel to kill ranks with their parent
"""

import os
import sys

from rlkit.memory import rank


def raises():
    begin = rank.Watch.begin

    def begin_badly(watch, trainer, part):
        begin(watch, trainer, part)
        if os.environ["RANK"] == "1":
            trainer.callbacks.append(complain)

    def complain(row):
        raise ValueError("the dog ate the second step")

    rank.Watch.begin = begin_badly


def no_prctl():
    rank.die_with_parent = lambda: None


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    rank.main()
