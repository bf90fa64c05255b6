"""Tables of the pages Serve and Together."""

from __future__ import annotations

from collections.abc import Sequence

from app.tables.base import PATH, Rows, latency_text
from app.tables.measured import CALIBRATED, moved_text
from memcore.plan.plan import Plan
from memcore.report import TogetherMemory
from memcore.search.measured import Calibrated
from memcore.search.solve import LIMITS, Answer
from memcore.together.scene import PARTS
from memcore.units import bytes_text


def together(together: TogetherMemory) -> Rows:
    """Each part of each phase of a step that trains and serves on the same GPUs."""
    rows = []
    for i, phase in enumerate(together.phases):
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
        text = titles[a.question][1].format(a.value)
        text = text.removesuffix("s") if a.value == 1 else text
        if a.question == "concurrency" and replicas > 1:
            return f"{text} a replica, {a.value * replicas:,} in all"
        return text

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
