"""4-bit weights are widened by a kernel of their own before each product (bitsandbytes)."""

import pytest

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan


def time(**words):
    train = {
        "framework": "pytorch", "zero": 0, "precision": "fp16-pure", "attention": "sdpa",
        "micro_batch": 1, "seq_len": 512, "checkpointing": "full",
    }  # fmt: skip
    plan = Plan(model="tinyllama-1.1b", cluster={"gpu": "t4-16gb", "gpus": 1}, train=train | words)
    return evaluate(plan).time


# Read: half a byte, and a scale of 4 bytes for 64 weights, or of 1 byte with 4 more for 256 of
# them, whose fp32 values are written and read. Written: two bytes.
BYTES = {"qlora-single": 0.5 + 4 / 64 + 2, "qlora": 0.5 + (1 + 4 / 256 + 4) / 64 + 2}


@pytest.mark.parametrize("adapter", sorted(BYTES))
def test_its_traffic_in_forward_recompute_and_backward(adapter):
    found = [o for o in time(adapter=adapter).operations if o.name.endswith("up_proj.dequantize")]
    assert {o.phase for o in found} == {"forward", "recompute", "backward"}
    for o in found:
        weights = 2048 * 5632 * o.runs
        assert o.hbm_bytes == pytest.approx(BYTES[adapter] * weights, rel=0.03)
        assert o.flops == 0
        assert o.bound_by == "hbm"


def test_weights_of_16_bits_are_not_widened():
    assert not any("dequantize" in o.name for o in time(adapter="lora").operations)


def test_it_costs_more_the_fewer_the_tokens():
    """A step of QLoRA over one of LoRA in the same dtypes: the weights are widened however many
    tokens there are."""
    words = {"adapter_dtype": "base"}

    def ratio(tokens):
        of = [time(adapter=a, seq_len=tokens, **words).step_seconds for a in ("qlora", "lora")]
        return of[0] / of[1]

    assert ratio(128) > ratio(2048) > 1
