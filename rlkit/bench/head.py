"""Time, memory and exactness of the head, ours and its peers', in turn within one process:

    rlkit bench head [--shape bar] [--dtype float32] [--against trl,liger,torch,cce] [--out F.csv]
    rlkit bench head --tokens 512 2048 8192        memory alone, for each number of tokens

A run is the GRPO loss of N tokens, forward and backward, from hidden states [N, H] and a weight
[V, H]. Times are medians of interleaved rounds (of one round, for whoever takes five times as long
as most). Peaks count what is allocated beyond the inputs, in a run that nobody times; the floor is
d_weight, d_hidden and a tile of 64 MiB. Before either, everyone's answer is compared with full
logits in float64: a wrong one is not timed. With the default shape in float32 on a CPU it checks
our bars, and returns 1 if one is missed.
"""

import csv
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from rlkit.bench import report
from rlkit.bench.contestants import (
    PEERS,
    TOLERANCES,
    Contestant,
    Errors,
    Problem,
    completion_length,
    errors,
    make_problem,
    make_weight,
    ours,
    products,
    solved,
)
from rlkit.bench.measure import interleaved, machine, peak_bytes
from rlkit.config import at_least, unknown
from rlkit.doctor import installed, memory
from rlkit.head import TILE_BYTES
from rlkit.objectives import GRPO

SHAPES = {
    "bar": (65_536, 512, 1024),
    "adder": (15, 128, 1024),
    "smollm2-135m": (49_152, 576, 1024),
    "llama3.2-1b": (128_256, 2048, 1024),
    "qwen3-0.6b": (151_936, 1024, 1024),
    "gemma2-2b": (256_000, 2304, 1024),
    "gemma3-1b": (262_144, 1152, 1024),
}
"""Name -> vocabulary V, hidden size H, tokens N."""

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Flags:
    """The head and its peers: time, memory and exactness, side by side."""

    shape: str = "bar"
    """bar, adder, smollm2-135m, llama3.2-1b, qwen3-0.6b, gemma2-2b, gemma3-1b, or V,H,N."""
    tokens: tuple[int, ...] = ()
    """N instead of the shape's; several: the peak memory of each, and whether it is flat."""
    dtype: str = "float32"
    """Of hidden states and weight: float32, bf16 or fp16."""
    device: str | None = None
    """cpu or cuda; None: a GPU where there is one."""
    against: str = "trl,liger,torch,cce"
    """Peers, with commas between them; none: ours alone."""
    repeats: int = 5
    """Rounds that count, after one that warms up."""
    threads: int = 1
    """CPU threads of torch, for all."""
    frozen: bool = False
    """The weight has no gradient, as under LoRA."""
    half_zero: bool = True
    """Also full and fused with half of the tokens at advantage 0."""
    entropy: bool = False
    """Report the mean entropy too, as trainers do; Liger, torch and cut-cross-entropy cannot."""
    out: Path | None = None
    """Where to write the table as CSV."""


def main(argv: list[str]) -> int:
    """Prints the table; returns 1 if a bar is missed or an answer of ours is wrong."""
    import tyro

    setting = Setting.of(tyro.cli(Flags, args=argv, prog="rlkit bench head"))
    if (out := setting.flags.out) is not None:  # now, not after minutes of work
        out.parent.mkdir(parents=True, exist_ok=True)
        out.touch()
    torch.set_num_threads(setting.flags.threads)
    contestants, notes = gather(setting)
    print(setting.title(), flush=True)
    measure = contest if len(setting.sizes) == 1 else flatness
    rows, bars = measure(setting, contestants, notes)
    if setting.has_bars:
        print("\n" + report.bar_lines(bars))
    for note in notes:
        print(note)
    if out is not None:
        write(setting, rows, out)
    mistaken = any(row.wrong and not row.is_peer for row in rows)
    return int(mistaken or (setting.has_bars and any(bar.holds is False for bar in bars)))


class Setting(NamedTuple):
    """The flags, checked and looked up."""

    flags: Flags
    V: int
    H: int
    sizes: list[int]  # N, ascending
    device: torch.device

    @classmethod
    def of(cls, flags: Flags) -> "Setting":
        """Raises ValueError with one sentence that names the flag."""
        V, H, N = parse_shape(flags.shape)
        sizes = sorted(set(flags.tokens)) or [N]
        for size in sizes:
            completion_length(size)
        if flags.out is not None and flags.out.is_dir():
            raise ValueError(f"out={str(flags.out)!r} is a folder; name a file in it")
        if flags.dtype not in DTYPES:
            raise ValueError(unknown("dtype", flags.dtype, DTYPES))
        for name in ("repeats", "threads"):
            at_least(flags, name, 1)
        device = flags.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if device not in ("cpu", "cuda"):
            raise ValueError(unknown("device", device, ("cpu", "cuda")))
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device='cuda' needs a GPU that torch can use; use --device cpu")
        return cls(flags, V, H, sizes, torch.device(device))

    @property
    def dtype(self) -> torch.dtype:
        """Of hidden states and weight."""
        return DTYPES[self.flags.dtype]

    @property
    def has_bars(self) -> bool:
        """Whether this is what our bars were set for."""
        V, H, N = SHAPES["bar"]
        # several sizes: each must fill a tile, or there is nothing to be flat
        sized = self.sizes == [N] or (len(self.sizes) > 1 and 4 * V * self.sizes[0] >= TILE_BYTES)
        plain = not (self.flags.frozen or self.flags.entropy) and self.dtype == torch.float32
        return plain and sized and (self.V, self.H) == (V, H) and self.device.type == "cpu"

    def gradients(self, N: int) -> int:
        """Bytes of d_hidden and, unless frozen, d_weight."""
        rows = N if self.flags.frozen else N + self.V
        return rows * self.H * self.dtype.itemsize

    def floor(self, N: int) -> int:
        """Bytes of the gradients and of a tile of float32 logits."""
        return self.gradients(N) + min(TILE_BYTES, 4 * N * self.V)

    def title(self) -> str:
        """What is measured on what."""
        sizes = ", ".join(f"{size:,}" for size in self.sizes)
        lengths = ", ".join(map(str, sorted({completion_length(size) for size in self.sizes})))
        weight = "a frozen weight" if self.flags.frozen else "a weight that trains"
        return (
            f"GRPO loss, forward and backward, {self.flags.dtype}, {weight}\n"
            f"V={self.V:,}, H={self.H:,}, N={sizes} in completions of {lengths}\n"
            f"{machine(self.device)}, threads: {torch.get_num_threads()}, "
            f"torch {torch.__version__}"
        )


def parse_shape(text: str) -> tuple[int, int, int]:
    """V, H, N of a name, or of three numbers. Raises ValueError with the nearest name."""
    if text in SHAPES:
        return SHAPES[text]
    if "," not in text and not text.isdigit():
        raise ValueError(unknown("shape", text, SHAPES))
    numbers = [int(part) if part.strip().isdigit() else 0 for part in text.split(",")]
    if len(numbers) != 3 or min(numbers) < 1:
        raise ValueError(f"shape={text!r} must be a name or three numbers: V,H,N")
    return tuple(numbers)


def gather(setting: Setting) -> tuple[list[Contestant], list[str]]:
    """Who takes part, and a sentence for each who does not."""
    contestants, notes = ours(setting.device)
    names = [name.strip() for name in setting.flags.against.split(",")]
    for name in names if names != ["none"] else []:
        if name not in PEERS:
            raise ValueError(unknown("against", name, (*PEERS, "none")))
        try:
            contestants += PEERS[name](setting.device)
        except ImportError as error:
            notes.append(f"not measured: {error}")
    return contestants, notes


# ---- what is found -------------------------------------------------------------------------


@dataclass
class Row:
    """A contestant, its problem, and what was found."""

    contestant: Contestant
    problem: Problem
    half: bool = False
    errors: Errors | None = None
    wrong: bool = False
    peak: int | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def key(self) -> str:
        """What the bars know it by."""
        return self.contestant.key + (" half" if self.half else "")

    @property
    def is_peer(self) -> bool:
        """Not ours, so that its failing is its own affair."""
        return self.contestant.key.split()[0] in PEERS

    @property
    def found(self) -> report.Found:
        """What the table and the bars look at."""
        return report.Found(
            self.contestant.name,
            median(self.seconds) if self.seconds else None,
            self.peak,
            self.errors,
            self.wrong,
        )

    def run(self) -> None:
        """Forward and backward."""
        self.contestant.run(self.problem, GRPO())

    def measure_peak(self, device: torch.device) -> None:
        """Bytes beyond the inputs. Gradients count: they are cleared before and after."""
        if device.type == "cuda":  # kernels that still choose among themselves allocate for that
            self.run()
            self.problem.clear()
        self.peak = peak_bytes(self.run, device)
        self.problem.clear()


def contest(
    setting: Setting, contestants: list[Contestant], notes: list[str]
) -> tuple[list[Row], list[report.Bar]]:
    """Errors, peaks and times of everyone at one N, printed as a table."""
    flags, (N,) = setting.flags, setting.sizes
    weight = make_weight(setting.V, setting.H, setting.dtype, setting.device, not flags.frozen)
    progress("full logits in float64, for comparison")
    problem = solved(make_problem(weight, N, entropy=flags.entropy, half=False))
    rows = [Row(contestant, problem) for contestant in contestants]
    if flags.half_zero:
        halved = solved(make_problem(weight, N, entropy=flags.entropy, half=True))
        rows += [Row(c, halved, half=True) for c in contestants if c.key in ("full", "fused")]
    rows = [row for row in rows if takes_part(row, setting, notes, check_answer)]
    right = [row for row in rows if not row.wrong]
    for row in right:
        progress(f"memory of {row.contestant.name}")
        row.measure_peak(setting.device)
    bare = Row(products(not flags.frozen), problem)
    timed = [bare, *right]
    clear = [row.problem.clear for row in timed]
    times = interleaved([r.run for r in timed], clear, flags.repeats, setting.device, progress)
    for row, seconds in zip(timed, times, strict=True):
        row.seconds = seconds
    rows, floor = [bare, *rows], setting.floor(N)
    found = {row.key: row.found for row in rows}
    print("\n" + report.table(found, floor))
    print(report.footnote(floor, setting.gradients(N), TOLERANCES[setting.dtype]))
    return rows, report.bars(found, floor)


def flatness(
    setting: Setting, contestants: list[Contestant], notes: list[str]
) -> tuple[list[Row], list[report.Bar]]:
    """Peaks of everyone beyond inputs and gradients, N by N."""
    flags, rows = setting.flags, []
    weight = make_weight(setting.V, setting.H, setting.dtype, setting.device, not flags.frozen)
    for N in setting.sizes:
        torch.compiler.reset()  # what was compiled for other lengths: Liger's loss fails on it
        problem = make_problem(weight, N, entropy=flags.entropy, half=False)
        for contestant in contestants:
            progress(f"memory of {contestant.name}, N={N:,}")
            row = Row(contestant, problem)
            if takes_part(row, setting, notes, lambda row: row.measure_peak(setting.device)):
                rows.append(row)
    beyond: dict[str, dict[int, int]] = {}
    for row in rows:
        N = len(row.problem.hidden)
        beyond.setdefault(row.key, {})[N] = row.peak - setting.gradients(N)
    names = {contestant.key: contestant.name for contestant in contestants}
    print()
    print(report.flat_table({names[key]: peaks for key, peaks in beyond.items()}, setting.sizes))
    return rows, report.flat_bars(beyond, setting.sizes)


def check_answer(row: Row) -> None:
    """Its errors, and whether they are beyond what rounding explains."""
    progress(f"answer of {row.contestant.name}")
    row.errors = errors(row.contestant, row.problem)
    row.wrong = not row.errors.within(TOLERANCES[row.problem.hidden.dtype])


def takes_part(row: Row, setting: Setting, notes: list[str], run: Callable[[Row], None]) -> bool:
    """Runs it; False, and a sentence in notes, where that does not work here.

    An error of our own is raised; only memory may run out.
    """
    name, N = row.contestant.name, len(row.problem.hidden)
    needs, free = 12 * N * setting.V + setting.gradients(N), memory()[0]
    if row.contestant.key == "full" and setting.device.type == "cpu" and 0 < free < needs:
        notes.append(f"not measured: {name} with N={N:,} needs about {needs / 2**30:.1f} GiB")
        return False
    try:
        run(row)
    except Exception as error:
        if not (row.is_peer or isinstance(error, torch.OutOfMemoryError)):
            raise
        what = (str(error).strip() or type(error).__name__).splitlines()[0]
        notes.append(f"not measured: {name}{' at half' if row.half else ''}: {what[:200]}")
        row.problem.clear()
        return False
    return True


def progress(text: str) -> None:
    """A line for who is watching."""
    if sys.stderr.isatty():
        print(f"  {text}", file=sys.stderr, flush=True)


def write(setting: Setting, rows: list[Row], path: Path) -> None:
    """A line for each contestant: the setting first, then what was found."""
    lines = [line(setting, row) for row in rows]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def line(setting: Setting, row: Row) -> dict[str, Any]:
    """Of the CSV; what was not measured is empty."""
    flags, N = setting.flags, len(row.problem.hidden)
    versions = ("torch", "triton", "trl", "liger_kernel", "cut_cross_entropy")
    found = row.errors and asdict(row.errors)
    times = [f"{1000 * f(row.seconds):.3f}" if row.seconds else "" for f in (median, min, max)]
    return {
        "machine": machine(setting.device),
        "device": setting.device.type,
        "threads": torch.get_num_threads(),
        **{name: installed(name) for name in versions},
        "dtype": flags.dtype,
        "vocabulary": setting.V,
        "hidden": setting.H,
        "tokens": N,
        "half_zero": row.half,
        "frozen": flags.frozen,
        "entropy": flags.entropy,
        "contestant": row.contestant.name,
        **dict(zip(("median_ms", "min_ms", "max_ms"), times, strict=True)),
        "rounds": len(row.seconds),
        "peak_bytes": "" if row.peak is None else row.peak,
        "floor_bytes": setting.floor(N),
        "wrong": row.wrong,
        **{
            f"{name}_error": f"{found[name]:.3g}" if found and found[name] is not None else ""
            for name in ("logp", "loss", "gradient")
        },
    }
