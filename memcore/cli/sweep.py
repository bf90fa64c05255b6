"""`memplan sweep`: any numbers of a report against any fields of a plan."""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any

from memcore.cli.arguments import gpu
from memcore.cli.printing import json_text, printable, table
from memcore.cli.progress import Progress
from memcore.cli.reading import (
    field_named,
    given_plan,
    presets_of,
    refuse_others,
    value_of,
)
from memcore.errors import refusal, shown

NUMBERS = ("memory.allocated_bytes", "memory.fits", "time.step_seconds")
EXAMPLE = "train.micro_batch=1,2,4"
MOST_VALUES = 1_000_000


def run(args: argparse.Namespace) -> int:
    from memcore.search.sweep import swept

    plan, numbers = given_plan(args), tuple(args.number or NUMBERS)
    axes = axes_of(args.axis)
    with Progress("sweep") as progress:
        cells = swept(plan, axes, numbers, progress)
    names = [*axes, *cells]
    values = zip(*(of.ravel().tolist() for of in cells.values()), strict=True)
    rows = [
        (*point, *(None if math.isnan(n) else n for n in of))
        for point, of in zip(itertools.product(*axes.values()), values, strict=True)
    ]
    if args.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([names, *rows])
    elif args.json:
        print(json_text([dict(zip(names, row, strict=True)) for row in rows], indent=1))
    else:
        texts = [[_cell(value) for value in row] for row in rows]
        print(printable("\n".join(table(names, texts, left=len(axes)))))
    return 0


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{int(value):,}" if value.is_integer() else f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def axes_of(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Fields and their values, as the command line has them. Raises PlanError."""
    axes: dict[str, list[Any]] = {}
    for text in texts:
        field, values = axis_of(text)
        if field in axes:
            refused = "is there twice: put all its values into one, as " + EXAMPLE
            raise refusal(f"--axis {field}", refused)
        axes[field] = values
    return axes


def axis_of(text: str, option: str = "--axis") -> tuple[str, list[Any]]:
    """A field and its values, as the command line has them. Raises PlanError, under the option's
    name."""
    from memcore.plan.plan import words_of

    named, sign, values = text.partition("=")
    if not sign or not values:
        raise refusal(option, f"{shown(text)} is no field with values, as {EXAMPLE} is")
    field = field_named(named, option)
    if values == "all":
        words = words_of(field) or presets_of(field)
        if not words:
            refused = "takes no words, of which all could be tried"
            raise refusal(f"{option} {field}", refused)
        return field, list(words)
    parsed: list[Any] = []
    for part in values.split(","):
        parsed += _range(field, part, option) if ":" in part else [value_of(part)]
        if len(parsed) > MOST_VALUES:
            raise refusal(f"{option} {field}", f"has more than {MOST_VALUES:,} values")
    if field == "cluster.gpu":
        parsed = list(map(gpu, map(str, parsed)))
    refuse_others(field, parsed, option)
    return field, parsed


def _range(field: str, text: str, option: str) -> range:
    try:
        first, last, *step = map(int, text.split(":"))
        numbers = range(first, last + 1, *step)
    except (TypeError, ValueError):
        message = f"{shown(text)} is no range, as 1:64 and 1:64:8 are"
        raise refusal(f"{option} {field}", message) from None
    if not numbers:
        raise refusal(f"{option} {field}", f"{shown(text)} has no values: from {first:,} "
                               f"up to {last:,}")  # fmt: skip
    if len(numbers) > MOST_VALUES:
        raise refusal(f"{option} {field}", f"has more than {MOST_VALUES:,} values")
    return numbers
