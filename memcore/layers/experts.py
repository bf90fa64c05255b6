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

from memcore.layers.ops import HIDDEN, TOKENS, activation
from memcore.tape.dims import (
    ARRIVED,
    CHOSEN,
    EDP,
    EP,
    EXPERT_F,
    EXPERT_FUSED,
    EXPERT_ROWS,
    EXPERTS,
    ROUTED,
    TOP_K,
    TP,
    D,
    Factor,
    Shape,
)
from memcore.tape.kinds import Role
from memcore.tape.primitives import (
    added,
    cast,
    factors,
    gather,
    in_backward,
    linear,
    masked_fill,
    multiply,
    scatter,
    softmax,
    split,
    unary,
)
from memcore.tape.sharding import fsdp_cut
from memcore.tape.structure import Structure
from memcore.tape.tape import ALWAYS, Gradients, Storage, Tape, Tensor

SCORED: Shape = (*TOKENS, EXPERTS)
ROWS: Shape = (ROUTED, D)


def active(shape: Shape) -> Shape:
    """A parameter's shape as one token meets it: of a stack of experts, TOP_K."""
    if shape[0] in (EXPERT_ROWS, EXPERT_ROWS / TP):
        return (TOP_K, EXPERT_F / TP, *shape[1:])
    stacked = len(shape) == 3 and shape[0] in (EXPERTS, EXPERTS / EP)
    return (TOP_K, *shape[1:]) if stacked else shape


def is_matrix(parameter: Storage) -> bool:
    """Whether inputs are multiplied with it; the biases of experts are stacked, yet biases."""
    return len(parameter.shape) > 1 and parameter.role is not Role.BIAS


def top_k(t: Tape, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The TOP_K largest of the last dimension, and where they are. Saves the indices."""
    t.start(name, x)
    shape = (*x.shape[:-1], TOP_K)
    values, index = t.new(name, shape, x.dtype), t.new(f"{name}, indices", shape, "int64")
    t.finish(name, [x], values, [index], lambda g: [scattered(t, x, name)])
    return values, index


def scattered(t: Tape, x: Tensor, name: str) -> Tensor:
    """x's gradient where some of it was taken: zeros, and a copy with what came put in.

    Fake tensors need the copy; a GPU writes into the zeros.
    """
    zeros = t.new(f"{name} grad, zeros", x.shape, x.dtype)
    grad = t.new(f"{name} grad", x.shape, x.dtype)
    t.free(zeros)
    return grad


NORMALISED = 3  # operations that Megatron starts for it: moe_utils.topk_routing_with_score_function


def normalised(t: Tape, x: Tensor, name: str) -> Tensor:
    """x /= x.sum(-1), in place. Saves a copy of x and the sum."""
    t.start(name, x, started=NORMALISED if t.kernels == "megatron" else 2)
    total = t.new(f"{name}, sum", (*x.shape[:-1], 1), x.dtype)
    copy = t.new(f"{name}, before", x.shape, x.dtype)
    out = Tensor(x.storage, x.shape, x.dtype, False)
    t.finish(name, [x], out, [copy, total], lambda g: _of_x_and_its_sum(t, x, name))
    return out


def divided(t: Tape, x: Tensor, name: str, guarded: str, keeps_sum: bool = False) -> Tensor:
    """x / x.sum(-1), whose sum is kept from zero first. Saves x and what it is divided by.

    guarded     what the sum is called then
    keeps_sum   the sum is saved too: a clamp's backward reads what it clamped
    """
    t.start(name, x)
    total, divisor = (t.new(f"{name}, {n}", (*x.shape[:-1], 1), x.dtype) for n in ("sum", guarded))
    out = t.new(name, x.shape, x.dtype)
    if not keeps_sum:
        t.use(total)
    saved = [x, total, divisor] if keeps_sum else [x, divisor]
    t.finish(name, [x], out, saved, lambda g: _of_x_and_its_sum(t, x, name))
    return out


def _of_x_and_its_sum(t: Tape, x: Tensor, name: str) -> Gradients:
    """The gradient of x where x is divided by its sum: what comes through either, added."""
    direct, through_sum = (t.new(f"{name} grad, {n}", x.shape, x.dtype) for n in ("x", "sum"))
    grad = t.new(f"{name} grad", x.shape, x.dtype)
    t.free(direct, through_sum)
    return [grad]


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


def taken(t: Tape, x: Tensor, index: Tensor, shape: Shape, name: str) -> Tensor:
    """x[index]: a copy, row by row. Saves the index."""
    t.start(name, x, index)
    out = t.new(name, shape, x.dtype)
    t.finish(name, [x], out, [index], lambda g: [scattered(t, x, name)])
    return out


@dataclass(frozen=True, slots=True)
class Stacks:
    """How a family stacks its experts: weights (EXPERTS, in, out) if `transposed`, else
    (EXPERTS, out, in), with biases or without, and how gate and up become one. `gated`: there is
    a gate beside what goes up. `width`: of what they read and give back."""

    gate: Callable[[Tape, Structure, Tensor], Tensor]
    transposed: bool = False
    biases: bool = False
    gated: bool = True
    width: Factor = D

    @property
    def wide(self) -> Factor:
        return (EXPERT_FUSED if self.gated else EXPERT_F) / TP

    @property
    def up(self) -> str:
        return NAMES[0] if self.gated else "up_proj"


def grouped_linear(
    t: Tape, name: str, x: Tensor, offsets: Tensor, w: Tensor, width: Factor, into: Factor
) -> Tensor:
    """Each row times the weight of its expert: (rows, width) to (rows, into). Saves x where the
    weights are trained.

    torch.nn.functional.grouped_mm is not on autocast's list, so x takes the weight's dtype.
    """
    used = Tensor(w.storage, (CHOSEN, *w.shape[1:]), w.dtype, w.needs_grad)  # what is read of it
    x = cast(t, x, w.dtype, f"{name} input")
    rows = x.shape[0]
    flops = (2.0, (rows, width, into))
    t.start(f"{name} grouped_mm", x, used, offsets, flops=[flops])
    out = t.new(f"{name} out", (rows, into), x.dtype)

    def backward(g: Gradients) -> Gradients:
        dw = t.grad("weight grad", w)
        return [t.grad(f"{name} input grad", x), dw]

    saved = [*factors(x, used), offsets]
    t.finish(f"{name} grouped_mm", [x, w], out, saved, backward, flops=in_backward(flops, x, w))
    return out


def gated(t: Tape, s: Structure, both: Tensor) -> Tensor:
    """act(gate) * up, of two halves side by side."""
    kind = s.traits.activation
    gate, up = split(t, both, [(both.shape[0], EXPERT_F / TP)] * 2)
    return multiply(t, activation(t, gate, kind), up, f"{kind}(gate) x up")


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a rank's experts, stacked: of both products, and their biases if any."""

    up: Tensor
    down: Tensor
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    @property
    def every(self) -> list[Tensor]:
        return [w for w in (self.up, self.down, self.up_bias, self.down_bias) if w is not None]


def _weights(t: Tape, stacks: Stacks, stack: Factor) -> Weights:
    def parameter(name: str, *shape: Factor, role: Role | None = None) -> Tensor:
        return t.parameter(name, (stack, *shape), role=role)

    wide, width = stacks.wide, EXPERT_F / TP
    flip = stacks.transposed
    own = stacks.width
    up = parameter(stacks.up, *((own, wide) if flip else (wide, own)))
    down = parameter(NAMES[1], *((width, own) if flip else (own, width)))
    if not stacks.biases:
        return Weights(up, down)
    up_bias = parameter(f"{NAMES[0]}_bias", wide, role=Role.BIAS)
    return Weights(up, down, up_bias, parameter(f"{NAMES[1]}_bias", own, role=Role.BIAS))


NAMES = ("gate_up_proj", "down_proj")


GATED = Stacks(gated)


def all_tokens(t: Tape, x: Tensor) -> Tensor:
    """x of all tokens, where tensor-parallel ranks cut each expert: every rank routes all of them,
    and shared experts read them too (torchtitan v0.2.2, models/llama4/infra/parallelize.py:
    apply_moe_ep_tp). Megatron's ranks route their own."""
    if t.kernels == "megatron" or not t.parallel:
        return x
    whole = gather(t, x)
    t.whole[id(whole)] = whole
    return whole


def routed_experts(
    t: Tape, s: Structure, x: Tensor, weights: Tensor, index: Tensor, stacks: Stacks = GATED
) -> Tensor:
    """Each token through its TOP_K experts, whose results are weighted and summed: HIDDEN, of the
    experts' width. Ranks that cut each expert have a part of each result, which they sum."""
    if t.parallel:
        return scatter(t, _routed(t, s, x, weights, index, stacks, TOKENS))
    return _routed(t, s, x, weights, index, stacks, HIDDEN[:-1])


def _routed(
    t: Tape, s: Structure, x: Tensor, weights: Tensor, index: Tensor, stacks: Stacks, of: Shape
) -> Tensor:
    with t.scope("experts"):
        if s.exchanges:
            return _all_to_all(t, s, x, weights, index, stacks)
        w = _weights(t, stacks, EXPERTS)
        if s.pooled:
            return _in_buffers(t, x, weights, index, w, (*of, stacks.width))
        return _grouped(t, s, x, weights, index, stacks, w, ROUTED, (*of, stacks.width))


def _grouped(
    t: Tape,
    s: Structure,
    x: Tensor,
    weights: Tensor,
    index: Tensor,
    stacks: Stacks,
    w: Weights,
    count: Factor,
    result: Shape,
) -> Tensor:
    """grouped_mm_experts_forward: `count` rows of x through their experts, weighted and summed.

    Every name in the original's function lives until it returns, whether needed or not. Where
    experts are shared out, rows that belong to none of this rank's are masked, though none comes.
    """
    t.start("sort by expert", index, started=2)  # and which tokens these are
    ids, order = (t.new(n, (count,), "int64") for n in ("experts, sorted", "order"))
    tokens = t.new("tokens, sorted", (count,), "int64")
    rows = taken(t, x, tokens, (count, stacks.width), "rows by expert")
    of_rows = taken(t, weights, order, (count, 1), "weights by expert")
    t.start("count", ids, started=3)  # narrowed, counted and summed
    stack = w.up.shape[0]
    ids32, counts = t.new("ids", (count,), "int32"), t.new("rows", (stack,), "int32")
    offsets = t.new("offsets", (stack,), "int32")
    mask = t.new("mask", (count, 1), "bool") if s.exchanges else None
    up_bias = _by_row(t, w.up_bias, ids, count)
    if mask:
        rows = masked_fill(t, rows, mask, "rows by expert, masked", in_place=True)
    both = grouped_linear(t, stacks.up, rows, offsets, w.up, stacks.width, stacks.wide)
    if up_bias:
        both = added(t, both, up_bias, "gate_up_proj, biased")
    if mask:
        both = masked_fill(t, both, mask, "gate_up_proj, masked")
    product = stacks.gate(t, s, both)
    bias = _by_row(t, w.down_bias, ids, count)
    t.use(*filter(None, [up_bias]))
    out = grouped_linear(t, NAMES[1], product, offsets, w.down, EXPERT_F / TP, stacks.width)
    if bias:
        out = added(t, out, bias, "down_proj, biased")
    if mask:
        out = masked_fill(t, out, mask, "down_proj, masked")
    weighted = multiply(t, out, of_rows, "weighted")
    t.start("undo sort", order, started=2)  # a range, put where the order says
    back = t.new("order, inverted", (count,), "int64")
    unsorted = taken(t, weighted, back, (count, stacks.width), "rows by token")
    summed = cast(t, _summed(t, unsorted, result), x.dtype, "output")
    t.use(index, ids, order, rows, of_rows, ids32, counts, offsets, out, unsorted)
    t.use(*filter(None, [bias, mask]))
    return summed


def _in_buffers(
    t: Tape, x: Tensor, weights: Tensor, index: Tensor, w: Weights, result: Shape
) -> Tensor:
    """All of it by an engine's kernels, for which others count the buffers that they work in."""
    t.start("experts", x, weights, index, w.up, w.down)
    out = t.new("output", result, x.dtype)
    t.finish("experts", [x], out, [], lambda g: [t.grad("input grad", x)])
    return out


def _by_row(t: Tape, bias: Tensor | None, ids: Tensor, count: Factor) -> Tensor | None:
    """Each row's bias, that of its expert."""
    if bias is None:
        return None
    name = f"{bias.storage.own_name}, by row"
    return taken(t, bias, ids, (count, bias.shape[-1]), name)


def _all_to_all(
    t: Tape, s: Structure, x: Tensor, weights: Tensor, index: Tensor, stacks: Stacks
) -> Tensor:
    """Rows to the ranks of their experts, through these, and back: (batch, sequence, width)."""
    every_row: Shape = (ROUTED, stacks.width)
    w = _weights(t, stacks, EXPERTS / EP)
    t.start("sort by rank", index)
    order, tokens = (t.new(n, (ROUTED,), "int64") for n in ("order", "tokens, sorted"))
    sent = taken(t, x, tokens, every_row, "rows to send")
    arrived = exchanged(t, sent, ARRIVED, "rows received")
    t.use(order, tokens, sent)
    t.start("experts of rows", arrived)
    ids = t.new("experts of rows", (ARRIVED, 1), "int64")
    ones = t.new("ones", (ARRIVED, 1), x.dtype)
    inside, gathered = _gathered(t, s, arrived, w)
    result = _grouped(t, s, inside, ones, ids, stacks, w, ARRIVED, (ARRIVED, stacks.width))
    result = _regathered(t, s, result, w, gathered)
    back = exchanged(t, result, ROUTED, "results received")
    t.use(arrived, ids, ones, result)
    t.start("by token", back, order)
    every = t.new("results by token", every_row, x.dtype)
    name = "results by token grad"
    t.finish("by token", [back], every, [order], lambda g: [t.new(name, every_row, x.dtype)])
    weighted = multiply(t, every, weights, "weighted")
    t.use(back, every)
    out = _summed(t, weighted, (*HIDDEN[:-1], stacks.width))
    t.use(index, order, weights)
    return out


def exchanged(t: Tape, x: Tensor, rows: Factor, name: str, result: str = "") -> Tensor:
    """An all-to-all by which so many rows come, called `result`. Saves nothing."""
    t.start(name, x)
    out = t.new(result or name, (rows, *x.shape[1:]), x.dtype)
    most = x if x.shape[0] is ARRIVED else out  # what the fullest rank sends, or receives
    t.send("rows of experts", "all-to-all", EP, most.shape, x.dtype)
    t.send("gradients of rows", "all-to-all", EP, most.shape, x.dtype, backward=True)
    t.finish(name, [x], out, [], t.grads(f"{name} grad", x))
    return out


def _whole(t: Tape, w: Weights, name: str, dtype: str = "") -> list[Tensor]:
    """A tensor as large as each of these weights, padded as FSDP2 pads them."""
    return [
        t.new(
            f"{x.storage.own_name} ({name})", fsdp_cut(x.shape, "gathered", True), dtype or x.dtype
        )
        for x in w.every
    ]


def _gathered(t: Tape, s: Structure, x: Tensor, w: Weights) -> tuple[Tensor, list[Tensor]]:
    """x, when FSDP2 has gathered the weights for the experts' forward; and what is gathered.

    In backward this is where it frees them again and reduces their gradients: the buffer that the
    reduction sends stays until the next one.
    """
    if not s.regathers:
        return x, []
    t.start("gather experts", x)
    gathered = [*_whole(t, w, "all-gather"), *_whole(t, w, "gathered")]
    names = {p.storage.name for p in w.every}
    for p in w.every:
        whole = fsdp_cut(p.shape, "gathered", True)
        t.send("weights of experts", "all-gather", EDP, whole, p.dtype)
        t.send("weights of experts", "all-gather", EDP, whole, p.dtype, backward=True)
        t.send("gradients of experts", "reduce-scatter", EDP, whole, s.regathers, backward=True)

    def backward(g: Gradients) -> Gradients:
        for m in t.gathered_again:
            m.death = t.clock + 1
        t.gathered_again.clear()
        t.reduced = t.clock + 1
        buffers = _whole(t, w, "reduce-scatter input", s.regathers)
        for m in t.storages:
            if m.gradient_of in names:
                m.kind, m.gradient_of, m.death = "temporary", "", t.clock + 1
        for b in buffers:
            b.storage.death = ALWAYS
        for p in w.every:
            shard = t.new("reduced gradient", fsdp_cut(p.shape, "resident", True), s.regathers)
            shard.storage.death = ALWAYS
        return [g[0]]

    out = Tensor(x.storage, x.shape, x.dtype, False)
    t.finish("gather experts", [x], out, [], backward)
    return out, gathered


def _regathered(t: Tape, s: Structure, x: Tensor, w: Weights, gathered: list[Tensor]) -> Tensor:
    """x, when FSDP2 has freed the experts' weights; in backward it gathers them here."""
    if not s.regathers:
        return x
    t.use(*gathered)

    def backward(g: Gradients) -> Gradients:
        for m in _whole(t, w, "gathered again"):
            m.storage.death = ALWAYS
            t.gathered_again.append(m.storage)
        return [g[0]]

    out = Tensor(x.storage, x.shape, x.dtype, False)
    t.finish("reshard experts", [x], out, [], backward)
    return out


def _summed(t: Tape, x: Tensor, result: Shape) -> Tensor:
    """The rows of each token, summed. Backward copies the sum's gradient to each."""
    return unary(t, x, "sum over experts", result, grad="rows grad")
