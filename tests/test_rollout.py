"""Rollouts: masks end at the first EOS, and a completion does not depend on its company."""

import json
from pathlib import Path

import models
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlkit.policy import Policy
from rlkit.prompts import pad_left
from rlkit.rollout import Rollout, concatenate, eos_mask, generate
from rlkit.sampling import Sampler

EOS, PAD = 1, 0


def test_mask_ends_with_the_first_eos_even_if_padding_is_eos():
    ids = torch.tensor([[5, EOS, EOS, EOS], [5, 6, 7, 8], [EOS, 4, 4, 4], [5, 6, 7, EOS]])
    mask, finished = eos_mask(ids, torch.tensor([EOS]))
    assert mask.int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert finished.tolist() == [True, False, True, True]


def test_golden_eos_case():
    golden = json.loads((Path(__file__).parent / "golden/losses.json").read_text())
    ids = torch.tensor([[5, 2, 2, 2], [5, 7, 9, 4], [2, 2, 2, 2]])
    mask, finished = eos_mask(ids, torch.tensor([2]))
    assert mask.int().tolist() == golden["issue_cases"]["N39_eos_mask"]["expected"]
    assert finished.tolist() == [True, False, True]


def test_any_of_several_eos_tokens_ends_a_completion():
    mask, finished = eos_mask(torch.tensor([[5, 9, EOS]]), torch.tensor([EOS, 9]))
    assert mask.int().tolist() == [[1, 1, 0]] and finished.item()


@given(st.lists(st.lists(st.integers(0, 5), min_size=6, max_size=6), min_size=1, max_size=8))
def test_mask_agrees_with_a_loop(rows):
    mask, finished = eos_mask(torch.tensor(rows), torch.tensor([EOS]))
    for row, got, done in zip(rows, mask.sum(1).tolist(), finished.tolist(), strict=True):
        assert got == (row.index(EOS) + 1 if EOS in row else 6) and done == (EOS in row)


PROMPTS = [[2, 3, 12], [4, 5, 6, 7, 12], [8, 12], [3, 3, 3, 3, 12], [9, 9, 12]]


def draw(policy, picked, group=4, length=6, **sampler):
    ids, mask = pad_left([PROMPTS[i] for i in picked], PAD, "cpu")
    rows = torch.tensor([i * group + g for i in picked for g in range(group)])
    return generate(
        policy,
        ids,
        mask,
        Sampler(**({"seed": 3} | sampler)),
        num_generations=group,
        max_completion_length=length,
        eos_ids=[EOS],
        pad_id=PAD,
        rows=rows,
    )


@pytest.fixture(scope="module", params=["qwen3", "llama", "neox", "gemma3"])
def policy(request):
    return Policy(models.model(request.param))


def tokens_of(rollout: Rollout) -> list[list[int]]:
    return [i[m].tolist() for i, m in zip(rollout.completion_ids, rollout.mask, strict=True)]


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(5)), st.integers(1, 5))
def test_the_same_completions_come_out_in_any_batch(policy, order, size):
    whole = tokens_of(draw(policy, range(5)))
    picked = order[:size]
    part = tokens_of(draw(policy, picked))
    assert part == [whole[i * 4 + g] for i in picked for g in range(4)]


def test_completions_agree_with_a_loop_without_cache_or_batch(policy):
    rollout = draw(policy, [1], group=3)
    for row in range(3):
        ids = list(PROMPTS[1])
        for t in range(6):
            logits = policy.model(torch.tensor([ids])).logits[:, -1]
            token, logp = Sampler(seed=3).draw(logits, torch.tensor([3 + row]), t)
            assert token.item() == rollout.completion_ids[row, t].item()
            torch.testing.assert_close(logp[0], rollout.logp_sampled[row, t], atol=2e-5, rtol=1e-4)
            ids.append(token.item())
            if token.item() == EOS:
                break
        assert len(ids) - len(PROMPTS[1]) == rollout.mask[row].sum()


def test_scoring_gives_the_log_probs_noted_while_sampling(policy):
    rollout = draw(policy, range(5), temperature=0.8)
    scorer = Policy(policy.model, temperature=0.8)
    logp, entropy = scorer(rollout.rows(slice(None)))
    expected = rollout.logp_sampled.masked_fill(~rollout.mask, 0.0)
    torch.testing.assert_close(logp, expected, atol=2e-5, rtol=1e-4)
    assert (entropy[rollout.mask] >= 0).all()


def test_seed_and_step_change_completions(policy):
    first = tokens_of(draw(policy, range(5)))
    assert tokens_of(draw(policy, range(5), seed=4)) != first
    assert tokens_of(draw(policy, range(5), step=1)) != first
    assert tokens_of(draw(policy, range(5))) == first


def test_micro_batches_are_trimmed_and_index_their_valid_tokens():
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]).bool()
    prompt_mask = torch.tensor([[0, 1, 1], [0, 0, 1], [1, 1, 1]]).bool()
    whole = Rollout(
        prompt_ids=torch.arange(9).view(3, 3),
        prompt_mask=prompt_mask,
        completion_ids=torch.arange(12).view(3, 4),
        mask=mask,
        finished=torch.ones(3).bool(),
        rewards_per_func=torch.zeros(3, 2),
        logp_old=torch.zeros(3, 4),
    )
    part = whole.rows(torch.tensor([1, 0]))
    assert part.prompt_ids.tolist() == [[4, 5], [1, 2]]
    assert part.completion_ids.tolist() == [[4, 5, 6], [0, 1, 2]]
    assert part.logp_old.shape == (2, 3) and part.rewards_per_func.shape == (2, 2)
    assert part.completion_ids.flatten()[part.index].tolist() == [4, 0, 1, 2]


def test_parts_of_different_lengths_become_one_rollout():
    parts = [
        Rollout(
            prompt_ids=torch.full((2, p), 7),
            prompt_mask=torch.ones(2, p).bool(),
            completion_ids=torch.full((2, t), 8),
            mask=torch.ones(2, t).bool(),
            finished=torch.ones(2).bool(),
            logp_sampled=torch.ones(2, t),
        )
        for p, t in ((2, 3), (4, 1))
    ]
    whole = concatenate(parts, PAD)
    assert whole.prompt_ids[0].tolist() == [0, 0, 7, 7]
    assert whole.prompt_mask[0].tolist() == [False, False, True, True]
    assert whole.completion_ids[2].tolist() == [8, 0, 0]
    assert whole.mask[2].tolist() == [True, False, False] and len(whole) == 4
    assert whole.logp_sampled[2].tolist() == [1, 0, 0]
