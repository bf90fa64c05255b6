"""Every number of a report has an explanation, and what that computes is the number."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_laws import plans

from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.models import catalog
from memcore.plan.plan import Plan
from memcore.plan.repair import repair
from memcore.quantity.formula import CERTAINTIES, ceiling, known, largest, total, whole
from memcore.quantity.quantity import UnknownNumberError
from memcore.words.optimizers import OPTIMIZERS
from memcore.words.serving import KV_CACHES, PREFILLS, RUNTIMES
from memcore.words.stored import KV_DTYPES, WEIGHT_DTYPES
from memcore.words.training import CROSS_ENTROPY, KERNELS

ROUNDING = 1e-9  # of floating-point sums in another order
VIRTUAL = (  # what pages compute from the report
    *("memory.room_bytes", "memory.overhead_bytes.0", "memory.overhead_bytes.1"),
    *("time.tokens", "time.traffic.hbm", "time.traffic.nvlink", "time.hidden.compute"),
    *("serve.asked_bytes", "serve.replica_bytes", "serve.wasted_bytes", "serve.running"),
    *("serve.asked_kv_bytes", "serve.asked_state_bytes"),
)


@st.composite
def varied(draw):
    """A plan with any optimizer, kernels and loss, where they can be combined."""
    plan = draw(plans())
    train = {
        "optimizer": draw(st.sampled_from(sorted(OPTIMIZERS))),
        "kernels": draw(st.sampled_from(sorted(KERNELS))),
        "cross_entropy": draw(st.sampled_from(sorted(CROSS_ENTROPY))),
        "checkpoint_every": draw(st.integers(1, 3)),
        "early_stop": draw(st.sampled_from(["auto", "off"])),
        "allocator": draw(st.sampled_from(["expandable", "native"])),
    }
    document = plan.document()
    fitted, _ = repair(document | {"train": document["train"] | train})
    return fitted


@st.composite
def served(draw):
    """A plan served in some way; cut over GPUs, serving alone is computed."""
    plan = draw(plans())
    document = plan.document()
    document["serve"] |= {
        "weight_dtype": draw(st.sampled_from(sorted(WEIGHT_DTYPES))),
        "kv_dtype": draw(st.sampled_from(sorted(KV_DTYPES))),
        "kv_cache": draw(st.sampled_from(sorted(KV_CACHES))),
        "concurrency": draw(st.integers(1, 10_000)),
        "prompt_len": draw(st.integers(1, 3000)),
        "output_len": draw(st.integers(1, 1000)),
        "block_size": draw(st.integers(1, 64)),
        "memory_utilization": draw(st.floats(0.001, 1)),
        "max_batched_tokens": draw(st.integers(1, 10_000)),
        "runtime": draw(st.sampled_from(sorted(RUNTIMES))),
        "prefill": draw(st.sampled_from(sorted(PREFILLS))),
        "draft_tokens": draw(st.sampled_from([0, 0, 1, 5])),
        "draft_acceptance": draw(st.sampled_from([0.0, 0.6, 1.0])),
        "draft_model": draw(st.sampled_from(["none", "gpt2", "llama-3.2-1b"])),
        "offload_weights": draw(st.sampled_from([0.0, 0.0, 0.001, 3.0])),
        "offload_kv": draw(st.sampled_from(["none", "none", "cpu"])),
    }
    tp, pp = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (4, 1), (1, 2), (2, 2)]))
    document["parallel"] |= {"tp": tp, "pp": pp}
    document["cluster"] |= {"gpus": draw(st.integers(1, 3)) * tp * pp}
    fitted, _ = repair(document, given=("parallel.tp", "parallel.pp"))
    return fitted


def numbers(value, path=""):
    """Every number and yes or no of a report, by its path."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from numbers(inner, f"{path}.{i}")
    elif isinstance(value, (int, float)):
        yield path, value


def agree(ours, theirs):
    if isinstance(ours, float) or isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=ROUNDING, abs_tol=1e-30) or ours == theirs
    return ours == theirs


MANY = ("time.operations.", "ledger.", "serve.rows.", "memory.timeline.")


def checked(book, share=0):
    """Explanations of a report, and of their parts, held against the report and each other.

    Of what a report has many of, every tenth from `share` on; the others with the sums they are in.
    """
    document = book.report.to_dict()
    reported = {p: v for p, v in numbers(document) if not p.startswith("plan.")}
    paths = set(book.paths())
    missing = [p for p in reported if p not in paths]
    assert not missing, missing[:5]
    many = [p for p in reported if p.startswith(MANY)]
    reported = {p: reported[p] for p in reported if p not in set(many) - set(many[share::10])}
    for path, value in reported.items():
        assert agree(book.explain(path).value, value), path
    words = {"memory": ("verdict",), "time": ("bound_by",), "serve": ("prefill_bound_by",)}
    for part, fields in words.items():
        for field in fields:
            if field in document.get(part, {}):  # nothing is served where nothing fits
                assert book.explain(f"{part}.{field}").value == document[part][field]
    known_paths, open_ = set(), [*reported, *(v for v in VIRTUAL if v.split(".")[0] in document)]
    while open_:
        path = open_.pop()
        if path in known_paths:
            continue
        known_paths.add(path)
        e = book.explain(path)
        assert e.what
        assert e.certainty in CERTAINTIES
        assert e.formula is not None or e.sources, path
        if e.formula is None:
            continue
        assert agree(e.formula.value, e.value), path
        assert e.formula.words
        for term in e.parts:
            assert term.path or term.source, (path, term)
            if term.path:
                part = book.explain(term.path)
                assert part.value == term.value, (path, term.path)
                assert CERTAINTIES.index(part.certainty) <= CERTAINTIES.index(e.certainty)
                open_.append(term.path)
    return known_paths


@given(varied(), st.integers(0, 9))
@settings(max_examples=120)
def test_every_number_of_training_is_explained_by_its_parts(plan, share):
    checked(Book(plan, evaluate(plan)), share)


@given(served(), st.integers(0, 9))
@settings(max_examples=80)
def test_every_number_of_serving_is_explained_by_its_parts(plan, share):
    checked(Book(plan, evaluate(plan)), share)


def test_what_is_said_is_what_is_computed():
    a, b = known("a", 2, "bytes"), known("b", 1000.0, "seconds")
    assert (a * (a + 3) / (a - 1)).value == 10
    assert (a * (a + 3) / (a - 1)).words == "a x (a + 3) / (a - 1)"
    assert (a - (a + a)).words == "a - (a + a)"
    assert (a / (a * 2)).numbers == "2 B / (2 B x 2)"
    assert (b / 3).numbers == "16.7 min / 3"
    assert whole(b / 3).value == 333
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
