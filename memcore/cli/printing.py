"""What a command prints: tables, JSON, and what is wrong on standard error."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memcore.errors import refusal
from memcore.units import count_text

if TYPE_CHECKING:
    from memcore import Report
    from memcore.plan.plan import Plan

BAD_INPUT = 2
CHECKED = {"fits": 0, "tight": 3, "over": 1}  # exit statuses of a check
WORST = (0, 3, 1, BAD_INPUT)  # the best first
FAILED = "Memplan failed at this, which is Memplan's fault; please report it"


def fail(*messages: str, status: int = BAD_INPUT) -> int:
    for message in messages:
        print(f"memplan: {message}", file=sys.stderr)
    return status


def failed(args: argparse.Namespace) -> int:
    """The status of a command that failed; where 1 says that a plan does not fit, it is 2."""
    return BAD_INPUT if _checks(args) else 1


def _checks(args: argparse.Namespace) -> bool:
    return bool(getattr(args, "check", False) or getattr(args, "check_serving", False))


NARROWEST = 12  # letters that a column of words keeps


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Iterable[str]:
    """Columns two spaces apart, the first `left` of them to the left, numbers to the right. Where
    they are wider than the terminal, texts go on in further lines, no word of them broken."""
    every = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in every]
    least = [
        max(NARROWEST, *(len(word) for text in column for word in text.split()))
        for column in every[:left]
    ]
    excess = sum(widths) + 2 * (len(widths) - 1) - columns()
    while excess > 0 and (free := [i for i, letters in enumerate(least) if widths[i] > letters]):
        widths[max(free, key=widths.__getitem__)] -= 1
        excess -= 1
    wrapped = textwrap.TextWrapper(break_long_words=False, break_on_hyphens=False)
    for row in (head, *rows):
        cells = []
        for text, wrapped.width in zip(row, widths, strict=True):
            cells.append([text] if len(text) <= wrapped.width else wrapped.wrap(text))
        for line in itertools.zip_longest(*cells, fillvalue=""):
            texts = (
                text.ljust(width) if i < left else text.rjust(width)
                for i, (text, width) in enumerate(zip(line, widths, strict=True))
            )
            yield "  ".join(texts).rstrip()


def columns() -> float:
    """How many letters a line of the output has: as COLUMNS says, or the terminal; no end of them
    where a program reads it."""
    if (stated := os.environ.get("COLUMNS", "")).isdecimal() and int(stated):
        return int(stated)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf


def json_text(value: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        message = "a number in it is not finite; JSON has no NaN and no Infinity"
        raise refusal("", message) from None


def write_csv(rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows as CSV, with a column for each name that one of them has."""
    import csv

    every = list(rows)
    names = dict.fromkeys(name for row in every for name in row)
    writer = csv.DictWriter(sys.stdout, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(every)


def answer(
    args: argparse.Namespace,
    document: Callable[[], Any],
    text: Callable[[], str],
    rows: Callable[[], Iterable[Mapping[str, Any]]] = tuple,
) -> int:
    """Print what a command found, as JSON, as CSV or for people; its exit status."""
    if args.json:
        print(json_text(document(), indent=1))
    elif getattr(args, "csv", False):
        write_csv(rows())
    else:
        print(printable(text()))
    return 0


def printable(text: str) -> str:
    """The text with a question mark for each sign that a terminal would obey."""
    return "\n".join(
        line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)
        for line in text.split("\n")
    )


def plan_title(plan: Plan, report: Report) -> str:
    model = f"{plan.architecture.label}, {count_text(report.parameters)} parameters"
    return f"{model}, on {plan.cluster.gpus:,} x {plan.accelerator.label}"


def listing(rows: Sequence[Mapping[str, Any]], table: Iterable[str], as_json: bool) -> int:
    print(json_text(rows, indent=1) if as_json else "\n".join(table))
    return 0
