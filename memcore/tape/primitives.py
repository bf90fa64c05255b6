"""Primitives: the PyTorch operations that layers are made of, each with what it saves.

Every function runs one operation on a tape and returns its output. What is saved and what backward
allocates follows PyTorch's tools/autograd/derivatives.yaml and the CUDA kernels; where a kernel
keeps something else on a CPU, the GPU's is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memcore.tape import fused
from memcore.tape.dims import (
    CHANNELS,
    CP,
    PATCH_H,
    PATCH_VALUES,
    PATCH_W,
    RANK,
    SEQ,
    SUMMED,
    TP,
    VOCAB,
    B,
    D,
    Factor,
    S,
    Shape,
)
from memcore.tape.kinds import Module, Part, Role
from memcore.tape.quantized import blocks, parts
from memcore.tape.structure import SEQUENCE, TENSOR
from memcore.tape.tape import GRADIENTS_OF_TOKENS, Gradients, Product, Storage, Tape, Tensor
from memcore.words.precision import BY_ROW, BY_TENSOR
from memcore.words.training import ALL_LINEAR, DENSE, INT8, NF4_DOUBLE, REDUCED, SPARSE
from memcore.words.word import DTYPE_BYTES


def promoted(a: str, b: str) -> str:
    """The dtype of a result of two: the wider floating one."""
    return a if DTYPE_BYTES[a] >= DTYPE_BYTES[b] else b


def cast(t: Tape, x: Tensor, dtype: str, name: str) -> Tensor:
    """x.to(dtype): a copy, or x itself if it has that dtype already. Saves nothing."""
    if x.dtype == dtype:
        return x
    t.start(name, x)
    out = t.new(name, x.shape, dtype)
    t.finish(name, [x], out, [], t.grads(f"{name} grad", x))
    return out


def _matrix_input(t: Tape, x: Tensor) -> Tensor:
    """Under autocast a matrix operation reads a bf16 copy, made anew for each reader."""
    return cast(t, x, "bf16", "input (bf16)") if t.autocast else x


def _weight(t: Tape, w: Tensor) -> Tensor:
    """Under autocast a weight is cast once and the copy is cached until autocast ends; that of a
    frozen one is not cached (aten/src/ATen/autocast_mode.cpp: cached_cast)."""
    if not t.autocast or w.dtype == "bf16":
        return w
    if t.tied:
        return t.cached(w, "bf16")
    copy = cast(t, w, "bf16", "weight (bf16)")
    if w.needs_grad:
        copy.storage.kind = "weight copy"
    return copy


def linear(
    t: Tape,
    name: str,
    x: Tensor,
    width: Factor,
    into: Factor,
    bias: bool,
    transposed: bool = False,
    tied: bool = False,
    dtype: str = "",
) -> Tensor:
    """x @ W (+ b) from `width` to `into`. Saves x, or nothing of its own where W is frozen.

    W is (into, width), or (width, into) when `transposed` (GPT-2's Conv1D). A `tied` W is another
    block's parameter and is not counted here. `dtype`: x and W are cast to it first.
    """
    if t.kernels == "megatron":
        if not (t.adapters and name != HEAD and _targeted(t, name)):
            return fused.linear(t, name, x, width, into, bias, tied)
        x = gather(t, x) if fused.is_cut(into) and t.parallel == SEQUENCE else x
        out = fused.linear(t, name, x, width, into, bias, tied)
        return _with_parallel_adapter(t, name, x, out, width, into)
    quantized = t.adapters.quantized if t.adapters and name != HEAD else ""
    scaled = t.float8 if t.within(Part.LAYER) and not quantized else ""
    column, row = fused.is_cut(into), fused.is_cut(width)
    # torchao's styles of tensor parallelism, for one scale: what is sent is made narrow before.
    early = scaled == BY_TENSOR and t.parallel == SEQUENCE and (column or row)
    rows = (B, S / CP) if x.shape[0] is B else x.shape[:-1]
    whole: Product = (2.0, (*rows, width, into))
    if column:
        x = gather(t, x, whole if scaled != BY_ROW else None, early)
    with t.scope(name):
        if row and early:
            x = _narrowed(t, x)
        turned = transposed and quantized != INT8  # bitsandbytes has a row for each result
        shape = (width, into) if turned else (into, width)
        gathered = "fp8" if scaled == BY_TENSOR else ""
        w = t.parameter("weight", shape, tied, quantized=quantized, gathered=gathered)
        biases = [t.parameter("bias", (into,))] if bias else []
        if quantized:
            product = _integer_product if quantized == INT8 else _widened_product
            out = product(t, x, w, biases, width, into)
        else:
            w_used = _weight(t, cast(t, w, dtype or w.dtype, f"weight ({dtype})"))
            biases = [_weight(t, b) for b in biases]
            x_used = _matrix_input(t, cast(t, x, dtype or x.dtype, f"input ({dtype})"))
            out = _product(t, x_used, w_used, biases, width, into, scaled)
        if t.adapters and name != HEAD and _targeted(t, name):
            out = _with_adapter(t, x, out, width, into, quantized)
        if column and early and out.needs_grad:
            t.send(LARGEST, "all-reduce", TP, (), "fp32", backward=True)
        return scatter(t, out, whole, early, scaled == BY_ROW) if row else out


Reused = Callable[[Tensor], Tensor]


def of_every_use(t: Tape, w: Tensor) -> Tensor:
    """A weight that is used more than once, whose gradients are summed before it has one."""
    out = Tensor(w.storage, w.shape, w.dtype, False)
    t.finish("of every use", [w], out, [], lambda g: [g[0]])
    return out


def reused_linear(t: Tape, name: str, width: Factor, into: Factor, bias: bool = True) -> Reused:
    """x @ W (+ b), of one W and b for all that it is called with, whose gradients are summed before
    either has one. Saves x."""
    with t.scope(name):
        shapes = {"weight": (into, width), **({"bias": (into,)} if bias else {})}
        weight, *biases = (
            of_every_use(t, _weight(t, t.parameter(n, shape))) for n, shape in shapes.items()
        )

    def run(x: Tensor) -> Tensor:
        with t.scope(name):
            return _product(t, _matrix_input(t, x), weight, biases, width, into)

    return run


def patches(t: Tape, name: str, x: Tensor, shape: Shape, bias: bool) -> Tensor:
    """A convolution whose kernel is as wide as its stride: each patch of x to a token of `shape`.
    Saves x and its weight."""
    return _convolution(t, name, x, shape, (CHANNELS, PATCH_H, PATCH_W), (PATCH_VALUES,), bias)


def convolution(t: Tape, name: str, x: Tensor, shape: Shape, width: Factor, kernel: int) -> Tensor:
    """torch.nn.Conv1d with a bias: frames of `width` channels to those of `shape`, each from as
    many as `kernel`. Saves x and its weight."""
    return _convolution(t, name, x, shape, (width, kernel), (width, kernel), bias=True)


def _convolution(
    t: Tape, name: str, x: Tensor, shape: Shape, weight: Shape, values: Shape, bias: bool
) -> Tensor:
    """`weight`: that of one channel of the result; `values`: the same as what is multiplied."""
    with t.scope(name):
        w = t.parameter("weight", (shape[-1], *weight))
        biases = [t.parameter("bias", (shape[-1],))] if bias else []
        w_used, x = _weight(t, w), _matrix_input(t, x)
        biases = [_weight(t, b) for b in biases]
        flops = (2.0, (*shape[:-1], *values, shape[-1]))
        t.start("convolution", x, w_used, *biases, flops=[flops])
        out = t.new("out", shape, x.dtype)

        def backward(g: Gradients) -> Gradients:
            named = (("input", x), ("weight", w_used), *(("bias", b) for b in biases))
            return [
                t.new(f"{what} grad", of.shape, of.dtype) if of.needs_grad else None
                for what, of in named
            ]

        again = [(1.0 * (w_used.needs_grad + x.needs_grad) * flops[0], flops[1])]
        t.finish("convolution", [x, w_used, *biases], out, [x, w_used], backward, flops=again)
        return out


HEAD = "lm_head"


def _product(
    t: Tape,
    x: Tensor,
    w: Tensor,
    biases: list[Tensor],
    width: Factor,
    into: Factor,
    float8: str = "",
) -> Tensor:
    """x @ W (+ b) in the dtype that they have. Saves x if W needs a gradient, W if x does.

    float8   as in precision.Precision: torchao makes 8-bit copies of both for the product, and
             again in backward, beside the gradient's (torchao/float8/float8_linear.py:
             matmul_with_hp_or_float8_args). A weight that is gathered in 8 bits has no other; nor
             has x, or the gradient, that is in 8 bits already.
    """
    wide = w.dtype if x.dtype == "fp8" else x.dtype
    rows = (B, S / CP) if fused.is_cut(into) and x.shape[0] is B else x.shape[:-1]
    flops = (2.0, (*rows, width, into))
    read = Tensor(w.storage, w.shape, "fp8", False) if float8 == BY_TENSOR else w
    t.start("matmul", x, read, *biases, flops=[flops], product="addmm" if biases else "mm")

    early = x.dtype == "fp8"
    turned_before = t.compiled and x.storage.holders > 0  # a compiler does so once for all

    def narrow() -> list[Tensor]:
        pairs = [("input", x), ("weight", w)] if float8 == BY_ROW else [("input", x)]
        pairs = [(n, v) for n, v in pairs if float8 and v.dtype != "fp8"]
        made = [_to_8_bits(t, n, v.shape) for n, v in pairs]
        for v in made:
            t.reads(v.storage)
        return made

    made = narrow()
    out = t.new("out", (*rows, into), wide)
    if made:
        t.use(*made)

    def backward(g: Gradients) -> Gradients:
        if float8:
            wants = g[0] is not None and g[0].dtype != "fp8"
            low = [_to_8_bits(t, "output grad", (*rows, into))] if wants else []
            if early:  # what is in 8 bits already is only turned: _scaled_mm wants rows by columns
                low += _turned(t, ("weight", w), ("output grad", out))
                low += [] if turned_before else _turned(t, ("input", x))
            t.free(*low, *narrow())
        # With a bias (addmm) the input's gradient comes first, without (mm) the weight's.
        dx = dw = None
        for which in ("input", "weight") if biases else ("weight", "input"):
            if which == "weight" and w.needs_grad:
                dw = t.new("weight grad", w.shape, w.dtype)
            elif which == "input" and x.needs_grad:
                dx = t.new("input grad", x.shape, wide)
        db = [t.new("bias grad", (into,), wide) if b.needs_grad else None for b in biases]
        return [dx, dw, *db]

    saved = [of for of, other in ((x, w), (w, x)) if other.needs_grad]
    again = [(2.0 * (w.needs_grad + x.needs_grad), flops[1])]
    t.finish("matmul", [x, w, *biases], out, saved, backward, flops=again)
    return out


VALUES = ("q_proj", "v_proj")
JOINT = ("qkv_proj", "c_attn", "query_key_value", "linear_qkv")


def _targeted(t: Tape, name: str) -> bool:
    """Whether the linear layer of this name, within the tape's scope, has an adapter."""
    assert t.adapters
    if t.adapters.modules:
        return name in t.adapters.modules
    if t.adapters.targets == "attention":
        return name in (*VALUES, *JOINT)
    return t.adapters.targets == ALL_LINEAR or t.within(Part.ATTENTION)


def _with_adapter(
    t: Tape, x: Tensor, base: Tensor, width: Factor, into: Factor, quantized: str
) -> Tensor:
    """base + scaling * B(A(dropout(x))). The input is cast to the adapter's dtype first, for each
    layer anew, and its copy kept for A's gradient; of B's, only RANK wide."""
    a = t.parameter("lora_A.weight", (RANK, width), adapter=True)
    b = t.parameter("lora_B.weight", (into, RANK), adapter=True)
    assert t.adapters
    with t.scope("lora"):
        if quantized and quantized != INT8:
            base = contiguous(t, base, base.shape, "clone")
        converts = not (quantized and t.autocast)
        h = given = cast(t, x, a.dtype, "input, cast") if converts else x
        if t.adapters.dropout:
            h = dropout(t, h, "lora_dropout")
        with t.scope("A"):
            h = _product(t, _matrix_input(t, h), _weight(t, a), [], width, RANK)
        with t.scope("B"):
            h = _product(t, _matrix_input(t, h), _weight(t, b), [], RANK, into)
        h = scale(t, h, "scaled")
        if not quantized:
            out = cast(t, add(t, base, h, "sum"), base.dtype, "sum, cast")
            t.use(given)  # the function's own names live until it returns
            return out
        h = cast(t, h, base.dtype, "scaled, cast") if converts else h
        out = add(t, base, h, "sum")
        t.use(given, h)
        return out


def _with_parallel_adapter(
    t: Tape, name: str, x: Tensor, base: Tensor, width: Factor, into: Factor
) -> Tensor:
    """base + scaling * B(A(dropout(x))), shared out over tensor-parallel ranks as Megatron-Bridge
    does (peft/utils.py: ParallelLinearAdapter).

    Behind a norm (column) each rank has a part of A's results, which all of them gather. Behind
    attention or an activation (row) A's partial results are summed, and B's parts gathered; under
    sequence parallelism each keeps its tokens. A saves all ranks' tokens in 16 bits: Transformer
    Engine returns the norm's result gathered, and scatters one gradient of both that read it.
    """
    row = fused.is_cut(width)
    tokens, share = (B, S / CP), D / TP if row else into
    assert t.adapters
    with t.scope(f"{name}.adapter"):
        a = t.parameter(
            "linear_in.weight", (RANK, width) if row else (RANK / TP, width), adapter=True
        )
        b = t.parameter("linear_out.weight", (share, RANK), adapter=True)
        h = dropout(t, x, "dropout") if t.adapters.dropout else x
        if not row and t.parallel == TENSOR and x.needs_grad:
            t.send(GRADIENTS_OF_TOKENS, "all-reduce", TP, h.shape, h.dtype, backward=True)
        with t.scope("linear_in"):
            h = _product(t, h, a, [], width, RANK if row else RANK / TP)
        if row and t.parallel:
            t.send("results of an adapter's A", "all-reduce", TP, h.shape, h.dtype)
        elif t.parallel:
            h = _parts_joined(t, h, (*tokens, RANK), "results of A")
        if t.parallel:
            t.send("gradients of A's results", "all-reduce", TP, h.shape, h.dtype, backward=True)
        with t.scope("linear_out"):
            h = _product(t, h, b, [], RANK, share)
        if row and t.parallel:
            h = _own_tokens(t, _parts_joined(t, h, (*tokens, into), "results of B"))
        return add(t, base, scale(t, h, "scaled"), "sum")


def _parts_joined(t: Tape, x: Tensor, shape: Shape, name: str) -> Tensor:
    """Each rank's part of the last dimension, gathered; backward takes its own from the gradient
    (megatron/core/tensor_parallel/mappings.py: _GatherFromModelParallelRegion)."""
    t.start(name, x)
    t.send(name, "all-gather", TP, shape, x.dtype)
    out = t.new(name, shape, x.dtype)
    t.finish(name, [x], out, [], t.grads(f"{name} grad, own", x))
    return out


def _own_tokens(t: Tape, x: Tensor) -> Tensor:
    """A rank's tokens of a whole tensor under sequence parallelism, a view; backward gathers the
    gradient (_ScatterToSequenceParallelRegion)."""
    if t.parallel != SEQUENCE:
        return x
    out = Tensor(x.storage, (B, S / CP / SEQ, *x.shape[2:]), x.dtype, False)
    t.send(GRADIENTS_OF_TOKENS, "all-gather", TP, x.shape, x.dtype, backward=True)
    t.finish("own tokens", [x], out, [], t.grads("grad, gathered", x))
    return out


def wanted(t: Tape, x: Tensor) -> Tensor:
    """A frozen embedding's result, of which a gradient is wanted all the same: transformers' own
    activation_checkpointing_enable calls enable_input_require_grads, and so does PEFT."""
    x.needs_grad |= t.reached
    return x


def _widened_product(
    t: Tape, x: Tensor, w: Tensor, biases: list[Tensor], width: Factor, into: Factor
) -> Tensor:
    """bitsandbytes' Linear4bit: W is widened for the product, and again for its backward. Saves
    nothing but the weight in 4 bits. Widening is a kernel of its own, which no arithmetic hides
    (bitsandbytes/functional.py: dequantize_4bit)."""
    assert t.adapters
    computes = t.adapters.computes
    low = cast(t, x, computes, f"input ({computes})")
    rows = x.shape[:-1]
    flops = (2.0, (*rows, width, into))

    def widened() -> Tensor:
        double = w.storage.quantized == NF4_DOUBLE
        # Of scales in 8 bits: their values, the offset added, and the kernel that widens.
        with t.operation("dequantize", started=3 if double else 1):
            pieces = parts(w.shape, w.storage.quantized)
            t.reads(w.storage, *((shape, dtype) for _, shape, dtype in pieces))
            scales = [t.new("scales (fp32)", (blocks(w.shape),), "fp32")] if double else []
            whole = t.new("weight, widened", w.shape, low.dtype)
            t.use(*scales) if not t.forward_end else t.free(*scales)
        return whole

    whole = widened()
    t.start("matmul 4 bit", low, *biases, flops=[flops], product="mm", module=Module.WIDENED)
    out = t.new("out", (*rows, into), low.dtype)
    t.use(whole)

    def backward(g: Gradients) -> Gradients:
        whole = widened()
        t.reads(whole.storage)
        dx = t.new("input grad", low.shape, low.dtype)
        t.free(whole)
        return [dx, *(None for _ in biases)]

    t.finish("matmul 4 bit", [low, *biases], out, [], backward, flops=[flops])
    return cast(t, out, x.dtype, "out, cast")


def _integer_product(
    t: Tape, x: Tensor, w: Tensor, biases: list[Tensor], width: Factor, into: Factor
) -> Tensor:
    """bitsandbytes' Linear8bitLt, with transformers' llm_int8_threshold above 0: rows of x in 8
    bits times W in 8 bits. Backward widens W to x's dtype. Saves nothing, but the node of the graph
    refers to x (bitsandbytes/autograd/_functions.py: MatMul8bitLt, `ctx.tensors`).

    The columns of x that go beyond the threshold are another product in 16 bits, of a few columns
    or none: which they are depends on the values, and it is not counted.
    """
    rows = x.shape[:-1]
    flops = (2.0, (*rows, width, into))
    with t.operation("quantize", started=6):  # with the search for columns beyond the threshold
        t.use(x)
        low = x if x.dtype == "fp16" else t.new("input (fp16)", x.shape, "fp16")
        stats = t.new("input, scales", rows, "fp32")
        narrow = t.new("input (8 bit)", x.shape, "int8")
        size = t.new("input, without signs", x.shape, "fp16")
        beyond = t.new("input, beyond the threshold", x.shape, "bool")
        t.use(low, size, beyond)
    t.start("matmul 8 bit", narrow, stats, flops=[flops], module=Module.INTEGER)
    t.reads(w.storage, *((shape, dtype) for _, shape, dtype in parts(w.shape, INT8)))
    summed = t.new("out (int32)", (*rows, into), "int32")
    out = t.new("out", (*rows, into), "fp16")
    if x.dtype != "fp16":
        half, out = out, t.new(f"out ({x.dtype})", (*rows, into), x.dtype)
        t.use(half)
    t.use(summed, narrow, stats)

    def backward(g: Gradients) -> Gradients:
        with t.operation("dequantize", started=3):
            t.reads(w.storage, *((shape, dtype) for _, shape, dtype in parts(w.shape, INT8)))
            whole = t.new("weight, widened", w.shape, x.dtype)
        t.reads(whole.storage)
        dx = t.new("input grad", x.shape, x.dtype)
        t.free(whole)
        return [dx, *(None for _ in biases)]

    t.finish("matmul 8 bit", [x, *biases], out, [], backward, flops=[flops])
    t.pin(x)
    return out


def gather(t: Tape, x: Tensor, product: Product | None = None, narrow: bool = False) -> Tensor:
    """All ranks' tokens, under sequence parallelism: made once for all products that read them.
    Backward reduces and scatters the gradient; without sequence parallelism it is summed over the
    ranks. Saves nothing itself.

    product   of them, whose pieces run behind pieces of what is sent; of the gradient only where it
              is the one that made it: gradients of several are summed before they are sent
              (torch/_inductor/fx_passes/micro_pipeline_tp.py)
    narrow    tokens are sent in 8 bits
    """
    if t.parallel != SEQUENCE:
        if t.parallel and x.needs_grad and id(x) not in t.whole:
            t.send(GRADIENTS_OF_TOKENS, "all-reduce", TP, x.shape, x.dtype, backward=True)
            t.whole[id(x)] = x
        return x
    if id(x) not in t.whole:
        shape = (B, S / CP, *x.shape[2:])
        given = _narrowed(t, x) if narrow else x
        t.start("gather", given)
        t.sent_whole[id(x)] = len(t.sends)
        t.send("tokens", "all-gather", TP, shape, given.dtype)
        if x.needs_grad:
            t.send(GRADIENTS_OF_TOKENS, "reduce-scatter", TP, shape, x.dtype, backward=True)
        out = t.new("gathered", shape, given.dtype)
        _copied(t, out.storage, shape, given.dtype)

        def backward(g: Gradients) -> Gradients:
            _copied(t, out.storage, shape, x.dtype)
            return [t.new("grad, scattered", x.shape, x.dtype)]

        t.finish("gather", [given], out, [], backward)
        t.whole[id(x)] = out
    sent = t.sent_whole.get(id(x))  # not that of tokens that a mixture gathered before its products
    if product and sent is not None and t.within(Part.LAYER):
        t.in_pieces(sent, product)
    return t.whole[id(x)]


def scatter(
    t: Tape, x: Tensor, product: Product | None = None, narrow: bool = False, between: bool = False
) -> Tensor:
    """Partial results of all ranks summed, each keeping its tokens, under sequence parallelism;
    else summed in place. Backward gathers the gradient. Saves nothing.

    product   that made x, and reads its gradient, whose pieces run behind pieces of both
    narrow    gradients are sent in 8 bits
    between   the gradient is made narrow between the two, so that nothing of it is in pieces
    """
    shape = (B, S / CP / SEQ, *x.shape[2:])
    whole = (B, S / CP, *x.shape[2:])
    if t.parallel != SEQUENCE:
        if t.parallel:
            t.send("partial results", "all-reduce", TP, whole, x.dtype)
        return Tensor(x.storage, shape, x.dtype, x.needs_grad, x.node, x.index)
    t.start("scatter", x, product=REDUCED, started=6 if t.kernels == "megatron" else 1)
    beside = (product,) if product and t.within(Part.LAYER) else ()
    t.send("partial results", "reduce-scatter", TP, whole, x.dtype, beside=beside)
    sent = "fp8" if narrow else x.dtype
    if x.needs_grad:
        if narrow:
            t.send(LARGEST, "all-reduce", TP, (), "fp32", backward=True)
        t.send(
            "gradients of results", "all-gather", TP, whole, sent, backward=True,
            beside=() if between else beside,
        )  # fmt: skip
    out = t.new("scattered", shape, x.dtype)
    _copied(t, x.storage, whole, x.dtype)

    def backward(g: Gradients) -> Gradients:
        low = [t.new("grad (8 bit)", shape, sent)] if narrow else []
        made = t.new("grad, gathered", x.shape, sent)
        t.free(*low)
        _copied(t, made.storage, whole, sent)
        return [made]

    t.finish("scatter", [x], out, [], backward)
    return out


LARGEST = "largest values"  # of a tensor whose parts ranks have


def _narrowed(t: Tape, x: Tensor) -> Tensor:
    """x in 8 bits, with one scale for what all ranks have of it, which they agree on first: so the
    wide one is there when the narrow one is made. Saves nothing; its gradient is x's
    (torchao/float8/float8_scaling_utils.py: hp_tensor_to_float8_dynamic)."""
    x.storage.stands = True
    t.start("to 8 bits", x)
    t.send(LARGEST, "all-reduce", TP, (), "fp32")
    scale_of_all = t.new("scale", (), "fp32")
    out = _to_8_bits(t, "input", x.shape)
    t.finish("to 8 bits", [x], out, [scale_of_all], lambda g: [g[0]])
    return out


def _to_8_bits(t: Tape, name: str, shape: Shape) -> Tensor:
    """A tensor of this shape made narrow: through two copies in fp32, scaled and clamped, but where
    a compiler makes one kernel of it (torchao/float8: _ToFloat8ConstrFunc, to_fp8_saturated)."""
    whats = () if t.compiled else ("scaled", "clamped")
    wide = [t.new(f"{name}, {what} (fp32)", shape, "fp32") for what in whats]
    for v in wide:
        t.reads(v.storage)
    made = t.new(f"{name} (8 bit)", shape, "fp8")
    if wide:
        t.free(*wide) if t.forward_end else t.use(*wide)
    return made


def _turned(t: Tape, *named: tuple[str, Tensor]) -> list[Tensor]:
    """Copies of tensors in 8 bits along the other dimension, each by a kernel of its own
    (torchao/float8/float8_ops.py: preprocess_addmm)."""
    made = []
    for name, of in named:
        with t.operation(f"turn {name}"):
            t.reads(of.storage, (of.shape, "fp8"))
            made.append(t.new(f"{name}, turned (8 bit)", of.shape, "fp8"))
    return made


def _copied(t: Tape, storage: Storage, shape: Shape, dtype: str) -> None:
    """torch's collectives work along the first dimension, which is not that of tokens: they copy
    what all ranks have together (cat of chunks: torch/distributed/_functional_collectives.py). A
    compiler makes that part of a neighbour's kernel; Megatron's tokens come first."""
    if t.kernels not in ("megatron", "compile"):
        t.reads(storage, (shape, dtype), (shape, dtype))


def stacked_linear(t: Tape, name: str, x: Tensor, width: Factor, into: Factor) -> Tensor:
    """x[i] @ W[i] for each of a stack of weights, (stack, ..., width) to (stack, ..., into).

    W is (stack, width, into). Saves x.
    """
    stack, *rows = x.shape[:-1]
    w = t.parameter(name, (stack, width, into))
    w_used, x_used = _weight(t, w), _matrix_input(t, x)
    flops = (2.0, (stack, *rows, width, into))
    t.start(f"{name} bmm", x_used, w_used, flops=[flops], product="bmm")
    out = t.new(f"{name} out", (stack, *rows, into), x_used.dtype)

    def backward(g: Gradients) -> Gradients:
        dw = t.new("weight grad", w_used.shape, w_used.dtype) if w_used.needs_grad else None
        dx = t.new(f"{name} input grad", x_used.shape, x_used.dtype) if x_used.needs_grad else None
        return [dx, dw]

    pair = ((x_used, w_used), (w_used, x_used))
    saved = [of for of, other in pair if other.needs_grad]
    again = [(2.0 * (w_used.needs_grad + x_used.needs_grad), flops[1])]
    t.finish(f"{name} bmm", [x_used, w_used], out, saved, backward, flops=again)
    return out


def multiply(t: Tape, a: Tensor, b: Tensor, name: str) -> Tensor:
    """a * b, `b` of a's shape or broadcast to it. Saves the factors that gradients need."""
    dtype = promoted(a.dtype, b.dtype)
    t.start(name, a, b)
    out = t.new(name, a.shape, dtype)
    broadcast = b.shape != a.shape

    def backward(g: Gradients) -> Gradients:
        products = [t.new(f"{name} grad", a.shape, dtype) if x.needs_grad else None for x in (a, b)]
        da, db = products
        t.computed()
        if da is not None and a.dtype != dtype:
            narrow = t.new(f"{name} grad ({a.dtype})", a.shape, a.dtype)
            t.free(da)
            da = narrow
        if db is not None and broadcast:
            reduced = t.new(f"{name} grad, summed", b.shape, b.dtype)
            t.free(db)
            db = reduced
        return [da, db]

    saved = [x for x, other in ((a, b), (b, a)) if other.needs_grad]
    t.finish(name, [a, b], out, saved, backward)
    return out


def unary(
    t: Tape,
    x: Tensor,
    name: str,
    shape: Shape | None = None,
    saves_input: bool = False,
    fixed: bool = False,
    grad: str = "",
) -> Tensor:
    """An operation on x alone that makes a tensor of a shape (x's, unless it is said), and in
    backward a gradient of x's. Saves nothing, or x. `grad`: what that gradient is called."""
    t.start(name, x)
    out = t.new(name, x.shape if shape is None else shape, x.dtype, fixed)
    named = grad or f"{name} grad"
    saved = [x] if saves_input else []
    t.finish(name, [x], out, saved, t.grads(named, x))
    return out


def scale(t: Tape, x: Tensor, name: str) -> Tensor:
    """x * number. Saves nothing."""
    return unary(t, x, name)


def shift(t: Tape, x: Tensor, name: str) -> Tensor:
    """x + number. Saves nothing, passes its gradient on."""
    t.start(name, x)
    out = t.new(name, x.shape, x.dtype)
    t.finish(name, [x], out, [], lambda g: [g[0]])
    return out


def add(t: Tape, a: Tensor, b: Tensor, name: str) -> Tensor:
    """a + b. Saves nothing; both sides get the same gradient, cast or summed where they differ."""
    dtype = promoted(a.dtype, b.dtype)
    t.start(name, a, b)
    out = t.new(name, a.shape, dtype)

    def backward(g: Gradients) -> Gradients:
        grads: list[Tensor | None] = []
        for x in (a, b):
            if not x.needs_grad:
                grads.append(None)
            elif x.shape != a.shape or x.dtype != dtype:
                grads.append(t.new(f"{name} grad", x.shape, x.dtype))
            else:
                grads.append(g[0])
        return grads

    t.finish(name, [a, b], out, [], backward)
    return out


def added(t: Tape, a: Tensor, b: Tensor, name: str) -> Tensor:
    """a += b, in place; b may be a bias. Saves nothing."""
    t.start(name, a, b)
    out = Tensor(a.storage, a.shape, a.dtype, False)
    t.finish(name, [a, b], out, [], lambda g: [g[0], g[0]])
    return out


def power(t: Tape, x: Tensor, name: str) -> Tensor:
    """x ** number. Saves x; backward needs two temporaries as large as x."""
    t.start(name, x)
    out = t.new(name, x.shape, x.dtype)

    def backward(g: Gradients) -> Gradients:
        raised = t.new(f"{name} grad, power", x.shape, x.dtype)
        scaled = t.new(f"{name} grad, scaled", x.shape, x.dtype)
        grad = t.new(f"{name} grad", x.shape, x.dtype)
        t.free(raised, scaled)  # one C++ expression: its temporaries live until its end
        return [grad]

    t.finish(name, [x], out, [x], backward)
    return out


def mean(t: Tape, x: Tensor, name: str) -> Tensor:
    """Mean over the last dimension. Saves nothing; backward expands to x's shape."""
    return unary(t, x, name, x.shape[:-1], fixed=True)


def mean_of_tokens(t: Tape, x: Tensor, name: str) -> Tensor:
    """Mean over the tokens of each sequence. Saves nothing; backward expands to x's shape."""
    return unary(t, x, f"{name}, mean", (x.shape[0], x.shape[-1]), grad=f"{name} grad")


def less(t: Tape, x: Tensor, m: Tensor, name: str) -> Tensor:
    """x - m, of which each stands for a row of x. Saves nothing."""
    t.start(name, x, m)
    out = t.new(name, x.shape, x.dtype)

    def backward(g: Gradients) -> Gradients:
        negative = t.new(f"{name} grad, negative", x.shape, x.dtype)
        grad = t.new(f"{name} grad, summed", m.shape, m.dtype)
        t.free(negative)
        return [g[0], grad]

    t.finish(name, [x, m], out, [], backward)
    return out


def keeps_result(t: Tape, x: Tensor, name: str) -> Tensor:
    """An elementwise function whose derivative needs its result: rsqrt, tanh, relu. Saves it."""
    t.start(name, x)
    out = t.new(name, x.shape, x.dtype)
    t.finish(name, [x], out, [out], t.grads(f"{name} grad", x))
    return out


def keeps_input(t: Tape, x: Tensor, name: str) -> Tensor:
    """An elementwise function whose derivative needs its input: silu, gelu. Saves it."""
    return unary(t, x, name, saves_input=True)


def composed(t: Tape, x: Tensor, name: str, forward: int, backward: int) -> Tensor:
    """A custom autograd function written in several elementwise steps. Saves its input.

    `forward` and `backward` are how many temporaries of x's size are alive at once in each.
    """

    def several(count: int, what: str) -> None:
        t.free(*[t.new(f"{name} {what}", x.shape, x.dtype) for _ in range(count)])

    t.start(name, x)
    several(forward, "step")
    out = t.new(name, x.shape, x.dtype)

    def run(g: Gradients) -> Gradients:
        several(backward, "grad step")
        return [t.new(f"{name} grad", x.shape, x.dtype)]

    t.finish(name, [x], out, [x], run)
    return out


def indexed(t: Tape, x: Tensor, shape: Shape, name: str) -> Tensor:
    """x[..., [i], :]: a copy. Saves the list of indices."""
    t.start(name, x)
    out = t.new(name, shape, x.dtype)
    index = t.new(f"{name}, indices", (1,), "int64")
    t.finish(name, [x], out, [index], t.grads(f"{name} grad", x))
    return out


def taken(t: Tape, x: Tensor, shape: Shape, rows: Shape, name: str) -> Tensor:
    """x[index]: its rows in another order. Saves the index, of one number for each of `rows`."""
    index = t.new(f"{name}, index", rows, "int64")
    t.start(name, x, index)
    out = t.new(name, shape, x.dtype)
    t.finish(name, [x], out, [index], lambda g: [t.new(f"{name} grad", x.shape, x.dtype)])
    return out


def summed(t: Tape, x: Tensor, shape: Shape, name: str) -> Tensor:
    """Sum over a dimension. Saves nothing; its gradient is a view of the result's."""
    t.start(name, x)
    out = t.new(name, shape, x.dtype)
    t.finish(name, [x], out, [], lambda g: [g[0]])
    return out


def softmax(t: Tape, x: Tensor, name: str, dtype: str = "", one_kernel: bool = False) -> Tensor:
    """Softmax or log-softmax over the last dimension. Saves its result.

    dtype       of the result, x's own if left out: CUDA's kernel reads fp16 and writes fp32
                (aten/src/ATen/native/SoftMax.cpp: at::_softmax with half_to_float)
    one_kernel  backward is one, as a log-softmax's; torch's softmax multiplies gradient and result
                first (aten/src/ATen/native/cuda/SoftMax.cu: softmax_backward_cuda_out)
    """
    dtype = dtype or x.dtype
    t.start(name, x)
    if t.compiled:  # which computes the result again from these
        t.use(*(t.new(f"{name}, {n}", x.shape[:-1], dtype, fixed=True) for n in ("max", "sum")))
    out = t.new(name, x.shape, dtype)

    def backward(g: Gradients) -> Gradients:
        product = (
            [] if one_kernel or t.compiled else [t.new(f"{name} grad x result", x.shape, dtype)]
        )
        for p in product:
            p.storage.role = Role.KERNEL
        grad = t.new(f"{name} grad", x.shape, x.dtype)
        t.free(*product)
        return [grad]

    t.finish(name, [x], out, [out], backward)
    return out


def masked_fill(t: Tape, x: Tensor, mask: Tensor, name: str, in_place: bool = False) -> Tensor:
    """x.masked_fill(mask, number), or torch.where(mask, x, number). Saves the mask."""
    t.start(name, x, mask)
    out = Tensor(x.storage, x.shape, x.dtype, False) if in_place else t.new(name, x.shape, x.dtype)
    t.finish(name, [x], out, [mask], t.grads(f"{name} grad", x))
    return out


def dropout(t: Tape, x: Tensor, name: str) -> Tensor:
    """Dropout with a probability above zero. Saves a mask of one byte per element."""
    with t.scope(name):
        t.start("dropout", x)
        mask = t.new("mask", x.shape, "bool", fixed=True)
        out = t.new("out", x.shape, x.dtype)
        t.finish("dropout", [x], out, [mask], t.grads("dropout grad", x))
        return out


def layer_norm(
    t: Tape, x: Tensor, width: Factor, name: str, affine: bool = True, bias: bool = True
) -> Tensor:
    """torch.nn.LayerNorm. Saves x, and fp32 mean and reciprocal deviation."""
    with t.scope(name):
        if t.kernels == "megatron":
            return fused.norm(t, x, width, mean=True)
        names = ("weight", "bias")[: affine * (1 + bias)]
        return layer_normed(t, x, [t.parameter(n, (width,)) for n in names])


def layer_normed(t: Tape, x: Tensor, wb: Sequence[Tensor], fp32: bool = True) -> Tensor:
    """The same with its weight and bias, or none. `fp32`: under autocast it runs in that."""
    if t.autocast and fp32:
        x = cast(t, x, "fp32", "x (fp32)")
    t.start("layer_norm", x, *wb)
    stats = [t.new(s, x.shape[:-1], "fp32", fixed=True) for s in ("mean", "rstd")]
    out = t.new("out", x.shape, x.dtype)

    def backward(g: Gradients) -> Gradients:
        dx = t.new("input grad", x.shape, x.dtype) if x.needs_grad else None
        return [dx, *(t.new("weight grad", w.shape, w.dtype) if w.needs_grad else None for w in wb)]

    t.finish("layer_norm", [x, *wb], out, [x, *wb, *stats], backward)
    return out


def heads_first(t: Tape, x: Tensor, shape: Shape, copies_grad: bool) -> Tensor:
    """view + transpose to (B, heads, S, head_dim): free. Backward copies where layouts differ."""

    def backward(g: Gradients) -> Gradients:
        return [t.new("heads grad, contiguous", x.shape, x.dtype)] if copies_grad else [g[0]]

    out = Tensor(x.storage, shape, x.dtype, False)
    t.finish("heads", [x], out, [], backward)
    return out


def contiguous(t: Tape, x: Tensor, shape: Shape, name: str, other: Tensor | None = None) -> Tensor:
    """A copy in another layout, with repeated heads, or joined with `other`. Saves nothing.

    Backward sums repeats; of a join it hands out views.
    """
    inputs = [x, other] if other else [x]
    t.start(name, *inputs)
    out = t.new(name, shape, x.dtype)

    def backward(g: Gradients) -> Gradients:
        if other:
            return [g[0], g[0]]
        return [g[0]] if shape == x.shape else [t.new(f"{name} grad", x.shape, x.dtype)]

    t.finish(name, inputs, out, [], backward)
    return out


def joined(t: Tape, parts: Sequence[Tensor], shape: Shape, name: str) -> Tensor:
    """torch.cat. Saves nothing; backward hands out views."""
    t.start(name, *parts)
    out = t.new(name, shape, parts[0].dtype)
    t.finish(name, parts, out, [], lambda g: [g[0] for _ in parts])
    return out


def written(t: Tape, base: Tensor, part: Tensor, name: str) -> Tensor:
    """base[...] = part, in place. Backward copies the whole gradient, and the part's out of it."""

    def backward(g: Gradients) -> Gradients:
        whole = t.new(f"{name} grad, whole", base.shape, base.dtype)
        mine = t.new(f"{name} grad", part.shape, part.dtype)
        if base.needs_grad:
            return [whole, mine]
        t.free(whole)
        return [None, mine]

    out = Tensor(base.storage, base.shape, base.dtype, False)
    t.start(name, part)
    t.finish(name, [base, part], out, [], backward)
    return out


def scattered_into(t: Tape, x: Tensor, source: Tensor) -> Tensor:
    """x.masked_scatter(mask, source): x with the rows of `source` where the mask is true. Saves the
    mask, one byte for each row of x."""
    mask = t.new("places of the images", x.shape[:-1], "bool")
    t.start("masked_scatter", x, source)
    out = t.new("text and images", x.shape, x.dtype)

    def backward(g: Gradients) -> Gradients:
        own = t.new("text grad", x.shape, x.dtype) if x.needs_grad else None
        return [own, t.new("features grad", source.shape, source.dtype)]

    t.finish("masked_scatter", [x, source], out, [mask], backward)
    return out


def pooled(t: Tape, x: Tensor, shape: Shape, name: str) -> Tensor:
    """torch.nn.AvgPool2d. Saves x."""
    return unary(t, x, name, shape, saves_input=True)


def plain_product(t: Tape, x: Tensor, w: Tensor, width: Factor, into: Factor) -> Tensor:
    """x @ W with W (width, into), a parameter that belongs to no linear layer. Saves x and W."""
    return _product(t, _matrix_input(t, x), _weight(t, w), [], width, into)


def split(t: Tape, x: Tensor, shapes: Sequence[Shape], sliced: bool = False) -> list[Tensor]:
    """Views of one tensor. Backward concatenates the gradients.

    `sliced`: the views were taken one by one, and the gradient of each is padded to x's size.
    """
    outs = [Tensor(x.storage, shape, x.dtype, False) for shape in shapes]
    if sliced:
        for out in outs:
            t.finish("slice", [x], out, [], t.grads("slice grad", x))
        return outs
    t.finish("split", [x], outs, [], t.grads("split grad", x))
    return outs


def matmul(
    t: Tape,
    a: Tensor,
    b: Tensor,
    shape: Shape,
    inner: Factor,
    name: str,
    product: str = "bmm",
    multiplied: Shape = (),
) -> Tensor:
    """Batched a @ b with result `shape` and contracted dimension `inner`. Saves both.

    product      the operation of PyTorch's that runs it
    multiplied   what is multiplied, where it is not each of the result with `inner` others
    """
    a, b = _matrix_input(t, a), _matrix_input(t, b)
    flops = (2.0, multiplied or (*shape, inner))
    t.start(name, a, b, flops=[flops], product=product)
    out = t.new(name, shape, a.dtype)

    def backward(g: Gradients) -> Gradients:
        return [t.new(f"{name} grad", x.shape, x.dtype) if x.needs_grad else None for x in (a, b)]

    saved = [x for x, other in ((a, b), (b, a)) if other.needs_grad]
    again = [(2.0 * (a.needs_grad + b.needs_grad), flops[1])]
    t.finish(name, [a, b], out, saved, backward, flops=again)
    return out


def rotate(t: Tape, x: Tensor, cos: Tensor, sin: Tensor, half: Factor, name: str) -> Tensor:
    """Rotary embedding as in transformers: x * cos + rotate_half(x) * sin. Saves the tables."""
    with t.scope(name):
        straight = multiply(t, x, cos, "x cos")
        half_shape = (*x.shape[:-1], half)
        t.start("rotate_half", x)
        negative = t.new("negative half", half_shape, x.dtype)
        turned = t.new("rotate_half", x.shape, x.dtype)
        t.use(negative)

        def backward(g: Gradients) -> Gradients:
            part = t.new("rotate_half grad, half", half_shape, x.dtype)
            first = t.new("rotate_half grad, padded", x.shape, x.dtype)
            t.free(part)
            second = t.new("rotate_half grad, padded", x.shape, x.dtype)
            t.free(second)
            return [first]

        t.finish("rotate_half", [x], turned, [], backward)
        return add(t, straight, multiply(t, turned, sin, "rotate_half sin"), "sum")


def flash_attention(
    t: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: Shape,
    flops: Shape,
    attention: str,
    besides: Sequence[Tensor] = (),
) -> Tensor:
    """FlashAttention: saves q, k, v, out and the fp32 log-sum-exp; no scores in HBM.

    `flops` is the shape of one causal-free product (B x heads x S x S x head_dim); the causal mask
    skips half of it. Forward does two products, backward five (it recomputes the scores). Where v
    has another width, one of the two and two of the five have that. `attention`: 'flash', or 'sdpa'
    for PyTorch's own. `besides`: what is kept too, such as a mask as SDPA takes it.
    """
    if t.autocast:
        q, k, v = (cast(t, x, "bf16", f"{n} (bf16)") for x, n in ((q, "q"), (k, "k"), (v, "v")))
    # The flash_attn package is no operation of PyTorch's own, which a policy by operation sees.
    by_value = (*flops[:-1], v.shape[-1])
    same = v.shape[-1] is q.shape[-1]
    once = [(2.0, flops)] if same else [(1.0, flops), (1.0, by_value)]
    again = [(5.0, flops)] if same else [(3.0, flops), (2.0, by_value)]
    product = "attention" if attention == "sdpa" else ""
    t.start(attention, q, k, v, flops=once, product=product, module=Module.ATTENTION)
    out = t.new("out", (*q.shape[:-1], v.shape[-1]), q.dtype)
    stats = t.new("log-sum-exp", lse, "fp32")

    def backward(g: Gradients) -> Gradients:
        return [t.new(f"{n} grad", x.shape, x.dtype) for x, n in ((q, "q"), (k, "k"), (v, "v"))]

    kept = [q, k, v, out, stats, *besides]
    t.finish(attention, [q, k, v], out, kept, backward, flops=again)
    return out


def embedding(
    t: Tape, name: str, ids: Tensor, rows: Factor, width: Factor, tied: bool, owner: bool = True
) -> Tensor:
    """Table lookup. Saves the ids; backward makes a dense gradient as large as the table, or takes
    the gradient that comes as its rows (embedding_sparse_backward), or needs none.

    With `tied` weights the head's gradient waits for this one, and both are added (Tape.third).
    `owner`: the table is counted here. The kernel of a dense gradient sums many tokens in fp32
    first (aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu).
    """
    with t.scope(name):
        w = t.parameter("weight", (rows, width), tied=not owner, joined=tied)
        table = t.table if rows is VOCAB / TP else DENSE
        w.storage.table = table
        t.start("lookup", ids)
        out = t.new("out", (*ids.shape, width), w.dtype)
        t.use(out)  # the rows that are read are as many bytes as the result

        def backward(g: Gradients) -> Gradients:
            if table == DENSE:
                grad = t.new("weight grad", (rows, width), w.dtype)
                if rows is VOCAB / TP and ids.shape == (B, S / CP):
                    sums = t.new("weight grad, sums", (SUMMED, width), "fp32")
                    sums.storage.role = Role.KERNEL
                    t.free(sums)
                return [grad]
            return [g[0] if table == SPARSE else None]

        t.finish("lookup", [w], out, [ids], backward)
        return out


def nll_loss(t: Tape, logp: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log-likelihood. Saves log-probabilities, labels and the total weight.

    Over tensor-parallel ranks its backward is that of the log-softmax too, written as a sum and a
    product (torch/distributed/tensor/parallel/loss.py).
    """
    t.start("nll_loss", logp, labels)
    loss, total = t.new("loss", (), logp.dtype), t.new("total weight", (), logp.dtype)

    def new(name: str) -> Tensor:
        return t.new(name, logp.shape, logp.dtype)

    def backward(g: Gradients) -> Gradients:
        if not t.parallel:
            return [new("log-probability grad")]
        hot, probabilities = new("one at each target"), new("probabilities")
        total = new("sum")
        t.free(probabilities)
        grad = new("logits grad")
        t.free(hot, total)
        return [grad]

    t.finish("nll_loss", [logp], loss, [logp, labels, total], backward)
    return loss


def log_softmax(t: Tape, x: Tensor, name: str) -> Tensor:
    """Log-softmax over the vocabulary. Saves its result. Over tensor-parallel ranks it is composed
    of operations, and its backward is part of the loss's."""
    if not t.parallel:
        return softmax(t, x, name, one_kernel=True)
    t.start(name, x)
    shifted = t.new("shifted", x.shape, x.dtype)
    t.use(t.new("exponentials", x.shape, x.dtype))
    out = t.new(name, x.shape, x.dtype)
    t.use(shifted)
    t.finish(name, [x], out, [out], lambda g: [g[0]])
    return out
