"""The lens on Every tensor: computed when it is opened, with what a press would do."""

from __future__ import annotations

import functools
import io
from html import escape

import pandas as pd
import pytest
from pages import alive, frame, opened, shown_plan
from streamlit.testing.v1 import AppTest

from app import lens as page
from app import shared, tables
from memcore.plan.link import encode
from memcore.plan.plan import Plan
from memcore.search.lens import Alike, alike, lens

PLAN = Plan(train={"micro_batch": 2})


@functools.cache
def groups() -> tuple[Alike, ...]:
    return alike(lens(PLAN))


def unfolded() -> AppTest:
    """Opened as a click does; AppTest has none."""
    at = opened(encode(PLAN, short=True), "ledger")
    at.session_state[f"folded_{page.TITLE}"] = True
    return at.run()


def test_nothing_is_computed_while_it_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(plan: Plan) -> None:
        raise AssertionError("nobody asked for it")

    monkeypatch.setattr(shared, "lens", asked)
    alive(opened(encode(PLAN, short=True), "ledger"))


def test_it_says_of_each_what_it_is_and_could_be() -> None:
    at = unfolded()
    alive(at)
    bodies = [str(h.proto.body) for h in at.get("html")]
    written = next(body for body in bodies if 'class="written"' in body)
    shown = tables.lens_groups(groups())
    assert [row["tensors"] for row in shown] == [group.name for group in groups()]
    assert all(escape(row["stored"]) in written for row in shown)
    recomputed = next(row for row in shown if row["recomputed"].startswith("now"))
    assert recomputed["at the peak"] == "0 B"
    assert "GiB, -" in recomputed["stored"]


def test_a_way_that_is_used_is_the_plan() -> None:
    at = unfolded()
    group = next(g for g in groups() if g.first.state == "recomputed")
    at.selectbox(key="lens_of").select(group.name).run()
    ways = frame(at, "could be").set_index("could be")
    stored = group.first.best("stored")
    assert ways.loc["stored", "by"] == stored.label
    assert ways.loc["moved", "by"] == group.first.missing["moved"]
    at.button(key="lens_use_stored").click().run()
    alive(at)
    assert shown_plan(at) == stored.plan == PLAN.changed("train.checkpointing", "none")


def test_a_file_has_each_tensor_with_its_ways() -> None:
    seen = lens(PLAN)
    found = pd.read_csv(io.BytesIO(tables.csv(tables.lens(seen))))
    assert len(found) == len(seen)
    assert found["bytes"].sum() == sum(s.bytes for s in seen)
    assert {"state", "price_seconds", "delayed: added_seconds"} <= set(found.columns)


def test_a_plan_that_is_not_trained_has_none() -> None:
    assert tables.lens(()) == tables.lens_groups(()) == []
