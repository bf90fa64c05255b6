"""Adapters against PEFT's own code on small models.

adapters.json holds what reference/ask_adapters.py was told by PEFT, torch and transformers.
"""

import asked
import pytest
from explained import checked
from tables import each

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan

TABLE = asked.table("adapters")
PEAK_TOLERANCE = 0.01
# PyTorch keeps the embedding's own result, of which a gradient is wanted, where the first layer
# gets something made from it: one tensor more, of few in models this small.
CHECKPOINTED_TOLERANCE = 0.025
# With the head frozen, Liger's chunked loss makes no tensor of the vocabulary's size: the peak is
# in the last layer's forward, where a result of one adapter waits longer than ours.
CHUNKED_TOLERANCE = 0.025
LORA = {"adapter": "lora", "outputs": "freed"}  # what is asked calls backward at once
OPTIONAL = ("kernels", "cross_entropy", "adapter", "reentrant", "unquantized_dtype")
WORDS = ("attention", "checkpointing", "lora_targets", "lora_rank", "lora_dropout", "adapter_dtype")


def plan_of(row):
    words = (*WORDS, *asked.seen(row))
    return asked.plan_of(TABLE, row, words, LORA | {w: row[w] for w in OPTIONAL if w in row})


@each("row", asked.rows(TABLE, "parameters"))
def test_trainable_parameters_are_equal(row):
    assert asked.trained(plan_of(row)).trainable_parameters == row["bytes"]


@each("row", asked.rows(TABLE, "saved"))
def test_saved_bytes_are_equal(row):
    assert asked.saved(plan_of(row)) == row["bytes"]


@each("row", asked.rows(TABLE, "peak"))
def test_peaks_agree(row):
    ours = asked.peak(plan_of(row))
    tolerance = PEAK_TOLERANCE
    if row["checkpointing"] != "none":
        tolerance = CHECKPOINTED_TOLERANCE
    elif row.get("cross_entropy") == "chunked":
        tolerance = CHUNKED_TOLERANCE
    assert ours == pytest.approx(row["bytes"], rel=tolerance)


# Scales cost 32 / 64 bits a weight, or 8 / 64 + 32 / (64 x 256) (Dettmers et al. 2023, section 3);
# in 8 bits 32 for each row (Dettmers et al. 2022).
@pytest.mark.parametrize(
    ("adapter", "bits"),
    [
        ("qlora-single", 4 + 32 / 64),
        ("qlora", 4 + 8 / 64 + 32 / (64 * 256)),
        ("lora-8bit", 8 + 32 / 4096),
    ],
)
def test_bits_of_a_frozen_weight(adapter, bits):
    plan = adapted(adapter=adapter)
    weights = [r for r in evaluate(plan).ledger if "o_proj.weight" in r.name]
    assert 8 * sum(r.bytes for r in weights) / 32 / 4096**2 == pytest.approx(bits, rel=1e-4)


def adapted(model="llama-2-7b", **words):
    train = {"framework": "pytorch", "zero": 0, "precision": "bf16-pure", "adapter": "lora"}
    return Plan(model=model, cluster={"gpus": 1}, train=train | words)


def test_only_adapters_have_gradients_and_states():
    report = evaluate(adapted())
    assert report.parameters == 6_738_415_616
    assert report.trainable_parameters == 32 * 2 * 16 * (4096 + 4096)
    states = [r for r in report.ledger if r.consumer == "optimizer_states"]
    assert states
    assert all("lora_" in r.name for r in states)
    at_step = report.memory.timeline[-1].consumers
    assert at_step["gradients"] == 4 * report.trainable_parameters


@pytest.mark.parametrize(
    "words",
    [
        {"framework": "fsdp2", "zero": 3},
        {
            "framework": "fsdp2",
            "zero": 3,
            "adapter": "qlora",
            "adapter_dtype": "base",
            "precision": "bf16-mixed",
        },
        {"precision": "bf16-mixed"},
        {"kernels": "liger", "adapter": "qlora"},
        {"kernels": "compile"},
        {"offload_optimizer": "cpu"},
    ],
)
def test_what_is_not_modelled_is_refused(words):
    with pytest.raises(PlanError, match=r"train\.adapter"):
        adapted(**words)


MIXTURE = {"model": "qwen3-30b-a3b"}


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (MIXTURE | {"lora_targets": "all-linear"}, "train.lora_targets"),
        (MIXTURE | {"adapter": "qlora"}, "train.adapter"),
        ({"model": "deepseek-v2-lite", "lora_targets": "attention"}, "train.lora_targets"),
    ],
)
def test_experts_are_not_adapted(words, field):
    with pytest.raises(PlanError, match=field.replace(".", r"\.")):
        adapted(**words)


def in_8_bits(**words):
    words = {"attention": "sdpa", "seq_len": 2048} | words
    return evaluate(adapted(adapter="lora-8bit", **words))


def test_graphs_hold_inputs_of_8_bit_products_to_the_end():
    """No checkpoint lets go of them, but for one that has no graph (use_reentrant)."""
    whole, again, reentrant = (
        in_8_bits(**words)
        for words in (
            {"checkpointing": "none"},
            {"checkpointing": "full"},
            {"checkpointing": "full", "reentrant": True},
        )
    )
    # The three inputs of a layer's products that are as wide as the model, and down_proj's.
    held = 32 * 2048 * 4 * (3 * 4096 + 11008)
    moments = {m.id: m.consumers["activations"] for m in again.memory.timeline}
    assert moments["backward-first-layer"] >= held
    assert again.memory.saved_for_backward_bytes - held == (
        reentrant.memory.saved_for_backward_bytes
    )
    assert reentrant.memory.allocated_bytes < again.memory.allocated_bytes
    assert again.memory.allocated_bytes < whole.memory.allocated_bytes


def test_products_in_8_bits_run_at_their_rates():
    """Forward in int8, backward in the dtype of the input, which PEFT has cast to fp32."""
    found = {
        base: {o.kernel for o in in_8_bits(unquantized_dtype=base).time.operations if o.flops}
        for base in ("fp32", "base")
    }
    assert found["fp32"] >= {"integer product", "fp32 product"}
    assert found["base"] >= {"integer product", "16-bit product"}


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"framework": "fsdp2", "zero": 3, "adapter_dtype": "base"}, "train.adapter"),
        ({"framework": "deepspeed", "zero": 3, "precision": "bf16-mixed"}, "train.adapter"),
        ({"offload_activations": "cpu", "framework": "fsdp2"}, "train.offload_activations"),
        ({"reentrant": True, "early_stop": "on"}, "train.reentrant"),
        ({"reentrant": True, "checkpointing": "selective-op"}, "train.reentrant"),
        ({"kernels": "liger"}, "train.adapter"),
    ],
)
def test_what_8_bits_do_not_run_with(words, field):
    with pytest.raises(PlanError, match=field.replace(".", r"\.")):
        adapted(adapter="lora-8bit", **words)


@pytest.mark.parametrize("adapter", ["lora", "qlora", "qlora-single", "lora-8bit"])
@pytest.mark.parametrize("precision", ["bf16-pure", "bf16-autocast"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "selective-op", "full"])
def test_every_number_is_explained(adapter, precision, checkpointing):
    words = {"adapter": adapter, "precision": precision, "checkpointing": checkpointing}
    plan = adapted(**words, attention="sdpa")
    checked(Book(plan, evaluate(plan)))
