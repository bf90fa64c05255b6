"""Explain: why a number of a report is what it is, down to its factors and their sources.

Rules for the parts of a report are in the modules of_memory, of_time, of_run, of_serving and
of_together; of_levers has what levers change.
What an explanation computes is held by tests to what the report says.
"""

from __future__ import annotations

from memcore.explain import (  # noqa: F401  (they register their rules)
    of_evidence,
    of_levers,
    of_memory,
    of_run,
    of_serving,
    of_time,
    of_together,
)
from memcore.explain.book import Book, Explanation, UnknownNumberError
from memcore.explain.formula import Formula, Term

__all__ = ["Book", "Explanation", "Formula", "Term", "UnknownNumberError"]
