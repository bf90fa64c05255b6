"""Totals: what PyTorch's allocator counts on a GPU, and what nvidia-smi sees there.

Texts of torch.cuda.memory_summary(), its memory_stats() as JSON, lines of DeepSpeed's
see_memory_usage, nvidia-smi's table, and what PyTorch says when memory runs out. They say how much
there was, and nothing of what it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from memcore.formats.failures import Failure, failure
from memcore.formats.snapshot import MOST, Beside
from memcore.report import Memory, plain
from memcore.units import GiB, KiB, MiB, bytes_text

# A report's figure, as memory_summary and as memory_stats call it.
COUNTED = {
    "allocated": ("Allocated memory", "allocated_bytes.all"),
    "requested": ("Requested memory", "requested_bytes.all"),
    "reserved": ("GPU reserved memory", "reserved_bytes.all"),
}
DEVICE = "on the device"
_UNIT = {"": 1, "K": KiB, "M": MiB, "G": GiB, "T": 1024 * GiB, "P": 1024**2 * GiB}
_HEAD = re.compile(r"memory summary, device ID (\d{1,4})")
_CELL = r"\|\s*(\d{1,15}) ([KMGTP]?)i?B\s*"
_ROW = re.compile(rf"\|\s*({'|'.join(title for title, _ in COUNTED.values())})\s*{_CELL}{_CELL}\|")
_FAILED = re.compile(r"CUDA OOMs: (\d{1,9})\s*\|\s*cudaMalloc retries: (\d{1,9})")
_GB = r"([\d.]{1,12}) ?GB"
_SEEN = re.compile(rf"\bMA {_GB}\s+Max_MA {_GB}\s+CA {_GB}\s+Max_CA {_GB}")
_SMI = re.compile(r"\|\s*(\d{1,9})MiB\s*/\s*(\d{1,9})MiB\s*\|")
_SMI_MARK = re.compile(r"NVIDIA-SMI|Memory-Usage")
_CENTI, _WHOLE = GiB // 100, GiB  # how DeepSpeed rounds: three figures to 0.01 GiB, Max_CA to 1


@dataclass(frozen=True, slots=True)
class Totals:
    """What was counted on one GPU, in bytes: allocated, requested, reserved, on the device.

    now, peak   when it was written, and at the peak of each; what is not said is not there
    within      bytes that a figure may be rounded by
    failed      how often memory ran out; retried: how often the allocator gave back what it kept
                and asked again
    total       the GPU's memory, where it is said; 0 elsewhere
    ran_out     the message with which it ended, so that its peak is what it needed at the least
    """

    index: int
    now: Mapping[str, int] = field(default_factory=dict)
    peak: Mapping[str, int] = field(default_factory=dict)
    within: int = 0
    failed: int = 0
    retried: int = 0
    total: int = 0
    ran_out: Failure | None = None

    failures = ()  # each with its figures, which only a snapshot has
    step_seconds = 0.0  # not said

    @property
    def label(self) -> str:
        return f"GPU {self.index}"

    @property
    def allocated_bytes(self) -> int:
        """At its peak; 0 where nothing says it, or it ended before."""
        return 0 if self.ran_out else self.peak.get("allocated", 0)

    def remarks(self) -> Iterator[str]:
        """What its figures say beside themselves, a sentence each."""
        if self.failed or self.retried:
            yield (
                f"Memory ran out {_times(self.failed)}, and {_times(self.retried)} the allocator "
                "gave back what it kept and asked again."
            )
        if self.ran_out:
            yield f"Memory ran out: {self.ran_out}."
        if self.within:
            yield f"Figures may be rounded by {bytes_text(self.within)}."
        if self.total and not self.ran_out:
            yield f"This is what all programs had of the GPU's {bytes_text(self.total)}."

    def beside(self, memory: Memory) -> tuple[Beside, ...]:
        """A plan's peak, beside what was counted."""
        planned = {
            "allocated": (memory.allocated_bytes, None),
            "reserved": memory.reserved_bytes,
            DEVICE: memory.device_bytes,
        }
        return tuple(
            Beside(name, *planned[name], self.peak[name]) for name in planned if name in self.peak
        )


def _ran_out(content: str) -> Iterator[Totals]:
    """A message that memory ran out, with what was allocated and what more was asked for, where it
    says so."""
    found = failure(content)
    if found:
        now = {"allocated": found.allocated} if found.allocated else {}
        peak = {"allocated": found.needed} if found.allocated else {}
        yield Totals(0, now, peak, total=found.total, ran_out=found)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted on each GPU of a run."""

    devices: tuple[Totals, ...]

    @property
    def fullest(self) -> Totals:
        """The GPU on which most was there."""
        return max(self.devices, key=lambda device: max(device.peak.values(), default=0))

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        found: dict[str, Any] = plain(self)
        return found


def counted_in(content: str) -> Counted | None:
    """What a text has counted, of each GPU where most was allocated; None where it has nothing."""
    most: dict[int, Totals] = {}
    for found in (*_summaries(content), *_stats(content), *_seen(content)):
        if not most.get(found.index) or (found.allocated_bytes > most[found.index].allocated_bytes):
            most[found.index] = found
    if not most:
        most = {found.index: found for found in (*_smi(content), *_ran_out(content))}
    return Counted(tuple(most[i] for i in sorted(most))) if most else None


def _summaries(content: str) -> Iterator[Totals]:
    """Tables of torch.cuda.memory_summary(), which rounds each figure down to its unit. A peak of 0
    was not counted, as cudaMallocAsync counts no requests."""
    heads = [*_HEAD.finditer(content)]
    names = {title: name for name, (title, _) in COUNTED.items()}
    for i, head in enumerate(heads):
        table = content[head.end() : heads[i + 1].start() if heads[i + 1 :] else None]
        now, peak, within = {}, {}, 0
        for title, had, its, most, unit in _ROW.findall(table):
            if int(most):
                now[names[title]], peak[names[title]] = (
                    int(had) * _UNIT[its],
                    int(most) * _UNIT[unit],
                )
                within = max(within, _UNIT[unit])
        failed, retried = map(int, found.groups() if (found := _FAILED.search(table)) else (0, 0))
        if peak:
            yield Totals(int(head[1]), now, peak, within if within > 1 else 0, failed, retried)


def _stats(content: str) -> Iterator[Totals]:
    """What torch.cuda.memory_stats() gave, as JSON."""
    if '"allocated_bytes.all.peak"' not in content:
        return
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        return

    def of(key: str) -> int:
        value = said.get(key, 0)
        whole = isinstance(value, int) and not isinstance(value, bool)
        return value if whole and 0 <= value < MOST else 0

    if isinstance(said, dict) and of("allocated_bytes.all.peak"):
        there = {name: key for name, (_, key) in COUNTED.items() if of(f"{key}.peak")}
        now = {name: of(f"{key}.current") for name, key in there.items()}
        peak = {name: of(f"{key}.peak") for name, key in there.items()}
        yield Totals(0, now, peak, 0, of("num_ooms"), of("num_alloc_retries"))


def _seen(content: str) -> Iterator[Totals]:
    """Lines of DeepSpeed's see_memory_usage, the most of all: allocated and reserved (its `CA`), in
    GiB that it calls GB, now and since the line before. Its `Max_CA` has no decimals."""
    rows = [[round(float(size) * GiB) for size in row] for row in _numbers(content)]
    if not rows:
        return
    peak = {"allocated": max(row[1] for row in rows), "reserved": max(row[2] for row in rows)}
    whole = max(row[3] for row in rows)
    within = _CENTI
    if whole > peak["reserved"] + _WHOLE // 2:
        peak["reserved"], within = whole, _WHOLE
    now = {"allocated": rows[-1][0], "reserved": rows[-1][2]}
    yield Totals(0, now, peak, within)


def _numbers(content: str) -> Iterator[tuple[str, ...]]:
    for row in _SEEN.findall(content):
        if all(re.fullmatch(r"\d+(\.\d+)?", size) for size in row):
            yield row


def _smi(content: str) -> Iterator[Totals]:
    """nvidia-smi's table: what all programs had on each GPU, CUDA's own too."""
    if _SMI_MARK.search(content):
        for index, (used, total) in enumerate(_SMI.findall(content)):
            had = {DEVICE: int(used) * MiB}
            yield Totals(index, had, had, MiB, total=int(total) * MiB)
