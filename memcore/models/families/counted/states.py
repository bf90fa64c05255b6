"""Decoders of flash-linear-attention with a state in place of attention (fla/layers, fla/models):
what mixes tokens differs, the gated MLP behind it and the ends are the same."""

from __future__ import annotations

from collections.abc import Callable

from memcore.errors import shown
from memcore.models.config import Keys
from memcore.models.families.counted.family import counted, share
from memcore.models.families.family import Family, decoder_classes
from memcore.models.sizes import linear
from memcore.tape.structure import CAUSAL

LOW = 16  # width that GLA's gates are made from
STEP = 256  # what an MLP's width is rounded up to


def _inner(k: Keys, width: int, ratio: int) -> int:
    """Two thirds of `hidden_ratio` wide, where the file says no width (GatedMLP)."""
    given = k.count_or("hidden_ratio", ratio)
    wide = int(width * given * 2 / 3)
    return k.count_or("intermediate_size", -(-wide // STEP) * STEP)


def _attending(k: Keys, width: int, layers: int) -> tuple[int, int]:
    """How many layers have attention, which `attn` lists, and parameters of one."""
    given = k.config.get("attn")
    if given is None:
        return 0, 0
    inside = k.within("attn")
    listed = inside.config.get("layers")
    if not isinstance(listed, list):
        k.fail("attn.layers", f"must be a list of the numbers of layers, not {shown(listed)}")
        return 0, 0
    heads = inside.count("num_heads", 1)
    kv = inside.count_or("num_kv_heads", heads)
    bias = inside.flag("qkv_bias", False)
    of_keys = kv * (width // heads)
    k.absorb("attn", inside)
    own = linear(width, width + 2 * of_keys, bias) + width * width
    return len({n for n in listed if type(n) is int and 0 <= n < layers}), own


def _decoder(
    stem: str, mixer: Callable[[Keys, int], int], ratio: int = 4,
    beside: Callable[[Keys, int, int], int] | None = None,
) -> Family:  # fmt: skip
    """`mixer`: parameters of one, of a config's keys and its width."""

    def count(k: Keys) -> int:
        width, layers = k.count("hidden_size", 2048), k.count("num_hidden_layers", 24, 100_000)
        vocab = k.count("vocab_size", 32_000)
        k.refuse("attnres_block_size", None)
        some, attention = _attending(k, width, layers)
        layer = 2 * width + 3 * width * _inner(k, width, ratio)
        found = layers * layer + some * attention + (layers - some) * mixer(k, width)
        found += beside(k, width, layers) if beside else 0
        tied = k.head != CAUSAL or k.flag("tie_word_embeddings", False)
        return found + (1 if tied else 2) * vocab * width + width

    return counted(count, decoder_classes(stem, classifier=False), decoder=True)


def _grown(k: Keys, key: str, width: int, usual: float) -> int:
    return int(width * share(k, key, usual))


def _short(k: Keys, *widths: int, usual: bool = False) -> int:
    """Short convolutions of queries, keys and values."""
    return k.count("conv_size", 4) * sum(widths) if k.flag("use_short_conv", usual) else 0


def _affine(k: Keys, width: int) -> int:
    return width if k.flag("elementwise_affine", True) else 0


def _widths(
    k: Keys, width: int, heads: int, grown: tuple[float, float], whole: bool = True
) -> tuple[int, int, int, int, int]:
    """Heads, the widths of queries and of all heads' values, and those of keys and values that
    several heads read. `grown`: the former over the hidden size, `whole`: which heads divide."""
    heads = k.count("num_heads", heads)
    wide = [_grown(k, f"expand_{of}", width, usual) for of, usual in zip("kv", grown, strict=True)]
    if whole:
        k.divides("hidden_size", wide[0], "num_heads", heads)
    of_k, of_v = (each * k.count_or("num_kv_heads", heads) // heads for each in wide)
    return heads, *wide, of_k, of_v  # type: ignore[return-value]


def _gated(k: Keys, width: int, values: int) -> int:
    return width * values if k.flag("use_output_gate", True) else 0


def _gla(k: Keys, width: int) -> int:
    """Gated linear attention: a decay of each key channel, made from a narrow layer."""
    heads, keys, values, of_k, of_v = _widths(k, width, 4, (0.5, 1.0))
    mixed = width * (keys + of_k + of_v) + _gated(k, width, values)
    mixed += width * LOW + linear(LOW, of_k) + values * width
    return mixed + _short(k, keys, of_k, of_v) + _affine(k, values // heads)


def _retnet(k: Keys, width: int) -> int:
    """A decay of each head that nothing is learned of."""
    heads, keys, values, of_k, of_v = _widths(k, width, 8, (1.0, 2.0))
    gate = _gated(k, width, values)
    # Its configuration names short convolutions, its model makes none.
    k.flag("use_short_conv", False)
    return width * (keys + of_k + of_v) + gate + values * width + _affine(k, values // heads)


def _gsa(k: Keys, width: int) -> int:
    """Gated slot attention: few slots, which forget by gates."""
    heads, keys, values, of_k, of_v = _widths(k, width, 4, (1.0, 1.0), whole=False)
    none = k.config.get("num_slots", 64) is None
    slots = keys // heads if none else k.count("num_slots", 64)
    if k.config.get("feature_map", "swish") not in ("swish", "relu"):
        k.fail("feature_map", "only swish and relu are counted")
    mixed = width * (keys + of_k + of_v) + width * k.count_or("num_kv_heads", heads) * slots
    mixed += values * width + _affine(k, width)
    return mixed + _short(k, keys, of_k, of_v)


def _hgrn(k: Keys, width: int) -> int:
    inner = _grown(k, "expand_ratio", width, 1.0)
    return 3 * width * inner + _short(k, inner, inner) + _affine(k, inner) + inner * width


def _hgrn2(k: Keys, width: int) -> int:
    ratio = k.config.get("expand_ratio", 128)
    if ratio is None:
        ratio = width // k.count("num_heads", 1)
    else:
        ratio = k.count("expand_ratio", 128)
    forget = k.count_or("num_heads", max(1, width // ratio)) * ratio
    mixed = 2 * width * forget + 2 * width * width + _affine(k, width)
    return mixed + _short(k, forget, forget, width)


def _bounds(k: Keys, width: int, layers: int) -> int:
    """The least that each layer forgets, by channel."""
    return layers * width if k.flag("use_lower_bound", True) else 0


def _delta(k: Keys, width: int) -> int:
    heads = k.count("num_heads", 16)
    keys, values = _grown(k, "expand_k", width, 1.0), _grown(k, "expand_v", width, 1.0)
    mixed = width * (2 * keys + values) + values * width + values // heads
    mixed += width * heads if k.flag("use_beta", True) else 0
    mixed += width * values if k.flag("use_gate", False) else 0
    return mixed + _short(k, keys, keys, values, usual=True)


COUNTED: dict[str, Family] = {
    "gla": _decoder("GLA", _gla),
    "retnet": _decoder("RetNet", _retnet, ratio=2),
    "gsa": _decoder("GSA", _gsa),
    "hgrn": _decoder("HGRN", _hgrn, beside=_bounds),
    "hgrn2": _decoder("HGRN2", _hgrn2, beside=_bounds),
    "delta_net": _decoder("DeltaNet", _delta),
}
