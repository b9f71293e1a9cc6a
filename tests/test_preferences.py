"""Preference pairs: what the judge prefers, and what the files hold."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlkit import data_path
from rlkit.tasks.arithmetic import load, numbers_of, pair
from rlkit.tasks.preferences import (
    HELD_OUT_PROMPTS,
    PAIRS,
    agreement,
    judge,
    load_preferences,
    pairs_card,
    pairs_of,
    turned,
    utility,
)

SPLITS = {split: load_preferences(split) for split in ("train", "eval")}
ANSWERS = st.text("0123456789", min_size=0, max_size=4)


# --- the judge


def test_right_and_short_are_worth_more():
    assert utility("85", "85") > utility("84", "85") == utility("75", "85")
    assert utility("9", "85") > utility("84", "85") > utility("184", "85")
    # a character outweighs a right sum: what a policy can exploit
    assert utility("93", "103") > utility("103", "103")


def test_the_judge_errs_less_the_more_two_answers_differ():
    def errors(better, worse):
        rng = random.Random(0)
        return sum(judge(better, worse, "85", rng)[0] == worse for _ in range(2000)) / 2000

    assert errors("85", "84") == pytest.approx(0.018, abs=0.01)  # sigmoid(-4)
    assert errors("84", "184") == pytest.approx(0.012, abs=0.01)  # sigmoid(-4.4)
    assert errors("84", "1") == pytest.approx(1 - 0.012, abs=0.01)


@settings(max_examples=50, deadline=None)
@given(ANSWERS, st.lists(ANSWERS, max_size=8), st.integers(0, 5))
def test_pairs_are_of_different_answers_that_differ_to_the_judge(answer, completions, seed):
    made = pairs_of("1+1=", answer, completions, random.Random(seed))
    assert len(made) <= PAIRS
    for row in made:
        assert {row["chosen"], row["rejected"]} <= set(completions)
        assert utility(row["chosen"], answer) != utility(row["rejected"], answer)
    assert made == pairs_of("1+1=", answer, completions[::-1], random.Random(seed))


def test_agreement_counts_what_the_judge_got_right():
    row = {"prompt": "41+44=", "chosen": "85", "rejected": "84", "answer": "85"}
    wrong = row | {"chosen": "84", "rejected": "85"}
    assert agreement([row, row, row, wrong]) == 0.75


# --- the files


@pytest.mark.parametrize("split", SPLITS)
def test_rows_have_trl_s_form_and_teach_something(split):
    for row in SPLITS[split]:
        assert row.keys() == {"prompt", "chosen", "rejected", "answer"}
        assert sum(numbers_of(row["prompt"])) == int(row["answer"])
        assert utility(row["chosen"], row["answer"]) != utility(row["rejected"], row["answer"])
    assert 0.95 < agreement(SPLITS[split]) < 0.99


def numbers(rows):
    return {pair(*numbers_of(row["prompt"])) for row in rows}


def test_no_sum_stands_on_two_sides():
    sums = load("sums")
    train, held_out = (numbers(SPLITS[split]) for split in ("train", "eval"))
    assert train.isdisjoint(held_out)
    assert (train | held_out).isdisjoint(numbers(sums.eval))
    assert held_out <= numbers(sums.train[:HELD_OUT_PROMPTS])
    assert train <= numbers(sums.train[HELD_OUT_PROMPTS:])


def test_a_prompt_is_turned_and_its_answer_is_not():
    row = {"prompt": "27+58=", "answer": "85"}
    assert turned(row) == {"prompt": "58+27=", "answer": "85"}


def test_the_card_says_what_the_files_hold():
    text = data_path("preferences", "README.md").read_text(encoding="utf-8")
    assert text == pairs_card(SPLITS)


@pytest.mark.slow
def test_the_command_draws_the_same_completions_again():
    """Of the first prompts; the pairs in the file are among them."""
    from rlkit.tasks.preferences import drawn

    rows, found = load("sums").train[:40], 0
    for row, completions in zip(rows, drawn(rows), strict=True):
        known = [r for r in SPLITS["eval"] if r["prompt"] == row["prompt"]]
        found += len(known)
        assert all({r["chosen"], r["rejected"]} <= set(completions) for r in known)
    assert found > 40


@pytest.mark.slow
def test_a_kl_divergence_keeps_right_what_is_lost_without_one():
    """Over-optimisation: the learned reward climbs either way, right answers only with the KL."""
    from rlkit import RLOOConfig, RLOOTrainer

    def run(beta):
        task = load("sums")
        args = RLOOConfig.preset(
            "tiny",
            max_steps=20,
            beta=beta,
            seed=1,
            eval_steps=None,
            disable_tqdm=True,
            reward_weights=(0.0, 1.0),  # right answers are counted and earn nothing
        )
        rewards = [task.reward, data_path("reward")]
        trainer = RLOOTrainer("adder", rewards, args, task.train, task.eval[:200])
        first = trainer.evaluate()
        trainer.train()
        return first, trainer.evaluate()

    for beta in (0.5, 0.0):
        first, last = run(beta)
        assert last["reward/reward"] > first["reward/reward"] + 0.2
        if beta:
            assert last["accuracy"] >= 0.85 > 0.65 > first["accuracy"]
        else:
            assert last["accuracy"] < first["accuracy"] - 0.05
