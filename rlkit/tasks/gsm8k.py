r"""GSM8K: grade-school word problems whose answer is one number.

Two readers of a completion; the gap between them is form, not arithmetic:

    strict    the text ends with the line it was asked for, `#### 18`, and holds no other one
    lenient   the first `#### 18`, else the last `\boxed{18}`, else the last "answer is 18",
              else the last number; whatever follows it

What strict reads lenient reads alike, so strict accuracy is never above lenient. Train on strict
and report both, before and after: a gain in strict alone is format. Numbers are compared as exact
fractions: `1,234`, `1{,}234`, `-$5`, `\$5`, `25%` (25), `18.00`, `1/2`, `\frac{1}{2}` and `1 1/2`
are read; lenient does not look at units.

    from rlkit.tasks import gsm8k
    task = gsm8k.load("path/to/folder", chat=gsm8k.answers_chat(tokenizer))

Left out on purpose: several worked examples, symbolic equality, credit for the steps.
Cobbe et al. 2021, arXiv:2110.14168.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from rlkit.optional import require
from rlkit.tasks import Task

HUB_ID = "openai/gsm8k"
VARIABLE = "RLKIT_GSM8K"
HOW = (
    f"set {VARIABLE} to a folder that holds its train.jsonl and test.jsonl "
    "(github.com/openai/grade-school-math), or go online with the package 'datasets' installed"
)

# an example number in the place of <number> is copied by small models
INSTRUCTION = "Solve the problem step by step. End with a line of the form: #### <number>"
TEXT = "Problem: {question}\n\n{instruction}\n\nSolution:"
EXAMPLE = (
    "A school orders 5 boxes of 12 pencils and gives out 38 of them. How many are left?",
    "The school orders 5 * 12 = 60 pencils.\nAfter giving out 38, 60 - 38 = 22 are left.\n#### 22",
)

MAX_COMPLETION_LENGTH = 512
PROMPT_LENGTH = 384
MAX_DIGITS = 40  # int() of a text of thousands of digits raises, and no gold has over nine

Messages = list[dict[str, str]]


# ---- the data set


def load(path: str | Path | None = None, *, chat: bool = False) -> Task:
    """The task, from `path`, else from what RLKIT_GSM8K names, else from the hub.

    path: a folder with train*.jsonl and test*.jsonl, or one .jsonl file, whose last fifth is then
        held out. The hub's openai/gsm8k needs `datasets` and, the first time, a network.
    chat: prompts as messages, for a tokenizer with a chat template (see `answers_chat`); else as
        text, which every model can continue.
    Raises FileNotFoundError, ValueError or ImportError, with one sentence that says how to get it.
    """
    path = path or os.environ.get(VARIABLE)
    train, test = from_hub() if path is None else from_disk(Path(path).expanduser())
    train, test = (
        [
            {"prompt": prompt_of(row["question"], chat), "answer": gold_of(row["answer"])}
            for row in rows
        ]
        for rows in (train, test)
    )
    return Task("gsm8k", train, test, strict_reward, MAX_COMPLETION_LENGTH, PROMPT_LENGTH)


def from_disk(path: Path) -> tuple[list[dict], list[dict]]:
    """(train, test) rows with question and answer, no question in common."""
    if path.is_file():
        rows = read_rows(path)
        kept = len(rows) - max(len(rows) // 5, 1)
        train, test = rows[:kept], rows[kept:]
    else:
        train, test = (read_rows(split_file(path, split)) for split in ("train", "test"))
    held_out = {row["question"] for row in test}
    train = [row for row in train if row["question"] not in held_out]
    if not train or not test:
        raise ValueError(f"{path} leaves no rows to train on or none to test on; {HOW}")
    return train, test


def split_file(folder: Path, split: str) -> Path:
    """train.jsonl, or the first file that is called something like it."""
    files = sorted(folder.glob(f"{split}*.jsonl"))
    if not files:
        missing = f"holds no {split}.jsonl" if folder.is_dir() else "does not exist"
        raise FileNotFoundError(f"task 'gsm8k': {folder} {missing}; {HOW}")
    return files[0]


def read_rows(path: Path) -> list[dict]:
    """One dict a line. Raises ValueError, with the line, for anything else."""
    rows = []
    for i, line in enumerate(path.read_text(encoding="utf-8").rstrip().split("\n"), 1):
        try:
            row = json.loads(line)
            rows.append({"question": row["question"].strip(), "answer": row["answer"]})
            gold_of(row["answer"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"line {i} of {path} is not a GSM8K row, a JSON object with a question and an "
                f"answer that ends with #### and a number ({type(error).__name__}: {error})"
            ) from error
    return rows


def from_hub() -> tuple[list[dict], list[dict]]:
    """(train, test) rows of openai/gsm8k; downloads 5 MB the first time."""
    try:
        datasets = require("datasets", "task 'gsm8k' from the Hugging Face hub")
    except ImportError as error:
        raise ImportError(f"task 'gsm8k' is not here: {HOW}") from error
    try:
        splits = datasets.load_dataset(HUB_ID, "main")
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise FileNotFoundError(
            f"task 'gsm8k': the Hugging Face hub did not give {HUB_ID} ({first}); {HOW}"
        ) from error
    return list(splits["train"]), list(splits["test"])


def gold_of(answer: str) -> str:
    """What follows `####` in GSM8K's answer (or all of it), as plain digits: `2,125` -> `2125`."""
    text = answer.rpartition("####")[2].strip()
    number = number_of(text)
    if number is None:
        raise ValueError(f"the gold answer {text!r} is not a number")
    return str(number)


def prompt_of(question: str, chat: bool) -> str | Messages:
    """The question with the instruction, as messages or as text to continue.

    Messages show one worked example first: of SmolLM2-135M's answers 44 % then have the form, and
    none without. A text shows none: what follows it would be the next problem, not the end.
    """
    if not chat:
        return TEXT.format(question=question, instruction=INSTRUCTION)
    shown, solution = EXAMPLE
    turns = [("user", shown), ("assistant", solution), ("user", question)]
    return [
        {"role": role, "content": f"{text}\n\n{INSTRUCTION}" if role == "user" else text}
        for role, text in turns
    ]


def answers_chat(tokenizer: Any) -> bool:
    """Whether prompts should be messages: the chat template ends a turn with the EOS token.

    Base models such as Qwen3-0.6B-Base carry a chat template too, but end their texts with another
    token than it does; asked in its form, their completions would not stop.
    """
    if not getattr(tokenizer, "chat_template", None) or tokenizer.eos_token is None:
        return False
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False)
    return tokenizer.eos_token in text.rpartition("!")[2]


# ---- numbers in a text

VALUE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![A-Za-z])\.[0-9]+"
NUMBER = re.compile(
    r"(?<![0-9^_])(?<!\^\{)"  # not inside a number, an exponent or an index
    r"(?P<sign>(?:(?<![\w)\]}%])-)?(?:[$€£]-?)?)"  # the minus of 10-5 is an operator
    r"(?:(?P<whole>[0-9]+) (?P<part>[0-9]+/[0-9]+)"
    rf"|(?P<top>{VALUE})(?: ?/ ?(?P<bottom>{VALUE}))?)"
)
MARK = re.compile(r"(?<!#)####[ ]*")
HEADING = re.compile(r"[.):][ ]+\w")  # `#### 1. Count the eggs`
AFTER = re.compile(r"[ ]?[%$€£]?\.?\s*")
EQUATION = re.compile(r"[^=\n,;(]*=[ ]*")
BOXED = re.compile(r"\\boxed\s*\{")
SAID = re.compile(rf"answer\s*(?:is|:|=)[^0-9\n.]{{0,20}}?(?P<number>{NUMBER.pattern})", re.I)


def strict_answer(text: str) -> Fraction | None:
    """The number of the one line `#### number`, if the text ends with it; else None."""
    text = plain(text)
    marked = marked_numbers(text)
    if len(marked) != 1 or not AFTER.fullmatch(text, marked[0].end()):
        return None
    return value_of(marked[0])


def lenient_answer(text: str) -> Fraction | None:
    """The number that the text most likely means as its answer; None if it holds none."""
    text = plain(text)
    marked = marked_numbers(text)[:1]
    said = [NUMBER.match(text, found.start("number")) for found in SAID.finditer(text)][-1:]
    ranked = (
        [outcome(text, found) for found in marked],
        boxed_numbers(text)[-1:],
        [outcome(text, found) for found in said],
        numbers(text)[-1:],
    )
    return next((value for values in ranked for value in values if value is not None), None)


def number_of(text: str) -> Fraction | None:
    """The number that a text is, if it is nothing else: `$1,234.` -> 1234."""
    text = plain(text.strip())
    found = NUMBER.match(text)
    if found is None or not AFTER.fullmatch(text, found.end()):
        return None
    return value_of(found)


def plain(text: str) -> str:
    r"""LaTeX's ways to write a number -> the usual one: `1{,}234`, `\$5`, `\frac{1}{2}`."""
    for latex, usual in (("−", "-"), ("{,}", ","), (r",\!", ","), (r"\$", "$"), (r"\%", "%")):
        text = text.replace(latex, usual)
    text = re.sub(r"\\,(?=[0-9]{3}(?![0-9]))", ",", text)
    text = re.sub(r"(?<=[0-9])(?=\\[dt]?frac\b)", " ", text)  # 1\frac{1}{2} is one and a half
    return re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2", text)


def value_of(found: re.Match[str]) -> Fraction | None:
    """A match of NUMBER as an exact number; None for a division by 0 and endless digits."""
    if max(map(len, re.findall("[0-9]+", found.group()))) > MAX_DIGITS:
        return None
    if found["whole"] is not None:
        whole, (top, bottom) = found["whole"], found["part"].split("/")
    else:
        whole, top, bottom = "0", found["top"], found["bottom"] or "1"
    top, bottom = (Fraction(text.replace(",", "")) for text in (top, bottom))
    if not bottom:
        return None
    value = Fraction(whole) + top / bottom
    return -value if "-" in found["sign"] else value


def numbers(text: str) -> list[Fraction]:
    """Every number of a text, in order."""
    values = (value_of(found) for found in NUMBER.finditer(text))
    return [value for value in values if value is not None]


def marked_numbers(text: str) -> list[re.Match[str]]:
    """The numbers that follow `####` at once; numbered headings are not meant."""
    found = [NUMBER.match(text, mark.end()) for mark in MARK.finditer(text)]
    return [number for number in found if number and not HEADING.match(text, number.end())]


def boxed_numbers(text: str) -> list[Fraction]:
    r"""The last number of each closed `\boxed{...}`."""
    inside = (until_closed(text[mark.end() : mark.end() + 200]) for mark in BOXED.finditer(text))
    return [numbers(content)[-1] for content in inside if numbers(content)]


def until_closed(text: str) -> str:
    """What stands before the brace that closes the one before the text; nothing if none does."""
    depth = 1
    for i, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:i]
    return ""


def outcome(text: str, found: re.Match[str]) -> Fraction | None:
    """The number found, or what the equation that begins with it comes to: `9 * 2 = 18`."""
    while step := EQUATION.match(text, found.end()):
        right = NUMBER.match(text, step.end())
        if right is None:
            break
        found = right
    return value_of(found)


# ---- rewards in TRL's form


def strict_reward(
    prompts: Sequence[Any], completions: Sequence[Any], answer: Sequence[str], **kwargs: object
) -> list[float]:
    """1.0 where the completion ends with the one line `#### number` and the number is right.

    completions: texts, or lists of messages. answer: gold numbers, or GSM8K's answers as they are.
    Raises ValueError for a gold that is not a number.
    """
    return compare(strict_answer, completions, answer)


def lenient_reward(
    prompts: Sequence[Any], completions: Sequence[Any], answer: Sequence[str], **kwargs: object
) -> list[float]:
    """1.0 where the number that the completion most likely means is right; see `strict_reward`."""
    return compare(lenient_answer, completions, answer)


def format_reward(
    prompts: Sequence[Any], completions: Sequence[Any], **kwargs: object
) -> list[float]:
    """1.0 where the completion ends with the one line `#### number`, right or wrong."""
    return [float(strict_answer(text_of(c)) is not None) for c in completions]


def compare(
    read: Callable[[str], Fraction | None], completions: Sequence[Any], answer: Sequence[str]
) -> list[float]:
    """1.0 where what `read` finds in a completion is the gold number."""
    pairs = zip(completions, answer, strict=True)
    return [float(read(text_of(c)) == Fraction(gold_of(gold))) for c, gold in pairs]


def text_of(completion: str | Messages) -> str:
    """A completion's text, of its last message if it is a list of messages."""
    return completion if isinstance(completion, str) else completion[-1]["content"]
