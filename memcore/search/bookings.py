"""Bookings: on which accelerators a plan is trained, and on how few of each.

A booking is a kind of GPU and a number of them; all else of the plan stays as it is, its
micro-batch and accumulation too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from memcore.cache import seldom_collected
from memcore.models import catalog
from memcore.plan.plan import Plan
from memcore.plan.repair import planned
from memcore.search.prices import price_of
from memcore.search.solver import solve
from memcore.timing.certainty import ranked
from memcore.training.run import run_of
from memcore.training.training import Training, not_planned
from memcore.units import HOUR

MOST_GPUS = 4096  # of one booking


@dataclass(frozen=True, slots=True)
class Booking:
    """One way to train.

    gpu, gpus         a preset's name, and how many
    step_seconds      of a step, seconds of the whole run
    step_interval     in which a step lay in nine of ten that were measured
    rank              1 is the cheapest run; those that cannot be told apart by cost have the same
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
    step_interval: tuple[float, float]
    rank: int = 0


def to_train_on(plan: Plan, names: Iterable[str] = ()) -> tuple[Booking, ...]:
    """For each accelerator (without names: those that a price is known of, and the plan's) the
    fewest GPUs on which training fits, within the plan's deadline and budget; those on which no
    number does are left out. The cheapest run comes first, those without a price last."""
    every = names or dict.fromkeys((*catalog.priced_gpus(), *_own_preset(plan)))
    with seldom_collected():
        bookings = [b for name in every if (b := _fewest(plan, name))]
    bookings.sort(key=lambda b: (_cost(b), b.gpus))
    ranks = ranked([b.plan for b in bookings], list(map(_cost, bookings)))
    return tuple(replace(b, rank=rank) for b, rank in zip(bookings, ranks, strict=True))


def _cost(booking: Booking) -> float:
    return math.inf if booking.cost is None else booking.cost


def _own_preset(plan: Plan) -> tuple[str, ...]:
    gpu = plan.cluster.gpu
    return (gpu,) if isinstance(gpu, str) else ()


def _fewest(plan: Plan, name: str) -> Booking | None:
    """The booking with the fewest GPUs of one kind, or None."""
    price, source = price_of(plan, name)
    there = planned(plan, {"cluster.gpu": name, "run.price_per_gpu_hour": price or 0.0})
    if there is None or not_planned(there):
        return None
    gpus = solve(there, "cluster.gpus", most=MOST_GPUS).value
    if gpus is None:
        return None
    on = plan.with_changes({"cluster.gpu": name, "cluster.gpus": gpus})
    training = Training.planned(on, rows=False)
    time = training.time()
    seconds = run_of(on, time).seconds
    cost = None if price is None else seconds * gpus / HOUR * price
    return Booking(
        name, gpus, training.seconds, seconds, training.room.bytes, price, source, cost, on,
        time.step_interval,
    )  # fmt: skip
