"""What a page says, and what it ought to say: `evaluate` of the plan in its address bar."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page

import rig
from app import palette
from memcore import Report
from memcore.evaluate import evaluate
from memcore.plan.link import decode
from memcore.plan.plan import Plan
from memcore.units import (
    GiB,
    bytes_text,
    count_text,
    energy_text,
    gib_text,
    money_text,
    seconds_text,
)

# The first is at the root of the address, the others at their names.
VIEWS = ("train", "timeline", "time", "tiers", "serve", "together", "ledger", "accuracy", "method")
VERDICTS = {"fits": " fits: ", "tight": " is tight: ", "over": " does not fit: "}

READ = """() => {
  const all = (selector, node = document) => [...node.querySelectorAll(selector)];
  const text = (selector, node) => node.querySelector(selector)?.innerText.trim() ?? '';
  const list = values => values ? Array.from(values) : null;
  return {
    figures: all('[data-testid="stMetric"]').map(m =>
      [text('[data-testid="stMetricLabel"]', m), text('[data-testid="stMetricValue"]', m)]),
    alerts: all('[data-testid="stAlert"]').map(a => a.innerText.trim()),
    charts: all('.js-plotly-plot').map(p => (p._fullData ?? []).map(t =>
      ({name: t.name, x: list(t.x), y: list(t.y)}))),
    text: document.querySelector('[data-testid="stMain"]')?.innerText ?? '',
  };
}"""

DOWNLOADS = """() => [...document.querySelectorAll('[class*="st-key-download_"]')]
  .flatMap(e => [...e.classList].filter(c => c.startsWith('st-key-')).map(c => c.slice(7)))"""


def read(page: Page) -> dict[str, Any]:
    """Everything that a page says: figures by label, messages, chart series, text."""
    said: dict[str, Any] = page.evaluate(READ)
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


def header(report: Report) -> list[str]:
    """The figures on top of every page, in order."""
    memory, time = report.memory, report.time
    assert memory
    assert time
    return [
        bytes_text(memory.allocated_bytes),
        seconds_text(time.step_seconds),
        count_text(time.tokens_per_second),
        f"{time.mfu:.1%}",
        palette.resource(time.bound_by),
    ]


def serving(report: Report) -> list[str]:
    """The figures of Serve, in order."""
    serve = report.serve
    assert serve
    assert serve.ttft_seconds is not None
    assert serve.tpot_seconds is not None
    assert serve.tokens_per_second is not None
    return [
        f"{serve.max_concurrency:,}",
        f"{serve.kv_capacity_tokens:,}",
        seconds_text(serve.ttft_seconds),
        seconds_text(serve.tpot_seconds),
        count_text(serve.tokens_per_second),
    ]


def whole_run(report: Report) -> list[str]:
    """The figures of the whole run on Time, in order."""
    run = report.run
    assert run
    return [
        seconds_text(run.seconds),
        f"{run.gpu_hours:,.0f}",
        *([money_text(run.cost)] if run.cost is not None else []),
        energy_text(run.energy_joules),
        energy_text(run.joules_per_token),
    ]


def wrong(page: Page) -> str:
    """Where the page differs from `evaluate` of the plan in its address; '' when nowhere."""
    report, said = evaluate(addressed(page)), read(page)
    memory, serve = report.memory, report.serve
    assert memory
    assert serve
    alone = view(page) == "serve"  # the server has a header of its own
    figures = serving(report) if alone else header(report)
    if view(page) == "time":
        figures += whole_run(report)
    shown = [value for _, value in said["figures"]]
    if shown[: len(figures)] != figures:  # what a page has besides comes after
        return f"the page says {said['figures']}, evaluate {figures}"
    low, high = map(gib_text, memory.device_bytes)
    verdict: tuple[str, ...] = (VERDICTS[memory.verdict], low, high)
    verdict += (gib_text(memory.capacity_bytes),)
    if alone:
        concurrency = addressed(page).serve.concurrency
        verdict = (VERDICTS["fits" if serve.fits else "over"], f"{concurrency:,} sequences need")
    if not any(all(part in alert for part in verdict) for alert in said["alerts"]):
        return f"no verdict with {verdict} among {said['alerts']}"
    peak = next(i.label for i in memory.timeline if i.bytes == memory.allocated_bytes)
    for text in (f"{report.parameters:,} parameters", *([] if alone else [peak])):
        if text not in said["text"]:
            return f"{text!r} is not on the page"
    if view(page) == "train" and (series := stacked(said)) != parts(report):
        return f"the chart says {series}, evaluate {parts(report)}"
    return ""


def stacked(said: dict[str, Any]) -> dict[str, int]:
    """Bytes by consumer in the chart on Train."""
    titles = {title: name for name, (title, _) in palette.CONSUMERS.items()}
    chart = said["charts"][0] if said["charts"] else []
    return {titles[t["name"]]: round(t["x"][0] * GiB) for t in chart if t["name"] in titles}


def parts(report: Report) -> dict[str, int]:
    assert report.memory
    return dict(report.memory.consumers)


def agrees(page: Page) -> None:
    """Wait until the page says what `evaluate` says of its address."""
    rig.eventually(lambda: not wrong(page), lambda: f"{page.url}\n{wrong(page)}", page=page)


def download(page: Page, name: str) -> Path:
    """Press a download button by its key and give the file."""
    with page.expect_download() as download:
        page.locator(f".st-key-{name} button").click()
    return Path(download.value.path())


def key_of_name(name: str) -> str:
    """What Streamlit makes of a widget's key in the name of its class."""
    return re.sub(r"[^a-zA-Z0-9_-]", "-", name.strip())


def drop(page: Page, selector: str, name: str, content: str) -> None:
    """Drop a file onto an element, as a hand would."""
    make = f"""() => {{
      const data = new DataTransfer();
      data.items.add(new File([{json.dumps(content)}], {json.dumps(name)}));
      return data;
    }}"""
    data = page.evaluate_handle(make)
    for event in ("dragenter", "dragover", "drop"):
        page.dispatch_event(selector, event, {"dataTransfer": data})
