"""Roofline: time of operations from their FLOPs and HBM traffic.

An operation takes the longer of its arithmetic and its memory traffic. Both are read off the same
tape as the memory: FLOPs as declared, traffic as the tensors it reads and writes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from memcore.cache import cached, counted_apart
from memcore.hardware import constants
from memcore.hardware.accelerator import Accelerator
from memcore.quantity.reading import PLAIN, Read
from memcore.report import OperationTime
from memcore.tape import tape
from memcore.tape.dims import (
    ARRIVED,
    COMPUTED,
    CP,
    EP,
    EXPERTS,
    HEAD_DIM,
    KV_HEADS,
    ROUTED,
    SEQ,
    TP,
    VOCAB,
    B,
    Cut,
    Number,
    S,
    Shape,
    is_array,
    maximum,
    of_stack,
    where,
)
from memcore.tape.kinds import Module, Part
from memcore.tape.ledger import Amounts, Terms, kept_products
from memcore.tape.tape import Send, Tape
from memcore.words.precision import EightBit
from memcore.words.training import CUDNN, FLASH_3, LAYER, OPERATIONS, SAVED_PRODUCTS, TO_END
from memcore.words.word import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class Work:
    """One operation in one direction, without numbers.

    phase    'forward', 'recompute', 'backward'
    kernel   PRODUCT, ATTENTION, EIGHT_BIT, FOUR_BIT or SCANNED: whose rate its FLOPs are done at
    flops    (count, shape) pairs; traffic: (shape, dtype, how many such tensors)
    moved    the bytes of that
    started, parts, module, stack    as in tape.Cost
    narrows  it makes an operand of the product that it is named after narrow, and no more
    """

    name: str
    phase: str
    flops: tuple[tuple[float, Shape], ...]
    traffic: tuple[tuple[Shape, str, int], ...]
    kernel: str
    moved: Terms
    started: int = 1
    parts: tuple[Part, ...] = ()
    module: Module | None = None
    stack: str = ""
    narrows: bool = False

    @property
    def attention(self) -> bool:
        return self.kernel == ATTENTION


DECLARED = "the operation as it is declared: its matrix products"
ROOFLINE = "roofline: an operation takes the longer of its arithmetic and its memory traffic"
PRODUCT, ATTENTION, EIGHT_BIT = "product", "attention", "8-bit product"
FOUR_BIT = "4-bit product"
UPDATED = "8-bit update"  # of moments (words/optimizers.py)
HALF = "16-bit product"  # where others are in fp32
WHOLE = "fp32 product"  # where others are in 16 bits
INTEGER = "integer product"
SCANNED = "scan"


def _kernel(w: tape.Cost, dtype: str) -> str:
    """Whose rate the FLOPs of an operation are done at. dtype: what others compute in; adapters
    and routers may be in fp32 beside 16 bits."""
    if w.module is Module.ATTENTION:
        return ATTENTION
    if w.module is Module.WIDENED:
        return HALF
    if w.module is Module.INTEGER:
        if w.phase != "backward":
            return INTEGER
        return WHOLE if any(dtype == "fp32" for _, dtype in w.traffic) else HALF
    if w.module is Module.SCAN:
        return SCANNED
    dtypes = {d for shape, d in w.traffic if len(shape) > 1}
    if w.flops and dtypes == {"fp32"} and dtype != "fp32":
        return WHOLE
    return next((kernel for of, kernel in NARROW.items() if of in dtypes), PRODUCT)


@counted_apart
class Works(tuple[tuple[Work, tuple[int, ...]], ...]):
    """Operations, and which of some tapes have each."""

    __slots__ = ()


@cached
def works(tapes: tuple[Tape, ...], again: tuple[str, ...]) -> Works:
    """The operations of some tapes and which of the tapes have each; equal ones are one.

    again   for each tape, what of it backward runs again (words.training.Checkpointing)
    """
    found: dict[Work, list[int]] = {}
    for i, (block, word) in enumerate(zip(tapes, again, strict=True)):
        recompute = word.removesuffix(TO_END)
        kept = {s.made_by for s in kept_products(block)} if recompute == OPERATIONS else set()
        last = block.run_again if recompute == word else len(block.work)
        how = block.narrow.how if block.narrow else None
        for k, w in enumerate(block.work):
            kernel = _kernel(w, "bf16" if block.autocast else block.parameter_dtype)
            counted: Counted = {}
            for key in w.traffic:
                counted[key] = counted.get(key, 0) + 1
            phases = [w.phase]
            again_here = w.phase == "forward" and recompute in (OPERATIONS, LAYER) and k < last
            if again_here and w.name not in kept:
                phases.append("recompute")
            for phase in phases:
                for name, part, rest in parted(w, phase, counted, how):
                    work = Work(
                        name,
                        phase,
                        tuple(w.flops) if rest else (),
                        tuple((shape, dtype, n) for (shape, dtype), n in part.items()),
                        kernel if rest else PRODUCT,
                        Terms.of((s, n * DTYPE_BYTES[dtype]) for (s, dtype), n in part.items()),
                        w.started if rest else 1,
                        w.parts,
                        w.module if rest or w.module is Module.GROUPED else None,
                        w.stack,
                        not rest,
                    )
                    found.setdefault(work, []).append(i)
    return Works((work, tuple(where)) for work, where in found.items())


Counted = dict[tuple[Shape, str], int]
NARROW = {"fp8": EIGHT_BIT, "fp4": FOUR_BIT}  # what is made narrow for products, and theirs
TO_8_BITS = ", to 8 bits"  # ends the name of what makes a product's operand narrow


def parted(
    w: tape.Cost, phase: str, counted: Counted, how: EightBit | None = None
) -> list[tuple[str, Counted, bool]]:
    """A product in 8 bits is two operations: what it reads is made narrow first, by a kernel of its
    own that no arithmetic hides. Forward narrows its input, backward the gradient of its result,
    and its input where only the wide one was kept. how: Transformer Engine's scales, where it is
    its product."""
    whole = [(w.name, counted, True)]
    if not (w.flops and any(dtype in NARROW for _, dtype in counted)):
        return whole
    width, into = w.flops[0][1][-2:]
    backward = phase == "backward"
    made: Counted = {}
    left = dict(counted)
    for (shape, dtype), n in counted.items():
        if dtype not in NARROW or len(shape) < 2 or shape[-1] not in (width, into):
            continue
        gradient = shape[-1] == into
        wide = _wide(shape, counted, gradient) if backward or not gradient else None
        # Of an input there is its own gradient besides, as wide.
        if wide and counted[wide] > (backward and not gradient):
            made |= {wide: _passes(wide[0], backward, how), (wide[0], dtype): n}
            left[wide] -= 1
            left[shape, dtype] -= n * (wide[0] == shape)
            through = (wide[0], "fp32")  # without a compiler torchao's casts copy it so
            if through in left:
                made[through] = left.pop(through)
    if not made:
        return whole
    rest = {key: n for key, n in left.items() if n}
    return [(f"{w.name}{TO_8_BITS}", made, False), (w.name, rest, True)]


def _wide(shape: Shape, counted: Counted, gradient: bool) -> tuple[Shape, str] | None:
    """What an operand is made narrow of. The gradient of a result that ranks share out is made
    narrow before it is gathered (Transformer Engine 2.9, base.py: grad_output_preprocess)."""
    same = [key for key in counted if key[0] == shape and DTYPE_BYTES[key[1]] == 2]
    if not same and gradient:
        same = [key for key in counted if _gathered(key[0]) == shape and DTYPE_BYTES[key[1]] == 2]
    return same[0] if same else None


def _gathered(shape: Shape) -> Shape:
    """A shape as all ranks have it together that sequence parallelism shares it out to."""
    whole: list[Any] = [d.dim if isinstance(d, Cut) and d.axis is SEQ else d for d in shape]
    return tuple(whole)


def _passes(wide: Shape, backward: bool, how: EightBit | None) -> int:
    """How often an operand is read to be made narrow: once more for its largest value, where that
    is its scale and no norm before it has found it (Transformer Engine 2.9, csrc/quantizer.cpp:
    Float8CurrentScalingQuantizer; csrc/extensions/normalization.cpp: FUSED_NORM_AMAX_FP8). NVFP4
    has such a scale over those of its blocks, of values that a random Hadamard transform turned,
    which no norm finds (quantizer.cpp: NVFP4Quantizer)."""
    if how and how.dtype == "fp4":
        return 2
    if how is None or how.block or how.delayed:
        return 1
    of_norm = not backward and _gathered(wide) != wide
    return 1 if of_norm else 2


@cached
def sends(
    tapes: tuple[Tape, ...], again: tuple[str, ...]
) -> tuple[tuple[Send, tuple[int, ...]], ...]:
    """The collectives of some tapes, and which of the tapes have each, as often as they do.

    What backward runs again sends again, but for what a policy by operation keeps.
    """
    found: dict[Send, list[int]] = {}
    for i, (block, word) in enumerate(zip(tapes, again, strict=True)):
        recompute = word.removesuffix(TO_END)
        last = block.run_again if recompute == word else len(block.work)
        for s, at in zip(block.sends, block.sent_at, strict=True):
            phases = [s.phase]
            kept = recompute == OPERATIONS and s.kind in SAVED_PRODUCTS
            runs = at <= last or recompute not in (OPERATIONS, LAYER)
            if s.phase == "forward" and word and runs and not kept:
                phases.append("recompute")
            for phase in phases:
                found.setdefault(replace(s, phase=phase), []).append(i)
    return tuple((send, tuple(where)) for send, where in found.items())


@dataclass(frozen=True, slots=True)
class Speed:
    """What one accelerator really reaches: datasheet peaks times stated efficiencies.

    launch   seconds that every operation takes besides its work
    units    rate of the units that products run on, over that of the fastest for 16 bits: at most 1
    """

    matmul: Read  # FLOP/s
    attention: Read  # FLOP/s
    hbm: float  # B/s
    sms: int
    launch: float = 0.0
    eight: float = 0.0  # FLOP/s of products in 8 bits
    sram: int = 0  # bytes of one multiprocessor
    half: float = 0.0  # FLOP/s of products in 16 bits, whatever the others are in
    scan: float = 0.0  # FLOP/s
    units: float = 1.0
    whole: float = 0.0  # FLOP/s of products in fp32
    integer: float = 0.0  # of products in int8
    starts: float = 1.0  # share of TILE_START that a tile takes
    update: float = 0.0  # FLOP/s of an update of 8-bit moments
    rows: tuple[float, float] = (0.0, 0.0)  # row_start behind a causal mask, and without one
    four: float = 0.0  # FLOP/s of products in 4 bits

    def of_kernel(self, kernel: str) -> Read:
        others = {
            ATTENTION: self.attention, HALF: self.half, SCANNED: self.scan, WHOLE: self.whole,
            INTEGER: self.integer, UPDATED: self.update, FOUR_BIT: self.four,
        }  # fmt: skip
        return self.matmul if kernel == PRODUCT else others.get(kernel, self.eight)

    @classmethod
    def of(
        cls,
        gpu: Accelerator,
        dtype: str,
        launch: float = 0.0,
        kernels: str = "",
        attention: str = "",
        half: str = "",
        x: Any = PLAIN,
    ) -> Speed:
        """`kernels`, `attention`: whose run (KERNELS and ATTENTION of words.training); half: the
        dtype of products in 16 bits, where it is not `dtype`; x: how they are read, as
        numbers or as terms."""
        reached = constants.efficiency(gpu.architecture)
        power = sustained(gpu, dtype)

        def rate(share: constants.Constant, of: str = dtype) -> Read:
            found = x.at(f"hardware.peak_flops.{of}", gpu.peak_flops(of)) * x.constant(share)
            if power == 1:
                return found
            exponent = constants.POWER_EXPONENT
            note = f"{gpu.watts:g} W, to the power of {exponent.middle:g}"
            return found * x.known("clock under its power limit", power, source=exponent.source,
                                   note=note, certainty="assumed")  # fmt: skip

        return cls(
            rate(reached.of(gpu.runs_as(dtype))),
            rate(attention_efficiency(gpu, kernels, attention)),
            gpu.memory_bandwidth * constants.HBM_EFFICIENCY.middle,
            gpu.sms,
            launch,
            rate(reached.eight, "fp8"),
            gpu.l1_bytes_per_sm,
            rate(reached.of(gpu.runs_as(half or dtype)), half or dtype),
            rate(constants.SCAN),
            min(1.0, gpu.peak_flops(dtype) / gpu.tensor_flops),
            rate(reached.whole, "fp32"),
            rate(reached.eight, "int8"),
            reached.begins,
            rate(constants.UPDATE_8_BIT_HALF if gpu.half_fp32 else constants.UPDATE_8_BIT, "fp32"),
            (reached.masked.middle, reached.unmasked.middle),
            rate(constants.FOUR_BITS, "fp4"),
        )

    def begins(self, kernel: str) -> float:
        """Share of TILE_START that a tile's beginning and end take: they do not wait for slower
        units, so that they are worth fewer products of these."""
        units = self.units if kernel == PRODUCT else 1.0
        if kernel == WHOLE:
            units = min(1.0, self.whole / self.half)
        return self.starts * units

    def row_start(self, pairs: Shape) -> float:
        """Keys by which the row of a tile of attention is longer for the time that it takes to
        begin and end, and behind a causal mask for its last tile, which is whole. pairs: of tokens,
        as `flops` has them."""
        masked, whole = self.rows
        return whole if isinstance(pairs[0], int) else masked  # twice: no mask halves them


NEWER = {FLASH_3: constants.FLASH_3, CUDNN: constants.CUDNN_ATTENTION}


def attention_efficiency(gpu: Accelerator, kernels: str, attention: str = "") -> constants.Constant:
    if attention in NEWER:
        return NEWER[attention]
    reached = constants.efficiency(gpu.architecture)
    return reached.own_attention if kernels == "megatron" else reached.attention


def sustained(gpu: Accelerator, dtype: str) -> float:
    """Share of its reachable rate that a GPU keeps up under its power limit: boards that have fewer
    watts for each FLOP/s than the one whose efficiency was measured run at a lower clock."""
    reached = constants.efficiency(gpu.architecture)
    peak = gpu.tensor_flops
    if not (gpu.watts and peak and reached.picojoules):
        return 1.0
    ratio = gpu.watts / (peak * reached.picojoules * 1e-12)
    return float(min(1.0, ratio**constants.POWER_EXPONENT.middle))


# Tiles of a result that one thread block computes (CUTLASS's usual ones), and the share of the
# largest one's rate that each reaches.
TILES = ((256, 128, 1.0), (128, 128, 0.92), (128, 64, 0.80), (64, 64, 0.60), (64, 16, 0.30))


@cached
def filled(rows: int, columns: int, sms: int) -> float:
    """Share of a GPU that one matrix product keeps busy: tiles and waves of them are whole.

    The best of TILES, as a library would choose. More rows or columns never take less time.
    """
    return float(filled_of(rows, columns, sms, max))


def filled_of(rows: Number, columns: Number, sms: int, most: Callable[..., Number]) -> Number:
    """The same of numbers or, with `most` that takes them, of arrays."""
    shares = (
        rows * columns * share / (-(-(-(-rows // a) * -(-columns // b)) // sms) * sms * a * b)
        for m, n, share in TILES
        for a, b in ((m, n), (n, m))
    )
    return functools.reduce(most, shares)


FLASH_TILE = int(constants.TILE_ON_DIAGONAL.middle)  # queries and keys of one tile of attention
SEEN = 0.5  # of all pairs of tiles, behind a causal mask
FLASH_WIDTHS = 32, 64, 96, 128, 192, 256  # heads of others are padded to the next of these
KEYS: Shape = (B, KV_HEADS / TP, S, HEAD_DIM)  # of all ranks that share the sequence


def flash_padding(head_dim: int) -> float:
    """How much wider a kernel is than a head: they are compiled for some widths (HEADDIM_SWITCH of
    FlashAttention, csrc/flash_attn/src/static_switch.h)."""
    return min((w for w in FLASH_WIDTHS if w >= head_dim), default=head_dim) / max(1, head_dim)


def flash_tile(sram: int, head_dim: int, backward: bool = False) -> int:
    """Rows of a tile of FlashAttention: queries, keys, values and results of a tile are in the SRAM
    of a streaming multiprocessor at once, and in backward their gradients too; 16-bit values, a
    power of two (Dao et al. 2022, algorithm 1: M / 4d). Scores of a tile live there only."""
    room = sram // 2 // ((8 if backward else 4) * max(1, head_dim))
    return int(1 << min(8, max(4, room.bit_length() - 1)))


def read_again(work: Work, amounts: Amounts, speed: Speed) -> Number:
    """Bytes of keys and values that are read more than once: the tiles of a head's queries that run
    at the same time find them in the L2 cache, and there are as many as multiprocessors."""
    stack = work.stack
    shapes: tuple[Shape, ...] = (HEAD_DIM,), (S / CP,), KEYS
    if stack:
        shapes = tuple(tuple(of_stack(stack, f) for f in shape) for shape in shapes)
    width, tokens, keys = shapes
    head_dim = int(amounts.elements(width))
    tile = flash_tile(speed.sram, head_dim, work.phase == "backward")
    waves = -(-amounts.whole(amounts.elements(tokens)) // (tile * speed.sms))
    return SEEN * 2.0 * amounts.most(0, waves - 1) * amounts.real(amounts.bytes(keys, "bf16"))


EXPERT_TILE = 128  # rows of a tile of a grouped product
ROUTED_ROWS = (ROUTED, ARRIVED, COMPUTED)


def product_flops(
    work: Work, amounts: Amounts, sms: int, speed: Speed | None = None
) -> tuple[float, float]:
    """FLOPs of one execution, and those that it takes the time of: whole tiles, in whole waves.
    `speed`: of a step of training. Servers make the vocabulary longer, and what attention's tiles
    take to begin and end is in their rates."""
    begins = speed.begins(work.kernel) if speed else 1.0
    flops = padded = 0.0  # plain loops: this is the innermost part of an evaluation
    for count, shape in work.flops:
        done = count * amounts.elements(shape)
        flops += done
        if work.kernel == SCANNED:
            padded += done
        elif work.attention:
            more = speed.row_start(shape) if speed else FLASH_TILE
            longer = 1 + more / amounts.elements(shape[-2:-1])
            padded += done * longer * flash_padding(int(amounts.elements(shape[-1:])))
        else:
            longer = unfilled(work.phase == "backward", count, shape, amounts, sms, begins)
            if speed and shape[-1] is VOCAB / TP and _in_16_bits(work):
                longer = longer * where(
                    amounts.whole(amounts.elements(shape[-1:])) % ALIGNED == 0,
                    1.0,
                    constants.MISALIGNED.middle,
                )
            padded += done * longer
    return flops, padded


ALIGNED = 8  # values of 16 bits in the 16 bytes that rows of a product's operands begin at


def _in_16_bits(work: Work) -> bool:
    return any(dtype in ("bf16", "fp16") for _, dtype, *_ in work.traffic)


def unfilled(
    backward: bool, count: float, shape: Shape, amounts: Amounts, sms: int, begins: float
) -> Number:
    """How much longer a product of (rows, width, into) takes per FLOP than one that fills the GPU.

    Forward makes (rows, into); backward (rows, width) and, of a trained weight, (into, width),
    whose long sum over rows is cut into as many parts as fill the GPU.
    """
    of, whole, most = amounts.elements, amounts.whole, amounts.most
    into, width = whole(of(shape[-1:])), whole(of(shape[-2:-1]))
    real = most(1, whole(of(shape)) // most(1, into * width))
    experts = whole(of((EXPERTS / EP,))) if shape[0] in ROUTED_ROWS else 0
    share = functools.partial(filled_of, most=most) if amounts.arrays else filled
    rows = real + experts * EXPERT_TILE // 2  # those of each expert end in a half empty tile
    if not backward:
        return rows / real * started(width, begins, most) / share(rows, most(1, into), sms)
    inputs = rows / real * started(into, begins, most) / share(rows, most(1, width), sms)
    if count < 4:
        return inputs
    return (inputs + rows / real * started(rows / most(1, experts), begins, most)) / 2


def started(summed: Number, begins: float, most: Callable[..., Number] = max) -> Number:
    """How much longer a tile takes for its beginning and end, where it sums so many products."""
    return 1 + begins * constants.TILE_START.middle / most(1, summed)


def operation(
    name: str,
    phase: str,
    flops: float,
    traffic: float,
    speed: Speed,
    times: int,
    padded: float | None = None,
    kernel: str = PRODUCT,
    of_layers: bool = False,
) -> OperationTime:
    """`times` executions of one operation. `padded`: the FLOPs that it takes the time of, where
    they are more; kernel: whose rate they are done at."""
    rate = speed.matmul if kernel == PRODUCT else speed.of_kernel(kernel)
    compute = (flops if padded is None else padded) / rate
    hbm = traffic / speed.hbm
    if is_array(compute) or is_array(hbm):
        each, bound_by = maximum(compute, hbm), where(compute >= hbm, "compute", "hbm")
    else:
        each, bound_by = (compute, "compute") if compute >= hbm else (hbm, "hbm")
    return OperationTime(
        name,
        phase,
        flops * times,
        traffic * times,
        compute * times,
        hbm * times,
        (each + speed.launch) * times,
        bound_by,
        times,
        kernel,
        of_layers,
    )


class Execution(NamedTuple):
    """One operation, run so many times."""

    work: Work
    runs: int


@dataclass(frozen=True, eq=False, slots=True)
class Executions:
    """Operations and how often each is run, those that are."""

    works: Works
    runs: tuple[int, ...]

    def __iter__(self) -> Iterator[Execution]:
        return (Execution(w, n) for (w, _), n in zip(self.works, self.runs, strict=True) if n)


def executions(
    tapes: tuple[Tape, ...],
    counts: Sequence[int],
    again: tuple[str, ...] = (),
    times: int = 1,
    forwards: int = 1,
) -> Executions:
    """The operations of some tapes, run `counts` x `times` over, by phase; those of forward
    `forwards` times as often.

    Operations that several tapes have in common are one. `again` as in `works`; () is none.
    """
    every = (*counts, *(0 for _ in range(len(tapes) - len(counts))))
    return _executions(tapes, every, again or ("",) * len(tapes), times, forwards)


@cached
def _executions(
    tapes: tuple[Tape, ...],
    counts: tuple[int, ...],
    again: tuple[str, ...],
    times: int,
    forwards: int,
) -> Executions:
    every = works(tapes, again)
    often = {"forward": forwards * times}
    runs = (often.get(w.phase, times) * sum([counts[i] for i in of]) for w, of in every)
    return Executions(every, tuple(runs))


def run(every: Iterable[Execution], amounts: Amounts, speed: Speed) -> list[OperationTime]:
    """The time of operations, in order; found once for plans that share their amounts."""
    key = (id(every), speed)
    if not amounts.arrays and key in amounts.costs:
        known: list[OperationTime] = amounts.costs[key][1]
        return known
    found = [
        operation(
            w.name, w.phase, flops, traffic, speed, runs, padded, w.kernel, Part.LAYER in w.parts
        )
        for (w, runs), (flops, padded, traffic) in zip(
            every, _costs(every, amounts, speed), strict=True
        )
    ]
    if not amounts.arrays:
        amounts.costs[key] = every, found
    return found


Cost = tuple[float, float, float]


def _costs(every: Iterable[Execution], amounts: Amounts, speed: Speed) -> list[Cost]:
    """What each operation costs; found once for plans that share their amounts. Operations are
    known by identity, which is quick, and kept with what they cost, so that no others take their
    place."""
    key = id(every), speed.sms, speed.sram, speed.units, speed.starts, speed.rows
    known = amounts.costs.get(key)
    if known is None:
        found = [_cost(e.work, amounts, speed) for e in every]
        known = amounts.costs[key] = every, found
    costs: list[Cost] = known[1]
    return costs


def _cost(w: Work, amounts: Amounts, speed: Speed) -> Cost:
    """FLOPs of one execution, those that it takes the time of, and its traffic."""
    flops, padded = product_flops(w, amounts, speed.sms, speed) if w.flops else (0.0, 0.0)
    traffic = amounts.real(amounts.total(w.moved))
    if w.attention:
        traffic += read_again(w, amounts, speed)
    return flops, padded, traffic


PHASES = ("forward", "recompute", "backward", "optimizer")


def by_phase(operations: Iterable[OperationTime]) -> dict[str, float]:
    """Seconds of the operations of each phase."""
    sums = dict.fromkeys(PHASES, 0.0)
    for o in operations:
        sums[o.phase] = sums[o.phase] + o.seconds  # not in place: arrays may be shared
    return sums


def seconds(operations: Iterable[OperationTime]) -> float:
    return sum(o.seconds for o in operations)
