"""Megatron: Megatron-Core's mixtures of experts and latent attention, with TE's kernels.

Follows megatron/core/transformer (moe/*.py, multi_latent_attention.py) at 23e00ed (October 2025)
and transformer_engine/pytorch 2.11 (module/grouped_linear.py, permutation.py), with permutation and
rotary embedding fused. Nothing is dropped. Where routing is balanced, a rank's experts together get
as many rows as its own tokens need, tokens x TOP_K; else the fullest rank's get more (ARRIVED).
Ranks that share each expert (ETP) gather the rows of all of them, and compute a part of each.
"""

from __future__ import annotations

from collections.abc import Callable

from memcore.layers.experts import ROWS, exchanged, normalised, top_k
from memcore.layers.ops import QUERIES, rms_norm
from memcore.tape import fused
from memcore.tape.dims import (
    ARRIVED,
    COMPUTED,
    CP,
    EP,
    ETP,
    EXPANDED,
    EXPERT_F,
    EXPERT_FUSED,
    EXPERTS,
    HEADS,
    KV_RANK,
    LATENT,
    OF_EXPERTS,
    Q_RANK,
    RANK,
    ROTARY,
    ROUTED,
    ROW_MAP,
    SEQ,
    TOP_K,
    TP,
    V_DIM,
    B,
    D,
    Factor,
    Q,
    S,
    Shape,
)
from memcore.tape.kinds import Module, Role
from memcore.tape.primitives import (
    add,
    cast,
    dropout,
    gather,
    heads_first,
    keeps_result,
    linear,
    plain_product,
    scale,
    softmax,
    split,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Gradients, Remade, Tape, Tensor
from memcore.words.training import ALL_LINEAR, MLA_UP_PROJ, MOE, MOE_ACT, SHARED_EXPERTS

OWN: Shape = (B, S / CP / SEQ)  # the tokens that this rank routes
RESULTS: Shape = (B, HEADS / TP, S / CP, V_DIM)
EXPERT_STACK = EXPERTS / EP  # the experts of one rank

# Operations that Megatron-LM starts in forward for one that is declared here:
# megatron/core/transformer/moe, moe_utils.py (topk_routing_with_score_function),
# token_dispatcher.py (preprocess, with its copies to the host) and
# transformer_engine/pytorch/triton/permutation.py. Auxiliary losses are left out.
SCATTER = 6  # weights and the routing map: zeros, scatter; zeros, int, scatter, bool
PERMUTE = 17  # 9 of the counts of rows, 4 copies of them to the host, the map, the rows
SORT = 2

Shared = Callable[[Tape, Structure, Tensor], Tensor]


def mixture(
    t: Tape,
    s: Structure,
    x: Tensor,
    score: str = "softmax",
    shared: Shared | None = None,
    biases: bool = False,
) -> Tensor:
    """A mixture of experts, run again whole where a plan says so (its `moe`)."""
    return t.again(MOE, lambda x: _mixture(t, s, x, score, shared, biases), x)


def _mixture(
    t: Tape, s: Structure, x: Tensor, score: str, shared: Shared | None, biases: bool
) -> Tensor:
    """MoELayer with MoEAlltoAllTokenDispatcher and TEGroupedMLP: (batch, sequence, D) to the same.

    Kept for backward: x (by the router and the shared experts), the rows that fc1 reads, those that
    fc2 reads, fc1's result and each row's weight (by the weighted SwiGLU), and maps of rows. Four
    more tensors of ROWS have names until the layer's forward returns.

    score    'softmax' or 'sigmoid', of the router's logits
    shared   experts that every token passes, run while rows are under way
    biases   router and experts have them, and gate and up are clamped (gpt-oss)
    """
    sent, here = ROUTED, ARRIVED if s.exchanges else ROUTED
    weights = router(t, s, x, score, biases)
    dispatched, row_map = _permuted(t, s, x, weights)
    arrived = [_exchanged(t, s, rows, "dispatch", here) for rows in dispatched]
    beside = t.again(SHARED_EXPERTS, lambda x: shared(t, s, x), x) if shared else None
    collected = [_collected(t, s, rows) for rows in arrived]
    rows, weight = _sorted(t, collected, "sort by expert")
    with t.scope("experts"):
        both = grouped_linear(t, "linear_fc1", rows, D, EXPERT_FUSED / ETP, biases)
        both = _clamped(t, both) if biases else both
        kind = s.traits.activation
        made = t.remake(
            MOE_ACT, lambda both, weight: [weighted_swiglu(t, both, weight, kind)], both, weight
        )
        result = grouped_linear(t, "linear_fc2", made.results[0], EXPERT_F / ETP, D)
        made.drop(behind=result)
        result = _biased(t, result, weight) if biases else result
    (sorted_back,) = _sorted(t, [result], "sort by rank")
    t.use(result)
    back = _shared_out(t, s, sorted_back, here)
    out = _unpermuted(t, _exchanged(t, s, back, "combine", sent), row_map)
    if beside:
        out = add(t, out, beside, "routed and shared")
    t.use(dispatched[0], arrived[0], back)
    return out


def router(t: Tape, s: Structure, x: Tensor, score: str, bias: bool = False) -> Tensor:
    """TopKRouter: each token's weight for every expert, zero where it is not sent, (OWN, EXPERTS).

    Logits have the dtype of x, scores are taken in fp32 (moe_router_dtype is not set). Weights that
    are to add up to one come from a softmax of the TOP_K largest logits.
    """
    shape = (*OWN, EXPERTS)
    with t.scope("router"):
        logits = _gating(t, x, bias)
        if score == "softmax" and s.traits.router_normalised:
            largest, index = top_k(t, logits, "top_k")
            chosen = softmax(t, cast(t, largest, "fp32", "largest (fp32)"), "softmax")
            chosen = cast(t, chosen, x.dtype, "weights, cast")
        else:
            taken = softmax if score == "softmax" else keeps_result
            scores = taken(t, cast(t, logits, "fp32", "logits (fp32)"), score)
            chosen, index = top_k(t, cast(t, scores, x.dtype, "scores, cast"), "top_k")
            if s.traits.router_normalised:
                chosen = normalised(t, chosen, "weights, normalised")
        t.start("scatter", chosen, index, started=SCATTER)
        out = t.new("weights of all experts", shape, x.dtype)

        def backward(g: Gradients) -> Gradients:
            return [t.new("weights grad", (*OWN, TOP_K), x.dtype)]

        t.finish("scatter", [chosen], out, [index], backward)
        return out


def _gating(t: Tape, x: Tensor, bias: bool) -> Tensor:
    """RouterGatingLinearFunction: x W. Saves x; unlike Transformer Engine's linears it returns the
    weight's gradient, which is added to the buffer of gradients then."""
    w = t.parameter("weight", (EXPERTS, D))
    biases = [t.parameter("bias", (EXPERTS,))] if bias else []
    flops = (2.0, (*OWN, D, EXPERTS))
    t.start("gating", x, w, *biases, flops=[flops], product="mm")
    out = t.new("logits", (*OWN, EXPERTS), x.dtype)

    def backward(g: Gradients) -> Gradients:
        of = (("input", x), ("weight", w), *(("bias", b) for b in biases))
        return [t.new(f"{n} grad", v.shape, v.dtype) for n, v in of]

    t.finish("gating", [x, w, *biases], out, [x], backward, flops=[(4.0, flops[1])])
    return out


def _permuted(t: Tape, s: Structure, x: Tensor, weights: Tensor) -> tuple[list[Tensor], Tensor]:
    """moe_permute_with_probs: a copy of each token for each of its experts, and its weight there.

    Saves where rows go (int32, 2 EXPERTS + 1 for each token). The dispatcher holds the weights and
    the routing map (bool) as its attributes. A CUDA graph holds its results until the graph of
    backward has been replayed (transformer_engine/pytorch/graph.py: per_callable_static_outputs).
    """
    t.start("permute", x, weights, started=PERMUTE, module=Module.PERMUTE)
    routing = t.new("routing map", weights.shape, "bool")
    row_map = t.new("row map", (*OWN, ROW_MAP), "int32")
    outs = [t.new("rows to send", ROWS, x.dtype), t.new("weights to send", (ROUTED,), x.dtype)]

    def backward(g: Gradients) -> Gradients:
        return [
            t.new(f"{n} grad", of.shape, of.dtype) for n, of in (("x", x), ("weights", weights))
        ]

    held = outs if s.holds_rows else []
    t.finish("permute", [x, weights], outs, [row_map, routing, weights], backward, held=held)
    return outs, row_map


def _unpermuted(t: Tape, rows: Tensor, row_map: Tensor) -> Tensor:
    """moe_unpermute: the rows of each token, which are weighted already, summed. Saves the map."""
    t.start("unpermute", rows, row_map)
    out = t.new("summed rows", (*OWN, D), rows.dtype)
    t.finish("unpermute", [rows], out, [row_map], lambda g: [t.new("rows grad", ROWS, rows.dtype)])
    return out


def _exchanged(t: Tape, s: Structure, x: Tensor, name: str, rows: Factor) -> Tensor:
    """An all-to-all between expert-parallel ranks, by which so many rows come; without such ranks
    it is x."""
    if not s.exchanges:
        return x
    return exchanged(t, x, rows, name, f"{name}, received")


def _collected(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """An all-gather of rows between the ranks that share each expert, which is summed and cut in
    backward. Saves nothing; without such ranks it is x."""
    if not s.gathers:
        return x
    t.start("gather", x)
    out = t.new("rows of every rank", (COMPUTED, *x.shape[1:]), x.dtype)
    t.send("rows of experts", "all-gather", ETP, out.shape, x.dtype)
    t.send("gradients of rows", "reduce-scatter", ETP, out.shape, x.dtype, backward=True)
    t.finish("gather", [x], out, [], t.grads("gather grad", x))
    return out


def _shared_out(t: Tape, s: Structure, x: Tensor, rows: Factor) -> Tensor:
    """A reduce-scatter of the partial results of the ranks that share each expert: this rank's
    rows, summed. Backward gathers. Saves nothing; without such ranks it is x."""
    if not s.gathers:
        return x
    t.start("reduce-scatter", x)
    out = t.new("rows of this rank", (rows, *x.shape[1:]), x.dtype)
    t.send("results of experts", "reduce-scatter", ETP, x.shape, x.dtype)
    t.send("gradients of results", "all-gather", ETP, x.shape, x.dtype, backward=True)
    t.finish("reduce-scatter", [x], out, [], t.grads("rows grad", x))
    return out


def _sorted(t: Tape, rows: list[Tensor], name: str) -> list[Tensor]:
    """moe_sort_chunks_by_index: rows and what comes with them in another order. Saves its map."""
    t.start(name, *rows, started=SORT)
    row_map = t.new(f"{name}, row map", rows[0].shape[:1], "int32")
    outs = [t.new(f"{name}, result", of.shape, of.dtype) for of in rows]
    t.finish(name, rows, outs, [row_map], t.grads(f"{name} grad", *rows))
    return outs


def grouped_linear(
    t: Tape, name: str, x: Tensor, width: Factor, into: Factor, bias: bool = False
) -> Tensor:
    """TEGroupedLinear: each row times the weight of its expert. Saves x, or its copy in 8 bits; of
    a frozen weight nothing.

    Experts have a parameter each; they are stacked here, experts first.
    """
    w = t.parameter(f"{name}.weight", (EXPERT_STACK, into, width), narrow=t.narrow)
    weights = [w]
    if bias:
        weights.append(t.parameter(f"{name}.bias", (EXPERT_STACK, into), role=Role.BIAS))
    rows = x.shape[0]
    flops = (2.0, (rows, width, into))
    t.start(f"{name} grouped gemm", x, *weights, flops=[flops], module=Module.GROUPED)
    read, kept = [x], [x]
    if t.narrow:
        with t.scope(name):
            read, kept = fused.narrowed(t, x, t.narrow, x.storage.remade, learns=w.needs_grad)
    out = t.new(f"{name} out", (rows, into), x.dtype)
    t.use(*read)
    kept = kept if w.needs_grad else []

    def backward(g: Gradients) -> Gradients:  # the weight's goes into the buffer of gradients
        if t.narrow:
            t.free(*fused.twice(t, t.narrow, out.shape, f"{name} output grad"))
        if w.needs_grad:
            t.read_and_write(w.storage, w.shape, t.main_grad)
        dx = t.new(f"{name} input grad", x.shape, x.dtype)
        if t.unfused:
            return [dx, *(t.new(f"{name} weight grad", p.shape, p.dtype) for p in weights)]
        return [dx, *(None for _ in weights)]

    again = [(4.0 if w.needs_grad else 2.0, flops[1])]
    t.finish(f"{name} grouped gemm", [x, *weights], out, kept, backward, flops=again)
    if t.adapters and t.adapters.targets == ALL_LINEAR:
        return _with_adapter(t, name, x, out, width, into)
    return out


def _with_adapter(
    t: Tape, name: str, x: Tensor, base: Tensor, width: Factor, into: Factor
) -> Tensor:
    """base + scaling * B(A(dropout(x))): one adapter for all experts, of which each expert-parallel
    rank has a copy whose gradients are summed over them (Megatron-Bridge, peft/lora.py:
    share_expert_adapters; peft/utils.py: _allreduce_shared_expert_grad). A saves the rows."""
    assert t.adapters
    with t.scope(f"{name}.adapter"):
        a = t.parameter("linear_in.weight", (OF_EXPERTS / EP, RANK, width), adapter=True)
        b = t.parameter("linear_out.weight", (OF_EXPERTS / EP, into, RANK), adapter=True)
        h = dropout(t, x, "dropout") if t.adapters.dropout else x
        with t.scope("linear_in"):
            h = plain_product(t, h, a, width, RANK)
        with t.scope("linear_out"):
            h = plain_product(t, h, b, RANK, into)
        for w in (a, b):
            what = "gradients of experts' adapters"
            t.send(what, "all-reduce", EP, w.shape, w.dtype, backward=True)
        return add(t, base, scale(t, h, "scaled"), "sum")


def weighted_swiglu(t: Tape, both: Tensor, weight: Tensor, kind: str) -> Tensor:
    """WeightedSwiGLUFunction: act(gate) * up * weight in one kernel. Saves what it reads."""
    t.start(f"weighted {kind}(gate) x up", both, weight)
    out = t.new("weighted product", (both.shape[0], EXPERT_F / ETP), both.dtype)

    def backward(g: Gradients) -> Gradients:
        return [
            t.new(f"{n} grad", of.shape, of.dtype)
            for n, of in (("gate and up", both), ("weights", weight))
        ]

    t.finish(f"weighted {kind}(gate) x up", [both, weight], out, [both, weight], backward)
    return out


def _clamped(t: Tape, both: Tensor) -> Tensor:
    """torch.cat((gate.clamp(max=7), up.clamp(-7, 7))), before the fused activation. The clamps save
    what they read (megatron/core/fusions/fused_bias_geglu.py: weighted_bias_quick_geglu_impl)."""
    t.start("clamp", both, started=4)
    halves = [t.new(f"{n}, clamped", (both.shape[0], EXPERT_F / ETP), both.dtype) for n in HALVES]
    out = t.new("gate and up, clamped", both.shape, both.dtype)
    t.use(*halves)

    def backward(g: Gradients) -> Gradients:
        t.free(*(t.new(f"{n} grad", h.shape, h.dtype) for n, h in zip(HALVES, halves, strict=True)))
        return [t.new("gate and up grad", both.shape, both.dtype)]

    t.finish("clamp", [both], out, [both], backward)
    return out


HALVES = ("gate", "up")


def _biased(t: Tape, rows: Tensor, weight: Tensor) -> Tensor:
    """Each expert's rows plus its bias times their weights, put together (TEGroupedMLP:
    _apply_bias). A loop over experts, whose starts by the host are counted as one expert's."""
    bias = t.parameter("linear_fc2.bias", (EXPERT_STACK, D), role=Role.BIAS)
    t.start("weighted bias", rows, bias, weight, started=3)
    scaled = t.new("bias x weight", rows.shape, rows.dtype)
    summed = t.new("rows and bias", rows.shape, rows.dtype)
    t.use(scaled)
    out = t.new("rows, biased", rows.shape, rows.dtype)
    t.use(summed)

    def backward(g: Gradients) -> Gradients:
        t.free(t.new("bias x weight grad", rows.shape, rows.dtype))
        made = [
            t.new(f"{n} grad", v.shape, v.dtype) for n, v in (("bias", bias), ("weight", weight))
        ]
        return [g[0], *made]

    t.finish("weighted bias", [rows, bias, weight], out, [weight], backward)
    return out


def latent_heads(t: Tape, s: Structure, x: Tensor) -> Remade:
    """MLASelfAttention up to its core: queries, keys (HEAD_DIM wide) and values (V_DIM wide), which
    may be dropped behind it.

    Kept for backward: x, the compressed queries and latents before and after their norms (by the
    norms and by the products that expand them). Queries turn where they are; keys and values are
    written into tensors of their own, and what they were expanded to is freed.
    """
    bias = s.traits.attention_bias
    if s.traits.compressed_queries:
        x_q = linear(t, "linear_q_down_proj", x, D, Q_RANK, bias)
    else:
        x_q = x
    latent = linear(t, "linear_kv_down_proj", x, D, LATENT, bias)
    kv, key = split(t, latent, [(*OWN, KV_RANK), (*OWN, ROTARY)])
    key = gather(t, key)
    return t.remake(MLA_UP_PROJ, lambda *given: _expanded(t, s, *given), x_q, kv, key)


def _expanded(t: Tape, s: Structure, q: Tensor, kv: Tensor, key: Tensor) -> list[Tensor]:
    """Queries, keys and values of compressed ones; the norms are part of the products."""
    if s.traits.compressed_queries:
        q = rms_norm(t, q, "q_layernorm", Q_RANK)
        q = linear(t, "linear_q_up_proj", q, Q_RANK, Q / TP, bias=False)
    else:
        q = linear(t, "linear_q_proj", q, D, Q / TP, bias=False)
    kv = rms_norm(t, kv, "kv_layernorm", KV_RANK)
    both = linear(t, "linear_kv_up_proj", kv, KV_RANK, EXPANDED / TP, bias=False)
    return [_turned_queries(t, q), *_turned_keys(t, both, key)]


def _angles(t: Tape) -> list[Tensor]:
    shape = (S / CP, ROTARY)
    cos = t.shared("rotary cos", shape, t.parameter_dtype, Role.ANGLES)
    return [cos, t.shared("rotary sin", shape, t.parameter_dtype)]


def _turned_queries(t: Tape, q: Tensor) -> Tensor:
    """ApplyMLARotaryEmbQ: writes over the queries, and over their gradient. Saves the angles."""
    tables = _angles(t)
    q = heads_first(t, q, QUERIES, copies_grad=False)
    t.start("q_rotary", q, *tables)
    out = fused.over(q)
    t.finish("q_rotary", [q], out, tables, lambda g: g)
    return out


def _turned_keys(t: Tape, both: Tensor, key: Tensor) -> list[Tensor]:
    """ApplyMLARotaryEmbKV: keys of every head, with the one turned key at their end, and values.
    Saves the angles."""
    tables = _angles(t)
    t.start("kv_rotary", both, key, *tables)
    outs = [t.new("keys", QUERIES, both.dtype), t.new("values", RESULTS, both.dtype)]

    def backward(g: Gradients) -> Gradients:
        return [t.new(f"{n} grad", of.shape, of.dtype) for n, of in (("kv", both), ("key", key))]

    t.finish("kv_rotary", [both, key], outs, tables, backward)
    return outs
