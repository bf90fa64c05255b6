"""Frameworks: what each one keeps, when, and what it sends; by their words in a plan."""

from memcore.frameworks.ddp import DDP
from memcore.frameworks.deepspeed import DEEPSPEED
from memcore.frameworks.framework import Framework
from memcore.frameworks.fsdp2 import FSDP2
from memcore.frameworks.megatron import MEGATRON
from memcore.frameworks.megatron_deepspeed import BF16_OPTIMIZER, ZERO_1, sums_in_fp32
from memcore.plan.plan import Plan

FRAMEWORKS = {"pytorch": DDP, "megatron": MEGATRON, "fsdp2": FSDP2, "deepspeed": DEEPSPEED}


def framework_of(plan: Plan) -> Framework:
    """How a plan's framework trains: Megatron's layers under DeepSpeed as that runs them."""
    if plan.megatron_deepspeed:
        return BF16_OPTIMIZER if sums_in_fp32(plan) else ZERO_1
    return FRAMEWORKS[plan.train.framework]


__all__ = ["FRAMEWORKS", "Framework", "framework_of"]
