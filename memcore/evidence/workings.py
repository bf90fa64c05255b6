"""Sizes of a plan's dimensions, and what to change first where memory runs out."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from memcore.evidence.comparison import text
from memcore.plan.plan import Plan
from memcore.tape.dims import DIMENSIONS
from memcore.training.steps import training_sizes


@functools.cache
def first_fixes() -> Sequence[Mapping[str, Any]]:
    """Plans that run out of memory, and what those who know would change first, with the reason."""
    found: Sequence[Mapping[str, Any]] = tomllib.loads(text("first_fixes.toml"))["plan"]
    return found


def sizes(plan: Plan) -> Mapping[str, int]:
    """The value of every dimension and axis under a plan; 0 of layers that its model has not."""
    return dict.fromkeys(DIMENSIONS, 0) | training_sizes(plan)
