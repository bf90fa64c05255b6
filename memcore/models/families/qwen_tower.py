"""The towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: patches of images of any size, turned by their
row and column, and what makes tokens of the text's width of them, of four patches one.

Images come one after another without padding, and see themselves only: Qwen2.5-VL's most layers see
windows of an image. transformers cuts queries, keys and values into these for eager attention and
SDPA, and joins the results; FlashAttention takes them as they are.
"""

from __future__ import annotations

from memcore.errors import shown
from memcore.layers.ops import HIDDEN, KEYS, QUERIES, activation, gated_mlp, plain_mlp, rms_norm
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.family import Family
from memcore.models.model import Image, Model
from memcore.tape.dims import (
    CHANNELS,
    HALF_ROTARY,
    HEAD_DIM,
    HEADS,
    HEIGHT,
    MERGED,
    MERGED_D,
    ONE,
    PAIRS,
    PATCHES,
    POSITIONS,
    QKV,
    ROTARY,
    TP,
    WIDTH,
    B,
    D,
    Q,
    S,
    Shape,
    of_stack,
)
from memcore.tape.kinds import EVERY, IN_WINDOWS, Part, Role
from memcore.tape.primitives import (
    add,
    cast,
    contiguous,
    embedding,
    flash_attention,
    heads_first,
    layer_norm,
    linear,
    matmul,
    multiply,
    patches,
    rotate,
    scale,
    scattered_into,
    softmax,
    split,
    summed,
    taken,
    wanted,
)
from memcore.tape.structure import Structure, Traits
from memcore.tape.tape import Gradients, Tape, Tensor

VISION = "vision"
SIDE = 768  # pixels of an image's height and width where nobody says: LLaMA-Factory's most
# Of a preprocessor_config.json: max_pixels, 12,845,056 of Qwen2-VL and Qwen2.5-VL; longest_edge,
# 16,777,216 of Qwen3-VL.
MOST = 16_384  # tokens of an image
AROUND = 2  # tokens of a prompt: an image begins, and ends
TAPS = 4  # rows of a table of positions that one is made of
ALIASES = {"num_attention_heads": "num_heads", "num_hidden_layers": "depth"}
# What transformers does not read, or what is the same in every file.
UNREAD = ("in_chans", "spatial_patch_size", "tokens_per_second", "initializer_range")


def of_config(
    k: Keys, family: str, hidden: int, *, width: int, depth: int, patch: int,
    deepstack: tuple[int, ...] = (8, 16, 24),
) -> Model:  # fmt: skip
    """The tower that a vision_config describes.

    hidden      the text's width, which its tokens must have
    width, depth, patch, deepstack   of a tower whose config does not say
    """
    for key in UNREAD:
        k.config.get(key)
    wide = k.count("embed_dim" if family == QWEN2 else "hidden_size", width)
    heads = k.count("num_heads", 16, 10**6)
    layers = k.count("depth", depth, 100_000)
    name = "embed_dim" if family == QWEN2 else "hidden_size"
    k.divides(name, wide, "num_heads", heads)
    out = "hidden_size" if family == QWEN2 else "out_hidden_size"
    if (made := k.count(out, 3584)) != hidden:
        k.fail(out, f"must be {hidden:,}, hidden_size of text_config, not {made:,}")
    ratio = k.count("mlp_ratio", 4, 1000) if family == QWEN2 else 0
    inner = wide * ratio or k.count("intermediate_size", 3420 if family == QWEN2_5 else 4304)
    acts = {QWEN2: "quick_gelu", QWEN2_5: "silu", QWEN3: "gelu_pytorch_tanh"}
    dim = max(1, wide // heads)
    tables = k.count("num_position_embeddings", 2304) if family == QWEN3 else 0
    return Model(
        family=family,
        layers=layers,
        hidden_size=wide,
        intermediate_size=inner,
        heads=heads,
        kv_heads=heads,
        head_dim=dim,
        rotary_dim=dim,
        vocab_size=1,
        max_positions=1,
        position_rows=tables,
        image=_image(k, family, patch),
        kinds=_kinds(k, layers) if family == QWEN2_5 else (EVERY,) * layers,
        stack=VISION,
        traits=Traits(
            activation=k.word("hidden_act", acts[family], ACTIVATIONS),
            mlp_bias=True,
            residual_16=True,
            # Of Qwen3-VL's tower get_input_embeddings finds none.
            patches_reached=family != QWEN3,
            deepstack=_deep(k, layers, deepstack) if family == QWEN3 else 0,
        ),
    )


def _image(k: Keys, family: str, patch: int) -> Image:
    """An image of the usual size. A picture is read as a film of as many frames as a patch has."""
    rows, columns = k.pair("patch_size", patch)
    if rows != columns:
        k.fail("patch_size", "must be one number: patches as high as wide")
    merge = k.count("spatial_merge_size", 2, 1000)
    frames = k.count("temporal_patch_size", 2, 1000)
    channels = frames * k.count_or("in_channels", 3, 1000)  # which published files do not say
    window = k.count("window_size", 112, 10**6) // rows // merge * merge if family == QWEN2_5 else 0
    if family == QWEN2_5 and not window:
        k.fail("window_size", f"must be at least the {rows * merge} pixels of a token")
    image = Image(
        0, 0, rows, rows, channels, around=AROUND, merge=merge**2, unit=rows * merge,
        window=window, most=MOST,
    )  # fmt: skip
    return image.of_side(SIDE)


def _kinds(k: Keys, layers: int) -> tuple[str, ...]:
    whole = _numbers(k, "fullatt_block_indexes", (7, 15, 23, 31))
    return tuple(EVERY if i in whole else IN_WINDOWS for i in range(layers))


def _deep(k: Keys, layers: int, usual: tuple[int, ...]) -> int:
    """How many layers' results the text reads besides the last one's."""
    read = _numbers(k, "deepstack_visual_indexes", usual)
    if any(i >= layers for i in read):
        k.fail("deepstack_visual_indexes", f"names a layer that is none of the {layers:,}")
    return len(set(read))


def _numbers(k: Keys, key: str, default: tuple[int, ...]) -> list[int]:
    given = k.config.get(key, list(default))
    if not isinstance(given, list) or any(type(i) is not int or i < 0 for i in given):
        k.fail(key, f"must be a list of the numbers of layers, not {shown(given)}")
        return []
    return given


def _patches(t: Tape, bias: bool) -> Tensor:
    """Patches of all images, cast to the dtype of the weights, as tokens."""
    pixels = t.input("pixel_values", (B, CHANNELS, HEIGHT, WIDTH), "fp32", needs_grad=False)
    pixels = cast(t, pixels, t.parameter_dtype, "pixel_values, cast")
    return wanted(t, patches(t, "patch_embed.proj", pixels, (B, PATCHES, D), bias))


def _embed(t: Tape, s: Structure) -> Tensor:
    x = _patches(t, bias=False)
    if s.family == QWEN2:
        return x
    return taken(t, x, HIDDEN, (B, MERGED), "in order of windows")


def _embed_placed(t: Tape, s: Structure) -> Tensor:
    """A position is a mean of four rows of a square table, by where it lies between them."""
    x = _patches(t, bias=True)
    rows = t.new("rows of positions", (B, PATCHES, TAPS), "int64")
    placed = embedding(t, "pos_embed", rows, POSITIONS, D, tied=False)
    shares = t.new("shares of rows", (B, PATCHES, TAPS, ONE), "fp32")
    placed = summed(t, multiply(t, placed, shares, "positions, weighted"), HIDDEN, "positions")
    return add(t, x, cast(t, placed, x.dtype, "positions, cast"), "with positions")


def _layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    """Of Qwen2.5-VL: RMSNorm and a gated MLP."""
    x = add(t, x, _attention(t, s, rms_norm(t, x, "norm1"), kind), "residual")
    return add(t, x, gated_mlp(t, s, rms_norm(t, x, "norm2")), "residual")


def _plain_layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    """Of Qwen2-VL and Qwen3-VL: norms with biases, and two products."""
    x = add(t, x, _attention(t, s, layer_norm(t, x, D, "norm1"), kind), "residual")
    names = ("fc1", "fc2") if s.family == QWEN2 else ("linear_fc1", "linear_fc2")
    with t.scope("mlp"):
        h = plain_mlp(t, layer_norm(t, x, D, "norm2"), s.traits.activation, True, names)
    return add(t, x, h, "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("attn", Part.ATTENTION):
        joint = linear(t, "qkv", x, D, QKV / TP, bias=True)
        q, k, v = split(t, joint, [(B, S, Q / TP)] * 3)
        q, k = _turned(t, *(heads_first(t, h, QUERIES, copies_grad=False) for h in (q, k)))
        v = heads_first(t, v, KEYS, copies_grad=False)
        with t.scope("core", Part.CORE):
            out = _core(t, s, q, k, v, kind)
        return linear(t, "proj", out, Q / TP, D, bias=True)


def _turned(t: Tape, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys turned in fp32, by tables that each image has of its own."""
    q32, k32 = cast(t, q, "fp32", "q (fp32)"), cast(t, k, "fp32", "k (fp32)")
    shape = (B, 1, S, ROTARY)
    tables = (
        t.shared("rotary cos of patches", shape, "fp32", Role.ANGLES),
        t.shared("rotary sin of patches", shape, "fp32"),
    )
    qs, ks = (
        rotate(t, h, *tables, HALF_ROTARY, n) for h, n in ((q32, "q_rotary"), (k32, "k_rotary"))
    )
    q, k = cast(t, qs, q.dtype, "q_rotary, cast"), cast(t, ks, k.dtype, "k_rotary, cast")
    t.use(q32, k32, ks)
    return q, k


def _core(t: Tape, s: Structure, q: Tensor, k: Tensor, v: Tensor, kind: str) -> Tensor:
    met: Shape = (PAIRS,) if kind == IN_WINDOWS else (S, S)
    scores: Shape = (B, HEADS / TP, *met)
    product = (*scores, HEAD_DIM)
    if s.attention == "eager":
        seen = matmul(t, q, k, scores, HEAD_DIM, "scores")
        seen = cast(t, scale(t, seen, "scores, scaled"), "fp32", "scores (fp32)")
        seen = cast(t, softmax(t, seen, "softmax", "fp32"), v.dtype, "probabilities")
        out = matmul(t, seen, v, QUERIES, S, "weighted values", multiplied=product)
        out = contiguous(t, out, (B, S, Q / TP), "joined heads")
    else:
        every = (2, *product)  # no causal mask halves it
        out = flash_attention(t, q, k, v, (B, HEADS / TP, S), every, s.attention)
        out = heads_first(t, out, (B, S, Q / TP), copies_grad=False)
        if s.attention == "flash" or s.served:
            return out
    return contiguous(t, out, (B, S, Q / TP), "joined parts of images")


def bridge(t: Tape, s: Structure, x: Tensor) -> list[Tensor]:
    """Patches joined to tokens of the text's width, which take their places in the text; and what
    DeepStack makes of layers before the last, which the first layers of the text add."""
    assert s.tower
    family = s.tower.family
    images, tokens = (of_stack(VISION, f) for f in (B, MERGED))
    with t.scope("merger"):
        h = _merged(t, family, x)
    if family == QWEN2_5:
        h = taken(t, h, h.shape, (images, tokens), "in their own order")
    h = contiguous(t, h, h.shape, "features in one row")
    read = [_read_apart(t, i, x) for i in range(s.tower.traits.deepstack)]
    return [scattered_into(t, t.carry("text embeddings", HIDDEN, t.parameter_dtype), h), *read]


def _merged(t: Tape, family: str, x: Tensor, normed_first: bool = True) -> Tensor:
    """`normed_first`: patches are, before some of them become a token."""
    images, wide, tokens, joined = (of_stack(VISION, f) for f in (B, D, MERGED, MERGED_D))
    names = ("linear_fc1", "linear_fc2") if family == QWEN3 else ("mlp.0", "mlp.2")
    norm = "norm" if family == QWEN3 else "ln_q"
    if normed_first and family == QWEN2_5:
        x = rms_norm(t, x, norm, wide)
    elif normed_first:
        x = layer_norm(t, x, wide, norm)
    (x,) = split(t, x, [(images, tokens, joined)])
    if not normed_first:
        x = layer_norm(t, x, joined, norm)
    h = linear(t, names[0], x, joined, joined, bias=True)
    return linear(t, names[1], activation(t, h, "gelu"), joined, D, bias=True)


def _read_apart(t: Tape, i: int, x: Tensor) -> Tensor:
    """Tokens made of what the next layer of the tower reads too, which counts it."""
    with t.scope(f"deepstack_merger_list.{i}"):
        h = _merged(t, QWEN3, t.made_elsewhere("states of a layer", x.shape, x.dtype), False)
        return contiguous(t, h, h.shape, "features in one row")


def deepened(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """x, with what DeepStack made for this layer added to the tokens of images, in a copy."""
    shape = (*(of_stack(VISION, f) for f in (B, MERGED)), D)
    assert s.tower
    every = t.shared("deepstack features", (s.tower.traits.deepstack, *shape), x.dtype)
    t.start("deepstack", x, every)
    out = t.new("with features", x.shape, x.dtype)
    t.free(*(t.new(name, shape, x.dtype) for name in ("tokens of images", "with features added")))

    def backward(g: Gradients) -> Gradients:
        zeroed, rows = t.new("grad, zeroed", x.shape, x.dtype), t.new("rows", shape, x.dtype)
        padded = t.new("grad, padded", x.shape, x.dtype)
        t.free(zeroed, rows, padded)
        return [t.new("grad", x.shape, x.dtype)]

    # The mask, which what leads from the tower keeps where it has a gradient.
    places = [t.shared("places of the images", (B, S), "bool")] if s.untold else []
    t.finish("deepstack", [x], out, places, backward)
    return out


def no_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    raise NotImplementedError("a tower has no head")


QWEN2, QWEN2_5, QWEN3 = "qwen2_vl_vision", "qwen2_5_vl_vision", "qwen3_vl_vision"


def _never(k: Keys) -> Model:
    raise NotImplementedError("a tower is read with its text: of_config")


FAMILIES: dict[str, Family] = {}  # none of them is trained alone
TOWERS = {
    QWEN2: Family(_never, _embed, _plain_layer, no_head),
    QWEN2_5: Family(_never, _embed, _layer, no_head),
    QWEN3: Family(_never, _embed_placed, _plain_layer, no_head),
}
