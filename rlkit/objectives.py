"""The policy losses of PPO, RLOO and GRPO, the value loss and the KL estimators: each formula once.

    ratio = exp(logp - logp_old)                  of a token, or of a whole completion
    loss  = sum over tokens of (-min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon_high) A)
                                + beta kl) / denominator   - entropy_coef * mean entropy

PPO takes a token's ratio and divides by the tokens; RLOO takes a completion's ratio and divides by
the completions; GRPO chooses. LOSS_TYPES is the whole choice: a surrogate and a denominator each.

Everything is a pure function of [B, T] log-probs, in their own dtype (float32 or float64). Padding
may hold anything and has gradient 0. Nothing is read back from a tensor, so the same code runs
under fake tensors. With `totals` a loss is a share: cut a batch as you like, the shares add up to
the loss of the whole.

Left out on purpose: adaptive KL and entropy coefficients, auxiliary losses of mixtures of experts.
PPO: Schulman et al. 2017, arXiv:1707.06347, equation 7. RLOO: Ahmadian et al. 2024,
arXiv:2402.14740. GRPO: Shao et al. 2024, arXiv:2402.03300, equation 3.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from rlkit.batch import MAX_LOG_RATIO, Batch, bounded_exp, clean, mean_of, near_policy, on_valid
from rlkit.batch import Totals as Totals  # callers of an objective find these here
from rlkit.batch import entropy_quantile as entropy_quantile
from rlkit.batch import sampler_correction as sampler_correction
from rlkit.config import unknown

Sums = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """What the three algorithms share; each adds its ratio and its denominator."""

    epsilon: float = 0.2
    """Clip of the ratio below 1."""
    epsilon_high: float | None = None
    """Clip above 1; None: epsilon. In cispo the largest weight itself (ScaleRL: 5.0)."""
    delta: float | None = None
    """Bound of the ratio where the advantage is negative too; None: none."""
    entropy_coef: float = 0.0
    """Weight of the mean entropy, which is maximised."""

    # settings of GRPO alone; PPO and RLOO have the KL in the reward and only report it
    beta: ClassVar[float] = 0.0
    kl_estimator: ClassVar[str] = "k3"
    use_bias_correction_kl: ClassVar[bool] = False
    top_entropy_quantile: ClassVar[float] = 1.0
    needs_sequences: ClassVar[bool] = False
    """Whether a row must be whole. If not, its tokens may be cut anywhere, given the `lengths` of
    the whole rows and `totals`."""

    @property
    def needs_entropy(self) -> bool:
        """Whether `entropy` must be given; where it may be None it is only reported."""
        return self.entropy_coef != 0 or self.top_entropy_quantile < 1

    def __call__(
        self,
        logp: Tensor,
        logp_old: Tensor | None,
        advantages: Tensor,
        mask: Tensor,
        *,
        logp_ref: Tensor | None = None,
        entropy: Tensor | None = None,
        entropy_threshold: Tensor | float | None = None,
        totals: Totals | None = None,
        lengths: Tensor | None = None,
        logp_sampled: Tensor | None = None,
        importance_weights: Tensor | None = None,
    ) -> tuple[Tensor, Sums]:
        """The loss of a batch, or its share of a larger one, and what to report of it.

        logp, mask: [B, T]; logp_old: [B, T], None: logp.detach(), the policy that sampled is the
            one that learns. advantages: [B] or [B, T].
        logp_ref: [B, T], needed for beta; else only reported. entropy: [B, T], see needs_entropy.
        entropy_threshold: `entropy_quantile` over the whole step; None: over this batch.
        totals: of the whole optimiser step; None: this batch is all of it.
        lengths: [B] valid tokens of the whole rows, where these are cut; None: counted in mask.
        logp_sampled: [B, T] noted by the sampler, for the off-policy mask; None: logp_old.
        importance_weights: [B, T] or [B, 1], multiply the policy term, see `sampler_correction`.
        Returns (loss, {name: (sum, count)}): add sums and counts over micro-batches, then divide.
        Raises ValueError for shapes that do not fit and inputs that the settings need.
        """
        self.check(logp_ref, entropy)
        batch = clean(
            logp,
            logp_old,
            advantages,
            mask,
            logp_ref=logp_ref,
            entropy=entropy,
            entropy_threshold=entropy_threshold,
            top_entropy_quantile=self.top_entropy_quantile,
            totals=totals,
            lengths=lengths,
            logp_sampled=logp_sampled,
            importance_weights=importance_weights,
        )
        return self.loss(batch)

    def loss(self, batch: Batch) -> tuple[Tensor, Sums]:
        """The formula, on clean inputs. Returns (loss, sums) as a call does."""
        ratio, weight = self.ratio(batch)
        losses, sums = self.surrogate(batch, ratio, weight)
        losses = losses * batch.kept  # [B, T]
        if batch.logp_ref is not None:
            kl = self.kl(batch, ratio)
            losses = losses + self.beta * kl if self.beta else losses
            sums["kl"] = mean_of(kl, batch.mask)
        loss = (losses / self.denominator(batch)).sum()
        if batch.entropy is not None:
            sums["entropy"] = mean_of(batch.entropy, batch.mask)
        if self.entropy_coef:
            loss = loss - self.entropy_coef * self.entropy_bonus(batch)
        return loss, sums

    @abstractmethod
    def ratio(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The ratio, [B, T] or [B, 1], and what each token counts for in its mean, [B, T]."""

    @abstractmethod
    def denominator(self, batch: Batch) -> Any:
        """What each token's loss is divided by: a number, or [B, 1]."""

    def surrogate(self, batch: Batch, ratio: Tensor, weight: Tensor) -> tuple[Tensor, Sums]:
        """The loss of each token or row before division, [B, T] or [B, 1], and means to report."""
        return clipped(self, batch, ratio, weight)

    def kl(self, batch: Batch, ratio: Tensor) -> Tensor:
        """Each token's estimate of the KL divergence from the reference, [B, T], 0 on padding."""
        kl = kl_divergence(batch.logp, batch.logp_ref, self.kl_estimator)
        return kl * ratio if self.use_bias_correction_kl else kl

    def entropy_bonus(self, batch: Batch) -> Tensor:
        """Mean entropy of the tokens that carry the policy loss, a known share of all."""
        tokens = self.top_entropy_quantile * batch.totals.tokens
        return (batch.entropy * batch.kept).sum() / tokens

    def check(self, logp_ref: Tensor | None, entropy: Tensor | None) -> None:
        """Raises ValueError with the argument that the settings need."""
        if self.beta and logp_ref is None:
            raise ValueError(f"beta={self.beta} needs logp_ref, the reference's log-probs [B, T]")
        if self.needs_entropy and entropy is None:
            raise ValueError("entropy_coef and top_entropy_quantile need entropy [B, T]")


@dataclass(frozen=True, kw_only=True)
class PPO(Objective):
    """Each token is an action; the mean over tokens."""

    def ratio(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of single tokens."""
        return token_ratio(batch)

    def denominator(self, batch: Batch) -> Any:
        """The tokens of the whole step."""
        return all_tokens(self, batch)

    def surrogate(self, batch: Batch, ratio: Tensor, weight: Tensor) -> tuple[Tensor, Sums]:
        """Clipped, and how far the policy has moved from the one that drew the rollout (k3)."""
        losses, sums = super().surrogate(batch, ratio, weight)
        sums["kl_old"] = mean_of(k3(batch.logp_old - batch.logp), batch.mask)
        return losses, sums


@dataclass(frozen=True, kw_only=True)
class RLOO(Objective):
    """The whole completion is one action; the mean over completions."""

    needs_sequences: ClassVar[bool] = True

    def ratio(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of whole completions."""
        return completion_ratio(batch)

    def denominator(self, batch: Batch) -> Any:
        """The completions of the whole step, and each one's length."""
        # every token of a row carries the row's loss
        return own_length(self, batch)


@dataclass(frozen=True, kw_only=True)
class GRPO(Objective):
    """GRPO and its kin, under TRL's names and defaults."""

    loss_type: str = "dapo"
    """A key of LOSS_TYPES."""
    beta: float = 0.0
    """Weight of the KL divergence from the reference."""
    use_bias_correction_kl: bool = True
    """Multiply the KL estimate by the ratio: unbiased off policy, and with k3 its gradient on
    policy is logp - logp_ref, the true one (DeepSeek-V3.2, arXiv:2512.02556)."""
    importance_sampling_level: str = "token"
    """A key of LEVELS; "sequence" is GSPO."""
    max_completion_length: int | None = None
    """Tokens that dr_grpo divides each completion by, however long it is."""
    top_entropy_quantile: float = 1.0
    """Share of the tokens, those of highest entropy, that carry the policy loss
    (arXiv:2506.01939: 0.2)."""
    kl_estimator: str = "k3"
    """A key of KL_ESTIMATORS."""
    off_policy_mask_threshold: float | None = None
    """Completions with negative advantage whose mean log-ratio to their sampler exceeds this (nats
    a token) are left out (DeepSeek-V3.2); None: never."""
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    """Steepness of SAPO's soft clip, for positive and for other advantages."""
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0
    """Shape of VESPO's weight w^k e^(lambda (1 - w)), by the sign of the advantage."""

    def __post_init__(self) -> None:
        for field, known in (
            ("loss_type", LOSS_TYPES),
            ("importance_sampling_level", LEVELS),
            ("kl_estimator", KL_ESTIMATORS),
        ):
            if getattr(self, field) not in known:
                raise ValueError(unknown(field, getattr(self, field), known))
        if self.loss_type == "dr_grpo" and not self.max_completion_length:
            raise ValueError("loss_type='dr_grpo' divides by max_completion_length: set it")
        if self.loss_type == "cispo" and self.epsilon_high is None:
            raise ValueError("loss_type='cispo' needs epsilon_high, the largest weight: try 5.0")
        share = self.top_entropy_quantile
        if not 0 < share <= 1:
            raise ValueError(f"top_entropy_quantile={share} must lie in (0, 1]; 1.0 keeps all")

    @property
    def needs_sequences(self) -> bool:
        """True where log-ratios are summed along a row; its length alone may be given."""
        by_row = self.importance_sampling_level == "sequence" or self.loss_type == "vespo"
        return by_row or self.off_policy_mask_threshold is not None

    def ratio(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of what importance_sampling_level says."""
        return LEVELS[self.importance_sampling_level](batch)

    def denominator(self, batch: Batch) -> Any:
        """What loss_type divides by."""
        return LOSS_TYPES[self.loss_type].denominator(self, batch)

    def surrogate(self, batch: Batch, ratio: Tensor, weight: Tensor) -> tuple[Tensor, Sums]:
        """What loss_type minimises, without completions that are too far off policy."""
        losses, sums = LOSS_TYPES[self.loss_type].surrogate(self, batch, ratio, weight)
        if self.off_policy_mask_threshold is not None:
            losses = losses * near_policy(batch, self.off_policy_mask_threshold)
        return losses, sums


# --- ratios: batch -> (ratio [B, T] or [B, 1], what each token counts for in its mean [B, T])


def token_ratio(batch: Batch) -> tuple[Tensor, Tensor]:
    """Each token's ratio, as in PPO and GRPO."""
    return bounded_exp(batch.logp - batch.logp_old), batch.mask


def sequence_ratio(batch: Batch) -> tuple[Tensor, Tensor]:
    """The geometric mean of a row's ratios (GSPO: Zheng et al. 2025, arXiv:2507.18071)."""
    log_ratio = (batch.logp - batch.logp_old).sum(1, keepdim=True) / batch.lengths
    return bounded_exp(log_ratio), batch.mask / batch.lengths


def completion_ratio(batch: Batch) -> tuple[Tensor, Tensor]:
    """The ratio of the probabilities of whole completions: the product of a row's ratios (RLOO)."""
    log_ratio = (batch.logp - batch.logp_old).sum(1, keepdim=True)
    return bounded_exp(log_ratio), batch.mask / batch.lengths


LEVELS: dict[str, Callable] = {"token": token_ratio, "sequence": sequence_ratio}
"""What a ratio is taken of, under the names of importance_sampling_level."""


# --- surrogates: (objective, batch, ratio, weight) -> (losses [B, T] or [B, 1], sums)


def clipped_surrogate(
    ratio: Tensor,
    advantages: Tensor,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
) -> Tensor:
    """-min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon_high) A): the pessimist of the two.

    The clip ends the reward for going further, never the way back: at ratio 1.5 and A = -1 the
    gradient stays. delta bounds the ratio there too (INTELLECT-2, arXiv:2505.07291).
    ratio, advantages: shapes that broadcast. Schulman et al. 2017, equation 7.
    """
    high = epsilon if epsilon_high is None else epsilon_high
    near = ratio.clamp(1 - epsilon, 1 + high)
    return -torch.min(ratio.clamp(max=delta or math.inf) * advantages, near * advantages)


def clipped(args: Any, batch: Batch, ratio: Tensor, weight: Tensor) -> tuple[Tensor, Sums]:
    """`clipped_surrogate`, and how often the clip ended a gradient."""
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    losses = clipped_surrogate(ratio, batch.advantages, args.epsilon, high, args.delta)
    bounded = ratio.clamp(max=args.delta or math.inf)
    too_low = (ratio < 1 - args.epsilon) & (batch.advantages < 0)
    too_high = (bounded > 1 + high) & (batch.advantages > 0)
    return batch.correction * losses, {
        "ratio": mean_of(ratio, weight),
        "clip_ratio": mean_of(too_low | too_high, weight),
        "clip_ratio/low": mean_of(too_low, weight),
        "clip_ratio/high": mean_of(too_high, weight),
    }


def cispo(args: Any, batch: Batch, ratio: Tensor, weight: Tensor) -> tuple[Tensor, Sums]:
    """-min(ratio, epsilon_high) A logp, the ratio without gradient: no token is ever silenced.

    MiniMax-M1, arXiv:2506.13585.
    """
    capped = ratio.clamp(max=args.epsilon_high).detach()
    losses = -capped * batch.advantages * batch.logp
    too_high = (ratio > args.epsilon_high) & (batch.advantages > 0)
    sums = {"ratio": mean_of(ratio, weight), "clip_ratio": mean_of(too_high, weight)}
    return batch.correction * losses, sums


def sapo(args: Any, batch: Batch, ratio: Tensor, weight: Tensor) -> tuple[Tensor, Sums]:
    """-4 / tau sigmoid(tau (ratio - 1)) A: a soft clip, of slope 1 on policy.

    SAPO, arXiv:2511.20347.
    """
    tau = by_sign(batch.advantages > 0, args.sapo_temperature_pos, args.sapo_temperature_neg, ratio)
    losses = -4 / tau * torch.sigmoid(tau * (ratio - 1)) * batch.advantages
    return batch.correction * losses, {"ratio": mean_of(ratio, weight)}


def vespo(args: Any, batch: Batch, ratio: Tensor, weight: Tensor) -> tuple[Tensor, Sums]:
    """-phi(w) A logp, phi(w) = w^k e^(lambda (1 - w)) without gradient, w the completion's ratio.

    phi is 1 on policy and falls to 0 on both sides. VESPO, arXiv:2602.10693.
    """
    low, high = math.log(1e-8), MAX_LOG_RATIO
    log_ratio = (batch.logp - batch.logp_old).detach().clamp(-high, high)
    log_correction = batch.correction.log().clamp(low, high)
    log_w = log_ratio.sum(1, keepdim=True) + log_correction.sum(1, keepdim=True)
    log_w = log_w.clamp(low, high)  # [B, 1]
    good = batch.advantages >= 0
    k = by_sign(good, args.vespo_k_pos, args.vespo_k_neg, log_w)
    lam = by_sign(good, args.vespo_lambda_pos, args.vespo_lambda_neg, log_w)
    phi = (k * log_w + lam * (1 - log_w.exp())).exp()
    losses = -phi * batch.advantages * batch.logp
    row = batch.mask / batch.lengths
    return losses, {"ratio": mean_of(ratio, weight), "phi": mean_of(phi, row)}


def by_sign(positive: Tensor, yes: float, no: float, like: Tensor) -> Tensor:
    """A setting that depends on the sign of the advantage, in like's dtype."""
    return torch.where(positive, like.new_full((), yes), like.new_full((), no))


class LossType(NamedTuple):
    """A loss of GRPO's kin: what each token costs, and what that is divided by."""

    surrogate: Callable[[Any, Batch, Tensor, Tensor], tuple[Tensor, Sums]]
    denominator: Callable[[Any, Batch], Any]


def all_tokens(args: Objective, batch: Batch) -> Any:
    """Each token weighs the same, wherever it stands."""
    return batch.totals.tokens


def own_length(args: Objective, batch: Batch) -> Any:
    """Each completion weighs the same: a token of a long one weighs less."""
    return batch.lengths * batch.totals.sequences


def full_length(args: GRPO, batch: Batch) -> Any:
    """Each token weighs the same, and the weight does not depend on the batch."""
    return args.max_completion_length * batch.totals.sequences


def no_length(args: Objective, batch: Batch) -> Any:
    """The mean over completions of their summed tokens."""
    return batch.totals.sequences


LOSS_TYPES: dict[str, LossType] = {
    "grpo": LossType(clipped, own_length),
    "bnpo": LossType(clipped, all_tokens),  # TRL's: the tokens of each micro-batch by itself
    "dr_grpo": LossType(clipped, full_length),  # Liu et al. 2025, arXiv:2503.20783
    "dapo": LossType(clipped, all_tokens),  # Yu et al. 2025, arXiv:2503.14476
    "luspo": LossType(clipped, no_length),  # arXiv:2602.05261
    "cispo": LossType(cispo, all_tokens),
    "sapo": LossType(sapo, own_length),
    "vespo": LossType(vespo, all_tokens),
}
"""The losses of GRPO, under TRL's names. A new one is a line here, and its surrogate above."""


# --- parts that stand by themselves


def k1(log_ratio: Tensor) -> Tensor:
    """logp - logp_ref: unbiased, of either sign. As a loss its gradient ignores the reference."""
    return log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """(logp - logp_ref)^2 / 2: biased, its gradient on policy is the KL's."""
    return 0.5 * log_ratio.square()


def k3(log_ratio: Tensor) -> Tensor:
    """e^-x - 1 + x with x = logp - logp_ref: unbiased and never negative, given expm1."""
    return torch.expm1(-log_ratio) + log_ratio


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""Estimators of KL(policy || reference) from tokens that the policy drew."""


def kl_divergence(logp: Tensor, logp_ref: Tensor, estimator: str = "k3") -> Tensor:
    """Each token's estimate of KL(policy || reference), in nats; mask it yourself.

    logp, logp_ref: [B, T]. Returns [B, T]. Raises ValueError for an unknown estimator.
    Schulman 2020, "Approximating KL divergence", joschu.net/blog/kl-approx.html.
    """
    if estimator not in KL_ESTIMATORS:
        raise ValueError(unknown("estimator", estimator, KL_ESTIMATORS))
    return KL_ESTIMATORS[estimator](logp - logp_ref)


def value_loss(
    values: Tensor,
    values_old: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    clip: float | None = 0.2,
    totals: Totals | None = None,
) -> Tensor:
    """Half the squared error of the value model, averaged over valid tokens (or a share of it).

    values, values_old (before the update), returns, mask: [B, T]. A value that has moved further
    than clip (reward units) from values_old gains nothing more; None: no clip.
    Schulman et al. 2017, equation 9; the clip is of their code, openai/baselines ppo2.
    """
    valid = mask.bool()
    values, values_old, returns = (on_valid(x, valid) for x in (values, values_old, returns))
    error = (values - returns).square()
    if clip is not None:
        near = values_old + (values - values_old).clamp(-clip, clip)
        error = torch.max(error, (near - returns).square())
    totals = Totals.of(valid) if totals is None else totals
    return 0.5 * error.sum() / totals.at_least_one().tokens
