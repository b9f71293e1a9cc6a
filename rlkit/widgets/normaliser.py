"""The normaliser explorer: what a token weighs in a right and in a wrong answer.

    NormaliserExplorer(right=2, wrong=6)          sliders: both lengths; the normaliser

grpo      1 / (2 length)         the mean over each answer, then over both
dapo      1 / (all tokens)       the mean over all tokens
dr_grpo   1 / (2 longest)        a fixed divisor, the length that is allowed
"""

from typing import Any

from rlkit.widgets.explorer import COLOURS, Choice, Explorer, Slider, paper, titled

NORMALISERS = ("grpo", "dapo", "dr_grpo")
LONGEST = 16


def weights(name: str, right: float, wrong: float) -> tuple[float, float]:
    """Of one token of the right answer and of the wrong one."""
    if name == "grpo":
        return 1 / (2 * right), 1 / (2 * wrong)
    weight = 1 / (right + wrong) if name == "dapo" else 1 / (2 * LONGEST)
    return weight, weight


class NormaliserExplorer(Explorer):
    """right, wrong: tokens in each answer, 1 to 16; normaliser: grpo, dapo or dr_grpo."""

    script = "normaliser.js"

    def __init__(self, right: int = 2, wrong: int = 6, normaliser: str = "grpo") -> None:
        controls = [
            Slider("right", "tokens, right", 1, LONGEST, 1, 0),
            Slider("wrong", "tokens, wrong", 1, LONGEST, 1, 0),
            Choice("normaliser", "loss type", NORMALISERS),
        ]
        start = dict(right=right, wrong=wrong, normaliser=normaliser)
        super().__init__(controls, {"longest": LONGEST}, **start)

    def numbers(self) -> dict[str, float]:
        """Weights of a token and of a whole answer."""
        values = self.values
        right, wrong = weights(values["normaliser"], values["right"], values["wrong"])
        return {
            "token right": right,
            "token wrong": wrong,
            "answer right": right * values["right"],
            "answer wrong": wrong * values["wrong"],
        }

    def static(self) -> Any:
        """A bar for each token, up for the right answer, down for the wrong one."""
        fig, axes = paper(1, 1, 1, height=3)
        for ax, name in zip(axes, NORMALISERS, strict=True):
            up, down = weights(name, self.values["right"], self.values["wrong"])
            tokens = [range(1, int(self.values[k]) + 1) for k in ("right", "wrong")]
            ax.bar(tokens[0], up, color=COLOURS["blue"], label="right")
            ax.bar(tokens[1], -down, color=COLOURS["orange"], hatch="//", label="wrong")
            told = f"{name}: answers {up * len(tokens[0]):.2f} and {down * len(tokens[1]):.2f}"
            ax.set_title(told, fontsize=9.5)
            ax.set(xlabel="token", ylabel="weight times advantage", ylim=(-0.55, 0.55))
        axes[0].legend(frameon=False)
        return titled(fig, title(self.values["normaliser"], self.numbers()))


def title(name: str, numbers: dict[str, float]) -> str:
    """The finding."""
    times = numbers["token right"] / numbers["token wrong"]
    share = numbers["answer wrong"] / (numbers["answer right"] + numbers["answer wrong"])
    ahead = f"{name}: right tokens weigh {times:.2f} times wrong ones"
    return f"{ahead}; the wrong answer has {100 * share:.0f} of 100"
