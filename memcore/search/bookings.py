"""Bookings: on which accelerators a plan is trained, and on how few of each.

A booking is a kind of GPU and a number of them; all else of the plan stays as it is, its
micro-batch and accumulation too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from memcore.kept import seldom_collected
from memcore.models import catalog
from memcore.plan.plan import Plan
from memcore.search.choices import price_of
from memcore.search.fitting import Within, planned
from memcore.search.solver import bookable
from memcore.training.run import HOUR, run_of
from memcore.training.training import Pool, Training

MOST_GPUS = 4096  # of one booking


@dataclass(frozen=True, slots=True)
class Booking:
    """One way to train.

    gpu, gpus         a preset's name, and how many
    step_seconds      of a step, seconds of the whole run
    price             of a GPU for an hour in USD, from `source`; None where none is known
    cost              of the whole run in USD; None likewise
    headroom_bytes    of one GPU, at least
    """

    gpu: str
    gpus: int
    step_seconds: float
    seconds: float
    headroom_bytes: int
    price: float | None
    source: str
    cost: float | None
    plan: Plan


def to_train_on(plan: Plan, names: Iterable[str] = ()) -> tuple[Booking, ...]:
    """For each accelerator (without names: those that a price is known of, and the plan's) the
    fewest GPUs on which training fits, within the plan's deadline and budget; those on which no
    number does are left out. The cheapest run comes first, those without a price last."""
    pool: Pool = {}
    every = names or dict.fromkeys((*catalog.priced_gpus(), *_own(plan)))
    with seldom_collected():
        found = [b for name in every if (b := _fewest(plan, name, pool))]
    return tuple(sorted(found, key=lambda b: (math.inf if b.cost is None else b.cost, b.gpus)))


def _own(plan: Plan) -> tuple[str, ...]:
    gpu = plan.cluster.gpu
    return (gpu,) if isinstance(gpu, str) else ()


def _fewest(plan: Plan, name: str, pool: Pool) -> Booking | None:
    """The booking with the fewest GPUs of one kind, or None."""
    there = planned(plan, {"cluster.gpu": name})
    if there is None:
        return None
    counts = [n for n in bookable(there) if n <= MOST_GPUS]
    tried: dict[int, Booking | None] = {}

    def at(i: int) -> Booking | None:
        if i not in tried:
            tried[i] = _booking(plan, name, counts[i], pool)
        return tried[i]

    first = _first(len(counts), lambda i: at(i) is not None)
    return None if first is None else at(first)


def _first(n: int, ok: Callable[[int], bool]) -> int | None:
    """The first of n that is ok, if all behind it are: by doubling, and then by halving."""
    ends: Sequence[int] = [
        *itertools.takewhile(lambda i: i < n - 1, (2**k - 1 for k in itertools.count())),
        *([n - 1] if n else []),
    ]
    high = next((i for i in ends if ok(i)), None)
    if high is None:
        return None
    low = max((i for i in ends if i < high), default=-1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ok(middle) else (middle, high)
    return high


def _booking(plan: Plan, name: str, gpus: int, pool: Pool) -> Booking | None:
    """So many GPUs of a kind, where training fits and keeps to what the run may take."""
    there = planned(plan, {"cluster.gpu": name, "cluster.gpus": gpus})
    training = Training.of(there, rows=False, pool=pool) if there else None
    if there is None or training is None or not training.room.fits:
        return None
    time = training.time()
    run = run_of(there, time)
    price, source = price_of(plan, name)
    cost = None if price is None else run.seconds * gpus / HOUR * price
    within = Within(plan.run.target_days, plan.run.target_cost)
    if within.missed(run.seconds, cost):
        return None
    return Booking(
        name, gpus, time.step_seconds, run.seconds, training.room.bytes, price, source, cost, there
    )  # fmt: skip
