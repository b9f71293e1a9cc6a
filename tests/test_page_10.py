"""Page 10: what it measures of a policy on a judge, its shipped curves, its runs, its chart."""

import math

import pytest
import torch

from rlkit.course import evidence, judged, scales
from rlkit.course.evidence import page_10 as claim
from rlkit.course.judged import HeldOut, best_of_rows, kl, kl_bound, scores, share_right
from rlkit.course.pages import page_10 as page
from rlkit.course.student import Loop, Student
from rlkit.paths import data_path
from rlkit.rewards import with_models
from rlkit.widgets.live import LiveRun
from rlkit.widgets.memory_bars import memory_bars


@pytest.fixture(scope="module")
def judge():
    return judged.load_judge()


@pytest.fixture(scope="module")
def held_out(judge):
    return HeldOut(judge, seed=1)


# --- what is measured of a policy


def test_scores_are_those_of_the_reward_function_that_trainers_use(judge):
    student = Student(seed=3)
    rollout = student.sample(0, prompts=6, num_generations=2)
    end = [student.tokenizer.eos_token_id]
    (func,) = with_models([data_path("reward")], None, student.tokenizer, end, 5, None)
    prompts = student.tokenizer.batch_decode(rollout.prompt_ids, skip_special_tokens=True)
    ids = [i[m].tolist() for i, m in zip(rollout.completion_ids, rollout.mask, strict=True)]
    expected = torch.tensor(func(prompts, student.texts(rollout), ids))
    torch.testing.assert_close(scores(judge, rollout, at_once=7), expected, atol=1e-5, rtol=0)


def nudged(seed):
    """The adder with noise on its last norm: another policy, not far away."""
    student = Student(seed=seed)
    torch.manual_seed(0)
    with torch.no_grad():
        weight = student.policy.backbone.module.norm.weight
        weight += 1.5 * torch.randn_like(weight)
    return student


@torch.no_grad()
def test_nats_are_0_from_oneself_and_else_the_mean_log_ratio(held_out):
    other, adder = nudged(2), held_out.before
    rollout = held_out.draw(other, 2)
    assert kl(other, other, rollout).abs().max() < 1e-5
    ratio = page.logp_of(other, rollout) - page.logp_of(adder, rollout)
    ratio = ratio.sum(1)
    exact = kl(other, adder, rollout).mean()
    assert exact > 0.02
    assert abs(exact - ratio.mean()) < 4 * ratio.std() / len(ratio) ** 0.5


def test_a_look_counts_what_it_says(held_out):
    look, student = held_out.look(held_out.before), held_out.before
    rollout = held_out.draw(student)
    texts, answers = student.texts(rollout), [row["answer"] for row in student.task.eval]
    pairs = list(zip(texts, answers, strict=True))
    assert look["right"] == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    assert look["short"] == pytest.approx(sum(len(a) < len(b) for a, b in pairs) / len(pairs))
    assert look["greedy"] == student.evaluate()["accuracy"] and look["kl"] < 1e-6


def test_the_best_of_1_is_any_and_more_answers_please_the_judge_more(held_out, monkeypatch):
    monkeypatch.setattr(judged, "SIZES", (1, 2, 4))
    rows = best_of_rows(1, held_out)
    assert [row["n"] for row in rows] == [1, 2, 4]
    right = held_out.draw(held_out.before, 4).rewards
    assert rows[0]["right"] == pytest.approx(float(right.mean()), abs=1e-6)
    learned = [row["learned"] for row in rows]
    assert learned == sorted(learned) and learned[0] < learned[-1]


def test_the_pick_is_by_score_within_a_prompt():
    liked = torch.tensor([[0.0, 1.0, 3.0, 2.0], [9.0, 8.0, 7.0, 6.0]])
    right = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0]])
    assert share_right(liked, right, 4) == 0.5  # the third, and the first
    assert share_right(liked, right, 2) == 0.5  # 0 and 1, 0 and 1
    assert share_right(liked, right, 1) == right.mean()


def test_the_bound_is_0_for_one_and_grows():
    assert kl_bound(1) == 0 and kl_bound(2) == pytest.approx(math.log(2) - 0.5)
    assert kl_bound(4) < kl_bound(8)


def test_a_watched_training_is_paid_by_the_judge_alone(held_out):
    one = judged.trainer("rloo", 0.5, 2, per_device_train_batch_size=64)
    rows = judged.watched(one, held_out, every=2)
    assert [row["step"] for row in rows] == [0, 2] and len(one.history) == 2
    assert rows[0]["kl"] < 1e-6 < rows[1]["kl"]
    last = one.history[-1]
    assert last["reward"] == pytest.approx(last["reward/reward"], abs=1e-5)
    assert last["reward"] != pytest.approx(last["reward/sums_reward"], abs=1e-3)


def test_updates_are_few_where_a_test_runs_the_page(monkeypatch):
    monkeypatch.delenv("RLKIT_FAST", raising=False)
    assert list(judged.updates(160)) == list(range(160))
    monkeypatch.setenv("RLKIT_FAST", "1")
    assert list(judged.updates(160)) == [0, 1, 2] and list(judged.updates(2)) == [0, 1]


# --- what is shipped


def test_the_shipped_curves_are_whole_and_say_what_the_evidence_says():
    rows, best = judged.curves(), judged.best_of_curves()
    runs = {}
    for row in rows:
        key = (row["algorithm"], row["beta"], row["seed"])
        runs.setdefault(key, []).append(row["step"])
    assert set(runs) == {(a, beta, s) for a, beta in judged.RUNS for s in (1, 2, 3)}
    for (algorithm, _, _), steps in runs.items():
        last = judged.STEPS.get(algorithm, judged.STEPS["rloo"])
        assert steps == list(range(0, last + 1, last // judged.LOOKS))
    kept = evidence.load("10")
    for i, seed in enumerate((1, 2, 3)):
        found = claim.summary(seed, rows, best)
        assert found == pytest.approx({k: v[i] for k, v in kept.items()}, rel=1e-3, abs=1e-4)


def test_a_file_of_curves_comes_back_as_it_was_written(tmp_path):
    rows = [{"algorithm": "ppo", "beta": 0.5, "seed": 1, "step": 3, "learned": 0.25}]
    judged.write(tmp_path / "rows.csv", rows)
    assert judged.read(tmp_path / "rows.csv") == rows


# --- the page's own


def test_a_restarted_kernel_has_the_run_and_all_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert page.rejoin_free() == {} == page.rejoin_held()
    for name in ("page10-free", "page10"):
        student = Student(seed=1)
        loop = Loop(page.make_step(student, 0.5), student, 2, 1, 50, f"runs/{name}")
        run = LiveRun(loop).start(block=True)
        assert {"reward", "right", "kl"} <= run.rows[0].keys()
    names = page.rejoin_held()
    assert set(page.SECTIONS["10.9"].state) <= names.keys()
    assert names["run"].accuracy == run.accuracy and names["run"].rows == run.rows
    again = names["held"].model.state_dict()
    for name, weight in student.model.state_dict().items():
        torch.testing.assert_close(again[name], weight, atol=0, rtol=0)


def test_sections_that_need_no_run_make_their_names_anew():
    for name in ("10.3", "10.4", "10.5", "10.6", "10.11"):
        section = page.SECTIONS[name]
        assert set(section.state) <= section.rejoin().keys()


# --- the scales


def test_the_chart_names_what_is_seen_and_refuses_nothing_at_all():
    pytest.importorskip("matplotlib")
    MiB = 2**20
    bars = {"a": {"param": 3 * MiB, "other": 10}, "b": {"param": MiB, "grad": MiB}}
    fig = memory_bars(bars, "b is smaller", "measured")
    assert fig.get_suptitle() == "b is smaller"
    (ax,) = fig.axes
    assert {"3.0", "2.0", "1.0"} <= {text.get_text() for text in ax.texts}
    named = [text.get_text() for text in fig.legends[0].get_texts()]
    assert named == ["gradients", "weights"]
    with pytest.raises(ValueError, match="no bars"):
        memory_bars({}, "", "")


@pytest.mark.slow
def test_the_scales_know_four_models_from_three():
    said = []
    found = scales.weigh(said.append)
    ppo, rloo = (found[name] for name in (scales.PPO1, scales.RLOO))
    assert (ppo.models, rloo.models) == (4, 3) and "value" not in rloo.categories
    assert rloo.peak < 0.75 * ppo.peak and len(said) == 3
    assert sum(ppo.categories.values()) == ppo.peak
    assert all(len(each.rows) == scales.STEPS for each in found.values())


def test_scales_that_fail_say_why(monkeypatch):
    monkeypatch.setattr(scales.subprocess, "Popen", failing(scales.subprocess.Popen))
    with pytest.raises(RuntimeError, match="weighing ended with 3: no room"):
        scales.weigh()


def failing(popen):
    """A process that says why it ends, in the place of any other."""
    script = "import sys; print('no room', file=sys.stderr); sys.exit(3)"
    return lambda command, **pipes: popen([command[0], "-c", script], **pipes)
