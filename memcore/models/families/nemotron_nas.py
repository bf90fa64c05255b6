"""Nemotron Super and Ultra of Llama (nemotron-nas): Llama's layers, of which a search left some
without attention, some without an MLP, and each with a width of its own.

Source: modeling_decilm.py and block_config.py of nvidia/Llama-3_3-Nemotron-Super-49B-v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memcore.errors import shown
from memcore.layers.ops import gated_mlp, rms_norm
from memcore.models.config import Keys
from memcore.models.families.decoders import llama_like
from memcore.models.families.family import Family, decoder_classes
from memcore.models.families.llama import attention, embed, head
from memcore.models.model import Model
from memcore.tape.dims import TP, F, of_stack
from memcore.tape.kinds import FULL, MLP_ALONE, attends, wide, width_of
from memcore.tape.primitives import add
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor

STEP = 256  # of which every width is a multiple
CHANGED = ("replace_with_linear", "sparsify", "window_length", "num_sink_tokens")


def _config(k: Keys) -> Model:
    blocks = [_block(k, i, block) for i, block in enumerate(_blocks(k))]
    groups = {group for group, _ in blocks if group} or {1}
    if len(groups) > 1:
        many = ", ".join(map(str, sorted(groups)))
        k.fail("block_configs", f"n_heads_in_group is {many}: one for all layers is planned")
    heads = k.count("num_attention_heads", 32, 10**6)
    k.divides("num_attention_heads", heads, "n_heads_in_group", max(groups))
    k.config = {**k.config, "num_key_value_heads": max(1, heads // max(groups)),
                "intermediate_size": 1}  # fmt: skip
    model = llama_like(k, "nemotron_nas")  # fmt: skip
    if len(blocks) != model.layers:
        k.fail("block_configs", f"has {len(blocks):,} layers, and num_hidden_layers is "
               f"{model.layers:,}")  # fmt: skip
        return model
    widths = [_width(mult, model.hidden_size) for _, mult in blocks]
    sizes = sorted({n for n in widths if n})
    kinds = (
        wide(FULL if group else MLP_ALONE, sizes.index(n)) if n else FULL
        for (group, _), n in zip(blocks, widths, strict=True)
    )
    # The widest stands for all where one number is asked for.
    return replace(model, kinds=tuple(kinds), widths=tuple(sizes),
                   intermediate_size=max(sizes, default=1))  # fmt: skip


def _blocks(k: Keys) -> list[Any]:
    given = k.config.get("block_configs")
    if not isinstance(given, list) or not given:
        k.fail("block_configs", f"must be a list with what each layer is, not {shown(given)}")
        return []
    return given


def _block(k: Keys, i: int, block: Any) -> tuple[int, float]:
    """Of a layer: query heads for each head of keys, 0 without attention; and how wide its MLP is,
    by its hidden size and two thirds, 0 without one."""
    parts = [block.get(name) if isinstance(block, Mapping) else None
             for name in ("attention", "ffn")]  # fmt: skip
    group, mult = 0, 0.0
    for part, name in zip(parts, ("n_heads_in_group", "ffn_mult"), strict=True):
        place = f"block_configs.{i}"
        if not isinstance(part, Mapping):
            k.fail(place, "must be an object with attention and ffn, in braces")
            continue
        for key in CHANGED:
            if part.get(key):
                k.fail(place, f"{key} changes the layer in a way that is not known yet")
        value = part.get(name)
        if part.get("no_op"):
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 10**4:
            k.fail(f"{place}.{name}", f"must be a number above 0, not {shown(value)}")
        elif name == "ffn_mult":
            mult = float(value)
        else:
            group = int(value)
    if not (group or mult or k.issues):
        k.fail(f"block_configs.{i}", "has neither attention nor an MLP, which is not planned")
    return group, mult


def _width(mult: float, hidden: int) -> int:
    return -(-int(2 * mult * hidden / 3) // STEP) * STEP


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    if attends(kind):
        h = attention(t, s, rms_norm(t, x, "input_layernorm"), kind)
        x = add(t, x, h, "residual")
    width = width_of(kind)
    if not width:
        return x
    h = gated_mlp(t, s, rms_norm(t, x, "post_attention_layernorm"), of_stack(width, F / TP))
    return add(t, x, h, "residual")


BY_BLOCKS = Family(
    _config, embed, _layer, head, classes=decoder_classes("DeciLM", classifier=False)
)
