"""`memplan levers`: the changes that make a plan fit, or faster."""

from __future__ import annotations

import argparse

from memcore.cli.arguments import Commands, command, json_option, plan_argument
from memcore.cli.printing import json_text, plan_title, printable, table
from memcore.cli.reading import given_plan
from memcore.units import bytes_text, relative_text, signed_seconds

SAME_RANK = (
    "Changes of one rank cannot be told apart by their GPU time; in brackets what eight of ten "
    "pairs of measured plans leave possible."
)


def add(commands: Commands) -> None:
    about = (
        "List the changes that make a plan fit or faster, each with its price: single ones, and "
        "two at once where no single one on the same GPUs fits and trains the same."
    )
    sub = command(commands, "levers", _levers, about)
    plan_argument(sub)
    json_option(sub)


def _levers(args: argparse.Namespace) -> int:
    from memcore.evaluate import evaluate
    from memcore.search.levers import headline, levers

    plan = given_plan(args)
    report, found = evaluate(plan), levers(plan)
    if args.json:
        print(json_text([lever.to_dict() for lever in found], indent=1))
        return 0
    if report.memory is None:
        print(printable("\n".join(f"Note: {note}" for note in report.notes)))
        return 0
    rows = [
        (
            str(lever.rank),
            lever.label,
            ", ".join(lever.followers),
            lever.trains_text,
            lever.verdict,
            bytes_text(lever.saved_bytes),
            signed_seconds(lever.added_seconds),
            f"{relative_text(lever.price)} ({' to '.join(map(relative_text, lever.price_range))})",
        )
        for lever in found
    ]
    head = (
        "rank",
        "change",
        "and sets",
        "it",
        "then",
        "saves at the peak",
        "step",
        "GPU time per token",
    )
    blocks = [plan_title(plan, report), headline(report.memory, found)]
    blocks += ["\n".join(table(head, rows, left=5))] if rows else []
    blocks += [SAME_RANK] if rows else []
    print(printable("\n\n".join(blocks)))
    return 0
