"""Signatures: which inputs a known package's model takes, by its forward, its words and its config.

Documents of transformers and diffusers say of most inputs what their dimensions are called; those
that they do not say are in NAMED. A dimension that the config decides is written {key|key|...}: the
first key that the config has.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from memcore.tracing.inputs import Input

CHANNELS = "{in_channels|num_channels|in_chans}"
TEXT = "{caption_channels|joint_attention_dim|text_embed_dim|text_dim|cross_attention_dim}"
VOCABULARY = "{vocab_size}"
_IMAGE = ("batch", CHANNELS, "height", "width")
_VIDEO = ("batch", CHANNELS, "frames", "height", "width")

# Inputs whose documents say nothing, or what no program can use.
NAMED: dict[str, Input] = {
    "input_ids": Input(("batch", "tokens"), "int64", 2),
    "decoder_input_ids": Input(("batch", "target"), "int64", 2),
    "pixel_values": Input(_IMAGE),
    "input_features": Input(("batch", "{num_mel_bins|feature_size}", "frames")),
    "input_values": Input(("batch", "samples")),
    "sample": Input(_IMAGE),
    "timestep": Input(("batch",)),
    "guidance": Input(("batch",)),
    "encoder_hidden_states": Input(("batch", "text", TEXT)),
    "encoder_attention_mask": Input(("batch", "text"), "int64"),
    "encoder_hidden_states_mask": Input(("batch", "text"), "int64"),
    "pooled_projections": Input(("batch", "{pooled_projection_dim}")),
    "img_ids": Input(("tokens", "{axes_dims_rope}")),
    "txt_ids": Input(("text", "{axes_dims_rope}")),
    "class_labels": Input(("batch",), "int64"),
    "num_frames": Input(("frames",), "size"),
    "height": Input(("height",), "size"),
    "width": Input(("width",), "size"),
}
_OPTIONAL = ("encoder_hidden_states", "pooled_projections", "timestep", "img_ids", "txt_ids",
             "guidance", "num_frames", "height", "width")  # fmt: skip
_WORDS = {
    "batch_size": "batch", "batch size": "batch", "channel": CHANNELS, "channels": CHANNELS,
    "num_channels": CHANNELS, "in_channels": CHANNELS, "num_frames": "frames", "height": "height",
    "width": "width", "image_sequence_length": "tokens", "sequence_length": "tokens",
    "text_sequence_length": "text", "sequence_len": "text", "sequence len": "text",
    "embed_dims": TEXT, "joint_attention_dim": TEXT, "target_sequence_length": "target",
    "image_size": "image", "feature_dim": "{num_mel_bins|feature_size}",
}  # fmt: skip
_SHAPE = re.compile(r"^ *(\w+) \([^\n]*?shape[^\n]*?\(([^)]*)\)", re.M)
SIDES = ("image_size", "sample_size", "crop_size")  # keys of a config that are an image's size


def _setting(config: Mapping[str, Any], dim: str) -> str:
    """A dimension as Input has it: of {a|b} what the config says, or '' where it says nothing."""
    if not dim.startswith("{"):
        return dim
    for key in dim[1:-1].split("|"):
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, (list, tuple)) and value:
            return str(len(value))
    return ""


def _documented(forward: Any) -> dict[str, tuple[str, ...]]:
    """What a forward's documents say of its inputs' dimensions, as far as all are known words."""
    found = {}
    for name, text in _SHAPE.findall(inspect.getdoc(forward) or ""):
        dims = [_WORDS.get(word.strip()) for word in text.split(",") if word.strip()]
        if dims and None not in dims:
            sides = iter(("height", "width"))
            found[name] = tuple(next(sides) if d == "image" else str(d) for d in dims)
    return found


def _made(
    name: str, dims: Mapping[str, tuple[str, ...]], config: Mapping[str, Any]
) -> Input | None:
    """One input, or None where nothing says what it is."""
    known = NAMED.get(name)
    given = known if known and known.dtype != "float" else None
    if name in dims and given is None:
        given = Input(dims[name])
    given = given or known
    if given is None:
        return None
    spelled = tuple(_setting(config, dim) for dim in given.dims)
    return dataclasses.replace(given, dims=spelled) if all(spelled) else None


def inputs_of(
    forward: Any, config: Mapping[str, Any], wanted: tuple[str, ...] = _OPTIONAL
) -> dict[str, Input]:
    """The inputs of a model that its forward must be given, and those of `wanted` that it can be;
    what the config has no size for is left out."""
    dims = _documented(forward)
    found: dict[str, Input] = {}
    for p in inspect.signature(forward).parameters.values():
        needed = p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "self"
        if needed or p.name in wanted:
            made = _made(p.name, dims, config)
            if made:
                found[p.name] = made
    return found


def alternatives(
    inputs: Mapping[str, Input], config: Mapping[str, Any]
) -> Iterator[dict[str, Input]]:
    """Inputs to try in order: as they are, as a video, and of the one size that the config says."""
    yield dict(inputs)
    if "sample" in inputs and len(inputs["sample"].dims) == 4:
        n, c, *rest = inputs["sample"].dims
        yield {**inputs, "sample": Input((n, c, "frames", *rest))}
    side = next((config[key] for key in SIDES if config.get(key)), None)
    if side is not None:
        sides = side if isinstance(side, (list, tuple)) else (side, side)
        if isinstance(side, Mapping):
            sides = (side.get("height", 224), side.get("width", 224))
        numbers = {"height": str(sides[0]), "width": str(sides[-1])}
        yield {
            name: dataclasses.replace(given, dims=tuple(numbers.get(d, d) for d in given.dims))
            for name, given in inputs.items()
        }
    if (
        "tokens" in {d for given in inputs.values() for d in given.dims}
        and "pixel_values" in inputs
    ):
        yield {k: v for k, v in inputs.items() if k != "pixel_values"}
