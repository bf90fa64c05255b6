"""GLM-4 (glm, glm4): Llama's layers with half of each head rotated, neighbours together, and one
product for gate and up. The later one (0414) has norms before and after each part."""

from __future__ import annotations

from memcore.layers.ops import fused_gated_mlp, rms_norm
from memcore.models.config import Keys
from memcore.models.families.family import HF_ONLY, Family, decoder_classes
from memcore.models.families.llama import attention, embed, head, llama_like
from memcore.models.model import Model
from memcore.tape.primitives import add
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str, family: str) -> Model:
    for key in ("rmsnorm", "post_layer_norm", "multi_query_attention"):  # ChatGLM's
        k.refuse(key, True, None)
    for key in ("add_bias_linear", "apply_residual_connection_post_layernorm"):
        k.refuse(key, False, None)
    return llama_like(
        k,
        label,
        family,
        intermediate=13_696,
        layers=40,
        kv_heads=2,
        head_dim=128,
        vocab=151_552,
        positions=131_072,
        attention_bias=k.flag("attention_bias", True),
        out_bias=False,
        rotary_partial=True,
        rotary_interleaved=True,
        rotated=0.5,
    )


def _glm(k: Keys, label: str) -> Model:
    return _config(k, label, "glm")


def _glm4(k: Keys, label: str) -> Model:
    return _config(k, label, "glm4")


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = attention(t, s, rms_norm(t, x, "input_layernorm"), kind)
    x = add(t, x, h, "residual")
    h = fused_gated_mlp(t, s, rms_norm(t, x, "post_attention_layernorm"))
    return add(t, x, h, "residual")


def _layer_of_glm4(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = attention(t, s, rms_norm(t, x, "input_layernorm"), kind)
    x = add(t, x, rms_norm(t, h, "post_self_attn_layernorm"), "residual")
    h = fused_gated_mlp(t, s, rms_norm(t, x, "post_attention_layernorm"))
    return add(t, x, rms_norm(t, h, "post_mlp_layernorm"), "residual")


# As ChatGLM's config.json has them, from which transformers' GLM was made
# (transformers/models/glm/convert_glm_weights_to_hf.py).
CHATGLM = {
    "num_layers": "num_hidden_layers",
    "ffn_hidden_size": "intermediate_size",
    "padded_vocab_size": "vocab_size",
    "multi_query_group_num": "num_key_value_heads",
    "kv_channels": "head_dim",
    "seq_length": "max_position_embeddings",
    "add_qkv_bias": "attention_bias",
}
FAMILIES = {
    "glm": Family(
        _glm, embed, _layer, head, kernels=HF_ONLY, classes=decoder_classes("Glm"), aliases=CHATGLM
    ),
    "glm4": Family(
        _glm4, embed, _layer_of_glm4, head, kernels=HF_ONLY, classes=decoder_classes("Glm4")
    ),
}
