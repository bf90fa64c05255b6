"""Stored: the dtypes of weights and caches of an engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memcore.words.word import Word, rows, table

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
    files      of each weight, the type that a file on disk has it in; other: bytes of the file that
               are no weight of the model: quantization.Quantization
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
    files: tuple[tuple[str, str], ...] = ()
    other: int = 0
    engine: str = ""
    dynamic: Dynamic | None = None


def _weight_dtype(dynamic: Mapping[str, float] | None = None, **row: Any) -> WeightDtype:
    """A dtype by its row of presets/words.toml."""
    return WeightDtype(dynamic=Dynamic(**dynamic) if dynamic else None, **row)


WEIGHT_DTYPES = {word: _weight_dtype(**row) for word, row in rows("weight_dtypes").items()}

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


KV_DTYPES = table("kv_dtypes", StoredDtype)

AS_KEYS = "same"
VALUE_DTYPES: dict[str, Word] = {
    AS_KEYS: Word("As the keys", "Values are cached as keys are."),
    **KV_DTYPES,
}
