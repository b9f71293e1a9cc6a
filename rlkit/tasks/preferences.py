"""Preference pairs: which of two completions a judge prefers, as reward models learn from them.

    u = RIGHT * (the sum is right) - SHORT * (characters)
    P(a is preferred to b) = sigmoid(u_a - u_b)          Bradley and Terry's noise

The completions are the adder's own, of training prompts of `sums`. The judge wants right answers
and short ones, and errs the more often the less two answers differ to it. Nearly all answers to a
prompt are equally long, so brevity decides few pairs; but where it does it outweighs a right sum.
A reward model learns both, and a policy that nothing holds back takes the easier one.

The reward model starts from the adder taught by the chosen completions, as reward models start from
supervised models (Ouyang et al. 2022, arXiv:2203.02155).
Left out on purpose: ties, several judges, chat.

    python -m rlkit.tasks.preferences data      writes data/preferences/ again (a minute)
    python -m rlkit.tasks.preferences train     makes data/reward/ again (a minute)
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rlkit.paths import data_path
from rlkit.tasks.arithmetic import load, numbers_of, prompt_of, read_rows
from rlkit.tasks.preference_cards import PAIRS as PAIRS_CARD
from rlkit.tasks.preference_cards import REWARD as REWARD_CARD

if TYPE_CHECKING:
    from rlkit.reward_model import RewardModelTrainer

RIGHT, SHORT = 4.0, 4.4
SEED = 11
HELD_OUT_PROMPTS = 500
DRAWN = 8  # completions of each prompt
TEMPERATURE = 1.3
PAIRS = 4  # at most, of each prompt
PROMPTS_AT_ONCE = 500

TUNING_SEED, REWARD_SEED = 0, 42
TUNING_UPDATES, TUNING_BATCH = 100, 128
SETTINGS = dict(
    max_steps=400,
    per_device_train_batch_size=64,
    learning_rate=1e-3,
    adam_beta2=0.99,
    warmup_steps=20,
    center_rewards_coefficient=0.01,
    seed=REWARD_SEED,
)
TARGET = 0.87  # of held-out pairs in order; else nothing is written

Pair = dict[str, str]


def utility(completion: str, answer: str) -> float:
    """What a completion is worth to the judge."""
    return RIGHT * (completion == answer) - SHORT * len(completion)


def judge(a: str, b: str, answer: str, rng: random.Random) -> tuple[str, str]:
    """(chosen, rejected): the better of two is the likelier choice."""
    chance = 1 / (1 + math.exp(utility(b, answer) - utility(a, answer)))
    return (a, b) if rng.random() < chance else (b, a)


def pairs_of(
    prompt: str, answer: str, completions: Sequence[str], rng: random.Random
) -> list[Pair]:
    """At most PAIRS judged pairs of a prompt, of completions that differ to the judge."""
    texts = sorted(set(completions))
    unequal = [
        (a, b)
        for i, a in enumerate(texts)
        for b in texts[i + 1 :]
        if utility(a, answer) != utility(b, answer)
    ]
    picked = rng.sample(unequal, min(PAIRS, len(unequal)))
    judged = [judge(a, b, answer, rng) for a, b in picked]
    return [{"prompt": prompt, "chosen": c, "rejected": r, "answer": answer} for c, r in judged]


def agreement(rows: Sequence[Pair]) -> float:
    """How often the judge chose what is worth more to it: the most that can be learned."""
    better = [
        utility(row["chosen"], row["answer"]) > utility(row["rejected"], row["answer"])
        for row in rows
    ]
    return sum(better) / len(better)


# ---- the data set


def pairs_path(split: str) -> Path:
    """data/preferences/sums_{train,eval}.jsonl."""
    return data_path("preferences", f"sums_{split}.jsonl")


def load_preferences(split: str) -> list[Pair]:
    """Rows {"prompt", "chosen", "rejected", "answer"} in TRL's form; split: "train" or "eval"."""
    return read_rows(pairs_path(split))


def drawn(rows: Sequence[dict[str, str]]) -> Iterator[list[str]]:
    """DRAWN completions of the adder to each row's prompt, without those that never end."""
    from rlkit.policy import Policy, load_model, load_tokenizer
    from rlkit.prompts import Prompts
    from rlkit.rollout import generate
    from rlkit.sampling import Sampler

    tokenizer, policy = load_tokenizer("adder"), Policy(load_model("adder")).eval()
    prompts = Prompts(rows, tokenizer, field="rows")
    for step, first in enumerate(range(0, len(rows), PROMPTS_AT_ONCE)):
        some = range(first, min(first + PROMPTS_AT_ONCE, len(rows)))
        rollout = generate(
            policy,
            *prompts.batch(some, policy.device),
            Sampler(seed=SEED, step=step, temperature=TEMPERATURE),
            num_generations=DRAWN,
            max_completion_length=8,
            eos_ids=[tokenizer.eos_token_id],
            pad_id=tokenizer.pad_token_id,
        )
        ids = [i[m].tolist() for i, m in zip(rollout.completion_ids, rollout.mask, strict=True)]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        ended = rollout.finished.tolist()
        for k in range(0, len(texts), DRAWN):
            yield [t for t, e in zip(texts[k : k + DRAWN], ended[k : k + DRAWN], strict=True) if e]


def make_pairs() -> dict[str, list[Pair]]:
    """{"train": ..., "eval": ...}, with no two numbers in common, in either order."""
    rows, rng = load("sums").train, random.Random(SEED)
    held_out, rest = rows[:HELD_OUT_PROMPTS], rows[HELD_OUT_PROMPTS:]
    splits = {"train": [*rest, *map(turned, rest)], "eval": held_out}
    made = {}
    for split, part in splits.items():
        judged = (
            pairs_of(row["prompt"], row["answer"], completions, rng)
            for row, completions in zip(part, drawn(part), strict=True)
        )
        made[split] = [pair for pairs in judged for pair in pairs]
    return made


def turned(row: dict[str, str]) -> dict[str, str]:
    """`27+58=` -> `58+27=`."""
    a, b = numbers_of(row["prompt"])
    return row | {"prompt": prompt_of((b, a))}


def write_data(folder: Path) -> None:
    """Write both files and their card, the same bytes again on the same machine."""
    made = make_pairs()
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in made.items():
        text = "\n".join(map(json.dumps, rows)) + "\n"
        (folder / f"sums_{split}.jsonl").write_text(text, encoding="utf-8", newline="\n")
    card = pairs_card(made)
    (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")


def pairs_card(made: dict[str, list[Pair]]) -> str:
    """The card of data/preferences/."""
    train, held_out = made["train"], made["eval"]
    uneven = [row for row in train if len(row["chosen"]) != len(row["rejected"])]
    shorter = [row for row in uneven if len(row["chosen"]) < len(row["rejected"])]
    return PAIRS_CARD.format(
        train=len(train),
        held_out=len(held_out),
        train_prompts=len({row["prompt"] for row in train}),
        held_out_prompts=len({row["prompt"] for row in held_out}),
        train_agreement=agreement(train),
        held_out_agreement=agreement(held_out),
        right=RIGHT,
        short=SHORT,
        uneven=len(uneven) / len(train),
        short_wins=len(shorter) / len(uneven),
        drawn=DRAWN,
        temperature=TEMPERATURE,
        pairs=PAIRS,
    )


# ---- the reward model


def tuned(rows: Sequence[Pair]) -> torch.nn.Module:
    """The adder, taught by the chosen completions: the trunk from which the reward model starts.

    A score has to tell what the trunk knows; the careless adder knows half of it wrong.
    """
    from rlkit.policy import load_model, load_tokenizer
    from rlkit.tasks.pretrain import batch_loss, make_batch, make_optimizers

    model, tokenizer = load_model("adder"), load_tokenizer("adder")
    optimizers, rng = make_optimizers(model), random.Random(TUNING_SEED)
    for i in range(TUNING_UPDATES):
        texts = [row["prompt"] + row["chosen"] for row in rng.sample(rows, TUNING_BATCH)]
        batch_loss(model, *make_batch(texts, tokenizer)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                share = min(1.0, (i + 1) / 10) * (1 - i / TUNING_UPDATES)
                group["lr"] = group["initial_lr"] * share
            optimizer.step()
            optimizer.zero_grad()
    return model


def reward_trainer() -> "RewardModelTrainer":
    """The trainer of data/reward/, before its first step; it starts from `tuned`."""
    from rlkit.policy import load_tokenizer
    from rlkit.reward_model import RewardConfig, RewardModelTrainer, load_reward_model

    train, held_out = (load_preferences(split) for split in ("train", "eval"))
    model = load_reward_model("adder", seed=REWARD_SEED)
    model.base_model.load_state_dict(tuned(train).base_model.state_dict())
    args = RewardConfig(**SETTINGS)
    return RewardModelTrainer(model, args, train, held_out, load_tokenizer("adder"))


def train_reward_model() -> "RewardModelTrainer":
    """Tuning and training from the start; takes well under a minute on two cores."""
    torch.set_num_threads(1)
    trainer = reward_trainer()
    trainer.train()
    return trainer


def make_reward_model(folder: Path) -> None:
    """Train it, and write it if it is good enough. Raises RuntimeError if it is not."""
    began = time.perf_counter()
    trainer = train_reward_model()
    accuracy = trainer.evaluate()["accuracy"]
    seconds = time.perf_counter() - began
    print(f"held-out pairs in order {accuracy:.3f}, after {seconds:.0f} s", flush=True)
    if accuracy < TARGET:
        raise RuntimeError(f"{accuracy:.3f} is below {TARGET}; nothing was written")
    write_reward_model(trainer, accuracy, folder)


def write_reward_model(trainer: "RewardModelTrainer", accuracy: float, folder: Path) -> None:
    """The folder of the reward model: weights, configuration, tokenizer, card."""
    from rlkit.tasks.pretrain import make_tokenizer

    trainer.save(folder)
    make_tokenizer().save_pretrained(folder)  # a used one would save how it padded last
    card = REWARD_CARD.format(
        parameters=sum(p.numel() for p in trainer.model.parameters()),
        pairs=len(trainer.eval_pairs),
        accuracy=accuracy,
        tuning=TUNING_UPDATES,
        steps=trainer.steps,
        batch=trainer.args.per_device_train_batch_size,
    )
    (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")
    for path in folder.iterdir():
        path.chmod(0o644)


def main() -> None:
    """python -m rlkit.tasks.preferences data | train."""
    parser = argparse.ArgumentParser(prog="python -m rlkit.tasks.preferences")
    commands = parser.add_subparsers(dest="command", required=True)
    data = commands.add_parser("data", help="draw and judge the pairs again")
    data.add_argument("--out", type=Path, default=data_path("preferences"))
    model = commands.add_parser("train", help="make the reward model again")
    model.add_argument("--out", type=Path, default=data_path("reward"))
    args = parser.parse_args()
    (write_data if args.command == "data" else make_reward_model)(args.out)


if __name__ == "__main__":
    main()
