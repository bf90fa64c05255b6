"""Llama 4 (text): chunked attention with rotary layers, full attention without, some dense layers.

Its router weights what goes into an expert. transformers' training code sends every token through
every expert, most of them with the weight zero; an inference engine runs only the chosen ones.
"""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.experts import SCORED, Stacks, gated, routed_experts, top_k
from memcore.layers.ops import (
    HIDDEN,
    TOKENS,
    activation,
    attended,
    by_heads,
    by_rows,
    complex_rotary,
    gated_mlp,
    l2_norm,
    query_key_value,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import llama_like, routing, sparse_kinds, with_experts
from memcore.models.families.family import Family, decoder_classes
from memcore.models.families.llama import embed, head
from memcore.models.families.mixtral import sparse_layer
from memcore.models.model import Model
from memcore.tape.dims import CP, EXPERT_F, EXPERT_FUSED, EXPERTS, SHARED_F, TP, D, S, Shape
from memcore.tape.kinds import CHUNKED, FULL, Part, nope, turns
from memcore.tape.primitives import (
    added,
    cast,
    contiguous,
    keeps_result,
    linear,
    multiply,
    split,
    stacked_linear,
    unary,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

EVERY: Shape = (EXPERTS, *TOKENS, D)  # every token once for every expert


def _config(k: Keys) -> Model:
    model = llama_like(
        k,
        "llama4_text",
        temperature_tuned=k.config.get("attn_temperature_tuning", True) not in (False, 0, None),
    )
    size = k.count("intermediate_size", 8192)
    model = replace(
        model,
        intermediate_size=k.count("intermediate_size_mlp", 16_384),
        shared_size=size,
        kinds=_kinds(k, model.layers),
    )
    if any(kind.startswith(CHUNKED) for kind in model.kinds):
        model = replace(model, window=k.count("attention_chunk_size", 8192))
    step = k.count("interleave_moe_layer_step", 1)
    sparse = _list(k, "moe_layers", range(k.count("num_hidden_layers", 48) + 1))
    model = with_experts(model, routing(k, "num_local_experts", 16, 1), size)
    if sparse is None:
        return sparse_kinds(model, lambda i: (i + 1) % step == 0)
    return sparse_kinds(model, lambda i: i in sparse)


def _kinds(k: Keys, layers: int) -> tuple[str, ...]:
    """By default every fourth layer is full and has no positions; the others see their chunk."""
    every = k.count("no_rope_layer_interval", 4)
    given = _list(k, "no_rope_layers", (0, 1))
    rotary = given or [int((i + 1) % every != 0) for i in range(layers)]
    known = {"full_attention": FULL, "chunked_attention": CHUNKED}
    words = k.config.get("layer_types")
    if words is None:
        words = ["chunked_attention" if r else "full_attention" for r in rotary]
    if not isinstance(words, list) or any(not isinstance(w, str) or w not in known for w in words):
        k.fail("layer_types", f"must be a list of {' or '.join(known)}")
    elif min(len(rotary), len(words)) < layers:
        short = "no_rope_layers" if len(rotary) < layers else "layer_types"
        k.fail(short, f"must name each of the {layers:,} layers")
    else:
        pairs = zip(words[:layers], rotary, strict=False)
        return tuple(known[word] if r else nope(known[word]) for word, r in pairs)
    return (FULL,) * layers


def _list(k: Keys, key: str, allowed: range | tuple[int, ...]) -> list[int] | None:
    """A list of whole numbers, or None where there is none."""
    given = k.config.get(key)
    if given is None:
        return None
    if not isinstance(given, list) or any(type(i) is not int or i not in allowed for i in given):
        k.fail(key, "must be a list of whole numbers, each of them in range")
        return None
    return given


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    bias, rotary = s.traits.attention_bias, turns(kind)
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = query_key_value(t, s, x, bias)
        q, k = by_rows(t, q, k, copies_grad=True)
        v = value_heads(t, s, v)
        if rotary:
            q, k = complex_rotary(t, q, k, at_once=True)
            if s.traits.query_norm:
                q, k = l2_norm(t, q, "q_norm"), l2_norm(t, k, "k_norm")
        elif s.traits.temperature_tuned:
            scales = t.new("temperature", (1, S / CP, 1, 1), "fp32")
            q = cast(t, multiply(t, q, scales, "q, tuned"), x.dtype, "q, tuned, cast")
        q, k = by_heads(t, q, k, copies_grad=False)
        return attended(t, s, q, k, v, kind, "o_proj", bias, softmax_fp32=False)


def _mixture(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("feed_forward"):
        logits = linear(t, "router", x, D, EXPERTS, bias=False)
        if s.served:
            weights, index = top_k(t, logits, "top_k")
            routed = routed_experts(t, s, x, weights, index, Stacks(gated, transposed=True))
        else:
            routed = _every_expert(t, s, x, logits)
        shared = gated_mlp(t, s, x, SHARED_F / TP, "shared_expert")
        return added(t, shared, _summed(t, routed) if not s.served else routed, "with routed")


def _every_expert(t: Tape, s: Structure, x: Tensor, logits: Tensor) -> Tensor:
    """Every token, weighted, through every expert: (EXPERTS, batch, sequence, D)."""
    kind = s.traits.activation
    scores = _scores(t, logits)
    each = contiguous(t, x, EVERY, "every token")
    by_expert = contiguous(t, scores, (EXPERTS, *TOKENS, 1), "scores by expert")
    rows = multiply(t, each, by_expert, "tokens, weighted")
    with t.scope("experts"):
        both = stacked_linear(t, "gate_up_proj", rows, D, EXPERT_FUSED / TP)
        gate, up = split(t, both, [(EXPERTS, *TOKENS, EXPERT_F / TP)] * 2)
        product = multiply(t, up, activation(t, gate, kind), f"up x {kind}(gate)")
        out = stacked_linear(t, "down_proj", product, EXPERT_F / TP, D)
    t.use(logits, scores, rows)
    return out


def _scores(t: Tape, logits: Tensor) -> Tensor:
    """sigmoid of the TOP_K largest, 0 for the others: (batch, sequence, EXPERTS)."""
    largest, index = top_k(t, logits, "top_k")
    t.start("others at -inf", largest, index)
    scattered = t.new("others at -inf", SCORED, logits.dtype)
    t.finish("others at -inf", [largest], scattered, [index], t.grads("largest grad", largest))
    sigmoid = keeps_result(t, cast(t, scattered, "fp32", "scores (fp32)"), "sigmoid")
    return cast(t, sigmoid, logits.dtype, "scores, cast")


def _summed(t: Tape, x: Tensor) -> Tensor:
    """Results of all experts, summed. Backward copies the sum's gradient for each."""
    return unary(t, x, "sum over experts", HIDDEN, grad="results grad")


FAMILY = Family(
    _config, embed, sparse_layer(_attention, _mixture), head, attentions=("eager", "sdpa"),
    note="transformers trains this model with every token in every expert, most with weight zero: "
    "activations and FLOPs are those of all experts, model FLOPs and MFU of the chosen ones.",
    classes=decoder_classes("Llama4", "TextModel", classifier=False),
)  # fmt: skip
FAMILIES = {"llama4_text": FAMILY}
