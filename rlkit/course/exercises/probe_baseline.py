"""Page 06: a probe for baselines that contain what they should not."""

from collections.abc import Callable

import torch
from torch import Tensor

from rlkit.course import probes, suspects
from rlkit.course.exercises.exercise import Case, Exercise, Wrong


def probe_baseline(baseline):
    """Is baseline(rewards [B], G) -> [B] the mean of the others?"""
    before = torch.tensor([1.0, 0.0, 0.5, 0.25, 3.0, 2.0])
    after = before.clone()
    after[0] += 3.0
    moved = baseline(after, 3) - baseline(before, 3)
    return torch.allclose(moved, torch.tensor([0, 1.5, 1.5, 0, 0, 0]))


# --- what is to be probed


def by_hand(rewards: Tensor, num_generations: int) -> Tensor:
    """The mean of the others, one by one."""
    groups = rewards.split(num_generations)
    return torch.stack([(g.sum() - r) / (num_generations - 1) for g in groups for r in g])


def others_over_all(rewards: Tensor, num_generations: int) -> Tensor:
    groups = rewards.view(-1, num_generations)
    return ((groups.sum(1, keepdim=True) - groups) / num_generations).flatten()


def of_everyone_else(rewards: Tensor, num_generations: int) -> Tensor:
    return (rewards.sum() - rewards) / (len(rewards) - 1)


def of_other_prompts(rewards: Tensor, num_generations: int) -> Tensor:
    groups = rewards.view(num_generations, -1)
    return ((groups.sum(0) - groups) / max(num_generations - 1, 1)).flatten()


# --- wrong answers: probes that let something through


def always(baseline: Callable) -> bool:
    return True


def never(baseline: Callable) -> bool:
    return False


def turned(baseline: Callable) -> bool:
    return not probe_baseline(baseline)


def equal_rewards(baseline: Callable) -> bool:
    """Of equal rewards every mean is the same."""
    ones = torch.ones(6)
    return torch.allclose(baseline(ones, 3), ones)


def one_prompt(baseline: Callable) -> bool:
    before = torch.tensor([1.0, 0.0, 0.5])
    after = before + torch.tensor([3.0, 0, 0])
    moved = baseline(after, 3) - baseline(before, 3)
    return torch.allclose(moved, torch.tensor([0, 1.5, 1.5]))


def own_alone(baseline: Callable) -> bool:
    """Looks at the raised reward's own baseline and not at the others'."""
    before = torch.tensor([1.0, 0.0, 0.5, 0.25, 3.0, 2.0])
    after = before + torch.tensor([3.0, 0, 0, 0, 0, 0])
    return bool(baseline(after, 3)[0] == baseline(before, 3)[0])


def wants_own(baseline: Callable) -> bool:
    """Takes the group's mean for the right baseline."""
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.25, 3.0, 2.0])
    means = rewards.view(-1, 3).mean(1, keepdim=True).expand(-1, 3).flatten()
    return torch.allclose(baseline(rewards, 3), means)


WRONGS = [
    Wrong(
        "always content",
        "Your probe is content with everything.",
        "Which input makes a wrong baseline give another number than a right one?",
        [always],
    ),
    Wrong(
        "never content",
        "Your probe is content with nothing, not even with a right baseline.",
        "Work the right baseline out by hand for your own input, and compare.",
        [never],
    ),
    Wrong(
        "turned",
        "Your probe says True where something is wrong.",
        "True is to mean: this baseline is as it should be.",
        [turned],
    ),
    Wrong(
        "equal rewards",
        "With equal rewards every mean is the same mean.",
        "Give each completion a reward of its own.",
        [equal_rewards],
    ),
    Wrong(
        "one prompt",
        "Your input has one prompt, so nothing can leak from another.",
        "Put a second group behind the first. What must it not notice?",
        [one_prompt],
    ),
    Wrong(
        "only its own",
        "You look at the raised reward's own baseline alone.",
        "Its siblings' baselines must move. By how much?",
        [own_alone],
    ),
    Wrong(
        "wants the own reward",
        "Your probe asks for the mean of the whole group.",
        "Raise r0: may its own baseline move?",
        [wants_own],
    ),
]

EXERCISE = Exercise(
    name="probe_baseline",
    page="06",
    solution=probe_baseline,
    library=probes.probe_baseline,
    twins=[probes.probe_baseline],
    cases=[
        Case("a right baseline", (suspects.baseline,)),
        Case("the own reward is inside", (suspects.baseline_with_own,)),
        Case("right, written in another way", (by_hand,)),
        Case("the sum of the others is divided by G", (others_over_all,)),
        Case("the mean of everyone else, whatever the prompt", (of_everyone_else,)),
        Case("groups by columns", (of_other_prompts,)),
    ],
    wrongs=WRONGS,
    hints=(
        "Two calls: once with some rewards, once with one of them raised.",
        "Use two groups of three, all rewards different, and raise the first reward.",
        "Raised by 3: its own baseline moves by 0, its two siblings' by 1.5, the rest by 0.",
    ),
    outputs=("the probe's answer",),
    plain=True,
)
