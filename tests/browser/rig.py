"""What drives the app from outside: a server, a browser, and a record of what went wrong in them.

Used by the tests beside it, by benchmarks/latency.py and by installed.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from weakref import WeakKeyDictionary

from playwright.sync_api import (
    Browser,
    BrowserContext,
    Dialog,
    Error,
    Page,
    WebSocket,
    sync_playwright,
)
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

ROOT = Path(__file__).resolve().parents[2]
SECONDS = int(
    os.environ.get("RIG", 180)
)  # for whatever is waited for; generous: no test is wrong because a machine is busy
POLL = 50  # milliseconds between two looks at a page; to look at each frame costs a core
VIEWPORT = {"width": 1280, "height": 800}
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NO_CHROMIUM = (
    "no Chromium: `apt-get install chromium`, or `python -m playwright install chromium`, "
    "or set CHROMIUM_PATH to one"
)
ARGUMENTS = (
    "--no-sandbox",  # as root, in a container
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--process-per-site",  # pages share what was compiled: each begins in three fifths of the time
)


def chromium(playwright_own: str = "") -> str | None:
    """Where a Chromium is: CHROMIUM_PATH, the system's, or the one Playwright installed."""
    if given := os.environ.get("CHROMIUM_PATH"):
        return shutil.which(given)
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or (playwright_own if os.path.exists(playwright_own) else None)


@contextlib.contextmanager
def launched() -> Iterator[Browser | None]:
    """A headless Chromium, or None when this machine has none."""
    with sync_playwright() as playwright:
        path = chromium(playwright.chromium.executable_path)
        if path is None:
            yield None
            return
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass(frozen=True)
class Server:
    url: str
    log_path: Path
    pid: int = 0

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")


@contextlib.contextmanager
def serving(
    command: Callable[[int], Sequence[str | os.PathLike[str]]],
    log_path: Path,
    cwd: Path = ROOT,
    **environment: str,
) -> Iterator[Server]:
    """The server that `command(port)` starts, healthy; stopped at the end."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = Server(f"http://127.0.0.1:{port}", log_path)
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [os.fspath(part) for part in command(port)],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **environment},
        )
    try:
        eventually(
            lambda: process.poll() is not None or answers(f"{server.url}/_stcore/health"),
            lambda: f"the server is not healthy:\n{server.log()}",
        )
        assert process.poll() is None, f"the server ended:\n{server.log()}"
        yield replace(server, pid=process.pid)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def streamlit(script: Path) -> Callable[[int], Sequence[str | os.PathLike[str]]]:
    """The command that runs a script as Community Cloud would, but on loopback."""

    def command(port: int) -> Sequence[str | os.PathLike[str]]:
        address = ("--server.address=127.0.0.1", f"--server.port={port}")
        quiet = ("--server.headless=true", "--browser.gatherUsageStats=false")
        return (sys.executable, "-m", "streamlit", "run", script, *address, *quiet)

    return command


def answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def eventually(
    condition: Callable[[], object],
    otherwise: Callable[[], str] | str = "it did not happen",
    seconds: float = SECONDS,
    page: Page | None = None,
) -> None:
    """Wait for a condition; with a page, let its events through meanwhile."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(otherwise if isinstance(otherwise, str) else otherwise())
        if page:
            page.wait_for_timeout(POLL)
        else:
            time.sleep(0.05)


@dataclass
class Watch:
    """What no page may do: raise in the browser or write an error into its console, ask for what is
    not there, or for anything that is not on loopback."""

    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def over(self, context: BrowserContext) -> BrowserContext:
        context.on("weberror", lambda e: self.errors.append(str(e.error)))
        context.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        context.on("response", lambda r: self.errors.append(r.url) if r.status >= 400 else None)
        context.on("request", lambda request: self._asked(request.url))
        context.on("page", lambda page: page.on("websocket", lambda s: self._opened(page, s)))
        context.on("dialog", self._asks)
        return context

    def _asks(self, dialog: Dialog) -> None:
        self.errors.append(f"a dialog: {dialog.message}")
        dialog.dismiss()  # until then the page stands still

    def _opened(self, page: Page, socket: WebSocket) -> None:
        self._asked(socket.url)
        runs = RUNS.setdefault(page, Runs())
        runs.ended = runs.begun  # of a run at the address before no end will be heard
        socket.on("framereceived", lambda frame: runs.heard(messages(frame)))

    def forget(self) -> None:
        self.errors.clear()
        self.outside.clear()

    def _asked(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname != "127.0.0.1":
            self.outside.append(url)

    def complaints(self, log: str = "") -> list[str]:
        traces = re.findall(r"Traceback[\s\S]{0,3000}", log)[:1]
        return [
            *(f"an error in the browser: {e}" for e in self.errors),
            *(f"a request that left this machine: {url}" for url in self.outside),
            *(f"in the server's log: {text}" for text in traces),
        ]


def query(url: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(url).query, keep_blank_values=True)


def origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


IDLE = """() => {
  const app = document.querySelector('[data-testid="stApp"]');
  return app
    && app.getAttribute('data-test-connection-state') === 'CONNECTED'
    && app.getAttribute('data-test-script-state') === 'notRunning'
    && !document.querySelector('[data-testid="stSkeleton"]');
}"""


def messages(frame: str | bytes) -> Iterator[ForwardMsg]:
    """What the server says in a frame."""
    if isinstance(frame, bytes):
        yield ForwardMsg.FromString(frame)


@dataclass
class Runs:
    """Runs of the script that a page has heard of, by their messages: what the page shows of them
    may come and go between two looks."""

    begun: int = 0
    ended: int = 0

    def heard(self, messages: Iterable[ForwardMsg]) -> None:
        for message in messages:
            kind = message.WhichOneof("type")
            self.begun += kind == "new_session"
            self.ended += kind == "script_finished"


RUNS: WeakKeyDictionary[Page, Runs] = WeakKeyDictionary()  # of each page that is watched


@contextlib.contextmanager
def a_run(page: Page) -> Iterator[None]:
    """What is done inside makes the script run: waits until that run is over."""
    before = RUNS[page].begun
    yield
    has_run(page, before)


def has_run(page: Page, before: int) -> None:
    """Wait until a run is over that has begun after so many."""
    runs = RUNS[page]
    eventually(lambda: runs.ended >= runs.begun > before, "the script did not run", page=page)
    settled(page)


def drawn(page: Page) -> None:
    """Wait until the page has done all that was asked of it before, and has drawn it. A page
    that is not in view may draw nothing; it gets a moment."""
    page.evaluate(
        "() => Promise.race(["
        "new Promise(done => "
        "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)))),"
        "new Promise(done => setTimeout(done, 5000))])"
    )


STILL = """() => document.getAnimations().every(each =>
  each.playState !== 'running' || !Number.isFinite(each.effect.getComputedTiming().endTime))"""


def still(page: Page) -> None:
    """Wait until nothing moves: who presses a button of a fold that is still opening may let go of
    it where it was, and has pressed nothing. What moves for seconds may be pressed: where a page is
    not drawn nothing ever comes to its end."""
    with contextlib.suppress(Error):  # that time is over, or the page went elsewhere meanwhile
        page.wait_for_function(STILL, timeout=5000, polling=POLL)


def left(page: Page) -> None:
    """Close a page. Chromium forgets a close that comes as it shows another document, and
    `page.close` then waits for ever (issue 42068 of Playwright): this one asks again."""
    browser = page.context.browser
    assert browser
    with contextlib.suppress(Error):  # that the page is closed
        own, asks = page.context.new_cdp_session(page), browser.new_browser_cdp_session()
        target = own.send("Target.getTargetInfo")["targetInfo"]["targetId"]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            asks.send("Target.closeTarget", {"targetId": target})
            page.wait_for_timeout(POLL)
    assert page.is_closed(), "the page cannot be closed"
    asks.detach()


def settled(page: Page) -> Page:
    """Wait until no script runs. It is also true just before the run that an action causes, so
    after an action wait for the new value instead."""
    page.wait_for_function(IDLE, timeout=SECONDS * 1000, polling=POLL)
    page.wait_for_timeout(155)  # as Streamlit's own tests do: a second run may follow at once
    page.wait_for_function(IDLE, timeout=SECONDS * 1000, polling=POLL)
    return page
