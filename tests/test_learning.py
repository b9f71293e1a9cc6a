"""The tiny preset learns: whole runs, by their accuracy on prompts that training never shows."""

import csv

import pytest

from rlkit import data_path
from rlkit.bench import learning
from rlkit.cli import Run, algorithms, make_trainer

RUNS = [(a, t, s) for a in ("grpo", "rloo", "ppo") for t in ("sums", "steps") for s in (1, 2, 3)]


def trained(algorithm, task, **settings):
    """A trainer after its run, with (greedy, sampled) accuracy before and after."""
    trainer_class, config_class = algorithms()[algorithm]
    args = config_class.preset("tiny", task, seed=1, disable_tqdm=True, **settings)
    trainer = make_trainer(trainer_class, Run(task=task), args)
    before = learning.accuracies(trainer)
    trainer.train()
    return trainer, before, learning.accuracies(trainer)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "ppo"])
def test_sums_reach_ninety_percent(algorithm):
    _, before, after = trained(algorithm, "sums")
    assert learning.reached("sums", before, after, seconds=0), (before, after)


@pytest.mark.slow
def test_steps_gain_twenty_points():
    trainer, before, after = trained("grpo", "steps", max_steps=20)
    assert learning.reached("steps", before, after, seconds=0), (before, after)
    assert trainer.history[-1]["truncated"] < 0.05


@pytest.mark.parametrize(("algorithm", "task", "seed"), RUNS)
def test_committed_curves_reach_their_bars(algorithm, task, seed):
    path = data_path("curves") / f"{algorithm}_{task}_seed{seed}.csv"
    with path.open() as file:
        rows = list(csv.DictReader(file))
    before, after = (tuple(float(r[k]) for k in learning.MEASURED) for r in (rows[0], rows[-1]))
    seconds = sum(float(r["seconds"] or 0) for r in rows)
    assert learning.reached(task, before, after, seconds), (before, after, seconds)
    assert [int(r["step"]) for r in rows] == list(range(len(rows)))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "ppo"])
def test_the_head_changes_nothing_in_twenty_steps(algorithm):
    # tiles of a few tokens: the vocabulary is small
    settings = dict(max_steps=20, eval_steps=None, tile_bytes=2**14)
    if algorithm == "ppo":  # which reads every completion four times, in two models
        settings |= dict(per_device_train_batch_size=16)
    full, *others = (
        trained(algorithm, "sums", head=head, **settings)[0]
        for head in ("full", "chunked", "fused")
    )
    for other in others:
        for ours, theirs in zip(full.history, other.history, strict=True):
            # rounding may tip the choice between two tokens in one of the completions
            share = 2.5 / full.args.generation_batch_size
            assert abs(ours["reward"] - theirs["reward"]) < share
    if algorithm != "ppo":  # whose critic takes longer than that
        assert full.history[-1]["reward"] > full.history[0]["reward"] + 0.2
