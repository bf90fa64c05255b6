"""`memplan simulate`: a stream of requests through the plan's server."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from memcore.cli.printing import answer, fail, table
from memcore.cli.reading import given_plan, read
from memcore.errors import PlanError, shown_path
from memcore.serving.serve import NOTICED
from memcore.units import seconds_text

if TYPE_CHECKING:
    from memcore.plan.plan import Plan
    from memcore.stream import Load, Spread, Stream

WAITS = ("wait", "ttft", "tpot", "latency")


def run(args: argparse.Namespace) -> int:
    from memcore.stream import loads, read_lengths, simulate
    from memcore.stream.lengths import MAX_BYTES

    plan = given_plan(args)
    try:
        given = args.lengths is not None
        lengths = read_lengths(read(args.lengths, MAX_BYTES)) if given else None
    except PlanError as e:
        return fail(*(f"{shown_path(args.lengths)}: {i.message}" for i in e.issues))
    if args.rates and (loaded := loads(plan, lengths)):
        rows = [load.row() for load in loaded]
        return answer(args, lambda: rows, lambda: "\n".join(_rates(loaded)), lambda: rows)
    stream = None if args.rates else simulate(plan, lengths)
    if stream is None:
        return fail("no stream is simulated for this plan: `memplan evaluate` says why")
    return answer(
        args,
        stream.to_dict,
        lambda: "\n\n".join(filter(None, _streamed(plan, stream))),
        lambda: [run.row() for run in stream.runs],
    )


def _rates(simulated: Sequence[Load]) -> Iterable[str]:
    head = ("Requests/s", "at once", "tokens/s", *WAITS, "in targets")
    rows = [
        (
            f"{load.rate:,.3g}",
            f"{load.run.concurrency_mean:,.1f}",
            f"{load.run.tokens_per_second:,.0f}",
            *(_spread(getattr(load.run, name)) for name in WAITS),
            "-" if load.run.attained is None else f"{load.run.attained:.1%}",
        )
        for load in simulated
    ]
    yield from table(head, rows)
    yield "Times: median, 99th percentile."


def _streamed(plan: Plan, stream: Stream) -> Iterable[str]:
    """What a simulation says, for a terminal."""
    yield (
        f"{stream.requests:,} requests to {plan.architecture.label}, prompts of "
        f"{stream.prompt_tokens_mean:,.0f} and outputs of {stream.output_tokens_mean:,.0f} tokens "
        f"on average;\nroom for {stream.capacity_tokens:,} tokens in the KV cache of one replica"
    )
    notes = list(stream.notes)
    if stream.load and stream.load >= NOTICED:  # before the figures that it makes long
        yield f"Note: {notes.pop(0)}"
    runs = stream.runs
    head = ("At once", "mean", "most", "put out", "refused", "tokens/s", "seconds")
    rows = [
        (
            r.label,
            f"{r.concurrency_mean:,.1f}",
            f"{r.concurrency_peak:,}",
            f"{r.preemptions:,}",
            f"{r.refused:,}",
            f"{r.tokens_per_second:,.0f}",
            f"{r.seconds:,.1f}",
        )
        for r in runs
    ]
    yield "\n".join(table(head, rows))
    kinds = list(runs[0].memory)
    shares = [(r.label, *(f"{r.memory[kind]:.1%}" for kind in kinds)) for r in runs]
    yield "\n".join(table(("Share of the cache", *kinds), shares))
    spreads = [
        (r.label, *(_spread(getattr(r, name)) for name in WAITS)) for r in runs if r.completed
    ]
    yield "\n".join(table(("Median, 99th percentile", *WAITS), spreads))
    aimed = [(r.label, f"{r.attained:.1%}", f"{r.goodput:,.3g}") for r in runs if r.attained]
    yield "\n".join(table(("Within targets", "of requests", "a second"), aimed)) if aimed else ""
    yield "\n".join(f"Note: {note}" for note in notes)


def _spread(spread: Spread | None) -> str:
    return f"{seconds_text(spread.p50)}, {seconds_text(spread.p99)}" if spread else "-"
