"""Tables of the pages Serve and Together."""

from __future__ import annotations

from collections.abc import Sequence

from app.tables.base import PATH, Rows, latency_text
from app.tables.measured import CALIBRATED, moved_text
from memcore.plan.plan import Plan
from memcore.report import Serve, TogetherMemory
from memcore.search.measured import Calibrated
from memcore.search.solve import LIMITS, Answer
from memcore.together.scene import PARTS
from memcore.units import bytes_text


def together(found: TogetherMemory) -> Rows:
    """Each part of each phase of a step that trains and serves on the same GPUs."""
    rows = []
    for i, phase in enumerate(found.phases):
        sizes = [("in all", phase.bytes, f"together.phases.{i}.bytes")]
        sizes += [
            (PARTS[part], size, f"together.phases.{i}.parts.{part}")
            for part, size in phase.parts.items()
        ]
        rows += [
            {"phase": phase.label, "part": part, "size": bytes_text(n), "bytes": n, PATH: path}
            for part, n, path in sizes
        ]
    return rows


def serving(serve: Serve, concurrency: int) -> Rows:
    """The memory of one serving GPU, line by line."""
    kv = serve.sequence_bytes * concurrency
    waste = serve.wasted_bytes_per_sequence * concurrency
    states = (
        ("State per sequence", serve.state_bytes_per_sequence,
         "of it what layers keep however long it is", "state_bytes_per_sequence"),
        ("States of these sequences", serve.state_bytes_per_sequence * concurrency,
         "of it their states, without what pads their pages", "asked_state_bytes"),
    )  # fmt: skip
    held = states if serve.state_bytes_per_sequence else ()
    whole = "prompt and output"
    if serve.reserved_tokens:
        whole = f"reserved: {serve.reserved_tokens:,} tokens"
    elif serve.blocks_per_sequence:
        whole += ", whole blocks"
    empty = "the empty part of the last block or of the reservation"
    if held:
        empty = f"{empty}, and what pads the pages of states"
    heard = (
        ("Cross-attention cache per sequence", serve.cross_bytes_per_sequence,
         "of it keys and values of what the encoder read", "cross_bytes_per_sequence"),
    ) if serve.cross_bytes_per_sequence else ()  # fmt: skip
    tower = (
        ("Tower", serve.tower_bytes, "of it, where that is most: what runs before the layers",
         "tower_bytes"),
        ("Results of the tower", serve.feature_bytes, "of it, while the layers run",
         "feature_bytes"),
    ) if serve.tower_bytes else ()  # fmt: skip
    lines = (
        ("Weights", serve.weights_bytes, "read once per forward", "weights_bytes"),
        ("Tables", serve.table_bytes, "what the engine keeps besides", "table_bytes"),
        ("Loaded", serve.loaded_bytes, "both, as the engine's log prints it", "loaded_bytes"),
        ("KV cache per token", serve.kv_bytes_per_token, "keys and values of all layers",
         "kv_bytes_per_token"),
        ("KV cache per sequence", serve.sequence_bytes, whole,
         "sequence_bytes"),
        *held[:1],
        *heard,
        ("KV cache of these sequences", kv, f"{concurrency:,} sequences, each with all of it",
         "asked_bytes"),
        *held[1:],
        ("KV cache of the whole replica", kv * serve.gpus_per_replica, "over all its GPUs",
         "replica_bytes"),
        ("KV cache never used", waste,
         empty, "wasted_bytes"),
        ("Activations", serve.activation_bytes, "the largest forward", "activation_bytes"),
        *tower,
        ("Overhead", serve.overhead_bytes, "outside the server's control", "overhead_bytes"),
        ("Budget", serve.budget_bytes, "what the server may use of the GPU", "budget_bytes"),
        ("Room for KV cache", serve.kv_budget_bytes,
         "budget less weights, activations, overhead", "kv_budget_bytes"),
        ("Beside the budget", serve.outside_bytes, "CUDA context and graphs", "outside_bytes"),
    )  # fmt: skip
    return [
        {
            "what": name,
            "size": bytes_text(size),
            "bytes": size,
            "note": note,
            PATH: f"serve.{field}",
        }
        for name, size, note, field in lines
    ]


def limits(
    found: Sequence[Answer], plan: Plan, replicas: int, measured: Sequence[Calibrated | None] = ()
) -> Rows:
    """How far the plan can go, and what forbids more, of GPUs fewer. `measured`: each answer with a
    measured server, None where that says nothing of it."""
    asked = plan.serve
    rate = f"{asked.arrival_rate:,.4g} requests/s"
    titles = {
        "context": ("Longest sequence", "{:,} tokens"),
        "concurrency": ("Most sequences at once", "{:,}"),
        "gpus": (f"Fewest GPUs for {rate}", "{:,} GPUs"),
        "users": (f"Fewest GPUs for {asked.concurrency:,} at once", "{:,} GPUs"),
    }

    def answer(a: Answer) -> str:
        if not a.value:
            return "none, with TP within a node" if a.question in ("gpus", "users") else "none"
        said = titles[a.question][1].format(a.value)
        said = said.removesuffix("s") if a.value == 1 else said
        if a.question == "concurrency" and replicas > 1:
            return f"{said} a replica, {a.value * replicas:,} in all"
        return said

    calibrated = [
        {head: moved_text(m.moved.get(name) if m else None) for name, head in CALIBRATED.items()}
        for m in measured
    ]
    return [
        {
            "question": titles[a.question][0],
            "answer": answer(a) + (f", limited by {LIMITS[a.limit]}" if a.limit else ""),
            "first token": latency_text(a.served.ttft_seconds if a.value else None),
            "per token": latency_text(a.served.tpot_seconds if a.value else None),
            "tensor parallel": a.plan.serving_tp,
            "value": a.value,
            "ttft_seconds": a.served.ttft_seconds if a.value else None,
            "tpot_seconds": a.served.tpot_seconds if a.value else None,
        }
        | more
        for a, more in zip(found, calibrated or [{}] * len(found), strict=True)
    ]
