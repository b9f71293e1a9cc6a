# %% [markdown]
# # 02 RLOO: judge each answer by its siblings
#
# **After this page you can** say why a baseline may not contain the sample
# it judges, write RLOO's advantage in three lines, and train a model with
# it.
#
# | time | where | memory |
# |---|---|---|
# | 35 min, 20 s of it computing | any laptop, or Colab | 1 GB |
#
# On the last page a constant added to every reward ruined the training, and
# a baseline mended it. Which baseline? Ask the model the same question four
# times: for each answer, the three others are one.
#
# Run each cell with Shift+Enter, from the top. The folded cell below is for
# Google Colab; elsewhere it does nothing.

# %% [markdown]
# ## 2.1 Four answers, by hand

# %%
from rlkit.course import here

here("2.1")

# %% [markdown]
# `27+58=` was answered four times: right, wrong, wrong, half right. (The
# task of this course pays no halves; others do.) The first answer is judged
# by the mean of the three others, and its *advantage* is what it has beyond
# that.

# %%
# NBVAL_CHECK_OUTPUT
rewards = torch.tensor([1.0, 0.0, 0.0, 0.5])
baseline_of_first = rewards[1:].mean()  # the others
advantage = rewards[0] - baseline_of_first
print(f"baseline {baseline_of_first:.3f}, advantage {advantage:.3f}")

# %% [markdown]
# The second answer has three siblings too. What is its baseline?

# %%
guess = None  # a number between 0 and 1
# SOLUTION
guess = 0.4
# END SOLUTION

# %% [markdown]
# Move the rewards. The thick stroke is an answer's own baseline, the arrow
# its advantage. Find a setting where every arrow has length zero, and one
# where a reward of `0.5` is a disappointment. Then add something to all.

# %%
BaselineExplorer(rewards.tolist(), guess=guess)

# %% [markdown]
# In equal groups no arrow is left: where siblings agree, nothing is learned.
# And what is added to every reward is in every baseline as well.
#
# Written for a group of `G` answers to one prompt:
#
#     A_i = r_i - (sum of the group's rewards - r_i) / (G - 1)
#
# ## Exercise 2.1  Leave one out
# *8 minutes, two dots of three.* Write it for any number of prompts at once,
# without a loop. A batch goes prompt by prompt: with `G = 4`, rows 0 to 3
# answer the first one. The sum of a group's rewards is enough: what has to
# be taken away from it?

# %% exercise="leave_one_out"
@check.leave_one_out
def leave_one_out(rewards, num_generations):
    """rewards [B], prompt by prompt -> advantages [B]"""
    # SOLUTION
    groups = rewards.view(-1, num_generations)  # [P, G]
    others = groups.sum(1, keepdim=True) - groups
    return (groups - others / (num_generations - 1)).flatten()
    # END SOLUTION


# %%
# NBVAL_CHECK_OUTPUT
print([f"{a:.3f}" for a in leave_one_out(rewards, 4)])

# %% [markdown]
# ## 2.2 Why not the plain mean?
# `rewards - rewards.mean()` is shorter. But a quarter of that mean is the
# answer's own reward. A baseline may be anything that does not depend on the
# answer it judges; this one does. What does it cost?

# %%
from rlkit.course import here

here("2.2")

# %% [markdown]
# We need a model, one sum, and many answers to it: so many that we know the
# true gradient, and can watch small groups estimate it.

# %%
student = Student()
shares = [student.sample(k, 1, 64).rewards.mean() for k in range(12)]
k = min(range(12), key=lambda k: abs(shares[k] - 0.4))
rollout = student.sample(k, prompts=1, num_generations=512)
prompt = student.tokenizer.decode(rollout.prompt_ids[0])
share = rollout.rewards.mean().item()
print(f"{prompt} answered 512 times, {share:.2f} of them right")

# %% [markdown]
# The gradient of an answer's log-prob has as many entries as the model has
# weights. To draw it, we keep one number of it: its part along the true
# gradient, which is how fast the answer's log-prob rises when all weights
# take a small step in that direction. Call it the answer's *slope*. One
# step ahead, one step back, and the difference is the slope of all 512.

# %%
def logp_of_answers():
    """The log-prob of each whole answer, [512]."""
    every = student.logits(rollout).log_softmax(-1)
    ids = rollout.completion_ids
    logp = every.gather(-1, ids[..., None]).squeeze(-1)  # [512, T]
    return (logp * rollout.mask).sum(1)


weights = list(student.model.parameters())
slope = slopes(weights, logp_of_answers, rollout.rewards)  # [512]
texts = student.texts(rollout)
for text in sorted(set(texts), key=texts.count, reverse=True)[:4]:
    i = texts.index(text)
    told = f"reward {rollout.rewards[i]:.0f}, slope {slope[i]:6.1f}"
    print(f"{text:>4} {texts.count(text):4} times, {told}")

# %% [markdown]
# Reward times slope, averaged over all answers, is the true gradient's
# length. An estimate has 16 answers only. It splits them into groups of
# `G`, and uses
#
#     mean over the 16 of  (r_i - baseline_i) slope_i
#
# With groups of two, and the plain mean of the group as the baseline: where
# will the estimates be centred? `1` is the true length.

# %%
guess = None  # a number: 1 is right
# SOLUTION
guess = 0.8
# END SOLUTION

# %%
pool = rollout.rewards, slope
explorer = BaselineExplorer(rewards.tolist(), pool=pool)
found = explorer.measured(2)
centres = {kind: found[kind]["centre"] for kind in ("loo", "mean")}
print(f"leave-one-out {centres['loo']:.2f}, plain mean", end=" ")
print(f"{centres['mean']:.2f}, your guess {guess}")

# %% tags=["solution"]
assert abs(centres["loo"] - 1) < 0.1 and abs(centres["mean"] - 0.5) < 0.05

# %% [markdown]
# Half of the way. In a group of two, the plain mean takes half of each
# reward away from itself. In a group of `G` it keeps `(G - 1) / G`:

# %%
# NBVAL_CHECK_OUTPUT
plain = rewards - rewards.mean()
print([f"{a:.3f}" for a in plain / leave_one_out(rewards, 4)])

# %% [markdown]
# Every advantage is shorter by the same factor. So the plain mean's cloud
# looks better than it is: narrow, around the wrong place. Divide each
# cloud's width by its centre, to see how much noise comes with one unit of
# signal:

# %%
explorer.static()

# %% tags=["solution"]
loo, mean = found["loo"], found["mean"]
assert abs(loo["ratio"] - mean["ratio"]) < 1e-6
assert mean["width"] < loo["width"]

# %% [markdown]
# They are equal. The plain mean is the leave-one-out estimate with a smaller
# learning rate, and an optimiser like Adam, which scales every step by
# itself, takes even that difference away. Then why leave one out? Because
# the estimate is then right for every `G`: you can change the number of
# siblings, or mix groups of different size, and the step keeps its length.
#
# The same explorer, on your answers. Three things to look for:
#
# - Raise `G`. What do more siblings buy, when the 16 answers stay 16?
# - Add `4` to every reward. Which of the three estimates survives?
# - Put the addition back to `0`, with `G = 2`. Now the estimate without any
#   baseline is the least noisy. Why? (What weight does it give to a wrong
#   answer?)

# %%
explorer

# %% [markdown]
# ## 2.3 The whole answer is one action

# %%
from rlkit.course import here

here("2.3")

# %% [markdown]
# In page 01's words, the model chose tokens. RLOO says that it chose an
# *answer*: one action, one log-prob (the sum over its tokens), one
# advantage. The loss counts answers, not tokens:
#
#     loss = - mean_i  A_i sum_t mask_it logp_it
#
# Page 01 divided by the number of tokens. By hand, two answers, one of two
# tokens and one of three:

# %%
# NBVAL_CHECK_OUTPUT
logp = torch.tensor([[-0.1, -0.4, 0.0], [-0.2, -0.3, -0.6]])
mask = torch.tensor([[True, True, False], [True, True, True]])
A = torch.tensor([1.0, -1.0])
whole = (logp * mask).sum(1)
print("log-probs of the answers", [f"{x:.1f}" for x in whole])
print(f"per answer {-(A * whole).mean():.3f}")
print(f"per token  {-(A[:, None] * logp * mask).sum() / mask.sum():.3f}")


# %% [markdown]
# ## Exercise 2.2  The loss of whole answers
# *6 minutes, one dot of three.* Sum over an answer's tokens first, then
# take the mean over answers. Which places must not be in the sum?

# %% exercise="sequence_loss"
@check.sequence_loss
def rloo_loss(logp, advantages, mask):
    """logp [B, T], advantages [B], mask [B, T] -> a number to minimise"""
    # SOLUTION
    whole = torch.where(mask, logp, 0.0).sum(1)  # [B]
    return -(advantages * whole).mean()
    # END SOLUTION


# %%
# NBVAL_CHECK_OUTPUT
print(f"yours, on the two answers {rloo_loss(logp, A, mask):.3f}")

# %% [markdown]
# Every token of an answer gets the same advantage: the right first digit of
# a wrong sum is blamed along with the wrong second one. Page 03 builds the
# opposite, a critic that has a value for every token. Page 10 trains both
# on one task, one action per answer against one per token, and compares
# what they need.
#
# As long as a batch is used once, that one weight for all tokens *is* the
# gradient of the expected reward, nothing is left out. The two views part
# where a batch is used again, because then ratios enter (page 03): RLOO's is
# of the whole answer.
#
# ### A leash, inside the reward
# Rewards that a model of preferences gives (page 10) can be cheated. RLOO
# then pays for staying near a *reference*, mostly the model before training:
#
#     r'_i = r_i - beta sum_t mask_it (logp_it - logp_ref_it)
#
# The penalty is part of the reward, not of the loss: it is a number, and it
# is judged by its siblings as well. The first answer has become likelier,
# the second is as it was:

# %%
# NBVAL_CHECK_OUTPUT
logp_ref = torch.tensor([[-0.5, -1.0, 0.0], [-0.2, -0.3, -0.6]])
moved = ((logp - logp_ref) * mask).sum(1)
print("moved by", [f"{x:.1f}" for x in moved])
paid = torch.tensor([1.0, 0.0]) - 0.1 * moved
print("paid", [f"{x:.2f}" for x in paid])
print("advantages", [f"{a:.2f}" for a in leave_one_out(paid, 2)])

# %% [markdown]
# The built-in task cannot be cheated, so `beta` is 0 below.
#
# ## 2.4 Train it

# %%
from rlkit.course import here

here("2.4")

# %% [markdown]
# First a run whose end is known: all siblings agree, so every advantage is
# exactly 0, and no weight moves.

# %%
# NBVAL_CHECK_OUTPUT
agreed = torch.tensor([0.0] * 4 + [1.0] * 4)
print(leave_one_out(agreed, 4).tolist())

# %% [markdown]
# Then the real step. 32 sums, each answered eight times: 256 answers a step,
# as on page 01, with a new judge. They are answers to fewer sums, which makes
# a step less representative, and so the learning rate is a third of page
# 01's. (With page 01's own it barely learns. Try it afterwards.)

# %%
def make_step(student):
    weights = list(student.model.parameters())
    adam = torch.optim.AdamW(weights, 3e-4, weight_decay=0.0)

    def step(k):
        rollout = student.sample(k, prompts=32, num_generations=8)
        advantages = leave_one_out(rollout.rewards, 8)
        every = student.logits(rollout).log_softmax(-1)
        ids = rollout.completion_ids
        logp = every.gather(-1, ids[..., None]).squeeze(-1)
        adam.zero_grad()
        rloo_loss(logp, advantages, rollout.mask).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        adam.step()
        return {"reward": rollout.rewards.mean().item()}

    return step


# %% [markdown]
# Where will it be after 30 steps?

# %%
guess = None  # a number between 0 and 1
# SOLUTION
guess = 0.9
# END SOLUTION

# %%
student = Student()
loop = Loop(
    make_step(student),
    student,
    steps=30,
    eval_rows=200,
    output_dir="runs/page02",
)
task = student.task
run = LiveRun(loop, guess, task.eval[:5], score=task.reward)
run

# %% [markdown]
# ## 2.5 On the ladder

# %%
from rlkit.course import here

here("2.5")

# %%
history = run.result()
ladder.add("RLOO", run)
first, last = run.accuracy[0][1], run.accuracy[-1][1]
print(f"greedy accuracy {first:.2f} before, {last:.2f} after")

# %% tags=["solution"]
assert last > first + 0.1, (first, last)

# %%
ladder.figure()

# %% [markdown]
# Do not read too much into which line lies higher: the learning rates
# differ, and on this task, with rewards of 0 and 1, every judge works, as
# page 01 found. The judge shows its worth where rewards carry a constant, or
# where some prompts are hard and others are not. `rlkit evidence 02`
# measured the estimates with three seeds, each on another sum:

# %%
kept = evidence.load("02")
for name, values in kept.items():
    print(f"{name:37}", "  ".join(f"{x:5.2f}" for x in values))

# %% [markdown]
# ### One action or many?
# RLOO calls the whole answer one action. Could each token be one? Its
# return is what is paid from there to the end; the reward comes at the end,
# so every token's return is the same number, and with the same baseline so
# is its advantage:
#
#     A_i * sum_t grad logp_it   =   sum_t A_i * grad logp_it
#
# On the same samples, how large is the cosine between the two gradients?
# (1: the same direction; 0: nothing in common.)

# %%
guess = None  # a number between -1 and 1
# SOLUTION
guess = 1.0
# END SOLUTION

# %%
kept = actions.load()  # a value for each of three seeds
for name in ("same baseline", "over own length", "critic"):
    three = kept[f"cosine, token, {name}"]
    print(f"token, {name:16}", "  ".join(f"{x:.3f}" for x in three))
print(f"your guess             {guess}")

# %% tags=["solution"]
assert min(kept["cosine, token, same baseline"]) > 0.999

# %% [markdown]
# It is one gradient under two names. They part where a token gets something
# of its own: a divisor, a baseline (a *critic*) or a ratio. Page 03 builds
# the last two and comes back to this comparison. `rlkit bench actions`
# measures it again.

# %% [markdown]
# ## Where it lives
#
# | your cell | the library |
# |---|---|
# | `leave_one_out` | `leave_one_out`, in `rlkit/advantages.py`: also with answers that nothing scored |
# | `r'` | `sequence_rewards`, in `rlkit/advantages.py` |
# | `rloo_loss` | `RLOO`, in `rlkit/objectives.py`: with the ratio of page 03 |
# | `make_step` | `judge`, in `rlkit/rloo.py`, thirty lines with its config; the rest is `rlkit/trainer.py` |
#
# The same numbers, on a fresh batch:

# %%
fresh = Student(seed=7)
rollout = fresh.sample(0, prompts=8, num_generations=4)
mine = leave_one_out(rollout.rewards, 4)
assert torch.equal(mine, advantages.leave_one_out(rollout.rewards, 4))
logp = fresh.policy(rollout)[0].detach().requires_grad_()
ours = rloo_loss(logp, mine, rollout.mask)
theirs, _ = RLOO()(logp, None, mine, rollout.mask)
(a,) = torch.autograd.grad(ours, logp)
(b,) = torch.autograd.grad(theirs, logp)
assert torch.allclose(a, b, atol=1e-7)
print(f"gradients differ by at most {(a - b).abs().max():.0e}")

# %% [markdown]
# And the whole trainer, which you can now read:

# %%
print(inspect.getsource(RLOOTrainer.judge))

# %% [markdown]
# ## What this page showed, and where it ends
# Siblings are a judge that costs no second model: their mean is right for
# this prompt, follows the model as it learns, and takes any constant away.
# Leaving the sample itself out keeps the estimate centred. The plain mean
# is the same estimate, shorter.
#
# It costs answers. Where a prompt is always or never solved, all siblings
# agree, and their answers teach nothing; page 04 counts such groups. And
# with one answer a prompt there are no siblings at all. Page 03 goes the
# other way: it trains a second model to be the judge.

# %%
check.progress()
