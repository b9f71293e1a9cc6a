"""rlkit evidence NN: measure a page's effect with three seeds, print it, keep it if it is there."""

import csv
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rlkit.course import evidence
from rlkit.course.evidence.effect import Effect, Evidence, Numbers, mean

SEEDS = (1, 2, 3)


def main(argv: list[str]) -> int:
    """Runs the pages asked for; 1 if the effect of any is not shown.

    Raises ValueError for a page without evidence, before anything is measured.
    """
    import tyro

    @dataclass(frozen=True)
    class Flags:
        """Whether the effect of a page exceeds what the seed changes."""

        pages: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
        """Numbers of pages, for example 00 01; none: all that have evidence."""
        seeds: tuple[int, ...] = SEEDS
        """What is measured; at least two."""
        out: Path | None = None
        """Folder of the numbers; None: data/evidence, which the pages read."""

    flags = tyro.cli(Flags, args=argv, prog="rlkit evidence")
    if len(set(flags.seeds)) < 2:
        raise ValueError(f"seeds={flags.seeds} have no spread; give at least two")
    pages = [page.zfill(2) for page in flags.pages] or evidence.numbers_of_pages()
    found = {page: evidence.find(page) for page in pages}
    missing = [page for page, each in found.items() if not run(page, each, flags.seeds, flags.out)]
    if missing:
        print(f"not shown: the effect of page {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


def run(page: str, claim: Evidence, seeds: Sequence[int], folder: Path | None) -> bool:
    """Measure, print, and write the numbers if every effect is shown; whether that is so."""
    print(f"page {page}: {claim.says}", flush=True)
    numbers = measured(claim, seeds)
    print("\n".join([*table(numbers, seeds), *verdicts(claim, numbers)]))
    shown = all(effect.shown(numbers) for effect in claim.effects)
    file = evidence.path(page, folder)
    if shown:
        write(file, numbers, seeds)
    print(f"written: {file}" if shown else f"{file} stays as it was", flush=True)
    return shown


def measured(claim: Evidence, seeds: Sequence[int]) -> Numbers:
    """Every seed's numbers by name. Raises ValueError if names are missing or differ by seed."""
    numbers: Numbers = {}
    for seed in seeds:
        began = time.monotonic()
        found = claim.measure(seed)
        print(f"  seed {seed} took {time.monotonic() - began:.0f} s", flush=True)
        if numbers and found.keys() != numbers.keys():
            raise ValueError(f"seed {seed} measured {sorted(found)}, not {sorted(numbers)}")
        for name, value in found.items():
            numbers.setdefault(name, []).append(float(value))
    lacking = {name for e in claim.effects for name in e.names} - numbers.keys()
    if lacking or not claim.effects:
        what = f"needs {sorted(lacking)}" if lacking else "names no effect"
        raise ValueError(f"the evidence measured {sorted(numbers)} and {what}")
    return numbers


def table(numbers: Numbers, seeds: Sequence[int]) -> list[str]:
    """One row a number, one column a seed, the mean last."""
    width = max(map(len, numbers)) + 2
    head = "".join(f"{f'seed {seed}':>12}" for seed in seeds)
    rows = [f"  {'':{width}}{head}{'mean':>12}"]
    for name, values in numbers.items():
        cells = "".join(f"{value:>12.4g}" for value in [*values, mean(values)])
        rows.append(f"  {name:{width}}{cells}")
    return rows


def verdicts(claim: Evidence, numbers: Numbers) -> list[str]:
    """One line an effect: its gap beside its spread."""
    return [verdict(effect, numbers) for effect in claim.effects]


def verdict(effect: Effect, numbers: Numbers) -> str:
    """The gap beside the spread, and whether that shows the effect."""
    low = effect.low if isinstance(effect.low, str) else f"{effect.low:g}"
    words = "shown" if effect.shown(numbers) else "NOT shown"
    least = f", asked for {effect.at_least:g}" if effect.at_least else ""
    gap, spread = effect.gap(numbers), effect.spread(numbers)
    return f"  {effect.high} over {low}: gap {gap:.4g}, spread {spread:.4g}{least}: {words}"


def write(file: Path, numbers: Numbers, seeds: Sequence[int]) -> None:
    """One row a seed, through a temporary name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    with part.open("w", encoding="utf-8", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(["seed", *numbers])
        for i, seed in enumerate(seeds):
            rows.writerow([seed, *(f"{values[i]:.6g}" for values in numbers.values())])
    part.replace(file)
