"""Scans: the kernels of layers with a state as training runs them, each one function of autograd's
with what its own source allocates and saves.

mamba_ssm 2.3.2 (mamba_ssm/ops/triton/ssd_combined.py), causal-conv1d 1.6.1, flash-linear-attention
0.5.2 (fla/ops/gated_delta_rule/chunk.py). Forward keeps what a scan reads, and of Mamba-2's its
result; backward runs the chunks again.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcore.tape.dims import (
    CHUNK_TOKENS,
    CHUNKS,
    CONVOLVED,
    INDEX_COPIES,
    KERNEL,
    NORM_ROWS,
    SELECTED,
    SPLITS,
    SSM_DIM,
    SSM_GROUPS,
    SSM_HEADS,
    SSM_INNER,
    SSM_STATE,
    STEP_RANK,
    TP,
    B,
    D,
    Number,
    Shape,
    ceil_div,
    share,
)
from memcore.tape.kinds import Module
from memcore.tape.tape import Gradients, Tape, Tensor

Flops = Sequence[tuple[float, Shape]]

STATE: Shape = (SSM_HEADS / TP, SSM_DIM, SSM_STATE)
IN_CHUNKS: Shape = (B, SSM_HEADS / TP, CHUNKS, CHUNK_TOKENS)  # a number for each token and head
STATES: Shape = (B, CHUNKS, *STATE)  # what precedes each chunk
SCORES: Shape = (B, CHUNKS, SSM_GROUPS / TP, CHUNK_TOKENS, CHUNK_TOKENS)
OF_GROUPS: Shape = (SSM_GROUPS / TP, SSM_STATE)
TILE = 32  # tokens of the smallest tile: BLOCK_SIZE_min in ssd_chunk_scan.py
STATE_TILE = 64  # numbers of a state: BLOCK_SIZE_min in ssd_state_passing.py

_BY_STATE: Shape = (B, CHUNKS, CHUNK_TOKENS, *STATE)
_BY_VALUE: Shape = (B, CHUNKS, SSM_HEADS / TP, CHUNK_TOKENS, CHUNK_TOKENS, SSM_DIM)
# C B^T, its causal half times x, B^T x into the state, C of the state; in backward the first and
# third again, their gradients, and the causal half of dy x^T twice (ssd_combined.py:
# _mamba_chunk_scan_combined_fwd, _bwd).
MAMBA2: Flops = ((2.0, (*SCORES, SSM_STATE)), (1.0, _BY_VALUE), (4.0, _BY_STATE))
MAMBA2_BACKWARD: Flops = ((6.0, (*SCORES, SSM_STATE)), (3.0, _BY_VALUE), (10.0, _BY_STATE))


def _of_32(n: Number) -> Number:
    return ceil_div(n, TILE)


def _of_64(n: Number) -> Number:
    return ceil_div(n, STATE_TILE)


TILES = share("tiles of 32", (CHUNK_TOKENS,), _of_32)
STATE_TILES = share("tiles of 64", (SSM_DIM, SSM_STATE), _of_64)


def split_conv1d_scan(
    t: Tape,
    joint: Tensor,
    conv: Sequence[Tensor],
    heads: Sequence[Tensor],
    norm: Tensor | None,
    out: Sequence[Tensor],
    shape: Shape,
) -> Tensor:
    """mamba_split_conv1d_scan_combined: convolution, scan, gated norm (or gate) and last product.

    joint   gates, values, keys, queries and steps side by side, (batch, sequence, SSM_IN)
    conv, out    weight, and bias if there is one, of the convolution and of the last product
    heads   dt_bias, A in fp32, D
    norm    weight of the gated norm, or None where the gate alone multiplies
    shape   of the result
    """
    tokens, low = joint.shape[:2], joint.dtype
    values, mixed = (*tokens, SSM_INNER / TP), (*tokens, CONVOLVED / TP)
    product = (*tokens, SSM_INNER / TP, D)
    convolution = (2.0, (*mixed, KERNEL))

    t.start("causal_conv1d", joint, *conv, flops=[convolution], module=Module.SCAN)
    convolved = t.new("convolved", mixed, low)
    t.then("scan", convolved, joint, *heads, flops=MAMBA2, module=Module.SCAN, started=5)
    kept = [t.new(n, IN_CHUNKS, "fp32") for n in ("steps", "decays")]
    within = t.new("states of chunks", STATES, "fp32")
    kept.append(t.new("states before chunks", STATES, low))
    kept.append(t.new("last states", (B, *STATE), "fp32"))
    t.use(within)
    scores = t.new("scores", SCORES, "fp32")
    result = t.new("scanned", values, low)
    after = result
    if norm is None:
        after, result = result, t.new("scanned, before the gate", values, low)
    t.use(scores, kept[2])
    saved = [joint, *conv, result, *heads]
    if norm is not None:
        t.then("gated norm", result, joint, norm)
        after = t.new("gated", values, low)
        rstd = t.new("rstd", (*tokens, SSM_GROUPS / TP), "fp32")
        saved += [norm, rstd]
    used = list(out)
    if t.autocast:
        after_low = after
        if after.dtype != "bf16":
            after_low = t.new("gated (bf16)", values, "bf16")
            t.use(after)
        after = after_low
        used = [t.new("out_proj (bf16)", w.shape, "bf16") for w in out]
    t.then("out_proj", after, *used, flops=[(2.0, product)], product="addmm" if used[1:] else "mm")
    y = t.new("out", shape, after.dtype)
    t.use(convolved, *kept, after)

    def backward(g: Gradients) -> Gradients:
        (dy,) = g
        assert dy is not None
        t.then("causal_conv1d again", flops=[convolution], module=Module.SCAN)  # of what was kept
        again = t.new("gated, again", values, low)
        convolved = t.new("convolved, again", mixed, low)
        dx = t.new("input grad", joint.shape, low)
        dmixed = t.new("convolved grad", mixed, low)
        held = [again, convolved, dmixed]
        t.then("out_proj input grad", dy, *used[:1], flops=[(2.0, product)])
        dout = t.new("gated grad", values, dy.dtype)
        held.append(dout)
        dnorm = None
        if norm is not None:
            t.then("gated norm grad", dout, result, joint, norm)
            dout = t.new("scanned grad", values, low)
            held.append(dout)
            partial = t.new("norm grad, partial sums", (NORM_ROWS, SSM_INNER / TP), "fp32")
            dnorm = t.new("norm grad (fp32)", (SSM_INNER / TP,), "fp32")
            t.free(partial)
            if norm.dtype != "fp32":
                wide, dnorm = dnorm, t.new("norm grad", (SSM_INNER / TP,), norm.dtype)
                t.free(wide)
        gated = values if norm is None else None
        dheads = _scan_grads(t, (convolved, joint, dout), heads, gated)
        t.then("out_proj weight grad", dy, again, flops=[(2.0, product)])
        if again.dtype != dy.dtype:  # autocast is on in backward too
            t.free(t.new("gated, again (bf16)", values, dy.dtype))
        dw = [t.new("out_proj grad", used[0].shape, used[0].dtype)]
        dw += [t.new("out_proj bias grad", w.shape, w.dtype) for w in used[1:]]
        t.then(
            "causal_conv1d grad", joint, dmixed, flops=[(3.0, convolution[1])], module=Module.SCAN
        )
        dconv = [t.new("conv1d grad (fp32)", w.shape, "fp32") for w in conv]
        if conv[0].dtype != "fp32":
            wide_conv = dconv
            dconv = [t.new("conv1d grad", w.shape, w.dtype) for w in conv]
            t.free(*wide_conv)
        t.free(*held)
        t.computed()
        fitting = [_fitting(t, d, w) for d, w in zip((*dheads, *dw), (*heads, *out), strict=True)]
        found = [dx, *dconv, *fitting[: len(heads)]]
        return [*found, *([dnorm] if norm is not None else []), *fitting[len(heads) :]]

    given = [joint, *conv, *heads, *([norm] if norm is not None else []), *out]
    t.finish("mixer", given, y, [*saved, *used], backward, packs_last=True)
    return y


# Of each token, channel and number of its state: exp of a product, two products into the state, and
# a product and a sum out of it (github.com/state-spaces/mamba/issues/110).
SELECTIVE: Flops = ((9.0, (B, CHUNKS, CHUNK_TOKENS, SSM_HEADS / TP, SSM_STATE)),)
SELECTIVE_BACKWARD: Flops = ((18.0, SELECTIVE[0][1]),)


def selective_inner(
    t: Tape,
    joint: Tensor,
    conv: Sequence[Tensor],
    select: Tensor,
    steps: Sequence[Tensor],
    states: Sequence[Tensor],
    out: Sequence[Tensor],
    shape: Shape,
) -> Tensor:
    """mamba_inner_fn: Mamba's convolution, the projections of steps, B and C, its scan with the
    gate, and its last product (mamba_ssm/ops/selective_scan_interface.py: MambaInnerFn, with
    checkpoint_lvl 1; csrc/selective_scan/selective_scan.cpp). Channels come before tokens.

    joint    values and gates side by side, (batch, sequence, GATED_IN)
    select   weight of x_proj; steps: weight of dt_proj, and its bias in fp32
    states   A and D, both in fp32
    """
    tokens, low = joint.shape[:2], joint.dtype
    values, selected = (*tokens, SSM_INNER / TP), (*tokens, SELECTED)
    convolution, product = (2.0, (*values, KERNEL)), (*tokens, SSM_INNER / TP, D)
    several = (INDEX_COPIES, *tokens[1:], SSM_INNER / TP)  # of one sequence a view
    stepped, chosen = (*tokens, STEP_RANK, SSM_INNER / TP), (*selected, SSM_INNER / TP)
    used = [select, steps[0], *out]
    if t.autocast:
        used = [t.new("weight (bf16)", w.shape, "bf16") for w in used]
    t.start("contiguous", joint)
    first = t.new("channels first", joint.shape, low)
    t.then("causal_conv1d", first, *conv, flops=[convolution], module=Module.SCAN)
    convolved = t.new("convolved", values, low)
    t.then("x_proj", convolved, used[0], flops=[(2.0, chosen)], product="mm")
    given = t.new("steps, B and C", selected, used[0].dtype)
    t.then("dt_proj", given, used[1], flops=[(2.0, stepped)], product="mm")
    wide = t.new("steps", values, given.dtype)
    keys = [t.new(n, (*tokens, SSM_STATE), given.dtype) for n in ("B", "C")]
    t.then("scan", convolved, wide, *keys, *states, flops=SELECTIVE, module=Module.SCAN)
    between = t.new("states of chunks", (B, SSM_HEADS / TP, CHUNKS, 2, SSM_STATE), "fp32")
    scanned = t.new("scanned", values, wide.dtype)
    gated = t.new("gated", values, low)
    t.then("out_proj", gated, *used[2:], flops=[(2.0, product)], product="mm")
    y = t.new("out", shape, gated.dtype)
    t.use(convolved, wide, gated)

    def backward(g: Gradients) -> Gradients:
        (dy,) = g
        assert dy is not None
        t.then("causal_conv1d again", first, flops=[convolution], module=Module.SCAN)
        again = [t.new("convolved, again", values, low), t.new("steps, again", values, low)]
        dfirst = t.new("input grad", joint.shape, low)
        t.then("out_proj input grad", dy, used[2], flops=[(2.0, product)])
        dscanned = t.new("gated grad", values, low)
        t.then("scan grad", *again, *keys, flops=SELECTIVE_BACKWARD, module=Module.SCAN)
        grads = [t.new(f"{n} grad", values, low) for n in ("convolved", "steps")]
        dkeys = [t.new(f"{n} grad", (*tokens, SSM_STATE), "fp32") for n in ("B", "C")]
        grads.append(t.new("gated, again", values, low))
        dstates = [t.new("grad", w.shape, w.dtype) for w in (*states, *steps[1:])]
        t.then("projections grad", *grads, flops=[(4.0, chosen), (4.0, stepped), (2.0, product)])
        grads.append(t.new("steps, B and C grad", selected, given.dtype))
        t.free(*dkeys)
        dweights = [t.new("weight grad", w.shape, w.dtype) for w in used]
        t.free(t.new("convolved grad, by sequence", several, low))
        t.then("causal_conv1d grad", first, flops=[(3.0, convolution[1])], module=Module.SCAN)
        dconv = [t.new("conv1d grad", w.shape, w.dtype) for w in conv]
        t.free(*again, dscanned, *grads)
        t.computed()
        matrices = zip(dweights, (select, steps[0], *out), strict=True)
        dselect, dstep, *dout = (_fitting(t, grad, w) for grad, w in matrices)
        return [dfirst, *dconv, dselect, dstep, *dstates[2:], *dstates[:2], *dout]

    of = [joint, *conv, select, *steps, *states, *out]
    saved = [first, *conv, given, *used[:2], used[2], *states, *keys, *steps[1:], between, scanned]
    t.finish("mixer", of, y, saved, backward, packs_last=True)
    return y


def selective_scan(
    t: Tape,
    u: Tensor,
    steps: Tensor,
    keys: Sequence[Tensor],
    gate: Tensor,
    states: Sequence[Tensor],
) -> Tensor:
    """selective_scan_fn: Mamba's scan with its gate, of steps whose channels come before tokens
    already; all else that it reads is copied so first (mamba_ssm/ops/selective_scan_interface.py:
    SelectiveScanFn; csrc/selective_scan/selective_scan.cpp).

    keys     B and C, (batch, sequence, SSM_STATE)
    states   A, D and the bias of the steps, all in fp32
    """
    tokens, low = u.shape[:2], u.dtype
    values = (*tokens, SSM_INNER / TP)
    t.start("contiguous", u, *keys, gate)
    first = t.new("values, channels first", values, low)
    ordered = [
        t.new(f"{n}, channels first", k.shape, k.dtype) for n, k in zip("BC", keys, strict=True)
    ]
    gates = t.new("gate, channels first", values, gate.dtype)
    read = (first, steps, *ordered, *states)
    t.then("scan", *read, gates, flops=SELECTIVE, module=Module.SCAN)
    between = t.new("states of chunks", (B, SSM_HEADS / TP, CHUNKS, 2, SSM_STATE), "fp32")
    scanned = t.new("scanned", values, steps.dtype)
    out = t.new("gated", values, gates.dtype)

    def backward(g: Gradients) -> Gradients:
        (dy,) = g
        assert dy is not None
        within = [t.new("gated grad, channels first", values, dy.dtype)]
        t.then("scan grad", *read, flops=SELECTIVE_BACKWARD, module=Module.SCAN)
        dgate = t.new("gate grad", values, gates.dtype)
        du, dsteps = (t.new(f"{n} grad", values, low) for n in ("values", "steps"))
        da = t.new("A grad", states[0].shape, "fp32")
        dkeys = [t.new(f"{n} grad", k.shape, "fp32") for n, k in zip("BC", keys, strict=True)]
        others = [t.new("grad", w.shape, "fp32") for w in states[1:]]
        for i, k in enumerate(keys):
            if k.dtype != "fp32":
                wide, dkeys[i] = dkeys[i], t.new("grad, cast", k.shape, k.dtype)
                within.append(wide)
        t.free(*within)
        return [du, dsteps, *dkeys, dgate, da, *others]

    given = [u, steps, *keys, gate, *states]
    saved = [first, steps, *ordered, *states, gates, between, scanned]
    t.finish("scan", given, out, saved, backward, flops=SELECTIVE_BACKWARD, packs_last=True)
    return out


def _fitting(t: Tape, grad: Tensor, of: Tensor) -> Tensor:
    """A gradient in the dtype of what it is of, as the engine casts it."""
    if grad.dtype == of.dtype:
        return grad
    narrow = t.new("grad, cast", of.shape, of.dtype)
    t.free(grad)
    return narrow


def _scan_grads(
    t: Tape, read: Sequence[Tensor], heads: Sequence[Tensor], gated: Shape | None
) -> list[Tensor]:
    """_mamba_chunk_scan_combined_bwd: the gradients of dt_bias, A and D; those of what was scanned
    are written where the caller has room. `gated`: shape of the values, where a gate multiplied."""
    low, tokens = read[0].dtype, read[0].shape[:2]
    t.then("scan grad", *read, *heads, flops=MAMBA2_BACKWARD, module=Module.SCAN, started=15)

    def new(name: str, shape: Shape, dtype: str = "fp32") -> Tensor:
        return t.new(name, shape, dtype)

    def summed(name: str, parts: Shape, shape: Shape) -> Tensor:
        each = new(f"{name}, parts", parts)
        total = new(name, shape)
        t.free(each)
        return total

    held = [new("steps, copied", (*tokens, SSM_HEADS / TP), low)]
    held += [new(name, IN_CHUNKS) for name in ("steps", "decays")]
    held.append(new("scores", SCORES))
    within = new("states of chunks", STATES)
    states = new("states before chunks", STATES)
    held.append(new("last states", (B, *STATE)))
    t.free(within)
    of_d = (TILES, B, CHUNKS, SSM_HEADS / TP, 1)
    if gated:
        dd = summed("D grad", of_d, (SSM_HEADS / TP,))
        held += [new("values, gated again", gated, low), new("scanned grad", gated, read[2].dtype)]
    dstates = new("states grad", STATES)
    held.append(new("states grad (low)", STATES, low))
    if low == "fp32":
        held.append(states)
    else:
        held.append(new("states (low)", STATES, low))
    by_chunk = (B, SSM_HEADS / TP, CHUNKS)
    held.append(summed("decays of chunks, grad", (*by_chunk, STATE_TILES), by_chunk))
    t.free(dstates, *([] if low == "fp32" else [states]))
    partial = new("D grad, parts", of_d)
    held.append(new("steps grad", IN_CHUNKS))
    total = new("D grad", (SSM_HEADS / TP,))
    t.free(partial)
    if not gated:
        dd = total
    keys = (*tokens, *OF_GROUPS)
    for name in ("keys", "queries"):
        held.append(new(f"decays grad of {name}", IN_CHUNKS))
        held.append(summed(f"{name} grad", (*tokens, SPLITS, *OF_GROUPS), keys))
    split = (B, CHUNKS, SPLITS, *SCORES[2:])
    held.append(summed("scores grad", split, SCORES))
    flipped = new("decays grad, flipped", IN_CHUNKS)
    total = new("decays grad, summed", IN_CHUNKS)
    t.free(flipped)
    held.append(new("decays grad, flipped back", IN_CHUNKS))
    t.free(total)
    held.append(summed("decays grad", (*by_chunk, TILES, CHUNK_TOKENS), IN_CHUNKS))
    t.free(new("decays grad, both", IN_CHUNKS))
    da, ddt = new("A grad", (SSM_HEADS / TP,)), new("dt_bias grad", (SSM_HEADS / TP,))
    t.free(*held)
    return [ddt, da, dd]


_BY_KEY: Shape = (B, CHUNKS, SSM_HEADS / TP, CHUNK_TOKENS, CHUNK_TOKENS, SSM_STATE)
_IN_CHUNK: Shape = (B, CHUNKS, SSM_HEADS / TP, CHUNK_TOKENS, CHUNK_TOKENS, CHUNK_TOKENS)
# K K^T, the inverse of its triangle and what that makes of keys and values; what the state already
# says of these, and what is written; Q K^T times values, Q of the state. Backward makes keys,
# values and states again first, and then every product's two gradients.
DELTA: Flops = ((6.0, _BY_KEY), (4.0, _BY_VALUE), (6.0, _BY_STATE), (2 / 3, _IN_CHUNK))
DELTA_BACKWARD: Flops = ((20.0, _BY_KEY), (10.0, _BY_VALUE), (16.0, _BY_STATE), (4.0, _IN_CHUNK))


def causal_conv1d(t: Tape, x: Tensor, *weights: Tensor) -> Tensor:
    """causal_conv1d_fn, with silu or without: saves x; backward runs it again within its own
    kernel. `weights`: the weight, and the bias if there is one."""
    once = (2.0, (*x.shape, KERNEL))
    t.start("causal_conv1d", x, *weights, flops=[once], module=Module.SCAN)
    out = t.new("convolved", x.shape, x.dtype)

    def backward(g: Gradients) -> Gradients:
        dx = t.new("input grad", x.shape, x.dtype)
        grads = [t.new("weight grad (fp32)", w.shape, "fp32") for w in weights]
        for i, w in enumerate(weights):
            if w.dtype != "fp32":
                wide, grads[i] = grads[i], t.new("weight grad", w.shape, w.dtype)
                t.free(wide)
        return [dx, *grads]

    again = [(2 * once[0], once[1])]
    given = [x, *weights]
    t.finish("causal_conv1d", given, out, given, backward, again, packs_last=True)
    return out


def chunk_gated_delta_rule(
    t: Tape, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, grouped: bool
) -> Tensor:
    """chunk_gated_delta_rule, which normalises queries and keys itself. These are parts of one
    tensor, and copied first. `g`: logarithm of what is left of a state, in fp32; `beta`: the share
    of a value that is written; `grouped`: several heads of values share one of keys."""
    tokens, low = q.shape[:2], q.dtype
    numbers, scores = (*tokens, SSM_HEADS / TP), (*tokens, SSM_HEADS / TP, CHUNK_TOKENS)
    by_key: Shape = (*numbers, SSM_STATE)
    states: Shape = (B, CHUNKS, *STATE)

    t.start("delta rule", q, k, v, g, beta, flops=DELTA, module=Module.SCAN, started=9)
    copies = [t.new(f"{n}, contiguous", x.shape, low) for n, x in (("q", q), ("k", k), ("v", v))]
    kept = []
    for n, x in (("q", q), ("k", k)):
        kept.append(t.new(f"{n}, normalised", x.shape, low))
        kept.append(t.new(f"{n} rstd", x.shape[:-1], "fp32"))
    kept.append(t.new("decays", numbers, "fp32"))
    kept.append(t.new("inverse", scores, low))
    within = [t.new("keys", by_key, low), t.new("values", v.shape, low)]
    within += [t.new("states", states, low), t.new("values to write", v.shape, low)]
    out = t.new("out", v.shape, low)
    t.use(*copies, *within)

    def backward(grads: Gradients) -> Gradients:
        def new(name: str, shape: Shape, dtype: str = low) -> Tensor:
            return t.new(name, shape, dtype)

        def summed_of(each: Tensor, x: Tensor) -> Tensor:
            """Over the heads of values that share one of keys."""
            if not grouped:
                return each
            total = new("grad, summed over heads", x.shape)
            t.free(each)
            return total

        held = [new("keys, again", by_key), new("values, again", v.shape)]
        held += [new("states, again", states), new("values to write, again", v.shape)]
        local = new("values grad, of their chunk", v.shape)
        held.append(new("states grad", states))
        written = new("values to write, grad", v.shape)
        t.free(local)
        wide = [new("q grad, by values' heads", by_key), new("k grad, by values' heads", by_key)]
        decays = new("decays grad, parts", numbers, "fp32")
        held.append(new("keys grad", by_key))
        of_keys = [summed_of(each, x) for each, x in zip(wide, (q, k), strict=True)]
        dg = new("decays grad", numbers, "fp32")
        t.free(decays)
        second = new("k grad, second, by values' heads", by_key)
        dv = new("v grad", v.shape)
        held.append(new("decays grad, second", numbers, "fp32"))
        dbeta = new("beta grad", beta.shape, beta.dtype)
        held.append(summed_of(second, k))
        t.free(written)
        summed = dg
        dg = new("g grad", numbers, "fp32")
        t.free(summed, *held)
        found = []
        for of, x, n in zip(of_keys, (q, k), ("q", "k"), strict=True):
            found.append(new(f"{n} grad", x.shape))
            t.free(of)
        return [*found, dv, dg, dbeta]

    saved = [*kept, copies[2], beta]
    t.finish("delta rule", [q, k, v, g, beta], out, saved, backward, DELTA_BACKWARD, True)
    return out
