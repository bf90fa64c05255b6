"""`memplan snapshot`: what a run held on its GPUs, and how that compares with a plan."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from memcore.cli.arguments import Commands, command, plan_argument, positive
from memcore.cli.link import base_option, link_to
from memcore.cli.printing import answer, fail, form_options, table
from memcore.cli.reading import given_plan, named, read
from memcore.errors import PlanError
from memcore.units import bytes_text, relative_text, seconds_text

if TYPE_CHECKING:
    from memcore.formats.snapshot import Beside, Device, Snapshot
    from memcore.formats.totals import Counted, Totals
    from memcore.plan.measured import Measured
    from memcore.plan.plan import Plan

FIGURES = ("reserved_bytes", "requested_bytes", "waiting_bytes", "largest_free")
SHOWN = 12  # rows of a table to read; JSON and CSV have more


def add(commands: Commands) -> None:
    about = (
        "Say what a run really held on its GPUs, from a file of torch.cuda.memory._dump_snapshot, "
        "a trace of torch.profiler with profile_memory=True, or what memory_summary, memory_stats "
        "as JSON, DeepSpeed's see_memory_usage or nvidia-smi printed, "
        "and beside it what a plan says. Nothing in the file is run."
    )
    sub = command(commands, "snapshot", _snapshot, about)
    sub.add_argument("file", metavar="FILE", help="what says it; - is standard input")
    plan_argument(sub, needed=False)
    about = "what one optimizer step took, where the snapshot does not say it"
    sub.add_argument("--seconds", metavar="SECONDS", type=positive, help=about)
    base_option(sub)
    form_options(sub, "as JSON", "as one CSV, whose first columns say of which device and table")


def snapshot_in(path: str) -> Snapshot | Counted:
    """What a file says that a run held. Raises PlanError."""
    from memcore.formats.profile import held_of
    from memcore.formats.snapshot import MAX_BYTES

    return held_of(read(path, MAX_BYTES))


def _snapshot(args: argparse.Namespace) -> int:
    from memcore.evaluate import evaluate

    try:
        found = snapshot_in(args.file)
    except PlanError as e:
        return fail(*(f"{named(args.file)}: {issue}" for issue in e.issues))
    plan = given_plan(args) if args.plan else None
    memory = evaluate(plan).memory if plan else None
    if plan and memory is None:
        return fail("train: no training is planned, or it cannot be computed")
    rows = found.fullest.beside(memory) if memory else ()
    measured = _measured(found, plan, args.seconds) if plan else None

    def text() -> str:
        blocks = [*_blocks(found)]
        if plan:
            blocks += _compared(found.fullest, plan, rows, measured, args.base)
        return "\n\n".join(blocks)

    document = functools.partial(_document, found, rows, measured, args.base)
    return answer(args, document, text, lambda: _rows(found, rows))


def _measured(found: Snapshot | Counted, plan: Plan, seconds: float | None) -> Measured | None:
    """The plan's step as it ran; None where nothing says how long it took."""
    from memcore.plan.measured import Measured

    took = seconds or found.fullest.step_seconds
    return Measured(plan, took, found.fullest.allocated_bytes) if took else None


def _document(
    found: Snapshot | Counted, rows: Sequence[Beside], measured: Measured | None, base: str
) -> dict[str, Any]:
    from memcore.report import plain

    document = found.to_dict()
    if rows:
        document["beside"] = plain(rows)
    if measured:
        document["measured"] = {"seconds": measured.seconds, "bytes": measured.bytes}
        document["link"] = link_to([measured.plan], base, measured=measured)
    return document


def _rows(found: Snapshot | Counted, compared: Sequence[Beside]) -> Iterator[dict[str, Any]]:
    """Each table, with the columns that JSON has."""
    from memcore.formats.totals import Totals
    from memcore.report import plain

    devices: Sequence[Device | Totals] = found.devices
    for device, said in zip(devices, found.to_dict()["devices"], strict=True):
        if isinstance(device, Totals):
            tables = {
                when: [{"name": name, "bytes": size} for name, size in said[when].items()]
                for when in ("now", "peak")
            }
        else:
            tables = {
                "instants": [{"name": name, **said[name]} for name in ("start", "peak", "end")],
                "figures": [{"name": name, "bytes": said.get(name)} for name in FIGURES],
                **{name: said[name] for name in ("groups", "largest", "phases", "failures")},
            }
        for title, rows in tables.items():
            yield from ({"device": device.label, "table": title, **row} for row in rows)
    for row in plain(compared):
        yield {"device": found.fullest.label, "table": "beside", **row}


def _blocks(found: Snapshot | Counted) -> Iterator[str]:
    from memcore.formats.totals import Counted

    if isinstance(found, Counted):
        for totals in found.devices:
            yield from _counted(totals)
        return
    for device in found.devices:
        yield from _readable(device)
    yield from _settings(found)


def _counted(device: Totals) -> Iterator[str]:
    names = {**device.now, **device.peak}
    rows = [(name, _size(device.now.get(name)), _size(device.peak.get(name))) for name in names]
    yield "\n".join(table((device.label, "now", "at its peak"), rows))
    yield from device.remarks()


def _readable(device: Device) -> Iterator[str]:
    from memcore.formats.snapshot import CATEGORIES

    def row(name: str, at: Any) -> tuple[str, ...]:
        return name, *map(_size, (at.allocated, at.requested, at.reserved))

    lasts = f", {seconds_text(device.seconds)}" if device.seconds else ""
    peak = device.peak
    head = (f"{device.label}: {device.events:,} events{lasts}", "allocated", "requested",
            "reserved")  # fmt: skip
    when = f" ({seconds_text(peak.seconds)} after the start)" if peak.seconds else ""
    rows = [row("start", device.start), row(f"allocated peak{when}", peak), row("end", device.end)]
    most = (peak.allocated, device.requested_bytes, device.reserved_bytes)
    rows.append(("each at its own peak", *map(_size, most)))
    yield "\n".join(table(head, rows))
    free = peak.reserved - peak.allocated
    share = f" ({free / peak.reserved:.1%})" if peak.reserved else ""
    waits = f", {bytes_text(device.waiting_bytes)} of it waiting for another stream"
    if device.largest_free is not None:
        yield (
            f"Reserved and without a tensor at the peak: {bytes_text(free)}{share}"
            f"{waits if device.waiting_bytes else ''}; the largest free piece has "
            f"{bytes_text(device.largest_free)}."
        )
    for failure in device.failures:
        yield f"Memory ran out: {failure}; the GPU had {bytes_text(failure.free)} free."
    total = peak.allocated or 1
    categories = [
        (CATEGORIES[name], bytes_text(size), f"{size / total:.1%}")
        for name, size in device.categories.items()
    ]
    yield "\n".join(table(("At the peak", "bytes", "share"), categories))
    groups = [
        (CATEGORIES[each.category], each.where, f"{each.count:,}", bytes_text(each.bytes))
        for each in device.groups[:SHOWN]
    ]
    yield "\n".join(table(("By where it was allocated", "", "tensors", "bytes"), groups, left=2))
    alike = [
        (CATEGORIES[t.category], t.where, f"{t.count:,}", bytes_text(t.bytes // t.count))
        for t in device.largest[: SHOWN // 2]
    ]
    yield "\n".join(table(("The largest tensors", "", "tensors", "each"), alike, left=2))
    if device.phases:
        phases = [
            (p.name, f"{p.times:,}", seconds_text(p.seconds), bytes_text(p.allocated_bytes))
            for p in device.phases[:SHOWN]
        ]
        yield "\n".join(table(("Phase", "times", "each", "most allocated"), phases))


def _size(size: int | None) -> str:
    return "-" if size is None else bytes_text(size)


def _settings(found: Snapshot) -> Iterator[str]:
    said = [f"{name}={value}" for name, value in found.settings.items()]
    yield f"Allocator: {', '.join(said)}" if said else "The allocator's settings are not told."


def _compared(
    device: Device | Totals,
    plan: Plan,
    rows: Sequence[Beside],
    measured: Measured | None,
    base: str,
) -> Iterator[str]:
    from memcore.formats.snapshot import CATEGORIES

    def cells(row: Beside) -> tuple[str, ...]:
        name = CATEGORIES.get(row.name, row.name)
        low, high, held = row.planned, row.at_most, row.measured
        planned = _size(low)
        if low is None or held is None:
            return name, planned, _size(held), ""
        if high is not None:
            said = "within" if low <= held <= high else "below" if held < low else "above"
            return name, f"{planned} to {bytes_text(high)}", bytes_text(held), said
        return name, planned, bytes_text(held), relative_text(low / held - 1) if held else ""

    head = (f"{plan.architecture.label}, on {plan.cluster.gpus:,} x {plan.accelerator.label}",
            "planned", f"{device.label} had", "plan")  # fmt: skip
    yield "\n".join(table(head, [cells(row) for row in rows]))
    if measured is None:
        yield (
            "How long a step took is not in the file: say it with --seconds, and the link to "
            "the app has this run beside the plan."
        )
        return
    yield (
        f"A step took {seconds_text(measured.seconds)}, while memory was recorded. This link has "
        f"the run beside the plan:\n{link_to([plan], base, measured=measured)}"
    )
