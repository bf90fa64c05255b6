"""Engines: the programs that serve a model, each a record of what distinguishes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from memcore.hardware import kernels
from memcore.hardware.accelerator import Accelerator
from memcore.hardware.constants import Constant, exactly
from memcore.hardware.kernels import (
    ENGINES_FIT,
    NOTHING,
    OFF_BEFORE,
    Kernels,
    Off,
    for_gpu,
    memory_class,
)
from memcore.units import GiB, MiB
from memcore.words.word import Word

VLLM, VLLM_V0, TENSORRT_LLM = "vllm", "vllm-v0", "tensorrt-llm"
SGLANG, OLDER_SGLANG = "sglang", "sglang-0.5.15"
LLAMA_CPP, MLX, TRANSFORMERS, GPT_FAST = "llama.cpp", "mlx", "transformers", "gpt-fast"


def _fitted(name: str, value: float, unit: str) -> Constant:
    return exactly(name, value, unit, "measured", ENGINES_FIT)


# What the share of memory is of: the device, with all that runs on it; the device, for weights and
# the cache alone, and the rest for everything else; what weights and one forward leave; nothing.
DEVICE, POOL, LEFT, ALL = "device", "pool", "left", "all"
ROOMY = 70 * GiB
LIMIT_SOURCE = (
    "the engine's own default: vLLM's EngineArgs._set_default_args (256, and 1,024 on GPUs of "
    "70 GiB and more but the A100, which it knows by name; 256 everywhere before V1, and where no "
    "engine is named)"
)
TOKENS_SOURCE = (
    "the engine's own default: of vLLM's server 8,192 on GPUs of 70 GiB and more but the A100, "
    "else 2,048 (EngineArgs.get_batch_defaults); of SGLang a chunk, by the GPU's memory "
    "(server_args.py, _handle_gpu_memory_settings); TensorRT-LLM's max_num_tokens; "
    "llama.cpp's ubatch; mlx_lm's prefill_step_size; 8,192 is taken of engines that have none"
)
SHARE_SOURCE = {
    DEVICE: "vLLM's gpu_memory_utilization: of the device, with weights, one forward and the cache",
    POOL: "SGLang's mem_fraction_static: weights and cache together, of what was free at the "
    "start; the rest is for forwards and graphs (model_runner.py, profile_max_num_token)",
    LEFT: "TensorRT-LLM's free_gpu_memory_fraction: of what weights and one forward leave "
    "(pyexecutor/_util.py, configure_kv_cache_capacity)",
    ALL: "the engine has no such share: it takes what it is asked to hold",
}
DEFAULT_SHARE = 0.9  # of every engine with a fixed one: vLLM's and TensorRT-LLM's in 2025
# SGLang's own sizes by the GPU's memory (server_args.py, _handle_gpu_memory_settings): below so
# many MiB the tokens of a chunk, and the sequences that graphs are made for, with less than 4
# tensor-parallel ranks and with more.
OF_SGLANG = (
    (20 * 1024, 2048, 8, 80),
    (35 * 1024, 2048, 24, 80),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)


def sizes_of_sglang(gpu: Accelerator, tp: int) -> tuple[int, int]:
    """Tokens of a chunk, and sequences that graphs are made for, where nobody says how many."""
    memory = gpu.usable_bytes / MiB
    _, chunk, few, many = next(row for row in OF_SGLANG if memory < row[0])
    return chunk, few if tp < 4 else many


def roomy(gpu: Accelerator) -> bool:
    """Whether vLLM takes a GPU for a large one."""
    return gpu.usable_bytes >= ROOMY and gpu.architecture != "Ampere"


def default_tokens(engine: str, gpu: Accelerator, tp: int) -> int:
    """Tokens of one forward at most, where nobody says how many (TOKENS_SOURCE)."""
    if ENGINES[engine].share == POOL:
        return sizes_of_sglang(gpu, tp)[0]
    small, large = ENGINES[engine].tokens
    return large if roomy(gpu) else small


@dataclass(frozen=True, slots=True)
class Engine(Word):
    """What serves.

    runtime   what starts its kernels (words.serving.RUNTIMES), where the plan does not say
    cache     how it hands out cache memory (words.serving.KV_CACHES); '' in pages
    share     what serve.memory_utilization is a share of: one of the words below
    limit     sequences that it schedules at once where nobody says how many; 0: as many as are
              served. large: the same on a GPU of ROOMY or more that is not of Ampere
    tokens    of one forward at most where nobody says how many, on a GPU that is not roomy, and on
              one that is; SGLang's are sizes_of_sglang
    sure      whether it lets a request in only if all can end beside it, and never puts one out
    packs     whether 8-bit latents that an indexer chooses have scales, and 16-bit rotary numbers
    follows   whether a cache whose dtype nobody says has that of the checkpoint
    alternates   whether a step either reads prompts or generates, prompts first
    kernels   what they reach, by kernels.memory_class; '' for every GPU
    step      seconds that it takes for a step besides its kernels, by architecture, '' for others;
              {}: not known; sequence: more for each
    first     before a request's first token, in the same way: HTTP, the scheduler
    off       how far its times are off
    runs_on   whose chips it runs on, by its documentation; (): on all
    vendors   whose chips a search tries it on for many users, of those: llama.cpp where nothing
              else runs; (): nowhere
    narrower  dtypes of fewer bits in which models are published for it; caches: of its cache
    since     the first version of its program that it is, and older: the word for those before
    scales    bytes for each scale of experts in MXFP4 in a checkpoint in fp8, on Hopper
    """

    runtime: str = "graphs"
    cache: str = ""
    share: str = DEVICE
    limit: int = 0
    large: int = 0
    tokens: tuple[int, int] = (8192, 8192)
    sure: bool = False
    packs: bool = False
    follows: bool = False
    alternates: bool = False
    kernels: Mapping[str, Kernels] = field(default_factory=dict)
    step: Mapping[str, Constant] = field(default_factory=dict)
    sequence: Constant = NOTHING
    first: Mapping[str, Constant] = field(default_factory=dict)
    off: Off = OFF_BEFORE
    runs_on: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    narrower: tuple[str, ...] = ("fp8", "int4", "nvfp4")
    caches: tuple[str, ...] = ("fp8",)
    since: tuple[int, ...] = ()
    older: str = ""
    scales: int = 1

    @property
    def versions(self) -> str:
        """Its name, and since which version it is so."""
        since = ".".join(map(str, self.since))
        return f"{self.label} since {since}" if since else self.label

    def runs(self, vendor: str) -> bool:
        """Whether it runs on a vendor's chips."""
        return not self.runs_on or vendor in self.runs_on

    def on(self, gpu: Accelerator) -> Kernels:
        """What its kernels reach on a GPU."""
        return self.kernels.get("") or self.kernels[memory_class(gpu)]

    def of_step(self, gpu: Accelerator) -> Constant:
        """Seconds of a step besides its kernels."""
        return for_gpu(self.step, gpu) or NOTHING

    def before(self, gpu: Accelerator) -> Constant:
        """Seconds before a request's first token."""
        return for_gpu(self.first, gpu) or NOTHING


AUTO = "auto"
# vLLM's platforms and plugins (docs/getting_started/installation) and SGLang's (docs/platforms).
OF_VLLM = ("nvidia", "amd", "intel", "google", "aws", "huawei")
OF_SGLANG_CHIPS = ("nvidia", "amd", "intel", "google", "huawei")
_SEQUENCE = _fitted("engines, a sequence of a step", 9.278e-6, "seconds")

_LLAMA_CPP = Engine(
    "llama.cpp",
    "llama.cpp, with GGUF files.",
    runtime="native",
    cache="contiguous",
    share=ALL,
    tokens=(512, 512),
    kernels=kernels.NATIVE,
    off=kernels.OFF_NATIVE,
    vendors=("apple", "generic"),
    narrower=("q8_0", "q4_k_m"),
    caches=("q8_0",),
)

_SGLANG = Engine(
    "SGLang",
    "SGLang since 0.5.16, 2026 and later; for most models as those before.",
    share=POOL,
    packs=True,
    follows=True,
    alternates=True,
    kernels=kernels.SGLANG,
    off=kernels.OFF_SGLANG,
    step={"": _fitted("a step, SGLang", 0.7013e-3, "seconds")},
    sequence=_SEQUENCE,
    first={"": _fitted("before the first token, SGLang", 0.2471, "seconds")},
    runs_on=OF_SGLANG_CHIPS,
    vendors=OF_SGLANG_CHIPS,
    since=(0, 5, 16),
    older=OLDER_SGLANG,
)

ENGINES = {
    VLLM: Engine(
        "vLLM",
        "vLLM since 0.8 (its V1 engine), 2025 and later.",
        limit=256,
        large=1024,
        tokens=(2048, 8192),
        packs=True,
        follows=True,
        kernels=kernels.VLLM,
        off=kernels.OFF_TODAY,
        sequence=_SEQUENCE,
        step={"": _fitted("a step, vLLM", 0.5632e-3, "seconds")},
        first={"": _fitted("before the first token, vLLM", 11.48e-3, "seconds")},
        runs_on=OF_VLLM,
        vendors=OF_VLLM,
        since=(0, 8),
        older=VLLM_V0,
    ),
    VLLM_V0: Engine(
        "vLLM V0",
        "vLLM of 2023 and 2024, before its V1 engine.",
        limit=256,
        kernels={"": kernels.V0},
        runs_on=("nvidia", "amd"),
    ),
    SGLANG: _SGLANG,
    # Its loader has scales in fp32, and its kernels' own stand beside them (mxfp4_marlin_moe.py and
    # marlin_utils_fp4.py, prepare_moe_mxfp4_layer_for_marlin: since 0.5.16 loaded in 8 bits, and
    # let go of by _discard_mxfp4_marlin_repack_inputs).
    OLDER_SGLANG: replace(
        _SGLANG,
        label="SGLang until 0.5.15",
        help="SGLang of 2025 and 2026: it has scales of MXFP4 experts twice on Hopper.",
        vendors=(),
        since=(),
        older="",
        scales=4 + 1,
    ),
    TENSORRT_LLM: Engine(
        "TensorRT-LLM",
        "TensorRT-LLM since 1.0, with its PyTorch backend; requests wait rather than be put out "
        "(GUARANTEED_NO_EVICT).",
        share=LEFT,
        sure=True,
        follows=True,
        kernels=kernels.TENSORRT_LLM,
        off=kernels.OFF_TODAY,
        step={
            "Blackwell": _fitted("a step, TensorRT-LLM on Blackwell", 0.5097e-3, "seconds"),
            "": _fitted("a step, TensorRT-LLM", 1.289e-3, "seconds"),
        },
        sequence=_SEQUENCE,
        first={
            "Blackwell": _fitted(
                "before the first token, TensorRT-LLM on Blackwell", 0.01608, "seconds"
            ),
            "": _fitted("before the first token, TensorRT-LLM", 0.08072, "seconds"),
        },
        runs_on=("nvidia",),
        vendors=("nvidia",),
    ),
    LLAMA_CPP: _LLAMA_CPP,
    MLX: replace(
        _LLAMA_CPP,
        label="MLX",
        help="mlx-lm, on Apple's GPUs: taken to be as quick as llama.cpp there.",
        tokens=(2048, 2048),
        runs_on=("apple", "nvidia"),
        vendors=("apple",),
        narrower=("int8", "int4-g64"),
        caches=(),
    ),
    TRANSFORMERS: Engine(
        "transformers",
        "transformers' generate: Python starts each kernel, which small batches wait for.",
        runtime="eager",
        cache="dynamic",
        share=ALL,
        kernels={"": kernels.EAGER},
    ),
    GPT_FAST: Engine(
        "gpt-fast",
        "PyTorch with the whole model compiled into one graph, as gpt-fast.",
        runtime="compiled",
        cache="contiguous",
        share=ALL,
        kernels={"": kernels.COMPILED},
    ),
}

CHOICES: dict[str, Word] = {
    AUTO: Word(
        "Auto",
        "By the runtime: native is llama.cpp, eager is transformers, compiled is gpt-fast, and "
        "graphs are vLLM's.",
    ),
    **ENGINES,
}


def other_versions(engine: str) -> list[str]:
    """The words for other versions of an engine's program."""
    older = ENGINES[engine].older
    return [older] * bool(older) + [word for word, e in ENGINES.items() if e.older == engine]


OF_RUNTIME = {"native": LLAMA_CPP, "eager": TRANSFORMERS, "compiled": GPT_FAST}  # auto; else vLLM
# A benchmark sends as many requests as are to be served at once together, and ends after ten times
# as many: of its average a tenth is what half of these wait for, one prompt after the other.
FIRST_WAVE = _fitted("a closed loop: prompts before one's own, for each other that runs", 0.04245,
                     "ratio")  # fmt: skip
PROMPTS_BEFORE = _fitted("a closed loop: prompts before one's own, while others are read", 2.471,
                         "ratio")  # fmt: skip
STEPS_BEFORE = _fitted("a closed loop: steps before a prompt's own", 2.28, "ratio")
_EACH = [c for e in ENGINES.values() for c in (*e.step.values(), e.sequence, *e.first.values())]
_LOOP = (FIRST_WAVE, PROMPTS_BEFORE, STEPS_BEFORE)
CONSTANTS = tuple(c for c in dict.fromkeys((*_EACH, *_LOOP)) if c is not NOTHING)
