"""Fitting: whether a plan fits, for who asks it of many plans."""

from __future__ import annotations

from memcore.errors import PlanError
from memcore.plan.plan import Plan
from memcore.report import VERDICTS
from memcore.search.solve import ANY, Targets, serving_limit
from memcore.serving.serve import servable
from memcore.together.together import together
from memcore.training.training import Pool, Training


def training_verdict(plan: Plan, pool: Pool | None = None) -> str | None:
    """'fits', 'tight' or 'over', of what `evaluate` says of training and of what runs on the same
    GPUs; None where training is not planned."""
    training = Training.of(plan, rows=False, pool=pool)
    if training is None:
        return None
    found = [training.memory.verdict]
    if both := together(plan, training.step, training.amounts, training.memory):
        found.append(both.verdict)
    return max(found, key=VERDICTS.index)


def limit_of(plan: Plan | None, serves: bool, targets: Targets = ANY) -> str:
    """What keeps a plan from doing what it is asked to: 'rule' (it is no plan), 'memory', 'ttft',
    'tpot', 'kind' (that cannot be planned), or ''. `serves`: whether serving is asked about."""
    if plan is None:
        return "rule"
    verdict = None if serves else training_verdict(plan)
    if verdict is not None:
        return "" if verdict == "fits" else "memory"
    return serving_limit(plan, targets) if servable(plan.architecture) else "kind"


def planned(plan: Plan, changes: dict[str, object]) -> Plan | None:
    """The plan with these changes and no others, or None where its rules forbid them."""
    try:
        return plan.with_changes(changes)
    except PlanError:
        return None
