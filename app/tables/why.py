"""The parts of a number, as the drawer shows them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from app.tables.base import PATH, Rows
from memcore.quantity.formula import Term
from memcore.quantity.quantity import Explanation
from memcore.units import value_text

if TYPE_CHECKING:
    from memcore.explain.book import Book


def parts(book: Book, e: Explanation) -> Rows:
    """What a number is computed from, each part with how it comes about itself."""
    total = sum(t.value for t in e.parts) if _adds_up(e) else 0
    return [
        {
            "part": t.name,
            "is": value_text(t.value, t.unit),
            **({"share": 100 * t.value / total} if total else {}),
            "how": _how(book, t),
            "certainty": t.certainty,
            "source": t.source or "; ".join(book.explain(t.path).sources),
            PATH: t.path,
        }
        for t in e.parts
    ]


def _adds_up(e: Explanation) -> bool:
    """Whether the parts are shares of the number."""
    if len(e.parts) < 2 or isinstance(e.value, tuple) or e.unit not in ("bytes", "seconds", "FLOP"):
        return False
    if any(t.unit != e.unit for t in e.parts):
        return False
    return math.isclose(sum(t.value for t in e.parts), e.value, rel_tol=1e-6)


def _how(book: Book, t: Term) -> str:
    explained = book.explain(t.path) if t.path else None
    if explained and explained.formula is not None:
        return f"{explained.formula.words} = {explained.formula.numbers}"
    return explained.meaning if explained else t.note
