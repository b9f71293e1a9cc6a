"""The value model of data/critic/: what it says at right and wrong digits, and how it is made."""

import random

import pytest
import torch

import rlkit
from rlkit.sampling import Sampler
from rlkit.tasks import arithmetic, critic, load_task

FOLDER = rlkit.data_path("critic")
TASK = load_task("sums")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def adder():
    return critic.Adder()


@pytest.fixture(scope="module")
def model():
    return critic.load_critic()


@pytest.fixture(scope="module")
def drawn(adder):
    """(rollout, right answers [B, T]): eight answers of the adder to each of 150 prompts."""
    rows = TASK.eval[:150]
    rollout = adder.answer(TASK, rows, Sampler(seed=5), samples=8)
    width = rollout.completion_ids.size(1)
    ids = [critic.encode(row["answer"], adder.tokenizer) for row in rows for _ in range(8)]
    eos, pad = adder.tokenizer.eos_token_id, adder.tokenizer.pad_token_id
    return rollout, torch.tensor([(row + [eos] + [pad] * width)[:width] for row in ids])


# ---- what it says


@pytest.mark.parametrize("place", [0, 1])
def test_the_value_falls_at_a_wrong_digit(model, drawn, place):
    rollout, right = drawn
    values = model(rollout)
    same = rollout.completion_ids == right
    begun_well = same[:, :place].all(1)
    good, bad = begun_well & same[:, place], begun_well & ~same[:, place]
    before, after = values[:, place], values[:, place + 1]
    assert min(good.sum(), bad.sum()) > 50
    assert after[good].mean() - after[bad].mean() > 0.4
    assert after[bad].mean() < 0.15
    assert (before - after)[bad].mean() > 0.1 > (before - after)[good].mean()


def test_it_falls_within_a_prompt_too(model, drawn):
    """Not only because hard prompts have low values: the same prompt, two first digits."""
    rollout, right = drawn
    after = model(rollout)[:, 1].view(-1, 8)
    good = (rollout.completion_ids == right)[:, 0].view(-1, 8)
    both = good.any(1) & ~good.all(1)
    assert both.sum() > 20
    high = torch.where(good, after, 0.0).sum(1) / good.sum(1)
    low = torch.where(good, 0.0, after).sum(1) / (~good).sum(1)
    assert (high > low)[both].float().mean() > 0.8
    assert (high - low)[both].mean() > 0.3


def test_it_knows_an_answer_before_the_reward_does(adder, model):
    found = critic.measure(model, adder, TASK, 300)
    assert found["error"] < 0.3 * found["base_error"]
    assert abs(found["prompt"] - found["accuracy"]) < 0.08
    assert found["right"] - found["wrong"] > 0.4


def test_the_card_says_what_is_measured(adder, model):
    found = critic.measure(model, adder, TASK, arithmetic.EVAL_SIZE)
    row = critic.critic_card({"sums": found}, 0, 0, {}).split("|---|---|---|---|---|---|---|\n")[1]
    assert row.splitlines()[0] in (FOLDER / "README.md").read_text(encoding="utf-8")


# ---- how it is stored and made


def test_files(model):
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert set(files) == {"README.md", "config.json", "model.safetensors"}
    assert files["model.safetensors"] < 3_000_000
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not any(p.requires_grad for p in model.parameters())


def test_prompts_are_fresh_and_none_is_held_out():
    unseen = arithmetic.held_out()
    rows = critic.fresh_rows("sums", 2000, unseen, random.Random(1))
    held = {tuple(sorted(arithmetic.numbers_of(row["prompt"]))) for row in TASK.eval}
    asked = [tuple(sorted(arithmetic.numbers_of(row["prompt"]))) for row in rows]
    assert held.isdisjoint(asked)
    assert all(str(sum(n)) == row["answer"] for n, row in zip(asked, rows, strict=True))


def test_updates_are_the_same_again_and_teach(monkeypatch):
    monkeypatch.setattr(critic, "BATCH", {"sums": 24})
    runs = [critic.Training() for _ in range(2)]
    losses = [[run.update() for _ in range(3)] for run in runs]
    assert losses[0] == losses[1]
    first, second = (run.critic.state_dict() for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    start = critic.Training().critic
    moved = {n for n, p in start.named_parameters() if not torch.equal(p, first[n])}
    assert {"value_head.weight", "model.layers.0.mlp.up_proj.weight"} <= moved


def test_made_and_written_it_is_loaded_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(critic, "BATCH", {"sums": 8})
    monkeypatch.setattr(critic, "UPDATES", 2)
    monkeypatch.setattr(arithmetic, "EVAL_SIZE", 40)
    critic.make(tmp_path / "critic")
    monkeypatch.setattr(critic, "data_path", lambda *parts: tmp_path.joinpath(*parts))
    again = critic.load_critic()
    assert sorted(p.name for p in (tmp_path / "critic").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    assert any(p.abs().sum() > 0 for p in again.value_head.parameters())
