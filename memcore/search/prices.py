"""Prices: what an hour of a GPU costs, and who says so."""

from __future__ import annotations

from memcore.models import catalog
from memcore.plan.plan import Plan


def price_of(plan: Plan, gpu: str) -> tuple[float | None, str]:
    """Of a GPU for an hour: the plan's own for its own GPU, else the lowest of a cloud."""
    if gpu == plan.gpu_name and plan.run.price_per_gpu_hour:
        return plan.run.price_per_gpu_hour, "the plan"
    rows = catalog.prices(gpu)
    if not rows:
        return None, ""
    cloud = min(rows, key=lambda c: rows[c]["usd"])
    return rows[cloud]["usd"], f"{cloud}, {rows[cloud]['as_of']}"


def own_price(plan: Plan) -> tuple[float | None, str]:
    """Of one of the plan's GPUs for an hour in USD, and from where; None where none is known."""
    return price_of(plan, plan.gpu_name)
