"""One GRPO step, rlkit's and TRL's, in turn within one process:

    rlkit bench train [--steps 20] [--seeds 1 2 3] [--threads 1] [--task sums] [--out FILE.csv]

Same model, prompts, group size, tokens and optimiser; TRL's gradient checkpointing and bf16 are
off. Each of TRL's steps is followed by one of ours, so that a busy machine slows both alike.
Medians, and the ratio of the medians; the rewards beside them, since a step that learns less is
no faster. Both are warmed up by two steps that are not counted.
"""

import csv
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from rlkit.optional import require

WARM_UP = 2
BAR = 0.55
"""The largest share of TRL's time that a step may take."""


@dataclass(frozen=True)
class Flags:
    """One GRPO step, rlkit's and TRL's, in turn."""

    steps: int = 20
    """Steps of each seed that count, after two that warm up."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Runs of both; their mean rewards tell whether the two learn alike."""
    threads: int = 1
    """CPU threads of torch, for both."""
    task: Literal["sums", "steps"] = "sums"
    """What is trained."""
    model: str = "adder"
    """A built-in name, a folder or a hub id."""
    head: Literal["auto", "full", "chunked", "fused"] = "auto"
    """Ours; TRL's is its default."""
    out: Path | None = None
    """Where to write the times as CSV."""


def main(argv: list[str]) -> int:
    """Prints the medians and their ratio; returns 1 if the ratio is above BAR."""
    import tyro

    flags = tyro.cli(Flags, args=argv, prog="rlkit bench train")
    require("trl", "rlkit bench train")
    rows = [row for seed in flags.seeds for row in measure(flags, seed)[WARM_UP:]]
    if flags.out is not None:
        with flags.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    print(summary(flags, rows))
    return int(ratio(rows) > BAR)


def measure(flags: Flags, seed: int) -> list[dict[str, float]]:
    """A row for each pair of steps: seconds and reward of both."""
    import torch

    torch.set_num_threads(flags.threads)
    ours = our_trainer(flags, seed)
    rows: list[dict[str, float]] = []
    callback = interleaved(ours, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = trl_trainer(flags, ours.args, callback)
        theirs.train()
    rewards = [log["reward"] for log in theirs.state.log_history if "reward" in log]
    extra = [{"seed": seed, "trl_reward": reward} for reward in rewards]
    return [row | more for row, more in zip(rows, extra, strict=True)]


def our_trainer(flags: Flags, seed: int) -> Any:
    """GRPO of the tiny preset, without evaluation and warm-up (which the two count differently)."""
    from rlkit import GRPOConfig, GRPOTrainer
    from rlkit.tasks import load_task

    task = load_task(flags.task)
    args = GRPOConfig.preset(
        "tiny",
        flags.task,
        seed=seed,
        max_steps=flags.steps + WARM_UP,
        warmup_steps=0,
        eval_steps=None,
        num_threads=flags.threads,
        head=flags.head,
        disable_tqdm=True,
    )
    return GRPOTrainer(flags.model, task.reward, args, task.train)


def interleaved(ours: Any, rows: list[dict[str, float]]) -> Any:
    """A TRL callback that times TRL's step and then takes one of ours."""
    from transformers import TrainerCallback

    class Interleaved(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            row = {"trl_seconds": time.perf_counter() - self.start}
            start = time.perf_counter()
            step = ours.step(len(rows))
            row |= {"rlkit_seconds": time.perf_counter() - start, "rlkit_reward": step["reward"]}
            ours.history.append(step)
            rows.append(row)

    return Interleaved()


def trl_trainer(flags: Flags, args: Any, callback: Any) -> Any:
    """TRL's GRPOTrainer with the same settings, everything else at its default."""
    import logging
    import tempfile

    import datasets
    import trl

    from rlkit.policy import load_model, load_tokenizer
    from rlkit.tasks import load_task

    logging.getLogger("transformers").setLevel(logging.ERROR)
    task = load_task(flags.task)
    config = trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="rlkit-bench-"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        max_steps=args.max_steps,
        per_device_train_batch_size=args.per_device_train_batch_size,
        num_generations=args.num_generations,
        max_completion_length=args.max_completion_length,
        temperature=args.temperature,
        learning_rate=args.learning_rate,
        lr_scheduler_type=args.lr_scheduler_type,
        max_grad_norm=args.max_grad_norm,
        loss_type=args.loss_type,
        beta=args.beta,
        seed=args.seed,
    )
    trainer = trl.GRPOTrainer(
        model=load_model(flags.model),
        processing_class=load_tokenizer(flags.model),
        reward_funcs=task.reward,
        args=config,
        train_dataset=datasets.Dataset.from_list(task.train),
        callbacks=[callback],
    )
    for printer in ("PrinterCallback", "ProgressCallback"):
        for known in list(trainer.callback_handler.callbacks):
            if type(known).__name__ == printer:
                trainer.remove_callback(known)
    return trainer


def ratio(rows: list[dict[str, float]]) -> float:
    """Our median time over TRL's."""
    return median(r["rlkit_seconds"] for r in rows) / median(r["trl_seconds"] for r in rows)


def gaps(rows: list[dict[str, float]]) -> list[float]:
    """Our mean reward less TRL's, for each seed: steps of one run are not independent."""
    seeds = sorted({r["seed"] for r in rows})
    of_seed = [[r for r in rows if r["seed"] == s] for s in seeds]
    return [fmean(r["rlkit_reward"] - r["trl_reward"] for r in run) for run in of_seed]


def summary(flags: Flags, rows: list[dict[str, float]]) -> str:
    """What was measured, in five lines."""
    import trl

    ours, theirs = (median(r[k] for r in rows) for k in ("rlkit_seconds", "trl_seconds"))
    rewards = [fmean(r[k] for r in rows) for k in ("rlkit_reward", "trl_reward")]
    return "\n".join(
        [
            f"one GRPO step on {flags.task}, {len(rows)} of each in turn, threads: {flags.threads}",
            f"  rlkit       {ours:6.3f} s    mean reward {rewards[0]:.3f}",
            f"  TRL {trl.__version__:7} {theirs:6.3f} s    mean reward {rewards[1]:.3f}",
            f"  ratio       {ratio(rows):6.3f}      (medians; the bar is {BAR})",
            f"  rewards differ, by seed: {', '.join(f'{gap:+.3f}' for gap in gaps(rows))}",
        ]
    )
