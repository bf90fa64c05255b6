"""Repair: the nearest plan that can exist, and what was changed for it."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from memcore.errors import Issue, PlanError
from memcore.models.families import FAMILIES
from memcore.plan.keys import FIELDS, GPU, KEYS, KNOWN, MODEL, NODE, frozen_defaults, literal_text
from memcore.plan.plan import Plan, put, resolve_model
from memcore.words.training import FRAMEWORKS


def repair(
    document: Mapping[str, Any], given: Collection[str] = (), error: PlanError | None = None
) -> tuple[Plan, list[Issue]]:
    """The nearest valid plan to a document of the right form, and what was changed to reach it.

    `given` are the fields that somebody chose: where two fields conflict, those are kept. `error`:
    what the document was refused with, where that is known.
    """
    issues: list[Issue] = []
    mended: dict[str, Any] = json.loads(json.dumps(document))
    seen: set[str] = set()
    for _ in range(2 * len(KNOWN)):
        try:
            if error:
                raise error
            return Plan.of(mended), issues
        except PlanError as e:
            # One at a time: a mended field often settles the other issues. The number of GPUs comes
            # last, since what they are divided by may be at fault.
            issue = min(e.issues, key=lambda i: i.field == "cluster.gpus")
            error = None
            _complete(mended)
            what = _mend(mended, issue.field, issue.field in seen, given)
            seen.add(issue.field)
            issues.append(Issue(issue.field, f"{issue.message}. {what}"))
    return Plan(), [*issues, Issue("", "the default plan is shown instead")]


def _complete(document: dict[str, Any]) -> None:
    """What a document leaves out is its default, and what mends one field may read another."""
    for name, default in frozen_defaults().items():
        given = document.setdefault(name, default)
        if isinstance(default, dict) and isinstance(given, dict):
            document[name] = default | given


def _mend(document: dict[str, Any], field: str, again: bool, given: Collection[str]) -> str:
    """Change `document` so that the issue at `field` goes away; says what was done."""
    if not again:
        wise = MENDERS.get(field)
        if wise and (what := wise(document, given)):
            return what
        name = FIELDS.get(field)
        if name:
            put(document, field, KEYS[name].default)
            return f"Its default, {literal_text(KEYS[name].default)}, is used"
        if field.startswith("model"):
            document["model"] = MODEL
            return f"{MODEL} is used"
        if field.startswith("cluster.gpu"):
            document["cluster"]["gpu"] = GPU
            return f"{GPU} is used"
        if field.startswith("cluster.node"):
            document["cluster"]["node"] = NODE
            return "The GPU's usual node is used"
    section = field.partition(".")[0]
    defaults = frozen_defaults()
    if section in defaults and document.get(section) != defaults[section]:
        document[section] = defaults[section]
        return f"The defaults of '{section}' are used"
    document.clear()
    document.update(defaults)
    return "All defaults are used"


def _mend_seq_len(document: dict[str, Any], given: Collection[str]) -> str:
    """Learned positions end somewhere: use as many tokens as there are."""
    tokens = document["train"]["seq_len"]
    try:
        model = resolve_model(document["model"])
    except PlanError:
        return ""
    fitting = tokens == model.max_positions if model.image else tokens <= model.max_positions
    if type(tokens) is not int or not model.learned_positions or fitting:
        return ""
    document["train"]["seq_len"] = model.max_positions
    return f"{model.max_positions:,} is used"


def _mend_zero(document: dict[str, Any], given: Collection[str]) -> str:
    """Take a framework that has the stage; or, when only the framework was chosen, its stage."""
    train = document["train"]
    stages = {name: framework.zero for name, framework in FRAMEWORKS.items()}
    if train["framework"] not in stages or train["zero"] not in range(4):
        return ""
    if "train.framework" in given and "train.zero" not in given:
        train["zero"] = max(n for n in stages[train["framework"]] if n <= train["zero"])
        return f"Stage {train['zero']} is used"
    having = [name for name, has in stages.items() if train["zero"] in has]
    if not having:
        return ""
    train["framework"] = having[0]
    return f"Framework {having[0]} is used"


def _mend_gpus(document: dict[str, Any], given: Collection[str]) -> str:
    """Round the GPUs up to a multiple of the ranks that one replica takes."""
    gpus, cuts = document["cluster"]["gpus"], document["parallel"]
    sizes = (gpus, *(cuts.get(axis, 1) for axis in ("tp", "pp", "cp")))
    if not all(type(n) is int and 1 <= n <= 10**6 for n in sizes):
        return ""
    ranks = math.prod(sizes[1:])
    document["cluster"]["gpus"] = -(-gpus // ranks) * ranks
    return f"{document['cluster']['gpus']:,} GPUs are used"


def _mend_sequence_parallel(document: dict[str, Any], given: Collection[str]) -> str:
    """Nothing needs it off."""
    document["parallel"]["sequence_parallel"] = True
    return "It is used"


def _mend_attention(document: dict[str, Any], given: Collection[str]) -> str:
    """Take an attention that the model's code has."""
    try:
        runs = FAMILIES[resolve_model(document["model"]).family].attentions
    except PlanError:
        return ""
    document["train"]["attention"] = runs[-1]
    return f"{runs[-1]} is used"


def _mend_images(document: dict[str, Any], given: Collection[str]) -> str:
    """A prompt too short for an image has none."""
    document["serve"]["images"] = 0
    return "0 is used"


MENDERS = {
    "serve.images": _mend_images,
    "train.attention": _mend_attention,
    "train.seq_len": _mend_seq_len,
    "train.zero": _mend_zero,
    "cluster.gpus": _mend_gpus,
    "parallel.sequence_parallel": _mend_sequence_parallel,
}
