"""A reward model on several ranks gives the rewards, and the training, of one."""

import pytest
import ranks
import torch

pytestmark = pytest.mark.slow

CASES = [
    "train:rloo:full:short:scored:beta:minibatches",
    "train:rloo:fused:short:scored:ddp",
    "train:ppo:full:short:scored:critic:untied",
    "train:ppo:chunked:short:scored:critic:ddp:minibatches",
]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    cases = [*CASES, "scores"]
    ranks.finish([*ranks.start(1, cases, out), *ranks.start(2, cases, out)], timeout=500)
    return out


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_learn_from_a_reward_model_what_one_does(out, case):
    (one,), two = ranks.found(out, case, 1), ranks.found(out, case, 2)
    assert one["moved"] > 1e-3
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two[0]["weights"][name], weight, atol=1e-4, rtol=0)
        assert torch.equal(two[0]["weights"][name], two[1]["weights"][name])
    for expected, row in zip(one["history"], two[0]["history"], strict=True):
        assert row["reward"] == pytest.approx(expected["reward"], abs=1e-4)
    assert two[0]["accuracy"] == pytest.approx(one["accuracy"], abs=1e-4)


def test_ranks_with_fewer_batches_wait_for_the_others(out):
    (one,), two = ranks.found(out, "scores", 1), ranks.found(out, "scores", 2)
    assert one["accuracy"] != 0
    assert two[0]["accuracy"] == two[1]["accuracy"] == pytest.approx(one["accuracy"], abs=1e-5)
