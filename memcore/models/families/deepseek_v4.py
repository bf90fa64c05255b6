"""DeepSeek-V4: one key and value of a token for all heads, within a window, and beyond it entries
of several tokens each, of which an indexer chooses in some layers (layers/entries.py). The residual
is several streams (layers/streams.py), the output's projection is in groups, and every layer has
experts, which a few first layers choose by a table of tokens.
"""

from __future__ import annotations

from dataclasses import replace

from memcore.errors import shown
from memcore.layers.entries import beyond, compressed, turned_tail
from memcore.layers.experts import Stacks, routed_experts, top_k
from memcore.layers.ops import (
    PRODUCT,
    QUERIES,
    TOKENS,
    activation,
    causal_lm_head,
    core,
    mask_of,
    masked,
    rms_norm_fp32_weight,
    rotary_tables,
)
from memcore.layers.streams import mixed, norm_without_weight, one_stream, spread, widened
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, llama_like, routing, with_experts
from memcore.models.families.family import listed
from memcore.models.families.gpt_oss import less_maximum, with_sinks
from memcore.models.families.llama import embed as embed_tokens
from memcore.models.model import Entries, Indexer, Model
from memcore.tape.dims import (
    CP,
    EXPERT_F,
    EXPERTS,
    HALF_ROTARY,
    HEAD_DIM,
    HEADS,
    OUT_GROUPS,
    OUT_LOW,
    OUT_RANK,
    OUT_WIDE,
    Q_RANK,
    REPEATED,
    SHARED_F,
    SINKED,
    TOP_K,
    TP,
    VIEWED_KV,
    VOCAB,
    B,
    D,
    Factor,
    Q,
    S,
    Shape,
)
from memcore.tape.kinds import SLIDING, Part, coarse, fine, hashed, is_hashed
from memcore.tape.primitives import (
    add,
    cast,
    contiguous,
    dropout,
    factors,
    flash_attention,
    heads_first,
    in_backward,
    joined,
    keeps_input,
    keeps_result,
    linear,
    matmul,
    multiply,
    scale,
    softmax,
    split,
    unary,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Gradients, Tape, Tensor

FINE_WORD, COARSE_WORD = "compressed_sparse_attention", "heavily_compressed_attention"
WORDS = {"sliding_attention": SLIDING, FINE_WORD: fine(SLIDING), COARSE_WORD: coarse(SLIDING)}
RATIOS = {0: SLIDING, 4: fine(SLIDING), 128: coarse(SLIDING)}
RATES = {FINE_WORD: ("compress_rate_csa", 4), COARSE_WORD: ("compress_rate_hca", 128)}
HASHES = {"hash_moe": True, "moe": False}
ONE_KEY: Shape = (B, 1, S / CP, HEAD_DIM)


def _config(k: Keys) -> Model:
    model = llama_like(k, "deepseek_v4")
    k.assumed.pop("intermediate_size", None)  # which transformers reads as the experts'
    if model.kv_heads != 1:
        k.fail("num_key_value_heads", f"{model.kv_heads:,}: one key and value is of all heads")
    for key, *harmless in (
        ("n_shared_experts", 1, None),
        ("scoring_func", "sqrtsoftplus"),
        ("attention_bias", False, None),
        ("index_topk_pattern", None),
    ):
        k.refuse(key, *harmless)
    k.config.get("expert_dtype")  # read with the quantization
    size = k.count("moe_intermediate_size", 2048)
    rates = _rates(k)
    entries = Entries(
        rates[FINE_WORD],
        rates[COARSE_WORD],
        k.count("o_groups", 8, 10**6),
        k.count("o_lora_rank", 1024),
    )
    k.divides("num_attention_heads", model.heads, "o_groups", entries.groups)
    indexer = Indexer(
        k.count("index_n_heads", 64, 10**6),
        k.count("index_head_dim", 128, 10**6),
        k.count("index_topk", 512),
    )
    turned = _turned(k, model.head_dim)
    if turned > indexer.dim:
        k.fail("index_head_dim", f"must be at least the dimensions that turn, {turned:,}")
    traits = replace(model.traits, balanced=k.count("hc_sinkhorn_iters", 20, 1000))
    rows = model.max_positions
    model = replace(
        model,
        traits=traits,
        intermediate_size=size,
        rotary_dim=turned,
        rotary_tables=(("main", rows), ("compress", rows)),
        window=k.count("sliding_window", 128),
        query_rank=k.count("q_lora_rank", 1024),
        shared_size=size,
        streams=k.count("hc_mult", 4, 1000),
        entries=entries,
        indexer=indexer,
        kinds=_kinds(k, model.layers),
    )
    return with_experts(model, routing(k, "n_routed_experts", 256, 6), size)


def _turned(k: Keys, head_dim: int) -> int:
    """Dimensions of a head that turn: a share of it, or as many as older files name."""
    named = k.count_or_zero("qk_rope_head_dim", 0)
    share = k.config.get("partial_rotary_factor")
    if share is None:
        return named or int(head_dim * 64 / 512)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        k.fail("partial_rotary_factor", f"must be a share of a head, not {shown(share)}")
        return named or head_dim
    return int(head_dim * share)


def _rates(k: Keys) -> dict[str, int]:
    """Tokens of an entry by the kind of layer."""
    given = k.config.get("compress_rates")
    if given is not None and not isinstance(given, dict):
        k.fail("compress_rates", f"must be an object, in braces, not {shown(given)}")
    inside = k.within("compress_rates") if isinstance(given, dict) else None
    rates = {}
    for word, (older, default) in RATES.items():
        said = inside.count_or(word, default, 10**6) if inside else default
        rates[word] = k.count_or(older, said, 10**6)
    if inside:
        k.absorb("compress_rates", inside)
    return rates


def _kinds(k: Keys, layers: int) -> tuple[str, ...]:
    """What each layer sees beyond its window, and how it chooses experts."""
    kinds = listed(k, "layer_types", layers, WORDS, ", ")
    if not kinds:  # tokens of an entry, 0 for a window alone; then those of layers that predict
        kinds = listed(k, "compress_ratios", layers, RATIOS, ", ")
    if not kinds:
        pair = (coarse(SLIDING), fine(SLIDING))
        kinds = [coarse(SLIDING) if i < 2 else pair[i % 2] for i in range(layers)]
    by_table = listed(k, "mlp_layer_types", layers, HASHES)
    first = k.count_or_zero("num_hash_layers", 3)
    if by_table is None:
        by_table = [i < first for i in range(layers)]
    return tuple(
        hashed(kind) if there else kind for kind, there in zip(kinds, by_table, strict=True)
    )


def _embed(t: Tape, s: Structure) -> Tensor:
    return widened(t, embed_tokens(t, s))


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    rounds = s.traits.balanced
    post, comb, h = mixed(t, x, "attn_hc", rounds)
    h = _attention(t, s, rms_norm_fp32_weight(t, h, "input_layernorm"), kind)
    x = spread(t, x, h, post, comb, "attn_hc")
    post, comb, h = mixed(t, x, "ffn_hc", rounds)
    h = _mixture(t, s, rms_norm_fp32_weight(t, h, "post_attention_layernorm"), kind)
    return spread(t, x, h, post, comb, "ffn_hc")


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return causal_lm_head(t, s, rms_norm_fp32_weight(t, one_stream(t, x, "hc_head"), "norm"))


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    which = " (compress)" if compressed(kind) else " (main)"
    tables = rotary_tables(t, which, width=HALF_ROTARY)
    with t.scope("self_attn", Part.ATTENTION):
        low = linear(t, "q_a_proj", x, D, Q_RANK, bias=False)
        low = rms_norm_fp32_weight(t, low, "q_a_norm", Q_RANK)
        q = linear(t, "q_b_proj", low, Q_RANK, Q / TP, bias=False)
        q = norm_without_weight(t, heads_first(t, q, QUERIES, copies_grad=False), "q_b_norm")
        q = turned_tail(t, q, tables, "q_rotary")
        kv = linear(t, "kv_proj", x, D, HEAD_DIM, bias=False)
        kv = rms_norm_fp32_weight(t, kv, "kv_norm", HEAD_DIM)
        kv = heads_first(t, kv, ONE_KEY, copies_grad=False)
        kv = turned_tail(t, kv, tables, "kv_rotary")
        sinks = t.parameter("sinks", (HEADS / TP,))
        of, masks = compressed(kind), []
        if of:
            entries, mask = beyond(t, s, x, low, kind, tables)
            kv = joined(t, [kv, entries], (B, 1, of.keys, HEAD_DIM), "keys and entries")
            if mask:
                masks.append(_of_both(t, kind, mask, of.keys))
        out = core(t, lambda given: _core(t, s, kind, *given), q, kv, sinks, *masks)
        back = turned_tail(t, out, tables, "out_rotary")
        t.use(low, q, kv, out, *masks)
        return _projected(t, back)


def _core(
    t: Tape,
    s: Structure,
    kind: str,
    q: Tensor,
    kv: Tensor,
    sinks: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """Heads' results, (B, heads, tokens, HEAD_DIM), of keys that are values too."""
    if s.served:
        lse = (B, HEADS / TP, S / CP)
        out = flash_attention(t, q, kv, kv, lse, PRODUCT, s.attention)
        return Tensor(out.storage, QUERIES, out.dtype, out.needs_grad, out.node, out.index)
    of = compressed(kind)
    keys, sinked = (of.keys, of.sinked) if of else (S, SINKED)
    k = _to_heads(t, kv, (B, REPEATED, keys, HEAD_DIM), "k, repeated")
    v = _to_heads(t, kv, (B, VIEWED_KV, keys, HEAD_DIM), "v, repeated")
    scores_of: Shape = (B, HEADS / TP, S / CP, keys)
    scores = scale(t, matmul(t, q, k, scores_of, HEAD_DIM, "scores"), "scores, scaled")
    scores = add(t, scores, mask, "scores, masked") if mask else masked(t, scores, *mask_of(kind))
    scores = with_sinks(t, scores, sinks, (B, HEADS / TP, S / CP, sinked))
    probabilities = softmax(t, less_maximum(t, scores), "softmax")
    (probabilities,) = split(t, probabilities, [scores_of], sliced=True)
    if s.traits.attention_dropout:
        probabilities = dropout(t, probabilities, "attn_dropout")
    probabilities = cast(t, probabilities, v.dtype, "probabilities")
    out = matmul(t, probabilities, v, QUERIES, keys, "weighted values")
    return contiguous(t, out, QUERIES, "results")


def _of_both(t: Tape, kind: str, mask: Tensor, keys: Factor) -> Tensor:
    """The mask of the window, and beside it that of the entries."""
    name, role = mask_of(kind)
    window = t.shared(name, (B, 1, S / CP, S), t.parameter_dtype, role)
    t.start("mask of both", window, mask)
    both = t.new("mask of both", (B, 1, S / CP, keys), t.parameter_dtype)
    t.finish("mask of both", [mask], both, [], lambda g: [])
    return both


def _to_heads(t: Tape, kv: Tensor, shape: Shape, name: str) -> Tensor:
    """One key and value as every head's, as a product of batches wants them."""
    out = unary(t, kv, name, shape)
    wide: Shape = (B, HEADS / TP, *shape[2:])
    return Tensor(out.storage, wide, out.dtype, out.needs_grad, out.node, out.index)


def _projected(t: Tape, x: Tensor) -> Tensor:
    """Heads' results to the hidden size: each group of heads compressed, then all together."""
    wide: Shape = (*TOKENS, OUT_GROUPS / TP, OUT_WIDE)
    x = contiguous(t, x, wide, "groups of heads")
    low = _by_group(t, x)
    low = contiguous(t, low, (*TOKENS, OUT_LOW / TP), "groups, joined")
    return linear(t, "o_b_proj", low, OUT_LOW / TP, D, bias=False)


def _by_group(t: Tape, x: Tensor) -> Tensor:
    """Each group with its weight. Saves x. Backward copies the weight's gradient, made by group,
    into the weight's shape."""
    with t.scope("o_a_proj"):
        w = t.parameter("weight", (OUT_LOW / TP, OUT_WIDE))
        if t.autocast:
            x, w = (cast(t, of, "bf16", f"{n} (bf16)") for of, n in ((x, "input"), (w, "weight")))
        flops = (2.0, (*TOKENS, OUT_GROUPS / TP, OUT_WIDE, OUT_RANK))
        t.start("bmm", x, w, flops=[flops], product="bmm")
        out = t.new("out", (*TOKENS, OUT_GROUPS / TP, OUT_RANK), x.dtype)

        def backward(g: Gradients) -> Gradients:
            dx = t.grad("input grad", x)
            if not w.needs_grad:
                return [dx, None]
            by_group = t.new("weight grad, by group", w.shape, w.dtype)
            dw = t.new("weight grad", w.shape, w.dtype)
            t.free(by_group)
            return [dx, dw]

        t.finish("bmm", [x, w], out, factors(x, w), backward, flops=in_backward(flops, x, w))
        return out


def _mixture(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("mlp"):
        routed = routed_experts(t, s, x, *_router(t, x, is_hashed(kind)), STACKS)
        return add(t, routed, _shared(t, s, x), "routed and shared")


def _router(t: Tape, x: Tensor, by_table: bool) -> tuple[Tensor, Tensor]:
    """Weights and indices of each token's experts: the largest scores, or those of a table."""
    with t.scope("gate"):
        logits = linear(t, "logits", x, D, EXPERTS, bias=False)
        scores = keeps_result(t, keeps_input(t, logits, "softplus"), "square root")
        if by_table:
            t.buffer("tid2eid", (VOCAB, TOP_K), "int64")
        weights, index = top_k(t, scores, "table" if by_table else "top_k")
        return scale(t, _shares(t, weights), "weights, scaled"), index


def _shares(t: Tape, x: Tensor) -> Tensor:
    """x / sum(x). Saves x and the sum."""
    t.start("weights, normalised", x)
    total = t.new("sum of weights", (*x.shape[:-1], 1), x.dtype)
    out = t.new("weights, normalised", x.shape, x.dtype)

    def backward(g: Gradients) -> Gradients:
        direct, through_sum = (t.new(f"weights grad, {n}", x.shape, x.dtype) for n in ("x", "sum"))
        grad = t.new("weights grad", x.shape, x.dtype)
        t.free(direct, through_sum)
        return [grad]

    t.finish("weights, normalised", [x], out, [x, total], backward)
    return out


def _clamped(t: Tape, s: Structure, gate: Tensor, up: Tensor) -> Tensor:
    """act(gate) * up, both clamped before."""
    kind = s.traits.activation
    gate, up = (keeps_input(t, of, f"{n}, clamped") for of, n in ((gate, "gate"), (up, "up")))
    return multiply(t, activation(t, gate, kind), up, f"{kind}(gate) x up")


def _gate(t: Tape, s: Structure, both: Tensor) -> Tensor:
    return _clamped(t, s, *split(t, both, [(both.shape[0], EXPERT_F / TP)] * 2))


STACKS = Stacks(_gate)


def _shared(t: Tape, s: Structure, x: Tensor) -> Tensor:
    bias = s.traits.mlp_bias
    with t.scope("shared_experts"):
        gate, up = (linear(t, n, x, D, SHARED_F / TP, bias) for n in ("gate_proj", "up_proj"))
        out = linear(t, "down_proj", _clamped(t, s, gate, up), SHARED_F / TP, D, bias)
        t.use(x)
        return out


# Files in 8 bits have no scales for these (transformers' _keep_in_fp32_modules and its comment).
WIDE = (
    "*.compressor.kv_proj", "*.compressor.gate_proj", "*.indexer.kv_proj", "*.indexer.gate_proj",
    "*.weights_proj", "*.attn_hc.fn", "*.ffn_hc.fn",
)  # fmt: skip
FAMILY = family_of("deepseek_v4", _config, _embed, _layer, _head, cache=(HEAD_DIM,), wide=WIDE)
