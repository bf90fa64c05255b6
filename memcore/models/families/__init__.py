"""Families: the architectures: what their config.json says and how they run.

To add one: a row of presets/families/families.toml, which says what its config.json says
(decoders.py reads it), and a file called as its model_type, with a FAMILY, which says how its
layers run; of one whose layers are another's, its name in FAMILIES there. The sources are the
modelling files of transformers 5.23.0.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from memcore.errors import Issue, PlanError, shown
from memcore.models import quantization, unplanned
from memcore.models.config import Keys
from memcore.models.families import (
    bart,
    clip,
    dialects,
    drafts,
    gemma,
    gemma4,
    llava,
    nemotron_nas,
    qwen_tower,
    siglip,
    t5,
    traced,
    whisper,
    wrappers,
)
from memcore.models.families.family import Family, labels
from memcore.models.families.rows import Sizes
from memcore.models.families.twins import TWINS
from memcore.models.model import HARMLESS, Model
from memcore.models.traced.file import MARK
from memcore.tape.structure import ALIKE, CAUSAL, CLASSIFICATION, EMBEDDING, LABELLED, MASKED, SPANS


class _Families(dict[str, Family]):
    """Families by model_type. What a class of one of them is planned as, and no config.json names,
    is found by its name and not listed."""

    def __missing__(self, name: str) -> Family:
        return {"t5_encoder": t5.ENCODER_ALONE, gemma.BOTH_WAYS: gemma.ENCODER,
                "gemma4_small_text": gemma4.SMALL,
                traced.NAME: traced.OF_A_FILE,
                "nemotron_nas": nemotron_nas.BY_BLOCKS, **drafts.DRAFTS}[name]  # fmt: skip


def _found() -> Iterator[tuple[str, Family]]:
    """Those of each file here: its FAMILIES, or its FAMILY under the file's own name."""
    for file in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{file.name}")
        own = getattr(module, "FAMILY", None)
        yield from getattr(module, "FAMILIES", {file.name: own} if own else {}).items()


FAMILIES = _Families(_found())

# What runs before another model's layers, by its own model_type; none of them is trained alone.
TOWERS: dict[str, Family] = {
    "bart_encoder": bart.TOWER,
    "clip_vision_model": clip.TOWER,
    "siglip_vision_model": siglip.TOWER,
    "t5_encoder": t5.TOWER,
    "whisper_encoder": whisper.TOWER,
    **qwen_tower.TOWERS,
}


A_SIZE = "a size such as 7B"


def from_config(config: Mapping[str, Any], label: str = "") -> Model:
    """The Model that a parsed config.json or model file describes. Raises PlanError naming each bad
    key."""
    if MARK in config:
        return traced.model_of(config)
    if why := unplanned.architecture(config):
        raise PlanError([Issue(f"model.{unplanned.CLASS}", why)])
    kind = drafts.family_of(config) or config.get("model_type")
    if kind in (None, "") or (isinstance(kind, str) and not _known_type(kind, config)):
        meant = _by_class(config)
        if meant:
            note = (
                f"{shown(kind)[1:-1] if kind else 'A file without a model_type'} is planned as "
                f"{meant}, whose class it names in architectures."
            )
            found = from_config({**config, "model_type": meant}, label)
            return replace(found, notes=(note, *found.notes))
    if not isinstance(kind, str):
        message = f"must be a word, not {shown(kind)}" if kind is not None else "missing"
        message += "; a Hugging Face config.json has one"
        raise PlanError([Issue("model.model_type", message)])
    label = label or (drafts.label_of(config) if kind in drafts.DRAFTS else f"Your {kind} model")
    if gemma.both_ways(config):
        return from_config({**config, "model_type": gemma.BOTH_WAYS}, label)
    if dialects.of_llm_analysis(config):
        found = from_config(dialects.in_own_words(config), label)
        return replace(found, notes=(dialects.SAID_LITTLE, *found.notes))
    if wrappers.THINKER in config:
        found = from_config(wrappers.thinker(config), label)
        return replace(found, notes=(*found.notes, wrappers.NO_TALKER))
    if wrappers.MIXED in config or (kind == "llava" and not llava.plans(config)):
        return _wrapped(config, label)
    twin = TWINS.get(kind)
    family = _family(kind)
    if family is None:
        if wrappers.is_wrapper(config):
            return _wrapped(config, label)
        message = unplanned.config(kind) or (
            f"architecture {shown(kind)} {unplanned.TRACE}. {_known(kind)}. If its layers are "
            "those of one of them, name that one's class in architectures; if a language model is "
            "a part of it, give that part's config.json; to plan a language model of its size, "
            f"give {A_SIZE}"
        )
        raise PlanError([Issue("model.model_type", message)])
    names = {**family.aliases, **(twin.keys if twin else {})}
    keys = Keys(twin.opened(config) if twin else config, names)
    keys.head = _head(keys, kind, family)
    model = replace(family.config(keys), label=label)
    issues = _sizeless(keys)
    if issues or keys.issues:  # what is wrong with a default says nothing of the file
        taken = {issue.field for issue in issues}
        raise PlanError([*issues, *(i for i in keys.issues if i.field not in taken)])
    reading = keys.reading()
    model = _with_head(keys, model)
    own = (twin.note,) if twin and twin.note else ()
    notes = (*own, *model.notes, *keys.notes, *reading.notes)
    if model.head == EMBEDDING:
        notes = (NO_HEAD, *notes)
    stored = quantization.read(config, family.wide)
    return replace(model, reading=reading, notes=notes, quantization=stored)


def weights_of(model: Model) -> int:
    """Parameters of a model."""
    from memcore.models.counts import parameters  # which counts what families build

    return parameters(model)


def _knows(kind: str) -> bool:
    """Whether the parameters of a model inside another are known, by its model_type."""
    return kind in wrappers.TOWERS or _family(kind) is not None


def inside(config: Mapping[str, Any]) -> tuple[int, Keys]:
    """Parameters of the model that a config inside another describes, without a head, and its
    keys, which have what is wrong with it."""
    kind = config["model_type"]
    if isinstance(kind, str) and kind in wrappers.TOWERS:
        keys = Keys(config, {})
        return Sizes(wrappers.TOWERS[kind], keys)["parameters"], keys
    family, twin = _family(kind) if isinstance(kind, str) else None, TWINS.get(str(kind))
    if family is None:
        keys = Keys(config, {})
        keys.fail("model_type", f"architecture {shown(kind)} is not known, nor approximated")
        return 1, keys
    keys = Keys(
        twin.opened(config) if twin else config, {**family.aliases, **(twin.keys if twin else {})}
    )
    keys.head = EMBEDDING
    model = family.config(keys)
    return 1 if keys.issues else weights_of(_with_head(keys, model)), keys


def _known_type(kind: str, config: Mapping[str, Any]) -> bool:
    if wrappers.THINKER in config:
        return True
    return _family(kind) is not None or wrappers.is_wrapper({**config, "model_type": kind})


def _family(kind: str) -> Family | None:
    """The family that a model_type is planned as."""
    if kind in TWINS:
        return FAMILIES[TWINS[kind].of]
    if kind == gemma.BOTH_WAYS:
        return gemma.ENCODER
    return FAMILIES.get(kind) or drafts.DRAFTS.get(kind)


def _by_class(config: Mapping[str, Any]) -> str:
    """The model_type of the family that alone has the class that a file of another name has."""
    named = config.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        return ""
    found = [name for name, family in FAMILIES.items() if named[0] in family.classes]
    found = found or [name for name, twin in TWINS.items() if named[0] in twin.classes]
    return found[0] if len(found) == 1 else ""


def _known(kind: str) -> str:
    """How many families are planned by hand, and which have a name like it."""
    planned = {**FAMILIES, **TWINS}
    like = difflib.get_close_matches(kind[:40], planned, cutoff=0.7)
    others = f"By hand it plans {len(planned)} families"
    return others + (f", such as {', '.join(like)}" if like else "")


NO_HEAD = (
    "An embedding model has no head and no logits: what its loss makes of the last hidden states "
    "is not counted."
)


def _wrapped(config: Mapping[str, Any], label: str) -> Model:
    """The language model inside a wrapper, with a note about what is left out."""
    kind, inner, place = config["model_type"], wrappers.opened(config), wrappers.place(config)
    inside = inner.get("model_type")
    text = config.get(place)
    if isinstance(text, Mapping) and not (isinstance(inside, str) and _family(inside)):
        inside = _by_class(text) or inside  # a name of its own for a class that is known
        inner["model_type"] = inside
    family = _family(inside) if isinstance(inside, str) else None
    if family is None or not family.decoder or family.bridge:
        message = (
            f"architecture {shown(kind)}, with {shown(inside)} as its language model, "
            f"{unplanned.TRACE}. {_known(str(inside))}. To plan something of its size, give "
            f"{A_SIZE}"
        )
        raise PlanError([Issue(f"model.{place}.model_type", message)])
    try:
        model = from_config(inner, label)
    except PlanError as e:
        raise PlanError(
            Issue(f"model.{place}.{i.field.removeprefix('model.')}", i.message) for i in e.issues
        ) from None
    known = all(map(_knows, wrappers.kinds_of_towers(config)))
    beside = wrappers.beside(config, model.hidden_size) if known else None
    note = wrappers.note(config, beside, weights_of(model))
    return replace(model, notes=(*model.notes, note), left_out=beside or 0)


def _with_head(keys: Keys, model: Model) -> Model:
    """The model with the head of its class."""
    if keys.head in (CAUSAL, MASKED, ALIKE):
        return replace(model, head=keys.head)
    decodes = FAMILIES[model.family].decoder
    own = replace(model.traits, tied_embeddings=False)
    if decodes and keys.head == LABELLED:
        own = replace(own, label_dropout=_drops_before_labels(keys, model.family))
    tells = keys.head in (CLASSIFICATION, LABELLED) or (keys.head == SPANS and not decodes)
    classes = labels(keys) if tells else (2 if keys.head == SPANS else 0)  # where it begins, ends
    return replace(model, head=keys.head, traits=own, classes=classes)


def _drops_before_labels(keys: Keys, family: str) -> bool:
    """Whether a decoder that classifies tokens drops some of what it reads of them: one in ten,
    unless its config says otherwise, or its family (whose own hidden_dropout is 0 by default)."""
    for key in ("classifier_dropout", "hidden_dropout"):
        if keys.config.get(key) is not None:
            return keys.dropout(key, 0.1)
    return family not in ("bloom", "falcon")


def _head(keys: Keys, kind: str, family: Family) -> str:
    """The head of the class that a config names: of one that is not known, an issue."""
    named, key = _class(keys)
    classes = (kind in TWINS and TWINS[kind].classes) or family.classes
    words = {name.lower(): word for name, word in classes.items()}
    if named is None:
        return next(iter(classes.values()))
    if named.lower() not in words:
        drafted = _drafts(named)
        if drafted:
            keys.fail(key, drafted)
            return CAUSAL
        listed = ", ".join(f"{name} ({word})" for name, word in classes.items())
        keys.fail(
            key,
            f"{shown(named)} is not planned, and a {kind} model is not taken for it; of {kind} "
            f"these are: {listed}. If the file is one of them, say so in architectures; of a model "
            f"with a part of its own, take the config.json of the model itself, or {unplanned.HOW}",
        )
        return CAUSAL
    return words[named.lower()]


HEADS_OF_EAGLE = ("Eagle", "Eagle3")  # how the names of classes end that draft for another model


def _drafts(named: str) -> str:
    """What to do with the file of a class that guesses tokens for another model, and is not known;
    '' for another."""
    if not named.endswith(HEADS_OF_EAGLE):
        return ""
    return (
        f"{shown(named)} is not a model but an EAGLE head, which guesses tokens for one, and of a "
        "kind that is not known: plan the model that it drafts for and set serve.draft_model to "
        "eagle, with serve.draft_tokens as many as it guesses"
    )


def _class(keys: Keys) -> tuple[str | None, str]:
    """The class that a config is of, and the key that says so: code of its own where it has some
    and names no class besides."""
    given = keys.config.get("architectures")
    if given:
        first = given[0] if isinstance(given, list) else given
        return (first if isinstance(first, str) else repr(first)), "architectures"
    own = keys.config.get("auto_map")
    for auto in ("AutoModelForCausalLM", "AutoModel"):
        name = own.get(auto) if isinstance(own, Mapping) else None
        if isinstance(name, str):
            return name.rpartition(".")[2], f"auto_map.{auto}"
    return None, ""


WIDTHS = ("hidden_size", "d_model", "n_embd", "n_embed", "dim")
DEPTHS = ("num_hidden_layers", "encoder_layers", "num_layers", "n_layer", "n_layers")
NEAR = 0.5  # of difflib's ratio


def _sizeless(keys: Keys) -> list[Issue]:
    """What a config without a width or a depth is refused with: transformers would take its own
    defaults for them, and make another model without a word."""
    strange = [key for key in keys.unread if key not in HARMLESS]
    issues = []
    for name in (*WIDTHS, *DEPTHS):
        if name not in keys.assumed:
            continue
        what = "hidden size" if name in WIDTHS else "number of layers"
        near = difflib.get_close_matches(name, strange, n=2, cutoff=NEAR)
        message = f"missing; a model without its {what} is not planned"
        if near:
            message += f". Is it {' or '.join(map(shown, near))}, which is not a key of this model?"
        elif strange:
            message += f"; not known: {', '.join(map(shown, strange[:MOST_SHOWN]))}"
        issues.append(Issue(f"model.{name}", message))
    return issues


MOST_SHOWN = 6  # keys that a message repeats
