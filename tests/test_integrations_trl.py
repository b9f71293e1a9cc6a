"""TRL's trainers give the same with rlkit's head as with their own, from far fewer logits."""

import copy
import os
import socket
from datetime import timedelta

import dispatch
import models
import pytest
import torch
import torch.distributed as dist
from torch import nn

from rlkit.head import Head

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
peft = pytest.importorskip("peft")

from rlkit.integrations.trl import use_rlkit_head, use_trl_head  # noqa: E402

pytestmark = pytest.mark.slow  # all together

TRAINERS = {"grpo": (trl.GRPOConfig, trl.GRPOTrainer), "rloo": (trl.RLOOConfig, trl.RLOOTrainer)}
ROWS = [{"prompt": f"{a}{'+1' * (1 + a % 3)}="} for a in range(8)]
TIMES = ("step_time", "runtime", "per_second")


def spread(completions, **kwargs):
    """Differs between most completions, so that no group is dead."""
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The model on disk, from where TRL loads its reference."""
    path = tmp_path_factory.mktemp("model")
    models.model().save_pretrained(path)
    return path


def load(path):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path)


def make(model, tmp_path, kind="grpo", trainer_class=None, peft_config=None, **changes):
    """A trainer of TRL's. SGD, since AdamW would make much of rounding in tiny gradients."""
    config_class, known_class = TRAINERS[kind]
    settings = dict(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=6,
        temperature=0.9,
        learning_rate=0.3,
        lr_scheduler_type="constant",
        optim="sgd",
        seed=1,
    )
    return (trainer_class or known_class)(
        model=model,
        processing_class=models.tokenizer(),
        reward_funcs=spread,
        args=config_class(**(settings | changes)),
        train_dataset=datasets.Dataset.from_list(ROWS),
        eval_dataset=datasets.Dataset.from_list(ROWS[:4]),
        peft_config=peft_config,
    )


def lora(**changes):
    settings = dict(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return peft.LoraConfig(task_type="CAUSAL_LM", **(settings | changes))


def numbers(log):
    """The numbers of a log line that do not depend on the clock."""
    return {k: v for k, v in log.items() if not any(word in k for word in TIMES)}


def train_both(folder, tmp_path, **settings):
    """(rlkit's, TRL's): trainers after their steps, and the weights before."""
    runs = []
    for wrap in (use_rlkit_head, lambda trainer: trainer):
        torch.manual_seed(0)  # of the adapters
        trainer = wrap(make(load(folder), tmp_path, **settings))
        before = copy.deepcopy(trainer.model.state_dict())
        trainer.train()
        runs.append(trainer)
    return *runs, before


def assert_same_run(ours, theirs, before):
    """Weights and every logged number agree to 1e-5, and there was something to agree on."""
    assert len(ours.state.log_history) == len(theirs.state.log_history) > 3
    for mine, other in zip(ours.state.log_history, theirs.state.log_history, strict=True):
        assert numbers(mine) == pytest.approx(numbers(other), rel=1e-5, abs=1e-5)
    weights, expected = ours.model.state_dict(), theirs.model.state_dict()
    assert list(weights) == list(expected)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-5, msg=name)
    assert max((weights[k] - before[k]).abs().max() for k in weights) > 1e-3
    assert all(log["entropy"] > 0.1 for log in ours.state.log_history[:3])


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
@pytest.mark.parametrize("beta", [0.0, 0.2])
@pytest.mark.parametrize("adapters", [False, True])
def test_three_steps_agree(folder, tmp_path, kind, beta, adapters):
    settings = dict(kind=kind, beta=beta, peft_config=lora() if adapters else None)
    # the two micro-batches of a step have completions of their own lengths
    settings |= dict(per_device_train_batch_size=4, gradient_accumulation_steps=2)
    ours, theirs, before = train_both(folder, tmp_path, **settings)
    assert_same_run(ours, theirs, before)
    if beta:
        assert ours.state.log_history[2]["kl"] > 1e-4


@pytest.mark.parametrize(
    "settings",
    [
        dict(),
        dict(steps_per_generation=2, num_iterations=2),
        dict(top_entropy_quantile=0.4, loss_type="grpo", importance_sampling_level="sequence"),
        dict(entropy_coef=0.05, mask_truncated_completions=True),
        dict(peft_config=lora(modules_to_save=["lm_head"]), beta=0.2),
    ],
    ids=["plain", "old-logps", "entropy-quantile", "entropy-bonus", "head-copied-by-peft"],
)
def test_three_steps_agree_with(folder, tmp_path, settings):
    assert_same_run(*train_both(folder, tmp_path, **settings))


def test_evaluation_agrees(folder, tmp_path):
    ours, theirs = (make(load(folder), tmp_path, beta=0.2, seed=3) for _ in range(2))
    use_rlkit_head(ours)
    results = []
    for trainer in (ours, theirs):
        torch.manual_seed(0)
        results.append(numbers(trainer.evaluate()))
    assert results[0] == pytest.approx(results[1], rel=1e-5, abs=1e-5)
    assert results[0]["eval_entropy"] > 0.1


def test_under_autocast_the_logits_are_not_rounded(folder, tmp_path):
    """They are sums of products of bfloat16 numbers, as exact as float32 holds them."""
    ids = torch.randint(2, 15, (4, 9), generator=torch.Generator().manual_seed(0))
    trainer = use_rlkit_head(make(load(folder), tmp_path, bf16=True, temperature=1.0))
    logp, _, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids, torch.ones_like(ids), logits_to_keep=6
    )
    with torch.no_grad(), trainer.accelerator.autocast():
        hidden = trainer.model.base_model(ids).last_hidden_state[:, 2:-1]
    hidden, weight = (x.bfloat16().double() for x in (hidden, trainer.model.lm_head.weight))
    expected = (hidden @ weight.T).log_softmax(-1).gather(2, ids[:, 3:, None]).squeeze(2)
    torch.testing.assert_close(logp.double(), expected, rtol=0, atol=1e-5)


# ---- that it is used -----------------------------------------------------------------------


class Widest(dispatch.TorchDispatchMode):
    """The most elements of any float tensor with at least so many columns."""

    def __init__(self, columns):
        super().__init__()
        self.columns, self.elements = columns, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dim() > 1:
                if x.shape[-1] >= self.columns:
                    self.elements = max(self.elements, x.numel())
        return out


def first_batch(trainer):
    """What the first step trains on, with its completions. Dropout is off, as in evaluation."""
    trainer.model.eval()
    with torch.no_grad():
        return trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))


def test_during_the_loss_there_are_tiles_where_trl_has_logits(tmp_path):
    vocabulary, tile_bytes = 3_000, 40_000
    model = models.model(vocab_size=vocabulary)  # its backbone is at most 48 columns wide
    for wrap in (lambda trainer: trainer, lambda t: use_rlkit_head(t, tile_bytes=tile_bytes)):
        trainer = wrap(make(copy.deepcopy(model), tmp_path))
        batch, widest = first_batch(trainer), Widest(columns=49)
        with widest:
            trainer.compute_loss(trainer.model, batch).backward()
        if hasattr(trainer.model.lm_head, "tile_bytes"):
            assert 0 < widest.elements <= tile_bytes // 4
        else:
            assert widest.elements >= batch["completion_mask"].sum() * vocabulary


def test_only_completion_tokens_meet_the_vocabulary(folder, tmp_path):
    """And a hook that lm_head had before is still called."""
    model, rows = load(folder), []
    model.lm_head.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    trainer = use_rlkit_head(make(model, tmp_path))
    batch = first_batch(trainer)
    rows.clear()
    trainer.compute_loss(trainer.model, batch)
    mask = batch["completion_mask"]
    assert rows == [mask.sum()] and mask.sum() < mask.numel()


def test_a_batch_without_a_valid_token_gives_gradient_zero(folder, tmp_path):
    trainer = use_rlkit_head(make(load(folder), tmp_path))
    ids = torch.full((2, 5), 3)
    logp, entropy, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids, torch.zeros_like(ids), logits_to_keep=3, compute_entropy=True
    )
    (logp.sum() + entropy.sum()).backward()
    assert all((p.grad == 0).all() for p in trainer.model.parameters())


# ---- other heads -----------------------------------------------------------------------------


def biased(model):
    head = model.lm_head
    model.lm_head = nn.Linear(head.in_features, head.out_features)
    model.lm_head.weight = head.weight
    nn.init.normal_(model.lm_head.bias)
    return model


def scaled():
    """Cohere multiplies its logits, Granite divides them."""
    import transformers as hf

    config = hf.GraniteConfig(
        vocab_size=15, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, logits_scaling=0.2, pad_token_id=0,
        bos_token_id=None, eos_token_id=1,
    )  # fmt: skip
    return hf.GraniteForCausalLM(config).eval()


@pytest.mark.parametrize(
    "build",
    [
        lambda: models.model("gemma3", final_logit_softcapping=2.0),
        lambda: biased(models.model("llama", tie_word_embeddings=False)),
        lambda: models.model("neox"),
        scaled,
    ],
    ids=["softcap", "bias", "other-names", "scale"],
)
def test_log_probs_are_those_of_the_models_own_logits(build, tmp_path):
    model = build()
    ids = torch.randint(2, 15, (3, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = (model(ids).logits[:, 2:-1] / 0.7).log_softmax(-1)
        expected = expected.gather(2, ids[:, 3:, None]).squeeze(2)
        trainer = use_rlkit_head(make(model, tmp_path, temperature=0.7))
        logp, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, torch.ones_like(ids), logits_to_keep=5, batch_size=2
        )
    torch.testing.assert_close(logp, expected, rtol=0, atol=1e-5)
    assert expected.std() > 0.1


# ---- what stays as it was --------------------------------------------------------------------


def test_a_trained_model_is_saved_loaded_and_generates_as_ever(folder, tmp_path):
    from transformers import AutoModelForCausalLM

    model = load(folder)
    names = list(model.state_dict())
    trainer = use_rlkit_head(make(model, tmp_path))
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert list(model.state_dict()) == names == list(loaded.state_dict())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    torch.testing.assert_close(model(ids).logits, loaded(ids).logits, rtol=0, atol=0)
    settings = dict(max_new_tokens=5, do_sample=False, attention_mask=torch.ones_like(ids))
    assert torch.equal(model.generate(ids, **settings), loaded.generate(ids, **settings))


def test_adapters_are_saved_and_loaded(folder, tmp_path):
    trainer = use_rlkit_head(make(load(folder), tmp_path, peft_config=lora(), beta=0.2))
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    loaded = peft.PeftModel.from_pretrained(load(folder), tmp_path / "saved").eval()
    ids = torch.tensor([[3, 4, 5]])
    logits = trainer.model.eval()(ids).logits
    torch.testing.assert_close(logits, loaded(ids).logits, rtol=0, atol=1e-6)


def test_twice_does_no_more_than_once(folder, tmp_path):
    trainer = make(load(folder), tmp_path, beta=0.2)
    lms = [trainer.model, trainer.ref_model]
    heads, before = [lm.lm_head for lm in lms], [lm.forward for lm in lms]
    attributes = [set(vars(head)) for head in heads]
    assert use_rlkit_head(trainer) is trainer
    once = [lm.forward for lm in lms]
    assert use_rlkit_head(trainer, mode="full", tile_bytes=99) is trainer
    for lm, head, old in zip(lms, heads, once, strict=True):
        assert lm.lm_head is head and type(head) is Head
        assert (head.mode, head.tile_bytes) == ("full", 99)
        assert lm.forward.__func__.__code__ is old.__func__.__code__
    use_trl_head(use_trl_head(trainer))
    assert [lm.forward for lm in lms] == before
    assert [type(head) for head in heads] == [nn.Linear] * 2
    assert [set(vars(head)) for head in heads] == attributes


def test_switched_off_after_training_trl_scores_again(folder, tmp_path):
    """Accelerate wraps the forward under bf16, so that it can't be taken out any more."""
    trainer = use_rlkit_head(make(load(folder), tmp_path, bf16=True, max_steps=1))
    trainer.train()
    calls = []
    handle = trainer.model.lm_head.register_forward_hook(lambda *_: calls.append(1))
    ids = torch.full((2, 5), 3)
    inputs = (trainer.model, ids, torch.ones_like(ids), 3)
    before, _, _ = trainer._get_per_token_logps_and_entropies(*inputs)
    assert len(calls) == 1
    use_trl_head(trainer)
    after, _, _ = trainer._get_per_token_logps_and_entropies(*inputs)
    assert len(calls) == 1  # TRL reads the weight without calling lm_head
    handle.remove()
    torch.testing.assert_close(before, after, rtol=0, atol=0.1)


# ---- on two ranks ------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_train_alike_under_ddp_and_shard_the_head(folder, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(on_a_rank, (port, folder, tmp_path), nprocs=2)
    found = torch.load(tmp_path / "found.pt")
    assert found["wrapped"] == "DistributedDataParallel"
    assert found["weights"] < 1e-5 < 1e-3 < found["moved"]
    assert found["switched, then sharded"] < 1e-5 and found["sharded, then switched"] < 1e-5


def on_a_rank(rank, port, folder, tmp_path):
    """The largest differences of weights after DDP's steps, and of FSDP2's gradients (relative)."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    ours, theirs, before = train_both(folder, tmp_path, beta=0.2)
    weights, expected = ours.model.state_dict(), theirs.model.state_dict()
    found = dict(
        wrapped=type(ours.model_wrapped).__name__,
        weights=max(float((weights[k] - expected[k]).abs().max()) for k in weights),
        moved=max(float((weights[k] - before[k]).abs().max()) for k in weights),
    )
    whole = gradients(make(load(folder), tmp_path), slice(0, 4))
    for order in ("switched, then sharded", "sharded, then switched"):
        trainer = make(load(folder), tmp_path)
        if order.startswith("switched"):
            shard(use_rlkit_head(trainer).model)
        else:
            shard(trainer.model)  # as TRL does with a reference model
            use_rlkit_head(trainer)
        mine = gradients(trainer, slice(2 * rank, 2 * rank + 2))
        pairs = ((whole[k], 2 * mine[k].full_tensor()) for k in whole)  # FSDP took the mean
        found[order] = max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs)
    if rank == 0:
        torch.save(found, tmp_path / "found.pt")
    dist.destroy_process_group()


def shard(model):
    """The layers are units of their own, the tied head lies in the root."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)


def gradients(trainer, rows):
    """Of a sum over these of four rows."""
    ids = torch.randint(2, 15, (4, 9), generator=torch.Generator().manual_seed(0))[rows]
    logp, entropy, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids, torch.ones_like(ids), logits_to_keep=6, compute_entropy=True
    )
    (logp.sum() + entropy.square().sum()).backward()
    return {name: p.grad for name, p in trainer.model.named_parameters()}


# ---- refused -----------------------------------------------------------------------------------


def refused(trainer, *words, error=ValueError, **options):
    """One sentence with these words, and nothing has changed."""
    with pytest.raises(error) as caught:
        use_rlkit_head(trainer, **options)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message and len(message) < 200
    if isinstance(getattr(trainer, "model", None), nn.Module):
        assert not any(isinstance(module, Head) for module in trainer.model.modules())
        assert not hasattr(trainer, "_rlkit_head")


@pytest.mark.parametrize("setting", ["use_liger_kernel", "cast_lm_head_to_fp32"])
def test_settings_that_replace_the_head_are_refused(folder, tmp_path, setting):
    trainer = make(load(folder), tmp_path)
    setattr(trainer.args, setting, True)
    refused(trainer, f"{setting}=True", "off")


def test_other_trainers_are_refused(tmp_path):
    refused(nn.Linear(2, 2), "GRPOTrainer", "RLOOTrainer", "Linear", error=TypeError)


def test_a_trainer_with_a_scoring_method_of_its_own_is_refused(folder, tmp_path):
    class Own(trl.GRPOTrainer):
        def _get_per_token_logps_and_entropies(self, model, input_ids, *args, **kwargs):
            return model(input_ids).logits

    trainer = make(load(folder), tmp_path, trainer_class=Own)
    refused(trainer, "Own", trl.__version__, "TRL 1.16")


def test_an_unknown_mode_is_refused(folder, tmp_path):
    refused(make(load(folder), tmp_path), "chunked", mode="chunk")


def test_a_model_that_reads_images_is_refused(folder, tmp_path):
    trainer = make(load(folder), tmp_path)
    text_config = copy.deepcopy(trainer.model.config)
    trainer.model.config.get_text_config = lambda *args, **kwargs: text_config
    refused(trainer, "Qwen3ForCausalLM", "text")


def test_a_model_without_a_backbone_of_its_own_is_refused(folder, tmp_path):
    trainer = make(load(folder), tmp_path)
    trainer.model.base_model_prefix = ""
    refused(trainer, "Qwen3ForCausalLM", "backbone")


def test_an_output_head_that_is_no_plain_linear_layer_is_refused(folder, tmp_path):
    class Quantized(nn.Linear):
        pass

    trainer = make(load(folder), tmp_path)
    trainer.model.lm_head.__class__ = Quantized
    refused(trainer, "Quantized", "nn.Linear")
    trainer.model.lm_head.__class__ = nn.Linear
    trainer.model.lm_head.forward = lambda hidden: hidden
    refused(trainer, "forward", "one device")


def test_logits_that_rlkit_does_not_know_are_refused(folder, tmp_path):
    from transformers import Qwen3ForCausalLM

    class Sharpened(Qwen3ForCausalLM):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = out.logits * 1.5
            return out

    class Unreadable(Qwen3ForCausalLM):
        def forward(self, *args, must_be_given, **kwargs):
            return super().forward(*args, **kwargs)

    for kind in (Sharpened, Unreadable):
        trainer = make(kind.from_pretrained(folder), tmp_path)
        refused(trainer, kind.__name__, "after lm_head", "TRL's own head")


def test_the_loss_of_experts_is_refused(tmp_path):
    import transformers as hf

    config = hf.Qwen3MoeConfig(
        vocab_size=15, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=16, pad_token_id=0, eos_token_id=1,
        bos_token_id=None,
    )  # fmt: skip
    model = hf.Qwen3MoeForCausalLM(config)
    refused(make(model, tmp_path, router_aux_loss_coef=0.1), "router_aux_loss_coef=0.0")
    trainer = use_rlkit_head(make(model, tmp_path, router_aux_loss_coef=0.0))
    assert isinstance(trainer.model.lm_head, Head)
