"""The course: sections of a page, the builder of notebooks, and the learner's copies.

from rlkit.course import here
here("0.1")                      # in a notebook: imports and settings of section 0.1

python -m rlkit.course build     # notebooks/source/NN_name.py -> both notebooks
python -m rlkit.course work      # fresh pages into work/, never over a learner's file
python -m rlkit.course reset 00  # one page anew; the learner's copy is kept beside it
"""

from rlkit.course.commands import cli
from rlkit.course.sections import here

__all__ = ["cli", "here"]
