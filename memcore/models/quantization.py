"""Quantization: how a config.json says that its weights are stored.

quantization_config as transformers (quantizers/auto.py, utils/quantization_config.py), vLLM
(model_executor/layers/quantization) and NVIDIA's ModelOpt (hf_quant_config.json) write and read it.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memcore.errors import shown
from memcore.kept import kept
from memcore.words.stored import WEIGHT_DTYPES, WeightDtype

MOST_MODULES = 20_000  # that a file names; published ones name a few hundred
LONGEST = 300  # characters of one of them
MOST_ALTERNATIVES = 64  # that one pattern stands for


@dataclass(frozen=True, slots=True)
class Quantization:
    """What a file says of its weights.

    method   as it is written: 'fp8', 'compressed-tensors', ...
    word     of WEIGHT_DTYPES; '' where none of them stores it
    modules  by name or pattern, how they are stored (STORED_BITS, '' in 16 bits); the first that
             fits counts
    only     matrices that no name fits are not quantized
    uniform  every matrix of the layers is quantized, not those of experts alone
    cache    of KV_DTYPES, that the file asks for; '' where it asks for none
    notes    what of it is planned otherwise
    """

    method: str
    word: str
    modules: tuple[tuple[str, str], ...] = ()
    only: bool = False
    uniform: bool = False
    cache: str = ""
    notes: tuple[str, ...] = ()

    @property
    def dtype(self) -> WeightDtype:
        """How the weights of this file are stored."""
        base = WEIGHT_DTYPES[self.word or "bf16"]
        matrices = "" if self.only else base.matrices
        recipe = "" if self.uniform else base.recipe
        return replace(base, modules=self.modules, recipe=recipe, matrices=matrices or "bf16")


def read(config: Mapping[str, Any], wide: tuple[str, ...] = ()) -> Quantization | None:
    """What a config says of how its weights are stored; None where it says nothing. `wide`: names
    of what is in 16 bits though it does not say so."""
    for key in ("quantization_config", "hf_quant_config", "compression_config"):
        given = config.get(key)
        if isinstance(given, Mapping) and given:
            inner = given.get("quantization")  # as ModelOpt has it in a file of its own
            if isinstance(inner, Mapping):
                given = {"quant_method": "modelopt"} | dict(given) | dict(inner)
            found = _read(given)
            found = replace(found, modules=(*((name, "") for name in wide), *found.modules))
            return _with_experts(found, given.get("expert_dtype", config.get("expert_dtype")))
        if given:
            return Quantization(_text(given), "")
    return None


def _with_experts(found: Quantization, dtype: object) -> Quantization:
    """The same where a file says besides how routed experts are stored (DeepSeek-V4: fp4, with a
    scale for 32 numbers, in a file of fp8). Where it names their layers, these words count."""
    if dtype is None or dtype == "fp8" or not found.word or found.only:
        return found
    if dtype != "fp4":
        return replace(found, notes=(*found.notes, f"experts as {shown(dtype)}"))
    experts = ("*.experts.*", WEIGHT_DTYPES["mxfp4"].matrices)
    return replace(found, modules=(*found.modules, experts))


def _read(given: Mapping[str, Any]) -> Quantization:
    method = given.get("quant_method", "modelopt" if "quant_algo" in given else None)
    if method is None and (given.get("load_in_4bit") or given.get("load_in_8bit")):
        method = "bitsandbytes"
    method = method if isinstance(method, str) else ""
    reader = _READERS.get(method.replace("_", "-").lower())
    found = reader(given) if reader else Quantization(method or "not named", "")
    wide, notes = _patterns(_wide(given))
    modules = tuple((p, "") for p in wide) + found.modules
    cache, said = _cache(given)
    return replace(
        found, method=method or "not named", modules=modules, cache=cache,
        notes=(*found.notes, *notes, *said),
    )  # fmt: skip


def _text(value: object) -> str:
    return shown(value)[1:-1]


def _wide(given: Mapping[str, Any]) -> list[str]:
    """Names of what stays in 16 bits."""
    found: list[str] = []
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "llm_int8_skip_modules",
                "ignored_layers"):  # fmt: skip
        names = given.get(key)
        found += [n for n in names if isinstance(n, str)] if isinstance(names, list) else []
    return found


def _cache(given: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The word of KV_DTYPES for what a file says of the cache, and what is said of another."""
    scheme = given.get("kv_cache_scheme")
    algorithm = given.get("kv_cache_quant_algo") or given.get("kv_cache_quant_method")
    if isinstance(scheme, Mapping):
        algorithm = f"{scheme.get('type')} of {scheme.get('num_bits')} bits"
        word = {"float of 8 bits": "fp8", "int of 8 bits": "int8"}.get(algorithm, "")
    elif isinstance(algorithm, str):
        word = {"FP8": "fp8", "INT8": "int8"}.get(algorithm.upper(), "")
    else:
        return "", ()
    if word:
        return word, ()
    return "", (f"its cache as {shown(algorithm)}, which is not planned",)


def _fp8(given: Mapping[str, Any]) -> Quantization:
    block = given.get("weight_block_size")
    if block is None or given.get("quant_method") == "fbgemm_fp8":
        return Quantization("", "fp8")
    notes = () if block == [128, 128] else (f"blocks of {shown(block)} as of 128 x 128",)
    return Quantization("", "fp8-block", notes=notes)


def _grouped(bits: Any, group: Any, notes: tuple[str, ...] = ()) -> Quantization:
    """Whole numbers, with a scale for each group of a row."""
    if bits == 8:
        return Quantization("", "int8", notes=notes)
    if bits != 4:
        return Quantization("", "", notes=(f"{_text(bits)} bits",))
    words = {128: "int4", 64: "int4-g64", 32: "int4-g32"}
    if group in words:
        return Quantization("", words[group], notes=notes)
    return Quantization("", "int4", notes=(*notes, f"groups of {shown(group)} as of 128"))


def _gptq(given: Mapping[str, Any]) -> Quantization:
    found = _grouped(given.get("bits", given.get("w_bit")),
                     given.get("group_size", given.get("q_group_size", 128)))  # fmt: skip
    if given.get("lm_head") is True and found.word:
        found = replace(found, modules=(("lm_head", WEIGHT_DTYPES[found.word].matrices),))
    return found


def _bitsandbytes(given: Mapping[str, Any]) -> Quantization:
    if given.get("load_in_8bit") or given.get("_load_in_8bit"):
        return Quantization("", "int8")
    if given.get("load_in_4bit") or given.get("_load_in_4bit"):
        double = given.get("bnb_4bit_use_double_quant") is True
        return Quantization("", "nf4-double" if double else "nf4")
    return Quantization("", "")


ALGORITHMS = {  # ModelOpt's
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8-block",
    "FP8_PB_REAL": "fp8-block",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "W4A16_AWQ": "int4",
    "W4A8_AWQ": "int4",
    "INT8_SQ": "int8",
    "W8A8_SQ_PER_CHANNEL": "int8",
    "MXFP4": "mxfp4",
}


def _modelopt(given: Mapping[str, Any]) -> Quantization:
    algorithm = given.get("quant_algo")
    layers = given.get("quantized_layers")
    if algorithm == "MIXED_PRECISION" and isinstance(layers, Mapping):
        stored, strange = [], set()
        for name, how in itertools.islice(layers.items(), MOST_MODULES):
            word = ALGORITHMS.get(str(how.get("quant_algo")) if isinstance(how, Mapping) else "")
            if word:
                stored.append((str(name), WEIGHT_DTYPES[word].matrices))
            else:
                strange.add(shown(how.get("quant_algo") if isinstance(how, Mapping) else how))
        if strange or not stored:
            return Quantization("", "", notes=(f"{', '.join(sorted(strange)[:4])} among them",))
        types = [kind for _, kind in stored]
        narrowest = "nvfp4" if "nvfp4" in types else "fp8"
        return _named(narrowest, stored)
    if isinstance(algorithm, str) and algorithm in ALGORITHMS:
        group = given.get("group_size")
        if ALGORITHMS[algorithm] == "int4" and group is not None:
            return replace(_grouped(4, group), uniform=True)
        return Quantization("", ALGORITHMS[algorithm], uniform=True)
    if algorithm is None and isinstance(given.get("config_groups"), Mapping):
        return _compressed(given)
    return Quantization("", "", notes=(f"quant_algo {shown(algorithm)}",))


def _compressed(given: Mapping[str, Any]) -> Quantization:
    """compressed-tensors: one scheme for each group of modules."""
    groups = given.get("config_groups")
    schemes = list(groups.values())[:64] if isinstance(groups, Mapping) else []
    found: list[tuple[list[str], Quantization]] = []
    for group in schemes:
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            continue
        targets = group.get("targets")
        names = [t for t in targets if isinstance(t, str)] if isinstance(targets, list) else []
        found.append((names, _scheme(weights)))
    sparse = given.get("sparsity_config")
    ways = [] if not isinstance(sparse, Mapping) else [sparse.get("format", "dense")]
    notes = tuple(f"{shown(w)} is not taken off its bytes" for w in ways if w != "dense")
    if not found or any(not scheme.word for _, scheme in found):
        return Quantization("", "", notes=tuple(n for _, s in found for n in s.notes))
    everything = [scheme for names, scheme in found if "Linear" in names]
    notes += tuple(n for _, s in found for n in s.notes)
    listed = [
        (name, WEIGHT_DTYPES[scheme.word].matrices)
        for names, scheme in found
        for name in names
        if name != "Linear"
    ]
    if not everything:
        first = min((s.word for _, s in found), key=lambda w: w not in ("nvfp4", "mxfp4"))
        return replace(_named(first, listed), notes=notes)
    base = Quantization("", everything[0].word, uniform=True, notes=notes)
    return replace(base, modules=_named(base.word, listed).modules)


def _scheme(weights: Mapping[str, Any]) -> Quantization:
    bits, kind, group = (weights.get(key) for key in ("num_bits", "type", "group_size"))
    if kind == "int":
        return _grouped(bits, 128 if group is None else group)
    if (bits, kind) == (8, "float"):
        block = weights.get("block_structure")
        return _fp8({"weight_block_size": block} if block else {})
    words = {16: "nvfp4", 32: "mxfp4"}
    if (bits, kind) == (4, "float") and group in words:
        return Quantization("", words[group])
    return Quantization("", "", notes=(f"{_text(kind)} of {_text(bits)} bits",))


def _named(word: str, listed: Iterable[tuple[str, str]]) -> Quantization:
    """Modules by name, and nothing else, stored as they say."""
    by_kind: dict[str, list[str]] = {}
    for name, kind in listed:
        by_kind.setdefault(kind, []).append(name)
    modules: list[tuple[str, str]] = []
    notes: tuple[str, ...] = ()
    for kind, names in by_kind.items():
        patterns, strange = _patterns(names)
        modules += [(p, kind) for p in patterns]
        notes += strange
    return Quantization("", word, tuple(modules), only=True, uniform=True, notes=notes)


_READERS = {
    "fp8": lambda given: _modelopt(given) if given.get("quant_algo") else _fp8(given),
    "fbgemm-fp8": _fp8,
    "finegrained-fp8": _fp8,
    "mxfp4": lambda given: Quantization("", "mxfp4"),
    "gptq": _gptq,
    "awq": _gptq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "modelopt-mixed": _modelopt,
}

_UNDERSTOOD = re.compile(r"[\w.*\\()|?-]*")  # what of a regular expression becomes a pattern


def _patterns(names: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    """Names as patterns of shells, and a note of those that are none."""
    found: list[str] = []
    strange = 0
    for name in itertools.islice(names, MOST_MODULES):
        listed = [] if len(name) > LONGEST else _alternatives(name)
        found += listed
        strange += not listed
    return found, (f"{strange:,} patterns of names are not read",) if strange else ()


def _alternatives(name: str) -> list[str]:
    """A name, or a regular expression of a simple kind, as patterns of shells. A stranger's
    expression is never run: some take for ever."""
    if not name.startswith("re:"):
        return [name]
    text = name[3:].removeprefix("^").removesuffix("$")
    if not _UNDERSTOOD.fullmatch(text):
        return []
    text = text.replace("(?:", "(").replace(".*", "*").replace("\\.", ".").replace("\\d+", "*")
    parts = re.split(r"\(([^()]*)\)", text)
    if any(c in part for part in parts for c in "()?\\") or "|" in "".join(parts[::2]):
        return []
    choices = [p.split("|") if i % 2 else [p] for i, p in enumerate(parts)]
    found = ["".join(c) for c in itertools.islice(itertools.product(*choices), MOST_ALTERNATIVES)]
    return [f"{pattern}*" if not pattern.endswith("*") else pattern for pattern in found]


_OURS = re.compile(r"^(\*?(model|language_model|text_model|transformer|backbone)\.)*(?=.*layers\.)")
OUTSIDE = (".lm_head", ".embed_tokens")


@kept
def _index(modules: tuple[tuple[str, str], ...]) -> tuple[dict[str, str], dict[str, list[Any]]]:
    """Names as they are, and patterns by the layer that they are of ('' for any)."""
    exact: dict[str, str] = {}
    patterns: dict[str, list[Any]] = {}
    for name, kind in modules:
        inner = _OURS.sub("", name)
        if "layers." in inner and not inner.startswith(("layers.", "*")):
            continue  # of a tower, or of layers behind the last one
        if inner.endswith(OUTSIDE):  # of the layers, wherever the model has them
            inner = inner.rpartition(".")[2]
        if not any(c in inner for c in "*?["):
            exact.setdefault(inner if inner.startswith("layers.") else f"*.{inner}", kind)
            continue
        inner = re.sub(r"^\*\.?layers\.", "layers.", inner)
        if not inner.startswith(("layers.", "*")):
            inner = f"*.{inner}"
        number = re.match(r"layers\.(\d+)\.", inner)
        found = re.compile(fnmatch.translate(inner))
        patterns.setdefault(number[1] if number else "", []).append((found, kind))
    return exact, patterns


# What a tape has as one matrix, and files as several, by the first of them.
PARTS = {
    "experts.gate_up_proj": "experts.0.gate_proj",
    "experts.down_proj": "experts.0.down_proj",
    "in_proj_qkvz": "in_proj_qkv",
    "in_proj_ba": "in_proj_b",
    "qkv_proj": "q_proj",
    "gate_up_proj": "gate_proj",
}


# What transformers calls otherwise than DeepSeek's own files.
OTHERWISE = (("self_attn", "attn"), ("mlp", "ffn"))


def stored_as(modules: tuple[tuple[str, str], ...], name: str, layer: int) -> str | None:
    """How a file says that a parameter of a layer is stored; None where it does not.

    name   as on a tape: 'layers.self_attn.q_proj.weight', 'head.lm_head.weight'
    """
    block, _, every = name.removesuffix(".weight").partition(".")
    first, _, end = every.partition(".")
    for rest in (every, *(f"{own}.{end}" for word, own in OTHERWISE if word == first)):
        found = _stored_as(modules, block, rest, layer)
        joint = next((part for part in PARTS if rest.endswith(part)), None)
        if found is None and joint:
            found = _stored_as(modules, block, rest.removesuffix(joint) + PARTS[joint], layer)
        if found is not None:
            return found
    return None


def _stored_as(
    modules: tuple[tuple[str, str], ...], block: str, rest: str, layer: int
) -> str | None:
    exact, patterns = _index(modules)
    parts = rest.split(".")
    start = f"layers.{layer}" if block == "layers" else "model"
    own = patterns.get(str(layer), []) + patterns.get("", [])
    for end in range(len(parts), -1, -1):
        full = ".".join((start, *parts[:end]))
        if full in exact:
            return exact[full]
        for begin in range(end):
            found = exact.get(f"*.{'.'.join(parts[begin:end])}")
            if found is not None:
                return found
        for pattern, kind in own:
            if pattern.match(full):
                return str(kind)
    return None
