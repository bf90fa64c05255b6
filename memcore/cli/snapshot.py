"""`memplan snapshot`: what a run had in memory on its GPUs, and how that compares with a plan."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from memcore.cli.link import link_to
from memcore.cli.printing import answer, fail, table
from memcore.cli.reading import given_plan, named, read
from memcore.errors import PlanError
from memcore.units import bytes_text, relative_text, seconds_text

if TYPE_CHECKING:
    from memcore.formats.memory import Compared, GpuMemory, RunMemory
    from memcore.plan.measured import Measured
    from memcore.plan.plan import Plan

SHOWN = 12  # rows of a table to read; JSON and CSV have more


def memory_in(path: str) -> RunMemory:
    """What a file says that a run had in memory. Raises PlanError."""
    from memcore.formats.snapshot import MAX_BYTES, read_memory

    return read_memory(read(path, MAX_BYTES))


def run(args: argparse.Namespace) -> int:
    from memcore.evaluate import evaluate

    try:
        run = memory_in(args.file)
    except PlanError as e:
        return fail(*(f"{named(args.file)}: {issue}" for issue in e.issues))
    if args.plan and (later := _memory_or_none(args.plan)):
        grown = _grown(run.fullest, later.fullest)
        return answer(args, lambda: grown, lambda: _growth(args, grown), lambda: grown)
    plan = given_plan(args) if args.plan else None
    memory = evaluate(plan).memory if plan else None
    if plan and memory is None:
        return fail("train: no training is planned, or it cannot be computed")
    rows = run.fullest.compared(memory) if memory else ()
    measured = _measured(run, plan, args.seconds) if plan else None
    link = link_to([measured.plan], args.base, measured=measured) if measured else ""

    def text() -> str:
        blocks = [block for device in run.devices for block in _readable(device)]
        if run.settings:
            settings = (f"{name}={value}" for name, value in run.settings.items())
            blocks.append(f"Allocator: {', '.join(settings)}")
        if plan:
            blocks += _compared(run.fullest, plan, rows, measured, link)
        return "\n\n".join(blocks)

    def document() -> dict[str, Any]:
        from memcore.report import plain

        content = run.to_dict() | ({"compared": plain(rows)} if rows else {})
        if measured:
            content["measured"] = {"seconds": measured.seconds, "bytes": measured.bytes}
        return content | ({"link": link} if link else {})

    return answer(args, document, text, lambda: _rows(run, rows))


def _memory_or_none(path: str) -> RunMemory | None:
    """What a second file says that a run had in memory; None of a plan."""
    if not os.path.isfile(path):
        return None
    with contextlib.suppress(PlanError):
        return memory_in(path)
    return None


def _grown(before: GpuMemory, after: GpuMemory) -> list[dict[str, Any]]:
    """What of one GPU's peak is larger or smaller in a second run: of each counter, of each
    category, and of each place that allocated, those that differ most first."""

    def of(device: GpuMemory) -> dict[tuple[str, str], int]:
        places = {("place", f"{g.category}: {g.where}"): g.bytes for g in device.groups}
        kinds = {("category", name): size for name, size in device.categories.items()}
        return {("counter", name): size for name, size in device.most.items()} | kinds | places

    was, now = of(before), of(after)
    found = [
        {
            "table": key[0],
            "name": key[1],
            "before": (had := was.get(key, 0)),
            "after": (has := now.get(key, 0)),
            "grew": has - had,
        }
        for key in dict.fromkeys([*was, *now])
    ]
    tables = ("counter", "category", "place")
    return sorted(found, key=lambda row: (tables.index(row["table"]), -abs(row["grew"])))


def _growth(args: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> str:
    blocks = []
    for title in dict.fromkeys(row["table"] for row in rows):
        head = (f"What grew, by {title}", named(args.file), named(args.plan), "grew")
        listed = [
            row for row in rows if row["table"] == title and (row["grew"] or title != "place")
        ]
        cells = [
            (str(row["name"]), bytes_text(row["before"]), bytes_text(row["after"]),
             ("-" if row["grew"] < 0 else "+") + bytes_text(abs(row["grew"])))
            for row in listed
        ][:SHOWN]  # fmt: skip
        if cells:
            blocks.append("\n".join(table(head, cells)))
    return "\n\n".join(blocks)


def _measured(run: RunMemory, plan: Plan, seconds: float | None) -> Measured | None:
    """The plan's step as it ran; None where nothing says how long it took."""
    from memcore.plan.measured import Measured

    took = seconds or run.fullest.step_seconds
    return Measured(plan, took, run.fullest.allocated_bytes) if took else None


def _rows(run: RunMemory, compared: Sequence[Compared]) -> Iterator[dict[str, Any]]:
    """Each table, with the columns that JSON has."""
    from memcore.report import plain

    for device, content in zip(run.devices, run.to_dict()["devices"], strict=True):
        tables = {
            "instants": [{"name": name, **sizes} for name, sizes in content["instants"].items()],
            "most": [{"name": name, "bytes": size} for name, size in content["most"].items()],
            **{name: content[name] for name in ("groups", "failures")},
        }
        for title, rows in tables.items():
            yield from ({"device": device.label, "table": title, **row} for row in rows)
    for row in plain(compared):
        yield {"device": run.fullest.label, "table": "compared", **row}


def _readable(device: GpuMemory) -> Iterator[str]:
    from memcore.formats.memory import CATEGORIES

    lasts = f", {seconds_text(device.seconds)}" if device.seconds else ""
    title = f"{device.label}: {device.events:,} events{lasts}" if device.events else device.label
    counters = list(device.most)
    last = "needed, at the least" if device.ran_out else "each at its own peak"
    lines = [
        (name, *(_size(sizes.get(counter)) for counter in counters))
        for name, sizes in (*device.instants.items(), (last, device.most))
    ]
    yield "\n".join(table((title, *counters), lines)) if counters else title
    yield from device.remarks
    yield from (f"Memory ran out: {failure}." for failure in device.failures)
    total = sum(device.categories.values()) or 1
    categories = [
        (CATEGORIES[name], bytes_text(size), f"{size / total:.1%}")
        for name, size in device.categories.items()
    ]
    if categories:
        yield "\n".join(table(("At the peak", "bytes", "share"), categories))
    groups = [
        (CATEGORIES[each.category], each.where, f"{each.count:,}", bytes_text(each.bytes))
        for each in device.groups[:SHOWN]
    ]
    if groups:
        head = ("By where it was allocated", "", "tensors", "bytes")
        yield "\n".join(table(head, groups, left=2))


def _size(size: int | None) -> str:
    return "-" if size is None else bytes_text(size)


def _compared(
    device: GpuMemory, plan: Plan, rows: Sequence[Compared], measured: Measured | None, link: str
) -> Iterator[str]:
    from memcore.formats.memory import CATEGORIES

    def cells(row: Compared) -> tuple[str, ...]:
        name = CATEGORIES.get(row.name, row.name)
        low, high, had = row.planned, row.at_most, row.measured
        if low is None or had is None:
            return name, _size(low), _size(had), ""
        if high is not None:
            verdict = "within" if low <= had <= high else "below" if had < low else "above"
            return name, f"{_size(low)} to {bytes_text(high)}", bytes_text(had), verdict
        return name, _size(low), bytes_text(had), relative_text(low / had - 1) if had else ""

    head = (f"{plan.architecture.label}, on {plan.cluster.gpus:,} x {plan.accelerator.label}",
            "planned", f"{device.label} had", "plan")  # fmt: skip
    yield "\n".join(table(head, [cells(row) for row in rows]))
    if measured is None:
        yield (
            "How long a step took is not in the file: say it with --seconds, and the link to "
            "the app compares the plan with this run."
        )
        return
    yield (
        f"A step took {seconds_text(measured.seconds)}, while memory was recorded. This link "
        f"compares the plan with the run:\n{link}"
    )
