"""What a run had in memory on its GPUs, by whichever file says it, and a plan's peak with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memcore.formats.failures import Failure
from memcore.report import Memory, plain

ALLOCATED, REQUESTED, RESERVED, DEVICE = "allocated", "requested", "reserved", "on the device"
BEFORE, OTHER = "before", "other"  # what no frame tells, besides a report's consumers
CATEGORIES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_states": "optimizer states",
    BEFORE: "allocated before the trace",
    "activations": "activations",
    "workspace": "workspace",
    OTHER: "others",
}
STATES = ("parameters", "gradients", "optimizer_states", BEFORE)
Bytes = Mapping[str, int]  # by counter


@dataclass(frozen=True, slots=True)
class Allocation:
    """Tensors that were alive at the peak: of which category, allocated where, how many, and the
    bytes of all of them."""

    category: str
    where: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of a plan's peak, and the same as it was measured; None where one has none."""

    name: str
    planned: int | None
    at_most: int | None  # of an interval
    measured: int | None


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """What one GPU had, in bytes by counter: ALLOCATED (as torch.cuda.memory_allocated), REQUESTED
    (what PyTorch's memory_viz draws), RESERVED, and DEVICE of all programs. What is not said is not
    there.

    instants      of a trace its start, the allocated peak and its end; of totals now
    most          each counter at its own peak; what was needed at the least where it `ran_out`
    categories    allocated bytes at the peak, by CATEGORIES; groups: by where they came from
    step_seconds  between the ends of two optimizer steps; 0 where fewer than two are annotated
    """

    index: int
    instants: Mapping[str, Bytes]
    most: Bytes
    remarks: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    ran_out: bool = False
    categories: Bytes = field(default_factory=dict)
    groups: tuple[Allocation, ...] = ()
    events: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0

    @property
    def label(self) -> str:
        return f"GPU {self.index}"

    @property
    def allocated_bytes(self) -> int:
        """At the peak of a step that ran; 0 where nothing says it."""
        return 0 if self.ran_out else self.most.get(ALLOCATED, 0)

    def compared(self, memory: Memory) -> tuple[Compared, ...]:
        """A plan's peak, and what this GPU had."""
        planned: dict[str, tuple[int, int | None]] = {
            ALLOCATED: (memory.allocated_bytes, None),
            RESERVED: memory.reserved_bytes,
            DEVICE: memory.device_bytes,
        }
        rows = [Compared(n, *planned[n], self.most[n]) for n in planned if n in self.most]
        return (*rows, *(self._by_category(memory) if self.categories else ()))

    def _by_category(self, memory: Memory) -> list[Compared]:
        planned, had = Counter(memory.consumers), Counter(self.categories)
        names = [name for name in CATEGORIES if planned[name] or had[name]]
        others = [name for name in CATEGORIES if name not in STATES]
        for title, of in (("states", STATES), ("all else", others)):
            planned[title], had[title] = sum(planned[n] for n in of), sum(had[n] for n in of)
            names.append(title)
        rows = []
        for name in names:
            # What was allocated before the trace may be any of these.
            unknown = name in STATES and had[BEFORE] and not had[name]
            rows.append(Compared(name, planned.get(name), None, None if unknown else had[name]))
        return rows


@dataclass(frozen=True, slots=True)
class RunMemory:
    """What each GPU of a run had, and how its allocator was set, where that is said."""

    devices: tuple[GpuMemory, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fullest(self) -> GpuMemory:
        """The GPU on which most was allocated, or there."""
        return max(
            self.devices, key=lambda d: d.most.get(ALLOCATED) or max(d.most.values(), default=0)
        )

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        document: dict[str, Any] = plain(self)
        for device, said in zip(self.devices, document["devices"], strict=True):
            said["failures"] = [each.to_dict() for each in device.failures]
        return document
