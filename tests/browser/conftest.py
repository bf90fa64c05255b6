"""Fixtures: the app on a free port, a browser, and pages that are watched."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, ViewportSize, expect

import rig

expect.set_options(timeout=1000 * rig.SECONDS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with rig.launched() as browser:
        if browser is None:
            if os.environ.get("MEMPLAN_REQUIRE_BROWSER") == "1":
                pytest.fail(rig.NO_CHROMIUM, pytrace=False)
            pytest.skip(rig.NO_CHROMIUM)
        yield browser


@pytest.fixture(scope="session", autouse=True)
def safe_presses() -> Iterator[None]:
    """Whatever is pressed is pressed once nothing moves."""

    def click(self: Locator, **how: Any) -> None:
        rig.still(self.page)
        press(self, **how)

    with pytest.MonkeyPatch.context() as patch:
        press = Locator.click
        patch.setattr(Locator, "click", click)
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rig.Server]:
    log = tmp_path_factory.mktemp("server") / "log.txt"
    with rig.serving(rig.streamlit(rig.ROOT / "app" / "main.py"), log) as server:
        yield server


@pytest.fixture(scope="session")
def watch() -> rig.Watch:
    return rig.Watch()


@pytest.fixture(scope="session")
def one_context(browser: Browser, watch: rig.Watch, server: rig.Server) -> BrowserContext:
    """A browser that has been here before: what it has cached need not be loaded again, and, as one
    tab stays open, not compiled again either."""
    context = watch.over(browser.new_context(viewport=rig.VIEWPORT))
    context.new_page().goto(f"{server.url}/_stcore/health")
    return context


@pytest.fixture
def open_app(
    browser: Browser, one_context: BrowserContext, watch: rig.Watch, server: rig.Server
) -> Iterator[Callable[..., Page]]:
    """Opens the app at a path and waits until it is drawn. Each page is a session of its own; one
    that is `fresh` also a browser context of its own, as another person's is. Nothing moves that
    need not, but on a page that `moves`: what moves is drawn sixty times a second.

    At the end nothing may have failed in a page, left this machine, or failed in the server.
    """
    pages: list[Page] = []
    contexts: list[BrowserContext] = []
    already = len(server.log())

    def open_(
        path: str = "/",
        fresh: bool = False,
        color_scheme: Literal["light", "dark"] = "light",
        viewport: ViewportSize | None = None,
        moves: bool = False,
    ) -> Page:
        context = one_context
        if fresh:
            context = watch.over(browser.new_context(viewport=rig.VIEWPORT))
            contexts.append(context)
        page = context.new_page()
        pages.append(page)
        page.set_default_timeout(1000 * rig.SECONDS)
        motion: Literal["no-preference", "reduce"] = "no-preference" if moves else "reduce"
        page.emulate_media(color_scheme=color_scheme, reduced_motion=motion)
        if viewport:
            page.set_viewport_size(viewport)
        page.goto(server.url + path)
        return rig.settled(page)

    yield open_
    for page in pages:
        rig.left(page)
    for context in contexts:
        context.close()
    complaints = watch.complaints(server.log()[already:])
    watch.forget()
    assert not complaints


@pytest.fixture
def keep_screenshot(request: pytest.FixtureRequest) -> Callable[[Page, str], None]:
    """Saves a screenshot where MEMPLAN_SCREENSHOTS says, if it says so."""
    folder = os.environ.get("MEMPLAN_SCREENSHOTS")

    def keep(page: Page, name: str) -> None:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=Path(folder) / f"{re.sub('[^a-z0-9-]+', '-', name)}.png")

    return keep
