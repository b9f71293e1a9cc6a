"""The GAE explorer: a real completion as a strip of tokens, with gamma and lambda to move.

    GAEExplorer(strips(rollout, tokenizer, values, rows=[3, 8]))

The strip is coloured by advantage, by the value once the token is there, by ratio, entropy or KL,
each with its number. Below, dots between the tokens are the values of the text so far, bars the
advantages; a dashed line is the one number that RLOO gives to every token.

    delta_t = r_t + gamma V_t+1 - V_t,    A_t = delta_t + gamma lam A_t+1

The page computes this by itself; `numbers` takes it from rlkit.advantages.gae.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlkit.advantages import gae, token_rewards
from rlkit.rollout import Rollout
from rlkit.widgets.explorer import (
    COLOURS,
    INK,
    Choice,
    Control,
    Explorer,
    Slider,
    paper,
    titled,
)

END = "∎"  # stands for EOS
Y = (-1.2, 1.2)
OPTIONAL = {"ratio": "ratio", "entropy": "entropy", "KL": "kl"}


@dataclass(frozen=True)
class Strip:
    """One completion: its tokens as text, and a number a token of everything else.

    values[t] judges the text before token t; baseline: what RLOO takes from the reward, or None.
    """

    prompt: str
    tokens: list[str]
    reward: float
    values: list[float]
    baseline: float | None = None
    ratio: list[float] | None = None
    entropy: list[float] | None = None
    kl: list[float] | None = None


def strips(
    rollout: Rollout,
    tokenizer: Any,
    values: Tensor,
    rows: Sequence[int],
    *,
    baseline: Tensor | None = None,
    ratio: Tensor | None = None,
    entropy: Tensor | None = None,
    kl: Tensor | None = None,
) -> list[Strip]:
    """Some rows of a rollout, to be shown. values, ratio, entropy, kl: [B, T]; baseline: [B]."""
    found = []
    for i in rows:
        length = int(rollout.mask[i].sum())
        ids = rollout.completion_ids[i, :length].tolist()
        tokens = [tokenizer.convert_ids_to_tokens(token) for token in ids]
        per_token = {"values": values, "ratio": ratio, "entropy": entropy, "kl": kl}
        found.append(
            Strip(
                prompt=tokenizer.decode(rollout.prompt_ids[i][rollout.prompt_mask[i]]),
                tokens=[END if t == tokenizer.eos_token else t for t in tokens],
                reward=float(rollout.rewards[i]),
                baseline=None if baseline is None else float(baseline[i]),
                **{k: x[i, :length].tolist() for k, x in per_token.items() if x is not None},
            )
        )
    return found


class GAEExplorer(Explorer):
    """Sliders for gamma and lambda over one or several completions."""

    script: ClassVar[str] = "gae.js"

    def __init__(self, rows: Sequence[Strip], **start: Any) -> None:
        """rows: from `strips`; all have the same optional columns. start: by control.

        Raises ValueError if there are no rows, or for a start that is out of range.
        """
        if not rows:
            raise ValueError("there is no completion to show: give at least one strip")
        self.rows = list(rows)
        given = [word for word, name in OPTIONAL.items() if getattr(rows[0], name) is not None]
        controls: list[Control] = [
            Slider("gamma", "gamma", 0.0, 1.0, 0.01),
            Slider("lam", "lambda", 0.0, 1.0, 0.01),
            Choice("colour", "colour", ("advantage", "value after", *given)),
        ]
        if len(rows) > 1:
            controls.append(Slider("completion", "completion", 1, len(rows), 1, 0, buttons=True))
        if "KL" in given:
            controls.append(Slider("beta", "beta (KL)", 0.0, 1.0, 0.01))
        data = {"rows": [asdict(row) for row in rows]}
        super().__init__(controls, data, **({"gamma": 1.0, "lam": 0.95} | start))

    @property
    def row(self) -> Strip:
        """The completion that is shown."""
        return self.rows[int(self.values.get("completion", 1)) - 1]

    def advantages(self) -> Tensor:
        """[T], of the completion that is shown."""
        row = self.row
        mask = torch.ones(1, len(row.values), dtype=torch.bool)
        kl = None if row.kl is None else torch.tensor([row.kl])
        rewards = token_rewards(torch.tensor([row.reward]), kl, mask, self.values.get("beta", 0.0))
        found, _ = gae(
            rewards, torch.tensor([row.values]), mask, self.values["gamma"], self.values["lam"]
        )
        return found[0]

    def numbers(self) -> dict[str, float]:
        """Which token lowers the value most, by how much, and advantages: its own and others."""
        values, advantages = torch.tensor(self.row.values), self.advantages()
        falls = values[:-1] - values[1:]
        at = int(falls.argmax()) if len(falls) else 0
        return {
            "at": float(at),
            "fall": falls[at].item() if len(falls) else 0.0,
            "first": advantages[0].item(),
            "advantage": advantages[at].item(),
            "last": advantages[-1].item(),
            "sum": advantages.sum().item(),
        }

    def static(self) -> Any:
        """Bars, values and the tokens above them."""
        row, advantages, found = self.row, self.advantages(), self.numbers()
        fig, (ax,) = paper(1)
        T, at = len(row.tokens), int(found["at"])
        middle = [t + 0.5 for t in range(T)]
        ax.axvspan(at, at + 1, color=INK, alpha=0.07, lw=0)
        ax.axhline(0, color=INK, lw=0.8)
        ax.bar(middle, advantages.tolist(), 0.5, color=COLOURS["blue"], label="GAE")
        if row.baseline is not None:
            ax.axhline(row.reward - row.baseline, color=COLOURS["orange"], ls="--", label="RLOO")
        ax.plot(range(T), row.values, "o-", color=COLOURS["purple"], label="value so far")
        ax.plot([T], [row.reward], "s", color=INK, ms=8, label="reward", clip_on=False)
        for t in range(T):
            ax.text(middle[t], 1.05, row.tokens[t], ha="center", family="monospace", fontsize=15)
            ax.text(middle[t], -1.12, f"{advantages[t]:.2f}", ha="center", fontsize=9)
        words = ["end" if token == END else token for token in row.tokens]
        ax.set(xlim=(0, T), ylim=Y, xticks=middle, xlabel=f"tokens after {row.prompt}")
        ax.set_xticklabels(words)
        ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))
        return titled(fig, self.finding())

    def finding(self) -> str:
        """The picture in one sentence."""
        row, found = self.row, self.numbers()
        at = int(found["at"])
        says = "the value never falls"
        if found["fall"] > 0:
            before, after = row.values[at : at + 2]
            says = f'"{row.tokens[at]}": value {before:.2f} to {after:.2f}'
        says += f"; advantage {found['advantage']:.2f}"
        return says if row.baseline is None else f"{says}, RLOO's {row.reward - row.baseline:.2f}"
