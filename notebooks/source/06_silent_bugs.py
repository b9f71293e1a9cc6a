# %% [markdown]
# # 06 Silent bugs: what a curve does not tell
#
# **After this page you can** say why a good learning curve proves little,
# and write probes that find a wrong part of a training step in a second.
#
# | time | where | memory |
# |---|---|---|
# | 40 min, one of them computing | any laptop, or Colab | 1 GB |
#
# Six people wrote the same training step. Each made one mistake, and each
# mistake has been made in public code. Their models learn.
#
# Run each cell with Shift+Enter, from the top. The folded cell below is for
# Google Colab; elsewhere it does nothing.

# %% [markdown]
# ## 6.1 A step in six parts

# %%
from rlkit.course import here

here("6.1")

# %% [markdown]
# The step samples, judges and updates twice, like the ones that you wrote
# on the pages before. Six of its parts are functions of their own:

# %%
# NBVAL_CHECK_OUTPUT
right = Parts()
for name in NAMES:
    print(f"{name:9}", getattr(right, name).__doc__.splitlines()[0])

# %% [markdown]
# Take one of them in your hands. Two completions of up to four tokens;
# token `9` ends a completion, and it also fills up the rows. The first
# ended after two tokens, the second was cut off.

# %%
# NBVAL_CHECK_OUTPUT
ids = torch.tensor([[5, 6, 9, 9], [5, 6, 7, 8]])
right.count(ids, 9).int().tolist()

# %% [markdown]
# The first `9` counts: the model wrote it, and nothing else can teach it to
# stop. The second one is filling.
#
# The parts meet in one line. `A` is an advantage, `rho` the ratio of page
# 03, `k` the penalty for leaving the reference:
#
#     loss = mean over counted tokens of  beta k - min(rho A, clip(rho) A)
#     A    = (reward - baseline) / (spread + eps)
#
# ## 6.2 Train a suspect
# The suspects are called A to F. Which part is wrong in which of them, you
# will find out; please do not read `rlkit/course/suspects.py` before.

# %%
from rlkit.course import here

here("6.2")

# %% [markdown]
# Here is suspect C, with a fresh copy of the built-in model.

# %%
student = Student()
training = Training(student, suspect("C"))
loop = Loop(
    training, student, steps=40, eval_steps=10, output_dir="runs/page06"
)

# %% [markdown]
# Page 04's step took the model from careless to nearly always right. Where
# will suspect C end?

# %%
guess = None  # a number between 0 and 1
# SOLUTION
guess = 0.6
# END SOLUTION

# %%
run = LiveRun(loop, guess)
run

# %% tags=["solution"]
run.figure()

# %% [markdown]
# ## 6.3 Seven curves

# %%
from rlkit.course import here

here("6.3")

# %%
history = run.result()
first, last = run.accuracy[0][1], run.accuracy[-1][1]
print(f"suspect C after {len(history)} steps: {first:.2f} to {last:.2f}")

# %% [markdown]
# All six suspects, and the right step, were trained this way three times.
# The file in `data/evidence` holds where each run ended, and this is how it
# was made: `rlkit evidence 06`.

# %%
ends = evidence.load("06")
for who in ("right", *"ABCDEF"):
    three = sorted(ends[f"accuracy {who}"])
    print(f"{who:6}", "  ".join(f"{x:.2f}" for x in three))

# %% [markdown]
# Take the lowest of the right step's runs. Whose mean lies below it? Only
# those could be accused.

# %%
low = min(ends["accuracy right"])
mean = {who: sum(ends[f"accuracy {who}"]) / 3 for who in "ABCDEF"}
print("accused:", *(who for who in mean if mean[who] < low))
print("free to go:", *(who for who in mean if mean[who] >= low))

# %% [markdown]
# Look at the accused one's three runs: in which of them would you have
# noticed? And nobody goes free because the mistake does no harm. On a
# harder task, with a larger model, for weeks, the same mistakes cost dearly:
# a model that never learns to stop, that is paid for its prompt, that walks
# away from its reference. The task here is too small and the run too short
# to show it. Nor does a low end say *what* is wrong.
#
# ## 6.4 A probe
# Do not ask the step to train. Ask a part of it a question whose answer you
# know. `count` was asked one in the first section. As a
# probe:

# %%
from rlkit.course import here

here("6.4")


# %%
def probe_ends(count):
    """Does count(ids, 9) count up to and with the first end?"""
    ids = torch.tensor([[5, 6, 9, 9], [5, 6, 7, 8]])
    wanted = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    return torch.equal(count(ids, 9).int(), wanted.int())


# %%
# NBVAL_CHECK_OUTPUT
counts = {letter: suspect(letter).count for letter in "ABCDEF"}
print([letter for letter in counts if not probe_ends(counts[letter])])

# %% [markdown]
# One suspect is found, in a thousandth of a second. What made the question a
# good one? Its two rows differ in what could go wrong: one ends and one is
# cut off, and the filling is the same token as the end.
#
# ## Exercise 6.1  Who moves when one reward is raised
# *10 minutes, two dots of three.* `baseline(rewards, G)` is to give each
# completion the mean reward of the *others* of its prompt. Write a probe:
# True if it does. It will be tried on right baselines and on wrong ones, so
# choose rewards that give every mistake away.

# %% exercise="probe_baseline"
@check.probe_baseline
def probe_baseline(baseline):
    """Is baseline(rewards [B], G) -> [B] the mean of the others?"""
    # SOLUTION
    before = torch.tensor([1.0, 0.0, 0.5, 0.25, 3.0, 2.0])
    after = before.clone()
    after[0] += 3.0
    moved = baseline(after, 3) - baseline(before, 3)
    return torch.allclose(moved, torch.tensor([0, 1.5, 1.5, 0, 0, 0]))
    # END SOLUTION

# %% [markdown]
# ## Exercise 6.2  Which way a penalty pulls
# *8 minutes, two dots of three.* `penalty(logp, logp_ref)` is to be 0 where
# the model and its reference agree, and above 0 on either side, however it
# is computed. Write the probe. (Page 05 has the formulas; you need none.)

# %% exercise="probe_penalty"
@check.probe_penalty
def probe_penalty(penalty):
    """Is penalty(logp, logp_ref) [N] 0 where they agree, else above 0?"""
    # SOLUTION
    x = torch.tensor([-0.7, 0.0, 0.7])
    found = penalty(x, torch.zeros(3))
    return bool(found[1] == 0 and found[0] > 0 and found[2] > 0)
    # END SOLUTION

# %% [markdown]
# ## 6.5 The line-up
# The other three parts have probes too. Each rests on one sentence:
#
# - `place`: a prompt was not written by the model, so no token of it counts.
# - `old`: before the first update of a step every ratio is exactly 1.
# - `spread`: one group's rewards do not touch another group.

# %%
from rlkit.course import here

here("6.5")

# %%
probes = dict(
    count=probe_count,
    place=probe_place,
    old=probe_old,
    baseline=probe_baseline,
    spread=probe_spread,
    penalty=probe_penalty,
)

# %% [markdown]
# How many of the 36 answers below will be *wrong*?

# %%
guess = None  # a whole number
# SOLUTION
guess = 6
# END SOLUTION

# %%
# NBVAL_CHECK_OUTPUT
table = {
    letter: {
        name: bool(probe(getattr(suspect(letter), name)))
        for name, probe in probes.items()
    }
    for letter in "ABCDEF"
}
print("  ", *(f"{name:9}" for name in NAMES))
for letter, row in table.items():
    marks = ("right" if row[name] else "WRONG" for name in NAMES)
    print(f"{letter}  " + " ".join(f"{mark:9}" for mark in marks).rstrip())

# %% [markdown]
# Each suspect fails one probe, and no probe accuses an innocent part. The
# picture of this page: on the left what the curves say, on the right what
# the probes say.

# %%
from rlkit.course.lineup import lineup

lineup(ends, table)

# %%
wrong = {
    letter: [name for name in NAMES if not row[name]]
    for letter, row in table.items()
}
assert all(len(names) == 1 for names in wrong.values())
assert wrong == {letter: [SUSPECTS[letter]] for letter in SUSPECTS}

# %% [markdown]
# What they did, in their own words:

# %%
# NBVAL_CHECK_OUTPUT
for letter, name in SUSPECTS.items():
    print(f"{letter}  {name:9}", MISTAKES[name].__doc__)

# %% [markdown]
# ## 6.6 The map to the library
#
# | your probe | the part in rlkit |
# |---|---|
# | `probe_ends` | `rlkit.rollout.eos_mask` |
# | `probe_baseline` | `rlkit.advantages.leave_one_out` |
# | `probe_spread` | `rlkit.advantages.group_relative` |
# | `probe_penalty` | `rlkit.objectives.kl_divergence` |
#
# A probe asks for a function of a certain form; a line each brings the
# library's into it.

# %%
from rlkit.course import here

here("6.6")


# %%
def count_of_rlkit(ids, eos):
    return eos_mask(ids, torch.tensor([eos]))[0]


def baseline_of_rlkit(rewards, num_generations):
    return rewards - leave_one_out(rewards, num_generations)


def penalty_of_rlkit(logp, logp_ref):
    return kl_divergence(logp, logp_ref, "k3")


# %%
# NBVAL_CHECK_OUTPUT
assert probe_ends(count_of_rlkit)
assert probe_baseline(baseline_of_rlkit)
assert probe_penalty(penalty_of_rlkit)
print("rlkit passes")

# %% [markdown]
# `group_relative` does not give its spread away, but it can be asked what it
# does with a reward of the other group: nothing.

# %%
# NBVAL_CHECK_OUTPUT
quiet = torch.tensor([0.0, 1.0, 0.5, 0.0, 1.0, 0.5])
loud = quiet * torch.tensor([10, 10, 10, 1, 1, 1])
same = group_relative(quiet, 3)[3:] == group_relative(loud, 3)[3:]
print(same.tolist())

# %% [markdown]
# ## What stays
# - A curve that rises says that the step is not wholly wrong, and no more:
#   most of the suspects ended as high as the right step.
# - A probe is a small input whose outcome is known without the code: ask
#   what must be 0, what must be 1, what must not move.
# - A good probe has rows that differ in what could go wrong. The checks of
#   this course are made of such rows, and so are the tests in `tests/`.
# - What a probe does not ask, it does not find. These six say nothing of
#   sampling, of the optimiser, of a wrong sign in the reward itself.
