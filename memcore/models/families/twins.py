"""Twins: names of models that are another family's, with what each does differently."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memcore.errors import Issue, PlanError, shown
from memcore.models.families.bert import every_class
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


def _minimax(config: Config) -> Config:
    """Which layers see all tokens is a number of each there (modeling_minimax_text_01.py)."""
    _as(config, postnorm=True, shared_intermediate_size=0)
    given, layers = config.get("attn_type_list"), _number(config, "num_hidden_layers", 80)
    if (
        not isinstance(given, list)
        or len(given) < layers
        or any(type(kind) is not int or kind not in (0, 1) for kind in given)
    ):
        message = "must be a list of 0 (lightning attention) and 1, a number for each layer"
        raise PlanError([Issue("model.attn_type_list", message)])
    words = ("linear_attention", "full_attention")
    factors = [f"layernorm_{of}_{name}" for of in ("full_attention", "linear_attention", "mlp")
               for name in ("alpha", "beta")]  # fmt: skip
    own = _without(config, "attn_type_list", "postnorm", "shared_moe_mode", *factors)
    return {**own, "layer_types": [words[kind] for kind in given]}


def _by_head(config: Config) -> Config:
    """Heads are as wide as makes the hidden size, where nothing else is said."""
    hidden, heads = (_number(config, key, usual) for key, usual in
                     (("hidden_size", 4096), ("num_attention_heads", 32)))  # fmt: skip
    return {**config, "head_dim": _number(config, "head_dim", max(1, hidden // heads))}


def _hyperclova(config: Config) -> Config:
    """Norms before and behind each part, as GLM-4 (0414) has them, and Granite's multipliers."""
    _as(config, use_post_norm=True, mlp_bias=False)
    scaled = ("embedding_multiplier", "residual_multiplier", "attention_multiplier")
    own = _by_head(_without(config, "use_post_norm", "mlp_bias", "logits_scaling", *scaled))
    heads = _number(config, "num_attention_heads", 32)
    return {**own, "num_key_value_heads": _number(config, "num_key_value_heads", heads)}


def _hunyuan(config: Config) -> Config:
    _as(config, mlp_bias=False)
    return _without(config, "mlp_bias", "enable_moe_fp32_combine", "qk_norm")


def _bailing(config: Config) -> Config:
    """Ling and Ring (modeling_bailing_moe_v2.py)."""
    _as(config, use_bias=False, num_nextn_predict_layers=0, attention_dropout=0.0)
    shared = "moe_shared_expert_intermediate_size"
    size = _number(config, "moe_intermediate_size", 512)
    one = {"num_shared_experts": 1} if _number(config, shared, size) == size else {}
    return {**one, **_without(config, "use_bias", shared, "rotary_dim", "num_nextn_predict_layers")}


def _minicpm3(config: Config) -> Config:
    """Latent attention before an MLP in each layer."""
    _as(config, num_experts=0)
    absent = [key for key in ("v_head_dim", "head_dim") if config.get(key) is None]
    return _youtu(_without(config, "scale_emb", "scale_depth", "dim_model_base", "num_experts",
                           "mlp_bias", *absent))  # fmt: skip


def _unified(config: Config) -> Config:
    """Gemma 4 without experts, without embeddings for each layer, and without what reads images
    apart."""
    return {**config, "hidden_size_per_layer_input": 0, "enable_moe_block": False}


def _refined_web(config: Config) -> Config:
    """Falcon's files of before transformers had it: of the 40B the layer has two norms beside each
    other, and heads of keys."""
    return {**config, "new_decoder_architecture": config["model_type"] == "RefinedWeb"}


def _phi(config: Config) -> Config:
    """Phi-1.5's and 2's files of before transformers had them: n_inner of null is four times the
    width, and rotary_dim counts dimensions."""
    width, heads = _number(config, "n_embd", 2048), _number(config, "n_head", 32)
    turned = _number(config, "rotary_dim", 32)
    return {
        **_without(config, "n_inner", "rotary_dim"),
        "intermediate_size": _number(config, "n_inner", 4 * width),
        "partial_rotary_factor": turned * heads / width,
    }


def _minicpm_v(config: Config) -> Config:
    """Of 2.6 the text is Qwen2's; that of other versions is another model's."""
    if str(config.get("version")) != "2.6":
        message = f"{shown(config.get('version'))} is not known: 2.6 is, whose text is Qwen2's"
        raise PlanError([Issue("model.version", message)])
    return _without(config, "vision_config", "version")


def _chatglm(config: Config) -> Config:
    """Of 2 and 3; the first has layers of its own (2D positions, LayerNorm, no gates)."""
    _as(config, position_encoding_2d=False, inner_hidden_size=None)
    return config


SWITCHES = ("attn_mode", "fuse_cross_entropy", "fuse_norm", "fuse_swiglu", "use_gate",
            "use_short_conv")  # fmt: skip


def _delta_net(config: Config) -> Config:
    """flash-linear-attention's layers are Qwen3.5's, but that none, or those in `attn`, attend."""
    _as(config, use_gate=True, use_short_conv=True, attn=None, allow_neg_eigval=False)
    own = _fla(_without(config, "attn"))
    heads, dim = _number(config, "num_heads", 6), _number(config, "head_dim", 256)
    grown = config.get("expand_v", 2.0)
    if isinstance(grown, bool) or not isinstance(grown, (int, float)) or not 0 < grown < 1000:
        message = f"must be a number above 0, not {shown(grown)}"
        raise PlanError([Issue("model.expand_v", message)])
    values = config.get("num_v_heads") or heads
    layers = ["linear_attention"] * _number(config, "num_hidden_layers", 21)
    return {
        **_without(own, "num_heads", "num_v_heads", "head_dim", "expand_v", *SWITCHES),
        "linear_num_key_heads": heads,
        "linear_num_value_heads": values,
        "linear_key_head_dim": dim,
        "linear_value_head_dim": int(dim * grown),
        "layer_types": layers,
    }


def _ernie(config: Config) -> Config:
    _as(config, use_task_id=False)
    return config


def _attends(config: Config) -> Config:
    """All of its layers have attention with rotary positions, and no state."""
    _number(config, "shared_intermediate_size", 0)
    layers = ["full_attention"] * _number(config, "num_hidden_layers", 32)
    return {**config, "layer_types": layers, "position_embedding_type": "rope"}


def _text(stem: str) -> dict[str, str]:
    """The classes of a language model inside a wrapper."""
    return {f"{stem}ForConditionalGeneration": CAUSAL, f"{stem}TextModel": EMBEDDING}


def _ling(second: bool) -> Twin:
    """Ling and Ring, of the first or the second generation."""
    stem = "BailingMoeV2" if second else "BailingMoe"
    return Twin(
        "glm4_moe",
        {f"{stem}ForCausalLM": CAUSAL, f"{stem}Model": EMBEDDING},
        {
            "num_experts": "n_routed_experts",
            "num_shared_experts": "n_shared_experts",
            "use_qkv_bias": "attention_bias",
        },
        _bailing,
        _jointly("Ling", "GLM-4.5"),
        {"use_qk_norm": second, "first_k_dense_replace": 0, "norm_topk_prob": True}
        | ({} if second else {"partial_rotary_factor": 1.0}),
    )


def _jointly(name: str, family: str) -> str:
    return (
        f"{name} is planned as {family}, whose weights are the same: in training its one product "
        "for queries, keys and values keeps a little more."
    )


_PHI = (
    "Of Phi-4-multimodal the language model is planned, as Phi-4-mini. What reads images and sound "
    "before it, and its adapters for them, are left out, their weights too."
)

_PHI_3 = (
    "Of Phi-3-vision and Phi-3.5-vision the language model is planned, as Phi-3. What reads images "
    "before it is left out, its weights too."
)
_MINICPM = (
    "Of MiniCPM-V and MiniCPM-o the language model is planned, as Qwen2. What reads images and "
    "sound before it, and what speaks, are left out, their weights too."
)

# The same code and the same keys where nothing else is said (vLLM's registry maps some of them so).
# MiMo's is Qwen2's with layers for multi-token prediction, which it loads and does not run
# (huggingface.co/XiaomiMiMo/MiMo-7B-Base, modeling_mimo.py). ChatGLM's files of 2 and 3 name the
# class without a head, and load that with one (huggingface.co/zai-org/chatglm3-6b).
TWINS: dict[str, Twin] = {
    "kimi_k2": Twin("deepseek_v3"),
    "minimax_m3": Twin("minimax_m3_vl_text"),
    "minimax_text_01": Twin("minimax", decoder_classes("MiniMaxText01"), reads=_minimax),
    "minimax_m1": Twin("minimax", decoder_classes("MiniMaxM1"), reads=_minimax),
    "mimo": Twin("qwen2", {"MiMoForCausalLM": CAUSAL, "MiMoModel": EMBEDDING}),
    "chatglm": Twin(
        "glm",
        {"ChatGLMModel": CAUSAL, "ChatGLMForConditionalGeneration": CAUSAL},
        reads=_chatglm,
        note=_jointly("ChatGLM", "GLM"),
    ),
    **dict.fromkeys(
        ("phi-msft", "mixformer-sequential"),
        Twin(
            "phi",
            {"PhiForCausalLM": CAUSAL, "MixFormerSequentialForCausalLM": CAUSAL},
            {
                "n_embd": "hidden_size",
                "n_head": "num_attention_heads",
                "n_layer": "num_hidden_layers",
                "n_positions": "max_position_embeddings",
                "activation_function": "hidden_act",
            },
            _phi,
            _jointly("Phi's code of 2023", "Phi"),
        ),
    ),
    **dict.fromkeys(
        ("RefinedWeb", "RefinedWebModel"),
        Twin(
            "falcon",
            {"RWForCausalLM": CAUSAL, "RWModel": EMBEDDING},
            {
                "n_head": "num_attention_heads",
                "n_layer": "num_hidden_layers",
                "n_head_kv": "num_kv_heads",
            },
            _refined_web,
        ),
    ),
    "stablelm_epoch": Twin(
        "stablelm",
        decoder_classes("StableLMEpoch", classifier=False),
        {"rope_pct": "partial_rotary_factor", "norm_eps": "layer_norm_eps"},
    ),
    "skywork": Twin("llama", decoder_classes("Skywork")),
    **{
        kind: Twin("qwen2", {f"MiniCPM{kind[-1].upper()}": CAUSAL}, reads=_minicpm_v, note=_MINICPM)
        for kind in ("minicpmv", "minicpmo")
    },
    "phi3_v": Twin("phi3", {"Phi3VForCausalLM": CAUSAL}, note=_PHI_3),
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
        "granite", decoder_classes("MiniCPM"), reads=_minicpm, assumes={"tie_word_embeddings": True}
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
    "iquestcoder": Twin("llama", decoder_classes("IQuestCoder") | decoder_classes("Llama")),
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
        decoder_classes("InternLM3") | decoder_classes("Llama"),
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
        "granitemoehybrid", decoder_classes("GraniteMoeShared", classifier=False), reads=_attends
    ),
    "mistral4": Twin(
        "deepseek_v3",
        decoder_classes("Mistral4"),
        note="Mistral 4 is planned as DeepSeek-V3, whose weights are the same: in training queries "
        "scaled by their positions, and a router with a softmax, keep a little more.",
        assumes={
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "n_routed_experts": 128,
            "num_experts_per_tok": 4,
            "kv_lora_rank": 256,
            "q_lora_rank": 1024,
            "qk_nope_head_dim": 64,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 0,
            "vocab_size": 131_072,
        },
    ),
    "minicpm3": Twin(
        "deepseek_v3",
        decoder_classes("MiniCPM3"),
        reads=_minicpm3,
        note="MiniCPM3 is planned as DeepSeek-V3 without experts, whose weights are the same: in "
        "training its scaled embeddings and residuals keep a little more.",
        assumes={
            "hidden_size": 2560,
            "intermediate_size": 6400,
            "num_hidden_layers": 62,
            "num_attention_heads": 40,
            "num_key_value_heads": 40,
            "kv_lora_rank": 256,
            "q_lora_rank": 768,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
            "tie_word_embeddings": True,
            "vocab_size": 73_448,
        },
    ),
    "hyperclovax": Twin(
        "glm4",
        decoder_classes("HyperCLOVAX"),
        reads=_hyperclova,
        note="HyperCLOVA X is planned as GLM-4, whose weights are the same: in training its "
        "scaled embeddings, residuals and logits keep a little more.",
        assumes={
            "intermediate_size": 11_008,
            "vocab_size": 32_000,
            "attention_bias": False,
            "partial_rotary_factor": 1.0,
            "max_position_embeddings": 2048,
        },
    ),
    "jais2": Twin(
        "nemotron",
        decoder_classes("Jais2", classifier=False),
        note="Jais 2 is planned as Nemotron, whose weights are the same: in training its norms "
        "keep a little less.",
        assumes={
            "hidden_size": 3328,
            "intermediate_size": 26_624,
            "num_attention_heads": 26,
            "num_key_value_heads": 26,
            "vocab_size": 150_272,
            "attention_bias": True,
            "mlp_bias": True,
            "partial_rotary_factor": 1.0,
        },
    ),
    "flex_olmo": Twin(
        "olmoe",
        decoder_classes("FlexOlmo", classifier=False),
        note="FlexOlmo is planned as OLMoE, whose weights are the same: in training its norms "
        "behind each part keep a little more.",
        assumes={
            "vocab_size": 100_352,
            "hidden_size": 4096,
            "intermediate_size": 11_008,
            "num_attention_heads": 32,
            "num_experts": 7,
            "num_experts_per_tok": 5,
            "tie_word_embeddings": False,
        },
    ),
    "gemma4_unified_text": Twin("gemma4_text", _text("Gemma4Unified"), reads=_unified),
    "nemotron-nas": Twin("nemotron_nas"),
    "granite_docling_text": Twin("granite", _text("GraniteDocling")),
    "granite4_vision_text": Twin("granite", _text("Granite4Vision")),
    "hunyuan_vl_text": Twin("hunyuan_v1_dense", _text("HunYuanVL")),
    "paddleocr_vl_text": Twin("ernie4_5", _text("PaddleOCR")),
    "qwen2_5_omni_text": Twin("qwen2_5_vl_text", _text("Qwen2_5Omni")),
    "qwen3_omni_moe_text": Twin(
        "qwen3_vl_moe_text",
        _text("Qwen3OmniMoe"),
        assumes={
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 3584,
            "tie_word_embeddings": False,
        },
    ),
    "glm4v_text": Twin("glm4", _text("Glm4v"), reads=_by_head),
    "glm_ocr_text": Twin(
        "glm4",
        _text("GlmOcr"),
        reads=_by_head,
        assumes={
            "attention_bias": False,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "intermediate_size": 4096,
            "vocab_size": 59_392,
        },
    ),
    "glm4v_moe_text": Twin("glm4_moe", _text("Glm4vMoe"), assumes={"attention_bias": True}),
    "solar_open": Twin(
        "glm4_moe",
        decoder_classes("SolarOpen", classifier=False),
        note="Solar Open is planned as GLM-4.5, whose weights are the same: in training heads that "
        "turn whole keep a little less.",
        assumes={
            "first_k_dense_replace": 0,
            "partial_rotary_factor": 1.0,
            "head_dim": 128,
            "num_attention_heads": 64,
            "moe_intermediate_size": 1280,
            "vocab_size": 196_608,
            "intermediate_size": 10_240,
        },
    ),
    "hy_v3": Twin(
        "dots1",
        decoder_classes("HYV3", classifier=False),
        {
            "num_experts": "n_routed_experts",
            "num_local_experts": "n_routed_experts",
            "router_scaling_factor": "routed_scaling_factor",
            "num_shared_experts": "n_shared_experts",
        },
        _hunyuan,
        "Hunyuan 3 is planned as dots.llm1, whose weights are the same: in training its sum of "
        "routed and shared experts in fp32 keeps a little more.",
        {
            "sliding_window": None,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "n_routed_experts": 192,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "moe_intermediate_size": 1536,
            "num_attention_heads": 64,
            "intermediate_size": 13_312,
            "vocab_size": 120_832,
        },
    ),
    "bailing_moe": _ling(False),
    "bailing_moe_v2": _ling(True),
    "gated_deltanet": Twin(
        "qwen3_5_text",
        decoder_classes("GatedDeltaNet", classifier=False),
        {"norm_eps": "rms_norm_eps", "conv_size": "linear_conv_kernel_dim"},
        _delta_net,
        "The gated delta net of flash-linear-attention is planned as Qwen3.5's, whose weights are "
        "the same: its fused norms and loss keep less in training.",
        {
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "vocab_size": 32_000,
            "tie_word_embeddings": False,
            "max_position_embeddings": 2048,
            "hidden_size": 2048,
            "head_dim": 256,
            "full_attention_interval": 4,
        },
    ),
    "ernie": Twin("bert", every_class("Ernie"), reads=_ernie),
    "data2vec-text": Twin("roberta", every_class("Data2VecText"), assumes={"vocab_size": 30_522}),
}
