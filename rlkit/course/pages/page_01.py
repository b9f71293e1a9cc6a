"""Page 01, policy gradient: sections, and what its cells define, for a kernel that lost it."""

from typing import Any

from rlkit.course.pages.section import Section

STUDENT = ("rlkit.course.student.Student",)
DRAWN = ("student", "tokenizer", "model", "ids", "P", "B", "mask", "texts")
PARTS = ("token_logps", "score", "make_step", "new_run")


def drawn() -> dict[str, Any]:
    """Section 1.2: the student, and 200 drawn answers to one sum with their mask."""
    import torch

    from rlkit.course.student import Student
    from rlkit.rollout import eos_mask

    student = Student()
    tokenizer, model = student.tokenizer, student.model
    prompt = tokenizer("27+58=", return_tensors="pt").input_ids
    noise = torch.Generator().manual_seed(1)
    B, P = 200, prompt.shape[1]
    ids = prompt.expand(B, -1)
    with torch.no_grad():
        for _ in range(4):
            p = model(ids).logits[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(p, 1, generator=noise)], 1)
    mask, _ = eos_mask(ids[:, P:], torch.tensor([tokenizer.eos_token_id]))
    rows = zip(ids[:, P:], mask, strict=True)
    texts = [tokenizer.decode(row[keep], skip_special_tokens=True) for row, keep in rows]
    names = dict(zip(DRAWN, (student, tokenizer, model, ids, P, B, mask, texts), strict=True))
    return names | {"score": score, "token_logps": token_logps}


def token_logps(logits: Any, completion_ids: Any) -> Any:
    """Section 1.3: logits [B, T, V], completion_ids [B, T] -> [B, T]."""
    return logits.log_softmax(-1).gather(-1, completion_ids[..., None]).squeeze(-1)


def score(model: Any, ids: Any, P: int) -> Any:
    """Section 1.3: the log-prob of each token after the first P."""
    return token_logps(model(ids).logits[:, P - 1 : -1], ids[:, P:])


def make_step(student: Any, shift: float = 0.0, baseline: bool = False) -> Any:
    """Section 1.5: k -> {"reward": mean reward}, one training step."""
    import torch

    from rlkit.course.exercises.reinforce import reinforce

    parameters = list(student.model.parameters())
    adam = torch.optim.AdamW(parameters, 1e-3, weight_decay=0.0)

    def step(k: int) -> dict[str, float]:
        rollout = student.sample(k, prompts=256, num_generations=1)
        weights = rollout.rewards + shift
        if baseline:
            weights = weights - weights.mean()
        logp = token_logps(student.logits(rollout), rollout.completion_ids)
        adam.zero_grad()
        reinforce(logp, weights, rollout.mask).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()
        return {"reward": rollout.rewards.mean().item()}

    return step


def new_run(guess: float | None, folder: str, **settings: Any) -> Any:
    """Section 1.5: a live run of 30 steps."""
    from rlkit.course.student import Loop, Student
    from rlkit.widgets.live import LiveRun

    student = Student()
    step = make_step(student, **settings)
    loop = Loop(step, student, steps=30, eval_rows=200, output_dir=folder)
    return LiveRun(loop, guess, student.task.eval[:5], score=student.task.reward)


def parts() -> dict[str, Any]:
    """The functions of sections 1.3 to 1.5."""
    return {name: globals()[name] for name in PARTS}


def kept(name: str, **settings: Any) -> Any:
    """The run that was kept in runs/<name>, on a student that holds its weights; None: none."""
    from rlkit.course.student import Loop, Student
    from rlkit.widgets import keep

    folder = keep.last_run(name)
    if folder is None:
        return None
    student = Student(folder)
    step = make_step(student, **settings)
    loop = Loop(step, student, steps=30, eval_rows=200, output_dir=f"runs/{name}")
    return keep.restore(loop, folder, student.task.reward)


def rejoin_first() -> dict[str, Any]:
    """Section 1.6: the functions, and the first run."""
    run = kept("page01")
    return parts() | ({} if run is None else {"run": run})


def rejoin_both() -> dict[str, Any]:
    """Section 1.7: the functions, and the two runs with 4 added."""
    runs = {
        "alone": kept("page01_alone", shift=4.0),
        "helped": kept("page01_helped", shift=4.0, baseline=True),
    }
    return parts() | {name: run for name, run in runs.items() if run is not None}


SECTIONS: dict[str, Section] = {
    "1.1": Section(
        ("torch", "torch.nn.functional as F", "rlkit.widgets.shift.ShiftExplorer"),
    ),
    "1.2": Section(STUDENT, exercises=("masks",)),
    "1.3": Section((), DRAWN, drawn),
    "1.4": Section((), (*DRAWN, "token_logps", "score"), drawn, exercises=("reinforce",)),
    "1.5": Section(
        ("rlkit.course.student.Loop", "rlkit.widgets.live.LiveRun"),
        PARTS[:2],
        parts,
    ),
    "1.6": Section(("rlkit.course.ladder",), (*PARTS, "run"), rejoin_first),
    "1.7": Section(
        (
            "rlkit.GRPO",
            "rlkit.course.evidence",
            "rlkit.widgets.explorer.COLOURS",
            "rlkit.widgets.explorer.paper",
            "rlkit.widgets.explorer.titled",
        ),
        (*PARTS, "alone", "helped"),
        rejoin_both,
    ),
}
