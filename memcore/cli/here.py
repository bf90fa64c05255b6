"""`memplan here`: the GPUs of this machine, as --gpu here plans on them."""

from __future__ import annotations

import argparse
import dataclasses

from memcore.cli.printing import listing, printable, table
from memcore.cli.reading import print_issues
from memcore.units import bytes_text


def run(args: argparse.Namespace) -> int:
    from memcore.formats import here

    every = here.devices()
    texts = [
        (
            each.model,
            each.preset or "-",
            bytes_text(each.memory_bytes),
            bytes_text(each.taken_bytes),
        )
        for each in every
    ]
    lines = table(("GPU", "preset", "memory", "taken"), [_printable(row) for row in texts], left=2)
    status = listing([dataclasses.asdict(each) for each in every], lines, args.json)
    if not args.json:
        _, issues = here.settings_of(every)
        print_issues(issues)
        print("Plan on them: memplan evaluate 7B --gpu here")
    return status


def _printable(row: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(printable, row))
