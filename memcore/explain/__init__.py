"""Explain: why a number of a report is what it is, down to its factors and their sources.

The rules for the parts of a report stand in the rooms that compute them, in modules called numbers.
What an explanation computes is held by tests to what the report says.
"""

from __future__ import annotations

from memcore.evidence import numbers as numbers_of_evidence  # noqa: F401  (its rules)
from memcore.explain.book import Book
from memcore.quantity.formula import Formula, Term
from memcore.quantity.quantity import Explanation, UnknownNumberError
from memcore.serving import numbers as numbers_of_serving  # noqa: F401  (its rules)
from memcore.together import numbers_of_together  # noqa: F401  (its rules)
from memcore.training import (
    numbers_of_memory,  # noqa: F401  (its rules)
    numbers_of_time,  # noqa: F401  (its rules)
    run,  # noqa: F401  (its rules)
)

__all__ = ["Book", "Explanation", "Formula", "Term", "UnknownNumberError"]
