"""Evidence: what others say of the same things, and how far our figures are from theirs.

The tables are in presets/evidence, each with its source; one module here for each kind of source.
Constants were read off those that say so (TUNED), and off no other.
"""

from __future__ import annotations

import functools

from memcore.evidence.calculators import (
    COUNTS,
    DEVICE,
    STATES,
    STEP,
    Calculator,
    CalculatorFigure,
    Worked,
    calculators_table,
    compared_tracker,
    worked,
)
from memcore.evidence.comparison import (
    AGREEMENT,
    AUTOGRAD,
    CHECK,
    COUNTED,
    MEASURED,
    PUBLISHED,
    SOURCES,
    TRACKER,
    TUNED,
    Comparison,
    by_kind,
    relative,
    spread_texts,
)
from memcore.evidence.last import last_compared
from memcore.evidence.links import compared_links, links_table
from memcore.evidence.measured import compared_runs, measured_table
from memcore.evidence.papers import (
    Published,
    compared_published,
    published,
    published_table,
    states,
    weights,
)
from memcore.evidence.pytorch import (
    PEAK_TOLERANCE,
    PEAK_TOLERANCES,
    REGIMES,
    compared,
    compared_presets,
    oracle,
    plan_of,
    preset_parameters,
)
from memcore.evidence.served import compared_served, served_table
from memcore.evidence.times import STEP_TIME, TIME_TOLERANCE, compared_times, times_table
from memcore.evidence.workings import first_fixes, sizes
from memcore.quantity.glossary import method

__all__ = [
    "AGREEMENT",
    "AUTOGRAD",
    "CHECK",
    "COUNTED",
    "COUNTS",
    "DEVICE",
    "MEASURED",
    "PEAK_TOLERANCE",
    "PEAK_TOLERANCES",
    "PUBLISHED",
    "REGIMES",
    "SOURCES",
    "STATES",
    "STEP",
    "STEP_TIME",
    "TIME_TOLERANCE",
    "TRACKER",
    "TUNED",
    "Calculator",
    "CalculatorFigure",
    "Comparison",
    "Published",
    "Worked",
    "by_kind",
    "calculators_table",
    "compare",
    "compared",
    "compared_links",
    "compared_presets",
    "compared_published",
    "compared_runs",
    "compared_served",
    "compared_times",
    "compared_tracker",
    "first_fixes",
    "last_compared",
    "links_table",
    "measured_table",
    "method",
    "oracle",
    "plan_of",
    "preset_parameters",
    "published",
    "published_table",
    "relative",
    "served_table",
    "sizes",
    "spread_texts",
    "states",
    "times_table",
    "weights",
    "worked",
]


@functools.cache
def compare() -> tuple[Comparison, ...]:
    """Every figure there is beside ours. Takes ten seconds or so, once per process."""
    return (
        *compared_presets(),
        *map(compared, oracle()),
        *compared_tracker(),
        *compared_runs(),
        *compared_times(),
        *compared_served(),
        *compared_links(),
        *compared_published(),
    )
