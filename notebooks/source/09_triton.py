# %% [markdown]
# # 09 Triton: the softmax in one pass
#
# **After this page you can** compute a log-prob from logits that are read
# once and never kept, write that as a Triton kernel, compile it for
# graphics cards that you do not have, and read rlkit's kernels.
#
# | time | where | memory |
# |---|---|---|
# | 40 min, 30 s of it computing | any laptop; from 9.3 on Linux or Colab | 1 GB |
#
# Page 08 let tiles of logits go as soon as their row was summed. Here you
# let go of parts of a row.

# %% [markdown]
# ## 9.1 The running maximum, on paper
# One token, seven words. `logp = z[target] - log sum exp(z)`.

# %%
from rlkit.course import here

here("9.1")

# %%
# NBVAL_CHECK_OUTPUT
z = torch.tensor([1.0, 2.0, 0.5, 4.0, 3.0, 1.5, 0.0])
target = 4
print(f"sum exp(z) = {z.exp().sum():.3f}")
print(f"log-prob   = {z[target] - z.exp().sum().log():.4f}")

# %% [markdown]
# On paper that is all. In a computer `exp` leaves the range of its numbers
# soon: float32 ends at `exp(88)`, float16 at `exp(11)`. Nothing is lost if
# the largest logit is taken off first, and put back after the log.

# %%
# NBVAL_CHECK_OUTPUT
large = z + 100
print("as it stands  ", (large[target] - large.exp().sum().log()).item())
m = large.max()
log_z = m + (large - m).exp().sum().log()
print(f"less the largest {large[target] - log_z:.4f}")

# %% [markdown]
# But that reads the row twice: once for the largest, once for the sum. At
# `0.6` MB a row, reading is what takes the time.
#
# Do both at once. Read three words at a time. Keep the largest so far, $m$,
# and the sum $s$ **in units of** $e^m$. When a larger one, $m'$, comes, the
# old sum changes its units:
#
# $$s' = s\,e^{\,m - m'} + \sum_{\text{new}} e^{\,z - m'}$$
#
# Take a sheet of paper. The first block is `1, 2, 0.5`: the largest is `2`
# and the sum `1.591`. The second is `4, 3, 1.5`. What is the sum after it?

# %%
guess = None  # the sum after two blocks
# SOLUTION
guess = 1.665
# END SOLUTION

# %%
# NBVAL_CHECK_OUTPUT
m, s = 2.0, 0.0
s = sum(math.exp(x - m) for x in [1.0, 2.0, 0.5])
print(f"after block 1: m = {m}, s = {s:.3f}")
old, m = m, 4.0
print(f"the old sum in new units: {s * math.exp(old - m):.3f}")
s = s * math.exp(old - m) + sum(math.exp(x - m) for x in [4, 3, 1.5])
print(f"after block 2: m = {m}, s = {s:.3f}")
s = s + math.exp(0.0 - m)
print(f"after block 3: log-prob = {3.0 - m - math.log(s):.4f}")

# %% [markdown]
# Step through it. A block is four wide here, because Triton's blocks are
# powers of two. The last one reaches beyond the edge of the row: whatever
# stands there must weigh nothing.

# %%
rows = torch.stack([z, z.flip(0)])
BlockStepper(rows, torch.tensor([4, 4]), block=4, step=4)

# %% [markdown]
# ## Exercise 9.1  Read it once
# *10 minutes, two dots of three.* Log-probs of targets, for any number of
# rows at once, with nothing wider than a block. Keep three numbers a row:
# the largest so far, the sum, and the target's logit, which lies in one of
# the blocks.

# %% exercise="online_softmax"
@check.online_softmax
def online_logp(logits, targets, block):
    """logits [N, V], targets [N] -> log-prob of each target [N]"""
    # SOLUTION
    largest = torch.full_like(logits[:, 0], -torch.inf)
    total, chosen = torch.zeros_like(largest), torch.zeros_like(largest)
    for at in range(0, logits.shape[1], block):
        z = logits[:, at : at + block]
        larger = torch.maximum(largest, z.amax(1))
        total = total * (largest - larger).exp()  # in the new units
        total = total + (z - larger[:, None]).exp().sum(1)
        largest = larger
        here_it_is = (targets >= at) & (targets < at + block)
        place = torch.where(here_it_is, targets - at, 0)
        found = z.gather(1, place[:, None]).squeeze(1)
        chosen = torch.where(here_it_is, found, chosen)
    return chosen - largest - total.log()
    # END SOLUTION

# %% [markdown]
# ## 9.2 The picture
# Left your seven words; right one row of `4,096` logits in blocks of 256,
# as a kernel reads them.

# %%
from rlkit.course import here

here("9.2")

# %%
def running(row, block):
    """Largest and log of the sum after each block, from your function."""
    ends = [min(e, len(row)) for e in
            range(block, len(row) + block, block)]
    first = torch.tensor([0])
    log_z = [row[0] - online_logp(row[None, :end], first, block).item()
             for end in ends]
    return ends, [row[:end].max() for end in ends], log_z

# %%
def picture(panels):
    fig, axes = paper(1, 1.5, height=3.6)
    for ax, (row, block) in zip(axes, panels):
        ends, largest, log_z = running(row, block)
        few = len(row) < 20
        ax.plot(range(1, len(row) + 1), row, "o", color="#888888",
                ms=6 if few else 1.5)
        for end, logs in zip(ends, log_z if few else []):
            ax.annotate(f"{logs:.2f}", (end - 0.9, logs + 0.08))
        style = dict(drawstyle="steps-post")
        ax.plot([0, *ends], [largest[0], *largest], "--", **style,
                color="#b34a00", label="largest so far")
        ax.plot([0, *ends], [log_z[0], *log_z], **style,
                color="#0072b2", label="log of the sum so far")
        ax.set(xlabel="words read", ylabel="logit")
    axes[0].legend(frameon=False, fontsize=9, loc="lower left")
    title = f"After the last block it is log Z: {log_z[-1]:.2f}"
    return titled(fig, f"{title}, and no block was kept")

# %%
wide = 2 * torch.randn(4096, generator=torch.Generator().manual_seed(0))
picture([(z, 3), (wide, 256)])

# %% [markdown]
# How many bytes does it hold, beside the logits? And how far is it from
# float64?

# %%
noise = torch.Generator().manual_seed(1)
logits = 3 * torch.randn(64, 32_768, generator=noise)
targets = torch.randint(32_768, (64,), generator=noise)

def textbook(logits, targets, block=None):
    all_logp = logits.log_softmax(1)
    return all_logp.gather(1, targets[:, None]).squeeze(1)

exact = textbook(logits.double(), targets)
held = {}
for way, block in ((textbook, None), (online_logp, 1024)):
    logp, meter, before = measured(way, logits, targets, block)
    held[way] = (meter.peak - before) / 2**20
    off = (logp - exact).abs().max()
    print(f"{held[way]:6.2f} MiB held, off by {off:.0e}", check.label(way))
    assert off < 1e-4

# %% tags=["solution"]
assert held[online_logp] < held[textbook] / 8

# %% [markdown]
# Parts of a row can also be summed by different workers and put together
# at the end, in any order: a part is a pair $(m, s)$, and two of them add
# up like two blocks. Such a sum of logs is `torch.logaddexp`.

# %%
parts = [part.logsumexp(1) for part in logits.split(10_000, 1)]
whole = parts[0]
for part in reversed(parts[1:]):
    whole = torch.logaddexp(whole, part)
print((whole - logits.logsumexp(1)).abs().max().item())
assert torch.allclose(whole, logits.logsumexp(1), atol=1e-5)

# %% [markdown]
# ## 9.3 The kernel
# In torch each line of your function reads and writes memory. A *kernel*
# is one program for the graphics card: it loads a block into registers,
# does everything there, and loads the next. Triton lets you write it in
# Python.
#
# - The grid starts one *program* for each row; `tl.program_id(0)` tells it
#   which row is its own.
# - `tl.arange(0, BLOCK)` is a block of column numbers. `BLOCK` is known
#   when it is compiled, and a power of two.
# - `tl.load(pointer + cols, mask=..., other=...)` reads them. Where the
#   mask is False nothing is read, and `other` stands there.
#
# Without a graphics card Triton's interpreter runs the same program with
# NumPy, slowly. It must be told before Triton is imported, so that is the
# first thing here.

# %%
from rlkit.course import here

here("9.3")
on_gpu = torch.cuda.is_available()
os.environ.setdefault("TRITON_INTERPRET", "0" if on_gpu else "1")
device = "cuda" if on_gpu else "cpu"
HAVE_TRITON = find_spec("triton") is not None
WITHOUT = "Triton is not here (it runs on Linux, and on Colab): read on"
print("Triton is here" if HAVE_TRITON else WITHOUT)

# %% [markdown]
# Before you write it: the row of seven in blocks of four. Let `other` be 0
# instead of -inf. What becomes of the log of the sum, `4.52` if it is
# right? Larger, smaller, by how much?

# %%
guess = None  # the wrong log of the sum
# SOLUTION
guess = 4.5
# END SOLUTION

# %%
# NBVAL_CHECK_OUTPUT
log_z = z.logsumexp(0)
padded = torch.cat([z, torch.zeros(1)]).logsumexp(0)
low = z - 5  # the same probabilities
low_padded = torch.cat([low, torch.zeros(1)]).logsumexp(0)
print(f"log of the sum {log_z:.3f}, with a 0 beyond the edge {padded:.3f}")
print(f"all logits 5 lower: {low.logsumexp(0):.3f} and {low_padded:.3f}")

# %% [markdown]
# A small error, until logits lie below 0: then the padding outweighs the
# words. And none at all where the block divides `V`, which is why such a
# kernel passes tests with `V = 1024`. On wide rows with logits around -12,
# three seeds, from `rlkit evidence 09`:

# %%
seeds = evidence.load("09")
for name, values in seeds.items():
    if name.startswith("log_z"):
        print(f"{name:40}", [f"{x:.2f}" for x in values])

# %% [markdown]
# ### Write the kernel
# *12 minutes, three dots of three.* The cell writes a file, because the
# compiler will want one. Fill in the loop: load a block, find the larger
# maximum, bring the sum into its units, add the new part. Names of the
# functions: `tl.load`, `tl.maximum`, `tl.max(z, 0)`, `tl.exp`,
# `tl.sum(x, 0)`.

# %%
%%writefile my_kernel.py
import triton
import triton.language as tl


@triton.jit
def logp_kernel(logits, targets, log_z, logp, V, row_stride,
                BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride  # where this row begins
    largest = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for at in range(0, V, BLOCK):
        cols = at + tl.arange(0, BLOCK)
        # SOLUTION
        beyond = -float("inf")
        z = tl.load(logits + cols, mask=cols < V, other=beyond)
        larger = tl.maximum(largest, tl.max(z, 0))
        total = total * tl.exp(largest - larger)
        total += tl.sum(tl.exp(z - larger), 0)
        largest = larger
        # END SOLUTION
    chosen = tl.load(logits + tl.load(targets + row))
    tl.store(log_z + row, largest + tl.log(total))
    tl.store(logp + row, chosen - largest - tl.log(total))

# %% [markdown]
# The next cell reads the file, tries the kernel on small cases, and names
# the mistake if it knows it. To look at one way to write it:
# `print(open(own_kernel.__file__).read())` after the cell has run.

# %%
if HAVE_TRITON:
    sys.path.insert(0, "")
    from rlkit.course import own_kernel

    my_kernel = importlib.import_module("my_kernel")
    importlib.reload(my_kernel)  # the file may have changed
    kernel = own_kernel.judge(my_kernel.logp_kernel, device)
else:
    print(WITHOUT)

# %% [markdown]
# Now on something larger, against your torch function and the textbook.

# %%
if HAVE_TRITON:
    some, y = logits[:16, :5000].contiguous(), targets[:16] % 5000
    log_z, logp = own_kernel.launch(
        kernel, some.to(device), y.to(device), 1024)
    for name, other in (("textbook", textbook(some, y)),
                        ("online_logp", online_logp(some, y, 1024))):
        off = (logp.cpu() - other).abs().max().item()
        print(f"kernel against {name}: {off:.0e}")
        assert off < 1e-4
else:
    print(WITHOUT)

# %% [markdown]
# ## 9.4 Compile it for cards that are not here
# The interpreter shows that the numbers are right. Whether the program is
# *good* the compiler tells, and it needs no card: it only must know which
# one is meant. `sm_75` is a T4, `80` an A100, `89` an L4, `90` an H100,
# `100` a B200.
#
# A thread has at most 255 registers. What does not fit *spills* into
# memory, which the kernel was meant to avoid. A block of numbers lives in
# registers: with 8 warps, which are 256 threads, how wide can it be before
# the first spill?

# %%
from rlkit.course import here

here("9.4")

# %%
guess = None  # columns: 1024, 4096, 16384, 65536?
# SOLUTION
guess = 65536
# END SOLUTION

# %%
%%writefile compile_it.py
import re, subprocess, sys
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, "")
from my_kernel import logp_kernel

tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
kinds = "*fp32 *i64 *fp32 *fp32 i32 i32 constexpr".split()
kinds = dict(zip(logp_kernel.arg_names, kinds))
for job in sys.argv[1:]:  # "90,4096": card, block
    card, block = map(int, job.split(","))
    made = triton.compile(
        ASTSource(logp_kernel, kinds, {"BLOCK": block}),
        target=GPUTarget("cuda", card, 32), options={"num_warps": 8})
    Path("kernel.cubin").write_bytes(made.asm["cubin"])
    told = subprocess.run(
        [tool, "--dump-resource-usage", "kernel.cubin"],
        capture_output=True, text=True).stdout
    used = [re.search(f"{x}:(\\d+)", told)[1] for x in ("REG", "STACK")]
    print(card, block, *used)

# %% [markdown]
# It runs in a process of its own: this one is set to interpret.

# %%
def compiled(jobs):
    """[(card, block, registers, bytes of stack), ...]"""
    plain = dict(os.environ, TRITON_INTERPRET="0")
    jobs = [f"{card},{block}" for card, block in jobs]
    done = subprocess.run(
        [sys.executable, "compile_it.py", *jobs], env=plain,
        capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-600:])
    return [tuple(map(int, line.split()))
            for line in done.stdout.splitlines()]

cards = [75, 80, 89, 90, 100]
blocks = [1024, 4096, 16384, 65536]
if HAVE_TRITON:
    jobs = [(card, 4096) for card in cards]
    jobs += [(90, block) for block in blocks]
    usage = compiled(jobs)
    for card, block, used, spilled in usage:
        print(f"sm_{card}: block {block:6,}, "
              f"{used:3} registers, {spilled:3} spilled")
else:
    print(WITHOUT)

# %%
def usage_picture():
    fig, (left, right) = paper(1, 1, height=3)
    _, width, registers, spilled = zip(*usage[len(cards):])
    names = [f"{w:,}" for w in width]
    for ax, heights in ((left, registers), (right, spilled)):
        for bar, n in zip(ax.bar(names, heights, color="#0072b2"), heights):
            ax.text(bar.get_x() + 0.4, n, n, ha="center", va="bottom")
        top = 1.2 * max(*heights, 9)
        ax.set(xlabel="columns in a block", ylim=(0, top))
    left.axhline(255, color="#222222", ls="--", lw=1)
    left.set_ylabel("registers a thread, of 255")
    right.set_ylabel("bytes spilled a thread")
    first = next((w for w, s in zip(width, spilled) if s), None)
    title = "No block spills on an H100" if first is None else (
        f"On an H100 a block of {first:,} columns spills")
    return titled(fig, f"{title}; your guess {guess}")

if HAVE_TRITON:
    display(usage_picture())

# %% tags=["solution"]
if HAVE_TRITON:
    assert all(row[3] == 0 for row in usage if row[1] == 4096)
    assert usage[-1][3] > 0

# %% [markdown]
# ## 9.5 Read rlkit's kernels
# Your kernel has one program a row. A tile of page 08 holds few rows: 110
# of Qwen3's in 64 MiB. An H100 has 132 multiprocessors, and some would
# have no row at all, while others walk through 151,936 columns. So rlkit
# cuts each row into *panels*, sums them in different programs, and puts
# them together as above, by `logaddexp`, in a fixed order.
#
# | your kernel | `rlkit/kernels.py` |
# |---|---|
# | the loop | `read_panel`, and it sums the entropy in the same pass |
# | `row` | row and panel, `tl.program_id(0) // panels` and `% panels` |
# | `-float("inf")` at first | `LOWEST`, finite: `inf - inf` is no number |
# | `other=-inf` | `tl.where(cols < stop, z, -inf)`, after scale and softcap |
# | `torch.logaddexp` of parts | `merge_panels` |
# | page 08's `p - [v = y]` | `differentiate_panel`, in the memory of the tile |
# | matrix products | none: they stay with cuBLAS, which is better at them |
#
# Equal numbers, from both of its passes:

# %%
from rlkit.course import here

here("9.5")

# %%
if HAVE_TRITON:
    from rlkit import kernels

    tile = some[:4, :700].contiguous().to(device)
    y = (targets[:4] % 700).to(device)
    log_z, logp = own_kernel.launch(kernel, tile, y, 256)
    scores = Scores.unseen(4, tile)
    plain = Shaping(1.0, None, 1.0)
    kernels.read(tile, y, plain, 0, scores, True, "products")
    theirs = scores.chosen - scores.log_z
    print(f"log-probs differ by {(logp - theirs).abs().max():.0e}")
    assert torch.allclose(logp, theirs, atol=1e-5)
    with_entropy = torch.distributions.Categorical(logits=tile)
    assert torch.allclose(scores.entropy, with_entropy.entropy(), atol=1e-4)
else:
    print(WITHOUT)

# %%
if HAVE_TRITON:
    p = tile.softmax(1)
    by_hand = p - torch.nn.functional.one_hot(y, 700)
    told = plain, y, scores.log_z, scores.entropy
    token = TokenGradient.of(*told, -torch.ones_like(logp), None)
    kernels.gradient(tile, "products", token, 0, torch.float32)
    print("the tile's memory now holds its gradient;")
    print(f"it differs by {(tile - by_hand).abs().max():.0e}")
    assert torch.allclose(tile, by_hand, atol=1e-5)
else:
    print(WITHOUT)

# %% [markdown]
# ## What this page showed, and where it does not hold
# - A softmax needs one pass and three numbers a row. The running sum has
#   units, and a larger maximum changes them.
# - Padding must weigh nothing, and only a block that does not divide `V`
#   shows whether it does.
# - The compiler can be asked about any card; the interpreter says whether
#   the numbers are right. **Neither says how fast it is**: for that a card
#   is needed, and `rlkit bench head` on it.
# - On a CPU the kernel is no gain at all. There rlkit takes torch's passes
#   (`backend="torch"` in `rlkit/tiles.py`), with the same numbers.
# - The matrix products take most of a head's time. A kernel that makes
#   logits and sums them without storing them is possible, and must then
#   multiply as fast as cuBLAS on every card.
