"""GPT-NeoX and Pythia: attention and MLP side by side, a quarter of each head rotated."""

from __future__ import annotations

from memcore.layers.ops import (
    KEYS,
    QUERIES,
    attention_core,
    dropped,
    embed_dropped,
    head_behind,
    partial_rotary,
    plain_mlp,
    rotary_tables,
)
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.family import Family, decoder_classes
from memcore.models.model import Model
from memcore.tape.dims import QKV, TP, D, Q
from memcore.tape.kinds import Part
from memcore.tape.primitives import add, heads_first, layer_norm, linear, split
from memcore.tape.structure import Structure, Traits
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    hidden = k.count("hidden_size", 6144)
    heads = k.count("num_attention_heads", 64, 10**6)
    k.divides("hidden_size", hidden, "num_attention_heads", heads)
    dim = max(1, hidden // heads)
    dropped = k.dropout("hidden_dropout", 0.0)
    return Model(
        family="gpt_neox",
        label=label,
        layers=k.count("num_hidden_layers", 44, 100_000),
        hidden_size=hidden,
        intermediate_size=k.count("intermediate_size", 24_576),
        heads=heads,
        kv_heads=heads,
        head_dim=dim,
        rotary_dim=int(dim * k.rope("partial_rotary_factor", 0.25, "rotary_pct")),
        vocab_size=k.count("vocab_size", 50_432),
        max_positions=k.count("max_position_embeddings", 2048),
        traits=Traits(
            activation=k.word("hidden_act", "gelu", ACTIVATIONS),
            tied_embeddings=k.flag("tie_word_embeddings", False),
            attention_bias=k.flag("attention_bias", True),
            attention_dropout=k.dropout("attention_dropout", 0.0),
            residual_dropout=dropped,
            embedding_dropout=dropped,
            parallel_residual=k.flag("use_parallel_residual", True),
        ),
    )


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    attended = _attention(t, s, layer_norm(t, x, D, "input_layernorm"), kind)
    attended = dropped(t, s, attended, "post_attention_dropout")
    beside = s.traits.parallel_residual
    if not beside:
        attended = add(t, attended, x, "attention residual")
    h = layer_norm(t, x if beside else attended, D, "post_attention_layernorm")
    with t.scope("mlp"):
        h = plain_mlp(t, h, s.traits.activation, True, ("dense_h_to_4h", "dense_4h_to_h"))
    h = dropped(t, s, h, "post_mlp_dropout")
    out = add(t, h, attended, "MLP and attention")
    return add(t, out, x, "residual") if beside else out


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("attention", Part.ATTENTION):
        joint = linear(t, "query_key_value", x, D, QKV / TP, bias)
        joint = heads_first(t, joint, joint.shape, copies_grad=True)
        q, k, v = split(t, joint, (QUERIES, KEYS, KEYS))
        q, k = partial_rotary(t, q, k, rotary_tables(t))
        out = attention_core(t, s, q, k, v, kind, joint_v=True)
        return linear(t, "dense", out, Q / TP, D, bias)


_embed = embed_dropped("embed_in", "emb_dropout")
_head = head_behind(layer_norm, "final_layer_norm", width=D)
FAMILY = Family(_config, _embed, _layer, _head, classes=decoder_classes("GPTNeoX"))
