"""Set rlkit up and run it, with nothing but Python 3.11 or later.

    python start.py lab         set up, then open JupyterLab on notebook 00
    python start.py test        set up, then run every test
    python start.py test-fast   without the slow tests and those that need a browser

Also setup, notebooks, bench and lint; what follows the command goes on to the program it runs
(`python start.py lab --no-browser --port 8899`). The environment is .venv beside this file. A
finished set-up leaves a stamp there, with a hash of pyproject.toml and constraints.txt, and is
not done again; an unfinished one has no stamp, and the next call mends it.

This file parses on Python 3.8, so that an old Python gets a sentence and not a traceback.
"""

from __future__ import annotations

import hashlib
import os
import platform
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
EXTRAS = ("notebooks", "dev")  # each holds the one before it
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
WAIT = 3.0  # seconds that PyTorch's index may take to answer

# Megabytes of the wheels of the tested set on Linux; a package that is not here is small.
SIZES = {
    "triton": 198, "pyarrow": 55, "playwright": 53, "numpy": 17, "jupyterlab": 17,
    "transformers": 14, "pandas": 12, "babel": 11, "ruff": 11, "matplotlib": 10, "plotly": 10,
    "pillow": 7, "sympy": 6, "jedi": 5, "fonttools": 5, "hf-xet": 4, "tokenizers": 3,
    "debugpy": 3, "pydantic-core": 2, "networkx": 2, "widgetsnbextension": 2,
}  # fmt: skip
SMALL = 0.2
TORCH_CPU = {"Linux": 192, "Darwin": 111, "Windows": 122}
TORCH_CUDA = 2530  # with the CUDA libraries that PyPI's Linux build brings
LINUX_ONLY = ("triton", "liger-kernel")


# -- the environment ----------------------------------------------------------------------------


def python() -> Path:
    """The environment's interpreter."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def site_packages() -> Path:
    """Where the environment keeps its packages (it may not exist yet)."""
    if os.name == "nt":
        return VENV / "Lib" / "site-packages"
    return next(VENV.glob("lib/python3*/site-packages"), VENV / "lib")


def stamp() -> Path:
    return VENV / "rlkit-setup"


def key() -> str:
    """Changes when the packages asked for change, or when the folder has moved."""
    parts = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"\0".join([*parts, str(ROOT).encode()])).hexdigest()[:16]


def installed_extra() -> tuple[str, str]:
    """(extra, key) of the last finished set-up, or two empty strings."""
    words = stamp().read_text(encoding="utf-8").split() if stamp().exists() else []
    return (words[0], words[1]) if len(words) == 2 and words[0] in EXTRAS else ("", "")


def ensure(extra: str) -> None:
    """Set up what `extra` names, unless the stamp says that it is there already."""
    have, have_key = installed_extra()
    if have and EXTRAS.index(have) > EXTRAS.index(extra):
        extra = have
    if not python().exists() or (have, have_key) != (extra, key()):
        stamp().unlink(missing_ok=True)
        set_up(extra)
        stamp().write_text(f"{extra} {key()}\n", encoding="utf-8")
    settle_lab()


def set_up(extra: str) -> None:
    """Make .venv, or mend it, and install the project with `extra` at the tested versions."""
    began = time.monotonic()
    index, torch_mb, build = torch_build()
    megabytes = to_fetch(extra, torch_mb)
    say(f"setting up {VENV}: about {megabytes:.0f} MB to fetch, once")
    if not any(site_packages().glob("torch-*.dist-info")):
        say(build)
    make_venv()
    drop_half_installed()
    command = [str(python()), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    command += ["--disable-pip-version-check", "--constraint", "constraints.txt"]
    command += ["--extra-index-url", index] if index else []
    code, log = watch([*command, "--editable", f".[{extra}]"], megabytes)
    if code:
        stop(explain(log))
    say(f"set up in {time.monotonic() - began:.0f} s")


def make_venv() -> None:
    """An environment with pip, if there is none: one whose Python is gone is made anew."""
    if python().exists() and (site_packages() / "pip").is_dir():
        return
    clear = [] if python().exists() else ["--clear"]
    code, log = watch([sys.executable, "-m", "venv", *clear, str(VENV)])
    if code:
        stop(explain(log))


def drop_half_installed() -> None:
    """Remove the marks of packages whose installation was cut off, so that pip does them again.

    pip writes RECORD last: metadata without it would pass for an installed package.
    """
    for mark in site_packages().glob("*.dist-info"):
        if not (mark / "RECORD").exists():
            shutil.rmtree(mark, ignore_errors=True)


def settle_lab() -> None:
    """Two settings of JupyterLab's.

    It would open on a question about its news, and ask its server for some. And it hands the clicks
    on a widget to a subshell of the kernel, whose name it gets wrong now and then after the page is
    reloaded (seen with JupyterLab 4.6.6 and ipykernel 7.4.0): every later click is then lost.
    """
    config = VENV / "etc" / "jupyter" / "labconfig"
    config.mkdir(parents=True, exist_ok=True)
    off = '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}\n'
    (config / "page_config.json").write_text(off, encoding="utf-8")
    direct = (
        '{"@jupyterlab/apputils-extension:kernels-settings": {"commsOverSubshells": "disabled"}}\n'
    )
    (config / "default_setting_overrides.json").write_text(direct, encoding="utf-8")


# -- what there is to fetch ---------------------------------------------------------------------


def pins(extra: str) -> dict[str, str]:
    """Name -> version of the tested set; the file's second part is what dev adds."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    if extra != "dev":
        text = text.split("# what rlkit-lab[dev] adds")[0]
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", text, re.MULTILINE))


def to_fetch(extra: str, torch_mb: float) -> float:
    """Megabytes of what is not installed at its pinned version."""
    there = set()
    for mark in site_packages().glob("*.dist-info"):
        name, _, version = mark.name[: -len(".dist-info")].partition("-")
        there.add((re.sub(r"[-_.]+", "-", name).lower(), version.partition("+")[0]))
    skip = () if platform.system() == "Linux" else LINUX_ONLY
    sizes = {"torch": torch_mb, **SIZES}
    missing = [pin for pin in pins(extra).items() if pin not in there and pin[0] not in skip]
    return sum(sizes.get(name, SMALL) for name, _ in missing)


def torch_build() -> tuple[str, float, str]:
    """(extra index, megabytes, a sentence) for the PyTorch build that suits this machine."""
    system = platform.system()
    gpu = shutil.which("nvidia-smi")
    if system != "Linux":
        return "", TORCH_CPU.get(system, TORCH_CUDA), "PyTorch: PyPI's build for this system"
    if gpu:
        return "", TORCH_CUDA, f"PyTorch: the CUDA build ({gpu} is there)"
    if answers(CPU_INDEX + "/torch/"):
        return CPU_INDEX, TORCH_CPU[system], "PyTorch: the CPU build (no NVIDIA driver here)"
    slow = f"PyTorch: {CPU_INDEX} does not answer within {WAIT:.0f} s, so pip takes the build"
    return "", TORCH_CPU[system], f"{slow} it finds; PyPI's is the CUDA one, {TORCH_CUDA} MB"


def answers(url: str) -> bool:
    """Whether `url` answers in time; in a thread, for a name server may never answer."""
    good = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(url, timeout=WAIT) as reply:
                good.append(reply.status == 200)
        except (OSError, ValueError):
            good.append(False)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(WAIT)
    return good == [True]


# -- running programs ---------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """The caller's variables, with .venv first on the path."""
    path = os.pathsep.join([str(python().parent), os.environ.get("PATH", "")])
    own = {"VIRTUAL_ENV": str(VENV), "PATH": path, "PYTHONNOUSERSITE": "1", "PIP_USER": "0"}
    left = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PIP_REQUIRE_HASHES")}
    return {**left, **own}


def watch(command: list[str], megabytes: float = 0.0) -> tuple[int, str]:
    """Run `command`, say in human lines how far it is; (exit code, everything it printed)."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace",
    )  # fmt: skip
    log, fetched, began = [], 0.0, time.monotonic()
    try:
        for line in follow(process.stdout):
            fetched += size_of(line)
            news = progress(line, fetched, megabytes, time.monotonic() - began)
            if news:
                say(news)
            log.append(line)
        return process.wait(), "".join(log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def follow(stream: Iterable[str], quiet: float = 20.0) -> Iterator[str]:
    """The lines of `stream`; an empty string after each `quiet` seconds without one."""
    lines: queue.Queue = queue.Queue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=quiet)
        except queue.Empty:
            line = ""
        if line is None:
            return
        yield line


def size_of(line: str) -> float:
    """Megabytes of the wheel that a line of pip's announces, else 0."""
    found = re.search(r"(?:Downloading|Using cached) \S+\.(?:whl|tar\.gz) \(([\d.]+) (\w+)\)", line)
    if not found:
        return 0.0
    return float(found[1]) * {"bytes": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}.get(found[2], 0.0)


def progress(line: str, fetched: float, megabytes: float, seconds: float) -> str:
    """What a line of pip's output means for someone who waits, or nothing."""
    if not line:
        return f"  still at it, {seconds:.0f} s"
    if size_of(line) >= 3:
        name = re.search(r"(?:Downloading|cached) (?:\S*/)?(\w+)-", line)
        total = f"{fetched:.0f} of about {max(megabytes, fetched):.0f} MB"
        return f"  {total}: {name[1] if name else 'the next package'}"
    if line.startswith("Installing collected packages"):
        count = line.count(",") + 1
        return f"  installing {count} packages" + (", about a minute" if count > 50 else "")
    if "Retrying (Retry(total=4" in line:
        return "  the package index does not answer; trying again"
    return ""


def run(command: list[str]) -> int:
    """Run `command` in the environment, with its output on the screen; its exit code."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment())
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def hand_over(command: list[str]) -> int:
    """Become `command`, so that signals and its exit code are its own; a child on Windows."""
    if os.name == "nt":
        return run(command)
    os.chdir(ROOT)
    os.execve(command[0], command, environment())


# -- sentences ----------------------------------------------------------------------------------

OFFLINE = (
    "Failed to establish a new connection", "NewConnectionError", "Temporary failure in name",
    "Name or service not known", "nodename nor servname", "getaddrinfo failed", "ConnectTimeout",
    "Read timed out", "ProxyError", "Network is unreachable", "Connection refused",
    "No matching distribution found for hatchling",  # what pip asks for first
)  # fmt: skip
REASONS = (
    (("No space left on device",), "the disk is full: free some space and run the command again"),
    (("ensurepip is not", "No module named ensurepip", "No module named venv"),
     "this Python cannot make environments: on Debian and Ubuntu, `apt install python3-venv`"),
    (OFFLINE, "the package index cannot be reached: connect to the network (or check the proxy) "
     "and run the command again; it goes on where it stopped"),
    (("No matching distribution found for torch", "satisfies the requirement torch"),
     "there is no build of the tested PyTorch for this Python and this system: 64-bit Python "
     "3.11 to 3.14 on Linux, Windows or a Mac with an Apple chip has one"),
)  # fmt: skip


def explain(log: str) -> str:
    """One sentence for a failed set-up; where no known cause fits, the log's end comes first."""
    for marks, sentence in REASONS:
        if any(mark in log for mark in marks):
            return sentence
    print("".join(log.splitlines(keepends=True)[-15:]), end="")
    return "the set-up failed for the reason above; the next call tries again"


def say(text: str) -> None:
    print(f"rlkit: {text}", flush=True)


def stop(text: str) -> None:
    """End with one sentence."""
    say(text)
    raise SystemExit(1)


# -- commands -----------------------------------------------------------------------------------


def setup(arguments: list[str]) -> int:
    ensure("notebooks")
    say(f"ready: {python()}")
    return 0


def lab(arguments: list[str]) -> int:
    ensure("notebooks")
    copy = [str(python()), "-m", "rlkit.course", "work"]
    copied = subprocess.run(copy, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
    if copied.returncode:
        return copied.returncode
    notebook = Path(copied.stdout.strip().splitlines()[-1])
    page = [f"--ServerApp.root_dir={notebook.parent}"]
    page += [f"--LabApp.default_url=/lab/tree/{notebook.name}"]
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return hand_over([str(python()), "-m", "jupyterlab", *page, *root, *arguments])


def test(arguments: list[str]) -> int:
    ensure("dev")
    get_browser()
    return hand_over([str(python()), "-m", "pytest", *arguments])


def test_fast(arguments: list[str]) -> int:
    ensure("dev")
    every_core = ["-n", "auto", "--maxprocesses", "8", "--dist", "loadfile"]
    quick = ["-m", "not slow and not browser"]
    return hand_over([str(python()), "-m", "pytest", *every_core, *quick, *arguments])


def get_browser() -> None:
    """Chromium for the browser tests, from Debian's packages where we may install them."""
    if any(map(shutil.which, ("chromium", "chromium-browser"))):
        return
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    sudo = [] if root else ["sudo", "-n"]
    may = root or ("CI" in os.environ and shutil.which("sudo"))
    if may and shutil.which("apt-get"):
        say("fetching Chromium for the browser tests (about 100 MB)")
        steps = (["apt-get", "update"], ["apt-get", "install", "-y", "chromium"])
        if all(watch([*sudo, *step])[0] == 0 for step in steps):
            return
    say("no Chromium here: the browser tests will be skipped (on Debian, `apt install chromium`)")


def notebooks(arguments: list[str]) -> int:
    ensure("dev")
    return hand_over([str(python()), "-m", "rlkit.course", "build", *(arguments or ["--execute"])])


def bench(arguments: list[str]) -> int:
    ensure("dev")
    return hand_over([str(python()), "-m", "rlkit.cli", "bench", *(arguments or ["train"])])


def lint(arguments: list[str]) -> int:
    ensure("dev")
    ruff = [str(python()), "-m", "ruff"]
    return run([*ruff, "check", *arguments]) or run([*ruff, "format", "--check", *arguments])


COMMANDS = {
    "lab": lab, "setup": setup, "test": test, "test-fast": test_fast, "notebooks": notebooks,
    "bench": bench, "lint": lint,
}  # fmt: skip


def main(arguments: list[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 (this is how an older Python learns of it)
        newer = next(filter(shutil.which, [f"python3.{n}" for n in (14, 13, 12, 11)]), "")
        found = f"; try {newer} start.py, or make PYTHON={newer}" if newer else ""
        version = ".".join(map(str, sys.version_info[:2]))
        stop(f"needs Python 3.11 or later, and this is {version} ({sys.executable}){found}")
    if not arguments or arguments[0] not in COMMANDS:
        print(__doc__)
        return 0 if arguments in (["-h"], ["--help"], ["help"]) else 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return COMMANDS[arguments[0]](arguments[1:])
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
