"""Training: the words of a plan that choose how a step is run, as tables.

To add one, add a row; a word that needs new behaviour gets it where its table is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memcore.words.precision import BY_ROW, BY_TENSOR, PRECISIONS, UNMASTERED, EightBit, Precision
from memcore.words.word import Word

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
    rows: bool = False
    to_end: bool = False
    by_hand: bool = False
    threads: bool = False

    @property
    def own(self) -> bool:
        """Whether it runs layers of its own alone, which ranks cut in its own ways."""
        return "hf" not in self.kernels


FRAMEWORKS = {
    "pytorch": Framework(
        "PyTorch (DDP)",
        "One full copy per GPU; gradients are averaged with DistributedDataParallel. ZeRO 1 is "
        "torch's ZeroRedundancyOptimizer.",
        zero=(0, 1),
        copies=UNMASTERED
        | {
            "fp16-mixed": Precision("fp16", "fp16", "fp16", "fp16", "fp32", "fp32", scaled=True),
            "bf16-mixed": Precision("bf16", "bf16", "bf16", "bf16", "fp32", "fp32"),
        },
        plain=True,
        rows=True,
        by_hand=True,
    ),
    "megatron": Framework(
        "Megatron-LM",
        "megatron.core with Transformer Engine's kernels: gradients are summed in a buffer, as a "
        "rule in fp32. ZeRO 1 is its distributed optimizer, ZeRO 3 Megatron-FSDP.",
        zero=(0, 1, 3),
        copies={
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
                )
            },
        },
        kernels=("megatron",),
        gathers=3,
        shards=3,
        one_dtype=True,
        to_end=True,
    ),
    "fsdp2": Framework(
        "PyTorch FSDP2",
        "torch.distributed.fsdp.fully_shard on each layer. ZeRO 3 reshards after forward, ZeRO 2 "
        "keeps the gathered layers until backward, ZeRO 0 replicates (a shard group of one).",
        zero=(0, 2, 3),
        copies=UNMASTERED
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
        plain=True,
        gathers=0,  # of one rank without ZeRO
        shards=2,
        hybrid=True,
        one_dtype=True,
        as_floats=True,
    ),
    "deepspeed": Framework(
        "DeepSpeed",
        "deepspeed.initialize: 16-bit weights in flat groups, fp32 master copies and moments of "
        "the own partition, gradients reduced in buckets. ZeRO 3 gathers weights ahead of use, up "
        "to stage3_max_live_parameters of them.",
        zero=(0, 1, 2, 3),
        copies={
            "bf16-mixed": Precision("bf16", "bf16", "bf16", "bf16", "fp32", "fp32"),
            "fp16-mixed": Precision("fp16", "fp16", "fp16", "fp16", "fp32", "fp32"),
        },
        gathers=3,
        shards=3,
        nvme=True,
        flat=True,
        one_dtype=True,
        threads=True,
    ),
}

COPIES = {
    (name, word): framework.copies[word]
    for name, framework in FRAMEWORKS.items()
    for word in PRECISIONS
    if word in framework.copies
}


def eight_bit(framework: str, precision: str) -> EightBit | None:
    """What linear products read, where that is 8 bits."""
    copies = COPIES.get((framework, precision))
    return copies.eight_bit if copies else None


def float8(framework: str, precision: str) -> str:
    """How torchao scales what linear products read in 8 bits, or ''."""
    copies = COPIES.get((framework, precision))
    return copies.float8 if copies else ""


def multiple(framework: str, precision: str) -> int:
    """What tokens and widths of products in 8 bits are multiples of; 1 where none are."""
    how = eight_bit(framework, precision)
    return how.multiple if how else 16 if float8(framework, precision) else 1


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
        "PyTorch's default, segments of fixed sizes, between which gaps remain: as its rules make "
        "of the step's tensors, but under Megatron-FSDP and with one micro-batch beside another, "
        "where it may be half as much again as with expandable segments.",
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

GRADIENTS = {
    "freed": Word("Freed", "zero_grad() drops them after each step, PyTorch's default."),
    "kept": Word("Kept", "zero_grad(set_to_none=False) keeps them, through forward too."),
}

NO_LAYER, EMBEDDINGS, LOWER, SEEING = "none", "embeddings", "lower", "tower"
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
    SEEING: Word(
        "What reads images",
        "The tower and what leads from it to the text, as LLaMA-Factory and ms-swift train by "
        "default. Where layers are checkpointed transformers asks for a gradient of what every "
        "embedding makes, that of patches too, and backward runs through the tower all the same.",
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

IN_16_BITS, AS_LOADED = "16-bit", "loaded"
REFERENCES = {
    "none": Word("None", "No second model is there, or its log-probabilities were made before."),
    IN_16_BITS: Word(
        "In 16 bits",
        "A copy in the dtype that products run in, as LLaMA-Factory, axolotl, ms-swift and "
        "OpenRLHF load it.",
    ),
    AS_LOADED: Word(
        "As the weights",
        "A copy in the dtype in which the trained weights rest: TRL loads both alike.",
    ),
}

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
    "lora-8bit": Adapter(
        "LoRA over 8 bits",
        "LoRA over frozen weights in 8 bits (load_in_8bit: LLM.int8 of bitsandbytes). Inputs are "
        "made 8 bits too for the product of forward; backward widens the weight. bitsandbytes "
        "holds every product's input until backward is over, though nothing reads it.",
        INT8,
    ),
}

ALL_LINEAR = "all-linear"
LORA_TARGETS = {
    "attention": Word("Queries and values", "q and v, or the joint projection: PEFT's default."),
    "attention-all": Word("Attention", "Queries, keys, values and the output projection."),
    ALL_LINEAR: Word(
        "All linear",
        "Every linear layer but the head; of experts under Megatron, which have one adapter "
        "together.",
    ),
}


def listed(modules: str) -> tuple[str, ...]:
    """The names in a plan's list of modules, each once; () where it has none."""
    if modules.strip() in ("", NO_LAYER):
        return ()
    names = (name.strip() for name in modules.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


ADAPTER_DTYPES = {
    "fp32": Word("fp32", "PEFT's default (autocast_adapter_dtype): fp32 beside 16-bit weights."),
    "base": Word("As the weights", "As litgpt and torchtune have them, and FSDP2's groups want."),
}

AUTO, FP32, BASE = "auto", "fp32", "base"
UNQUANTIZED_DTYPES = {
    AUTO: Word(
        "As PEFT does",
        "fp32 beside fp32 adapters, as PEFT trains them; as loaded beside others, as litgpt and "
        "torchtune do.",
    ),
    FP32: Word(
        "fp32",
        "PEFT's prepare_model_for_kbit_training casts embedding, norms, biases and head to fp32: "
        "the residual stream, the checkpointed inputs and the logits are fp32 then.",
    ),
    BASE: Word("As loaded", "In the precision's own dtype, as the model was loaded."),
}

EACH_ROW = "alltoall"
DISPATCHERS = {
    EACH_ROW: Word(
        "All-to-all",
        "A token is sent once for each of its experts (MoEAlltoAllTokenDispatcher).",
    ),
    "deepep": Word(
        "DeepEP",
        "A token is sent once to each node that has any of its experts, and there once to each "
        "GPU that has (--moe-token-dispatcher-type flex).",
    ),
    "hybridep": Word("HybridEP", "As DeepEP, with fast links over more GPUs than a node has."),
}

FREED, KEPT = "freed", "kept"
OUTPUTS = {
    AUTO: Word(
        "As the loop does",
        "Kept where PEFT's adapters are trained without autocast by PyTorch alone, as in PEFT's "
        "own examples; freed elsewhere.",
    ),
    FREED: Word(
        "Freed",
        "The training loop has the loss alone (transformers' Trainer, torchtitan): the logits are "
        "gone when the loss is computed.",
    ),
    KEPT: Word(
        "Kept",
        "`outputs = model(**batch); outputs.loss.backward()`: the logits stay until the "
        "optimizer has stepped.",
    ),
}

MODULES, OPERATIONS, LAYER = "modules", "operations", "layer"
TO_END = ", to its end"  # behind one of these: not early_stop


@dataclass(frozen=True, slots=True)
class Checkpointing(Word):
    """`recompute`: which part of a layer is run again in backward.

    ''           nothing
    MODULES      those of RECOMPUTE_MODULES that the plan names
    OPERATIONS   the layer but for the products that KEPT_PRODUCTS names
    LAYER        the layer
    """

    recompute: str


# Operations whose results 'selective-op' keeps, and every how many-th of them: the policy of
# torchtitan's SelectiveAC (torchtitan/distributed/activation_checkpoint.py, 2026-08) for
# torch.utils.checkpoint.create_selective_checkpoint_contexts. 'attention' is PyTorch's own; the
# flash_attn package is not on its list. What is kept of a collective is not sent again.
REDUCED = "reduce-scatter"
KEPT_PRODUCTS = {"mm": 2, "addmm": 1, "bmm": 1, "attention": 1, REDUCED: 1}

CHECKPOINTING = {
    "none": Checkpointing("None", "Keep every tensor that backward needs.", ""),
    "selective": Checkpointing(
        "Selective (attention core)",
        "Run attention again in backward, from queries, keys and values to its output, for a few "
        "per cent more compute. With eager attention what is quadratic in the sequence is not "
        "kept; SDPA and FlashAttention keep nothing of the kind, so that it saves next to nothing. "
        "Megatron runs other modules again too (recompute_modules).",
        MODULES,
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

CORE_ATTN = "core_attn"
MOE_ACT, LAYERNORM, MLA_UP_PROJ = "moe_act", "layernorm", "mla_up_proj"
MLP, MOE, SHARED_EXPERTS = "mlp", "moe", "shared_experts"
# What each keeps: megatron/core/transformer/transformer_config.py: recompute_modules (0.16).
RECOMPUTE_MODULES = {
    CORE_ATTN: Word(
        "Attention core", "From queries, keys and values to the joined heads, which are kept."
    ),
    MOE_ACT: Word(
        "Activation of experts",
        "The product that the second matrix of each expert reads is dropped, and made again.",
    ),
    LAYERNORM: Word(
        "Norms",
        "What the norms before latent attention and before experts make is dropped, and made "
        "again. Elsewhere a norm is part of the product behind it, and stays.",
    ),
    MLA_UP_PROJ: Word(
        "Expansion of latents",
        "Queries, keys and values of latent attention are dropped, and made again of the "
        "compressed ones.",
    ),
    MLP: Word("Dense MLP", "Of a layer without experts, its norm with it: its input is kept."),
    MOE: Word(
        "Experts",
        "Router, dispatch, experts and combination: their input is kept, and rows are sent again.",
    ),
    SHARED_EXPERTS: Word("Shared experts", "The MLP that every token passes: its input is kept."),
}

FULL_ITERATION, ATTN = "full_iteration", "attn"
MOE_ROUTER, MOE_PREPROCESS = "moe_router", "moe_preprocess"
# What each captures: megatron/core/transformer/cuda_graphs.py, and docs/user-guide/features/
# cuda_graph.md of Megatron-LM (0.17). `moe`, of experts with a capacity, is not among them.
CUDA_GRAPHS = {
    FULL_ITERATION: Word(
        "Whole iteration",
        "All forwards and backwards of a step are one graph, with what ranks send; the optimizer "
        "is not in it. No mixture has it: how many rows an expert gets is not known before.",
    ),
    ATTN: Word("Attention", "The norm before it, attention, and what it is added to."),
    MLP: Word("Dense MLP", "Of a layer without experts, with its norm."),
    MOE_ROUTER: Word("Router", "With the norm before it; shared experts are planned outside."),
    MOE_PREPROCESS: Word(
        "Preprocessing of rows",
        "The counts of rows, and the rows in the order that they are sent in. They are a result of "
        "the graph, so that their memory is free again only behind the layer's backward.",
    ),
}

UNIFORM, BLOCK = "uniform", "block"
RECOMPUTE_METHODS = {
    UNIFORM: Word(
        "Uniform",
        "So many layers each share a checkpoint: the input of the first is kept, and all of them "
        "run again before the last one's backward.",
    ),
    BLOCK: Word(
        "Block", "So many layers at the front of each stage run again, one by one; no others do."
    ),
}

# How micro-batches pass through the stages of a pipeline.
GPIPE, ZERO_BUBBLE = "gpipe", "zero-bubble"
SCHEDULES = {
    "1f1b": Word(
        "1F1B",
        "One forward, one backward in turn: stage r of p has p - r micro-batches in flight. With "
        "virtual stages it is interleaved.",
    ),
    GPIPE: Word("GPipe", "All forwards, then all backwards: every micro-batch is in flight."),
    ZERO_BUBBLE: Word(
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
    "cudnn": Attention(
        "SDPA with cuDNN",
        "What SDPA runs on Hopper and B200 in PyTorch 2.11, with cuDNN 9.15 or newer (2.9 ran "
        "FlashAttention): the same tensors, about twice as fast.",
    ),
}
FLASH_3, CUDNN = "flash3", "cudnn"
KEEPS_LIKE = {FLASH_3: "flash", CUDNN: "sdpa"}  # attention that keeps the same tensors as another

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
