"""The step that a plan is about, taken for real on a CPU: what plans are compared with.

Run as a program, this file is one of several gloo ranks: `measured.py SETTING_AS_JSON ...` prints,
for each setting, the most bytes in each phase of its step.
"""

import gc
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_wrapped

SMALL = dict(
    per_device_train_batch_size=16, num_generations=4, prompt_length=20, max_completion_length=24
)
"""Sizes for the built-in model."""


class Tokenizer:
    """One token a character, of a vocabulary of any size; nothing is ever decoded."""

    eos_token_id, pad_token_id = 1, 0

    def __init__(self, size: int):
        self.size = size

    def __len__(self):
        return self.size

    def __call__(self, text, **kwargs):
        return {"input_ids": [2 + ord(c) % 10 for c in text]}

    def batch_decode(self, ids, **kwargs):
        return [""] * len(ids)


def trainer_of(setting: Any) -> Any:
    """A trainer of made-up weights whose steps are as full as a plan takes them to be."""
    from transformers import AutoConfig, AutoModelForCausalLM

    import rlkit
    from rlkit.memory.step import adapters

    config = AutoConfig.for_model(**setting.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.to_empty(device="cpu").tie_weights()
    for x in (*model.parameters(), *model.buffers()):  # in a tenth of the time of drawing them
        torch.linspace(-0.05, 0.05, x.numel(), out=x.data.view(-1))
    args = setting.train_config()
    args = type(args)(**vars(args) | dict(disable_tqdm=True, num_threads=1))
    made = getattr(rlkit, f"{setting.algorithm.upper()}Trainer")(
        model,
        # squares: none is the mean of its group, so that every row teaches
        lambda completions, **_: [float(i * i) for i in range(len(completions))],
        args,
        [{"prompt": chr(97 + i) * setting.prompt_length} for i in range(10)],
        processing_class=Tokenizer(config.vocab_size),
        peft_config=adapters(setting.lora_rank),
    )
    made.eos_ids = [-1]  # so that no completion ends
    return made


def update_once(trainer: Any) -> None:
    """An update by momentum alone, after which the optimiser's state is there."""
    trainer.optimizer.step([], trainer.loss)


def alone(trainer: Any, others: dict[int, Tensor]) -> Any:
    """A Meter that does not count `others`."""
    from rlkit.memory import Meter

    class Alone(Meter):
        def _note(self, tensor: Tensor) -> None:
            if tensor.layout != torch.strided or tensor.untyped_storage()._cdata not in others:
                super()._note(tensor)

        def _mark_state(self, optimizer: torch.optim.Optimizer) -> None:
            first = optimizer.param_groups[0]["params"][0]
            if first.untyped_storage()._cdata not in others:
                super()._mark_state(optimizer)

    return Alone(trainer, device="cpu")


def there_before() -> dict[int, Tensor]:
    """The tensors of before a trainer is made, by storage: what libraries keep of other tests."""
    from rlkit.memory.ledger import alive

    gc.collect()
    plain = [x for x in alive(Tensor)[0] if x.layout == torch.strided and not is_wrapped(x)]
    return {x.untyped_storage()._cdata: x for x in plain}


def measure(setting: Any) -> Any:
    """A Meter that has seen a step in which the optimiser's state is there already."""
    others = there_before()
    trainer = trainer_of(setting)
    update_once(trainer)
    with alone(trainer, others) as meter:
        trainer.step(0)
    return meter


def events(call: Callable[[], object]) -> list[int]:
    """Bytes that the CPU's allocator took (+) and got back (-) during a call, one by one."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        call()
    found = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    return [e.nbytes() for e in sorted(found, key=lambda e: e.start_ns())]


def after_mark(call: Callable[[Callable[[], None]], object]) -> list[int]:
    """Live bytes at each event after call's argument was called, counted from that moment."""
    size = 777_777

    def mark() -> None:
        torch.zeros(size, dtype=torch.int8)

    found = events(lambda: call(mark))
    start = next(i for i in range(len(found)) if found[i : i + 2] == [size, -size])
    return [*itertools.accumulate(found[start + 2 :])]


def true_peak(setting: Any) -> int:
    """The most bytes at once in the same step, by the allocator's events, without a meter."""
    others, before = there_before(), []

    def run(mark: Callable[[], None]) -> None:
        trainer = trainer_of(setting)
        update_once(trainer)
        with alone(trainer, others) as meter:
            before.append(meter.total)
        mark()
        trainer.step(0)

    allocated = after_mark(run)
    return before[0] + max(allocated)


def on_ranks(settings: list[Any]) -> list[list[dict[str, int]]]:
    """For each setting, on each of its two gloo ranks: the most bytes in each phase."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, *(json.dumps(s.to_dict()) for s in settings)]
    where = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2")
    processes = [
        subprocess.Popen(
            command,
            env=os.environ | where | dict(RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=200)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    lines = [output.splitlines()[-len(settings) :] for output in outputs]
    return [[json.loads(line) for line in pair] for pair in zip(*lines, strict=True)]


if __name__ == "__main__":
    import torch.distributed as dist

    from rlkit.memory import Setting

    for asked in sys.argv[1:]:
        meter = measure(Setting(**json.loads(asked)))
        print(json.dumps(meter.timeline.peaks()), flush=True)
    dist.destroy_process_group()
