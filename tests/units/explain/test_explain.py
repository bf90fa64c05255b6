"""Every number of a report has an explanation, and what that computes is the number."""

import pytest
from drawn import served, varied
from explained import checked
from explored import examples
from hypothesis import given
from hypothesis import strategies as st

from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models import catalog
from memcore.plan.plan import Plan
from memcore.quantity.formula import ceiling, known, largest, rounded_down, total
from memcore.quantity.quantity import UnknownNumberError

ROUNDING = 1e-9  # of floating-point sums in another order


@given(varied(), st.integers(0, 9))
@examples(25)
def test_every_number_of_training_is_explained_by_its_parts(plan, share):
    checked(Book(plan, evaluate(plan)), share)


@given(served(), st.integers(0, 9))
@examples(20)
def test_every_number_of_serving_is_explained_by_its_parts(plan, share):
    checked(Book(plan, evaluate(plan)), share)


def test_what_is_said_is_what_is_computed():
    a, b = known("a", 2, "bytes"), known("b", 1000.0, "seconds")
    assert (a * (a + 3) / (a - 1)).value == 10
    assert (a * (a + 3) / (a - 1)).words == "a x (a + 3) / (a - 1)"
    assert (a - (a + a)).words == "a - (a + a)"
    assert (a / (a * 2)).numbers == "2 B / (2 B x 2)"
    assert (b / 3).numbers == "16.7 min / 3"
    assert rounded_down(b / 3).value == 333
    assert ceiling(b / 3).words == "rounded up (b / 3)"
    assert largest(1, a).words == "the largest of (1, a)"
    assert total([]).value == 0
    many = total([known(str(i), i) for i in range(9)])
    assert (many.value, many.numbers) == (36, "8 + 7 + 6 + 6 more")
    assert [t.name for t in (a * a + b).terms] == ["a", "b"]


@pytest.mark.parametrize("name", sorted(catalog.plan_entries()))
def test_every_number_of_the_worked_plans(name):
    plan = Plan.of(catalog.plan_entries()[name]["plan"])
    checked(Book(plan, evaluate(plan)))


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "qwen3-30b-a3b"])
@pytest.mark.parametrize(
    ("parallel", "words"),
    [
        ({"ep": 1}, {}),
        ({"ep": 4}, {"imbalance": 1.3}),
        ({"ep": 2, "tp": 2, "pp": 2}, {}),
        ({"ep": 2, "etp": 2, "pp": 2}, {"mtp_layers": 2}),
    ],
)
def test_every_number_of_experts_under_megatron(model, parallel, words):
    train = {"framework": "megatron", "kernels": "megatron", "zero": 1, "seq_len": 128} | words
    plan = Plan(
        model=model,
        cluster={"gpus": 8},
        parallel={"sequence_parallel": True} | parallel,
        train=train | {"checkpointing": "none"},
    )
    checked(Book(plan, evaluate(plan)))


@pytest.mark.parametrize(
    ("gpu", "gpus", "tp"),
    [
        ("mi300x-192gb", 16, 2),  # a mesh, and several of them
        ("gaudi-3-128gb", 8, 4),
        ("v100-sxm-32gb", 8, 2),
        ("tpu-v5p-95gb", 64, 4),  # a torus
        ("tpu-v5e-16gb", 512, 8),
        ("gb200-186gb", 144, 8),  # racks
        ("rtx-4090-24gb", 4, 2),  # through the host
        ("dgx-spark-gb10-128gb", 2, 2),
        ("m3-ultra-512gb", 2, 2),
        ("t4-16gb", 4, 4),  # no bf16
    ],
)
@pytest.mark.parametrize("model", ["llama-3.2-1b", "qwen3-30b-a3b"])
def test_every_number_of_every_wiring(gpu, gpus, tp, model):
    moe = model != "llama-3.2-1b"
    plan = Plan(
        model=model,
        cluster={"gpu": gpu, "gpus": gpus},
        parallel={"tp": tp, "pp": 2 if gpus > tp else 1, "sequence_parallel": moe}
        | ({"ep": gpus // tp // 2} if moe and gpus // tp in (4, 16) else {}),
        train={"framework": "megatron", "kernels": "megatron", "zero": 1, "seq_len": 256}
        | {"checkpointing": "none", "grad_accumulation": 2},
        serve={"prefill": "disaggregated"} if gpus >= 4 * tp else {"offload_weights": 0.0},
    )
    checked(Book(plan, evaluate(plan)))


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp32"])
@pytest.mark.parametrize("gpu", ["v100-sxm-32gb", "tpu-v5p-95gb"])
def test_every_number_without_units_for_a_dtype(gpu, precision):
    plan = Plan(
        model="llama-3.2-1b",
        cluster={"gpu": gpu, "gpus": 1},
        train={"precision": precision, "seq_len": 256},
        serve={"weight_dtype": "nvfp4"},
    )
    checked(Book(plan, evaluate(plan)))


def test_every_number_of_experts_under_fsdp2():
    plan = Plan(model="qwen3-30b-a3b", cluster={"gpus": 16}, parallel={"ep": 4})
    checked(Book(plan, evaluate(plan)))


def test_a_chain_ends_at_factors_with_a_source():
    book = Book(Plan(), evaluate(Plan()))
    for path in ("memory.allocated_bytes", "time.step_seconds", "serve.tpot_seconds", "parameters"):
        last = book.chain(path)[-1]
        assert last.sources, path
        assert any(t.source for t in last.parts), path


@pytest.mark.parametrize(
    "path", ["", ".", "memory", "ledger.x", "ledger.99999", "time.operations.0.name", "x" * 999]
)
def test_what_is_no_number_is_refused_with_a_hint(path):
    with pytest.raises(UnknownNumberError, match=r"did you mean|choose one of|it has"):
        Book(Plan(), evaluate(Plan())).explain(path)
