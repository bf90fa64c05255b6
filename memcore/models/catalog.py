"""Catalog: the presets that ship with Memplan, read once from their data files."""

from __future__ import annotations

import functools
import gzip
import json
import tomllib
from collections.abc import Mapping
from datetime import date
from typing import Any

from memcore.hardware.accelerator import Accelerator, Node
from memcore.models.families import from_config
from memcore.models.families.traced import model_at
from memcore.models.model import Model
from memcore.models.traced.file import ModelFile, read
from memcore.shipped import PRESETS

_ROOT = PRESETS


@functools.cache
def _tables(folder: str) -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = {}
    for file in sorted(_ROOT.joinpath(folder).iterdir(), key=lambda f: f.name):
        if file.name.endswith(".toml"):
            tables[file.name] = tomllib.loads(file.read_text(encoding="utf-8"))
    return tables


@functools.cache
def _accelerator_tables() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, table in _tables("hardware").items():
        if name != "nodes.toml":
            found |= table
    return found


def _spelled_out(name: str) -> dict[str, Any]:
    """A preset's whole table: one `of` another is that one with what it says differently."""
    own = dict(_accelerator_tables()[name])
    if chip := own.pop("of", None):
        whole = _spelled_out(chip)
        for key, value in own.items():
            whole[key] = whole[key] | value if isinstance(value, dict) else value
        return whole
    return own


def gpu_names() -> tuple[str, ...]:
    return tuple(_accelerator_tables())


def chip_of(gpu: str) -> str:
    """The preset that stands for all sizes of this one's memory."""
    chip: str = _accelerator_tables()[gpu].get("of", gpu)
    return chip


@functools.cache
def sizes(gpu: str) -> tuple[str, ...]:
    """The presets of the same chip, itself included, from the smallest memory to the largest: one
    name for each size that it is sold with."""
    same = [name for name in gpu_names() if chip_of(name) == chip_of(gpu)]
    return tuple(sorted(same, key=lambda name: accelerator(name).memory_bytes))


def node_names() -> tuple[str, ...]:
    return tuple(_tables("hardware")["nodes.toml"])


@functools.cache
def accelerator(name: str) -> Accelerator:
    return Accelerator.model_validate(_spelled_out(name))


@functools.cache
def node(name: str) -> Node:
    return Node.model_validate(_tables("hardware")["nodes.toml"][name])


@functools.cache
def prices(gpu: str) -> dict[str, dict[str, Any]]:
    """What clouds ask for a GPU for one hour: {'usd', 'as_of', 'source'} by cloud."""
    return {row["cloud"]: row for row in _price_rows() if row["gpu"] == gpu}


@functools.cache
def _price_rows() -> list[dict[str, Any]]:
    text = _ROOT.joinpath("prices.toml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = tomllib.loads(text)["price"]
    return rows


@functools.cache
def instances() -> dict[str, dict[str, Any]]:
    """What clouds ask for the instances that have names, by these in small letters; `gpus` is how
    many an instance has."""
    return {row["instance"].lower(): row for row in _price_rows() if "instance" in row}


def priced_gpus() -> tuple[str, ...]:
    """The accelerator presets that some cloud's price is known of."""
    return tuple(name for name in gpu_names() if prices(name))


def outdated(as_of: str, today: date) -> bool:
    """Whether a date ('2026', '2026-03' or '2026-03-17') may be more than a year ago: of a year or
    a month alone, its first day counts."""
    year, month, day = (*map(int, as_of.split("-")), 1, 1)[:3]
    return (year + 1, month, day) < (today.year, today.month, today.day)


@functools.cache
def _model_files() -> dict[str, Any]:
    folder = _ROOT.joinpath("models")
    return {f.name[:-5]: f for f in folder.iterdir() if f.name.endswith(".json")}


@functools.cache
def model_names() -> tuple[str, ...]:
    """Every preset of a model."""
    return tuple(sorted((*_model_files(), *traced_rows()), key=_natural))


@functools.cache
def config_names() -> tuple[str, ...]:
    """Those that a config.json describes."""
    return tuple(name for name in model_names() if name in _model_files())


@functools.cache
def model_entry(name: str) -> dict[str, Any]:
    """A model preset as its file has it: name, label, source, revision, config; one that was traced
    has no config."""
    if name in traced_rows():
        return traced_rows()[name]
    entry: dict[str, Any] = json.loads(_model_files()[name].read_text(encoding="utf-8"))
    return entry


@functools.cache
def model(name: str) -> Model:
    if name in traced_rows():
        return traced_model(name, traced_dims(name))
    entry = model_entry(name)
    return from_config(entry["config"], entry["label"])


@functools.cache
def traced_rows() -> dict[str, dict[str, Any]]:
    """Presets that were traced, by name: presets/traced.toml says what stands in a row."""
    found: dict[str, dict[str, Any]] = tomllib.loads(
        _ROOT.joinpath("traced.toml").read_text(encoding="utf-8")
    )
    return found


def traced_names() -> tuple[str, ...]:
    """The presets that were traced."""
    return tuple(traced_rows())


def traced_dims(name: str) -> dict[str, int]:
    """The dimensions of a traced preset with their usual sizes; of whatever else none."""
    return dict(traced_rows()[name]["dims"]) if name in traced_rows() else {}


def traced_usual(name: str) -> dict[str, Any]:
    """Fields of a plan, by their paths, as people train a traced preset; of whatever else none."""
    return dict(traced_rows().get(name, {}).get("usual", {}))


@functools.cache
def traced_file(name: str) -> ModelFile:
    """The model file of a traced preset."""
    packed = _ROOT.joinpath("traced", f"{name}.json.gz").read_bytes()
    return read(json.loads(gzip.decompress(packed)), checked=False)


def traced_model(name: str, sizes: Mapping[str, int]) -> Model:
    """A traced preset at some sizes of its dimensions. Raises PlanError."""
    file = traced_file(name)
    return model_at(file, {**file.dims, **sizes}, traced_rows()[name]["label"])


@functools.cache
def same_shapes() -> dict[str, str]:
    """Names of other models with the shapes of a preset, and that preset."""
    text = _ROOT.joinpath("same_shapes.toml").read_text(encoding="utf-8")
    names: dict[str, str] = tomllib.loads(text)
    return names


@functools.cache
def plan_entries() -> dict[str, dict[str, Any]]:
    """The worked examples by name: {'label', 'question', 'plan'}."""
    folder = _ROOT.joinpath("plans")
    entries = [
        json.loads(f.read_text(encoding="utf-8"))
        for f in folder.iterdir()
        if f.name.endswith(".json")
    ]
    return {e["name"]: e for e in sorted(entries, key=lambda e: e["order"])}


def _natural(name: str) -> list[tuple[int, float, str]]:
    """Sort key that puts 7b before 13b and 350m before 1b."""
    key: list[tuple[int, float, str]] = []
    for part in name.split("-"):
        digits = part.rstrip("kmbt")
        try:
            scale = {"": 1.0, "m": 1e6, "b": 1e9, "t": 1e12}.get(part[len(digits) :], 1.0)
            key.append((0, float(digits) * scale, part))
        except ValueError:
            key.append((1, 0.0, part))
    return key
