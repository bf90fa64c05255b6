"""Ops: the parts that decoder layers are built from, written in primitives.

One function per part. Shapes are (batch, sequence, width) unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memcore.tape import fused
from memcore.tape.dims import (
    BESIDE_V,
    BIASED_KV,
    CLASSES,
    COPIED_KV,
    COPIED_MASKED_KV,
    CP,
    FUSED,
    HALF_ROTARY,
    HEAD_DIM,
    HEADS,
    KEPT,
    KV,
    KV_HEADS,
    LABELS,
    MASKED,
    MASKED_KV,
    ONE,
    QKV,
    REACH,
    REPEATED,
    ROTARY,
    SEQ,
    SHARED_F,
    SHARED_FUSED,
    STREAMS,
    TP,
    VOCAB,
    B,
    D,
    F,
    Factor,
    Q,
    S,
    Shape,
)
from memcore.tape.kinds import CHUNKED, EVERY, SLIDING, Part, Role
from memcore.tape.primitives import (
    add,
    cast,
    contiguous,
    dropout,
    embedding,
    flash_attention,
    heads_first,
    keeps_input,
    keeps_result,
    linear,
    log_softmax,
    matmul,
    mean,
    multiply,
    nll_loss,
    power,
    rotate,
    scale,
    shift,
    softmax,
    split,
    wanted,
)
from memcore.tape.structure import CLASSIFICATION, EMBEDDING, FIRST, LABELLED, SPANS, Structure
from memcore.tape.tape import Tape, Tensor
from memcore.words.training import CORE_ATTN, LAYERNORM, MLP

FUSED_GATES = ("silu", "gelu")  # activations that Liger has a gated kernel for
TOKENS: Shape = (B, S / CP)
HIDDEN: Shape = (B, S / CP / SEQ, D)  # the residual stream
STREAMED_HIDDEN: Shape = (*HIDDEN[:-1], STREAMS, D)  # the same of a model with several
QUERY_ROWS: Shape = (*TOKENS, HEADS / TP, HEAD_DIM)
KEY_ROWS: Shape = (*TOKENS, KV_HEADS / TP, HEAD_DIM)
QUERIES: Shape = (B, HEADS / TP, S / CP, HEAD_DIM)
KEYS: Shape = (B, KV_HEADS / TP, S / CP, HEAD_DIM)
REPEATED_KEYS: Shape = (B, REPEATED, S / CP, HEAD_DIM)
SCORES: Shape = (B, HEADS / TP, S / CP, S)
PRODUCT: Shape = (*SCORES, HEAD_DIM)
UNMASKED: Shape = (2, *PRODUCT)  # of a product that no causal mask halves
WINDOWED: Shape = (B, HEADS / TP, S / CP, REACH, HEAD_DIM)


def residual(s: Structure) -> Shape:
    """What goes from one layer to the next."""
    return STREAMED_HIDDEN if s.traits.streams else HIDDEN


def slides(kind: str) -> bool:
    """Whether a layer of this kind sees a window of tokens, or those of its chunk."""
    return kind.startswith((SLIDING, CHUNKED))


def mask_of(kind: str) -> tuple[str, Role | None]:
    """The mask that a layer of this kind is given: its name and role."""
    limit = next((word for word in (SLIDING, CHUNKED) if kind.startswith(word)), "")
    return (f"{limit} mask", None) if limit else (CAUSAL, Role.CAUSAL_MASK)


CAUSAL = "causal mask"


def rms_norm(t: Tape, x: Tensor, name: str, width: Factor = D) -> Tensor:
    """transformers' usual RMSNorm: normalised in fp32, cast back, times the weight."""
    with t.scope(name):
        if t.kernels == "megatron":
            return fused.norm(t, x, width, mean=False)
        if t.kernels == "liger":
            return fused.rms_norm(t, x, width, in_place=True)
        w = t.parameter("weight", (width,))
        return multiply(t, cast(t, _normalised(t, x), x.dtype, "normalised, cast"), w, "weighted")


def rms_norm_fp32_weight(
    t: Tape,
    x: Tensor,
    name: str,
    width: Factor = D,
    widened: bool = False,
    powered: bool = False,
    weight: Tensor | None = None,
) -> Tensor:
    """OLMo 2's RMSNorm: the weight multiplies in fp32, the product is cast back. `widened`: a copy
    of the weight in fp32 is what multiplies, and is kept. `powered`: as in _normalised. `weight`:
    that of other norms too."""
    with t.scope(name):
        if t.kernels == "megatron":
            return fused.norm(t, x, width, mean=False)
        if t.kernels == "liger":
            return fused.rms_norm(t, x, width, in_place=False)
        w = weight or t.parameter("weight", (width,))
        w = cast(t, w, "fp32", "weight (fp32)") if widened else w
        normal = _normalised(t, x, powered)
        return cast(t, multiply(t, normal, w, "weighted"), x.dtype, "cast")


def rms_norm_plus_one(
    t: Tape, x: Tensor, name: str, width: Factor = D, contiguous: bool = True
) -> Tensor:
    """Gemma's RMSNorm: in fp32 throughout, times 1 + weight, cast back."""
    with t.scope(name):
        if t.kernels == "liger":
            return fused.rms_norm(t, x, width, in_place=False, contiguous=contiguous)
        w = t.parameter("weight", (width,))
        normal = _normalised(t, x)
        factor = shift(t, cast(t, w, "fp32", "weight (fp32)"), "1 + weight")
        return cast(t, multiply(t, normal, factor, "weighted"), x.dtype, "cast")


def l2_norm(t: Tape, x: Tensor, name: str, powered: bool = False) -> Tensor:
    """Llama 4's norm of queries and keys: no weight."""
    with t.scope(name):
        return cast(t, _normalised(t, x, powered), x.dtype, "normalised, cast")


def _normalised(t: Tape, x: Tensor, powered: bool = False) -> Tensor:
    """x / sqrt(mean(x^2) + eps) in fp32. `powered`: the root is a power of -1/2, which keeps what
    it is taken of."""
    x32 = cast(t, x, "fp32", "x (fp32)")
    square = power(t, x32, "square")
    shifted = shift(t, mean(t, square, "variance"), "variance + eps")
    rstd = power(t, shifted, "rsqrt") if powered else keeps_result(t, shifted, "rsqrt")
    return multiply(t, x32, rstd, "normalised")


def activation(t: Tape, x: Tensor, kind: str) -> Tensor:
    """The MLP's nonlinearity; composed ones keep every step."""
    if kind == "relu":
        return keeps_result(t, x, "relu")
    if kind in ("silu", "gelu"):
        return keeps_input(t, x, kind)
    with t.scope(kind):
        if kind == "relu2":
            return power(t, keeps_result(t, x, "relu"), "square")
        if kind == "quick_gelu":  # x sigmoid(a x)
            return multiply(t, x, keeps_result(t, scale(t, x, "a x"), "sigmoid"), "product")
        half = scale(t, x, "x / 2")
        if kind == "gelu_new":  # x/2 (1 + tanh(a (x + b x^3)))
            # torch.pow is on autocast's list of what runs in fp32, and all behind it follows.
            wide = cast(t, x, "fp32", "x (fp32)") if t.autocast else x
            inner = add(t, x, scale(t, power(t, wide, "cube"), "cube scaled"), "x + cube")
            inner = scale(t, inner, "inner")
        else:  # gelu_fast: x/2 (1 + tanh(a x (1 + b x x)))
            square = multiply(t, scale(t, x, "b x"), x, "b x x")
            inner = multiply(t, scale(t, x, "a x"), shift(t, square, "1 + b x x"), "inner")
        tanh = keeps_result(t, inner, "tanh")
        return multiply(t, half, shift(t, tanh, "1 + tanh"), "product")


def gated_mlp(
    t: Tape, s: Structure, x: Tensor, width: Factor = F / TP, name: str = "mlp"
) -> Tensor:
    """down(act(gate(x)) * up(x)): four tensors of that width are kept."""
    kind, bias = s.traits.activation, s.traits.mlp_bias
    if t.kernels == "megatron":
        return fused_gated_mlp(t, s, x, width, name)
    with t.scope(name):
        gate = linear(t, "gate_proj", x, D, width, bias)
        if t.kernels == "liger" and kind in FUSED_GATES:
            up = linear(t, "up_proj", x, D, width, bias)
            product = fused.gated(t, gate, up, f"{kind}(gate) x up")
        else:
            gate = activation(t, gate, kind)
            up = linear(t, "up_proj", x, D, width, bias)
            product = multiply(t, gate, up, f"{kind}(gate) x up")
        out = linear(t, "down_proj", product, width, D, bias)
        t.use(x)  # has a name until the MLP returns
        return out


Norm = Callable[[Tape, Tensor, str], Tensor]


def normed_mlp(t: Tape, s: Structure, x: Tensor, norm: str) -> Tensor:
    """The MLP behind its norm, which under Megatron is part of its first product, and runs again
    with it."""
    return t.again(MLP, lambda x: gated_mlp(t, s, rms_norm(t, x, norm)), x)


def behind_norm(
    t: Tape, x: Tensor, name: str, run: Callable[[Tensor], Tensor], norm: Norm | None = None
) -> Tensor:
    """What reads a norm that under Megatron is no part of a product, so that its result may be
    dropped behind it. `norm`: rms_norm where it is not said."""
    normed = t.remake(LAYERNORM, lambda x: [(norm or rms_norm)(t, x, name)], x)
    out = run(*normed.results)
    normed.drop(behind=out)
    return out


# The width of gate and up side by side, by that of one.
BOTH: dict[Factor, Factor] = {F / TP: FUSED / TP, SHARED_F / TP: SHARED_FUSED / TP}


def fused_gated_mlp(
    t: Tape, s: Structure, x: Tensor, width: Factor = F / TP, name: str = "mlp"
) -> Tensor:
    """Phi-3's: gate and up come from one product of twice the width."""
    kind, bias = s.traits.activation, s.traits.mlp_bias
    with t.scope(name):
        both = linear(t, "gate_up_proj", x, D, BOTH[width], bias)
        if t.kernels == "megatron":
            product = fused.activated(t, both, (*both.shape[:-1], width), f"{kind}(gate) x up")
            return linear(t, "down_proj", product, width, D, bias)
        gate, up = split(t, both, [(*TOKENS, F / TP)] * 2)
        if t.kernels == "liger" and kind in FUSED_GATES:
            gate, up = (contiguous(t, x, x.shape, "contiguous") for x in (gate, up))
            product = fused.gated(t, gate, up, f"{kind}(gate) x up")
            t.use(both)  # its halves have names until the MLP returns
        else:
            product = multiply(t, up, activation(t, gate, kind), f"up x {kind}(gate)")
        out = linear(t, "down_proj", product, F / TP, D, bias=False)
        t.use(x)
        return out


def plain_mlp(
    t: Tape, x: Tensor, kind: str, bias: bool, names: tuple[str, str], transposed: bool = False
) -> Tensor:
    """project(act(expand(x)))."""
    h = linear(t, names[0], x, D, F / TP, bias, transposed)
    if t.kernels == "megatron":
        return linear(t, names[1], fused.activated(t, h, h.shape, kind), F / TP, D, bias)
    out = linear(t, names[1], activation(t, h, kind), F / TP, D, bias, transposed)
    t.hold(x)
    return out


def attention_core(
    t: Tape,
    s: Structure,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kind: str,
    softmax_fp32: bool = True,
    always_masked: bool = False,
    joint_v: bool = False,
    repeated: bool = False,
    reused: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """From heads to their joined outputs, (batch, sequence, Q). Causal, within the kind's window,
    or every token to every other.

    always_masked   the model passes SDPA a mask even where its causal flag would do
    joint_v         v is a part of a joint projection, beside rotated copies of q and k
    repeated        SDPA gets keys and values of every query head, with no mask too
    reused          k and v are another layer's, which counts them; copies are this one's
    mask            of this layer's own
    """

    def run(heads: Sequence[Tensor]) -> Tensor:
        q, k, v = heads
        if s.attention == "eager":
            return _eager_core(t, s, q, k, v, kind, softmax_fp32, joint_v, mask)
        if repeated and s.attention == "sdpa" and not slides(kind):
            whole = (B, COPIED_KV if reused else BIASED_KV, S / CP, HEAD_DIM)
            k, v = (contiguous(t, x, whole, f"{n}, repeated") for x, n in ((k, "k"), (v, "v")))
        return _fused_core(t, s, q, k, v, kind, always_masked, joint_v, reused, mask)

    return core(t, run, q, k, v)


def attended(
    t: Tape, s: Structure, q: Tensor, k: Tensor, v: Tensor, kind: str, name: str, bias: bool,
    **how: Any,
) -> Tensor:  # fmt: skip
    """From heads to what a layer adds to the residual stream: attention, and a linear layer of this
    name, with a bias or without. `how`: as in attention_core."""
    out = attention_core(t, s, q, k, v, kind, **how)
    return linear(t, name, out, Q / TP, D, bias)


def dropped(t: Tape, s: Structure, x: Tensor, name: str) -> Tensor:
    """x, with the dropout that the model has on its way to the residual stream, if it has one."""
    return dropout(t, x, name) if s.traits.residual_dropout else x


def core(t: Tape, run: Callable[[Sequence[Tensor]], Tensor], *heads: Tensor) -> Tensor:
    """Attention from its heads to their joined outputs, run again in backward where a plan says so.

    Only this is what Megatron and Korthikanti et al. (2022) recompute selectively.
    """

    def shared(heads: Sequence[Tensor]) -> Tensor:
        _passed_around(t, *heads[1:3])
        return run(heads)

    with t.scope("core", Part.CORE):
        return t.again(CORE_ATTN, lambda *given: shared(given), *heads)


def _passed_around(t: Tape, k: Tensor, v: Tensor) -> None:
    """What context-parallel ranks send each other: keys and values pass through all of them while
    each attends to those that it has, and in backward their gradients too. As many bytes as to
    gather them all (Liu et al., Ring Attention)."""
    one, again = (1.0, PRODUCT), (1.25, PRODUCT)  # attention's FLOPs, a share for each transfer
    for of, name in ((k, "keys"), (v, "values")):
        whole = tuple(S if f is S / CP else f for f in of.shape)
        t.send(name, "all-gather", CP, whole, of.dtype, behind=one, attention=True)
        if of.needs_grad:
            for what, kind in ((name, "all-gather"), (f"gradients of {name}", "reduce-scatter")):
                t.send(what, kind, CP, whole, of.dtype, True, again, attention=True)


def _fused_core(
    t: Tape,
    s: Structure,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kind: str,
    always_masked: bool,
    joint_v: bool,
    reused: bool,
    mask: Tensor | None,
) -> Tensor:
    """One kernel; no scores in HBM."""
    lse = (B, HEADS / TP, S / CP)
    product, kept = (WINDOWED if slides(kind) else PRODUCT), []
    if EVERY in kind:
        product = (2, *product)
    by_sequence = s.traits.masked_images and kind != EVERY
    if s.attention == "sdpa" and (slides(kind) or always_masked or by_sequence):
        reach = S if always_masked or by_sequence else MASKED
        sequences = B if by_sequence else 1  # else a view for every sequence
        name, role = mask_of(kind)
        t.use(t.shared(name, (sequences, 1, S / CP, reach), "bool", role))
        kept.append(t.new("mask as bias", (B, 1, S / CP, reach), v.dtype))
        product = UNMASKED if EVERY in kind else PRODUCT
        if slides(kind) or by_sequence:
            own = COPIED_MASKED_KV if reused else MASKED_KV
            heads = BIASED_KV if by_sequence else own
            k, v = (contiguous(t, x, (B, heads, S / CP, HEAD_DIM), f"{n}, repeated")
                    for x, n in ((k, "k"), (v, "v")))  # fmt: skip
            if joint_v:
                beside = (B, BESIDE_V, S / CP, HEAD_DIM)
                kept.append(t.new("q and k beside v, as projected", beside, v.dtype))
    if mask:
        k, v = (contiguous(t, x, (B, BIASED_KV, S / CP, HEAD_DIM), f"{n}, repeated")
                for x, n in ((k, "k"), (v, "v")))  # fmt: skip
        kept.append(t.new("mask as bias", mask.shape, v.dtype))
    out = flash_attention(t, q, k, v, lse, product, s.attention, kept)
    return heads_first(t, out, (*TOKENS, Q / TP), copies_grad=False)


def _eager_core(
    t: Tape,
    s: Structure,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kind: str,
    softmax_fp32: bool,
    joint_v: bool,
    mask: Tensor | None,
) -> Tensor:
    """Scores and probabilities as tensors; keys and values repeated to every query head."""
    if t.kernels == "megatron":
        return _fused_softmax_core(t, s, q, k, v)
    q = contiguous(t, q, QUERIES, "q, contiguous")
    k = contiguous(t, k, REPEATED_KEYS, "k, repeated")
    v = contiguous(t, v, (*TOKENS, KEPT) if joint_v else REPEATED_KEYS, "v, repeated")
    scores = scale(t, matmul(t, q, k, SCORES, HEAD_DIM, "scores"), "scores, scaled")
    if s.traits.attention_softcap:
        capped = keeps_result(t, scale(t, scores, "scores / cap"), "tanh")
        scores = scale(t, capped, "scores, capped")
    if mask:
        scores = add(t, scores, mask, "scores, masked")
    elif kind != EVERY:
        scores = masked(t, scores, *mask_of(kind))
    return weighted_values(t, s, scores, v, softmax_fp32)


def _fused_softmax_core(t: Tape, s: Structure, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Megatron's DotProductAttention: scaled products, and FusedScaleMaskSoftmax, one kernel in 16
    bits that keeps its result (megatron/core/transformer/dot_product_attention.py)."""
    q = contiguous(t, q, QUERIES, "q, contiguous")
    k = contiguous(t, k, REPEATED_KEYS, "k, repeated")
    v = contiguous(t, v, REPEATED_KEYS, "v, repeated")
    scores = matmul(t, q, k, SCORES, HEAD_DIM, "scores")
    return weighted_values(t, s, scores, v, softmax_fp32=False)


def masked(
    t: Tape, scores: Tensor, name: str = CAUSAL, role: Role | None = Role.CAUSAL_MASK
) -> Tensor:
    """Scores plus the additive mask that the model made once."""
    mask = t.shared(name, (B, 1, S / CP, S), t.parameter_dtype, role)
    return add(t, scores, mask, "scores, masked")


def wide_scores(t: Tape, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Scores as a product of fp32, not scaled, and the values that they will weigh."""
    q, k = (cast(t, x, "fp32", f"{n} (fp32)") for x, n in ((q, "q"), (k, "k")))
    q, k, v = (contiguous(t, x, x.shape, f"{n}, contiguous")
               for x, n in ((q, "q"), (k, "k"), (v, "v")))  # fmt: skip
    return matmul(t, q, k, SCORES, HEAD_DIM, "scores"), v


def weighted_values(
    t: Tape,
    s: Structure,
    scores: Tensor,
    v: Tensor,
    softmax_fp32: bool,
    each: Shape = QUERIES,
    joined: Factor = Q / TP,
    inner: Factor = S,
) -> Tensor:
    """softmax(scores) @ v, heads joined; `each` is the result by heads, `joined` its width, `inner`
    how many v there are."""
    low = v.dtype
    wide = "fp32" if softmax_fp32 or t.autocast else ""
    if wide and scores.dtype != "fp16":  # which CUDA's kernel reads as it is
        scores = cast(t, scores, wide, "scores (fp32)")
    own = t.kernels == "megatron"  # FusedScaleMaskSoftmax: over the gradient that came
    probabilities = softmax(t, scores, "softmax", wide, own)
    probabilities = cast(t, probabilities, low, "probabilities")
    if s.traits.attention_dropout:
        probabilities = dropout(t, probabilities, "attn_dropout")
    out = matmul(t, probabilities, v, each, inner, "weighted values")
    return contiguous(t, out, (*TOKENS, joined), "joined heads")


def rotary_tables(
    t: Tape, which: str = "", dtype: str = "", width: Factor = ROTARY, sequences: Factor = 1
) -> tuple[Tensor, Tensor]:
    """cos and sin, made once by the model; `which` names one of several pairs. `sequences`: that
    have some of their own, as images in them would make them differ."""
    shape = (sequences, 1, S / CP, width)
    of = dtype or t.parameter_dtype
    cos = t.shared(f"rotary cos{which}", shape, of, Role.ANGLES)
    return cos, t.shared(f"rotary sin{which}", shape, of)


def rotary(
    t: Tape, q: Tensor, k: Tensor, tables: tuple[Tensor, Tensor], tokens_first: bool = True
) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys, in the dtype they had. `tokens_first`: they are whole tensors that
    lie in memory as (B, S, heads, head_dim)."""
    if t.kernels == "megatron":
        return fused.turned(t, q, "q_rotary"), fused.turned(t, k, "k_rotary")
    if t.kernels == "liger":
        return fused.rotary(t, q, k, tables, not tokens_first, t.attention == "eager")
    q32 = rotate(t, q, *tables, HALF_ROTARY, "q_rotary")
    k32 = rotate(t, k, *tables, HALF_ROTARY, "k_rotary")
    if tables[0].dtype != t.parameter_dtype:  # fp32 tables: the result is cast back
        return cast(t, q32, q.dtype, "q_rotary, cast"), cast(t, k32, k.dtype, "k_rotary, cast")
    return q32, k32


def rotary_pairs(
    t: Tape, x: Tensor, tables: tuple[Tensor, Tensor], name: str, sliced: bool
) -> Tensor:
    """Two halves of a head's dimensions turned against each other, the results side by side.

    sliced   the halves are every other dimension; else the first and the second half
    """
    half = (*x.shape[:-1], HALF_ROTARY)
    cos, sin = (Tensor(of.storage, (1, 1, S / CP, HALF_ROTARY), of.dtype, False) for of in tables)
    with t.scope(name):
        one, two = split(t, x, [half, half], sliced)
        a = add(t, multiply(t, one, cos, "one cos"), multiply(t, two, sin, "two sin"), "first")
        b = add(t, multiply(t, two, cos, "two cos"), multiply(t, one, sin, "one sin"), "second")
        return contiguous(t, a, x.shape, "joined", other=b)


def widened_rotary(
    t: Tape,
    q: Tensor,
    k: Tensor,
    tables: tuple[Tensor, Tensor],
    turn: Callable[..., tuple[Tensor, Tensor]] = rotary,
) -> tuple[Tensor, Tensor]:
    """Queries and keys rotated in fp32, and cast back. `turn`: rotary or partial_rotary."""
    q32, k32 = turn(t, cast(t, q, "fp32", "q (fp32)"), cast(t, k, "fp32", "k (fp32)"), tables)
    return cast(t, q32, q.dtype, "q_rotary, cast"), cast(t, k32, k.dtype, "k_rotary, cast")


def complex_rotary(t: Tape, q: Tensor, k: Tensor, at_once: bool) -> tuple[Tensor, Tensor]:
    """Pairs of dimensions as complex numbers in fp32, times one table; cast back in the end.

    at_once   both products are there before either is cast
    """
    table = t.shared("rotary cos and sin", (1, 1, S / CP, ROTARY), "fp32", Role.ANGLES)
    q32, k32 = cast(t, q, "fp32", "q (fp32)"), cast(t, k, "fp32", "k (fp32)")
    q_turned = multiply(t, q32, table, "q_rotary")
    if at_once:
        k_turned = multiply(t, k32, table, "k_rotary")
    q_out = cast(t, q_turned, q.dtype, "q_rotary, cast")
    if not at_once:
        k_turned = multiply(t, k32, table, "k_rotary")
    k_out = cast(t, k_turned, k.dtype, "k_rotary, cast")
    t.use(q32, k32, *([q_turned] if at_once else []))
    return q_out, k_out


def partial_rotary(
    t: Tape, q: Tensor, k: Tensor, tables: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Only the first ROTARY dimensions of a head turn; the result is put together anew."""
    if t.kernels == "liger":
        return rotary(t, q, k, tables, tokens_first=False)

    def turned(x: Tensor, name: str) -> Tensor:
        rotated, rest = split(t, x, [(*x.shape[:-1], ROTARY), x.shape], sliced=True)
        rotated = rotate(t, rotated, *tables, HALF_ROTARY, name)
        return contiguous(t, rotated, x.shape, f"{name}, joined", other=rest)

    return turned(q, "q_rotary"), turned(k, "k_rotary")


def query_key_value(t: Tape, s: Structure, x: Tensor, bias: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Three projections, or a joint one in Megatron."""
    if t.kernels == "megatron":
        q, k, v = split(t, linear(t, "linear_qkv", x, D, QKV / TP, bias), JOINT)
        return q, k, contiguous(t, v, v.shape, "v, contiguous")
    return (
        linear(t, "q_proj", x, D, Q / TP, bias),
        linear(t, "k_proj", x, D, KV / TP, bias),
        linear(t, "v_proj", x, D, KV / TP, bias),
    )


# What one joint projection makes: queries, keys and values side by side.
JOINT: Sequence[Shape] = ((*TOKENS, Q / TP), (*TOKENS, KV / TP), (*TOKENS, KV / TP))


def joint_heads(
    t: Tape, joint: Tensor, parts: Sequence[Shape] = JOINT, sliced: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a joint projection with their heads first, as views of it.
    `sliced`: as in split."""
    q, k, v = (
        heads_first(t, part, shape, copies_grad=False)
        for part, shape in zip(split(t, joint, parts, sliced), (QUERIES, KEYS, KEYS), strict=True)
    )
    return q, k, v


def by_rows(t: Tape, q: Tensor, k: Tensor, copies_grad: bool) -> tuple[Tensor, Tensor]:
    """Queries and keys with heads behind tokens, as norms of each head read them."""
    return heads_first(t, q, QUERY_ROWS, copies_grad), heads_first(t, k, KEY_ROWS, copies_grad)


def by_heads(t: Tape, q: Tensor, k: Tensor, copies_grad: bool) -> tuple[Tensor, Tensor]:
    """Queries and keys with their heads first; `copies_grad`: as in heads_first."""
    return heads_first(t, q, QUERIES, copies_grad), heads_first(t, k, KEYS, copies_grad)


def first_token(t: Tape, x: Tensor) -> Tensor:
    """Of each sequence the first token, a view: what a classifier of whole sequences reads."""
    return split(t, x, [(B, D)], sliced=True)[0]


def unread(t: Tape, name: str, rows: Factor, *width: Factor) -> None:
    """A weight and a bias that a model has, of a layer or a norm whose result nobody reads."""
    t.parameter(f"{name}.weight", (rows, *width), idle=True)
    t.parameter(f"{name}.bias", (rows,), idle=True)


def value_heads(t: Tape, s: Structure, v: Tensor) -> Tensor:
    return heads_first(t, v, KEYS, copies_grad=s.attention == "eager")


def token_embedding(t: Tape, s: Structure, name: str = "embed_tokens") -> Tensor:
    """Token embedding; `embeddings_scaled` multiplies it by a number."""
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    joined = s.traits.tied_embeddings or (s.depths is not None and s.depths.table == FIRST)
    x = wanted(t, embedding(t, name, ids, VOCAB / TP, D, joined))
    return scale(t, x, "scaled") if s.traits.embeddings_scaled else x


def embed_dropped(name: str, dropped: str) -> Callable[[Tape, Structure], Tensor]:
    """A token embedding, and the dropout behind it where the model has one, by their names."""

    def embed(t: Tape, s: Structure) -> Tensor:
        x = token_embedding(t, s, name)
        return dropout(t, x, dropped) if s.traits.embedding_dropout else x

    return embed


def head_behind(
    norm: Callable[..., Tensor], name: str = "norm", **how: Any
) -> Callable[[Tape, Structure, Tensor], Tensor]:
    """A language model's head behind a norm of this name; `how`: what else the norm is told."""
    return lambda t, s, x: causal_lm_head(t, s, norm(t, x, name=name, **how))


# Decoders whose own class of ForTokenClassification does not widen its logits, as the one that
# others share does (modeling_layers.GenericForTokenClassification).
LABELLED_PLAINLY = ("biogpt", "bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "mpt")


def causal_lm_head(t: Tape, s: Structure, x: Tensor, width: Factor = D) -> Tensor:
    """Logits, their fp32 copy, log-softmax and loss, as transformers' ForCausalLMLoss runs them."""
    if s.cross_entropy == VALUE:
        return value_head(t, x, width)
    if s.head == EMBEDDING:
        return x
    if s.head == CLASSIFICATION:
        return sequence_classifier(t, s, x, width)
    if s.head == SPANS:
        return spans_loss(t, linear(t, "qa_outputs", x, width, CLASSES, bias=True))
    if s.head == LABELLED:
        if s.traits.label_dropout:
            x = dropout(t, x, "dropout")
        logits = linear(t, "score", x, width, CLASSES, bias=True)
        return labelled_loss(t, logits, widened=s.family not in LABELLED_PLAINLY)
    tied = s.traits.tied_embeddings
    if s.cross_entropy == "chunked":
        with t.scope("loss", Part.LOSS):
            labels = t.new("labels", (LABELS,), "int64")
        return fused.linear_cross_entropy(t, x, labels, width, tied)
    bias = s.traits.head_bias
    return logits_loss(t, s, linear(t, "lm_head", x, width, VOCAB / TP, bias, tied=tied))


def logits_loss(t: Tape, s: Structure, logits: Tensor) -> Tensor:
    """The loss of logits, which a model may scale or cap first."""
    if s.traits.logits_scaled:
        logits = scale(t, logits, "logits, scaled")
    if s.traits.logits_softcap:
        capped = keeps_result(t, scale(t, logits, "logits / cap"), "logits tanh")
        logits = scale(t, capped, "logits, capped")
    t.returns(logits)
    if t.infers:
        return logits
    with t.scope("loss", Part.LOSS):
        labels = t.new("labels", (LABELS,), "int64")
        if t.kernels == "megatron" and s.cross_entropy == "eager":
            return fused.vocabulary_cross_entropy(t, logits, labels)
        if s.cross_entropy == "fused":
            loss = fused.cross_entropy(t, logits, labels)
            t.use(logits)
            return loss
        logits32 = cast(t, logits, "fp32", "logits (fp32)")
        flat = heads_first(t, logits32, (*TOKENS, VOCAB / TP), copies_grad=False)
        logp = log_softmax(t, flat, "log_softmax")
        loss = nll_loss(t, logp, labels)
        t.use(logits)  # the model's output holds the logits until it returns
        return loss


def labelled_loss(t: Tape, logits: Tensor, widened: bool = False) -> Tensor:
    """torch.nn.CrossEntropyLoss on the logits as they are, or their fp32 copy (`widened`:
    transformers' ForMaskedLMLoss); a label for each row."""
    t.returns(logits)
    if t.infers:
        return logits
    with t.scope("loss", Part.LOSS):
        labels = t.new("labels", logits.shape[:-1], "int64")
        wide = widened or t.autocast
        read = cast(t, logits, "fp32", "logits (fp32)") if wide else logits
        loss = nll_loss(t, softmax(t, read, "log_softmax", one_kernel=True), labels)
        t.use(read, logits)  # the model's output holds the logits until it returns
        return loss


def sequence_classifier(t: Tape, s: Structure, x: Tensor, width: Factor = D) -> Tensor:
    """transformers' GenericForSequenceClassification: a number for each class and token, of which
    those of each sequence's last token are kept."""
    logits = linear(t, "score", x, width, CLASSES, bias=False)
    t.start("of the last tokens", logits)
    rows, last = t.new("sequences", (B,), "int64"), t.new("last tokens", (B,), "int64")
    chosen = t.new("of the last tokens", (B, CLASSES), logits.dtype)
    t.finish("of the last tokens", [logits], chosen, [rows, last],
             t.grads("score grad", logits))  # fmt: skip
    return classes_loss(t, s, chosen)


def classes_loss(t: Tape, s: Structure, logits: Tensor) -> Tensor:
    """transformers' ForSequenceClassificationLoss: of one class the squared error of its number."""
    if not s.one_class:
        return labelled_loss(t, logits)
    t.returns(logits)
    if t.infers:
        return logits
    with t.scope("loss", Part.LOSS):
        targets = t.new("labels", (B,), logits.dtype)
        read = cast(t, logits, "fp32", "logits (fp32)") if t.autocast else logits
        if t.autocast:
            targets = cast(t, targets, "fp32", "labels (fp32)")
        return _against(t, read, targets, "squared error", read.dtype)


def _against(t: Tape, read: Tensor, targets: Tensor, name: str, dtype: str) -> Tensor:
    """A loss of logits beside targets, in one kernel. Saves both."""
    t.start(name, read, targets)
    loss = t.new("loss", (), dtype)
    both = [read, targets]
    t.finish(name, [read], loss, both, t.grads("logits grad", read))
    return loss


def spans_loss(t: Tape, logits: Tensor) -> Tensor:
    """Where an answer begins, and where it ends: two numbers for each token, and of either the loss
    over the tokens of a sequence."""
    t.returns(logits)
    if t.infers:
        return logits
    with t.scope("loss", Part.LOSS):
        halves = split(t, logits, [(*TOKENS, ONE)] * 2)
        losses = []
        for half, name in zip(halves, ("start", "end"), strict=True):
            own = contiguous(t, half, TOKENS, f"{name} logits")
            read = cast(t, own, "fp32", f"{name} logits (fp32)") if t.autocast else own
            places = t.new(f"{name} positions, clamped", (B,), "int64")
            logp = softmax(t, read, f"{name} log_softmax", one_kernel=True)
            losses.append(nll_loss(t, logp, places))
        return add(t, losses[0], losses[1], "both")


def tokens_loss(t: Tape, logits: Tensor) -> Tensor:
    """torch.nn.BCEWithLogitsLoss: a number for each token, and labels of it in fp32."""
    t.returns(logits)
    if t.infers:
        return logits
    with t.scope("loss", Part.LOSS):
        targets = t.new("labels (fp32)", logits.shape, "fp32")
        read = cast(t, logits, "fp32", "logits (fp32)") if t.autocast else logits
        return _against(t, read, targets, "cross-entropy of two", "fp32")


VALUE = "value"  # in place of a loss on tokens: one number for each of them, as a critic has


def value_head(t: Tape, x: Tensor, width: Factor = D) -> Tensor:
    """A critic's head (transformers' ForTokenClassification with one label): one number for each
    token, and the squared error of its fp32 copy."""
    values = cast(t, linear(t, "score", x, width, ONE, bias=True), "fp32", "values (fp32)")
    with t.scope("loss", Part.LOSS):
        returns = t.new("returns", values.shape, "fp32")
        t.start("squared error", values, returns)
        difference = t.new("difference", values.shape, "fp32")
        loss = t.new("loss", (), "fp32")
        t.finish("squared error", [values], loss, [difference], t.grads("values grad", values))
        return loss
