"""What a row of evidence has of its plan: the part of the Report that it is about, without the rest
of it; and the words of its Comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memcore.evidence.comparison import MEASURED, Comparison
from memcore.models.counts import parameters
from memcore.plan.plan import Plan
from memcore.report import Memory, Time
from memcore.training.training import Training
from memcore.units import count_text


def training_of(plan: Plan) -> Training:
    """Its training step."""
    found = Training.of(plan)
    assert found, "a row of evidence is about a plan whose training is computed"
    return found


def memory_of(plan: Plan) -> Memory:
    """Memory of its training step."""
    return training_of(plan).memory


def time_of(plan: Plan) -> Time:
    """Time of its training step."""
    return training_of(plan).time()


def of_run(
    run: Mapping[str, Any],
    plan: Plan,
    what: str,
    theirs: float,
    ours: float,
    unit: str,
    **more: Any,
) -> Comparison:
    """A measured run beside ours: what its table and its plan say of it, and `more`."""
    return Comparison(
        source=MEASURED,
        model=_named(plan),
        what=what,
        theirs=theirs,
        ours=ours,
        unit=unit,
        family=plan.architecture.family,
        gpus=plan.cluster.gpus,
        used_for=run["used_for"],
        run=run["run"],
        confidence=run["confidence"],
        remark=run.get("remark", ""),
        **more,
    )


def _named(plan: Plan) -> str:
    """The model of a run: a preset's label; of a config of its own its family and size."""
    model = plan.architecture
    if isinstance(plan.model, str):
        return model.label
    return f"{model.family}, {count_text(parameters(model))} parameters"


def of_training(plan: Plan) -> dict[str, Any]:
    """The words of a Comparison that a training step has."""
    t = plan.train
    return {
        "regime": f"{t.framework}, {t.precision}",
        "attention": t.attention,
        "checkpointing": t.checkpointing,
        "batch": t.micro_batch,
        "seq_len": t.seq_len,
    }
