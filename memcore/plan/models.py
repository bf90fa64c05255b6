"""Models: what a plan names as its model (a preset, a size, a whole config.json), and its draft."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from memcore.cache import cached
from memcore.errors import PlanError, did_you_mean, refusal, shown, shown_path
from memcore.models import catalog
from memcore.models.config import check_depth
from memcore.models.counts import parameters
from memcore.models.families import from_config
from memcore.models.model import Model
from memcore.models.standard import standard_config
from memcore.models.traced.file import LARGEST_SIZE, MARK
from memcore.plan.rule import broken
from memcore.tape.dims import TRACED
from memcore.units import count_text

PRESET = "preset"  # a traced preset with other sizes: {"preset": "resnet-50", "dims": {...}}
DIMS = "model.dims."  # begins the path of the size of one of a traced model's dimensions


def trimmed(model: dict[str, Any]) -> str | dict[str, Any]:
    """A model as a link writes it: by size, without the blanks around it; a traced preset with the
    sizes that it has not itself, or by its name alone; any other as it is."""
    size, name, dims = model.get("size"), model.get(PRESET), model.get("dims", {})
    if set(model) == {"size"} and isinstance(size, str):
        return {"size": size.strip()}
    if is_sized(model) and isinstance(name, str) and isinstance(dims, Mapping):
        own = catalog.traced_dims(name)
        dims = {dim: n for dim, n in dims.items() if own.get(dim) != n}
        return {PRESET: name, "dims": dims} if dims else name
    return model


def is_sized(model: Mapping[str, Any]) -> bool:
    """Whether a plan's model is a traced preset with sizes of its own."""
    return PRESET in model and set(model) <= {PRESET, "dims"}


def preset_of(model: str | Mapping[str, Any]) -> str:
    """The preset that a plan's model is, with whatever sizes; '' of a model that is none."""
    if isinstance(model, str):
        return model
    return str(model[PRESET]) if is_sized(model) else ""


def dims_of(model: str | Mapping[str, Any]) -> dict[str, Any]:
    """The size of each dimension of a traced model, but for those that are fields of every plan
    (tape.dims.TRACED); of any other model none."""
    own = catalog.traced_dims(preset_of(model))
    given = {} if isinstance(model, str) or not (own or MARK in model) else model.get("dims")
    every = {**own, **given} if isinstance(given, Mapping) else own
    return {name: n for name, n in every.items() if name not in TRACED}


def with_dim(model: str | Mapping[str, Any], name: str, size: Any) -> dict[str, Any]:
    """A traced model with another size of a dimension."""
    given: Mapping[str, Any] = {PRESET: model} if isinstance(model, str) else model
    return {**given, "dims": {**given.get("dims", {}), name: size}}


def resolve_model(model: str | Mapping[str, Any]) -> Model:
    """The Model behind a plan's `model`. Raises PlanError."""
    if isinstance(model, str):
        if model not in catalog.model_names():
            known = catalog.model_names()
            raise refusal("model", f"no preset {shown(model)}; {did_you_mean(model, known)}")
        return catalog.model(model)
    if is_sized(model):
        return _of_preset(model[PRESET], model.get("dims", {}))
    if "size" in model and "model_type" not in model:
        extra = [key for key in model if key != "size"]
        if extra or not isinstance(model["size"], str):
            raise refusal("model.size", "a model by size is {'size': '7B'} and no more")
        return from_config(standard_config(model["size"]), f"Standard {model['size'].strip()}")
    check_depth(model)
    found = _from_json(json.dumps(model, sort_keys=True))
    if found.draft:
        message = (
            f"{found.label}, of {parameters(found):,} parameters, is not a model but guesses "
            f"tokens for one whose hidden size is {found.draft.target:,}: plan that model, and "
            "give this file as its serve.draft_model, with serve.draft_tokens as many as it guesses"
        )
        raise refusal("model.architectures", message)
    return found


def _of_preset(name: Any, dims: Any) -> Model:
    """A traced preset at some sizes. Raises PlanError."""
    known = catalog.traced_names()
    if not isinstance(name, str) or name not in known:
        raise refusal(
            "model.preset", f"no traced preset {shown(name)}; {did_you_mean(str(name), known)}"
        )
    if not isinstance(dims, Mapping):
        raise refusal("model.dims", "must be an object of sizes")
    own = catalog.traced_dims(name)
    for dim, n in dims.items():
        if dim in TRACED:
            raise refusal(f"{DIMS}{dim}", f"of a plan that is {TRACED_FIELDS[dim]}")
        if dim not in own:
            has = f"{name} has {', '.join(own)}" if own else f"{name} has fixed sizes"
            raise refusal("model.dims", f"no dimension {shown(dim)}; {has}")
        if type(n) is not int or not 1 <= n <= LARGEST_SIZE:
            wanted = f"must be a whole number of 1 to {LARGEST_SIZE:,}, not {shown(n)}"
            raise PlanError([broken(f"{DIMS}{dim}", wanted, {f"{DIMS}{dim}": own[dim]})])
    return catalog.traced_model(name, {**own, **dims})


TRACED_FIELDS = {"batch": "train.micro_batch", "tokens": "train.seq_len"}


def draft_from(text: str) -> Model:
    """The draft that the text of a config.json describes. Raises ValueError of what is none."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("the config.json of a draft is not JSON") from None
    try:
        check_depth(config)
        found = _from_json(json.dumps(config, sort_keys=True))
    except PlanError as e:
        raise ValueError("; ".join(map(str, e.issues))) from None
    if not found.draft:
        raise ValueError(f"{found.label} is a whole model, of which a preset can guess; a file is "
                         "read of a draft alone")  # fmt: skip
    return found


NAMED = "_name_or_path"  # where transformers writes in a config.json what it was loaded from
LONGEST_NAME = 40  # characters of such a name that a title repeats


@cached
def _from_json(text: str) -> Model:
    """A model of somebody's own, called as its file has it, or else by its size."""
    config = json.loads(text)
    model, named = from_config(config), config.get(NAMED)
    if model.draft or model.traced:
        return model
    name = shown_path(PurePosixPath(named).name[:LONGEST_NAME]) if isinstance(named, str) else ""
    if not name.strip(" ."):
        name = f"{count_text(parameters(model))} {config.get('model_type') or model.family}"
    return replace(model, label=f"Your {name}")
