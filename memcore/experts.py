"""Experts: routers, and the experts that they send tokens to, as transformers 5.23.0 runs them.

Its default for experts, `grouped_mm` (transformers/integrations/moe.py), sorts the rows by expert
and multiplies them all in one kernel. What exists then depends on how many rows there are, and
that is tokens x top_k: nothing is dropped and nothing padded. Which expert gets how many rows
decides no tensor on one GPU, so these bytes hold for balanced routing as for any other.

Weights of all experts are stacked in one parameter, experts first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memcore.dims import (
    CHOSEN,
    EP,
    EXPERT_F,
    EXPERT_FUSED,
    EXPERTS,
    ROUTED,
    TOP_K,
    TP,
    D,
    Factor,
    Shape,
)
from memcore.ops import HIDDEN, TOKENS, activation
from memcore.primitives import cast, linear, multiply, softmax, split
from memcore.structure import Structure
from memcore.tape import Gradients, Storage, Tape, Tensor

SCORED: Shape = (*TOKENS, EXPERTS)
TOP: Shape = (*TOKENS, TOP_K)
ROWS: Shape = (ROUTED, D)


def active(shape: Shape) -> Shape:
    """A parameter's shape as one token meets it: of a stack of experts, TOP_K."""
    stacked = len(shape) == 3 and shape[0] in (EXPERTS, EXPERTS / EP)
    return (TOP_K, *shape[1:]) if stacked else shape


def is_matrix(parameter: Storage) -> bool:
    """Whether inputs are multiplied with it; the biases of experts are stacked, yet biases."""
    return len(parameter.shape) > 1 and not parameter.name.endswith("bias")


# -- router ---------------------------------------------------------------------------------------


def top_k(t: Tape, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The TOP_K largest of the last dimension, and where they are. Saves the indices."""
    t.start(name, x)
    shape = (*x.shape[:-1], TOP_K)
    values, index = t.new(name, shape, x.dtype), t.new(f"{name}, indices", shape, "int64")
    t.finish(name, [x], values, [index], lambda g: [_scattered(t, x, name)])
    return values, index


def _scattered(t: Tape, x: Tensor, name: str) -> Tensor:
    """x's gradient where some of it was taken: zeros, and a copy with what came put in.

    Fake tensors need the copy; a GPU writes into the zeros.
    """
    zeros = t.new(f"{name} grad, zeros", x.shape, x.dtype)
    grad = t.new(f"{name} grad", x.shape, x.dtype)
    t.free(zeros)
    return grad


def normalised(t: Tape, x: Tensor, name: str) -> Tensor:
    """x /= x.sum(-1), in place. Saves a copy of x and the sum."""
    t.start(name, x)
    total = t.new(f"{name}, sum", (*x.shape[:-1], 1), x.dtype)
    copy = t.new(f"{name}, before", x.shape, x.dtype)

    def backward(g: Gradients) -> Gradients:
        direct, through_sum = (t.new(f"{name} grad, {n}", x.shape, x.dtype) for n in ("x", "sum"))
        grad = t.new(f"{name} grad", x.shape, x.dtype)
        t.free(direct, through_sum)
        return [grad]

    out = Tensor(x.storage, x.shape, x.dtype, False)
    t.finish(name, [x], out, [copy, total], backward)
    return out


def softmax_router(
    t: Tape, s: Structure, x: Tensor, cast_back: bool = True
) -> tuple[Tensor, Tensor]:
    """The TOP_K largest of softmax(x W) in fp32: weights and indices, (batch, sequence, TOP_K).

    cast_back   the weights are cast to the dtype of the logits
    """
    with t.scope("gate"):
        logits = linear(t, "logits", x, D, EXPERTS, bias=False)
        scores = softmax(t, cast(t, logits, "fp32", "logits (fp32)"), "softmax")
        weights, index = top_k(t, scores, "top_k")
        if s.traits.router_normalised:
            weights = normalised(t, weights, "weights, normalised")
        return (cast(t, weights, logits.dtype, "weights, cast") if cast_back else weights), index


# -- experts --------------------------------------------------------------------------------------


def taken(t: Tape, x: Tensor, index: Tensor, shape: Shape, name: str) -> Tensor:
    """x[index]: a copy, row by row. Saves the index."""
    t.start(name, x, index)
    out = t.new(name, shape, x.dtype)
    t.finish(name, [x], out, [index], lambda g: [_scattered(t, x, name)])
    return out


@dataclass(frozen=True, slots=True)
class Stacks:
    """How a family stacks its experts: weights (EXPERTS, in, out) if `transposed`, else
    (EXPERTS, out, in), with biases or without, and how gate and up become one."""

    gate: Callable[[Tape, Structure, Tensor], Tensor]
    transposed: bool = False
    biases: bool = False


def grouped_linear(
    t: Tape, name: str, x: Tensor, offsets: Tensor, width: Factor, into: Factor, transposed: bool
) -> Tensor:
    """Each row times the weight of its expert: (ROUTED, width) to (ROUTED, into). Saves x
    where the weights are trained.

    torch.nn.functional.grouped_mm is not on autocast's list, so x takes the weight's dtype.
    """
    of_one = (width, into) if transposed else (into, width)
    w = t.parameter(name, (EXPERTS, *of_one))
    used = Tensor(w.storage, (CHOSEN, *of_one), w.dtype, w.needs_grad)  # what is read of it
    x = cast(t, x, w.dtype, f"{name} input")
    flops = (2.0, (ROUTED, width, into))
    t.start(f"{name} grouped_mm", x, used, offsets, flops=[flops])
    out = t.new(f"{name} out", (ROUTED, into), x.dtype)

    def backward(g: Gradients) -> Gradients:
        dw = t.new("weight grad", w.shape, w.dtype) if w.needs_grad else None
        dx = t.new(f"{name} input grad", x.shape, x.dtype) if x.needs_grad else None
        return [dx, dw]

    saved = [of for of, other in ((x, w), (used, x)) if other.needs_grad]
    again = [(2.0 * (w.needs_grad + x.needs_grad), flops[1])]
    t.finish(f"{name} grouped_mm", [x, w], out, [*saved, offsets], backward, flops=again)
    return out


def gated(t: Tape, s: Structure, both: Tensor) -> Tensor:
    """act(gate) * up, of two halves side by side."""
    kind = s.traits.activation
    gate, up = split(t, both, [(ROUTED, EXPERT_F / TP)] * 2)
    return multiply(t, activation(t, gate, kind), up, f"{kind}(gate) x up")


def _biases(t: Tape, name: str, ids: Tensor, into: Factor) -> Tensor:
    """Each row's bias, that of its expert."""
    return taken(t, t.parameter(name, (EXPERTS, into)), ids, (ROUTED, into), f"{name}, by row")


def added(t: Tape, x: Tensor, bias: Tensor, name: str) -> Tensor:
    """x.add_(bias), in place. Saves nothing."""
    t.start(name, x, bias)
    out = Tensor(x.storage, x.shape, x.dtype, False)
    t.finish(name, [x, bias], out, [], lambda g: [g[0], g[0]])
    return out


GATED = Stacks(gated)


def routed_experts(
    t: Tape, s: Structure, x: Tensor, weights: Tensor, index: Tensor, stacks: Stacks = GATED
) -> Tensor:
    """Each token through its TOP_K experts, their results weighted and summed: (batch, sequence, D)

    Every name in the original's function lives until it returns, whether needed or not.
    """
    with t.scope("experts"):
        t.start("sort by expert", index)
        ids, order = (t.new(n, (ROUTED,), "int64") for n in ("experts, sorted", "order"))
        tokens = t.new("tokens, sorted", (ROUTED,), "int64")
        rows = taken(t, x, tokens, ROWS, "rows by expert")
        of_rows = taken(t, weights, order, (ROUTED, 1), "weights by expert")
        t.start("count", ids)
        ids32, counts = t.new("ids", (ROUTED,), "int32"), t.new("rows", (EXPERTS,), "int32")
        offsets = t.new("offsets", (EXPERTS,), "int32")
        up_width, width, flip = EXPERT_FUSED / TP, EXPERT_F / TP, stacks.transposed
        up_bias = _biases(t, "gate_up_proj_bias", ids, up_width) if stacks.biases else None
        both = grouped_linear(t, "gate_up_proj", rows, offsets, D, up_width, flip)
        if up_bias:
            both = added(t, both, up_bias, "gate_up_proj, biased")
        product = stacks.gate(t, s, both)
        bias = _biases(t, "down_proj_bias", ids, D) if stacks.biases else None
        t.use(*filter(None, [up_bias]))
        out = grouped_linear(t, "down_proj", product, offsets, width, D, flip)
        if bias:
            out = added(t, out, bias, "down_proj, biased")
        weighted = multiply(t, out, of_rows, "weighted")
        t.start("undo sort", order)
        back = t.new("order, inverted", (ROUTED,), "int64")
        unsorted = taken(t, weighted, back, ROWS, "rows by token")
        summed = cast(t, _summed(t, unsorted), x.dtype, "output")
        t.use(index, ids, order, rows, of_rows, ids32, counts, offsets, out, unsorted)
        t.use(*filter(None, [bias]))
        return summed


def _summed(t: Tape, x: Tensor) -> Tensor:
    """The TOP_K rows of each token, summed. Backward copies the sum's gradient to each."""
    t.start("sum over experts", x)
    out = t.new("sum over experts", HIDDEN, x.dtype)
    t.finish("sum over experts", [x], out, [], lambda g: [t.new("rows grad", x.shape, x.dtype)])
    return out
