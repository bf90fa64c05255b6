"""verl: reinforcement learning with an engine on the GPUs that train, as Hydra's YAML or as the
words of a command that change it.

Source: verl 0.6's verl/trainer/config (ppo_trainer.yaml, ppo_megatron_trainer.yaml), whose defaults
hold where nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from memcore.errors import shown
from memcore.formats.draft import Around, Draft, Keys, names, positive
from memcore.formats.programs import Program

ROOT = "actor_rollout_ref"
ACTOR, ROLLOUT, REF, MODEL = (f"{ROOT}.{part}" for part in ("actor", "rollout", "ref", "model"))
FSDP, MEGATRON = f"{ACTOR}.fsdp_config", f"{ACTOR}.megatron"
MAX_DEPTH = 12
PROMPT, ANSWER = "data.max_prompt_length", "data.max_response_length"
TOKENS = 512  # of a prompt and of an answer, where nothing is said
# ${data.max_prompt_length} and ${oc.select:data.max_prompt_length,512}
_ELSEWHERE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,([^{}]*))?\}")
VERL, TUNED = Program("verl"), Program("verl", "tuned")


def recognise(values: Mapping[str, Any]) -> bool:
    """Whether a document is such a file."""
    return isinstance(values.get(ROOT), Mapping)


TUNES = re.compile(r"\bverl[./]trainer[./](?:fsdp_)?sft_trainer(?:_engine|_ray)?(?:\.py)?$")
LENGTH = 1024  # tokens of a sequence, where nothing is said


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
    _read(_flat(values), draft)


def _plain(value: str) -> Any:
    text = value.strip("'\" ")
    return names(text) if text.startswith("[") else text


def _flat(values: Mapping[str, Any], before: str = "", depth: int = MAX_DEPTH) -> dict[str, Any]:
    """All keys by their whole paths."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{before}{name}"
        if isinstance(value, Mapping) and depth:
            found |= _flat(value, f"{path}.", depth - 1)
        else:
            found[path] = value
    return found


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
    length = _length(keys, draft)
    _step(keys, draft, length)
    _policy(keys, draft)
    _beside(keys, draft)
    VERL.end(keys, draft)


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
    keys.take(f"{MODEL}.path", "engine")
    length = draft.read(keys, "train.seq_len", positive, "data.max_length") or LENGTH
    draft.otherwise("train.seq_len", LENGTH, "data.max_length")
    tokens = draft.count(keys, "data.max_token_len_per_gpu")
    if tokens and keys.on("data.use_dynamic_bsz"):
        many = max(1, tokens // length)
        draft.put("train.micro_batch", many, "data.use_dynamic_bsz", f"{tokens:,} tokens at once")
    else:
        draft.read(keys, "train.micro_batch", positive, "data.micro_batch_size_per_gpu",
                   "data.micro_batch_size")  # fmt: skip
        draft.put("train.micro_batch", 4, "data.micro_batch_size_per_gpu", "not said: 4")
    _policy(keys, draft)
    TUNED.end(keys, draft)


def _length(keys: Keys, draft: Draft) -> int:
    """Tokens of a prompt and of the answer after it."""
    prompt, answer = (draft.count(keys, name) or TOKENS for name in (PROMPT, ANSWER))
    draft.put("train.seq_len", prompt + answer, f"{PROMPT} + {ANSWER}", f"{prompt} + {answer}")
    draft.put("serve.prompt_len", prompt, PROMPT)
    draft.put("serve.output_len", answer, ANSWER)
    return prompt + answer


def _step(keys: Keys, draft: Draft, length: int) -> None:
    """Sequences of a micro-batch, of an update, and of a step's rollouts."""
    answers = draft.count(keys, f"{ROLLOUT}.n") or 1
    prompts = draft.count(keys, "data.train_batch_size") or 1024
    update = draft.count(keys, f"{ACTOR}.ppo_mini_batch_size") or 256
    draft.batch = draft.batch or update * answers
    tokens = draft.count(keys, f"{ACTOR}.ppo_max_token_len_per_gpu") or 16_384
    dynamic = f"{ACTOR}.use_dynamic_bsz"
    if keys.on(dynamic):
        many = max(1, tokens // length)
        draft.put("train.micro_batch", many, dynamic, f"{tokens:,} tokens at once")
        keys.take(f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size")
    else:
        draft.read(keys, "train.micro_batch", positive, f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    of_all = draft.count(keys, f"{ACTOR}.ppo_micro_batch_size")  # of all GPUs, in older files

    def shared_out(draft: Draft, around: Around) -> None:
        name = f"{ACTOR}.ppo_micro_batch_size"
        draft.put("train.micro_batch", max(1, of_all // around.gpus), name, of_all)

    draft.rollouts(prompts, answers, "data.train_batch_size")
    if of_all:
        draft.later.append(shared_out)


def _policy(keys: Keys, draft: Draft) -> None:
    """Who cuts the policy, and how it is run."""
    strategy = str(keys.one(f"{ACTOR}.strategy") or "fsdp")
    if strategy not in ("fsdp", "fsdp2", "megatron"):
        draft.leave(keys.written(f"{ACTOR}.strategy"), f"{shown(strategy)} is planned as FSDP2")
    own = strategy == "megatron" or any(key.startswith(f"{MEGATRON}.") for key in keys.values)
    halved = str(keys.one(f"{FSDP}.model_dtype")).rpartition(".")[2] in ("bf16", "bfloat16")
    draft.put("train.precision", "bf16-pure" if halved and not own else "bf16-mixed",
              f"{FSDP}.model_dtype" if halved else f"{ACTOR}.strategy")  # fmt: skip
    if own:
        VERL.read(keys, draft, "megatron")
        if draft.fields.get("train.checkpointing") == "full":
            VERL.read(keys, draft, "recomputed")
    else:
        if str(keys.take(f"{FSDP}.fsdp_size")) != "-1":  # all that there are
            draft.read(keys, "parallel.shard_group", positive, f"{FSDP}.fsdp_size")
        ulysses = f"{ACTOR}.ulysses_sequence_parallel_size"
        if (draft.read(keys, "parallel.cp", positive, ulysses) or 1) > 1:
            draft.leave(
                keys.written(ulysses), "heads exchanged in place of tokens: planned as parallel.cp"
            )
        VERL.read(keys, draft, "fsdp")
    VERL.read(keys, draft, "policy")
    if rank := draft.count(keys, f"{MODEL}.lora_rank", f"{MODEL}.lora.rank"):
        draft.put("train.adapter", "lora", f"{MODEL}.lora_rank", rank)
        draft.put("train.lora_rank", rank, f"{MODEL}.lora_rank", rank)
        draft.adapt(names(keys.take(f"{MODEL}.target_modules")), f"{MODEL}.target_modules")


def _beside(keys: Keys, draft: Draft) -> None:
    """What else runs on the GPUs that train."""
    name = "algorithm.adv_estimator"
    critic = str(keys.one(name) or "gae") == "gae"
    draft.put("together.kind", "ppo" if critic else "grpo", name, keys.values.get(name) or "gae")
    engine = str(keys.one(f"{ROLLOUT}.name") or "vllm")
    if engine in ("vllm", "sglang"):
        draft.put("serve.engine", engine, f"{ROLLOUT}.name", engine)
    else:
        draft.leave(f"{ROLLOUT}.name", f"{engine} is not planned beside training: vLLM is")
    VERL.read(keys, draft, "engine")
    near = keys.on(f"{ACTOR}.use_kl_loss"), keys.on("algorithm.use_kl_in_reward")
    away = keys.on(f"{REF}.fsdp_config.param_offload"), keys.on(f"{REF}.megatron.param_offload")
    where = ("host" if any(away) else "gpu") if any(near) else "none"
    draft.put("together.reference", where, f"{ACTOR}.use_kl_loss", any(near))
    if keys.on("reward_model.enable"):
        away = (keys.on("reward_model.model.fsdp_config.param_offload"), False)
        draft.put("together.reward", "host" if any(away) else "gpu", "reward_model.enable", True)
