"""Make the base model of data/adder/: supervised learning on answers that were made careless.

    loss = -sum_t log p(answer_t | prompt, answer_<t)        over worked answers, some of them wrong

The teacher adds with two faults: it forgets to carry, and it slips by one in a digit. A model
trained on it knows the form of an answer and gives the right one with about the teacher's
probability. On `sums` the teacher forgets the carry more often than not, so that greedy decoding
is wrong on most sums with a carry; on `steps` each addition is more often right than wrong, and a
chain of two to four of them holds less than half of the time.

First the teacher is right, until the model can add; then it is careless, until the model is too.

    python -m rlkit.tasks.arithmetic pretrain
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from rlkit.tasks import Task, arithmetic
from rlkit.tasks.arithmetic import HeldOut, Numbers

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = "0123456789+="
IGNORE = -100
CONTEXT = 128
SEED = 7
BATCH = {"sums": 128, "steps": 64}
SKILL = {"sums": 0.97, "steps": 0.85}
PROBE = 256
MAX_UPDATES = 1500
CARELESS_UPDATES = 150


@dataclass(frozen=True)
class Teacher:
    """How often an addition goes wrong.

    forget: chance to forget the carry from the units, where there is one.
    slip: chance to be off by one in one digit, otherwise.
    """

    forget: float
    slip: float

    def add(self, a: int, b: int, rng: random.Random) -> int:
        """a + b, or a near miss with as many digits."""
        right = a + b
        if a % 10 + b % 10 >= 10 and right >= 20 and rng.random() < self.forget:
            return right - 10
        if rng.random() < self.slip:
            return slipped(right, rng)
        return right


def slipped(number: int, rng: random.Random) -> int:
    """One digit up or down by one; as many digits as before."""
    place = 10 ** rng.randrange(len(str(number)))
    digit = number // place % 10
    lowest = 1 if place * 10 > number else 0
    ways = [step for step in (-1, 1) if lowest <= digit + step <= 9]
    return number + place * rng.choice(ways)


RIGHT = Teacher(forget=0.0, slip=0.0)
CARELESS = {"sums": Teacher(forget=0.7, slip=0.2), "steps": Teacher(forget=0.3, slip=0.12)}


# ---- the model and its tokenizer


def make_tokenizer():
    """One token a character; pads on the left; pad and EOS differ, so that EOS can be learned."""
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


def make_model(tokenizer, seed: int = SEED):
    """An untrained Qwen3 model, small enough to train by RL on one core."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
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
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


# ---- batches


def example(numbers: Numbers, teacher: Teacher, unseen: HeldOut, rng: random.Random) -> str:
    """Prompt and worked answer in one text, as the teacher writes it.

    After a wrong step the teacher adds numbers that the prompt does not hold; where it would add
    a held-out pair, it starts again.
    """
    while True:
        added = []

        def add(a: int, b: int) -> int:
            added.append(arithmetic.pair(a, b))
            return teacher.add(a, b, rng)

        completion = arithmetic.worked(numbers, add)
        if unseen.pairs.isdisjoint(added):
            return arithmetic.prompt_of(numbers) + completion


def draw(name: str, unseen: HeldOut, rng: random.Random) -> Numbers:
    """Numbers of a prompt that training may show."""
    while True:
        if name == "steps":
            numbers = arithmetic.draw_steps(rng)
        else:
            numbers = (rng.randint(1, 99), rng.randint(1, 99))
        if sum(numbers[:2]) >= 10 and unseen.allows(numbers):
            return numbers


def make_batch(texts: list[str]) -> tuple[Tensor, Tensor]:
    """(ids, labels), both [B, T], padded on the right; labels are set on completion and EOS."""
    ids = {c: i for i, c in enumerate(CHARACTERS, start=3)}
    length = max(map(len, texts)) + 1
    rows, labels = [], []
    for text in texts:
        row = [ids[c] for c in text] + [1]
        start = text.index("=") + 1
        pad = length - len(row)
        rows.append(row + [0] * pad)
        labels.append([IGNORE] * start + row[start:] + [IGNORE] * pad)
    return torch.tensor(rows), torch.tensor(labels)


def batch_loss(model, texts: list[str]) -> Tensor:
    """Mean cross-entropy of the completion tokens."""
    ids, labels = make_batch(texts)  # [B, T]
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]  # [B, T-1, V]
    return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE)


# ---- measuring


def accuracy(model, tokenizer, task: Task, rows: list[dict[str, str]], sample: bool) -> float:
    """Mean reward of one completion a row: greedy, or sampled at temperature 1 with a fixed seed.

    The caller's random state is left as it was.
    """
    prompts = [row["prompt"] for row in rows]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    how = {"do_sample": True, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}
    model.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        ids = model.generate(**inputs, max_new_tokens=task.max_completion_length, **how)
    model.train()
    texts = tokenizer.batch_decode(ids[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    rewards = task.reward(prompts, texts, answer=[row["answer"] for row in rows])
    return sum(rewards) / len(rewards)


def measure(model, tokenizer, split: str, count: int) -> dict[str, float]:
    """{"sums greedy": ..., "sums sampled": ..., "steps greedy": ..., "steps sampled": ...}."""
    found = {}
    for name in CARELESS:
        task = arithmetic.load(name)
        rows = getattr(task, split)[:count]
        for how in ("greedy", "sampled"):
            found[f"{name} {how}"] = accuracy(model, tokenizer, task, rows, how == "sampled")
    return found


# ---- training


@dataclass
class Pretraining:
    """A model in training, with all that decides its next update."""

    model: torch.nn.Module
    tokenizer: object
    optimizers: list[torch.optim.Optimizer]
    unseen: HeldOut
    rng: random.Random
    updates: int = 0

    def update(self, teachers: dict[str, Teacher], lr: float) -> float:
        """One optimizer step on a fresh batch of each task; returns the loss.

        lr: a factor on the rates of make_optimizers.
        """
        loss = sum(
            batch_loss(self.model, [self.text(name, teacher) for _ in range(BATCH[name])])
            for name, teacher in teachers.items()
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * lr
            optimizer.step()
            optimizer.zero_grad()
        self.updates += 1
        return loss.item()

    def text(self, name: str, teacher: Teacher) -> str:
        """A fresh prompt with the teacher's answer."""
        return example(draw(name, self.unseen, self.rng), teacher, self.unseen, self.rng)


def make_optimizers(model) -> list[torch.optim.Optimizer]:
    """Muon for the matrices (the skill arrives in half the updates), AdamW for the rest."""
    named = dict(model.named_parameters())
    matrices = [p for n, p in named.items() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in named.items() if p.ndim != 2 or "embed" in n]
    optimizers = [
        torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def start(seed: int = SEED) -> Pretraining:
    """An untrained model; everything that follows depends on the seed alone."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed)
    unseen = arithmetic.held_out()
    return Pretraining(model, tokenizer, make_optimizers(model), unseen, random.Random(seed))


def learn(run: Pretraining, say: Callable[[str], None]) -> None:
    """Right answers until the probe is passed."""
    right = dict.fromkeys(CARELESS, RIGHT)
    while run.updates < MAX_UPDATES:
        loss = run.update(right, lr=min(1.0, (run.updates + 1) / 50))
        if run.updates % 50:
            continue
        found = report(run, loss, say)
        if all(found[f"{name} greedy"] >= bar for name, bar in SKILL.items()):
            return
    raise RuntimeError(f"the model cannot add after {MAX_UPDATES} updates")


def unlearn(run: Pretraining, say: Callable[[str], None]) -> None:
    """Careless answers, at a falling learning rate, until the probe lies within the target."""
    for i in range(CARELESS_UPDATES):
        loss = run.update(CARELESS, lr=1 - i / CARELESS_UPDATES)
        if (i+1) % 50 == 0:
            report(run, loss, say)


def report(run: Pretraining, loss: float, say: Callable[[str], None]) -> dict[str, float]:
    """Measure on training prompts, say it in one line."""
    found = measure(run.model, run.tokenizer, "train", PROBE)
    line = "  ".join(f"{name} {value:.2f}" for name, value in found.items())
    say(f"update {run.updates:4d}  loss {loss:.3f}  {line}")
    return found


def pretrain(out: Path) -> None:
    """Make the model and write its folder."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    say = lambda line: print(f"{time.perf_counter() - began:4.0f} s  {line}", flush=True)
    run = start()
    learn(run, say)
    run.model.save_pretrained("/tmp/adder/learned"); run.tokenizer.save_pretrained("/tmp/adder/learned")
    unlearn(run, say)
    found = measure(run.model, run.tokenizer, "eval", arithmetic.EVAL_SIZE)
    say(str(found))
    run.model.save_pretrained(out)
    run.tokenizer.save_pretrained(out)
