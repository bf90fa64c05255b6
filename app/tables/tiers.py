"""Tables of the page Tiers."""

from __future__ import annotations

from typing import Any

from app import palette
from app.tables.base import PATH, Rows, axes
from memcore.plan.plan import Plan
from memcore.report import Report
from memcore.timing.communication import placement
from memcore.units import bytes_text, rate_text


def tiers(plan: Plan, report: Report) -> Rows:
    """Every place a byte can be, nearest to the arithmetic first."""
    gpu, node = plan.accelerator, plan.node
    used = report.memory.tiers if report.memory else {}
    capacities = report.memory.tier_capacities if report.memory else {}
    peers = plan.gpus_in_domain - 1
    inside, across = placement(plan)
    moved: dict[str, float] = {}
    for transfer in report.time.transfers if report.time else ():
        moved[transfer.link] = moved.get(transfer.link, 0.0) + transfer.bytes
    hbm_traffic = sum(o.hbm_bytes for o in report.time.operations) if report.time else 0.0
    hbm = capacities.get("hbm", gpu.usable_bytes)

    def row(
        name: str, tier: str, per: str, size: int, bandwidth: float, **more: Any
    ) -> dict[str, Any]:
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
            PATH: f"tiers.{name}",
        }

    return [
        row(
            "l1",
            "L1 / shared memory",
            "per GPU",
            gpu.l1_bytes_per_sm * gpu.sms,
            0.0,
            no_rate="on chip",
            what=f"tiles of the running kernel: {gpu.sms:,} multiprocessors x "
            f"{bytes_text(gpu.l1_bytes_per_sm)}",
        ),
        row(
            "l2",
            "L2 cache",
            "per GPU",
            gpu.l2_bytes,
            0.0,
            no_rate="on chip",
            what="what kernels read again soon; managed by the hardware",
        ),
        row(
            "hbm",
            gpu.memory_kind,
            "per GPU",
            hbm,
            gpu.memory_bandwidth,
            used=used.get("hbm", 0),
            traffic=hbm_traffic,
            what=_living(report, "hbm"),
        ),
        row(
            "peers",
            f"Peers ({palette.link(gpu.peer_link)})",
            "per GPU",
            peers * hbm,
            gpu.peer_bandwidth,
            traffic=moved.get("nvlink", 0.0),
            what=f"the memory of {peers:,} other GPUs{axes(inside)}" if peers else "no peer",
        ),
        row(
            "dram",
            "Host DRAM",
            "per node",
            node.dram_bytes,
            node.pcie_bandwidth,
            used=used.get("dram", 0),
            traffic=moved.get("pcie", 0.0),
            what=_living(report, "dram") or "nothing is offloaded to it",
        ),
        row(
            "nvme",
            "NVMe",
            "per node",
            node.nvme_bytes,
            node.nvme_read_bandwidth,
            used=used.get("nvme", 0),
            traffic=moved.get("nvme", 0.0),
            what=_living(report, "nvme") or "nothing is offloaded to it",
        ),
        row(
            "network",
            f"Network ({palette.link(node.network)})",
            "per node",
            0,
            node.network_bandwidth,
            traffic=moved.get("network", 0.0),
            what=f"GPUs that fast links do not reach{axes(across)}"
            if plan.cluster.gpus > plan.gpus_per_domain
            else "nothing: fast links join all GPUs",
        ),
    ]


def in_tiers(report: Report) -> Rows:
    """What each consumer keeps in each tier, as a share of what the tier can hold."""
    memory = report.memory
    if not memory:
        return []
    sizes: dict[tuple[str, str], int] = {}
    for r in report.ledger:
        sizes[r.tier, r.consumer] = sizes.get((r.tier, r.consumer), 0) + r.bytes
    return [
        {
            "tier": tier,
            "consumer": consumer,
            "size": bytes_text(size),
            "bytes": size,
            "share": size / memory.tier_capacities[tier],
            PATH: f"tiers.{tier}.consumers.{consumer}",
        }
        for (tier, consumer), size in sizes.items()
        if memory.tier_capacities.get(tier)
    ]


def _living(report: Report, tier: str) -> str:
    """Which consumers keep rows in a tier."""
    names = dict.fromkeys(r.consumer for r in report.ledger if r.tier == tier and r.bytes)
    return ", ".join(palette.consumer(name).lower() for name in names)
