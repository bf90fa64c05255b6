"""Stream: rows, figures and sentences of a simulated stream of requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from app import elements, palette
from app.charts.base import Mark, Series, figure, points, rule, stacked
from app.tables.base import Rows
from memcore.plan.plan import Plan
from memcore.serving.time import Point
from memcore.stream import Load, Run, Spread, Stream, sustained
from memcore.stream.load import ENOUGH, own
from memcore.units import bytes_text, count_text, seconds_text
from memcore.words.serving import LENGTHS

TIMED = ("poisson", "regular")  # arrivals that have a rate
DEFAULT_RATE = Plan().serve.arrival_rate
STRATEGIES, QUANTITIES = elements.PAGES["strategies"], elements.PAGES["over_time"]
COLOURS = {name: of["colour"] for name, of in STRATEGIES.items()}
LOADS = {  # what the chart against the arrival rate can show: title, scale, what follows it
    "ttft": ("First token", 1.0, ""),
    "tpot": ("Per token", 1.0, ""),
    "latency": ("Whole request", 1.0, ""),
    "attained": ("Within targets", 100.0, ", % of requests"),
}
QUANTILES = {"p50": "Median", "p95": "95th percentile", "p99": "99th percentile"}
LOAD_LINES = ((COLOURS["paged"], "solid"), (COLOURS["pow2"], "dash"), (COLOURS["max"], "dot"))


def load_choices(plan: Plan) -> tuple[str, ...]:
    """What the chart against the arrival rate can show of this plan."""
    s = plan.serve
    return tuple(q for q in LOADS if q != "attained" or s.target_ttft or s.target_tpot)


def load_title(quantity: str) -> str:
    return LOADS[quantity][0]


def of_plan(stream: Stream, plan: Plan) -> Run:
    """The run of the strategy that the plan's own cache has."""
    return next(r for r in stream.runs if r.strategy == own(plan))


def served(stream: Stream) -> bool:
    """Whether any strategy has served any request."""
    return any(r.completed for r in stream.runs)


def load_text(stream: Stream, plan: Plan, file: str) -> str:
    """What was simulated, in a sentence or two."""
    s = plan.serve
    rate = f"{s.arrival_rate:,.4g} a second"
    come = {
        "burst": "all at once",
        "regular": f"in equal steps, {rate},",
        "poisson": f"at random, {rate},",
        "closed": f"{s.concurrency:,} at a time, each as soon as another has its answer,",
    }[s.arrivals]
    lengths = (
        f"with lengths drawn from {file}"
        if file
        else f"with {LENGTHS[s.lengths].label.lower()} lengths"
    )
    prefix = f", {s.shared_prefix:,} tokens of every prompt the same" if s.shared_prefix else ""
    read = {
        "whole": "Prompts are read whole, and those that generate wait for them",
        "chunked": f"Prompts are read in chunks, with a step of all that generate: at most "
        f"{plan.batched_tokens:,} tokens together",
        "disaggregated": "Prompts are read on another replica, which sends the cache over",
    }[s.prefill]
    if s.draft_tokens:
        read += f"; a draft guesses {s.draft_tokens:,} tokens a step"
    return (
        f"{stream.requests:,} requests come {come} to one replica, {lengths}: prompts of "
        f"{stream.prompt_tokens_mean:,.0f} tokens on average, outputs of "
        f"{stream.output_tokens_mean:,.0f}{prefix}, together at most {stream.longest_tokens:,} of "
        f"{stream.longest_allowed:,}. {read}. At most {s.concurrency:,} run at once. Seed "
        f"{s.seed:,}: the same plan gives the same numbers. These are simulated, iteration by "
        "iteration, on this page's roofline; a real scheduler's own time is not in them."
    )


def metrics(run: Run, plan: Plan) -> Sequence[tuple[str, str, str, str]]:
    """The main figures of one run: label, value, what stands below it, help."""
    s = plan.serve
    figures = [
        ("ttft", *_spread(run.ttft, s.target_ttft)),
        ("tpot", *_spread(run.tpot, s.target_tpot)),
        ("latency", *_spread(run.latency)),
        ("tokens", count_text(run.tokens_per_second), f"{run.requests_per_second:,.3g} requests/s"),
        (
            "running",
            f"{run.concurrency_mean:,.1f}",
            f"{run.concurrency_peak:,} at most, {s.concurrency:,} allowed",
        ),
        ("useful", f"{run.useful_share:.1%}", f"{run.memory['free']:.0%} free, nobody waiting"),
        ("reading", f"{run.reading_share:.0%}", f"of the time; idle {run.idle_share:.0%}"),
    ]
    if run.attained is None:
        recomputed = f"{run.recomputed_tokens:,} tokens recomputed"
        figures.append(("preempted", f"{run.preemptions:,}", recomputed))
    else:
        figures.append(("attained", f"{run.attained:.1%}", f"{run.goodput or 0:,.3g} requests/s"))
    words = {"seconds": seconds_text(run.seconds), "preempted": f"{run.preemptions:,}"}
    texts = elements.PAGES["metrics"]
    return [
        (texts[name]["title"], value, below, texts[name]["help"].format(**words))
        for name, value, below in figures
    ]


def _spread(spread: Spread | None, target: float = 0.0) -> tuple[str, str]:
    """The median, and what others had. `target`: seconds that a request may feel at most; 0: there
    is none."""
    if spread is None:
        return "none", "no request was served"
    kept = "" if not target else ", as asked" if spread.p99 <= target else ", too slow"
    return seconds_text(spread.p50), (
        f"9 of 10 within {seconds_text(spread.p90)}, 99 of 100 within "
        f"{seconds_text(spread.p99)}{kept}"
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
            "preempted": r.preemptions,
            "refused": r.refused,
            "in targets": "" if r.attained is None else f"{r.attained:.1%}",
            **{name: value for name, value in r.row().items() if name not in ("strategy", "label")},
        }
        for r in stream.runs
    ]


def shown(stream: Stream) -> tuple[str, ...]:
    """The columns that people see: those that say something of this stream."""
    return (
        *("strategy", "at once", "put to use", "tokens/s", "wait", "first token", "per token"),
        "preempted",
        *(("refused",) if any(r.refused for r in stream.runs) else ()),
        *(("in targets",) if any(r.attained is not None for r in stream.runs) else ()),
    )


def legend(stream: Stream) -> str:
    """What the table's words mean, and what pages cost besides."""
    refused = ""
    if any(r.refused for r in stream.runs):
        refused = "Refused: longer than the empty cache. "
    table = bytes_text(stream.block_table_bytes)
    return elements.text("strategies", refused=refused, table=table)


def load_legend(loads: Sequence[Load], plan: Plan) -> str:
    """What the rates are, and up to which one the targets hold."""
    if not loads:
        return ""
    each = (
        f"{loads[0].run.requests:,} requests of the plan's stream at each of {len(loads)} rates"
        f"{_rate_of_plan(loads, plan)}."
    )
    if loads[0].run.attained is None:
        return f"{each} With a target above, its share of requests is counted too."
    best = sustained(loads)
    if best is None:
        return f"{each} Not even the lowest rate keeps {ENOUGH:.0%} of requests within the targets."
    return (
        f"{each} {ENOUGH:.0%} of requests stay within the targets up to {best:,.3g} a second "
        f"on one replica, of the rates that were tried."
    )


def _rate_of_plan(loads: Sequence[Load], plan: Plan) -> str:
    """Where the plan's own rate is on the chart, if it has one."""
    s = plan.serve
    if s.arrivals not in TIMED:
        return ""
    rate = f"{s.arrival_rate:,.4g} a second, the plan's own"
    if s.arrival_rate == DEFAULT_RATE:
        rate = (
            f"{s.arrival_rate:,.4g} a second, which is only an example (yours is *Arrival rate*, "
            "in the sidebar under *Request stream*)"
        )
    if s.arrival_rate <= loads[-1].rate:
        return f"; the dotted line is {rate}"
    return f"; {rate}, is more than one replica serves"


def title(quantity: str) -> str:
    return str(QUANTITIES[quantity]["title"])


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


def speeds(curve: Sequence[Point]) -> Rows:
    return [
        {
            "sequences": p.running,
            "fits": p.fits,
            "tokens_per_second": p.tokens_per_second,
            "seconds_per_token": p.tpot_seconds,
            "bound_by": p.bound_by,
        }
        for p in curve
    ]


def load_rows(loads: Sequence[Load]) -> Rows:
    """Every rate's figures."""
    return [{n: v for n, v in load.row().items() if n != "label"} for load in loads]


# --- charts --------------------------------------------------------------------------------------


FAR = 3.0  # times as long as the quickest takes: what lasts longer would flatten all others


def _seconds(stream: Stream) -> dict[str, Any]:
    """The axis of time; which strategies go on beyond it, it says."""
    ends = {r.label: r.timeline[-1].seconds for r in stream.runs if r.timeline}
    end = FAR * min(ends.values(), default=0.0)
    late = [f"{label} until {seconds:,.0f}" for label, seconds in ends.items() if seconds > end]
    if not late:
        return {"title": "seconds", "rangemode": "tozero"}
    return {"title": f"seconds ({', '.join(late)})", "range": [0, end]}


def _chart(traces: Sequence[Any], **more: Any) -> go.Figure:
    margin = {"l": 8, "r": 16, "t": 72, "b": 8}
    return figure(traces, height=330, margin=margin, **more)


def over_time(stream: Stream, quantity: str) -> go.Figure:
    """One quantity over the time of the simulation, one line for each strategy."""
    name, unit = QUANTITIES[quantity].values()
    traces = []
    for r in stream.runs:
        scale = 100 / max(1, r.capacity_tokens) if unit.startswith("%") else 1
        values = [(m.seconds, scale * getattr(m, quantity)) for m in r.timeline]
        rows = [
            (x, y, f"{r.label}, after {seconds_text(x)}: {name.lower()} {y:,.1f} {unit}", "")
            for x, y in values
        ]
        traces.append(points(r.label, rows, mode="lines", **STRATEGIES[r.strategy]))
    axis = {"title": f"{name}, {unit}", "rangemode": "tozero"}
    return _chart(traces, xaxis=_seconds(stream), yaxis=axis)


def shares(stream: Stream) -> go.Figure:
    """What the memory of the cache was for under each strategy, averaged over time."""
    marks = [
        Mark(
            r.label,
            Series(of["title"], of["colour"]),
            100 * r.memory[kind],
            f"{r.label}: {r.memory[kind]:.1%} {of['title'].lower()}, {of['about']}",
        )
        for kind, of in elements.PAGES["cache"].items()
        for r in stream.runs
    ]
    title = "% of the cache, averaged over time"
    drawn = stacked(marks, [r.label for r in stream.runs], title, reach=100, height=330)
    return drawn.update_layout(margin={"t": 72})


def load(loads: Sequence[Load], quantity: str, plan: Plan) -> go.Figure:
    """A latency, or the share of requests within the targets, against the arrival rate."""
    name, scale, unit = LOADS[quantity]
    s, share = plan.serve, quantity == "attained"
    lines = {label: (quantity, q) for q, label in QUANTILES.items()}
    if share:
        lines = {name: ("", quantity)}
    traces, values = [], []
    for (label, (part, q)), (colour, dash) in zip(lines.items(), LOAD_LINES, strict=False):
        of = [(each.rate, getattr(each.run, part) if part else each.run) for each in loads]
        at = [(x, scale * (getattr(v, q) or 0.0)) for x, v in of if v is not None]
        values += [y for _, y in at]
        value_text = "{:.1f}%".format if share else seconds_text
        rows = [(x, y, f"{x:,.3g} requests/s: {label.lower()} {value_text(y)}", "") for x, y in at]
        traces.append(points(label, rows, colour, "lines+markers", dash))
    target = {"ttft": s.target_ttft, "tpot": s.target_tpot}.get(quantity, 0.0)
    rules = [rule("y", target)] if target else []
    if s.arrivals in TIMED and loads and s.arrival_rate <= loads[-1].rate:
        rules.append(rule("x", s.arrival_rate, colour=palette.OVERHEAD[1], dash="dot"))
    axis = {"range": [0, 104]} if share else _times(values, target)
    return _chart(
        traces,
        rules=rules,
        xaxis={"title": "requests per second, one replica", "rangemode": "tozero"},
        yaxis={"title": name + unit, **axis},
    )


def _times(values: Sequence[float], target: float) -> dict[str, Any]:
    """A logarithmic axis of seconds whose ticks say their units."""
    seen = [v for v in (*values, target) if v > 0] or [1.0]
    low, high = math.log10(min(seen)), math.log10(max(seen))
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    ticks = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in steps]
    return {
        "type": "log",
        "range": [low - 0.1, high + 0.1],
        "tickvals": ticks,
        "ticktext": [seconds_text(t) for t in ticks],
    }


def speed(curve: Sequence[Point], stream: Stream) -> go.Figure:
    """Time per output token against throughput: decoding alone, and what the stream had of it."""
    fitting = [p for p in curve if p.fits]
    beyond = [*fitting[-1:], *(p for p in curve if not p.fits)]
    traces = [
        points(
            name,
            [(p.tokens_per_second, 1e3 * p.tpot_seconds, _alone(p), "") for p in of],
            palette.OVERHEAD[1],
            "lines+markers",
            dash,
        )
        for name, of, dash in (
            ("Decoding alone", fitting, "solid"),
            ("More than fit", beyond, "dot"),
        )
    ]
    diamond = {"symbol": "diamond", "line": {"width": 1, "color": "white"}}
    for r in stream.runs:
        if r.tpot:
            text = (
                f"{r.label}: {r.tokens_per_second:,.0f} tokens/s in the simulation, one of each "
                f"every {seconds_text(r.tpot.p50)} in the median"
            )
            at = [(r.tokens_per_second, 1e3 * r.tpot.p50, text, "")]
            traces.append(points(r.label, at, COLOURS[r.strategy], marker=diamond))
    return _chart(
        traces,
        xaxis={"title": "output tokens per second, one replica", "rangemode": "tozero"},
        yaxis={"title": "ms per output token", "rangemode": "tozero"},
    )


def _alone(p: Point) -> str:
    """What hovering says of decoding alone."""
    return (
        f"{p.running:,} sequences at once: {p.tokens_per_second:,.0f} tokens/s, one of each every "
        f"{seconds_text(p.tpot_seconds)}; bound by {palette.resource(p.bound_by)}"
    )
