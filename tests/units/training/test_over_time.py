"""Memory over the seconds of a step: the ledger's bytes, at their time."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from memcore.errors import PlanError
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.report import Report
from memcore.training.over_time import Course, over_time, rows

MEGATRON = {"framework": "megatron", "kernels": "megatron", "zero": 1}
FSDP2 = {"framework": "fsdp2", "zero": 2}


def piped(stages: int, batches: int, train: Any = MEGATRON, **parallel: Any) -> Plan:
    return Plan(
        cluster={"gpus": 16},
        parallel={"pp": stages, **parallel},
        train={**train, "grad_accumulation": batches},
    )


PLANS = {
    "FSDP2": Plan(),
    "FSDP2, gradients kept": Plan(train={"grad_accumulation": 4}),
    "FSDP2, ZeRO 2": Plan(train={"zero": 2}),
    "FSDP2, offloaded": Plan(train={"offload_optimizer": "cpu", "offload_parameters": "cpu"}),
    "DDP": Plan(train={"framework": "pytorch", "zero": 0}),
    "DeepSpeed 1": Plan(train={"framework": "deepspeed", "zero": 1}),
    "DeepSpeed 2": Plan(train={"framework": "deepspeed", "zero": 2}),
    "DeepSpeed 3": Plan(train={"framework": "deepspeed", "zero": 3}),
    "QLoRA": Plan(
        train={"framework": "pytorch", "zero": 0, "precision": "bf16-pure", "adapter": "qlora"}
    ),
    "kinds of layers": Plan(model="gemma-3-27b", cluster={"gpus": 32}),
    "experts": Plan(model="qwen3-30b-a3b", cluster={"gpus": 32}),
    "an encoder and a decoder": Plan(model="flan-t5-xxl", train={"seq_len": 512}),
    "a tower": Plan(model="llava-1.5-7b"),
    "1F1B": piped(4, 8),
    "1F1B, fewer batches than stages": piped(8, 3),
    "GPipe": piped(4, 8, schedule="gpipe"),
    "ZB-H1": piped(4, 8, schedule="zero-bubble"),
    "interleaved": piped(4, 8, virtual_stages=4),
    "interleaved, rounds of 5": piped(4, 10, FSDP2, virtual_stages=4),
    "interleaved, fewer batches than stages": piped(4, 3, FSDP2, virtual_stages=4),
    "many batches": piped(4, 100_000),
}


@functools.cache
def found(name: str) -> tuple[Report, tuple[Course, ...]]:
    return evaluate(PLANS[name]), over_time(PLANS[name])


@pytest.mark.parametrize("name", PLANS)
def test_the_fullest_slot_is_the_peak_and_the_end_is_the_steps(name: str) -> None:
    report, courses = found(name)
    assert report.memory
    assert report.time
    assert max(c.peak.bytes for c in courses) == report.memory.allocated_bytes
    for course, rank in zip(courses, report.memory.ranks, strict=True):
        assert course.peak.bytes == rank.allocated_bytes
        assert course.slots[-1].end == pytest.approx(report.time.step_seconds)
        begins = [0.0, *(s.end for s in course.slots)]
        assert all(s.start == b for s, b in zip(course.slots, begins, strict=False))
        assert all(s.seconds >= 0 and s.bytes == sum(s.consumers.values()) for s in course.slots)


@pytest.mark.parametrize("name", PLANS)
def test_every_instant_of_the_report_is_there_with_its_bytes(name: str) -> None:
    report, courses = found(name)
    assert report.memory
    fullest = courses[report.memory.peak.rank]
    alive: dict[str, list[dict[str, int]]] = {}
    for s in fullest.slots:
        alive.setdefault(s.instant, []).append(dict(s.consumers))
    for instant in report.memory.timeline:
        assert dict(instant.consumers) in alive[instant.id], instant.id


def test_a_forward_keeps_one_layer_after_the_other_and_backward_lets_go() -> None:
    course = over_time(Plan(train={"checkpointing": "none"}))[0]
    kept = [s.consumers["activations"] for s in course.slots if s.phase == "forward"]
    assert kept[:-1] == sorted(kept[:-1])
    freed = [s.consumers["activations"] for s in course.slots if s.phase == "backward"]
    assert freed[0] > 10 * freed[-1]


def scale(plan: Plan) -> float:
    """What is played is scaled to the step of the Report: where both agree, nothing changes."""
    report, rank = evaluate(plan), plan.parallel.pp // 2
    assert report.time
    first = sum(s.seconds for s in over_time(plan)[rank].slots if s.micro_batch == "1")
    return first / report.time.stages[rank].seconds


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("virtual", [1, 2])
def test_a_pipeline_that_is_played_takes_what_its_closed_form_says(
    stages: int, virtual: int
) -> None:
    """Narayanan et al. 2021: (p - 1) / v of a micro-batch's forward and backward."""
    assert scale(piped(stages, 8 * stages, virtual_stages=virtual)) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(
    ("stages", "batches", "near"), [(4, 1, 0.01), (4, 3, 0.09), (8, 2, 0.09), (4, 5, 0.02)]
)
def test_rounds_with_fewer_or_more_micro_batches_than_stages(
    stages: int, batches: int, near: float
) -> None:
    """torch's take any number of one round: a chunk of few waits for the last stage."""
    plain, cut = (piped(stages, batches, FSDP2, virtual_stages=v) for v in (1, 4))
    assert scale(cut) == pytest.approx(scale(plain), rel=near)


@pytest.mark.parametrize("batches", [3, 5, 9])
def test_megatron_interleaves_as_many_micro_batches_as_stages(batches: int) -> None:
    """num_microbatches is a multiple of the pipeline's stages: Megatron-LM,
    megatron/core/pipeline_parallel/schedules.py."""
    with pytest.raises(PlanError, match=r"train\.grad_accumulation.*no multiple of 4; set it to"):
        piped(4, batches, virtual_stages=2)
    assert piped(4, batches)


@pytest.mark.parametrize(("schedule", "first", "last"), [("1f1b", 3, 0), ("gpipe", 7, 7)])
def test_how_many_wait_for_their_backward(schedule: str, first: int, last: int) -> None:
    """Narayanan et al. 2019: p - r micro-batches of stage r are alive at once; GPipe: all."""
    courses = over_time(piped(4, 8, schedule=schedule))
    most = [max(s.waiting for s in c.slots if s.phase in ("forward", "backward")) for c in courses]
    assert (most[0], most[-1]) == (first, last)
    assert courses[0].slots[-1].waiting == courses[-1].slots[-1].waiting == 0


def test_a_picture_of_fewer_slots_has_the_same_peak_and_end() -> None:
    course = over_time(piped(2, 8))[0]
    drawn = Course(0, course.fullest(50))
    assert len(drawn.slots) <= 50 < len(course.slots)
    assert drawn.peak.bytes == course.peak.bytes
    assert drawn.slots[-1].end == pytest.approx(course.slots[-1].end)


def test_as_a_table() -> None:
    courses = over_time(piped(2, 4))
    table = list(rows(courses))
    assert {row["rank"] for row in table} == {0, 1}
    assert sum(row["seconds"] for row in table) == pytest.approx(2 * courses[0].slots[-1].end)
