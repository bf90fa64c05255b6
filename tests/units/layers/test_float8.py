"""torchao's float8 under FSDP2, against what torchtitan printed with it and without (Llama 3.1 8B
on 8 H100, compiled): commit 069bae286, and benchmarks/llama3_h100_202412_torchtitan.md, table 1."""

import pytest
from explained import checked

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan

GIB = 2**30


def plan_of(precision, gpu="h100-sxm-96gb-500w", parallel=(), **words):
    train = {
        "micro_batch": 2, "seq_len": 8192, "checkpointing": "selective-op", "attention": "sdpa",
        "kernels": "compile", "precision": precision,
    }  # fmt: skip
    cluster = {"gpu": gpu, "gpus": 8}
    return Plan(model="llama-3.1-8b", cluster=cluster, parallel=dict(parallel), train=train | words)


@pytest.mark.parametrize(
    ("precision", "batch", "printed"),
    [("float8-tensorwise", 1, -0.33), ("float8-tensorwise", 2, -0.2), ("float8-rowwise", 1, 0.12)],
)
def test_memory_beside_bf16(precision, batch, printed):
    """Inputs are kept in bf16; gathered weights are half as large where they are in 8 bits."""
    wide, narrow = (
        evaluate(plan_of(p, micro_batch=batch)).memory for p in ("bf16-mixed", precision)
    )
    assert narrow.saved_for_backward_bytes == wide.saved_for_backward_bytes
    moved = (narrow.allocated_bytes - wide.allocated_bytes) / GIB
    assert moved == pytest.approx(printed, abs=0.15)


def test_what_is_gathered_in_8_bits():
    """Of each layer its matrices; the head, the embedding and the norms are not."""
    found = {}
    for word in ("float8-tensorwise", "float8-rowwise", "bf16-mixed"):
        moved = {t.name: t.bytes for t in evaluate(plan_of(word)).time.transfers}
        found[word] = moved["all-gather layers, forward"]
        root = moved["all-gather root, backward"]
        assert root == pytest.approx(2 * 2 * 128_256 * 4096, rel=1e-3)
    assert found["float8-rowwise"] == found["bf16-mixed"]
    assert found["float8-tensorwise"] == pytest.approx(found["bf16-mixed"] / 2, rel=1e-3)


def test_a_step_is_as_much_faster_as_printed():
    """6,667 to 8,532 tokens a second."""
    wide, narrow = (
        evaluate(plan_of(p)).time.step_seconds for p in ("bf16-mixed", "float8-tensorwise")
    )
    assert wide / narrow == pytest.approx(8532 / 6667, rel=0.05)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"gpu": "a100-sxm-80gb"}, "has no products in fp8"),
        ({"parallel": {"tp": 2}}, "not planned with tensor or expert parallelism"),
        ({"adapter": "lora", "adapter_dtype": "base", "kernels": "hf"}, "not planned with adapt"),
    ],
)
def test_what_it_does_not_run_with(words, message):
    with pytest.raises(PlanError, match=message):
        plan_of("float8-tensorwise", **words)


@pytest.mark.parametrize("precision", ["float8-tensorwise", "float8-rowwise"])
def test_every_number_is_explained(precision):
    plan = plan_of(precision, kernels="hf")
    checked(Book(plan, evaluate(plan)))
