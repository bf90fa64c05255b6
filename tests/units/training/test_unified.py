"""Where memory is unified, the host's share and the GPU's are of the same bytes."""

import pytest
from explained import checked

from memcore.evaluate import evaluate
from memcore.explain import Book
from memcore.plan.plan import Plan

UNIFIED = ["m4-max-36gb", "dgx-spark-gb10-128gb", "jetson-orin-nano-8gb"]


def plan_of(gpu, **train):
    words = {
        "framework": "pytorch",
        "zero": 0,
        "precision": "bf16-pure",
        "cross_entropy": "chunked",
    }
    words |= {"seq_len": 256, "kernels": "liger", **train}
    return Plan.of({"model": "smollm2-135m", "cluster": {"gpu": gpu, "gpus": 1}, "train": words})


@pytest.mark.parametrize("gpu", UNIFIED)
def test_a_loader_s_batches_need_no_memory_of_the_host_s_own(gpu):
    plan = plan_of(gpu, loader_workers=2, loader_pin_memory=True)
    memory = evaluate(plan).memory
    assert memory.tiers["dram"] > 0 == plan.node.dram_bytes
    assert memory.verdict == "fits"
    assert memory.tier_capacities["dram"] == memory.capacity_bytes - memory.device_bytes[0]
    checked(Book(plan, evaluate(plan)))
