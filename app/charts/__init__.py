"""Charts: what the pages draw, in Plotly's words."""

from __future__ import annotations

from app.charts.accuracy import residuals as residuals
from app.charts.explore import mapped as mapped
from app.charts.explore import swept as swept
from app.charts.levers import waterfall_bytes as waterfall_bytes
from app.charts.levers import waterfall_seconds as waterfall_seconds
from app.charts.memory import memory_by_consumer as memory_by_consumer
from app.charts.memory import over_time as over_time
from app.charts.memory import shown_stages as shown_stages
from app.charts.memory import strip as strip
from app.charts.memory import timeline as timeline
from app.charts.search import search_results as search_results
from app.charts.serve import serving_memory as serving_memory
from app.charts.serve import together as together
from app.charts.tiers import tiers as tiers
from app.charts.time import compared_phases as compared_phases
from app.charts.time import roofline as roofline
from app.charts.time import stages as stages
from app.charts.time import step_phases as step_phases
from app.charts.time import step_time as step_time
