"""What finds, segments, measures, reads and pairs: encoders with parts of their own behind them,
and models that are put together from others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memcore.models.config import Keys
from memcore.models.families.counted.family import counted, counts, of_encoder
from memcore.models.families.counted.parts import SAM_VISION, part
from memcore.models.families.counted.vision import FOUND, SEGMENTS, resnet
from memcore.models.families.family import Family, labels
from memcore.models.sizes import (
    attention,
    convolution,
    embedded,
    encoder_layer,
    linear,
    mlp,
    norm,
)
from memcore.tape.structure import (
    ALIKE,
    CAUSAL,
    CLASSIFICATION,
    EMBEDDING,
    LABELLED,
    MASKED,
    SPANS,
)

DEPTH, ANSWERS, MATCHED, MASKS = "depth", "answers", "matched", "masks"


def _clip_texts(k: Keys, rows: int) -> tuple[int, int]:
    """Width and parameters of CLIP's tower of texts."""
    width, found = of_encoder(k, 512, 2048, heads=8)
    words = k.count("vocab_size", 49_408) + k.count("max_position_embeddings", rows)
    return width, found + words * width + norm(width)


def _clip_images(k: Keys, side: int, patch: int) -> tuple[int, int]:
    width, found = of_encoder(k)
    placed = embedded(k, width, side, patch, bias=False, extra=1) + width
    return width, found + placed + 2 * norm(width)


def _clip(k: Keys, rows: int, side: int, patch: int) -> tuple[int, int]:
    """Width of what sees, and parameters of both towers with what leads to a width in common."""
    images, texts = k.within("vision_config"), k.within("text_config")
    seen, of_images = _clip_images(images, side, patch)
    width, of_texts = _clip_texts(texts, rows)
    k.absorb("vision_config", images)
    k.absorb("text_config", texts)
    return seen, of_images + of_texts + (seen + width) * k.count("projection_dim", 512) + 1


def _three(width: int, out: int) -> int:
    return 2 * linear(width, width) + linear(width, out)


def _owl(side: int, patch: int, second: bool) -> Callable[[Keys], int]:
    """OWL-ViT: of each patch what it is, as a text says it, and where."""

    def count(k: Keys) -> int:
        seen, found = _clip(k, 16, side, patch)
        if k.head == FOUND:
            told = k.within("text_config").count("hidden_size", 512)
            found += norm(seen) + linear(seen, told) + 2 * linear(seen, 1) + _three(seen, 4)
            found += _three(seen, 1) if second else 0
        return found

    return count


def _clipseg(k: Keys) -> int:
    """A few layers of CLIP's tower, narrow, under a text."""
    seen, found = _clip(k, 77, 224, 32)
    if k.head != SEGMENTS:
        return found
    narrow, read = k.count("reduce_dim", 64), k.config.get("extract_layers", (3, 6, 9))
    patch, joint = k.within("vision_config").count("patch_size", 32), k.count("projection_dim", 512)
    inner = k.count("decoder_intermediate_size", 2048)
    if not isinstance(read, (list, tuple)):
        k.fail("extract_layers", "must be a list of the numbers of layers")
        return 1
    found += 2 * linear(joint, narrow)
    found += len(read) * (linear(seen, narrow) + encoder_layer(narrow, inner))
    if not k.flag("use_complex_transposed_convolution", False):
        return found + convolution(narrow, 1, patch, patch)
    half, side = narrow // 2, patch // 4
    found += convolution(narrow, narrow, 3, 3) + convolution(narrow, half, side, side)
    return found + convolution(half, 1, side, side)


def _altclip(k: Keys) -> int:
    """XLM-RoBERTa in the place of CLIP's texts."""
    images, texts = k.within("vision_config"), k.within("text_config")
    seen, found = _clip_images(images, 224, 32)
    width, layers = of_encoder(texts, 1024, 4096, 24, 16)
    rows = texts.count("vocab_size", 250_002) + texts.count("max_position_embeddings", 514)
    rows += texts.count_or_zero("type_vocab_size", 1)
    told, joint = texts.count("project_dim", 768), k.count("projection_dim", 768)
    found += layers + rows * width + 2 * norm(width) + linear(width, told) + (seen + told) * joint
    k.absorb("vision_config", images)
    k.absorb("text_config", texts)
    return found + 1


def _layoutlm(k: Keys) -> int:
    """Words, where they stand on a page, and its picture in patches."""
    width, found = of_encoder(k)
    heads = k.count("num_attention_heads", 12)
    if k.flag("text_embed", True):
        rows = k.count("vocab_size", 50_265) + k.count("max_position_embeddings", 512)
        rows += k.count_or_zero("type_vocab_size", 2)
        sides = 2 * k.count("coordinate_size", 128) + 2 * k.count("shape_size", 128)
        found += rows * width + sides * k.count("max_2d_position_embeddings", 1024) + norm(width)
    if k.flag("visual_embed", True):
        side = k.count("patch_size", 16)
        patches = (k.count("input_size", 224) // side) ** 2
        found += linear(k.count("num_channels", 3) * side**2, width) + (patches + 2) * width
        found += 2 * norm(width)
    found += heads * k.count("rel_pos_bins", 32) * k.flag("has_relative_attention_bias", True)
    placed = k.flag("has_spatial_attention_bias", True)
    found += 2 * heads * k.count("rel_2d_pos_bins", 64) * placed
    if k.head == CLASSIFICATION or k.head == SPANS or (k.head == LABELLED and labels(k) >= 10):
        return found + linear(width, width) + linear(width, labels(k))
    return found + (linear(width, labels(k)) if k.head == LABELLED else 0)


def _vilt(k: Keys) -> int:
    """ViT's layers on words and patches together."""
    width, found = of_encoder(k)
    found -= 0 if k.flag("qkv_bias", True) else k.count("num_hidden_layers", 12) * 3 * width
    rows = k.count("vocab_size", 30_522) + k.count("max_position_embeddings", 40)
    rows += k.count_or_zero("type_vocab_size", 2) + k.count("modality_type_vocab_size", 2)
    found += rows * width + embedded(k, width, 384, 32, extra=1) + width + 2 * norm(width)
    if k.head == LABELLED:
        return found + linear(width, labels(k))
    found += linear(width, width)
    if k.head == ANSWERS:
        found += linear(width, 2 * width) + norm(2 * width) + linear(2 * width, labels(k))
    return found + (linear(width, 1) if k.head == MATCHED else 0)


def _rescaled(k: Keys, width: int, usual: Sequence[int], joined: int) -> int:
    """DPT's neck: four layers of a backbone as maps of several sizes, joined one after another."""
    widths, wide = counts(k, "neck_hidden_sizes", usual), k.count("fusion_hidden_size", joined)
    factors = k.config.get("reassemble_factors", (4, 2, 1, 0.5))
    if not isinstance(factors, (list, tuple)) or any(
        not isinstance(f, (int, float)) for f in factors
    ):
        k.fail("reassemble_factors", "must be a list of numbers")
        return 1
    normed = k.flag("use_batch_norm_in_fusion_residual", False)
    given = k.config.get("use_bias_in_fusion_residual")
    bias = not normed if given is None else k.flag("use_bias_in_fusion_residual", True)
    found = 0
    for out, factor in zip(widths, factors, strict=False):
        found += linear(width, out) + convolution(out, wide, 3, 3, bias=False)
        if factor != 1:
            side = 3 if factor < 1 else int(factor)
            found += convolution(out, out, side, side)
    residual = 2 * convolution(wide, wide, 3, 3, bias=bias) + (2 * norm(wide) if normed else 0)
    return found + len(widths) * (linear(wide, wide) + 2 * residual)


def _measured(wide: int, narrow: int) -> int:
    """How far each pixel is."""
    half = wide // 2
    return convolution(wide, half, 3, 3) + convolution(half, narrow, 3, 3) + linear(narrow, 1)


def _dpt(k: Keys) -> int:
    if k.config.get("backbone_config") is not None or k.flag("is_hybrid", False):
        k.fail("backbone_config", "is counted where it is null, and is_hybrid is false")
        return 1
    width, found = of_encoder(k)
    found -= 0 if k.flag("qkv_bias", True) else k.count("num_hidden_layers", 12) * 3 * width
    found += embedded(k, width, 384, 16, extra=1) + width + norm(width)
    if k.head == EMBEDDING:
        return found + linear(width, k.count_or("pooler_output_size", width))
    neck, wide = _rescaled(k, width, (96, 192, 384, 768), 256), k.count("fusion_hidden_size", 256)
    kinds = {"project": "more", "ignore": "", "add": ""}
    if k.word("readout_type", "project", kinds):
        neck += len(counts(k, "neck_hidden_sizes", (96, 192, 384, 768))) * linear(2 * width, width)
    if k.head == DEPTH:
        joined = convolution(256, 256, 3, 3) if k.flag("add_projection", False) else 0
        return found + neck + joined + _measured(wide, 32)
    told = convolution(wide, wide, 3, 3, bias=False) + norm(wide) + linear(wide, labels(k))
    return found + neck + told * (2 if k.flag("use_auxiliary_head", True) else 1)


def _depth_anything(k: Keys) -> int:
    tower = part(k, "backbone_config", "dinov2", {"hidden_size": 384, "num_attention_heads": 6,
                                                  "image_size": 518, "patch_size": 14})  # fmt: skip
    width, wide = k.count("reassemble_hidden_size", 384), k.count("fusion_hidden_size", 64)
    found = tower.parameters + _rescaled(k, width, (48, 96, 192, 384), 64)
    return found + _measured(wide, k.count("head_hidden_size", 32))


def _moonshine(k: Keys) -> int:
    """Convolutions of samples, and layers with norms that have no bias; gated in the decoder."""
    width, inner = k.count("hidden_size", 288), k.count("intermediate_size", 1152)
    bias, vocab = k.flag("attention_bias", False), k.count("vocab_size", 32_768)
    found = 127 * width + norm(width) + convolution(width, 2 * width, 7) + vocab * width + 2 * width
    found += convolution(2 * width, width, 3)
    # Its code gives the encoder's heads to the decoder too.
    heads = k.count("encoder_num_attention_heads", 8)
    kv = k.count_or("encoder_num_key_value_heads", heads) * (width // heads)
    attends = 2 * linear(width, kv, bias) + linear(width, width, bias) + width**2
    layer = attends + mlp(width, inner) + 2 * width
    found += k.count("encoder_num_hidden_layers", 6, 10_000) * layer
    layer += attends + linear(width, inner) + width
    found += k.count("decoder_num_hidden_layers", 6, 10_000) * layer
    tied = k.head != CAUSAL or k.flag("tie_word_embeddings", True)
    return found + (0 if tied else vocab * width)


def _parakeet(k: Keys) -> int:
    """A conformer on a spectrogram that convolutions make shorter."""
    width, inner = k.count("hidden_size", 1024), k.count("intermediate_size", 4096)
    heads, side = k.count("num_attention_heads", 8), k.count("conv_kernel_size", 9)
    narrow, kernel = k.count("subsampling_conv_channels", 256), k.count(
        "subsampling_conv_kernel_size", 3
    )  # fmt: skip
    k.divides("hidden_size", width, "num_attention_heads", heads)
    bias, mixed = k.flag("attention_bias", True), k.flag("convolution_bias", True)
    halvings = k.count("subsampling_factor", 8).bit_length() - 1
    bins = k.count("num_mel_bins", 80) // k.count("subsampling_conv_stride", 2) ** halvings
    kv = k.count_or("num_key_value_heads", heads) * (width // heads)
    found = convolution(1, narrow, kernel, kernel) + linear(narrow * bins, width)
    found += (halvings - 1) * (
        convolution(narrow, narrow, kernel, kernel, groups=narrow) + linear(narrow, narrow)
    )
    layer = (
        2 * (mlp(width, inner, bias) + linear(width, width, bias) + linear(width, kv, bias))
        + width**2 + 2 * width
        + linear(width, 2 * width, mixed) + 6 * norm(width)
        + convolution(width, width, side, bias=mixed, groups=width)
        + linear(width, width, mixed)
    )  # fmt: skip
    return found + k.count("num_hidden_layers", 24, 10_000) * layer


def _parakeet_ctc(k: Keys) -> int:
    encoder = part(k, "encoder_config", "parakeet_encoder")
    return encoder.parameters + linear(
        encoder.count("hidden_size", 1024), k.count("vocab_size", 1025)
    )


ALONE = {"add_cross_attention": False, "is_decoder": False}


def _writes(k: Keys) -> tuple[int, int]:
    """Width and parameters of a decoder that reads an encoder in each layer."""
    own = k.within("decoder")
    kind = own.config.get("model_type", "trocr")
    if kind in ("bart", "mbart"):
        width = own.count("d_model", 1024)
        layers, inner = own.count("decoder_layers", 12), own.count("decoder_ffn_dim", 4096)
        vocab, rows = own.count("vocab_size", 50_265), own.count("max_position_embeddings", 1024)
        found = layers * (encoder_layer(width, inner) + attention(width) + norm(width))
        found += (vocab + rows + 2) * width + norm(width) * (2 if kind == "mbart" else 1)
        found += 0 if own.flag("tie_word_embeddings", True) else vocab * width
        k.absorb("decoder", own)
        return width, found
    if kind == "trocr":
        read = part(k, "decoder", kind, head=CAUSAL)
        return read.count("d_model", 1024), read.parameters
    heads = {"gpt2": CAUSAL, "bert": MASKED, "roberta": MASKED, "xlm-roberta": MASKED}
    if not isinstance(kind, str) or kind not in heads:
        k.fail("decoder.model_type", f"is counted where it is one of trocr, bart, mbart or "
               f"{', '.join(heads)}")  # fmt: skip
        return 1, 1
    read = part(k, "decoder", kind, head=heads[kind], own=ALONE)
    width = read.count("n_embd" if kind == "gpt2" else "hidden_size", 768)
    layers = read.count("n_layer" if kind == "gpt2" else "num_hidden_layers", 12)
    return width, read.parameters + layers * (attention(width) + norm(width))


def _sees_and_writes(k: Keys) -> int:
    """Any encoder of images, and any decoder of text: TrOCR, Donut, Nougat."""
    seen = part(k, "encoder", "vit")
    wide = seen.keys.config.get("hidden_size")
    if wide is None and "embed_dim" in seen.keys.config:
        stages = len(counts(seen.keys, "depths", (2, 2, 6, 2)))
        wide = seen.count("embed_dim", 96) << (stages - 1)
    width, found = _writes(k)
    narrow = k.within("decoder").config.get("cross_attention_hidden_size")
    leads = type(wide) is int and wide != width and narrow is None
    into = linear(int(wide or 0), width) if leads else 0
    return seen.parameters + found + into


RESNET = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}


def _backbone(k: Keys) -> tuple[int, int]:
    """Width and parameters of what makes maps of an image: a ResNet, of transformers or by its name
    in timm, whose norms are frozen (and no parameters)."""
    own = k.config.get("backbone_config")
    named = k.config.get("backbone") if own is None else None
    if isinstance(own, dict) and own.get("model_type") == "timm_backbone":
        named, own = own.get("backbone"), None
    if own is None:
        if not isinstance(named or "resnet50", str) or (named or "resnet50") not in RESNET:
            k.fail("backbone", f"is counted where it is one of {', '.join(RESNET)}")
        read = {"depths": list(RESNET.get(str(named or "resnet50"), (1,) * 4))}
        k.asked.add("use_timm_backbone")
    else:
        read = dict(own) if isinstance(own, dict) else {}
    keys = Keys({**read, "num_channels": read.get("num_channels", k.count("num_channels", 3))}, {})
    if keys.config.get("model_type", "resnet") != "resnet":
        k.fail("backbone_config.model_type", "is counted where it is resnet")
    last, convolved = resnet(keys, frozen=True)
    k.absorb("backbone_config", keys)
    return last, convolved


def _detr(normed_first: bool) -> Callable[[Keys], int]:
    """DETR: an encoder of maps, and a decoder of what may be found. `normed_first`: norms lie
    before each part, and one behind the encoder."""

    def count(k: Keys) -> int:
        last, found = _backbone(k)
        width = k.count("d_model", 256)
        layer = encoder_layer(width, k.count("encoder_ffn_dim", 2048))
        found += linear(last, width) + k.count("num_queries", 100) * width + norm(width)
        found += k.count("encoder_layers", 6) * layer + (norm(width) if normed_first else 0)
        layer = encoder_layer(width, k.count("decoder_ffn_dim", 2048))
        found += k.count("decoder_layers", 6) * (layer + attention(width) + norm(width))
        if k.word("position_embedding_type", "sine", {"sine": "", "learned": "learned"}):
            found += 2 * 50 * (width // 2)
        if k.head == FOUND:
            found += linear(width, labels(k) + 1) + _three(width, 4)
        return found

    return count


def _sam_whole(k: Keys) -> int:
    """SAM: its tower, what reads points, boxes and masks, and what draws masks."""
    tower = part(k, "vision_config", SAM_VISION)
    own, drawn = k.within("prompt_encoder_config"), k.within("mask_decoder_config")
    width, dots = own.count("hidden_size", 256), own.count("mask_input_channels", 16)
    small = dots // 4
    found = tower.parameters + 2 * tower.keys.count_or("num_pos_feats", 128)
    found += convolution(1, small, 2, 2) + convolution(small, dots, 2, 2) + linear(dots, width)
    found += norm(small) + norm(dots) + (own.count("num_point_embeddings", 4) + 2) * width
    width, masks = drawn.count("hidden_size", 256), drawn.count("num_multimask_outputs", 3) + 1
    inner, down = drawn.count("mlp_dim", 2048), width // drawn.count("attention_downsample_rate", 2)
    crossed = 3 * linear(width, down) + linear(down, width)
    layer = attention(width) + 2 * crossed + mlp(width, inner) + 4 * norm(width)
    found += (1 + masks) * width + drawn.count("num_hidden_layers", 2) * layer
    found += crossed + norm(width)
    quarter, eighth = width // 4, width // 8
    found += convolution(width, quarter, 2, 2) + convolution(quarter, eighth, 2, 2) + norm(quarter)
    found += masks * (2 * linear(width, width) + linear(width, eighth))
    deep, wide = drawn.count("iou_head_depth", 3), drawn.count("iou_head_hidden_dim", 256)
    found += linear(width, wide) + (deep - 2) * linear(wide, wide) + linear(wide, masks)
    k.absorb("prompt_encoder_config", own)
    k.absorb("mask_decoder_config", drawn)
    return found


def _dpr(k: Keys) -> int:
    """BERT without its pooler."""
    width, found = of_encoder(k)
    rows = k.count("vocab_size", 30_522) + k.count("max_position_embeddings", 512)
    found += (rows + k.count_or_zero("type_vocab_size", 2)) * width + norm(width)
    narrow = k.count_or_zero("projection_dim", 0) if k.config.get("projection_dim") else 0
    found += linear(width, narrow) if narrow else 0
    return found + (3 * ((narrow or width) + 1) if k.head == SPANS else 0)


def _pix2struct(k: Keys) -> int:
    """T5's layers on patches of any shape, and T5's decoder."""
    own, text = k.within("vision_config"), k.within("text_config")
    width, inner = own.count("hidden_size", 768), own.count("d_ff", 2048)
    wide = own.count("num_attention_heads", 12) * own.count("d_kv", 64)
    found = linear(own.count("patch_embed_hidden_size", 768), width)
    found += 2 * own.count("seq_len", 4096) * width + width
    found += own.count("num_hidden_layers", 12) * (4 * width * wide + 3 * width * inner + 2 * width)
    width, inner = text.count("hidden_size", 768), text.count("d_ff", 2048)
    heads, vocab = text.count("num_heads", 12), text.count("vocab_size", 50_244)
    layer = 8 * width**2 + 3 * width * inner + 3 * width
    tied = k.flag("tie_word_embeddings", False)
    found += (1 if tied else 2) * vocab * width + text.count("num_layers", 12) * layer + width
    found += text.count("relative_attention_num_buckets", 32) * heads
    k.absorb("vision_config", own)
    k.absorb("text_config", text)
    return found


COUNTED: dict[str, Family] = {
    "owlvit": counted(_owl(768, 32, False),
                      {"OwlViTForObjectDetection": FOUND, "OwlViTModel": ALIKE}),
    "owlv2": counted(_owl(768, 16, True),
                     {"Owlv2ForObjectDetection": FOUND, "Owlv2Model": ALIKE}),
    "clipseg": counted(_clipseg,
                       {"CLIPSegForImageSegmentation": SEGMENTS, "CLIPSegModel": ALIKE}),
    "altclip": counted(_altclip, {"AltCLIPModel": ALIKE}),
    "layoutlmv3": counted(_layoutlm, {
        "LayoutLMv3ForTokenClassification": LABELLED, "LayoutLMv3Model": EMBEDDING,
        "LayoutLMv3ForSequenceClassification": CLASSIFICATION,
        "LayoutLMv3ForQuestionAnswering": SPANS}),
    "vilt": counted(_vilt, {
        "ViltForQuestionAnswering": ANSWERS, "ViltModel": EMBEDDING,
        "ViltForImageAndTextRetrieval": MATCHED, "ViltForTokenClassification": LABELLED}),
    "dpt": counted(_dpt, {"DPTForDepthEstimation": DEPTH, "DPTForSemanticSegmentation": SEGMENTS,
                          "DPTModel": EMBEDDING}),
    "depth_anything": counted(_depth_anything, {"DepthAnythingForDepthEstimation": DEPTH}),
    "moonshine": counted(_moonshine, {"MoonshineForConditionalGeneration": CAUSAL,
                                      "MoonshineModel": EMBEDDING}),
    "parakeet_encoder": counted(_parakeet, {"ParakeetEncoder": EMBEDDING}),
    "parakeet_ctc": counted(_parakeet_ctc, {"ParakeetForCTC": "written"}),
    "vision-encoder-decoder": counted(
        _sees_and_writes, {"VisionEncoderDecoderModel": CAUSAL}),
    "detr": counted(_detr(False), {"DetrForObjectDetection": FOUND, "DetrModel": EMBEDDING}),
    "table-transformer": counted(_detr(True), {
        "TableTransformerForObjectDetection": FOUND, "TableTransformerModel": EMBEDDING}),
    "sam": counted(_sam_whole, {"SamModel": MASKS}),
    "dpr": counted(_dpr, {"DPRQuestionEncoder": EMBEDDING, "DPRContextEncoder": EMBEDDING,
                          "DPRReader": SPANS}),
    "pix2struct": counted(_pix2struct, {"Pix2StructForConditionalGeneration": CAUSAL}),
}  # fmt: skip
