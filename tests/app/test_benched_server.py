"""A server that somebody benchmarked: said on Serve, in the link, beside predictions."""

from __future__ import annotations

import json

import pytest
from pages import alive, frame, opened, said, texts

from app import report as one_page
from app import tables
from memcore.evaluate import evaluate
from memcore.plan.keys import BENCHED
from memcore.plan.link import decode_measured, encode, encode_measured, encode_pin
from memcore.plan.measured import Measured
from memcore.plan.plan import Plan
from memcore.search.measured import calibrated
from memcore.units import seconds_text

SERVED = {"engine": "vllm", "arrivals": "closed", "concurrency": 16}
RAN = Plan.of({"model": "llama-3.1-8b", "serve": SERVED})
PLAN = RAN.changed("serve.concurrency", 32)
BY = Measured(RAN, token=0.009, first=0.12)
LINK = encode_measured(BY)
FOUND = calibrated(PLAN, BY)
PRINTED = json.dumps({"mean_tpot_ms": 9.0, "mean_ttft_ms": 120.0, "max_concurrency": 8})


def kept(at) -> str:
    """What the address says was measured."""
    return str(at.session_state["memplan"].query.get(BENCHED, [""])[-1])


def test_a_benchmark_is_said_kept_in_the_link_and_forgotten() -> None:
    open_loop = PLAN.changed("serve.arrivals", "poisson")
    at = opened(encode(open_loop, short=True), "serve")
    assert not kept(at)
    at.session_state["folded_Compare with what you measured"] = True
    at.run()
    (form,) = [b for b in at.button if b.label == "Use it"]
    form.click().run()
    assert "more than 0 seconds" in at.error[0].value
    at.number_input(key="bench_token").set_value(9.0)
    (form,) = [b for b in at.button if b.label == "Use it"]
    form.click().run()
    alive(at)
    assert at.session_state["memplan"].plan == PLAN  # a closed loop
    assert decode_measured(BENCHED, kept(at)) == (Measured(PLAN, token=0.009), [])
    at.number_input(key="serve_concurrency").set_value(48).run()
    assert "a token, calibrated" in texts(at)
    assert decode_measured(BENCHED, kept(at))[0] == Measured(PLAN, token=0.009)
    at.button(key="benched_open").click().run()
    assert at.session_state["memplan"].plan == PLAN
    at.button(key="benched_forget").click().run()
    alive(at)
    assert not kept(at)
    assert "calibrated" not in texts(at)


def test_a_link_shows_both_figures() -> None:
    at = opened(encode(PLAN, short=True) | LINK, "serve")
    alive(at)
    token = FOUND.token
    assert token is not None
    assert f"**{seconds_text(token.calibrated_seconds)}** a token, calibrated" in texts(at)
    first, each, *_ = frame(at, "calibrated").to_dict("records")
    assert first["predicted"] == seconds_text(evaluate(PLAN).serve.ttft_seconds)
    assert each["calibrated"] == token.text
    limits = frame(at, "question").set_index("question")
    assert limits.loc["Most sequences at once", "per token, calibrated"].endswith(")")
    assert "The answers are as predicted" in texts(at)


@pytest.mark.parametrize("page", ["stream", "rates"])
def test_what_is_simulated_says_that_it_is_as_predicted(page: str) -> None:
    at = opened(encode(PLAN, short=True) | LINK, page)
    alive(at)
    assert "speeds are as predicted" in texts(at)
    assert "speeds are as predicted" not in texts(opened(encode(PLAN, short=True), page))


def test_a_server_of_another_kind_says_why_it_is_not_calibrated() -> None:
    at = opened(encode(PLAN.changed("serve.kv_dtype", "fp8"), short=True) | LINK, "serve")
    alive(at)
    assert "not calibrated: your benchmark differs in KV dtype" in texts(at)
    assert "serve.kv_dtype" in said(at)


@pytest.mark.parametrize("by", ["a file", "a paste"])
def test_what_a_benchmark_printed_becomes_the_plans_measured_server(by: str) -> None:
    at = opened(encode(PLAN, short=True), "serve")
    if by == "a file":
        at.file_uploader(key="config_file").upload("bench.json", PRINTED.encode(), "x/y").run()
    else:
        at.text_area(key="config_text").set_value(PRINTED).run()
    alive(at)
    ran = PLAN.changed("serve.concurrency", 8)
    assert at.session_state["memplan"].plan == ran
    assert decode_measured(BENCHED, kept(at)) == (Measured(ran, token=0.009, first=0.12), [])
    assert "in place of 32" in at.info[0].value


def test_a_benchmark_of_another_server_is_refused_by_name() -> None:
    at = opened(encode(PLAN, short=True), "serve")
    of = json.dumps({"mean_tpot_ms": 9.0, "model_id": "meta-llama/Llama-3.1-70B-Instruct"})
    at.text_area(key="config_text").set_value(of).run()
    alive(at)
    assert "This benchmark is not read" in said(at)
    assert not kept(at)
    assert at.session_state["memplan"].plan == PLAN


def test_files_say_it() -> None:
    report = evaluate(PLAN)
    page = one_page.page(PLAN, report, (), "http://x/", about=one_page.SERVING, server=FOUND)
    assert FOUND.token is not None
    assert FOUND.token.text in page
    assert "Time per output token, calibrated" in page
    head, row = tables.csv([{"a": 1}], tables.context(PLAN, "x", FOUND)).decode().split("\n")[:2]
    assert "plan seconds a token, calibrated" in head
    assert str(FOUND.token.calibrated_seconds) in row


def test_servers_side_by_side_have_both() -> None:
    other = RAN.changed("serve.kv_dtype", "fp8")
    pins = {"pin": encode_pin(RAN), "pin2": encode_pin(other)}
    at = opened(encode(PLAN, short=True) | LINK | pins, "compare")
    alive(at)
    table = frame(at, "figure").to_dict("records")
    (row,) = [r for r in table if "a token, calibrated" in r["figure"]]
    a, b, here = [value for name, value in row.items() if name != "figure"][:3]
    assert (a, b) == ("9.00 ms", "–")
    assert FOUND.token is not None
    assert here == FOUND.token.text


def test_the_table_over_gpus_has_calibrated_seconds_beside_what_it_predicts() -> None:
    at = opened(encode(PLAN, short=True) | LINK | {"look": "gpus"}, "explore")
    alive(at)
    rows = frame(at, "per token, calibrated").set_index("GPU")
    own = rows.loc["NVIDIA H100 SXM 80 GB"]
    assert own["per token, calibrated"] != "–"
    assert "are as predicted" in texts(at)
    at = opened(encode(PLAN, short=True) | {"look": "gpus"}, "explore")
    assert "calibrated" not in texts(at)


def test_a_measured_server_of_which_nothing_is_predicted_says_so() -> None:
    large = Plan.of({"model": "llama-3.1-405b", "serve": SERVED})
    by = encode_measured(Measured(large, token=0.05))
    for page in ("serve", "explore"):
        at = opened(encode(large, short=True) | by | {"look": "gpus"}, page)
        alive(at)
    at = opened(encode(large, short=True) | by, "serve")
    assert "does not calibrate" in said(at)
    assert "no server's times are computed" in said(at)
