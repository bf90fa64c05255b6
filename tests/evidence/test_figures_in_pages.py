"""No figure of README.md and docs/accuracy.md is written by hand: both are as the evidence is."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from evidence import campaign, fit, markdown, peers
from evidence.figures import compare
from evidence.times import times_table
from memcore.evaluate import evaluate
from memcore.evidence.comparison import TUNED, last_compared
from memcore.plan.plan import Plan


@pytest.mark.parametrize("page", markdown.PAGES)
def test_a_page_says_what_the_evidence_says(page: str) -> None:
    """When this fails: python -m evidence.markdown"""
    text = (markdown.ROOT / page).read_text(encoding="utf-8")
    assert text.count("<!-- figures: ") == len(markdown.PART.findall(text)) > 0
    assert markdown.written(text) == text


def test_what_the_accuracy_page_shows_is_what_the_engine_says() -> None:
    """When this fails: python -m evidence.markdown"""
    assert len(last_compared()) == len(compare())
    for kept, now in zip(last_compared(), compare(), strict=True):
        for name in ("ours", "low", "high"):
            assert getattr(kept, name) == pytest.approx(getattr(now, name), rel=1e-9), now
        assert replace(kept, ours=now.ours, low=now.low, high=now.high) == now


def test_every_table_of_figures_stands_in_a_page() -> None:
    text = "".join((markdown.ROOT / page).read_text(encoding="utf-8") for page in markdown.PAGES)
    assert {name for _, name, _ in markdown.PART.findall(text)} == set(markdown.PARTS)


def test_a_figure_that_has_moved_is_written_anew() -> None:
    stale = "<!-- figures: steps -->\n| steps |\n<!-- end -->\nafter"
    assert "tuned on" in markdown.written(stale)
    assert markdown.written(stale).endswith("<!-- end -->\nafter")


def test_steps_are_divided_by_their_distance_to_what_was_tuned() -> None:
    """Twins have a tuned step of their model on their GPU; of the last group's sources none was."""
    steps = markdown.steps()
    tuned, checked, twins, same, new = steps.values()
    assert len(twins) + len(same) + len(new) == len(checked)
    assert not {r.run for r in tuned} & {r.run for r in checked}
    assert any("dsv3" in r.run for r in same)
    assert any("container 26.04" in r.run for r in twins)
    others = ("MLPerf", "DeepSpeed", "TPU", "T4", "25.07", campaign.RUN_NAME)
    assert all(any(of in r.run for of in others) for r in new)


def test_the_rule_of_one_line_is_its_peak_and_its_bubble() -> None:
    plan = Plan.of({
        "model": "llama-3-8b", "cluster": {"gpu": "h100-sxm-80gb", "gpus": 16},
        "parallel": {"pp": 2},
        "train": {"framework": "megatron", "kernels": "megatron", "zero": 1,
                  "attention": "flash", "grad_accumulation": 4, "cross_entropy": "fused"},
    })  # fmt: skip
    time = evaluate(plan).time
    useful = time.model_flops / (0.45 * 989.4e12)
    assert peers.ruled(plan) == pytest.approx(useful * (1 + 1 / 4), rel=1e-3)


def test_every_tuned_source_was_left_out_once() -> None:
    said = tomllib.loads(fit.PATH.read_text(encoding="utf-8"))
    runs = times_table()["runs"]
    sources = {fit.source_of(run) for run in runs if run["used_for"] == TUNED}
    assert set(said) == sources
    for source, of in said.items():
        assert len(of["errors"]) == sum(fit.source_of(run) == source for run in runs)
