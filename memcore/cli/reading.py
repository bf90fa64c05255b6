"""What a command is given: a plan in a file, on standard input, in a link or by a name, and fields
that are set in it."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from memcore.cli.arguments import gpu
from memcore.cli.printing import printable
from memcore.errors import Issue, PlanError, did_you_mean, no_word, refusal, shown, shown_path
from memcore.units import GiB
from memcore.words.jobs import ANY, JOBS, KIND, SERVE

if TYPE_CHECKING:
    import argparse

    from memcore.formats.benches import Bench
    from memcore.plan.measured import Measured
    from memcore.plan.plan import Plan

LINKS = ("http://", "https://")
# What no plan has, and a config.json or a model file does.
CONFIG = {"model_type", "architectures", "memplan_model_file"}
HUB = "https://huggingface.co/"
SWITCHES = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
MAX_PLAN_BYTES = 4_000_000  # most have 10,000; a config.json that lists its layers has 3 million
MAX_TEXT_BYTES = 64_000_000  # of a file of another program: texts.py says what of it is read


def given_plan(args: argparse.Namespace) -> Plan:
    """The plan that a command was given. Raises PlanError, which `main` prints with its source."""
    return settled(document_in(args.plan), args.set, args.job)


def plan_in(text: str) -> Plan:
    """The plan that an argument means, as `document_in` has it. Raises PlanError."""
    return settled(document_in(text), ())


def document_in(text: str) -> dict[str, Any]:
    """What an argument says of a plan, as a document: JSON text, standard input, a link to the app,
    a file; or, where no file is called so, a worked plan, or the default plan of a model, by its
    name or size. Raises PlanError."""

    if _is_link(text) and (query := parse_qs(urlsplit(text).query, keep_blank_values=True)):
        return _linked(query)
    if (weights := weights_at(text)) is not None:
        return weights
    if is_name(text):
        return _called(text)
    other = modelopt_file(text)
    return document_of(read(text), read(other) if other else b"")


def weights_at(text: str, quiet: bool = False) -> dict[str, Any] | None:
    """What a plan has for a file or a folder of weights, on this machine or as hf://org/model on a
    hub, by their headers; None where a text names neither. Raises PlanError."""
    from memcore.formats import checkpoints, remote

    if text.startswith(remote.SCHEME):
        document, issues = checkpoints.document_of(*remote.on_hub(text))
    elif checkpoints.is_weights(text):
        document, issues = checkpoints.document_of(*checkpoints.on_this_machine(text))
    else:
        return None
    print_issues(() if quiet else issues)
    return document


def modelopt_file(path: str) -> str:
    """The hf_quant_config.json in the folder of a config.json, by its path; '' where there is
    none."""
    other = os.path.join(os.path.dirname(path), "hf_quant_config.json")
    return other if os.path.basename(path) == "config.json" and os.path.isfile(other) else ""


def is_name(text: str) -> bool:
    """Whether an argument can only be the name of something: no JSON, and no file is called so."""
    return text != "-" and not text.lstrip().startswith("{") and not os.path.lexists(text)


def _is_link(text: str) -> bool:
    return text.startswith(LINKS)


def _linked(query: dict[str, list[str]]) -> dict[str, Any]:
    """The plan of a link. What of it is not used is told, as the app tells it."""
    from memcore.plan.link import decode

    plan, issues = decode(dict(query))
    print_issues(issues)
    return plan.document()


def _called(name: str) -> dict[str, Any]:
    """The plan behind a name. Raises PlanError."""
    from memcore.formats import hub
    from memcore.models import catalog

    worked = catalog.plan_entries()
    if name in worked:
        return dict(worked[name]["plan"])
    if (model := _model(name)) is not None:
        document: dict[str, Any] = {"model": model}
        if name not in catalog.model_names() and (word := hub.stored(name)):
            document["serve"] = {"weight_dtype": word}
            print_issues([Issue("serve.weight_dtype", f"{word}, as the model's name says")])
        return document
    if _is_link(name):
        raise refusal("", "says no plan, as what stands behind a '?' would")
    if name.endswith(".json") or (os.sep in name and not hub.NAME.fullmatch(name)):
        raise refusal("", "no such file or directory")
    raise refusal("", f"no such file, and {_unknown(name, list(worked))}")


def model_called(name: str, option: str) -> Any:
    """What a plan has for the model that an option names. Raises PlanError, under the option."""
    if (model := _model(name)) is None:
        raise refusal(option, _unknown(name))
    return model


def chosen_model(args: argparse.Namespace) -> Any:
    """What a plan has for the model that --model names, or '' where it names none. Raises
    PlanError."""
    return model_called(args.model, "--model") if args.model else ""


def _unknown(name: str, worked: Sequence[str] = ()) -> str:
    """That nothing is called so, and what to do."""
    from memcore.formats import hub
    from memcore.models import catalog, unplanned

    if why := unplanned.name(name):
        return f"{shown(name)} is no preset: {why}"
    if hub.NAME.fullmatch(name):
        brings = f"`hf download {name} config.json` brings it"
        return f"{shown(name)} is no preset, nor is its config.json on this machine; {brings}"
    near = did_you_mean(name, [*worked, *catalog.model_names()])
    called = "no plan or model is called so" if worked else f"no preset {shown(name)}"
    return f"{called}; {near}"


def _model(name: str) -> Any:
    """What a plan has for a model: a preset, also by its name on the Hugging Face hub; a
    config.json that was brought from there; or a size. None where nothing is called so."""
    from memcore.formats import hub
    from memcore.models import catalog
    from memcore.models.config import parse_config
    from memcore.plan.models import resolve_model

    if name in catalog.model_names():
        return name
    if weights := weights_at(name):
        return weights["model"]
    if preset := hub.preset(name.removeprefix(HUB)):
        return preset
    if text := hub.cached(name.removeprefix(HUB)):
        return dict(parse_config(text))
    try:
        resolve_model({"size": name})
    except PlanError:
        return None
    return {"size": name}


def settled(document: Mapping[str, Any], settings: Sequence[str], job: str | None = None) -> Plan:
    """The plan that a document says, as that of a job and with fields set, each as FIELD=VALUE. All
    is in force before any of it is judged. Where that is no plan and the document alone is one, the
    nearest that keeps them; what else it changes is told. Raises PlanError where they cannot all be
    kept."""
    from memcore.plan.link import nearest
    from memcore.plan.plan import Plan
    from memcore.plan.repair import completed

    chosen = {k: v for each in settings for k, v in _set(each).items()}
    of_job = dict(JOBS[job]) if job else {}
    if "cluster.gpu" in chosen:  # in its usual host
        chosen = {"cluster.node": None, **chosen}
    wanted = _with(_with(document, of_job), chosen)
    if trained := _trained_on(wanted, chosen):
        wanted = _with(wanted, {"train.seq_len": trained})
        chosen["train.seq_len"] = trained
        print_issues([Issue("train.seq_len", f"{trained:,}, a prompt and its answer")])
    try:
        plan = Plan.of(wanted)
    except PlanError as e:
        if not chosen and not of_job:
            raise
        wrong = e.issues
    else:
        _refuse_sizes(plan, chosen)
        print_issues(_of_the_model(plan, wanted))
        return plan
    try:
        Plan.of(document)
    except PlanError:
        raise PlanError(wrong) from None
    fields = [path.partition(".")[0] if path.startswith("model.") else path for path in chosen]
    kind = [path for path in KIND if path in of_job]
    lost: Sequence[Issue] = ()
    for fixed in ((*fields, *of_job), (*fields, *kind)):
        nearest_plan, changed = nearest(completed(wanted), tuple(dict.fromkeys(fixed)))
        lost = [issue for issue in changed if issue.field in fixed]
        if not lost:
            print_issues(changed)
            return nearest_plan
    raise PlanError(
        Issue(f"{'--set' if issue.field in fields else '--job'} {issue.field}", issue.message)
        for issue in [i for i in wrong if i.field in {*fields, *kind}] or lost
    )


def _trained_on(document: Mapping[str, Any], chosen: Mapping[str, Any]) -> int:
    """The tokens of a prompt and its answer, which an update trains on, where somebody says one of
    these of a plan that makes rollouts, and not the length of the update; else 0."""
    from memcore.plan.plan import Plan, get

    lengths = ("serve.prompt_len", "serve.output_len")
    sections = [document.get(name, {}) for name in ("together", "serve")]
    if "train.seq_len" in chosen or not any(path in chosen for path in lengths):
        return 0
    if not all(isinstance(each, dict) for each in sections):
        return 0
    if sections[0].get("kind", "none") == "none":
        return 0
    each = (sections[1].get(p.rpartition(".")[2], get(Plan(), p)) for p in lengths)
    total = [n for n in each if isinstance(n, int)]
    return sum(total) if len(total) == len(lengths) else 0


def _with(document: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """A document of a plan with more fields said in it."""
    from memcore.plan.plan import Plan

    changed = {**document}
    for path, value in fields.items():
        section, _, name = path.partition(".")
        if not name:
            changed[section] = value
        elif section == "model":
            changed[section] = _configured(changed.get(section, Plan().model), name, value)
        elif isinstance(changed.get(section, {}), dict):  # what is none is refused as a whole
            changed[section] = {**changed.get(section, {}), name: value}
    return changed


def _configured(model: Any, key: str, value: Any) -> dict[str, Any]:
    """The config.json of what a plan has for a model, with a key, by its dotted path, set in it.
    Raises PlanError for a key that is not there."""
    from memcore.models import catalog
    from memcore.models.standard import standard_config
    from memcore.plan.models import dims_of, preset_of, with_dim

    dim = key.removeprefix("dims.")
    if dim != key and dim in dims_of(model):
        return with_dim(model, dim, value)
    if preset_of(model) in catalog.traced_names():
        model = {"dims": dims_of(model)}
    elif isinstance(model, str) and model in catalog.config_names():
        model = catalog.model_entry(model)["config"]
    elif isinstance(model, dict) and set(model) == {"size"}:
        model = standard_config(model["size"])
    config = json.loads(json.dumps(model))
    *parents, last = key.split(".")
    part = config
    for name in parents:
        part = part.get(name) if isinstance(part, dict) else None
    if not isinstance(part, dict) or last not in part:
        known = [k for k, v in config.items() if not isinstance(v, (dict, list))]
        known += [f"{k}.{inner}" for k, v in config.items() if isinstance(v, dict) for inner in v]
        near = did_you_mean(key, known)
        raise refusal(f"--set model.{key}", f"the model's config.json has no such key; {near}")
    part[last] = value
    return dict(config)


def _refuse_sizes(plan: Plan, chosen: Mapping[str, Any]) -> None:
    """Raises PlanError for a size of images that was set and that the model has not, also where it
    is the one of models that take any."""
    from memcore.plan.model_rules import SIZES, one_size

    sizes = {path: side for path, side in chosen.items() if path in SIZES}
    wrong = [i for path, side in sizes.items() for i in one_size(path, side, plan.architecture)]
    if wrong:
        raise PlanError(Issue(f"--set {issue.field}", issue.message) for issue in wrong)


def _of_the_model(plan: Plan, document: Mapping[str, Any]) -> Iterator[Issue]:
    """What a plan has of its model in fields that its document does not say, and of which its
    answer speaks."""
    from memcore.plan.plan import Plan, facts, get, value_text
    from memcore.search.change import differences

    silent = {SERVE: "train", ANY: ""}.get(plan.about, "serve")
    for path, now in differences(Plan(), plan).items():
        section, _, name = path.partition(".")
        when = facts(path).when
        if when and not when(functools.partial(get, plan), plan.architecture):
            continue  # it has no meaning in this plan
        if name and section != silent and name not in document.get(section, {}):
            was = value_text(path, get(Plan(), path))
            yield Issue(path, f"{value_text(path, now)} is used in place of {was}")


def _set(text: str) -> dict[str, Any]:
    """The fields that a setting sets: one, or of `gpu=here` those that say this machine."""
    from memcore.formats import here

    field, _, given = text.partition("=")
    if given != here.HERE or field not in ("gpu", "cluster.gpu"):
        return dict((setting(text),))
    fields, issues = here.settings()
    print_issues(issues)
    return fields


def setting(text: str) -> tuple[str, Any]:
    """A field and its value, as the command line has them. Raises PlanError."""
    from memcore.plan.plan import facts, field_of

    name, sign, given = text.partition("=")
    if not sign or not given:
        refused = f"{shown(text)} is no field with a value, as train.zero=3 is"
        raise refusal("--set", refused)
    if name == "model":
        return name, model_called(given, "--set model")
    if name.startswith("model."):
        return name, SWITCHES.get(given.lower(), value_of(given))
    field = field_named(name, "--set")
    if facts(field).own and (given.startswith("{") or os.path.isfile(given)):
        return field, read(given).decode(errors="replace").strip()
    if field == "cluster.gpu" and (given.startswith("{") or given.endswith(".json")):
        return field, card(given)
    if field == "cluster.gpu":
        given = gpu(given)
    kind = field_of(field).annotation
    if kind is bool and given.lower() in SWITCHES:
        return field, SWITCHES[given.lower()]
    value = value_of(given) if kind in (int, float) else given
    if kind is int:
        value = _integer(given, value)
    refuse_others(field, [value], "--set")
    return field, value


def card(text: str) -> dict[str, Any]:
    """What a file, or a text that begins with a brace, describes as a card of one's own. Raises
    PlanError."""
    from memcore.models import cards
    from memcore.plan.plan import Plan

    try:
        document = _json_of(read(text))
        if not isinstance(document, dict):
            raise refusal("", "is no JSON object, in braces")
        if missing := [name for name in cards.NEEDED if name not in document]:
            raise refusal("", f"says no {' and no '.join(missing)}, which a card needs")
        Plan.of({"cluster": {"gpu": document}})  # raises for what describes none
    except PlanError as e:
        where = "the card" if text.lstrip().startswith("{") else shown_path(text)
        wrong = "; ".join(f"{issue.field.rpartition('.')[2]} {issue.message}" for issue in e.issues)
        raise refusal("--gpu", f"{where}: {wrong.strip()}") from None
    return document


def field_named(name: str, option: str) -> str:
    """The path of a field by its path, or by its last word where only one has it. Raises PlanError
    under the option's name."""
    from memcore.plan.plan import field_paths, meant

    same = [path for path in field_paths() if name in (path, path.rpartition(".")[2])]
    if len(same) != 1:
        several = f"is the last word of {' and '.join(same)}"
        message = several if same else f"is no field of a plan; {meant(name)}"
        raise refusal(f"{option} {name}", message)
    return same[0]


def presets_of(field: str) -> Sequence[str]:
    """The presets that a field may name; none of a field that names none."""
    from memcore.models import catalog

    known: dict[str, Callable[[], Iterable[str]]] = {
        "model": catalog.model_names,
        "cluster.gpu": catalog.gpu_names,
        "cluster.node": catalog.node_names,
    }
    return tuple(known[field]()) if field in known else ()


def refuse_others(field: str, values: Sequence[Any], option: str) -> None:
    """Raises PlanError for a value that no plan has in this field, whatever its others are."""
    from memcore.models import cards
    from memcore.plan.plan import field_of, limits_of, words_of

    words, (least, most) = words_of(field), limits_of(field)
    counts, presets = field_of(field).annotation in (int, float), presets_of(field)
    integer = field_of(field).annotation is int
    for value in values:
        wrong = ""
        if presets and value not in presets:
            refused = f"no preset {shown(value)}; {did_you_mean(str(value), list(presets))}"
            if field == "cluster.gpu":
                refused = cards.no_preset(str(value))
            raise refusal(f"{option} {field}", refused)
        if words is not None and value not in words:
            raise refusal(f"{option} {field}", no_word(value, words, "is none of its words"))
        if counts and (isinstance(value, bool) or not isinstance(value, (int, float))):
            wrong = f"is no number, as in {option} {field}=4"
        elif counts and not least <= value <= most:
            wrong = f"is not from {least:,} to {most:,}"
        elif integer and not isinstance(value, int):
            wrong = f"is no whole number, as in {option} {field}=4"
        if wrong:
            raise refusal(f"{option} {field}", f"{shown(value)} {wrong}")


def value_of(text: str) -> Any:
    """A number, yes or no, or a word."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text


COUNTED = {"M": 10**6, "B": 10**9, "T": 10**12}  # K is left out: of tokens it may be 1,024


def _integer(given: str, value: Any) -> Any:
    """A whole number that is written otherwise, as 100e9 and 100B are; else the value."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    many, unit = value_of(given[:-1]), COUNTED.get(given[-1].upper())
    if unit and isinstance(many, int | float) and not isinstance(many, bool):
        return int(many * unit)
    return value


def print_issues(issues: Iterable[Issue]) -> None:
    """What a plan had to be changed in, beside what the command prints."""
    for issue in issues:
        print(printable(f"memplan: {issue}"), file=sys.stderr)


def source(args: argparse.Namespace) -> str:
    """Where a command's plan is from, before what is wrong with it; '' of one that takes none."""
    path = getattr(args, "plan", None)
    if path is None:
        return ""
    return f"{named(path)}: "


def named(path: str) -> str:
    """What a plan that was given is called."""
    if path.lstrip().startswith("{"):
        return "the plan"
    if _is_link(path):
        return "the link"
    return "standard input" if path == "-" else shown_path(path)


def config_called(name: str) -> str:
    """The text of a model's config.json by the name that a file has for it: in a folder of that
    name, or where programs of Hugging Face keep it; '' where it is not on this machine."""
    from memcore.formats import hub

    if weights := weights_at(name, quiet=True):
        return json.dumps(weights["model"])
    at = os.path.join(name, "config.json")
    if os.path.isfile(at):
        with contextlib.suppress(PlanError, UnicodeDecodeError):
            return read(at).decode()
    return hub.cached(name)


def read(path: str, most: int = MAX_PLAN_BYTES) -> bytes:
    """The bytes of a file or of standard input, up to just over the limit; of what begins as a JSON
    object, its own; of a model's folder, its config.json's. Raises PlanError."""
    if path.lstrip().startswith("{"):
        return path.encode(errors="replace")
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
        if not os.path.exists(path):
            raise refusal("", "is a folder, and no config.json is in it")
    try:
        if path == "-":
            return sys.stdin.buffer.read(most + 1)
        with open(path, "rb") as file:
            return file.read(most + 1)
    except OSError as e:
        raise refusal("", (e.strerror or str(e)).lower()) from None
    except ValueError as e:  # a null byte in the name
        raise refusal("", str(e)) from None


def plan_of(data: bytes, stored: bytes = b"") -> Plan:
    """The plan that JSON text describes, as `document_of` has it. Raises PlanError, whatever the
    bytes are."""
    return settled(document_of(data, stored), ())


def document_of(data: bytes, stored: bytes = b"") -> dict[str, Any]:
    """What JSON text says of a plan: of a config.json, with what the hf_quant_config.json beside it
    says of its weights. Raises PlanError, whatever the bytes are."""
    from memcore.models import quantization, unplanned

    document = _json_of(data)
    if isinstance(document, dict) and (why := unplanned.architecture(document)):
        raise refusal("", why)
    if isinstance(document, dict) and "model" not in document and CONFIG & document.keys():
        other = _json_of(stored) if stored else None
        if isinstance(other, dict) and quantization.by_modelopt(other):
            document = quantization.with_modelopt(document, other)
            print_issues([Issue("hf_quant_config.json", "is read with the config.json beside it")])
        document = {"model": document}  # a config.json: the default plan of its model
    if not isinstance(document, dict):
        raise refusal("", "a plan is one JSON object, in braces")
    return document


def _json_of(data: bytes) -> Any:
    """What JSON text says. Raises PlanError, whatever the bytes are."""
    if len(data) > MAX_PLAN_BYTES:
        raise refusal("", f"more than {MAX_PLAN_BYTES:,} bytes, so not a plan")
    try:
        text = data.decode(json.detect_encoding(data)).removeprefix("\ufeff")
        return json.loads(text, object_pairs_hook=_no_repeats)
    except UnicodeDecodeError:
        raise refusal("", "not text, so not a plan in JSON") from None
    except RecursionError:
        raise refusal("", "nested too deeply to be a plan") from None
    except json.JSONDecodeError as e:
        where = f"line {e.lineno}, column {e.colno}"
        raise refusal("", f"not JSON: {e.msg} ({where})") from None
    except ValueError as e:
        raise refusal("", f"not a plan: {e}") from None


def measured_of(args: argparse.Namespace) -> Measured | None:
    """The step or the server that --measured says; None where it says none. Raises PlanError, under
    the option's name."""
    if args.measured is None:
        return None
    path, sign, numbers = args.measured.rpartition("=")
    if sign and path and (os.path.isfile(numbers) or ":" in numbers):
        return _server(path, numbers)
    return _step(path, numbers, args.measured)


def _step(path: str, numbers: str, given: str) -> Measured:
    from memcore.cli.snapshot import memory_in
    from memcore.plan.measured import Measured

    seconds, _, peak = numbers.partition(",")
    held = os.path.isfile(peak)
    try:
        if not path:
            raise ValueError
        took, gib = float(seconds), 0.0 if held else float(peak or 0)
        peak_bytes = round(gib * GiB) if math.isfinite(gib) else -1
    except ValueError:
        expected = (
            "must be a plan's file, = and seconds of a step, as run.json=9.5; or of a server what "
            "a benchmark printed, as run.json=bench.txt, or its figures, as "
            f"run.json=tpot:14ms,ttft:0.9; not {shown(given)}"
        )
        raise refusal("--measured", expected) from None
    of = peak if held else path
    try:
        if held and not (peak_bytes := memory_in(peak).fullest.allocated_bytes):
            raise PlanError([Issue("", "does not say what was allocated")])
        of = path
        return Measured(plan_in(path), took, peak_bytes)
    except PlanError as e:
        issues = (Issue("--measured", f"{shown_path(of)}: {issue}") for issue in e.issues)
        raise PlanError(issues) from None


def _server(path: str, figures: str) -> Measured:
    """A server that was measured: its plan, and a benchmark's file or figures."""
    from memcore.formats.benches import MOST_BYTES, bench_of

    of = figures
    try:
        if os.path.isfile(figures):
            bench = bench_of(read(figures, MOST_BYTES))
        else:
            of, bench = path, _figures(figures)
        of = path
        measured, notes = bench.of(plan_in(path))
    except PlanError as e:
        issues = (Issue("--measured", f"{shown_path(of)}: {issue}") for issue in e.issues)
        raise PlanError(issues) from None
    print_issues(notes)
    return measured


FIGURES = {"tpot": "token", "ttft": "first", "tps": "rate"}


def _figures(text: str) -> Bench:
    """Figures of a server as the command line has them: tpot:14ms,ttft:0.9,tps:1500. Raises
    PlanError."""
    import argparse

    from memcore.cli.arguments import latency, positive
    from memcore.formats.benches import Bench

    figures: dict[str, float] = {}
    for part in text.split(","):
        name, _, given = part.partition(":")
        try:
            if name not in FIGURES:
                raise argparse.ArgumentTypeError(f"{shown(name)} is none of {', '.join(FIGURES)}")
            read_as = positive if name == "tps" else latency(5 if name == "tpot" else 60)
            figures[FIGURES[name]] = read_as(given)
        except argparse.ArgumentTypeError as e:
            raise refusal("", f"{e}; say a server's figures as tpot:14ms,ttft:0.9") from None
    token, first, rate = (figures.get(name, 0.0) for name in FIGURES.values())
    return Bench("", token, first, rate)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {shown(key)} is there twice")
        values[key] = value
    return values
