"""A step that somebody measured: said on Time, carried by the link, beside every prediction."""

from __future__ import annotations

import json
import pickle

import pytest
from allocating import MIB, Allocator
from pages import alive, frame, opened, said, texts
from streamlit.testing.v1 import AppTest

from app import report as one_page
from app import tables
from memcore.evaluate import evaluate
from memcore.plan.keys import MEASURED
from memcore.plan.link import decode_measured, encode, encode_measured, encode_pin
from memcore.plan.measured import Measured
from memcore.plan.plan import Plan
from memcore.search.measured import calibrated
from memcore.units import GiB, bytes_text, seconds_text

RUN = Measured(Plan(), 9.5, 40 * GiB)
LINK = encode_measured(RUN)
PLAN = Plan(train={"micro_batch": 2})
FOUND = calibrated(PLAN, RUN)


def kept(at: AppTest) -> str:
    """What the address says was measured."""
    return str(at.session_state["memplan"].query.get(MEASURED, [""])[-1])


def test_a_run_is_said_kept_in_the_link_and_forgotten() -> None:
    at = opened(encode(PLAN, short=True), "time")
    assert not kept(at)
    # Opened as a click does; AppTest has none.
    at.session_state["folded_Compare with what you measured"] = True
    at.run()
    (form,) = [b for b in at.button if b.label == "Use it"]
    form.click().run()
    assert "more than 0 seconds" in at.error[0].value
    at.number_input(key="measured_seconds").set_value(9.5)
    at.number_input(key="measured_gib").set_value(40.0)
    (form,) = [b for b in at.button if b.label == "Use it"]
    form.click().run()
    alive(at)
    assert decode_measured(MEASURED, kept(at)) == (Measured(PLAN, 9.5, 40 * GiB), [])
    at.session_state["share"] = True
    at.run()
    (copied,) = [c.value for c in at.code if "?" in c.value]
    assert f"{MEASURED}=" in copied
    at.select_slider(key="train_micro_batch").set_value(3).run()
    assert "calibrated" in texts(at)
    assert decode_measured(MEASURED, kept(at))[0] == Measured(PLAN, 9.5, 40 * GiB)
    at.button(key="measured_open").click().run()
    assert at.session_state["memplan"].plan == PLAN
    at.button(key="measured_forget").click().run()
    alive(at)
    assert not kept(at)
    assert "calibrated" not in texts(at)


def test_a_link_shows_both_figures_on_every_page_of_training() -> None:
    at = opened(encode(PLAN, short=True) | LINK)
    alive(at)
    assert f"**{seconds_text(FOUND.step.calibrated_seconds)}** calibrated" in texts(at)
    at.switch_page("views/time.py").run()
    table = frame(at, "calibrated")
    step, *_, allocated = table.to_dict("records")
    assert step["predicted"] == seconds_text(evaluate(PLAN).time.step_seconds)
    assert step["calibrated"].startswith(seconds_text(FOUND.step.calibrated_seconds))
    assert allocated["calibrated"] == bytes_text(FOUND.numbers["allocated_bytes"][1])


def test_a_plan_of_another_kind_says_why_it_is_not_calibrated() -> None:
    other = Plan(train={"kernels": "liger"})
    at = opened(encode(other, short=True) | LINK, "time")
    alive(at)
    assert "not calibrated" in texts(at)
    assert "train.kernels" in said(at)
    at.button(key="measured_open").click().run()
    assert at.session_state["memplan"].plan == Plan()


@pytest.mark.parametrize("text", ["v=1", "v=1&took=x", "v=1&took=2&mb=none", "v=1&took=0"])
def test_a_damaged_run_is_named(text: str) -> None:
    at = opened({"mb": "2", MEASURED: text})
    alive(at)
    assert MEASURED in at.warning[0].value
    assert at.session_state["memplan"].measured == {}


def test_files_say_it() -> None:
    report = evaluate(PLAN)
    page = one_page.page(PLAN, report, (), "http://x/", FOUND)
    assert tables.calibrated(FOUND)[0]["calibrated"] in page
    assert "Assumed" in page
    assert "calibrated" not in one_page.page(PLAN, report, (), "http://x/")
    head, row = tables.csv([{"a": 1}], tables.context(PLAN, "x", FOUND)).decode().splitlines()
    assert "plan step seconds, calibrated" in head
    assert str(FOUND.step.calibrated_seconds) in row
    document = json.loads(json.dumps(FOUND.with_report(report)))
    assert document["time"]["step_seconds"] == report.time.step_seconds
    assert document["calibrated"]["step"]["calibrated_seconds"] == FOUND.step.calibrated_seconds


def test_plans_side_by_side_have_both() -> None:
    pins = {"pin": encode_pin(Plan()), "pin2": encode_pin(Plan(train={"kernels": "liger"}))}
    at = opened(encode(PLAN, short=True) | LINK | pins, "compare")
    alive(at)
    table = frame(at, "figure").to_dict("records")
    (row,) = [r for r in table if "calibrated" in r["figure"]]
    a, b, here = [value for name, value in row.items() if name != "figure"][:3]
    assert a.startswith("9.50 s")
    assert b == "–"
    assert here.startswith(seconds_text(FOUND.step.calibrated_seconds))


# ---- a memory snapshot


def snapshot() -> bytes:
    """Two annotated steps of five seconds, 30 MiB kept, 2 MiB for a while."""
    gpu = Allocator()
    gpu.alloc(30 * MIB)
    for _ in range(2):
        gpu.free(gpu.alloc(2 * MIB) or 0)
        gpu.note("Optimizer.step#AdamW.step", "START")
        gpu.time += 5_000_000
        gpu.note("Optimizer.step#AdamW.step", "END")
    return pickle.dumps(gpu.snapshot())


def test_a_dropped_snapshot_stands_beside_the_plan_and_becomes_its_run() -> None:
    at = opened(encode(PLAN, short=True), "time")
    at.file_uploader(key="config_file").upload("run.pickle", snapshot(), "application/x").run()
    alive(at)
    assert "GPU 0 had 32.0 MiB allocated" in texts(at)
    beside = frame(at, "measured").set_index("figure")["measured"]
    assert (beside["allocated"], beside["states"]) == ("32.0 MiB", "0 B")
    (form,) = [b for b in at.button if b.label == "Use it"]
    form.click().run()
    alive(at)
    measured, issues = decode_measured(MEASURED, kept(at))
    assert issues == []
    assert measured is not None
    assert (measured.plan, measured.bytes) == (PLAN, 32 * MIB)
    assert measured.seconds == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize("by", ["a file", "a paste"])
def test_what_an_allocator_printed_stands_beside_the_plan(by: str) -> None:
    at = opened(encode(PLAN, short=True), "time")
    said = '{"allocated_bytes.all.peak": 21474836480, "num_ooms": 1}'
    if by == "a file":
        at.file_uploader(key="config_file").upload("stats.json", said.encode(), "x/y").run()
    else:
        at.text_area(key="config_text").set_value(said).run()
    alive(at)
    assert "GPU 0 had 20.0 GiB allocated at its peak" in texts(at)
    assert "Memory ran out once" in texts(at)
    assert frame(at, "measured").set_index("figure")["measured"].to_dict() == {
        "allocated": "20.0 GiB"
    }
    assert at.session_state["measured_gib"] == 20


def test_a_snapshot_may_be_dropped_on_any_page_and_a_broken_one_is_refused() -> None:
    at = opened(encode(PLAN, short=True))
    at.file_uploader(key="config_file").upload("run.pickle", snapshot()[:-9], "x/y").run()
    alive(at)
    assert at.session_state["given_run"] is None
    assert "damaged" in str(at.session_state["not_read_given_run"][0])
