"""`memplan evaluate`: what a plan needs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from memcore.cli.arguments import TABLES
from memcore.cli.printing import (
    BAD_INPUT,
    CHECKED,
    FAILED,
    WORST,
    failed,
    json_text,
    plan_title,
    printable,
    table,
    write_csv,
)
from memcore.cli.reading import MAX_PLAN_BYTES, document_of, given_plan, measured_of, settled
from memcore.errors import PlanError, fault, refusal
from memcore.report import plain
from memcore.units import (
    bytes_text,
    count_text,
    energy_text,
    hours_text,
    money_text,
    rate_text,
    seconds_text,
)
from memcore.words.jobs import ANY, RL, SERVE

if TYPE_CHECKING:
    from memcore import Report
    from memcore.plan.measured import Measured
    from memcore.plan.plan import Plan
    from memcore.report import Inference, Time, TogetherMemory
    from memcore.search.measured import Calibrated

ALIKE = 0.99  # of two counts of FLOPs


def run(args: argparse.Namespace) -> int:
    from memcore.evaluate import evaluate

    if args.json and args.table:
        raise refusal("--table", "is of CSV: leave it out with --json")
    measured = measured_of(args)
    if args.plan == "-" and args.json:
        return _evaluate_lines(sys.stdin.buffer, args, measured)
    plan = given_plan(args)
    report = evaluate(plan)
    moved = _calibrated(plan, report, measured)
    if args.csv or args.table:
        wanted = [args.table] if args.table else TABLES
        rows = [{"table": table, **row} for table in wanted for row in _rows(plan, report, table)]
        if moved and "breakdown" in wanted:
            rows += [{"table": "breakdown", **row} for row in _calibrated_rows(moved)]
        write_csv(rows)
        return _checked(args, plan, report)
    if args.json:
        print(json_text(_document(report, moved), indent=1))
    else:
        print(_readable(plan, report, moved))
    return _checked(args, plan, report)


def _calibrated(plan: Plan, report: Report, measured: Measured | None) -> Calibrated | None:
    """The plan with what was measured. Raises PlanError where that says nothing of it."""
    if measured is None:
        return None
    from memcore.search.measured import calibrated

    return calibrated(plan, measured, report)


def _document(report: Report, calibrated: Calibrated | None) -> dict[str, Any]:
    """The Report as JSON has it, with what is calibrated."""
    return calibrated.with_report(report) if calibrated else report.to_dict()


LATENCIES = {"step": "step", "token": "a token", "first": "first token"}


def _calibrated_rows(calibrated: Calibrated) -> Iterable[dict[str, Any]]:
    for name, moved in calibrated.moved.items():
        seconds = (moved.calibrated_seconds, *moved.interval)
        for which, value in zip(("", ", at least", ", at most"), seconds, strict=True):
            yield {"part": "calibrated", "name": LATENCIES[name] + which, "seconds": value}
    if "allocated_bytes" in calibrated.numbers:
        _, size = calibrated.numbers["allocated_bytes"]
        yield {"part": "calibrated", "name": "allocated", "bytes": size}


def _rows(plan: Plan, report: Report, table: str) -> Iterable[dict[str, Any]]:
    """One table of a Report, row by row: bytes, and seconds of a step. The timeline is memory over
    the step's seconds, stage by stage."""
    if table == "timeline":
        from memcore.training.over_time import over_time, rows

        return rows(over_time(plan)) if report.time else ()
    if table == "ledger":
        return (plain(row) for row in report.ledger)
    if table == "transfers":
        return (plain(row) for row in report.time.transfers) if report.time else ()
    return _breakdown(report)


def _breakdown(report: Report) -> Iterable[dict[str, Any]]:
    """Who holds the peak of one GPU and what lies beyond it, each node's memory, and what a step's
    time is made of."""
    if memory := report.memory:
        for name, size in memory.consumers.items():
            yield {"part": "consumers", "name": name, "bytes": size}
        for name in ("reserved_bytes", "device_bytes"):
            low, high = getattr(memory, name)
            yield {"part": "intervals", "name": name, "bytes": low, "bytes_at_most": high}
        for name, size in memory.tiers.items():
            yield {"part": "tiers", "name": name, "bytes": size}
    if time := report.time:
        for name, busy in time.resources.items():
            exposed = time.exposed.get(name, 0.0)
            yield {"part": "resources", "name": name, "seconds": busy, "exposed_seconds": exposed}
        for name, seconds in time.phases.items():
            yield {"part": "phases", "name": name, "seconds": seconds}


def _checked(args: argparse.Namespace, plan: Plan, report: Report) -> int:
    """The exit status of --check and --check-serving, the worse of both; 0 without them."""
    served = args.check_serving or (args.check and plan.about == SERVE)
    trained = args.check and plan.about != SERVE
    verdicts = [report.verdict] * trained + [report.serving_verdict] * served
    return max((CHECKED[verdict] for verdict in verdicts), key=WORST.index, default=0)


def _evaluate_lines(lines: IO[bytes], args: argparse.Namespace, measured: Measured | None) -> int:
    """One Plan per line in, one Report per line out, in order; a line that is bad, or that Memplan
    fails at, gives an `error`."""
    from memcore.evaluate import evaluate

    status = 0
    for number, text in _documents(lines):
        try:
            plan = settled(document_of(text), args.set, args.job)
            report = evaluate(plan)
            answer = json_text(_document(report, _calibrated(plan, report, measured)))
            status = max(status, _checked(args, plan, report), key=WORST.index)
        except PlanError as e:
            status = BAD_INPUT
            issues = [{"field": i.field, "message": i.message} for i in e.issues]
            answer = json_text({"error": str(e), "line": number, "issues": issues})
        except Exception as e:  # the lines that follow have their answers all the same
            status = max(status, failed(args), key=WORST.index)
            error = f"{FAILED} ({fault(e)})"
            answer = json_text({"error": error, "line": number, "issues": []})
        print(answer, flush=True)
    return status


def _documents(lines: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each plan in a stream, and the number of the line on which it begins: a line, or where that
    leaves a brace open all to the line that closes it. Another that begins at the margin, as the
    next of JSONL does, ends what is open."""
    number, ahead = 0, b""
    while line := ahead or lines.readline(MAX_PLAN_BYTES + 1):
        number, ahead = number + 1, b""
        rest, begun = line, number
        while len(rest) > MAX_PLAN_BYTES and not rest.endswith(b"\n"):  # to the end of this line
            rest = lines.readline(MAX_PLAN_BYTES + 1)
        parts, size, depth = [line], len(line), _opened(line)
        while depth > 0 and size <= MAX_PLAN_BYTES:
            more = lines.readline(MAX_PLAN_BYTES + 1)
            if not more or more.startswith(b"{"):
                ahead = more
                break
            number, size, depth = number + 1, size + len(more), depth + _opened(more)
            parts.append(more)
        if line.strip():
            yield begun, b"".join(parts)


STRINGS = re.compile(rb'"(?:[^"\\]|\\.?)*+(?:"|\Z)', re.DOTALL)


def _opened(line: bytes) -> int:
    """How many more brackets a line of JSON opens than it closes."""
    bare = STRINGS.sub(b"", line)
    return sum(bare.count(c) for c in (b"{", b"[")) - sum(bare.count(c) for c in (b"}", b"]"))


def _readable(plan: Plan, report: Report, calibrated: Calibrated | None) -> str:
    """The Report for a terminal: what the plan is about, its verdict first."""
    about, blocks = plan.about, [plan_title(plan, report)]
    moved = [f"Calibrated: {calibrated.text}\n{calibrated.assumed}"] if calibrated else []
    of_server = calibrated is not None and calibrated.measured.of_server
    if about != ANY:
        blocks += _not_computed(report, "Serving" if about == SERVE else "Training")
    if report.together and about != SERVE:
        blocks += _together(plan, report, report.together)
    if about != SERVE:
        blocks += (*_memory(report), *_time(plan, report))
        blocks += [] if of_server else moved
        blocks += _run(plan, report)
    if about in (SERVE, ANY):
        blocks += _serve(plan, report)
    blocks += moved if of_server else []
    blocks += _next(plan, report)
    above = "\n".join(blocks)
    notes = [
        f"Note: {note}"
        for note in _notes(plan, report)
        if note.removeprefix("Serving: ").removesuffix(".") not in above
    ]
    notes += [f"Note on {path}: {remark}" for path, remark in report.remarks.items()]
    blocks.append("\n".join(notes))
    text = "\n\n".join(filter(None, blocks))
    return printable(text)


def _not_computed(report: Report, what: str) -> Iterable[str]:
    """That what the plan is about is not computed, and why; nothing where it is."""
    return (note for note in report.notes if note.startswith(f"{what} is not computed"))


def _together(plan: Plan, report: Report, both: TogetherMemory) -> Iterable[str]:
    """Each phase of a step that trains and serves on the same GPUs, and how long it takes."""
    from memcore.together.generation import generation, step_text

    low, high = both.device_bytes
    yield (
        f"Training and serving on the same GPUs, {both.verdict.upper()}: {bytes_text(low)} to "
        f"{bytes_text(high)} of {bytes_text(both.capacity_bytes)} per GPU in the fullest phase"
    )
    rows = [
        (phase.label, bytes_text(phase.bytes), *map(bytes_text, phase.device_bytes))
        for phase in both.phases
    ]
    yield "\n".join(table(("Phase", "bytes", "on the device, at least", "at most"), rows))
    made = generation(plan)
    if made and report.time:
        yield " ".join(step_text(plan, made, report.time.step_seconds))


def _next(plan: Plan, report: Report) -> Iterable[str]:
    """What to change first, of what the plan is about and does not fit."""
    if plan.about != SERVE and report.memory and report.memory.verdict != "fits":
        from memcore.search.levers import levers

        trained = levers(plan)
        if trained and trained[0].fits:
            yield _first(trained[0].label, trained[0].followers, "", sum(v.fits for v in trained))
        else:
            yield (
                "No single change makes it fit, nor do the pairs that were tried: `memplan search` "
                "tries all together."
            )
    if plan.about in (SERVE, ANY) and report.serve and not report.serve.fits:
        from memcore.search.server_levers import server_levers

        served = [lever for lever in server_levers(plan) if not lever.limit]
        if served:
            yield _first(served[0].label, served[0].followers, " --serving", len(served))
        else:
            yield (
                "No single change serves them: `memplan search --serve` tries other GPUs, engines "
                "and dtypes."
            )


def _first(label: str, followers: Sequence[str], option: str, fixes: int) -> str:
    also = f" (and {', '.join(followers)})" if followers else ""
    how = "serves them" if option else "makes it fit"
    listed = f"`memplan levers{option}` lists {fixes:,} changes that do, with their prices"
    return f"Next step: {label}{also} {how}. {listed}."


def _notes(plan: Plan, report: Report) -> Sequence[str]:
    """The Report's notes, those that are about what the plan is about."""
    if plan.about in (ANY, RL) or report.serve is None:
        return report.notes
    from memcore.serving.notes import serving_notes

    served = serving_notes(plan, report.serve)
    if plan.about == SERVE:
        return (*plan.architecture.notes, *served)
    left = [note for note in report.notes if note not in served]
    return [note for note in left if not note.startswith("Serving is not computed")]


def _memory(report: Report) -> Iterable[str]:
    memory = report.memory
    if memory is None:
        return
    low, high = memory.device_bytes
    peak = memory.peak
    label = next(
        (i.label for i in memory.timeline if (i.rank, i.id) == (peak.rank, peak.instant)),
        peak.instant,
    )
    of_gpu = (
        f"{bytes_text(low)} to {bytes_text(high)} of {bytes_text(memory.capacity_bytes)} per GPU"
    )
    full = [
        f"{name}, {bytes_text(memory.tiers[tier])} of {bytes_text(memory.tier_capacities[tier])}"
        for tier, name in (("dram", "the host's memory (DRAM)"), ("nvme", "the host's NVMe"))
        if memory.tiers.get(tier, 0) > memory.tier_capacities.get(tier, 0)
    ]
    if full and high <= memory.capacity_bytes:  # the GPUs have room
        of_gpu = f"{' and '.join(full)} of a node. The GPU has room: {of_gpu}"
    elif full:
        of_gpu = f"{of_gpu}; and {' and '.join(full)} of a node"
    yield f"{memory.verdict.upper()}: {of_gpu}\nPeak: {label}"

    def row(name: str, size: int, of: int) -> tuple[str, ...]:
        share = f"{size / of:.1%}" if of else ""
        return name.replace("_", " "), f"{size:,}", bytes_text(size), share

    total = memory.allocated_bytes
    rows = [row(name, size, total) for name, size in memory.consumers.items()]
    rows.append(row("allocated", total, total))
    for name, (low, high) in (
        ("reserved", memory.reserved_bytes),
        ("on the device", memory.device_bytes),
    ):
        rows.append((f"{name}, at least", f"{low:,}", bytes_text(low), ""))
        rows.append((f"{name}, at most", f"{high:,}", bytes_text(high), ""))
    yield "\n".join(table(("Per GPU at the peak", "bytes", "", "share"), rows))
    rows = [
        row(name, size, memory.tier_capacities.get(name, 0))
        for name, size in memory.tiers.items()
        if name != "hbm" and size
    ]
    if rows:
        yield "\n".join(table(("Per node", "bytes", "", "of all"), rows))


def _utilization(time: Time) -> str:
    """MFU, and what it would be by the FLOPs that are run once, where causal kernels skip more than
    a hundredth of those that it counts."""
    text = f"MFU {time.mfu:.1%}"
    run = (time.hardware_flops - time.recompute_flops) / time.model_flops
    if len(time.stages) > 1 or run > ALIKE:
        return text
    return f"{text} as PaLM counts it, attention without its mask, and {run * time.mfu:.1%} run"


def _time(plan: Plan, report: Report) -> Iterable[str]:
    time = report.time
    if time is None:
        return
    from memcore.training.numbers_of_time import LABELS

    low, high = time.step_interval
    yield (
        f"Step{report.if_it_fitted}: {seconds_text(time.step_seconds)} "
        f"({seconds_text(low)} to {seconds_text(high)}), bound by {time.bound_by}; "
        f"{time.tokens_per_second:,.0f} {plan.architecture.unit}/s, {_utilization(time)}\n"
        f"The interval is that of {time.compared}."
    )
    rows = [
        (LABELS[name], seconds_text(busy), seconds_text(time.exposed.get(name, 0.0)))
        for name, busy in time.resources.items()
        if busy
    ]
    yield "\n".join(table(("Resource", "busy", "exposed"), rows))


def _run(plan: Plan, report: Report) -> Iterable[str]:
    run = report.run
    if run is None:
        return
    parts = [
        f"{run.steps:,} steps",
        seconds_text(run.seconds),
        f"{hours_text(run.gpu_hours)} GPU-hours",
    ]
    if run.cost is not None:
        price = money_text(plan.run.price_per_gpu_hour)
        parts.append(f"{money_text(run.cost)} at {price} per GPU-hour")
    yield (
        f"{count_text(plan.run.tokens)} {plan.architecture.unit}: {', '.join(parts)}\n"
        f"Energy at {rate_text(run.watts, 'W')}: {energy_text(run.energy_joules)}, "
        f"{energy_text(run.joules_per_token)} a "
        f"{plan.architecture.unit.removesuffix('s')}\n"
        f"A checkpoint: {bytes_text(run.checkpoint_bytes)}, {bytes_text(run.weights_bytes)} of it "
        f"weights; saved every {run.save_every:,} steps, for {seconds_text(run.save_seconds)}; "
        f"{bytes_text(run.disk_bytes)} on disk\n"
        f"With saves and {run.interruptions:,.2g} interruptions: "
        f"{seconds_text(run.elapsed_seconds)}"
    )


def _forward(plan: Plan, forward: Inference) -> str:
    """What one forward of a model that generates nothing needs, and how long it takes."""
    low, high = map(bytes_text, forward.device_bytes)
    each = f" of {forward.tokens:,} tokens" if forward.tokens else ""
    tokens = f", {forward.tokens_per_second:,.0f} tokens/s" if forward.tokens_per_second else ""
    bound = {"compute": "arithmetic", "hbm": "memory traffic"}.get(forward.bound_by, "the host")
    return (
        f"Inference {forward.verdict.upper()}: a batch of {forward.batch:,}{each} needs {low} to "
        f"{high} of {bytes_text(forward.capacity_bytes)} per GPU; {forward.max_batch:,} fit\n"
        f"Allocated {bytes_text(forward.allocated_bytes)}: weights "
        f"{bytes_text(forward.weights_bytes)} ({plan.weights.compute}), activations "
        f"{bytes_text(forward.activation_bytes)} at {forward.peak_at}\n"
        f"Latency {seconds_text(forward.latency_seconds)} a batch, limited by {bound}; "
        f"{forward.samples_per_second:,.0f} samples/s{tokens} on "
        f"{plan.cluster.gpus:,} GPU{'s' * (plan.cluster.gpus > 1)}"
    )


def _serve(plan: Plan, report: Report) -> Iterable[str]:
    if report.inference:
        yield _forward(plan, report.inference)
    serve = report.serve
    if serve is None:
        return
    from memcore.serving.serve import verdict

    state = serve.state_bytes_per_sequence
    states = f" and {bytes_text(state)} a sequence" if state else ""
    word = "FITS" if serve.fits else "DOES NOT FIT"
    text = (
        f"Serving {word}: {verdict(serve, plan)}\n"
        f"Serving, per GPU: weights {bytes_text(serve.weights_bytes)} ({plan.weights.label}), KV "
        f"cache {bytes_text(serve.kv_bytes_per_token)} a token{states}; room for "
        f"{serve.kv_capacity_tokens:,} tokens, {serve.max_concurrency:,} sequences on the "
        f"{serve.gpus_per_replica:,} GPU{'s' * (serve.gpus_per_replica > 1)} of a replica"
    )
    if serve.ttft_seconds and serve.tpot_seconds and serve.tokens_per_second:
        ends = (serve.ttft_range, serve.tpot_range)
        first, each = (" to ".join(map(seconds_text, pair)) for pair in ends if pair)
        text += (
            f"\nFirst token after {seconds_text(serve.ttft_seconds)} ({first}), then one every "
            f"{seconds_text(serve.tpot_seconds)} ({each}); {serve.tokens_per_second:,.0f} tokens/s "
            f"in all, prompts read besides, and {serve.decode_tokens_per_second or 0:,.0f} by "
            "decoding alone. Eight in ten that were measured lie within"
        )
    if serve.cost_per_million_in is not None and serve.cost_per_million_out is not None:
        text += (
            f"\nA million tokens cost {money_text(serve.cost_per_million_in)} in and "
            f"{money_text(serve.cost_per_million_out)} out, where a replica is busy all along"
        )
    yield text
