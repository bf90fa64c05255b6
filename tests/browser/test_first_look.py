"""The app as it opens in a real browser, and its six sliders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import reading
from playwright.sync_api import Page, expect

from memcore.plan.plan import Plan

Open = Callable[..., Page]


def test_first_sight(open_app: Open) -> None:
    """A real plan, its verdict and a chart, without scrolling and without doing anything."""
    page = open_app("/")
    assert reading.addressed(page) == Plan()
    reading.agrees(page)
    expect(page.locator(".st-key-title").get_by_text("Llama 3 8B on 8 × ")).to_be_in_viewport()
    strip = page.locator(".st-key-strip")
    part, limit = ".st-key-chart_bar .bars path", ".st-key-chart_bar .shapelayer path"
    for name in (".st-key-verdict_fits", ".st-key-why_time-step_seconds", part, limit):
        expect(strip.locator(name).first).to_be_in_viewport()
    page.mouse.move(800, 600)
    page.mouse.wheel(0, 4000)
    expect(page.get_by_text("Overhead outside the allocator")).to_be_in_viewport()
    expect(strip.locator(part).first).to_be_in_viewport()


def test_on_a_phone_the_verdict_is_in_view_beside_the_controls(open_app: Open) -> None:
    page = open_app("/", viewport={"width": 390, "height": 844})
    reading.agrees(page)
    page.get_by_test_id("stExpandSidebarButton").click()
    slider = page.locator('.st-key-train_seq_len input[type="range"]').first
    page.locator(".st-key-train_seq_len label").scroll_into_view_if_needed()
    slider.press("ArrowRight")
    page.wait_for_url(lambda url: reading.plan_at(url) != Plan())
    reading.agrees(page)
    sheet = page.get_by_test_id("stSidebar").bounding_box()
    bar = reading.bar(page)
    assert sheet
    assert bar
    assert 0 < bar["y"] < bar["y"] + bar["height"] < sheet["y"], "the sheet hides the answer"
    assert page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0


SLID = (
    ("model_size", "ArrowRight", "model", {"size": "10B"}),
    ("train_micro_batch", "ArrowRight", "train.micro_batch", 2),
    ("train_seq_len", "ArrowLeft", "train.seq_len", 3072),
    ("train_precision", "ArrowRight", "train.precision", "bf16-autocast"),
    ("train_checkpointing", "ArrowLeft", "train.checkpointing", "selective-op"),
    ("train_zero", "ArrowLeft", "train.zero", 2),
)


def test_each_slider_moves_the_plan_and_the_page(open_app: Open) -> None:
    """One after another: each moves its own field and no other."""
    page = open_app("/")
    reading.agrees(page)
    expected: Any = Plan().document()
    for key, press, path, value in SLID:
        plan = reading.addressed(page)
        before, place = reading.read(page, whole=False)["asked"], reading.bar(page)
        page.locator(f'.st-key-{key} input[type="range"]').first.press(press)
        page.wait_for_url(lambda url, plan=plan: reading.plan_at(url) != plan)
        reading.agrees(page)
        part, _, name = path.rpartition(".")
        (expected[part] if part else expected)[name] = value
        assert reading.addressed(page) == Plan.of(expected), key
        assert reading.read(page, whole=False)["asked"] != before, key
        assert reading.bar(page) == place, "the bar jumped"
