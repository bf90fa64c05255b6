"""Bandwidths between accelerators, and optimizer steps on hosts, that others measured
(presets/evidence/links.toml)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from typing import Any

from evidence.planned import of_run, time_of
from memcore.evidence.comparison import Comparison, text
from memcore.plan.plan import Plan
from memcore.timing.communication import Links

PAIR = "one to the next"
ON_HOST = "optimizer step on the host"
LINK_TOLERANCE = 0.1
HOST_TOLERANCE = 0.3


@functools.cache
def links_table() -> Mapping[str, Any]:
    """`runs`, as the file has them."""
    return tomllib.loads(text("links.toml"))


@functools.cache
def compared_links() -> tuple[Comparison, ...]:
    """Every measured bandwidth and host step beside ours."""
    return tuple(map(compared_link, links_table()["runs"]))


def compared_link(run: Mapping[str, Any]) -> Comparison:
    plan = Plan.of(run["plan"])
    if run["what"] == ON_HOST:
        ours = next(t.seconds for t in time_of(plan).transfers if t.link == "dram")
        return of_run(run, plan, ON_HOST, run["value"], ours, "seconds", tolerance=HOST_TOLERANCE)
    moved = run["moved"]
    over = Links.of(plan, plan.parallel.tp)
    if run["what"] == PAIR:
        ours = moved / max(over.send(moved).values())
    else:  # nccl-tests, doc/PERFORMANCE.md: an all-reduce moves 2 (n - 1) / n of its bytes
        ours = 2 * moved * (over.ranks - 1) / over.ranks / max(over.reduce(moved).values())
    what = f"{run['what']} bandwidth"
    return of_run(run, plan, what, run["value"], ours, "B/s", tolerance=LINK_TOLERANCE)
