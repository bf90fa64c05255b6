"""DeepSeek-V2, V3, GLM-4.7-Flash: latent attention, dense first layers, shared and routed experts.

Latent attention compresses keys and values of a token to KV_RANK + ROTARY numbers, and serving
caches those. Training expands them before attention, as transformers does, and saves what it
expanded: compression saves nothing there.
"""

from __future__ import annotations

from memcore.layers import megatron
from memcore.layers.experts import normalised, routed_experts, top_k
from memcore.layers.indexer import chosen_tokens
from memcore.layers.ops import (
    PRODUCT,
    QUERIES,
    SCORES,
    TOKENS,
    complex_rotary,
    core,
    gated_mlp,
    masked,
    rms_norm,
    rotary,
    rotary_pairs,
    rotary_tables,
    weighted_values,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import (
    family_of,
    llama_like,
)
from memcore.models.families.llama import embed, head
from memcore.models.families.mixtral import sparse_layer
from memcore.models.model import Model
from memcore.tape.dims import (
    CP,
    EXPANDED,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    KEPT_V,
    KV_RANK,
    LATENT,
    NOPE,
    Q_RANK,
    ROTARY,
    SHARED_F,
    TP,
    V_DIM,
    VALUES,
    B,
    D,
    Q,
    S,
    Shape,
)
from memcore.tape.kinds import Part, turns
from memcore.tape.primitives import (
    add,
    cast,
    contiguous,
    flash_attention,
    heads_first,
    keeps_result,
    linear,
    matmul,
    scale,
    softmax,
    split,
    written,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

RESULTS: Shape = (B, HEADS / TP, S / CP, V_DIM)
UNTURNED: Shape = (B, HEADS / TP, S / CP, NOPE)
TURNED: Shape = (B, HEADS / TP, S / CP, ROTARY)
SHARED_KEY: Shape = (B, 1, S / CP, ROTARY)


def latent(k: Keys, family: str) -> Model:
    """What all families read, and what their rows have."""
    model = llama_like(k, family)
    if model.kv_heads != model.heads:
        k.fail("num_key_value_heads", "must be num_attention_heads: each head expands its own")
    return model


def router_groups(k: Keys, model: Model, default: int | None, default_top: int | None) -> None:
    """Groups of experts, of which a token's experts come from a few only."""
    of = [k.count_or(name, given or 0) for name, given in
          (("n_group", default), ("topk_group", default_top))]  # fmt: skip
    if 0 in of:
        k.fail("n_group" if not of[0] else "topk_group", "missing; this router needs groups")
    else:
        k.divides("n_routed_experts", model.experts, "n_group", of[0])
        if of[1] > of[0]:
            k.fail("topk_group", f"{of[1]:,} of {of[0]:,} groups; use at most all of them")


def _v2(k: Keys) -> Model:
    # The class has no default for num_experts_per_tok; DeepSeek-V2 has 6.
    model = latent(k, "deepseek_v2")
    k.divides("hidden_size", model.hidden_size, "num_attention_heads", model.heads)
    if model.traits.router_grouped:
        router_groups(k, model, None, None)
    return model


def _v3(k: Keys) -> Model:
    model = latent(k, "deepseek_v3")
    router_groups(k, model, 8, 4)
    return model


def _lite(k: Keys) -> Model:
    model = latent(k, "glm4_moe_lite")
    k.assumed.pop("head_dim", None)  # which is what is rotated, and more is
    k.refuse("mlp_layer_types", None, ["dense"] + ["sparse"] * (model.layers - 1))
    router_groups(k, model, 1, 1)
    return model


def attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("self_attn", Part.ATTENTION):
        if t.kernels == "megatron":
            heads = megatron.latent_heads(t, s, x)
            out = core(t, lambda given: _core(t, s, *given), *heads.results)
            heads.drop(behind=out)
            return linear(t, "o_proj", out, VALUES / TP, D, bias)
        if s.traits.compressed_queries:
            low = rms_norm(t, linear(t, "q_a_proj", x, D, Q_RANK, bias), "q_a_layernorm", Q_RANK)
            q = linear(t, "q_b_proj", low, Q_RANK, Q / TP, bias=False)
        else:
            q = linear(t, "q_proj", x, D, Q / TP, bias=False)
        q = heads_first(t, q, QUERIES, copies_grad=True)
        q_pass, q_turn = split(t, q, [UNTURNED, TURNED])
        latent = linear(t, "kv_a_proj_with_mqa", x, D, LATENT, bias)
        kv, k_turn = split(t, latent, [(*TOKENS, KV_RANK), SHARED_KEY])
        kv = rms_norm(t, kv, "kv_a_layernorm", KV_RANK)
        if turns(kind):
            q_turn, k_turn = _rotated(t, s, q_turn, k_turn)
        q = contiguous(t, q_turn, QUERIES, "q, joined", other=q_pass)
        k, v = _expanded(t, kv, k_turn)
        t.use(q_pass, q_turn, latent, kv, k_turn)
        mask = chosen_tokens(t, s, x, low, kind) if s.traits.indexed else None
        out = core(t, lambda h: _core(t, s, h[0], h[1], h[2], mask), q, k, v)
        return linear(t, "o_proj", out, VALUES / TP, D, bias)


def _rotated(t: Tape, s: Structure, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and the one key of all heads, turned in pairs."""
    if s.family == "deepseek_v2":
        return complex_rotary(t, q, k, at_once=False)
    tables = rotary_tables(t)
    if not s.traits.rotary_interleaved:
        return rotary(t, q, k, tables)
    return (
        rotary_pairs(t, q, tables, "q_rotary", sliced=True),
        rotary_pairs(t, k, tables, "k_rotary", sliced=True),
    )


def _expanded(t: Tape, kv: Tensor, k_turn: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of every head from their latent; the rotated key is the same for all."""
    both = linear(t, "kv_b_proj", kv, KV_RANK, EXPANDED / TP, bias=False)
    both = heads_first(t, both, (*TOKENS, EXPANDED / TP), copies_grad=True)
    k_pass, v = split(t, both, [UNTURNED, RESULTS])
    k = t.new("k, joined", QUERIES, both.dtype)
    k = written(t, k, k_pass, "k, unrotated part")
    k = written(t, k, _repeated(t, k_turn), "k, rotated part")
    return k, v


def _repeated(t: Tape, x: Tensor) -> Tensor:
    """One key seen by every head: a view, whose gradients are summed."""
    out = Tensor(x.storage, TURNED, x.dtype, False)
    t.finish("expand", [x], out, [], t.grads("expand grad", x))
    return out


def _core(
    t: Tape, s: Structure, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> Tensor:
    """From heads to their joined results, (batch, sequence, VALUES). `mask`: a layer's own."""
    joined: Shape = (*TOKENS, VALUES / TP)
    if s.attention == "eager":
        if t.kernels != "megatron":  # whose values are a tensor of their own
            v = contiguous(t, v, (*TOKENS, KEPT_V), "v, kept")
        scores = scale(t, matmul(t, q, k, SCORES, HEAD_DIM, "scores"), "scores, scaled")
        scores = add(t, scores, mask, "scores, masked") if mask else masked(t, scores)
        return weighted_values(t, s, scores, v, True, RESULTS, VALUES / TP)
    # flash_attn wants one width: values are padded, results cut. cuDNN, under Megatron, takes both.
    padded = s.attention == "flash" and t.kernels != "megatron"
    if padded:
        v = contiguous(t, v, QUERIES, "v, padded")
    kept = [t.new("mask as bias", mask.shape, v.dtype)] if mask and s.attention == "sdpa" else []
    out = flash_attention(t, q, k, v, (B, HEADS / TP, S / CP), PRODUCT, s.attention, kept)
    if padded:
        return contiguous(t, out, joined, "results, cut")
    return heads_first(t, out, joined, copies_grad=False)


def mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """Routed experts, and shared ones that every token passes, run as one MLP."""
    with t.scope("mlp"):
        if t.kernels == "megatron":
            score = "sigmoid" if s.traits.router_sigmoid else "softmax"
            return megatron.mixture(t, s, x, score, _shared)
        routed = routed_experts(t, s, x, *router(t, s, x, s.traits.router_sigmoid))
        return add(t, routed, _shared(t, s, x), "routed and shared")


def _shared(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return gated_mlp(t, s, x, SHARED_F / TP, "shared_experts")


def router(t: Tape, s: Structure, x: Tensor, sigmoid: bool) -> tuple[Tensor, Tensor]:
    """Weights and indices of each token's experts; the product is taken in fp32.

    What only chooses experts (V3's correction bias, groups) leaves no tensor behind.
    """
    with t.scope("gate"):
        logits = linear(t, "logits", x, D, EXPERTS, bias=False, dtype="fp32")
        if sigmoid:
            scores = keeps_result(t, logits, "sigmoid")
        else:
            scores = softmax(t, cast(t, logits, "fp32", "logits (fp32)"), "softmax")
        if s.traits.router_grouped:
            scores = _of_chosen_groups(t, scores)
        weights, index = top_k(t, scores, "top_k")
        if s.traits.router_normalised:
            weights = normalised(t, weights, "weights, normalised")
        return scale(t, weights, "weights, scaled"), index


def _of_chosen_groups(t: Tape, x: Tensor) -> Tensor:
    """Scores with those of other groups set to zero. Saves the mask."""
    t.start("masked", x)
    out, mask = t.new("masked", x.shape, x.dtype), t.new("group mask", x.shape, "bool")
    t.finish("masked", [x], out, [mask], t.grads("masked grad", x))
    return out


CACHE = (LATENT,)  # one for all heads: every tensor-parallel rank keeps it whole
layer = sparse_layer(attention, mixture, apart=True)

FAMILIES = {
    "deepseek_v2": family_of("deepseek_v2", _v2, embed, layer, head, cache=CACHE),
    "deepseek_v3": family_of("deepseek_v3", _v3, embed, layer, head, cache=CACHE),
    "glm4_moe_lite": family_of("glm4_moe_lite", _lite, embed, layer, head, cache=CACHE),
}
