"""A dtype that a chip lacks runs as what it really runs as, and the report says so."""

import pytest

from memcore.evaluate import evaluate
from memcore.models import catalog
from memcore.plan.plan import Plan


def plan(gpu, precision="bf16-mixed", weights="bf16"):
    return Plan(
        model="llama-3.2-1b",
        cluster={"gpu": gpu, "gpus": 1},
        train={"precision": precision, "seq_len": 1024},
        serve={"weight_dtype": weights},
    )


# Datasheet rates of the units that do the work, and where the chip's own documentation says so.
RATES = {
    ("v100-sxm-32gb", "bf16"): 15.7e12,  # tensor cores have bf16 from compute capability 8.0 on
    ("t4-16gb", "bf16"): 8.1e12,
    ("p100-16gb", "bf16"): 9.3e12,
    ("tpu-v5e-16gb", "fp32"): 197e12 / 6,  # six products of bf16, XLA's highest precision
    ("tpu-v5p-95gb", "fp32"): 459e12 / 6,
    ("tpu-v6e-32gb", "fp32"): 918e12 / 6,
    ("h100-sxm-80gb", "fp4"): 989.4e12,  # weights alone are in 4 bits
    ("a100-sxm-80gb", "fp4"): 312e12,
    ("a100-sxm-80gb", "fp8"): 312e12,
    ("v100-sxm-32gb", "fp8"): 125e12,
    ("mi355x-288gb", "tf32"): 157.3e12,  # PyTorch's fp32 without TF32
    ("h100-sxm-80gb", "int8"): 1978.9e12,  # its own
}


@pytest.mark.parametrize(("gpu", "dtype"), RATES)
def test_the_rate_is_that_of_the_units_that_run_it(gpu, dtype):
    assert catalog.accelerator(gpu).peak_flops(dtype) == pytest.approx(RATES[gpu, dtype])


@pytest.mark.parametrize("gpu", ["v100-sxm-32gb", "t4-16gb", "p100-16gb"])
def test_bf16_before_ampere_is_no_faster_than_fp32_and_says_so(gpu):
    bf16, fp16, fp32 = (
        evaluate(plan(gpu, p)) for p in ("bf16-mixed", "fp16-mixed", "fp32")
    )  # fmt: skip
    assert bf16.time.resources["compute"] == pytest.approx(fp32.time.resources["compute"], rel=0.2)
    assert bf16.time.resources["compute"] > 1.3 * fp16.time.resources["compute"]
    said = [n for n in bf16.notes if "no units for bf16" in n]
    assert [n.partition(":")[0] for n in said] == ["Training", "Serving"]
    assert "vLLM refuses" in said[1]
    assert not [n for n in fp16.notes if n.startswith("Training") and "no units" in n]


def test_fp32_on_a_tpu_takes_several_products_and_says_so():
    wide, narrow = (evaluate(plan("tpu-v5p-95gb", p)) for p in ("fp32", "bf16-mixed"))
    ratio = wide.time.resources["compute"] / narrow.time.resources["compute"]
    assert ratio == pytest.approx(6, rel=0.35)
    assert any("6 of bf16" in n for n in wide.notes)


@pytest.mark.parametrize(
    ("gpu", "weights"), [("h100-sxm-80gb", "nvfp4"), ("a100-sxm-80gb", "fp8"), ("l4-24gb", "nvfp4")]
)
def test_narrow_weights_before_their_units_run_at_the_rate_of_16_bits(gpu, weights):
    narrow, wide = evaluate(plan(gpu, weights=weights)), evaluate(plan(gpu))
    assert narrow.serve.ttft_seconds == pytest.approx(wide.serve.ttft_seconds, rel=0.25)
    assert any("widened" in n for n in narrow.notes)
    assert not any("widened" in n for n in wide.notes)


def test_a_chip_with_the_units_says_nothing():
    report = evaluate(plan("b200-sxm-180gb", weights="nvfp4"))
    assert not any("no units" in note for note in report.notes)
