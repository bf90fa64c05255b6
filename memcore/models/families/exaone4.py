"""EXAONE 4: norms after each part, queries and keys normed by head.

Three layers of four have a window; where there are windows, the others have no positions.
"""

from __future__ import annotations

from dataclasses import replace

from memcore.layers.ops import gated_mlp, rms_norm
from memcore.models.config import Keys
from memcore.models.families.family import HF_ONLY, Family, decoder_classes, layer_kinds
from memcore.models.families.llama import attention, embed, head, llama_like
from memcore.models.model import Model
from memcore.tape.kinds import FULL_NOPE, SLIDING
from memcore.tape.primitives import add
from memcore.tape.structure import Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys, label: str) -> Model:
    model = llama_like(k, label, "exaone4", intermediate=16_384, vocab=102_400, query_norm=True)
    return windows(k, model)


def windows(k: Keys, model: Model) -> Model:
    """The model with the windows that its config.json says; without one, with none."""
    if k.config.get("sliding_window", 4096) is None:
        return model
    listed = k.config.get("layer_types") is not None  # and the pattern may be letters
    every = 1 if listed else k.count("sliding_window_pattern", 4)
    slides = layer_kinds(k, model.layers, lambda i: (i + 1) % every != 0)
    kinds = tuple(kind if kind == SLIDING else FULL_NOPE for kind in slides or ("",) * model.layers)
    window = k.count("sliding_window", 4096)
    return replace(model, kinds=kinds, window=window if slides else 0)


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    h = rms_norm(t, attention(t, s, x, kind), "post_attention_layernorm")
    x = add(t, x, h, "residual")
    return add(t, x, rms_norm(t, gated_mlp(t, s, x), "post_feedforward_layernorm"), "residual")


FAMILY = Family(_config, embed, _layer, head, kernels=HF_ONLY, classes=decoder_classes("Exaone4"))
