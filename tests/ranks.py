"""What tests run on several ranks: `start` starts this file, and each rank tells what it found.

One launch takes seconds to import torch, so many cases share one; the same cases on one rank, in a
process group of nobody, say what is right.
"""

import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import torch

CASES = {}
"""Name -> a function that returns what a rank found, for torch.save."""


def case(function):
    CASES[function.__name__] = function
    return function


# --- the test's side


def start(
    ranks: int, cases: list[str], out: Path, port: int | None = None
) -> list[subprocess.Popen]:
    """Starts so many ranks (1: no process group), each of which runs the cases."""
    if port is None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    processes = []
    for rank in range(ranks):
        where = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOCAL_RANK=str(rank))
        where |= dict(RANK=str(rank), WORLD_SIZE=str(ranks))
        command = [sys.executable, __file__, str(out), *cases]
        processes.append(
            subprocess.Popen(
                command,
                env=os.environ | where,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return processes


def finish(processes: list[subprocess.Popen], timeout: float) -> str:
    """Waits for all; returns what they printed, and raises with it if one fails."""
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    codes = [process.returncode for process in processes]
    assert not any(codes), f"exit codes {codes}\n" + "\n".join(outputs)
    return "\n".join(outputs)


def found(out: Path, name: str, ranks: int) -> list:
    """What each rank found in a case."""
    return [torch.load(out / f"{slug(name)}.{ranks}.{rank}.pt") for rank in range(ranks)]


# --- a rank's side


def main(out: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    rank, size = (os.environ[key] for key in ("RANK", "WORLD_SIZE"))
    for name in names:
        function, *arguments = name.split(":")
        result = CASES[function](*arguments)
        torch.save(result, Path(out) / f"{slug(name)}.{size}.{rank}.pt")


def slug(name):
    return name.replace(":", "-").replace("/", "-")


ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in (1, 12, 345) for b in (7, 89)]


def first_digit(prompts, completions, trainer_state, **kwargs):
    """Half the answers earn something; in every third step only those to one of the prompts do."""
    rewards = [float(c[:1] in "24680") for c in completions]
    if trainer_state.global_step % 3 == 2:
        rewards = [r * (p == "12+7=") for r, p in zip(rewards, prompts, strict=True)]
    return rewards


def every_other(completions, trainer_state, **kwargs):
    """Every other step has nothing to learn from: weights then move by momentum alone."""
    alive = trainer_state.global_step % 2 == 0
    return [float(alive and c[:1] in "24680") for c in completions]


def make(
    algorithm,
    kind="qwen3",
    lora=False,
    rows=ROWS,
    reward=first_digit,
    model_seed=0,
    came=False,
    **settings,
):
    """A trainer of 16 completions a step, on however many ranks there are.

    lora: True, "head" (there too) or a LoraConfig. came: the model comes with its adapters.
    """
    import models

    import rlkit

    classes = {"grpo": "GRPO", "rloo": "RLOO", "ppo": "PPO"}
    trainer_class, config_class = (
        getattr(rlkit, classes[algorithm] + end) for end in ("Trainer", "Config")
    )
    sizes = dict(
        per_device_train_batch_size=16 // int(os.environ["WORLD_SIZE"]),
        num_generations=4,
        max_completion_length=6,
        learning_rate=3e-3,
        adam_epsilon=1e-3,
        max_steps=20,
        disable_tqdm=True,
        ddp_timeout=120,
        seed=1,
        tile_bytes=1024,
    )
    if algorithm == "ppo":
        sizes["num_iterations"] = 2
    model, peft_config = models.model(kind, model_seed), lora or None
    if reward == "model":
        reward = models.scorer(kind)
    if lora in (True, "head"):
        import peft

        where = ["lm_head", "q_proj", "down_proj"] if lora == "head" else "all-linear"
        peft_config = peft.LoraConfig(r=4, target_modules=where, task_type="CAUSAL_LM")
    if came:
        from rlkit.adapters import add_adapters

        torch.manual_seed(0)
        peft_config.init_lora_weights = False  # they do something already
        model, peft_config = add_adapters(model, peft_config), None
    return trainer_class(
        model,
        reward,
        config_class(**(sizes | settings)),
        rows,
        eval_dataset=ROWS,
        processing_class=models.tokenizer(),
        peft_config=peft_config,
    )


def whole(x):
    """A weight or gradient as one process would hold it."""
    return (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().clone()


def weights(trainer):
    modules = enumerate(trainer.trained_modules())
    return {f"{i}.{n}": whole(p) for i, m in modules for n, p in m.named_parameters()}


SETTINGS = {
    "lora": dict(lora=True),
    "onhead": dict(lora="head"),
    "came": dict(came=True),
    "ddp": dict(distributed="ddp"),
    "keep": dict(reshard_after_forward=False),
    "beta": dict(beta=0.1),
    "reuse": dict(num_iterations=2),
    "untied": dict(kind="llama"),
    "short": dict(max_steps=6),
    "checkpointing": dict(gradient_checkpointing=True),
    "quantile": dict(top_entropy_quantile=0.5, entropy_coef=0.01),
    "shared": dict(value_model="shared", whiten_rewards=True),
    "batch": dict(scale_rewards="batch", loss_type="bnpo"),
    "truncated": dict(mask_truncated_completions=True),
    "prefix": dict(share_prefix=True),
    "minibatches": {},
    "accumulate": {},
    "dead": dict(reward=every_other),
    "scored": dict(reward="model"),
    "critic": dict(value_model="reward"),
}


@case
def train(algorithm, head, *words):
    """Twenty steps, or what the words say."""
    settings = {}
    for word in words:
        settings |= SETTINGS[word]
    if "minibatches" in words or "accumulate" in words:
        field = "steps_per_generation" if "minibatches" in words else "gradient_accumulation_steps"
        ranks = int(os.environ["WORLD_SIZE"])
        settings |= {"per_device_train_batch_size": 8 // ranks, field: 2}
    trainer = make(algorithm, head=head, **settings)
    before = weights(trainer)
    history, after = trainer.train(), weights(trainer)
    return dict(
        weights=after,
        moved=max(float((after[name] - before[name]).abs().max()) for name in after),
        history=[{k: v for k, v in row.items() if "seconds" not in k} for row in history],
        seconds=[row["seconds"] for row in history],
        accuracy=trainer.evaluate(),
    )


@case
def evaluate():
    """Held-out prompts that do not divide, and fewer than there are ranks."""
    trainer = make("grpo", learning_rate=0.0, max_steps=1, reward=last_digit)
    found = [trainer.evaluate(), trainer.evaluate(greedy=False)]
    trainer.eval_prompts.rows, trainer.eval_prompts.ids = (
        trainer.eval_prompts.rows[:1],
        trainer.eval_prompts.ids[:1],
    )
    return [*found, trainer.evaluate(), trainer.complete(["1+1=", "12+1=", "3+4="])]


@case
def scores():
    """By a reward model, of rows that two ranks cannot share evenly, nor in as many batches."""
    trainer = make(
        "grpo", reward="model", per_device_train_batch_size=2, gradient_accumulation_steps=2
    )
    trainer.eval_prompts.rows, trainer.eval_prompts.ids = (
        trainer.eval_prompts.rows[:5],
        trainer.eval_prompts.ids[:5],
    )
    return trainer.evaluate()


def last_digit(completions, log_metric, **kwargs):
    log_metric("longest", max(map(len, completions)))
    return [float(c[-1:] in "24680") for c in completions]


@case
def head_units():
    """The largest error of a gradient where the head lies in the root unit, and elsewhere."""
    import models
    from torch.distributed.fsdp import fully_shard

    from rlkit.distributed import join, rows_of
    from rlkit.objectives import GRPO, Totals
    from rlkit.policy import Policy

    world, batch, found = join(60), random_batch(), {}
    totals, mine = Totals.of(batch.mask), torch.arange(8).split([7, 1])[world.rank]
    for mode in ("full", "chunked", "fused"):
        for place in ("root", "tied", "own unit", "with the norm"):
            kind = "qwen3" if place == "tied" else "llama"
            one, many = (Policy(models.model(kind), head=mode, tile_bytes=1024) for _ in range(2))
            one(batch.rows(slice(None)), GRPO(), totals)[0].backward()
            if place == "own unit":
                fully_shard(many.head)
            if place == "with the norm":
                fully_shard([many.model.model.norm, many.head])
            fully_shard(many)
            for unit in (m for m in many.modules() if hasattr(m, "set_gradient_divide_factor")):
                unit.set_gradient_divide_factor(1.0)
                unit.set_force_sum_reduction_for_comms(True)
            many(rows_of(batch, mine), GRPO(), totals)[0].backward()
            pairs = zip(one.parameters(), many.parameters(), strict=True)
            found[mode, place] = max(float((a.grad - whole(b.grad)).abs().max()) for a, b in pairs)
    return found


@case
def half():
    """Errors of a gradient in half precision, against float32: of one process, and of the ranks."""
    from types import SimpleNamespace

    import models

    from rlkit.distributed import join, rows_of
    from rlkit.objectives import GRPO, Totals
    from rlkit.policy import Policy

    world, batch, found = join(60), random_batch(), {}
    totals, mine = Totals.of(batch.mask), torch.arange(8).split([5, 3])[world.rank]
    rows = {"one": torch.arange(8), "fsdp": mine, "ddp": mine}
    for dtype in (None, torch.bfloat16, torch.float16):
        for how in rows:
            policy = Policy(models.model("llama"), amp_dtype=dtype)
            for parameter in policy.parameters():
                if parameter.dim() == 1:  # of a norm: all 1, which no dtype rounds
                    parameter.data *= torch.linspace(0.7, 1.3, len(parameter))
            kind = dict(bf16=dtype == torch.bfloat16, fp16=dtype == torch.float16)
            if how != "one":
                where = SimpleNamespace(distributed=how, reshard_after_forward=True, **kind)
                world.place(policy, where)
            policy(rows_of(batch, rows[how]), GRPO(), totals)[0].backward()
            grads = torch.cat([whole(p.grad).flatten() for p in policy.parameters()])
            exact = grads if dtype is None and how == "one" else exact  # noqa: F821
            found[str(dtype), how] = float((grads - exact).norm() / exact.norm())
    return found


def random_batch():
    """Eight rows of one to six tokens."""
    from rlkit.rollout import Rollout

    generator = torch.Generator().manual_seed(0)
    prompt, completion = (torch.randint(2, 12, (8, n), generator=generator) for n in (4, 6))
    lengths = torch.randint(1, 7, (8, 1), generator=generator)
    return Rollout(
        prompt_ids=prompt,
        prompt_mask=torch.ones_like(prompt, dtype=torch.bool),
        completion_ids=completion,
        mask=torch.arange(6) < lengths,
        finished=torch.ones(8, dtype=torch.bool),
        advantages=torch.randn(8, generator=generator),
    )


@case
def alone():
    """A rank decodes as often as it likes inside `gathered`, and training goes on as before."""
    from rlkit.distributed import gathered

    trainer = make("grpo", max_steps=2)
    ids, mask = trainer.prompts.batch([0], trainer.policy.device)
    with gathered(trainer.policy), torch.no_grad():
        for _ in range(1 + 3 * trainer.world.rank):
            positions = torch.arange(ids.size(1))[None]
            trainer.policy.decode(ids, mask, positions, trainer.policy.new_cache())
    trainer.train()
    return weights(trainer)


@case
def parts():
    """How many numbers this rank holds of each model and of AdamW's moments, and of how many."""
    trainer = make("ppo", max_steps=1)
    trainer.train()
    held = {
        name: list(module.parameters())
        for name, module in vars(trainer).items()
        if isinstance(module, torch.nn.Module)
    }
    state = trainer.optimizer.adamw.state
    held["moments"] = [s[key] for s in state.values() for key in ("exp_avg", "exp_avg_sq")]
    own = {name: sum(x.to_local().numel() for x in xs) for name, xs in held.items()}
    return own, {name: sum(x.numel() for x in xs) for name, xs in held.items()}


@case
def stop():
    """The last rank is asked to stop after its second step."""
    trainer = make("grpo", max_steps=5)
    last = trainer.world.rank + 1 == trainer.world.size
    trainer.callbacks.append(lambda row: trainer.stop() if last and row["step"] == 2 else None)
    return len(trainer.train())


@case
def not_finite(out):
    """The last rank's loss is NaN in the second step."""
    trainer = make("grpo", output_dir=f"{out}-{os.environ['RANK']}")
    poison(trainer, lambda loss: loss * float("nan"))
    kept = []
    trainer.callbacks.append(lambda row: kept.append(weights(trainer)))
    try:
        trainer.train()
    except FloatingPointError as error:
        return dict(error=str(error), before=kept[0], after=weights(trainer))


@case
def overflow():
    """The last rank's gradient overflows in the second step."""
    trainer = make("grpo", fp16=True, max_steps=3)
    poison(trainer, lambda loss: loss * 1e38)
    kept = []
    trainer.callbacks.append(lambda row: kept.append(weights(trainer)))
    history = trainer.train()
    scale = trainer.optimizer.scaler.get_scale()
    return dict(overflows=[row["overflows"] for row in history], kept=kept, scale=scale)


def poison(trainer, change):
    """Changes the loss of the last rank in the second step."""
    honest = trainer.loss

    def loss(*args):
        value, sums = honest(*args)
        last = trainer.world.rank + 1 == trainer.world.size
        return change(value) if last and len(trainer.history) == 1 else value, sums

    trainer.loss = loss


@case
def files(out, *words):
    """What a run leaves behind, each rank in a folder of its own."""
    settings = dict(output_dir=f"{out}-{os.environ['RANK']}", max_steps=2)
    for word in words:
        settings |= SETTINGS[word]
    trainer = make("grpo", **settings)
    trainer.train()
    return weights(trainer)


def resumable(algorithm, folder, *words, **more):
    """A trainer of four steps that writes a checkpoint after every second one."""
    settings = dict(max_steps=4, save_steps=2, save_total_limit=4)
    for word in words:
        settings |= SETTINGS[word]
    return make(algorithm, output_dir=str(folder), **(settings | more))


def timeless(history):
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in history]


@case
def checkpoint(out, algorithm, *words):
    """A run in one go, and one that is stopped and taken up again."""
    straight = resumable(algorithm, f"{out}/straight", *words)
    straight.train()
    stopped = resumable(algorithm, f"{out}/stopped", *words)
    stopped.callbacks.append(lambda row: stopped.stop() if row["step"] == 2 else None)
    stopped.train()
    resumed = resumable(algorithm, f"{out}/stopped", *words)
    resumed.train(resume_from_checkpoint=f"{out}/stopped")
    return [(weights(t), timeless(t.history)) for t in (straight, resumed)]


@case
def take_up(folder, algorithm, *words):
    """From a checkpoint that another number of ranks wrote, or another way of sharing them."""
    trainer = resumable(algorithm, f"{folder}-{'-'.join(words)}-taken-up", *words)
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-2")
    return weights(trainer)


@case
def no_room(out, *words):
    """The last rank to write may write files of 10 kB only."""
    import resource

    trainer = resumable("grpo", out, *words)
    last = trainer.world.rank + 1 == trainer.world.size or "ddp" in words
    limit = (10_000 if last else resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    trainer.callbacks.append(lambda row: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    try:
        trainer.train()
    except OSError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


@case
def apart(out):
    """Each rank writes on a disk of its own."""
    try:
        resumable("grpo", f"{out}-{os.environ['RANK']}").train()
    except OSError as error:
        return str(error)


@case
def foreign(folder):
    """Checkpoints that do not fit, or of which one file is gone."""
    said, rank = [], int(os.environ["RANK"])
    for settings in (dict(learning_rate=1e-3), dict(per_device_train_batch_size=16), {}):
        lost = Path(folder) / "checkpoint-2" / "shard-00002-model-00001-of-00001.safetensors"
        trainer = make("grpo", max_steps=4, **settings)
        if not settings and rank == 0:
            lost.rename(f"{lost}.moved")
        try:
            trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-2")
        except ValueError as error:
            said.append(str(error))
    return said


@case
def refused():
    """What is said where ranks do not fit together."""
    rank, said = int(os.environ["RANK"]), []
    for trouble in (
        lambda: make("grpo", seed=rank),
        lambda: make("grpo", rows=ROWS[rank:]),
        lambda: make("grpo", model_seed=rank),
        lambda: make("grpo", per_device_train_batch_size=6),
    ):
        try:
            trouble()
        except ValueError as error:
            said.append(str(error))
    return said


@case
def fail(how):
    """The last rank ends badly in the second step, through the command line."""
    import signal
    import time

    import rlkit.cli
    from rlkit.failure import restarts

    last = os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)

    def reward(completions, trainer_state, **kwargs):
        if last and trainer_state.global_step == 1:
            if how.startswith("raises"):
                raise ValueError("no such answer")
            if how == "is killed" or (how == "is killed once" and not restarts()):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60 * (how == "hangs"))
        if restarts() and trainer_state.global_step == 0 and len(completions) == 8:
            raise ValueError("this step was done before")
        return [0.0] * len(completions)

    rlkit.cli.reward_funcs = lambda task: [reward]
    flags = "--max-steps 3 --eval-rows 4 --per-device-train-batch-size 8 --ddp-timeout 4"
    flags += " --save-steps 1"
    where = ["--output-dir", os.environ["RLKIT_TEST_OUT"], "--disable-tqdm"]
    sys.exit(rlkit.cli.main(["train", "grpo", *flags.split(), *where]))


if __name__ == "__main__":
    code = 1
    try:
        main(sys.argv[1], sys.argv[2:])
        code = 0
    except SystemExit as error:
        code = error.code
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a failed rank waits for no other
