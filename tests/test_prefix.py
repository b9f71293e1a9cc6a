"""A prompt that is read once for several completions gives what it gives when read for each."""

import copy
import math
from functools import partial

import models
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from rlkit import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer, RLOOConfig, RLOOTrainer
from rlkit.adapters import add_adapters
from rlkit.objectives import GRPO, RLOO, Totals
from rlkit.optim import Optimizer
from rlkit.policy import Backbone, Policy, ValueModel
from rlkit.prefix import multiplications, share_rows
from rlkit.rollout import Rollout

V = 15
KINDS = pytest.mark.parametrize("kind", ["qwen3", "llama", "neox"])
TRAINERS = {
    "grpo": (GRPOTrainer, GRPOConfig),
    "rloo": (RLOOTrainer, RLOOConfig),
    "ppo": (PPOTrainer, PPOConfig),
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rollout(prompt_lengths, lengths, width=7, seed=0):
    """One completion for each of `lengths`; equal prompt lengths mean the same prompt."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(*shape):
        return torch.randint(2, V, shape, generator=generator)

    size, widest = len(lengths), max(prompt_lengths)
    texts = {n: tokens(n) for n in sorted(set(prompt_lengths))}
    prompt_ids = torch.zeros(size, widest, dtype=torch.int64)
    for row, n in enumerate(prompt_lengths):
        prompt_ids[row, widest - n :] = texts[n]
    prompt_mask = torch.arange(widest) >= widest - torch.tensor(prompt_lengths)[:, None]
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    rows = torch.randn(3, size, width, generator=generator) / 10
    return Rollout(
        prompt_ids,
        prompt_mask,
        torch.where(mask, tokens(size, width), 0),
        mask,
        torch.ones(size, dtype=torch.bool),
        advantages=torch.randn(size, generator=generator),
        # near the log-probs of a flat distribution, so that few ratios are clipped
        logp_old=rows[0] - math.log(V),
        logp_ref=rows[1] - math.log(V),
        values=rows[2],
    )


# three prompts, shuffled: five, three and one completion; two of them masked, two of one token
MIXED = rollout([4, 9, 4, 6, 9, 4, 4, 9, 4], [7, 1, 3, 5, 0, 1, 6, 4, 0])
LONG = rollout([5] * 12, [7] * 12)  # a row of all is longer than the models' context of 64


def forced(policy, batch):
    """The micro-batch with whatever can be shared."""
    policy.share_prefix = True
    shared = policy.share(batch)
    assert shared.shared is not None
    return shared


def gradients(policy, *arguments, **options):
    """(loss, gradients of all weights that train)."""
    policy.zero_grad()
    loss = policy(*arguments, **options)[0]
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in policy.parameters() if p.requires_grad]


def furthest(a, b):
    return max(float((x - y).detach().abs().max()) for x, y in zip(a, b, strict=True))


# --- the plan


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_token_sees_its_own_text_and_nothing_else(data):
    """Read back from the plan: what each state has seen is the prompt and the tokens before."""
    size = data.draw(st.integers(2, 12))
    prompt_lengths = data.draw(st.lists(st.integers(1, 4), min_size=size, max_size=size))
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    favoured = data.draw(st.integers(1, 8))  # the number of rows that costs least
    batch = rollout(prompt_lengths, lengths, width=5).rows(slice(None))
    shared = share_rows(
        batch.prompt_ids,
        batch.prompt_mask,
        batch.completion_ids,
        batch.mask,
        lambda rows, width: abs(rows - favoured),
        always=True,
    )
    alive = [n for n, length in zip(prompt_lengths, lengths, strict=True) if length]
    if len(alive) == len(set(alive)):
        assert shared is None
        return
    assert len(shared.states) == len(batch.index) == sum(lengths)
    width = shared.ids.size(1)
    for place, target in zip(shared.states.tolist(), batch.index.tolist(), strict=True):
        row, end = divmod(place, width)
        segments = shared.segments[row, : end + 1]
        seen = (segments == 0) | (segments == segments[-1])
        b, t = divmod(target, batch.mask.size(1))
        prompt = batch.prompt_ids[b][batch.prompt_mask[b]]
        text = torch.cat([prompt, batch.completion_ids[b, :t]])
        assert torch.equal(shared.ids[row, : end + 1][seen], text)
        assert shared.positions[row, : end + 1][seen].tolist() == list(range(len(text)))


def test_a_prompt_is_read_once_and_last_tokens_not_at_all():
    batch = rollout([6] * 4 + [3] * 4, [5, 4, 3, 2, 5, 5, 5, 5]).rows(slice(None))
    shared = share_rows(
        batch.prompt_ids, batch.prompt_mask, batch.completion_ids, batch.mask, lambda r, w: r
    )
    assert shared.ids.shape == (2, 3 + 4 * 4)
    assert (shared.segments == 0).sum() == 6 + 3
    assert (shared.segments > 0).sum() == (4 + 3 + 2 + 1) + 4 * 4


def test_short_completions_share_a_row_where_long_ones_take_two():
    """Four of 8 tokens and four of 1 (less the last): rows of 4 + 8 + 8, twice, and 5 + 4 x 1."""
    batch = rollout([4] * 4 + [5] * 4, [9] * 4 + [2] * 4, width=9).rows(slice(None))
    shared = share_rows(
        batch.prompt_ids, batch.prompt_mask, batch.completion_ids, batch.mask, lambda r, w: r * w
    )
    assert shared.ids.shape == (3, 20)
    assert sorted(shared.segments.amax(1).tolist()) == [2, 2, 4]


@pytest.mark.parametrize("lengths", [[3, 4, 2], [0, 0, 0, 0]])
def test_where_no_prompt_repeats_or_no_token_counts_rows_stay_separate(lengths):
    prompts = [2, 3, 4] if len(lengths) == 3 else [2, 2, 3, 3]
    policy = Policy(models.model(), share_prefix=True)
    assert policy.share(rollout(prompts, lengths).rows(slice(None))).shared is None


# --- exactness


@KINDS
@pytest.mark.parametrize("head", ["full", "chunked", "fused"])
@pytest.mark.parametrize("batch", [MIXED, LONG], ids=["mixed", "long"])
def test_loss_and_gradients_are_those_of_separate_rows(kind, head, batch):
    policy = Policy(models.model(kind), head=head, tile_bytes=15 * 4 * 8, temperature=0.7)
    batch = batch.rows(slice(None))
    for objective in (GRPO(beta=0.1, entropy_coef=0.01), RLOO()):
        one = gradients(policy, batch, objective)
        two = gradients(policy, forced(policy, batch), objective)
        assert abs(one[0] - two[0]) < 1e-6
        assert furthest(one[1], two[1]) < 2e-6 * max(1, furthest(one[1], [0 * g for g in one[1]]))


@KINDS
def test_scores_and_values_are_those_of_separate_rows(kind):
    policy = Policy(models.model(kind), with_values=True)
    torch.nn.init.normal_(policy.value_head.weight)
    batch = MIXED.rows(slice(None))
    one, two = policy(batch), policy(forced(policy, batch))
    assert len(one) == 3 and furthest(one, two) < 1e-5
    critic = ValueModel(models.model(kind, seed=1))
    torch.nn.init.normal_(critic.value_head.weight)
    assert (critic(batch) - critic(forced(policy, batch))).abs().max() < 1e-5


def test_eager_attention_reads_shared_rows_too():
    policy = Policy(models.model(attn_implementation="eager"))
    assert policy.backbone.config._attn_implementation == "eager"
    batch = MIXED.rows(slice(None))
    assert furthest(policy(batch), policy(forced(policy, batch))) < 1e-5


@KINDS
def test_generation_noted_the_same_log_probs(kind):
    run = make("grpo", model=models.model(kind), share_prefix=True, temperature=0.8)
    drawn = run.generate(run.prompts.pick(0, 4, 1), 0)
    run.policy.share_prefix = False
    separate = run.logp(drawn)
    run.policy.share_prefix = True
    for logp in (separate, drawn.logp_sampled.where(drawn.mask, 0)):
        torch.testing.assert_close(run.logp(drawn), logp, atol=1e-5, rtol=0)


def test_adapters_and_the_model_without_them_read_shared_rows():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    with torch.random.fork_rng(devices=[]):
        policy = Policy(add_adapters(models.model("llama"), config))
    batch = MIXED.rows(slice(None))
    one = gradients(policy, batch, GRPO(beta=0.1))
    two = gradients(policy, forced(policy, batch), GRPO(beta=0.1))
    assert furthest(one[1], two[1]) < 1e-5
    with policy.as_reference():
        assert furthest(policy(batch), policy(forced(policy, batch))) < 1e-5


# --- whole runs


def first_digit(completions, **kwargs):
    return [float(c[:1] in "24680") for c in completions]


def make(name="grpo", model=None, peft_config=None, **settings):
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
        adam_epsilon=1e-3,  # or Adam would blow rounding errors of tiny gradients up to full steps
    )
    rows = [{"prompt": f"{a}+{b}="} for a in (1, 12, 345) for b in (7, 89)]
    return trainer_class(
        models.model() if model is None else model,
        first_digit,
        config_class(**(sizes | settings)),
        rows,
        processing_class=models.tokenizer(),
        peft_config=peft_config,
    )


def counted(run):
    """The run's backbones note how many tokens they are fed."""
    run.fed = []
    backbones = [m.backbone for m in vars(run).values() if hasattr(m, "backbone")]
    for backbone in backbones:
        backbone.module.register_forward_pre_hook(
            lambda module, args, kwargs: run.fed.append(kwargs["input_ids"].numel()),
            with_kwargs=True,
        )
    return run


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize(
    "settings",
    [
        dict(),
        dict(beta=0.1, gradient_checkpointing=True, temperature=0.7),
        # minibatches of shuffled rows: 1 to 4 of each prompt
        dict(per_device_train_batch_size=4, steps_per_generation=4, max_steps=2, beta=0.1),
    ],
    ids=["plain", "reference", "minibatches"],
)
def test_training_is_that_of_separate_rows(name, settings):
    runs = [counted(make(name, share_prefix=share, **settings)) for share in (False, True)]
    for run in runs:
        run.train()
    separate, shared = ([p.detach() for p in run.policy.parameters()] for run in runs)
    assert furthest(separate, shared) < 1e-5
    assert [r["reward"] for r in runs[0].history] == [r["reward"] for r in runs[1].history]
    assert sum(runs[1].fed) < 0.8 * sum(runs[0].fed)


def test_a_run_with_adapters_a_reference_and_checkpointing():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules="all-linear")
    runs = [
        make(share_prefix=share, peft_config=config, beta=0.1, gradient_checkpointing=True)
        for share in (False, True)
    ]
    for run in runs:
        run.train()
    assert runs[1].history[-1]["kl"] == pytest.approx(runs[0].history[-1]["kl"], rel=1e-4)
    assert furthest(*([p.detach() for p in run.policy.parameters()] for run in runs)) < 1e-5


def test_under_autocast_it_differs_by_rounding_alone():
    batch = LONG.rows(slice(None))
    policy = Policy(models.model(), amp_dtype=torch.bfloat16)
    exact = Policy(models.model())(batch)[0]
    error = (policy(batch)[0] - exact).abs().mean()
    assert (policy(forced(policy, batch))[0] - exact).abs().mean() < 1.5 * error


# --- the step is fakeable


def test_the_step_reads_nothing_back():
    real = Policy(models.model(), share_prefix=True)
    batch = real.share(MIXED.rows(slice(None)))
    mode = FakeTensorMode()

    def fake(x):
        if isinstance(x, torch.Tensor):
            return mode.from_tensor(x)
        return type(x)(*map(fake, x)) if hasattr(x, "_fields") else x

    fakes = Rollout(**{name: fake(x) for name, x in vars(batch).items()})
    with mode:
        policy = Policy(models.model(), head="fused", tile_bytes=15 * 4 * 8)
        optimizer = Optimizer([policy], GRPOConfig(beta=0.1), 1)
        totals = Totals.of(fakes.mask)
        result = optimizer.step([fakes], lambda m: policy(m, GRPO(beta=0.1), totals))
        scores = policy(fakes)
    assert result["loss"].shape == () and scores[0].shape == batch.mask.shape


# --- where it is refused


def test_a_sliding_window_would_be_silently_wrong():
    """What the refusal protects from: everything runs, and the numbers are others."""
    policy = Policy(models.model("gemma3"))
    batch = MIXED.rows(slice(None))
    assert (policy(batch)[0] - policy(forced(policy, batch))[0]).abs().max() > 0.05


@pytest.mark.parametrize("name", TRAINERS)
def test_a_sliding_window_is_refused_at_the_door(name):
    says = "share_prefix=True: Gemma3TextModel has sliding-window attention.* share_prefix='auto'"
    with pytest.raises(ValueError, match=says):
        make(name, model=models.model("gemma3"), share_prefix=True)
    run = make(name, model=models.model("gemma3"))
    assert run.policy.share(LONG.rows(slice(None))).shared is None


def test_one_window_for_all_layers_is_refused_too():
    model = models.model("llama")
    model.config.sliding_window = 4
    with pytest.raises(ValueError, match="LlamaModel has sliding-window attention"):
        Policy(model, share_prefix=True)


def test_attention_without_a_mask_is_refused():
    model = copy.deepcopy(models.model())
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="share_prefix=True: attention 'flash_attention_2' takes"):
        Policy(model, share_prefix=True)
    assert Policy(model).share(LONG.rows(slice(None))).shared is None


def test_an_unknown_setting_is_refused():
    with pytest.raises(ValueError, match="share_prefix='atuo' is unknown; did you mean 'auto'"):
        GRPOConfig(share_prefix="atuo")


@pytest.mark.parametrize(("flag", "value"), [("True", True), ("False", False), ("auto", "auto")])
def test_it_is_a_flag(flag, value):
    from rlkit.cli import parse_training

    assert parse_training(["grpo", "--share-prefix", flag], GRPOConfig)[1].share_prefix == value
    assert parse_training(["grpo"], GRPOConfig)[1].share_prefix == "auto"


# --- where it pays


def qwen(hidden, inner, layers, heads, pairs, size):
    with torch.device("meta"):
        return models.model(
            hidden_size=hidden,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=pairs,
            head_dim=size,
        )


ADDER, SMALL, WIDE = (
    (128, 256, 4, 4, 2, 32),
    (256, 768, 2, 4, 2, 64),
    (1024, 3072, 1, 16, 8, 128),
)
MEASURED = [
    # model, prompt, completion, {completions to a row: time of a training step against 1 to a row}
    (ADDER, 7, 5, {2: 0.62, 4: 0.46, 8: 0.39, 16: 0.37}),
    (ADDER, 100, 20, {2: 0.57, 4: 0.37, 8: 0.30}),
    (ADDER, 100, 512, {2: 1.36, 4: 1.78, 8: 3.21}),
    (ADDER, 512, 256, {2: 0.76, 4: 0.72, 8: 0.87}),
    (SMALL, 7, 5, {2: 0.62, 4: 0.43, 8: 0.38, 16: 0.37}),
    (SMALL, 100, 20, {2: 0.56, 4: 0.37, 8: 0.28}),
    (SMALL, 100, 512, {2: 1.13, 4: 1.49, 8: 2.32}),
    (SMALL, 512, 256, {2: 0.70, 4: 0.63, 8: 0.70}),
    (WIDE, 7, 5, {2: 0.72, 4: 0.55, 8: 0.48, 16: 0.45}),
    (WIDE, 100, 20, {2: 0.57, 4: 0.36, 8: 0.28}),
    (WIDE, 100, 512, {2: 1.04, 4: 1.25, 8: 1.68}),
    (WIDE, 512, 256, {2: 0.68, 4: 0.57, 8: 0.58}),
]
"""On one CPU thread in float32, each line interleaved in one run."""


@pytest.mark.parametrize(("sizes", "prompt", "completion", "times"), MEASURED)
def test_auto_takes_what_was_measured_to_be_fastest(sizes, prompt, completion, times):
    group, policy = max(times), Policy(qwen(*sizes))
    batch = rollout([prompt] * group, [completion] * group, width=completion).rows(slice(None))
    shared = policy.share(batch).shared
    most = 1 if shared is None else int(shared.segments.max())
    times = times | {1: 1.0}
    assert times[most] <= 1.05 * min(times.values())
    # the count itself is not far from the clock, and never on its other side
    cost = partial(multiplications, policy.backbone)
    for rows, time in times.items():
        count = cost(group // rows, prompt + rows * (completion - 1))
        count /= cost(group, prompt + completion - 1)
        assert 0.8 < count / time < 1.25 and (count < 1) == (time < 1) or rows == 1


def test_auto_weighs_what_the_micro_batch_holds():
    """One prompt of eight that repeats is not worth rows as long as two completions."""
    policy = Policy(models.model())
    batch = rollout([10, 10, 3, 4, 5, 6, 7, 8], [7] * 8).rows(slice(None))
    assert policy.share(batch).shared is None
    assert policy.share(rollout([9] * 8, [7] * 8).rows(slice(None))).shared is not None


def test_what_is_counted_is_what_is_multiplied():
    """Against torch's own count, on rows where attention is a third of it."""
    from torch.utils.flop_counter import FlopCounterMode

    model = models.model(attn_implementation="eager")
    backbone, rows, width = Backbone(model), 3, 200
    ids = torch.zeros(rows, width, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone(ids, torch.ones_like(ids).bool(), ids)
    assert multiplications(backbone, rows, width) == pytest.approx(
        counter.get_total_flops() / 2, rel=0.03
    )
