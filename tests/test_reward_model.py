"""Reward models: the score, the loss, the training, and the files that come with rlkit."""

import math

import models
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import scorer

import rlkit
from rlkit import RewardConfig, RewardModelTrainer
from rlkit.prompts import pad_left
from rlkit.reward_model import RewardModel, last_valid, load_reward_model, preference_loss
from rlkit.tasks.preferences import load_preferences

TOKENIZER = models.tokenizer()
KINDS = ("qwen3", "llama", "neox", "gemma3")
TEXTS = ("27+58=85", "27+58=8", "3+4=7", "99+99=198", "10+10=20000")
PAIRS = [
    {"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(a + b + 1)}
    for a in range(10, 18)
    for b in (7, 8)
]


def texts(seed, count):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 12, (count,), generator=generator).tolist()
    return [torch.randint(1, 14, (n,), generator=generator).tolist() for n in lengths]


def padded(rows, sides, fill):
    """[B, S]: each row padded on its own side."""
    width = max(map(len, rows)) + 2
    ids, mask = torch.full((len(rows), width), fill), torch.zeros(len(rows), width).bool()
    for i, (row, left) in enumerate(zip(rows, sides, strict=True)):
        at = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, at], mask[i, at] = torch.tensor(row), True
    return ids, mask


# --- the score


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fill", [0, 1], ids=["pad", "EOS is pad"])
def test_neither_padding_nor_the_batch_changes_a_score(kind, fill):
    """The oracle is transformers' own forward, one text at a time and without padding."""
    model, rows = scorer(kind), texts(0, 7)
    rows[2][-1:] = [1]  # ends in EOS
    rows[4] = [5, 1]
    model.config.pad_token_id = None
    alone = [model(input_ids=torch.tensor([row])).logits.squeeze() for row in rows]
    expected = torch.stack(alone).detach()
    assert expected.std() > 0.3
    ours = RewardModel(model)
    for sides in ([0] * 7, [1] * 7, [0, 1, 0, 1, 1, 0, 0]):
        ids, mask = padded(rows, sides, fill)
        found = ours(ids, mask).detach()
        assert found.dtype == torch.float32 and found.shape == (7,)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        few = torch.tensor([4, 1])
        torch.testing.assert_close(ours(ids[few], mask[few]), expected[few], atol=1e-5, rtol=0)


@pytest.mark.parametrize("fill", ["pad", "eos"])
def test_the_built_in_model_scores_a_text_alone_or_among_others_on_either_side(fill):
    """Answers with EOS and without, as their own forward without padding scores them."""
    from rlkit.policy import load_tokenizer

    folder = rlkit.data_path("reward")
    tokenizer, ours = load_tokenizer(folder), RewardModel(load_reward_model(folder))
    rows = [tokenizer(t, add_special_tokens=False)["input_ids"] for t in TEXTS]
    rows += [[*row, tokenizer.eos_token_id] for row in rows]
    with torch.no_grad():
        alone = [ours(torch.tensor([row]), torch.ones(1, len(row)).bool()) for row in rows]
        expected = torch.cat(alone)
        # an answer that ends is another text than one that was cut off
        assert ((expected[: len(TEXTS)] - expected[len(TEXTS) :]).abs() > 1e-2).all()
        side = [i % 2 for i in range(len(rows))]
        for sides in ([0] * len(rows), [1] * len(rows), side):
            ids, mask = padded(rows, sides, getattr(tokenizer, f"{fill}_token_id"))
            torch.testing.assert_close(ours(ids, mask), expected, atol=1e-5, rtol=0)
            few = torch.tensor([len(rows) - 1, 0, 3])
            found = ours(ids[few], mask[few])
            torch.testing.assert_close(found, expected[few], atol=1e-5, rtol=0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=5))
def test_the_last_valid_token_is_the_last_true(rows):
    for row, found in zip(rows, last_valid(torch.tensor(rows)).tolist(), strict=True):
        if any(row):
            assert row[found] and not any(row[found + 1 :])


def test_a_head_of_two_labels_and_a_language_model_are_no_reward_models():
    with pytest.raises(TypeError, match="with 2 labels is no reward model; it needs 1"):
        RewardModel(scorer(labels=2))
    with pytest.raises(TypeError, match="a Qwen3ForCausalLM gives no score"):
        RewardModel(models.model())


def test_a_folder_without_a_score_head_is_refused():
    with pytest.raises(ValueError, match="without a score head"):
        load_reward_model("adder")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load_reward_model("nowhere")


# --- the loss


def test_the_loss_of_two_pairs_by_hand():
    chosen, rejected = torch.tensor([2.0, 1.0]).double(), torch.tensor([1.0, 1.5]).double()
    first, second = math.log(1 + math.exp(-1.0)), math.log(1 + math.exp(0.5))
    assert float(preference_loss(chosen, rejected)) == pytest.approx(
        (first + second) / 2, abs=1e-12
    )
    margin = torch.tensor([0.5, -1.0]).double()
    first, second = math.log(1 + math.exp(-0.5)), math.log(1 + math.exp(-0.5))
    with_margin = float(preference_loss(chosen, rejected, margin))
    assert with_margin == pytest.approx((first + second) / 2, abs=1e-12)
    centred = float(preference_loss(chosen, rejected, margin, 0.1))
    assert centred == pytest.approx(with_margin + 0.1 * (9.0 + 6.25) / 2, abs=1e-12)


def test_equal_scores_cost_log_2_and_pull_apart():
    chosen, rejected = (torch.zeros(3, requires_grad=True) for _ in range(2))
    loss = preference_loss(chosen, rejected)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(math.log(2))
    torch.testing.assert_close(chosen.grad, torch.full((3,), -1 / 6))
    torch.testing.assert_close(rejected.grad, torch.full((3,), 1 / 6))


def test_the_loss_stays_finite_far_apart():
    far = torch.tensor([1e4, -1e4])
    assert preference_loss(far, -far).isfinite()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=6))
def test_only_the_difference_counts_without_centring(pairs):
    chosen, rejected = torch.tensor(pairs, dtype=torch.float64).T
    shifted = preference_loss(chosen + 3, rejected + 3)
    torch.testing.assert_close(preference_loss(chosen, rejected), shifted)


# --- training


def make(rows=PAIRS, model=None, tokenizer=TOKENIZER, **changes):
    sizes = dict(per_device_train_batch_size=8, learning_rate=3e-3, num_train_epochs=10)
    return RewardModelTrainer(
        scorer() if model is None else model,
        RewardConfig(**(sizes | changes)),
        rows,
        rows,
        tokenizer,
    )


def test_it_learns_the_pairs_it_is_shown():
    run = make(num_train_epochs=30)
    before = run.evaluate()
    history = run.train()
    after = run.evaluate()
    assert [row["step"] for row in history] == list(range(1, 61))
    assert after["accuracy"] >= 0.9 > before["accuracy"] and after["loss"] < before["loss"]


def test_padding_that_is_eos_changes_no_training():
    runs = [make(max_steps=3, tokenizer=models.tokenizer(p)) for p in (models.PAD, models.EOS)]
    for run in runs:
        run.train()
    assert runs[1].tokenizer.pad_token_id == runs[1].tokenizer.eos_token_id
    for a, b in zip(*(run.model.parameters() for run in runs), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_the_tokenizer_s_padding_side_changes_no_training():
    tokenizers = models.tokenizer(), models.tokenizer()
    tokenizers[1].padding_side = "right"
    runs = [make(max_steps=3, tokenizer=each) for each in tokenizers]
    histories = [[row["loss"] for row in run.train()] for run in runs]
    assert histories[0] == pytest.approx(histories[1], abs=1e-6)


def test_scores_that_are_all_equal_count_as_wrong_and_come_apart():
    flat = scorer()
    flat.score.weight.data.zero_()
    run = make(model=flat, num_train_epochs=30)
    before = run.evaluate()
    assert before["accuracy"] == 0.0 and before["loss"] == pytest.approx(math.log(2))
    run.train()
    assert run.evaluate()["accuracy"] > 0.8


def test_micro_batches_change_no_step():
    whole, parts = make(), make(per_device_train_batch_size=2, gradient_accumulation_steps=4)
    for run in (whole, parts):
        run.step(0)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_a_margin_asks_for_a_wider_gap():
    def gap(margin):
        run = make([row | {"margin": margin} for row in PAIRS], num_train_epochs=20)
        return run.train()[-1]["gap"]

    assert gap(4.0) > gap(0.0) + 1


def test_centring_keeps_scores_near_0():
    def offset(coefficient):
        run = make(center_rewards_coefficient=coefficient)
        run.train()
        chosen, rejected, _ = run.scores(run.eval_pairs, range(len(PAIRS)))
        return float((chosen + rejected).detach().abs().mean())

    assert offset(0.1) < offset(None) / 2


def test_a_prompt_may_be_messages_and_may_be_missing():
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer = models.tokenizer()
    tokenizer.chat_template = template
    user, answer = [{"role": "user", "content": "1+1="}], {"role": "assistant"}
    chat = [{"prompt": user, "chosen": [answer | {"content": "2"}]}]
    chat[0]["rejected"] = [answer | {"content": "3"}]
    plain = [{"prompt": "1+1=", "chosen": "2", "rejected": "3"}]
    whole = [{"chosen": "1+1=2", "rejected": "1+1=3"}]
    args = RewardConfig()
    runs = [RewardModelTrainer(scorer(), args, r, None, tokenizer) for r in (chat, plain, whole)]
    assert runs[0].train_pairs == runs[1].train_pairs == runs[2].train_pairs
    assert runs[0].train_pairs.chosen[0][-1] == tokenizer.eos_token_id


def test_saved_and_loaded_it_gives_the_same_scores(tmp_path):
    from transformers import AutoModelForSequenceClassification

    run = make(output_dir=str(tmp_path / "out"))
    run.train()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    ids, mask = pad_left(run.train_pairs.chosen, 0, "cpu")
    with torch.no_grad():
        torch.testing.assert_close(RewardModel(loaded)(ids, mask), run.reward_model(ids, mask))


@pytest.mark.parametrize(
    ("rows", "changes", "says"),
    [
        ([], {}, "train_dataset is empty"),
        ([PAIRS[0], {"prompt": "1", "chosen": "2"}], {}, "row 1 .* has no 'rejected'"),
        ([PAIRS[0], PAIRS[1] | {"rejected": "18"}], {}, "row 1 .* are the same; drop the row"),
        (PAIRS, dict(max_length=6), "row 0 .* are the same after max_length=6 cut them off"),
        (PAIRS, dict(num_train_epochs=0), "num_train_epochs=0 must be .* at least 1"),
        (PAIRS, dict(learning_rate=-1.0), "learning_rate=-1.0 must be .* at least 0"),
        (PAIRS, dict(lr_scheduler_type="cosin"), "did you mean 'cosine'"),
        (PAIRS, dict(max_length=0), "max_length=0 must be .* at least 1"),
    ],
)
def test_bad_input_is_one_sentence(rows, changes, says):
    with pytest.raises(ValueError, match=says) as error:
        make(rows, **changes)
    assert "\n" not in str(error.value)


def test_a_model_object_needs_its_tokenizer_and_one_label():
    with pytest.raises(ValueError, match="processing_class is missing"):
        RewardModelTrainer(scorer(), RewardConfig(), PAIRS)
    with pytest.raises(TypeError, match="needs a RewardConfig"):
        RewardModelTrainer("adder", rlkit.GRPOConfig(), PAIRS)
    with pytest.raises(TypeError, match="gives no score"):
        make(model=models.model())


# --- what rlkit ships


def test_the_built_in_reward_model_tells_held_out_pairs_apart():
    run = RewardModelTrainer(
        rlkit.data_path("reward"),
        RewardConfig(),
        load_preferences("train")[:1],
        load_preferences("eval"),
    )
    assert run.evaluate()["accuracy"] >= 0.85


def test_the_built_in_reward_model_is_small_and_complete():
    folder = rlkit.data_path("reward")
    assert sum(path.stat().st_size for path in folder.iterdir()) < 6e6
    names = {path.name for path in folder.iterdir()}
    assert names >= {"model.safetensors", "config.json", "tokenizer.json", "README.md"}


@pytest.mark.slow
def test_a_minute_of_training_on_a_cpu_is_enough():
    """The bar, and the numbers of the data card; alone on two cores it takes less."""
    from rlkit.tasks.preferences import train_reward_model

    run = train_reward_model()
    assert run.evaluate()["accuracy"] >= 0.85
    assert sum(row["seconds"] for row in run.history) < 180
