"""Shapes: named dimensions, dtypes and rows as formulas."""

from __future__ import annotations

import functools
import operator
import re
from typing import TYPE_CHECKING

from memcore.quantity.formula import Formula, Term, known, leaf, number, total
from memcore.quantity.quantity import Explanation, about
from memcore.report import LedgerRow
from memcore.tape.dims import Shape, meaning_of
from memcore.tape.ledger import Amounts
from memcore.words.word import DTYPE_BYTES

if TYPE_CHECKING:
    from memcore.explain.book import Book

BETWEEN = r"(?<=[0-9]) x "  # factors; a name may have an x of its own
GIVEN = {  # dimensions of training that are fields of the plan
    "B": "plan.train.micro_batch",
    "S": "plan.train.seq_len",
}
TRANSLATED = {"S": "plan.train.target_len", "encoder.S": "plan.train.seq_len"}
FROM_PLAN = (*GIVEN, "STAGE_LAYERS", "SHARD", "BUCKET", "tokens")  # the others: config.json
OF_SERVING = {"B": "sequences in a forward", "S": "new tokens of a sequence in a forward"}


def dimension(book: Book, name: str, value: int, serving: bool = False) -> Formula:
    """One factor of a shape. `name` may say what cuts it: 'F/TP'."""
    if " of " in name:  # a count that follows from a whole shape: dims.Share
        if name.startswith("1/"):  # dims.Flat
            axis = name[2:].partition(" of ")[0]
            rule = f"its elements laid out flat over {book.sizes[axis]:,} ranks, rounded up"
            return known(name, value, source="the shape and the ranks", note=rule)
        rule = "follows from how many elements that has"
        return known(name, value, source=f"the rule of {book.step.optimizer.label}", note=rule)
    whole, *axes = name.split("/")
    stack, _, base = whole.rpartition(".")
    meaning = (OF_SERVING if serving else {}).get(base) or meaning_of(base)
    if axes:
        over = " x ".join(f"{axis} {book.sizes[axis]:,}" for axis in axes)
        meaning += f": {book.sizes[whole]:,} over {over}, rounded up"
    if stack:
        meaning += f", of its {stack}"
    given = GIVEN | TRANSLATED if book.plan.architecture.stack_before == "encoder" else GIVEN
    path = "" if serving else given.get(name, "")
    source = "the plan" if base in FROM_PLAN else f"config.json of {book.plan.architecture.label}"
    return leaf(Term(name, value, "", path, source="" if path else source, note=meaning))


def shape(book: Book, of: Shape, amounts: Amounts) -> Formula:
    """Elements of a tensor, as the product of its dimensions."""
    return text_shape(book, amounts.text(of), serving="STAGE_LAYERS" in amounts.sizes)


def text_shape(book: Book, text: str, serving: bool = False) -> Formula:
    """The same from what a ledger row prints: 'B 1 x S 4,096 x F/TP 7,168'."""
    factors: list[Formula] = []
    for part in re.split(BETWEEN, text) if text != "scalar" else ():
        name, _, digits = part.rpartition(" ")
        n = float(digits.replace(",", ""))
        n = int(n) if n.is_integer() else n
        factors.append(dimension(book, name, int(n), serving) if name else number(n))
    return functools.reduce(operator.mul, factors) if factors else number(1)


def product_of(book: Book, text: str, serving: bool = False) -> Formula:
    """A sum of such products: '2 x B 1 x S 4,096 x D 4,096 + 2 x ...'."""
    return total([text_shape(book, product, serving) for product in text.split(" + ")])


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
    each = width(r.dtype) * text_shape(book, r.shape, serving)
    formula = each if field == "bytes_each" or r.count == 1 else each * count(r.count)
    meaning = f"{r.why.capitalize()}. Alive: {r.lifetime}."
    return about(r.name, "bytes", formula, meaning, [r.source], r.certainty)


def sum_of(book: Book, rows: list[tuple[str, LedgerRow]]) -> Formula:
    """Rows added up, each by its path, the largest first."""
    ordered = sorted(rows, key=lambda item: -item[1].bytes)
    return total([book.at(path, note=f"{r.shape}, {r.dtype}") for path, r in ordered])
