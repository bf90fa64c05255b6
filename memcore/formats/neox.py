"""GPT-NeoX: its YAML, which has DeepSpeed's keys and describes the model too.

Source: megatron/neox_arguments/neox_args.py of GPT-NeoX 2.0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from memcore.errors import Issue, PlanError
from memcore.formats import deepspeed
from memcore.formats.draft import Draft, Keys, UnsaidError, number
from memcore.formats.programs import Program

NEOX = Program("gpt-neox")
# Of the tokenizers, padded: GPT-2's, which is the default, and that of GPT-NeoX-20B.
VOCABULARIES = {"GPT-2": 50_304, "GPT-NeoX-20B": 50_432}


def recognise(values: Mapping[str, Any]) -> bool:
    """Whether a document is such a file."""
    names = {str(key).replace("-", "_") for key in values}
    return len(set(NEOX.listed("marks")) & names) >= 3 or set(NEOX.listed("local")) <= values.keys()


def read(values: Mapping[str, Any], draft: Draft) -> None:
    """What the file says."""
    keys = Keys({str(key).replace("-", "_"): value for key, value in values.items()})
    own = ("zero_optimization", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
           "train_batch_size", "optimizer", "fp16", "bf16", "activation_checkpointing")  # fmt: skip
    zero = keys.values.get("zero_optimization")
    if isinstance(zero, Mapping) and isinstance(tried := zero.get("stage"), list) and tried:
        message = f"several stages are tried by its autotuning, {tried}: the first is planned"
        draft.leave("zero_optimization.stage", message)
        keys.values["zero_optimization"] = {**zero, "stage": tried[0]}
    deepspeed.read({name: keys.take(name) for name in own if keys.take(name) is not None}, draft)
    NEOX.read(keys, draft)
    cut = [draft.fields.get(f"parallel.{name}", 1) for name in ("tp", "pp", "cp")]
    if (parts := math.prod(cut)) > 1:
        draft.leave(
            "model-parallel-size, pipe-parallel-size",
            "tensor, pipeline and context parallelism under DeepSpeed are not planned: this plan "
            f"has none, and each GPU works on {parts} times what it would",
        )
        for name in ("tp", "pp", "cp"):
            draft.forget(f"parallel.{name}")
    draft.put("train.attention", "flash" if _flash(keys) else "eager", "attention-config")
    NEOX.begin(keys, draft)
    draft.config = draft.config or _config(keys, draft)
    NEOX.end(keys, draft)


def _flash(keys: Keys) -> bool:
    return "flash" in str(keys.values.get("attention_config"))


def _config(keys: Keys, draft: Draft) -> dict[str, Any] | None:
    """The model as a config.json of transformers' GPT-NeoX, or of Llama. Raises PlanError."""
    hidden, heads, layers = (
        draft.count(keys, name) for name in ("hidden_size", "num_attention_heads", "num_layers")
    )
    if not (hidden and heads and layers):
        return None
    NEOX.read(keys, draft, "described")
    vocabulary = draft.count(keys, "padded_vocab_size", "vocab_size")
    if not vocabulary:
        by_gpt2 = str(keys.take("tokenizer_type") or "GPT2").startswith(("GPT2", "HFGPT2"))
        whose = "GPT-2" if by_gpt2 else "GPT-NeoX-20B"
        vocabulary = VOCABULARIES[whose]
        draft.leave("vocab-file", f"not read; {vocabulary:,} tokens are taken, as {whose} has")
    norm, activation = (str(keys.one(name) or usual) for name, usual in (
        ("norm", "layernorm"), ("activation", "gelu")))  # fmt: skip
    common = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": draft.count(keys, "max_position_embeddings") or 2048,
        "vocab_size": vocabulary,
        "tie_word_embeddings": not keys.on("no_weight_tying"),
    }
    inner = draft.count(keys, "intermediate_size", "ffn_hidden_size")
    groups = draft.count(keys, "num_kv_heads") or heads
    if norm == "rmsnorm" and activation in ("swiglu", "silu"):
        keys.take("use_bias_in_norms", "use_bias_in_attn_linear", "use_bias_in_mlp", "rotary_pct",
                  "gpt_j_residual", "rms_norm_epsilon")  # fmt: skip
        # of a gated MLP its size is that of gate and up, two thirds of which are left
        return {"model_type": "llama", "num_key_value_heads": groups,
                "intermediate_size": inner or 8 * hidden // 3 // 256 * 256, **common}  # fmt: skip
    if norm != "layernorm" or activation != "gelu" or groups != heads:
        message = f"{norm} with {activation} is no family known; give the config.json beside it"
        raise PlanError([Issue("norm", message)])
    try:
        share = number(keys.one("rotary_pct") or 1.0)
    except UnsaidError:
        share = 1.0
    return {
        "model_type": "gpt_neox",
        "intermediate_size": inner or 4 * hidden,
        "rotary_pct": share,
        "use_parallel_residual": keys.on("gpt_j_residual"),
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        **common,
    }
