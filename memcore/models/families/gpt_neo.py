"""GPT-Neo: GPT-2's layers with every other one's attention in a window, scores in fp32 and not
scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memcore.errors import shown
from memcore.layers.ops import (
    attention_core,
    by_heads,
    core,
    dropped,
    head_behind,
    masked,
    plain_mlp,
    value_heads,
    weighted_values,
    wide_scores,
)
from memcore.models.config import Keys
from memcore.models.families.decoders import family_of, model_of
from memcore.models.families.gpt2 import embed
from memcore.models.model import Model
from memcore.tape.dims import CONTEXT, CP, TP, D, Q, S
from memcore.tape.kinds import FULL, SLIDING, Part
from memcore.tape.primitives import add, layer_norm, linear, masked_fill
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

KINDS = {"global": FULL, "local": SLIDING}
TYPES = [[["global", "local"], 12]]


def _config(k: Keys) -> Model:
    model = model_of(k, "gpt_neo")
    return replace(model, kinds=_kinds(k, model.layers))


def _kinds(k: Keys, layers: int) -> tuple[str, ...]:
    """Of each layer, from lists of words and how often each list comes."""
    given = k.config.get("attention_types", TYPES)
    found: list[str] = []
    for item in given if isinstance(given, list) else [None]:
        pair = item if isinstance(item, list) and len(item) == 2 else [None, 0]
        words, times = pair
        if not isinstance(words, list) or type(times) is not int or not 1 <= times <= layers:
            k.fail("attention_types", f"{shown(given)} is no list of [words, how often]")
            return (FULL,) * layers
        if any(not isinstance(word, str) or word not in KINDS for word in words):
            k.fail("attention_types", f"{shown(words)}; use {' and '.join(KINDS)}")
            return (FULL,) * layers
        found += [KINDS[word] for word in words] * times
    if len(found) != layers:
        k.fail("attention_types", f"names {len(found):,} layers, but there are {layers:,}")
        return (FULL,) * layers
    return tuple(found)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    x = add(t, _attention(t, s, layer_norm(t, x, D, "ln_1"), kind), x, "residual")
    h = layer_norm(t, x, D, "ln_2")
    with t.scope("mlp"):
        h = dropped(t, s, plain_mlp(t, h, s.traits.activation, True, ("c_fc", "c_proj")), "dropout")
    return add(t, x, h, "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("attn.attention", Part.ATTENTION):
        q, k, v = (linear(t, f"{n}_proj", x, D, Q / TP, bias=False) for n in "qkv")
        q, k = by_heads(t, q, k, copies_grad=s.attention == "eager")
        v = value_heads(t, s, v)
        table = t.buffer("bias", (1, 1, CONTEXT, CONTEXT), "bool")
        seen = Tensor(table.storage, (1, 1, S / CP, S), table.dtype, False)
        if s.attention == "eager":

            def run(heads: Sequence[Tensor]) -> Tensor:
                scores, v = wide_scores(t, *heads)
                scores = masked_fill(t, scores, seen, "scores that are seen")
                return weighted_values(t, s, masked(t, scores), v, softmax_fp32=True)

            out = core(t, run, q, k, v)
        else:
            # transformers tells FlashAttention of no window
            out = attention_core(t, s, q, k, v, kind if s.served else FULL)
        out = linear(t, "out_proj", out, Q / TP, D, bias=True)
        return dropped(t, s, out, "resid_dropout")


_head = head_behind(layer_norm, "ln_f", width=D)
FAMILY = family_of("gpt_neo", _config, embed, _layer, _head)
