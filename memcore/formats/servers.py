"""Servers: the commands that start vLLM, SGLang, TensorRT-LLM and llama.cpp, option by option.

Sources: vLLM's EngineArgs and CacheConfig, SGLang's ServerArgs
(_handle_gpu_memory_settings), TensorRT-LLM 1.0's trtllm-serve, trtllm-build and LlmArgs,
llama.cpp's tools/server/README.md (2026).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from memcore.errors import shown
from memcore.formats import hub
from memcore.formats.found import (
    Around,
    Draft,
    Keys,
    UnsaidError,
    hyphened,
    number,
    positive,
    share,
    whole,
    word,
)
from memcore.formats.texts import options
from memcore.words.engines import ENGINES, LLAMA_CPP
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
WEIGHTS = {
    **dict.fromkeys(("fp8", "modelopt", "modelopt_fp8", "w8a8_fp8"), "fp8"),
    **dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin", "auto-round"), "int4"),
    **dict.fromkeys(("bitsandbytes", "bnb"), "nf4-double"),
    **dict.fromkeys(("modelopt_fp4", "nvfp4"), "nvfp4"),
    "mxfp4": "mxfp4",
    "w8a8_int8": "int8-linear",
}
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
    """

    engine: str
    program: re.Pattern[str]
    model: tuple[str, ...]
    fields: tuple[tuple[Any, ...], ...]
    more: Callable[[Keys, Draft], None]
    left: Mapping[str, str]


def recognise(commands: Sequence[Sequence[str]]) -> tuple[Server, Sequence[str]] | None:
    """The command, of several, that starts a server, and its engine. A page has many that look like
    one: that which says most counts, and one whose model has a preset before others."""
    found = [
        (server, c) for c in commands for server in SERVERS if server.program.search(" ".join(c))
    ]
    return max(found, key=_says, default=None)


def _says(started: tuple[Server, Sequence[str]]) -> tuple[bool, bool, int]:
    trial = Draft()
    read(*started, trial)
    return bool(hub.preset(trial.model)), bool(trial.model), len(trial.said)


def configures(values: Mapping[str, Any]) -> bool:
    """Whether a document is what `vllm serve --config` takes: its options, without dashes."""
    known = {option for _, _, *named in SERVERS[0].fields for option in named if "_" in option}
    return len(known & _options(values).keys()) >= 2


def configured(values: Mapping[str, Any], draft: Draft) -> None:
    """What such a document says."""
    told(SERVERS[0], _options(values), draft)


def told(server: Server, values: Mapping[str, Any], draft: Draft) -> None:
    """What a document says in an engine's own options."""
    _read(server, Keys(values), "", draft)


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    inner = values.get("engine_args")
    values = inner if isinstance(inner, Mapping) else values
    return {name.replace("-", "_"): value for name, value in values.items()}


def read(server: Server, command: Sequence[str], draft: Draft) -> None:
    """What the command says."""
    _read(server, Keys(options(command)[1], hyphened), _served(command), draft)


def _read(server: Server, keys: Keys, model: str, draft: Draft) -> None:
    draft.put("serve.engine", server.engine, f"the command of {server.engine}")
    draft.model = draft.model or str(keys.one(*server.model) or model)
    for path, how, *named in server.fields:
        draft.read(keys, path, how, *named)
    server.more(keys, draft)
    if "serve.weight_dtype" not in draft.fields and (said := hub.stored(draft.model)):
        draft.put("serve.weight_dtype", said, "the model's name", draft.model)
        if other := hub.unplanned(draft.model):
            draft.leave(other, f"a type of llama.cpp's that is not planned: {said} is the nearest")
    draft.ranks = max(draft.ranks, _shared_out(keys, draft))
    limit = draft.fields.get("serve.max_num_seqs", 0)
    if limit and "serve.concurrency" not in draft.fields:
        draft.put("serve.concurrency", limit, "the most sequences, all of them in use", limit)
    draft.end(keys, server.left)


def _shared_out(keys: Keys, draft: Draft) -> int:
    """Ranks in all, and how they share out the experts. vLLM has as many as tensor and data
    parallelism make (FusedMoEParallelConfig); SGLang and TensorRT-LLM count data-parallel attention
    within their tensor-parallel ranks (DpPaddingMode, Mapping.enable_attention_dp)."""
    tp, pp = (draft.fields.get(f"serve.{name}", 1) for name in ("tp", "pp"))
    copies = draft.count(keys, "data_parallel_size", "dp", "dp_size")
    experts = draft.count(keys, "ep", "ep_size", "expert_parallel_size", "moe_expert_parallel_size")
    if keys.on("enable_expert_parallel"):
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


def _served(command: Sequence[str]) -> str:
    """The word after 'serve': `vllm serve MODEL`, `trtllm-serve serve MODEL`."""
    starts = ("serve", "trtllm-serve")
    after = [b for a, b in pairwise(command) if a in starts and not b.startswith("-")]
    return next((word for word in after if word != "serve"), "")


def _drafts(draft: Draft, method: Any, model: Any, tokens: Any) -> None:
    """Who guesses, and how many tokens."""
    kind = str(method or "").lower().replace("_", "").replace("-", "")
    kind = next((k for k in GUESSERS if kind.startswith(k)), kind)
    guesser = GUESSERS.get(kind) or hub.preset(str(model or ""))
    if kind.endswith("mtp"):
        guesser = "mtp"
    if not guesser:
        draft.leave("speculative decoding", f"{shown(method or model)} has no word in a plan")
        return
    draft.put("serve.draft_model", guesser, "speculative decoding", method or model)
    try:
        draft.put("serve.draft_tokens", positive(tokens), "speculative decoding", tokens)
    except UnsaidError:
        draft.put("serve.draft_tokens", 3, "speculative decoding", "tokens not said: 3")


def _vllm(keys: Keys, draft: Draft) -> None:
    draft.otherwise("serve.memory_utilization", 0.92, "--gpu-memory-utilization")
    eager = keys.on("enforce_eager")
    if eager:
        draft.put("serve.runtime", "eager", "--enforce-eager", True)
    on = keys.one("enable_chunked_prefill") is None or keys.on("enable_chunked_prefill")
    chunked = on and not keys.on("no_enable_chunked_prefill")
    draft.put("serve.prefill", "chunked" if chunked else "whole", "chunked prefill, on by default")
    keys.take("m")  # python -m
    text = keys.take("speculative_config")
    if text is not None:
        try:
            given = json.loads(str(text).replace("'", '"'))
        except ValueError:
            given = {}
        if isinstance(given, dict):
            tokens = given.get("num_speculative_tokens")
            _drafts(draft, given.get("method"), given.get("model"), tokens)


def _sglang(keys: Keys, draft: Draft) -> None:
    if keys.on("disable_cuda_graph"):
        draft.put("serve.runtime", "eager", "--disable-cuda-graph", True)
    whole_prompts = str(keys.values.get("chunked_prefill_size")) == "-1"
    draft.put("serve.prefill", "whole" if whole_prompts else "chunked", "--chunked-prefill-size")
    keys.take("m")  # python -m
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
    draft.put("serve.prefill", "chunked" if keys.on("enable_chunked_prefill") else "whole",
              "enable_chunked_prefill")  # fmt: skip
    guess = keys.inner("speculative_config")
    method = guess.take("decoding_type")
    tokens = guess.take("num_nextn_predict_layers", "max_draft_len")
    model = guess.take("speculative_model_dir", "speculative_model")
    if method is not None:
        _drafts(draft, method, model, tokens)


def _llama(keys: Keys, draft: Draft) -> None:
    _values(draft)
    batch = draft.count(keys, "b", "batch_size") or 2048  # of which a forward takes a piece
    if draft.fields.get("serve.max_batched_tokens", ENGINES[LLAMA_CPP].tokens[0]) > batch:
        draft.fields["serve.max_batched_tokens"] = batch
    slots = draft.count(keys, "np", "parallel") or 1
    draft.put("serve.concurrency", slots, "--parallel", slots)
    whole_context = draft.count(keys, "c", "ctx_size")
    if whole_context:
        draft.put("serve.max_seq_len", whole_context // slots, "--ctx-size", whole_context)
    placed = ("ngl", "gpu_layers", "n_gpu_layers")
    gpu_layers = draft.count(keys, *placed)
    if 0 < gpu_layers < ALL_LAYERS:
        draft.put("serve.gpu_layers", gpu_layers, "--gpu-layers", gpu_layers)
    elif str(keys.one(*placed)) == "0":
        draft.leave(
            "--gpu-layers", "0: a model on the CPU alone is not planned; all are on the GPU"
        )
    if keys.on("cmoe", "cpu_moe"):
        draft.later.append(_all_experts)
    if keys.on("nkvo", "no_kv_offload"):
        draft.put("serve.offload_kv", "cpu", "--no-kv-offload", True)
    model = keys.take("md", "model_draft", "spec_draft_model", "hfd", "hf_repo_draft")
    tokens = keys.take("draft", "draft_max", "draft_n", "spec_draft_n_max")
    if model is not None:
        _drafts(draft, "", model, tokens)
    elif (kind := keys.one("spec_type")) is not None and str(kind) != "none":
        _drafts(draft, str(kind).removeprefix("draft-"), "", tokens)
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


def _chunk(value: Any) -> int:
    if whole(value) < 1:
        raise UnsaidError("reads prompts whole")
    return whole(value)


CACHE = word(CACHES, "has no word in a plan")
WEIGHT = word(WEIGHTS, "has no word in a plan; give the model's config.json")
_COMMON = (
    ("serve.weight_dtype", WEIGHT, "quantization", "q"),
    ("serve.weight_dtype", word(HALVES), "dtype"),
)
NOT_PLANNED = {
    "enable_lora": "adapters of a server are not planned",
    "max_loras": "adapters of a server are not planned",
    "hf_overrides": "changes to the model's config; give the config.json as it is then",
    "kv_transfer_config": "a cache that moves elsewhere is not planned",
    "kv_cache_memory_bytes": "the cache takes what is left here",
    "decode_context_parallel_size": "context parallelism of a server is not planned",
    "mem_fraction*": "is not planned",
    "enable_hierarchical_cache": "a cache in host memory is not planned",
    "host_cache_size": "a cache in host memory is not planned",
    "cuda_graph_max_bs": "graphs are those of the engine's default",
    "max_lora*": "adapters of a server are not planned",
    "lora_*": "adapters of a server are not planned",
    "num_gpu_blocks_override": "the cache takes what is left here",
    "max_total_tokens": "the cache takes what is left here",
    "max_tokens": "the cache takes what is left here",
    "swap_space": "a cache in host memory is not planned",
    "kv_offloading_*": "a cache in host memory is not planned",
    "hicache_*": "a cache in host memory is not planned",
    "cpu_offload_*": "weights in host memory are not planned for this engine",
    "kt_*": "experts that the CPU computes are not planned",
    "enable_eplb": "copies of experts are not planned",
    "ep_num_redundant_experts": "copies of experts are not planned",
    "num_redundant_experts": "copies of experts are not planned",
    "prefill_context_parallel_size": "context parallelism of a server is not planned",
    "disaggregation_mode": "servers that read prompts apart are not read: set serve.prefill",
    "enable_dbo": "batches in two halves are not planned",
    "enable_two_batch_overlap": "batches in two halves are not planned",
    "mamba_ssm_cache_dtype": "set serve.state_dtype",
    "mamba_cache_dtype": "set serve.state_dtype",
    "mm_encoder_tp_mode": "how an image encoder is cut over GPUs is not planned",
    "max_beam_width": "beams are not planned: one sequence a request is",
    "moe_a2a_backend": "how experts exchange tokens is not read: set serve.moe_backend",
    "torchao_config": "has no word in a plan; give the model's config.json",
    "swa_full_tokens_ratio": "both caches take what their layers need here",
}
FREE = (
    *("kv_cache_free_gpu_memory_fraction", "kv_cache_free_gpu_mem_fraction"),
    "free_gpu_memory_fraction",
)
SERVERS = (
    Server(
        "vllm",
        re.compile(r"\bvllm serve\b|vllm\.entrypoints|vllm/vllm-openai|\bvllm-openai\b"),
        ("model", "model_tag"),
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
            *_COMMON,
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
            *_COMMON,
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
            *_COMMON,
        ),
        _tensorrt,
        NOT_PLANNED,
    ),
    Server(
        "llama.cpp",
        re.compile(r"\bllama-(server|cli|bench)\b|llama\.cpp|ik_llama|ggml-org/llama"),
        ("m", "model", "hf", "hf_repo"),
        (
            ("serve.kv_dtype", CACHE, "ctk", "cache_type_k"),
            ("serve.value_dtype", CACHE, "ctv", "cache_type_v"),
            ("serve.cpu_moe_layers", positive, "ncmoe", "n_cpu_moe"),
            ("serve.max_batched_tokens", positive, "ub", "ubatch_size"),
        ),
        _llama,
        {
            "mmproj": "an image encoder beside the model is not planned",
            "ot": "tensors placed by a pattern are not planned",
            "override_tensor": "tensors placed by a pattern are not planned",
            "ts": "GPUs of different sizes are not planned",
            "tensor_split": "GPUs of different sizes are not planned",
            "swa_full": "windows keep only what they see here",
            "cram": "prompts kept in host memory are not planned",
            "cache_ram": "prompts kept in host memory are not planned",
            "lora*": "adapters of a server are not planned",
            "sm": "layers are shared out whole here: set serve.tp for rows",
            "split_mode": "layers are shared out whole here: set serve.tp for rows",
            "fit*": "what it moves to the host by itself is not planned: set serve.gpu_layers",
            "spec_draft_ngl": "a draft model stands on the GPU here",
            "ngld": "a draft model stands on the GPU here",
            "gpu_layers_draft": "a draft model stands on the GPU here",
        },
    ),
)
TENSORRT = next(server for server in SERVERS if server.engine == "tensorrt-llm")
