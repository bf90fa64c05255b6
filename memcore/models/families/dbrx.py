"""DBRX: LayerNorms without biases, one joint projection that is clipped, and a mixture of which
transformers runs one expert after another."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from memcore.errors import shown
from memcore.layers.experts import routed_experts, taken, top_k
from memcore.layers.ops import (
    HIDDEN,
    TOKENS,
    activation,
    attended,
    dropped,
    head_behind,
    joint_heads,
    rotary,
    rotary_tables,
    token_embedding,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, routing, with_experts
from memcore.models.model import Model
from memcore.tape.dims import (
    EARLIER,
    EXPERT_F,
    EXPERT_ROWS,
    EXPERTS,
    LAST,
    QKV,
    SECOND,
    TOP_K,
    TP,
    D,
)
from memcore.tape.kinds import Part
from memcore.tape.primitives import (
    add,
    keeps_input,
    layer_norm,
    linear,
    multiply,
    plain_product,
    softmax,
)
from memcore.tape.structure import Structure, Traits
from memcore.tape.tape import Gradients, Tape, Tensor


def _config(k: Keys) -> Model:
    hidden = k.count("d_model", 2048)
    heads = k.count("n_heads", 16, 10**6)
    k.divides("d_model", hidden, "n_heads", heads)
    k.refuse("tie_word_embeddings", False)
    own = k.within("attn_config")
    kv_heads = own.count("kv_n_heads", 1, 10**6)
    k.divides("n_heads", heads, "attn_config.kv_n_heads", kv_heads)
    dropped, clipped = own.dropout("attn_pdrop", 0.0), own.config.get("clip_qkv") is not None
    k.absorb("attn_config", own)
    dim = max(1, hidden // heads)
    ffn = k.within("ffn_config", {"moe_top_k": "num_experts_per_tok"})
    size = ffn.count("ffn_hidden_size", 3584)
    routed = routing(ffn, "moe_num_experts", 4, 1, k)
    model = Model(
        family="dbrx",
        layers=k.count("n_layers", 24, 100_000),
        hidden_size=hidden,
        intermediate_size=size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        rotary_dim=dim,
        vocab_size=k.count("vocab_size", 32_000),
        max_positions=k.count("max_seq_len", 2048),
        traits=Traits(
            activation=_activation(ffn),
            attention_dropout=dropped,
            residual_dropout=k.dropout("resid_pdrop", 0.0),
            attention_clipped=clipped,
            router_jitter=ffn.config.get("moe_jitter_eps") is not None,
            router_normalised=ffn.config.get("moe_normalize_expert_weights", 1.0) is not None,
        ),
    )
    k.absorb("ffn_config", ffn)
    return with_experts(model, routed, size)


def _activation(ffn: Keys) -> str:
    given = ffn.config.get("ffn_act_fn")
    word = given.get("name", "silu") if isinstance(given, Mapping) else "silu"
    if word not in ("silu", "gelu") or (given is not None and not isinstance(given, Mapping)):
        ffn.fail("ffn_act_fn", f'{shown(given)} is not known; use {{"name": "silu"}} or gelu')
        return "silu"
    return str(word)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("norm_attn_norm"):
        h = _attention(t, s, layer_norm(t, x, D, "norm_1", bias=False), kind)
        x = add(t, dropped(t, s, h, "attention dropout"), x, "residual")
        h = layer_norm(t, x, D, "norm_2", bias=False)
    with t.scope("ffn"):
        h = _mixture(t, s, h)
    return add(t, x, dropped(t, s, h, "mixture dropout"), "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("attn", Part.ATTENTION):
        joint = linear(t, "Wqkv", x, D, QKV / TP, bias=False)
        if s.traits.attention_clipped:
            joint = keeps_input(t, joint, "clipped")
        q, k, v = joint_heads(t, joint)
        q, k = rotary(t, q, k, rotary_tables(t))
        return attended(t, s, q, k, v, kind, "out_proj", bias=False, joint_v=True)


def _mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("router"):
        if s.traits.router_jitter and not s.served:
            x = _jittered(t, x)
        logits = linear(t, "layer", x, D, EXPERTS, bias=False)
        weights, index = top_k(t, softmax(t, logits, "softmax"), "top_k")
        if s.traits.router_normalised:
            weights = _normalised(t, weights)
    if s.served or s.exchanges:
        return routed_experts(t, s, x, weights, index)
    with t.scope("experts.mlp"):
        out = _one_by_one(t, s, x, weights, index)
        t.use(weights, index)
        return out


def _jittered(t: Tape, x: Tensor) -> Tensor:
    """x *= noise, in place. Saves the noise."""
    t.start("jittered", x)
    noise = t.new("noise", x.shape, x.dtype)
    out = Tensor(x.storage, x.shape, x.dtype, False)
    t.finish("jittered", [x], out, [noise], t.grads("jitter grad", x))
    return out


def _normalised(t: Tape, x: Tensor) -> Tensor:
    """x / torch.norm(x, p, -1). Saves x and the norm."""
    t.start("weights, normalised", x)
    norm = t.new("norm of weights", (*x.shape[:-1], 1), x.dtype)
    out = t.new("weights, normalised", x.shape, x.dtype)

    def backward(g: Gradients) -> Gradients:
        pair = [t.new(f"weights grad, {n}", x.shape, x.dtype) for n in ("x", "norm")]
        grad = t.new("weights grad", x.shape, x.dtype)
        t.free(*pair)
        return [grad]

    t.finish("weights, normalised", [x], out, [x, norm], backward)
    return out


NAMES = ("v1", "w1", "w2")
LOOP = (EARLIER, SECOND, LAST)  # rows of experts: backward begins with the last


def _one_by_one(t: Tape, s: Structure, x: Tensor, weights: Tensor, index: Tensor) -> Tensor:
    """DbrxExperts: a loop over experts; HIDDEN. In backward each of them has a gradient of every
    weight that is as large as that of all, zeros but for its own, and these are summed one after
    another: three of a kind are there at once from the second expert on."""
    whole = [_view(t, t.parameter(name, (EXPERT_ROWS / TP, D)), name) for name in NAMES]
    t.start("experts of rows", index)
    out = t.new("sum over experts", HIDDEN, x.dtype)
    masks = [t.new("experts of rows", (*TOKENS, TOP_K, n), "int64") for n in (EXPERTS, 1)]
    for rows in LOOP:
        v1, w1, w2 = (_own(t, w, f"{name}, own") for w, name in zip(whole, NAMES, strict=True))
        t.start("places of rows", *masks)
        places = t.new("places of rows", (rows, 2), "int64")
        h = taken(t, x, places, (rows, D), "rows by expert")
        gate = plain_product(t, h, w1, D, EXPERT_F / TP)
        up = plain_product(t, h, v1, D, EXPERT_F / TP)
        h = multiply(t, activation(t, gate, s.traits.activation), up, "gate x up")
        h = plain_product(t, h, w2, EXPERT_F / TP, D)
        h = multiply(t, h, taken(t, weights, places, (rows, 1), "weights by expert"), "weighted")
        out = _summed(t, out, h, places)
    t.use(*masks)
    return out


def _view(t: Tape, w: Tensor, name: str) -> Tensor:
    """A weight as several operations read it, whose gradients are summed here."""
    out = Tensor(w.storage, w.shape, w.dtype, False)
    t.finish(name, [w], out, [], lambda g: [g[0]])
    return out


def _own(t: Tape, w: Tensor, name: str) -> Tensor:
    """One expert's rows of a matrix, a view. Its gradient is that of the whole."""
    out = Tensor(w.storage, (EXPERT_F / TP, D), w.dtype, False)
    t.finish(name, [w], out, [], t.grads(f"{name} grad", w))
    return out


def _summed(t: Tape, x: Tensor, rows: Tensor, places: Tensor) -> Tensor:
    """x.index_add_(0, places, rows), in place. Saves rows too, of which it needs the shape."""
    t.start("sum", x, rows, places)
    out = Tensor(x.storage, x.shape, x.dtype, False)

    def backward(g: Gradients) -> Gradients:
        return [g[0], t.new("weighted grad", rows.shape, rows.dtype)]

    t.finish("sum", [x, rows], out, [places, rows], backward)
    return out


_embed = partial(token_embedding, name="wte")
_head = head_behind(layer_norm, "norm_f", width=D, bias=False)
FAMILY = family_of("dbrx", _config, _embed, _layer, _head)
