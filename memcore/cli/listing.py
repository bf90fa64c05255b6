"""`memplan gpus`, `models`, `prices` and `plans`: what there is to choose from."""

from __future__ import annotations

import argparse
from datetime import date
from typing import Any

from memcore.cli.printing import fail, json_text, listing, table
from memcore.errors import did_you_mean, shown
from memcore.units import bytes_text, count_text, money_text, rate_text


def models(args: argparse.Namespace) -> int:
    from memcore.models import catalog
    from memcore.models.counts import parameters

    rows: list[dict[str, Any]] = []
    for name in catalog.model_names():
        model = catalog.model(name)
        rows.append({"name": name, "label": model.label, "parameters": parameters(model)})
    texts = [(r["name"], r["label"], count_text(r["parameters"])) for r in rows]
    return listing(rows, table(("name", "label", "parameters"), texts, left=2), args.json)


def gpus(args: argparse.Namespace) -> int:
    from memcore.models import catalog

    rows, texts = [], []
    for name in catalog.gpu_names():
        gpu = catalog.accelerator(name)
        bf16 = gpu.flops.get("bf16")
        row = {"name": name, "label": gpu.label, "memory_bytes": gpu.memory_bytes}
        row |= {"memory_bandwidth": gpu.memory_bandwidth, "status": gpu.status}
        rows.append(row | ({"bf16_flops": bf16} if bf16 else {}))
        flops = f"{bf16 / 1e12:,.0f}" if bf16 else "-"
        bandwidth = rate_text(gpu.memory_bandwidth, "B/s")
        status = "" if gpu.status == "shipping" else gpu.status
        texts.append((name, gpu.label, bytes_text(gpu.memory_bytes), bandwidth, flops, status))
    head = ("name", "label", "memory", "bandwidth", "bf16 TFLOP/s", "")
    return listing(rows, table(head, texts, left=2), args.json)


def prices(args: argparse.Namespace, today: date | None = None) -> int:
    from memcore.models import cards, catalog

    if args.gpu is not None and args.gpu not in catalog.gpu_names():
        return fail(cards.no_preset(args.gpu))
    today = today or date.today()
    rows, texts = [], []
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


def plans(args: argparse.Namespace) -> int:
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
