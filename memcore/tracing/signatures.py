"""Signatures: which inputs a known package's model takes, by its forward, its words and its config.

Documents of transformers and diffusers say of most inputs what their dimensions are called; those
that they do not say are in NAMED. A dimension that the config decides is written {key|key|...}: the
first key that the config has, or the number that stands last.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from memcore.tracing.inputs import Input

CHANNELS = "{in_channels|num_channels|in_chans|3}"
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
_FRAMES_AT = {"sample": 2, "pixel_values": 1}  # which dimension of a video's its frames are
SIDES = ("image_size", "sample_size", "crop_size")  # keys of a config that are an image's size


def _setting(config: Mapping[str, Any], dim: str) -> str:
    """A dimension as Input has it: of {a|b} what the config says, or '' where it says nothing."""
    if not dim.startswith("{"):
        return dim
    for key in dim[1:-1].split("|"):
        value = int(key) if key.isdigit() else config.get(key)
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
    given = NAMED.get(name)
    if name in dims and (given is None or len(given.dims) != len(dims[name])):
        given = Input(dims[name])
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
    _, *rest = inspect.signature(forward).parameters.values()  # the module itself is the first
    for p in rest:
        needed = p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        if needed or p.name in wanted:
            made = _made(p.name, dims, config)
            if made:
                found[p.name] = made
    return found


def alternatives(
    inputs: Mapping[str, Input], config: Mapping[str, Any]
) -> Iterator[dict[str, Input]]:
    """Inputs to try in order: as they are, as a video, of the one size that the config says, and
    without the image."""
    numbers = _numbers(config)
    tried: list[dict[str, Input]] = []
    for made in (
        dict(inputs),
        *_as_video(inputs),
        *_turned(inputs, _setting(config, "{num_mel_bins}")),
    ):
        for given in (made, _numbered(made, numbers)):
            if given not in tried:
                tried.append(given)
    if "input_ids" in inputs and "pixel_values" in inputs:
        tried.append({k: v for k, v in inputs.items() if k != "pixel_values"})
    yield from tried


def _numbers(config: Mapping[str, Any]) -> dict[str, str]:
    """The only sizes that a model of this config may take."""
    found = {}
    side = next((config[key] for key in SIDES if config.get(key)), None)
    if side is not None:
        if isinstance(side, Mapping):
            side = (side.get("height", 224), side.get("width", 224))
        sides = side if isinstance(side, (list, tuple)) else (side, side)
        found = {"height": str(sides[0]), "width": str(sides[-1])}
    if config.get(
        "max_source_positions"
    ):  # of sound, of which a first convolution takes each other
        found["frames"] = str(2 * config["max_source_positions"])
    elif config.get("num_frames") or config.get("max_length"):
        found["frames"] = str(config.get("num_frames") or config["max_length"])
    return found


def _numbered(inputs: Mapping[str, Input], numbers: Mapping[str, str]) -> dict[str, Input]:
    return {
        name: dataclasses.replace(given, dims=tuple(numbers.get(d, d) for d in given.dims))
        for name, given in inputs.items()
    }


def _as_video(inputs: Mapping[str, Input]) -> Iterator[dict[str, Input]]:
    """With frames in what could be an image."""
    for name, at in _FRAMES_AT.items():
        if name in inputs and len(inputs[name].dims) == 4:
            dims = inputs[name].dims
            yield {**inputs, name: Input((*dims[:at], "frames", *dims[at:]))}


def _turned(inputs: Mapping[str, Input], bins: str) -> Iterator[dict[str, Input]]:
    """With sound's times before its features."""
    for name in ("input_features", "input_values"):
        if name in inputs:
            features = inputs[name].dims[1] if len(inputs[name].dims) == 3 else bins
            if not features:
                continue
            yield {**inputs, name: Input(("batch", "frames", features))}
