"""Figures of others with ours, and the names in shapes: what each is, and its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from memcore.evidence.comparison import CHECK, last_compared
from memcore.plan.plan import Plan
from memcore.quantity.formula import Formula, known
from memcore.quantity.quantity import Explanation, about, rule
from memcore.quantity.shapes import dimension
from memcore.tape.dims import AXES, DIMENSIONS, Extent
from memcore.training.steps import training_sizes

if TYPE_CHECKING:
    from memcore.explain.book import Book

OURS = "Memplan's own answer for the same model and settings"
DIFFERENCE = "Memplan less the reference, as a share of the reference."


def _difference(ours: float, theirs: float, unit: str, source: str, error: float) -> Formula:
    """How far ours is from theirs."""
    mine = known("Memplan", ours, unit, source=OURS)
    other = known("the reference", theirs, unit, source=source)
    formula = (mine - other) / other
    return Formula(error, formula.words, formula.numbers, formula.terms)


@rule("compared.*")
def _compared(book: Book, i: str) -> Explanation:
    c = last_compared()[int(i)]
    meaning = [DIFFERENCE, c.remark, f"Used for: {c.used_for}."]
    if c.low < c.high:
        meaning.append(
            f"Memplan gives an interval, {c.low:,.0f} to {c.high:,.0f}; inside it nothing differs."
        )
    if c.tolerance:
        meaning.append(f"A test allows {c.tolerance:.2%}.")
    elif c.used_for == CHECK and not c.run:
        meaning.append("A test wants them equal.")
    formula = _difference(c.ours, c.theirs, c.unit, c.run or c.source, c.error)
    return about(
        f"{c.model}, {c.what}", "difference", formula, " ".join(filter(None, meaning)), [c.source]
    )


@rule("evidence.dimensions.*")
def _dimension(book: Book, name: str) -> Explanation:
    of = Extent(int(sizes(book.plan)[name]), (DIMENSIONS | AXES)[name])
    factor = dimension(book, of).terms[0]
    source = factor.source or f"the plan: {factor.path.removeprefix('plan.')}"
    return about(name, "", None, factor.note, [source], value=factor.value)


def sizes(plan: Plan) -> Mapping[str, int]:
    """The value of every dimension and axis under a plan; 0 of layers that its model has not."""
    return dict.fromkeys(DIMENSIONS, 0) | training_sizes(plan)
