"""Checkpoints: a file or a folder of weights as a plan that weighs just what they do.

Headers say the bytes of each tensor; the config.json beside them, or GGUF's metadata, say the
model. What a header has in a layer is put down for that layer's weights of the same name, and what
has no name there for those that are left, so that every byte of the files is a byte of the plan.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from memcore.errors import Issue, PlanError, did_you_mean, refusal, shown, shown_path
from memcore.formats import hub
from memcore.formats.headers import GGUF, Count, Header, Tensor, gguf_header, safetensors_header
from memcore.models import catalog, quantization
from memcore.models.config import MAX_CONFIG_BYTES, parse_config
from memcore.models.counts import weights
from memcore.models.families import from_config
from memcore.models.model import Model
from memcore.models.stack import layers_of
from memcore.units import bytes_text
from memcore.words.engines import LLAMA_CPP
from memcore.words.jobs import JOBS, SERVE
from memcore.words.stored import STORED_BITS, bits, of_bits

ENDS = (".safetensors", ".gguf")
SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.(?:safetensors|gguf)")
MOST_INDEX = 64_000_000  # bytes of an index; of 91,000 tensors it has 9 million
MOST_FILES = 2_000
# Files that repeat the weights beside them, or are no language model's.
REPEATS = ("consolidated", "adapter_model", "mmproj")


@dataclass(frozen=True)
class Folder:
    """Files beside each other, on a disk or on a hub: bytes by name, and what opens one."""

    label: str
    sizes: Mapping[str, int]
    opened: Callable[[str], BinaryIO]

    def read(self, name: str, most: int) -> bytes:
        with self.opened(name) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise refusal("", f"{shown_path(name)} has more than {most:,} bytes")
        return data


def is_weights(path: str) -> bool:
    """Whether a path is a file of weights, or a folder with some in it."""
    if os.path.isdir(path):
        with suppress(OSError):
            return any(each.endswith(ENDS) for each in os.listdir(path))
        return False
    return path.endswith(ENDS) and os.path.isfile(path)


def on_this_machine(path: str) -> tuple[Folder, str]:
    """The folder of a path, and the file in it that the path names, or ''. Raises PlanError."""
    at = Path(path)
    folder, name = (at, "") if at.is_dir() else (at.parent, at.name)
    try:
        sizes = {one.name: one.stat().st_size for one in folder.iterdir() if one.is_file()}
    except OSError as e:
        raise refusal("", (e.strerror or str(e)).lower()) from None
    return Folder(folder.resolve().name, sizes, lambda one: (folder / one).open("rb")), name


def document_of(folder: Folder, file: str = "") -> tuple[dict[str, Any], tuple[Issue, ...]]:
    """What a plan has for weights, and what of them it does not plan. file: a file of the folder,
    where one is meant. Raises PlanError, which names what is wrong, and in which file."""
    files = _files(folder, file)
    headers = [_header(folder, each) for each in files]
    gguf = files[0].endswith(".gguf")
    label = file or folder.label
    config = _config(folder, headers[0] if gguf else None, label)
    tensors = [tensor for header in headers for tensor in header.tensors]
    if twice := next((n for n, k in Counter(t.path for t in tensors).items() if k > 1), ""):
        raise refusal("", f"the tensor {shown(twice)} is in two of {len(files)} files")
    config, issues = _with_headers(config, tensors, gguf)
    config = {"_name_or_path": label, **config}
    document: dict[str, Any] = {"model": config}
    if gguf:
        document |= {**JOBS[SERVE], "serve": {"engine": LLAMA_CPP}}
    elif not (model := from_config(config)).quantization or not model.quantization.wide:
        document |= JOBS[SERVE]
    total = sum(tensor.bytes for tensor in tensors)
    several = f"{len(files)} files" if len(files) > 1 else files[0]
    read = Issue(
        "model",
        f"{len(tensors):,} tensors of {several}, {bytes_text(total)} ({total:,} "
        "bytes), by their headers",
    )
    return document, (read, *issues)


# ---- which files


def _files(folder: Folder, file: str) -> list[str]:
    """The files of the weights that are meant."""
    if file.endswith(".gguf"):
        return _parts(folder, file)
    index = [each for each in sorted(folder.sizes) if each.endswith(".safetensors.index.json")]
    one = next((each for each in index if each == "model.safetensors.index.json"), "")
    if index and (not file or SHARD.fullmatch(file)):
        return _indexed(folder, one or index[0])
    if file:
        return [file]
    there = [n for n in sorted(folder.sizes) if n.endswith(ENDS) and not n.startswith(REPEATS)]
    tensors = [each for each in there if each.endswith(".safetensors")]
    if tensors:
        return tensors[:MOST_FILES]
    firsts = [n for n in there if not (shard := SHARD.fullmatch(n)) or shard[2] == "00001"]
    if len(firsts) == 1:
        return _parts(folder, firsts[0])
    if not firsts:
        raise refusal(
            "",
            f"no weights in {shown_path(folder.label)}; .bin files are pickles, which "
            "are not read: convert them to safetensors, or give config.json alone",
        )
    listed = ", ".join(map(shown_path, firsts[:6]))
    raise refusal("", f"{len(firsts)} models are in this folder: file one of {listed}")


def _parts(folder: Folder, file: str) -> list[str]:
    """All parts of a GGUF file."""
    shard = SHARD.fullmatch(file)
    if not shard:
        return [file]
    n = min(int(shard[3]), MOST_FILES)
    names = [f"{shard[1]}-{i + 1:05}-of-{shard[3]}.gguf" for i in range(n)]
    return [_there(folder, each) for each in names]


def _there(folder: Folder, file: str) -> str:
    if file not in folder.sizes:
        raise refusal("", f"{shown_path(file)}, which is a part of these weights, is not there")
    return file


def _indexed(folder: Folder, file: str) -> list[str]:
    """The files that an index names."""
    try:
        places = json.loads(folder.read(file, MOST_INDEX))["weight_map"]
        files = list(dict.fromkeys(str(each) for each in places.values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise refusal("", f"{shown_path(file)} is no index with a weight_map") from None
    if not files or len(files) > MOST_FILES:
        raise refusal("", f"{shown_path(file)} names {len(files):,} files")
    return [_there(folder, each) for each in files]


def _header(folder: Folder, file: str) -> Header:
    """The header of one file. Raises PlanError with its file."""
    size = folder.sizes.get(file, 0)
    try:
        with folder.opened(file) as opened:
            return (gguf_header if file.endswith(".gguf") else safetensors_header)(opened, size)
    except OSError as e:
        raise refusal("", f"{shown_path(file)}: {(e.strerror or str(e)).lower()}") from None
    except PlanError as e:
        raise refusal("", f"{shown_path(file)}: {'; '.join(map(str, e.issues))}") from None


# ---- the model


def _config(folder: Folder, gguf: Header | None, label: str) -> dict[str, Any]:
    """The config.json of the model: that beside the weights, else of GGUF's metadata, else of the
    preset that the files are called as."""
    if "config.json" in folder.sizes:
        config = parse_config(folder.read("config.json", MAX_CONFIG_BYTES))
        if "hf_quant_config.json" in folder.sizes:
            stored = parse_config(folder.read("hf_quant_config.json", MAX_CONFIG_BYTES))
            if quantization.by_modelopt(stored):
                return quantization.with_modelopt(config, stored)
        return config
    if gguf and (config := _of_metadata(gguf)):
        return config
    of = str(gguf.metadata.get("general.each", "")) if gguf else ""
    for each in (label, of.replace(" ", "-")):
        if (preset := hub.preset(each)) and preset in catalog.config_names():
            return dict(catalog.model_entry(preset)["config"])
    if gguf is None:
        raise refusal("", "no config.json lies beside the weights, which says the model's layers")
    what = gguf.metadata.get("general.architecture", "")
    known = [each for each in GGUF["architectures"] if " " not in each]
    raise refusal(
        "",
        f"its architecture {shown(str(what))} is not read from GGUF; "
        f"{did_you_mean(str(what), known)}, or put the model's config.json beside it",
    )


def _of_metadata(gguf: Header) -> dict[str, Any]:
    """The config.json that a GGUF file's metadata stands for; {} of an architecture that the table
    has not."""
    said, names = gguf.metadata, {tensor.path for tensor in gguf.tensors}
    architecture = said.get("general.architecture")
    experts = " experts" if said.get(f"{architecture}.expert_count") else ""
    table = GGUF["architectures"]
    row = table.get(f"{architecture}{experts}") or table.get(architecture)
    if row is None:
        return {}
    config: dict[str, Any] = {"model_type": row["type"], **row.get("is", {})}
    for key, own in {**GGUF["keys"], **row.get("more", {})}.items():
        value = said.get(f"{architecture}.{key}")
        if own and value is not None and not isinstance(value, Count):
            config[own] = _one(value, f"{architecture}.{key}")
    config["tie_word_embeddings"] = "output.weight" not in names
    table_of = next((t for t in gguf.tensors if t.path == "token_embd.weight"), None)
    hidden = config.get("hidden_size")
    if table_of and isinstance(hidden, int) and hidden > 0:
        config["vocab_size"] = table_of.values // hidden
    if "biases" in row:
        config[row["biases"]] = "blk.0.attn_q.bias" in names
    if architecture == "deepseek2":
        config |= _latent(said)
    return config


def _one(value: Any, key: str) -> Any:
    """A number of all layers."""
    if not isinstance(value, list):
        return value
    if len(set(value)) != 1:
        raise refusal("", f"{key} differs by layer: put the model's config.json beside the file")
    return value[0]


def _latent(said: Mapping[str, Any]) -> dict[str, Any]:
    """Heads of latent attention, as llama.cpp has them since its absorbed form, or before it."""
    rotary = said.get("deepseek2.rope.dimension_count", 0)
    keys, values = (
        said.get(f"deepseek2.attention.{each}_length_mla")
        or said.get(f"deepseek2.attention.{each}_length", 0)
        for each in ("key", "value")
    )
    heads = said.get("deepseek2.attention.head_count")
    return {"qk_nope_head_dim": keys - rotary, "v_head_dim": values, "num_key_value_heads": heads}


# ---- tensors and the model's weights

LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block|blk)\.(\d{1,6})\.(.+)")
TOWER = re.compile(
    r"vis(?:ion|ual)|(?:^|[._])(?:image|img|mm|audio|mlp1|aligner)|multi_modal|"
    r"projector|patch_embed|(?:^|\.)encoder\."
)
# What quantizers add to the name of a weight.
STORED = re.compile(
    r"\.(weight|qweight|qzeros|scales|zeros|biases|g_idx|input_scale|output_scale|"
    r"perm|workspace|k_scale|v_scale|SCB)(?=[._]|$).*|_(blocks|scales|scale_inv)$"
)
EXPERT = {
    "w1": "gate_up_proj",
    "w3": "gate_up_proj",
    "w2": "down_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
MOST_BITS = 64  # of a weight, for what has no name of its own
# As both formats have values that are not quantized, and GGUF's quantized ones.
NAMED = {
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "MXFP4": "mxfp4",
    "NVFP4": "nvfp4",
}
PLAIN = ("F64", "F32", "F16", "BF16")
WORDS = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F8_E4M3": "fp8", "F8_E5M2": "fp8"}


def _with_headers(
    config: dict[str, Any], tensors: Sequence[Tensor], gguf: bool
) -> tuple[dict[str, Any], tuple[Issue, ...]]:
    """A config.json with what headers say of each of the model's weights, and what is not planned.
    Raises PlanError where they are not of one model."""
    model = from_config(config)
    layers = replace(model, tower=None).layers
    towers: list[Tensor] = []
    parts: dict[int | None, list[tuple[str, Tensor]]] = {}
    behind: list[Tensor] = []
    for tensor in tensors:
        found = LAYER.search(tensor.path)
        start = tensor.path[: found.start()] if found else tensor.path
        if TOWER.search(f"{start}."):
            towers.append(tensor)
        elif found and int(found[1]) >= layers:
            behind.append(tensor)
        else:
            layer, inner = (int(found[1]), found[2]) if found else (None, tensor.path)
            parts.setdefault(layer, []).append((inner, tensor))
    if missing := next((i for i in range(layers) if i not in parts), None):
        raise refusal("", f"layer {missing} of the model's {layers} has no tensor in these files")
    types: dict[str, dict[int | None, str]] = {}
    issues, other, lacks = [], 0, []
    for layer, places in _places(model):
        kinds, rest, absent = _stored(places, parts.get(layer, []), gguf)
        other += rest
        lacks += [path for path in absent if path not in lacks]
        for path, kind in kinds.items():
            types.setdefault(path, {})[layer] = kind
    if towers and model.tower:
        values = _values_of_towers(model)
        types["tower"] = {
            None: _kind(sum(t.bytes for t in towers), values, {t.type for t in towers})
        }
    not_planned = {
        "towers, which the plan has not": [] if model.tower else towers,
        f"layers behind the {layers} of the model": behind,
    }
    for what, left in not_planned.items():
        if n := sum(t.bytes for t in left):
            issues.append(
                Issue("model", f"{bytes_text(n)} ({n:,} bytes) of {what} are not planned")
            )
    if lacks:
        listed = ", ".join(lacks[:3]) + (f" and {len(lacks) - 3} more" if len(lacks) > 3 else "")
        issues.append(Issue("model", f"its config.json also has {listed}, which is in no file"))
    most = Counter[str]()
    for tensor in tensors:
        most[tensor.type] += tensor.bytes
    (main, _), *_ = most.most_common(1)
    words = GGUF["words"] if gguf else WORDS
    given: Any = next((config[key] for key in quantization.KEYS if config.get(key)), {})
    stored = {
        "quant_method": "GGUF" if gguf else "safetensors",
        **(given if isinstance(given, dict) else {}),
        quantization.ON_DISK: {
            "word": words.get(main, "bf16"),
            "other": other,
            "types": _listed(types),
        },
    }
    others = {key: value for key, value in config.items() if key not in quantization.KEYS}
    return {**others, "quantization_config": stored}, tuple(issues)


Place = dict[str, int]  # of an end of the model, or of one layer: values of each weight by its path


def _places(model: Model) -> Iterator[tuple[int | None, Place]]:
    """The weights of the model's ends, and of each layer."""
    own = replace(model, tower=None)
    amounts, ((first, _), *tapes, (last, _)) = weights(own)
    _, stack = layers_of(own)

    def of(*of_place: Any) -> Place:
        return {p.path: int(amounts.elements(p.shape)) for t in of_place for p in t.parameters}

    yield None, of(first, last)
    kinds = [of(tape) for tape, _ in tapes]
    yield from ((i, kinds[stack.kind(i)]) for i in range(stack.count))


def _values_of_towers(model: Model) -> int:
    """Values of the weights that only a model with its towers has."""

    def values(of: Model) -> int:
        amounts, tapes = weights(of)
        return sum(n * int(amounts.elements(p.shape)) for t, n in tapes for p in t.parameters)

    return values(model) - values(replace(model, tower=None))


def _stored(
    place: Place, tensors: Iterable[tuple[str, Tensor]], gguf: bool
) -> tuple[dict[str, str], int, list[str]]:
    """How the weights of one place are stored, the bytes that are none of theirs, and those that no
    file has."""
    groups: dict[tuple[str, ...], list[Tensor]] = {}
    for inner, tensor in tensors:
        fitting = _gguf_names(place, inner) if gguf else _names(place, inner)
        groups.setdefault(fitting, []).append(tensor)
    taken = Counter(itertools.chain.from_iterable(groups))
    nameless = groups.pop((), [])
    for paths in [paths for paths in groups if any(taken[path] > 1 for path in paths)]:
        nameless += groups.pop(paths)
    kinds: dict[str, str] = {}
    for paths, listed in groups.items():
        values, size = sum(place[path] for path in paths), sum(t.bytes for t in listed)
        stated = sum(t.values for t in listed)
        if (gguf or all(t.type in PLAIN for t in listed)) and stated != values:
            raise refusal(
                "",
                f"{listed[0].path} and what belongs to it have {stated:,} values, and "
                f"the model's {paths[0]} has {values:,}: they are not of one model",
            )
        kinds |= dict.fromkeys(paths, _kind(size, values, {t.type for t in listed}))
    left = [path for path in place if path not in kinds]
    values, size = sum(place[path] for path in left), sum(t.bytes for t in nameless)
    if left and 0 < size * 8 <= MOST_BITS * values:
        return kinds | dict.fromkeys(left, _kind(size, values, {t.type for t in nameless})), 0, []
    return kinds | dict.fromkeys(left, of_bits(0)), size, left


def _kind(size: int, values: int, types: set[str]) -> str:
    """The name of the type in which so many values have so many bytes."""
    (one,) = types if len(types) == 1 else ("",)
    named = NAMED.get(one, one)
    if named in STORED_BITS and bits(named) * values == size * 8:
        return named
    return f"{size * 8 / values if values else 0} bits"  # every digit, so that no byte is lost


def _names(place: Place, inner: str) -> tuple[str, ...]:
    """The weight that a tensor of safetensors is, or belongs to."""
    is_bias = inner.endswith("bias")
    plain = re.sub(r"\.\d+(?=\.)", "", STORED.sub("", inner.removesuffix(".bias")))
    *where, last = plain.split(".")
    if where and where[-1] == "experts":
        plain = ".".join((*where, EXPERT.get(last, last)))
        last = plain.rpartition(".")[2]
    of = {path: _plain(path) for path in place if path.endswith("bias") == is_bias}
    fits: tuple[Callable[[str], bool], ...] = (
        lambda end: end == plain or plain.endswith(f".{end}"),
        lambda end: end.rpartition(".")[2] == last,
    )
    for fit in fits:
        found = [path for path, end in of.items() if fit(end)]
        if len(found) == 1:
            return (found[0],)
    return ()


def _plain(path: str) -> str:
    """A weight's path without its place and what ends it."""
    inner = path.partition(".")[2].removesuffix(".weight").removesuffix(".bias")
    return inner.removesuffix(".logits")


def _gguf_names(place: Place, inner: str) -> tuple[str, ...]:
    """The weights that a tensor of GGUF is."""
    what, _, kind = inner.rpartition(".")
    of = {
        path: _plain(path.removesuffix("_bias"))
        for path in place
        if path.endswith("bias") == (kind == "bias")
    }
    for ends in GGUF["tensors"].get(what, ()):
        found = [[p for p, own in of.items() if own == e or own.endswith(f".{e}")] for e in ends]
        if all(len(paths) == 1 for paths in found):
            return tuple(path for (path,) in found)
    return ()


def _listed(types: Mapping[str, Mapping[int | None, str]]) -> dict[str, list[str]]:
    """Types with the weights that have them; of one that is stored otherwise in some layers, the
    layers behind an '@'."""
    found: dict[str, list[str]] = {}
    for path, by_layer in types.items():
        (usual, _), *others = Counter(by_layer.values()).most_common()
        found.setdefault(usual, []).append(path)
        for kind, _ in others:
            layers = [i for i, each in by_layer.items() if each == kind and i is not None]
            found.setdefault(kind, []).append(f"{path}@{_ranges(layers)}")
    return found


def _ranges(layers: Sequence[int]) -> str:
    """Layers as '0-3,7'."""
    parts = []
    for _, run in itertools.groupby(enumerate(layers), lambda each: each[1] - each[0]):
        first, *_, last = [i for _, i in run] * 2
        parts.append(f"{first}-{last}" if last > first else f"{first}")
    return ",".join(parts)
