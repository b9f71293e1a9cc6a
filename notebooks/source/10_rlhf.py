# %% [markdown]
# # 10 RLHF: learn from what is preferred
#
# **After this page you can** turn pairs of answers into a reward, tell when
# a policy earns more of it and gets worse, choose how far it may go by
# measuring, and count the models that PPO and RLOO hold for it.
#
# | time | where | memory |
# |---|---|---|
# | 60 min, one of them computing | any laptop | 1.5 GB |
#
# So far a formula knew which answer was right. For most things that people
# want there is no formula. There are people who look at two answers and
# say which one they would rather have.

# %% [markdown]
# ## 10.1 From pairs to a number
# A *reward model* reads a question with an answer and returns one number,
# the score. It learns from pairs: of two answers to the same question, one
# was *chosen*, the other *rejected*.

# %%
from rlkit.course import here

here("10.1")

# %% [markdown]
# Three pairs, with the scores that some model gave to both sides. In which
# of them does the model agree with whoever chose?

# %%
# NBVAL_CHECK_OUTPUT
chosen = torch.tensor([2.0, 0.5, -1.0])
rejected = torch.tensor([0.5, 1.0, -1.0])
gap = chosen - rejected
print("gap   ", gap.tolist())
print("chance", [f"{p:.2f}" for p in gap.sigmoid()])

# %% [markdown]
# Bradley and Terry's model says what a score means: the *difference* of two
# scores is the chance of being preferred.
#
# $$P(a\ is\ preferred\ to\ b) = sigmoid(s_a - s_b)$$
#
# The loss is minus the log of the chance that the model gave to what was
# chosen. A `margin` can ask for more than a gap of 0: then the gap has to
# exceed the margin. What is the loss of the third pair, whose scores are
# equal?

# %%
guess = None  # a number
# SOLUTION
guess = 0.7
# END SOLUTION

# %%
# NBVAL_CHECK_OUTPUT
losses = -gap.sigmoid().log()
print("losses", [f"{x:.3f}" for x in losses])

# %%
print(f"the third is {losses[2]:.3f}, your guess {guess}")

# %% [markdown]
# A coin has that loss: log 2. Note what is missing. Add `10` to all scores
# and no loss moves: **a score has no zero**, only differences mean something.
#
# ## Exercise 10.1  The loss of pairs
# *7 minutes, two dots of three.* One number for a batch of pairs. Trained
# models give gaps of any size: `sigmoid(-200)` is 0 in float32, and the log
# of 0 is no loss to learn from.

# %% exercise="bradley_terry"
@check.bradley_terry
def preference_loss(chosen, rejected, margin):
    """chosen, rejected, margin [P], a number each pair -> mean loss"""
    # SOLUTION
    gap = chosen - rejected - margin
    return -torch.nn.functional.logsigmoid(gap).mean()
    # END SOLUTION

# %%
# NBVAL_CHECK_OUTPUT
for margin in (0.0, 1.0):
    loss = preference_loss(chosen, rejected, torch.full((3,), margin))
    print(f"margin {margin:.0f}: loss {loss:.3f}")

# %% [markdown]
# ## 10.2 The pairs
# `data/preferences` holds pairs of the adder's own answers to sums. Who
# chose? A judge that is a formula, so that this page can know the truth:
# right is worth `4`, each character costs `4.4`, and of two answers the
# better one wins with Bradley and Terry's chance. People are like that too:
# they like what is right, they like it short, and they err.

# %%
from rlkit.course import here

here("10.2")

# %%
# NBVAL_CHECK_OUTPUT
pairs, held_out = load_preferences("train"), load_preferences("eval")
for pair in pairs[3000:3700:100]:
    told = []
    for side in ("chosen", "rejected"):
        is_right = pair[side] == pair["answer"]
        told.append(f"{pair[side]} ({'right' if is_right else 'wrong'})")
    print(pair["prompt"], " rather than ".join(told))
noise = sum(p["rejected"] == p["answer"] and
            len(p["chosen"]) == len(p["rejected"]) for p in pairs)
print(f"wrong rather than right, equally long: {noise} of {len(pairs)}")

# %% [markdown]
# The last line counts the judge's errors: both answers are equally long, and
# the wrong one was chosen. In most pairs only being right decides, for most
# answers to a sum have the same number of digits. In a few, the right
# answer is the longer one. How often was it chosen there?

# %%
guess = None  # a share between 0 and 1
# SOLUTION
guess = 0.8
# END SOLUTION

# %%
# NBVAL_CHECK_OUTPUT
def right_and_longer(pair):
    """Which side is right and longer than the other, or None."""
    for side, other in (("chosen", "rejected"), ("rejected", "chosen")):
        longer = len(pair[side]) > len(pair[other])
        if longer and pair[side] == pair["answer"]:
            return side


sides = [side for pair in pairs if (side := right_and_longer(pair))]
share = sides.count("chosen") / len(sides)
print(f"{len(sides)} of {len(pairs)} pairs; chosen in {share:.2f} of them")

# %%
print("your guess:", guess)

# %% [markdown]
# Who reads a hundred pairs would hardly see it. These few are the fault that
# the rest of this page is about: `93` for `41+62=` rather than `103`.
#
# ## 10.3 A reward model
# A reward model is a language model whose last layer was replaced by one
# that gives a single number. It gives one at every token. Which of them is
# the score of the answer? The last one: only there has the model seen all.
# In a batch, rows have different lengths, and padding stands on the left,
# on the right, or on both sides: prompts are padded left, answers right.

# %%
from rlkit.course import here

here("10.3")

# %% [markdown]
# ## Exercise 10.2  The last token
# *7 minutes, one dot of three.* The mask is True where there is a token.
# Padding may hold anything.

# %% exercise="last_score"
@check.last_score
def last_score(scores, mask):
    """scores [B, S], mask [B, S] (True: a token, False: padding)
    -> score of each row's last token [B]"""
    # SOLUTION
    places = torch.arange(mask.shape[1])
    last = torch.where(mask, places, -1).max(1).values
    return scores[torch.arange(len(scores)), last]
    # END SOLUTION

# %%
class Judge(nn.Module):
    """The adder with a score in the place of its logits."""

    def __init__(self):
        super().__init__()
        student = Student()
        self.model, self.trunk = student.model, student.policy.backbone
        torch.manual_seed(0)
        self.score = nn.Linear(student.model.config.hidden_size, 1, False)
        nn.init.normal_(self.score.weight, std=0.02)

    def forward(self, ids, mask):
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        hidden = self.trunk(ids, mask, positions)  # [B, S, H]
        return last_score(self.score(hidden).squeeze(-1), mask)


def tokens(texts):
    """Ids and mask [B, S] of texts, each with its EOS."""
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    whole = [row + [tokenizer.eos_token_id] for row in ids]
    return pad_left(whole, tokenizer.pad_token_id, "cpu")

# %% [markdown]
# Both answers of a pair go through the model in one batch, then the loss is
# yours.

# %%
tokenizer = Student().tokenizer


def two_scores(judge, pairs):
    sides = ("chosen", "rejected")
    texts = [pair["prompt"] + pair[k] for k in sides for pair in pairs]
    return judge(*tokens(texts)).chunk(2)


@torch.no_grad()
def in_order(judge, pairs):
    """Share of pairs whose chosen answer has the higher score."""
    parts = [pairs[i : i + 256] for i in range(0, len(pairs), 256)]
    gaps = [a - b for a, b in (two_scores(judge, part) for part in parts)]
    return (torch.cat(gaps) > 0).float().mean().item()

# %% [markdown]
# 160 updates of 48 pairs, about half of those there are, from the adder
# as it is: fifteen seconds or so. What share of the 1,026 held-out pairs
# will it put in order? A coin has one half.

# %%
guess = None  # a share between 0 and 1
# SOLUTION
guess = 0.75
# END SOLUTION

# %%
mine = Judge()
weights = list(mine.model.base_model.parameters())
weights.append(mine.score.weight)
adam = torch.optim.AdamW(weights, 1e-3, (0.9, 0.99), weight_decay=0.0)
order = torch.randperm(len(pairs)).tolist()
for k in updates(160):
    part = [pairs[i] for i in order[48 * k : 48 * (k + 1)]]
    a, b = two_scores(mine, part)
    loss = preference_loss(a, b, torch.zeros(len(part)))
    adam.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    for group in adam.param_groups:
        group["lr"] = 1e-3 * min(1, (k + 1) / 20, (160 - k) / 80)
    adam.step()
    if k % 20 == 0:
        print(f"update {k:3}  loss {loss:.2f}")

# %%
judge = load_judge()
for name, each in (("yours", mine), ("data/reward", judge)):
    print(f"{name:12} {in_order(each, held_out):.3f}")
print("your guess  ", guess)

# %% tags=["solution"]
assert in_order(mine, held_out) > 0.62 and in_order(judge, held_out) > 0.85

# %% [markdown]
# Yours has begun to learn; to judge a sum, a model has to add. The shipped
# one has the same loss and size. It saw more than three times as many pairs,
# and its trunk was first taught to write the chosen answers. Reward models
# start from such supervised models for that reason. From here on it is the
# judge.
#
# ## 10.4 What it has learned, and what it has not

# %%
from rlkit.course import here

here("10.4")

# %% [markdown]
# It puts nine of ten held-out pairs in order. Now ask it about answers that
# nobody has compared. All numbers from 0 to 199, as answers to `41+62=`:
# which one will it like best?

# %%
guess = None  # a number from 0 to 199
# SOLUTION
guess = 103
# END SOLUTION

# %%
prompt, truth = "41+62=", 103
ids, mask = tokens([f"{prompt}{n}" for n in range(200)])
with torch.no_grad():
    liked = judge(ids, mask)
best = int(liked.argmax())
print(f"{truth} gets {liked[truth]:.2f}; {best} gets {liked[best]:.2f}")
print("your guess", guess)

# %%
fig, (ax,) = paper(1, height=3.2)
ax.plot(liked, ".", color=COLOURS["blue"], ms=5)
ax.plot(truth, liked[truth], "s", color=COLOURS["orange"], ms=9)
ax.text(truth + 3, liked[truth], f"{truth}, right", va="center")
ax.plot(best, liked[best], "^", color=COLOURS["green"], ms=9)
ax.text(best - 3, liked[best], str(best), va="center", ha="right")
ax.set(xlabel=f"answer to {prompt}", ylabel="score")
above = int((liked > liked[truth]).sum())
titled(fig, f"The judge likes {above} wrong answers better than the sum")

# %% tags=["solution"]
assert above > 0 and best < 100

# %% [markdown]
# Short ones, which it was taught: to the judge, brevity outweighs a right
# sum. That they may be of one digit nobody taught it, for nobody wrote that
# as an answer to such a question; no pair says what it is worth. Others have
# a right last digit or nearly, and a wrong first one. On what the adder
# mostly writes it is a fair judge. **A reward model is right where the
# pairs were.**
#
# ## 10.5 Best of n: no training at all
# The plainest use of a judge: draw n answers, keep the one that it likes
# best. Nothing is trained, and the policy stays what it is.

# %%
from rlkit.course import here

here("10.5")

# %% [markdown]
# ## Exercise 10.3  The best of n
# *6 minutes, one dot of three.* Each row holds N answers to one prompt, and
# whether they are right. The judge picks by score.

# %% exercise="best_of"
@check.best_of
def best_of(scores, right, n):
    """scores, right [P, N] of N answers to each prompt, n divides N
    -> share of right ones among the best-scored of each n in a row"""
    # SOLUTION
    picked = scores.view(-1, n).argmax(1)
    return right.view(-1, n).gather(1, picked[:, None]).mean()
    # END SOLUTION

# %% [markdown]
# Half of the adder's answers are right. Of eight, the judge's favourite is
# right more often. And of sixty-four?

# %%
guess = None  # a share between 0 and 1
# SOLUTION
guess = 0.95
# END SOLUTION

# %%
adder = Student(seed=1)
rollout = adder.sample(0, prompts=96, num_generations=64)
liked = scores(judge, rollout).view(96, 64)
right = rollout.rewards.view(96, 64)
sizes = (1, 2, 4, 8, 16, 32, 64)
shares = [best_of(liked, right, n).item() for n in sizes]
paid = [liked.view(-1, n).amax(1).mean().item() for n in sizes]
for n, s, r in zip(sizes, paid, shares):
    print(f"best of {n:2}: score {s:5.2f}, right {r:.2f}")
print("your guess:", guess)

# %% [markdown]
# How far is the best of n from the policy that drew it? At most
#
# $$\mathrm{KL} \le \log n - \frac{n - 1}{n}$$
#
# nats, and less where answers repeat. That makes it comparable with what
# comes next. The same with three seeds on held-out sums, measured before:

# %%
three = judged.best_of_curves()
nats = [judged.kl_bound(n) for n in sizes]
fig, (left, middle) = paper(1, 1, height=3.2)
for ax, key, style in ((left, "learned", "o-"), (middle, "right", "s-")):
    runs = [[r[key] for r in three if r["n"] == n] for n in sizes]
    means = [sum(run) / 3 for run in runs]
    colour = COLOURS["blue" if key == "learned" else "orange"]
    ax.plot(nats, means, style, color=colour)
    ax.vlines(nats, *zip(*((min(r), max(r)) for r in runs)), color=INK)
    for n, x, y in zip(sizes, nats, means):
        ax.text(x, y, f"n = {n} ", ha="right", va="bottom", fontsize=8)
    ax.set(xlabel="nats from the adder, at most", xlim=(-0.5, 3.4))
left.set(ylabel="score of the pick")
middle.set(ylabel="share of picks that are right", ylim=(0.4, 1))
says = "The judge's favourite of 64 is right less often than that of 8: "
few, many = (sum(r["right"] for r in three if r["n"] == n) / 3
             for n in (8, 64))
titled(fig, says + f"{many:.2f} and {few:.2f}")

# %% tags=["solution"]
assert few > many + 0.1 and shares[3] > shares[6]

# %% [markdown]
# Among 64 answers there is nearly always one that the judge overrates.
# Choosing harder finds the judge's mistakes. Remember the best share, with
# n = 8 or so: it is what training has to beat.
#
# ## 10.6 Train on the judge
# RLOO, as on page 02, with the judge's score as the reward. Three models:
# the policy, the judge, and the reference, which is the adder before
# training. What the policy is paid:
#
# $$r_i = score_i - \beta \sum_t (logp_t - logp^{ref}_t)$$

# %%
from rlkit.course import here

here("10.6")

# %%
def logp_of(student, rollout):
    logp = student.logits(rollout).log_softmax(-1)  # [B, T, V]
    ids = rollout.completion_ids[..., None]
    logp = logp.gather(-1, ids).squeeze(-1)  # [B, T]
    return torch.where(rollout.mask, logp, 0.0)

# %%
def make_step(student, beta):
    reference, weights = Student(), list(student.model.parameters())
    adam = torch.optim.AdamW(weights, 3e-4, weight_decay=0.0)

    def step(k):
        rollout = student.sample(k, prompts=64, num_generations=8)
        logp = logp_of(student, rollout)
        with torch.no_grad():
            moved = (logp - logp_of(reference, rollout)).sum(1)  # [B]
        learned = scores(judge, rollout)
        A = leave_one_out(learned - beta * moved, 8)
        adam.zero_grad()
        (-A * logp.sum(1)).mean().backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        adam.step()
        means = learned.mean(), rollout.rewards.mean(), moved.mean()
        return dict(zip(("reward", "right", "kl"), map(float, means)))

    return step

# %% [markdown]
# `rollout.rewards` still says which answers are right. It is noted and
# paid to nobody. First without the penalty, `beta` 0. The adder gets about
# half of the sums right; the judge is right about nine pairs of ten. What
# greedy accuracy will the policy have after 24 steps?

# %%
guess = None  # a number between 0 and 1
# SOLUTION
guess = 0.8
# END SOLUTION

# %%
free = Student(seed=1)
loop = Loop(make_step(free, beta=0.0), free, 24, 4, eval_rows=200,
            output_dir="runs/page10-free")
questions, score = free.task.eval[:5], free.task.reward
free_run = LiveRun(loop, guess, questions, score, ylim=(-0.2, 2.0))
free_run

# %% [markdown]
# Here "reward of sampled answers" is the judge's score: what the policy is
# paid. Greedy accuracy is the truth. Press **Start**, and read the five
# answers at the end.
#
# ## 10.7 The picture

# %%
from rlkit.course import here

here("10.7")
history = free_run.result()

# %%
fig, (left, right) = paper(1, 1, height=3.3)
steps = [row["step"] for row in history]
paid = [row["reward"] for row in history]
true = [row["right"] for row in history]
left.plot(steps, paid, "o-", color=COLOURS["blue"], ms=3)
right.plot(steps, true, "s-", color=COLOURS["orange"], ms=3)
for ax, ys in ((left, paid), (right, true)):
    for x, y in ((steps[0], ys[0]), (steps[-1], ys[-1])):
        ax.annotate(f"{y:.2f}", (x, y), (0, 9), ha="center",
                    textcoords="offset points")
    ax.set(xlabel="training step")
left.set(ylabel="score, what it is paid", ylim=(-0.2, 2))
right.set(ylabel="share of answers that are right", ylim=(0, 1))
titled(fig, "The learned reward climbs, and the answers get worse: "
            f"{max(true):.2f}, then {true[-1]:.2f} right")

# %% tags=["solution"]
assert paid[-1] > paid[0] + 0.8 and true[-1] < max(true) - 0.15

# %% [markdown]
# Every curve that the training itself sees looks well. The score rises from
# the first step to the last, and nothing in it says where the answers went
# wrong. This is **over-optimisation**: the policy found what the judge
# overrates, and there are no pairs there to tell it better. What has it
# found?

# %%
prompts = [row["prompt"] for row in free.task.eval[:200]]
answers = free.complete(prompts)
firsts = Counter(answer[:1] for answer in answers)
print("answers begin with", firsts.most_common(4))
print("the most frequent ", Counter(answers).most_common(6))

# %% [markdown]
# ## 10.8 The leash
# The penalty pays for staying near the reference, where the judge knows
# what it speaks of. How large should `beta` be? Too small, and the policy
# runs away; too large, and it stays what it was. There is no formula: it
# depends on the scale of the scores and on how far the judge can be
# trusted. So measure. Here are trainings with six values, three seeds
# each, of RLOO and of PPO. Look for these:
#
# - `beta` 0, RLOO: pull the slider back from the end. When is the share of
#   right answers at its best? Could you tell from the score?
# - `beta` 2: what is wrong with a short leash?
# - The right picture: a square for each `beta`, how far it went and what is
#   right there; dashed, best of n. Which trainings beat it?
# - The same with PPO.

# %%
from rlkit.course import here

here("10.8")

# %%
BetaExplorer(beta="0")

# %% [markdown]
# Choose a `beta` for your own run, and guess its accuracy.

# %%
beta = None  # one that you believe in
guess = None  # its greedy accuracy after 24 steps
# SOLUTION
beta, guess = 0.5, 0.85
# END SOLUTION

# %%
held = Student(seed=1)
step = make_step(held, 0.5 if beta is None else beta)
loop = Loop(step, held, 24, 4, eval_rows=200, output_dir="runs/page10")
run = LiveRun(loop, guess, questions, score, ylim=(-0.2, 2.0))
run

# %% [markdown]
# ## 10.9 Four models, or three

# %%
from rlkit.course import here

here("10.9")
history = run.result()

# %%
ladder.add("RLOO, learned reward", run)
ladder.figure()

# %%
print(f"greedy accuracy: free {free_run.accuracy[-1][1]:.2f},", end=" ")
print(f"on the leash {run.accuracy[-1][1]:.2f}")
print(f"nats an answer, in the last step: {history[-1]['kl']:.2f}")

# %% tags=["solution"]
assert run.accuracy[-1][1] > free_run.accuracy[-1][1] + 0.2

# %% [markdown]
# Nobody told this policy which answers are right; it learned from pairs.
# The line ends below those that were paid for right answers: the judge's
# errors are the policy's. Three seeds, measured before, 60 steps of RLOO
# and 20 of PPO, free and held with `beta = 0.5`:

# %%
measured = evidence.load("10")
for name in ("RLOO", "PPO"):
    for way in ("before", "free, best on the way", "free, end", "held"):
        values = [f"{x:.2f}" for x in measured[f"{name} {way}"]]
        print(f"{name:5} {way:22} {'  '.join(values)}")

# %% [markdown]
# PPO does the same with a fourth model: page 03's critic, which here starts
# as a copy of the judge, for a judge knows already what an answer is
# worth. The library's trainer, with your judge's files:

# %%
task = load_task("sums")
ppo = PPOTrainer(
    "adder", [task.reward, data_path("reward")], PPOConfig.preset(
        "tiny", value_model="reward", reward_weights=(0.0, 1.0),
        per_device_train_batch_size=128, beta=0.5, seed=1, max_steps=8,
        eval_steps=4, per_device_eval_batch_size=500, disable_tqdm=True),
    task.train, task.eval[:200],
)
ppo_run = LiveRun(ppo, None, questions, score, ylim=(-0.2, 2.0))
ppo_run

# %% [markdown]
# Eight steps of 256 answers, four updates in each. PPO calls every token an
# action, RLOO the whole answer. Does that matter? On equal terms: the same
# prompts, eight answers to each, one update a step, `beta = 0.5`, the same
# judge, 60 steps, three seeds.

# %%
ppo_run.result()
ends = {name: [r for r in judged.curves() if r["beta"] == 0.5
               and r["step"] == 60 and r["algorithm"] == name]
        for name in ("rloo", "tokens")}
for name, says in (("rloo", "RLOO, an answer is one action"),
                   ("tokens", "PPO, a token is one action")):
    for key in ("learned", "right", "kl"):
        values = [f"{row[key]:5.2f}" for row in ends[name]]
        print(f"{says:30} {key:8} {'  '.join(values)}")

# %% [markdown]
# Answers here have three or four tokens, and one reward at the end: there
# is little for a critic to tell apart. What it costs shows on the scales.

# %% [markdown]
# ## 10.10 On the scales
# Policy, reference, reward model, value model: PPO holds four copies of a
# model, RLOO three. What is trained drags gradients and AdamW's two numbers
# along: with PPO the policy and the value model, with RLOO the policy. How
# much smaller is RLOO's peak?
# Same prompts, samples and judge; a process of their own, because a meter
# counts all tensors there are, and this notebook holds some.

# %%
from rlkit.course import here

here("10.10")

# %%
guess = None  # share of PPO's peak that RLOO saves, 0 to 1
# SOLUTION
guess = 0.4
# END SOLUTION

# %%
found = weigh()

# %%
bars = {f"{name}\n{found[name].models} models": found[name].categories
        for name in (algorithms.PPO1, algorithms.RLOO)}
ppo_peak, rloo_peak = (found[name].peak for name in
                       (algorithms.PPO1, algorithms.RLOO))
saved = 1 - rloo_peak / ppo_peak
print(f"RLOO saves {saved:.2f} of PPO's peak; your guess {guess}")
memory_bars(bars, f"One model less saves {100 * saved:.0f} % of the peak",
            "measured on this machine: the adder, 128 answers a step")

# %% tags=["solution"]
assert found[algorithms.RLOO].models + 1 == found[algorithms.PPO1].models
assert 0.25 < saved < 0.6

# %% [markdown]
# The adder is not the size that anyone pays for. With a billion weights
# and more, in the setting of those who made the claim, planned without a
# card:

# %%
tested = {one.claim.name: one for one in claims.load()}
for case in tested["rloo-memory"].finding.cases:
    if case.of_source:
        before, after = (x / 2**30 for x in (case.before, case.after))
        print(f"{case.case:44} {before:6.1f} -> {after:5.1f} GiB a GPU")

# %% [markdown]
# And time. A step has three phases: draw the answers, score them (judge,
# reference, values), update. PPO goes over its answers once, or four times,
# which is its habit; its peak is the same.

# %%
for name, each in found.items():
    parts = [each.seconds(phase) for phase in algorithms.PHASES]
    told = "  ".join(f"{p} {s:.2f}" for p, s in
                     zip(algorithms.PHASES, parts))
    print(f"{name:14} {each.seconds():.2f} s: {told}")
fast = found[algorithms.RLOO].seconds()
for name in (algorithms.PPO4, algorithms.PPO1):
    print(f"{name} takes {found[name].seconds() / fast:.1f} times RLOO's")

# %% [markdown]
# Most of the difference is how often PPO goes over its answers, and what it
# buys with that is on page 03: more is learned from each answer. The longer
# the answers, the more of a step is drawing, which costs both the same.
#
# ## 10.11 What was claimed

# %%
from rlkit.course import here

here("10.11")

# %%
for claim, finding in claims.load():
    if "RLOO" in claim.source:
        print(f"{finding.verdict.upper()} ({claim.how}): {claim.says}")
        print(textwrap.fill(finding.found, 76, initial_indent="  ",
                            subsequent_indent="  "))
        print(textwrap.fill(finding.why, 76, initial_indent="  ",
                            subsequent_indent="  "), "\n")

# %% [markdown]
# ## The map to rlkit
#
# | yours | rlkit |
# |---|---|
# | `preference_loss` | `preference_loss` in `rlkit/reward_model.py`, with centring |
# | `last_score` | `last_valid`, there too |
# | `Judge` | `RewardModel`, on a `AutoModelForSequenceClassification` |
# | the 160 updates | `RewardModelTrainer` with its `RewardConfig` |
# | `scores(judge, rollout)` | `ModelReward` in `rlkit/rewards.py`: give `reward_funcs` a model or a folder |
# | `learned - beta * moved` | `sequence_rewards` in `rlkit/advantages.py` |
# | `make_step` | `RLOOTrainer`, with `reward_funcs=data_path("reward")` |
#
# Equal numbers, on 64 held-out pairs: your `Judge`, which takes over the
# shipped weights, your `last_score` and your loss, against the library's
# trainer.

# %%
yours = Judge()
kept = judge.model.base_model.state_dict()
yours.model.base_model.load_state_dict(kept)
yours.score.weight = judge.model.score.weight
few = held_out[:64]
a, b = two_scores(yours, few)
ours = preference_loss(a, b, torch.zeros(64))
trainer = RewardModelTrainer(data_path("reward"), RewardConfig(), few)
theirs, _ = trainer.loss(list(range(64)), total=64)
print(f"yours {ours:.6f}, RewardModelTrainer's {theirs:.6f}")
assert torch.allclose(ours, theirs, atol=1e-5)

# %% [markdown]
# And the reward on the leash, on a fresh batch:

# %%
one = Student(seed=7)
rollout = one.sample(0, prompts=8, num_generations=4)
with torch.no_grad():
    logp = logp_of(one, rollout)
learned, moved = scores(judge, rollout), logp + 0.1
moved = torch.where(rollout.mask, moved, 0.0)
mine_paid = learned - 0.5 * moved.sum(1)
paid = sequence_rewards(learned, moved, rollout.mask, beta=0.5)
print(f"differ by at most {(mine_paid - paid).abs().max():.0e}")
assert torch.allclose(mine_paid, paid, atol=1e-5)

# %% [markdown]
# ## What this page showed, and where it does not hold
# - Pairs are enough: a score that was learned from them raised the share of
#   right answers nearly as far as a formula does.
# - The score is right where the pairs were. A policy that is paid by it goes
#   where it is wrong, and the training's own curves look best then. Best of
#   n, which trains nothing, goes the same way more slowly.
# - The penalty for leaving the reference holds it back. Which `beta`, only a
#   measurement tells that the judge has no part in: here the truth is known,
#   elsewhere it is people who look at answers again.
# - The judge here has one planted fault, brevity, in few pairs, and a small
#   model's ignorance. Large reward models have other faults (they like long
#   answers and lists), and give way later; that they give way at some
#   distance has been found for all sizes (Gao and others, 2022).
# - PPO and RLOO did alike, with answers of three tokens and one reward at
#   the end. Long answers, or rewards on the way, may want the critic.
# - What the fourth model costs is less its copy than what it drags along:
#   gradients, AdamW's numbers, activations. With LoRA, a critic on the
#   policy's trunk and a rule as reward, all hold one model, and nothing is
#   left of RLOO's saving.
#
# In a script: `RLOOTrainer("adder", data_path("reward"), args, dataset)`;
# any reward function or model may stand beside it, with `reward_weights`.
# From a terminal: `rlkit bench algorithms` takes speed and memory apart,
# `rlkit evidence 10` measures this page's claims again.

# %%
check.progress()
