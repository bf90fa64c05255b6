"""Models of images and texts, and their parts alone."""

from __future__ import annotations

from collections.abc import Callable

from memcore.models.config import Keys
from memcore.models.families.counted.family import counted
from memcore.models.families.family import Family, labels
from memcore.models.sizes import attention, embedded, encoder_layer, linear, mlp, norm
from memcore.tape.structure import ALIKE, CAUSAL, CLASSIFICATION, EMBEDDING


def _inside(k: Keys, place: str) -> Keys:
    """The keys of a part."""
    inside = k.within(place)
    inside.head = k.head
    return inside


def _headed(k: Keys, width: int) -> None:
    k.divides("hidden_size", width, "num_attention_heads", k.count("num_attention_heads", 12))


def _seen(k: Keys, second: bool) -> int:
    """SigLIP's tower of images, and what attends to all patches at its end."""
    width, inner = k.count("hidden_size", 768), k.count("intermediate_size", 3072)
    _headed(k, width)
    layer = encoder_layer(width, inner)
    if second:
        side = k.count("patch_size", 16)
        into = linear(k.count("num_channels", 3) * side * side, width)
        found = into + k.count("num_patches", 256) * width
    else:
        found = embedded(k, width, 224, 16)
    found += k.count("num_hidden_layers", 12, 100_000) * layer + norm(width)
    if k.flag("vision_use_head", True):
        found += width + attention(width) + norm(width) + mlp(width, inner)
    return found


def _told(k: Keys) -> int:
    """SigLIP's tower of texts."""
    width, inner = k.count("hidden_size", 768), k.count("intermediate_size", 3072)
    _headed(k, width)
    rows = k.count("vocab_size", 32_000) + k.count("max_position_embeddings", 64)
    layers = k.count("num_hidden_layers", 12, 100_000)
    out = linear(width, k.count_or("projection_size", width))
    return rows * width + layers * encoder_layer(width, inner) + norm(width) + out


def _siglip(second: bool) -> Callable[[Keys], int]:
    def count(k: Keys) -> int:
        images, texts = _inside(k, "vision_config"), _inside(k, "text_config")
        if k.head == CLASSIFICATION:  # of the tower without what attends to all patches
            found = _seen(images, second) + linear(images.count("hidden_size", 768), labels(k))
            k.config.get("text_config")
        else:
            found = _seen(images, second) + _told(texts) + 2
            k.absorb("text_config", texts)
        k.absorb("vision_config", images)
        return found

    return count


def _git(k: Keys) -> int:
    """An encoder of images as CLIP's, and a decoder as BERT that reads what it makes as tokens."""
    images = _inside(k, "vision_config")
    seen, within = images.count("hidden_size", 768), images.count("intermediate_size", 3072)
    _headed(images, seen)
    layers = images.count("num_hidden_layers", 12, 100_000)
    found = embedded(images, seen, 224, 16, bias=False, extra=1) + seen + 2 * norm(seen)
    found += layers * encoder_layer(seen, within)
    k.absorb("vision_config", images)
    width, inner = k.count("hidden_size", 768), k.count("intermediate_size", 3072)
    _headed(k, width)
    vocab = k.count("vocab_size", 30_522)
    rows = vocab + k.count("max_position_embeddings", 1024)
    found += rows * width + norm(width) + linear(seen, width) + norm(width)
    found += k.count("num_hidden_layers", 6, 100_000) * encoder_layer(width, inner)
    frames = k.config.get("num_image_with_embedding")
    found += k.count("num_image_with_embedding", 1) * seen if frames is not None else 0
    if k.head == CAUSAL:
        found += vocab + (0 if k.flag("tie_word_embeddings", False) else vocab * width)
    return found


def _clip_tower(k: Keys, side: int, patch: int, bias: bool, norms: int) -> tuple[int, int]:
    """Width and parameters of a tower of images, with a token of their class."""
    width = k.count("hidden_size", 768)
    _headed(k, width)
    found = embedded(k, width, side, patch, bias=bias, extra=1) + width + norms * norm(width)
    layers = k.count("num_hidden_layers", 12, 100_000)
    return width, found + layers * encoder_layer(width, k.count("intermediate_size", 3072))


def _blip(k: Keys) -> int:
    """An encoder of images, and BERT that reads its result in each layer."""
    images, texts = _inside(k, "vision_config"), _inside(k, "text_config")
    seen, found = _clip_tower(images, 384, 16, True, 1)
    width, vocab = texts.count("hidden_size", 768), texts.count("vocab_size", 30_524)
    _headed(texts, width)
    rows = vocab + texts.count("max_position_embeddings", 512)
    texts.config.get("encoder_hidden_size")  # is the width of what sees, whatever a file says
    layer = encoder_layer(width, texts.count("intermediate_size", 3072)) + norm(width)
    layer += 2 * linear(width, width) + 2 * linear(seen, width)
    found += rows * width + norm(width)
    found += texts.count("num_hidden_layers", 12, 100_000) * layer
    found += linear(width, width) + norm(width) + vocab
    tied = k.flag("tie_word_embeddings", True) or texts.flag("tie_word_embeddings", True)
    found += 0 if tied else vocab * width + vocab
    k.absorb("vision_config", images)
    k.absorb("text_config", texts)
    return found


def _chinese_clip(k: Keys) -> int:
    """CLIP's tower of images, and BERT."""
    images, texts = _inside(k, "vision_config"), _inside(k, "text_config")
    seen, found = _clip_tower(images, 224, 32, False, 2)
    width = texts.count("hidden_size", 768)
    _headed(texts, width)
    rows = texts.count("vocab_size", 30_522) + texts.count("max_position_embeddings", 512)
    rows += texts.count_or_zero("type_vocab_size", 2)
    found += rows * width + norm(width)
    found += texts.count("num_hidden_layers", 12, 100_000) * encoder_layer(
        width, texts.count("intermediate_size", 3072)
    )
    k.absorb("vision_config", images)
    k.absorb("text_config", texts)
    return found + (seen + width) * k.count("projection_dim", 512) + 1


COUNTED: dict[str, Family] = {
    "siglip": counted(
        _siglip(False), {"SiglipModel": ALIKE, "SiglipForImageClassification": CLASSIFICATION}
    ),
    "siglip2": counted(
        _siglip(True), {"Siglip2Model": ALIKE, "Siglip2ForImageClassification": CLASSIFICATION}
    ),
    "siglip2_vision_model": counted(lambda k: _seen(k, True), {"Siglip2VisionModel": EMBEDDING}),
    "siglip2_text_model": counted(_told, {"Siglip2TextModel": EMBEDDING}),
    "git": counted(_git, {"GitForCausalLM": CAUSAL, "GitModel": EMBEDDING}),
    "blip": counted(_blip, {"BlipForConditionalGeneration": CAUSAL}),
    "chinese_clip": counted(_chinese_clip, {"ChineseCLIPModel": ALIKE}),
}
