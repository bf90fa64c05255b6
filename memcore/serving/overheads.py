"""Overheads: what an engine's process holds beside weights and cache."""

from __future__ import annotations

from memcore.hardware import constants
from memcore.plan.plan import Plan
from memcore.words.serving import KV_CACHES


def host_room(plan: Plan) -> int:
    """Bytes that one GPU's cache may take of its host's memory."""
    return int(plan.node.dram_bytes * plan.serve.memory_utilization) // plan.gpus_in_node


def overheads(plan: Plan) -> list[constants.Constant]:
    """What occupies a serving GPU within the budget, outside the server's control."""
    alone = plan.serving_tp * plan.serving_pp == 1
    if KV_CACHES[plan.serve.kv_cache].pages:
        found = [constants.NON_TORCH if alone else constants.NON_TORCH_GROUP]
    else:
        found = [constants.CUDA_CONTEXT] + ([] if alone else [constants.NCCL_BUFFERS])
    return found + ([constants.OS_SHARE] if plan.accelerator.shared_with_os else [])


def beside(plan: Plan) -> list[constants.Constant]:
    """What vLLM does not count as its budget's: it must fit into the rest of the GPU."""
    if not KV_CACHES[plan.serve.kv_cache].pages:
        return []
    return [constants.CUDA_CONTEXT, constants.CUDA_GRAPHS]
