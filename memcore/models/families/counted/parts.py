"""What models are put together from: a model inside another, and towers that read images or sound,
which are models of their own too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from memcore.models import families
from memcore.models.config import Keys
from memcore.models.families.counted.family import counted
from memcore.models.families.family import Family
from memcore.models.sizes import attention, convolution, embedded, encoder_layer, linear, norm
from memcore.tape.structure import EMBEDDING


@dataclass(frozen=True, slots=True)
class Part:
    """A model inside another: its parameters, and what its config says."""

    parameters: int
    keys: Keys

    def count(self, key: str, usual: int) -> int:
        return self.keys.count(key, usual)


def part(
    k: Keys, place: str, kind: str, usual: Mapping[str, Any] | None = None, head: str = EMBEDDING
) -> Part:
    """The model that the config at `place` describes, as its own family counts it.

    kind    its model_type where the config names none
    usual   what a file without that config has there
    head    of its class; by itself it has none
    """
    given = k.config.get(place)
    if given is not None and not isinstance(given, Mapping):
        return Part(1, k.within(place))
    found = families.inside(
        {"model_type": kind, **((usual or {}) if given is None else given)}, head
    )
    k.absorb(place, found.keys)
    return found


def _depth(k: Keys, usual: int, key: str = "num_hidden_layers") -> int:
    return k.count(key, usual, 100_000)


def _clipped(hidden: int, inner: int, layers: int, side: int, patch: int) -> Callable[[Keys], int]:
    """SigLIP's tower without what attends to all patches at its end."""

    def count(k: Keys) -> int:
        width = k.count("hidden_size", hidden)
        k.divides("hidden_size", width, "num_attention_heads", k.count("num_attention_heads", 12))
        layer = encoder_layer(width, k.count("intermediate_size", inner))
        return embedded(k, width, side, patch) + _depth(k, layers) * layer + norm(width)

    return count


def _pixtral(k: Keys) -> int:
    """Llama's layers on patches."""
    width = k.count("hidden_size", 1024)
    rows, columns = k.pair("patch_size", 16)
    layer = 4 * width**2 + 3 * width * k.count("intermediate_size", 4096) + 2 * width
    return k.count("num_channels", 3) * rows * columns * width + width + _depth(k, 24) * layer


def _heard(
    hidden: str = "d_model", layers: str = "encoder_layers", inner: str = "encoder_ffn_dim"
) -> Callable[[Keys], int]:
    """Whisper's encoder: two convolutions of a spectrogram, and layers whose keys have no bias."""

    def count(k: Keys) -> int:
        width = k.count(hidden, 1280)
        found = convolution(k.count("num_mel_bins", 128), width, 3) + convolution(width, width, 3)
        found += k.count("max_source_positions", 1500) * width + norm(width)
        layer = encoder_layer(width, k.count(inner, 5120)) - width
        return found + _depth(k, 32, layers) * layer

    return count


def _glm_heard(k: Keys) -> int:
    """The same with rotary positions."""
    width, heads = k.count("hidden_size", 1280), k.count("num_attention_heads", 20)
    kv = k.count_or("num_key_value_heads", heads) * (width // heads)
    layer = encoder_layer(width, k.count("intermediate_size", 5120)) - attention(width)
    layer += 2 * linear(width, width) + linear(width, kv) + linear(width, kv, bias=False)
    found = convolution(k.count("num_mel_bins", 128), width, 3) + convolution(width, width, 3)
    return found + norm(width) + _depth(k, 32) * layer


def _eva(k: Keys) -> int:
    """BLIP-2's: a token of the class, and one product for queries, keys and values."""
    width = k.count("hidden_size", 1408)
    bias = 0 if k.flag("qkv_bias", True) else 3 * width
    layer = encoder_layer(width, k.count("intermediate_size", 6144)) - bias
    return embedded(k, width, 224, 14, extra=1) + width + _depth(k, 39) * layer + norm(width)


def _questions(always: bool) -> Callable[[Keys], int]:
    """A Q-Former: BERT's layers on queries, of which every few read an image. `always`: it reads
    text too, in MLPs of their own."""

    def count(k: Keys) -> int:
        width, inner = k.count("hidden_size", 768), k.count("intermediate_size", 3072)
        layers, read = _depth(k, 12), k.count("encoder_hidden_size", 1408)
        crossed = len(range(0, layers, k.count("cross_attention_frequency", 2)))
        cross = 2 * linear(width, width) + 2 * linear(read, width) + norm(width)
        fed = encoder_layer(width, inner) - attention(width) - norm(width)
        found = norm(width) + layers * encoder_layer(width, inner) + crossed * cross
        if always or k.flag("use_qformer_text_input", False):
            found += layers * fed
        if always:
            rows = k.count("vocab_size", 30_522) + k.count("max_position_embeddings", 512)
            found += rows * width
        return found

    return count


def _glm(ocr: bool) -> Callable[[Keys], int]:
    """GLM-V's tower: gated MLPs, a convolution that joins patches, and a gated MLP behind it."""

    def count(k: Keys) -> int:
        width, out = (
            k.count("hidden_size", 1024 if ocr else 1536),
            k.count("out_hidden_size", 1536 if ocr else 4096),
        )
        inner, bias = (
            k.count("intermediate_size", 4096 if ocr else 13_696),
            k.flag("attention_bias", ocr),
        )
        (height, wide), (rows, columns) = k.pair("image_size", 336), k.pair("patch_size", 14)
        merge = k.count("spatial_merge_size", 2)
        values = k.count("in_channels", 3) * k.count("temporal_patch_size", 2) * rows * columns
        of_mlp = inner if ocr else out
        layer = (
            3 * linear(width, width, bias)
            + linear(width, width, bias and ocr)
            + 3 * width * of_mlp
            + 2 * width
        )
        found = linear(values, width) + width + linear(width * merge**2, out)
        if ocr:
            layer += 2 * (width // k.count("num_heads", 16)) + (2 * of_mlp + width if bias else 0)
            between = out * k.count("in_channels", 3)
        else:
            found += (height // rows) * (wide // columns) * width + width
            between = inner
        return found + _depth(k, 24, "depth") * layer + out**2 + norm(out) + 3 * out * between

    return count


def _sam(k: Keys) -> int:
    """SAM's: attention in windows with biases of rows and columns, and two convolutions."""
    width, out, layers = k.count("hidden_size", 768), k.count("output_channels", 256), _depth(k, 12)
    (height, wide), (rows, columns) = k.pair("image_size", 1024), k.pair("patch_size", 16)
    high, broad = height // rows, wide // columns
    inner = k.count_or("mlp_dim", int(width * 4))
    layer = encoder_layer(width, inner) - (0 if k.flag("qkv_bias", True) else 3 * width)
    found = linear(k.count("num_channels", 3) * rows * columns, width) + layers * layer
    found += high * broad * width if k.flag("use_abs_pos", True) else 0
    if k.flag("use_rel_pos", True):
        whole = k.config.get("global_attn_indexes", (2, 5, 8, 11))
        if not isinstance(whole, (list, tuple)):
            k.fail("global_attn_indexes", "must be a list of the numbers of layers")
            whole = ()
        window, dim = k.count("window_size", 14), width // k.count("num_attention_heads", 12)
        for i in range(layers):
            far = 2 * (high + broad) - 2 if i in whole else 4 * window - 2
            found += far * dim
    return found + width * out + norm(out) + 9 * out * out + norm(out)


def _tower(count: Callable[[Keys], int], named: str) -> Family:
    return counted(count, {named: EMBEDDING})


_WHISPER = ("hidden_size", "num_hidden_layers", "intermediate_size")
COUNTED: dict[str, Family] = {
    "pixtral": _tower(_pixtral, "PixtralVisionModel"),
    "idefics2_vision": _tower(_clipped(768, 3072, 12, 224, 32), "Idefics2VisionTransformer"),
    "idefics3_vision": _tower(_clipped(1152, 3072, 12, 224, 32), "Idefics3VisionTransformer"),
    "smolvlm_vision": _tower(_clipped(1152, 3072, 12, 224, 32), "SmolVLMVisionTransformer"),
    "paddleocr_vl_vision": _tower(_clipped(1152, 4304, 27, 384, 14), "PaddleOCRVisionModel"),
    "blip_2_vision_model": _tower(_eva, "Blip2VisionModel"),
    "instructblip_vision_model": _tower(_eva, "InstructBlipVisionModel"),
    "blip_2_qformer": _tower(_questions(False), "Blip2QFormerModel"),
    "instructblip_qformer": _tower(_questions(True), "InstructBlipQFormerModel"),
    "glm4v_vision": _tower(_glm(False), "Glm4vVisionModel"),
    "glm4v_moe_vision": _tower(_glm(False), "Glm4vMoeVisionModel"),
    "glm_ocr_vision": _tower(_glm(True), "GlmOcrVisionModel"),
    "got_ocr2_vision": _tower(_sam, "GotOcr2VisionEncoder"),
    "sam_vision_model": _tower(_sam, "SamVisionModel"),
    "qwen2_audio_encoder": _tower(_heard(), "Qwen2AudioEncoder"),
    "voxtral_encoder": _tower(_heard(*_WHISPER), "VoxtralEncoder"),
    "audioflamingo3_encoder": _tower(_heard(*_WHISPER), "AudioFlamingo3Encoder"),
    "glmasr_encoder": _tower(_glm_heard, "GlmAsrEncoder"),
}
