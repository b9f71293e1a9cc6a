# %% [markdown]
# # 01 Policy gradient: from one number to a direction
#
# **After this page you can** turn a reward into a gradient, write the
# training step called REINFORCE, and say what a baseline is for.
#
# | time | where | memory |
# |---|---|---|
# | 40 min, 40 s of it computing | any laptop, or Colab | 1 GB |
#
# On page 00 a model heard one number for each answer, and learned to add.
# The number was no function of the weights, so nothing could be
# differentiated. This page finds the direction all the same, and builds
# every part of that training: drawing, masks, log-probs, the loss.
#
# Run each cell with Shift+Enter, from the top. The folded cell below is for
# Google Colab; elsewhere it does nothing.

# %% [markdown]
# ## 1.1 Three answers, by hand

# %%
from rlkit.course import here

here("1.1")

# %% [markdown]
# A model that is asked `27+58=` knows only three answers. Three logits are
# all its weights. The first answer is right and is paid `1`; the others get
# nothing.

# %%
# NBVAL_CHECK_OUTPUT
answers = ["85", "86", "58"]
rewards = torch.tensor([1.0, 0.0, 0.0])
z = torch.tensor([1.0, 2.0, 0.0], requires_grad=True)
p = z.softmax(0)
for text, share, reward in zip(answers, p.tolist(), rewards.tolist()):
    print(f"{text}  p = {share:.3f}  reward {reward:.0f}")

# %% [markdown]
# What we want is a large *expected* reward: each answer's reward, weighted
# by how often the model gives that answer.
#
#     J = sum over answers a of  p(a) r(a)
#
# The reward is a plain number, but `p(a)` is a function of the weights. So
# `J` has a gradient.

# %%
# NBVAL_CHECK_OUTPUT
J = (p * rewards).sum()
(exact,) = torch.autograd.grad(J, z)
print(f"J = {J:.3f}, gradient", [f"{g:.3f}" for g in exact])

# %% [markdown]
# The right answer's logit should rise and the two others fall, the likelier
# one more. That is the direction, and we could stop here, if models had
# three answers. The adder has thousands, a language model more than there
# are atoms. Nobody can take that sum.
#
# ### A sum that can be sampled
# The derivative of `log p` is the derivative of `p`, divided by `p`. Hence
#
#     gradient of J = sum over a of  p(a) r(a) * gradient of log p(a)
#
# and a sum weighted by `p(a)` is an *average over answers that the model
# draws*. Draw one, take its reward times the gradient of its log-prob: on
# average that is the gradient of `J`. Four lines:

# %%
noise = torch.Generator().manual_seed(0)
drawn = torch.multinomial(p.detach(), 4000, True, generator=noise)  # [n]
scores = F.one_hot(drawn, 3) - p.detach()  # [n, 3], gradients of log p
estimates = rewards[drawn][:, None] * scores  # [n, 3]

# %% [markdown]
# (`scores` uses what page 00 ended on: the gradient of `log_softmax` is 1
# at the drawn place, minus the probabilities.)

# %%
for n in (1, 10, 100, 4000):
    print(f"{n:5} drawn", [f"{g:6.3f}" for g in estimates[:n].mean(0)])
print("      exact", [f"{g:6.3f}" for g in exact])
assert torch.allclose(estimates.mean(0), exact, atol=0.02)

# %% [markdown]
# No reward was differentiated, and no answer was tried that the model did
# not draw. This is REINFORCE (Williams 1992).
#
# ### Add four to every reward
# A teacher who is kinder pays `5` for the right answer and `4` for a wrong
# one. The order is the same. How many times as long is the *exact* gradient
# now?

# %%
guess = None  # a number: 1 is as long as before
# SOLUTION
guess = 1
# END SOLUTION

# %%
# NBVAL_CHECK_OUTPUT
(kind,) = torch.autograd.grad((z.softmax(0) * (rewards + 4)).sum(), z)
print(f"{kind.norm() / exact.norm():.3f} times as long")
print([f"{g:.3f}" for g in kind])

# %% [markdown]
# The probabilities always sum to 1, so a constant adds itself to `J` and
# changes nothing about its slope. Put in another way: over the model's own
# answers, the gradient of `log p` averages to zero.
#
# That is the exact gradient. Training has a handful of draws. Move the
# sliders: each dot is what a step would do after drawing a few answers, the
# ring is where it should go.

# %%
ShiftExplorer(rewards.tolist(), z.tolist())

# %% [markdown]
# The centre of the cloud stays on the ring whatever you add. Its width does
# not. With `4` added, a step mostly says "more of whatever I just drew".
#
# A **baseline** takes the constant away again: subtract from each reward
# what was to be expected anyway, for instance the mean reward of the batch.
# As it does not depend on the answer that it is subtracted from, the
# average does not move. (The mean of a batch does depend on it, a little.
# Page 02 is about that little.)
#
# ## 1.2 Draw answers from a real model

# %%
from rlkit.course import here

here("1.2")

# %% [markdown]
# `Student` holds the built-in adder and the task of page 00. Its model reads
# token ids and returns logits: scores of what comes next, at every place.
# An answer is drawn one token after the other, each from the softmax of the
# last place's logits.

# %%
student = Student()
tokenizer, model = student.tokenizer, student.model
prompt = tokenizer("27+58=", return_tensors="pt").input_ids  # [1, P]


@torch.no_grad()
def draw(ids, length, noise):
    """ids [B, P] -> [B, P + length]"""
    for _ in range(length):
        p = model(ids).logits[:, -1].softmax(-1)  # [B, V]
        token = torch.multinomial(p, 1, generator=noise)
        ids = torch.cat([ids, token], 1)
    return ids


# %%
noise = torch.Generator().manual_seed(1)
B, P = 200, prompt.shape[1]
ids = draw(prompt.expand(B, -1), 4, noise)
completion_ids = ids[:, P:]  # [B, T]
for row in completion_ids[:8].tolist():
    print(" ".join(tokenizer.convert_ids_to_tokens(row)))

# %% [markdown]
# The loop knows no end: it draws on after `<eos>`, the token by which the
# model says that it is done. What comes after it is nobody's choice worth
# learning from. A **mask** says which tokens count.
#
# (And the model mostly forgets the carry. It learned from careless
# examples.)
#
# ## Exercise 1.1  Which tokens count?
# *8 minutes, two dots of three.* A completion goes up to its first end, and
# that end belongs to it. Return the mask, and for each row whether it ended
# at all. No loop is needed: `cumsum` counts along a row.

# %% exercise="masks"
@check.masks
def eos_mask(completion_ids, eos_ids):
    """completion_ids [B, T], eos_ids [E] -> mask [B, T], finished [B]"""
    # SOLUTION
    is_eos = torch.isin(completion_ids, eos_ids)
    ended_before = is_eos.cumsum(1) - is_eos.long()
    return ended_before == 0, is_eos.any(1)
    # END SOLUTION


# %%
eos = torch.tensor([tokenizer.eos_token_id])
mask, finished = eos_mask(completion_ids, eos)
texts = [
    tokenizer.decode(row[keep], skip_special_tokens=True)
    for row, keep in zip(completion_ids, mask)
]
print(" ".join(texts[:12]))

# %% [markdown]
# ## 1.3 The log-prob of what was drawn

# %%
from rlkit.course import here

here("1.3")

# %% [markdown]
# The probability of an answer is the product of its tokens' probabilities,
# so its log-prob is their sum. The logits at place `t` are scores of the
# token at place `t + 1`: hence the slice, one to the left.

# %%
def token_logps(logits, completion_ids):
    """logits [B, T, V], completion_ids [B, T] -> [B, T]"""
    every = logits.log_softmax(-1)
    return every.gather(-1, completion_ids[..., None]).squeeze(-1)


def score(model, ids, P):
    """The log-prob of each token after the first P."""
    return token_logps(model(ids).logits[:, P - 1 : -1], ids[:, P:])


logp = score(model, ids, P)  # [B, T]
p_right = (logp[texts.index("85")] * mask[texts.index("85")]).sum().exp()
print(f"the model writes 85 with probability {p_right:.3f}")

# %% [markdown]
# So how many of the 200 answers above should be `85`?

# %%
guess = None  # a number of answers
# SOLUTION
guess = round(200 * p_right.item())
# END SOLUTION

# %%
count = texts.count("85")
print(f"counted {count}, your guess {guess}")
print(f"expected {200 * p_right:.0f}, give or take", end=" ")
give = (200 * p_right * (1 - p_right)).sqrt().item()
print(f"{give:.0f}")
assert abs(count - 200 * p_right) < 4 * give

# %% [markdown]
# Drawing and scoring agree. That is worth a test in every kit: where the two
# disagree, training learns from answers that another model wrote.
#
# ## 1.4 REINFORCE
# All is there. Each answer has a weight, its reward; the loss is minus the
# weighted sum of log-probs, since optimisers go down. It is divided by the
# number of tokens that count.
#
#     loss = - sum_i w_i sum_t mask_it logp_it / number of tokens

# %%
from rlkit.course import here

here("1.4")

# %% [markdown]
# ## Exercise 1.2  The loss
# *6 minutes, one dot of three.* A row's weight counts for each of its
# tokens, and what stands after an answer's end for nothing.

# %% exercise="reinforce"
@check.reinforce
def reinforce(logp, weights, mask):
    """logp [B, T], weights [B], mask [B, T] -> a number to minimise"""
    # SOLUTION
    counted = torch.where(mask, weights[:, None] * logp, 0.0)
    return -counted.sum() / mask.sum()
    # END SOLUTION


# %% [markdown]
# ### Runs whose end is known
# Before any real run, three whose outcome we can foretell. `after` takes
# one step with chosen weights, and says what it did to the answers.

# %%
def after(weights):
    """One step of plain descent: the change of each answer's log-prob."""
    copy = Student().model
    before = score(copy, ids, P)  # [B, T]
    reinforce(before, weights, mask).backward()
    with torch.no_grad():
        for w in copy.parameters():
            if w.grad is not None:
                w -= 0.03 * w.grad
        change = score(copy, ids, P) - before
    return (change * mask).sum(1)  # [B]


# %%
right = torch.tensor([float(text == "85") for text in texts])
one = torch.zeros(B)
one[texts.index("85")] = 1.0
print(f"one good answer  85 moves by {after(one)[right == 1][0]:+.4f}")
print(f"all get nothing  most moved {after(0 * right).abs().max():.4f}")
less_mean = after(torch.full((B,), 5.0) - 5.0)
print(f"all get 5, less their mean   {less_mean.abs().max():.4f}")
all_five = after(torch.full((B,), 5.0))
print(f"all get 5        most moved {all_five.abs().max():.4f}")

# %% tags=["solution"]
assert after(one)[right == 1][0] > 0
assert less_mean.abs().max() == 0 and all_five.abs().max() > 0

# %% [markdown]
# One good answer rises. Where nothing is paid, nothing moves. Where all are
# paid alike, there is nothing to learn; with a baseline nothing moves, and
# without one the step moves all the same, towards whatever happened to be
# drawn.
#
# ## 1.5 Train it
# Now the real run, with your mask and loss. In each step `student.sample` draws one
# answer each to 256 sums. (It does what `draw` does; it also keeps what the
# model has read, so that nothing is read twice.)

# %%
from rlkit.course import here

here("1.5")

# %%
def make_step(student, shift=0.0, baseline=False):
    """A training step: k -> {"reward": mean reward}"""
    weights_of_model = list(student.model.parameters())
    adam = torch.optim.AdamW(weights_of_model, 1e-3, weight_decay=0.0)
    eos = torch.tensor([student.tokenizer.eos_token_id])

    def step(k):
        rollout = student.sample(k, prompts=256, num_generations=1)
        weights = rollout.rewards + shift
        if baseline:
            weights = weights - weights.mean()
        mask, _ = eos_mask(rollout.completion_ids, eos)
        logits = student.logits(rollout)
        logp = token_logps(logits, rollout.completion_ids)
        adam.zero_grad()
        reinforce(logp, weights, mask).backward()
        torch.nn.utils.clip_grad_norm_(weights_of_model, 1.0)
        adam.step()
        return {"reward": rollout.rewards.mean().item()}

    return step


# %% [markdown]
# Adam scales each weight's step, and `clip_grad_norm_` shortens a gradient
# that is too long. The reward that is printed is always the plain one,
# whatever is added for the training.

# %%
def new_run(guess, folder, **settings):
    student = Student()
    loop = Loop(
        make_step(student, **settings),
        student,
        steps=30,
        eval_rows=200,
        output_dir=folder,
    )
    task = student.task
    return LiveRun(loop, guess, task.eval[:5], score=task.reward)


# %% [markdown]
# What share of unseen sums will be right after 30 steps, with rewards of 0
# and 1 and no baseline?

# %%
guess = None  # a number between 0 and 1
# SOLUTION
guess = 0.8
# END SOLUTION

# %% [markdown]
# Press **Start**. On Colab the run begins with the cell.

# %%
run = new_run(guess, "runs/page01")
run

# %% [markdown]
# ## 1.6 Add four
# The run above has to be over, or stopped, before the next cell.

# %%
from rlkit.course import here

here("1.6")

# %%
history = run.result()
ladder.add("REINFORCE", run)
first, last = run.accuracy[0][1], run.accuracy[-1][1]
print(f"greedy accuracy {first:.2f} before, {last:.2f} after")

# %% tags=["solution"]
assert last > first + 0.1, (first, last)

# %%
ladder.figure()

# %% [markdown]
# No baseline, and it learned. A reward of `0` for a wrong answer has a
# weight of `0`: nothing is raised but right answers. (It may fall first:
# Adam's very first steps have full length, however unsure their direction.
# The library begins with shorter ones.)
#
# Now the kind teacher: `4` more for every answer, right or wrong. The exact
# gradient is the same. Where does the run end this time?

# %%
guess = None  # a number between 0 and 1
# SOLUTION
guess = 0.5
# END SOLUTION

# %%
alone = new_run(guess, "runs/page01_alone", shift=4.0)
alone

# %% [markdown]
# And the same rewards, less the mean of the batch:

# %%
folder = "runs/page01_helped"
helped = new_run(guess, folder, shift=4.0, baseline=True)
helped

# %% [markdown]
# ## 1.7 What the baseline did
# Both runs have to be over, or stopped.

# %%
from rlkit.course import here

here("1.7")

# %%
alone.result(), helped.result()
fig, (ax,) = paper(1, width=7.6, height=3.8)
for name, each, colour, style in (
    ("4 added, baseline", helped, "blue", "o-"),
    ("4 added, no baseline", alone, "orange", "s--"),
):
    steps, accuracy = zip(*each.accuracy)
    label = f"{name}: {accuracy[-1]:.2f}"
    ax.plot(steps, accuracy, style, color=COLOURS[colour], label=label)
if alone.guess is not None:
    ax.axhline(alone.guess, color="#222222", ls=":", label="your guess")
ax.set(xlabel="training step", ylabel="share of sums right", ylim=(0, 1))
ax.legend(frameon=False)
low, high = alone.accuracy[-1][1], helped.accuracy[-1][1]
words = f"{low:.2f} without a baseline, {high:.2f} with one"
titled(fig, f"4 added to every reward: {words}")

# %% tags=["solution"]
assert high > low + 0.5, (low, high)

# %% [markdown]
# The same model, the same sums, the same order of rewards. What it writes
# now, without the baseline and with it:

# %%
questions = [row["prompt"] for row in alone.questions]
bad = alone.trainer.complete(questions, greedy=False)
good = helped.trainer.complete(questions, greedy=False)
for prompt_text, b, g in zip(questions, bad, good):
    print(f"{prompt_text:>7}  without {b!r:12} with {g!r}")

# %% [markdown]
# Why is noise so harmful, if the average is right? Because the model draws
# from itself. A step that raises what was drawn makes it likelier to be
# drawn again, and raised again. What is rare dies out; soon every answer
# is the same, every reward too, and no gradient leads back.
#
# One pair of runs may be luck. `rlkit evidence 01` made three:

# %%
kept = evidence.load("01")
for name in ("before", "plain", "plus 4", "plus 4, baseline"):
    print(f"{name:17}", "  ".join(f"{x:.2f}" for x in sorted(kept[name])))

# %% [markdown]
# ## Where it lives
#
# | your cell | the library |
# |---|---|
# | `draw` | `generate`, in `rlkit/rollout.py`, and `Sampler`, in `rlkit/sampling.py` |
# | `eos_mask` | `eos_mask`, in `rlkit/rollout.py` |
# | `token_logps` | `token_logps`, in `rlkit/head.py`: the same numbers without storing all logits (page 08) |
# | `reinforce` | the objectives in `rlkit/objectives.py`, which also know ratios (page 03) |
# | `make_step` | the loop in `rlkit/trainer.py` |
#
# The same numbers, on a fresh batch:

# %%
student = Student(seed=7)
rollout = student.sample(0, prompts=16, num_generations=2)
eos = torch.tensor([student.tokenizer.eos_token_id])
mask, _ = eos_mask(rollout.completion_ids, eos)
logp = token_logps(student.logits(rollout), rollout.completion_ids)
theirs, _ = student.policy(rollout)
weights = rollout.rewards - rollout.rewards.mean()
loss, _ = GRPO(loss_type="dapo")(theirs, None, weights, rollout.mask)
mine, theirs = ((x * mask).detach() for x in (logp, theirs))
assert torch.equal(mask, rollout.mask)
assert torch.allclose(mine, theirs, atol=1e-5)
same = torch.autograd.grad(reinforce(logp, weights, mask), logp)[0]
print(f"log-probs differ by at most {(mine - theirs).abs().max():.0e}")

# %% [markdown]
# Their *losses* differ, since the library's is written with a ratio that is
# 1 at this place (page 03). Their gradients do not:

# %%
fresh = student.policy(rollout)[0].detach().requires_grad_()
loss, _ = GRPO(loss_type="dapo")(fresh, None, weights, mask)
(library,) = torch.autograd.grad(loss, fresh)
assert torch.allclose(same * mask, library, atol=1e-7)
print(f"gradients differ by at most {(same - library).abs().max():.0e}")

# %% [markdown]
# ## What this page showed, and where it ends
# A reward becomes a direction by way of the log-prob of what was drawn. The
# direction is right on average, and a constant added to all rewards leaves
# the average alone and ruins the step. A baseline removes the constant.
#
# The mean of a batch is a poor judge: it compares easy sums with hard ones.
# And plain `0` and `1` hid the problem, which other tasks will not do:
# rewards of `-1` and `1`, or scores from a model, come with any constant
# they like. Page 02 lets each sum be its own judge.

# %%
check.progress()
