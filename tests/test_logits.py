"""What models do to their logits after lm_head: known, or refused at the door."""

import models
import pytest
import torch

from rlkit.logits import check_logits
from rlkit.policy import Policy

SIZES = dict(
    vocab_size=15, hidden_size=32, intermediate_size=48, num_hidden_layers=2, pad_token_id=0,
    num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=64,
    eos_token_id=1, bos_token_id=None,
)  # fmt: skip
MAMBA = dict(mamba_d_ssm=32, mamba_n_heads=2, mamba_d_head=16, mamba_d_state=8)
UNKNOWN = {
    "FalconH1": dict(lm_head_multiplier=0.5, **MAMBA),
    "HyperCLOVAX": dict(logits_scaling=2.0),  # which multiplies, where Granite's divides
    "RecurrentGemma": {},
    "xLSTM": dict(num_heads=2, embedding_dim=32),
}
KNOWN = {
    "Granite": dict(logits_scaling=2.0),
    "Cohere": dict(logit_scale=0.25),
    "Gemma2": dict(final_logit_softcapping=2.0),
    "NanoChat": dict(final_logit_softcapping=3.0),
    "Llama": {},
}


def make(name, **settings):
    """A tiny model of this kind; skips where transformers does not have it."""
    hf = pytest.importorskip("transformers")
    if not hasattr(hf, f"{name}ForCausalLM"):
        pytest.skip(f"this version of transformers has no {name}")
    config = getattr(hf, f"{name}Config")(**(SIZES | settings))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(hf, f"{name}ForCausalLM")(config).eval()


@pytest.mark.parametrize("name", UNKNOWN)
def test_logits_that_rlkit_does_not_know_are_refused(name):
    model = make(name, **UNKNOWN[name])
    with pytest.raises(ValueError, match=f"{name}ForCausalLM.*after lm_head.*cannot be trained"):
        Policy(model)
    assert isinstance(model.get_output_embeddings(), torch.nn.Linear)


@pytest.mark.parametrize("name", KNOWN)
def test_known_ones_are_scored_as_the_model_itself_does(name):
    from ranks import random_batch

    model, batch = make(name, **KNOWN[name]), random_batch()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= 10  # far into the softcap
    ids = torch.cat([batch.prompt_ids, batch.completion_ids], 1)
    logp = model(input_ids=ids).logits[:, 3:-1].float().log_softmax(-1)
    expected = logp.gather(2, batch.completion_ids[..., None]).squeeze(2) * batch.mask
    found = Policy(model)(batch.rows(slice(None)))[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_model_whose_forward_cannot_be_followed_is_refused():
    from transformers import LlamaForCausalLM

    class Unreadable(LlamaForCausalLM):
        def forward(self, *args, must_be_given, **kwargs):
            return super().forward(*args, **kwargs)

    model = models.model("llama")
    model.__class__ = Unreadable
    with pytest.raises(ValueError, match="cannot see.*Unreadable.*: the remedy"):
        check_logits(model, "so: the remedy")


def test_the_check_reads_no_weight_and_leaves_the_model_as_it_was():
    with torch.device("meta"):
        model = models.model("gemma3")
    model.lm_head.forward = own = model.lm_head.forward
    check_logits(model, "")
    assert vars(model.lm_head)["forward"] is own and "forward" not in vars(model.model)
