"""Totals: what PyTorch's allocator counts on a GPU, and what nvidia-smi sees there.

Texts of torch.cuda.memory_summary(), its memory_stats() as JSON, lines of DeepSpeed's
see_memory_usage, nvidia-smi's table, and what PyTorch says when memory runs out. They say how much
there was, and nothing of what it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from memcore.formats.failures import failure
from memcore.formats.memory import ALLOCATED, DEVICE, Bytes, GpuMemory, RunMemory
from memcore.units import GiB, KiB, MiB, bytes_text

# A report's figure, as memory_summary and as memory_stats call it.
COUNTED = {
    "allocated": ("Allocated memory", "allocated_bytes.all"),
    "requested": ("Requested memory", "requested_bytes.all"),
    "reserved": ("GPU reserved memory", "reserved_bytes.all"),
}
MOST = 2**63
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


def _gpu(
    index: int, now: Bytes, most: Bytes, within: int = 0, failed: int = 0, retried: int = 0
) -> GpuMemory:
    """One GPU by its counters. within: bytes that a figure may be rounded by; failed: how often
    memory ran out; retried: how often the allocator gave back what it kept and asked again."""
    remarks = []
    if failed or retried:
        remarks.append(
            f"Memory ran out {_times(failed)}, and {_times(retried)} the allocator gave back what "
            "it kept and asked again."
        )
    if within:
        remarks.append(f"Figures may be rounded by {bytes_text(within)}.")
    return GpuMemory(index, {"now": now}, most, tuple(remarks))


def _ran_out(content: str) -> Iterator[GpuMemory]:
    """A message that memory ran out, with what was allocated and what more was asked for, where it
    says so."""
    if ended := failure(content):
        now = {ALLOCATED: ended.allocated} if ended.allocated else {}
        most = {ALLOCATED: ended.needed} if ended.allocated else {}
        yield GpuMemory(0, {"now": now}, most, failures=(ended,), ran_out=True)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def totals_in(content: str) -> RunMemory | None:
    """What a text has counted, of each GPU where most was allocated; None where it has nothing."""
    most: dict[int, GpuMemory] = {}
    for one in (*_summaries(content), *_stats(content), *_seen(content)):
        if one.index not in most or one.allocated_bytes > most[one.index].allocated_bytes:
            most[one.index] = one
    if not most:
        most = {one.index: one for one in (*_smi(content), *_ran_out(content))}
    return RunMemory(tuple(most[i] for i in sorted(most))) if most else None


def _summaries(content: str) -> Iterator[GpuMemory]:
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
            yield _gpu(int(head[1]), now, peak, within if within > 1 else 0, failed, retried)


def _stats(content: str) -> Iterator[GpuMemory]:
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
        yield _gpu(0, now, peak, 0, of("num_ooms"), of("num_alloc_retries"))


def _seen(content: str) -> Iterator[GpuMemory]:
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
    yield _gpu(0, now, peak, within)


def _numbers(content: str) -> Iterator[tuple[str, ...]]:
    for row in _SEEN.findall(content):
        if all(re.fullmatch(r"\d+(\.\d+)?", size) for size in row):
            yield row


def _smi(content: str) -> Iterator[GpuMemory]:
    """nvidia-smi's table: what all programs had on each GPU, CUDA's own too."""
    if _SMI_MARK.search(content):
        for index, (used, total) in enumerate(_SMI.findall(content)):
            had, of = {DEVICE: int(used) * MiB}, bytes_text(int(total) * MiB)
            told = f"Figures may be rounded by {bytes_text(MiB)}."
            whose = f"This is what all programs had of the GPU's {of}."
            yield GpuMemory(index, {"now": had}, had, (told, whose))
