"""gpt-oss: attention sinks, a window in every other layer, experts with biases and clamped gates.

Trained in bf16; the published weights of the experts are mxfp4, which is for inference.
"""

from __future__ import annotations

from memcore.layers import megatron
from memcore.layers.experts import Stacks, routed_experts, top_k
from memcore.layers.ops import (
    QUERIES,
    REPEATED_KEYS,
    SCORES,
    TOKENS,
    attention_core,
    behind_norm,
    by_heads,
    core,
    head_behind,
    mask_of,
    masked,
    query_key_value,
    rms_norm_fp32_weight,
    rotary,
    rotary_pairs,
    rotary_tables,
    value_heads,
)
from memcore.models.families.decoders import family_of
from memcore.models.families.llama import embed
from memcore.tape.dims import (
    CP,
    EXPERT_F,
    EXPERTS,
    HALF_ROTARY,
    HEAD_DIM,
    HEADS,
    SINKED,
    TP,
    B,
    D,
    Q,
    S,
    Shape,
)
from memcore.tape.kinds import Part
from memcore.tape.primitives import (
    add,
    cast,
    contiguous,
    dropout,
    keeps_input,
    keeps_result,
    linear,
    matmul,
    multiply,
    promoted,
    scale,
    shift,
    softmax,
    split,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Gradients, Tape, Tensor

SINK: Shape = (B, HEADS / TP, S / CP, 1)
WITH_SINK: Shape = (B, HEADS / TP, S / CP, SINKED)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = _attention(t, s, rms_norm_fp32_weight(t, x, "input_layernorm"), kind)
    x = add(t, x, h, "residual")
    norm = rms_norm_fp32_weight
    h = behind_norm(t, x, "post_attention_layernorm", lambda h: _mixture(t, s, h), norm)
    return add(t, x, h, "residual")


def _mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        if t.kernels == "megatron":
            return megatron.mixture(t, s, x, biases=True)
        return routed_experts(t, s, x, *_router(t, x), STACKS)


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        q, k = by_heads(t, q, k, copies_grad=True)
        v = value_heads(t, s, v)
        tables = rotary_tables(t, width=HALF_ROTARY)
        if t.kernels == "megatron":
            q, k = rotary(t, q, k, tables)
        else:
            q = rotary_pairs(t, q, tables, "q_rotary", sliced=False)
            k = rotary_pairs(t, k, tables, "k_rotary", sliced=False)
        sinks = t.parameter("sinks", (HEADS / TP,))
        if s.attention == "eager":
            out = core(t, lambda heads: _eager(t, s, kind, *heads), q, k, v, sinks)
        else:
            out = seen(t, attention_core(t, s, q, k, v, kind), sinks)
        return linear(t, "o_proj", out, Q / TP, D, bias)


def seen(t: Tape, x: Tensor, sinks: Tensor) -> Tensor:
    """A kernel that takes the sinks returns their gradient too."""
    out = Tensor(x.storage, x.shape, x.dtype, False)
    t.finish(
        "sinks", [x, sinks], out, [], lambda g: [g[0], t.new("grad", sinks.shape, sinks.dtype)]
    )
    return out


def _eager(
    t: Tape, s: Structure, kind: str, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor
) -> Tensor:
    """Scores with one more column, the sink; less their maximum; softmax in their dtype."""
    k, v = (contiguous(t, x, REPEATED_KEYS, f"{n}, repeated") for x, n in ((k, "k"), (v, "v")))
    scores = scale(t, matmul(t, q, k, SCORES, HEAD_DIM, "scores"), "scores, scaled")
    scores = masked(t, scores, *mask_of(kind))
    probabilities = softmax(t, less_maximum(t, with_sinks(t, scores, sinks)), "softmax")
    (probabilities,) = split(t, probabilities, [SCORES], sliced=True)
    if s.traits.attention_dropout:
        probabilities = dropout(t, probabilities, "attn_dropout")
    probabilities = cast(t, probabilities, v.dtype, "probabilities")
    out = matmul(t, probabilities, v, QUERIES, S, "weighted values")
    return contiguous(t, out, (*TOKENS, Q / TP), "joined heads")


def with_sinks(t: Tape, scores: Tensor, sinks: Tensor, wide: Shape = WITH_SINK) -> Tensor:
    """The sinks as one more column. Backward hands out views, and sums the sinks' over tokens."""
    t.start("scores with sinks", scores, sinks)
    out = t.new("scores with sinks", wide, promoted(scores.dtype, sinks.dtype))

    def backward(g: Gradients) -> Gradients:
        same = scores.dtype == out.dtype
        mine = g[0] if same else t.new("scores grad", scores.shape, scores.dtype)
        return [mine, t.new("sinks grad", sinks.shape, sinks.dtype)]

    t.finish("scores with sinks", [scores, sinks], out, [], backward)
    return out


def less_maximum(t: Tape, x: Tensor) -> Tensor:
    """x - max(x): the maximum's gradient goes back to where it was. Saves its place."""
    t.start("maximum", x)
    most, place = t.new("maximum", SINK, x.dtype), t.new("maximum, place", SINK, "int64")

    def of_most(g: Gradients) -> Gradients:
        zeros = t.new("maximum grad, zeros", x.shape, x.dtype)
        grad = t.new("maximum grad", x.shape, x.dtype)
        t.free(zeros)
        return [grad]

    t.finish("maximum", [x], most, [place], of_most)
    t.start("less maximum", x, most)
    out = t.new("less maximum", x.shape, x.dtype)

    def backward(g: Gradients) -> Gradients:
        negative = t.new("negative grad", x.shape, x.dtype)
        summed = t.new("negative grad, summed", SINK, x.dtype)
        t.free(negative)
        return [g[0], summed]

    t.finish("less maximum", [x, most], out, [], backward)
    return out


def _router(t: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over the TOP_K only, in the dtype of the logits."""
    with t.scope("router"):
        logits = linear(t, "logits", x, D, EXPERTS, bias=True)
        largest, index = top_k(t, logits, "top_k")
        return softmax(t, largest, "softmax"), index


def _gate(t: Tape, s: Structure, both: Tensor) -> Tensor:
    """Gate and up take turns in memory."""
    halves = split(t, both, [(both.shape[0], EXPERT_F / TP)] * 2, sliced=True)
    return clamped_gate(t, *halves)


def clamped_gate(t: Tape, gate: Tensor, up: Tensor) -> Tensor:
    """(up + 1) * gate * sigmoid(alpha gate), both clamped."""
    gate, up = (keeps_input(t, x, f"{n}, clamped") for x, n in ((gate, "gate"), (up, "up")))
    sigmoid = keeps_result(t, scale(t, gate, "alpha gate"), "sigmoid")
    glu = multiply(t, gate, sigmoid, "gate x sigmoid")
    return multiply(t, shift(t, up, "up + 1"), glu, "gated")


STACKS = Stacks(_gate, transposed=True, biases=True)


_head = head_behind(rms_norm_fp32_weight)
# Its sinks need a kernel that takes them: eager, or FlashAttention 3 and later.
FAMILY = family_of("gpt_oss", None, embed, _layer, _head)
