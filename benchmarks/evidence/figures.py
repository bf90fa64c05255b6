"""Figures: every figure of others that there is, with ours."""

from __future__ import annotations

import functools

from evidence.calculators import compared_tracker
from evidence.links import compared_links
from evidence.measured import compared_runs
from evidence.papers import compared_published
from evidence.pytorch import compared, compared_presets, oracle
from evidence.served import compared_served
from evidence.times import compared_times
from evidence.traced import compared_traced
from memcore.evidence.comparison import Comparison


@functools.cache
def compare() -> tuple[Comparison, ...]:
    """Each of them. Takes ten seconds or so, once per process."""
    return (
        *compared_presets(),
        *map(compared, oracle()),
        *compared_traced(),
        *compared_tracker(),
        *compared_runs(),
        *compared_times(),
        *compared_served(),
        *compared_links(),
        *compared_published(),
    )
