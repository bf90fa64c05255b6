"""Roofline: time of operations from their FLOPs and HBM traffic, and of transfers from links.

An operation takes the longer of its arithmetic and its memory traffic. Both are read off the same
tape as the memory: FLOPs as declared, traffic as the tensors it reads and writes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memcore import constants
from memcore.dims import Shape
from memcore.hardware import Accelerator, Node
from memcore.ledger import Amounts, kept_products
from memcore.policies import LAYER, OPERATIONS
from memcore.report import OperationTime
from memcore.tape import Tape


@dataclass(frozen=True, slots=True)
class Work:
    """One operation in one direction, without numbers.

    phase    'forward', 'recompute', 'backward'
    flops    (count, shape) pairs; traffic: (shape, dtype, how many such tensors)
    """

    name: str
    phase: str
    flops: tuple[tuple[float, Shape], ...]
    traffic: tuple[tuple[Shape, str, int], ...]
    attention: bool


@functools.lru_cache(maxsize=1024)
def works(
    tapes: tuple[Tape, ...], again: tuple[str, ...]
) -> tuple[tuple[Work, tuple[int, ...]], ...]:
    """The operations of some tapes and which of the tapes have each; equal ones are one.

    again   for each tape, what of it backward runs again (policies.Checkpointing)
    """
    found: dict[Work, list[int]] = {}
    for i, (tape, recompute) in enumerate(zip(tapes, again, strict=True)):
        kept = {s.made_by for s in kept_products(tape)} if recompute == OPERATIONS else set()
        for w in tape.work:
            counted: dict[tuple[Shape, str], int] = {}
            for key in w.traffic:
                counted[key] = counted.get(key, 0) + 1
            phases = [w.phase]
            if w.phase == "forward" and recompute in (OPERATIONS, LAYER) and w.name not in kept:
                phases.append("recompute")
            for phase in phases:
                work = Work(
                    w.name,
                    phase,
                    tuple(w.flops),
                    tuple((shape, dtype, n) for (shape, dtype), n in counted.items()),
                    w.name.endswith((".flash", ".sdpa")),
                )
                found.setdefault(work, []).append(i)
    return tuple((work, tuple(where)) for work, where in found.items())


@dataclass(frozen=True, slots=True)
class Speed:
    """What one accelerator really reaches: datasheet peaks times stated efficiencies."""

    matmul: float  # FLOP/s
    attention: float  # FLOP/s
    hbm: float  # B/s

    @classmethod
    def of(cls, gpu: Accelerator, dtype: str) -> Speed:
        peak = gpu.peak_flops(dtype)
        return cls(
            peak * constants.MATMUL_EFFICIENCY.middle,
            peak * constants.ATTENTION_EFFICIENCY.middle,
            gpu.memory_bandwidth * constants.HBM_EFFICIENCY.middle,
        )


def operation(
    name: str, phase: str, flops: float, traffic: float, speed: Speed, attention: bool, times: float
) -> OperationTime:
    """`times` executions of one operation."""
    compute = flops / (speed.attention if attention else speed.matmul)
    hbm = traffic / speed.hbm
    return OperationTime(
        name,
        phase,
        flops * times,
        traffic * times,
        compute * times,
        hbm * times,
        max(compute, hbm) * times,
        "compute" if compute >= hbm else "hbm",
    )


class Execution(NamedTuple):
    """One operation, run so many times."""

    work: Work
    runs: int


def executions(
    tapes: tuple[Tape, ...], counts: Sequence[int], again: tuple[str, ...] = (), times: int = 1
) -> list[Execution]:
    """The operations of some tapes, run `counts` x `times` over, by phase.

    Operations that several tapes have in common are one. `again` as in `works`; () is none.
    """
    return [
        Execution(w, times * sum([counts[i] for i in where]))
        for w, where in works(tapes, again or ("",) * len(tapes))
    ]


def run(every: Sequence[Execution], amounts: Amounts, speed: Speed) -> list[OperationTime]:
    """The time of operations, in order."""
    found = []
    for e in every:
        w = e.work
        flops = traffic = 0.0  # plain loops: this is the innermost part of an evaluation
        for count, shape in w.flops:
            flops += count * amounts.elements(shape)
        for shape, dtype, n in w.traffic:
            traffic += n * amounts.bytes(shape, dtype)
        found.append(operation(w.name, w.phase, flops, traffic, speed, w.attention, e.runs))
    return found


def seconds(operations: list[OperationTime]) -> float:
    return sum(o.seconds for o in operations)


@dataclass(frozen=True, slots=True)
class Links:
    """How fast one GPU's share of a collective moves.

    ranks        in the group, `per_node` of them in each of `nodes`
    peer         one GPU to its peers in the node, B/s one way ('nvlink' in reports)
    network      one node to the others, B/s one way
    """

    ranks: int
    per_node: int
    nodes: int
    peer: float
    network: float

    @classmethod
    def of(cls, gpu: Accelerator, node: Node, ranks: int, gpus_per_node: int) -> Links:
        per_node = min(ranks, gpus_per_node)
        share = constants.LINK_EFFICIENCY.middle
        return cls(
            ranks,
            per_node,
            -(-ranks // per_node),
            (gpu.peer_bandwidth or gpu.pcie_bandwidth) * share,
            node.network_bandwidth * share,
        )

    def gather(self, total: float) -> dict[str, float]:
        """Seconds on each link to all-gather (or reduce-scatter) `total` bytes over the group.

        A ring moves total x (n-1)/n through every GPU; between nodes that much passes the node's
        network once. Each hop of log2(n) costs a latency.
        """
        if self.ranks <= 1:
            return {}
        moved = total * (self.ranks - 1) / self.ranks
        latency = constants.COLLECTIVE_LATENCY.middle * math.log2(self.ranks)
        found = {}
        if self.per_node > 1:
            found["nvlink"] = moved / self.peer + latency if self.peer else math.inf
        if self.nodes > 1:
            found["network"] = moved / self.network + latency if self.network else math.inf
        return found

    def reduce(self, total: float) -> dict[str, float]:
        """Seconds on each link to all-reduce `total` bytes: a reduce-scatter and an all-gather."""
        return {link: 2 * s for link, s in self.gather(total).items()}
