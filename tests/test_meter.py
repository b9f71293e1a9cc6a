"""The meter against the allocator's own events, and against bytes counted by hand."""

import gc
import itertools
import threading
import time
import weakref
from types import SimpleNamespace

import measured
import models
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from rlkit import Meter
from rlkit.head import Head
from rlkit.memory import CATEGORIES, MEANING, Timeline, holding, phase
from rlkit.memory.device import Probe
from rlkit.memory.ledger import Ledger
from rlkit.memory.planner import setting_of
from rlkit.memory.timeline import Kind, Recorder, merged

FLOAT = 4
NUMBERS = 24
"""Bytes of the Python numbers that an operation may turn into tensors, unseen, while it runs."""


def setting(algorithm="grpo", **changes):
    sizes = measured.SMALL | dict(max_completion_length=6, tile_bytes=2**12)
    return setting_of("adder", algorithm, dtype="float32", device="cpu", **(sizes | changes))


# ---- against the allocator -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "ppo"])
@pytest.mark.parametrize("head", ["full", "fused"])
def test_every_total_is_the_allocator_s(algorithm, head):
    """Sample for sample, peak and end: a whole step of each algorithm."""
    gc.collect()
    trainer = measured.trainer_of(setting(algorithm, head=head, beta=0.05))
    measured.update_once(trainer)
    meter, before = Meter(trainer), 0

    def run(mark):
        nonlocal before
        trainer.step(0)
        with meter:
            meter.clear()
            before = meter.total
            mark()
            trainer.step(1)

    allocated = measured.after_mark(run)
    totals = [total - before for total in meter.timeline.total][2:]  # from the mark on
    assert max(totals) == max(allocated)
    assert totals[-1] == allocated[-1]
    assert len(totals) > 1000
    at = 0
    for total in totals:  # each is found, in this order
        at = next(i for i in range(at, len(allocated)) if 0 <= allocated[i] - total <= NUMBERS)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["full", "chunked", "fused"])
def test_a_meter_takes_no_memory_of_the_run_s(head):
    """The peak with a meter on is the allocator's without one."""
    asked = setting(head=head, beta=0.05)
    assert measured.measure(asked).peak == pytest.approx(measured.true_peak(asked), rel=2e-3)


@pytest.mark.slow
def test_categories_and_models_add_up_at_every_sample():
    found = measured.measure(setting("ppo", beta=0.05)).timeline
    for parts in (found.by_category, found.by_model):
        assert [sum(column) for column in zip(*parts.values(), strict=True)] == found.total
    assert set(found.by_category) <= set(CATEGORIES) and set(CATEGORIES) == set(MEANING)
    assert {"policy", "reference", "value"} <= set(found.by_model)


# ---- by hand ---------------------------------------------------------------------------------


class Net(nn.Module):
    """Two layers without bias, 8 -> 16 -> 4."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False)

    def forward(self, x):
        return self.last(self.first(x).tanh())


WEIGHTS = (8 * 16 + 16 * 4) * FLOAT


def test_a_step_counted_by_hand():
    net, x = Net(), torch.randn(32, 8)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    gc.collect()
    with Meter(net) as meter:
        before = meter.live
        loss = net(x).sum()
        forward = meter.live
        loss.backward()
        backward = meter.live
        optimizer.step()
        step = meter.live
        optimizer.zero_grad()
        assert "grad" not in meter.live
    assert before["param"] == WEIGHTS
    saved = 32 * 16 * FLOAT  # tanh keeps its result, which the next product needs too
    assert forward["param"] == WEIGHTS and forward["activation"] == saved
    assert backward["grad"] == WEIGHTS and "activation" not in backward
    moments = step["optimizer"] - before.get("optimizer", 0)
    assert moments == 2 * WEIGHTS + 2 * FLOAT  # and two counters
    assert forward["other"] == step["other"] == before["other"] >= x.numel() * FLOAT


def test_phases_without_a_mark():
    net, x = Net(), torch.randn(32, 8)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    with Meter(net) as meter:
        with torch.no_grad():
            net(x)
        for _ in range(2):
            loss = net(x).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    bands = [name for name, _, _ in meter.timeline.bands()]
    assert bands == ["other", "score", *["forward", "backward", "step"] * 2]


def test_models_and_layers_that_come_later():
    """A model made inside, and a layer put into it, are known from their first forward on."""
    with Meter() as meter:
        before = meter.live.get("param", 0)
        net = Net()
        net(torch.zeros(4, 8))
        assert meter.live["param"] - before == WEIGHTS
        net.last = nn.Sequential(net.last, nn.Linear(4, 4, bias=False))
        net(torch.zeros(4, 8)).sum().backward()
        assert meter.live["param"] - before == meter.live["grad"] == WEIGHTS + 4 * 4 * FLOAT
        assert meter.at_peak.by_model["Net"] > 0


def test_an_optimiser_s_step_by_itself():
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    with Meter(net) as meter:
        optimizer.step()
    found = meter.timeline
    assert [name for name, _, _ in found.bands()] == ["other", "step"]
    assert found.by_category["grad"][0] == WEIGHTS  # there before the meter was
    state = found.by_category["optimizer"]
    assert max(state) - state[0] == 2 * WEIGHTS + 2 * FLOAT
    assert max(found.by_category["temporary"]) < WEIGHTS  # moments are named when they are made


def test_phases_of_a_trainer_in_another_thread():
    """`train` enters the trainer's meter in the thread that it runs in."""
    trainer = measured.trainer_of(setting("rloo", max_completion_length=4))
    trainer.meter = Meter(trainer)
    thread = threading.Thread(target=trainer.train)
    steps = trainer.args.max_steps
    trainer.callbacks.append(lambda row: trainer.stop())
    thread.start()
    with Meter() as idle:
        thread.join()
    assert steps > 1 and len(trainer.history) == 1
    bands = [name for name, _, _ in trainer.meter.timeline.bands()]
    wanted = ["generate", "score", "forward", "backward", "step"]
    assert [b for b in dict.fromkeys(bands) if b in wanted] == wanted
    assert trainer.meter.timeline.by_category["kv_cache"]
    assert len(idle.timeline) < 5  # what another thread does is not this one's


def test_the_peak_says_where_it_was():
    class Hungry(nn.Module):
        def forward(self, x):
            return x[:, None] * x[None]  # the line that is to be found

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Hungry()

        def forward(self, x):
            return self.inner(x)

    line = Hungry.forward.__code__.co_firstlineno + 1
    with Meter(Outer()) as meter, torch.no_grad():
        Outer()(torch.zeros(500))
    at = meter.at_peak
    assert (at.op, at.module, at.phase) == ("aten.mul.Tensor", "Outer.inner", "score")
    assert at.line == f"tests/test_meter.py:{line} forward"
    assert at.bytes == meter.peak == sum(at.by_category.values()) == sum(at.by_model.values())
    assert at.by_category["temporary"] >= 500 * 500 * FLOAT


def test_a_peak_in_the_backward_pass_is_laid_to_its_module():
    class Square(nn.Module):
        def forward(self, x):
            return (x @ x.T).square().sum(1)  # backward makes two more of [400, 400]

    net = nn.Sequential(nn.Linear(4, 4), Square())
    with Meter(net) as meter:
        net(torch.randn(400, 4)).sum().backward()
    assert (meter.at_peak.phase, meter.at_peak.module) == ("backward", "policy.1")


def test_views_count_once_and_freed_storage_not_at_all():
    with Meter() as meter:
        before = meter.total
        x = torch.zeros(100, 10)
        views = [x[1:], x.T, x.view(-1), x.detach()]
        assert meter.total - before == 4000
        x.untyped_storage().resize_(0)  # as FSDP frees gathered weights
        assert meter.total == before
        x.untyped_storage().resize_(4000)
        assert meter.total - before == 4000
        del x
        assert meter.total - before == 4000
        del views
        assert meter.total == before


def test_fake_tensors_are_counted_by_their_own_meter_alone():
    """DTensor asks for shapes by running operations on fake tensors; they are no one's bytes."""
    real = torch.zeros(100)
    with Meter() as meter:
        before = meter.total
        with FakeTensorMode() as mode:
            fakes = [torch.zeros(1000), torch.ones(1000) * 2]
        assert meter.total == before
    with mode, Meter() as planning:
        assert planning.total == 2 * 4000  # and not `real`
        fakes.append(fakes[0] + 1)
        assert planning.total == 3 * 4000
    del real


# ---- categories ------------------------------------------------------------------------------


def test_logits_are_all_that_the_head_holds():
    torch.manual_seed(0)
    V, H, N = 1200, 16, 24
    head = Head(nn.Parameter(torch.randn(V, H)), mode="full")
    hidden, targets = torch.randn(N, H, requires_grad=True), torch.randint(V, (N,))
    holder = SimpleNamespace(get_output_embeddings=lambda: head)
    net = nn.ModuleDict({"lm_head": head})
    net.get_output_embeddings = holder.get_output_embeddings
    with Meter(net) as meter:
        head(hidden, targets)[0].sum().backward()
    most = {name: max(values) for name, values in meter.timeline.by_category.items()}
    logits = N * V * FLOAT
    # backward holds the log-softmax, the gradient of what was gathered, and the one to come
    assert 3 * logits <= most["logits"] < 3.2 * logits
    assert most["grad"] == V * H * FLOAT
    assert most["temporary"] + most.get("activation", 0) < logits / 4


def test_logits_of_a_model_without_rlkit_s_head():
    net = models.model("llama", vocab_size=2000)
    ids = torch.randint(2000, (2, 10))
    with Meter(net) as meter:
        net(input_ids=ids, labels=ids).loss.backward()
    most = {name: max(values) for name, values in meter.timeline.by_category.items()}
    assert most["logits"] >= 2 * 2 * 10 * 2000 * FLOAT
    assert most["activation"] + most["temporary"] < 2 * 10 * 2000 * FLOAT


def test_the_cache_of_a_generation():
    """Keys and values of 16 rows, 20 + 6 - 1 tokens, in every layer."""
    asked = setting()
    found = measured.measure(asked).timeline
    text = asked.config
    token = text["num_hidden_layers"] * 2 * text["num_key_value_heads"] * text["head_dim"] * FLOAT
    cache = max(found.by_category["kv_cache"])
    layer = 16 * 25 * token // text["num_hidden_layers"] // 2
    assert 16 * 25 * token <= cache <= 16 * 25 * token + layer
    phases = {p for p, b in zip(found.phases, found.by_category["kv_cache"], strict=True) if b}
    assert "generate" in phases and "forward" not in phases


def test_half_precision_copies_of_weights_are_named():
    net = Net()
    with Meter(net) as meter, torch.autocast("cpu", torch.bfloat16):
        loss = net(torch.randn(4, 8)).sum()
        assert meter.live["cast"] == WEIGHTS // 2
    del loss


def test_checkpointing_keeps_fewer_activations():
    layer = [nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
    layers = nn.ModuleList([nn.Sequential(*layer) for _ in range(6)])
    x = torch.randn(256, 64, requires_grad=True)

    hidden = x
    with Meter(layers) as plain:
        for layer in layers:
            hidden = layer(hidden)
        hidden.sum().backward()
    hidden = x
    with Meter(layers) as checkpointed:
        for layer in layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False)
        hidden.sum().backward()
    kept = [max(m.timeline.by_category["activation"]) for m in (plain, checkpointed)]
    one = 256 * 64 * FLOAT
    assert kept == [12 * one, 5 * one]  # what each tanh keeps; what each layer but the first is fed


def test_marks():
    with phase("generate"), holding("logits"):
        pass  # free where no meter is on
    with Meter() as meter, phase("generate"):
        with holding("kv_cache"):
            kept = torch.zeros(100)
        torch.zeros(1)
        assert meter.live["kv_cache"] == kept.numel() * FLOAT
    assert [name for name, _, _ in meter.timeline.bands()][:2] == ["other", "generate"]


# ---- what a meter leaves alone ---------------------------------------------------------------


@pytest.mark.slow
def test_a_meter_changes_no_bit():
    plain, metered = (measured.trainer_of(setting("ppo", beta=0.05)) for _ in range(2))
    plain.step(0), plain.step(1)
    with Meter(metered):
        metered.step(0), metered.step(1)
    pairs = zip(plain.policy.parameters(), metered.policy.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_meter_leaves_nothing_behind():
    trainer = measured.trainer_of(setting(beta=0.05, head="full"))
    hooks, resize = torch.nn.modules.module._global_forward_hooks, torch.UntypedStorage.resize_
    before = len(hooks)
    with Meter(trainer) as meter:
        assert torch.UntypedStorage.resize_ is not resize
        trainer.step(0)
    assert len(hooks) == before and torch.UntypedStorage.resize_ is resize
    assert not any(p._post_accumulate_grad_hooks for p in trainer.policy.parameters())
    gone = [weakref.ref(x) for x in (trainer.policy, trainer.reference, trainer.optimizer)]
    del trainer
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3  # though the meter is still here
    assert meter.peak > 0


def test_a_graph_that_nobody_walks_back_is_freed():
    """A result that is saved for its own gradient must not hold the graph that holds it."""
    x = torch.ones(1000, requires_grad=True)
    with Meter() as meter:
        before = meter.total
        y = x.exp()
        assert meter.live["activation"] == 4000
        del y
        assert meter.total == before


def test_an_error_inside_ends_the_meter():
    net = Net()
    meter = Meter(net)
    with pytest.raises(RuntimeError), meter:
        net(torch.zeros(3, 5))
    rows = len(meter.timeline)
    torch.zeros(10)
    assert len(meter.timeline) == rows and not meter.places.stack


def test_a_meter_can_be_entered_again():
    net = Net()
    meter = Meter(net)
    for _ in range(2):
        with meter:
            net(torch.zeros(4, 8)).sum().backward()
            assert meter.live["param"] == WEIGHTS
        net.zero_grad()


def test_a_source_without_models_is_refused():
    with pytest.raises(TypeError, match="holds no model"):
        Meter(SimpleNamespace(name="nothing"))


@pytest.mark.slow
def test_what_a_meter_costs():
    """Of torch's own dispatch to Python and the meter's, some ten microseconds an operation.

    A step of tiny tensors is the worst there is; interleaved, so that a busy machine slows both.
    """
    trainer = measured.trainer_of(setting())
    trainer.step(0)
    taken = {False: [], True: []}
    for number in range(1, 9):
        for metered in taken:
            start = time.process_time()
            if metered:
                with Meter(trainer) as meter:
                    start = time.process_time()
                    trainer.step(number)
            else:
                trainer.step(number)
            taken[metered].append(time.process_time() - start)
    assert len(meter.timeline) > 1000
    assert min(taken[True]) < 5 * min(taken[False])


# ---- the timeline ----------------------------------------------------------------------------

ROWS = st.lists(
    st.tuples(st.sampled_from(["forward", "backward", "step"]), st.integers(0, 1000)),
    min_size=1,
    max_size=300,
)


def as_rows(pairs):
    return [(float(i), name, total, (total,)) for i, (name, total) in enumerate(pairs)]


@given(ROWS, st.integers(2, 40))
def test_a_recorder_keeps_the_peak_and_little_else(pairs, most):
    recorder = Recorder(most)
    for row in as_rows(pairs):
        recorder.add(row)
    kept = recorder.all()
    assert len(kept) <= most + 1
    assert max(row[2] for row in kept) == max(total for _, total in pairs)
    assert [row[0] for row in kept] == sorted({row[0] for row in kept})


@given(ROWS, st.integers(1, 50))
def test_merging_keeps_each_phase_s_peak(pairs, size):
    rows = as_rows(pairs)
    kept = merged(rows, size)
    assert {r[1] for r in kept} == {r[1] for r in rows}
    for name, stretch in itertools.groupby(rows, key=lambda row: row[1]):
        top = max(stretch, key=lambda row: row[2])
        assert any(r[1] == name and r[2] == top[2] for r in kept)
    found = Timeline([Kind("param", "")], rows).thinned(20)
    assert max(found.total) == max(r[2] for r in rows)


def test_a_timeline_survives_json():
    kinds = [Kind("param", "policy"), Kind("param", "reference"), Kind("grad", "policy")]
    rows = [(0.0, "other", 3, (3,)), (0.5, "forward", 11, (3, 7, 1))]  # kinds come as they are met
    found = Timeline.from_dict(Timeline(kinds, rows).to_dict())
    assert found == Timeline(kinds, rows)
    assert found.by_category == {"param": [3, 3], "reference": [0, 7], "grad": [0, 1]}
    assert found.by_model == {"policy": [3, 4], "reference": [0, 7]}


# ---- on a GPU --------------------------------------------------------------------------------


def test_a_gpu_s_own_number_is_the_total():
    """What no tensor accounts for has a line of its own; here a probe that says what it is told."""

    class Told(Probe):
        def __init__(self):
            self.readings, self.said = [], 0

        def allocated(self):
            return self.said, 2 * self.said

        def used(self):
            return 3 * self.said

    ledger, probe = Ledger("cpu"), Told()
    x = torch.zeros(100)
    ledger.add(x, ledger.number(Kind("param", "policy")))
    for said in (512, 1024, 512):
        probe.said = said
        probe.settle(ledger, seconds=said)
        assert ledger.total == sum(ledger.amounts) == said
    assert ledger.amounts == [400, 112]
    assert probe.readings[0][1:] == (512, 1024, 1536)
    del x
    probe.settle(ledger, seconds=9)
    assert ledger.amounts == [0, 512]
