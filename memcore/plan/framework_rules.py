"""Rules of a framework: its stages, precisions, kernels, parallelism and offload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from memcore.errors import Issue
from memcore.models.families import FAMILIES
from memcore.models.model import Model
from memcore.plan.remedies import HYBRID, NVME, OWN, PLAIN, SHARDED, SHARDS, sharded_by
from memcore.plan.rule import Remedy, broken, only, to
from memcore.plan.sizes import USUAL, next_multiple
from memcore.units import GiB, bytes_text
from memcore.words.optimizers import AWARE, DEEPSPEED_OPTIMIZERS, OPTIMIZERS
from memcore.words.precision import BY_TENSOR
from memcore.words.training import (
    ATTN,
    AUTO,
    CHECKPOINTING,
    COPIES,
    CORE_ATTN,
    FRAMEWORKS,
    FREED,
    FULL_ITERATION,
    HYBRIDEP,
    KEPT,
    LAYER,
    LAYERNORM,
    MLA_UP_PROJ,
    MODULES,
    MOE,
    MOE_ACT,
    MOE_PREPROCESS,
    MOE_ROUTER,
    NO_LAYER,
    OPERATIONS,
    SHARED_EXPERTS,
    UNIFORM,
    WHOLE,
    eight_bit,
    float8,
    listed,
)

if TYPE_CHECKING:
    from memcore.plan.plan import Plan


def framework_rules(plan: Plan, _: Model | None) -> Iterator[Issue]:
    """Which stages, precisions and kernels a framework has."""
    t = plan.train
    framework = FRAMEWORKS[t.framework]
    if t.zero not in framework.zero:
        nearest = min(framework.zero, key=lambda n: (abs(n - t.zero), -n))
        others = [n for n, f in FRAMEWORKS.items() if t.zero in f.zero]
        why = f"{t.framework} has ZeRO {', '.join(map(str, framework.zero))}, not {t.zero}"
        yield broken("train.zero", why, *to("train.framework", *others), {"train.zero": nearest})
    shared_out = plan.parallel.pp * plan.parallel.ep > 1 or t.offload_parameters != "none"
    if t.gradients == WHOLE and (shared_out or not framework.sums):
        labels = " and ".join(f.label for f in FRAMEWORKS.values() if f.sums)
        why = f"whole gradients between micro-batches are planned of {labels}, without stages, "
        why += "expert parallelism and offloaded parameters"
        yield broken("train.gradients", why, *to("train.gradients", "freed", "kept"))
    if t.outputs == KEPT and (framework.own or plan.parallel.pp > 1):
        why = "Megatron and pipelines hand the loss alone to the training loop"
        yield broken("train.outputs", why, *to("train.outputs", AUTO, FREED))
    if (t.framework, t.precision) not in COPIES:
        known = sorted((w for f, w in COPIES if f == t.framework), key=lambda w: w != USUAL)
        others = [f for f, word in COPIES if word == t.precision]
        why = f"{t.framework} does not have {t.precision}"
        yield broken(
            "train.precision", why, *to("train.precision", *known), *to("train.framework", *others)
        )
    elsewhere = to("train.framework", *(PLAIN if framework.own else OWN))
    why = f"{t.framework} does not run {t.kernels}"
    yield from only(plan, "train.kernels", framework.kernels, why, *elsewhere)
    if framework.to_end and t.early_stop == "on":
        why = "Megatron runs a checkpointed layer again to its end"
        yield broken("train.early_stop", why, *to("train.early_stop", "auto", "off"))
    field, off = "train.reentrant", to("train.reentrant", False)
    if t.reentrant and t.early_stop == "on":
        why = "a reentrant checkpoint runs its layer again to the end"
        yield broken(field, why, *off, *to("train.early_stop", "auto", "off"))
    if t.reentrant and CHECKPOINTING[t.checkpointing].recompute == OPERATIONS:
        why = "checkpointing by operation is not reentrant"
        yield broken(field, why, *off, *to("train.checkpointing", "full"))


def recompute_rules(plan: Plan, _: Model | None) -> Iterator[Issue]:
    """What chooses the layers that run again: Megatron's two fields, or every n-th."""
    t = plan.train
    block, several = "train.recompute_method", "train.recompute_num_layers"
    chosen = t.recompute_method != UNIFORM or t.recompute_num_layers > 1
    field = block if t.recompute_method != UNIFORM else several
    usual = ({block: UNIFORM, several: 1},)
    if chosen and not FRAMEWORKS[t.framework].own:
        yield broken(field, "Megatron alone has it", *usual, *to("train.framework", *OWN))
    if chosen and t.checkpoint_every > 1:
        why = "Megatron has nothing like train.checkpoint_every beside it"
        yield broken(field, why, *usual, {"train.checkpoint_every": 1})


# What a model needs for a module to be run again, and what it is called.
PARTS: dict[str, tuple[str, Callable[[Model], object]]] = {
    MOE_ACT: ("experts", lambda model: model.experts),
    MOE: ("experts", lambda model: model.experts),
    SHARED_EXPERTS: ("shared experts", lambda model: model.shared_size),
    MLA_UP_PROJ: ("latent attention", lambda model: model.kv_rank),
}


def module_recompute_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """Which modules a selective checkpointing can run again."""
    t, field = plan.train, "train.recompute_modules"
    named, owned = listed(t.recompute_modules), FRAMEWORKS[t.framework].own
    if named == (CORE_ATTN,):
        return

    def without(*names: str) -> Remedy:
        left = ",".join(name for name in named if name not in names)
        return {field: left} if left else {field: CORE_ATTN, "train.checkpointing": "none"}

    if not owned:
        why = f"Megatron alone has others than {CORE_ATTN}"
        yield broken(field, why, {field: CORE_ATTN}, *to("train.framework", *OWN))
    if t.precision == "fp8-delayed" and {MOE_ACT, LAYERNORM} & set(named):
        why = "Transformer Engine's delayed scales have neither moe_act nor layernorm"
        yield broken(field, why, without(MOE_ACT, LAYERNORM), {"train.precision": "fp8-mixed"})
    if t.overlap_moe_expert_parallel_comm and MOE in named:
        why = "experts' rows are not sent behind another micro-batch where moe is run again"
        yield broken(field, why, without(MOE), {"train.overlap_moe_expert_parallel_comm": False})
    for name, (what, has) in PARTS.items():
        if name in named and model and not has(model):
            yield broken(field, f"the model has no {what} for {name}", without(name))


NO_WHOLE_GRAPH = (
    "how many rows an expert gets is not known before, so that a mixture has a graph of the whole "
    "iteration with HybridEP only, whose rows have a room of a size that is set before"
)


def graph_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """What can be captured as CUDA graphs (Megatron-Core, transformer_config.py)."""
    t, field = plan.train, "train.cuda_graphs"
    named = listed(t.cuda_graphs)
    if not named:
        return

    def without(*names: str) -> Remedy:
        return {field: ",".join(name for name in named if name not in names) or NO_LAYER}

    whole, experts = FULL_ITERATION in named, bool(model and model.experts)
    routes = [name for name in (MOE_ROUTER, MOE_PREPROCESS) if name in named]
    again = CHECKPOINTING[t.checkpointing].recompute
    of_mixtures = f"{ATTN},{MOE_ROUTER},{MOE_PREPROCESS}"
    if not FRAMEWORKS[t.framework].own:
        why = "graphs of a training step are planned of Megatron"
        yield broken(field, why, {field: NO_LAYER}, *to("train.framework", *OWN))
    if whole and len(named) > 1:
        why = f"{FULL_ITERATION} captures all there is: nothing is named beside it"
        yield broken(field, why, {field: FULL_ITERATION}, without(FULL_ITERATION))
    if whole and experts and t.moe_dispatcher != HYBRIDEP:
        why = f"{NO_WHOLE_GRAPH}; use {of_mixtures}"
        yield broken(field, why, *to("train.moe_dispatcher", HYBRIDEP), {field: of_mixtures})
    if routes and model is not None and not experts:
        why = f"the model has no experts for {', '.join(routes)}"
        yield broken(field, why, without(MOE_ROUTER, MOE_PREPROCESS))
    if MOE_PREPROCESS in named and MOE_ROUTER not in named:
        why = f"{MOE_PREPROCESS} is captured with {MOE_ROUTER} only"
        yield broken(field, why, {field: f"{t.cuda_graphs},{MOE_ROUTER}"}, without(MOE_PREPROCESS))
    if again == LAYER and not whole:
        why = f"layers that run again whole are captured by {FULL_ITERATION} only"
        kept = to("train.checkpointing", "selective", "none")
        yield broken(field, why, *kept, {field: NO_LAYER})
    if again == MODULES and MOE in listed(t.recompute_modules) and routes:
        why = "a router is not captured where all of moe is run again"
        yield broken(field, why, without(MOE_ROUTER, MOE_PREPROCESS))


def eight_bit_rules(plan: Plan, _: Model | None) -> Iterator[Issue]:
    """What products in 8 bits need of the GPU and of the framework."""
    t = plan.train
    how = eight_bit(t.framework, t.precision)
    if not how:
        return
    try:
        gpu = plan.accelerator
    except KeyError:  # an unknown preset, which is reported on its own
        return
    field, another = "train.precision", "take another cluster.gpu"
    if how.block > 0 and not gpu.any_layout_fp8:
        why = f"{gpu.label} has no scales for each {how.block} values, which came with B200"
        yield broken(field, why, *to(field, "fp8-mixed"), advice=another)
    if not how.block and not gpu.flops.get("fp8"):
        why = f"{gpu.label} has no products in fp8"
        yield broken(field, why, *to(field, "bf16-mixed"), advice=another)
    if how.primary and t.zero != 1:
        why = f"Megatron keeps {t.precision} with its distributed optimizer only"
        others = to(field, t.precision.removesuffix("-params") if how.block else "fp8-mixed")
        yield broken(field, why, *others, {"train.zero": 1})


def unit_rules(plan: Plan, _: Model | None) -> Iterator[Issue]:
    """What Megatron-FSDP is planned with."""
    t, field = plan.train, "train.zero"
    framework = FRAMEWORKS[t.framework]
    if not (framework.own and t.zero >= framework.shards):
        return
    zero_1 = to(field, 1)
    if plan.parallel.pp > 1:
        why = "Megatron-FSDP is planned without a pipeline"
        yield broken(field, why, *zero_1, {"parallel.pp": 1, "parallel.virtual_stages": 1})
    if t.adapter != "none":
        why = "Megatron-FSDP is planned where every weight is trained"
        yield broken(field, why, *zero_1, {"train.adapter": "none"})
    if t.optimizer not in ("adamw", "sgd"):
        why = "Megatron-FSDP has Adam and SGD (arguments.py)"
        yield broken(field, why, *zero_1, *to("train.optimizer", "adamw"))
    if t.overlap_moe_expert_parallel_comm:
        why = "Megatron-FSDP is planned without experts' rows behind another micro-batch"
        yield broken(field, why, *zero_1, *to("train.overlap_moe_expert_parallel_comm", False))
    if listed(t.cuda_graphs):
        why = "Megatron-FSDP is planned without CUDA graphs"
        yield broken(field, why, *zero_1, *to("train.cuda_graphs", NO_LAYER))


def aware_rules(plan: Plan, _: Model | None) -> Iterator[Issue]:
    """Where Megatron's precision-aware optimizer keeps masters and moments in 16 bits each."""
    t, field = plan.train, "train.optimizer"
    how = eight_bit(t.framework, t.precision)
    adamw = to(field, "adamw")
    if t.optimizer == AWARE and not FRAMEWORKS[t.framework].own:
        yield broken(field, "Megatron alone has it", *adamw)
    if t.optimizer == AWARE and t.zero != 1:
        why = "it is part of Megatron's distributed optimizer"
        yield broken(field, why, *adamw, {"train.zero": 1})
    if t.optimizer == AWARE and (
        not t.precision.startswith("bf16") if how is None else not how.delayed
    ):
        why = f"with {t.precision} Megatron keeps master copies of its own, which is not planned"
        yield broken(field, why, *adamw, *to("train.precision", "bf16-mixed"))


def float8_rules(plan: Plan, _: Model | None) -> Iterator[Issue]:
    """What torchao's float8 needs of the GPU, or is not known to run with."""
    t, p, field = plan.train, plan.parallel, "train.precision"
    precise = float8(t.framework, t.precision)
    if not precise:
        return
    wide = to(field, "bf16-mixed")
    try:
        gpu = plan.accelerator
    except KeyError:  # an unknown preset, which is reported on its own
        return
    if not gpu.flops.get("fp8"):
        why = f"{gpu.label} has no products in fp8"
        yield broken(field, why, *wide, advice="take another cluster.gpu")
    if p.tp > 1 and not p.sequence_parallel and precise == BY_TENSOR:
        why = "torchao's tensor parallelism with one scale for a tensor has sequence parallelism"
        yield broken(field, why, {"parallel.sequence_parallel": True}, *to(field, "float8-rowwise"))
    if p.ep > 1:
        why = "float8 is not planned with expert parallelism under FSDP2"
        yield broken(field, why, *wide, {"parallel.ep": 1})
    if t.adapter != "none":
        yield broken(field, "float8 is not planned with adapters", *wide, {"train.adapter": "none"})


def deepspeed_rules(plan: Plan, _: Model | None) -> Iterator[Issue]:
    """What DeepSpeed does not run, or is not known to run as it is planned here."""
    t = plan.train
    if not FRAMEWORKS[t.framework].flat:
        return
    offloaded = t.offload_optimizer != "none"
    optimizer, offload = "train.optimizer", "train.offload_optimizer"
    for axis in ("tp", "pp", "cp", "ep"):
        others = to("train.framework", *(SHARDED if axis != "ep" else ()), *OWN)
        why = "DeepSpeed is planned with data parallelism only"
        yield from only(plan, f"parallel.{axis}", [1], why, *others)
    why = f"{t.kernels} kernels are not planned with DeepSpeed"
    yield from only(plan, "train.kernels", ("hf", "liger"), why)
    why = f"{t.optimizer} is not known to step DeepSpeed's flat partitions"
    yield from only(plan, optimizer, DEEPSPEED_OPTIMIZERS, why)
    if t.zero == 0 and t.optimizer != "adamw":
        why = "DeepSpeed without ZeRO is planned with its FusedAdam alone"
        yield broken(optimizer, why, *to(optimizer, "adamw"), *to("train.zero", 1, 2, 3))
    if offloaded and t.optimizer not in ("adamw", "lion"):
        why = "DeepSpeed has CPU versions of Adam and Lion alone"
        yield broken(optimizer, why, *to(optimizer, "adamw", "lion"))
    if offloaded and t.zero == 0:
        why = "DeepSpeed offloads under ZeRO 1, 2 and 3"
        yield broken(offload, why, *to(offload, "none"), *to("train.zero", 1))
    if t.offload_optimizer == "nvme" and t.zero < 3:
        why = "DeepSpeed has NVMe under ZeRO 3 alone"
        yield broken(offload, why, *to(offload, "cpu"), *to("train.zero", 3))


def prediction_rules(plan: Plan, model: Model | None) -> Iterator[Issue]:
    """What multi-token prediction is not known to run with."""
    t, field = plan.train, "train.mtp_layers"
    if not t.mtp_layers:
        return
    without = to(field, 0)
    if not FRAMEWORKS[t.framework].own:
        yield broken(
            field, "only Megatron trains such layers", *without, *to("train.framework", *OWN)
        )
    if model is not None and FAMILIES[model.family].head is not FAMILIES["llama"].head:
        yield broken(field, "it is planned for models with Llama's head", *without)
    if t.cross_entropy == "chunked" or t.checkpointing == "selective-op":
        why = "it is not planned with a chunked loss or checkpointing by operation"
        yield broken(
            field, why, *without, {"train.cross_entropy": "eager", "train.checkpointing": "full"}
        )


def parallel_rules(plan: Plan, _: Model | None) -> Iterator[Issue]:
    """Axes of parallelism that do not go together."""
    p, t = plan.parallel, plan.train
    framework, batches = FRAMEWORKS[t.framework], t.grad_accumulation
    # Megatron has as many micro-batches in a round as stages.
    rounds = p.pp if framework.own else max(1, batches // p.pp)
    if p.shard_group and (not framework.hybrid or t.zero < framework.shards or p.shard_group == 1):
        why = "groups of two or more ranks are FSDP2's, with ZeRO 2 or 3"
        hybrid: Remedy = {"train.framework": HYBRID[0], "train.zero": 3}
        other = hybrid if p.shard_group > 1 else {"parallel.shard_group": 2}
        yield broken("parallel.shard_group", why, {"parallel.shard_group": 0}, other)
    if p.virtual_stages > 1 and p.schedule != "1f1b":
        ways: tuple[Remedy, ...] = {"parallel.virtual_stages": 1}, {"parallel.schedule": "1f1b"}
        yield broken("parallel.virtual_stages", "only the 1f1b schedule has them", *ways)
    if p.virtual_stages > 1 and batches % rounds != 0:
        why = (
            f"virtual stages take micro-batches in rounds: {batches:,} are no multiple of "
            f"{rounds:,}"
        )
        more = to("train.grad_accumulation", next_multiple(batches, rounds))
        yield broken("train.grad_accumulation", why, *more, {"parallel.virtual_stages": 1})
    if p.cp > 1 and t.attention == "eager":
        why = "context parallelism needs sdpa or flash"
        yield broken(
            "train.attention", why, *to("train.attention", "flash", "sdpa"), {"parallel.cp": 1}
        )


def offload_rules(plan: Plan, _: Model | None) -> Iterator[Issue]:
    """Which framework keeps what outside the GPU."""
    t = plan.train
    if OPTIMIZERS[t.optimizer].paged and t.offload_optimizer != "none":
        why = "the driver moves what a paged optimizer keeps, no framework"
        none = to("train.offload_optimizer", "none")
        yield broken("train.offload_optimizer", why, {"train.optimizer": "adamw"}, *none)
        return
    parameters, activations = t.offload_parameters != "none", t.offload_activations != "none"
    if not (parameters or activations):
        return
    framework = FRAMEWORKS[t.framework]
    field, kept = "train.offload_parameters", "train.offload_activations"
    none, nowhere = to(field, "none"), to(kept, "none")
    nvme, on_nvme = t.offload_parameters == "nvme", sharded_by(NVME)
    fitting = NVME if nvme or framework.nvme else SHARDS
    if parameters and (framework.own or t.zero < framework.shards):
        why = "sharded parameters alone can live outside the GPU"
        yield broken(field, why, *none, *sharded_by(fitting))
    if nvme and not framework.nvme:
        why = "DeepSpeed alone has parameters on NVMe"
        yield broken(field, why, *to(field, "cpu", "none"), *on_nvme)
    if parameters and t.offload_optimizer == "none":
        why = "parameters are offloaded beside the optimizer"
        yield broken(field, why, *none, {"train.offload_optimizer": "cpu"})
    if (
        parameters
        and t.framework in SHARDS
        and not framework.nvme
        and t.offload_optimizer == "nvme"
    ):
        why = "FSDP2 keeps parameters, gradients and states in one place, DRAM"
        yield broken(field, why, *none, {"train.offload_optimizer": "cpu"}, *on_nvme)
    if parameters and t.adapter != "none" and not framework.as_floats:
        why = "adapters are planned with offloaded parameters under FSDP2 alone"
        yield broken(field, why, *none, {"train.adapter": "none"})
    if parameters and t.ema != "none":
        why = "an average of offloaded parameters is not planned"
        yield broken("train.ema", why, *to("train.ema", "none"), *none)
    if activations and framework.own:
        why = "Megatron's own activation offload is not planned"
        yield broken(kept, why, *nowhere, *to("train.framework", PLAIN[0]))
    if activations and t.kernels == "compile":
        why = "a compiled layer keeps its own activations"
        yield broken(kept, why, *nowhere, *to("train.kernels", "hf"))


def host_rules(plan: Plan, _: Model | None) -> Iterator[Issue]:
    """What the host must have for the plan to run at all."""
    try:
        node = plan.node
    except KeyError:  # an unknown preset, which is reported on its own
        return
    part = plan.card(plan.gpu_name).usable_bytes * plan.cluster.gpu_share
    if plan.cluster.taken_gib * GiB >= part:
        why = f"others hold all of the {bytes_text(int(part))} that a program can have of a GPU"
        yield broken("cluster.taken_gib", why, *to("cluster.taken_gib", 0))
    gpus, each = plan.cluster.gpus, plan.gpus_per_domain
    if gpus > each and not node.network_bandwidth:
        why = f"{gpus:,} GPUs need several nodes of {each:,}, but {node.label} has no network"
        yield broken(
            "cluster.gpus", why, *to("cluster.gpus", each), advice="take another cluster.node"
        )
    if plan.cluster.dram_gib and not node.dram_bytes:
        why = f"{node.label} has one memory for CPU and GPU, whose size is the GPU's"
        yield broken("cluster.dram_gib", why, *to("cluster.dram_gib", 0))
    for name in ("optimizer", "parameters", "activations"):
        field = f"train.offload_{name}"
        word = getattr(plan.train, f"offload_{name}")
        if word != "none" and not node.dram_bytes:
            why = f"{node.label} has one memory for CPU and GPU, so there is nowhere to offload to"
            yield broken(field, why, *to(field, "none"))
        if word == "nvme" and not (node.nvme_bytes and node.nvme_read_bandwidth):
            yield broken(field, f"{node.label} has no NVMe drives", *to(field, "cpu", "none"))
