"""A server that somebody benchmarked, which other plans can be read beside."""

from __future__ import annotations

import math
from dataclasses import dataclass

from memcore.errors import Issue, PlanError
from memcore.plan.plan import Plan

MOST_SECONDS = 1e5  # to a first token: 28 hours
MOST_RATE = 1e9  # tokens per second


@dataclass(frozen=True, slots=True)
class Benched:
    """What somebody measured of a server; 0 where not known.

    plan     that it ran, with the load that it ran under
    token    seconds per output token after the first, in the mean
    first    seconds to the first token, in the mean
    rate     output tokens per second of one replica, all requests together

    Raises PlanError for numbers that no server has, and where neither token, first nor rate is
    known.
    """

    plan: Plan
    token: float = 0.0
    first: float = 0.0
    rate: float = 0.0

    def __post_init__(self) -> None:
        most = {"token": MOST_SECONDS, "first": MOST_SECONDS, "rate": MOST_RATE}
        issues = [
            Issue(name, f"a measured server has from 0 (not known) to {top:,.0f} of it")
            for name, top in most.items()
            if not (math.isfinite(value := getattr(self, name)) and 0 <= value <= top)
        ]
        if not issues and not (self.token or self.first or self.rate):
            said = "a measured server says seconds per token, to the first one, or tokens a second"
            issues = [Issue("token", said)]
        if issues:
            raise PlanError(issues)
