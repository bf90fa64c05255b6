"""Levers of a server: every single change to how a model is served, and what it gives and costs.

A lever's figures are those of the plan with the change, as `evaluate` says them. The dtypes and
engines that are tried are those that `search_servers` tries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from memcore.plan.field import ROUNDED, SAME
from memcore.plan.plan import Plan
from memcore.plan.repair import planned
from memcore.search.change import Changes, PlanChange, Way, in_order, named
from memcore.search.servers import RANKS, engines_of, joined, narrower, narrower_caches
from memcore.search.solve import (
    LATE,
    LIMITS,
    Targets,
    gpus_each,
    largest_concurrency,
    serving_limit,
)
from memcore.serving.serve import servable
from memcore.serving.server import Server
from memcore.timing.certainty import apart_serving
from memcore.words.engines import DEVICE
from memcore.words.serving import EAGLE, KV_CACHES, PREFILLS

# What a change leaves of the answers and of who gets them, in the order in which people try it.
FEWER = "fewer"
SERVES = {
    SAME: "answers the same",
    ROUNDED: "rounds weights or cache",
    FEWER: "serves fewer at once",
}
FULLER = 0.95  # of the GPU's memory, as vLLM's documentation suggests where the cache is short
STAGES = (2, 4, 8)  # nodes that a replica is spread over
GUESSED = 3  # tokens that a draft guesses, as vLLM's examples for such heads have it


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLever(PlanChange):
    """One change of how a plan serves.

    serves        what becomes of the answers, a word of SERVES
    limit         what still keeps it from serving what is asked, of solve.LIMITS; '' for nothing
    sequences     that a replica has room for at once
    first, each   seconds to a prompt's first token and of each after it, with first_range and
                  each_range; None where it has no room
    cost          GPU-seconds of a request, None where it has no room; price: over that of the plan,
                  less 1, None where that has none
    """

    serves: str
    limit: str
    sequences: int
    first: float | None
    first_range: tuple[float, float] | None
    each: float | None
    each_range: tuple[float, float] | None
    cost: float | None
    price: float | None

    @property
    def verdict(self) -> str:
        """What becomes of what is asked, in words."""
        return f"not all, by {LIMITS[self.limit]}" if self.limit else "serves all"


def server_levers(plan: Plan) -> tuple[ServerLever, ...]:
    """What can be changed about how a plan serves, the best first; nothing of what is not served.

    While it does not serve what is asked (so many sequences at once, within its targets), what
    makes it, then what leaves more room. When it does: what takes less of the GPUs for a request,
    then what leaves more room. Of equal ones those that answer the same come first.
    """
    if not servable(plan.architecture):
        return ()
    now = _lever(SAME, plan, (), plan, None)

    def judged(way: Way) -> ServerLever | None:
        there = planned(plan, way.ladder[0])
        return _lever(way.kind, plan, way.ladder, there, now.cost) if there else None

    ways = _ways(plan, fewer=bool(now.limit))
    return in_order(
        (lever for way in ways if (lever := judged(way)) and _helps(lever, now)),
        lambda lever: _group(lever, now),
        lambda lever: (_dear(lever), -lever.sequences),
        _dear,
        apart_serving,
    )


def _dear(lever: ServerLever) -> float:
    return math.inf if lever.cost is None else lever.cost


def _group(lever: ServerLever, now: ServerLever) -> tuple[Any, ...]:
    """What comes before a lever's price, the smallest first."""
    cheaper = lever.price is not None and lever.price < -NOTICED
    return bool(lever.limit), not (now.limit or cheaper), list(SERVES).index(lever.serves)


NOTICED = 0.005  # of a request's GPU-seconds, or of the room for sequences: less is no lever


def _helps(lever: ServerLever, now: ServerLever) -> bool:
    """Whether it serves what the plan does not, or comes nearer; where the plan does, whether it
    takes less of the GPUs or leaves more room."""
    if bool(lever.limit) != bool(now.limit):
        return not lever.limit
    if now.limit in LATE:
        before, after = ((x.each, x.first)[now.limit == "ttft"] for x in (now, lever))
        return before is not None and after is not None and after < (1 - NOTICED) * before
    roomier = lever.sequences > (1 + NOTICED) * now.sequences
    return roomier or (lever.price is not None and lever.price < -NOTICED)


def _per_request(plan: Plan) -> float | None:
    """GPU-seconds that a request takes; None where there is no room for one."""
    x, s = Server.of(plan).numbers.serve, plan.serve
    if not x.running:
        return None
    seconds = s.prompt_len * x.prompt_token_seconds + s.output_len * x.output_token_seconds
    return float(gpus_each(plan, plan.serving_tp) * seconds)


def _lever(
    serves: str, plan: Plan, changes: Sequence[Changes], there: Plan, before: float | None
) -> ServerLever:
    """A change of a plan, of which a request took so many GPU-seconds before."""
    x, cost = Server.of(there).numbers.serve, _per_request(there)
    return ServerLever(
        **named(changes, plan, there),
        serves=serves,
        limit=serving_limit(there, Targets.of(there)),
        sequences=int(x.max_concurrency),
        first=x.ttft_seconds if cost else None,
        first_range=x.ttft_range if cost else None,
        each=x.tpot_seconds if cost else None,
        each_range=x.tpot_range if cost else None,
        cost=cost,
        price=cost / before - 1 if cost and before else None,
    )


def _too_large(plan: Plan, tp: int) -> bool:
    """Whether so many ranks, all of a node, have not the memory for what is asked."""
    n = tp * plan.serving_pp
    booked = max(plan.cluster.gpus // n, 1) * n
    full = planned(plan, {"serve.tp": tp, "cluster.gpus": booked})
    return full is not None and serving_limit(full, Targets.of(full)) == "memory"


def _ways(plan: Plan, fewer: bool) -> Iterable[Way]:
    """Changes, in the order in which people try them, with what they leave of the answers. `fewer`:
    fewer sequences at once too, which a plan that serves all need not be asked for."""
    s, gpus = plan.serve, plan.cluster.gpus
    most = joined(plan)
    for tp in RANKS:
        if tp * plan.serving_pp <= most and tp != plan.serving_tp:
            more = {"cluster.gpus": tp * plan.serving_pp} if tp * plan.serving_pp > gpus else {}
            yield Way(SAME, [{"serve.tp": tp} | more])
    if fewer and _too_large(plan, tp := max(n for n in RANKS if n <= most)):
        for pp in STAGES:
            if pp > plan.serving_pp:
                booked = tp * pp * math.ceil(gpus / (tp * pp))
                yield Way(SAME, [{"serve.pp": pp, "serve.tp": tp, "cluster.gpus": booked}])
    here = Server.of(plan).numbers.serve
    if here.sequences_short and here.blocks >= s.concurrency:
        yield Way(SAME, [{"serve.max_num_seqs": int(here.blocks)}])
    if plan.share == DEVICE and Server.of(plan).numbers.serve.memory_share < FULLER:
        yield Way(SAME, [{"serve.memory_utilization": FULLER}])
    if not KV_CACHES[plan.cache_manager].pages:
        paged = (word for word, manager in KV_CACHES.items() if manager.pages)
        yield from (Way(SAME, [{"serve.kv_cache": word}]) for word in paged)
    yield from (Way(SAME, [{"serve.prefill": word}]) for word in PREFILLS if word != s.prefill)
    if not plan.drafts:
        yield Way(SAME, [{"serve.draft_model": EAGLE, "serve.draft_tokens": GUESSED}])
    if s.offload_kv != "cpu" and not KV_CACHES[plan.cache_manager].pages:
        yield Way(SAME, [{"serve.offload_kv": "cpu"}])
    engine = plan.engine
    others = (name for name in engines_of(plan.accelerator) if name != engine)
    yield from (Way(SAME, [{"serve.engine": name}]) for name in others)
    yield from (Way(ROUNDED, [{"serve.weight_dtype": word}]) for word in narrower(plan, engine))
    yield from (Way(ROUNDED, [{"serve.kv_dtype": word}]) for word in narrower_caches(plan, engine))
    if fewer and 0 < (most := largest_concurrency(plan, Targets.of(plan)).value) < s.concurrency:
        yield Way(FEWER, [{"serve.concurrency": most}])
