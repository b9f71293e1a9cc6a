"""What a head does with its logits, one small step at a time, as frames that a page can show.

    frames(work, "fused", budget=8)     a list of Frame: what is said, what is held, how many bytes

Four ways to the same loss, the mean of -logp, and its gradients:
full        all logits at once, as plain autograd keeps them
at the end  tile after tile, one backward pass at the end
again       tile after tile, each made a second time in the backward pass (rlkit's `chunked`)
fused       tile after tile, each turned into its gradient while it is there

Bytes are those of float32, without hidden states and weight, which all ways hold. They follow what
torch does: the backward pass of log_softmax and gather makes two gradients as large as its tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

import torch
from torch import Tensor

from rlkit.chunked import tile_shape
from rlkit.tiles import blocks

MODES = ("full", "at the end", "again", "fused")
BYTES = 4
Rect = tuple[int, int, int, int]
"""Rows from, to; columns from, to."""


@dataclass(frozen=True)
class Work:
    """The numbers of a small head: logits [N, V], targets [N]; where a head made them, also
    hidden [N, H] and weight [V, H]."""

    logits: Tensor
    targets: Tensor
    hidden: Tensor | None = None
    weight: Tensor | None = None

    @classmethod
    def of(cls, hidden: Tensor, weight: Tensor, targets: Tensor) -> "Work":
        """In float64."""
        hidden, weight = hidden.detach().double(), weight.detach().double()
        return cls(hidden @ weight.T, targets, hidden, weight)

    @property
    def N(self) -> int:
        """Tokens."""
        return len(self.logits)

    @property
    def V(self) -> int:
        """Columns: the vocabulary, or blocks that reach beyond it."""
        return self.logits.shape[1]

    @property
    def logp(self) -> Tensor:
        """Log-prob of every token of the vocabulary, [N, V]."""
        return self.logits.log_softmax(-1)

    @property
    def gradient(self) -> Tensor:
        """d loss / d logits of the mean of -logp, [N, V]."""
        one_hot = torch.nn.functional.one_hot(self.targets, self.V)
        return (self.logp.exp() - one_hot) / self.N


@dataclass(frozen=True)
class Frame:
    """One step. Rows of largest, total and chosen are None before their first tile."""

    says: str
    forward: bool
    tile: Rect | None
    kinds: str
    """What each cell [N * V] holds: " " nothing, "z" a logit, "p" a log-prob, "g" a gradient."""
    largest: list[float | None]
    total: list[float | None]
    chosen: list[float | None]
    d_hidden: list[float] | None  # [N * H]
    d_weight: list[float] | None  # [V * H]
    held: dict[str, int]
    """Bytes by what they hold."""

    @property
    def bytes(self) -> int:
        """All of them."""
        return sum(self.held.values())


@dataclass
class Walk:
    """The state between two frames; `note` writes one down."""

    work: Work
    cells: list[str] = field(init=False)
    forward: bool = True
    held: dict[str, int] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)

    def __post_init__(self) -> None:
        N, V = self.work.N, self.work.V
        self.cells = [" " * V] * N
        self.largest, self.total, self.chosen = ([None] * N for _ in range(3))
        self.d_hidden: Tensor | None = None
        self.d_weight: Tensor | None = None

    def note(self, says: str, tile: Rect | None = None, **held: int) -> None:
        """A frame. held: numbers (not bytes) that changed, by name; 0 drops one."""
        self.held |= {name.replace("_", " "): count for name, count in held.items()}
        grads = [
            None if d is None else [round(x, 5) for x in d.flatten().tolist()]
            for d in (self.d_hidden, self.d_weight)
        ]
        stats = [list(x) for x in (self.largest, self.total, self.chosen)]
        live = {name: BYTES * count for name, count in self.held.items() if count}
        self.frames.append(
            Frame(says, self.forward, tile, "".join(self.cells), *stats, *grads, live)
        )

    def fill(self, tile: Rect, kind: str) -> None:
        """What the cells of a tile hold from now on."""
        top, end, left, right = tile
        for n in range(top, end):
            self.cells[n] = self.cells[n][:left] + kind * (right - left) + self.cells[n][right:]

    def clear(self) -> None:
        """No cell holds anything."""
        self.fill((0, self.work.N, 0, self.work.V), " ")

    def read(self, tile: Rect) -> None:
        """Maximum, sum of exp(z - maximum) and target logit of the rows, as far as is known."""
        top, end, left, right = tile
        for n in range(top, end):
            z, old = self.work.logits[n, left:right], self.largest[n]
            larger = max(z.max().item(), -torch.inf if old is None else old)
            before = 0.0 if old is None else self.total[n] * exp(old - larger)
            self.largest[n] = larger
            self.total[n] = before + (z - larger).exp().sum().item()
            if left <= self.work.targets[n] < right:
                self.chosen[n] = self.work.logits[n, self.work.targets[n]].item()

    def collect(self, tile: Rect) -> None:
        """Add to d_hidden and d_weight what the gradient of this tile says about them."""
        work, (top, end, left, right) = self.work, tile
        if self.d_hidden is None:
            self.d_hidden = torch.zeros_like(work.hidden)
            self.d_weight = torch.zeros_like(work.weight)
        gradient = work.gradient[top:end, left:right]
        self.d_hidden[top:end] += gradient @ work.weight[left:right]
        self.d_weight[left:right] += gradient.T @ work.hidden[top:end]

    def scores(self) -> int:
        """Numbers in the running maximum, sum and target logit."""
        return 3 * sum(x is not None for x in self.largest)

    def grads(self) -> dict[str, int]:
        """Numbers in d_hidden and d_weight."""
        return dict(d_hidden=self.work.hidden.numel(), d_weight=self.work.weight.numel())


def frames(work: Work, mode: str, budget: int) -> list[Frame]:
    """Every step of a mode; a tile has at most `budget` logits, or one whole row if it needs one.

    Raises ValueError for an unknown mode.
    """
    if mode not in MODES:
        raise ValueError(f"there is no mode {mode!r}; there are {', '.join(MODES)}")
    walk = Walk(work)
    walk.note("Hidden states and weight are there, and no logit yet")
    steps = {"full": full, "at the end": at_the_end, "again": again, "fused": fused}[mode]
    steps(walk, budget)
    return walk.frames


def rows_of(work: Work, budget: int) -> list[Rect]:
    """Tiles of whole rows."""
    return [(r.start, r.stop, 0, work.V) for r in blocks(work.N, budget // work.V)]


def tiles_of(work: Work, budget: int) -> Iterator[Rect]:
    """Tiles nearly square, the vocabulary as the outer loop."""
    height, width = tile_shape(work.N, work.V, budget)
    for cols in blocks(work.V, width):
        for rows in blocks(work.N, height):
            yield rows.start, rows.stop, cols.start, cols.stop


def size(tile: Rect) -> int:
    """Logits in a tile."""
    return (tile[1] - tile[0]) * (tile[3] - tile[2])


def where(tile: Rect) -> str:
    """A tile in words."""

    return f"{span('token', *tile[:2])}, {span('column', *tile[2:])}"


def span(name: str, start: int, stop: int) -> str:
    """token 1, or tokens 1 to 3."""
    return f"{name} {start}" if stop == start + 1 else f"{name}s {start} to {stop - 1}"


def full(walk: Walk, budget: int) -> None:
    """All at once."""
    work = walk.work
    everything = (0, work.N, 0, work.V)
    count = size(everything)
    walk.fill(everything, "z")
    walk.note(f"All {count} logits, hidden times weight", everything, logits=count)
    walk.read(everything)
    walk.fill(everything, "p")
    walk.note("Their log-softmax stands beside them", everything, log_probs=count)
    walk.note("The logits are freed. The log-probs are kept for the backward pass", logits=0)
    backward_of(walk, everything, last=True)


def backward_of(walk: Walk, tile: Rect, last: bool) -> None:
    """The backward pass of log_softmax and gather over a tile whose log-probs were kept."""
    walk.forward = False
    kept, count = walk.held["log probs"], size(tile)
    walk.fill(tile, "g")
    says = f"Backward, {where(tile)}: two gradients of the tile's size beside its log-probs"
    walk.note(says, tile, gradients=2 * count)
    adds = walk.d_weight is not None  # autograd makes a new one, then adds it
    walk.collect(tile)
    more = dict(new_d_weight=walk.work.weight.numel()) if adds else {}
    says = "The log-probs are freed; d_hidden and d_weight"
    says += ", which autograd makes anew and then adds" if adds else " are products"
    walk.note(says, tile, log_probs=kept - count, gradients=count, **walk.grads(), **more)
    walk.fill(tile, " ")
    done = "Both gradients are complete" if last else "The tile is freed"
    walk.note(done, gradients=0, new_d_weight=0)


def at_the_end(walk: Walk, budget: int) -> None:
    """Chunks of tokens, but one backward pass for all of them."""
    tiles = rows_of(walk.work, budget)
    for tile in tiles:
        walk.fill(tile, "z")
        walk.note(f"{capital(where(tile))}: {size(tile)} logits", tile, logits=size(tile))
        walk.read(tile)
        walk.fill(tile, "p")
        kept = walk.held.get("log probs", 0) + size(tile)
        says = "Their log-probs beside them, kept for the backward pass"
        walk.note(says, tile, log_probs=kept)
    walk.note("The forward pass ends. It has kept a number for every logit", logits=0)
    for tile in reversed(tiles):
        backward_of(walk, tile, last=tile == tiles[0])


def again(walk: Walk, budget: int) -> None:
    """Running maximum and sum; every tile is made twice."""
    tiles = list(tiles_of(walk.work, budget))
    for tile in tiles:
        project(walk, tile, "")
        walk.read(tile)
        says = "Into the maximum, the sum and the target's logit; the tile may go"
        walk.note(says, tile, scores=walk.scores())
    walk.clear()
    walk.note("The forward pass ends. It has kept three numbers a token", logits=0)
    walk.forward = False
    for tile in tiles:
        project(walk, tile, "Once more: ")
        walk.fill(tile, "g")
        walk.note("The tile becomes its gradient, in place", tile)
        walk.collect(tile)
        walk.note("Its share of d_hidden and d_weight is added", tile, **walk.grads())
    walk.clear()
    walk.note("Both gradients are complete", logits=0)


def fused(walk: Walk, budget: int) -> None:
    """Whole rows, whose loss is differentiated while their logits are there."""
    for tile in rows_of(walk.work, budget):
        project(walk, tile, "")
        walk.read(tile)
        says = "Maximum and sum give the log-prob of each target"
        walk.note(says, tile, scores=3 * (tile[1] - tile[0]))
        walk.fill(tile, "g")
        walk.note("The loss of these tokens is differentiated: gradients in place", tile)
        walk.collect(tile)
        says = "Their d_hidden is complete, their share of d_weight added"
        walk.note(says, tile, scores=0, **walk.grads())
    walk.clear()
    walk.note("The forward pass ends, and the gradients are there", logits=0)
    walk.forward = False
    walk.note("Backward: both are multiplied by what comes from above, here 1")


def block_frames(logits: Tensor, targets: Tensor, block: int, other: float) -> list[Frame]:
    """Every step of a kernel's walk through rows of logits [N, V], `block` columns at a time.

    other: what a load gives beyond the edge of the row.
    """
    V = logits.shape[1]
    walk = Walk(Work(padded(logits.detach().double(), block, other), targets))
    walk.note("Nothing has been read: the maximum is −inf, the sum is 0")
    for n in range(len(logits)):
        for cols in blocks(walk.work.V, block):
            tile = (n, n + 1, cols.start, cols.stop)
            walk.clear()
            walk.fill(tile, "z")
            beyond = max(cols.stop - V, 0)
            says = f"Row {n}, {span('column', cols.start, min(cols.stop, V))} are loaded"
            says += f", and {beyond} beyond the edge" if beyond else ""
            walk.note(says, tile, registers=block + walk.scores())
            before = walk.largest[n]
            walk.read(tile)
            walk.note(grown(before, walk.largest[n]), tile)
        m, total, z = walk.largest[n], walk.total[n], walk.chosen[n]
        says = f"Row {n} ends: its log-prob is {signed(z)} − ({signed(m)}) − log {total:.3f}"
        walk.note(f"{says} = {signed(z - m - log(total), 3)}")
    return walk.frames


def signed(number: float, digits: int = 2) -> str:
    """With a true minus sign."""
    return f"{number:.{digits}f}".replace("-", "−")


def grown(before: float | None, now: float) -> str:
    """What became of the sum, in words."""
    if before is None:
        return "The first maximum, and the sum of exp(z − maximum)"
    if now == before:
        return "No larger logit: the sum grows by exp(z − maximum)"
    factor = exp(before - now)
    return f"A larger logit: the old sum times {factor:.3f}, then the new exp(z − maximum)"


def padded(logits: Tensor, block: int, other: float) -> Tensor:
    """[N, V] -> [N, a multiple of block]: what lies beyond the edge is `other`."""
    return torch.nn.functional.pad(logits, (0, -logits.shape[1] % block), value=other)


def project(walk: Walk, tile: Rect, before: str) -> None:
    """A tile of logits in the memory that all tiles share in turn."""
    walk.clear()
    walk.fill(tile, "z")
    place = where(tile) if before else capital(where(tile))
    largest = max(size(tile), walk.held.get("logits", 0))
    walk.note(f"{before}{place}: {size(tile)} logits", tile, logits=largest)


def capital(words: str) -> str:
    """The first letter as a sentence begins."""
    return words[:1].upper() + words[1:]


def packed(steps: list[Frame]) -> list[dict[str, Any]]:
    """Frames as JSON, with short names, for the page."""
    names = dict(
        says="t", forward="f", tile="r", kinds="k", largest="m", total="s", chosen="y",
        d_hidden="H", d_weight="W", held="b",
    )  # fmt: skip
    found = [{short: getattr(step, name) for name, short in names.items()} for step in steps]
    return [frame | {"r": frame["r"] and list(frame["r"])} for frame in found]
