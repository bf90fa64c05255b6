"""Wrappers: models whose config.json has a language model of a known family inside, as text_config.

The language model is planned as if it stood alone. What reads images, sound or video before it is
left out: its weights are counted where its own config.json is known, and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memcore.errors import Issue, PlanError, shown
from memcore.models.config import Keys
from memcore.models.families.counted.connectors import ALONE, CONNECTORS, TIED
from memcore.models.sizes import embedded, encoder_layer, linear, patched
from memcore.units import bytes_text

TEXT, VISION = "text_config", "vision_config"
# Where a language model stands in a wrapper: as transformers has it, in InternVL's own code, in
# DeepSeek-VL2's, in VibeVoice's.
PLACES = (TEXT, "llm_config", "language_config", "decoder_config")
# What a wrapper says for its whole checkpoint, and its text_config does not say again.
OF_THE_WHOLE = (
    "quantization_config",
    "hf_quant_config",
    "compression_config",
    "quantization",
    "dtype",
    "torch_dtype",
)
# Whose head is the embedding where the whole or its text says so; else the whole's word counts.
EITHER = ("llava", "llava_next_video", "llava_onevision", "minimax_m3_vl", "video_llama_3",
          "fast_vlm")  # fmt: skip
# Classes that write text.
SUFFIXES = (
    *("ForConditionalGeneration", "ForCausalLM", "LMHeadModel", "InternVLChatModel"),
    *("H2OVLChatModel", "NVLM_D_Model", "Ovis", "UltravoxModel"),
)


@dataclass(frozen=True, slots=True)
class Wrapper:
    """One whose tower is known.

    text      model_type of its text_config where that names none
    weights   parameters of the tower and of what leads from it to the text, of its keys and the
              text's hidden size
    aliases   other names of keys of its vision_config, as in Family.aliases
    flat      its text's keys may stand beside vision_config, with no text_config around them
    ties      whether head and embedding are one is said by the whole alone, false by default
    towerless without a vision_config there is no tower
    usual     what a file without a vision_config has there
    beside    keys of the whole that say sizes of the tower's end
    assumes   keys of its text that are not its family's defaults
    tied      its head is the embedding where neither the whole nor its text says
    whole     weights are of the whole's keys, not of its vision_config's
    """

    text: str
    weights: Callable[[Keys, int], int]
    aliases: Mapping[str, str] = field(default_factory=dict)
    flat: bool = False
    ties: bool = False
    towerless: bool = False
    usual: Mapping[str, Any] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    assumes: Mapping[str, Any] = field(default_factory=dict)
    tied: bool = False
    whole: bool = False


# Qwen's Omni models: one that reads and thinks, and others that speak.
THINKER = "thinker_config"
NO_TALKER = "What speaks (its talker, and what makes sound of that) is left out, its weights too."


def thinker(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of the model that thinks. Raises PlanError."""
    inner = config[THINKER]
    if not isinstance(inner, Mapping):
        message = f"must be a config.json of its own, in braces, not {shown(inner)}"
        raise PlanError([Issue(f"model.{THINKER}", message)])
    whole = {key: config[key] for key in OF_THE_WHOLE if key in config}
    own = {key: value for key, value in inner.items() if key != "architectures"}
    if isinstance(own.get(TEXT), Mapping):  # whose head is tied or not as the whole says
        own[TEXT] = {**own[TEXT], "tie_word_embeddings": own.get("tie_word_embeddings") or False}
    return {"model_type": f"{config['model_type']}_thinker", **whole, **own}


def is_wrapper(config: Mapping[str, Any]) -> bool:
    return place(config) in config or _known(config) is not None


def _known(config: Mapping[str, Any]) -> Wrapper | None:
    kind = config["model_type"]
    return KNOWN.get(kind) or KNOWN_BY_CODE.get(kind)


def place(config: Mapping[str, Any]) -> str:
    """The key that the language model stands under."""
    return next((key for key in PLACES if key in config), TEXT)


def opened(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of the language model inside, by itself. Raises PlanError."""
    if MIXED in config:
        return _of_llava(config)
    known, where = _known(config), place(config)
    text = config.get(where)
    if text is None:
        flat = known is not None and known.flat
        beside = ("model_type", VISION)
        text = {k: v for k, v in config.items() if k not in beside} if flat else {}
    if not isinstance(text, Mapping):
        message = f"must be a config.json of its own, in braces, not {shown(text)}"
        raise PlanError([Issue(f"model.{where}", message)])
    classes = config.get("architectures")
    for name in classes if isinstance(classes, list) else []:
        if not isinstance(name, str) or not name.endswith(SUFFIXES):
            message = f"{shown(name)} is not planned; of a model with a {where}, those that "
            message += f"end in {' or '.join(SUFFIXES)} are. To plan the language model in this "
            message += f"{shown(config['model_type'])}, give its {where} as the config.json"
            raise PlanError([Issue("model.architectures", message)])
    inner = {"model_type": known.text, **known.assumes, **text} if known else dict(text)
    for key in OF_THE_WHOLE:
        if key in config:
            inner.setdefault(key, config[key])
    if config["model_type"] == "paligemma":  # of a prompt with its image, which is left out
        inner.pop("use_bidirectional_attention", None)
    if classes:  # the whole has a head, whatever the part in it is called
        inner.pop("architectures", None)
    tied = config.get("tie_word_embeddings")
    if known and known.ties:
        inner["tie_word_embeddings"] = False if tied is None else tied
    elif tied is not None and not (
        config["model_type"] in EITHER and inner.get("tie_word_embeddings")
    ):
        inner["tie_word_embeddings"] = tied
    elif known and known.tied:
        inner.setdefault("tie_word_embeddings", True)
    return inner


# LLaVA's own files (github.com/haotian-liu/LLaVA) have the language model's keys beside those of
# its tower, and say by their class which model that is.
MIXED = "mm_vision_tower"
MIXTURES = {"Llama": "llama", "Mistral": "mistral", "Qwen": "qwen2", "Mpt": "mpt"}


def _of_llava(config: Mapping[str, Any]) -> dict[str, Any]:
    listed = config.get("architectures")
    named = str(listed[0]) if isinstance(listed, list) and listed else ""
    word = named.removeprefix("Llava").removesuffix("ForCausalLM")
    if word not in MIXTURES or not named.startswith("Llava"):
        known = ", ".join(f"Llava{key}ForCausalLM" for key in MIXTURES)
        message = f"{shown(named)} is not known of a file with {MIXED}; {known} are"
        raise PlanError([Issue("model.architectures", message)])
    own = {k: v for k, v in config.items() if not k.startswith(("mm_", "tune_mm", "unfreeze_mm"))}
    del own["architectures"]
    return {**own, "model_type": MIXTURES[word]}


def beside(config: Mapping[str, Any], hidden: int) -> int | None:
    """Parameters of the part that is not planned; None where nobody knows, 0 where there is none.
    Raises PlanError.

    hidden   width of the language model
    """
    known, given = _known(config), config.get(VISION)
    if known is None:
        return None
    if given is not None and not isinstance(given, Mapping):
        message = f"must be a config.json of its own, in braces, not {shown(given)}"
        raise PlanError([Issue(f"model.{VISION}", message)])
    if given is None and known.towerless:
        return 0
    if known.whole:
        keys, within = Keys(config, known.aliases), ""
    else:
        own = known.usual if given is None else given
        also = {key: config[key] for key in known.beside if key in config}
        keys, within = Keys({**own, **also}, known.aliases), f"{VISION}."
    weights = known.weights(keys, hidden)
    if keys.issues:
        inside = [issue.field.removeprefix("model.") for issue in keys.issues]
        raise PlanError(
            Issue(f"model.{within}{name}", issue.message)
            for name, issue in zip(inside, keys.issues, strict=True)
        )
    return weights


def note(config: Mapping[str, Any], weights: int | None, text: int) -> str:
    """What a reader should know about the part that is not planned.

    weights   its parameters, as `beside` has them
    text      those of the language model
    """
    kind, known = config["model_type"], _known(config)
    said = f"Of {kind} the language model is planned, as its config.json describes it. "
    if known is None or weights is None:
        return said + "What reads images or sound before it is left out, its weights too."
    if not weights:
        return f"{said}It has no vision_config, and so nothing that reads images."
    hears = config.get("audio_config")
    reads = "hears sound" if hears and known.whole else "reads images"
    whole = f" The whole has {text + weights:,}."
    if hears and not known.whole:
        whole = " What hears sound is left out too, its weights not counted."
    return (
        f"{said}What {reads} before it is left out: {weights:,} parameters, "
        f"{bytes_text(2 * weights)} in 16 bits, and what they compute.{whole}"
    )


def _qwen(k: Keys, hidden: int) -> int:
    """Qwen3_5VisionModel: patches of two frames, learned positions, and a merger of patches."""
    width, depth = k.count("hidden_size", 1152), k.count("depth", 27, 100_000)
    merged, out = _merged(k, width), k.count("out_hidden_size", 3584)
    return (
        linear(_patch(k, 16), width)
        + k.count("num_position_embeddings", 2304) * width
        + depth * encoder_layer(width, k.count("intermediate_size", 4304))
        + _merger(width, merged, out)
    )


def _qwen3_vl(k: Keys, hidden: int) -> int:
    """Qwen3VLVisionModel: the same, with a merger for each layer whose result the text reads."""
    deep = k.config.get("deepstack_visual_indexes", [8, 16, 24])
    if not isinstance(deep, list):
        k.fail("deepstack_visual_indexes", "must be a list of the numbers of layers")
        deep = []
    merged = _merged(k, k.count("hidden_size", 1152))
    return _qwen(k, hidden) + len(deep) * _merger(merged, merged, k.count("out_hidden_size", 3584))


def _qwen2(k: Keys, hidden: int) -> int:
    """Qwen2VisionTransformerPretrainedModel. Its hidden_size is the text's."""
    width, depth = k.count("embed_dim", 1280), k.count("depth", 32, 100_000)
    return (
        _patch(k, 14) * width
        + depth * encoder_layer(width, width * k.count("mlp_ratio", 4, 1000))
        + _merger(width, _merged(k, width), k.count("hidden_size", 3584))
    )


def _qwen2_5(k: Keys, hidden: int) -> int:
    """Qwen2_5_VisionTransformerPretrainedModel: RMSNorm, and gated MLPs with biases."""
    width, depth = k.count("hidden_size", 3584), k.count("depth", 32, 100_000)
    inner = k.count("intermediate_size", 3420)
    layer = 4 * linear(width, width) + 2 * linear(width, inner) + linear(inner, width)
    merger = _merger(width, _merged(k, width), k.count("out_hidden_size", 3584)) - width
    return _patch(k, 14) * width + depth * (layer + 2 * width) + merger


def _exaone4_5(k: Keys, hidden: int) -> int:
    """Exaone4_5_VisionModel: Qwen2.5-VL's, whose layers have fewer heads of keys and values."""
    width, heads = k.count("hidden_size", 3584), k.count("num_heads", 16, 10**6)
    fewer = heads - k.count("num_key_value_heads", 8, 10**6)
    less = 2 * linear(width, width // heads * fewer)
    return _qwen2_5(k, hidden) - k.count("depth", 32, 100_000) * less


def _patch(k: Keys, side: int) -> int:
    """Values of a patch of some frames."""
    height, wide = k.pair("patch_size", side)
    frames = k.count("temporal_patch_size", 2, 1000)
    return k.count("in_channels", 3, 1000) * frames * height * wide


def _merged(k: Keys, width: int) -> int:
    return width * k.count("spatial_merge_size", 2, 1000) ** 2


def _merger(normed: int, merged: int, out: int) -> int:
    """A norm with a bias, and two layers of an MLP."""
    return 2 * normed + linear(merged, merged) + linear(merged, out)


def _llama4(k: Keys, hidden: int) -> int:
    """Llama4VisionModel, its adapter, and Llama4MultiModalProjector."""
    width, depth = k.count("hidden_size", 768), k.count("num_hidden_layers", 34, 100_000)
    (height, wide), (rows, columns) = k.pair("image_size", 448), k.pair("patch_size", 14)
    patches = (height // rows) * (wide // columns)
    inner = k.count("intermediate_size", 5632)
    out = k.count("projector_output_dim", 4096)
    bias = k.flag("multi_modal_projector_bias", False)
    return (
        linear(k.count("num_channels", 3, 1000) * rows * columns, width, bias=False)
        + (1 + patches + 1) * width
        + depth * encoder_layer(width, inner)
        + 4 * width
        + inner * k.count("projector_input_dim", 4096)
        + out * out
        + linear(k.count("vision_output_dim", 7680), hidden, bias)
    )


def _kimi(k: Keys, hidden: int) -> int:
    """Kimi_K25VisionModel (MoonViT), and Kimi_K25MultimodalProjection."""
    width, depth = k.count("hidden_size", 1152), k.count("num_hidden_layers", 27, 100_000)
    rows, columns = k.pair("patch_size", 14)
    down, across = k.pair("merge_kernel_size", 2)
    merged = width * down * across
    return (
        linear(3 * rows * columns, width)
        + k.count("pos_emb_height", 64) * k.count("pos_emb_width", 64) * width
        + depth * encoder_layer(width, k.count("intermediate_size", 4304))
        + 4 * width
        + linear(merged, merged)
        + linear(merged, hidden)
    )


def _minimax(k: Keys, hidden: int) -> int:
    """MiniMaxM3VLVisionModel, and MiniMaxM3VLMultiModalProjector."""
    width, depth = k.count("hidden_size", 1280), k.count("num_hidden_layers", 32, 100_000)
    patch, between = k.count("patch_size", 14), k.count("projector_hidden_size", 6144)
    values = k.count("num_channels", 3) * k.count("temporal_patch_size", 2) * patch * patch
    merged = hidden * k.count("spatial_merge_size", 2) ** 2
    return (
        values * width
        + 2 * width
        + depth * encoder_layer(width, k.count("intermediate_size", 5120))
        + linear(width, between)
        + linear(merged, between)
        + 2 * linear(between, hidden)
    )


def _mllama(k: Keys, hidden: int) -> int:
    """MllamaVisionModel: images in tiles, each with positions of its own for every shape that some
    of them make; layers without biases in their attention, and gated ones behind them; and the
    linear layer into the text's width."""
    width, tiles = k.count("hidden_size", 1280), k.count("max_num_tiles", 4, 1000)
    (height, wide), (rows, columns) = k.pair("image_size", 448), k.pair("patch_size", 14)
    patches = (height // rows) * (wide // columns) + 1
    ratios = k.config.get("supported_aspect_ratios")
    shapes = len(ratios) + 1 if isinstance(ratios, list) else 9
    inner = k.count("intermediate_size", 5120)
    layer = 4 * width**2 + linear(width, inner) + linear(inner, width) + 4 * width
    depth, gated = k.count("num_hidden_layers", 32, 100_000), k.count("num_global_layers", 8, 10**5)
    positions = 1 + patches * width + shapes * tiles * patches * width
    return (
        k.count("num_channels", 3, 1000) * rows * columns * width
        + width
        + positions
        + 2 * (1 + shapes * tiles * width)
        + 4 * width
        + (depth + gated) * layer
        + 2 * gated
        + linear(k.count("vision_output_dim", 7680), hidden)
    )


def _gemma4(k: Keys, hidden: int) -> int:
    """Gemma4VisionModel, and Gemma4MultimodalEmbedder. Positions are learned by row and by column;
    queries and keys are normed, and each part before and behind."""
    width, depth = k.count("hidden_size", 768), k.count("num_hidden_layers", 16, 100_000)
    inner, dim = k.count("intermediate_size", 3072), k.count("head_dim", 64, 10**6)
    heads = k.count("num_attention_heads", 12, 10**6)
    kv = k.count("num_key_value_heads", 12, 10**6)
    rows, columns = k.pair("patch_size", 16)
    k.refuse("attention_bias", False, None)
    layer = 2 * width * dim * (heads + kv) + 3 * width * inner + 4 * width + 2 * dim
    positions = 2 * k.count("position_embedding_size", 10_240) * width
    return (
        linear(3 * rows * columns, width, bias=False) + positions + depth * layer + width * hidden
    )


def _two_layers(width: int, hidden: int, bias: bool = True) -> int:
    return linear(width, hidden, bias) + linear(hidden, hidden, bias)


def _pixtral(k: Keys, hidden: int) -> int:
    """PixtralVisionModel: Llama's layers on patches; Mistral3MultiModalProjector."""
    width, depth = k.count("hidden_size", 1024), k.count("num_hidden_layers", 24, 100_000)
    rows, columns = k.pair("patch_size", 16)
    layer = 4 * width**2 + 3 * width * k.count("intermediate_size", 4096) + 2 * width
    merged = k.count("spatial_merge_size", 2, 1000) ** 2 * width
    return (
        k.count("num_channels", 3, 1000) * rows * columns * width
        + width
        + depth * layer
        + width
        + merged * width
        + _two_layers(width, hidden, k.flag("multimodal_projector_bias", False))
    )


def _clip(k: Keys, hidden: int) -> int:
    """CLIPVisionModel, LlavaNextMultiModalProjector, and the mark of an image's end of line."""
    width, depth = k.count("hidden_size", 768), k.count("num_hidden_layers", 12, 100_000)
    layers = depth * encoder_layer(width, k.count("intermediate_size", 3072))
    placed = embedded(k, width, 224, 32, bias=False, extra=1) + width
    bias = k.flag("multimodal_projector_bias", True)
    return placed + 4 * width + layers + _two_layers(width, hidden, bias) + hidden


def _siglip(k: Keys, hidden: int) -> int:
    """SiglipVisionModel, which may have a head of its own, and PaliGemmaMultiModalProjector."""
    width, depth = k.count("hidden_size", 768), k.count("num_hidden_layers", 12, 100_000)
    layer = encoder_layer(width, k.count("intermediate_size", 3072))
    pooled = width + layer - 2 * width if k.flag("vision_use_head", True) else 0  # one norm
    into = linear(width, k.count("projection_dim", 2048))
    return embedded(k, width, 224, 16) + depth * layer + 2 * width + pooled + into


def _idefics3(k: Keys, hidden: int) -> int:
    """Idefics3VisionTransformer, and Idefics3Connector, which joins patches."""
    width, depth = k.count("hidden_size", 1152), k.count("num_hidden_layers", 12, 100_000)
    layers = depth * encoder_layer(width, k.count("intermediate_size", 3072))
    joined = k.count("scale_factor", 2, 1000) ** 2 * width
    return embedded(k, width, 224, 32) + layers + 2 * width + joined * hidden


def _internvl(k: Keys, hidden: int) -> int:
    """InternVLVisionModel: a scale for each channel behind both parts of a layer; InternVL's
    projector, which joins four patches."""
    width, depth = k.count("hidden_size", 1024), k.count("num_hidden_layers", 24, 100_000)
    inner, normed = k.count("intermediate_size", 4096), k.flag("use_qk_norm", False)
    norms = width if k.config.get("norm_type") == "rms_norm" else 2 * width
    layer = (
        3 * linear(width, width, k.flag("attention_bias", False))
        + linear(width, width)
        + linear(width, inner)
        + linear(inner, width)
        + 2 * norms
        + 2 * width
        + (2 * width if normed else 0)
    )
    joined = 4 * width
    placed = embedded(k, width, 448, 14, extra=1) + width
    if not k.flag("use_absolute_position_embeddings", True):
        placed -= (patched(k, 448, 14)[0] + 1) * width
    placed += width if k.flag("use_mask_token", False) else 0
    return placed + depth * layer + 2 * joined + _two_layers(joined, hidden)


def _step(k: Keys, hidden: int) -> int:
    """Step3p7VisionModel: a scale for each channel behind both parts of a layer, two convolutions
    that halve rows and columns, and Step3p7's projector."""
    width, depth = k.count("hidden_size", 1536), k.count("num_hidden_layers", 47, 100_000)
    (height, wide), (rows, columns) = k.pair("image_size", 728), k.pair("patch_size", 14)
    ratio = k.config.get("mlp_ratio", 8960 / 1536)
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < 1000:
        k.fail("mlp_ratio", f"must be a number above 0, not {shown(ratio)}")
        ratio = 1
    return (
        linear(k.count("num_channels", 3, 1000) * rows * columns, width, bias=False)
        + (height // rows) * (wide // columns) * width
        + 2 * width
        + depth * (encoder_layer(width, int(width * ratio)) + 2 * width)
        + linear(9 * width, 2 * width)
        + linear(9 * 2 * width, 4 * width)
        + 4 * width * hidden
    )


_OF_LLAVA = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
             "image_size": 336, "patch_size": 14}  # fmt: skip

KNOWN = {
    "mistral3": Wrapper(
        "mistral", _pixtral, usual={"patch_size": 14},
        beside=("spatial_merge_size", "multimodal_projector_bias"),
    ),
    "llava_next": Wrapper("llama", _clip, usual=_OF_LLAVA, beside=("multimodal_projector_bias",)),
    "paligemma": Wrapper(
        "gemma", _siglip,
        usual={"hidden_size": 1152, "intermediate_size": 4096, "num_hidden_layers": 27,
               "image_size": 224, "patch_size": 14, "vision_use_head": False},
    ),
    "idefics3": Wrapper("llama", _idefics3, beside=("scale_factor",)),
    "smolvlm": Wrapper("llama", _idefics3, beside=("scale_factor",)),
    "internvl": Wrapper("qwen2", _internvl),
    "step3p7": Wrapper(
        "step3p5",
        _step,
        {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"},
        flat=True,
        towerless=True,
    ),
    "mllama": Wrapper("mllama_text_model", _mllama),
    "gemma4": Wrapper("gemma4_text", _gemma4, towerless=True),
    "minimax_m3_vl": Wrapper(
        "minimax_m3_vl_text", _minimax, beside=("projector_hidden_size",)
    ),
    "qwen2_vl": Wrapper("qwen2_vl_text", _qwen2, flat=True),
    "qwen2_5_vl": Wrapper("qwen2_5_vl_text", _qwen2_5, flat=True),
    "exaone4_5": Wrapper("exaone4", _exaone4_5),
    "qwen3_vl": Wrapper("qwen3_vl_text", _qwen3_vl, ties=True),
    "qwen3_vl_moe": Wrapper("qwen3_vl_moe_text", _qwen3_vl, ties=True),
    "qwen3_5": Wrapper("qwen3_5_text", _qwen),
    "qwen3_5_moe": Wrapper("qwen3_5_moe_text", _qwen),
    "qwen3_5_with_images": Wrapper("qwen3_5_text", _qwen),
    "qwen3_5_moe_with_images": Wrapper("qwen3_5_moe_text", _qwen),
    "llama4": Wrapper("llama4_text", _llama4),
    "kimi_k25": Wrapper(
        "deepseek_v3",
        _kimi,
        {
            "vt_hidden_size": "hidden_size",
            "vt_intermediate_size": "intermediate_size",
            "vt_num_hidden_layers": "num_hidden_layers",
            "init_pos_emb_height": "pos_emb_height",
            "init_pos_emb_width": "pos_emb_width",
        },
    ),
}  # fmt: skip
# The same by another name: InternVL's own code.
KNOWN_BY_CODE = {
    "internvl_chat": Wrapper(
        "qwen2", _internvl, {"qkv_bias": "attention_bias", "qk_normalization": "use_qk_norm"}
    )
}
KNOWN |= {
    kind: Wrapper(
        text,
        count,
        whole=True,
        flat=kind in ("fuyu", "paddleocr_vl"),
        ties=kind in ALONE,
        tied=kind in TIED,
        assumes={"num_key_value_heads": 8, "head_dim": 128} if kind == "voxtral" else {},
    )
    for kind, (text, count) in CONNECTORS.items()
}
