"""Page 06's suspects, the probes that find them, and the training step they share."""

from dataclasses import replace

import pytest
import torch

from rlkit.course import lineup, suspects
from rlkit.course.probes import PROBES, examine
from rlkit.course.student import Student
from rlkit.course.suspects import MISTAKES, NAMES, SUSPECTS, Parts, Training, suspect


@pytest.mark.parametrize("letter", SUSPECTS)
def test_each_suspect_fails_its_own_probe_alone(letter):
    assert [name for name, fine in examine(suspect(letter)).items() if not fine] == [
        SUSPECTS[letter]
    ]


def test_the_right_step_passes_all_and_every_part_is_one_suspects_mistake():
    assert all(examine(Parts()).values())
    assert sorted(SUSPECTS.values()) == sorted(NAMES) == sorted(PROBES) == sorted(MISTAKES)


def test_an_unknown_suspect_is_refused():
    with pytest.raises(ValueError, match="there is no suspect 'G'; there are A, B"):
        suspect("G")


@pytest.fixture(scope="module")
def student():
    return Student(seed=3)


def weights(student):
    return torch.cat([p.detach().flatten().clone() for p in student.model.parameters()])


def test_at_its_start_the_right_step_has_ratios_of_one_and_no_penalty(student, monkeypatch):
    seen = []
    training = Training(student, Parts())
    loss = training.loss

    def noted(logp, logp_old, logp_ref, advantages, counted):
        seen.append((logp.detach() - logp_old, logp.detach() - logp_ref, counted))
        return loss(logp, logp_old, logp_ref, advantages, counted)

    monkeypatch.setattr(training, "loss", noted)
    before = weights(student)
    training(0)
    (ratio, distance, counted), (later, _, _) = seen
    assert not ratio[counted].any() and not distance[counted].any()
    assert later[counted].any() and not torch.equal(before, weights(student))
    assert all(torch.isfinite(p).all() for p in student.model.parameters())


def test_each_mistake_changes_what_is_minimised(student):
    """None of them is without effect, whatever a curve of rewards shows."""
    rollout = student.sample(1, suspects.PROMPTS, suspects.GENERATIONS)

    def loss_of(parts):
        training = Training(student, parts)
        with torch.no_grad():
            for p in training.last.parameters():
                p.mul_(1.01)
            for p in training.reference.parameters():
                p.mul_(0.99)
            policies = (student.policy, training.last, training.reference)
            logp, last, logp_ref = (suspects.row_logps(p, rollout) for p in policies)
            counted, advantages = training.judge(rollout)
            return training.loss(logp, parts.old(logp, last), logp_ref, advantages, counted)

    right = loss_of(Parts())
    for name, mistake in MISTAKES.items():
        assert abs(loss_of(replace(Parts(), **{name: mistake})) - right) > 1e-5, name


def test_the_line_up_counts_what_it_shows():
    pytest.importorskip("matplotlib")
    ends = {"accuracy right": [0.9, 0.95]} | {
        f"accuracy {x}": [0.91, 0.94] if x in "ABC" else [0.2, 0.3] for x in "ABCDEF"
    }
    figure = lineup.lineup(ends, {letter: examine(suspect(letter)) for letter in SUSPECTS})
    left, right = (ax.get_title(loc="left") for ax in figure.axes)
    assert left == "Curves: 3 of 6 end as high as right" and right == "Probes: 6 of 6 found"
