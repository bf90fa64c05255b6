"""Sections: the fields of a plan.

A field is declared once, with all that a form, a link and the levers must know of it; the sidebar
draws a group's fields in the order of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from memcore.errors import did_you_mean, shown
from memcore.hardware.accelerator import Accelerator, Node
from memcore.hardware.constants import INTERRUPTIONS, RESTART
from memcore.models import cards, catalog
from memcore.models.families.qwen_tower import SIDE
from memcore.models.model import Model
from memcore.models.traced.file import LARGEST_SIZE
from memcore.plan.field import FROZEN as TRAINS_LESS
from memcore.plan.field import (
    HARDWARE,
    OTHER,
    TOP,
    Drafted,
    EachWord,
    Switch,
    When,
    choice,
    declare,
    number,
)
from memcore.plan.models import draft_from
from memcore.units import count_text
from memcore.words import engines, experts, serving, stored, training
from memcore.words.optimizers import OPTIMIZERS
from memcore.words.precision import PRECISIONS
from memcore.words.together import ASLEEP, FROZEN, TOGETHER, TRAINER
from memcore.words.word import Word

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
DIM_SIZES = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768),
    *(896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 4096, 6144, 8192, 16_384, 32_768, 65_536),
)


# --- when a field has a meaning: what of the drafted plan, or of its model, gives it one ----------


def _is(path: str, *values: Any) -> When:
    return lambda drafted, model: drafted(path) in values


def _not(path: str, value: Any) -> When:
    return lambda drafted, model: drafted(path) != value


def _several(path: str) -> When:
    return lambda drafted, model: drafted(path) > 1


def _all(*whens: When) -> When:
    return lambda drafted, model: all(when(drafted, model) for when in whens)


def _any(*whens: When) -> When:
    return lambda drafted, model: any(when(drafted, model) for when in whens)


def _of_model(has: Callable[[Model], object]) -> When:
    return lambda drafted, model: bool(has(model))


_megatron = _is("train.framework", *(name for name, f in training.FRAMEWORKS.items() if f.own))
_deepspeed = _is("train.framework", *(name for name, f in training.FRAMEWORKS.items() if f.flat))
_zero_3 = _all(_deepspeed, _is("train.zero", 3))
_adapted = _not("train.adapter", "none")
_on_nvme = _is("train.offload_parameters", "nvme")
_offloads = _any(_not("train.offload_optimizer", "none"), _not("train.offload_parameters", "none"))
_learns = _is("together.kind", "grpo", "ppo")
_image = _of_model(lambda model: model.tower and model.tower.image)
_any_size = _of_model(
    lambda m: m.image.free if m.image else m.tower and m.tower.image and m.tower.image.unit
)
_experts = _of_model(lambda model: model.experts)
_batches = _of_model(lambda model: model.has_dim("batch"))
_of_tokens = _of_model(lambda model: model.has_dim("tokens"))
_recommender = _of_model(lambda model: model.recommends)
_shared_tables = _all(_recommender, _not("train.table_sharding", training.UNSHARED))
_cached_tables = _all(_shared_tables, _not("train.table_cache", 1.0))


def _mxfp4(drafted: Drafted, model: Model) -> bool:
    word, said = drafted("serve.weight_dtype"), model.quantization
    if word == stored.AS_PUBLISHED:
        word = said.word if said else ""
    return bool(model.experts) and word == "mxfp4"


def _llama_cpp(drafted: Drafted, model: Model) -> bool:
    word = drafted("serve.engine")
    if word == engines.AUTO:
        weights = stored.WEIGHT_DTYPES.get(drafted("serve.weight_dtype"))
        word = weights.engine if weights else ""
        word = word or engines.OF_RUNTIME.get(drafted("serve.runtime"), engines.VLLM)
    return bool(word == engines.LLAMA_CPP)


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=False, defer_build=True
    )


class Cluster(Section):
    gpu: str | Accelerator = declare("h100-sxm-80gb", "GPU", "A preset's name, or a description.")

    @field_validator("gpu", mode="before")
    @classmethod
    def _completed(cls, given: Any) -> Any:
        return cards.completed(given) if isinstance(given, dict) else given

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
    gpu_share: float = number(
        1.0,
        "Share of a GPU",
        "What the plan has of each GPU: of its memory, units and bandwidths. A slice of MIG "
        "(3g.40gb of an H100 is 0.5), or a scheduler's fraction.",
        within=(0.01, 1),
        key="share",
        names=("mig", "mig_profile", "fractional_gpu", "gpu_fraction", "vgpu"),
        group=HARDWARE,
        frees=True,
    )
    taken_gib: float = number(
        0.0,
        "Taken by other programs",
        "Memory of each GPU that others hold while the plan runs: a desktop, another job.",
        "GiB",
        within=(0, 100_000),
        key="taken",
        names=("used_memory", "memory_used", "reserved_memory", "other_processes"),
        group=HARDWARE,
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


class Parallel(Section):
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
        training.SCHEDULES,
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


def _image_size(of: str, **facts: Any) -> Any:
    """The pixels along a side of square images."""
    about = f"Height and width of {of}, of a model that takes any: rounded to whole tokens."
    within = (1, 100_000)
    return number(SIDE, "Image size", about, "pixels", within=within, when=_any_size, **facts)


def _of_table(text: str, table: Collection[str]) -> str:
    """The words of a text, each once, in the order of their table. Raises ValueError for one that
    is not in it."""
    named = training.listed(text)
    for name in named:
        if name not in table:
            raise ValueError(f"{shown(name)} is not known; {did_you_mean(name, table)}")
    return ",".join(name for name in table if name in named)


class Train(Section):
    @field_validator("lora_modules", "frozen_modules")
    @classmethod
    def _as_listed(cls, modules: str) -> str:
        """Without blanks, and nothing as its word."""
        return ",".join(training.listed(modules)) or training.NO_LAYER

    @field_validator("recompute_modules")
    @classmethod
    def _as_declared(cls, modules: str) -> str:
        """Each once, in the order of their table."""
        found = _of_table(modules, training.RECOMPUTE_MODULES)
        if not found:
            use = f"use {training.CORE_ATTN}, or train.checkpointing none to keep all"
            raise ValueError(f"no module is named; {use}")
        return found

    @field_validator("cuda_graphs")
    @classmethod
    def _as_captured(cls, graphs: str) -> str:
        """Each once, in the order of their table; nothing as its word."""
        return _of_table(graphs, training.CUDA_GRAPHS) or training.NO_LAYER

    micro_batch: int = number(
        1,
        "Micro-batch",
        "Sequences per GPU in one forward.",
        "sequences",
        within=(1, 65_536),
        key="mb",
        names=("batch_size", "per_device_train_batch_size", "micro_batch_size"),
        group=TOP,
        when=_batches,
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
        when=_of_tokens,
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
        training.CHECKPOINTING,
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
    image_size: int = _image_size("an image", key="imgsz", names=("image_resolution",))
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
        training.GRADIENTS,
        "freed",
        "Gradients",
        "Whether they stay allocated between optimizer steps, and whole between micro-batches.",
        key="grads",
        lever=Switch("freed"),
    )
    framework: str = choice(
        training.FRAMEWORKS,
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
        training.OVERLAP,
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
        training.DISPATCHERS,
        training.EACH_ROW,
        "Dispatcher",
        "Megatron: how often a token on its way to experts is sent. Bytes that stay are planned "
        "as the all-to-all's.",
        key="disp",
        when=_all(_megatron, _experts),
        lever=EachWord(),
    )
    cuda_graphs: str = declare(
        training.NO_LAYER,
        "cuda_graphs",
        "Megatron: what the host replays as CUDA graphs, one for each layer and direction, where "
        "it would start each kernel: none, or with commas between "
        f"{', '.join(training.CUDA_GRAPHS)}.",
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
        training.KERNELS,
        "hf",
        "Kernels",
        "Whose layer code runs; it decides which tensors are saved.",
        key="kernels",
        names=("use_liger_kernel", "torch_compile", "compiled"),
        lever=EachWord(),
    )
    attention: str = choice(
        training.ATTENTION,
        "flash",
        "Attention",
        "Which attention kernel runs.",
        key="attn",
        names=("flash_attention", "attn_implementation"),
        lever=EachWord(),
    )
    cross_entropy: str = choice(
        training.CROSS_ENTROPY,
        "eager",
        "Cross-entropy",
        "Whether fp32 logits exist.",
        key="loss",
        names=("cut_cross_entropy", "loss_function"),
        lever=EachWord(),
    )
    ema: str = choice(
        training.AVERAGES,
        "none",
        "EMA weights",
        "Whether a moving average of the weights is kept besides.",
        key="ema",
        lever=EachWord(OTHER),
    )
    reference: str = choice(
        training.REFERENCES,
        "none",
        "Frozen reference",
        "Whether each micro-batch runs forward through the model as it was before training too, as "
        "in DPO and KTO: a frozen copy, cut over the GPUs as the framework cuts weights. With an "
        "adapter it is the model with the adapter switched off, which takes no bytes.",
        key="refmodel",
        names=("ref_model", "reference_model", "dpo", "kto"),
    )
    embedding_gradient: str = choice(
        training.EMBEDDING_GRADIENTS,
        "dense",
        "Embedding gradient",
        "Of the token embedding, and the optimizer that takes it.",
        key="embgrad",
        lever=EachWord(OTHER),
    )
    table_sharding: str = choice(
        training.TABLE_SHARDING,
        training.BY_ROW_OF_TABLE,
        "Table sharding",
        "How GPUs share a recommender's embedding tables out. Where they do, rows are updated as "
        "backward comes to them, as FBGEMM does under TorchRec; the rest of the model is whole on "
        "each GPU.",
        key="tshard",
        names=("sharding_type", "embedding_sharding"),
        when=_recommender,
        lever=EachWord(OTHER),
    )
    table_optimizer: str = choice(
        training.TABLE_OPTIMIZERS,
        "rowwise-adagrad",
        "Table optimizer",
        "What updates the rows of tables that GPUs share out.",
        key="topt",
        when=_shared_tables,
        lever=EachWord(OTHER),
    )
    table_cache: float = number(
        1.0,
        "Table rows on the GPU",
        "Of every table this share of the rows is cached on the GPU, and all rest in host DRAM "
        "(FBGEMM: MANAGED_CACHING, cache_load_factor). 1: all are on the GPU.",
        within=(0.001, 1),
        key="tcache",
        names=("cache_load_factor", "caching_ratio"),
        when=_shared_tables,
    )
    table_hits: float = number(
        0.0,
        "Table cache hits",
        "Share of the rows that a step reads which the GPU has already. 0: as many as Zipf's law "
        "makes of the cached share.",
        within=(0, 1),
        key="thits",
        when=_cached_tables,
    )
    frozen: str = choice(
        training.UNTRAINED,
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
        when=_is("train.frozen", training.LOWER),
    )
    frozen_modules: str = declare(
        training.NO_LAYER,
        "Frozen modules",
        "Of a traced model: names of modules whose weights are not trained, with commas between: "
        "text_encoder,blocks.0.",
        key="still",
        names=("freeze_modules",),
        when=_is("train.frozen", training.BY_NAME),
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
        training.CORE_ATTN,
        "recompute_modules",
        "Megatron: what selective checkpointing runs again, with commas between: "
        f"{', '.join(training.RECOMPUTE_MODULES)}.",
        key="rcmod",
        when=_all(_megatron, _is("train.checkpointing", "selective")),
    )
    recompute_method: str = choice(
        training.RECOMPUTE_METHODS,
        training.UNIFORM,
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
        training.EARLY_STOP,
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
        training.ADAPTERS,
        "none",
        "Adapter",
        "Whether small adapters are trained in place of the model's weights.",
        key="adapter",
        names=("peft", "finetuning_type", "finetuning", "method", "load_in_4bit", "quantization"),
    )
    allocator: str = choice(
        training.ALLOCATORS,
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
        training.LORA_TARGETS,
        "attention",
        "LoRA targets",
        "Which linear layers have an adapter.",
        key="targets",
        names=("target_modules",),
        when=_adapted,
    )
    lora_modules: str = declare(
        training.NO_LAYER,
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
        training.ADAPTER_DTYPES,
        "fp32",
        "Adapter dtype",
        "Of the adapters' weights, gradients and moments.",
        key="adtype",
        when=_adapted,
    )
    unquantized_dtype: str = choice(
        training.UNQUANTIZED_DTYPES,
        training.AUTO,
        "Unquantized weights",
        "Under QLoRA: of the weights that are not quantized (embedding, norms, biases, head), and "
        "of what flows between the layers.",
        key="unqdtype",
        when=_is("train.adapter", *(name for name, a in training.ADAPTERS.items() if a.quantized)),
    )
    outputs: str = choice(
        training.OUTPUTS,
        training.AUTO,
        "Outputs",
        "Whether the training loop keeps the model's outputs, the logits among them, through "
        "backward.",
        key="outputs",
        lever=Switch(training.FREED),
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
        training.OFFLOAD,
        "none",
        "Offload optimizer",
        "Where the optimizer states live.",
        key="offopt",
        names=("cpu_offload", "zero_offload", "offload"),
        group="Offload",
        lever=EachWord(),
    )
    offload_parameters: str = choice(
        training.OFFLOAD,
        "none",
        "Offload parameters",
        "Where the parameters live.",
        key="offpar",
        names=("zero_infinity", "offload_params"),
        group="Offload",
        lever=EachWord(),
    )
    offload_activations: str = choice(
        training.OFFLOAD_ACTIVATIONS,
        "none",
        "Offload activations",
        "Where saved activations live.",
        key="offact",
        names=("activation_offloading",),
        group="Offload",
        lever=EachWord(),
    )
    offload_pin_memory: bool = declare(
        True,
        "Pinned host buffers",
        "DeepSpeed: what is offloaded lies in page-locked memory (pin_memory), of which PyTorch "
        "takes a power of two for each buffer and gives none back. On by default since 0.19.5.",
        key="pinoff",
        group="Offload",
        when=_all(_deepspeed, _offloads),
        lever=Switch(False),
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


_DRAFTS = serving.DRAFT_HEADS | {name: Word(name, "A preset.") for name in catalog.config_names()}


_drafted_by_a_model = _all(*(_not("serve.draft_model", word) for word in serving.DRAFT_HEADS))


class Serve(Section):
    engine: str = choice(
        engines.CHOICES,
        engines.AUTO,
        "Engine",
        "The program that serves: what it takes between kernels, and what it allocates.",
        key="engine",
        names=("server", "backend"),
        group="Serving",
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
        group="Serving",
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
        group="Serving",
    )
    weight_dtype: str = choice(
        stored.SERVED_DTYPES,
        "auto",
        "Weight dtype",
        "How weights are stored for inference.",
        key="wdtype",
        names=("quantization", "dtype", "awq", "gptq"),
        group="Serving",
    )
    moe_backend: str = choice(
        experts.CHOICES,
        experts.AUTO,
        "Expert kernels",
        "What runs experts in MXFP4: each pads their matrices to what its kernels read.",
        key="moeback",
        when=_mxfp4,
    )
    kv_dtype: str = choice(
        stored.KV_DTYPES,
        "bf16",
        "KV dtype",
        "How keys and values are cached.",
        key="kvdtype",
        names=("kv_cache_dtype", "cache_type_k"),
        group="Serving",
    )
    value_dtype: str = choice(
        stored.VALUE_DTYPES,
        stored.AS_KEYS,
        "Value dtype",
        "How values are cached, where they are not as keys are (llama.cpp's --cache-type-v).",
        key="vdtype",
        names=("cache_type_v",),
        # latents and compressed tokens are one vector for both
        when=_of_model(lambda model: not (model.kv_rank or model.entries)),
    )
    kv_cache: str = choice(
        serving.KV_CACHES,
        "paged",
        "KV cache",
        "How cache memory is handed to sequences.",
        key="kvcache",
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
    )
    state_dtype: str = choice(
        serving.STATE_DTYPES,
        "auto",
        "State dtype",
        "Of what state space models and linear attention keep of a sequence in vLLM.",
        key="state",
        when=_of_model(lambda model: model.recurrence),
    )
    attention: str = choice(
        serving.SERVE_ATTENTION,
        serving.FLASH,
        "Attention of llama.cpp",
        "What a forward keeps of attention.",
        key="sattn",
        when=_llama_cpp,
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
    image_size: int = _image_size("a prompt's images", key="simgsz", group="Serving load")
    block_size: int = number(
        16,
        "Block size",
        "Tokens in one page of the cache.",
        within=(1, 65_536),
        key="block",
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
    )
    runtime: str = choice(
        serving.RUNTIMES,
        "graphs",
        "Runtime",
        "What starts the kernels. An engine that is named has its own, but eager leaves its graphs "
        "out.",
        key="runtime",
        names=("enforce_eager", "cuda_graphs"),
    )
    prefill: str = choice(
        serving.PREFILLS,
        "whole",
        "Prefill",
        "How prompts are read while other sequences generate. In a closed loop they are read in "
        "steps of those, whether whole or in chunks.",
        key="prefill",
    )
    draft_tokens: int = number(
        0,
        "Draft tokens",
        "Speculative decoding: tokens guessed for each step; 0 is none.",
        "tokens",
        within=(0, 64),
        key="draft",
        names=("num_speculative_tokens", "speculative_num_draft_tokens"),
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
        when=_not("serve.draft_tokens", 0),
    )
    draft_weight_dtype: str = choice(
        stored.SERVED_DTYPES,
        "auto",
        "Draft weight dtype",
        "How the weights of a draft that is a model of its own are stored; auto: as the model's.",
        key="ddtype",
        when=_drafted_by_a_model,
    )
    draft_acceptance: float = number(
        0.7,
        "Draft acceptance",
        "How often a guessed token is right.",
        within=(0, 1),
        key="accept",
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
        group="Serving",
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
        group="Serving",
    )
    offload_kv: str = choice(
        serving.SERVE_OFFLOAD,
        "none",
        "KV cache offload",
        "Where keys and values that do not run live; without pages, all of them.",
        key="offkv",
    )
    arrivals: str = choice(
        serving.ARRIVALS,
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
        serving.LENGTHS,
        "lognormal",
        "Lengths",
        "How prompts and outputs of the stream differ; prompt and output length are the means. "
        "Those of a closed loop whose plan does not say are fixed, as benchmarks send them.",
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


class Together(Section):
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


class Run(Section):
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
        "What the steps of the whole run may take, without saves and failures: how many GPUs "
        "that needs is said beside the largest micro-batch.",
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
    save_steps: int = number(
        0,
        "Save every",
        "Steps from one saved checkpoint to the next.",
        "steps",
        zero="as often as costs the least",
        within=(0, 10**9),
        key="save",
        names=("save_interval", "checkpoint_interval"),
    )
    save_total_limit: int = number(
        2,
        "Checkpoints kept",
        "How many saved checkpoints stay on disk.",
        zero="all",
        within=(0, 1_000_000),
        key="keep",
        names=("keep_latest_k",),
    )
    storage_gbytes: float = number(
        0.0,
        "Storage",
        "What all GPUs together write to where checkpoints are saved. Steps wait for it.",
        "GB/s",
        zero="the NVMe drives of the nodes",
        within=(0, 1_000_000),
        key="storage",
        names=("storage_bandwidth", "filesystem"),
    )
    interruptions: float = number(
        INTERRUPTIONS.middle,
        "Interruptions",
        "How often something fails that stops the run, of 1,000 GPUs in a day. Published runs "
        "have 0.27 to 1.8.",
        within=(0, 1000),
        key="fails",
        names=("failures", "mtbf"),
    )
    restart_minutes: float = number(
        RESTART.middle,
        "Restart",
        "From a failure until steps run again.",
        "minutes",
        within=(0, 10_000),
        key="restart",
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


def dim_field(name: str) -> Any:
    """The field that one of a traced model's own dimensions is, of whatever name."""
    title = name.replace("_", " ").capitalize()
    told = f"A dimension that this model was traced with: {name}."
    return number(1, title, told, within=(1, LARGEST_SIZE), group=TOP, steps=DIM_SIZES)
