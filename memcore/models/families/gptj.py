"""GPT-J: attention and MLP side by side behind one norm, a part of each head turned in pairs, its
angles looked up in every layer, and scores in fp32."""

from __future__ import annotations

from collections.abc import Sequence

from memcore.layers.ops import (
    QUERY_ROWS,
    attention_core,
    by_heads,
    core,
    dropped,
    embed_dropped,
    head_behind,
    masked,
    plain_mlp,
    value_heads,
    weighted_values,
    wide_scores,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, model_of
from memcore.models.model import Model
from memcore.tape.dims import CONTEXT, CP, HALF_ROTARY, ROTARY, TP, D, Q, S
from memcore.tape.kinds import Part
from memcore.tape.primitives import (
    add,
    contiguous,
    heads_first,
    layer_norm,
    linear,
    rotate,
    scale,
    split,
)
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    model = model_of(k, "gptj")
    turned, dim = model.rotary_dim, model.head_dim
    if turned > dim or turned % 2:
        k.fail("rotary_dim", f"{turned:,} is not an even number up to a head's width, {dim:,}")
    return model


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = layer_norm(t, x, D, "ln_1")
    attended = _attention(t, s, h)
    with t.scope("mlp"):
        h = plain_mlp(t, h, s.traits.activation, True, ("fc_in", "fc_out"))
        h = dropped(t, s, h, "dropout")
    return add(t, add(t, attended, h, "attention and MLP"), x, "residual")


def _attention(t: Tape, s: Structure, x: Tensor) -> Tensor:
    with t.scope("attn", Part.ATTENTION):
        t.buffer("embed_positions", (CONTEXT, ROTARY), "fp32")
        q, k, v = (linear(t, f"{n}_proj", x, D, Q / TP, bias=False) for n in "qkv")
        q, k = (heads_first(t, of, QUERY_ROWS, copies_grad=False) for of in (q, k))
        k, turned_k = _turned(t, k, "k_rotary")
        q, turned_q = _turned(t, q, "q_rotary")
        q, k = by_heads(t, q, k, copies_grad=False)
        v = value_heads(t, s, v)
        if s.attention == "eager":

            def run(heads: Sequence[Tensor]) -> Tensor:
                scores, v = wide_scores(t, *heads)
                scores = masked(t, scale(t, scores, "scores, scaled"))
                return weighted_values(t, s, scores, v, softmax_fp32=True)

            out = core(t, run, q, k, v)
        else:
            out = attention_core(t, s, q, k, v, "full")
        t.use(turned_k, turned_q)  # have names until attention returns
        out = linear(t, "out_proj", out, Q / TP, D, bias=False)
        return dropped(t, s, out, "resid_dropout")


def _turned(t: Tape, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Heads of which the first ROTARY dimensions are turned, and that part of them. Each layer
    makes sines and cosines of its own, for queries and for keys."""
    sin, cos = (t.new(f"{name} {n}", (1, S / CP, 1, ROTARY), x.dtype) for n in ("sin", "cos"))
    part, rest = split(t, x, [(*x.shape[:-1], ROTARY), x.shape], sliced=True)
    part = rotate(t, part, cos, sin, HALF_ROTARY, name)
    return contiguous(t, part, x.shape, f"{name}, joined", other=rest), part


_embed = embed_dropped("wte", "drop")
_head = head_behind(layer_norm, "ln_f", width=D)
FAMILY = family_of("gptj", _config, _embed, _layer, _head, losses=("eager", "fused"))
