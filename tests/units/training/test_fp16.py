"""fp16 for every copy: what adapters are trained in on GPUs without bf16 (T4, V100)."""

import pytest

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan


def report(precision, gpu="t4-16gb", adapter="qlora", **train):
    words = {"framework": "pytorch", "zero": 0, "precision": precision, "adapter": adapter}
    plan = {"model": "qwen2.5-1.5b", "cluster": {"gpu": gpu, "gpus": 1}}
    return evaluate(Plan.of(plan | {"train": words | {"seq_len": 1024} | train}))


@pytest.mark.parametrize("adapter", ["none", "lora", "qlora"])
def test_it_takes_the_bytes_of_bf16(adapter):
    fp16, bf16 = (report(f"{dtype}-pure", adapter=adapter).memory for dtype in ("fp16", "bf16"))
    assert fp16.allocated_bytes == bf16.allocated_bytes
    assert fp16.consumers == bf16.consumers


def test_a_t4_has_units_for_it_and_none_for_bf16():
    fp16, bf16 = report("fp16-pure"), report("bf16-pure")
    said = "Training: NVIDIA T4 16 GB has no units for bf16"
    assert not [n for n in fp16.notes if n.startswith(said)]
    assert [n for n in bf16.notes if n.startswith(said)]
    # Attention and head are fp32 in both, as PEFT leaves them.
    assert fp16.time.resources["compute"] < bf16.time.resources["compute"] / 2
    assert fp16.time.mfu < bf16.time.mfu  # of another peak: 65 TFLOP/s, and 8.1 in fp32


def test_elsewhere_it_is_as_fast():
    fp16, bf16 = (report(f"{dtype}-pure", "h100-sxm-80gb").time for dtype in ("fp16", "bf16"))
    assert fp16.step_seconds == pytest.approx(bf16.step_seconds)
