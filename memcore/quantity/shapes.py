"""Shapes: named dimensions, dtypes and rows as formulas."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memcore.hardware import constants
from memcore.quantity.formula import Formula, Term, known, leaf, number, total
from memcore.quantity.quantity import Explanation, about
from memcore.report import LedgerRow
from memcore.tape.dims import APART, Dim, Extent, Extents, Flat, Reckoned, Shape, Share, meaning_of
from memcore.tape.ledger import Amounts
from memcore.words.word import DTYPE_BYTES

if TYPE_CHECKING:
    from memcore.explain.book import Book

GIVEN = {  # dimensions of training that are fields of the plan
    "B": "plan.train.micro_batch",
    "S": "plan.train.seq_len",
}
TRANSLATED = {"S": "plan.train.target_len", "encoder.S": "plan.train.seq_len"}
FROM_GPU = {  # dimensions that are the GPU's, and whose figures they are
    "SMS": "the GPU's data sheet",
    "CUBLAS": constants.CUBLAS_WORKSPACE.source,
}
FROM_PLAN = (*GIVEN, "STAGE_LAYERS", "SHARD", "BUCKET", "tokens")  # the others: config.json
WHOSE = {APART: "layers with heads of their own"}  # of a stack's dimensions; else of that stack
OF_SERVING = {"B": "sequences in a forward", "S": "new tokens of a sequence in a forward"}


def dimension(book: Book, of: Extent, serving: bool = False) -> Formula:
    """One factor of a shape."""
    what, name, value = of.of, of.name, of.size
    if isinstance(what, Flat):
        rule = f"its elements laid out flat over {book.sizes[what.axis.name]:,} ranks, rounded up"
        return known(name, value, source="the shape and the ranks", note=rule)
    if isinstance(what, Share):
        rule = "follows from how many elements that has"
        return known(name, value, source=f"the rule of {book.step.optimizer.label}", note=rule)
    inner = what.of if isinstance(what, Dim) and what.of else what
    base = inner if isinstance(inner, str) else inner.name
    meaning = (OF_SERVING if serving else {}).get(base) or meaning_of(base)
    if of.axes:
        over = " x ".join(f"{axis.name} {book.sizes[axis.name]:,}" for axis in of.axes)
        whole = inner.value(book.sizes) if isinstance(inner, Reckoned) else book.sizes[of.whole]
        meaning += f": {whole:,} over {over}, rounded up"
    if isinstance(what, Dim) and what.stack:
        meaning += f", of its {WHOSE.get(what.stack, what.stack)}"
    given = GIVEN | TRANSLATED if book.plan.architecture.stack_before == "encoder" else GIVEN
    path = "" if serving else given.get(name, "")
    model = book.plan.architecture.origin
    source = "the plan" if base in FROM_PLAN else FROM_GPU.get(base, model)
    return leaf(Term(name, value, "", path, source="" if path else source, note=meaning))


def shape(book: Book, of: Shape, amounts: Amounts) -> Formula:
    """Elements of a tensor, as the product of its dimensions."""
    return elements(book, amounts.extents(of), serving="STAGE_LAYERS" in amounts.sizes)


def elements(book: Book, of: Extents, serving: bool = False) -> Formula:
    """The same of a shape that has its values; tensors that are counted together are added up."""

    def product(factors: Sequence[Extent]) -> Formula:
        each = [dimension(book, f, serving) if f.name else number(f.size) for f in factors]
        return functools.reduce(operator.mul, each) if each else number(1)

    return total([product(tensor) for tensor in of.tensors])


def width(dtype: str) -> Formula:
    """Bytes of one value."""
    return known(f"bytes of {dtype}", DTYPE_BYTES[dtype], "bytes", source="the dtype")


def count(n: int) -> Formula:
    return known("such tensors", n, "", source="the schedule of the step", note="alive at once")


def row(book: Book, r: LedgerRow, field: str = "bytes", serving: bool = False) -> Explanation:
    """One row of a ledger: its dimensions, its dtype, how many of them there are."""
    if field == "count":
        note = f"How many of {r.name} are alive. {r.why.capitalize()}; alive {r.lifetime}."
        return about(f"{r.name}, how many", "", None, note, [r.source], r.certainty, r.count)
    each = width(r.dtype) * elements(book, r.shape, serving)
    formula = each if field == "bytes_each" or r.count == 1 else each * count(r.count)
    meaning = f"{r.why.capitalize()}. Alive: {r.lifetime}."
    return about(r.name, "bytes", formula, meaning, [r.source], r.certainty)


def sum_of(book: Book, rows: list[tuple[str, LedgerRow]]) -> Formula:
    """Rows added up, each by its path, the largest first."""
    ordered = sorted(rows, key=lambda item: -item[1].bytes)
    return total([book.at(path, note=f"{r.shape}, {r.dtype}") for path, r in ordered])
