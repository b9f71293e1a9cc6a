"""Many processes as one trainer: what each does, and what all of them know.

    every rank  draws and scores its share of the groups        gather: all hold the whole rollout
                scores its share of the rows                    sum: all hold all log-probs
                runs its share of the rows forward and back     FSDP2 or DDP: gradients are summed

A rollout is small (tokens) where a model is large (weights). So every rank holds the whole rollout
and, under FSDP2, only its part of each weight. Advantages, whitening, totals, thresholds and the
log are then computed on every rank from the same numbers by the same lines as in one process, and
N ranks learn what one rank learns from the same global batch: sampling noise is keyed by the global
row, and each loss is already its share of the whole step's, so gradients are summed, not averaged.

    torchrun --nproc-per-node 8 -m rlkit train grpo --preset h100

Left out on purpose: tensor, pipeline and context parallelism, generation on other machines.
FSDP: Zhao et al. 2023, arXiv:2304.11277.
"""

import builtins
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlkit.failure import restarts
from rlkit.rollout import Rollout, padded


@dataclass(frozen=True)
class World:
    """The ranks that train together, seen from one of them. One process is a world of size 1."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def main(self) -> bool:
        """Whether this rank writes the files and does the talking."""
        return self.rank == 0

    # --- who does what

    def share(self, items: Sequence[Any]) -> Sequence[Any]:
        """This rank's part of a sequence: rank after rank, all about equal."""
        first, last = (len(items) * r // self.size for r in (self.rank, self.rank + 1))
        return items[first:last]

    def over(self, count: int) -> "World":
        """The world that shares out so many things: each rank does all of them if it is too few."""
        return self if count >= self.size else World(device=self.device)

    def deal(self, rows: Tensor, size: int, group: int = 1) -> list[Tensor]:
        """The micro-batches of this rank: as many on every rank, the last of them perhaps empty.

        rows: [n] int64, the same on every rank; rows // group names a row's prompt. Ranks get
        about equal parts, cut between groups, so that a group is never split across ranks.
        size: rows of a micro-batch.
        """
        prompts = (rows // group).tolist()
        starts = [i for i in range(1, len(rows)) if prompts[i] != prompts[i - 1]]
        starts = [0, *starts, len(rows)]
        ideal = [len(rows) * r // self.size for r in range(1, self.size)]
        shares = rows.tensor_split([next(s for s in starts if s >= i) for i in ideal])
        count = max(-(-len(share) // size) for share in shares)
        mine = [part for part in shares[self.rank].split(size) if len(part)]
        return mine + [rows[:0]] * (count - len(mine))

    # --- what all know

    def sum(self, x: Tensor) -> Tensor:
        """The sum over ranks, on every rank."""
        if self.size > 1:
            x = x.clone()
            dist.all_reduce(x)
        return x

    def any(self, flag: bool) -> bool:
        """Whether it holds on one rank or more."""
        return any(self.gather(flag))

    def gather(self, value: Any) -> list[Any]:
        """A small value of every rank, in their order."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is raised inside on one rank is raised on all; nothing inside may wait for others.

        So that none goes on alone, and waits for those that have given up.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        told = self.gather(error and (type(error).__name__, str(error)))
        if error is not None:
            raise error
        for kind, text in filter(None, told):
            raise getattr(builtins, kind, OSError)(text)

    def sum_up(self, sums: dict[str, tuple[Tensor, Tensor]]) -> dict[str, tuple[Tensor, Tensor]]:
        """{name: (sum, count)}, the same names on every rank, added up over ranks."""
        if self.size == 1 or not sums:
            return sums
        # float64, which counts beyond 2^24
        flat = torch.stack([x.double() for name in sorted(sums) for x in sums[name]])
        flat = self.sum(flat).view(-1, 2)
        return {name: tuple(pair) for name, pair in zip(sorted(sums), flat, strict=True)}

    def gather_rollout(self, rollout: Rollout, pad_id: int) -> Rollout:
        """The rollouts of all ranks as one, in their order."""
        if self.size == 1:
            return rollout
        shape = len(rollout), rollout.prompt_ids.size(1), rollout.completion_ids.size(1)
        shapes = self.gather(shape)
        rows, width, length = (max(column) for column in zip(*shapes, strict=True))
        whole = {}
        for name, x in vars(rollout).items():
            if not isinstance(x, Tensor):
                continue
            fill = pad_id if x.dtype == torch.int64 else 0
            if x.dim() == 2 and name != "rewards_per_func":
                is_prompt = name.startswith("prompt")
                x = padded(x, width if is_prompt else length, fill, left=is_prompt)
            x = torch.cat([x, x[:1].expand(rows - len(x), *x.shape[1:])])
            parts = [torch.empty_like(x) for _ in range(self.size)]
            dist.all_gather(parts, x)
            whole[name] = torch.cat([p[:n] for p, (n, *_) in zip(parts, shapes, strict=True)])
        return Rollout(**whole)

    def agree(self, facts: dict[str, Any]) -> None:
        """Raises ValueError, naming the first fact that is not the same on every rank."""
        first, *others = self.gather(facts)
        for rank, theirs in enumerate(others, 1):
            for name, value in first.items():
                if theirs[name] != value:
                    raise ValueError(
                        f"rank 0 has {name}={value!r} but rank {rank} has {theirs[name]!r}; start "
                        "every rank alike"
                    )

    # --- models

    def place(self, model: nn.Module, args: Any) -> None:
        """Puts a model on this rank's device, in parts or whole, as args.distributed says.

        Gradients of its trained weights will be summed over ranks.
        """
        trains = any(p.requires_grad for p in model.parameters())
        if self.size > 1 and args.distributed == "fsdp":
            dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
            shard(model, self.device, dtype, args.reshard_after_forward)
            return
        model.to(self.device)
        if self.size > 1 and trains:
            replicate(model)


def join(timeout: float) -> World:
    """The world that torchrun started, or the one process that this is.

    timeout: seconds after which a rank that waits for the others gives up.
    Without RANK and WORLD_SIZE in the environment no process group is made.
    Raises ValueError where this machine has fewer GPUs than ranks.
    """
    local = int(os.environ.get("LOCAL_RANK", 0))
    on_gpu = torch.cuda.is_available()
    if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return World(device=torch.device("cuda" if on_gpu else "cpu"))
    if on_gpu:
        if local >= torch.cuda.device_count():
            raise ValueError(
                f"LOCAL_RANK={local}, but this machine has {torch.cuda.device_count()} GPU(s); "
                "start torchrun with that --nproc-per-node"
            )
        torch.cuda.set_device(local)
    if not dist.is_initialized():
        # both, so that what the host decides needs no GPU
        meet("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timedelta(seconds=timeout))
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    return World(dist.get_rank(), dist.get_world_size(), device)


def meet(backend: str, patience: timedelta) -> None:
    """Makes the process group of all ranks that torchrun started.

    When torchrun starts a job again it keeps its store, in which the addresses of the ranks that
    are gone still stand; so each attempt has names of its own.
    """
    store, rank, size = next(dist.rendezvous("env://", timeout=patience))
    store = dist.PrefixStore(f"attempt {restarts()}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)


def leave() -> None:
    """Ends the process group, if there is one: after the last thing that ranks do together."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rows_of(rollout: Rollout, rows: Tensor) -> Rollout:
    """A micro-batch; for no rows one that has a row but not a token.

    Its loss is 0 and so are its gradients, but there are some, as FSDP2 and DDP expect of a rank.
    """
    if len(rows):
        return rollout.rows(rows)
    return rollout.replace(mask=torch.zeros_like(rollout.mask)).rows(slice(0, 1))


# --- FSDP2


def shard(
    model: nn.Module,
    device: torch.device,
    amp_dtype: torch.dtype | None = None,
    reshard_after_forward: bool = True,
) -> None:
    """Cuts every weight of a Policy or ValueModel along dim 0, a part for each rank.

    Every transformer layer is gathered when it is its turn; embeddings, the last norm and the head
    (tied or not) are the root's. The parts stay in the dtype they came in, and gradients are summed
    in float32. Layers are gathered in amp_dtype, to which autocast would round their matrices (here
    the weights of their norms are rounded too); the root as it is, for autocast rounds neither
    embeddings nor the hidden states between layers.
    reshard_after_forward: free a layer after its forward pass and gather it again for the backward
        pass. False holds the whole model from one to the other.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    precision = MixedPrecisionPolicy(amp_dtype, torch.float32, cast_forward_inputs=False)
    for layer in layers(model):
        fully_shard(
            layer, mesh=mesh, mp_policy=precision, reshard_after_forward=reshard_after_forward
        )
    # a root that trains is needed again at once
    trains = any(p.requires_grad for p in model.parameters())
    fully_shard(model, mesh=mesh, reshard_after_forward=not trains)
    for unit in units(model):
        # the sum: losses are shares already. Gloo refuses the factor without the second line
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
    if hasattr(model, "decode"):
        register_fsdp_forward_method(model, "decode")


def layers(model: nn.Module) -> list[nn.Module]:
    """The transformer's layers: the children of the ModuleList that holds most weights."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m)]
    size = {m: sum(p.numel() for p in m.parameters()) for m in lists}
    return list(max(lists, key=size.__getitem__)) if lists else []


def units(model: nn.Module) -> list[Any]:
    """The modules whose weights are gathered together; none unless sharded."""
    if not dist.is_initialized():
        return []
    from torch.distributed.fsdp import FSDPModule

    return [m for m in model.modules() if isinstance(m, FSDPModule)]


@contextmanager
def gathered(model: nn.Module, reshard_after_forward: bool = True) -> Iterator[None]:
    """Inside, every rank has the whole model and can run it as often as it likes, alone.

    Completions end at different lengths on different ranks; and weights that are gathered once for
    all tokens are three times faster than once a token. reshard_after_forward: as in `shard`.
    """
    for unit in units(model):
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        for unit in units(model):
            unit.set_reshard_after_forward(
                reshard_after_forward and unit is not model, recurse=False
            )
        release(model)


def release(model: nn.Module) -> None:
    """Frees gathered weights, which an optimiser step would leave behind with old values."""
    for unit in units(model):
        unit.reshard()


def whole_weights(policy: nn.Module) -> dict[str, Tensor] | None:
    """The state dict of a policy's model, on the CPU of rank 0; None if no rank shares it.

    All ranks must ask.
    """
    if not units(policy):
        return None
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    whole = get_model_state_dict(
        policy.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    names: dict[nn.Parameter, str] = {}
    for name, parameter in policy.model.named_parameters(remove_duplicate=False):
        if name in whole:  # tied weights stay one tensor, of which one is saved
            whole[name] = whole[names.setdefault(parameter, name)]
    return whole


def fingerprint(args: Any, prompts: list[list[int]], models: Sequence[nn.Module]) -> dict[str, Any]:
    """What must be the same on every rank, small enough to be compared."""
    own = ("output_dir", "num_threads", "disable_tqdm")
    facts = {name: value for name, value in vars(args).items() if name not in own}
    if not dist.is_initialized():
        return facts
    parameters = [p for m in models for p in m.parameters()]
    return facts | {
        "a checksum of train_dataset": zlib.crc32(repr(prompts).encode()),
        "a checksum of the model": checksum(parameters),
    }


def checksum(parameters: Sequence[Tensor]) -> int:
    """Of the first numbers of each."""
    crc = 0
    for parameter in parameters:
        first = parameter.detach().flatten()[:64].cpu().contiguous()
        crc = zlib.crc32(bytes(first.view(torch.uint8).tolist()), crc)
    return crc


# --- DDP


def replicate(model: nn.Module) -> None:
    """Keeps the model whole on every rank and sums its gradients (DistributedDataParallel).

    The composable form, which leaves the module and its methods in place.
    """
    from torch.distributed._composable.replicate import replicate

    replicate(model, gradient_as_bucket_view=True)
    model.register_comm_hook(None, summed)


def summed(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """DDP's own hook divides by the number of ranks."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def sum_gradients(models: Sequence[nn.Module], now: bool) -> None:
    """Whether DDP sums in the next backward pass: only in the last of an optimiser step.

    FSDP2 sums in each, or every rank would hold a whole gradient.
    """
    for model in models:
        if not units(model) and hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(now)
