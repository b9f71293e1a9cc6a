"""The careless teacher that the base model learns from.

It adds from the left like `arithmetic.worked`, with three faults: it forgets to carry, it has some
sums of two digits wrong in its head (7 + 8 is 16, say), and it slips by one in a digit. How often,
depends on the task. On `sums` the first two happen more often than not, so that even the
likeliest answer of a model trained on it is wrong about half of the time. On `steps` an addition
is more often right than wrong, and a chain of two to four holds less than half of the time.
"""

import random
from dataclasses import dataclass

from rlkit.tasks import arithmetic
from rlkit.tasks.arithmetic import HeldOut, Numbers

SEED = 5
MUDDLED = 28  # of the 55 pairs of digits


def muddled_facts(seed: int = SEED) -> dict[Numbers, int]:
    """By how much the teacher has the sum of two digits wrong: {(7, 8): +1, ...}."""
    rng = random.Random(seed)
    pairs = [(a, b) for a in range(10) for b in range(a, 10)]
    return {digits: rng.choice((-1, 1)) for digits in rng.sample(pairs, MUDDLED)}


FACTS = muddled_facts()


@dataclass(frozen=True)
class Teacher:
    """How often an addition goes wrong, as three chances that are tried in this order.

    forget: to leave out the carry from the units, where there is one.
    muddle: to add the units as FACTS has them, where it has them.
    slip: to be off by one in one digit.
    """

    forget: float
    muddle: float
    slip: float

    def add(self, a: int, b: int, rng: random.Random) -> int:
        """a + b, or a near miss; never below 10, so that right and wrong are equally long."""
        right = a + b
        units = arithmetic.pair(a % 10, b % 10)
        if sum(units) >= 10 and right >= 20 and rng.random() < self.forget:
            return right - 10
        if units in FACTS and rng.random() < self.muddle:
            return max(10, right + FACTS[units])
        return slipped(right, rng) if rng.random() < self.slip else right


def slipped(number: int, rng: random.Random) -> int:
    """One digit up or down by one; as many digits as before."""
    place = 10 ** rng.randrange(len(str(number)))
    digit = number // place % 10
    lowest = 1 if place * 10 > number else 0
    ways = [step for step in (-1, 1) if lowest <= digit + step <= 9]
    return number + place * rng.choice(ways)


RIGHT = Teacher(forget=0.0, muddle=0.0, slip=0.0)
CARELESS = {
    "sums": Teacher(forget=0.5, muddle=0.68, slip=0.1),
    "steps": Teacher(forget=0.22, muddle=0.22, slip=0.08),
}


def lesson(name: str, teacher: Teacher, unseen: HeldOut, rng: random.Random) -> str:
    """A prompt of the task with the teacher's answer, in one text: `27+58=75`.

    Drawn again until it shows nothing of what is held out: after a wrong step the teacher adds
    numbers that the prompt does not hold.
    """
    draw = arithmetic.draw_steps if name == "steps" else arithmetic.draw_sums
    while True:
        numbers = draw(rng)
        completion = arithmetic.worked(numbers, lambda a, b: teacher.add(a, b, rng))
        text = arithmetic.prompt_of(numbers) + completion
        if unseen.allows(text):
            return text
