"""Key press to paint on every page, against a floor:
`python benchmarks/latency.py [ROUNDS] [PAGE ...]`.

The floor is a page without an engine that has as many charts and the app's own settings. Each page
and its floor are measured in turns (A B A B ...) in the same browser, because the same page is
faster or slower from one minute to the next. Prints figures, never fails.
Target: the median at most 1.3 times the floor's on every page.

The stamps are taken inside the page: the key press, the last change inside a chart that the press
changes, and the second animation frame after that. A round counts only when the app has been silent
for QUIET_MS. The processor's time is the server's, of a whole interaction.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "browser"))

from playwright.sync_api import Browser, Error, Locator, Page  # noqa: E402

import rig  # noqa: E402

ROUNDS, PRESSES = 4, 5
QUIET_MS = 250
TARGET = 1.3
BATCH, USERS = "train_micro_batch", "serve_concurrency"
COMPARED = ("bar", "compare_bars_chart", "compare_phases")
# Of each page: where it is, the slider or the number that is moved, and the charts that the press
# changes. Those that are drawn when the plan rests are not among them.
PAGES = {
    "Train": ("?v=2", BATCH, ("bar", "over_time")),
    "Time": ("time?v=2", BATCH, ("bar", "step_time", "roofline", "step_phases")),
    "Tiers": ("tiers?v=2", BATCH, ("bar", "tiers")),
    "Every tensor": ("ledger?v=2", BATCH, ("bar",)),
    "Serve": ("serve?v=2", USERS, ("bar", "serving_memory")),
    "Requests": ("stream?v=2", USERS, ("bar",)),
    "Arrival rates": ("rates?v=2", USERS, ("bar",)),
    "RL": ("together?v=2&with=grpo", BATCH, ("together",)),
    "Explore": ("explore?v=2", BATCH, ("bar", "explore_swept")),
    "Compare": ("compare?v=2&pin=v%3D2%26zero%3D2", BATCH, COMPARED),
}

PROBE = """
(() => {
  const probe = window.probe = {};
  probe.reset = () => Object.assign(probe, {pressed: 0, sent: 0, heard: 0, drawn: 0, painted: 0});
  probe.reset();
  const Socket = window.WebSocket;
  window.WebSocket = class extends Socket {
    constructor(...arguments_) {
      super(...arguments_);
      this.addEventListener('message', () => { probe.heard = performance.now(); });
    }
    send(data) {
      probe.sent ||= performance.now();
      return super.send(data);
    }
  };
  window.addEventListener('keydown', () => { probe.pressed ||= performance.now(); }, true);
  const within = node => (node.nodeType === 1 ? node : node.parentElement)?.closest(WATCHED);
  const touches = node => node.nodeType === 1 && (within(node) || node.querySelector(WATCHED));
  const watcher = new MutationObserver(changes => {
    // A chart that another has replaced stays in the document, hidden, until the run ends, and is
    // taken apart then: nobody sees that.
    const shown = changes.filter(c => c.target.isConnected);
    if (!shown.some(c => within(c.target) || [...c.addedNodes].some(touches))) return;
    probe.drawn = performance.now();
    const frame = window.requestAnimationFrame;
    frame(() => frame(() => { probe.painted = performance.now(); }));
  });
  watcher.observe(document,
    {subtree: true, childList: true, attributes: true, characterData: true});
  probe.over = () => document.querySelector('[data-testid="stApp"]')
    ?.getAttribute('data-test-script-state') === 'notRunning';
  probe.done = () => probe.over() && probe.sent && probe.heard > probe.sent
    && probe.painted > probe.drawn && probe.drawn > probe.pressed
    && performance.now() - Math.max(probe.heard, probe.painted) > QUIET_MS;
})();
"""


@dataclass
class Measured:
    """A page in a browser, what is moved on it, and what was measured."""

    page: Page
    slider: Locator
    pid: int
    times: list[float] = field(default_factory=list)
    processor: float = 0.0
    missed: int = 0

    def press(self, key: str, counts: bool) -> None:
        """A key, and the milliseconds from it to what was painted."""
        before = processor(self.pid)
        self.slider.focus()
        self.page.evaluate("probe.reset()")
        self.page.keyboard.press(key)
        try:
            self.page.wait_for_function("probe.done()", timeout=10_000, polling=25)
        except Error:  # a timeout: nothing changed
            self.missed += counts
            return
        if counts:
            self.times.append(float(self.page.evaluate("probe.painted - probe.pressed")))
            self.processor += processor(self.pid) - before


def processor(pid: int) -> float:
    """Milliseconds that a process has had of the processor; needs Linux."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def opened(
    browser: Browser, server: rig.Server, path: str, key: str, charts: Sequence[object]
) -> Measured:
    page = browser.new_context(viewport=rig.VIEWPORT).new_page()
    watched = ", ".join(f".st-key-chart_{name} .stPlotlyChart" for name in charts)
    page.add_init_script(PROBE.replace("WATCHED", repr(watched)).replace("QUIET_MS", str(QUIET_MS)))
    page.goto(f"{server.url}/{path}")
    slider = page.locator(f".st-key-{key} input").first
    slider.wait_for(timeout=1000 * rig.SECONDS)
    rig.settled(page)
    return Measured(page, slider, server.pid)


def measure(browser: Browser, app: rig.Server, floor: rig.Server, name: str, rounds: int) -> None:
    path, key, charts = PAGES[name]
    sides = (
        opened(browser, app, path, key, charts),
        opened(browser, floor, f"?charts={len(charts)}", "n", range(len(charts))),
    )
    for round_ in range(rounds + 1):  # the first warms up
        for side in sides:
            side.page.bring_to_front()
            # There and back, so that no slider reaches its end.
            for _ in range(PRESSES):
                side.press("ArrowUp" if round_ % 2 == 0 else "ArrowDown", round_ > 0)
    for side in sides:
        side.page.context.close()
    if not all(side.times for side in sides):
        print(f"{name}: no key press changed anything")
        return
    ours, theirs = (statistics.median(side.times) for side in sides)
    p95 = sorted(sides[0].times)[int(0.95 * (len(sides[0].times) - 1))]
    used, least = (side.processor / len(side.times) for side in sides)
    print(
        f"{name:<14} {ours:7.0f} ms, p95 {p95:5.0f}   floor {theirs:5.0f} ms   "
        f"ratio {ours / theirs:4.2f}   processor {used:4.0f} ms, floor {least:4.0f}   "
        f"{len(sides[0].times)} presses, {sides[0].missed} without a change",
        flush=True,
    )


def main(rounds: int, names: list[str]) -> None:
    # A page's settings stand beside its script; the floor has the app's.
    settings = ["--runner.postScriptGC=false", "--runner.fastReruns=false"]
    floor_page = rig.streamlit(HERE / "floor_page.py")
    with (
        tempfile.TemporaryDirectory() as folder,
        rig.serving(rig.streamlit(rig.ROOT / "app" / "main.py"), Path(folder, "app.txt")) as app,
        rig.serving(lambda p: [*floor_page(p), *settings], Path(folder, "floor.txt")) as floor,
        rig.launched() as browser,
    ):
        if browser is None:
            print(f"latency: left out, {rig.NO_CHROMIUM}")
            return
        print(f"Key press to paint, medians; target {TARGET} times the floor")
        for name in names:
            measure(browser, app, floor, name, rounds)


if __name__ == "__main__":
    rounds = [int(word) for word in sys.argv[1:] if word.isdigit()]
    names = [word for word in sys.argv[1:] if not word.isdigit()]
    main(rounds[0] if rounds else ROUNDS, names or list(PAGES))
