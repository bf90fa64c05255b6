"""`memplan plans`: the worked plans."""

from __future__ import annotations

import argparse

from memcore.cli.arguments import Commands, command, json_option
from memcore.cli.printing import fail, json_text, listing, table
from memcore.errors import did_you_mean, shown


def add(commands: Commands) -> None:
    sub = command(commands, "plans", _plans, "List the worked plans, or print one as JSON.")
    sub.add_argument("name", nargs="?", help="print this plan")
    json_option(sub, "list as JSON")


def _plans(args: argparse.Namespace) -> int:
    from memcore.models import catalog

    entries = catalog.plan_entries()
    if args.name is not None:
        if args.name not in entries:
            return fail(f"no worked plan {shown(args.name)}; {did_you_mean(args.name, entries)}")
        print(json_text(entries[args.name]["plan"], indent=1))
        return 0
    rows = [{"name": name, "label": e["label"], **e} for name, e in entries.items()]
    texts = [(r["name"], r["label"], r["question"]) for r in rows]
    return listing(rows, table(("name", "label", "question"), texts, left=3), args.json)
