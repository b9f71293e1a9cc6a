# %% [markdown]
# # 08 Chunked loss: never hold all the logits
#
# **After this page you can** say which bytes a loss over a wide
# vocabulary needs and which it only keeps by habit, write the loss with
# its gradients chunk by chunk, and choose the size of a chunk.
#
# | time | where | memory |
# |---|---|---|
# | 40 min, 60 s of it computing | any laptop | 1 GB |
#
# Page 07 showed that the logits are the largest part of a training step.
# Here you take them apart. Nothing about the algorithm changes: the same
# loss, the same gradients, fewer bytes.

# %% [markdown]
# ## 8.1 What one token costs
# A model's last layer multiplies each hidden state, `H` numbers, with a
# weight of `V` rows. Out come `V` logits a token. Two numbers of them are
# used: the target's logit, and the log of the sum over all.

# %%
from rlkit.course import here

here("8.1")

# %%
# NBVAL_CHECK_OUTPUT
MiB = 2**20
heads = {  # vocabulary, hidden size
    "the adder": (15, 128),
    "SmolLM2-135M": (49_152, 576),
    "Qwen3-0.6B": (151_936, 1024),
}
print("MiB of float32     logits of 2,048 tokens   hidden states")
for name, (wide, size) in heads.items():
    z, h = (2048 * n * 4 / MiB for n in (wide, size))
    print(f"{name:18} {z:22,.1f} {h:15,.1f}")

# %% [markdown]
# The adder has 15 tokens: on it there is nothing to save. So this page
# measures a head with a wide vocabulary and random numbers. Bytes do not
# care what a model knows.

# %%
# NBVAL_CHECK_OUTPUT
head = begin()
N, V, H = (head[name] for name in "NVH")
hidden, weight, targets = head["hidden"], head["weight"], head["targets"]
print(f"{N} tokens, vocabulary {V:,}, hidden size {H}")
for name, count in ("hidden", N * H), ("weight", V * H), ("logits", N * V):
    print(f"{name}: {count * 4 / MiB:.1f} MiB")

# %% [markdown]
# The loss is the mean of `-logp` of the targets: a policy gradient in
# which every advantage is 1. The other advantages come in section 8.4.

# %%
def full(hidden, weight, targets, chunk=None):
    # no name holds the logits, so they go when their log-softmax is there
    logp = (hidden @ weight.T).log_softmax(-1)
    loss = -logp.gather(1, targets[:, None]).mean()
    loss.backward()
    return loss.detach()

# %% [markdown]
# How many MiB will `full` hold at most, beyond hidden states and weight?
# The gradients of both count too.

# %%
guess = None  # MiB
# SOLUTION
guess = 160
# END SOLUTION

# %% [markdown]
# `measured` runs a function under page 07's instrument, which sees every
# allocation. `bytes_of` reads three things off it.

# %%
def bytes_of(way, chunk):
    """(MiB at most, MiB when the backward pass begins, curve, loss)"""
    hidden.grad = weight.grad = None
    loss, meter, before = measured(way, hidden, weight, targets, chunk)
    line = meter.timeline
    MiBs = [(total - before) / MiB for total in line.total]
    turn = len(line) - 1
    if "backward" in line.phases:
        turn = line.phases.index("backward") - 1
    return max(MiBs), MiBs[turn], (line.seconds, MiBs, turn), loss

found = {"full": bytes_of(full, None)}
most, kept, *_ = found["full"]
print(f"at most {most:.0f} MiB; your guess: {guess}")
print(f"of these {kept:.0f} MiB wait for the backward pass")

# %% [markdown]
# Three times the logits. The backward pass holds the log-probs that were
# kept, the gradient of what `gather` picked from them (zeros but for one
# number a row), and the gradient of the logits.
#
# ## 8.2 By hand
# Four tokens, six words, hidden states of two numbers.

# %%
from rlkit.course import here

here("8.2")

# %%
# NBVAL_CHECK_OUTPUT
h = torch.tensor([[1, 0], [0, 1], [1, 1], [-1, 0.5]])
W = torch.tensor([[1, 0], [0, 1], [0.5, -0.5], [-1, 1], [0, -1], [1, 1.0]])
y = torch.tensor([5, 3, 0, 1])
z = h @ W.T
p = z.softmax(-1)
print("logits of token 0  ", [f"{x:.2f}" for x in z[0]])
print("probabilities      ", [f"{x:.2f}" for x in p[0]])

# %% [markdown]
# What does the loss say about each logit? Raise one a little, and `-logp`
# of the target changes by its probability; the target's own logit also
# helps the target, one for one:
#
# $$\frac{\partial\,(-\log p_y)}{\partial z_v} = p_v - [v = y]$$
#
# That is all. **Once the log-sum of a row is known, the gradient of each
# logit needs that logit and nothing else.** It need not wait for a
# backward pass.

# %%
# NBVAL_CHECK_OUTPUT
d_z = p.clone()
d_z[torch.arange(4), y] -= 1
d_z /= 4  # the mean over four tokens
print("gradient of token 0", [f"{x:.2f}" for x in d_z[0]])
print("each row sums to   ", [f"{abs(x):.2f}" for x in d_z.sum(1)])
d_h, d_W = d_z @ W, d_z.T @ h
print("d_h of token 0     ", [f"{x:.2f}" for x in d_h[0]])
print("d_W of word 5      ", [f"{x:.2f}" for x in d_W[5]])

# %% [markdown]
# The same numbers, step by step. Press ▶ and watch which cells hold
# something, and when they are let go.
#
# - **full** makes all logits at once.
# - **at the end** makes them tile by tile, with one backward pass for all.
# - **again** forgets every tile and makes it a second time when its
#   gradient is due. It may even cut the vocabulary: three running numbers
#   a token are enough, which page 09 builds.
# - **fused** turns each tile into its gradient while it is there.
#
# Find the step at which *at the end* holds most. Then make the tile
# larger: which modes mind?

# %%
TileStepper(h, W, y, mode="fused", step=7)

# %% [markdown]
# ## Exercise 8.1  Chunk by chunk
# *10 minutes, two dots of three.* Go through the tokens `chunk` at a time.
# Add to the loss and to both gradients while the chunk's logits are there,
# then let them go. The logits are divided by the temperature. There is no
# `backward` in it.

# %% exercise="chunked"
@check.chunked
def chunked_loss(hidden, weight, targets, chunk, temperature=1.0):
    """hidden [N, H], weight [V, H], targets [N]
    -> mean of -logp, d_hidden [N, H], d_weight [V, H]"""
    # SOLUTION
    N, loss = len(hidden), 0.0
    d_hidden, d_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
    for at in range(0, N, chunk):
        h, y = hidden[at : at + chunk], targets[at : at + chunk, None]
        logp = (h @ weight.T / temperature).log_softmax(-1)
        loss = loss - logp.gather(1, y).sum() / N
        d_logits = logp.exp()
        d_logits.scatter_add_(1, y, -torch.ones_like(h[:, :1]))
        d_logits /= N * temperature
        d_hidden[at : at + chunk] = d_logits @ weight
        d_weight += d_logits.T @ h
    return loss, d_hidden, d_weight
    # END SOLUTION

# %% [markdown]
# ## 8.3 Where to put `backward`
# Autograd can do it too, and shows best what matters. Here are three ways
# to chunk. The first two differ in nothing but the indentation of one
# line.

# %%
from rlkit.course import here

here("8.3")

# %%
def share(h, weight, y):
    """What some tokens add to the loss."""
    logp = (h @ weight.T).log_softmax(-1)
    return -logp.gather(1, y[:, None]).sum() / N

def at_the_end(hidden, weight, targets, chunk):
    loss = 0.0
    for h, y in zip(hidden.split(chunk), targets.split(chunk)):
        loss = loss + share(h, weight, y)
    loss.backward()  # one for all
    return loss.detach()

def in_the_loop(hidden, weight, targets, chunk):
    loss = 0.0
    for h, y in zip(hidden.split(chunk), targets.split(chunk)):
        part = share(h, weight, y)
        part.backward()  # one for each chunk
        loss = loss + part.detach()
    return loss

# %% [markdown]
# The third forgets a chunk's logits and makes them again in the backward
# pass. PyTorch calls this checkpointing. And `by_hand` wraps your function.

# %%
def again(hidden, weight, targets, chunk):
    loss = 0.0
    for h, y in zip(hidden.split(chunk), targets.split(chunk)):
        loss = loss + checkpoint(share, h, weight, y, use_reentrant=False)
    loss.backward()
    return loss.detach()

@torch.no_grad()
def by_hand(hidden, weight, targets, chunk):
    loss, d_hidden, d_weight = chunked_loss(hidden, weight, targets, chunk)
    hidden.grad, weight.grad = d_hidden, d_weight
    return loss

ways = dict(full=full, at_the_end=at_the_end, again=again)
ways |= dict(in_the_loop=in_the_loop, by_hand=by_hand)

# %% [markdown]
# Chunks of 32 tokens: `4` MiB of logits at a time instead of `64`. Two
# guesses before you measure. `full` keeps `64` MiB for its backward pass:
# what share of that will `at_the_end` keep? And what share of the most
# that `full` holds will `in_the_loop` hold at most?

# %%
guess_at_the_end, guess_in_the_loop = None, None  # shares, 0 to 1
# SOLUTION
guess_at_the_end, guess_in_the_loop = 0.1, 0.3
# END SOLUTION

# %%
apart = {}
for name, way in ways.items():
    found[name] = bytes_of(way, 32)
    if name == "full":
        grads = hidden.grad.clone(), weight.grad.clone()
    pairs = zip((hidden.grad, weight.grad), grads)
    apart[name] = [(a - b).abs().max().item() for a, b in pairs]
    apart[name].append(abs(found[name][3] - found["full"][3]).item())
kept = found["at_the_end"][1] / found["full"][1]
most = found["in_the_loop"][0] / found["full"][0]
print(f"at_the_end keeps {kept:.2f} of full's; guess {guess_at_the_end}")
print(f"in_the_loop at most {most:.2f}; your guess {guess_in_the_loop}")

# %% [markdown]
# Are they the same loss, with the same gradients?

# %%
print("             MiB      MiB when   largest difference from full")
print("         at most  backward begins  d_hidden  d_weight      loss")
for name, (most_MiB, kept_MiB, *_) in found.items():
    alone = name in ("in_the_loop", "by_hand")  # no pass of its own
    later = "-" if alone else f"{kept_MiB:.0f}"
    small = " ".join(f"{x:9.1e}" for x in apart[name])
    print(f"{name:12}{most_MiB:4.0f} {later:>15}  {small}")
    assert max(apart[name]) < 1e-4 and max(apart[name][:2]) < 1e-6

# %% tags=["solution"]
assert abs(kept - 1) < 0.02 and most < 0.45
assert found["by_hand"][0] < 0.45 * found["full"][0]
assert found["again"][1] < 1

# %% [markdown]
# ## The picture
# Bytes over time. The dotted line is where the forward pass ends.

# %%
def picture(found, names):
    fig, axes = paper(*[1] * len(names), height=3.2)
    top = 1.12 * max(found[name][0] for name in names)
    for ax, name in zip(axes, names):
        most, _, (seconds, MiBs, turn), _ = found[name]
        ax.fill_between(seconds, MiBs, step="post", alpha=0.3)
        ax.plot(seconds, MiBs, drawstyle="steps-post", lw=1.3)
        if name != "by_hand":
            ax.axvline(seconds[turn], color="#222222", ls=":")
        ax.set_title(f"{name}: {most:.0f} MiB", fontsize=10)
        ax.set(ylim=(0, top), xlim=(0, seconds[-1]), xlabel="seconds")
    axes[0].set_ylabel("MiB beyond the inputs")
    return titled(
        fig,
        "One backward at the end keeps every logit; "
        "gradients in the forward keep none",
    )

picture(found, ["full", "at_the_end", "again", "by_hand"])

# %% [markdown]
# Read it from left to right.
#
# - `at_the_end` climbs to the same height at the dotted line: **chunking
#   alone saves nothing of what is kept.** It does spare two of the three
#   copies in the backward pass, which are of a chunk here.
# - `again` keeps nothing, and pays with time: it makes each logit twice.
# - `by_hand` keeps nothing and makes each logit once.
#
# ## A claim on trial
# Articles on chunked losses say: *the saving comes from never storing all
# logits, and from computing gradients chunk by chunk during the forward
# pass.* Is it one thing, or two? Bytes that grow with each token tell.

# %%
def per_token(name, half=N // 2):
    """KiB that one more token adds to the most that is held."""
    hidden.grad = weight.grad = None
    part = hidden[:half].detach().requires_grad_()
    _, meter, before = measured(
        ways[name], part, weight, targets[:half], 32)
    less = (meter.peak - before) / MiB
    return (found[name][0] - less) / (N - half) * 1024

print(f"one row of logits is {V * 4 / 1024:.0f} KiB")
slope = {name: per_token(name) for name in ways}
for name, KiB in slope.items():
    print(f"{name:12} {KiB:8.1f} KiB for each further token")

# %% tags=["solution"]
row = V * 4 / 1024
assert slope["full"] > 2.5 * row and slope["at_the_end"] > 0.9 * row
assert max(slope[n] for n in ("again", "in_the_loop", "by_hand")) < 9

# %% [markdown]
# One measurement is one. Here are three seeds of a head of another size,
# from `rlkit evidence 08`.

# %%
seeds = evidence.load("08")
for name in ways:
    if name != "in_the_loop":
        most, each = seeds[f"MiB {name}"], seeds[f"KiB a token {name}"]
        print(f"{name:12}", [f"{x:.1f} MiB" for x in most],
              [f"{x:.1f} KiB" for x in each])

# %% [markdown]
# So the two halves of the claim are two ways to one end:
#
# - What saves the bytes is **never storing all logits**. `again` shows it,
#   and computes no gradient in its forward pass.
# - **Gradients in the forward pass** are what makes that free: three
#   matrix products, as in `full`, where `again` needs four.
#
# A price remains. `d_weight`, as large as the weight, is there from the
# first chunk on, and each `+=` makes a second one for a moment. That is
# the floor of `by_hand`. `d_weight.addmm_(d_logits.T, h)` would add in
# place; the library does.

# %% [markdown]
# ## How large a tile?
# A tile of few tokens holds few bytes, but all of `d_weight` is read and
# written for each. Which tile budget will be the fastest, and how much
# slower than it is a tile of `2` MiB?

# %%
guess_slower = None  # times
# SOLUTION
guess_slower = 2
# END SOLUTION

# %%
def timed(way, chunk):
    most, _, (seconds, *_), _ = bytes_of(way, chunk)
    return seconds[-1], most

budgets = [2, 4, 8, 16, 32, 64]  # MiB of logits
chunks = [int(budget * MiB / 4 / V) for budget in budgets]
rounds = [[timed(by_hand, c) for c in chunks] for _ in range(2)]
times = [min(a, b) for (a, _), (b, _) in zip(*rounds)]
mosts = [most for _, most in rounds[0]]
full_time = min(timed(full, None)[0] for _ in range(2))
for row in zip(budgets, chunks, times, mosts):
    print("{:3} MiB, {:4} tokens: {:.2f} s, {:.0f} MiB".format(*row))
slower = times[0] / min(times)
print(f"2 MiB is {slower:.1f} times slower; your guess {guess_slower}")

# %%
def tradeoff():
    fig, (ax,) = paper(1, width=7.6, height=4)
    ax.plot(mosts, times, "-o", label="by_hand")
    for budget, x, t in zip(budgets, mosts, times):
        ax.annotate(f"{budget} MiB", (x, t), xytext=(5, 5),
                    textcoords="offset points", fontsize=9)
    ax.plot(found["full"][0], full_time, "ks", label="full")
    ax.set(xlabel="MiB held at most", ylabel="seconds", xscale="log")
    ax.set(ylim=(0, 1.1 * max(*times, full_time)))
    ticks = [40, 60, 80, 100, 150, 200]
    ax.set_xticks(ticks, ticks)
    ax.minorticks_off()
    ax.legend(frameon=False)
    best = budgets[times.index(min(times))]
    return titled(fig, f"A tile of {best} MiB is the fastest here; "
                       "below a few MiB time is lost, above it memory")

tradeoff()

# %% tags=["solution"]
assert slower > 1.3 and mosts[0] < mosts[-1] / 2

# %% [markdown]
# That is why rlkit takes a budget in bytes and not a number of tokens: the
# right number of tokens depends on the vocabulary, the right number of
# bytes hardly does.
#
# ## 8.4 Any loss
# A policy loss is not `-logp`. GRPO's looks at old log-probs, clips, and
# weighs by advantages. Must every formula be differentiated by hand, and
# be written a second time inside the chunked loss?
#
# No. The formula only sees log-probs, one number a token. Let autograd
# differentiate *it*, on the chunk's own log-probs, and do by hand what lies
# below: from `d_logp` to the logits.

# %%
from rlkit.course import here

here("8.4")

# %%
@torch.no_grad()
def chunked_policy(hidden, weight, targets, chunk, loss_of):
    """loss_of(logp, rows): what these tokens add to the loss"""
    loss = 0.0
    d_hidden, d_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
    for at in range(0, len(hidden), chunk):
        rows = slice(at, at + chunk)
        h, y = hidden[rows], targets[rows, None]
        all_logp = (h @ weight.T).log_softmax(-1)
        with torch.enable_grad():
            logp = all_logp.gather(1, y).squeeze(1).requires_grad_()
            part = loss_of(logp, rows)
            (d_logp,) = torch.autograd.grad(part, logp)
        loss = loss + part.detach()
        d_logits = all_logp.exp_().mul_(-d_logp[:, None])  # in place
        d_logits.scatter_add_(1, y, d_logp[:, None])
        d_hidden[rows] = d_logits @ weight
        d_weight.addmm_(d_logits.T, h)
    return loss, d_hidden, d_weight

# %% [markdown]
# GRPO in three lines, as page 04 wrote it. A batch of 32 completions of 16
# tokens, with old log-probs a little off.

# %%
B, T = 32, 16
noise = torch.Generator().manual_seed(1)
advantages = torch.randn(B, generator=noise)
with torch.no_grad():
    logp, _ = token_logps(hidden, weight, targets, entropy=False)
logp_old = logp + 0.2 * torch.randn(N, generator=noise)

def grpo_share(logp, rows):
    A = advantages.repeat_interleave(T)[rows]
    ratio = (logp - logp_old[rows]).exp()
    clipped = ratio.clamp(0.8, 1.2)
    return -torch.minimum(ratio * A, clipped * A).sum() / N

yours = chunked_policy(hidden, weight, targets, 32, grpo_share)
print(f"loss {yours[0]:.5f}")

# %% [markdown]
# ## The map to rlkit
#
# | your cell | rlkit |
# |---|---|
# | `full` | `full_logps` in `rlkit/head.py` |
# | `again`, cut along the vocabulary too | `rlkit/chunked.py`, `token_logps(mode="chunked")` |
# | `chunked_policy` | `rlkit/fused.py`, `fused_policy_loss` |
# | `loss_of` | an objective of `rlkit/objectives.py`, the same for all modes |
# | `d_logits` in place of `logp` | `gradient_` in `rlkit/tiles.py` |
# | `chunk` | `tile_bytes`, 64 MiB unless told |
# | hidden states of valid tokens only | `rlkit/batch.py` |
#
# In a model all of it stands in the place of `lm_head`: `Head` in
# `rlkit/head.py`. Equal numbers:

# %%
def rlkit_gradients(**head):
    hidden.grad = weight.grad = None
    loss, _ = fused_policy_loss(
        hidden, weight, targets, GRPO(), advantages=advantages,
        mask=torch.ones(B, T, dtype=torch.bool), index=torch.arange(N),
        logp_old=logp_old.view(B, T), **head,
    )
    loss.backward()
    return loss.detach(), hidden.grad, weight.grad

theirs = rlkit_gradients(tile_bytes=4 * MiB)
apart = [(a - b).abs().max().item() for a, b in zip(yours, theirs)]
print("yours against rlkit's:", *(f"{x:.1e}" for x in apart))
assert max(apart) < 1e-6

# %%
hidden.grad = weight.grad = None
logp, _ = token_logps(hidden, weight, targets, mode="chunked",
                      tile_bytes=4 * MiB, entropy=False)
loss = -logp.mean()
loss.backward()
ours = loss.detach(), hidden.grad, weight.grad
mine = chunked_loss(hidden.detach(), weight.detach(), targets, 32)
apart = [(a - b).abs().max().item() for a, b in zip(ours, mine)]
print("chunked_loss against token_logps:", *(f"{x:.1e}" for x in apart))
assert apart[0] < 1e-4 and max(apart[1:]) < 1e-6

# %% [markdown]
# ## 8.5 A model whose vocabulary is wide
# The adder again, with 16,384 tokens. It never writes the new ones, but
# it must compute their logits, in sampling and in training. Two steps of
# GRPO, twice, with one word changed.

# %%
from rlkit.course import here

here("8.5")

# %%
def two_steps(head):
    model, tokenizer = wide_adder(16_384)
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer,
        reward_funcs=task.reward, train_dataset=task.train,
        args=GRPOConfig.preset(
            "tiny", max_steps=2, eval_steps=None, disable_tqdm=True,
            per_device_train_batch_size=128, max_generation_batch=16,
            head=head, tile_bytes=2 * MiB),
    )
    trainer.meter = Meter(trainer, device="cpu")
    trainer.train()
    line = trainer.meter.timeline
    return trainer.history, {
        phase: (most - line.total[0]) / MiB
        for phase, most in line.peaks().items() if phase != "other"}

hidden.grad = weight.grad = None
task = load_task("sums")
steps = {head: two_steps(head) for head in ("full", "fused")}

# %%
for head, (history, peaks) in steps.items():
    print(f"{head:6}", [f"reward {r['reward']:.4f}" for r in history])
print("MiB at most, beyond the weights")
for head, (_, peaks) in steps.items():
    print(f"{head:6}", {k: round(MiBs) for k, MiBs in peaks.items()})

# %% tags=["solution"]
a, b = ([r["reward"] for r in history] for history, _ in steps.values())
assert a == b
a, b = (peaks["backward"] for _, peaks in steps.values())
assert b < 0.75 * a, (a, b)

# %% [markdown]
# Equal rewards, to the last digit that is printed, and fewer bytes in
# `forward` and `backward`. What is left there are weights, gradients and
# Adam's two numbers for each weight. Look at `generate` as well:
# **sampling holds logits too**, one row for each completion, and copies of
# them. Nobody chunks those; drawing fewer completions at a time does it.
#
# ## 8.6 Train with your own function
# The last rung: real training of the real adder, with `chunked_policy`
# from above. A loss that brings its own gradients hands `d_hidden` to the
# rest of the model by `backward`, and adds `d_weight` to what is there:
# the adder's weight is also its embedding.

# %%
from rlkit.course import here

here("8.6")

# %%
def loss_with(chunk, student, rollout):
    """One backward pass; all log-probs at once if chunk is None."""
    hidden, weight, targets, A = scored(student, rollout)
    def loss_of(logp, rows):  # the first update: the ratio is 1
        ratio = (logp - logp.detach()).exp()
        return -(ratio * A[rows]).sum() / len(targets)
    if chunk is None:
        logp = (hidden @ weight.T).log_softmax(-1)
        logp = logp.gather(1, targets[:, None]).squeeze(1)
        loss_of(logp, slice(None)).backward()
        return
    _, d_hidden, d_weight = chunked_policy(
        hidden, weight, targets, chunk, loss_of)
    hidden.backward(d_hidden)
    weight.grad += d_weight

# %%
def make_step(student, chunk):
    weights = list(student.policy.parameters())
    adam = torch.optim.AdamW(weights, lr=3e-4, weight_decay=0.0)
    def step(k):
        rollout = student.sample(k, prompts=64, num_generations=8)
        loss_with(chunk, student, rollout)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        adam.step()
        adam.zero_grad()
        return {"reward": rollout.rewards.mean().item()}
    return step

student = Student()
loop = Loop(make_step(student, chunk=100), student, steps=30,
            eval_rows=256, output_dir="runs/page08")

# %%
guess_accuracy = None  # after 30 steps
# SOLUTION
guess_accuracy = 0.9
# END SOLUTION

# %%
run = LiveRun(loop, guess_accuracy, questions=student.task.eval[:5],
              score=student.task.reward)
run

# %% [markdown]
# ## 8.7 The same curve
# `run.result()` stops with a sentence while the run goes on; wait, or
# press Stop, then run the cell again.

# %%
from rlkit.course import here

here("8.7")
history = run.result()

# %%
other = Student()
plain = make_step(other, chunk=None)
print("mean reward   chunked   all logits at once")
for k in range(min(3, len(history))):
    yours, textbook = history[k]["reward"], plain(k)["reward"]
    print(f"step {k + 1}        {yours:.4f}    {textbook:.4f}")
    assert abs(yours - textbook) < 0.01

# %%
if len(run.accuracy) > 1:
    ladder.add("GRPO, chunked", run)
ladder.figure()

# %% tags=["solution"]
assert run.accuracy[-1][1] > 0.85

# %% [markdown]
# ## What this page showed, and where it does not hold
# - A loss needs two numbers of each row of logits. Keeping the rest is
#   habit: the gradient of a logit is known as soon as its row is summed.
# - Chunks alone keep as much. What saves is to finish with a chunk before
#   the next one, by gradients at once or by making it again.
# - It does not hold where the vocabulary is small (the adder: nothing to
#   save), where few tokens are trained at a time (then `d_weight` is the
#   larger part), or where the peak lies elsewhere: in sampling, in the
#   optimiser's state, in the activations of long sequences. Page 07 tells
#   which.
# - A loss of whole completions, RLOO's for one, can only be cut between
#   completions. Where one of them is longer than a tile, rlkit makes its
#   tiles again instead.
# - In half precision `d_weight` must be summed in float32, which takes
#   twice the weight's bytes. There `again` is the better choice, and
#   rlkit's `head="auto"` takes it.
#
# From a terminal: `rlkit bench head` times these ways, and other
# libraries', on your machine.
