"""verl: reinforcement learning with an engine on the GPUs that train, as Hydra's YAML or as the
words of a command that change it.

Source: verl 0.6's verl/trainer/config (ppo_trainer.yaml, ppo_megatron_trainer.yaml), whose defaults
hold where nothing is said.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from memcore.formats.draft import Around, Draft, Keys, names, sections
from memcore.formats.programs import Program

ROOT = "actor_rollout_ref"
ACTOR, MODEL = f"{ROOT}.actor", f"{ROOT}.model"
MEGATRON = f"{ACTOR}.megatron"
MAX_DEPTH = 12
# ${data.max_prompt_length} and ${oc.select:data.max_prompt_length,512}
_ELSEWHERE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,([^{}]*))?\}")
VERL, TUNED = Program("verl"), Program("verl", "tuned")


def recognise(values: Mapping[str, Any]) -> bool:
    """Whether a document is such a file."""
    return isinstance(values.get(ROOT), Mapping)


TUNES = re.compile(r"\bverl[./]trainer[./](?:fsdp_)?sft_trainer(?:_engine|_ray)?(?:\.py)?$")


def _tunes(command: Sequence[str]) -> bool:
    return any(TUNES.search(word) for word in command)


def starts(command: Sequence[str]) -> bool:
    """Whether a command's words change such a file."""
    return (
        _tunes(command)
        or len([word for word in command if word.lstrip("+").startswith(f"{ROOT}.")]) > 1
    )


def launched(command: Sequence[str], draft: Draft) -> None:
    """What a command says."""
    pairs = (word.lstrip("+").partition("=") for word in command if "=" in word)
    said = {key: _plain(value) for key, _, value in pairs if re.match(r"[\w.]+$", key)}
    (_tuned if _tunes(command) else _read)(said, draft)


def read(values: Mapping[str, Any], draft: Draft) -> None:
    """What a file says."""
    said = (
        (f"{path}{name}", value)
        for path, section in sections(values, MAX_DEPTH)
        for name, value in section.items()
        if not isinstance(value, Mapping)
    )
    _read(dict(said), draft)


def _plain(value: str) -> Any:
    text = value.strip("'\" ")
    return names(text) if text.startswith("[") else text


def _resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that stand elsewhere in the file put in; what nobody has said is none."""
    found = {}
    for key, value in values.items():
        for _ in range(MAX_DEPTH):
            there = _ELSEWHERE.fullmatch(value) if isinstance(value, str) else None
            if not there:
                break
            value = values.get(there[1], there[2])
        found[key] = None if value == "???" else value
    return found


def _read(values: Mapping[str, Any], draft: Draft) -> None:
    keys = Keys(_resolved(values))
    VERL.begin(keys, draft)
    length = VERL.lengths(keys, draft)
    update = draft.count(keys, f"{ACTOR}.ppo_mini_batch_size") or 256
    answers = VERL.rollouts(keys, draft)
    draft.batch = draft.batch or update * answers
    tokens = draft.count(keys, f"{ACTOR}.ppo_max_token_len_per_gpu") or 16_384
    _packed(keys, draft, f"{ACTOR}.use_dynamic_bsz", tokens, length)
    VERL.read(keys, draft)
    if of_all := draft.count(keys, OF_ALL):
        draft.later.append(functools.partial(_shared_out, of_all))
    _policy(keys, draft)
    VERL.read(keys, draft, "together")
    VERL.end(keys, draft)


OF_ALL = f"{ACTOR}.ppo_micro_batch_size"  # of all GPUs, in older files


def _shared_out(of_all: int, draft: Draft, around: Around) -> None:
    draft.put("train.micro_batch", max(1, of_all // around.gpus), OF_ALL, of_all)


def _packed(keys: Keys, draft: Draft, switch: str, tokens: int, length: int) -> None:
    """Micro-batches of so many tokens, where they are switched on."""
    if tokens and keys.on(switch):
        said = f"{tokens:,} tokens at once"
        draft.put("train.micro_batch", max(1, tokens // length), keys.written(switch), said)
        keys.take(OF_ALL)


def _tuned(values: Mapping[str, Any], draft: Draft) -> None:
    """What its fine-tuning is told."""
    own = values.get("engine") == "megatron"
    places = VERL.table["shorter"] | ({"engine.": f"{MEGATRON}."} if own else {})
    longer, shorter = {}, {}
    for key, value in _resolved(values).items():
        start = max((s for s in places if key.startswith(s)), key=len, default="")
        name = places[start] + key[len(start) :] if start else key
        longer[name], shorter[name] = value, key
    keys = Keys(longer, lambda name: shorter.get(name, name))
    TUNED.begin(keys, draft)
    TUNED.read(keys, draft, "length")
    tokens = draft.count(keys, "data.max_token_len_per_gpu")
    length = draft.fields.get("train.seq_len", draft.defaults["train.seq_len"][0])
    _packed(keys, draft, "data.use_dynamic_bsz", tokens, length)
    TUNED.read(keys, draft)
    _policy(keys, draft)
    TUNED.end(keys, draft)


def _policy(keys: Keys, draft: Draft) -> None:
    """Who cuts the policy, and how it is run."""
    of_megatron = any(key.startswith(f"{MEGATRON}.") for key in keys.values)
    own = of_megatron or str(keys.one(f"{ACTOR}.strategy")) == "megatron"
    VERL.read(keys, draft, "megatron" if own else "fsdp")
    VERL.read(keys, draft, "policy")
    if "train.adapter" in draft.fields:
        draft.adapt(names(keys.take(f"{MODEL}.target_modules")), f"{MODEL}.target_modules")
