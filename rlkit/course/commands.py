"""The commands of `rlkit course`: build, work, reset."""

import argparse
import sys
from collections.abc import Sequence

from rlkit.course import copies


def cli(argv: Sequence[str]) -> int:
    """Run one command; returns the exit status. A mistake of the caller's is one sentence."""
    args = parser().parse_args(list(argv))
    try:
        return args.run(args)
    except (ValueError, FileNotFoundError, ImportError) as error:
        print(f"rlkit course {args.command}: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The command line of `rlkit course`."""
    top = argparse.ArgumentParser(prog="rlkit course", description="the course's notebooks")
    commands = top.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="write the notebooks from notebooks/source/")
    build.add_argument("page", nargs="?", help="a page's number, for example 00; default: all")
    build.add_argument("--execute", action="store_true", help="run the solution, keep its outputs")
    build.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    build.set_defaults(run=run_build)
    work = commands.add_parser("work", help="copy fresh pages into work/, prints page 00's copy")
    work.set_defaults(run=run_work)
    reset = commands.add_parser("reset", help="one page anew; your copy is kept beside it")
    reset.add_argument("page", help="the page's number, for example 00")
    reset.set_defaults(run=run_reset)
    return top


def run_build(args: argparse.Namespace) -> int:
    """Build or check pages; status 1 if anything is wrong with them."""
    from rlkit.course import build

    if args.check and args.execute:
        raise ValueError("--check writes nothing: leave out --execute")
    wrong = build.check(args.page) if args.check else build.build(args.page, args.execute)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def run_work(args: argparse.Namespace) -> int:
    """Copy the pages and print where page 00 lies."""
    print(copies.work())
    return 0


def run_reset(args: argparse.Namespace) -> int:
    """Put a fresh page in the place of the learner's."""
    kept, fresh = copies.reset(args.page)
    if kept is not None:
        print(f"your copy is kept as {kept}")
    print(fresh)
    return 0
