"""What reads images or videos: layers on patches, windows of them in stages, and convolutions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from memcore.models.config import Keys
from memcore.models.families.counted.family import as_many, counted, counts, depths_of, share
from memcore.models.families.family import Family, image_classes, labels
from memcore.models.sizes import attention, convolution, encoder_layer, linear, mlp, norm, patched
from memcore.tape.structure import CLASSIFICATION, EMBEDDING

MASKED_IMAGES, SEGMENTS, FOUND, PRETRAINED = "masked images", "segments", "found", "pretrained"


def _sizes(k: Keys, hidden: int = 768, inner: int = 3072, layers: int = 12) -> tuple[int, int, int]:
    """Width, width of the MLP, layers."""
    heads = k.count("num_attention_heads", 12)
    width = k.count("hidden_size", hidden)
    k.divides("hidden_size", width, "num_attention_heads", heads)
    return width, k.count("intermediate_size", inner), k.count("num_hidden_layers", layers, 100_000)


def _classes(k: Keys, width: int) -> int:
    return linear(width, labels(k)) if k.head == CLASSIFICATION else 0


def _plain(extra: int, normed: bool = True) -> Callable[[Keys], int]:
    """ViT's layers behind patches and `extra` tokens, all at learned positions."""

    def count(k: Keys) -> int:
        width, inner, layers = _sizes(k)
        patches, values = patched(k)
        bias = 0 if k.flag("qkv_bias", True) else 3 * width
        masks = width if k.flag("use_mask_token", False) else 0
        return (
            linear(values, width)
            + (patches + extra + extra) * width
            + masks
            + layers * (encoder_layer(width, inner) - bias)
            + norm(width)
            + _classes(k, width)
        )

    return count


def _mae(k: Keys) -> int:
    """ViT-MAE, whose decoder makes the patches that are left out."""
    width, _, _ = _sizes(k)
    found = _plain(1)(k)
    if k.head != PRETRAINED:
        return found
    patches, values = patched(k)
    inside, inner = k.count("decoder_hidden_size", 512), k.count("decoder_intermediate_size", 2048)
    bias = 0 if k.flag("qkv_bias", True) else 3 * inside
    return (
        found
        + linear(width, inside)
        + (1 + patches + 1) * inside
        + k.count("decoder_num_hidden_layers", 8) * (encoder_layer(inside, inner) - bias)
        + norm(inside)
        + linear(inside, values)
    )


def _data2vec(k: Keys) -> int:
    """As BEiT, but that the model by itself takes no mean, and has no norm of it."""
    bare = k.head == EMBEDDING and k.flag("use_mean_pooling", True)
    return _beit(k) - (norm(k.count("hidden_size", 768)) if bare else 0)


def _beit(k: Keys) -> int:
    """BEiT: a scale for each channel behind both parts of a layer, biases of where
    patches lie to one another; keys have no bias."""
    width, inner, layers = _sizes(k)
    patches, values = patched(k)
    (height, wide), (rows, columns) = k.pair("image_size", 224), k.pair("patch_size", 16)
    placed = (2 * (height // rows) - 1) * (2 * (wide // columns) - 1) + 3
    placed *= k.count("num_attention_heads", 12)
    value = k.config.get("layer_scale_init_value", 0.1)
    scaled = 2 * width if isinstance(value, (int, float)) and value > 0 else 0
    layer = encoder_layer(width, inner) - width + scaled
    layer += placed if k.flag("use_relative_position_bias", False) else 0
    found = linear(values, width) + width + layers * layer
    found += (patches + 1) * width if k.flag("use_absolute_position_embeddings", False) else 0
    found += width if k.flag("use_mask_token", False) else 0
    found += placed if k.flag("use_shared_relative_position_bias", False) else 0
    k.flag("use_mean_pooling", True)  # one norm, before or behind the mean
    found += norm(width)
    if k.head == MASKED_IMAGES:
        found += linear(width, k.count("vocab_size", 8192))
    return found + _classes(k, width)


def _video(k: Keys) -> int:
    """VideoMAE, whose positions are not learned; keys have no bias."""
    width, inner, layers = _sizes(k)
    _, values = patched(k)
    frames = k.count("tubelet_size", 2)
    bias = 2 if k.flag("qv_bias", True) else 0

    def layer(wide: int, within: int) -> int:
        return encoder_layer(wide, within) - (3 - bias) * wide

    found = linear(values * frames, width) + layers * layer(width, inner)
    if k.head == PRETRAINED:
        wide = k.count("decoder_hidden_size", 384)
        within = k.count("decoder_intermediate_size", 1536)
        found += width * wide + wide + norm(wide) + linear(wide, values * frames)
        found += k.count("decoder_num_hidden_layers", 4) * layer(wide, within)
    if k.head == CLASSIFICATION or not k.flag("use_mean_pooling", True):
        found += norm(width)
    return found + _classes(k, width)


def _vivit(k: Keys) -> int:
    width, inner, layers = _sizes(k)
    (height, wide) = k.pair("image_size", 224)
    tube = counts(k, "tubelet_size", (2, 16, 16))
    frames, rows, columns = tube if len(tube) == 3 else (2, 16, 16)
    patches = (k.count("num_frames", 32) // frames) * (height // rows) * (wide // columns)
    values = k.count("num_channels", 3) * frames * rows * columns
    bias = 0 if k.flag("qkv_bias", True) else 3 * width
    out = k.count_or("pooler_output_size", width)
    pooled = linear(width, out) if k.head == EMBEDDING else 0
    return (
        linear(values, width) + (patches + 2) * width
        + layers * (encoder_layer(width, inner) - bias) + norm(width) + pooled + _classes(k, width)
    )  # fmt: skip


def _timesformer(k: Keys) -> int:
    """Attention over time, with a layer behind it, before that over patches."""
    width, inner, layers = _sizes(k)
    patches, values = patched(k)
    bias = 0 if k.flag("qkv_bias", True) else 3 * width
    layer = encoder_layer(width, inner) - bias
    times = 0
    if k.config.get("attention_type", "divided_space_time") == "divided_space_time":
        layer += norm(width) + attention(width) - bias + linear(width, width)
    if k.config.get("attention_type", "divided_space_time") != "space_only":
        times = k.count("num_frames", 8) * width
    return (
        linear(values, width) + (patches + 2) * width + times + layers * layer + norm(width)
        + _classes(k, width)
    )  # fmt: skip


def _yolos(k: Keys) -> int:
    """ViT with a token for each thing that can be found."""
    width, inner, layers = _sizes(k)
    (height, wide) = _pair_of(k, "image_size", (512, 864))
    (rows, columns) = k.pair("patch_size", 16)
    values = k.count("num_channels", 3) * rows * columns
    tokens = k.count("num_detection_tokens", 100)
    rows_of = 1 + tokens + (height // rows) * (wide // columns)
    bias = 0 if k.flag("qkv_bias", True) else 3 * width
    middle = (layers - 1) * rows_of * width if k.flag("use_mid_position_embeddings", True) else 0
    found = (
        linear(values, width) + (1 + tokens + rows_of) * width + middle
        + layers * (encoder_layer(width, inner) - bias) + norm(width)
    )  # fmt: skip
    if k.head == FOUND:
        found += 4 * linear(width, width) + linear(width, labels(k) + 1) + linear(width, 4)
    else:
        found += linear(width, width)
    return found


def _swin_sizes(k: Keys) -> tuple[list[tuple[int, int, int]], int]:
    """Of each stage its width, layers and heads; and the side of a window."""
    width, depths = k.count("embed_dim", 96), depths_of(k, 2, 2, 6, 2)
    heads = counts(k, "num_heads", (3, 6, 12, 24))
    if not as_many(k, depths=depths, num_heads=heads):
        return [(width, 1, 1)], 1
    stages = [(width << i, *each) for i, each in enumerate(zip(depths, heads, strict=False))]
    return stages, k.count("window_size", 7)


def _swin(second: bool, normed: bool = True) -> Callable[[Keys], int]:
    """Windows of patches, in stages of which each joins four patches of the one before."""

    def count(k: Keys) -> int:
        stages, side = _swin_sizes(k)
        width = stages[0][0]
        patches, values = patched(k, patch=4)
        bias, ratio = k.flag("qkv_bias", True), share(k, "mlp_ratio", 4.0)
        found = linear(values, width) + norm(width)
        placed = k.flag("use_absolute_embeddings", False)
        found += (patches + second) * width if placed else 0
        found += width if k.head == MASKED_IMAGES else 0
        for i, (wide, layers, heads) in enumerate(stages):
            layer = encoder_layer(wide, int(wide * ratio)) - (0 if bias else 3 * wide)
            if second:  # keys have no bias; of where a patch lies an MLP makes a number
                layer += heads + linear(2, 512) + 512 * heads - (wide if bias else 0)
            else:
                layer += (2 * side - 1) ** 2 * heads
            found += layers * layer
            if i < len(stages) - 1:
                found += 4 * wide * 2 * wide + norm(2 * wide if second else 4 * wide)
        last = stages[-1][0]
        found += norm(last) if normed else 0
        if k.head == MASKED_IMAGES:
            stride = k.count("encoder_stride", 32)
            found += linear(last, stride**2 * k.count("num_channels", 3))
        return found + _classes(k, last)

    return count


def _segformer(k: Keys) -> int:
    """Stages whose keys and values are of fewer tokens, and MLPs with a convolution."""
    widths, depths = counts(k, "hidden_sizes", (32, 64, 160, 256)), depths_of(k, 2, 2, 2, 2)
    shrinks = counts(k, "sr_ratios", (8, 4, 2, 1))
    sides, ratios = counts(k, "patch_sizes", (7, 3, 3, 3)), k.config.get("mlp_ratios", (4,) * 4)
    if not isinstance(ratios, (list, tuple)) or any(
        not isinstance(r, (int, float)) or not 0 < r < 1000 for r in ratios
    ):
        k.fail("mlp_ratios", "must be a list of numbers above 0")
        ratios = (4,) * 4
    k.count("num_encoder_blocks", 4)
    if not as_many(k, depths=depths, hidden_sizes=widths, sr_ratios=shrinks, patch_sizes=sides):
        return 1
    before, found = k.count("num_channels", 3), 0
    for width, layers, shrink, side, ratio in zip(widths, depths, shrinks, sides, ratios,
                                                  strict=False):  # fmt: skip
        inner = max(1, int(width * ratio))
        layer = encoder_layer(width, inner) + convolution(inner, inner, 3, 3, groups=inner)
        if shrink > 1:
            layer += convolution(width, width, shrink, shrink) + norm(width)
        found += convolution(before, width, side, side) + 2 * norm(width) + layers * layer
        before = width
    if k.head == SEGMENTS:
        out = k.count("decoder_hidden_size", 256)
        found += sum(linear(width, out) for width in widths)
        found += linear(len(widths) * out, out, bias=False) + norm(out) + linear(out, labels(k))
    return found + _classes(k, before)


def _convnext(second: bool) -> Callable[[Keys], int]:
    """Convolutions of each channel, and MLPs."""

    def count(k: Keys) -> int:
        widths = counts(k, "hidden_sizes", (96, 192, 384, 768))
        depths = depths_of(k, 3, 3, 9, 3)
        if not as_many(k, depths=depths, hidden_sizes=widths):
            return 1
        side = k.count("patch_size", 4)
        value = k.config.get("layer_scale_init_value", 1e-6)
        scaled = not second and isinstance(value, (int, float)) and value > 0
        found = convolution(k.count("num_channels", 3), widths[0], side, side) + norm(widths[0])
        for i, (width, layers) in enumerate(zip(widths, depths, strict=False)):
            layer = convolution(width, width, 7, 7, groups=width) + norm(width)
            layer += mlp(width, 4 * width) + (width if scaled else 0)
            layer += 2 * 4 * width if second else 0
            found += layers * layer
            if i:
                found += norm(widths[i - 1]) + convolution(widths[i - 1], width, 2, 2)
        return found + norm(widths[-1]) + _classes(k, widths[-1])

    return count


def _normed(width: int, into: int, side: int, groups: int = 1) -> int:
    """A convolution without a bias, and a norm of batches."""
    return convolution(width, into, side, side, bias=False, groups=groups) + norm(into)


def resnet(k: Keys, frozen: bool = False) -> tuple[int, int]:
    """Width and parameters of residual convolutions, with a narrow middle or without. frozen: the
    norms of batches are no parameters."""
    widths = counts(k, "hidden_sizes", (256, 512, 1024, 2048))
    depths, stem = depths_of(k, 3, 4, 6, 3), k.count("embedding_size", 64)
    if not as_many(k, depths=depths, hidden_sizes=widths):
        return 1, 1
    narrow = k.word("layer_type", "bottleneck", {"bottleneck": "narrow", "basic": ""})
    k.flag("downsample_in_bottleneck", False)
    early = k.flag("downsample_in_first_stage", False)

    def made(width: int, into: int, side: int) -> int:
        return _normed(width, into, side) - (norm(into) if frozen else 0)

    found, before = made(k.count("num_channels", 3), stem, 7), stem
    for i, (width, layers) in enumerate(zip(widths, depths, strict=False)):
        for j in range(layers):
            strides = j == 0 and (i > 0 or early)
            found += made(before, width, 1) if before != width or strides else 0
            middle = width // 4
            found += (
                made(before, middle, 1) + made(middle, middle, 3) + made(middle, width, 1)
                if narrow else made(before, width, 3) + made(width, width, 3)
            )  # fmt: skip
            before = width
    return before, found


def _resnet(k: Keys) -> int:
    width, found = resnet(k)
    return found + _classes(k, width)


def _mobilenet_v1(k: Keys) -> int:
    """Convolutions of each channel, and of all."""
    depth, least = share(k, "depth_multiplier", 1.0), k.count("min_depth", 8)
    width = _rounded(32 * depth, 8, least)
    found = _normed(k.count("num_channels", 3), width, 3)
    channels = 32
    for i, stride in enumerate((1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)):
        if stride == 2 or i == 0:
            channels *= 2
        into = _rounded(channels * depth, 8, least)
        found += _normed(width, width, 3, groups=width) + _normed(width, into, 1)
        width = into
    return found + _classes(k, width)


def _rounded(value: float, by: int, least: int) -> int:
    """To a multiple, and never by more than a tenth down (MobileNet's make_divisible)."""
    found = max(least, int(value + by / 2) // by * by)
    return found + by if found < 0.9 * value else found


def _mobilenet_v2(k: Keys) -> int:
    """Layers that are wide within."""
    depth, least = share(k, "depth_multiplier", 1.0), k.count("min_depth", 8)
    by, wider = k.count("depth_divisible_by", 8), share(k, "expand_ratio", 6.0)
    usual = (16, 24, 24, 32, 32, 32, 64, 64, 64, 64, 96, 96, 96, 160, 160, 160, 320)
    widths = [_rounded(n * depth, by, least) for n in usual]
    stem = _rounded(32 * depth, by, least)
    found = _normed(k.count("num_channels", 3), stem, 3)
    found += 0 if k.flag("first_layer_is_expansion", True) else _normed(stem, stem, 1)
    found += _normed(stem, stem, 3, groups=stem) + _normed(stem, widths[0], 1)
    for before, into in pairwise(widths):
        wide = _rounded(before * wider, by, least)
        found += _normed(before, wide, 1) + _normed(wide, wide, 3, groups=wide)
        found += _normed(wide, into, 1)
    finer = k.flag("finegrained_output", True)
    last = 1280 if finer and depth < 1 else _rounded(1280 * depth, by, least)
    return found + _normed(widths[-1], last, 1) + _classes(k, last)


def _ast(k: Keys) -> int:
    """A spectrogram as patches that overlap."""
    width, inner, layers = _sizes(k)
    side = k.count("patch_size", 16)
    rows = (k.count("num_mel_bins", 128) - side) // k.count("frequency_stride", 10) + 1
    columns = (k.count("max_length", 1024) - side) // k.count("time_stride", 10) + 1
    bias = 0 if k.flag("qkv_bias", True) else 3 * width
    found = linear(side * side, width) + (2 + rows * columns + 2) * width
    found += layers * (encoder_layer(width, inner) - bias) + norm(width)
    return found + (norm(width) + linear(width, labels(k)) if k.head == CLASSIFICATION else 0)


def _hiera(k: Keys) -> int:
    """Stages that pool their queries."""
    width, depths = k.count("embed_dim", 96), depths_of(k, 2, 3, 16, 3)
    ratio, grown = share(k, "mlp_ratio", 4.0), share(k, "embed_dim_multiplier", 2.0)
    (height, wide), (rows, columns) = k.pair("image_size", 224), k.pair("patch_size", 7)
    (down, across) = _pair_of(k, "patch_stride", (4, 4))
    found = linear(k.count("num_channels", 3) * rows * columns, width)
    found += (height // down) * (wide // across) * width
    before = width
    for i, layers in enumerate(depths):
        into = int(width * grown**i)
        for j in range(layers):
            read = before if j == 0 else into
            found += norm(read) + linear(read, 3 * into) + linear(into, into) + norm(into)
            found += mlp(into, int(into * ratio)) + (linear(read, into) if read != into else 0)
        before = into
    return found + norm(before) + _classes(k, before)


def _pair_of(k: Keys, key: str, usual: tuple[int, int]) -> tuple[int, int]:
    return k.pair(key, usual[0]) if key in k.config else usual


COUNTED: dict[str, Family] = {
    "vit_msn": counted(_plain(1), image_classes("ViTMSN")),
    "ijepa": counted(_plain(0), image_classes("IJepa")),
    "vit_mae": counted(_mae, {"ViTMAEForPreTraining": PRETRAINED, "ViTMAEModel": EMBEDDING}),
    "beit": counted(_beit, image_classes("Beit") | {"BeitForMaskedImageModeling": MASKED_IMAGES}),
    "data2vec-vision": counted(_data2vec, image_classes("Data2VecVision")),
    "videomae": counted(
        _video, image_classes("VideoMAE", "Video") | {"VideoMAEForPreTraining": PRETRAINED}
    ),
    "vivit": counted(_vivit, image_classes("Vivit", "Video")),
    "timesformer": counted(_timesformer, image_classes("Timesformer", "Video")),
    "yolos": counted(_yolos, {"YolosForObjectDetection": FOUND, "YolosModel": EMBEDDING}),
    "swin": counted(
        _swin(False), image_classes("Swin") | {"SwinForMaskedImageModeling": MASKED_IMAGES}
    ),
    "donut-swin": counted(_swin(False, normed=False), image_classes("DonutSwin")),
    "swinv2": counted(
        _swin(True), image_classes("Swinv2") | {"Swinv2ForMaskedImageModeling": MASKED_IMAGES}
    ),
    "segformer": counted(
        _segformer,
        {"SegformerForSemanticSegmentation": SEGMENTS, **image_classes("Segformer")},
    ),
    "convnext": counted(_convnext(False), image_classes("ConvNext")),
    "convnextv2": counted(_convnext(True), image_classes("ConvNextV2")),
    "resnet": counted(_resnet, image_classes("ResNet")),
    "mobilenet_v1": counted(_mobilenet_v1, image_classes("MobileNetV1")),
    "mobilenet_v2": counted(_mobilenet_v2, image_classes("MobileNetV2")),
    "audio-spectrogram-transformer": counted(_ast, image_classes("AST", "Audio")),
    "hiera": counted(_hiera, image_classes("Hiera")),
}
