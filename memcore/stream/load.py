"""Load: the same stream at one arrival rate after another, up to more than the server can take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memcore.evaluate import evaluate
from memcore.plan.plan import Plan
from memcore.serving.cache import places
from memcore.serving.serve import most_requests
from memcore.stream.clock import Clock
from memcore.stream.lengths import Lengths, draw
from memcore.stream.simulation import Run, run
from memcore.words.serving import KV_CACHES

REQUESTS = 400  # of each rate, or as many as the plan's stream has
SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)  # of what it can take
ENOUGH = 0.99  # of all requests within the plan's targets


@dataclass(frozen=True, slots=True)
class Load:
    """One arrival rate, in requests per second, and the simulated run at that rate."""

    rate: float
    run: Run

    def row(self) -> dict[str, Any]:
        return {"rate": self.rate, **self.run.row()}


def own(plan: Plan) -> str:
    """The strategy of the plan's own cache."""
    return "paged" if KV_CACHES[plan.cache_manager].pages else "max"


def loads(
    plan: Plan,
    lengths: Lengths | None = None,
    shares: Sequence[float] = SHARES,
    steps: float = math.inf,
) -> tuple[Load, ...]:
    """The plan's stream against its arrival rate: requests come at random, or equally far apart,
    at shares of what the server takes in steady state. () where it serves none.

    steps   of the simulation, of all rates together; a rate is cut short after twice its share
    """
    report = evaluate(plan)
    if report.serve is None or plan.architecture.encoder_decoder:
        return ()
    count = min(plan.serve.requests, REQUESTS)
    slots, clock = places(plan, report.serve), Clock.of(plan)

    def streamed(**words: Any) -> Run:
        serve = plan.serve.model_copy(update={"requests": count, **words})
        asked = plan.model_copy(update={"serve": serve})
        return run(asked, own(plan), draw(asked, lengths), clock, slots, 2 * steps / len(shares))

    most = most_requests(plan, report.serve)
    if not most:
        return ()
    arrivals = "regular" if plan.serve.arrivals == "regular" else "poisson"
    rates = [most * share for share in shares]
    return tuple(Load(r, streamed(arrivals=arrivals, arrival_rate=r)) for r in rates)


def sustained(found: Sequence[Load]) -> float | None:
    """The highest of the rates up to which nearly all requests are within the plan's targets; None
    where it has none, or even the lowest misses them."""
    best = None
    for load in found:
        if load.run.attained is None or load.run.attained < ENOUGH:
            break
        best = load.rate
    return best
