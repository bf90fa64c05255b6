"""What an optimizer step reads and writes of gradients under Megatron, besides the update."""

import pytest

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan


def optimizer_bytes(**train):
    words = {"framework": "megatron", "kernels": "megatron", "zero": 1, "checkpointing": "none"}
    plan = Plan(model="llama-3-8b", cluster={"gpus": 8}, train=words | train)
    report = evaluate(plan)
    (step,) = (o for o in report.time.operations if o.phase == "optimizer")
    return report.parameters, step.hbm_bytes


@pytest.mark.parametrize(("in_fp32", "wide"), [(True, 4), (False, 2)])
def test_every_gradient_is_cleared_checked_and_divided_and_those_of_a_rank_clipped(in_fp32, wide):
    """param_and_grad_buffer.py and clip_grads.py of Megatron-Core: four times the whole buffer. Of
    the eighth that a rank updates: weights (2 bytes), masters and moments (12) are read and
    written, gradients read for the norm, scaled and read, and widened before where in 16 bits."""
    parameters, moved = optimizer_bytes(grad_reduce_in_fp32=in_fp32)
    own = 2 * 14 + 3 * 4 + (4 if in_fp32 else 2 + 2 * 4)
    assert moved == pytest.approx(parameters * (4 * wide + own / 8), rel=0.01)


def test_others_read_their_gradients_once():
    parameters, moved = optimizer_bytes(framework="fsdp2", zero=3, kernels="hf")
    assert moved == pytest.approx(parameters / 8 * (2 * 12 + 4), rel=0.01)
