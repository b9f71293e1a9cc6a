"""What every page of the course keeps to; each rule that is broken is one line of words.

Form: a card; code of at most 76 columns and 25 lines that parses; sections numbered from here();
exercises announced with time and difficulty, checked and solved (posed.py).
Prose: no exclamation marks, no praise, no measured numbers (a cell computes them; an example's own
number stands in backticks).
Files: under 1 MB, no widget state, executed as they are, checked cells with an output to check,
figures also as images.
"""

import ast
import hashlib
import json
import re
from typing import Any

from rlkit.course import posed

COLUMNS, LINES, MOST_BYTES = 76, 25, 1_000_000
TAGS = {"setup", "solution", "raises-exception"}
PRAISE = "amazing awesome powerful easily simply seamless exciting magic incredible revolutionary"
CARD = re.compile(
    r"# (?P<title>\d\d .+?)\n+\*\*After this page you can\*\* (?P<goal>.+?)\n\n"
    r"\| time \| where \| memory \|\n\|[-|]+\|\n"
    r"\| (?P<time>.+?) \| (?P<where>.+?) \| (?P<memory>.+?) \|",
    re.DOTALL,
)


def broken(name: str, pages: dict[str, Any]) -> list[str]:
    """Every rule that a page breaks: {"exercise": notebook, "solution": notebook} -> lines."""
    whole = pages["solution"]
    found = [*form(name, whole), *prose(whole), *executed(whole), *posed.broken(name, pages)]
    for kind, notebook in pages.items():
        found += [f"{kind}: {line}" for line in [*code(notebook), *stored(notebook)]]
    return [f"{name}: {line}" for line in found]


def card(text: str) -> dict[str, str]:
    """The parts of a page's card: title, goal, time, where, memory.

    Raises ValueError, with the form a card has, if the text holds none.
    """
    match = CARD.match(text)
    if match is None:
        raise ValueError(
            "the page has no card: `# NN Title`, `**After this page you can** ...`, and a table "
            "`| time | where | memory |` with one row"
        )
    return {key: " ".join(value.split()) for key, value in match.groupdict().items()}


def minutes(time: str) -> int:
    """The learner's minutes of a card's time, "35 min, 50 s of it computing" -> 35.

    Raises ValueError if it does not begin like that.
    """
    match = re.match(r"(\d+) min\b", time)
    if match is None:
        raise ValueError(f"the card's time is {time!r}; it begins with `35 min`")
    return int(match[1])


def form(name: str, notebook: Any) -> list[str]:
    """Card, title, sections, tags."""
    found = []
    try:
        parts = card(notebook.cells[0].source)
        minutes(parts["time"])
        if not parts["title"].startswith(f"{name[:2]} "):
            found.append(f"the title does not begin with {name[:2]}")
    except ValueError as error:
        found.append(str(error))
    text = "\n".join(cell.source for cell in notebook.cells)
    sections = re.findall(r'^from rlkit\.course import here\n+here\("(.+)"\)', text, re.M)
    if len(sections) != text.count("\nhere("):
        found.append("a here(...) without `from rlkit.course import here` above it")
    wanted = [f"{int(name[:2])}.{i + 1}" for i in range(len(sections))]
    if not sections or sections != wanted:
        found.append(f"its sections are {sections}, not {wanted or 'here(...) at all'}")
    used = {tag for cell in notebook.cells for tag in cell.metadata.get("tags", [])}
    return found + [f"the tag {tag!r} means nothing here" for tag in sorted(used - TAGS)]


def code(notebook: Any) -> list[str]:
    """Columns, lines and syntax, cell by cell."""
    found = []
    for cell in notebook.cells:
        lines = cell.source.split("\n")
        if len(lines) > LINES:
            found.append(f"{len(lines)} lines, over {LINES}, in the cell that begins {lines[0]!r}")
        if cell.cell_type == "code":
            found += [f"over {COLUMNS} columns: {line!r}" for line in lines if len(line) > COLUMNS]
            found += syntax(cell.source)
    return found


def syntax(source: str) -> list[str]:
    """[] if a cell parses; IPython's magics count as `pass`."""
    plain = re.sub(r"^(\s*)%.*$", r"\1pass", source, flags=re.M)
    try:
        ast.parse(plain)
    except SyntaxError as error:
        return [f"a cell does not parse ({error.msg}): {source.split(chr(10))[0]!r}"]
    return []


def prose(notebook: Any) -> list[str]:
    """Rules for text cells; headings, tables, code and links are left out."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        text = plain_text(cell.source)
        if "!" in text:
            found.append(f"an exclamation mark in {text.strip()[:60]!r}")
        praise = [word for word in PRAISE.split() if re.search(rf"\b{word}\b", text, re.I)]
        found += [f"the word {word!r} praises, say what is so" for word in praise]
        text = re.sub(
            r"\b(sections?|exercises?) \d+\.\d+(( and|,) \d+\.\d+)*", " ", text, flags=re.I
        )
        measured = re.findall(r"\b\d+\.\d+\b|\b\d+ ?%", text)
        found += [f"the number {n} in prose: compute it in a cell" for n in measured]
    return found


def plain_text(markdown: str) -> str:
    """Markdown without code, mathematics, links' addresses, headings and tables."""
    text = re.sub(r"```.*?```|`[^`\n]*`|\$[^$\n]*\$|\]\([^)]*\)", " ", markdown, flags=re.DOTALL)
    return "\n".join(line for line in text.split("\n") if not line.startswith(("#", "|")))


def executed(notebook: Any) -> list[str]:
    """The solution was run as it stands, without an error."""
    if notebook.metadata.get("rlkit", {}).get("code") != code_digest(notebook):
        return ["its code has changed since it was executed: build it with --execute"]
    found = []
    for cell in notebook.cells:
        errors = [o for o in cell.get("outputs", []) if o["output_type"] == "error"]
        if errors and "raises-exception" not in cell.metadata.get("tags", []):
            found.append(f"an error is stored: {errors[0]['ename']}")
    return found


def stored(notebook: Any) -> list[str]:
    """Size, widget state, checked cells, and images beside every figure."""
    found = []
    if len(json.dumps(notebook)) > MOST_BYTES:
        found.append(f"over {MOST_BYTES} bytes")
    if "widgets" in notebook.metadata:
        found.append("holds widget state")
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        if "# NBVAL_CHECK_OUTPUT" in cell.source and not outputs:
            found.append(f"nothing to check is stored for {cell.source.split(chr(10))[0]!r}")
        if any(needs_image(output.get("data", {})) for output in outputs):
            found.append(f"a figure without a static image after {cell.source[-40:]!r}")
    return found


def needs_image(data: dict[str, Any]) -> bool:
    """Whether an output shows nothing where no kernel or script runs."""
    live = any("widget-view" in kind or "plotly" in kind for kind in data)
    return live and not any(kind.startswith("image/") for kind in data)


def code_digest(notebook: Any) -> str:
    """A fingerprint of all code, to tell whether outputs are those of this code."""
    source = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(source).encode()).hexdigest()[:16]
