"""Choices: on which accelerators a model is served for so many users at once, as a table over all
of them and as a Pareto front of tokens per second and GPU against tokens per second and user.

A choice is a kind of GPU, ranks of tensor parallelism, and replicas; users are shared out evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from memcore.errors import refusal, shown
from memcore.hardware.accelerator import Accelerator
from memcore.models import catalog
from memcore.plan.plan import Plan, limits_of
from memcore.plan.repair import planned
from memcore.plan.sections import Cluster
from memcore.search import fronts
from memcore.search.solve import ANY, Answer, Miss, Targets, in_a_loop, last, serving_limit
from memcore.serving.serve import servable, serve
from memcore.serving.server import Server
from memcore.serving.time import of_running
from memcore.units import HOUR, MILLION
from memcore.words.serving import CLOSED

RANKS = (1, 2, 4, 8, 16, 32, 64)
# What a plan says of its nodes, as it is where it says nothing.
NODES = {
    f"cluster.{name}": info.default
    for name, info in Cluster.model_fields.items()
    if name not in ("gpu", "gpus")
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to serve them.

    gpu, tp, replicas   gpus: all of them together
    users               at once on one replica
    first, each         seconds to a prompt's first token, and of each after it; first_range and
                        each_range: between which eight in ten measured ones lie
    per_gpu, per_user   output tokens per second
    price               of a GPU for an hour in USD, from `source`; None where none is known
    cost_in, cost_out   USD per million tokens, as serve.cost_per_million_in and _out; None likewise
    """

    gpu: str
    tp: int
    replicas: int
    users: int
    first: float
    each: float
    first_range: tuple[float, float]
    each_range: tuple[float, float]
    per_gpu: float
    price: float | None
    source: str
    cost_in: float | None
    cost_out: float | None
    plan: Plan

    @property
    def gpus(self) -> int:
        return self.replicas * self.plan.serving_ranks

    @property
    def per_user(self) -> float:
        return 1 / self.each

    def to_dict(self) -> dict[str, object]:
        """Its figures by name, and the fields that make the asked plan this choice."""
        names = (
            *("gpu", "gpus", "tp", "replicas", "users", "per_gpu", "per_user"),
            *("first", "first_range", "each", "each_range", "price", "source"),
            *("cost_in", "cost_out"),
        )
        return {name: getattr(self, name) for name in names} | {"changes": self.changes}

    @property
    def booked(self) -> Plan:
        """The plan with all its replicas."""
        return self.plan.with_changes(self.changes)

    @property
    def changes(self) -> dict[str, object]:
        """Fields of the asked plan that make it this choice."""
        return {
            "cluster.gpu": self.gpu,
            "cluster.gpus": self.gpus,
            "serve.tp": self.tp,
            "serve.concurrency": self.users,
            "serve.arrivals": CLOSED,
        }


def table_of(
    plan: Plan, users: int = 0, targets: Targets = ANY, names: Iterable[str] = ()
) -> tuple[Choice, ...]:
    """For each accelerator the choice with the fewest GPUs that serves `users` at once (0: the
    plan's concurrency) within the targets; those that can on none are left out. The fewest GPUs
    come first, of as many the fastest. Raises PlanError where the model is not served."""
    refuse(plan, users)
    plan = in_a_loop(plan)
    users, weights = users or plan.serve.concurrency, least_bytes(plan)
    found = []
    for name in names or catalog.gpu_names():
        best: tuple[int, Server, int] | None = None
        for server in _servers(plan, name, weights):
            if best and server.plan.serving_ranks >= best[0]:
                break  # one replica has as many GPUs
            n = _most(server, users, targets)
            if not n:
                continue
            gpus = math.ceil(users / n) * server.plan.serving_ranks
            if best is None or gpus < best[0]:
                best = gpus, server, n
            if n >= users:
                break  # more ranks are more GPUs
        if best:
            found.append(_choice(plan, name, best[1], users, best[2]))
    return tuple(sorted(found, key=lambda c: (c.gpus, c.each, c.gpu)))


def fewest_for_users(plan: Plan, targets: Targets = ANY) -> Answer | None:
    """The fewest of the plan's own GPUs that serve as many at once as it says, shared out over
    replicas; None where its GPU is no preset. `limit` is what forbids a replica fewer, or where one
    is enough half of its ranks; '' of one GPU."""
    gpu, users = plan.cluster.gpu, plan.serve.concurrency
    if not isinstance(gpu, str):
        return None
    best = next(iter(table_of(plan, targets=targets, names=(gpu,))), None)
    if best and best.gpus == 1:
        return Answer("users", 1, best.booked, serve(best.booked), "")
    if best is None:
        return Answer("users", 0, plan, serve(plan), serving_limit(plan, targets) or "memory")
    fewer, tp = best.replicas - 1, best.plan.serving_tp
    each = math.ceil(users / fewer) if fewer else users
    ranks = tp if fewer else max(1, tp // 2)
    other = planned_on(in_a_loop(plan), gpu, ranks, ranks * plan.serving_pp, each)
    limit = serving_limit(other, targets) if other else "rule"
    booked = best.booked
    return Answer("users", best.gpus, booked, serve(booked), limit or "range")


def choices(
    plan: Plan, users: int = 0, targets: Targets = ANY, names: Iterable[str] = ()
) -> tuple[Choice, ...]:
    """All choices on some accelerators (without names: those that a price is known of, and the
    plan's): every number of ranks, and from the fewest replicas up to one for each user, doubled
    each time. Raises PlanError where the model is not served."""
    refuse(plan, users)
    plan = in_a_loop(plan)
    users, weights = users or plan.serve.concurrency, least_bytes(plan)
    found = []
    for name in asked_gpus(plan, names):
        for server in _servers(plan, name, weights):
            n = _most(server, users, targets)
            while n:
                found.append(_choice(plan, name, server, users, n))
                n //= 2
    return tuple(found)


def nearest(plan: Plan, targets: Targets, names: Iterable[str] = ()) -> tuple[Choice, Miss] | None:
    """Where nothing keeps to the targets: one user alone where that is least too slow, and how far
    that is; None where some choice keeps to them, or none has the memory."""
    refuse(plan)
    plan = in_a_loop(plan)
    weights = least_bytes(plan)
    best: tuple[str, Server, Miss] | None = None
    for name in names or catalog.gpu_names():
        for server in _servers(plan, name, weights):
            if not _most(server, 1, ANY):
                continue
            miss = targets.miss(of_running(server, 1).serve)
            if miss is None:
                return None
            if best is None or miss.factor < best[2].factor:
                best = name, server, miss
    return best and (_choice(plan, best[0], best[1], 1, 1), best[2])


def front(found: Sequence[Choice]) -> tuple[Choice, ...]:
    """Those that no other beats in tokens per second and GPU and in tokens per second and user;
    the fastest for a user first."""
    by_speed = sorted(found, key=lambda c: (c.gpus, c.gpu))  # of equal ones
    figured = (((-c.per_user, -c.per_gpu), c) for c in by_speed)
    return tuple(fronts.front(figured, lambda one, other: one[1].per_gpu >= other[1].per_gpu))


def refuse(plan: Plan, users: int = 0) -> None:
    """Raises PlanError for a model that is not served, and for more users than a plan says."""
    if not servable(plan.architecture):
        raise refusal("model", "it generates no text, token by token: nothing serves it")
    most = int(limits_of("serve.concurrency")[1])
    if not 0 <= users <= most:
        raise refusal("users", f"{shown(users)} is not from 1 to {most:,}")


def asked_gpus(plan: Plan, names: Iterable[str]) -> tuple[str, ...]:
    """These presets, each once; without any the plan's own, and those that a price is known of."""
    own = plan.cluster.gpu if isinstance(plan.cluster.gpu, str) else ""
    return tuple(dict.fromkeys(names or filter(None, (own, *catalog.priced_gpus()))))


def least_bytes(plan: Plan) -> float:
    """Bytes that all ranks of a replica have at least, together."""
    each = Server.of(plan).numbers.serve
    return float(each.weights_bytes - each.offloaded_bytes) * plan.serving_tp


def _servers(plan: Plan, name: str, weights: float) -> Iterator[Server]:
    """One replica on this accelerator, on each number of ranks within its fast domain or node that
    the model can be cut into, and that can hold so many bytes of weights."""
    room, one = catalog.accelerator(name).usable_bytes, None
    for tp in RANKS:
        if weights > room * tp:
            continue
        if one is not None and tp > joined(one):
            return
        one = planned_on(plan, name, tp, tp * plan.serving_pp, plan.serve.concurrency)
        if one is None or tp > joined(one):
            return
        yield Server.of(one)


def joined(plan: Plan) -> int:
    """GPUs that a replica's ranks are tried on at most: a fast domain, or a node."""
    return max(plan.gpus_per_domain, plan.gpus_per_node)


def planned_on(
    plan: Plan, name: str, tp: int, gpus: int, users: int, words: Mapping[str, str] | None = None
) -> Plan | None:
    """The plan there, with other words of serving, training as it can be on so many; None where a
    rule forbids it."""
    changes: dict[str, object] = {"cluster.gpus": gpus, "serve.tp": tp}
    changes |= {"serve.pp": plan.serving_pp, "serve.concurrency": users}
    changes |= {f"serve.{field}": word for field, word in (words or {}).items()}
    if name != plan.cluster.gpu:  # what is said of its own nodes is of no others
        changes |= NODES | {"cluster.gpu": name}
    if gpus % plan.sharing or plan.parallel.ep > 1:
        changes |= {f"parallel.{axis}": 1 for axis in ("tp", "pp", "cp", "ep")}
    return planned(plan, changes)


def _most(server: Server, users: int, targets: Targets) -> int:
    """The most of these users that one replica serves at once within the targets, or 0."""
    x = server.numbers.serve
    room = int(min(x.max_concurrency, x.step_sequences, x.sequence_limit, users))
    if targets == ANY or not room:
        return room

    def keeps(n: int) -> bool:
        now = of_running(server, n).serve
        return not targets.missed(now.ttft_seconds, now.tpot_seconds)

    return last(room, keeps) if keeps(1) else 0


def _choice(plan: Plan, name: str, server: Server, users: int, n: int) -> Choice:
    replicas = math.ceil(users / n)
    each = math.ceil(users / replicas)
    now = of_running(server, each).serve
    price, source = price_of(plan, name)
    hour = price * server.plan.serving_ranks if price else None
    a_second = None if hour is None else hour / HOUR * MILLION
    return Choice(
        name, server.plan.serving_tp, replicas, each, now.ttft_seconds, now.tpot_seconds,
        now.ttft_range, now.tpot_range, now.tokens_per_second / server.plan.serving_ranks,
        price, source,
        None if a_second is None else a_second * now.prompt_token_seconds,
        None if a_second is None else a_second * now.output_token_seconds,
        server.plan,
    )  # fmt: skip


def price_of(plan: Plan, gpu: str | Accelerator) -> tuple[float | None, str]:
    """Of a GPU for an hour: the plan's own for its own GPU, else the lowest of a cloud."""
    if gpu == plan.cluster.gpu and plan.run.price_per_gpu_hour:
        return plan.run.price_per_gpu_hour, "the plan"
    rows = catalog.prices(gpu) if isinstance(gpu, str) else {}
    if not rows:
        return None, ""
    cloud = min(rows, key=lambda c: rows[c]["usd"])
    return rows[cloud]["usd"], f"{cloud}, {rows[cloud]['as_of']}"


def own_price(plan: Plan) -> tuple[float | None, str]:
    """Of one of the plan's GPUs for an hour in USD, and from where; None where none is known."""
    return price_of(plan, plan.cluster.gpu)
