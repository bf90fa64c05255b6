"""Every page keeps the rules of accessibility, in both themes: as it opens, and in the states that
people come to. `test_every_view_is_drawn` looks at each page of another plan by its address.

A theme is colours alone: a state is asked for every rule as it opens, and for those of colours once
more in the other theme, without being loaded again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import reading
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

import rig
from memcore.plan.link import encode, encode_pin
from memcore.plan.plan import Plan

Open = Callable[..., Page]
SCHEMES = {"light": "rgb(255, 255, 255)", "dark": "rgb(23, 22, 20)"}  # and their backgrounds
COLOURS = ["color-contrast", "link-in-text-block"]  # axe's rules that a theme can break
OVER = Plan(model="llama-3-70b")
STAGES = Plan(
    model="llama-3.1-405b",
    cluster={"gpus": 512},
    parallel={"tp": 8, "pp": 16},
    train={"framework": "megatron", "zero": 1, "kernels": "megatron", "grad_accumulation": 32},
)
PHONE = {"width": 390, "height": 844}
# Pixels that a page, or the part of it that scrolls, is wider than there is room.
WIDE = """() => Math.max(
  ...[document.scrollingElement, document.querySelector('[data-testid="stMain"]')].map(
    (e) => e.scrollWidth - e.clientWidth))"""


def at(view: str, plan: Plan, **more: str) -> str:
    return f"/{view}?{urlencode(encode(plan, short=True) | more)}"


ADDRESSES = {
    "first": "/",
    "over": at("", OVER),
    "stages": at("", STAGES),
    "time of stages": at("time", STAGES),
    "rl, nothing chosen": at("together", Plan()),
    "sweep": at("explore", Plan()),
    "map": at("explore", OVER, look="map"),
    "which GPUs": at("explore", Plan(), look="gpus"),
    "nothing to compare": at("compare", Plan()),
    "compare": at("compare", Plan(), pin=encode_pin(Plan(train={"zero": 2}), "ZeRO 2")),
    "a damaged link": "/?v=2&mb=abc&zzz=1",
}


def test_no_page_breaks_a_rule(open_app: Open) -> None:
    page = open_app("/")
    for name, address in ADDRESSES.items():
        page.goto(rig.origin(page.url) + address)
        rig.settled(page)
        keeps(page, name)


def test_nor_does_what_is_unfolded(open_app: Open) -> None:
    """Each group of the sidebar, each fold of the page, what is shared, what a search finds."""
    page = open_app(at("", OVER))
    reading.agrees(page)
    for fold in ("Host-and-price", "Training-details", "Parallelism", "Offload"):
        with rig.a_run(page):
            page.locator(f".st-key-folded_{fold} summary").click()
    for fold in ("All-changes", "On-which-GPUs", "Instant-by-instant"):
        with rig.a_run(page):
            page.locator(f".st-key-folded_{fold} summary").click()
    keeps(page, "unfolded")
    page.locator(".st-key-share button").first.click()
    expect(page.get_by_text("Copy link").first).to_be_visible()
    keeps(page, "share")
    page.goto(rig.origin(page.url) + at("explore", Plan(), look="search"))
    rig.settled(page)
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("The best:").first).to_be_visible()
    keeps(rig.settled(page), "found")


def test_nor_does_a_phone(open_app: Open) -> None:
    page = open_app("/", fresh=True, viewport=PHONE)
    reading.agrees(page)
    keeps(page, "phone")
    page.get_by_test_id("stExpandSidebarButton").click()
    expect(page.locator(".st-key-train_seq_len").first).to_be_visible()
    keeps(page, "phone, with its sheet")
    for view in ("time", "tiers", "serve", "stream", "explore", "accuracy"):
        page.goto(f"{rig.origin(page.url)}/{view}")
        rig.settled(page)
        keeps(page, f"{view} on a phone")
        wide = page.evaluate(WIDE)
        assert wide <= 0, f"{view} scrolls sideways"


def keeps(page: Page, name: str) -> None:
    """The page breaks no rule in the theme that it opens in, and none of colours in the other, in
    which it is left: every second address is opened in the dark."""
    rig.still(page)
    here = next(scheme for scheme, colour in SCHEMES.items() if background(page) == colour)
    other: Any = next(scheme for scheme in SCHEMES if scheme != here)
    asked(page, name, Axe(), {})
    page.emulate_media(color_scheme=other)
    rig.eventually(lambda: background(page) == SCHEMES[other], f"is not {other}", page=page)
    rig.still(rig.settled(page))
    asked(page, f"{name}, {other}", Axe(""), {"runOnly": COLOURS})  # whose script is there already


def background(page: Page) -> Any:
    app = page.get_by_test_id("stApp")
    return app.evaluate("e => getComputedStyle(e).backgroundColor")


def asked(page: Page, name: str, axe: Axe, options: dict[str, Any]) -> None:
    found: Any = axe.run(page, options={"resultTypes": ["violations"]} | options)
    assert not found.violations_count, f"{name}: {found.generate_report()}"


def test_a_phone_has_the_whole_of_a_table_of_sentences(open_app: Open) -> None:
    """Its cells stand one below another; other tables scroll under their first column."""
    page = open_app("/accuracy", fresh=True, viewport=PHONE)
    for fold in page.locator('[data-testid="stMain"] summary').all():
        fold.click()
    expect(page.locator(".written").first).to_be_visible()
    rig.settled(page)
    for shown in page.locator(".written").all():
        assert shown.evaluate("e => e.scrollWidth <= e.parentElement.clientWidth + 1")
