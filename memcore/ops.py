"""Ops: the parts that decoder layers are built from, written in primitives.

One function per part and kernel. Shapes are (batch, sequence, width) unless said otherwise.
"""

from __future__ import annotations

from memcore.dims import (
    CP,
    HALF_HEAD,
    HEAD_DIM,
    HEADS,
    KV,
    KV_HEADS,
    LABELS,
    REPEATED,
    TP,
    VOCAB,
    B,
    D,
    F,
    Q,
    S,
    Shape,
)
from memcore.primitives import (
    add,
    cast,
    contiguous,
    dropout,
    flash_attention,
    heads_first,
    keeps_input,
    keeps_result,
    linear,
    matmul,
    mean,
    multiply,
    nll_loss,
    power,
    rotate,
    scale,
    shift,
    softmax,
)
from memcore.tape import Tape, Tensor

TOKENS: Shape = (B, S / CP)
HIDDEN: Shape = (*TOKENS, D)
QUERIES: Shape = (B, HEADS / TP, S / CP, HEAD_DIM)
KEYS: Shape = (B, KV_HEADS / TP, S / CP, HEAD_DIM)
REPEATED_KEYS: Shape = (B, REPEATED, S / CP, HEAD_DIM)
SCORES: Shape = (B, HEADS / TP, S / CP, S)
PRODUCT: Shape = (*SCORES, HEAD_DIM)


def rms_norm(t: Tape, x: Tensor, name: str) -> Tensor:
    """transformers' RMSNorm: an fp32 copy of x, normalised there, cast back, times the weight."""
    with t.scope(name):
        w = t.parameter("weight", (D,))
        x32 = cast(t, x, "fp32", "x (fp32)")
        square = power(t, x32, "square")
        rstd = keeps_result(t, shift(t, mean(t, square, "variance"), "variance + eps"), "rsqrt")
        normal = cast(t, multiply(t, x32, rstd, "normalised"), x.dtype, "normalised, cast")
        return _weighted(t, w, normal)


def _weighted(t: Tape, w: Tensor, x: Tensor) -> Tensor:
    return multiply(t, x, w, "weighted")


def activation(t: Tape, x: Tensor, kind: str) -> Tensor:
    """The MLP's nonlinearity; composed ones keep every step."""
    if kind == "relu":
        return keeps_result(t, x, "relu")
    if kind in ("silu", "gelu"):
        return keeps_input(t, x, kind)
    with t.scope(kind):
        half = scale(t, x, "x / 2")
        if kind == "gelu_new":  # x/2 (1 + tanh(a (x + b x^3)))
            inner = add(t, x, scale(t, power(t, x, "cube"), "cube scaled"), "x + cube")
            inner = scale(t, inner, "inner")
        else:  # gelu_fast: x/2 (1 + tanh(a x (1 + b x x)))
            square = multiply(t, scale(t, x, "b x"), x, "b x x")
            inner = multiply(t, scale(t, x, "a x"), shift(t, square, "1 + b x x"), "inner")
        tanh = keeps_result(t, inner, "tanh")
        return multiply(t, half, shift(t, tanh, "1 + tanh"), "product")


def gated_mlp(t: Tape, x: Tensor, kind: str, bias: bool) -> Tensor:
    """down(act(gate(x)) * up(x)), as transformers runs it: four tensors of width F are kept."""
    with t.scope("mlp"):
        gate = activation(t, linear(t, "gate_proj", x, D, F / TP, bias), kind)
        up = linear(t, "up_proj", x, D, F / TP, bias)
        product = multiply(t, gate, up, f"{kind}(gate) x up")
        return linear(t, "down_proj", product, F / TP, D, bias)


def attention_core(
    t: Tape, q: Tensor, k: Tensor, v: Tensor, kind: str, softmax_fp32: bool, drop: bool
) -> Tensor:
    """From heads to their joined outputs, (batch, sequence, Q). The mask is causal."""
    with t.scope("core"):
        if kind == "eager":
            return _eager_core(t, q, k, v, softmax_fp32, drop)
        lse = (B, HEADS / TP, S / CP)
        out = flash_attention(t, q, k, v, lse, PRODUCT, kind)
        return heads_first(t, out, (*TOKENS, Q / TP), copies_grad=False)


def _eager_core(t: Tape, q: Tensor, k: Tensor, v: Tensor, softmax_fp32: bool, drop: bool) -> Tensor:
    """Scores and probabilities as tensors; keys and values repeated to every query head."""
    q = contiguous(t, q, QUERIES, "q, contiguous")
    k = contiguous(t, k, REPEATED_KEYS, "k, repeated")
    v = contiguous(t, v, REPEATED_KEYS, "v, repeated")
    mask = t.shared("causal mask", (B, 1, S / CP, S), t.parameter_dtype)
    scores = scale(t, matmul(t, q, k, SCORES, HEAD_DIM, "scores"), "scores, scaled")
    scores = add(t, scores, mask, "scores, masked")
    low = v.dtype
    if softmax_fp32 or t.autocast:
        scores = cast(t, scores, "fp32", "scores (fp32)")
    probabilities = softmax(t, scores, "softmax")
    probabilities = cast(t, probabilities, low, "probabilities")
    if drop:
        probabilities = dropout(t, probabilities, "attn_dropout")
    out = matmul(t, probabilities, v, QUERIES, S, "weighted values")
    return contiguous(t, out, (*TOKENS, Q / TP), "joined heads")


def rotary_attention(
    t: Tape, x: Tensor, cos: Tensor, sin: Tensor, kind: str, bias: bool, drop: bool
) -> Tensor:
    """Llama's attention: separate projections, rotary positions, grouped queries."""
    with t.scope("self_attn"):
        q = linear(t, "q_proj", x, D, Q / TP, bias)
        k = linear(t, "k_proj", x, D, KV / TP, bias)
        v = linear(t, "v_proj", x, D, KV / TP, bias)
        q = rotate(t, heads_first(t, q, QUERIES, True), cos, sin, HALF_HEAD, "q_rotary")
        k = rotate(t, heads_first(t, k, KEYS, True), cos, sin, HALF_HEAD, "k_rotary")
        v = heads_first(t, v, KEYS, copies_grad=kind == "eager")
        out = attention_core(t, q, k, v, kind, softmax_fp32=True, drop=drop)
        return linear(t, "o_proj", out, Q / TP, D, bias)


def causal_lm_head(t: Tape, x: Tensor, tied: bool) -> Tensor:
    """Logits, their fp32 copy, log-softmax and loss, as transformers' ForCausalLMLoss runs them."""
    logits = linear(t, "lm_head", x, D, VOCAB / TP, bias=False, tied=tied)
    with t.scope("loss"):
        labels = t.new("labels", (LABELS,), "int64")
        logits32 = cast(t, logits, "fp32", "logits (fp32)")
        flat = heads_first(t, logits32, (*TOKENS, VOCAB / TP), copies_grad=False)
        logp = softmax(t, flat, "log_softmax")
        loss = nll_loss(t, logp, labels)
        t.use(logits)  # the model's output holds the logits until it returns
        return loss
