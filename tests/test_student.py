"""The model that a page trains with its own code, and the loop that makes its step a live run."""

import pytest
import torch

from rlkit.course.student import Loop, Student
from rlkit.widgets import keep
from rlkit.widgets.live import LiveRun


@pytest.fixture(scope="module")
def student():
    return Student()


def test_samples_come_prompt_by_prompt_with_their_rewards(student):
    rollout = student.sample(3, prompts=4, num_generations=2)
    assert rollout.rewards.shape == (8,) and set(rollout.rewards.tolist()) <= {0.0, 1.0}
    rows = rollout.prompt_ids.view(4, 2, -1)
    assert torch.equal(rows[:, 0], rows[:, 1]) and not torch.equal(rows[0], rows[1])
    texts = student.texts(rollout)
    questions = student.tokenizer.batch_decode(rollout.prompt_ids, skip_special_tokens=True)
    for question, text, reward in zip(questions, texts, rollout.rewards, strict=True):
        a, b = question.strip("= ").split("+")
        assert bool(reward) == (text == str(int(a) + int(b)))


def test_a_step_draws_the_same_again_and_another_step_or_seed_does_not(student):
    first, again, other = (student.sample(k, 4, 2) for k in (3, 3, 4))
    assert torch.equal(first.completion_ids, again.completion_ids)
    assert student.texts(first) != student.texts(other)
    assert student.texts(Student(seed=1).sample(3, 4, 2)) != student.texts(first)


def test_logits_are_those_that_the_policy_scores_with(student):
    rollout = student.sample(0, 4, 2)
    logits = student.logits(rollout)
    assert logits.shape[:2] == rollout.mask.shape and logits.requires_grad
    logp = logits.log_softmax(-1).gather(-1, rollout.completion_ids[..., None])[..., 0]
    expected, _ = student.policy(rollout)
    torch.testing.assert_close(logp[rollout.mask], expected[rollout.mask], rtol=1e-4, atol=1e-5)
    noted = rollout.logp_sampled
    torch.testing.assert_close(logp[rollout.mask], noted[rollout.mask], rtol=1e-4, atol=1e-5)


def test_accuracy_is_the_share_of_right_greedy_answers(student):
    rows = student.task.eval[:20]
    answers = student.complete([row["prompt"] for row in rows])
    right = sum(a == row["answer"] for a, row in zip(answers, rows, strict=True))
    assert student.evaluate(rows=20) == {"accuracy": right / 20}


def reinforce(student):
    """A step that a page could hold."""
    optimizer = torch.optim.SGD(student.model.parameters(), lr=0.01)

    def step(k):
        rollout = student.sample(k, 2, 2)
        logp, _ = student.policy(rollout)
        loss = -(rollout.rewards[:, None] * logp).sum() / 4
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"reward": rollout.rewards.mean().item()}

    return step


def test_a_loop_runs_stops_goes_on_and_is_taken_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    student = Student()
    settings = {"steps": 4, "eval_steps": 2, "eval_rows": 10, "output_dir": "runs/page"}
    loop = Loop(reinforce(student), student, **settings)
    run = LiveRun(loop, 0.5, questions=student.task.eval[:2], score=student.task.reward)
    loop.callbacks.append(lambda row: row["step"] == 3 and run.stop())
    run.start(block=True)
    assert run.state == "stopped" and [row["step"] for row in run.rows] == [1, 2, 3]
    run.start(block=True)
    assert run.state == "done" and [row["step"] for row in run.result()] == [1, 2, 3, 4]
    assert [step for step, _ in run.accuracy] == [0, 2, 3, 4]
    assert ["accuracy" in row for row in run.rows] == [False, True, False, True]
    folder = keep.last_run("page")
    taken = Student(folder)
    assert all(
        torch.equal(a, b)
        for a, b in zip(taken.model.parameters(), student.model.parameters(), strict=True)
    )
    again = keep.restore(Loop(reinforce(taken), taken, **settings), folder, taken.task.reward)
    assert again.state == "done" and again.result() == run.result()
    assert again.accuracy == run.accuracy and again.moments == run.moments
