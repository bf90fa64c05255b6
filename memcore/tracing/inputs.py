"""Inputs: what a model takes, and what a target is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memcore.errors import Issue, PlanError


@dataclass(frozen=True)
class Input:
    """One input: its dimensions, each a whole number, a name, or a number times a name as 8*height;
    its dtype as torch's word ('float' for the trace's own, 'size': no tensor but the size of its
    one dimension, 'as it is': `value`, which is no tensor); `below` what its integers are."""

    dims: tuple[str, ...]
    dtype: str = "float"
    below: int = 2
    value: Any = None


@dataclass(frozen=True)
class Target:
    """build() makes the module on the default device; `loss`: of its result and the inputs;
    `inputs`: by their names; `label`: what people call it; `source`: what it was made of;
    `others`: inputs to try where the model does not run with these; `at`: sizes of the example."""

    label: str
    source: str
    build: Callable[[], Any]
    inputs: Mapping[str, Input]
    loss: Callable[[Any, Mapping[str, Any]], Any]
    packages: tuple[str, ...] = ()
    others: tuple[Mapping[str, Input], ...] = ()
    at: Mapping[str, int] = field(default_factory=dict)


def refuse(message: str) -> PlanError:
    """An error that names the target."""
    return PlanError([Issue("target", message)])
