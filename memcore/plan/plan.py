"""Plan: the one JSON document that a link carries, a preset is and the command line reads.

Validation happens here, before any arithmetic. A field is declared once, with all that a form, a
link and the levers must know of it; the sidebar draws a group's fields in the order of this file.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic.fields import FieldInfo

from memcore.errors import (
    ALIKE,
    SHOWN,
    Issue,
    PlanError,
    did_you_mean,
    not_text,
    plain_name,
    refusal,
    shown,
    shown_path,
)
from memcore.hardware import topology
from memcore.hardware.accelerator import Accelerator, Node
from memcore.kept import kept
from memcore.models import catalog
from memcore.models.config import check_depth
from memcore.models.counts import parameters
from memcore.models.families import FAMILIES, from_config
from memcore.models.families.qwen_tower import SIDE
from memcore.models.model import Model, in_json
from memcore.models.standard import standard_config
from memcore.plan.field import FROZEN as TRAINS_LESS
from memcore.plan.field import (
    HARDWARE,
    OTHER,
    TOP,
    Drafted,
    EachWord,
    Facts,
    Switch,
    When,
    checked,
    choice,
    declare,
    describes,
    facts_of,
    number,
)
from memcore.plan.rules import OF_HARDWARE, broken_rules, readers_of
from memcore.units import Gbit, GiB, bytes_text, count_text
from memcore.words import engines, experts
from memcore.words.optimizers import OPTIMIZERS
from memcore.words.precision import PRECISIONS
from memcore.words.serving import (
    ARRIVALS,
    DRAFT_HEADS,
    KV_CACHES,
    LENGTHS,
    NO_DRAFT,
    PREFILLS,
    RUNTIMES,
    SERVE_OFFLOAD,
    STATE_DTYPES,
)
from memcore.words.stored import (
    AS_KEYS,
    AS_PUBLISHED,
    GGUF_MXFP4,
    KV_DTYPES,
    SERVED_DTYPES,
    VALUE_DTYPES,
    WEIGHT_DTYPES,
    WeightDtype,
)
from memcore.words.together import ASLEEP, FROZEN, TOGETHER, TRAINER
from memcore.words.training import (
    ADAPTER_DTYPES,
    ADAPTERS,
    ALLOCATORS,
    ATTENTION,
    AUTO,
    AVERAGES,
    CHECKPOINTING,
    CORE_ATTN,
    CROSS_ENTROPY,
    CUDA_GRAPHS,
    DISPATCHERS,
    EACH_ROW,
    EARLY_STOP,
    EMBEDDING_GRADIENTS,
    FRAMEWORKS,
    FREED,
    GRADIENTS,
    KERNELS,
    LORA_TARGETS,
    LOWER,
    NO_LAYER,
    OFFLOAD,
    OFFLOAD_ACTIVATIONS,
    OUTPUTS,
    OVERLAP,
    RECOMPUTE_METHODS,
    RECOMPUTE_MODULES,
    SCHEDULES,
    UNIFORM,
    UNQUANTIZED_DTYPES,
    UNTRAINED,
    listed,
    multiple,
)
from memcore.words.word import Word

VERSION = 1


# Values that a slider stops at.
BATCHES = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 192, 256),
    *(384, 512, 768, 1024),
)
SEQUENCE_LENGTHS = (
    *(128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576),
    *(32_768, 49_152, 65_536, 98_304, 131_072, 196_608, 262_144, 524_288, 1_048_576),
)
TOKENS = (
    *(10**6, 10**7, 10**8, 10**9, 2 * 10**9, 5 * 10**9, 10**10, 3 * 10**10, 10**11, 3 * 10**11),
    *(10**12, 2 * 10**12, 5 * 10**12, 10**13, 15 * 10**12, 3 * 10**13),
)
RANKS = (1, 2, 4, 8, 16, 32, 64)


# --- when a field has a meaning: what of the drafted plan, or of its model, gives it one ----------


def _is(path: str, *values: Any) -> When:
    return lambda drafted, model: drafted(path) in values


def _not(path: str, value: Any) -> When:
    return lambda drafted, model: drafted(path) != value


def _several(path: str) -> When:
    return lambda drafted, model: drafted(path) > 1


def _all(*whens: When) -> When:
    return lambda drafted, model: all(when(drafted, model) for when in whens)


def _of_model(has: Callable[[Model], object]) -> When:
    return lambda drafted, model: bool(has(model))


_megatron = _is("train.framework", *(name for name, f in FRAMEWORKS.items() if f.own))
_deepspeed = _is("train.framework", *(name for name, f in FRAMEWORKS.items() if f.flat))
_zero_3 = _all(_deepspeed, _is("train.zero", 3))
_adapted = _not("train.adapter", "none")
_on_nvme = _is("train.offload_parameters", "nvme")
_learns = _is("together.kind", "grpo", "ppo")
_image = _of_model(lambda model: model.tower and model.tower.image)
_any_size = _of_model(lambda m: m.tower and m.tower.image and m.tower.image.unit)
_experts = _of_model(lambda model: model.experts)


def _mxfp4(drafted: Drafted, model: Model) -> bool:
    word, said = drafted("serve.weight_dtype"), model.quantization
    if word == AS_PUBLISHED:
        word = said.word if said else ""
    return bool(model.experts) and word == "mxfp4"


def _llama_cpp(drafted: Drafted, model: Model) -> bool:
    word = drafted("serve.engine")
    if word == engines.AUTO:
        stored = WEIGHT_DTYPES.get(drafted("serve.weight_dtype"))
        word = stored.engine if stored else ""
        word = word or engines.OF_RUNTIME.get(drafted("serve.runtime"), engines.VLLM)
    return bool(word == engines.LLAMA_CPP)


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=False, defer_build=True
    )


class Cluster(_Part):
    gpu: str | Accelerator = declare("h100-sxm-80gb", "GPU", "A preset's name, or a description.")
    gpus: int = number(
        8,
        "GPUs",
        "Accelerators in all.",
        within=(1, 1_000_000),
        key="gpus",
        names=("num_gpus", "gpu_count", "world_size", "n_gpu", "devices"),
        group=HARDWARE,
        frees=True,
    )
    gpus_per_node: int = number(
        0,
        "GPUs per node",
        "Accelerators in one host.",
        zero="as many as the node has",
        within=(0, 1_000),
        key="pernode",
        names=("nproc_per_node", "gpus_per_host"),
        auto=True,
        group=HARDWARE,
    )
    node: str | Node | None = declare(
        None, "Node", "Host preset: DRAM, PCIe, NVMe, network. Default: the GPU's usual host."
    )
    network_gbits: float = number(
        0.0,
        "Network of a node",
        "All adapters of one node together, one way.",
        "Gb/s",
        zero="as the node has",
        within=(0, 1_000_000),
        key="network",
        names=("network_bandwidth", "interconnect", "infiniband", "ethernet", "efa"),
        auto=True,
        group=HARDWARE,
        frees=True,
    )
    dram_gib: float = number(
        0.0,
        "Host DRAM of a node",
        "What one node has for its CPUs.",
        "GiB",
        zero="as the node has",
        within=(0, 1_000_000),
        key="dram",
        names=("host_memory", "cpu_memory", "system_memory", "ram"),
        auto=True,
        group=HARDWARE,
        frees=True,
    )


def _ranks(title: str, help: str, **facts: Any) -> Any:
    """How many ranks share something out."""
    return number(1, title, help, within=(1, 1024), frees=True, steps=RANKS, **facts)


class Parallel(_Part):
    tp: int = _ranks(
        "Tensor parallel",
        "Ranks that share each layer.",
        key="tp",
        names=("tensor_model_parallel_size", "tensor_parallel_degree", "tp_degree"),
    )
    pp: int = _ranks(
        "Pipeline parallel",
        "Stages that share the layers.",
        key="pp",
        names=("pipeline_model_parallel_size", "pipeline_parallel_degree", "stages"),
    )
    cp: int = _ranks(
        "Context parallel",
        "Ranks that share a sequence.",
        key="cp",
        names=("context_parallel_size", "context_parallel_degree", "ring_attention"),
    )
    ep: int = _ranks(
        "Expert parallel",
        "Ranks that share the experts out, whole: as Megatron-Core does, or under FSDP2 as "
        "transformers' all-to-all.",
        key="ep",
        names=("expert_model_parallel_size", "expert_parallel_degree"),
    )
    etp: int = _ranks(
        "Expert tensor parallel",
        "Ranks that share each expert, under Megatron, whose own default is as many as share a "
        "layer.",
        key="etp",
        when=_experts,
    )
    sequence_parallel: bool = declare(
        False,
        "Sequence parallel",
        "Cut norms and residuals over tensor ranks too.",
        key="sp",
        lever=Switch(True),
    )
    schedule: str = choice(
        SCHEDULES,
        "1f1b",
        "Pipeline schedule",
        "In which order micro-batches pass through the stages.",
        key="sched",
        lever=EachWord(),
    )
    virtual_stages: int = number(
        1,
        "Virtual stages",
        "Model chunks per pipeline rank.",
        within=(1, 128),
        key="vs",
        names=("num_layers_per_virtual_pipeline_stage", "interleaved"),
        lever=Switch(1),
    )
    account_for_embedding_in_pipeline_split: bool = declare(
        False,
        "account_for_embedding_in_pipeline_split",
        "The embedding counts as a layer, so that the first stage has one fewer.",
        key="apes",
        when=_several("parallel.pp"),
    )
    account_for_loss_in_pipeline_split: bool = declare(
        False,
        "account_for_loss_in_pipeline_split",
        "Head and loss count as a layer, so that the last stage has one fewer.",
        key="apls",
        when=_several("parallel.pp"),
    )
    shard_group: int = number(
        0,
        "Shard group",
        "FSDP2: ranks that share each parameter, between which groups replicate it (hybrid "
        "sharding).",
        "ranks",
        zero="all ranks",
        within=(0, 1_000_000),
        key="hsdp",
        names=("hybrid_shard", "data_parallel_shard_degree"),
        frees=True,
        auto=True,
        lever=Switch(0),
    )

    @property
    def outer(self) -> tuple[bool, bool]:
        """Whether the embedding, and the loss, count as a layer of a pipeline."""
        if self.pp == 1:
            return False, False
        return self.account_for_embedding_in_pipeline_split, self.account_for_loss_in_pipeline_split


def _elements(default: int, title: str, help: str, least: int = 0, **facts: Any) -> Any:
    """How many elements DeepSpeed takes at a time."""
    return number(default, title, help, "elements", within=(least, 10**12), **facts)


def _of_table(text: str, table: Collection[str]) -> str:
    """The words of a text, each once, in the order of their table. Raises ValueError for one that
    is not in it."""
    named = listed(text)
    for name in named:
        if name not in table:
            raise ValueError(f"{shown(name)} is not known; {did_you_mean(name, table)}")
    return ",".join(name for name in table if name in named)


class Train(_Part):
    @field_validator("lora_modules")
    @classmethod
    def _as_listed(cls, modules: str) -> str:
        """Without blanks, and nothing as its word."""
        return ",".join(listed(modules)) or NO_LAYER

    @field_validator("recompute_modules")
    @classmethod
    def _as_declared(cls, modules: str) -> str:
        """Each once, in the order of their table."""
        found = _of_table(modules, RECOMPUTE_MODULES)
        if not found:
            raise ValueError(
                f"no module is named; use {CORE_ATTN}, or train.checkpointing none to keep all"
            )
        return found

    @field_validator("cuda_graphs")
    @classmethod
    def _as_captured(cls, graphs: str) -> str:
        """Each once, in the order of their table; nothing as its word."""
        return _of_table(graphs, CUDA_GRAPHS) or NO_LAYER

    micro_batch: int = number(
        1,
        "Micro-batch",
        "Sequences per GPU in one forward.",
        "sequences",
        within=(1, 65_536),
        key="mb",
        names=("batch_size", "per_device_train_batch_size", "micro_batch_size"),
        group=TOP,
        steps=BATCHES,
    )
    seq_len: int = number(
        4096,
        "Sequence length",
        "Tokens per sequence.",
        "tokens",
        within=(1, 16_777_216),
        key="seq",
        names=("sequence_length", "max_length", "max_seq_length", "cutoff_len", "context_length"),
        group=TOP,
        steps=SEQUENCE_LENGTHS,
    )
    precision: str = choice(
        PRECISIONS,
        "bf16-mixed",
        "Precision",
        "Which dtype each copy of a weight has.",
        key="prec",
        names=("dtype", "mixed_precision", "amp", "bf16", "fp16", "fp8"),
        group=TOP,
        slider=True,
        lever=EachWord(OTHER),
    )
    checkpointing: str = choice(
        CHECKPOINTING,
        "full",
        "Checkpointing",
        "Which activations are recomputed instead of kept.",
        key="ckpt",
        names=("gradient_checkpointing", "activation_checkpointing", "recompute", "recomputation"),
        group=TOP,
        slider=True,
        lever=EachWord(),
    )
    zero: int = number(
        3,
        "ZeRO stage",
        "What is sharded over data-parallel GPUs: 1 optimizer states, 2 gradients too, "
        "3 parameters too.",
        within=(0, 3),
        key="zero",
        names=("zero_stage", "deepspeed_stage", "sharding_strategy"),
        frees=True,
        group=TOP,
    )
    images: int = number(
        1,
        "Images per sequence",
        "That a vision-language model reads; their tokens are part of the sequence.",
        within=(0, 1_000),
        key="imgs",
        when=_image,
    )
    image_size: int = number(
        SIDE,
        "Image size",
        "Height and width of an image, of a model that takes any: rounded to whole tokens.",
        "pixels",
        within=(1, 100_000),
        key="imgsz",
        names=("image_resolution",),
        when=_any_size,
    )
    target_len: int = number(
        128,
        "Target length",
        "Tokens per sequence of the decoder, where an encoder reads the others.",
        "tokens",
        within=(1, 16_777_216),
        key="tgt",
        when=_of_model(lambda model: model.tower and not model.tower.image),
    )
    grad_accumulation: int = number(
        1,
        "Gradient accumulation",
        "Micro-batches per optimizer step.",
        within=(1, 1_000_000),
        key="accum",
        names=("gradient_accumulation_steps", "global_batch_size"),
    )
    gradients: str = choice(
        GRADIENTS,
        "freed",
        "Gradients",
        "Whether gradients stay allocated between optimizer steps.",
        key="grads",
        lever=Switch("freed"),
    )
    framework: str = choice(
        FRAMEWORKS,
        "fsdp2",
        "Framework",
        "Who owns the training states, and which buffers live around them.",
        key="fw",
        names=("fsdp", "ddp", "accelerate", "backend"),
    )
    optimizer: str = choice(
        OPTIMIZERS,
        "adamw",
        "Optimizer",
        "What is kept per parameter between steps.",
        key="opt",
        names=("optim", "optimizer_type", "adam"),
    )
    overlap_comm: str = choice(
        OVERLAP,
        "auto",
        "overlap_comm",
        "DeepSpeed: whether reduction overlaps backward.",
        key="overlap",
        when=_deepspeed,
    )
    grad_reduce_in_fp32: bool = declare(
        True,
        "grad_reduce_in_fp32",
        "Megatron: gradients are summed and sent in fp32. Off, in the weights' 16 bits, and the "
        "optimizer widens its part when it steps (--grad-reduce-in-bf16). Megatron-LM has it on "
        "for bf16; Megatron-Bridge's performance recipes have it off.",
        key="grf",
        when=_megatron,
    )
    overlap_grad_reduce: bool = declare(
        True,
        "overlap_grad_reduce",
        "Megatron: gradients are reduced behind the last backward of a step, layer by layer. "
        "NeMo's and Megatron-Bridge's recipes have it on; Megatron-LM's own default is off.",
        key="ogr",
        when=_megatron,
        lever=Switch(True),
    )
    overlap_param_gather: bool = declare(
        True,
        "overlap_param_gather",
        "Megatron: updated weights are gathered behind the first forward of the next step, layer "
        "by layer. It needs overlap_grad_reduce and the distributed optimizer (ZeRO 1).",
        key="opg",
        when=_megatron,
        lever=Switch(True),
    )
    tp_comm_overlap: bool = declare(
        True,
        "tp_comm_overlap",
        "Megatron: what tensor-parallel ranks send each other is cut in pieces that run behind "
        "pieces of the product beside it (Transformer Engine's user buffers). It needs sequence "
        "parallelism. NeMo's performance recipes have it on; Megatron-LM's own default is off.",
        key="tpo",
        when=_megatron,
        lever=Switch(True),
    )
    async_tp: bool = declare(
        False,
        "Asynchronous tensor parallelism",
        "What tensor-parallel ranks send each other is cut in pieces that run behind pieces of the "
        "product beside it, where torch.compile finds the two side by side (torchtitan's "
        "enable_async_tensor_parallel). It needs sequence parallelism and links between all of "
        "the ranks' GPUs that reach each other's memory.",
        key="atp",
        names=("enable_async_tensor_parallel", "async_tensor_parallel"),
        when=_all(_is("train.kernels", "compile"), _several("parallel.tp")),
        lever=Switch(True),
    )
    overlap_moe_expert_parallel_comm: bool = declare(
        False,
        "overlap_moe_expert_parallel_comm",
        "Megatron: rows on their way to experts in one micro-batch's forward pass behind another's "
        "backward, and the other way round. It takes one more forward in flight; with a pipeline, "
        "virtual stages.",
        key="ome",
        when=_all(_megatron, _experts),
        lever=Switch(True),
    )
    moe_dispatcher: str = choice(
        DISPATCHERS,
        EACH_ROW,
        "Dispatcher",
        "Megatron: how often a token on its way to experts is sent. Bytes that stay are planned "
        "as the all-to-all's.",
        key="disp",
        when=_all(_megatron, _experts),
        lever=EachWord(),
    )
    cuda_graphs: str = declare(
        NO_LAYER,
        "cuda_graphs",
        "Megatron: what the host replays as CUDA graphs, one for each layer and direction, where "
        f"it would start each kernel: none, or with commas between {', '.join(CUDA_GRAPHS)}.",
        key="cg",
        names=("cuda_graph_modules", "cuda_graph_scope", "cuda_graph_impl", "external_cuda_graph"),
        when=_megatron,
    )
    reduce_bucket_size: int = _elements(
        500_000_000,
        "reduce_bucket_size",
        "DeepSpeed: gradients reduced at a time.",
        least=1,
        key="bucket",
        when=_deepspeed,
    )
    stage3_max_live_parameters: int = _elements(
        1_000_000_000,
        "stage3_max_live_parameters",
        "DeepSpeed, ZeRO 3: weights gathered at once before prefetching waits.",
        key="live",
        when=_zero_3,
    )
    stage3_max_reuse_distance: int = _elements(
        1_000_000_000,
        "stage3_max_reuse_distance",
        "DeepSpeed, ZeRO 3: weights that are used again within so many others stay gathered.",
        key="reuse",
        when=_zero_3,
    )
    stage3_prefetch_bucket_size: int = _elements(
        50_000_000,
        "stage3_prefetch_bucket_size",
        "DeepSpeed, ZeRO 3: weights gathered ahead in one go.",
        key="prefetch",
        when=_zero_3,
    )
    stage3_param_persistence_threshold: int = _elements(
        100_000,
        "stage3_param_persistence_threshold",
        "DeepSpeed, ZeRO 3: tensors of at most so many weights stay gathered for good.",
        key="persist",
        when=_zero_3,
    )
    sub_group_size: int = _elements(
        1_000_000_000,
        "sub_group_size",
        "DeepSpeed, ZeRO 3: weights that the optimizer steps at a time.",
        least=1,
        key="subgroup",
        when=_zero_3,
    )
    kernels: str = choice(
        KERNELS,
        "hf",
        "Kernels",
        "Whose layer code runs; it decides which tensors are saved.",
        key="kernels",
        names=("use_liger_kernel", "torch_compile", "compiled"),
        lever=EachWord(),
    )
    attention: str = choice(
        ATTENTION,
        "flash",
        "Attention",
        "Which attention kernel runs.",
        key="attn",
        names=("flash_attention", "attn_implementation"),
        lever=EachWord(),
    )
    cross_entropy: str = choice(
        CROSS_ENTROPY,
        "eager",
        "Cross-entropy",
        "Whether fp32 logits exist.",
        key="loss",
        names=("cut_cross_entropy", "loss_function"),
        lever=EachWord(),
    )
    ema: str = choice(
        AVERAGES,
        "none",
        "EMA weights",
        "Whether a moving average of the weights is kept besides.",
        key="ema",
        lever=EachWord(OTHER),
    )
    embedding_gradient: str = choice(
        EMBEDDING_GRADIENTS,
        "dense",
        "Embedding gradient",
        "Of the token embedding, and the optimizer that takes it.",
        key="embgrad",
        lever=EachWord(OTHER),
    )
    frozen: str = choice(
        UNTRAINED,
        "none",
        "Frozen",
        "Which of the model's weights are not trained.",
        key="frozen",
        lever=EachWord(TRAINS_LESS),
    )
    trained_layers: int = number(
        1,
        "Trained layers",
        "Of all layers the last so many are trained, where the lower ones are frozen.",
        "layers",
        within=(0, 100_000),
        key="trained",
        when=_is("train.frozen", LOWER),
    )
    checkpoint_every: int = number(
        1,
        "Checkpoint every",
        "Of so many layers one is checkpointed, the last of them; the others keep everything.",
        "layers",
        within=(1, 1_000),
        key="ckptn",
    )
    recompute_modules: str = declare(
        CORE_ATTN,
        "recompute_modules",
        "Megatron: what selective checkpointing runs again, with commas between: "
        f"{', '.join(RECOMPUTE_MODULES)}.",
        key="rcmod",
        when=_all(_megatron, _is("train.checkpointing", "selective")),
    )
    recompute_method: str = choice(
        RECOMPUTE_METHODS,
        UNIFORM,
        "recompute_method",
        "Megatron: which layers of a stage, or of a virtual one, are checkpointed.",
        key="rcm",
        when=_all(_megatron, _is("train.checkpointing", "full")),
    )
    recompute_num_layers: int = number(
        1,
        "recompute_num_layers",
        "Megatron: layers that share a checkpoint (uniform), or that are checkpointed (block).",
        "layers",
        within=(1, 100_000),
        key="rcn",
        when=_all(_megatron, _is("train.checkpointing", "full")),
    )
    early_stop: str = choice(
        EARLY_STOP,
        "auto",
        "Early stop",
        "Whether a checkpointed layer runs again only as far as it must.",
        key="estop",
        names=("determinism",),
    )
    reentrant: bool = declare(
        False,
        "use_reentrant",
        "Checkpointed layers run without a graph first, and again to their end: transformers 4's "
        "default, and Unsloth's. Where bitsandbytes holds inputs of 8-bit products, it has none to "
        "hold then.",
        key="reent",
        when=_not("train.checkpointing", "none"),
    )
    adapter: str = choice(
        ADAPTERS,
        "none",
        "Adapter",
        "Whether small adapters are trained in place of the model's weights.",
        key="adapter",
        names=("peft", "finetuning_type", "finetuning", "method", "load_in_4bit", "quantization"),
    )
    allocator: str = choice(
        ALLOCATORS,
        "expandable",
        "Allocator",
        "How PyTorch's caching allocator takes memory from the GPU.",
        key="alloc",
        names=("expandable_segments", "pytorch_cuda_alloc_conf"),
        lever=Switch("expandable"),
    )
    mtp_layers: int = number(
        0,
        "Multi-token prediction",
        "Layers behind the last that each predict a token further, as Megatron-Core runs them on "
        "the last stage; DeepSeek-V3 has one. transformers trains none.",
        "layers",
        within=(0, 8),
        key="mtp",
        when=_megatron,
    )
    lora_targets: str = choice(
        LORA_TARGETS,
        "attention",
        "LoRA targets",
        "Which linear layers have an adapter.",
        key="targets",
        names=("target_modules",),
        when=_adapted,
    )
    lora_modules: str = declare(
        NO_LAYER,
        "LoRA modules",
        "Names of the linear layers with an adapter in place of LoRA targets, as PEFT's "
        "target_modules, with commas between: q_proj,k_proj,v_proj. none: LoRA targets say it.",
        key="modules",
        names=("lora_target_modules",),
        when=_adapted,
    )
    lora_rank: int = number(
        16,
        "LoRA rank",
        "Width of each adapter.",
        within=(1, 65_536),
        key="rank",
        names=("lora_r",),
        when=_adapted,
    )
    lora_dropout: float = number(
        0.0,
        "LoRA dropout",
        "Before each adapter; above zero its mask is kept.",
        within=(0, 1),
        key="loradrop",
        when=_adapted,
    )
    adapter_dtype: str = choice(
        ADAPTER_DTYPES,
        "fp32",
        "Adapter dtype",
        "Of the adapters' weights, gradients and moments.",
        key="adtype",
        when=_adapted,
    )
    unquantized_dtype: str = choice(
        UNQUANTIZED_DTYPES,
        AUTO,
        "Unquantized weights",
        "Under QLoRA: of the weights that are not quantized (embedding, norms, biases, head), and "
        "of what flows between the layers.",
        key="unqdtype",
        when=_is("train.adapter", *(name for name, a in ADAPTERS.items() if a.quantized)),
    )
    outputs: str = choice(
        OUTPUTS,
        AUTO,
        "Outputs",
        "Whether the training loop keeps the model's outputs, the logits among them, through "
        "backward.",
        key="outputs",
        lever=Switch(FREED),
    )
    imbalance: float = number(
        1.0,
        "Expert imbalance",
        "Rows that come to the fullest expert-parallel rank, over the mean; 1 is balanced. No rank "
        "gets more than all rows.",
        within=(1, 1000),
        key="imb",
        names=("load_balance",),
        group="Parallelism",
        after="parallel.etp",
        when=_experts,
    )
    offload_optimizer: str = choice(
        OFFLOAD,
        "none",
        "Offload optimizer",
        "Where the optimizer states live.",
        key="offopt",
        names=("cpu_offload", "zero_offload", "offload"),
        group="Offload",
        lever=EachWord(),
    )
    offload_parameters: str = choice(
        OFFLOAD,
        "none",
        "Offload parameters",
        "Where the parameters live.",
        key="offpar",
        names=("zero_infinity", "offload_params"),
        group="Offload",
        lever=EachWord(),
    )
    offload_activations: str = choice(
        OFFLOAD_ACTIVATIONS,
        "none",
        "Offload activations",
        "Where saved activations live.",
        key="offact",
        names=("activation_offloading",),
        group="Offload",
        lever=EachWord(),
    )
    offload_optimizer_buffers: int = number(
        4,
        "Optimizer buffers",
        "DeepSpeed on NVMe: pinned buffers of a sub-group that states are swapped through "
        "(offload_optimizer.buffer_count).",
        within=(1, 1_000),
        key="optbufs",
        group="Offload",
        when=_is("train.offload_optimizer", "nvme"),
    )
    offload_param_buffers: int = number(
        5,
        "Parameter buffers",
        "DeepSpeed on NVMe: pinned buffers that weights are swapped through "
        "(offload_param.buffer_count).",
        within=(1, 1_000),
        key="parbufs",
        group="Offload",
        when=_on_nvme,
    )
    offload_param_buffer_size: int = _elements(
        100_000_000,
        "Parameter buffer size",
        "DeepSpeed on NVMe: of one such buffer (offload_param.buffer_size).",
        least=1,
        key="parbuf",
        group="Offload",
        when=_on_nvme,
    )
    offload_param_max_in_cpu: int = _elements(
        1_000_000_000,
        "Parameters kept in DRAM",
        "DeepSpeed on NVMe: weights of each GPU that stay in DRAM (offload_param.max_in_cpu).",
        key="parincpu",
        group="Offload",
        when=_on_nvme,
    )
    loader_workers: int = number(
        0,
        "Loader workers",
        "Processes of each GPU's DataLoader (num_workers).",
        within=(0, 1_000),
        key="workers",
        names=("num_workers", "dataloader_num_workers"),
        group="Offload",
    )
    loader_prefetch: int = number(
        2,
        "Loader prefetch",
        "Batches that each worker fetches ahead (prefetch_factor).",
        "batches",
        within=(1, 10_000),
        key="ahead",
        group="Offload",
    )
    loader_pin_memory: bool = declare(
        False,
        "Loader pins memory",
        "Batches are copied to page-locked memory (pin_memory).",
        key="pinmem",
        group="Offload",
    )


_DRAFTS = DRAFT_HEADS | {name: Word(name, "A preset.") for name in catalog.model_names()}


class Serve(_Part):
    engine: str = choice(
        engines.CHOICES,
        engines.AUTO,
        "Engine",
        "The program that serves: what it takes between kernels, and what it allocates.",
        key="engine",
        names=("server", "backend"),
    )
    tp: int = number(
        0,
        "Tensor parallel, serving",
        "Ranks of a replica that share each layer. 0: as many as in training.",
        within=(0, 1024),
        key="stp",
        names=("tensor_parallel_size", "tp_size"),
        frees=True,
        auto=True,
        steps=(0, *RANKS),
    )
    pp: int = number(
        0,
        "Pipeline parallel, serving",
        "Stages of a replica that share the layers. 0: as many as in training.",
        within=(0, 1024),
        key="spp",
        names=("pipeline_parallel_size", "pp_size"),
        frees=True,
        auto=True,
        steps=(0, *RANKS),
    )
    weight_dtype: str = choice(
        SERVED_DTYPES,
        "auto",
        "Weight dtype",
        "How weights are stored for inference.",
        key="wdtype",
        names=("quantization", "dtype", "awq", "gptq"),
    )
    moe_backend: str = choice(
        experts.CHOICES,
        experts.AUTO,
        "Expert kernels",
        "What runs experts in MXFP4: each pads their matrices to what its kernels read.",
        key="moeback",
        group="Serving details",
        when=_mxfp4,
    )
    kv_dtype: str = choice(
        KV_DTYPES,
        "bf16",
        "KV dtype",
        "How keys and values are cached.",
        key="kvdtype",
        names=("kv_cache_dtype", "cache_type_k"),
    )
    value_dtype: str = choice(
        VALUE_DTYPES,
        AS_KEYS,
        "Value dtype",
        "How values are cached, where they are not as keys are (llama.cpp's --cache-type-v).",
        key="vdtype",
        names=("cache_type_v",),
        group="Serving details",
        when=_of_model(lambda model: not model.kv_rank),  # latents are one vector for both
    )
    kv_cache: str = choice(
        KV_CACHES,
        "paged",
        "KV cache",
        "How cache memory is handed to sequences.",
        key="kvcache",
        group="Serving details",
    )
    concurrency: int = number(
        64,
        "Concurrency",
        "Sequences that one replica serves at once.",
        within=(1, 1_000_000),
        key="conc",
        names=("users", "max_concurrency", "batch_size"),
        group="Serving load",
    )
    max_num_seqs: int = number(
        0,
        "Most sequences",
        "That the engine schedules at once (vLLM's max_num_seqs): it sizes activations and graphs "
        "for as many, however few are served.",
        zero="the engine's default, or the concurrency where more",
        within=(0, 1_000_000),
        key="maxseqs",
        names=("max_batch_size", "max_running_requests"),
        group="Serving details",
    )
    state_dtype: str = choice(
        STATE_DTYPES,
        "auto",
        "State dtype",
        "Of what state space models and linear attention keep of a sequence in vLLM.",
        key="state",
        group="Serving details",
        when=_of_model(lambda model: model.recurrence),
    )
    prompt_len: int = number(
        1024,
        "Prompt length",
        "Tokens in a prompt.",
        "tokens",
        within=(1, 16_777_216),
        key="prompt",
        names=("input_len", "isl", "input_tokens"),
        group="Serving load",
    )
    output_len: int = number(
        256,
        "Output length",
        "Tokens generated.",
        "tokens",
        within=(1, 16_777_216),
        key="output",
        names=("osl", "max_tokens", "output_tokens", "max_new_tokens"),
        group="Serving load",
    )
    images: int = number(
        1,
        "Images per prompt",
        "Of a model that reads images; their tokens are part of the prompt.",
        within=(0, 4096),
        key="simgs",
        group="Serving load",
        when=_image,
    )
    image_size: int = number(
        SIDE,
        "Image size",
        "Height and width of a prompt's images, of a model that takes any: rounded to whole "
        "tokens.",
        "pixels",
        within=(1, 100_000),
        key="simgsz",
        group="Serving load",
        when=_any_size,
    )
    block_size: int = number(
        16,
        "Block size",
        "Tokens in one page of the cache.",
        within=(1, 65_536),
        key="block",
        group="Serving details",
    )
    max_seq_len: int = number(
        0,
        "Longest sequence",
        "Prompt and output that the server lets in; a contiguous cache reserves as much for each "
        "sequence.",
        "tokens",
        zero="the model's limit",
        within=(0, 16_777_216),
        key="maxlen",
        names=("max_model_len", "context_length", "ctx_size", "num_ctx"),
        group="Serving details",
        auto=True,
    )
    memory_utilization: float = number(
        0.0,
        "Memory utilization",
        "Share of the GPU that the server may use; of SGLang for weights and cache alone, of "
        "TensorRT-LLM of what the weights leave. llama.cpp has none. An engine's own is 0.9, and "
        "SGLang's what its forwards and graphs leave.",
        zero="the engine's own",
        within=(0, 1),
        auto=True,
        key="memutil",
        names=(
            "gpu_memory_utilization",
            "mem_fraction_static",
            "kv_cache_free_gpu_memory_fraction",
        ),
        group="Serving details",
        frees=True,
    )
    max_batched_tokens: int = number(
        0,
        "Batched tokens",
        "Most tokens in one forward; decides the activation peak. vLLM's own are 2,048, and 8,192 "
        "on large GPUs; SGLang's follow the GPU's memory.",
        "tokens",
        zero="the engine's own",
        within=(0, 16_777_216),
        key="batched",
        names=("max_num_batched_tokens", "chunked_prefill_size"),
        group="Serving details",
    )
    runtime: str = choice(
        RUNTIMES,
        "graphs",
        "Runtime",
        "What starts the kernels. An engine that is named has its own, but eager leaves its graphs "
        "out.",
        key="runtime",
        names=("enforce_eager", "cuda_graphs"),
        group="Serving details",
    )
    prefill: str = choice(
        PREFILLS,
        "whole",
        "Prefill",
        "How prompts are read while other sequences generate. In a closed loop they are read in "
        "steps of those, whether whole or in chunks.",
        key="prefill",
        group="Serving details",
    )
    draft_tokens: int = number(
        0,
        "Draft tokens",
        "Speculative decoding: tokens guessed for each step; 0 is none.",
        "tokens",
        within=(0, 64),
        key="draft",
        names=("num_speculative_tokens", "speculative_num_draft_tokens"),
        group="Serving details",
    )
    draft_model: str = choice(
        _DRAFTS,
        "none",
        "Draft model",
        "Who guesses: a smaller model, a head of this one's own shape, or the config.json of a "
        "draft that was trained for it (EAGLE-3, DFlash, Domino, DSpark); none: the text itself, "
        "which costs nothing.",
        key="drafter",
        names=("speculative_model", "speculative_algorithm", "speculative_draft_model_path"),
        own=lambda text: draft_from(text).label,
        group="Serving details",
        when=_not("serve.draft_tokens", 0),
    )
    draft_acceptance: float = number(
        0.7,
        "Draft acceptance",
        "How often a guessed token is right.",
        within=(0, 1),
        key="accept",
        group="Serving details",
        when=_not("serve.draft_tokens", 0),
    )
    offload_weights: float = number(
        0.0,
        "Weights on the host",
        "Of each GPU's weights; read over PCIe in every forward (vLLM's cpu_offload_gb).",
        "GiB",
        within=(0, 10_000),
        key="offw",
        names=("cpu_offload_gb",),
        group="Serving details",
        frees=True,
    )
    gpu_layers: int = number(
        0,
        "Layers on the GPU",
        "The last so many (llama.cpp's -ngl); the CPU computes the others, and the head, in the "
        "host's memory.",
        "layers",
        zero="all",
        auto=True,
        within=(0, 100_000),
        key="ngl",
        names=("n_gpu_layers", "ngl"),
        when=_llama_cpp,
    )
    cpu_moe_layers: int = number(
        0,
        "Experts on the host",
        "Of the first so many layers: the CPU computes them in the host's memory (llama.cpp's "
        "--n-cpu-moe).",
        "layers",
        within=(0, 100_000),
        key="ncmoe",
        names=("n_cpu_moe",),
        when=_all(_experts, _llama_cpp),
    )
    offload_kv: str = choice(
        SERVE_OFFLOAD,
        "none",
        "KV cache offload",
        "Where keys and values live.",
        key="offkv",
        group="Serving details",
    )
    arrivals: str = choice(
        ARRIVALS,
        "poisson",
        "Arrivals",
        "When the requests of the simulated stream come.",
        key="arrive",
        group="Request stream",
    )
    arrival_rate: float = number(
        12.0,
        "Arrival rate",
        "Of one replica.",
        "requests/s",
        within=(0.001, 1_000_000),
        key="rate",
        names=("request_rate", "qps", "rps"),
        group="Request stream",
        when=_is("serve.arrivals", "poisson", "regular"),
    )
    requests: int = number(
        1000,
        "Requests",
        "How many the simulated stream has.",
        within=(1, 20_000),
        key="reqs",
        group="Request stream",
    )
    lengths: str = choice(
        LENGTHS,
        "lognormal",
        "Lengths",
        "How prompts and outputs of the stream differ; prompt and output length are the means.",
        key="lengths",
        group="Request stream",
    )
    prompt_cv: float = number(
        1.0,
        "Prompt variation",
        "Standard deviation over mean of the prompts.",
        within=(0, 10),
        key="pcv",
        group="Request stream",
        when=_not("serve.lengths", "fixed"),
    )
    output_cv: float = number(
        1.0,
        "Output variation",
        "Standard deviation over mean of the outputs.",
        within=(0, 10),
        key="ocv",
        group="Request stream",
        when=_not("serve.lengths", "fixed"),
    )
    shared_prefix: int = number(
        0,
        "Shared prefix",
        "The first tokens of every prompt that are the same for all: a system prompt.",
        "tokens",
        within=(0, 16_777_216),
        key="prefix",
        frees=True,
        group="Request stream",
    )
    prefix_hits: float = number(
        0.0,
        "Prefix hits",
        "Share of a prompt's new tokens that the prefix cache has already, of other requests: "
        "they are not computed again.",
        within=(0, 1),
        key="hits",
        group="Serving load",
        after="serve.output_len",
    )
    turns: int = number(
        1,
        "Turns",
        "Of a conversation, whose earlier turns the prefix cache keeps. The prompt length is that "
        "of all of them on average, history included; of it only what a turn adds is computed.",
        "turns",
        within=(1, 10_000),
        key="turns",
        group="Serving load",
        after="serve.prefix_hits",
    )
    seed: int = number(
        0,
        "Seed",
        "The same seed is the same stream.",
        within=(0, 2_147_483_647),
        key="seed",
        group="Request stream",
    )
    target_ttft: float = number(
        0.0,
        "First token within",
        "What a request may wait for its first token at most.",
        "s",
        zero="any",
        within=(0, 1_000_000),
        key="slottft",
        names=("ttft",),
        group="",
    )
    target_tpot: float = number(
        0.0,
        "Each token within",
        "How long each next token of a request may take on average.",
        "s",
        zero="any",
        within=(0, 1_000_000),
        key="slotpot",
        names=("tpot", "itl"),
        group="",
    )


class Together(_Part):
    kind: str = choice(
        TOGETHER,
        "none",
        "Together with training",
        "What else runs on the GPUs that train.",
        key="with",
        names=("rl", "rlhf", "algorithm"),
    )
    engine_tp: int = _ranks(
        "Engine tensor parallel",
        "GPUs that share one replica of the engine, where serve.tp does not say it.",
        key="enginetp",
        when=_not("together.kind", "none"),
    )
    asleep: str = choice(
        ASLEEP,
        "all",
        "Engine asleep",
        "What the engine gives up while the trainer computes.",
        key="asleep",
        when=_not("together.kind", "none"),
    )
    trainer: str = choice(
        TRAINER,
        "stays",
        "Trainer meanwhile",
        "Where training states are while rollouts are generated.",
        key="trainer",
        when=_not("together.kind", "none"),
    )
    reference: str = choice(
        FROZEN,
        "gpu",
        "Reference model",
        "Where the frozen first policy rests.",
        key="ref",
        when=_learns,
    )
    reward: str = choice(
        FROZEN,
        "none",
        "Reward model",
        "Where a frozen reward model of the policy's shape rests.",
        key="reward",
        when=_learns,
    )
    rollouts: int = number(
        64,
        "Rollouts",
        "Sequences that one GPU keeps of a step.",
        "sequences",
        within=(1, 1_000_000),
        key="rollouts",
        names=("num_generations", "group_size"),
        when=_learns,
    )


class Run(_Part):
    tokens: int = number(
        1_000_000_000,
        "Tokens to train on",
        "Of the whole run.",
        "tokens",
        within=(1, 10**15),
        key="tokens",
        names=("num_tokens", "train_tokens"),
        steps=TOKENS,
        text=count_text,
    )
    target_days: float = number(
        0.0,
        "Done within",
        "What the whole run may take: how many GPUs that needs is said beside the largest "
        "micro-batch.",
        "days",
        zero="any",
        within=(0, 100_000),
        key="within",
        names=("deadline", "max_days", "time_limit"),
    )
    target_cost: float = number(
        0.0,
        "For at most",
        "What the whole run may cost, at the plan's price.",
        "USD",
        zero="any",
        within=(0, 10**12),
        key="budget",
        names=("budget", "max_cost"),
    )
    price_per_gpu_hour: float = number(
        0.0,
        "Price",
        "Of one GPU for one hour.",
        "USD",
        zero="no cost is computed",
        within=(0, 10_000),
        key="price",
        names=("cost", "gpu_hour_price"),
    )
    watts_per_gpu: float = number(
        0.0,
        "Power",
        "Of one GPU.",
        "W",
        zero="the board's",
        within=(0, 100_000),
        key="watts",
        names=("tdp",),
    )
    pue: float = number(
        1.0,
        "Power usage effectiveness",
        "What the data centre draws for each watt of the GPUs, cooling included.",
        within=(1, 10),
        key="pue",
    )


class Plan(_Part):
    """What is to be trained or served, on what, and how. `{}` is a valid plan.

    model is a preset's name, {"size": "7B"}, or a whole Hugging Face config.json object.
    """

    version: int = number(VERSION, "Version", "Of this document's form.", within=(1, VERSION))
    model: str | dict[str, Any] = declare(
        "llama-3-8b", "Model", "A preset's name, a size such as 7B, or a config.json."
    )
    cluster: Cluster = Cluster()
    parallel: Parallel = Parallel()
    train: Train = Train()
    serve: Serve = Serve()
    together: Together = Together()
    run: Run = Run()

    def __init__(self, **values: Any):
        if issues := not_text(values):
            raise PlanError(issues)
        if isinstance(values.get("model"), Mapping):
            values["model"] = _model_of(in_json(values["model"]))
        try:
            super().__init__(**values)
        except ValidationError as e:
            raise PlanError(_issues(e)) from None
        self._take_what_the_model_has()
        _check(self)

    def _take_what_the_model_has(self) -> None:
        """In fields that the plan does not name: the best attention, where the model's code has not
        the default (rules.attention_missing says so in a note); no checkpointing, where it has
        none; and the length of what an encoder reads, where that is always the same."""
        try:
            model = self.architecture
        except PlanError:  # is said with all else that is wrong
            return
        family, heard = FAMILIES[model.family], model.heard
        own: dict[str, dict[str, Any]] = {"train": {}, "serve": {}}
        if self.train.attention not in family.attentions:
            own["train"]["attention"] = family.attentions[-1]
        if not family.checkpoints:
            own["train"]["checkpointing"] = "none"
        if heard:
            own["train"]["seq_len"] = own["serve"]["prompt_len"] = heard
        for place, fields in own.items():
            part = getattr(self, place)
            if left := {k: v for k, v in fields.items() if k not in part.model_fields_set}:
                object.__setattr__(self, place, part.model_copy(update=left))

    @classmethod
    def of(cls, document: Any) -> Plan:
        """The plan that a parsed JSON document describes. Raises PlanError."""
        if not isinstance(document, Mapping):
            raise refusal("", "a plan is one JSON object, in braces")
        version = document.get("version")
        if isinstance(version, int) and version > VERSION:
            later = (
                f"{version} was made by a later Memplan; this one reads versions up to {VERSION}"
            )
            raise refusal("version", f"{later}. Update Memplan, or set version to {VERSION}")
        if not all(isinstance(key, str) for key in document):
            raise refusal("", "every key of a plan is a word")
        return cls(**document)

    @functools.cached_property
    def architecture(self) -> Model:
        return resolve_model(self.model).seeing(self.train.image_size)

    @functools.cached_property
    def weights(self) -> WeightDtype:
        """How a server stores the weights: as the plan says, or the model's own config.json."""
        word, said = self.serve.weight_dtype, self.architecture.quantization
        if self.engine == engines.LLAMA_CPP and self.weight_dtype == "mxfp4":
            return GGUF_MXFP4
        if word == AS_PUBLISHED:
            return said.dtype if said else WEIGHT_DTYPES["bf16"]
        return WEIGHT_DTYPES[word]

    @property
    def weight_dtype(self) -> str:
        """The word for it, of WEIGHT_DTYPES."""
        word: str = self.serve.weight_dtype
        said = self.architecture.quantization
        if word == AS_PUBLISHED:
            return (said.word if said else "") or "bf16"
        return word

    @functools.cached_property
    def accelerator(self) -> Accelerator:
        gpu = self.cluster.gpu
        return catalog.accelerator(gpu) if isinstance(gpu, str) else gpu

    @functools.cached_property
    def node(self) -> Node:
        """The host, as its accelerators have it: unified memory is theirs, and a slot is no faster
        than the card in it. What the plan says of its network and DRAM takes the place of its own.
        """
        gpu, name = self.accelerator, self.cluster.node or self.accelerator.node
        node = catalog.node(name) if isinstance(name, str) else name
        said = {
            "network_bandwidth": self.cluster.network_gbits * Gbit,
            "dram_bytes": node.dram_bytes and round(self.cluster.dram_gib * GiB),
        }
        own = {name: value for name, value in said.items() if value}
        return node.model_copy(
            update={
                **own,
                "sources": {**node.sources, **dict.fromkeys(own, "as the plan says")},
                "dram_bandwidth": gpu.memory_bandwidth
                if gpu.unified_memory
                else node.dram_bandwidth,
                "pcie_bandwidth": gpu.pcie_bandwidth
                if gpu.unified_memory
                else min(gpu.pcie_bandwidth, node.pcie_bandwidth),
            }
        )

    @property
    def dp(self) -> int:
        """Data-parallel ranks: gpus / (tp x pp x cp)."""
        p = self.parallel
        return self.cluster.gpus // (p.tp * p.pp * p.cp)

    @property
    def megatron_deepspeed(self) -> bool:
        """Whether DeepSpeed runs Megatron's layers (Megatron-DeepSpeed): those from before
        Transformer Engine, with ZeRO 1, which Megatron had none of then.

        What it keeps and sends is in frameworks/megatron_deepspeed.py; each tensor-parallel rank
        sends its part of what goes to the next stage (runtime/pipe/engine.py: pipe_partitioned)."""
        t = self.train
        return bool(t.kernels == "megatron" and t.attention == "eager" and t.zero == 1)

    @property
    def named_engine(self) -> str:
        """The word for what serves, where the plan names it or its weights are that engine's own
        files; else ''."""
        word: str = self.serve.engine
        return WEIGHT_DTYPES[self.weight_dtype].engine if word == engines.AUTO else word

    @property
    def engine(self) -> str:
        """The word for what serves, of words.engines.ENGINES."""
        return self.named_engine or engines.OF_RUNTIME.get(self.serve.runtime, engines.VLLM)

    @property
    def runtime(self) -> str:
        """What starts the kernels of what serves: an engine that was named has its own, but that
        graphs can be left out."""
        word: str = self.serve.runtime
        own = not self.named_engine or word == "eager"
        return word if own else engines.ENGINES[self.engine].runtime

    @property
    def cache_manager(self) -> str:
        """The word for how cache memory is handed out, of KV_CACHES: an engine that was named and
        has no pages hands it out in its own way."""
        word: str = self.serve.kv_cache
        own = engines.ENGINES[self.engine].cache if self.named_engine else ""
        return own if own and KV_CACHES[word].pages else word

    @property
    def value_dtype(self) -> str:
        """How values are cached, of KV_DTYPES: latent attention keeps nothing but its latents."""
        word: str = self.serve.value_dtype
        own = word == AS_KEYS or self.architecture.kv_rank
        return self.serve.kv_dtype if own else word

    @property
    def host_layers(self) -> int:
        """How many layers, the first ones, lie in the host's memory with their cache."""
        asked, layers = self.serve.gpu_layers, self.architecture.layers
        return layers - min(asked, layers) if asked else 0

    @property
    def share(self) -> str:
        """What serve.memory_utilization is a share of, of words.engines: of an engine that was not
        named, of the device."""
        return engines.ENGINES[self.engine].share if self.named_engine else engines.DEVICE

    @property
    def drafts(self) -> bool:
        """Whether a model or a head guesses tokens."""
        return bool(self.serve.draft_tokens) and self.serve.draft_model != NO_DRAFT

    @property
    def draft(self) -> Model | None:
        """What guesses tokens, where it is a model or a file of its own."""
        word = self.serve.draft_model
        if not self.drafts or word in DRAFT_HEADS:
            return None
        return draft_from(word) if describes(word) else catalog.model(word)

    @property
    def own_tokens(self) -> int:
        """Tokens of one forward at most, where the plan does not say how many."""
        return engines.own_tokens(self.engine, self.accelerator, self.serving_tp)

    @property
    def batched_tokens(self) -> int:
        """Tokens of one forward at most."""
        return self.serve.max_batched_tokens or self.own_tokens

    @property
    def as_served(self) -> Plan:
        """This plan with the images that prompts have, where training's have another size."""
        model = self.architecture.seeing(self.serve.image_size)
        return self if model == self.architecture else self.of_model(model)

    def of_model(self, model: Model) -> Plan:
        """This plan with a model that no config.json describes."""
        other = self.model_copy()
        other.__dict__["architecture"] = model
        return other

    @property
    def own_sequences(self) -> int:
        """Sequences that the engine schedules at once where the plan does not say; 0: as many as
        are served. One that was not named has no more on a large GPU: not all do."""
        engine, gpu = engines.ENGINES[self.engine], self.accelerator
        if not KV_CACHES[self.cache_manager].pages:
            return 0
        if not self.named_engine:
            return engine.limit
        return engine.large if engine.large and engines.roomy(gpu) else engine.limit

    @property
    def expert_backend(self) -> str:
        """The word for what runs a server's experts in MXFP4, of words.experts.BACKENDS."""
        word: str = self.serve.moe_backend
        if word != experts.AUTO:
            return word
        if not KV_CACHES[self.cache_manager].pages:
            return experts.PLAIN
        gpu = self.accelerator
        return experts.backend_of(gpu.vendor, gpu.architecture, gpu.memory_kind.startswith("HBM"))

    @property
    def serving_tp(self) -> int:
        """Tensor-parallel ranks of one replica that serves."""
        return self.serve.tp or self.parallel.tp

    @property
    def serving_pp(self) -> int:
        """Pipeline stages of one replica that serves."""
        return self.serve.pp or self.parallel.pp

    @property
    def serving_ranks(self) -> int:
        """GPUs of one replica that serves."""
        return self.serving_tp * self.serving_pp

    @property
    def engine_tp(self) -> int:
        """Tensor-parallel ranks of one replica of the engine beside a trainer."""
        return self.serve.tp or self.together.engine_tp

    @property
    def engine_pp(self) -> int:
        """Pipeline stages of the same; as many as serve.pp says, and not the trainer's."""
        return self.serve.pp or 1

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step sees, over all GPUs."""
        t = self.train
        return t.micro_batch * t.seq_len * t.grad_accumulation * self.dp

    @property
    def gpus_per_node(self) -> int:
        """Accelerators in one host: as the plan says, or as the node has."""
        return self.cluster.gpus_per_node or self.node.gpus

    @property
    def gpus_in_node(self) -> int:
        """GPUs of this plan that share one host."""
        return min(self.gpus_per_node, self.cluster.gpus)

    @property
    def gpus_per_domain(self) -> int:
        """Accelerators that fast links join: of a rack, of a slice, of the host, or one alone."""
        return topology.domain(self.accelerator, self.node, self.gpus_per_node)

    @property
    def gpus_in_domain(self) -> int:
        """GPUs of this plan that fast links join."""
        return min(self.gpus_per_domain, self.cluster.gpus)

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest sequence that the server lets in, prompt and output together."""
        s = self.serve
        return s.max_seq_len or max(self.architecture.max_positions, s.prompt_len + s.output_len)

    def sizes(self) -> dict[str, Any]:
        """Every number that a formula reads, flat: {name: int}."""
        p, t = self.parallel, self.train
        return {
            **self.architecture.sizes,
            "B": t.micro_batch,
            "S": t.seq_len,
            "IMAGES": t.images,
            "TARGET": t.target_len,
            "ACCUMULATION": t.grad_accumulation,
            "GPUS": self.cluster.gpus,
            "GPUS_PER_NODE": self.gpus_in_node,
            "DP": self.dp,
            "TP": p.tp,
            "PP": p.pp,
            "VIRTUAL": p.virtual_stages,
            "OUTER": sum(p.outer),
            "CP": p.cp,
            "EP": p.ep,
            "OF_EXPERTS": p.ep,
            "ETP": p.etp,
            "IMBALANCE": round(1000 * t.imbalance),
            "RANK": t.lora_rank,
            "NARROW": multiple(t.framework, t.precision),
            "SHARD_GROUP": p.shard_group,
            "BUCKET": t.reduce_bucket_size,
        }

    def document(self) -> dict[str, Any]:
        """This plan as plain JSON types, every field explicit."""
        return self.model_dump(mode="json")

    def changed(self, path: str, value: Any) -> Plan:
        """This plan with one field changed, named as in an error: 'train.micro_batch'."""
        return self.with_changes({path: value})

    def with_changes(self, changes: Mapping[str, Any]) -> Plan:
        """This plan with some fields changed. Raises PlanError. What does not change is valid: new
        values alone are read, and rules that read one of these fields."""
        if issues := not_text(changes):
            raise PlanError(issues)
        sections: dict[str, dict[str, Any]] = {}
        for path, value in changes.items():
            section, _, field = path.partition(".")
            sections.setdefault(section, {})[field] = value
        if not sections.keys() <= SECTIONS.keys():
            return self._checked_whole(sections.keys(), changes)
        parts: dict[str, Any] = {}
        for section, fields in sections.items():
            try:
                read = SECTIONS[section].model_validate(fields)
            except ValidationError as e:
                issues += _issues(e, section)
                continue
            update = {name: getattr(read, name) for name in fields}
            parts[section] = getattr(self, section).model_copy(update=update)
        if issues:
            raise PlanError(issues)
        other = self.model_copy(update=parts)
        if not OF_HARDWARE.isdisjoint(changes):
            for name in ("accelerator", "node"):
                other.__dict__.pop(name, None)
            if issues := _unknown_hardware(other):
                raise PlanError(issues)
        readers = set().union(*(self.readers.get(path, ()) for path in changes))
        if issues := broken_rules(other, self.architecture, readers):
            raise PlanError(issues)
        return other

    def _checked_whole(self, changed: Collection[str], changes: Mapping[str, Any]) -> Plan:
        sections: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        for name in changed:
            if isinstance(sections[name], BaseModel):
                sections[name] = sections[name].model_dump(mode="json")
        for path, value in changes.items():
            put(sections, path, value)
        return Plan(**sections)

    @functools.cached_property
    def readers(self) -> Mapping[str, set[int]]:
        """Which rules read a field of this plan."""
        return readers_of(self)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Plan:
        """A copy with other sections, on the same hardware and of the same model. Nothing is
        checked."""
        other = super().model_copy(update=update, deep=deep)
        for name in ("weights", "readers"):  # what was found out of other sections
            other.__dict__.pop(name, None)
        return other


# Sections that hold fields.
SECTIONS: dict[str, type[_Part]] = {
    name: info.annotation
    for name, info in Plan.model_fields.items()
    if isinstance(info.annotation, type) and issubclass(info.annotation, _Part)
}


def get(owner: Any, path: str) -> Any:
    """The value at a dotted path of a plan or of its document."""
    for name in path.split("."):
        owner = owner[name] if isinstance(owner, Mapping) else getattr(owner, name)
    return owner


def put(document: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path of a document."""
    *parents, last = path.split(".")
    for name in parents:
        document = document[name]
    document[last] = value


@functools.cache
def field_of(path: str) -> FieldInfo:
    """What the plan declares about the field at a dotted path."""
    *parents, last = path.split(".")
    part: Any = Plan
    for name in parents:
        part = part.model_fields[name].annotation
    found: FieldInfo = part.model_fields[last]
    return found


# The groups of the sidebar in which fields of a section are drawn that name none.
GROUP_OF = {
    "parallel": "Parallelism",
    "train": "Training details",
    "serve": "Serving",
    "together": "Train and serve together",
    "run": "The whole run",
}


@functools.cache
def facts(path: str) -> Facts:
    """All else that it declares."""
    said = facts_of(field_of(path))
    section, _, _ = path.partition(".")
    return said if said.group is not None else replace(said, group=GROUP_OF.get(section, ""))


def words_of(path: str) -> Mapping[str, Word] | None:
    """The words that a field takes, if it takes words."""
    return facts(path).words


@functools.cache
def limits_of(path: str) -> tuple[float, float]:
    """The least and the greatest number that a field takes."""
    least, most = -math.inf, math.inf
    for limit in field_of(path).metadata:
        least, most = getattr(limit, "ge", least), getattr(limit, "le", most)
    return least, most


@functools.cache
def field_paths() -> tuple[str, ...]:
    """Every field of a plan, those of a section by their dotted paths, as they are declared."""
    found: list[str] = []
    for name, info in Plan.model_fields.items():
        part = getattr(info.annotation, "model_fields", None)
        found += [f"{name}.{last}" for last in part] if part else [name]
    return tuple(found)


@functools.cache
def _called() -> Mapping[str, tuple[str, ...]]:
    """Fields by all that they are called."""
    found: dict[str, tuple[str, ...]] = {}
    for path in field_paths():
        for name in {
            *map(plain_name, (path.rpartition(".")[2], title_of(path), *facts(path).names))
        }:
            found[name] = (*found.get(name, ()), path)
    return found


def meant(path: str, short: bool = False) -> str:
    """What somebody may mean by a field that no plan has: one of its section by another name, else
    one of another section, else one that takes such a word, else one that is written alike; else
    which fields there are. `short`: those of its section without the section."""
    section, _, name = path.rpartition(".")
    section = section if section in SECTIONS else ""
    plain, called = plain_name(name), _called()
    inside = [field for field in field_paths() if field.startswith(section)]

    def one_of(fields: Iterable[str], more: str = "") -> str:
        here = [f for f in fields if section and f in inside]
        names = [f.rpartition(".")[2] if short else f for f in here] or fields
        return f"did you mean {' or '.join(map(repr, names))}{more}?"

    if plain in called:
        return one_of(called[plain])
    for field in inside:
        if word := next((w for w in words_of(field) or () if plain_name(w) == plain), None):
            return one_of([field], f", which takes '{word}'")
    near = [name for name, fields in called.items() if any(f in inside for f in fields)]
    if close := difflib.get_close_matches(plain[:SHOWN], near, n=1, cutoff=ALIKE):
        return one_of([f for f in called[close[0]] if f in inside])
    return did_you_mean(name, (f.rpartition(".")[2] for f in inside) if section else SECTIONS)


def title_of(path: str) -> str:
    """A field's name for people."""
    return field_of(path).title or path


def value_text(path: str, value: Any) -> str:
    """A field's value for people: the label of a word, and what 0 stands for."""
    if not value and (zero := facts(path).zero):
        return zero
    words, own = words_of(path), facts(path).own
    if words and value in words:
        return words[value].label
    if own and describes(value):
        return own(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def change_texts(changes: Mapping[str, Any], colon: str = "") -> list[str]:
    """What each change sets, for people: 'Micro-batch 4', or with a colon 'Micro-batch: 4'."""
    return [f"{title_of(path)}{colon} {value_text(path, value)}" for path, value in changes.items()]


def _model_of(model: dict[str, Any]) -> dict[str, Any]:
    """A model by size without the blanks around it, as a link writes it; any other as it is."""
    size = model.get("size")
    return {"size": size.strip()} if set(model) == {"size"} and isinstance(size, str) else model


def resolve_model(model: str | Mapping[str, Any]) -> Model:
    """The Model behind a plan's `model`. Raises PlanError."""
    if isinstance(model, str):
        if model not in catalog.model_names():
            known = catalog.model_names()
            raise refusal("model", f"no preset {shown(model)}; {did_you_mean(model, known)}")
        return catalog.model(model)
    if "size" in model and "model_type" not in model:
        extra = [key for key in model if key != "size"]
        if extra or not isinstance(model["size"], str):
            raise refusal("model.size", "a model by size is {'size': '7B'} and no more")
        return from_config(standard_config(model["size"]), f"Standard {model['size'].strip()}")
    check_depth(model)
    found = _from_json(json.dumps(model, sort_keys=True))
    if found.draft:
        message = (
            f"{found.label}, of {parameters(found):,} parameters, is not a model but guesses "
            f"tokens for one whose hidden size is {found.draft.target:,}: plan that model, and "
            "give this file as its serve.draft_model, with serve.draft_tokens as many as it guesses"
        )
        raise refusal("model.architectures", message)
    if found.counted:
        message = (
            f"{found.label} has {found.counted:,} parameters, {bytes_text(2 * found.counted)} in "
            "16 bits. They are counted; what it keeps in training, and how it is served, is not "
            "known yet, and is not approximated"
        )
        raise refusal("model.model_type", message)
    return found


def draft_from(text: str) -> Model:
    """The draft that the text of a config.json describes. Raises ValueError of what is none."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("the config.json of a draft is not JSON") from None
    try:
        check_depth(config)
        found = _from_json(json.dumps(config, sort_keys=True))
    except PlanError as e:
        raise ValueError("; ".join(map(str, e.issues))) from None
    if not found.draft:
        raise ValueError(f"{found.label} is a whole model, of which a preset can guess; a file is "
                         "read of a draft alone")  # fmt: skip
    return found


NAMED = "_name_or_path"  # where transformers writes in a config.json what it was loaded from
LONGEST_NAME = 40  # characters of such a name that a title repeats


@kept
def _from_json(text: str) -> Model:
    """A model of somebody's own, called as its file has it, or else by its size."""
    config = json.loads(text)
    model, named = from_config(config), config.get(NAMED)
    if model.draft:
        return model
    name = shown_path(PurePosixPath(named).name[:LONGEST_NAME]) if isinstance(named, str) else ""
    if not name.strip(" ."):
        name = f"{count_text(parameters(model))} {config.get('model_type') or model.family}"
    return replace(model, label=f"Your {name}")


def _check(plan: Plan) -> None:
    """What no single field can say: presets that do not exist, impossible combinations."""
    issues = _unknown_hardware(plan)
    try:
        model: Model | None = plan.architecture
    except PlanError as e:
        issues += e.issues
        model = None
    issues += broken_rules(plan, model)
    if issues:
        raise PlanError(issues)


def _unknown_hardware(plan: Plan) -> list[Issue]:
    """Presets of GPUs and hosts that do not exist."""
    issues = []
    node = plan.cluster.node
    for what, name, known in (
        ("GPU", plan.cluster.gpu, catalog.gpu_names()),
        ("node", node, catalog.node_names()),
    ):
        if isinstance(name, str) and name not in known:
            message = f"no {what} preset {shown(name)}; {did_you_mean(name, known)}"
            issues.append(Issue(f"cluster.{what.lower()}", message))
    if not issues and node is None and plan.accelerator.node not in catalog.node_names():
        hint = did_you_mean(plan.accelerator.node, catalog.node_names())
        issues.append(Issue("cluster.gpu.node", f"no node preset of that name; {hint}"))
    return issues


def _other_form(error: Mapping[str, Any]) -> bool:
    """Whether an error is about a form that the value does not have: a name against an object."""
    form, given = error["loc"][-1], error.get("input")
    if form == "str":
        return isinstance(given, Mapping)
    return form in FORMS and not isinstance(given, Mapping)


OBJECTS = ("model", "gpu", "node")  # fields that take a name or a whole description
FORMS = ("Accelerator", "Node", "dict[str,any]")


def _issues(error: ValidationError, *section: str) -> list[Issue]:
    """What pydantic found wrong, with the plan or with a section of it, in our words."""
    errors = error.errors(include_url=False)
    meant = [d for d in errors if not _other_form(d)] or errors
    return [_issue(d | {"loc": (*section, *d["loc"])}) for d in meant]


def _issue(error: Mapping[str, Any]) -> Issue:
    """One pydantic error in our words."""
    path = [p for p in error["loc"] if p not in ("str", *FORMS)]
    field = ".".join(map(str, path))
    kind, value = error["type"], error.get("input")
    context = error.get("ctx", {})
    if kind == "extra_forbidden":
        told = (
            meant(field, short=True)
            if len(path) < 3
            else did_you_mean(str(path[-1]), _siblings(path))
        )
        return Issue(field, f"unknown key; {told}")
    if kind == "missing":
        return Issue(field, "missing; a description of hardware needs it")
    if kind == "value_error":
        return Issue(field, str(context["error"]))
    wanted = WANTED.get(kind)
    if kind == "string_type" and len(path) < 3 and path[-1] in OBJECTS:
        wanted = "a name or an object"
    if wanted is None:
        return Issue(field, f"{error['msg'][:200]} (got {shown(value)})")
    return Issue(field, f"must be {wanted.format(**context)}, not {shown(value)}")


WANTED = {  # by the kind of a pydantic error
    **dict.fromkeys(
        ("int_type", "int_from_float", "int_parsing", "int_parsing_size"), "a whole number"
    ),
    **dict.fromkeys(("float_type", "finite_number"), "a finite number"),
    "bool_type": "true or false",
    **dict.fromkeys(("model_type", "dict_type"), "an object, in braces"),
    "string_type": "a word",
    "greater_than_equal": "at least {ge:,}",
    "less_than_equal": "at most {le:,}",
    "greater_than": "more than {gt:,}",
    "less_than": "less than {lt:,}",
}


def _siblings(path: list[Any]) -> Iterable[str]:
    """The keys that exist where an unknown one was given."""
    part: Any = Plan
    for name in path[:-1]:
        field = getattr(part, "model_fields", {}).get(name)
        if field is None:
            return ()
        part = Accelerator if (name == "gpu") else Node if name == "node" else field.annotation
    return list(getattr(part, "model_fields", {}))


checked({path: (title_of(path), facts(path)) for path in field_paths()})
