"""Configs, reward functions and datasets carry over from TRL by changing an import."""

import copy
from dataclasses import fields

import models
import pytest

from rlkit import GRPOConfig, GRPOTrainer, RLOOConfig
from rlkit.tasks.rewards import soft_overlong_punishment

trl = pytest.importorskip("trl")

OURS_ALONE = {
    # what TRL has no word for, or leaves to accelerate
    "num_threads",
    "max_generation_batch",
    "head",
    "tile_bytes",
    "share_prefix",
    "distributed",
    "reshard_after_forward",
}


@pytest.mark.parametrize(
    ("ours", "theirs"), [(GRPOConfig, trl.GRPOConfig), (RLOOConfig, trl.RLOOConfig)]
)
def test_config_fields_bear_the_names_of_trl(ours, theirs):
    names = {f.name for f in fields(theirs)}
    assert {f.name for f in fields(ours)} - names - OURS_ALONE == set()


@pytest.mark.parametrize(
    ("ours", "theirs"), [(GRPOConfig, trl.GRPOConfig), (RLOOConfig, trl.RLOOConfig)]
)
def test_defaults_of_the_algorithm_are_those_of_trl(ours, theirs):
    expected = {f.name: f.default for f in fields(theirs)}
    for name in (
        "num_generations",
        "max_completion_length",
        "temperature",
        "top_p",
        "top_k",
        "beta",
        "epsilon",
        "epsilon_high",
        "num_iterations",
        "learning_rate",
        "max_grad_norm",
        "loss_type",
        "scale_rewards",
        "importance_sampling_level",
        "top_entropy_quantile",
        "mask_truncated_completions",
    ):
        here = {f.name: f.default for f in fields(ours)}
        if name in here and name in expected:
            assert here[name] == expected[name], name


def test_soft_overlong_punishment_is_that_of_trl():
    from trl.rewards import get_soft_overlong_punishment

    ours, theirs = soft_overlong_punishment(20, 5), get_soft_overlong_punishment(20, 5)
    ids = [[0] * n for n in range(1, 30)]
    assert ours(completion_ids=ids) == theirs(completion_ids=ids)


def test_a_reward_function_and_a_dataset_of_trl_are_used_unchanged():
    datasets = pytest.importorskip("datasets")
    from trl.rewards import get_soft_overlong_punishment

    dataset = datasets.Dataset.from_list(
        [{"prompt": f"{a}+1=", "answer": str(a + 1)} for a in range(8)]
    )
    seen = {}

    def exact(prompts, completions, answer, **kwargs):
        seen.update(kwargs, prompts=prompts)
        return [float(c == a) for c, a in zip(completions, answer, strict=True)]

    args = GRPOConfig(
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=6,
        max_steps=2,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=copy.deepcopy(models.model()),
        reward_funcs=[exact, get_soft_overlong_punishment(6, 4)],
        args=args,
        train_dataset=dataset,
        eval_dataset=dataset,
        processing_class=models.tokenizer(),
    )
    history = trainer.train()
    assert "reward/soft_overlong_punishment_reward" in history[0]
    assert {"completion_ids", "trainer_state", "log_metric", "log_extra"} <= set(seen)
    assert len(seen["prompts"]) == 8 and seen["prompts"][0] == seen["prompts"][3]
