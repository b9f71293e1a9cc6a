"""Claims as a file, as text and as a part of the README."""

import csv
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from rlkit.claims.findings import Case, Finding
from rlkit.claims.tested import Claim, Result
from rlkit.memory.cards import readable

COLUMNS: dict[str, str] = {
    "claim": "its name",
    "case": "what is compared; empty in the row of the whole claim",
    "of_source": "1: the source's own setting, which the verdict is about; 0: beside it",
    "unit": "of before and after: bytes, completions, copies, ...",
    "before": "the first of what is compared",
    "after": "the second",
    "value": "what the claim is about: a share saved, a ratio, a difference",
    "verdict": "holds, holds in part, does not hold; of a case: holds or does not hold",
    "how": "planned, without a GPU, or measured on a CPU",
    "says": "the claim, in words",
    "source": "who claims it",
    "setting": "under which it was tested",
    "compares": "what before, after and value are",
    "found": "the numbers, in words",
    "why": "the reason, in words",
}
"""Column of data/claims.csv -> what it holds. A row for each claim, then one for each case."""

WORDS = ("how", "says", "source", "setting", "compares")
MARKS = (
    "<!-- made by: rlkit claims --show --readme README.md -->",
    "<!-- end of what rlkit claims made -->",
)


# ---- the file --------------------------------------------------------------------------------


def rows(tested: Iterable[Result]) -> list[dict[str, str]]:
    """Of the file."""
    found = []
    for claim, finding in tested:
        whole = dict(claim=claim.name, verdict=finding.verdict)
        whole |= dict(found=finding.found, why=finding.why)
        found.append(whole | {name: getattr(claim, name) for name in WORDS})
        for case in finding.cases:
            row = {f.name: getattr(case, f.name) for f in fields(case) if f.name != "holds"}
            row |= dict(of_source=int(case.of_source), value=f"{case.value:.6g}")
            row |= {name: number(getattr(case, name)) for name in ("before", "after")}
            held = "holds" if case.holds else "does not hold"
            found.append(dict(claim=claim.name, verdict=held) | row)
    return [{name: str(row.get(name, "")) for name in COLUMNS} for row in found]


def number(value: float) -> str:
    """Whole numbers as they are, others to six digits."""
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"


def write(path: Path, tested: Sequence[Result]) -> None:
    """The file, beside and renamed: never half of it."""
    beside = path.with_suffix(".part")
    with open(beside, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows(tested))
    beside.replace(path)


def read(path: Path) -> list[Result]:
    """What `write` wrote. Raises ValueError for a file of other columns."""
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if list(reader.fieldnames or ()) != list(COLUMNS):
            raise ValueError(f"{path} is not a file of rlkit claims; run `rlkit claims` again")
        found: list[Result] = []
        for row in reader:
            if not row["case"]:
                claim = Claim(name=row["claim"], **{name: row[name] for name in WORDS})
                told = row["verdict"], row["found"], row["why"]
                found.append(Result(claim, Finding(*told, [])))
            else:
                found[-1].finding.cases.append(case_of(row))
    return found


def case_of(row: dict[str, str]) -> Case:
    """From a row of the file."""
    numbers = (float(row[name]) for name in ("before", "after", "value"))
    good = row["verdict"] == "holds"
    return Case(row["case"], row["of_source"] == "1", row["unit"], *numbers, good)


# ---- as text ---------------------------------------------------------------------------------


def text(tested: Iterable[Result]) -> str:
    """A paragraph for each claim, and its cases as a table."""
    return "\n\n".join(part(*one) for one in tested)


def part(claim: Claim, finding: Finding) -> str:
    """One claim."""
    lines = [f"{claim.name}: {finding.verdict.upper()} ({claim.how})"]
    for name, words in (
        ("claim", f"{claim.says} ({claim.source})"),
        ("setting", claim.setting),
        ("found", finding.found),
        ("why", finding.why),
    ):
        lines += textwrap.wrap(words, 98, initial_indent=f"  {name:8} ", subsequent_indent=" " * 11)
    return "\n".join([*lines, *case_lines(claim.compares, finding.cases)])


def case_lines(compares: str, cases: Sequence[Case]) -> list[str]:
    """The cases of a claim, a line each; those beside the source's setting are in brackets."""
    rows = [["", *(part.strip() for part in compares.split("|")), ""]]
    for c in cases:
        name = c.case if c.of_source else f"({c.case})"
        held = "holds" if c.holds else "does not"
        rows.append([name, *(amount(x, c.unit) for x in (c.before, c.after)), shown(c), held])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *numbers, held in rows:
        cells = [name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:]), held]
        lines.append(("    " + "  ".join(cells)).rstrip())
    return lines


def amount(value: float, unit: str) -> str:
    """With its unit where that is bytes."""
    if unit == "bytes":
        return readable(value)
    return f"{value:.3g} s" if unit == "seconds" else f"{value:.3g}"


def shown(case: Case) -> str:
    """The value: a share of bytes, a ratio of completions or seconds, or a number."""
    if case.unit == "bytes":
        return f"{case.value:.0%}"
    return f"{case.value:.2f}x" if case.unit in ("completions", "seconds") else f"{case.value:.3g}"


# ---- in the README ---------------------------------------------------------------------------


def markdown(tested: Iterable[Result]) -> str:
    """A table of verdicts, and a paragraph for each claim."""
    lines, paragraphs = ["| claim | verdict | |", "|---|---|---|"], []
    for claim, finding in tested:
        lines.append(f"| {claim.says} ({claim.source}) | {finding.verdict} | {claim.how} |")
        paragraphs.append(
            f"**{claim.says}** {finding.verdict.capitalize()}. {finding.found} {finding.why} "
            f"*Setting:* {claim.setting}"
        )
    wrapped = ("\n".join(textwrap.wrap(p, 100, break_on_hyphens=False)) for p in paragraphs)
    return "\n\n".join(["\n".join(lines), *wrapped])


def put_into(path: Path, tested: Iterable[Result]) -> None:
    """Replaces what lies between the marks of a file. Raises ValueError if there are none."""
    whole = path.read_text(encoding="utf-8")
    path.write_text(with_claims(whole, tested), encoding="utf-8")


def with_claims(whole: str, tested: Iterable[Result]) -> str:
    """A text with the claims between its marks. Raises ValueError if it has none."""
    before, start, rest = whole.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (start and end):
        raise ValueError(f"readme: there is no line {MARKS[0]!r} with {MARKS[1]!r} below it")
    return f"{before}{start}\n\n{markdown(tested)}\n\n{end}{after}"
