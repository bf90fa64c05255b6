"""Decoders: what the rows of presets/families/families.toml make of a config.json: windows, experts
and sizes of Llama's form, or a Model's fields as formulas."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from memcore.layers.ops import slides
from memcore.models.config import ACTIVATIONS, Keys
from memcore.models.families.family import Family, heads_of, layer_kinds
from memcore.models.families.rows import Row, Sizes, classes_of, rows, spelled_out
from memcore.models.formulas import value_of
from memcore.models.model import Image, Model, Recurrence
from memcore.tape.kinds import EVERY, FULL, FULL_NOPE, SLIDING, is_dense
from memcore.tape.kinds import dense as as_dense
from memcore.tape.structure import Structure, Traits
from memcore.tape.tape import Tape, Tensor
from memcore.units import bytes_text

ENCODER = "encoder"  # the stack before a decoder
FIELDS = ("aliases", "note", "untrained", "cuts_experts", "alone")  # of Family, as rows have them
LLAMA = {
    "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32_000, "max_position_embeddings": 2048,
    "tie_word_embeddings": False, "hidden_act": "silu", "attention_dropout": 0.0,
}  # fmt: skip


def llama_like(
    k: Keys, family: str, activations: Mapping[str, str] = ACTIVATIONS, **more: Any
) -> Model:
    """The keys that Llama's relatives share, with the defaults and traits that the row of one in
    presets/families/families.toml has, and `more` traits. `out_bias` is as `attention_bias` unless
    it is said; of a default `partial_rotary_factor` a config.json may say another."""
    row = spelled_out(rows("families")[family], "families")
    usual = LLAMA | row.get("defaults", {})
    traits = traits_of(k, row) | more
    traits.setdefault("out_bias", traits.get("attention_bias", False))
    hidden = k.count("hidden_size", usual["hidden_size"])
    heads = k.count("num_attention_heads", usual["num_attention_heads"], 10**6)
    default_kv = usual.get("num_key_value_heads", heads)
    absent = "num_key_value_heads" not in k.config
    if default_kv != heads:
        k.assume("num_key_value_heads", default_kv)
    kv = default_kv if absent else k.count_or("num_key_value_heads", heads, 10**6)
    head_dim = usual.get("head_dim")
    if head_dim is None and "head_dim" not in k.config:
        head_dim = usual.get("absent_head_dim")  # which a null does not stand for
    if head_dim is None:
        heads_of(k, hidden, heads, kv)
        dim = k.count_or("head_dim", max(1, hidden // heads), 10**6)
    else:
        k.divides("num_attention_heads", heads, "num_key_value_heads", kv)
        dim = k.count("head_dim", head_dim, 10**6)
    n = k.count("num_hidden_layers", usual["num_hidden_layers"], 100_000)
    positions = k.count("max_position_embeddings", usual["max_position_embeddings"])
    model = Model(
        family=family,
        layers=n,
        hidden_size=hidden,
        intermediate_size=k.count("intermediate_size", usual["intermediate_size"]),
        heads=heads,
        kv_heads=kv,
        head_dim=dim,
        rotary_dim=dim,
        rotary_tables=(("", math.ceil(positions * k.stretch)),),
        vocab_size=k.count("vocab_size", usual["vocab_size"]),
        max_positions=positions,
        traits=Traits(
            activation=k.word("hidden_act", usual["hidden_act"], activations),
            tied_embeddings=k.flag("tie_word_embeddings", usual["tie_word_embeddings"]),
            attention_dropout=k.dropout("attention_dropout", usual["attention_dropout"]),
            **traits,
        ),
    )
    if "partial_rotary_factor" in usual:
        turned = k.rope("partial_rotary_factor", usual["partial_rotary_factor"])
        model = replace(model, rotary_dim=int(dim * turned))
    said = _said(k, model, row)
    model = replace(model, **{name: said.of(value) for name, value in row.get("more", {}).items()})
    return _mixed(k, _sliding(k, model, row), row)


def _said(k: Keys, model: Model, row: Row) -> Sizes:
    """What names in formulas stand for, of a model of Llama's form: its own sizes too."""
    return Sizes(
        {"parts": {}, "keys": {}, **row}, k, layers=model.layers, heads=model.heads,
        hidden_size=model.hidden_size, intermediate_size=model.intermediate_size,
    )  # fmt: skip


def _sliding(k: Keys, model: Model, row: Row) -> Model:
    """The model with the windows that its row and its file say."""
    window = row.get("window")
    if window is None:
        return model
    said, usual = _said(k, model, row), window.get("size")
    there = window.get("needed", False) or k.config.get("sliding_window", usual) is not None
    if not there and "uses" not in window:
        return model
    uses = there and said.of(window.get("uses", True))
    kinds = (SLIDING,) * model.layers
    if "slides" in window:
        slide = each_layer(said, window["slides"])
        kinds = layer_kinds(k, model.layers, lambda i: uses and slide(i))
    if not uses:
        return model
    if window.get("nope"):  # of layers that see all tokens
        each = kinds or (FULL,) * model.layers
        kinds = tuple(kind if kind == SLIDING else FULL_NOPE for kind in each)
        model = replace(model, kinds=kinds)
    return windowed(model, k.count("sliding_window", usual or 1), kinds)


def _mixed(k: Keys, model: Model, row: Row) -> Model:
    """The model with the experts that its row and its file say."""
    experts = row.get("experts")
    if experts is None:
        return model
    said = _said(k, model, row)
    (key, many), (sent_to, most) = experts["many"], experts["each"]
    routed = routing(k, key, many, most, sent_to=sent_to)
    model = with_experts(model, routed, said.of(experts.get("size", "intermediate_size")))
    if "shared" in experts:
        model = replace(model, shared_size=said.of(experts["shared"]))
    if "dense" not in experts:
        return model
    dense = each_layer(said, experts["dense"])
    return sparse_kinds(model, lambda i: not dense(i))


def each_layer(said: Sizes, formula: str) -> Callable[[int], bool]:
    """Whether a formula of i holds of the i-th layer."""
    return lambda i: bool(value_of(formula, ChainMap({"i": i}, said)))  # type: ignore[arg-type]


def traits_of(k: Keys, row: Row) -> dict[str, Any]:
    """Traits that a row has, or that keys say: of the same name, or as a formula."""
    flags = row.get("flags", {})
    sizes = Sizes({"parts": {}, **row, "keys": {**flags, **row.get("keys", {})}}, k)
    sizes.check()
    return {name: sizes[name] for name in flags} | {
        name: sizes.of(value) for name, value in row.get("traits", {}).items()
    }


def model_of(k: Keys, family: str, **let: str) -> Model:
    """The model of a row that has a Model's fields as formulas. `let`: names that it has itself."""
    row = spelled_out(rows("families")[family], "families")
    row = {**row, "let": row.get("let", {}) | let}
    sizes = Sizes({"parts": {}, **row, "keys": {**row["keys"], **row.get("flags", {})}}, k)
    sizes.check()
    fields = {name: sizes.of(value) for name, value in row["model"].items()}
    fields = {name: tuple(f) if isinstance(f, list) else f for name, f in fields.items()}
    if "image" in row:
        seen = row["image"]
        image = image_of(k, seen["side"], seen["patch"], sizes.of(seen["extra"]))
        image = replace(image, free=seen.get("free", False))
        fields |= {"image": image, "max_positions": image.tokens, "position_rows": image.tokens}
    if "recurrence" in row:
        said = {name: sizes.of(value) for name, value in row["recurrence"].items()}
        fields["recurrence"] = Recurrence(**said)
    own = {name: sizes[name] for name in row.get("flags", {})}
    own |= {name: sizes.of(value) for name, value in row["traits"].items()}
    for inner in sizes.inside.values():
        inner.check()
    sizes.absorb()
    return Model(family=family, traits=Traits(**own), **fields)


def image_of(k: Keys, size: int, patch: int, extra: int) -> Image:
    """`image_size` and `patch_size`: numbers, or height and width."""
    height, width = k.pair("image_size", size)
    patch_height, patch_width = k.pair("patch_size", patch)
    if patch_height > height or patch_width > width:
        k.fail("patch_size", "must not be larger than image_size")
    channels = k.count("num_channels", 3, 1000)
    return Image(height, width, patch_height, patch_width, channels, extra)


def with_encoder(k: Keys, family: str, encoder: str, **let: str) -> Model:
    """A decoder, and the encoder before it, whose keys are called so; `let`: as in `model_of`."""
    names = {"layers": "layers", "heads": "attention_heads", "inner": "ffn_dim"}
    named = {name: f"encoder_{key}" for name, key in names.items()}
    before = model_of(k, family, **named, **let)
    tower = replace(before, family=encoder, kinds=(EVERY,) * before.layers, stack=ENCODER)
    return replace(model_of(k, family), tower=tower)


def family_of(
    name: str,
    config: Callable[[Keys], Model] | None,
    embed: Callable[[Tape, Structure], Tensor | Sequence[Tensor]],
    layer: Callable[[Tape, Structure, Tensor, str], Tensor | Sequence[Tensor]],
    head: Callable[[Tape, Structure, Tensor], Tensor],
    **own: Any,
) -> Family:
    """The family of a row: its classes and words as the row has them, and what its files say where
    there is no `config`. `own`: what else it has of a Family's."""
    row = spelled_out(rows("families")[name], "families")
    config = config or partial(model_of if "model" in row else llama_like, family=name)
    said = {key: row[key] for key in FIELDS if key in row}
    said |= {key: tuple(row[key]) for key in ("kernels", "attentions") if key in row}
    return Family(config, embed, layer, head, classes=classes_of(row), **said, **own)


def windowed(model: Model, window: int, kinds: tuple[str, ...]) -> Model:
    """The model with a sliding window for layers of a sliding kind."""
    return replace(model, window=window, kinds=kinds) if any(map(slides, kinds)) else model


def routing(
    k: Keys,
    key: str,
    experts: int,
    most: int,
    whole: Keys | None = None,
    sent_to: str = "num_experts_per_tok",
) -> tuple[int, int]:
    """How many experts there are, and to how many of them a token is sent (`sent_to`); with
    defaults. `whole`: the config that these keys are inside of."""
    whole = whole or k
    experts = k.count(key, experts, 100_000)
    chosen = k.count(sent_to, most, 100_000)
    if chosen > experts:
        k.fail(sent_to, f"{chosen:,} of {experts:,} experts; use at most all of them")
    if whole.flag("output_router_logits", False):
        whole.notes.append(
            "The config.json asks for output_router_logits: transformers then adds a loss that "
            "balances the experts, which is not planned. In bf16 it keeps about "
            f"{bytes_text(2 * experts)} more for each token and each layer with experts."
        )
    return experts, chosen


def with_experts(model: Model, routed: tuple[int, int], size: int) -> Model:
    return replace(model, experts=routed[0], top_k=routed[1], expert_size=size)


def sparse_kinds(model: Model, is_sparse: Callable[[int], bool]) -> Model:
    """The model with dense layers where `is_sparse(index)` does not hold."""
    kinds = model.kinds or (FULL,) * model.layers
    kinds = tuple(kind if is_sparse(i) else as_dense(kind) for i, kind in enumerate(kinds))
    return replace(model, kinds=kinds) if len(set(kinds)) > 1 or is_dense(kinds[0]) else model
