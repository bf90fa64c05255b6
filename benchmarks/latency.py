"""Key press to painted chart on Train, against a floor: `python benchmarks/latency.py`.

Both pages are served at once and measured in turns (A B A B ...) in the same browser, because the
same page is faster or slower from one minute to the next. Prints figures, never fails.
Target: the median on Train at most 1.3 times the floor page's.

The stamps are taken inside the page: the key press, the last change inside a chart, and the second
animation frame after that. A round counts only when the app has been silent for QUIET_MS.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "browser"))

from playwright.sync_api import Browser, Error, Locator, Page  # noqa: E402

import rig  # noqa: E402

ROUNDS, PRESSES = 6, 10
QUIET_MS = 250
TARGET = 1.3
CHART = '[data-testid="stPlotlyChart"]'
PAGES = {
    "Train": '.st-key-train_micro_batch input[type="range"]',
    "floor": '.st-key-n input[type="range"]',
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
    send(data) { probe.sent ||= performance.now(); return super.send(data); }
  };
  window.addEventListener('keydown', () => { probe.pressed ||= performance.now(); }, true);
  const touches = node => node.nodeType === 1 && (node.closest(CHART) || node.querySelector(CHART));
  new MutationObserver(changes => {
    if (!changes.some(c => touches(c.target.nodeType === 1 ? c.target : c.target.parentElement ?? c)
        && (c.target.closest?.(CHART) || [...c.addedNodes].some(touches)))) return;
    probe.drawn = performance.now();
    const frame = window.requestAnimationFrame;
    frame(() => frame(() => { probe.painted = performance.now(); }));
  }).observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
  probe.done = quiet => {
    const app = document.querySelector('[data-testid="stApp"]');
    return app?.getAttribute('data-test-script-state') === 'notRunning' && probe.sent
      && probe.heard > probe.sent && probe.painted > probe.drawn && probe.drawn > probe.pressed
      && performance.now() - Math.max(probe.heard, probe.painted) > quiet;
  };
})();
"""


def opened(browser: Browser, url: str) -> Page:
    page = browser.new_context(viewport=rig.VIEWPORT).new_page()
    page.add_init_script(PROBE.replace("CHART", repr(CHART)))
    page.goto(url)
    page.wait_for_selector(f"{CHART} .main-svg", timeout=1000 * rig.SECONDS)
    return rig.settled(page)


def press(page: Page, slider: Locator, key: str) -> float | None:
    """Milliseconds from a key press to the painted chart; None when no chart changed."""
    slider.focus()
    page.evaluate("probe.reset()")
    page.keyboard.press(key)
    try:
        page.wait_for_function(f"probe.done({QUIET_MS})", timeout=5_000, polling=25)
    except Error:  # a timeout
        return None
    return float(page.evaluate("probe.painted - probe.pressed"))


def main() -> None:
    scripts = {"Train": rig.ROOT / "app" / "main.py", "floor": HERE / "floor_page.py"}
    times: dict[str, list[float]] = {name: [] for name in PAGES}
    missed = dict.fromkeys(PAGES, 0)
    with (
        tempfile.TemporaryDirectory() as folder,
        rig.serving(rig.streamlit(scripts["Train"]), Path(folder, "train.txt")) as train,
        rig.serving(rig.streamlit(scripts["floor"]), Path(folder, "floor.txt")) as floor,
        rig.launched() as browser,
    ):
        if browser is None:
            print(f"latency: left out, {rig.NO_CHROMIUM}")
            return
        pages = {"Train": opened(browser, train.url), "floor": opened(browser, floor.url)}
        for round_ in range(ROUNDS + 1):  # the first warms up
            for name, selector in PAGES.items():
                pages[name].bring_to_front()
                slider = pages[name].locator(selector).first
                # There and back, so that no slider reaches its end.
                key = "ArrowRight" if round_ % 2 == 0 else "ArrowLeft"
                for _ in range(PRESSES):
                    took = press(pages[name], slider, key)
                    if took is None:
                        missed[name] += 1
                    elif round_:
                        times[name].append(took)
    for name, figures in times.items():
        if not figures:
            print(f"latency: no press changed a chart on {name}")
            return
        p95 = sorted(figures)[int(0.95 * (len(figures) - 1))]
        print(
            f"key press to paint, {name:<24} median {statistics.median(figures):7.1f} ms   "
            f"p95 {p95:7.1f} ms   {len(figures)} presses, {missed[name]} without a change"
        )
    ratio = statistics.median(times["Train"]) / statistics.median(times["floor"])
    print(f"Train / floor {ratio:.2f}   target {TARGET}")


if __name__ == "__main__":
    main()
