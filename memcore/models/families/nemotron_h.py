"""Nemotron-H and Nemotron 3: each layer is one thing, a Mamba-2 state, attention without
positions, an MLP or a mixture of experts."""

from __future__ import annotations

from dataclasses import replace

from memcore.errors import shown
from memcore.layers.experts import Stacks, routed_experts
from memcore.layers.ops import (
    activation,
    attended,
    by_heads,
    causal_lm_head,
    query_key_value,
    rms_norm,
    rms_norm_fp32_weight,
    value_heads,
)
from memcore.layers.recurrent import mamba2_mixer
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.decoders import family_of, llama_like, routing, with_experts
from memcore.models.families.deepseek import router
from memcore.models.families.family import MIXERS, mixed_kinds, state_dtype
from memcore.models.families.llama import embed
from memcore.models.model import Model, Recurrence
from memcore.tape.dims import EXPERT_D, SHARED_F, TP, D, F, Factor
from memcore.tape.kinds import EXPERTS_ALONE, FULL, MLP_ALONE, RECURRENT, recurs
from memcore.tape.primitives import add, linear
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

KINDS = MIXERS | {"mlp": MLP_ALONE, "moe": EXPERTS_ALONE}
LETTERS = {"M": RECURRENT, "*": FULL, "-": MLP_ALONE, "E": EXPERTS_ALONE}
DEFAULT = ("linear_attention", "moe", "full_attention", "mlp")


def _config(k: Keys) -> Model:
    kinds = _kinds(k)
    k.config = {"num_hidden_layers": len(kinds), **k.config}
    model = llama_like(k, "nemotron_h")  # fmt: skip
    k.refuse("n_shared_experts", 1, None)
    if model.layers != len(kinds):
        k.fail(
            "num_hidden_layers", f"{model.layers:,} layers, but {_words(k)} names {len(kinds):,}"
        )
    heads, groups = k.count("mamba_num_heads", 128, 10**6), k.count("n_groups", 8, 10**6)
    k.divides("mamba_num_heads", heads, "n_groups", groups)
    bias = k.flag("use_bias", False)
    traits = replace(
        model.traits,
        activation=k.word("mlp_hidden_act", "relu2", ACTIVATIONS),
        recurrence_bias=bias,
        recurrence_out_bias=bias,
        convolution_bias=k.flag("use_conv_bias", True),
    )
    model = replace(
        model,
        kinds=kinds,
        rotary_dim=0,
        traits=traits,
        recurrence=Recurrence(
            heads, k.count("mamba_head_dim", 64, 10**6), k.count("ssm_state_size", 128), groups,
            k.count("conv_kernel", 4, 1000), k.count("chunk_size", 128),
            state_dtype(k, "mamba_ssm_cache_dtype", "float32"), alone=True,
        ),
    )  # fmt: skip
    if EXPERTS_ALONE not in kinds:
        return model
    model = with_experts(
        model, routing(k, "n_routed_experts", 8, 2), k.count("moe_intermediate_size", 7688)
    )
    latent = k.count_or("moe_latent_size", model.hidden_size)
    return replace(
        model,
        expert_width=latent,
        shared_size=k.count("moe_shared_expert_intermediate_size", 7688),
        traits=replace(model.traits, experts_latent=k.config.get("moe_latent_size") is not None),
    )


def _words(k: Keys) -> str:
    """The key that says what the layers are, as the file has it."""
    listed = k.config.get("layers_block_type") is not None
    by_letters = not listed and k.config.get("hybrid_override_pattern") is not None
    return (
        "hybrid_override_pattern"
        if by_letters
        else k.written.get("layers_block_type", "layers_block_type")
    )


def _kinds(k: Keys) -> tuple[str, ...]:
    """What each layer is: a list of words, or one letter for each."""
    listed = k.config.get("layers_block_type")
    pattern = k.config.get("hybrid_override_pattern")
    if listed is None and pattern is not None:
        if not isinstance(pattern, str) or not pattern or set(pattern) - set(LETTERS):
            letters = " ".join(LETTERS)
            message = f"must have one letter for each layer, of {letters}, not {shown(pattern)}"
            k.fail("hybrid_override_pattern", message)
            return (RECURRENT,)
        return tuple(LETTERS[letter] for letter in pattern)
    if listed is None:
        k.assume("num_hidden_layers", len(DEFAULT))
    words = DEFAULT if listed is None else listed
    if not isinstance(words, (list, tuple)) or not words:
        k.fail("layers_block_type", f"must be a list of {', '.join(KINDS)}, not {shown(words)}")
        return (RECURRENT,)
    k.config = {**k.config, "layers_block_type": list(words)}
    return mixed_kinds(k, "layers_block_type", len(words), lambda i: True, KINDS)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = _norm(t, s, x)
    if recurs(kind):
        h = mamba2_mixer(t, s, h, "mixer")
    else:
        with t.scope("mixer"):
            h = _OTHERS.get(kind, _attention)(t, s, h)
    return add(t, x, h, "residual")


def _norm(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """transformers multiplies in fp32, with a copy of the weight in fp32; an engine has one
    kernel."""
    if s.served:
        return rms_norm(t, x, "norm")
    return rms_norm_fp32_weight(t, x, "norm", widened=True)


def _head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return causal_lm_head(t, s, _norm(t, s, x))


def _attention(t: Tape, s: Structure, x: Tensor) -> Tensor:
    q, k, v = query_key_value(t, s, x, bias=False)
    q, k = by_heads(t, q, k, copies_grad=True)
    return attended(t, s, q, k, value_heads(t, s, v), FULL, "o_proj", bias=False)


def _mlp(t: Tape, s: Structure, x: Tensor, width: Factor = F / TP) -> Tensor:
    bias = s.traits.mlp_bias
    h = activation(t, linear(t, "up_proj", x, D, width, bias), s.traits.activation)
    return linear(t, "down_proj", h, width, D, bias)


def _mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """Of wide models (Nemotron 3 Super) experts read a narrower projection of the token."""
    bias, latent, routed = s.traits.mlp_bias, s.traits.experts_latent, router(t, s, x, sigmoid=True)
    h = linear(t, "fc1_latent_proj", x, D, EXPERT_D, bias) if latent else x
    out = routed_experts(t, s, h, *routed, UNGATED)
    if latent:
        out = linear(t, "fc2_latent_proj", out, EXPERT_D, D, bias)
    with t.scope("shared_experts"):
        return add(t, out, _mlp(t, s, x, SHARED_F / TP), "routed and shared")


def _activated(t: Tape, s: Structure, x: Tensor) -> Tensor:
    return activation(t, x, s.traits.activation)


UNGATED = Stacks(_activated, gated=False, width=EXPERT_D)
_OTHERS = {MLP_ALONE: _mlp, EXPERTS_ALONE: _mixture}

FAMILY = family_of("nemotron_h", _config, embed, _layer, _head)
