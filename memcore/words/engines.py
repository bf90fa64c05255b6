"""Engines: the programs that serve a model, each a record of what distinguishes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

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
from memcore.words.word import Word, rows

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
    pipelines    whether as many batches are under way as a pipeline has stages, one in each
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
    pipelines: bool = False
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
_SEQUENCE = _fitted("engines, a sequence of a step", 9.04e-6, "seconds")
KERNELS: dict[str, Mapping[str, Kernels]] = {
    "vllm": kernels.VLLM,
    "v0": {"": kernels.V0},
    "sglang": kernels.SGLANG,
    "tensorrt-llm": kernels.TENSORRT_LLM,
    "native": kernels.NATIVE,
    "eager": {"": kernels.EAGER},
    "compiled": {"": kernels.COMPILED},
}
OFF = {
    "today": kernels.OFF_TODAY,
    "before": OFF_BEFORE,
    "sglang": kernels.OFF_SGLANG,
    "native": kernels.OFF_NATIVE,
}


def _by_architecture(what: str, label: str, seconds: Mapping[str, float]) -> Mapping[str, Constant]:
    return {
        on: _fitted(f"{what}, {label} on {on}" if on else f"{what}, {label}", value, "seconds")
        for on, value in seconds.items()
    }


def _engine(row: Mapping[str, Any], known: Mapping[str, Engine]) -> Engine:
    """An engine by its row of presets/words.toml."""
    words = dict(row)
    if like := words.pop("like", ""):
        return replace(known[like], **words)
    if "off" in words:
        words["off"] = OFF[words["off"]]
    if words.pop("sequence", False):
        words["sequence"] = _SEQUENCE
    for name, what in (("step", "a step"), ("first", "before the first token")):
        if name in words:
            words[name] = _by_architecture(what, words["label"], words[name])
    return Engine(**words | {"kernels": KERNELS[words["kernels"]]})


def _engines() -> dict[str, Engine]:
    engines: dict[str, Engine] = {}
    for name, row in rows("engines").items():
        engines[name] = _engine(row, engines)
    return engines


ENGINES = _engines()

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
FIRST_WAVE = _fitted("a closed loop: prompts before one's own, for each other that runs", 0.04338,
                     "ratio")  # fmt: skip
PROMPTS_BEFORE = _fitted("a closed loop: prompts before one's own, while others are read", 2.485,
                         "ratio")  # fmt: skip
STEPS_BEFORE = _fitted("a closed loop: steps before a prompt's own", 2.262, "ratio")
_EACH = [c for e in ENGINES.values() for c in (*e.step.values(), e.sequence, *e.first.values())]
_LOOP = (FIRST_WAVE, PROMPTS_BEFORE, STEPS_BEFORE)
CONSTANTS = tuple(c for c in dict.fromkeys((*_EACH, *_LOOP)) if c is not NOTHING)
