"""Dialects: files whose keys no family has, in the words of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memcore.errors import Issue, PlanError, shown

Config = Mapping[str, Any]

# llm-analysis writes a file for each model that it has (llm_analysis/config.py: ModelConfig).
LLM_ANALYSIS = {
    "hidden_dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "max_seq_len": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "num_key_value_heads": "num_key_value_heads",
}
WIDE = "ffn_embed_dim"
OTHERS = ("name", "model_type")
# Families whose MLP is not gated, and their own name for its width. llm-analysis writes four times
# the hidden size where it found none, which is right of these alone.
WIDTHS = {
    "bert": "intermediate_size",
    "roberta": "intermediate_size",
    "xlm-roberta": "intermediate_size",
    "camembert": "intermediate_size",
    "bloom": "",
    "falcon": "ffn_hidden_size",
    "gpt2": "n_inner",
    "gpt_bigcode": "n_inner",
    "gpt_neo": "intermediate_size",
    "gpt_neox": "intermediate_size",
    "gptj": "n_inner",
    "opt": "ffn_dim",
    "phi": "intermediate_size",
    "starcoder2": "intermediate_size",
}
SAID_LITTLE = (
    "The file has llm-analysis's words, which say sizes and no more: biases, ties, shared keys and "
    "what else makes a model are transformers' defaults. The config.json of its own repository "
    "says them."
)


def of_llm_analysis(config: Config) -> bool:
    return {"hidden_dim", "num_layers", "n_head", WIDE} <= set(config)


def in_own_words(config: Config) -> dict[str, Any]:
    """A file of llm-analysis as a config.json. Raises PlanError."""
    kind, wide, hidden = config["model_type"], config[WIDE], config["hidden_dim"]
    own = {"model_type": kind}
    own |= {LLM_ANALYSIS[key]: v for key, v in config.items()
            if key in LLM_ANALYSIS and v is not None}  # fmt: skip
    own |= {key: v for key, v in config.items() if key not in (*LLM_ANALYSIS, *OTHERS, WIDE)}
    usual = type(hidden) is int and wide == 4 * hidden
    width = WIDTHS.get(kind, "intermediate_size")
    if (usual and kind not in WIDTHS) or (not usual and not width):
        message = (
            f"{shown(wide)} is what llm-analysis writes where it found no width of the MLP, and a "
            f"{kind} model has another" if usual else
            f"{shown(wide)} is not 4 x {shown(hidden)}, as every {kind} model has it"
        )  # fmt: skip
        message += "; take the config.json of its own repository"
        raise PlanError([Issue(f"model.{WIDE}", message)])
    if width:
        own[width] = wide
    depth = config["num_layers"]
    if kind == "gpt_neo" and type(depth) is int and depth % 2 == 0:
        own["attention_types"] = [[["global", "local"], depth // 2]]
    return own
