# %% [markdown]
# # 07 Memory lab: where every byte goes
#
# **After this page you can** say from a model's shape what a training step
# will hold and when, name the switch that moves a given byte, and tell
# which card a run fits on before you rent it.
#
# | time | where | memory |
# |---|---|---|
# | 40 min, one of them computing | any laptop, or Colab | 1 GB |
#
# This page builds nothing. It is an instrument, and you learn to read it.
# Wrong guesses are its best part: put a number in before every flip.

# %% [markdown]
# ## 7.1 By hand first
# A small model with a wide vocabulary, in float32. Four numbers about it
# are enough for most of its memory.

# %%
from rlkit.course import here

here("7.1")

# %%
# NBVAL_CHECK_OUTPUT
lab = MemoryLab("small")
weights = lab.picture.weights["policy"]["total"]
choices = lab.picture.choices
B, T, V = choices["batch"], choices["completion"], 32_768
print(f"weights {weights:,}")
print(f"B {B} completions, T {T} tokens each, V {V:,} vocabulary")

# %% [markdown]
# ### Your turn: four products
# How many bytes do these take? A float32 number has four. Allow yourself
# five minutes, and type products, not results.
#
# - `param`: the weights themselves
# - `grad`: one number for each weight
# - `optimizer`: AdamW keeps two numbers for each weight
# - `logits`: one number for each token of each completion and each entry
#   of the vocabulary

# %%
mine = {"param": None, "grad": None, "optimizer": None, "logits": None}
# SOLUTION
mine = {
    "param": weights * 4,
    "grad": weights * 4,
    "optimizer": weights * 8,
    "logits": B * T * V * 4,
}
# END SOLUTION
print(by_hand(lab.picture, mine))

# %% [markdown]
# Weights and optimiser agree with the plan. The other two are held more
# than once, if only for a moment; the last column says how often.
#
# - *Gradients*: the embedding and the output head are one weight here. Each
#   use of it brings a gradient as large as itself, and then their sum.
# - *Logits*: a loss in plain autograd keeps the log-softmax, and for the
#   entropy the probabilities and a product of the two.
#
# Prompts have no part in it. `rlkit` projects the tokens of completions
# alone.

# %%
# NBVAL_CHECK_OUTPUT
held = max(lab.picture.series["logits"])
times = held / (B * T * V * 4)
print(f"the logits are held {times:.1f} times")

# %% [markdown]
# ## 7.2 The lab
# The next cell shows it. One training step runs from left to right,
# always the same five phases at the same places:
#
# - *generate*: completions are sampled, with a cache of keys and values;
# - *score*: rewards, and log-probs of other models if there are any;
# - *forward*, *backward*: one pass over the batch;
# - *step*: the optimiser moves the weights.
#
# A colour is a category, its number stands in the table below. The dot is
# the peak: whoever has less memory than that has no run. Under the chart
# stands the operation that caused it, with its module and its line.
#
# Flip a switch. What was shown before stays as a dashed outline on the
# same axis. **Planned** bytes come from rlkit's real step, run on tensors
# without contents, so any model and any number of cards will do.
# **Measured** bytes come from a model that trains while you look.

# %%
from rlkit.course import here

here("7.2")

# %%
lab = MemoryLab("qwen", card="t4")
lab

# %% [markdown]
# Qwen3-0.6B with GRPO, two completions of a thousand tokens, everything in
# bfloat16. Look at the needle between *forward* and *backward*. What is
# it, and for how long is it there?
#
# ### First flip: a chunked head
# It never holds all logits, only a tile of them at a time. The table says
# what the logits take now. Your guess for the new peak, in GiB?

# %%
guess = None  # a number of GiB
# SOLUTION
guess = 8.0
# END SOLUTION

# %%
lab.flip(head="chunked", guess=guess)

# %% [markdown]
# The peak has moved: not all of the needle is gone, since the tile and the
# gradient of the output weights remain. Now something else is the largest.
#
# ### Second flip: LoRA
# The weights no longer train. Small matrices beside them do. Which two
# categories go, and what will the peak be?

# %%
guess = None  # a number of GiB
# SOLUTION
guess = 5.5
# END SOLUTION

# %%
lab.flip(lora=16, guess=guess)

# %% [markdown]
# ### Third flip: checkpointing
# Activations are what the backward pass needs of the forward pass. With
# checkpointing each layer keeps only its input, and computes the rest a
# second time when its turn comes. There are 28 layers.

# %%
guess = None  # a number of GiB
# SOLUTION
guess = 2.0
# END SOLUTION

# %%
lab.flip(checkpointing=True, guess=guess)

# %% [markdown]
# ### The whole way
# The same three switches in one picture, each bar a peak. None of them
# changed the algorithm: same loss, same rewards, same samples. They cost
# time: checkpointing about a third of a step, the chunked head one more
# product with the output weights.

# %%
way = lab.trail
lab.bars()

# %%
peaks = [picture.peak / 2**30 for picture in way]
print(" -> ".join(f"{peak:.1f}" for peak in peaks), "GiB")

# %% tags=["solution"]
assert len(peaks) == 4 and peaks == sorted(peaks, reverse=True)
assert peaks[0] > 10 and peaks[-1] < 2

# %% [markdown]
# What is left at the end is nearly the weights alone. Does the order of
# the flips matter? Press *All back* in the lab and begin with
# checkpointing: the needle then stands on flat ground, and the chunked
# head is worth more than it seemed.
#
# ## 7.3 Does it fit?
# A card keeps about a GiB for itself: the CUDA context, workspaces,
# fragments. The lab counts with what remains.

# %%
from rlkit.course import here

here("7.3")

# %% [markdown]
# With nothing switched on, what is the largest batch that fits a T4? And
# an H100?

# %%
guess = None  # 2, 4, 8, 16 or 32
# SOLUTION
guess = 2
# END SOLUTION

# %%
fit = MemoryLab("qwen")
for batch in (2, 4, 8, 16, 32):
    fit.flip(batch=batch)
    peak = fit.picture.peak
    marks = [
        f"{card}: {'fits' if peak <= card_bytes(card) else 'no':4}"
        for card in ("t4", "h100", "b200")
    ]
    print(f"batch {batch:2}  {peak / 2**30:6.1f} GiB  ", "  ".join(marks))
print("your guess for the T4:", guess)

# %% [markdown]
# Weights and optimiser stay as they are; logits and activations grow with
# the batch. So memory that you free comes back as batch.
#
# ### The precision that you see is not always the one you want
# Everything was in bfloat16 so far, also what AdamW remembers. It has
# eight bits for a number: an update below a 256th of a weight is lost. So
# `rlkit` trains float32 weights and computes in bfloat16. What does that
# cost here?

# %%
guess = None  # a number of GiB
# SOLUTION
guess = 16
# END SOLUTION

# %%
fit.begin("qwen")
fit.hold_against("t4")
fit.flip(dtype="bf16", guess=guess)

# %% [markdown]
# The copies in half precision are new: autocast makes one of each weight
# and keeps it until the backward pass has used it.
#
# ## 7.4 Four models or three
# PPO holds a policy, a value model, a reference and a reward model. RLOO
# needs no value model. Its authors report half to two thirds less memory.
# Here are their sizes: Pythia-1B, summaries of 53 tokens.
#
# Which share of PPO's peak will RLOO need?

# %%
from rlkit.course import here

here("7.4")

# %%
guess = None  # a number of GiB
# SOLUTION
guess = 25
# END SOLUTION

# %%
models = MemoryLab("pythia", card="a100-40")
ppo = models.picture
models.flip(algorithm="rloo", guess=guess)

# %%
rloo = models.picture
saved = 1 - rloo.peak / ppo.peak
print(f"PPO {ppo.peak / 2**30:.1f} GiB, RLOO {rloo.peak / 2**30:.1f} GiB")
print(f"RLOO needs {saved:.0%} less")

# %% tags=["solution"]
assert 0.2 < saved < 0.5

# %% [markdown]
# Less than reported, in this setting. PPO trains two models and so keeps
# two sets of gradients and of AdamW's numbers; that is the gap. A frozen
# model is cheap beside one that trains. With LoRA and a rule in the place
# of the reward model the gap shrinks again: try it in the lab.
#
# ## 7.5 Planned and measured
# Is a plan true? The small model trains now, in this kernel, under a
# meter that counts every allocation. Same switches, both sources, one
# axis: the dashed outline is the plan.

# %%
from rlkit.course import here

here("7.5")

# %%
both = MemoryLab("small")
plan_ = both.picture
both.measure(2)

# %%
real = both.picture
off = abs(real.peak - plan_.peak) / real.peak
print(f"planned  {plan_.peak / 2**20:.1f} MiB")
print(f"measured {real.peak / 2**20:.1f} MiB, {real.where}")
print(f"apart by {off:.2%}")
assert off < 0.03

# %% [markdown]
# Once more, with a head that makes its gradients in the forward pass.

# %%
both.begin("small").flip(head="fused")
plan_ = both.picture
both.measure(2)

# %%
off = abs(both.picture.peak - plan_.peak) / plan_.peak
print(f"apart by {off:.2%}")
assert off < 0.03

# %% [markdown]
# In the lab of section 7.2 choose **Measured, live** and flip switches
# while it trains: the head changes at the next step of the same run,
# other switches begin another. The line above the chart also says how long
# a step takes. That is the price that the bytes do not show.

# %% [markdown]
# ## 7.6 What others claim, and what the numbers leave out
# `rlkit claims` plans each claim about memory in its authors' own setting,
# and keeps what it found in a file.

# %%
from rlkit.course import here

here("7.6")

# %%
there = data_path(claims.FILE).exists()
for claim, finding in claims.load() if there else ():
    print(f"{finding.verdict:15} {claim.says}")

# %% [markdown]
# A plan and a meter count tensors. A card also holds:
#
# - the CUDA context and libraries, about half a GiB, before you begin;
# - workspaces of matrix products;
# - what the allocator rounds up, and holes between tensors that nothing
#   fits into. Long runs with changing lengths have more of them.
#
# The reserve of one GiB stands for these. If a plan says that a run fits
# by a hair, it may not. And a plan takes the worst case: every completion
# runs to its full length.

# %% [markdown]
# ## Where it lives
#
# | what you used | file |
# |---|---|
# | the lab | `rlkit/widgets/memory.py` |
# | its switches and where they begin | `rlkit/memory/lab.py` |
# | plans under fake tensors | `rlkit/memory/planner.py`, `step.py` |
# | the meter | `rlkit/memory/meter.py` |
# | cards and their reserve | `rlkit/memory/cards.py` |
# | plans that ship | `rlkit/memory/grids.py`, `data/plans` |
#
# From a terminal, for any model of the hub:
# `rlkit plan --model Qwen3-4B --lora 16 --head fused --fits t4`
#
# ## What this page showed
# The largest thing in a step is not always the weights: with a wide
# vocabulary and long answers it is logits, then activations. Each switch
# moves its own category and no other. None of this holds for the adder of
# the other pages, whose fifteen tokens make no logits to speak of: look at
# the shape before you reach for a switch.
#
# Page 08 builds the chunked head.
