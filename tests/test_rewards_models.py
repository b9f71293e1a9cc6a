"""Reward models among the reward functions, and the models that each algorithm then holds."""

import copy

import models
import pytest
import torch
from models import scorer

from rlkit import (
    GRPOConfig,
    GRPOTrainer,
    Meter,
    PPOConfig,
    PPOTrainer,
    RLOOConfig,
    RLOOTrainer,
)
from rlkit.rewards import ModelReward

TOKENIZER = models.tokenizer()
ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in (1, 12, 345) for b in (7, 89)]
TRAINERS = {
    "grpo": (GRPOTrainer, GRPOConfig),
    "rloo": (RLOOTrainer, RLOOConfig),
    "ppo": (PPOTrainer, PPOConfig),
}
ALL = pytest.mark.parametrize("name", TRAINERS)


def exact(completions, answer, **kwargs):
    return [float(c == a) for c, a in zip(completions, answer, strict=True)]


def even(completions, **kwargs):
    return [float(c[:1] in "24680") for c in completions]


def make(name="rloo", reward=None, kind="qwen3", peft_config=None, classes=None, **changes):
    trainer_class, config_class = TRAINERS[name]
    sizes = dict(
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=6,
        learning_rate=3e-3,
        max_steps=2,
        disable_tqdm=True,
        seed=1,
    )
    return trainer_class(
        models.model(kind),
        scorer() if reward is None else reward,
        config_class(**(sizes | changes)),
        ROWS,
        eval_dataset=ROWS,
        processing_class=TOKENIZER,
        peft_config=peft_config,
        reward_processing_classes=classes,
    )


def scored(trainer):
    picked = trainer.prompts.pick(0, 4, 1)
    rollout = trainer.generate(picked, 0)
    trainer.score(rollout, trainer.prompts, picked, 0)
    return rollout


def one_by_one(model, rollout):
    """transformers' own forward, one completion at a time, as the tokens that were drawn."""
    model.config.pad_token_id = None
    found = []
    for i in range(len(rollout)):
        prompt = rollout.prompt_ids[i][rollout.prompt_mask[i]]
        completion = rollout.completion_ids[i][rollout.mask[i]]
        logits = model(input_ids=torch.cat([prompt, completion])[None]).logits
        found.append(logits.squeeze())
    return torch.stack(found).detach()


# --- as a reward


def test_rewards_are_the_model_s_scores_of_the_drawn_tokens():
    model = scorer()
    rollout = scored(make(reward=model))
    assert not rollout.finished.all() and rollout.finished.any()  # with EOS and without
    assert rollout.rewards.dtype == torch.float32
    torch.testing.assert_close(rollout.rewards, one_by_one(model, rollout), atol=1e-5, rtol=0)


def test_the_batch_in_which_they_are_scored_changes_no_reward():
    whole = scored(make(per_device_train_batch_size=16, gradient_accumulation_steps=1))
    parts = scored(make(per_device_train_batch_size=1, gradient_accumulation_steps=16))
    torch.testing.assert_close(whole.rewards, parts.rewards, atol=1e-5, rtol=0)


def test_models_and_functions_mix_with_weights(tmp_path):
    scorer().save_pretrained(tmp_path / "judge")
    TOKENIZER.save_pretrained(tmp_path / "judge")
    other = scorer()
    other.score.weight.data.neg_()
    run = make(
        reward=[even, tmp_path / "judge", str(tmp_path / "judge"), other],
        reward_weights=(2.0, 1.0, 0.5, 1.0),
    )
    names = ["reward/even", "reward/judge", "reward/judge_2"]
    assert run.rewards.names[:3] == names
    rollout = scored(run)
    columns = rollout.rewards_per_func
    torch.testing.assert_close(columns[:, 1], columns[:, 2])
    torch.testing.assert_close(columns[:, 1], -columns[:, 3])
    torch.testing.assert_close(rollout.rewards, 2 * columns[:, 0] + 0.5 * columns[:, 1])
    row = run.train()[0]
    assert row.keys() >= set(names)
    assert list(run.evaluate())[:3] == ["accuracy", "reward/even", "reward/judge"]


@ALL
def test_every_algorithm_trains_on_a_model_s_scores_and_leaves_it_alone(name):
    model = scorer()
    before = copy.deepcopy(model.state_dict())
    run = make(name, reward=model, max_steps=6)
    history = run.train()
    assert all(row["grad_norm"] > 0 for row in history)
    assert not any(p.requires_grad or p.grad is not None for p in model.parameters())
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_equal_scores_teach_nothing():
    model = scorer()
    model.score.weight.data.zero_()
    run = make(reward=model, beta=0.0)
    before = [p.clone() for p in run.policy.parameters()]
    row = run.train()[-1]
    assert row["dead_groups"] == 1.0 and row["reward_std"] == 0 and row["dropped_rows"] == 16
    assert all(torch.equal(a, b) for a, b in zip(before, run.policy.parameters(), strict=True))


def reordered(pad="<pad>"):
    """A tokenizer of the same characters under other numbers, and a model that knows them."""
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers import models as kinds
    from transformers import PreTrainedTokenizerFast

    words = [*reversed(models.CHARACTERS), "<eos>", "<pad>"]
    made = Tokenizer(kinds.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", pad_token=pad)
    model, old = scorer(), TOKENIZER.get_vocab()
    embedding = model.get_input_embeddings().weight.data
    moved = embedding.clone()
    for word, i in tokenizer.get_vocab().items():
        moved[i] = embedding[old[word]]
    embedding.copy_(moved)
    return tokenizer, model


@pytest.mark.parametrize("pad", ["<pad>", "<eos>"])
def test_a_model_reads_text_by_its_own_tokenizer(pad, tmp_path):
    """The same model under other token numbers gives the same scores, EOS or not."""
    tokenizer, model = reordered(pad)
    rollout = scored(make())
    # a random model also draws padding, which no text can hold
    as_text = ~(rollout.mask & (rollout.completion_ids == 0)).any(1)
    assert (as_text & rollout.finished).any() and (as_text & ~rollout.finished).any()
    expected = rollout.rewards[as_text]
    given = scored(make(reward=model, classes=tokenizer)).rewards[as_text]
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=0)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = scored(make(reward=[even, tmp_path])).rewards_per_func[as_text, 1]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("reward", "classes", "kind", "says"),
    [
        (lambda: scorer(labels=3), None, TypeError, "with 3 labels is no reward model"),
        (lambda: models.model(), None, TypeError, "gives no score"),
        (lambda: "adder", None, ValueError, "reward_funcs: 'adder' is a language model without"),
        (lambda: "no/where/at all", None, FileNotFoundError, "reward_funcs: .*no such folder"),
        (lambda: [even, scorer()], [None], ValueError, "has 1 entries for 2 reward functions"),
    ],
)
def test_what_is_no_reward_model_is_refused_in_a_sentence(reward, classes, kind, says):
    with pytest.raises(kind, match=says) as error:
        make(reward=reward(), classes=classes)
    assert "\n" not in str(error.value)


def test_a_tokenizer_that_the_model_does_not_know_is_refused():
    small = scorer()
    small.config.vocab_size = 9
    with pytest.raises(ValueError, match="knows 9 tokens but its tokenizer has 15"):
        make(reward=small)


# --- what each algorithm holds


def copies(trainer):
    """Bytes of the weights of each model that the meter saw in a step."""
    with Meter(trainer) as meter:
        trainer.step(0)
        kinds, amounts = list(meter.ledger.kinds), meter.ledger.amounts
    found = {}
    for kind, amount in zip(kinds, amounts, strict=True):
        if kind.category in ("param", "reference", "value", "reward"):
            found[kind.model] = found.get(kind.model, 0) + amount
    return found


@pytest.mark.slow
def test_ppo_holds_four_models_rloo_three_and_grpo_with_lora_one():
    import peft

    policy = sum(p.numel() for p in models.model().parameters()) * 4
    judge = sum(p.numel() for p in scorer().parameters()) * 4
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    four = copies(make("ppo", value_model="reward", beta=0.1))
    assert four.keys() == {"policy", "reference", "reward", "value"}
    assert four["policy"] == four["reference"] == pytest.approx(policy, rel=1e-2)
    assert four["reward"] == pytest.approx(judge, rel=1e-2)
    assert four["value"] == pytest.approx(judge, rel=1e-2)
    three = copies(make("rloo", beta=0.1))
    assert three.keys() == {"policy", "reference", "reward"}
    assert sum(three.values()) == pytest.approx(0.75 * sum(four.values()), rel=2e-2)
    one = copies(make("grpo", reward=even, peft_config=lora, beta=0.1))
    assert one.keys() == {"policy"} and one["policy"] < 1.1 * policy


def test_a_value_model_that_starts_from_the_reward_model_gives_its_scores():
    """A value judges the text before a token; at the last one it is the score of what was there."""
    model = scorer()
    run = make("ppo", reward=model, value_model="reward", beta=0.0)
    rollout = scored(run)
    values = run.on_rollout(run.values, rollout)
    first = [
        row[mask][None] for row, mask in zip(rollout.prompt_ids, rollout.prompt_mask, strict=True)
    ]
    model.config.pad_token_id = None
    expected = torch.cat([model(input_ids=ids).logits.squeeze(1) for ids in first]).detach()
    torch.testing.assert_close(values[:, 0], expected, atol=1e-5, rtol=0)
    run.train()
    trained = run.on_rollout(run.values, rollout)
    assert (trained - values).abs().max() > 1e-3  # it learns
    after = torch.cat([model(input_ids=ids).logits.squeeze(1) for ids in first]).detach()
    torch.testing.assert_close(after, expected)  # and the reward model does not


def test_a_value_model_from_no_reward_model_is_refused():
    with pytest.raises(ValueError, match="value_model='reward' needs a reward model"):
        make("ppo", reward=even, value_model="reward")
    tokenizer, model = reordered()
    with pytest.raises(ValueError, match="has a tokenizer of its own"):
        make("ppo", reward=model, classes=tokenizer, value_model="reward")


def test_target_kl_ends_the_updates_of_a_rollout():
    settings = dict(num_iterations=8, learning_rate=1e-2, max_steps=3, num_generations=1)
    free, held = (make("ppo", target_kl=kl, **settings).train() for kl in (None, 0.01))
    assert [row["updates"] for row in free] == [8, 8, 8]
    assert free[0]["kl_old"] > 0
    assert all(1 < row["updates"] < 8 for row in held)
    assert make("ppo", target_kl=0.0, **settings).train()[0]["updates"] == 2
    with pytest.raises(ValueError, match="target_kl=-1.0 must be .* at least 0"):
        PPOConfig(target_kl=-1.0)


def test_a_model_reward_is_a_function_that_can_be_called_alone():
    run = make()
    (func,) = run.rewards.funcs
    assert isinstance(func, ModelReward)
    ids = [TOKENIZER("8")["input_ids"] + [TOKENIZER.eos_token_id]]
    found = func(prompts=["1+7="], completions=["8"], completion_ids=ids)
    assert len(found) == 1 and isinstance(found[0], float)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "rloo"])
def test_a_plan_with_a_reward_model_is_what_a_step_takes(algorithm):
    import measured
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from rlkit import plan
    from rlkit.memory.planner import setting_of
    from rlkit.reward_model import RewardModel
    from rlkit.rewards import Rewards

    sizes = measured.SMALL | dict(dtype="float32", device="cpu", beta=0.05, reward_model=True)
    setting = setting_of("adder", algorithm, **sizes)
    others = measured.there_before()
    trainer = measured.trainer_of(setting)
    config = AutoConfig.for_model(**setting.config | {"num_labels": 1})
    judge = RewardModel(AutoModelForSequenceClassification.from_config(config))
    tokenizer = measured.Tokenizer(config.vocab_size)
    tokenizer.get_vocab = dict
    batch = sizes["per_device_train_batch_size"]
    func = ModelReward(judge.requires_grad_(False), "judge", tokenizer, tokenizer, [], batch)
    trainer.rewards, trainer.reward_model = Rewards([func], None, tokenizer), judge
    measured.update_once(trainer)
    with measured.alone(trainer, others) as meter:
        trainer.step(0)
    planned = plan("adder", algorithm, **sizes)
    assert planned.peak == pytest.approx(meter.peak, rel=0.03)
    ours, real = planned.at_peak.by_category, meter.at_peak.by_category
    for name in ("param", "reference", "reward", "value", "optimizer"):
        assert ours.get(name, 0) == pytest.approx(real.get(name, 0), rel=0.01), name
    assert ("value" in real) == (algorithm == "ppo") and real["reward"] > 2**20
