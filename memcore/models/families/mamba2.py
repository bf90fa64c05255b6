"""Mamba, Mamba-2, and models with Mamba-2 among attention: bamba, granitemoehybrid, falcon_h1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from memcore.errors import shown
from memcore.layers.ops import (
    TOKENS,
    activation,
    attention_core,
    by_heads,
    gated_mlp,
    logits_loss,
    partial_rotary,
    query_key_value,
    rms_norm,
    rotary_tables,
    value_heads,
)
from memcore.layers.recurrent import mamba2_mixer, mamba_mixer
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, llama_like, model_of, routing, with_experts
from memcore.models.families.family import mixed_kinds, numbers_of_layers
from memcore.models.families.llama import attention, embed, head, scaled
from memcore.models.families.mixtral import granite_mixture
from memcore.models.model import Model, Recurrence
from memcore.tape.dims import FUSED, TP, VOCAB, D, F
from memcore.tape.kinds import BESIDE, FULL, RECURRENT, Part, dense, first, is_dense, nope, recurs
from memcore.tape.primitives import add, cast, linear, multiply, scale, split
from memcore.tape.structure import CAUSAL, Structure
from memcore.tape.tape import Tape, Tensor


def heads_of_a_state(k: Keys, heads: int, width: int, by_key: str) -> int:
    """Width of one of `heads` that share `width` channels, if it is one."""
    if width % heads:
        k.fail(by_key, f"{heads:,} heads do not divide {width:,} channels; use a divisor of them")
    return max(1, width // heads)


def _mamba2(k: Keys) -> Model:
    hidden, expand = k.count("hidden_size", 4096), k.count("expand", 2, 1000)
    dim = k.count("head_dim", 64, 10**6)
    if "num_heads" not in k.config and 128 * dim != expand * hidden:  # as fla's files mean it
        k.notes.append(
            "num_heads is taken as expand x hidden_size / head_dim: transformers' 128 are not that."
        )
        k.config = {**k.config, "num_heads": max(1, expand * hidden // dim)}
    heads = k.count("num_heads", 128, 10**6)
    if heads * dim != expand * hidden:
        width = f"expand x hidden_size = {expand * hidden:,}"
        k.fail("num_heads", f"{heads:,} heads of {dim:,} are not {width}")
    return _recurrent(k, "mamba2")


def _recurrent(k: Keys, family: str) -> Model:
    """A model whose layers all have a state, and may widen the residual stream in the first."""
    model = model_of(k, family)
    begins = first(RECURRENT) if model.traits.residual_fp32 else RECURRENT
    return replace(model, kinds=(begins, *[RECURRENT] * (model.layers - 1)))


SELECTIVE_CHUNK = 2048  # tokens between states that selective_scan.cpp keeps


def _mamba_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    return _with_residual(t, s, x, mamba_mixer)


def _mamba2_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    return _with_residual(t, s, x, mamba2_mixer)


def _with_residual(
    t: Tape, s: Structure, x: Tensor, mixer: Callable[[Tape, Structure, Tensor, str], Tensor]
) -> Tensor:
    wide = s.traits.residual_fp32 and not s.served
    if wide and s.buffers != s.dtype:  # FSDP2 casts a layer's input
        x = cast(t, x, s.dtype, "input, cast")
    h = rms_norm(t, cast(t, x, s.dtype, "norm input"), "norm")
    x = cast(t, x, "fp32", "residual (fp32)") if wide else x
    return add(t, x, mixer(t, s, h, "mixer"), "residual")


def _mamba2_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """The model itself widens its logits, and its result holds these."""
    if s.served or s.head != CAUSAL:
        return head(t, s, x)
    h = cast(t, rms_norm(t, x, "norm"), s.dtype, "head input")
    logits = linear(t, "lm_head", h, D, VOCAB / TP, bias=False, tied=s.traits.tied_embeddings)
    return logits_loss(t, s, cast(t, logits, "fp32", "logits (fp32)"))


def mamba_keys(k: Keys, hidden: int, inner: int | None = None) -> Recurrence:
    """The keys that bamba, granitemoehybrid and falcon_h1 have of their states."""
    width = inner or k.count("mamba_expand", 2, 1000) * hidden
    heads = k.count("mamba_n_heads", 128, 10**6)
    dim = heads_of_a_state(k, heads, width, "mamba_n_heads")
    given = k.config.get("mamba_d_head", "auto")
    if given not in ("auto", dim):
        k.fail("mamba_d_head", f"{shown(given)} is not {width:,} channels by {heads:,} heads")
    groups = k.count("mamba_n_groups", 1, 10**6)
    k.divides("mamba_n_heads", heads, "mamba_n_groups", groups)
    return Recurrence(
        heads, dim, k.count("mamba_d_state", 256), groups, k.count("mamba_d_conv", 4, 1000),
        k.count("mamba_chunk_size", 256),
    )  # fmt: skip


def _traits(model: Model, k: Keys, out_bias: str = "mamba_proj_bias", normed: bool = True) -> Model:
    return replace(
        model,
        traits=replace(
            model.traits,
            recurrence_bias=k.flag("mamba_proj_bias", False),
            recurrence_out_bias=k.flag(out_bias, False),
            convolution_bias=k.flag("mamba_conv_bias", True),
            recurrence_normed=normed,
        ),
    )


def _bamba(k: Keys) -> Model:
    model = llama_like(k, "bamba")
    attends = numbers_of_layers(k, "attn_layer_indices") or []
    kinds = tuple(FULL if i in attends else RECURRENT for i in range(model.layers))
    model = replace(
        model,
        rotary_dim=model.head_dim // 2,
        recurrence=mamba_keys(k, model.hidden_size),
        kinds=kinds,
    )
    return _traits(model, k)


def _bamba_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = rms_norm(t, x, "input_layernorm")
    h = mamba2_mixer(t, s, h) if recurs(kind) else _half_rotated(t, s, h, kind)
    x = add(t, x, h, "residual")
    h = rms_norm(t, x, "pre_ff_layernorm")
    return add(t, x, gated_mlp(t, s, h, name="feed_forward"), "residual")


def _half_rotated(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias = s.traits.attention_bias
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        q, k = by_heads(t, q, k, copies_grad=True)
        q, k = partial_rotary(t, q, k, rotary_tables(t))
        out = attention_core(t, s, q, k, value_heads(t, s, v), kind)
        return linear(t, "o_proj", out, out.shape[-1], D, bias)


def _granite(k: Keys) -> Model:
    model = llama_like(k, "granitemoehybrid")
    shared = k.count("shared_intermediate_size", 1024)
    kinds = mixed_kinds(k, "layer_types", model.layers, lambda i: True)
    if k.config.get("position_embedding_type") != "rope":
        model = replace(model, rotary_dim=0)
        kinds = tuple(kind if recurs(kind) else nope(kind) for kind in kinds)
    # The MLP that every token passes is the model's only one where it has no experts.
    expert = model.intermediate_size
    model = replace(
        model, intermediate_size=shared, recurrence=mamba_keys(k, model.hidden_size), kinds=kinds
    )
    if k.count_or_zero("num_local_experts", 8):
        model = with_experts(model, routing(k, "num_local_experts", 8, 2), expert)
    else:
        model = replace(model, kinds=tuple(map(dense, kinds)))
    return _traits(model, k)


def _granite_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = rms_norm(t, x, "input_layernorm")
    h = mamba2_mixer(t, s, h) if recurs(kind) else attention(t, s, h, kind)
    x = add(t, x, scaled(t, s, h), "residual")
    h = rms_norm(t, x, "post_attention_layernorm")
    out = _shared_mlp(t, s, h)
    if not is_dense(kind):
        out = add(t, granite_mixture(t, s, h), out, "routed and shared")
    return add(t, x, scaled(t, s, out), "residual")


def _shared_mlp(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("shared_mlp"):
        both = linear(t, "input_linear", x, D, FUSED / TP, bias=False)
        gate, up = split(t, both, [(*TOKENS, F / TP)] * 2)
        product = multiply(t, activation(t, gate, s.traits.activation), up, "gate x up")
        return linear(t, "output_linear", product, F / TP, D, bias=False)


def _falcon_h1(k: Keys) -> Model:
    model = llama_like(k, "falcon_h1")
    inner = k.config.get("mamba_d_ssm", 1024)
    width = None if inner is None else k.count("mamba_d_ssm", 1024)
    model = replace(
        model, recurrence=mamba_keys(k, model.hidden_size, width), kinds=(BESIDE,) * model.layers
    )
    model = _traits(model, k, "projectors_bias", k.flag("mamba_rms_norm", False))
    scaled = replace(model.traits, recurrence_scaled=True, keys_scaled=True)
    return replace(model, traits=scaled)


def _falcon_h1_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    """Both read the same normalised input, each scaled, and what they say is summed."""
    h = rms_norm(t, x, "input_layernorm")
    state = mamba2_mixer(t, s, scale(t, h, "input, scaled"))
    seen = attention(t, s, scale(t, h, "input, scaled"), FULL)
    both = add(t, scale(t, state, "state, scaled"), scale(t, seen, "attention, scaled"), "both")
    x = add(t, x, both, "residual")
    h = rms_norm(t, x, "pre_ff_layernorm")
    h = scale(t, _scaled_mlp(t, s, h), "MLP, scaled")
    return add(t, x, h, "residual")


def _scaled_mlp(t: Tape, s: Structure, x: Tensor) -> Tensor:
    if s.served:
        return gated_mlp(t, s, x, name="feed_forward")
    bias = s.traits.mlp_bias
    with t.scope("feed_forward"):
        up = linear(t, "up_proj", x, D, F / TP, bias)
        gate = scale(t, linear(t, "gate_proj", x, D, F / TP, bias), "gate, scaled")
        product = multiply(t, up, activation(t, gate, s.traits.activation), "up x gate")
        return linear(t, "down_proj", product, F / TP, D, bias)


FAMILIES = {
    "mamba": family_of(
        "mamba",
        partial(_recurrent, family="mamba"),
        embed,
        _mamba_layer,
        _mamba2_head,
        losses=("eager",),
    ),
    "mamba2": family_of("mamba2", _mamba2, embed, _mamba2_layer, _mamba2_head, losses=("eager",)),
    "bamba": family_of("bamba", _bamba, embed, _bamba_layer, head),
    "granitemoehybrid": family_of("granitemoehybrid", _granite, embed, _granite_layer, head),
    "falcon_h1": family_of("falcon_h1", _falcon_h1, embed, _falcon_h1_layer, head),
}  # fmt: skip
