"""Weights: as an engine stores them, on the fullest GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

from memcore.cache import cached
from memcore.models.quantization import on_disk
from memcore.models.stack import Layers
from memcore.plan.plan import Plan
from memcore.report import LedgerRow
from memcore.serving import allocator, stored
from memcore.serving.rows import row
from memcore.serving.server import Server
from memcore.serving.towers import takes_room
from memcore.tape.dims import (
    EP,
    ETP,
    EXPANDED,
    EXPERT_D,
    EXPERT_FUSED,
    EXPERTS,
    KV_RANK,
    ROTARY,
    TP,
    VOCAB,
    Cut,
    D,
    Dim,
    Extent,
    Extents,
    Factor,
    Shape,
    ceil_div,
    size,
)
from memcore.tape.ledger import AUTOGRAD, Amounts
from memcore.tape.tape import Storage
from memcore.words import experts
from memcore.words.engines import ENGINES
from memcore.words.serving import MULTI_TOKEN
from memcore.words.stored import bits, bits_alone
from memcore.words.word import DTYPE_BYTES

ROTARY_SOURCE = (
    "vLLM keeps cosines and sines of every position in the model's dtype "
    "(vllm/model_executor/layers/rotary_embedding), under linear scaling of its factor's times as "
    "many; two logged pairs differ by just that"
)
SCALES_SOURCE = (
    "SGLang until 0.5.15 (srt/layers/quantization, marlin_utils_fp4.py): the fp32 scales that its "
    "loader fills stay on the GPU"
)
HEADERS = "headers of the weights on disk"
MXFP4_GROUP = 32  # values with one scale (OCP Microscaling 1.0)
ABSORBED: Shape = (EXPANDED / TP, KV_RANK)
ABSORBED_SOURCE = (
    "vLLM keeps W_UK and W_UV in the model's dtype beside kv_b_proj "
    "(vllm/v1/attention/backends/mla/common.py)"
)


def outer(server: Server, amounts: Amounts) -> list[Storage]:
    """Weights besides the layers', on the GPU that has more of them; under llama.cpp, which leaves
    the embedding to the host, on the GPU whose layers weigh most with them."""
    first, last = list(server.embed.parameters), list(server.head.parameters)
    if server.plan.serving_pp == 1:
        return first + last
    tied = server.plan.architecture.traits.tied_embeddings
    at_end = last + (first[:1] if tied else [])
    if server.embeds_on_host:
        return at_end if _fullest(server, amounts)[-1] == server.stack.count - 1 else []
    ends = {"first": first, "last": at_end}
    return max(ends.values(), key=lambda ps: sum(amounts.elements(p.shape) for p in ps))


Held = tuple[Storage, str, int]  # a weight, its type, and in how many layers


def held_weights(server: Server, amounts: Amounts) -> list[list[Held]]:
    """Weights on the fullest GPU: the larger of embedding and head, its share of the layers of each
    kind, and its towers, which stay in 16 bits."""
    ends = outer(server, amounts)
    found: list[list[Held]] = [
        [(p, kind, 1) for p in ends for kind in _types(server, amounts, p, (0,))]
    ]
    for (tape, _), layers in zip(server.layers, _heaviest(server, amounts), strict=True):
        types = ((p, _types(server, amounts, p, layers)) for p in tape.parameters)
        found.append([(p, *item) for p, of in types for item in of.items()])
    of_text = {p.path.rpartition("embed.")[2] for p in server.embed.parameters}
    for tape, n in server.tower.tapes if server.tower else ():
        own = (
            p
            for p in tape.parameters
            if p.path.rpartition(".embed.")[2] not in of_text
            and (p.trained or not server.manager.pages)  # nobody reads what it makes: Tower.of
        )
        kind = on_disk(server.plan.weights.files, "tower", 0) or server.compute
        found.append([(p, kind, n) for p in own])
    return found


def weight_rows(
    server: Server, held: Sequence[Sequence[Held]], amounts: Amounts
) -> list[LedgerRow]:
    rows = []
    for p, kind, times in (item for part in held for item in part):
        shape = shared_out(server, p.shape)
        each = math.ceil(round(amounts.elements(shape) * bits(kind) / 8, 3))
        why = "a weight, as stored for inference"
        extents = amounts.extents(shape)
        rows.append(row(p.name, "parameters", extents, kind, each, times, AUTOGRAD, why))
        if kind == "mxfp4" and (copies := scales_more(server.plan)):
            name, scales = f"{p.name}, scales of its loader", each * 8 // (4 * MXFP4_GROUP + 8)
            more, why = scales * copies, "in fp32, beside those that kernels read"
            rows.append(row(name, "parameters", extents, "fp32", more, times, SCALES_SOURCE, why))
    if n := server.plan.weights.other:
        why = "tensors of the weights on disk that the model's config.json does not speak of"
        extents = Extents.of(Extent(n, "bytes"))
        rows.append(row("other tensors", "parameters", extents, "int8", n, 1, HEADERS, why))
    return rows


def scales_more(plan: Plan) -> int:
    """Bytes that an engine holds for each scale of an expert in MXFP4 besides the scale itself."""
    hopper = plan.accelerator.architecture.startswith("Hopper")
    in_fp8 = plan.weights.matrices.startswith("fp8")
    return ENGINES[plan.engine].scales - 1 if hopper and in_fp8 else 0


def on_host(server: Server, amounts: Amounts, layers: Sequence[int] | None = None) -> int:
    """Bytes that lie in the host's memory: of the embedding where it is there, and of layers and
    experts that the CPU computes, of the fullest GPU's part of the model or of these layers."""
    plan, found = server.plan, 0.0
    tied = plan.architecture.traits.tied_embeddings
    alone = plan.serving_pp == 1 or layers is not None
    if server.embeds_on_host and alone and not tied:
        for p in server.embed.parameters:
            each = amounts.elements(p.shape) / 8
            kinds = _types(server, amounts, p, (0,))
            found += sum(each * bits(kind) * n for kind, n in kinds.items())
    of_part = _fullest(server, amounts) if layers is None else layers
    for kind, (tape, _) in enumerate(server.layers):
        there = [i for i in of_part if server.stack.kind(i) == kind]
        for p in tape.parameters:
            first = plan.expert_layers if _of_experts(p) else plan.host_layers
            types = _types(server, amounts, p, [i for i in there if i < first])
            each = amounts.elements(shared_out(server, p.shape)) / 8
            found += sum(each * bits(of) * n for of, n in types.items())
    return int(round(found, 3))


def _of_experts(p: Storage) -> bool:
    return len(p.shape) == 3 and p.shape[0] is EXPERTS


def shared_out(server: Server, shape: Shape) -> Shape:
    """What one GPU has of a weight: with expert parallelism its share of the experts, each whole,
    or where there are more tensor-parallel ranks cut over those that are left for each."""
    if len(shape) < 2 or shape[0] is not EXPERTS or server.plan.parallel.ep == 1:
        return shape
    if len(shape) == 2 and not isinstance(shape[1], Cut) and shape[1] is D:
        return shape  # the router, which every GPU has
    over = server.plan.serving_tp > server.plan.parallel.ep
    return (EXPERTS / EP, *(_by_expert(f, over) for f in shape[1:]))


def _by_expert(f: Factor, over: bool) -> Factor:
    """A dimension of an expert that is whole, or cut `over` the ranks that are left for each."""
    if not isinstance(f, Cut):
        return f
    whole = stored.whole(f)
    return whole / ETP if over and isinstance(whole, Dim) else whole


def _types(server: Server, amounts: Amounts, p: Storage, layers: Sequence[int]) -> dict[str, int]:
    """In which types a weight is stored, and in how many of these layers."""
    model, dtype = server.plan.architecture, server.plan.weights
    values = size(stored.width(p, model), amounts.sizes)
    return {k: n for k, n in stored.types(dtype, model, p, layers, values).items() if n}


def _heaviest(server: Server, amounts: Amounts) -> list[list[int]]:
    """The layers of each kind on the pipeline stage whose layers weigh most."""
    best, kinds = _fullest(server, amounts), range(len(server.layers))
    return [[i for i in best if server.stack.kind(i) == kind] for kind in kinds]


def _fullest(server: Server, amounts: Amounts) -> range:
    """The layers of the pipeline stage that has most on its GPU."""

    def weights(experts: bool) -> tuple[int, ...]:
        return tuple(
            sum(
                int(amounts.elements(p.shape))
                for p in t.parameters
                if experts or not _of_experts(p)
            )
            for t, _ in server.layers
        )

    head = 0
    if server.embeds_on_host:
        head = max((int(amounts.elements(p.shape)) for p in _ends(server)), default=0)
    away = server.plan.expert_layers
    whole, without = weights(experts=True), weights(experts=False)
    return _stage_of(whole, without, away, head, server.stack, tuple(server.stages))


def _ends(server: Server) -> Sequence[Storage]:
    """What makes logits: the head, or the embedding in its place."""
    tied = server.plan.architecture.traits.tied_embeddings
    return server.embed.parameters if tied else server.head.parameters


@cached
def _stage_of(
    whole: tuple[int, ...], without: tuple[int, ...], away: int, head: int, stack: Layers,
    stages: tuple[range, ...],
) -> range:  # fmt: skip
    def weight(stage: range) -> int:
        layers = sum((without if i < away else whole)[stack.kind(i)] for i in stage)
        return layers + head * (stage[-1] == stack.count - 1)

    return max(stages, key=weight)


def table_rows(server: Server, held: Sequence[Sequence[Held]], amounts: Amounts) -> list[LedgerRow]:
    """What vLLM keeps besides weights: cosines and sines of the model's positions; of latent
    attention what multiplies with the latents themselves."""
    model = server.plan.architecture
    dtype = server.plan.weights.compute
    rows = []
    if model.kv_rank and server.manager.pages:
        n, layers = int(amounts.bytes(ABSORBED, dtype)), server.stage_layers
        why = "multiplies queries and results with the latents as they are"
        shape, name = amounts.extents(ABSORBED), "absorbed kv_b_proj"
        rows.append(row(name, "tables", shape, dtype, n, layers, ABSORBED_SOURCE, why))
    if server.draft:
        n = draft_bytes(server)
        why = f"weights of {server.draft.plan.architecture.label}, which guesses"
        shape = Extents.of(Extent(n, "bytes"))
        rows.append(row("draft model", "tables", shape, "int8", n, 1, AUTOGRAD, why))
    if slots := server.idle_slots:
        n, layers = server.state_bytes(amounts), server.caches.recurrent
        shape, why = Extents.of(Extent(slots, "slots"), Extent(n, "bytes")), "each slot has its own"
        of = "llama.cpp's recurrent memory has as many cells as slots"
        rows.append(
            row("states of idle slots", "tables", shape, "int8", slots * n, layers, of, why)
        )
    if not server.manager.pages:
        return rows
    for which, positions in model.rotary_tables or (("", model.max_positions),):
        n = positions * model.rotary_dim * DTYPE_BYTES[dtype]
        if n:
            name = f"rotary table, {which} layers" if which else "rotary table"
            shape = Extents.of(Extent(positions, "positions"), Extent(model.rotary_dim, ROTARY))
            why = "cosines and sines of every position"
            rows.append(row(name, "tables", shape, dtype, n, 1, ROTARY_SOURCE, why))
    if (deep := model.tower.traits.deepstack if model.tower else 0) and takes_room(server):
        tokens = server.plan.batched_tokens
        shape = Extents.of(Extent(tokens, "tokens"), Extent(model.hidden_size, D))
        n = tokens * model.hidden_size * DTYPE_BYTES[dtype]
        why = "what the first layers add to tokens of images, for a whole forward"
        rows.append(
            row("deepstack_input_embeds", "tables", shape, dtype, n, deep, DEEPSTACK_SOURCE, why)
        )
    return rows + _padding(server, held, amounts) + _rests(server, held, amounts)


DEEPSTACK_SOURCE = "vllm/model_executor/models/qwen3_vl.py: self.deepstack_input_embeds"


def draft_bytes(server: Server) -> int:
    """Weights of a draft on one GPU. A head has the embedding of a model as wide as itself, and
    multi-token prediction its head too, and a matrix more that joins what it reads."""
    draft, model = server.draft, server.plan.architecture
    assert draft
    alone = draft.amounts(1, 1)
    n = sum(r.bytes for r in weight_rows(draft, held_weights(draft, alone), alone))
    wide, own = DTYPE_BYTES[draft.plan.weights.compute], draft.plan.architecture
    tables = [p.shape for p in draft.embed.parameters if p.shape[0] == VOCAB / TP]
    if server.plan.serve.draft_model == MULTI_TOKEN:
        tables += [p.shape for p in draft.head.parameters if len(p.shape) == 2]
        joined = 2 * model.hidden_size * model.hidden_size
        n += (joined + 2 * model.hidden_size) * wide  # both that are joined are normed first
    elif not own.draft or own.hidden_size != model.hidden_size:
        return n
    return n - int(sum(alone.elements(of) for of in tables) * wide)


def _padding(server: Server, held: Sequence[Sequence[Held]], amounts: Amounts) -> list[LedgerRow]:
    """What is added to experts in MXFP4, and to their biases, for the kernels that run them."""
    plan, rows = server.plan, []
    layout = experts.BACKENDS[plan.expert_backend]
    why = f"what {layout.label} adds to experts, biases with them, for its kernels"

    def length(of: Factor) -> tuple[int, int]:
        """Of one dimension of an expert on this GPU, and padded."""
        n = int(amounts.elements((of,)))
        if stored.whole(of) in (D, EXPERT_D):
            return n, _up(n, layout.hidden)
        fused = 2 if stored.whole(of) is EXPERT_FUSED else 1
        return n, fused * _up(ceil_div(n, fused), layout.inner)

    for part in held:
        biased = any(len(p.shape) == 2 and _whole(p.shape) == [EXPERTS, EXPERT_FUSED]
                     for p, _, _ in part)  # fmt: skip
        for p, kind, layers in part:
            shape = shared_out(server, p.shape)
            if kind != "mxfp4" or len(shape) != 3:
                continue
            sums = stored.width(p, plan.architecture)
            (outer,) = [f for f in shape[1:] if stored.whole(f) is not sums]
            (inner,) = [f for f in shape[1:] if stored.whole(f) is sums]
            (n, made), (k, read) = length(outer), length(inner)
            values = _up(made, layout.outputs) * read // 2
            scales = _up(made, layout.scales) * ceil_div(read, MXFP4_GROUP)
            added = values + scales - math.ceil(n * k * bits(kind) / 8)
            if biased:
                stays, bias = server.compute, layout.bias or server.compute
                added += made * DTYPE_BYTES[bias] - n * DTYPE_BYTES[stays]
            if added:
                each = int(amounts.elements(shape[:1])) * added
                more = Extents.of(*amounts.factors(shape[:1]), Extent(added, "added bytes"))
                name, source = f"{p.name}, padded", experts.SOURCE
                rows.append(row(name, "tables", more, "int8", each, layers, source, why))
    return rows


def _whole(shape: Shape) -> list[Factor]:
    return [stored.whole(f) for f in shape]


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


TOO_LITTLE = "too little for the allocator to give to another tensor"


def _rests(server: Server, held: Sequence[Sequence[Held]], amounts: Amounts) -> list[LedgerRow]:
    """What the allocator leaves unused beside the matrices of each layer, as an engine joins them:
    queries, keys and values are one tensor, and so are gate and up."""
    joined: dict[tuple[str, ...], list[tuple[Storage, str, int]]] = {}
    for i, part in enumerate(held):
        for p, kind, n in part:
            joined.setdefault((str(i), stored.joined(p.path), kind), []).append((p, kind, n))
    rows = []
    for (_, name, kind), parts in joined.items():
        shapes = [shared_out(server, p.shape) for p, _, _ in parts]
        n, layers = sum(map(amounts.elements, shapes)) * bits_alone(kind) // 8, parts[0][2]
        rest = int(allocator.rest(n))
        if rest:
            shape = Extents(tuple(tuple(amounts.factors(of)) for of in shapes))
            what, source = f"{name}, rest of its block", allocator.SOURCE
            rows.append(row(what, "rests", shape, kind, rest, layers, source, TOO_LITTLE))
    return rows
