"""Serving: weights, KV cache and what is left of a GPU, and how fast tokens come."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from memcore import allocator, catalog, constants, policies, stored, towers
from memcore.blocks import Blocks, build, structure_of
from memcore.dims import (
    EP,
    EXPANDED,
    EXPERTS,
    HEAD_DIM,
    KV_RANK,
    LATENT,
    TP,
    V_DIM,
    VOCAB,
    Cut,
    D,
    Dim,
    Number,
    Shape,
    ceil_div,
    derive,
    size,
)
from memcore.families import FAMILIES
from memcore.instants import Layers
from memcore.ledger import AUTOGRAD, INFERENCE, Amounts, window
from memcore.memory import layers_of
from memcore.model import CAUSAL, CHUNKED, SLIDING, Model, attends, recurs
from memcore.pages import Pages
from memcore.plan import Plan
from memcore.recurrent import CONVOLUTION, SCAN, STATE
from memcore.report import LedgerRow, Serve
from memcore.roofline import Execution, executions
from memcore.serving_time import CACHE_READ as CACHE_READ
from memcore.serving_time import Point, as_read, at_once, bound, felt, per_step, points
from memcore.serving_time import forward as forward
from memcore.tape import Storage, Tape
from memcore.towers import Tower
from memcore.units import GiB, bytes_text

KV_SOURCE = (
    "per layer and token keys and values of kv_heads x head_dim, or under latent attention one "
    "vector of kv_lora_rank + qk_rope_head_dim"
)
PAGES_SOURCE = (
    "vLLM's hybrid KV cache manager: layers of a kind in groups of equal size, all drawing blocks "
    "of the same bytes from one pool (vllm/v1/core/kv_cache_utils.py)"
)
ENCODER_NOTE = (
    "Serving: the encoder reads the prompt, once; every decoder layer keeps keys and values of all "
    "of its tokens, and of those that are generated. A paged cache is planned as vLLM has it for "
    "other encoder-decoders, since it serves no T5. Streams of requests are not simulated."
)
CROSS_CACHE = "cross-attention cache"
STATE_SOURCE = (
    "what a layer keeps of a sequence, however long: vLLM's MambaStateShapeCalculator and "
    "MambaStateDtypeCalculator (vllm/model_executor/layers/mamba/mamba_utils.py); in transformers "
    "the convolution's state has one token more, and the other is fp32 (cache_utils.py)"
)
ALIGNED_SOURCE = (
    "vLLM has pages of one size: attention's get as many tokens, in multiples of 16, as make a "
    "page hold a state, and a state's are padded to it (vllm/platforms/interface.py)"
)
KERNEL_BLOCK = 16  # tokens: of the blocks that attention kernels take the smallest
VOCAB_MULTIPLE = 64  # vLLM's DEFAULT_VOCAB_PADDING_SIZE
ROTARY_SOURCE = (
    "vLLM keeps cosines and sines of every position in the model's dtype "
    "(vllm/model_executor/layers/rotary_embedding), under linear scaling of its factor's times as "
    "many; two logged pairs differ by just that"
)
ABSORBED: Shape = (EXPANDED / TP, KV_RANK)
ABSORBED_SOURCE = (
    "vLLM keeps W_UK and W_UV in the model's dtype beside kv_b_proj "
    "(vllm/v1/attention/backends/mla/common.py)"
)
HYBRID_MOST = 1.25  # where one kind has no more than this times the layers of the other, they pad
STAGE_LAYERS = Dim("STAGE_LAYERS")  # layers on the fullest pipeline stage
STATES = "states"  # what consumes the memory of states, in a row
LOGITS: Shape = (VOCAB,)
KNOWN = 16  # forwards of different sizes: evaluating a plan has five
REMEDY = (
    "More ranks (serve.tp, serve.pp), a smaller dtype or shorter sequences need less of each GPU"
)
LOGITS_COPIES = 1.5  # in bf16, and copied to fp32


@dataclass(frozen=True, slots=True)
class Caching:
    """How many layers keep all tokens of a sequence, a window of them, and a state of it."""

    full: int
    windowed: int
    recurrent: int

    @classmethod
    def of(cls, kinds: Sequence[str]) -> Caching:
        windowed = sum(kind.startswith((SLIDING, CHUNKED)) for kind in kinds)
        return cls(sum(map(attends, kinds)) - windowed, windowed, sum(map(recurs, kinds)))

    @property
    def attends(self) -> int:
        return self.full + self.windowed


@dataclass(frozen=True, slots=True)
class Server:
    """One replica: the tapes of its model and how it is cut.

    timed   the layers' tapes with the kernels that run: fused, but for an eager runtime
    bits    of each value that products read, by shape: those of weights, as they are stored
    draft   the server of the model that guesses tokens, on the same GPUs
    every   layers by what they cache, on all stages; caches: on the stage that keeps most of a
            long sequence
    tower   what runs before the layers, once for a prompt
    known   amounts of forwards that were asked for, a few
    """

    plan: Plan
    embed: Tape
    stack: Layers
    layers: tuple[tuple[Tape, int], ...]  # each kind, and how many layers are of it
    head: Tape
    stage_layers: int
    timed: tuple[Tape, ...]
    bits: Mapping[Shape, float]
    draft: Server | None
    every: Caching
    caches: Caching
    tower: Tower | None = None
    known: dict[tuple[int, int, int], Amounts] = field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def of(cls, plan: Plan) -> Server:
        s, model = plan.serve, replace(plan.architecture, tower=None)
        compute = plan.weights.compute
        fused = "hf" if policies.RUNTIMES[s.runtime].launches else "compile"
        kinds, stack = layers_of(model)
        blocks = build(structure_of(model, dtype=compute, served=True), kinds)
        layers = tuple(zip(blocks.layers, stack.counts, strict=True))
        per_stage = -(-model.layers // plan.serving_pp)
        timed = build(structure_of(model, kernels=fused, dtype=compute, served=True), kinds)
        draft = None
        if s.draft_tokens and s.draft_model != "none":
            draft = cls.of(_drafting(plan))
        bits = _read_bits(model, plan.weights, blocks, stack)
        tower = Tower.of(plan.architecture, compute, fused, policies.KV_CACHES[s.kv_cache].pages)
        return cls(
            plan, blocks.embed, stack, layers, blocks.head, per_stage, timed.layers, bits, draft,
            *_caching(model.kinds, model.layers, per_stage), tower,
        )  # fmt: skip

    @property
    def manager(self) -> policies.CacheManager:
        return policies.KV_CACHES[self.plan.serve.kv_cache]

    @property
    def compute(self) -> str:
        """The dtype that operations have."""
        return self.plan.weights.compute

    @property
    def length(self) -> int:
        """Tokens of a sequence at its end: of an encoder-decoder those that the encoder reads, and
        the decoder's: a start token, and all that it generates but the last, which nobody reads."""
        return self.plan.serve.prompt_len + self.plan.serve.output_len

    @property
    def room_tokens(self) -> int:
        """Tokens of a sequence that the cache holds room for: all that the server lets in, where it
        is reserved from the start; else those at its end."""
        return self.plan.longest_sequence if self.reserves else self.length

    @property
    def reserves(self) -> bool:
        """Whether memory for keys and values is held for tokens that may never come."""
        return self.manager.reserves and bool(self.caches.attends)

    def layer_tokens(self, tokens: float) -> float:
        """Tokens that the layers of the fullest stage keep of so many, added up."""
        seen = min(kept_by_window(self) or tokens, tokens)
        return self.caches.full * tokens + self.caches.windowed * seen

    @property
    def cache(self) -> Shape:
        """What each layer keeps of a token."""
        return FAMILIES[self.plan.architecture.family].cache

    @property
    def windowed(self) -> int:
        """How many layers of the fullest stage see a window only."""
        return self.caches.windowed

    @property
    def reductions(self) -> int:
        """How often a forward sums what tensor-parallel ranks have: after each attention, state and
        MLP, or experts with a shared one."""
        layers, recurrence = self.plan.architecture.layers, self.plan.architecture.recurrence
        if recurrence and recurrence.alone:
            return layers
        return layers + self.every.attends + self.every.recurrent

    @property
    def bounded(self) -> bool:
        """Whether some layers keep no more of a sequence however long it is."""
        return bool(self.caches.windowed or self.caches.recurrent)

    @property
    def chunked(self) -> bool:
        return any(kind.startswith(CHUNKED) for kind in self.plan.architecture.kinds)

    def widths(self, tokens: int) -> tuple[Dim, Dim]:
        """Of one head's scores and of its values, for so many new tokens of a sequence.

        Latent attention expands the keys and values of a prompt; generated tokens are multiplied
        with the latents as they are (DeepSeek-V2, section 2.1.2).
        """
        few = tokens <= 1 + self.plan.serve.draft_tokens
        return (LATENT, KV_RANK) if self.plan.architecture.kv_rank and few else (HEAD_DIM, V_DIM)

    def cached(self, amounts: Amounts) -> int:
        """Numbers that one layer keeps of a token."""
        return int(amounts.elements(self.cache))

    @property
    def kv_bits(self) -> float:
        return policies.KV_DTYPES[self.plan.serve.kv_dtype].bits

    @property
    def kv_per_token(self) -> int:
        """Bytes that one more token adds to the cache of one GPU, while no window is full; the
        draft's model has a cache too."""
        own = math.ceil(self.caches.attends * self.cached(self.amounts(1, 1)) * self.kv_bits / 8)
        return own + (self.draft.kv_per_token if self.draft else 0)

    @property
    def states(self) -> tuple[tuple[str, Shape, str], ...]:
        """What a layer with a state keeps of a sequence: what it is, shape and dtype. With a draft
        the convolution's can go back by as many tokens as were guessed."""
        recurrence = self.plan.architecture.recurrence
        if not recurrence:
            return ()
        weights = self.plan.weights.compute
        chosen = self.plan.serve.state_dtype
        asked = recurrence.dtype or weights if chosen == "auto" else chosen
        state = self.manager.state or asked
        return ("convolution state", CONVOLUTION, weights), ("recurrent state", STATE, state)

    @property
    def state_copies(self) -> int:
        """States that a layer holds of one sequence: with a draft one more for each guess, of which
        the last right one stays (vllm/model_executor/layers/mamba/abstract.py)."""
        return 1 + self.plan.serve.draft_tokens

    def state_bytes(self, amounts: Amounts) -> int:
        """Of one layer and one sequence."""
        return int(sum(amounts.bytes(shape, dtype) for _, shape, dtype in self.states))

    def amounts(self, batch: Number, tokens: Number, images: Number = 0) -> Amounts:
        """Amounts for one forward of `batch` sequences of `tokens` new tokens each, with so many
        images; an encoder has read a whole prompt of each."""
        found = self.known.get((batch, tokens, images))
        if found is None:
            if len(self.known) >= KNOWN:
                self.known.clear()
            found = self.known[batch, tokens, images] = self._amounts(batch, tokens, images)
        return found

    def _amounts(self, batch: int, tokens: int, images: int) -> Amounts:
        sizes = self.plan.sizes()
        sizes |= {"B": batch, "S": tokens, "CP": 1, "STAGE_LAYERS": self.caches.attends}
        sizes |= {"TP": self.plan.serving_tp, "PP": self.plan.serving_pp}
        sizes["IMAGES"] = images
        if self.plan.architecture.encoder_decoder:
            sizes |= {"S": self.plan.serve.prompt_len, "TARGET": tokens}
        if "KERNEL" in sizes:
            more = self.manager.columns + self.plan.serve.draft_tokens
            sizes["KEPT_TOKENS"] = sizes["KERNEL"] - 1 + more
        if self.manager.pages:
            sizes["VOCAB"] = ceil_div(sizes["VOCAB"], VOCAB_MULTIPLE) * VOCAB_MULTIPLE
        derive(sizes)
        sizes["CHOSEN"] = chosen(sizes["EXPERTS"], sizes["TOP_K"], batch * tokens)
        return Amounts(sizes)

    @property
    def executions(self) -> tuple[tuple[Execution, ...], ...]:
        """What one forward runs in the layers besides attention and scans, in the head without a
        loss, and in scans: attention reads the cache, scans their states, and are timed apart."""
        return _forward(self.timed, tuple(self.stack.counts), self.head)[:3]

    @property
    def once(self) -> tuple[Execution, ...]:
        """What runs once for a prompt: its tower, and in the layers what makes keys and values of
        an encoder's result."""
        if self.tower is None:
            return ()
        return self.tower.executions + _forward(self.timed, tuple(self.stack.counts), self.head)[3]


@functools.lru_cache(maxsize=256)
def _forward(
    layers: tuple[Tape, ...], counts: tuple[int, ...], head: Tape
) -> tuple[tuple[Execution, ...], ...]:
    of_layers = [e for e in executions(layers, counts) if e.work.phase == "forward"]
    of_head = (e for e in executions((head,), (1,)) if e.work.phase == "forward")
    besides = [
        e
        for e in of_layers
        if ".core." not in e.work.name and not _scans(e) and (e.work.traffic or e.work.flops)
    ]
    return (
        tuple(e for e in besides if not towers.of_encoder(e)),
        tuple(e for e in of_head if ".loss." not in e.work.name),
        tuple(filter(_scans, of_layers)),
        tuple(e for e in besides if towers.of_encoder(e)),
    )


def _scans(e: Execution) -> bool:
    return f".{SCAN}." in e.work.name


@functools.lru_cache(maxsize=256)
@functools.lru_cache(maxsize=256)
def _caching(kinds: tuple[str, ...], layers: int, per_stage: int) -> tuple[Caching, Caching]:
    """Layers by what they cache: of all stages, and of the one that keeps most of a long sequence,
    the first of several."""
    if not kinds:
        return Caching(layers, 0, 0), Caching(per_stage, 0, 0)
    stages = (kinds[i : i + per_stage] for i in range(0, len(kinds), per_stage))
    found = [Caching.of(stage) for stage in stages]
    return Caching.of(kinds), max(found, key=lambda c: (c.full, c.windowed, c.recurrent))


def chosen(experts: int, top_k: int, tokens: int) -> int:
    """Experts that so many tokens choose at least once, on average, each token its own at random:
    the others' weights are not read."""
    if not experts:
        return 0
    return math.ceil(experts * (1 - (1 - top_k / experts) ** tokens) - 1e-9)


def _drafting(plan: Plan) -> Plan:
    """The plan of a draft's model: the same GPUs, dtypes and cache, without a draft of its own."""
    document = plan.document()
    name = plan.serve.draft_model
    attention = FAMILIES[catalog.model(name).family].attentions[-1]
    document["model"] = name
    document["serve"] |= {"draft_tokens": 0, "draft_model": "none", "offload_weights": 0.0}
    document["serve"] |= {"tp": plan.serving_tp, "pp": 1}
    document["parallel"] = {}
    document["train"] = {"attention": attention, "seq_len": 1}
    return Plan.of(document)


@functools.lru_cache(maxsize=256)
def _read_bits(
    model: Model, dtype: policies.WeightDtype, blocks: Blocks, stack: Layers
) -> Mapping[Shape, float]:
    """Bits of a weight's values, by the shape that products read it in; where layers have it in
    several types, in the mean."""
    sizes: dict[str, Number] = {**model.sizes, "B": 1, "S": 1, "TP": 1, "CP": 1}
    derive(sizes)
    of_kind = [
        [i for i in range(stack.count) if stack.kind(i) == k] for k in range(len(blocks.layers))
    ]
    tapes = ((blocks.embed, [0]), *zip(blocks.layers, of_kind, strict=True), (blocks.head, [0]))
    found: dict[Shape, list[float]] = {}
    for tape, layers in tapes:
        for p in tape.parameters:
            row = size(stored.width(p, model), sizes)
            for kind, n in stored.types(dtype, model, p, layers, row).items():
                found.setdefault(as_read(p.shape), []).extend([stored.bits(kind)] * n)
    return {shape: sum(bits) / len(bits) for shape, bits in found.items() if bits}


@dataclass(frozen=True, slots=True)
class Room:
    """How cache memory is cut: in pages that layers of a kind share, or by sequence.

    group        layers that one block has a page for; full, windowed, recurrent: such groups
    tokens       of a page of attention's (ALIGNED_SOURCE); state_bytes: of a page, that one layer's
                 state fills
    page_bytes   of one layer; draft_bytes: of all layers of a draft's model, beside each block
    blocks       that one sequence needs at its longest: all of a prompt's window is there before
                 its prefill lets go of any
    """

    group: int
    full: int
    windowed: int
    recurrent: int
    tokens: int
    state_bytes: int
    page_bytes: int
    draft_bytes: int
    blocks: int

    @property
    def block_bytes(self) -> int:
        return self.group * self.page_bytes + self.draft_bytes


def room(server: Server, amounts: Amounts) -> Room:
    """Pages of a server that has them (PAGES_SOURCE)."""
    held = server.caches
    some = [n for n in (held.full, held.windowed, held.recurrent) if n]
    least, most = min(some), max(some)
    group = most if most < HYBRID_MOST * least else least
    tokens, state = page_tokens(server, amounts), server.state_bytes(amounts)
    page = math.ceil(tokens * token_bytes(server, amounts)) if held.attends else state
    beside = tokens * server.draft.kv_per_token if server.draft else 0
    full, windowed, recurrent = (
        ceil_div(n, group) for n in (held.full, held.windowed, held.recurrent)
    )
    found = Room(group, full, windowed, recurrent, tokens, state, page, beside, 0)
    *heard, own = sequences(server)
    blocks = pages(server, found).most(own) + full * sum(ceil_div(n, tokens) for n in heard)
    return replace(found, blocks=blocks)


def pages(server: Server, room: Room) -> Pages:
    """How the blocks of one sequence grow, and are let go of; states stay as they are."""
    s, model, held = server.plan.serve, server.plan.architecture, server.caches
    states = held.recurrent * room.state_bytes * server.state_copies
    return Pages(
        room.tokens,
        room.full,
        room.windowed,
        model.window if server.every.windowed else 0,
        server.chunked,
        s.max_batched_tokens,
        held.full / room.group,
        held.windowed / room.group,
        room.recurrent * server.state_copies,
        states * room.tokens / room.block_bytes,
        s.draft_tokens * (2 if server.draft else 1),
    )


def places(plan: Plan, served: Serve) -> int:
    """Tokens that the cache has places for, in a group of layers: what a stream is given."""
    server = Server.of(plan)
    if served.blocks:
        return served.blocks * served.block_tokens
    if server.bounded:
        cut = room(server, one_forward(server))
        return served.kv_budget_bytes * cut.tokens // cut.block_bytes
    return served.kv_capacity_tokens


def token_bytes(server: Server, amounts: Amounts) -> float:
    """That one layer keeps of a token."""
    return server.cached(amounts) * server.kv_bits / 8


def page_tokens(server: Server, amounts: Amounts) -> int:
    """Tokens of a page: more than the plan says where a layer's state would not fit in one
    (ALIGNED_SOURCE)."""
    given, held = server.plan.serve.block_size, server.caches
    if not (held.attends and held.recurrent):
        return given
    step = max(KERNEL_BLOCK, given)
    state = server.state_bytes(amounts)
    return step * math.ceil(state / (step * token_bytes(server, amounts)))


def sequences(server: Server) -> tuple[int, ...]:
    """Tokens that a layer keeps at a sequence's end, by what they are of: an encoder's apart."""
    s = server.plan.serve
    if server.plan.architecture.encoder_decoder:
        return s.prompt_len, s.output_len
    return (server.length,)


def cross_bytes(server: Server, amounts: Amounts) -> int:
    """Of a sequence's cache, keys and values of the encoder's tokens, in every decoder layer."""
    if not server.plan.architecture.encoder_decoder:
        return 0
    s = server.plan.serve
    if server.manager.pages:
        pages = room(server, amounts)
        return int(ceil_div(s.prompt_len, pages.tokens)) * pages.block_bytes
    kept = server.stage_layers * server.cached(amounts) * s.prompt_len
    return math.ceil(kept * server.kv_bits / 8)


def servable(model: Model) -> bool:
    """Whether it generates, token by token."""
    return FAMILIES[model.family].decoder and model.head == CAUSAL


def serve(plan: Plan) -> Serve:
    """Memory and speed of serving on one replica of tp x pp GPUs. Sizes are per GPU."""
    s, server = plan.serve, Server.of(plan)
    amounts = one_forward(server)
    stored_here = _held(server, amounts)
    weights = _weights(server, stored_here, amounts)
    tables = _tables(server, stored_here, amounts)
    activations = _activations(server, amounts)
    per_token = server.kv_per_token
    overhead = int(sum(c.middle for c in overheads(plan)))
    outside = int(sum(c.middle for c in beside(plan)))
    budget = int(plan.accelerator.usable_bytes * s.memory_utilization)
    weights_bytes, table_bytes = (sum(r.bytes for r in rows) for rows in (weights, tables))
    away = min(int(s.offload_weights * GiB), weights_bytes)
    left = max(0, budget - (weights_bytes - away) - table_bytes - activations.bytes - overhead)
    if s.offload_kv == "cpu":
        left = host_room(plan)
    paged = server.manager.pages
    pages = room(server, amounts)
    blocks = left // pages.block_bytes if paged else 0
    if paged:
        sequence, concurrent = pages.blocks * pages.block_bytes, blocks // pages.blocks
    else:
        sequence = _sequence_bytes(server, amounts)
        concurrent = left // sequence
    if server.bounded:  # what vLLM prints: a sequence's tokens, as often as it fits
        whole = blocks / pages.blocks if paged else left / sequence
        tokens = int(whole * server.room_tokens)
    else:
        tokens = blocks * pages.tokens if paged else left // per_token
    held, steps = min(s.concurrency, concurrent), at_once(server)
    running = min(held, steps)
    time = felt(server, running) if running else None
    per_second = running / time.each if time else None
    states = _state_rows(server, amounts, held)
    state, cross = sum(r.bytes_each for r in states), cross_bytes(server, amounts)
    kv = _kv_rows(server, amounts, sequence - state, cross, held)
    tower, kept = towers.memory(server, amounts)
    return Serve(
        weights_bytes=weights_bytes,
        offloaded_bytes=away,
        table_bytes=table_bytes,
        kv_bytes_per_token=per_token,
        activation_bytes=activations.bytes,
        tower_bytes=int(tower),
        feature_bytes=int(kept),
        profiled_images=towers.profiled(server),
        overhead_bytes=overhead,
        outside_bytes=outside,
        budget_bytes=budget,
        kv_budget_bytes=left,
        block_tokens=pages.tokens if paged else 0,
        block_bytes=pages.block_bytes if paged else 0,
        blocks=blocks,
        blocks_per_sequence=pages.blocks if paged else 0,
        kv_capacity_tokens=tokens,
        sequence_bytes=sequence,
        cross_bytes_per_sequence=cross,
        state_bytes_per_sequence=state,
        reserved_tokens=server.room_tokens if server.reserves else 0,
        wasted_bytes_per_sequence=_wasted_bytes(server, amounts, pages),
        max_concurrency=concurrent,
        fits=concurrent >= s.concurrency,
        step_sequences=steps,
        running=running,
        prefill_steps=time.chunks if time else None,
        transfer_seconds=time.transfer if time else None,
        tower_seconds=time.once if time else None,
        ttft_seconds=time.first if time else None,
        tpot_seconds=time.each if time else None,
        stall_seconds=time.stall if time else None,
        tokens_per_step=per_step(plan),
        tokens_per_second=per_second,
        prefill_bound_by=bound([*time.tower, *time.prefill]) if time else None,
        decode_bound_by=bound(time.decode) if time else None,
        tp=plan.serving_tp,
        pp=plan.serving_pp,
        gpus_per_replica=plan.serving_tp * plan.serving_pp,
        replicas=max(1, plan.cluster.gpus // (plan.serving_tp * plan.serving_pp)),
        rows=(*weights, *tables, *kv, *states, activations),
    )


def host_room(plan: Plan) -> int:
    """Bytes that one GPU's cache may take of its host's memory."""
    return int(plan.node.dram_bytes * plan.serve.memory_utilization) // plan.gpus_in_node


def one_forward(server: Server) -> Amounts:
    """Amounts of the largest forward that the server runs: an encoder's of whole prompts, with the
    first token of each."""
    if server.plan.architecture.encoder_decoder:
        return server.amounts(towers.prompts(server), 1)
    tokens = server.plan.serve.max_batched_tokens
    return server.amounts(1, tokens, towers.profiled(server))


def overheads(plan: Plan) -> list[constants.Constant]:
    """What occupies a serving GPU within the budget, outside the server's control."""
    alone = plan.serving_tp * plan.serving_pp == 1
    if policies.KV_CACHES[plan.serve.kv_cache].pages:
        found = [constants.NON_TORCH if alone else constants.NON_TORCH_GROUP]
    else:
        found = [constants.CUDA_CONTEXT] + ([] if alone else [constants.NCCL_BUFFERS])
    return found + ([constants.OS_SHARE] if plan.accelerator.shared_with_os else [])


def beside(plan: Plan) -> list[constants.Constant]:
    """What vLLM does not count as its budget's: it must fit into the rest of the GPU."""
    if not policies.KV_CACHES[plan.serve.kv_cache].pages:
        return []
    return [constants.CUDA_CONTEXT, constants.CUDA_GRAPHS]


def outer(server: Server, amounts: Amounts) -> list[Storage]:
    """Weights besides the layers', on the GPU that has more of them."""
    first, last = list(server.embed.parameters), list(server.head.parameters)
    if server.plan.serving_pp == 1:
        return first + last
    tied = server.plan.architecture.traits.tied_embeddings
    ends = {"first": first, "last": last + (first[:1] if tied else [])}
    return max(ends.values(), key=lambda ps: sum(amounts.elements(p.shape) for p in ps))


Held = tuple[Storage, str, int]  # a weight, its type, and in how many layers


def _held(server: Server, amounts: Amounts) -> list[list[Held]]:
    """Weights on the fullest GPU: the larger of embedding and head, its share of the layers of each
    kind, and its towers."""
    ends = outer(server, amounts)
    found: list[list[Held]] = [
        [(p, kind, 1) for p in ends for kind in _types(server, amounts, p, (0,))]
    ]
    for (tape, _), layers in zip(server.layers, _heaviest(server, amounts), strict=True):
        types = ((p, _types(server, amounts, p, layers)) for p in tape.parameters)
        found.append([(p, *item) for p, of in types for item in of.items()])
    of_text = {p.name.rpartition("embed.")[2] for p in server.embed.parameters}
    for tape, n in server.tower.tapes if server.tower else ():
        own = (
            p
            for p in tape.parameters
            if p.name.rpartition(".embed.")[2] not in of_text
            and (p.trained or not server.manager.pages)  # nobody reads what it makes: Tower.of
        )
        found.append([(p, server.plan.weight_dtype, n) for p in own])
    return found


def _weights(server: Server, held: Sequence[Sequence[Held]], amounts: Amounts) -> list[LedgerRow]:
    rows = []
    for p, kind, times in (item for part in held for item in part):
        shape = shared_out(server, p.shape)
        each = math.ceil(amounts.elements(shape) * stored.bits(kind) / 8)
        rows.append(
            LedgerRow(
                p.name, "parameters", amounts.text(shape), kind, each, times, each * times,
                "hbm", "always", "exact", AUTOGRAD, "a weight, as stored for inference",
            )
        )  # fmt: skip
    return rows


def shared_out(server: Server, shape: Shape) -> Shape:
    """What one GPU has of a weight: with expert parallelism whole experts, uncut."""
    if len(shape) < 2 or shape[0] is not EXPERTS or server.plan.parallel.ep == 1:
        return shape
    if len(shape) == 2 and not isinstance(shape[1], Cut) and shape[1] is D:
        return shape  # the router, which every GPU has
    return (EXPERTS / EP, *map(stored.whole, shape[1:]))


def _types(server: Server, amounts: Amounts, p: Storage, layers: Sequence[int]) -> dict[str, int]:
    """In which types a weight is stored, and in how many of these layers."""
    model = server.plan.architecture
    row = size(stored.width(p, model), amounts.sizes)
    dtype = server.plan.weights
    return {k: n for k, n in stored.types(dtype, model, p, layers, row).items() if n}


def _heaviest(server: Server, amounts: Amounts) -> list[list[int]]:
    """The layers of each kind on the pipeline stage whose layers weigh most."""
    weights = [sum(amounts.elements(p.shape) for p in tape.parameters) for tape, _ in server.layers]
    return _stage_of(tuple(weights), server.stack, server.stage_layers)


@functools.lru_cache(maxsize=256)
def _stage_of(weights: tuple[int, ...], stack: Layers, per_stage: int) -> list[list[int]]:
    stages = [range(i, min(i + per_stage, stack.count)) for i in range(0, stack.count, per_stage)]
    best = max(stages, key=lambda stage: sum(weights[stack.kind(i)] for i in stage))
    return [[i for i in best if stack.kind(i) == k] for k in range(len(weights))]


def _tables(server: Server, held: Sequence[Sequence[Held]], amounts: Amounts) -> list[LedgerRow]:
    """What vLLM keeps besides weights: cosines and sines of the model's positions; of latent
    attention what multiplies with the latents themselves."""
    model = server.plan.architecture
    dtype = server.plan.weights.compute
    rows = []
    if model.kv_rank and server.manager.pages:
        n, layers = int(amounts.bytes(ABSORBED, dtype)), server.stage_layers
        rows.append(
            LedgerRow(
                "absorbed kv_b_proj", "tables", amounts.text(ABSORBED), dtype, n, layers,
                n * layers, "hbm", "always", "exact", ABSORBED_SOURCE,
                "multiplies queries and results with the latents as they are",
            )
        )  # fmt: skip
    if server.draft:
        alone = server.draft.amounts(1, 1)
        n = sum(r.bytes for r in _weights(server.draft, _held(server.draft, alone), alone))
        rows.append(
            LedgerRow(
                "draft model", "tables", f"bytes {n:,}", "int8", n, 1, n, "hbm", "always", "exact",
                AUTOGRAD, f"weights of {server.draft.plan.architecture.label}, which guesses",
            )
        )  # fmt: skip
    if not server.manager.pages:
        return rows
    for which, positions in model.rotary_tables or (("", model.max_positions),):
        n = positions * model.rotary_dim * policies.DTYPE_BYTES[dtype]
        if n:
            rows.append(
                LedgerRow(
                    f"rotary table, {which} layers" if which else "rotary table", "tables",
                    f"positions {positions:,} x ROTARY {model.rotary_dim:,}", dtype, n, 1, n,
                    "hbm", "always", "exact", ROTARY_SOURCE, "cosines and sines of every position",
                )
            )  # fmt: skip
    return rows + _rests(server, held, amounts)


def _rests(server: Server, held: Sequence[Sequence[Held]], amounts: Amounts) -> list[LedgerRow]:
    """What the allocator leaves unused beside the matrices of each layer, as an engine joins them:
    queries, keys and values are one tensor, and so are gate and up."""
    joined: dict[tuple[str, ...], list[tuple[Storage, str, int]]] = {}
    for i, part in enumerate(held):
        for p, kind, n in part:
            joined.setdefault((str(i), stored.joined(p.name), kind), []).append((p, kind, n))
    rows = []
    for (_, name, kind), parts in joined.items():
        shapes = [shared_out(server, p.shape) for p, _, _ in parts]
        n, layers = sum(map(amounts.elements, shapes)) * stored.bits_alone(kind) // 8, parts[0][2]
        rest = int(allocator.rest(n))
        if rest:
            rows.append(
                LedgerRow(
                    f"{name}, rest of its block", "rests", " + ".join(map(amounts.text, shapes)),
                    kind, rest, layers, rest * layers, "hbm", "always", "exact", allocator.SOURCE,
                    "too little for the allocator to give to another tensor",
                )
            )  # fmt: skip
    return rows


def kept_by_window(server: Server) -> int:
    """Tokens that a layer with a window keeps; 0 for all of them: of a window of one token,
    transformers' DynamicCache slices the last 0, which is everything
    (cache_utils.DynamicSlidingWindowLayer.update)."""
    return server.plan.architecture.window - server.manager.dropped


def _sequence_bytes(server: Server, amounts: Amounts) -> int:
    """Cache of one sequence without pages: a window keeps no more than it sees."""
    own = math.ceil(server.layer_tokens(server.room_tokens) * token_bytes(server, amounts))
    own += server.caches.recurrent * server.state_copies * server.state_bytes(amounts)
    return own + (server.room_tokens * server.draft.kv_per_token if server.draft else 0)


def _wasted_bytes(server: Server, amounts: Amounts, pages: Room) -> int:
    """Of one sequence's cache, what nothing is in, averaged over its life, in which it has half of
    its output. Of pages only the last is half empty, and states do not fill theirs; a reservation
    is there for the longest sequence from the start."""
    if server.manager.pages:
        last = len(sequences(server)) * (pages.tokens - 1) / 2
        return round(last * server.kv_per_token) + padding_bytes(server, pages)
    if not server.reserves:
        return 0
    half = server.length - server.plan.serve.output_len / 2
    idle = server.layer_tokens(server.room_tokens) - server.layer_tokens(half)
    of_draft = server.draft.kv_per_token if server.draft else 0
    return round(idle * token_bytes(server, amounts) + (server.room_tokens - half) * of_draft)


def padding_bytes(server: Server, pages: Room) -> int:
    """Of one sequence: what its states leave of their pages."""
    unfilled = server.caches.recurrent * (pages.page_bytes - pages.state_bytes)
    return server.state_copies * unfilled


def _state_rows(server: Server, amounts: Amounts, running: int) -> list[LedgerRow]:
    """States of one sequence, of all layers that keep one."""
    layers = server.caches.recurrent
    copies = layers * server.state_copies
    if not layers:
        return []
    rows = []
    for name, shape, dtype in server.states:
        each = copies * int(amounts.bytes(shape, dtype))
        rows.append(
            LedgerRow(
                name, STATES, f"copies {copies:,} x {amounts.text(shape)}", dtype, each, running,
                each * running, "hbm", "while its sequence runs", "exact", STATE_SOURCE,
                "what layers keep of one sequence however long it is, for all that run at once",
            )
        )  # fmt: skip
    return rows


def _kv_rows(
    server: Server, amounts: Amounts, sequence: int, cross: int, running: int
) -> list[LedgerRow]:
    """Keys and values of the sequences that run at once, in whole blocks, those of an encoder's
    tokens apart; none where no layer attends."""
    if not server.caches.attends:
        return []
    first, *rest = server.cache
    shape = amounts.text((first, STAGE_LAYERS, *rest))
    dtype = policies.KV_DTYPES[server.plan.serve.kv_dtype].label

    def row(name: str, tokens: int, n: int, source: str, why: str) -> LedgerRow:
        return LedgerRow(
            name, "kv_cache", f"{shape} x tokens {tokens:,}", dtype, n, running, n * running, "hbm",
            "while its sequence runs", "exact", source, why,
        )  # fmt: skip

    *heard, _ = sequences(server)
    why = "keys and values of one sequence at its end, for all that run at once"
    if server.reserves:
        why = "reserved for the longest sequence that the server lets in, for all that run at once"
    own = server.room_tokens - sum(heard)
    rows = [row("kv cache", own, sequence - cross, KV_SOURCE, why)]
    for tokens in heard:
        why = "keys and values of the encoder's tokens in every decoder layer, made once"
        rows.append(row(CROSS_CACHE, tokens, cross, KV_SOURCE, why))
    return rows


def _activations(server: Server, amounts: Amounts) -> LedgerRow:
    """The most that a forward of max_batched_tokens needs at once: in a layer or at the logits."""
    layer = max(window(tape, INFERENCE).peak(amounts)[0] for tape, _ in server.layers)
    layer += widened(server, amounts)[0]
    logits = amounts.bytes(LOGITS, "fp32") * server.plan.serve.concurrency * logit_copies(server)
    tower, kept = towers.memory(server, amounts)
    n = int(max(tower, kept + max(layer, logits)))
    return LedgerRow(
        "activations of one forward", "workspace",
        f"tokens {server.plan.serve.max_batched_tokens:,}", "mixed", n, 1, n, "hbm",
        "one forward", "assumed",
        "peak of the transformers layer without saved tensors; an engine's own kernels differ",
        "temporaries of the largest layer or the logits, beside what a tower made; or the tower's",
    )  # fmt: skip


def widened(server: Server, amounts: Amounts) -> tuple[int, str]:
    """Bytes of the largest matrix as bitsandbytes widens it for a product of several tokens, and
    its shape."""
    dtype = server.plan.weights
    if dtype.matrices not in policies.QUANTIZED:
        return 0, ""
    shapes = {p.shape for tape, _ in server.layers for p in tape.parameters if len(p.shape) == 2}
    largest = max(shapes, key=amounts.elements)
    return int(amounts.bytes(largest, dtype.compute)), amounts.text(largest)


def logit_copies(server: Server) -> float:
    """How often the logits of all sequences exist in fp32 while the next tokens are chosen."""
    return constants.SAMPLER_LOGITS.middle if server.manager.pages else LOGITS_COPIES


def verdict(served: Serve, concurrency: int) -> str:
    """Whether so many sequences fit, on each GPU of a replica, and by how much."""
    asked, left = served.sequence_bytes * concurrency, served.kv_budget_bytes
    if reason := nothing_fits(served):
        return f"{reason}. {REMEDY}"
    need = f"{concurrency:,} sequences need {bytes_text(asked)} of KV cache on each GPU"
    if served.fits:
        return f"{need}, of {bytes_text(left)} left for it; {bytes_text(left - asked)} to spare"
    return f"{need}, and {bytes_text(left)} are left; {served.max_concurrency:,} fit"


def nothing_fits(served: Serve) -> str:
    """Why not even one sequence fits, so that no speeds are known; '' where one does."""
    if served.max_concurrency:
        return ""
    taken = served.weights_bytes - served.offloaded_bytes + served.table_bytes
    taken += served.activation_bytes + served.overhead_bytes
    if served.kv_budget_bytes:
        left = bytes_text(served.kv_budget_bytes)
        what = f"one sequence needs {bytes_text(served.sequence_bytes)} of KV cache on each GPU"
        if served.reserved_tokens:
            what += f", reserved for {served.reserved_tokens:,} tokens"
        return f"{what}, and {left} are left, so that no speeds are known"
    return (
        f"weights ({bytes_text(served.weights_bytes)}), one forward and overhead take "
        f"{bytes_text(taken)} of each GPU's budget of {bytes_text(served.budget_bytes)}, so that "
        "nothing is left for the KV cache, and no speeds are known"
    )


def curve(plan: Plan) -> tuple[Point, ...]:
    """Throughput and latency of one replica against how many sequences run."""
    server, s = Server.of(plan), serve(plan)
    return points(server, s.max_concurrency)


def serving_notes(plan: Plan, served: Serve) -> list[str]:
    """What a reader of a report should know of its serving."""
    s, notes = plan.serve, []
    rest = plan.accelerator.usable_bytes - served.budget_bytes
    if served.outside_bytes > rest:
        notes.append(
            f"Serving: the CUDA context and graphs take about {bytes_text(served.outside_bytes)} "
            f"beside the budget, which leaves {bytes_text(rest)}; lower serve.memory_utilization."
        )
    if reason := nothing_fits(served):
        notes.append(f"Serving: {reason}. {REMEDY}.")
    elif served.running < s.concurrency:
        notes.append(_of_fewer(plan, served))
    model = plan.architecture
    if model.encoder_decoder:
        notes.append(ENCODER_NOTE)
    elif model.tower and not s.images:
        notes.append(
            "Serving: prompts have no images (serve.images); of what makes tokens of them the "
            "weights alone count."
        )
    server = Server.of(plan)
    if server.reserves:
        own = "what serve.max_seq_len says" if s.max_seq_len else "the model's own limit"
        spare = served.reserved_tokens - server.length
        notes.append(
            f"Serving: a contiguous cache reserves {served.reserved_tokens:,} tokens for each "
            f"sequence from its start, {own}; a prompt and its output take {server.length:,} of "
            "them." + " Lower serve.max_seq_len where no request is longer." * bool(spare)
        )
    if server.windowed and server.manager.pages:
        pages = room(server, one_forward(server))
        seen = min(plan.architecture.window, server.length)
        blocks = pages.full * ceil_div(server.length, pages.tokens)
        blocks += pages.windowed * (ceil_div(seen, pages.tokens) + 1)
        notes.append(
            "Serving: a sequence counts with all that its prompt needs while it is read, as vLLM "
            f"prints it ({bytes_text(served.sequence_bytes)}); while it generates, its layers with "
            f"a window let go of what they no longer see, and it holds "
            f"{bytes_text(blocks * pages.block_bytes)}."
        )
    if plan.architecture.recurrence:
        notes.append(_of_states(plan, served))
    if s.offload_kv != "none":
        notes.append(
            "Serving: two layers' share of the cache stays on the GPU while it is fetched; that is "
            "not counted."
        )
    return notes


def _of_fewer(plan: Plan, served: Serve) -> str:
    """Why fewer sequences than asked for generate at once; the speeds are of those."""
    s = plan.serve
    said = f"Serving: speeds are of {served.running:,} sequences that generate at once, not of "
    said += f"{s.concurrency:,}; the others wait. "
    if served.running == served.max_concurrency:
        return f"{said}The KV cache has room for no more."
    said += f"A step has {s.max_batched_tokens:,} tokens (serve.max_batched_tokens), "
    if policies.PREFILLS[s.prefill].chunked:
        return f"{said}and in the long run prompts take their share of them."
    return f"{said}at least one for each; vLLM refuses more sequences (max_num_seqs) than that."


def _of_states(plan: Plan, served: Serve) -> str:
    """What states mean for how many sequences run at once."""
    server = Server.of(plan)
    held, layers = server.caches, server.every
    dtypes = " and ".join(dict.fromkeys(dtype for _, _, dtype in server.states))
    said = (
        f"Serving: {layers.recurrent:,} of {plan.architecture.layers:,} layers keep a state of "
        f"each sequence ({dtypes}), {bytes_text(served.state_bytes_per_sequence)} on each GPU "
        "however long it is; "
    )
    said += (
        f"the {layers.attends:,} that attend add {bytes_text(served.kv_bytes_per_token)} a token. "
        if layers.attends
        else "no layer keeps tokens. "
    )
    least, room_for = served.state_bytes_per_sequence, served.kv_budget_bytes
    if server.manager.pages and held.attends:
        pages = room(server, one_forward(server))
        blocks = pages.full + pages.windowed + pages.recurrent * server.state_copies
        least, room_for = blocks * pages.block_bytes, served.blocks * pages.block_bytes
        said += (
            f"vLLM has pages of one size, so a block holds {pages.tokens:,} tokens, and even a "
            f"sequence of one token needs {blocks:,} of them, {bytes_text(least)}. "
        )
    return f"{said}No more than {room_for // least:,} sequences fit, however short."
