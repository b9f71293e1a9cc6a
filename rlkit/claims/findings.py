"""From numbers to verdicts: what was planned or measured goes in, a Finding comes out.

A claim holds if it does in every case of its source's own setting, in part if it does in some. A
share counts as the source prints it, rounded to whole percents, a ratio to one decimal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlkit.memory.cards import card_bytes, readable

HOLDS, PART, NOT, FAILED = "holds", "holds in part", "does not hold", "not computed"

Answers = Mapping[tuple[Any, ...], Any]
"""Key of a job -> its Answer."""

LOSS_BOUND, GRADIENT_BOUND, REFERENCE_BOUND = 1e-5, 1e-4, 1e-5


@dataclass(frozen=True)
class Case:
    """One comparison."""

    case: str
    """What is compared."""
    of_source: bool
    """Whether the source's setting is this; the verdict is about those alone."""
    unit: str
    """Of before and after."""
    before: float
    after: float
    value: float
    """What the claim is about: a share, a ratio, a difference."""
    holds: bool


@dataclass(frozen=True)
class Finding:
    """What became of a claim."""

    verdict: str
    found: str
    """The numbers, in a sentence or two."""
    why: str
    """The reason, in a sentence or two."""
    cases: list[Case] = field(default_factory=list)


def verdict(good: Sequence[bool]) -> str:
    """Of the cases of a source."""
    if not good:
        return FAILED
    return HOLDS if all(good) else PART if any(good) else NOT


def of_cases(cases: Sequence[Case]) -> str:
    """The verdict of a claim about each of its cases."""
    return verdict([case.holds for case in cases if case.of_source])


def saving(case: str, of_source: bool, before: int, after: int, least: float) -> Case:
    """Bytes before and after; holds if at least this share is saved."""
    value = 1 - after / before
    return Case(case, of_source, "bytes", before, after, value, round(value, 2) >= least)


# ---- a chunked loss --------------------------------------------------------------------------

UP_TO = 0.40
LARGER = 1.5


def chunked_memory(answers: Answers, regimes: Mapping[str, tuple[Any, Sequence[int]]]) -> Finding:
    """ "Up to 40 %": reached at some batch of each precision regime.

    regimes: name -> (settings, batches); the source may have meant each.
    """
    cases, reached, told = [], [], []
    for regime, (_, sizes) in regimes.items():
        found = []
        for size in sizes:
            full, tiles = (answers[("memory", regime, size, s)].plan for s in ("full", "chunked"))
            name = f"{regime}, batch {size}"
            found.append(saving(name, True, full.peak, tiles.peak, UP_TO))
        cases += found
        shares = ", ".join(
            f"{case.value:.0%} at {size}" for case, size in zip(found, sizes, strict=True)
        )
        told.append(f"{regime}: {shares}")
        reached.append(any(case.holds for case in found))
    regime, (_, sizes) = list(regimes.items())[1]
    return Finding(
        verdict(reached),
        f"Saved by batch. {'; '.join(told)}.",
        why_memory(answers[("memory", regime, sizes[-1], "full")].plan, regime, sizes[-1]),
        cases,
    )


def why_memory(plan: Any, regime: str, size: int) -> str:
    """Where the bytes of the largest batch are."""
    at = plan.at_peak.by_category
    return (
        f"Only logits shrink: at batch {size} in {regime} they are "
        f"{readable(at.get('logits', 0))} of {readable(plan.peak)}, beside "
        f"{readable(at.get('activation', 0))} of activations, which grow with the batch as they "
        "do. Where activations are recomputed (checkpointing) logits are what is left, and the "
        "saving is far larger. At small batches weights and optimiser state hide it."
    )


def chunked_batch(answers: Answers, models: Sequence[str], card: str) -> Finding:
    """ "1.5-1.8x": the largest batch that fits a card."""
    cases = []
    for model in models:
        full, tiles = (answers[("batch", model, side)].batch for side in ("full", "chunked"))
        value = tiles / full if full else float("inf")
        good = round(value, 1) >= LARGER
        cases.append(Case(model, True, "completions", full, tiles, value, good))
    told = "; ".join(f"{c.case} {c.before} to {c.after} ({c.value:.2f}x)" for c in cases)
    shares = []
    for model in models:
        plan = answers[("batch", model, "full")].plan
        shares.append(logits_share(plan.at_peak.by_category if plan else {}))
    told_shares = ", ".join(f"{s:.0%} for {m}" for s, m in zip(shares, models, strict=True))
    return Finding(
        of_cases(cases),
        f"Largest batch on one {card.upper()} of eight: {told}.",
        f"Of what grows with the batch, logits are this share: {told_shares}. Layers are the rest, "
        "for activations are kept here; a larger model has more of them and the same vocabulary. "
        "Weights hardly count: LoRA trains few, and eight ranks share them.",
        cases,
    )


def logits_share(at: Mapping[str, int]) -> float:
    """Of what grows with the batch."""
    rows = sum(at.get(name, 0) for name in ("logits", "activation", "temporary"))
    return at.get("logits", 0) / rows if rows else 0.0


def works_together(answers: Answers, models: Sequence[str]) -> Finding:
    """LoRA, FSDP and tiles in one step: bytes of logits for each completion."""
    cases = []
    for model in models:
        each = []
        for side in ("full", "chunked"):
            found = answers[("batch", model, side)]
            logits = found.plan.at_peak.by_category.get("logits", 0) if found.plan else 0
            each.append(logits / max(found.batch, 1))
        value = 1 - each[1] / each[0] if each[0] else 0.0
        cases.append(Case(model, True, "bytes", round(each[0]), round(each[1]), value, value > 0.9))
    told = "; ".join(
        f"{c.case} {readable(c.before)} in full, {readable(c.after)} in tiles" for c in cases
    )
    return Finding(
        of_cases(cases),
        f"Logits at the step's peak, for each completion: {told}.",
        "The head runs inside the model's forward, where FSDP2 gathers its weight, and reads "
        "hidden states, which adapters change before it does. FSDP shares weights among ranks and "
        "no logits, so tiles save on every rank what they save on one.",
        cases,
    )


def never_all_logits(peaks: Mapping[str, int], all_logits: int) -> Finding:
    """peaks: way -> bytes of a head beyond its inputs, in the order of measure.WAYS."""
    copies = {name: peak / all_logits for name, peak in peaks.items()}
    full, at_end, forward, again = copies.values()
    expected = (full >= 1, at_end >= 1, forward < 0.25, again < 0.25)
    cases = [
        Case(name, True, "copies of all logits", full, copy, copy, good)
        for (name, copy), good in zip(copies.items(), expected, strict=True)
    ]
    told = "; ".join(f"{name} {copy:.2f}" for name, copy in copies.items())
    return Finding(
        of_cases(cases),
        f"Most that a head held, in copies of all logits: {told}.",
        "Chunks alone do not do it: with one backward at the end autograd keeps the log-softmax "
        "of each, together one whole copy, though not the textbook's three. Gradients chunk by "
        "chunk in the forward need none; nor does making each chunk again in the backward, at the "
        "price of a fourth product.",
        cases,
    )


# ---- results and copies ----------------------------------------------------------------------


def lora_no_copy(copies: Mapping[str, tuple[float, float]]) -> Finding:
    """copies: way to train -> (copies of the model that are reference alone, largest error)."""
    (full, _), (lora, error) = copies["all weights"], copies["LoRA"]
    good = lora == 0 and error <= REFERENCE_BOUND
    case = Case("LoRA", True, "copies", full, lora, error, good)
    return Finding(
        of_cases([case]),
        f"Reference weights beside the policy's: {full:.0f} copy when all weights train, "
        f"{lora:.0f} with LoRA. After the adapters moved, log-probs with adapters off differ from "
        f"the model's before training by {error:.1g}.",
        "The base does not train, so with adapters off it is still the model of before.",
        [case],
    )


def same_results(differences: Mapping[str, tuple[float, float]]) -> Finding:
    """differences: head -> (loss, gradient as a share of its largest entry), to full logits."""
    cases = [
        Case(
            name, True, "difference", loss, grad, max(loss, grad),
            loss <= LOSS_BOUND and grad <= GRADIENT_BOUND,
        )
        for name, (loss, grad) in differences.items()
    ]  # fmt: skip
    told = "; ".join(f"{c.case} {c.before:.0e} and {c.after:.0e}" for c in cases)
    return Finding(
        of_cases(cases),
        f"Difference of the loss and of the gradient (of its largest entry): {told}.",
        "The same sums in another order: what differs is float32 rounding.",
        cases,
    )


# ---- RLOO against PPO ------------------------------------------------------------------------

LESS = 0.50


def rloo_memory(answers: Answers, compared: Mapping[str, Sequence[str]]) -> Finding:
    """ "50-70 % less". compared: comparison -> models; the first is the source's.

    The last has no RLOO of its own: that of the one before.
    """
    cases, told, names = [], [], list(compared)
    for comparison, models in compared.items():
        other = names[-2] if comparison == names[-1] else comparison
        found = []
        for model in models:
            ppo = answers[("rloo", comparison, model, "ppo")].plan
            rloo = answers[("rloo", other, model, "rloo")].plan
            name = f"{comparison}, {model}"
            found.append(saving(name, comparison == names[0], ppo.peak, rloo.peak, LESS))
        cases += found
        shares = ", ".join(f"{m} {c.value:.0%}" for m, c in zip(models, found, strict=True))
        told.append(f"{comparison}: {shares}")
    first = compared[names[0]][-1]
    sides = (answers[("rloo", names[0], first, name)].plan for name in ("ppo", "rloo"))
    return Finding(of_cases(cases), f"Saved. {'; '.join(told)}.", why_rloo(first, *sides), cases)


def why_rloo(model: str, ppo: Any, rloo: Any) -> str:
    """What makes the difference at the peak."""
    gap = ppo.peak - rloo.peak
    most, less = (p.at_peak.by_category.get("activation", 0) for p in (ppo, rloo))
    return (
        f"With {model} {readable(most - less)} of the {readable(gap)} between them are "
        "activations: PPO holds those of policy and value model until one backward pass. The "
        "copies themselves weigh little where 8 GPUs share them. "
        f"PPO then takes {readable(ppo.peak)} a GPU{beyond(ppo.peak)}. "
        "With LoRA, a critic on the policy's trunk and a function as reward both hold one model; "
        "a critic of its own trains all its weights and brings the gap back."
    )


def beyond(peak: int) -> str:
    """What it means that a step needs more than the source's cards have."""
    if peak <= card_bytes("h100"):
        return ""
    return (
        ", more than any 80 GB card has: on such cards this size wants fewer completions a GPU or "
        "recomputed activations, which spares PPO more than RLOO"
    )
