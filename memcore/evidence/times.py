"""Times of steps measured on real GPUs by others (presets/evidence/times.toml)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from typing import Any

from memcore.evaluate import evaluate
from memcore.evidence.comparison import MEASURED, Comparison, text
from memcore.plan import Plan

STEP_TIME = "step time"
# What the issue of time asks of runs of high confidence.
TIME_MEDIAN = 0.08
TIME_TOLERANCE = 0.2
TIME_INSIDE = 0.9  # share of runs within TIME_TOLERANCE


@functools.cache
def times_table() -> Mapping[str, Any]:
    """`runs` and what is `left_out`, as the file has them."""
    return tomllib.loads(text("times.toml"))


@functools.cache
def compared_times() -> tuple[Comparison, ...]:
    """Every measured step beside ours."""
    return tuple(compared_time(run) for run in times_table()["runs"])


def compared_time(run: Mapping[str, Any]) -> Comparison:
    plan = Plan.of(run["plan"])
    time = evaluate(plan).time
    assert time, "runs are plans whose training is computed"
    t = plan.train
    return Comparison(
        source=MEASURED,
        model=plan.architecture.label,
        what=STEP_TIME,
        theirs=run["seconds"],
        ours=time.step_seconds,
        unit="seconds",
        family=plan.architecture.family,
        regime=f"{t.framework}, {t.precision}",
        attention=t.attention,
        checkpointing=t.checkpointing,
        batch=t.micro_batch,
        seq_len=t.seq_len,
        gpus=plan.cluster.gpus,
        tolerance=TIME_TOLERANCE,
        used_for=run["used_for"],
        run=run["run"],
        confidence=run["confidence"],
        remark=run.get("remark", ""),
    )
