"""Figures: every figure of others that there is, with ours."""

from __future__ import annotations

import functools

from memcore.evidence.calculators import compared_tracker
from memcore.evidence.comparison import Comparison
from memcore.evidence.links import compared_links
from memcore.evidence.measured import compared_runs
from memcore.evidence.papers import compared_published
from memcore.evidence.pytorch import compared, compared_presets, oracle
from memcore.evidence.served import compared_served
from memcore.evidence.times import compared_times


@functools.cache
def compare() -> tuple[Comparison, ...]:
    """Each of them. Takes ten seconds or so, once per process."""
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
