"""BitNet b1.58: Llama's layers with a norm before each product that leads back to the residual."""

from __future__ import annotations

from memcore.layers.ops import activation, rms_norm
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, llama_like
from memcore.models.families.llama import attention, embed, head
from memcore.models.model import Model
from memcore.tape.dims import TP, D, F
from memcore.tape.primitives import add, linear, multiply
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    model = llama_like(k, "bitnet")
    if model.heads * model.head_dim != model.hidden_size:
        k.fail("head_dim", "its norm of all heads is as wide as the hidden size; so must they be")
    return model


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = rms_norm(t, x, "input_layernorm")
    x = add(t, x, attention(t, s, h, kind, out_norm="attn_sub_norm"), "residual")
    return add(t, x, _mlp(t, s, rms_norm(t, x, "post_attention_layernorm")), "residual")


def _mlp(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        gate = activation(t, linear(t, "gate_proj", x, D, F / TP, bias=False), s.traits.activation)
        product = multiply(t, gate, linear(t, "up_proj", x, D, F / TP, bias=False), "gate x up")
        h = rms_norm(t, product, "ffn_sub_norm", F / TP)
        return linear(t, "down_proj", h, F / TP, D, bias=False)


FAMILY = family_of("bitnet", _config, embed, _layer, head)
