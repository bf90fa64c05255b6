"""Rows of experts behind another micro-batch (Megatron's overlap_moe_expert_parallel_comm)."""

import pytest
from explained import checked

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan
from memcore.step import pipeline


def plan_of(overlap=True, pp=1, virtual=1, gpu="h100-sxm-80gb", **words):
    train = {
        "framework": "megatron", "kernels": "megatron", "zero": 1, "checkpointing": "none",
        "cross_entropy": "fused", "grad_accumulation": 8,
        "overlap_moe_expert_parallel_comm": overlap,
    }  # fmt: skip
    parallel = {"ep": 8, "pp": pp, "virtual_stages": virtual}
    cluster = {"gpu": gpu, "gpus": 8 * pp}
    plan = {"model": "qwen3-30b-a3b", "cluster": cluster, "parallel": parallel}
    return Plan(**plan, train=train | words)


def exposed(plan):
    time = evaluate(plan).time
    return sum(t.exposed_seconds for t in time.transfers if "all-to-all" in t.name), time


def test_hides_all_to_alls_that_are_shorter_than_half_a_layer():
    (without, before), (hidden, after) = (exposed(plan_of(o, micro_batch=4)) for o in (False, True))
    sent = [t.seconds for t in before.transfers if "all-to-all" in t.name]
    assert without == pytest.approx(sum(sent))
    assert 0 < hidden < 0.5 * without  # what they take of the GPU stays
    assert after.step_seconds < before.step_seconds
    assert [t.bytes for t in after.transfers] == [t.bytes for t in before.transfers]


def test_where_the_host_is_the_limit_it_costs_time():
    """NVIDIA-NeMo/Megatron-Bridge, pull request 1760, turns it off "due to CPU overhead": 20.1 to
    16.9 s a step of Qwen3 235B on B200 in MXFP8."""
    (_, before), (_, after) = (
        exposed(plan_of(overlap, precision="mxfp8", gpu="b200-sxm-180gb"))
        for overlap in (False, True)
    )
    assert before.exposed["host"] > 0.3 * before.step_seconds
    assert after.step_seconds > before.step_seconds


@pytest.mark.parametrize(("pp", "virtual"), [(1, 1), (4, 3)])
def test_one_more_forward_is_in_flight(pp, virtual):
    off, on = (plan_of(overlap, pp, virtual) for overlap in (False, True))
    assert pipeline.in_flight(on, 0) == pipeline.in_flight(off, 0) + 1
    more, less = (evaluate(p).memory.allocated_bytes for p in (on, off))
    assert more > less


@pytest.mark.parametrize(
    "words",
    [{"pp": 2}, {"grad_accumulation": 1}, {"checkpointing": "full"}],
)
def test_what_it_wants(words):
    with pytest.raises(PlanError, match=r"train\.overlap_moe_expert_parallel_comm"):
        plan_of(**words)


@pytest.mark.parametrize(("pp", "virtual"), [(1, 1), (4, 3)])
def test_every_number_is_explained(pp, virtual):
    plan = plan_of(True, pp, virtual)
    checked(Book(plan, evaluate(plan)))
