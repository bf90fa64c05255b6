"""What hears speech: convolutions over its samples, and layers on what they make of them."""

from __future__ import annotations

from collections.abc import Callable

from memcore.models.config import Keys
from memcore.models.families.counted.family import as_many, counted, counts
from memcore.models.families.family import Family, labels
from memcore.models.sizes import attention, convolution, encoder_layer, linear, mlp, norm
from memcore.tape.structure import CLASSIFICATION, EMBEDDING, LABELLED

WRITTEN, PRETRAINED, SPOKEN = "written", "pretrained", "spoken"  # CTC; ...; who speaks


def _heard(
    k: Keys, widths: tuple[int, ...], kernels: tuple[int, ...], layered: bool = False
) -> int:
    """Convolutions over samples: a norm behind the first, or behind each."""
    into, sides = counts(k, "conv_dim", widths), counts(k, "conv_kernel", kernels)
    if not as_many(k, conv_dim=into, conv_kernel=sides):
        return 1
    bias = k.flag("conv_bias", False)
    every = layered or k.word("feat_extract_norm", "group", {"group": "", "layer": "every"})
    found, before = 0, 1
    for i, (width, side) in enumerate(zip(into, sides, strict=False)):
        found += convolution(before, width, side, bias=bias)
        found += norm(width) if every or i == 0 else 0
        before = width
    return found


USUAL = ((512,) * 7, (10, 3, 3, 3, 3, 2, 2))
SEW = ((64, 128, 128, 128, 128, 256, 256, 256, 256, 512, 512, 512, 512),
       (10, 3, 1, 3, 1, 3, 1, 3, 1, 2, 1, 2, 1))  # fmt: skip


def _last(k: Keys, widths: tuple[int, ...]) -> int:
    given = counts(k, "conv_dim", widths)
    return given[-1] if given else 1


def _placed(k: Keys, width: int) -> int:
    """A convolution over tokens says where they are; its weight is a direction and lengths."""
    side = k.count("num_conv_pos_embeddings", 128)
    groups = k.count("num_conv_pos_embedding_groups", 16)
    return convolution(width, width, side, groups=groups) + side


def _masks(k: Keys, width: int) -> int:
    """What stands where speech is left out."""
    most = max(_chance(k, "mask_time_prob", 0.05), _chance(k, "mask_feature_prob", 0.0))
    return width if most > 0 else 0


def _chance(k: Keys, key: str, usual: float) -> float:
    value = k.config.get(key, usual)
    return value if isinstance(value, (int, float)) else 0.0


def _wav2vec2(
    k: Keys,
    layer: Callable[[Keys, int, int], int],
    beside: Callable[[Keys, int], int] | None = None,
) -> int:
    """wav2vec 2.0 and its kin."""
    width, inner = k.count("hidden_size", 768), k.count("intermediate_size", 3072)
    heads = k.count("num_attention_heads", 12)
    k.divides("hidden_size", width, "num_attention_heads", heads)
    layers = k.count("num_hidden_layers", 12, 100_000)
    last = _last(k, USUAL[0])
    found = _heard(k, *USUAL) + linear(last, width) + norm(width)
    found += norm(last) if k.flag("feat_proj_layer_norm", True) else 0
    found += _masks(k, width) + layers * layer(k, width, inner)
    found += beside(k, width) if beside else _placed(k, width)
    return found


def _as_bert(k: Keys, width: int, inner: int) -> int:
    return encoder_layer(width, inner)


def _adapted(k: Keys, width: int, inner: int) -> int:
    """A narrow part behind each layer, where there is one (of layers whose norms come first)."""
    narrow = k.config.get("adapter_attn_dim")
    more = 0
    if narrow is not None and k.flag("do_stable_layer_norm", False):
        narrow = k.count("adapter_attn_dim", 1)
        more = norm(width) + mlp(width, narrow)
    return encoder_layer(width, inner) + more


def _out(k: Keys, width: int) -> int:
    adds = k.flag("add_adapter", False)
    return k.count_or("output_hidden_size", width) if adds else width


def _adapter(k: Keys, width: int) -> int:
    """Convolutions behind the layers, each of which halves the tokens."""
    if not k.flag("add_adapter", False):
        return 0
    out, side = _out(k, width), k.count("adapter_kernel_size", 3)
    into = linear(width, out) + norm(out) if out != width else 0
    return into + k.count("num_adapter_layers", 3) * convolution(out, 2 * out, side)


def _behind(k: Keys, width: int, out: int = 0, first: int = 0) -> int:
    """The head. `out`: width of what it reads."""
    out = out or width
    layers = k.count("num_hidden_layers", 12, 100_000)
    mixed = layers + 1 if k.flag("use_weighted_layer_sum", False) else 0
    if k.head == WRITTEN:
        vocab = k.config.get("vocab_size", 32)
        if vocab is None:
            k.fail("vocab_size", "missing; there is no default of it")
            return 0
        return linear(out, k.count("vocab_size", 32))
    if k.head == CLASSIFICATION:
        narrow = k.count("classifier_proj_size", first or 256)
        return mixed + linear(width, narrow) + linear(narrow, labels(k))
    if k.head == LABELLED:
        return mixed + linear(width, labels(k))
    if k.head == SPOKEN:
        widths = counts(k, "tdnn_dim", (512, 512, 512, 512, 1500))
        sides = counts(k, "tdnn_kernel", (5, 3, 3, 1, 1))
        if not as_many(k, tdnn_dim=widths, tdnn_kernel=sides):
            return 0
        told = k.count("xvector_output_dim", 512)
        found, before = mixed + linear(width, widths[0]), widths[0]
        for wide, side in zip(widths, sides, strict=False):
            found += linear(before * side, wide)
            before = wide
        return found + linear(2 * before, told) + linear(told, told) + told * labels(k)
    return 0


def _coded(k: Keys, read: int) -> int:
    """What is heard as one of some codes, by groups."""
    groups, each = k.count("num_codevector_groups", 2), k.count("num_codevectors_per_group", 320)
    return groups * each * (k.count("codevector_dim", 256) // groups) + linear(read, groups * each)


def _codes(k: Keys, width: int, read: int) -> int:
    wide, into = k.count("codevector_dim", 256), k.count("proj_codevector_dim", 256)
    return _coded(k, read) + linear(wide, into) + linear(width, into)


def _wav(k: Keys) -> int:
    width = k.count("hidden_size", 768)
    found = _wav2vec2(k, _adapted)
    if k.head == CLASSIFICATION and k.flag("add_adapter", False):
        k.fail("add_adapter", "a classifier of sequences has no such part; set it to false")
    found += _adapter(k, width) + _behind(k, width, _out(k, width))
    if k.head == PRETRAINED:
        found += _codes(k, width, _last(k, USUAL[0]))
    return found


def _hubert(k: Keys) -> int:
    if k.flag("conv_pos_batch_norm", False):
        k.fail("conv_pos_batch_norm", "only false is counted")
    return _wav2vec2(k, _adapted) + _behind(k, k.count("hidden_size", 768))


def _wavlm(k: Keys) -> int:
    """Each head weighs how far tokens lie apart, by a table that the first layer has."""
    width, heads = k.count("hidden_size", 768), k.count("num_attention_heads", 12)

    def layer(k: Keys, width: int, inner: int) -> int:
        return encoder_layer(width, inner) + heads + linear(width // max(1, heads), 8)

    found = _wav2vec2(k, layer) + k.count("num_buckets", 320) * heads
    return found + _adapter(k, width) + _behind(k, width, _out(k, width))


def _data2vec(k: Keys) -> int:
    """Several convolutions say where tokens are; each of those over samples has a norm."""

    def placed(k: Keys, width: int) -> int:
        side, groups = (
            k.count("conv_pos_kernel_size", 19),
            k.count("num_conv_pos_embedding_groups", 16),
        )
        return k.count("num_conv_pos_embeddings", 5) * convolution(
            width, width, side, groups=groups
        )

    width = k.count("hidden_size", 768)
    widths = counts(k, "conv_dim", USUAL[0])
    first = widths[0] if widths else 1
    found = _wav2vec2(k, _as_bert, placed) + norm(first) * (len(widths) - 1)
    return found + _adapter(k, width) + _behind(k, width, _out(k, width))


def _unispeech(k: Keys) -> int:
    width = k.count("hidden_size", 768)
    found = _wav2vec2(k, _adapted) + _behind(k, width)
    if k.head == PRETRAINED:
        wide, into = k.count("codevector_dim", 256), k.count("proj_codevector_dim", 256)
        found += _coded(k, _last(k, USUAL[0])) + linear(wide, into) + linear(into, width)
        found += linear(width, k.count("num_ctc_classes", 80))
    return found


def _unispeech_sat(k: Keys) -> int:
    width = k.count("hidden_size", 768)
    found = _wav2vec2(k, _adapted) + _behind(k, width)
    if k.head == PRETRAINED:
        wide, into = k.count("codevector_dim", 256), k.count("proj_codevector_dim", 256)
        found += _coded(k, width) + linear(wide, into) + 2 * linear(width, wide) + norm(width)
        found += k.count("num_clusters", 504) * wide
    return found


def _conformed(k: Keys, width: int, inner: int, side: int) -> int:
    """A layer of a conformer: two MLPs, a convolution between gates, five norms."""
    return (
        2 * mlp(width, inner)
        + attention(width)
        + 3 * width * width
        + side * width
        + 6 * norm(width)
    )


def _conformer(k: Keys) -> int:
    width = k.count("hidden_size", 768)
    side = k.count("conv_depthwise_kernel_size", 31)
    relative = k.config.get("position_embeddings_type", "relative") == "relative"

    def layer(k: Keys, width: int, inner: int) -> int:
        more = width * width + 2 * width if relative else 0
        return _conformed(k, width, inner, side) + more

    found = _wav2vec2(k, layer) + _adapter(k, width) + _behind(k, width, _out(k, width))
    if k.head == PRETRAINED:
        found += _codes(k, width, _last(k, USUAL[0]))
    return found


def _wav2vec2_bert(k: Keys) -> int:
    """Reads a spectrogram."""
    width, inner = k.count("hidden_size", 1024), k.count("intermediate_size", 4096)
    heads, read = k.count("num_attention_heads", 16), k.count("feature_projection_input_dim", 160)
    k.divides("hidden_size", width, "num_attention_heads", heads)
    side = k.count("conv_depthwise_kernel_size", 31)
    layer = _conformed(k, width, inner, side)
    kind = k.config.get("position_embeddings_type", "relative_key")
    if kind == "relative":
        layer += width * width + 2 * width
    elif kind == "relative_key":
        far = k.count("left_max_position_embeddings", 64) + 1
        layer += (far + k.count("right_max_position_embeddings", 8)) * (width // heads)
    found = norm(read) + linear(read, width) + _masks(k, width)
    found += k.count("num_hidden_layers", 24, 100_000) * layer
    if k.flag("use_intermediate_ffn_before_adapter", False):
        found += mlp(width, inner)
    if k.flag("add_adapter", False):
        out, over = _out(k, width), k.count("adapter_kernel_size", 3)
        found += linear(width, out) + norm(out) if out != width else 0
        found += k.count("num_adapter_layers", 1) * (
            3 * norm(out) + 2 * convolution(out, 2 * out, over) + attention(out) + mlp(out, inner)
        )
    return found + _behind(k, width, _out(k, width), first=768)


def _sew(k: Keys) -> int:
    """Layers on every other token."""
    width, inner = k.count("hidden_size", 768), k.count("intermediate_size", 3072)
    last = _last(k, SEW[0])
    found = _heard(k, *SEW) + norm(last)
    found += linear(last, width) if last != width else 0
    found += _masks(k, width) + _placed(k, width) + norm(width)
    found += k.count("num_hidden_layers", 12, 100_000) * encoder_layer(width, inner)
    found += linear(width, width * k.count("squeeze_factor", 2))
    return found + _behind(k, width)


def _classes(stem: str, *more: str) -> dict[str, str]:
    every = {
        "PreTraining": PRETRAINED, "AudioFrameClassification": LABELLED, "XVector": SPOKEN,
    }  # fmt: skip
    return {
        f"{stem}ForCTC": WRITTEN,
        f"{stem}Model": EMBEDDING,
        f"{stem}ForSequenceClassification": CLASSIFICATION,
        **{f"{stem}For{name}": every[name] for name in more},
    }


FRAMES, VOICES, ALL = "AudioFrameClassification", "XVector", "PreTraining"
COUNTED: dict[str, Family] = {
    "wav2vec2": counted(_wav, _classes("Wav2Vec2", FRAMES, VOICES, ALL)),
    "hubert": counted(_hubert, _classes("Hubert")),
    "wavlm": counted(_wavlm, _classes("WavLM", FRAMES, VOICES)),
    "data2vec-audio": counted(_data2vec, _classes("Data2VecAudio", FRAMES, VOICES)),
    "unispeech": counted(_unispeech, _classes("UniSpeech", ALL)),
    "unispeech-sat": counted(_unispeech_sat, _classes("UniSpeechSat", FRAMES, VOICES, ALL)),
    "wav2vec2-conformer": counted(_conformer, _classes("Wav2Vec2Conformer", FRAMES, VOICES, ALL)),
    "wav2vec2-bert": counted(_wav2vec2_bert, _classes("Wav2Vec2Bert", FRAMES, VOICES)),
    "sew": counted(_sew, _classes("SEW")),
}
