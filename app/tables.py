"""Tables: pure functions from a Report to rows. Raw bytes and seconds, for people and for CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from app import palette
from memcore import Plan
from memcore.report import LedgerRow, Memory, Report, Serve, Time
from memcore.units import bytes_text, rate_text, seconds_text

Rows = list[dict[str, Any]]


def csv(rows: Rows) -> bytes:
    """Rows as CSV in UTF-8, with no cell that a spreadsheet would run as a formula."""
    safe = [{name: _safe(value) for name, value in row.items()} for row in rows]
    return pd.DataFrame(safe).to_csv(index=False, lineterminator="\n").encode()


def displayed(rows: Rows) -> Rows:
    """Rows for a table on a page, whose columns hold 64 bits: a larger integer becomes a float."""
    return [
        {k: float(v) if isinstance(v, int) and abs(v) >= 2**63 else v for k, v in row.items()}
        for row in rows
    ]


def _safe(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value


def consumers(memory: Memory) -> Rows:
    """Memory at the peak by consumer; the bytes add up to what is allocated."""
    total = memory.allocated_bytes
    return [
        {
            "consumer": palette.consumer(name),
            "size": bytes_text(size),
            "bytes": size,
            "percent": 100 * size / total if total else 0.0,
        }
        for name, size in memory.consumers.items()
    ]


def overheads(memory: Memory) -> Rows:
    """What no shape determines, as intervals."""
    return [
        {
            "overhead": o.name,
            "low": bytes_text(o.low),
            "high": bytes_text(o.high),
            "low_bytes": o.low,
            "high_bytes": o.high,
            "certainty": o.certainty,
            "source": o.source,
        }
        for o in memory.overheads
    ]


def timeline(memory: Memory) -> Rows:
    """Bytes alive at each instant, by consumer."""
    return [
        {
            "instant": i.label,
            "rank": i.rank,
            "size": bytes_text(i.bytes),
            "bytes": i.bytes,
            **{name: i.consumers.get(name, 0) for name in palette.CONSUMERS},
            "at": i.at,
        }
        for i in memory.timeline
    ]


def ledger(rows: Sequence[LedgerRow]) -> Rows:
    """Every row, largest first."""
    return [
        {
            "name": r.name,
            "consumer": palette.consumer(r.consumer),
            "size": bytes_text(r.bytes),
            "bytes": r.bytes,
            "count": r.count,
            "bytes_each": r.bytes_each,
            "shape": r.shape,
            "dtype": r.dtype,
            "tier": r.tier,
            "lifetime": r.lifetime,
            "certainty": r.certainty,
            "why": r.why,
            "source": r.source,
        }
        for r in sorted(rows, key=lambda r: -r.bytes)
    ]


def largest(rows: Sequence[LedgerRow], most: int = 10) -> Rows:
    """The rows of GPU memory that matter most."""
    return ledger([r for r in rows if r.tier == "hbm"])[:most]


def phases(time: Time) -> Rows:
    total = sum(time.phases.values()) or 1.0
    return [
        {
            "phase": palette.phase(name),
            "time": seconds_text(seconds),
            "seconds": seconds,
            "percent": 100 * seconds / total,
        }
        for name, seconds in time.phases.items()
    ]


def resources(time: Time) -> Rows:
    return [
        {
            "resource": palette.resource(name),
            "busy": seconds_text(busy) if busy else "not used",
            "exposed": seconds_text(time.exposed.get(name, 0.0)) if busy else "",
            "busy_seconds": busy,
            "exposed_seconds": time.exposed.get(name, 0.0),
        }
        for name, busy in time.resources.items()
    ]


def operations(time: Time) -> Rows:
    """Every operation of the step, slowest first."""
    return [
        {
            "operation": o.name,
            "phase": palette.phase(o.phase),
            "time": seconds_text(o.seconds),
            "bound_by": palette.resource(o.bound_by),
            "seconds": o.seconds,
            "compute_seconds": o.compute_seconds,
            "hbm_seconds": o.hbm_seconds,
            "flops": round(o.flops),
            "hbm_bytes": round(o.hbm_bytes),
        }
        for o in sorted(time.operations, key=lambda o: -o.seconds)
    ]


def transfers(time: Time) -> Rows:
    """What crosses each link in one step."""
    return [
        {
            "transfer": t.name,
            "link": palette.resource(t.link),
            "size": bytes_text(t.bytes),
            "time": seconds_text(t.seconds),
            "exposed": seconds_text(t.exposed_seconds),
            "hidden behind": t.hidden_by,
            "hides at": rate_text(t.hides_at_bandwidth, "B/s") if t.hides_at_bandwidth else "",
            "bytes": round(t.bytes),
            "seconds": t.seconds,
            "exposed_seconds": t.exposed_seconds,
            "hides_at_bandwidth": t.hides_at_bandwidth,
        }
        for t in time.transfers
    ]


def tiers(plan: Plan, report: Report) -> Rows:
    """Every place a byte can be, nearest to the arithmetic first."""
    gpu, node = plan.accelerator, plan.node
    used = report.memory.tiers if report.memory else {}
    capacities = report.memory.tier_capacities if report.memory else {}
    peers = min(plan.cluster.gpus_per_node, plan.cluster.gpus) - 1
    moved: dict[str, float] = {}
    for transfer in report.time.transfers if report.time else ():
        moved[transfer.link] = moved.get(transfer.link, 0.0) + transfer.bytes
    hbm_traffic = sum(o.hbm_bytes for o in report.time.operations) if report.time else 0.0
    hbm = capacities.get("hbm", gpu.usable_bytes)

    def row(tier: str, per: str, size: int, bandwidth: float, **more: Any) -> dict[str, Any]:
        use, traffic = more.get("used", 0), more.get("traffic", 0.0)
        return {
            "tier": tier[:48],
            "per": per,
            "capacity": bytes_text(size) if size else "none",
            "bandwidth": rate_text(bandwidth, "B/s") if bandwidth else more.get("no_rate", "none"),
            "holds": bytes_text(use) if use else "",
            "traffic per step": bytes_text(traffic) if traffic else "",
            "what lives there": more.get("what", ""),
            "capacity_bytes": size,
            "bandwidth_bytes_per_second": bandwidth,
            "used_bytes": use,
            "traffic_bytes": round(traffic),
        }

    return [
        row(
            "L1 / shared memory",
            "per GPU",
            gpu.l1_bytes_per_sm * gpu.sms,
            0.0,
            no_rate="on chip",
            what=f"tiles of the running kernel: {gpu.sms:,} multiprocessors x "
            f"{bytes_text(gpu.l1_bytes_per_sm)}",
        ),
        row(
            "L2 cache",
            "per GPU",
            gpu.l2_bytes,
            0.0,
            no_rate="on chip",
            what="what kernels read again soon; managed by the hardware",
        ),
        row(
            gpu.memory_kind,
            "per GPU",
            hbm,
            gpu.memory_bandwidth,
            used=used.get("hbm", 0),
            traffic=hbm_traffic,
            what=_living(report, "hbm"),
        ),
        row(
            f"Peers ({gpu.peer_link})",
            "per GPU",
            peers * hbm,
            gpu.peer_bandwidth,
            traffic=moved.get("nvlink", 0.0),
            what=f"the memory of the {peers:,} other GPUs of the node" if peers else "no peer",
        ),
        row(
            "Host DRAM",
            "per node",
            node.dram_bytes,
            gpu.pcie_bandwidth,
            used=used.get("dram", 0),
            traffic=moved.get("pcie", 0.0),
            what=_living(report, "dram") or "nothing is offloaded to it",
        ),
        row(
            "NVMe",
            "per node",
            node.nvme_bytes,
            node.nvme_read_bandwidth,
            used=used.get("nvme", 0),
            traffic=moved.get("nvme", 0.0),
            what=_living(report, "nvme") or "nothing is offloaded to it",
        ),
        row(
            f"Network ({node.network})",
            "per node",
            0,
            node.network_bandwidth,
            traffic=moved.get("network", 0.0),
            what="other nodes" if plan.cluster.gpus > plan.cluster.gpus_per_node else "one node",
        ),
    ]


def _living(report: Report, tier: str) -> str:
    """Which consumers keep rows in a tier."""
    names = dict.fromkeys(r.consumer for r in report.ledger if r.tier == tier and r.bytes)
    return ", ".join(palette.consumer(name).lower() for name in names)


def serving(serve: Serve, concurrency: int) -> Rows:
    """The memory of one serving GPU, line by line."""
    kv = serve.sequence_bytes * concurrency
    waste = serve.wasted_bytes_per_sequence * concurrency
    lines = (
        ("Weights", serve.weights_bytes, "read once per forward"),
        ("KV cache per token", serve.kv_bytes_per_token, "keys and values of all layers"),
        ("KV cache per sequence", serve.sequence_bytes, "prompt and output, whole blocks"),
        ("KV cache of these sequences", kv, f"{concurrency:,} sequences at full length"),
        ("KV cache of the whole replica", kv * serve.gpus_per_replica, "over all its GPUs"),
        ("KV cache never used", waste, "the empty part of the last block or of the reservation"),
        ("Activations", serve.activation_bytes, "the largest forward"),
        ("Overhead", serve.overhead_bytes, "outside the server's control"),
        ("Budget", serve.budget_bytes, "what the server may use of the GPU"),
        ("Room for KV cache", serve.kv_budget_bytes, "budget less weights, activations, overhead"),
    )
    return [
        {"what": name, "size": bytes_text(size), "bytes": size, "note": note}
        for name, size, note in lines
    ]
