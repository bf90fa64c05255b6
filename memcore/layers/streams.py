"""Streams: a residual of several streams, which hyper-connections mix before and behind each part
of a layer (DeepSeek-V4), as transformers 5.23.0 runs them.

What mixes them is computed in fp32 for each token: weights that make one input of all streams,
weights that hand the part's result to each, and a matrix between the streams, whose rows and
columns are divided by their sums in turns until these are one (Sinkhorn and Knopp).
"""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import HIDDEN, STREAMED_HIDDEN
from memcore.tape.dims import MIX_KINDS, MIXES, ONE, STREAMED, STREAMS, Factor, Shape
from memcore.tape.primitives import (
    add,
    cast,
    heads_first,
    keeps_result,
    matmul,
    mean,
    multiply,
    plain_product,
    power,
    promoted,
    scale,
    shift,
    softmax,
    split,
    unary,
)
from memcore.tape.tape import Gradients, Tape, Tensor

ROWS = HIDDEN[:-1]
SIDE_BY_SIDE: Shape = (*ROWS, STREAMED)
EACH: Shape = (*ROWS, STREAMS)
PAIRS: Shape = (*ROWS, STREAMS, STREAMS)


def widened(t: Tape, x: Tensor) -> Tensor:
    """The token embedding as every stream, a copy. Backward sums the gradients of all."""
    return unary(t, x, "streams", STREAMED_HIDDEN, grad="streams grad, summed")


def norm_without_weight(t: Tape, x: Tensor, name: str) -> Tensor:
    """x / sqrt(mean(x^2) + eps), of which only the root is computed in fp32."""
    with t.scope(name):
        square = power(t, cast(t, x, "fp32", "x (fp32)"), "square")
        root = keeps_result(t, shift(t, mean(t, square, "variance"), "variance + eps"), "rsqrt")
        return multiply(t, x, cast(t, root, x.dtype, "rsqrt, cast"), "normalised")


def summed(t: Tape, x: Tensor, shape: Shape, name: str) -> Tensor:
    """The sum over one dimension. Saves nothing; backward hands out a view."""
    t.start(name, x)
    out = t.new(name, shape, x.dtype)
    t.finish(name, [x], out, [], lambda g: [g[0]])
    return out


def _weights(t: Tape, x: Tensor, fn: str, into: Factor) -> Tensor:
    """What a token's streams are mixed with, before any function of it: `into` numbers."""
    flat = heads_first(t, x, SIDE_BY_SIDE, copies_grad=False)
    flat = norm_without_weight(t, cast(t, flat, "fp32", "streams (fp32)"), "input_norm")
    w = cast(t, t.parameter(fn, (into, STREAMED)), "fp32", f"{fn} (fp32)")
    return plain_product(t, flat, w, STREAMED, into)


def _collapsed(t: Tape, x: Tensor, weights: Tensor) -> Tensor:
    """One stream of all: each times its weight, summed."""
    return cast(
        t, summed(t, multiply(t, x, weights, "weighted streams"), HIDDEN, "sum of streams"),
        x.dtype, "collapsed",
    )  # fmt: skip


def mixed(t: Tape, x: Tensor, name: str, rounds: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights that expand the part's result, the matrix between streams, and the part's input."""
    with t.scope(name):
        mixes = _weights(t, x, "fn", MIXES)
        weights = split(t, mixes, [EACH, EACH, PAIRS])
        biases = split(
            t, t.parameter("base", (MIXES,)), [(STREAMS,), (STREAMS,), (STREAMS, STREAMS)]
        )
        # A scalar leaves a tensor the dtype that it has.
        factors = [
            replace(of, dtype=mixes.dtype)
            for of in split(t, t.parameter("scale", (MIX_KINDS,)), [()] * 3)
        ]
        pre, post, comb = (
            add(t, multiply(t, w, f, f"{n}, scaled"), b, f"{n}, biased")
            for w, f, b, n in zip(weights, factors, biases, ("pre", "post", "comb"), strict=True)
        )
        pre = shift(t, keeps_result(t, pre, "pre sigmoid"), "pre + eps")
        post = scale(t, keeps_result(t, post, "post sigmoid"), "post x 2")
        comb = shift(t, softmax(t, comb, "comb softmax"), "comb + eps")
        comb = _balanced(t, comb, rounds)
        return post, comb, _collapsed(t, x, pre)


def _balanced(t: Tape, x: Tensor, rounds: int) -> Tensor:
    """Columns of a token's matrix divided by their sums, then rows and columns in turns. Each of
    these divisions is three kernels, and saves what it divides and the sums."""
    times = 2 * rounds - 1
    t.start("balanced", x, started=3 * times)
    sums = t.new("sums", (times, *x.shape[:-1]), x.dtype)
    before = t.new("before each division", (times - 1, *x.shape), x.dtype)
    t.use(before, sums)  # summed, and then divided
    out = t.new("balanced", x.shape, x.dtype)

    def backward(g: Gradients) -> Gradients:
        steps = [t.new(f"balanced grad, {n}", x.shape, x.dtype) for n in ("product", "quotient")]
        grad = t.new("balanced grad", x.shape, x.dtype)
        t.free(*steps)
        return [grad]

    t.finish("balanced", [x], out, [x, before, sums], backward)
    return out


def spread(t: Tape, x: Tensor, result: Tensor, post: Tensor, comb: Tensor, name: str) -> Tensor:
    """The streams behind a part of a layer: its result by `post`, and the streams before it by
    `comb`."""
    with t.scope(name):
        low = cast(t, post, x.dtype, "post, cast")
        mine = _outer(t, low, result)
        pairs = cast(t, comb, x.dtype, "comb, cast")
        return add(t, mine, matmul(t, pairs, x, x.shape, STREAMS, "streams, mixed"), "streams")


def _outer(t: Tape, weights: Tensor, result: Tensor) -> Tensor:
    """Each stream's weight times the result. Saves both."""
    dtype = promoted(weights.dtype, result.dtype)
    t.start("result, spread", weights, result)
    out = t.new("result, spread", STREAMED_HIDDEN, dtype)

    def backward(g: Gradients) -> Gradients:
        products = [t.new("spread grad", STREAMED_HIDDEN, dtype) for _ in range(2)]
        t.computed()
        grads = [t.grad("spread grad, summed", of) for of in (weights, result)]
        t.free(*products)
        return grads

    t.finish("result, spread", [weights, result], out, [weights, result], backward)
    return out


def one_stream(t: Tape, x: Tensor, name: str) -> Tensor:
    """Behind the last layer: one stream of all."""
    with t.scope(name):
        mixes = _weights(t, x, "hc_fn", STREAMS)
        factor = cast(t, t.parameter("hc_scale", (ONE,)), "fp32", "hc_scale (fp32)")
        bias = cast(t, t.parameter("hc_base", (STREAMS,)), "fp32", "hc_base (fp32)")
        scaled = multiply(t, mixes, factor, "scaled")
        pre = shift(t, keeps_result(t, add(t, scaled, bias, "biased"), "sigmoid"), "pre + eps")
        return _collapsed(t, x, pre)
