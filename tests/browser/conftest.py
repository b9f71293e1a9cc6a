"""A JupyterLab of our own on loopback, a Chromium to drive it, and what a page may not do."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "shots"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
NO_NEWS = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}

NO_SUBSHELLS = {  # as start.py sets it, and why
    "@jupyterlab/apputils-extension:kernels-settings": {"commsOverSubshells": "disabled"}
}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """(address, folder, settings) of a JupyterLab with settings of its own."""
    pytest.importorskip("jupyterlab")
    folder, config = tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("config")
    (config / "labconfig").mkdir()
    (config / "labconfig" / "page_config.json").write_text(json.dumps(NO_NEWS))
    (config / "labconfig" / "default_setting_overrides.json").write_text(json.dumps(NO_SUBSHELLS))
    address = f"http://127.0.0.1:{free_port()}"
    server = start_lab(folder, config, address)
    try:
        wait_for(address, server)
        yield address, folder, config / "settings"
    finally:
        server.send_signal(signal.SIGTERM)  # it ends its kernels, too
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()


def start_lab(folder, config, address):
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    settings = {
        "JUPYTER_CONFIG_DIR": str(config),
        "JUPYTERLAB_SETTINGS_DIR": str(config / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(config / "workspaces"),
        "PYTHONPATH": paths,
    }
    options = ["--ServerApp.token=", "--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={folder}"]
    port = address.rsplit(":", 1)[1]
    with (config / "log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", f"--port={port}"]
            + options,
            env=os.environ | settings,
            stdout=log,
            stderr=log,
        )


def wait_for(address, server, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/api", timeout=2)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail("JupyterLab did not start")


@pytest.fixture(scope="session")
def chromium():
    """A browser, or a skip that says what is missing."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium: on Debian, apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def notebook(lab, chromium):
    """open(file) -> Notebook; at the end: nothing asked from outside, no error in the console."""
    SHOTS.mkdir(exist_ok=True)
    opened = []

    def open_(file, width=1400, height=1000):
        # each page begins in the light theme, whatever the one before it chose
        shutil.rmtree(lab[2], ignore_errors=True)
        page = chromium.new_page(viewport={"width": width, "height": height})
        opened.append(Notebook(page, lab[0], file))
        return opened[-1]

    yield open_
    for each in opened:
        each.page.close()
    for each in opened:
        assert each.outside == []
        assert each.errors == []


class Notebook:
    """One notebook in JupyterLab, and what its page complained about."""

    def __init__(self, page, address, file):
        self.page, self.outside, self.errors = page, [], []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._request(request.url, address))
        page.goto(f"{address}/lab/tree/{file}?reset", wait_until="domcontentloaded")
        self.opened = time.monotonic()
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60000)
        page.wait_for_selector(':text("Python 3 (ipykernel) | Idle")', timeout=60000)

    def _console(self, message):
        if message.type == "error":
            self.errors.append(message.text)

    def _request(self, url, address):
        inside = (address, address.replace("http", "ws"), "data:", "blob:")
        if not url.startswith(inside):
            self.outside.append(url)

    def is_light(self):
        """Whether JupyterLab shows its light theme."""
        return self.page.evaluate("document.body.dataset.jpThemeLight") == "true"

    def menu(self, *path):
        """Click through JupyterLab's menus: menu("Run", "Run All Cells")."""
        self.page.locator(".lm-MenuBar-itemLabel", has_text=path[0]).first.click()
        for name in path[1:]:
            exact = re.compile(f"^{re.escape(name)}$")
            self.page.locator(".lm-Menu-itemLabel", has_text=exact).last.click()

    def run_all(self):
        self.menu("Run", "Run All Cells")

    def restart(self):
        """Restart the kernel, with nothing left in the page."""
        self.menu("Kernel", "Restart Kernel and Clear Outputs of All Cells…")
        self.page.locator(".jp-Dialog button", has_text="Restart").click()

    def reload_during_the_run(self):
        """The page comes back with its curve, and the curve goes on, or has ended meanwhile."""
        self.menu("File", "Save Notebook")
        self.page.wait_for_timeout(800)
        self.page.reload(wait_until="domcontentloaded")
        self.widget.wait_for(timeout=60000)
        self.until("points", lambda n: n is not None and int(n) >= 1, seconds=30)
        seen = int(self.data("points"))
        if self.data("state") == "running":
            self.until(
                "points", lambda n: int(n) > seen or self.data("state") != "running", seconds=60
            )
        assert self.data("state") in ("running", "done")

    def write(self, old, new):
        """Replace the code of the cell that begins with `old`."""
        self.page.locator(f'.jp-CodeCell:has-text("{old}") .cm-content').first.click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.type(new)

    @property
    def widget(self):
        return self.page.locator(".rlkit-run").last

    def press(self, name):
        self.page.locator(".rlkit-button", has_text=name).last.click()

    def data(self, key):
        """What the widget says about itself: points, accuracyPoints, state."""
        return self.widget.evaluate(f"e => e.dataset.{key}")

    def until(self, key, condition, seconds=30):
        end = time.monotonic() + seconds
        while not condition(self.data(key)):
            said = f"{key} stayed at {self.data(key)}; the status line: {self.words('status')}"
            assert time.monotonic() < end, said
            self.page.wait_for_timeout(100)

    def words(self, part):
        return self.page.locator(f".rlkit-{part}").last.inner_text()

    def overflowing(self):
        """Elements of the widget whose text is wider than they are, or that leave the widget."""
        return self.widget.evaluate(
            """root => [...root.querySelectorAll("*")].filter(e => e.clientWidth && (
                 e.scrollWidth > e.clientWidth + 1
                 || e.getBoundingClientRect().right > root.getBoundingClientRect().right + 1
               )).map(e => `${e.tagName}.${e.className} ${e.scrollWidth} > ${e.clientWidth}`)"""
        )

    def shot(self, name):
        """A picture for human eyes, in shots/ (ignored by git)."""
        self.widget.scroll_into_view_if_needed()
        self.page.screenshot(path=SHOTS / f"{name}.png")
