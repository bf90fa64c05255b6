"""Figures of served models that others logged (presets/evidence/served.toml)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from typing import Any

from evidence.planned import of_run
from memcore.evidence.comparison import Comparison, text
from memcore.plan.plan import Plan
from memcore.report import Serve
from memcore.serving.serve import serve

WEIGHTS_TOLERANCE, QUANTIZED_TOLERANCE = 0.005, 0.02
GENERATING, GENERATING_TOLERANCE = "allocated while generating", 0.05
SPEED_TOLERANCE = 0.15  # in the median
IMAGES, ROOM = "images of one forward", "KV cache"
SPEED, REQUEST, FIRST = "seconds per token", "seconds per token, prompt too", "first token"
TOLERANCES = {
    "KV per token": 0.005,
    "KV tokens": 0.05,
    "blocks": 0.0005,  # the cache's memory is logged in hundredths of a GiB
    "blocks of a sequence": 0.0,
    IMAGES: 0.0,
    ROOM: 0.05,
    "tokens of a block": 0.0,
    "sequences": 0.0005,
    GENERATING: GENERATING_TOLERANCE,
    SPEED: SPEED_TOLERANCE,
    REQUEST: SPEED_TOLERANCE,
    FIRST: SPEED_TOLERANCE,
}
UNITS = {
    GENERATING: "bytes",
    "weights": "bytes",
    "KV per token": "bytes",
    ROOM: "bytes",
    **dict.fromkeys((SPEED, REQUEST, FIRST), "seconds"),
}
UNQUANTIZED = ("fp32", "bf16", "fp16")  # weights that are not quantized


@functools.cache
def served_table() -> Mapping[str, Any]:
    """`runs` and what is `left_out`, as the file has them."""
    return tomllib.loads(text("served.toml"))


@functools.cache
def compared_served() -> tuple[Comparison, ...]:
    """Every served model beside ours."""
    return tuple(map(compared_serving, served_table()["runs"]))


def planned(run: Mapping[str, Any]) -> Plan:
    """The plan of a run, on a GPU of as many bytes as it logged."""
    plan = Plan.of(run["plan"])
    if "total" not in run:
        return plan
    gpu = plan.accelerator.model_copy(update={"usable_bytes": run["total"]})
    return plan.changed("cluster.gpu", gpu.model_dump(mode="json"))


def compared_serving(run: Mapping[str, Any]) -> Comparison:
    plan, what = planned(run), run["what"]
    s = serve(plan)
    ours = _ours(what, s, run)
    tolerance = TOLERANCES.get(what, WEIGHTS_TOLERANCE)
    if what == "weights" and plan.weight_dtype not in UNQUANTIZED:
        tolerance = QUANTIZED_TOLERANCE
    regime = f"{plan.weight_dtype}, cache {plan.serve.kv_dtype}"
    return of_run(
        run, plan, what, run["value"], ours, UNITS.get(what, ""), tolerance=tolerance, regime=regime
    )


def _ours(what: str, s: Serve, run: Mapping[str, Any]) -> float:
    if what == "weights":  # llama.cpp says the file's, embedding with it
        return s.weights_bytes if "llama.cpp" in run["run"] else s.loaded_bytes
    if what == "KV per token":
        return s.kv_bytes_per_token
    if what == "KV tokens":
        return s.kv_capacity_tokens
    if what == "tokens of a block":
        return s.block_tokens
    if what == "blocks of a sequence":
        return s.blocks_per_sequence
    if what == IMAGES:
        return s.profiled_images
    if what == ROOM:
        return s.kv_budget_bytes
    if what == GENERATING:
        return sum(r.bytes for r in s.rows)
    if s.ttft_seconds is None or s.tpot_seconds is None:
        raise ValueError(f"{run['id']}: the run fitted its GPUs, and the plan does not")
    if what == FIRST:
        return s.ttft_seconds
    if what in (SPEED, REQUEST):
        tokens = run["plan"]["serve"]["output_len"]
        return s.tpot_seconds + (s.ttft_seconds / tokens if what == REQUEST else 0)
    blocks = run["cache"] // s.block_bytes
    return int(blocks) if what == "blocks" else blocks / s.blocks_per_sequence
