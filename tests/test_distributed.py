"""Several ranks: the numbers of one, and one voice.

Ranks are real processes that talk over gloo (tests/ranks.py). Two launches run all cases.
"""

import re
import socket
import subprocess
import sys
from itertools import product

import pytest
import ranks
import torch

pytestmark = pytest.mark.slow

SAME = [
    f"train:{algorithm}:{head}{lora}"
    for algorithm, head, lora in product(
        ("grpo", "rloo", "ppo"), ("full", "chunked", "fused"), ("", ":lora")
    )
]
"""Twenty steps each."""

MORE = [
    "train:grpo:full:short:ddp",
    "train:rloo:fused:short:ddp:lora",
    "train:ppo:chunked:short:ddp:minibatches",
    "train:grpo:fused:short:untied:beta:keep",
    "train:grpo:full:short:minibatches:reuse",
    "train:grpo:chunked:short:quantile",
    "train:grpo:full:short:checkpointing:lora:beta",
    "train:grpo:full:short:ddp:lora:beta",
    "train:rloo:fused:short:onhead",
    "train:grpo:chunked:short:onhead:came:beta",
    "train:grpo:full:short:ddp:untied:onhead:came:beta",
    "train:ppo:full:short:checkpointing:shared",
    "train:rloo:full:short:truncated:prefix",
    "train:grpo:full:short:batch",
    "train:grpo:full:short:dead:reuse",
    "train:grpo:full:short:accumulate:ddp",
    "train:rloo:fused:short:accumulate",
]
ALIKE = SAME + MORE + ["evaluate", "stop", "alone"]
"""Cases that one rank runs too."""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A folder with what one rank and two ranks found in every case."""
    out = tmp_path_factory.mktemp("ranks")
    with_files = [
        f"files:{out}/whole",
        f"files:{out}/lora:lora",
        f"not_finite:{out}/bad",
    ]
    two = [*ALIKE, "head_units", "half", "parts", "overflow", "refused", *with_files]
    started = [*ranks.start(1, ALIKE, out), *ranks.start(2, two, out)]
    ranks.finish(started, timeout=500)
    return out


OF_THE_ROWS_LEFT = ("entropy", "ratio", "clip_ratio", "clip_ratio/low", "clip_ratio/high")


def distance(a, b):
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def compare(out, case, tolerance):
    (one,), two = ranks.found(out, case, 1), ranks.found(out, case, 2)
    assert two[0]["history"] == two[1]["history"] and distance(*(r["weights"] for r in two)) == 0
    assert distance(one["weights"], two[0]["weights"]) < tolerance < 1e-3 < one["moved"]
    assert len(one["history"]) == len(two[0]["history"])
    for expected, row in zip(one["history"], two[0]["history"], strict=True):
        assert row.keys() == expected.keys()
        for name in ("reward", "reward_std", "completion_length", "truncated", "warnings"):
            assert row[name] == expected[name], (row["step"], name)
        # with a KL in the reward, rounding decides which advantages are 0 and which rows are left
        same_rows = row["dropped_rows"] == expected["dropped_rows"]
        assert same_rows or "rloo" in case
        for name, value in expected.items():
            if isinstance(value, float) and (same_rows or name not in OF_THE_ROWS_LEFT):
                assert row[name] == pytest.approx(value, abs=10 * tolerance), (row["step"], name)
    assert one["accuracy"] == two[0]["accuracy"] == two[1]["accuracy"]
    return one


# --- the numbers of one rank


@pytest.mark.parametrize("case", SAME)
def test_two_ranks_train_like_one(out, case):
    one = compare(out, case, 1e-5)
    assert len(one["history"]) == 20
    if "grpo" in case:  # steps of which one rank has no part, and some of which none has
        assert {12, 16} <= {row["dropped_rows"] for row in one["history"]}


@pytest.mark.parametrize("case", MORE)
def test_so_they_do_with_other_settings(out, case):
    compare(out, case, 1e-5)


def test_half_precision_is_as_exact_as_in_one_process(out):
    for found in ranks.found(out, "half", 2):
        assert found["None", "fsdp"] < 1e-6 > found["None", "ddp"]
        for dtype in ("torch.bfloat16", "torch.float16"):
            limit = found[dtype, "one"]
            assert 0 < limit < 0.05 and found[dtype, "ddp"] < 1.1 * limit
            assert found[dtype, "fsdp"] < 2 * limit  # the norms' weights are rounded too


def test_the_gradient_of_the_head_is_exact_wherever_it_lies(out):
    for found in ranks.found(out, "head_units", 2):
        assert len(found) == 12 and max(found.values()) < 5e-7, found


def test_each_rank_holds_its_part_of_every_model(out):
    (first, whole), (second, _) = ranks.found(out, "parts", 2)
    assert set(whole) == {"policy", "reference", "value_model", "moments"}
    for name, count in whole.items():
        assert first[name] + second[name] == count and first[name] < 0.52 * count, name


def test_evaluation_is_shared_and_the_same(out):
    (one,), two = ranks.found(out, "evaluate", 1), ranks.found(out, "evaluate", 2)
    assert one == two[0] == two[1]


def test_a_rank_can_decode_alone_where_the_weights_are_gathered(out):
    (one,), two = ranks.found(out, "alone", 1), ranks.found(out, "alone", 2)
    assert distance(one, two[0]) < 1e-5


# --- one voice, one will


def test_a_stop_on_one_rank_stops_all_after_the_same_step(out):
    assert ranks.found(out, "stop", 1) == [2] and ranks.found(out, "stop", 2) == [2, 2]


def test_a_loss_that_is_not_finite_on_one_rank_stops_all_and_spares_the_weights(out):
    for found in ranks.found(out, f"not_finite:{out}/bad", 2):
        assert "step 2, update 1: the loss or a gradient is not finite" in found["error"]
        assert str(out / "bad-0") in found["error"]
        assert distance(found["before"], found["after"]) == 0
    assert (out / "bad-0" / "not_finite_step_2.safetensors").is_file()
    assert not (out / "bad-1").exists()


def test_an_overflow_on_one_rank_skips_the_step_on_all(out):
    for found in ranks.found(out, "overflow", 2):
        assert found["overflows"] == [0, 1, 0] and found["scale"] == 2.0**15
        assert distance(*found["kept"][:2]) == 0 < distance(*found["kept"][1:])


@pytest.mark.parametrize("what", ["whole", "lora"])
def test_one_rank_writes_and_it_writes_the_whole_model(out, what):
    from safetensors.torch import load_file

    trained = ranks.found(out, f"files:{out}/{what}" + (":lora" * (what == "lora")), 2)[0]
    folder = out / f"{what}-0"
    assert not (out / f"{what}-1").exists()
    assert len((folder / "log.csv").read_text().splitlines()) == 3
    (file,) = folder.glob("*.safetensors")
    saved = {f"0.model.{name}": x for name, x in load_file(file).items()}
    if what == "lora":
        saved = {name.replace(".weight", ".default.weight"): x for name, x in saved.items()}
    assert saved and all(torch.equal(x, trained[name]) for name, x in saved.items())
    missing = {n for n in trained.keys() - saved.keys() if what == "whole" or "lora" in n}
    assert missing <= {"0.model.lm_head.weight"}  # tied to the embedding


def test_ranks_that_do_not_fit_together_are_refused(out):
    for said in ranks.found(out, "refused", 2):
        seed, data, model, groups = said
        assert seed == "rank 0 has seed=0 but rank 1 has 1; start every rank alike"
        assert "a checksum of train_dataset" in data and "a checksum of the model" in model
        assert "a rollout of 6 completions" in groups and "use 4" in groups


# --- a job that fails


@pytest.mark.parametrize(
    "how, says",
    [
        ("raises", "rlkit: rank 1: reward function 'reward' raised ValueError: no such answer"),
        (
            "is killed",
            "rlkit: rank 0: lost rank 1 (last seen in step 2, scoring), which",
        ),
        (
            "hangs",
            "waited 4 s (ddp_timeout) for rank 1 (last seen in step 2, scoring), which",
        ),
    ],
)
def test_a_rank_that_fails_ends_the_job_with_one_sentence(how, says, tmp_path, monkeypatch):
    monkeypatch.setenv("RLKIT_TEST_OUT", str(tmp_path / "run"))
    processes = ranks.start(2, [f"fail:{how}"], tmp_path)
    try:
        first = processes[0 if how != "raises" else 1]
        spoken = first.communicate(timeout=120)[0]
        others = [p for p in processes if p is not first]
        if how != "hangs":
            spoken += "".join(p.communicate(timeout=60)[0] for p in others)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert first.returncode == 2
    assert says in spoken and spoken.count("rlkit: rank") == 1 and "Traceback" not in spoken


def torchrun(arguments: list[str], timeout: float = 240) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


TRAIN = "-m rlkit train grpo --max-steps 2 --per-device-train-batch-size 16 --eval-rows 8".split()


def test_torchrun_trains_with_the_same_flags(tmp_path):
    run = torchrun(["--nproc-per-node", "2", *TRAIN, "--output-dir", str(tmp_path / "run")])
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("eval accuracy") == 1 and ", 2 ranks (fsdp)" in run.stdout
    assert len((tmp_path / "run" / "log.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "how, cause, says",
    [
        ("raises", "rlkit: rank 1: reward function 'reward' raised ValueError: no such answer", ""),
        ("is killed", "Signal 9 (SIGKILL)", "rlkit: rank 0: lost rank 1 (last seen in step 2"),
    ],
)
def test_torchrun_repeats_the_sentence(how, cause, says, tmp_path, monkeypatch):
    monkeypatch.setenv("RLKIT_TEST_OUT", str(tmp_path / "run"))
    run = torchrun(["--nproc-per-node", "2", ranks.__file__, str(tmp_path), f"fail:{how}"])
    assert run.returncode != 0 and f"traceback : {cause}" in run.stderr
    spoken = [line for line in run.stderr.splitlines() if line.startswith("rlkit: rank")]
    assert len(spoken) == 1 and says in spoken[0]
    assert not [p.name for p in (tmp_path / "run").iterdir() if p.name.startswith(".")]


def test_torchrun_goes_on_from_the_last_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("RLKIT_TEST_OUT", str(tmp_path / "run"))
    job = [ranks.__file__, str(tmp_path), "fail:is killed once"]
    run = torchrun(["--nproc-per-node", "2", "--max-restarts", "1", *job])
    assert run.returncode == 0, run.stderr
    assert "lost rank 1" in run.stderr and "model and log.csv in" in run.stdout
    assert len((tmp_path / "run" / "log.csv").read_text().splitlines()) == 4


def test_a_port_in_use_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("RLKIT_TEST_OUT", str(tmp_path / "run"))
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        (first, second) = ranks.start(2, ["fail:raises"], tmp_path, port=port)
        try:
            spoken = first.communicate(timeout=60)[0]
        finally:
            for process in (first, second):
                process.kill()
                process.wait()
    assert first.returncode == 2 and "Traceback" not in spoken
    assert f"rlkit: rank 0: port {port} is in use" in spoken


# --- four ranks

FOUR = "-m rlkit train grpo --per-device-train-batch-size 128 --eval-rows 512 --disable-tqdm"


@pytest.mark.parametrize("machines", [1, 2])
def test_four_ranks_learn_to_add(machines, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    where += ["--nnodes", str(machines), "--nproc-per-node", str(4 // machines)]
    program = [*FOUR.split(), "--output-dir", str(tmp_path / "run")]
    command = [sys.executable, "-m", "torch.distributed.run", *where]
    started = [
        subprocess.Popen(
            [*command, "--node-rank", str(node), *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(machines)
    ]
    said = ranks.finish(started, timeout=900)
    (accuracy,) = re.findall(r"eval accuracy ([\d.]+)", said)
    assert float(accuracy) >= 0.9
