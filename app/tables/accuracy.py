"""Tables of the pages Accuracy and Method."""

from __future__ import annotations

import functools
import html
import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from app.tables.base import PATH, Rows
from memcore import evidence
from memcore.evidence.markdown import BENCHED, CALIBRATED, benched_rows, calibrated_rows
from memcore.hardware import constants, kernels
from memcore.plan.plan import Plan
from memcore.quantity.formula import Term
from memcore.quantity.quantity import Explanation
from memcore.tape.dims import AXES, DIMENSIONS
from memcore.units import (
    bytes_text,
    count_text,
    gib_text,
    rate_text,
    relative_text,
    seconds_text,
    value_text,
)
from memcore.words import engines

if TYPE_CHECKING:
    from memcore.explain.book import Book


def parts(book: Book, e: Explanation) -> Rows:
    """What a number is computed from, each part with how it comes about itself."""
    total = sum(t.value for t in e.parts) if _adds_up(e) else 0
    return [
        {
            "part": t.name,
            "is": value_text(t.value, t.unit),
            **({"share": 100 * t.value / total} if total else {}),
            "how": _how(book, t),
            "certainty": t.certainty,
            "source": t.source or "; ".join(book.explain(t.path).sources),
            PATH: t.path,
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
    if found and found.formula is not None:
        return f"{found.formula.words} = {found.formula.numbers}"
    return found.meaning if found else t.note


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
    return {row: i for i, row in enumerate(evidence.last_compared())}


def compared_path(row: evidence.Comparison) -> str:
    """Where a comparison is explained."""
    return f"evidence.compared.{_places()[row]}" if row in _places() else ""


def benchmarks() -> Rows:
    """Points of servers as they are predicted, and as another point has them."""
    return [dict(zip(BENCHED, row, strict=True)) for row in benched_rows()]


def calibrations() -> Rows:
    """Steps as they are predicted, and as another measured step of their kind has them."""
    return [dict(zip(CALIBRATED, row, strict=True)) for row in calibrated_rows(last=True)]


def other_steps() -> Rows:
    """Other calculators of step times on the checked steps that each can express."""
    steps = [c for c in evidence.last_compared() if c.what == evidence.STEP_TIME]
    return [
        {
            "framework": b.framework,
            "beside": b.other,
            "figures": len(b.theirs),
            "Memplan, half within": f"{b.half:.1%}",
            "theirs, half within": f"{b.half_of_theirs:.1%}",
            "theirs is nearer": b.closer,
        }
        for b in evidence.beside(steps)
    ]


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
    """A relative difference: below one percent to a hundred thousandth; '0' says that there is
    none."""
    if not error:
        return "0"
    if abs(error) < 0.5e-5:
        return "about 0"
    return f"{error:+.1%}" if abs(error) >= 0.01 else f"{error:+.3%}"


def headline(rows: Sequence[evidence.Comparison]) -> str:
    """What the comparisons come to, in one paragraph."""
    counted = [r for r in rows if r.what in ("parameters", "saved")]
    equal = sum(r.error == 0 for r in counted)
    sure, cast = (
        max([abs(r.error) for r in rows if r.what == "peak" and (r.regime == "autocast") == a])
        for a in (False, True)
    )
    return (
        f"**{len(rows):,} figures of others and of an H100 of our own beside Memplan's.** Of the "
        f"{len(counted):,} parameter counts and sums of saved tensors, {equal:,} are equal to the "
        f"byte ({equal / len(counted):.0%}). Peaks differ by at most {sure:.3%}; under autocast by "
        f"up to {cast:.1%}, for a reason that is known. {measured(rows)}"
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
        f"{worst:.1%} of the tracker."
    )


def written(rows: Rows, columns: Sequence[str]) -> str:
    """Rows as a table that wraps its text, for sentences, in HTML. On a phone a row's cells stand
    below each other, each with its column's name."""
    named = [(name, html.escape(name)) for name in columns]
    heads = "".join(f"<th>{name}</th>" for _, name in named)
    lines = (
        "".join(f'<td data-head="{name}">{html.escape(f"{row[key]}")}</td>' for key, name in named)
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table class="written"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'


def constants_used() -> Rows:
    """The constants that no shape determines."""
    return [
        {
            "constant": c.name,
            "value": _interval(c),
            "certainty": c.certainty,
            "source": c.source,
        }
        for c in (*constants.ALL, *kernels.ALL, *engines.CONSTANTS)
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
            "formula": str(o.formula),
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
    sizes = evidence.sizes(plan)
    return [
        {
            "name": name,
            "here": f"{sizes[name]:,}",
            "meaning": each.meaning,
            "kind": kind,
            PATH: f"evidence.dimensions.{name}",
        }
        for kind, table in (("dimension", DIMENSIONS), ("cut over", AXES))
        for name, each in table.items()
    ]


def first_fixes() -> Rows:
    """Plans that run out of memory, Memplan's first lever, and what those who know would do."""
    return [
        {
            "plan": row["what"],
            "Memplan's first lever": row["ours"],
            "what others would do, and why": f"{row['reason']} ({row['source']})",
            "theirs": " or ".join(row["first"]),
        }
        for row in evidence.first_fixes()
    ]


def left_out() -> Rows:
    """What no figure includes, and how much it could matter."""
    return list(evidence.method()["left_out"])
