"""The checks of the course's exercises, from a learner's cell to what it prints."""

import inspect
import json
import linecache
import os
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from checked_answers import MUTATES, RIGHT, WRONG

from rlkit import advantages
from rlkit.course import answers
from rlkit.course.checks import Check
from rlkit.course.exercises import EXERCISES, judge, limits, progress, report
from rlkit.course.exercises.exercise import fresh

NAMES = list(EXERCISES)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Progress goes there, as it goes beside the notebook."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "_unwritten", {})
    monkeypatch.setattr(answers, "KEY", tmp_path / "home" / "key")
    return tmp_path


@pytest.fixture
def check():
    return Check(seconds=5.0)


def cell(check, name, source, keep=False):
    """Run a notebook cell that defines the function of an exercise under its check."""
    names = {"torch": torch, "check": check}
    decorator = f"@check.{name}(keep=True)" if keep else f"@check.{name}"
    return run(f"{decorator}\n{textwrap.dedent(source).strip()}", names)[EXERCISES[name].function]


def run(source, names):
    file = f"<cell {abs(hash(source))}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), names)
    return names


def head(name, body):
    """A function with an exercise's signature around a body."""
    function = EXERCISES[name].solution
    return f"def {function.__name__}{inspect.signature(function)}:\n" + textwrap.indent(
        textwrap.dedent(body).strip(), "    "
    )


# --- right answers


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_as_printed_is_right_and_stays(name, check, capsys):
    check.solution(name)
    source = capsys.readouterr().out
    function = cell(check, name, source)
    assert f"{name}: right" in capsys.readouterr().out
    assert check.label(function) == f"your {EXERCISES[name].function}"
    assert function.__code__.co_filename.startswith("<cell")
    assert max(map(len, source.splitlines())) <= 76


@pytest.mark.parametrize("name, style", [(n, s) for n in NAMES for s in RIGHT[n]])
def test_other_right_answers_are_right(name, style, check, capsys):
    function = cell(check, name, head(name, RIGHT[name][style]))
    assert capsys.readouterr().out.startswith(f"{name}: right, in ")
    assert check.label(function).startswith("your ")


def test_there_are_two_other_styles_and_three_wrong_ones_of_each():
    assert all(len(RIGHT[name]) >= 2 for name in NAMES)
    assert all(len({mistake for mistake, _ in WRONG[name]}) >= 3 for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_library_gives_what_the_solution_gives_in_both_precisions(name):
    exercise = EXERCISES[name]
    dtypes = set()
    for case in exercise.cases:
        outcome = judge.outcome(again(exercise.solution), exercise, case)
        assert outcome.right, (case.about, outcome)
        dtypes |= {x.dtype for x in case.args if isinstance(x, torch.Tensor)}
    assert name == "masks" or exercise.plain or {torch.float32, torch.float64} <= dtypes


def again(function):
    """The same function with a code of its own, so that it is nobody's twin."""
    names = dict(function.__globals__)
    return run(textwrap.dedent(inspect.getsource(function)), names)[function.__name__]


def test_no_case_is_even():
    """A palindrome would let an answer pass that runs the wrong way."""
    for exercise in EXERCISES.values():
        for case in exercise.cases:
            numbers = (x for x in case.args if isinstance(x, torch.Tensor) and x.dim())
            for x in numbers:
                if x.is_floating_point() and x.size(-1) > 1 and x.any():  # or nothing is there
                    assert not torch.equal(x, x.flip(-1)), (exercise.name, case.about)
    rewards, num_generations = EXERCISES["leave_one_out"].cases[0].args
    assert (len(rewards), num_generations) == (8, 4)


# --- wrong answers


@pytest.mark.parametrize("name, mistake, body", [(n, m, b) for n in NAMES for m, b in WRONG[n]])
def test_wrong_answers_are_named(name, mistake, body, check, capsys):
    function = cell(check, name, head(name, body))
    out = capsys.readouterr().out
    assert out.startswith(f"{name}: not right yet")
    wrong = named(name, mistake)
    assert flat(wrong.says) in flat(out) and flat(wrong.asks) in flat(out)
    assert check.label(function) == f"library's {EXERCISES[name].function}"
    assert max(map(len, out.splitlines())) <= 76


def named(name, mistake):
    exercise = EXERCISES[name]
    extra = [] if exercise.memory is None else [exercise.memory.wrong]
    return next(w for w in [*exercise.wrongs, *extra] if w.name == mistake)


def flat(text):
    """Without line breaks."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", NAMES)
def test_every_known_wrong_answer_bears_its_own_name(name, monkeypatch):
    monkeypatch.setattr(judge, "watched", lambda function, args, twins: (function(*args), False))
    exercise = EXERCISES[name]
    wrongs = [*exercise.wrongs, *([exercise.memory.wrong] if exercise.memory else [])]
    for wrong in wrongs:
        for function in wrong.functions:
            verdict = judge.judge(lambda *args, f=function: f(*args), exercise, 5)
            assert (verdict.kind, verdict.mistake) == ("numbers", wrong.name), function.__name__


def test_the_report_shows_what_was_expected_and_what_came(check, capsys):
    cell(check, "leave_one_out", head("leave_one_out", WRONG["leave_one_out"][0][1]))
    assert capsys.readouterr().out == textwrap.dedent("""\
        leave_one_out: not right yet

        2 prompts, 4 completions each
        num_generations=4

                          r0      r1      r2      r3      r4      r5      r6      r7
        rewards        1.000   0.000   0.250   0.500   3.000   2.000   5.000   1.500
        advantages:
          expected     0.750  -0.583  -0.250   0.083   0.167  -1.167   2.833  -1.833
          yours        0.562  -0.438  -0.188   0.062   0.125  -0.875   2.125  -1.375

        Your baseline contains the sample's own reward.
        Change r0: the baseline of r0 must not move.

        Hint 1 of 3: Make a row of each prompt: rewards.view(-1, num_generations).

        Until it is right, the library's leave_one_out is used.
        """)


def test_the_report_shows_the_row_behind_a_single_wrong_number(check, capsys):
    mistakes = dict(WRONG["masks"])
    cell(check, "masks", head("masks", mistakes["finished"]))
    assert "completion_ids, row 0: 5 7 4 2 0\n" in capsys.readouterr().out
    mistakes = dict(WRONG["online_softmax"])
    cell(check, "online_softmax", head("online_softmax", mistakes["other=0"]))
    out = capsys.readouterr().out
    assert "logits, row 0: -3.000 -1.500 -2.000 -2.500 -1.000 -0.500 -4.000\n" in out


def test_a_probe_names_a_mistake_that_no_known_answer_has(check, capsys):
    body = """
    groups = rewards.view(-1, num_generations)
    return (groups - groups.square().mean(1, keepdim=True).sqrt()).flatten()
    """
    cell(check, "leave_one_out", head("leave_one_out", body))
    assert "contains the sample's own reward" in capsys.readouterr().out


def test_an_unknown_mistake_is_not_given_a_name(check, capsys):
    cell(check, "leave_one_out", head("leave_one_out", "return rewards * 0 + 7"))
    out = capsys.readouterr().out
    assert "does not know this mistake" in out and "7.000" in out
    assert not any(wrong.says in out for wrong in EXERCISES["leave_one_out"].wrongs)


@pytest.mark.parametrize("name, size", [("gae", 1.0005), ("clip", 0.9995), ("k3", 1.005)])
def test_nearly_right_is_not_right(name, size, check, capsys):
    names = run(head(name, RIGHT[name]["loop"]), {"torch": torch})
    right = names[EXERCISES[name].function]

    def nearly(*args):
        x = right(*args)
        return tuple(size * y for y in x) if isinstance(x, tuple) else size * x

    getattr(check, name)(nearly)
    assert "does not know this mistake" in capsys.readouterr().out


def test_float32_inside_float64_is_not_right(check, capsys):
    body = RIGHT["online_softmax"]["logaddexp"].replace("[:, 0] - log_z", "[:, 0] - log_z.float()")
    cell(check, "online_softmax", head("online_softmax", body))
    assert "not right yet" in capsys.readouterr().out


# --- calls that give nothing to compare


FIRST = {name: list(inspect.signature(EXERCISES[name].solution).parameters)[0] for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_an_exception_is_one_line_with_the_learners_own(name, check, capsys):
    function = cell(
        check, name, head(name, f"x = 1\nreturn {FIRST[name]} @ torch.ones(77, 78, 79)")
    )
    out = capsys.readouterr().out
    kind = "TypeError" if EXERCISES[name].plain else "RuntimeError"  # its argument is a function
    assert f"Line 4 of your cell raised {kind}" in flat(out)
    assert f"    return {FIRST[name]} @ torch.ones(77, 78, 79)" in out
    assert "Traceback" not in out and check.label(function).startswith("library's")


@pytest.mark.parametrize("name", [name for name in NAMES if MUTATES[name]])
def test_a_changed_argument_is_noticed(name, check, capsys):
    body = f"{MUTATES[name]} += 1\n" + textwrap.dedent(RIGHT[name]["loop"]).strip()
    cell(check, name, head(name, body))
    assert f"changed its argument {MUTATES[name]}" in capsys.readouterr().out


def test_a_changed_argument_that_torch_refuses_is_named_too(check, capsys):
    cell(check, "clip", head("clip", "logp -= logp_old\nreturn logp"))
    assert "changed its argument" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_never_returns_is_stopped(name, capsys):
    check = Check(seconds=0.2)
    before = limits.threading.active_count()
    start = time.monotonic()
    function = cell(check, name, head(name, "while True:\n    pass"))
    assert time.monotonic() - start < 3
    out = capsys.readouterr().out
    assert "had not returned after 0.2 s and was stopped" in out and "runs on" not in out
    assert check.label(function).startswith("library's")
    assert limits.threading.active_count() == before


def test_a_loop_that_catches_everything_is_stopped_too(capsys):
    body = """
    while True:
        try:
            rewards = rewards + 1
        except:
            pass
    """
    before = limits.threading.active_count()
    cell(Check(seconds=0.2), "leave_one_out", head("leave_one_out", body))
    assert "was stopped" in capsys.readouterr().out
    assert limits.threading.active_count() == before


def test_a_thread_is_told_to_stop_more_than_once():
    caught = []

    def stubborn():
        for _ in range(3):
            try:
                endless()
            except BaseException as error:
                caught.append(type(error))
        endless()

    with pytest.raises(limits.OutOfTime) as found:
        limits.within(0.05, stubborn)
    assert not found.value.left_behind and caught == [limits.Stop] * 3


def test_what_cannot_be_stopped_is_left_behind_and_told(monkeypatch, capsys):
    monkeypatch.setattr(limits.within, "__defaults__", (0.1,))
    start = time.monotonic()
    body = "import time\ntime.sleep(1.5)\nreturn rewards"
    cell(Check(seconds=0.1), "leave_one_out", head("leave_one_out", body))
    assert time.monotonic() - start < 1.2
    assert "runs on: restart the kernel" in capsys.readouterr().out


def test_interrupt_ends_the_thread_and_reaches_the_learner():
    def interrupted(thread, seconds):
        raise KeyboardInterrupt

    before, wait = limits.threading.active_count(), limits.wait
    limits.wait = interrupted
    try:
        with pytest.raises(KeyboardInterrupt):
            limits.within(5, endless)
    finally:
        limits.wait = wait
    assert limits.threading.active_count() == before


def endless():
    while True:
        pass


def test_a_check_works_in_a_worker_thread(check, capsys):
    out = []
    source = head("gae", RIGHT["gae"]["loop"])
    thread = limits.threading.Thread(target=lambda: out.append(cell(check, "gae", source)))
    thread.start()
    thread.join(10)
    assert check.label(out[0]) == "your gae"


@pytest.mark.parametrize(
    "body, says",
    [
        ("rewards.sum()", "It returned None. Is the `return` missing?"),
        ("return [1.0] * 8", "advantages is a list; expected was a tensor."),
        ("return 3", "advantages is an int; expected was a tensor."),
        ("yield rewards", "advantages is a generator; expected was a tensor."),
        ("return rewards, rewards", "advantages is a tuple of 2; expected was a tensor."),
        ("return rewards.view(-1, num_generations)", "has the shape [2, 4]; expected was [8]."),
        ("return rewards.double()", "advantages is float64; expected was float32."),
        ("raise SystemExit", "raised SystemExit"),
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt"),
        ("return torch.ones(2, device='meta').tolist()", "raised NotImplementedError: "),
        ("return leave_two_out(rewards)", "raised NameError: name 'leave_two_out' is not defined"),
        ("return rewards.reshape(3, 3)", "raised RuntimeError: shape '[3, 3]' is invalid"),
    ],
)
def test_answers_of_the_wrong_form(body, says, check, capsys):
    function = cell(check, "leave_one_out", head("leave_one_out", body))
    assert says in flat(capsys.readouterr().out)
    assert check.label(function) == "library's leave_one_out"


def test_a_wrong_count_or_dtype_of_outputs(check, capsys):
    cell(check, "gae", head("gae", "return rewards"))
    assert "It returned a tensor; expected was (advantages, returns)." in capsys.readouterr().out
    body = RIGHT["masks"]["loop"].replace("return mask,", "return mask.long(),")
    cell(check, "masks", head("masks", body))
    assert "mask is int64; expected was bool." in capsys.readouterr().out


def test_the_wrong_arguments(check, capsys):
    cell(check, "leave_one_out", "def leave_one_out(rewards):\n    return rewards")
    out = capsys.readouterr().out
    assert "It should take (rewards, num_generations): too many positional" in out


def test_a_gradient_that_is_cut(check, capsys):
    body = RIGHT["clip"]["loop"].replace("torch.exp(logp -", "torch.exp(logp.detach() -")
    cell(check, "clip", head("clip", body))
    assert "No gradient arrives at logp." in capsys.readouterr().out


def test_numbers_without_their_gradient_are_not_right(check, capsys):
    body = """
    ratio = (logp - logp_old).exp()
    near = ratio.clamp(1 - epsilon, 1 + epsilon)
    loss = -torch.min(ratio * advantages, near * advantages)
    return loss.detach() + 0 * logp
    """
    cell(check, "clip", head("clip", body))
    out = capsys.readouterr().out
    assert "gradient:" in out and "not right yet" in out


# --- not started


UNTOUCHED = [
    "...",
    '"""rewards [B]"""\n...  # your code',
    "pass",
    "raise NotImplementedError",
    "return None",
    "return ...",
    '"""A docstring."""',
    "x = 1\nraise NotImplementedError",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("body", UNTOUCHED)
def test_untouched_exercises_are_not_started(name, body, check, capsys):
    function = cell(check, name, head(name, body))
    used = EXERCISES[name].function
    lines = [f"{name}: not started", f"Until it is right, the library's {used} is used."]
    assert capsys.readouterr().out.splitlines() == lines
    assert check.label(function) == f"library's {used}"
    assert not progress.FILE.exists()


def test_the_exercise_as_a_page_ships_it_is_not_started(check, capsys):
    from rlkit.course.build import without_solution

    solution = inspect.getsource(EXERCISES["leave_one_out"].solution).split('"""', 2)
    source = f'{solution[0]}"""{solution[1]}"""\n    # SOLUTION{solution[2]}    # END SOLUTION'
    shipped = without_solution(source)
    assert "others" not in shipped
    cell(check, "leave_one_out", shipped)
    assert "not started" in capsys.readouterr().out


# --- whose function it is


def test_the_check_alone_never_tests_the_librarys_function(check, capsys):
    names = {"torch": torch, "check": check}
    run("@check.leave_one_out\n" + head("leave_one_out", "return rewards"), names)
    capsys.readouterr()
    run("leave_one_out = check.leave_one_out(leave_one_out)", names)
    out = capsys.readouterr().out
    assert "nothing of yours to check" in out and "right, in" not in out
    assert check.label(names["leave_one_out"]) == "library's leave_one_out"
    names["leave_one_out"] = advantages.leave_one_out
    run("leave_one_out = check.leave_one_out(leave_one_out)", names)
    assert "nothing of yours to check" in capsys.readouterr().out
    assert progress.load() == {"leave_one_out": "trying"}


@pytest.mark.parametrize(
    "body",
    [
        "from rlkit.advantages import leave_one_out as l\nreturn l(rewards, num_generations)",
        "return leave_one_out(rewards, num_generations)",
    ],
)
def test_calling_the_librarys_function_is_not_writing_it(body, check, capsys):
    names = {"torch": torch, "check": check}
    check.names("leave_one_out", into=names)
    run("@check.leave_one_out\n" + head("leave_one_out", body), names)
    out = capsys.readouterr().out
    assert "It calls rlkit's own function for this." in out and "right, in" not in out


@pytest.mark.parametrize("name", NAMES)
def test_names_are_bound_before_the_exercise_and_kept_after_it(name, check):
    exercise, names = EXERCISES[name], {}
    check.names(name, into=names)
    bound = names[exercise.function]
    assert bound.__name__ == bound.label == f"library's {exercise.function}"
    args = exercise.cases[0].args
    ours, theirs = (f(*fresh(args)) for f in (exercise.library, bound))
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs)
    names[exercise.function] = mine = object()
    check.names(name, into=names)
    assert names[exercise.function] is mine


def test_names_go_to_the_callers_own(check):
    names = {"check": check}
    run('check.names("gae", "masks")', names)
    assert names["gae"].label == "library's gae" and names["eos_mask"].label
    with pytest.raises(ValueError, match="there is no exercise 'gea'; there are masks"):
        check.names("gea")


def test_keep_leaves_a_wrong_function_but_no_broken_one(check, capsys):
    body = WRONG["leave_one_out"][0][1]
    function = cell(check, "leave_one_out", head("leave_one_out", body), keep=True)
    assert "Yours is used, wrong as it is." in capsys.readouterr().out
    assert check.label(function) == "your leave_one_out, not right yet"
    rewards = torch.tensor([1.0, 0.0])
    assert function(rewards, 2).tolist() == [0.5, -0.5]
    for body in ("...", "return None or rewards[0]", "raise ValueError"):
        function = cell(check, "leave_one_out", head("leave_one_out", body), keep=True)
        assert check.label(function) == "library's leave_one_out"
    right = RIGHT["leave_one_out"]["loop"]
    function = cell(check, "leave_one_out", head("leave_one_out", right), keep=True)
    assert check.label(function) == "your leave_one_out"


def test_decorating_what_is_no_function(check, capsys):
    assert callable(check.gae(3))
    assert "nothing of yours to check" in capsys.readouterr().out


def test_an_unknown_exercise_names_those_there_are(check):
    with pytest.raises(AttributeError, match="there is no exercise 'geese'; there are masks, "):
        check.geese  # noqa: B018
    assert set(NAMES) <= set(dir(check))


def test_a_mistake_of_the_check_itself_stops_nothing(check, monkeypatch, capsys):
    monkeypatch.setattr("rlkit.course.checks.judge", lambda *args: 1 / 0)
    function = cell(check, "gae", head("gae", RIGHT["gae"]["loop"]))
    assert "The check itself failed: ZeroDivisionError" in capsys.readouterr().out
    assert check.label(function) == "library's gae"


# --- hints, solution, progress


def test_hints_come_one_by_one_then_the_offer(check, capsys):
    wrong = head("gae", "return rewards, values")
    hints = EXERCISES["gae"].hints
    for failure in range(1, 6):
        cell(check, "gae", wrong)
        out = flat(capsys.readouterr().out)
        shown = [flat(f"Hint {i + 1} of 3: {hint}") in out for i, hint in enumerate(hints)]
        assert shown == [failure > i for i in range(3)]
        assert ('check.solution("gae")' in out) == (failure > 3)
    cell(check, "gae", head("gae", RIGHT["gae"]["loop"]))
    cell(check, "gae", wrong)
    assert "Hint 2" not in capsys.readouterr().out


def test_an_untouched_exercise_costs_no_hint(check, capsys):
    for _ in range(3):
        cell(check, "gae", head("gae", "..."))
    assert "Hint" not in capsys.readouterr().out
    cell(check, "gae", head("gae", "return rewards, values"))
    assert "Hint 1" in capsys.readouterr().out


def test_solution_is_that_of_the_last_check_and_changes_nothing(check, capsys):
    check.solution()
    assert "Which exercise? There are masks, " in capsys.readouterr().out
    cell(check, "k3", head("k3", "return logp"))
    capsys.readouterr()
    check.solution()
    assert capsys.readouterr().out == inspect.getsource(EXERCISES["k3"].solution)


def test_progress_goes_from_not_started_to_right(check, capsys):
    states = []
    for source in ("...", "return rewards, values", RIGHT["gae"]["loop"], "return rewards, values"):
        cell(check, "gae", head("gae", source))
        states.append(progress.load().get("gae"))
    assert states == [None, "trying", "right", "right"]
    check.solution("gae")
    assert progress.load()["gae"] == "right"
    check.solution("k3")
    cell(check, "k3", head("k3", RIGHT["k3"]["loop"]))
    cell(check, "clip", head("clip", "return logp"))
    check.solution("clip")
    capsys.readouterr()
    check.progress()
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert list(lines) == NAMES
    assert lines["masks"] == "masks            page 01   not started"
    assert lines["clip"] == "clip             page 03   trying, solution seen"
    assert lines["gae"] == "gae              page 03   right"
    assert lines["k3"] == "k3               page 05   solved with the solution"


def test_exercises_come_in_the_order_of_the_pages():
    found = [EXERCISES[name].page for name in NAMES]
    assert found == sorted(found) and {"masks", "online_softmax"} <= set(NAMES)


def test_progress_survives_the_kernel_and_is_ignored_by_git(folder, check):
    cell(check, "gae", head("gae", RIGHT["gae"]["loop"]))
    code = "from rlkit.course.checks import check; check.progress()"
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    env = os.environ | {"PYTHONPATH": root}
    fresh = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "gae              page 03   right" in fresh.stdout
    with open(os.path.join(root, ".gitignore")) as file:
        assert f"{progress.FILE.parent.name}/" in file.read().split()


@pytest.mark.parametrize("text", ["", "[1]", '{"gae": 3}', '{"gae": ["x"]}', "\x00", "null"])
def test_a_spoilt_file_counts_for_nothing(text, check, capsys):
    progress.FILE.parent.mkdir()
    progress.FILE.write_text(text)
    check.progress()
    assert capsys.readouterr().out.count("not started") == len(NAMES)
    cell(check, "gae", head("gae", RIGHT["gae"]["loop"]))
    assert json.loads(progress.FILE.read_text()) == {"gae": "right"}


def test_where_nothing_can_be_written_the_kernel_remembers(folder, check, capsys):
    (folder / "runs").write_text("a file where the folder should be")
    cell(check, "gae", head("gae", RIGHT["gae"]["loop"]))
    check.progress()
    out = capsys.readouterr().out
    assert "gae: right" in out and "gae              page 03   right" in out


# --- answers that outlive the kernel


def restarted(name):
    """What a new kernel's set-up cell binds for an exercise."""
    names = {"torch": torch}
    Check(seconds=30.0).names(name, into=names)
    return names[EXERCISES[name].function]


@pytest.mark.parametrize("name", NAMES)
def test_a_right_answer_is_taken_up_after_a_restart(name, check, capsys):
    cell(check, name, head(name, RIGHT[name]["loop"]))
    capsys.readouterr()
    function = restarted(name)
    used = EXERCISES[name].function
    assert capsys.readouterr().out == f"taken up: your {used}\n"
    assert check.label(function) == f"your {used}"
    assert inspect.getsource(function).startswith(f"def {used}(")
    assert function.__code__.co_filename == f"<your {used}>"


def test_a_wrong_answer_is_not_kept_and_does_not_replace_a_right_one(check, capsys):
    cell(check, "gae", head("gae", "return rewards, values"), keep=True)
    assert check.label(restarted("gae")) == "library's gae" and not answers.FILE.exists()
    cell(check, "gae", head("gae", RIGHT["gae"]["loop"]))
    cell(check, "gae", head("gae", "return rewards, values"))
    assert check.label(restarted("gae")) == "your gae"


def test_the_notebooks_own_function_is_never_replaced(check):
    cell(check, "gae", head("gae", RIGHT["gae"]["loop"]))
    names = {"gae": len}
    check.names("gae", into=names)
    assert names["gae"] is len


@pytest.mark.parametrize("where", ["another home", "another source", "no signature"])
def test_code_that_somebody_else_left_in_the_folder_never_runs(where, check, capsys, tmp_path):
    cell(check, "k3", head("k3", RIGHT["k3"]["loop"]))
    kept = json.loads(answers.FILE.read_text())
    if where == "another home":
        answers.KEY.unlink()
    elif where == "another source":
        kept["k3"]["source"] = "open('broken_in', 'w')\n" + kept["k3"]["source"]
    else:
        del kept["k3"]["signed"]
    answers.FILE.write_text(json.dumps(kept))
    capsys.readouterr()
    assert check.label(restarted("k3")) == f"library's {EXERCISES['k3'].function}"
    assert "was not written by you on this machine" in capsys.readouterr().out
    assert not (tmp_path / "broken_in").exists()


def test_an_answer_for_one_exercise_is_none_for_another(check, capsys):
    cell(check, "k3", head("k3", RIGHT["k3"]["loop"]))
    kept = json.loads(answers.FILE.read_text())
    answers.FILE.write_text(json.dumps({"gae": kept["k3"]}))
    assert check.label(restarted("gae")) == "library's gae"


def test_an_answer_that_needs_more_than_its_cell_says_so(check, capsys):
    names = {"torch": torch, "check": check, "minus": lambda x, y: x - y}
    body = RIGHT["k3"]["loop"].replace("logp_ref - logp", "minus(logp_ref, logp)")
    source = "@check.k3\n" + head("k3", body)
    run(source, names)
    assert "k3: right" in capsys.readouterr().out
    assert check.label(restarted("k3")).startswith("library's")
    out = capsys.readouterr().out
    assert "does not pass by itself: run its cell again; until then the library's" in out


@pytest.mark.parametrize("text", ["", "[1]", '{"gae": 3}', '{"gae": {"source": 3}}', "null"])
def test_a_spoilt_file_of_answers_stops_nothing(text, check):
    answers.FILE.parent.mkdir()
    answers.FILE.write_text(text)
    assert check.label(restarted("gae")) == "library's gae"
    cell(check, "gae", head("gae", RIGHT["gae"]["loop"]))
    assert check.label(restarted("gae")) == "your gae"


def test_where_no_key_can_be_kept_nothing_is(check, folder, capsys):
    (folder / "home").write_text("a file where the folder should be")
    cell(check, "gae", head("gae", RIGHT["gae"]["loop"]))
    assert "gae: right" in capsys.readouterr().out
    assert check.label(restarted("gae")) == "library's gae"


def test_where_there_is_no_home_nothing_is_kept(check, folder, capsys, monkeypatch):
    monkeypatch.setattr(answers, "KEY", answers.Path("~nobody-of-that-name/key"))
    cell(check, "gae", head("gae", RIGHT["gae"]["loop"]))
    assert "gae: right" in capsys.readouterr().out
    assert check.label(restarted("gae")) == "library's gae"
    assert not answers.FILE.exists() and not list(folder.glob("~*"))


def test_the_key_is_nobody_elses(check):
    cell(check, "gae", head("gae", RIGHT["gae"]["loop"]))
    assert len(answers.KEY.read_bytes()) == 32
    assert os.name == "nt" or answers.KEY.stat().st_mode & 0o077 == 0


# --- bytes


@pytest.mark.parametrize("name", ["chunked", "online_softmax"])
def test_bounds_of_memory_lie_far_from_right_and_wrong(name):
    memory = EXERCISES[name].memory
    held = limits.peak_bytes(EXERCISES[name].solution, fresh(memory.case.args))
    assert held < 0.5 * memory.bytes
    for function in memory.wrong.functions:
        assert limits.peak_bytes(function, fresh(memory.case.args)) > 1.5 * memory.bytes


def test_bytes_are_those_alive_at_once():
    x = torch.zeros(1024)  # 4 KiB

    def one_by_one(x):
        for _ in range(10):
            y = x + 1
            del y

    def graph(x):
        w = torch.ones(1024, requires_grad=True)
        return sum((w * x).exp().sum() for _ in range(10))

    assert limits.peak_bytes(one_by_one, [x]) == 4096
    assert limits.peak_bytes(lambda x: x.view(2, 512).T, [x]) == 0
    assert 11 * 4096 <= limits.peak_bytes(graph, [x]) <= 15 * 4096


def test_a_table_is_never_wider_than_a_cell():
    rows = {"x": report.written(torch.arange(40.0) * 1e6), "much longer label": []}
    assert max(map(len, report.table(rows, "t"))) <= report.WIDTH
