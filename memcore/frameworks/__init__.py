"""Frameworks: what each one keeps, when, and what it sends; by their words in a plan."""

from memcore.frameworks.ddp import DDP
from memcore.frameworks.deepspeed import DEEPSPEED
from memcore.frameworks.framework import Framework
from memcore.frameworks.fsdp2 import FSDP2
from memcore.frameworks.megatron import MEGATRON

FRAMEWORKS = {"pytorch": DDP, "megatron": MEGATRON, "fsdp2": FSDP2, "deepspeed": DEEPSPEED}

__all__ = ["FRAMEWORKS", "Framework"]
