"""What every test shares: which examples hypothesis draws.

A run draws the same examples as every other, on every machine: what fails in one fails in all.
MEMPLAN_EXPLORE=1 draws new ones instead, with a seed that is printed at the end, and
MEMPLAN_EXPLORE=SEED draws those of that seed again.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, settings

EXPLORE = os.environ.get("MEMPLAN_EXPLORE", "")

# One machine is slower or busier than another; no test is wrong for it.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore",
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("explore" if EXPLORE else "same")


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads the seed
def pytest_configure(config: pytest.Config) -> None:
    if EXPLORE and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.getrandbits(32) if EXPLORE == "1" else EXPLORE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if EXPLORE:
        seed = terminalreporter.config.option.hypothesis_seed
        terminalreporter.write_line(f"MEMPLAN_EXPLORE={seed} draws these examples again")
