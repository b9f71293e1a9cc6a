"""python -m rlkit.course build | work | reset"""

import sys

from rlkit.course.commands import cli

raise SystemExit(cli(sys.argv[1:]))
