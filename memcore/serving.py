"""Serving: weights, KV cache and what is left of a GPU, and how fast tokens come."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import mul

from memcore import constants, policies
from memcore.blocks import build, structure_of
from memcore.dims import (
    HEAD_DIM,
    HEADS,
    KV_RANK,
    LATENT,
    TP,
    V_DIM,
    VOCAB,
    D,
    Dim,
    Number,
    Shape,
    derive,
)
from memcore.families import FAMILIES
from memcore.instants import Layers
from memcore.ledger import AUTOGRAD, INFERENCE, Amounts, window
from memcore.memory import layers_of
from memcore.plan import Plan
from memcore.report import LedgerRow, OperationTime, Serve
from memcore.roofline import Execution, Links, Speed, executions, operation, run, seconds
from memcore.tape import Tape

KV_SOURCE = (
    "per layer and token keys and values of kv_heads x head_dim, or under latent attention one "
    "vector of kv_lora_rank + qk_rope_head_dim"
)
STAGE_LAYERS = Dim("STAGE_LAYERS")  # layers on the fullest pipeline stage
ATTENTION_OF = "new tokens attend to the cache: each reads every key and value once"
SEQUENCES = Dim("SEQUENCES")
LOGITS: Shape = (SEQUENCES, VOCAB / TP)
LOGITS_COPIES = 1.5  # in bf16, and copied to fp32
CACHE_READ = "attention over the cache"


@dataclass(frozen=True, slots=True)
class Server:
    """One replica: the tapes of its model and how it is cut."""

    plan: Plan
    embed: Tape
    stack: Layers
    layers: tuple[tuple[Tape, int], ...]  # each kind, and how many layers are of it
    head: Tape
    stage_layers: int

    @classmethod
    def of(cls, plan: Plan) -> Server:
        s, model = plan.serve, plan.architecture
        compute = policies.WEIGHT_DTYPES[s.weight_dtype].compute
        kinds, stack = layers_of(model)
        blocks = build(structure_of(model, dtype=compute, served=True), kinds)
        layers = tuple(zip(blocks.layers, stack.counts, strict=True))
        per_stage = -(-model.layers // plan.parallel.pp)
        return cls(plan, blocks.embed, stack, layers, blocks.head, per_stage)

    @property
    def cache(self) -> Shape:
        """What each layer keeps of a token."""
        return FAMILIES[self.plan.architecture.family].cache

    def widths(self, tokens: int) -> tuple[Dim, Dim]:
        """Of one head's scores and of its values, for so many new tokens of a sequence.

        Latent attention expands the keys and values of a prompt; one generated token is multiplied
        with the latents as they are (DeepSeek-V2, section 2.1.2).
        """
        latent = self.plan.architecture.kv_rank > 0 and tokens == 1
        return (LATENT, KV_RANK) if latent else (HEAD_DIM, V_DIM)

    def amounts(self, batch: Number, tokens: Number) -> Amounts:
        """Amounts for one forward of `batch` sequences of `tokens` new tokens each."""
        sizes = self.plan.sizes()
        sizes |= {"B": batch, "S": tokens, "CP": 1, "STAGE_LAYERS": self.stage_layers}
        sizes["SEQUENCES"] = self.plan.serve.concurrency
        derive(sizes)
        return Amounts(sizes)

    @property
    def executions(self) -> tuple[list[Execution], list[Execution]]:
        """What one forward runs in the layers besides attention, and in the head, without a loss:
        attention reads the cache, and is timed apart."""
        tapes, counts = zip(*self.layers, strict=True)
        every = executions(tapes, counts), executions((self.head,), (1,))
        layers, head = ([e for e in of if e.work.phase == "forward"] for of in every)
        return (
            [e for e in layers if ".core." not in e.work.name],
            [e for e in head if ".loss." not in e.work.name],
        )


def serve(plan: Plan) -> Serve:
    """Memory and speed of serving on one replica of tp x pp GPUs. Sizes are per GPU."""
    s, server = plan.serve, Server.of(plan)
    amounts = one_forward(server)
    weights = _weights(server, amounts)
    activations = _activations(server, amounts)
    per_token = _kv_per_token(server, amounts)
    overhead = int(sum(c.middle for c in overheads(plan)))
    budget = int(plan.accelerator.usable_bytes * s.memory_utilization)
    weights_bytes = sum(r.bytes for r in weights)
    left = budget - weights_bytes - activations.bytes - overhead
    length = s.prompt_len + s.output_len
    paged = s.kv_cache == "paged"
    reserved = -(-length // s.block_size) * s.block_size if paged else length
    tokens = max(0, left) // per_token
    if paged:
        tokens = tokens // s.block_size * s.block_size
    # Averaged over a sequence's life, half of what it will generate is not there yet. Contiguous
    # memory is held for it; pages are not, and only the last page is half empty.
    idle = (s.block_size - 1) / 2 if paged else s.output_len / 2
    concurrent = tokens // reserved
    running = max(1, min(s.concurrency, concurrent))
    prefill, decode = prefill_operations(server), decode_operations(server, running)
    tpot = seconds(decode)
    kv = _kv_row(server, amounts, per_token, min(s.concurrency, concurrent) * reserved)
    return Serve(
        weights_bytes=weights_bytes,
        kv_bytes_per_token=per_token,
        activation_bytes=activations.bytes,
        overhead_bytes=overhead,
        budget_bytes=budget,
        kv_budget_bytes=max(0, left),
        kv_capacity_tokens=tokens,
        sequence_bytes=reserved * per_token,
        wasted_bytes_per_sequence=round(idle * per_token),
        max_concurrency=concurrent,
        fits=concurrent >= s.concurrency,
        ttft_seconds=seconds(prefill),
        tpot_seconds=tpot,
        tokens_per_second=running / tpot,
        prefill_bound_by=_bound(prefill),
        decode_bound_by=_bound(decode),
        gpus_per_replica=plan.parallel.tp * plan.parallel.pp,
        replicas=max(1, plan.cluster.gpus // (plan.parallel.tp * plan.parallel.pp)),
        rows=(*weights, kv, activations),
    )


def one_forward(server: Server) -> Amounts:
    """Amounts of the largest forward that the server runs."""
    return server.amounts(1, server.plan.serve.max_batched_tokens)


def overheads(plan: Plan) -> list[constants.Constant]:
    """What occupies a serving GPU outside the server's control."""
    alone = plan.parallel.tp * plan.parallel.pp == 1
    return [constants.CUDA_CONTEXT] + ([] if alone else [constants.NCCL_BUFFERS])


def prefill_operations(server: Server) -> list[OperationTime]:
    """One prompt, alone."""
    s = server.plan.serve
    return forward(server, 1, s.prompt_len, s.prompt_len, 1)


def decode_operations(server: Server, running: int) -> list[OperationTime]:
    """One token of each of `running` sequences, at half of their output."""
    s = server.plan.serve
    return forward(server, running, 1, s.prompt_len + s.output_len // 2, running)


def _weights(server: Server, amounts: Amounts) -> list[LedgerRow]:
    """Weights on the fullest GPU: its share of the layers, and the larger of embedding and head."""
    dtype = policies.WEIGHT_DTYPES[server.plan.serve.weight_dtype]
    first, last = list(server.embed.parameters), list(server.head.parameters)
    pp = server.plan.parallel.pp
    if pp > 1:
        tied = server.plan.architecture.traits.tied_embeddings
        ends = {"first": first, "last": last + (first[:1] if tied else [])}
        outer = max(ends.values(), key=lambda ps: sum(amounts.elements(p.shape) for p in ps))
    else:
        outer = first + last
    rows = []
    for p, times in [
        *((p, 1) for p in outer),
        *(
            (p, times)
            for (tape, _), times in zip(server.layers, _heaviest(server, amounts), strict=True)
            for p in tape.parameters
            if times
        ),
    ]:
        each = math.ceil(amounts.elements(p.shape) * dtype.bits / 8)
        rows.append(
            LedgerRow(
                p.name, "parameters", amounts.text(p.shape), dtype.label, each, times, each * times,
                "hbm", "always", "exact", AUTOGRAD, "a weight, as stored for inference",
            )
        )  # fmt: skip
    return rows


def _heaviest(server: Server, amounts: Amounts) -> list[int]:
    """How many layers of each kind the pipeline stage has whose layers weigh most."""
    weights = [sum(amounts.elements(p.shape) for p in tape.parameters) for tape, _ in server.layers]
    first = server.stack.first
    stages = [
        [b - a for a, b in zip(first(i), first(i + server.stage_layers), strict=True)]
        for i in range(0, server.stack.count, server.stage_layers)
    ]
    return max(stages, key=lambda counts: sum(map(mul, counts, weights)))


def _kv_per_token(server: Server, amounts: Amounts) -> int:
    """Bytes that one more token adds to the cache of one GPU."""
    bits = policies.KV_DTYPES[server.plan.serve.kv_dtype].bits
    total: float = server.stage_layers * amounts.elements(server.cache) * bits / 8
    return math.ceil(total)


def _kv_row(server: Server, amounts: Amounts, per_token: int, tokens: int) -> LedgerRow:
    first, *rest = server.cache
    shape = amounts.text((first, STAGE_LAYERS, *rest))
    return LedgerRow(
        "kv cache", "kv_cache", f"{shape} x tokens {tokens:,}",
        policies.KV_DTYPES[server.plan.serve.kv_dtype].label, per_token, tokens, per_token * tokens,
        "hbm", "while its sequence runs", "exact", KV_SOURCE,
        "keys and values of the sequences that run at once",
    )  # fmt: skip


def _activations(server: Server, amounts: Amounts) -> LedgerRow:
    """The most that a forward of max_batched_tokens needs at once: in a layer or at the logits."""
    layer = max(window(tape, INFERENCE).peak(amounts)[0] for tape, _ in server.layers)
    logits = amounts.bytes(LOGITS, "fp32") * LOGITS_COPIES
    n = int(max(layer, logits))
    return LedgerRow(
        "activations of one forward", "workspace",
        f"tokens {server.plan.serve.max_batched_tokens:,}", "mixed", n, 1, n, "hbm",
        "one forward", "assumed",
        "peak of the transformers layer without saved tensors; an engine's own kernels differ",
        "temporaries of the largest layer, or the logits",
    )  # fmt: skip


def forward(
    server: Server, batch: int, tokens: int, context: int, logits: int
) -> list[OperationTime]:
    """One forward through all layers: `batch` sequences of `tokens` new tokens at `context`."""
    plan = server.plan
    dtype = policies.WEIGHT_DTYPES[plan.serve.weight_dtype].compute
    speed = Speed.of(plan.accelerator, dtype)
    amounts = server.amounts(batch, tokens)
    layers = plan.architecture.layers
    in_layers, in_head = server.executions
    ops = run(in_layers, amounts, speed)
    ops.append(_attention(server, amounts, speed, batch, tokens, context))
    ops += run(in_head, server.amounts(logits, 1), speed)
    if plan.parallel.tp > 1:
        links = Links.of(
            plan.accelerator, plan.node, plan.parallel.tp, plan.cluster.gpus_per_node
        ).reduce(float(amounts.elements((batch, tokens, D))) * 2)
        link = max(links, key=lambda name: links[name])
        spent = 2 * layers * links[link]
        ops.append(OperationTime("tensor-parallel all-reduce", "forward", 0, 0, 0, 0, spent, link))
    return ops


def _attention(
    server: Server, amounts: Amounts, speed: Speed, batch: int, tokens: int, context: int
) -> OperationTime:
    """Attention of new tokens to the cache: it reads every key and value once."""
    bits = policies.KV_DTYPES[server.plan.serve.kv_dtype].bits
    layers = server.plan.architecture.layers
    per_layer = amounts.elements(server.cache) * bits / 8
    products = sum(amounts.elements((HEADS / TP, width)) for width in server.widths(tokens))
    share = 0.5 if tokens == context else 1.0  # a prompt's tokens see half of it on average
    flops = 2.0 * batch * tokens * context * products * share
    return operation(
        CACHE_READ, "forward", flops, batch * context * per_layer, speed, True,
        layers,
    )  # fmt: skip


def _bound(operations: list[OperationTime]) -> str:
    sums: dict[str, float] = {}
    for o in operations:
        sums[o.bound_by] = sums.get(o.bound_by, 0.0) + o.seconds
    return max(sums, key=lambda k: sums[k])
