"""QLoRA under FSDP2, as bitsandbytes stores 4-bit weights for it (bnb_4bit_quant_storage): in the
other weights' dtype, so that they are sharded with them; their scales are on every GPU."""

import pytest
from explained import checked

from evidence.measured import compared_runs
from memcore import PlanError
from memcore.evaluate import evaluate
from memcore.explain.book import Book
from memcore.plan.plan import Plan

GPUS, LAYERS, O_PROJ = 2, 32, 4096 * 4096


def plan_of(**words):
    train = {
        "framework": "fsdp2", "zero": 3, "precision": "bf16-pure", "adapter_dtype": "base",
        "adapter": "qlora-single", "micro_batch": 1, "seq_len": 512, "attention": "sdpa",
    }  # fmt: skip
    gpu = "rtx-3090-24gb"
    return Plan(model="llama-2-7b", cluster={"gpu": gpu, "gpus": GPUS}, train=train | words)


def rows(plan, part):
    return [r for r in evaluate(plan).ledger if part in r.name]


def test_values_are_sharded_and_scales_are_not():
    (values,) = rows(plan_of(checkpointing="full"), "o_proj.weight (4 bit)")[:1]
    (scales,) = rows(plan_of(checkpointing="full"), "o_proj.weight (scales)")
    assert values.bytes == LAYERS * O_PROJ // 2 // GPUS
    assert scales.bytes == LAYERS * O_PROJ // 64 * 4


def test_scales_stay_on_the_gpu_where_parameters_are_offloaded():
    """They are no parameters, and kernels read them there (bitsandbytes 0.50: dequantize_4bit)."""
    words = {"offload_optimizer": "cpu", "offload_parameters": "cpu", "checkpointing": "full"}
    scales = rows(plan_of(**words), "(scales)")
    assert {r.tier for r in scales} == {"hbm"}
    (of_o_proj,) = (r for r in scales if "o_proj" in r.name)
    assert of_o_proj.bytes == LAYERS * O_PROJ // 64 * 4
    hosted = rows(plan_of(**words), "o_proj.weight (4 bit)")
    assert sum(r.bytes for r in hosted if r.tier == "dram") == LAYERS * O_PROJ // 2


def test_four_bits_are_gathered():
    """The bytes of a layer on their way, half a byte for each quantized weight."""
    of = {a: plan_of(adapter=a) for a in ("lora", "qlora-single")}
    sent = {
        a: sum(t.bytes for t in evaluate(p).time.transfers if "layers, forward" in t.name)
        for a, p in of.items()
    }
    assert sent["qlora-single"] == pytest.approx(sent["lora"] / 4, rel=0.05)


def test_what_is_not_quantized_has_the_dtype_of_the_group():
    assert {r.dtype for r in rows(plan_of(), "norm.weight")} == {"bf16"}
    with pytest.raises(PlanError, match=r"train\.unquantized_dtype"):
        plan_of(unquantized_dtype="fp32")
    with pytest.raises(PlanError, match="bnb_4bit_quant_storage"):
        plan_of(precision="bf16-mixed")


def test_runs_under_fsdp():
    """fsdp_qlora on two RTX 3090: 2 x 24 GB. Its loop keeps `outputs`."""
    runs = {(c.what, c.run): c for c in compared_runs() if "fsdp_qlora under FSDP" in c.run}
    (allocated,) = [c for (what, _), c in runs.items() if what == "allocated"]
    assert abs(allocated.error) <= 0.002  # cuBLAS's workspaces seem not to be in it
    reserved = [c for (what, _), c in runs.items() if what == "reserved"]
    assert len(reserved) == 6
    assert all(c.error == 0 for c in reserved), [c.run for c in reserved if c.error]


@pytest.mark.parametrize("zero", [2, 3])
def test_every_number_is_explained(zero):
    plan = plan_of(zero=zero, adapter="qlora")
    checked(Book(plan, evaluate(plan)))
