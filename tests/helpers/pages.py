"""Pages of the app without a browser."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from streamlit.testing.v1 import AppTest

from memcore.plan.plan import Plan

VIEWS = ("train", "timeline", "time", "tiers", "serve", "together", "ledger", "accuracy", "method")
APP = Path(importlib.import_module("app").__file__ or "").parent


def opened(query: dict[str, str] | None = None, view: str = "train") -> AppTest:
    """A view at its own address, as from a link."""
    at = AppTest.from_file(str(APP / "page.py"), default_timeout=60)
    for key, value in (query or {}).items():
        at.query_params[key] = value
    if view != "train":
        at.switch_page(f"views/{view}.py")
    return at.run()


def each_view(query: dict[str, str] | None = None) -> Iterator[tuple[str, AppTest]]:
    """One person who opens a link and goes through every view."""
    at = opened(query)
    for view in VIEWS:
        if view != VIEWS[0]:
            at.switch_page(f"views/{view}.py").run()
        alive(at)
        yield view, at


def alive(at: AppTest) -> None:
    assert not at.exception, [e.message for e in at.exception]
    assert at.select_slider(key="train_micro_batch")


def shown_plan(at: AppTest) -> Plan:
    plan: Plan = at.session_state["memplan"].plan
    return plan


def metrics(at: AppTest) -> dict[str, str]:
    return {m.label: m.value for m in at.metric}


def said(at: AppTest) -> str:
    """The text of warnings and errors, without markdown's escapes."""
    text = "\n".join(m.value for m in [*at.warning, *at.error])
    return text.replace("\\", "").replace("\u200b", "")
