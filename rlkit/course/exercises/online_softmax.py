"""Page 09: log-probs of targets, reading the vocabulary once, block by block."""

import torch
from torch import Tensor

from rlkit import tiles
from rlkit.course.exercises.exercise import Case, Exercise, Memory, Wrong


def load(logits: Tensor, at: int, block: int, other: float = 0.0) -> Tensor:
    """Columns at .. at+block of logits [N, V], and `other` beyond the edge: what tl.load does."""
    columns = logits[:, at : at + block]
    missing = block - columns.shape[1]
    return torch.nn.functional.pad(columns, (0, missing), value=other)


def online_logp(logits, targets, block):
    """logits [N, V], targets [N] -> log-prob of each target [N]"""
    rows = torch.arange(len(logits))
    largest = torch.full_like(logits[:, 0], -torch.inf)
    total = torch.zeros_like(largest)
    chosen = torch.zeros_like(largest)
    for at in range(0, logits.shape[1], block):
        z = logits[:, at : at + block]
        larger = torch.maximum(largest, z.amax(1))
        total = total * (largest - larger).exp()  # in the new units
        total = total + (z - larger[:, None]).exp().sum(1)
        largest = larger
        here = (targets >= at) & (targets < at + block)
        place = torch.where(here, targets - at, 0)
        chosen = torch.where(here, z[rows, place], chosen)
    return chosen - largest - total.log()


def library(logits: Tensor, targets: Tensor, block: int) -> Tensor:
    """rlkit's pass over tiles, as its head makes it."""
    scores, plain = tiles.Scores.unseen(len(targets), logits), tiles.Shaping(1.0, None, 1.0)
    for at in range(0, logits.shape[1], block):
        tile = logits[:, at : at + block].clone()
        tiles.TORCH.read(tile, targets, plain, at, scores, False, "nothing")
    return scores.chosen - scores.log_z


# --- wrong answers


def log_sum(logits: Tensor, block: int, rescale, other: float = -torch.inf) -> Tensor:
    """The running log-sum-exp with a rescaling of one's own: total, old, new -> total."""
    largest = torch.full_like(logits[:, 0], -torch.inf)
    total = torch.zeros_like(largest)
    for at in range(0, logits.shape[1], block):
        z = load(logits, at, block, other)
        larger = torch.maximum(largest, z.amax(1))
        total = rescale(total, largest, larger) + (z - larger[:, None]).exp().sum(1)
        largest = larger
    return largest + total.log()


def kept(total: Tensor, old: Tensor, new: Tensor) -> Tensor:
    return total


def right_way(total: Tensor, old: Tensor, new: Tensor) -> Tensor:
    return total * (old - new).exp()


def wrong_way(total: Tensor, old: Tensor, new: Tensor) -> Tensor:
    return total * (new - old).exp()


def wrong_way_from_second(total: Tensor, old: Tensor, new: Tensor) -> Tensor:
    return torch.where(old.isfinite(), wrong_way(total, old, new), 0.0)


def chosen(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.gather(1, targets[:, None]).squeeze(1)


def no_rescaling(logits, targets, block) -> Tensor:
    return chosen(logits, targets) - log_sum(logits, block, kept)


def new_less_old(logits, targets, block) -> Tensor:
    return chosen(logits, targets) - log_sum(logits, block, wrong_way)


def new_less_old_later(logits, targets, block) -> Tensor:
    return chosen(logits, targets) - log_sum(logits, block, wrong_way_from_second)


def padded_with_zeros(logits, targets, block) -> Tensor:
    return chosen(logits, targets) - log_sum(logits, block, right_way, other=0.0)


def first_tile(logits, targets, block) -> Tensor:
    return torch.where(targets < block, chosen(logits, targets), 0.0) - logits.logsumexp(1)


def first_tile_clamped(logits, targets, block) -> Tensor:
    return chosen(logits, targets.clamp(max=block - 1)) - logits.logsumexp(1)


def every_tile(logits, targets, block) -> Tensor:
    """The column is counted within the tile, so that the last tile decides."""
    last = (logits.shape[1] - 1) // block * block
    place = (last + targets % block).clamp(max=logits.shape[1] - 1)
    return chosen(logits, place) - logits.logsumexp(1)


def within_tile(logits, targets, block) -> Tensor:
    return chosen(logits, targets % block) - logits.logsumexp(1)


def no_maximum(logits, targets, block) -> Tensor:
    return chosen(logits, targets) - logits.exp().sum(1).log()


def last_tile(logits, targets, block) -> Tensor:
    last = (logits.shape[1] - 1) // block * block
    return chosen(logits, targets) - logits[:, last:].logsumexp(1)


def log_z_alone(logits, targets, block) -> Tensor:
    return logits.logsumexp(1)


def turned(logits, targets, block) -> Tensor:
    return logits.logsumexp(1) - chosen(logits, targets)


def at_once(logits, targets, block) -> Tensor:
    return logits.log_softmax(1).gather(1, targets[:, None]).squeeze(1)


WRONGS = [
    Wrong(
        "no rescaling",
        "The sum is not rescaled when the maximum grows.",
        "The old sum has old units: it counts in exp(old maximum). What turns it into new ones?",
        [no_rescaling],
    ),
    Wrong(
        "exp(new - old)",
        "The old sum is rescaled the wrong way.",
        "The maximum grew: does the old sum, in the new units, grow or shrink?",
        [new_less_old, new_less_old_later],
    ),
    Wrong(
        "other=0",
        "What lies beyond the vocabulary's edge is counted.",
        "exp(0) is 1: padding that weighs nothing must be -inf. It only shows where the block "
        "does not divide V.",
        [padded_with_zeros],
    ),
    Wrong(
        "target in the first tile",
        "The target's logit is looked up in the wrong tile.",
        "In which tile does column y lie, and where in it? Test at <= y < at + block.",
        [first_tile, first_tile_clamped, within_tile, every_tile],
    ),
    Wrong(
        "no maximum",
        "exp overflows: large logits give inf.",
        "Take the largest logit so far off before exp, and put it back after log.",
        [no_maximum],
    ),
    Wrong(
        "last tile alone",
        "Only the last tile is in the sum.",
        "What must happen to the sum of the tiles before?",
        [last_tile],
    ),
    Wrong(
        "log_z",
        "This is log_z, the log of the sum.",
        "The log-prob of a target is its logit less log_z.",
        [log_z_alone],
    ),
    Wrong("sign", "Every sign is turned.", "Can the log of a probability exceed 0?", [turned]),
]


def case(about: str, rows: list[list[float]], targets: list[int], block: int, dtype) -> Case:
    return Case(about, (torch.tensor(rows, dtype=dtype), torch.tensor(targets), block))


RISING = [-3.0, -1.5, -2.0, -2.5, -1.0, -0.5, -4.0]
FALLING = [-1.0, -2.0, -0.5, -3.0, -2.5, -1.5, -3.5]
LARGE = [10.0, 90.0, 200.0, 60.0, 199.0]
SMALL = [-300.0, -301.0, -302.5, -300.5, -299.0]


def wide(N: int, V: int, block: int) -> Case:
    noise = torch.Generator().manual_seed(V)
    logits = torch.randn(N, V, generator=noise)
    return Case(f"{N} tokens, V = {V}", (logits, torch.arange(N) * 7 % V, block))


EXERCISE = Exercise(
    name="online_softmax",
    page="09",
    solution=online_logp,
    library=library,
    twins=[tiles.read_],
    cases=[
        case("V = 7 in blocks of 3", [RISING, FALLING, RISING], [5, 1, 6], 3, torch.float32),
        case("V = 6 in blocks of 2", [RISING[:6], FALLING[1:]], [0, 4], 2, torch.float64),
        case("large logits, V = 5 in blocks of 2", [LARGE, SMALL], [4, 1], 2, torch.float32),
    ],
    wrongs=WRONGS,
    hints=(
        "Keep three numbers a row: the largest logit so far, the sum of exp(z - largest), and "
        "the target's logit. At first -inf, 0, 0.",
        "With each block: larger = maximum(largest, block's maximum); total = total * "
        "exp(largest - larger) + sum of exp(z - larger).",
        "The target is in this block if at <= target < at + block, at column target - at. In "
        "the end logp = chosen - largest - log(total).",
    ),
    outputs=("logp",),
    column="n",
    memory=Memory(
        wide(64, 512, 16),
        bytes=64 * 512 * 4 // 2,  # half of all logits; the solution holds a sixth
        wrong=Wrong(
            "all at once",
            "But something as large as all logits was made.",
            "The kernel sees one block at a time: use nothing wider than z of a block.",
            [at_once],
        ),
    ),
)
