"""Structure: everything that decides which tensors exist, and no size."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.model import Traits


@dataclass(frozen=True, slots=True)
class Structure:
    """A family with its traits and kinds of layer, and the words of a plan that choose kernels.

    dtype   of the weights that the operations read; autocast: cast to bf16 as they go
    """

    family: str
    traits: Traits
    kinds: tuple[str, ...]
    attention: str
    kernels: str
    cross_entropy: str
    dtype: str
    autocast: bool
