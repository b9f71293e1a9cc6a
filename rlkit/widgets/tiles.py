"""The tile stepper: how the logits of a head come and go, in four ways to the same gradients.

    TileStepper(hidden, weight, targets)          mode, tile budget, step; small hand numbers
    BlockStepper(logits, targets, block=4)        row after row, block by block, as a kernel reads

The cells show numbers, so it is for a few tokens and columns. Each step says what happens, what is
held, and how many bytes that is. All steps of all modes are made once, in Python (tile_steps.py);
the page walks through them by itself.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from rlkit.widgets.explorer import COLOURS, INK, Choice, Control, Explorer, Slider, paper, titled
from rlkit.widgets.tile_steps import (
    MODES,
    Frame,
    Work,
    block_frames,
    frames,
    packed,
    padded,
)

TINT = {"z": COLOURS["blue"], "p": COLOURS["purple"], "g": COLOURS["orange"]}
MEANING = {"z": "logit", "p": "log-prob", "g": "gradient"}
MOST_CELLS = 80


class Stepper(Explorer):
    """What both steppers share: runs of frames, of which the controls choose one."""

    script: ClassVar[str] = "tiles.js"

    def __init__(
        self,
        work: Work,
        runs: dict[str, list[Frame]],
        values: dict[str, Tensor],
        controls: list[Control],
        data: dict[str, Any],
        **start: Any,
    ) -> None:
        """runs: frames by what `key` says; values: [N, V] by the kind of a cell."""
        if work.logits.numel() > MOST_CELLS:
            raise ValueError(
                f"{work.logits.numel()} logits are too many to show; take at most {MOST_CELLS}"
            )
        self.work, self.runs, self.cells = work, runs, values
        longest = max(map(len, runs.values())) - 1
        controls = [*controls, Slider("step", "step", 0, longest, 1, 0, buttons=True)]
        data |= {
            "runs": {key: packed(run) for key, run in runs.items()},
            "cells": {kind: finite(x) for kind, x in values.items()},
            "targets": work.targets.tolist(),
        }
        super().__init__(controls, data, **start)

    def key(self) -> str:
        """The run that the controls choose."""
        raise NotImplementedError

    @property
    def seen(self) -> list[Frame]:
        """The frames up to the step that is shown; all where a run has fewer."""
        return self.runs[self.key()][: int(self.values["step"]) + 1]

    def numbers(self) -> dict[str, float]:
        """Bytes held now, and the most that were held so far."""
        seen = self.seen
        return {"bytes": float(seen[-1].bytes), "most": float(max(f.bytes for f in seen))}

    def draw_cells(self, ax: Any) -> None:
        """The grid [N, V] of this step with its numbers, by matplotlib."""
        from matplotlib.patches import Rectangle

        N, V = self.work.logits.shape
        frame = self.seen[-1]
        for i, kind in enumerate(frame.kinds):
            n, v = divmod(i, V)
            tint, alpha = (TINT[kind], 0.22) if kind in TINT else (INK, 0.03)
            ax.add_patch(Rectangle((v, n), 1, 1, facecolor=tint, alpha=alpha))
            ax.add_patch(Rectangle((v, n), 1, 1, fill=False, ec=INK, lw=0.3))
            if kind in TINT:
                words = f"{self.cells[kind][n, v]:.2f}"
                ax.text(v + 0.5, n + 0.5, words, ha="center", va="center", fontsize=8, color=INK)
        if frame.tile:
            top, end, left, right = frame.tile
            box = Rectangle((left, top), right - left, end - top, fill=False, ec=INK, lw=2.2)
            ax.add_patch(box)
        ax.set(xlim=(0, V), ylim=(N, 0), xlabel="column of the vocabulary", ylabel="token")
        ax.set_xticks([v + 0.5 for v in range(V)], range(V))
        ax.set_yticks([n + 0.5 for n in range(N)], range(N))
        ax.set_title(f"step {len(self.seen) - 1}: {frame.says}", fontsize=9, loc="left")


class TileStepper(Stepper):
    """hidden [N, H], weight [V, H], targets [N]: at most 80 logits, N * V.

    mode: "full", "at the end" (chunks, one backward pass), "again" (chunks made twice) or "fused".
    tile: most logits in a tile; None: one token's. step: where to begin.
    Raises ValueError for more logits than the cells can show.
    """

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        mode: str = "fused",
        tile: int | None = None,
        step: int = 0,
    ) -> None:
        work = Work.of(hidden, weight, targets)
        budgets = range(work.V, work.N * work.V + 1, work.V)
        runs = {f"{mode} {b}": frames(work, mode, b) for mode in MODES for b in budgets}
        controls = [
            Choice("mode", "mode", MODES),
            Slider("tile", "logits in a tile", work.V, budgets[-1], work.V, 0),
        ]
        data = {
            "hidden": work.hidden.tolist(),
            "weight": work.weight.tolist(),
            "full": max(frame.bytes for frame in runs[f"full {work.V}"]),
        }
        cells = {"z": work.logits, "p": work.logp, "g": work.gradient}
        tile = work.V if tile is None else tile
        super().__init__(work, runs, cells, controls, data, mode=mode, tile=tile, step=step)

    def key(self) -> str:
        return f"{self.values['mode']} {self.values['tile']:.0f}"

    def static(self) -> Any:
        """The cells at this step, and the bytes of every mode, step by step."""
        fig, (left, right) = paper(1, 1)
        self.draw_cells(left)
        dashes = zip(MODES, ("-", "--", ":", "-"), COLOURS.values(), strict=True)
        for mode, dash, colour in dashes:
            run = self.runs[f"{mode} {self.values['tile']:.0f}"]
            most = max(frame.bytes for frame in run)
            own = mode == self.values["mode"]
            right.plot(
                [frame.bytes for frame in run], drawstyle="steps-post", ls=dash, color=colour,
                lw=2.6 if own else 1.2, label=f"{mode}: {most} bytes at most",
            )  # fmt: skip
        right.set(xlabel="step", ylabel="bytes held")
        right.legend(frameon=False, fontsize=8.5)
        now, most = self.numbers().values()
        title = f"{self.values['mode']}: at most {most:.0f} bytes so far, {now:.0f} now"
        return titled(fig, f"{title}; full logits need {self.data['full']}")


class BlockStepper(Stepper):
    """logits [N, V], targets [N]: each row is read block by block, past its edge too.

    other: what a load gives beyond the edge; -inf weighs nothing, 0 does.
    Raises ValueError for more logits than the cells can show.
    """

    def __init__(
        self, logits: Tensor, targets: Tensor, block: int, other: float = -torch.inf, step: int = 0
    ) -> None:
        cells = padded(logits.detach().double(), block, other)
        runs = {"rows": block_frames(logits, targets, block, other)}
        data = {"vocabulary": logits.shape[1]}
        super().__init__(Work(cells, targets), runs, {"z": cells}, [], data, step=step)

    def key(self) -> str:
        return "rows"

    def static(self) -> Any:
        """The cells at this step, and the running maximum and sum of each row."""
        fig, (left, right) = paper(2, 1, height=2.6)
        self.draw_cells(left)
        frame = self.seen[-1]
        row = frame.tile[0] if frame.tile else 0
        rows = [
            [shown(x[n]) for x in (frame.largest, frame.total, frame.chosen)]
            for n in range(self.work.N)
        ]
        right.axis("off")
        names = ["maximum", "sum", "target's logit"]
        right.table(cellText=rows, colLabels=names, loc="center").scale(1, 1.6)
        known = f"maximum {shown(frame.largest[row])}, sum {shown(frame.total[row])}"
        return titled(fig, f"Row {row} so far: {known}")


def shown(number: float | None) -> str:
    """Two digits, or a dash before the first."""
    return "–" if number is None else f"{number:.3f}"


def finite(values: Tensor) -> list[list[float | None]]:
    """Rows for JSON, which has no -inf: None."""
    return [[x if abs(x) < torch.inf else None for x in row] for row in values.tolist()]
