"""OLMoE: norms over whole queries and keys, which may be clipped, and many small experts."""

from __future__ import annotations

from memcore.layers.experts import routed_experts, softmax_router
from memcore.layers.ops import KEYS, QUERIES, attention_core, query_key_value, rms_norm, value_heads
from memcore.models.config import Keys
from memcore.models.families.family import HF_ONLY, Family, decoder_classes
from memcore.models.families.llama import embed, head, llama_like, turned
from memcore.models.families.mixtral import routing, sparse_layer, with_experts
from memcore.models.model import Model
from memcore.tape.dims import KV, TP, D, Q
from memcore.tape.kinds import Part
from memcore.tape.primitives import heads_first, linear
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    model = llama_like(
        k,
        label,
        "olmoe",
        hidden=2048,
        intermediate=2048,
        layers=16,
        heads=16,
        vocab=50_304,
        positions=4096,
        attention_bias=k.flag("attention_bias", False),
        query_norm=True,
        attention_clipped=k.config.get("clip_qkv") is not None,
        router_normalised=k.flag("norm_topk_prob", False),
    )
    if model.heads * model.head_dim != model.hidden_size:
        k.fail(
            "head_dim",
            f"{model.heads:,} heads of {model.head_dim:,} are not the hidden size, "
            f"{model.hidden_size:,}, as which transformers makes the norm of all queries",
        )
    return with_experts(model, routing(k, "num_experts", 64, 8), model.intermediate_size)


def attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        if s.traits.query_norm:
            q, k = rms_norm(t, q, "q_norm", Q / TP), rms_norm(t, k, "k_norm", KV / TP)
        if s.traits.attention_clipped:
            q, k, v = (clipped(t, x, f"{n}, clipped") for x, n in ((q, "q"), (k, "k"), (v, "v")))
        q = heads_first(t, q, QUERIES, copies_grad=True)
        k = heads_first(t, k, KEYS, copies_grad=True)
        q, k = turned(t, s, q, k)
        out = attention_core(t, s, q, k, value_heads(t, s, v), kind)
        return linear(t, "o_proj", out, Q / TP, D, bias)


def clipped(t: Tape, x: Tensor, name: str) -> Tensor:
    """x.clamp_(-c, c), in place. Saves a copy of what x was."""
    t.start(name, x)
    copy = t.new(f"{name}, before", x.shape, x.dtype)
    out = Tensor(x.storage, x.shape, x.dtype, False)
    t.finish(name, [x], out, [copy], lambda g: [t.new(f"{name} grad", x.shape, x.dtype)])
    return out


def _mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        return routed_experts(t, s, x, *softmax_router(t, s, x))


FAMILY = Family(
    _config, embed, sparse_layer(attention, _mixture), head, kernels=HF_ONLY,
    aliases={"num_local_experts": "num_experts"},
    classes=decoder_classes("Olmoe", classifier=False),
)  # fmt: skip
