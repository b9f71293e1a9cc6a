"""Page 08, the chunked loss: sections, and two helpers of the page that are not its subject."""

from typing import Any

from rlkit.course.pages.section import Section

# --- what the cells of the page define, for a kernel that has lost them


def measured_full() -> dict[str, Any]:
    """Names of section 8.1, and what it measured."""
    names = begin()
    head = names["hidden"], names["weight"], names["targets"]

    def full(hidden: Any, weight: Any, targets: Any, chunk: int | None = None) -> Any:
        logp = (hidden @ weight.T).log_softmax(-1).gather(1, targets[:, None])
        loss = -logp.mean()
        loss.backward()
        return loss.detach()

    def bytes_of(way: Any, chunk: int | None) -> tuple:
        head[0].grad = head[1].grad = None
        loss, meter, before = measured(way, *head, chunk)
        line = meter.timeline
        held = [(total - before) / 2**20 for total in line.total]
        turn = line.phases.index("backward") - 1 if "backward" in line.phases else len(line) - 1
        return max(held), held[turn], (line.seconds, held, turn), loss

    return names | {"full": full, "bytes_of": bytes_of, "found": {"full": bytes_of(full, None)}}


def chunked_policy(hidden: Any, weight: Any, targets: Any, chunk: int, loss_of: Any) -> tuple:
    """(loss, d_hidden, d_weight) of section 8.4."""
    import torch

    with torch.no_grad():
        loss = torch.zeros(())
        d_hidden, d_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
        for at in range(0, len(hidden), chunk):
            rows = slice(at, at + chunk)
            h, y = hidden[rows], targets[rows, None]
            all_logp = (h @ weight.T).log_softmax(-1)
            with torch.enable_grad():
                logp = all_logp.gather(1, y).squeeze(1).requires_grad_()
                part = loss_of(logp, rows)
                (d_logp,) = torch.autograd.grad(part, logp)
            loss += part.detach()
            d_logits = all_logp.exp_().mul_(-d_logp[:, None])
            d_logits.scatter_add_(1, y, d_logp[:, None])
            d_hidden[rows] = d_logits @ weight
            d_weight.addmm_(d_logits.T, h)
    return loss, d_hidden, d_weight


def plain_step(student: Any, chunk: int | None = None) -> Any:
    """The step of section 8.6 with all log-probs at once, whatever the chunk."""
    import torch

    weights = list(student.policy.parameters())
    adam = torch.optim.AdamW(weights, lr=3e-4, weight_decay=0.0)

    def step(k: int) -> dict[str, float]:
        rollout = student.sample(k, prompts=64, num_generations=8)
        hidden, weight, targets, advantages = scored(student, rollout)
        logp = (hidden @ weight.T).log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
        ratio = (logp - logp.detach()).exp()
        (-(ratio * advantages).sum() / len(targets)).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        adam.step()
        adam.zero_grad()
        return {"reward": rollout.rewards.mean().item()}

    return step


def rejoin() -> dict[str, Any]:
    """After the run of section 8.6: the run, on a student that holds its weights."""
    from rlkit.course.student import Loop, Student
    from rlkit.widgets import keep

    folder = keep.last_run("page08")
    if folder is None:
        return {}
    student = Student(model=folder)
    loop = Loop(plain_step(student), student, steps=30, eval_rows=256, output_dir="runs/page08")
    run = keep.restore(loop, folder, student.task.reward)
    return {"student": student, "run": run, "make_step": plain_step}


# --- what the page uses and does not explain


def wide_adder(vocabulary: int) -> tuple[Any, Any]:
    """(model, tokenizer): the adder with so many tokens, of which it still writes its own 15.

    Its new tokens have zeros for an embedding, which is also their row of the head, and a bias of
    -20: they cost what a real vocabulary costs, and are never drawn.
    """
    import torch
    from torch import nn

    from rlkit.policy import load_model, load_tokenizer

    model, tokenizer = load_model("adder"), load_tokenizer("adder")
    own, old = len(tokenizer), model.get_input_embeddings().weight.detach()
    tokenizer.add_tokens([f"<{i}>" for i in range(own, vocabulary)])
    embedding = nn.Embedding(vocabulary, old.shape[1])
    head = nn.Linear(old.shape[1], vocabulary)
    head.weight = embedding.weight
    with torch.no_grad():
        embedding.weight.zero_()[:own] = old
        head.bias.fill_(-20.0)[:own] = 0
    model.set_input_embeddings(embedding)
    model.lm_head = head
    model.config.vocab_size = vocabulary
    return model, tokenizer


def measured(way: Any, *args: Any) -> tuple[Any, Any, int]:
    """(its result, meter, bytes held before): live bytes while way(*args) runs, on the CPU."""
    from rlkit import Meter

    with Meter(device="cpu") as meter:
        before = meter.total
        result = way(*args)
    return result, meter, before


def begin() -> dict[str, Any]:
    """The head that the page measures: names of section 8.1."""
    import torch
    import torch._dynamo  # checkpoint would import it at its first call, while it is timed

    noise = torch.Generator().manual_seed(0)
    N, V, H = 512, 32_768, 128
    torch.set_num_threads(1)
    return {
        "MiB": 2**20,
        "N": N,
        "V": V,
        "H": H,
        "hidden": torch.randn(N, H, generator=noise).requires_grad_(),
        "weight": (torch.randn(V, H, generator=noise) / 11).requires_grad_(),
        "targets": torch.randint(V, (N,), generator=noise),
    }


def scored(student: Any, rollout: Any) -> tuple[Any, Any, Any, Any]:
    """Of the tokens that count: hidden states [N, H], weight [V, H], targets [N], advantages [N].

    Hidden states come with their graph, the weight is the model's own. Advantages are GRPO's.
    """
    import torch

    from rlkit.advantages import group_relative

    ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], 1)[:, :-1]
    seen = torch.cat([rollout.prompt_mask, rollout.mask], 1)[:, :-1]
    positions = (seen.cumsum(1) - 1).clamp(min=0)
    student.policy.train()
    hidden = student.policy.backbone(ids, seen, positions)
    hidden = hidden[:, rollout.prompt_ids.shape[1] - 1 :]
    mask = rollout.mask
    per_row = group_relative(rollout.rewards, 8)[:, None].expand_as(mask)
    weight = student.policy.head.weight
    return hidden[mask], weight, rollout.completion_ids[mask], per_row[mask]


WIDE = ("N", "V", "H", "hidden", "weight", "targets", "MiB")

SECTIONS: dict[str, Section] = {
    "8.1": Section(
        (
            "time",
            "torch",
            "rlkit.course.pages.page_08.begin",
            "rlkit.course.pages.page_08.measured",
            "rlkit.widgets.explorer.paper",
            "rlkit.widgets.explorer.titled",
        ),
        exercises=("chunked",),
    ),
    "8.2": Section(("rlkit.widgets.tiles.TileStepper",)),
    "8.3": Section(
        ("torch.utils.checkpoint.checkpoint", "rlkit.course.evidence"),
        (*WIDE, "full", "bytes_of", "found"),
        measured_full,
    ),
    "8.4": Section(("rlkit.token_logps", "rlkit.fused_policy_loss", "rlkit.GRPO"), WIDE, begin),
    "8.5": Section(
        (
            "rlkit.Meter",
            "rlkit.GRPOConfig",
            "rlkit.GRPOTrainer",
            "rlkit.load_task",
            "rlkit.course.pages.page_08.wide_adder",
        ),
        ("MiB",),
        begin,
    ),
    "8.6": Section(
        (
            "rlkit.course.student.Student",
            "rlkit.course.student.Loop",
            "rlkit.course.pages.page_08.scored",
            "rlkit.widgets.live.LiveRun",
            "rlkit.course.ladder",
        ),
        ("chunked_policy",),
        lambda: {"chunked_policy": chunked_policy},
    ),
    "8.7": Section((), ("student", "run", "make_step"), rejoin),
}
