"""Memcore: where every byte of a deep-learning job goes, and what it costs in time."""

from memcore.errors import Issue, PlanError
from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.report import Report
from memcore.search.search import search
from memcore.search.servers import search_servers
from memcore.search.solver import solve
from memcore.search.sweep import sweep

__all__ = [
    "Issue",
    "Plan",
    "PlanError",
    "Report",
    "evaluate",
    "search",
    "search_servers",
    "solve",
    "sweep",
]
__version__ = "0.1.0"
