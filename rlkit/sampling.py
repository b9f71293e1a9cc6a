"""Drawing the next token, with noise that belongs to the token and to nothing else.

    next = argmax_v  score_v + g_v,     g_v = -log(-log u_v),  u_v uniform        (Gumbel-max)

The maximum of scores plus Gumbel noise is a draw from softmax(scores) (Gumbel 1954; Maddison et al.
2014, arXiv:1411.0030). The noise of one token is a hash of (seed, step, global row, position), so a
completion does not depend on the batch, the micro-batch or the number of ranks it is drawn in.

Scores are processed in the usual order: temperature, then top-k, then top-p. The log-prob that is
kept of a drawn token is that of the *untruncated* distribution at the same temperature: the policy
gradient differentiates log pi, and a truncated pi has no gradient for the tokens it forbids.
Left out on purpose: beam search, repetition penalties, min-p.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# SplitMix64 (Steele, Lea, Flood 2014), in two's complement because torch has no unsigned 64 bit
GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15
MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64: every input bit reaches every output bit."""
    x = (x ^ shift_right(x, 30)) * MIX_1
    x = (x ^ shift_right(x, 27)) * MIX_2
    return x ^ shift_right(x, 31)


def shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's >> repeats the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def keyed_uniform(seed: int, step: int, rows: Tensor, position: int, size: int) -> Tensor:
    """Uniform numbers in (0, 1) that depend on (seed, step, row, position, column) alone.

    rows: [B] int64, the global row of each completion. Returns [B, size] float32.
    """
    key = torch.zeros_like(rows)
    for part in (seed, step, rows, position):
        key = mix(key + GAMMA + part)
    column = torch.arange(1, size + 1, device=rows.device)
    bits = shift_right(mix(key[:, None] + column * GAMMA), 41)  # [B, size], 23 bits
    # half a step away from 0 and from 1, both exact in float32
    return (bits.float() + 0.5) * 2.0**-23


@dataclass(frozen=True)
class Sampler:
    """How tokens are drawn: temperature and truncation, and the key of the noise."""

    seed: int = 0
    step: int = 0
    temperature: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    top_p: float = 1.0
    """1 keeps every token."""
    greedy: bool = False

    def draw(self, logits: Tensor, rows: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """One token a row, and its log-prob under the untruncated distribution.

        logits: [B, V]; rows: [B] global rows; position: index in the completion.
        Returns tokens [B] int64, logp [B] float32.
        """
        scores = logits.float()
        if not self.greedy:
            scores = scores / self.temperature
        logp = scores.log_softmax(-1)  # [B, V]
        if self.greedy:
            tokens = scores.argmax(-1)
        else:
            noise = keyed_uniform(self.seed, self.step, rows, position, scores.size(-1))
            kept = keep_top_p(keep_top_k(scores, self.top_k), self.top_p)
            tokens = (kept - torch.log(-torch.log(noise))).argmax(-1)
        return tokens, logp.gather(-1, tokens[:, None]).squeeze(-1)


def keep_top_k(scores: Tensor, k: int) -> Tensor:
    """[B, V] with all but the k highest at -inf (ties with the k-th stay)."""
    if not 0 < k < scores.size(-1):
        return scores
    lowest = scores.topk(k, dim=-1).values[:, -1:]
    return scores.masked_fill(scores < lowest, -torch.inf)


def keep_top_p(scores: Tensor, p: float) -> Tensor:
    """[B, V] with all but the smallest set of tokens of total probability >= p at -inf.

    Nucleus sampling, Holtzman et al. 2020, arXiv:1904.09751.
    """
    if p >= 1.0:
        return scores
    ordered, order = scores.sort(dim=-1, descending=True)
    probability = ordered.softmax(-1)
    before = probability.cumsum(-1) - probability  # mass above this token
    dropped = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= p)
    return scores.masked_fill(dropped, -torch.inf)
