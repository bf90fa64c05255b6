"""Link: a Plan as the query of an address, and back.

The form is versioned by `v`. The defaults of a version are written out beside this file and never
change, so a link means the same plan next year even when the app's own defaults have moved. Keys
are short and readable; only an inline model or hardware object is compressed.

`decode` never raises: what cannot be used is named in an Issue, and the rest of the link is kept.
"""

from __future__ import annotations

import base64
import binascii
import functools
import heapq
import itertools
import json
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from memcore.cache import cached
from memcore.errors import Issue, PlanError, did_you_mean, fault, refusal, shown
from memcore.models import cards, catalog
from memcore.models.config import check_depth
from memcore.plan.field import describes
from memcore.plan.keys import (
    BENCHED,
    BESIDE,
    FIELDS,
    FIGURES,
    FIRST,
    KEYS,
    KNOWN,
    MEASURED,
    NAME,
    OBJECTS,
    PIN,
    VERSION,
    frozen_defaults,
    keys_of,
    literal_text,
)
from memcore.plan.measured import Measured
from memcore.plan.models import PRESET, preset_of
from memcore.plan.plan import Plan, get, put, value_text, words_of
from memcore.plan.repair import copied, follow, issues_in, repair, ways

MAX_KEYS = 256
MAX_VALUE = 200  # characters of one readable value
MAX_PAYLOAD = 30_000  # characters of one compressed object
MAX_OBJECT = 200_000  # bytes it may expand to
MAX_ISSUES = 8
MAX_NAME = 40  # characters of a plan's name

DRAFT = "serve.draft_model"

_WHOLE = re.compile(r"-?[0-9]{1,40}")
_NUMBER = re.compile(r"[0-9]{0,20}\.?[0-9]{1,20}(e-?[0-9]{1,3})?")


def encode(plan: Plan, short: bool = False, form: int = VERSION) -> dict[str, str]:
    """The plan as keys and values; every field, or when `short` only what is not a default of the
    form that the link is written in."""
    query = {"v": str(form), **_encode_model(plan), **_encode_hardware(plan)}
    document = plan.document()
    for name, key in keys_of(form).items():
        value = get(document, key.path)
        if key.path == DRAFT and describes(value):
            query["draftdef"] = _pack(json.loads(value))
        elif not short or value != key.default:
            query[name] = literal_text(value)
    return query


def query_text(query: Mapping[str, str]) -> str:
    """Keys and values as the text after '?', with nothing escaped that need not be."""
    return urlencode(query, safe="~")


def encode_pin(plan: Plan, name: str = "") -> str:
    """A plan, and what somebody calls it, as the one value of a `pin` key."""
    named = {NAME: name} if name else {}
    return query_text({**encode(plan, short=True), **named})


def decode_pin(text: str) -> tuple[Plan, list[Issue]]:
    """The plan in a `pin` value."""
    if len(text) > 3 * MAX_PAYLOAD:
        return Plan(), [Issue(PIN, "too long; the pinned plan was ignored")]
    return decode(_keys_of(text))


def pin_name(text: str) -> str:
    """What the plan in a `pin` value is called, or ''."""
    return name_of(_keys_of(text).get(NAME, "")) if len(text) <= 3 * MAX_PAYLOAD else ""


def encode_measured(measured: Measured) -> dict[str, str]:
    """What was measured of a step or of a server, as the one value of its key in a link."""
    key = BENCHED if measured.of_server else MEASURED
    said = {of: repr(v) for name, of in FIGURES[key].items() if (v := getattr(measured, name))}
    return {key: query_text({**encode(measured.plan, short=True), **said})}


def decode_measured(key: str, text: str) -> tuple[Measured | None, list[Issue]]:
    """What was measured, by the value of such a key; None where it is damaged: a plan that was
    mended is not the one that ran. A preset that was corrected since is told."""
    what = "server" if key == BENCHED else "step"
    if len(text) > 3 * MAX_PAYLOAD:
        return None, [Issue(key, f"too long; the measured {what} was ignored")]
    keys = _keys_of(text)
    said = {
        name: keys.pop(of, "" if name == "seconds" else "0") for name, of in FIGURES[key].items()
    }
    plan, issues = decode(keys)
    again = encode(plan)
    same = all(_unmarked(again, issue.field) == _unmarked(keys, issue.field) for issue in issues)
    numbers = all((_WHOLE if n == "bytes" else _NUMBER).fullmatch(text) for n, text in said.items())
    if not (same and numbers and (key == MEASURED or any(map(float, said.values())))):
        return None, [Issue(key, f"the measured {what} in this link is damaged; ignored")]
    figures = {n: int(text) if n == "bytes" else float(text) for n, text in said.items()}
    try:
        measured = Measured(plan, **figures)  # type: ignore[arg-type]
    except PlanError as e:
        return None, [Issue(key, f"{issue.message}; ignored") for issue in e.issues]
    return measured, [Issue(key, issue.message) for issue in issues]


def _unmarked(query: Mapping[str, str], name: str) -> str | None:
    """A preset's name in a query, whatever its revision; never the same where a key has none."""
    return query[name].partition("~")[0] if name in query else str(id(query))


def _keys_of(text: str) -> dict[str, str]:
    return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=None)[:MAX_KEYS])


def name_of(text: str) -> str:
    """A plan's name as somebody wrote it: one short line of what can be printed."""
    shown = "".join(c if c.isprintable() else " " for c in text[: 4 * MAX_NAME])
    return " ".join(shown.split())[:MAX_NAME].rstrip()


def decode(query: Mapping[str, str | list[str]]) -> tuple[Plan, list[Issue]]:
    """The plan that a link describes, and what of the link was not used. Never raises: a link that
    makes Memplan itself fail is said to, and the default plan is given."""
    try:
        return _decoded(query)
    except Exception as e:
        return Plan(), [Issue("", f"{FAILED} ({fault(e)}); the default plan is shown instead")]


FAILED = "Memplan failed at this link, which is Memplan's fault"


def _decoded(query: Mapping[str, str | list[str]]) -> tuple[Plan, list[Issue]]:
    issues: list[Issue] = []
    values = _single(query, issues)
    form = _form(values.pop("v", str(FIRST)), issues)
    for name in BESIDE:
        values.pop(name, None)
    document = frozen_defaults(form)
    given = set()
    for name, text in values.items():
        try:
            path, value = _read(name, text, form, issues)
        except PlanError as e:
            issues += e.issues
        else:
            put(document, path, value)
            given.add(path)
    plan, mended = repair(document, given)
    return plan, _first([_in_link(issue) for issue in issues + mended])


def form_of(query: Mapping[str, str | list[str]]) -> int:
    """The form that a link is read as."""
    given = query.get("v", str(FIRST))
    return _form(given if isinstance(given, str) else next(iter(given), ""), [])


@functools.cache
def begun(form: int) -> Plan:
    """The plan that a link of this form means that says nothing: where its reader began."""
    return Plan.of(frozen_defaults(form))


def nearest(document: Mapping[str, Any], asked: Sequence[str]) -> tuple[Plan, list[Issue]]:
    """The nearest valid plan that keeps what was asked for, and what was changed to reach it.

    asked: the fields that somebody just set, in that order. Where they cannot all be kept the last
    is; where that cannot either, it gives way like any other (`repair`).
    """
    plan, changed = _nearest(json.dumps(document), tuple(asked))
    return plan, list(changed)


@cached
def _nearest(text: str, asked: tuple[str, ...]) -> tuple[Plan, tuple[Issue, ...]]:
    """The same of a document as JSON."""
    document = json.loads(text)
    for wanted in dict.fromkeys((asked, asked[-1:])):
        found = _keeping(document, wanted) if wanted else None
        if found:
            plan = Plan.of(found)
            return plan, tuple(
                Issue(path, f"{value_text(path, now)} is used in place of {value_text(path, was)}")
                for path in FIELDS
                if (now := get(found, path)) != (was := get(document, path))
            )
    plan, mended = repair(document, given=asked)
    return plan, tuple(mended)


MAX_TRIED = 400  # documents that are looked at for the sake of what was asked for


def _keeping(document: Mapping[str, Any], asked: Sequence[str]) -> dict[str, Any] | None:
    """The document made valid with some of its fields as they are, or None where that is not found.

    An issue is settled by setting fields, which are kept then too: by a remedy of its own, or else
    by anything that settles it. What has the fewest fields set and issues left is
    looked into first."""
    tried = itertools.count()
    first = copied(document)
    waiting = [(0, next(tried), first, frozenset(asked), issues_in(first))]
    while waiting:
        _, _, here, kept, issues = heapq.heappop(waiting)
        if not issues:
            return here
        issue = next((i for i in issues if i.field in kept), issues[0])
        for paths, trial, left in _settled(here, issue, kept):
            number = next(tried)
            if number > MAX_TRIED:
                return None
            if issue not in left:
                cost = len(kept) - len(asked) + 1 + len(left)
                if not left and (not waiting or cost <= waiting[0][0]):
                    return trial  # nothing that is looked into later costs less
                heapq.heappush(waiting, (cost, number, trial, kept.union(paths), left))
    return None


def _settled(
    document: dict[str, Any], issue: Issue, kept: Collection[str]
) -> Iterable[tuple[Collection[str], dict[str, Any], tuple[Issue, ...]]]:
    """Documents in which an issue may be settled, each with the fields that were set, and the
    issues that it has."""
    sections = {path.partition(".")[0] for r in issue.remedies for path in r}
    every = ({p: v} for p, v in _alternatives(document, sections | _beside(issue.field)))
    for remedies in (ways(issue, kept), every):
        helped = False
        for remedy in remedies:
            if not remedy.keys().isdisjoint(kept):
                continue
            trial = copied(document)
            follow(trial, remedy)
            left = issues_in(trial)
            yield remedy.keys(), trial, left
            helped = helped or issue not in left
        if helped:
            return


def _beside(field: str) -> set[str]:
    """Sections whose fields may settle what is wrong with one: training asks nothing of the server,
    nor a server of training."""
    section = field.partition(".")[0]
    return {"cluster", "parallel", section, *(() if section == "serve" else ("train",))}


def _alternatives(
    document: Mapping[str, Any], sections: Collection[str]
) -> Iterable[tuple[str, Any]]:
    """Every other word, switch and default of the fields of some sections."""
    for path, name in FIELDS.items():
        if path.partition(".")[0] not in sections:
            continue
        here, default = get(document, path), KEYS[name].default
        values = words_of(path) or ((True, False) if isinstance(default, bool) else (default,))
        yield from ((path, value) for value in values if value != here)


def _first(issues: list[Issue]) -> list[Issue]:
    """The first few issues; a damaged link must not flood the page."""
    more = len(issues) - MAX_ISSUES
    if more <= 0:
        return issues
    return [*issues[:MAX_ISSUES], Issue("", f"and {more} more problems with this link")]


def _encode_model(plan: Plan) -> dict[str, str]:
    model = plan.model
    if name := preset_of(model):
        dims = {} if isinstance(model, str) else model["dims"]
        sizes = "".join(f"~{dim}.{n}" for dim, n in dims.items())
        return {"model": f"{name}~{catalog.model_entry(name).get('revision', 1)}{sizes}"}
    assert not isinstance(model, str)
    if set(model) == {"size"}:
        return {"size": model["size"]}
    return {"config": _pack(model)}


def is_held(plan: Plan) -> bool:
    """Whether a link holds the config.json of a plan's model, which may be too long for one."""
    model = plan.model
    if preset_of(model):
        return True
    return len(json.dumps(model)) <= MAX_OBJECT and len(_pack(model)) <= MAX_PAYLOAD


NOT_HELD = (
    "the model's file is too long for a link, which leads to another model without it: keep the "
    "file, or take lists that say nothing of its shapes out of a config.json"
)


def _encode_hardware(plan: Plan) -> dict[str, str]:
    gpu, node = plan.cluster.gpu, plan.cluster.node
    query = {}
    if isinstance(gpu, str):
        query["gpu"] = f"{gpu}~{catalog.accelerator(gpu).revision}"
    else:
        query["gpudef"] = _pack(gpu.model_dump(mode="json"))
    if isinstance(node, str):
        query["node"] = f"{node}~{catalog.node(node).revision}"
    elif node is not None:
        query["nodedef"] = _pack(node.model_dump(mode="json"))
    return query


def _pack(value: Any) -> str:
    """An object as compressed JSON in URL-safe base64, without padding."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def _single(query: Mapping[str, str | list[str]], issues: list[Issue]) -> dict[str, str]:
    """One value per known key; the rest is named in `issues`."""
    values: dict[str, str] = {}
    if len(query) > MAX_KEYS:
        issues.append(
            Issue("", f"{len(query):,} keys; a link has at most {MAX_KEYS}, the rest was ignored")
        )
    for name, given in list(query.items())[: 2 * MAX_KEYS]:
        texts = [given] if isinstance(given, str) else list(given)
        if name not in KNOWN:
            hint = did_you_mean(name, KNOWN)
            hint = f"; {hint}" if hint.startswith("did") else ""
            issues.append(Issue(shown(name), f"unknown key in the link, ignored{hint}"))
        elif not texts or texts == [""]:
            issues.append(Issue(name, "has no value in the link; its default is used"))
        elif len(texts) > 1:
            issues.append(Issue(name, f"given {len(texts)} times; the first is used"))
            values[name] = texts[0]
        else:
            values[name] = texts[0]
    return values


def _form(text: str, issues: list[Issue]) -> int:
    """The form that a link says it has; one that is none of ours is read as today's."""
    if not _WHOLE.fullmatch(text) or int(text) < 1:
        issues.append(Issue("v", f"{shown(text)} is not a version; read as version {VERSION}"))
    elif int(text) <= VERSION:
        return int(text)
    else:
        issues.append(
            Issue(
                "v",
                f"made by a later Memplan (form {shown(text)}); read as form {VERSION}, so it may "
                "mean something else. Update Memplan",
            )
        )
    return VERSION


def _read(name: str, text: str, form: int, issues: list[Issue]) -> tuple[str, Any]:
    """The field and the value that one key of a link of a form gives. Raises PlanError."""
    if name in ("config", "gpudef", "nodedef", "draftdef"):
        return OBJECTS[name], _unpack(text, name)
    if len(text) > MAX_VALUE:
        raise refusal(name, f"{len(text):,} characters; at most {MAX_VALUE}. Its default is used")
    if name == "size":
        return "model", {"size": text}
    if name in OBJECTS:
        return OBJECTS[name], _preset(name, text, issues)
    key = keys_of(form)[name]
    return key.path, _value(name, text, key.default)


def _value(name: str, text: str, default: Any) -> Any:
    """Text as the type of the field's default."""
    expected = "a word"
    if isinstance(default, bool):
        if text in ("yes", "no"):
            return text == "yes"
        expected = "yes or no"
    elif isinstance(default, int):
        if _WHOLE.fullmatch(text):
            return int(text)
        expected = "a whole number"
    elif isinstance(default, float):
        if _NUMBER.fullmatch(text):
            return float(text)
        expected = "a number such as 0.9"
    else:
        return text
    raise refusal(name, f"must be {expected}, not {shown(text)}; {literal_text(default)} is used")


def _preset(name: str, text: str, issues: list[Issue]) -> str | dict[str, Any]:
    """A preset's name, of a traced one with the sizes of its dimensions; says so when the preset
    was corrected since the link was made."""
    preset, mark, rest = text.partition("~")
    revision, *dims = rest.split("~")
    if name == "gpu" and preset not in catalog.gpu_names() and (meant := cards.preset(preset)):
        issues.append(Issue(name, cards.taken(preset, meant)))
        preset = meant
    current = _revision(name, preset)
    if mark and current and revision != str(current):
        issues.append(
            Issue(
                name,
                f"preset {preset} was corrected since this link was made (revision "
                f"{shown(revision)}, now {current}); the numbers may differ",
            )
        )
    sizes = {dim: n for dim, _, n in (text.partition(".") for text in dims)}
    if not sizes or preset not in catalog.traced_names():
        return preset
    return {PRESET: preset, "dims": {dim: _value(name, n, 0) for dim, n in sizes.items()}}


def _revision(name: str, preset: str) -> int | None:
    if name == "model" and preset in catalog.model_names():
        return int(catalog.model_entry(preset).get("revision", 1))
    if name == "gpu" and preset in catalog.gpu_names():
        return catalog.accelerator(preset).revision
    if name == "node" and preset in catalog.node_names():
        return catalog.node(preset).revision
    return None


def _unpack(text: str, name: str) -> dict[str, Any]:
    """The object in a compressed value, bounded in size and depth. Raises PlanError."""

    def refuse(why: str) -> PlanError:
        return refusal(name, f"{why}; ignored. Ask for the link again")

    if len(text) > MAX_PAYLOAD:
        raise refuse(f"{len(text):,} characters; at most {MAX_PAYLOAD:,}")
    if not re.fullmatch(r"[A-Za-z0-9_-]*", text):
        raise refuse("holds characters that a link's object never has")
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        inflater = zlib.decompressobj()
        plain = inflater.decompress(packed, MAX_OBJECT)
    except (binascii.Error, zlib.error):
        raise refuse("the compressed object is damaged") from None
    if inflater.unconsumed_tail:
        raise refuse(f"expands to more than {MAX_OBJECT:,} bytes")
    if not inflater.eof:
        raise refuse("the compressed object is cut off")
    try:
        value = json.loads(plain, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise refuse("the object in it is not JSON") from None
    if not isinstance(value, dict):
        raise refuse("the object in it is not in braces")
    check_depth(value)
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _in_link(issue: Issue) -> Issue:
    """The issue under both names of its field: the link's key and the plan's path."""
    if issue.field in KEYS:
        return replace(issue, field=f"{issue.field} ({KEYS[issue.field].path})")
    if issue.field in FIELDS:
        return replace(issue, field=f"{FIELDS[issue.field]} ({issue.field})")
    return issue
