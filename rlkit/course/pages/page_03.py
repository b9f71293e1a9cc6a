"""Page 03, PPO: a batch used several times (part a), a critic and its advantages (part b)."""

from typing import Any

from rlkit.course.pages.section import Section

TOOLS = (
    "torch",
    "rlkit.course.ladder",
    "rlkit.course.evidence",
    "rlkit.course.student.Loop",
    "rlkit.course.student.Student",
    "rlkit.widgets.live.LiveRun",
)
CRITIC = ("rlkit.tasks.critic.load_critic", "rlkit.widgets.gae.GAEExplorer")
MORE = ("rlkit.widgets.gae.strips", "rlkit.widgets.explorer.paper", "rlkit.widgets.explorer.titled")
MAP = ("rlkit.objectives", "rlkit.advantages", "rlkit.PPOConfig", "rlkit.PPOTrainer")


def logp_of(student: Any, rollout: Any) -> Any:
    """Section 3.3's: log-probs of the completions' tokens, [B, T], 0 on padding."""
    import torch

    logp = student.logits(rollout).log_softmax(-1)  # [B, T, V]
    ids = rollout.completion_ids[..., None]
    logp = logp.gather(-1, ids).squeeze(-1)
    return torch.where(rollout.mask, logp, 0.0)


def mean_over(mask: Any, x: Any) -> Any:
    """Section 3.3's: the mean of x [B, T] over valid tokens."""
    return (x * mask).sum() / mask.sum()


def judged(rollout: Any, student: Any, critic: Any, beta: float = 0.05) -> Any:
    """Section 3.7's: a rollout with PPO's advantages and returns; the adder is the reference."""
    import torch

    from rlkit import advantages
    from rlkit.course.student import Student

    with torch.no_grad():
        logp_old = logp_of(student, rollout)
        kl = logp_old - logp_of(Student(), rollout)
        values = critic(rollout)
    rewards = advantages.token_rewards(rollout.rewards, kl, rollout.mask, beta)
    A, returns = advantages.gae(rewards, values, rollout.mask)
    A = advantages.whiten(A, rollout.mask)
    return rollout.replace(logp_old=logp_old, values=values, advantages=A, returns=returns)


def ppo_loss(student: Any, critic: Any, batch: Any) -> tuple[Any, Any]:
    """Section 3.7's: the policy loss and half the critic's squared error."""
    from rlkit.objectives import clipped_surrogate

    ratio = (logp_of(student, batch) - batch.logp_old).exp()
    losses = clipped_surrogate(ratio, batch.advantages)
    error = 0.5 * (critic(batch) - batch.returns) ** 2
    return mean_over(batch.mask, losses), mean_over(batch.mask, error)


def three_tokens() -> dict[str, Any]:
    """Section 3.1's: probabilities before and after an update, and advantages."""
    import torch

    p_old, p_new = torch.tensor([0.50, 0.40, 0.80]), torch.tensor([0.55, 0.80, 0.40])
    return {"p_old": p_old, "p_new": p_new, "A": torch.tensor([1.0, 1.0, -1.0])}


def tools() -> dict[str, Any]:
    """The small functions of section 3.3."""
    return {"logp_of": logp_of, "mean_over": mean_over}


def drawn() -> dict[str, Any]:
    """Section 3.4's answers, with the critic's values and which digits are right."""
    import torch

    from rlkit.course.student import Student
    from rlkit.tasks.critic import load_critic

    student, critic = Student(seed=3), load_critic()
    rollout = student.sample(0, prompts=64, num_generations=8)
    with torch.no_grad():
        values = critic(rollout)
    right = {row["prompt"]: row["answer"] for row in student.task.train}
    prompts = student.tokenizer.batch_decode(rollout.prompt_ids, skip_special_tokens=True)
    pairs = [
        (text, right[p] + "=") for text, p in zip(student.texts(rollout), prompts, strict=True)
    ]
    first, second = (torch.tensor([t[:n] == r[:n] for t, r in pairs]) for n in (1, 2))
    made = {"student": student, "critic": critic, "rollout": rollout, "values": values}
    return tools() | made | {"first": first, "second": second}


def rejoin() -> dict[str, Any]:
    """After the run; without it where none was kept."""
    from rlkit.course.student import Loop, Student
    from rlkit.widgets import keep

    folder = keep.last_run("page03")
    made = drawn() | {"reference": Student(), "judged": judged, "ppo_loss": ppo_loss}
    if folder is None:
        return made
    pupil = Student(folder)
    loop = Loop(lambda k: {}, pupil, steps=12, output_dir=str(folder))
    run = keep.restore(loop, folder, score=pupil.task.reward)
    return made | {"pupil": pupil, "run": run}


STATE = ("student", "critic", "rollout", "values")
SECTIONS = {
    "3.1": Section((*TOOLS, "rlkit.widgets.clip.ClipExplorer", *MORE[1:])),
    "3.2": Section((), ("p_old", "p_new", "A"), three_tokens, exercises=("clip",)),
    "3.3": Section((), exercises=("leave_one_out",)),
    "3.4": Section((*CRITIC, *MORE), ("logp_of", "mean_over"), tools),
    "3.5": Section((), (*STATE, "first", "second"), drawn, exercises=("gae",)),
    "3.6": Section((), STATE, drawn, exercises=("token_rewards",)),
    "3.7": Section(
        ("rlkit.policy.ValueModel", "rlkit.policy.load_model"),
        STATE,
        drawn,
    ),
    "3.8": Section(
        (*MAP, "rlkit.bench.actions"),
        (*STATE, "judged", "ppo_loss", "pupil", "reference", "run"),
        rejoin,
    ),
}
