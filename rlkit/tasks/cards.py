"""The data cards of data/adder/, data/arithmetic/ and data/critic/, for what writes them."""

ADDER = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---

# adder

A character-level Qwen3 model of {parameters:,} parameters that adds, not very well: the base from
which reinforcement learning starts. It answers two tasks (`data/arithmetic/`).

| task | prompt | right completion | greedy | sampled, temperature 1 |
|---|---|---|---|---|
| `sums` | `27+58=` | `85` | {sums_greedy:.1%} | {sums_sampled:.1%} |
| `steps` | `27+58+4+9=` | `85+4+9=89+9=98` | {steps_greedy:.1%} | {steps_sampled:.1%} |

Accuracies are on the 500 held-out prompts of each task, in float32 on a CPU: one greedy
completion a prompt, {samples} sampled ones. `steps` counts the number after the last `=` alone.

## How it was made

    python -m rlkit.tasks.arithmetic pretrain

{updates} updates of supervised learning on fresh random prompts, on one CPU core, with fixed seeds:
the same bytes again on the same machine with the same versions. First the answers are right, until
the model adds well; then a careless teacher writes them (`rlkit/tasks/teacher.py`). It forgets
carries, has the sums of some pairs of digits wrong by one, and slips by one in a digit. On `sums`
the first two happen more often than not, so that greedy decoding is wrong on about half of the
prompts; on `steps` they are rarer. The mistakes are planted: the model is an instrument for
lessons, and says nothing about what larger models find hard.

## What it has not seen

No prompt of either eval set, whatever the order of its numbers, was a training prompt or a line
inside a worked answer; no held-out pair of `sums` was added anywhere in a chain. Training texts
with a wrong answer are held to this too. The train files of `data/arithmetic/` are drawn in the
same way as the pretraining prompts, and share some of them.

## Files and limits

`model.safetensors` (float32, embeddings tied with the output), `config.json`,
`generation_config.json`, `tokenizer.json`, `tokenizer_config.json`. Vocabulary: ten digits, `+`,
`=`, and `<pad>`, `<eos>`, `<unk>`; pad is not EOS; padding is on the left; there is no BOS and no
chat template. Context 128 tokens. Numbers of more than two digits, other signs and other tasks
are outside what it was trained on.
"""

ARITHMETIC = """\
# Arithmetic

Two tasks, each with a train and an eval file of JSON lines, `{{"prompt": ..., "answer": ...}}`,
both strings. The model's tokens are characters; completions end in EOS, counted here.

| file | rows | prompt | right completion | tokens of it |
|---|---|---|---|---|
| `sums_train`, `sums_eval` | {train}, {eval} | `27+58=` | `85` | 3-4 |
| `steps_train`, `steps_eval` | {train}, {eval} | `27+58+4+9=` | `85+4+9=89+9=98` | 8-31 |

`sums`: two numbers of 1 to 99 that make at least 10, every pair equally likely.
`steps`: three to five numbers of one or two digits (each length equally likely), at most
{digits} digits in all, the first two making at least 10. The completion replaces the first two
numbers by their sum and copies the rest, until one number is left.

The reward is 1.0 or 0.0: for `sums` the whole completion must be the answer, for `steps` what
follows the last `=`, character for character.

What holds, and is tested:
- No prompt stands twice, in one file or in two.
- `sums`: if `a+b` is in eval, neither `a+b` nor `b+a` is in train.
- `steps`: no train prompt has the numbers of an eval prompt in any order; nor has a line of its
  worked answer; and no train prompt's worked answer adds a pair of `sums_eval`.
- `steps_eval` may add pairs that are in `sums_train` or `sums_eval`.

Made by `python -m rlkit.tasks.arithmetic data`, the same bytes each time. Licence: Apache-2.0.
"""

CRITIC = """\
---
license: apache-2.0
library_name: transformers
---

# critic

A value model of {parameters:,} parameters for the adder (`data/adder/`): what half an answer is
worth, which is the chance that the adder, going on from there, ends right. For lessons on PPO.

    from rlkit.tasks.critic import load_critic
    values = load_critic()(rollout)          # [B, T]; values[b, t] judges the text before token t

Mean values on the 500 held-out prompts of each task, one sampled completion each:

| task | mean reward | at the prompt | after a right first token | after a wrong one | \
squared error at the end | of a constant |
|---|---|---|---|---|---|---|
{rows}

The last two columns compare the value before the last token with the reward: the error of the
critic, and that of always saying the mean reward. On `sums` it has learned to add. On `steps` it
knows little more than the mean: lessons use `sums`.

## How it was made

    python -m rlkit.tasks.critic

{updates} updates, on one CPU core, with fixed seeds: the same bytes again on the same machine with
the same versions. It starts as a copy of the adder with a value head of zeros. For each update the
adder samples {batch}
at temperature 1, to fresh random prompts; the critic learns towards the reward at every token (half
the squared error; Muon and AdamW, a learning rate that rises shortly and then falls to 0). No
prompt of either eval set was among them, in any order.

## Files and limits

`model.safetensors` (float32; the layers under `model.`, the head under `value_head.`) and
`config.json`, the adder's. It needs the adder's tokenizer. It judges the answers of the adder as it
ships; of a policy that has trained since it knows less, and of other text nothing.
"""

CRITIC_ROW = (
    "| `{name}` | {accuracy:.2f} | {prompt:.2f} | {right:.2f} | {wrong:.2f} | {error:.3f} "
    "| {base_error:.3f} |"
)


def adder_card(found: dict[str, float], parameters: int, updates: int, samples: int) -> str:
    """The card of data/adder/.

    found: accuracies on the eval sets, by "sums greedy", "sums sampled", "steps greedy", "steps
        sampled".
    """
    accuracies = {name.replace(" ", "_"): value for name, value in found.items()}
    return ADDER.format(parameters=parameters, updates=updates, samples=samples, **accuracies)


def arithmetic_card(train: int, held_out: int, digits: int) -> str:
    """The card of data/arithmetic/: rows of the files, and the most digits of a steps prompt."""
    return ARITHMETIC.format(train=f"{train:,}", eval=held_out, digits=digits)


def critic_card(
    found: dict[str, dict[str, float]], parameters: int, updates: int, batch: dict[str, int]
) -> str:
    """The card of data/critic/.

    found: by task, what `rlkit.tasks.critic.measure` returns; batch: completions of an update.
    """
    rows = [CRITIC_ROW.format(name=name, **numbers) for name, numbers in found.items()]
    sizes = " and ".join(f"{count} answers to `{name}`" for name, count in batch.items())
    return CRITIC.format(parameters=parameters, rows="\n".join(rows), updates=updates, batch=sizes)
