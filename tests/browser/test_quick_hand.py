"""A quick hand: what is done before the browser has heard of what was done before it.

An edit is never lost, and the address is that of what is shown, however close the next click is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlencode

import pytest
import reading
from playwright.sync_api import Locator, Page, expect
from protocol import Tab

import rig
from memcore.models import catalog
from memcore.plan.link import decode, encode
from memcore.plan.plan import Plan

pytestmark = pytest.mark.long
Open = Callable[..., Page]
GAPS = (0, 60, 150, 400)  # milliseconds
CLICKS = """() => {
  window.clicks = 0;
  addEventListener('click', e => {
    clicks += e.composedPath().some(each => each.localName === 'a');
  }, true);
}"""


def example() -> tuple[str, Plan]:
    """A worked plan, by the label under which one starts from it."""
    plans = {e["label"]: Plan.of(e["plan"]) for e in catalog.plan_entries().values()}
    return next(
        (label, plan)
        for label, plan in plans.items()
        if plan.train.micro_batch == 1 and plan != Plan()
    )


def query(plan: Plan) -> str:
    return urlencode(encode(plan, short=True))


def decoded(query: str) -> Plan:
    return decode(parse_qs(query, keep_blank_values=True))[0]


def with_batch(plan: Plan, batch: int) -> Plan:
    document = plan.document()
    document["train"]["micro_batch"] = batch
    return Plan.of(document)


# ---- by the protocol


@pytest.mark.parametrize("seconds", [0.0, 0.03, 0.1, 0.3, 1.0])
def test_a_message_that_knows_nothing_of_an_edit_does_not_undo_it(
    server: rig.Server, seconds: float
) -> None:
    """The second message has the old address and the old "Start from"."""
    label, plan = example()
    with Tab(server.url, query(plan)) as tab:
        tab.send()
        tab.listen()
        assert tab.value("Start from") == label
        tab.choose("Micro-batch (sequences)", "2")
        tab.send()
        time.sleep(seconds)
        tab.send()
        tab.listen()
        tab.send()  # what any next click says
        tab.listen()
        assert decoded(tab.query) == with_batch(plan, 2)
        assert tab.value("Micro-batch (sequences)") == "2"
        assert tab.value("Start from") is None
        # Now it has heard of it, and the same name is a choice.
        tab.choose("Start from", label)
        tab.send()
        tab.listen()
        assert decoded(tab.query) == plan
        assert tab.value("Micro-batch (sequences)") == "1"


@pytest.mark.parametrize("seconds", [0.0, 0.1, 1.0])
def test_an_edit_just_before_a_link_goes_with_it(server: rig.Server, seconds: float) -> None:
    with Tab(server.url, "v=1") as tab:
        tab.send()
        tab.listen()
        tab.choose("Micro-batch (sequences)", "4")
        tab.send()
        time.sleep(seconds)
        tab.follow("tiers")
        tab.send()
        tab.listen()
        assert tab.page == tab.pages["tiers"]
        assert decoded(tab.query).train.micro_batch == 4


def test_an_old_address_is_read_again_only_by_going_back_to_it(server: rig.Server) -> None:
    with Tab(server.url, "mb=3") as tab:
        tab.send()
        tab.listen()
        tab.choose("Micro-batch (sequences)", "4")
        tab.send()
        tab.listen()
        assert decoded(tab.query).train.micro_batch == 4
        tab.query = "mb=3"
        tab.send(went_back=True)
        tab.listen()
        assert tab.query == "mb=3"
        assert tab.value("Micro-batch (sequences)") == "3"
        tab.choose("Micro-batch (sequences)", "4")  # a choice, though it was shown before
        tab.send()
        tab.listen()
        assert decoded(tab.query).train.micro_batch == 4


def test_an_address_that_nobody_here_wrote_is_read(server: rig.Server) -> None:
    with Tab(server.url, "mb=3") as tab:
        tab.send()
        tab.listen()
        tab.query = "mb=5"
        tab.send()
        tab.listen()
        assert tab.value("Micro-batch (sequences)") == "5"
        assert tab.query == "mb=5"


# ---- in the browser


def slider(page: Page, name: str = "train_micro_batch") -> Locator:
    return page.locator(f'.st-key-{name} input[type="range"]').first


def shows(page: Page, plan: Plan) -> None:
    """Wait until the page, its widgets and its address say this plan, and nothing runs."""
    rig.eventually(
        lambda: reading.addressed(page) == plan,
        lambda: f"the address is {page.url}, not {query(plan)}",
        page=page,
    )
    reading.agrees(page)
    expect(slider(page)).to_have_attribute("aria-valuetext", str(plan.train.micro_batch))
    rig.settled(page)
    assert reading.addressed(page) == plan
    assert not reading.wrong(page)


@pytest.mark.parametrize("gap", GAPS)
def test_a_click_soon_after_an_edit_does_not_undo_it(open_app: Open, gap: int) -> None:
    _, plan = example()
    page = open_app(f"/?{query(plan)}", moves=True)
    reading.agrees(page)
    summary = page.locator(".st-key-folded_Training-details summary")
    summary.scroll_into_view_if_needed()
    group = summary.bounding_box()
    assert group
    slider(page).evaluate("e => e.focus({preventScroll: true})")
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(gap)
    page.mouse.click(group["x"] + 40, group["y"] + group["height"] / 2)
    expect(page.locator(".st-key-train_grad_accumulation")).to_be_visible()
    shows(page, with_batch(plan, 2))


@pytest.mark.parametrize("gap", GAPS[:2])
def test_a_link_to_another_view_soon_after_an_edit(open_app: Open, gap: int) -> None:
    _, plan = example()
    page = open_app(f"/?{query(plan)}", moves=True)
    reading.agrees(page)
    place = page.get_by_role("link", name="Explore", exact=True).first.bounding_box()
    assert place
    slider(page).press("ArrowRight")
    page.wait_for_timeout(gap)
    at = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    page.evaluate(CLICKS)
    page.mouse.click(*at)
    while not page.evaluate("clicks"):  # no link was there between two drawings
        page.mouse.click(*at)
    rig.eventually(lambda: reading.view(page) == "explore", page=page)
    shows(page, with_batch(plan, 2))


def test_two_edits_soon_after_each_other(open_app: Open) -> None:
    page = open_app("/", moves=True)
    reading.agrees(page)
    slider(page).press("ArrowRight")
    slider(page, "train_seq_len").press("ArrowLeft")
    slider(page).press("ArrowRight")
    shows(page, Plan(train={"micro_batch": 3, "seq_len": 3072}))


@pytest.mark.parametrize("gap", GAPS[1:2])
def test_back_and_a_click_soon_after(open_app: Open, gap: int) -> None:
    """Through plans and views, and each time the page shows what the address says."""
    page = open_app("/?mb=5", moves=True)
    reading.agrees(page)
    slider(page).press("ArrowRight")
    shows(page, decoded("mb=6"))
    page.get_by_role("link", name="Explore", exact=True).first.click()
    rig.eventually(lambda: reading.view(page) == "explore", page=page)
    shows(page, decoded("mb=6"))
    for step, view, batch in (
        (page.go_back, "train", 6),
        (page.go_back, "train", 5),
        (page.go_forward, "train", 6),
        (page.go_forward, "explore", 6),
    ):
        step()
        page.wait_for_timeout(gap)
        page.locator(".st-key-folded_Offload summary").click()
        rig.eventually(lambda v=view: reading.view(page) == v, page=page)
        shows(page, decoded(f"mb={batch}"))
