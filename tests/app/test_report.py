"""A plan on one page, as a file."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from pages import figures, opened, plots

from app import bar
from app import report as one_page
from memcore.evaluate import evaluate
from memcore.models import catalog
from memcore.plan.plan import Plan
from memcore.search.levers import levers
from memcore.units import bytes_text, money_text, seconds_text
from memcore.version import version

LINK = "https://memplan.example/?v=1&mb=2"


def test_it_says_what_is_booked_what_it_costs_and_how_to_open_it_again() -> None:
    plan = Plan(train={"micro_batch": 2}, run={"price_per_gpu_hour": 2.5})
    report = evaluate(plan)
    assert report.memory
    assert report.time
    assert report.run
    assert report.run.cost
    text = one_page.page(plan, report, levers(plan), LINK)
    for said in (
        bytes_text(report.memory.allocated_bytes),
        seconds_text(report.time.step_seconds),
        seconds_text(report.time.step_interval[1]),
        money_text(report.run.cost),
        "Training fits",
        "Micro-batch",
        levers(plan)[0].label,
        version(),
        LINK.replace("&", "&amp;"),
    ):
        assert said in text, said
    assert not re.search(r"<script|src=|url[(]|@import", text)  # it asks nobody for anything


def test_the_key_of_a_bar_has_every_part_that_it_has() -> None:
    report = evaluate(Plan())
    assert report.memory
    drawn = bar.of_training(report.memory)
    key = bar.key(drawn)
    for part in drawn.parts:
        assert (f"{part.name} {bytes_text(part.bytes)}" in key) == (part.bytes > 0), part


def test_it_is_about_what_the_page_is_about() -> None:
    """Who trains reads no verdict of a server that nobody asked for, nor who serves of training."""
    plan = Plan(model="qwen3-32b", cluster={"gpus": 16}, train={"seq_len": 8192})
    report = evaluate(plan)
    assert report.memory
    assert report.serve
    assert not report.serve.fits
    training, serving = (
        one_page.page(plan, report, levers(plan), LINK, about=about)
        for about in (one_page.TRAINING, one_page.SERVING)
    )
    assert "Training fits" in training
    assert "Serving" not in training
    assert "2 nodes" in training
    assert "at the lowest list price" in training
    assert "Serving 64 sequences" in serving
    assert "Training fits" not in serving
    assert "What could be changed" not in serving


def test_seconds_of_a_plan_that_does_not_fit_say_so() -> None:
    plan = Plan(train={"checkpointing": "none", "micro_batch": 4})
    report = evaluate(plan)
    assert report.verdict == "over"
    assert "Step, if it fitted" in one_page.page(plan, report, (), LINK)
    assert "if it fitted" not in one_page.page(Plan(), evaluate(Plan()), (), LINK)
    at = opened({"ckpt": "none", "mb": "4"})
    assert figures(at)["time.step_seconds"].endswith(" a step, if it fitted")


def test_every_worked_plan_has_one_that_is_well_formed() -> None:
    class Balanced(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open_tags: list[str] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "br"):
                self.open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open_tags.pop() == tag

    for entry in catalog.plan_entries().values():
        plan = Plan.of(entry["plan"])
        parser = Balanced()
        parser.feed(one_page.page(plan, evaluate(plan), (), LINK))
        assert not parser.open_tags


def test_what_a_link_brings_is_no_markup_in_it() -> None:
    gpu = catalog.accelerator("h100-sxm-80gb").model_dump(mode="json") | {"label": "<b>x</b>"}
    plan = Plan.of({"cluster": {"gpu": gpu}})
    text = one_page.page(plan, evaluate(plan), (), 'x"><script>')
    assert "<b>x" not in text
    assert "<script" not in text


def test_files_and_images_are_named_after_the_plan() -> None:
    at = opened({"model": "llama-3-70b", "gpus": "16"})
    at.session_state["share"] = True
    at.run()
    names = {e.proto.label: e.proto for e in at.get("download_button")}
    assert "Report on one page (HTML)" in names
    slug = "memplan-llama-3-70b-16-nvidia-h100-sxm-80-gb-"
    files = [chart["config"]["toImageButtonOptions"]["filename"] for chart in plots(at)]
    assert files
    assert all(file.startswith(slug) for file in files)
