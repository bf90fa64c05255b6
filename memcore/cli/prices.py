"""`memplan prices`: what clouds ask for a GPU."""

from __future__ import annotations

import argparse
from datetime import date

from memcore.cli.arguments import Commands, command, gpu, json_option
from memcore.cli.printing import fail, listing, table
from memcore.units import money_text


def add(commands: Commands) -> None:
    about = "List what clouds ask for one GPU for one hour, with date and source."
    sub = command(commands, "prices", prices, about)
    sub.add_argument("gpu", nargs="?", metavar="GPU", type=gpu, help="of this accelerator only")
    json_option(sub)


def prices(args: argparse.Namespace, today: date | None = None) -> int:
    from memcore.models import cards, catalog

    if args.gpu is not None and args.gpu not in catalog.gpu_names():
        return fail(cards.no_preset(args.gpu))
    today = today or date.today()
    rows = []
    texts = []
    for name in catalog.priced_gpus() if args.gpu is None else (args.gpu,):
        for cloud, row in catalog.prices(name).items():
            old = catalog.outdated(row["as_of"], today)
            rows.append({**row, "outdated": old})
            dated = f"{row['as_of']}, may be over a year old" if old else row["as_of"]
            texts.append((name, cloud, money_text(row["usd"]), dated))
    if not rows and not args.json:
        print(f"No list price of {args.gpu} is known; set run.price_per_gpu_hour yourself.")
        return 0
    return listing(rows, table(("gpu", "cloud", "USD an hour", "as of"), texts, left=2), args.json)
