"""Fitting: whether a plan fits, for who asks it of many plans."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.plan.plan import Plan
from memcore.report import VERDICTS
from memcore.search.solve import ANY, Targets, serving_limit
from memcore.serving.serve import servable
from memcore.together.together import together
from memcore.training.training import Training
from memcore.units import DAY


def training_verdict(plan: Plan) -> str | None:
    """'fits', 'tight' or 'over', of what `evaluate` says of training and of what runs on the same
    GPUs; None where training is not planned."""
    training = Training.of(plan, rows=False)
    if training is None:
        return None
    verdicts = [training.room.verdict]
    if plan.together.kind != "none" and (
        both := together(plan, training.step, training.amounts, training.memory)
    ):
        verdicts.append(both.verdict)
    return max(verdicts, key=VERDICTS.index)


def limit_of(plan: Plan | None, serves: bool, targets: Targets = ANY) -> str:
    """What keeps a plan from doing what it is asked to: 'rule' (it is no plan), 'memory', 'ttft',
    'tpot', 'kind' (that cannot be planned), or ''. `serves`: whether serving is asked about."""
    if plan is None:
        return "rule"
    verdict = None if serves else training_verdict(plan)
    if verdict is not None:
        return "" if verdict == "fits" else "memory"
    return serving_limit(plan, targets) if servable(plan.architecture) else "kind"


WITHIN = ("run.target_days", "run.target_cost")


@dataclass(frozen=True, slots=True)
class Within:
    """What a whole run may take at most; 0: anything.

    days, cost   its time and its cost (run.target_days, run.target_cost); cost counts where the
                 plan has a price
    """

    days: float
    cost: float

    @classmethod
    def of(cls, plan: Plan) -> Within:
        """As the plan says."""
        run = plan.run
        return cls(run.target_days, run.target_cost if run.price_per_gpu_hour else 0.0)

    @property
    def limits_anything(self) -> bool:
        return bool(self.days or self.cost)

    def missed(self, seconds: float, cost: float | None) -> str:
        """'days' or 'cost', where a run takes more than that; else ''."""
        if self.days and seconds > self.days * DAY:
            return "days"
        return "cost" if self.cost and cost is not None and cost > self.cost else ""
