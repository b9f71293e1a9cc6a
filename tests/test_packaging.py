"""The files that say what rlkit needs agree with each other, and the package keeps to them."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution, distributions
from pathlib import Path
from textwrap import dedent

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import rlkit

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "rlkit"
OPTIONAL = ["triton", "ipywidgets", "anywidget", "plotly", "trl", "peft"]
# what Google Colab carries; pip must leave all of it alone there
COLAB = {
    "python": "3.12",
    "torch": "2.11",
    "triton": "3.6",
    "transformers": "5.15",
    "peft": "0.20",
    "plotly": "5.24.1",
    "ipywidgets": "7.7.1",
    "anywidget": "0.9.21",
    "ipykernel": "6.17.1",
    "ipython": "7.34",
}


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def ranges(project) -> dict[str, SpecifierSet]:
    """Package -> the versions that pyproject.toml admits, over the core and all extras."""
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    asked = [Requirement(line) for lines in lists for line in lines]
    return {canonicalize_name(r.name): r.specifier for r in asked if r.name != "rlkit-lab"}


def pins(part: str | None = None) -> dict[str, str]:
    """constraints.txt, or the part of it under the comment that names `part`."""
    text = (ROOT / "constraints.txt").read_text()
    if part:
        text = re.split(rf"# what rlkit-lab\[{part}\] \w+\n", text)[1].split("#")[0]
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", text, re.MULTILINE))


def closure(*extras: str) -> set[str]:
    """Everything that rlkit-lab with `extras` brings on this machine."""
    todo, done = [("rlkit-lab", extra) for extra in ("", *extras)], set()
    while todo:
        name, extra = todo.pop()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        for r in map(Requirement, distribution(name).requires or []):
            if r.marker is None or r.marker.evaluate({"extra": extra}):
                todo += [(canonicalize_name(r.name), e) for e in ("", *r.extras)]
    return {name for name, _ in done} - {"rlkit-lab"}


def installed() -> dict[str, str]:
    found = {canonicalize_name(d.metadata["Name"]): d.version for d in distributions()}
    return {name: Version(version).public for name, version in found.items()}


def run(code: str, **variables: str) -> subprocess.CompletedProcess:
    env = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)


in_our_environment = pytest.mark.skipif(
    sys.platform != "linux" or Path(sys.prefix) != ROOT / ".venv",
    reason="not in the environment that start.py sets up on Linux",
)

# -- the tested set -----------------------------------------------------------------------------


def test_every_pin_is_a_plain_version_in_its_range(ranges):
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert len(pins()) == len([line for line in lines if line and line[0] != "#"])
    assert not [line for line in lines if "+" in line and line[0] != "#"]
    missing = [name for name in ranges if name not in pins()]
    assert missing == []
    outside = [name for name, admitted in ranges.items() if pins()[name] not in admitted]
    assert outside == []


@in_our_environment
def test_pins_are_what_the_extras_bring():
    cuda = {name for name in closure("dev") if name.startswith(("nvidia-", "cuda-"))}
    assert set(pins("notebooks")) == closure("notebooks") - cuda
    assert set(pins("dev")) == closure("dev") - closure("notebooks") - cuda


@in_our_environment
def test_what_is_installed_is_the_tested_set():
    there = installed()
    other = {name: there[name] for name in pins() if there.get(name, pins()[name]) != pins()[name]}
    assert other == {}


@in_our_environment
def test_pins_admit_the_oldest_python_that_the_project_admits(project):
    oldest = str(next(iter(SpecifierSet(project["requires-python"]))).version)
    found = {d.metadata["Name"]: d.metadata.get("Requires-Python") for d in distributions()}
    refuse = [n for n, need in found.items() if need and f"{oldest}.0" not in SpecifierSet(need)]
    assert refuse == []


def test_triton_is_pinned_as_pytorch_s_own_build_asks():
    """PyPI's PyTorch 2.13.0 for Linux asks for triton 3.7.1: another pin fails beside a GPU."""
    assert (pins()["torch"], pins()["triton"]) == ("2.13.0", "3.7.1")


# -- ranges -------------------------------------------------------------------------------------


def test_ranges_admit_colab_as_it_is(project, ranges):
    colab = dict(COLAB)
    assert colab.pop("python") in SpecifierSet(project["requires-python"])
    assert [n for n, version in colab.items() if version not in ranges[n]] == []


def test_triton_is_asked_for_only_where_it_has_wheels(project):
    marker = next(r.marker for r in map(Requirement, project["dependencies"]) if r.name == "triton")
    where = [
        (system, machine)
        for system in ("linux", "darwin", "win32")
        for machine in ("x86_64", "aarch64", "arm64", "AMD64", "armv7l")
        if marker.evaluate({"sys_platform": system, "platform_machine": machine})
    ]
    assert where == [("linux", "x86_64"), ("linux", "aarch64")]


def test_core_is_no_more_than_the_package_imports(project):
    """Each core requirement is imported somewhere, and all that is imported is asked for."""
    core = {Requirement(line).name for line in project["dependencies"]} - {"triton"}
    imported = {name for path in PACKAGE.rglob("*.py") for name in imports(path)}
    assert core - imported == set()
    known = {*pins(), "rlkit", *sys.stdlib_module_names}
    assert {name for name in imported if canonicalize_name(name.lower()) not in known} == set()


def test_what_learners_run_needs_no_more_than_notebooks():
    """Benches and the notebook builder are for who works on rlkit; the rest is for everyone."""
    ours = {"bench", "build.py", "execute.py"}
    paths = [path for path in PACKAGE.rglob("*.py") if not ours & set(path.parts)]
    names = {canonicalize_name(name.lower()) for path in paths for name in imports(path)}
    assert names & set(pins("dev")) == set()


def imports(path: Path) -> set[str]:
    """Top-level names of what a file imports anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    whence = [node.module or "rlkit" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in plain + whence}


# -- environment.yml ----------------------------------------------------------------------------


def test_environment_takes_python_from_conda_and_the_rest_from_the_project(project):
    yaml = pytest.importorskip("yaml")
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, rest = environment["dependencies"]
    assert environment["channels"] == ["conda-forge"] and pip == "pip"
    version = re.fullmatch(r"python=(3\.\d+)", python)[1]
    assert version in SpecifierSet(project["requires-python"])
    files = ["--constraint constraints.txt", "-e .[notebooks]"]
    assert [line for line in rest["pip"] if not line.startswith("--extra-index-url")] == files
    assert "notebooks" in project["optional-dependencies"]


# -- importing ----------------------------------------------------------------------------------


def seconds(code: str) -> float:
    """Time that a fresh interpreter needs for `code`, the best of three."""
    timed = f"import time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
    return min(float(run(timed).stdout) for _ in range(3))


@pytest.mark.slow
def test_import_costs_at_most_two_seconds_more_than_torch():
    everything = "import rlkit; [getattr(rlkit, name) for name in rlkit.__all__]"
    base = seconds("import torch")
    assert seconds("import rlkit") < base + 2
    assert seconds(everything) < base + 2


HIDE = f"""
import sys
from importlib.machinery import PathFinder
class Hide:
    # what packages on disk look like where the optional ones are not installed
    def find_spec(self, name, path=None, target=None):
        hidden = name.split(".")[0] in {OPTIONAL}
        return None if hidden else PathFinder.find_spec(name, path, target)
    def find_distributions(self, *context):
        found = PathFinder.find_distributions(*context)
        return (d for d in found if d.metadata["Name"] not in {OPTIONAL})
    def invalidate_caches(self):
        PathFinder.invalidate_caches()
sys.meta_path[sys.meta_path.index(PathFinder)] = Hide()
"""


def test_every_module_imports_without_the_optional_packages():
    code = HIDE + (
        "import importlib, pkgutil, rlkit\n"
        "for module in pkgutil.walk_packages(rlkit.__path__, 'rlkit.'):\n"
        # these hold kernels in Triton, and are imported where they can run
        "    if not module.name.endswith(('__main__', 'rlkit.kernels', '.own_kernel')):\n"
        "        importlib.import_module(module.name)\n"
        "[getattr(rlkit, name) for name in rlkit.__all__]\n"
        f"print([name for name in {OPTIONAL} if name in sys.modules])\n"
    )
    found = run(code)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("package", OPTIONAL)
def test_a_missing_package_is_named_with_the_way_to_get_it(package):
    code = HIDE + (
        "from rlkit.optional import require\n"
        f"try: require({package!r}, 'this call')\n"
        "except ImportError as error: print(error)\n"
    )
    sentence = run(code).stdout
    assert sentence.startswith(f"this call needs the package {package!r}: ")
    assert "pip install" in sentence and "pip install rlkit\n" not in sentence


CALLS = {
    "peft": """
        task = rlkit.load_task("sums")
        rlkit.GRPOTrainer(
            model="adder", reward_funcs=task.reward, args=rlkit.GRPOConfig.preset("tiny"),
            train_dataset=task.train, peft_config=object(),
        )""",
    "trl": """
        from rlkit.cli import main
        sys.exit(main(["bench", "train"]))""",
    "triton": """
        import torch
        tensors = torch.zeros(2, 4), torch.zeros(5, 4), torch.zeros(2, dtype=torch.int64)
        rlkit.token_logps(*tensors, backend="triton")""",
    "anywidget": """
        from rlkit.widgets.curve import curve_widget
        curve_widget(print)""",
}


@pytest.mark.slow
@pytest.mark.parametrize("package", CALLS)
def test_the_call_that_needs_it_says_so(package):
    found = run(f"{HIDE}\nimport rlkit\n{dedent(CALLS[package])}")
    assert found.returncode != 0
    last = found.stderr.strip().splitlines()[-1]
    assert f"needs the package {package!r}: pip install" in last


# -- the wheel ----------------------------------------------------------------------------------


def data_files() -> dict[str, bytes]:
    paths = [path for path in (ROOT / "data").rglob("*") if path.is_file()]
    return {path.relative_to(ROOT / "data").as_posix(): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of the working tree, built without the network."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--no-index", "-w", str(folder), str(ROOT)], check=True)
    (built,) = folder.glob("rlkit_lab-*.whl")
    return built


def test_wheel_carries_the_package_and_its_data_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        packed = {n: archive.read(n) for n in names if n.startswith("rlkit/data/")}
    assert {n.split("/")[0] for n in names} == {"rlkit", f"rlkit_lab-{version()}.dist-info"}
    assert {n.removeprefix("rlkit/data/"): content for n, content in packed.items()} == data_files()
    files = [path for path in PACKAGE.rglob("*.*") if "__pycache__" not in path.parts]
    assert {path.relative_to(ROOT).as_posix() for path in files} <= set(names)
    assert f"rlkit_lab-{version()}.dist-info/licenses/LICENSE" in names


def version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_data_path_finds_the_data_of_an_installed_wheel(wheel, tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(tmp_path / "site"), str(wheel)], check=True)
    code = "import rlkit; print(rlkit.__file__, rlkit.data_path('adder', 'config.json'), sep='\\n')"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    package = (tmp_path / "site" / "rlkit").resolve()
    assert Path(found[0]).parent.resolve() == package
    assert Path(found[1]) == package / "data" / "adder" / "config.json"
    assert Path(found[1]).read_bytes() == data_files()["adder/config.json"]


def test_data_path_finds_the_checkout_s_data_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert rlkit.data_path("adder", "config.json") == ROOT / "data" / "adder" / "config.json"
    assert rlkit.data_path() == ROOT / "data"


def test_a_missing_data_folder_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("rlkit.paths.PACKAGE", tmp_path / "rlkit")
    with pytest.raises(FileNotFoundError, match="data folder is missing"):
        rlkit.data_path("adder")


# -- the README ---------------------------------------------------------------------------------


def test_readme_s_program_runs_as_printed(tmp_path, monkeypatch, capsys):
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    short = program.replace('preset("tiny")', 'preset("tiny", max_steps=1)')
    assert short != program
    monkeypatch.chdir(tmp_path)
    exec(compile(short, "README.md", "exec"), {})
    assert 0.0 < float(capsys.readouterr().out.splitlines()[-1]) < 1.0


def test_readme_s_commands_exist():
    from rlkit.cli import COMMANDS

    text = (ROOT / "README.md").read_text()
    words = re.findall(r"^    rlkit ([a-z]+)", text, re.MULTILINE)
    assert len(words) >= 9 and set(words) <= set(COMMANDS)
