"""start.py: what it says, what it would run, and once for real in a folder with a space.

The packages of that run are lent: a fresh environment is what `make test` itself begins with.
"""

import ast
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = """\
Obtaining file:///home/me/rlkit
Collecting torch>=2.11
  Using cached torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (29 kB)
Downloading https://files.pythonhosted.org/packages/triton-3.7.1-cp311-linux.whl (197.7 MB)
Using cached torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (526.6 MB)
   ---------------------------------------- 1.0/1.0 MB 6 MB/s
Downloading comm-0.2.3-py3-none-any.whl (7.3 kB)
Installing collected packages: triton, torch, comm
""".splitlines(keepends=True)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """start.py as a module whose root is a folder of the test's own."""
    spec = importlib.util.spec_from_file_location("start", ROOT / "start.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    return module


@pytest.fixture
def done(start, monkeypatch) -> list[str]:
    """The extras that set_up was called for; the environment looks made afterwards."""
    extras = []

    def set_up(extra):
        extras.append(extra)
        start.python().parent.mkdir(parents=True, exist_ok=True)
        start.python().touch()

    monkeypatch.setattr(start, "set_up", set_up)
    return extras


def put(start, *marks: str, record: bool = True) -> None:
    """Packages, as pip marks them in site-packages."""
    for mark in marks:
        folder = start.VENV / "lib" / "python3.11" / "site-packages" / f"{mark}.dist-info"
        folder.mkdir(parents=True)
        if record:
            (folder / "RECORD").touch()


# -- before anything is set up ------------------------------------------------------------------


def test_it_parses_on_python_3_8():
    ast.parse((ROOT / "start.py").read_text(), feature_version=(3, 8))


def test_an_old_python_gets_a_sentence():
    code = "import runpy, sys; sys.version_info = (3, 8, 18); sys.argv = ['start.py', 'lab']\n"
    code += f"runpy.run_path({str(ROOT / 'start.py')!r}, run_name='__main__')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 1 and found.stderr == ""
    assert found.stdout.startswith("rlkit: needs Python 3.11 or later, and this is 3.8 (")


@pytest.mark.parametrize("arguments, code", [([], 2), (["lob"], 2), (["--help"], 0)])
def test_other_words_print_the_commands(start, capsys, done, arguments, code):
    assert start.main(arguments) == code
    assert "python start.py lab" in capsys.readouterr().out
    assert done == []


def test_make_has_the_same_commands_and_only_calls_start(start):
    text = (ROOT / "Makefile").read_text()
    targets = re.search(r"^([a-z -]+):$", text, re.MULTILINE)[1].split()
    assert sorted(targets) == sorted(start.COMMANDS)
    recipes = [line for line in text.splitlines() if line.startswith("\t@")]
    assert recipes == ['\t@"$(PYTHON)" start.py $@ $(ARGS)']


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
def test_make_says_what_is_missing_where_there_is_no_python(tmp_path):
    make = [shutil.which("make"), "-C", str(ROOT), "lab", "PYTHON="]
    found = subprocess.run(make, capture_output=True, text=True)
    assert found.returncode and "install Python 3.11 or later" in found.stderr


# -- set up once --------------------------------------------------------------------------------


def test_a_second_call_sets_nothing_up_again(start, done):
    start.ensure("notebooks")
    start.ensure("notebooks")
    assert done == ["notebooks"]


def test_jupyterlab_asks_no_question_and_loses_no_click(start, done):
    start.ensure("notebooks")
    config = start.VENV / "etc" / "jupyter" / "labconfig"
    overrides = json.loads((config / "default_setting_overrides.json").read_text())
    kernels = overrides["@jupyterlab/apputils-extension:kernels-settings"]
    assert kernels == {"commsOverSubshells": "disabled"}
    assert "announcements" in (config / "page_config.json").read_text()


def test_dev_holds_notebooks_but_not_the_other_way(start, done):
    start.ensure("notebooks")
    start.ensure("dev")
    start.ensure("notebooks")
    assert done == ["notebooks", "dev"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_file_sets_up_again_with_all_that_was_there(start, done, name):
    start.ensure("dev")
    with (start.ROOT / name).open("a") as file:
        file.write("# changed\n")
    start.ensure("notebooks")
    assert done == ["dev", "dev"]


def test_a_moved_folder_or_a_lost_python_sets_up_again(start, done, monkeypatch, tmp_path):
    start.ensure("notebooks")
    moved = tmp_path / "moved"
    shutil.copytree(start.ROOT, moved)
    monkeypatch.setattr(start, "ROOT", moved)
    monkeypatch.setattr(start, "VENV", moved / ".venv")
    start.ensure("notebooks")
    start.python().unlink()
    start.ensure("notebooks")
    assert len(done) == 3


def test_a_set_up_that_failed_leaves_no_stamp(start, done, monkeypatch):
    start.ensure("notebooks")
    works = start.set_up
    monkeypatch.setattr(start, "set_up", lambda extra: start.stop("no network"))
    with pytest.raises(SystemExit):
        start.ensure("dev")
    assert not start.stamp().exists()
    monkeypatch.setattr(start, "set_up", works)
    start.ensure("notebooks")
    assert done == ["notebooks", "notebooks"]


def test_what_was_cut_off_while_installing_is_installed_again(start):
    put(start, "numpy-2.4.6")
    put(start, "torch-2.13.0+cpu", record=False)
    start.drop_half_installed()
    assert [path.name for path in start.site_packages().iterdir()] == ["numpy-2.4.6.dist-info"]


# -- how much there is to fetch -----------------------------------------------------------------


def test_estimate_counts_what_is_missing(start):
    bare = start.to_fetch("notebooks", torch_mb=192)
    assert 400 < bare < 700
    assert start.to_fetch("dev", 192) > bare + 100
    assert start.to_fetch("notebooks", 2530) == pytest.approx(bare + 2530 - 192)
    put(start, f"torch-{start.pins('dev')['torch']}+cpu", f"numpy-{start.pins('dev')['numpy']}")
    assert start.to_fetch("notebooks", 192) == pytest.approx(bare - 192 - start.SIZES["numpy"])
    put(start, "transformers-4.0.0")  # another version has to be fetched
    assert start.to_fetch("notebooks", 192) == pytest.approx(bare - 192 - start.SIZES["numpy"])


def test_readme_tells_commands_and_megabytes_as_they_are(start):
    text = (ROOT / "README.md").read_text()
    assert set(re.findall(r"^    make ([a-z-]+)", text, re.MULTILINE)) <= set(start.COMMANDS)
    told = int(re.search(r"about (\d+) where there is no GPU", text)[1])
    assert told == pytest.approx(start.to_fetch("notebooks", start.TORCH_CPU["Linux"]), rel=0.03)


def test_every_size_is_of_a_pinned_package(start):
    assert set(start.SIZES) <= set(start.pins("dev"))
    assert set(start.pins("notebooks")) < set(start.pins("dev"))


@pytest.mark.parametrize(
    "system, gpu, reachable, index, megabytes",
    [
        ("Linux", None, True, "https://download.pytorch.org/whl/cpu", 192),
        ("Linux", None, False, "", 192),
        ("Linux", "/usr/bin/nvidia-smi", True, "", 2530),
        ("Darwin", None, True, "", 111),
        ("Windows", None, True, "", 122),
    ],
)
def test_torch_build_follows_driver_and_network(
    start, monkeypatch, system, gpu, reachable, index, megabytes
):
    monkeypatch.setattr(start.platform, "system", lambda: system)
    monkeypatch.setattr(start.shutil, "which", lambda name: gpu)
    monkeypatch.setattr(start, "answers", lambda url: reachable)
    found = start.torch_build()
    assert found[:2] == (index, megabytes)
    assert ("2530 MB" in found[2]) == (system == "Linux" and not gpu and not reachable)


def test_an_index_that_never_answers_costs_its_time_and_no_more(start, monkeypatch):
    monkeypatch.setattr(start, "WAIT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert not start.answers(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        assert time.monotonic() - began < 2
    assert not start.answers("http://127.0.0.1:9/")


# -- what it says meanwhile ---------------------------------------------------------------------


def test_pip_s_lines_become_human_ones(start):
    fetched, said = 0.0, []
    for line in PIP:
        fetched += start.size_of(line)
        said.append(start.progress(line, fetched, 500.0, 1.0))
    assert [text for text in said if text] == [
        "  198 of about 500 MB: triton",
        "  724 of about 724 MB: torch",
        "  installing 3 packages",
    ]
    many = "Installing collected packages: " + ", ".join(["comm"] * 134)
    assert start.progress(many, 0.0, 0.0, 1.0) == "  installing 134 packages, about a minute"
    assert start.progress("", 0.0, 500.0, 61.0) == "  still at it, 61 s"


def test_silence_is_noticed(start):
    def slow():
        yield "one\n"
        time.sleep(0.5)
        yield "two\n"

    lines = list(start.follow(slow(), quiet=0.1))
    assert lines[0] == "one\n" and lines[-1] == "two\n" and "" in lines[1:-1]


def test_watch_returns_code_and_output_and_ends_its_child(start, monkeypatch):
    assert start.watch([sys.executable, "-c", "print('a'); exit(3)"]) == (3, "a\n")

    def interrupted(stream):
        raise KeyboardInterrupt

    children = []
    popen = subprocess.Popen
    monkeypatch.setattr(start, "follow", interrupted)
    monkeypatch.setattr(
        start.subprocess, "Popen", lambda *a, **k: children.append(popen(*a, **k)) or children[0]
    )
    with pytest.raises(KeyboardInterrupt):
        start.watch([sys.executable, "-c", "import time; time.sleep(60)"])
    assert children[0].poll() is not None


@pytest.mark.parametrize(
    "log, sentence",
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("The virtual environment was not created: ensurepip is not available", "python3-venv"),
        ("NewConnectionError: [Errno -2] Name or service not known", "cannot be reached"),
        ("ERROR: No matching distribution found for torch==2.13.0", "no build of the tested"),
        ("something else\nERROR: odd", "for the reason above"),
    ],
)
def test_a_failure_is_one_sentence(start, capsys, log, sentence):
    assert sentence in start.explain(log)
    assert ("ERROR: odd" in capsys.readouterr().out) == log.startswith("something else")


# -- commands -----------------------------------------------------------------------------------


def test_commands_pass_flags_and_exit_codes_on(start, done, monkeypatch):
    ran = []
    monkeypatch.setattr(start, "hand_over", lambda command: ran.append(command[1:]) or 5)
    monkeypatch.setattr(start, "get_browser", lambda: None)
    assert start.main(["test", "-k", "gae"]) == 5
    assert start.main(["test-fast"]) == 5
    assert start.main(["bench"]) == 5
    assert ran[0] == ["-m", "pytest", "-k", "gae"]
    every_core = ["-n", "auto", "--maxprocesses", "8", "--dist", "loadfile"]
    assert ran[1] == ["-m", "pytest", *every_core, "-m", "not slow and not browser"]
    assert ran[2] == ["-m", "rlkit.cli", "bench", "train"]
    assert done == ["dev"]


def test_the_browser_is_tried_for_and_never_fatal(start, monkeypatch, capsys):
    tried = []
    there = {"apt-get", "sudo"}
    monkeypatch.setattr(start.shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(start, "watch", lambda command: tried.append(command) or (100, ""))
    monkeypatch.setattr(start.os, "geteuid", lambda: 1000, raising=False)
    monkeypatch.delenv("CI", raising=False)
    start.get_browser()
    assert tried == [] and "will be skipped" in capsys.readouterr().out
    monkeypatch.setenv("CI", "true")
    start.get_browser()
    assert tried == [["sudo", "-n", "apt-get", "update"]]
    monkeypatch.setattr(start.os, "geteuid", lambda: 0, raising=False)
    start.get_browser()
    assert tried[1:] == [["apt-get", "update"]]
    there.add("chromium")
    start.get_browser()
    assert len(tried) == 2


# -- for real -----------------------------------------------------------------------------------


def copy_of_the_checkout(folder: Path) -> Path:
    """What a clone would hold, in a folder whose name has a space."""
    skip = shutil.ignore_patterns(
        ".git", ".venv", "work", "runs", "shots", "__pycache__", ".*_cache", ".hypothesis", "build"
    )
    return Path(shutil.copytree(ROOT, folder / "a clone", ignore=skip))


def lend_packages(clone: Path) -> None:
    """An environment in `clone` that sees this one's packages, so that pip need not fetch them."""
    subprocess.run([sys.executable, "-m", "venv", str(clone / ".venv")], check=True)
    (site,) = (clone / ".venv").glob("lib/python3*/site-packages")
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    shutil.copytree(Path(sys.prefix) / "etc", clone / ".venv" / "etc")
    (clone / ".venv" / "share").symlink_to(Path(sys.prefix) / "share")


def start_in(clone: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "start.py", *arguments],
        cwd=clone,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.slow
def test_without_a_network_it_is_one_sentence(tmp_path):
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    quiet = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
    clone = copy_of_the_checkout(tmp_path)
    found = start_in(clone, "setup", **nowhere, **quiet)
    assert found.returncode == 1, found.stdout
    assert "the package index cannot be reached" in found.stdout.splitlines()[-1]
    assert "Traceback" not in found.stdout
    assert not (clone / ".venv" / "rlkit-setup").exists()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="ends JupyterLab by a POSIX signal")
def test_a_clone_is_set_up_once_and_serves_notebook_00(tmp_path):
    clone = copy_of_the_checkout(tmp_path)
    lend_packages(clone)
    first = start_in(clone, "setup")
    if "the package index cannot be reached" in first.stdout and "CI" not in os.environ:
        pytest.skip("no package index here")
    assert first.returncode == 0, first.stdout
    assert re.search(r"about \d+ MB to fetch", first.stdout.splitlines()[0])
    began = time.monotonic()
    second = start_in(clone, "setup")
    assert time.monotonic() - began < 1.0
    assert second.stdout.startswith("rlkit: ready: ") and second.returncode == 0
    serves_notebook_00(clone, tmp_path)


def serves_notebook_00(clone: Path, folder: Path) -> None:
    """`lab` answers although its port is taken, with a copy in work/; SIGTERM ends it all."""
    with socket.create_server(("127.0.0.1", 0)) as taken, (folder / "log").open("w+") as log:
        port = taken.getsockname()[1]
        command = [sys.executable, "start.py", "lab", "--no-browser", "--port", str(port)]
        lab = subprocess.Popen(
            command, cwd=clone, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            url = wait_for_url(lab, folder / "log")
            assert f":{port}/" not in url and "/lab/tree/00_start.ipynb?token=" in url
            with urllib.request.urlopen(url, timeout=30) as page:
                assert page.status == 200
            assert (clone / "work" / "00_start.ipynb").exists()
        finally:
            lab.send_signal(signal.SIGTERM)
            code = lab.wait(60)
        assert code in (0, -signal.SIGTERM, 143)
        assert f"port {port} is already in use" in (folder / "log").read_text()
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(url, timeout=5)


def wait_for_url(lab: subprocess.Popen, log: Path) -> str:
    """The address, with its token, that JupyterLab prints when it listens."""
    for _ in range(240):
        found = re.search(r"http://127\.0\.0\.1:\d+/lab\S*", log.read_text())
        if found:
            return found[0]
        assert lab.poll() is None, log.read_text()
        time.sleep(0.5)
    raise AssertionError(log.read_text())
