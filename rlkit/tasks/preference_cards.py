"""The data cards of data/preferences/ and data/reward/, for the commands that write them."""

PAIRS = """\
# Preference pairs

Two completions of the adder to one prompt of `sums`, of which a judge prefers one. JSON lines in
TRL's form, with the right answer beside it; completions end in EOS, which is not part of the text.

    {{"prompt": "27+58=", "chosen": "85", "rejected": "75", "answer": "85"}}

| file | pairs | prompts | chosen is worth more to the judge |
|---|---|---|---|
| `sums_train` | {train:,} | {train_prompts:,} | {train_agreement:.1%} |
| `sums_eval` | {held_out:,} | {held_out_prompts:,} | {held_out_agreement:.1%} |

The judge is a formula. A completion is worth `{right:g}` if it is the right sum, less `{short:g}`
for each character; of two it prefers the better one with probability `sigmoid(difference)`
(Bradley-Terry), so that it errs in the rest of the last column. Two answers that are worth the same
to it are no pair. Nearly all answers to a prompt are equally long: only {uneven:.1%} of the pairs
differ in length, and in these the shorter answer wins {short_wins:.0%} of the time, right or wrong.
That is what a policy can exploit: the judge would rather have `93` than `103` for `41+62=`.

Completions: {drawn} of each prompt, drawn from `data/adder` at temperature {temperature}, at most
{pairs} pairs of each prompt.

What holds, and is tested:
- No two numbers of `arithmetic/sums_eval` are added here, in either order.
- No two numbers of `sums_eval` here are added in `sums_train` here, in either order.
- Prompts are those of `arithmetic/sums_train`; in `sums_train` here in both orders.

Made by `python -m rlkit.tasks.preferences data`, the same bytes again on the same machine with the
same versions. Licence: Apache-2.0.
"""

REWARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-classification
---

# A reward model for sums

A character-level Qwen3 model of {parameters:,} parameters with a score head of one label: one
number for a prompt with its completion. It loads with `AutoModelForSequenceClassification`.

| | pairs | in the judge's order |
|---|---|---|
| `data/preferences/sums_eval` | {pairs:,} | {accuracy:.1%} |

## How it was made

    python -m rlkit.tasks.preferences train

The adder is first taught by the chosen completions ({tuning} updates), then by the pairs
({steps} updates of {batch}, Bradley-Terry loss), on one CPU core, with fixed seeds:
the same bytes again on the same machine with the same versions.

## Limits

It knows answers to `27+58=` as the adder writes them, and has seen few others. It likes right sums
and short answers, as its judge does, and it errs on one pair in ten or so. A policy that is
trained on it without a KL divergence finds answers that it likes and that are wrong: for that it is
made. The score is to be read at the last token, EOS included; transformers' own forward looks for
the last token that is not `<pad>`, which is the same here.
"""
