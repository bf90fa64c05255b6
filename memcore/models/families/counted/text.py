"""Encoders of text with layers of BERT's form: what tells them apart is what they embed, what a
layer has more, and what stands behind the last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memcore.models.config import Keys
from memcore.models.families.bert import every_class
from memcore.models.families.counted.family import counted
from memcore.models.families.family import Family, labels
from memcore.models.sizes import convolution, encoder_layer, linear, mlp, norm
from memcore.tape.structure import CLASSIFICATION, EMBEDDING, LABELLED, MASKED, SPANS

DEFINED = frozenset({EMBEDDING, CLASSIFICATION})  # heads behind BERT's pooler
EVERY = DEFINED | {MASKED, LABELLED, SPANS}


@dataclass(frozen=True, slots=True)
class Read:
    """What a config says of an encoder: its widths, and how many words and layers it has."""

    keys: Keys
    width: int
    inner: int
    heads: int
    vocab: int
    layers: int


def _nothing(r: Read) -> int:
    return 0


def _as_bert(r: Read) -> int:
    return encoder_layer(r.width, r.inner)


@dataclass(frozen=True, slots=True)
class Encoder:
    """Defaults, and what is unlike BERT.

    embed     width of the words where it is not the hidden size: a key, and its default (0: that)
    normed    norms behind the embedding
    positions, types    rows of these tables; 0 where there is no such table
    layer     parameters of one
    beside    what there is besides
    pooled    heads behind a dense layer of the first token
    dense     a classifier of sequences has a dense layer of its own, as RoBERTa's
    twice     an untied head has its bias twice
    two       the ends of an answer are two numbers, whatever num_labels says
    """

    vocab: int
    hidden: int = 768
    inner: int = 3072
    heads: int = 12
    layers: int = 12
    positions: int = 512
    types: int = 2
    embed: tuple[str, int] | None = None
    normed: bool = True
    layer: Callable[[Read], int] = _as_bert
    beside: Callable[[Read], int] = _nothing
    pooled: frozenset[str] = DEFINED
    dense: bool = False
    twice: bool = True
    two: bool = False

    def __call__(self, k: Keys) -> int:
        r = Read(
            k, k.count("hidden_size", self.hidden), k.count("intermediate_size", self.inner),
            k.count("num_attention_heads", self.heads), k.count("vocab_size", self.vocab),
            k.count("num_hidden_layers", self.layers),
        )  # fmt: skip
        k.divides("hidden_size", r.width, "num_attention_heads", r.heads)
        k.refuse("add_cross_attention", False, None)
        key, usual = self.embed or ("", 0)
        wide = k.count_or(key, usual or r.width) if key else r.width
        rows = r.vocab
        rows += k.count("max_position_embeddings", self.positions) if self.positions else 0
        rows += k.count_or_zero("type_vocab_size", self.types) if self.types else 0
        return (
            rows * wide
            + (norm(wide) if self.normed else 0)
            + r.layers * self.layer(r)
            + self.beside(r)
            + self._behind(r, wide)
        )

    def _behind(self, r: Read, wide: int) -> int:
        """The head, and the pooler before it."""
        head = r.keys.head
        found = linear(r.width, r.width) if head in self.pooled else 0
        if head == MASKED:
            found += linear(r.width, wide) + norm(wide) + r.vocab
            if not r.keys.flag("tie_word_embeddings", True):
                found += r.vocab * wide + (r.vocab if self.twice else 0)
        if head in (CLASSIFICATION, LABELLED, SPANS):
            found += linear(r.width, 2 if self.two and head == SPANS else labels(r.keys))
        if head == CLASSIFICATION and self.dense:
            found += linear(r.width, r.width)
        return found


def _longformer(r: Read) -> int:
    """Queries, keys and values of their own for tokens that see all others."""
    return encoder_layer(r.width, r.inner) + 3 * linear(r.width, r.width)


def _spans(r: Read) -> int:
    """BigBird tells spans behind an MLP, and has no pooler there."""
    if r.keys.head != SPANS:
        return 0
    return mlp(r.width, r.inner) + norm(r.width) - linear(r.width, r.width)


def _biased(r: Read) -> int:
    """Queries, keys and values may have no bias."""
    bias = r.keys.flag("use_bias", True)
    return encoder_layer(r.width, r.inner) - (0 if bias else 3 * r.width)


def _boxes(r: Read) -> int:
    """Where on a page a token stands: columns and rows, and how wide and high it is."""
    return 4 * r.keys.count("max_2d_position_embeddings", 1024) * r.width


def _grouped(r: Read) -> int:
    """SqueezeBERT's products in groups."""
    k = r.keys
    groups = {name: k.count(f"{name}_groups", usual) for name, usual in (
        ("q", 4), ("k", 4), ("v", 4), ("post_attention", 1), ("intermediate", 4), ("output", 4),
    )}  # fmt: skip
    width, inner = r.width, r.inner
    attends = ("q", "k", "v", "post_attention")
    return (
        sum(convolution(width, width, 1, groups=groups[name]) for name in attends)
        + convolution(width, inner, 1, groups=groups["intermediate"])
        + convolution(inner, width, 1, groups=groups["output"])
        + 2 * norm(width)
    )


def _convolves(r: Read) -> int:
    """ConvBERT: half of the heads are convolutions whose kernels each token makes."""
    k, width = r.keys, r.width
    ratio, kernel = k.count("head_ratio", 2), k.count("conv_kernel_size", 9)
    heads = r.heads // ratio if r.heads // ratio >= 1 else 1
    size = (width // heads // 2) * heads
    groups = k.count("num_groups", 1)
    return (
        4 * linear(width, size)
        + width * kernel + width * size + size
        + linear(size, heads * kernel)
        + linear(width, width)
        + convolution(width, r.inner, 1, groups=groups)
        + convolution(r.inner, width, 1, groups=groups)
        + 2 * norm(width)
    )  # fmt: skip


def _convbert(r: Read) -> int:
    wide = r.keys.count("embedding_size", 768)
    return linear(wide, r.width) if wide != r.width else 0


def _deberta_layer(r: Read) -> int:
    """One product for queries, keys and values, two biases, and products of distances."""
    k, width = r.keys, r.width
    found = encoder_layer(width, r.inner) - width  # keys have no bias
    if k.flag("relative_attention", False):
        terms = _terms(k)
        found += width * width * ("c2p" in terms) + linear(width, width) * ("p2c" in terms)
    if k.flag("talking_head", False):
        found += 2 * r.heads**2
    return found


def _terms(k: Keys) -> list[str]:
    given = k.config.get("pos_att_type")
    given = given.split("|") if isinstance(given, str) else given or []
    if not isinstance(given, list):
        k.fail("pos_att_type", "must be a list of c2p and p2c")
        return []
    return [str(term).strip() for term in given]


def _distances(k: Keys) -> int:
    """How far apart two tokens can be."""
    most = k.config.get("max_relative_positions", -1)
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        return k.count("max_position_embeddings", 512)
    return most


def _deberta(r: Read) -> int:
    k = r.keys
    if k.config.get("pooler_hidden_size") not in (None, r.width):
        k.fail("pooler_hidden_size", f"is counted where it is hidden_size, {r.width:,}")
    unplaced = not k.flag("position_biased_input", True)
    rows = -k.count("max_position_embeddings", 512) if unplaced else 0
    rows += k.count_or_zero("type_vocab_size", 0)
    rows += 2 * _distances(k) if k.flag("relative_attention", False) else 0
    return rows * r.width


def _rembert(r: Read) -> int:
    """What is embedded is widened; its head narrows to another width."""
    k = r.keys
    wide, out = k.count("input_embedding_size", 256), k.count("output_embedding_size", 1664)
    found = linear(wide, r.width)
    if k.head == MASKED:  # which is never tied
        found += linear(r.width, out) + linear(out, r.vocab) + norm(out)
        found -= linear(r.width, wide) + norm(wide) + r.vocab
        if not k.flag("tie_word_embeddings", True):
            found -= r.vocab * wide + r.vocab
    return found


def _last_norm(r: Read) -> int:
    return norm(r.width)


def _roformer(r: Read) -> int:
    """Angles are kept as a table that is not trained, and counted."""
    k = r.keys
    wide = k.count_or("embedding_size", r.width)
    return k.count("max_position_embeddings", 1536) * (r.width // r.heads) + (
        linear(wide, r.width) if wide != r.width else 0
    )


def _fourier(r: Read) -> int:
    """FNet's layers have no attention."""
    return mlp(r.width, r.inner) + 2 * norm(r.width)


def _projected(r: Read) -> int:
    return linear(r.width, r.width)


def _mobile_layer(r: Read) -> int:
    """MobileBERT: a layer is narrow inside, with several MLPs."""
    k, width = r.keys, r.width
    bottleneck = k.flag("use_bottleneck", True)
    k.refuse("use_bottleneck", True)
    inside = k.count("intra_bottleneck_size", 128) if bottleneck else width
    k.divides("intra_bottleneck_size", inside, "num_attention_heads", r.heads)
    of_keys = k.flag("key_query_shared_bottleneck", True)
    of_values = k.flag("use_bottleneck_attention", False)
    more = k.count("num_feedforward_networks", 4) - 1
    affine = norm  # NoNorm has a weight and a bias too
    found = 2 * linear(inside, inside)
    found += linear(inside if of_values or not bottleneck else width, inside)
    found += linear(inside, inside) + affine(inside)
    found += mlp(inside, r.inner) + affine(inside)
    found += more * (mlp(inside, r.inner) + affine(inside))
    if bottleneck:
        found += linear(inside, width) + affine(width) + linear(width, inside) + affine(inside)
        found += linear(width, inside) + affine(inside) if of_keys else 0
    return found


def _mobilebert(r: Read) -> int:
    """Words are narrow, and three neighbours are joined; positions and types are wide."""
    k, width = r.keys, r.width
    wide = k.count("embedding_size", 128)
    three = wide * (3 if k.flag("trigram_input", True) else 1)
    rows = k.count("max_position_embeddings", 512) + k.count_or_zero("type_vocab_size", 2)
    found = (rows * (width - wide)) + norm(width) + linear(three, width)
    if k.head in DEFINED and not k.flag("classifier_activation", True):
        found -= linear(width, width)
    if k.head == MASKED:  # of the head's table a part is the embedding
        found += linear(width, width) + norm(width) + r.vocab * (width - wide)
        found -= linear(width, wide) + norm(wide)
    return found


def _lilt_layer(r: Read) -> int:
    narrow = r.width // r.keys.count("channel_shrink_ratio", 4)
    return encoder_layer(r.width, r.inner) + encoder_layer(
        narrow, r.inner // r.keys.count("channel_shrink_ratio", 4)
    )


def _lilt(r: Read) -> int:
    """Where on a page a token stands, in a narrow stream of its own."""
    k = r.keys
    narrow, rows = (
        r.width // k.count("channel_shrink_ratio", 4),
        k.count("max_2d_position_embeddings", 1024),
    )
    return (
        4 * rows * (r.width // 6)
        + k.count("max_position_embeddings", 512) * narrow
        + linear(6 * (r.width // 6), narrow)
        + norm(narrow)
    )


def _nystrom_layer(r: Read) -> int:
    kernel = r.keys.config.get("conv_kernel_size", 65)
    conv = r.heads * kernel if isinstance(kernel, int) and kernel else 0
    return encoder_layer(r.width, r.inner) + conv


def _two_rows(r: Read) -> int:
    """Of positions, before the first."""
    return 2 * r.width


def _xmod_layer(r: Read) -> int:
    """An adapter for each language."""
    k = r.keys
    languages = k.config.get("languages", ["en_XX"])
    narrow = r.width // k.count("adapter_reduction_factor", 2)
    found = encoder_layer(r.width, r.inner)
    found += len(languages) * mlp(r.width, narrow) if isinstance(languages, list) else 0
    return found + (norm(r.width) if k.flag("adapter_layer_norm", False) else 0)


def _normed_first(r: Read) -> int:
    return norm(r.width) if r.keys.flag("pre_norm", False) else 0


ENCODERS: dict[str, tuple[str, Encoder]] = {
    "longformer": ("Longformer", Encoder(30_522, layer=_longformer, pooled=frozenset({EMBEDDING}),
                                         dense=True)),
    "big_bird": ("BigBird", Encoder(50_358, positions=4096, layer=_biased, beside=_spans,
                                    pooled=EVERY, dense=True, two=True)),
    "layoutlm": ("LayoutLM", Encoder(30_522, beside=_boxes, pooled=EVERY)),
    "squeezebert": ("SqueezeBert", Encoder(30_522, layer=_grouped, pooled=EVERY)),
    "convbert": ("ConvBert", Encoder(30_522, embed=("embedding_size", 768), layer=_convolves,
                                     beside=_convbert, pooled=frozenset(), dense=True,
                                     twice=False)),
    "deberta": ("Deberta", Encoder(50_265, types=0, layer=_deberta_layer, beside=_deberta,
                                   pooled=frozenset({CLASSIFICATION}))),
    "rembert": ("RemBert", Encoder(250_300, 1152, 4608, 18, 32, embed=("input_embedding_size", 256),
                                   beside=_rembert)),
    "xlm-roberta-xl": ("XLMRobertaXL", Encoder(
        250_880, 2560, 10_240, 32, 36, positions=514, types=1, normed=False, beside=_last_norm,
        pooled=frozenset({EMBEDDING}), dense=True)),
    "megatron-bert": ("MegatronBert", Encoder(29_056, 1024, 4096, 16, 24, normed=False,
                                              beside=_last_norm)),
    "roberta-prelayernorm": ("RobertaPreLayerNorm", Encoder(
        50_265, beside=_last_norm, pooled=frozenset({EMBEDDING}), dense=True)),
    "roformer": ("RoFormer", Encoder(50_000, positions=0, embed=("embedding_size", 0),
                                     beside=_roformer, pooled=frozenset(), dense=True, two=True)),
    "fnet": ("FNet", Encoder(32_000, types=4, layer=_fourier, beside=_projected, pooled=EVERY)),
    "mobilebert": ("MobileBert", Encoder(
        30_522, 512, 512, 4, 24, embed=("embedding_size", 128), normed=False, layer=_mobile_layer,
        beside=_mobilebert)),
    "lilt": ("Lilt", Encoder(30_522, layer=_lilt_layer, beside=_lilt,
                             pooled=frozenset({EMBEDDING}), dense=True)),
    "nystromformer": ("Nystromformer", Encoder(
        30_000, positions=510, layer=_nystrom_layer, beside=_two_rows, pooled=frozenset(),
        dense=True, two=True)),
    "xmod": ("Xmod", Encoder(30_522, layer=_xmod_layer, beside=_normed_first,
                             pooled=frozenset({EMBEDDING}), dense=True)),
}  # fmt: skip

COUNTED: dict[str, Family] = {
    kind: counted(read, {name: head for name, head in every_class(stem).items()
                         if name != "LiltForMaskedLM"})
    for kind, (stem, read) in ENCODERS.items()
}  # fmt: skip
