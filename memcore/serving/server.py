"""Server: a plan's model as an engine runs it; every figure of serving is read off it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from memcore.cache import cached
from memcore.hardware.constants import Constant
from memcore.hardware.kernels import Kernels
from memcore.layers.ops import slides
from memcore.layers.recurrent import CONVOLUTION, STATE
from memcore.models.blocks import Blocks, build, structure_of
from memcore.models.families import FAMILIES, drafts, from_config
from memcore.models.model import Model
from memcore.models.stack import Layers, layers_of
from memcore.pausing import pause
from memcore.plan.plan import Plan
from memcore.quantity.reading import Either, Kept, Values
from memcore.serving import stored
from memcore.serving.entries import Layout, layout_of
from memcore.tape.derived import derive
from memcore.tape.dims import (
    APART,
    CHOSEN,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    INDEX_DIM,
    INDEX_HEADS,
    KV_RANK,
    LATENT,
    TP,
    V_DIM,
    Dim,
    Number,
    Shape,
    ceil_div,
    of_stack,
    size,
)
from memcore.tape.kinds import (
    CHUNKED,
    Part,
    attends,
    is_apart,
    is_coarse,
    is_fine,
    is_reused,
    is_shared,
    is_whole,
    recurs,
)
from memcore.tape.ledger import Amounts
from memcore.tape.structure import IDLE
from memcore.tape.tape import Tape
from memcore.timing.roofline import Execution, executions
from memcore.words import serving
from memcore.words.engines import ENGINES, LLAMA_CPP, VLLM, Engine
from memcore.words.serving import EAGLE, KV_CACHES, MULTI_TOKEN, NO_DRAFT, RUNTIMES, CacheManager
from memcore.words.stored import AS_KEYS, AS_PUBLISHED, KV_DTYPES, WeightDtype, bits

EAGLE_VOCABULARY = 32_000  # draft_vocab_size of the published EAGLE-3 heads
VOCAB_MULTIPLE = 64  # vLLM's DEFAULT_VOCAB_PADDING_SIZE
STAGE_LAYERS = Dim("STAGE_LAYERS", "layers on the fullest pipeline stage")
FP8 = "fp8"
SCALED = 128  # numbers of an indexer's key, or of a latent, that share a scale
BYTE = 8  # bits
KNOWN = 16  # forwards of different sizes: evaluating a plan has five


@dataclass(frozen=True, slots=True)
class Caching:
    """How many layers keep all tokens of a sequence, a window of them, and a state of it; and of
    those with a window, how many keep compressed entries besides, of few tokens and of many."""

    full: int
    windowed: int
    recurrent: int
    fine: int = 0
    coarse: int = 0

    @classmethod
    def of(cls, kinds: Sequence[str]) -> Caching:
        own = [kind for kind in kinds if not is_reused(kind)]
        windowed = sum(map(slides, own))
        return cls(
            sum(map(attends, own)) - windowed, windowed, sum(map(recurs, kinds)),
            sum(map(is_fine, own)), sum(map(is_coarse, own)),
        )  # fmt: skip

    @property
    def attends(self) -> int:
        return self.full + self.windowed


@dataclass(frozen=True, slots=True)
class AlikeLayers:
    """Layers that see as much and have the same heads: how many; whether they have a window, and
    heads of their own (kinds.apart). sight: tokens that one attends to at most; 0: all of them.
    rate: tokens of an entry, where what they see are entries."""

    count: int
    windowed: bool
    apart: bool
    sight: int = 0
    rate: int = 1


def _apart_alike(model: Model, windowed: bool) -> bool:
    """Whether layers with a window, or those without, have heads of their own: all or none do."""
    return any(is_apart(kind) and slides(kind) == windowed for kind in model.kinds)


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
    found   of its `numbers`, those that were read
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
    found: Kept = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def numbers(self) -> Values:
        """Its quantities, each computed when it is first read."""
        hardware = Either(self.plan.accelerator, self.plan.node)
        return Values(self.found, plan=self.plan, hardware=hardware, server=self)

    @classmethod
    def of(cls, plan: Plan) -> Server:
        pause()
        plan = plan.as_served
        model = replace(plan.architecture, tower=None)
        compute = plan.weights.compute
        fused = "hf" if RUNTIMES[plan.runtime].launches else "compile"
        kinds, stack = layers_of(model)
        pooled = plan.engine == VLLM  # its kernels for experts (room.expert_buffers)
        blocks = build(structure_of(model, dtype=compute, served=True, pooled=pooled), kinds)
        layers = tuple(zip(blocks.layers, stack.counts, strict=True))
        per_stage = _stage_layers(plan, model)
        timed = build(structure_of(model, kernels=fused, dtype=compute, served=True), kinds)
        draft = cls.of(_drafting(plan)) if plan.drafts else None
        bits = _read_bits(model, plan.weights, blocks, stack)
        tower = Tower.of(plan.architecture, compute, fused, KV_CACHES[plan.cache_manager].pages)
        return cls(
            plan, blocks.embed, stack, layers, blocks.head, per_stage, timed.layers, bits, draft,
            *_cached(plan, model, per_stage), tower,
        )  # fmt: skip

    @property
    def engine(self) -> Engine:
        """What serves."""
        return ENGINES[self.plan.engine]

    @property
    def kernels(self) -> Kernels:
        """What its kernels reach on these GPUs."""
        return self.engine.on(self.plan.accelerator)

    @property
    def prompts(self) -> Constant:
        """Between the kernels of a layer, more of it in a step that reads prompts."""
        return self.kernels.latent if self.plan.architecture.kv_rank else self.kernels.prompts

    @property
    def manager(self) -> CacheManager:
        return KV_CACHES[self.plan.cache_manager]

    @property
    def forwards(self) -> int:
        """Forwards of its draft in a step."""
        own = self.draft.plan.architecture.draft if self.draft else None
        return 1 if own and own.at_once else self.plan.serve.draft_tokens

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
    def reserves(self) -> bool:
        """Whether memory for keys and values is held for tokens that may never come."""
        return self.manager.reserves and bool(self.caches.attends)

    @property
    def embeds_on_host(self) -> bool:
        """Whether the embedding lies in the host's memory: llama.cpp looks it up there. Where it is
        the head too, the GPU has a copy."""
        own = self.plan.engine == LLAMA_CPP and bool(self.plan.named_engine)
        return own and not self.plan.accelerator.unified_memory

    @property
    def stages(self) -> list[range]:
        """The layers of each pipeline stage; of one stage all, those on the host with them."""
        plan, layers = self.plan, self.stack.count
        if plan.serving_pp == 1:
            return [range(layers)]
        first, each = plan.host_layers, self.stage_layers
        return [range(i, min(i + each, layers)) for i in range(first, layers, each)]

    @property
    def widening(self) -> int:
        """How many times as wide as the dtype of products an engine's temporaries are: llama.cpp
        has every result in fp32 (ggml_mul_mat in ggml/src/ggml.c of November 2026)."""
        return 2 if self.plan.engine == LLAMA_CPP and self.plan.named_engine else 1

    @property
    def fits_context(self) -> bool:
        """Whether the engine shortens a context that nobody says to what memory has room for."""
        return self.reserves and self.plan.engine == LLAMA_CPP and bool(self.plan.named_engine)

    @property
    def scores(self) -> bool:
        """Whether a forward keeps attention's scores with the whole context."""
        eager = self.plan.serve.attention == serving.EAGER
        return eager and self.plan.engine == LLAMA_CPP and bool(self.caches.attends)

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
    def expert_replicas(self) -> int:
        """Replicas whose tokens the same experts compute: where more ranks share the experts out
        than share a layer, attention is data parallel (DEP)."""
        return max(1, self.plan.parallel.ep // self.plan.serving_tp)

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
        with the latents as they are (DeepSeek-V2, section 2.1.2), and so is every token that sees
        its own choice of others (vllm/v1/attention/backends/mla/flashmla_sparse.py).
        """
        model = self.plan.architecture
        as_they_are = model.indexer or tokens <= 1 + self.plan.serve.draft_tokens
        return (LATENT, KV_RANK) if model.kv_rank and as_they_are else (HEAD_DIM, V_DIM)

    def sight(self, windowed: bool) -> int:
        """Tokens that one attends to at most, in layers with a window and in others: 0 where it is
        all that come before it."""
        model = self.plan.architecture
        if windowed:
            return int(model.window)
        return model.indexer.top_k if model.indexer else 0

    @property
    def indexers(self) -> int:
        """Layers with an indexer of their own."""
        model = self.plan.architecture
        if not model.indexer:
            return 0
        if model.entries:
            return self.every.fine
        return model.layers - sum(is_shared(kind) or is_whole(kind) for kind in model.kinds)

    @property
    def index_rate(self) -> int:
        """Tokens that one of an indexer's keys stands for."""
        entries = self.plan.architecture.entries
        return entries.fine if entries else 1

    @property
    def layout(self) -> Layout | None:
        """Of a cache in pages, where layers keep compressed entries."""
        model, caches = self.plan.architecture, self.caches
        if not (model.entries and self.manager.pages and caches.fine + caches.coarse):
            return None
        return layout_of(model, self.kv_bits, caches.windowed, caches.fine, caches.coarse)

    @property
    def choice(self) -> int:
        """Tokens that an indexer's choice stands for; 0 without one."""
        return self.sight(False) * self.index_rate

    @property
    def whole(self) -> int:
        """Layers that see all tokens, in a model whose others choose."""
        return sum(map(is_whole, self.plan.architecture.kinds))

    @property
    def index_pair(self) -> Shape:
        """Numbers of a product of an indexer's query with a key, before its heads are summed."""
        indexer = self.plan.architecture.indexer
        assert indexer
        return INDEX_HEADS / TP if indexer.block > 1 else INDEX_HEADS, INDEX_DIM

    @property
    def index_scores(self) -> float:
        """Scores that its kernel writes for each pair of tokens: one, or one of each head for a
        block."""
        indexer = self.plan.architecture.indexer
        assert indexer
        heads = ceil_div(indexer.heads, self.plan.serving_tp) if indexer.block > 1 else 1
        return float(heads / indexer.block)

    @property
    def index_dtype(self) -> str:
        """In which an indexer's scores are computed: of 8 bits where an engine keeps its keys so
        and the GPU multiplies them (DeepGEMM's fp8_mqa_logits)."""
        indexer = self.plan.architecture.indexer
        narrow = self.manager.pages and indexer is not None and indexer.block == 1
        eight = narrow and FP8 in self.plan.accelerator.flops
        return FP8 if eight else self.plan.weights.compute

    def products(self, tokens: int, apart: bool) -> tuple[Shape, Shape]:
        """Of all heads, the widths of their products with keys and with values."""
        one, other = ((HEADS / TP, width) for width in self.widths(tokens))
        if not apart:
            return one, other
        return tuple(of_stack(APART, f) for f in one), tuple(of_stack(APART, f) for f in other)

    @property
    def uneven(self) -> bool:
        """Whether layers that see all keep other numbers of a token than those with a window."""
        return len({part.apart for part in self.parts}) > 1

    def apart(self, windowed: bool) -> bool:
        """Whether layers with a window, or those without, have heads of their own."""
        return _apart_alike(self.plan.architecture, windowed)

    @property
    def parts(self) -> tuple[AlikeLayers, ...]:
        """Layers of all stages that attend, by what they see and the heads that they have."""
        model, caches, whole = self.plan.architecture, self.every, self.whole
        of = model.entries
        found = (
            AlikeLayers(count, windowed, _apart_alike(model, windowed), sight, rate)
            for count, windowed, sight, rate in (
                (caches.full - whole, False, self.sight(False), 1),
                (whole, False, 0, 1),
                (caches.windowed, True, self.sight(True), 1),
                (caches.fine, False, self.sight(False), of.fine if of else 1),
                (caches.coarse, False, 0, of.coarse if of else 1),
            )
        )
        return tuple(part for part in found if part.count)

    def cache_of(self, apart: bool) -> Shape:
        """What a layer keeps of a token, by whether it has heads of its own."""
        return tuple(of_stack(APART, f) for f in self.cache) if apart else self.cache

    def cached(self, apart: bool, amounts: Amounts) -> int:
        """Numbers that one layer keeps of a token."""
        return int(amounts.elements(self.cache_of(apart)))

    @property
    def least(self) -> bool:
        """Of heads that layers have, whether those apart keep the fewest numbers of a token."""
        amounts = self.amounts(1, 1)
        found = {part.apart for part in self.parts} or {False}
        return min(found, key=lambda apart: self.cached(apart, amounts))

    @property
    def pages(self) -> tuple[int, int]:
        """Of layers that see all, and of those with a window: pages of one layer for the tokens of
        a block. Where heads differ, vLLM gives pages as many bytes, and so other tokens
        (vllm/v1/core/kv_cache_utils.py, unify_kv_cache_spec_page_size)."""
        amounts, model = self.amounts(1, 1), self.plan.architecture
        if not model.heads_apart:
            return 1, 1
        one = self.cached(self.least, amounts)
        whole, part = (
            ceil_div(self.cached(_apart_alike(model, windowed), amounts), one)
            for windowed in (False, True)
        )
        return whole, part

    @property
    def kv_bits(self) -> float:
        """Of a cached value: of keys and of values half each."""
        keys, values = KV_DTYPES[self.plan.serve.kv_dtype], KV_DTYPES[self.plan.value_dtype]
        return (keys.bits + values.bits) / 2

    @property
    def index_bytes(self) -> float:
        """Bytes of a token that a layer keeps for an indexer, on average over all layers, some of
        which share another's or have none (cache.INDEX_SOURCE); in transformers the dtype of the
        cache."""
        model = self.plan.architecture
        if not model.indexer:
            return 0.0
        one = model.indexer.dim * self.kv_bits / 8
        if self.manager.pages and model.indexer.block > 1:
            one = 2.0 * model.indexer.dim
        elif self.manager.pages:
            one = model.indexer.dim + 4 * ceil_div(model.indexer.dim, SCALED)
        return one * self.indexers / model.layers / self.index_rate

    @property
    def packed(self) -> int:
        """Bytes of a latent in 8 bits, beside a byte for each value, where an indexer chooses
        tokens (cache.PACKED_SOURCE)."""
        model = self.plan.architecture
        if not (self.engine.packs and model.kv_rank and model.indexer and not model.entries):
            return 0
        if KV_DTYPES[self.plan.serve.kv_dtype].bits != BYTE:
            return 0
        scales: int = 4 * ceil_div(model.kv_rank, SCALED)
        return scales + model.rotary_dim

    @property
    def key_bytes(self) -> float:
        """Bytes of one of an indexer's keys, of one layer."""
        share = self.indexers / self.plan.architecture.layers / self.index_rate
        return self.index_bytes / share if share else 0.0

    @property
    def kv_per_token(self) -> int:
        """Bytes that one more token adds to the cache of one GPU, while no window is full; the
        draft's model has a cache too."""
        return int(self.numbers.serve.kv_bytes_per_token)

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
        whole = self.plan.engine == LLAMA_CPP  # both in fp32 (its llama-model.cpp, create_memory)
        convolution = ("convolution state", CONVOLUTION, "fp32" if whole else weights)
        return (convolution, ("recurrent state", STATE, state))[: 1 + recurrence.scans]

    @property
    def idle_slots(self) -> int:
        """Slots of llama.cpp without a request, each of which has its states (create_memory)."""
        s, own = self.plan.serve, self.plan.engine == LLAMA_CPP
        return max(0, s.max_num_seqs - s.concurrency) if own and self.caches.recurrent else 0

    @property
    def state_copies(self) -> int:
        """States that a layer holds of one sequence: with a draft one more for each guess, of which
        the last right one stays (vllm/model_executor/layers/mamba/abstract.py)."""
        return 1 + self.plan.serve.draft_tokens

    def state_bytes(self, amounts: Amounts) -> int:
        """Of one layer and one sequence."""
        return int(sum(amounts.bytes(shape, dtype) for _, shape, dtype in self.states))

    @property
    def alike(self) -> float:
        """As what share of them a step's tokens choose experts that would choose at random: all
        where each expert's score has a bias that keeps experts equally loaded (DeepSeek-V3,
        section 2.1.2)."""
        balanced = self.plan.architecture.traits.router_sigmoid
        return 1.0 if balanced else self.kernels.alike.middle

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
        sizes["ETP"] = max(1, self.plan.serving_tp // self.plan.parallel.ep)
        if self.plan.architecture.encoder_decoder:
            sizes |= {"S": self.plan.serve.prompt_len, "TARGET": tokens}
        if "KERNEL" in sizes:
            more = self.manager.columns + self.plan.serve.draft_tokens
            sizes["KEPT_TOKENS"] = sizes["KERNEL"] - 1 + more
        if self.manager.pages:
            sizes["VOCAB"] = ceil_div(sizes["VOCAB"], VOCAB_MULTIPLE) * VOCAB_MULTIPLE
        derive(sizes)
        spread = self.expert_replicas
        different = 1 + (batch * tokens * spread - 1) * self.alike
        chose = chosen(sizes["EXPERTS"], sizes["TOP_K"], different)
        sizes["CHOSEN"] = ceil_div(chose, spread)
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


@cached
def _forward(
    layers: tuple[Tape, ...], counts: tuple[int, ...], head: Tape
) -> tuple[tuple[Execution, ...], ...]:
    of_layers = [e for e in executions(layers, counts) if e.work.phase == "forward"]
    of_head = (e for e in executions((head,), (1,)) if e.work.phase == "forward")
    besides = [
        e
        for e in of_layers
        if not {Part.CORE, Part.CHOICE} & set(e.work.parts)
        and not _scans(e)
        and (e.work.traffic or e.work.flops)
    ]
    return (
        tuple(e for e in besides if not of_encoder(e)),
        tuple(e for e in of_head if Part.LOSS not in e.work.parts),
        tuple(filter(_scans, of_layers)),
        tuple(e for e in besides if of_encoder(e)),
    )


def _scans(e: Execution) -> bool:
    return Part.SCAN in e.work.parts


def _stage_layers(plan: Plan, model: Model) -> int:
    """Layers of a pipeline stage at most: llama.cpp shares out those on GPUs with the output as one
    of them (src/llama-model.cpp, get_layer_buft_list)."""
    if plan.serving_pp == 1:
        return int(model.layers)
    shared = model.layers - plan.host_layers + (plan.engine == LLAMA_CPP)
    return -(-shared // plan.serving_pp)


def _cached(plan: Plan, model: Model, per_stage: int) -> tuple[Caching, Caching]:
    """Of all layers, and of those of one GPU: layers on the host keep their cache there."""
    every, caches = _caching(model.kinds, model.layers, per_stage)
    if plan.host_layers:
        kinds, on_gpus = model.kinds[plan.host_layers :], model.layers - plan.host_layers
        caches = _caching(kinds, on_gpus, min(per_stage, on_gpus))[1]
    return every, caches


@cached
def _caching(kinds: tuple[str, ...], layers: int, per_stage: int) -> tuple[Caching, Caching]:
    """Layers by what they cache: of all stages, and of the one that keeps most of a long sequence,
    the first of several."""
    if not kinds:
        return Caching(layers, 0, 0), Caching(per_stage, 0, 0)
    stages = (kinds[i : i + per_stage] for i in range(0, len(kinds), per_stage))
    found = [Caching.of(stage) for stage in stages]
    return Caching.of(kinds), max(found, key=lambda c: (c.full, c.fine, c.windowed, c.recurrent))


def chosen(experts: int, top_k: int, tokens: float) -> int:
    """Experts that so many tokens choose at least once, on average, each token its own at random:
    the others' weights are not read."""
    if not experts:
        return 0
    others: float = (1 - top_k / experts) ** tokens
    return math.ceil(experts * (1 - others) - 1e-9)


# A checkpoint of fewer bits has its head for multi-token prediction in 16 (TensorRT-LLM,
# _torch/models/modeling_deepseekv3.py, _get_decoder_layer_quant_config, of NVFP4).
FEW_BITS = 8


def _drafting(plan: Plan) -> Plan:
    """The plan of a draft: the same GPUs, dtypes and cache, without a draft of its own. Where it
    guesses several tokens at once, a forward has as many. llama.cpp caches in fp16 for it, whatever
    it does for the model (common/common.h of November 2026: common_params_speculative)."""
    document, word, target = plan.document(), plan.serve.draft_model, plan.architecture
    document["serve"] |= {"draft_tokens": 0, "draft_model": NO_DRAFT, "offload_weights": 0.0}
    document["serve"] |= {"tp": plan.serving_tp, "pp": 1, "gpu_layers": 0, "cpu_moe_layers": 0}
    document["parallel"] = {}
    draft = from_config(drafts.head_of(target, EAGLE_VOCABULARY)) if word == EAGLE else plan.draft
    trained = draft.draft if draft else None
    family = draft.family if draft else target.family
    if draft and trained:
        document["model"], family = drafts.plain(draft), "llama"
        document["serve"]["weight_dtype"] = plan.weights.compute
        document["serve"]["draft_tokens"] = trained.tokens(plan.serve.draft_tokens) - 1
    elif draft:
        document["model"] = word
        if plan.serve.draft_weight_dtype != AS_PUBLISHED:
            document["serve"]["weight_dtype"] = plan.serve.draft_weight_dtype
        if plan.engine == LLAMA_CPP:
            document["serve"] |= {"kv_dtype": "fp16", "value_dtype": AS_KEYS}
    read = {"seq_len": 1}  # nothing is trained
    if draft is None and target.tower:  # whose images have to fit in
        read = {name: document["train"][name] for name in ("seq_len", "images", "image_size")}
    document["train"] = {"attention": FAMILIES[family].attentions[-1], **read}
    if word == MULTI_TOKEN and bits(plan.weights.matrices) < FEW_BITS:
        document["serve"]["weight_dtype"] = plan.weights.compute
    found = Plan.of(document)
    if draft and trained:
        return found.of_model(draft)
    if word == MULTI_TOKEN:
        label, kinds = f"multi-token prediction of {target.label}", target.kinds[-1:]
        return found.of_model(replace(target, layers=1, kinds=kinds, tower=None, label=label))
    return found


@cached
def _read_bits(
    model: Model, dtype: WeightDtype, blocks: Blocks, stack: Layers
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
                found.setdefault(as_read(p.shape), []).extend([bits(kind)] * n)
    return {shape: sum(bits) / len(bits) for shape, bits in found.items() if bits}


def one_forward(server: Server) -> Amounts:
    """Amounts of the largest forward that the server runs: an encoder's of whole prompts, with the
    first token of each."""
    if server.plan.architecture.encoder_decoder:
        return server.amounts(prompts(server), 1)
    return server.amounts(1, server.plan.batched_tokens, server.numbers.serve.profiled_images)


def kept_by_window(server: Server) -> int:
    """Tokens that a layer with a window keeps; 0 for all of them: of a window of one token,
    transformers' DynamicCache slices the last 0, which is everything
    (cache_utils.DynamicSlidingWindowLayer.update)."""
    return server.plan.architecture.window - server.manager.dropped


def as_read(shape: Shape) -> Shape:
    """A weight's shape as products read it: of a stack of experts, those that were chosen."""
    return (CHOSEN, *shape[1:]) if len(shape) == 3 and shape[0] is EXPERTS else shape


@dataclass(frozen=True, slots=True)
class Tower:
    """tapes    embedding, layers, and what leads from them to the main stack; how many of each
    timed    the same with the kernels that run
    layers   how many of them are layers
    """

    tapes: tuple[tuple[Tape, int], ...]
    timed: tuple[tuple[Tape, int], ...]
    layers: int

    @classmethod
    def of(cls, model: Model, compute: str, kernels: str, trimmed: bool) -> Tower | None:
        """`trimmed`: layers behind those whose result is read are not even loaded, as vLLM does
        (vllm/model_executor/models/llava.py, init_vision_tower_for_llava)."""
        if not model.tower:
            return None
        kinds, stack = layers_of(model)

        def parts(kernels: str) -> tuple[tuple[Tape, int], ...]:
            structure = structure_of(model, kernels=kernels, dtype=compute, served=True)
            blocks = build(structure, kinds)
            run = (
                (tape, n)
                for kind, tape, n in zip(kinds, blocks.layers, stack.counts, strict=True)
                if kind.place and not (trimmed and kind.place == IDLE)
            )
            return ((blocks.embed, 1), *run)

        tapes = parts("hf")
        return cls(tapes, parts(kernels), sum(n for _, n in tapes[1:-1]))

    @property
    def executions(self) -> tuple[Execution, ...]:
        """What one forward of it runs, attention included."""
        return _run(tuple(t for t, _ in self.timed), tuple(n for _, n in self.timed))


@cached
def _run(tapes: tuple[Tape, ...], counts: tuple[int, ...]) -> tuple[Execution, ...]:
    return tuple(e for e in executions(tapes, counts) if in_forward(e))


def in_forward(e: Execution) -> bool:
    return e.work.phase == "forward" and bool(e.work.traffic or e.work.flops)


def of_encoder(e: Execution) -> bool:
    """Whether an operation of a decoder layer works on the encoder's tokens: it makes the keys and
    values that the layer keeps, once for a prompt."""
    shapes = (*(s for _, s in e.work.flops), *(s for s, _, _ in e.work.traffic))
    return any("encoder." in str(factor) for shape in shapes for factor in shape)


def images(server: Server) -> int:
    """Images of one prompt; of a model that reads none, 0."""
    tower = server.plan.architecture.tower
    return server.plan.serve.images if tower and tower.image else 0


def prompts(server: Server) -> int:
    """Whole prompts of the largest forward."""
    return max(1, server.plan.batched_tokens // server.plan.serve.prompt_len)
