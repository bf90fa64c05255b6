"""What stands before the language model of a wrapper: a tower that reads images or sound, and what
leads from it to the text. Each is a function of the whole config's keys and the text's width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memcore.models.config import Keys
from memcore.models.families.counted.parts import Part, part
from memcore.models.sizes import convolution, linear, norm

Connector = Callable[[Keys, int], int]
VISION, AUDIO = "vision_config", "audio_config"
CLIP, SIGLIP = "clip_vision_model", "siglip_vision_model"
CLIP_LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
              "num_attention_heads": 16, "image_size": 336, "patch_size": 14}  # fmt: skip
SIGLIP_384 = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 26,
              "num_attention_heads": 16, "image_size": 384, "patch_size": 14,
              "vision_use_head": False}  # fmt: skip


def _two(width: int, hidden: int, bias: bool = True, between: int = 0) -> int:
    return linear(width, between or hidden, bias) + linear(between or hidden, hidden, bias)


def _read(k: Keys, usual: int = 1) -> int:
    """How many layers of the tower are read."""
    given = k.config.get("vision_feature_layer")
    return len(given) if isinstance(given, (list, tuple)) else 1 if given is not None else usual


def _joined(k: Keys, width: int, key: str = "downsample_factor") -> int:
    """Patches that lie side by side as one."""
    return width * k.count(key, 2, 1000) ** 2


def _llava(kind: str, usual: dict[str, Any], more: int = 0, towers: int = 1) -> Connector:
    """LLaVA's two layers. more: rows that mark the end of a line; towers: of one kind."""

    def count(k: Keys, hidden: int) -> int:
        tower = part(k, VISION, kind, usual)
        width = tower.count("hidden_size", 768) * _read(k)
        bias = k.flag("multimodal_projector_bias", True)
        return towers * tower.parameters + _two(width, hidden, bias) + more * hidden

    return count


def _vip(k: Keys, hidden: int) -> int:
    tower = part(k, VISION, CLIP, CLIP_LARGE)
    width = tower.count("hidden_size", 768) * _read(k, 5)
    return tower.parameters + norm(width) + _two(width, hidden)


def _aya(k: Keys, hidden: int) -> int:
    tower = part(k, VISION, SIGLIP, SIGLIP_384 | {"num_attention_heads": 14})
    width = _joined(k, tower.count("hidden_size", 768))
    between = k.count_or("alignment_intermediate_size", hidden)
    return tower.parameters + norm(width) + linear(width, between) + linear(between // 2, hidden)


def _cohere2(k: Keys, hidden: int) -> int:
    usual = SIGLIP_384 | {"intermediate_size": 3072, "image_size": 512, "num_hidden_layers": 27,
                          "num_attention_heads": 12, "patch_size": 16,
                          "vision_use_head": True}  # fmt: skip
    tower = part(k, VISION, SIGLIP, usual)
    width = _joined(k, tower.count("hidden_size", 768))
    between = k.count("alignment_intermediate_size", 36_864)
    return tower.parameters + linear(width, between) + linear(between // 2, hidden)


def _deepseek(k: Keys, hidden: int) -> int:
    tower = part(k, VISION, SIGLIP)
    return tower.parameters + _two(tower.count("hidden_size", 768), hidden)


def _lfm2(k: Keys, hidden: int) -> int:
    tower = part(k, VISION, "siglip2_vision_model")
    width = _joined(k, tower.count("hidden_size", 768))
    between, bias = k.count("projector_hidden_size", 2560), k.flag("projector_bias", True)
    normed = norm(width) if k.flag("projector_use_layernorm", True) else 0
    return tower.parameters + normed + _two(width, hidden, bias, between)


def _merging(tower: Part, hidden: int, merge: int, bias: bool) -> int:
    """Mistral 3's: a norm, a product that joins patches, and two layers."""
    width = tower.count("hidden_size", 1024)
    return tower.parameters + width + merge**2 * width * width + _two(width, hidden, bias)


def _lighton(k: Keys, hidden: int) -> int:
    tower = part(k, VISION, "pixtral", {"patch_size": 14})
    return _merging(tower, hidden, k.count("spatial_merge_size", 2), False)


def _paddle(k: Keys, hidden: int) -> int:
    tower = part(k, VISION, "paddleocr_vl_vision")
    width = tower.count("hidden_size", 1152)
    joined = _joined(tower.keys, width, "spatial_merge_size")
    return tower.parameters + norm(width) + _two(joined, hidden, True, joined)


def _idefics2(k: Keys, hidden: int) -> int:
    """A gated MLP into the text's width, and layers in which some latents read all patches."""
    tower, text, own = (
        part(k, VISION, "idefics2_vision"),
        k.within("text_config"),
        k.within("perceiver_config"),
    )
    width, inner = tower.count("hidden_size", 768), text.count("intermediate_size", 14_336)
    asks = own.count("resampler_n_heads", 16) * own.count("resampler_head_dim", 96)
    kv = own.count("num_key_value_heads", 4) * own.count("resampler_head_dim", 96)
    layer = 2 * hidden * (asks + kv) + 3 * hidden + 12 * hidden**2
    found = tower.parameters + 2 * width * inner + inner * hidden
    found += own.count("resampler_n_latents", 64) * hidden + hidden
    return found + own.count("resampler_depth", 3) * layer


def _aria(k: Keys, hidden: int) -> int:
    """Queries that read patches, as many as an image of the most patches has."""
    tower = part(k, VISION, "idefics3_vision")
    width, given = tower.count("hidden_size", 1152), k.config.get("projector_patch_to_query_dict")
    rows = [256]
    if isinstance(given, dict) and given:
        own = k.within("projector_patch_to_query_dict")
        rows = [own.count(patches, 256) for patches in given]
        k.absorb("projector_patch_to_query_dict", own)
    hidden = k.within("text_config").count("hidden_size", 4096)
    attends = 3 * width**2 + 5 * linear(width, width) + 3 * norm(width)
    return tower.parameters + max(rows) * width + attends + width * hidden + hidden**2


def _got(k: Keys, hidden: int) -> int:
    tower = part(k, VISION, "got_ocr2_vision")
    out = tower.count("output_channels", 256)
    return (
        tower.parameters + convolution(out, 2 * out, 3, 3, bias=False)
        + convolution(2 * out, hidden, 3, 3, bias=False) + linear(hidden, hidden)
    )  # fmt: skip


def _ovis(k: Keys, hidden: int) -> int:
    """Words of its own for patches, each a mixture of a visual vocabulary."""
    own = k.within(VISION)
    width, inner = own.count("hidden_size", 1024), own.count("intermediate_size", 2816)
    rows, columns = own.pair("patch_size", 14)
    high, broad = own.pair("image_size", 224)
    bias, fed = own.flag("qkv_bias", False), own.flag("mlp_bias", False)
    layer = 4 * linear(width, width, bias) + 2 * width
    layer += 2 * linear(width, inner, fed) + linear(inner, width, fed)
    words = own.count("vocab_size", 16_384)
    told = words - own.count("num_visual_indicator_tokens", 5)
    found = linear(own.count("num_channels", 3) * rows * columns, width) + 2 * width
    found += (high // rows) * (broad // columns) * width + own.count(
        "num_hidden_layers", 24
    ) * layer
    found += width * own.count("hidden_stride", 1) ** 2 * told + norm(told)
    found += words * k.count("hidden_size", 1536)
    k.absorb(VISION, own)
    return found


def _fuyu(k: Keys, hidden: int) -> int:
    return linear(k.count("patch_size", 30) ** 2 * k.count("num_channels", 3), hidden)


def _alone(kind: str) -> Connector:
    """A tower that ends in the text's width."""
    return lambda k, hidden: part(k, VISION, kind).parameters


def _asked(kind: str) -> Connector:
    """A Q-Former between the tower and the text."""

    def count(k: Keys, hidden: int) -> int:
        tower = part(k, VISION, f"{kind}_vision_model")
        read = {"encoder_hidden_size": tower.count("hidden_size", 1408)}  # whatever a file says
        former = part(k, "qformer_config", f"{kind}_qformer", own=read)
        width = former.count("hidden_size", 768)
        rows = k.count("num_query_tokens", 32) * width
        return tower.parameters + former.parameters + rows + linear(width, hidden)

    return count


def _heard(kind: str, layers: int, width: str, bias: bool | str, wider: int = 1) -> Connector:
    """What hears, and one layer or two. width: the key of what these read; wider: than the text is
    what lies between them."""

    def count(k: Keys, hidden: int) -> int:
        tower = part(k, AUDIO, kind)
        wide = tower.count(width, 5120 if width == "intermediate_size" else 1280)
        biased = k.flag(bias, True) if isinstance(bias, str) else bias
        if layers == 1:
            return tower.parameters + linear(wide, hidden, biased)
        return tower.parameters + _two(wide, hidden, biased, wider * hidden)

    return count


FLAMINGO = _heard("audioflamingo3_encoder", 2, "hidden_size", "projector_bias")
# Wrappers whose head is the embedding where they say so, whatever their text says.
ALONE = {"audioflamingo3", "musicflamingo", "qwen2_audio", "voxtral"}
# Wrappers whose head is the embedding where neither they nor their text say.
TIED = {"aya_vision", "cohere2_vision", "deepseek_vl", "glmasr", "got_ocr2", "lfm2_vl",
        "lighton_ocr", "ovis2", "paddleocr_vl"}  # fmt: skip
# model_type -> that of its text where the file names none, and what stands before that.
CONNECTORS: dict[str, tuple[str, Connector]] = {
    "aria": ("aria_text", _aria),
    "aya_vision": ("cohere2", _aya),
    "cohere2_vision": ("cohere2", _cohere2),
    "deepseek_vl": ("llama", _deepseek),
    "fuyu": ("persimmon", _fuyu),
    "glm4v": ("glm4v_text", _alone("glm4v_vision")),
    "glm46v": ("glm4v_text", _alone("glm4v_vision")),
    "glmga": ("glm4v_text", _alone("glm4v_vision")),
    "glm4v_moe": ("glm4v_moe_text", _alone("glm4v_moe_vision")),
    "glm_ocr": ("glm_ocr_text", _alone("glm_ocr_vision")),
    "got_ocr2": ("qwen2", _got),
    "idefics2": ("mistral", _idefics2),
    "lfm2_vl": ("lfm2", _lfm2),
    "lighton_ocr": ("qwen3", _lighton),
    "llava_next_video": ("llama", _llava(CLIP, CLIP_LARGE, more=1)),
    "llava_onevision": ("qwen2", _llava(SIGLIP, SIGLIP_384, more=1)),
    "video_llava": ("llama", _llava(CLIP, CLIP_LARGE | {"image_size": 224}, towers=2)),
    "vipllava": ("llama", _vip),
    "llava": ("llama", _llava(CLIP, CLIP_LARGE)),  # with a tower or a text that is not planned
    "ovis2": ("qwen2", _ovis),
    "paddleocr_vl": ("paddleocr_vl_text", _paddle),
    "blip-2": ("opt", _asked("blip_2")),
    "instructblip": ("opt", _asked("instructblip")),
    "instructblipvideo": ("opt", _asked("instructblip")),
    "audioflamingo3": ("qwen2", FLAMINGO),
    "musicflamingo": ("qwen2", FLAMINGO),
    "glmasr": ("llama", _heard("glmasr_encoder", 2, "intermediate_size", True, wider=2)),
    "qwen2_audio": ("qwen2", _heard("qwen2_audio_encoder", 1, "d_model", True)),
    "voxtral": ("llama", _heard("voxtral_encoder", 2, "intermediate_size", False)),
}  # fmt: skip
