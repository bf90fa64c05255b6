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
from memcore.units import bytes_text, count_text


def trimmed(model: dict[str, Any]) -> dict[str, Any]:
    """A model by size without the blanks around it, as a link writes it; any other as it is."""
    size = model.get("size")
    return {"size": size.strip()} if set(model) == {"size"} and isinstance(size, str) else model


def resolve_model(model: str | Mapping[str, Any]) -> Model:
    """The Model behind a plan's `model`. Raises PlanError."""
    if isinstance(model, str):
        if model not in catalog.model_names():
            known = catalog.model_names()
            raise refusal("model", f"no preset {shown(model)}; {did_you_mean(model, known)}")
        return catalog.model(model)
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
    if found.counted:
        message = (
            f"{found.label} has {found.counted:,} parameters, {bytes_text(2 * found.counted)} in "
            "16 bits. They are counted; what it keeps in training, and how it is served, is not "
            "known yet, and is not approximated"
        )
        raise refusal("model.model_type", message)
    return found


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
