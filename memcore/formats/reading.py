"""Reading: files of other programs as one plan, with what they say, what was assumed, and what no
plan says."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any

from memcore.cache import cached
from memcore.errors import Issue, PlanError, shown
from memcore.evaluate import assumed_box
from memcore.formats import (
    accelerate,
    deepspeed,
    hub,
    launchers,
    machines,
    megatron,
    methods,
    nemo,
    neox,
    ollama,
    openrlhf,
    overrides,
    placement,
    recipes,
    registry,
    scripts,
    servers,
    slime,
    swift,
    tensorrt,
    torchtitan,
    torchtune,
    trainer,
    verl,
)
from memcore.formats.draft import Around, Draft, Keys, Said
from memcore.formats.failures import Failure, failure
from memcore.formats.programs import Program, tables_with
from memcore.formats.texts import (
    MAX_JSON,
    MAX_SCRIPT,
    UNSET,
    Text,
    adds,
    broken,
    over,
    several,
)
from memcore.formats.undecided import SINCE, undecided, with_fullest_version
from memcore.models import cards, catalog, quantization, unplanned
from memcore.models.config import parse_config
from memcore.models.families import drafts
from memcore.models.families.qwen_vl import WITH_IMAGES, with_images
from memcore.models.model import Model
from memcore.plan.link import nearest
from memcore.plan.model_rules import linear_layers
from memcore.plan.models import resolve_model
from memcore.plan.plan import OF_THE_MODEL, Plan, get, put, value_text
from memcore.plan.repair import issues_in
from memcore.serving.serve import servable
from memcore.serving.server import Server
from memcore.words.engines import ENGINES, LLAMA_CPP
from memcore.words.jobs import ANY, SERVE, TRAIN
from memcore.words.stored import AS_PUBLISHED
from memcore.words.training import FRAMEWORKS, NATIVE, NO_LAYER, SEEING, listed

# Documents: what to call them, whether one is of the kind, how it is read. The first that knows a
# file reads it.
Known = tuple[str, Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any], Draft], None]]
DESCRIBED = tuple(map(Program, tables_with("knows", "label")))  # by their tables alone
DOCUMENTS: tuple[Known, ...] = (
    ("GPT-NeoX", neox.recognise, neox.read),
    ("DeepSpeed", deepspeed.recognise, deepspeed.read),
    ("Accelerate", accelerate.recognise, accelerate.read),
    ("verl", verl.recognise, verl.read),
    ("NeMo", nemo.recognise, nemo.read),
    ("torchtitan", torchtitan.recognise, torchtitan.read),
    ("torchtune", torchtune.recognise, torchtune.read),
    ("ms-swift", trainer.SWIFT.knows, swift.read),
    *((each.table["label"], each.knows, each.document) for each in DESCRIBED),
    ("Trainer", trainer.recognise, trainer.read),
    ("TensorRT-LLM", tensorrt.recognise, tensorrt.read),
    ("SGLang", servers.of_sglang, servers.configured),
    ("vLLM", servers.configures, servers.configured),
)
STARTS = 0.5 + next(at for at, known in enumerate(DOCUMENTS) if known[0] == "Accelerate")
# Texts that are no documents, in the same form; their content is read.
TEXTS: tuple[tuple[str, Callable[[str], Any], Callable[[str, Draft], None]], ...] = (
    ("Ollama", ollama.recognise, ollama.read),
    ("Trainer", scripts.settings, scripts.read),
    ("torchtitan", registry.runs, registry.read),
    ("NeMo", recipes.jobs, recipes.read),
    (LLAMA_CPP, servers.presets, servers.of_presets),
)
# Commands, in the same form.
COMMANDS: tuple[
    tuple[str, Callable[[Sequence[str]], Any], Callable[[Sequence[str], Draft], None]], ...
] = (
    ("verl", verl.starts, verl.launched),
    ("NeMo", nemo.starts, nemo.launched),
    ("OpenRLHF", openrlhf.starts, openrlhf.launched),
    ("ms-swift", swift.starts, swift.launched),
    ("slime", slime.starts, slime.launched),
    ("Megatron", megatron.trains, megatron.read),
    ("Megatron", megatron.recognise, megatron.read),
    ("Trainer", trainer.starts, trainer.launched),
)
MODEL, MODELOPT = "config.json", "hf_quant_config.json"
FAILURE, START = "memory ran out", "a command that starts a job"
BESIDE = (
    MODEL,
    MODELOPT,
    "DeepSpeed",
    "Accelerate",
    "TensorRT-LLM",
    FAILURE,
    START,
)  # beside what starts a job
# Of a training step what decides most, and is told where no program decides it.
DECIDE = tuple(
    f"train.{name}"
    for name in (
        *("micro_batch", "seq_len", "checkpointing", "precision", "optimizer", "attention"),
        *("framework", "zero"),
    )
)
SAME_MEMORY = 0.005  # share by which drivers of one GPU differ in what they leave of its memory
PLAN = frozenset({*Plan.model_fields, "$schema"})
CONFIG = {"model_type", "architectures"}
SIZES = {"hidden_size", "n_embd", "d_model", "text_config"}
WITH_TOWERS = ("pytorch", "fsdp2")  # frameworks that train a model with what reads images
ADAPTER, LORA, IMAGES = "train.adapter", "lora", "serve.images"
FRAMEWORK, MEGATRON = "train.framework", "megatron"
GUESSER = "serve.draft_model"
USUAL_GUESSES = 3  # where a draft is given and no file says how many tokens it guesses
# What is started by a script's commands, whose variables it may set to several values.
SERVERS = {*ENGINES, *(each.label for each in servers.SERVERS)}
# What leaves PyTorch's allocator as it is.
ON_PYTORCH = {"Trainer", "ms-swift", "OpenRLHF", "DeepSpeed", "Accelerate", "GPT-NeoX", "torchtune"}
TRAINERS = {"Trainer", "Megatron", "verl", "OpenRLHF", "slime", "ms-swift"}
MOST = 6  # variables told of, and values of each
Reader = tuple[float, str, Callable[[Draft], None]]
KNOWN = (
    "read are a config.json, what Trainers, DeepSpeed, Accelerate, torchtitan, torchtune, NeMo, "
    "verl, OpenRLHF, slime, ms-swift, GPT-NeoX and Megatron are given, what starts a server, "
    "Modelfiles, and what says that memory ran out"
)
# What a text has that is of no known kind, with what is wrong with it; the first counts.
UNKNOWN = {
    r"\A\s*\Z": "is empty",
    r"CUDA memory summary|see_memory_usage|NVIDIA-SMI": (
        "says what a run held, and no job: memplan snapshot reads it, beside a plan too"
    ),
    r"^(?:from|import) \S|^def ": "is Python, of which no function sets a job's sizes as constants",
    r"^#!|^[ \t]*(?:torchrun|python3?|srun|accelerate|deepspeed|docker)\s": (
        "is a script, and no command in it says a job's sizes or starts a server"
    ),
}


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A plan, and how the files came to it.

    kinds     what each file was taken for, by its name
    said      which key became which field
    assumed   fields that decide much and that no file says, with what stands there; decides: those
              of them with whose other values the verdict is another, which come first
    changed   what was changed, since what the files say together is no plan
    left      keys that move memory or time, and that no plan says, with why; differs: those whose
              plan is of something else than the program does, which come first
    wants     files that these name; given beside them they are read too
    unread    keys that are no known argument of the program's
    failures  what programs said when memory ran out: at least so much the job needs
    unsure    files that may be of another program than what they were taken for, with why
    """

    plan: Plan
    kinds: Mapping[str, str]
    said: tuple[Said, ...]
    assumed: tuple[Issue, ...]
    changed: tuple[Issue, ...]
    left: tuple[Issue, ...]
    wants: tuple[str, ...]
    unread: tuple[str, ...]
    failures: tuple[Failure, ...] = ()
    decides: tuple[Issue, ...] = ()
    unsure: tuple[Issue, ...] = ()
    differs: tuple[Issue, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        issues = ("unsure", "differs", "decides", "assumed", "changed", "left")
        return {
            "plan": self.plan.document(),
            "files": dict(self.kinds),
            "said": [{"key": s.key, "value": s.value, "field": s.field} for s in self.said],
            **{name: [str(issue) for issue in getattr(self, name)] for name in issues},
            "wants": list(self.wants),
            "unread": list(self.unread),
            "failures": [each.to_dict() for each in self.failures],
        }


def read_files(
    texts: Sequence[Text],
    *,
    model: Any = "",
    called: str = "",
    gpu: Any = "",
    gpus: int = 0,
    otherwise: Any = "",
    config_of: Callable[[str], str] = lambda name: "",
) -> ReadPlan:
    """The plan that files of one job say together.

    model, gpu, gpus: what somebody says beside them: a preset or what else a plan has for a model
    and for an accelerator, how many. `called`: what they call that model, which may say how its
    weights are stored. `otherwise`: the model where no file names one, which is
    told. `config_of`: the text of a model's config.json by its name, '' where it is not at hand;
    asked where no preset is called so.
    Raises PlanError where no file is of a known kind, or none says which model.
    """
    draft = Draft()
    texts = [part for text in overrides.applied(texts) for part in _unfenced(text)]
    readers = {text.name: _reader(text) for text in texts}
    _join(texts, readers)
    _starters(texts, readers)
    kinds = {name: kind for name, (_, kind, _) in readers.items()}
    for text in texts:
        if no_plan := _unplanned(text, kinds[text.name]):
            raise PlanError([Issue(text.name, no_plan)])
    if unknown := [name for name, kind in kinds.items() if not kind]:
        strange = {text.name: _strange(text) for text in texts}
        raise PlanError(
            [Issue(name, f"not read, since it {strange[name]}; {KNOWN}") for name in unknown]
        )
    unsure: list[Issue] = []
    for name, (_, kind, read) in sorted(readers.items(), key=lambda item: item[1][0]):
        before, draft.unsure = (draft.keys, len(draft.unread)), ""
        try:
            read(draft)
        except PlanError as e:
            raise PlanError(Issue(_within(name, i.field), i.message) for i in e.issues) from None
        keys, lost = draft.keys - before[0], len(draft.unread) - before[1]
        if draft.unsure:
            unsure.append(Issue(name, draft.unsure))
        elif 2 * lost > keys:
            knows = f"which knows {keys - lost} of the {keys} keys in it"
            unsure.append(Issue(name, f"taken for {kind}, {knows}"))
    for text in texts:
        launchers.allocator(text.content, draft)
        _unsure(text, kinds[text.name], draft)
        ran_out = failure(text.content) if kinds[text.name] != FAILURE else None
        if ran_out and ran_out.asked and not ran_out.engine:  # of a post, beside its command
            _failed(ran_out, draft)
        if kinds[text.name] in SERVERS and (copies := machines.replicas(text.content)) > 1:
            draft.leave(
                "replicas", f"{copies}: one of these servers is planned, on GPUs of its own"
            )
    versioned = servers.versioned([text.content for text in texts], draft)
    if ON_PYTORCH.intersection(kinds.values()):
        draft.otherwise(launchers.ALLOCATOR, NATIVE, "PYTORCH_ALLOC_CONF")
    if set(kinds.values()) == {FAILURE} and not model:
        told = zip(readers, draft.failures, strict=True)
        raise PlanError(Issue(n, f"{f}; give the files of its job beside it") for n, f in told)
    if {*kinds.values()} <= {START, MODEL, "Accelerate", "DeepSpeed"} and START in kinds.values():
        missing = ", ".join(name for name in draft.wants if PurePath(name).name not in kinds)
        message = f"starts what {missing} describes; give that file beside it"
        named = next(name for name, kind in kinds.items() if kind == START)
        raise PlanError([Issue(named, message)])
    assumed: list[Issue] = []
    document = Plan().document()
    if draft.config is None and not (model or draft.model):  # a draft by itself is refused as one
        draft.config, draft.drafted = draft.drafted, None
    document["model"] = _model(draft, model, otherwise, config_of, assumed)
    if draft.quantized is not None:
        document["model"] = _as_stored(document["model"], draft.quantized)
    architecture = resolve_model(document["model"])
    if hub.stored(called):
        draft.model = called
    _refuse_stored(architecture, draft)
    _guesser(draft, config_of, assumed)
    _cluster(document, draft, gpu, gpus, assumed)
    draft.settle(_around(document, architecture))
    _modules(draft, architecture)
    _in_16_bits(draft)
    for path, value in draft.fields.items():
        put(document, path, value)
    _steps(document, draft)
    document["job"] = _about(draft, kinds)
    if document["job"] == SERVE:
        _load(document, draft, assumed)
    else:
        _job(document, draft, assumed)
    # Where not all can be kept the last is: an adapter decides more than any other field.
    asked = sorted(("model", *draft.fields), key=lambda path: path == "train.adapter")
    wrong = issues_in(document)
    plan, mended = nearest(document, asked)
    if plan.train.adapter == "none" and get(document, ADAPTER) not in ("none", LORA):
        # An adapter that no plan has is nearer to LoRA than to training every weight.
        was = value_text(ADAPTER, get(document, ADAPTER))
        put(document, ADAPTER, LORA)
        other, changes = nearest(document, asked)
        if other.train.adapter == LORA:
            instead = f"{value_text(ADAPTER, LORA)} is used in place of {was}"
            plan, mended = other, [Issue(ADAPTER, instead), *changes]
    plan = placement.fitted(plan, draft)
    if plan.about == SERVE and not versioned:
        plan = with_fullest_version(plan)
    if plan.about == SERVE and "serve.concurrency" not in draft.fields:
        plan = _as_many_as_fit(plan, assumed)
    if reason := _another_job(draft, plan):
        # What is trained, or by what, is another question: none is answered.
        reasons = {i.field: i.message for i in wrong} or {reason: "it is not planned with the rest"}
        raise PlanError(Issue(path, message) for path, message in reasons.items())
    changed = [_reasoned(issue, plan, wrong) for issue in mended]
    said = tuple(draft.said)
    left, unread = tuple(draft.left), tuple(dict.fromkeys(draft.unread))
    given = {*kinds.values(), *(PurePath(name).name for name in kinds)}
    wants = tuple(
        name
        for name, kind in draft.wants.items()
        if kind not in given and PurePath(name).name not in given
    )
    assumed += (Issue("cluster.node", box) for box in assumed_box(plan))
    stated = {*draft.fields, *(issue.field for issue in changed)}
    lines = undecided(plan, stated if versioned else stated - {"serve.engine"})
    measured = {line.issue.field: line.issue for line in lines}
    decides = tuple(line.issue for line in lines if line.decides)
    others = {issue.field: issue for issue in assumed} | measured
    assumed = [*decides, *(each for each in others.values() if each not in decides)]
    return ReadPlan(
        plan,
        kinds,
        said,
        tuple(assumed),
        tuple(changed),
        left,
        wants,
        unread,
        tuple(draft.failures),
        decides,
        tuple(unsure),
        tuple(draft.differs),
    )


FENCE = re.compile(r"^[ \t]*+```[^\n]*", re.MULTILINE)


def _unfenced(text: Text) -> list[Text]:
    """A post that as a whole is of no known kind, or a message alone, as those of its fenced
    blocks, and of what stands around them, that are; any other text as it is."""
    around, *inside = [text.content] if text.is_long else FENCE.split(text.content)
    if not inside or _reader(text)[1] not in ("", FAILURE):
        return [text]
    parts = ["\n".join((around, *inside[1::2])), *inside[: 2 * MOST : 2]]
    named = [Text(f"{text.name}, part {n}", part) for n, part in enumerate(parts)]
    kinds = {part.name: kind for part in named if (kind := _reader(part)[1])}
    return (
        [part for part in named if part.name in kinds] if {*kinds.values()} - {FAILURE} else [text]
    )


def _about(draft: Draft, kinds: Mapping[str, str]) -> str:
    """What the files are about, of jobs.ABOUT: what they start; a model alone starts nothing."""
    if set(kinds.values()) <= {MODEL, MODELOPT}:
        return ANY
    serves = "serve.engine" in draft.fields and "together.kind" not in draft.fields
    return SERVE if serves else TRAIN


def _refuse_stored(model: Model, draft: Draft) -> None:
    """Raises PlanError where a config.json has its weights in a way that is not planned."""
    how = model.quantization
    if how is not None and not how.word and "serve.weight_dtype" not in draft.fields:
        notes = f" ({'; '.join(how.notes)})" if how.notes else ""
        message = (
            f"weights as {shown(how.method)}{notes} are not planned; take the key out of the file "
            "to plan the model in 16 bits, and set serve.weight_dtype to what has about its bits"
        )
        raise PlanError([Issue("model.quantization_config", message)])


# What torchtune's recipes begin with: a note of how to start them.
TUNE_RUN = re.compile(r"^#[ \t]*tune run [^\n]{0,80}?--nproc[_-]per[_-]node[ =](\d{1,4})\b", re.M)
MAX_HEAD = 4000  # characters of a recipe in which that is looked for


def _unsure(text: Text, kind: str, draft: Draft) -> None:
    """The GPU that a text names, and what a script sets to several values, each where it may go
    another way."""
    key, said, gpu = machines.asked(text.content)
    if gpu:
        draft.put("cluster.gpu", gpu, key, said)
    if kind in TRAINERS:
        nodes, each = machines.counted(text.content)
        draft.nodes = max(draft.nodes, nodes)
        draft.ranks = max(draft.ranks, each * max(1, draft.nodes))
    noted, counted = machines.noted(text.content)
    draft.noted = draft.noted or noted
    if kind == "torchtitan" and not draft.ranks and counted:
        # Its own files begin with "this toml config is a preset for 64 A100 GPUs".
        draft.ranks = counted
        draft.leave("a preset for", f"is a note of the file: {noted}")
    if kind == "torchtune" and (run := TUNE_RUN.search(text.content[:MAX_HEAD])):
        draft.ranks = max(draft.ranks, int(run[1]))
        draft.leave("tune run", f"is a note of the file: the {run[1]} processes that it starts")
    if kind in TRAINERS | SERVERS and text.document is None:
        unread = {key.replace("-", "_") for key in draft.unread}
        found = [o for o in several(text).items() if o[0].replace("-", "_") not in unread]
        for name, values in found[:MOST]:
            all_of = ", ".join(shown(value)[1:-1] for value in values[:MOST])
            draft.leave(
                name, f"the file sets it to {all_of}, by what it is given: the last is read"
            )
        if rest := ", ".join(name for name, _ in found[MOST:][:MOST]):
            draft.leave(rest, "the file sets each to several values: the last is read")


def message_in(text: Text) -> Failure | None:
    """What a text says that is a message that memory ran out, and nothing else; None of another."""
    return failure(text.content) if kind_of(text) == FAILURE else None


def kind_of(text: Text) -> str:
    """What a text is taken for: the program that is given it, 'config.json', or '' for anything
    else, a plan in JSON among it."""
    values = text.document
    if not text.content.strip() or (values is not None and values.keys() <= PLAN):
        return ""
    kinds = [_reader(part)[1] for part in _unfenced(text)]
    return next((kind for kind in kinds if kind != FAILURE), FAILURE)


def _strange(text: Text) -> str:
    """Why a text is of no known kind."""
    if text.is_long and text.content.lstrip()[:1] not in ("{", "["):
        kinds = f"of a script, a YAML or a TOML, {MAX_JSON:,} characters of JSON"
        log = "and of a log what says that memory ran out, which is not in it"
        return f"{over(text.content)} {kinds}, {log}"
    if wrong := broken(text):
        return wrong
    if text.document:
        keys = list(text.document)
        more = f" and {len(keys) - 4} more" if keys[4:] else ""
        return f"has keys of no known program: {', '.join(map(shown, keys[:4]))}{more}"
    found = (
        why for pattern, why in UNKNOWN.items() if re.search(pattern, text.content, re.MULTILINE)
    )
    return next(found, "is of no known kind")


def _join(texts: Sequence[Text], readers: dict[str, Reader]) -> None:
    """Texts that are parts of one job are read with the first of them: files of GPT-NeoX, which its
    command is given together, and modules that set no job's sizes and that a recipe beside them
    calls."""
    parts = [text for text in texts if readers[text.name][1] == "GPT-NeoX"]
    if parts[1:]:
        merged = dict(itertools.chain(*((text.document or {}).items() for text in parts)))
        _read_together(parts, functools.partial(neox.read, merged), readers)
    for job in (text for text in texts if readers[text.name][1] and recipes.jobs(text.content)):
        unread = (text for text in texts if not readers[text.name][1])
        parts = [job, *(text for text in unread if recipes.helps(text.content, job.content))]
        joined = "\n\n".join(text.content for text in parts)
        if parts[1:]:
            _read_together(parts, functools.partial(recipes.read, joined), readers)


def _read_together(
    parts: Sequence[Text], read: Callable[[Draft], None], readers: dict[str, Reader]
) -> None:
    first, *others = parts
    turn, kind, _ = readers[first.name]
    readers[first.name] = turn, kind, read
    readers |= {text.name: (turn, kind, lambda draft: None) for text in others}


def _starters(texts: Sequence[Text], readers: dict[str, Reader]) -> None:
    """Scripts whose command starts a module of Python that is read beside them are read with it."""
    modules = {PurePath(name).name for name, reader in readers.items() if reader[1]}
    modules = {name for name in modules if name.endswith(".py")}
    for text in texts if modules else ():
        started = (
            (command, word)
            for command in text.commands
            for word in command
            if PurePath(word).name in modules
        )
        if not readers[text.name][1] and (found := next(started, None)):
            read = functools.partial(_starts, text.commands, *found)
            readers[text.name] = STARTS, START, read


def _unplanned(text: Text, kind: str) -> str:
    """Why no plan is made of a text whose program is known and is not planned, or ''."""
    if kind in SERVERS:
        return ""
    if why := unplanned.architecture(text.document or {}):
        return why
    found = (unplanned.command(" ".join(words)) for words in text.commands)
    why = next(filter(None, found), "") if text.document is None else ""
    return why or ("" if kind else unplanned.document(text.content[:MAX_SCRIPT]))


def _another_job(draft: Draft, plan: Plan) -> str:
    """The field by which a plan is of another job than its files are; '' where it is of theirs."""
    said = draft.fields
    if said.get(ADAPTER, "none") != "none" and plan.train.adapter == "none":
        return ADAPTER
    # Megatron-DeepSpeed's commands name both.
    same = plan.train.framework in (said.get(FRAMEWORK, plan.train.framework), MEGATRON)
    return "" if same else FRAMEWORK


def _within(file: str, key: str) -> str:
    return f"{file}, {key}" if key else file


@cached  # what a file is taken for is asked before it is read
def _reader(text: Text) -> Reader:
    """When a text is read, what it is, and what reads it; '' where nobody knows it. Files that say
    who shards come first, since what others say means more beside them."""
    values = text.document
    last = len(DOCUMENTS)
    if values is not None:
        sizes = bool(SIZES & values.keys())  # which what starts a training has not
        if CONFIG & values.keys() and (sizes or not trainer.recognise(values)):
            return -1, MODEL, functools.partial(_config, text)
        if quantization.by_modelopt(values):
            return -1, MODELOPT, functools.partial(_quantized, values)
        for turn, (name, recognise, read) in enumerate(DOCUMENTS):
            if recognise(values):
                return turn, name, functools.partial(read, values)
    if text.is_long:
        ran_out = None if values else failure(text.content)
        if ran_out is None:
            return last + 1, "", lambda draft: None
        return last + 1, FAILURE, functools.partial(_failed, ran_out)
    for name, recognises, reads_text in TEXTS:
        if recognises(text.content):
            return last, name, functools.partial(reads_text, text.content)
    if own := servers.called(text.content):
        return last, own[0].label, functools.partial(servers.told, *own)
    found = text.commands
    if started := servers.recognise(found):
        return last, started[0].label, functools.partial(_serves, found, *started)
    if ollama.runs(found):
        return last, "Ollama", functools.partial(ollama.launched, found)
    if any(c[0][:1] != "-" and megatron.recognise(c) for c in found):
        # What a variable lists is an option of these commands, and no job of its own.
        found = tuple(c for c in found if c[0][:1] != "-")
    for name, recognised, reads in COMMANDS:
        whole = next((c for c in found if recognised(c)), None)
        more = {c for c in found if whole and recognised(c) and c[0][:1] != "-" and adds(c, whole)}
        joined = tuple(word for command in found for word in command)
        if whole or recognised(joined):
            read = functools.partial(_launched, found, reads, whole or joined, len(more))
            return last, name, read
    if (ran_out := failure(text.content)) is not None:
        return last + 1, FAILURE, functools.partial(_failed, ran_out)
    if file := next((file for each in found if (file := launchers.described(each))), ""):
        # before what it starts, whose sharding it may say, and after the files that say it better
        command = next(each for each in found if launchers.described(each) == file)
        return STARTS, START, functools.partial(_starts, found, command, file)
    return last, "", functools.partial(_launched, found, _nothing, (), 0)


def _starts(
    commands: Sequence[Sequence[str]], command: Sequence[str], file: str, draft: Draft
) -> None:
    """A command whose job stands in a file."""
    _launched(commands, _nothing, (), 0, draft)
    draft.wants[file] = "what describes the job"
    if launchers.FACTORY_CLI in command:
        launchers.LAUNCHERS.later(Keys({}), draft, "factory")
    methods.beside(command[: command.index(next(w for w in command if w.endswith(file)))], draft)


def _failed(ran_out: Failure, draft: Draft) -> None:
    draft.failures.append(ran_out)
    told = {
        "serve.engine": ran_out.engine,
        "serve.max_seq_len": ran_out.longest,
        "serve.memory_utilization": ran_out.share,
    }
    for path, value in told.items():
        if value:
            draft.put(path, value, "its message")


def _config(text: Text, draft: Draft) -> None:
    config = parse_config(text.content)
    if drafts.family_of(config):
        draft.drafted = config
    else:
        draft.config = config


def _quantized(values: Mapping[str, Any], draft: Draft) -> None:
    draft.quantized = values


def _guesser(draft: Draft, config_of: Callable[[str], str], assumed: list[Issue]) -> None:
    """Who guesses tokens where the files name a draft: its config.json, beside them or by that
    name; else what a word or a preset says of it."""
    known = draft.fields.get(GUESSER, "")
    if draft.drafted is not None:
        draft.fields[GUESSER] = dict(draft.drafted)
        draft.fields.setdefault("serve.draft_tokens", USUAL_GUESSES)
    elif not draft.guesser or known in catalog.model_names():
        return
    elif text := config_of(draft.guesser):
        draft.fields[GUESSER] = dict(parse_config(text))
        message = f"the config.json of {shown(draft.guesser)} on this machine"
        assumed.append(Issue(GUESSER, message))
    elif not known:
        draft.forget("serve.draft_tokens")
        draft.leave(
            "speculative decoding",
            f"{shown(draft.guesser)} is no preset; give its config.json beside the file",
        )


def _launched(
    commands: Sequence[Sequence[str]],
    reads: Callable[[Sequence[str], Draft], None],
    command: Sequence[str],
    others: int,
    draft: Draft,
) -> None:
    """A command that trains, and what starts its processes. `others`: commands that train too."""
    if others:
        draft.leave("the command", f"is the first of {others + 1} that train; the others are not")
    draft.nodes = max((draft.nodes, *map(launchers.nodes, commands)))
    for line in commands:
        launchers.read(line, draft)
    draft.ranks = draft.ranks or launchers.seen(commands)
    reads(command, draft)


def _serves(
    commands: Sequence[Sequence[str]],
    server: servers.Server,
    command: Sequence[str],
    draft: Draft,
) -> None:
    """A command that starts a server; others are told."""
    before = servers.of_checkpoint(server, commands, command)
    servers.read(server, command, draft, servers.settings(commands) | before)
    draft.ranks = max(draft.ranks, launchers.seen(commands))
    if others := servers.others(commands, command, draft):
        named = ", ".join(shown(each)[1:-1] for each in dict.fromkeys(others))
        draft.leave("the command", f"is one of {len(others) + 1} that serve; not read is {named}")


def _nothing(command: Sequence[str], draft: Draft) -> None:
    pass


def _model(
    draft: Draft,
    model: Any,
    otherwise: Any,
    config_of: Callable[[str], str],
    assumed: list[Issue],
) -> Any:
    """The model of the plan: what somebody says, a config.json beside the files, the preset behind
    a name, a config.json by that name, or what there is otherwise."""
    if draft.config is None and (why := unplanned.name(draft.model)) and not config_of(draft.model):
        raise PlanError([Issue("model", f"{shown(draft.model)}: {why}")])
    if model:
        return model
    if draft.config is not None:
        config = with_images(draft.config) if draft.towers else draft.config
        _of_text(draft, config, assumed)
        return dict(config)
    if otherwise and not draft.model:
        label = resolve_model(otherwise).label
        assumed.append(Issue("model", f"{label}, since no file says which"))
        return otherwise
    found = hub.preset(draft.model) if draft.model else ""
    text = config_of(draft.model) if draft.model else ""
    if quantization.ON_DISK in text:
        draft.fields["serve.weight_dtype"] = AS_PUBLISHED
        assumed.append(Issue("model", f"the weights {shown(draft.model)} on this machine"))
        return dict(parse_config(text))
    if text and not found:
        assumed.append(Issue("model", f"the config.json of {shown(draft.model)} on this machine"))
        return dict(parse_config(text))
    if not found and (found := hub.preset(f"{draft.model}{hub.TEXT}")):
        message = f"{shown(draft.model)} is planned without its tower of images: {found}"
        assumed.append(Issue("model", message))
        return found
    if not found and (served := hub.preset(draft.served)):
        message = f"{shown(draft.model)} is no preset, but it is served as {shown(draft.served)}"
        assumed.append(Issue("model", f"{message}: {served}"))
        found = served
    if not found:
        raise PlanError([Issue("model", _unknown(draft.model))])
    language = f"{found}{hub.TEXT}"
    if draft.fields.get(ADAPTER, "none") != "none" and language in catalog.model_names():
        # Programs leave the tower frozen then (LLaMA-Factory's freeze_vision_tower, which is on).
        message = f"{shown(draft.model)} is planned without its frozen tower of images: {language}"
        assumed.append(Issue("model", message))
        return language
    if draft.of_text and language in catalog.model_names():
        message = "is planned without what reads images, which llama.cpp loads by --mmproj or -hf"
        assumed.append(Issue("model", f"{shown(draft.model)} {message}: {language}"))
        return language
    of = draft.fields.get
    left_out = of("serve.engine") is not None and not draft.towers  # by an option of the server's
    if f"{found}{hub.IMAGES}" in catalog.model_names() and not left_out:
        trains = of(ADAPTER, "none") in ("none", LORA) and of("train.framework") in WITH_TOWERS
        if not (draft.towers or (draft.frozen_tower and trains)):
            message = f"{shown(draft.model)} is planned without its tower of images: {found}"
            assumed.append(Issue("model", message))
            return found
        found = f"{found}{hub.IMAGES}"  # which servers load, and some trainers
        if draft.towers:
            _of_text(draft, catalog.model_entry(found)["config"], assumed)
        else:
            if of(ADAPTER, "none") == "none":
                draft.put("train.frozen", SEEING, draft.frozen_tower, "not said: True")
            message = "1 of 768 x 768 pixels in each sequence, since no file says it"
            assumed.append(Issue("train.images", message))
    if found != draft.model and not any(issue.field == "model" for issue in assumed):
        assumed.append(Issue("model", f"{shown(draft.model)} has the shapes of the preset {found}"))
    return _headed(found, draft)


NAMED_HEAD = re.compile(r"(?:For\w+|LMHeadModel|Model)$")


def _headed(preset: str, draft: Draft) -> Any:
    """A preset with the head that the files load it with, where its family has one so."""
    head, classes = draft.head
    if not head:
        return preset
    config = catalog.model_entry(preset)["config"]
    stem = NAMED_HEAD.sub("", next(iter(config.get("architectures") or [""])))
    other = {**config, "architectures": [f"{stem}{head}"], "num_labels": classes}
    try:
        resolve_model(other)
    except PlanError:
        draft.leave(head, "is not planned of this model: its vocabulary is")
        return preset
    return other


def _of_text(draft: Draft, config: Mapping[str, Any], assumed: list[Issue]) -> None:
    """Prompts of a language model that has a tower besides: of text, where nobody says more."""
    if str(config.get("model_type")).endswith(WITH_IMAGES) and IMAGES not in draft.fields:
        draft.fields[IMAGES] = 0
        message = "prompts of text alone, since no file says the load; what reads images is loaded"
        assumed.append(Issue(IMAGES, message))


def _as_stored(model: Any, stored: Mapping[str, Any]) -> Any:
    """A model with what an hf_quant_config.json beside its config.json says."""
    config = catalog.model_entry(model)["config"] if isinstance(model, str) else model
    return quantization.with_modelopt(config, stored)


def _unknown(model: str) -> str:
    """What to do about a model that nobody here knows."""
    gives = "give its config.json beside the file"
    if not model:
        return f"no file says which model it is: {gives}, or choose a preset, {BY_OPTION}"
    if model.startswith(UNSET):
        set_by = f"{shown(model)} stands in a variable that the text does not set"
        return f"{set_by}: {gives}, or choose a preset, {BY_OPTION}"
    if hub.NAME.fullmatch(model):
        gives += f" (the hub has it: huggingface.co/{model}/raw/main/config.json)"
    near = get_close_matches(PurePath(model).name.lower(), catalog.model_names(), 1, 0.75)
    alike = f" as {near[0]}" if near else ""
    return f"{shown(model)} is no preset: {gives}, or choose a preset{alike}, {BY_OPTION}"


BY_OPTION = "on the command line by --model"
MISSING = object()  # is no value of a plan


def _reasoned(issue: Issue, plan: Plan, wrong: Sequence[Issue]) -> Issue:
    """What was changed, with what was wrong: what names the change as a remedy, at the same field
    if it can be, else what stands there, else what alone was wrong."""

    def mends(each: Issue) -> bool:
        return any(r.get(issue.field, MISSING) == get(plan, issue.field) for r in each.remedies)

    nearest_first = sorted(wrong, key=lambda i: (not mends(i), i.field != issue.field))
    since = next(iter(nearest_first), None)
    if since is None or not (mends(since) or since.field == issue.field or len(wrong) == 1):
        return issue
    where = "" if since.field == issue.field else f"{since.field}: "
    return Issue(issue.field, f"{issue.message}, since {where}{since.message}")


def _cluster(
    document: dict[str, Any], draft: Draft, gpu: Any, gpus: int, assumed: list[Issue]
) -> None:
    """The machines: what somebody says, what a launcher says, or the default, which is told."""
    cluster, ranks = document["cluster"], gpus or draft.ranks
    beside = f"; the text has {shown(draft.noted)}" if draft.noted else ""
    named = draft.fields.pop("cluster.gpu", "")
    if gpu:
        draft.said = [said for said in draft.said if said.field != "cluster.gpu"]
    alike = [] if gpu or named else _gpus_of(draft)
    if gpu or named:
        cluster |= {"gpu": gpu or named, "node": None}
    elif alike:
        cluster |= {"gpu": alike[0], "node": None}
        others = f"; so have {', '.join(alike[1:4])}" if alike[1:] else ""
        message = f"{alike[0]}, which has the memory that the message says{others}"
        assumed.append(Issue("cluster.gpu", message))
    else:
        assumed.append(Issue("cluster.gpu", f"{cluster['gpu']}, since no file says which{beside}"))
    if not ranks:
        alone = draft.fields.get("train.framework", "pytorch") == "pytorch"
        least = int(draft.fields.get("together.engine_tp", 1))
        ranks = least if alone else _enough(draft, cluster["gpus"])
        assumed.append(Issue("cluster.gpus", f"{ranks}, since no file says how many{beside}"))
    elif not gpus:
        machines = f", on {draft.nodes} machines" if draft.nodes > 1 else ""
        draft.said.append(Said("processes that it starts", f"{ranks}{machines}", "cluster.gpus"))
    cluster["gpus"] = ranks
    if not gpus and draft.nodes > 1 and ranks % draft.nodes == 0:
        cluster["gpus_per_node"] = ranks // draft.nodes


def _in_16_bits(draft: Draft) -> None:
    """What trains in fp32 is planned in bf16 where the framework has no plan in fp32."""
    path, framework = "train.precision", FRAMEWORKS.get(draft.fields.get("train.framework", ""))
    if draft.fields.get(path) == "fp32" and framework and "fp32" not in framework.copies:
        draft.fields[path] = "bf16-mixed"
        draft.leave(path, f"fp32 is not planned for {framework.label}: bf16-mixed is")


ENDS = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out")  # of a model, beside its layers


def _modules(draft: Draft, model: Model) -> None:
    """Layers that adapters are listed for and the model has not are passed over, as PEFT does."""
    path = "train.lora_modules"
    asked = listed(draft.fields.get(path, NO_LAYER))
    absent = [name for name in asked if name not in linear_layers(model)] if asked else []
    if not absent:
        return
    names = ", ".join(absent)
    draft.leave(path, f"{names}: the model's layers have no such linear layer, so it is left out")
    if ends := [name for name in absent if name in ENDS]:
        draft.leave(
            ", ".join(ends), "is trained too, by PEFT's adapters or whole, and not planned here"
        )
    rest = [name for name in asked if name not in absent]
    if rest:
        draft.fields[path] = ",".join(rest)
    else:
        del draft.fields[path]


def _enough(draft: Draft, gpus: int) -> int:
    """At least so many GPUs, in as many parts as the files cut a job into."""
    tp, pp, cp, ep, etp = (
        draft.fields.get(f"parallel.{cut}", 1) for cut in ("tp", "pp", "cp", "ep", "etp")
    )
    each = pp * math.lcm(tp * cp, ep * etp)
    return int(each * math.ceil(gpus / each))


def _gpus_of(draft: Draft) -> list[str]:
    """GPUs with the memory that a message says, the nearest first."""
    totals = [each.total for each in draft.failures if each.total]
    if not totals:
        return []
    off = {
        n: abs(catalog.accelerator(n).usable_bytes / totals[-1] - 1) for n in catalog.gpu_names()
    }
    return sorted((name for name in off if off[name] < SAME_MEMORY), key=lambda name: off[name])


def _around(document: dict[str, Any], model: Model) -> Around:
    cluster = document["cluster"]
    name, names = cluster["gpu"], catalog.gpu_names()
    if isinstance(name, str) and name not in names:
        raise PlanError([Issue("cluster.gpu", cards.no_preset(name))])
    gpu = Plan.of({"cluster": {"gpu": name}}).accelerator
    each = cluster["gpus_per_node"] or catalog.node(gpu.node).gpus
    return Around(model, gpu, cluster["gpus"], min(each, cluster["gpus"]))


def _job(document: dict[str, Any], draft: Draft, assumed: list[Issue]) -> None:
    """What decides most of a training step, where no file says it."""
    for path in DECIDE:
        if path not in draft.fields:
            said = value_text(path, get(document, path))
            assumed.append(Issue(path, f"{said}, {SINCE}"))


def _load(document: dict[str, Any], draft: Draft, assumed: list[Issue]) -> None:
    """What a server is asked for, which the command that starts it does not say."""
    serve = document["serve"]
    named = {name: serve[name] for name in ("draft_model", "draft_tokens")}
    with contextlib.suppress(PlanError):  # what no plan says is mended later
        usual = Plan.of({"model": document["model"], "job": SERVE, "serve": named})
        for path in OF_THE_MODEL:
            if path not in draft.fields:
                put(document, path, get(usual, path))
    most = draft.fields.get("serve.max_seq_len", 0)
    if most and serve["prompt_len"] + serve["output_len"] > most:
        serve["output_len"] = max(1, most // 4)
        serve["prompt_len"] = max(1, most - serve["output_len"])
    tokens = f"{serve['prompt_len']:,} in and {serve['output_len']:,} out"
    message = f"{serve['concurrency']} requests at once of {tokens}, since no file says the load"
    assumed.append(Issue("serve.concurrency", message))


def _as_many_as_fit(plan: Plan, assumed: list[Issue]) -> Plan:
    """A server's plan with as many requests at once as have room, where nobody says how many: an
    engine that has room for fewer than are assumed starts, and lets the others wait."""
    if not servable(plan.architecture):
        return plan
    usual, most = plan.serve.concurrency, int(Server.of(plan).numbers.serve.max_concurrency)
    if not 0 < most < usual:
        return plan
    fewer = plan.with_changes({"serve.concurrency": most})
    for n, issue in enumerate(assumed):
        if issue.field == "serve.concurrency":
            said = issue.message.removeprefix(f"{usual} ")
            assumed[n] = Issue(issue.field, f"{most} {said}; for {usual} there is no room")
    return fewer


def _steps(document: dict[str, Any], draft: Draft) -> None:
    """Micro-batches of a step, or the sequences of each, where a file says the batch of all
    ranks. Where it says neither, a micro-batch is one sequence."""
    if not draft.batch:
        return
    parallel, train = document["parallel"], document["train"]
    each = parallel["tp"] * parallel["pp"] * parallel["cp"]
    ranks = max(1, document["cluster"]["gpus"] // each)
    known = {p for p in ("micro_batch", "grad_accumulation") if f"train.{p}" in draft.fields}
    if len(known) == 2:
        return
    if not known:
        train["micro_batch"] = 1
    find = "micro_batch" if known == {"grad_accumulation"} else "grad_accumulation"
    at_once = ranks * (train["micro_batch"] if find == "grad_accumulation" else 1)
    if known == {"grad_accumulation"}:
        at_once *= train["grad_accumulation"]
    if draft.batch % at_once == 0:
        draft.put(f"train.{find}", draft.batch // at_once, "global batch", draft.batch)
        train[find] = draft.batch // at_once
    else:
        draft.leave("global batch", f"{draft.batch} is no multiple of {at_once} sequences at once")
