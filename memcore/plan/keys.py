"""Keys: the short names that a link has for a plan's fields, and their frozen defaults."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from memcore.plan.plan import facts, field_paths, put

VERSION = 2  # the form that links are written in
FIRST = 1  # the form of a link that names none


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a link: the plan's field it stands for and its default, frozen in today's form."""

    path: str
    default: Any


def _form(version: int) -> dict[str, Any]:
    text = files("memcore.plan").joinpath(f"link-v{version}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


# The defaults of the first form, frozen: a new field adds a line to the file, and no line changes.
# Of a later form its file has only what became another default: it is a new form where that
# happens to a form that was published.
_FROZEN = _form(FIRST)
_SINCE = {version: _form(version) for version in range(FIRST + 1, VERSION + 1)}
_PATHS = {facts(path).key: path for path in field_paths() if facts(path).key}
MODEL, GPU, NODE = (_FROZEN[name] for name in ("model", "gpu", "node"))


@functools.cache
def keys_of(version: int) -> dict[str, Key]:
    """The keys of the links of a form, with its defaults."""
    defaults = dict(_FROZEN["fields"])
    for since, form in _SINCE.items():
        defaults |= form if since <= version else {}
    return {name: Key(_PATHS[name], default) for name, default in defaults.items()}


# A preset's name (with '~revision'), or an object compressed. `size` is a standard model.
OBJECTS = {
    "model": "model",
    "size": "model",
    "config": "model",
    "gpu": "cluster.gpu",
    "gpudef": "cluster.gpu",
    "node": "cluster.node",
    "nodedef": "cluster.node",
    "draftdef": "serve.draft_model",
}
PIN = "pin"  # a second plan to compare with, as a query inside the query
PINS = (PIN, *(f"{PIN}{n}" for n in range(2, 6)))  # more of them, each a column beside the others
NAME = "name"  # what somebody calls a plan
LOOK = "look"  # what a page shows of a plan: no part of it
# A plan that was run, as a query inside the query, with what was measured of its step; and one that
# served, with what was measured of its server. The keys of each are those of its figures.
MEASURED, BENCHED = "measured", "benched"
FIGURES = {
    MEASURED: {"seconds": "took", "bytes": "peak"},
    BENCHED: {"token": "each", "first": "first", "rate": "persec"},
}
BESIDE = (*PINS, NAME, LOOK, MEASURED, BENCHED)  # what a link says besides its plan


def checked(paths: Mapping[str, str]) -> None:
    """Raises ValueError where the key of a field, by which its path is given, has another meaning
    in a link or no frozen default, or where a default is of no field. It names them."""
    defaults = _FROZEN["fields"].keys()
    for name, path in paths.items():
        if name in (
            "v",
            *OBJECTS,
            *BESIDE,
            *(key for of in FIGURES.values() for key in of.values()),
        ):
            raise ValueError(f"{path}: in a link the key {name!r} means something else")
        if name not in defaults:
            raise ValueError(f"{path}: link-v{FIRST}.json has no default for its key {name!r}")
    if lost := [name for name in defaults if name not in paths]:
        raise ValueError(f"link-v{FIRST}.json: no field has the key {' or '.join(map(repr, lost))}")


checked(_PATHS)
KEYS = keys_of(VERSION)
KNOWN = ("v", *OBJECTS, *KEYS, *BESIDE)
FIELDS = {key.path: name for name, key in KEYS.items()}


def literal_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def frozen_defaults(version: int = VERSION) -> dict[str, Any]:
    """The plan, as a document, that a link of this form means that says nothing."""
    found: dict[str, Any] = json.loads(_defaults_text(version))
    return found


@functools.cache
def _defaults_text(version: int) -> str:
    document: dict[str, Any] = {
        "version": 1,
        "model": MODEL,
        "cluster": {"gpu": GPU, "node": NODE},
        "parallel": {},
        "train": {},
        "serve": {},
        "together": {},
        "run": {},
    }
    for key in keys_of(version).values():
        put(document, key.path, key.default)
    return json.dumps(document)
