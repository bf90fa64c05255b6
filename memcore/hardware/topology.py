"""Topology: what joins the accelerators of a group, by the wiring that a node's data states.

A fast domain (a host, a rack, a slice) has links of its own; what crosses its border takes the
network. A group uses the links that stay in it: all of them behind a switch, one to each other rank
of a full mesh, those along the axes that it fills of a torus.
"""

from __future__ import annotations

from dataclasses import dataclass

from memcore.cache import cached
from memcore.hardware.accelerator import CUBE, MESH, SWITCH, TORUS, Accelerator, Node


def domain(gpu: Accelerator, node: Node, gpus_per_node: int) -> int:
    """Accelerators that the fast links join: 1 where there are none but the network's.

    gpus_per_node   in one host: PCIe joins these at least
    """
    if not gpu.peer_bandwidth:
        return 1 if gpu.unified_memory else gpus_per_node
    if node.wiring == SWITCH:
        return max(node.domain, gpus_per_node)
    return node.domain or min(gpus_per_node, node.gpus)


@dataclass(frozen=True, slots=True)
class Inside:
    """Links of one accelerator that stay in its part of a group.

    used     of `links` that it has to its fast domain; peer_bandwidth is all of them
    spread   share of `used` that an all-to-all keeps busy: on a torus bytes take several hops
    next     links to the next rank alone
    direct   whether each has a link to each
    """

    links: int = 1
    used: int = 1
    next: int = 1
    spread: float = 1.0
    direct: bool = True

    @property
    def share(self) -> float:
        """Of peer_bandwidth that a ring, or an exchange with all others at once, keeps busy."""
        return self.used / self.links


# A DGX-1's GPU has six links: one each to two of its quad, two to the third, two to one GPU of the
# other quad (NVIDIA DGX-1 With Tesla V100 System Architecture, WP-08437-002, figure 4). The first
# of a pair have one.
CUBE_LINKS, CUBE_QUAD = 6, 4


def inside(node: Node, ranks: int, stride: int, chips: int) -> Inside:
    """What joins `ranks` of one fast domain, numbered `stride` apart, of a job's `chips`."""
    if node.wiring == MESH:
        others = max(1, (node.domain or node.gpus) - 1)
        return Inside(others, min(max(1, ranks - 1), others))
    if node.wiring == CUBE:
        used = 1 if ranks <= 2 else CUBE_QUAD if ranks <= 4 and stride == 1 else CUBE_LINKS
        return Inside(CUBE_LINKS, used, direct=ranks <= CUBE_QUAD and stride == 1)
    if node.wiring == TORUS:
        return _torus(node, ranks, stride, chips)
    return Inside()


def _torus(node: Node, ranks: int, stride: int, chips: int) -> Inside:
    """A group fills the axes of a slice in order, from where ranks side by side end.

    Along an axis that is a ring it has two links, along a line one: its ends have no other
    ("How to Scale Your Model", https://jax-ml.github.io/scaling-book/sharding/: an all-gather over
    several axes has the sum of their bandwidths). An all-to-all of a ring of m keeps its links busy
    for m / 8 of what each rank has, of a line m / 4: half crosses the middle.
    """
    axes = axis_lengths(min(chips, node.domain or node.gpus), node.axes)
    whole = [length % node.wraps == 0 for length in axes]
    used, slowest, before = 0, 0.0, 1
    for length, wraps in zip(axes, whole, strict=True):
        filled = _overlap(before, length, stride, ranks)
        before *= length
        if filled < 2:
            continue
        ring = filled == length and (all(whole) if node.whole_cubes else wraps)
        used += 2 if ring else 1
        slowest = max(slowest, filled / (8 if ring else 4))
    used = max(1, used)
    spread = (ranks - 1) / ranks / (slowest * used) if slowest else 1.0
    return Inside(2 * node.axes, used, 1, min(1.0, spread), direct=False)


def _overlap(before: int, length: int, stride: int, ranks: int) -> int:
    """Of an axis, whose neighbours are `before` apart, how much a group of a stride fills."""
    low, high = max(before, stride), min(before * length, stride * ranks)
    return max(1, high // low)


@cached
def axis_lengths(chips: int, axes: int) -> tuple[int, ...]:
    """The shape of a job's slice, the shortest axis first: as near to a cube as its chips allow,
    as the documented shapes are (2x2x1, 2x4x4, 4x4x8, 16x16x24 of a v5p)."""

    def shapes(left: int, axes: int, least: int) -> list[tuple[int, ...]]:
        if axes == 1:
            return [(left,)] if left >= least else []
        return [
            (n, *more)
            for n in range(least, round(left ** (1 / axes)) + 2)
            if left % n == 0
            for more in shapes(left // n, axes - 1, n)
        ]

    return min(shapes(chips, axes, 1), key=lambda shape: shape[-1] - shape[0])
