"""Targets: what a word of the command line builds: a module, its inputs and its loss."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memcore.errors import shown
from memcore.tracing import signatures
from memcore.tracing.inputs import Input, Target, refuse


def target_of(word: str, dims: Mapping[str, tuple[str, ...]]) -> Target:
    """What a word names: timm:NAME, diffusers:FOLDER or :CLASS, FILE.py:FUNCTION, a config.json or
    a preset. `dims`: those that the user named for inputs."""
    before, _, after = word.partition(":")
    if before.endswith(".py"):
        target = _own(before, after)
    else:
        target = _PACKAGES[before](after) if before in _PACKAGES else _transformers(word)
    unknown = [name for name in dims if name not in target.inputs]
    if unknown:
        there = ", ".join(target.inputs)
        raise refuse(f"it has no input called {shown(unknown[0])}; its inputs are {there}")
    inputs = dict(target.inputs)
    for name, given in dims.items():
        old = inputs[name]
        if old.dims and len(old.dims) != len(given):
            raise refuse(
                f"its input {name} has {len(old.dims)} dimensions ({', '.join(old.dims)}), and "
                f"{len(given)} are named"
            )
        inputs[name] = dataclasses.replace(old, dims=given)
    return dataclasses.replace(target, inputs=inputs, others=() if dims else target.others)


_MAIN = ("loss", "sample", "logits")  # of a result of several, what alone is trained


def _trained(out: Any) -> list[Any]:
    """The tensors of a result that are trained: its loss or main part, else all with a gradient."""
    import torch
    from torch.utils._pytree import tree_leaves

    for name in _MAIN:
        part = out.get(name) if isinstance(out, Mapping) else getattr(out, name, None)
        if isinstance(part, torch.Tensor):
            return [part]
    if dataclasses.is_dataclass(out) and not isinstance(out, Mapping):
        out = [getattr(out, of.name) for of in dataclasses.fields(out)]
    parts = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not parts:
        raise refuse("its result has no tensor with a gradient, so that there is no loss")
    return parts


def own_loss(out: Any, _: Mapping[str, Any]) -> Any:
    """A model's own loss where it gives one number, else the mean square of each of its results."""
    import torch

    total = None
    for t in _trained(out):
        real = torch.view_as_real(t) if t.is_complex() else t
        part = real if real.dim() == 0 else real.float().pow(2).mean()
        total = part if total is None else total + part
    return total


def _classes(out: Any, inputs: Mapping[str, Any]) -> Any:
    import torch

    labels = torch.zeros(out.shape[0], dtype=torch.long, device=out.device)
    return torch.nn.functional.cross_entropy(out, labels)


def _noise(out: Any, inputs: Mapping[str, Any]) -> Any:
    import torch

    out = _trained(out)[0]
    return torch.nn.functional.mse_loss(out.float(), torch.empty_like(out).float())


def _timm(name: str) -> Target:
    timm: Any = _package("timm")
    if name not in timm.list_models():
        raise refuse(f"timm has no model {shown(name)}")

    def build() -> Any:
        return timm.create_model(name, pretrained=False)

    inputs = {"x": Input(("batch", "3", "height", "width"))}
    config = timm.get_pretrained_cfg(name)
    side = {"image_size": list(config.input_size[1:])} if config else {}
    _, *others = signatures.alternatives(inputs, side)
    return Target(name, f"timm:{name}", build, inputs, _classes, ("timm",), tuple(others))


_CLIP = ("batch", "3", "frames", "height", "width")


def _torchvision(name: str) -> Target:
    vision: Any = _package("torchvision")
    if name not in vision.models.list_models():
        raise refuse(f"torchvision has no model {shown(name)}")

    def build() -> Any:
        takes = inspect.signature(vision.models.get_model_builder(name)).parameters
        weights = {key: None for key in ("weights", "weights_backbone") if key in takes}
        return vision.models.get_model(name, **weights)

    def loss(out: Any, inputs: Mapping[str, Any]) -> Any:
        if hasattr(out, "logits") or isinstance(out, Mapping) or out.dim() != 2:
            return own_loss(out, inputs)
        return _classes(out, inputs)

    image: dict[str, Input] = {"x": Input(("batch", "3", "height", "width"))}
    _, *others = signatures.alternatives(image, {"image_size": 224})
    return Target(
        name, f"torchvision:{name}", build, image, loss, ("torchvision",),
        (*others, {"x": Input(_CLIP)}, {"x": Input(("batch", "3", "16", "224", "224"))}),
        {"frames": 16},
    )  # fmt: skip


_LATENT = {"height": 64, "width": 96, "frames": 9}  # what denoisers are traced at


def _diffusers(word: str) -> Target:
    diffusers: Any = _package("diffusers")
    file = Path(word)
    config: dict[str, Any] = {}
    kind = word
    if file.exists():
        config = _json(file / "config.json" if file.is_dir() else file)
        kind = str(config.get("_class_name", ""))
    made: Any = getattr(diffusers, kind, None) if kind.isidentifier() else None
    if not hasattr(made, "from_config"):
        raise refuse(f"{shown(kind or word)} is no class of diffusers")

    def build() -> Any:
        return made.from_config(config)

    import torch

    with torch.device("meta"):
        settled = dict(build().config)
    inputs = signatures.inputs_of(made.forward, settled)
    if not settled.get("guidance_embeds", "guidance_embeds" not in settled):
        inputs.pop("guidance", None)
    if "num_frames" in inputs and "hidden_states" in inputs:
        batch, _, channels = inputs["hidden_states"].dims
        inputs["hidden_states"] = Input((batch, "frames*height*width", channels))
    if settled.get("addition_embed_type") == "text_time":
        ids = settled["addition_time_embed_dim"]
        text = settled["projection_class_embeddings_input_dim"] - 6 * ids
        inputs["added_cond_kwargs.text_embeds"] = Input(("batch", str(text)))
        inputs["added_cond_kwargs.time_ids"] = Input(("batch", "6"))
    label = kind if not file.exists() else f"{file.stem} ({kind})"
    first, *others = signatures.alternatives(inputs, settled)
    return Target(
        label, f"diffusers:{word}", build, first, _noise, ("diffusers",), tuple(others), _LATENT
    )


def _own(path: str, function: str) -> Target:
    import torch

    file = Path(path)
    if not file.is_file():
        raise refuse(f"there is no file {shown(path)}")
    _declare_what_torchvision_lacks()  # which diffusers imports by transformers
    spec = importlib.util.spec_from_file_location("memplan_traced", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there for what their types are
    sys.path.insert(0, str(file.resolve().parent))  # what it imports may stand next to it
    spec.loader.exec_module(module)
    made: Any = getattr(module, function, None)
    if made is None:
        raise refuse(f"{file.name} has no function {shown(function)}")
    given = without_values(made)
    if not (
        isinstance(given, tuple)
        and len(given) == 2
        and isinstance(given[0], torch.nn.Module)
        and isinstance(given[1], dict)
    ):
        raise refuse(f"{function} must return a module and a dict of example inputs")

    def made_of(t: Any) -> Input:
        if not isinstance(t, torch.Tensor):
            return Input((), "as it is", value=t)
        word = "float" if t.is_floating_point() else str(t.dtype).removeprefix("torch.")
        return Input(tuple(map(str, t.shape)), word)

    inputs: dict[str, Input] = {}
    for name, t in given[1].items():
        if isinstance(t, dict):
            inputs |= {f"{name}.{key}": made_of(inner) for key, inner in t.items()}
        else:
            inputs[name] = made_of(t)
    label = f"{file.stem}.{function}"
    return Target(label, f"{file.name}:{function}", lambda: made()[0], inputs, own_loss)


def without_values(build: Any) -> Any:
    """What build() gives, on torch's meta device; where its code needs values, on the CPU, where
    memory that nothing writes to takes none."""
    import torch
    from torch.nn import init

    try:
        with torch.device("meta"):
            return build()
    except (NotImplementedError, RuntimeError):
        names = [n for n in dir(init) if n.endswith("_") and not n.startswith("_")]
        theirs = {n: getattr(init, n) for n in names}
        try:
            for n in names:
                setattr(init, n, lambda t, *_, **__: t)
            return build()
        finally:
            for n, function in theirs.items():
                setattr(init, n, function)


# Heads of transformers that are tried in this order where a config names no class.
_HEADS = (
    "AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq",
    "AutoModelForImageTextToText", "AutoModelForMaskedLM", "AutoModelForImageClassification",
    "AutoModelForObjectDetection", "AutoModelForUniversalSegmentation",
    "AutoModelForSemanticSegmentation", "AutoModelForCTC", "AutoModelForAudioClassification",
    "AutoModel",
)  # fmt: skip
# What labels are of: every token of the input, or of the target; a sample.
_EVERY_TOKEN = ("AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForTokenClassification")
_TARGETS = ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq", "AutoModelForImageTextToText")
_ONE = (
    "AutoModelForSequenceClassification", "AutoModelForImageClassification",
    "AutoModelForAudioClassification",
)  # fmt: skip
_SOUND = {"frames": 300, "samples": 16_000}
_DRAWN = "_compute_mask_indices"  # draws by numpy, in a loop over samples
_LONG = 512  # positions from which a model takes the usual example, and one twice as long


def _drawn(shape: Any, *_: Any, **__: Any) -> Any:
    """A mask of a shape: of what is drawn a trace needs no values."""
    import torch

    return torch.zeros(shape, dtype=torch.bool)


def _class_of(transformers: Any, cfg: Any) -> Any:
    """The class of a config: the one that it names, else the first head that there is."""
    for name in cfg.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    for head in _HEADS:
        for made in _headed(transformers, head, cfg):
            return made
    raise refuse(f"transformers has no model of {shown(cfg.model_type)}")


def _headed(transformers: Any, head: str, cfg: Any) -> tuple[Any, ...]:
    """The classes of a config that have a head."""
    mapping = getattr(transformers, head)._model_mapping
    found = mapping.get(type(cfg), ())
    return tuple(found) if isinstance(found, (list, tuple)) else (found,)


def _transformers(word: str) -> Target:
    transformers: Any = _package("transformers")
    file = Path(word)
    before, _, name = word.partition(":")
    if before == "transformers":
        config: dict[str, Any] = {"model_type": name}
        if hasattr(transformers, name) and hasattr(getattr(transformers, name), "config_class"):
            kind = getattr(transformers, name).config_class.model_type
            config = {"model_type": kind, "architectures": [name]}
    elif file.is_file():
        config = _json(file)
    else:
        from memcore.models import catalog

        if word not in catalog.model_names():
            raise refuse(f"{shown(word)} is no file, no preset, and begins with no word known here")
        config = catalog.model_entry(word)["config"]
    kind = str(config.get("model_type", ""))
    settings = {k: v for k, v in config.items() if k != "model_type"}
    try:
        cfg = transformers.AutoConfig.for_model(kind, **settings)
    except ValueError as e:
        raise refuse(f"transformers does not know model_type {shown(kind)}: {e}") from e
    made = _class_of(transformers, cfg)
    for inner in (cfg, cfg.get_text_config()):
        inner.use_cache = False
    if getattr(cfg.get_text_config(), "pad_token_id", 0) is None:
        cfg.get_text_config().pad_token_id = 0  # heads that classify look for it
    code = vars(sys.modules[made.__module__])
    if _DRAWN in code:
        code[_DRAWN] = _drawn

    def build() -> Any:
        try:
            return made._from_config(cfg, attn_implementation="sdpa")
        except (ValueError, ImportError):
            return made._from_config(cfg, attn_implementation="eager")

    inputs = _transformers_inputs(transformers, made, cfg)
    label = file.stem if not file.is_file() else kind
    flat = _flat(cfg.to_dict())
    first, *others = signatures.alternatives(inputs, flat)
    most = flat.get("max_position_embeddings", _LONG)
    at = {**_SOUND, "tokens": max(2, most // 2)} if 0 < most < _LONG else _SOUND
    return Target(label, word, build, first, own_loss, ("transformers",), tuple(others), at)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config and of those in it, of which an outer one stands before an inner one."""
    found: dict[str, Any] = {}
    for inner in config.values():
        if isinstance(inner, Mapping):
            found |= _flat(inner)
    return found | {k: v for k, v in config.items() if v is not None}


def _transformers_inputs(transformers: Any, made: Any, cfg: Any) -> dict[str, Input]:
    """Inputs of a class of transformers; those of its labels as its head says."""

    def has(heads: tuple[str, ...]) -> bool:
        return any(made in _headed(transformers, head, cfg) for head in heads)

    takes = inspect.signature(made.forward).parameters
    wanted = [w for w in (made.main_input_name, "input_ids", "pixel_values") if w in takes]
    if "encoder_outputs" in takes and "decoder_input_ids" in takes:
        wanted.append("decoder_input_ids")
    flat = _flat(cfg.to_dict())
    found = signatures.inputs_of(made.forward, flat, tuple(wanted))
    vocab = flat.get("vocab_size", 2)
    for ids in ("input_ids", "decoder_input_ids"):
        if ids in found:
            found[ids] = dataclasses.replace(found[ids], below=vocab)
    if "labels" in takes and "labels" not in found:
        of_decoder = "decoder_input_ids" in found
        if has(_EVERY_TOKEN) or (has(_TARGETS) and not of_decoder):
            if "input_ids" in found:
                found["labels"] = found["input_ids"]
        elif has(_TARGETS):
            found["labels"] = found["decoder_input_ids"]
        elif has(_ONE):
            found["labels"] = Input(("batch",), "int64", 2)
    return found


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise refuse(f"{file} is no JSON file: {e}") from e
    if not isinstance(found, dict):
        raise refuse(f"{file} is no JSON object")
    return found


_DECLARED: list[Any] = []


def _declare_what_torchvision_lacks() -> None:
    """A torchvision from PyPI is built for another torch than that of a CPU: its kernels do not
    load, and its Python stops at the first of them. Declared they are enough: no trace runs one."""
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.origin or _DECLARED:
        return
    folder = Path(spec.origin).parent
    try:
        for kernels in folder.glob("_C*.so"):
            torch.ops.load_library(kernels)
    except OSError:
        text = (folder / "_meta_registrations.py").read_text(encoding="utf-8")
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in set(re.findall(r"torchvision::(\w+)", text)):
            library.define(f"{name}(Tensor x) -> Tensor")
        _DECLARED.append(library)


def _package(name: str) -> Any:
    _declare_what_torchvision_lacks()
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise refuse(
            f"{name} is not installed, and this target needs it: pip install {name}"
        ) from e


_PACKAGES: dict[str, Callable[[str], Target]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "diffusers": _diffusers,
}
