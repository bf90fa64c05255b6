"""Stored: in which type each weight of a served model is.

llama.cpp's mixtures follow llama_tensor_get_type and tensor_allows_quantization in
src/llama-quant.cpp (November 2026, in llama-cpp-python 0.3.36): what a matrix is for, and in which
layer, decides its type. Norms, biases and routers stay in fp32 there. IQ4_XS and IQ4_NL are taken
to be made with an importance matrix, as bartowski, unsloth and mradermacher (i1) make theirs (1 %
less), and Q4_0 without, as Google, Ollama and ggml-org (0.4 % less).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from memcore.cache import cached
from memcore.layers.experts import is_matrix
from memcore.models.model import Model
from memcore.models.quantization import on_disk, stored_as
from memcore.tape.dims import VOCAB, Cut, Factor
from memcore.tape.tape import Storage
from memcore.words.stored import WeightDtype, bits, of_bits

REST, EMBEDDING, HEAD, EXPERTS, MLP = "rest", "embedding", "head", "experts", "mlp"
VALUES, KEYS, OUTPUT, MATRIX = "values", "keys", "output", "matrix"
STATES, SPLIT_VALUES = "projection of states", "keys' and values' second projection"

_MIXERS = ("linear_attn", "mamba", "mixer", "conv")  # whose outputs are no attention's
_SMALL = (  # AltUp's and LAuReL's
    *("altup.prediction_coefs", "altup.correction_coefs", "laurel.linear_left"),
    "laurel.linear_right",
    *(f"altup_{name}.{i}" for name in ("projections", "unembed_projections") for i in range(3)),
)

_PATHS = (  # the first that a parameter's path ends in says what it is for, as llama.cpp reads it
    (REST, ("bias", "sinks", "gate.logits.weight", "router.logits.weight", "router.weight")),
    (REST, ("embed_positions.weight", "wpe.weight", "shared_expert_gate.logits.weight")),
    (REST, ("conv1d.weight", "conv.conv.weight", "per_layer_model_projection.weight")),
    (REST, tuple(f"{name}.weight" for name in _SMALL)),
    (HEAD, ("lm_head.weight",)),
    (EMBEDDING, ("embed_tokens_per_layer.weight",)),
    (STATES, ("linear_attn.in_proj_qkvz.weight",)),
    (MATRIX, tuple(f"{mixer}.out_proj.weight" for mixer in _MIXERS)),
    (VALUES, ("v_proj.weight", "query_key_value.weight", "qkv_proj.weight", "c_attn.weight")),
    (SPLIT_VALUES, ("kv_b_proj.weight",)),
    (KEYS, ("k_proj.weight",)),
    (OUTPUT, ("o_proj.weight", "out_proj.weight", "attention.dense.weight", "attn.c_proj.weight")),
)
_MLP = (".mlp.", ".feed_forward.", ".block_sparse_moe.", ".fc1.", ".fc2.")
_DOWN = (
    *("down_proj", "down_proj.weight", "dense_4h_to_h.weight", "fc2.weight", "mlp.c_proj.weight"),
    *("shared_mlp.output_linear.weight", "feed_forward.w2.weight"),
)


@cached
def role(p: Storage) -> str:
    """What a parameter is for."""
    found = next((role for role, ends in _PATHS if p.path.endswith(ends)), "")
    if found == REST or not is_matrix(p):
        return REST
    if VOCAB in map(whole, p.shape) and not found:
        return EMBEDDING
    if len(p.shape) == 3:
        return EXPERTS
    return found or (MLP if any(word in p.path for word in _MLP) else MATRIX)


def whole(f: Factor) -> Factor:
    """A dimension before it was cut."""
    while isinstance(f, Cut):
        f = f.dim  # type: ignore[assignment]
    return f


def width(p: Storage, model: Model) -> Factor:
    """How many values a row of a matrix has, whole: those that one result is summed from."""
    by_rows = model.family == "gpt2" or (
        len(p.shape) == 3 and model.family in ("gpt_oss", "llama4_text")
    )
    return whole(p.shape[-2 if by_rows and len(p.shape) > 1 else -1])


def types(
    dtype: WeightDtype, model: Model, p: Storage, layers: Iterable[int], row: int
) -> dict[str, int]:
    """The types that a weight has in some layers, and in how many. `row`: values in a row of it. A
    dynamic file's, which differ by model, are those of its mixture by how many bytes it has."""
    if dtype.files:
        return dict(_on_disk(dtype, model, p, tuple(layers), row))
    what = role(p)
    if what == REST:
        return {dtype.rest or dtype.compute: sum(1 for _ in layers)}
    if dtype.modules:
        return _by_name(dtype, model, p, tuple(layers), row)
    if dtype.dynamic:
        by = dtype.dynamic.states if model.recurrence else dtype.dynamic.usual
        of_mixture = types(replace(dtype, dynamic=None), model, p, layers, row)
        return {of_bits(bits(kind) * by): n for kind, n in of_mixture.items()}
    if what == EXPERTS and dtype.experts:
        return {dtype.experts: sum(1 for _ in layers)}
    if dtype.recipe in RECIPES:
        if what in (HEAD, EMBEDDING):
            return {_of_tokens(dtype, model, what, row): 1}
        found = (_mixed(dtype, model, what, p.path, i, row) for i in layers)
        return dict(Counter(found))
    if what == EMBEDDING:
        return {dtype.outer or dtype.compute: 1}
    if what == HEAD:
        return {dtype.head or dtype.outer or dtype.compute: 1}
    if dtype.recipe == "experts" and model.experts and what != EXPERTS:
        return {dtype.compute: sum(1 for _ in layers)}
    if dtype.recipe == "mlp":
        ends = (0, model.layers - 1)
        inner = what in (MLP, EXPERTS)
        found = (dtype.matrices if inner and i not in ends else dtype.compute for i in layers)
        return dict(Counter(found))
    return {dtype.matrices: sum(1 for _ in layers)}


@cached
def _on_disk(
    dtype: WeightDtype, model: Model, p: Storage, layers: tuple[int, ...], row: int
) -> Counter[str]:
    """The same of weights on disk, by their headers; of a weight that is not there, as others."""
    found: Counter[str] = Counter()
    for i in layers:
        kind = on_disk(dtype.files, p.path, i)
        found.update([kind] if kind else types(replace(dtype, files=()), model, p, (i,), row))
    return found


@cached
def _by_name(
    dtype: WeightDtype, model: Model, p: Storage, layers: tuple[int, ...], row: int
) -> dict[str, int]:
    """The same where a file says of some modules how they are stored."""
    others = replace(dtype, modules=())
    found: Counter[str] = Counter()
    for i in layers:
        kind = stored_as(dtype.modules, p.path, i)
        if kind is None:
            found.update(types(others, model, p, (i,), row))
        else:
            found[kind or dtype.compute] += 1
    return dict(found)


def _more(i: int, n: int) -> bool:
    """use_more_bits: the first and the last eighth of the layers, and every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


Rule = Callable[[int, int, Model], str]  # layer, layers, model -> type, '' for the mixture's own


def _grouped(model: Model) -> bool:
    return model.heads >= 4 * model.kv_heads


def _half(i: int, n: int, model: Model) -> str:
    """More in half of the layers."""
    return "Q6_K" if _more(i, n) else ""


def _own(i: int, n: int, model: Model) -> str:
    return ""


# Of values (and joint projections), of what an MLP ends in, of attention's output.
RECIPES: dict[str, tuple[Rule, Rule, Rule]] = {
    **dict.fromkeys(("Q4_K_M", "Q5_K_M"), (_half, _half, _own)),
    "Q4_K_S": (
        lambda i, n, m: "Q5_K" if i < 4 else "",
        lambda i, n, m: "Q5_K" if i < n // 8 and m.family != "falcon" else "",
        _own,
    ),
    "Q3_K_L": (
        lambda i, n, m: "Q5_K",
        lambda i, n, m: "Q4_K" if m.family == "falcon" else "Q5_K",
        lambda i, n, m: "Q4_K" if m.family == "falcon" else "Q5_K",
    ),
    "Q3_K_M": (
        lambda i, n, m: "Q5_K" if i < 2 else "Q4_K",
        lambda i, n, m: "Q5_K" if i < n // 16 else "Q4_K",
        lambda i, n, m: "" if m.family == "falcon" else "Q4_K",
    ),
    "Q2_K": (
        lambda i, n, m: "Q4_K" if _grouped(m) else "Q3_K",
        lambda i, n, m: "Q3_K",
        lambda i, n, m: "" if m.family == "falcon" else "Q3_K",
    ),
    **dict.fromkeys(
        ("IQ4_XS", "IQ4_NL"), (lambda i, n, m: "Q5_K" if _grouped(m) else "", _own, _own)
    ),
    **dict.fromkeys(("Q8_0", "Q6_K", "Q5_K_S", "Q4_0", "Q3_K_S"), (_own, _own, _own)),
}
_OF_EIGHT = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS")  # outputs get more
FALCON = {  # what its MLPs end in: the first sixteenth, where there is more, elsewhere
    "Q4_K_M": ("Q6_K", "Q5_K", "Q4_K"),
    "Q3_K_M": ("Q5_K", "Q4_K", "Q3_K"),
}


def _mixed(dtype: WeightDtype, model: Model, what: str, path: str, i: int, row: int) -> str:
    """The type of one matrix of layer `i`; of one that a file has as two, their mean."""
    own = dtype.matrices
    if what == STATES:  # attn_qkv, which counts as values, and attn_gate
        of_values = _fitting(_of_layer(dtype, model, VALUES, path, i), row)
        return _mean(of_values, _fitting(own, row), _convolved(model))
    if what == SPLIT_VALUES:  # attn_k_b, turned around, and attn_v_b
        return _mean(_fitting(own, model.head_dim - model.rotary_dim), _fitting(own, row), 0.5)
    return _fitting(_of_layer(dtype, model, what, path, i), row)


def _convolved(model: Model) -> float:
    """Queries', keys' and values' share of the projection that makes a gate too."""
    states = model.recurrence
    if states is None:
        return 1
    inner, keys = states.heads * states.head_dim, 2 * states.groups * states.state
    return (keys + inner) / (keys + 2 * inner)


def _mean(one: str, other: str, share: float) -> str:
    if one == other:
        return one
    return of_bits(share * bits(one) + (1 - share) * bits(other))


def _of_layer(dtype: WeightDtype, model: Model, what: str, path: str, i: int) -> str:
    """What the mixture has for a matrix of layer `i`, whose rows are taken to fit."""
    values, ends, output = RECIPES[dtype.recipe]
    n, own, eight = model.layers, dtype.matrices, model.experts == 8
    down = path.endswith(_DOWN)
    if down and model.family == "falcon" and dtype.recipe in FALCON:
        first, more, rest = FALCON[dtype.recipe]
        return first if i < n // 16 else more if _more(i, n) else rest
    if down:
        return ends(i, n, model) or own
    if what in (VALUES, KEYS) and eight:
        return "Q8_0"
    if what == VALUES:
        found = values(i, n, model) or own
        big = n == 80 and model.heads != model.kv_heads  # llama.cpp's LLM_TYPE_70B
        return "Q5_K" if big and found in ("Q3_K", "Q4_K") else found
    if what == OUTPUT:
        if eight and model.family != "falcon":
            return "Q5_K" if dtype.recipe in _OF_EIGHT else own
        return output(i, n, model) or own
    return own


def _of_tokens(dtype: WeightDtype, model: Model, what: str, row: int) -> str:
    """The type of the head, or of the embedding, which is stored as a head where it is one too."""
    if what == EMBEDDING and not model.traits.tied_embeddings:
        return _fitting(dtype.outer, row)
    if dtype.head:
        return _fitting(dtype.head, row)
    if model.family == "falcon" or dtype.matrices == "Q8_0" or row % _block(dtype.matrices):
        return _fitting("Q8_0", row)
    return _fitting("Q6_K", row)


def _block(kind: str) -> int:
    return 256 if kind.endswith("_K") or kind == "IQ4_XS" else 32


_SMALLER = {  # in blocks of 32
    "Q6_K": "Q8_0",
    "Q5_K": "Q5_1",
    "Q4_K": "Q5_0",
    "Q3_K": "Q4_0",
    "Q2_K": "Q4_0",
    "IQ4_XS": "IQ4_NL",
}


def _fitting(kind: str, row: int) -> str:
    """What llama.cpp takes instead where a row is no multiple of the type's block."""
    if row % _block(kind) == 0:
        return kind
    return _SMALLER[kind] if kind in _SMALLER and row % 32 == 0 else "fp16"


_JOINED = {  # vLLM's packed_modules_mapping, and DeepSeek's fused_qkv_a_proj
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "q_a_proj": "fused_qkv_a_proj",
    "kv_a_proj_with_mqa": "fused_qkv_a_proj",
}


def joined(path: str) -> str:
    """The path of the tensor that a serving engine keeps a parameter in."""
    *where, matrix, what = path.split(".")
    return ".".join((*where, _JOINED.get(matrix, matrix), what))
