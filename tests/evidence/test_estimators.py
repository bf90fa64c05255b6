"""Megatron-LM's and DeepSpeed's own estimators beside ours: every byte of a difference named."""

import csv
import io

import pytest
from tables import each

from app import tables
from memcore import evidence
from memcore.evaluate import evaluate
from memcore.evidence import estimators
from memcore.explain.book import Book
from memcore.plan.plan import Plan

ALL = evidence.estimators_table()["plans"]
PLANS = [row for row in ALL if row["estimator"] == "megatron"]
ROUNDED = 1  # byte: figures of the table are whole
STATES = 0.017  # how far they are from the estimator's: DeepSeek-V3's latents, under TP


def of(what, by="megatron"):
    return [e for e in evidence.estimates() if (e.by, e.what) == (by, what)]


def test_there_are_twenty_plans_of_every_axis():
    assert len(PLANS) == 20
    assert len({row["name"] for row in ALL}) == len(ALL) == 26
    plans = [Plan.of(row["plan"]) for row in PLANS]
    for axis in ("tp", "pp", "ep", "etp"):
        assert any(getattr(p.parallel, axis) > 1 for p in plans), axis
    assert any(p.train.mtp_layers for p in plans)
    assert any(p.train.zero == 0 for p in plans)


@each("e", evidence.estimates, ids=lambda e: f"{e.label}, {e.what}")
def test_every_byte_of_the_difference_is_named(e):
    assert e.unexplained == pytest.approx(0, abs=ROUNDED)


@pytest.mark.parametrize("row", PLANS, ids=lambda row: row["name"])
def test_each_row_of_ours_is_in_one_part_of_the_activations(row):
    """So that nothing can be named twice, nor left to the rest."""
    shared = evidence.estimators_table()["shared"]
    items = [i for name in row["of_activations"] for i in shared[name]["parts"]]
    for r in estimators._ours(Plan.of(row["plan"]), "activations")[1]:
        assert sum(estimators.matches(i, r.name) for i in items) == 1, r.name


@each("e", lambda: of("states"), ids=lambda e: e.label)
def test_states_are_the_estimator_s(e):
    """It shares out experts, their tensor-parallel parts and what is on every rank as Megatron
    does; what it leaves out is little."""
    assert e.ours == pytest.approx(e.theirs, rel=STATES)


def test_deepspeed_is_asked_of_both_stages_and_of_offload():
    found = [e.plan.train for e in of("states", "deepspeed")]
    assert {t.zero for t in found} == {2, 3}
    assert {t.offload_optimizer for t in found} == {"none", "cpu"}


def test_what_is_compared_is_what_the_report_has():
    e = next(e for e in evidence.estimates() if e.label == "Llama 2 7B, 8 GPUs")
    memory = evaluate(e.plan).memory
    kept = memory.consumers
    assert of("states")[0].ours == sum(kept[c] for c in estimators.OF_STATES)
    assert of("activations")[0].ours == memory.saved_for_backward_bytes


@pytest.mark.parametrize(
    ("formula", "value"), [("3", 3), ("2 * B + S / TP", 2 * 5 + 8 / 2), ("1 / TP", 0.5)]
)
def test_formulas_of_the_table(formula, value):
    assert estimators.value(formula, {"B": 5, "S": 8, "TP": 2}) == value


def test_a_formula_is_no_program():
    with pytest.raises((AssertionError, KeyError)):
        estimators.value("__import__('os')", {})


def test_the_table_shows_every_figure_and_explains_it():
    rows = tables.estimators()
    read = list(csv.DictReader(io.StringIO(tables.csv(rows).decode())))
    assert [int(r["our_bytes"]) for r in read] == [e.ours for e in evidence.estimates()]
    assert all(r["source"].startswith("https://") for r in read)
    book = Book(Plan(), evaluate(Plan()))
    for row, e in zip(rows, evidence.estimates(), strict=True):
        assert book.explain(row[tables.PATH]).value == e.ours
    said = tables.estimated()
    assert "20 and 6 plans" in said
