# %% [markdown]
# # 00 Start: a model learns to add
#
# **After this page you can** say what a reward tells a model and what it
# leaves out, and read the curve of a training run.
#
# | time | where | memory |
# |---|---|---|
# | 10 min, one of them computing | any laptop, or Colab | 1 GB |
#
# You will need autograd, softmax and `gather` from page 01 on. The end of
# this page holds three lines to test yourself on them.
#
# Run each cell with Shift+Enter, from the top. The folded cell below is for
# Google Colab; elsewhere it does nothing.

# %% [markdown]
# ## 0.1 Five sums
# `here` imports what a section needs. After a restart of the kernel you
# can go on from any of its cells.

# %%
from rlkit.course import here

here("0.1")

# %% [markdown]
# The built-in model is a small transformer that writes one character at a
# time. It learned addition from careless examples, so it is often wrong.
#
# A `trainer` holds the model and everything needed to improve it. Its
# algorithm is GRPO, which page 04 builds; here it is a closed box. `tiny`
# is a collection of settings for a model of this size. The three settings
# after it say how often to measure, where to keep the run, and that the
# curve below takes the place of a progress bar.

# %%
task = load_task("sums")
trainer = GRPOTrainer(
    model="adder",
    reward_funcs=task.reward,
    args=GRPOConfig.preset(
        "tiny", eval_steps=5, output_dir="runs/page00", disable_tqdm=True
    ),
    train_dataset=task.train,
    eval_dataset=task.eval,
)

# %% [markdown]
# `task.eval` holds sums that training never shows. Here are five of them.
# The answers are *greedy*: the likeliest character at every place.

# %%
questions = task.eval[:5]
before = trainer.complete([row["prompt"] for row in questions])
for row, text in zip(questions, before):
    mark = "right" if text == row["answer"] else "wrong"
    print(f"{row['prompt']:>7}{text:<5} {mark}")

# %% [markdown]
# ### What it will be told
# The reward function reads an answer and returns one number. Here it
# judges four answers to `27+58=`. (The comment in the first line is for
# our tests: they compare the output.)

# %%
# NBVAL_CHECK_OUTPUT
four = ["85", "86", "58", "eighty-five"]
task.reward(prompts=["27+58="] * 4, completions=four, answer=["85"] * 4)

# %% [markdown]
# `86` is off by one. `eighty-five` is true, in words. Both get the same
# nothing as `58`, and no digit is pointed at. The training will hear
# these numbers and no other word.
#
# ## 0.2 Half a minute of training
# A step asks some sums several times each, and samples: a character with
# probability one third is written every third time. Then the reward judges
# each answer, and the weights move a little, towards the answers that did
# better than the others to the same sum.

# %%
from rlkit.course import here

here("0.2")

# %%
args = trainer.args
sums = args.generation_batch_size // args.num_generations
print(f"{args.max_steps} steps, each of {sums} sums,")
print(f"each sum answered {args.num_generations} times")
weights = sum(p.numel() for p in trainer.policy.parameters())
print(f"{weights:,} weights")

# %% [markdown]
# What share of the sums in `task.eval` will the model get right when the
# run is over? Put your guess in before you look.

# %%
guess = None  # a number between 0 and 1
# SOLUTION
guess = 0.75
# END SOLUTION

# %% [markdown]
# Run the next cell and press **Start**. The page stays yours while it
# trains. **Stop** ends the run after its current step; **Start** then goes
# on from there.
#
# - The thick line with dots is the greedy accuracy: the share of all sums
#   in `task.eval` that come out right.
# - The thin line is the mean reward of the answers sampled in each step.
#   Sampling tries unlikely characters too, so it mostly lies lower.
# - The dashed line is your guess.
# - The table holds the five sums from above, answered again at each dot.
# - A note below appears when something in the run deserves a look. Page 04
#   explains the one that you are likely to see, dead groups.
#
# On Colab the run begins with the cell, and the cell's own stop button ends
# it.

# %%
run = LiveRun(trainer, guess, questions=questions, score=task.reward)
run

# %% [markdown]
# ## 0.3 The same five sums
# `run.result()` waits for nobody: while the run goes on it says so, and
# you run the cell again later.

# %%
from rlkit.course import here

here("0.3")
history = run.result()

# %%
before = run.moments[0].answers
after = trainer.complete([row["prompt"] for row in questions])
for row, old, new in zip(questions, before, after):
    mark = "right" if new == row["answer"] else "wrong"
    print(f"{row['prompt']:>7} {old:>5} -> {new:<5} {mark}")

# %% [markdown]
# Five sums are few. The curve counts all of `task.eval`; this picture of
# it stays in the notebook when the kernel is gone.

# %%
run.figure()

# %%
first, last = run.accuracy[0][1], run.accuracy[-1][1]
print(f"before {first:.2f}, after {run.seconds:.0f} s {last:.2f}")
print(f"your guess: {run.guess}")

# %% tags=["solution"]
assert last >= 0.9 and last - first >= 0.2, (first, last)

# %% [markdown]
# ### The ladder
# Pages 01 to 04 each build an algorithm that does what you have just
# watched, and put its run on one chart, the ladder. Your line is the
# first. The dashed ones are runs of the library, of algorithms that are
# still to come.

# %%
ladder.add("GRPO, closed box", run)
ladder.figure()

# %% [markdown]
# ### What it still gets wrong
# The likeliest answers are nearly all right now. Answers that are sampled,
# as they were in training, still slip. Look for what the slips have in
# common: a carry, a one-digit number, a third digit.

# %%
rows = task.eval[:200]
prompts = [row["prompt"] for row in rows]
texts = trainer.complete(prompts, greedy=False)
wrong = [(r, t) for r, t in zip(rows, texts) if t != r["answer"]]
print(f"{len(wrong)} of {len(rows)} slip; the first of them:")
for row, text in wrong[:8]:
    print(f"{row['prompt']:>7}{text:<5} it is {row['answer']}")

# %% [markdown]
# ### Who told it what is right?

# %%
told = len(history) * trainer.args.generation_batch_size
print(f"{told:,} answers were sampled, and {told:,} rewards came back")

# %% [markdown]
# `task.train` has a column `answer`, but only the reward function read it.
# The model was never shown a right answer. It wrote answers of its own,
# and for each it heard a 0 or a 1.
#
# A 0 does not say which digit was wrong. It says nothing about the other
# answers that were possible. It is not a function of the weights that one
# could differentiate. So how did one number move them all, and in the
# right direction?
#
# Page 01 finds the direction and builds it in a few lines of torch.
#
# ## Before page 01
# Three lines with the tools it needs: softmax, `gather`, autograd.

# %%
# NBVAL_CHECK_OUTPUT
import torch

logits = torch.tensor([[2.0, 1.0, 0.0]], requires_grad=True)
logp = logits.log_softmax(-1).gather(-1, torch.tensor([[1]]))
logp.sum().backward()
p, gradient = logp.exp().item(), logits.grad[0].tolist()
print(f"p = {p:.3f}, gradient", [f"{g:.3f}" for g in gradient])

# %% [markdown]
# You are ready if you can say why the middle entry is `1 - p`, why the
# other two are negative, and why all three add up to nothing.
#
# ## Where it lives
#
# | what you used | file |
# |---|---|
# | the task and its reward | `rlkit/tasks/arithmetic.py` |
# | the loop: generate, score, update | `rlkit/trainer.py` |
# | this algorithm, GRPO | `rlkit/grpo.py` |
# | the live curve | `rlkit/widgets/live.py` |
#
# The same run from a terminal: `rlkit train grpo --preset tiny --task sums`
