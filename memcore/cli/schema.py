"""`memplan schema`: the JSON Schema of what is given and of what is answered."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from memcore.cli.printing import json_text
from memcore.report import INSIDE, Report
from memcore.tape.dims import Extents


class OfReport(GenerateJsonSchema):
    """The schema of what `report.plain` makes of dataclasses: a shape is text, and what is None or
    inside is left out."""

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        cls = schema["cls"]
        if cls is Extents:
            return {"type": "string"}
        made = super().dataclass_schema(schema)
        for name in (f.name for f in fields(cls) if f.metadata == INSIDE):
            made["properties"].pop(name, None)
        return made

    def nullable_schema(self, schema: Any) -> dict[str, Any]:
        return dict(self.generate_inner(schema["schema"]))

    def field_is_required(self, field: Any, total: bool) -> bool:
        optional = field["schema"]["type"] == "nullable"
        return not optional and super().field_is_required(field, total)


def schema_of(what: str) -> dict[str, Any]:
    """The JSON Schema of a 'plan' or of a 'report' as JSON."""
    from memcore.plan.plan import Plan

    if what == "plan":
        made = Plan.model_json_schema()
        made["properties"]["$schema"] = {"type": "string"}
    else:
        made = TypeAdapter(Report).json_schema(schema_generator=OfReport, mode="serialization")
    return {"$schema": GenerateJsonSchema.schema_dialect, **made}


def run(args: argparse.Namespace) -> int:
    print(json_text(schema_of(args.of), indent=1))
    return 0
