"""Page 10, RLHF: sections, and what its cells define, for a kernel that lost it."""

from typing import Any

from rlkit.course.pages.page_03 import logp_of
from rlkit.course.pages.section import Section


def load_pairs() -> dict[str, Any]:
    """Section 10.2's pairs."""
    from rlkit.tasks.preferences import load_preferences

    return {"pairs": load_preferences("train"), "held_out": load_preferences("eval")}


def judge_class() -> type:
    """Section 10.3's model: the adder with a score in the place of its logits."""
    import torch
    from torch import nn

    from rlkit.course.exercises.last_score import last_score
    from rlkit.course.student import Student

    class Judge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            student = Student()
            self.model, self.trunk = student.model, student.policy.backbone
            torch.manual_seed(0)
            self.score = nn.Linear(student.model.config.hidden_size, 1, False)
            nn.init.normal_(self.score.weight, std=0.02)

        def forward(self, ids: Any, mask: Any) -> Any:
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            hidden = self.trunk(ids, mask, positions)  # [B, S, H]
            return last_score(self.score(hidden).squeeze(-1), mask)

    return Judge


def tokens(texts: list[str]) -> tuple[Any, Any]:
    """Section 10.3's: ids and mask [B, S] of texts, each with its EOS."""
    from rlkit.policy import load_tokenizer
    from rlkit.prompts import pad_left

    tokenizer = load_tokenizer("adder")
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    end = [tokenizer.eos_token_id]
    return pad_left([row + end for row in ids], tokenizer.pad_token_id, "cpu")


def two_scores(judge: Any, pairs: list[dict[str, str]]) -> Any:
    """Section 10.3's: scores of the chosen and of the rejected answers."""
    sides = ("chosen", "rejected")
    texts = [pair["prompt"] + pair[k] for k in sides for pair in pairs]
    return judge(*tokens(texts)).chunk(2)


def make_step(student: Any, beta: float) -> Any:
    """Section 10.6's: k -> one step of RLOO on the shipped judge."""
    import torch

    from rlkit.advantages import leave_one_out
    from rlkit.course.judged import load_judge, scores
    from rlkit.course.student import Student

    reference, judge = Student(), load_judge()
    weights = list(student.model.parameters())
    adam = torch.optim.AdamW(weights, 3e-4, weight_decay=0.0)

    def step(k: int) -> dict[str, float]:
        rollout = student.sample(k, prompts=64, num_generations=8)
        logp = logp_of(student, rollout)
        with torch.no_grad():
            moved = (logp - logp_of(reference, rollout)).sum(1)
        learned = scores(judge, rollout)
        A = leave_one_out(learned - beta * moved, 8)
        adam.zero_grad()
        (-A * logp.sum(1)).mean().backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        adam.step()
        means = learned.mean(), rollout.rewards.mean(), moved.mean()
        return dict(zip(("reward", "right", "kl"), map(float, means), strict=True))

    return step


def with_judge() -> dict[str, Any]:
    """What section 10.3 leaves behind, but for the learner's own judge."""
    from rlkit.course.judged import load_judge
    from rlkit.policy import load_tokenizer

    made = {"Judge": judge_class(), "tokens": tokens, "two_scores": two_scores}
    return load_pairs() | made | {"tokenizer": load_tokenizer("adder"), "judge": load_judge()}


def begin_training() -> dict[str, Any]:
    """What the runs need."""
    return with_judge() | {"logp_of": logp_of, "make_step": make_step}


def kept_run(name: str) -> tuple[Any, Any] | None:
    """A student and its run, from runs/<name>; None where there is none."""
    from rlkit.course.student import Loop, Student
    from rlkit.widgets import keep

    folder = keep.last_run(name)
    if folder is None:
        return None
    student = Student(folder, seed=1)
    loop = Loop(lambda k: {}, student, 24, output_dir=str(folder))
    run = keep.restore(loop, folder, score=student.task.reward)
    run.ylim = (-0.2, 2.0)
    return student, run


def rejoin_free() -> dict[str, Any]:
    """After the run without a leash; {} where none was kept."""
    kept = kept_run("page10-free")
    if kept is None:
        return {}
    free, run = kept
    asked = {"questions": free.task.eval[:5], "score": free.task.reward}
    return begin_training() | asked | {"free": free, "free_run": run}


def rejoin_held() -> dict[str, Any]:
    """After the run on the leash; {} where either was not kept."""
    kept, before = kept_run("page10"), rejoin_free()
    return before | {"held": kept[0], "run": kept[1]} if kept and before else {}


DRAWING = ("rlkit.widgets.explorer.paper", "rlkit.widgets.explorer.titled")
COLOURS = ("rlkit.widgets.explorer.COLOURS", "rlkit.widgets.explorer.INK")
JUDGE = ("pairs", "held_out", "Judge", "tokenizer", "tokens", "two_scores", "judge")
TRAINING = (*JUDGE, "logp_of", "make_step")
FREE = (*TRAINING, "questions", "score", "free", "free_run")
SECTIONS = {
    "10.1": Section(("torch", "torch.nn"), exercises=("bradley_terry",)),
    "10.2": Section(("rlkit.tasks.preferences.load_preferences",)),
    "10.3": Section(
        (
            "rlkit.course.student.Student",
            "rlkit.course.judged.load_judge",
            "rlkit.course.judged.updates",
            "rlkit.prompts.pad_left",
        ),
        ("pairs", "held_out"),
        load_pairs,
        exercises=("last_score",),
    ),
    "10.4": Section((*DRAWING, *COLOURS), JUDGE, with_judge),
    "10.5": Section(
        ("rlkit.course.judged", "rlkit.course.judged.scores"),
        JUDGE,
        with_judge,
        exercises=("best_of",),
    ),
    "10.6": Section(
        (
            "rlkit.leave_one_out",
            "rlkit.course.student.Loop",
            "rlkit.widgets.live.LiveRun",
        ),
        JUDGE,
        with_judge,
    ),
    "10.7": Section(("collections.Counter",), FREE, rejoin_free),
    "10.8": Section(("rlkit.widgets.beta.BetaExplorer",), FREE, rejoin_free),
    "10.9": Section(
        (
            "rlkit.course.evidence",
            "rlkit.course.ladder",
            "rlkit.PPOConfig",
            "rlkit.PPOTrainer",
            "rlkit.data_path",
            "rlkit.tasks.load_task",
        ),
        (*FREE, "held", "run"),
        rejoin_held,
    ),
    "10.10": Section(
        (
            "rlkit.bench.algorithms",
            "rlkit.claims",
            "rlkit.course.scales.weigh",
            "rlkit.widgets.memory_bars.memory_bars",
        )
    ),
    "10.11": Section(
        (
            "textwrap",
            "rlkit.RewardConfig",
            "rlkit.RewardModelTrainer",
            "rlkit.advantages.sequence_rewards",
        ),
        TRAINING,
        begin_training,
    ),
}
