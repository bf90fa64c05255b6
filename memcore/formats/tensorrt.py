"""TensorRT-LLM: what trtllm-build leaves beside an engine, and the YAML that trtllm-serve takes.

Sources: TensorRT-LLM 1.0's EngineConfig (config.json of an engine), PretrainedConfig (of a
checkpoint) and LlmArgs (--extra_llm_api_options, --config).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memcore.formats import servers
from memcore.formats.draft import Draft, Keys


def recognise(values: Mapping[str, Any]) -> bool:
    """Whether a document is such a file."""
    built = {"pretrained_config", "build_config"} <= values.keys()
    stored = {"architecture", "mapping"} <= values.keys()
    return built or stored or bool(servers.TENSORRT.names["document"] & values.keys())


def read(values: Mapping[str, Any], draft: Draft) -> None:
    """What the file says."""
    keys = Keys(values)
    stored = keys.inner("pretrained_config") if "pretrained_config" in values else keys
    if "architecture" in stored.values:
        found = _of_engine(stored, keys.inner("build_config"), draft)
    else:
        found = _of_options(keys)
    servers.told(servers.TENSORRT, found, draft)


def _of_engine(stored: Keys, built: Keys, draft: Draft) -> dict[str, Any]:
    table = servers.TENSORRT.table
    if family := table["families"].get(str(stored.take("architecture"))):
        config = {mine: stored.take(theirs) for mine, theirs in table["config"].items()}
        draft.config = {
            "model_type": family,
            "architectures": [stored.take("architecture")],
            **{name: value for name, value in config.items() if value is not None},
        }
    mapping, quantized = stored.inner("mapping"), stored.inner("quantization")
    kept = str(quantized.take("kv_cache_quant_algo") or "").lower()
    limits = ("max_batch_size", "max_num_tokens", "max_seq_len")
    return {
        **{name: mapping.take(name) for name in ("tp_size", "pp_size")},
        **{name: built.take(name) for name in limits},
        "dtype": stored.take("dtype"),
        "quantization": table["algorithms"].get(str(quantized.take("quant_algo"))),
        "kv_cache_dtype": kept or stored.take("dtype"),
    }


def _of_options(keys: Keys) -> dict[str, Any]:
    inner = keys.inner("llm_api_args")
    found = {**inner.values, **keys.values}
    for name in ("kv_cache_config", "llm_api_args"):
        found.pop(name, None)
    cache = keys.values.get("kv_cache_config") or inner.values.get("kv_cache_config")
    if isinstance(cache, Mapping):
        found |= {"kv_cache_dtype" if k == "dtype" else k: v for k, v in cache.items()}
    return found
