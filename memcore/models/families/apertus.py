"""Apertus: Llama's layers with queries and keys normed by head, and an MLP of two products with
xIELU between them, which has two weights of its own (Huang and Schlag, arXiv 2411.13010)."""

from __future__ import annotations

from memcore.layers.ops import (
    activation,
    attention_core,
    by_heads,
    query_key_value,
    rms_norm,
    rotary,
    rotary_tables,
    value_heads,
)
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.decoders import family_of, llama_like
from memcore.models.families.llama import embed, head
from memcore.models.model import Model
from memcore.tape.dims import HEAD_DIM, ONE, TP, D, F, Q
from memcore.tape.kinds import Part
from memcore.tape.primitives import (
    add,
    cast,
    keeps_input,
    keeps_result,
    linear,
    multiply,
    promoted,
    scale,
    shift,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Gradients, Tape, Tensor

XIELU = "xielu"


def _config(k: Keys) -> Model:
    return llama_like(k, "apertus", activations={**ACTIVATIONS, XIELU: XIELU})


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    x = add(t, x, _attention(t, s, rms_norm(t, x, "attention_layernorm"), kind), "residual")
    return add(t, x, _mlp(t, s, rms_norm(t, x, "feedforward_layernorm")), "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    """Heads come first when they are normed."""
    bias = s.traits.attention_bias
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        q, k = by_heads(t, q, k, copies_grad=False)
        v = value_heads(t, s, v)
        q, k = rms_norm(t, q, "q_norm", HEAD_DIM), rms_norm(t, k, "k_norm", HEAD_DIM)
        q, k = rotary(t, q, k, rotary_tables(t))
        return linear(t, "o_proj", attention_core(t, s, q, k, v, kind), Q / TP, D, bias)


def _mlp(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("mlp"):
        h = linear(t, "up_proj", x, D, F / TP, bias=False)
        kind = s.traits.activation
        h = xielu(t, h) if kind == XIELU else activation(t, h, kind)
        return linear(t, "down_proj", h, F / TP, D, bias=False)


def xielu(t: Tape, x: Tensor) -> Tensor:
    """Where x > 0, p x^2 + b x; else n (exp(min(x, e)) - 1 - x) + b x. The weights are p and n
    through a softplus; b and e are numbers (transformers/activations.py: _xielu_python)."""
    with t.scope("act_fn"):
        positive = keeps_input(t, t.parameter("alpha_p", (ONE,)), "softplus of alpha_p")
        weight = t.parameter("alpha_n", (ONE,))
        negative = shift(t, keeps_input(t, weight, "softplus of alpha_n"), "b + softplus")
        above = t.new("x > 0", x.shape, "bool")
        square = multiply(t, multiply(t, x, positive, "p x"), x, "p x x")
        upper = add(t, square, scale(t, x, "b x"), "above 0")
        least = _least(t, x)
        power = keeps_result(t, cast(t, least, "fp32" if t.autocast else x.dtype, "min"), "expm1")
        lower = multiply(t, _difference(t, power, x), negative, "n (expm1 - x)")
        lower = add(t, lower, scale(t, x, "b x"), "below 0")
        return _either(t, above, upper, lower)


def _least(t: Tape, x: Tensor) -> Tensor:
    """min(x, number). Saves x."""
    t.start("min", x)
    out = t.new("min", x.shape, x.dtype)

    def backward(g: Gradients) -> Gradients:
        equal = t.new("min grad, where equal", x.shape, "bool")
        half = t.new("min grad, half", x.shape, x.dtype)
        grad = t.new("min grad", x.shape, x.dtype)
        greater = t.new("min grad, where greater", x.shape, "bool")
        t.free(equal, half, greater)
        return [grad]

    t.finish("min", [x], out, [x], backward)
    return out


def _difference(t: Tape, a: Tensor, b: Tensor) -> Tensor:
    """a - b, as wide as a. Saves nothing."""
    t.start("expm1 - x", a, b)
    out = t.new("expm1 - x", a.shape, promoted(a.dtype, b.dtype))

    def backward(g: Gradients) -> Gradients:
        negative = t.new("expm1 - x grad, negative", b.shape, out.dtype)
        if b.dtype != out.dtype:
            t.computed()
            t.free(negative)
            negative = t.new(f"expm1 - x grad ({b.dtype})", b.shape, b.dtype)
        return [g[0], negative]

    t.finish("expm1 - x", [a, b], out, [], backward)
    return out


def _either(t: Tape, where: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """torch.where of two tensors. Saves the mask."""
    t.start("where", where, a, b)
    out = t.new("where", a.shape, a.dtype)

    def backward(g: Gradients) -> Gradients:
        return [t.new(f"where grad, {of}", a.shape, a.dtype) for of in ("first", "second")]

    t.finish("where", [a, b], out, [where], backward)
    return out


FAMILY = family_of("apertus", _config, embed, _layer, head)
