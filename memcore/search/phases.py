"""What frees memory where one trains and serves on the same GPUs: one change each, against the
fullest phase of a step. Each is the difference of two evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memcore.evaluate import evaluate
from memcore.plan.field import SAME
from memcore.plan.plan import Plan, change_texts, facts, field_paths, get
from memcore.plan.repair import planned
from memcore.report import VERDICTS, Report
from memcore.search.levers import differences, levers, meant

TOGETHER, KIND, NONE = "together.", "together.kind", "none"
SHARE, STEP = "serve.memory_utilization", 0.05  # how finely a smaller share is looked for
RANKS = "together.engine_tp"


@dataclass(frozen=True, slots=True)
class Relief:
    """One change that leaves the training as it is, against the plan as it is.

    saved_bytes    of device memory in the fullest phase, at most
    cache_tokens   that an engine's cache then holds; `added_tokens` more than before
    added_seconds  per training step
    """

    label: str
    path: str
    changes: Mapping[str, Any]
    saved_bytes: int
    cache_tokens: int
    added_tokens: int
    added_seconds: float
    verdict: str
    plan: Plan

    @property
    def followers(self) -> dict[str, Any]:
        """What else is set than the field at `path`, which the label names."""
        return {path: value for path, value in self.changes.items() if path != self.path}


def reliefs(plan: Plan) -> tuple[Relief, ...]:
    """What frees memory in the fullest phase. What fits comes first, and of it what costs least of
    a training step, then what leaves the engine the largest cache; of what does not fit, what frees
    most. Nothing where a plan does not do both."""
    now = evaluate(plan)
    if now.together is None:
        return ()
    found = [relief for way in _ways(plan, now) if (relief := _first(plan, now, way))]
    return tuple(sorted(found, key=_rank))


def _rank(r: Relief) -> tuple[Any, ...]:
    first = VERDICTS.index(r.verdict)
    costs = (round(r.added_seconds, 6), -r.cache_tokens)
    return (first, *costs) if r.verdict == VERDICTS[0] else (first, -r.saved_bytes, *costs)


# Labels with their fields and plans, that which costs least first.
Way = Iterator[tuple[str, str, Plan]]


def _ways(plan: Plan, now: Report) -> Iterator[Way]:
    for path in field_paths():
        words = facts(path).words
        if path.startswith(TOGETHER) and path != KIND and words and meant(plan, path):
            own = get(plan, path)
            # Without a model that scores, the training is another.
            others = [word for word in words if NONE not in (word, own) and word != own]
            yield from (_changed(plan, path, [word]) for word in others)
    own = now.serve.memory_share if now.serve else 0.0
    yield _changed(plan, SHARE, [round(own - n * STEP, 2) for n in range(1, int(own / STEP))])
    tp = plan.together.engine_tp
    yield _changed(plan, RANKS, [tp << n for n in range(1, 4) if tp << n <= plan.gpus_per_domain])
    yield from (
        iter([(one.label, one.fields[0], one.plan)]) for one in levers(plan) if one.kind == SAME
    )


def _changed(plan: Plan, path: str, values: list[Any]) -> Way:
    for value in values:
        if there := planned(plan, {path: value}):
            yield change_texts({path: value}, ":")[0], path, there


def _first(plan: Plan, now: Report, way: Way) -> Relief | None:
    """The first of a way that fits, or else the last that frees anything."""
    best = None
    for label, path, there in way:
        relief = _relief(plan, now, there, label, path)
        best = relief or best
        if relief and relief.verdict == VERDICTS[0]:
            break
    return best


def _relief(plan: Plan, now: Report, there: Plan, label: str, path: str) -> Relief | None:
    after = evaluate(there)
    before, found = now.together, after.together
    if not (before and found and now.time and after.time):
        return None
    saved = before.device_bytes[1] - found.device_bytes[1]
    if saved <= 0:
        return None
    return Relief(
        label,
        path,
        differences(plan, there),
        saved,
        found.kv_capacity_tokens,
        found.kv_capacity_tokens - before.kv_capacity_tokens,
        after.time.step_seconds - now.time.step_seconds,
        found.verdict,
        there,
    )
