"""`memplan models`: the model presets."""

from __future__ import annotations

import argparse
from typing import Any

from memcore.cli.arguments import Commands, command, json_option
from memcore.cli.printing import listing, table
from memcore.units import count_text


def add(commands: Commands) -> None:
    json_option(command(commands, "models", _models, "List the model presets."))


def _models(args: argparse.Namespace) -> int:
    from memcore.models import catalog
    from memcore.models.counts import parameters

    rows: list[dict[str, Any]] = []
    for name in catalog.model_names():
        model = catalog.model(name)
        rows.append({"name": name, "label": model.label, "parameters": parameters(model)})
    texts = [(r["name"], r["label"], count_text(r["parameters"])) for r in rows]
    return listing(rows, table(("name", "label", "parameters"), texts, left=2), args.json)
