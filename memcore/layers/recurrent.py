"""Recurrent: layers that keep one state of a whole sequence, however long it is.

Mamba-2's mixer and Qwen's gated delta net are alike in shape: heads of values, fewer heads of keys
and queries (B and C of a state space model), a convolution over the last few tokens of all three,
and for each head a matrix of what values left under which key. New tokens are taken a span at a
time, as products: mamba_ssm's mamba_chunk_scan_combined, and chunk_gated_delta_rule of
flash-linear-attention. vLLM runs both; training runs them as memcore.tape.scans has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcore.layers.ops import TOKENS, rms_norm
from memcore.tape.dims import (
    BETWEEN,
    CONVOLVED,
    GATED_IN,
    KEPT_TOKENS,
    KERNEL,
    SELECTED,
    SHORT_IN,
    SPAN,
    SSM_DIM,
    SSM_GROUPS,
    SSM_HEADS,
    SSM_IN,
    SSM_INNER,
    SSM_PAIRS,
    SSM_STATE,
    STEP_RANK,
    TP,
    B,
    D,
    Shape,
)
from memcore.tape.kinds import Part
from memcore.tape.primitives import (
    add,
    cast,
    contiguous,
    heads_first,
    joined,
    keeps_input,
    keeps_result,
    linear,
    multiply,
    plain_product,
    scale,
    split,
)
from memcore.tape.scans import (
    causal_conv1d,
    chunk_gated_delta_rule,
    selective_inner,
    selective_scan,
    split_conv1d_scan,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

STATE: Shape = (SSM_HEADS / TP, SSM_DIM, SSM_STATE)  # what a layer keeps of a sequence,
CONVOLUTION: Shape = (CONVOLVED / TP, KEPT_TOKENS)  # and of its last tokens
VALUES: Shape = (*TOKENS, SSM_INNER / TP)
HEADS: Shape = (*TOKENS, SSM_HEADS / TP, SSM_DIM)

_TOKEN_HEADS: Shape = (*TOKENS, SSM_HEADS / TP)
_BY_STATE: Shape = (*_TOKEN_HEADS, SSM_DIM, SSM_STATE)
_BY_KEY: Shape = (*_TOKEN_HEADS, SPAN, SSM_STATE)
_BY_VALUE: Shape = (*_TOKEN_HEADS, SPAN, SSM_DIM)
Flops = Sequence[tuple[float, Shape]]

# C B^T for each group, its causal half times x for each head, B^T x into the state, C of the state
# (mamba_ssm/ops/triton/ssd_combined.py: _mamba_chunk_scan_combined_fwd).
MAMBA2: Flops = (
    (2.0, (*TOKENS, SSM_GROUPS / TP, SPAN, SSM_STATE)),
    (1.0, _BY_VALUE),
    (4.0, _BY_STATE),
)
# K K^T, the inverse of its triangle and what that makes of keys and values; what the state already
# says of these, and what is written; Q K^T times values, Q of the state (fla/ops/gated_delta_rule/
# chunk.py: chunk_gated_delta_rule_fwd).
DELTA: Flops = (
    (6.0, _BY_KEY),
    (4.0, _BY_VALUE),
    (6.0, _BY_STATE),
    (2 / 3, (*_TOKEN_HEADS, SPAN, SPAN)),
)


def mamba2_mixer(t: Tape, s: Structure, x: Tensor, name: str = "mamba") -> Tensor:
    """Mamba-2: one projection to gate, values, keys, queries and steps; (batch, sequence, D)."""
    traits = s.traits
    with t.scope(name):
        joint = linear(t, "in_proj", x, D, SSM_IN / TP, traits.recurrence_bias)
        if not s.served:
            if traits.recurrence_scaled:
                joint = multiply(t, joint, _buffer(t, s, "multipliers"), "in_proj, scaled")
            return _trained_mixer(t, s, joint, x.shape)
        widths: list[Shape] = [VALUES, (*TOKENS, CONVOLVED / TP), _TOKEN_HEADS]
        gate, mixed, steps = split(t, joint, widths)
        mixed = _convolved(t, mixed, traits.convolution_bias)
        heads = [t.parameter(n, (SSM_HEADS / TP,)) for n in ("dt_bias", "A_log", "D")]
        out = _scan(t, (mixed, steps, *heads), MAMBA2, "fp32")
        out = multiply(t, out, keeps_input(t, gate, "silu"), "gated")
        if traits.recurrence_normed:
            out = rms_norm(t, out, "norm", SSM_INNER / TP)
        return linear(t, "out_proj", out, SSM_INNER / TP, D, traits.recurrence_out_bias)


def _buffer(t: Tape, s: Structure, name: str) -> Tensor:
    """Of the model, not of a step: Falcon-H1's number for each column of a projection."""
    w = t.parameter(name, (1, 1, SSM_IN / TP), tied=True, idle=True)
    return Tensor(w.storage, w.shape, s.buffers or s.dtype, False)


def _trained_mixer(t: Tape, s: Structure, joint: Tensor, shape: Shape) -> Tensor:
    """The rest of it as training runs it."""
    traits = s.traits
    with t.scope("conv1d"):
        conv = _weights(t, traits.convolution_bias)
    dt_bias, log, of_d = (t.parameter(n, (SSM_HEADS / TP,)) for n in ("dt_bias", "A_log", "D"))
    with t.scope("norm"):
        norm = t.parameter("weight", (SSM_INNER / TP,)) if traits.recurrence_normed else None
    with t.scope("out_proj"):
        out = [t.parameter("weight", (D, SSM_INNER / TP))]
        out += [t.parameter("bias", (D,))] if traits.recurrence_out_bias else []
    decay = keeps_result(t, cast(t, log, "fp32", "A_log (fp32)"), "exp")
    heads = (dt_bias, scale(t, decay, "A"), of_d)
    return split_conv1d_scan(t, joint, conv, heads, norm, out, shape)


# See memcore.tape.scans: SELECTIVE.
MAMBA: Flops = ((9.0, (*_TOKEN_HEADS, SSM_STATE)),)


def mamba_mixer(t: Tape, s: Structure, x: Tensor, name: str = "mixer") -> Tensor:
    """Mamba: each channel has steps, B and C of its own making; (batch, sequence, D)."""
    traits = s.traits
    with t.scope(name):
        joint = linear(t, "in_proj", x, D, GATED_IN / TP, traits.recurrence_bias)
        bias = traits.convolution_bias
        if not s.served:
            return _trained_mamba(t, s, joint, x.shape)
        mixed, gate = split(t, joint, [VALUES, VALUES])
        mixed = _convolved(t, mixed, bias)
        given = linear(t, "x_proj", mixed, SSM_INNER / TP, SELECTED, bias=False)
        ranked, *keys = split(t, given, [(*TOKENS, STEP_RANK), _KEYS, _KEYS])
        steps = linear(t, "dt_proj", ranked, STEP_RANK, SSM_INNER / TP, bias=True)
        states = [t.parameter("A_log", (SSM_HEADS / TP, SSM_STATE)),
                  t.parameter("D", (SSM_HEADS / TP,))]  # fmt: skip
        out = _scan(t, (mixed, steps, *keys, *states), MAMBA, "fp32")
        out = multiply(t, out, keeps_input(t, gate, "silu"), "gated")
        return linear(t, "out_proj", out, SSM_INNER / TP, D, traits.recurrence_out_bias)


_KEYS: Shape = (*TOKENS, SSM_STATE)


def normed_mamba_mixer(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """Jamba's: Mamba with norms of what steps, B and C are made from, so that training runs its
    parts one by one; (batch, sequence, D)."""
    traits = s.traits
    inner = SSM_INNER / TP
    with t.scope("mamba"):
        joint = linear(t, "in_proj", x, D, GATED_IN / TP, traits.recurrence_bias)
        log = t.parameter("A_log", (SSM_HEADS / TP, SSM_STATE))
        decay = keeps_result(t, cast(t, log, "fp32", "A_log (fp32)"), "exp")
        decay = scale(t, decay, "A")
        joint = heads_first(t, joint, joint.shape, copies_grad=True)
        mixed, gate = split(t, joint, [VALUES, VALUES])
        if s.served:
            mixed = _convolved(t, mixed, traits.convolution_bias)
        else:
            with t.scope("conv1d"):
                mixed = causal_conv1d(t, mixed, *_weights(t, traits.convolution_bias))
        given = linear(t, "x_proj", mixed, inner, SELECTED, bias=False)
        ranked, *keys = split(t, given, [(*TOKENS, STEP_RANK), _KEYS, _KEYS])
        ranked = rms_norm(t, ranked, "dt_layernorm", STEP_RANK)
        norms = ("b_layernorm", "c_layernorm")
        keys = [rms_norm(t, k, n, SSM_STATE) for n, k in zip(norms, keys, strict=True)]
        with t.scope("dt_proj"):
            weight = t.parameter("weight", (inner, STEP_RANK))
            steps = plain_product(t, ranked, weight, STEP_RANK, inner)
            bias = cast(t, t.parameter("bias", (inner,)), "fp32", "bias (fp32)")
        of_d = t.parameter("D", (inner,))
        if s.served:
            out = _scan(t, (mixed, steps, *keys, decay, of_d, bias), MAMBA, "fp32")
            out = multiply(t, out, keeps_input(t, gate, "silu"), "gated")
            return linear(t, "out_proj", out, inner, D, traits.recurrence_out_bias)
        steps = contiguous(t, steps, VALUES, "steps, channels first")
        states = [decay, cast(t, of_d, "fp32", "D (fp32)"), bias]
        out = cast(t, selective_scan(t, mixed, steps, keys, gate, states), x.dtype, "scanned, cast")
        t.use(joint, mixed, steps, *keys)  # have names until it returns
        return linear(t, "out_proj", out, inner, D, traits.recurrence_out_bias)


def _trained_mamba(t: Tape, s: Structure, joint: Tensor, shape: Shape) -> Tensor:
    """The rest of it as training runs it, in one kernel of mamba_ssm's."""
    inner = SSM_INNER / TP
    with t.scope("conv1d"):
        conv = [t.parameter("weight", (inner, 1, KERNEL))]
        conv += [t.parameter("bias", (inner,))] if s.traits.convolution_bias else []
    with t.scope("x_proj"):
        select = t.parameter("weight", (SELECTED, inner))
    with t.scope("dt_proj"):
        steps = [t.parameter("weight", (inner, STEP_RANK)), t.parameter("bias", (inner,))]
    with t.scope("out_proj"):
        out = [t.parameter("weight", (D, inner))]
    log, of_d = t.parameter("A_log", (inner, SSM_STATE)), t.parameter("D", (inner,))
    decay = keeps_result(t, cast(t, log, "fp32", "A_log (fp32)"), "exp")
    states = [scale(t, decay, "A"), cast(t, of_d, "fp32", "D (fp32)")]
    steps[1] = cast(t, steps[1], "fp32", "dt_proj bias (fp32)")
    return selective_inner(t, joint, conv, select, steps, states, out, shape)


def gated_delta_net(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """Qwen3-Next's linear attention (Yang et al., Gated Delta Networks); (batch, sequence, D)."""
    if not s.served:
        with t.scope("linear_attn"):
            return _trained_delta_net(t, s, x)
    with t.scope("linear_attn"):
        joint = linear(t, "in_proj_qkvz", x, D, GATED_IN / TP, bias=False)
        pairs = linear(t, "in_proj_ba", x, D, SSM_PAIRS / TP, bias=False)
        mixed, gate = split(t, joint, [(*TOKENS, CONVOLVED / TP), VALUES])
        mixed = contiguous(t, mixed, mixed.shape, "queries, keys and values")
        mixed = _convolved(t, mixed, bias=False)
        heads = [t.parameter(n, (SSM_HEADS / TP,)) for n in ("dt_bias", "A_log")]
        out = _scan(t, (mixed, pairs, *heads), DELTA, t.parameter_dtype)
        out = rms_norm(t, heads_first(t, out, HEADS, copies_grad=False), "norm", SSM_DIM)
        gate = heads_first(t, gate, HEADS, copies_grad=False)
        out = multiply(t, out, keeps_input(t, gate, "silu"), "gated")
        out = heads_first(t, out, VALUES, copies_grad=False)
        return linear(t, "out_proj", out, SSM_INNER / TP, D, bias=False)


def kimi_delta_attention(t: Tape, x: Tensor) -> Tensor:
    """Kimi Linear's: a delta net that forgets each channel by itself, as vLLM runs it
    (vllm/model_executor/layers/kda.py); (batch, sequence, D)."""
    inner = SSM_INNER / TP
    with t.scope("self_attn"):
        parts = [linear(t, f"{n}_proj", x, D, inner, bias=False) for n in ("q", "k", "v")]
        mixed = joined(t, parts, (*TOKENS, CONVOLVED / TP), "queries, keys and values")
        mixed = _convolved(t, mixed, bias=False)
        forget = _narrowly(t, x, "f")
        write = keeps_result(t, linear(t, "b_proj", x, D, SSM_HEADS / TP, bias=False), "sigmoid")
        heads = t.parameter("dt_bias", (inner,)), t.parameter("A_log", (SSM_HEADS / TP,))
        out = _scan(t, (mixed, forget, write, *heads), DELTA, t.parameter_dtype)
        out = rms_norm(t, heads_first(t, out, HEADS, copies_grad=False), "o_norm", SSM_DIM)
        gate = heads_first(t, _narrowly(t, x, "g"), HEADS, copies_grad=False)
        out = multiply(t, out, keeps_result(t, gate, "sigmoid"), "gated")
        out = heads_first(t, out, VALUES, copies_grad=False)
        return linear(t, "o_proj", out, inner, D, bias=False)


def _narrowly(t: Tape, x: Tensor, name: str) -> Tensor:
    """A number for each channel, through a layer as wide as one head."""
    low = linear(t, f"{name}_a_proj", x, D, SSM_DIM, bias=False)
    return linear(t, f"{name}_b_proj", low, SSM_DIM, SSM_INNER / TP, bias=False)


# The causal half of Q K^T and of its product with V within a span, K^T V into the state, Q of the
# state (vllm/model_executor/layers/lightning_attn.py).
LIGHTNING: Flops = ((1.0, _BY_KEY), (1.0, _BY_VALUE), (4.0, _BY_STATE))


def lightning_attention(t: Tape, x: Tensor) -> Tensor:
    """MiniMax-Text-01's: linear attention of which each head forgets at a rate of its own that is
    no weight, in fp32 from its projection on, as vLLM runs it
    (vllm/model_executor/layers/mamba/linear_attn.py); (batch, sequence, D)."""
    inner = SSM_INNER / TP
    with t.scope("self_attn"):
        joint = linear(t, "qkv_proj", x, D, SHORT_IN / TP, bias=False)
        joint = keeps_input(t, cast(t, joint, "fp32", "q, k and v (fp32)"), "silu")
        out = rms_norm(t, _scan(t, (joint,), LIGHTNING, "fp32"), "norm", inner)
        gate = keeps_result(t, linear(t, "output_gate", x, D, inner, bias=False), "sigmoid")
        out = cast(t, multiply(t, out, gate, "gated"), x.dtype, "gated, cast")
        return linear(t, "out_proj", out, inner, D, bias=False)


KEY: Shape = (*TOKENS, SSM_GROUPS / TP, SSM_STATE)


def _trained_delta_net(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """As transformers trains it."""
    shape: Shape = (*TOKENS, CONVOLVED / TP)
    if s.traits.recurrence_split:
        mixed = linear(t, "in_proj_qkv", x, D, CONVOLVED / TP, bias=False)
        gate = linear(t, "in_proj_z", x, D, SSM_INNER / TP, bias=False)
        write = linear(t, "in_proj_b", x, D, SSM_HEADS / TP, bias=False)
        forget = linear(t, "in_proj_a", x, D, SSM_HEADS / TP, bias=False)
    else:
        joint = linear(t, "in_proj_qkvz", x, D, GATED_IN / TP, bias=False)
        pairs = linear(t, "in_proj_ba", x, D, SSM_PAIRS / TP, bias=False)
        q, k, v, gate = split(t, joint, [KEY, KEY, VALUES, VALUES])
        write, forget = split(t, pairs, [_TOKEN_HEADS, _TOKEN_HEADS])
        v, gate, write, forget, q, k = (
            contiguous(t, of, of.shape, f"{name}, contiguous")
            for of, name in ((v, "v"), (gate, "gate"), (write, "write"), (forget, "forget"),
                             (q, "q"), (k, "k"))
        )  # fmt: skip
        mixed = joined(t, (q, k, v), shape, "queries, keys and values")
    with t.scope("conv1d"):
        weight = t.parameter("weight", (CONVOLVED / TP, 1, KERNEL))
        convolved = causal_conv1d(t, mixed, weight)
        if not s.traits.recurrence_split:
            t.use(q, k, v)  # have names until they are those of its parts
    q, k, v = split(t, convolved, [KEY, KEY, HEADS])
    beta = keeps_result(t, write, "sigmoid")
    with t.scope("decay"):
        dt_bias, log = (t.parameter(n, (SSM_HEADS / TP,)) for n in ("dt_bias", "A_log"))
        rate = scale(t, keeps_result(t, cast(t, log, "fp32", "A_log (fp32)"), "exp"), "A")
        step = add(t, cast(t, forget, "fp32", "a (fp32)"), dt_bias, "a + bias")
        g = multiply(t, keeps_input(t, step, "softplus"), rate, "decay")
    out = chunk_gated_delta_rule(t, q, k, v, g, beta, s.traits.recurrence_grouped)
    t.use(convolved)  # its parts have names until the layer returns
    out = _gated_norm(t, out, heads_first(t, gate, HEADS, copies_grad=False))
    out = heads_first(t, out, VALUES, copies_grad=False)
    return linear(t, "out_proj", out, SSM_INNER / TP, D, bias=False)


def _gated_norm(t: Tape, x: Tensor, gate: Tensor) -> Tensor:
    """transformers' own, in several operations: RMSNorm, then times silu(gate) in fp32."""
    normal = rms_norm(t, x, "norm", SSM_DIM)
    with t.scope("norm"):
        wide = keeps_input(t, cast(t, gate, "fp32", "gate (fp32)"), "silu")
        return cast(t, multiply(t, normal, wide, "gated"), x.dtype, "gated, cast")


def short_convolution(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """LFM2's: each channel's last tokens, with a gate before and one behind; no state besides."""
    bias = s.traits.convolution_bias
    with t.scope("conv"):
        joint = linear(t, "in_proj", x, D, SHORT_IN / TP, bias)
        channels_first = heads_first(t, joint, joint.shape, copies_grad=True)
        before, behind, values = split(t, channels_first, [VALUES] * 3)
        gated = multiply(t, before, values, "B x")
        if s.served:
            convolved = _convolved(t, gated, bias, "conv")
        else:
            with t.scope("conv"):
                convolved = causal_conv1d(t, gated, *_weights(t, bias))
        out = multiply(t, behind, convolved, "C y")
        t.use(joint, convolved)  # have names until it returns
        return linear(t, "out_proj", out, SSM_INNER / TP, D, bias)


def _weights(t: Tape, bias: bool) -> list[Tensor]:
    """Of a short convolution."""
    w = [t.parameter("weight", (CONVOLVED / TP, 1, KERNEL))]
    return [*w, t.parameter("bias", (CONVOLVED / TP,))] if bias else w


def _convolved(t: Tape, x: Tensor, bias: bool, name: str = "conv1d") -> Tensor:
    """Each channel's last KERNEL tokens, weighted and summed, through silu or not: one kernel."""
    with t.scope(name):
        w = _weights(t, bias)
        return _kernel(t, "causal_conv1d", (x, *w), x.shape, [(2.0, (*x.shape, KERNEL))])


def _scan(t: Tape, inputs: Sequence[Tensor], flops: Flops, dtype: str) -> Tensor:
    """What the state says of every token. Between the spans of a prompt stand states of `dtype`;
    the first and the last are the cache's, which a server counts."""
    with t.scope("scan", Part.SCAN):
        return _kernel(t, "scan", inputs, VALUES, flops, ((B, BETWEEN, *STATE), dtype))


def _kernel(
    t: Tape, name: str, inputs: Sequence[Tensor], shape: Shape, flops: Flops,
    between: tuple[Shape, str] | None = None,
) -> Tensor:  # fmt: skip
    """One fused kernel, as inference runs it; `between` is written and read within."""
    t.start(name, *inputs, flops=flops)
    within = [t.new("states between spans", *between)] if between else []
    out = t.new("out", shape, inputs[0].dtype)
    t.use(*within)
    t.finish(name, inputs, out, [], t.grads(f"{name} grad", *inputs), flops=flops)
    return out
