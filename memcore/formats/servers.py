"""Servers: the commands that start vLLM, SGLang, TensorRT-LLM, llama.cpp, TGI and LMDeploy, option
by option.

Sources: vLLM's EngineArgs and CacheConfig, SGLang's ServerArgs
(_handle_gpu_memory_settings), TensorRT-LLM 1.0's trtllm-serve, trtllm-build and LlmArgs,
llama.cpp's tools/server/README.md (2026).
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from memcore.errors import shown
from memcore.formats import hub, placement, python
from memcore.formats.found import (
    Around,
    Draft,
    Keys,
    UnsaidError,
    harmless,
    hyphened,
    number,
    positive,
    share,
    whole,
    word,
)
from memcore.formats.texts import UNSET, adds, module, options
from memcore.units import GiB
from memcore.words.engines import ENGINES, LLAMA_CPP, VLLM, roomy
from memcore.words.stored import GGML

HALVES = {
    **dict.fromkeys(("bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("half", "float16", "fp16", "f16"), "fp16"),
    **dict.fromkeys(("float", "float32", "fp32", "f32"), "fp32"),
}
CACHES = {
    **HALVES,
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), "fp8"),
    **{name: name for name in ("int8", "int4", *GGML)},
}
GGML_CACHES = {"f16": "fp16", "bf16": "bf16", "f32": "fp32", **{name: name for name in GGML}}
ALL_LAYERS = 99  # of a model, as people tell llama.cpp to put all of it on the GPU
# What an option of quantization says where neither the checkpoint's config.json nor its name does:
# of vLLM 0.33's QuantizationMethods and _ONLINE_SHORTHANDS, SGLang 0.5.23's QUANTIZATION_CHOICES,
# LMDeploy's --model-format, TGI's --quantize.
WEIGHTS = {
    **dict.fromkeys(("fp8", "modelopt", "modelopt_fp8", "w8a8_fp8", "fp8_per_tensor"), "fp8"),
    **dict.fromkeys(("fp8_per_channel", "ptpc_fp8", "fbgemm_fp8"), "fp8"),
    "fp8_per_block": "fp8-block",
    **dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin", "auto_gptq", "auto_awq"), "int4"),
    **dict.fromkeys(("auto-round", "inc", "moe_wna16", "marlin", "w4afp8"), "int4"),
    **dict.fromkeys(("bitsandbytes", "bnb", "bitsandbytes-nf4", "bitsandbytes-fp4"), "nf4-double"),
    **dict.fromkeys(("modelopt_fp4", "nvfp4", "nvfp4_per_token", "nvfp4_online"), "nvfp4"),
    **dict.fromkeys(("mxfp4", "gpt_oss_mxfp4"), "mxfp4"),
    **dict.fromkeys(("mxfp8", "modelopt_mxfp8"), "mxfp8"),
    **dict.fromkeys(("int8_per_channel_weight_only", "w8a8_int8", "blockwise_int8"), "int8"),
    **dict.fromkeys(("eetq", "bitsandbytes-int8"), "int8"),
    "mlx_q4": "mlx-4bit",
    "mlx_q8": "mlx-8bit",
}
# Of these the ones that quantize a checkpoint in 16 bits as it is loaded; the others go by what the
# checkpoint says of itself, and engines refuse them where it says nothing.
ONLINE = {
    *("fp8", "fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "ptpc_fp8", "w8a8_fp8"),
    *("bitsandbytes", "bnb", "bitsandbytes-nf4", "bitsandbytes-fp4", "bitsandbytes-int8", "eetq"),
    *("nvfp4_per_token", "nvfp4_online", "mxfp4", "mxfp8", "int8_per_channel_weight_only"),
    *("blockwise_int8", "w8a8_int8", "mlx_q4", "mlx_q8"),
}
WIDE = set(HALVES.values())
# Options that SGLang has and vLLM has not, as its YAML has them; and what holds a model's name.
OF_SGLANG = {"mem_fraction_static", "context_length", "chunked_prefill_size", "tp_size",
             "max_running_requests", "pp_size"}  # fmt: skip
SECTIONS = {"engine_args", "engine_kwargs", "vllm_config", "server_args", "vllm_engine_args"}
NAMED = ("model_url", "model_path", "model", "model_id")
MAX_DEPTH, MOST = 8, 200
GUESSERS = {"eagle": "eagle", "eagle3": "eagle", "mtp": "mtp", "nextn": "mtp", "ngram": "none"}


@dataclass(frozen=True, slots=True)
class Server:
    """How one engine's command is read.

    engine    the word of serve.engine
    program   what its command has in it
    model     the options that name the model, after a word without a dash
    fields    (field, how its value is read, the options that say it)
    more      what else its options say
    left      options that move memory or time, and that no plan says
    other     the program's name, where no plan has its engine: the nearest is planned
    quantized  the options that say how weights are quantized
    """

    engine: str
    program: re.Pattern[str]
    model: tuple[str, ...]
    fields: tuple[tuple[Any, ...], ...]
    more: Callable[[Keys, Draft], None]
    left: Mapping[str, str]
    other: str = ""
    quantized: tuple[str, ...] = ("quantization", "q")

    @property
    def label(self) -> str:
        """What the program is called."""
        return self.other or self.engine


def recognise(commands: Sequence[Sequence[str]]) -> tuple[Server, Sequence[str]] | None:
    """The command, of several, that starts a server, and its engine. A page has many that look like
    one: that which says most counts, and one whose model has a preset before others."""
    found = _started(commands)
    return max(found, key=_says, default=None)


def others(commands: Sequence[Sequence[str]], chosen: Sequence[str], draft: Draft) -> list[str]:
    """Models of the other servers that a text starts, beside the one that a draft has."""
    found = []
    for server, command in _started(commands):
        trial = Draft()
        read(server, command, trial)
        differs = adds(_own(server, command), chosen) or draft.model != trial.model
        if trial.model.strip(".") and differs:
            found.append(trial.model)
    return found


def _started(commands: Sequence[Sequence[str]]) -> list[tuple[Server, Sequence[str]]]:
    return [
        (server, c) for c in commands for server in SERVERS if server.program.search(" ".join(c))
    ]


def _own(server: Server, command: Sequence[str]) -> Sequence[str]:
    """A command from its program on: before it stand the options of a shell or of a container."""
    starts = [
        at
        for at in range(len(command))
        if (found := server.program.search(" ".join(command[at : at + 2])))
        and found.start() < len(command[at])
    ]
    value = re.compile(r"--?\w[\w-]*$")  # an option, whose value the next word may be
    free = [
        at
        for at in starts
        if not at or not value.match(command[at - 1]) or re.match(r"-\w*[cm]$", command[at - 1])
    ]
    return command[max(free) if free else starts[0] :] if starts else command


def _says(started: tuple[Server, Sequence[str]]) -> tuple[bool, bool, int]:
    trial = Draft()
    read(*started, trial)
    return bool(hub.preset(trial.model)), bool(trial.model), len(trial.said)


def configures(values: Mapping[str, Any]) -> bool:
    """Whether a document is what `vllm serve --config` takes: its options, without dashes."""
    return _configured(values) is not None


def of_sglang(values: Mapping[str, Any]) -> bool:
    """Whether a document is what `sglang.launch_server --config` takes."""
    found = _configured(values)
    return found is not None and found[0].engine == "sglang"


def configured(values: Mapping[str, Any], draft: Draft) -> None:
    """What such a document says."""
    if (found := _configured(values)) is not None:
        told(*found, draft)


def _configured(values: Mapping[str, Any]) -> tuple[Server, dict[str, Any]] | None:
    """The engine whose options a document has, and those: by themselves, or as deep in it as files
    of Ray Serve and of vLLM's production stack have them."""
    level: list[tuple[Any, dict[str, Any]]] = [(values, {})]
    within = {id(values)}  # what may hold options: the document itself, and sections for them
    for _ in range(MAX_DEPTH):
        below: list[tuple[Any, dict[str, Any]]] = []
        for each, around in level:
            if isinstance(each, Mapping):
                own = _options(each)
                within |= {id(inner) for name, inner in own.items() if name in SECTIONS}
                for server in (SERVERS[1], SERVERS[0]) if id(each) in within else ():
                    known = {o for _, _, *named in server.fields for o in named if "_" in o}
                    marks = known & own.keys()
                    if server.engine == "sglang":
                        marks &= OF_SGLANG
                    if len(marks) >= 2:
                        extra = own.pop("extra_args", None)
                        more = options(map(str, extra))[1] if isinstance(extra, list) else {}
                        return server, {**around, **own, **more}
                loads = own.get("model_loading_config")
                named = [own.get(name) for name in NAMED]
                if isinstance(loads, Mapping):
                    named = [loads.get("model_source"), loads.get("model_id"), *named]
                model = next((name for name in named if isinstance(name, str)), None)
                here = around | {"model": model} if model else around
                below += [(inner, here) for inner in each.values()]
            elif isinstance(each, list):
                below += [(inner, around) for inner in each]
        level = below[:MOST]
    return None


def told(server: Server, values: Mapping[str, Any], draft: Draft) -> None:
    """What a document says in an engine's own options."""
    _read(server, Keys(values), "", draft)


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    """A document's keys as options have them: max-model-len, maxModelLen."""
    return {
        re.sub(r"(?<=[a-z])([A-Z])", r"_\1", str(name)).replace("-", "_").lower(): value
        for name, value in values.items()
    }


def read(
    server: Server, command: Sequence[str], draft: Draft, environment: Mapping[str, str] = {}
) -> None:
    """What the command says, and the environment that it is started in."""
    own = _own(server, command)
    plain, given = options(own)
    if server.engine != LLAMA_CPP and not server.other:
        given = _in_full(server, given)
    model = _served(own, plain, given)
    _read(server, Keys({**environment, **given}, _option), model, draft)


def _option(key: str) -> str:
    """An option as a command writes it, or a variable of its environment."""
    return key if key.isupper() else hyphened(key)


def settings(commands: Sequence[Sequence[str]]) -> dict[str, str]:
    """Variables of the environment that decide a plan (DECIDING), as commands set them."""
    found = {}
    for command in commands:
        for word_ in command:
            name, given, value = word_.partition("=")
            if given and name in DECIDING:
                found[name] = value
    return found


def _in_full(server: Server, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options with their names in full: Python's argparse takes a beginning that only one has, and
    what follows a dot is a key of the option's (vLLM 0.33, utils/argparse_utils.py)."""
    known, found = _known(server.label), dict[str, Any]()
    for key, value in given.items():
        stem, dot, rest = key.partition(".")
        off = "no_" if stem.startswith("no_") and stem not in known else ""
        short = stem.removeprefix(off)
        longer = [option for option in known if option.startswith(short)]
        if short not in known and len(short) >= SHORTEST and len(longer) == 1:
            stem = off + longer[0]
        found[f"{stem}{dot}{rest}"] = value
    return found


SHORTEST = 4  # letters of a beginning: below are names of one letter and of two


@functools.cache
def _known(label: str) -> frozenset[str]:
    """The names of a server's options, as far as anything is done or said about them."""
    server = next(each for each in SERVERS if each.label == label)
    trial = Keys({"speculative_model": "x", "speculative_algorithm": "x"})
    _read(server, trial, "", Draft())
    names = {each.partition("=")[0] for names in server.left.values() for each in names.split()}
    names |= set(harmless(server.label) if server.label in TABLES else ())
    return frozenset(o for o in trial.taken | names if "*" not in o and len(o) >= SHORTEST)


def _read(server: Server, keys: Keys, model: str, draft: Draft) -> None:
    draft.put("serve.engine", server.engine, f"the command of {server.label}")
    for option in list(keys.values) if server.engine == server.label == VLLM else ():
        short, dot, rest = option.partition(".")
        if short in SHORT:
            keys.values.setdefault(f"{SHORT[short]}{dot}{rest}", keys.values.pop(option))
    draft.nodes = max(draft.nodes, draft.count(keys, "nnodes"))
    if server.other:
        draft.leave(server.other, f"its own engine is not planned: {server.engine}'s is")
    draft.model = draft.model or str(keys.one(*server.model) or model)
    draft.served = draft.served or str(keys.one("served_model_name", "alias", "a") or "")
    for path, how, *named in server.fields:
        draft.read(keys, path, how, *named)
    server.more(keys, draft)
    text_alone = _text_alone(keys)
    draft.towers = _projects(keys, draft) if server.engine == LLAMA_CPP else not text_alone
    draft.of_text = server.engine == LLAMA_CPP and not draft.towers
    if text_alone:
        draft.later.append(_without_tower)
    _weights(server, keys, draft)
    draft.ranks = max(draft.ranks, _shared_out(keys, draft))
    limit = draft.fields.get("serve.max_num_seqs", 0)
    if limit and "serve.concurrency" not in draft.fields:
        draft.put("serve.concurrency", limit, "the most sequences, all of them in use", limit)
    for key in [key for key in keys.rest() if "." in key and not key[:1].isdigit()]:
        stem = key.partition(".")[0]  # what is not read of an option is told with the option
        keys.values.setdefault(stem, keys.take(key))
    left = dict(server.left)
    for why, variables in DECIDING_WHY.items():
        left[why] = f"{left.get(why, '')} {variables}"
    draft.end(keys, left, harmless(server.label) if server.label in TABLES else ())


def _projects(keys: Keys, draft: Draft) -> bool:
    """Whether llama.cpp loads what reads images on the GPU: a file of its own, which a repository's
    files bring along (common/arg.cpp of November 2026, download_mmproj)."""
    if keys.on("no_mmproj", "no_mmproj_offload"):
        return False
    if keys.take("mmproj", "mm", "mmproj_url", "mmu") is None:
        return any(keys.values.get(name) for name in ("hf", "hfr", "hf_repo"))
    draft.later.append(_projector)
    return True


def _projector(draft: Draft, around: Around) -> None:
    if not around.model.tower:
        draft.leave("--mmproj", "what reads images is not known of this model, and not planned")


def _text_alone(keys: Keys) -> bool:
    """Whether a server is told to load no tower: by a switch, or by neither an image nor a video
    for a prompt (vLLM 0.33, model_executor/models/interfaces.py, _mark_tower_model: the limits of
    all that it reads are 0)."""
    switch = keys.on(*TEXT_ALONE)
    limits = str(keys.values.get("limit_mm_per_prompt") or "")
    return switch or all(
        str(keys.values.get(f"limit_mm_per_prompt.{each}")) == "0"
        or re.search(rf"{each}['\"]? ?[:=] ?0\b", limits)
        for each in ("image", "video")
    )


TEXT_ALONE = ("language_model_only", "language_only")


def _without_tower(draft: Draft, around: Around) -> None:
    if around.model.tower:
        message = "a tower of images that is not loaded is planned with the model"
        draft.leave("the language model alone", message)


def _weights(server: Server, keys: Keys, draft: Draft) -> None:
    """How weights are stored: as the config.json of the model says, else its name, else an option
    of quantization; --dtype says it of a model of which none of these says it, since it is the
    dtype of what is not quantized (vLLM's ModelConfig, SGLang's model_config.py)."""
    option, dtype = keys.one(*server.quantized), keys.one("dtype")
    option, dtype = ("" if each is None else str(each).lower() for each in (option, dtype))
    if server.engine == LLAMA_CPP:
        _by_name(draft)
        return
    if "quantize" in server.quantized and option == "bitsandbytes":
        option = "bitsandbytes-int8"  # of TGI, LLM.int8
    named, key = keys.named(*server.quantized), keys.named("dtype")

    def decide(draft: Draft, around: Around) -> None:
        path, stored = "serve.weight_dtype", around.model.quantization
        name, published = hub.stored(draft.model), bool(stored and stored.word)
        files = draft.config or draft.quantized
        exact = published and (files is not None or not hub.preset(draft.model))
        by_hand = option in ONLINE and name in WIDE
        if path in draft.fields:
            return
        if exact or (published and not name):
            draft.put(path, "auto", "config.json", stored.method if stored else "")
        elif name and not by_hand:
            spelled_by_option = name == hub.BARE and WEIGHTS.get(option) == "int4"
            draft.put(path, "int4" if spelled_by_option else name, "the model's name", draft.model)
        elif option in WEIGHTS:
            draft.put(path, WEIGHTS[option], named, option)
            if option not in ONLINE:
                draft.leave(named, f"{option} goes by the checkpoint, and neither its name nor a "
                            f"config.json says more: {WEIGHTS[option]} is planned")  # fmt: skip
        elif option:
            draft.leave(
                named, f"{shown(option)} has no word in a plan; give the model's config.json"
            )
        elif dtype in HALVES:
            draft.put(path, HALVES[dtype], key, dtype)
        elif dtype and dtype != "auto":
            draft.leave(key, f"{shown(dtype)} has no word in a plan")
        planned = draft.fields.get(path)
        if HALVES.get(dtype) == "fp32" and planned not in (None, "fp32"):
            draft.leave(key, "what is not quantized is planned in 16 bits")
        follows = ENGINES[server.engine].follows and planned == "auto"
        if follows and stored and stored.cache and "serve.kv_dtype" not in draft.fields:
            draft.put("serve.kv_dtype", stored.cache, "config.json, whose cache auto follows")

    draft.later.append(decide)


def _by_name(draft: Draft) -> None:
    """How a GGUF file's weights are stored."""
    if "serve.weight_dtype" not in draft.fields and (said := hub.stored(draft.model)):
        draft.put("serve.weight_dtype", said, "the model's name", draft.model)
        hub.tell_type(draft, said, draft.model)


def _shared_out(keys: Keys, draft: Draft) -> int:
    """Ranks in all, and how they share out the experts. vLLM has as many as tensor and data
    parallelism make (FusedMoEParallelConfig); SGLang and TensorRT-LLM count data-parallel attention
    within their tensor-parallel ranks (DpPaddingMode, Mapping.enable_attention_dp)."""
    tp, pp = (draft.fields.get(f"serve.{name}", 1) for name in ("tp", "pp"))
    copies = draft.count(keys, "data_parallel_size", "dp", "dp_size")
    experts = draft.count(keys, "ep", "ep_size", "expert_parallel_size", "moe_expert_parallel_size")
    if keys.on("enable_expert_parallel") or keys.values.get("ep") is True:
        experts = tp * max(1, copies)
    apart = keys.on("enable_dp_attention", "enable_attention_dp")

    def share_out(draft: Draft, around: Around) -> None:
        ranks = draft.fields.get("serve.tp", 1)
        if apart and ranks > 1:
            draft.said = [said for said in draft.said if said.field != "serve.tp"]
            del draft.fields["serve.tp"]
            each = max(1, ranks // (copies or ranks))
            draft.put("serve.tp", each, "data-parallel attention", f"{ranks} ranks")
        over = ranks if apart else experts
        if over > 1 and around.model.experts:
            draft.put("parallel.ep", over, "expert parallelism", over)

    draft.later.append(share_out)
    return int(tp * pp * (1 if apart else max(1, copies)))


# Variables of the environment that decide a plan, of vLLM 0.33's envs.py and SGLang 0.5.23
# (distributed/utils.py, environ.py), by why they are not read.
DECIDING_WHY = {
    "layers are shared out evenly over pipeline stages here": (
        "VLLM_PP_LAYER_PARTITION SGLANG_PP_LAYER_PARTITION"
    ),
    "keys and values of latents are planned as latents": "VLLM_MLA_DISABLE=0|false",
    "ranks of data parallelism are read of options alone": "VLLM_DP_SIZE=1",
    "the CPU is not planned: a GPU is": "VLLM_CPU_KVCACHE_SPACE VLLM_TARGET_DEVICE=cuda",
    "kernels are the engine's own here": (
        "VLLM_ATTENTION_BACKEND VLLM_USE_V1=1 VLLM_USE_BREAKABLE_CUDAGRAPH=0"
    ),
    "set serve.state_dtype": "SGLANG_MAMBA_SSM_DTYPE SGLANG_MAMBA_CONV_DTYPE",
    "has no word in a plan; give the model's config.json": (
        "SGLANG_DSV4_FP4_EXPERTS VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD=0 "
        "VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD=0"
    ),
    "a forward reads at most one chunk here": "SGLANG_MAX_KV_CHUNK_CAPACITY",
}
DECIDING = {each.partition("=")[0] for names in DECIDING_WHY.values() for each in names.split()}
HUGE = 160 * GiB  # of a GPU on which vLLM reads more tokens at once
# vLLM's short names.
SHORT = {
    "n": "nnodes",
    "sc": "speculative_config",
    "cc": "compilation_config",
    "ac": "attention_config",
    "dcp": "decode_context_parallel_size",
    "pcp": "prefill_context_parallel_size",
}
# Calls of Python that start an engine in the program itself, with what is imported for them.
CALLS = {
    "vllm": {"LLM", "EngineArgs", "AsyncEngineArgs"},
    "sglang": {"Engine", "ServerArgs"},
    "tensorrt_llm": {"LLM"},
    "lmdeploy": {"pipeline", "TurbomindEngineConfig", "PytorchEngineConfig"},
}
OFFLINE = "LLM"  # vLLM's class that has a batch of prompts, and no clients
BESIDE = {"KvCacheConfig", "SpeculativeConfig", *CALLS["lmdeploy"]}  # whose values are the engine's
LABELS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt_llm": "tensorrt-llm",
    "lmdeploy": "LMDeploy",
}


def called(content: str) -> tuple[Server, dict[str, Any]] | None:
    """The engine that a module of Python starts by a call, and what the call says."""
    imported = re.findall(r"^[ \t]*(?:from|import)\s+(\w+)", content, re.MULTILINE)
    name = next((each for each in CALLS if each in imported), "")
    if not name:
        return None
    tree, found = module(content), dict[str, Any]()
    constants = python.constants(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func).rpartition(".")[2]
        if function == OFFLINE:
            found[OFFLINE] = name == "vllm"
        if function in CALLS[name] and node.args:
            found.setdefault("model", python.value(node.args[0], constants))
        if function in CALLS[name] | BESIDE:
            for each in node.keywords:
                if each.arg:
                    said = python.value(each.value, constants)
                    unset = None if isinstance(each.value, ast.Call) else f"{UNSET}{each.arg}"
                    found[each.arg] = unset if said is None and not _none(each.value) else said
    server = next(each for each in SERVERS if each.label == LABELS.get(name, name))
    return (server, found) if any(found.values()) else None


def _none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


PRESET = re.compile(r"^\[([^\]\n]+)\][ \t]*$", re.MULTILINE)
SETTING = re.compile(r"^([A-Za-z][\w.-]*)[ \t]*=(.*)$", re.MULTILINE)


def presets(content: str) -> dict[str, dict[str, Any]]:
    """The models of an INI file as `llama-server --models-preset` takes it, by name, each with the
    options that its section and [*] have; {} where it is none."""
    parts = PRESET.split(content)
    sections = {
        name: {key.replace("-", "_"): text.strip() for key, text in SETTING.findall(body)}
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    shared = sections.pop("*", {})
    named = {"m", "model", "hf", "hf_repo"}
    if not any(named & each.keys() for each in sections.values()):
        return {}
    known = {"ctx_size", "c", "n_gpu_layers", "ngl", "ubatch_size", "cache_type_k", "parallel"}
    if not known & {key for each in (shared, *sections.values()) for key in each}:
        return {}
    return {name: shared | each for name, each in sections.items() if named & each.keys()}


def of_presets(content: str, draft: Draft) -> None:
    """The first model of such a file; the others are told."""
    found = presets(content)
    name, *more = found
    _read(next(s for s in SERVERS if s.engine == LLAMA_CPP), Keys(found[name], hyphened), "", draft)
    if more:
        draft.leave(
            f"[{name}]", f"is the model that is read; the file has others: {', '.join(more)}"
        )


MODEL = re.compile(r"[/.~]?[\w.-]+(?:/[\w.-]+)+")  # a name on the hub, or a folder
# Options of several words, which the word of the model cannot follow.
SEVERAL = {"served_model_name", "lora_modules", "cudagraph_capture_sizes", "cuda_graph_bs"}


def _served(command: Sequence[str], plain: Sequence[str], given: dict[str, Any]) -> str:
    """The model, of a command that has it as a word without an option: after 'serve', or after all
    options, whose last would have it as its value (it is taken out of `given`)."""
    if first := _after_serve(command):
        return first
    if "serve" not in command and not any(
        "trtllm-serve" in w or "vllm-openai" in w for w in command
    ):
        return ""
    starts = {"serve", "trtllm-serve", *command[:1]}
    if named := [w for w in plain if w not in starts and (MODEL.fullmatch(w) or hub.preset(w))]:
        return named[-1]
    for option, value in reversed(given.items()):
        words = value if isinstance(value, list) else [value]
        flag = isinstance(value, str) and option.startswith(FLAGS)
        last = words[-1] if len(words) > 1 or flag else None
        if option in SEVERAL or not isinstance(last, str) or last.startswith(UNSET):
            continue
        if MODEL.fullmatch(last) or hub.preset(last):
            given[option] = True if flag else words[0] if len(words) == 2 else words[:-1]
            return last
    return ""


FLAGS = ("enable_", "disable_", "no_", "trust_remote_code", "enforce_eager", "async_scheduling",
         "language_model_only", "headless", "calculate_kv_scales", "use_")  # fmt: skip


def _after_serve(command: Sequence[str]) -> str:
    """The word after 'serve': `vllm serve MODEL`, `trtllm-serve serve MODEL`."""
    starts = ("serve", "vllm-serve", "trtllm-serve", "api_server")
    after = [
        b
        for a, b in pairwise(command)
        if (a in starts or "vllm-openai" in a) and not b.startswith("-")
    ]
    return next((word for word in after if word not in starts), "")


def _drafts(draft: Draft, method: Any, model: Any, tokens: Any) -> None:
    """Who guesses, and how many tokens."""
    kind = str(method or "").lower().replace("_", "").replace("-", "")
    kind = next((k for k in GUESSERS if kind.startswith(k)), kind)
    guesser = GUESSERS.get(kind) or hub.preset(str(model or ""))
    if kind.endswith("mtp"):
        guesser = "mtp"
    elif model and guesser != "none":
        draft.guesser = str(model)  # whose config.json says more than a word does
    if not guesser and not draft.guesser:
        draft.leave("speculative decoding", f"{shown(method or model)} has no word in a plan")
        return
    if guesser:
        draft.put("serve.draft_model", guesser, "speculative decoding", method or model)
    try:
        draft.put("serve.draft_tokens", positive(tokens), "speculative decoding", tokens)
    except UnsaidError:
        draft.put("serve.draft_tokens", 3, "speculative decoding", "tokens not said: 3")


def _vllm(keys: Keys, draft: Draft) -> None:
    draft.otherwise(*CACHED)
    draft.otherwise("serve.memory_utilization", 0.92, "--gpu-memory-utilization")
    eager = keys.on("enforce_eager")
    if eager:
        draft.put("serve.runtime", "eager", "--enforce-eager", True)
    on = keys.one("enable_chunked_prefill") is None or keys.on("enable_chunked_prefill")
    chunked = on and not keys.on("no_enable_chunked_prefill")
    draft.put("serve.prefill", "chunked" if chunked else "whole", "chunked prefill, on by default")
    text = keys.take("speculative_config")
    if text is not None or any(key.startswith("speculative_config.") for key in keys.values):
        try:
            given = text if isinstance(text, Mapping) else json.loads(str(text).replace("'", '"'))
        except (ValueError, RecursionError):
            given = {}
        apart = {
            key: keys.take(f"speculative_config.{key}")
            for key in ("method", "model", "num_speculative_tokens")
        }
        if isinstance(given, Mapping):
            said = {key: given.get(key, value) for key, value in apart.items()}
            _drafts(draft, said["method"], said["model"], said["num_speculative_tokens"])
    elif (model := keys.take("speculative_model")) is not None:  # of versions before 0.9
        _drafts(draft, "ngram" if "ngram" in str(model) else "", model,
                keys.take("num_speculative_tokens"))  # fmt: skip
    elif (method := keys.take("spec_method")) or keys.values.get("spec_model"):
        _drafts(draft, method, keys.take("spec_model"), keys.take("spec_tokens"))
    draft.later.append(functools.partial(_tokens, keys.on(OFFLINE)))
    _second_tier(keys, draft, "kv_offloading_size")
    _beside(keys, draft, "config")


def _second_tier(keys: Keys, draft: Draft, option: str) -> None:
    """A cache in the host's memory, which an option switches on or says the size of."""
    said, shown_as = keys.one(option), hyphened(option)
    if said is None or not keys.on(option) or str(said).strip("0.") == "":
        return
    draft.later.append(functools.partial(_tier, shown_as, said))
    if said is not True:
        why = f"{said}: what runs does not hang on it, so as much of the host's memory is planned"
        draft.leave(shown_as, f"{why} as of the GPU's")


def _tier(option: str, said: Any, draft: Draft, around: Around) -> None:
    if around.model.recurrence:
        draft.leave(option, "states of sequences on the host are not planned, nor this cache there")
    elif around.gpu.unified_memory:
        draft.leave(option, "CPU and GPU have one memory: a second tier in it is not planned")
    else:
        draft.put("serve.offload_kv", "cpu", option, said)


def _tokens(offline: bool, draft: Draft, around: Around) -> None:
    """Tokens of a forward where a plan has others: of the class without clients, and on the largest
    GPUs (EngineArgs.get_batch_defaults of vLLM 0.33)."""
    huge = around.gpu.usable_bytes >= HUGE
    if offline or huge:
        tokens = 16384 if huge or roomy(around.gpu) else 8192
        draft.otherwise("serve.max_batched_tokens", tokens, "max_num_batched_tokens")


def _beside(keys: Keys, draft: Draft, *named: str) -> None:
    """Files with more options, which a command names."""
    for name in named:
        file = keys.one(name)
        if isinstance(file, str):
            draft.wants[file] = "its options"


def _sglang(keys: Keys, draft: Draft) -> None:
    draft.otherwise(*CACHED)
    if keys.on("disable_cuda_graph"):
        draft.put("serve.runtime", "eager", "--disable-cuda-graph", True)
    whole_prompts = str(keys.values.get("chunked_prefill_size")) == "-1"
    draft.put("serve.prefill", "whole" if whole_prompts else "chunked", "--chunked-prefill-size")
    _second_tier(keys, draft, "enable_hierarchical_cache")
    _beside(keys, draft, "config")
    method = keys.take("speculative_algorithm")
    model = keys.take("speculative_draft_model_path", "speculative_draft_model")
    # With the token that is sure; in a chain of guesses one more than steps.
    checked = draft.count(keys, "speculative_num_draft_tokens")
    tokens = checked - 1 if checked > 1 else keys.take("speculative_num_steps")
    keys.take("speculative_num_steps", "speculative_eagle_topk")
    if str(method).lower() == "eagle" and model is None:
        method = "nextn"  # SGLang's EAGLE without a head of its own is the model's
    if method is not None:
        _drafts(draft, method, model, tokens)


def _tensorrt(keys: Keys, draft: Draft) -> None:
    draft.otherwise(*CACHED)
    draft.put("serve.prefill", "chunked" if keys.on("enable_chunked_prefill") else "whole",
              "enable_chunked_prefill")  # fmt: skip
    _second_tier(keys, draft, "host_cache_size")
    _beside(keys, draft, "extra_llm_api_options", "config")
    guess = keys.inner("speculative_config")
    method = guess.take("decoding_type")
    tokens = guess.take("num_nextn_predict_layers", "max_draft_len")
    model = guess.take("speculative_model_dir", "speculative_model")
    if method is not None:
        _drafts(draft, method, model, tokens)


def _llama(keys: Keys, draft: Draft) -> None:
    if said := hub.stored(f"-{keys.one('hff', 'hf_file') or ''}".removesuffix(".gguf")):
        draft.put("serve.weight_dtype", said, "--hf-file")  # of a repository with several
        hub.tell_type(draft, said, f"-{keys.one('hff', 'hf_file')}")
    _values(draft)
    batch = draft.count(keys, "b", "batch_size") or 2048  # of which a forward takes a piece
    if draft.fields.get("serve.max_batched_tokens", ENGINES[LLAMA_CPP].tokens[0]) > batch:
        draft.fields["serve.max_batched_tokens"] = batch
    slots = draft.count(keys, "np", "parallel") or 1
    draft.put("serve.concurrency", slots, "--parallel", slots)
    if keys.one("np", "parallel") is None:  # slots that share the context (tools/server/server.cpp)
        draft.put("serve.max_num_seqs", 4, "--parallel", "not said: 4 slots")
    context = keys.one("c", "ctx_size")
    unset = str(context).startswith(UNSET)
    whole_context = 0 if unset else draft.count(keys, "c", "ctx_size")
    if whole_context:
        draft.put("serve.max_seq_len", whole_context // slots, "--ctx-size", whole_context)
    elif unset:
        draft.leave("--ctx-size", f"{shown(context)} is not set: the context is llama.cpp's own")
    if whole_context:  # the longer context of Qwen's 1M models is all that tells them apart
        draft.model = re.sub(r"[-_]1M(?=[-_.:]|$)", "", draft.model)
    placed = ("ngl", "gpu_layers", "n_gpu_layers")
    layers = keys.one(*placed)
    gpu_layers = 0 if layers in ("all", "auto") else draft.count(keys, *placed)
    devices = [d for d in str(keys.one("dev", "device") or "").split(",") if d and d != "none"]
    parts = [p for p in re.split(r"[,/]", str(keys.one("ts", "tensor_split") or "")) if p]
    if len({*parts} - {"0"}) > 1:
        draft.differ("-ts, --tensor-split", placement.unequal(parts))
    parts = [p for p in parts if p != "0"]
    keys.one("sm", "split_mode")  # whose 'none' is a word of its own
    said_mode = keys.values.get("sm") or keys.values.get("split_mode")
    mode = str(said_mode or placement.LAYER).lower()
    draft.ranks = max(draft.ranks, 1 if mode == placement.NONE else len(devices or parts))
    draft.later.append(placement.share_out(mode, len(devices or parts)))
    if said := keys.one("ot", "override_tensor"):
        draft.later.append(placement.overridden(str(said)))
    if gpu_layers:
        draft.later.append(placement.layers_on_gpu(gpu_layers, "--gpu-layers"))
    moved = ("ot", "override_tensor", "ncmoe", "n_cpu_moe", "cmoe", "cpu_moe", "ts", "tensor_split")
    off = str(keys.one("fit")).lower() in ("off", "0", "false") or layers not in (
        None,
        "auto",
        -1,
        "-1",
    )
    if not off and mode == placement.LAYER and all(keys.values.get(name) is None for name in moved):
        draft.places = placement.LLAMA
    if str(layers) == "0":
        draft.put("serve.gpu_layers", placement.FEWEST, "--gpu-layers", 0)
        draft.differ("--gpu-layers", placement.ON_CPU)
    if keys.on("cmoe", "cpu_moe"):
        draft.later.append(_all_experts)
    if keys.on("nkvo", "no_kv_offload"):
        draft.put("serve.offload_kv", "cpu", "--no-kv-offload", True)
    model = keys.take(
        *("md", "model_draft", "spec_draft_model", "hfd", "hfrd", "hf_repo_draft", "spec_draft_hf")
    )
    tokens = keys.take("draft", "draft_max", "draft_n", "spec_draft_n_max")
    if model is not None:
        _drafts(draft, "", model, tokens)
    elif (kind := keys.one("spec_type")) is not None and str(kind) != "none":
        _drafts(draft, str(kind).removeprefix("draft-"), "", tokens)
    flash = str(keys.one("fa", "flash_attn")).lower()
    if flash in ("off", "0", "false"):
        draft.put("serve.attention", "eager", "--flash-attn", "off")
    elif flash not in ("on", "1", "true", "none"):
        draft.leave("--flash-attn", f"{shown(flash)} is none of on, off and auto")
    draft.otherwise("serve.kv_dtype", "fp16", "--cache-type-k")


def _values(draft: Draft) -> None:
    """Keys and values are kept apart: where one is not said it is in fp16."""
    both = ("serve.kv_dtype", "serve.value_dtype")
    kept, values = (draft.fields.get(path, "fp16") for path in both)
    if both[1] in draft.fields and kept == values:
        draft.fields[both[1]] = "same"
    elif kept != values:
        draft.put(both[1], values, "--cache-type-v", f"not said: {values}")


def _all_experts(draft: Draft, around: Around) -> None:
    draft.put("serve.cpu_moe_layers", around.model.layers, "--cpu-moe", True)


def _tgi(keys: Keys, draft: Draft) -> None:
    keys.take("sharded")
    draft.put("serve.prefill", "whole", "its prompts are read whole")
    prompt, total = (
        draft.count(keys, *named)
        for named in (("max_input_tokens", "max_input_length"), ("max_total_tokens",))
    )
    if prompt and prompt < total:
        draft.put("serve.prompt_len", prompt, "--max-input-tokens")
        draft.put("serve.output_len", total - prompt, "--max-total-tokens", total)


def _lmdeploy(keys: Keys, draft: Draft) -> None:
    draft.put("serve.prefill", "chunked", "its prompts are read in pieces")
    draft.otherwise("serve.block_size", 64, "--cache-block-seq-len")
    draft.otherwise("serve.max_batched_tokens", 8192, "--max-prefill-token-num")
    if keys.on("eager_mode"):
        draft.put("serve.runtime", "eager", "--eager-mode", True)
    if (method := keys.take("speculative_algorithm")) is not None:
        model = keys.take("speculative_draft_model")
        _drafts(draft, method, model, keys.take("speculative_num_draft_tokens"))
    bits = keys.one("quant_policy")
    if str(bits) in QUANT_POLICIES:
        draft.put("serve.kv_dtype", QUANT_POLICIES[str(bits)], "--quant-policy", bits)


QUANT_POLICIES = {"4": "int4", "8": "int8"}


def _chunk(value: Any) -> int:
    if whole(value) < 1:
        raise UnsaidError("reads prompts whole")
    return whole(value)


CACHE = word(CACHES, "has no word in a plan")
CACHED = ("serve.kv_dtype", "bf16", "--kv-cache-dtype")  # auto: as the model computes, in 16 bits
CONFIG = "changes to the model's config; give the config.json as it is then"
NOT_PLANNED = {
    "adapters of a server are not planned": (
        "enable_lora lora_paths lora_modules default_mm_loras max_lora_rank=16 max_loras=1 "
        "max_loras_per_batch=8 max_cpu_loras fully_sharded_loras lora_target_modules "
        "lora_config peft_cache_config"
    ),
    CONFIG: "hf_overrides json_model_override_args rope_scaling rope_theta model_kwargs",
    "a cache that moves elsewhere is not planned": (
        "kv_transfer_config enable_lmcache enable_flexkv cache_transceiver_config "
        "kv_connector_config use_uvm"
    ),
    "the cache takes what is left here": (
        "kv_cache_memory_bytes num_gpu_blocks_override num_gpu_blocks=0 max_total_tokens "
        "max_tokens watermark=0 "
        "max_gpu_total_bytes"
    ),
    "context parallelism of a server is not planned": (
        "decode_context_parallel_size=1 prefill_context_parallel_size=1 attn_cp_size=1 cp_size=1 "
        "cp=1 "
        "enable_prefill_context_parallel enable_nsa_prefill_context_parallel cp_config "
        "context_parallel_size=1 enable_hc_sp"
    ),
    "is not planned": "mem_fraction calculate_kv_scales",
    "a cache in host memory is not planned": "swap_space=0 enable_hisparse hicache_storage_backend",
    "how large a cache in host memory is, and who keeps it, is not planned": (
        "hicache_ratio=2.0 hicache_size=0 kv_offloading_backend=native"
    ),
    "weights in host memory are not planned for this engine": "cpu_offload_gb=0",
    "weights that come from host memory ahead of their layers are not planned": (
        "offload_backend=auto offload_group_size=0|-1"
    ),
    "experts that the CPU computes are not planned": "kt_*",
    "copies of experts are not planned": (
        "enable_eplb ep_num_redundant_experts=0 num_redundant_experts=0 enable_elastic_ep "
        "elastic_ep_backend enable_elastic_expert_backup"
    ),
    "servers that read prompts apart are not read: set serve.prefill": (
        "disaggregation_mode=null server_role encoder_only enable_pdmux"
    ),
    "batches in two halves are not planned": (
        "enable_dbo enable_microbatch enable_two_batch_overlap ubatch_size=0 "
        "enable_single_batch_overlap"
    ),
    "set serve.state_dtype": "mamba_ssm_cache_dtype=auto mamba_cache_dtype=auto mamba_ssm_dtype",
    "how an image encoder is cut over GPUs is not planned": (
        "mm_encoder_tp_mode=weights mm_enable_dp_encoder"
    ),
    "images of a prompt are not read: set serve.images": (
        "limit_mm_per_prompt limit_mm_data_per_request"
    ),
    "set serve.images and serve.image_size": (
        "mm_processor_kwargs mm_process_config skip_mm_profiling mm_encoder_attn_dtype "
        "video_pruning_rate mm_ipc_gpu_memory_gb keep_mm_feature_on_device"
    ),
    "beams are not planned: one sequence a request is": "max_beam_width=1",
    "kernels are the engine's own here: of experts set serve.moe_backend": (
        "moe_a2a_backend=none moe_backend=auto moe_runner_backend=auto all2all_backend moe_config "
        "deepep_mode=auto moe_expert_parallel_backend"
    ),
    "has no word in a plan; give the model's config.json": (
        "torchao_config quantization_config quantization_param_path modelopt_quant "
        "quantize_and_serve rl_quant_profile kv_cache_dtype_skip_layers quant_config "
        "speculative_draft_model_quantization force_dynamic_quantization"
    ),
    "both caches take what their layers need here": "swa_full_tokens_ratio=0.8",
    "windows keep only what they see here": (
        "max_attention_window sink_token_length disable_sliding_window "
        "disable_hybrid_kv_cache_manager "
        "disable_hybrid_swa_memory"
    ),
    "states take what their layers need here": (
        "mamba_full_memory_ratio=0.9 max_mamba_cache_size mamba_block_size mamba_cache_mode "
        "enable_mamba_shared_prefix_checkpoint replayssm_buffer_len use_replayssm engram_config"
    ),
    "graphs are those of the engine's default": (
        "compilation_config* max_seq_len_to_capture max_cudagraph_capture_size cudagraph_* "
        "cuda_graph_* O* piecewise_cudagraph_max_tokens disable_piecewise_cuda_graph "
        "enforce_piecewise_cuda_graph "
        "piecewise_cuda_graph_max_tokens piecewise_cuda_graph_tokens disable_cuda_graph_padding "
        "optimization_level performance_mode=balanced"
    ),
    "kernels are the engine's own here": (
        "enable_torch_compile torch_compile_config attention_backend=auto attn_backend=trtllm "
        "attention_config* kernel_config* linear_backend=auto disable_cascade_attn "
        "prefill_attention_backend decode_attention_backend "
        "fp8_gemm_runner_backend=auto fp4_gemm_runner_backend=auto disable_shared_experts_fusion "
        "disable_chunked_prefix_cache enable_deterministic_inference rl_on_policy_target "
        "mamba_backend=triton model_impl=auto kv_sharing_fast_prefill nsa_prefill_backend "
        "nsa_decode_backend enable_double_sparsity fuse_* backend=pytorch monokernel "
        "sparse_indexer_topk_backend gdn_prefill_backend enable_fused_qk_norm_rope "
        "kda_*_backend mm_encoder_attn_backend mm_attention_backend linear_attn_backend=triton "
        "triton_attention_* flashinfer_mxfp4_moe_precision=default enable_fused_moe_sum_all_reduce "
        "enable_attn_tp_input_scattered enable_batch_sharded_sampling"
    ),
    "all-reduces are the engine's own here": (
        "disable_custom_all_reduce enable_nccl_nvls enable_symm_mem enable_mscclpp "
        "enable_torch_symm_mem enable_flashinfer_allreduce_fusion allreduce_strategy=auto "
        "enforce_disable_flashinfer_allreduce_fusion enable_aiter_allreduce_fusion"
    ),
    "set serve.shared_prefix to the tokens that prompts share": (
        "enable_prefix_caching enable_radix_cache enable_block_reuse=true"
    ),
    "a forward reads at most one chunk here": (
        "max_prefill_tokens=16384 max_num_scheduled_tokens enable_mixed_chunk "
        "enable_dynamic_chunking"
    ),
    "requests are let in as the cache has room here": (
        "schedule_conservativeness=1.0 max_num_active_seqs prefill_max_requests "
        "pp_max_micro_batch_size pp_async_batch_depth=0 scheduler_config "
        "long_prefill_token_threshold=0 max_long_partial_prefills=1 max_num_partial_prefills=1 "
        "batch_wait_* prefill_schedule_interval enable_prefill_delayer "
        "num_continuous_decode_steps=1"
    ),
    "the host works while the GPU does, as it is by default": (
        "no_async_scheduling disable_overlap_schedule disable_overlap_scheduler"
    ),
    "dense layers are cut as the others are": "moe_dense_tp_size enable_dp_lm_head moe_dp_size=1 "
    "moe_tensor_parallel_size moe_cluster_parallel_size enable_lm_head_tp_in_adp",
    "logits have the dtype of the arithmetic here": "enable_fp32_lm_head use_fp64_gumbel",
    "logits that are kept are not planned": (
        "gather_generation_logits gather_context_logits gather_all_token_logits"
    ),
    "sparse attention of the engine is not planned": "sparse_attention_config",
    "images kept in host memory are not planned": "mm_processor_cache_gb",
    "the language model is planned with its tower of images": "mm_encoder_only",
    "several steps at once are not planned": "num_scheduler_steps=1",
    "a server of embeddings or of scores is planned as one that generates": (
        "runner=auto|generate task=auto|generate convert=auto|none pooler_config "
        "override_pooler_config is_embedding"
    ),
    "the CPU is not planned: a GPU is": "device=cuda|auto",
    "a model of diffusion is planned as one that generates token by token": (
        "dllm_algorithm dllm_block_length diffusion_config"
    ),
}
TABLES = (
    "vllm",
    "sglang",
    "tensorrt-llm",
    "llama.cpp",
    "LMDeploy",
    "TGI",
)  # of which presets/harmless.toml has names
FREE = (
    *("kv_cache_free_gpu_memory_fraction", "kv_cache_free_gpu_mem_fraction"),
    "free_gpu_memory_fraction",
)
SERVERS: tuple[Server, ...] = (
    Server(
        "vllm",
        re.compile(
            r"\bvllm serve\b|\btrl vllm-serve\b|vllm\.entrypoints|vllm/vllm-openai|\bvllm-openai\b"
            r"|\bhuggingfaceserver\b"
        ),
        ("model", "model_tag", "model_id"),
        (
            ("serve.tp", positive, "tensor_parallel_size", "tp"),
            ("serve.pp", positive, "pipeline_parallel_size", "pp"),
            ("serve.max_seq_len", positive, "max_model_len"),
            ("serve.max_num_seqs", positive, "max_num_seqs"),
            ("serve.max_batched_tokens", positive, "max_num_batched_tokens"),
            ("serve.memory_utilization", share, "gpu_memory_utilization"),
            ("serve.kv_dtype", CACHE, "kv_cache_dtype"),
            ("serve.block_size", positive, "block_size"),
            ("serve.offload_weights", number, "cpu_offload_gb"),
        ),
        _vllm,
        NOT_PLANNED,
    ),
    Server(
        "sglang",
        re.compile(r"\bsglang\.launch_server\b|\bsglang serve\b|lmsysorg/sglang"),
        ("model_path", "model"),
        (
            ("serve.tp", positive, "tensor_parallel_size", "tp_size", "tp"),
            ("serve.pp", positive, "pipeline_parallel_size", "pp_size", "pp"),
            ("serve.max_seq_len", positive, "context_length"),
            ("serve.max_num_seqs", positive, "max_running_requests"),
            ("serve.max_batched_tokens", _chunk, "chunked_prefill_size"),
            ("serve.memory_utilization", share, "mem_fraction_static"),
            ("serve.kv_dtype", CACHE, "kv_cache_dtype"),
            ("serve.block_size", positive, "page_size"),
        ),
        _sglang,
        NOT_PLANNED,
    ),
    Server(
        "tensorrt-llm",
        re.compile(r"\btrtllm-(?:serve|build|bench)\b"),
        ("model", "model_path", "model_dir", "checkpoint_dir"),
        (
            ("serve.tp", positive, "tp_size", "tensor_parallel_size", "tp"),
            ("serve.pp", positive, "pp_size", "pipeline_parallel_size", "pp"),
            ("serve.max_seq_len", positive, "max_seq_len"),
            ("serve.max_num_seqs", positive, "max_batch_size"),
            ("serve.max_batched_tokens", positive, "max_num_tokens"),
            ("serve.memory_utilization", share, *FREE),
            ("serve.kv_dtype", CACHE, "kv_cache_dtype"),
            ("serve.block_size", positive, "tokens_per_block"),
        ),
        _tensorrt,
        NOT_PLANNED,
    ),
    Server(
        "llama.cpp",
        re.compile(r"\bllama-(server|cli|bench)\b|llama\.cpp|ik_llama|ggml-org/llama"),
        ("m", "model", "hf", "hf_repo", "hfr", "mu", "model_url", "hff", "hf_file"),
        (
            ("serve.kv_dtype", CACHE, "ctk", "cache_type_k"),
            ("serve.value_dtype", CACHE, "ctv", "cache_type_v"),
            ("serve.cpu_moe_layers", positive, "ncmoe", "n_cpu_moe"),
            ("serve.max_batched_tokens", positive, "ub", "ubatch_size"),
        ),
        _llama,
        {
            "an image encoder beside the model is not planned": (
                "image_max_tokens mtmd_batch_max_tokens"
            ),
            "dense layers in part on the CPU are not planned": "ncffn n_cpu_ffn",
            "windows keep only what they see here": "swa_full",
            "prompts kept in host memory are not planned": "cram cache_ram",
            "adapters of a server are not planned": "lora*",
            "it leaves 1 GiB of each GPU free here, and a context of 4,096 tokens": (
                "fitt fit_target fitc fit_ctx"
            ),
            "each slot has its own part of the context here": "kvu kv_unified kv_unified_per_slot",
            "GPUs of other machines are not planned": "rpc",
            "states kept in host memory are not planned": (
                "ctxcp ctx_checkpoints swa_checkpoints cpent checkpoint_every_nt"
            ),
            "a draft model's cache is as the model's here": (
                "ctkd ctvd cd cache_type_k_draft cache_type_v_draft ctx_size_draft "
                "spec_draft_type_k spec_draft_type_v"
            ),
            "control vectors are not planned": "control_vector*",
            CONFIG: "override_kv",
            "a server of embeddings or of scores is planned as one that generates": (
                "embedding embeddings rerank reranking pooling"
            ),
            "kernels of ik_llama.cpp are planned as llama.cpp's": (
                "fmoe fused_moe mla mla_use amb rtr run_time_repack ser ger smgs"
            ),
            "what the CPU computes is not read": "no_op_offload",
            "a draft model stands on the GPU here": (
                "spec_draft_ngl ngld gpu_layers_draft n_gpu_layers_draft *cpu_moe_draft cmoed "
                "ncmoed spec_draft_cpu_moe spec_draft_n*cpu_moe spec_draft_ncmoe otd devd "
                "*override_tensor_draft spec_draft_override_tensor device_draft spec_draft_device"
            ),
        },
    ),
)
SERVERS += (
    Server(
        "vllm",
        re.compile(r"\btext-generation-launcher\b|text-generation-inference"),
        ("model_id",),
        (
            ("serve.tp", positive, "num_shard"),
            ("serve.max_seq_len", positive, "max_total_tokens"),
            ("serve.max_batched_tokens", positive, "max_batch_prefill_tokens"),
            ("serve.max_num_seqs", positive, "max_batch_size", "max_concurrent_requests"),
            ("serve.memory_utilization", share, "cuda_memory_fraction"),
            ("serve.kv_dtype", CACHE, "kv_cache_dtype"),
        ),
        _tgi,
        {
            "the cache takes what is left here": "max_batch_total_tokens",
            "requests are let in as the cache has room here": (
                "waiting_served_ratio max_waiting_tokens"
            ),
            "kernels are vLLM's here": "disable_custom_kernels",
            "logits that are kept are not planned": "enable_prefill_logprobs",
            "guesses of Medusa's heads or of n-grams are not read": "speculate",
            "adapters of a server are not planned": "lora_adapters",
            "graphs are those of the engine's default": "cuda_graphs",
            CONFIG: "rope_*",
        },
        "TGI",
        ("quantize",),
    ),
    Server(
        "vllm",
        re.compile(r"\blmdeploy\b"),
        ("model", "model_path"),
        (
            ("serve.tp", positive, "tp"),
            ("serve.max_seq_len", positive, "session_len"),
            ("serve.max_num_seqs", positive, "max_batch_size"),
            ("serve.max_batched_tokens", positive, "max_prefill_token_num"),
            ("serve.block_size", positive, "cache_block_seq_len"),
        ),
        _lmdeploy,
        NOT_PLANNED
        | {
            "is a share of what weights leave, and vLLM's of all: set serve.memory_utilization": (
                "cache_max_entry_count"
            ),
            "LMDeploy's adapters are not planned": "adapters",
            "its context is not longer here": "rope_scaling_factor=0.0 use_logn_attn",
            "a forward of LMDeploy reads at most one chunk here": (
                "num_tokens_per_iter=0 max_prefill_iters=1"
            ),
        },
        "LMDeploy",
        ("model_format",),
    ),
)
TENSORRT = next(server for server in SERVERS if server.engine == "tensorrt-llm")
