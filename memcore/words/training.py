"""Training: the words of a plan that choose how a step is run, as tables.

To add one, add a row to presets/words.toml; a word that needs new behaviour gets it where its table
is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memcore.words.precision import BY_ROW, BY_TENSOR, PRECISIONS, UNMASTERED, EightBit, Precision
from memcore.words.word import Word, rows, table

NEVER = 4  # one more than ZeRO's last stage


@dataclass(frozen=True, slots=True)
class Framework(Word):
    """Who owns the states.

    zero       the ZeRO stages that it has
    copies     of a weight, by the precision. Sources: torch.distributed.fsdp.fully_shard's
               MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=fp32); torch.autocast;
               Rajbhandari et al., "ZeRO", section 3.1 (2 + 2 + 12 bytes), for bf16-mixed without
               sharding
    kernels    whose layers it runs
    plain      whether it is PyTorch's own: it trains any module, and any weight may be frozen
    gathers    the first ZeRO stage whose weights are gathered before use
    shards     the first ZeRO stage at which each rank has a part of the parameters
    hybrid     whether groups of ranks may share parameters, each group all of them
    nvme       whether parameters may lie on NVMe
    flat       whether states lie in flat buffers
    one_dtype  whether all weights of a layer have one dtype, an adapter's too
    as_floats  whether 4-bit values lie in the dtype of other weights (bnb_4bit_quant_storage)
    sums       whether gradients may be summed whole until a step's last micro-batch reduces them
    rows       whether an optimizer gets an embedding's gradient by rows
    to_end     whether a checkpointed layer is run again to its end
    by_hand    whether its training loops are often written by hand, as PEFT's examples are
    threads    whether its launcher leaves each process as many threads as a node has cores;
               torchrun gives several processes one each
    """

    zero: tuple[int, ...]
    copies: Mapping[str, Precision]
    kernels: tuple[str, ...] = ("hf", "liger", "compile")
    plain: bool = False
    gathers: int = NEVER
    shards: int = NEVER
    hybrid: bool = False
    nvme: bool = False
    flat: bool = False
    one_dtype: bool = False
    as_floats: bool = False
    sums: bool = False
    rows: bool = False
    to_end: bool = False
    by_hand: bool = False
    threads: bool = False

    @property
    def own(self) -> bool:
        """Whether it runs layers of its own alone, which ranks cut in its own ways."""
        return "hf" not in self.kernels


_MIXED = {
    "pytorch": UNMASTERED
    | {
        "fp16-mixed": Precision("fp16", "fp16", "fp16", "fp16", "fp32", "fp32", scaled=True),
        "bf16-mixed": Precision("bf16", "bf16", "bf16", "bf16", "fp32", "fp32"),
    },
    "megatron": {
        "fp16-mixed": Precision("fp16", "fp16", "fp16", "fp32", "fp32", "fp32", scaled=True),
        **{
            word: Precision("bf16", "bf16", "bf16", "fp32", "fp32", "fp32", eight_bit=how)
            for word, how in (
                ("bf16-mixed", None),
                ("fp8-mixed", EightBit()),
                ("fp8-delayed", EightBit(delayed=True)),
                ("fp8-params", EightBit(primary=True)),
                ("mxfp8", EightBit(block=32)),
                ("mxfp8-params", EightBit(block=32, primary=True)),
                ("nvfp4", EightBit(block=16, dtype="fp4")),
                ("nvfp4-params", EightBit(block=16, primary=True, dtype="fp4")),
            )
        },
    },
    "fsdp2": UNMASTERED
    | {
        "fp16-mixed": Precision("fp32", "fp16", "fp16", "fp32", "", "fp32", scaled=True),
        **{
            word: Precision("fp32", "bf16", "bf16", "fp32", "", "fp32", float8=how)
            for word, how in (
                ("bf16-mixed", ""),
                ("float8-tensorwise", BY_TENSOR),
                ("float8-rowwise", BY_ROW),
            )
        },
    },
    "deepspeed": {
        "bf16-mixed": Precision("bf16", "bf16", "bf16", "bf16", "fp32", "fp32"),
        "fp16-mixed": Precision("fp16", "fp16", "fp16", "fp16", "fp32", "fp32"),
    },
}
FRAMEWORKS = {
    name: Framework(copies=_MIXED[name], **row) for name, row in rows("frameworks").items()
}

COPIES = {
    (name, word): framework.copies[word]
    for name, framework in FRAMEWORKS.items()
    for word in PRECISIONS
    if word in framework.copies
}


def eight_bit(framework: str, precision: str) -> EightBit | None:
    """What linear products read, where that is 8 bits or 4."""
    copies = COPIES.get((framework, precision))
    return copies.eight_bit if copies else None


def float8(framework: str, precision: str) -> str:
    """How torchao scales what linear products read in 8 bits, or ''."""
    copies = COPIES.get((framework, precision))
    return copies.float8 if copies else ""


def multiple(framework: str, precision: str) -> int:
    """What tokens and widths of products in 8 bits or 4 are multiples of; 1 where none are."""
    how = eight_bit(framework, precision)
    return how.multiple if how else 16 if float8(framework, precision) else 1


OVERLAP = table("overlap", Word)

EXPANDABLE, NATIVE = "expandable", "native"
ALLOCATORS = table("allocators", Word)

EARLY_STOP = table("early_stop", Word)

GRADIENTS = table("gradients", Word)
WHOLE = "whole"  # of them the word for no reduction before the last micro-batch

NO_LAYER, EMBEDDINGS, LOWER, SEEING = "none", "embeddings", "lower", "tower"
BY_NAME = "modules"
UNTRAINED = table("untrained", Word)

DENSE, SPARSE, FUSED_ROWS = "dense", "sparse", "fused"
EMBEDDING_GRADIENTS = table("embedding_gradients", Word)


@dataclass(frozen=True, slots=True)
class TableOptimizer(Word):
    """`states`: what it keeps of a table, in fp32, as in optimizers.State."""

    states: tuple[str, ...]


UNSHARED, BY_ROW_OF_TABLE, BY_TABLE, BY_COLUMN = "none", "row", "table", "column"
TABLE_SHARDING = table("table_sharding", Word)
TABLE_OPTIMIZERS = table("table_optimizers", TableOptimizer)

AVERAGED, AVERAGED_FP32 = "weights", "fp32"
AVERAGES = table("averages", Word)

IN_16_BITS, AS_LOADED = "16-bit", "loaded"
REFERENCES = table("references", Word)

NF4, NF4_DOUBLE, INT8 = "nf4", "nf4, double", "int8, rows"
QUANTIZED = (NF4, NF4_DOUBLE)  # in 4 bits


@dataclass(frozen=True, slots=True)
class Adapter(Word):
    """`quantized`: how the frozen matrices of the layers are kept, '' in the precision's dtype.

    NF4          bitsandbytes' Params4bit: 4 bits a weight and an fp32 scale for each 64
    NF4_DOUBLE   the scales in 8 bits, with an fp32 scale for each 256 of them
    INT8         bitsandbytes' Int8Params: 8 bits a weight and an fp32 scale for each row
    """

    quantized: str = ""


ADAPTERS = table("adapters", Adapter)

ALL_LINEAR = "all-linear"
LORA_TARGETS = table("lora_targets", Word)


def listed(modules: str) -> tuple[str, ...]:
    """The names in a plan's list of modules, each once; () where it has none."""
    if modules.strip() in ("", NO_LAYER):
        return ()
    names = (name.strip() for name in modules.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


ADAPTER_DTYPES = table("adapter_dtypes", Word)

AUTO, FP32, BASE = "auto", "fp32", "base"
UNQUANTIZED_DTYPES = table("unquantized_dtypes", Word)

EACH_ROW, HYBRIDEP = "alltoall", "hybridep"
DISPATCHERS = table("dispatchers", Word)

FREED, KEPT = "freed", "kept"
OUTPUTS = table("outputs", Word)

MODULES, OPERATIONS, LAYER = "modules", "operations", "layer"
TO_END = ", to its end"  # behind one of these: not early_stop


@dataclass(frozen=True, slots=True)
class Checkpointing(Word):
    """`recompute`: which part of a layer is run again in backward.

    ''           nothing
    MODULES      those of RECOMPUTE_MODULES that the plan names
    OPERATIONS   the layer but for the products that SAVED_PRODUCTS names
    LAYER        the layer
    """

    recompute: str


# Operations whose results 'selective-op' keeps, and every how many-th of them: the policy of
# torchtitan's SelectiveAC (torchtitan/distributed/activation_checkpoint.py, 2026-08) for
# torch.utils.checkpoint.create_selective_checkpoint_contexts. 'attention' is PyTorch's own; the
# flash_attn package is not on its list. What is kept of a collective is not sent again.
REDUCED = "reduce-scatter"
SAVED_PRODUCTS = {"mm": 2, "addmm": 1, "bmm": 1, "attention": 1, REDUCED: 1}

CHECKPOINTING = table("checkpointing", Checkpointing)

CORE_ATTN = "core_attn"
MOE_ACT, LAYERNORM, MLA_UP_PROJ = "moe_act", "layernorm", "mla_up_proj"
MLP, MOE, SHARED_EXPERTS = "mlp", "moe", "shared_experts"
# What each keeps: megatron/core/transformer/transformer_config.py: recompute_modules (0.16).
RECOMPUTE_MODULES = table("recompute_modules", Word)

FULL_ITERATION, ATTN = "full_iteration", "attn"
MOE_ROUTER, MOE_PREPROCESS = "moe_router", "moe_preprocess"
# What each captures: megatron/core/transformer/cuda_graphs.py, and docs/user-guide/features/
# cuda_graph.md of Megatron-LM (0.17). `moe`, of experts with a capacity, is not among them.
CUDA_GRAPHS = table("cuda_graphs", Word)

UNIFORM, BLOCK = "uniform", "block"
RECOMPUTE_METHODS = table("recompute_methods", Word)

# How micro-batches pass through the stages of a pipeline.
GPIPE, ZERO_BUBBLE = "gpipe", "zero-bubble"
SCHEDULES = table("schedules", Word)

KERNELS = table("kernels", Word)


@dataclass(frozen=True, slots=True)
class Attention(Word):
    """`scores`: whether scores and probabilities exist as tensors, which backward keeps."""

    scores: bool = False


ATTENTION = table("attention", Attention)
FLASH_3, CUDNN = "flash3", "cudnn"
KEEPS_LIKE = {FLASH_3: "flash", CUDNN: "sdpa"}  # attention that keeps the same tensors as another

CROSS_ENTROPY = table("cross_entropy", Word)

OFFLOAD = table("offload", Word)
OFFLOAD_ACTIVATIONS = table("offload_activations", Word)
