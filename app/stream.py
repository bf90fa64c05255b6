"""Stream: rows, figures and sentences of a simulated stream of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from app import palette
from app.charts import figure
from app.tables import Rows
from memcore import Plan, policies
from memcore.serving_time import Point
from memcore.stream import Run, Spread, Stream
from memcore.units import bytes_text, count_text, seconds_text

# What the memory of the cache holds: title, colour, and what it means.
KINDS = {
    "used": ("Keys and values", palette.KV_CACHE[1], "of running sequences"),
    "reserved": ("Reserved", "#F0E442", "for tokens that a sequence will still have"),
    "internal": ("Never filled", "#CC79A7", "held by a sequence that ends before it needs it"),
    "ended": ("Ended", "#56B4E9", "held by sequences that have ended, until their batch has"),
    "external": ("Fragments", "#0072B2", "lost to rounding, or free but too small for who waits"),
    "free": ("Free", "#C9CDD3", "while nobody waits for it"),
}
COLOURS = {
    "static": "#999999",
    "max": "#D55E00",
    "pow2": "#E69F00",
    "oracle": "#CC79A7",
    "paged": "#0072B2",
    "shared": "#009E73",
}
DASHES = {"static": "dot", "oracle": "dash", "shared": "dash"}
QUANTITIES = {  # what the chart over time can show: title, of the axis, whether of the capacity
    "held_tokens": ("Memory held", "% of the cache", True),
    "used_tokens": ("Memory used", "% of the cache", True),
    "running": ("Running", "sequences", False),
    "waiting": ("Waiting", "requests", False),
}


def of_plan(stream: Stream, plan: Plan) -> Run:
    """The run of the strategy that the plan's own cache has."""
    wanted = "paged" if policies.KV_CACHES[plan.serve.kv_cache].pages else "max"
    return next(r for r in stream.runs if r.strategy == wanted)


def asked(stream: Stream, plan: Plan, file: str) -> str:
    """What was simulated, in a sentence or two."""
    s = plan.serve
    rate = f"{s.arrival_rate:,.4g} a second"
    come = {
        "burst": "all at once",
        "regular": f"in equal steps, {rate},",
        "poisson": f"at random, {rate},",
    }[s.arrivals]
    lengths = (
        f"with lengths drawn from {file}"
        if file
        else f"with {policies.LENGTHS[s.lengths].label.lower()} lengths"
    )
    prefix = f", {s.shared_prefix:,} tokens of every prompt the same" if s.shared_prefix else ""
    return (
        f"{stream.requests:,} requests come {come} to one replica, {lengths}: prompts of "
        f"{stream.prompt_tokens_mean:,.0f} tokens on average, outputs of "
        f"{stream.output_tokens_mean:,.0f}{prefix}, together at most {stream.longest_tokens:,} of "
        f"{stream.longest_allowed:,}. At most {s.concurrency:,} run at once. Seed {s.seed:,}: the "
        "same plan gives the same numbers. These are simulated, iteration by iteration, on this "
        "page's roofline; a real scheduler's own time is not in them."
    )


def metrics(run: Run, plan: Plan) -> Sequence[tuple[str, str, str]]:
    """The main figures of one run: label, value, help."""
    return (
        (
            "At once",
            f"{run.concurrency_mean:,.1f}",
            (
                f"Sequences that run, on average over time; {run.concurrency_peak:,} at most, "
                f"where {plan.serve.concurrency:,} are allowed."
            ),
        ),
        (
            "Cache in use",
            f"{run.useful_share:.1%}",
            "Keys and values over everything that was not free while nobody waited.",
        ),
        _spread("First token", run.ttft, "From a request's arrival, its wait included"),
        _spread("Per token", run.tpot, "Between two tokens of one request"),
        (
            "Tokens per second",
            count_text(run.tokens_per_second),
            (
                f"Of outputs, by one replica, over {seconds_text(run.seconds)} from the first "
                "request to the last token."
            ),
        ),
        (
            "Put out",
            f"{run.preemptions:,}",
            (
                f"Preemptions: a sequence that finds no block puts out the last that was let in. "
                f"{run.recomputed_tokens:,} tokens were computed again."
            ),
        ),
    )


def _spread(label: str, spread: Spread | None, about: str) -> tuple[str, str, str]:
    if spread is None:
        return label, "none", "No request was served."
    return (
        label,
        seconds_text(spread.p50),
        (
            f"{about}: the median. Nine in ten within {seconds_text(spread.p90)}, 99 of 100 within "
            f"{seconds_text(spread.p99)}."
        ),
    )


# --- rows ----------------------------------------------------------------------------------------


def rows(stream: Stream) -> Rows:
    """Every strategy's figures: in words for people, and in full for the CSV."""
    return [
        {
            "strategy": r.label,
            "at once": r.concurrency_mean,
            "put to use": 100 * r.useful_share,
            "tokens/s": round(r.tokens_per_second),
            "wait": _text(r.wait),
            "first token": _text(r.ttft),
            "per token": _text(r.tpot),
            "put out": r.preemptions,
            "refused": r.refused,
            **{name: value for name, value in r.row().items() if name not in ("strategy", "label")},
        }
        for r in stream.runs
    ]


SHOWN = (
    *("strategy", "at once", "put to use", "tokens/s", "wait", "first token", "per token"),
    *("put out", "refused"),
)


def legend(stream: Stream) -> str:
    """What the table's words mean, and what pages cost besides."""
    return (
        "Times are medians and 99th percentiles. Put out: preempted for want of a block, and "
        "computed again. Refused: longer than the empty cache. Pages need a table from positions "
        f"to blocks: {bytes_text(stream.block_table_bytes)} for all sequences at their longest."
    )


SPEED_LEGEND = (
    "The line is decoding alone, at half of an output's length, from one sequence at once on; "
    "where it turns back, matrix products need one more row of tiles. Fit: at full length. "
    "The diamonds are the simulated strategies, which read prompts in between."
)


def title(quantity: str) -> str:
    return QUANTITIES[quantity][0]


def _text(spread: Spread | None) -> str:
    """Median and 99th percentile."""
    return f"{seconds_text(spread.p50)} · {seconds_text(spread.p99)}" if spread else "none"


def moments(stream: Stream) -> Rows:
    """What each strategy's memory held over time."""
    return [
        {
            "strategy": r.label,
            "seconds": m.seconds,
            "used_tokens": m.used_tokens,
            "held_tokens": m.held_tokens,
            "capacity_tokens": r.capacity_tokens,
            "running": m.running,
            "waiting": m.waiting,
        }
        for r in stream.runs
        for m in r.timeline
    ]


def speeds(points: Sequence[Point]) -> Rows:
    return [
        {
            "sequences": p.running,
            "fits": p.fits,
            "tokens_per_second": p.tokens_per_second,
            "seconds_per_token": p.tpot_seconds,
            "bound_by": p.bound_by,
        }
        for p in points
    ]


# --- charts --------------------------------------------------------------------------------------


def over_time(stream: Stream, quantity: str) -> go.Figure:
    """One quantity over the time of the simulation, one line for each strategy."""
    name, unit, share = QUANTITIES[quantity]
    traces = []
    for r in stream.runs:
        scale = 100 / max(1, r.capacity_tokens) if share else 1
        values = [scale * getattr(m, quantity) for m in r.timeline]
        traces.append(
            go.Scatter(
                name=r.label,
                x=[m.seconds for m in r.timeline],
                y=values,
                mode="lines",
                line={
                    "color": COLOURS[r.strategy],
                    "width": 2,
                    "dash": DASHES.get(r.strategy, "solid"),
                },
                customdata=[
                    f"{r.label}, after {seconds_text(m.seconds)}: {name.lower()} {v:,.1f} {unit}"
                    for m, v in zip(r.timeline, values, strict=True)
                ],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
    return figure(
        traces,
        height=330,
        margin={"l": 8, "r": 16, "t": 72, "b": 8},
        xaxis={"title": "seconds", "rangemode": "tozero"},
        yaxis={"title": f"{name}, {unit}", "rangemode": "tozero"},
    )


def shares(stream: Stream) -> go.Figure:
    """What the memory of the cache was for under each strategy, averaged over time."""
    labels = [r.label for r in stream.runs]
    traces = [
        go.Bar(
            name=name,
            x=[100 * r.memory[kind] for r in stream.runs],
            y=labels,
            orientation="h",
            marker={"color": colour, "line": {"width": 0}},
            customdata=[
                f"{r.label}: {r.memory[kind]:.1%} {name.lower()}, {about}" for r in stream.runs
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
        for kind, (name, colour, about) in KINDS.items()
    ]
    return figure(
        traces,
        height=330,
        margin={"l": 8, "r": 16, "t": 72, "b": 8},
        xaxis={"title": "% of the cache, averaged over time", "range": [0, 100]},
        yaxis={"autorange": "reversed"},
    )


def speed(points: Sequence[Point], stream: Stream) -> go.Figure:
    """Time per output token against throughput: decoding alone, and what the stream had of it."""
    fitting = [p for p in points if p.fits]
    beyond = [*fitting[-1:], *(p for p in points if not p.fits)]
    traces: list[Any] = [
        go.Scatter(
            name=name,
            x=[p.tokens_per_second for p in found],
            y=[1e3 * p.tpot_seconds for p in found],
            mode="lines+markers",
            line={"color": palette.OVERHEAD[1], "width": 2, "dash": dash},
            marker={"size": 5},
            customdata=[
                (
                    f"{p.running:,} sequences at once: {p.tokens_per_second:,.0f} tokens/s, one of "
                    f"each every {seconds_text(p.tpot_seconds)}; bound by "
                    f"{palette.resource(p.bound_by)}"
                )
                for p in found
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
        for name, found, dash in (
            ("Decoding alone, as many as fit", fitting, "solid"),
            ("More than fit", beyond, "dot"),
        )
    ]
    traces += [
        go.Scatter(
            name=r.label,
            x=[r.tokens_per_second],
            y=[1e3 * r.tpot.p50],
            mode="markers",
            marker={
                "size": 11,
                "symbol": "diamond",
                "color": COLOURS[r.strategy],
                "line": {"width": 1, "color": "white"},
            },
            customdata=[
                (
                    f"{r.label}: {r.tokens_per_second:,.0f} tokens/s in the simulation, one of "
                    f"each every {seconds_text(r.tpot.p50)} in the median"
                )
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
        for r in stream.runs
        if r.tpot
    ]
    return figure(
        traces,
        height=330,
        margin={"l": 8, "r": 16, "t": 72, "b": 8},
        xaxis={"title": "output tokens per second, one replica", "rangemode": "tozero"},
        yaxis={"title": "ms per output token", "rangemode": "tozero"},
    )
