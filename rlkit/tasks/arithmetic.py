"""The two built-in tasks: `sums` adds two numbers, `steps` adds three to five, one at a time.

    sums     27+58=        ->  85
    steps    27+58+4+9=    ->  85+4+9=89+9=98

A worked answer replaces the first two numbers by their sum and copies the rest, until one number
is left; `sums` is the shortest case. Every `=` therefore joins equal things. Only the number
after the last `=` is rewarded, so `steps` is a task whose reward comes once, at the end.

Left out on purpose: any reward for the steps between (a process reward), and partial credit.

    python -m rlkit.tasks.arithmetic data       writes data/arithmetic/ again
    python -m rlkit.tasks.arithmetic pretrain   makes data/adder/ again (minutes)
"""

import argparse
import json
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlkit.paths import data_path
from rlkit.tasks import Task
from rlkit.tasks.cards import arithmetic_card

Numbers = tuple[int, ...]

SEED = 20240222
EVAL_SIZE = 500
TRAIN_SIZE = 4000
MAX_DIGITS = 7  # of a steps prompt, so that prompts stay within 12 tokens, completions within 32


def sums_reward(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **kwargs: object
) -> list[float]:
    """1.0 where the completion is the answer, character for character, else 0.0.

    Completions are decoded without special tokens. A space, a leading zero or one character too
    many is wrong. Further columns of the data set arrive in kwargs and are not looked at.
    """
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


def steps_reward(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **kwargs: object
) -> list[float]:
    """1.0 where what follows the last `=` is the answer, character for character, else 0.0.

    What stands before the last `=` is not looked at: wrong steps that end right are paid in full.
    """
    finals = [text.rpartition("=")[2] for text in completions]
    return sums_reward(prompts, finals, answer)


REWARDS = {"sums": sums_reward, "steps": steps_reward}
# completion lengths count EOS; the tests compare them with the data
LENGTHS = {"sums": (4, 6), "steps": (32, 12)}


def load(name: str) -> Task:
    """The task `sums` or `steps`, read from data/arithmetic/."""
    train, held_out = (read_rows(rows_path(name, split)) for split in ("train", "eval"))
    return Task(name, train, held_out, REWARDS[name], *LENGTHS[name])


def rows_path(name: str, split: str) -> Path:
    """data/arithmetic/{sums,steps}_{train,eval}.jsonl."""
    return data_path("arithmetic", f"{name}_{split}.jsonl")


def read_rows(path: Path) -> list[dict[str, str]]:
    """One dict a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ---- numbers, prompts and worked answers


def prompt_of(numbers: Numbers) -> str:
    """(27, 58, 4) -> `27+58+4=`."""
    return "+".join(map(str, numbers)) + "="


def numbers_of(prompt: str) -> Numbers:
    """`27+58+4=` -> (27, 58, 4)."""
    return tuple(map(int, prompt.removesuffix("=").split("+")))


def worked(numbers: Numbers, add: Callable[[int, int], int] = operator.add) -> str:
    """The completion that adds from the left: (27, 58, 4) -> `85+4=89`.

    add: how two numbers are added; a careless one makes wrong answers of the right form.
    """
    written = []
    while len(numbers) > 1:
        numbers = (add(numbers[0], numbers[1]), *numbers[2:])
        written.append("+".join(map(str, numbers)))
    return "=".join(written)


def pair(a: int, b: int) -> Numbers:
    """a+b and b+a are one pair."""
    return (a, b) if a <= b else (b, a)


def all_sums() -> Iterator[Numbers]:
    """Every unordered pair of 1..99 whose sum has two or three digits."""
    return ((a, b) for a in range(1, 100) for b in range(a, 100) if a + b >= 10)


def draw_sums(rng: random.Random) -> Numbers:
    """Two numbers of 1..99 whose sum has two or three digits."""
    while True:
        numbers = (rng.randint(1, 99), rng.randint(1, 99))
        if sum(numbers) >= 10:
            return numbers


def draw_steps(rng: random.Random) -> Numbers:
    """Three to five numbers of one or two digits, at most MAX_DIGITS digits in all.

    The first two make at least 10, so that a right completion has 8 tokens or more.
    """
    while True:
        count = rng.randint(3, 5)
        numbers = tuple(rng.randint(*rng.choice([(1, 9), (10, 99)])) for _ in range(count))
        if len(prompt_of(numbers)) <= MAX_DIGITS + count and numbers[0] + numbers[1] >= 10:
            return numbers


# ---- the data sets


@dataclass(frozen=True)
class HeldOut:
    """What training never shows: pairs of `sums` and multisets of `steps` numbers."""

    pairs: frozenset[Numbers]
    multisets: frozenset[Numbers]

    def allows(self, text: str) -> bool:
        """Whether training may show this prompt with this worked answer.

        Neither the prompt nor a line below it adds a held-out pair first or holds a held-out
        multiset, in whatever order.
        """
        lines = [numbers_of(line) for line in text.split("=")[:-1]]
        if any(pair(*line[:2]) in self.pairs for line in lines):
            return False
        return self.multisets.isdisjoint(tuple(sorted(line)) for line in lines)


def held_out() -> HeldOut:
    """Read back from the eval files."""
    prompts = {name: read_rows(rows_path(name, "eval")) for name in REWARDS}
    sorted_numbers = {
        name: frozenset(tuple(sorted(numbers_of(row["prompt"]))) for row in rows)
        for name, rows in prompts.items()
    }
    return HeldOut(sorted_numbers["sums"], sorted_numbers["steps"])


def split_sums(rng: random.Random) -> tuple[list[Numbers], list[Numbers]]:
    """(train, eval): an unordered pair lies on one side only, in either order."""
    pairs = list(all_sums())
    rng.shuffle(pairs)
    either = [p if rng.random() < 0.5 else p[::-1] for p in pairs]
    return either[EVAL_SIZE : EVAL_SIZE + TRAIN_SIZE], either[:EVAL_SIZE]


def split_steps(rng: random.Random, pairs: frozenset[Numbers]) -> tuple[list, list]:
    """(train, eval): no multiset of numbers on both sides, no held-out pair added in train."""
    chosen: dict[Numbers, Numbers] = {}
    while len(chosen) < EVAL_SIZE:
        numbers = draw_steps(rng)
        chosen.setdefault(tuple(sorted(numbers)), numbers)
    unseen = HeldOut(pairs, frozenset(chosen))
    train: dict[Numbers, Numbers] = {}
    while len(train) < TRAIN_SIZE:
        numbers = draw_steps(rng)
        if unseen.allows(prompt_of(numbers) + worked(numbers)):
            train.setdefault(tuple(sorted(numbers)), numbers)
    return list(train.values()), list(chosen.values())


def write_data(folder: Path) -> None:
    """Write the four files and their card, the same bytes each time."""
    rng = random.Random(SEED)
    sums = split_sums(rng)
    steps = split_steps(rng, frozenset(pair(*numbers) for numbers in sums[1]))
    folder.mkdir(parents=True, exist_ok=True)
    for name, splits in (("sums", sums), ("steps", steps)):
        for split, rows in zip(("train", "eval"), splits, strict=True):
            lines = [
                json.dumps({"prompt": prompt_of(numbers), "answer": str(sum(numbers))})
                for numbers in rows
            ]
            path = folder / f"{name}_{split}.jsonl"
            path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    card = arithmetic_card(TRAIN_SIZE, EVAL_SIZE, MAX_DIGITS)
    (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")


def main() -> None:
    """python -m rlkit.tasks.arithmetic data | pretrain."""
    parser = argparse.ArgumentParser(prog="python -m rlkit.tasks.arithmetic")
    commands = parser.add_subparsers(dest="command", required=True)
    data = commands.add_parser("data", help="write the train and eval files again")
    data.add_argument("--out", type=Path, default=data_path("arithmetic"))
    model = commands.add_parser("pretrain", help="make the base model again")
    model.add_argument("--out", type=Path, default=data_path("adder"))
    args = parser.parse_args()
    if args.command == "data":
        write_data(args.out)
    else:
        from rlkit.tasks.pretrain import pretrain

        pretrain(args.out)


if __name__ == "__main__":
    main()
