"""Save and resume, bit for bit on a CPU.

A checkpoint holds what cannot be computed again: weights, AdamW's moments, the counts and the
history. Sampling noise and the order of prompts are functions of (seed, step), so no random state
and no data position need to be kept. Safetensors and JSON only: nothing is unpickled. A checkpoint
is written under a temporary name and renamed, so a run killed at any moment leaves a whole one.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FORMAT = 1
PREFIX = "checkpoint-"
REQUIRED = {"format", "algorithm", "seed", "updates", "scaler", "history"}


def save_checkpoint(trainer: Any, step: int) -> Path:
    """Writes output_dir/checkpoint-<step> and drops all but the newest save_total_limit.

    Raises OSError, and leaves nothing half-written, if there is no room for it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    root = Path(trainer.args.output_dir)
    final, partial = root / f"{PREFIX}{step}", root / f".{PREFIX}{step}.{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        save_file(weights(trainer), partial / "weights.safetensors")
        save_file(moments_of(trainer), partial / "optimizer.safetensors")
        (partial / "state.json").write_text(json.dumps(state_of(trainer)), encoding="utf-8")
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise OSError(
            f"output_dir={str(root)!r}: the checkpoint could not be written ({error})"
        ) from error
    for old in checkpoints(root)[: -trainer.args.save_total_limit]:
        shutil.rmtree(old)
    return final


def load_checkpoint(trainer: Any, folder: str | Path) -> None:
    """Puts a trainer where the checkpoint was.

    folder: a checkpoint, or an output_dir, whose newest one is taken.
    Raises FileNotFoundError if there is none, ValueError if it is damaged or of another run.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = find_checkpoint(folder)
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "weights.safetensors")
        moments = load_file(folder / "optimizer.safetensors")
        if not isinstance(state, dict) or not REQUIRED <= state.keys():
            raise ValueError("state.json lacks entries")
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"checkpoint {folder} is damaged: {error}; take an older one") from error
    check_origin(trainer, state, folder)
    restore_weights(trainer, tensors, folder)
    restore_moments(trainer, moments)
    trainer.optimizer.count = state["updates"]
    trainer.optimizer.scaler.load_state_dict(state["scaler"])
    trainer.history[:] = state["history"]


def find_checkpoint(folder: str | Path) -> Path:
    """The folder itself if it is a checkpoint, else the newest one in it.

    Raises FileNotFoundError if there is none.
    """
    folder = Path(folder)
    found = [folder] if (folder / "state.json").is_file() else checkpoints(folder)
    if not found:
        raise FileNotFoundError(f"resume_from_checkpoint={str(folder)!r} holds no checkpoint")
    return found[-1]


def claim_folder(output_dir: str | None, resumes: bool) -> None:
    """Makes output_dir, or says in one sentence why a new run cannot write there.

    Raises ValueError, also where an earlier run's checkpoints lie that a new run would mix with.
    """
    if output_dir is None:
        return
    try:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"output_dir={output_dir!r} cannot be made: {error}") from error
    if not resumes and checkpoints(Path(output_dir)):
        raise ValueError(
            f"output_dir={output_dir!r} holds checkpoints of an earlier run; resume it with "
            "resume_from_checkpoint, or choose another folder"
        )


def checkpoints(root: Path) -> list[Path]:
    """The whole checkpoints of an output_dir, oldest first."""
    found = [p for p in root.glob(f"{PREFIX}*") if p.name.removeprefix(PREFIX).isdigit()]
    return sorted(found, key=lambda p: int(p.name.removeprefix(PREFIX)))


def state_of(trainer: Any) -> dict[str, Any]:
    """All that is not a tensor."""
    return {
        "format": FORMAT,
        "algorithm": trainer.args.name,
        "seed": trainer.args.seed,
        "updates": trainer.optimizer.count,
        "scaler": trainer.optimizer.scaler.state_dict(),
        "history": trainer.history,
    }


def check_origin(trainer: Any, state: dict[str, Any], folder: Path) -> None:
    """A checkpoint continues the run that wrote it, and no other."""
    if state.get("format") != FORMAT:
        raise ValueError(f"checkpoint {folder} is not one of this version of rlkit")
    for field, ours in (("algorithm", trainer.args.name), ("seed", trainer.args.seed)):
        if state[field] != ours:
            raise ValueError(
                f"checkpoint {folder} comes from a run with {field}={state[field]!r}, not {ours!r}"
            )


def named_parameters(trainer: Any) -> dict[str, Tensor]:
    """Every parameter that trains, by a name that does not change between runs."""
    modules = enumerate(trainer.trained_modules())
    named = {f"{i}.{n}": p for i, m in modules for n, p in m.named_parameters()}
    return {n: p for n, p in named.items() if p.requires_grad}


def weights(trainer: Any) -> dict[str, Tensor]:
    """The trained parameters, for safetensors."""
    return {n: p.detach().contiguous() for n, p in named_parameters(trainer).items()}


def moments_of(trainer: Any) -> dict[str, Tensor]:
    """AdamW's step counts and moments, as <parameter>/<name>."""
    state = trainer.optimizer.adamw.state
    named = named_parameters(trainer).items()
    return {f"{n}/{key}": value for n, p in named for key, value in state[p].items()}


@torch.no_grad()
def restore_weights(trainer: Any, tensors: dict[str, Tensor], folder: Path) -> None:
    """Copies weights into the trainer's parameters."""
    named = named_parameters(trainer)
    shapes = {n: p.shape for n, p in named.items()}
    if shapes != {n: t.shape for n, t in tensors.items()}:
        raise ValueError(f"checkpoint {folder} holds another model than this run trains")
    for name, parameter in named.items():
        parameter.copy_(tensors[name])


def restore_moments(trainer: Any, moments: dict[str, Tensor]) -> None:
    """Gives AdamW its state back."""
    state = trainer.optimizer.adamw.state
    for name, parameter in named_parameters(trainer).items():
        for key in ("step", "exp_avg", "exp_avg_sq"):
            value = moments[f"{name}/{key}"]
            state[parameter][key] = value.to(parameter.device)
