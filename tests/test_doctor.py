"""The doctor, on machines that it is told about; it never fails for the lack of anything."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rlkit import doctor

T4 = doctor.Gpu("Tesla T4", 15_600_000_000, "7.5", bf16=False)
H100 = doctor.Gpu("NVIDIA H100 80GB", 85_000_000_000, "9.0", bf16=True)


def found(name: str) -> doctor.Check:
    return next(check for check in doctor.report() if check.name == name)


def machine(monkeypatch, card=None, free=16e9, total=16e9, cores=8):
    monkeypatch.setattr(doctor, "gpu", lambda: card)
    monkeypatch.setattr(doctor, "memory", lambda: (free, total))
    monkeypatch.setattr(doctor, "cores", lambda: cores)


def fake_torch(monkeypatch, cuda=None, **cuda_module):
    module = SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(**cuda_module),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False)),
    )
    monkeypatch.setattr(doctor, "torch", lambda: module)


@pytest.mark.parametrize(
    "card, dtype, fits",
    [
        (None, "float32", "tiny, cpu-real on this CPU (8 cores, float32)"),
        (T4, "float16 autocast with loss scaling", "tiny, cpu-real, t4 on Tesla T4 (float16"),
        (H100, "bfloat16 autocast", "tiny, cpu-real, t4, h100 on NVIDIA H100 80GB (bfloat16"),
    ],
)
def test_verdict_names_presets_place_and_dtype(monkeypatch, card, dtype, fits):
    machine(monkeypatch, card)
    assert doctor.verdict().startswith(f"ready: trains {fits}")
    assert found("dtype").found == dtype


def test_presets_follow_the_free_memory(monkeypatch):
    machine(monkeypatch, free=3.9e9)
    assert [check.ok for check in doctor.check_presets()] == [True, False, False, False]
    machine(monkeypatch, free=0.5e9)
    assert doctor.verdict() == "not ready: the tiny preset needs 1 GB of free memory"


def test_unknown_memory_stops_nothing(monkeypatch):
    machine(monkeypatch, free=0, total=0)
    assert found("memory").found == "unknown on this system"
    assert doctor.verdict().startswith("ready: trains tiny")


def test_gpu_asks_for_bf16_without_emulation(monkeypatch):
    asked = []
    card = SimpleNamespace(name="Tesla T4", total_memory=15_600_000_000, major=7, minor=5)
    fake_torch(
        monkeypatch,
        cuda="13.0",
        is_available=lambda: True,
        get_device_properties=lambda index: card,
        is_bf16_supported=lambda including_emulation: asked.append(including_emulation),
    )
    assert doctor.check_gpu().found == "Tesla T4, 16 GB, capability 7.5, no native bf16"
    assert asked == [False]


def test_cpu_build_beside_a_driver_is_named_with_the_remedy(monkeypatch):
    fake_torch(monkeypatch, is_available=lambda: False)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    check = doctor.check_torch()
    assert not check.ok and "force-reinstall torch" in check.remedy
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert doctor.check_torch().ok


def test_missing_packages_come_with_their_commands(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda package: "")
    assert found("peft").remedy == 'for LoRA: pip install "peft"'
    assert "jupyterlab, ipywidgets, anywidget, plotly" in found("notebooks").found
    assert found("notebooks").remedy == "python start.py setup"
    monkeypatch.setattr(doctor, "PACKAGE", doctor.PACKAGE / "elsewhere")
    assert found("notebooks").remedy == 'pip install "rlkit-lab[notebooks]"'


@pytest.mark.parametrize("system, ok", [("linux", False), ("darwin", True), ("win32", True)])
def test_triton_is_missed_only_where_it_has_wheels(monkeypatch, system, ok):
    monkeypatch.setattr(doctor, "installed", lambda package: "")
    monkeypatch.setattr(doctor.sys, "platform", system)
    assert doctor.check_triton().ok is ok


def test_a_missing_model_is_named_with_the_command_that_makes_it(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "data_path", lambda *parts: tmp_path.joinpath(*parts))
    assert doctor.verdict().startswith("not ready: the built-in model is missing; make it again")


def test_main_prints_the_verdict_first_and_never_fails(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "torch", lambda: None)
    assert doctor.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("not ready: PyTorch is missing; pip install")
    names = ["Python", "PyTorch", "Triton", "GPU", "memory", "cores", "disk", "dtype"]
    assert [line[4:].split()[0] for line in lines[1:] if line[4:5].strip()][: len(names)] == names


def test_memory_is_this_machine_s():
    free, total = doctor.memory()
    assert 0 < free <= total
    if doctor.memory_by_sysconf() != (0, 0):
        assert total <= doctor.memory_by_sysconf()[1]


def test_it_runs_where_only_python_is():
    """Without site-packages there is no torch and nothing else; the doctor still answers."""
    root = str(doctor.PACKAGE.parent)
    run = subprocess.run(
        [sys.executable, "-S", "-m", "rlkit.doctor"],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("not ready: PyTorch is missing")
