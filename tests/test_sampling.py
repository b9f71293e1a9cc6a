"""Sampling: the noise belongs to (seed, step, row, position), and the draws follow the model."""

import json
from pathlib import Path

import pytest
import torch

from rlkit.sampling import Sampler, keep_top_k, keep_top_p, keyed_uniform

ROWS = torch.arange(40_000)


def test_noise_is_uniform_and_never_0_or_1():
    noise = keyed_uniform(1, 2, ROWS[:2_000], 3, 500).flatten()
    assert 0 < noise.min() and noise.max() < 1
    counts = torch.histc(noise, bins=64, min=0, max=1)
    expected = len(noise) / 64
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 63 + 4 * (2 * 63) ** 0.5


@pytest.mark.parametrize("shift", ["seed", "step", "row", "position"])
def test_noise_changes_with_every_part_of_its_key(shift):
    key = dict(seed=5, step=0, row=7, position=0)
    other = key | {shift: key[shift] + 1}
    draws = [
        keyed_uniform(k["seed"], k["step"], torch.tensor([k["row"]]), k["position"], 4_096)[0]
        for k in (key, other)
    ]
    correlation = torch.corrcoef(torch.stack(draws))[0, 1]
    assert abs(correlation) < 0.08


def test_neighbouring_columns_are_not_correlated():
    noise = keyed_uniform(0, 0, ROWS[:4_000], 0, 16)
    off_diagonal = torch.corrcoef(noise.T) - torch.eye(16)
    assert off_diagonal.abs().max() < 0.08


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_draws_follow_the_distribution(temperature):
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0])
    tokens, logp = Sampler(seed=3, temperature=temperature).draw(
        logits.expand(len(ROWS), -1), ROWS, 0
    )
    expected = (logits / temperature).softmax(0)
    found = torch.bincount(tokens, minlength=5) / len(ROWS)
    spread = (expected * (1 - expected) / len(ROWS)).sqrt()
    assert ((found - expected).abs() < 4.5 * spread + 1e-9).all()
    torch.testing.assert_close(logp, expected.log()[tokens])


def test_truncation_limits_draws_but_not_their_log_probs():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]).expand(5_000, -1)
    tokens, logp = Sampler(top_k=2).draw(logits, ROWS[:5_000], 0)
    assert set(tokens.tolist()) == {0, 1}
    torch.testing.assert_close(logp, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0])
    share = (tokens == 0).float().mean()
    assert abs(share - torch.tensor([2.0, 1.0]).softmax(0)[0]) < 0.03


def test_golden_top_p_case_keeps_the_log_prob_of_the_whole_distribution():
    golden = json.loads((Path(__file__).parent / "golden/losses.json").read_text())
    expected = golden["issue_cases"]["N48_top_p_sampler_logps"]["expected"]
    logits = torch.tensor([0.5, 0.3, 0.2]).log().expand(200, -1)
    tokens, logp = Sampler(top_p=0.8).draw(logits, ROWS[:200], 0)
    assert set(tokens.tolist()) == {0, 1}
    found = logp[tokens == 0]
    torch.testing.assert_close(found, torch.full_like(found, expected["trainer_logp"]))
    assert float((found - expected["trainer_logp"]).exp()[0]) == expected["importance_ratio"]


def test_top_k_and_top_p_keep_what_they_say():
    scores = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert keep_top_k(scores, 3).isfinite().tolist() == [[True, True, True, False]]
    assert keep_top_k(scores, 0) is scores
    assert keep_top_p(scores, 0.7).isfinite().tolist() == [[True, True, False, False]]
    assert keep_top_p(scores, 0.01).isfinite().tolist() == [[True, False, False, False]]
    assert keep_top_p(scores, 1.0) is scores


def test_greedy_takes_the_likeliest_at_temperature_1():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    tokens, logp = Sampler(greedy=True, temperature=0.1).draw(logits, ROWS[:1], 0)
    assert tokens.tolist() == [1]
    torch.testing.assert_close(logp, logits.log_softmax(-1)[:, 1])


def test_a_draw_does_not_depend_on_the_rows_beside_it():
    logits = torch.randn(64, 100, generator=torch.Generator().manual_seed(0))
    whole, _ = Sampler(seed=9, step=4).draw(logits, ROWS[:64], 2)
    some = torch.tensor([50, 3, 17])
    part, _ = Sampler(seed=9, step=4).draw(logits[some], some, 2)
    assert torch.equal(part, whole[some])
