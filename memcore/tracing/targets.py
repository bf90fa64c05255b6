"""Targets: what a word of the command line builds: a module, its inputs and its loss."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memcore.errors import Issue, PlanError, shown


@dataclass(frozen=True)
class Input:
    """One input: its dimensions, each a whole number, a name, or a number times a name as 8*height;
    its dtype as torch's word ('float' for the trace's own); `below` what its integers are."""

    dims: tuple[str, ...]
    dtype: str = "float"
    below: int = 2


@dataclass(frozen=True)
class Target:
    """build() makes the module on the default device; `loss`: of its result and the inputs;
    `inputs`: by their names; `label`: what people call it; `source`: what it was made of."""

    label: str
    source: str
    build: Callable[[], Any]
    inputs: Mapping[str, Input]
    loss: Callable[[Any, Mapping[str, Any]], Any]
    packages: tuple[str, ...] = ()


def refuse(message: str) -> PlanError:
    """An error that names the target."""
    return PlanError([Issue("target", message)])


def target_of(word: str, dims: Mapping[str, tuple[str, ...]]) -> Target:
    """What a word names: timm:NAME, diffusers:FOLDER or :CLASS, FILE.py:FUNCTION, a config.json or
    a preset. `dims`: those that the user named for inputs."""
    before, _, after = word.partition(":")
    if before == "timm":
        found = _timm(after)
    elif before == "diffusers":
        found = _diffusers(after)
    elif before.endswith(".py"):
        found = _own(before, after)
    else:
        found = _transformers(word)
    unknown = [name for name in dims if name not in found.inputs]
    if unknown:
        there = ", ".join(found.inputs)
        raise refuse(f"it has no input called {shown(unknown[0])}; its inputs are {there}")
    inputs = dict(found.inputs)
    for name, given in dims.items():
        old = inputs[name]
        if old.dims and len(old.dims) != len(given):
            raise refuse(
                f"its input {name} has {len(old.dims)} dimensions ({', '.join(old.dims)}), and "
                f"{len(given)} are named"
            )
        inputs[name] = Input(given, old.dtype, old.below)
    return Target(found.label, found.source, found.build, inputs, found.loss, found.packages)


def _first(out: Any) -> Any:
    """The tensor that a model's result is, or has first."""
    import torch

    if isinstance(out, torch.Tensor):
        return out
    for name in ("loss", "sample", "logits", "last_hidden_state"):
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    listed = list(out.values()) if isinstance(out, Mapping) else list(out)
    return _first(listed[0])


def own_loss(out: Any, _: Mapping[str, Any]) -> Any:
    """A model's own loss where it gives one number, else the mean square of its result."""
    out = _first(out)
    return out if out.dim() == 0 else out.float().pow(2).mean()


def _classes(out: Any, inputs: Mapping[str, Any]) -> Any:
    import torch

    labels = torch.zeros(out.shape[0], dtype=torch.long, device=out.device)
    return torch.nn.functional.cross_entropy(out, labels)


def _noise(out: Any, inputs: Mapping[str, Any]) -> Any:
    import torch

    out = _first(out)
    return torch.nn.functional.mse_loss(out.float(), torch.empty_like(out).float())


def _timm(name: str) -> Target:
    timm: Any = _package("timm")
    if name not in timm.list_models():
        raise refuse(f"timm has no model {shown(name)}")

    def build() -> Any:
        return timm.create_model(name, pretrained=False)

    inputs = {"x": Input(("batch", "3", "height", "width"))}
    return Target(name, f"timm:{name}", build, inputs, _classes, ("timm",))


# Inputs of diffusers' denoisers, by class; words in braces are keys of their configs.
_DENOISERS: dict[str, dict[str, Input]] = {
    "UNet2DConditionModel": {
        "sample": Input(("batch", "{in_channels}", "height", "width")),
        "timestep": Input(("batch",)),
        "encoder_hidden_states": Input(("batch", "text", "{cross_attention_dim}")),
    },
    "FluxTransformer2DModel": {
        "hidden_states": Input(("batch", "tokens", "{in_channels}")),
        "encoder_hidden_states": Input(("batch", "text", "{joint_attention_dim}")),
        "pooled_projections": Input(("batch", "{pooled_projection_dim}")),
        "timestep": Input(("batch",)),
        "img_ids": Input(("tokens", "3")),
        "txt_ids": Input(("text", "3")),
        "guidance": Input(("batch",)),
    },
}


def _diffusers(word: str) -> Target:
    diffusers: Any = _package("diffusers")
    file = Path(word)
    config: dict[str, Any] = {}
    kind = word
    if file.exists():
        config = _json(file / "config.json" if file.is_dir() else file)
        kind = str(config.get("_class_name", ""))
    if kind not in _DENOISERS or not hasattr(diffusers, kind):
        known = ", ".join(_DENOISERS)
        raise refuse(
            f"{shown(kind or word)} is no class of diffusers whose inputs are known ({known}); "
            "write FILE.py:FUNCTION that returns the module and a dict of example inputs"
        )
    made: Any = getattr(diffusers, kind)

    def build() -> Any:
        return made.from_config(config)

    import torch

    with torch.device("meta"):
        settled = dict(build().config)

    def spelled(dim: str) -> str:
        return str(settled[dim[1:-1]]) if dim.startswith("{") else dim

    inputs = {
        name: Input(tuple(map(spelled, given.dims)), given.dtype, given.below)
        for name, given in _DENOISERS[kind].items()
    }
    if kind == "FluxTransformer2DModel" and not settled.get("guidance_embeds"):
        del inputs["guidance"]
    if settled.get("addition_embed_type") == "text_time":
        ids = settled["addition_time_embed_dim"]
        text = settled["projection_class_embeddings_input_dim"] - 6 * ids
        inputs["added_cond_kwargs.text_embeds"] = Input(("batch", str(text)))
        inputs["added_cond_kwargs.time_ids"] = Input(("batch", "6"))
    label = kind if not file.exists() else f"{file.stem} ({kind})"
    return Target(label, f"diffusers:{word}", build, inputs, _noise, ("diffusers",))


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
    spec.loader.exec_module(module)
    made: Any = getattr(module, function, None)
    if made is None:
        raise refuse(f"{file.name} has no function {shown(function)}")
    with torch.device("meta"):
        given = made()
    if not (
        isinstance(given, tuple)
        and len(given) == 2
        and isinstance(given[0], torch.nn.Module)
        and isinstance(given[1], dict)
    ):
        raise refuse(f"{function} must return a module and a dict of example inputs")

    def word(t: Any) -> str:
        return "float" if t.is_floating_point() else str(t.dtype).removeprefix("torch.")

    inputs = {
        name: Input(tuple(map(str, t.shape)), word(t))
        for name, t in given[1].items()
        if isinstance(t, torch.Tensor)
    }
    return Target(
        f"{file.stem}.{function}", f"{file.name}:{function}", lambda: made()[0], inputs, own_loss
    )


def _transformers(word: str) -> Target:
    transformers: Any = _package("transformers")
    file = Path(word)
    if file.is_file():
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
    cfg.use_cache = False

    def build() -> Any:
        return transformers.AutoModelForCausalLM.from_config(cfg, attn_implementation="sdpa")

    vocab = cfg.get_text_config().vocab_size
    ids = Input(("batch", "tokens"), "int64", vocab)
    label = file.stem if not file.is_file() else kind
    return Target(
        label, word, build, {"input_ids": ids, "labels": ids}, own_loss, ("transformers",)
    )


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
