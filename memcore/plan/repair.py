"""Repair: the nearest plan that can exist, and what was changed for it."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from memcore.errors import Issue, PlanError
from memcore.plan.keys import FIELDS, GPU, KEYS, KNOWN, MODEL, NODE, frozen_defaults, literal_text
from memcore.plan.plan import OF_THE_MODEL, Plan, facts, get, put
from memcore.plan.rule import Remedy, done


def repair(
    document: Mapping[str, Any], given: Collection[str] = (), error: PlanError | None = None
) -> tuple[Plan, list[Issue]]:
    """The nearest valid plan to a document of the right form, and what was changed to reach it.

    An issue is settled by a remedy of its rule: one that leaves alone the fields that somebody
    chose (`given`) and those that were mended already, if there is one. `error`: what the document
    was refused with, where that is known.
    """
    issues: list[Issue] = []
    mended: dict[str, Any] = json.loads(json.dumps(document))
    seen: set[str] = set()
    set_already: list[Remedy] = []
    for _ in range(2 * len(KNOWN)):
        try:
            if error:
                raise error
            plan = Plan.of(mended)
            return plan, [issue for issue in issues if _has_meaning(issue, plan)]
        except PlanError as e:
            issue = _first(e)  # one at a time: a mended field often settles the other issues
            error = None
            _complete(mended)
            remedy = next(ways(issue, given, set_already), None)
            if remedy:
                follow(mended, remedy)
                set_already.append(remedy)
                what = done(remedy, issue.field)
            else:
                what = _mend(mended, issue.field, issue.field in seen)
                seen.add(issue.field)
            said = f"{issue.message}. {what[:1].upper()}{what[1:]}"
            issues.append(Issue(issue.field, said, issue.remedies, remedy))
    return Plan(), [*issues, Issue("", "the default plan is shown instead")]


def _has_meaning(issue: Issue, plan: Plan) -> bool:
    """Whether what was mended has a meaning in the plan: a model without tokens has no length of
    sequences, whatever a link says of it."""
    when = facts(issue.field).when if issue.field in OF_THE_MODEL else None
    return when is None or when(functools.partial(get, plan), plan.architecture)


def planned(plan: Plan, changes: Mapping[str, Any]) -> Plan | None:
    """The plan with these changes and no others, or None where its rules forbid them."""
    try:
        return plan.with_changes(changes)
    except PlanError:
        return None


def settled(plan: Plan, changes: Mapping[str, Any]) -> Plan | None:
    """A plan with some changes, and with what the rules' remedies then set; None where they undo a
    change, or none is left."""
    wanted, before = dict(changes), list[Remedy]()
    for _ in range(2 * len(KNOWN)):
        try:
            return plan.with_changes(wanted)
        except PlanError as e:
            remedy = next(ways(_first(e), changes, before), None)
        if remedy is None or any(changes.get(p, value) != value for p, value in remedy.items()):
            return None
        wanted |= remedy
        before.append(remedy)
    return None


def _first(error: PlanError) -> Issue:
    """The issue that is settled first. The number of GPUs comes last, since what they are divided
    by may be at fault."""
    return min(error.issues, key=lambda i: i.field == "cluster.gpus")


def ways(issue: Issue, given: Collection[str], before: Collection[Remedy] = ()) -> Iterator[Remedy]:
    """The remedies of an issue that were not followed yet, those first that leave alone what is
    given and what others have set."""
    taken = {path for remedy in before for path in remedy}
    left = [r for r in issue.remedies if r not in before]
    return iter(
        sorted(left, key=lambda r: (not r.keys().isdisjoint(given), not r.keys().isdisjoint(taken)))
    )


def copied(document: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a document, to set fields in. The model, which may be large, is never changed in
    place, and is the same."""
    model = document.get("model")
    return copy.deepcopy(dict(document), {id(model): model})


def follow(document: dict[str, Any], remedy: Remedy) -> None:
    """Set what a remedy sets."""
    for path, value in remedy.items():
        put(document, path, value)


# What may follow a change that somebody makes, so that it is another plan and not a refusal.
FOLLOWING = tuple(
    f"train.{name}" for name in ("framework", "zero", "kernels", "precision", "optimizer")
)


def followed(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes to a complete document, with what of FOLLOWING has to follow them. What that cannot
    settle is left."""
    trial = copied(document)
    follow(trial, changes)
    kept, before = set(changes), list[Remedy]()
    for _ in range(2 * len(FOLLOWING)):
        remedy = next(
            (
                r
                for issue in issues_in(trial)
                for r in ways(issue, kept, before)
                if r.keys() <= set(FOLLOWING) and r.keys().isdisjoint(kept)
            ),
            None,
        )
        if remedy is None:
            break
        follow(trial, remedy)
        before.append(remedy)
    paths = dict.fromkeys([*changes, *(path for remedy in before for path in remedy)])
    return {path: get(trial, path) for path in paths}


def issues_in(document: Mapping[str, Any]) -> tuple[Issue, ...]:
    """Why a document is no plan; nothing where it is one."""
    try:
        Plan.of(document)
    except PlanError as e:
        return e.issues
    return ()


def completed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document of the right form with every field: what it leaves out is its default, or what its
    model has there."""
    found = copied(document)
    said = [path for path in OF_THE_MODEL if _says(document, path)]
    _complete(found)
    own: dict[str, Any] = {"model": found["model"], "train": {}, "serve": {}}
    follow(own, {path: get(found, path) for path in said})
    with contextlib.suppress(PlanError):
        plan = Plan.of(own)
        follow(found, {path: get(plan, path) for path in OF_THE_MODEL if path not in said})
    return found


def _says(document: Mapping[str, Any], path: str) -> bool:
    """Whether a document, in which sections may be left out, has a field."""
    section, _, name = path.partition(".")
    return name in document.get(section, {})


def _complete(document: dict[str, Any]) -> None:
    """What a document leaves out is its default, and what mends one field may read another."""
    for name, default in frozen_defaults().items():
        given = document.setdefault(name, default)
        if isinstance(default, dict) and isinstance(given, dict):
            document[name] = default | given


def _mend(document: dict[str, Any], field: str, again: bool) -> str:
    """Change `document` so that an issue at `field` that names no remedy goes away; says what was
    done."""
    if not again:
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
