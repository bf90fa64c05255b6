"""CLIP and its towers. Of images: a class token and patches, a norm before the first layer. Of
text: as the encoder of Stable Diffusion and FLUX (CLIPTextModel), every token sees those before it.
SigLIP's tower of images has patches alone, no class token.

CLIPModel learns which image of a batch belongs to which text: of each image the class token, of
each text its last token are projected to one width, and every one is compared with every other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from memcore.layers.ops import (
    HIDDEN,
    TOKENS,
    attended,
    by_heads,
    labelled_loss,
    plain_mlp,
    unread,
    value_heads,
)
from memcore.models.config import Keys
from memcore.models.families import llava, vit
from memcore.models.families.decoders import model_of
from memcore.models.families.family import MASK, Family, encoder
from memcore.models.model import Model
from memcore.tape.dims import (
    CP,
    ONE,
    PATCHES,
    POSITIONS,
    PROJECTED,
    TP,
    VOCAB,
    B,
    D,
    Factor,
    Q,
    S,
    of_stack,
)
from memcore.tape.kinds import Part
from memcore.tape.primitives import (
    add,
    contiguous,
    embedding,
    keeps_input,
    keeps_result,
    layer_norm,
    linear,
    matmul,
    multiply,
    patches,
    scale,
    split,
    unary,
)
from memcore.tape.structure import ALIKE, EMBEDDING, Structure
from memcore.tape.tape import Tape, Tensor


def _config(k: Keys) -> Model:
    return replace(model_of(k, "clip_vision_model"), stack="vision")


def _embed(t: Tape, s: Structure) -> Tensor:
    x = patches(t, "patch_embedding", vit.pixels_of(t), (B, PATCHES, D), bias=False)
    token = t.parameter("class_embedding", (D,))
    x = contiguous(t, Tensor(token.storage, (B, 1, D), token.dtype, True), HIDDEN, "joined", x)
    return layer_norm(t, _placed(t, x), D, "pre_layrnorm")


def _placed(t: Tape, x: Tensor) -> Tensor:
    positions = t.shared("position_ids", (ONE, POSITIONS), "int64")
    placed = embedding(t, "position_embedding", positions, POSITIONS, D, tied=False)
    return add(t, x, placed, "with positions")


def _vision(k: Keys) -> Model:
    """The tower by itself, with what images are compared by where its class has that."""
    return _projected(k, replace(_config(k), stack=""))


def _text(k: Keys) -> Model:
    return _projected(k, model_of(k, "clip_text_model"))


def _projected(k: Keys, model: Model) -> Model:
    return replace(model, projection=k.count("projection_dim", 512)) if k.head == ALIKE else model


def embed_text(t: Tape, s: Structure) -> Tensor:
    ids = t.input("input_ids", TOKENS, "int64", needs_grad=False)
    x = embedding(t, "token_embedding", ids, VOCAB / TP, D, tied=False)
    places = t.shared("position_ids", (1, S / CP), "int64")  # from a buffer
    placed = embedding(t, "position_embedding", places, POSITIONS, D, tied=False)
    return add(t, x, placed, "with positions")


def _text_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    x = layer_norm(t, x, D, "final_layer_norm")
    return _told(t, x) if s.head == ALIKE else x


def _told(t: Tape, x: Tensor) -> Tensor:
    """What texts are compared by: of each its last token."""
    ids = t.new("sequences", (B,), "int64"), t.new("last tokens", (B,), "int64")
    t.start("last tokens", x)
    last = t.new("of the last tokens", (B, D), x.dtype)
    t.finish("last tokens", [x], last, [*ids], t.grads("grad", x))
    return linear(t, "text_projection", last, D, PROJECTED, bias=False)


def _seen(t: Tape, x: Tensor, images: Factor, width: Factor) -> Tensor:
    """What images are compared by: of each the token of its class."""
    (first,) = split(t, x, [(images, width)], sliced=True)
    first = layer_norm(t, first, width, "post_layernorm")
    return linear(t, "visual_projection", first, width, PROJECTED, bias=False)


def _vision_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    if s.head == ALIKE:
        return _seen(t, x, B, D)
    unread(t, "post_layernorm", D)  # of the class token
    return x


def _both(k: Keys) -> Model:
    """The tower of images, and that of text behind it; what a `_dict` says of either overrides."""
    for name in ("text_config", "vision_config"):
        over = k.config.get(f"{name}_dict")
        if isinstance(over, Mapping) and isinstance(k.config.get(name), Mapping):
            k.config = {**k.config, name: {**k.config[name], **over}}
    text = llava.part(k, "text_config", "clip_text_model", {"clip_text_model": TEXT}, {})
    vision = llava.part(k, "vision_config", "clip_vision_model", {"clip_vision_model": TOWER}, {})
    image = replace(vision.image, merged=1) if vision.image else None  # it takes no place in a text
    k.config.get("logit_scale_init_value")  # a number to start with
    return replace(
        text, family="clip", tower=replace(vision, image=image),
        projection=k.count("projection_dim", 512),
    )  # fmt: skip


def _bridge(t: Tape, s: Structure, x: Tensor) -> Sequence[Tensor]:
    """What images are compared by, and the text's embedding."""
    seen = _seen(t, x, of_stack(llava.VISION, B), of_stack(llava.VISION, D))
    return embed_text(t, s), seen


def _compared(t: Tape, s: Structure, x: Tensor) -> Tensor:
    """Every text with every image, and the loss over either."""
    told = _told(t, layer_norm(t, x, D, "final_layer_norm"))
    seen = t.carry("images", (B, PROJECTED), t.parameter_dtype)
    seen, told = (_of_length_one(t, each, name) for each, name in ((seen, "i"), (told, "t")))
    pairs = (B, of_stack(llava.VISION, B))
    logits = matmul(t, told, seen, pairs, PROJECTED, "similarity", "mm")
    scaled = keeps_result(t, t.parameter("logit_scale", (ONE,)), "exp")
    logits = multiply(t, logits, scaled, "similarity, scaled")
    return scale(t, add(t, labelled_loss(t, logits), labelled_loss(t, logits), "both"), "half")


def _of_length_one(t: Tape, x: Tensor, name: str) -> Tensor:
    squares = keeps_input(t, x, f"{name}, squares")
    total = unary(t, squares, f"{name}, sum", (x.shape[0], 1), grad=f"{name} grad")
    return multiply(t, x, keeps_input(t, total, f"{name}, root"), f"{name}, of length one")


def layer(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    x = add(t, x, _attention(t, s, layer_norm(t, x, D, "layer_norm1"), kind), "residual")
    with t.scope("mlp"):
        h = layer_norm(t, x, D, "layer_norm2")
        h = plain_mlp(t, h, s.traits.activation, True, ("fc1", "fc2"))
    return add(t, x, h, "residual")


def _attention(t: Tape, s: Structure, x: Tensor, kind: str) -> Tensor:
    with t.scope("self_attn", Part.ATTENTION):
        q, k, v = (linear(t, n, x, D, Q / TP, bias=True) for n in ("q_proj", "k_proj", "v_proj"))
        q, k = by_heads(t, q, k, copies_grad=s.attention == "eager")
        return attended(
            t, s, q, k, value_heads(t, s, v), kind, "out_proj", bias=True, softmax_fp32=True
        )


def no_head(t: Tape, s: Structure, x: Tensor) -> Tensor:
    raise NotImplementedError("a tower has no head")


TOWER = Family(_config, _embed, layer, no_head)
TEXT = encoder(
    _text, embed_text, layer, _text_head,
    {"CLIPTextModel": EMBEDDING, "CLIPTextModelWithProjection": ALIKE}, arguments=MASK,
)  # fmt: skip
FAMILIES = {
    "clip": encoder(
        _both, embed_text, layer, _compared, {"CLIPModel": ALIKE}, bridge=_bridge, arguments=MASK,
        unsharded="FSDP2 refuses its logit_scale, a parameter without a dimension",
    ),
    "clip_vision_model": encoder(
        _vision, _embed, layer, _vision_head,
        {"CLIPVisionModel": EMBEDDING, "CLIPVisionModelWithProjection": ALIKE},
    ),
    "clip_text_model": TEXT,
}  # fmt: skip
