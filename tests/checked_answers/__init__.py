"""What learners write: bodies of the exercises' functions, right ones by style, wrong by mistake.

None of them calls rlkit, and none is made from the code that the checks hold. One file an exercise:

    MUTATES   the argument that a careless `+=` changes; None where it is a function
    RIGHT     style -> body; two besides the solution at least, one of them called "loop"
    WRONG     (the mistake's name, body); three names at least
"""

from importlib import import_module
from pathlib import Path

FILES = sorted(p.stem for p in Path(__file__).parent.glob("[!_]*.py"))
MODULES = {name: import_module(f"{__name__}.{name}") for name in FILES}
RIGHT = {name: module.RIGHT for name, module in MODULES.items()}
WRONG = {name: module.WRONG for name, module in MODULES.items()}
MUTATES = {name: module.MUTATES for name, module in MODULES.items()}
