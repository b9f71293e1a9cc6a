"""The command line, in its own process and in this one."""

import csv
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import models
import pytest

from rlkit import GRPOConfig, GRPOTrainer, PPOConfig, RLOOConfig, cli
from rlkit.bench import learning

QUICK = ["--max-steps", "2", "--per-device-train-batch-size", "16", "--disable-tqdm"]


def run(capsys, *argv):
    code = cli.main(list(argv))
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "ppo"])
def test_train_then_eval(algorithm, tmp_path, capsys):
    folder = str(tmp_path / "run")
    code, out, _ = run(capsys, "train", algorithm, *QUICK, "--output-dir", folder, "--seed", "3")
    assert code == 0
    assert re.search(r"^before held-out accuracy: greedy 0\.\d{3}, sampled 0\.\d{3}$", out, re.M)
    printed = re.fullmatch(r"eval accuracy (\d\.\d{3})", out.splitlines()[-1])
    assert printed and (tmp_path / "run" / "model.safetensors").is_file()
    with (tmp_path / "run" / "log.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2
    code, out, _ = run(capsys, "eval", "--model", folder)
    assert code == 0 and out.splitlines()[-1] == printed[0]


@pytest.mark.parametrize("config", [GRPOConfig, RLOOConfig, PPOConfig])
def test_every_config_field_is_a_flag_with_its_meaning(config, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", config.name, "--help"])
    assert stop.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for field in fields(config):
        assert "--" + field.name.replace("_", "-") in shown, field.name
    for meaning in (
        "Peak learning rate of AdamW",
        "Completions of each prompt",
        "Keys the sampling",
    ):
        assert meaning in shown.replace("│ ", "").replace(" │", "")


def test_presets_are_the_defaults_of_the_flags():
    seen, args, resume = cli.parse_training(["grpo", "--task=steps", "--seed", "7"], GRPOConfig)
    assert (seen.task, args.seed, resume) == ("steps", 7, None)
    expected = GRPOConfig.preset("tiny", "steps")
    assert args.max_completion_length == expected.max_completion_length
    seen, args, _ = cli.parse_training(["rloo", "--preset", "t4"], RLOOConfig)
    assert seen == cli.STARTS["t4"] and seen.lora_rank == 16
    assert args.fp16 and args == RLOOConfig.preset("t4", "gsm8k")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["trian"], "did you mean 'train'"),
        (["train", "gpro"], "did you mean 'grpo'"),
        (["train", "grpo", "--preset", "t3"], "preset='t3' is unknown; did you mean 't4'"),
        (["train", "grpo", "--num-generations", "7"], "num_generations=7; use 511"),
        (["train", "grpo", "--loss-type", "dapoo"], "did you mean 'dapo'"),
        (["train", "grpo", "--model", "/no/such/place"], "there is no such folder"),
        (["train", "rloo", *QUICK, "--resume-from-checkpoint", "/none"], "holds no checkpoint"),
        (["eval", "--model", "adderr"], "there is no such folder"),
        (["bench", "trian"], "did you mean 'train'"),
    ],
)
def test_mistakes_get_one_sentence_and_no_traceback(argv, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *argv)
    assert code == 2 and says in err and "Traceback" not in err
    assert err.startswith("rlkit: ") and err.count("\n") == 1


def test_overview_names_every_command(capsys):
    code, out, _ = run(capsys)
    assert code == 0 and all(f"rlkit {name}" in out for name in cli.COMMANDS)


def test_module_and_doctor_run_in_a_process_of_their_own():
    done = subprocess.run(
        [sys.executable, "-m", "rlkit", "doctor"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "PyTorch" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for a child on Windows")
def test_ctrl_c_ends_after_the_step_and_keeps_the_model(tmp_path):
    command = [sys.executable, "-u", "-m", "rlkit", "train", "grpo", "--max-steps", "100000"]
    command += [*QUICK[2:], "--output-dir", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith("before") for line in lines)
        process.send_signal(signal.SIGINT)
        try:
            rest, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert "stopping after this step" in errors and "eval accuracy" in rest.splitlines()[-1]
    assert (tmp_path / "model.safetensors").is_file()


def test_gsm8k_with_adapters(tmp_path, capsys, monkeypatch):
    """The path of the larger presets, with the built-in problems' form and a small random model."""
    pytest.importorskip("peft")
    models.model("llama", max_position_embeddings=1024).save_pretrained(tmp_path / "model")
    models.tokenizer().save_pretrained(tmp_path / "model")
    monkeypatch.setenv("RLKIT_GSM8K", str(Path(__file__).parent / "gsm8k"))
    flags = ["--task", "gsm8k", "--model", str(tmp_path / "model"), "--lora-rank", "4"]
    flags += [
        "--eval-rows",
        "2",
        "--max-completion-length",
        "8",
        "--output-dir",
        str(tmp_path / "run"),
    ]
    code, out, err = run(capsys, "train", "rloo", "--preset", "cpu-real", *flags, *QUICK[:2])
    assert code == 0, err
    assert (tmp_path / "run" / "adapter_model.safetensors").is_file()
    header = (tmp_path / "run" / "log.csv").read_text().splitlines()[0]
    assert "reward/strict_reward" in header and "reward/lenient_reward" in header
    capsys.readouterr()
    saved = str(tmp_path / "run")
    code, out, err = run(capsys, "eval", "--model", saved, "--task", "gsm8k", "--rows", "2")
    assert code == 0, err
    assert re.search(r"^reward/lenient_reward \d\.\d{3}$", out, re.M)


def test_learning_bench_checks_its_bars(tmp_path, capsys):
    assert learning.reached("sums", (0.5, 0.4), (0.91, 0.8), 80)
    assert not learning.reached("sums", (0.5, 0.4), (0.89, 0.8), 80)
    assert not learning.reached("sums", (0.7, 0.4), (0.95, 0.8), 80)
    assert not learning.reached("sums", (0.5, 0.4), (0.95, 0.8), 91)
    assert learning.reached("steps", (0.8, 0.4), (0.9, 0.61), 200)
    assert not learning.reached("steps", (0.8, 0.4), (0.9, 0.59), 200)


def test_lora_on_the_head_is_a_flag():
    run, args, _ = cli.parse_training(["grpo", "--lora-rank", "4", "--lora-head"], GRPOConfig)
    trainer = cli.make_trainer(GRPOTrainer, run, args)
    trained = [name for name, p in trainer.policy.named_parameters() if p.requires_grad]
    assert len([name for name in trained if "lm_head.lora_" in name]) == 2
    plain = cli.lora(4)
    assert plain.target_modules == "all-linear" and cli.lora(0) is None
    every = {"down_proj", "gate_proj", "k_proj", "lm_head", "o_proj", "q_proj", "up_proj", "v_proj"}
    assert cli.lora(4, "adder").target_modules == every
    with pytest.raises(ValueError, match="lora_head=True needs adapters"):
        cli.lora(0, "adder")
