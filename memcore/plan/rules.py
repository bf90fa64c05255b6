"""Rules: combinations that cannot exist, each written once.

Plan raises their messages, with the remedies. They stand by what they are of: a framework, a model,
a server, and sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from memcore.errors import Issue
from memcore.models.model import Model
from memcore.plan import framework_rules, model_rules, serving_rules
from memcore.plan.sizes import SIZE_RULES

if TYPE_CHECKING:
    from memcore.plan.plan import Plan


def broken_rules(
    plan: Plan, model: Model | None, asked: Collection[int] | None = None
) -> list[Issue]:
    """Every rule this plan breaks; without a model, those that do not need one. `asked`: which
    places of RULES are asked, where the others are known to hold."""
    rules = RULES if asked is None else [RULES[n] for n in sorted(asked)]
    return [issue for broken_by in rules for issue in broken_by(plan, model)]


def readers_of(plan: Plan) -> dict[str, set[int]]:
    """The places of RULES that read a field of a plan, by the field's path."""
    found: dict[str, set[int]] = {}
    for n, rules in enumerate(RULES):
        read: set[str] = set()
        for _ in rules(cast("Plan", _Recorded(plan, read)), plan.architecture):
            pass
        for path in read:
            found.setdefault(path, set()).add(n)
    return found


OF_GPU = ("cluster.gpu", "cluster.gpu_share", "cluster.taken_gib")
# What says what a plan's hardware is: fields that are read where this is.
READ_OF = {
    "accelerator": OF_GPU,
    "node": (
        *OF_GPU,
        *(
            f"cluster.{name}"
            for name in ("gpus", "gpus_per_node", "node", "network_gbits", "dram_gib")
        ),
    ),
}


OF_HARDWARE = frozenset(READ_OF["node"])


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A plan, or its section, that notes which fields are read; of its hardware every field that
    says what that is. What its model is, is not noted."""

    of: Any
    read: set[str]
    section: str = ""

    def __getattr__(self, name: str) -> Any:
        declared = getattr(type(self.of), name, None)
        if self.section or declared is None:
            value = getattr(self.of, name)
            if isinstance(value, BaseModel):
                return _Recorded(value, self.read, f"{name}.")
            self.read.add(f"{self.section}{name}")
            return value
        if name in ("architecture", "accelerator", "node"):
            self.read.update(READ_OF.get(name, ()))
            return getattr(self.of, name)
        compute = getattr(declared, "fget", None) or getattr(declared, "func", declared)
        return compute(self) if compute is not declared else partial(compute, self)


def _size_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """What the sizes must hold."""
    if model is None:
        return
    try:
        sizes = plan.sizes()
    except KeyError:  # an unknown preset of hardware, which is reported on its own
        return
    yield from (rule.issue(sizes) for rule in SIZE_RULES if not rule.holds(sizes))


RULES: tuple[Callable[[Plan, Model | None], Iterable[Issue]], ...] = (
    framework_rules.framework_rules,
    framework_rules.recompute_rules,
    framework_rules.module_recompute_rules,
    framework_rules.graph_rules,
    framework_rules.eight_bit_rules,
    framework_rules.unit_rules,
    framework_rules.aware_rules,
    framework_rules.float8_rules,
    model_rules.module_rules,
    model_rules.adapter_rules,
    model_rules.embedding_rules,
    model_rules.frozen_rules,
    model_rules.average_rules,
    model_rules.reference_rules,
    framework_rules.deepspeed_rules,
    framework_rules.prediction_rules,
    framework_rules.parallel_rules,
    framework_rules.offload_rules,
    serving_rules.replica_rules,
    serving_rules.stored_rules,
    serving_rules.serving_rules,
    serving_rules.draft_rules,
    serving_rules.state_rules,
    serving_rules.memory_rules,
    framework_rules.host_rules,
    serving_rules.together_rules,
    serving_rules.stream_rules,
    model_rules.model_rules,
    _size_rules,
)
