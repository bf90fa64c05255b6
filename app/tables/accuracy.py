"""Tables of the page Accuracy."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from statistics import median

from app.tables.base import PATH, Rows
from memcore.evidence.comparison import (
    AGREEMENT,
    CHECK,
    MEASURED,
    STEP_TIME,
    TIME_TOLERANCE,
    Comparison,
    by_kind,
    last_compared,
    spread_texts,
)
from memcore.evidence.numbers import sizes
from memcore.hardware import constants, kernels
from memcore.plan.plan import Plan
from memcore.quantity import glossary
from memcore.tape.dims import AXES, DIMENSIONS
from memcore.units import value_text
from memcore.words import engines


def accuracy(rows: Sequence[Comparison]) -> Rows:
    """Every figure of others with ours, the largest difference first."""
    return [
        {
            "model": r.model,
            "what": r.kind,
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
def _positions() -> dict[Comparison, int]:
    return {row: i for i, row in enumerate(last_compared())}


def compared_path(row: Comparison) -> str:
    """Where a comparison is explained."""
    return f"compared.{_positions()[row]}" if row in _positions() else ""


def figure_text(value: float) -> str:
    """A figure to the last digit, or a ratio to four."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4f}"


def matching(
    rows: Sequence[Comparison], source: str | None, family: str | None
) -> list[Comparison]:
    """The rows of a source and of a family; None: of any."""
    return [r for r in rows if source in (None, r.source) and family in (None, r.family)]


def sources(rows: Sequence[Comparison]) -> list[str]:
    """Where the rows are from."""
    return list(dict.fromkeys(r.source for r in rows))


def families(rows: Sequence[Comparison]) -> list[str]:
    """The families of models that the rows are about."""
    return sorted({r.family for r in rows} - {""})


def agreement(rows: Sequence[Comparison]) -> Rows:
    """How many rows of each kind there are, and how far ours are from theirs, as the documents
    have it. What a constant was tuned on and what was only checked are never in one line."""
    return [
        dict(zip(AGREEMENT, (*key, len(group), *spread_texts(group)), strict=True))
        for key, group in by_kind(rows).items()
    ]


def tuning(rows: Sequence[Comparison]) -> str:
    """What was tuned on and what was only checked, in a sentence."""
    tuned = sum(r.used_for != CHECK for r in rows)
    if not tuned:
        return "Every row is a check: nothing in Memplan was tuned on any of them."
    return (
        f"{len(rows) - tuned:,} rows are checks: nothing in Memplan was tuned on them. On the "
        f"other {tuned:,} a constant was tuned: they are kept apart here, and prove nothing."
    )


def headline(rows: Sequence[Comparison]) -> str:
    """What the comparisons come to, in one paragraph."""
    counted = [r for r in rows if r.what in ("parameters", "saved")]
    equal = sum(r.error == 0 for r in counted)
    sure, cast = (
        max([abs(r.error) for r in rows if r.what == "peak" and (r.regime == "autocast") == a])
        for a in (False, True)
    )
    runs = [r for r in rows if r.source == MEASURED and r.confidence == "high"]
    allocated = median([abs(r.error) for r in runs if r.what == "allocated"])
    reserved = [r for r in runs if r.what == "reserved"]
    inside = sum(r.error == 0 for r in reserved)
    times = [abs(r.error) for r in runs if r.what == STEP_TIME and r.used_for == CHECK]
    near = sum(e <= TIME_TOLERANCE for e in times)
    return (
        f"**{len(rows):,} figures of others and of an H100 of our own beside Memplan's.** Of the "
        f"{len(counted):,} parameter counts and sums of saved tensors, {equal:,} are equal to the "
        f"byte ({equal / len(counted):.0%}). Peaks differ by at most {sure:.3%}; under autocast by "
        f"up to {cast:.1%}, for a reason that is known. Of what others measured on GPUs, allocated "
        f"memory is {allocated:.1%} off in the median, and {inside} of {len(reserved)} figures of "
        f"reserved memory lie inside the interval; of {len(times)} step times that nothing was "
        f"tuned on half are within {median(times):.1%}, and {near} within "
        f"{TIME_TOLERANCE:.0%}. What misses is listed with its reason."
    )


def constants_used() -> Rows:
    """The constants that no shape determines."""
    return [
        {
            "constant": c.name,
            "value": " to ".join(
                dict.fromkeys(value_text(n, c.unit.replace("ratio", "")) for n in (c.low, c.high))
            ),
            "certainty": c.certainty,
            "source": c.source,
        }
        for c in (*constants.ALL, *kernels.ALL, *engines.CONSTANTS)
    ]


def dimensions(plan: Plan) -> Rows:
    """The names in shapes, with what this plan makes of them."""
    here = sizes(plan)
    return [
        {
            "name": name,
            "here": f"{here[name]:,}",
            "meaning": each.meaning,
            "kind": kind,
            PATH: f"evidence.dimensions.{name}",
        }
        for kind, table in (("dimension", DIMENSIONS), ("cut over", AXES))
        for name, each in table.items()
    ]


def method(part: str) -> Rows:
    """A part of method.toml: `terms`, `left_out`, `sources` or `limits`."""
    return list(glossary.method()[part])
