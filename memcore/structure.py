"""Structure: everything that decides which tensors exist, and no size."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.model import Traits

TENSOR, SEQUENCE = "tensor", "sequence"


@dataclass(frozen=True, slots=True)
class Structure:
    """A family with its traits, and the words of a plan that choose kernels.

    dtype      of the weights that the operations read; autocast: cast to bf16 as they go
    served     as an inference engine runs it, where transformers' training code does more
    parallel   '' or how tensor-parallel ranks share a layer: TENSOR, or SEQUENCE where norms and
               residuals are cut over them too
    exchanges  expert-parallel ranks send each other the rows of their experts
    """

    family: str
    traits: Traits
    attention: str
    kernels: str
    cross_entropy: str
    dtype: str
    autocast: bool
    served: bool = False
    parallel: str = ""
    exchanges: bool = False


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What tells layers of one model apart: its attention (model.FULL, SLIDING, ...), and which
    part of it is run again in backward (policies.Checkpointing.recompute)."""

    attention: str
    recompute: str = ""

    @property
    def label(self) -> str:
        return f"{self.attention}, recomputed" if self.recompute else self.attention
