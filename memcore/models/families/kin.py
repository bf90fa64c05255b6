"""Kin of Llama, whose attention they have: each with a norm, an MLP or an order of its own.

arcee (AFM)      an MLP of two products, relu squared between them
exaone4          norms behind each part. Three layers of four have a window; where there are
                 windows, the others have no positions
glm, glm4        half of each head rotated, neighbours together, and one product for gate and up;
                 the later one (0414) has norms before and after each part
helium           neighbours rotated together, and norms weighted in fp32
nemotron         (Minitron, Nemotron-4) layer norms by 1 + weight, AFM's MLP, and half of each head
                 rotated
olmo             layer norms that have no weights, in fp32
seed_oss         biases on queries, keys and values, and dropout behind each part
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from memcore.layers.ops import (
    dropped,
    fused_gated_mlp,
    gated_mlp,
    head_behind,
    plain_mlp,
    rms_norm,
    rms_norm_fp32_weight,
)
from memcore.models.config import Keys
from memcore.models.families import olmoe
from memcore.models.families.decoders import family_of, llama_like
from memcore.models.families.llama import attention, embed, head
from memcore.models.model import Model
from memcore.tape.dims import D
from memcore.tape.primitives import add, cast, layer_norm, layer_normed, shift
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

Layer = Callable[[Tape, Structure, Tensor, str], Tensor]


def _glm(k: Keys, family: str) -> Model:
    for key in ("rmsnorm", "post_layer_norm", "multi_query_attention"):  # ChatGLM's
        k.refuse(key, True, None)
    for key in ("add_bias_linear", "apply_residual_connection_post_layernorm"):
        k.refuse(key, False, None)
    return llama_like(k, family)


def _layer(
    norm: Callable[[Tape, Tensor, str], Tensor],
    feeds: Callable[[Tape, Structure, Tensor], Tensor] = gated_mlp,
    attends: Layer = attention,
) -> Layer:
    """A layer of Llama's form with this norm, MLP and attention."""

    def layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
        h = attends(t, s, norm(t, x, "input_layernorm"), kind)
        x = add(t, x, dropped(t, s, h, "attention dropout"), "residual")
        h = feeds(t, s, norm(t, x, "post_attention_layernorm"))
        return add(t, x, dropped(t, s, h, "MLP dropout"), "residual")

    return layer


def up_down_mlp(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """down(act(up(x)))."""
    with t.scope("mlp"):
        return plain_mlp(t, x, s.traits.activation, s.traits.mlp_bias, ("up_proj", "down_proj"))


def _exaone4_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = rms_norm(t, attention(t, s, x, kind), "post_attention_layernorm")
    x = add(t, x, h, "residual")
    return add(t, x, rms_norm(t, gated_mlp(t, s, x), "post_feedforward_layernorm"), "residual")


def _glm4_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = attention(t, s, rms_norm(t, x, "input_layernorm"), kind)
    x = add(t, x, rms_norm(t, h, "post_self_attn_layernorm"), "residual")
    h = fused_gated_mlp(t, s, rms_norm(t, x, "post_attention_layernorm"))
    return add(t, x, rms_norm(t, h, "post_mlp_layernorm"), "residual")


_wide_weight = partial(rms_norm_fp32_weight, widened=True)


def _one_plus(t: Tape, x: Tensor, name: str) -> Tensor:
    """NemotronLayerNorm1P: under autocast all that it reads is cast to bf16."""
    with t.scope(name):
        parts = [x, shift(t, t.parameter("weight", (D,)), "1 + weight"), t.parameter("bias", (D,))]
        if t.autocast:
            parts = [cast(t, p, "bf16", f"{n} (bf16)") for p, n in zip(parts, "xwb", strict=True)]
        x, *both = parts
        return layer_normed(t, x, both, fp32=False)


def _weightless(t: Tape, x: Tensor, name: str) -> Tensor:
    wide = cast(t, x, "fp32", f"{name}, x (fp32)")
    return cast(t, layer_norm(t, wide, D, name, affine=False), x.dtype, f"{name}, cast")


FAMILIES = {
    name: family_of(name, config, embed, layer, ends)
    for name, config, layer, ends in (
        ("arcee", None, _layer(rms_norm, up_down_mlp), head),
        ("exaone4", None, _exaone4_layer, head),
        ("glm", partial(_glm, family="glm"), _layer(rms_norm, fused_gated_mlp), head),
        ("glm4", partial(_glm, family="glm4"), _glm4_layer, head),
        ("helium", None, _layer(_wide_weight), head_behind(_wide_weight)),
        ("nemotron", None, _layer(_one_plus, up_down_mlp), head_behind(_one_plus)),
        (
            "olmo",
            None,
            _layer(_weightless, attends=olmoe.attention),
            head_behind(_weightless),
        ),
        ("seed_oss", None, _layer(rms_norm), head),
    )
}
