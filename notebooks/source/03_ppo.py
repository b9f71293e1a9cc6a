# %% [markdown]
# # 03 PPO: use a batch twice, and judge single tokens
#
# **After this page you can** say why an old batch needs a ratio and a clip,
# read what a critic thinks of half an answer, write PPO's loss and GAE, and
# train a model with them.
#
# | time | where | memory |
# |---|---|---|
# | 80 min (part a 30), 60 s of it computing | any laptop | 1.2 GB |
#
# So far every batch of answers was used for one update and thrown away.
# And every token of an answer got the same blame. Part a mends the first,
# part b the second. Part a stands alone; page 04 needs nothing more.

# %% [markdown]
# # Part a: one batch, several updates
# ## 3.1 By hand
# Drawing answers is slow: a large model spends most of a training step on
# it. So why not take two updates from a batch?

# %%
from rlkit.course import here

here("3.1")

# %% [markdown]
# A policy wrote one token in three places, with the probabilities `p_old`.
# Then came one update. The same three tokens now have the probabilities
# `p_new`. The first two belong to good answers, the third to a bad one.

# %%
# NBVAL_CHECK_OUTPUT
p_old = torch.tensor([0.50, 0.40, 0.80])
p_new = torch.tensor([0.55, 0.80, 0.40])
A = torch.tensor([1.0, 1.0, -1.0])
ratio = p_new / p_old
print("ratio    ", [f"{x:.2f}" for x in ratio])
print("ratio * A", [f"{x:.2f}" for x in ratio * A])

# %% [markdown]
# The batch is the old policy's. What the new one draws twice as often
# should count twice. That is the ratio: a mean over old answers, each
# weighed by its ratio, is a mean over the new policy's answers.
#
# $$E_{old}[\tfrac{p_{new}}{p_{old}}\,A] = E_{new}[A]$$
#
# Check it where everything can be counted: a choice of three words, and
# what each is worth.

# %%
# NBVAL_CHECK_OUTPUT
old = torch.tensor([0.5, 0.3, 0.2])
new = torch.tensor([0.2, 0.3, 0.5])
worth = torch.tensor([1.0, 0.0, -1.0])
print(f"the new policy's mean    {(new * worth).sum():.2f}")
print(f"the old one's, unweighed {(old * worth).sum():.2f}")
print(f"the old one's, weighed   {(old * (new / old) * worth).sum():.2f}")

# %% [markdown]
# The loss is `-ratio * A`, with `ratio = exp(logp - logp_old)`. `logp_old`
# is a number that was noted before the first update; only `logp` has a
# gradient. At the first update the ratio is 1. Which gradient does `-ratio
# * A` have there, compared with REINFORCE's `-logp * A`?

# %%
guess = None  # "the same", "twice", or "none"
# SOLUTION
guess = "the same"
# END SOLUTION

# %%
# NBVAL_CHECK_OUTPUT
logp = p_old.log().requires_grad_()
logp_old = p_old.log()  # a number, no gradient
by_ratio = torch.autograd.grad((-(logp - logp_old).exp() * A).sum(), logp)
by_logp = torch.autograd.grad((-logp * A).sum(), logp)
print("by the ratio", by_ratio[0].tolist())
print("by logp     ", by_logp[0].tolist())
assert torch.allclose(by_ratio[0], by_logp[0])

# %% [markdown]
# The first update is the one you know. From the second on the ratio
# matters, and with it a danger: a mean of few answers with large weights
# is mostly noise. Look at the second token above. It went from `0.40` to
# `0.80` in one step. Nothing stops a third update from taking it further,
# on the word of the same single answer.
#
# ## 3.2 The clip
# PPO lets a token go a certain way, and then stops pulling. With `epsilon`
# `0.2`, that is where the ratio leaves `0.8 ... 1.2`:
#
# $$loss_t = -\min(\rho_t A_t,\ clip(\rho_t,\,1-\epsilon,\,1+\epsilon)\,A_t)$$
#
# where `rho` is the ratio of the token.
#
# Two gains, and the smaller one counts. Move the ratio first. Then make the
# advantage negative and move it again. Shaded is where the gradient is 0.

# %%
from rlkit.course import here

here("3.2")

# %%
ClipExplorer(ratio=1.5, advantage=1.0)

# %% [markdown]
# Look for these before you go on:
#
# - ratio `1.5`, A = `1`: the token became likelier, as it should. It has
#   gone far enough, and the gradient is 0.
# - ratio `1.5`, A = `-1`: the token became likelier, and should not have.
#   The clipped gain is the larger one, so `min` takes the other: the
#   gradient stays. **The clip ends the way out, never the way back.**
# - `epsilon_high` above `epsilon`: rare tokens may rise further. DAPO does
#   that.
# - `delta`: with A = `-1` and a very large ratio the loss is very large
#   too. This second bound ends it. Some later recipes use it.

# %% [markdown]
# ## Exercise 3.1  The clipped loss
# *8 minutes, two dots of three.* Write it for tokens, `[B, T]`. Optimisers
# minimise. Which of the two gains is taken where the advantage is negative?

# %% exercise="clip"
@check.clip
def clipped_loss(logp, logp_old, advantages, epsilon=0.2):
    """logp, logp_old, advantages [B, T] -> loss of each token [B, T]"""
    # SOLUTION
    ratio = (logp - logp_old).exp()
    near = ratio.clamp(1 - epsilon, 1 + epsilon)
    return -torch.min(ratio * advantages, near * advantages)
    # END SOLUTION

# %% [markdown]
# Your function on the three tokens from above. Before you run it: which of
# the three still has a gradient?

# %%
guess = None  # for example [True, False, True]
# SOLUTION
guess = [True, False, False]
# END SOLUTION

# %%
# NBVAL_CHECK_OUTPUT
logp = p_new.log()[None].requires_grad_()
loss = clipped_loss(logp, p_old.log()[None], A[None])
(gradient,) = torch.autograd.grad(loss.sum(), logp)
print("loss    ", [f"{x:.2f}" for x in loss[0]])
print("gradient", [f"{abs(x):.2f}" for x in gradient[0]])

# %% [markdown]
# The first may still rise. The second has risen far enough, the third has
# fallen far enough: both went the right way, and are not pulled further.
#
# ## 3.3 Eight updates from one batch
# Now the real model. The advantage is still RLOO's, page 02's
# `leave_one_out`; every token of an answer gets it. Only the number of
# updates changes: each batch of `256` answers is used eight times.

# %%
from rlkit.course import here

here("3.3")

# %%
def logp_of(student, rollout):
    logp = student.logits(rollout).log_softmax(-1)  # [B, T, V]
    ids = rollout.completion_ids[..., None]
    logp = logp.gather(-1, ids).squeeze(-1)  # [B, T]
    return torch.where(rollout.mask, logp, 0.0)


def mean_over(mask, x):
    return (x * mask).sum() / mask.sum()

# %%
def reuse(student, losses_of, updates=8):
    weights = list(student.model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=3e-4, weight_decay=0.0)

    def step(k):
        rollout = student.sample(k, prompts=32, num_generations=8)
        A = leave_one_out(rollout.rewards, 8)[:, None]  # [B, 1]
        with torch.no_grad():
            logp_old = logp_of(student, rollout)
        for _ in range(updates):
            logp = logp_of(student, rollout)
            losses = losses_of(logp, logp_old, A.expand_as(logp))
            optimizer.zero_grad()
            mean_over(rollout.mask, losses).backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
        ratio = (logp - logp_old).exp().max().item()
        reward = rollout.rewards.mean().item()
        return {"reward": reward, "largest ratio": ratio}

    return step

# %% [markdown]
# First without a clip, for eight batches. The base model gets about half
# of the held-out sums right. What will it be after these 64 updates?

# %%
guess = None  # a number between 0 and 1
# SOLUTION
guess = 0.8
# END SOLUTION

# %%
def free_loss(logp, logp_old, advantages):
    return -(logp - logp_old).exp() * advantages


learner = Student(seed=1)
free = Loop(reuse(learner, free_loss), learner, steps=8, eval_steps=4)
free_run = LiveRun(free, guess)
free_run

# %% [markdown]
# Press **Start** and wait for the end. Then the same again with your loss.

# %%
free_history = free_run.result()
learner = Student(seed=1)
clip = Loop(reuse(learner, clipped_loss), learner, steps=8, eval_steps=4)
clip_run = LiveRun(clip)
clip_run

# %%
clip_history = clip_run.result()
runs = {"clipped": clip_history, "not clipped": free_history}
ends = [run.accuracy[-1][1] for run in (clip_run, free_run)]
fig, (left, right) = paper(1, 1)
for (name, rows), style in zip(runs.items(), ("o-", "s--")):
    steps = [row["step"] for row in rows]
    left.plot(steps, [row["reward"] for row in rows], style, label=name)
    far = [row["largest ratio"] for row in rows]
    right.plot(steps, far, style, label=name)
left.set(xlabel="batch, eight updates each", ylabel="mean reward")
right.set(xlabel="batch, eight updates each", ylabel="largest ratio")
left.set_ylim(0, 1)
right.set_yscale("log")
right.set_yticks([1, 10, 100], ["1", "10", "100"])
left.legend(frameon=False)
says = "Used eight times: greedy accuracy {:.2f} clipped, {:.2f} not"
titled(fig, says.format(*ends))

# %% tags=["solution"]
assert ends[0] > ends[1] + 0.1, ends

# %% [markdown]
# One run is one run. Here is the same with three other seeds:

# %%
measured = evidence.load("03")
for name in ("clipped", "not clipped"):
    print(f"{name:12}", [f"{x:.2f}" for x in measured[name]])

# %% [markdown]
# Ratios leave `0.8 ... 1.2` with the clip, too: the clip takes the pull away
# from a token, but the pull on other tokens moves the shared weights, and
# the token with them. It is a brake and no wall.
#
# Was it worth it?

# %%
ladder.add("RLOO + clip, 8 updates", clip_run)
ladder.figure()

# %% [markdown]
# A step of this line holds eight updates, one of the others holds one.
# For this small model drawing is cheap, and little is gained. Where
# drawing takes most of the time, fewer batches are less time.
#
# **End of part a.** You have the ratio and the clip. Page 04 adds a
# standard deviation, and has GRPO.
#
# # Part b: a critic
# ## 3.4 What half an answer is worth
# RLOO says to every token of a wrong answer: you were bad. But `27+58=`
# answered with `84` has a right first digit. A **critic** is a second
# model that reads a text and predicts the reward. `V_t` is what it expects
# before token `t` is written.

# %%
from rlkit.course import here

here("3.4")

# %% [markdown]
# Say it expects `0.6` at the start, `0.7` once the `8` is there, and `0.1`
# after the `4`. The reward is 0. How did each token change what was
# expected? That is `delta`:
#
# $$\delta_t = r_t + \gamma V_{t+1} - V_t$$

# %%
# NBVAL_CHECK_OUTPUT
V = torch.tensor([0.6, 0.7, 0.1])  # before `8`, before `4`, before the end
V_next = torch.tensor([0.7, 0.1, 0.0])  # after the end nothing comes
r = torch.tensor([0.0, 0.0, 0.0])
delta = r + V_next - V
print("delta  ", [f"{x:.2f}" for x in delta])
print("r - V_t", [f"{x:.2f}" for x in r.sum() - V])

# %% [markdown]
# The `8` was good news, the `4` was bad news, and the end brought little
# that was new. `delta` trusts the critic's word on what comes next. The
# second line, what came in the end less what was expected, trusts only the
# reward.
#
# Now a real critic. It was trained on the adder's own answers, long before
# this page, until its word meant something: see `data/critic/README.md`.

# %%
student, critic = Student(seed=3), load_critic()
rollout = student.sample(0, prompts=64, num_generations=8)
with torch.no_grad():
    values = critic(rollout)  # [B, T]
B, T = values.shape
print(f"{B} answers of at most {T} tokens")
print(f"mean reward {rollout.rewards.mean():.2f}")

# %% [markdown]
# What will it say, on the mean, once a *wrong* first digit is there? It
# says about one half before.

# %%
guess = None  # a number between 0 and 1
# SOLUTION
guess = 0.2
# END SOLUTION

# %%
right_text = {row["prompt"]: row["answer"] for row in student.task.train}
prompts = student.tokenizer.batch_decode(
    rollout.prompt_ids, skip_special_tokens=True
)
answers = [right_text[prompt] + "=" for prompt in prompts]
texts = student.texts(rollout)
first = torch.tensor([t[:1] == a[:1] for t, a in zip(texts, answers)])
second = torch.tensor([t[:2] == a[:2] for t, a in zip(texts, answers)])
print(f"before the first digit   {values[:, 0].mean():.2f}")
print(f"after a right one        {values[first, 1].mean():.2f}")
print(f"after a wrong one        {values[~first, 1].mean():.2f}")
print(f"your guess               {guess}")

# %% tags=["solution"]
assert values[first, 1].mean() > values[~first, 1].mean() + 0.3

# %% [markdown]
# Nobody told it which digit is wrong. It saw answers and rewards, and had
# to learn to add in order to predict them.

# %%
measured = evidence.load("03")
for name in ("right", "wrong"):
    three = measured[f"value after a {name} digit"]
    print(f"after a {name} digit", [f"{x:.2f}" for x in three])

# %% [markdown]
# ## 3.5 GAE: between the critic's word and the reward
# `delta` believes the critic at once. `r - V_t` waits for the end. The
# generalised advantage lies between, with `lambda`:
#
# $$A_t = \delta_t + \gamma\lambda A_{t+1}$$
#
# With `lambda` 0 it is `delta`, with 1 it is all that came less `V_t`.
# `gamma` makes later rewards count for less; for texts it is 1.

# %%
from rlkit.course import here

here("3.5")

# %%
# NBVAL_CHECK_OUTPUT
for lam in (0.0, 0.95, 1.0):
    A2 = -0.1
    A1 = -0.6 + lam * A2
    A0 = 0.1 + lam * A1
    print(f"lambda {lam:.2f}", [f"{x:.2f}" for x in (A0, A1, A2)])

# %% [markdown]
# It is computed from the end: `A_t` needs `A_t+1`.
#
# ## Exercise 3.2  GAE
# *12 minutes, three dots of three.* Answers have different lengths. The
# padding after the end holds anything, so set `V` to 0 there first. Return
# the advantages and the returns, `A + V`, towards which the critic learns.

# %% exercise="gae"
@check.gae
def gae(rewards, values, mask, gamma=1.0, lam=0.95):
    """rewards, values, mask [B, T] -> advantages, returns [B, T]"""
    # SOLUTION
    values = torch.where(mask, values, 0.0)
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantages[:, t] = delta + gamma * lam * next_advantage
        next_value, next_advantage = values[:, t], advantages[:, t]
    return advantages, advantages + values
    # END SOLUTION

# %% [markdown]
# Real answers, the critic's values and GAE's advantages; `∎` ends an
# answer. The dots between the tokens are the values: a dot stands before
# the token that it has not seen yet. The dashed line is RLOO's number.
# Move `lambda` from 1 to 0 and watch where the blame goes. Then step to the
# next completion.

# %%
siblings = rollout.rewards - leave_one_out(rollout.rewards, 8)
falls = (values[:, :-1] - values[:, 1:]) * rollout.mask[:, 1:]
worst = falls.max(1).values.argsort(descending=True)
worst = worst[rollout.rewards[worst] == 0][:40:8].tolist()
good = [int(rollout.rewards.argmax())]
with torch.no_grad():
    entropy = student.policy(rollout)[1]
shown = strips(
    rollout, student.tokenizer, values, worst + good,
    baseline=siblings, entropy=entropy,
)
GAEExplorer(shown)

# %% [markdown]
# One completion is an anecdote. Here are all answers whose first digit is
# right and whose second is wrong.

# %%
picked = first & ~second & (rollout.mask.sum(1) == 3)
score = torch.zeros_like(values)
score[torch.arange(len(score)), rollout.mask.sum(1) - 1] = rollout.rewards
blame = {}
for lam in (0.0, 0.95):
    A, _ = gae(score, values, rollout.mask, lam=lam)
    blame[lam] = A[picked].mean(0)[:3].tolist()
rloo = leave_one_out(rollout.rewards, 8)[picked].mean().item()
before = values[picked].mean(0)[:3].tolist()
print(f"{int(picked.sum())} answers")

# %%
fig, (left, right) = paper(1, 1.4)
left.plot(range(3), before, "o-")
left.set(ylim=(0, 1), ylabel="mean value", xticks=range(3))
left.set_xticklabels(["at the\nprompt", "after\ndigit 1", "after\ndigit 2"])
for lam, shift, hatch in ((0.0, -0.2, ""), (0.95, 0.2, "//")):
    at, three = [t + shift for t in range(3)], blame[lam]
    label = f"GAE, lambda {lam:.2f}"
    right.bar(at, three, 0.38, hatch=hatch, ec="white", label=label)
    for x, a in zip(at, three):
        right.text(x, 0.03, f"{a:.2f}", ha="center", fontsize=9)
right.axhline(rloo, ls="--", color="#b34a00", label=f"RLOO {rloo:.2f}")
right.set(ylabel="mean advantage", xticks=range(3), ylim=(-0.7, 0.15))
right.set_xticklabels(["digit 1\n(right)", "digit 2\n(wrong)", "end"])
right.axhline(0, lw=0.8, color="#222222")
right.legend(frameon=False, loc="lower right", fontsize=9)
says = "The value falls at the wrong digit, {:.2f} to {:.2f}; RLOO blames"
titled(fig, (says + " every token alike").format(before[1], before[2]))

# %% tags=["solution"]
assert before[1] - before[2] > 0.2 and picked.sum() > 20
assert blame[0.0][1] < blame[0.0][0] - 0.2 and rloo < -0.2

# %% [markdown]
# With `lambda` 0 the blame falls where the mistake is. With `lambda` near
# 1 the right first digit gets nearly as much of it as from RLOO: that
# advantage waits for what came in the end. The price of a small `lambda`
# is that a wrong critic is believed.
#
# ## 3.6 Stay near: KL in the reward
# PPO for language models takes something from the reward of each token
# that has become likelier than it was for the *reference*, the model
# before training:
#
# $$r_t = -\beta\,(logp_t - logp^{ref}_t)$$
#
# The reward of the whole answer is added at its last token.

# %%
from rlkit.course import here

here("3.6")

# %% [markdown]
# ## Exercise 3.3  The rewards of tokens
# *8 minutes, two dots of three.* `kl` holds the differences of log-probs.
# Answers end at different places, and padding is not charged.

# %% exercise="token_rewards"
@check.token_rewards
def token_rewards(rewards, kl, mask, beta):
    """rewards [B], kl and mask [B, T] -> [B, T]"""
    # SOLUTION
    out = torch.where(mask, -beta * kl, 0.0)
    last = mask.sum(1) - 1  # the last valid token
    out[torch.arange(len(out)), last] += rewards
    return out
    # END SOLUTION

# %%
# NBVAL_CHECK_OUTPUT
kl = torch.tensor([[0.5, -0.1, 9.0], [0.2, 0.0, 0.4]])
mask = torch.tensor([[True, True, False], [True, True, True]])
found = token_rewards(torch.tensor([1.0, 0.0]), kl, mask, beta=0.1)
print([[f"{x:.2f}" for x in row] for row in found + 0.0])

# %% [markdown]
# The `9.0` is padding and counts nothing. Why in the reward and not in the
# loss? There it is not differentiated; it is a price, and GAE tells each
# token what it cost. Page 04 does it the other way.
#
# ## 3.7 PPO
# All parts are there: draw, critic, KL, GAE, and the clipped loss for two
# passes over the batch. The critic is new here: a copy of the adder with
# one number a token on top, at first always 0. It learns beside the policy,
# by half the squared error to the returns.

# %%
from rlkit.course import here

here("3.7")

# %%
pupil, reference = Student(seed=1), Student()
pupil_critic = ValueModel(load_model("adder"))
weights = [*pupil.model.parameters(), *pupil_critic.parameters()]
optimizer = torch.optim.AdamW(weights, lr=3e-4, weight_decay=0.0)


def judged(rollout, student, critic, beta=0.05):
    mask = rollout.mask
    with torch.no_grad():
        logp_old = logp_of(student, rollout)
        kl = logp_old - logp_of(reference, rollout)
        values = critic(rollout)
    rewards = token_rewards(rollout.rewards, kl, mask, beta)
    A, returns = gae(rewards, values, mask)
    spread = A[mask].std()
    A = torch.where(mask, (A - A[mask].mean()) / spread, 0.0)
    return rollout.replace(
        logp_old=logp_old, values=values, advantages=A, returns=returns
    )

# %% [markdown]
# The advantages of the batch get mean 0 and variance 1 before they are
# used. Nothing about single tokens changes by that: the whole batch is
# shifted and scaled by two numbers.

# %%
def ppo_loss(student, critic, batch):
    logp = logp_of(student, batch)
    losses = clipped_loss(logp, batch.logp_old, batch.advantages)
    error = 0.5 * (critic(batch) - batch.returns) ** 2
    return mean_over(batch.mask, losses), mean_over(batch.mask, error)


def ppo_step(k):
    rollout = pupil.sample(k, prompts=256, num_generations=1)
    rollout = judged(rollout, pupil, pupil_critic)
    for part in 2 * (slice(0, 128), slice(128, 256)):
        loss, error = ppo_loss(pupil, pupil_critic, rollout.rows(part))
        optimizer.zero_grad()
        (loss + 0.1 * error).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    good, after = rollout.rewards == 1, rollout.values[:, 1]
    apart = after[good].mean() - after[~good].mean()
    return {"reward": rollout.rewards.mean().item(), "apart": apart.item()}

# %% [markdown]
# One answer a prompt is enough: the critic takes the siblings' place. How
# far will it come in 12 such steps?

# %%
guess = None  # a number between 0 and 1
# SOLUTION
guess = 0.8
# END SOLUTION

# %%
ppo = Loop(ppo_step, pupil, 12, eval_steps=3, output_dir="runs/page03")
run = LiveRun(ppo, guess, pupil.task.eval[:5], pupil.task.reward)
run

# %% [markdown]
# ## 3.8 What it came to

# %%
from rlkit.course import here

here("3.8")

# %%
history = run.result()
ladder.add("PPO", run)
ladder.figure()

# %% tags=["solution"]
first, last = run.accuracy[0][1], run.accuracy[-1][1]
assert last > first + 0.2, (first, last)

# %% [markdown]
# Has your critic learned to see a wrong digit? Take the value after the
# first digit, the mean over right answers less the mean over wrong ones.

# %%
after, good = values[:, 1], rollout.rewards == 1
apart = after[good].mean() - after[~good].mean()
print(f"the shipped critic tells them apart by {apart:.2f}")
print(f"yours, in its last step, by {history[-1]['apart']:.2f}")

# %% [markdown]
# **One action or many, on equal terms.** Page 02 found that an answer
# judged as a whole and an answer judged token by token give one gradient,
# as long as reward and baseline are the same. Now tokens have things of
# their own: a critic, a KL term that charges them for what follows, and a
# ratio. Same model, samples and rewards, task `steps`, three seeds. Left:
# how noisy the gradient of a batch is, beside that of whole answers. Right:
# the share of tokens that the clip silences when a batch is used four
# times.

# %%
kept = actions.load()
actions.picture(kept)

# %%
for name in ("ratio of completions", "ratio of tokens"):
    cut, ends = (kept[f"{x}, {name}"] for x in ("silenced", "accuracy"))
    told = "  ".join(f"{a:.1%} -> {b:.2f}" for a, b in zip(cut, ends))
    print(f"{name:22} silenced -> accuracy   {told}")

# %% tags=["solution"]
whole, own = (
    kept[f"variance, {n}"] for n in ("completion", "token, critic")
)
assert all(c < w for c, w in zip(own, whole))

# %% [markdown]
# A critic that has learned takes some noise away. What `lambda` below 1
# saves beyond it is not seen here. KL charged to what follows is as good as
# KL on the whole answer: it is small. The product of an answer's ratios
# leaves `0.8 ... 1.2` long before any one of them does, so the clip cuts
# whole answers much more often; after ten rollouts both have learned the
# same.
#
# Which tokens has the training moved? The answers from above again, now
# also coloured by ratio, the new policy over the old, and by KL.

# %%
with torch.no_grad():
    logp_before = logp_of(student, rollout)
    moved = logp_of(pupil, rollout) - logp_before
    entropy = student.policy(rollout)[1]
wrong = (rollout.rewards == 0).nonzero().flatten()[:40:8].tolist()
right = (rollout.rewards == 1).nonzero().flatten()[:24:8].tolist()
GAEExplorer(
    strips(
        rollout, student.tokenizer, values, wrong + right,
        ratio=moved.exp(), entropy=entropy, kl=moved,
    ),
    colour="ratio",
)

# %% [markdown]
# ## The map
#
# | yours | rlkit |
# |---|---|
# | `clipped_loss` | `objectives.clipped_surrogate`, called by `PPO` |
# | `mean_over(mask, ...)` | `PPO.denominator`: all tokens of the step |
# | `token_rewards` | `advantages.token_rewards` |
# | `gae` | `advantages.gae` |
# | the two numbers for the batch | `advantages.whiten` |
# | half the squared error | `objectives.value_loss` |
# | `judged`, `ppo_step` | `PPOTrainer.judge`, `PPOTrainer.loss` |
#
# The library's trainer, holding your models, judges the same answers:

# %%
trainer = PPOTrainer(
    model=pupil.model,
    processing_class=pupil.tokenizer,
    reward_funcs=pupil.task.reward,
    args=PPOConfig.preset("tiny", beta=0.05, disable_tqdm=True),
    train_dataset=pupil.task.train,
)
trainer.reference, trainer.value_model = reference.policy, critic
theirs = rollout.replace()
trainer.judge(theirs)
mine = judged(rollout, pupil, critic)
for name in ("advantages", "returns", "values", "logp_old"):
    a, b = getattr(mine, name), getattr(theirs, name)
    print(f"{name:11} differ by at most {(a - b).abs().max():.0e}")
    assert torch.allclose(a, b, atol=1e-4)

# %%
logp = logp_of(student, mine)  # the adder's: ratios that are not 1
loss = mean_over(
    mine.mask, clipped_loss(logp, mine.logp_old, mine.advantages)
)
args = logp, mine.logp_old, mine.advantages, mine.mask
library = objectives.PPO(epsilon=0.2)(*args)[0]
_, error = ppo_loss(pupil, critic, mine)
squares = objectives.value_loss(
    critic(mine), mine.values, mine.returns, mine.mask, clip=None
)
print(f"policy loss {loss:.6f} and {library:.6f}")
print(f"value loss  {error:.6f} and {squares:.6f}")
assert torch.allclose(loss, library, atol=1e-5)
assert torch.allclose(error, squares, atol=1e-5)

# %% [markdown]
# The library also clips the value loss and leaves the truncated answers
# without an end their penalty; `rlkit/ppo.py` is short, read it.
#
# ## What this page showed, and where it does not hold
# - A batch can be used several times if the ratio weighs it and the clip
#   ends each token's pull. Without the clip the same eight updates teach
#   far less, and the ratios run away.
# - A good critic knows the wrong digit. RLOO's one number does not.
# - The critic that knows it was trained for hundreds of updates. The one
#   that learned beside your PPO had few, and hardly tells right from
#   wrong. So PPO's line on the ladder does not owe its height to blame by
#   the token: each of its steps is four updates on 256 different prompts.
# - It costs a second model: its memory, its passes, its own mistakes. For
#   short answers with one reward at the end, siblings do as well. That is
#   where page 04 goes on.
#
# The same from a terminal: `rlkit train ppo --preset tiny --task sums`

# %%
check.progress()
