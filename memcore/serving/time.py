"""Serving time: one forward of a server, operation by operation, and what a request feels of it.

Decoding reads every weight once for each step, so that bandwidth decides, and after it what lies
between kernels: each engine has its own (memcore/hardware/kernels.py, memcore/words/engines.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memcore.hardware import constants
from memcore.hardware.accelerator import Accelerator
from memcore.hardware.constants import Constant
from memcore.hardware.kernels import (
    NOTHING,
    ONE,
    ONE_SHOT,
    SCORE_MOVED,
    SCORES_SOURCE,
    UNPACKED,
    UNPACKED_FROM,
    UNPACKS_SOURCE,
    Kernels,
    by_architecture,
    for_gpu,
    routing,
)
from memcore.quantity.interval import interval
from memcore.quantity.reading import (
    PLAIN,
    Read,
    Values,
    at_least_zero,
    ceil,
    computed,
    largest,
    least,
    quantity,
    where,
)
from memcore.report import OperationTime
from memcore.serving.cache import SERVER
from memcore.serving.room import BATCHES, SCHEDULER, batches, puts_out
from memcore.serving.towers import of_prompt, rows, runs_tower
from memcore.tape.dims import CHOSEN, EXPERT_D, EXPERTS, HEADS, TP, D
from memcore.tape.ledger import Amounts
from memcore.timing.communication import Links, network_rate
from memcore.timing.host import each_of
from memcore.timing.roofline import ROOFLINE, ROUTED_ROWS, Execution, product_flops
from memcore.units import GiB
from memcore.words.engines import FIRST_WAVE, PROMPTS_BEFORE, STEPS_BEFORE
from memcore.words.serving import PREFILLS, RUNTIMES

if TYPE_CHECKING:
    from memcore.plan.plan import Plan
    from memcore.serving.server import AlikeLayers, Server

SPLIT_ROWS = 256  # products of fewer rows split their sums over the GPU; others come in whole tiles
CPU = "cpu"  # a kind of part: what the CPU computes
OFFLOADED_FROM = 32  # tokens from which llama.cpp copies weights to the GPU instead
OFFLOADED = (
    "llama.cpp computes with weights in the host's memory on the CPU, and of 32 tokens and more "
    "copies them to the GPU for it (ggml-cuda.cu, ggml_backend_cuda_device_offload_op)"
)
CACHE_READ = "attention over the cache"
ATTENTION_OF = "new tokens attend to the cache: each reads every key and value once"
INDEX_SCORES = "scores of an indexer"
INDEX_OF = (
    "an indexer scores every token that is seen, of all its heads together: it reads each key, and "
    "writes a score of 32 bits that is read to choose (DeepGEMM's fp8_mqa_logits; DeepSeek-V3.2, "
    "section 2.1)"
)
SCORE_BYTES = 2 * 4  # of 32 bits, written and read
LAYERS, ATTENTION, INDEX, SCAN, HEAD, LINK, LAUNCH, HOST, DRAFT, TOWER, STEPS, EXCHANGE = (
    *("layers", "attention", "indexer", "scan", "head", "link", "launch", "host", "draft"),
    *("tower", "scheduler", "exchange"),
)
UNPACK, SCORES = "unpack", "scores"
OF_CACHE = (ATTENTION, INDEX)  # what reads what is kept of each token
LEVIATHAN = "Leviathan et al., Fast inference from transformers via speculative decoding, eq. 1"
STATE_READ = "each step reads and writes every state of each sequence once"


@dataclass(slots=True)  # not frozen, like the times that it is of
class Part:
    """One operation of a forward, and what it is made of.

    kind       one of the words above
    execution  of layers, head and tower
    batch, tokens, context    sequences, new tokens of each, tokens that each sees
    weights    bytes of them that it reads
    states     bytes of its sequences' states, once
    bits       of the values of these weights
    behind     of a copy: the rest of the step hides it
    reads      between kernels: of a step that reads prompts
    """

    kind: str
    time: OperationTime
    batch: int = 0
    tokens: int = 0
    context: float = 0
    execution: Execution | None = None
    weights: float = 0.0
    states: float = 0.0
    behind: bool = False
    bits: float = 0.0
    reads: bool = False


def forward(
    server: Server, batch: int, tokens: int, context: float, logits: int
) -> list[OperationTime]:
    """One forward through all layers: `batch` sequences of `tokens` new tokens at `context`."""
    return [p.time for p in parts(server, batch, tokens, context, logits)]


def seconds(parts: Sequence[Part]) -> float:
    return sum((p.time.seconds for p in parts), 0.0)


def parts(server: Server, batch: int, tokens: int, context: float, logits: int) -> list[Part]:
    """The same, with what each operation is made of."""
    found = of_layers(server, batch, tokens)
    found += mixing(server, batch, tokens, context)
    found += of_head(server, logits)
    reads = tokens > 1 + server.plan.serve.draft_tokens
    return found + between(server, found, batch * tokens, batch, reads)


@dataclass(frozen=True, slots=True)
class Rates:
    """What all operations of a forward have in common.

    read, cache, rows    B/s of products and elementwise kernels, of attention over the cache, of
                         what moves rows of experts
    attention            FLOP/s
    """

    kernels: Kernels
    gpu: Accelerator
    compute: str
    product: str
    read: float
    cache: float
    rows: float
    attention: float

    by_bits: dict[tuple[float, bool], tuple[float, float]] = field(
        default_factory=dict, compare=False
    )

    @classmethod
    def of(cls, server: Server) -> Rates:
        gpu, dtype, k = server.plan.accelerator, server.plan.weights, server.kernels
        read = gpu.memory_bandwidth * k.bandwidth.middle
        return cls(
            k, gpu, dtype.compute, dtype.product, read,
            gpu.memory_bandwidth * k.cache.middle, read * k.rows.middle,
            peak(k, gpu, dtype.compute) * attention_share(k, gpu).middle,
        )  # fmt: skip

    def dtype(self, bits: float) -> str:
        """In which a product is done whose weights have so many bits."""
        if bits >= WIDE:
            return self.compute
        native = self.product or (FP4_BESIDE if bits < NARROW and FP4 in self.gpu.flops else "")
        return native if native in self.gpu.flops else self.compute

    def products(self, bits: float, of_experts: bool = False) -> tuple[float, float]:
        """FLOP/s of such products, and B/s at which their weights come. of_experts: grouped."""
        found = self.by_bits.get((bits, of_experts))
        if found is None:
            dtype = self.dtype(bits)
            share = product_share(self.kernels, self.gpu, dtype).middle
            rate = peak(self.kernels, self.gpu, dtype) * share
            read = self.read * self.widened(bits, of_experts).middle
            found = self.by_bits[bits, of_experts] = rate, read
        return found

    def widened(self, bits: float, of_experts: bool) -> Constant:
        """The share of `read` at which weights of so many bits come."""
        if bits >= WIDE or self.dtype(bits) != self.compute:
            return ONE
        if bits >= NARROW:
            return self.kernels.eight
        return self.kernels.four_grouped if of_experts else self.kernels.four


@computed("serve.rates")
def rates_read(x: Any) -> Rates:
    return Rates.of(x.server)


def rates_of(server: Server) -> Rates:
    found: Rates = server.numbers.serve.rates
    return found


WIDE, NARROW = 16, 6  # bits
# Blackwell multiplies MXFP4 with activations of 8 bits (PTX ISA, tcgen05.mma kind::mxf8f6f4).
FP4, FP4_BESIDE = "fp4", "fp8"


def halved(kernels: Kernels, gpu: Accelerator, dtype: str) -> bool:
    """Whether products accumulate in 16 bits, faster than the datasheet's figure for a dtype."""
    return (
        kernels.halves and dtype == "fp16" and gpu.flops.get("int8", 0) / 2 > gpu.peak_flops(dtype)
    )


def peak(kernels: Kernels, gpu: Accelerator, dtype: str) -> float:
    """FLOP/s that products in a dtype reach a share of."""
    return gpu.flops["int8"] / 2 if halved(kernels, gpu, dtype) else gpu.peak_flops(dtype)


def product_share(kernels: Kernels, gpu: Accelerator, dtype: str) -> Constant:
    """Of the peak, what products in a dtype reach."""
    found = for_gpu(kernels.products, gpu) or {}
    if kernels.halved and gpu.halves_sums(dtype):
        return kernels.halved
    return found.get(dtype) or by_architecture(gpu).products


def attention_share(kernels: Kernels, gpu: Accelerator) -> Constant:
    return kernels.attention or by_architecture(gpu).attention


def routed_layers(found: Sequence[Part]) -> int:
    """Layers with experts."""
    return max((p.time.runs for p in found if p.execution and grouped(p.execution)), default=0)


def grouped(e: Execution) -> bool:
    """Whether it is a product of each expert's rows with the expert's weights."""
    return bool(e.work.flops) and e.work.flops[0][1][0] in ROUTED_ROWS


def moves_rows(e: Execution) -> bool:
    """Whether it gathers whole rows for experts, or weighs and sums what comes of them."""
    shapes = (shape for shape, _, _ in e.work.traffic)
    wide = (D, EXPERT_D)
    return not e.work.flops and any(s[0] in ROUTED_ROWS and s[-1] in wide for s in shapes if s)


def of_layers(server: Server, batch: int, tokens: int) -> list[Part]:
    amounts = server.amounts(batch, tokens)
    rates = rates_of(server)
    return [_part(server, LAYERS, e, amounts, batch, tokens, rates) for e in server.executions[0]]


def of_head(server: Server, logits: int) -> list[Part]:
    amounts = server.amounts(logits, 1)
    rates = rates_of(server)
    return [_part(server, HEAD, e, amounts, logits, 1, rates) for e in server.executions[1]]


def _part(
    server: Server, kind: str, e: Execution, amounts: Amounts, batch: int, tokens: int,
    rates: Rates,
) -> Part:  # fmt: skip
    """An operation whose weights are read as they are stored."""
    weights, others, bits = traffic(server, e, amounts)
    work = compute = 0.0
    if e.work.flops:
        work, padded = product_flops(e.work, amounts, rates.gpu.sms)
        rate, read = rates.products(bits, grouped(e))
        if e.work.attention:
            rate = rates.attention
        compute = (padded if batch * tokens >= SPLIT_ROWS else work) / rate
        hbm = weights / read + others / rates.read
    else:
        hbm = (weights + others) / (rates.rows if moves_rows(e) else rates.read)
    runs = e.runs
    time = OperationTime(
        e.work.name, e.work.phase, work * runs, (weights + others) * runs, compute * runs,
        hbm * runs, max(compute, hbm) * runs, "compute" if compute >= hbm else "hbm", runs,
    )  # fmt: skip
    return Part(kind, time, batch, tokens, 0, e, weights * runs, bits=bits)


def of_tower(server: Server) -> list[Part]:
    """What runs once for a prompt: an encoder and the keys and values that layers keep of its
    result, or what makes tokens of a prompt's images."""
    if server.tower is None or not runs_tower(server):
        return []
    amounts, rates = of_prompt(server), rates_of(server)
    batch, tokens = rows(server)
    found = [_part(server, TOWER, e, amounts, batch, tokens, rates) for e in server.once]
    return [*found, _between_kernels(server, found, server.tower.layers)]


def traffic(server: Server, e: Execution, amounts: Amounts) -> tuple[float, float, float]:
    """Bytes of weights, as stored, and of everything else that one run reads and writes; bits of
    these weights' values."""
    weights = others = 0.0
    width = float(WIDE)
    for shape, dtype, n in e.work.traffic:
        bits = server.bits.get(shape)
        if bits is None:
            others += n * amounts.bytes(shape, dtype)
        else:
            weights += n * amounts.elements(shape) * bits / 8
            width = min(width, bits)
    return weights, others, width


def mixing(server: Server, batch: int, tokens: int, context: float) -> list[Part]:
    """What mixes new tokens with those before: attention, and scans through states."""
    attends = [attention(server, batch, tokens, context)] if server.every.attends else []
    chooses = [index(server, batch, tokens, context)] if server.indexers else []
    return attends + chooses + scans(server, batch, tokens)


def scans(server: Server, batch: int, tokens: int) -> list[Part]:
    """New tokens through the states of their sequences, which each scan reads and writes once; with
    a draft it writes one for each guess."""
    if not server.every.recurrent:
        return []
    amounts, rates = server.amounts(batch, tokens), rates_of(server)
    found = []
    for e in server.executions[2]:
        part = _part(server, SCAN, e, amounts, batch, tokens, rates)
        states = float(batch * server.state_bytes(amounts) * e.runs)
        o, moved = part.time, (1 + server.state_copies) * states
        hbm = o.hbm_seconds + moved / rates.read
        time = OperationTime(
            o.name, o.phase, o.flops, o.hbm_bytes + moved, o.compute_seconds, hbm,
            max(o.compute_seconds, hbm), "compute" if o.compute_seconds >= hbm else "hbm", o.runs,
        )  # fmt: skip
        found.append(replace(part, time=time, states=states))
    return found


def attention(server: Server, batch: int, tokens: int, context: float) -> Part:
    """Attention of new tokens to the cache: it reads every key and value once, of a layer with a
    window no more than that, and of an indexer's choice no more than its tokens chose. Of an
    encoder-decoder each layer attends twice, to other tokens."""
    rates, amounts = rates_of(server), server.amounts(batch, tokens)
    share = 0.5 if tokens == context else 1.0  # a prompt's tokens see half of it on average
    products = read = 0.0  # of all layers
    for part in server.parts:
        seen = part.count * seen_share(part, tokens, context)
        visible = part.count * read_share(part, tokens, context)
        products += seen * sum(map(amounts.elements, server.products(tokens, part.apart)))
        read += visible * (server.cached(part.apart, amounts) * server.kv_bits / 8)
    flops = 2.0 * batch * tokens * context * share * products
    moved = batch * context * read
    compute, hbm = flops / rates.attention, moved / rates.cache
    time = OperationTime(
        CACHE_READ, "forward", flops, moved, compute, hbm, max(compute, hbm),
        "compute" if compute >= hbm else "hbm", server.every.attends,
    )  # fmt: skip
    return Part(ATTENTION, time, batch, tokens, context)


def index(server: Server, batch: int, tokens: int, context: float) -> Part:
    """What indexers' scores of new tokens take, of all layers that have their own."""
    rates, layers = rates_of(server), server.indexers
    share = 0.5 if tokens == context else 1.0
    pairs = batch * tokens * context * share * layers / server.index_rate
    flops = 2.0 * pairs * server.amounts(batch, tokens).elements(server.index_pair)
    keys = batch * context * server.index_bytes * server.plan.architecture.layers
    moved = keys + pairs * server.index_scores * SCORE_BYTES
    dtype = server.index_dtype
    rate = rates.gpu.peak_flops(dtype) * product_share(rates.kernels, rates.gpu, dtype).middle
    compute, hbm = flops / rate, moved / rates.cache
    time = OperationTime(
        INDEX_SCORES, "forward", flops, moved, compute, hbm, max(compute, hbm),
        "compute" if compute >= hbm else "hbm", layers,
    )  # fmt: skip
    return Part(INDEX, time, batch, tokens, context)


def read_share(part: AlikeLayers, tokens: float, context: float) -> float:
    """The share of a context that new tokens read: of an indexer's choice each its own. Of entries
    there are fewer than tokens."""
    most, there = part.sight, context / part.rate
    if not most:
        return 1.0 / part.rate
    return min(1.0, (most if part.windowed else tokens * most) / max(1.0, there)) / part.rate


def seen_share(part: AlikeLayers, tokens: float, context: float) -> float:
    """The share of a context that new tokens attend to, each by itself; those of a whole prompt, by
    how many they would see without a window or an indexer."""
    most, there = part.sight, context / part.rate
    if not most:
        return 1.0 / part.rate
    if tokens != context:
        return min(1.0, most / max(1.0, there)) / part.rate
    return 2 * seen_of_prompt(there, most) / max(1.0, there) ** 2 / part.rate


def seen_of_prompt(tokens: float, window: int) -> float:
    """Pairs of a prompt's token and one that it sees through a window; without one half of all."""
    most = min(tokens, window)
    return most * (tokens - most / 2)


def between(
    server: Server, found: Sequence[Part], tokens: int, sequences: int = 1, reads: bool = False
) -> list[Part]:
    """What a forward takes besides its operations: links, the host, launches, the scheduler.
    `reads`: parts of prompts are among its tokens."""
    plan = server.plan
    rest = []
    if plan.serving_tp > 1:
        link, one = reduction(server, tokens)
        runs = server.reductions
        rest.append(Part(LINK, _only("tensor-parallel all-reduce", runs * one, link, runs),
                         tokens=tokens))  # fmt: skip
    if server.expert_replicas > 1 and (layers := routed_layers(found)):
        link, one = exchange(server, tokens)
        time = _only("rows to their experts and back", layers * one, link, 2 * layers)
        rest.append(Part(EXCHANGE, time, tokens=tokens))
    if plan.streams_cache:
        read = sum(p.time.hbm_bytes for p in found if p.kind in OF_CACHE) / plan.serving_pp
        exposed = of_host(plan, read, seconds(found))
        copied = _only("cache from the host", exposed, "pcie", 1)
        rest.append(Part(HOST, copied, weights=read, behind=True))
    if plan.serve.offload_weights:
        moved = min(plan.serve.offload_weights * GiB, sum(p.weights for p in found))
        rest.append(Part(HOST, _only("weights from the host", of_host(plan, moved), "pcie", 1),
                         weights=moved))  # fmt: skip
    rest += by_cpu(server, found, tokens)
    for kind, name, moved in (
        (UNPACK, "weights written out in 16 bits", written_out(server, found)),
        (SCORES, "scores of attention in fp32", scores(server, found)),
    ):
        if moved:
            taken = _only(name, of_memory(server, moved), "hbm", 1)
            rest.append(Part(kind, taken, weights=moved))
    rest.append(_between_kernels(server, found, plan.architecture.layers, reads))
    if each := of_scheduler(server, sequences):
        rest.append(Part(STEPS, _only("scheduler", each, "host", 1), sequences))
    return rest


def written_out(server: Server, found: Sequence[Part]) -> float:
    """Bytes of weights that are read as stored and written out in 16 bits (UNPACKS_SOURCE)."""
    if not server.kernels.unpacks:
        return 0.0
    narrow = [
        p for p in found
        if p.weights and p.time.flops and p.bits < WIDE and p.batch * p.tokens >= UNPACKED_FROM
    ]  # fmt: skip
    return sum((p.weights * (1 + 8 / p.bits * UNPACKED) for p in narrow), 0.0)


def scores(server: Server, found: Sequence[Part]) -> float:
    """Bytes of the scores of prompts' tokens, with all that the step can see (SCORES_SOURCE); those
    of single tokens are in what attention over the cache reaches."""
    if not server.kernels.scores:
        return 0.0
    heads = server.amounts(1, 1).elements((HEADS / TP,))
    pairs = 0.0
    for p in found:
        if p.kind == ATTENTION and p.batch * p.tokens >= UNPACKED_FROM:
            sees = p.context if p.tokens == p.context else p.context + p.tokens / 2
            seen = sum(part.count * read_share(part, p.tokens, sees) for part in server.parts)
            pairs += p.batch * p.tokens * sees * seen
    return float(pairs * heads * SCORE_MOVED)


def of_memory(server: Server, moved: float, x: Any = PLAIN) -> Read:
    """Seconds of bytes that kernels of their own read and write."""
    rate = x.at("hardware.memory_bandwidth", server.plan.accelerator.memory_bandwidth)
    every = x.known("bytes", moved, "bytes", source=f"{UNPACKS_SOURCE}; {SCORES_SOURCE}")
    return every / (rate * x.constant(server.kernels.bandwidth))


def by_cpu(server: Server, found: Sequence[Part], tokens: int) -> list[Part]:
    """What a forward takes longer since some layers, or the experts of some, are in the host's
    memory: the CPU reads them there, and of many tokens the GPU does over PCIe (OFFLOADED)."""
    plan = server.plan
    if not plan.uses_cpu or plan.accelerator.unified_memory:
        return []
    of_layers, of_experts = _host_shares(server)
    read = on_gpu = 0.0
    for p in found:
        share = of_layers
        if p.kind == LAYERS and p.execution and _reads_experts(p.execution):
            share = of_experts
        elif p.kind == HEAD:
            share = 0.0
        read += share * (p.time.hbm_bytes if p.kind in (*OF_CACHE, SCAN) else p.weights)
        on_gpu += share * p.time.seconds
    few, more = tokens < OFFLOADED_FROM, of_cpu(plan, tokens, read, on_gpu)
    name = "layers and experts by the CPU" if few else "weights from the host"
    return [Part(CPU, _only(name, more, "dram" if few else "pcie", 1), tokens=tokens, weights=read,
                 context=on_gpu)]  # fmt: skip


def _host_shares(server: Server) -> tuple[float, float]:
    """Of layers, and of those with experts, the share that the CPU computes."""
    plan, stack = server.plan, server.stack
    first = plan.host_layers
    with_experts = [
        i for i in range(stack.count)
        if any(len(p.shape) == 3 and p.shape[0] is EXPERTS
               for p in server.layers[stack.kind(i)][0].parameters)
    ]  # fmt: skip
    there = sum(1 for i in with_experts if i < plan.expert_layers)
    return first / plan.architecture.layers, there / len(with_experts) if with_experts else 0.0


def _reads_experts(e: Execution) -> bool:
    return any(shape and shape[0] is CHOSEN and len(shape) == 3 for shape, _, _ in e.work.traffic)


def host_read(plan: Plan, x: Any = PLAIN) -> Read:
    """B/s that the CPU reads weights with."""
    rate = x.at("hardware.dram_bandwidth", plan.node.dram_bandwidth)
    return rate * x.constant(constants.HOST_READ)


def of_cpu(plan: Plan, tokens: int, read: float, on_gpu: float, x: Any = PLAIN) -> Read:
    """Seconds of what the CPU reads, beyond those that the GPU would take for it."""
    there = x.known("weights and cache on the host", read, "bytes", source=OFFLOADED)
    if tokens >= OFFLOADED_FROM:
        return there / host_rate(plan, x)
    theirs = x.known("what the GPU would take for them", on_gpu, "seconds", source=ROOFLINE,
                     certainty="assumed")  # fmt: skip
    return at_least_zero(there / host_read(plan, x) - theirs)


def of_host(plan: Plan, moved: float, busy: Read = None, x: Any = PLAIN) -> Read:
    """Seconds of a copy from the host, beyond those that hide it."""
    source = "as many as serve.offload_weights says, or keys and values on the host"
    taken = x.known("bytes", moved, "bytes", source=source) / host_rate(plan, x)
    return taken if busy is None else at_least_zero(taken - busy)


def of_scheduler(server: Server, sequences: int, x: Any = PLAIN) -> Read:
    """Seconds of an engine's scheduler in a step."""
    engine = server.engine
    each = x.constant(engine.sequence) * x.known("sequences", sequences, source="serve.running")
    step = engine.of_step(server.plan.accelerator)
    return each if step is NOTHING else x.constant(step) + each


def idle(
    server: Server, found: Sequence[Part], layers: int, reads: bool, busy: Read, x: Any = PLAIN
) -> Read:
    """Seconds between the kernels of a forward's operations, which take `busy` seconds: what the
    host takes to start them, beyond what they take; or a share of each layer."""
    plan, kernels = server.plan, server.kernels
    if RUNTIMES[plan.runtime].launches:
        source = "operations of the layers and the head"
        host = x.known("kernels", launches(server, found), source=source)
        return at_least_zero(host * each_of(constants.HOST_LAUNCH, plan, x) - busy)
    every = x.known("layers", layers, source="config.json")
    between = x.constant(kernels.layer) * every
    more, routed = routing(kernels, plan.accelerator), routed_layers(found)
    if more is not NOTHING and routed:
        of_experts = x.known("layers with experts", routed, source="config.json")
        between = between + x.constant(more) * of_experts
    if plan.architecture.kv_rank and kernels.absorbed is not NOTHING:
        between = between + x.constant(kernels.absorbed) * every
    if reads and server.prompts is not NOTHING:
        between = between + x.constant(server.prompts) * every
    return between


def _between_kernels(
    server: Server, found: Sequence[Part], layers: int, reads: bool = False
) -> Part:
    time = _only("between kernels", idle(server, found, layers, reads, seconds(found)), "launch", 1)
    return Part(LAUNCH, time, reads=reads)


def _only(name: str, seconds: float, link: str, runs: int) -> OperationTime:
    return OperationTime(name, "forward", 0, 0, 0, 0, seconds, link, runs)


def launches(server: Server, found: Sequence[Part]) -> float:
    """Kernels that the host starts in a forward, where it starts each: one for an operation, and
    more where weights are widened by a kernel of their own."""
    n = float(sum(p.time.runs for p in found))
    dtype = server.plan.weights
    products = sum(p.time.runs for p in found if p.kind == LAYERS and p.weights and p.time.flops)
    more = constants.NF4_LAUNCHES.get(dtype.matrices)
    return n + (products * more.middle if more else 0)


def reduction(server: Server, tokens: int, x: Any = PLAIN) -> tuple[str, Read]:
    """The link that takes most of one all-reduce of the hidden states, and its seconds."""
    plan, kernels = server.plan, server.kernels
    over = Links.of(plan, plan.serving_tp, x=x)
    each = x.known("bytes of a value", 2.0, "bytes", source="the dtype")
    width = x.known("hidden size", plan.architecture.hidden_size, source="config.json")
    moved = each * x.known("new tokens", tokens, source="the plan, and what fits") * width
    ring = over.reduce(moved)
    link = max(ring, key=lambda name: ring[name])
    if over.domains > 1 or not over.direct:
        return link, ring[link]
    others = x.known("other ranks", plan.serving_tp - 1, source="ranks of a replica: serve.tp")
    if kernels.hop is None:  # every GPU reads what the others have
        return link, least(ring[link], x.constant(ONE_SHOT) + moved * others / over.peer)
    # A ring's bytes, behind an engine's own kernel, which waits for each other GPU's signal.
    ranks = x.known("ranks of a replica", plan.serving_tp, source="serve.tp")
    wait = x.constant(kernels.hop) + x.constant(kernels.rank) * others
    rate = over.peer if kernels.link is ONE else over.peer * x.constant(kernels.link)
    return link, least(ring[link], wait + over.twice * moved * others / ranks / rate)


def exchange(server: Server, tokens: int, x: Any = PLAIN) -> tuple[str, Read]:
    """The link that takes most of the two all-to-alls of a layer with experts, where attention is
    data parallel, and their seconds: every token goes to each of its experts, and comes back."""
    plan, model = server.plan, server.plan.architecture
    each = x.known("bytes of a value", 2.0, "bytes", source="16 bits")
    rows = x.known("new tokens of a rank", tokens, source="the plan, and what fits")
    rows = rows * x.known("experts of a token", model.top_k, source="config.json")
    moved = each * rows * x.known("hidden size", model.hidden_size, source="config.json")
    over = Links.of(plan, plan.parallel.ep, x=x).exchange(moved)
    link = max(over, key=lambda name: over[name])
    return link, x.known("there and back", 2, source="an all-to-all each") * over[link]


def host_rate(plan: Plan, x: Any = PLAIN) -> Read:
    """B/s between one GPU and its host."""
    rate = x.at("hardware.pcie_bandwidth", plan.node.pcie_bandwidth)
    return rate * x.constant(constants.LINK_EFFICIENCY)


def of_running(server: Server, running: int) -> Values:
    """Its quantities while so many sequences generate, each at half of its output, and no others
    are asked of it; in a closed loop those of as many users."""
    if closed(server):
        serve = server.plan.serve.model_copy(update={"concurrency": running})
        return replace(server, plan=server.plan.model_copy(update={"serve": serve})).numbers
    return server.numbers.where_given({"serve.running": running, "serve.waiting": 0})


def at_once(server: Server) -> int:
    """Sequences that generate at once in steps of max_batched_tokens, as memory alone would not
    say."""
    return int(server.numbers.serve.step_sequences)


def prompts_beside(server: Server, running: int) -> float:
    """Tokens of prompts that a step reads on average, where as many come as `running` end."""
    s = server.plan.serve
    tokens = server.numbers.serve.computed_tokens
    return float(running * tokens / (s.output_len / server.numbers.serve.tokens_per_step))


def prompt(server: Server, running: int, chunks: int, left: int) -> list[Part]:
    """The parts of the middle one of the steps that a prompt is read in: with its own part, or as
    much of all prompts as such a step, with tokens `left` for them, reads on average, whichever is
    more."""
    s = server.plan.serve
    n = new_of_prompt(server)
    if server.plan.architecture.encoder_decoder:  # the first token, with the whole prompt in reach
        return parts(server, 1, 1, s.prompt_len + 1, 1)
    if closed(server) or not PREFILLS[s.prefill].chunked:
        return parts(server, 1, n, reach(server), 1) + from_second_tier(server, n)
    chunk = -(-n // chunks)
    now = min(left, max(chunk, round(prompts_beside(server, running))))
    return reading(server, running if mixes(server) else 0, now)


def from_second_tier(server: Server, tokens: float) -> list[Part]:
    """What prompts with so many new tokens had computed before, on its way from the host."""
    own = new_of_prompt(server)
    before = server.plan.serve.prompt_len - own
    if not server.plan.second_tier or not before:
        return []
    moved = tokens / own * before * server.kv_per_token
    copied = _only("cache from the host", of_host(server.plan, moved), "pcie", 1)
    return [Part(HOST, copied, weights=moved)]


def new_of_prompt(server: Server) -> int:
    """Tokens of a prompt that are not in the prefix cache."""
    return int(server.numbers.serve.computed_tokens)


def reach(server: Server) -> float:
    """Tokens that those of a prompt see, as attention counts them: the whole prompt, of which a
    token sees half on average, or what was cached and half of the rest."""
    n, whole = new_of_prompt(server), server.plan.serve.prompt_len
    return n if n == whole else whole - n / 2


def closed(server: Server) -> bool:
    """Whether as many requests are there at all times: one that ends makes another come."""
    return bool(server.plan.serve.arrivals == "closed")


def joins(server: Server) -> bool:
    """Whether prompts are read where others generate; those of an encoder-decoder in a closed loop
    alone."""
    if PREFILLS[server.plan.serve.prefill].elsewhere:
        return False
    return closed(server) or not server.plan.architecture.encoder_decoder


def mixes(server: Server) -> bool:
    """Whether a step both reads prompts and generates; else prompts come first, and those that
    generate wait for them."""
    chunked = PREFILLS[server.plan.serve.prefill].chunked or closed(server)
    return joins(server) and chunked and not server.engine.alternates


def in_waves(server: Server) -> bool:
    """Whether who ends together asks again together, and all that generate wait until every prompt
    is read: a closed loop of an engine that reads prompts first."""
    return joins(server) and closed(server) and server.engine.alternates


def left_of_step(server: Server, running: int) -> int:
    """Tokens of a step that prompts can have, where `running` others generate."""
    theirs = running * (1 + server.plan.serve.draft_tokens) if mixes(server) else 0
    return max(1, server.plan.batched_tokens - theirs)


def joining(server: Server, running: int) -> int:
    """Tokens of prompts in a step that reads any: a whole prompt, or as many as come for what each
    step ends, if the step has room for them. In waves all come that end together."""
    own, come = new_of_prompt(server), prompts_beside(server, running)
    if in_waves(server):
        come = max(come, ends_together(server.plan) * running * own)
    return int(min(left_of_step(server, running), max(own, come)))


def joined(server: Server, running: int) -> list[Part]:
    """One step with such tokens of prompts in it, of all that run where the engine mixes them."""
    generate = running if mixes(server) else 0
    return reading(server, generate, joining(server, running))


def reading(server: Server, running: int, now: int) -> list[Part]:
    """One step of `running` sequences with so many tokens of prompts."""
    s, own = server.plan.serve, new_of_prompt(server)
    prompts, new = max(1, round(now / own)), 1 + s.draft_tokens
    each, rows = max(1, now // prompts), running * (1 + s.draft_tokens)
    sees = reach(server) if each == own else s.prompt_len - own / 2
    found = of_layers(server, 1, rows + now)
    if running:
        found += mixing(server, running, new, context_of(server))
    found += mixing(server, prompts, each, sees)
    found += of_head(server, rows + prompts)
    found += between(server, found, rows + now, running or prompts, reads=True)
    return found + from_second_tier(server, now) + (drafts(server, running) if running else [])


def of_batch(server: Server, running: int) -> int:
    """Sequences of one of the batches that are under way."""
    return -(-running // batches(server))


def context_of(server: Server) -> int:
    """Tokens that a sequence has at half of its output."""
    return server.plan.serve.prompt_len + server.plan.serve.output_len // 2


def decoding(server: Server, running: int) -> list[Part]:
    """One step: a token of each sequence, or a check of those that a draft guessed."""
    new = 1 + server.plan.serve.draft_tokens
    found = parts(server, running, new, context_of(server), running * new)
    return found + drafts(server, running)


def drafts(server: Server, running: int) -> list[Part]:
    """What a draft's model takes to guess, in a step."""
    draft, times = server.draft, server.forwards
    if not times or not draft:
        return []
    one = seconds(decoding(draft, running))
    name = f"draft by {draft.plan.architecture.label}"
    return [Part(DRAFT, _only(name, times * one, "hbm", times), running)]


def transfer(server: Server) -> float:
    """Seconds to send a prompt's cache to other GPUs: over the network where there are several
    nodes, else between peers."""
    plan = server.plan
    if not PREFILLS[plan.serve.prefill].elsewhere:
        return 0.0
    return float(sent(server, plan.serve.prompt_len) / transfer_rate(plan))


def sent(server: Server, tokens: int) -> int:
    """Bytes of the cache of so many tokens, with the states after them."""
    states = server.caches.recurrent * server.state_bytes(server.amounts(1, 1))
    return tokens * server.kv_per_token + states


def transfer_rate(plan: Plan, x: Any = PLAIN) -> Read:
    """B/s that one GPU has of the link that a cache is sent over."""
    if plan.cluster.gpus > plan.gpus_per_domain:
        return network_rate(plan, x) * x.constant(constants.LINK_EFFICIENCY)
    return Links.of(plan, 2, reached=constants.LINK_EFFICIENCY, x=x).next


@dataclass(frozen=True, slots=True)
class Point:
    """One concurrency: tokens per second of a replica, and seconds per token of a sequence."""

    running: int
    tokens_per_second: float
    tpot_seconds: float
    bound_by: str
    fits: bool


def points(server: Server, most: int) -> tuple[Point, ...]:
    """Throughput and latency against how many sequences run, a few sizes for each power of two up
    to four times what fits, so that what memory forbids is seen too."""
    sizes = sorted({round(2 ** (k / 2)) for k in range(2 * max(1, 4 * most).bit_length())})
    found = []
    for n in [s for s in sizes if s <= max(1, 4 * most)]:
        step = decoding(server, of_batch(server, n))
        each = seconds(step) / server.numbers.serve.tokens_per_step
        found.append(Point(n, n / each, each, bound(step), n <= most))
    return tuple(found)


def bound(parts: Sequence[Part]) -> str:
    """What takes most of some parts' seconds."""
    sums: dict[str, float] = {}
    for o in (p.time for p in parts):
        sums[o.bound_by] = sums.get(o.bound_by, 0.0) + o.seconds
    return max(sums, key=lambda k: sums[k])


# --- what the report says of it ------------------------------------------------------------------


@computed("serve.tower")
def tower(x: Any) -> list[Part]:
    """What runs once for a prompt, in the first of its steps."""
    return of_tower(x.server)


@computed("serve.prefill")
def prefill(x: Any) -> list[Part]:
    """One of the steps that a prompt is read in."""
    running = of_batch(x.server, x.serve.running)
    return prompt(x.server, running, x.serve.prefill_steps, _left(x))


@computed("serve.joined")
def joined_step(x: Any) -> list[Part]:
    """A step that reads prompts, where many come."""
    if not joins(x.server):
        return []
    return joined(x.server, of_batch(x.server, x.serve.running))


@computed("serve.decode")
def decode(x: Any) -> list[Part]:
    """One step of all that run, or of a batch of them, one for each stage of a pipeline."""
    return decoding(x.server, of_batch(x.server, x.serve.running))


def _sum_of(path: str, parts: str) -> None:
    computed(path)(lambda x: seconds(getattr(x.serve, parts)) if x.serve.running else None)


_sum_of("serve.tower_seconds", "tower")
_sum_of("serve.prefill_step", "prefill")
_sum_of("serve.decode_step", "decode")
_sum_of("serve.joined_step", "joined")


@computed("serve.transfer_seconds")
def transfer_seconds(x: Any) -> float | None:
    return transfer(x.server) if x.serve.running else None


@computed("serve.prefill_bound_by")
def prefill_bound_by(x: Any) -> str | None:
    return bound([*x.serve.tower, *x.serve.prefill]) if x.serve.running else None


@computed("serve.decode_bound_by")
def decode_bound_by(x: Any) -> str | None:
    return bound(x.serve.decode) if x.serve.running else None


@quantity(
    "serve.tokens_per_step",
    "Tokens of a step",
    "",
    "Of one sequence, on average: with a draft its acceptance length, the checked token with it.",
    [LEVIATHAN],
)
def tokens_per_step(x: Any) -> Read:
    """Each guess is right as often as the others."""
    n, right = x.server.plan.serve.draft_tokens, x.server.plan.serve.draft_acceptance
    if not n or right == 1:
        return x.said(float(n + 1), "Every guess is right." if n else "One each.", [SERVER])
    source = "serve.draft_acceptance, each"
    every = x.known("that all are right", right ** (n + 1), source=source)
    one = x.known("certainty", 1, source=LEVIATHAN)
    return (one - every) / (one - x.plan.serve.draft_acceptance)


def _left(x: Any) -> Read:
    """Tokens of prompts that a step has room for beside those of the sequences that run."""
    guesses, theirs = x.plan.serve.draft_tokens, x.serve.running
    if joins(x.server) and not mixes(x.server):
        return x.serve.batched_tokens
    own = x.known("token of a step", 1, source=SCHEDULER)
    if batches(x.server) > 1:
        theirs = ceil(theirs / x.known("batches", batches(x.server), source=BATCHES))
    theirs = where(guesses > 0, theirs * (own + guesses), theirs)
    return largest(1, x.serve.batched_tokens - theirs)


@quantity("serve.prefill_steps", "Steps of a prompt", "", "In which a prompt is read.")
def prefill_steps(x: Any) -> Read | None:
    if not x.serve.running:
        return None
    if x.server.plan.architecture.encoder_decoder or not PREFILLS[x.plan.serve.prefill].chunked:
        return x.said(1, sources=[SERVER])
    return ceil(x.serve.computed_tokens / _left(x))


@quantity(
    "serve.first_seconds",
    "Before the first token",
    "seconds",
    "HTTP and the scheduler.",
)
def first_seconds(x: Any) -> Read | None:
    if not x.serve.running:
        return None
    first = x.server.engine.before(x.server.plan.accelerator)
    if first is NOTHING:
        return x.said(0.0, "Nothing is known of it for this engine.", [SERVER])
    found: Read = x.constant(first)
    return found


CLOSED = "a closed loop: each step that ends a sequence lets another's prompt in"
LONG_RUN = "in the long run each step that ends a sequence lets another's prompt in"


@quantity(
    "serve.joining_tokens",
    "Tokens of prompts in a step that reads any",
    "tokens",
    "While many come: a whole prompt, or as many as come for what each step ends.",
    [LONG_RUN],
)
def joining_tokens(x: Any) -> Read | None:
    if not (x.serve.running and joins(x.server)):
        return None
    running = of_batch(x.server, x.server.numbers.serve.running)
    return x.said(joining(x.server, running))


@quantity(
    "serve.interruption_seconds",
    "What a prompt adds",
    "seconds",
    "To the steps of those that generate, while many come, all of its parts together.",
    [LONG_RUN],
)
def interruption_seconds(x: Any) -> Read | None:
    if not (x.serve.running and joins(x.server)):
        return None
    more = x.serve.joined_step
    if mixes(x.server):
        more = at_least_zero(more - x.serve.decode_step)
    tokens, plan = x.serve.computed_tokens, x.server.plan
    if puts_out(x.server) and not plan.second_tier:
        tokens = tokens + x.serve.again_tokens
    found = more * tokens / x.serve.joining_tokens
    if puts_out(x.server) and plan.second_tier:
        found = found + x.serve.again_tokens * x.serve.kv_bytes_per_token / host_rate(plan, x)
    if runs_tower(x.server):
        found = x.serve.tower_seconds + found
    under_way = batches(x.server)  # a prompt holds up its own batch alone
    return found / x.known("batches", under_way, source=BATCHES) if under_way > 1 else found


@quantity(
    "serve.wait_seconds",
    "Waits for others",
    "seconds",
    "Of a closed loop: until the step that runs has ended and prompts that came before are read; "
    "and for room in memory, where more ask than fit.",
    [CLOSED],
)
def wait_seconds(x: Any) -> Read | None:
    if not x.serve.running:
        return None
    if not closed(x.server):
        return x.said(0.0, "One prompt that need not wait.", [SERVER])
    found = x.serve.queue_seconds
    if x.server.plan.serve.concurrency <= x.server.numbers.serve.running:
        return found
    more = x.serve.waiting
    if puts_out(x.server):  # who was put out has its first token
        more = more - x.serve.out_sequences
    return found + more / x.serve.running * x.serve.request_seconds


WAVES = (
    "SGLang reads prompts first and generates where none is left, never both in a step "
    "(managers/scheduler.py, get_next_batch_to_run; --enable-mixed-chunk is off): requests that "
    "end in the same step ask together, are read together, and go on together"
)
ALIKE_ENDS = (
    "of two normal numbers with this standard deviation: that they are less than a step apart"
)


def ends_together(plan: Plan) -> float:
    """The share of others whose outputs end in the same step as one's own, of those that began in
    the same one: all where lengths are fixed, few where they differ by more than some tokens.
    Reading does not bring them together again: who waits for it does not generate."""
    s = plan.serve
    apart = 0.0 if s.lengths == "fixed" else s.output_cv * s.output_len  # tokens
    return min(1.0, 1 / (2 * math.sqrt(math.pi) * apart)) if apart else 1.0


def _of_wave(x: Any) -> Read:
    """Seconds that a prompt waits for those of others that ended with it: of the steps that these
    are read in, half come before its own, which it shares."""
    half = x.known("half of the steps on average", 0.5, source=WAVES)
    share = x.known("share of others that end in the same step", ends_together(x.server.plan),
                    source=f"serve.lengths, serve.output_cv; {ALIKE_ENDS}")  # fmt: skip
    read = half * (x.serve.running * x.serve.interruption_seconds + x.serve.joined_step)
    return share * at_least_zero(read - x.serve.prefill_step)


@quantity(
    "serve.queue_seconds",
    "Waits for the step and the prompts before it",
    "seconds",
    "In a closed loop, while all that ask have room.",
    [CLOSED],
)
def queue_seconds(x: Any) -> Read | None:
    """The first of some waves comes all at once, each request waits for half of the others on
    average; later ones come while prompts of others are read, as much of the time as that takes.
    Where an engine reads prompts first, they wait for those that ended with them."""
    if not (x.serve.running and closed(x.server)):
        return None
    others = x.serve.running - x.known("one's own", 1, source=CLOSED)
    prompts = x.constant(FIRST_WAVE) * others
    if in_waves(x.server):  # who asks at the end of a step is read in the next one
        return largest(prompts * x.serve.prefill_step, _of_wave(x))
    if joins(x.server):
        reading = x.serve.running * x.serve.interruption_seconds
        prompts = prompts + x.constant(PROMPTS_BEFORE) * (reading / (_steps(x) + reading))
    before = prompts * x.serve.prefill_step
    return x.constant(STEPS_BEFORE) * x.serve.decode_step + before


def _steps(x: Any) -> Read:
    """Seconds of a request's own steps."""
    found: Read = x.plan.serve.output_len / x.serve.tokens_per_step * x.serve.decode_step
    return found


@quantity(
    "serve.request_seconds",
    "A request",
    "seconds",
    "In a closed loop, from where it has room to its last token: its own steps, and what the "
    "prompts of all others add to them.",
    [CLOSED],
)
def request_seconds(x: Any) -> Read | None:
    if not (x.serve.running and closed(x.server)):
        return None
    steps = _steps(x)
    least = _first_alone(x) + x.serve.queue_seconds + steps
    if not joins(x.server):
        return least
    return largest(least, steps + x.serve.running * x.serve.interruption_seconds)


def _first_alone(x: Any) -> Read:
    """Seconds of a first token, had it not to wait."""
    steps = 1 if closed(x.server) else x.serve.prefill_steps
    read = x.serve.prefill_step if closed(x.server) else steps * x.serve.prefill_step
    if runs_tower(x.server):
        read = x.serve.tower_seconds + read
    read = read + x.serve.transfer_seconds
    known = x.server.engine.before(x.server.plan.accelerator) is not NOTHING
    return x.serve.first_seconds + read if known else read


@quantity(
    "serve.ttft_seconds",
    "Time to first token",
    "seconds",
    "Of one prompt that need not wait; in a closed loop of one that others come before.",
)
def ttft_seconds(x: Any) -> Read | None:
    if not x.serve.running:
        return None
    alone = _first_alone(x)
    return alone + x.serve.wait_seconds if closed(x.server) else alone


@quantity(
    "serve.tpot_seconds",
    "Time per output token",
    "seconds",
    "A step of all that run at once, at half of their output; in a closed loop with what the "
    "prompts of others add.",
)
def tpot_seconds(x: Any) -> Read | None:
    if not x.serve.running:
        return None
    if not closed(x.server):
        return x.serve.decode_step / x.serve.tokens_per_step
    after = x.serve.request_seconds - (_first_alone(x) + x.serve.queue_seconds)
    if puts_out(x.server):
        waits = x.serve.out_sequences / x.serve.running * x.serve.request_seconds
        after = after + waits
    return after / x.plan.serve.output_len


@interval(
    "serve.ttft_range", "Time to first token", "seconds",
    "Eight in ten that were measured lie within.",
)  # fmt: skip
def ttft_range(x: Any, end: int) -> Read | None:
    if not x.serve.running:
        return None
    experts = bool(x.server.plan.architecture.experts)
    return x.serve.ttft_seconds * x.constant(x.server.engine.off.of_first(experts), end)


@interval(
    "serve.tpot_range", "Time per output token", "seconds",
    "Eight in ten that were measured lie within.",
)  # fmt: skip
def tpot_range(x: Any, end: int) -> Read | None:
    if not x.serve.running:
        return None
    experts = bool(x.server.plan.architecture.experts)
    return x.serve.tpot_seconds * x.constant(x.server.engine.off.per_token(experts), end)


@quantity(
    "serve.stall_seconds",
    "Longest gap",
    "seconds",
    "Between two tokens of a sequence while another's prompt is read.",
)
def stall_seconds(x: Any) -> Read | None:
    if not x.serve.running:
        return None
    words = PREFILLS[x.plan.serve.prefill]
    if words.elsewhere:
        return x.serve.decode_step
    if closed(x.server):
        return x.serve.joined_step
    read = x.serve.prefill_step
    if runs_tower(x.server):
        read = read + x.serve.tower_seconds
    return read if words.chunked else x.serve.decode_step + read


@quantity(
    "serve.tokens_per_second",
    "Output tokens per second",
    "tokens/s",
    "Of one replica that is busy all along, which reads a prompt for each output too.",
)
def tokens_per_second(x: Any) -> Read | None:
    if not x.serve.running:
        return None
    if closed(x.server):
        return x.serve.running * x.plan.serve.output_len / x.serve.request_seconds
    if PREFILLS[x.plan.serve.prefill].elsewhere:
        return x.serve.decode_tokens_per_second
    if not joins(x.server):
        prompt = x.plan.serve.prompt_len * x.serve.prompt_token_seconds
        output = x.plan.serve.output_len * x.serve.output_token_seconds
        return x.plan.serve.output_len / (prompt + output)
    every = _steps(x) + x.serve.running * x.serve.interruption_seconds
    return x.serve.running * x.plan.serve.output_len / every


@quantity(
    "serve.decode_tokens_per_second",
    "Tokens per second by decoding alone",
    "tokens/s",
    "Of one replica while it reads no prompts.",
)
def decode_tokens_per_second(x: Any) -> Read | None:
    if not x.serve.running:
        return None
    return x.serve.running * x.serve.tokens_per_step / x.serve.decode_step
