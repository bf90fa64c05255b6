"""GPT-2: layer norms, learned positions, one joint projection, biases and dropout. GPT-BigCode
(SantaCoder, StarCoder) has such layers with one head of keys and values."""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import (
    KEYS,
    QUERIES,
    TOKENS,
    attention_core,
    dropped,
    head_behind,
    joint_heads,
    plain_mlp,
)
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.family import (
    MASK,
    own_keys,
)
from memcore.models.families.rows import family_of
from memcore.models.model import Model
from memcore.tape.dims import CONTEXT, CP, POSITIONS, QKV, TP, VOCAB, D, Q, S
from memcore.tape.kinds import Part
from memcore.tape.primitives import (
    add,
    dropout,
    embedding,
    heads_first,
    layer_norm,
    linear,
    split,
    wanted,
)
from memcore.tape.structure import Structure, Traits
from memcore.tape.tape import Tape, Tensor
from memcore.words.training import MLP

ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


LEARNED, UNLEARNED = "absolute", "none"  # positions: of a table, or ALiBi's and none at all
POSITIONS_OF = {LEARNED: LEARNED, UNLEARNED: UNLEARNED}


def _gpt2(k: Keys) -> Model:
    k.refuse("reorder_and_upcast_attn", False, None)
    return _config(k, "gpt2", "gelu_new")


def _bigcode(k: Keys) -> Model:
    model = _config(k, "gpt_bigcode", "gelu_pytorch_tanh")
    alone = k.flag("multi_query", True)
    kv_heads = 1 if alone else model.kv_heads
    return replace(model, kv_heads=kv_heads, traits=replace(model.traits, multi_query=alone))


def _config(k: Keys, family: str, activation: str) -> Model:
    """The keys of both, with one's default of the activation."""
    hidden = k.count("n_embd", 768)
    heads = k.count("n_head", 12, 10**6)
    k.divides("n_embd", hidden, "n_head", heads)
    k.refuse("add_cross_attention", False, None)
    positions = k.count("n_positions", 1024)
    where = k.word("position_embedding_type", LEARNED, POSITIONS_OF)  # of Megatron alone
    return Model(
        family=family,
        layers=k.count("n_layer", 12, 100_000),
        **own_keys(hidden, heads),
        intermediate_size=k.count_or("n_inner", 4 * hidden),
        vocab_size=k.count("vocab_size", 50_257),
        max_positions=positions,
        position_rows=positions if where == LEARNED else 0,
        traits=Traits(
            positions="" if where == LEARNED else where,
            activation=k.word("activation_function", activation, ACTIVATIONS),
            tied_embeddings=k.flag("tie_word_embeddings", True),
            attention_dropout=k.dropout("attn_pdrop", 0.1),
            residual_dropout=k.dropout("resid_pdrop", 0.1),
            embedding_dropout=k.dropout("embd_pdrop", 0.1),
        ),
    )


def embed(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    x = wanted(t, embedding(t, "wte", ids, VOCAB / TP, D, s.traits.tied_embeddings))
    if s.traits.positions != UNLEARNED:
        positions = t.input("position_ids", (1, S / CP), "int64", needs_grad=False)
        x = add(t, x, embedding(t, "wpe", positions, POSITIONS, D, tied=False), "sum")
    return dropout(t, x, "drop") if s.traits.embedding_dropout else x


def _bigcode_embed(t: Tape, s: Structure) -> Tensor:
    t.buffer("bias", (CONTEXT, CONTEXT), "bool")  # a mask of older versions; nothing reads it
    return embed(t, s)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = layer_norm(t, x, D, "ln_1")
    with t.scope("attn", Part.ATTENTION):
        joint = linear(t, "c_attn", h, D, QKV / TP, bias=True, transposed=True)
        q, k, v = joint_heads(t, joint, [(*TOKENS, Q / TP)] * 3)
        h = attention_core(t, s, q, k, v, kind, softmax_fp32=False)
        h = linear(t, "c_proj", h, Q / TP, D, bias=True, transposed=True)
        h = dropped(t, s, h, "resid_dropout")
    x = add(t, x, h, "residual")
    h = t.again(MLP, lambda x: _mlp(t, s, x), x)
    with t.scope("mlp"):
        h = dropped(t, s, h, "dropout")
    return add(t, x, h, "residual")


def _bigcode_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = layer_norm(t, x, D, "ln_1")
    with t.scope("attn", Part.ATTENTION):
        joint = linear(t, "c_attn", h, D, QKV / TP, bias=True)
        if s.traits.multi_query:
            q, k, v = joint_heads(t, joint)
        else:
            joint = heads_first(t, joint, joint.shape, copies_grad=True)
            q, k, v = split(t, joint, (QUERIES, KEYS, KEYS))
        h = attention_core(t, s, q, k, v, kind)
        h = dropped(t, s, linear(t, "c_proj", h, Q / TP, D, bias=True), "resid_dropout")
    x = add(t, h, x, "residual")
    h = layer_norm(t, x, D, "ln_2")
    with t.scope("mlp"):
        h = dropped(t, s, plain_mlp(t, h, s.traits.activation, True, ("c_fc", "c_proj")), "dropout")
    return add(t, x, h, "residual")


def _mlp(t: Tape, s: Structure, x: Tensor) -> Tensor:
    h = layer_norm(t, x, D, "ln_2")
    with t.scope("mlp"):
        return plain_mlp(t, h, s.traits.activation, True, ("c_fc", "c_proj"), transposed=True)


_head = head_behind(layer_norm, "ln_f", width=D)
FAMILIES = {
    "gpt2": family_of("gpt2", _gpt2, embed, _layer, _head, arguments=MASK),
    "gpt_bigcode": family_of("gpt_bigcode", _bigcode, _bigcode_embed, _bigcode_layer, _head),
}
