"""What models do to their logits after lm_head, which their log-probs must not pass by.

    z = softcap(logit_scale * (h W^T + b))       Gemma's softcap, Cohere's and Granite's scale

Other models multiply by factors of other names, or by the inverse of a known one. So a model's own
forward is run once with stand-ins for backbone and lm_head, and what it returns is compared with
what rlkit makes of the same numbers: no weight is read, and a model that differs is refused before
it is scored wrongly in silence.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from rlkit.head import token_logps


def logit_transform(config: Any) -> dict[str, float | None]:
    """What a model does to its logits after lm_head: Gemma's softcap, Cohere's scale."""
    scale = getattr(config, "logit_scale", None) or 1.0
    if divisor := getattr(config, "logits_scaling", None):
        scale = scale / divisor
    return {
        "logit_softcap": getattr(config, "final_logit_softcapping", None),
        "logit_scale": float(scale),
    }


def check_logits(model: nn.Module, remedy: str) -> None:
    """Raises ValueError, ending in the remedy, where the Head would not give a model's log-probs.

    model: a causal language model of transformers, without a wrapper of PEFT's.
    """
    with unset_fake_temporarily():  # a plan must read these few numbers too
        product = torch.linspace(-40, 40, 8, dtype=torch.float32, device="cpu")
        theirs = logits_from(model, product, remedy).log_softmax(-1)
        rows, each = product.expand(8, 8), torch.arange(8, device="cpu")
        transform = logit_transform(model.config.get_text_config())
        weight = torch.eye(8, device="cpu")
        ours, _ = token_logps(rows, weight, each, mode="full", entropy=False, **transform)
        same = torch.allclose(theirs, ours, rtol=1e-3, atol=1e-3)
    if not same:
        raise ValueError(
            f"{type(model).__name__} changes its logits after lm_head in a way that rlkit does not "
            f"know; {remedy}"
        )


def logits_from(model: nn.Module, product: Tensor, remedy: str) -> Tensor:
    """What the model's own forward makes of lm_head's output, [V] -> [V] float32.

    Backbone and lm_head are played by stand-ins, so that no weight is read, wherever it lies.
    """
    hidden = product.new_zeros(1, 1, model.config.get_text_config().hidden_size)
    with (
        torch.no_grad(),
        stand_in(model.base_model, lambda *args, **kwargs: States((hidden,))),
        stand_in(model.get_output_embeddings(), lambda *args: product.clone()[None, None]),
    ):
        ids = torch.zeros(1, 1, dtype=torch.int64, device="cpu")
        try:
            return type(model).forward(model, input_ids=ids).logits.float().flatten()
        except Exception as error:
            raise ValueError(
                f"rlkit cannot see what {type(model).__name__} does to its logits after lm_head; "
                f"{remedy}"
            ) from error


class States(tuple):
    """A backbone's output that holds the last hidden states and None for anything else."""

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


@contextmanager
def stand_in(module: nn.Module, forward: Callable) -> Iterator[None]:
    """Inside, `forward` plays the module's part."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before
