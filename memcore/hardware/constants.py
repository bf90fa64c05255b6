"""Constants that no shape determines: read off real runs, or assumed. Each with its source.

A run that a constant was read off says so in presets/evidence/measured.toml (used_for = "tuned");
every other run there is only checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from memcore.cache import cached
from memcore.units import GB, GiB, MiB


@dataclass(frozen=True, slots=True)
class Constant:
    """An interval of a quantity; low equals high where one figure is known."""

    name: str
    low: float
    high: float
    unit: str
    certainty: str  # 'measured' or 'assumed'
    source: str

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


def exactly(name: str, value: float, unit: str, certainty: str, source: str) -> Constant:
    """One figure."""
    return Constant(name, value, value, unit, certainty, source)


ALLOCATOR_SLACK = Constant(
    "reserved / allocated, PyTorch, DDP, Megatron and DeepSpeed below ZeRO 3",
    1.025,
    1.10,
    "ratio",
    "measured",
    "peak reserved over peak allocated of eight Megatron runs on B200, published with SimuMax "
    "(docs/b200, release v1.2): 1.028 to 1.093, median 1.04. They had the native allocator; "
    "expandable segments leave no more than it does",
)
ALLOCATOR_SLACK_FSDP2 = Constant(
    "reserved / allocated, FSDP2",
    1.12,
    1.27,
    "ratio",
    "measured",
    "five runs of torchtitan over our allocated bytes: Llama 3.1 8B on 8 and 128 H100 and 32 H200, "
    "Qwen3 32B with one and two sequences: 1.146 to 1.256, widened by 1 to 2 %. All-gathers and "
    "reduce-scatters on streams of their own leave gaps that plain training does not",
)
ALLOCATOR_SLACK_ZERO_3 = Constant(
    "reserved / allocated, DeepSpeed, ZeRO 3",
    1.00,
    1.10,
    "ratio",
    "measured",
    "eight runs of Llama 3.1 8B on 8 H200 and B200 (stas00/ml-engineering, "
    "insights/when-to-upgrade-gpus): ZeRO 3 with the optimizer on the host, 8,192 to 262,144 "
    "tokens, together with what the streams hold; chosen with all eight in view. They had the "
    "native allocator (benchmark.py sets none)",
)
NATIVE_SEGMENTS = Constant(
    "reserved by the native allocator / with expandable segments",
    1.0,
    1.51,
    "ratio",
    "assumed",
    "no shape says it. Three pairs that were published for what they saved: 16.39 and 10.83 GiB "
    "(torchtune issue 1185, QLoRA of Llama 3 8B on an A100), 126.97 and 96.61 GB (cosmos-rl pull "
    "request 388, Qwen2.5 7B), 37 and 27 GB (axolotl pull request 2183); others save nothing. "
    "STAlloc (arXiv 2507.16274) finds up to 43 % of memory lost in gaps",
)
NATIVE_RULES = Constant(
    "segments and gaps of the native allocator, over its rules",
    0.955,
    1.095,
    "ratio",
    "measured",
    "reserved in 74 runs over what the rules of c10/cuda/CUDACachingAllocator.cpp make of our "
    "tensors: 36 of our own on an H100 0.97 to 1.07, half of them 0.999 to 1.001; 23 of LoRA and "
    "QLoRA on a T4 (fitcheck-llm 0.3.1) 0.86 to 1.07, 11 of Megatron on B200 (SimuMax) 1.02 to "
    "1.10, of which three have pipelines, four on two GPUs or eight (fsdp_qlora, "
    "stas00/ml-engineering) 1.08 to 1.15; 70 of them inside. The low end is the T4's alone",
)
NATIVE_RULES_FSDP2 = Constant(
    "segments and gaps of the native allocator, over its rules for one stream, FSDP2",
    1.045,
    1.205,
    "ratio",
    "measured",
    "six runs of LoRA and QLoRA of Llama 2 7B and Yi 34B under FSDP on two RTX 3090 (fsdp_qlora, "
    "benchmarks_03_2024.md): 1.046 to 1.201, median 1.13. Weights that are gathered, and gradients "
    "that are reduced, lie on streams of their own, whose blocks no other stream can use",
)
STREAM_POOLS = Constant(
    "held by DeepSpeed's gather and reduce streams",
    1.34,
    1.68,
    "times the weights gathered at once",
    "measured",
    "read off the same runs. All-gathers and reductions allocate on streams of their own, "
    "whose blocks no other stream can use, and which run ahead of the GPU",
)
CUBLAS_WORKSPACE = exactly(
    "cuBLAS workspace of one thread, before Hopper",
    8_519_680,
    "bytes",
    "measured",
    "PyTorch's default for CUBLAS_WORKSPACE_CONFIG, :4096:2:16:8 (aten/src/ATen/cuda/"
    "CublasHandlePool.cpp), which cuBLASLt shares. The threads of forward and of backward have one "
    "each, and torch.cuda.memory_allocated counts both: 23 runs on a T4 have 16.3 MiB more than "
    "their tensors at least",
)
CUBLAS_WORKSPACE_HOPPER = exactly(
    "cuBLAS workspace of one thread, Hopper and later",
    32 * MiB,
    "bytes",
    "measured",
    "as before Hopper, with :4096:8. Forward's and backward's together: 64.1 MiB more than their "
    "tensors in a log of torchtitan, 64.1 to 70.1 in 30 of 36 runs of our own on an H100",
)
LARGE_WORKSPACE = ("Hopper", "Blackwell")  # architectures that PyTorch gives the larger one


def cublas_workspace(architecture: str) -> Constant:
    """Of one thread, on a GPU of NVIDIA's."""
    large = architecture.startswith(LARGE_WORKSPACE)
    return CUBLAS_WORKSPACE_HOPPER if large else CUBLAS_WORKSPACE


CUDA_CONTEXT = Constant(
    "CUDA context and loaded kernels",
    0.3 * GiB,
    0.6 * GiB,
    "bytes",
    "measured",
    "0.55 GB before any communication (stas00/ml-engineering, torch-distributed memory); "
    "0.25 to 0.35 GiB outside torch in vLLM start-up logs on one GPU",
)
CONTEXT_PER_SM = Constant(
    "CUDA context, of each multiprocessor, with what a small GPU has besides",
    1.9 * MiB,
    4 * MiB,
    "bytes",
    "measured",
    "141 MiB on a T4 with 40 of them, by 23 runs (fitcheck-llm 0.3.1), 0.55 GB on one of 108 or "
    "more; kernels load as they are used since CUDA 11.7, and stacks are as many as "
    "multiprocessors",
)
CONTEXT_ALONE = Constant(
    "CUDA context without what multiprocessors add",
    64 * MiB,
    120 * MiB,
    "bytes",
    "measured",
    "as before",
)
CONTEXT_WHOLE = Constant(
    "CUDA context, kernels loaded as they are used or all at first",
    0.3 * GiB,
    1573 * MiB,
    "bytes",
    "measured",
    "the low end as on other GPUs; before CUDA 11.7 all kernels were loaded with their library: "
    "more than 1,000 MB (pytorch/pytorch issue 107667), 1,573 MiB on the A100 of BLOOM's trials",
)
NCCL_BUFFERS = Constant(
    "NCCL buffers",
    0.3 * GiB,
    1.45 * GB,
    "bytes",
    "measured",
    "1.45 GB more after the first barrier on two GPUs (stas00/ml-engineering); the low end is "
    "assumed",
)
NCCL_GROUP = Constant(
    "NCCL buffers of a further group of ranks",
    24 * MiB,
    688 * MiB,
    "bytes",
    "measured",
    "seven groups of ranks that one of four A100 is in, over NVLink, one after the other: 544 MiB "
    "more with two ranks each, 688 with three or four (NVIDIA/nccl issue 964). By its code a "
    "channel has 12 MiB of buffers for each connection: 0.5 for LL, 4.7 for LL128, 4 for Simple "
    "(src/init.cc: computeBuffSizes), on pages of 2. Over PCIe there are two channels and one "
    "connection at least, over NVLink 24 or so and two to three (ring and tree). All-to-all has "
    "more, which is not counted: 3.3 GB on eight H100 (issue 1685)",
)
OS_SHARE = Constant(
    "operating system in the same memory",
    0.7 * GiB,
    2.5 * GiB,
    "bytes",
    "assumed",
    "Linux without and with a desktop; the memory is one for CPU and GPU",
)
NON_TORCH = Constant(
    "outside PyTorch, of what starting adds",
    0.01 * GiB,
    0.35 * GiB,
    "bytes",
    "measured",
    "vLLM start-up logs of nine runs on one GPU: non_torch_memory, without the CUDA context, which "
    "is there before its profile begins (vllm/worker/worker.py)",
)
NON_TORCH_GROUP = Constant(
    "outside PyTorch, of what starting adds to one of several GPUs",
    0.20 * GiB,
    0.30 * GiB,
    "bytes",
    "measured",
    "vLLM start-up logs of three runs over PCIe (2 and 4 GPUs), NCCL included; with NVLink more "
    "was logged by an older profile (3.58 GiB), which is not used",
)
CUDA_GRAPHS = Constant(
    "CUDA graphs",
    0.27 * GiB,
    2.24 * GiB,
    "bytes",
    "measured",
    "vLLM start-up logs of four models, 14B to 671B: 0.27, 0.51, 0.64 and 2.24 GiB; captured after "
    "the cache was laid out, so that no budget counts them",
)
SAMPLER_LOGITS = exactly(
    "fp32 logits of every sequence that a sampler holds at once",
    9.7,
    "copies",
    "measured",
    "vLLM sorts, sums and masks the logits of its dummy run: 1.40 GiB for 256 sequences and a "
    "vocabulary of 151,936, logged twice for Qwen2.5-Math-1.5B",
)


TILE_ON_DIAGONAL = exactly(
    "a tile of attention that is whole on the diagonal of a causal mask", 128, "keys", "assumed",
    "FlashAttention's tiles of queries; of kernels whose rate by length nobody printed, such as "
    "SDPA's on GPUs before Ampere, which have no FlashAttention",
)  # fmt: skip
ATTENTION_START = Constant(
    "what a tile of attention takes to begin and end behind a causal mask, as if its row were so "
    "much longer", 830, 1250, "keys", "measured",
    "kernels alone, 1 / (share of the peak) as a line over 1 / tokens: cuDNN on our H100 with "
    "2,048 to 16,384 tokens 830 forward and 1,250 with backward (presets/evidence/kernels.csv), on "
    "a B200 with 1,024 to 16,384 tokens 900, FlashAttention 4 there 1,160 (Dao-AILab/"
    "flash-attention pull request 2605). The tile on the diagonal, which is whole, and rows of "
    "unequal length are in it. No step was fitted",
)  # fmt: skip
ATTENTION_START_WHOLE = Constant(
    "the same without a mask", 170, 330, "keys", "measured",
    "as before: cuDNN on a B200 200 forward (Dao-AILab/flash-attention pull request 2605); "
    "FlashAttention 2 on an H100 with backward 330 (pull request 2688), on an RTX A5000 180 "
    "(gpu-mode/ring-attention issue 10)",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the datasheet's peak that an architecture's kernels reach in training.

    own_attention   Transformer Engine's, which has cuDNN's kernels
    whole        of products in fp32
    picojoules   board power over peak bf16 FLOP/s of the GPU that they were read off
    begins   share of TILE_START that a tile takes: 0 where units run from one into the next
    masked, unmasked   what a tile of attention takes to begin and end, in keys
    """

    matmul: Constant
    eight: Constant
    attention: Constant
    own_attention: Constant
    whole: Constant
    picojoules: float
    begins: float = 1.0
    masked: Constant = TILE_ON_DIAGONAL
    unmasked: Constant = TILE_ON_DIAGONAL

    @property
    def shares(self) -> tuple[Constant, ...]:
        return self.matmul, self.eight, self.attention, self.own_attention, self.whole

    def of(self, dtype: str) -> Constant:
        """Of products in a dtype that is not of 8 bits."""
        return self.whole if dtype == "fp32" else self.matmul


Share = tuple[float, int]  # of the peak, and the steps that it was fitted on


def _reached(
    of: str, matmul: Share, eight: Share, attention: Share, own: Share, picojoules: float = 0.0
) -> Efficiency:
    def share(what: str, value: float, steps: int) -> Constant:
        name = f"{what}, {of}, share of peak FLOP/s"
        certainty, source = ("measured", f"{steps} steps: {FIT}") if steps else ("assumed", BETWEEN)
        return exactly(name, value, "ratio", certainty, source)

    products = share("matrix products", *matmul)
    return Efficiency(
        products,
        share("8-bit matrix products", *eight),
        share("attention kernels", *attention),
        share("Transformer Engine's attention", *own),
        products,
        picojoules,
    )


def _flash(reached: Efficiency) -> Efficiency:
    """Of an architecture whose attention is FlashAttention's or cuDNN's kernel."""
    return replace(reached, masked=ATTENTION_START, unmasked=ATTENTION_START_WHOLE)


FIT = (
    "least squares over the step times marked 'tuned' in presets/evidence/times.toml, all such "
    "constants together, and over no others. On Hopper those runs have FlashAttention 2 and older; "
    "FlashAttention 3 reaches two to three times as much"
)
BETWEEN = (
    "no run of this architecture was fitted: a value between those that were, or that of the next "
    "of kin"
)
OTHER = _reached("other architectures", (0.70, 0), (0.70, 0), (0.30, 0), (0.30, 0))
SYSTOLIC = Constant(
    "matrix products, TPU, share of peak FLOP/s", 0.923, 0.97, "ratio", "assumed",
    "XLA's products in bf16 on a TPU v5e, as JAX's documentation prints them "
    "(docs/pallas/tpu/matmul.ipynb): 92.3 % with 8,192 rows, columns and sums, the call by the "
    "host included; 97 % with 4,096, less the 0.11 ms by which one of 1,024 is longer than its "
    "arithmetic. Taken for every TPU; no step was fitted",
)  # fmt: skip
CDNA_3 = exactly(
    "8-bit matrix products, CDNA 3, share of peak FLOP/s", 0.42, "ratio", "assumed",
    "LoRA of Llama 2 70B on 8 MI300X (MLPerf Training v5.0, presets/evidence/times.toml); the same "
    "on 16 and 32 was not used, and is 2 and 20 % slower than with it",
)  # fmt: skip
CDNA_4 = exactly(
    "8-bit matrix products, CDNA 4, share of peak FLOP/s", 0.60, "ratio", "assumed",
    "between Llama 3.1 8B on 8 MI350X and on 8 MI355X (MLPerf Training v5.1, presets/evidence/"
    "times.toml), of which neither was fitted",
)  # fmt: skip
ULTRA_ATTENTION = exactly(
    "attention kernels, Blackwell Ultra, share of peak FLOP/s", 0.57, "ratio", "assumed",
    "1.45 times that of Blackwell: units for exponentials are twice as fast (10.7 for 5 T/s, "
    "NVIDIA, Inside NVIDIA Blackwell Ultra), which forward waits for and backward in part. No step "
    "was fitted, and steps do not tell it from products in 8 bits",
)  # fmt: skip
TURING = exactly(
    "16-bit matrix products, Turing, share of peak FLOP/s", 0.43, "ratio", "assumed",
    "a T4 under its limit of 70 W: 24 TFLOP/s of cuBLAS's products in fp16 with 4,096 rows, "
    "columns and sums, one after the other (https://forums.developer.nvidia.com/t/about-gpu-peak-"
    "performance/264462). LoRA's steps on a T4 say 0.44, which were not used",
)  # fmt: skip
TURING_FP32 = exactly(
    "fp32 matrix products, Turing, share of peak FLOP/s", 0.67, "ratio", "measured",
    f"10 steps: {FIT}. Adapters in fp32, and all around 4-bit weights",
)  # fmt: skip
# Hopper's steps do not tell Transformer Engine's attention from its 8-bit products: 0.5 to 0.73 fit
# as well. Such kernels reach 0.57 in backward and 0.66 forward (Shah et al. 2024).
EFFICIENCIES = {
    "Ampere": _flash(_reached("Ampere", (0.90, 19), (0.90, 0), (0.315, 8), (0.315, 0), 1.28)),
    "Hopper": _flash(_reached("Hopper", (0.66, 16), (0.72, 5), (0.20, 8), (0.65, 8), 0.708)),
    "Blackwell Ultra": replace(
        _flash(_reached("Blackwell Ultra", (0.465, 0), (0.74, 5), (0.57, 0), (0.57, 0), 0.444)),
        attention=ULTRA_ATTENTION,
        own_attention=ULTRA_ATTENTION,
    ),
    "Blackwell": _flash(
        _reached("Blackwell", (0.465, 14), (0.59, 9), (0.395, 0), (0.395, 14), 0.444)
    ),
    "CDNA 3": replace(OTHER, eight=CDNA_3),
    "CDNA 4": replace(OTHER, eight=CDNA_4),
    "Turing": replace(
        _reached("Turing", (0.43, 0), (0.43, 0), (0.26, 6), (0.26, 0)),
        matmul=TURING,
        whole=TURING_FP32,
    ),
    "Volta": _reached("Volta, as Ampere", (0.90, 0), (0.90, 0), (0.315, 0), (0.315, 0)),
    # The next blocks of a product are on their way while units work: 4,096 sums lose nothing.
    "TPU": replace(OTHER, matmul=SYSTOLIC, eight=SYSTOLIC, whole=SYSTOLIC, begins=0.0),
}


@cached
def efficiency(architecture: str) -> Efficiency:
    """Of a GPU of this architecture, in training. Servers have their own (hardware/kernels.py)."""
    return next((e for name, e in EFFICIENCIES.items() if architecture.startswith(name)), OTHER)


FOUR_BITS = exactly(
    "4-bit matrix products, share of peak FLOP/s", 0.50, "ratio", "assumed",
    "engines' products in fp4 on Blackwell reach 0.5018 (presets/evidence/engines.toml). No step "
    "was fitted",
)  # fmt: skip
FLASH_3 = Constant(
    "FlashAttention 3, Hopper, share of peak FLOP/s", 0.58, 0.66, "ratio", "assumed",
    "Shah et al. 2024, figures 5 and 6, heads of 128 on an H100: with 16,384 tokens backward 561 "
    "TFLOP/s, forward behind a causal mask 616, and more by what tiles take to begin and end; the "
    "middle is used for both, and no step was fitted",
)  # fmt: skip
CUDNN_ATTENTION = Constant(
    "SDPA with cuDNN, Hopper, share of peak FLOP/s", 0.54, 0.58, "ratio", "measured",
    "four shapes of our own on an H100 with backward, heads of 128 and 2,048 to 16,384 tokens "
    "(benchmarks/kernels.py, PyTorch 2.11, cuDNN 9.15 or newer, presets/evidence/kernels.csv): "
    "0.36 to 0.52, and 0.54 to 0.58 without what tiles take to begin and end; heads of 64 and 256 "
    "reach less. No step was fitted",
)  # fmt: skip
SCAN = Constant(
    "scans over states in chunks, share of peak FLOP/s", 0.05, 0.13, "ratio", "assumed",
    "Dao and Gu 2024 (Mamba-2), figure 10: on an A100 as fast as FlashAttention 2 at 2,000 tokens, "
    "where it has a quarter to an eighth of its FLOPs; the middle is used for every GPU and every "
    "such kernel, and no measured step was held against it",
)  # fmt: skip
MISALIGNED = exactly(
    "head's products in 16 bits where the vocabulary is no multiple of 8, times as long", 3,
    "ratio", "measured",
    "Netflix, Scaling LLM Post-Training at Netflix (2026): a vocabulary that was made longer fell "
    "from cuBLAS back to CUTLASS, which tripled the time of the head. Nothing was fitted",
)  # fmt: skip
# bitsandbytes 0.50.2's kOptimizerStatic8bit2StateBlockwise of Adam in bf16, as compiled for sm_90,
# a parameter for each thread: what it starts, how often it asks the shared memory, and how many of
# these at random places, each of which then takes as many cycles as the fullest bank has lanes (of
# 32 in 32 banks 3.53 on average). The shared memory serves one warp in a cycle, four are started.
_STARTED, _SHARED, _AT_RANDOM, _FULLEST, _WARPS = 519, 75, 14, 3.53, 4
_SLOTS = _STARTED + _WARPS * (_SHARED - _AT_RANDOM + _AT_RANDOM * _FULLEST)
_OF_A_SLOT = 16 / 2 / _SLOTS  # FLOPs of such an update, over those of the fp32 units meanwhile
_COUNTED = (
    "counted in what bitsandbytes 0.50.2 is compiled to for sm_90 (cuobjdump -sass of "
    "kOptimizerStatic8bit2StateBlockwise): 519 instructions for each parameter, and 75 for shared "
    "memory, 14 of them at places that the moments decide, taken as random. 14 barriers in blocks "
    "of 256 parameters keep one from hiding the other, so that they are added. Nothing was fitted: "
    "on an H100 29 ps a parameter, four steps of our own take 33 to 41"
)
UPDATE_8_BIT = exactly(
    "update of 8-bit moments, share of the fp32 units' FLOP/s", _OF_A_SLOT, "ratio",
    "assumed", _COUNTED,
)  # fmt: skip
UPDATE_8_BIT_HALF = exactly(
    "update of 8-bit moments, share of the fp32 units' FLOP/s, where these are half as many",
    2 * _OF_A_SLOT, "ratio", "assumed", f"{_COUNTED}. Volta, Turing and A100 start "
    "four warps in a cycle too, and have fp32 units for two",
)  # fmt: skip
POWER_EXPONENT = exactly(
    "how the clock follows the power limit", 0.05, "exponent", "measured",
    f"16 steps of boards with less power: {FIT}",
)  # fmt: skip
COLLECTIVE_SMS = exactly(
    "multiprocessors that the kernels of a collective run on", 11, "multiprocessors",
    "measured",
    f"54 steps of several GPUs: {FIT}. NCCL has a thread block for each channel, 16 to 32 of them "
    "on NVLink, which do not fill a multiprocessor",
)  # fmt: skip
MOST_GPUS = exactly(
    "GPUs of the largest step that times were held against", 11616, "GPUs", "measured",
    "presets/evidence/times.toml",
)  # fmt: skip
TILE_START = exactly(
    "what a tile of a matrix product takes to begin and end, as if its sum were so much longer",
    620, "elements", "measured",
    f"64 steps: {FIT}. Prologue and epilogue: a tile's first loads, and its result's way to memory",
)  # fmt: skip
LAUNCH = exactly(
    "between two kernels of a step", 4e-6, "seconds", "assumed",
    "start and end of a kernel on the GPU; the host runs ahead",
)  # fmt: skip
HBM_EFFICIENCY = exactly(
    "memory-bound kernels, share of peak bandwidth",
    0.75,
    "ratio",
    "measured",
    "streaming kernels reach 0.75 to 0.9 of the datasheet's bandwidth; norms and what they sum in "
    "backward less. Left free, the fit of step times leaves it where it is",
)
COLLECTIVE_EFFICIENCY = exactly(
    "collectives, share of the link's bandwidth",
    0.90,
    "ratio",
    "measured",
    f"54 steps of several GPUs: {FIT}. Bus bandwidth of large NCCL collectives over the nominal "
    "link rate",
)
COLLECTIVE_EFFICIENCY_DEEPSPEED = exactly(
    "collectives of Megatron-DeepSpeed, share of the link's bandwidth",
    0.27,
    "ratio",
    "measured",
    f"8 steps: {FIT}. BLOOM's trials and MT-NLG on A100, where ranks wait for each other at every "
    "sum; either alone says 0.27 to 0.285. 8 more on A100 and 4 on V100 are held against it. "
    "BLOOM's network gave 135 of its 400 Gbit/s (bigscience, experiments/README.md)",
)
THROUGH_HOST = exactly(
    "GPUs without access to each other's memory, share of PCIe's bandwidth",
    0.5,
    "ratio",
    "measured",
    "two RTX 5090 with eight lanes each: 30 GB/s both ways together through the host's memory, 56 "
    "with a patched driver, https://www.wumeicn.com/nvidia-rtx-5090-p2p-support-enabled-by-patched-"
    "driver/",
)
LINK_EFFICIENCY = exactly(
    "copies, share of the link's bandwidth",
    0.75,
    "ratio",
    "assumed",
    "between a GPU, its host and NVMe, and from GPU to GPU outside collectives",
)
COLLECTIVE_LATENCY = exactly(
    "latency of one hop of a collective", 10e-6, "seconds", "assumed", "NCCL, per tree hop"
)
HOST_ADAM_BYTES = exactly(
    "DRAM traffic of a host Adam step",
    28,
    "bytes per parameter",
    "assumed",
    "read gradient, and read and write master and both moments, 4 bytes each",
)
HOST_OPTIMIZER = Constant(
    "an optimizer step on the host, share of DRAM's bandwidth",
    0.115,
    0.18,
    "ratio",
    "measured",
    "five steps of DeepSpeed's CPUAdam with 1, 2, 2, 4 and 8 processes in a node (presets/evidence/"
    "links.toml). Its launcher leaves OMP_NUM_THREADS alone (launcher/launch.py), so that each "
    "process has as many threads as the node has cores; --bind_cores_to_rank gives each its own, "
    "and is a seventh faster. CPUAdam's kernel alone has 0.43 to 0.57 (Ren et al. 2021, table 4; "
    "Lian et al. 2025, table 3): clipping, and what turns weights to 16 bits, are not in it",
)
HOST_THREAD = exactly(
    "DRAM traffic of one thread's optimizer step",
    7.8e9,
    "B/s",
    "assumed",
    "torchrun sets OMP_NUM_THREADS to 1 where several processes start and nobody has set it "
    "(torch/distributed/run.py). 536.9M weights took one thread 1.93 s beside an H100 "
    "(ISEEKYAN/Megatron-LM issue 188); whoever sets more threads has all of the host's share",
)

# Serving. Read off the runs that presets/evidence/served.toml marks 'tuned', and off no others.
SERVED = "fitted on the speeds marked 'tuned' in presets/evidence/served.toml, and on no others"


NF4_SPEEDS = f"6 speeds of litgpt, three for each and both together: {SERVED}"


HOST_LAUNCH = exactly(
    "an operation that the host starts", 21e-6, "seconds", "measured",
    f"5 speeds: {SERVED}: transformers, eager. A linear layer of PyTorch alone took 13.5 us on a "
    "DGX H100's Xeon (NVIDIA/TransformerEngine issue 2053)",
)  # fmt: skip
HOST_TRAINING = exactly(
    "an operation that the host starts in training", 39e-6, "seconds", "measured",
    "8 phases of four steps of transformers that wait for the host, on a virtual machine whose CPU "
    "takes 1.6 times as long as a common server's (presets/evidence/campaign.jsonl): 39 to 44 us "
    "an operation in forward, which builds autograd's graph, and 43 to 69 in backward, whose "
    "kernels are 1.7 for an operation; 47 in the middle, and less by what that CPU takes longer",
)  # fmt: skip
HOST_MEGATRON = exactly(
    "an operation that the host starts for Megatron's layers", 47e-6, "seconds", "measured",
    f"5 steps that wait for the host: {FIT}. Python of Megatron's and Transformer Engine's modules "
    "runs between two of them, and autograd",
)  # fmt: skip
NF4_LAUNCHES = {
    word: exactly(f"more launches of a product in {word}", more, "launches", "measured", NF4_SPEEDS)
    for word, more in (("nf4", 5.1), ("nf4, double", 6.3))
}
MODULE = Constant(
    "a module of Transformer Engine, over a linear layer of PyTorch", 2.69, 2.73, "operations",
    "measured",
    "what the host takes for te.Linear over torch.nn.Linear, bf16, forward, on GB200 (99.66 and "
    "37.08 us) and GH200 (90.53 and 33.17 us): NVIDIA/TransformerEngine issue 2053",
)  # fmt: skip
LOOPED = Constant(
    "what C++ starts in a loop, over an operation that Python starts", 0.15, 0.22, "operations",
    "assumed",
    "a kernel's launch alone takes 2 to 3 us, torch.nn.Linear 13.48 us on the same CPU "
    "(NVIDIA/TransformerEngine issue 2053). Experts' products, and what makes their rows narrow",
)  # fmt: skip
HOST_ALONE = exactly(
    "torch.nn.Linear alone, forward, on a common server's CPU", 13.48e-6, "seconds",
    "measured",
    "a DGX H100's Xeon Platinum 8480C, which the slowness of others is over: "
    "NVIDIA/TransformerEngine issue 2053",
)  # fmt: skip
COLLECTIVE_STARTS = exactly(
    "a collective", 2, "operations", "assumed",
    "NCCL's call by way of c10d, and the copy or the wait beside it",
)  # fmt: skip

INTERRUPTIONS = exactly(
    "interruptions of a run", 0.5, "per 1,000 GPUs and day", "measured",
    "the middle of six: Llama 3 405B had 419 in 54 days on 16,384 H100 (0.47; arXiv 2407.21783), "
    "two clusters of A100 6.5 and 2.34 of 1,000 nodes in a day (0.81 and 0.29; arXiv 2410.21680), "
    "BLOOM one to two GPUs a week of 384 A100 (0.56), 504 B200 ten GPUs in 73 days (0.27; arXiv "
    "2605.09370), OPT-175B 105 restarts in two months on 992 A100 (1.8)",
)  # fmt: skip
RESTART = exactly(
    "from a failure until steps run again", 11, "minutes", "measured",
    "the median between two tries on 504 B200 (arXiv 2605.09370)",
)  # fmt: skip
STORAGE = exactly(
    "what a node without known drives writes", 1 * GB, "B/s", "assumed",
    "a node's share of a parallel file system, or one drive",
)  # fmt: skip

HOST_READ = Constant(
    "layers and experts that the CPU computes, share of DRAM's bandwidth",
    0.35,
    0.75,
    "ratio",
    "assumed",
    "few tokens wait for memory on a CPU too. Two runs of llama.cpp on an i9-10900X (llmfit, pull "
    "request 778) say 0.36 and 0.57 of four channels of DDR4-2933; STREAM reaches 0.75 to 0.85",
)
# Every one, as it is defined above.
ALL = tuple(
    dict.fromkeys(
        (
            *(c for c in tuple(globals().values()) if isinstance(c, Constant)),
            *NF4_LAUNCHES.values(),
            *(c for e in (*EFFICIENCIES.values(), OTHER) for c in e.shares),
        )
    )
)
