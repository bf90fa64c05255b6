"""Communication: what the ranks of a step send each other, over which link, and what hides it.

Ranks are numbered as Megatron does: tensor-parallel ones are neighbours, then context-parallel,
then data-parallel ones, and pipeline stages are furthest apart; ranks of experts are neighbours. So
a group's stride says how many of its ranks share a fast domain (memcore/hardware/topology.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memcore.hardware import constants, topology
from memcore.quantity.reading import PLAIN, Read, at_least_zero, least, log2, over, total
from memcore.step.step import layers_reached
from memcore.tape.dims import Number, is_array, maximum, where
from memcore.timing.roofline import by_phase
from memcore.words.training import EACH_ROW, FRAMEWORKS

if TYPE_CHECKING:
    from memcore.hardware.accelerator import Accelerator
    from memcore.plan.plan import Plan
    from memcore.report import OperationTime
    from memcore.step.step import Step
    from memcore.tape.dims import Shape
    from memcore.tape.tape import Product

NO_SECONDS = 1e-30  # shorter than any transfer: what is divided by in place of none


class Beside:
    """What runs beside the transfers of a step, read as numbers or as terms.

    operations  of the whole step
    sent        its collectives, which the last backward waits for
    """

    def __init__(self, plan: Plan, step: Step, operations: Sequence[OperationTime], x: Any = PLAIN):
        self.plan, self.step, self.operations, self.x = plan, step, operations, x
        self.sent: Sequence[Move] = ()

    @property
    def layers(self) -> Read:
        """Layers of the stage that have a group of weights."""
        config = self.plan.architecture.origin
        return self.x.known("layers", sum(self.step.grouped), source=config)

    @property
    def reached(self) -> Read:
        """Of them those that backward reaches, or 1 where it reaches none."""
        layers = max(1, layers_reached(self.step))
        if layers == sum(self.step.grouped):
            return self.layers
        source = "the plan: train.frozen, or layers whose result nobody reads"
        return self.x.known("layers that backward reaches", layers, source=source)

    @property
    def batches(self) -> Read:
        batches = self.plan.train.grad_accumulation
        return self.x.at("plan.train.grad_accumulation", batches, "micro-batches")

    @functools.cached_property
    def _of_layers(self) -> dict[str, Number]:
        return by_phase([o for o in self.operations if o.of_layers])

    @property
    def forward(self) -> Read:
        """Seconds of the forward of all layers, of all micro-batches."""
        return self.x.at("time.layers.forward", self._of_layers["forward"])

    @property
    def backward(self) -> Read:
        """The same of backward, with what runs again for it."""
        of = self._of_layers
        return self.x.at("time.layers.backward", of["recompute"] + of["backward"])

    @property
    def last_backward(self) -> Read:
        """Seconds of the last backward, embedding and head included, and of what it waits for."""
        of = by_phase(self.operations)
        both = [self.x.at(f"time.phases.{p}", of[p]) for p in ("recompute", "backward")]
        exposed = [move.exposed_by_link for move in self.sent]
        waited = [
            self.x.at(f"time.exposed.{link}", sum(e.get(link, 0.0) for e in exposed))
            for link in ("nvlink", "network")
        ]
        return total([total(both) / self.batches, *waited])

    @property
    def chunks(self) -> Read:
        """Of all micro-batches: each has one for each virtual stage."""
        virtual = self.plan.parallel.virtual_stages
        return self.x.known("virtual stages", virtual, source="the plan") * self.batches


@dataclass(frozen=True, eq=False)
class Cover:
    """What runs while a transfer is under way, and hides it.

    words    for people
    seconds  of it, for each time; of what is no whole part of a step the transfer itself knows them
    grows    with the micro-batch, where the weights or gradients that it hides do not
    """

    words: str
    seconds: Callable[[Beside], Read] | None = None
    grows: bool = False

    def __str__(self) -> str:
        return self.words


NOTHING_BEFORE = Cover("nothing: the first has no layer before it")
NOTHING_AFTER = Cover("nothing: backward is over")
NOTHING = Cover("nothing")
PRODUCT_MEANWHILE = Cover("the product that runs meanwhile")
PIECES_MEANWHILE = Cover("pieces of the product beside it")
ATTENTION_MEANWHILE = Cover("attention to the keys that are there")
CHUNK_FORWARD = Cover("another chunk's forward", lambda b: b.forward / b.chunks)
LAYER_FORWARD = Cover(
    "the forward of the layer before", lambda b: b.forward / (b.layers * b.batches), grows=True
)
LAYER_BACKWARD = Cover(
    "the backward of the layer before", lambda b: b.backward / (b.reached * b.batches), grows=True
)
ONE_BACKWARD = Cover("backward of one batch", lambda b: b.backward / b.batches, grows=True)
ONE_FORWARD = Cover("forward of one batch", lambda b: b.forward / b.batches, grows=True)
OTHER_FORWARD = Cover(
    "half a layer's forward of another batch",
    lambda b: b.forward / (2 * b.layers * b.batches), grows=True,
)  # fmt: skip
OTHER_BACKWARD = Cover(
    "half a layer's backward of another batch",
    lambda b: b.backward / (2 * b.reached * b.batches), grows=True,
)  # fmt: skip
ALL_BACKWARD = Cover("backward", lambda b: b.backward / b.batches, grows=True)
LAST_BACKWARD = Cover("the last backward", lambda b: b.last_backward, grows=True)
BATCH_BACKWARD = Cover(
    "backward of one batch, its layers", lambda b: b.backward / b.batches, grows=True
)

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = "all-gather", "reduce-scatter", "all-reduce"
ALL_TO_ALL, SEND = "all-to-all", "send"
DISPATCH = "dispatch"  # an all-to-all of rows, of which those of one token go once
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
    reached      of DISPATCH: experts of a token, ranks and other domains that have any of them
    """

    ranks: Read
    inside: Read
    domains: int
    peer: Read
    next: Read
    wide: Read
    network: Read
    direct: bool
    taken: Read
    memory: Read
    x: Any
    reached: tuple[Read, Read, Read] | None = None

    @classmethod
    def of(
        cls,
        plan: Plan,
        ranks: int,
        stride: int = 1,
        reached: constants.Constant = constants.COLLECTIVE_EFFICIENCY,
        x: Any = PLAIN,
    ) -> Links:
        """`stride`: how far apart neighbours of the group are numbered; `reached`: share of the
        links' bandwidth; x: how it is read, as numbers or as terms."""
        gpu, node = plan.accelerator, plan.node
        inside = max(1, min(ranks, plan.gpus_per_domain // stride))
        share = x.constant(reached)
        whole = fast_rate(plan, x) * share
        joined = topology.inside(node, inside, stride, plan.cluster.gpus)

        def of_links(used: int) -> Read:
            if used == joined.links:
                return whole
            wired = f"{node.label}: wiring {node.wiring}"
            stay = x.known("links that stay in the group", used, source=wired)
            return whole * stay / x.known("links of one GPU", joined.links, source=gpu.label)

        peer = wide = of_links(joined.used)
        if joined.spread != 1:
            name = "of them kept busy, as bytes take several hops"
            source = "the longest axis of the group's part of the torus"
            wide = peer * x.known(name, joined.spread, source=source)
        here = x.known("of them in a fast domain", inside, source="how ranks are numbered")
        network = network_rate(plan, x) * share
        return cls(
            x.known("ranks", ranks, source="the plan: cluster.gpus", note="of the group"),
            here,
            -(-ranks // inside),
            peer,
            of_links(joined.next),
            wide,
            network * here if inside > 1 else network,
            bool(gpu.peer_bandwidth) and gpu.peer_access and joined.direct,
            taken(gpu, x),
            x.at("hardware.memory_bandwidth", gpu.memory_bandwidth)
            * x.constant(constants.HBM_EFFICIENCY),
            x,
        )

    def seconds(self, kind: str, total: Read) -> dict[str, Read]:
        """Seconds on each link for one collective of `total` bytes over the group."""
        own = {
            ALL_REDUCE: self.reduce, SEND: self.send, DISPATCH: self.dispatch,
            ALL_TO_ALL: self.exchange,
        }  # fmt: skip
        return own.get(kind, self.gather)(total)

    def of_pieces(self, kind: str, pieces: Sequence[Read]) -> dict[str, Read]:
        """The same of one collective for each piece, or of one for all of them if they are
        summed."""
        if kind == ALL_REDUCE:
            return self.reduce(total(pieces))
        each = [self.seconds(kind, piece) for piece in pieces]
        return {link: total(e[link] for e in each) for link in (each[0] if each else ())}

    def gather(self, total: Read) -> dict[str, Read]:
        """All-gather or reduce-scatter of `total` bytes that the group has together.

        A ring moves total x (n-1)/n through every GPU, and so does each sending its part to all
        others at once; between domains that much passes the network once. Each hop of log2(n) costs
        a latency.
        """
        moved = total * (self.ranks - 1) / self.ranks
        return self._both(moved, moved, self.peer)

    def reduce(self, total: Read) -> dict[str, Read]:
        """All-reduce of `total` bytes: a reduce-scatter and an all-gather."""
        return {link: self.twice * s for link, s in self.gather(total).items()}

    @property
    def twice(self) -> Read:
        return self.x.known("reduce-scatter and all-gather", 2, source="a ring all-reduce")

    def exchange(self, total: Read) -> dict[str, Read]:
        """All-to-all where every rank has `total` bytes, an equal part for each rank.

        What is for ranks of the same domain stays in it; the rest passes the network, together with
        that of the other ranks in the domain.
        """
        inside = total * (self.inside - 1) / self.ranks
        outside = total * self.inside * (self.ranks - self.inside) / self.ranks
        return self._both(inside, outside, self.wide)

    def dispatch(self, total: Read) -> dict[str, Read]:
        """The same of `total` bytes of rows, where one of each token's goes to each domain that has
        any of its experts, and there to each rank that has (DeepEP, README: normal kernels with
        NVLink and RDMA forwarding)."""
        inside, outside = self.dispatched(total)
        return self._both(inside, outside, self.wide)

    def dispatched(self, total: Read) -> tuple[Read, Read]:
        """Bytes that come to a rank over fast links, and that leave a domain, of `total` bytes of
        its rows."""
        assert self.reached
        experts, ranks, domains = self.reached
        tokens = total / experts
        return tokens * ranks * (self.inside - 1) / self.inside, tokens * domains * self.inside

    def _both(self, inside: Read, outside: Read, peer: Read) -> dict[str, Read]:
        if self.ranks <= 1:
            return {}
        latency = self.latency
        found = {}
        if self.inside > 1:
            found["nvlink"] = over(inside, peer) + latency
        if self.domains > 1:
            found["network"] = over(outside, self.network) + latency
        return found

    @property
    def latency(self) -> Read:
        return self.x.constant(constants.COLLECTIVE_LATENCY) * log2(self.ranks)

    def drawn(self, kind: str, total: Read) -> Read:
        """Seconds of a GPU's own memory that one collective takes: what passes through it is read
        once and written once."""
        if kind == DISPATCH:
            assert self.reached
            total = total * self.reached[1] / self.reached[0]
        moved = self.x.known("read and written", 2, source="what passes through a GPU") * total
        if kind == ALL_REDUCE:
            moved = moved * self.twice
        if kind != SEND:
            moved = moved * (self.ranks - 1) / self.ranks
        return moved / self.memory

    def send(self, total: Read) -> dict[str, Read]:
        """One rank of the group to the next: the slowest such pair, which crosses a domain's border
        where there is one."""
        if self.ranks <= 1:
            return {}
        across = self.domains > 1
        link, rate = ("network", self.network) if across else ("nvlink", self.next)
        return {link: over(total, rate) + self.x.constant(constants.COLLECTIVE_LATENCY)}


def taken(gpu: Accelerator, x: Any = PLAIN) -> Read:
    """Share of the multiprocessors of a GPU that the kernels of a collective run on. Chips of few
    large cores (TPUs, Trainium) have engines of their own for it."""
    if gpu.sms <= 2 * constants.COLLECTIVE_SMS.middle:
        return 0.0
    every = x.known("multiprocessors", gpu.sms, source=gpu.label)
    return x.constant(constants.COLLECTIVE_SMS) / every


def fast_rate(plan: Plan, x: Any = PLAIN) -> Read:
    """B/s one way of all fast links of one GPU: PCIe where it has no others, through the host's
    memory where its driver lets no other GPU reach its own."""
    gpu = plan.accelerator
    if not gpu.peer_bandwidth:
        return x.at("hardware.pcie_bandwidth", plan.node.pcie_bandwidth)
    rate = x.at("hardware.peer_bandwidth", gpu.peer_bandwidth)
    if gpu.peer_payload != 1:
        rate = rate * x.at("hardware.peer_payload", gpu.peer_payload)
    if gpu.peer_link == "pcie":
        rate = least(rate, x.at("hardware.pcie_bandwidth", plan.node.pcie_bandwidth))
    # A pair keeps both ways of its slots busy, with access to each other's memory or without: first
    # tokens of pairs with eight lanes each are those of all of it (noonghunna/club-3090 #851 and
    # #1086 with access, #1095 and #1120).
    if gpu.peer_access or plan.gpus_in_node <= 2:
        return rate
    rate = rate * x.constant(constants.THROUGH_HOST)
    if not plan.node.dram_bandwidth:
        return rate
    written = x.known("written and read", 2, source="what passes through the host's memory")
    gpus = x.known("GPUs of a node", plan.gpus_in_node, source="the plan")
    return least(rate, x.at("hardware.dram_bandwidth", plan.node.dram_bandwidth) / (written * gpus))


def network_rate(plan: Plan, x: Any = PLAIN) -> Read:
    """B/s one way that one GPU has of its host's network, while all that run use it."""
    node = plan.node
    gpus = node.gpus if node.network_of_each else plan.gpus_in_node
    rate = x.at("hardware.network_bandwidth", node.network_bandwidth)
    source = node.label if node.network_of_each else "the plan"
    return rate if gpus == 1 else rate / x.known("GPUs of a node", gpus, source=source)


def copied(
    plan: Plan, link: str, pieces: Sequence[Read], ways: Sequence[str] = (), x: Any = PLAIN
) -> Read:
    """Seconds of one copy between a GPU and its host over PCIe, of the host's own memory, or of one
    from and to NVMe, each piece one of the `ways`."""
    node, share = plan.node, x.constant(constants.LINK_EFFICIENCY)
    if link == "dram":
        rate = x.at("hardware.dram_bandwidth", node.dram_bandwidth)
        rate = rate * x.constant(constants.HOST_OPTIMIZER)
        if not FRAMEWORKS[plan.train.framework].threads:
            ranks = x.known("GPUs in a node", plan.gpus_in_node, source="the plan")
            threads = ranks * x.constant(constants.HOST_THREAD)
            rate = where(plan.gpus_in_node > 1, least(rate, threads), rate)
        return over(total(pieces), rate)
    if link == "nvme":
        whole = {"read": node.nvme_read_bandwidth, "write": node.nvme_write_bandwidth}
        rates = [x.at(f"hardware.nvme_{way}_bandwidth", whole[way]) * share for way in ways]
        return total(over(n, rate) for n, rate in zip(pieces, rates, strict=True))
    return over(total(pieces), x.at("hardware.pcie_bandwidth", node.pcie_bandwidth) * share)


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


def links(plan: Plan, axis: str, x: Any = PLAIN) -> Links:
    """What the ranks of an axis are connected by."""
    ranks, stride = group(plan, axis)
    found = Links.of(plan, ranks, stride, reached(plan), x)
    t = plan.train
    if axis != "EP" or not FRAMEWORKS[t.framework].own or t.moe_dispatcher == EACH_ROW:
        return found
    return replace(found, reached=experts_reached(plan, found.domains, x))


def experts_reached(plan: Plan, domains: int, x: Any) -> tuple[Read, Read, Read]:
    """Experts that a token chooses, and in how many expert-parallel ranks and other domains they
    are: all experts are as likely."""
    experts, chosen = plan.architecture.sizes["EXPERTS"], plan.architecture.sizes["TOP_K"]

    def among(places: int) -> float:
        """How many of so many places have any of them."""
        elsewhere = experts - experts // places
        return places * (1 - math.comb(elsewhere, chosen) / math.comb(experts, chosen))

    source = f"{chosen} of {experts} experts, each as likely"
    own = 1 / domains  # of the domains reached, as often as any other
    return (
        x.known("experts of a token", chosen, source="config.json"),
        x.known("ranks that have any of them", among(plan.parallel.ep), source=source),
        x.known("other domains that have", among(domains) * (1 - own), source=source),
    )


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
    behind      products that hide it, as (count, shape): FLOPs; kernel: whose rate they are done at
    among       bytes by name, its own first, of the transfers that share `cover` by them
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
    behind: tuple[Product, ...] = ()
    kernel: str = ""
    ways: tuple[str, ...] = ()
    taken: float = 0.0
    drawn: float = 0.0
    among: Mapping[str, float] | None = None

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
        lost = self.taken
        if is_array(self.drawn) or self.drawn:  # of arrays some may be 0, and so may `each`
            lost = lost + self.drawn / maximum(each, NO_SECONDS)
        return waited(each, self.cover, lost) * self.times


def waited(each: Read, cover: Read, lost: Read) -> Read:
    """Seconds that one transfer is waited for: what nothing hides, and of the rest what the work
    loses that hides it."""
    return at_least_zero(each - cover) + least(each, cover) * lost


def collective(
    name: str,
    kind: str,
    axis: str,
    over: Links,
    pieces: dict[str, float],
    times: float,
    hidden_by: Cover = NOTHING,
    phase: str = "",
    beside: Beside | None = None,
    cover: Number = 0.0,
    shapes: Sequence[tuple[Shape, str]] = (),
    behind: tuple[Product, ...] = (),
    kernel: str = "",
    among: Mapping[str, float] | None = None,
) -> Move:
    """One collective for each piece, or one for all of them if they are summed. beside: whose
    seconds `hidden_by` takes; else they are `cover`."""
    if beside and hidden_by.seconds:
        cover = hidden_by.seconds(beside)
        if among:
            own = next(iter(among.values()))
            cover = cover * (own / sum(among.values()))
    return Move(
        name, pieces, over.of_pieces(kind, list(pieces.values())), times, cover, hidden_by, phase,
        kind, axis, shapes, behind, kernel, taken=over.taken,
        drawn=over.drawn(kind, sum(pieces.values())), among=among,
    )  # fmt: skip
