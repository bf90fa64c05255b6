"""Export: a plan as the files and flags of the program that would run it.

What is written is read again as any other file is: a field that comes back otherwise is told, so
that nothing is said to be in the files that is not.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from memcore.errors import Issue, PlanError, did_you_mean, shown
from memcore.formats import accelerate, deepspeed, hub, registry, servers, trainer
from memcore.formats.draft import hyphened, underscored
from memcore.formats.megatron import MEGATRON
from memcore.formats.programs import Program
from memcore.formats.reading import MODEL, read_files
from memcore.formats.servers import Server
from memcore.formats.texts import Text
from memcore.models import catalog
from memcore.plan.field import describes
from memcore.plan.plan import Plan, facts, field_paths, get, value_text
from memcore.serving import server
from memcore.units import GiB
from memcore.words.engines import DEFAULT_SHARE, DEVICE, ENGINES, other_versions
from memcore.words.training import ALL_LINEAR, FRAMEWORKS, FULL_ITERATION, listed


@dataclass(frozen=True, slots=True)
class Exported:
    """Files by name, and the fields of the plan that they do not say, with what they come to."""

    files: Mapping[str, str]
    left: tuple[Issue, ...]


def programs(plan: Plan) -> tuple[str, ...]:
    """The programs that a plan can be written for: its framework's, and every server. torchtitan
    has few models, each under a name of its own."""
    trains = TRAINERS[plan.train.framework]
    named = all(registry.flavour(plan))
    return (*(name for name in trains if named or name != TITAN), *SERVERS)


def export(plan: Plan, program: str) -> Exported:
    """A plan as the files of a program. Raises PlanError where the program does not run it."""
    if program not in programs(plan):
        known = programs(plan)
        label = FRAMEWORKS[plan.train.framework].label
        field, what = "train.framework", label
        if program == TITAN and program in TRAINERS[plan.train.framework]:
            field, what = "model", "a model that it has no flavour of"
        message = f"{shown(program)} does not run {what}; {did_you_mean(program, known)}"
        raise PlanError([Issue(field, message)])
    if program in SERVERS:
        server = SERVERS[program]
        if not plan.serve.memory_utilization and ENGINES[program].share == DEVICE:
            # vLLM's own share has changed, and the plan's is said.
            plan = plan.changed("serve.memory_utilization", DEFAULT_SHARE)
        told = {path for row in server.rows["read"] for path in row.to} | SERVED
        if program in other_versions(plan.engine):
            told |= {"serve.engine"}  # an older one, which no option says
        written = _server(plan, server)
    else:
        written = WRITERS[program](plan)
        told = {p for p in field_paths() if p.startswith(("parallel.", "train."))}
    config = {MODEL: json.dumps(_config(plan), indent=1) + "\n"}
    by_name = isinstance(plan.model, str) and program not in DESCRIBED
    files = written if by_name else {**config, **written}
    return Exported(files, tuple(_lost(plan, files, told)))


def _name(plan: Plan) -> str:
    """What a program finds the model by."""
    return hub.published(plan.model) if isinstance(plan.model, str) else "model"


def _config(plan: Plan) -> Mapping[str, Any]:
    """The model's config.json. Raises PlanError where there is none."""
    model = plan.model
    found = catalog.model_entry(model).get("config") if isinstance(model, str) else model
    if not isinstance(found, Mapping) or not {"model_type", "architectures"} & found.keys():
        raise PlanError([Issue("model", "no config.json describes it, which the program needs")])
    return found


def _lost(plan: Plan, files: Mapping[str, str], told: Collection[str]) -> list[Issue]:
    """Of the fields that a program is told, those that come back otherwise when the files are
    read."""
    gpu = plan.cluster.gpu if isinstance(plan.cluster.gpu, str) else ""
    texts = [Text(name, content) for name, content in files.items()]
    back = read_files(texts, gpu=gpu, gpus=plan.cluster.gpus).plan
    found = []
    for path in field_paths():
        mine, theirs = get(plan, path), get(back, path)
        if path in told and mine != theirs and _matters(plan, path):
            said = value_text(path, mine), value_text(path, theirs)
            found.append(Issue(path, f"{said[0]} is not in the files, which mean {said[1]}"))
    return found


def _matters(plan: Plan, path: str) -> bool:
    """Whether a field means anything in this plan."""
    when = facts(path).when
    return when is None or when(lambda other: get(plan, other), plan.architecture)


def _document(program: Program, plan: Plan, own: Mapping[str, Any]) -> dict[str, Any]:
    """What a program of the Trainer's kin writes of a plan, with what no table says of its own."""
    rows = (*trainer.HF.rows["read"], *trainer.HF.rows["written"])
    by_key = {key: row for row in rows for key in row.keys}
    half, recomputes = plan.train.precision.partition("-")[0], plan.train.checkpointing != "none"
    kwargs = (
        {"use_reentrant": plan.train.reentrant} if recomputes or program is trainer.TRL else None
    )
    own = {
        "packing": True,
        "sample_packing": True,
        "bf16": half == "bf16",
        "fp16": half == "fp16",
        "gradient_checkpointing_kwargs": kwargs,
        **own,
    }
    document = {
        name: own[name] if name in own else by_key[name].written(get(plan, by_key[name].to[0]))
        for name in program.listed("writes")
    }
    document |= program.written(plan, "written")
    if plan.train.adapter != "none":
        every = ALL_LINEAR if plan.train.lora_targets == ALL_LINEAR else None
        modules = list(listed(plan.train.lora_modules)) or every
        document |= {**program.written(plan, "adapter"), "lora_target_modules": modules}
    return document


def _trainer(plan: Plan) -> dict[str, str]:
    """TRL's YAML, and what shards beside it."""
    document = _document(trainer.TRL, plan, {"model_name_or_path": _name(plan)})
    if plan.train.framework == "fsdp2":
        document |= {"fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 2, **_fsdp(plan)}}
    return _in_yaml("train.yaml", document, plan)


def _axolotl(plan: Plan) -> dict[str, str]:
    """axolotl's YAML, and DeepSpeed's beside it."""
    t, p = plan.train, plan.parallel
    document = _document(trainer.AXOLOTL, plan, {"base_model": _name(plan)})
    if "liger" in (t.kernels, *(key.partition("_")[0] for key in document)):
        document["plugins"] = ["axolotl.integrations.liger.LigerPlugin"]
    if t.adapter != "none" and document["lora_target_modules"] == ALL_LINEAR:
        document |= {"lora_target_modules": None, "lora_target_linear": True}
    if t.adapter == "qlora-single":
        document["bnb_config_kwargs"] = {"bnb_4bit_use_double_quant": False}
    cuts = trainer.AXOLOTL.written(plan)
    document |= {name: size for name, size in cuts.items() if size > 1}
    if t.framework == "fsdp2":
        document |= {"fsdp_version": 2, "fsdp_config": _fsdp(plan)}
        if p.shard_group:
            document["dp_replicate_size"] = plan.dp // p.shard_group
    return _in_yaml("axolotl.yaml", document, plan)


def _in_yaml(name: str, document: Mapping[str, Any], plan: Plan) -> dict[str, str]:
    """A YAML of what is said, and DeepSpeed's file beside it where that shards."""
    said = {key: value for key, value in document.items() if value is not None}
    if plan.train.framework != "deepspeed":
        return {name: yaml.safe_dump(said, sort_keys=False)}
    said["deepspeed"] = "deepspeed.json"
    return {name: yaml.safe_dump(said, sort_keys=False), "deepspeed.json": _deepspeed(plan)}


def _fsdp(plan: Plan) -> dict[str, Any]:
    return {
        "reshard_after_forward": plan.train.zero == accelerate.STRATEGIES["FULL_SHARD"],
        "offload_params": plan.train.offload_parameters == "cpu",
    }


def _deepspeed(plan: Plan) -> str:
    t = plan.train

    zero: dict[str, Any] = {"stage": t.zero, **deepspeed.ZERO.written(plan, "counts")}
    if t.overlap_comm != "auto":
        zero["overlap_comm"] = t.overlap_comm == "on"
    for name, rests in (
        ("offload_optimizer", t.offload_optimizer),
        ("offload_param", t.offload_parameters),
    ):
        if rests != "none":
            zero[name] = deepspeed.ZERO.written(plan, name)
    document = {
        "train_micro_batch_size_per_gpu": t.micro_batch,
        "gradient_accumulation_steps": t.grad_accumulation,
        "bf16": {"enabled": t.precision.startswith("bf16")},
        "fp16": {"enabled": t.precision.startswith("fp16")},
        "zero_optimization": zero,
    }
    return json.dumps(document, indent=1) + "\n"


def _megatron(plan: Plan) -> dict[str, str]:
    """What pretrain_gpt.py is started with."""
    t, p = plan.train, plan.parallel
    batch = t.micro_batch * t.grad_accumulation * plan.dp
    words: list[Any] = ["torchrun", "--nproc_per_node", plan.gpus_in_node]
    words += ["--nnodes", plan.cluster.gpus // plan.gpus_in_node, "pretrain_gpt.py"]
    words += ["--global-batch-size", batch, *_layers(_config(plan))]
    partly = t.checkpointing != "full"
    usual = {
        "num_virtual_stages_per_pipeline_rank": p.virtual_stages == 1,
        "save_interval": True,
        "recompute_method": partly,
        "recompute_num_layers": partly,
    }
    said = {n: v for n, v in MEGATRON.written(plan).items() if v and not usual.get(n)}
    if not t.precision.startswith("fp16"):
        said["bf16"] = True  # also beside 8 bits
    if t.zero == ZERO_3:
        said |= {"use_distributed_optimizer": True, "ckpt_format": "fsdp_dtensor"}
    for name, value in said.items():
        words += [hyphened(name)] if value is True else [hyphened(name), value]
    if t.checkpointing == "selective":
        words += ["--recompute-modules", *listed(t.recompute_modules)]
    if FULL_ITERATION in (graphs := listed(t.cuda_graphs)):
        words += ["--cuda-graph-impl", FULL_ITERATION, "--no-check-for-nan-in-loss-and-grad"]
    elif graphs:
        words += ["--cuda-graph-impl", "transformer_engine", "--cuda-graph-modules", *graphs]
    return {"train.sh": _command(words)}


ZERO_3 = 3
# Families of which Megatron's options say all that their config.json says.
BY_OPTIONS = ("llama", "mistral", "qwen2", "mixtral")


def _layers(config: Mapping[str, Any]) -> list[Any]:
    """The options that describe the model, where options can."""
    if config.get("model_type") not in BY_OPTIONS:
        return []
    sizes = MEGATRON.table["config"].items()
    words = [word for name, option in sizes if config.get(name)
             for word in (hyphened(option), config[name])]  # fmt: skip
    if groups := config.get("num_key_value_heads"):
        words += ["--group-query-attention", "--num-query-groups", groups]
    words += ["--swiglu", "--normalization", "RMSNorm", "--position-embedding-type", "rope"]
    words += ["--disable-bias-linear", "--hidden-dropout", 0, "--attention-dropout", 0]
    words += ["--add-qkv-bias"] if config["model_type"] == "qwen2" else []
    tied = config.get("tie_word_embeddings", False)
    return words if tied else [*words, "--untie-embeddings-and-output-weights"]


def _command(words: list[Any]) -> str:
    """A command, an option a line."""
    lines: list[str] = []
    for word in map(str, words):
        if word.startswith("--") or not lines:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n  ".join(lines) + "\n"


def _server(plan: Plan, server: Server) -> dict[str, str]:
    """The command that starts a server, of those options that its reader knows."""
    s, words = plan.serve, [*server.listed("starts")]
    words += [_file(plan) if server.engine == LLAMA_CPP else _name(plan)]
    said = server.written(plan)
    if said.get("cache_type_v", "") is None:  # as keys are
        said["cache_type_v"] = said["cache_type_k"]
    for option, value in said.items():
        if value in (None, False, 0, 0.0, "auto", "same"):  # which the program decides
            continue
        name = underscored(option) if "underscored" in server.table else hyphened(option)
        words += [name] if value is True else [name, str(value)]
    if server.engine == "vllm":
        words += ["--speculative-config", _guesses(plan)] if s.draft_tokens else []
        if plan.second_tier:
            words += ["--kv-offloading-size", str(_size_of_tier(plan))]
    elif server.engine == "sglang":
        words += ["--enable-hierarchical-cache"] if plan.second_tier else []
    elif server.engine == LLAMA_CPP:
        words += _slots(plan)
    version = f"# {plan.engine}\n" if server.engine in other_versions(plan.engine) else ""
    return {"serve.sh": version + _command(words)}


def _size_of_tier(plan: Plan) -> int:
    """GiB of the cache on the host, of all GPUs of a replica."""
    of_gpu = server.Server.of(plan).numbers.serve.host_room_bytes
    return max(1, int(plan.serving_ranks * of_gpu // GiB))


def _file(plan: Plan) -> str:
    """The GGUF file of the model, whose name says how its weights are stored."""
    stored = plan.serve.weight_dtype
    known = hub.stored(f"-{stored}") == stored
    name = _name(plan).rpartition("/")[2]
    return f"{name}-{stored.upper()}.gguf" if known else f"{name}.gguf"


def _slots(plan: Plan) -> list[Any]:
    """What is llama.cpp's own: the slots, which share one context, and what stays with the host."""
    s = plan.serve
    words: list[Any] = ["--batch-size", plan.batched_tokens, "--parallel", s.concurrency]
    if s.max_seq_len:
        words += ["--ctx-size", s.max_seq_len * s.concurrency]
    words += ["--gpu-layers", s.gpu_layers or servers.ALL_LAYERS]
    if s.draft_tokens:
        words += ["--model-draft", _draft(plan), "--draft-max", s.draft_tokens]
    return words


def _draft(plan: Plan) -> str:
    """What guesses, by a preset's name or, of a file, by its folder's."""
    word: str = plan.serve.draft_model
    return "draft" if describes(word) else word


def _guesses(plan: Plan) -> str:
    """Who guesses, as vLLM is told."""
    s = plan.serve
    guessers = servers.SHARED.words["guessers"].items()
    method = next((theirs for theirs, ours in guessers if ours == s.draft_model), None)
    who = {"method": method} if method else {"model": _draft(plan)}
    return json.dumps({**who, "num_speculative_tokens": s.draft_tokens})


LLAMA_CPP, TITAN = "llama.cpp", "torchtitan"
SERVED = {
    f"serve.{name}"
    for name in (
        *("prefill", "runtime", "draft_model", "draft_tokens", "tp", "pp", "weight_dtype"),
        *("max_seq_len", "gpu_layers", "cpu_moe_layers", "offload_kv", "offload_weights"),
    )
}
SERVERS = {each.label: each for each in servers.SERVERS if "starts" in each.table}
DESCRIBED = ("megatron", "deepspeed")  # files that name no model
TRAINERS = {
    "pytorch": ("trl", "axolotl"),
    "fsdp2": ("trl", "axolotl", TITAN),
    "deepspeed": ("trl", "axolotl", "deepspeed"),
    "megatron": ("megatron",),
}
WRITERS: dict[str, Callable[[Plan], dict[str, str]]] = {
    "trl": _trainer,
    "axolotl": _axolotl,
    TITAN: registry.written,
    "deepspeed": lambda plan: {"deepspeed.json": _deepspeed(plan)},
    "megatron": _megatron,
}
