"""Serving: weights, KV cache and what is left of a GPU, and how fast tokens come."""

from __future__ import annotations

from typing import Any

from memcore.models.families import FAMILIES
from memcore.models.model import Model
from memcore.plan.plan import Plan
from memcore.quantity.reading import computed, filled
from memcore.report import LedgerRow, Serve
from memcore.serving.cache import kv_rows, state_rows
from memcore.serving.room import FORWARD_SOURCE
from memcore.serving.server import Server
from memcore.serving.time import Point, points
from memcore.tape.dims import Extent, Extents
from memcore.tape.structure import CAUSAL
from memcore.units import bytes_text
from memcore.words.serving import PREFILLS

REMEDY = (
    "More GPUs for a replica (tensor or pipeline parallel), a smaller dtype or shorter sequences "
    "need less of each GPU"
)


def servable(model: Model) -> bool:
    """Whether it generates, token by token."""
    return FAMILIES[model.family].decoder and model.head == CAUSAL


def serve(plan: Plan) -> Serve:
    """Memory and speed of serving on one replica of tp x pp GPUs. Sizes are per GPU."""
    return served_by(Server.of(plan))


def served_by(server: Server) -> Serve:
    """The same of a server that is there already."""
    return filled(Serve, server.numbers.serve)


@computed("serve.rows")
def rows(x: Any) -> tuple[LedgerRow, ...]:
    """What lies on one GPU."""
    weights, tables = x.serve.fixed_rows
    n = x.serve.activation_bytes
    activations = LedgerRow(
        "activations of one forward", "workspace",
        Extents.of(Extent(int(x.serve.batched_tokens), "tokens")), "mixed", n, 1, n, "hbm",
        "one forward", "assumed", FORWARD_SOURCE,
        "temporaries of the largest layer or the logits, beside what a tower made; or the tower's",
    )  # fmt: skip
    return *weights, *tables, *kv_rows(x.server), *state_rows(x.server), activations


def verdict(served: Serve, plan: Plan) -> str:
    """Whether the plan's sequences fit, on each GPU of a replica, and by how much."""
    concurrency = plan.serve.concurrency
    asked, left = served.sequence_bytes * concurrency, served.kv_budget_bytes
    if reason := nothing_fits(served):
        return f"{reason}. {REMEDY}"
    if reason := does_not_start(served):
        return reason
    need = "1 sequence needs" if concurrency == 1 else f"{concurrency:,} sequences need"
    need += f" {bytes_text(asked)} of KV cache "
    need += "for each GPU, in the host's memory" if plan.streams_cache else "on each GPU"
    where = " there for each GPU" if plan.streams_cache else ""
    if served.fits:
        room = f"{bytes_text(left)} left for it{where}"
        return f"{need}, of {room}; {bytes_text(left - asked)} to spare"
    return f"{need}, and {bytes_text(left)} are left{where}; {served.max_concurrency:,} fit"


def does_not_start(served: Serve) -> str:
    """Why the engine raises an error at its start though sequences fit; '' where it starts."""
    if not served.sequences_short or not served.max_concurrency:
        return ""
    return (
        f"vLLM does not start: max_num_seqs ({served.sequence_limit:,}) is more than the "
        f"{served.blocks:,} blocks of the cache, of which each sequence that generates needs one "
        f"for its state. Set serve.max_num_seqs to {served.blocks:,} or fewer, or raise "
        "serve.memory_utilization"
    )


def nothing_fits(served: Serve) -> str:
    """Why not even one sequence fits, so that no speeds are known; '' where one does."""
    if served.max_concurrency:
        return ""
    taken = served.weights_bytes - served.offloaded_bytes + served.table_bytes
    taken += served.activation_bytes + served.overhead_bytes
    if served.kv_budget_bytes:
        left = bytes_text(served.kv_budget_bytes)
        need = max(served.sequence_bytes, served.blocks_per_sequence * served.block_bytes)
        what = f"one sequence needs {bytes_text(need)} of KV cache on each GPU"
        if served.reserved_tokens:
            what += f", reserved for {served.reserved_tokens:,} tokens"
        return f"{what}, and {left} are left, so that no speeds are known"
    return (
        f"weights ({bytes_text(served.weights_bytes)}), one forward and overhead take "
        f"{bytes_text(taken)} of each GPU's budget of {bytes_text(served.budget_bytes)}, so that "
        "nothing is left for the KV cache, and no speeds are known"
    )


def most_requests(plan: Plan, served: Serve) -> float:
    """Requests per second that a replica serves in the long run, of the plan's own lengths; where
    prompts are read elsewhere, as many as the slower of both does. 0 where nothing is served."""
    if not served.tokens_per_second:
        return 0.0
    most = served.tokens_per_second / plan.serve.output_len
    if not PREFILLS[plan.serve.prefill].elsewhere:
        return most
    assert served.ttft_seconds is not None
    sent, waits = served.transfer_seconds or 0.0, served.wait_seconds or 0.0
    read = served.ttft_seconds - sent - waits - (served.first_seconds or 0.0)
    return min(most, 1 / max(read, sent))


NOTICED = 1.05  # less is within what the times are off


def load_of(plan: Plan, served: Serve) -> float | None:
    """Requests that come over those that a replica can serve, where they come at a rate."""
    most = most_requests(plan, served)
    if plan.serve.arrivals not in ("poisson", "regular") or not most:
        return None
    return plan.serve.arrival_rate / most


def saturation(plan: Plan, load: float | None) -> str:
    """Why waiting has no end where more requests come than are served; '' where it has one."""
    if load is None or load < NOTICED:
        return ""
    rate = plan.serve.arrival_rate
    return (
        f"this load is {load:,.3g} times what the server can do: waiting grows without end. "
        f"{rate:,.3g} requests come each second (serve.arrival_rate), and a replica serves "
        f"{rate / load:,.3g}"
    )


def curve(plan: Plan) -> tuple[Point, ...]:
    """Throughput and latency of one replica against how many sequences run."""
    server = Server.of(plan)
    return points(server, served_by(server).max_concurrency)


def of_fewer(plan: Plan, served: Serve) -> str:
    """Why fewer sequences than asked for generate at once; the speeds are of those."""
    s = plan.serve
    said = f"Serving: speeds are of {served.running:,} sequences that generate at once, not of "
    said += f"{s.concurrency:,}; the others wait. "
    step = min(served.sequence_limit, served.step_sequences)
    if served.running == served.max_concurrency or served.max_concurrency < served.running < step:
        said += "The KV cache has room for no more."
        if served.sequence_limit > s.concurrency and not s.max_num_seqs:
            said += (
                f" The engine makes room for {served.sequence_limit:,} sequences in one step; with "
                f"serve.max_num_seqs at {s.concurrency:,} more is left for the cache."
            )
        return said
    if served.running == served.sequence_limit:
        return f"{said}The engine schedules no more at once (serve.max_num_seqs)."
    said += f"A step has {served.batched_tokens:,} tokens (serve.max_batched_tokens), "
    if PREFILLS[s.prefill].chunked:
        return f"{said}and in the long run prompts take their share of them."
    return f"{said}at least one for each; vLLM refuses more sequences (max_num_seqs) than that."
