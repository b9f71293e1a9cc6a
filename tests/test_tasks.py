"""The built-in tasks: what their files hold, what their rewards pay, what they never share."""

import json
import random

import pytest

import rlkit
from rlkit.tasks import ARITHMETIC, arithmetic, load_task
from rlkit.tasks.arithmetic import numbers_of, pair, prompt_of, worked
from rlkit.tasks.teacher import CARELESS, FACTS, RIGHT, Teacher, lesson, slipped

# ---- the files


@pytest.mark.parametrize("name", ARITHMETIC)
def test_rows_are_strings_and_right(name):
    task = load_task(name)
    assert (len(task.train), len(task.eval)) == (4000, 500)
    for row in task.train + task.eval:
        assert set(row) == {"prompt", "answer"}
        assert row["answer"] == str(sum(numbers_of(row["prompt"])))
        assert prompt_of(numbers_of(row["prompt"])) == row["prompt"]


@pytest.mark.parametrize("name", ARITHMETIC)
def test_no_prompt_twice_and_none_in_both(name):
    task = load_task(name)
    prompts = [row["prompt"] for row in task.train + task.eval]
    assert len(set(prompts)) == len(prompts)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_the_order_of_the_numbers_hides_no_overlap(name):
    task = load_task(name)
    train, held_out = (
        {tuple(sorted(numbers_of(row["prompt"]))) for row in rows}
        for rows in (task.train, task.eval)
    )
    assert train.isdisjoint(held_out)


def test_train_steps_work_out_nothing_that_is_held_out():
    pairs, multisets = (
        {tuple(sorted(numbers_of(row["prompt"]))) for row in load_task(name).eval}
        for name in ARITHMETIC
    )
    for row in load_task("steps").train:
        text = row["prompt"] + worked(numbers_of(row["prompt"]))
        for line in lines_of(text):
            assert pair(*line[:2]) not in pairs
            assert tuple(sorted(line)) not in multisets


def lines_of(text: str) -> list[tuple[int, ...]]:
    """The lines of a worked answer that add something, the prompt first."""
    return [tuple(map(int, line.split("+"))) for line in text.split("=")[:-1]]


def test_a_prompt_tells_its_task():
    assert all(row["prompt"].count("+") == 1 for row in rows_of("sums"))
    assert {row["prompt"].count("+") for row in rows_of("steps")} == {2, 3, 4}


def rows_of(name: str) -> list[dict[str, str]]:
    task = load_task(name)
    return task.train + task.eval


@pytest.mark.parametrize(
    "name, prompts, shortest, longest",
    [("sums", {4, 5, 6}, 3, 4), ("steps", {*range(6, 13)}, 8, 31)],
)
def test_lengths(name, prompts, shortest, longest):
    task = load_task(name)
    assert {len(row["prompt"]) for row in rows_of(name)} == prompts
    assert task.prompt_length == max(prompts)
    tokens = [len(worked(numbers_of(row["prompt"]))) + 1 for row in rows_of(name)]
    assert (min(tokens), max(tokens)) == (shortest, longest)
    assert longest <= task.max_completion_length


def test_the_data_is_made_again_byte_for_byte(tmp_path):
    arithmetic.write_data(tmp_path)
    folder = rlkit.data_path("arithmetic")
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in folder.iterdir()}
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name


def test_datasets_keeps_answers_as_strings():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(load_task("sums").eval)
    assert rows[0]["answer"] == load_task("sums").eval[0]["answer"]
    assert json.loads(arithmetic.rows_path("sums", "eval").read_text().splitlines()[0]) == rows[0]


def test_an_unknown_task_is_named():
    with pytest.raises(ValueError, match=r"'sum'.*'sums' and 'steps'"):
        load_task("sum")


# ---- rewards


@pytest.mark.parametrize(
    "completion, reward",
    [
        ("85", 1.0),
        (" 85", 0.0),
        ("85 ", 0.0),
        ("085", 0.0),
        ("+85", 0.0),
        ("85=", 0.0),
        ("3=85", 0.0),
        ("858", 0.0),
        ("8", 0.0),
        ("84", 0.0),
        ("85\n", 0.0),
        ("", 0.0),
    ],
)
def test_sums_pays_the_answer_alone(completion, reward):
    assert load_task("sums").reward(["27+58="], [completion], answer=["85"]) == [reward]


@pytest.mark.parametrize(
    "completion, reward",
    [
        ("85+4+9=89+9=98", 1.0),
        ("98", 1.0),  # no steps shown: the outcome is all that counts
        ("75+4+9=79+9=98", 1.0),  # a wrong step that ends right
        ("85+4+9=89+9=99", 0.0),
        ("85+4+9=89+9= 98", 0.0),
        ("85+4+9=89+9=98 ", 0.0),
        ("85+4+9=89+9=098", 0.0),
        ("85+4+9=89+9=98=", 0.0),
        ("85+4+9=89+9=98+0", 0.0),
        ("98=85+4+9=89+9", 0.0),
        ("85+4+9=89+98", 0.0),
        ("=98", 1.0),
        ("=", 0.0),
        ("", 0.0),
    ],
)
def test_steps_pays_what_follows_the_last_equals_sign(completion, reward):
    assert load_task("steps").reward(["27+58+4+9="], [completion], answer=["98"]) == [reward]


@pytest.mark.parametrize("name", ARITHMETIC)
def test_rewards_have_trls_form(name):
    """Keyword arguments, columns that the reward does not know, one float a row, in order."""
    task = load_task(name)
    rewards = task.reward(
        prompts=["1+9=", "2+9=", "3+9="],
        completions=["10", "12", "12"],
        answer=["10", "11", "12"],
        completion_ids=[[4], [5], [6]],
        trainer_state=None,
    )
    assert rewards == [1.0, 0.0, 1.0]
    assert all(type(reward) is float for reward in rewards)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_rewards_refuse_rows_of_unequal_number(name):
    with pytest.raises(ValueError):
        load_task(name).reward(["1+9=", "2+9="], ["10", "11"], answer=["10"])


@pytest.mark.parametrize("name", ARITHMETIC)
def test_every_worked_answer_is_paid(name):
    task = load_task(name)
    right = [worked(numbers_of(row["prompt"])) for row in task.eval]
    answers = [row["answer"] for row in task.eval]
    assert task.reward([row["prompt"] for row in task.eval], right, answer=answers) == [1.0] * 500


# ---- the teacher


def test_worked_answers():
    assert worked((27, 58)) == "85"
    assert worked((27, 58, 4, 9)) == "85+4+9=89+9=98"
    assert worked((27, 58, 4), lambda a, b: a + b - 10) == "75+4=69"


def test_the_right_teacher_is_right():
    rng = random.Random(0)
    assert all(RIGHT.add(a, b, rng) == a + b for a in range(1, 99) for b in range(10, 99))


def test_each_fault_is_what_it_says():
    rng = random.Random(0)
    assert Teacher(forget=1, muddle=0, slip=0).add(27, 58, rng) == 75
    assert Teacher(forget=1, muddle=0, slip=0).add(21, 58, rng) == 79  # no carry to forget
    assert Teacher(forget=1, muddle=0, slip=0).add(7, 8, rng) == 15  # would leave one digit
    (a, b), off = next((units, off) for units, off in FACTS.items() if sum(units) < 10)
    assert Teacher(forget=0, muddle=1, slip=0).add(20 + a, 30 + b, rng) == 50 + a + b + off
    near = {Teacher(forget=0, muddle=0, slip=1).add(21, 58, rng) for _ in range(100)}
    assert near == {69, 89, 78}  # 79: one more than 9 is no digit


def test_slips_keep_the_number_of_digits():
    rng = random.Random(0)
    for number in (10, 19, 90, 99, 100, 101, 199, 263):
        near = {slipped(number, rng) for _ in range(200)}
        assert number not in near
        assert {len(str(n)) for n in near} == {len(str(number))}


@pytest.mark.parametrize("teacher", [RIGHT, CARELESS["steps"]], ids=["right", "careless"])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_lessons_show_nothing_that_is_held_out(name, teacher):
    pairs, multisets = (
        {tuple(sorted(numbers_of(row["prompt"]))) for row in load_task(task).eval}
        for task in ARITHMETIC
    )
    unseen, rng = arithmetic.held_out(), random.Random(1)
    prompts = {row["prompt"] for task in ARITHMETIC for row in load_task(task).eval}
    for _ in range(3000):
        text = lesson(name, teacher, unseen, rng)
        assert text.partition("=")[0] + "=" not in prompts
        for line in lines_of(text):
            assert pair(*line[:2]) not in pairs
            assert tuple(sorted(line)) not in multisets


def test_what_is_held_out_is_what_the_files_hold():
    unseen = arithmetic.held_out()
    assert len(unseen.pairs) == len(unseen.multisets) == 500
    a, b = numbers_of(load_task("sums").eval[0]["prompt"])
    assert not unseen.allows(f"{b}+{a}={a + b}")
    assert not unseen.allows(f"{a}+{b}+9={a + b}+9={a + b + 9}")
    numbers = numbers_of(load_task("steps").eval[0]["prompt"])
    assert not unseen.allows(prompt_of(numbers[::-1]) + "1")
