"""The command line: every config field is a flag.

rlkit doctor
rlkit train grpo --preset tiny --task sums --seed 1
rlkit eval --model runs/grpo-sums-1 --task sums
torchrun --nproc-per-node 4 -m rlkit train grpo --preset tiny
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from rlkit.config import unknown
from rlkit.failure import one_voice
from rlkit.failure import report as report_failure

EXPECTED = (ValueError, TypeError, OSError, FloatingPointError, RuntimeError, ImportError)
"""Errors whose message is meant for the person at the keyboard."""


@dataclass(frozen=True)
class Run:
    """What is trained on what."""

    preset: Literal["tiny", "cpu-real", "t4", "h100"] = "tiny"
    """Settings to start from; every other flag changes one of them."""
    task: Literal["sums", "steps", "gsm8k"] = "sums"
    """sums: two numbers. steps: three to five numbers, worked out step by step. gsm8k: school
    problems in words, for a model of 100 million weights or more."""
    model: str = "adder"
    """A built-in name, a folder or a hub id."""
    lora_rank: int = 0
    """Rank of fresh LoRA adapters on every linear layer but the head; 0 trains all weights, or the
    adapters that the model comes with."""
    lora_head: bool = False
    """Adapters on the output head, too; needs lora_rank."""
    eval_rows: int | None = None
    """Held-out prompts that an evaluation answers; None: all of them."""


STARTS = {
    "tiny": Run(),
    "cpu-real": Run("cpu-real", "gsm8k", "HuggingFaceTB/SmolLM2-135M-Instruct", eval_rows=16),
    "t4": Run("t4", "gsm8k", "Qwen/Qwen2.5-0.5B-Instruct", lora_rank=16),
    "h100": Run("h100", "gsm8k", "Qwen/Qwen3-0.6B-Base"),
}
"""What each preset trains on what."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code (2: something the caller can mend)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(overview())
        return 0
    if argv[0] not in COMMANDS:
        print(f"rlkit: {unknown('command', argv[0], COMMANDS)}", file=sys.stderr)
        return 2
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        code = COMMANDS[argv[0]][0](argv[1:]) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # the reader, `head` perhaps, has seen enough; keep the interpreter from flushing again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except EXPECTED as error:
        report_failure(error)
        return 2
    except KeyboardInterrupt:
        report_failure("stopped")
        return 130


def overview() -> str:
    """The list of commands."""
    lines = [f"  rlkit {name:8} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        ["usage: rlkit COMMAND [flags]; rlkit COMMAND --help explains each", "", *lines]
    )


def doctor(argv: list[str]) -> int | None:
    """What this machine can do."""
    from rlkit import doctor

    if argv:
        print("usage: rlkit doctor; it takes no flags")
        return 0 if argv[0] in ("-h", "--help") else 2
    return doctor.main()


def algorithms() -> dict[str, tuple[type, type]]:
    """Name -> (trainer, config)."""
    import rlkit

    return {
        "grpo": (rlkit.GRPOTrainer, rlkit.GRPOConfig),
        "rloo": (rlkit.RLOOTrainer, rlkit.RLOOConfig),
        "ppo": (rlkit.PPOTrainer, rlkit.PPOConfig),
    }


def train(argv: list[str]) -> None:
    """Trains, evaluates before and after, and says where the model is."""
    from rlkit.checkpoint import claim_folder, resume_point
    from rlkit.distributed import join, leave

    known = algorithms()
    if not argv or argv[0] not in known:
        if argv and not argv[0].startswith("-"):
            raise ValueError(unknown("algorithm", argv[0], known))
        print("usage: rlkit train grpo|rloo|ppo [flags]; rlkit train grpo --help explains them")
        return
    trainer_class, config_class = known[argv[0]]
    with one_voice():
        run, args, resume = parse_training(argv, config_class)
    if args.output_dir is None:
        args = replace(args, output_dir=f"runs/{args.name}-{run.task}-{args.seed}")
    resume = resume_point(True if resume == "auto" else resume, args.output_dir)
    if join(args.ddp_timeout).main:
        claim_folder(args.output_dir, resumes=resume is not None)
    trainer = make_trainer(trainer_class, run, args)
    stop_on_interrupt(trainer)
    say(
        trainer,
        f"{args.name} on {run.task} from {run.model}, {args.max_steps} steps, {where(trainer)}",
    )
    report("before", trainer)
    trainer.train(resume_from_checkpoint=resume)
    say(trainer, f"model and log.csv in {args.output_dir}")
    report("after", trainer)
    say(trainer, f"eval accuracy {trainer.evaluate()['accuracy']:.3f}")
    leave()


def say(trainer: Any, text: str) -> None:
    """Prints, on one rank."""
    if trainer.world.main:
        print(text, flush=True)


def parse_training(argv: list[str], config_class: type) -> tuple[Run, Any, str | None]:
    """Flags -> what to run, the config, and the checkpoint to resume from."""
    import tyro

    start = preset_of(argv[1:])
    defaults = config_class.preset(start.preset, start.task)

    @dataclass(frozen=True)
    class Flags:
        run: Annotated[Run, tyro.conf.arg(name="")]
        config: Annotated[config_class, tyro.conf.arg(name="")] = defaults
        resume_from_checkpoint: str | None = None
        """A checkpoint, or an output_dir, whose newest one is taken; auto: the newest one of this
        run's output_dir, or the start if there is none."""

    flags = tyro.cli(
        Flags,
        args=argv[1:],
        default=Flags(run=start),
        prog=f"rlkit train {argv[0]}",
        description=config_class.__doc__,
    )
    return flags.run, flags.config, flags.resume_from_checkpoint


def preset_of(argv: list[str]) -> Run:
    """--preset and --task, which decide the defaults of all other flags."""
    found = {}
    for i, word in enumerate(argv):
        flag, _, value = word.partition("=")
        if flag in ("--preset", "--task") and (value or i + 1 < len(argv)):
            found[flag[2:]] = value or argv[i + 1]
    preset = found.pop("preset", "tiny")
    if preset not in STARTS:
        raise ValueError(unknown("preset", preset, STARTS))
    return replace(STARTS[preset], **found)


def make_trainer(trainer_class: type, run: Run, args: Any) -> Any:
    """A trainer for one of the built-in tasks."""
    from rlkit.policy import load_tokenizer
    from rlkit.tasks import load_task

    tokenizer = load_tokenizer(run.model)
    task = load_task(run.task, tokenizer)
    return trainer_class(
        model=run.model,
        reward_funcs=reward_funcs(task),
        args=args,
        train_dataset=task.train,
        eval_dataset=task.eval[: run.eval_rows],
        processing_class=tokenizer,
        peft_config=lora(run.lora_rank, run.model if run.lora_head else None),
    )


def reward_funcs(task: Any) -> list[Callable[..., Any]]:
    """The task's reward first; for GSM8K also what tells a gain in form from one in arithmetic."""
    if task.name != "gsm8k":
        return [task.reward]
    from rlkit.tasks import gsm8k

    return [task.reward, gsm8k.lenient_reward, gsm8k.format_reward]


def lora(rank: int, with_head_of: str | None = None) -> Any:
    """A LoraConfig on every linear layer but the head, or None for rank 0.

    with_head_of: the model's name, for adapters on its output head as well.
    Raises ValueError for a head without a rank.
    """
    if not rank:
        if with_head_of is not None:
            raise ValueError("lora_head=True needs adapters: set lora_rank (--lora-rank 8)")
        return None
    from rlkit.optional import require

    peft = require("peft", "--lora-rank")
    # PEFT's "all-linear" leaves out the head; names say it all
    targets = "all-linear" if with_head_of is None else linear_names(with_head_of)
    return peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM"
    )


def linear_names(model: str) -> list[str]:
    """Last names of a model's linear layers, its head among them."""
    from torch import nn

    from rlkit.memory.shapes import shape_of
    from rlkit.memory.step import model_of

    modules = model_of(shape_of(model)[1]).named_modules()
    return sorted({name.rpartition(".")[2] for name, m in modules if isinstance(m, nn.Linear)})


def stop_on_interrupt(trainer: Any) -> None:
    """The first Ctrl-C ends training after its step and keeps the model; the second ends all."""

    def stop(number: int, frame: Any) -> None:
        if trainer.world.main:
            print("rlkit: stopping after this step; Ctrl-C again stops at once", file=sys.stderr)
        trainer.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, stop)


def where(trainer: Any) -> str:
    """The device, the precision and the ranks of a run."""
    args, size = trainer.args, trainer.world.size
    precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "float32"
    ranks = f", {size} ranks ({args.distributed})" if size > 1 else ""
    return f"{trainer.policy.device}, {precision}{ranks}"


def report(when: str, trainer: Any) -> None:
    """Accuracy on held-out prompts, greedy and sampled."""
    greedy = trainer.evaluate()["accuracy"]
    sampled = trainer.evaluate(greedy=False)["accuracy"]
    say(trainer, f"{when:6} held-out accuracy: greedy {greedy:.3f}, sampled {sampled:.3f}")


def evaluate(argv: list[str]) -> None:
    """Greedy and sampled accuracy of a model on a task's held-out prompts."""
    import tyro

    import rlkit
    from rlkit.tasks import load_task

    @dataclass(frozen=True)
    class Flags:
        """Accuracy of a model on held-out prompts."""

        model: str = "adder"
        """A built-in name, a folder or a hub id."""
        task: Literal["sums", "steps", "gsm8k"] = "sums"
        """Whose held-out prompts are answered."""
        rows: int | None = None
        """How many of them; None: all."""

    flags = tyro.cli(Flags, args=argv, prog="rlkit eval")
    if flags.rows is not None and flags.rows < 1:
        raise ValueError(f"rows={flags.rows} must be at least 1")
    preset = "cpu-real" if flags.task == "gsm8k" else "tiny"
    length = load_task(flags.task).max_completion_length
    args = rlkit.GRPOConfig.preset(preset, flags.task, max_completion_length=length)
    run = Run(preset, flags.task, flags.model, eval_rows=flags.rows)
    trainer = make_trainer(rlkit.GRPOTrainer, run, args)
    greedy = trainer.evaluate()
    say(trainer, f"sampled accuracy {trainer.evaluate(greedy=False)['accuracy']:.3f}")
    for name, value in greedy.items():
        if name != "accuracy" and len(greedy) > 2:
            say(trainer, f"{name} {value:.3f}")
    say(trainer, f"eval accuracy {greedy['accuracy']:.3f}")


def merge(argv: list[str]) -> None:
    """Writes a model and its adapters as one plain folder."""
    import torch
    import tyro

    from rlkit.adapters import merge_adapters
    from rlkit.policy import load_model, load_tokenizer

    @dataclass(frozen=True)
    class Flags:
        """A plain Hugging Face folder from one of adapters (LoRA), for inference."""

        model: str
        """The folder of adapters: the output_dir of a run with LoRA."""
        out: str
        """The folder to write."""
        dtype: Literal["float32", "bfloat16", "float16"] = "float32"
        """Of the weights that are written. They are summed in float32."""

    flags = tyro.cli(Flags, args=argv, prog="rlkit merge")
    if os.path.isdir(flags.out) and os.listdir(flags.out):
        raise ValueError(f"out={flags.out!r} holds files already; choose another folder")
    tokenizer, model = load_tokenizer(flags.model), load_model(flags.model)
    merged = merge_adapters(model).to(getattr(torch, flags.dtype))
    merged.save_pretrained(flags.out)
    tokenizer.save_pretrained(flags.out)
    print(f"merged model in {flags.out}, {flags.dtype}")


def bench(argv: list[str]) -> int | None:
    """Measurements."""
    from rlkit import bench

    return bench.main(argv)


def plan(argv: list[str]) -> int | None:
    """The memory of a training step, without a GPU."""
    from rlkit.memory import commands

    return commands.main(argv)


def claims(argv: list[str]) -> int | None:
    """What is claimed about memory, put to the test."""
    from rlkit import claims

    return claims.main(argv)


def course(argv: list[str]) -> int | None:
    """The notebooks."""
    from rlkit import course

    return course.cli(argv)


def evidence(argv: list[str]) -> int | None:
    """Whether the effects of the pages are there."""
    from rlkit.course.evidence import commands

    return commands.main(argv)


COMMANDS: dict[str, tuple[Callable[[list[str]], int | None], str]] = {
    "doctor": (doctor, "what this machine can do, and what is missing"),
    "train": (
        train,
        "train a model: rlkit train grpo|rloo|ppo, on sums, steps or gsm8k",
    ),
    "eval": (evaluate, "accuracy of a model on held-out prompts"),
    "merge": (merge, "write a model and its LoRA adapters as one plain folder, for inference"),
    "plan": (plan, "how much memory a training step takes: any model, any card, no GPU needed"),
    "claims": (claims, "what others claim about memory, tested: verdicts, numbers and reasons"),
    "bench": (bench, "measure: rlkit bench train|head|algorithms|actions|learning"),
    "evidence": (evidence, "whether a page's effect exceeds what the seed changes"),
    "course": (course, "build, open or reset the notebooks"),
}
"""Command -> the function behind it and one line about it."""
