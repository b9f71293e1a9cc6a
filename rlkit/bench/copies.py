"""Four models against three: the bytes of a step of PPO and of RLOO, measured and planned.

PPO holds policy, reference, value and reward model; RLOO, G = 2, all but the value model. Measured
on a real trainer under a Meter, at two sizes: small weights under many activations, and 100 million
weights under few. The plan is of the same step. Sizes that no CPU can hold are planned alone, by
`rlkit claims`, whose findings are repeated here.
"""

import gc
from dataclasses import asdict, dataclass
from typing import Any

MODELS = ("policy", "reference", "value", "reward")
STEP = dict(
    num_generations=2,
    reward_model=True,
    beta=0.05,
    head="full",
    dtype="float32",
    device="cpu",
)
"""What both take, and both sizes."""
SIDES: dict[str, dict[str, Any]] = {"ppo": dict(value_model="separate"), "rloo": {}}
LARGE: dict[str, Any] = dict(
    model_type="llama",
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=4,
    num_attention_heads=16,
    num_key_value_heads=4,
    tie_word_embeddings=False,
)
"""A model of some 100 million weights, drawn at random."""
SMALL, BIG = "built-in", "100M"
SIZES = {
    SMALL: dict(per_device_train_batch_size=32, prompt_length=20, max_completion_length=24),
    BIG: dict(per_device_train_batch_size=4, prompt_length=48, max_completion_length=16),
}


@dataclass(frozen=True)
class Side:
    """One algorithm at one size. Bytes at the peak of a step."""

    models: int
    """That it holds."""
    measured: int
    planned: int
    categories: dict[str, int]
    """Of what was measured."""

    @property
    def error(self) -> float:
        """Of the plan, as a share of what was measured."""
        return self.planned / self.measured - 1


def setting(size: str, algorithm: str) -> Any:
    """Of a plan, and of the trainer that is measured."""
    from rlkit.memory.planner import setting_of
    from rlkit.memory.settings import Setting

    asked: dict[str, Any] = STEP | SIZES[size] | SIDES[algorithm]
    if size == SMALL:
        return setting_of("adder", algorithm, **asked)
    return Setting(config=LARGE, name="llama-100M", algorithm=algorithm, **asked)


def compare(threads: int, sizes: tuple[str, ...] = tuple(SIZES)) -> dict[str, dict[str, Side]]:
    """Size -> algorithm -> what it takes. threads: of torch, on the CPU."""
    from rlkit.memory.planner import Planner

    with Planner() as planner:
        return {
            size: {name: side(setting(size, name), planner, threads) for name in SIDES}
            for size in sizes
        }


def side(asked: Any, planner: Any, threads: int) -> Side:
    """Plans a step, and takes it."""
    from rlkit.memory import Meter
    from rlkit.memory.rank import trainer_of

    planned = planner.plan(asked).peak
    trainer = trainer_of(asked, {"num_threads": threads}, made_up=True)
    trainer.optimizer.step([], trainer.loss)  # its state is there from now on
    gc.collect()
    with Meter(trainer, device="cpu") as meter:
        trainer.step(0)
    found = Side(len(trainer.held()), meter.peak, planned, meter.at_peak.by_category)
    del trainer, meter
    gc.collect()
    return found


def saved(sides: dict[str, Side]) -> float:
    """The share of PPO's bytes that RLOO does without."""
    return 1 - sides["rloo"].measured / sides["ppo"].measured


def planned_elsewhere() -> dict[str, float]:
    """Case -> the share saved, of the claim about RLOO's memory; empty if nobody tested it."""
    from rlkit import claims

    try:
        found = {claim.name: finding for claim, finding in claims.load()}
    except (OSError, ValueError):
        return {}
    cases = found["rloo-memory"].cases if "rloo-memory" in found else []
    return {case.case.split(", ")[-1]: case.value for case in cases if case.of_source}


# --- what is printed


def table(found: dict[str, dict[str, Side]]) -> str:
    """MiB of both algorithms at each size, and what RLOO saves."""
    columns = ("models", "measured", "planned", "off by", "weights", "the rest")
    lines = [f"{'MiB at the peak of a step':32} " + " ".join(f"{name:>10}" for name in columns)]
    for size, sides in found.items():
        for name, each in sides.items():
            weights = sum(each.categories.get(n, 0) for n in ("param", *MODELS[1:]))
            cells = [
                f"{each.models:10}",
                *(f"{x / 2**20:10.1f}" for x in (each.measured, each.planned)),
                f"{each.error:10.2%}",
                *(f"{x / 2**20:10.1f}" for x in (weights, each.measured - weights)),
            ]
            lines.append(f"{f'{size}, {name.upper()}':32} " + " ".join(cells))
    told = [f"{saved(sides):.0%} for the {size} model" for size, sides in found.items()]
    lines += ["", f"RLOO saves {' and '.join(told)} (measured)."]
    if planned := planned_elsewhere():
        shares = ", ".join(f"{value:.0%} for {name}" for name, value in planned.items())
        lines.append(f"Planned by rlkit claims: {shares}.")
    lines += [
        "Copies differ by one model, its gradients and its optimiser's state; activations differ",
        "because PPO holds those of two models until one backward pass.",
    ]
    return "\n".join(lines)


def to_dict(found: dict[str, dict[str, Side]]) -> dict[str, dict[str, Any]]:
    """For JSON."""
    return {size: {n: asdict(each) for n, each in sides.items()} for size, sides in found.items()}
