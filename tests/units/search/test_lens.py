"""The lens: what is done with each tensor, and what else would cost, as `evaluate` has it."""

import pytest
from drawn import plans
from explored import examples
from hypothesis import given

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.search.lens import (
    DELAYED,
    MOVED,
    RECOMPUTED,
    STATES,
    STORED,
    LensRow,
    alike,
    lens,
)

# Four sequences at a time, nothing saved by recomputing.
FOUR = Plan(train={"micro_batch": 4, "checkpointing": "none"})


def named(found: tuple[LensRow, ...], name: str) -> LensRow:
    return next(s for s in found if s.name == name)


def checked(plan: Plan) -> None:
    """Every figure is the difference of two reports, and every row is of the ledger or hidden."""
    report, found = evaluate(plan), lens(plan)
    if report.memory is None:
        assert found == ()
        return
    reports = {}
    for s in found:
        assert s.state in STATES
        assert {s.state, *(w.state for w in s.ways), *s.missing} == set(STATES)
        assert not s.missing.keys() & {s.state, *(w.state for w in s.ways)}
        for way in s.ways:
            assert plan.with_changes(way.changes) == way.plan
            assert way.plan.tokens_per_step == plan.tokens_per_step
            assert way.plan.train.framework == plan.train.framework
            key = way.plan.model_dump_json()
            then = reports.get(key) or reports.setdefault(key, evaluate(way.plan))
            freed = report.memory.allocated_bytes - then.memory.allocated_bytes
            assert way.freed_bytes == freed
            assert way.added_seconds == then.time.step_seconds - report.time.step_seconds
            assert way.verdict == then.memory.verdict
        stored = s.best(STORED)
        if s.state != STORED and stored:
            assert s.price_seconds == -stored.added_seconds
    ledger = [(r.name, r.tier, r.bytes) for r in report.ledger]
    at_peak = [(s.name, s.tier, s.bytes) for s in found if s.bytes]
    assert sorted(at_peak) == sorted(ledger)
    assert sum(group.bytes for group in alike(found)) == sum(n for *_, n in ledger)
    assert sum(group.rows for group in alike(found)) == len(found)


@given(plans())
@examples(8)
def test_prices_are_those_of_the_changed_plans(plan: Plan) -> None:
    checked(plan)


@pytest.mark.parametrize(
    "train",
    [
        {},
        {"framework": "deepspeed", "zero": 3, "micro_batch": 2, "grad_accumulation": 4,
         "offload_optimizer": "cpu"},
        {"offload_activations": "cpu", "cross_entropy": "chunked"},
        {"checkpointing": "selective-op", "micro_batch": 2},
    ],
)  # fmt: skip
def test_prices_of_worked_plans(train: dict) -> None:
    checked(Plan(train=train))


def test_what_is_stored_could_be_recomputed_moved_or_delayed() -> None:
    silu = named(lens(FOUR), "layers.mlp.silu")
    assert (silu.state, silu.price_seconds) == (STORED, 0.0)
    by = {state: silu.best(state) for state in (RECOMPUTED, MOVED, DELAYED)}
    assert by[MOVED].where == "host DRAM"
    assert by[DELAYED].changes == {"train.micro_batch": 2, "train.grad_accumulation": 2}
    for way in by.values():
        assert way.row_bytes < silu.bytes
        assert way.freed_bytes > 0
        assert way.added_seconds > 0


def test_what_is_recomputed_is_there_though_the_ledger_has_it_not() -> None:
    plan = FOUR.changed("train.checkpointing", "full")
    silu = named(lens(plan), "layers.mlp.silu")
    assert silu.bytes == 0 < silu.most_bytes
    assert silu.state == RECOMPUTED
    stored = silu.best(STORED)
    assert stored.plan == FOUR
    assert stored.row_bytes == silu.stored_bytes == named(lens(FOUR), "layers.mlp.silu").bytes
    assert silu.price_seconds > 0
    kept = named(lens(plan), "layers.input")  # what the layer is run again from
    assert kept.state == STORED
    assert kept.best(RECOMPUTED) is None


def test_weights_are_shared_with_other_gpus_and_nothing_computes_them_again() -> None:
    weight = named(lens(FOUR), "layers.mlp.up_proj.weight")
    assert (weight.state, weight.where) == (MOVED, "other GPUs")
    assert weight.best(STORED).row_bytes == 8 * weight.bytes
    assert weight.missing[RECOMPUTED] == "nothing computes it again"


def test_what_rests_on_the_host_is_moved_there() -> None:
    plan = Plan(train={"framework": "deepspeed", "zero": 2, "offload_optimizer": "cpu"})
    state = next(s for s in lens(plan) if s.consumer == "optimizer_states" and s.tier == "dram")
    assert (state.state, state.where) == (MOVED, "host DRAM")
    assert state.best(STORED).changes == {"train.offload_optimizer": "none"}
    assert state.price_seconds > 0


def test_a_batch_in_turns_is_delayed() -> None:
    plan = FOUR.with_changes({"train.micro_batch": 1, "train.grad_accumulation": 4})
    silu = named(lens(plan), "layers.mlp.silu")
    assert silu.state == DELAYED
    assert silu.best(STORED).plan == FOUR


def test_what_the_framework_refuses_says_why() -> None:
    plan = Plan(parallel={"tp": 2}, train={"framework": "megatron", "kernels": "megatron",
                                          "zero": 1})  # fmt: skip
    said = {s.missing[MOVED] for s in lens(plan) if s.consumer == "activations"}
    assert any("Offload activations" in text for text in said)
