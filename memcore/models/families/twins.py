"""Twins: names of models that are another family's, with what each does differently."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memcore.errors import Issue, PlanError, shown
from memcore.models.families.bert import encoder_classes
from memcore.models.families.family import decoder_classes
from memcore.tape.structure import CAUSAL, EMBEDDING

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Twin:
    """One model_type that is planned as a family of another name.

    of        the family
    classes   that its files name, each with its head, where they are not those of the family
    keys      its names of keys, and the family's
    reads     its config in the family's words, where other names are not enough
    assumes   its defaults that are not those of the family
    note      what a reader should know of a model that has more than the family
    """

    of: str
    classes: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    reads: Callable[[Config], Config] = dict
    note: str = ""
    assumes: Mapping[str, Any] = field(default_factory=dict)

    def opened(self, config: Config) -> dict[str, Any]:
        """The config.json of the family's own that describes the same. Raises PlanError."""
        own = self.reads(config)
        absent = {
            key: value
            for key, value in self.assumes.items()
            if not any(name in own for name in (key, *_names(self.keys, key)))
        }
        return {**own, **absent, "model_type": self.of}


def _names(keys: Mapping[str, str], key: str) -> list[str]:
    return [name for name, stands_for in keys.items() if stands_for == key]


def _as(config: Config, **wanted: Any) -> None:
    """Refuse a config in which a key has another value than the one that the family has."""
    bad = [key for key, value in wanted.items() if config.get(key, value) not in (value, None)]
    if bad:
        raise PlanError(
            Issue(
                f"model.{key}",
                f"{shown(config[key])} changes the model in a way that is not known yet; "
                f"{shown(wanted[key])} is planned",
            )
            for key in bad
        )


def _number(config: Config, key: str, default: int) -> int:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**8:
        message = f"must be a whole number from 1 to 100,000,000, not {shown(value)}"
        raise PlanError([Issue(f"model.{key}", message)])
    return value


def _without(config: Config, *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def _qwen(config: Config) -> Config:
    """Its intermediate_size is that of gate and up together (modeling_qwen.py: QWenMLP)."""
    _as(config, no_bias=True, tie_word_embeddings=False)
    both = _number(config, "intermediate_size", 22_016)
    if "visual" in config:
        message = (
            "what reads images before a Qwen is not known; without the key its text is planned"
        )
        raise PlanError([Issue("model.visual", message)])
    own = _without(config, "no_bias", "seq_length" if "max_position_embeddings" in config else "")
    return {**own, "intermediate_size": both // 2,
            "num_key_value_heads": config.get("num_attention_heads", 32)}  # fmt: skip


def _fla(config: Config) -> Config:
    """Its MLP is two thirds of hidden_ratio wide, in steps of 256, where the file says no width
    (fla/modules/mlp.py: GatedMLP)."""
    _as(config, qkv_bias=False, qk_norm=False, window_size=None)
    hidden = _number(config, "hidden_size", 2048)
    wide = 2 * hidden * _number(config, "hidden_ratio", 4) // 3
    width = _number(config, "intermediate_size", -(-wide // 256) * 256)
    return {**_without(config, "attention_bias", "hidden_ratio"), "intermediate_size": width}


def _olmo(config: Config) -> Config:
    """Widths of gate and up together, and of an embedding with room (olmo/config.py)."""
    _as(config, alibi=False, rope=True, include_bias=False, layer_norm_with_affine=False,
        attention_layer_norm=False, activation_type="swiglu", block_type="sequential",
        embedding_layer_norm=False, norm_after=False, layer_norm_type="default",
        attention_dropout=0.0, residual_dropout=0.0, embedding_dropout=0.0)  # fmt: skip
    hidden = _number(config, "d_model", 768)
    both = _number(config, "mlp_hidden_size", _number(config, "mlp_ratio", 4) * hidden)
    own = _without(config, "mlp_ratio", "mlp_hidden_size", "embedding_size",
                   "multi_query_attention")  # fmt: skip
    vocab = _number(config, "embedding_size", _number(config, "vocab_size", 50_257))
    if config.get("multi_query_attention"):
        own["num_key_value_heads"] = 1
    return {**own, "intermediate_size": both // 2, "vocab_size": vocab}


def _minicpm(config: Config) -> Config:
    """Its numbers that multiply embeddings, residuals and logits are Granite's by other names."""
    _as(config, num_experts=0, sparse_config=None)
    return _without(config, "scale_emb", "scale_depth", "dim_model_base", "num_experts")


def _deepseek(config: Config) -> Config:
    """deepseek-moe-16b's own code (modeling_deepseek.py)."""
    _as(config, moe_layer_freq=1, scoring_func="softmax")
    return {"partial_rotary_factor": 1.0, **_without(config, "moe_layer_freq")}


def _youtu(config: Config) -> Config:
    """DeepSeek-V3's layers, none of which has experts."""
    layers = _number(config, "num_hidden_layers", 32)
    one = ("n_group", "topk_group", "n_routed_experts", "num_experts_per_tok", "n_shared_experts",
           "moe_intermediate_size")  # fmt: skip
    return {**config, "first_k_dense_replace": layers, **dict.fromkeys(one, 1)}


def _ernie(config: Config) -> Config:
    _as(config, use_task_id=False)
    return config


def _attends(config: Config) -> Config:
    """All of its layers have attention with rotary positions, and no state."""
    _number(config, "shared_intermediate_size", 0)
    layers = ["full_attention"] * _number(config, "num_hidden_layers", 32)
    return {**config, "layer_types": layers, "position_embedding_type": "rope"}


def _jointly(name: str, family: str) -> str:
    return (
        f"{name} is planned as {family}, whose weights are the same: in training its one product "
        "for queries, keys and values keeps a little more."
    )


_PHI = (
    "Of Phi-4-multimodal the language model is planned, as Phi-4-mini. What reads images and sound "
    "before it, and its adapters for them, are left out, their weights too."
)

# The same code and the same keys where nothing else is said (vLLM's registry maps some of them so).
# MiMo's is Qwen2's with layers for multi-token prediction, which it loads and does not run
# (huggingface.co/XiaomiMiMo/MiMo-7B-Base, modeling_mimo.py). ChatGLM's files of 2 and 3 name the
# class without a head, and load that with one (huggingface.co/zai-org/chatglm3-6b).
TWINS: dict[str, Twin] = {
    "kimi_k2": Twin("deepseek_v3"),
    "mimo": Twin("qwen2", {"MiMoForCausalLM": CAUSAL, "MiMoModel": EMBEDDING}),
    "chatglm": Twin(
        "glm",
        {"ChatGLMModel": CAUSAL, "ChatGLMForConditionalGeneration": CAUSAL},
        note=_jointly("ChatGLM", "GLM"),
    ),
    "phi4mm": Twin("phi3", {"Phi4MMForCausalLM": CAUSAL}, note=_PHI),
    "phi4_multimodal": Twin("phi3", {"Phi4MultimodalForCausalLM": CAUSAL}, note=_PHI),
    "baichuan": Twin(
        "llama",
        {"BaichuanForCausalLM": CAUSAL, "BaiChuanForCausalLM": CAUSAL},
        {"model_max_length": "max_position_embeddings"},
        note=_jointly("Baichuan", "Llama") + " Of its 13B, which has no rotary positions, the "
        "table of rotary angles is counted all the same.",
    ),
    "qwen": Twin(
        "qwen2",
        {"QWenLMHeadModel": CAUSAL, "QWenModel": EMBEDDING},
        {"kv_channels": "head_dim", "seq_length": "max_position_embeddings"},
        _qwen,
        _jointly("Qwen 1", "Qwen2"),
    ),
    "transformer": Twin(
        "llama",
        decoder_classes("Transformer", classifier=False),
        {"num_heads": "num_attention_heads", "num_kv_heads": "num_key_value_heads"},
        _fla,
        "The transformer of flash-linear-attention is planned as Llama: its fused norms and loss "
        "keep less in training.",
    ),
    "hf_olmo": Twin(
        "olmo",
        {"OLMoForCausalLM": CAUSAL},
        {
            "d_model": "hidden_size",
            "n_heads": "num_attention_heads",
            "n_layers": "num_hidden_layers",
            "n_kv_heads": "num_key_value_heads",
            "weight_tying": "tie_word_embeddings",
            "max_sequence_length": "max_position_embeddings",
        },
        _olmo,
        _jointly("OLMo of 2024", "OLMo"),
        {"tie_word_embeddings": True},
    ),
    "minicpm": Twin(
        "granite",
        decoder_classes("MiniCPM"),
        reads=_minicpm,
        assumes={"tie_word_embeddings": True},
    ),
    "exaone": Twin(
        "llama",
        decoder_classes("Exaone"),
        {
            "num_layers": "num_hidden_layers",
            "activation_function": "hidden_act",
            "layer_norm_epsilon": "rms_norm_eps",
        },
    ),
    "iquestcoder": Twin("llama", decoder_classes("IQuestCoder")),
    "codegen": Twin("gptj", decoder_classes("CodeGen"), note=_jointly("CodeGen", "GPT-J")),
    "deepseek": Twin(
        "glm4_moe",
        {"DeepseekForCausalLM": CAUSAL, "DeepseekModel": EMBEDDING},
        reads=_deepseek,
        note="DeepSeek-MoE is planned as GLM-4.5, whose weights are the same: in training a router "
        "with a softmax, and heads that turn whole, keep a little less.",
        assumes={"norm_topk_prob": False, "first_k_dense_replace": 0},
    ),
    "youtu": Twin(
        "deepseek_v3",
        decoder_classes("Youtu"),
        reads=_youtu,
        assumes={
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "vocab_size": 128_256,
            "tie_word_embeddings": True,
            "max_position_embeddings": 131_072,
        },
    ),
    "falcon_mamba": Twin(
        "mamba",
        decoder_classes("FalconMamba", classifier=False),
        note="Falcon Mamba is planned as Mamba, whose weights are the same: its norms of steps, B "
        "and C, which have no weights, keep a little more in training.",
    ),
    "Yi": Twin("llama", decoder_classes("Yi")),
    "aquila": Twin("llama", decoder_classes("Aquila")),
    "xverse": Twin("llama", decoder_classes("Xverse")),
    "internlm": Twin(
        "llama",
        decoder_classes("InternLM"),
        {"bias": "attention_bias"},
        assumes={"attention_bias": True, "vocab_size": 103_168},
    ),
    "internlm2": Twin(
        "llama",
        decoder_classes("InternLM2"),
        {"bias": "attention_bias"},
        note=_jointly("InternLM2", "Llama"),
        assumes={"attention_bias": True, "vocab_size": 103_168},
    ),
    "internlm3": Twin(
        "llama",
        decoder_classes("InternLM3"),
        {"qkv_bias": "attention_bias", "bias": "mlp_bias"},
        assumes={
            "head_dim": 128,
            "num_key_value_heads": 2,
            "vocab_size": 128_512,
            "max_position_embeddings": 32_768,
        },
    ),
    "gpt-sw3": Twin("gpt2"),
    "granitemoeshared": Twin(
        "granitemoehybrid",
        decoder_classes("GraniteMoeShared", classifier=False),
        reads=_attends,
    ),
    "ernie": Twin("bert", encoder_classes("Ernie"), reads=_ernie),
    "data2vec-text": Twin(
        "roberta", encoder_classes("Data2VecText"), assumes={"vocab_size": 30_522}
    ),
}
