"""Measured: a step that somebody ran and timed, which other plans can be read beside."""

from __future__ import annotations

import math
from dataclasses import dataclass

from memcore.errors import Issue, PlanError
from memcore.plan.plan import Plan
from memcore.units import TiB

MOST_SECONDS = 1e7  # of a step: 116 days
MOST_BYTES = 1024 * TiB


@dataclass(frozen=True, slots=True)
class Measured:
    """A step that somebody measured.

    plan      of it
    seconds   of one optimizer step
    bytes     allocated at its peak on the fullest GPU, as PyTorch counts them; 0 where not known

    Raises PlanError for numbers that no step has.
    """

    plan: Plan
    seconds: float
    bytes: int = 0

    def __post_init__(self) -> None:
        issues = []
        if not (math.isfinite(self.seconds) and 0 < self.seconds <= MOST_SECONDS):
            said = f"a measured step takes more than 0 and at most {MOST_SECONDS:,.0f} seconds"
            issues.append(Issue("seconds", said))
        if not 0 <= self.bytes <= MOST_BYTES:
            issues.append(Issue("bytes", "a measured peak is from 0 bytes to 1,024 TiB"))
        if issues:
            raise PlanError(issues)
