"""Compare: plans that are pinned become columns, which one link carries."""

from __future__ import annotations

import io

import pandas as pd
from pages import alive, frame, numbers, opened, shown_plan
from streamlit.testing.v1 import AppTest

from app import report as one_page
from app import tables
from app.tables.compare import Column
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.link import decode_pin, encode, encode_pin, pin_name
from memcore.plan.plan import Plan
from memcore.search.levers import levers
from memcore.search.prices import own_price
from memcore.units import money_text, relative_text, seconds_text

TWO, THREE = Plan(train={"zero": 2}), Plan(train={"micro_batch": 3})


def pins(at: AppTest) -> list[tuple[str, Plan]]:
    return [(pin.name, pin.plan) for pin in at.session_state["memplan"].pins]


def test_more_plans_are_pinned_until_there_is_no_room() -> None:
    at = opened()
    at.button(key="pin_button").click().run()
    assert "add_button" not in [b.key for b in at.button]  # it is pinned already
    for n in range(2, 6):
        at.select_slider(key="train_micro_batch").set_value(n).run()
        at.button(key="add_button").click().run()
    at.select_slider(key="train_micro_batch").set_value(6).run()
    alive(at)
    assert [plan.train.micro_batch for _, plan in pins(at)] == [1, 2, 3, 4, 5]
    assert "add_button" not in [b.key for b in at.button]  # six columns are enough
    at.button(key="pin_button").click().run()
    assert not pins(at)


def test_a_link_carries_all_pins_with_their_names() -> None:
    beside = {"pin": encode_pin(TWO, "ZeRO 2"), "pin2": encode_pin(THREE)}
    at = opened({"mb": "2", "name": "mine", **beside})
    alive(at)
    assert pins(at) == [("ZeRO 2", TWO), ("", THREE)]
    assert at.session_state["memplan"].name == "mine"
    assert shown_plan(at).train.micro_batch == 2
    query = {key: values[-1] for key, values in at.session_state["memplan"].query.items()}
    assert decode_pin(query["pin"]) == (TWO, [])
    assert pin_name(query["pin"]) == "ZeRO 2"
    at.session_state["share"] = True
    at.run()
    (copied,) = [c.value for c in at.code if "?" in c.value]
    assert "pin2=" in copied
    assert "name=mine" in copied
    at.select_slider(key="train_micro_batch").set_value(4).run()
    assert at.session_state["memplan"].name == ""  # it was another plan's


def test_a_press_sets_a_plan_beside_its_best_changes() -> None:
    at = opened(view="compare")
    at.button(key="compare_best").click().run()
    alive(at)
    best = [lever for lever in levers(Plan()) if lever.fits][:3]
    (no_name, here), *beside = pins(at)
    assert (no_name, here) == ("", Plan())
    assert [plan for _, plan in beside] == [lever.plan for lever in best]
    assert all(
        name and lever.label.endswith(name) for (name, _), lever in zip(beside, best, strict=True)
    )
    differ = frame(at, "field")
    assert {name for name, _ in beside} <= set(differ.columns)


def test_what_runs_cost_at_list_prices_is_beside_each_other() -> None:
    """Of plans without a price of their own; the least of the price list."""
    row = "Cost at list prices, from"
    at = opened(HERE | BESIDE, "compare")
    alive(at)
    shown = frame(at, "figure").set_index("figure").loc[row]
    run, (price, _) = evaluate(THREE).run, own_price(THREE)
    assert run
    assert price
    assert shown["Plan B"].startswith(money_text(price * run.gpu_hours))
    priced = opened(HERE | BESIDE | {"price": "3"}, "compare")
    assert frame(priced, "figure").set_index("figure").loc[row]["This plan"] == "–"


def test_what_is_wrong_in_a_pin_is_said_and_the_others_stay() -> None:
    at = opened({"pin": "zero=2", "pin2": "mb=none", "pin3": "zero=9"})
    alive(at)
    assert len(pins(at)) == 3
    said = "".join(w.value for w in at.warning).replace("\\", "").replace("*", "")
    assert 'pin2: in the plan pinned there, mb ("Micro-batch")' in said
    assert 'pin3: in the plan pinned there, zero ("ZeRO stage")' in said


# --- the page ------------------------------------------------------------------------------------

HERE = encode(Plan(train={"checkpointing": "none"}), short=True)
BESIDE = {"pin": encode_pin(TWO, "ZeRO 2"), "pin2": encode_pin(THREE)}


def test_without_a_second_plan_the_page_says_what_to_do() -> None:
    at = opened({}, "compare")
    alive(at)
    assert any("Pin this plan" in m.value for m in at.markdown)
    at.button(key="pin_button").click().run()
    at.select_slider(key="train_micro_batch").set_value(2).run()
    alive(at)
    assert list(frame(at, "field")["field"]) == ["Micro-batch"]


def test_pins_are_columns_with_only_what_differs() -> None:
    at = opened(HERE | BESIDE, "compare")
    alive(at)
    fields, figures = frame(at, "field"), frame(at, "figure")
    names = ["ZeRO 2", "Plan B", "This plan"]
    assert list(fields.columns[1:4]) == names
    assert set(fields["field"]) == {"Micro-batch", "Checkpointing", "ZeRO stage"}
    steps = figures.set_index("figure").loc["Step time"]
    plans = (TWO, THREE, shown_plan(at))
    times = [evaluate(plan).time for plan in plans]
    for name, t in zip(names, times, strict=True):
        assert t
        assert steps[name].startswith(seconds_text(t.step_seconds))
    assert times[0]
    assert times[1]
    change = times[1].step_seconds / times[0].step_seconds - 1
    assert steps["Plan B"].endswith(f"({relative_text(change)})")
    at.selectbox(key="compare_base").set_value(1).run()
    alive(at)
    assert "(" not in frame(at, "figure").set_index("figure").loc["Step time"]["Plan B"]
    at.toggle(key="compare_alike").set_value(True).run()
    alive(at)
    assert len(frame(at, "field")) > 50


def test_a_column_is_renamed_taken_and_removed() -> None:
    at = opened(HERE | BESIDE, "compare")
    here = shown_plan(at)
    at.text_input(key="compare_name_1").set_value("three").run()
    alive(at)
    assert pins(at) == [("ZeRO 2", TWO), ("three", THREE)]
    at.button(key="compare_take_1").click().run()
    alive(at)
    assert shown_plan(at) == THREE
    assert pins(at) == [("ZeRO 2", TWO), ("", here)]  # nothing is lost
    assert at.session_state["memplan"].name == "three"
    at.button(key="compare_drop_0").click().run()
    alive(at)
    assert pins(at) == [("", here)]


def test_a_waterfall_between_any_two_adds_up() -> None:
    at = opened(HERE | BESIDE, "compare")
    at.selectbox(key="compare_from").set_value(1).run()
    at.selectbox(key="compare_to").set_value(0).run()
    alive(at)
    moved = numbers(at, "memory")
    now, then = evaluate(TWO).memory, evaluate(THREE).memory
    assert now
    assert then
    assert sum(moved) == now.allocated_bytes - then.allocated_bytes


def test_a_figure_of_any_column_says_why_it_is_so() -> None:
    at = opened(HERE | BESIDE, "compare")
    at.button(key="why_compare_1").click().run()
    alive(at)
    said = "".join(m.value for m in at.markdown)
    e = Book(THREE, evaluate(THREE)).explain("memory.room_bytes")
    assert e.text in said.replace("\\", "")
    assert "Of another plan than the one on the page: Micro-batch 3, Checkpointing Full." in (
        said.replace("\\", "")
    )


def test_one_tidy_file_of_all() -> None:
    plans = (TWO, THREE, Plan(model="gpt2", train={"seq_len": 512}))
    columns = [Column(n, p, evaluate(p)) for n, p in zip("abc", plans, strict=True)]
    links = [f"http://here/?{n}" for n in "abc"]
    rows = tables.tidy(columns, links, "http://here/?all")
    table = pd.read_csv(io.BytesIO(tables.csv(rows, tables.context(None, ""))))
    heads = {"plan", "plan model", "plan GPU", "plan link", "comparison link", "Memplan version"}
    assert heads <= set(table.columns)
    for name, plan in zip("abc", plans, strict=True):
        memory = evaluate(plan).memory
        assert memory
        own = table[(table["plan"] == name) & (table["kind"] == "memory")]
        consumers = own[own["part"] == "consumer"]["value"].astype(float)
        assert consumers.sum() == memory.allocated_bytes
        high = own.set_index("name").loc["Device memory"]["high"]
        assert high == memory.device_bytes[1]
        assert float(own[own["part"] == "capacity"]["value"].iloc[0]) == memory.capacity_bytes
        assert set(own["plan link"]) == {f"http://here/?{name}"}


def test_plans_of_one_name_are_told_apart_and_any_plan_is_compared() -> None:
    """Also one without training, one of a config.json and one that serves nothing."""
    odd = [
        Plan(model="bert-base", train={"seq_len": 512}),
        Plan(parallel={"ep": 2}),
        Plan(model={"size": "3B"}),
    ]
    keys = ("pin", "pin2", "pin3")
    at = opened({k: encode_pin(p, "same") for k, p in zip(keys, odd, strict=True)}, "compare")
    alive(at)
    assert list(frame(at, "field").columns[1:5]) == ["same", "B: same", "C: same", "This plan"]
    at.segmented_control(key="compare_kind").set_value("Serving").run()
    alive(at)
    assert at.session_state["memplan"].query["look"] == ["Serving"]


def test_a_report_on_one_page_has_the_plans_side_by_side() -> None:
    plans = {"ZeRO 2": TWO, "<b>3": THREE}
    found = [Column(name, plan, evaluate(plan)) for name, plan in plans.items()]
    rows = tables.side_by_side(found, [Book(c.plan, c.report) for c in found])
    said = {row[""]: row for row in rows}
    assert said["Micro-batch"]["<b>3"] == "3"
    assert found[0].report.time
    assert said["Step time"]["ZeRO 2"] == seconds_text(found[0].report.time.step_seconds)
    text = one_page.page(TWO, found[0].report, (), "", beside=rows)
    assert "Plans side by side" in text
    assert "<th>&lt;b&gt;3</th>" in text
    assert f"<td>{said['Step time']['<b>3']}</td>" in text
    assert "Plans side by side" not in one_page.page(TWO, found[0].report, (), "")
