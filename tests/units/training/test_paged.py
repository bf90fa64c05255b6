"""Paged optimizers: states in unified memory (bitsandbytes' PagedAdamW), which torch's allocator
does not count, on the GPU while it has room and on the host otherwise."""

import pytest
from explained import checked

from memcore import PlanError, sweep
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.step.step import optimizer_states
from memcore.tape.ledger import Amounts
from memcore.training.steps import step_of, training_sizes

WEIGHTS = 6_738_415_616
BATCH = 3 * 8 * 1024  # of a loader
SMALL = 65 * 4096  # of norms, each of fewer than 100,000 weights


def plan_of(optimizer="paged-adamw32bit", gpus=1, **words):
    train = {
        "framework": "pytorch", "zero": 0, "precision": "bf16-pure", "seq_len": 1024,
        "optimizer": optimizer,
    }  # fmt: skip
    return Plan(model="llama-2-7b", cluster={"gpus": gpus}, train=train | words)


@pytest.mark.parametrize(("optimizer", "each"), [("paged-adamw32bit", 8), ("paged-adamw8bit", 2)])
def test_large_states_are_paged(optimizer, each):
    plan = plan_of(optimizer)
    step, amounts = step_of(plan), Amounts(training_sizes(plan))
    assert amounts.held(step.holding("paged")) == each * (WEIGHTS - SMALL)
    on_gpu = amounts.alive(optimizer_states(step))
    small = 8 * SMALL if each == 8 else 2 * SMALL + 8 * WEIGHTS // 256 + 2048  # scales and tables
    assert on_gpu == small


def test_torch_does_not_count_them_and_the_device_does():
    paged, whole = evaluate(plan_of()).memory, evaluate(plan_of("adamw")).memory
    assert whole.allocated_bytes - paged.allocated_bytes > 3.9 * WEIGHTS
    states = 8 * (WEIGHTS - SMALL)
    last = paged.overheads[-1]
    assert (last.low, last.high) == (states, states)
    assert paged.device_bytes[1] - paged.reserved_bytes[1] > states
    assert paged.tiers["dram"] == BATCH
    assert not evaluate(plan_of()).time.transfers


def test_what_has_no_room_passes_through_the_host():
    report = evaluate(plan_of(gpus=2))
    m = report.memory
    assert m.verdict == "fits"
    assert m.device_bytes == (m.capacity_bytes, m.capacity_bytes)
    states = 8 * (WEIGHTS - SMALL)
    assert m.tiers["dram"] == 2 * (states + BATCH)
    (pages,) = (t for t in report.time.transfers if t.link == "pcie")
    assert pages.bytes == 2 * states
    assert pages.exposed_seconds == pages.seconds > 1


def test_a_sweep_reads_the_same():
    plan, lengths = plan_of(gpus=1), [1024, 4096, 16384]
    names = ["memory.device_bytes.1", "memory.tiers.dram", "time.step_seconds"]
    found = sweep(plan, {"train.seq_len": lengths}, names)
    for i, n in enumerate(lengths):
        report = evaluate(plan.changed("train.seq_len", n))
        said = report.memory.device_bytes[1], report.memory.tiers["dram"], report.time.step_seconds
        assert [float(found[name][i]) for name in names] == pytest.approx(list(map(float, said)))
    assert found["memory.tiers.dram"].iloc[0] == BATCH
    assert found["memory.tiers.dram"].iloc[-1] > 8 * (WEIGHTS - SMALL)


def test_the_driver_alone_moves_them():
    with pytest.raises(PlanError, match=r"train\.offload_optimizer"):
        plan_of(offload_optimizer="cpu")
    with pytest.raises(PlanError, match=r"train\.optimizer: .*engine"):
        plan_of().changed("together.kind", "grpo")


@pytest.mark.parametrize("gpus", [1, 2])
def test_every_number_is_explained(gpus):
    plan = plan_of(gpus=gpus)
    checked(Book(plan, evaluate(plan)))
