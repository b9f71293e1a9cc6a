"""LoRA on the output head, adapters trained on, and their files: held to plain PEFT."""

import copy
import gc
import warnings

import models
import pytest
import torch
from dispatch import Operations
from ranks import random_batch

from rlkit import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer, load_model
from rlkit.adapters import add_adapters, as_reference, keep_reference, merge_adapters
from rlkit.objectives import GRPO
from rlkit.policy import Policy
from rlkit.sampling import Sampler

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:.*tie_word_embeddings", "ignore:.*tied")

MODES = pytest.mark.parametrize("mode", ["full", "chunked", "fused"])
WHERE = {
    "head": dict(target_modules=["lm_head", "q_proj"]),
    "rslora": dict(target_modules=["lm_head", "v_proj"], use_rslora=True, lora_alpha=3),
    "copy of the head": dict(target_modules=["q_proj"], modules_to_save=["lm_head"]),
    "embeddings": dict(target_modules=["embed_tokens", "q_proj"]),
    "both ends": dict(target_modules=["embed_tokens", "lm_head"]),
}
BATCH = random_batch()
IDS = torch.cat([BATCH.prompt_ids, BATCH.completion_ids], 1)


def adapted(kind="llama", where="head", seed=0, **settings):
    """A small model with adapters that do something."""
    settings = dict(r=3, init_lora_weights=False) | WHERE[where] | settings
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nudged(
            add_adapters(models.model(kind), peft.LoraConfig(**settings, task_type="CAUSAL_LM"))
        )


def nudged(model):
    """Copies that an adapter trains start as what they copy."""
    for name, parameter in model.named_parameters():
        if "modules_to_save" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def plain_loss(model, objective=None, temperature=1.0):
    """PEFT's own forward with all logits, and the objective on their log-probs."""
    logits = model(input_ids=IDS).logits[:, BATCH.prompt_ids.size(1) - 1 : -1] / temperature
    logp = logits.log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    logp = logp.gather(2, BATCH.completion_ids[..., None]).squeeze(2)
    return (objective or GRPO())(logp, None, BATCH.advantages, BATCH.mask, entropy=entropy)[0]


def micro_batch():
    return BATCH.rows(slice(None))


def trained(model):
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in trained(model).items()}


def compare(model, mode, **settings):
    """Loss and gradients of rlkit's forward are those of PEFT's."""
    objective = GRPO(entropy_coef=0.1)
    expected = plain_loss(model, objective, **settings)
    wanted = gradients(model, expected)
    policy = Policy(model, head=mode, tile_bytes=512, **settings)
    loss, _ = policy(micro_batch(), objective)
    found = gradients(model, loss)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    # the Head sits inside PEFT's layers and renames nothing
    assert found.keys() == wanted.keys()
    for name, grad in wanted.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-5, atol=1e-5, msg=name)
        assert grad.abs().max() > 1e-4, name
    return found


@MODES
@pytest.mark.parametrize("kind", ["llama", "qwen3"])  # untied, tied
@pytest.mark.parametrize("where", WHERE)
def test_loss_and_gradients_are_pefts(where, kind, mode):
    found = compare(adapted(kind, where), mode, temperature=0.7)
    if where in ("head", "rslora", "both ends"):
        assert sum("lm_head.lora_" in name for name in found) == 2


@MODES
def test_a_softcap_comes_after_the_low_rank_part(mode):
    model = adapted("gemma3")
    model.get_base_model().config.final_logit_softcapping = 2.0
    compare(model, mode)


@MODES
def test_several_active_adapters_add_up(mode):
    model = adapted()
    more = peft.LoraConfig(r=2, lora_alpha=5, init_lora_weights=False, target_modules=["lm_head"])
    model.add_adapter("more", more)
    model.base_model.set_adapter(["default", "more"])
    found = compare(model, mode)
    assert sum("lm_head.lora_A" in name for name in found) == 2


def test_dropout_falls_on_the_low_rank_part_alone():
    model = adapted(lora_dropout=0.5, target_modules=["lm_head"])
    policy = Policy(model, head="chunked")
    score = lambda: policy(micro_batch())[0]  # noqa: E731
    policy.eval()
    torch.testing.assert_close(score(), score())
    policy.train()
    assert (score() - score()).abs().max() > 1e-3
    with policy.as_reference():
        torch.testing.assert_close(score(), score())


@pytest.mark.parametrize("where", WHERE)
def test_with_adapters_off_it_is_the_model_without_them(where):
    plain = Policy(models.model("llama"))(micro_batch())[0]
    policy = Policy(adapted("llama", where))
    with policy.as_reference():
        torch.testing.assert_close(policy(micro_batch())[0], plain)
    assert (policy(micro_batch())[0] - plain).abs().max() > 1e-2


@pytest.mark.parametrize("where", WHERE)
def test_it_samples_from_what_it_scores(where):
    from rlkit.rollout import generate

    policy = Policy(adapted("llama", where))
    rollout = generate(
        policy,
        BATCH.prompt_ids,
        BATCH.prompt_mask,
        Sampler(seed=1),
        num_generations=1,
        max_completion_length=6,
        eos_ids=(1,),
        pad_id=0,
        rows=torch.arange(8),
    )
    logp = policy(rollout.rows(slice(None)))[0]
    torch.testing.assert_close(rollout.logp_sampled * rollout.mask, logp, rtol=1e-5, atol=1e-5)


# ---- the cheap path ---------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "passes"), [("fused", 2), ("auto", 2), ("chunked", 3)])
def test_a_frozen_head_costs_no_product_for_its_gradient(mode, passes):
    from rlkit.adapters import low_rank

    torch.manual_seed(0)
    N, V, H, r = 64, 512, 48, 2
    model = models.model("llama", vocab_size=V, hidden_size=H)
    model = add_adapters(
        model, peft.LoraConfig(r=r, target_modules=["lm_head"], init_lora_weights=False)
    )
    policy = Policy(model, head=mode, tile_bytes=16 * V * 4)
    hidden = torch.randn(N, H, requires_grad=True)
    added = [x.detach().requires_grad_() for x in low_rank(model, hidden)]
    index = torch.arange(N)
    batch = dict(index=index, mask=torch.ones(8, 8), advantages=torch.randn(8))
    batch["row_lengths"] = (8,) * 8
    with Operations() as seen:
        targets = torch.randint(V, (N,))
        loss, _ = policy.head(hidden, targets, objective=GRPO(), low_rank=added, **batch)
        loss.backward()
    assert policy.head.weight.grad is None and all(x.grad is not None for x in added)
    # the frozen weight: logits and dH, and logits once more if chunked; and those of u B^T, dB, dU
    low = (passes + 1) * N * V * r
    assert seen.multiplications == passes * N * V * H + low


# ---- adapters trained before ------------------------------------------------------------------


def reward(completions, **kwargs):
    return [float(sum(map(ord, text)) % 3) for text in completions]


def make(model, trainer=GRPOTrainer, config=GRPOConfig, **settings):
    sizes = dict(
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=6,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        max_steps=2,
        disable_tqdm=True,
        beta=0.1,
        seed=1,
    )
    peft_config = settings.pop("peft_config", None)
    rows = [{"prompt": f"{a}+{a}=", "answer": str(2 * a)} for a in range(6)]
    return trainer(
        model,
        reward,
        config(**(sizes | settings)),
        rows,
        processing_class=models.tokenizer(),
        peft_config=peft_config,
    )


SHARED_PPO = dict(trainer=PPOTrainer, config=PPOConfig, num_generations=1, value_model="shared")


def copies(shape):
    """How many tensors of this shape are alive, counted by storage."""
    gc.collect()
    with warnings.catch_warnings(action="ignore"):
        alive = [x for x in gc.get_objects() if isinstance(x, torch.Tensor)]
    return len({x.data_ptr() for x in alive if x.shape == shape})


@pytest.mark.parametrize("where", WHERE)
def test_the_reference_of_trained_adapters_is_their_frozen_twin(where):
    model = adapted("llama", where)
    start = Policy(copy.deepcopy(model))(micro_batch())[0].detach()
    run = make(model)
    base = {n: p.clone() for n, p in model.named_parameters() if "default" not in n}
    expected = trained(model).keys()
    assert run.reference is None and all("default" in name for name in expected)
    assert run.train()[0]["kl"] == pytest.approx(0, abs=1e-6) and run.history[-1]["kl"] > 0
    run.policy.eval()
    with torch.no_grad(), run.policy.as_reference():
        torch.testing.assert_close(run.policy(micro_batch())[0], start)
    assert (run.policy(micro_batch())[0] - start).abs().max() > 1e-3
    assert trained(model).keys() == expected
    for name, before in base.items():
        assert torch.equal(before, dict(model.named_parameters())[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("came", [False, True])
@pytest.mark.parametrize("settings", [{}, SHARED_PPO], ids=["grpo", "ppo"])
def test_one_copy_of_the_base_weights_is_alive(came, settings):
    size = dict(intermediate_size=79)  # a shape that no other test's models have
    shape = torch.Size((79, 32))
    assert copies(shape) == 0
    model = models.model("llama", **size)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "lm_head"])
    if came:
        model, config = add_adapters(model, config), None
    run = make(model, peft_config=config, **settings)
    run.train()
    assert copies(shape) == 2 * 2  # gate and up of two layers


def test_a_twin_is_made_anew_by_the_next_run_and_never_saved(tmp_path):
    model = adapted()
    make(model).train()
    now = Policy(model)(micro_batch())[0].detach()
    run = make(model, output_dir=str(tmp_path))
    with run.policy.as_reference():
        torch.testing.assert_close(run.policy(micro_batch())[0], now)
    run.train()
    assert list(model.peft_config) == ["default", "default-reference"]
    assert not [p for p in tmp_path.rglob("*") if "reference" in p.name]


def test_adapters_that_change_the_base_at_the_start_get_a_twin():
    start = Policy(models.model("llama"))(micro_batch())[0].detach()
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights="pissa")
    run = make(models.model("llama"), peft_config=config)
    with run.policy.as_reference():
        torch.testing.assert_close(run.policy(micro_batch())[0], start, rtol=1e-4, atol=1e-4)


def test_a_stopped_run_goes_on_with_the_reference_that_it_had(tmp_path):
    def trainer(steps):
        return make(adapted(), output_dir=str(tmp_path / "run"), save_steps=2, max_steps=steps)

    whole = make(adapted(), max_steps=4)
    whole.train()
    trainer(2).train()
    resumed = trainer(4)
    resumed.train(resume_from_checkpoint=True)
    for name, parameter in trained(whole.policy).items():
        assert torch.equal(parameter, trained(resumed.policy)[name]), name


# ---- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("where", WHERE)
def test_the_folder_is_pefts_own(where, kind, tmp_path):
    base = models.model(kind)
    base.save_pretrained(tmp_path / "base")
    model = adapted(kind, where)
    model.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    expected = model(input_ids=IDS).logits
    copy.deepcopy(model).save_pretrained(tmp_path / "theirs")
    Policy(model).save(tmp_path / "ours")
    from safetensors.torch import load_file

    ours, theirs = (
        load_file(tmp_path / who / "adapter_model.safetensors") for who in ("ours", "theirs")
    )
    # PEFT also stores the frozen weight of an adapted lm_head or embedding, which is the model's
    assert ours.keys() <= theirs.keys()
    assert all("base_layer" in name for name in theirs.keys() - ours.keys())
    again = peft.PeftModel.from_pretrained(base, tmp_path / "ours").eval()
    torch.testing.assert_close(again(input_ids=IDS).logits, expected, rtol=1e-5, atol=1e-5)
    loaded = load_model(tmp_path / "ours").eval()
    scores = Policy(loaded)(micro_batch())[0]
    torch.testing.assert_close(scores, Policy(model)(micro_batch())[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("where", WHERE)
def test_merged_it_is_a_plain_model_with_the_same_logits(where, kind, tmp_path):
    from transformers import AutoModelForCausalLM

    model = adapted(kind, where)
    expected = model(input_ids=IDS).logits
    Policy(model)
    if where == "copy of the head":
        keep_reference(model)  # which must not be what is merged
    merged = merge_adapters(model)
    assert type(merged) is type(models.model(kind))
    torch.testing.assert_close(merged(input_ids=IDS).logits, expected, rtol=1e-5, atol=1e-5)
    merged.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(input_ids=IDS).logits, expected, rtol=1e-5, atol=1e-5)
    assert not [name for name in loaded.state_dict() if "lora" in name or "base_layer" in name]


def test_pefts_own_merge_works_after_training_on_an_untied_model():
    model = adapted()
    expected = model(input_ids=IDS).logits
    Policy(model)
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(input_ids=IDS).logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_command_writes_a_plain_folder(dtype, tmp_path, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rlkit.cli import main

    base = models.model("qwen3")
    base.save_pretrained(tmp_path / "base")
    models.tokenizer().save_pretrained(tmp_path / "base")
    config = peft.LoraConfig(r=2, target_modules=["lm_head", "q_proj"])
    run = make(load_model(tmp_path / "base"), peft_config=config, output_dir=str(tmp_path / "run"))
    run.train()
    run.policy.eval()
    flags = ["--model", str(tmp_path / "run"), "--out", str(tmp_path / "plain"), "--dtype", dtype]
    assert main(["merge", *flags]) == 0
    assert str(tmp_path / "plain") in capsys.readouterr().out
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval()
    assert loaded.dtype == getattr(torch, dtype)
    error = (loaded(input_ids=IDS).logits - run.policy.model(input_ids=IDS).logits).abs().max()
    assert error < (1e-5 if dtype == "float32" else 0.3)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "plain")) == len(models.tokenizer())
    assert main(["merge", *flags]) == 2 and "holds files already" in capsys.readouterr().err
    flags[1], flags[3] = str(tmp_path / "base"), str(tmp_path / "other")
    assert main(["merge", *flags]) == 2 and "no adapters to merge" in capsys.readouterr().err


# ---- refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(use_dora=True), "variant of LoRA .*leave lm_head out"),
        (
            dict(target_modules=["lm_head"], lora_bias=True, init_lora_weights=True),
            "variant of LoRA",
        ),
        (dict(ensure_weight_tying=True), "ensure_weight_tying=True.*False"),
        (dict(target_modules=["q_proj"], trainable_token_indices=[3]), "TrainableTokensWrapper"),
    ],
)
def test_what_the_head_does_not_know_is_refused(settings, words):
    with pytest.raises(ValueError, match=words) as caught:
        adapted("qwen3", "both ends", **settings)
    assert "\n" not in str(caught.value)


def test_other_tuners_on_the_head_are_refused():
    with pytest.raises(ValueError, match="ia3.*leave lm_head out"):
        add_adapters(
            models.model("llama"),
            peft.IA3Config(target_modules=["lm_head"], feedforward_modules=["lm_head"]),
        )


def test_dora_elsewhere_is_trained():
    compare(adapted(target_modules=["q_proj"], use_dora=True), "fused")


def test_biases_leave_no_reference():
    config = peft.LoraConfig(r=2, target_modules=["query_key_value"], bias="all")
    with pytest.raises(ValueError, match="bias='all'.*beta=0"):
        make(models.model("neox"), peft_config=config)
    with pytest.raises(ValueError, match="bias='all'.*beta=0"):
        make(adapted("llama", bias="all"))


def test_frozen_and_merged_adapters_are_refused():
    model = adapted()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="frozen.*is_trainable=True"):
        make(model)
    model = adapted()
    model.merge_adapter()
    with pytest.raises(ValueError, match="unmerge_adapter"):
        Policy(model)


def test_a_model_without_adapters_has_nothing_to_merge():
    with pytest.raises(ValueError, match="no adapters to merge"):
        merge_adapters(models.model("llama"))


@pytest.mark.parametrize("twin", [False, True])
def test_the_reference_lets_the_same_weights_train_and_gives_the_adapters_back(twin):
    model = adapted()
    if twin:
        keep_reference(model)
    frozen = model.get_base_model().lm_head.lora_A["default"].weight.requires_grad_(False)
    before = trained(model).keys()
    expected = model(input_ids=IDS).logits
    with as_reference(model):  # DDP looks here which weights train
        assert trained(model).keys() == before
    with pytest.raises(RuntimeError), as_reference(model):
        raise RuntimeError
    torch.testing.assert_close(model(input_ids=IDS).logits, expected)
    assert not frozen.requires_grad and trained(model).keys() == before
