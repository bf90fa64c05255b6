"""Stored: the dtypes of weights and caches of an engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from memcore.words.engines import LLAMA_CPP, MLX
from memcore.words.word import Word, table

# Bits of one stored value, its share of scales and zeros included; a scale for a whole row or a
# whole matrix is below 0.1 % and not counted. Sources: compressed-tensors and AutoGPTQ (an fp16
# scale and a zero as wide as a value per group); DeepSeek-V3's technical report (128 x 128 values
# per fp32 scale); bitsandbytes/functional.py; OCP Microscaling 1.0; NVIDIA's NVFP4 (an fp8 scale
# for 16); the blocks of ggml/src/ggml-common.h.
STORED_BITS = {
    "fp32": 32,
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "bf16 2:4": 16 / 2 + 2 / 2,  # of four values two, and two bits for the place of each
    "fp8 128x128": 8 + 32 / 128**2,
    "int8": 8,
    "int4 g128": 4 + (16 + 4) / 128,
    "int4 g64": 4 + (16 + 4) / 64,
    "int4 g32": 4 + (16 + 4) / 32,
    "int4 g32, 16-bit zeros": 4 + (16 + 16) / 32,
    "nf4": 4 + 32 / 64,
    "nf4, double": 4 + (8 + 32 / 256) / 64,
    "mxfp4": 4 + 8 / 32,
    "nvfp4": 4 + 8 / 16,
    "Q8_0": 8 + 16 / 32,
    "Q6_K": 6 + (16 * 8 + 16) / 256,
    "Q5_K": 5 + (12 * 8 + 32) / 256,
    "Q5_1": 5 + 32 / 32,
    "Q5_0": 5 + 16 / 32,
    "Q4_K": 4 + (12 * 8 + 32) / 256,
    "Q4_1": 4 + 32 / 32,
    "Q4_0": 4 + 16 / 32,
    "IQ4_NL": 4 + 16 / 32,
    "IQ4_XS": 4 + (16 + 16 + 32) / 256,
    "Q3_K": 3 + (12 * 8 + 16) / 256,
    "Q2_K": 2 + (16 * 8 + 32) / 256,
}


def of_bits(values: float, shared: float = 0) -> str:
    """The name of a type that STORED_BITS does not list: '4 + 0.5 bits', of a value, and of its
    share of scales and zeros."""
    return f"{values:g} + {shared:g} bits" if shared else f"{values:g} bits"


def _parts(kind: str) -> list[float]:
    return [float(part) for part in kind.removesuffix(" bits").split(" + ")]


def bits(kind: str) -> float:
    """Bits of a value of a type: of one that STORED_BITS lists, or that `of_bits` named."""
    return STORED_BITS[kind] if kind in STORED_BITS else sum(_parts(kind))


def bits_alone(kind: str) -> float:
    """Bits of a value without its share of scales, which are a tensor of their own but in
    llama.cpp's types."""
    if kind not in STORED_BITS:
        return math.floor(_parts(kind)[0])
    return STORED_BITS[kind] if kind[0] in "QI" else math.floor(STORED_BITS[kind])


def grouped(values: float, group: int, scale: float = 16, zero: float = 0) -> str:
    """The type of numbers that share a scale and a zero of so many bits for each `group` of a row;
    group 0: for a whole row, which is not counted."""
    return of_bits(values, (scale + zero) / group if group > 0 else 0)


@dataclass(frozen=True, slots=True)
class Dynamic:
    """How many bytes a dynamic file of unsloth has for one of the mixture that it is planned by.

    usual    of most models;  `states`: of those with states
    least    the least that a published file has of what is planned;  `most`: the most
    """

    usual: float
    states: float
    least: float
    most: float

    @property
    def spread(self) -> str:
        return (
            "unsloth chooses the type of each tensor by model: published files have "
            f"{1 - self.least:.0%} less to {self.most - 1:.0%} more bytes than is planned"
        )


@dataclass(frozen=True, slots=True)
class WeightDtype(Word):
    """How a served model's weights are stored, each a name that `bits` knows.

    matrices   of the layers
    compute    of activations; `product`: of the products, '' as that
    experts    their matrices, '' as the others
    outer      embedding and head, '' in compute
    head       the head alone, '' as outer
    rest       norms, biases, routers, positions; '' in compute
    recipe     how the type of a matrix depends on what it is and on its layer: stored.RECIPES
    modules    by name, how some are stored: quantization.Quantization
    engine     whose files these are: what serves where no engine is named
    dynamic    bytes of unsloth's file against the mixture's: stored.Dynamic
    """

    matrices: str
    compute: str = "bf16"
    product: str = ""
    experts: str = ""
    outer: str = ""
    head: str = ""
    rest: str = ""
    recipe: str = ""
    modules: tuple[tuple[str, str], ...] = ()
    engine: str = ""
    dynamic: Dynamic | None = None


def _gguf(name: str, matrices: str, about: str) -> WeightDtype:
    return WeightDtype(
        f"GGUF {name}", about, matrices, "fp16", outer=matrices, rest="fp32", recipe=name,
        engine=LLAMA_CPP,
    )  # fmt: skip


def _large(name: str, of: WeightDtype) -> WeightDtype:
    """bartowski's files with the embedding and the head in Q8_0."""
    about = f"As {of.label}, the embedding and the head in 8.5 bits, as bartowski publishes it."
    return replace(of, label=f"GGUF {name}", help=about, outer="Q8_0", head="Q8_0")


_STAYS = " Embedding, head, norms and routers stay in 16 bits."


def _mlx(values: int) -> WeightDtype:
    kind = grouped(values, 64, zero=16)
    return WeightDtype(
        f"MLX, {values} bits",
        f"mlx-lm: {values} bits, a scale and a bias in 16 bits for each 64, the embedding and the "
        "head too.",
        kind,
        outer=kind,
        engine=MLX,
    )


# Published files of unsloth over the bytes that the mixture has here, by November 2026, from pages
# of the Hugging Face hub, ggml-org/Llama-macOS (pull request 63) and others that give their sizes.
# Q8_K_XL: QwQ 32B 1.11, Qwen3 8B 1.24, Qwen3-Coder-Next 1.02.
# Q6_K_XL: Qwen2.5-VL 7B 1.11, Qwen3.6 35B-A3B 1.12, Qwen3-Coder-Next 1.02, Gemma 4 E2B 1.23.
# Q5_K_XL: Qwen3.6 35B-A3B 1.08, Qwen3-Coder-Next 1.02.
# Q4_K_XL: Qwen3 0.6B, 4B and 8B 1.02, 32B 1.01, QwQ 32B 1.01, Mistral Small 3.2 1.02, Gemma 4
#   26B-A4B 1.02, Qwen3 30B-A3B 0.95, MiniMax M2.1 0.95, Gemma 4 E2B 0.93; with states Qwen3.5 4B
#   1.08, 9B 1.07 and 35B-A3B 1.05, Qwen3-Coder-Next 1.03.
# Q3_K_XL: Gemma 3 1B 1.02, Qwen3.6 35B-A3B 1.01, Qwen3-Coder-Next 0.94.
# Q2_K_XL: Gemma 3 1B 1.03, Qwen3.6 35B-A3B 0.95, Gemma 4 E2B 0.80.
# The middles are of these; between the ends lie Qwen3.5 27B and Qwen3.8 27B too.
UNSLOTH = (
    ("Q8_K_XL", "q8_0", Dynamic(1.15, 1.15, 0.88, 1.08)),
    ("Q6_K_XL", "q6_k", Dynamic(1.11, 1.11, 0.92, 1.11)),
    ("Q5_K_XL", "q5_k_m", Dynamic(1.02, 1.05, 0.97, 1.07)),
    ("Q4_K_XL", "q4_k_m", Dynamic(1.015, 1.06, 0.91, 1.02)),
    ("Q3_K_XL", "q3_k_m", Dynamic(1.01, 1.01, 0.93, 1.08)),
    ("Q2_K_XL", "q2_k", Dynamic(1.0, 1.0, 0.8, 1.05)),
)


def _dynamic(name: str, of: WeightDtype, sizes: Dynamic) -> WeightDtype:
    """unsloth's dynamic files, whose types are chosen tensor by tensor for each model."""
    about = f"unsloth's dynamic files: {of.label} times what published files have."
    return replace(of, label=f"GGUF {name}", help=about, dynamic=sizes)


_GGUF = {
    "q8_0": _gguf("Q8_0", "Q8_0", "llama.cpp: 8.5 bits for every matrix."),
    "q6_k": _gguf("Q6_K", "Q6_K", "llama.cpp: 6.56 bits for every matrix."),
    "q5_k_m": _gguf("Q5_K_M", "Q5_K", "llama.cpp: 5.5 bits, 6.56 for half of the values and MLPs."),
    "q5_k_s": _gguf("Q5_K_S", "Q5_K", "llama.cpp: 5.5 bits for every matrix of a layer."),
    "q4_k_m": _gguf("Q4_K_M", "Q4_K", "llama.cpp: 4.5 bits, 6.56 for half of the values and MLPs."),
    "q4_k_s": _gguf("Q4_K_S", "Q4_K", "llama.cpp: 4.5 bits, 5.5 in the first layers."),
    "q4_0": _gguf("Q4_0", "Q4_0", "llama.cpp: 4.5 bits, one scale for each 32."),
    "iq4_nl": _gguf("IQ4_NL", "IQ4_NL", "llama.cpp: 4.5 bits from a table, one scale for each 32."),
    "iq4_xs": _gguf("IQ4_XS", "IQ4_XS", "llama.cpp: 4.25 bits from a table of values."),
    "q3_k_l": _gguf("Q3_K_L", "Q3_K", "llama.cpp: 3.44 bits, 5.5 for values, outputs and MLPs."),
    "q3_k_m": _gguf("Q3_K_M", "Q3_K", "llama.cpp: 3.44 bits, 4.5 or 5.5 for values and MLPs."),
    "q3_k_s": _gguf("Q3_K_S", "Q3_K", "llama.cpp: 3.44 bits for every matrix of a layer."),
    "q2_k": _gguf("Q2_K", "Q2_K", "llama.cpp: 2.63 bits, more for values, outputs and MLPs."),
}

WEIGHT_DTYPES = {
    **table("weight_dtypes", WeightDtype),
    **{f"mlx-{values}bit": _mlx(values) for values in (3, 4, 5, 6, 8)},
    **_GGUF,
    "q6_k_l": _large("Q6_K_L", _GGUF["q6_k"]),
    "q5_k_l": _large("Q5_K_L", _GGUF["q5_k_m"]),
    "q4_k_l": _large("Q4_K_L", _GGUF["q4_k_m"]),
    "q3_k_xl": _large("Q3_K_XL", _GGUF["q3_k_l"]),
    "q2_k_l": _large("Q2_K_L", _GGUF["q2_k"]),
    **{
        f"ud-{name.lower()}": _dynamic(f"UD-{name}", _GGUF[of], sizes)
        for name, of, sizes in UNSLOTH
    },
}

# What llama.cpp's files of models with experts in MXFP4 have, as ggml-org publishes gpt-oss: every
# other matrix is in Q8_0, and routers and biases in fp32 (llama-quant.cpp, its MXFP4_MOE).
GGUF_MXFP4 = WeightDtype(
    "GGUF MXFP4",
    "llama.cpp: experts in 4.25 bits, every other matrix in 8.5.",
    "Q8_0",
    "fp16",
    experts="mxfp4",
    outer="Q8_0",
    rest="fp32",
)


def around_mxfp4(dtype: WeightDtype) -> WeightDtype:
    """Files of a model that is published in MXFP4: its experts stay so in every one, as those of
    gpt-oss by unsloth and bartowski have them."""
    return replace(dtype, experts="mxfp4", dynamic=None)


AS_PUBLISHED = "auto"
SERVED_DTYPES: dict[str, Word] = {
    AS_PUBLISHED: Word(
        "As published",
        "As the model's config.json says (quantization_config); in bf16 where it says nothing.",
    ),
    **WEIGHT_DTYPES,
}


@dataclass(frozen=True, slots=True)
class StoredDtype(Word):
    """`bits` per value, scales included."""

    bits: float


GGML = {  # of llama.cpp's caches
    name.lower(): StoredDtype(name, f"llama.cpp: {about} for each 32.", STORED_BITS[name])
    for name, about in (
        ("Q8_0", "8 bits and a 16-bit scale"),
        ("Q5_1", "5 bits, a 16-bit scale and a 16-bit least"),
        ("Q5_0", "5 bits and a 16-bit scale"),
        ("Q4_1", "4 bits, a 16-bit scale and a 16-bit least"),
        ("Q4_0", "4 bits and a 16-bit scale"),
        ("IQ4_NL", "4 bits of a table and a 16-bit scale"),
    )
}
KV_DTYPES = table("kv_dtypes", StoredDtype) | GGML

AS_KEYS = "same"
VALUE_DTYPES: dict[str, Word] = {
    AS_KEYS: Word("As the keys", "Values are cached as keys are."),
    **KV_DTYPES,
}
