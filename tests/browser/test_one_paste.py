"""A long text that one person pastes, beside another person who moves a slider; one that is too
long, which is told; and a long config.json, which is planned."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

import pytest
import reading
from playwright.sync_api import Locator, Page, expect
from protocol import Tab

import rig
from memcore.formats.texts import MAX_CHARACTERS, MAX_JSON, MAX_SCRIPT
from memcore.models import catalog
from memcore.plan.link import decode

pytestmark = pytest.mark.long
Open = Callable[..., Page]
LENGTH = 199_000
ANSWERED = 500  # milliseconds at most from a key press to the page that says the new plan
BY_THE_CLOCK = 3  # seconds at most, where a busy machine's other programs count too
# What is pasted over and over. Of several tries the quickest counts: a busy machine makes any one
# longer, and a text that is read for long makes all of them so.
PASTED = ("x", "[", 'x" ')

# From the key press on: when the page says another plan, in its address and in its figures. Times
# are those of the clock, which all pages of a machine share.
ANSWERS = """() => {
  const figures = () => [...document.querySelectorAll('[class*="st-key-why_memory"]')]
    .map(each => each.innerText).join();
  const before = figures(), address = location.search;
  window.answer = new Promise(done => addEventListener('keydown', () => {
    const pressed = Date.now();
    const look = setInterval(() => {
      if (location.search === address || figures() === before) return;
      clearInterval(look);
      done([pressed, Date.now()]);
    }, 5);
  }, {capture: true, once: true}));
}"""
TELLS = """() => {
  const alerts = () => [...document.querySelectorAll('[data-testid="stAlert"]')]
    .map(each => each.innerText).join();
  const before = alerts();
  window.told = new Promise(done => {
    const look = setInterval(() => {
      if (alerts() === before) return;
      clearInterval(look);
      done(Date.now());
    }, 5);
  });
}"""


def pasted(page: Page, text: str) -> Locator:
    """The box for a text, with this one in it, which is not yet read."""
    box = page.locator(".st-key-config_text textarea")
    if not box.is_visible():
        page.get_by_text("Your own files").click()
    box.fill(text)
    return box


def used(server: rig.Server) -> float:
    """Milliseconds of a processor that a server has had."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pressed(page: Page, server: rig.Server, before: Callable[[], None]) -> tuple[int, int, float]:
    """When a key was pressed on the slider, right after what is done before, and when the page said
    the new plan, in milliseconds of the clock; and those of a processor that the server had."""
    page.locator('.st-key-train_micro_batch input[type="range"]').first.focus()
    page.evaluate(ANSWERS)
    start = used(server)
    before()
    page.keyboard.press("ArrowRight")
    at, answered = page.evaluate("answer")
    taken = used(server) - start
    reading.agrees(page)
    return at, answered, taken


def test_another_person_is_answered_while_a_long_text_is_read(
    open_app: Open, server: rig.Server
) -> None:
    """By the clock; or, where other programs have the machine, in that time of a processor, which
    is all that the server does for both of them until then."""
    other = open_app("/", fresh=True)
    reading.agrees(other)
    beside = []
    for repeated in PASTED:
        mine = open_app("/")
        box = pasted(mine, (repeated * LENGTH)[:LENGTH])
        mine.evaluate(TELLS)
        read = functools.partial(box.press, "Control+Enter")
        at, answered, taken = pressed(other, server, read)
        told = mine.evaluate("told")
        if at < told:
            beside.append(min(answered - at, taken))
    assert beside, "each text was read before the key was pressed"
    assert min(beside) <= ANSWERED, beside


def test_a_config_json_of_three_megabytes_is_planned(open_app: Open) -> None:
    """As one is that lists each of its quantized layers; that no link holds it is told."""
    page = open_app("/?mb=2")
    reading.agrees(page)
    config = dict(catalog.model_entry("llama-2-13b")["config"])
    config["layers_that_are_listed"] = [f"model.layers.{n}.mlp.up_proj" for n in range(98_000)]
    content = json.dumps(config)
    assert 3_100_000 < len(content) < MAX_JSON
    reading.drop(page, '[data-testid="stMain"] h5', "config.json", content)
    expect(page.get_by_text("13,015,864,320 parameters")).to_be_visible()
    expect(page.get_by_text("No link holds this plan")).to_be_visible()


@pytest.mark.parametrize("repeated", ["x", "7", "[", "x.", 'x" '])
def test_a_server_answers_another_tab_while_it_reads(server: rig.Server, repeated: str) -> None:
    in_time = []
    with Tab(server.url, "mb=3") as other, Tab(server.url, "mb=5") as mine:
        for tab in (other, mine):
            tab.send()
            tab.listen()
        for turn in range(3):
            mine.choose("or paste it", (repeated * LENGTH)[: LENGTH - turn])
            other.choose("Micro-batch (sequences)", str(4 + turn))
            mine.send()
            other.send()
            in_time.append(other.answer(until=time.monotonic() + BY_THE_CLOCK))
            other.listen()
            mine.listen()
            assert decode(parse_qs(other.query))[0].train.micro_batch == 4 + turn
    assert any(in_time)


@pytest.mark.parametrize(
    ("length", "most"), [(MAX_SCRIPT + 1, MAX_SCRIPT), (MAX_CHARACTERS + 1, MAX_CHARACTERS)]
)
def test_a_text_that_is_too_long_is_told(
    open_app: Open, keep_screenshot: Callable[[Page, str], None], length: int, most: int
) -> None:
    page = open_app("/?mb=2")
    reading.agrees(page)
    plan = reading.addressed(page)
    pasted(page, "x" * length).press("Control+Enter")
    said = page.locator('[data-testid="stAlert"]').first
    expect(said).to_contain_text("what was pasted")
    expect(said).to_contain_text(f"has {length:,} characters")
    expect(said).to_contain_text(f"at most {most:,}")
    keep_screenshot(page, f"a text of {length} characters")
    reading.agrees(page)
    assert reading.addressed(page) == plan


def test_no_gpus_in_the_field_for_them_are_refused(open_app: Open) -> None:
    """By the browser, which says what may stand there."""
    page = open_app("/?mb=2")
    reading.agrees(page)
    plan = reading.addressed(page)
    box = page.locator(".st-key-cluster_gpus input")
    box.fill("0")
    box.press("Enter")
    assert "1" in box.evaluate("box => box.validationMessage")
    reading.agrees(page)
    assert reading.addressed(page) == plan
