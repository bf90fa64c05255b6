"""Explore and Compare as a person meets them: a point, a cell or a row that is clicked is the plan,
and Back undoes it; plans stand side by side, and one link brings them to somebody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
import reading
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

import rig
from memcore.plan.link import decode_pin, encode, encode_pin, pin_name
from memcore.plan.plan import Plan
from memcore.search.explore import grid

pytestmark = pytest.mark.long
Open = Callable[..., Page]
MAP = ".st-key-chart_explore_map"
POINTS = ".st-key-chart_explore_swept .scatterlayer .point"


def at(view: str, plan: Plan, **more: str) -> str:
    return f"/{view}?{urlencode(encode(plan, short=True) | more)}"


def becomes(page: Page, **train: Any) -> None:
    """Wait until the address has the plan with these, and the page says what it is."""
    page.wait_for_url(lambda url: reading.plan_at(url) == Plan(train=train))
    rig.settled(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_clicked_is_the_plan_and_back_undoes_it(open_app: Open, scheme: str) -> None:
    page = open_app(at("explore", Plan()), color_scheme=scheme)
    expect(page.get_by_text("Fits up to").first).to_be_visible()
    expect(page.locator(POINTS).first).to_be_visible()
    top = page.locator(".st-key-chart_explore_swept").bounding_box()
    point = page.locator(POINTS).nth(8).bounding_box()
    assert point
    page.mouse.click(point["x"] + point["width"] / 2, point["y"] + point["height"] / 2)
    becomes(page, seq_len=8192)
    assert page.locator(".st-key-chart_explore_swept").bounding_box() == top, "the page jumped"
    found = Axe().run(page)
    assert not found.violations_count, found.generate_report()
    page.go_back()
    becomes(page)
    if scheme == "light":  # a dot again after Back, another one, and that one again
        for nth, seq_len in ((8, 8192), (5, 3072), (5, 3072)):
            dot = page.locator(POINTS).nth(nth).bounding_box()
            assert dot
            page.mouse.click(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
            becomes(page, seq_len=seq_len)
        page.go_back()
        becomes(page, seq_len=8192)
        page.go_back()
        becomes(page)
    page.get_by_text("Two fields").click()
    cells = page.locator(f"{MAP} .scatterlayer .point")
    width = len(grid(Plan(), "train.seq_len", "train.micro_batch", "tokens").columns)
    cell = cells.nth(3 * width + 3).bounding_box()
    assert cell
    page.mouse.click(cell["x"] + cell["width"] / 2, cell["y"] + cell["height"] / 2)
    becomes(page, seq_len=2048, micro_batch=4)
    found = Axe().run(page)
    assert not found.violations_count, found.generate_report()


def test_plans_side_by_side_and_their_link(open_app: Open) -> None:
    two = Plan(train={"zero": 2})
    page = open_app(at("compare", Plan(), pin=encode_pin(two, "ZeRO 2")), color_scheme="dark")
    expect(page.locator('[data-testid="stMain"] .js-plotly-plot').nth(1)).to_be_visible()
    found = Axe().run(page)
    assert not found.violations_count, found.generate_report()
    table = page.locator(".st-key-compare_figures canvas").first
    rig.settled(page)  # what comes late above the table moves it

    def opened() -> bool:
        """Whether a click on the first row's name, and its number by the keyboard, says why."""
        table.evaluate("e => e.scrollIntoView({block: 'center'})")
        place = table.bounding_box()
        assert place
        page.mouse.click(place["x"] + 30, place["y"] + 54)
        page.keyboard.press("ArrowRight")
        rig.settled(page)
        return page.get_by_role("dialog").count() == 1

    rig.eventually(opened, page=page)
    expect(page.get_by_role("dialog")).to_contain_text("Allocated at the peak")
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    name = page.get_by_label("Name of plan B")
    name.fill("ZeRO 3")
    name.press("Enter")
    page.wait_for_url(lambda url: rig.query(url).get("name") == ["ZeRO 3"])
    page.get_by_role("button", name="Keep").click()
    page.wait_for_url(lambda url: "pin2" in rig.query(url))
    theirs = open_app(page.url.removeprefix(rig.origin(page.url)), fresh=True)
    pins = [rig.query(theirs.url)[key][0] for key in ("pin", "pin2")]
    assert [pin_name(p) for p in pins] == ["ZeRO 2", "ZeRO 3"]
    assert [decode_pin(p)[0] for p in pins] == [two, Plan()]
    expect(theirs.get_by_text("on the page").first).to_be_visible()


def test_every_file_of_explore_comes_at_a_press(open_app: Open) -> None:
    page = open_app("/explore?mb=1")
    for look, files in (
        ("sweep", ("sweep.csv",)),
        ("map", ("map.csv",)),
        ("gpus", ("gpus.csv",)),
    ):
        page.goto(f"{page.url.partition('?')[0]}?mb=1&look={look}")
        rig.settled(page)
        for file in files:
            key = reading.key_of_name(f"download_memplan-{file}")
            assert reading.download(page, key).stat().st_size > 100, file


def test_the_page_for_whoever_signs_has_the_plans_side_by_side(open_app: Open) -> None:
    pin = encode_pin(Plan(train={"zero": 2}), "<b>ZeRO 2")
    page = open_app(at("compare", Plan(), pin=pin))
    page.get_by_role("button", name="Share").click()
    text = reading.download(page, "report_html").read_text(encoding="utf-8")
    assert "<th>&lt;b&gt;ZeRO 2</th><th>This plan</th>" in text
    assert "<td>ZeRO stage</td><td>2</td><td>3</td>" in text


def test_names_that_mean_harm_are_text_in_charts(open_app: Open) -> None:
    """On axes, in what a mark says and in a saved picture; no name becomes a part of the page."""
    name = "<img src=/x onerror=pwned=1>"
    pin = encode_pin(Plan(train={"zero": 2}), name)
    page = open_app(at("compare", Plan(), pin=pin, name=f"</text>{name[:30]}"))
    plots = page.locator(
        '[class*="st-key-chart_compare_phases"], [class*="st-key-chart_waterfall"]'
    )
    expect(plots).to_have_count(3)  # of phases, and two waterfalls
    for plot in plots.all():
        expect(plot.locator("svg text", has_text=name).first).to_be_visible()
    assert page.evaluate("typeof pwned") == "undefined"
    assert page.locator('[data-testid="stMain"] img').count() == 0


def test_what_stands_below_the_changes_does_not_move_where_names_wrap(open_app: Open) -> None:
    """The offload of two kinds and QLoRA, with what it sets, have two lines on a page of 1280."""
    page = open_app("/?model=llama-3-70b")
    rows = page.locator('[class*="st-key-lever_"]')
    heights = rows.evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")
    names = rows.locator("p:has(strong)").evaluate_all("all => all.map(p => p.offsetHeight)")
    assert len(heights) == 4
    assert max(names) > 1.5 * min(names)
    assert max(heights) - min(heights) < 2
