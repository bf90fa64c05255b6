"""Kernels: what an engine's kernels reach of a GPU's peaks, and what lies between them.

Serving has constants of its own: what is fitted for training moves none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TypeVar

from memcore.hardware.accelerator import Accelerator
from memcore.hardware.constants import SERVED, Constant, exactly

ENGINES_FIT = (
    "fitted to the 915 points of presets/evidence/engines.csv, less 51 that are not what they say "
    "(Accuracy: vLLM 0.12 with Qwen3 235B on H200), and to the 38 of throughput.csv together: "
    "least absolute logarithm of the time per token, of the first token at 0.3 of its weight, of "
    "the throughput at 0.4; errors where a GPU, a model or some cells are left out are on the "
    "Accuracy page"
)
LLAMA_FIT = (
    "fitted to the llama.cpp tables of presets/evidence/native.jsonl: 41 speeds of tokens and 17 "
    "of prompts"
)
LLAMA_FEW = f"{LLAMA_FIT}, of which fewer than ten are of this kind of memory"
# What llama.cpp did when these tables were made, in 2024. It has FlashAttention and products with
# whole numbers for more cases since, but no speeds of prompts since then are compared.
HALVES_SOURCE = (
    "products of many rows in fp16 accumulate in 16 bits (ggml-cuda.cu, "
    "ggml_cuda_op_mul_mat_cublas, CUBLAS_COMPUTE_16F), at half of the rate of tensor cores for "
    "int8: twice the datasheet's figure on boards whose cores are slower with 32 bits"
)
UNPACKS_SOURCE = (
    "before a product of many rows a kernel writes weights of fewer bits out in 16 "
    "(ggml-cuda.cu, ggml_cuda_op_mul_mat_cublas, ggml_get_to_fp16_cuda)"
)
SCORES_SOURCE = (
    "without FlashAttention each score is written in fp32, read and written by the softmax, read "
    "and written in 16 bits, and read again (llama.cpp, llm_build_kqv; ggml_soft_max_ext)"
)
UNPACKED_FROM = 64  # rows; fewer are multiplied as they are (mmq.cuh, MMQ_DP4A_MAX_BATCH_SIZE)
UNPACKED = 2  # bytes of a weight in 16 bits
SCORE_MOVED = 4 + (4 + 4) + (4 + 2) + 2  # bytes


def _same(value: float, unit: str) -> Constant:
    """A factor or a time that this engine does not have."""
    return exactly("none", value, unit, "assumed", "nothing of the kind is known of it")


ONE, NOTHING = _same(1.0, "ratio"), _same(0.0, "seconds")


STACKED, BOARD, UNIFIED = "stacked", "board", "unified"  # HBM; GDDR; shared with the CPU


def memory_class(gpu: Accelerator) -> str:
    if gpu.unified_memory:
        return UNIFIED
    return STACKED if gpu.memory_kind.startswith("HBM") else BOARD


@dataclass(frozen=True, slots=True)
class Kernels:
    """Shares of peaks, and seconds.

    layer       between the kernels of a layer; absorbed: more of it where attention is latent,
                whose queries and results have products of their own with the latents' matrices;
                prompts: more in a step that reads prompts, which no graph starts whole; latent:
                instead, where attention is latent, with twice as many kernels
    bandwidth   of the peak, what products read at; cache: attention over it; rows: kernels that
                gather rows for experts and sum what comes of them, of the same
    eight, four   of that, where weights of 6 to 8 and of 2 to 5 bits are widened before a product;
                four_grouped: of 2 to 5 bits, where each expert's rows have a product of their own
    products    of the peak of a dtype, what products reach, by architecture and of others ('');
                {}: by architecture, of any dtype; halved: in 16 bits on boards that run them at
                half of their rate with sums in 32 bits; None: as elsewhere
    attention   of the peak in 16 bits; None: by architecture
    routing     of a layer with experts, more: choosing, sorting, gathering; by architecture, ''
                for others
    hop, rank   of an all-reduce over fast links: at all, and for each other GPU, where the ring's
                own latency is not meant; hop None: one shot, as before engines were rows
    link        of the peak of these links, what an all-reduce of many bytes reaches
    alike       tokens of a step choose as many experts as this share of them would at random: text
                is of one kind, and some experts are liked; of routers that nothing balances
    halves, unpacks, scores    whether prompts are read as HALVES_SOURCE, UNPACKS_SOURCE and
                SCORES_SOURCE say
    """

    layer: Constant
    bandwidth: Constant
    cache: Constant
    rows: Constant = ONE
    eight: Constant = ONE
    four: Constant = ONE
    four_grouped: Constant = ONE
    products: Mapping[str, Mapping[str, Constant]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    halved: Constant | None = None
    attention: Constant | None = None
    routing: Mapping[str, Constant] = field(default_factory=lambda: MappingProxyType({}))
    hop: Constant | None = None
    rank: Constant = NOTHING
    absorbed: Constant = NOTHING
    prompts: Constant = NOTHING
    latent: Constant = NOTHING
    link: Constant = ONE
    alike: Constant = ONE
    halves: bool = False
    unpacks: bool = False
    scores: bool = False

    @property
    def constants(self) -> Iterable[Constant]:
        for f in fields(self):
            yield from _constants(getattr(self, f.name))


def _constants(value: object) -> Iterator[Constant]:
    """Those in it."""
    if isinstance(value, Constant):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _constants(each)


Found = TypeVar("Found")

# --- what kernels of 2023 and 2024 reach: read off the runs that served.toml marks 'tuned' --------


def _served(name: str, value: float, unit: str) -> Constant:
    return exactly(name, value, unit, "measured", SERVED)


BANDWIDTH = _served("decoding, share of peak bandwidth", 0.845, "ratio")
WIDENED_8 = _served("products with weights of 6 to 8 bits, widened, share of that", 0.85, "ratio")
WIDENED_4 = _served("products with weights of 2 to 5 bits, widened, share of that", 0.74, "ratio")
ONE_SHOT = _served("an all-reduce in one shot over NVLink", 8e-6, "seconds")


@dataclass(frozen=True, slots=True)
class Reached:
    """Shares of peak FLOP/s: products, and attention."""

    products: Constant
    attention: Constant


def _reached(of: str, products: float, attention: float) -> Reached:
    return Reached(
        _served(f"matrix products, {of}, serving, share of peak FLOP/s", products, "ratio"),
        _served(f"attention, {of}, serving, share of peak FLOP/s", attention, "ratio"),
    )


BY_ARCHITECTURE = {
    "Ampere": _reached("Ampere", 0.90, 0.32),
    "Hopper": _reached("Hopper", 0.70, 0.18),
    "Blackwell": _reached("Blackwell", 0.455, 0.385),
}
OTHER = _reached("other architectures", 0.70, 0.30)


def by_architecture(gpu: Accelerator) -> Reached:
    return _of_architecture(BY_ARCHITECTURE, gpu) or OTHER


def routing(kernels: Kernels, gpu: Accelerator) -> Constant:
    """What a layer with experts takes more than others."""
    return for_gpu(kernels.routing, gpu) or NOTHING


def for_gpu(table: Mapping[str, Found], gpu: Accelerator) -> Found | None:
    """Of a table by architecture, what is for a GPU, or what is for others ('')."""
    return _of_architecture(table, gpu) or table.get("")


def _of_architecture(table: Mapping[str, Found], gpu: Accelerator) -> Found | None:
    return next((c for k, c in table.items() if k and gpu.architecture.startswith(k)), None)


def _before(layer: Constant) -> Kernels:
    return Kernels(
        layer, BANDWIDTH, BANDWIDTH, eight=WIDENED_8, four=WIDENED_4, four_grouped=WIDENED_4
    )


V0 = _before(_served("between kernels, vLLM V0", 118e-6, "seconds per layer"))
COMPILED = _before(_served("between kernels, compiled whole", 55e-6, "seconds per layer"))
EAGER = _before(NOTHING)  # the host starts each: constants.HOST_LAUNCH


# --- engines of 2025 and 2026 ---------------------------------------------------------------------


def _today(name: str, value: float, unit: str) -> Constant:
    return exactly(name, value, unit, "measured", ENGINES_FIT)


def _products(of: str, **shares: float) -> Mapping[str, Constant]:
    return MappingProxyType({
        dtype: _today(f"matrix products in {dtype}, engines, {of}, share of peak FLOP/s", share,
                      "ratio")
        for dtype, share in shares.items()
    })  # fmt: skip


_PRODUCTS = MappingProxyType({
    "Blackwell": _products("Blackwell", bf16=0.7391, fp8=0.5832, fp4=0.5005),
    "": _products("others", bf16=0.7391, fp8=0.7301),
})  # fmt: skip
# A board's units are slow beside its power and its SRAM, which hold up those of B200 in few bits.
_ON_BOARDS = MappingProxyType({
    **_PRODUCTS,
    "Blackwell": MappingProxyType({
        **_PRODUCTS["Blackwell"],
        "fp8": _PRODUCTS[""]["fp8"],
        "fp4": exactly(
            "matrix products in fp4, engines, Blackwell with GDDR, share of peak FLOP/s", 0.75,
            "ratio", "measured",
            "the most that products are taken to reach under load: the five rows of RTX PRO 6000 "
            "in presets/evidence/throughput.csv would have more (benchmarks/fit_engines.py, MOST)",
        ),
    }),
})  # fmt: skip
# What cuts the rate of the units leaves the way to them as it is, so that products keep them busy.
_HALVED = exactly(
    "matrix products, engines, boards with half the rate for sums in 32 bits, share of peak FLOP/s",
    0.986,
    "ratio",
    "assumed",
    "0.7391 of others, times 1.058 / 0.793: the median best of torch.matmul in bf16 over the "
    "datasheet's peak on 26 such boards (GeForce 30 to 50, 0.91 to 1.16) and on 11 others (A100 "
    "to B200, A6000, L40S, 0.66 to 0.85), github.com/zzc0721/torch-performance-test-data, "
    "database.md of January 2026",
)
_READ = _today("engines, share of peak bandwidth", 0.93, "ratio")
_ROWS = _today("rows of experts, gathered and summed, share of that", 0.3742, "ratio")
_FOUR_GROUPED = _today(
    "engines, experts' weights of 2 to 5 bits, widened, share of that", 0.5321, "ratio"
)
_ATTENTION = _today("attention of engines to a prompt, share of peak FLOP/s", 0.65, "ratio")


def _routing(of: str, value: float) -> Mapping[str, Constant]:
    name = f"a layer with experts, {of}, before Blackwell: choosing and sorting"
    return MappingProxyType({"Blackwell": NOTHING, "": _today(name, value, "seconds per layer")})


_HOP = _today("an all-reduce of engines over NVLink", 0.0003e-6, "seconds")
_RANK = _today("the same, for each other GPU", 0.3433e-6, "seconds")
_LINK = _today("an all-reduce of engines over NVLink, share of its peak", 0.4186, "ratio")
_PROMPTS = _today("between kernels, engines, of a step that reads prompts, more", 6.615e-6,
                  "seconds per layer")  # fmt: skip
_LATENT = _today("the same, of latent attention", 703.0e-6, "seconds per layer")
_ABSORBED = _today(
    "between kernels, engines, of latent attention, more", 44.04e-6, "seconds per layer"
)
_ALIKE = _today("tokens of a step, as they choose experts", 0.4635, "ratio")


def _engine(layer: Constant, routed: Mapping[str, Constant]) -> Mapping[str, Kernels]:
    """By what memory a GPU has: the points are of GPUs with HBM."""

    def read_at(share: Constant, products: Mapping[str, Mapping[str, Constant]]) -> Kernels:
        return Kernels(
            layer, share, share, _ROWS, WIDENED_8, WIDENED_4, _FOUR_GROUPED, products, _HALVED,
            _ATTENTION, routed, _HOP, _RANK, _ABSORBED, _PROMPTS, _LATENT, _LINK, _ALIKE,
        )  # fmt: skip

    return MappingProxyType({
        STACKED: read_at(_READ, _PRODUCTS),
        BOARD: read_at(BANDWIDTH, _ON_BOARDS),
        UNIFIED: read_at(BANDWIDTH, _PRODUCTS),
    })  # fmt: skip


VLLM = _engine(
    _today("between kernels, vLLM", 61.45e-6, "seconds per layer"), _routing("vLLM", 19.33e-6)
)
SGLANG = _engine(
    _today("between kernels, SGLang", 66.68e-6, "seconds per layer"), _routing("SGLang", 37.8e-6)
)
TENSORRT_LLM = _engine(
    _today("between kernels, TensorRT-LLM", 53.28e-6, "seconds per layer"),
    _routing("TensorRT-LLM", 31.98e-6),
)

# --- llama.cpp and MLX, by the memory of what they run on -----------------------------------------


def _native(
    of: str, layer: float, read: float, cache: float, products: float, few: str = "",
    cuda: bool = True,
) -> Kernels:  # fmt: skip
    """`few`: what fewer than ten rows say: 'tokens' too, or 'prompts' alone."""

    def fitted(what: str, value: float, unit: str, prompts: bool = False) -> Constant:
        rests_on_few = few == "tokens" or (few == "prompts" and prompts)
        words = ("assumed", LLAMA_FEW) if rests_on_few else ("measured", LLAMA_FIT)
        return exactly(f"{what}, llama.cpp, {of}", value, unit, *words)

    reached = fitted("matrix products, share of peak FLOP/s", products, "ratio", prompts=True)
    attention = fitted("attention to a prompt, share of peak FLOP/s", products / 2, "ratio", True)
    return Kernels(
        fitted("between kernels", layer, "seconds per layer"),
        fitted("share of peak bandwidth", read, "ratio"),
        fitted("attention over the cache, share of peak bandwidth", cache, "ratio"),
        products=MappingProxyType({"": {"fp16": reached, "bf16": reached}}),
        attention=attention,
        halves=cuda,
        unpacks=cuda,
        scores=True,
    )


NATIVE = MappingProxyType({
    STACKED: _native("HBM", 105e-6, 0.625, 0.20, 0.34, "prompts"),
    BOARD: _native("GDDR", 78e-6, 0.875, 0.20, 0.66),
    UNIFIED: _native("unified memory", 148e-6, 0.775, 0.10, 0.67, "tokens", False),
})  # fmt: skip


# --- how far times are off ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Off:
    """Measured over planned times, between which eight in ten of the measured ones lie: per token
    and of the first token, of dense models and of mixtures."""

    token: Constant
    first: Constant
    token_of_experts: Constant
    first_of_experts: Constant

    def per_token(self, experts: bool) -> Constant:
        return self.token_of_experts if experts else self.token

    def of_first(self, experts: bool) -> Constant:
        return self.first_of_experts if experts else self.first


def _off(what: str, low: float, high: float, source: str, certainty: str = "measured") -> Constant:
    name = f"measured over planned, eight in ten: {what}"
    return Constant(name, low, high, "ratio", certainty, source)


_POINTS = (
    "the 915 points of presets/evidence/engines.csv, to most of which the constants were fitted"
)
_LOGS = "the speeds in presets/evidence/served.toml"
_TABLES = "the llama.cpp tables of presets/evidence/native.jsonl"
_V0_FIRST = _off("first token, engines of 2024", 0.70, 1.70, "few were measured", "assumed")
_V0_TOKEN = _off("time per token, engines of 2024", 0.93, 1.34, _LOGS)
_NATIVE_TOKEN = _off("time per token, llama.cpp", 0.87, 1.11, _TABLES)
_NATIVE_FIRST = _off("first token, llama.cpp", 0.87, 1.34, _TABLES)
OFF_TODAY = Off(
    _off("time per token, engines, dense", 0.86, 1.17, _POINTS),
    _off("first token, engines, dense", 0.77, 1.60, _POINTS),
    _off("time per token, engines, mixtures", 0.91, 1.50, _POINTS),
    _off("first token, engines, mixtures", 0.765, 1.47, _POINTS),
)
_SGLANG_TOKEN = _off("time per token, SGLang", 0.88, 1.19, f"90 of {_POINTS}")
_SGLANG_FIRST = _off(
    "first token, SGLang", 0.77, 10.8,
    f"90 of {_POINTS}; a sixth of these took 5 s and more: of one version all whose prompts have "
    "more than 16,384 tokens at once, whatever the load",
)  # fmt: skip
OFF_SGLANG = Off(_SGLANG_TOKEN, _SGLANG_FIRST, _SGLANG_TOKEN, _SGLANG_FIRST)
OFF_BEFORE = Off(_V0_TOKEN, _V0_FIRST, _V0_TOKEN, _V0_FIRST)
OFF_NATIVE = Off(_NATIVE_TOKEN, _NATIVE_FIRST, _NATIVE_TOKEN, _NATIVE_FIRST)


def _every() -> tuple[Constant, ...]:
    engines = (*VLLM.values(), *SGLANG.values(), *TENSORRT_LLM.values())
    tables = (V0, COMPILED, EAGER, *engines, *NATIVE.values())
    reached = [c for r in (*BY_ARCHITECTURE.values(), OTHER) for c in (r.products, r.attention)]
    off = [
        getattr(o, f.name)
        for o in (OFF_TODAY, OFF_SGLANG, OFF_BEFORE, OFF_NATIVE)
        for f in fields(o)
    ]
    found = [c for k in tables for c in k.constants] + reached + [ONE_SHOT] + off
    return tuple(c for c in dict.fromkeys(found) if c not in (ONE, NOTHING))


ALL = _every()
