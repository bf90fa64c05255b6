"""Communication: what the ranks of a step send each other, over which link, and what hides it.

Ranks are numbered as Megatron does: tensor-parallel ones are neighbours, then context-parallel,
then data-parallel ones, and pipeline stages are furthest apart; ranks of experts are neighbours. So
a group's stride says how many of its ranks share a fast domain (memcore/hardware/topology.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcore.hardware import constants, topology
from memcore.tape.dims import Number, is_array, maximum, minimum, where

if TYPE_CHECKING:
    from memcore.hardware.accelerator import Accelerator
    from memcore.plan.plan import Plan
    from memcore.tape.dims import Shape


NO_SECONDS = 1e-30  # shorter than any transfer: what is divided by in place of none


@dataclass(frozen=True, eq=False)
class Cover:
    """What runs while a transfer is under way, and hides it.

    words   for people
    grows   with the micro-batch, where the weights or gradients that it hides do not
    """

    words: str
    grows: bool = False

    def __str__(self) -> str:
        return self.words


NOTHING_BEFORE = Cover("nothing: the first has no layer before it")
NOTHING_AFTER = Cover("nothing: backward is over")
NOTHING = Cover("nothing")
PRODUCT_MEANWHILE = Cover("the product that runs meanwhile")
PIECES_MEANWHILE = Cover("pieces of the product beside it")
ATTENTION_MEANWHILE = Cover("attention to the keys that are there")
CHUNK_FORWARD = Cover("another chunk's forward")
LAYER_FORWARD = Cover("the forward of the layer before", grows=True)
LAYER_BACKWARD = Cover("the backward of the layer before", grows=True)
ONE_BACKWARD = Cover("backward of one batch", grows=True)
ONE_FORWARD = Cover("forward of one batch", grows=True)
OTHER_FORWARD = Cover("half a layer's forward of another batch", grows=True)
OTHER_BACKWARD = Cover("half a layer's backward of another batch", grows=True)
ALL_BACKWARD = Cover("backward", grows=True)

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = "all-gather", "reduce-scatter", "all-reduce"
ALL_TO_ALL, SEND = "all-to-all", "send"
COPY = "copy"  # between a GPU and its host


@dataclass(frozen=True, slots=True)
class Links:
    """How fast one GPU's share of a collective moves.

    ranks        in the group, `inside` of them in each of `domains`
    peer         one GPU to the others of the group in its fast domain, B/s one way ('nvlink' in
                 reports)
    next         to the next of them alone
    wide         to all of them at once, each its own part
    network      what this group has of the network of its part of a domain, B/s one way: groups
                 side by side share it
    taken        share of a GPU's multiprocessors that a collective's kernels run on
    memory       a GPU's own, B/s as kernels reach it, of which a collective takes a part
    direct       a GPU reads the memory of any other of the group
    """

    ranks: int
    inside: int
    domains: int
    peer: float
    next: float
    wide: float
    network: float
    direct: bool
    taken: float = 0.0
    memory: float = math.inf

    @classmethod
    def of(
        cls,
        plan: Plan,
        ranks: int,
        stride: int = 1,
        reached: constants.Constant = constants.COLLECTIVE_EFFICIENCY,
    ) -> Links:
        """`stride`: how far apart neighbours of the group are numbered; `reached`: share of the
        links' bandwidth."""
        gpu, node = plan.accelerator, plan.node
        inside = max(1, min(ranks, plan.gpus_per_domain // stride))
        share = reached.middle
        whole = fast_rate(plan) * share
        joined = topology.inside(node, inside, stride, plan.cluster.gpus)
        return cls(
            ranks,
            inside,
            -(-ranks // inside),
            whole * joined.share,
            whole * joined.next / joined.links,
            whole * joined.share * joined.spread,
            plan.network_per_gpu * share * inside,
            bool(gpu.peer_bandwidth) and gpu.peer_access and joined.direct,
            taken(gpu),
            gpu.memory_bandwidth * constants.HBM_EFFICIENCY.middle,
        )

    def seconds(self, kind: str, total: float) -> dict[str, float]:
        """Seconds on each link for one collective of `total` bytes over the group."""
        if kind == ALL_REDUCE:
            return self.reduce(total)
        return self.exchange(total) if kind == ALL_TO_ALL else self.gather(total)

    def gather(self, total: float) -> dict[str, float]:
        """All-gather or reduce-scatter of `total` bytes that the group has together.

        A ring moves total x (n-1)/n through every GPU, and so does each sending its part to all
        others at once; between domains that much passes the network once. Each hop of log2(n) costs
        a latency.
        """
        moved = total * (self.ranks - 1) / self.ranks
        return self._both(moved, moved, self.peer)

    def reduce(self, total: float) -> dict[str, float]:
        """All-reduce of `total` bytes: a reduce-scatter and an all-gather."""
        return {link: 2 * s for link, s in self.gather(total).items()}

    def exchange(self, total: float) -> dict[str, float]:
        """All-to-all where every rank has `total` bytes, an equal part for each rank.

        What is for ranks of the same domain stays in it; the rest passes the network, together with
        that of the other ranks in the domain.
        """
        inside = total * (self.inside - 1) / self.ranks
        outside = total * self.inside * (self.ranks - self.inside) / self.ranks
        return self._both(inside, outside, self.wide)

    def _both(self, inside: float, outside: float, peer: float) -> dict[str, float]:
        if self.ranks <= 1:
            return {}
        latency = self.latency
        found = {}
        if self.inside > 1:
            found["nvlink"] = inside / peer + latency if peer else math.inf
        if self.domains > 1:
            found["network"] = outside / self.network + latency if self.network else math.inf
        return found

    def drawn(self, kind: str, total: float) -> float:
        """Seconds of a GPU's own memory that one collective takes: what passes through it is read
        once and written once."""
        passes = 2 if kind == ALL_REDUCE else 1
        share = 1.0 if kind == SEND else (self.ranks - 1) / self.ranks
        return 2 * passes * share * total / self.memory

    @property
    def latency(self) -> float:
        return constants.COLLECTIVE_LATENCY.middle * math.log2(self.ranks)

    def send(self, total: float) -> dict[str, float]:
        """One rank of the group to the next: the slowest such pair, which crosses a domain's border
        where there is one."""
        if self.ranks <= 1:
            return {}
        across = self.domains > 1
        link, rate = ("network", self.network) if across else ("nvlink", self.next)
        latency = constants.COLLECTIVE_LATENCY.middle
        return {link: total / rate + latency if rate else math.inf}


def taken(gpu: Accelerator) -> float:
    """Share of the multiprocessors of a GPU that the kernels of a collective run on. Chips of few
    large cores (TPUs, Trainium) have engines of their own for it."""
    kernels = constants.COLLECTIVE_SMS.middle
    return kernels / gpu.sms if gpu.sms > 2 * kernels else 0.0


def fast_rate(plan: Plan) -> float:
    """B/s one way of all fast links of one GPU: PCIe where it has no others, through the host's
    memory where its driver lets no other GPU reach its own."""
    gpu = plan.accelerator
    if not gpu.peer_bandwidth:
        return plan.node.pcie_bandwidth
    through = 1.0 if gpu.peer_access else constants.THROUGH_HOST.middle
    return gpu.peer_bandwidth * gpu.peer_payload * through


AXES = {  # how a report calls the ranks of an axis
    "TP": "tensor parallel",
    "CP": "context parallel",
    "EP": "expert parallel",
    "ETP": "expert tensor parallel",
    "DP": "data parallel",
    "EDP": "replicas of experts",
    "REPLICAS": "replicas of a shard group",
    "PP": "pipeline",
}


def group(plan: Plan, axis: str) -> tuple[int, int]:
    """Ranks of an axis, and their stride."""
    p = plan.parallel
    shards = plan.dp * p.cp  # context-parallel ranks share weights like data-parallel ones
    return {
        "TP": (p.tp, 1),
        "CP": (p.cp, p.tp),
        "DP": (p.shard_group or shards, p.tp),
        "REPLICAS": (shards // (p.shard_group or shards), p.tp * (p.shard_group or shards)),
        "ETP": (p.etp, 1),
        "EP": (p.ep, p.etp),
        "EDP": (shards * p.tp // (p.ep * p.etp), p.ep * p.etp),
        "PP": (p.pp, shards * p.tp),
    }[axis]


def links(plan: Plan, axis: str) -> Links:
    """What the ranks of an axis are connected by."""
    ranks, stride = group(plan, axis)
    return Links.of(plan, ranks, stride, reached(plan))


def reached(plan: Plan) -> constants.Constant:
    """Share of the links' bandwidth that collectives of training reach."""
    if plan.megatron_deepspeed:
        return constants.COLLECTIVE_EFFICIENCY_DEEPSPEED
    return constants.COLLECTIVE_EFFICIENCY


def placement(plan: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Axes of a plan whose ranks share a fast domain, and those that cross its border."""
    shared_out = plan.parallel.ep * plan.parallel.etp > 1
    axes = [a for a in AXES if group(plan, a)[0] > 1 and (a != "EDP" or shared_out)]
    across = tuple(a for a in axes if links(plan, a).domains > 1)
    return tuple(a for a in axes if a not in across), across


@dataclass(frozen=True, slots=True)
class Move:
    """One kind of transfer of a step.

    pieces      bytes of what is moved each time, by name
    seconds     of each time, by link; the links work side by side
    times       in a step
    cover       seconds of each time that `hidden_by` hides
    phase       'forward' or 'backward', which waits for it; '' when both are over
    kind, axis  of a collective; each piece has one of its own, but for an all-reduce
    shapes      of pieces that are no states: (elements, dtype)
    behind      (count, shape): FLOPs of what hides it; kernel: whose rate they are done at
    ways        of each piece that crosses NVMe: 'read' or 'write'
    taken       share of the multiprocessors that a collective takes while it runs
    drawn       seconds of the GPU's own memory that each time takes
    """

    name: str
    pieces: dict[str, float]
    seconds: dict[str, float]
    times: float
    cover: float
    hidden_by: Cover
    phase: str = ""
    kind: str = COPY
    axis: str = ""
    shapes: Sequence[tuple[Shape, str]] = ()
    behind: tuple[float, Shape] | None = None
    kernel: str = ""
    ways: tuple[str, ...] = ()
    taken: float = 0.0
    drawn: float = 0.0

    @property
    def bytes(self) -> float:
        return sum(self.pieces.values())

    @property
    def slowest(self) -> str:
        """The link that can be exposed."""
        return max(self.seconds, key=lambda link: self.seconds[link])

    @property
    def exposed_by_link(self) -> dict[str, Number]:
        """Of `exposed`, what stands on each link: all on the slowest, the first of equal ones."""
        longest = functools.reduce(maximum, self.seconds.values(), 0.0)
        left, found = self.exposed, {}
        for link, seconds in self.seconds.items():
            found[link] = where(seconds >= longest, left, 0.0)
            left = where(seconds >= longest, 0.0, left)
        return found

    @property
    def exposed(self) -> Number:
        """Seconds by which a step is longer for it: what nothing hides, and what the work that
        hides the rest loses: kernels of a collective take multiprocessors while they run, and
        memory bandwidth."""
        if not self.seconds:
            return 0.0
        each = functools.reduce(maximum, self.seconds.values())
        hidden = minimum(each, self.cover)
        lost = self.taken * hidden
        if is_array(self.drawn) or self.drawn:  # of arrays some may be 0, and so may `each`
            lost = lost + hidden * (self.drawn / maximum(each, NO_SECONDS))
        return (each - hidden + lost) * self.times


def collective(
    name: str,
    kind: str,
    axis: str,
    over: Links,
    pieces: dict[str, float],
    times: float,
    cover: float = 0.0,
    hidden_by: Cover = NOTHING,
    phase: str = "",
    shapes: Sequence[tuple[Shape, str]] = (),
    behind: tuple[float, Shape] | None = None,
    kernel: str = "",
) -> Move:
    """One collective for each piece, or one for all of them if they are summed."""
    if kind == ALL_REDUCE:
        spent = over.reduce(sum(pieces.values()))
    else:
        each = [over.seconds(kind, n) for n in pieces.values()]
        spent = {link: sum(e[link] for e in each) for link in (each[0] if each else ())}
    return Move(
        name, pieces, spent, times, cover, hidden_by, phase, kind, axis, shapes, behind, kernel,
        taken=over.taken, drawn=over.drawn(kind, sum(pieces.values())),
    )  # fmt: skip
