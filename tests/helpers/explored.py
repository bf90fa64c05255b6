"""How many examples a test draws."""

from hypothesis import settings

EXPLORING = settings.default.max_examples > 25  # the profile that tests/conftest.py loads
EXPLORED = 4  # times as many


def examples(n: int) -> settings:
    """`n` in every run, and more where new ones are drawn: what a costly law needs, or a cheap one
    affords."""
    return settings(max_examples=n * EXPLORED if EXPLORING else n)
