"""Quantization: how a config.json says that its weights are stored.

quantization_config as transformers 5.23 (quantizers/auto.py, utils/quantization_config.py), vLLM
0.33 (model_executor/layers/quantization), SGLang 0.5.23 (srt/layers/quantization) and ModelOpt
(hf_quant_config.json) write and read it; MLX's `quantization` as mlx-lm (utils.quantize_model);
what torchao, HQQ, quanto, Quark and ExLlama store, as their packages do. AQLM's codebooks, SpQR's
outliers and VPTQ's tables have sizes that a config.json does not say: these are refused by name.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memcore.cache import cached
from memcore.errors import shown
from memcore.shipped import PRESETS
from memcore.words.stored import (
    STORED_BITS,
    WEIGHT_DTYPES,
    WeightDtype,
    bits,
    grouped,
    of_bits,
)

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
    matrices  the type of the layers' matrices, where it is not that of the word; outer: of the
              embedding and the head; head: of the head alone. '' as the word has them
    files    of each weight by its path on a tape ('layers.self_attn.q_proj.weight'; behind an '@'
             the layers, where others differ), the type that the headers of weights on disk say;
             'tower': of the towers' weights
    other    bytes on disk that are no weight of the model
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
    matrices: str = ""
    outer: str = ""
    head: str = ""
    files: tuple[tuple[str, str], ...] = ()
    other: int = 0

    @property
    def wide(self) -> bool:
        """Whether matrices are stored as they are computed with."""
        return bool(self.word) and WEIGHT_DTYPES[self.word].matrices in ("bf16", "fp16", "fp32")

    @property
    def dtype(self) -> WeightDtype:
        """How the weights of this file are stored."""
        base = WEIGHT_DTYPES[self.word or "bf16"]
        if self.matrices and self.matrices != base.matrices:
            label = f"in {self.matrices} a weight"
            base = replace(base, label=label, matrices=self.matrices, recipe="", outer="")
        base = replace(base, outer=self.outer or base.outer, head=self.head or base.head)
        matrices = "" if self.only else base.matrices
        recipe = "" if self.uniform else base.recipe
        return replace(
            base, modules=self.modules, recipe=recipe, matrices=matrices or "bf16",
            files=self.files, other=self.other,
        )  # fmt: skip


KEYS = ("quantization_config", "hf_quant_config", "compression_config", "quantization")


def read(config: Mapping[str, Any], wide: tuple[str, ...] = ()) -> Quantization | None:
    """What a config says of how its weights are stored; None where it says nothing. `wide`: names
    of what is in 16 bits though it does not say so."""
    for key in KEYS:
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


def by_modelopt(values: Mapping[str, Any]) -> bool:
    """Whether a document is the hf_quant_config.json that ModelOpt writes beside a config.json."""
    inner = values.get("quantization")
    return isinstance(inner, Mapping) and "quant_algo" in inner


def with_modelopt(config: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """A config with what such a file says, where it says nothing by itself, or of mixed precision
    not which layers (vLLM 0.33, weight_utils.get_quant_config)."""
    own = next((config[key] for key in KEYS if config.get(key)), None)
    mixed = isinstance(own, Mapping) and own.get("quant_algo") == "MIXED_PRECISION"
    if own and not (mixed and isinstance(own, Mapping) and not own.get("quantized_layers")):
        return dict(config)
    return {**{k: v for k, v in config.items() if k not in KEYS}, "hf_quant_config": dict(stored)}


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
    if method is None and isinstance(given.get("bits"), int) and "group_size" in given:
        method = "mlx"
    method = method if isinstance(method, str) else ""
    row = _TABLE["methods"].get(method.replace("_", "-").lower())
    found = _by_row(given, row) if row else Quantization(method or "not named", "")
    if ON_DISK in given:
        found = _on_disk(found, _inside(given, ON_DISK))
    wide, notes = _patterns(_wide(given))
    modules = tuple((p, "") for p in wide) + found.modules
    cache, said = _cache(given)
    return replace(
        found, method=method or "not named", modules=modules, cache=cache,
        notes=(*found.notes, *notes, *said),
    )  # fmt: skip


ON_DISK = "on_disk"  # what formats/checkpoints.py adds to a config.json from headers of weights
_TYPE = re.compile(r"\d{1,3}(\.\d{1,20})?(e-\d{1,2})?( \+ \d{1,3}(\.\d{1,20})?)? bits")


def _on_disk(found: Quantization, given: Mapping[str, Any]) -> Quantization:
    """The same with what headers say of each tensor. Where the config.json says nothing of how
    weights are stored, `word` is that of most bytes."""
    files, other = [], given.get("other", 0)
    for kind, names in _inside(given, "types").items():
        if not isinstance(names, list) or not (kind in STORED_BITS or _TYPE.fullmatch(kind)):
            return Quantization("", "", notes=(f"weights on disk in {shown(kind)}",))
        files += [(str(name), kind) for name in names[:MOST_MODULES]]
    word = found.word or given.get("word")
    if word not in WEIGHT_DTYPES or type(other) is not int or not 0 <= other < 2**50:
        return Quantization("", "", notes=(f"weights on disk in {shown(word)}",))
    return replace(found, word=word, files=tuple(files), other=other)


@cached
def _of_files(files: tuple[tuple[str, str], ...]) -> dict[str, list[tuple[list[range], str]]]:
    """Types by paths; those of some layers first."""
    found: dict[str, list[tuple[list[range], str]]] = {}
    for place, kind in sorted(files, key=lambda each: "@" not in each[0]):
        path, _, layers = place.partition("@")
        found.setdefault(path, []).append((list(_ranges(layers)), kind))
    return found


def _ranges(layers: str) -> Iterator[range]:
    for part in layers.split(",") if layers else ():
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal() and len(part) < 20:
            yield range(int(first), int(last or first) + 1)


def on_disk(files: tuple[tuple[str, str], ...], path: str, layer: int) -> str | None:
    """The type in which weights on disk have a parameter of a layer; None where they have not."""
    listed = _of_files(files).get(path, ())
    fits = (kind for layers, kind in listed if not layers or any(layer in of for of in layers))
    return next(fits, None)


def _inside(value: Any, key: str) -> Mapping[str, Any]:
    """An object inside what may be one; an empty one where there is none."""
    inner = value.get(key) if isinstance(value, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _modules(value: Any, key: str) -> list[tuple[str, Any]]:
    """Names of modules with what such an object says of them."""
    listed = itertools.islice(_inside(value, key).items(), MOST_MODULES)
    return [(str(name), how) for name, how in listed]


def _text(value: object) -> str:
    return shown(value)[1:-1]


def _wide(given: Mapping[str, Any]) -> list[str]:
    """Names of what stays in 16 bits."""
    found: list[str] = []
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "llm_int8_skip_modules",
                "ignored_layers", "skip_modules", "exclude"):  # fmt: skip
        names = given.get(key)
        found += [n for n in names if isinstance(n, str)] if isinstance(names, list) else []
    return found


def _cache(given: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The word of KV_DTYPES for what a file says of the cache, and what is said of another."""
    scheme = given.get("kv_cache_scheme")
    algorithm = given.get("kv_cache_quant_algo") or given.get("kv_cache_quant_method")
    algorithm = algorithm or _cache_of_quark(given) or None
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
    if block == [1, 32]:  # of Microscaling
        return Quantization("", "mxfp8")
    notes = () if block == [128, 128] else (f"blocks of {shown(block)} as of 128 x 128",)
    return Quantization("", "fp8-block", notes=notes)


WORDS = {2: "int2", 3: "int3", 4: "int4"}  # for whole numbers of so many bits; int8 for more
NAMED = {(4, 128): "int4", (4, 64): "int4-g64", (4, 32): "int4-g32", (8, 0): "int8"}
NARROWEST, WIDEST = 1, 8
_TABLE: dict[str, Any] = tomllib.loads(
    PRESETS.joinpath("families", "quantization.toml").read_text(encoding="utf-8")
)


def _grouped(values: Any, group: Any, zero: float | None = None) -> Quantization:
    """Whole numbers, with a scale of 16 bits for each group of a row, and a zero of `zero` bits, by
    default as wide as a value; a group of -1 or None is a whole row."""
    if type(values) not in (int, float) or not NARROWEST <= values <= WIDEST:
        return Quantization("", "", notes=(f"{_text(values)} bits",))
    of = group if type(group) is int and group > 0 else 0
    if group not in (None, -1, 0) and not of:
        return Quantization("", "", notes=(f"groups of {shown(group)}",))
    if zero is None and (values, of) in NAMED:
        return Quantization("", NAMED[values, of])
    kind = grouped(values, of, zero=values if zero is None else zero)
    return Quantization("", WORDS.get(math.ceil(values), "int8"), matrices=kind)


def _type_of(how: Quantization) -> str:
    """The type of the matrices of something that is stored so."""
    return how.matrices or WEIGHT_DTYPES[how.word].matrices


def _gptq(given: Mapping[str, Any]) -> Quantization:
    found = _grouped(given.get("bits", given.get("w_bit")),
                     given.get("group_size", given.get("q_group_size", 128)))  # fmt: skip
    if given.get("lm_head") is True and found.word:
        found = replace(found, modules=(("lm_head", _type_of(found)),))
    return _dynamic(given, found) if found.word else found


def _dynamic(given: Mapping[str, Any], found: Quantization) -> Quantization:
    """The same with what GPTQModel's `dynamic` says of some modules: '-:' in front of a pattern
    leaves them as they are, '+:' or nothing stores them otherwise."""
    modules, notes = list(found.modules), found.notes
    for pattern, how in _modules(given, "dynamic"):
        kind = ""
        if not pattern.startswith("-:"):
            own = how if isinstance(how, Mapping) else {}
            size = own.get("group_size", given.get("group_size", 128))
            one = _grouped(own.get("bits", given.get("bits")), size)
            kind = _type_of(one) if one.word else _type_of(found)
        patterns, strange = _patterns([f"re:{pattern.removeprefix('-:').removeprefix('+:')}"])
        modules += [(each, kind) for each in patterns]
        notes += strange
    return replace(found, modules=tuple(modules), notes=notes)


def _auto_round(given: Mapping[str, Any]) -> Quantization:
    """Intel's: `data_type` of the values; other bits for some modules in `extra_config`."""
    found = _of_data_type(given, given)
    modules = []
    for name, how in _modules(given, "extra_config"):
        own = how if isinstance(how, Mapping) else {}
        if own.get("bits", 0) == 16:
            modules.append((name, ""))
        elif own.get("bits") and (one := _of_data_type(own, given)).word:
            modules.append((name, _type_of(one)))
    return replace(found, modules=tuple(modules)) if found.word else found


def _of_data_type(given: Mapping[str, Any], base: Mapping[str, Any]) -> Quantization:
    kind, values = (given.get(k, base.get(k)) for k in ("data_type", "bits"))
    kind, group = str(kind or "int"), given.get("group_size", base.get("group_size", 128))
    if kind == "int":
        return _grouped(values, group)
    if kind in ("fp", "fp8") and values == 8:
        return _fp8({"weight_block_size": group} if isinstance(group, list) else {})
    word = {("mx_fp", 4): "mxfp4", ("mx_fp", 8): "mxfp8", ("nv_fp", 4): "nvfp4"}.get(
        (kind[:5], values), ""
    )
    notes = () if word else (f"{shown(kind)[1:-1]} of {_text(values)} bits",)
    return Quantization("", word, uniform=True, notes=notes)


def _hqq(given: Mapping[str, Any]) -> Quantization:
    """A scale and a zero of 16 bits for each group, or of their own bits; three bits take 3.2, ten
    in an int32 (hqq/core/bitpack.py)."""
    config = _inside(given, "quant_config")
    named = [(str(k), v) for k, v in config.items() if isinstance(v, Mapping)]
    if "weight_quant_params" in config:
        return _of_hqq(config)
    listed = [(name, how) for name, each in named if (how := _of_hqq(each)).word]
    if not listed:
        return Quantization("", "")
    narrow = min((how.word for _, how in listed), key=lambda word: bits(_type_of_word(word)))
    return _named(narrow, [(name, _type_of(how)) for name, how in listed])


def _type_of_word(word: str) -> str:
    return WEIGHT_DTYPES[word].matrices


def _of_hqq(config: Mapping[str, Any]) -> Quantization:
    weights = _inside(config, "weight_quant_params")
    more = 0.0
    for key in ("scale_quant_params", "zero_quant_params"):
        values = _inside(config, key).get("nbits", 16)
        more += values if isinstance(values, int) and 0 < values <= 16 else 16
    values = weights.get("nbits")
    values = 3.2 if values == 3 else values
    return _grouped(values, weights.get("group_size"), zero=more - 16)


def _mlx(given: Mapping[str, Any]) -> Quantization:
    """Every matrix, the embedding and the head too; other bits, or none, for some of them."""
    found = _of_mlx(given, given)
    if not found.word:
        return found
    modules = []
    for name, how in list(given.items())[:MOST_MODULES]:
        if how is False:
            modules.append((str(name), ""))
        elif isinstance(how, Mapping) and (one := _of_mlx(how, given)).word:
            modules.append((str(name), _type_of(one)))
    kind = _type_of(found)
    return replace(found, matrices=kind, outer=kind, modules=tuple(modules), uniform=True)


def _of_mlx(given: Mapping[str, Any], base: Mapping[str, Any]) -> Quantization:
    mode = given.get("mode", base.get("mode", "affine"))
    if mode in ("mxfp4", "mxfp8", "nvfp4"):
        return Quantization("", mode)
    values, group = (given.get(key, base.get(key)) for key in ("bits", "group_size"))
    found = _grouped(values, group, zero=16)
    word = f"mlx-{values}bit"
    return replace(found, word=word) if found.word and word in WEIGHT_DTYPES else found


def _quark(given: Mapping[str, Any]) -> Quantization:
    """AMD's: one scheme for all, others by the names of layers."""
    found, modules = _of_quark(_inside(given, "global_quant_config")), []
    for name, how in _modules(given, "layer_quant_config"):
        one = _of_quark(how) if isinstance(how, Mapping) and how.get("weight") else None
        if one and one.word:
            modules.append((name, _type_of(one)))
        elif one:
            return one
    return replace(found, modules=tuple(modules), uniform=True) if found.word else found


def _of_quark(scheme: Mapping[str, Any]) -> Quantization:
    weight = scheme.get("weight")
    if isinstance(weight, list):  # in two steps: the last is what is stored
        weight = weight[-1] if weight else None
    weight = weight if isinstance(weight, Mapping) else {}
    dtype, group = str(weight.get("dtype")), weight.get("group_size")
    by_group = weight.get("qscheme") == "per_group"
    scale = 8 if weight.get("scale_format") in ("e8m0", "e4m3") or dtype.startswith("fp") else 16
    size = group if by_group and type(group) is int and group > 0 else 0
    if dtype == "fp4" and size in (16, 32):
        return Quantization("", "nvfp4" if size == 16 else "mxfp4")
    if dtype.startswith("fp8"):
        return Quantization("", "mxfp8" if size == 32 else "fp8")
    if dtype.startswith("fp6"):
        return Quantization("", "fp8", matrices=grouped(6, size, scale))
    values = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8, "int2": 2, "int3": 3}.get(dtype)
    return _grouped(values or dtype, size)


def _cache_of_quark(given: Mapping[str, Any]) -> str:
    """The dtype of the cache in a file of Quark's: that of the layers that write it."""
    names = _inside(given, "export").get("kv_cache_group")
    if not isinstance(names, list) or not names:
        return ""
    for how in _inside(given, "layer_quant_config").values():
        dtype = str(_inside(how, "output_tensors").get("dtype"))
        for word in ("fp8", "int8"):
            if dtype.startswith(word):
                return word
    return ""


def _torchao(given: Mapping[str, Any]) -> Quantization:
    kind = given.get("quant_type")
    if isinstance(kind, Mapping):
        kind = kind.get("default", kind)
    inner = _inside(kind, "_data")
    named = inner.get("fqn_to_config") or inner.get("module_fqn_to_config")
    if isinstance(named, Mapping) and named:
        base = named.get("_default")
        found = _of_torchao(base, given) if base is not None else None
        listed = [(str(n), _of_torchao(how, given)) for n, how in named.items() if n != "_default"]
        if strange := [how for _, how in listed if not how.word and how.notes]:
            return strange[0]
        modules = [(name, _type_of(how) if how.word else "") for name, how in listed]
        if found is None:
            words = [h.word for _, h in listed if h.word]
            return _named(words[0], modules) if words else Quantization("", "")
        return replace(found, modules=_named(found.word, modules).modules) if found.word else found
    found = _of_torchao(kind, given)
    if given.get("include_input_output_embeddings") is True and found.word:
        found = replace(found, outer=_type_of(found))
    return found


def _of_torchao(kind: Any, given: Mapping[str, Any]) -> Quantization:
    """One config of torchao's, as an object, or as a word with its arguments beside."""
    if kind is None:
        return Quantization("", "")
    of_config = isinstance(kind, Mapping)
    inner = _inside(kind, "_data") if of_config else _inside(given, "quant_type_kwargs")
    name = str(kind.get("_type") if isinstance(kind, Mapping) else kind)
    plain = name.replace("_", "").lower().removesuffix("config")
    whole, floats = _TABLE["torchao"], _TABLE["torchao_floats"]
    if plain in floats:
        return Quantization("", floats[plain], uniform=True)
    group, values = inner.get("group_size"), None
    if plain in whole:
        values, usual = whole[plain]
        group = usual if group is None else group
    elif plain.endswith(("intxweightonly", "int8dynamicactivationintxweight")):
        said = re.search(r"int([1-8])\b", str(inner.get("weight_dtype")))
        values = int(said[1]) if said else None
        how = inner.get("granularity", inner.get("weight_granularity"))
        if isinstance(how, Mapping) and "_data" in how:
            group = _inside(how, "_data").get("group_size")
    if values is None:
        return Quantization("", "", notes=(shown(name)[1:-1],))
    return _grouped(values, group, zero=16)


def _quanto(given: Mapping[str, Any]) -> Quantization:
    """A scale and a shift in 16 bits for each 128, of fewer than 8 bits (optimum-quanto)."""
    word = str(given.get("weights"))
    if word.startswith("float8"):
        return Quantization("", "fp8")
    values = {"int8": 8, "int4": 4, "int2": 2}.get(word)
    return _grouped(values or word, 0 if values == 8 else 128, zero=16)


def _exllama(given: Mapping[str, Any]) -> Quantization:
    """Bits in the mean over the matrices of the layers, scales included, and those of the head."""
    mean, head = given.get("bits"), given.get("head_bits")
    if not isinstance(mean, (int, float)) or not NARROWEST <= mean <= WIDEST:
        return Quantization("", "", notes=(f"{_text(mean)} bits",))
    found = Quantization("", WORDS.get(math.ceil(mean), "int8"), matrices=of_bits(mean))
    if isinstance(head, (int, float)) and NARROWEST <= head <= 16:
        return replace(found, head=of_bits(head))
    return found


def _bitsandbytes(given: Mapping[str, Any]) -> Quantization:
    if given.get("load_in_8bit") or given.get("_load_in_8bit"):
        return Quantization("", "int8")
    if given.get("load_in_4bit") or given.get("_load_in_4bit"):
        double = given.get("bnb_4bit_use_double_quant") is True
        return Quantization("", "nf4-double" if double else "nf4")
    return Quantization("", "")


def _modelopt(given: Mapping[str, Any]) -> Quantization:
    algorithm = given.get("quant_algo")
    layers = given.get("quantized_layers")
    if algorithm == "MIXED_PRECISION" and isinstance(layers, Mapping):
        stored, strange = [], set()
        for name, how in itertools.islice(layers.items(), MOST_MODULES):
            word = _TABLE["modelopt"].get(
                str(how.get("quant_algo")).upper() if isinstance(how, Mapping) else ""
            )
            if word:
                stored.append((str(name), WEIGHT_DTYPES[word].matrices))
            else:
                strange.add(shown(how.get("quant_algo") if isinstance(how, Mapping) else how))
        if strange or not stored:
            return Quantization("", "", notes=(f"{', '.join(sorted(strange)[:4])} among them",))
        types = [kind for _, kind in stored]
        narrowest = "nvfp4" if "nvfp4" in types else "fp8"
        return _named(narrowest, stored)
    algorithm = algorithm.upper() if isinstance(algorithm, str) else algorithm
    if isinstance(algorithm, str) and algorithm in _TABLE["modelopt"]:
        group = given.get("group_size")
        if _TABLE["modelopt"][algorithm] == "int4" and group is not None:
            return replace(_grouped(4, group), uniform=True)
        return Quantization("", _TABLE["modelopt"][algorithm], uniform=True)
    if algorithm is None and isinstance(given.get("config_groups"), Mapping):
        return _compressed(given)
    return Quantization("", "", notes=(f"quant_algo {shown(algorithm)}",))


def _compressed(given: Mapping[str, Any]) -> Quantization:
    """compressed-tensors: one scheme for each group of modules."""
    schemes = list(_inside(given, "config_groups").values())[:64]
    found: list[tuple[list[str], Quantization]] = []
    for group in schemes:
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            continue
        weights, targets = group["weights"], group.get("targets")
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
        (name, _type_of(scheme)) for names, scheme in found for name in names if name != "Linear"
    ]
    if not everything:
        first = min((s.word for _, s in found), key=lambda w: w not in ("nvfp4", "mxfp4"))
        return replace(_named(first, listed), notes=notes)
    base = replace(everything[0], uniform=True, notes=notes)
    return replace(base, modules=_named(base.word, listed).modules)


def _scheme(weights: Mapping[str, Any]) -> Quantization:
    values, kind, group = (weights.get(key) for key in ("num_bits", "type", "group_size"))
    if kind == "int":
        by_group = weights.get("strategy", "group") == "group" and group is not None
        usual = 128 if values == 4 and "strategy" not in weights else -1
        return _grouped(values, group if by_group else usual)
    if (values, kind) == (8, "float"):
        if group == 32:
            return Quantization("", "mxfp8")
        block = weights.get("block_structure")
        return _fp8({"weight_block_size": block} if block else {})
    words = {16: "nvfp4", 32: "mxfp4"}
    if (values, kind) == (4, "float") and group in words:
        return Quantization("", words[group])
    return Quantization("", "", notes=(f"{_text(kind)} of {_text(values)} bits",))


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
    "fbgemm-fp8": _fp8, "gptq": _gptq, "auto-round": _auto_round, "hqq": _hqq, "mlx": _mlx,
    "quark": _quark, "torchao": _torchao, "quanto": _quanto, "exl2": _exllama,
    "bitsandbytes": _bitsandbytes, "compressed-tensors": _compressed, "modelopt": _modelopt,
}  # fmt: skip


def _by_row(given: Mapping[str, Any], row: Mapping[str, Any]) -> Quantization:
    """What a file says whose method is a row of the table."""
    if "as" in row:
        return _READERS[row["as"]](given)
    if "bits" in row:
        (bits_by, values), (group_by, group) = row["bits"], row["group"]
        return _grouped(given.get(bits_by, values), given.get(group_by, group), row.get("zero"))
    word = row.get("word", "")
    if "says" in row:
        said = str(given.get(row["says"], word))
        word = said if said in row["words"] else ""
        if not word:
            return Quantization("", "", uniform=True, notes=(shown(said)[1:-1],))
    return Quantization("", word, uniform=row.get("uniform", False))


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


@cached
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
