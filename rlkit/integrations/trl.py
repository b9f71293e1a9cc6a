"""TRL's trainers with rlkit's head: one line, and everything else stays TRL's.

    from rlkit.integrations.trl import use_rlkit_head
    trainer = use_rlkit_head(trl.GRPOTrainer(...))      # or RLOOTrainer

TRL asks a model for log-probs by `model(..., labels=labels, fused_lm_head=True)`, and labels are
-100 except on completion tokens. Afterwards that call runs the same backbone, then

    logp, entropy = lm_head(hidden, targets)            # rlkit's Head, on the N labelled tokens

and TRL's own loss, metrics and masks go on from there. Any other call of the model (generate, say)
goes TRL's way. lm_head stays the same object with the same Parameters: only its class changes, so
state-dict names, tied weights, hooks, and whoever holds the module already (FSDP, DeepSpeed) see
nothing new.

Left out on purpose: the fused loss, which would need TRL's formulas written a second time; vision
models and the mixture-of-experts loss, which are refused.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlkit.config import unknown
from rlkit.head import Head, into_rows
from rlkit.logits import check_logits, logit_transform
from rlkit.optional import require
from rlkit.policy import causal_lm

MODES = ("chunked", "full", "auto")
"""Of token_logps' modes those that need no objective: the loss is TRL's."""

IGNORED = -100
"""The label of a token that is not scored."""

SWITCHES = "_rlkit_head"
"""The attribute of a trainer that remembers what was changed."""

Trainer = TypeVar("Trainer")


def use_rlkit_head(
    trainer: Trainer, *, mode: str = "chunked", tile_bytes: int | None = None
) -> Trainer:
    """The same trainer; its policy and its reference model now score through rlkit's Head.

    trainer: a trl.GRPOTrainer or trl.RLOOTrainer, best before train(). With or without adapters
        (PEFT); TRL itself refuses LoRA on the output head.
    mode, tile_bytes: as for token_logps. "full" makes all logits of the completions at once.
    A second call only replaces these two; use_trl_head takes everything back.
    Raises ValueError, in one sentence and with nothing changed, for what this head cannot score;
    TypeError for another kind of trainer; ImportError without trl.
    """
    check_trainer(trainer)
    if mode not in MODES:
        raise ValueError(unknown("mode", mode, MODES))
    models = scored_models(trainer)
    for model in models.values():
        check_model(model)
    use_trl_head(trainer)
    switches = []
    for role, model in models.items():
        made = Switch(model, linears(model.get_output_embeddings()), model.forward)
        # TRL asks its reference for log-probs alone
        made.turn_on(trainer.temperature, role == "policy", mode=mode, tile_bytes=tile_bytes)
        switches.append(made)
    setattr(trainer, SWITCHES, switches)
    return trainer


def use_trl_head(trainer: Trainer) -> Trainer:
    """The same trainer with TRL's own head again. Where that is in use, nothing happens."""
    for switch in vars(trainer).pop(SWITCHES, []):
        switch.turn_off()
    return trainer


def scored_models(trainer: Any) -> dict[str, nn.Module]:
    """The transformers models inside the wrappers of accelerate and PEFT, by their role."""
    models = {"policy": trainer.model, "reference": getattr(trainer, "ref_model", None)}
    unwrap = trainer.accelerator.unwrap_model
    return {role: causal_lm(unwrap(model)) for role, model in models.items() if model is not None}


# ---- one model -------------------------------------------------------------------------------


@dataclass
class Switch:
    """What a model was before, and whether rlkit's head is in use.

    `on` stays with the model's forward: where accelerate has wrapped that since, it cannot be
    taken out, but passes every call on.
    """

    model: nn.Module
    heads: list[nn.Linear]
    forward_before: Callable
    forward: Callable | None = None
    on: bool = False

    def turn_on(self, temperature: float, entropy: bool, **options: Any) -> None:
        """options: Head's. entropy: whether TRL uses it."""
        transform = logit_transform(self.model.config)
        for linear in self.heads:
            become_head(linear, **options, **transform)
        score = functools.partial(token_scores, temperature=temperature, entropy=entropy)
        self.forward = MethodType(scoring_forward(self, score), self.model)
        self.model.forward = self.forward
        self.on = True

    def turn_off(self) -> None:
        """lm_head is an nn.Linear again."""
        self.on = False
        for head in self.heads:
            become_linear(head)
        if self.model.forward == self.forward:
            self.model.forward = self.forward_before


def scoring_forward(switch: Switch, score: Callable) -> Callable:
    """A forward method that scores where TRL asks for it, else does what it did before."""

    # generate holds its arguments against the signature of the model's own forward
    @functools.wraps(type(switch.model).forward)
    def forward(
        self: nn.Module, *args: Any, fused_lm_head: bool = False, labels: Any = None, **kwargs: Any
    ) -> Any:
        if fused_lm_head and switch.on:
            return score(self, labels, *args, **kwargs)
        if fused_lm_head:
            kwargs["fused_lm_head"] = True
        return switch.forward_before(*args, labels=labels, **kwargs)

    return forward


def token_scores(
    model: nn.Module, labels: Tensor, *args: Any, temperature: float, entropy: bool, **kwargs: Any
) -> Any:
    """What TRL's fused head returns: log_probs and entropy, [B, S - 1] float32, 0 where ignored.

    labels: [B, S], -100 where no score is wanted. The rest goes to the backbone as it is.
    One read of the device a call: how many labels there are.
    """
    kwargs["use_cache"] = False
    hidden = model.base_model(*args, **kwargs).last_hidden_state  # [B, S, H]
    # the state at s predicts token s + 1; the last one predicts nothing
    labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)  # [B, S]
    index = (labels.flatten() != IGNORED).nonzero().squeeze(1)  # [N]
    logp, entropies = model.get_output_embeddings()(
        hidden.flatten(0, 1).index_select(0, index),
        labels.flatten().index_select(0, index),
        temperature=temperature,
        entropy=entropy,
    )
    rows = [x if x is None else into_rows(x, index, labels.shape) for x in (logp, entropies)]
    # copied, because FSDP2 warns of views that leave a forward
    logp, entropies = (x if x is None else x[:, :-1].clone() for x in rows)
    output = require("trl.trainer.utils", "use_rlkit_head").FusedCausalLMOutput
    return output(log_probs=logp, entropy=entropies)


def become_head(linear: nn.Linear, **options: Any) -> None:
    """Turns this very nn.Linear into a Head; options as for Head."""
    linear.__class__ = Head
    for name, value in settings(**options).items():
        setattr(linear, name, value)


def become_linear(head: Head) -> None:
    """Undoes become_head."""
    for name in settings():
        delattr(head, name)
    head.__class__ = nn.Linear


def settings(**options: Any) -> dict[str, Any]:
    """What a Head made with these options remembers, apart from its weight."""
    module = vars(nn.Module())
    made = vars(Head(nn.Parameter(torch.empty(0, 0)), **options))
    return {name: value for name, value in made.items() if name not in module}


def linears(output_head: nn.Module) -> list[nn.Linear]:
    """The plain linear layers that an output head consists of: itself, or PEFT's copies of it.

    Raises ValueError for other kinds.
    """
    found = [output_head]
    if hasattr(output_head, "modules_to_save") and hasattr(output_head, "original_module"):
        found = [output_head.original_module, *output_head.modules_to_save.values()]
    for linear in found:
        if type(linear) not in (nn.Linear, Head):
            raise ValueError(
                f"the output head is a {type(linear).__name__} where rlkit's head takes the place "
                "of a plain nn.Linear; leave lm_head out of target_modules and of quantization"
            )
        if "forward" in vars(linear):
            raise ValueError(
                "the output head's forward has been replaced, as device_map does over several "
                "devices; load the model onto one device"
            )
    return found


# ---- what cannot work ------------------------------------------------------------------------


def check_trainer(trainer: Any) -> None:
    """Raises TypeError or ValueError, naming the argument of TRL's to change."""
    trl = require("trl", "use_rlkit_head")
    if not isinstance(trainer, trl.GRPOTrainer | trl.RLOOTrainer):
        raise TypeError(
            f"use_rlkit_head takes a trl.GRPOTrainer or trl.RLOOTrainer, not a "
            f"{type(trainer).__name__}"
        )
    if not asks_for_scores(type(trainer)):
        raise ValueError(
            f"{type(trainer).__name__} of TRL {trl.__version__} does not score by "
            "model(..., fused_lm_head=True), the call that rlkit's head answers; use TRL 1.16"
        )
    args = trainer.args
    if args.use_liger_kernel:
        raise ValueError(
            "use_liger_kernel=True replaces parts of the model once more when training starts; "
            "turn it off to use rlkit's head"
        )
    if getattr(args, "cast_lm_head_to_fp32", False):
        raise ValueError(
            "cast_lm_head_to_fp32=True replaces the output head's forward; turn it off: the logits "
            "of rlkit's head are float32 whatever the weights are"
        )
    if getattr(trainer, "aux_loss_enabled", False):
        raise ValueError(
            "rlkit's head does not compute the balancing loss of mixture-of-experts models; "
            "set router_aux_loss_coef=0.0"
        )


def asks_for_scores(trainer: type) -> bool:
    """Whether this trainer's method for log-probs makes the call that token_scores answers."""
    try:
        return "fused_lm_head=True" in inspect.getsource(trainer._get_per_token_logps_and_entropies)
    except (AttributeError, OSError):  # there is no such method, or no source of it
        return False


def check_model(model: nn.Module) -> None:
    """Raises ValueError if the Head would not give this model's log-probs."""
    kind = type(model).__name__
    if model.config.get_text_config() is not model.config:
        raise ValueError(
            f"{kind} reads more than text, and rlkit's head scores models of text alone; "
            "use a text-only checkpoint"
        )
    if model.base_model is model:
        raise ValueError(f"{kind} has no backbone that can be called without its output head")
    linears(model.get_output_embeddings())
    check_logits(model, "leave it to TRL's own head")
