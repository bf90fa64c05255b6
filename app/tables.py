"""Tables: pure functions from a Report to rows. Raw bytes and seconds, for people and for CSV."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd

from app import palette
from memcore import Plan, constants, evidence
from memcore.communication import AXES, placement
from memcore.explain import Book, Explanation, Term
from memcore.levers import Lever
from memcore.levers import levers as find_levers
from memcore.report import LedgerRow, Memory, Report, Run, Serve, Time, TogetherMemory
from memcore.solve import LIMITS, Answer
from memcore.together import PARTS
from memcore.units import (
    bytes_text,
    count_text,
    energy_text,
    exact_text,
    gib_text,
    money_text,
    rate_text,
    relative_text,
    seconds_text,
    signed_bytes,
    signed_seconds,
)
from memcore.version import version
from memcore.waterfall import Change

Rows = list[dict[str, Any]]

PATH = "path"  # the key of a row under which stands where its number is in the Report
FIELDS = {  # what a column shows of the number at a row's path
    "size": "bytes",
    "bytes": "bytes",
    "bytes_each": "bytes_each",
    "count": "count",
    "low": "low",
    "high": "high",
    "time": "seconds",
    "flops": "flops",
    "hbm_bytes": "hbm_bytes",
    "bound_by": "bound_by",
    "exposed": "exposed_seconds",
    "hidden behind": "cover",
    "hides at": "hides_at_bandwidth",
    "or at micro-batch": "hides_at_micro_batch",
    "capacity": "capacity",
    "bandwidth": "bandwidth",
    "holds": "holds",
    "traffic per step": "traffic",
    "HBM, forward": "forward_hbm_bytes",
    "HBM, backward": "backward_hbm_bytes",
    "adds to saved": "saved_bytes",
    "saves": "saved_bytes",
    "step time": "added_seconds",
    "GPU time per token": "price",
}


def csv(rows: Rows, context: Mapping[str, Any] | None = None) -> bytes:
    """Rows as CSV in UTF-8, each with its context, with no cell that a spreadsheet would run as a
    formula. Whole numbers stay whole, also in a column where some rows have none."""
    safe = [{n: _safe(v) for n, v in {**row, **(context or {})}.items()} for row in rows]
    return pd.DataFrame(safe, dtype=object).to_csv(index=False, lineterminator="\n").encode()


def context(plan: Plan | None, link: str) -> dict[str, Any]:
    """What a file of figures says of itself: the plan that they are of, if they are of one, a link
    to it, and which Memplan they are from."""
    of_plan = {
        "plan model": plan.architecture.label,
        "plan GPU": plan.accelerator.label,
        "plan GPUs": plan.cluster.gpus,
        "plan link": link,
    } if plan else {}  # fmt: skip
    return {**of_plan, "Memplan version": version()}


def displayed(rows: Rows) -> Rows:
    """Rows for a table on a page, whose columns hold 64 bits: a larger integer becomes a float."""
    return [
        {
            k: float(v) if isinstance(v, int) and abs(v) >= 2**63 else v
            for k, v in row.items()
            if k != PATH
        }
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
            PATH: f"memory.consumers.{name}",
        }
        for name, size in memory.consumers.items()
    ]


def breakdown(memory: Memory) -> Rows:
    """From the consumers up to the capacity of a GPU, for a file: every row has the ends of its
    interval, and in `bytes` what is one number."""
    m = memory
    consumers = [
        (palette.consumer(name), "consumer", (size, size), f"consumers.{name}")
        for name, size in m.consumers.items()
    ]
    overheads = [
        (o.name, "overhead", (o.low, o.high), f"overheads.{i}") for i, o in enumerate(m.overheads)
    ]
    allocated, capacity = ((n, n) for n in (m.allocated_bytes, m.capacity_bytes))
    lines = [
        *consumers,
        ("Allocated at the peak", "total", allocated, "allocated_bytes"),
        *overheads,
        ("Reserved by PyTorch", "interval", m.reserved_bytes, "reserved_bytes"),
        ("Device memory", "interval", m.device_bytes, "device_bytes"),
        ("Capacity of one GPU", "capacity", capacity, "capacity_bytes"),
    ]
    return [
        {
            "part": part,
            "kind": kind,
            "size": " to ".join(dict.fromkeys(map(bytes_text, ends))),
            "bytes": ends[0] if ends[0] == ends[1] else None,
            "low_bytes": ends[0],
            "high_bytes": ends[1],
            "share_of_capacity": ends[1] / m.capacity_bytes,
            PATH: f"memory.{path}",
        }
        for part, kind, ends, path in lines
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
            PATH: f"memory.overheads.{i}",
        }
        for i, o in enumerate(memory.overheads)
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
            PATH: f"memory.timeline.{n}",
        }
        for n, i in enumerate(memory.timeline)
    ]


def ledger(rows: Sequence[LedgerRow], path: str = "ledger") -> Rows:
    """Every row, largest first; `path` is where they are in the Report."""
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
            PATH: f"{path}.{i}",
        }
        for i, r in sorted(enumerate(rows), key=lambda item: -item[1].bytes)
    ]


def largest(rows: Sequence[LedgerRow], most: int = 10) -> Rows:
    """The rows of GPU memory that matter most."""
    return [row for row in ledger(rows) if row["tier"] == "hbm"][:most]


def phases(time: Time) -> Rows:
    total = sum(time.phases.values()) or 1.0
    return [
        {
            "phase": palette.phase(name),
            "time": seconds_text(seconds),
            "seconds": seconds,
            "percent": 100 * seconds / total,
            PATH: f"time.phases.{name}",
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
            PATH: f"time.resources.{name}",
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
            PATH: f"time.operations.{i}",
        }
        for i, o in sorted(enumerate(time.operations), key=lambda item: -item[1].seconds)
    ]


TRANSFER_COLUMNS = (
    "transfer",
    "link",
    "size",
    "time",
    "exposed",
    "hidden behind",
    "hides at",
    "or at micro-batch",
)


def micro_batch_text(n: float | None) -> str:
    """Whole sequences; nothing where no batch is large enough."""
    return f"{math.ceil(n):,}" if n is not None and math.isfinite(n) else ""


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
            "or at micro-batch": micro_batch_text(t.hides_at_micro_batch),
            "bytes": round(t.bytes),
            "seconds": t.seconds,
            "exposed_seconds": t.exposed_seconds,
            "hides_at_bandwidth": t.hides_at_bandwidth,
            "hides_at_micro_batch": t.hides_at_micro_batch,
            PATH: f"time.transfers.{i}",
        }
        for i, t in enumerate(time.transfers)
    ]


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
            what=f"the memory of {peers:,} other GPUs{_axes(inside)}" if peers else "no peer",
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
            what=f"GPUs that fast links do not reach{_axes(across)}"
            if plan.cluster.gpus > plan.gpus_per_domain
            else "nothing: fast links join all GPUs",
        ),
    ]


def _axes(names: Sequence[str]) -> str:
    """Which kinds of parallelism talk there."""
    return f": {', '.join(AXES[name] for name in names)}" if names else ""


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


def levers(found: Sequence[Lever]) -> Rows:
    """Every lever, the best first."""
    return [
        {
            "change": lever.label,
            "and sets": ", ".join(lever.followers),
            "it": lever.trains_text,
            "then": lever.verdict,
            "saves": bytes_text(lever.saved_bytes),
            "step time": signed_seconds(lever.added_seconds),
            "GPU time per token": relative_text(lever.price),
            "saved_bytes": lever.saved_bytes,
            "saved_device_bytes": lever.saved_device_bytes,
            "added_seconds": lever.added_seconds,
            "added_seconds_per_token": lever.added_per_token,
            "price": lever.price,
            "sets": changes_text(lever),
            PATH: f"levers.{lever.name}",
        }
        for lever in found
    ]


def changes_text(lever: Lever) -> str:
    """The fields that a lever sets: 'train.checkpointing = full'."""
    return ", ".join(f"{path} = {value}" for path, value in lever.changes.items())


def saved_text(lever: Lever) -> str:
    if not lever.saved_bytes:
        return "as much memory"
    return f"{'saves' if lever.saved_bytes > 0 else 'adds'} {bytes_text(abs(lever.saved_bytes))}"


def cost_text(lever: Lever) -> str:
    """What a lever costs: seconds of a step, or where those say little GPU time per token."""
    price = relative_text(lever.price)
    if lever.steps_compare:
        return f"{signed_seconds(lever.added_seconds)} a step ({price})"
    return f"{price}{' the' if lever.price >= 1 else ''} GPU time per token"


def waterfall(changes: Sequence[Change]) -> Rows:
    """What each change between two plans moved; the columns in numbers add up."""
    return [
        {
            "change": c.label,
            "memory": signed_bytes(c.bytes),
            "device memory": signed_bytes(c.device_bytes),
            "step time": signed_seconds(c.seconds),
            "time per token": signed_seconds(c.per_token),
            "bytes": c.bytes,
            "device_bytes": c.device_bytes,
            "seconds": c.seconds,
            "seconds_per_token": c.per_token,
            "sets": ", ".join(f"{path} = {value}" for path, value in c.fields.items()),
        }
        for c in changes
    ]


def answers(run: Run, plan: Plan) -> Rows:
    """What the whole run takes."""
    lines = (
        ("Tokens", count_text(plan.run.tokens), plan.run.tokens, "tokens", "plan.run.tokens"),
        ("Steps", f"{run.steps:,}", run.steps, "steps", "run.steps"),
        ("Time", seconds_text(run.seconds), run.seconds, "seconds", "run.seconds"),
        ("GPU-hours", f"{run.gpu_hours:,.1f}", run.gpu_hours, "GPU-hours", "run.gpu_hours"),
        ("Cost", money_text(run.cost or 0), run.cost, "USD", "run.cost"),
        ("Power", rate_text(run.watts, "W"), run.watts, "W", "run.watts"),
        ("Energy", energy_text(run.energy_joules), run.energy_joules, "J", "run.energy_joules"),
        ("Energy per token", energy_text(run.joules_per_token), run.joules_per_token, "J",
         "run.joules_per_token"),
    )  # fmt: skip
    return [
        {"of the run": name, "is": text, "value": value, "unit": unit, PATH: path}
        for name, text, value, unit, path in lines
        if value is not None
    ]


def _living(report: Report, tier: str) -> str:
    """Which consumers keep rows in a tier."""
    names = dict.fromkeys(r.consumer for r in report.ledger if r.tier == tier and r.bytes)
    return ", ".join(palette.consumer(name).lower() for name in names)


def together(found: TogetherMemory) -> Rows:
    """Each part of each phase of a step that trains and serves on the same GPUs."""
    rows = []
    for i, phase in enumerate(found.phases):
        sizes = [("in all", phase.bytes, f"together.phases.{i}.bytes")]
        sizes += [
            (PARTS[part], size, f"together.phases.{i}.parts.{part}")
            for part, size in phase.parts.items()
        ]
        rows += [
            {"phase": phase.label, "part": part, "size": bytes_text(n), "bytes": n, PATH: path}
            for part, n, path in sizes
        ]
    return rows


def _felt(seconds: float | None) -> str:
    """Of a request; '' where none is served."""
    return "" if seconds is None else seconds_text(seconds)


def serving(serve: Serve, concurrency: int) -> Rows:
    """The memory of one serving GPU, line by line."""
    kv = serve.sequence_bytes * concurrency
    waste = serve.wasted_bytes_per_sequence * concurrency
    states = (
        ("State per sequence", serve.state_bytes_per_sequence,
         "of it what layers keep however long it is", "state_bytes_per_sequence"),
        ("States of these sequences", serve.state_bytes_per_sequence * concurrency,
         "of it their states, without what pads their pages", "asked_state_bytes"),
    )  # fmt: skip
    held = states if serve.state_bytes_per_sequence else ()
    whole = "prompt and output"
    if serve.reserved_tokens:
        whole = f"reserved: {serve.reserved_tokens:,} tokens"
    elif serve.blocks_per_sequence:
        whole += ", whole blocks"
    empty = "the empty part of the last block or of the reservation"
    if held:
        empty = f"{empty}, and what pads the pages of states"
    heard = (
        ("Cross-attention cache per sequence", serve.cross_bytes_per_sequence,
         "of it keys and values of what the encoder read", "cross_bytes_per_sequence"),
    ) if serve.cross_bytes_per_sequence else ()  # fmt: skip
    tower = (
        ("Tower", serve.tower_bytes, "of it, where that is most: what runs before the layers",
         "tower_bytes"),
        ("Results of the tower", serve.feature_bytes, "of it, while the layers run",
         "feature_bytes"),
    ) if serve.tower_bytes else ()  # fmt: skip
    lines = (
        ("Weights", serve.weights_bytes, "read once per forward", "weights_bytes"),
        ("Tables", serve.table_bytes, "what the engine keeps besides", "table_bytes"),
        ("KV cache per token", serve.kv_bytes_per_token, "keys and values of all layers",
         "kv_bytes_per_token"),
        ("KV cache per sequence", serve.sequence_bytes, whole,
         "sequence_bytes"),
        *held[:1],
        *heard,
        ("KV cache of these sequences", kv, f"{concurrency:,} sequences, each with all of it",
         "asked_bytes"),
        *held[1:],
        ("KV cache of the whole replica", kv * serve.gpus_per_replica, "over all its GPUs",
         "replica_bytes"),
        ("KV cache never used", waste,
         empty, "wasted_bytes"),
        ("Activations", serve.activation_bytes, "the largest forward", "activation_bytes"),
        *tower,
        ("Overhead", serve.overhead_bytes, "outside the server's control", "overhead_bytes"),
        ("Budget", serve.budget_bytes, "what the server may use of the GPU", "budget_bytes"),
        ("Room for KV cache", serve.kv_budget_bytes,
         "budget less weights, activations, overhead", "kv_budget_bytes"),
        ("Beside the budget", serve.outside_bytes, "CUDA context and graphs", "outside_bytes"),
    )  # fmt: skip
    return [
        {
            "what": name,
            "size": bytes_text(size),
            "bytes": size,
            "note": note,
            PATH: f"serve.{field}",
        }
        for name, size, note, field in lines
    ]


def limits(found: Sequence[Answer], rate: float) -> Rows:
    """How far the plan can go, and what forbids more."""
    titles = {
        "context": ("Longest sequence", "{:,} tokens"),
        "concurrency": ("Most sequences at once", "{:,}"),
        "gpus": (f"Fewest GPUs for {rate:,.4g} requests a second", "{:,}"),
    }
    return [
        {
            "question": titles[a.question][0],
            "answer": titles[a.question][1].format(a.value) if a.value else "not possible",
            "what forbids more": LIMITS[a.limit],
            "first token": _felt(a.served.ttft_seconds if a.value else None),
            "per token": _felt(a.served.tpot_seconds if a.value else None),
            "tensor parallel": a.plan.serving_tp,
            "value": a.value,
        }
        for a in found
    ]


def parts(book: Book, e: Explanation) -> Rows:
    """What a number is computed from, each part with how it comes about itself."""
    total = sum(t.value for t in e.parts) if _adds_up(e) else 0
    return [
        {
            "part": t.name,
            "is": exact_text(t.value, t.unit),
            **({"share": 100 * t.value / total} if total else {}),
            "how": _how(book, t),
            "certainty": t.certainty,
            "source": t.source or "; ".join(book.explain(t.path).sources),
        }
        for t in e.parts
    ]


def _adds_up(e: Explanation) -> bool:
    """Whether the parts are shares of a whole."""
    if len(e.parts) < 2 or isinstance(e.value, tuple) or e.unit not in ("bytes", "seconds", "FLOP"):
        return False
    if any(t.unit != e.unit for t in e.parts):
        return False
    return math.isclose(sum(t.value for t in e.parts), e.value, rel_tol=1e-6)


def _how(book: Book, t: Term) -> str:
    found = book.explain(t.path) if t.path else None
    if found and found.formula:
        return f"{found.formula.words} = {found.formula.numbers}"
    return found.meaning if found else t.note


# --- how right it is, and how it comes about ------------------------------------------------------

WHAT = {
    "parameters": "parameters",
    "saved": "saved for backward",
    "peak": "peak of forward and backward",
    "figure": "as published",
}


def accuracy(rows: Sequence[evidence.Comparison]) -> Rows:
    """Every figure of others beside ours, the largest difference first."""
    return [
        {
            "model": r.model,
            "what": WHAT.get(r.what, r.what),
            "error %": 100 * r.error,
            "theirs": figure_text(r.theirs),
            "ours": f"{r.low:,} to {r.high:,}" if r.low < r.high else figure_text(r.ours),
            "unit": r.unit,
            "regime": r.regime,
            "attention": r.attention,
            "checkpointing": r.checkpointing,
            "micro-batch": r.batch or None,
            "sequence": r.seq_len or None,
            "layers": r.layers or None,
            "GPUs": r.gpus or None,
            "source": r.source,
            "family": r.family,
            "used for": r.used_for,
            "run": r.run,
            "confidence": r.confidence,
            "remark": r.remark,
            "their_value": r.theirs,
            "our_value": r.ours,
            "our_low": r.low or None,
            "our_high": r.high or None,
            PATH: compared_path(r),
        }
        for r in sorted(rows, key=lambda r: -abs(r.error))
    ]


@functools.cache
def _places() -> dict[evidence.Comparison, int]:
    return {row: i for i, row in enumerate(evidence.compare())}


def compared_path(row: evidence.Comparison) -> str:
    """Where a comparison is explained."""
    return f"evidence.compared.{_places()[row]}" if row in _places() else ""


def figure_text(value: float) -> str:
    """A figure to the last digit, or a ratio to four."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4f}"


def matching(
    rows: Sequence[evidence.Comparison], source: str | None, family: str | None
) -> list[evidence.Comparison]:
    """The rows of a source and of a family; None: of any."""
    return [r for r in rows if source in (None, r.source) and family in (None, r.family)]


def sources(rows: Sequence[evidence.Comparison]) -> list[str]:
    """Where the rows are from."""
    return list(dict.fromkeys(r.source for r in rows))


def families(rows: Sequence[evidence.Comparison]) -> list[str]:
    """The families of models that the rows are about."""
    return sorted({r.family for r in rows} - {""})


def _compared(row: evidence.Comparison) -> str:
    """What a row compares; autocast apart, since its reference has a limit that is known."""
    what = WHAT.get(row.what, row.what)
    return f"{what}, autocast" if row.regime == "autocast" else what


def agreement(rows: Sequence[evidence.Comparison]) -> Rows:
    """How many rows of each kind there are, and how far ours are from theirs. What a constant was
    tuned on and what was only checked are never in one line."""
    groups: dict[tuple[str, str, str], list[evidence.Comparison]] = {}
    for r in rows:
        groups.setdefault((r.source, _compared(r), r.used_for), []).append(r)
    return [
        {
            "compared": compared,
            "with": source,
            "rows": len(found),
            "equal": sum(r.error == 0 for r in found),
            "lowest": _percent(min(r.error for r in found)),
            "median": _percent(median(r.error for r in found)),
            "highest": _percent(max(r.error for r in found)),
            "used for": used_for,
        }
        for (source, compared, used_for), found in groups.items()
    ]


def tuning(rows: Sequence[evidence.Comparison]) -> str:
    """What was tuned on and what was only checked, in a sentence."""
    tuned = sum(r.used_for != evidence.CHECK for r in rows)
    if not tuned:
        return "Every row is a check: nothing in Memplan was tuned on any of them."
    return (
        f"{len(rows) - tuned:,} rows are checks: nothing in Memplan was tuned on them. On the "
        f"other {tuned:,} a constant was tuned: they are kept apart here, and prove nothing."
    )


def _percent(error: float) -> str:
    """A relative difference, to a hundred thousandth; '0' says that there is none."""
    if not error:
        return "0"
    return f"{error:+.3%}" if abs(error) >= 0.5e-5 else "about 0"


def headline(rows: Sequence[evidence.Comparison]) -> str:
    """What the comparisons come to, in one paragraph."""
    counted = [r for r in rows if r.what in ("parameters", "saved")]
    equal = sum(r.error == 0 for r in counted)
    sure, cast = (
        max([abs(r.error) for r in rows if r.what == "peak" and (r.regime == "autocast") == a])
        for a in (False, True)
    )
    return (
        f"**{len(rows):,} figures of others beside Memplan's own.** Of the {len(counted):,} "
        f"parameter counts and sums of saved tensors, {equal:,} are equal to the byte "
        f"({equal / len(counted):.0%}). Peaks differ by at most {sure:.3%}; under autocast by up "
        f"to {cast:.1%}, for a reason that is known. {measured(rows)}"
    )


def measured(rows: Sequence[evidence.Comparison]) -> str:
    """What the runs on real GPUs come to, in a sentence or two."""
    runs = [r for r in rows if r.source == evidence.MEASURED and r.confidence == "high"]
    allocated = median([abs(r.error) for r in runs if r.what == "allocated"])
    reserved = [r for r in runs if r.what == "reserved"]
    inside = sum(r.error == 0 for r in reserved)
    return (
        f"Of what others measured on GPUs, allocated memory is {allocated:.1%} off in the median, "
        f"and {inside} of {len(reserved)} figures of reserved memory lie inside the interval; "
        f"{_times(runs)} What misses is listed with its reason."
    )


def _times(runs: Sequence[evidence.Comparison]) -> str:
    """What the measured steps that nothing was tuned on come to."""
    held = [r for r in runs if r.what == evidence.STEP_TIME and r.used_for == evidence.CHECK]
    errors = [abs(r.error) for r in held]
    inside = sum(e <= evidence.TIME_TOLERANCE for e in errors)
    return (
        f"of {len(held)} step times that nothing was tuned on half are within "
        f"{median(errors):.1%}, and {inside} within {evidence.TIME_TOLERANCE:.0%}."
    )


def not_compared() -> Rows:
    """Measured runs that are left out, and why."""
    tables = (evidence.measured_table(), evidence.times_table(), evidence.served_table())
    return [dict(gap) for table in tables for gap in table["left_out"]]


COUNTS = {
    evidence.STATES: "states only",
    evidence.STEP: "states and activations",
    evidence.DEVICE: "states, activations, overhead",
}
HOW = {"run": "its own code, run", "formula": "its formula, carried out"}


def calculators() -> Rows:
    """What other calculators say for the same plans, plan by plan, the most first."""
    return [
        {
            "plan": w.label,
            "job": w.detail,
            "calculator": s.calculator.name,
            "counts": COUNTS[s.calculator.counts],
            "says": bytes_text(s.theirs),
            "Memplan": bytes_text(s.ours),
            "against Memplan": relative_text(s.excess),
            "more than Memplan %": 100 * s.excess,
            "PyTorch's tracker": bytes_text(w.tracker),
            "remark": s.remark,
            "inputs": s.inputs,
            "how": HOW[s.calculator.how],
            "version": s.calculator.version,
            "source": s.calculator.url,
            "their_bytes": s.theirs,
            "our_bytes": s.ours,
            "tracker_bytes": w.tracker,
            PATH: f"evidence.calculators.{i}",
        }
        for i, (w, s) in enumerate((w, s) for w in evidence.worked() for s in w.said)
    ]


def estimators() -> Rows:
    """What frameworks' own estimators say of each plan, and which tensors make the difference."""
    known = evidence.estimators_table()["estimators"]
    return [
        {
            "estimator": known[e.by]["name"],
            "plan": e.label,
            "counts": e.what,
            "says": bytes_text(e.theirs),
            "Memplan": bytes_text(e.ours),
            "against Memplan": relative_text(evidence.relative(e.theirs, e.ours)),
            "more than Memplan %": 100 * evidence.relative(e.theirs, e.ours),
            "what makes the difference": "; ".join(
                f"{p.tensors}: {_signed(p.bytes)}"
                for p in sorted(e.parts, key=lambda p: -abs(p.bytes))
                if round(p.bytes)
            ),
            "pipeline stage": e.stage,
            "version": known[e.by]["version"],
            "source": known[e.by]["url"],
            "their_bytes": e.theirs,
            "our_bytes": e.ours,
            PATH: f"evidence.estimates.{i}",
        }
        for i, e in enumerate(evidence.estimates())
    ]


def _signed(n: float) -> str:
    return f"{'-' if n < 0 else '+'}{bytes_text(abs(n))}"


def estimated() -> str:
    """How far the estimators are from ours, in a paragraph."""
    known = evidence.estimators_table()["estimators"]

    def span(by: str, what: str) -> tuple[int, float, float]:
        more = [
            evidence.relative(e.theirs, e.ours)
            for e in evidence.estimates()
            if (e.by, e.what) == (by, what)
        ]
        return len(more), min(more), max(more)

    plans, least, most = span("megatron", "states")
    _, low, high = span("megatron", "activations")
    others, fewest, highest = span("deepspeed", "states")
    return (
        f"**{known['megatron']['name']}'s and {known['deepspeed']['name']}'s own estimators, "
        f"{plans} and {others} plans**, run as they are. Of the states Megatron-LM's is within "
        f"{max(-least, most):.1%} of Memplan. Of what forwards keep it says {-low:.0%} less to "
        f"{high:.0%} more than Memplan: it takes every layer for one of GPT with dropout, and a "
        f"mixture for its dense MLP. DeepSpeed's says {-fewest:.0%} less to {highest:.0%} more of "
        "states and buffers at the optimizer's step. Each difference is the sum of the tensors "
        "named, to the byte."
    )


def tracker() -> str:
    """With what PyTorch's tracker was asked about these plans."""
    return str(evidence.calculators_table()["tracker"])


def why_they_differ() -> Rows:
    """Each calculator, what it counts and which tensors make the difference."""
    known = {s.calculator.name: s.calculator for w in evidence.worked() for s in w.said}
    return [
        {"calculator": c.name, "counts": COUNTS[c.counts], "what makes the difference": c.remark}
        for c in known.values()
    ]


def spread() -> str:
    """How far apart the calculators are, and how near Memplan is to PyTorch, in a paragraph."""
    plans = evidence.worked()
    first = plans[0]
    whole = [s.theirs for s in first.said if s.calculator.counts != evidence.STATES]
    figures = sum(len(w.said) for w in plans)
    names = {s.calculator.name for w in plans for s in w.said}
    worst = max(abs(evidence.relative(w.ours, w.tracker)) for w in plans)
    return (
        f"**{len(names)} calculators, {len(plans)} plans, {figures} figures.** For {first.label} "
        f"({first.detail}) those that count a whole step say from {bytes_text(min(whole))} to "
        f"{bytes_text(max(whole))}; PyTorch's own tracker says {bytes_text(first.tracker)} and "
        f"Memplan {bytes_text(first.ours)}. In all {len(plans)} plans Memplan is within "
        f"{worst:.4%} of the tracker."
    )


def markdown(rows: Rows, columns: Sequence[str], plain: Callable[[str], str]) -> str:
    """Rows as a table that wraps its text, for sentences; `plain` escapes a cell."""
    lines = [columns, ["---"] * len(columns)]
    lines += [[plain(f"{row[name]}") for name in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def constants_used() -> Rows:
    """The constants that no shape determines."""
    return [
        {
            "constant": c.name,
            "value": _interval(c),
            "certainty": c.certainty,
            "source": c.source,
        }
        for c in constants.ALL
    ]


def _interval(c: constants.Constant) -> str:
    ends = dict.fromkeys(_quantity(end, c.unit) for end in (c.low, c.high))
    return " to ".join(ends)


def _quantity(value: float, unit: str) -> str:
    """A figure in the unit that people say it in."""
    if unit == "bytes":
        return gib_text(value) if value >= 2**27 else bytes_text(value)
    if unit in ("B/s", "FLOP/s"):
        return rate_text(value, unit)
    if unit == "seconds":
        return seconds_text(value)
    plain = f"{value:,.4g}" if value < 1000 else f"{value:,.2f}".removesuffix(".00")
    return plain if unit == "ratio" else f"{plain} {unit}"


def published() -> Rows:
    """Figures that a reader checks first, beside ours."""
    return [
        {
            "figure": p.what,
            "published": _published(p.theirs, p.unit),
            "Memplan": _published(p.ours, p.unit),
            "difference": _percent(p.error),
            "source and remark": f"{p.source}. {p.remark}".strip(),
            "their_value": p.theirs,
            "our_value": p.ours,
            "unit": p.unit,
            PATH: f"evidence.published.{i}",
        }
        for i, p in enumerate(evidence.published())
    ]


def _published(value: float, unit: str) -> str:
    """As such figures are printed: large sizes in GB, which is 10^9 bytes."""
    if unit != "bytes":
        return _quantity(value, unit)
    return f"{value / 1e9:,.2f} GB" if value >= 1e9 else bytes_text(value)


def one_block(plan: Plan) -> Rows:
    """Every operation of one block of each kind, in the order in which they run."""
    return [
        {
            "block": o.block if o.blocks == 1 else f"{o.block} ({o.blocks:,} of them)",
            "operation": o.name,
            "FLOPs, forward": count_text(o.forward_flops) if o.forward_flops else "",
            "formula": o.formula,
            "HBM, forward": bytes_text(o.forward_hbm_bytes) if o.forward_hbm_bytes else "",
            "HBM, backward": bytes_text(o.backward_hbm_bytes) if o.backward_hbm_bytes else "",
            "adds to saved": bytes_text(o.saved_bytes) if o.saved_bytes else "",
            "saves": o.saves,
            "runs": o.runs,
            "blocks": o.blocks,
            "forward_flops": round(o.forward_flops),
            "backward_flops": round(o.backward_flops),
            "forward_hbm_bytes": round(o.forward_hbm_bytes),
            "backward_hbm_bytes": round(o.backward_hbm_bytes),
            "saved_bytes": o.saved_bytes,
            PATH: f"evidence.operations.{i}",
        }
        for i, o in enumerate(evidence.operations(plan))
    ]


def terms() -> Rows:
    """Words that the pages use."""
    return list(evidence.method()["terms"])


def dimensions(plan: Plan) -> Rows:
    """The names in shapes, with what this plan makes of them."""
    words, sizes = evidence.method(), evidence.sizes(plan)
    return [
        {
            "name": name,
            "here": f"{sizes[name]:,}",
            "meaning": meaning,
            "kind": kind,
            PATH: f"evidence.dimensions.{name}",
        }
        for kind, table in (("dimension", "dimensions"), ("cut over", "axes"))
        for name, meaning in words[table].items()
    ]


@functools.cache
def _first_levers() -> dict[str, str]:
    """The first lever of each plan that is known to run out of memory."""
    plans = {row["name"]: Plan.of(row["plan"]) for row in evidence.first_fixes()}
    return {name: find_levers(plan)[0].label for name, plan in plans.items()}


def first_fixes() -> Rows:
    """Plans that run out of memory, Memplan's first lever, and what those who know would do."""
    ours = _first_levers()
    return [
        {
            "plan": row["what"],
            "Memplan's first lever": ours[row["name"]],
            "what others would do, and why": f"{row['reason']} ({row['source']})",
            "theirs": " or ".join(row["first"]),
        }
        for row in evidence.first_fixes()
    ]


def left_out() -> Rows:
    """What no figure includes, and how much it could matter."""
    return list(evidence.method()["left_out"])
