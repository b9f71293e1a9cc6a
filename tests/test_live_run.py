"""The live run: a worker thread, one at a time, few redraws, plain sentences."""

import struct
import sys
import threading
import time

import pytest
from fake_trainer import FakeTrainer

from rlkit.widgets import live, story
from rlkit.widgets.curve import MAX_POINTS, pack, thin
from rlkit.widgets.live import LiveRun, RunNotReady

pytest.importorskip("anywidget")

ROWS = [{"prompt": "27+58=", "answer": "85"}, {"prompt": "9+40=", "answer": "49"}]


def exact(prompts, completions, answer, **columns):
    return [float(c == a) for c, a in zip(completions, answer, strict=True)]


@pytest.fixture(autouse=True)
def background(monkeypatch):
    """Runs go to the worker thread, and none is left behind."""
    for name in ("COLAB_RELEASE_TAG", "RLKIT_FOREGROUND", "RLKIT_FAST"):
        monkeypatch.delenv(name, raising=False)
    yield
    if live._active is not None:
        live._active.stop()
        live._active.wait(10)


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def test_the_cell_returns_and_the_run_goes_on_in_a_worker_thread():
    trainer = FakeTrainer(steps=40, seconds=0.01)
    run = LiveRun(trainer)
    began = time.monotonic()
    run.start()
    assert time.monotonic() - began < 0.2 and run.state == "running"
    assert len(run.wait(10).result()) == 40
    assert run.state == "done"
    assert trainer.threads == {"rlkit-run"}


def test_start_in_the_foreground_works_in_this_thread():
    trainer = FakeTrainer(steps=3)
    LiveRun(trainer).start(block=True)
    assert trainer.threads == {threading.current_thread().name}


def test_result_while_running_is_one_sentence_without_a_traceback():
    run = LiveRun(FakeTrainer(steps=100, seconds=0.02)).start()
    until(lambda: run.step >= 3)
    with pytest.raises(RunNotReady) as caught:
        run.result()
    (words,) = caught.value._render_traceback_()
    assert words.startswith("step ")
    assert words.endswith(" of 100: wait or press Stop, then run this cell again")


def test_result_before_start_says_what_to_press():
    with pytest.raises(RunNotReady, match="^not started: press Start above, then"):
        LiveRun(FakeTrainer()).result()


def test_stop_ends_after_the_current_step_and_start_goes_on_from_there():
    trainer = FakeTrainer(steps=60, seconds=0.01)
    run = LiveRun(trainer).start()
    until(lambda: run.step >= 3)
    run.stop()
    run.wait(5)
    reached = run.step
    assert run.state == "stopped" and 3 <= reached < 60
    assert len(run.result()) == reached
    run.start()
    assert [row["step"] for row in run.wait(10).result()] == list(range(1, 61))
    assert run.state == "done" and not run.can_start
    assert [step for step, _ in run.accuracy] == sorted({step for step, _ in run.accuracy})


def test_stop_pressed_before_the_first_step_is_not_lost():
    trainer = FakeTrainer(steps=60, seconds=0.01)
    trainer.evaluate = lambda: (run.stop(), {"accuracy": 0.5})[1]
    run = LiveRun(trainer)
    run.start(block=True)
    assert run.state == "stopped" and run.rows == []


def test_a_run_over_a_partly_trained_trainer_shows_its_earlier_steps():
    trainer = FakeTrainer(steps=20)
    first = LiveRun(trainer).start()
    until(lambda: first.step >= 6)
    first.stop()
    first.wait(5)
    assert LiveRun(trainer).reward == first.reward


def test_an_error_is_caught_shown_and_raised_only_where_asked():
    run = LiveRun(FakeTrainer(fail_at=2)).start().wait(5)
    assert run.state == "failed" and isinstance(run.error, ValueError)
    assert story.status(run) == "failed at step 3: ValueError: a reward is not a number <b>"
    with pytest.raises(RunNotReady, match="failed at step 3: ValueError") as caught:
        run.result()
    assert caught.value.__cause__ is run.error
    with pytest.raises(ValueError, match="not a number"):
        LiveRun(FakeTrainer(fail_at=2)).start(block=True)


def test_after_an_error_the_next_run_can_start():
    LiveRun(FakeTrainer(fail_at=0)).start().wait(5)
    assert LiveRun(FakeTrainer(steps=2)).start().wait(5).state == "done"


def test_one_run_at_a_time_and_stop_on_the_second_ends_the_first():
    first = LiveRun(FakeTrainer(steps=500, seconds=0.01)).start()
    until(lambda: first.step >= 1)
    second = LiveRun(FakeTrainer(steps=2)).start()
    assert second.state == "idle" and "another run is at step" in story.status(second)
    assert story.view(second)["can_stop"]
    second.stop()
    first.wait(5)
    assert first.state == "stopped"
    assert second.start().wait(5).state == "done"


def test_stop_on_a_finished_run_leaves_another_alone():
    finished = LiveRun(FakeTrainer(steps=1)).start().wait(5)
    running = LiveRun(FakeTrainer(steps=500, seconds=0.01)).start()
    finished.stop()
    until(lambda: running.step >= 3)
    assert running.state == "running"


def test_at_most_five_redraws_a_second():
    run = LiveRun(FakeTrainer(steps=300, seconds=0.004, eval_steps=1), questions=ROWS)
    sent = watch(run)
    run.start().wait(20)
    assert len(run.rows) == 300 and run.seconds > 1
    assert len(sent) <= 5 * run.seconds + 3  # and the first, the last
    assert sent[-1]["status"].startswith("finished")


def watch(run):
    """The views that the page receives from now on."""
    run._widget = live.curve_widget(run._press)
    sent = []
    run._widget.observe(lambda change: sent.append(change["new"]), "view")
    return sent


def test_buttons_of_the_page_start_and_stop():
    run = LiveRun(FakeTrainer(steps=500, seconds=0.01))
    watch(run)
    press = run._widget._handle_custom_msg
    press({"press": "start"}, [])
    until(lambda: run.step >= 1)
    press({"press": "something else"}, [])
    press({"press": "stop"}, [])
    assert run.wait(5).state == "stopped"
    assert story.view(run)["presses"] == 3


def test_a_long_series_is_thinned_to_500_points_that_keep_both_ends():
    series = [(float(i), i / 2000) for i in range(2000)]
    kept = thin(series)
    assert len(kept) == MAX_POINTS == 500 and (kept[0], kept[-1]) == (series[0], series[-1])
    data = pack(series)
    assert len(data) == 500 * 2 * 4  # float32
    assert struct.unpack("<2f", data[-8:]) == pytest.approx(series[-1])
    assert pack([]) == b""


def test_title_states_the_finding_and_the_guess_stands_in_the_legend():
    run = LiveRun(FakeTrainer(steps=10), guess=0.8, questions=ROWS, score=exact)
    assert story.title(run) == "Not trained yet"
    run.start(block=True)
    first, last = run.accuracy[0][1], run.accuracy[-1][1]
    assert story.title(run) == f"Greedy accuracy {last:.2f} after 0 s, {first:.2f} before"
    assert story.legend(run)[-1] == {"key": "guess", "name": "your guess", "value": "0.80"}
    assert story.view(run)["guess"] == 0.8


def test_the_accuracy_curve_has_both_ends_once():
    run = LiveRun(FakeTrainer(steps=10, eval_steps=4)).start(block=True)
    assert [step for step, _ in run.accuracy] == [0, 4, 8, 10]
    run = LiveRun(FakeTrainer(steps=8, eval_steps=4)).start(block=True)
    assert [step for step, _ in run.accuracy] == [0, 4, 8]


def test_the_table_shows_the_first_and_the_newest_answers_and_marks_them():
    run = LiveRun(FakeTrainer(steps=10, answer="85"), questions=ROWS, score=exact)
    run.start(block=True)
    table = story.table(run)
    assert table["columns"] == ["question", "step 0", "step 10"]
    assert [cell["mark"] for cell in table["rows"][0]] == ["", "right", "right"]
    assert [cell["mark"] for cell in table["rows"][1]] == ["", "wrong", "wrong"]


def test_a_long_completion_is_clipped_and_markup_stays_text():
    run = LiveRun(FakeTrainer(steps=1, answer="<img src=x>\n" + "9" * 500), questions=ROWS)
    run.start(block=True)
    cell = story.table(run)["rows"][0][1]
    assert cell["text"].startswith("<img src=x> 999") and len(cell["text"]) == 80
    script = live.curve_widget(run._press)._esm
    assert not any(word in str(script) for word in ("innerHTML", "insertAdjacent", "outerHTML"))


@pytest.mark.parametrize("guess", ["many", [0.8], object()])
def test_a_guess_that_is_no_number_is_named(guess):
    with pytest.raises(TypeError, match="guess is a number or None"):
        LiveRun(FakeTrainer(), guess=guess)


def test_fast_mode_works_in_the_cell_and_ends_after_three_steps(monkeypatch):
    monkeypatch.setenv("RLKIT_FAST", "1")
    run = LiveRun(FakeTrainer(steps=100))
    assert len(run.result()) == 3 and run.state == "stopped"


def test_interrupting_a_foreground_run_is_its_stop(monkeypatch):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")
    trainer = FakeTrainer(steps=100)

    def interrupted(row):
        if row["step"] == 4:
            raise KeyboardInterrupt

    trainer.callbacks.append(interrupted)
    run = LiveRun(trainer)
    run.start()
    assert run.state == "stopped" and len(run.result()) == 4 == run.accuracy[-1][0]
    assert not story.view(run)["buttons"]


def test_figure_is_static_and_says_the_finding():
    pytest.importorskip("matplotlib")
    run = LiveRun(FakeTrainer(steps=10), guess=0.8).start(block=True)
    (ax,) = run.figure().axes
    assert ax.get_title(loc="left") == story.title(run)
    assert ax.get_ylim() == (0.0, 1.0) and ax.get_xlim() == (0, 10)
    assert ax.get_xlabel() == "training step"
    lines = [line.get_label() for line in ax.get_lines()]
    assert any(label.startswith("your guess 0.80") for label in lines)


def test_without_anywidget_one_sentence_says_how_to_get_it(monkeypatch):
    live.curve_widget.__globals__["_widget_class"].cache_clear()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ImportError, match="the live curve needs the package 'anywidget': pip"):
        live.curve_widget(print)


def test_the_trainers_warnings_become_notes_one_of_each_kind():
    trainer = FakeTrainer(steps=4)
    trainer.callbacks.append(lambda row: row.update(warnings=["dead groups: too many", "kl: high"]))
    run = LiveRun(trainer).start(block=True)
    assert story.view(run)["notes"] == ["step 1: dead groups: too many", "step 1: kl: high"]
