"""Page 11: LoRA by hand, sharding by hand, two ranks watched live, plans to 64 ranks.

python -m rlkit.course.pages.page_11      # plans anew what the page shows: data/plans/ranks.csv
"""

import csv
from typing import Any

from rlkit.course.pages.section import Section
from rlkit.paths import data_path

RANKS = (1, 2, 4, 8, 16, 32, 64)
PLANNED = dict(
    per_device_train_batch_size=8,
    num_generations=8,
    prompt_length=256,
    max_completion_length=256,
    dtype="bf16",
    gradient_checkpointing=True,
)
"""What is planned for Qwen3-0.6B on so many ranks."""


def wide_model() -> Any:
    """The shape that the page trains on two ranks: half of its bytes will be logits."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=12288,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=128,
    )


SIZES = dict(
    per_device_train_batch_size=16,
    num_generations=8,
    prompt_length=8,
    max_completion_length=24,
    max_steps=4,
)


def begin_student() -> dict[str, Any]:
    """The built-in model with fresh adapters on every linear layer."""
    from rlkit.course.student import Student

    student = Student()
    return {"student": student, "layers": add_low_rank(student.model)}


def add_low_rank(model: Any, rank: int = 4) -> list[Any]:
    """Puts a low-rank layer, as the page writes it, in the place of each linear layer."""
    import torch
    from torch import nn

    from rlkit.course.exercises.low_rank import low_rank

    class LowRank(nn.Module):
        def __init__(self, linear: nn.Linear) -> None:
            super().__init__()
            self.weight = linear.weight.requires_grad_(False)
            out, wide = linear.weight.shape
            self.down = nn.Parameter(torch.randn(rank, wide) / wide**0.5)
            self.up = nn.Parameter(torch.zeros(out, rank))
            self.on = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.on:
                return x @ self.weight.T
            flat = x.flatten(0, -2)
            y = low_rank(flat, self.weight, self.down, self.up, 16)
            return y.unflatten(0, x.shape[:-1])

    torch.manual_seed(0)
    model.requires_grad_(False)
    layers = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                layers.append(LowRank(child))
                setattr(parent, name, layers[-1])
    return layers


def rejoin_run() -> dict[str, Any]:
    """After the training run: the student with its trained adapters, and the run."""
    from safetensors.torch import load_file

    from rlkit.course.student import Loop
    from rlkit.widgets import keep

    folder = keep.last_run("page11")
    if folder is None:
        return {}
    state = begin_student()
    student = state["student"]
    student.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    loop = Loop(lambda k: {}, student, steps=20, output_dir=str(folder))
    return state | {"run": keep.restore(loop, folder, score=student.task.reward)}


def begin_ranks() -> dict[str, Any]:
    """What the ranks train."""
    return {"wide": wide_model(), "sizes": dict(SIZES)}


def again(ranks: int) -> Any:
    """Ranks that have run once more: nothing of a run stays on the disk."""
    from rlkit.memory import Ranks

    print(f"{ranks} rank{'s' * (ranks > 1)} of the section before: run again, some ten seconds")
    made = Ranks(wide_model(), "grpo", fsdp=ranks, head="full", **SIZES)
    return made.start().wait(300)


def rejoin_alone() -> dict[str, Any]:
    """Section 11.7: the one rank that the two are held against."""
    from rlkit.widgets.ranks import LiveRanks

    alone = again(1)
    return begin_ranks() | {"alone": alone, "watch": LiveRanks(alone)}


def rejoin_two() -> dict[str, Any]:
    """Section 11.8: the two ranks."""
    return {"two": again(2)}


SECTIONS = {
    "11.1": Section(("torch", "torch.nn"), exercises=("low_rank",)),
    "11.2": Section(("rlkit.course.student.Student",), exercises=("low_rank",)),
    "11.3": Section(
        (
            "rlkit.leave_one_out",
            "rlkit.course.student.Loop",
            "rlkit.widgets.live.LiveRun",
        ),
        ("student", "layers"),
        begin_student,
    ),
    "11.4": Section(("rlkit.course.ladder",), ("student", "layers", "run"), rejoin_run),
    "11.5": Section(("rlkit.widgets.sharding",), exercises=("reduce_scatter",)),
    "11.6": Section(("rlkit.memory.Ranks", "rlkit.widgets.ranks.LiveRanks")),
    "11.7": Section((), ("wide", "sizes", "alone", "watch"), rejoin_alone),
    "11.8": Section(("rlkit.plan",), ("two",), rejoin_two),
}


# --- plans


def plans() -> list[dict[str, Any]]:
    """The shipped plans: {"ranks", "head", "peak" and a column for each category}, in bytes."""
    with data_path("plans", "ranks.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [{k: v if k == "head" else int(v) for k, v in row.items()} for row in rows]


def make_plans() -> None:
    """Plans them anew."""
    from rlkit import plan
    from rlkit.memory import CATEGORIES

    found = []
    for head in ("full", "fused"):
        for ranks in RANKS:
            made = plan("Qwen3-0.6B", "grpo", fsdp=ranks, head=head, **PLANNED)
            row = {"ranks": ranks, "head": head, "peak": made.peak}
            row |= {c: made.at_peak.by_category.get(c, 0) for c in CATEGORIES}
            print(row, flush=True)
            found.append(row)
    with data_path("plans", "ranks.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, found[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    make_plans()
