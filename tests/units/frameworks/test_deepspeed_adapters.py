"""LoRA and QLoRA under DeepSpeed: only trained weights are in its flat groups (stage_1_and_2.py:
trainable_parameters), while stage 3 shares out the frozen ones too (partition_parameters.py)."""

import pytest
from explained import checked

from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan

GPUS = 8
LORA = 32 * 2 * 16 * 2 * 4096  # of q and v in 32 layers of Llama 2 7B


def plan_of(**words):
    train = {
        "framework": "deepspeed", "zero": 2, "precision": "bf16-mixed", "micro_batch": 1,
        "seq_len": 512, "adapter": "lora", "attention": "sdpa",
    }  # fmt: skip
    return Plan(model="llama-2-7b", cluster={"gpus": GPUS}, train=train | words)


def rows(plan, consumer, part=""):
    return [r for r in evaluate(plan).ledger if r.consumer == consumer and part in r.name]


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_frozen_weights_are_whole(zero):
    plan = plan_of(zero=zero)
    weights = sum(r.bytes for r in rows(plan, "parameters"))
    assert weights == 2 * (6_738_415_616 + LORA)
    assert {r.dtype for r in rows(plan, "parameters", "lora_")} == {"bf16"}


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_states_are_of_the_adapters_own_part(zero):
    """A master copy and two moments of each trained weight, in fp32, over the ranks."""
    found = rows(plan_of(zero=zero), "optimizer_states")
    assert sum(r.bytes for r in found) == 12 * LORA // GPUS
    assert all("lora_" in r.name for r in found)


def test_stage_3_shares_out_frozen_weights():
    weights = [r for r in rows(plan_of(zero=3), "parameters") if "gathered" not in r.name]
    assert sum(r.bytes for r in weights) == pytest.approx(2 * 6_738_415_616 / GPUS, rel=0.01)


def test_gradients_are_sent_of_adapters_alone():
    for plan in (plan_of(), plan_of(framework="pytorch", zero=1, precision="bf16-pure")):
        moved = {t.name: t.bytes for t in evaluate(plan).time.transfers}
        assert len(moved) == 2
        assert all(n <= 4 * LORA for n in moved.values()), moved


def test_qlora_below_stage_3():
    """DeepSpeed casts what is not quantized to the precision's own dtype (module.bfloat16())."""
    plan = plan_of(adapter="qlora")
    assert {r.dtype for r in rows(plan, "parameters", "norm")} == {"bf16"}
    whole = sum(r.bytes for r in rows(plan_of(), "parameters"))
    assert sum(r.bytes for r in rows(plan, "parameters")) < 0.32 * whole
    with pytest.raises(PlanError, match=r"train\.unquantized_dtype"):
        plan_of(adapter="qlora", unquantized_dtype="fp32")


def test_stage_3_shares_out_4_bit_values():
    """They lie in 16-bit numbers for it (bnb_4bit_quant_storage); their scales do not."""
    plan = plan_of(adapter="qlora-single", zero=3)
    of_a_layer = 4096 * 4096
    (values,) = rows(plan, "parameters", "o_proj.weight (4 bit)")
    (scales,) = rows(plan, "parameters", "o_proj.weight (scales)")
    assert values.bytes == 32 * of_a_layer // 2 // GPUS
    assert scales.bytes == 32 * of_a_layer // 64 * 4
    sent = {a: moved(plan_of(adapter=a, zero=3)) for a in ("lora", "qlora-single")}
    assert sent["qlora-single"] == pytest.approx(sent["lora"] / 4, rel=0.05)
    # Fewer 16-bit numbers are gathered at once than stage3_max_live_parameters lets be.
    live = {a: rows(plan_of(adapter=a, zero=3), "workspace", "(gathered)") for a in sent}
    assert live["qlora-single"] == [] or live["qlora-single"][0].bytes <= live["lora"][0].bytes


def moved(plan):
    return sum(t.bytes for t in evaluate(plan).time.transfers if "layers, forward" in t.name)


def test_8_bit_moments_of_a_flat_partition():
    """bitsandbytes' Adam on DeepSpeed's fp32 partition: two moments of a byte, and their scales."""
    train = {"adapter": "none", "zero": 2}
    full, narrow = (
        sum(r.bytes for r in rows(plan_of(optimizer=name, **train), "optimizer_states"))
        for name in ("adamw", "adam8bit")
    )
    each = 6_738_415_616 / GPUS
    assert full == pytest.approx(12 * each, rel=1e-3)
    assert narrow == pytest.approx((4 + 2 + 2 * 4 / 256) * each, rel=1e-3)


@pytest.mark.parametrize(
    "words", [*({"zero": z} for z in range(4)), *({"adapter": "qlora", "zero": z} for z in (2, 3))]
)
def test_every_number_is_explained(words):
    plan = plan_of(**words)
    checked(Book(plan, evaluate(plan)))
