"""The measured side of the Memory Lab: a small model that trains right here, step by step.

    training = Training(base, choices)
    with training.meter() as meter:
        picture, row = training.step(meter)

rlkit's own trainer under a Meter, on made-up words (rank.py): the reward can be learned, no
completion ends early and every row teaches, so that each step is as full as a plan takes it to be.
A new position of a switch takes effect at the next step: head, tile and checkpointing in the
running model, anything else in a new one.
"""

import gc
from typing import Any

from rlkit.memory import lab
from rlkit.memory.lab import Base, Choices, MiB
from rlkit.memory.picture import Picture, picture_of

IN_PLACE = ("head", "tile")
"""Switches of the model that trains; the others make another run."""


def not_here(base: Base, choices: Choices) -> str:
    """ "" if these choices can be trained here, else the sentence that says why not."""
    if base.key != "small":
        return f"{choices['model']} is planned only: the small model is the one that trains here"
    only = {
        "fsdp": "FSDP ranks are planned only: this run has one process (page 11 measures two)",
        "reward_model": "a reward model is planned only: here a rule gives the reward",
    }
    if choices["fsdp"] > 1:
        return only["fsdp"]
    if choices["reward_model"]:
        return only["reward_model"]
    if choices["dtype"] == "pure_bf16":
        return "pure bf16 is planned only: rlkit trains float32 weights"
    return lab.why_not(base, choices)


class Training:
    """A run that can be changed between two steps."""

    def __init__(self, base: Base, choices: Choices, seed: int = 1) -> None:
        """Raises ValueError, in one sentence, for what cannot be trained here."""
        self.base, self.seed = base, seed
        self.trainer: Any = None
        self.choices: Choices = {}
        self.number = self.taken = 0
        """Steps of this model, and of all, so far."""
        self.change(choices)

    def change(self, choices: Choices) -> None:
        """Takes effect with the next step."""
        if sentence := not_here(self.base, choices):
            raise ValueError(sentence)
        keys = lab.changed(self.choices, choices)
        if self.trainer is not None and set(keys) <= set(IN_PLACE):
            for model in self.trainer.held():
                set_head(model, choices)
        elif keys:
            self._build(choices)
        self.choices = dict(choices)

    def _build(self, choices: Choices) -> None:
        from rlkit.memory.rank import trainer_of
        from rlkit.memory.step import other_optimizer

        self.trainer = None
        gc.collect()  # what the last one held must not count as another's
        setting = lab.setting(self.base, choices)
        options = {"learning_rate": 3e-4, "lr_scheduler_type": "constant", "num_threads": 1}
        options |= {"max_steps": 100_000, "seed": self.seed}
        self.trainer = trainer_of(setting, options, made_up=True)
        optimizer = self.trainer.optimizer
        optimizer.adamw = other_optimizer(setting.optimizer, optimizer.adamw)
        optimizer.step([], self.trainer.loss)  # its state is there from the first step on
        self.number = 0

    def step(self, meter: Any) -> tuple[Picture, dict[str, Any]]:
        """One step under a meter that is on. Returns its picture and the trainer's row."""
        gc.collect()
        meter.clear()
        row = self.trainer.step(self.number)
        self.number += 1
        self.taken += 1
        picture = picture_of(
            meter.timeline,
            meter.at_peak,
            self.choices,
            source="measured",
            where=f"{where(self.trainer)}, step {self.number}",
            seconds=row["seconds"],
        )
        return picture, row

    def meter(self) -> Any:
        """For `step`: to be entered in the thread that trains."""
        from rlkit.memory.meter import Meter

        return Meter(self.trainer, device=self.trainer.world.device.type)


def set_head(model: Any, choices: Choices) -> None:
    """Another way from hidden states to log-probs, in every head of a model."""
    from rlkit.head import Head

    for part in model.modules():
        if isinstance(part, Head):
            part.mode, part.tile_bytes = choices["head"], choices["tile"] * MiB


def where(trainer: Any) -> str:
    """On what a trainer's bytes are measured."""
    if trainer.world.device.type == "cuda":
        import torch

        return torch.cuda.get_device_name()
    return "CPU, this machine"
