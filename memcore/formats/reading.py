"""Reading: files of other programs as one plan, with what they say, what was assumed, and what no
plan says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memcore.errors import Issue, PlanError, shown
from memcore.formats import (
    accelerate,
    deepspeed,
    hub,
    launchers,
    megatron,
    servers,
    torchtitan,
    torchtune,
    trainer,
)
from memcore.formats.found import Draft, Said, underscored
from memcore.formats.texts import Text, options
from memcore.models.config import parse_config
from memcore.plan.link import nearest
from memcore.plan.plan import Plan, get, put, resolve_model, value_text
from memcore.plan.repair import issues_in

# Documents: what to call them, whether one is of the kind, how it is read. The first that knows a
# file reads it.
Known = tuple[str, Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any], Draft], None]]
DOCUMENTS: tuple[Known, ...] = (
    ("DeepSpeed", deepspeed.recognise, deepspeed.read),
    ("Accelerate", accelerate.recognise, accelerate.read),
    ("torchtitan", torchtitan.recognise, torchtitan.read),
    ("torchtune", torchtune.recognise, torchtune.read),
    ("Trainer", trainer.recognise, trainer.read),
    ("vLLM", servers.configures, servers.configured),
)
MODEL = "config.json"
UNUSABLE = "a program's file"
PLAN = frozenset(Plan.model_fields)
CONFIG = {"model_type", "architectures"}
KNOWN = (
    "a config.json; a command or script that starts vLLM, SGLang, llama.cpp, Megatron or a "
    "Trainer; a YAML of TRL, LLaMA-Factory, axolotl, torchtune or vLLM; a file of DeepSpeed or "
    "Accelerate; a TOML of torchtitan"
)


@dataclass(frozen=True, slots=True)
class Found:
    """A plan, and how the files came to it.

    kinds     what each file was taken for, by its name
    said      which key became which field
    assumed   fields that decide much and that no file says, with what stands there
    changed   what was changed, since what the files say together is no plan
    left      keys that move memory or time, and that no plan says, with why
    wants     files that these name; given beside them they are read too
    unread    all other keys
    """

    plan: Plan
    kinds: Mapping[str, str]
    said: tuple[Said, ...]
    assumed: tuple[Issue, ...]
    changed: tuple[Issue, ...]
    left: tuple[Issue, ...]
    wants: tuple[str, ...]
    unread: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        issues = ("assumed", "changed", "left")
        return {
            "plan": self.plan.document(),
            "files": dict(self.kinds),
            "said": [{"key": s.key, "value": s.value, "field": s.field} for s in self.said],
            **{name: [str(issue) for issue in getattr(self, name)] for name in issues},
            "wants": list(self.wants),
            "unread": list(self.unread),
        }


def read_files(texts: Sequence[Text], *, model: str = "", gpu: str = "", gpus: int = 0) -> Found:
    """The plan that files of one job say together.

    model, gpu, gpus: what somebody says beside them: a preset, a name of an accelerator, how many.
    Raises PlanError where no file is of a known kind, or none says which model.
    """
    draft = Draft()
    kinds = {text.name: _read(text, draft) for text in sorted(texts, key=_turn)}
    unknown = [name for name, kind in kinds.items() if not kind]
    if unknown:
        raise PlanError([Issue(name, f"not read; known are {KNOWN}") for name in unknown])
    assumed: list[Issue] = []
    document = Plan().document()
    document["model"] = _model(draft, model, assumed)
    resolve_model(document["model"])
    for path, value in draft.fields.items():
        put(document, path, value)
    _cluster(document, draft, gpu, gpus, assumed)
    _steps(document, draft)
    if "serve.engine" in draft.fields:
        _load(document, draft, assumed)
    else:
        _job(document, draft, assumed)
    # Where not all can be kept the last is: an adapter decides more than any other field.
    asked = sorted(("model", *draft.fields), key=lambda path: path == "train.adapter")
    why = {issue.field: issue.message for issue in issues_in(document)}
    plan, mended = nearest(document, asked)
    changed = [
        Issue(i.field, f"{i.message}, since {why[i.field]}") if i.field in why else i
        for i in mended
    ]
    said = tuple(draft.said)
    left, unread = tuple(draft.left), tuple(dict.fromkeys(draft.unread))
    wants = tuple(dict.fromkeys(draft.wants)) if "DeepSpeed" not in kinds.values() else ()
    return Found(plan, kinds, said, tuple(assumed), tuple(changed), left, wants, unread)


def kind_of(text: Text) -> str:
    """What a text is taken for: the program that is given it, 'config.json', or '' for anything
    else, a plan in JSON among it."""
    values = text.document
    if not text.content.strip() or (values is not None and values.keys() <= PLAN):
        return ""
    try:
        return _read(text, Draft())
    except PlanError:  # of a known kind, and describes no model
        return UNUSABLE


def _turn(text: Text) -> int:
    """Files that say who shards come first, since what others say means more beside them."""
    values = text.document
    known = (recognise(values) for _, recognise, _ in DOCUMENTS) if values is not None else ()
    return next((n for n, is_one in enumerate(known) if is_one), len(DOCUMENTS))


def _read(text: Text, draft: Draft) -> str:
    """Read one text into the draft, and say what it was; '' where nobody knows it."""
    values = text.document
    if (
        values is not None
        and {"model_type", "architectures"} & values.keys()
        and not trainer.recognise(values)
    ):
        draft.config = parse_config(text.content)
        return MODEL
    for name, recognise, read in DOCUMENTS:
        if values is not None and recognise(values):
            read(values, draft)
            return name
    found = text.commands
    if started := servers.recognise(found):
        servers.read(*started, draft)
        return started[0].engine
    for line in found:
        launchers.read(line, draft)
    for name, recognised, reads in (
        ("Megatron", megatron.recognise, megatron.read),
        ("Trainer", _trains, _trainer),
    ):
        whole = next((c for c in found if recognised(c)), None)
        joined = tuple(word for command in found for word in command)
        if whole or recognised(joined):
            reads(whole or joined, draft)
            return name
    return ""


def _trains(command: Sequence[str]) -> bool:
    return trainer.recognise(options(command)[1])


def _trainer(command: Sequence[str], draft: Draft) -> None:
    trainer.read(options(command)[1], draft, underscored)


def _model(draft: Draft, model: str, assumed: list[Issue]) -> Any:
    """The model of the plan: what somebody says, a config.json, or the preset behind a name."""
    if model:
        return model
    if draft.config is not None:
        return dict(draft.config)
    found = hub.preset(draft.model) if draft.model else ""
    if not found and (found := hub.preset(f"{draft.model}{hub.TEXT}")):
        message = f"{shown(draft.model)} is planned without its tower of images: {found}"
        assumed.append(Issue("model", message))
        return found
    if not found:
        named = (
            f"{shown(draft.model)} is no preset"
            if draft.model
            else "no file says which model it is"
        )
        message = f"{named}: give its config.json beside the file, or choose a preset"
        raise PlanError([Issue("model", message)])
    if found != draft.model:
        assumed.append(Issue("model", f"{shown(draft.model)} has the shapes of the preset {found}"))
    return found


def _cluster(
    document: dict[str, Any], draft: Draft, gpu: str, gpus: int, assumed: list[Issue]
) -> None:
    """The machines: what somebody says, what a launcher says, or the default, which is told."""
    cluster, ranks = document["cluster"], gpus or draft.ranks
    if gpu:
        cluster |= {"gpu": gpu, "node": None}
    else:
        assumed.append(Issue("cluster.gpu", f"{cluster['gpu']}, since no file says which"))
    if not ranks:
        alone = draft.fields.get("train.framework", "pytorch") == "pytorch"
        ranks = 1 if alone else cluster["gpus"]
        assumed.append(Issue("cluster.gpus", f"{ranks}, since no file says how many"))
    cluster["gpus"] = ranks
    if not gpus and draft.nodes > 1 and ranks % draft.nodes == 0:
        cluster["gpus_per_node"] = ranks // draft.nodes


def _job(document: dict[str, Any], draft: Draft, assumed: list[Issue]) -> None:
    """What decides most of a training step, where no file says it."""
    for path in ("train.micro_batch", "train.seq_len", "train.checkpointing"):
        if path not in draft.fields:
            said = value_text(path, get(document, path))
            assumed.append(Issue(path, f"{said}, since no file says it"))


def _load(document: dict[str, Any], draft: Draft, assumed: list[Issue]) -> None:
    """What a server is asked for, which the command that starts it does not say."""
    serve = document["serve"]
    most = draft.fields.get("serve.max_seq_len", 0)
    if most and serve["prompt_len"] + serve["output_len"] > most:
        serve["output_len"] = max(1, most // 4)
        serve["prompt_len"] = max(1, most - serve["output_len"])
    tokens = f"{serve['prompt_len']:,} in and {serve['output_len']:,} out"
    message = f"{serve['concurrency']} requests at once of {tokens}, since no file says the load"
    assumed.append(Issue("serve.concurrency", message))


def _steps(document: dict[str, Any], draft: Draft) -> None:
    """Micro-batches of a step, where a file says the batch of all ranks."""
    if not draft.batch or "train.grad_accumulation" in draft.fields:
        return
    parallel, train = document["parallel"], document["train"]
    each = parallel["tp"] * parallel["pp"] * parallel["cp"]
    at_once = train["micro_batch"] * max(1, document["cluster"]["gpus"] // each)
    if draft.batch % at_once == 0:
        train["grad_accumulation"] = draft.batch // at_once
        draft.said.append(Said("global batch", str(draft.batch), "train.grad_accumulation"))
    else:
        draft.leave("global batch", f"{draft.batch} is no multiple of {at_once} sequences at once")
