"""How much faster plans are answered than by Calculon: `python benchmarks/beside_calculon.py
CHECKOUT`, a checkout of github.com/calculon-ai/calculon (which needs the package psutil). Prints
figures, never fails; target: 1,000 times as many plans a second on one core.

Calculon's own search goes through its ways to train GPT-3 175B on 64 A100, as many as PLANS. Ours:
the same model on the same GPUs, memory with step time over micro-batches and lengths, and all ways
to train it. CPU seconds of one process each. Calculon says more of a plan than two numbers, and
neither has all the words of the other: this is a ratio of rates, not of the same answers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

from memcore import Plan, search, sweep

PLANS = 42_064
GPUS, BATCH = 64, 64
OURS: dict[str, Any] = {
    "model": {
        "model_type": "gpt2", "n_embd": 12288, "n_layer": 96, "n_head": 96, "vocab_size": 51200,
        "n_positions": 2048,
    },
    "cluster": {"gpu": "a100-sxm-80gb", "gpus": GPUS},
    "parallel": {"tp": 8, "pp": 8},
    "train": {
        "framework": "megatron", "kernels": "megatron", "zero": 0, "seq_len": 2048,
        "grad_accumulation": BATCH,
    },
}  # fmt: skip
AXES = {
    "train.micro_batch": list(range(1, 1025)),
    "train.seq_len": [64 * i for i in range(1, 1025)],
}


def calculon(checkout: Path) -> float:
    """Plans a second of its search."""
    sys.path.insert(0, str(checkout))
    from calculon.llm.llm import Llm  # type: ignore[import-not-found]
    from calculon.llm.optimal_execution import (  # type: ignore[import-not-found]
        OptimalExecution,
    )
    from calculon.system import System  # type: ignore[import-not-found]

    app = Llm.Application(json.loads((checkout / "models/gpt3-175B.json").read_text()))
    system = System(json.loads((checkout / "systems/a100_80g.json").read_text()))
    done, start = 0, time.process_time()
    for tp in Llm.get_all_tensor_parallelisms(GPUS, app.hidden, app.attn_heads):
        for pp in Llm.get_all_pipeline_parallelisms(GPUS, tp, app.num_blocks):
            dp = Llm.get_data_parallelism(GPUS, tp, pp)
            words = itertools.product(
                Llm.get_valid_pipeline_interleavings(app.num_blocks, pp),
                ("full", "attn_only", "none"),
                (True, False) if dp > 1 else (False,),
                ("ar", "p2p_rs_ag", "rs_ag"),
            )
            for interleaved, again, sharded, kind in words:
                batch = OptimalExecution.get_batch_size(dp, BATCH)
                found = OptimalExecution.search(
                    False, 1, False, GPUS, BATCH, "float16", app, system, tp, pp, dp, interleaved,
                    batch, again, sharded, kind, "true", False, True, True,
                )  # fmt: skip
                done += found[1]
                if done >= PLANS:
                    return done / (time.process_time() - start)
    return done / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    theirs = calculon(parser.parse_args().checkout)
    print(f"Calculon: {theirs:,.0f} plans a second")
    plan = Plan.of(OURS)
    start = time.process_time()
    rows = len(sweep(plan, AXES, ["memory.allocated_bytes", "time.step_seconds"]))
    rate = rows / (time.process_time() - start)
    print(f"sweep, memory and time: {rate:,.0f} plans a second, {rate / theirs:,.0f} times")
    start = time.process_time()
    rate = search(plan).evaluated / (time.process_time() - start)
    print(f"search: {rate:,.0f} combinations a second, {rate / theirs:,.0f} times")


if __name__ == "__main__":
    main()
