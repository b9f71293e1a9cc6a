"""The loop: what a step computes, in whatever pieces it computes it."""

import copy
import csv
import math

import models
import pytest
import torch
from torch import nn

from rlkit import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer, RLOOConfig, RLOOTrainer
from rlkit.objectives import Totals
from rlkit.tasks.rewards import soft_overlong_punishment

TOKENIZER = models.tokenizer()
MODEL = models.model()
ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in (1, 12, 345) for b in (7, 89)]
TRAINERS = {
    "grpo": (GRPOTrainer, GRPOConfig),
    "rloo": (RLOOTrainer, RLOOConfig),
    "ppo": (PPOTrainer, PPOConfig),
}
ALL = pytest.mark.parametrize("name", TRAINERS)


def first_digit(prompts, completions, answer, **kwargs):
    """Half the random model's answers earn something, so that there is something to learn."""
    return [float(c[:1] in "24680") for c in completions]


def make(name="grpo", reward=first_digit, rows=ROWS, model=None, peft_config=None, **settings):
    trainer_class, config_class = TRAINERS[name]
    sizes = dict(
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=6,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        max_steps=3,
        disable_tqdm=True,
        seed=1,
    )
    return trainer_class(
        copy.deepcopy(MODEL) if model is None else model,
        reward,
        config_class(**(sizes | settings)),
        rows,
        eval_dataset=ROWS,
        processing_class=TOKENIZER,
        peft_config=peft_config,
    )


def weights(trainer):
    return [p.detach().clone() for m in trainer.trained_modules() for p in m.parameters()]


def distance(a, b):
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


@ALL
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_micro_batches_change_nothing(name, beta):
    # a large epsilon, or Adam would blow rounding errors of tiny gradients up to full steps
    whole = make(name, beta=beta, adam_epsilon=1e-3)
    parts = make(
        name,
        beta=beta,
        adam_epsilon=1e-3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
    )
    whole.train(), parts.train()
    assert distance(weights(whole), weights(parts)) < 1e-5
    for key in ("reward", "loss", "entropy", "clip_ratio", "grad_norm"):
        assert math.isclose(whole.history[-1][key], parts.history[-1][key], abs_tol=1e-5), key


@ALL
@pytest.mark.parametrize("head", ["chunked", "fused"])
@pytest.mark.parametrize("settings", [{}, {"beta": 0.1, "num_iterations": 2}])
def test_every_head_trains_like_full(name, head, settings):
    settings = settings | dict(tile_bytes=1024, adam_epsilon=1e-3)
    runs = [make(name, head=mode, **settings) for mode in ("full", head)]
    for run in runs:
        run.train()
    assert [r["reward"] for r in runs[0].history] == [r["reward"] for r in runs[1].history]
    assert distance(*map(weights, runs)) < 1e-5


@ALL
def test_gradient_checkpointing_changes_nothing(name):
    runs = [make(name, gradient_checkpointing=on) for on in (False, True)]
    for run in runs:
        run.train()
    assert distance(*map(weights, runs)) < 1e-6


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_dropping_dead_rows_changes_nothing(name, monkeypatch):
    def mostly_dead(completions, **kwargs):
        rewards = torch.zeros(len(completions))
        rewards[1] = 1.0  # the first group alone has something to say
        return rewards.tolist()

    dropping = make(name, mostly_dead, beta=0.0)
    dropping.train()
    keeping = make(name, mostly_dead, beta=0.0)
    monkeypatch.setattr(type(keeping), "rows_that_teach", lambda self, b: torch.arange(len(b)))
    keeping.train()
    assert [r["dropped_rows"] for r in dropping.history] == [12, 12, 12]
    assert [r["dropped_rows"] for r in keeping.history] == [0, 0, 0]
    assert distance(weights(dropping), weights(keeping)) < 1e-6


def test_a_step_without_any_live_row_still_steps():
    run = make("grpo", lambda completions, **k: [0.0] * len(completions), weight_decay=0.1)
    before = weights(run)
    run.train()
    assert run.history[-1]["dropped_rows"] == 16 and run.optimizer.count == 3
    assert distance(before, weights(run)) > 0  # weight decay


def test_rows_are_kept_where_kl_or_entropy_teaches():
    same = dict(reward=lambda completions, **k: [0.0] * len(completions))
    for settings in (dict(beta=0.1), dict(entropy_coef=0.01)):
        run = make("grpo", **same, **settings)
        run.train()
        assert run.history[0]["dropped_rows"] == 0


@ALL
def test_minibatches_and_iterations_are_counted(name):
    run = make(
        name, per_device_train_batch_size=4, steps_per_generation=4, num_iterations=2, max_steps=2
    )
    run.train()
    assert run.args.updates_per_step == 8 and run.optimizer.count == 16
    assert run.history[1]["ratio"] != 1.0


def test_first_update_of_a_rollout_has_ratio_one():
    run = make("grpo", num_iterations=1, beta=0.1)
    run.train()
    assert run.history[-1]["ratio"] == 1.0 and run.history[-1]["clip_ratio"] == 0.0


@ALL
def test_loss_falls_to_the_known_gradient(name):
    """One step of the trainer = the same step written out with plain tensors."""
    settings = dict(beta=0.0, num_iterations=1, max_grad_norm=0.0, max_steps=1, adam_epsilon=1e-3)
    if name == "ppo":
        settings |= dict(whiten_advantages=False, vf_coef=0.0, lam=1.0)
    run = make(name, **settings)
    model = copy.deepcopy(run.policy.model)
    picked = run.prompts.pick(0, 16 // run.args.num_generations, 1)
    rollout = run.generate(picked, 0)
    run.score(rollout, run.prompts, picked, 0)
    run.judge(rollout)
    run.step(0)

    ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], 1)
    keys = torch.cat([rollout.prompt_mask, rollout.mask], 1).long()
    positions = (keys.cumsum(1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=keys, position_ids=positions).logits
    width = rollout.prompt_ids.size(1)
    logp = logits[:, width - 1 : -1].log_softmax(-1)
    logp = logp.gather(-1, rollout.completion_ids[..., None])[..., 0]
    groups = rollout.rewards.view(-1, run.args.num_generations)
    if name == "grpo":
        advantages = (groups - groups.mean(1, True)) / (groups.std(1, keepdim=True) + 1e-4)
    elif name == "rloo":
        advantages = (groups - groups.mean(1, True)) * 4 / 3
    else:
        advantages = groups  # an untrained value model says 0, and lam = 1
    weighted = (logp * advantages.flatten()[:, None] * rollout.mask).sum()
    (-weighted / (len(rollout) if name == "rloo" else rollout.mask.sum())).backward()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0, eps=1e-3)
    optimizer.step()
    trained = dict(run.policy.model.named_parameters())
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(trained[key], parameter, atol=2e-5, rtol=1e-4)


@ALL
def test_resume_ends_with_the_same_bits(name, tmp_path):
    settings = dict(max_steps=6, save_steps=2, beta=0.1, warmup_steps=2, save_total_limit=5)
    straight = make(name, output_dir=str(tmp_path / "a"), **settings)
    straight.train()
    killed = make(name, output_dir=str(tmp_path / "b"), **settings)
    killed.callbacks.append(lambda row: killed.stop() if row["step"] == 4 else None)
    killed.train()
    again = make(name, output_dir=str(tmp_path / "b"), **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "b"))
    assert distance(weights(straight), weights(again)) == 0.0
    timeless = [
        {k: v for k, v in row.items() if not k.startswith("seconds")} for row in straight.history
    ]
    for expected, row in zip(timeless, again.history, strict=True):
        assert {k: row[k] for k in expected} == expected


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path):
    run = make("grpo", output_dir=str(tmp_path), save_steps=3)
    run.train()
    saved = str(tmp_path / "checkpoint-3")
    with pytest.raises(ValueError, match="algorithm='grpo', not 'rloo'"):
        make("rloo").train(resume_from_checkpoint=saved)
    with pytest.raises(ValueError, match="seed=1, not 2"):
        make("grpo", seed=2).train(resume_from_checkpoint=saved)
    bigger = models.model(num_hidden_layers=3)
    with pytest.raises(ValueError, match="holds another model"):
        make("grpo", model=bigger).train(resume_from_checkpoint=saved)
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        make("grpo").train(resume_from_checkpoint=str(tmp_path / "nowhere"))
    path = tmp_path / "checkpoint-3" / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="is damaged"):
        make("grpo").train(resume_from_checkpoint=saved)


def test_old_checkpoints_go_and_no_partial_one_stays(tmp_path):
    make("grpo", output_dir=str(tmp_path), save_steps=1, max_steps=4).train()
    names = {p.name for p in tmp_path.iterdir() if p.is_dir()}
    assert names == {"checkpoint-3", "checkpoint-4"}


@ALL
def test_a_loss_that_is_not_finite_stops_and_spares_the_weights(name, monkeypatch, tmp_path):
    run = make(name, output_dir=str(tmp_path))
    honest = run.loss

    def poisoned(*args):
        loss, sums = honest(*args)
        return loss * (math.nan if len(run.history) == 1 else 1.0), sums

    monkeypatch.setattr(run, "loss", poisoned)
    kept = []
    run.callbacks.append(lambda row: kept.append(weights(run)))
    with pytest.raises(
        FloatingPointError, match="step 2, update 1: the loss or a gradient is not finite"
    ):
        run.train()
    assert distance(kept[0], weights(run)) == 0.0
    assert (tmp_path / "not_finite_step_2.safetensors").is_file()


def test_a_second_bad_update_says_so_and_spares_what_the_first_made(monkeypatch):
    run = make("ppo", num_iterations=2, beta=0.0)
    honest, kept = run.loss, []

    def poisoned(*args):
        loss, sums = honest(*args)
        kept.append(weights(run))
        return loss * (math.nan if len(kept) == 2 else 1.0), sums

    monkeypatch.setattr(run, "loss", poisoned)
    with pytest.raises(FloatingPointError, match="step 1, update 2: .* before this update"):
        run.train()
    assert distance(kept[1], weights(run)) == 0.0 < distance(kept[0], weights(run))


def test_an_interrupted_step_leaves_no_gradients_behind(monkeypatch):
    clean, broken = make("grpo"), make("grpo")
    honest = broken.loss

    def interrupted(*args):
        loss, sums = honest(*args)
        loss.backward()
        raise KeyboardInterrupt

    monkeypatch.setattr(broken, "loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    monkeypatch.setattr(broken, "loss", honest)
    clean.train(), broken.train()
    assert distance(weights(clean), weights(broken)) == 0.0


def test_fp16_survives_a_first_step_without_a_live_row():
    run = make("grpo", lambda completions, **k: [1.0] * len(completions), fp16=True)
    assert [r["dropped_rows"] for r in run.train()] == [16, 16, 16]


def test_a_new_run_does_not_mix_with_the_checkpoints_of_an_old_one(tmp_path):
    make("grpo", output_dir=str(tmp_path), save_steps=1).train()
    with pytest.raises(ValueError, match="holds checkpoints of an earlier run; resume it"):
        make("grpo", output_dir=str(tmp_path)).train()


@pytest.mark.parametrize("where", ["a file", "below a file"])
def test_an_output_dir_that_cannot_be_made(where, tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / ("x" if where == "below a file" else ".")
    with pytest.raises(ValueError, match="output_dir=.* cannot be made"):
        make("grpo", output_dir=str(path)).train()


def test_a_full_disk_leaves_one_sentence_and_no_half_checkpoint(tmp_path, monkeypatch):
    import safetensors.torch

    run = make("grpo", output_dir=str(tmp_path), save_steps=1)

    def full(tensors, path):
        path.write_bytes(b"half")
        raise safetensors.SafetensorError("I/O error: no space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="the checkpoint could not be written .*no space left"):
        run.train()
    assert [p.name for p in tmp_path.iterdir() if "checkpoint" in p.name] == []


def test_a_config_of_another_algorithm_is_refused():
    with pytest.raises(TypeError, match="args is of type GRPOConfig; RLOOTrainer needs a RLOOConf"):
        RLOOTrainer(MODEL, first_digit, GRPOConfig(), ROWS, processing_class=TOKENIZER)


def test_ten_fp16_overflows_in_a_row_stop(monkeypatch):
    run = make("grpo", fp16=True, max_steps=20)
    monkeypatch.setattr(run, "loss", lambda m, *rest: (run.policy(m)[0].sum() * math.inf, {}))
    before = weights(run)
    with pytest.raises(FloatingPointError, match="ten overflows in a row"):
        run.train()
    assert distance(before, weights(run)) == 0.0
    assert [r["overflows"] for r in run.history] == [1] * 9


def test_fp16_and_bf16_train():
    for settings in (dict(fp16=True), dict(bf16=True)):
        run = make("grpo", **settings)
        before = weights(run)
        run.train()
        assert distance(before, weights(run)) > 1e-3
        assert all(p.dtype == torch.float32 for p in run.policy.parameters())


@ALL
def test_lora_uses_its_own_base_as_reference(name):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    run = make(name, peft_config=config, beta=0.1)
    base = copy.deepcopy(MODEL)
    run.train()
    assert run.reference is None
    trained = [n for n, p in run.policy.named_parameters() if p.requires_grad]
    assert trained and all("lora" in n or "value_head" in n for n in trained)
    assert run.history[-1]["kl"] > 0
    picked = run.prompts.pick(9, 4, 1)
    rollout = run.generate(picked, 9)
    reference = run.logp_reference(rollout)
    plain = make(name, model=base, beta=0.0)
    torch.testing.assert_close(reference, plain.logp(rollout))
    assert (reference - run.logp(rollout)).abs().max() > 1e-3


def test_adapters_can_be_loaded_evaluated_and_trained_on(tmp_path):
    peft = pytest.importorskip("peft")
    from rlkit import load_model, load_tokenizer

    MODEL.save_pretrained(tmp_path / "base")
    TOKENIZER.save_pretrained(tmp_path / "base")
    config = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    base = load_model(tmp_path / "base")
    run = make("grpo", model=base, peft_config=config, output_dir=str(tmp_path / "lora"))
    run.train()
    again = make("rloo", model=load_model(tmp_path / "lora"), beta=0.5, learning_rate=0.0)
    assert again.evaluate() == run.evaluate()
    assert len(load_tokenizer(tmp_path / "lora")) == len(TOKENIZER)
    # the reference is the model with the adapters it came with, so nothing has moved yet
    assert again.train()[0]["kl"] == pytest.approx(0, abs=1e-6)
    more = make("rloo", model=load_model(tmp_path / "lora"), beta=0.5)
    assert more.train()[-1]["kl"] > 0


def test_adapters_remember_the_built_in_model_by_name(tmp_path):
    import json

    peft = pytest.importorskip("peft")
    from rlkit import load_model
    from rlkit.adapters import add_adapters

    add_adapters(load_model("adder"), peft.LoraConfig(r=2)).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == "adder"
    load_model(tmp_path)


def test_half_precision_weights_that_train_become_float32():
    for name in TRAINERS:
        run = make(name, model=copy.deepcopy(MODEL).to(torch.bfloat16), max_steps=1)
        run.train()
        assert all(p.dtype == torch.float32 for m in run.trained_modules() for p in m.parameters())


def test_sampling_under_autocast_does_not_round_its_log_probs():
    run = make("grpo", bf16=True)
    rollout = run.generate(run.prompts.pick(0, 4, 1), 0)
    exact = rollout.logp_sampled[rollout.mask]
    assert not torch.equal(exact, exact.to(torch.bfloat16).float())
    logits = run.policy.decode(
        rollout.prompt_ids,
        rollout.prompt_mask,
        (rollout.prompt_mask.cumsum(1) - 1).clamp(min=0),
        run.policy.new_cache(),
    )
    assert not torch.equal(logits, logits.to(torch.bfloat16).float())


def test_attention_without_an_explicit_mask_is_refused():
    model = copy.deepcopy(MODEL)
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match="flex_attention.*attn_implementation='sdpa'"):
        make("grpo", model=model)


def test_a_full_run_keeps_a_frozen_reference():
    run = make("grpo", beta=0.1)
    frozen = [p.clone() for p in run.reference.parameters()]
    run.train()
    assert not any(p.requires_grad for p in run.reference.parameters())
    assert all(torch.equal(a, b) for a, b in zip(frozen, run.reference.parameters(), strict=True))
    assert run.history[0]["kl"] == pytest.approx(0, abs=1e-6) and run.history[-1]["kl"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("value_model", ["separate", "shared"])
def test_the_value_model_learns_the_reward(value_model):
    run = make(
        "ppo",
        lambda completions, **k: [1.0] * len(completions),
        value_model=value_model,
        vf_coef=1.0,
        beta=0.0,
        max_steps=25,
        cliprange_value=None,
    )
    run.train()
    assert run.history[-1]["value_loss"] < 0.1 * run.history[0]["value_loss"]


def test_ppo_leaves_out_rows_that_nothing_scored():
    run = make("ppo", lambda completions, **k: [None] * 4 + [1.0] * (len(completions) - 4))
    rollout = run.generate(picked := run.prompts.pick(0, 16, 1), 0)
    run.score(rollout, run.prompts, picked, 0)
    run.judge(rollout)
    assert not rollout.mask[:4].any() and rollout.advantages.isfinite().all()


def test_truncated_completions_can_be_left_out():
    run = make("grpo", mask_truncated_completions=True, max_completion_length=2)
    run.train()
    assert run.history[0]["truncated"] > 0
    assert run.history[0]["dropped_rows"] >= 16 * run.history[0]["truncated"] - 1e-6


def test_entropy_quantile_trains_on_the_uncertain_tokens_alone():
    runs = [
        make(
            "grpo",
            top_entropy_quantile=0.4,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=16 // size,
            max_steps=1,
        )
        for size in (16, 4)
    ]
    for run in runs:
        run.train()
    assert distance(*map(weights, runs)) < 1e-5
    plain = make("grpo", max_steps=1)
    plain.train()
    assert distance(weights(runs[0]), weights(plain)) > 1e-4


def test_history_log_and_model_are_left_behind(tmp_path):
    rewards = [first_digit, soft_overlong_punishment(6, 3)]
    run = make("grpo", rewards, output_dir=str(tmp_path), eval_steps=2, max_steps=4)
    seen = []
    run.callbacks.append(seen.append)
    history = run.train()
    assert seen == history == run.history and [r["step"] for r in history] == [1, 2, 3, 4]
    with (tmp_path / "log.csv").open() as file:
        logged = list(csv.DictReader(file))
    assert [float(r["reward"]) for r in logged] == pytest.approx(
        [r["reward"] for r in history], rel=1e-4
    )
    assert [bool(r["accuracy"]) for r in logged] == [False, True, False, True]
    assert "reward/first_digit" in logged[0] and "reward/soft_overlong_punishment" in logged[0]
    again = make("grpo", model=None)
    from rlkit import load_model, load_tokenizer

    saved = GRPOTrainer(
        load_model(tmp_path), first_digit, again.args, ROWS, ROWS, load_tokenizer(tmp_path)
    )
    assert saved.evaluate() == {k: v for k, v in run.evaluate().items() if "soft" not in k}


def test_noise_and_data_do_not_depend_on_how_much_is_drawn_at_once():
    runs = [make("grpo", max_generation_batch=size) for size in (None, 4, 8)]
    rollouts = [run.generate(run.prompts.pick(0, 4, 1), 0) for run in runs]
    for rollout in rollouts[1:]:
        assert torch.equal(rollout.completion_ids, rollouts[0].completion_ids)


def test_prompts_are_seen_once_an_epoch_in_a_keyed_order():
    run = make("grpo")
    seen = [i for step in range(6) for i in run.prompts.pick(step, 2, seed=5)]
    assert sorted(seen[:6]) == sorted(seen[6:]) == list(range(6)) and seen[:6] != seen[6:]
    assert (
        run.prompts.pick(1, 2, seed=5) == seen[2:4] and run.prompts.pick(0, 6, seed=6) != seen[:6]
    )
    assert len(run.prompts.pick(0, 20, seed=5)) == 20


def test_dropout_is_on_in_training_and_off_in_scoring():
    run = make("grpo", model=models.model("neox", hidden_dropout=0.5))
    rollout = run.generate(run.prompts.pick(0, 4, 1), 0)
    assert torch.equal(run.logp(rollout), run.logp(rollout))
    run.policy.train()
    part = rollout.rows(slice(None))
    assert not torch.equal(run.policy(part)[0], run.policy(part)[0])


def test_totals_count_rows_that_are_dropped():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    totals = Totals.of(mask)
    assert int(totals.tokens) == 2 and int(totals.sequences) == 2


def test_answers_are_text():
    run = make("grpo")
    answers = run.complete(["1+1=", "2+2="])
    assert len(answers) == 2 and all(isinstance(a, str) and "<" not in a for a in answers)
    assert run.complete(["1+1=", "2+2="]) == answers


def test_conversations_go_through_the_chat_template():
    tokenizer = models.tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}="
    heard = []

    def reward(prompts, completions, **kwargs):
        heard.extend(zip(prompts, completions, strict=True))
        return [0.0] * len(completions)

    rows = [{"prompt": [{"role": "user", "content": "1+1"}]}]
    args = GRPOConfig(
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=4,
        max_steps=1,
        disable_tqdm=True,
    )
    run = GRPOTrainer(copy.deepcopy(MODEL), reward, args, rows, processing_class=tokenizer)
    run.train()
    assert run.prompts.ids == [tokenizer("1+1=")["input_ids"]]
    prompt, completion = heard[0]
    assert prompt == rows[0]["prompt"] and completion[0]["role"] == "assistant"


def test_reward_functions_can_log_and_see_the_step():
    steps = []

    def reward(completions, trainer_state, log_metric, **kwargs):
        steps.append(trainer_state.global_step)
        log_metric("longest", max(map(len, completions)))
        return [0.0] * len(completions)

    run = make("grpo", reward)
    run.train()
    assert steps == [0, 1, 2] and all(r["longest"] >= 0 for r in run.history)


def test_the_step_runs_under_fake_tensors():
    """No host read in the update: a planner can run it with nothing allocated."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    for name in TRAINERS:
        run = make(name, beta=0.1, per_device_train_batch_size=8, gradient_accumulation_steps=2)
        rollout = run.generate(picked := run.prompts.pick(0, 16 // run.args.num_generations, 1), 0)
        run.score(rollout, run.prompts, picked, 0)
        run.judge(rollout)
        parts = [rollout.rows(r) for r in torch.arange(16).split(8)]
        mode = FakeTensorMode()
        for module in run.trained_modules():
            fake_in_place(module, mode)
        run.optimizer = type(run.optimizer)(run.trained_modules(), run.args, 1)
        with mode:
            fakes = [type(p)(**{k: fake(v, mode) for k, v in vars(p).items()}) for p in parts]
            totals = Totals(tokens=60, sequences=16)
            result = run.optimizer.step(fakes, lambda m: run.loss(m, totals))  # noqa: B023
        assert result["loss"].shape == () and type(result["loss"]).__name__ == "FakeTensor"


def fake(value, mode):
    return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value


def fake_in_place(module, mode):
    made = {}
    for part in module.modules():
        for key, parameter in list(part._parameters.items()):
            if parameter is not None:
                made.setdefault(id(parameter), nn.Parameter(mode.from_tensor(parameter.detach())))
                part._parameters[key] = made[id(parameter)]
        for key, buffer in list(part._buffers.items()):
            part._buffers[key] = fake(buffer, mode)
