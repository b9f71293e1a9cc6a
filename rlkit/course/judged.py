"""A policy that learns from a reward model, watched from outside on held-out prompts.

    learned   the reward model's mean score of sampled answers
    right     the share of them that are right, which nobody is paid for
    greedy    the same for the likeliest answers, as everywhere else in rlkit
    short     the share with fewer characters than the right answer: what this judge overrates
    kl        nats an answer from the policy of before: sum_t KL(p_t || q_t) over whole
              distributions, averaged over the sampled answers (less noise than log-ratios)

Page 10 draws these; its evidence measures them along training, for several beta.
Over-optimisation: Gao et al. 2022, arXiv:2210.10760.

    python -m rlkit.course.judged       measures data/curves/rlhf.csv and best_of.csv again (half
                                        an hour on one core)
"""

import copy
import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlkit.course.student import Student
from rlkit.paths import data_path
from rlkit.prompts import Prompts
from rlkit.reward_model import RewardModel, load_reward_model
from rlkit.rollout import Rollout, generate
from rlkit.sampling import Sampler
from rlkit.widgets.live import FAST_STEPS
from rlkit.widgets.story import is_set

Row = dict[str, float]


def load_judge() -> RewardModel:
    """The shipped reward model as a function of ids and mask, frozen."""
    return RewardModel(load_reward_model(data_path("reward"))).requires_grad_(False).eval()


@torch.no_grad()
def scores(judge: RewardModel, rollout: Rollout, at_once: int = 1024) -> Tensor:
    """The judge's score of each prompt with its completion, [B]."""
    ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], 1)
    mask = torch.cat([rollout.prompt_mask, rollout.mask], 1)
    parts = zip(ids.split(at_once), mask.split(at_once), strict=True)
    return torch.cat([judge(*part) for part in parts])


class HeldOut:
    """The held-out prompts of `sums`, a judge, and the policy of before."""

    def __init__(self, judge: RewardModel, before: Student | None = None, seed: int = 0) -> None:
        """seed: of the answers that are drawn."""
        self.judge, self.before, self.seed = judge, before or Student(), seed
        self.rows = self.before.task.eval
        self._prompts = Prompts(self.rows, self.before.tokenizer, field="eval")

    def draw(self, student: Student, n: int = 1) -> Rollout:
        """n sampled answers to each prompt; rewards [B] say which are right."""
        tokenizer, policy = student.tokenizer, student.policy.eval()
        rollout = generate(
            policy,
            *self._prompts.batch(range(len(self.rows)), policy.device),
            Sampler(seed=self.seed),
            num_generations=n,
            max_completion_length=8,
            eos_ids=[tokenizer.eos_token_id],
            pad_id=tokenizer.pad_token_id,
        )
        answers = self.answers(n)
        right = [a == b for a, b in zip(student.texts(rollout), answers, strict=True)]
        return rollout.replace(rewards=torch.tensor(right).float()).rows(slice(None))

    def answers(self, n: int = 1) -> list[str]:
        """The right answer of each row that `draw` makes."""
        return [row["answer"] for row in self.rows for _ in range(n)]

    def look(self, student: Student) -> Row:
        """learned, right, greedy, short and kl of a policy."""
        rollout = self.draw(student)
        pairs = zip(student.texts(rollout), self.answers(), strict=True)
        return {
            "learned": float(scores(self.judge, rollout).mean()),
            "right": float(rollout.rewards.mean()),
            "greedy": student.evaluate()["accuracy"],
            "short": sum(len(text) < len(right) for text, right in pairs) / len(rollout),
            "kl": float(kl(student, self.before, rollout).mean()),
        }

    def best_of(self, sizes: Sequence[int]) -> dict[int, Row]:
        """The policy of before, with the judge choosing the best of n answers, for each n.

        Every n divides the largest; the draws of the largest are used for all.
        """
        most = max(sizes)
        rollout = self.draw(self.before, most)
        judged, right = scores(self.judge, rollout), rollout.rewards
        found = {}
        for n in sizes:
            learned = judged.view(-1, n).amax(1).mean()
            found[n] = {"learned": float(learned), "right": float(share_right(judged, right, n))}
        return found


def share_right(scores: Tensor, right: Tensor, n: int) -> Tensor:
    """Share of right ones, a number, among the best-scored of each n neighbours.

    scores, right: [P, N] or flat, prompt by prompt; n divides N.
    """
    picked = scores.view(-1, n).argmax(1)
    return right.view(-1, n).gather(1, picked[:, None]).mean()


@torch.no_grad()
def kl(student: Student, before: Student, rollout: Rollout) -> Tensor:
    """Nats of each completion from `before`, [B]."""
    logp, logq = (each.logits(rollout).log_softmax(-1) for each in (student, before))
    each_token = (logp.exp() * (logp - logq)).sum(-1)  # [B, T]
    return torch.where(rollout.mask, each_token, 0.0).sum(1)


def updates(count: int) -> range:
    """0, 1, ... count - 1; three of them under RLKIT_FAST, as live runs have."""
    return range(min(count, FAST_STEPS) if is_set("RLKIT_FAST") else count)


# --- the library's trainers, watched


def trainer(algorithm: str, beta: float, steps: int, seed: int = 1, **settings: Any) -> Any:
    """PPO or RLOO on the adder, `sums` and the shipped reward model; right answers earn nothing."""
    from rlkit.cli import algorithms
    from rlkit.tasks import load_task

    task, (trainer_class, config_class) = load_task("sums"), algorithms()[algorithm]
    own = {"value_model": "reward"} if algorithm == "ppo" else {}
    fixed = dict(beta=beta, max_steps=steps, seed=seed, reward_weights=(0.0, 1.0))
    quiet = dict(eval_steps=None, disable_tqdm=True)
    args = config_class.preset("tiny", "sums", **(fixed | quiet | own | settings))
    return trainer_class("adder", [task.reward, data_path("reward")], args, task.train)


def watched(one: Any, held_out: HeldOut, every: int = 1) -> list[Row]:
    """Train to the end; a row {"step", "learned", "right", "short", "kl"} before and on the way."""
    student = copy.copy(held_out.before)
    student.policy, student.model = one.policy, one.policy.model
    rows = [{"step": 0} | held_out.look(student)]
    for k in range(one.args.max_steps):
        one.history.append(one.step(k))
        if (k + 1) % every == 0:
            rows.append({"step": k + 1} | held_out.look(student))
    return rows


# --- what page 10 shows, measured

BETAS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
STEPS = {"ppo": 20, "rloo": 60}
"""Of 512 answers each, as in the preset tiny: PPO takes four updates a step, RLOO one."""
LOOKS = 20
SIZES = (1, 2, 4, 8, 16, 32, 64)
TOKENS = dict(
    num_generations=8, per_device_train_batch_size=512, steps_per_generation=1, num_iterations=1
)
"""PPO on RLOO's terms: the same prompts, as many answers to each, one update a step."""


def run(algorithm: str, beta: float, seed: int, held_out: HeldOut) -> list[Row]:
    """Rows of one training: before, and twenty on the way.

    algorithm: "ppo", "rloo", or "tokens", which is PPO on RLOO's terms.
    """
    if algorithm == "tokens":
        one = trainer("ppo", beta, STEPS["rloo"], seed, **TOKENS)
    else:
        one = trainer(algorithm, beta, STEPS[algorithm], seed)
    return watched(one, held_out, one.args.max_steps // LOOKS)


CURVES, BEST_OF = "rlhf.csv", "best_of.csv"
RUNS = [(a, beta) for beta in BETAS for a in ("rloo", "ppo")] + [("tokens", 0.5)]


def curves(path: Path | None = None) -> list[dict[str, Any]]:
    """What was measured: {"algorithm", "beta", "seed", "step", "learned", ...}; see `run`."""
    return read(path or data_path("curves", CURVES))


def best_of_curves(path: Path | None = None) -> list[dict[str, Any]]:
    """{"seed", "n", "learned", "right"}: the policy of before, n answers, the judge's choice."""
    return read(path or data_path("curves", BEST_OF))


def kl_bound(n: int) -> float:
    """Nats, at most, of the best of n from the policy that drew them: log n - (n - 1) / n.

    Equal to it where no two answers are the same (Beirami et al. 2024, arXiv:2401.01879).
    """
    return math.log(n) - (n - 1) / n


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a CSV file, all numbers but the algorithm."""
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [{k: v if k == "algorithm" else float(v) for k, v in row.items()} for row in rows]


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A CSV file of four digits."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(rows[0])
        for row in rows:
            out.writerow([f"{v:.4g}" if isinstance(v, float) else v for v in row.values()])


def best_of_rows(seed: int, held_out: HeldOut) -> list[dict[str, Any]]:
    """Of one seed."""
    return [{"seed": seed, "n": n} | row for n, row in held_out.best_of(SIZES).items()]


def main() -> None:
    """Measure everything that the page draws."""
    held_out = {seed: HeldOut(load_judge(), seed=seed) for seed in (1, 2, 3)}
    best = [row for seed, each in held_out.items() for row in best_of_rows(seed, each)]
    write(data_path("curves", BEST_OF), best)
    rows = []
    for algorithm, beta in RUNS:
        for seed, each in held_out.items():
            first = {"algorithm": algorithm, "beta": beta, "seed": seed}
            rows += [first | row for row in run(algorithm, beta, seed, each)]
            print(rows[-1], flush=True)
    write(data_path("curves", CURVES), rows)


if __name__ == "__main__":
    main()
