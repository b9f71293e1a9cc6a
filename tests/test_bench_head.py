"""`rlkit bench head` measures what it says, times no wrong answer, and holds its bars."""

import csv
import io
import shutil
import sys
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
import torch

from rlkit import cli
from rlkit.bench import contestants, head, measure, report
from rlkit.bench.report import Found
from rlkit.head import MODES

CPU = torch.device("cpu")
SMALL = ["--shape", "4096,32,64", "--repeats", "1"]
PACKAGES = {"TRL": "trl", "Liger": "liger_kernel"}


def bench(*argv):
    """(exit code, what was printed)"""
    with redirect_stdout(io.StringIO()) as out:
        code = cli.main(["bench", "head", *argv])
    return code, out.getvalue()


@pytest.fixture(scope="module")
def everyone(tmp_path_factory):
    """One run of all, and its CSV."""
    path = tmp_path_factory.mktemp("bench") / "new" / "head.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: None)  # Liger then compiles nothing
        code, shown = bench(*SMALL, "--out", str(path))
    with path.open(newline="") as file:
        return code, shown, list(csv.DictReader(file))


def line_of(shown, name):
    return next(line for line in shown.splitlines() if line.startswith(name))


def is_installed(package):
    return contestants.find_spec(package) is not None


# ---- a whole run ---------------------------------------------------------------------------


def test_everyone_is_timed_and_right(everyone):
    code, shown, rows = everyone
    assert code == 0, shown
    assert all(len(line) <= 100 for line in shown.splitlines())
    names = {row["contestant"] for row in rows}
    assert {
        "three bare products",
        *(f"rlkit {m}, torch" for m in ("full", "chunked", "fused")),
    } < names
    for name, package in PACKAGES.items():
        if is_installed(package):
            assert any(one.startswith(name) for one in names), name
        else:
            assert f"pip install {package}" in shown
    for row in rows:
        assert float(row["min_ms"]) <= float(row["median_ms"]) <= float(row["max_ms"])
        assert row["contestant"] in shown and row["wrong"] == "False" and row["rounds"] == "1"
        if row["contestant"] != "three bare products":
            assert float(row["gradient_error"]) < 1e-4 and float(row["loss_error"]) < 1e-5
            assert int(row["peak_bytes"]) > 4096 * 32 * 4  # d_weight at least


def test_the_csv_tells_the_setting(everyone):
    rows = everyone[2]
    setting = ("machine", "device", "threads", "torch", "dtype", "vocabulary", "hidden", "tokens")
    for row in rows:
        assert None not in row.values() and all(row[name] for name in setting)
        assert (row["device"], row["dtype"], row["tokens"]) == ("cpu", "float32", "64")
    halves = [row["contestant"] for row in rows if row["half_zero"] == "True"]
    assert halves == ["rlkit full, torch", "rlkit fused, torch"]


def test_full_logits_take_the_most_memory_of_ours(everyone):
    peaks = {
        r["contestant"]: int(r["peak_bytes"] or 0) for r in everyone[2] if r["half_zero"] == "False"
    }
    logits = 4 * 4096 * 64
    assert peaks["rlkit full, torch"] >= 3 * logits
    for mode in ("chunked", "fused"):
        assert peaks[f"rlkit {mode}, torch"] < 0.7 * peaks["rlkit full, torch"]


def test_a_frozen_weight_has_no_gradient_to_count(tmp_path):
    out = tmp_path / "head.csv"
    code, shown = bench(
        *SMALL, "--frozen", "--against", "none", "--no-half-zero", "--out", str(out)
    )
    assert code == 0 and "two bare products" in shown and "half of" not in shown
    with out.open() as file:
        floors = {int(row["floor_bytes"]) for row in csv.DictReader(file)}
    assert floors == {4 * 64 * 32 + 4 * 64 * 4096}


def test_half_precision_shows_whose_logits_are_rounded():
    pytest.importorskip("trl")
    code, shown = bench(*SMALL, "--dtype", "bf16", "--against", "trl", "--entropy")
    assert code == 0
    logp = {name: float(line_of(shown, name).split()[-3]) for name in ("rlkit fused", "TRL")}
    assert logp["rlkit fused"] < 1e-4 and logp["TRL"] > 1e-3


@pytest.mark.slow
def test_several_numbers_of_tokens_tell_whether_memory_is_flat(monkeypatch, tmp_path):
    monkeypatch.setitem(head.SHAPES, "bar", (65_536, 4, 512))
    argv = ["--tokens", "512", "1024", "--against", "none", "--out", str(tmp_path / "flat.csv")]
    code, shown = bench(*argv)
    assert code == 0, shown
    growth = {mode: float(line_of(shown, f"rlkit {mode}").split()[-1]) for mode in MODES}
    assert growth["full"] > 1.9 and max(growth["chunked"], growth["fused"]) < report.FLAT
    assert shown.count("yes") == 2 and "N=1,024" in shown


# ---- who is not timed ----------------------------------------------------------------------


def test_a_missing_peer_is_named_with_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    code, shown = bench(*SMALL, "--against", "trl, liger,cce")
    assert code == 0
    assert "not measured: TRL's head needs the package 'trl': pip install trl" in shown
    assert "pip install liger_kernel" in shown and "pip install cut-cross-entropy" in shown


def liar(name):
    """A contestant of this key whose gradients are a little too large."""
    honest = contestants.head_loss("full", "torch")
    run = contestants.trains(lambda *args: honest(*args) * 1.001)
    return contestants.Contestant(name, f"liar {name}", run)


def test_a_wrong_peer_is_not_timed(monkeypatch):
    monkeypatch.setitem(contestants.PEERS, "trl", lambda device: [liar("trl")])
    code, shown = bench(*SMALL, "--against", "trl")
    cells = line_of(shown, "liar trl").split()
    assert code == 0 and cells[2:6] == ["wrong", "-", "-", "-"] and float(cells[-1]) > 9e-4


def test_a_wrong_answer_of_ours_fails_the_bench(monkeypatch):
    monkeypatch.setattr(head, "ours", lambda device: ([liar("fused")], []))
    assert bench(*SMALL, "--against", "none")[0] == 1


def test_a_peer_that_fails_is_named(monkeypatch):
    def fails(problem, objective):
        raise AssertionError("only on Tuesdays\nand so on")

    broken = contestants.Contestant("trl", "broken", fails)
    monkeypatch.setitem(contestants.PEERS, "trl", lambda device: [broken])
    code, shown = bench(*SMALL, "--against", "trl")
    assert code == 0 and "not measured: broken: only on Tuesdays\n" in shown


def test_full_logits_that_do_not_fit_are_left_out(monkeypatch):
    monkeypatch.setattr(head, "memory", lambda: (2**20, 2**30))
    code, shown = bench(*SMALL, "--against", "none")
    assert code == 0 and "not measured: rlkit full, torch with N=64 needs about 0.0 GiB" in shown


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--shape", "qwen3-0.6"], "did you mean 'qwen3-0.6b'"),
        (["--shape", "4096,32"], "three numbers: V,H,N"),
        (["--shape", "4096,0,64"], "three numbers: V,H,N"),
        (["--dtype", "bf61"], "did you mean 'bf16'"),
        (["--device", "tpu"], "did you mean 'cpu'"),
        (["--against", "tlr"], "did you mean 'trl'"),
        (["--tokens", "1100"], "tokens=1100 must be a multiple of 256; use 1024"),
        (["--tokens", "64", "63"], "tokens=63 must be a multiple of 4; use 64"),
        (["--repeats", "0"], "repeats=0 must be a number of at least 1"),
        (["--out", "."], "out='.' is a folder; name a file in it"),
        (["--threads", "0"], "threads=0 must be a number of at least 1"),
    ],
)
def test_mistakes_get_one_sentence(argv, says, capsys):
    assert cli.main(["bench", "head", *argv]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


# ---- the bars, on made-up numbers ----------------------------------------------------------

GOOD = {
    "products": Found("three bare products", 1.0),
    "full": Found("full", 1.3, 768),
    "chunked": Found("chunked", 1.6, 190),
    "fused": Found("fused", 1.2, 200),
    "trl": Found("TRL", 3.6, 1186),
    "trl 8192": Found("TRL", 2.4, 394),
    "liger": Found("Liger", 1.8, 278),
    "full half": Found("full", 1.3, 768),
    "fused half": Found("fused", 0.8, 200),
}


def verdicts(found, floor=194):
    return {bar.text: bar.holds for bar in report.bars(found, floor)}


def test_bars_that_hold():
    assert len(verdicts(GOOD)) == 13 and all(verdicts(GOOD).values())


@pytest.mark.parametrize(
    ("key", "change", "missed"),
    [
        ("fused", dict(peak=243), {"floor"}),
        ("chunked", dict(peak=400), {"floor", "TRL's, 8,192 columns"}),
        ("chunked", dict(peak=475), {"floor", "TRL's, 8,192 columns", "TRL's, own tile"}),
        ("fused", dict(seconds=1.25), {"bare products"}),
        ("fused", dict(seconds=1.4), {"bare products", "full", "Liger's"}),
        ("trl 8192", dict(seconds=1.9), {"TRL's faster"}),
        ("liger", dict(seconds=1.5), {"Liger's"}),
        ("fused half", dict(seconds=1.05), {"full half"}),
        ("chunked", dict(seconds=1.85), {"full"}),
    ],
)
def test_bars_that_are_missed(key, change, missed):
    found = GOOD | {key: GOOD[key]._replace(**change)}
    failed = [text for text, holds in verdicts(found).items() if holds is False]
    assert {text.partition(" / ")[2] for text in failed} == missed


def test_a_bar_without_its_peer_is_neither_kept_nor_missed():
    alone = {key: found for key, found in GOOD.items() if key not in ("trl", "trl 8192", "liger")}
    assert list(verdicts(alone).values()).count(None) == 7
    assert False not in verdicts(alone).values()
    assert "not measured" in report.bar_lines(report.bars(alone, 194))


@pytest.mark.parametrize(("fused_seconds", "code"), [(1.0, 0), (9.0, 1)])
def test_a_missed_bar_fails_the_bench(fused_seconds, code, monkeypatch):
    monkeypatch.setitem(head.SHAPES, "bar", (4096, 32, 64))
    found = GOOD | {"fused": GOOD["fused"]._replace(seconds=fused_seconds)}
    made_up = report.bars(found, 194)
    monkeypatch.setattr(report, "bars", lambda found, floor: made_up)
    argv = ["--shape", "bar", "--repeats", "1", "--against", "none"]
    got, shown = bench(*argv)
    assert got == code and ("NO" in shown) == bool(code)
    assert bench(*argv, "--frozen")[0] == 0  # the bars are not for this setting


def test_flat_bars():
    kept, missed = {512: 100, 2048: 105}, {512: 100, 2048: 150}
    assert [b.holds for b in report.flat_bars(dict(fused=kept, chunked=missed), [512, 2048])] == [
        True,
        False,
    ]
    assert report.flat_bars(dict(fused=kept), [512, 8192])[0].holds is None


# ---- the instruments -----------------------------------------------------------------------


def test_rounds_take_turns_and_spare_the_slow(monkeypatch):
    taken = {"a": 1.0, "b": 2.0, "c": 11.0}
    order, said = [], []
    monkeypatch.setattr(measure, "seconds", lambda call, device: call())
    calls = [lambda name=name: (order.append(name), taken[name])[1] for name in taken]
    cleared = []
    after = [lambda name=name: cleared.append(name) for name in taken]
    found = measure.interleaved(calls, after, 3, CPU, said.append)
    assert found == [[1.0] * 3, [2.0] * 3, [11.0]]
    assert "".join(order) == "abc" + "bca" + "ab" + "ab" and cleared == order
    assert [text.partition(":")[0] for text in said] == [
        "warm-up round",
        *(f"round {i} of 3" for i in (1, 2, 3)),
    ]


def test_peaks_see_what_lives_only_inside():
    def call():
        first = torch.empty(2**18)  # 1 MiB
        del first
        return torch.empty(2**19), torch.ones(2**18).add_(1)

    assert 3 * 2**20 <= measure.peak_bytes(call, CPU) < 3 * 2**20 + 2**12


def test_targets_come_from_the_model_and_no_ratio_is_near_the_clip():
    weight = contestants.make_weight(512, 16, torch.float32, CPU, True)
    problem = contestants.solved(contestants.make_problem(weight, 64, entropy=False, half=True))
    logp_old = problem.batch["logp_old"].flatten()[problem.batch["index"]]
    assert (logp_old - problem.exact.logp).abs().max() <= contestants.NEAR + 1e-6
    # drawn from the softmax, not evenly: far more likely than a token picked at random
    uniform = (problem.hidden @ weight.T).detach().log_softmax(-1).mean()
    assert problem.exact.logp.mean() > uniform + 1
    assert problem.known["live"] == 32
    first_row = problem.batch["index"][:32] // 16
    assert set(first_row.tolist()) == {1, 3}  # those with an advantage come first


def test_errors_see_a_wrong_log_prob_and_a_wrong_gradient():
    weight = contestants.make_weight(512, 16, torch.float32, CPU, True)
    problem = contestants.solved(contestants.make_problem(weight, 64, entropy=False, half=False))
    honest = contestants.Contestant(
        "x", "x", contestants.trains(contestants.head_loss("fused", "torch"))
    )
    bound = contestants.TOLERANCES[torch.float32]
    assert contestants.errors(honest, problem).within(bound)
    assert problem.hidden.grad is None and weight.grad is None
    moved = replace(problem, targets=problem.targets.roll(1))
    found = contestants.errors(honest, moved)
    assert found.logp > 0.1 and found.gradient > 0.1 and not found.within(bound)
    assert not replace(found, logp=None, loss=float("nan"), gradient=0.0).within(bound)
