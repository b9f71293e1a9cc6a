"""The course: its builder and rules, sections, copies, and a run that survives a restart."""

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

jupytext = pytest.importorskip("jupytext")
nbformat = pytest.importorskip("nbformat")

from rlkit.course import build as builder  # noqa: E402
from rlkit.course import cli, copies, here, pages, posed, rules  # noqa: E402
from rlkit.course.colab import setup_cell  # noqa: E402
from rlkit.widgets import keep  # noqa: E402

ROOT = Path(__file__).parents[1]

CARD = """\
# %% [markdown]
# # 07 A page
#
# **After this page you can** test a builder.
#
# | time | where | memory |
# |---|---|---|
# | 1 min | here | 1 GB |

"""
SECTION = """\
# %%
from rlkit.course import here

here("7.1")

"""
BODY = """\
# %%
def double(x):
    \"\"\"x -> 2 x\"\"\"
    # SOLUTION
    return 2 * x
    # END SOLUTION

# %%
guess = None
# SOLUTION
guess = 4
# END SOLUTION

# %%
# NBVAL_CHECK_OUTPUT
print(6 * 7)

# %%
print("not checked")

# %% tags=["solution"]
assert double(2) == guess
"""


@pytest.fixture
def folder(tmp_path):
    """A course of one page, 07, whose source is CARD + SECTION + BODY."""
    (tmp_path / "source").mkdir()
    (tmp_path / "README.md").write_text("# Pages\n\n<!-- contents -->\n<!-- end of contents -->\n")
    write(tmp_path, CARD + SECTION.replace("here(", "# here(") + BODY)
    return tmp_path


def write(folder, text):
    (folder / "source" / "07_page.py").write_text(text)


def load(folder, kind=""):
    return nbformat.read(folder / kind / "07_page.ipynb", as_version=4)


def code(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


# --- the builder


def test_exercises_lose_solutions_and_solutions_lose_only_the_markers(folder):
    builder.build(folder=folder)
    exercise, solution = "\n".join(code(load(folder))), "\n".join(code(load(folder, "solutions")))
    assert 'x -> 2 x"""\n    ...  # your code' in exercise
    assert "return 2 * x" not in exercise and "guess = 4" not in exercise
    assert "assert double" not in exercise and "assert double" in solution
    assert "return 2 * x" in solution and "guess = 4" in solution
    assert "SOLUTION" not in exercise + solution


def test_a_cell_has_the_same_lasting_id_in_both_notebooks(folder):
    builder.build(folder=folder)
    before = {cell.id: cell.source for cell in load(folder).cells}
    assert set(before) < {cell.id for cell in load(folder, "solutions").cells}
    text = (folder / "source" / "07_page.py").read_text()
    write(folder, text.replace("# %%\nguess", "# %%\nadded = 1\n\n# %%\nguess"))
    builder.build(folder=folder)
    after = {cell.id: cell.source for cell in load(folder).cells}
    assert before.items() < after.items() and len(after) == len(before) + 1


def test_equal_cells_have_different_ids(folder):
    write(folder, CARD + "# %%\nx = 1\n\n# %%\nx = 1\n")
    builder.build(folder=folder)
    ids = [cell.id for cell in load(folder).cells]
    assert len(set(ids)) == len(ids)
    nbformat.validate(load(folder))


@pytest.mark.slow
def test_executing_fills_the_solution_and_only_checked_cells_of_the_exercise(folder, capsys):
    assert builder.build(run=True, folder=folder) == [
        "07_page: its sections are [], not here(...) at all",
    ]
    assert "07_page:" in capsys.readouterr().out  # seconds and memory
    outputs = {c.source: c.outputs for c in load(folder).cells if c.cell_type == "code"}
    filled = {source: output for source, output in outputs.items() if output}
    assert list(filled) == ["# NBVAL_CHECK_OUTPUT\nprint(6 * 7)"]
    solved = [cell for cell in load(folder, "solutions").cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in solved)
    assert solved[-2].outputs[0].text == "not checked\n"
    assert "widgets" not in load(folder, "solutions").metadata


def test_building_again_changes_nothing_and_check_sees_every_difference(folder):
    builder.build(run=True, folder=folder)
    files = {path: path.read_text() for path in folder.rglob("*.ipynb")}
    builder.build(folder=folder)
    assert files == {path: path.read_text() for path in folder.rglob("*.ipynb")}
    known = builder.check(folder=folder)
    for path, text in files.items():
        path.write_text(text.replace("6 * 7", "6 * 8"))
        assert len(builder.check(folder=folder)) > len(known)
        path.write_text(text)
    contents = folder / "README.md"
    contents.write_text(contents.read_text().replace("test a builder", "fly"))
    assert any("README.md" in line for line in builder.check(folder=folder))


def test_a_page_that_cannot_be_read_is_named(folder):
    write(folder, CARD.replace("After this page", "After that page"))
    with pytest.raises(ValueError, match="^07_page.py: the page has no card"):
        builder.build(folder=folder)


def test_a_change_of_code_asks_for_execution(folder):
    builder.build(run=True, folder=folder)
    text = (folder / "source" / "07_page.py").read_text()
    write(folder, text.replace("guess = 4", "guess = 2 * 2"))
    assert any("build it with --execute" in line for line in builder.build(folder=folder))


@pytest.mark.parametrize(
    "cell", ["# SOLUTION\nx = 1", "x = 1\n# END SOLUTION", "# SOLUTION\n# SOLUTION\n# END SOLUTION"]
)
def test_markers_that_do_not_pair_are_refused(cell):
    with pytest.raises(ValueError, match="SOLUTION"):
        builder.without_solution(cell)


def test_an_unknown_page_is_named(folder):
    with pytest.raises(ValueError, match="no source 09_"):
        builder.build("9", folder=folder)


# --- the rules


def faults(text):
    """What the rules say of a page 07 with this source (its execution left aside)."""
    found = rules.broken("07_page", pages_of(text))
    return [line for line in found if "--execute" not in line]


def pages_of(text):
    """Both notebooks of a source, without the set-up cell."""
    whole = jupytext.reads(text, fmt="py:percent")
    builder.name_cells(whole.cells)
    pages = {"exercise": builder.exercise(copy.deepcopy(whole))}
    return pages | {"solution": builder.solution(whole)}


def test_a_good_page_has_no_faults():
    assert faults(CARD + SECTION) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CARD.replace("After this", "On this") + SECTION, "has no card"),
        (CARD.replace("| time |", "| minutes |") + SECTION, "has no card"),
        (CARD.replace("1 min", "soon") + SECTION, "the card's time is 'soon'"),
        (CARD.replace("# 07", "# 08") + SECTION, "does not begin with 07"),
        (CARD, "its sections are"),
        (CARD + SECTION.replace("7.1", "7.2"), "its sections are"),
        (CARD + SECTION + '\n# %%\nhere("7.2")\n', "without `from rlkit.course import here`"),
        (CARD + SECTION + f"\n# %%\nx = '{'9' * 80}'\n", "over 76 columns"),
        (CARD + SECTION + "\n# %%\n" + "x = 1\n" * 26, "26 lines, over 25"),
        (CARD + SECTION + "\n# %%\ndef f(:\n", "does not parse"),
        (CARD + SECTION + '\n# %% tags=["sloution"]\nx = 1\n', "the tag 'sloution' means nothing"),
        (CARD + SECTION + "\n# %%\n# NBVAL_CHECK_OUTPUT\nprint(1)\n", "nothing to check is stored"),
        (CARD + SECTION + "\n# %% [markdown]\n# Great!\n", "an exclamation mark"),
        (CARD + SECTION + "\n# %% [markdown]\n# It is simply so.\n", "the word 'simply'"),
        (CARD + SECTION + "\n# %% [markdown]\n# It reaches 0.93.\n", "the number 0.93 in prose"),
        (CARD + SECTION + "\n# %% [markdown]\n# It reaches 93 %.\n", "the number 93 % in prose"),
    ],
)
def test_each_rule_bites(text, words):
    assert any(words in line for line in faults(text)), faults(text)


POSED = """
# %% [markdown]
# ## Exercise 7.1  The cautious one
# *8 minutes, two dots of three.* Take the pessimist.

# %% exercise="clip"
@check.clip
def clipped_loss(logp, logp_old, advantages, epsilon):
    # SOLUTION
    r = (logp - logp_old).exp()
    near = r.clamp(1 - epsilon, 1 + epsilon)
    return -torch.min(r * advantages, near * advantages)
    # END SOLUTION
"""


def test_an_exercise_that_keeps_to_all_rules():
    assert faults(CARD + SECTION + POSED) == []
    keep = POSED.replace("@check.clip", "@check.clip(keep=True)")
    assert faults(CARD + SECTION + keep) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("*8 minutes, two dots of three.* ", "", "no line `*8 minutes, two dots of three.*`"),
        ("two dots", "four dots", "no line `*8 minutes, two dots of three.*`"),
        ("*8 minutes, ", "*", "no line `*8 minutes, two dots of three.*`"),
        ("## Exercise 7.1  The", "## The", "no `## Exercise 2.1  Title`"),
        ("7.1  The", "7.2  The", "numbered ['7.2'], not ['7.1']"),
        ("@check.clip\n", "", "no `@check.clip` above `def clipped_loss`"),
        ("@check.clip\n", "@check.gae\n", "no `@check.clip` above `def clipped_loss`"),
        ("clipped_loss", "clip_loss", "no `@check.clip` above `def clipped_loss`"),
        ("# SOLUTION\n", "#\n", "END SOLUTION do not pair"),
        ("    # SOLUTION\n", "", "END SOLUTION do not pair"),
        ('exercise="clip"', 'exercise="clop"', "there is no exercise 'clop'; there are masks"),
        (' exercise="clip"', "", "`@check.clip` outside of a cell with exercise='clip'"),
        (
            ' exercise="clip"',
            "",
            'an exercise is announced, but no cell with exercise="..." comes next',
        ),
        ("# %% exercise", "# %%\nx = 1\n\n# %% exercise", "no `## Exercise 2.1  Title`"),
    ],
)
def test_each_rule_about_exercises_bites(old, new, words):
    assert old in POSED
    try:
        found = faults(CARD + SECTION + POSED.replace(old, new))
    except ValueError as error:
        found = [str(error)]
    assert any(words in line for line in found), found


IN_NUMBERS = """
# %% [markdown]
# ## Exercise 7.1  How many bytes
# *3 minutes, one dot of three.* Of ten float32 numbers?

# %% exercise="numbers"
mine = None
# SOLUTION
mine = 40
# END SOLUTION
print(mine == 40)
"""


def test_an_exercise_in_numbers_compares_them_itself():
    assert faults(CARD + SECTION + IN_NUMBERS) == []
    (found,) = posed.posed(pages_of(CARD + SECTION + IN_NUMBERS)["exercise"])
    assert (found.name, found.minutes) == ("numbers", 3)
    for cut in ("print(mine == 40)\n", "# SOLUTION\nmine = 40\n# END SOLUTION\n"):
        assert cut in IN_NUMBERS
        found = faults(CARD + SECTION + IN_NUMBERS.replace(cut, ""))
        assert any("a solution between markers and a line after it" in line for line in found)


def test_an_exercise_without_a_solution_is_refused():
    bare = POSED.replace("    # SOLUTION\n", "").replace("    # END SOLUTION\n", "")
    assert any("has no solution between markers" in line for line in faults(CARD + SECTION + bare))


def test_a_solution_that_fails_its_own_check_is_refused():
    _, cell = next(posed.exercise_cells(pages_of(CARD + SECTION + POSED)["solution"]))
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="clip: not right yet")]
    assert posed.faults(cell, "") == ["the solution of 'clip' does not pass its check"]
    cell.outputs[0].text = "clip: right, in 4 cases. Yours is used from here on."
    assert posed.faults(cell, "") == []


def test_exercises_are_found_with_their_time_and_difficulty():
    found = posed.posed(pages_of(CARD + SECTION + POSED)["exercise"])
    assert found == [posed.Posed("clip", "7.1", "The cautious one", 8, "two dots")]


def test_headings_code_and_tables_may_hold_numbers():
    text = (
        "# ## 7.1 A part\n# Section 7.1 and exercises 7.2, 7.3 and 7.4.\n"
        "# The ratio `1.5` and $x = 0.5$.\n#\n# | 0.5 |\n# |---|\n"
    )
    assert faults(CARD + SECTION + "\n# %% [markdown]\n" + text) == []


def test_files_hold_no_widget_state_no_bare_figures_and_less_than_a_megabyte():
    live = nbformat.v4.new_output("display_data", {"application/vnd.plotly.v1+json": {}})
    cell = nbformat.v4.new_code_cell("figure", outputs=[live])
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": {}})
    found = rules.stored(notebook)
    assert any("without a static image" in line for line in found)
    assert any("widget state" in line for line in found)
    live.data["image/png"] = "A" * 10**6
    found = rules.stored(notebook)
    assert not any("without a static image" in line for line in found)
    assert any("over 1000000 bytes" in line for line in found)


# --- the pages as they are committed


@pytest.mark.slow
def test_the_committed_notebooks_are_what_their_sources_make():
    done = subprocess.run(
        [sys.executable, "-m", "rlkit.course", "build", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


SOURCES = {path.name[:2]: path for path in (ROOT / "notebooks" / "source").glob("*.py")}


@pytest.mark.parametrize("number", sorted({*SOURCES, *pages.numbers()}))
def test_the_sections_of_a_page_are_known_and_the_other_way_round(number):
    text = SOURCES[number].read_text()
    assert re.findall(r'^here\("(.+)"\)', text, re.M) == list(pages.page(number))


@pytest.mark.parametrize("number", sorted(SOURCES))
def test_the_exercises_of_a_page_are_bound_by_its_sections(number):
    posing = set(re.findall(r'^# %% exercise="(\w+)"', SOURCES[number].read_text(), re.M))
    bound = {name for needs in pages.page(number).values() for name in needs.exercises}
    assert posing - {posed.NUMBERS} <= bound


# --- the set-up cell


def test_the_setup_cell_is_the_first_code_of_every_page():
    for path in copies.pages():
        assert code(nbformat.read(path, as_version=4))[0] == setup_cell()


def run_setup(monkeypatch, address, present=False, works=True):
    """Run the set-up cell with pip and the search for rlkit replaced: (installed, last words)."""
    state, installed = {"rlkit": present}, []

    def pip(line):
        installed.append(line)
        state["rlkit"] = works

    monkeypatch.setattr("importlib.util.find_spec", lambda name: state["rlkit"] or None)
    source = re.sub(r"%pip (.*)", lambda magic: f"pip({magic[1]!r})", setup_cell(address))
    try:
        exec(compile(source, "setup", "exec"), {"pip": pip})
    except SystemExit as end:
        return installed, str(end)
    return installed, None


def test_the_setup_cell_does_nothing_outside_colab(monkeypatch):
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    assert run_setup(monkeypatch, "") == ([], None)


def test_the_setup_cell_installs_once_and_keeps_what_colab_rests_on(monkeypatch):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")
    address = "https://example.org/rlkit"
    assert run_setup(monkeypatch, address, present=True) == ([], None)
    (line,), words = run_setup(monkeypatch, address)
    assert line == 'install -q -c /tmp/keep.txt "rlkit-lab @ git+$REPOSITORY"' and words is None
    kept = [pin.split("==")[0] for pin in Path("/tmp/keep.txt").read_text().split()]
    assert kept == ["torch", "numpy", "ipython", "ipykernel", "ipywidgets"]


def test_the_setup_cell_ends_in_a_sentence_where_it_cannot_go_on(monkeypatch):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")
    installed, words = run_setup(monkeypatch, "")
    assert (installed, words) == ([], "write the address of rlkit's repository into REPOSITORY")
    _, words = run_setup(monkeypatch, "https://example.org/rlkit", works=False)
    assert words == "rlkit could not be fetched from https://example.org/rlkit: see above"


# --- sections


def test_here_imports_quiets_and_says_so(capsys):
    names = {}
    here("0.1", names)
    assert {"GRPOTrainer", "GRPOConfig", "load_task"} <= set(names)
    line = capsys.readouterr().out
    assert line.startswith("section 0.1 | ") and line.count("\n") == 1 and "thread" in line
    assert os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"


def test_here_writes_into_the_notebook_that_calls_it():
    here("0.2")
    assert globals().pop("LiveRun").__name__ == "LiveRun"


def test_here_names_the_sections_there_are():
    with pytest.raises(ValueError, match="no section '0.9'; the sections are 0.1, 0.2"):
        here("0.9", {})


@pytest.fixture
def page_97(monkeypatch, tmp_path):
    """A page whose second section poses an exercise."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("rlkit.course.pages.page_97")
    module.SECTIONS = {
        "97.1": pages.Section(("torch", "torch.nn.functional as F")),
        "97.2": pages.Section(("torch.nn.Linear",), exercises=("clip",)),
        "97.3": pages.Section((), exercises=("clip", "gae")),
    }
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(pages, "numbers", lambda: ["00", "97"])


def test_here_binds_exercises_and_what_earlier_sections_import(page_97, capsys):
    names = {}
    here("97.2", names)
    assert "imported: Linear, check\n" in capsys.readouterr().out
    assert (
        names["torch"].nn.functional is names["F"] and names["Linear"] is names["torch"].nn.Linear
    )
    assert names["clipped_loss"].label == "library's clipped_loss" and "gae" not in names
    here("97.1", first := {})
    assert {"torch", "F", "check"} <= first.keys() and "clipped_loss" not in first
    names["clipped_loss"] = mine = object()
    here("97.3", names)
    assert names["clipped_loss"] is mine and names["gae"].label == "library's gae"


def test_a_cell_that_does_not_parse_stops_none_of_the_others(page_97, capsys):
    here("97.2", names := {})
    with pytest.raises(SyntaxError):
        exec("@check.clip\ndef clipped_loss(logp, logp_old, advantages, epsilon)\n    ...", names)
    exec("x = torch.zeros(2)\nprint(clipped_loss(x, x, x + 1, 0.2).sum().item())", names)
    assert capsys.readouterr().out.endswith("\n-2.0\n")


def test_a_page_brings_in_nothing_heavy_and_no_other_page():
    code = """
import sys
from rlkit.course import pages
pages.find("0.1")
print([name for name in sys.modules if ".pages.page_" in name])
pages.SECTIONS
heavy = {"transformers", "matplotlib", "triton", "peft", "trl", "ipywidgets", "anywidget"}
print(sorted(heavy & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["['rlkit.course.pages.page_00']", "[]"], done


def test_here_without_a_run_says_what_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    here("0.3", {})
    assert "no finished run was found: run the sections above" in capsys.readouterr().out


def test_a_restarted_kernel_takes_up_the_last_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLKIT_FAST", "1")
    first = {}
    here("0.1", first)
    here("0.2", first)
    source = nbformat.read(copies.page("0"), as_version=4)
    for cell in code(source)[2:]:
        if "run.result" in cell:
            break
        exec(cell.removesuffix("\nrun"), first)
    first["run"].result()
    after = first["trainer"].complete([row["prompt"] for row in first["questions"]])
    second = {}
    here("0.3", second)
    assert "taken up: task, questions, trainer, run" in capsys.readouterr().out
    assert second["run"].result() == first["run"].rows
    assert second["run"].accuracy == first["run"].accuracy
    assert second["run"].moments == first["run"].moments
    assert second["trainer"].complete([row["prompt"] for row in second["questions"]]) == after
    kept = {"run": "mine"}
    here("0.3", kept)
    assert kept["run"] == "mine"


def test_a_new_run_forgets_the_old_one_until_it_ends(tmp_path):
    from fake_trainer import FakeTrainer

    from rlkit.widgets.live import LiveRun

    trainer = FakeTrainer(steps=3, fail_at=1)
    trainer.args.output_dir = str(tmp_path)
    (tmp_path / keep.FILE).write_text("old")
    LiveRun(trainer).start(block=False).wait(5)
    assert not (tmp_path / keep.FILE).exists()
    trainer = FakeTrainer(steps=3)
    trainer.args.output_dir = str(tmp_path)
    LiveRun(trainer, 0.5).start(block=True)
    kept = json.loads((tmp_path / keep.FILE).read_text())
    assert len(kept["history"]) == 3 and kept["guess"] == 0.5


# --- the learner's copies


def test_work_copies_what_is_missing_and_never_a_learners_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli(["work"]) == 0
    printed = Path(capsys.readouterr().out.strip())
    assert printed == tmp_path / "work" / "00_start.ipynb"
    assert printed.read_text() == copies.page("00").read_text()
    printed.write_text("mine")
    assert cli(["work"]) == 0
    assert printed.read_text() == "mine"


def test_reset_keeps_the_learners_copy_every_time(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cli(["work"])
    page = tmp_path / "work" / "00_start.ipynb"
    for number in (1, 2):
        page.write_text(f"mine {number}")
        assert cli(["reset", "00"]) == 0
        assert page.read_text() == copies.page("00").read_text()
        kept = page.with_name(f"00_start.mine-{number}.ipynb")
        assert kept.read_text() == f"mine {number}"
        assert kept.name in capsys.readouterr().out


def test_reset_of_an_unknown_page_is_one_sentence(capsys):
    assert cli(["reset", "77"]) == 1
    assert capsys.readouterr().err.startswith(
        "rlkit course reset: there is no page '77'; the pages"
    )


def test_a_package_without_notebooks_says_where_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(copies, "NOTEBOOKS", tmp_path)
    with pytest.raises(FileNotFoundError, match="they come with the repository"):
        copies.work(tmp_path / "work")
