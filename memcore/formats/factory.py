"""LLaMA-Factory's inference: the YAML of `llamafactory-cli api`, `chat` and `webchat`.

Source: src/llamafactory/hparams/model_args.py and src/llamafactory/chat (2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memcore.errors import Issue, PlanError
from memcore.formats.found import Around, Draft, Keys, positive, share

ENGINES = {"huggingface": "transformers", "hf": "transformers", "vllm": "vllm", "sglang": "sglang"}
LENGTH, SHARE = 4096, 0.7  # of vLLM and SGLang, where nobody says them
LEFT = {
    "adapters of a server are not planned": "adapter_name_or_path vllm_max_lora_rank",
    "what it tells vLLM is not read": "vllm_config",
    "what it tells SGLang is not read": "sglang_config",
    "set serve.weight_dtype": "quantization_*",
    "changes to the model's config; give the config.json as it is then": "rope_scaling",
}


def recognise(values: Mapping[str, Any]) -> bool:
    """Whether a document is such a file, or one of an export."""
    starts = {"model_name_or_path", "template"} <= values.keys() and "do_train" not in values
    return starts and ("infer_backend" in values or "export_dir" in values)


def read(values: Mapping[str, Any], draft: Draft) -> None:
    """What the file says. Raises PlanError of an export, which neither trains nor serves."""
    keys = Keys(values)
    if "export_dir" in values:
        message = "the file is of an export: give one of a training or of a server"
        raise PlanError([Issue("export_dir", message)])
    draft.model = draft.model or str(keys.one("model_name_or_path") or "")
    said = str(keys.one("infer_backend") or "").lower()
    engine = ENGINES.get(said, "vllm")
    if said not in ENGINES:
        draft.leave("infer_backend", f"{said} is not planned: vLLM is")
    draft.put("serve.engine", engine, "infer_backend", said)
    if engine == "transformers":
        draft.end(keys, LEFT)
        return
    draft.read(keys, "serve.max_seq_len", positive, f"{engine}_maxlen")
    named = "vllm_gpu_util" if engine == "vllm" else "sglang_mem_fraction"
    draft.read(keys, "serve.memory_utilization", share, named)
    draft.otherwise("serve.max_seq_len", LENGTH, f"{engine}_maxlen")
    draft.otherwise("serve.memory_utilization", SHARE, named)
    if keys.on("vllm_enforce_eager"):
        draft.put("serve.runtime", "eager", "vllm_enforce_eager", True)
    draft.read(keys, "serve.tp", positive, "sglang_tp_size")
    draft.ranks = max(draft.ranks, draft.fields.get("serve.tp", 0))
    draft.later.append(_on_all)
    draft.end(keys, LEFT)


def _on_all(draft: Draft, around: Around) -> None:
    """Its engines are cut over every GPU of the machine."""
    draft.put("serve.tp", around.gpus, "every GPU that it sees", around.gpus)
