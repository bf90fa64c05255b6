"""Serving: weights, KV cache and what is left of a GPU, and how fast tokens come."""

from __future__ import annotations

from memcore.hardware import constants
from memcore.models.families import FAMILIES
from memcore.models.model import Model
from memcore.plan.plan import Plan
from memcore.report import LedgerRow, Serve
from memcore.serving.cache import (
    Room,
    cross_bytes,
    kv_rows,
    padding_bytes,
    room,
    sequence_bytes,
    sequences,
    state_rows,
    token_bytes,
)
from memcore.serving.overheads import beside, host_room, overheads
from memcore.serving.server import Server, one_forward, profiled
from memcore.serving.time import Point, at_once, bound, felt, per_step, points
from memcore.serving.towers import memory
from memcore.serving.weights import held_weights, table_rows, weight_rows
from memcore.tape.dims import VOCAB, Shape
from memcore.tape.ledger import INFERENCE, Amounts, window
from memcore.tape.structure import CAUSAL
from memcore.units import GiB, bytes_text
from memcore.words.serving import PREFILLS
from memcore.words.training import QUANTIZED

LOGITS: Shape = (VOCAB,)
REMEDY = (
    "More ranks (serve.tp, serve.pp), a smaller dtype or shorter sequences need less of each GPU"
)
LOGITS_COPIES = 1.5  # in bf16, and copied to fp32


def servable(model: Model) -> bool:
    """Whether it generates, token by token."""
    return FAMILIES[model.family].decoder and model.head == CAUSAL


def serve(plan: Plan) -> Serve:
    """Memory and speed of serving on one replica of tp x pp GPUs. Sizes are per GPU."""
    s, server = plan.serve, Server.of(plan)
    amounts = one_forward(server)
    stored_here = held_weights(server, amounts)
    weights = weight_rows(server, stored_here, amounts)
    tables = table_rows(server, stored_here, amounts)
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
        sequence = sequence_bytes(server, amounts)
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
    states = state_rows(server, amounts, held)
    state, cross = sum(r.bytes_each for r in states), cross_bytes(server, amounts)
    kv = kv_rows(server, amounts, sequence - state, cross, held)
    tower, kept = memory(server, amounts)
    return Serve(
        weights_bytes=weights_bytes,
        offloaded_bytes=away,
        table_bytes=table_bytes,
        kv_bytes_per_token=per_token,
        activation_bytes=activations.bytes,
        tower_bytes=int(tower),
        feature_bytes=int(kept),
        profiled_images=profiled(server),
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


def _activations(server: Server, amounts: Amounts) -> LedgerRow:
    """The most that a forward of max_batched_tokens needs at once: in a layer or at the logits."""
    layer = max(window(tape, INFERENCE).peak(amounts)[0] for tape, _ in server.layers)
    layer += widened(server, amounts)[0]
    logits = amounts.bytes(LOGITS, "fp32") * server.plan.serve.concurrency * logit_copies(server)
    tower, kept = memory(server, amounts)
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
    if dtype.matrices not in QUANTIZED:
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


def of_fewer(plan: Plan, served: Serve) -> str:
    """Why fewer sequences than asked for generate at once; the speeds are of those."""
    s = plan.serve
    said = f"Serving: speeds are of {served.running:,} sequences that generate at once, not of "
    said += f"{s.concurrency:,}; the others wait. "
    if served.running == served.max_concurrency:
        return f"{said}The KV cache has room for no more."
    said += f"A step has {s.max_batched_tokens:,} tokens (serve.max_batched_tokens), "
    if PREFILLS[s.prefill].chunked:
        return f"{said}and in the long run prompts take their share of them."
    return f"{said}at least one for each; vLLM refuses more sequences (max_num_seqs) than that."
