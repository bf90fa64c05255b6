"""Figures of others beside ours, and the figures of the Method page: what each is and whence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcore import evidence
from memcore.quantity.formula import Formula, known, total
from memcore.quantity.quantity import Explanation, about, rule
from memcore.quantity.shapes import dimension, elements
from memcore.tape.dims import AXES, DIMENSIONS, Extent
from memcore.tape.ledger import AUTOGRAD
from memcore.timing.roofline import DECLARED
from memcore.training.numbers_of_time import TOUCHED

if TYPE_CHECKING:
    from memcore.explain.book import Book

OURS = "Memplan's own answer for the same model and settings"
DIFFERENCE = "Memplan less the reference, as a share of the reference."


def _beside(ours: float, theirs: float, unit: str, source: str, error: float) -> Formula:
    """How far ours is from theirs."""
    mine = known("Memplan", ours, unit, source=OURS)
    other = known("the reference", theirs, unit, source=source)
    formula = (mine - other) / other
    return Formula(error, formula.words, formula.numbers, formula.terms)


@rule("evidence.compared.*")
def _compared(book: Book, i: str) -> Explanation:
    c = evidence.last_compared()[int(i)]
    meaning = [DIFFERENCE, c.remark, f"Used for: {c.used_for}."]
    if c.low < c.high:
        meaning.append(
            f"Memplan gives an interval, {c.low:,.0f} to {c.high:,.0f}; inside it nothing differs."
        )
    if c.tolerance:
        meaning.append(f"A test allows {c.tolerance:.2%}.")
    elif c.used_for == evidence.CHECK and not c.run:
        meaning.append("A test wants them equal.")
    formula = _beside(c.ours, c.theirs, c.unit, c.run or c.source, c.error)
    return about(
        f"{c.model}, {c.what}", "difference", formula, " ".join(filter(None, meaning)), [c.source]
    )


@rule("evidence.published.*")
def _published(book: Book, i: str) -> Explanation:
    p = evidence.published()[int(i)]
    allowed = f"A test allows {p.tolerance:.2%}." if p.tolerance else ""
    meaning = " ".join(filter(None, [DIFFERENCE, p.remark, allowed]))
    formula = _beside(p.ours, p.theirs, p.unit, p.source, p.error)
    return about(p.what, "difference", formula, meaning, [p.source])


@rule("evidence.calculators.*")
def _calculator(book: Book, i: str) -> Explanation:
    worked, said = [(w, s) for w in evidence.worked() for s in w.said][int(i)]
    theirs = known(said.calculator.name, said.theirs, "bytes", source=said.calculator.url)
    ours = known("Memplan for the same", said.ours, "bytes", source=OURS)
    difference = (theirs - ours) / ours
    formula = Formula(said.excess, difference.words, difference.numbers, difference.terms)
    meaning = [f"More than Memplan, for {worked.label}.", said.remark, f"Asked: {said.inputs}."]
    return about(said.calculator.name, "difference", formula, " ".join(filter(None, meaning)))


@rule("evidence.estimates.*")
def _estimate(book: Book, i: str) -> Explanation:
    e = evidence.estimates()[int(i)]
    by = evidence.estimators_table()["estimators"][e.by]
    theirs = known(by["name"], e.theirs, "bytes", source=by["url"])
    parts = [known(p.tensors, p.bytes, "bytes", source=OURS) for p in e.parts]
    summed = total([theirs, *sorted(parts, key=lambda p: -abs(p.value))])
    formula = Formula(e.ours, summed.words, summed.numbers, summed.terms)
    meaning = f"{e.label}: what the estimator says, and what Memplan counts otherwise."
    return about(f"Memplan, {e.what}", "bytes", formula, meaning, [OURS])


@rule("evidence.operations.*", "evidence.operations.*.forward_flops")
def _forward_flops(book: Book, i: str) -> Explanation:
    o = _operations(book)[int(i)]
    found = o.formula.tensors
    formula = elements(book, o.formula) if found else known("none", 0, source=DECLARED)
    meaning = f"Of one forward of one {o.block}. Saves: {o.saves or 'nothing'}."
    return about(f"FLOPs of {o.name}", "FLOP", formula, meaning, [DECLARED])


@rule("evidence.operations.*.forward_hbm_bytes|backward_hbm_bytes|saved_bytes")
def _operation(book: Book, i: str, field: str) -> Explanation:
    o = _operations(book)[int(i)]
    what = {
        "forward_hbm_bytes": "HBM traffic of the forward of",
        "backward_hbm_bytes": "HBM traffic of the backward of",
        "saved_bytes": "Bytes first saved by",
    }[field]
    source = AUTOGRAD if field == "saved_bytes" else TOUCHED
    meaning = f"In one {o.block}. Saves: {o.saves or 'nothing'}."
    return about(f"{what} {o.name}", "bytes", None, meaning, [source], value=getattr(o, field))


def _operations(book: Book) -> tuple[evidence.Operation, ...]:
    return book.once("operations of a block", lambda: evidence.operations(book.plan))


@rule("evidence.dimensions.*")
def _dimension(book: Book, name: str) -> Explanation:
    of = Extent(int(evidence.sizes(book.plan)[name]), (DIMENSIONS | AXES)[name])
    factor = dimension(book, of).terms[0]
    source = factor.source or f"the plan: {factor.path.removeprefix('plan.')}"
    return about(name, "", None, factor.note, [source], value=factor.value)
