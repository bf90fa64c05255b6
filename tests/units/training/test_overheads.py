"""What no shape determines: NCCL's buffers by groups of ranks."""

import pytest

from memcore.evaluate import evaluate
from memcore.hardware import constants
from memcore.plan.plan import Plan
from memcore.units import MiB

MEGATRON = {"framework": "megatron", "kernels": "megatron", "attention": "flash", "zero": 1}

# src/include/device.h of NCCL: lines or elements of a thread, threads, steps, bytes of each.
LL, LL128, SIMPLE = 8 * 512 * 8 * 16, 120 * 640 * 8 * 8, 4 * MiB
PAGE = 2 * MiB


def connection():
    """Bytes of one channel's connection (src/transport/p2p.cc): who receives has all buffers, who
    sends a page."""
    return PAGE + -(-(LL + LL128 + SIMPLE) // PAGE) * PAGE


def test_a_group_s_buffers_are_as_large_as_its_channels_connections():
    """Four A100: 24 channels, one to three connections each."""
    assert connection() == 12 * MiB
    assert constants.NCCL_GROUP.low == 2 * connection()
    for measured in (544 * MiB, 688 * MiB):
        assert 24 * connection() <= measured <= 3 * 24 * connection()
        assert measured <= constants.NCCL_GROUP.high


@pytest.mark.parametrize(
    ("gpus", "parallel", "groups"),
    [
        (1, {}, 0),
        (8, {}, 0),  # all GPUs are one group
        (8, {"tp": 8}, 0),
        (8, {"tp": 2}, 2),  # tensor-parallel ranks, data-parallel ones, and all
        (8, {"tp": 2, "pp": 2}, 3),
        (8, {"cp": 2}, 2),
        (8, {"tp": 2, "cp": 4}, 3),
    ],
)
def test_each_kind_of_parallelism_has_a_group(gpus, parallel, groups):
    plan = Plan.of({"model": "llama-3.2-1b", "cluster": {"gpus": gpus}, "parallel": parallel,
                    "train": MEGATRON})  # fmt: skip
    of = {o.name: (o.low, o.high) for o in evaluate(plan).memory.overheads}
    c = constants.NCCL_GROUP
    assert of.get(c.name, (0, 0)) == (c.low * groups, c.high * groups)
    assert (constants.NCCL_BUFFERS.name in of) == (gpus > 1)


@pytest.mark.parametrize(
    ("gpus", "parallel", "groups"),
    [
        (8, {}, 1),  # data-parallel ranks, and all
        (8, {"tp": 8}, 2),  # Megatron's, those that norms are summed over, and all
        (8, {"tp": 2}, 3),
        (8, {"pp": 2}, 5),  # replicas, stages, the neighbour, the table's, those of norms, all
        (8, {"tp": 2, "pp": 2}, 7),
    ],
)
def test_deepspeed_s_pipelines_have_groups_of_their_own(gpus, parallel, groups):
    """Counted in runtime/pipe/topology.py, p2p.py and module.py, and megatron/mpu/initialize.py."""
    plan = Plan.of({"model": "llama-3.2-1b", "cluster": {"gpus": gpus}, "parallel": parallel,
                    "train": MEGATRON | {"attention": "eager"}})  # fmt: skip
    of = {o.name: (o.low, o.high) for o in evaluate(plan).memory.overheads}
    c = constants.NCCL_GROUP
    assert of[c.name] == (c.low * groups, c.high * groups)


def test_a_context_may_hold_every_kernel_where_the_run_may_be_older_than_lazy_loading():
    eager, flash = (
        {
            o.name: o.high
            for o in evaluate(Plan.of({"train": MEGATRON | {"attention": a}})).memory.overheads
        }
        for a in ("eager", "flash")
    )
    assert eager[constants.CONTEXT_WHOLE.name] == constants.CONTEXT_WHOLE.high > 1e9
    assert flash[constants.CUDA_CONTEXT.name] == int(constants.CUDA_CONTEXT.high)
