"""Save and resume, bit for bit on a CPU, on one rank or many.

A checkpoint holds what cannot be computed again: the weights that train, AdamW's moments, the
counts, the history, the state of the random generators that dropout and reward functions draw from.
Sampling noise and the order of prompts are functions of (seed, step), so the place in the data is
the length of the history. Safetensors and JSON only: nothing is unpickled.

    checkpoint-20/
        weights.safetensors, optimizer.safetensors      of one process, or of all under DDP
        shard-00001-model-00001-of-00002.safetensors    FSDP: each rank writes its parts
        state.json                                      the rest, and a CRC of each file

Both kinds have one reader, on any number of ranks: each takes the parts that it needs. A reader
needs memory for no more than its parts.
A checkpoint is written under a hidden name and renamed when all ranks are done, so a run killed at
any moment leaves whole ones alone.
"""

import json
import os
import shutil
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlkit import randomness
from rlkit.distributed import units
from rlkit.failure import restarts

FORMAT = 2
PREFIX = "checkpoint-"
REQUIRED = {"format", "run", "updates", "scaler", "history", "random", "files"}
FILE_BYTES = 2**30
"""How much of the whole is serialised at once; a rank's part of that is doubled on the host."""

FREE = (
    *("output_dir", "num_threads", "max_steps", "max_generation_batch"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation"),
    *("head", "tile_bytes", "share_prefix", "gradient_checkpointing"),
    *("distributed", "reshard_after_forward", "ddp_timeout"),
    *("eval_steps", "per_device_eval_batch_size", "save_steps", "save_total_limit"),
    *("logging_steps", "disable_tqdm", "num_completions_to_print"),
)
"""Settings that a resumed run may change: where and how it computes, not what it learns."""


# --- saving


def save_checkpoint(trainer: Any, step: int) -> Path:
    """Writes output_dir/checkpoint-<step> and drops all but the newest save_total_limit.

    All ranks take part; each needs memory for its part of FILE_BYTES beside its parts.
    Raises OSError on every rank, and leaves nothing half-written, if one has no room for it.
    """
    root, world = Path(trainer.args.output_dir), trainer.world
    final, partial = root / f"{PREFIX}{step}", root / f".{PREFIX}{step}"
    with writing(partial, f"output_dir={str(root)!r}: the checkpoint", world):
        with world.together():
            if world.main:
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
        files = write_tensors(trainer, partial)
        state = state_of(trainer) | {"files": files, "random": world.gather(randomness.state())}
        with world.together():
            if world.main:
                check_whole(partial, files)
                (partial / "state.json").write_text(json.dumps(state), encoding="utf-8")
                put_in_place(partial, final)
                for old in checkpoints(root)[: -trainer.args.save_total_limit]:
                    drop(old)
    return final


@contextmanager
def writing(partial: Path, what: str, world: Any) -> Iterator[None]:
    """Turns what goes wrong in writing into one sentence; what is half-written goes."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        if world.main:
            shutil.rmtree(partial, ignore_errors=True)
        raise OSError(f"{what} could not be written ({error})") from error


def write_tensors(trainer: Any, folder: Path) -> dict[str, list[int]]:
    """Weights and moments. Returns {file: [bytes, CRC]} of all ranks' files."""
    from safetensors.torch import save_file

    world, files = trainer.world, []
    if units(trainer.policy):
        write_shards(weights(trainer) | moments_of(trainer), folder)
        files = list(folder.glob(f"shard-{world.rank + 1:05d}-*"))
    with world.together():
        if not units(trainer.policy) and world.main:
            files = [folder / f"{name}.safetensors" for name in ("weights", "optimizer")]
            for file, tensors in zip(files, (weights(trainer), moments_of(trainer)), strict=True):
                save_file({n: t.contiguous() for n, t in tensors.items()}, file)
        mine = {file.name: measured(file) for file in files}
    return {name: size for part in world.gather(mine) for name, size in part.items()}


def write_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    """Each rank's parts, in files of its own. Raises OSError on all ranks if one fails."""
    import torch.distributed.checkpoint as dcp

    number, filled, index = 1, 0, {}
    for name, tensor in tensors.items():
        if filled and filled + tensor.nbytes > FILE_BYTES:
            number, filled = number + 1, 0
        index[name], filled = number, filled + tensor.nbytes
    writer = dcp.HuggingFaceStorageWriter(
        str(folder), fqn_to_index_mapping=index, save_distributed=True
    )
    try:
        dcp.save(tensors, storage_writer=writer)
    except dcp.api.CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise OSError(f"rank {rank}: {cause}") from error


def measured(file: Path) -> list[int]:
    """[bytes, CRC-32] of a file."""
    size, crc = 0, 0
    with file.open("rb") as stream:
        while block := stream.read(2**20):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]


def check_whole(folder: Path, files: dict[str, list[int]]) -> None:
    """What every rank wrote must lie in the folder that this one sees."""
    for name in files:
        if not (folder / name).is_file():
            raise OSError(f"{name} of another rank is not there: all machines must share a folder")


def put_in_place(partial: Path, final: Path) -> None:
    """One rename; a checkpoint of the same step, which an earlier attempt left, goes first."""
    if final.exists():
        drop(final)
    partial.rename(final)


def drop(checkpoint: Path) -> None:
    """Deletes a checkpoint, hidden first: none is ever seen half-deleted."""
    hidden = checkpoint.with_name(f".{checkpoint.name}.old")
    shutil.rmtree(hidden, ignore_errors=True)
    checkpoint.rename(hidden)
    shutil.rmtree(hidden)


def export(trainer: Any, folder: str | Path, state: dict[str, Tensor] | None) -> None:
    """The policy as a Hugging Face folder, file by file: what lies there is never half-written.

    state: the model's whole state dict, where its own parameters are parts.
    Raises OSError if there is no room.
    """
    folder, partial = Path(folder), Path(folder) / ".model"
    with writing(partial, f"the model in {str(folder)!r}", trainer.world):
        shutil.rmtree(partial, ignore_errors=True)
        trainer.policy.save(partial, trainer.tokenizer, state)
        for file in sorted(p for p in partial.rglob("*") if p.is_file()):
            target = folder / file.relative_to(partial)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, target)
        shutil.rmtree(partial)


# --- finding


def resume_point(asked: str | Path | bool | None, output_dir: str | None) -> Path | None:
    """The checkpoint that a run goes on from; None: it starts at the beginning.

    asked: a checkpoint, an output_dir, whose newest one is taken, or True: the newest one of this
        run's output_dir, if there is one. Where torchrun has started a job again
        (--max-restarts), it is the newest one of output_dir whatever was asked.
    Raises FileNotFoundError if there is no such checkpoint.
    """
    if asked is True and output_dir is None:
        raise ValueError("resume_from_checkpoint=True needs output_dir, the folder to look in")
    found = checkpoints(Path(output_dir)) if output_dir is not None else []
    if found and (asked is True or restarts()):
        return found[-1]
    return None if asked is None or isinstance(asked, bool) else find_checkpoint(asked)


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

    Removes what a killed run left half-written. Raises ValueError, also where an earlier run's
    checkpoints lie that a new run would mix with.
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
    for left in [*Path(output_dir).glob(f".{PREFIX}*"), Path(output_dir) / ".model"]:
        shutil.rmtree(left, ignore_errors=True)


def checkpoints(root: Path) -> list[Path]:
    """The whole checkpoints of an output_dir, oldest first."""
    found = [p for p in root.glob(f"{PREFIX}*") if p.name.removeprefix(PREFIX).isdigit()]
    return sorted(found, key=lambda p: int(p.name.removeprefix(PREFIX)))


# --- loading


def load_checkpoint(trainer: Any, folder: str | Path) -> None:
    """Puts a trainer where the checkpoint was, whatever the number of ranks that wrote it.

    folder: a checkpoint, or an output_dir, whose newest one is taken. All ranks take part.
    Raises FileNotFoundError if there is none, ValueError if it is damaged or of another run, on
    every rank and before anything of the trainer has changed.
    """
    world = trainer.world
    with world.together():
        folder = find_checkpoint(folder)
        state = read_state(folder)
        check_files(folder, state["files"], world)
    with world.together():
        check_origin(trainer, state, folder)
        tensors = weights(trainer)
        moments = {n: torch.zeros_like(t) for n, t in moments_of(trainer).items()}
        check_tensors(tensors, moments, folder)
    with world.together():
        read_tensors(tensors | moments, folder)
    restore_moments(trainer, moments)
    trainer.optimizer.count = state["updates"]
    trainer.optimizer.scaler.load_state_dict(state["scaler"])
    trainer.history[:] = state["history"]
    if world.rank < len(state["random"]):
        randomness.restore(state["random"][world.rank])


def read_state(folder: Path) -> dict[str, Any]:
    """state.json. Raises ValueError if it is not whole, or of another version."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(folder, error) from error
    if isinstance(state, dict) and state.get("format", FORMAT) != FORMAT:
        raise ValueError(f"checkpoint {folder} is not one of this version of rlkit")
    if not isinstance(state, dict) or not state.keys() >= REQUIRED:
        raise damaged(folder, "state.json lacks entries")
    return state


def damaged(folder: Path, why: Any) -> ValueError:
    """The sentence about a checkpoint that cannot be used."""
    return ValueError(f"checkpoint {folder} is damaged: {why}; take an older one")


def check_files(folder: Path, files: dict[str, list[int]], world: Any) -> None:
    """Every byte must be the one that was written; each rank looks at some of the files."""
    for name in world.share(sorted(files)):
        try:
            size, crc = measured(folder / name)
        except OSError as error:
            raise damaged(folder, error) from error
        if [size, crc] != files[name]:
            changed = "another length" if size != files[name][0] else "other bytes"
            raise damaged(folder, f"{name} has {changed} than were written")


def check_origin(trainer: Any, state: dict[str, Any], folder: Path) -> None:
    """A checkpoint continues the run that wrote it, and no other."""
    ours = json.loads(json.dumps(origin(trainer)))
    for field, theirs in state["run"].items():
        if field in ours and ours[field] != theirs:
            raise ValueError(
                f"checkpoint {folder} comes from a run with {field}={theirs!r}, not "
                f"{ours[field]!r}; resume it as it was started"
            )


def origin(trainer: Any) -> dict[str, Any]:
    """What a resumed run must have in common with the one that it goes on with."""
    args = trainer.args
    settings = {name: value for name, value in vars(args).items() if name not in FREE}
    return {
        "algorithm": args.name,
        **settings,
        "completions a step": args.generation_batch_size * trainer.world.size,
        "updates a step": args.updates_per_step,
        "a checksum of train_dataset": zlib.crc32(repr(trainer.prompts.ids).encode()),
        "a checksum of the frozen weights": trainer.frozen,
    }


def check_tensors(tensors: dict[str, Tensor], moments: dict[str, Tensor], folder: Path) -> None:
    """The checkpoint must hold the tensors of this model and optimizer, and no others."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    held = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    theirs = {name: (tuple(t.size), t.properties.dtype) for name, t in held.items()}
    ours = {name: (tuple(t.shape), t.dtype) for name, t in (tensors | moments).items()}
    if {n: x for n, x in theirs.items() if "/" not in n} != {n: ours[n] for n in tensors}:
        raise ValueError(f"checkpoint {folder} holds another model than this run trains")
    if theirs != ours:
        raise ValueError(f"checkpoint {folder} holds the state of another optimizer than AdamW")


def read_tensors(tensors: dict[str, Tensor], folder: Path) -> None:
    """Fills tensors, or this rank's parts of them, from whichever files hold them."""
    import torch.distributed.checkpoint as dcp

    reader = dcp.HuggingFaceStorageReader(str(folder))
    try:
        with warnings.catch_warnings(action="ignore"):  # that a rank reads alone is meant
            dcp.load(tensors, storage_reader=reader, no_dist=True)
    except dcp.api.CheckpointException as error:
        raise damaged(folder, next(iter(error.failures.values()))[0]) from error


# --- what a checkpoint holds


def state_of(trainer: Any) -> dict[str, Any]:
    """All that is not a tensor."""
    return {
        "format": FORMAT,
        "run": origin(trainer),
        "updates": trainer.optimizer.count,
        "scaler": trainer.optimizer.scaler.state_dict(),
        "history": trainer.history,
    }


def named_parameters(trainer: Any) -> dict[str, Tensor]:
    """Every parameter that trains, by a name that does not change between runs."""
    modules = enumerate(trainer.trained_modules())
    named = {f"{i}.{n}": p for i, m in modules for n, p in m.named_parameters()}
    return {n: p for n, p in named.items() if p.requires_grad}


def weights(trainer: Any) -> dict[str, Tensor]:
    """The trained parameters themselves, detached."""
    return {n: p.detach() for n, p in named_parameters(trainer).items()}


def moments_of(trainer: Any) -> dict[str, Tensor]:
    """AdamW's step counts and moments, as <parameter>/<name>; zeros before its first step."""
    state, named = trainer.optimizer.adamw.state, named_parameters(trainer)
    return {
        f"{name}/{key}": value
        for name, parameter in named.items()
        for key, value in (state.get(parameter) or fresh(parameter)).items()
    }


def fresh(parameter: Tensor) -> dict[str, Tensor]:
    """AdamW's state of a parameter that has not moved."""
    zeros = {key: torch.zeros_like(parameter.detach()) for key in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros((), device=parameter.device)} | zeros


def restore_moments(trainer: Any, moments: dict[str, Tensor]) -> None:
    """Gives AdamW its state back."""
    state = trainer.optimizer.adamw.state
    for name, parameter in named_parameters(trainer).items():
        state[parameter] = {key: moments[f"{name}/{key}"] for key in fresh(parameter)}
