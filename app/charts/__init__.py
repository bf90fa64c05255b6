"""Charts: what the pages draw, as Plotly figures."""

from __future__ import annotations

from app.charts.accuracy import GROUPS, OUR_ROW, TRACKER_ROW, calculators, residuals
from app.charts.levers import waterfall_bytes, waterfall_seconds
from app.charts.memory import memory_by_consumer, timeline
from app.charts.serve import serving, together
from app.charts.tiers import tiers
from app.charts.time import roofline, stages, step_phases, step_time

__all__ = [
    "GROUPS",
    "OUR_ROW",
    "TRACKER_ROW",
    "calculators",
    "memory_by_consumer",
    "residuals",
    "roofline",
    "serving",
    "stages",
    "step_phases",
    "step_time",
    "tiers",
    "timeline",
    "together",
    "waterfall_bytes",
    "waterfall_seconds",
]
