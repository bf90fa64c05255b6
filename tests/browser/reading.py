"""What a page says, and what it ought to say: `evaluate` of the plan in its address bar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Error, Page

import rig
from app import palette
from memcore import Report
from memcore.evaluate import evaluate
from memcore.plan.link import decode
from memcore.plan.plan import Plan
from memcore.search.prices import own_price
from memcore.units import (
    bytes_text,
    count_text,
    energy_text,
    gib_text,
    hours_text,
    money_text,
    seconds_text,
)

# The first is at the root of the address, the others at their names.
PROOF = ("accuracy",)  # about Memplan, and no plan
VIEWS = ("train", "time", "tiers", "ledger", "serve", "stream", "rates", "together", *PROOF)
SERVING = ("serve", "stream", "rates")
LINKS = {  # the title of each view in the bar
    "train": "Train",
    "time": "Time",
    "tiers": "Tiers",
    "ledger": "Tensors",
    "serve": "Serve",
    "stream": "Requests",
    "rates": "Rates",
    "together": "RL",
    "accuracy": "Proof",
}
VERDICTS = {"fits": " fits: ", "tight": " may fit: ", "over": " not fit: "}

READ = """whole => {
  const all = (selector, node = document) => [...node.querySelectorAll(selector)];
  const text = (selector, node) => node.querySelector(selector)?.innerText.trim() ?? '';
  const list = values => values ? Array.from(values) : null;
  return {
    figures: all('[data-testid="stMetric"]').map(m =>
      [text('[data-testid="stMetricLabel"]', m), text('[data-testid="stMetricValue"]', m)]),
    asked: Object.fromEntries(
      all('[data-testid="stMain"] [class*="st-key-why_"]').map(e =>
        [[...e.classList].find(c => c.startsWith('st-key-why_')).slice(11), e.innerText.trim()])),
    bar: Object.fromEntries(all('.st-key-chart_bar .js-plotly-plot').flatMap(p => p._fullData ?? [])
      .map(t => [t.customdata[0][1].split('.').at(-1), Math.round(list(t.x)[0] * 2 ** 30)])),
    alerts: all('[data-testid="stAlert"]').map(a => a.innerText.trim()),
    charts: whole && all('.js-plotly-plot').map(p => (p._fullData ?? []).map(t =>
      ({name: t.name, x: list(t.x), y: list(t.y)}))),
    text: whole && (document.querySelector('[data-testid="stMain"]')?.innerText ?? ''),
  };
}"""

DOWNLOADS = """() => [...document.querySelectorAll('[class*="st-key-download_"]')]
  .flatMap(e => [...e.classList].filter(c => c.startsWith('st-key-')).map(c => c.slice(7)))"""


def read(page: Page, whole: bool = True) -> dict[str, Any]:
    """What a page says: figures by label, messages, and in the whole also chart series and text."""
    said: dict[str, Any] = page.evaluate(READ, whole)
    return said


def plan_at(url: str) -> Plan:
    """The plan of an address; one without any is where everybody starts."""
    query = rig.query(url)
    return decode(query)[0] if query else Plan()


def addressed(page: Page) -> Plan:
    """The plan in the address bar."""
    return plan_at(page.url)


def view(page: Page) -> str:
    return urlsplit(page.url).path.strip("/") or VIEWS[0]


def go(page: Page, there: str) -> None:
    """To a view by the link that leads to it."""
    page.get_by_role("link", name=LINKS[there], exact=True).first.click()


def header(report: Report) -> dict[str, str]:
    """The figures on top of a page about training, by their paths."""
    memory, time = report.memory, report.time
    assert memory
    assert time
    return {
        "memory.allocated_bytes": bytes_text(memory.allocated_bytes),
        "time.step_seconds": seconds_text(time.step_seconds),
        "time.tokens_per_second": count_text(time.tokens_per_second),
        "time.mfu": f"{time.mfu:.1%}",
        "time.bound_by": palette.resource(time.bound_by),
    }


def serving(report: Report) -> dict[str, str]:
    """The figures on top of Serve, by their paths."""
    serve = report.serve
    assert serve
    figures: tuple[tuple[str, Any, Callable[[Any], str]], ...] = (
        ("kv_capacity_tokens", serve.kv_capacity_tokens, "{:,}".format),
        ("ttft_seconds", serve.ttft_seconds, seconds_text),
        ("tpot_seconds", serve.tpot_seconds, seconds_text),
        ("tokens_per_second", serve.tokens_per_second, count_text),
    )
    # Where nothing fits there are no speeds, and no tokens.
    return {
        f"serve.{name}": text(n) for name, n, text in figures if n is not None and serve.running
    }


def whole_run(report: Report) -> list[str]:
    """The figures of the whole run on Time, in order."""
    run, (price, _) = report.run, own_price(Plan.of(report.plan))
    assert run
    listed = run.cost is None and price is not None
    return [
        seconds_text(run.seconds),
        hours_text(run.gpu_hours),
        *([money_text(run.cost)] if run.cost is not None else []),
        energy_text(run.energy_joules),
        bytes_text(run.disk_bytes),
        *([f"from {money_text((price or 0) * run.gpu_hours)}"] if listed else []),
    ]


def _span(ends: tuple[int, int]) -> tuple[str, str]:
    """Two sizes, with their unit once."""
    low, high = map(gib_text, ends)
    return low.removesuffix(" GiB"), high


def wrong(page: Page) -> str:
    """Where the page differs from `evaluate` of the plan in its address; '' when nowhere."""
    here = view(page)
    if here in PROOF:
        return ""  # it is about no plan
    report, said = evaluate(addressed(page)), read(page, whole=False)
    memory, serve, together = report.memory, report.serve, report.together
    assert memory
    assert serve
    asked = {path.replace(".", "-"): text for path, text in _figures(report, here).items()}
    low, high = _span(memory.device_bytes)
    path, fit = "memory-room_bytes", memory.verdict
    verdict = f"{low} to {high} of {gib_text(memory.capacity_bytes)}"
    if here in SERVING:
        path, fit = "serve-fits", "fits" if serve.fits else "over"
        n = addressed(page).serve.concurrency
        asks = "1 sequence needs" if n == 1 else f"{n:,} sequences need"
        verdict = asks if serve.max_concurrency else "no speeds are known"
    elif here == "together" and together:
        low, high = _span(together.device_bytes)
        path, fit = "together-fits", together.verdict
        verdict = f"{low} to {high} of {gib_text(together.capacity_bytes)}"
    for at, text in {**asked, path: verdict, "parameters": f"{report.parameters:,}"}.items():
        if text not in said["asked"].get(at, ""):
            return f"at {at} the page says {said['asked'].get(at)!r}, evaluate {text!r}"
    if VERDICTS[fit] not in said["asked"][path]:
        return f"{said['asked'][path]!r} is not {fit}"
    if here == "time" and [value for _, value in said["figures"]] != whole_run(report):
        return f"the page says {said['figures']}, evaluate {whole_run(report)}"
    parts = {part: size for part, size in memory.consumers.items() if size}
    shown = {part: size for part, size in said["bar"].items() if part in memory.consumers}
    if path == "memory-room_bytes" and shown != parts:
        return f"the bar says {shown}, evaluate {parts}"
    return ""


def _figures(report: Report, here: str) -> dict[str, str]:
    figures = serving(report) if here in SERVING else header(report)
    if here == "together" and report.together:  # the time of a step is that of training alone
        del figures["time.step_seconds"], figures["time.tokens_per_second"]
    return figures


def agrees(page: Page) -> None:
    """Wait until the page says what `evaluate` says of its address."""
    rig.eventually(lambda: not wrong(page), lambda: f"{page.url}\n{wrong(page)}", page=page)


def download(page: Page, name: str) -> Path:
    """Press a download button by its key and give the file."""
    # With a help text Streamlit draws a button twice, of which one is seen.
    button = page.locator(f".st-key-{name} button:visible")
    try:
        with page.expect_download() as download:
            button.click()
    except Error as e:
        shown = page.locator(f".st-key-{name}").all_inner_texts()
        raise AssertionError(f"pressed, and no file came; the button shows {shown}") from e
    return Path(download.value.path())


def key_of_name(name: str) -> str:
    """What Streamlit makes of a widget's key in the name of its class."""
    return re.sub(r"[^a-zA-Z0-9_-]", "-", name.strip())


def drop(page: Page, selector: str, name: str, content: str | bytes) -> None:
    """Drop a file onto an element, as a hand would."""
    given = json.dumps(content if isinstance(content, str) else list(content))
    held = given if isinstance(content, str) else f"new Uint8Array({given})"
    make = f"""() => {{
      const data = new DataTransfer();
      data.items.add(new File([{held}], {json.dumps(name)}));
      return data;
    }}"""
    data = page.evaluate_handle(make)
    for event in ("dragenter", "dragover", "drop"):
        page.dispatch_event(selector, event, {"dataTransfer": data})


def bar(page: Page) -> dict[str, float] | None:
    """Where the bar of memory is."""
    return page.locator(".st-key-chart_bar").bounding_box()
