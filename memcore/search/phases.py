"""What frees memory where one trains and serves on the same GPUs: one change each, against the
fullest phase of a step. Each is the difference of two evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memcore.evaluate import evaluate
from memcore.plan.field import SAME
from memcore.plan.plan import Plan, facts, field_paths, get
from memcore.plan.repair import planned
from memcore.report import VERDICTS, Report
from memcore.search.change import Changes, PlanChange, climbed, in_order, named
from memcore.search.levers import levers, meant

TOGETHER, KIND, NONE = "together.", "together.kind", "none"
SHARE, STEP = "serve.memory_utilization", 0.05  # how finely a smaller share is looked for
RANKS = "together.engine_tp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relief(PlanChange):
    """One change that leaves the training as it is, against the plan as it is.

    saved_bytes    of device memory in the fullest phase, at most
    cache_tokens   that an engine's cache then holds; `added_tokens` more than before
    added_seconds  per training step
    """

    saved_bytes: int
    cache_tokens: int
    added_tokens: int
    added_seconds: float
    verdict: str

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"


def reliefs(plan: Plan) -> tuple[Relief, ...]:
    """What frees memory in the fullest phase. What fits comes first, and of it what costs least of
    a training step, then what leaves the engine the largest cache; of what does not fit, what frees
    most. Nothing where a plan does not do both."""
    now = evaluate(plan)
    if now.together is None:
        return ()
    changes = [relief for parts in _ladders(plan, now) if (relief := _climbed(plan, now, parts))]
    return in_order(changes, _group, _in_group, lambda _: None)


def _group(r: Relief) -> tuple[int, ...]:
    return (VERDICTS.index(r.verdict),)


def _in_group(r: Relief) -> tuple[float, ...]:
    costs = (round(r.added_seconds, 6), -r.cache_tokens)
    return costs if r.fits else (-r.saved_bytes, *costs)


Parts = Sequence[Changes]  # of one step of a ladder: one change, or those of two at once


def _ladders(plan: Plan, now: Report) -> Iterator[Sequence[Parts]]:
    """What is tried, step by step, that which costs least first."""
    for path in field_paths():
        words = facts(path).words
        if path.startswith(TOGETHER) and path != KIND and words and meant(plan, path):
            here = get(plan, path)
            # Without a model that scores, the training is another.
            others = [word for word in words if NONE not in (word, here) and word != here]
            yield [[{path: word}] for word in others]
    share = now.serve.memory_share if now.serve else 0.0
    yield [[{SHARE: round(share - n * STEP, 2)}] for n in range(1, int(share / STEP))]
    tp = plan.together.engine_tp
    yield [[{RANKS: tp << n}] for n in range(1, 4) if tp << n <= plan.gpus_per_domain]
    for lever in levers(plan):
        if lever.kind == SAME:
            head, *more = ({path: lever.changes[path]} for path in lever.fields)
            rest = {p: v for p, v in lever.changes.items() if p not in lever.fields}
            yield [[head | rest, *more]]


def _climbed(plan: Plan, now: Report, ladder: Sequence[Parts]) -> Relief | None:
    best = climbed(
        range(len(ladder)),
        lambda i: _relief(plan, now, ladder[i]),
        lambda relief: relief.saved_bytes > 0,
        lambda relief: relief.fits,
    )
    return best[1] if best else None


def _relief(plan: Plan, now: Report, parts: Parts) -> Relief | None:
    there = planned(plan, {path: value for part in parts for path, value in part.items()})
    after = evaluate(there) if there else None
    before, both = now.together, after.together if after else None
    if not (there and after and before and both and now.time and after.time):
        return None
    return Relief(
        **named(parts, plan, there),
        saved_bytes=before.device_bytes[1] - both.device_bytes[1],
        cache_tokens=both.kv_capacity_tokens,
        added_tokens=both.kv_capacity_tokens - before.kv_capacity_tokens,
        added_seconds=after.time.step_seconds - now.time.step_seconds,
        verdict=both.verdict,
    )
