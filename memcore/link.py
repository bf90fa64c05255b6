"""Link: a Plan as the query of an address, and back.

The form is versioned by `v`. The defaults of a version are written out here and never change, so a
link means the same plan next year even when the app's own defaults have moved. Keys are short and
readable; only an inline model or hardware object is compressed.

`decode` never raises: what cannot be used is named in an Issue, and the rest of the link is kept.
"""

from __future__ import annotations

import base64
import binascii
import copy
import functools
import heapq
import itertools
import json
import math
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from memcore import catalog, policies
from memcore.errors import Issue, PlanError, did_you_mean, fault, shown
from memcore.families import FAMILIES
from memcore.model import check_depth
from memcore.plan import Plan, get, put, resolve_model, value_text, words_of

VERSION = 1
MAX_KEYS = 256
MAX_VALUE = 200  # characters of one readable value
MAX_PAYLOAD = 30_000  # characters of one compressed object
MAX_OBJECT = 200_000  # bytes it may expand to
MAX_ISSUES = 8


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a link: the plan's field it stands for and its frozen default."""

    path: str
    default: Any


# Version 1. Never edit a default here: add a version.
KEYS = {
    "gpus": Key("cluster.gpus", 8),
    "pernode": Key("cluster.gpus_per_node", 8),
    "tp": Key("parallel.tp", 1),
    "pp": Key("parallel.pp", 1),
    "cp": Key("parallel.cp", 1),
    "ep": Key("parallel.ep", 1),
    "etp": Key("parallel.etp", 1),
    "hsdp": Key("parallel.shard_group", 0),
    "sp": Key("parallel.sequence_parallel", False),
    "vs": Key("parallel.virtual_stages", 1),
    "sched": Key("parallel.schedule", "1f1b"),
    "mb": Key("train.micro_batch", 1),
    "seq": Key("train.seq_len", 4096),
    "imgs": Key("train.images", 1),
    "tgt": Key("train.target_len", 128),
    "accum": Key("train.grad_accumulation", 1),
    "fw": Key("train.framework", "fsdp2"),
    "zero": Key("train.zero", 3),
    "overlap": Key("train.overlap_comm", "auto"),
    "bucket": Key("train.reduce_bucket_size", 500_000_000),
    "live": Key("train.stage3_max_live_parameters", 1_000_000_000),
    "reuse": Key("train.stage3_max_reuse_distance", 1_000_000_000),
    "prefetch": Key("train.stage3_prefetch_bucket_size", 50_000_000),
    "persist": Key("train.stage3_param_persistence_threshold", 100_000),
    "subgroup": Key("train.sub_group_size", 1_000_000_000),
    "adapter": Key("train.adapter", "none"),
    "rank": Key("train.lora_rank", 16),
    "targets": Key("train.lora_targets", "attention"),
    "loradrop": Key("train.lora_dropout", 0.0),
    "adtype": Key("train.adapter_dtype", "fp32"),
    "mtp": Key("train.mtp_layers", 0),
    "imb": Key("train.imbalance", 1.0),
    "frozen": Key("train.frozen", "none"),
    "trained": Key("train.trained_layers", 1),
    "embgrad": Key("train.embedding_gradient", "dense"),
    "ema": Key("train.ema", "none"),
    "prec": Key("train.precision", "bf16-mixed"),
    "opt": Key("train.optimizer", "adamw"),
    "ckpt": Key("train.checkpointing", "full"),
    "ckptn": Key("train.checkpoint_every", 1),
    "alloc": Key("train.allocator", "expandable"),
    "estop": Key("train.early_stop", "auto"),
    "grads": Key("train.gradients", "freed"),
    "kernels": Key("train.kernels", "hf"),
    "attn": Key("train.attention", "flash"),
    "loss": Key("train.cross_entropy", "eager"),
    "offopt": Key("train.offload_optimizer", "none"),
    "offpar": Key("train.offload_parameters", "none"),
    "offact": Key("train.offload_activations", "none"),
    "optbufs": Key("train.offload_optimizer_buffers", 4),
    "parbufs": Key("train.offload_param_buffers", 5),
    "parbuf": Key("train.offload_param_buffer_size", 100_000_000),
    "parincpu": Key("train.offload_param_max_in_cpu", 1_000_000_000),
    "workers": Key("train.loader_workers", 0),
    "ahead": Key("train.loader_prefetch", 2),
    "pinmem": Key("train.loader_pin_memory", False),
    "wdtype": Key("serve.weight_dtype", "bf16"),
    "kvdtype": Key("serve.kv_dtype", "bf16"),
    "state": Key("serve.state_dtype", "auto"),
    "kvcache": Key("serve.kv_cache", "paged"),
    "conc": Key("serve.concurrency", 64),
    "prompt": Key("serve.prompt_len", 1024),
    "output": Key("serve.output_len", 256),
    "simgs": Key("serve.images", 1),
    "block": Key("serve.block_size", 16),
    "memutil": Key("serve.memory_utilization", 0.9),
    "batched": Key("serve.max_batched_tokens", 8192),
    "runtime": Key("serve.runtime", "graphs"),
    "prefill": Key("serve.prefill", "whole"),
    "draft": Key("serve.draft_tokens", 0),
    "accept": Key("serve.draft_acceptance", 0.7),
    "drafter": Key("serve.draft_model", "none"),
    "offw": Key("serve.offload_weights", 0.0),
    "offkv": Key("serve.offload_kv", "none"),
    "tokens": Key("run.tokens", 1_000_000_000),
    "price": Key("run.price_per_gpu_hour", 0.0),
    "watts": Key("run.watts_per_gpu", 0.0),
    "pue": Key("run.pue", 1.0),
    "with": Key("together.kind", "none"),
    "enginetp": Key("together.engine_tp", 1),
    "asleep": Key("together.asleep", "all"),
    "trainer": Key("together.trainer", "stays"),
    "ref": Key("together.reference", "gpu"),
    "reward": Key("together.reward", "none"),
    "rollouts": Key("together.rollouts", 64),
    "arrive": Key("serve.arrivals", "poisson"),
    "rate": Key("serve.arrival_rate", 12.0),
    "reqs": Key("serve.requests", 1000),
    "lengths": Key("serve.lengths", "lognormal"),
    "pcv": Key("serve.prompt_cv", 1.0),
    "ocv": Key("serve.output_cv", 1.0),
    "prefix": Key("serve.shared_prefix", 0),
    "maxlen": Key("serve.max_seq_len", 0),
    "seed": Key("serve.seed", 0),
    "stp": Key("serve.tp", 0),
    "spp": Key("serve.pp", 0),
    "slottft": Key("serve.target_ttft", 0.0),
    "slotpot": Key("serve.target_tpot", 0.0),
}
MODEL, GPU, NODE = "llama-3-8b", "h100-sxm-80gb", None
# A preset's name (with '~revision'), or an object compressed. `size` is a standard model.
OBJECTS = {
    "model": "model",
    "size": "model",
    "config": "model",
    "gpu": "cluster.gpu",
    "gpudef": "cluster.gpu",
    "node": "cluster.node",
    "nodedef": "cluster.node",
}
PIN = "pin"  # a second plan to compare with, as a query inside the query
KNOWN = ("v", *OBJECTS, *KEYS, PIN)

_WHOLE = re.compile(r"-?[0-9]{1,40}")
_FIELDS = {key.path: name for name, key in KEYS.items()}


def encode(plan: Plan, short: bool = False) -> dict[str, str]:
    """The plan as keys and values; every field, or when `short` only what is not a default."""
    query = {"v": str(VERSION), **_encode_model(plan), **_encode_hardware(plan)}
    document = plan.document()
    for name, key in KEYS.items():
        value = get(document, key.path)
        if not short or value != key.default:
            query[name] = _text(value)
    return query


def query_text(query: Mapping[str, str]) -> str:
    """Keys and values as the text after '?', with nothing escaped that need not be."""
    return urlencode(query, safe="~")


def encode_pin(plan: Plan) -> str:
    """A plan as the one value of the `pin` key."""
    return query_text(encode(plan, short=True))


def decode_pin(text: str) -> tuple[Plan, list[Issue]]:
    """The plan in a `pin` value."""
    if len(text) > 3 * MAX_PAYLOAD:
        return Plan(), [Issue(PIN, "too long; the pinned plan was ignored")]
    return decode(dict(parse_qsl(text, keep_blank_values=True, max_num_fields=None)[:MAX_KEYS]))


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
    _check_version(values.pop("v", str(VERSION)), issues)
    values.pop(PIN, None)
    document = _frozen_defaults()
    given = set()
    for name, text in values.items():
        try:
            path, value = _read(name, text, issues)
        except PlanError as e:
            issues += e.issues
        else:
            put(document, path, value)
            given.add(path)
    plan, mended = repair(document, given)
    return plan, _first([_in_link(issue) for issue in issues + mended])


def nearest(document: Mapping[str, Any], asked: Sequence[str]) -> tuple[Plan, list[Issue]]:
    """The nearest valid plan that keeps what was asked for, and what was changed to reach it.

    asked: the fields that somebody just set, in that order. Where they cannot all be kept the last
    is; where that cannot either, it gives way like any other (`repair`).
    """
    for kept in dict.fromkeys((tuple(asked), tuple(asked[-1:]))):
        found = _keeping(document, kept) if kept else None
        if found:
            plan = Plan.of(found)
            return plan, [
                Issue(path, f"{value_text(path, now)} is used in place of {value_text(path, was)}")
                for path in _FIELDS
                if (now := get(found, path)) != (was := get(document, path))
            ]
    return repair(document, given=asked)


MAX_TRIED = 400  # documents that are looked at for the sake of what was asked for


def _keeping(document: Mapping[str, Any], asked: Sequence[str]) -> dict[str, Any] | None:
    """The document made valid with some of its fields as they are, or None where that is not found.

    An issue is settled by setting a field, which is kept then too: to what the issue's own text
    advises, or else to anything that settles it. What has the fewest fields set and issues left is
    looked into first."""
    tried = itertools.count()
    first = copy.deepcopy(dict(document))
    waiting = [(0, next(tried), first, frozenset(asked), _issues(first))]
    while waiting:
        _, _, here, kept, issues = heapq.heappop(waiting)
        if not issues:
            return here
        issue = next((i for i in issues if i.field in kept), issues[0])
        ways = _settled(here, issue, kept)
        for path, trial in ways:
            left = _issues(trial)
            number = next(tried)
            if number > MAX_TRIED:
                return None
            if issue not in left:
                cost = len(kept) - len(asked) + 1 + len(left)
                heapq.heappush(waiting, (cost, number, trial, kept | {path}, left))
    return None


def _settled(
    document: dict[str, Any], issue: Issue, kept: Collection[str]
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Documents in which an issue may be settled, each with the field that was set."""
    trial = copy.deepcopy(document)
    wise = _MENDERS.get(issue.field)
    if issue.field not in kept and wise and wise(trial, kept):
        yield issue.field, trial
        return
    every = [alternative for alternative in _alternatives(document) if alternative[0] not in kept]
    advised = [(path, value) for path, value in every if _says(issue.message, value)]
    for alternatives in (advised, every):
        helped = False
        for path, value in alternatives:
            trial = copy.deepcopy(document)
            put(trial, path, value)
            yield path, trial
            helped = helped or issue not in _issues(trial)
        if helped:
            return


def _says(message: str, value: Any) -> bool:
    return bool(re.search(rf"\b{re.escape(_text(value))}\b", message))


def _alternatives(document: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Every other word, switch and default of a plan's fields."""
    for path, name in _FIELDS.items():
        here, default = get(document, path), KEYS[name].default
        values = words_of(path) or ((True, False) if isinstance(default, bool) else (default,))
        yield from ((path, value) for value in values if value != here)


def _issues(document: Mapping[str, Any]) -> tuple[Issue, ...]:
    try:
        Plan.of(document)
    except PlanError as e:
        return e.issues
    return ()


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
    for name, default in _frozen_defaults().items():
        given = document.setdefault(name, default)
        if isinstance(default, dict) and isinstance(given, dict):
            document[name] = default | given


def _first(issues: list[Issue]) -> list[Issue]:
    """The first few issues; a damaged link must not flood the page."""
    more = len(issues) - MAX_ISSUES
    if more <= 0:
        return issues
    return [*issues[:MAX_ISSUES], Issue("", f"and {more} more problems with this link")]


# --- writing ---------------------------------------------------------------------------------


def _encode_model(plan: Plan) -> dict[str, str]:
    model = plan.model
    if isinstance(model, str):
        return {"model": f"{model}~{catalog.model_entry(model).get('revision', 1)}"}
    if set(model) == {"size"}:
        return {"size": model["size"]}
    return {"config": _pack(model)}


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


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _pack(value: Any) -> str:
    """An object as compressed JSON in URL-safe base64, without padding."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


# --- reading ---------------------------------------------------------------------------------


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


def _check_version(text: str, issues: list[Issue]) -> None:
    if not _WHOLE.fullmatch(text) or int(text) < 1:
        issues.append(Issue("v", f"{shown(text)} is not a version; read as version {VERSION}"))
    elif int(text) > VERSION:
        issues.append(
            Issue(
                "v",
                f"made by a later Memplan (form {shown(text)}); read as form {VERSION}, so it may "
                "mean something else. Update Memplan",
            )
        )


def _frozen_defaults() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_defaults_text())
    return found


@functools.cache
def _defaults_text() -> str:
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
    for key in KEYS.values():
        put(document, key.path, key.default)
    return json.dumps(document)


def _read(name: str, text: str, issues: list[Issue]) -> tuple[str, Any]:
    """The field and the value that one key of a link gives. Raises PlanError."""
    if name in ("config", "gpudef", "nodedef"):
        return OBJECTS[name], _unpack(text, name)
    if len(text) > MAX_VALUE:
        raise PlanError(
            [Issue(name, f"{len(text):,} characters; at most {MAX_VALUE}. Its default is used")]
        )
    if name == "size":
        return "model", {"size": text}
    if name in OBJECTS:
        return OBJECTS[name], _preset(name, text, issues)
    key = KEYS[name]
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
        if re.fullmatch(r"[0-9]{0,20}\.?[0-9]{1,20}(e-?[0-9]{1,3})?", text):
            return float(text)
        expected = "a number such as 0.9"
    else:
        return text
    raise PlanError(
        [Issue(name, f"must be {expected}, not {shown(text)}; {_text(default)} is used")]
    )


def _preset(name: str, text: str, issues: list[Issue]) -> str:
    """A preset's name; says so when the preset was corrected since the link was made."""
    preset, mark, revision = text.partition("~")
    current = _revision(name, preset)
    if mark and current and revision != str(current):
        issues.append(
            Issue(
                name,
                f"preset {preset} was corrected since this link was made (revision "
                f"{shown(revision)}, now {current}); the numbers may differ",
            )
        )
    return preset


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
        return PlanError([Issue(name, f"{why}; ignored. Ask for the link again")])

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


# --- mending ---------------------------------------------------------------------------------


def _mend(document: dict[str, Any], field: str, again: bool, given: Collection[str]) -> str:
    """Change `document` so that the issue at `field` goes away; says what was done."""
    if not again:
        wise = _MENDERS.get(field)
        if wise and (what := wise(document, given)):
            return what
        name = _FIELDS.get(field)
        if name:
            put(document, field, KEYS[name].default)
            return f"Its default, {_text(KEYS[name].default)}, is used"
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
    defaults = _frozen_defaults()
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
    stages = {name: framework.zero for name, framework in policies.FRAMEWORKS.items()}
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


_MENDERS = {
    "serve.images": _mend_images,
    "train.attention": _mend_attention,
    "train.seq_len": _mend_seq_len,
    "train.zero": _mend_zero,
    "cluster.gpus": _mend_gpus,
    "parallel.sequence_parallel": _mend_sequence_parallel,
}


def _in_link(issue: Issue) -> Issue:
    """The issue under both names of its field: the link's key and the plan's path."""
    if issue.field in KEYS:
        return Issue(f"{issue.field} ({KEYS[issue.field].path})", issue.message)
    if issue.field in _FIELDS:
        return Issue(f"{_FIELDS[issue.field]} ({issue.field})", issue.message)
    return issue


def fields() -> Iterable[str]:
    """Every field of a plan that a link carries by a key of its own."""
    return _FIELDS
