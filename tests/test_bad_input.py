"""Bad input: one clear sentence that names the field, the value and the remedy."""

import copy
import math
import re

import models
import pytest
import torch

from rlkit import GRPOConfig, GRPOTrainer, PPOConfig, RLOOConfig, RLOOTrainer, load_model

TOKENIZER = models.tokenizer()
MODEL = models.model()
ROWS = [{"prompt": f"{a}+{a}=", "answer": str(2 * a)} for a in range(10, 20)]
SIZES = dict(per_device_train_batch_size=8, num_generations=4, max_completion_length=4, beta=0.0)


def zeros(prompts, completions, **kwargs):
    return [0.0] * len(completions)


def trainer(reward=zeros, rows=ROWS, tokenizer=TOKENIZER, **settings):
    args = RLOOConfig(**(SIZES | {"max_steps": 1, "disable_tqdm": True} | settings))
    return RLOOTrainer(copy.deepcopy(MODEL), reward, args, rows, processing_class=tokenizer)


def one_sentence(error) -> str:
    text = str(error.value)
    assert "\n" not in text and len(text) < 320, text
    return text


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: GRPOConfig(**SIZES | {"num_generations": 3}), "num_generations=3; use 6"),
        (lambda: GRPOConfig(**SIZES | {"num_generations": 1}), "num_generations=1: .*at least 2"),
        (lambda: RLOOConfig(**SIZES | {"num_generations": 1}), "num_generations=1: .*at least 2"),
        (lambda: GRPOConfig(num_generations=0), "num_generations=0 must be .* at least 1"),
        (lambda: GRPOConfig(num_generations=2.0), "num_generations=2.0 must be a whole number"),
        (lambda: GRPOConfig(steps_per_generation=0), "steps_per_generation=0 must be .* least 1"),
        (lambda: GRPOConfig(eval_steps=-1), "eval_steps=-1 must be .* at least 1"),
        (lambda: GRPOConfig(tile_bytes=-5), "tile_bytes=-5 must be .* at least 1"),
        (lambda: GRPOConfig(epsilon=-1.0), "epsilon=-1.0 must be .* at least 0"),
        (lambda: GRPOConfig(weight_decay=-1.0), "weight_decay=-1.0 must be .* at least 0"),
        (lambda: GRPOConfig(learning_rate=math.inf), "learning_rate=inf must be a number"),
        (lambda: GRPOConfig(temperature="hot"), "temperature='hot' must be a number"),
        (lambda: GRPOConfig(loss_type="dapoo"), "loss_type='dapoo'.*did you mean 'dapo'"),
        (lambda: GRPOConfig(loss_type="dr_gpro"), "did you mean 'dr_grpo'"),
        (lambda: GRPOConfig(scale_rewards="groups"), "scale_rewards='groups'.*'group'"),
        (lambda: GRPOConfig(importance_sampling_level="tokens"), "'tokens'.*did you mean 'token'"),
        (lambda: GRPOConfig(loss_type="cispo"), "epsilon_high"),
        (lambda: GRPOConfig(temperature=-1.0), "temperature=-1.0 must be a number of at least 0"),
        (lambda: GRPOConfig(temperature=0.0), "temperature=0.0 must be above 0"),
        (lambda: GRPOConfig(temperature=math.nan), "temperature=nan must be a number"),
        (lambda: GRPOConfig(top_p=0.0), r"top_p=0.0 must lie in \(0, 1\]"),
        (lambda: GRPOConfig(learning_rate=-1e-3), "learning_rate=-0.001 must be .* at least 0"),
        (lambda: GRPOConfig(beta=-0.1), "beta=-0.1 must be .* at least 0"),
        (lambda: GRPOConfig(head="chunkd"), "head='chunkd'.*did you mean 'chunked'"),
        (lambda: GRPOConfig(lr_scheduler_type="cosin"), "did you mean 'cosine'"),
        (lambda: GRPOConfig(bf16=True, fp16=True), "exclude each other"),
        (lambda: GRPOConfig(save_steps=5), "save_steps=5 needs output_dir"),
        (lambda: PPOConfig(value_model="seperate"), "did you mean 'separate'"),
        (lambda: PPOConfig(kl_estimator="k4"), "kl_estimator='k4'"),
        (
            lambda: PPOConfig(steps_per_generation=3, gradient_accumulation_steps=2),
            "steps_per_generation=3 is not a multiple.*use 4",
        ),
        (lambda: GRPOConfig.preset("tinny"), "did you mean 'tiny'"),
    ],
)
def test_config(make, says):
    with pytest.raises(ValueError) as error:
        make()
    assert re.search(says, one_sentence(error)), error.value


@pytest.mark.parametrize(
    ("settings", "kind", "says"),
    [
        (dict(rows=[]), ValueError, "train_dataset is empty"),
        (dict(rows=[{"question": "1+1="}]), ValueError, "no column 'prompt'.*'question'"),
        (
            dict(rows=[{"prompt": "1" * 70}]),
            ValueError,
            "prompt 0 .* 70 tokens .* context holds 64",
        ),
        (dict(rows={"prompt": ["1+1="]}), ValueError, "is of type dict; give a list of dicts"),
        (dict(rows=None), ValueError, "is of type NoneType; give a list"),
        (dict(rows=[{"prompt": 7}]), ValueError, "prompt 0 .* is of type int; give text"),
        (dict(rows=[ROWS[0], {"prompt": "1+1="}]), ValueError, "row 1 .* lacks .*'answer'"),
        (dict(reward=torch.nn.Linear(1, 1)), TypeError, "holds a Linear; give a reward model"),
        (dict(rows=[{"prompt": ""}]), ValueError, "prompt 0 .* has no tokens"),
        (dict(max_completion_length=64), ValueError, "lower max_completion_length"),
        (dict(reward=[]), TypeError, "reward_funcs is empty"),
        (dict(reward=7), TypeError, "neither function nor model"),
        (dict(reward="adder"), ValueError, "without a score head"),
        (dict(reward="exact"), FileNotFoundError, "'exact': there is no such folder"),
        (dict(reward_weights=(1.0, 2.0)), ValueError, "reward_weights has 2 values for 1"),
        (dict(tokenizer=None), ValueError, "processing_class is missing"),
    ],
)
def test_trainer(settings, kind, says):
    with pytest.raises(kind) as error:
        trainer(**settings)
    assert re.search(says, one_sentence(error)), error.value


def raises(prompts, completions, **kwargs):
    raise KeyError("gold")


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        (lambda completions, **k: [0.0] * 7, "'<lambda>' returned 7 values for 8 completions"),
        (lambda completions, **k: None, "returned None; it must return a list"),
        (lambda completions, **k: 1.0, "returned 1.0; it must return a list"),
        (lambda completions, **k: "00000000", "must return a list"),
        (lambda completions, **k: dict.fromkeys(range(8), 1.0), "must return a list"),
        (lambda completions, **k: [1e39] * 8, "returned 1e.39 for completion 0; return a finite"),
        (lambda completions, **k: [math.nan] * 8, "returned nan for completion 0"),
        (lambda completions, **k: [0.0] * 7 + [math.inf], "returned inf for completion 7"),
        (lambda completions, **k: ["1"] * 8, "returned '1' for completion 0; it must be a number"),
        (raises, "reward function 'raises' raised KeyError: 'gold'"),
    ],
)
def test_reward_function(reward, says):
    run = trainer(reward)
    before = [p.clone() for p in run.policy.parameters()]
    with pytest.raises((ValueError, RuntimeError)) as error:
        run.train()
    assert re.search(says, one_sentence(error)), error.value
    assert all(torch.equal(a, b) for a, b in zip(before, run.policy.parameters(), strict=True))


def test_a_column_of_the_dataset_does_not_replace_the_completions():
    heard = []

    def reward(completions, **kwargs):
        heard.extend(completions)
        return [0.0] * len(completions)

    trainer(reward, rows=[row | {"completions": "gold!"} for row in ROWS]).train()
    assert heard and "gold!" not in heard


def test_reward_functions_of_one_name_keep_their_own_columns():
    run = trainer(
        [
            lambda completions, **k: [1.0] * len(completions),
            lambda completions, **k: [0.5] * len(completions),
        ]
    )
    row = run.train()[0]
    assert (row["reward/<lambda>"], row["reward/<lambda>_2"]) == (1.0, 0.5)


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (10, r"the tokenizer \(processing_class\) has 15 tokens but the model only 10; load both"),
        (
            500,
            r"the model has 500 tokens but the tokenizer \(processing_class\) only 15; load both",
        ),
    ],
)
def test_vocabulary_mismatch(size, says):
    with pytest.raises(ValueError, match=says):
        RLOOTrainer(
            models.model(vocab_size=size),
            zeros,
            RLOOConfig(**SIZES),
            ROWS,
            processing_class=TOKENIZER,
        )


def test_a_vocabulary_padded_to_a_multiple_of_64_fits():
    args = RLOOConfig(**SIZES, max_steps=1, disable_tqdm=True)
    RLOOTrainer(models.model(vocab_size=64), zeros, args, ROWS, processing_class=TOKENIZER).train()


def test_no_eos():
    tokenizer = models.tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no EOS token.*set tokenizer.eos_token"):
        trainer(tokenizer=tokenizer)


def test_no_padding_token_is_mended_with_eos():
    run = trainer(tokenizer=models.tokenizer(pad=None))
    run.train()
    assert run.tokenizer.pad_token == run.tokenizer.eos_token


@pytest.mark.parametrize("name", ["/no/such/folder", "./missing", "adderr", "a/b/c"])
def test_a_path_that_does_not_exist(name):
    with pytest.raises(FileNotFoundError) as error:
        load_model(name)
    assert name in one_sentence(error) and "built-in name (adder)" in str(error.value)


def test_a_hub_id_without_a_hub(monkeypatch):
    with pytest.raises(FileNotFoundError, match="the Hugging Face hub did not give it"):
        load_model("no-such-organisation/no-such-model")


def test_an_incomplete_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not hold a complete model"):
        load_model(tmp_path)


def test_grpo_takes_none_for_rows_it_does_not_score():
    def half(completions, **kwargs):
        return [1.0, None] * (len(completions) // 2)

    args = GRPOConfig(**SIZES, max_steps=1, disable_tqdm=True)
    run = GRPOTrainer(copy.deepcopy(MODEL), half, args, ROWS, processing_class=TOKENIZER)
    assert run.train()[0]["reward"] == 1.0
