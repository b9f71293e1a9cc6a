"""The chart that travels through the course."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("matplotlib")

from matplotlib.text import Text  # noqa: E402

from rlkit.course import ladder  # noqa: E402


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The ladder lies there, as it lies beside the notebook."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ladder, "_unwritten", {})
    return tmp_path


def rows(*accuracies, every=5):
    """A history with one measured row of `every`."""
    found = [{"step": k, "reward": 0.1} for k in range(1, every * len(accuracies) + 1)]
    for i, accuracy in enumerate(accuracies):
        found[every * (i + 1) - 1]["accuracy"] = accuracy
    return found


def labels(figure):
    """Text beside each line's end -> the height it stands at."""
    return {text.get_text(): text.xyann[1] for text in figure.axes[0].texts}


def solid(figure):
    return [line for line in figure.axes[0].lines if line.get_linestyle() == "-"]


def test_an_empty_ladder_shows_the_librarys_runs_dashed():
    figure = ladder.figure()
    assert solid(figure) == [] and len(figure.axes[0].lines) >= 3
    assert {"GRPO 1.00, library", "PPO 0.99, library", "RLOO 1.00, library"} <= set(labels(figure))


def test_a_line_takes_the_place_of_the_librarys_and_is_labelled_with_its_end():
    ladder.add("RLOO", rows(0.6, 0.8, 0.9))
    figure = ladder.figure()
    (line,) = solid(figure)
    assert line.get_xydata().tolist() == [[5, 0.6], [10, 0.8], [15, 0.9]]
    assert "RLOO 0.90" in labels(figure) and "RLOO 1.00, library" not in labels(figure)
    assert "GRPO 1.00, library" in labels(figure)
    assert figure.axes[0].get_title(loc="left") == "RLOO: greedy accuracy 0.60 to 0.90"


def test_a_live_run_brings_what_it_measured_before_its_first_step():
    run = SimpleNamespace(accuracy=[(0, 0.5), (5, 0.7)], rows=rows(0.7))
    ladder.add("GRPO, closed box", run)
    assert ladder.load()["GRPO, closed box"]["points"] == [[0, 0.5], [5, 0.7]]


def test_without_an_accuracy_the_reward_is_drawn_and_said():
    ladder.add("REINFORCE", [{"step": 1, "reward": 0.2}, {"step": 2, "reward": 0.4}])
    assert "REINFORCE 0.40 (mean reward)" in labels(ladder.figure())


def test_the_newest_of_a_name_counts_and_is_the_last():
    ladder.add("A", rows(0.1, 0.2))
    ladder.add("B", rows(0.1, 0.3))
    ladder.add("A", rows(0.1, 0.5))
    assert list(ladder.load()) == ["B", "A"]
    assert ladder.figure().axes[0].get_title(loc="left") == "A: greedy accuracy 0.10 to 0.50"


def test_lines_differ_without_colour():
    for i in range(12):
        ladder.add(f"run {i}", rows(0.1, 0.5 + i / 100))
    looks = [(line.get_marker(), line.get_color()) for line in solid(ladder.figure())]
    assert len(set(looks)) == 12 and len({marker for marker, _ in looks}) == len(ladder.MARKERS)


@pytest.mark.parametrize("history", [[], rows(0.5), [{"step": 1, "reward": 0.5}]])
def test_a_point_is_no_line(history):
    with pytest.raises(ValueError, match="REINFORCE has [01] measured points"):
        ladder.add("REINFORCE", history)


@pytest.mark.parametrize("text", ["", "[]", '{"A": 3}', '{"A": {"place": 1, "points": [[1]]}}'])
def test_a_spoilt_file_counts_for_nothing(text):
    ladder.FILE.parent.mkdir()
    ladder.FILE.write_text(text)
    ladder.add("B", rows(0.1, 0.2))
    assert list(ladder.load()) == ["B"]


def test_where_nothing_can_be_written_the_kernel_remembers(folder):
    (folder / "runs").write_text("a file where the folder should be")
    ladder.add("A", rows(0.1, 0.2))
    ladder.add("B", rows(0.1, 0.2))
    assert list(ladder.load()) == ["A", "B"]


heights = st.lists(st.floats(0, 1), min_size=1, max_size=12).map(sorted)


@given(heights)
def test_labels_never_overlap_and_stay_under_the_top(ys):
    placed = ladder.spread(ys, 0.05, 1.0)
    assert all(b - a >= 0.05 - 1e-9 for a, b in zip(placed, placed[1:], strict=False))
    assert placed[-1] <= 1.0
    if all(b - a >= 0.05 for a, b in zip(ys, ys[1:], strict=False)):
        assert placed == ys


def test_the_picture_keeps_its_labels_inside(folder):
    for name in ("GRPO, closed box", "REINFORCE", "RLOO", "PPO", "GRPO", "GRPO, chunked"):
        ladder.add(name, rows(0.5, 0.98, 0.99))
    figure = ladder.figure()
    figure.canvas.draw()
    width = figure.get_size_inches()[0] * figure.dpi
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]  # without its leader
    assert all(box.x1 <= width for box in boxes)
    axes = figure.axes[0]
    low, high = axes.get_ylim()
    aside = [text.xyann[1] for text in axes.texts if text.get_ha() == "left"]
    pixels = sorted(y / (high - low) * axes.bbox.height for y in aside)
    letters = 9 * figure.dpi / 72
    assert all(b - a > letters for a, b in zip(pixels, pixels[1:], strict=False))


def test_a_run_that_ended_early_is_labelled_below_its_end():
    ladder.add("A", rows(0.5, 0.9, every=30))
    ladder.add("B", rows(0.5, 0.95, every=5))
    inside = [text for text in ladder.figure().axes[0].texts if text.get_ha() == "center"]
    assert {"B 0.95", "PPO 0.99, library"} == {text.get_text() for text in inside}
    assert {text.get_text(): text.xyann[0] for text in inside}["B 0.95"] == 10
