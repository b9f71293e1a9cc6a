"""What tests run on several ranks: `start` starts this file, and each rank tells what it found.

One launch takes seconds to import torch, so many cases share one; the same cases on one rank, in a
process group of nobody, say what is right.
"""

import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import torch

CASES = {}
"""Name -> a function that returns what a rank found, for torch.save."""


def case(function):
    CASES[function.__name__] = function
    return function


# --- the test's side


def start(ranks: int, cases: list[str], out: Path) -> list[subprocess.Popen]:
    """Starts so many ranks (1: no process group), each of which runs the cases."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(ranks):
        where = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank))
        where |= dict(RANK=str(rank), WORLD_SIZE=str(ranks))
        command = [sys.executable, __file__, str(out), *cases]
        processes.append(
            subprocess.Popen(
                command,
                env=os.environ | where,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return processes


def finish(processes: list[subprocess.Popen], timeout: float) -> None:
    """Waits for all; raises with their output if one fails."""
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    codes = [process.returncode for process in processes]
    assert not any(codes), f"exit codes {codes}\n" + "\n".join(outputs)


def found(out: Path, name: str, ranks: int) -> list:
    """What each rank found in a case."""
    return [torch.load(out / f"{name}.{ranks}.{rank}.pt") for rank in range(ranks)]


# --- a rank's side


def main(out: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    rank, size = (os.environ[key] for key in ("RANK", "WORLD_SIZE"))
    for name in names:
        function, *arguments = name.split("/")
        result = CASES[function](*arguments)
        torch.save(result, Path(out) / f"{name.replace('/', '-')}.{size}.{rank}.pt")


ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in (1, 12, 345) for b in (7, 89)]


def first_digit(prompts, completions, trainer_state, **kwargs):
    """Half the answers earn something; in every third step only those to one of the prompts do."""
    rewards = [float(c[:1] in "24680") for c in completions]
    if trainer_state.global_step % 3 == 2:
        rewards = [r * (p == "12+7=") for r, p in zip(rewards, prompts, strict=True)]
    return rewards


def make(algorithm, kind="qwen3", lora=False, seed=1, rows=ROWS, reward=first_digit, **settings):
    """A trainer of 16 completions a step, on however many ranks there are."""
    import models

    import rlkit

    classes = {"grpo": "GRPO", "rloo": "RLOO", "ppo": "PPO"}
    trainer_class, config_class = (
        getattr(rlkit, classes[algorithm] + end) for end in ("Trainer", "Config")
    )
    sizes = dict(
        per_device_train_batch_size=16 // int(os.environ["WORLD_SIZE"]),
        num_generations=4,
        max_completion_length=6,
        learning_rate=3e-3,
        adam_epsilon=1e-3,
        max_steps=20,
        disable_tqdm=True,
        seed=seed,
        tile_bytes=1024,
    )
    peft_config = None
    if lora:
        import peft

        peft_config = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    return trainer_class(
        models.model(kind),
        reward,
        config_class(**(sizes | settings)),
        rows,
        eval_dataset=ROWS,
        processing_class=models.tokenizer(),
        peft_config=peft_config,
    )


def whole(x):
    """A weight or gradient as one process would hold it."""
    return (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().clone()


def weights(trainer):
    modules = enumerate(trainer.trained_modules())
    return {f"{i}.{n}": whole(p) for i, m in modules for n, p in m.named_parameters()}


SETTINGS = {
    "lora": dict(lora=True),
    "ddp": dict(distributed="ddp"),
    "keep": dict(reshard_after_forward=False),
    "beta": dict(beta=0.1),
    "reuse": dict(num_iterations=2),
    "untied": dict(kind="llama"),
}


@case
def train(algorithm, head, *words):
    """Twenty steps."""
    settings = {}
    for word in words:
        settings |= SETTINGS[word]
    trainer = make(algorithm, head=head, **settings)
    history = trainer.train()
    timeless = [{k: v for k, v in row.items() if "seconds" not in k} for row in history]
    return dict(
        weights=weights(trainer),
        history=timeless,
        seconds=[row["seconds"] for row in history],
        accuracy=trainer.evaluate(),
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2:])
    except Exception:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)  # without waiting for ranks that wait for this one
