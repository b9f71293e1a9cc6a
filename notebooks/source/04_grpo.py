# %% [markdown]
# # 04 GRPO: siblings, a clip, and one division
#
# **After this page you can** write GRPO's advantage and train with it, say
# what its division by the standard deviation does to hard prompts, and
# tell why a run has less and less to learn from.
#
# | time | where | memory |
# |---|---|---|
# | 45 min, 30 s of it computing | any laptop | 1 GB |
#
# GRPO is two things you have and one that is new. Page 02 compared an
# answer with its siblings. Page 03 clipped the ratio of each token. New is
# a division. No critic: that is why so many use it.

# %% [markdown]
# ## 4.1 Three prompts by hand
# Three prompts, four answers each, right or wrong. The first is hard, the
# second is easy, the third is mastered.

# %%
from rlkit.course import here

here("4.1")

# %%
# NBVAL_CHECK_OUTPUT
rewards = torch.tensor([[0, 0, 0, 1.0], [1, 1, 0, 1], [1, 1, 1, 1]])
for name, group in zip(("hard", "easy", "mastered"), rewards):
    print(f"{name:9} mean {group.mean():.2f}  std {group.std():.2f}")

# %% [markdown]
# RLOO takes the mean of the *other* answers. GRPO takes the mean of the
# whole group, the answer included, and divides by the group's standard
# deviation:
#
# $$A_i = \frac{r_i - mean}{std + \epsilon}$$
#
# `std` is the usual one: squares summed, divided by `G - 1`, then the root.
# `epsilon` is small, `1e-4`.

# %%
# NBVAL_CHECK_OUTPUT
hard = rewards[0]
print("RLOO", [f"{a:.2f}" for a in leave_one_out(hard, 4)])
A = (hard - hard.mean()) / (hard.std() + 1e-4)
print("GRPO", [f"{a:.2f}" for a in A])

# %% [markdown]
# Page 02 found that a baseline which contains the sample itself shrinks
# the gradient, by `(G - 1) / G`. It does not turn it. Here the shrinking
# disappears behind the division.
#
# What are the four advantages of the mastered prompt?

# %%
guess = None  # four numbers
# SOLUTION
guess = [0, 0, 0, 0]
# END SOLUTION

# %%
# NBVAL_CHECK_OUTPUT
mastered = rewards[2]
for eps in (1e-4, 0.0):
    A = (mastered - mastered.mean()) / (mastered.std() + eps)
    print(f"eps {eps}: {A.tolist()}")

# %% [markdown]
# That is what `eps` is for. A group whose rewards are all equal is called
# **dead**: nothing in it is better than anything else. It teaches nothing,
# and without `eps` it would end the run.
#
# ## 4.2 The whole batch

# %%
from rlkit.course import here

here("4.2")

# %% [markdown]
# ## Exercise 4.1  Group-relative advantages
# *8 minutes, two dots of three.* Write it for any number of prompts at
# once, without a loop. Which dimension do mean and spread go along, and
# what does torch's `std` divide by?

# %% exercise="group_relative"
@check.group_relative
def group_relative(rewards, num_generations, eps=1e-4):
    """rewards [B], prompt by prompt -> advantages [B]"""
    # SOLUTION
    groups = rewards.view(-1, num_generations)
    mean = groups.mean(1, keepdim=True)
    std = groups.std(1, keepdim=True)
    return ((groups - mean) / (std + eps)).flatten()
    # END SOLUTION

# %% [markdown]
# The three prompts again. Compare the one right answer of the hard prompt
# with the three right answers of the easy one.

# %%
# NBVAL_CHECK_OUTPUT
for name, way in ("RLOO", leave_one_out), ("GRPO", group_relative):
    for row in way(rewards.flatten(), 4).view(3, 4):
        print(name, [f"{a + 0.0:5.2f}" for a in row])

# %% [markdown]
# ## 4.3 What the division does
# A rare right answer stands further out from its group than a common one,
# with or without the division. What changes is how loud each *prompt* is
# in the step. Add up the positive advantages of a group and divide by `G`:
# that is its push.

# %%
from rlkit.course import here

here("4.3")

# %%
# NBVAL_CHECK_OUTPUT
def push(advantages):
    return advantages.clamp(min=0).mean(1)


plain = rewards - rewards.mean(1, keepdim=True)
divided = group_relative(rewards.flatten(), 4).view(3, 4)
print("reward - mean", [f"{x:.2f}" for x in push(plain)])
print("over the std ", [f"{x:.2f}" for x in push(divided)])

# %% [markdown]
# Now `G = 8` and a prompt that the model gets right three times in a
# hundred. Beside one that it gets right every second time, its push is
# about a tenth. What does the division make of that tenth?

# %%
guess = None  # a number: how loud it is beside a prompt with p = 0.5
# SOLUTION
guess = 0.35
# END SOLUTION

# %%
explorer = WeightExplorer(p=0.03, G=8)
explorer

# %%
found = explorer.numbers()
print(f"reward - mean {found['share']:.2f}")
print(f"over the std  {found['share_divided']:.2f}, your guess {guess}")
print(f"dead groups   {found['dead']:.2f}")

# %%
from rlkit.widgets.weight import loudness

def beside(p, G):
    """push at p beside p = 0.5: (reward - mean, over the std)"""
    pairs = zip(loudness(p, G)[:2], loudness(0.5, G)[:2])
    return [one / middle for one, middle in pairs]


plain, divided = beside(0.03, 8)
heights = {
    "reward - mean\nG = 8": plain,
    "over the std\nG = 8": divided,
    "over the std\nG = 64": beside(0.03, 64)[1],
}
fig, (ax,) = paper(1, width=7)
ax.bar(list(heights), list(heights.values()), 0.5, color="#b34a00")
for i, height in enumerate(heights.values()):
    ax.text(i, height + 0.02, f"{height:.2f}", ha="center")
ax.axhline(1, ls="--", color="#222222", label="p = 0.5")
ax.set(ylabel="push at p = 0.03, beside p = 0.5", ylim=(0, 1.15))
ax.legend(frameon=False)
more = [divided / plain, heights["over the std\nG = 64"] / plain]
says = "Over the std it is {:.1f} times as loud, with 64 answers {:.1f}"
titled(fig, says.format(*more))

# %% [markdown]
# Louder, but most groups of such a prompt are dead, and what is dead stays
# dead whatever it is divided by. Move `G` up: with more answers the rare
# right one is met more often, and the division begins to count. Move `p`
# to `0.97`: the same happens to prompts that are nearly mastered.
#
# Some call the division a mistake (Dr. GRPO): it turns the step towards
# the hardest and the easiest prompts, and away from the mean reward that
# you set out to raise. Others keep it, because it keeps the size of a step
# the same whatever the units of the reward. Both are true.
#
# ## 4.4 Your own answers
# The adder's answers to 64 prompts, eight each.

# %%
from rlkit.course import here

here("4.4")

# %%
student = Student(seed=3)
rollout = student.sample(0, prompts=64, num_generations=8)
groups = rollout.rewards.view(-1, 8)
counts = groups.sum(1).long().bincount(minlength=9)
print("right of 8   ", list(range(9)))
print("prompts      ", counts.tolist())

# %% [markdown]
# How many of these groups are dead? You will want to know it at every step.
#
# ## Exercise 4.2  The share of dead groups
# *6 minutes, one dot of three.* Rewards need not be 0 and 1: a group of
# halves is as dead as a group of zeros.

# %% exercise="dead_share"
@check.dead_share
def dead_share(rewards, num_generations):
    """rewards [B], prompt by prompt -> the share of dead groups"""
    # SOLUTION
    groups = rewards.view(-1, num_generations)  # [P, G]
    return (groups == groups[:, :1]).all(1).float().mean()
    # END SOLUTION

# %%
by_counting = (counts[0] + counts[8]) / 64
print(f"dead groups   {dead_share(rollout.rewards, 8):.2f}")
print(f"by counting   {by_counting:.2f}")

# %% [markdown]
# ### Train
# The step is page 03's with another advantage. Every batch is used twice,
# so that the clip has something to do.

# %%
def logp_of(student, rollout):
    logp = student.logits(rollout).log_softmax(-1)  # [B, T, V]
    ids = rollout.completion_ids[..., None]
    logp = logp.gather(-1, ids).squeeze(-1)  # [B, T]
    return torch.where(rollout.mask, logp, 0.0)


def mean_over(mask, x):
    return (x * mask).sum() / mask.sum()

# %%
pupil = Student(seed=1)
weights = list(pupil.model.parameters())
optimizer = torch.optim.AdamW(weights, lr=3e-4, weight_decay=0.0)


def grpo_step(k):
    rollout = pupil.sample(k, prompts=32, num_generations=8)
    A = group_relative(rollout.rewards, 8)[:, None]  # [B, 1]
    with torch.no_grad():
        logp_old = logp_of(pupil, rollout)
    for _ in range(2):
        logp = logp_of(pupil, rollout)
        losses = clipped_loss(logp, logp_old, A.expand_as(logp))
        optimizer.zero_grad()
        mean_over(rollout.mask, losses).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    dead = float(dead_share(rollout.rewards, 8))
    return {"reward": rollout.rewards.mean().item(), "dead": dead}

# %% [markdown]
# Forty steps. Which share of the groups will be dead in the last ones?

# %%
guess = None  # a number between 0 and 1
# SOLUTION
guess = 0.5
# END SOLUTION

# %%
grpo = Loop(grpo_step, pupil, steps=40, output_dir="runs/page04")
run = LiveRun(grpo, None, pupil.task.eval[:5], pupil.task.reward)
run

# %% [markdown]
# ## 4.5 What is left to learn from

# %%
from rlkit.course import here

here("4.5")

# %%
history = run.result()
ladder.add("GRPO", run)
ladder.figure()

# %% tags=["solution"]
first, last = run.accuracy[0][1], run.accuracy[-1][1]
assert last > first + 0.2, (first, last)

# %%
steps, dead, reward = zip(
    *[(row["step"], row["dead"], row["reward"]) for row in history]
)
fig, (ax,) = paper(1, width=7)
ax.plot(steps, dead, "o-", ms=4, label="dead groups")
ax.plot(steps, reward, "--", label="mean reward")
ax.set(xlabel="step", ylabel="share", ylim=(0, 1))
ax.legend(frameon=False, loc="lower right")
early, late = (sum(part) / len(part) for part in (dead[:5], dead[-5:]))
says = f"Dead groups: {early:.2f} at first, {late:.2f} at the end"
titled(fig, says)

# %%
print(f"your guess: {guess}")
measured = evidence.load("04")
for name in ("dead early", "dead late", "accuracy"):
    print(f"{name:11}", [f"{x:.2f}" for x in measured[name]])

# %% tags=["solution"]
assert late > early + 0.15, (early, late)

# %% [markdown]
# The last three lines are three other seeds. The better the model gets,
# the more of its answers are drawn for nothing. The groups that still live
# are those of prompts it cannot do yet, and each step rests on fewer of
# them. What can be done: draw more prompts than needed and keep the live
# groups (DAPO's dynamic sampling), leave out what is mastered, or make the
# task harder.
#
# The library drops dead rows from the update and counts them; its health
# panel warns when they are many. That was the note you saw on page 00.
#
# ## 4.6 The map

# %%
from rlkit.course import here

here("4.6")

# %% [markdown]
# | yours | rlkit |
# |---|---|
# | `group_relative` | `advantages.group_relative` |
# | `clipped_loss` | `objectives.clipped_surrogate`, called by `GRPO` |
# | `mean_over(mask, ...)` | `loss_type="dapo"`: all tokens of the step |
# | `grpo_step` | `GRPOTrainer.judge`, `Trainer.update` |
#
# `rloo.py` and `grpo.py` differ in few lines. Here is the one method that
# makes each itself:

# %%
# NBVAL_CHECK_OUTPUT
for trainer in (RLOOTrainer, GRPOTrainer):
    print(inspect.getsource(trainer.judge))

# %% [markdown]
# RLOO's KL divergence is in the reward, GRPO's, if `beta` is not 0, in the
# loss. The numbers, on the answers of section 4.4, with the trained model
# as the new policy and the adder as the old one:

# %%
import rlkit.advantages

A = group_relative(rollout.rewards, 8)
library = rlkit.advantages.group_relative(rollout.rewards, 8)
print(f"advantages differ by at most {(A - library).abs().max():.0e}")
assert torch.allclose(A, library, atol=1e-5)

with torch.no_grad():
    logp_old = logp_of(student, rollout)
    logp = logp_of(pupil, rollout)
A2 = A[:, None].expand_as(logp)
loss = mean_over(rollout.mask, clipped_loss(logp, logp_old, A2))
grpo = objectives.GRPO(loss_type="dapo", epsilon=0.2)
theirs, sums = grpo(logp, logp_old, A, rollout.mask)
clipped, tokens = sums["clip_ratio"]
print(f"loss {loss:.6f} and {theirs:.6f}")
print(f"the clip silences {clipped / tokens:.2f} of the tokens")
assert torch.allclose(loss, theirs, atol=1e-6)

# %% [markdown]
# With `beta` the loss of each token gets `beta` times an estimate of the
# KL divergence. Page 05 builds the estimator, `k3`:

# %%
with torch.no_grad():
    logp_ref = logp_of(Student(), rollout)
x = logp_ref - logp
k3 = torch.expm1(x) - x
mine = loss + 0.1 * mean_over(rollout.mask, k3)
grpo = objectives.GRPO(beta=0.1, use_bias_correction_kl=False)
theirs, _ = grpo(logp, logp_old, A, rollout.mask, logp_ref=logp_ref)
print(f"with KL {mine:.6f} and {theirs:.6f}")
assert torch.allclose(mine, theirs, atol=1e-6)

# %% [markdown]
# ## What this page showed, and where it does not hold
# - GRPO is RLOO's siblings with PPO's clip on tokens, and a division. On
#   these sums it trains as well as RLOO; the ladder shows no gap that
#   would survive another seed.
# - The division makes hard and nearly mastered prompts louder. With eight
#   answers and a very hard prompt it matters little: nearly all groups are
#   dead. With many answers it matters more.
# - Rewards here are 0 or 1. With graded rewards a group whose answers
#   differ by a hair is blown up to full size, hair or not.
# - Dead groups come with success. A reward curve does not show them; count
#   them.
#
# The same from a terminal: `rlkit train grpo --preset tiny --task sums`

# %%
check.progress()
