"""Levers: each is the difference of two evaluations, and the first is what an expert would do."""

import itertools
import json
import math
import re

import pytest
from hypothesis import given, settings
from test_laws import plans

from app import tables
from memcore import Plan, PlanError, catalog, cli, evaluate, evidence, link
from memcore.explain import Book
from memcore.levers import FOLLOWERS, KINDS, MACHINES, SAME, levers
from memcore.plan import words_of

FIRST = {row["name"]: row for row in evidence.first_fixes()}
WORKED = {name: entry["plan"] for name, entry in catalog.plan_entries().items()}
AS_CHEAP = 0.011  # prices are compared to the per cent
ALL = {**WORKED, **{name: row["plan"] for name, row in FIRST.items()}}


def checked(plan):
    """Each lever against two whole evaluations."""
    now = evaluate(plan)
    found = levers(plan)
    assert len({lever.name for lever in found}) == len(found)
    for lever in found:
        then = evaluate(lever.plan)
        saved = now.memory.allocated_bytes - then.memory.allocated_bytes
        device = now.memory.device_bytes[1] - then.memory.device_bytes[1]
        assert (lever.saved_bytes, lever.saved_device_bytes) == (saved, device)
        assert lever.verdict == then.memory.verdict
        assert lever.kind in KINDS
        if lever.kind == SAME:
            assert lever.same_batch
        if lever.kind != MACHINES:
            assert lever.plan.cluster == plan.cluster
        document = plan.document()
        for path, value in lever.changes.items():
            *parents, last = path.split(".")
            part = document
            for name in parents:
                part = part[name]
            part[last] = value
        assert Plan.of(document) == lever.plan
        assert link.decode(link.encode(lever.plan)) == (lever.plan, [])
        json.dumps(lever.to_dict(), allow_nan=False)
        assert lever.added_seconds == then.time.step_seconds - now.time.step_seconds
        tokens = [p.tokens_per_step for p in (plan, lever.plan)]
        per_token = then.time.step_seconds / tokens[1] - now.time.step_seconds / tokens[0]
        assert lever.added_per_token == per_token
    return found


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_lever_is_the_difference_of_two_evaluations(name):
    checked(Plan.of(ALL[name]))


@given(plans())
@settings(max_examples=25)
def test_a_lever_of_any_plan_is_the_difference_of_two_evaluations(plan):
    checked(plan)


@pytest.mark.parametrize("name", sorted(FIRST))
def test_the_first_lever_is_what_an_expert_would_do(name):
    row = FIRST[name]
    plan = Plan.of(row["plan"])
    assert evaluate(plan).memory.verdict == "over"
    first = levers(plan)[0]
    assert first.fits
    assert first.name in row["first"], [lever.name for lever in levers(plan)][:5]


@pytest.mark.parametrize("name", sorted(ALL))
def test_what_fits_comes_first_and_the_cheapest_of_a_kind_before_the_dearer(name):
    plan = Plan.of(ALL[name])
    memory, found = evaluate(plan).memory, levers(plan)
    if memory is None or memory.fits:
        return
    fitting = [lever for lever in found if lever.fits]
    assert found[: len(fitting)] == tuple(fitting)
    for kind in KINDS:
        prices = [lever.price for lever in fitting if lever.kind == kind]
        assert all(a <= b + AS_CHEAP for a, b in itertools.pairwise(prices))


@pytest.mark.parametrize(
    "path", ["train.checkpointing", "train.cross_entropy", "train.offload_optimizer"]
)
def test_every_word_that_saves_is_a_lever(path):
    """So that a word that a table gets is one too."""
    plan = Plan(model="llama-3-8b", train={"micro_batch": 2, "checkpointing": "none"})
    now = evaluate(plan).memory.device_bytes[1]
    found = {lever.plan for lever in levers(plan) if path in lever.changes}
    for word in words_of(path):
        try:
            changed = plan.changed(path, word)
        except PlanError:
            continue
        report = evaluate(changed)
        if report.memory and now - report.memory.device_bytes[1] > 2**30:
            assert changed in found, word


@pytest.mark.parametrize("name", ["batch", "replicated-states", "too-few-gpus"])
def test_each_number_of_a_lever_is_explained(name):
    plan = Plan.of(FIRST[name]["plan"])
    book = Book(plan, evaluate(plan))
    for lever in levers(plan):
        for field in ("saved_bytes", "saved_device_bytes", "added_seconds", "price"):
            e = book.explain(f"levers.{lever.name}.{field}")
            assert math.isclose(e.value, getattr(lever, field), rel_tol=1e-6, abs_tol=1e-9)
            assert e.formula
            assert e.parts


def test_only_what_must_follow_follows():
    for name in ALL:
        plan = Plan.of(ALL[name])
        for lever in levers(plan):
            others = list(lever.changes)[1:]
            if lever.kind == SAME and "grad_accumulation" not in str(lever.changes):
                assert set(others) <= {*FOLLOWERS, "train.checkpoint_every"}, lever.name


def test_a_smaller_micro_batch_is_the_largest_that_fits():
    plan = Plan(train={"micro_batch": 12, "checkpointing": "none", "cross_entropy": "chunked"})
    lever = next(lever for lever in levers(plan) if "train.micro_batch" in lever.changes)
    assert lever.fits
    n = lever.plan.train.micro_batch
    larger = [d for d in range(n + 1, 12) if 12 % d == 0]
    for d in larger:
        train = {**lever.plan.document()["train"], "micro_batch": d, "grad_accumulation": 12 // d}
        assert not evaluate(Plan(train=train)).memory.fits


def test_a_plan_that_is_not_computed_has_no_levers():
    plan = Plan.of(WORKED["deepseek-v3-serving-16xh200"])
    assert (evaluate(plan).memory is None) == (levers(plan) == ())


@pytest.mark.parametrize("framework", ["pytorch", "fsdp2", "deepspeed"])
def test_expandable_segments_are_a_lever_of_reserved_memory(framework):
    """What is allocated and how long a step takes stay; what they save at most is published pairs'
    largest, and may be nothing."""
    train = {"framework": framework, "zero": 0 if framework == "pytorch" else 3}
    plan = Plan(model="llama-3.2-1b", cluster={"gpus": 2}, train={"allocator": "native", **train})
    now = evaluate(plan)
    lever = next(found for found in levers(plan) if found.name == "allocator-expandable")
    then = evaluate(lever.plan)
    assert lever.changes == {"train.allocator": "expandable"}
    assert lever.saved_bytes == now.memory.allocated_bytes - then.memory.allocated_bytes == 0
    assert lever.saved_device_bytes == now.memory.device_bytes[1] - then.memory.device_bytes[1] > 0
    assert now.memory.reserved_bytes[0] == then.memory.reserved_bytes[0]
    assert now.memory.reserved_bytes[1] < 1.6 * then.memory.reserved_bytes[1]
    assert lever.added_seconds == 0
    assert not any(found.name.startswith("allocator") for found in levers(lever.plan))


def test_a_price_of_twice_the_time_is_a_factor_on_page_and_command_line(capsys, tmp_path):
    plan = Plan(model="llama-3-8b", train={"micro_batch": 8, "checkpointing": "none"})
    dear = [lever for lever in levers(plan) if lever.price >= 1]
    assert dear, "some change of this plan doubles the time per token"
    for lever in dear:
        assert "%" not in tables.cost_text(lever)
        assert "times" in tables.cost_text(lever)
    for row in tables.levers(levers(plan)):
        assert (row["price"] >= 1) == row["GPU time per token"].endswith(" times")
    (tmp_path / "plan.json").write_text(json.dumps(plan.document()))
    cli.main(["levers", str(tmp_path / "plan.json")])
    said = capsys.readouterr().out
    assert f"{1 + dear[0].price:.3g} times" in said
    assert not re.search(r"\+[0-9]{3,}\.[0-9]%", said)
