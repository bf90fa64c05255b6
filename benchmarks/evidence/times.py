"""Times of steps measured on real GPUs by others (presets/evidence/times.toml)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from typing import Any

from evidence import campaign
from evidence.planned import of_run, of_training, time_of
from memcore.evidence.comparison import STEP_TIME, TIME_TOLERANCE, Comparison, text
from memcore.plan.plan import Plan

# What the issue of time asks of runs of high confidence.
TIME_MEDIAN = 0.08
TIME_INSIDE = 0.9  # share of runs within TIME_TOLERANCE


@functools.cache
def times_table() -> Mapping[str, Any]:
    """`runs` and what is `left_out`, as the file has them, and the steps of our own campaign."""
    table = tomllib.loads(text("times.toml"))
    runs = [*table["runs"], *campaign.runs_of(campaign.SECONDS)]
    return table | {"runs": runs, "left_out": [*table["left_out"], *campaign.left_out()]}


@functools.cache
def compared_times() -> tuple[Comparison, ...]:
    """Every measured step beside ours."""
    return tuple(compared_time(run) for run in times_table()["runs"])


def compared_time(run: Mapping[str, Any]) -> Comparison:
    plan = Plan.of(run["plan"])
    time = time_of(plan)
    return of_run(
        run, plan, STEP_TIME, run["seconds"], time.step_seconds, "seconds",
        tolerance=TIME_TOLERANCE, **of_training(plan),
    )  # fmt: skip
