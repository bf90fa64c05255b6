"""Charts: what the pages draw, in Plotly's words."""

from __future__ import annotations

from app.charts.accuracy import GROUPS, OUR_ROW, TRACKER_ROW, bands, calculators, residuals
from app.charts.compare import phases as compared_phases
from app.charts.explore import swept
from app.charts.levers import waterfall_bytes, waterfall_seconds
from app.charts.memory import memory_by_consumer, timeline
from app.charts.search import found
from app.charts.serve import together
from app.charts.tiers import tiers, tiers_down
from app.charts.time import roofline, stages, step_phases, step_time

__all__ = [
    "GROUPS",
    "OUR_ROW",
    "TRACKER_ROW",
    "bands",
    "calculators",
    "compared_phases",
    "found",
    "memory_by_consumer",
    "residuals",
    "roofline",
    "stages",
    "step_phases",
    "step_time",
    "swept",
    "tiers",
    "tiers_down",
    "timeline",
    "together",
    "waterfall_bytes",
    "waterfall_seconds",
]
