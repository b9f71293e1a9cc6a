"""Page 01: which tokens of a completion count."""

import torch
from torch import Tensor

from rlkit import rollout
from rlkit.course.exercises.exercise import Case, Exercise, Outputs, Wrong


def eos_mask(completion_ids, eos_ids):
    """completion_ids [B, T], eos_ids [E] -> mask [B, T], finished [B]"""
    is_eos = torch.isin(completion_ids, eos_ids)
    ended_before = is_eos.cumsum(1) - is_eos.long()
    return ended_before == 0, is_eos.any(1)


# --- wrong answers


def is_end(completion_ids: Tensor, eos_ids: Tensor) -> Tensor:
    return torch.isin(completion_ids, eos_ids)


def eos_dropped(completion_ids, eos_ids) -> Outputs:
    ends = is_end(completion_ids, eos_ids)
    return ends.cumsum(1) == 0, ends.any(1)


def not_pad(completion_ids, eos_ids) -> Outputs:
    ends = is_end(completion_ids, eos_ids)
    return ~ends, ends.any(1)


def not_zero(completion_ids, eos_ids) -> Outputs:
    return completion_ids != 0, is_end(completion_ids, eos_ids).any(1)


def one_more(completion_ids, eos_ids) -> Outputs:
    mask, finished = eos_mask(completion_ids, eos_ids)
    return torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], 1), finished


def begins_late(completion_ids, eos_ids) -> Outputs:
    mask, finished = eos_mask(completion_ids, eos_ids)
    return torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :-1]], 1), finished


def rolled(completion_ids, eos_ids) -> Outputs:
    mask, finished = eos_mask(completion_ids, eos_ids)
    return mask.roll(-1, 1), finished


def up_to_argmax(completion_ids, eos_ids) -> Outputs:
    """argmax of a row without EOS is 0."""
    ends = is_end(completion_ids, eos_ids)
    place = torch.arange(completion_ids.shape[1])
    return place <= ends.int().argmax(1, keepdim=True), ends.any(1)


def truncated_empty(completion_ids, eos_ids) -> Outputs:
    mask, finished = eos_mask(completion_ids, eos_ids)
    return mask & finished[:, None], finished


def up_to_last(completion_ids, eos_ids) -> Outputs:
    ends = is_end(completion_ids, eos_ids)
    to_come = ends.flip(1).cumsum(1).flip(1) > 0
    return to_come | ~ends.any(1, keepdim=True), ends.any(1)


def first_id_alone(completion_ids, eos_ids) -> Outputs:
    return eos_mask(completion_ids, eos_ids[:1])


def last_token_alone(completion_ids, eos_ids) -> Outputs:
    mask, _ = eos_mask(completion_ids, eos_ids)
    return mask, is_end(completion_ids, eos_ids)[:, -1]


def truncated(completion_ids, eos_ids) -> Outputs:
    mask, finished = eos_mask(completion_ids, eos_ids)
    return mask, ~finished


def shorter(completion_ids, eos_ids) -> Outputs:
    mask, _ = eos_mask(completion_ids, eos_ids)
    return mask, ~mask[:, -1]


WRONGS = [
    Wrong(
        "EOS dropped",
        "The EOS itself is masked.",
        "Who teaches the model to stop, if its stopping does not count?",
        [eos_dropped],
    ),
    Wrong(
        "not pad",
        "You look at each token by itself.",
        "The padding may be the EOS token, or anything else. Find the first EOS of a row.",
        [not_pad, not_zero],
    ),
    Wrong(
        "shifted by one",
        "Your mask is one place off.",
        "Logit t predicts token t+1; but this mask is of the tokens, not of the logits.",
        [one_more, begins_late, rolled],
    ),
    Wrong(
        "no EOS",
        "A row without an EOS goes wrong.",
        "It was cut off: all of its tokens were chosen, so its mask is all ones.",
        [up_to_argmax, truncated_empty],
    ),
    Wrong(
        "last EOS",
        "Your mask goes up to the last EOS.",
        "After the first EOS the completion is over, whatever follows.",
        [up_to_last],
    ),
    Wrong(
        "one EOS alone",
        "Only the first of eos_ids ends a completion.",
        "Any of them does: see torch.isin.",
        [first_id_alone],
    ),
    Wrong(
        "finished",
        "The mask is right, `finished` is not.",
        "A completion is finished if an EOS stands anywhere in it, also in its last place.",
        [last_token_alone, truncated, shorter],
    ),
]


def case(about: str, rows: list[list[int]], eos: list[int]) -> Case:
    return Case(about, (torch.tensor(rows), torch.tensor(eos)))


EXERCISE = Exercise(
    name="masks",
    page="01",
    solution=eos_mask,
    library=rollout.eos_mask,
    twins=[rollout.eos_mask],
    cases=[
        case("EOS is 2, pad is 0", [[5, 7, 4, 2, 0], [4, 2, 0, 0, 0], [3, 5, 7, 6, 4]], [2]),
        case("EOS is 2, pad is 2", [[5, 2, 2, 2], [7, 6, 4, 2]], [2]),
        case("EOS is 2, anything follows it", [[3, 2, 6, 2, 5], [8, 0, 3, 2, 7]], [2]),
        case("EOS is 2 or 9", [[4, 9, 2, 2], [2, 0, 9, 0], [6, 8, 4, 9]], [2, 9]),
    ],
    wrongs=WRONGS,
    hints=(
        "is_eos = torch.isin(completion_ids, eos_ids) says where an EOS stands, [B, T].",
        "is_eos.cumsum(1) counts the EOS so far. Take away the one that stands here, and the "
        "count is of those strictly before.",
        "A token counts if no EOS stands before it: the count is 0. A row is finished if "
        "is_eos.any(1).",
    ),
    outputs=("mask", "finished"),
)
