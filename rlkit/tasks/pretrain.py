"""Make the base model of data/adder/: supervised learning from a teacher that grows careless.

    loss = -mean_t log p(answer_t | prompt, answer_<t)          t over answer and EOS, not prompt

First the teacher is right, until the model can add. Then the teacher makes the mistakes of
teacher.py, and the model comes to answer as the teacher does: always in the right form, often
wrong, the right answer seldom far away. This is what reinforcement learning can sharpen. (Stopped
early instead, the model is wrong and sure of it, and learns by RL ten times slower.)

Bit for bit the same on the same machine: one thread, fixed seeds, fresh text for every update.

    python -m rlkit.tasks.arithmetic pretrain
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from rlkit.tasks import Task, arithmetic
from rlkit.tasks.cards import adder_card
from rlkit.tasks.teacher import CARELESS, RIGHT, Teacher, lesson

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = "0123456789+="
CONTEXT = 128
IGNORE = -100  # a label that F.cross_entropy leaves out

SEED = 7
BATCH = {"sums": 112, "steps": 72}
WARM_UP = 50  # updates
SKILL = {"sums": 0.97, "steps": 0.80}  # greedy accuracy that ends the lessons of a right teacher
MAX_UPDATES = 1500
CARELESS_UPDATES = 200
PROBE_EVERY, PROBE_SIZE = 50, 256
# what the model is for, held against the eval sets: greedy on sums, sampled on steps
TARGET = {"sums greedy": (0.40, 0.65), "steps sampled": (0.30, 0.50)}
SAMPLES = 4  # a prompt, in the figures of the data card

Say = Callable[[str], None]


# ---- the model and its tokenizer


def make_tokenizer() -> "PreTrainedTokenizerFast":
    """One token a character; pads on the left; pad is not EOS, so that EOS can be learned."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([PAD, EOS, UNKNOWN, *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=CONTEXT,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: "PreTrainedTokenizerFast") -> "Qwen3ForCausalLM":
    """An untrained Qwen3 model of 0.59M parameters, small enough for RL on one core."""
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        dtype="float32",
        **ends,
    )
    torch.manual_seed(SEED)
    model = Qwen3ForCausalLM(config)
    longest = max(completion for completion, _ in arithmetic.LENGTHS.values())
    model.generation_config = GenerationConfig(max_new_tokens=longest, **ends)
    return model


# ---- one update


def make_batch(texts: list[str], tokenizer: "PreTrainedTokenizerFast") -> tuple[Tensor, Tensor]:
    """(ids, labels), both [B, T], padded on the right; labels only on completion and EOS."""
    rows = [tokenizer.convert_tokens_to_ids([*text, EOS]) for text in texts]
    width = max(map(len, rows))
    ids, labels = [], []
    for text, row in zip(texts, rows, strict=True):
        start, rest = text.index("=") + 1, width - len(row)
        ids.append(row + [tokenizer.pad_token_id] * rest)
        labels.append([IGNORE] * start + row[start:] + [IGNORE] * rest)
    return torch.tensor(ids), torch.tensor(labels)


def batch_loss(model: torch.nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of the labelled tokens. No mask: pads come last, nothing sees them."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]  # [B, T-1, V]
    return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE)


def make_optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices (AdamW needs nearly twice the updates), AdamW for the rest."""
    named = dict(model.named_parameters())
    matrices = [name for name, p in named.items() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in named.items() if name not in matrices]
    optimizers = [
        torch.optim.Muon([named[name] for name in matrices], lr=1e-2, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


@dataclass
class Pretraining:
    """A model in training, with all that decides its next update."""

    tokenizer: "PreTrainedTokenizerFast" = field(default_factory=make_tokenizer)
    rng: random.Random = field(default_factory=lambda: random.Random(SEED))
    updates: int = 0

    def __post_init__(self) -> None:
        self.model = make_model(self.tokenizer)
        self.optimizers = make_optimizers(self.model)
        self.unseen = arithmetic.held_out()

    def update(self, teachers: dict[str, Teacher], share: float) -> float:
        """One optimizer step on fresh texts of every task; returns the loss, summed over tasks.

        share: of the full learning rates.
        """
        loss = sum(batch_loss(self.model, *self.batch(*lessons)) for lessons in teachers.items())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * share
            optimizer.step()
            optimizer.zero_grad()
        self.updates += 1
        return loss.item()

    def batch(self, name: str, teacher: Teacher) -> tuple[Tensor, Tensor]:
        """(ids, labels) [B, T] of a task's next texts."""
        texts = [lesson(name, teacher, self.unseen, self.rng) for _ in range(BATCH[name])]
        return make_batch(texts, self.tokenizer)


# ---- measuring


def complete(model: torch.nn.Module, tokenizer, prompts: list[str], **how: object) -> Tensor:
    """Completion ids [B, T], drawn by transformers' own generate with a seed of their own."""
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        ids = model.generate(**inputs, **how)
    return ids[:, inputs.input_ids.shape[1] :]


def accuracy(
    model: torch.nn.Module, tokenizer, task: Task, rows: list[dict[str, str]], sample: bool
) -> float:
    """Mean reward of a completion a row: greedy, or sampled at temperature 1."""
    prompts = [row["prompt"] for row in rows]
    how = {"do_sample": True, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}
    ids = complete(model, tokenizer, prompts, max_new_tokens=task.max_completion_length, **how)
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    rewards = task.reward(prompts, texts, answer=[row["answer"] for row in rows])
    return sum(rewards) / len(rewards)


def measure(model: torch.nn.Module, tokenizer, split: str, count: int, samples: int = 1) -> dict:
    """{"sums greedy": 0.55, "sums sampled": ..., "steps greedy": ..., "steps sampled": ...}.

    split: "train" or "eval", of which the first `count` rows; samples: completions a prompt.
    """
    found = {}
    for name in CARELESS:
        task = arithmetic.load(name)
        rows = getattr(task, split)[:count]
        found[f"{name} greedy"] = accuracy(model, tokenizer, task, rows, sample=False)
        found[f"{name} sampled"] = accuracy(model, tokenizer, task, rows * samples, sample=True)
    return found


# ---- the two halves of the training


def learn(run: Pretraining, say: Say) -> None:
    """Right answers until the model can add.

    The skill comes suddenly and not always at the same update, so accuracy ends this, not a count.
    Raises RuntimeError after MAX_UPDATES.
    """
    teachers = dict.fromkeys(CARELESS, RIGHT)
    while run.updates < MAX_UPDATES:
        loss = run.update(teachers, share=min(1.0, (run.updates + 1) / WARM_UP))
        if run.updates % PROBE_EVERY == 0:
            found = probe(run, loss, say)
            if all(found[f"{name} greedy"] >= bar for name, bar in SKILL.items()):
                return
    raise RuntimeError(f"the model cannot add after {MAX_UPDATES} updates: {found}")


def unlearn(run: Pretraining, say: Say) -> None:
    """Careless answers, at a learning rate that falls to 0."""
    for i in range(CARELESS_UPDATES):
        loss = run.update(CARELESS, share=1 - i / CARELESS_UPDATES)
        if run.updates % PROBE_EVERY == 0:
            probe(run, loss, say)


def probe(run: Pretraining, loss: float, say: Say) -> dict[str, float]:
    """Measure on training prompts, and say it in one line."""
    found = measure(run.model, run.tokenizer, "train", PROBE_SIZE)
    figures = "  ".join(f"{name} {value:.2f}" for name, value in found.items())
    say(f"update {run.updates:4d}  loss {loss:.3f}  {figures}")
    return found


def check_target(found: dict[str, float]) -> None:
    """Raises RuntimeError if the model is no base for the lessons."""
    for name, (low, high) in TARGET.items():
        if not low <= found[name] <= high:
            raise RuntimeError(
                f"{name} is {found[name]:.3f}, outside {low} to {high}; nothing was written: "
                "change the chances in rlkit/tasks/teacher.py"
            )


def pretrain(out: Path) -> None:
    """Make the model and write its folder: weights, configuration, tokenizer, data card."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    began = time.perf_counter()

    def say(line: str) -> None:
        print(f"{time.perf_counter() - began:4.0f} s  {line}", flush=True)

    run = Pretraining()
    learn(run, say)
    say("the model can add; from here on the teacher is careless")
    unlearn(run, say)
    found = measure(run.model, run.tokenizer, "eval", arithmetic.EVAL_SIZE, SAMPLES)
    for name, value in found.items():
        say(f"eval, {name}: {value:.3f}")
    check_target(found)
    write(run, found, out)
    say(f"written: {out}")


def write(run: Pretraining, found: dict[str, float], out: Path) -> None:
    """The folder, readable by everyone."""
    run.model.save_pretrained(out)
    make_tokenizer().save_pretrained(out)  # a used one would save how it padded last
    parameters = sum(p.numel() for p in run.model.parameters())
    card = adder_card(found, parameters, run.updates, SAMPLES)
    (out / "README.md").write_text(card, encoding="utf-8", newline="\n")
    for path in out.iterdir():
        path.chmod(0o644)
