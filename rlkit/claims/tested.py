"""The claims: who says what, under which setting it is tested, and by which plan or measurement."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlkit.claims import findings, settings
from rlkit.claims.findings import FAILED, Answers, Finding
from rlkit.claims.settings import Job

LIGER = "Liger GRPO meets TRL, 2025"
RLOO = "Putting RL back in RLHF with RLOO, 2024"
PLANNED, MEASURED = "planned", "measured"


@dataclass(frozen=True)
class Claim:
    """What is said, and how it is tested."""

    name: str
    how: str
    says: str
    source: str
    setting: str
    compares: str
    """What before, after and value are, with bars between."""


class Result(NamedTuple):
    """A claim and what became of it."""

    claim: Claim
    finding: Finding


class Probe(NamedTuple):
    """How a finding is come by."""

    claim: Claim
    jobs: Callable[[], list[Job]]
    """What must be planned."""
    judge: Callable[[Answers], Finding]


def nothing() -> list[Job]:
    """Of a claim that is measured."""
    return []


# ---- measured, in this process ---------------------------------------------------------------


def never_all_logits(answers: Answers) -> Finding:
    """By a Meter, on a head alone."""
    from rlkit.claims import measure

    return findings.never_all_logits(measure.head_peaks(), measure.ALL_LOGITS)


def lora_no_copy(answers: Answers) -> Finding:
    """By a Meter, on the built-in model."""
    from rlkit.claims import measure

    return findings.lora_no_copy(measure.copies())


def same_results(answers: Answers) -> Finding:
    """On the built-in model."""
    from rlkit.claims import measure

    return findings.same_results(measure.head_differences())


def rloo_speed(answers: Answers) -> Finding:
    """By times that the bench recorded."""
    from rlkit.claims import speed

    return speed.rloo_speed(speed.recorded())


# ---- all of them -----------------------------------------------------------------------------

PROBES = (
    Probe(
        Claim(
            "chunked-memory",
            PLANNED,
            "A chunked GRPO loss cuts training memory by up to 40 %.",
            LIGER,
            "A whole GRPO step of Qwen3-0.6B on one GPU, AdamW, no KL term: prompts of 512 and "
            "completions of 256 tokens, G = 8, batches 1 to 64 a device (below 8 as micro-batches "
            "of one group). float32 and bf16 by autocast on float32 weights; what the source "
            "leaves open, bf16 weights and recomputed activations, at batches 8 and 64. Full "
            "logits in float32 against rlkit's tiles.",
            "full logits | tiles | saved",
        ),
        settings.memory_jobs,
        lambda answers: findings.chunked_memory(answers, settings.REGIMES),
    ),
    Probe(
        Claim(
            "chunked-batch",
            PLANNED,
            "With LoRA and FSDP it lets the batch grow 1.5-1.8x.",
            LIGER,
            f"The same texts; {', '.join(settings.QWEN)}; LoRA of rank 16 on a bf16 base, 8 FSDP "
            "ranks, bf16 by autocast, activations kept; the largest batch, in whole groups of 8, "
            "that leaves 1 GiB of an H100 free.",
            "full logits | tiles | larger",
        ),
        settings.batch_jobs,
        lambda answers: findings.chunked_batch(answers, settings.QWEN, settings.CARD),
    ),
    Probe(
        Claim(
            "chunked-fsdp-lora",
            PLANNED,
            "A chunked loss works together with FSDP and PEFT.",
            LIGER,
            "The steps of chunked-batch, at their largest batch. That two real ranks learn what "
            "one does is in rlkit's tests.",
            "full logits | tiles | saved",
        ),
        settings.batch_jobs,
        lambda answers: findings.works_together(answers, settings.QWEN),
    ),
    Probe(
        Claim(
            "never-all-logits",
            MEASURED,
            "The saving comes from never storing all logits, and from computing gradients chunk "
            "by chunk during the forward pass.",
            LIGER,
            "A GRPO loss head alone, forward and backward in float32 on a CPU: 1,024 tokens, a "
            "vocabulary of 32,768, width 64. Full logits and one backward over chunks must hold "
            "all logits at least once, the others less than a quarter of them.",
            "all at once | this way | copies",
        ),
        nothing,
        never_all_logits,
    ),
    Probe(
        Claim(
            "lora-no-copy",
            MEASURED,
            "LoRA needs no second copy of the model for the reference.",
            "common use of TRL with PEFT",
            "The built-in adder under GRPO with a KL term, bytes of each model counted by a "
            "Meter; then the adapters are moved by 0.01 and 64 completions are scored.",
            "all weights | LoRA | error",
        ),
        nothing,
        lora_no_copy,
    ),
    Probe(
        Claim(
            "same-results",
            MEASURED,
            "The results do not change when the memory goes down.",
            LIGER,
            "The built-in adder, one GRPO loss on 64 completions, gradients of all weights: "
            "chunked and fused heads with tiles of 4 KiB against full logits. Bounds: 1e-5 for "
            "the loss, 1e-4 of the largest entry for gradients.",
            "of the loss | of gradients | worse",
        ),
        nothing,
        same_results,
    ),
    Probe(
        Claim(
            "rloo-memory",
            PLANNED,
            "RLOO uses 50-70 % less memory than PPO, which holds four model copies against three.",
            RLOO,
            "TL;DR: prompts of 512 and responses of 53 tokens, 16 a GPU on 8 GPUs, 4 update "
            "epochs, AdamW, bf16 by autocast, full logits. Pythia 1B with FSDP2 without "
            "resharding (for ZeRO-2, which unlike it also keeps reference and reward model whole), "
            "2.8B and 6.9B with resharding (ZeRO-3). PPO: policy, reference, value and reward "
            "model; RLOO, G = 2: all but the value model. Beside it LoRA of rank 16 with a "
            "function as reward.",
            "PPO | RLOO | saved",
        ),
        settings.rloo_jobs,
        lambda answers: findings.rloo_memory(answers, settings.COMPARED),
    ),
    Probe(
        Claim(
            "rloo-speed",
            MEASURED,
            "RLOO is 2-3 times as fast as PPO.",
            RLOO,
            "The built-in adder on sums against its reward model, on one CPU thread: the same "
            "prompts and samples, 512 a step in 4 micro-batches, G = 4, a KL term. PPO with a "
            "value model of its own and RLOO both go over each rollout 4 times, as in the source, "
            "whose models of 1 and 6.9 billion weights on 8 GPUs are not measured here. Recorded "
            "by `rlkit bench algorithms --out data/bench/algorithms.json`.",
            "slower | faster | times",
        ),
        nothing,
        rloo_speed,
    ),
)
NAMES = tuple(probe.claim.name for probe in PROBES)


def compute(names: Iterable[str], plan: Callable[[list[Job]], dict[Any, Any]]) -> list[Result]:
    """Tests some claims. plan: jobs -> answers by their keys."""
    chosen = [probe for probe in PROBES if probe.claim.name in set(names)]
    jobs = {job.key: job for probe in chosen for job in probe.jobs()}
    answers = plan(list(jobs.values())) if jobs else {}
    return [Result(probe.claim, finding_of(probe, answers)) for probe in chosen]


def finding_of(probe: Probe, answers: Answers) -> Finding:
    """A finding, also of what failed."""
    for job in probe.jobs():
        if error := answers[job.key].error:
            what = " ".join(map(str, job.key))
            return Finding(FAILED, f"{what} could not be planned.", error)
    try:
        return probe.judge(answers)
    except (ArithmeticError, RuntimeError, ValueError, ImportError, OSError) as error:
        return Finding(FAILED, "It could not be measured.", str(error) or type(error).__name__)
