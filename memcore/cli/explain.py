"""`memplan explain`: why a number of a report is what it is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from memcore.cli.printing import fail, printable, table
from memcore.cli.reading import given_plan
from memcore.units import exact_text

if TYPE_CHECKING:
    from memcore.quantity.quantity import Explanation

PARTS = 12  # of an explanation that are printed


def run(args: argparse.Namespace) -> int:
    from memcore.evaluate import evaluate
    from memcore.explain.book import Book
    from memcore.quantity.quantity import UnknownNumberError

    plan = given_plan(args)
    book = Book(plan, evaluate(plan))
    if args.number is None:
        rows = [(path, book.explain(path).text) for path in book.paths()]
        print(printable("\n".join(table(("number", "is"), rows, left=2))))
        return 0
    try:
        blocks = [_explained(e) for e in book.chain(args.number)]
    except UnknownNumberError as e:
        return fail(str(e))
    print(printable("\n\n".join([blocks[0], *(f"Largest part: {b}" for b in blocks[1:])])))
    return 0


def _explained(e: Explanation) -> str:
    """One explanation for a terminal: its formula, its parts and its sources."""
    lines = [f"{e.what} = {e.text} ({e.certainty})  {e.path}"]
    if e.meaning:
        lines.append(f"  {e.meaning}")
    if e.formula is not None:
        lines += [f"  = {e.formula.words}", f"  = {e.formula.numbers}"]
    shown_parts = e.parts[:PARTS]
    rows = [
        (f"  {t.name}", exact_text(t.value, t.unit), t.certainty, t.path or t.source)
        for t in shown_parts
    ]
    lines += table(("  part", "is", "certainty", "explained by"), rows) if rows else []
    if len(e.parts) > PARTS:
        lines.append(f"  and {len(e.parts) - PARTS:,} smaller parts")
    return "\n".join([*lines, *(f"  Source: {source}" for source in e.sources)])
