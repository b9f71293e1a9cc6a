"""The clip explorer: the gain of one token, its clipped form, the smaller of the two.

    ClipExplorer()                              starts at ratio 1.5, advantage 1
    ClipExplorer(ratio=1.5, advantage=-1.0)     the policy went the wrong way

    gain = min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon_high) A),   loss = -gain

Shaded: the ratios at which a token no longer pulls. `delta` bounds the ratio where the advantage is
negative too. The numbers are those of rlkit.objectives.clipped_surrogate.
"""

from typing import Any, ClassVar

import torch

from rlkit.objectives import clipped_surrogate
from rlkit.widgets.explorer import COLOURS, INK, Explorer, Slider, Toggle, paper, titled

RATIOS, GAINS = (0.0, 3.0), (-4.5, 4.5)
CONTROLS = [
    Slider("ratio", "ratio", *RATIOS, 0.01),
    Slider("advantage", "advantage A", -1.5, 1.5, 0.05),
    Slider("epsilon", "epsilon", 0.05, 0.6, 0.01),
    Slider("epsilon_high", "epsilon_high", 0.05, 1.0, 0.01),
    Toggle("two_sided", "use delta"),
    Slider("delta", "delta", 1.1, 3.0, 0.05),
]
START = {"ratio": 1.5, "advantage": 1.0, "epsilon": 0.2, "epsilon_high": 0.2, "delta": 2.0}


class ClipExplorer(Explorer):
    """Sliders for the ratio, the advantage and the clip; lines of the gain over the ratio."""

    script: ClassVar[str] = "clip.js"

    def __init__(self, **start: Any) -> None:
        """start: the first value of any control; ValueError for one that is out of range."""
        super().__init__(CONTROLS, **START | start)

    def numbers(self) -> dict[str, float]:
        """The two gains, the smaller one, the loss, and d loss / d logp."""
        ratio = torch.tensor(self.values["ratio"], dtype=torch.float64)
        logp = ratio.log().requires_grad_()
        free, near, loss = self.gains(logp.exp())
        (gradient,) = torch.autograd.grad(loss, logp)
        found = {"free": free, "near": near, "gain": -loss, "loss": loss, "gradient": gradient}
        # log(0) has no gradient that a number could hold
        return {name: x.nan_to_num(0.0).item() for name, x in found.items()}

    def gains(self, ratio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(ratio A bounded by delta, the clipped gain, the loss) at any ratios."""
        values = self.values
        A = torch.as_tensor(values["advantage"], dtype=ratio.dtype)
        delta = values["delta"] if values["two_sided"] else None
        epsilons = values["epsilon"], values["epsilon_high"]
        free = ratio.clamp(max=delta) * A if delta else ratio * A
        near = ratio.clamp(1 - epsilons[0], 1 + epsilons[1]) * A
        return free, near, clipped_surrogate(ratio, A, *epsilons, delta)

    def silent(self) -> list[tuple[float, float]]:
        """Ranges of the ratio at which the gradient is 0."""
        values = self.values
        if values["advantage"] == 0:
            return [RATIOS]
        if values["advantage"] > 0:
            return [(1 + values["epsilon_high"], RATIOS[1])]
        ranges = [(RATIOS[0], 1 - values["epsilon"])]
        return [*ranges, (values["delta"], RATIOS[1])] if values["two_sided"] else ranges

    def static(self) -> Any:
        """The gain over the ratio, with the same shades."""
        fig, (ax,) = paper(1)
        ratios = torch.linspace(*RATIOS, 301, dtype=torch.float64)
        free, near, loss = self.gains(ratios)
        for low, high in self.silent():
            ax.axvspan(low, high, color=INK, alpha=0.09, lw=0)
            ax.text((low + high) / 2, GAINS[0] + 0.2, "gradient 0", ha="center", fontsize=9)
        ax.plot(ratios, -loss, color=INK, lw=6, alpha=0.35, label="min, what counts")
        ax.plot(ratios, free, color=COLOURS["blue"], ls="--", label="ratio A")
        ax.plot(ratios, near, color=COLOURS["orange"], ls=":", lw=2.5, label="clipped")
        ax.plot([self.values["ratio"]], [self.numbers()["gain"]], "o", color=INK, ms=8)
        ax.set(xlim=RATIOS, ylim=GAINS, xlabel="ratio = exp(logp - logp_old)", ylabel="gain")
        ax.legend(frameon=False, loc="upper left", ncols=3)
        found, A = self.numbers(), self.values["advantage"]
        says = f"ratio {self.values['ratio']:.2f}, A = {A:.2f}: gain {found['gain']:.2f}"
        return titled(fig, f"{says}, gradient {found['gradient']:.2f}")
