"""`memplan compare`: two to six plans side by side."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from memcore.cli.link import link_to
from memcore.cli.printing import answer, fail, table
from memcore.cli.reading import measured_of, named, plan_in
from memcore.errors import PlanError
from memcore.units import signed_bytes, signed_seconds, value_text

if TYPE_CHECKING:
    from memcore.search.compare import Comparison


def run(args: argparse.Namespace) -> int:
    from memcore.search.compare import compare

    plans = []
    for file in args.files:
        try:
            plans.append(plan_in(file))
        except PlanError as e:
            return fail(*(f"{named(file)}: {issue}" for issue in e.issues))
    comparison = compare(plans, _names(args.files), measured_of(args))
    link = link_to(plans, args.base)
    return answer(
        args,
        lambda: comparison.to_dict() | {"link": link},
        lambda: "\n\n".join([*_readable(comparison), link]),
        comparison.rows,
    )


def _names(files: list[str]) -> list[str]:
    """What plans are called: their files, numbered where one is there twice."""
    seen: dict[str, int] = {}
    names = []
    for file in files:
        seen[file] = seen.get(file, 0) + 1
        names.append(file if seen[file] == 1 else f"{file} ({seen[file]})")
    return names


def _readable(comparison: Comparison) -> Iterator[str]:
    from memcore.plan.plan import title_of
    from memcore.plan.plan import value_text as field_text
    from memcore.search.compare import UNITS

    def text(value: Any, unit: str) -> str:
        return "-" if value is None else value_text(value, unit) if unit else _plain(value)

    if comparison.fields:
        rows = [
            (f"{title_of(path)} ({path})", *(_plain(field_text(path, v)) for v in values))
            for path, values in comparison.fields.items()
        ]
        yield "\n".join(table(("Differs in", *comparison.names), rows))
    else:
        yield "The plans are the same."
    figures = [
        (path, *(text(value, UNITS[path]) for value in values))
        for path, values in comparison.figures.items()
    ]
    yield "\n".join(table(("Figure", *comparison.names), figures))
    for (a, b), changes in comparison.between.items():
        moves = [(c.label, signed_bytes(c.bytes), signed_seconds(c.seconds)) for c in changes]
        if moves:
            head = (f"From {comparison.names[a]} to {comparison.names[b]}", "peak", "step")
            yield "\n".join(table(head, moves))


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    text = str(value)
    return f"{text[:40]}..." if len(text) > 43 else text
