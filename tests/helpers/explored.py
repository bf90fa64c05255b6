"""How many examples a test draws."""

import os

from hypothesis import settings

EXPLORE = os.environ.get("MEMPLAN_EXPLORE", "")
EXAMPLES = 25  # of a law that says no other number
TIMES = 2 if EXPLORE else 1  # as many, where new ones are drawn


def examples(n: int) -> settings:
    """`n` in every run, and more where new ones are drawn: what a costly law needs, or a cheap one
    affords."""
    return settings(max_examples=n * TIMES)
