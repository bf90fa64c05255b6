"""Policies: the words of a plan that choose how a step is run, as tables.

To add one, add a row; a word that needs new behaviour gets it where its table is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from memcore import constants
from memcore.constants import Constant

DTYPE_BYTES = {
    "fp32": 4,
    "int32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int8": 1,
    "bool": 1,
    "int64": 8,
    "fp64": 8,
}


@dataclass(frozen=True, slots=True)
class Word:
    """A policy's label and one sentence for the person who chooses it."""

    label: str
    help: str


@dataclass(frozen=True, slots=True)
class EightBit:
    """How Transformer Engine's linear layers keep what their products read, in 8 bits.

    block     values along a row, or along a column, that share a scale; 0: one for the tensor
    delayed   scales come from a history of largest values, which is kept
    primary   the weights exist in 8 bits only; else each has a 16-bit one and a cached 8-bit copy
    """

    block: int = 0
    delayed: bool = False
    primary: bool = False

    @property
    def multiple(self) -> int:
        """Tokens of one product come in multiples of this (transformer_engine/pytorch/utils.py:
        assert_dim_for_fp8_exec, of the weight gradient's operands; tensor/mxfp8_tensor.py)."""
        return self.block or 16


@dataclass(frozen=True, slots=True)
class Precision(Word):
    """Which dtype each copy of a weight has.

    resident   the parameters that live through the step (sharded, under ZeRO-3)
    compute    the copy the operations read
    gradient   what backward produces for a weight; under autocast it is cast back to `resident`
    reduced    what the gradient reduction sends, and what stays until the optimizer step
    master     an fp32 copy that the optimizer keeps besides, or ''
    moment     the optimizer's moments
    autocast   whether operations run under torch.autocast, with bf16 copies of the weights
    scaled     whether the loss is scaled, so that fp16 gradients do not vanish
    eight_bit  what the layers' linear products read, where that is 8 bits
    """

    resident: str
    compute: str
    gradient: str
    reduced: str
    master: str
    moment: str
    autocast: bool = False
    scaled: bool = False
    eight_bit: EightBit | None = None


_FP16 = "fp16 arithmetic with a scaled loss, fp32 master weights and fp32 Adam moments."
_MIXED = "bf16 arithmetic with fp32 master weights and fp32 Adam moments."
_PURE = "Everything in bf16, moments included: 8 bytes per parameter with AdamW."
_AUTOCAST = (
    "fp32 parameters under torch.autocast, which casts weights and inputs to bf16 as it goes."
)
_FP32 = "Everything in fp32: 16 bytes per parameter with AdamW."
_FP8 = (
    "Transformer Engine's products read fp8, one scale for each tensor, found as it goes: bf16 "
    "weights with cached fp8 copies beside them, which take memory to save time; attention, norms, "
    "embedding and head in bf16."
)
_FP8_DELAYED = "The same with scales from a history of largest values: Megatron's default recipe."
_FP8_PARAMS = (
    "fp8 with one scale for each tensor, and no bf16 copy of the layers' matrices "
    "(Megatron's --fp8-param-gather)."
)
_MXFP8 = (
    "Transformer Engine's products read fp8 with a scale for each 32 values, on Blackwell: bf16 "
    "weights with cached fp8 copies along rows and along columns."
)
_MXFP8_PARAMS = (
    "MXFP8 without a bf16 copy of the layers' matrices (Megatron's --fp8-param-gather with "
    "--reuse-grad-buf-for-mxfp8-param-ag)."
)

# (framework, precision) -> the copies that exist. Sources: torch.distributed.fsdp.fully_shard's
# MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=fp32); torch.autocast; Rajbhandari et al.,
# "ZeRO", section 3.1 (2 + 2 + 12 bytes) for bf16-mixed without sharding.
COPIES = {
    ("pytorch", "fp32"): Precision("fp32", _FP32, "fp32", "fp32", "fp32", "fp32", "", "fp32"),
    ("pytorch", "fp16-mixed"): Precision(
        "fp16-mixed", _FP16, "fp16", "fp16", "fp16", "fp16", "fp32", "fp32", scaled=True
    ),
    ("pytorch", "bf16-mixed"): Precision(
        "bf16-mixed", _MIXED, "bf16", "bf16", "bf16", "bf16", "fp32", "fp32"
    ),
    ("pytorch", "bf16-autocast"): Precision(
        "bf16-autocast", _AUTOCAST, "fp32", "fp32", "fp32", "fp32", "", "fp32", autocast=True
    ),
    ("pytorch", "bf16-pure"): Precision(
        "bf16-pure", _PURE, "bf16", "bf16", "bf16", "bf16", "", "bf16"
    ),
    ("megatron", "bf16-mixed"): Precision(
        "bf16-mixed", _MIXED, "bf16", "bf16", "bf16", "fp32", "fp32", "fp32"
    ),
    ("megatron", "fp16-mixed"): Precision(
        "fp16-mixed", _FP16, "fp16", "fp16", "fp16", "fp32", "fp32", "fp32", scaled=True
    ),
    **{
        ("megatron", word): Precision(
            word, text, "bf16", "bf16", "bf16", "fp32", "fp32", "fp32", eight_bit=how
        )
        for word, text, how in (
            ("fp8-mixed", _FP8, EightBit()),
            ("fp8-delayed", _FP8_DELAYED, EightBit(delayed=True)),
            ("fp8-params", _FP8_PARAMS, EightBit(primary=True)),
            ("mxfp8", _MXFP8, EightBit(block=32)),
            ("mxfp8-params", _MXFP8_PARAMS, EightBit(block=32, primary=True)),
        )
    },
    ("deepspeed", "bf16-mixed"): Precision(
        "bf16-mixed", _MIXED, "bf16", "bf16", "bf16", "bf16", "fp32", "fp32"
    ),
    ("deepspeed", "fp16-mixed"): Precision(
        "fp16-mixed", _FP16, "fp16", "fp16", "fp16", "fp16", "fp32", "fp32"
    ),
    ("fsdp2", "fp32"): Precision("fp32", _FP32, "fp32", "fp32", "fp32", "fp32", "", "fp32"),
    ("fsdp2", "fp16-mixed"): Precision(
        "fp16-mixed", _FP16, "fp32", "fp16", "fp16", "fp32", "", "fp32", scaled=True
    ),
    ("fsdp2", "bf16-mixed"): Precision(
        "bf16-mixed", _MIXED, "fp32", "bf16", "bf16", "fp32", "", "fp32"
    ),
    ("fsdp2", "bf16-autocast"): Precision(
        "bf16-autocast", _AUTOCAST, "fp32", "fp32", "fp32", "fp32", "", "fp32", autocast=True
    ),
    ("fsdp2", "bf16-pure"): Precision(
        "bf16-pure", _PURE, "bf16", "bf16", "bf16", "bf16", "", "bf16"
    ),
}


def eight_bit(framework: str, precision: str) -> EightBit | None:
    """What linear products read, where that is 8 bits."""
    copies = COPIES.get((framework, precision))
    return copies.eight_bit if copies else None


PRECISIONS = {
    "fp32": Word("fp32", _FP32),
    "fp16-mixed": Word("fp16 mixed", _FP16),
    "bf16-mixed": Word("bf16 mixed", _MIXED),
    "bf16-autocast": Word("bf16 autocast", _AUTOCAST),
    "bf16-pure": Word("bf16 pure", _PURE),
    "fp8-mixed": Word("fp8 mixed", _FP8),
    "fp8-delayed": Word("fp8, delayed scaling", _FP8_DELAYED),
    "fp8-params": Word("fp8 parameters", _FP8_PARAMS),
    "mxfp8": Word("MXFP8", _MXFP8),
    "mxfp8-params": Word("MXFP8 parameters", _MXFP8_PARAMS),
}


@dataclass(frozen=True, slots=True)
class Framework(Word):
    """Who owns the states. `zero` lists the ZeRO stages that it has."""

    zero: tuple[int, ...]


FRAMEWORKS = {
    "pytorch": Framework(
        "PyTorch (DDP)",
        "One full copy per GPU; gradients are averaged with DistributedDataParallel. ZeRO 1 is "
        "torch's ZeroRedundancyOptimizer.",
        zero=(0, 1),
    ),
    "megatron": Framework(
        "Megatron-LM",
        "megatron.core with Transformer Engine's kernels: gradients are summed in an fp32 buffer. "
        "ZeRO 1 is its distributed optimizer.",
        zero=(0, 1),
    ),
    "fsdp2": Framework(
        "PyTorch FSDP2",
        "torch.distributed.fsdp.fully_shard on each layer. ZeRO 3 reshards after forward, ZeRO 2 "
        "keeps the gathered layers until backward, ZeRO 0 replicates (a shard group of one).",
        zero=(0, 2, 3),
    ),
    "deepspeed": Framework(
        "DeepSpeed",
        "deepspeed.initialize: 16-bit weights in flat groups, fp32 master copies and moments of "
        "the own partition, gradients reduced in buckets. ZeRO 3 gathers weights ahead of use, up "
        "to stage3_max_live_parameters of them.",
        zero=(0, 1, 2, 3),
    ),
}

OVERLAP = {
    "auto": Word("As the stage", "DeepSpeed's default: on under ZeRO 3, off below."),
    "on": Word(
        "On", "Gradients are reduced beside backward, in a second bucket under ZeRO 1 and 2."
    ),
    "off": Word("Off", "Gradients are reduced in backward's own time, in one bucket."),
}


EXPANDABLE, NATIVE = "expandable", "native"
ALLOCATORS = {
    EXPANDABLE: Word(
        "Expandable segments",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, as torchtitan's launcher sets it: "
        "reserved memory as published runs of the framework show it.",
    ),
    NATIVE: Word(
        "Native",
        "PyTorch's default, segments of fixed sizes, between which gaps remain: as much is "
        "reserved as with expandable segments, or up to half as much again.",
    ),
}

EARLY_STOP = {
    "auto": Word("As the framework does", "On, but off under Megatron."),
    "on": Word(
        "On",
        "A checkpointed layer runs again until all that backward wants is there, "
        "torch.utils.checkpoint's default since PyTorch 2.1: its last product is not run again.",
    ),
    "off": Word(
        "Off",
        "It runs again to its end, as under Megatron, in torchtitan since August 2025 and before "
        "PyTorch 2.1. Compiled layers are taken to do so, whatever this says.",
    ),
}


@dataclass(frozen=True, slots=True)
class State:
    """One tensor that an optimizer keeps for a parameter.

    keeps   'all': as large as the parameter; 'rows', 'columns': one value for each of them;
            'quantized', 'scales', 'small': see states.QUANTIZED
    dtype   '' for the precision's moments
    """

    name: str
    keeps: str = "all"
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Optimizer(Word):
    """What an optimizer keeps for each parameter, in the precision's moment dtype.

    matrices, vectors   for parameters of two dimensions, and of one
    outer               for embedding and head, where it treats them as something else, or None
    temporaries         tensors as large as the parameters that are alive during the step
    step_bytes          of a step counter on the GPU, per parameter tensor
    tables              lookup tables of 256 fp32 values, for all parameters together
    starts              operations that the host starts for each updated tensor; one for many takes
                        36 of them, or more where it reads fewer lists of them (PyTorch:
                        ATen/native/cuda/MultiTensorApply.cuh, depth_to_max_tensors)
    """

    matrices: tuple[State, ...]
    vectors: tuple[State, ...]
    flops_per_parameter: int
    outer: tuple[State, ...] | None = None
    temporaries: tuple[str, ...] = ()
    step_bytes: int = 0
    tables: tuple[str, ...] = ()
    starts: float = 1.0


_ADAM = (State("exp_avg"), State("exp_avg_sq"))
_MOMENTUM = (State("momentum_buffer"),)
_ADAM_8BIT = (
    State("state1", "quantized", "int8"),
    State("state2", "quantized", "int8"),
    State("absmax1", "scales", "fp32"),
    State("absmax2", "scales", "fp32"),
    State("state1 (32 bit)", "small", "fp32"),
    State("state2 (32 bit)", "small", "fp32"),
)


def _block_quantized(bits: int, block: int) -> tuple[State, ...]:
    """torchao/optim (0.18): subclass_8bit.py, subclass_4bit.py and adam.py: _new_buffer.

    Each tensor has the values that its codes stand for; one that is small, or no multiple of a
    block, is whole.
    """
    kept = f"codes, {bits} bit", f"scales, {block}", f"values of {bits} bits, {block}"
    names = ("codes", "scale", "qmap")
    of_one = [(n, k, "int8" if n == "codes" else "fp32") for n, k in zip(names, kept, strict=True)]
    return tuple(
        State(f"{moment}.{name}" if name else moment, keeps, dtype)
        for moment in ("exp_avg", "exp_avg_sq")
        for name, keeps, dtype in (*of_one, ("", f"whole, {block}", ""))
    )


_AO_8, _AO_4 = _block_quantized(8, 256), _block_quantized(4, 128)

# What stands here is what `optimizer.state` holds after a step (torch 2.13), and the lists that the
# foreach implementations make (torch/optim/adam.py, _adafactor.py); Lion as in lion-pytorch;
# 8-bit Adam as in bitsandbytes/optim/optimizer.py (0.49): min_8bit_size 4096, blocks of 256.
OPTIMIZERS = {
    "adamw": Optimizer(
        "AdamW (fused)",
        "Two moments per parameter; torch.optim.AdamW(fused=True) needs no temporaries.",
        _ADAM,
        _ADAM,
        12,
        step_bytes=4,
        starts=2 / 36,
    ),
    "adamw-foreach": Optimizer(
        "AdamW (foreach)",
        "The same moments; PyTorch's default on GPUs makes one more tensor as large as all "
        "parameters during the step.",
        _ADAM,
        _ADAM,
        12,
        temporaries=("sqrt of exp_avg_sq",),
        starts=9 / 48,
    ),
    "adam8bit": Optimizer(
        "Adam, 8 bit",
        "Both moments in 8 bits with an fp32 scale for each 256 of them (bitsandbytes); a "
        "parameter of fewer than 4,096 elements keeps 32 bits.",
        _ADAM_8BIT,
        _ADAM_8BIT,
        16,
        tables=("qmap1", "qmap2"),
    ),
    "torchao-adamw8bit": Optimizer(
        "AdamW, 8 bit (torchao)",
        "Both moments in 8 bits with an fp32 scale for each 256 of them (torchao.optim.AdamW8bit); "
        "a parameter of fewer than 4,096 elements keeps them whole.",
        _AO_8,
        _AO_8,
        16,
    ),
    "torchao-adamw4bit": Optimizer(
        "AdamW, 4 bit (torchao)",
        "Both moments in 4 bits with an fp32 scale for each 128 of them (torchao.optim.AdamW4bit); "
        "a parameter of fewer than 4,096 elements keeps them whole.",
        _AO_4,
        _AO_4,
        16,
    ),
    "sgd": Optimizer("SGD", "Keeps nothing between steps.", (), (), 2, starts=1 / 64),
    "sgd-momentum": Optimizer(
        "SGD with momentum", "One moment per parameter.", _MOMENTUM, _MOMENTUM, 4, starts=3 / 64
    ),
    "lion": Optimizer(
        "Lion", "One moment per parameter.", (State("exp_avg"),), (State("exp_avg"),), 6, starts=7
    ),
    "adafactor": Optimizer(
        "Adafactor",
        "A value per row and one per column of each matrix instead of moments "
        "(torch.optim.Adafactor); its step makes one tensor as large as all parameters.",
        (State("row_var", "rows"), State("col_var", "columns")),
        (State("variance"),),
        10,
        temporaries=("update",),
        starts=6 + 13 / 48,
    ),
    "muon": Optimizer(
        "Muon",
        "One moment for the matrices of the layers; AdamW for embedding, head and vectors.",
        _MOMENTUM,
        _ADAM,
        40,
        outer=_ADAM,
        starts=23,
    ),
}


# Those that treat each number by itself, so that a flat partition will do.
DEEPSPEED_OPTIMIZERS = ("adamw", "adamw-foreach", "sgd", "sgd-momentum", "lion")

GRADIENTS = {
    "freed": Word("Freed", "zero_grad() drops them after each step, PyTorch's default."),
    "kept": Word("Kept", "zero_grad(set_to_none=False) keeps them, through forward too."),
}

NO_LAYER, EMBEDDINGS, LOWER = "none", "embeddings", "lower"
UNTRAINED = {
    NO_LAYER: Word("Nothing", "Every weight is trained."),
    EMBEDDINGS: Word(
        "Embeddings",
        "Tokens, positions and whatever lies before the first layer, with a head that is tied to "
        "them. A frozen weight has no gradient and no optimizer state.",
    ),
    LOWER: Word(
        "All but the last layers",
        "The embeddings, and all layers but the last so many: no backward reaches them, so that "
        "they keep nothing. The final norm and the head are trained.",
    ),
}

DENSE, SPARSE, FUSED_ROWS = "dense", "sparse", "fused"
EMBEDDING_GRADIENTS = {
    DENSE: Word("Dense", "As large as the table, whatever rows were read."),
    SPARSE: Word(
        "Sparse",
        "A row for each token (torch.nn.Embedding(sparse=True)), which torch.optim.SparseAdam "
        "adds to two moments as large as the table.",
    ),
    FUSED_ROWS: Word(
        "Row-wise, in backward",
        "Backward updates the rows itself, with one fp32 value for each row of the table "
        "(row-wise Adagrad as in FBGEMM and TorchRec): no gradient exists.",
    ),
}

AVERAGED, AVERAGED_FP32 = "weights", "fp32"
AVERAGES = {
    "none": Word("None", "No average of the weights is kept."),
    AVERAGED: Word(
        "Like the weights",
        "A second model whose weights follow the first one's, in their dtype and sharded as they "
        "are (torch.optim.swa_utils.AveragedModel).",
    ),
    AVERAGED_FP32: Word(
        "fp32, with the optimizer",
        "An fp32 value for each trained weight, sharded as the optimizer states and offloaded "
        "with them.",
    ),
}

NF4, NF4_DOUBLE = "nf4", "nf4, double"
QUANTIZED = (NF4, NF4_DOUBLE)


@dataclass(frozen=True, slots=True)
class Adapter(Word):
    """`quantized`: how the frozen matrices of the layers are kept, '' in the precision's dtype.

    NF4          bitsandbytes' Params4bit: 4 bits a weight and an fp32 scale for each 64
    NF4_DOUBLE   the scales in 8 bits, with an fp32 scale for each 256 of them
    """

    quantized: str = ""


ADAPTERS = {
    "none": Adapter("None", "Every weight is trained."),
    "lora": Adapter(
        "LoRA",
        "Two small matrices beside each target are trained; every other weight is frozen: no "
        "gradient, no optimizer state, and its input is not kept for its sake.",
    ),
    "qlora": Adapter(
        "QLoRA",
        "LoRA over frozen weights in 4 bits (nf4 with double quantization, bitsandbytes), which "
        "are widened for each product, forward and backward. Embedding, norms and head are not "
        "quantized.",
        NF4_DOUBLE,
    ),
    "qlora-single": Adapter(
        "QLoRA, fp32 scales", "The same without double quantization, bitsandbytes' default.", NF4
    ),
}

LORA_TARGETS = {
    "attention": Word("Queries and values", "q and v, or the joint projection: PEFT's default."),
    "attention-all": Word("Attention", "Queries, keys, values and the output projection."),
    "all-linear": Word("All linear", "Every linear layer but the head."),
}

ADAPTER_DTYPES = {
    "fp32": Word("fp32", "PEFT's default (autocast_adapter_dtype): fp32 beside 16-bit weights."),
    "base": Word("As the weights", "As litgpt and torchtune have them, and FSDP2's groups want."),
}

CORE, OPERATIONS, LAYER = "core", "operations", "layer"
TO_END = ", to its end"  # behind one of these: not early_stop


@dataclass(frozen=True, slots=True)
class Checkpointing(Word):
    """`recompute`: which part of a layer is run again in backward.

    ''           nothing
    CORE         attention, from queries, keys and values to the joined heads
    OPERATIONS   the layer but for the products that KEPT_PRODUCTS names
    LAYER        the layer
    """

    recompute: str


# Operations whose results 'selective-op' keeps, and every how many-th of them: the policy of
# torchtitan's SelectiveAC (torchtitan/distributed/activation_checkpoint.py, 2026-08) for
# torch.utils.checkpoint.create_selective_checkpoint_contexts. 'attention' is PyTorch's own; the
# flash_attn package is not on its list.
KEPT_PRODUCTS = {"mm": 2, "addmm": 1, "bmm": 1, "attention": 1}

CHECKPOINTING = {
    "none": Checkpointing("None", "Keep every tensor that backward needs.", ""),
    "selective": Checkpointing(
        "Selective (attention core)",
        "Run attention again in backward, from queries, keys and values to its output, for a few "
        "per cent more compute. With eager attention what is quadratic in the sequence is not "
        "kept; SDPA and FlashAttention keep nothing of the kind, so that it saves next to nothing.",
        CORE,
    ),
    "selective-op": Checkpointing(
        "Selective (by operation)",
        "Keep the attention's output and every other matrix product of a layer; run the rest "
        "again in backward (PyTorch's selective activation checkpointing as torchtitan uses it).",
        OPERATIONS,
    ),
    "full": Checkpointing(
        "Full",
        "Keep only each layer's input and run the layer again in backward: about one third more "
        "compute.",
        LAYER,
    ),
}

# How micro-batches pass through the stages of a pipeline.
SCHEDULES = {
    "1f1b": Word(
        "1F1B",
        "One forward, one backward in turn: stage r of p has p - r micro-batches in flight. With "
        "virtual stages it is interleaved.",
    ),
    "gpipe": Word("GPipe", "All forwards, then all backwards: every micro-batch is in flight."),
    "zero-bubble": Word(
        "Zero bubble",
        "ZB-H1: backward in two halves, the weights' later; every stage has as many micro-batches "
        "in flight as the first stage of 1F1B.",
    ),
}

KERNELS = {
    "hf": Word("Hugging Face", "The modelling code of transformers as it is, run eagerly."),
    "liger": Word(
        "Liger",
        "Liger's fused RMSNorm, rotary embedding and gated MLP in the same code: fewer tensors are "
        "saved, and gradients are written over them.",
    ),
    "compile": Word(
        "torch.compile",
        "Each layer compiled by itself: what lies between matrix products is fused and computed "
        "again in backward, as the compiler's partitioner decides.",
    ),
    "megatron": Word(
        "Megatron",
        "Transformer Engine's and Megatron's fused kernels, with the megatron framework.",
    ),
}


@dataclass(frozen=True, slots=True)
class Attention(Word):
    """`scores`: whether scores and probabilities exist as tensors, which backward keeps."""

    scores: bool = False


ATTENTION = {
    "eager": Attention(
        "Eager",
        "Scores and probabilities exist as tensors, quadratic in the sequence length.",
        scores=True,
    ),
    "sdpa": Attention(
        "SDPA", "torch's scaled_dot_product_attention, which runs FlashAttention: no scores in HBM."
    ),
    "flash": Attention(
        "FlashAttention", "The flash_attn package: q, k, v, out and the log-sum-exp are kept."
    ),
    "flash3": Attention(
        "FlashAttention 3",
        "Its version for Hopper: the same tensors, about three times as fast (flash_attention_3 in "
        "transformers).",
    ),
}
FLASH_3 = "flash3"
KEEPS_LIKE = {FLASH_3: "flash"}  # attention that keeps the same tensors as another

CROSS_ENTROPY = {
    "eager": Word("Eager", "transformers' loss: the logits are copied to fp32."),
    "fused": Word(
        "Fused",
        "One kernel reads the logits as they are and writes their gradient over them; no fp32 "
        "logits (Liger's cross-entropy, Transformer Engine's).",
    ),
    "chunked": Word(
        "Chunked",
        "Head and loss together, a chunk of tokens at a time, so that the logits never exist whole "
        "(Liger's fused linear cross-entropy).",
    ),
}

OFFLOAD = {
    "none": Word("No", "Stays on the GPU."),
    "cpu": Word("Host DRAM", "Lives in the node's DRAM; gradients and weights cross PCIe."),
    "nvme": Word("NVMe", "Lives on the node's NVMe drives; streams through DRAM over PCIe."),
}
OFFLOAD_ACTIVATIONS = {
    "none": OFFLOAD["none"],
    "cpu": Word(
        "Host DRAM",
        "What layers leave for their backward goes to pinned memory and comes back for it.",
    ),
}


# Bits of one stored value, its share of scales and zeros included; a scale for a whole row or a
# whole matrix is below 0.1 % and not counted. Sources: compressed-tensors and AutoGPTQ (an fp16
# scale and a zero as wide as a value per group); DeepSeek-V3's technical report (128 x 128 values
# per fp32 scale); bitsandbytes/functional.py; OCP Microscaling 1.0; NVIDIA's NVFP4 (an fp8 scale
# for 16); the blocks of ggml/src/ggml-common.h.
STORED_BITS = {
    "fp32": 32,
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "bf16 2:4": 16 / 2 + 2 / 2,  # of four values two, and two bits for the place of each
    "fp8 128x128": 8 + 32 / 128**2,
    "int8": 8,
    "int4 g128": 4 + (16 + 4) / 128,
    "int4 g64": 4 + (16 + 4) / 64,
    "int4 g32": 4 + (16 + 4) / 32,
    "int4 g32, 16-bit zeros": 4 + (16 + 16) / 32,
    "nf4": 4 + 32 / 64,
    "nf4, double": 4 + (8 + 32 / 256) / 64,
    "mxfp4": 4 + 8 / 32,
    "nvfp4": 4 + 8 / 16,
    "Q8_0": 8 + 16 / 32,
    "Q6_K": 6 + (16 * 8 + 16) / 256,
    "Q5_K": 5 + (12 * 8 + 32) / 256,
    "Q5_1": 5 + 32 / 32,
    "Q5_0": 5 + 16 / 32,
    "Q4_K": 4 + (12 * 8 + 32) / 256,
    "Q4_1": 4 + 32 / 32,
    "Q4_0": 4 + 16 / 32,
    "IQ4_NL": 4 + 16 / 32,
    "IQ4_XS": 4 + (16 + 16 + 32) / 256,
    "Q3_K": 3 + (12 * 8 + 16) / 256,
    "Q2_K": 2 + (16 * 8 + 32) / 256,
}


@dataclass(frozen=True, slots=True)
class WeightDtype(Word):
    """How a served model's weights are stored, as words of STORED_BITS.

    matrices   of the layers
    compute    of activations; `product`: of the products, '' as that
    experts    their matrices, '' as the others
    outer      embedding and head, '' in compute
    head       the head alone, '' as outer
    rest       norms, biases, routers, positions; '' in compute
    recipe     how the type of a matrix depends on what it is and on its layer: stored.RECIPES
    modules    by name, how some are stored: quantization.Quantization
    """

    matrices: str
    compute: str = "bf16"
    product: str = ""
    experts: str = ""
    outer: str = ""
    head: str = ""
    rest: str = ""
    recipe: str = ""
    modules: tuple[tuple[str, str], ...] = ()


def _gguf(name: str, matrices: str, about: str) -> WeightDtype:
    return WeightDtype(
        f"GGUF {name}", about, matrices, "fp16", outer=matrices, rest="fp32", recipe=name
    )


_STAYS = " Embedding, head, norms and routers stay in 16 bits."

WEIGHT_DTYPES = {
    "fp32": WeightDtype("fp32", "4 bytes per weight.", "fp32", "fp32"),
    "bf16": WeightDtype("bf16", "2 bytes per weight.", "bf16"),
    "fp16": WeightDtype("fp16", "2 bytes per weight.", "fp16", "fp16"),
    "bf16-sparse24": WeightDtype(
        "bf16, 2:4 sparse",
        "Of each four weights two are kept, and two bits for the place of each "
        f"(torch.sparse.to_sparse_semi_structured); products are timed as dense ones.{_STAYS}",
        "bf16 2:4",
    ),
    "fp8": WeightDtype(
        "fp8", f"1 byte, a scale per matrix or row; products in fp8.{_STAYS}", "fp8", product="fp8"
    ),
    "fp8-block": WeightDtype(
        "fp8, blocks",
        f"1 byte, an fp32 scale for each 128 x 128, as DeepSeek-V3; products in fp8.{_STAYS}",
        "fp8 128x128",
        product="fp8",
    ),
    "fp8-mlp": WeightDtype(
        "fp8, MLPs only",
        "As Meta published Llama 3.1 405B: the MLPs of all layers but the first and the last; the "
        "rest in 16 bits.",
        "fp8",
        product="fp8",
        recipe="mlp",
    ),
    "int8": WeightDtype(
        "int8",
        f"1 byte, a scale per row; products in 16 bits (LLM.int8, weight-only).{_STAYS}",
        "int8",
    ),
    "int8-linear": WeightDtype(
        "int8, head too", "The same with the head in it, as gpt-fast.", "int8", head="int8"
    ),
    "int4": WeightDtype(
        "int4 (GPTQ, AWQ)",
        f"4 bits, a 16-bit scale and a 4-bit zero for each 128.{_STAYS}",
        "int4 g128",
    ),
    "int4-g64": WeightDtype("int4, groups of 64", f"The same for each 64.{_STAYS}", "int4 g64"),
    "int4-g32": WeightDtype("int4, groups of 32", f"The same for each 32.{_STAYS}", "int4 g32"),
    "int4-linear": WeightDtype(
        "int4, head too",
        "4 bits, a scale and a zero in 16 bits for each 32, the head too, as gpt-fast.",
        "int4 g32, 16-bit zeros",
        head="int4 g32, 16-bit zeros",
    ),
    "nf4": WeightDtype("nf4", f"bitsandbytes: 4 bits, an fp32 scale for each 64.{_STAYS}", NF4),
    "nf4-double": WeightDtype(
        "nf4, double",
        f"The same with its scales in 8 bits, and an fp32 scale for 256 of them.{_STAYS}",
        NF4_DOUBLE,
    ),
    "mxfp4": WeightDtype(
        "MXFP4",
        "Experts in 4 bits with an 8-bit scale for each 32, everything else in 16 bits, as "
        "gpt-oss; where there are no experts, the matrices of the layers.",
        "mxfp4",
        recipe="experts",
    ),
    "nvfp4": WeightDtype(
        "NVFP4",
        f"4 bits with an fp8 scale for each 16; products in fp4.{_STAYS}",
        "nvfp4",
        product="fp4",
    ),
    "q8_0": _gguf("Q8_0", "Q8_0", "llama.cpp: 8.5 bits for every matrix."),
    "q6_k": _gguf("Q6_K", "Q6_K", "llama.cpp: 6.56 bits for every matrix."),
    "q5_k_m": _gguf("Q5_K_M", "Q5_K", "llama.cpp: 5.5 bits, 6.56 for half of the values and MLPs."),
    "q4_k_m": _gguf("Q4_K_M", "Q4_K", "llama.cpp: 4.5 bits, 6.56 for half of the values and MLPs."),
    "q4_k_s": _gguf("Q4_K_S", "Q4_K", "llama.cpp: 4.5 bits, 5.5 in the first layers."),
    "q4_0": _gguf("Q4_0", "Q4_0", "llama.cpp: 4.5 bits, one scale for each 32."),
    "iq4_xs": _gguf("IQ4_XS", "IQ4_XS", "llama.cpp: 4.25 bits from a table of values."),
    "q3_k_m": _gguf("Q3_K_M", "Q3_K", "llama.cpp: 3.44 bits, 4.5 or 5.5 for values and MLPs."),
    "q2_k": _gguf("Q2_K", "Q2_K", "llama.cpp: 2.63 bits, more for values, outputs and MLPs."),
}

AS_PUBLISHED = "auto"
SERVED_DTYPES: dict[str, Word] = {
    AS_PUBLISHED: Word(
        "As published",
        "As the model's config.json says (quantization_config); in bf16 where it says nothing.",
    ),
    **WEIGHT_DTYPES,
}


@dataclass(frozen=True, slots=True)
class StoredDtype(Word):
    """`bits` per value, scales included."""

    bits: float


KV_DTYPES = {
    "fp32": StoredDtype("fp32", "4 bytes per value.", 32),
    "bf16": StoredDtype("bf16", "2 bytes per value.", 16),
    "fp16": StoredDtype("fp16", "2 bytes per value.", 16),
    "fp8": StoredDtype("fp8", "1 byte per value, one scale per layer.", 8),
    "int8": StoredDtype("int8", "1 byte per value.", 8),
    "int4": StoredDtype(
        "int4",
        "4 bits, a scale and a zero in 16 bits for each 64, as transformers' QuantizedCache.",
        4 + 32 / 64,
    ),
    "q8_0": StoredDtype("Q8_0", "llama.cpp: 8 bits and a 16-bit scale for each 32.", 8.5),
    "q4_0": StoredDtype("Q4_0", "llama.cpp: 4 bits and a 16-bit scale for each 32.", 4.5),
}


@dataclass(frozen=True, slots=True)
class CacheManager(Word):
    """How cache memory is handed to sequences, and what goes with it.

    pages      blocks from one pool, as vLLM: its sampler, its padded vocabulary and its rotary
               table in 16 bits too
    dropped    tokens that a layer with a window keeps less than its window
    reserves   each sequence has room for its longest possible length from the start
    columns    tokens that the state of a short convolution has besides those that it needs
    state      dtype of a recurrence's state, or '' for what the model's config asks for
    """

    pages: bool = False
    dropped: int = 0
    reserves: bool = False
    columns: int = 0
    state: str = ""


KV_CACHES = {
    "paged": CacheManager(
        "Paged",
        "Blocks are handed out as sequences grow; only the last is part empty (vLLM).",
        pages=True,
    ),
    "contiguous": CacheManager(
        "Contiguous",
        "Each sequence reserves room for its longest possible length.",
        reserves=True,
        state="fp32",
    ),
    "dynamic": CacheManager(
        "Dynamic",
        "transformers' DynamicCache: grows by a copy for each token; a sliding layer keeps its "
        "window less one.",
        dropped=1,
        columns=1,
        state="fp32",
    ),
}


STATE_DTYPES = {  # of a recurrence, as vLLM's --mamba-ssm-cache-dtype chooses it
    "auto": Word("Auto", "What the model's config asks for, or else that of the weights."),
    "fp32": Word("fp32", "4 bytes per value."),
    "bf16": Word("bf16", "2 bytes per value."),
    "fp16": Word("fp16", "2 bytes per value."),
}

ARRIVALS = {
    "poisson": Word("Poisson", "Each by itself, at the rate on average."),
    "regular": Word("Regular", "One after the other, equally far apart."),
    "burst": Word("All at once", "Every request is there at the start: the rate does not matter."),
}

LENGTHS = {
    "lognormal": Word(
        "Log-normal", "Many short ones and few long ones, with the mean and variation given."
    ),
    "fixed": Word("Fixed", "Every prompt and every output has its mean length."),
}


@dataclass(frozen=True, slots=True)
class Strategy(Word):
    """How a server batches requests and hands out its cache.

    static    batches that run to their end; else a sequence leaves as soon as it ends
    reserve   'max', 'pow2' or 'oracle': what a sequence reserves at its start; '' for pages
    shares    whether pages of a prefix that all prompts have in common are kept once
    """

    static: bool = False
    reserve: str = ""
    shares: bool = False


# The three reservations are those that vLLM was compared with (Kwon et al. 2023, section 6.1).
STRATEGIES = {
    "static": Strategy(
        "Static batches",
        "A batch runs until its last sequence ends; each reserves the longest sequence.",
        static=True,
        reserve="max",
    ),
    "max": Strategy(
        "Longest reserved",
        "Continuous batching; each sequence reserves the longest sequence, in one piece.",
        reserve="max",
    ),
    "pow2": Strategy(
        "Power of two reserved",
        "Continuous batching; the output's length is guessed to the next power of two.",
        reserve="pow2",
    ),
    "oracle": Strategy(
        "Exact length reserved",
        "Continuous batching that knows each output's length beforehand, which no server does.",
        reserve="oracle",
    ),
    "paged": Strategy(
        "Paged", "Continuous batching; blocks are handed out as sequences grow (PagedAttention)."
    ),
    "shared": Strategy(
        "Paged, prefix shared",
        "The same, and the blocks of the prefix that all prompts share are kept and computed once.",
        shares=True,
    ),
}


SERVE_OFFLOAD = {
    "none": Word("No", "In the GPU's memory."),
    "cpu": Word(
        "Host DRAM",
        "In the host's memory, fetched layer by layer for each step over PCIe (transformers' "
        "OffloadedCache); the GPU has two layers of what runs.",
    ),
}


@dataclass(frozen=True, slots=True)
class Runtime(Word):
    """What starts the kernels. `layer`: what a layer takes between them; `launches`: the host
    starts each by itself, and a step takes no less than that."""

    layer: Constant
    launches: bool = False


RUNTIMES = {
    "graphs": Runtime(
        "CUDA graphs",
        "An engine with graphs for decoding, as vLLM, SGLang and TensorRT-LLM.",
        constants.LAYER_GRAPHS,
    ),
    "compiled": Runtime(
        "Compiled whole",
        "The model compiled into one graph of fused kernels, as gpt-fast.",
        constants.LAYER_COMPILED,
    ),
    "native": Runtime("Native", "A program without Python, as llama.cpp.", constants.LAYER_NATIVE),
    "eager": Runtime(
        "Eager",
        "transformers' generate: Python starts each kernel, which small batches wait for.",
        constants.HOST_LAUNCH,
        launches=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Prefill(Word):
    """`chunked`: with the tokens of those that generate; `elsewhere`: on GPUs of its own."""

    chunked: bool = False
    elsewhere: bool = False


PREFILLS = {
    "whole": Prefill("Whole", "A prompt in one forward, which those that generate wait for."),
    "chunked": Prefill(
        "Chunked",
        "A prompt in pieces, each in one step with a token of all that generate, batched tokens "
        "together.",
        chunked=True,
    ),
    "disaggregated": Prefill(
        "Disaggregated",
        "On another replica, which sends the cache over: nobody waits, and every replica that "
        "generates needs one that reads.",
        elsewhere=True,
    ),
}

# What else runs on the GPUs that train, and where each part of it rests meanwhile.
TOGETHER = {
    "none": Word("Nothing", "The GPUs only train, or only serve."),
    "evaluation": Word(
        "Evaluation",
        "Between steps an engine generates with the trained weights; nothing else is kept.",
    ),
    "grpo": Word(
        "GRPO",
        "Each step generates rollouts, scores them with a frozen reference, and updates the "
        "policy: a group of rollouts is its own baseline.",
    ),
    "ppo": Word(
        "PPO",
        "As GRPO, with a critic that is trained too: the policy's layers under a head of one "
        "number for each token, with gradients and optimizer states of its own.",
    ),
}

ASLEEP = {
    "all": Word(
        "Weights and cache",
        "Both are dropped while the trainer computes, and the weights handed over anew "
        "(vLLM's sleep level 2, verl's free_cache_engine).",
    ),
    "cache": Word("Cache", "The KV cache is freed, the engine's weights stay."),
    "nothing": Word("Nothing", "Engine weights and KV cache stay while the trainer computes."),
}

TRAINER = {
    "stays": Word("On the GPU", "Training states stay while rollouts are generated."),
    "host": Word(
        "In host DRAM",
        "Training states leave for the host while rollouts are generated (verl's param_offload "
        "and optimizer_offload).",
    ),
}

FROZEN = {
    "none": Word("None", "There is no such model, or a rule or another machine takes its place."),
    "gpu": Word("On the GPU", "Its weights rest on the GPUs, cut as the framework cuts them."),
    "host": Word("In host DRAM", "Its weights come to the GPUs for its forward alone."),
}
