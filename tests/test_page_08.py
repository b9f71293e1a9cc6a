"""What page 08 uses without explaining it: a model with a wide vocabulary, and its bytes."""

import torch

from rlkit.course.pages import page_08


def test_the_wide_adder_writes_what_the_adder_writes():
    from rlkit.policy import load_model

    narrow = load_model("adder")
    wide, tokenizer = page_08.wide_adder(1000)
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    with torch.no_grad():
        expected = narrow(ids).logits.log_softmax(-1)
        logp = wide(ids).logits.log_softmax(-1)
    assert logp.shape[-1] == len(tokenizer) == 1000
    torch.testing.assert_close(logp[..., :15], expected, atol=1e-4, rtol=0)
    assert logp[..., 15:].exp().sum(-1).max() < 1e-3
    assert wide.lm_head.weight is wide.get_input_embeddings().weight


def test_measured_counts_what_a_function_holds():
    def way(count):
        kept = torch.zeros(count)
        del kept
        return torch.ones(1)

    result, meter, before = page_08.measured(way, 1_000_000)
    assert result == 1
    assert 4_000_000 <= meter.peak - before < 4_001_000


def test_chunked_policy_is_a_loss_with_its_gradients():
    noise = torch.Generator().manual_seed(0)
    sides = [torch.randn(n, 4, generator=noise, dtype=torch.float64) for n in (7, 11)]
    sides = [side.requires_grad_() for side in sides]
    targets = torch.randint(11, (7,), generator=noise)
    A = torch.randn(7, generator=noise, dtype=torch.float64)

    def loss_of(logp, rows):
        return -(A[rows] * logp.exp()).sum()

    logp = (sides[0] @ sides[1].T).log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    expected = loss_of(logp, slice(None))
    grads = torch.autograd.grad(expected, sides)
    got = page_08.chunked_policy(*(x.detach() for x in sides), targets, 3, loss_of)
    torch.testing.assert_close(got[1:], grads)
    assert abs(got[0] - expected) < 1e-6
