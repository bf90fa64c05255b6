"""Trainer: what transformers' Trainer is told, as YAML, JSON or a command's options; and TRL,
LLaMA-Factory, axolotl and people's own scripts, which are built on it.

Their vocabularies agree where they meet, so the table of transformers has the names of all of them;
what each does where a key is not said is in its own.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from memcore.errors import shown
from memcore.formats import accelerate, deepspeed, hub, launchers, megatron, methods
from memcore.formats.draft import (
    AUTO,
    Draft,
    Keys,
    flag,
    mixed,
    names,
    sections,
    underscored,
)
from memcore.formats.programs import Program
from memcore.formats.texts import options
from memcore.words.training import ALL_LINEAR, AS_LOADED, IN_16_BITS

ATTENDS = ("attn_implementation", "flash_attn", "flash_attention")
# Whose keys these are: each table with what its program does where a key is not said.
HF, AXOLOTL, FACTORY = map(Program, ("transformers", "axolotl", "llamafactory"))
TRL, SWIFT = Program("trl"), Program("ms-swift")
FACTORY_MEGATRON = Program("llamafactory", "megatron")  # whose options it may give
LLAVA, QLORA, QWEN = map(Program, ("llava", "qlora", "qwen-finetune"))
OWN = (AXOLOTL, FACTORY, TRL, LLAVA, QLORA)  # which have keys that no other has
MODEL = HF.listed("model")
MARKS = HF.names["marks"]
LIGER, DTYPES = map(HF.listed, ("liger", "dtypes"))
NOTES: Mapping[str, str] = HF.table["notes"]
# Its examples, and the class by its name.
EXAMPLE = re.compile(
    r"\brun_(?:clm|mlm|glue|qa|seq2seq|summarization|translation)\w*\.py\Z|\ATraining\w*Arguments\Z"
)
# Commands, and a script that is copied under its name, that start one program.
TOOLS = {
    "trl": TRL,
    "llamafactory-cli": FACTORY,
    "axolotl": AXOLOTL,
    "swift": SWIFT,
    "qlora.py": QLORA,
}
TUNERS = ("lora", "qlora", "full", "freeze", "none", "")  # words of an adapter, or of none
DOUBLE = "bnb_4bit_use_double_quant"
MODULE = ("-m", "--module")


def recognise(values: Mapping[str, Any]) -> bool:
    """Whether a document, or a command's options, are of such a program."""
    return len(MARKS & _flat(_plain(values)).keys()) >= 2


def starts(command: Sequence[str]) -> bool:
    """Whether a command gives such a program its options: many of them, or one to a known tool."""
    words, given = options(command)
    known = {word.rpartition("/")[2] for word in words} & TOOLS.keys()
    return recognise(given) or bool(known and set(MODEL) & given.keys())


def launched(command: Sequence[str], draft: Draft) -> None:
    """What a command says after the launcher's own options."""
    starts = [at for at, word in enumerate(command) if word.endswith(".py")]
    modules = [at for at, word in enumerate(command[1:], 1) if command[at - 1] in MODULE]
    words, given = options(command[starts[0] if starts else max(modules, default=0) :])
    read(given, draft, underscored, words)


def read(
    values: Mapping[str, Any],
    draft: Draft,
    form: Callable[[str], str] = str,
    started: Iterable[str] = (),
) -> None:
    """What such a program is told. `form`: how its keys are written; `started`: the words of the
    command before its options."""
    keys = Keys(_flat(_plain(values)), form)
    for key in [key for key in keys.values if key.startswith("no_")]:
        keys.values.setdefault(key.removeprefix("no_"), not keys.on(key))
    started = tuple(started)
    model = keys.one(*MODEL)
    draft.model = draft.model or str(model or "")
    parts = {part for word in started for part in word.split("/")}
    program = next((TOOLS[part] for part in TOOLS if part in parts), _program(keys))
    of_qwen = "finetune.py" in parts and {"use_lora", "lazy_preprocess"} <= keys.values.keys()
    if program is HF and of_qwen:
        program = QWEN
    if "train_mem.py" in parts:  # LLaVA's, which begins with this kernel
        draft.otherwise("train.attention", "flash", "train_mem.py")
    if program is HF and not is_its(keys.values, started):
        marks = [key for key in keys.values if key in MARKS]
        by = ", ".join(map(keys.written, sorted(marks, key=MODEL.__contains__)[:2]))
        draft.unsure = f"taken for transformers' Trainer by {by}, which other programs have too"
    keys.values = {**program.table.get("usual", {}), **keys.values}
    _plugins(keys)
    if "r" in keys.values:  # of PEFT's LoraConfig
        keys.values.setdefault("lora_r", keys.values.pop("r"))
    if program is FACTORY:
        _of_megatron(keys, draft)
        if launchers.FACTORY_CLI in parts:
            launchers.LAUNCHERS.later(keys, draft, "factory")
    _attention(keys)
    _sum_of_lengths(keys, draft)
    HF.read(keys, draft)
    if program is not HF:
        program.read(keys, draft)
    draft.keeps_checkpoints(0, "save_total_limit")
    if keys.inner("accelerator_config").on("split_batches"):
        keys.values["split_batches"] = True
    draft.share_out(keys, "global_batch_size")
    every, each = (draft.count(keys, name) for name in ("batch_size", "micro_batch_size"))
    if program is AXOLOTL and every and each and every % each == 0:
        draft.put("train.grad_accumulation", every // each, keys.written("batch_size"), every)
    if program is FACTORY:  # a GPU each, of Ray's workers
        draft.ranks = draft.ranks or draft.count(keys, "ray_num_workers")
    towards = methods.read(keys, draft, started)
    if towards == "reward" and program is TRL:  # trl 1.16: reward_trainer.py, one score of a class
        draft.head = "ForSequenceClassification", 1
        draft.put("train.cross_entropy", "eager", "reward", "a score, and no vocabulary")
    _referred(program, keys, draft, towards)
    _options(program, keys, draft, towards)
    _sharded(keys, draft)
    _precision(program, keys, draft, _adapter(program, keys, draft))
    _defaults(program, keys, draft)
    if {"train.adapter", "train.offload_parameters"} <= draft.fields.keys() and (
        draft.fields["train.adapter"] != "none"
    ):
        draft.leave("train.offload_parameters", NOTES["offloaded_base"])
    placed = keys.values.get("device_map")
    if isinstance(placed, Mapping) and set(placed) == {""}:  # all of it on one GPU
        keys.take("device_map")
    if str(placed) == AUTO:
        HF.later(keys, draft, "spread")
    still = program.table.get("frozen_tower", "")
    if keys.values.get(still, True) in (True, "true", "True"):
        draft.frozen_tower = still
    HF.end(keys, draft)


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a document, with those in its sections: LLaMA-Factory and others nest them."""
    inner = (
        *("training_arguments", "training_args", "model_args", "model_init_kwargs", "peft"),
        *("model", "training", "trl"),
    )
    found: dict[str, Any] = {}
    values = {name: _document(value) for name, value in values.items()}
    for name in inner:
        if isinstance(values.get(name), Mapping):
            found |= values[name]
    found |= {k: v for k, v in values.items() if not (k in inner and isinstance(v, Mapping))}
    return found if len(OF_A_STEP & found.keys()) > 1 else _deep(values, found)


OF_A_STEP = MARKS - {*MODEL, "micro_batch_size"}  # which say that a file is of a training


def _deep(values: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The same with the keys of all sections, if they say then that it is of a training."""
    more: dict[str, Any] = {}
    for _, section in sections(values, MAX_DEPTH):
        more = {**section, **more}
    plain = {name: value for name, value in more.items() if not isinstance(value, Mapping)}
    return plain if len(OF_A_STEP & plain.keys()) > 1 else found


MAX_DEPTH = 5


def _document(value: Any) -> Any:
    """What a command's option says in JSON, as values; any other as it is."""
    if not (isinstance(value, str) and value.startswith("{")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _plain(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A document of LLaMA-Factory's second form (its v1) as one of the first; any other as it is.
    What it does where nobody says it is its own."""
    if not {"model_class", "train_dataset"} <= values.keys():
        return values
    renamed = FACTORY.table["sections"]
    found = {key: value for key, value in values.items() if key not in ("model_class", *renamed)}
    found = {"bf16": True, "finetuning_type": "full", "micro_batch_size": 1, **found}
    inner = {name: values.get(name) for name in (*renamed, "kernel_config")}
    given = {name: each for name, each in inner.items() if isinstance(each, Mapping)}
    for name, section in given.items():
        for key, other in renamed.get(name, {}).items():
            if section.get(key) not in (None, AUTO):
                found[other] = section[key]
    sharded = str(given.get("dist_config", {}).get("name"))
    if sharded.startswith("fsdp"):
        found |= {"fsdp": "full_shard", "fsdp_version": 2, "fsdp_config": {}}
    if "liger" in str(given.get("kernel_config", {}).get("name")):
        found["enable_liger_kernel"] = True
        found["liger_kernel_config"] = {"fused_linear_cross_entropy": False, "cross_entropy": True}
    if "enable_activation_checkpointing" in found:
        found["gradient_checkpointing"] = found.pop("enable_activation_checkpointing")
    return found


def _program(keys: Keys) -> Program:
    """Whose defaults hold where a key is not said: of several that know the keys, the one that
    alone has one of them."""
    return next((each for each in OWN if each.names["own"] & keys.values.keys()), HF)


def is_its(values: Mapping[str, Any], started: Sequence[str]) -> bool:
    """Whether arguments are transformers' own: a script of its examples has them, or several have
    names that other programs' seldom have."""
    scripts = any(EXAMPLE.search(word) for word in started)
    return scripts or len(HF.names["its"] & values.keys()) > 1


def _defaults(program: Program, keys: Keys, draft: Draft) -> None:
    """What a program does where nobody says it."""
    for each in (program, HF):
        each.read(keys, draft, "defaults")
    for each in dict.fromkeys((program, HF)):
        each.later(keys, draft)


def _plugins(keys: Keys) -> None:
    """axolotl's plugins, of which one does what its key says where nobody says the key."""
    if "CutCrossEntropy" in str(keys.take("plugins")):
        keys.values.setdefault("cut_cross_entropy", True)


def _of_megatron(keys: Keys, draft: Draft) -> None:
    """Megatron's options, if a file has them."""
    marks = FACTORY_MEGATRON.names["marks"] & keys.values.keys()
    if not (marks or keys.on("use_mca") or keys.on("use_megatron_bridge")):
        return
    given = {name: value for name, value in keys.values.items() if name not in keys.taken}
    own = Keys(FACTORY_MEGATRON.rename(given))
    megatron.arguments(own, draft)
    if str(keys.values.get("finetuning_type", "lora")) == "lora":
        draft.put("train.adapter_dtype", "base", "its adapters", "as the weights")
    keys.taken |= own.taken | {"use_mca", "use_megatron_bridge"}


def _attention(keys: Keys) -> None:
    """axolotl's older switches, as the key that has taken their place."""
    on = [name for switch, name in AXOLOTL.table["switches"].items() if keys.on(switch)]
    if keys.values.get("disable_flash_attn2") is not None:  # of 2U1/Qwen-VL-Series-Finetune
        on.append("sdpa" if keys.on("disable_flash_attn2") else "flash_attention_2")
    if on:
        keys.values.setdefault(ATTENDS[0], on[0])


def _sum_of_lengths(keys: Keys, draft: Draft) -> None:
    """A prompt and what is generated after it are one sequence."""
    source, target = (draft.count(keys, f"{end}_max_len") for end in ("source", "target"))
    if source and target:  # of the QLoRA paper's script
        draft.put("train.seq_len", source + target, "source_max_len + target_max_len")
    prompt, answer = (draft.count(keys, f"max_{what}_length") for what in ("prompt", "completion"))
    if prompt and answer:
        key = "max_prompt_length + max_completion_length"
        draft.put("train.seq_len", prompt + answer, key, f"{prompt} + {answer}")
    elif answer:
        draft.leave(keys.written("max_completion_length"), methods.FIRST)


def _referred(program: Program, keys: Keys, draft: Draft, towards: str) -> None:
    """The frozen reference: LLaMA-Factory (train/trainer_utils.py: create_ref_model) and axolotl
    (train.py: setup_reference_model) load it in the dtype that they compute in, TRL and ms-swift
    as the trained model (trl 1.16: dpo_trainer.py, ms-swift 4.6: rlhf_args.py)."""
    dtype = str(keys.values.get("torch_dtype") or keys.values.get("dtype") or "").lower()
    half = program in (FACTORY, AXOLOTL) or dtype in {*HF.words["halves"], AUTO}
    key = keys.named("rl", "stage", "rlhf_type", "beta", "pref_beta", "max_prompt_length")
    methods.referred(keys, draft, towards, key, IN_16_BITS if half else AS_LOADED)


def _options(program: Program, keys: Keys, draft: Draft, towards: str) -> None:
    """What is on or off."""
    HF.read(keys, draft, "switches")
    program.read(keys, draft, "recomputed")
    fused = any(keys.on(name) for name in LIGER)
    parts = keys.inner("liger_kernel_config")
    if towards in methods.LOSSES:
        methods.loss(keys, draft, towards, program in (TRL, HF), fused)
        keys.take(*(key for row in HF.rows["loss"] for key in row.keys))
    else:
        HF.read(keys, draft, "loss")
    if towards not in methods.LOSSES and fused:
        # which puts its own loss into the model, with the head
        whole = parts.take("fused_linear_cross_entropy") is False
        if not whole:
            draft.otherwise("train.cross_entropy", "chunked", keys.named(*LIGER))
        elif parts.on("cross_entropy"):
            draft.put("train.cross_entropy", "fused", parts.written("cross_entropy"), True)


def _adapter(program: Program, keys: Keys, draft: Draft) -> str:
    """The adapter, if there is one, as a word of train.adapter."""
    by_word = str(keys.one("adapter", "finetuning_type") or "").lower()
    if program in (FACTORY, QLORA) and not by_word:
        by_word = "full" if keys.on("full_finetune") else "lora"  # their own default
    wanted = ("use_peft", "use_lora", "lora_enable", "q_lora", "qlora", "lora")
    switched = [keys.on(name) for name in wanted]
    ranked = keys.take("lora_r", "lora_rank") is not None
    bits = draft.count(keys, "bits", "quantization_bit")
    with_what = str(keys.take("quantization_method", "quant_method") or "bnb").lower()
    if with_what not in ("bnb", "bitsandbytes"):
        name = keys.named("quantization_method", "quant_method")
        draft.leave(name, f"{with_what}'s frozen base is planned as bitsandbytes' is")
    four = keys.on("load_in_4bit") or bits == 4 or any(switched[3:5]) or by_word == "qlora"
    eight = keys.on("load_in_8bit") or bits == 8
    if by_word not in TUNERS:
        draft.leave(keys.named("adapter", "finetuning_type"), f"{by_word} is planned as lora")
        by_word = "lora"
    if by_word == "freeze":
        HF.read(keys, draft, "frozen")
    said_no = by_word in ("full", "freeze") or keys.values.get("use_peft") in (False, "False")
    if said_no or not (by_word in ("lora", "qlora") or any(switched) or ranked or four):
        return "none"
    doubles = ("double_quant", "double_quantization", "use_bnb_nested_quant", DOUBLE)
    keys.values |= keys.inner("bnb_config_kwargs").values
    keys.taken |= {key for key in keys.values if key.startswith("bnb_4bit_")}
    # transformers quantizes scales only if told to; axolotl and LLaMA-Factory unless told not to.
    single = not by_word and not program.table.get("double")
    if keys.take(*doubles) is not None:
        single = not keys.on(*doubles)
    kept = hub.stored(draft.model)
    if (four or eight) and kept not in ("int4", "int8-linear"):
        kept = ""  # what is quantized while it is loaded is as the file says
    if kept in ("nf4-double", "int4"):
        four, single = True, kept == "int4"
    eight = eight or kept == "int8"
    if kept in ("int4", "int8"):
        by = " (GPTQ, AWQ)" if kept == "int4" else ""
        instead = "nf4" if kept == "int4" else "int8"
        message = f"a base that is stored in {kept}{by} is planned as bitsandbytes' {instead}"
        draft.leave("model", message)
    adapter = ("qlora-single" if single else "qlora") if four else "lora-8bit" if eight else "lora"
    told = [name for name, on in zip(wanted, switched, strict=True) if on]
    key = keys.named("adapter", "finetuning_type", *told, "lora_r", "lora_rank", "load_in_4bit")
    draft.put("train.adapter", adapter, key)
    program.read(keys, draft, "adapter")
    named = ("lora_target_modules", "lora_target", "target_modules", "lora_modules")
    said = keys.take(*named)
    targets = _expanded(said) if isinstance(said, str) else names(said)
    key = keys.named(*named, "lora_target_linear")
    if keys.on("lora_target_linear") or targets in (["all"], [ALL_LINEAR]):
        draft.put("train.lora_targets", ALL_LINEAR, key, targets or True)
    elif any(not name.replace(".", "").replace("_", "").isalnum() for name in targets):
        draft.leave(key, "targets by a pattern are not read; give their names")
    elif targets:
        draft.put("train.lora_modules", ",".join(targets), key)
    if (four or eight) and keys.on("bf16") and program.table.get("adapters_as_bf16"):
        draft.put("train.adapter_dtype", "base", "bf16", "adapters are cast too")
        draft.put("train.unquantized_dtype", "base", "bf16", "embeddings and head are cast back")
    by_trl = program is TRL and "train.adapter_dtype" not in draft.fields
    if by_trl and (four or eight) and not keys.values.keys() & TRL.names["of_peft"]:
        draft.put("train.adapter_dtype", "base", "TRL's adapters of a quantized model", "bf16")
        loaded = str(next((keys.values[n] for n in DTYPES if n in keys.values), "float32"))
        wide = "fp32" if loaded.rpartition(".")[2] == "float32" else "base"
        draft.put("train.unquantized_dtype", wide, "dtype", loaded)
        if draft.fields["train.unquantized_dtype"] == "base":
            draft.leave("train.unquantized_dtype", NOTES["older_trl"])
    draft.otherwise("train.adapter_dtype", "fp32", "autocast_adapter_dtype")
    if "train.lora_modules" not in draft.fields:
        draft.otherwise("train.lora_targets", program.table.get("targets", "attention"), key)
    return adapter


MOST_PATTERN = 2_000  # characters of a pattern, which is looked through from each of them on


def _expanded(pattern: str) -> list[str]:
    """The names that a pattern of PEFT's ends with: of r'.*(self_attn|mlp).(q|v|up)_proj' q_proj,
    v_proj and up_proj. Nothing of it is run."""
    last = pattern.rstrip("$").replace("\\.", ".").replace("?:", "")
    if "(" not in pattern or len(last) > MOST_PATTERN:
        return names(pattern)
    found = re.search(r"((?:\w|\([\w|]+\))+)\)?$", last)
    if found is None:
        return names(pattern)
    pieces = [piece.strip("()").split("|") for piece in re.findall(r"\([^()]*\)|\w+", found[1])]
    return ["".join(parts) for parts in itertools.islice(itertools.product(*pieces), 64)]


def _sharded(keys: Keys, draft: Draft) -> None:
    """Who shards, where the file itself says it."""
    given = keys.take("deepspeed", "deepspeed_config", "ds_config")
    if isinstance(given, Mapping):
        deepspeed.read(given, draft)
    elif given is not None:
        draft.put("train.framework", "deepspeed", "deepspeed", given)
        draft.wants[str(given)] = "DeepSpeed"
        called, key = str(given).lower(), "the name of DeepSpeed's file"
        if stage := re.search(r"(?:zero|stage|z)[-_]?([0-3])", called):
            draft.put("train.zero", int(stage[1]), key, given)
            parts = [] if "offload" not in called else ["optimizer", "parameters"]
            parts = parts[:1] if stage[1] != "3" else parts
            for part in parts[1:] if "offload_param" in called else parts:
                draft.put(f"train.offload_{part}", "cpu", key, given)
    fsdp, config = keys.take("fsdp"), keys.take("fsdp_config")
    if isinstance(config, Mapping) or fsdp:
        inner = dict(config) if isinstance(config, Mapping) else {}
        version = keys.take("fsdp_version")  # which axolotl has beside it; both have 2 by default
        if version is not None or not {"version", "fsdp_version"} & inner.keys():
            inner["version"] = 2 if version is None else version
        accelerate.shards(Keys(inner), " ".join(names(fsdp)) if fsdp else "", draft)
        if isinstance(config, str):
            draft.wants[config] = "Accelerate"
    if "train.framework" not in draft.fields:
        draft.put("train.framework", "pytorch", "neither DeepSpeed nor FSDP is named")
        draft.put("train.zero", 0, "neither DeepSpeed nor FSDP is named")


def _precision(program: Program, keys: Keys, draft: Draft, adapter: str) -> None:
    """Which dtype the weights have, and the arithmetic."""
    as_stored = any(str(keys.values.get(name)) == AUTO for name in DTYPES)
    dtype = str(keys.one(*DTYPES) or "").lower()
    loaded = HF.words["halves"].get(dtype, "bf16" if as_stored else "")
    if dtype and dtype not in (*HF.words["halves"], "float32", "fp32", "torch.float32", "float"):
        draft.leave(keys.named(*DTYPES), f"{shown(dtype)} is no dtype that is read here")
    pure = keys.on("pure_bf16") or keys.take("bfloat16") is not None
    # Whose weights stay in the dtype that it computes in (LLaMA-Factory: model/adapter.py).
    pure = pure or (program is FACTORY and flag(keys.values.get("use_badam") or False))
    others = keys.on("fp16", "float16")
    if as_stored and others and not keys.on("bf16"):  # whose scaler takes no gradients in fp16
        loaded = ""
    if program is AXOLOTL and keys.values.get("bf16", AUTO) in (None, AUTO) and not others:
        keys.values["bf16"] = True  # where the GPU has it, unless told otherwise
    elif program is TRL and keys.values.get("bf16") is None and not others:
        keys.values["bf16"] = True
    half = "bf16" if keys.on("bf16") or pure else "fp16" if others else loaded
    if not half:
        return
    # axolotl loads weights in the dtype that it computes in, LLaMA-Factory and scripts those of a
    # frozen base; TRL in fp32 unless it is told.
    frozen = adapter != "none" and (program is not TRL or adapter != "lora")
    small = loaded or pure or program is AXOLOTL or frozen
    framework = draft.fields.get("train.framework")
    if framework == "deepspeed" or (framework == "fsdp2" and adapter == "none"):
        precision = mixed(half, sharded=True)
    elif small:
        precision = f"{half}-pure"
    else:
        precision = mixed(half, sharded=False)
    key = keys.named("bf16", "fp16", "bfloat16", *DTYPES)
    draft.put("train.precision", precision, key, half)
