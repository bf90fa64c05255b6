"""A plan that somebody ran, with what was measured of it, which other plans can be read with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from memcore.errors import Issue, PlanError
from memcore.plan.plan import Plan
from memcore.units import TiB

MOST_SECONDS = 1e7  # of a step: 116 days
MOST_BYTES = 1024 * TiB
MOST_WAIT = 1e5  # seconds to a first token: 28 hours
MOST_RATE = 1e9  # tokens per second
OF_SERVER = {"token": MOST_WAIT, "first": MOST_WAIT, "rate": MOST_RATE}  # and at most


@dataclass(frozen=True, slots=True)
class Measured:
    """What somebody measured of a training step or of a server; 0 where not known.

    plan      that ran; a server's with the load that it ran under
    seconds   of one optimizer step
    bytes     allocated at its peak on the fullest GPU, as PyTorch counts them
    token     seconds per output token after the first, in the mean
    first     seconds to the first token, in the mean
    rate      output tokens per second of one replica, all requests together

    Raises PlanError for numbers that no step and no server has.
    """

    plan: Plan
    seconds: float = 0.0
    bytes: int = 0
    token: float = 0.0
    first: float = 0.0
    rate: float = 0.0

    @property
    def of_server(self) -> bool:
        return bool(self.token or self.first or self.rate)

    def __post_init__(self) -> None:
        issues = [
            Issue(name, f"a measured server has from 0 (not known) to {most:,.0f} of it")
            for name, most in OF_SERVER.items()
            if not (math.isfinite(value := getattr(self, name)) and 0 <= value <= most)
        ]
        served = issues or self.of_server
        if not served and not (math.isfinite(self.seconds) and 0 < self.seconds <= MOST_SECONDS):
            said = f"a measured step takes more than 0 and at most {MOST_SECONDS:,.0f} seconds"
            issues.append(Issue("seconds", said))
        if not 0 <= self.bytes <= MOST_BYTES:
            issues.append(Issue("bytes", "a measured peak is from 0 bytes to 1,024 TiB"))
        if issues:
            raise PlanError(issues)
