# %% [markdown]
# # 11 LoRA and FSDP: train a sliver, hold a share
#
# **After this page you can** write a low-rank update and say why it needs
# no second model for the reference, shard a weight by hand, and say which
# bytes more ranks take away and which they leave.
#
# | time | where | memory |
# |---|---|---|
# | 55 min, 1.5 of them computing | any laptop, or Colab | 1.5 GB |
#
# Page 08 made the logits small. What remains is the model itself: its
# weights, their gradients, and two numbers of AdamW for each of them. Two
# ideas attack those. One trains fewer weights, the other shares them out.

# %% [markdown]
# ## 11.1 A thin matrix
# A fine-tuning step changes a weight $W$ by some matrix of the same size.
# LoRA bets that a matrix of low rank will do: the product of a tall thin
# one, `up`, and a flat one, `down`.
#
# $$y = W x + \frac{\alpha}{r}\, \mathrm{up}\,(\mathrm{down}\, x)$$

# %%
from rlkit.course import here

here("11.1")

# %% [markdown]
# By hand, with rank 1: two inputs, three outputs, $\alpha = 2$.

# %%
# NBVAL_CHECK_OUTPUT
weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])  # [3, 2]
down = torch.tensor([[1.0, -1.0]])  # [1, 2]
up = torch.tensor([[0.5], [0.0], [1.0]])  # [3, 1]
x = torch.tensor([3.0, 1.0])
along = down @ x  # one number: how far x goes along down
print("base   ", (weight @ x).tolist())
print("along  ", along.tolist())
print("update ", (2 / 1 * up @ along).tolist())
print("together", (weight @ x + 2 / 1 * up @ along).tolist())

# %% [markdown]
# Training moves `up` and `down`; $W$ stays frozen. A fresh adapter has
# `up` = 0, so that it changes nothing. Why divide by the rank? Twice the
# rank sums twice as many products, and the same learning rate should do.
#
# ## Exercise 11.1  A low-rank update
# *8 minutes, one dot of three.* Write the layer for a batch of inputs.
# Mind the order of the products: `up @ down` would be a matrix as large as
# the weight.

# %% exercise="low_rank"
@check.low_rank
def low_rank(inputs, weight, down, up, alpha):
    """inputs [N, in], weight [out, in], down [r, in], up [out, r]
    -> [N, out]"""
    # SOLUTION
    r = len(down)
    return inputs @ weight.T + alpha / r * (inputs @ down.T @ up.T)
    # END SOLUTION

# %% [markdown]
# ## 11.2 A model with a sliver of its weights
# The built-in model, and a layer that keeps a linear layer's weight and
# puts a low-rank update beside it. The switch `on` comes in a moment.

# %%
from rlkit.course import here

here("11.2")

# %%
class LowRank(nn.Module):
    def __init__(self, linear, rank=4, alpha=16):
        super().__init__()
        self.weight = linear.weight.requires_grad_(False)
        out, wide = linear.weight.shape
        self.down = nn.Parameter(torch.randn(rank, wide) / wide**0.5)
        self.up = nn.Parameter(torch.zeros(out, rank))
        self.alpha, self.on = alpha, True

    def forward(self, x):
        if not self.on:
            return x @ self.weight.T
        flat = x.flatten(0, -2)  # [N, in]
        y = low_rank(flat, self.weight, self.down, self.up, self.alpha)
        return y.unflatten(0, x.shape[:-1])

# %%
torch.manual_seed(0)
student = Student()
student.model.requires_grad_(False)
layers = []
for parent in list(student.model.modules()):
    for name, child in list(parent.named_children()):
        if type(child) is nn.Linear:
            layers.append(LowRank(child))
            setattr(parent, name, layers[-1])
print(len(layers), "linear layers have an adapter of rank 4")

# %% [markdown]
# What share of all weights will be trained? Put your guess in, in per cent.

# %%
guess = None  # per cent
# SOLUTION
guess = 10
# END SOLUTION

# %%
weights = list(student.model.parameters())
total = sum(p.numel() for p in weights)
trained = sum(p.numel() for p in weights if p.requires_grad)
print(f"{trained:,} of {total:,}: {100 * trained / total:.1f} %")
print("your guess:", guess)

# %% [markdown]
# For a large model it is far less: the layers grow with the square of the
# width, an adapter with the width. Gradients and AdamW's two numbers are
# needed for the sliver alone.
#
# ### Adapters off: the reference
# PPO, and GRPO with $\beta > 0$, compare the policy with the model that it
# began as. That took a frozen second copy. With adapters none is needed:
# switch them off, and the model is what it was. First a nudge, so that on
# and off differ at all.

# %%
# NBVAL_CHECK_OUTPUT
with torch.no_grad():
    for layer in layers:
        layer.up += 0.02
rollout = student.sample(0, prompts=4, num_generations=2)
original = Student().policy(rollout, entropy=False)[0].detach()
found = {}
for on in (True, False):
    for layer in layers:
        layer.on = on
    logp = student.policy(rollout, entropy=False)[0].detach()
    found[on] = (logp - original).abs().max().item()
print("on: as the original?", found[True] < 1e-6)
print("off: as the original, bit for bit?", found[False] == 0)

# %%
for layer in layers:
    layer.on = True
    layer.up.data.zero_()  # fresh again

# %% [markdown]
# Count copies. A storage is a piece of memory; two tensors may share one.

# %%
# NBVAL_CHECK_OUTPUT
def copies(*models):
    """Bytes of all weights, in units of the model without adapters."""
    held = {
        p.untyped_storage().data_ptr(): p.untyped_storage().nbytes()
        for model in models
        for p in model.parameters()
    }
    return sum(held.values()) / (4 * (total - trained))


frozen = Student().model  # what a reference would be
print(f"policy and frozen reference: {copies(student.model, frozen):.2f}")
print(f"policy, adapters on or off:  {copies(student.model):.2f}")

# %% [markdown]
# ## 11.3 Does the sliver learn?
# The step of page 02: sample, compare each answer with its siblings, and
# follow the gradient. AdamW is given the adapters and nothing else.

# %%
from rlkit.course import here

here("11.3")

# %%
thin = [p for p in student.model.parameters() if p.requires_grad]
adam = torch.optim.AdamW(thin, lr=3e-3, weight_decay=0.0)


def step(k):
    rollout = student.sample(k, prompts=64, num_generations=8)
    logp = student.policy(rollout, entropy=False)[0]  # [B, T]
    advantages = leave_one_out(rollout.rewards, 8)
    share = rollout.mask / rollout.mask.sum()
    loss = -(advantages[:, None] * logp * share).sum()
    adam.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(thin, 1.0)
    adam.step()
    return {"reward": rollout.rewards.mean().item()}

# %% [markdown]
# Page 02 trained every weight. What greedy accuracy will the sliver reach
# in 20 steps?

# %%
guess = None  # a number between 0 and 1
# SOLUTION
guess = 0.8
# END SOLUTION

# %%
loop = Loop(step, student, steps=20, output_dir="runs/page11")
questions = student.task.eval[:5]
score = student.task.reward
run = LiveRun(loop, guess, questions=questions, score=score)
run

# %% [markdown]
# ## 11.4 On the ladder

# %%
from rlkit.course import here

here("11.4")
history = run.result()

# %%
ladder.add("RLOO, rank 4", run)
ladder.figure()

# %% tags=["solution"]
first, last = run.accuracy[0][1], run.accuracy[-1][1]
assert len(history) < 20 or last > max(0.85, first + 0.2), (first, last)

# %% [markdown]
# And how far has it gone from where it began? The reference costs one
# more pass with the adapters off, and no byte.

# %%
rollout = student.sample(99, prompts=16, num_generations=2)
logp = student.policy(rollout, entropy=False)[0].detach()
for layer in layers:
    layer.on = False
logp_ref = student.policy(rollout, entropy=False)[0].detach()
for layer in layers:
    layer.on = True
kl = ((logp - logp_ref) * rollout.mask).sum(1).mean()
print(f"KL from the reference: {kl:.2f} nats a completion")

# %% [markdown]
# ## 11.5 A weight on two ranks
# The other idea. A *rank* is a process, usually with a card of its own.
# All ranks train the same model on different rows. Kept whole, everything
# about the model would be there once a rank, each time the same. FSDP cuts
# every weight along its rows instead, and each rank keeps a part: of the
# weight, of its gradient, of AdamW's numbers.
#
# Two ranks by hand are two places in a list.

# %%
from rlkit.course import here

here("11.5")

# %%
# NBVAL_CHECK_OUTPUT
weight = torch.tensor([[1.0, 2], [0, 1], [3, 0], [1, 1]])  # [4, 2]
parts = list(weight.chunk(2))  # rank 0 keeps parts[0]
gathered = torch.cat(parts)
print("rank 1 keeps", parts[1].tolist())
print("gathered it is the whole:", gathered.equal(weight))

# %% [markdown]
# **All-gather.** Before a layer runs, every rank asks the others for their
# parts, and drops them after. Each rank then has its own data and its own
# loss, and so a whole gradient of its own.

# %%
# NBVAL_CHECK_OUTPUT
data = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])]
gradients = []
for x in data:
    whole = torch.cat(parts).requires_grad_()
    loss = (whole @ x).square().sum() / 2  # a share of the batch's
    loss.backward()
    gradients.append(whole.grad)
for rank, g in enumerate(gradients):
    print("rank", rank, "has", g.tolist())

# %% [markdown]
# **Reduce-scatter.** A rank updates its own rows and needs nothing but
# their gradient: the sum over ranks, cut into parts.

# %%
sharding.exchange(parts, gradients)

# %% [markdown]
# ## Exercise 11.2  Reduce-scatter
# *6 minutes, one dot of three.* What does one rank keep? A real one never
# sees the whole sum; here you may.

# %% exercise="reduce_scatter"
@check.reduce_scatter
def reduce_scatter(gradients, rank):
    """gradients [N, P]: of each of N ranks, of the same P weights
    -> [P / N]: what this rank keeps of their sum"""
    # SOLUTION
    return gradients.sum(0).chunk(len(gradients))[rank]
    # END SOLUTION

# %% [markdown]
# One process that sees both rows of data must come to the same gradient.

# %%
# NBVAL_CHECK_OUTPUT
whole = weight.clone().requires_grad_()
(torch.stack(data) @ whole.T).square().sum().div(2).backward()
flat = torch.stack([g.flatten() for g in gradients])  # [2, 8]
kept = [reduce_scatter(flat, rank) for rank in (0, 1)]
print("rank 0 keeps", kept[0].tolist())
print("rank 1 keeps", kept[1].tolist())
print("as one process:", torch.cat(kept).equal(whole.grad.flatten()))

# %% [markdown]
# ## 11.6 One rank, for real
# `Ranks` starts processes that train, each with rlkit's own trainer and a
# meter that counts every byte. The model is invented: three layers, a
# vocabulary of some thousand tokens that mean nothing. It will learn next
# to nothing in four steps; its bytes are real.

# %%
from rlkit.course import here

here("11.6")

# %%
from transformers import Qwen3Config

wide = Qwen3Config(
    vocab_size=12288,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    tie_word_embeddings=True,
    max_position_embeddings=128,
)
sizes = dict(
    per_device_train_batch_size=16,
    num_generations=8,
    prompt_length=8,
    max_completion_length=24,
    max_steps=4,
)

# %% [markdown]
# First one rank alone, with full logits, as a measure for all that
# follows. It takes a while to start: a new process imports torch.

# %%
alone = Ranks(wide, "grpo", fsdp=1, head="full", **sizes)
watch = LiveRanks(alone)
watch

# %% [markdown]
# ## 11.7 Two ranks, live

# %%
from rlkit.course import here

here("11.7")
watch.result()
print(f"{alone.at_peak()[0].bytes / 1e6:.1f} MB at the highest moment")

# %% [markdown]
# Now two ranks. Each has a batch as large as the one before, so together
# they train on twice as much. How many MB will *each* hold at its highest
# moment? Half of what one alone held is one possible answer.

# %%
guess = None  # MB
# SOLUTION
guess = 72
# END SOLUTION

# %%
two = Ranks(wide, "grpo", fsdp=2, head="full", **sizes)
watch_two = LiveRanks(two, beside=alone, guess=guess)
watch_two

# %% [markdown]
# Press **Start**. The picture to the left is the rank from before. Watch
# three things: the dark blue band at the bottom, the pale one that comes
# and goes, and the red tips.

# %%
watch_two.result()
one, (mine, other) = alone.at_peak()[0], two.at_peak()
for name in ("param", "optimizer", "activation", "logits", "all_gather"):
    before, now = (m.by_category.get(name, 0) for m in (one, mine))
    share = f"{now / before:.2f}" if before else "new"
    print(f"{name:11} {before / 1e6:6.1f} {now / 1e6:6.1f} MB   {share}")
print(f"{'together':11} {one.bytes / 1e6:6.1f} {mine.bytes / 1e6:6.1f} MB")
print("your guess:", guess)

# %% tags=["solution"]
def share(name):
    return mine.by_category[name] / one.by_category[name]


assert all(abs(share(name) - 0.5) < 0.02 for name in ("param", "optimizer"))
assert all(abs(share(name) - 1) < 0.02 for name in ("activation", "logits"))
assert abs(mine.bytes - other.bytes) < 0.01 * mine.bytes

# %% [markdown]
# Weights and AdamW's numbers are halved. Activations and logits are not:
# they belong to the rows of this rank, and no other rank has those. Gathered
# weights are new: what a rank needs for a moment and does not own.
#
# So FSDP leaves the red tips standing. The chunked and fused heads of
# page 08 take them away, on every rank, and know nothing of ranks.

# %%
guess = None  # MB at the highest moment of each rank, with a fused head
# SOLUTION
guess = 100
# END SOLUTION

# %%
fused = Ranks(
    wide, "grpo", fsdp=2, head="fused", tile_bytes=2**20, **sizes
)
watch_fused = LiveRanks(fused, beside=two, guess=guess)
watch_fused

# %%
watch_fused.result()
mine = {"full": two.at_peak()[0], "fused": fused.at_peak()[0]}
for head, moment in mine.items():
    print(f"{head:6} {moment.bytes / 1e6:5.1f} MB, peak in {moment.phase}")
same = two.rewards[:2] == fused.rewards[:2]
print("the same completions, the same rewards:", same)

# %% tags=["solution"]
assert mine["fused"].bytes < 0.85 * mine["full"].bytes
assert fused.rewards[:2] == two.rewards[:2]

# %% [markdown]
# ### A picture that stays

# %%
watch_two.figure()

# %% [markdown]
# ## 11.8 Sixty-four ranks, on paper
# A plan runs the same trainer and the same FSDP on tensors without
# content. It needs no card, and it said beforehand what you measured:

# %%
from rlkit.course import here

here("11.8")

# %%
planned, measured = two.plan().peak, two.at_peak()[0].bytes
print(f"planned  {planned / 1e6:.2f} MB")
print(f"measured {measured / 1e6:.2f} MB")
assert abs(planned / measured - 1) < 0.05

# %% [markdown]
# Now Qwen3-0.6B on up to 64 ranks, every layer recomputed in the backward
# pass. At 64 ranks, which category is the largest: weights, activations
# or logits? Decide before you look.

# %%
from rlkit.course.pages.page_11 import plans

rows = plans()
sharding.scaling(rows)

# %%
last = {row["head"]: row for row in rows if row["ranks"] == 64}
for head, row in last.items():
    print(f"{head:6} on 64 ranks: {row['peak'] / 2**30:5.2f} GiB each, "
          f"{row['logits'] / row['peak']:.0%} of it logits")

# %% tags=["solution"]
assert last["full"]["logits"] > 0.5 * last["full"]["peak"]
assert last["fused"]["peak"] < 0.6 * last["full"]["peak"]

# %% [markdown]
# More ranks divide what belongs to the model. What belongs to a batch stays
# where the batch is. Sharding and chunking do not compete: each takes what
# the other leaves. What both leave is orange and pale blue: embeddings and
# head, which are one tied weight here, gathered whole, and for a moment
# their whole gradient, before it is scattered.
#
# ## Where it lives
#
# | your cell | in rlkit |
# |---|---|
# | `low_rank`, `LowRank` | PEFT's LoRA layers, put in by `rlkit/adapters.py` |
# | `layer.on = False` | `Policy.as_reference` in `rlkit/policy.py` |
# | `torch.cat(parts)`, `reduce_scatter` | `shard` in `rlkit/distributed.py`: FSDP2 |
# | `Ranks` | `rlkit/memory/launcher.py`, `rank.py` |
# | the plans | `rlkit/memory/planner.py` |
#
# The same numbers from PEFT's layer:

# %%
# NBVAL_CHECK_OUTPUT
from peft import LoraConfig, get_peft_model

box = nn.Sequential(nn.Linear(6, 5, bias=False))
config = LoraConfig(r=2, lora_alpha=3, target_modules=["0"])
layer = get_peft_model(box, config).base_model.model[0]
down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
nn.init.normal_(up)
inputs = torch.randn(4, 6)
ours = low_rank(inputs, layer.base_layer.weight, down, up, 3)
print("as PEFT's:", torch.allclose(layer(inputs), ours, atol=1e-6))

# %% [markdown]
# ## What this page showed, and where it does not hold
# A sliver of the weights learned the sums. That is a small task, close to
# what the model knew; a new language would need more rank, or all weights.
# Adapters off are the reference only as long as the base is frozen and the
# model came without adapters: with earlier ones the reference is a frozen
# copy of those.
#
# Two ranks halve the model's bytes, not a rank's. They also pay: weights
# travel twice a step, gradients once. On a laptop that costs more than it
# saves. It pays where a model does not fit at all.
#
# From a terminal, on as many ranks as you like:
# `torchrun --nproc-per-node 2 -m rlkit train grpo --lora-rank 4`
