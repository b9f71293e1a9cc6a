"""The baseline explorer: what each answer of a group is judged by, and what that is worth.

    BaselineExplorer([1.0, 0.0, 0.0, 0.5])                      a group to move by hand
    BaselineExplorer(group, pool=(rewards, slopes))             also the learner's own rollouts

The pool is many answers of a model to one prompt: the reward r and the slope s of each, s being the
gradient of the answer's log-prob projected once on the direction of the true gradient. An estimate
spends BUDGET answers in groups of G:

    mean_i (r_i - b_i) s_i,     b_i = 0  |  mean of the others  |  mean of the group

Each setting of the sliders resamples DRAWS estimates (the same answers each time, so that nothing
flickers) in units of the true slope: 1 is right. `width / centre` is the standard deviation over
the mean: how much noise comes with one unit of signal.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlkit.widgets.explorer import COLOURS, INK, Choice, Explorer, Slider, floats, paper, titled

BUDGET, DRAWS = 16, 1024
SIZES = (2, 4, 8, 16)
KINDS = {"none": "no baseline", "loo": "leave-one-out", "mean": "plain mean"}
LOOK = {"none": ("orange", "s", ":"), "loo": ("blue", "o", "-"), "mean": ("purple", "^", "--")}
MOST_SHIFT = 5.0
STEP = 1e-3  # along a direction of length 1


class BaselineExplorer(Explorer):
    """Reward sliders of one group; with a pool, also widths of estimates against G.

    rewards: of one group, 2 to 6 numbers of 0 to 1. names: of its answers.
    pool: (rewards [N], slopes [N]) of one prompt's answers, arrays or tensors.
    guess: the second answer's baseline, drawn as a dashed line.
    Raises ValueError for rewards outside 0 to 1, and for a pool without any gradient.
    """

    script = "baseline.js"

    def __init__(
        self,
        rewards: Sequence[float],
        names: Sequence[str] | None = None,
        pool: tuple[Any, Any] | None = None,
        guess: float | None = None,
        **start: Any,
    ) -> None:
        rewards = [float(r) for r in rewards]
        if not 2 <= len(rewards) <= 6:
            raise ValueError(f"a group of 2 to 6 rewards, please; these are {len(rewards)}")
        names = [f"answer {i}" for i in range(len(rewards))] if names is None else list(names)
        sliders = [Slider(f"r{i}", f"reward of {name}", 0, 1, 0.05) for i, name in enumerate(names)]
        controls = [*sliders, Slider("shift", "added to every one", 0, MOST_SHIFT, 0.25)]
        data = {"count": len(rewards), "names": names, "guess": guess}
        if pool is not None:
            controls.append(Choice("size", "group size G", tuple(map(str, SIZES))))
            data |= sampled(*pool)
        first = {f"r{i}": reward for i, reward in enumerate(rewards)}
        super().__init__(controls, data, **(first | start))
        self.pool = None if pool is None else unpacked(data)

    @property
    def group(self) -> list[dict[str, float]]:
        """Reward, baseline and advantage of each answer, and its distance from the plain mean."""
        values, count = self.values, self.data["count"]
        rewards = [values[f"r{i}"] + values["shift"] for i in range(count)]
        total = sum(rewards)
        bases = [(total - r) / (count - 1) for r in rewards]
        return [
            {"reward": r, "baseline": b, "advantage": r - b, "plain": r - total / count}
            for r, b in zip(rewards, bases, strict=True)
        ]

    def estimates(self, size: int, kind: str) -> np.ndarray:
        """[DRAWS] estimates with groups of `size`, in units of the true slope."""
        rewards, slopes, draws, truth = self.pool
        r = rewards[draws].reshape(DRAWS, -1, size) + self.values["shift"]
        s = slopes[draws].reshape(DRAWS, -1, size)
        total = r.sum(2, keepdims=True)
        base = {"none": 0.0, "loo": (total - r) / (size - 1), "mean": total / size}[kind]
        return ((r - base) * s).mean((1, 2)) / truth

    def measured(self, size: int) -> dict[str, dict[str, float]]:
        """Centre, width and their ratio for each kind of baseline."""
        out = {}
        for kind in KINDS:
            all_ = self.estimates(size, kind)
            centre, width = float(all_.mean()), float(all_.std(ddof=1))
            out[kind] = {"centre": centre, "width": width, "ratio": width / centre}
        return out

    def numbers(self) -> dict[str, float]:
        """Baseline and advantage of each answer; with a pool, centre, width and ratio by kind."""
        out = {}
        for i, row in enumerate(self.group):
            out |= {f"baseline {i}": row["baseline"], f"advantage {i}": row["advantage"]}
        if self.pool is not None:
            for kind, told in self.measured(int(self.values["size"])).items():
                out |= {f"{kind} {key}": value for key, value in told.items()}
        return out

    def static(self) -> Any:
        """The group; with a pool, also the estimates at this G and the ratios at each."""
        if self.pool is None:
            fig, (ax,) = paper(1, width=6.4, height=3.2)
            bars(ax, self)
            bases = [row["baseline"] for row in self.group]
            finding = f"from {min(bases):.2f} to {max(bases):.2f}"
            return titled(fig, f"Each answer has its own baseline: {finding}")
        fig, axes = paper(1.1, 1.2, 1, width=12, height=3.7)
        bars(axes[0], self)
        clouds(axes[1], self)
        ratios(axes[2], self)
        size = int(self.values["size"])
        told = self.measured(size)
        words = ", ".join(f"{KINDS[kind]} {division(told[kind])}" for kind in ("loo", "mean"))
        return titled(fig, f"G = {size}, width / centre: {words}")


def sampled(rewards: Any, slopes: Any) -> dict[str, Any]:
    """What the page needs of a pool: its numbers, which answers each estimate draws, the truth.

    Over all answers a model can give, slopes average to 0 exactly; over a pool nearly, and the
    remainder is taken away, so that the pool stands for all answers.
    """
    rewards, slopes = (np.asarray(x, dtype=np.float64) for x in (rewards, slopes))
    if rewards.shape != slopes.shape or rewards.ndim != 1:
        shapes = f"{rewards.shape} and {slopes.shape}"
        raise ValueError(f"a pool has one reward and one slope per answer; these are {shapes}")
    slopes = slopes - slopes.mean()
    truth = float((rewards * slopes).mean())
    if not abs(truth) > 1e-12:
        raise ValueError("this pool has no gradient: are all its rewards equal?")
    # every answer is drawn equally often (a balanced bootstrap): the centres hold still
    draws = np.random.default_rng(0).permutation(np.resize(np.arange(len(rewards)), DRAWS * BUDGET))
    packed = {"rewards": floats(rewards), "slopes": floats(slopes), "draws": floats(draws)}
    return packed | {"truth": truth, "budget": BUDGET}


def unpacked(data: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """The page's numbers, as it has them: rewards, slopes, draws [DRAWS, BUDGET], truth."""
    keys = ("rewards", "slopes", "draws")
    rewards, slopes, draws = (np.frombuffer(data[k], "<f4").astype(np.float64) for k in keys)
    return rewards, slopes, draws.astype(int).reshape(DRAWS, BUDGET), data["truth"]


def slopes(parameters: Sequence[Any], logp: Callable[[], Any], rewards: Any) -> Any:
    """How fast each answer's log-prob rises per unit step along the true gradient, [N].

    parameters: the leaves of the model; logp(): log-probs [N] of whole answers, with a graph.
    The direction is the gradient of mean((r - mean r) log-prob) over the pool; the projection is
    the difference of the log-probs a small step ahead and a small step back, so that N gradients
    are never held. The parameters are as before when it returns.
    """
    import torch

    rewards = torch.as_tensor(rewards)
    ahead = torch.autograd.grad(((rewards - rewards.mean()) * logp()).mean(), parameters)
    length = torch.sqrt(sum((g**2).sum() for g in ahead))
    kept = [p.detach().clone() for p in parameters]

    def after(step: float) -> Any:
        with torch.no_grad():
            for p, start, g in zip(parameters, kept, ahead, strict=True):
                p.copy_(start + step * g / length)
            return logp().double()

    try:
        return (after(STEP) - after(-STEP)) / (2 * STEP)
    finally:
        with torch.no_grad():
            for p, start in zip(parameters, kept, strict=True):
                p.copy_(start)


# --- the static twin


def division(told: dict[str, float]) -> str:
    """width / centre = ratio, in numbers."""
    return f"{told['width']:.2f} / {told['centre']:.2f} = {told['ratio']:.2f}"


def bars(ax: Any, explorer: BaselineExplorer) -> None:
    """Rewards as bars, baselines as thick strokes, advantages as arrows between them."""
    for i, row in enumerate(explorer.group):
        ax.bar(i, row["reward"], 0.34, color="#bbbbbb")
        ax.plot([i - 0.3, i + 0.3], [row["baseline"]] * 2, color=COLOURS["blue"], lw=3)
        colour = COLOURS["orange" if row["advantage"] < 0 else "green"]
        ends = {"xy": (i, row["reward"]), "xytext": (i, row["baseline"])}
        ax.annotate("", **ends, arrowprops={"arrowstyle": "->", "color": colour, "lw": 2})
        middle = (row["reward"] + row["baseline"]) / 2
        ax.text(i + 0.33, middle, f"{row['advantage']:+.2f}", va="center", fontweight="bold")
    if explorer.data["guess"] is not None and not explorer.values["shift"]:
        ax.plot([0.55, 1.45], [explorer.data["guess"]] * 2, color=INK, ls=(0, (5, 4)), lw=1.3)
        ax.text(1.45, explorer.data["guess"], "your guess", fontsize=8, ha="right", va="bottom")
    count = explorer.data["count"]
    ax.set_xticks(range(count), explorer.data["names"], fontsize=9)
    ax.set(xlim=(-0.5, count), ylabel="reward")
    ax.set_title("reward, its baseline (thick), advantage", loc="left", fontsize=9.5)


def clouds(ax: Any, explorer: BaselineExplorer) -> None:
    """A histogram of estimates for each kind, with its centre."""
    size = int(explorer.values["size"])
    rows = [(kind, explorer.estimates(size, kind)) for kind in KINDS]
    edges = np.linspace(-2, 4, 97)
    counts = [np.histogram(all_.clip(-2, 3.999), edges)[0] for _, all_ in rows]
    most = max(count.max() for count in counts)
    for at, ((kind, all_), count) in enumerate(zip(rows, counts, strict=True)):
        colour = COLOURS[LOOK[kind][0]]
        ax.bar(edges[:-1], 0.8 * count / most, 0.056, 2 - at, align="edge", color=colour)
        ax.plot(all_.mean().clip(-2, 4), 2 - at, "^", color=INK, ms=7, clip_on=False)
    ax.axvline(1, color=INK, ls=(0, (5, 4)), lw=1)
    told = explorer.measured(size)
    ax.set_yticks([2.3, 1.3, 0.3], [f"{KINDS[kind]}\n{division(told[kind])}" for kind in KINDS])
    ax.set(xlabel="estimate, in true gradients; beyond: outermost bars", xlim=(-2, 4))
    ax.set_title(f"{DRAWS} estimates each, G = {size}; triangle: centre", loc="left", fontsize=9.5)


def ratios(ax: Any, explorer: BaselineExplorer) -> None:
    """width / centre against G."""
    told = {size: explorer.measured(size) for size in SIZES}
    for kind, name in KINDS.items():
        colour, marker, style = LOOK[kind]
        ys = [told[size][kind]["ratio"] for size in SIZES]
        wide = {"lw": 4, "alpha": 0.6} if kind == "loo" else {"lw": 1.8}
        ax.plot(SIZES, ys, style, marker=marker, color=COLOURS[colour], label=name, **wide)
    ax.set_xscale("log", base=2)
    ax.set_xticks(SIZES, [str(size) for size in SIZES])
    ax.set_yscale("log")
    ax.set_yticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
    ax.set_ylim(0.1, 10)
    ax.minorticks_off()
    ax.set(xlabel=f"G ({BUDGET} answers in all)", ylabel="width / centre")
    ax.legend(frameon=False, fontsize=8.5)
