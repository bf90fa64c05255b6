"""LoRA and QLoRA as people run them, against runs on a T4 (presets/evidence/measured.toml, series):
what PEFT casts to fp32, the outputs that a loop keeps, and softmax's backward on a GPU."""

from statistics import median, quantiles

import pytest
from explained import checked

from evidence.measured import compared_runs, measured_table
from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.link import decode
from memcore.plan.plan import Plan

MEDIAN, NINE_IN_TEN = 0.01, 0.05

RUNS = [run for run in measured_table()["runs"] if "on a T4" in run["run"]]
ALLOCATED = [run for run in RUNS if run["counter"] == "allocated"]
ONE = {"framework": "pytorch", "zero": 0, "precision": "bf16-pure"}


def adapted(model="tinyllama-1.1b", gpu="t4-16gb", **words):
    train = ONE | {"micro_batch": 1, "seq_len": 1024} | words
    return Plan(model=model, cluster={"gpu": gpu, "gpus": 1}, train=train)


def memory(**words):
    return evaluate(adapted(**words)).memory


def test_there_are_runs_of_both_with_both_kinds_of_attention():
    kinds = {(run["plan"]["train"]["adapter"], run["plan"]["train"]["attention"]) for run in RUNS}
    assert len(kinds) == 4
    assert len(ALLOCATED) == 23


@pytest.mark.parametrize("precision", ["fp16-pure", "bf16-pure"])
def test_allocated_on_a_t4(precision):
    """Nothing was tuned on them. bf16 is what a plan is likely to say of a GPU that has none."""
    errors = []
    for run in ALLOCATED:
        plan = run["plan"] | {"train": run["plan"]["train"] | {"precision": precision}}
        ours = evaluate(Plan.of(plan)).memory.allocated_bytes
        errors.append(abs(ours / run["value"] - 1))
    assert median(errors) <= MEDIAN, errors
    assert quantiles(errors, n=10)[-1] <= NINE_IN_TEN, errors


def test_no_allocated_run_of_a_t4_misses():
    runs = [c for c in compared_runs() if "on a T4" in c.run and c.what == "allocated"]
    assert max(abs(c.error) for c in runs) <= 0.025


def rows(plan, part):
    return [r for r in evaluate(plan).ledger if part in r.name]


def test_what_is_not_quantized_is_fp32_beside_fp32_adapters():
    """peft/utils/other.py: prepare_model_for_kbit_training casts all but Params4bit."""
    plan = adapted(adapter="qlora")
    (table,) = rows(plan, "embed_tokens.weight")
    assert table.dtype == "fp32"
    inputs = [r for r in rows(plan, "layers.input") if r.consumer == "activations"]
    assert {r.dtype for r in inputs} == {"fp32"}
    for said in ({"unquantized_dtype": "base"}, {"adapter_dtype": "base"}):
        (table,) = rows(adapted(adapter="qlora", **said), "embed_tokens.weight")
        assert table.dtype == "bf16"
    (table,) = rows(
        adapted(adapter="qlora", adapter_dtype="base", unquantized_dtype="fp32"), "embed_tokens"
    )
    assert table.dtype == "fp32"


def test_adapters_of_a_dtype_of_their_own_keep_it_beside_fp32():
    plan = adapted(adapter="qlora", adapter_dtype="base", unquantized_dtype="fp32")
    assert {r.dtype for r in rows(plan, "lora_A.weight") if r.name.endswith("weight")} == {"bf16"}


def test_lora_alone_casts_nothing():
    assert memory(adapter="lora", unquantized_dtype="fp32") == memory(adapter="lora")


def test_outputs_are_one_tensor_of_logits_more():
    """Through backward, so that it is there where the peak is."""
    for words in ({"adapter": "lora"}, {}):
        freed, kept = (memory(outputs=word, **words) for word in ("freed", "kept"))
        logits = 1024 * 32_000 * 2
        assert kept.allocated_bytes - freed.allocated_bytes == logits
        more = {b.id: b.bytes - a.bytes for a, b in zip(freed.timeline, kept.timeline, strict=True)}
        assert more.pop("forward-last-layer") == more.pop("loss") == 0
        assert set(more.values()) == {logits}, more
        assert kept.saved_for_backward_bytes == freed.saved_for_backward_bytes


def test_a_pipeline_hands_no_outputs_to_its_loop():
    with pytest.raises(PlanError, match=r"train\.outputs"):
        Plan(train={"framework": "megatron", "kernels": "megatron", "zero": 1, "outputs": "kept"})


def test_what_was_assumed_is_said():
    notes = " ".join(evaluate(adapted(adapter="qlora")).notes)
    assert "train.outputs" in notes
    assert "train.unquantized_dtype" in notes
    said = adapted(adapter="qlora", outputs="kept", unquantized_dtype="fp32")
    assert "train.outputs" not in " ".join(evaluate(said).notes)


def test_no_outputs_where_logits_never_exist():
    words = {"kernels": "liger", "cross_entropy": "chunked"}
    assert memory(outputs="kept", **words) == memory(outputs="freed", **words)


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ({"adapter": "lora"}, "kept"),
        ({"adapter": "qlora"}, "kept"),
        ({"adapter": "lora", "precision": "bf16-autocast"}, "freed"),  # the Trainer's
        ({"adapter": "lora", "adapter_dtype": "base"}, "freed"),  # litgpt, torchtune
        ({}, "freed"),
        ({"framework": "fsdp2"}, "freed"),
    ],
)
def test_who_keeps_outputs(words, word):
    assert memory(**words) == memory(**words, outputs=word)


def scores(plan):
    """The bytes of one tensor of scores in the last layer's backward, of four bytes each."""
    return plan.train.micro_batch * plan.architecture.heads * plan.train.seq_len**2 * 4


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_softmax_multiplies_before_its_backward(dtype):
    """aten/src/ATen/native/cuda/SoftMax.cu: gradient x result is a tensor of its own. fp16 scores
    are read as they are, and their gradient is written in fp16 (half_to_float)."""
    plan = adapted(
        adapter="lora", attention="eager", seq_len=4096, checkpointing="full",
        precision=f"{dtype}-pure",
    )  # fmt: skip
    report = evaluate(plan)
    assert report.memory.peak.instant == "backward-last-layer"
    quadratic = [r.bytes for r in report.ledger if r.bytes in (scores(plan), scores(plan) // 2)]
    wide, narrow = 4, {"bf16": 0, "fp16": 1}[dtype]
    assert sum(quadratic) == scores(plan) * (wide - narrow / 2)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_number_is_explained(attention):
    plan = adapted(adapter="qlora", attention=attention, checkpointing="full")
    checked(Book(plan, evaluate(plan)))


def test_an_old_link_reads_as_people_run_it():
    plan, issues = decode({"adapter": "qlora", "fw": "pytorch", "zero": "0", "prec": "bf16-pure"})
    assert not issues
    assert (plan.train.outputs, plan.train.unquantized_dtype) == ("auto", "auto")
