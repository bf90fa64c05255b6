"""Registry: torchtitan's runs as functions in Python, which are read and never run, and written.

Source: torchtitan/models/*/config_registry.py, config/configs.py and components/quantization/
float8.py of August 2026 (commit b5bcd76c6), and what models/*/__init__.py take for attention.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from memcore.formats import hub, python, torchtitan
from memcore.formats.draft import Draft
from memcore.formats.texts import module
from memcore.plan.plan import Plan

CALLED = "()"  # the key of what was called, and of its arguments by place
PLACED = "(*)"
MAX_DEPTH = 12
MAX_VALUES = 50_000  # of all functions of a module, those that they call each time; most have 5,000
BY_MODE = "ActivationCheckpointConfig"  # before these classes, with the TOML's own keys
CHUNKED = "ChunkedLossWrapper"
# What holds a run, and the attention of model_registry where it is not said (gpt_oss's own).
RUNS = ("Trainer.Config", "GraphTrainer.Config", "TransformersBackendConfig")
USUAL, OF_GPT_OSS = "flex", "varlen"
DEBUG = "debug"  # in the name of a test of the code
RECIPE = "rowwise"  # of its float8 where none is named


def runs(content: str) -> dict[str, Mapping[str, Any]]:
    """The runs that a module's functions return, as the TOML of older versions has them."""
    if not any(each in content for each in RUNS):
        return {}
    tree = module(content)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    left = iter(range(MAX_VALUES))
    found = {name: _Function(functions, left, 0).returned(functions[name]) for name in functions}
    if next(left, None) is None:
        return {}  # what was read of them may lack anything
    return {
        name: _document(name, run)
        for name, run in found.items()
        if isinstance(run, dict) and run.get(CALLED) in RUNS
    }


def read(content: str, draft: Draft) -> None:
    """The first run whose model has a preset, one without converters before those with them, or
    the first that is no test of the code; the others are told."""
    known = runs(content)
    real = [function for function in known if DEBUG not in function]
    named = [name for name in real if hub.preset(torchtitan.model_of(known[name]))]
    plain = [name for name in named if not known[name]["model"]["converters"]]
    chosen = next(iter((*plain, *named, *real, *known)))
    torchtitan.read(known[chosen], draft)
    if CHUNKED in content:
        draft.put("train.cross_entropy", "chunked", "loss", CHUNKED)
    draft.chosen(chosen, "run", known)


class _Function(python.Evaluator):
    """What a function returns, as far as constants say it: of a call its arguments, which later
    lines may set. `left`: one is taken for each expression, and where none is left nothing is
    read."""

    def __init__(self, functions: Mapping[str, ast.FunctionDef], left: Iterator[int], depth: int):
        self.variables: dict[str, Any] = {}
        super().__init__(self.variables)
        self.functions, self.left, self.depth = functions, left, depth

    def returned(self, node: ast.FunctionDef) -> Any:
        """What the function returns."""
        for line in node.body if self.depth <= MAX_DEPTH and not node.args.args else ():
            if isinstance(line, ast.Return) and line.value is not None:
                return self.value(line.value)
            if isinstance(line, ast.Assign) and len(line.targets) == 1:
                value, target = self.value(line.value), line.targets[0]
                if isinstance(target, ast.Name):
                    self.variables[target.id] = value
                elif isinstance(target, ast.Attribute):
                    owner = self.value(target.value)
                    if isinstance(owner, dict):
                        owner[target.attr] = value
        return None

    def value(self, node: ast.expr) -> Any:
        if self.depth > MAX_DEPTH or next(self.left, None) is None:
            return None
        self.depth += 1
        found = super().value(node)
        self.depth -= 1
        return found

    def attribute(self, node: ast.Attribute) -> Any:
        owner = self.value(node.value)
        return owner.setdefault(node.attr, {}) if isinstance(owner, dict) else None

    def call(self, node: ast.Call) -> Any:
        called = ast.unparse(node.func)
        if called in self.functions and not node.args and not node.keywords:
            inner = _Function(self.functions, self.left, self.depth)
            return inner.returned(self.functions[called])
        given = {each.arg: self.value(each.value) for each in node.keywords if each.arg}
        return {CALLED: called, PLACED: [self.value(each) for each in node.args], **given}


def _document(function: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """A run as the TOML of older versions has it."""
    sections = {key: _section(run, key) for key in ("training", "parallelism", "compile")}
    for section in sections.values():
        section.pop(PLACED, None)
    training = sections["training"]
    older = {"seq_len", "local_batch_size"} & training.keys()  # before June 2026, as a TOML has it
    length = training.pop("max_context_length", 2048)
    tokens = training.pop("num_tokens_per_microbatch_per_dp_rank", 16_384)
    if isinstance(length, int) and isinstance(tokens, int) and length and not older:
        training |= {"seq_len": length, "local_batch_size": max(1, tokens // length)}
    step = training.pop("num_tokens_per_train_step", -1)
    if isinstance(step, int) and isinstance(length, int) and step > 0 and length:
        training["global_batch_size"] = step // length
    model = _section(run, "model_spec")
    placed = model.get(PLACED)
    flavor = next((each for each in placed or () if isinstance(each, str)), "")
    given = [each for each in model.get("converters") or () if isinstance(each, Mapping)]
    converters = [str(each.get(CALLED)).split(".")[0] for each in given]
    # of a mixture its experts have a converter of their own
    converters = [each for each in converters if "Experts" not in each or len(converters) == 1]
    recipe = next((each["recipe_name"] for each in given if "recipe_name" in each), RECIPE)
    if _counts(sections["parallelism"].get("pipeline_parallel_degree")) > 1:
        pieces = _counts(sections["parallelism"].pop("num_pp_microbatches", 1)) or 1
        each = _counts(training.get("local_batch_size")) or 1
        sections["parallelism"]["pipeline_parallel_microbatch_size"] = each
        training["local_batch_size"] = each * pieces
    modes = torchtitan.TITAN.table["recomputes"]
    recomputes = modes["SelectiveAC"]  # by default
    if "activation_checkpoint" in run:
        how = run["activation_checkpoint"]
        stated = _section(run, "activation_checkpoint")
        called = str(how.get(CALLED)).split(".")[0] if isinstance(how, Mapping) else ""
        by_mode = {"mode": "selective", **stated} if called == BY_MODE else {"mode": "none"}
        recomputes = modes.get(called, by_mode)
    return {
        **sections,
        "model": {
            **_named(function, flavor, run),
            "converters": converters,
            "attn_backend": model.get("attn_backend")
            or (OF_GPT_OSS if "gpt_oss" in function else USUAL),
        },
        "float8": {"recipe_name": recipe},
        "activation_checkpoint": {key: v for key, v in recomputes.items() if key != PLACED},
        "optimizer": {"name": "AdamW"},
    }


def _named(function: str, flavor: str, run: Mapping[str, Any]) -> dict[str, str]:
    """The model of a run: by its function and flavour; of one that has no preset by these, by the
    name that the hub has for its files."""
    word = re.sub(r"\W", "_", flavor.lower())
    name = function.partition(f"_{word}")[0] if flavor else function
    on_hub = str(run.get("hf_model") or run.get("hf_assets_path") or "").rstrip("/")
    if f"{name} {flavor}".lower() in torchtitan.MODELS or DEBUG in flavor or not on_hub:
        return {"name": name, "flavor": flavor}
    return {"name": on_hub if "hf_model" in run else on_hub.rpartition("/")[2], "flavor": ""}


def _section(run: Mapping[str, Any], key: str) -> dict[str, Any]:
    section = run.get(key)
    given = section if isinstance(section, Mapping) else {}
    return {name: value for name, value in given.items() if name != CALLED}


def _counts(value: Any) -> int:
    return value if isinstance(value, int) else 0


def flavour(plan: Plan) -> tuple[str, str]:
    """What torchtitan calls a plan's model: its folder and its flavour; two '' of one it has
    not."""
    model = (
        torchtitan.TITAN.table["same"].get(plan.model, plan.model)
        if isinstance(plan.model, str)
        else ""
    )
    found = (said.split() for said, preset in torchtitan.MODELS.items() if preset == model)
    folder, size = next(found, ("", ""))
    return folder, size if "x" in size or folder == "gpt_oss" else size.upper()


def written(plan: Plan) -> dict[str, str]:
    """A plan as a run of torchtitan's: a function for a config_registry.py."""
    t, p = plan.train, plan.parallel
    folder, size = flavour(plan)
    tokens = t.micro_batch * t.seq_len
    training: dict[str, Any] = {
        "num_tokens_per_microbatch_per_dp_rank": tokens,
        "max_context_length": t.seq_len,
    }
    if p.pp == 1:
        training["num_tokens_per_train_step"] = tokens * t.grad_accumulation * plan.dp
    if "cpu" in (t.offload_parameters, t.offload_optimizer):
        training["enable_cpu_offload"] = True
    if t.precision == "bf16-pure":
        training["dtype"] = "bfloat16"
    elif t.precision == "fp32":
        training["mixed_precision_param"] = "float32"
    replicas = plan.dp // p.shard_group if p.shard_group else 1
    degrees = {"data_parallel_replicate": replicas, "data_parallel_shard": plan.dp // replicas}
    degrees |= {"tensor_parallel": p.tp, "pipeline_parallel": p.pp}
    degrees |= {"context_parallel": p.cp, "expert_parallel": p.ep}
    parallelism: dict[str, Any] = {f"{name}_degree": n for name, n in degrees.items()}
    parallelism["fsdp_reshard_after_forward"] = "always" if t.zero == WHOLE else "never"
    if p.tp > 1 and not p.sequence_parallel:
        parallelism["enable_sequence_parallel"] = False
    if p.pp > 1:
        parallelism["num_pp_microbatches"] = t.grad_accumulation
        parallelism["pipeline_parallel_schedule"] = _schedule(plan)
    compiled = t.kernels == "compile"
    eight = t.precision == "float8-rowwise"
    recomputes = {"full": "FullAC", "selective-op": "SelectiveAC"}.get(t.checkpointing, "")
    inner = "CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))"
    chunked = t.cross_entropy == "chunked"
    spec = f'"{size}"' + (', attn_backend="varlen"' if t.attention == "flash" else "")
    if eight:
        each = f'Float8LinearConverter.Config(recipe_name="{RECIPE}", '
        spec += f", converters=[{each}model_compile_enabled={compiled})]"
    run = torchtitan.TITAN.table["run"].format(
        losses=f"{CHUNKED}, CrossEntropyLoss" if chunked else "CrossEntropyLoss",
        loss=f"{CHUNKED}.Config(loss_fn={inner})" if chunked else inner,
        quantization=_import("components.quantization", "Float8LinearConverter" if eight else ""),
        recomputation=_import("distributed.activation_checkpoint", recomputes),
        checkpoint=f"{recomputes}.Config()" if recomputes else "None",
        name=f"{folder}_{size}".lower().replace(".", "_").replace("-", "_"),
        folder=folder,
        spec=spec,
        compiled=compiled,
        training=_arguments(training),
        parallelism=_arguments(parallelism),
    )
    return {"config_registry.py": run}


WHOLE = 3  # the stage of ZeRO that reshards weights after forward


def _schedule(plan: Plan) -> str:
    looped = plan.parallel.virtual_stages > 1
    names = {"gpipe": "GPipe", "zero-bubble": "ZBVZeroBubble"}
    return names.get(plan.parallel.schedule, "Interleaved1F1B" if looped else "1F1B")


def _import(module: str, name: str) -> str:
    return f"from torchtitan.{module} import {name}\n" if name else ""


def _arguments(given: Mapping[str, Any]) -> str:
    return "".join(f"            {key}={value!r},\n" for key, value in given.items())
