# %% [markdown]
# # 05 Details: where kits differ in silence
#
# **After this page you can** name five choices that papers leave out and
# programs make without a word, measure what each of them changes, and
# write a KL estimate that float32 does not spoil.
#
# | time | where | memory |
# |---|---|---|
# | 35 min, 10 s of it computing | any laptop | 1 GB |
#
# This page is optional. Two programs that both call themselves GRPO, given
# the same samples, can move the weights in different directions. Each
# section takes one reason and measures it.

# %% [markdown]
# ## 5.1 What a token weighs
# Two answers to one question: a right one of two tokens and a wrong one of
# six. Their advantages are `1` and `-1`. At the first update every ratio is
# 1, and the gradient with respect to a token's log-prob is minus its
# advantage times its **weight**. Which weight?
#
# - *grpo*: the mean over each answer, then over answers.
# - *dapo*: the mean over all tokens of the step. *bnpo* the same, over the
#   tokens of the batch at hand.
# - *dr_grpo*: the sum over all tokens, over answers times the longest
#   length allowed.

# %%
from rlkit.course import here

here("5.1")

# %%
# NBVAL_CHECK_OUTPUT
lengths = torch.tensor([2, 6])
T, longest = 6, 8  # the batch is 6 wide; 8 tokens are allowed
mask = torch.arange(T) < lengths[:, None]
weights = {
    "grpo": 1 / (2 * lengths),
    "dapo": torch.full((2,), 1 / lengths.sum()),
    "dr_grpo": torch.full((2,), 1 / (2 * longest)),
}
for name, w in weights.items():
    whole = w * lengths
    print(f"{name:8} a token {w[0]:.3f} {w[1]:.3f}   "
          f"an answer {whole[0]:.3f} {whole[1]:.3f}")

# %% [markdown]
# Under *grpo* a token of the short answer weighs three times one of the
# long answer. A wrong answer can so make itself cheaper by going on: each
# of its tokens is pushed down less. Under the other two all tokens weigh
# alike, and long answers more than short ones.
#
# Move the lengths. When does a wrong answer pay least for being long?

# %%
NormaliserExplorer(right=2, wrong=6)

# %% [markdown]
# Is that what a library does? Its gradient tells.

# %%
advantages = torch.tensor([1.0, -1.0])
for name, w in weights.items():
    logp = torch.full((2, T), -1.0, requires_grad=True)
    objective = GRPO(loss_type=name, max_completion_length=longest)
    loss, _ = objective(logp, None, advantages, mask)
    loss.backward()
    expected = torch.where(mask, -(advantages * w)[:, None], 0.0)
    assert torch.allclose(logp.grad, expected, atol=1e-6)
    print(f"{name:8} as by hand; the loss itself is {loss.item():.3f}")

# %% [markdown]
# And a batch cut in two? Let each half divide by *its own* count of
# tokens, as a program does that sees one half at a time.

# %%
# NBVAL_CHECK_OUTPUT
one_at_a_time = (1 / lengths) / 2
together = torch.full((2,), 1 / lengths.sum())
print("each micro-batch by its own tokens",
      [f"{w:.3f}" for w in one_at_a_time])
print("all by the tokens of the step     ", [f"{w:.3f}" for w in together])

# %% [markdown]
# Halving the memory has changed the objective: token mean has become
# answer mean. So the counts must be those of the whole step, `totals` in
# rlkit, over all micro-batches and all graphics cards.
#
# ## 5.2 Three estimates of one divergence
# The penalty for leaving the reference is a divergence, a mean over all
# words. Programs estimate it from the one word that was drawn, with
# $x = \log p(y) - \log q(y)$:
#
# $$k_1 = x \qquad k_2 = x^2/2 \qquad k_3 = e^{-x} - 1 + x$$
#
# Two policies over four words. Which estimate is right on average, and
# which has the smaller spread?

# %%
from rlkit.course import here

here("5.2")

# %%
guess_right, guess_narrow = None, None  # "k1", "k2" or "k3"
# SOLUTION
guess_right, guess_narrow = "k1", "k3"
# END SOLUTION

# %%
# NBVAL_CHECK_OUTPUT
p = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
q = torch.tensor([0.3, 0.3, 0.1, 0.3], dtype=torch.float64)
x = (p / q).log()
estimates = {"k1": x, "k2": x**2 / 2, "k3": torch.exp(-x) - 1 + x}
print(f"the divergence     {(p * x).sum():.4f}")
for name, k in estimates.items():
    mean = (p * k).sum()  # over the words, as often as they are drawn
    spread = (p * (k - mean) ** 2).sum().sqrt()
    print(f"{name} mean {mean:.4f}, spread {spread:.4f}")

# %% [markdown]
# `k1` and `k3` are right on average, and `k1` spreads more. `k2` is off.
# Is it always so? Move two logits of $p$; $q$ is the reference.

# %%
KLExplorer([0.3, 0.3, 0.1, 0.3], first=0.3, last=-1.1)

# %% [markdown]
# Near 0 the three become alike in size, but `k1` may still have either
# sign. Far away `k3` of a word that became unlikely explodes.
#
# But a loss is *differentiated*, and the mean of a gradient is another
# matter. The gradient of the divergence with respect to the logits of $p$
# is the right one; what do the estimates give?

# %%
# NBVAL_CHECK_OUTPUT
logits = p.log().requires_grad_()

def gradient(of):
    logp = logits.log_softmax(0)
    (g,) = torch.autograd.grad(of(logp, logp - q.log()), logits)
    return [f"{v:+.3f}" for v in g]

P = p  # the words are drawn from it: it is no function of the logits
print("divergence", gradient(lambda l, x: (l.exp() * x).sum()))
print("k1        ", gradient(lambda l, x: (P * x).sum()))
print("k2        ", gradient(lambda l, x: (P * x**2 / 2).sum()))
print("k3        ", gradient(
    lambda l, x: (P * ((-x).exp() - 1 + x)).sum()))
print("k3 * ratio", gradient(
    lambda l, x: (l.exp() * ((-x).exp() - 1 + x)).sum()))

# %% [markdown]
# `k1` in a loss does nothing at all: its gradient is 0 on average. `k2`,
# biased as a number, has exactly the right gradient. `k3`'s is that of the
# divergence the other way round. Multiplied by the ratio, which is 1 but
# has a gradient, `k3` is right: `use_bias_correction_kl` in rlkit.
#
# ## Exercise 5.1  k3, token by token
# *6 minutes, one dot of three.* Zero where the mask is. It has to be exact
# too where both policies are nearly alike, which is where training begins.

# %% exercise="k3"
@check.k3
def k3(logp, logp_ref, mask):
    """logp, logp_ref, mask [B, T] -> estimate of each token [B, T]"""
    # SOLUTION
    x = logp - logp_ref
    return torch.where(mask, torch.expm1(-x) + x, 0.0)
    # END SOLUTION

# %% [markdown]
# ## The picture
# In mathematics $k_3$ is never negative. Near 0 it is $x^2/2$: at
# `x = -1e-4` that is `5e-9`. What will float32 make of
# `exp(-x) - 1 + x`? Rounding a number near 1 costs up to `6e-8`, more than
# ten times the result.

# %%
x = torch.linspace(-5e-4, 5e-4, 401)
naive = torch.exp(-x) - 1 + x
ones = torch.ones_like(x, dtype=torch.bool)[None]
yours = k3(x[None], torch.zeros_like(x)[None], ones)[0]
worst = naive.argmin()
for name, i in (("x = -1e-4", 160), ("the worst", worst)):
    exact = (torch.expm1(-x[i].double()) + x[i]).item()
    print(f"{name}: exp {naive[i].item():+.1e}, "
          f"expm1 {yours[i].item():+.1e}, exact {exact:+.1e}")

# %%
def picture():
    fig, (ax,) = paper(1, width=7.6)
    ax.axhline(0, color="#222222", lw=0.8)
    ax.plot(x, naive, ".", ms=4, color="#b34a00",
            label="exp(-x) - 1 + x")
    ax.plot(x, yours, lw=2, color="#0072b2", label="with expm1")
    ax.set(xlabel="x = logp - logp_ref", ylabel="k3 in float32")
    ax.legend(frameon=False)
    share = (naive < 0).float().mean()
    return titled(fig, f"Without expm1, {100 * share:.0f} % of these "
                       "estimates of a divergence are negative")

picture()

# %% tags=["solution"]
assert abs(x[160] + 1e-4) < 1e-6
assert (naive < 0).float().mean() > 0.02 and (yours >= -1e-12).all()
theirs = kl_divergence(x, torch.zeros_like(x), "k3")
assert torch.allclose(yours, theirs, atol=1e-12)

# %% [markdown]
# In bfloat16, which many programs compute log-probs in, the step near 1 is
# `4e-3`, and both forms are noise. Log-probs have to be float32.
#
# ## 5.3 Drawn at one temperature, scored at another
# Answers are often drawn at a temperature below 1. If the log-probs of the
# training are then computed from plain logits, the policy that is trained
# is not the one that drew. The ratio of the two should be 1 for each token.
# What share of the tokens lies outside of `0.8` to `1.2`?

# %%
from rlkit.course import here

here("5.3")

# %%
guess = None  # a share
# SOLUTION
guess = 0.1
# END SOLUTION

# %%
def outside(temperature, *scored_at):
    """Shares of tokens that a clip of 0.2 would silence at once."""
    student, rollout = answers_at(temperature)
    with torch.no_grad():
        z = student.logits(rollout)
    chosen = rollout.completion_ids[..., None]
    def logp_at(t):
        return (z / t).log_softmax(-1).gather(-1, chosen).squeeze(-1)
    shares = []
    for t in scored_at:
        ratio = (logp_at(t) - logp_at(temperature)).exp()[rollout.mask]
        silent = (ratio < 0.8) | (ratio > 1.2)
        shares.append(silent.float().mean().item())
    return shares

found = {t: outside(t, 1, t) for t in (0.5, 0.7, 1.5)}
for t, (wrong, right) in found.items():
    print(f"drawn at {t}, scored at 1: {wrong:.3f} outside; "
          f"scored at {t}: {right:.3f}")
print("your guess, for 0.7:", guess)

# %% tags=["solution"]
assert found[0.7][0] > 0.01 and found[0.7][1] == 0

# %% [markdown]
# rlkit divides by the temperature wherever it computes a log-prob. Cutting
# with `top_k` or `top_p` is another such gap: the policy that drew had
# fewer words. Its log-probs stay those of all words, here and in TRL.
#
# ## 5.4 The standard deviation of four numbers
# `torch.std` divides by `G - 1`, `numpy.std` by `G`. GRPO divides by the
# standard deviation, so the choice scales every advantage.

# %%
from rlkit.course import here

here("5.4")

# %%
# NBVAL_CHECK_OUTPUT
for G in (2, 4, 8, 64):
    rewards = torch.zeros(G)
    rewards[0] = 1.0
    a = [(rewards[0] - rewards.mean()) / (rewards.std(correction=c) + 1e-4)
         for c in (1, 0)]
    print(f"G = {G:2}: {a[0]:.3f} with G - 1, {a[1]:.3f} with G, "
          f"{a[1] / a[0]:.3f} times")
    theirs = group_relative(rewards, G)
    assert torch.allclose(theirs[0], a[0], atol=1e-6)

# %% [markdown]
# It is a change of the learning rate, of up to two fifths, and AdamW
# divides most of it away again. What does not go away: with `eps = 1e-4`
# inside or outside of the root a group of nearly equal rewards differs a
# hundredfold, and dividing by the standard deviation of the *batch* weighs
# easy and hard questions otherwise (page 04).
#
# ## 5.5 The end of an answer
# The token EOS ends an answer, and what follows is padding. Many
# tokenizers have no token for padding, so programs take EOS for both, and
# then mask every EOS away. How many of the tokens that the policy chose
# does `ids != pad` throw out?

# %%
from rlkit.course import here

here("5.5")

# %%
guess = None  # a share
# SOLUTION
guess = 0.25
# END SOLUTION

# %%
student, rollout = answers_at(1.0)
eos = student.tokenizer.eos_token_id
ids = torch.where(rollout.mask, rollout.completion_ids, eos)  # pad is EOS
by_value = ids != eos
after_first = (ids == eos).cumsum(1) - (ids == eos).long() == 0
for name, mine in (("ids != pad", by_value), ("first EOS", after_first)):
    lost = 1 - mine.sum().item() / rollout.mask.sum().item()
    ends = (mine & (ids == eos)).any(1).float().mean().item()
    print(f"{name:11} loses {lost:.2f} of the tokens; "
          f"in {ends:.2f} of the answers the end is trained")
print("your guess:", guess)

# %% tags=["solution"]
assert not (by_value & (ids == eos)).any()
assert (after_first == rollout.mask).all()

# %% [markdown]
# Nothing tells this model when to stop any more, neither reward nor
# punishment. No learning curve shows it while answers are short and were
# learned with their end. Page 06 finds it by a probe.
#
# ## The map to rlkit
#
# | your cell | rlkit |
# |---|---|
# | `weights` | `LOSS_TYPES` in `rlkit/objectives.py`, a surrogate and a denominator each |
# | counts of the whole step | `Totals` in `rlkit/batch.py` |
# | `k3` | `kl_divergence` in `rlkit/objectives.py` |
# | temperature in every log-prob | `temperature` of `token_logps` in `rlkit/head.py` |
# | `correction=1` | `group_relative` in `rlkit/advantages.py` |
# | the first EOS | `rlkit/rollout.py` |
#
# ## What this page showed, and where it does not hold
# - Five settings that share a name do not share a gradient. Weights of
#   tokens and the gradient of the KL estimate change what is optimised;
#   the standard deviation changes a scale that AdamW mostly hides.
# - The numbers are those of a small model with short answers. With answers
#   of very unequal lengths the weights matter more; with a large `beta`
#   the KL estimate does.
# - None of the choices is wrong by itself. Wrong is to compare two
#   programs, or two papers, without knowing theirs.
