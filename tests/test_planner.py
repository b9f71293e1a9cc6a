"""Plans against what steps really take, and against torch's own trackers."""

import dataclasses
import json
import os
from itertools import product
from pathlib import Path

import measured
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import rlkit
from rlkit.bench.copies import LARGE
from rlkit.cli import main
from rlkit.memory import (
    CARDS,
    SHIPPED,
    Moment,
    Plan,
    Planner,
    Timeline,
    cache,
    cards,
    step,
    worker,
)
from rlkit.memory.fake import Shapes, form
from rlkit.memory.planner import batch_step, largest_batch, plan, setting_of
from rlkit.memory.settings import Setting
from rlkit.memory.shapes import shape_of
from rlkit.memory.step import PlannedStep, model_of

LARGE_SIZES = dict(
    per_device_train_batch_size=2, num_generations=2, prompt_length=14, max_completion_length=4
)
MIXED = [
    (algorithm, head, lora, checkpointing)
    for (head, lora, checkpointing), algorithm in zip(
        product(("full", "chunked", "fused"), (None, 8), (False, True)),
        (
            "grpo",
            "rloo",
            "ppo",
            "grpo",
            "rloo",
            "grpo",
            "ppo",
            "rloo",
            "rloo",
            "grpo",
            "grpo",
            "ppo",
        ),
        strict=True,
    )
]
"""Every head x LoRA x checkpointing, each algorithm with each head and each value of the others."""


@pytest.fixture(scope="module")
def planner():
    with Planner(use_cache=False) as made:
        yield made


@pytest.fixture(autouse=True)
def no_cache_of_mine(tmp_path, monkeypatch):
    monkeypatch.setenv("RLKIT_CACHE", str(tmp_path))


def small(algorithm="grpo", **changes):
    sizes = measured.SMALL | dict(dtype="float32", device="cpu", tile_bytes=2**12)
    return setting_of("adder", algorithm, **(sizes | changes))


# ---- against steps on this CPU ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "head", "lora", "checkpointing"), MIXED)
def test_the_built_in_model_takes_what_was_planned(algorithm, head, lora, checkpointing, planner):
    asked = small(
        algorithm, head=head, lora_rank=lora, gradient_checkpointing=checkpointing, beta=0.05
    )
    found, real = planner.plan(asked), measured.measure(asked)
    assert found.peak == pytest.approx(real.peak, rel=0.01)  # and 0.03 was asked
    for name, amount in real.at_peak.by_category.items():
        assert found.at_peak.by_category.get(name, 0) == pytest.approx(amount, abs=real.peak / 100)
    assert found.at_peak.phase == real.at_peak.phase
    for phase, most in real.timeline.peaks().items():
        assert found.peak_by_phase[phase] == pytest.approx(most, rel=0.02), phase


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "head", "lora", "checkpointing"), MIXED)
def test_a_model_of_100_million_weights_takes_what_was_planned(
    algorithm, head, lora, checkpointing, planner
):
    asked = Setting(
        config=LARGE,
        name="large",
        algorithm=algorithm,
        head=head,
        lora_rank=lora,
        gradient_checkpointing=checkpointing,
        beta=0.05,
        dtype="float32",
        device="cpu",
        tile_bytes=2**20,
        **LARGE_SIZES,
    )
    found = planner.plan(asked)
    assert 90e6 < found.weights["policy"]["total"] < 115e6
    assert found.peak == pytest.approx(measured.measure(asked).peak, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        dict(head="fused", dtype="bf16"),
        dict(head="full", dtype="fp16"),
        dict(head="chunked", gradient_accumulation_steps=3),
        dict(algorithm="ppo", value_model="shared", num_iterations=2),
        dict(share_prefix=False, max_generation_batch=8),
        dict(algorithm="rloo", share_prefix=True, lora_rank=4),
    ],
    ids=str,
)
def test_other_settings_too(changes, planner):
    asked = small(**changes)
    assert planner.plan(asked).peak == pytest.approx(measured.measure(asked).peak, rel=0.01)


@pytest.mark.slow
def test_the_allocator_agrees_without_a_meter(planner):
    asked = small(head="chunked", beta=0.05)
    assert planner.plan(asked).peak == pytest.approx(measured.true_peak(asked), rel=0.01)


@pytest.mark.slow
def test_two_ranks_take_what_was_planned(planner):
    lora = dict(lora_rank=8, gradient_checkpointing=True)
    asked = [
        small("ppo", fsdp=2, head="fused"),
        small("rloo", fsdp=2, head="chunked", **lora),
        small("grpo", fsdp=2, head="full", reshard_after_forward=False),
    ]
    for setting, ranks in zip(asked, measured.on_ranks(asked), strict=True):
        found = planner.plan(setting)
        for real in ranks:
            assert found.peak == pytest.approx(max(real.values()), rel=0.02)  # 0.05 was asked
            for phase, most in real.items():
                assert found.peak_by_phase[phase] == pytest.approx(most, rel=0.05), phase


# ---- against torch's own account -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        dict(head="full", algorithm="rloo", gradient_checkpointing=True),
        dict(head="fused", fsdp=4),
    ],
    ids=str,
)
def test_torch_s_trackers_count_the_same(changes):
    name, config = shape_of("SmolLM2-135M")
    asked = Setting(
        config=config | dict(num_hidden_layers=4),
        name=name,
        prompt_length=64,
        max_completion_length=64,
        **changes,
    )
    found = worker.run(asked)
    assert found["peak"] == pytest.approx(by_trackers(asked), rel=0.01)
    weights = found["weights"]["policy"]["total"] * 4 / asked.fsdp  # the tied one once
    assert found["at_peak"]["by_category"]["param"] == pytest.approx(weights, rel=1e-3)


def by_trackers(asked):
    """The peak of the same update, by torch.distributed._tools."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker

    with worker.ranks(asked.fsdp), worker.few_rounds(), worker.code_paths(asked.device):
        planned = PlannedStep(asked)
        with planned.mode:
            planned.warm_up()
            rollout = planned.generate()
            rollout.rewards = torch.zeros(len(rollout))
            planned.trainer.judge(rollout)
            policy, adamw = planned.trainer.policy, planned.trainer.optimizer.adamw
            if asked.fsdp > 1:
                tracker = FSDPMemTracker(policy, adamw)
            else:
                tracker = MemTracker()
                tracker.track_external(*planned.models.values(), adamw)
            with tracker:
                planned.update(rollout)
    (found,) = tracker.get_tracker_snapshot("peak").values()
    return found["Total"]


# ---- what a plan leaves out changes nothing ---------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("head", "dtype"), [("chunked", "bf16"), ("fused", "float32")])
def test_three_tiles_stand_for_all(head, dtype, monkeypatch):
    asked = small(head=head, dtype=dtype, device="cuda", tile_bytes=2**12)
    few = worker.run(asked)
    monkeypatch.setattr(worker, "few_rounds", lambda: worker.ranks(1))
    every = worker.run(asked)
    assert few["peak"] == every["peak"]


QUICK = [
    dict(algorithm="ppo", head="full", dtype="bf16", reward_model=True),
    dict(head="fused", fsdp=2, lora_rank=4, frozen_dtype="bf16", gradient_checkpointing=True),
]


@pytest.mark.slow
@pytest.mark.parametrize("changes", QUICK, ids=str)
def test_quicker_fake_tensors_find_what_torch_s_do(changes, monkeypatch):
    asked, found = small(**changes), []
    monkeypatch.setattr(worker, "SAMPLES", 10**6)  # all: which are left out depends on the clock
    for mode in (crosschecked, FakeTensorMode):
        monkeypatch.setattr(step, "Shapes", mode)
        made = worker.run(asked)
        kinds, rows = [tuple(k) for k in made["timeline"]["kinds"]], made["timeline"]["rows"]
        made["timeline"] = [
            (phase, total, {k: n for k, n in zip(kinds, amounts, strict=False) if n})
            for _, phase, total, amounts in rows
        ]
        found.append({k: v for k, v in made.items() if k != "seconds"})
    assert found[0] == found[1]


def crosschecked():
    """Holds every result that it remembered against what torch makes of the operation now."""
    mode = Shapes()
    mode.cache_crosscheck_enabled = True
    return mode


def test_what_differs_in_one_attribute_has_another_key():
    mode = Shapes()
    with mode:
        base = torch.zeros(4, 6)
        others = [
            base.double(),
            torch.zeros(6, 4),
            torch.zeros(6, 4).t(),
            torch.zeros(30)[6:].view(4, 6),
            torch.zeros(30)[:24].view(4, 6),
            torch.zeros(4, 6, requires_grad=True),
            torch.zeros(4, 6, device="meta"),
        ]
    assert form(base) == form(mode.from_tensor(torch.zeros(4, 6)))
    assert len({form(base), *map(form, others)}) == 1 + len(others)


@pytest.mark.slow
def test_two_micro_batches_stand_for_all(planner):
    peaks = [planner.plan(small(gradient_accumulation_steps=n)).peak for n in (1, 2, 5)]
    assert peaks[0] < peaks[1]  # the second finds gradients there
    tokens = 16 * 44 * 64  # a rollout's own tensors, at most, for each further micro-batch
    assert 0 <= peaks[2] - peaks[1] <= 3 * tokens


# ---- what plans say --------------------------------------------------------------------------


@pytest.mark.slow
def test_switches_move_the_bytes_that_they_should(planner):
    def at(**changes):
        found = planner.plan(small(**(dict(head="full", tile_bytes=None) | changes)))
        return found, found.at_peak.by_category

    base, full = at()
    lora, adapted = at(lora_rank=4)
    assert adapted["optimizer"] < full["optimizer"] / 4
    assert at(gradient_checkpointing=True)[0].peak < base.peak
    assert at(dtype="pure_bf16")[1]["param"] == pytest.approx(full["param"] / 2, rel=1e-3)
    assert "optimizer" not in at(optimizer="sgd")[1]
    half = pytest.approx(full["optimizer"] / 2, rel=1e-3)
    assert at(optimizer="momentum")[1]["optimizer"] == half
    assert at(beta=0.1)[1]["reference"] == full["param"]
    assert "reference" not in at(beta=0.1, lora_rank=4)[1]  # adapters off
    assert at(beta=0.1, lora_rank=4, frozen_dtype="bf16")[1]["param"] < adapted["param"] * 0.6
    ppo = at(algorithm="ppo", reward_model=True)[1]
    assert ppo["value"] > 0 and ppo["reward"] > 0 and ppo["optimizer"] > 1.9 * full["optimizer"]
    assert lora.weights["policy"]["trained"] < base.weights["policy"]["trained"] / 4
    assert base.weights["policy"]["total"] * 4 <= full["param"]


@pytest.mark.slow
def test_ranks_share_weights_and_not_logits(planner):
    found = [planner.plan(small(fsdp=n, head="full")) for n in (1, 2, 64)]
    params = [p.at_peak.by_category["param"] for p in found]
    # a weight that 64 ranks cannot share evenly is padded on each
    assert [params[0] / p for p in params] == pytest.approx([1, 2, 64], rel=0.03)
    assert "all_gather" in found[1].at_peak.by_category
    activations = [p.at_peak.by_category["activation"] for p in found]
    assert max(activations) == pytest.approx(min(activations), rel=0.1)


def test_a_timeline_has_every_phase_and_the_peak(planner):
    found = planner.plan(small(beta=0.1))
    wanted = ["generate", "score", "forward", "backward", "step"]
    assert [p for p in dict.fromkeys(found.timeline.phases) if p in wanted] == wanted
    assert max(found.timeline.total) == found.peak == max(found.peak_by_phase.values())
    assert len(found.timeline) <= worker.SAMPLES
    assert sum(found.at_peak.by_category.values()) == found.peak
    again = json.loads(json.dumps(found.to_dict()))
    assert again["timeline"] == found.timeline.to_dict()


PUBLISHED = {
    "SmolLM2-135M": 134_515_008,
    "SmolLM2-360M": 361_821_120,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen2.5-0.5B": 494_032_768,
    "Llama-3.2-1B": 1_235_814_400,
    "Pythia-1B": 1_011_781_632,
    "Pythia-2.8B": 2_775_208_960,
    "Pythia-6.9B": 6_857_302_016,
    "Gemma-3-1B": 999_885_952,
}
"""Sources: data/models/README.md."""


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_shapes_have_the_published_number_of_weights(name):
    model = model_of(shape_of(name)[1])
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[name]
    assert shape_of(SHIPPED[name])[0] == name  # by its hub id too


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_qwen3_fits_the_time_and_the_memory_of_a_plan():
    """8 completions of 512 + 512 tokens, AdamW, float32 weights, bf16: alone and on 8 ranks.

    Processor time, with that of the imports: on a busy machine a clock says anything.
    """
    seconds, found = [], []
    for ranks in (1, 8):
        with Planner(use_cache=False) as fresh:
            found.append(fresh.plan(setting_of("Qwen3-0.6B", "grpo", fsdp=ranks)))
            process = Path(f"/proc/{fresh._process.pid}")
            status = process.joinpath("status").read_text()
            seconds.append(int(process.joinpath("stat").read_text().split()[13]) / ticks())
        most = int(status.split("VmHWM:")[1].split()[0]) * 1024
        assert most < 1.5e9
    assert seconds[0] < 15 and seconds[1] < 30  # a machine of its own needs half
    assert found[1].peak < 0.8 * found[0].peak
    assert found[0].at_peak.by_category["param"] == pytest.approx(596_049_920 * 4, rel=1e-4)


def ticks():
    """Of a process' clock, in a second."""
    return os.sysconf("SC_CLK_TCK")


# ---- the largest batch -----------------------------------------------------------------------


class Formula:
    """A planner whose peaks follow a formula of the batch."""

    def __init__(self, made, peak):
        self.made, self.peak, self.asked = made, peak, []

    def plan(self, setting):
        self.asked.append(setting.per_device_train_batch_size)
        return dataclasses.replace(self.made, peak=self.peak(self.asked[-1]))


@settings(deadline=None)  # the first call alone is slow
@given(
    st.integers(0, 10**6), st.integers(1, 10**4), st.integers(0, 40), st.integers(1, 10**9),
)  # fmt: skip
def test_the_search_finds_the_last_batch_that_fits(fixed, each, bend, room):
    made = Plan(small(), 0, Moment(0, {}, {}, "", "", "", ""), {}, {}, Timeline(), 0.0)
    formula = Formula(made, lambda batch: fixed + each * batch + bend * batch**2 // 7)
    text = dict(prompt_length=20, max_completion_length=24)
    batch, found = largest_batch("adder", memory=room, most=800, planner=formula, **text)
    fitting = [n for n in range(8, 801, 8) if formula.peak(n) <= room]
    assert batch == max(fitting, default=0)
    assert found is None or found.peak == formula.peak(batch) <= room
    assert len(formula.asked) == len(set(formula.asked)) <= 4 * 7


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 10**4), st.integers(1, 10**7))
def test_a_straight_line_takes_four_plans(fixed, each, room):
    at = Moment(0, {"param": fixed, "activation": 8 * each}, {}, "", "", "", "")
    made = Plan(small(), 0, at, {}, {}, Timeline(), 0.0)
    formula = Formula(made, lambda batch: fixed + each * batch)
    text = dict(prompt_length=20, max_completion_length=24, planner=formula)
    if fixed > room:
        with pytest.raises(ValueError, match="less than the weights"):
            largest_batch("adder", memory=room, **text)
        return
    batch, _ = largest_batch("adder", memory=room, most=10**8, **text)
    assert batch == (room - fixed) // each // 8 * 8
    assert len(formula.asked) <= 4


@pytest.mark.slow
def test_the_largest_batch_of_a_real_plan(planner):
    sizes = dict(prompt_length=20, max_completion_length=24, planner=planner)
    room = 60 * 2**20
    batch, found = largest_batch("adder", "grpo", memory=room, **sizes)
    assert batch > 8 and batch % 8 == 0 and found.peak <= room
    next_one = plan("adder", "grpo", per_device_train_batch_size=batch + 8, **sizes)
    assert next_one.peak > room


def test_four_micro_batches_may_share_a_group():
    asked = setting_of("adder", gradient_accumulation_steps=4, prompt_length=20, 
                       max_completion_length=24)  # fmt: skip
    assert batch_step(asked) == 2


def test_a_model_that_fits_without_a_batch(planner):
    text = dict(prompt_length=40, max_completion_length=80)
    none = largest_batch("adder", memory=12 * 2**20, planner=planner, **text)
    assert none == (0, None)
    with pytest.raises(ValueError, match=r"memory=1.0 MiB is less than the weights of adder"):
        largest_batch("adder", memory=2**20, planner=planner, **text)


# ---- the cache -------------------------------------------------------------------------------


def test_a_plan_is_read_from_disk_until_something_changes(planner, monkeypatch):
    answer, asked = planner.ask(small()), []
    one = Planner()
    monkeypatch.setattr(one, "ask", lambda setting: asked.append(setting) or answer)
    made = one.plan(small())
    assert one.plan(small()) == made and len(asked) == 1
    (kept,) = cache.folder().glob("*.json")
    for change in ("versions", "source"):
        with monkeypatch.context() as patch:
            patch.setattr(cache, change, lambda: "another")
            assert cache.load(cache.key(small().to_dict())) is None
    assert cache.load(cache.key(small(lora_rank=4).to_dict())) is None
    for broken in (kept.read_text()[:100], '{"peak": 3}', "[]"):
        kept.write_text(broken)
        assert one.plan(small()) == made
    assert len(asked) == 4
    monkeypatch.setattr(one, "use_cache", False)
    one.plan(small())
    assert len(asked) == 5


def test_a_disk_that_refuses_costs_nothing_but_time(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RLKIT_CACHE", str(tmp_path / "file"))
    cache.keep("name", {"peak": 3})
    assert cache.load("name") is None


def test_what_changes_the_source_changes_the_key(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("x = 1")
    monkeypatch.setattr(cache, "PACKAGE", tmp_path)
    digests = []
    for text in ("x = 1", "x = 2", "x = 1"):
        (tmp_path / "a.py").write_text(text)
        cache.source.cache_clear()
        digests.append(cache.source())
    cache.source.cache_clear()
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.slow
def test_a_planner_survives_what_it_refuses_and_its_own_death(planner):
    bad = dataclasses.replace(small(), config=small().config | dict(model_type="nothing"))
    with pytest.raises(ValueError, match="model_type='nothing'"):
        planner.plan(bad)
    assert planner.plan(small()).peak > 0
    planner._process.kill()
    planner._process.wait()
    assert planner.plan(small()).peak > 0  # by a new process


def test_a_planner_says_of_what_its_process_died(monkeypatch):
    program = ("-c", "import sys; sys.exit('no memory left')")
    monkeypatch.setattr("rlkit.memory.planner.PROGRAM", program)
    with Planner(use_cache=False) as dying, pytest.raises(RuntimeError, match="no memory left"):
        dying.plan(small())


# ---- bad input -------------------------------------------------------------------------------

BAD = [
    (dict(model="Qwen3-0.7B"), "model='Qwen3-0.7B' is unknown; did you mean 'Qwen3-1.7B'?.*Pythia"),
    (dict(algorithm="dpo"), "algorithm='dpo' is unknown; did you mean 'ppo'?"),
    (dict(head="fussed"), "head='fussed' is unknown; did you mean 'fused'?"),
    (dict(dtype="bf32"), "dtype='bf32' is unknown"),
    (dict(optimizer="adam"), "optimizer='adam' is unknown; did you mean 'adamw'?"),
    (dict(device="tpu"), "device='tpu' is unknown"),
    (dict(num_generations=3), "a rollout of 8 completions .* num_generations=3; use 6"),
    (dict(num_generations=1), "num_generations=1: grpo compares"),
    (dict(fsdp=0), "fsdp=0 must be a whole number of at least 1"),
    (dict(fsdp=65), "fsdp=65 is more than the 64 ranks"),
    (dict(lora_rank=0), "lora_rank=0 must be a whole number of at least 1"),
    (dict(prompt_length=1.5), "prompt_length=1.5 must be a whole number"),
    (dict(prompt_length=40900), "make 41412 tokens, but the context of Qwen3-0.6B holds 40960"),
    (dict(lora=3), "setting='lora' is unknown; did you mean 'lora_rank'?"),
    (dict(per_device_train_batch_size=0), "per_device_train_batch_size=0 must be"),
]


@pytest.mark.parametrize(("wrong", "sentence"), BAD, ids=lambda x: str(x)[:40])
def test_bad_input_is_one_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        plan(**(dict(model="Qwen3-0.6B") | wrong))
    assert "\n" not in str(caught.value)


def test_a_config_without_its_sizes_is_refused(tmp_path):
    config = dict(LARGE)
    del config["num_hidden_layers"], config["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="lacks vocab_size, num_hidden_layers$"):
        setting_of(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="no readable config.json"):
        setting_of(tmp_path)


def test_shapes_from_a_folder_a_file_and_a_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LARGE))
    for source in (tmp_path, tmp_path / "config.json", str(tmp_path)):
        assert shape_of(source)[1] == LARGE
    name, config = shape_of(model_of(LARGE))
    assert name == "LlamaForCausalLM" and config["hidden_size"] == 1024
    assert shape_of("qwen/qwen3-0.6b-base")[0] == "Qwen3-0.6B"
    with pytest.raises(ValueError, match="hub did not give its config"):
        shape_of("somebody/Qwen3-0.6B")  # the name of a shape, of another owner


def test_cards():
    assert cards.card_bytes("A100_80") == cards.card_bytes("a100-80") > 70 * 2**30
    assert cards.memory_bytes("1.5 GiB") == 3 * 2**29 and cards.memory_bytes("2GB") == 2 * 10**9
    assert cards.memory_bytes(10.0) == 10
    for wrong in ("t5", "GiB", "-3GiB", "0GiB", "", True):
        with pytest.raises(ValueError, match="device=.* is unknown"):
            cards.memory_bytes(wrong)
    with pytest.raises(ValueError, match="must be above 0"):
        cards.memory_bytes(0)
    assert [cards.readable(n) for n in (5, 2048, 3 * 2**20, 5 * 2**29)] == [
        "5 B",
        "2.0 KiB",
        "3.0 MiB",
        "2.50 GiB",
    ]


# ---- the command -----------------------------------------------------------------------------

ADDER = ["plan", "--model", "adder", "--prompt", "20", "--completion", "24", "--dtype", "float32"]


@pytest.mark.slow
def test_the_command_prints_a_table(capsys):
    assert main([*ADDER, "--batch", "16", "--fits", "t4"]) == 0
    out = capsys.readouterr().out
    found = plan("adder", prompt_length=20, max_completion_length=24, dtype="float32",
                 per_device_train_batch_size=16)  # fmt: skip
    (peak,) = [line for line in out.splitlines() if line.startswith("peak  ")]
    assert peak.split(maxsplit=1)[1] == cards.readable(found.peak)
    assert "planned, not measured: grpo on adder, 593,152 weights" in out
    assert "fits t4 (14.00 GiB for tensors after 1.00 GiB of reserve): yes" in out
    assert main([*ADDER, "--batch", "16", "--fits", "20MiB", "--largest-batch"]) == 1
    out = capsys.readouterr().out
    assert "fits 20MiB (20.0 MiB for tensors): no" in out
    assert out.endswith("largest batch that fits: 8\n")


@pytest.mark.slow
def test_the_command_compares_and_writes_json(capsys):
    assert main([*ADDER, "--json", "--compare", "head=full", "head=fused,lora=4"]) == 0
    first, second = json.loads(capsys.readouterr().out)["plans"]
    assert (first["setting"]["head"], second["setting"]["head"]) == ("full", "fused")
    assert second["setting"]["lora_rank"] == 4 and second["peak"] < first["peak"]
    assert main([*ADDER, "--compare", "head=full", "head=fused,lora=4"]) == 0
    table = capsys.readouterr().out.splitlines()
    (heads,) = [line for line in table if line.split() == ["head=full", "head=fused,lora=4"]]
    (change,) = [line for line in table if line.startswith("against the first")]
    assert change.split()[-1] == f"{second['peak'] / first['peak'] - 1:+.0%}"
    assert len(heads) == len(change)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--model", "gpt5"], "model='gpt5' is unknown"),
        (["--fits", "t5"], "device='t5' is unknown; did you mean 't4'?"),
        (["--group", "3"], "is not a multiple of num_generations=3; use 6"),
        (["--compare", "head"], "compare='head': 'head' must read name=value"),
        (["--compare", "hed=full"], "setting='hed' is unknown; did you mean 'head'?"),
        (["--largest-batch"], "largest_batch needs fits"),
    ],
)
def test_the_command_refuses_in_one_sentence(flags, sentence, capsys):
    assert main([*ADDER[:1], "--model", "adder", *ADDER[3:], *flags]) == 2
    told = capsys.readouterr().err
    assert told.startswith("rlkit: ") and sentence in told and len(told.splitlines()) == 1


def test_the_public_names():
    assert rlkit.plan is plan and rlkit.largest_batch is largest_batch
    assert set(CARDS) >= {"t4", "l4", "a10", "a100-40", "a100-80", "h100", "h200", "b200"}
