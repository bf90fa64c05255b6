"""Fused: kernels that replace several operations of a layer by one: Liger's, and Megatron's."""

from __future__ import annotations

from memcore.tape.dims import (
    CHUNK,
    CP,
    ROTARY,
    SEQ,
    SMS,
    TOKENS,
    TP,
    VOCAB,
    B,
    Cut,
    Factor,
    S,
    Shape,
)
from memcore.tape.kinds import Module, Part
from memcore.tape.quantized import scales
from memcore.tape.structure import SEQUENCE, Narrow
from memcore.tape.tape import GRADIENTS_OF_TOKENS, Gradients, Tape, Tensor


def over(t: Tensor) -> Tensor:
    """A new value in the same memory."""
    return Tensor(t.storage, t.shape, t.dtype, False)


def rms_norm(t: Tape, x: Tensor, width: Factor, in_place: bool, contiguous: bool = True) -> Tensor:
    """LigerRMSNorm: saves x and one fp32 number per row.

    The weight's gradient is summed in fp32 by each streaming multiprocessor first.

    in_place     the gradient of x is written over that of the result
    contiguous   x is; else it is copied, and so is the gradient of the result
    """
    w = t.parameter("weight", (width,))
    t.start("rms_norm", x, w)
    kept = x if contiguous else t.new("x, contiguous", x.shape, x.dtype)
    out = t.new("out", x.shape, x.dtype)
    rstd = t.new("rstd", x.shape[:-1], "fp32")

    def backward(g: Gradients) -> Gradients:
        (dy,) = g
        assert dy is not None
        if not contiguous:
            dy = t.new("grad, contiguous", x.shape, x.dtype)
            t.free(dy)
        partial = t.new("weight grad, partial sums", (SMS, width), "fp32")
        dx = dy if in_place else t.new("input grad", x.shape, x.dtype)
        total = t.new("weight grad (fp32)", (width,), "fp32")
        dw = t.new("weight grad", (width,), w.dtype)
        t.free(partial, total)
        return [dx if x.needs_grad else None, dw]

    t.finish("rms_norm", [x, w], out, [kept, w, rstd], backward)
    return out


def gated(t: Tape, gate: Tensor, up: Tensor, name: str) -> Tensor:
    """act(gate) * up: saves both, and writes their gradients over them."""
    t.start(name, gate, up)
    out = t.new(name, gate.shape, gate.dtype)
    t.finish(name, [gate, up], out, [gate, up], lambda g: [over(gate), over(up)])
    return out


def rotary(
    t: Tape, q: Tensor, k: Tensor, tables: tuple[Tensor, Tensor], copies: bool, copies_grad: bool
) -> tuple[Tensor, Tensor]:
    """Turns queries and keys where they are, forward and backward. Saves the tables.

    `copies`, `copies_grad`: they, and their gradients, come in another layout than (B, S, heads,
    head_dim) and are copied first.
    """
    t.start("rotary", q, k, *tables)
    turned = [t.new("turned", x.shape, x.dtype) if copies else over(x) for x in (q, k)]

    def backward(g: Gradients) -> Gradients:
        return [
            t.new("rotary grad, contiguous", x.shape, x.dtype) if copies_grad and x else x
            for x in g
        ]

    t.finish("rotary", [q, k], turned, tables, backward)
    return turned[0], turned[1]


def cross_entropy(t: Tape, logits: Tensor, labels: Tensor) -> Tensor:
    """LigerCrossEntropyLoss on the logits as they are: forward writes their gradient over them."""
    t.start("cross_entropy", logits, labels)
    losses = t.new("losses", logits.shape[:-1], logits.dtype)
    mask = t.new("target mask", logits.shape[:-1], "bool")
    product = t.new("labels x mask", logits.shape[:-1], "int64")
    t.use(product)
    loss = t.new("loss", (), logits.dtype)
    t.use(losses, mask)
    t.finish("cross_entropy", [logits], loss, [logits], lambda g: [over(logits)])
    return loss


def linear_cross_entropy(t: Tape, x: Tensor, labels: Tensor, width: Factor, tied: bool) -> Tensor:
    """LigerFusedLinearCrossEntropyLoss: head and loss, a chunk of tokens at a time.

    Forward makes both gradients, which are kept for backward; of the logits only CHUNK rows exist,
    in one buffer for all chunks.
    """
    with t.scope("lm_head"):
        w = t.parameter("weight", (VOCAB / TP, width), tied)
    weight = (VOCAB / TP, width)
    product = (*x.shape[:-1], width, VOCAB / TP)
    t.start("linear_cross_entropy", x, w, labels, flops=[(6.0, product)])
    grad_x = t.new("input grad", x.shape, x.dtype)
    grad_w = [t.new("weight grad", weight, w.dtype)] if w.needs_grad else []
    losses = t.new("losses", (TOKENS,), "fp32")
    mask = t.new("target mask", (TOKENS,), "bool")
    logits = t.new("logits of a chunk", (CHUNK, VOCAB / TP), x.dtype)
    t.use(logits)
    loss = t.new("loss", (), "fp32")
    t.use(grad_x, *grad_w, losses, mask)
    t.finish(
        "linear_cross_entropy",
        [x, w],
        loss,
        [grad_x, *grad_w],
        lambda g: [over(grad_x), over(grad_w[0]) if grad_w else None],
    )
    return loss


def linear(
    t: Tape,
    name: str,
    x: Tensor,
    width: Factor,
    into: Factor,
    bias: bool,
    tied: bool,
    weight: Tensor | None = None,
) -> Tensor:
    """Megatron's column- or row-parallel linear. Saves this rank's tokens of x, and gathers them
    again in backward where the product needs all of them.

    In 8 bits it saves a copy of x along columns, or x itself where attention or a router keeps that
    anyway (Megatron's set_save_original_input). Where its weight is frozen it saves nothing of its
    own, and gathers nothing again. An input whose ranks' tokens are gathered already is read so.

    weight   the output layer's, where several products read it: the stand-in for its gradient then
             waits for those of the others
    """
    column, row = is_cut(into), is_cut(width)
    sequence = t.parallel == SEQUENCE
    head = isinstance(into, Cut) and into.dim is VOCAB  # the one layer that is not TE's
    narrow = None if head else t.narrow
    with t.scope(name):
        w = weight or t.parameter("weight", (into, width), tied, narrow=narrow)
        weights = [w, t.parameter("bias", (into,))] if bias else [w]
        learns = w.needs_grad
        gathers = column and sequence and x.shape[1] != S / CP
        scatters = row and sequence
        rows = (B, S / CP) if column else x.shape[:-1]
        flops = (2.0, (*rows, width, into))
        if gathers or not (column and sequence):
            _sends(t, x, (*rows, width), (*rows, into), column, row, head, learns)
        t.start("matmul", x, *weights, flops=[flops], product="mm", module=Module.LINEAR)
        read, kept = [x], [x]
        if narrow:
            reused = (row and t.within(Part.ATTENTION)) or x.storage.holders > 0 or x.storage.remade
            read, kept = narrowed(t, x, narrow, reused and not narrow.how.delayed, gathers, learns)
        kept = kept if learns else []
        whole = gathered(t, narrow, (*rows, width), x.dtype, "gathered") if gathers else read
        out = t.new("out", (*rows, into), x.dtype)
        t.use(*whole)
        if scatters:
            partial, out = out, t.new("scattered", (B, S / CP / SEQ, into), x.dtype)
            t.use(partial)
        elif row:
            out = Tensor(out.storage, (B, S / CP / SEQ, into), out.dtype, False)

        def backward(g: Gradients) -> Gradients:
            used = []
            if gathers and learns:
                used += gathered(t, narrow, (*rows, width), x.dtype, "gathered again")
            if narrow:
                used += twice(t, narrow, (*rows, into), "output grad")
                if kept == [x]:
                    used += twice(t, narrow, x.shape, "input")
            elif scatters:
                used.append(t.new("output grad, gathered", (*rows, into), x.dtype))
            dx = t.new("input grad", (*rows, width), x.dtype)
            if gathers:
                used.append(dx)
                dx = t.new("input grad, scattered", x.shape, x.dtype)
            if not learns:
                t.free(*used)
                return [dx if x.needs_grad else None, *(None for _ in weights)]
            made = [t.new("weight grad", w.shape, w.dtype)] if head or t.unfused else []
            if t.unfused and not head:
                t.then(f"gradient into {t.main_grad}", *made)
                if t.main_grad != w.dtype:  # widened first, into a tensor of its own
                    t.read_and_write(w.storage, w.shape, t.main_grad)
            t.read_and_write(w.storage, w.shape, t.main_grad)
            t.free(*used)
            wanted = dx if x.needs_grad else None
            if t.unfused:  # autograd's own: each weight has a gradient
                return [wanted, *made, *(t.new("bias grad", b.shape, b.dtype) for b in weights[1:])]
            if weight is None:
                t.free(*made)
            dw = made[0] if made and weight else None
            return [wanted, dw, *(None for _ in weights[1:])]

        again = [(4.0 if learns else 2.0, flops[1])]
        t.finish("matmul", [x, *weights], out, kept, backward, flops=again)
        return out


def eight_bit(t: Tape, narrow: Narrow, shape: Shape, name: str) -> list[Tensor]:
    """A tensor in 8 bits or 4, with the scales of its blocks."""
    how = narrow.how
    made = [t.new(f"{name} ({how.bits} bit)", shape, how.dtype)]
    if how.block:
        made.append(t.new(f"{name} (scales)", (scales(shape, how.block),), "fp8"))
    return made


def twice(t: Tape, narrow: Narrow, shape: Shape, name: str) -> list[Tensor]:
    """The same along rows and, where products need it, along columns."""
    rows = eight_bit(t, narrow, shape, name)
    return [*rows, *(eight_bit(t, narrow, shape, f"{name}, by columns") if narrow.both else [])]


def gathered(t: Tape, narrow: Narrow | None, shape: Shape, dtype: str, name: str) -> list[Tensor]:
    """All ranks' tokens, sent in 8 bits where the product reads them so. Forward needs them along
    rows; backward along columns, which a tensor with one scale is turned to after it arrived."""
    if not narrow:
        return [t.new(name, shape, dtype)]
    turns = t.forward_end and not narrow.how.block
    return (twice if turns else eight_bit)(t, narrow, shape, name)


def narrowed(
    t: Tape, x: Tensor, narrow: Narrow, reused: bool, gathers: bool = False, learns: bool = True
) -> tuple[list[Tensor], list[Tensor]]:
    """What a product reads of x in 8 bits, and what is kept of it for the weight's gradient.

    reused    x itself is kept, and made narrow again in backward
    gathers   one scale for the whole tensor: ranks exchange rows only, and rows are kept
    learns    the weight has a gradient; else columns are not made
    """
    rows = eight_bit(t, narrow, x.shape, "input")
    if reused or not learns:
        return rows, [x]
    if narrow.both and (narrow.how.block or not gathers):
        return rows, eight_bit(t, narrow, x.shape, "input, by columns")
    return rows, rows


def _sends(
    t: Tape, x: Tensor, into: Shape, out: Shape, column: bool, row: bool, whole: bool, learns: bool
) -> None:
    """What tensor-parallel ranks send each other for one linear (megatron/core/tensor_parallel:
    LinearWithGradAccumulationAndAsyncCommunication): the input is gathered again while its gradient
    is computed, and the input's gradient is summed while the weight's is.

    whole    the product is never cut in pieces: only Transformer Engine's are (its user buffers)
    learns   the weight has a gradient, which needs the input again, and which runs meanwhile
    """
    one_product = (2.0, (*into, out[-1]))
    beside = () if whole else (one_product,)
    if column and t.parallel:
        summed = "all-reduce"
        if t.parallel == SEQUENCE:
            summed = "reduce-scatter"
            t.send("tokens", "all-gather", TP, into, x.dtype, beside=beside)
            if learns:
                t.send("tokens", "all-gather", TP, into, x.dtype, backward=True, behind=one_product)
        meanwhile = None if t.unfused or not learns else one_product
        t.send(GRADIENTS_OF_TOKENS, summed, TP, into, x.dtype, backward=True, behind=meanwhile)
    elif row and t.parallel == SEQUENCE:
        t.send("partial results", "reduce-scatter", TP, out, x.dtype, beside=beside)
        t.send("gradients of results", "all-gather", TP, out, x.dtype, backward=True, beside=beside)
    elif row and t.parallel:
        t.send("partial results", "all-reduce", TP, out, x.dtype)


def is_cut(f: Factor) -> bool:
    """Whether tensor-parallel ranks share this dimension."""
    return isinstance(f, Cut) and f.axis is TP


def norm(t: Tape, x: Tensor, width: Factor, mean: bool) -> Tensor:
    """Transformer Engine's RMSNorm, or with `mean` its LayerNorm: saves x and fp32 statistics."""
    weights = [t.parameter(n, (width,)) for n in (("weight", "bias") if mean else ("weight",))]
    t.start("norm", x, *weights, module=Module.NORM)
    out = t.new("out", x.shape, x.dtype)
    stats = [t.new(n, x.shape[:-1], "fp32") for n in (("mean", "rstd") if mean else ("rstd",))]

    def backward(g: Gradients) -> Gradients:
        dx = t.new("input grad", x.shape, x.dtype)
        return [dx, *(t.new("weight grad", (width,), w.dtype) for w in weights)]

    t.finish("norm", [x, *weights], out, [x, *weights, *stats], backward)
    return out


def turned(t: Tape, x: Tensor, name: str) -> Tensor:
    """Megatron's fused rotary embedding: a new tensor; saves the table of angles."""
    table = t.shared("rotary angles", (S / CP, ROTARY), "fp32")
    t.start(name, x, table)
    out = t.new(name, x.shape, x.dtype)
    t.finish(name, [x], out, [table], t.grads(f"{name} grad", x))
    return out


def activated(t: Tape, x: Tensor, shape: Shape, name: str) -> Tensor:
    """Megatron's fused activation (SwiGLU of both halves, or bias and GELU): saves its input."""
    t.start(name, x)
    out = t.new(name, shape, x.dtype)
    t.finish(name, [x], out, [x], t.grads(f"{name} grad", x))
    return out


def vocabulary_cross_entropy(t: Tape, logits: Tensor, labels: Tensor) -> Tensor:
    """Megatron's vocab_parallel_cross_entropy: one fp32 copy of the logits, in which exponentials,
    probabilities and the gradient follow each other, each a kernel: largest, less the largest, its
    exponential, sum and quotient (megatron/core/tensor_parallel/cross_entropy.py)."""
    t.start("cross_entropy", logits, labels)
    wide = t.new("exponentials (fp32)", logits.shape, "fp32")
    in_place = 2 * [(wide.shape, wide.dtype)]  # read and written
    t.reads(wide.storage, *3 * in_place, *2 * in_place[:1])
    mask = t.new("target mask", logits.shape[:-1], "bool")
    target = t.new("masked target", logits.shape[:-1], "int64")
    loss = t.new("loss", logits.shape[:-1], "fp32")

    def backward(g: Gradients) -> Gradients:
        t.reads(wide.storage, *in_place)
        return [t.new("logits grad", logits.shape, logits.dtype)]

    t.finish("cross_entropy", [logits], loss, [wide, mask, target], backward)
    return loss
