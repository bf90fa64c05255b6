"""What people take away: HTML in a notebook, JSON Schemas."""

from __future__ import annotations

import html.parser
import json
from typing import Any

import jsonschema
import pytest

from memcore import Plan, evaluate
from memcore.report import named
from memcore.units import bytes_text

PLANS: dict[str, dict[str, Any]] = {
    "trained": {"job": "train"},
    "too large": {"job": "train", "train": {"micro_batch": 8, "checkpointing": "none"}},
    "served": {"job": "serve"},
    "of both": {},
    "together": {"together": {"kind": "grpo"}},
    "forward": {"model": "bert-base", "job": "serve"},
}


class Read(html.parser.HTMLParser):
    """The texts of a page, its elements, and whether each that is opened is closed."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.text = ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.names.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


@pytest.mark.parametrize("name", PLANS)
def test_a_notebook_shows_the_verdict_a_bar_and_a_table(name: str) -> None:
    report = evaluate(Plan.of(PLANS[name]))
    page = Read(report._repr_html_())
    assert "script" not in page.names
    verdict = report.serving_verdict if PLANS[name].get("job") == "serve" else report.verdict
    assert verdict.upper() in page.text
    assert {"table", "div"} <= page.names
    if report.memory and PLANS[name].get("job") != "serve":
        low, high = map(bytes_text, report.memory.device_bytes)
        assert f"{low} to {high}" in page.text


def test_a_notebook_shows_what_a_plan_says() -> None:
    plan = Plan.of(PLANS["too large"])
    page = Read(plan._repr_html_())
    assert plan.architecture.label in page.text
    assert "train.micro_batch\n8" in page.text
    assert "train.seq_len" not in page.text


def test_what_a_name_says_is_text_in_a_notebook() -> None:
    label = "<script>alert(1)</script>&"
    card = {"label": label, "memory_bytes": 80 * 2**30, "memory_bandwidth": 2e12}
    plan = Plan(cluster={"gpu": card})
    assert named(plan.document()["cluster"]["gpu"]) == label
    for made in (plan, evaluate(plan)):
        page = Read(made._repr_html_())
        assert "script" not in page.names
        assert label in page.text


@pytest.mark.parametrize("name", PLANS)
def test_the_schemas_say_what_plans_and_reports_are(memplan: Any, name: str) -> None:
    plan = Plan.of(PLANS[name])
    for of, document in (("plan", plan.document()), ("report", evaluate(plan).to_dict())):
        schema = json.loads(memplan("schema", of).out)
        judge = jsonschema.Draft202012Validator(schema)
        judge.check_schema(schema)
        judge.validate(document)
        assert not judge.is_valid({**document, "parameters": "many", "cluster": 3})


def test_a_plan_may_name_its_schema() -> None:
    assert Plan.of({"$schema": "plan.schema.json"}) == Plan.of({})
